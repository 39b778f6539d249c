/* SPDX-License-Identifier: Apache-2.0 */
/* growth_params_N: one daemon, one trainer, N Mi parameters. growth_trainers_N: one daemon, N
 * trainers of 32 Mi parameters. growth_daemons_N: N daemons on this machine, each with one trainer
 * of 64 Mi parameters. bf16, AdamW and clipping, with memory that ends with the daemon. Everything
 * is pushed at once, and the time runs from the first push until the image is complete at every
 * trainer. The limit is the time in which this machine's memory moves the bytes that such a step
 * has to move: 28 for each parameter (optimizer), 2 for each gradient that is summed, and for each
 * further node 2 of its contribution (read where it lands) and 2 of its image (written). How fast
 * the memory is comes from the bare kernel, which runs before each step. Sizes for which there is
 * no memory are left out, and it says so. --quick: the first three of each. */
#include "base/check.h"
#include "base/clock.h"
#include "bench/daemons.h"
#include "node/worker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROUNDS = 9, SHORT_ROUNDS = 5, BARE_CHUNKS_MAX = 64, QUICK = 3 };

struct point {
	const char *axis;
	uint32_t at, chunks_nr;
	int trainers, daemons;
};

static const struct point points[] = {
	{"params", 1, 1, 1, 1},    {"params", 4, 4, 1, 1},      {"params", 16, 16, 1, 1},
	{"params", 64, 64, 1, 1},  {"params", 256, 256, 1, 1},  {"params", 1024, 1024, 1, 1},
	{"trainers", 1, 32, 1, 1}, {"trainers", 2, 32, 2, 1},   {"trainers", 4, 32, 4, 1},
	{"trainers", 8, 32, 8, 1}, {"trainers", 16, 32, 16, 1}, {"trainers", 32, 32, 32, 1},
	{"daemons", 1, 64, 1, 1},  {"daemons", 2, 64, 2, 2},    {"daemons", 4, 64, 4, 4},
	{"daemons", 8, 64, 8, 8},
};

static uint64_t available(void)
{
	unsigned long long kib = 0;
	char line[128];
	FILE *f = fopen("/proc/meminfo", "r");

	while (f != NULL && fgets(line, sizeof(line), f) != NULL)
		if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
			break;
	if (f != NULL)
		fclose(f);
	return kib << 10;
}

/* The bare kernel gets as many parameters as the model, up to a size from which on its time grows
 * in proportion. */
static uint32_t bare_chunks(const struct point *p)
{
	return p->chunks_nr < BARE_CHUNKS_MAX ? p->chunks_nr : BARE_CHUNKS_MAX;
}

/* Of all processes of one measurement: state and sums once, image and landing slots at each node,
 * an arena and a written gradient for each trainer, and the bare kernel's. */
static uint64_t needs(const struct point *p)
{
	uint64_t elems = (uint64_t)p->chunks_nr * BARE_CHUNK;
	uint32_t nodes = (uint32_t)p->daemons, trainers = (uint32_t)p->trainers;

	return elems * (12 + 2 + 4 * nodes + 2 * trainers) + 16ull * bare_chunks(p) * BARE_CHUNK +
	       (1ull << 30);
}

/* Bytes of memory traffic per parameter. */
static double traffic(const struct point *p)
{
	return 28 + 2 * p->trainers + 4 * (p->daemons - 1);
}

static void measure(const char *argv0, const struct point *p)
{
	uint32_t cpus = worker_processors(), nodes = (uint32_t)p->daemons,
		 tensors = p->chunks_nr < FLEET_TENSORS_MAX ? p->chunks_nr : FLEET_TENSORS_MAX,
		 rounds = p->chunks_nr > BARE_CHUNKS_MAX ? SHORT_ROUNDS : ROUNDS;
	struct fleet_spec spec = {.name = "bench",
				  .tensors_nr = tensors,
				  .numel = (uint64_t)p->chunks_nr / tensors * BARE_CHUNK,
				  .dtype = SHARD_BF16,
				  .trainers = p->trainers};
	double ours[ROUNDS], limit[ROUNDS], o, l;
	char settings[160];
	struct fleet_times t;
	struct daemons d;
	struct fleet *f;
	struct bare *b;

	snprintf(settings, sizeof(settings),
		 "optimizer=adamw lr=1e-3 clip=1.0 min_world=%d max_world=%d local_world=%d",
		 p->trainers, p->trainers, p->trainers / p->daemons);
	spec.settings = settings;
	for (int i = 0; i < p->trainers; i++)
		spec.node[i] = i % p->daemons;
	daemons_start(&d, argv0, p->daemons, cpus > nodes ? cpus / nodes : 1);
	f = fleet_begin(&d, &spec);
	b = bare_begin(bare_chunks(p), cpus);
	bare_round(b);
	fleet_step(f, &t);
	fleet_step(f, &t);
	for (uint32_t i = 0; i < rounds; i++) {
		limit[i] = bare_round(b) / bare_chunks(p) * p->chunks_nr * traffic(p) / 28;
		fleet_step(f, &t);
		ours[i] = (double)t.step * 1e-6;
	}
	bare_end(&b);
	fleet_end(&f);
	daemons_stop(&d);
	o = bench_median(ours, (int)rounds);
	l = bench_median(limit, (int)rounds);
	printf("bench: growth_%s_%u %.2f ms limit %.2f ratio %.3f\n", p->axis, p->at, o, l, o / l);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	bool quick = argc > 1 && strcmp(argv[1], "--quick") == 0;
	/* The arguments AXIS N are for a closer look at one point. */
	const char *only = argc > 2 ? argv[1] : NULL;
	uint32_t only_at = argc > 2 ? (uint32_t)atoi(argv[2]) : 0;
	const char *axis = "";
	int nr = 0;

	for (size_t i = 0; i < NR(points); i++) {
		const struct point *p = &points[i];

		nr = strcmp(axis, p->axis) == 0 ? nr + 1 : 0;
		axis = p->axis;
		if ((quick && nr >= QUICK) ||
		    (only != NULL && (strcmp(only, p->axis) != 0 || p->at != only_at)))
			continue;
		if (needs(p) > available())
			fprintf(stderr,
				"growth_%s_%u is left out: it needs %.1f GiB of memory, %.1f are "
				"available\n",
				p->axis, p->at, (double)needs(p) / (1 << 30),
				(double)available() / (1 << 30));
		else
			measure(argv[0], p);
	}
	return 0;
}
