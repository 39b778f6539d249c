// SPDX-License-Identifier: Apache-2.0
/* lease_gpt.c: asks a GPU whether the example model has the losses and gradients there that it has
 * on this processor. lease.sh runs it with the fatbin of the model's kernels, and it prints one
 * row. The kernels do the same operations in the same order, and each rounds once. Only what is
 * flushed to zero may differ, next to 2^-126, and whatever that reaches by way of a sum. So a loss
 * may be off by 2^-20 of itself, and a gradient by 2^-20 of the largest one of its tensor. More
 * than that, or a call that fails, ends it with a sentence and status 1. */
#include "base/clock.h"
#include "base/rng.h"
#include "examples/layer_row.h"
#include "examples/transformer_cuda.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TURNS = 4, SEQUENCES = 3, TEXT_BYTES = 4096 };

static const double allowed = 0x1p-20;

struct lease_gpt {
	struct device device;
	struct transformer here;
	struct transformer_cuda there;
	uint8_t text[TEXT_BYTES];
	double worst_loss, worst_grad; /* Beside what is compared. */
	uint64_t elements, differ;     /* Gradients, and those with other bits. */
	uint64_t ns;                   /* Of the device. */
};

static void compare_tensor(struct lease_gpt *l, uint32_t tensor, float *there)
{
	const uint64_t n = l->here.tensors[tensor].numel;
	const float *here = l->here.g[tensor];
	double largest = 0x1p-126, off = 0;

	device_get(&l->device, there, l->there.net.g[tensor], n * sizeof(float));
	for (uint64_t i = 0; i < n; i++) {
		double d = fabs((double)here[i] - there[i]);

		largest = fmax(largest, fabs((double)here[i]));
		off = d > off || isnan(d) ? d : off;
		l->differ += memcmp(&here[i], &there[i], sizeof(float)) != 0;
	}
	l->elements += n;
	off /= largest;
	l->worst_grad = off > l->worst_grad || isnan(off) ? off : l->worst_grad;
}

/* One step's worth of sequences with weights of their own, here and there. */
static enum shard_status turn(struct lease_gpt *l, uint64_t seed, float *scratch)
{
	double here[SEQUENCES], there[SEQUENCES];
	uint64_t start_ns;
	enum shard_status st;

	for (uint32_t i = 0; i < l->here.tensors_nr; i++) {
		transformer_initial(&l->here, i, seed, l->here.w[i]);
		device_put(&l->device, l->there.net.w[i], l->here.w[i],
			   l->here.tensors[i].numel * sizeof(float));
	}
	transformer_zero_grad(&l->here);
	for (uint64_t i = 0; i < SEQUENCES; i++)
		here[i] = transformer_sequence(&l->here, l->text + 7 * i, 1024, NULL, NULL);
	start_ns = clock_ns();
	transformer_cuda_zero_grad(&l->there);
	for (uint64_t i = 0; i < SEQUENCES; i++)
		transformer_cuda_sequence(&l->there, 7 * i, i, 1024, NULL, NULL);
	st = transformer_cuda_losses(&l->there, SEQUENCES, there);
	l->ns += clock_ns() - start_ns;
	for (unsigned i = 0; i < SEQUENCES && st == SHARD_OK; i++) {
		double off = fabs(there[i] - here[i]) / here[i];

		l->worst_loss = off > l->worst_loss || isnan(off) ? off : l->worst_loss;
	}
	for (uint32_t i = 0; i < l->here.tensors_nr; i++)
		compare_tensor(l, i, scratch);
	return l->device.err.status;
}

int main(int argc, char **argv)
{
	static struct lease_gpt l;
	const struct transformer_shape shape = {.layers = 2, .dim = 64, .heads = 4, .seq = 64};
	float *scratch = calloc((size_t)4 * 64 * 64 + TRANSFORMER_CLASSES * 64, sizeof(float));
	struct rng r = {5};
	enum shard_status st;

	if (argc != 2 || !scratch) {
		fprintf(stderr, "usage: lease_gpt KERNELS\n");
		return 1;
	}
	for (unsigned i = 0; i < TEXT_BYTES; i++)
		l.text[i] = (uint8_t)rng_below(&r, TRANSFORMER_CLASSES);
	transformer_fp_mode();
	st = device_open(&l.device, 0, argv[1]);
	if (st == SHARD_OK)
		st = transformer_init(&l.here, &shape, &l.device.err);
	if (st == SHARD_OK)
		st = transformer_cuda_init(&l.there, &l.device, &shape, l.text, TEXT_BYTES,
					   SEQUENCES);
	for (uint64_t i = 0; i < TURNS && st == SHARD_OK; i++)
		st = turn(&l, 1 + i, scratch);
	if (st != SHARD_OK) {
		fprintf(stderr, "lease_gpt: %s\n", l.device.err.text);
		return 1;
	}
	printf("%-30s %u losses off by %.2g, %" PRIu64 " gradients: %" PRIu64
	       " have other bits, off by %.2g; %.2f ms for a sequence\n",
	       "gpt", TURNS * SEQUENCES, l.worst_loss, l.elements, l.differ, l.worst_grad,
	       (double)l.ns / (TURNS * SEQUENCES) / 1e6);
	transformer_cuda_deinit(&l.there);
	transformer_deinit(&l.here);
	device_close(&l.device);
	free(scratch);
	if (l.worst_loss <= allowed && l.worst_grad <= allowed)
		return 0;
	fprintf(stderr, "lease_gpt: losses or gradients are off by more than %.2g\n", allowed);
	return 1;
}
