// SPDX-License-Identifier: Apache-2.0
/* What one turn of the loop does for definitions, which any user may send, as large as a frame may
 * be. Links, heartbeats and every other request wait for that turn. So the work is counted, not
 * timed: how many definitions that waited are taken up in one turn, and what is looked at before a
 * model that has no room is refused. */
#include "base/clock.h"
#include "control/define_wait.h"
#include "lib/evil.h"
#include "lib/inproc.h"
#include "node/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { LARGE = 5000, WAITING = 3, SMALL = 100 };

/* --- definitions that waited --- */

static uint32_t taken_up;

static bool may_go(struct server *s, const char *name)
{
	(void)s, (void)name;
	return true;
}

static enum shard_status again(struct server *s, const struct caller *a, const Shard__Define *d,
			       struct err *e)
{
	(void)s, (void)d, (void)e;
	assert_int_equal(a->session, taken_up + 1); /* the oldest first */
	taken_up++;
	return SHARD_OK;
}

/* A node with what waiting definitions need of one. */
static struct server *server_with_a_loop(void)
{
	static struct config conf = {.heartbeat_timeout_ns = 3600 * NS_PER_SEC};
	struct server *s = calloc(1, sizeof(*s));

	assert_non_null(s);
	s->conf = &conf;
	s->loop = malloc(sizeof(*s->loop));
	assert_non_null(s->loop);
	assert_int_equal(uv_loop_init(s->loop), 0);
	assert_int_equal(uv_timer_init(s->loop, &s->beat), 0);
	s->budget.total = 1ull << 30;
	list_init(&s->defines);
	list_init(&s->held);
	return s;
}

static void server_end(struct server *s)
{
	assert_true(list_empty(&s->defines) && list_empty(&s->held));
	uv_close((uv_handle_t *)&s->beat, NULL);
	uv_run(s->loop, UV_RUN_DEFAULT);
	assert_int_equal(uv_loop_close(s->loop), 0);
	free(s->loop);
	free(s);
}

/* All sessions wait with the same definition, as the ranks of a job do. */
static void wait_with(struct server *s, uint32_t tensors_nr, uint64_t sessions_nr)
{
	static char names[LARGE][24];
	static Shard__Tensor tensor[LARGE], *list[LARGE];
	Shard__Cred root = SHARD__CRED__INIT;
	Shard__Tensor one, *first[1];
	Shard__Define d;
	Shard__Spec spec;
	uint64_t shape;
	struct err e;

	assert_in_range(tensors_nr, 1, LARGE);
	evil_spec(&d, &spec, &one, first, &shape);
	for (uint32_t i = 0; i < tensors_nr; i++) {
		snprintf(names[i], sizeof(names[i]), "tensor-%015u", i);
		tensor[i] = one;
		tensor[i].name = names[i];
		list[i] = &tensor[i];
	}
	spec.tensors = list;
	spec.n_tensors = tensors_nr;
	root.known = root.root = true;
	d.cred = &root;
	for (uint64_t i = 1; i <= sessions_nr; i++) {
		struct caller a = {.session = i};

		assert_int_equal(define_wait(s, &a, &d, &e), SHARD_OK);
	}
	taken_up = 0;
	s->beat_due = 0;
}

static void test_a_turn_takes_up_one_large_definition(void **state)
{
	struct server *s = server_with_a_loop();

	(void)state;
	wait_with(s, LARGE, WAITING);
	for (uint32_t turn = 1; turn <= WAITING; turn++) {
		define_wait_retry(s, clock_ns(), may_go, again);
		assert_int_equal(taken_up, turn);
		if (turn == WAITING)
			break;
		assert_in_range(s->beat_due, 1, clock_ns()); /* the next turn is at once */
		s->beat_due = 0;
	}
	assert_int_equal(s->beat_due, 0);
	server_end(s);
}

static void test_a_turn_takes_up_many_small_definitions(void **state)
{
	struct server *s = server_with_a_loop();

	(void)state;
	wait_with(s, 1, SMALL);
	define_wait_retry(s, clock_ns(), may_go, again);
	assert_int_equal(taken_up, SMALL);
	assert_int_equal(s->beat_due, 0);
	server_end(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_turn_takes_up_one_large_definition),
		cmocka_unit_test(test_a_turn_takes_up_many_small_definitions)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
