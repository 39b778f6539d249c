// SPDX-License-Identifier: Apache-2.0
/* replication_cost: what a second copy of each chunk costs. There are three daemons on this machine
 * with one trainer each, and two models of 64 Mi parameters (bf16, AdamW, clipping): one with
 * replicas = 1, and one with 2. They make steps in turn. Everything is pushed at once, and the time
 * runs from the first push until the image is complete at every trainer. The figure is the median
 * with two copies, and the limit is 1.5 times the median with one. replication_wire_R are the bytes
 * of a step over all links together; their limit is the formula of proto/wire/README.md. --quick:
 * one step of 3 Mi parameters. */
#include "base/check.h"
#include "bench/daemons.h"

#include <stdio.h>
#include <string.h>

enum { NODES = 3, ROUNDS = 15, WARM = 2, TENSORS = 64 };

static double wire_bytes(const struct daemons *d)
{
	double bytes = 0;
	char path[64];

	for (int i = 0; i < NODES; i++) {
		for (int n = 0; n < NODES; n++) {
			if (n == i)
				continue;
			snprintf(path, sizeof(path), "/nodes.%d.out_bytes", n);
			bytes += daemons_figure(d, i, path);
		}
	}
	return bytes;
}

/* g and i, the bytes of an element in a gradient and in the image, are 2. */
static double formula(double elements, int copies)
{
	return elements * 2 * ((NODES - 1) + (copies - 1) + (NODES - copies));
}

int main(int argc, char **argv)
{
	bool quick = argc > 1 && strcmp(argv[1], "--quick") == 0;
	struct fleet_spec spec[2] = {
		{.name = "one",
		 .settings = "optimizer=adamw lr=1e-3 clip=1.0 min_world=3 max_world=3 "
			     "local_world=1 replicas=1"},
		{.name = "two",
		 .settings = "optimizer=adamw lr=1e-3 clip=1.0 min_world=3 max_world=3 "
			     "local_world=1 replicas=2"},
	};
	uint32_t rounds = quick ? 1 : ROUNDS, tensors = quick ? 3 : TENSORS;
	double ms[2][ROUNDS], median[2], wire[2] = {0}, elements = (double)tensors * BARE_CHUNK;
	struct fleet_times t;
	struct daemons d;
	struct fleet *f[2];

	daemons_start(&d, argv[0], NODES, 1);
	for (int k = 0; k < 2; k++) {
		spec[k].tensors_nr = tensors;
		spec[k].numel = BARE_CHUNK;
		spec[k].dtype = SHARD_BF16;
		spec[k].trainers = NODES;
		for (int i = 0; i < NODES; i++)
			spec[k].node[i] = i;
		f[k] = fleet_begin(&d, &spec[k]);
		for (int i = 0; i < WARM; i++)
			fleet_step(f[k], &t);
	}
	for (uint32_t i = 0; i < rounds; i++) {
		for (int k = 0; k < 2; k++) {
			double before = wire_bytes(&d);

			fleet_step(f[k], &t);
			ms[k][i] = (double)t.step * 1e-6;
			wire[k] += (wire_bytes(&d) - before) / rounds;
		}
	}
	for (int k = 0; k < 2; k++) {
		median[k] = bench_median(ms[k], (int)rounds);
		fleet_end(&f[k]);
	}
	daemons_stop(&d);
	printf("bench: replication_cost %.2f ms limit %.2f ratio %.3f\n", median[1],
	       1.5 * median[0], median[1] / (1.5 * median[0]));
	for (int k = 0; k < 2; k++) {
		double limit = formula(elements, k + 1);

		printf("bench: replication_wire_%d %.1f MiB limit %.1f ratio %.4f\n", k + 1,
		       wire[k] / (1 << 20), limit / (1 << 20), wire[k] / limit);
	}
	fprintf(stderr, "replication_cost: %.2f ms with one copy, %.2f with two: %.2f times\n",
		median[0], median[1], median[1] / median[0]);
	return 0;
}
