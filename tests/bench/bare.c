/* SPDX-License-Identifier: Apache-2.0 */
/* The bare kernel of daemons.h, beside which benchmarks put the time of a step. Its threads are
 * pinned as the workers of a daemon are, and wait at a barrier between rounds. */
#include "base/check.h"
#include "base/clock.h"
#include "bench/daemons.h"
#include "net/shm.h"
#include "optim/ftz.h"
#include "optim/optim.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS_MAX = 64 };

struct bare {
	uint32_t chunks_nr, threads_nr;
	optim_apply *apply;
	struct optim_args args;
	struct shm state, grad, image;
	_Atomic uint32_t next;
	bool over;
	pthread_barrier_t go, done;
	struct bare_thread {
		struct bare *b;
		int cpu;
		pthread_t id;
	} thread[THREADS_MAX];
};

static void *bare_main(void *arg)
{
	struct bare_thread *t = arg;
	struct bare *b = t->b;
	size_t n = (size_t)b->chunks_nr * BARE_CHUNK;
	float *p = b->state.base;
	cpu_set_t set;
	uint32_t c;

	CPU_ZERO(&set);
	CPU_SET(t->cpu, &set);
	/* The daemon's workers are pinned, too. */
	(void)pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
	ftz_on();
	for (;;) {
		pthread_barrier_wait(&b->go);
		if (b->over)
			return NULL;
		while ((c = atomic_fetch_add(&b->next, 1)) < b->chunks_nr) {
			size_t at = (size_t)c * BARE_CHUNK;

			b->apply(&b->args, BARE_CHUNK, (uint16_t *)b->grad.base + at, p + at,
				 p + n + at, p + 2 * n + at, (uint16_t *)b->image.base + at);
		}
		pthread_barrier_wait(&b->done);
	}
}

struct bare *bare_begin(uint32_t chunks_nr, uint32_t threads_nr)
{
	struct bare *b = calloc(1, sizeof(*b));
	const struct optim_row *row = optim_row(OPTIM_ADAMW);
	size_t n = (size_t)chunks_nr * BARE_CHUNK;
	double h[HYPER_NR];
	cpu_set_t set;
	struct err e;

	CHECK(b != NULL);
	b->chunks_nr = chunks_nr;
	b->threads_nr = threads_nr < THREADS_MAX ? threads_nr : THREADS_MAX;
	b->apply = optim_kernel(row, isa_best(), SHARD_BF16, SHARD_BF16);
	optim_defaults(row, h);
	optim_args_set(&b->args, row, h, 10, 1.0f);
	if (shm_private(&b->state, 12 * n, SHM_HUGE_TRY, &e) != SHARD_OK ||
	    shm_create(&b->grad, "bench-grad", 2 * n, SHM_ARENA, SHM_HUGE_TRY, &e) != SHARD_OK ||
	    shm_create(&b->image, "bench-image", 2 * n, SHM_IMAGE, SHM_HUGE_TRY, &e) != SHARD_OK)
		bench_fail("no memory: %s", e.text);
	for (size_t i = 0; i < n; i++) {
		((uint16_t *)b->grad.base)[i] = dtype_to_bf16((float)(i % 1001) * 1e-4f - 0.05f);
		((float *)b->state.base)[i] = 1.0f;
		((float *)b->state.base)[n + i] = 0.01f;
		((float *)b->state.base)[2 * n + i] = 0.001f;
	}
	pthread_barrier_init(&b->go, NULL, b->threads_nr + 1);
	pthread_barrier_init(&b->done, NULL, b->threads_nr + 1);
	CHECK(sched_getaffinity(0, sizeof(set), &set) == 0);
	for (uint32_t i = 0, cpu = 0; i < b->threads_nr; i++, cpu++) {
		while (!CPU_ISSET(cpu, &set))
			cpu++;
		b->thread[i] = (struct bare_thread){.b = b, .cpu = (int)cpu};
		CHECK(pthread_create(&b->thread[i].id, NULL, bare_main, &b->thread[i]) == 0);
	}
	return b;
}

double bare_round(struct bare *b)
{
	uint64_t start = clock_ns();

	atomic_store(&b->next, 0);
	pthread_barrier_wait(&b->go);
	pthread_barrier_wait(&b->done);
	return (double)(clock_ns() - start) * 1e-6;
}

void bare_end(struct bare **bp)
{
	struct bare *b = *bp;

	*bp = NULL;
	b->over = true;
	pthread_barrier_wait(&b->go);
	for (uint32_t i = 0; i < b->threads_nr; i++)
		pthread_join(b->thread[i].id, NULL);
	shm_unmap(&b->state);
	shm_unmap(&b->grad);
	shm_unmap(&b->image);
	free(b);
}
