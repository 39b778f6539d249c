/* SPDX-License-Identifier: Apache-2.0 */
/* Measures for `shardctl bench` how fast this machine's memory is. bench.c calls bench_memory().
 * One thread for each processor of the affinity mask, up to THREADS_MAX, sweeps over its own part
 * of two large arrays. All threads sweep several times at the same moment. Happy path: the threads
 * are made, all of them begin together, and the fastest sweep counts. If a thread cannot be made,
 * the threads that exist end without a sweep, and the text says so. */
#include "base/check.h"
#include "base/clock.h"
#include "ctl/bench.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>

#define THREADS_MAX 64
#define ELEMS       (128u << 20) /* Of all threads: 512 MiB in two arrays, beyond most caches. */
#define LEAST_ELEMS (256u << 10) /* Below that, waiting for one another takes longer. */
#define SWEEPS      12           /* The first half updates, the other one only reads. */

struct sweeps {                 /* What the threads share. */
	pthread_mutex_t making; /* Held until all threads exist, or one cannot be made. */
	bool given_up;
	pthread_barrier_t gate;
	uint32_t threads, elems; /* Elements of each array of one thread. */
};

struct sweep {
	pthread_t thread;
	struct sweeps *all;
	float *a, *b;
	uint64_t sum;        /* Keeps the compiler from leaving the reads out. */
	double rate[SWEEPS]; /* In bytes/s of all threads. */
};

/* Reads two arrays and writes one of them in place, as the update of an optimizer does. */
static uint32_t update(struct sweep *s)
{
	for (uint32_t i = 0; i < s->all->elems; i++)
		s->a[i] = s->a[i] * 0.5f + s->b[i];
	return 3;
}

/* Only reads. The memory bus need not switch between reads and writes, so this gives the most. */
static uint32_t scan(struct sweep *s)
{
	const float *from[2] = {s->a, s->b};
	uint64_t sum[8] = {0}, word[8];

	for (int k = 0; k < 2; k++) {
		for (uint32_t i = 0; i + 16 <= s->all->elems; i += 16) {
			memcpy(word, from[k] + i, sizeof(word));
			for (int j = 0; j < 8; j++)
				sum[j] += word[j];
		}
	}
	for (int j = 0; j < 8; j++)
		s->sum += sum[j];
	return 2;
}

static void *sweep_main(void *arg)
{
	struct sweep *s = arg;
	struct sweeps *all = s->all;
	bool given_up;

	pthread_mutex_lock(&all->making);
	given_up = all->given_up;
	pthread_mutex_unlock(&all->making);
	if (given_up)
		return NULL;
	for (uint32_t i = 0; i < all->elems; i++)
		s->a[i] = s->b[i] = 1;
	for (int k = 0; k < SWEEPS; k++) {
		uint64_t began;
		uint32_t passes;

		pthread_barrier_wait(&all->gate);
		began = clock_ns();
		passes = k < SWEEPS / 2 ? update(s) : scan(s);
		pthread_barrier_wait(&all->gate);
		s->rate[k] = (double)all->threads * all->elems * passes * sizeof(float) * 1e9 /
			     (double)(clock_ns() - began);
	}
	return NULL;
}

/* This thread runs sweep[0] itself. */
static enum shard_status run(struct sweep *sweep, struct sweeps *all, struct err *e)
{
	uint32_t made = 1;
	int error = 0;

	pthread_mutex_lock(&all->making);
	while (made < all->threads &&
	       (error = pthread_create(&sweep[made].thread, NULL, sweep_main, &sweep[made])) == 0)
		made++;
	all->given_up = error != 0;
	pthread_mutex_unlock(&all->making);
	(void)sweep_main(&sweep[0]);
	for (uint32_t i = 1; i < made; i++)
		pthread_join(sweep[i].thread, NULL);
	if (error == 0)
		return SHARD_OK;
	return err_set(
		e, SHARD_SYSTEM,
		"thread %u of %u for the speed of memory cannot start: %s: raise `ulimit -u` "
		"and `ulimit -v`, or choose fewer processors with taskset",
		made + 1, all->threads, strerror(error));
}

/* Raises *rate if sweeps over so many elements are faster. */
static enum shard_status sweep_over(uint32_t elems, double *rate, struct err *e)
{
	struct sweeps all = {.making = PTHREAD_MUTEX_INITIALIZER};
	struct sweep sweep[THREADS_MAX];
	enum shard_status st;
	cpu_set_t set;
	float *memory;
	size_t bytes;

	all.threads = sched_getaffinity(0, sizeof(set), &set) == 0 ? (uint32_t)CPU_COUNT(&set) : 1;
	all.threads = all.threads > THREADS_MAX ? THREADS_MAX : all.threads;
	CHECK(all.threads > 0);
	all.elems = elems / 2 / all.threads;
	bytes = (size_t)all.threads * 2 * all.elems * sizeof(*memory);
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return SHARD_OK;
	(void)madvise(memory, bytes, MADV_HUGEPAGE); /* The daemon does the same with its memory. */
	pthread_barrier_init(&all.gate, NULL, all.threads);
	for (uint32_t i = 0; i < all.threads; i++)
		sweep[i] = (struct sweep){.all = &all,
					  .a = memory + (size_t)i * 2 * all.elems,
					  .b = memory + ((size_t)i * 2 + 1) * all.elems};
	st = run(sweep, &all, e);
	for (int k = 0; st == SHARD_OK && k < SWEEPS; k++)
		*rate = sweep[0].rate[k] > *rate ? sweep[0].rate[k] : *rate;
	pthread_barrier_destroy(&all.gate);
	munmap(memory, bytes);
	return st;
}

enum shard_status bench_memory(uint64_t bytes, double *rate, struct err *e)
{
	uint64_t elems = bytes / sizeof(float) < LEAST_ELEMS ? LEAST_ELEMS : bytes / sizeof(float);
	enum shard_status st;

	*rate = 0;
	st = sweep_over(ELEMS, rate, e);
	if (st == SHARD_OK && elems < ELEMS)
		st = sweep_over((uint32_t)elems, rate, e);
	if (st != SHARD_OK)
		*rate = 0;
	return st;
}
