// SPDX-License-Identifier: Apache-2.0
/* zero_trainer ADDRESS SETTINGS RANK STAGE LAYERS NUMEL: a trainer of `make zero`, whose memory
 * zero.py measures from outside. It keeps what a trainer with a device keeps there: with stage 1
 * all parameters and all gradients, with stage 2 all parameters and the gradients of one layer, and
 * with stage 3 those of one layer of both. A layer is one tensor. For each line of standard input
 * it says "joined", then "step N" for each step that is complete, and it leaves when the input
 * ends. Every failure ends it. */
#include "shard.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRY(call)                                                                                  \
	do {                                                                                       \
		enum shard_status try_ = (call);                                                   \
		if (try_ != SHARD_OK) {                                                            \
			fprintf(stderr, "zero_trainer: %s: %s: %s\n", #call, shard_name(try_),     \
				shard_error());                                                    \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

enum { LAYERS_MAX = 64, WAIT_MS = 120000 };

static struct {
	const char *address, *settings;
	int rank, stage;
	uint32_t layers;
	uint64_t numel;
} ask;

static shard_client *client;
static shard_model *model;
static uint16_t *params, *grads; /* The memory of the device. */

static void *device(uint64_t layers)
{
	void *p = malloc(layers * ask.numel * 2);

	if (p == NULL) {
		fprintf(stderr, "zero_trainer: no memory\n");
		exit(1);
	}
	memset(p, 0, layers * ask.numel * 2);
	return p;
}

static void write_weights(void)
{
	float *w = malloc(ask.numel * sizeof(*w));

	if (w == NULL)
		exit(1);
	for (uint64_t i = 0; i < ask.numel; i++)
		w[i] = (float)(i % 997) * 1e-3f;
	for (uint32_t t = 0; t < ask.layers; t++)
		TRY(shard_write(model, SHARD_MASTER, t, 0, ask.numel, SHARD_F32, w));
	free(w);
	TRY(shard_seal(model, 0));
}

static void join(void)
{
	static struct shard_tensor tensor[LAYERS_MAX];
	static char names[LAYERS_MAX][16];
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	struct shard_spec spec = SHARD_INIT(struct shard_spec);
	struct shard_world w = SHARD_INIT(struct shard_world);
	int created;

	for (uint32_t t = 0; t < ask.layers; t++) {
		snprintf(names[t], sizeof(names[t]), "layer%u", t);
		tensor[t] =
			(struct shard_tensor){.name = names[t], .ndim = 1, .shape = {ask.numel}};
	}
	o.address = ask.address;
	spec.name = "zero";
	spec.tensors = tensor;
	spec.tensors_nr = ask.layers;
	spec.image = spec.grad = SHARD_BF16;
	spec.settings = ask.settings;
	TRY(shard_connect(&client, &o));
	TRY(shard_define(client, &spec, &model, &created));
	if (created)
		write_weights();
	TRY(shard_join(model, ask.rank, WAIT_MS, &w));
}

static uint16_t *layer(uint16_t *memory, uint32_t t, bool all)
{
	return memory + (all ? t * ask.numel : 0);
}

/* Reads the layer's parameters, and makes a gradient of them. */
static void backward(uint32_t t, uint64_t step)
{
	const uint16_t *p = layer(params, t, ask.stage < 3);
	uint16_t *g = layer(grads, t, ask.stage < 2);

	for (uint64_t i = 0; i < ask.numel; i++)
		g[i] = (uint16_t)(0x3c00 | ((p[i] * 40503u + i + step) & 0x807f));
}

static void fetch(uint32_t t)
{
	memcpy(layer(params, t, ask.stage < 3), shard_image(model, t), ask.numel * 2);
}

static void step(void)
{
	struct shard_step s = SHARD_INIT(struct shard_step);
	struct shard_result r = SHARD_INIT(struct shard_result);
	shard_ticket commit, last = 0;

	TRY(shard_begin(model, NULL, &s));
	for (uint32_t t = 0; t < ask.layers; t++)
		fetch(t);
	for (uint32_t t = ask.layers; t-- > 0;) {
		if (ask.stage == 3)
			fetch(t);
		backward(t, s.step);
		TRY(shard_push(model, t, 0, ask.numel, layer(grads, t, ask.stage < 2), SHARD_BF16,
			       0, NULL));
	}
	TRY(shard_commit(model, &commit));
	for (uint32_t t = 0; t < ask.layers; t++)
		TRY(shard_pull(model, t, 0, ask.numel, s.step, NULL, SHARD_BF16, &last));
	TRY(shard_wait(model, last, WAIT_MS));
	TRY(shard_result(model, commit, WAIT_MS, &r));
	if (r.outcome != SHARD_APPLIED) {
		fprintf(stderr, "zero_trainer: step %llu was not applied\n",
			(unsigned long long)r.step);
		exit(1);
	}
	printf("step %llu\n", (unsigned long long)r.step);
}

int main(int argc, char **argv)
{
	char line[16];

	if (argc != 7) {
		fprintf(stderr, "zero_trainer ADDRESS SETTINGS RANK STAGE LAYERS NUMEL\n");
		return 2;
	}
	ask.address = argv[1];
	ask.settings = argv[2];
	ask.rank = atoi(argv[3]);
	ask.stage = atoi(argv[4]);
	ask.layers = (uint32_t)atoi(argv[5]);
	ask.numel = strtoull(argv[6], NULL, 10);
	if (ask.stage < 1 || ask.stage > 3 || ask.layers < 1 || ask.layers > LAYERS_MAX)
		return 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	join();
	puts("joined");
	if (fgets(line, sizeof(line), stdin) == NULL)
		return 1;
	params = device(ask.stage < 3 ? ask.layers : 1);
	grads = device(ask.stage < 2 ? ask.layers : 1);
	do
		step();
	while (fgets(line, sizeof(line), stdin) != NULL);
	TRY(shard_leave(model, WAIT_MS));
	shard_disconnect(&client);
	return 0;
}
