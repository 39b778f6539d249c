/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the compute pool: every job runs exactly once, back-pressure, jobs from completions,
 * closing with work in hand, FTZ, latency and memory. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/fault.h"
#include "optim/ftz.h"
#include "node/worker.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define JOBS 20000

struct bench {
	uv_loop_t loop;
	struct worker_pool *pool;
	pthread_t loop_thread;
	uint32_t submitted, done, closed;
	uint64_t sum;
	uint8_t seen[JOBS];
};

struct square { /* The arguments and the result of a job, by value. */
	uint32_t n;
	uint64_t result;
	unsigned csr;
	pthread_t thread;
};

static enum shard_status pool_submit(struct worker_pool *p, const struct exec_job *job)
{
	struct exec x = worker_exec(p);

	return exec_submit(&x, job);
}

static void pool_here(struct worker_pool *p, const struct exec_job *job)
{
	struct exec x = worker_exec(p);

	exec_here(&x, job);
}

static void on_closed(void *arg)
{
	((struct bench *)arg)->closed++;
}

static struct bench *open_bench(uint32_t threads, uint32_t jobs_max)
{
	struct worker_conf conf = {.threads = threads, .jobs_max = jobs_max, .pin = threads > 1};
	struct bench *b = calloc(1, sizeof(*b));
	struct err e = {.text = ""};

	assert_non_null(b);
	b->loop_thread = pthread_self();
	assert_int_equal(uv_loop_init(&b->loop), 0);
	if (worker_init(&b->pool, &conf, &b->loop, &e) != SHARD_OK)
		fail_msg("%s", e.text);
	return b;
}

static void close_bench(struct bench *b)
{
	if (b->pool)
		worker_close(&b->pool, on_closed, b);
	assert_null(b->pool);
	uv_run(&b->loop, UV_RUN_DEFAULT);
	assert_int_equal(b->closed, 1);
	assert_int_equal(uv_loop_close(&b->loop), 0);
	free(b);
}

static void run_square(void *args)
{
	struct square *s = args;

	s->result = (uint64_t)s->n * s->n;
	s->csr = ftz_get();
	s->thread = pthread_self();
}

static void square_done(void *owner, void *args)
{
	struct bench *b = owner;
	const struct square *s = args;

	assert_true(pthread_equal(pthread_self(), b->loop_thread));
	assert_true(s->csr & FTZ_BIT && s->csr & DAZ_BIT);
	assert_int_equal(s->result, (uint64_t)s->n * s->n);
	assert_int_equal(b->seen[s->n]++, 0);
	b->sum += s->result;
	b->done++;
}

static struct exec_job square(struct bench *b, uint32_t n)
{
	struct exec_job job = {.run = run_square, .done = square_done, .owner = b};
	struct square s = {.n = n};

	memcpy(job.args, &s, sizeof(s));
	return job;
}

static void many(uint32_t threads, uint32_t jobs_max)
{
	struct bench *b = open_bench(threads, jobs_max);
	uint64_t want = 0;

	while (b->done < JOBS) {
		while (b->submitted < JOBS) {
			struct exec_job job = square(b, b->submitted);

			if (pool_submit(b->pool, &job) == SHARD_AGAIN)
				break;
			want += (uint64_t)b->submitted * b->submitted;
			b->submitted++;
		}
		assert_int_equal(worker_pending(b->pool), b->submitted - b->done);
		uv_run(&b->loop, UV_RUN_ONCE); /* A lost wake-up would hang here. */
	}
	assert_true(b->sum == want);
	close_bench(b);
}

static void one_worker(void **state)
{
	(void)state;
	many(1, 1);
	many(1, 64);
}

static void four_workers(void **state)
{
	(void)state;
	many(4, 3);
	many(4, 1024);
}

struct gate {
	pthread_mutex_t lock;
	pthread_cond_t open;
	bool is_open;
	uint32_t ran;
};

struct gate_args {
	struct gate *gate;
};

static void run_gate(void *args)
{
	struct gate *g = ((struct gate_args *)args)->gate;

	pthread_mutex_lock(&g->lock);
	while (!g->is_open)
		pthread_cond_wait(&g->open, &g->lock);
	g->ran++;
	pthread_mutex_unlock(&g->lock);
}

static void count_done(void *owner, void *args)
{
	(void)args;
	((struct bench *)owner)->done++;
}

static void open_gate(struct gate *g)
{
	pthread_mutex_lock(&g->lock);
	g->is_open = true;
	pthread_cond_broadcast(&g->open);
	pthread_mutex_unlock(&g->lock);
}

static void full_and_close(void **state)
{
	struct bench *b = open_bench(2, 5);
	struct gate g = {.lock = PTHREAD_MUTEX_INITIALIZER, .open = PTHREAD_COND_INITIALIZER};
	struct gate_args args = {&g};
	struct exec_job job = {.run = run_gate, .done = count_done, .owner = b};
	struct worker_pool *pool = b->pool;

	(void)state;
	memcpy(job.args, &args, sizeof(args));
	for (int i = 0; i < 5; i++)
		assert_int_equal(pool_submit(b->pool, &job), SHARD_OK);
	assert_int_equal(pool_submit(b->pool, &job), SHARD_AGAIN);
	worker_close(&b->pool, on_closed,
		     b); /* Five jobs are in hand. All of them must still be done, and reported. */
	assert_int_equal(pool_submit(pool, &job), SHARD_CLOSED);
	open_gate(&g);
	uv_run(&b->loop, UV_RUN_DEFAULT);
	assert_int_equal(b->done, 5);
	assert_int_equal(g.ran, 5);
	close_bench(b);
}

static void resubmit(void *owner, void *args)
{
	struct bench *b = owner;
	struct exec_job job;
	uint32_t next = ((struct square *)args)->n + 1;

	b->done++;
	if (next == 1000) {
		worker_close(&b->pool, on_closed, b); /* From inside a completion. */
		return;
	}
	job = square(b, next);
	job.done = resubmit;
	assert_int_equal(pool_submit(b->pool, &job),
			 /* Its own slot is free again, even if there is only one slot. */
			 SHARD_OK);
}

static void chain(void **state)
{
	struct bench *b = open_bench(2, 1);
	struct exec_job job = square(b, 0);

	(void)state;
	job.done = resubmit;
	assert_int_equal(pool_submit(b->pool, &job), SHARD_OK);
	uv_run(&b->loop, UV_RUN_DEFAULT);
	assert_int_equal(b->done, 1000);
	close_bench(b);
}

static void here(void **state)
{
	struct bench *b = open_bench(1, 1);
	struct exec_job job = square(b, 9);
	unsigned before = ftz_get();

	(void)state;
	pool_here(b->pool, &job);
	assert_int_equal(b->done, 1);
	assert_int_equal(ftz_get(), before);
	assert_int_equal(worker_pending(b->pool), 0);
	assert_int_equal(worker_threads(b->pool), 1);
	assert_true(worker_processors() >= 1);
	close_bench(b);
}

static void run_mask(void *args)
{
	sigset_t set;

	pthread_sigmask(SIG_BLOCK, NULL, &set);
	*(int *)args = sigismember(&set, SIGTERM);
}

static void mask_done(void *owner, void *args)
{
	((struct bench *)owner)->done = *(int *)args == 1;
}

static void signals(void **state)
{
	struct bench *b = open_bench(1, 1);
	struct exec_job job = {.run = run_mask, .done = mask_done, .owner = b};
	sigset_t set;

	(void)state;
	assert_int_equal(pool_submit(b->pool, &job), SHARD_OK);
	while (worker_pending(b->pool) > 0)
		uv_run(&b->loop, UV_RUN_ONCE);
	assert_int_equal(b->done, 1);
	pthread_sigmask(SIG_BLOCK, NULL, &set);
	assert_false(sigismember(&set, SIGTERM));
	close_bench(b);
}

static int by_size(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* It is printed, with a limit that only something broken would reach. */
static void latency(void **state)
{
	struct bench *b = open_bench(1, 4);
	uint64_t took[500];

	(void)state;
	for (uint32_t i = 0; i < NR(took); i++) {
		struct exec_job job = square(b, i);
		uint64_t start = clock_ns();

		assert_int_equal(pool_submit(b->pool, &job), SHARD_OK);
		while (worker_pending(b->pool) > 0)
			uv_run(&b->loop, UV_RUN_ONCE);
		took[i] = clock_ns() - start;
	}
	qsort(took, NR(took), sizeof(took[0]), by_size);
	print_message("round trip: median %.1f us, 99 %% %.1f us\n",
		      (double)took[NR(took) / 2] / 1e3, (double)took[NR(took) * 99 / 100] / 1e3);
	assert_true(took[NR(took) / 2] < 20 * NS_PER_MS);
	close_bench(b);
}

static void no_memory(void **state)
{
	struct worker_conf conf = {.threads = 2, .jobs_max = 4};
	struct bench b = {.done = 0};
	struct fault f;
	struct err e;

	(void)state;
	assert_int_equal(uv_loop_init(&b.loop), 0);
	for (fault_begin(&f); fault_next(&f);) {
		enum shard_status st = worker_init(&b.pool, &conf, &b.loop, &e);
		bool failed = fault_end(&f);

		assert_int_equal(st, failed ? SHARD_SYSTEM : SHARD_OK);
		if (st == SHARD_OK)
			worker_close(&b.pool, on_closed, &b);
		uv_run(&b.loop, UV_RUN_DEFAULT);
	}
	assert_int_equal(uv_loop_close(&b.loop), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_worker),     cmocka_unit_test(four_workers),
		cmocka_unit_test(full_and_close), cmocka_unit_test(chain),
		cmocka_unit_test(here),           cmocka_unit_test(signals),
		cmocka_unit_test(latency),        cmocka_unit_test(no_memory),
	};

	return cmocka_run_group_tests_name("worker", tests, NULL, NULL);
}
