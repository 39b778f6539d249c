/* SPDX-License-Identifier: Apache-2.0 */
/* Tests one member alone with events that are out of order. Nothing may change when a coordinator
 * of another term, an older view, a process that is no member, or an answer to an older question
 * says something. Today's links deliver little of this, so the simulator hardly reaches these
 * guards. They are for members that keep their links while the coordinator moves. Each case sends
 * one thing that must be ignored, and then the same thing correctly, which must count. The guards
 * of the coordinator are in test_core_lead.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "lib/lone.h"

#include <string.h>

/* A view has its generation from its record. */
static void say_view(struct lone *l, uint64_t term, uint32_t seq, const struct record *r)
{
	struct core_view v = lone_view(term, seq, r);
	struct core_id id = lone_id(term, seq, 0, 0);

	v.generation = id.generation = r->id.generation;
	lone_msg(l, A, (struct core_msg){.op = CORE_VIEW, .id = id, .view = &v});
}

static void say_begin(struct lone *l, struct core_id id, const struct record *before)
{
	struct core_world w = {.size = 1};

	w.rank[0] = (struct core_rank){.session = SESSION, .node = B};
	lone_msg(l, A,
		 (struct core_msg){.op = CORE_BEGIN, .id = id, .world = &w, .record = before});
}

static void compute(struct lone *l)
{
	lone_event(l, (struct core_event){.type = CORE_EV_STAGED,
					  .chunk = 0,
					  .sumsq = 1,
					  .finite = true,
					  .bad_tensor = -1});
	lone_event(l, (struct core_event){.type = CORE_EV_READY, .session = SESSION, .weight = 1});
}

static void member_init(
	struct lone *l) /* It is in view 5.2 after the seal at step 4, and in attempt 5/1. */
{
	struct record seal = lone_record(5, 1, 4);

	lone_init(l, B, 1, NULL);
	lone_event(l, (struct core_event){.type = CORE_EV_JOIN,
					  .trainer = {.session = SESSION, .pid = 7, .hint = -1}});
	say_view(l, 5, 2, &seal);
	assert_non_null(lone_sent(l, CORE_VIEW_OK));
	say_begin(l, lone_id(5, 2, 5, 1), &seal);
	assert_non_null(lone_acted(l, CORE_ACT_BEGIN));
}

static void member_commits(struct lone *l) /* In step 5, which it is then applying. */
{
	struct record r = lone_record(5, 2, 5);

	compute(l);
	assert_non_null(lone_sent(l, CORE_VOTE));
	lone_msg(l, A, (struct core_msg){.op = CORE_COMMIT, .id = r.id, .record = &r});
	assert_non_null(lone_acted(l, CORE_ACT_APPLY));
}

static void test_ask_ends_what_was_not_voted_for(void **state)
{
	struct lone l;

	(void)state;
	member_init(&l);
	lone_msg(&l, A, (struct core_msg){.op = CORE_ASK, .id = {.term = 9, .generation = 1}});
	assert_non_null(lone_acted(&l, CORE_ACT_ENDED));
	assert_false(lone_sent(&l, CORE_ANSWER)->answer->prepared);
	compute(&l);
	assert_null(lone_sent(&l, CORE_VOTE));
	lone_deinit(&l);
}

static void test_ask_again_after_its_view(void **state)
{
	struct record seal = lone_record(5, 1, 4);
	struct lone l;

	(void)state;
	member_init(&l);
	say_view(&l, 9, 3, &seal);
	lone_event(&l, (struct core_event){.type = CORE_EV_DRAINED, .id = lone_id(5, 2, 5, 1)});
	say_begin(&l, lone_id(9, 3, 5, 1), &seal);
	assert_non_null(lone_acted(&l, CORE_ACT_BEGIN));
	lone_msg(&l, A, (struct core_msg){.op = CORE_ASK, .id = {.term = 9, .generation = 1}});
	assert_int_equal(l.out.nr, 0);
	compute(&l);
	assert_non_null(lone_sent(&l, CORE_VOTE));
	lone_deinit(&l);
}

static void test_join_heard_in_another_term(void **state)
{
	struct core_msg echo = {
		.op = CORE_JOIN, .id = {.term = 4}, .trainer = {.session = SESSION, .node = B}};
	struct lone l;

	(void)state;
	member_init(&l);
	lone_msg(&l, A, echo);
	l.now += 10000000;
	lone_event(&l, (struct core_event){.type = CORE_EV_TICK});
	/* None of the members that count has heard of it. */
	assert_non_null(lone_sent(&l, CORE_JOIN));
	echo.id.term = 5;
	lone_msg(&l, A, echo);
	l.now += 10000000;
	lone_event(&l, (struct core_event){.type = CORE_EV_TICK});
	assert_null(lone_sent(&l, CORE_JOIN));
	lone_deinit(&l);
}

/* A coordinator of an older term put the trainer out. The present one counts on the trainer. */
static void test_gone_in_another_term(void **state)
{
	struct core_msg gone = {.op = CORE_GONE,
				.id = {.term = 4},
				.trainer = {.session = SESSION, .node = B},
				.why = "it is slow"};
	struct lone l;

	(void)state;
	member_init(&l);
	lone_msg(&l, A, gone);
	assert_int_equal(l.out.nr, 0);
	gone.id.term = 5;
	lone_msg(&l, A, gone);
	assert_int_equal(lone_acted(&l, CORE_ACT_EXPEL)->session, SESSION);
	lone_deinit(&l);
}

static void test_older_view_while_one_waits(void **state)
{
	struct record r = lone_record(5, 2, 5);
	struct lone l;

	(void)state;
	member_init(&l);
	member_commits(&l);
	say_view(&l, 5, 4, &r);
	say_view(&l, 5, 3, &r);
	lone_event(&l, (struct core_event){.type = CORE_EV_APPLIED});
	assert_int_equal(lone_sent(&l, CORE_VIEW_OK)->id.seq, 4);
	lone_deinit(&l);
}

/* A later coordinator whose state folder was put back does not know the present generation. What
 * is here is newer than all that it can say. */
static void test_view_of_an_older_generation(void **state)
{
	struct record seal = lone_record(5, 1, 4);
	struct lone l;

	(void)state;
	member_init(&l);
	seal.id.generation = 2;
	say_view(&l, 5, 3, &seal);
	assert_int_equal(lone_acted(&l, CORE_ACT_LOST)->id.generation, 2);
	assert_non_null(lone_sent(&l, CORE_VIEW_OK));
	seal.id.generation = 1;
	say_view(&l, 9, 4, &seal);
	assert_int_equal(l.out.nr, 0);
	seal.id.generation = 2;
	say_view(&l, 9, 5, &seal);
	assert_non_null(lone_sent(&l, CORE_VIEW_OK));
	lone_deinit(&l);
}

static void test_view_that_skips_a_record(void **state)
{
	struct record r = lone_record(5, 2, 5), far = lone_record(5, 2, 6);
	struct lone l;

	(void)state;
	member_init(&l);
	member_commits(&l);
	lone_event(&l, (struct core_event){.type = CORE_EV_APPLIED});
	say_view(&l, 9, 3, &far); /* This chunk cannot arrive at this node. */
	assert_int_equal(l.out.nr, 0);
	say_view(&l, 9, 4, &r);
	assert_non_null(lone_sent(&l, CORE_VIEW_OK));
	lone_deinit(&l);
}

static void test_message_of_another_process(void **state)
{
	struct record seal = lone_record(5, 1, 4);
	struct core_view v = lone_view(5, 3, &seal);
	struct lone l;

	(void)state;
	member_init(&l);
	lone_msg(&l, A,
		 (struct core_msg){.op = CORE_VIEW,
				   .id = lone_id(5, 3, 0, 0),
				   .view = &v,
				   .from_incarnation = 55});
	assert_int_equal(l.out.nr, 0);
	lone_msg(&l, A, (struct core_msg){.op = CORE_VIEW, .id = lone_id(5, 3, 0, 0), .view = &v});
	assert_non_null(lone_sent(&l, CORE_VIEW_OK));
	lone_deinit(&l);
}

static void test_begin_after_another_record(void **state)
{
	struct record far = lone_record(5, 2, 6), seal = lone_record(5, 1, 4);
	struct lone l;

	(void)state;
	member_init(&l);
	say_begin(&l, lone_id(5, 2, 7, 1),
		  /* The attempt in hand is dropped, but the new one cannot follow the record
		   * that is here. */
		  &far);
	assert_non_null(lone_acted(&l, CORE_ACT_ENDED));
	lone_event(&l, (struct core_event){.type = CORE_EV_DRAINED, .id = lone_id(5, 2, 5, 1)});
	assert_int_equal(l.core->step.part, CORE_FREE);
	say_view(&l, 5, 3, &seal);
	say_begin(&l, lone_id(5, 3, 5, 1), &seal);
	assert_non_null(lone_acted(&l, CORE_ACT_BEGIN));
	lone_deinit(&l);
}

static void test_drained_of_an_older_attempt(void **state)
{
	struct record seal = lone_record(5, 1, 4);
	struct lone l;

	(void)state;
	member_init(&l);
	lone_msg(&l, A,
		 (struct core_msg){.op = CORE_ABORT, .id = lone_id(5, 2, 5, 1), .why = "for once"});
	lone_event(&l, (struct core_event){.type = CORE_EV_DRAINED, .id = lone_id(5, 2, 5, 1)});
	say_begin(&l, lone_id(5, 2, 5, 2), &seal);
	lone_msg(
		&l, A,
		(struct core_msg){.op = CORE_ABORT, .id = lone_id(5, 2, 5, 2), .why = "and again"});
	lone_event(&l, (struct core_event){.type = CORE_EV_DRAINED, .id = lone_id(5, 2, 5, 1)});
	assert_null(lone_sent(
		&l, CORE_DRAINED)); /* Workers still read what the second attempt staged. */
	lone_event(&l, (struct core_event){.type = CORE_EV_DRAINED, .id = lone_id(5, 2, 5, 2)});
	assert_non_null(lone_sent(&l, CORE_DRAINED));
	lone_deinit(&l);
}

/* The ABORT of the attempt in hand was lost, and why it ended is not known any more. */
static void test_abort_of_a_newer_attempt(void **state)
{
	struct lone l;

	(void)state;
	member_init(&l);
	lone_msg(&l, A,
		 (struct core_msg){.op = CORE_ABORT,
				   .id = lone_id(5, 2, 5, 2),
				   .why = "lr of group 0",
				   .status = SHARD_MISMATCH});
	assert_int_equal(lone_acted(&l, CORE_ACT_ENDED)->status, SHARD_WORLD_CHANGED);
	assert_null(strstr(lone_acted(&l, CORE_ACT_ENDED)->why, "lr of group 0"));
	lone_deinit(&l);
}

/* And a member says which one it adopted. */
static void test_answer_names_the_adopted_view(void **state)
{
	struct lone l;

	(void)state;
	member_init(&l);
	lone_msg(&l, A, (struct core_msg){.op = CORE_ASK, .id = {.term = 9, .generation = 1}});
	assert_int_equal(lone_sent(&l, CORE_ANSWER)->answer->term, 5);
	assert_int_equal(lone_sent(&l, CORE_ANSWER)->answer->seq, 2);
	lone_deinit(&l);
}

/* Who is no member has not, and of an older view it is not known. A new coordinator may commit what
 * one of the members has not voted for. */
static void test_who_has_voted(void **state)
{
	struct core_id id = lone_id(5, 2, 5, 1), seal = lone_record(5, 1, 4).id;
	struct lone l;

	(void)state;
	member_init(&l);
	member_commits(&l);
	assert_true(core_voted(l.core, &id, A));
	assert_true(core_voted(l.core, &id, B));
	assert_false(core_voted(l.core, &id, CORE_NODES_MAX - 1));
	assert_false(core_voted(l.core, &seal, A));
	lone_msg(&l, A, (struct core_msg){.op = CORE_ASK, .id = {.term = 9, .generation = 1}});
	assert_false(core_voted(l.core, &id, A));
	lone_deinit(&l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ask_ends_what_was_not_voted_for),
		cmocka_unit_test(test_ask_again_after_its_view),
		cmocka_unit_test(test_join_heard_in_another_term),
		cmocka_unit_test(test_gone_in_another_term),
		cmocka_unit_test(test_older_view_while_one_waits),
		cmocka_unit_test(test_view_of_an_older_generation),
		cmocka_unit_test(test_view_that_skips_a_record),
		cmocka_unit_test(test_message_of_another_process),
		cmocka_unit_test(test_begin_after_another_record),
		cmocka_unit_test(test_drained_of_an_older_attempt),
		cmocka_unit_test(test_abort_of_a_newer_attempt),
		cmocka_unit_test(test_answer_names_the_adopted_view),
		cmocka_unit_test(test_who_has_voted),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
