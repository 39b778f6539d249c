// SPDX-License-Identifier: Apache-2.0
/* Trains two trainers against two daemons in this process and counts the allocations of the
 * daemons' threads. Tests call calm_steps() once per program. This file replaces malloc(), calloc()
 * and realloc(), which count while the counted steps run. The first allocation that is counted
 * writes its backtrace to standard error. A step that goes wrong fails the test. */
#include "lib/calm.h"

#include "lib/pace.h"
#include "lib/trainer.h"

#include <execinfo.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static _Atomic bool counting;
static _Atomic uint64_t count;
/* This is the trainers' thread, or the thread is inside the counter. */
static _Thread_local bool mine;

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t nr, size_t bytes);
void *__libc_realloc(void *p, size_t bytes);

static void counted(void)
{
	void *at[16];

	if (!atomic_load_explicit(&counting, memory_order_relaxed) || mine)
		return;
	mine = true;
	if (atomic_fetch_add(&count, 1) == 0)
		/* Shows where the first allocation was, for the person who has to find it. */
		backtrace_symbols_fd(at, backtrace(at, 16), STDERR_FILENO);
	mine = false;
}

__attribute__((visibility("default"))) void *malloc(size_t bytes)
{
	counted();
	return __libc_malloc(bytes);
}

__attribute__((visibility("default"))) void *calloc(size_t nr, size_t bytes)
{
	counted();
	return __libc_calloc(nr, bytes);
}

__attribute__((visibility("default"))) void *realloc(void *p, size_t bytes)
{
	counted();
	return __libc_realloc(p, bytes);
}
#define CAN_COUNT true
#else
#define CAN_COUNT false
#endif

static void train(struct trainer t[2], int nr)
{
	struct shard_result r = SHARD_INIT(struct shard_result);

	for (int i = 0; i < nr; i++) {
		for (int k = 0; k < 2; k++) {
			trainer_begin(&t[k]);
			trainer_push_all(&t[k], 1);
			EXPECT(SHARD_OK, shard_commit(t[k].model, NULL));
		}
		for (int k = 0; k < 2; k++)
			EXPECT(SHARD_OK, shard_result(t[k].model, 0, pace_ms(10000), &r));
	}
}

static void *join_main(void *arg)
{
	struct trainer *t = arg;

	EXPECT(SHARD_OK, shard_join(t->model, 1, pace_ms(10000), &t->world));
	return NULL;
}

bool calm_can(void)
{
	return CAN_COUNT;
}

uint64_t calm_steps(const char *net, void (*before)(struct inproc *c, void *arg),
		    void (*after)(struct inproc *c, void *arg), void *arg)
{
	struct inproc c;
	struct trainer t[2];
	pthread_t other;
	void *at[1];

	mine = true;
	(void)backtrace(at, 1); /* The first call of backtrace() loads a library. */
	inproc_start(&c, &(struct inproc_conf){.net = net,
					       .tail = "[model]\nmin_world = 2\nmax_world = "
						       "2\nchunk_elems = 1024\nclip = 1\n"});
	trainer_define(&t[0], c.node[0].unix_address, SHARD_BF16, SHARD_BF16);
	trainer_define(&t[1], c.node[1].unix_address, SHARD_BF16, SHARD_BF16);
	assert_int_equal(0, pthread_create(&other, NULL, join_main, &t[1]));
	EXPECT(SHARD_OK, shard_join(t[0].model, 0, pace_ms(10000), &t[0].world));
	pthread_join(other, NULL);
	train(t, CALM_WARM);
	if (before != NULL)
		before(&c, arg);
	train(t, CALM_WARM);
	atomic_store(&counting, true);
	train(t, CALM_STEPS);
	atomic_store(&counting, false);
	if (after != NULL)
		after(&c, arg);
	trainer_end(&t[0]);
	trainer_end(&t[1]);
	inproc_stop(&c);
	return atomic_load(&count);
}
