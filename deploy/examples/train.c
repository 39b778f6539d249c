/* SPDX-License-Identifier: Apache-2.0 */
/* A whole trainer in one file, which needs shard.h and libshard alone:
 *
 *     cc -o train train.c $(pkg-config --cflags --libs libshard)
 *     ./train                           # starts a private daemon; needs no configuration
 *     ./train unix:/run/shardd/shardd.sock 500
 *
 * It learns y = w x + b of 32 inputs from made-up samples. Start it several times at once, and they
 * share each batch: the weights are the same as with one. Kill one of them, or the daemon of a
 * service, whose memory outlives it, and training goes on at the step that was not decided yet. A
 * private daemon that is killed takes its models along, and the trainer says so. What is yours in a
 * trainer of your own is marked with "Yours". `man shard` has all functions. Exit status: 0
 * trained, 1 failed. */
#include <shard.h>

#include <stdio.h>
#include <stdlib.h>

enum { INPUTS = 32, BATCH = 64, LOOK_MS = 60000 };
enum { WEIGHTS, BIAS, TENSORS };

static const uint64_t numel[TENSORS] = {INPUTS, 1};

/* Yours: the i-th sample, the same for whoever asks. Here x is noise, and y a sum of it. */
static double sample(uint64_t i, float x[INPUTS])
{
	uint64_t state = i * 0x9e3779b97f4a7c15u + 1;
	double y = 0.25;

	for (int k = 0; k < INPUTS; k++) {
		state ^= state << 13;
		state ^= state >> 7;
		state ^= state << 17;
		x[k] = (float)(state >> 40) / (float)(1 << 23) - 1.0f;
		y += (double)x[k] * (k % 5 - 2);
	}
	return y;
}

/* Yours: the gradient of these samples, summed and not averaged, because the daemons divide by all
 * weights of begin. It is written where the daemon reads it, and push says that it is complete. */
static enum shard_status forward_backward(shard_model *m, uint64_t first, uint64_t count,
					  double loss_scale, double *loss)
{
	const float *w = shard_image(m, WEIGHTS), *b = shard_image(m, BIAS);
	float *gw = shard_grad(m, WEIGHTS), *gb = shard_grad(m, BIAS), x[INPUTS];
	enum shard_status rc = SHARD_OK;

	*loss = 0;
	if (!w || !b || !gw || !gb)
		return SHARD_BAD_STATE;
	for (int k = 0; k < INPUTS; k++)
		gw[k] = 0;
	*gb = 0;
	for (uint64_t i = first; i < first + count; i++) {
		double y = sample(i, x), error = (double)*b - y;

		for (int k = 0; k < INPUTS; k++)
			error += (double)w[k] * (double)x[k];
		for (int k = 0; k < INPUTS; k++)
			gw[k] += (float)(2 * error * (double)x[k] * loss_scale);
		*gb += (float)(2 * error * loss_scale);
		*loss += error * error / (double)count;
	}
	for (uint32_t i = TENSORS; rc == SHARD_OK && i-- > 0;) {
		shard_ticket t;

		rc = shard_push(m, i, 0, numel[i], NULL, SHARD_F32, 0, &t);
	}
	return rc;
}

static enum shard_status steps(shard_model *m, uint64_t last)
{
	struct shard_world w = SHARD_INIT(struct shard_world);
	enum shard_status rc = shard_join(m, -1, SHARD_DEFAULT, &w);

	if (rc == SHARD_OK && w.step > last)
		printf("the model is at step %llu already\n", (unsigned long long)w.step - 1);
	while (rc == SHARD_OK && w.step <= last) {
		struct shard_begin_opts opts = SHARD_INIT(struct shard_begin_opts);
		struct shard_step s = SHARD_INIT(struct shard_step);
		struct shard_result r = SHARD_INIT(struct shard_result);
		uint64_t first = 0, count = 0;
		shard_ticket t = 0;
		double loss = 0;

		/* Which samples of this step's batch are this rank's. */
		if ((rc = shard_samples(&w, BATCH, &first, &count)) != SHARD_OK)
			break;
		opts.weight = count > 0 ? (double)count : SHARD_NO_SAMPLES;
		rc = shard_begin(m, &opts, &s);
		if (rc == SHARD_OK && count > 0)
			rc = forward_backward(m, first, count, s.loss_scale, &loss);
		if (rc == SHARD_OK)
			rc = shard_commit(m, &t);
		if (rc == SHARD_OK)
			rc = shard_result(m, t, SHARD_DEFAULT, &r);
		if (rc == SHARD_OK)
			printf("step %llu loss %.6f\n", (unsigned long long)r.step, loss);
		else if (rc == SHARD_WORLD_CHANGED || rc == SHARD_ROLLED_BACK)
			printf("%s: %s\n", shard_name(rc), shard_error());
		if (rc == SHARD_OK || rc == SHARD_WORLD_CHANGED || rc == SHARD_ROLLED_BACK)
			rc = shard_world_get(m, &w); /* Rank, size and step may be new. */
	}
	return rc == SHARD_OK ? shard_leave(m, SHARD_DEFAULT) : rc;
}

/* Connects, defines the model or finds it, and trains. Only one trainer of all gets created = 1,
 * and writes the first weights. */
static enum shard_status train(const char *address, uint64_t last)
{
	static const float zero[INPUTS];
	struct shard_connect_opts connect = SHARD_INIT(struct shard_connect_opts);
	struct shard_spec spec = SHARD_INIT(struct shard_spec);
	struct shard_tensor tensors[TENSORS] = {
		{.name = "weights", .ndim = 1, .shape = {INPUTS}},
		{.name = "bias", .ndim = 0}, /* A scalar. */
	};
	shard_client *c = NULL;
	shard_model *m = NULL;
	int created = 0;
	enum shard_status rc;

	connect.address = address;
	connect.look_ms = LOOK_MS; /* For a daemon that is not there yet, or is started again. */
	spec.name = "example";
	spec.tensors = tensors;
	spec.tensors_nr = TENSORS;
	spec.image = spec.grad = SHARD_F32;
	spec.settings = "optimizer=adamw lr=0.02 weight_decay=0 max_world=16";
	rc = shard_connect(&c, &connect);
	if (rc == SHARD_OK)
		rc = shard_define(c, &spec, &m, &created);
	for (uint32_t i = 0; rc == SHARD_OK && created && i < TENSORS; i++)
		rc = shard_write(m, SHARD_MASTER, i, 0, numel[i], SHARD_F32, zero);
	if (rc == SHARD_OK && created)
		rc = shard_seal(m, 0);
	if (rc == SHARD_OK)
		rc = steps(m, last);
	if (rc != SHARD_OK)
		fprintf(stderr, "train: %s: %s\n", shard_name(rc), shard_error());
	shard_disconnect(&c);
	return rc;
}

int main(int argc, char **argv)
{
	const char *from_env = getenv("SHARD_ADDRESS");
	const char *address = argc > 1 ? argv[1] : from_env ? from_env : "spawn:example";
	uint64_t last = argc > 2 ? strtoull(argv[2], NULL, 10) : 200;

	return train(address, last) != SHARD_OK;
}
