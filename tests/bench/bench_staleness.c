/* SPDX-License-Identifier: Apache-2.0 */
/* staleness_overlap: the time of a step with max_staleness = 1 and a trainer that goes ahead,
 * beside the same steps without. There is one daemon and one trainer. A step is begin, compute,
 * push all and commit. The "compute" leaves the processors alone, as that of a GPU does, and it
 * takes as long as an update (sum, norm, optimizer, image) takes by itself. A trainer that does not
 * go ahead pays both, one after the other, and one that goes ahead pays the longer one. The limit
 * is the step without. Rounds alternate and figures are medians. --quick: 4 Mi parameters and few
 * rounds. */
#include "base/check.h"
#include "base/clock.h"
#include "bench/daemons.h"
#include "node/worker.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { NUMEL = 1 << 20, ROUNDS = 15, STEPS = 5 /* Of a round. */ };

#define TRY(call)                                                                                  \
	do {                                                                                       \
		enum shard_status try_ = (call);                                                   \
		if (try_ != SHARD_OK)                                                              \
			bench_fail("%s: %s: %s", #call, shard_name(try_), shard_error());          \
	} while (0)

struct side {
	struct shard_tensor tensor[FLEET_TENSORS_MAX];
	char names[FLEET_TENSORS_MAX][16];
	uint32_t tensors_nr;
	shard_client *client;
	shard_model *model;
	uint64_t steps;
};

static void side_start(struct side *s, const char *address, const char *name, uint32_t tensors_nr,
		       int staleness)
{
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	struct shard_spec spec = SHARD_INIT(struct shard_spec);
	struct shard_world world = SHARD_INIT(struct shard_world);
	float *w = calloc(NUMEL, sizeof(*w));
	char settings[128];
	int created;

	CHECK(w != NULL && tensors_nr <= FLEET_TENSORS_MAX);
	memset(s, 0, sizeof(*s));
	s->tensors_nr = tensors_nr;
	for (uint32_t t = 0; t < tensors_nr; t++) {
		snprintf(s->names[t], sizeof(s->names[t]), "t%u", t);
		s->tensor[t] =
			(struct shard_tensor){.name = s->names[t], .ndim = 1, .shape = {NUMEL}};
	}
	snprintf(settings, sizeof(settings), "optimizer=adamw lr=1e-3 clip=1.0 max_staleness=%d",
		 staleness);
	o.address = address;
	spec.name = name;
	spec.tensors = s->tensor;
	spec.tensors_nr = tensors_nr;
	spec.image = spec.grad = SHARD_BF16;
	spec.settings = settings;
	TRY(shard_connect(&s->client, &o));
	TRY(shard_define(s->client, &spec, &s->model, &created));
	CHECK(created);
	for (uint32_t t = 0; t < tensors_nr; t++)
		TRY(shard_write(s->model, SHARD_MASTER, t, 0, NUMEL, SHARD_F32, w));
	TRY(shard_seal(s->model, 0));
	TRY(shard_join(s->model, -1, SHARD_DEFAULT, &world));
	free(w);
}

static void compute(uint64_t ns)
{
	struct timespec t = {.tv_sec = (time_t)(ns / NS_PER_SEC),
			     .tv_nsec = (long)(ns % NS_PER_SEC)};

	while (clock_nanosleep(CLOCK_MONOTONIC, 0, &t, &t) == EINTR)
		;
}

static void step(struct side *s, uint64_t compute_ns, shard_ticket *committed)
{
	struct shard_step step = SHARD_INIT(struct shard_step);

	TRY(shard_begin(s->model, NULL, &step));
	compute(compute_ns);
	for (uint32_t t = s->tensors_nr; t-- > 0;) {
		if (s->steps < 2) /* Fills both halves of the arena. */
			for (uint32_t i = 0; i < NUMEL; i++)
				((uint16_t *)shard_grad(s->model, t))[i] =
					(uint16_t)(0x3a00 + i % 200);
		TRY(shard_push(s->model, t, 0, NUMEL, NULL, SHARD_BF16, 0, NULL));
	}
	TRY(shard_commit(s->model, committed));
	s->steps++;
}

/* Returns the ns of one step. A trainer waits for each result at once, or after the next commit if
 * it goes ahead. The time ends when the last step is applied. */
static double run(struct side *s, bool ahead, uint64_t compute_ns)
{
	struct shard_result r = SHARD_INIT(struct shard_result);
	shard_ticket before = 0, now, whole;
	uint64_t began = clock_ns();

	for (int i = 0; i < STEPS; i++) {
		step(s, compute_ns, &now);
		if (!ahead)
			TRY(shard_result(s->model, now, SHARD_DEFAULT, &r));
		else if (before != 0)
			TRY(shard_result(s->model, before, SHARD_DEFAULT, &r));
		before = now;
	}
	if (ahead)
		TRY(shard_result(s->model, before, SHARD_DEFAULT, &r));
	for (uint32_t t = 0; t < s->tensors_nr; t++)
		TRY(shard_pull(s->model, t, 0, NUMEL, s->steps, NULL, SHARD_BF16, &whole));
	TRY(shard_wait(s->model, whole, SHARD_DEFAULT));
	return (double)(clock_ns() - began) / STEPS;
}

int main(int argc, char **argv)
{
	bool quick = argc > 1 && strcmp(argv[1], "--quick") == 0;
	double ahead[ROUNDS], sync[ROUNDS], a, l;
	static struct side with, without;
	uint64_t compute_ns;
	struct daemons d;
	int rounds = quick ? 3 : ROUNDS;
	uint32_t tensors_nr = quick ? 4 : 64;

	daemons_start(&d, argv[0], 1, worker_processors());
	side_start(&with, d.address[0], "ahead", tensors_nr, 1);
	side_start(&without, d.address[0], "sync", tensors_nr, 0);
	run(&with, true, 0);
	run(&without, false, 0);
	compute_ns = (uint64_t)run(&without, false, 0);
	for (int i = 0; i < rounds; i++) {
		sync[i] = run(&without, false, compute_ns) * 1e-6;
		ahead[i] = run(&with, true, compute_ns) * 1e-6;
	}
	a = bench_median(ahead, rounds);
	l = bench_median(sync, rounds);
	fprintf(stderr, "staleness_overlap: compute takes %.2f ms of each step\n",
		(double)compute_ns * 1e-6);
	printf("bench: staleness_overlap %.2f ms limit %.2f ratio %.3f\n", a, l, a / l);
	shard_disconnect(&with.client);
	shard_disconnect(&without.client);
	daemons_stop(&d);
	return 0;
}
