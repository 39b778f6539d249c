// SPDX-License-Identifier: Apache-2.0
/* nvme_step, nvme_cached, nvme_durable: one daemon, one trainer, and 64 Mi parameters with AdamW,
 * whose state of 768 MiB is on a disk. nvme_step has eight chunks in memory at a time, so that a
 * step reads and writes 60 of 64. It is the bytes of both over the time of some steps in a row,
 * pushes and all. The limit is fio's mixed reading and writing of a file of that size on the same
 * file system, with O_DIRECT, 1 MiB at a time and 16 in flight. A round does both, and rounds take
 * turns in which one is first. The figures are medians. nvme_cached has all chunks in memory, so
 * that a step reads and writes nothing. Its limit is the step of a model with tier = ram, in turn
 * with it. nvme_durable is a step with nvme_durable = step, of some in a row, and its limit is one
 * without. The files lie in the build folder, because /tmp may be memory. Without fio there is no
 * limit and no figure.
 * --quick: one round of 16 Mi parameters. */
#include "base/check.h"
#include "base/clock.h"
#include "bench/daemons.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 7, STEPS = 3, CACHE = 8, STAY = 4, CACHED_STEPS = 21, TENSORS = 16 };

#define SLOT_BYTES (12.0 * (1 << 20) + 4096)
#define SETTINGS   "optimizer=adamw lr=1e-3 min_world=1"

struct bench {
	struct daemons d;
	char dir[600];
	uint64_t chunks;
};

static struct fleet *begin(struct bench *b, const char *name, const char *settings)
{
	struct fleet_spec spec = {.name = name,
				  .settings = settings,
				  .tensors_nr = TENSORS,
				  .numel = (b->chunks << 20) / TENSORS,
				  .dtype = SHARD_BF16,
				  .trainers = 1};

	return fleet_begin(&b->d, &spec);
}

/* GB/s of reading and writing together. 0: there is no fio. */
static double fio(const struct bench *b)
{
	char command[2000];
	json_error_t je;
	const json_t *job;
	json_t *all;
	double rate = 0;
	FILE *f;

	snprintf(command, sizeof(command),
		 "fio --name=limit --filename=%s/fio --rw=rw --bs=1M --size=%lluM --direct=1 "
		 "--ioengine=libaio --iodepth=16 --time_based --runtime=3 --output-format=json "
		 "2>%s/fio.log",
		 b->dir, (unsigned long long)b->chunks * 12, b->dir);
	f = popen(command, "r");
	all = f != NULL ? json_loadf(f, JSON_DISABLE_EOF_CHECK, &je) : NULL;
	job = json_array_get(json_object_get(all, "jobs"), 0);
	if (f != NULL && pclose(f) == 0 && all != NULL)
		rate = json_number_value(
			       json_object_get(json_object_get(job, "read"), "bw_bytes")) +
		       json_number_value(
			       json_object_get(json_object_get(job, "write"), "bw_bytes"));
	json_decref(all);
	return rate * 1e-9;
}

static double disk_rate(struct bench *b, struct fleet *f)
{
	uint64_t start = clock_ns();
	struct fleet_times t;

	for (int i = 0; i < STEPS; i++)
		fleet_step(f, &t);
	return 2 * STEPS * (double)(b->chunks - STAY) * SLOT_BYTES / (double)(clock_ns() - start);
}

static void on_disk(struct bench *b, int rounds)
{
	double ours[ROUNDS], limit[ROUNDS], o, l;
	struct fleet *f = begin(b, "disk", SETTINGS " tier=nvme nvme_cache=8");

	(void)disk_rate(b, f);
	(void)fio(b); /* Makes its file. */
	for (int i = 0; i < rounds; i++)
		for (int k = 0; k < 2; k++)
			if (k == i % 2)
				ours[i] = disk_rate(b, f);
			else
				limit[i] = fio(b);
	fleet_end(&f);
	o = bench_median(ours, rounds);
	l = bench_median(limit, rounds);
	if (l > 0)
		printf("bench: nvme_step %.2f GB/s limit %.2f ratio %.3f\n", o, l, o / l);
	fprintf(stderr, "nvme_step: from %.2f to %.2f GB/s; fio %.2f to %.2f\n", ours[0],
		ours[rounds - 1], limit[0], limit[rounds - 1]);
}

static void cached(struct bench *b, int steps)
{
	double ours[CACHED_STEPS], limit[CACHED_STEPS], o, l;
	struct fleet *in = begin(b, "memory", SETTINGS),
		     *all = begin(b, "cached", SETTINGS " tier=nvme nvme_cache=64");
	struct fleet_times t;

	for (int i = -2; i < steps; i++)
		for (int k = 0; k < 2; k++) {
			bool mine = k == (i & 1);

			fleet_step(mine ? all : in, &t);
			if (i >= 0)
				(mine ? ours : limit)[i] = (double)t.step * 1e-6;
		}
	fleet_end(&in);
	fleet_end(&all);
	o = bench_median(ours, steps);
	l = bench_median(limit, steps);
	printf("bench: nvme_cached %.2f ms limit %.2f ratio %.3f\n", o, l, o / l);
}

/* ms of a step, of some in a row. What the other model still writes is over after the first one. */
static double in_a_row(struct fleet *f)
{
	struct fleet_times t;
	uint64_t start;

	fleet_step(f, &t);
	start = clock_ns();
	for (int i = 0; i < STEPS; i++)
		fleet_step(f, &t);
	return (double)(clock_ns() - start) * 1e-6 / STEPS;
}

static void durable(struct bench *b, int rounds)
{
	double ours[CACHED_STEPS], limit[CACHED_STEPS], o, l;
	struct fleet *off = begin(b, "off", SETTINGS " tier=nvme nvme_cache=8"),
		     *on = begin(b, "durable",
				 SETTINGS " tier=nvme nvme_cache=8 nvme_durable=step");

	for (int i = -1; i < rounds; i++)
		for (int k = 0; k < 2; k++) {
			bool mine = k == (i & 1);
			double ms = in_a_row(mine ? on : off);

			if (i >= 0)
				(mine ? ours : limit)[i] = ms;
		}
	fleet_end(&off);
	fleet_end(&on);
	o = bench_median(ours, rounds);
	l = bench_median(limit, rounds);
	printf("bench: nvme_durable %.2f ms limit %.2f ratio %.3f\n", o, l, o / l);
}

int main(int argc, char **argv)
{
	bool quick = argc > 1 && strcmp(argv[1], "--quick") == 0;
	struct bench *b = calloc(1, sizeof(*b));
	char lines[700];

	CHECK(b != NULL);
	b->chunks = quick ? 16 : 64;
	daemons_make(&b->d, argv[0], 1, 0, "tmpfs");
	snprintf(b->dir, sizeof(b->dir), "%s/bench-nvme.XXXXXX", b->d.build);
	if (mkdtemp(b->dir) == NULL)
		bench_fail("%s: no folder", b->dir);
	snprintf(lines, sizeof(lines), "[daemon]\nnvme_dir = %s\n", b->dir);
	daemons_configure(&b->d, lines);
	daemons_launch(&b->d, 0);
	daemons_wait(&b->d, 0);
	on_disk(b, quick ? 1 : ROUNDS);
	cached(b, quick ? 3 : CACHED_STEPS);
	durable(b, quick ? 1 : ROUNDS);
	daemons_stop(&b->d);
	snprintf(lines, sizeof(lines), "rm -rf %s", b->dir);
	if (system(lines) != 0)
		bench_fail("%s", lines);
	free(b);
	return 0;
}
