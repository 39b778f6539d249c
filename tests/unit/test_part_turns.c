// SPDX-License-Identifier: Apache-2.0
/* Tests the order in which a node's file of a checkpoint is written. Its threads take the runs of
 * the least turn first, wherever they lie in the file. */
#include "base/check.h"
#include "ckpt/part.h"
#include "lib/ckpts.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

enum { TURNS = 6, TURN_ELEMS = PART_PIECE_BYTES / 4 };

struct turns {
	pthread_mutex_t lock;
	pthread_cond_t told;
	bool used, late; /* The first moment was used, or was not in time. */
	float *zeros;
};

/* Later masters wait for the first moment. If masters came first, they would keep all threads. */
static void use_in_turn(void *arg, const struct part_run *r, uint64_t skip, uint64_t bytes,
			bool writes, void (*with)(void *ctx, float *at), void *ctx)
{
	struct turns *t = arg;
	struct timespec by;

	assert_true(!writes && skip + bytes <= r->count * 4);
	clock_gettime(CLOCK_REALTIME, &by);
	by.tv_sec += 60;
	pthread_mutex_lock(&t->lock);
	t->used = t->used || (r->kind == SHARD_EXP_AVG && r->turn == 0);
	pthread_cond_broadcast(&t->told);
	while (r->kind == SHARD_MASTER && r->turn > 1 && !t->used && !t->late)
		t->late |= pthread_cond_timedwait(&t->told, &t->lock, &by) != 0;
	pthread_mutex_unlock(&t->lock);
	with(ctx, t->zeros);
}

/* A file is written in the order of the turns of its runs. */
static void test_turns(void **state)
{
	struct turns t = {.zeros = calloc(TURN_ELEMS, 4)};
	const struct part_memory memory = {use_in_turn, &t};
	struct part_run out[2 * TURNS];
	struct part_file f;
	struct err e = {.text = ""};
	char dir[64];

	(void)state;
	assert_non_null(t.zeros);
	pthread_mutex_init(&t.lock, NULL);
	pthread_cond_init(&t.told, NULL);
	ckpts_folder(dir);
	for (uint32_t i = 0; i < 2 * TURNS; i++)
		out[i] = (struct part_run){.kind = i < TURNS ? SHARD_MASTER : SHARD_EXP_AVG,
					   .tensor = "w",
					   .first = i % TURNS * (uint64_t)TURN_ELEMS,
					   .count = TURN_ELEMS,
					   .memory = &memory,
					   .turn = i % TURNS};
	if (part_write(dir, "x.safetensors", out, 2 * TURNS, NULL, 0, NULL, &f, NULL, &e) !=
	    SHARD_OK)
		fail_msg("%s", e.text);
	assert_true(t.used && !t.late);
	if (part_verify(dir, &f, 1, NULL, &e) != SHARD_OK)
		fail_msg("%s", e.text);
	part_file_free(&f);
	ckpts_remove(dir);
	pthread_mutex_destroy(&t.lock);
	pthread_cond_destroy(&t.told);
	free(t.zeros);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_turns)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
