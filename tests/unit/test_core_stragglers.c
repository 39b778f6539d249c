/* SPDX-License-Identifier: Apache-2.0 */
/* Tests whom a coordinator puts out with straggler_timeout, and when. The test plays two nodes with
 * trainers, and says for each node which of its ranks are ready. Each case is a rule of its own:
 * who is slow through no fault of its own stays, as does everybody without whom fewer than
 * min_world would be left. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "lib/lone.h"

#include <string.h>

enum { SLOW_NS = 100000000 };

/* The trainers of ranks 0 and 1 are at node b, and those of 2 and 3 at node c. */
static uint16_t node_of(uint32_t rank)
{
	return rank < 2 ? B : C;
}

static void join(struct lone *l, uint32_t trainer)
{
	lone_msg(l, node_of(trainer),
		 (struct core_msg){.op = CORE_JOIN,
				   .id = {.term = 9},
				   .trainer = {.session = SESSION + trainer,
					       .pid = 100 + trainer,
					       .hint = (int32_t)trainer}});
}

/* Node a coordinates in term 9, and the first attempt of step 5 has a world of `nr`. */
static void attempt(struct lone *l, uint32_t nr, uint32_t min_world)
{
	static double sumsq = 1, weight = 1;
	static uint8_t finite = 1;
	struct record seal = lone_record(5, 1, 4);
	struct core_view v = lone_view(5, 2, &seal);

	v.members.node[A].incarnation = 50;
	lone_init(l, A, 9, &v);
	l->core->conf.min_world = nr;
	l->core->conf.max_world = 4;
	l->core->conf.step_timeout_ns = 10 * (uint64_t)SLOW_NS;
	l->core->conf.lost_timeout_ns = 40 * (uint64_t)SLOW_NS;
	l->core->conf.straggler_timeout_ns = SLOW_NS;
	lone_event(l, (struct core_event){.type = CORE_EV_TICK});
	for (uint16_t n = B; n <= C; n++) {
		struct core_answer answer = {.generation = 1, .has_record = true, .record = seal};

		answer.vote = (struct core_vote){.sumsq = &sumsq,
						 .finite = &finite,
						 .chunks_nr = 1,
						 .weights = &weight,
						 .bad_tensor = -1};
		lone_msg(
			l, n,
			(struct core_msg){.op = CORE_ANSWER, .id = {.term = 9}, .answer = &answer});
	}
	lone_event(l, (struct core_event){.type = CORE_EV_PERSISTED});
	for (uint16_t n = B; n <= C; n++) {
		struct core_id id = {.term = 9, .seq = l->core->coord.view.seq, .generation = 1};

		lone_msg(l, n, (struct core_msg){.op = CORE_VIEW_OK, .id = id});
	}
	for (uint32_t i = 0; i < nr; i++)
		join(l, i);
	assert_true(l->core->coord.undecided && l->core->coord.world.size == nr);
	l->core->conf.min_world = min_world;
	/* What the view began with is done everywhere. */
	for (uint16_t n = A; n <= C; n++)
		l->core->coord.node[n].done = true;
}

/* Node n says that these of its ranks are not ready, and that they lack chunk - 1 of the image. */
static void says(struct lone *l, uint16_t n, uint64_t missing, uint32_t chunk)
{
	lone_msg(l, n,
		 (struct core_msg){
			 .op = CORE_WAITING,
			 .id = l->core->coord.id,
			 .waits = {.ranks = {missing}, .chunks_nr = 1, .image_chunk = chunk}});
}

static void later(struct lone *l, uint64_t ns)
{
	l->now += ns;
	lone_event(l, (struct core_event){.type = CORE_EV_TICK});
}

/* This number of trainers is left, and they are in an attempt of their own. */
static void goes_on_with(struct lone *l, uint32_t size)
{
	assert_non_null(lone_sent(l, CORE_ABORT));
	assert_true(l->core->coord.undecided);
	assert_int_equal(l->core->coord.id.attempt, 2);
	assert_int_equal(l->core->coord.world.size, size);
}

static void waits_on(struct lone *l)
{
	assert_null(lone_sent(l, CORE_ABORT));
	assert_int_equal(l->core->coord.id.attempt, 1);
}

static void test_the_slow_one_is_dropped(void **state)
{
	const struct core_msg *gone;
	struct core_state s;
	struct lone l;

	(void)state;
	attempt(&l, 3, 1);
	says(&l, B, 1 << 1, 0);
	says(&l, C, 0, 0);
	assert_true(core_deadline(l.core) <= l.now + SLOW_NS);
	later(&l, SLOW_NS - 10000);
	waits_on(&l);
	later(&l, 10000);
	goes_on_with(&l, 2);
	gone = lone_sent(&l, CORE_GONE);
	assert_non_null(gone);
	assert_int_equal(gone->to, B);
	assert_int_equal(gone->trainer.session, SESSION + 1);
	assert_string_equal(gone->why,
			    "dropped as a straggler: 2 of 3 ranks of step 5 were ready for 0.1 s, "
			    "but not rank 1 (pid 101, node b), which may join again");
	assert_string_equal(lone_sent(&l, CORE_ABORT)->why, gone->why);
	assert_int_equal(lone_sent(&l, CORE_ABORT)->status, SHARD_WORLD_CHANGED);
	core_state(l.core, &s);
	assert_int_equal(s.stragglers, 1);
	lone_deinit(&l);
}

/* It comes back as a new session of its node, and is in the next world. */
static void test_it_comes_back(void **state)
{
	struct lone l;

	(void)state;
	attempt(&l, 2, 1);
	says(&l, B, 1 << 1, 0);
	later(&l, SLOW_NS);
	goes_on_with(&l, 1);
	lone_msg(&l, B,
		 (struct core_msg){
			 .op = CORE_GONE, .id = {.term = 9}, .trainer = {.session = SESSION + 1}});
	join(&l, 3);
	lone_msg(&l, B, (struct core_msg){.op = CORE_ABANDON, .id = l.core->coord.id});
	assert_int_equal(l.core->coord.world.size, 2);
	lone_deinit(&l);
}

/* Trainers that are slow, but come one after the other, are waited for. */
static void test_each_one_that_is_ready_gives_time(void **state)
{
	struct lone l;

	(void)state;
	attempt(&l, 4, 1);
	says(&l, C, 0, 0);
	says(&l, B, 3, 0);
	later(&l, SLOW_NS - 10000);
	says(&l, B, 1, 0);
	later(&l, SLOW_NS - 10000);
	waits_on(&l);
	later(&l, 10000);
	goes_on_with(&l, 3);
	lone_deinit(&l);
}

/* While nobody is ready, nobody is slow. Then step_timeout ends the attempt. */
static void test_nobody_is_ready(void **state)
{
	struct lone l;

	(void)state;
	attempt(&l, 3, 1);
	says(&l, B, 3, 0);
	says(&l, C, 4, 0);
	later(&l, 9 * (uint64_t)SLOW_NS);
	waits_on(&l);
	lone_deinit(&l);
}

static void test_never_below_min_world(void **state)
{
	struct lone l;

	(void)state;
	for (uint32_t min_world = 2; min_world <= 3; min_world++) {
		attempt(&l, 3, min_world);
		says(&l, B, 0, 0);
		says(&l, C, 1 << 2, 0);
		later(&l, 2 * SLOW_NS);
		if (min_world == 2)
			goes_on_with(&l, 2);
		else
			waits_on(&l);
		lone_deinit(&l);
	}
	/* All or none of them: one more would not make the others ready. */
	attempt(&l, 4, 3);
	says(&l, B, 0, 0);
	says(&l, C, 3 << 2, 0);
	later(&l, 2 * SLOW_NS);
	waits_on(&l);
	lone_deinit(&l);
}

/* A trainer that waits to join takes the place of one that is dropped, and one that leaves after
 * this step leaves no place. */
static void test_who_joins_and_who_leaves(void **state)
{
	struct lone l;

	(void)state;
	attempt(&l, 3, 3);
	says(&l, B, 1 << 1, 0);
	says(&l, C, 0, 0);
	later(&l, 2 * SLOW_NS);
	waits_on(&l);
	join(&l, 3);
	later(&l, 1000);
	goes_on_with(&l, 3);
	lone_deinit(&l);
	attempt(&l, 3, 2);
	says(&l, B, 1 << 1, 0);
	says(&l, C, 0, 0);
	lone_msg(&l, C,
		 (struct core_msg){.op = CORE_GONE,
				   .id = {.term = 9},
				   .trainer = {.session = SESSION + 2, .leave = true}});
	later(&l, 2 * SLOW_NS);
	waits_on(&l);
	lone_deinit(&l);
}

/* What no trainer can hasten: its node has said nothing, lacks the image, or still applies the step
 * before. The time of the trainers begins when that is over. */
static void test_no_fault_of_the_trainer(void **state)
{
	struct lone l;

	(void)state;
	for (int what = 0; what < 3; what++) {
		attempt(&l, 3, 1);
		says(&l, C, 0, 0);
		if (what == 0)
			l.core->coord.node[B].reported = false;
		else
			says(&l, B, 1, what == 1 ? 2 : 0);
		l.core->coord.node[B].done = what != 2;
		for (int i = 0; i < 4; i++) {
			later(&l, SLOW_NS / 2);
			waits_on(&l);
		}
		says(&l, B, 1, 0); /* This also says that the step before is done. */
		later(&l, SLOW_NS - 10000);
		waits_on(&l);
		later(&l, 10000);
		goes_on_with(&l, 2);
		lone_deinit(&l);
	}
}

static void test_hold(void **state)
{
	struct lone l;

	(void)state;
	attempt(&l, 3, 1);
	says(&l, B, 1, 0);
	says(&l, C, 0, 0);
	later(&l, SLOW_NS / 2);
	lone_event(&l, (struct core_event){.type = CORE_EV_HOLD, .on = true});
	assert_true(l.core->coord.held);
	later(&l, 5 * (uint64_t)SLOW_NS);
	waits_on(&l);
	lone_event(&l, (struct core_event){.type = CORE_EV_HOLD});
	later(&l, SLOW_NS / 2 - 100000);
	waits_on(&l);
	later(&l, 100000);
	goes_on_with(&l, 2);
	lone_deinit(&l);
}

/* Without straggler_timeout the others wait until step_timeout. */
static void test_wait(void **state)
{
	struct lone l;

	(void)state;
	attempt(&l, 3, 1);
	l.core->conf.straggler_timeout_ns = 0;
	says(&l, B, 1, 0);
	says(&l, C, 0, 0);
	later(&l, 9 * (uint64_t)SLOW_NS);
	waits_on(&l);
	later(&l, 2 * SLOW_NS);
	goes_on_with(&l, 2);
	assert_null(strstr(lone_sent(&l, CORE_GONE)->why, "straggler"));
	lone_deinit(&l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_slow_one_is_dropped),
		cmocka_unit_test(test_it_comes_back),
		cmocka_unit_test(test_each_one_that_is_ready_gives_time),
		cmocka_unit_test(test_nobody_is_ready),
		cmocka_unit_test(test_never_below_min_world),
		cmocka_unit_test(test_who_joins_and_who_leaves),
		cmocka_unit_test(test_no_fault_of_the_trainer),
		cmocka_unit_test(test_hold),
		cmocka_unit_test(test_wait),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
