// SPDX-License-Identifier: Apache-2.0
/* codec_wire_*: the bytes of a step over both links, with gradients and images as codes of 8 and of
 * 4 bits, beside the same without codecs. There are two daemons on this machine with one trainer
 * each, and three models of 32 Mi parameters (bf16, AdamW, clipping) that make steps in turn. The
 * limits are what is asked: 0.51 and 0.26 of the bytes without. codec_step_*: the time of a step,
 * from the first push until the image is complete at every trainer, and that of one without codecs
 * as its limit. Over loopback codes cost processor time and save none of the wire's. --quick: one
 * step of 2 Mi parameters. */
#include "base/check.h"
#include "bench/daemons.h"

#include <stdio.h>
#include <string.h>

enum { NODES = 2, ROUNDS = 15, WARM = 2, TENSORS = 32, MODELS = 3 };
#define SETTINGS "optimizer=adamw lr=1e-3 clip=1.0 min_world=2 max_world=2 local_world=1"

static const struct {
	const char *name, *settings;
	double asked;
} models[MODELS] = {{"none", SETTINGS, 1},
		    {"int8", SETTINGS " grad_codec=int8 image_codec=int8", 0.51},
		    {"int4", SETTINGS " grad_codec=int4 image_codec=int4", 0.26}};

static double wire_bytes(const struct daemons *d)
{
	return daemons_figure(d, 0, "/nodes.1.out_bytes") +
	       daemons_figure(d, 1, "/nodes.0.out_bytes");
}

static void begin(struct fleet *f[MODELS], const struct daemons *d, uint32_t tensors)
{
	struct fleet_times t;

	for (int k = 0; k < MODELS; k++) {
		struct fleet_spec spec = {.name = models[k].name,
					  .settings = models[k].settings,
					  .tensors_nr = tensors,
					  .numel = BARE_CHUNK,
					  .dtype = SHARD_BF16,
					  .trainers = NODES,
					  .node = {0, 1}};

		f[k] = fleet_begin(d, &spec);
		/* The first image is whole; the others are codes. */
		for (int i = 0; i < WARM; i++)
			fleet_step(f[k], &t);
	}
}

int main(int argc, char **argv)
{
	bool quick = argc > 1 && strcmp(argv[1], "--quick") == 0;
	uint32_t rounds = quick ? 1 : ROUNDS;
	double ms[MODELS][ROUNDS], median[MODELS], wire[MODELS] = {0};
	struct fleet *f[MODELS];
	struct fleet_times t;
	struct daemons d;

	daemons_start(&d, argv[0], NODES, 1);
	begin(f, &d, quick ? 2 : TENSORS);
	for (uint32_t i = 0; i < rounds; i++)
		for (int k = 0; k < MODELS; k++) {
			double before = wire_bytes(&d);

			fleet_step(f[k], &t);
			ms[k][i] = (double)t.step * 1e-6;
			wire[k] += (wire_bytes(&d) - before) / rounds;
		}
	for (int k = 0; k < MODELS; k++) {
		median[k] = bench_median(ms[k], (int)rounds);
		fleet_end(&f[k]);
	}
	daemons_stop(&d);
	for (int k = 1; k < MODELS; k++) {
		double limit = models[k].asked * wire[0];

		printf("bench: codec_wire_%s %.1f MiB limit %.1f ratio %.4f\n", models[k].name,
		       wire[k] / (1 << 20), limit / (1 << 20), wire[k] / limit);
		printf("bench: codec_step_%s %.2f ms limit %.2f ratio %.3f\n", models[k].name,
		       median[k], median[0], median[k] / median[0]);
	}
	fprintf(stderr, "codec_wire: int8 %.4f, int4 %.4f of the bytes without codecs\n",
		wire[1] / wire[0], wire[2] / wire[0]);
	return 0;
}
