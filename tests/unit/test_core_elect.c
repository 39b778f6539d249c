/* SPDX-License-Identifier: Apache-2.0 */
/* Tests elected coordinators with two cores. The first one stops to decide as soon as it is told,
 * or as soon as it hears of a higher term. The next one asks both members, decides what they have
 * both voted for, makes a view of its own term, and goes on with the trainers of both. Without
 * elections nobody but the coordinator of the configuration gives orders. test_verdict.c tries a
 * takeover at every moment. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/inner.h"
#include "lib/duo.h"

#include <string.h>

enum { A, B };

static struct core_state state_of(struct duo *p, unsigned n)
{
	struct core_state s;

	core_state(p->core[n], &s);
	return s;
}

static const struct core_action *acted(const struct duo *p, enum core_action_type type)
{
	for (uint32_t i = 0; i < p->out.nr; i++) {
		if (p->out.act[i].type == type)
			return &p->out.act[i];
	}
	return NULL;
}

static void begun(struct duo *p) /* Both trainers are in step 5, and a coordinates. */
{
	duo_init_elected(p);
	duo_first_begin(p);
	assert_int_equal(state_of(p, A).part, CORE_STAGING);
	assert_int_equal(state_of(p, B).part, CORE_STAGING);
}

static void persisted(struct duo *p, unsigned n)
{
	duo_event(p, n, "persisted",
		  (struct core_event){.type = CORE_EV_PERSISTED,
				      .id = {.term = p->view.term, .seq = p->view.seq}});
}

/* b leads, and makes a step with both trainers. */
static void goes_on(struct duo *p, uint64_t step)
{
	struct core_state s;

	assert_true(state_of(p, B).coordinator && !state_of(p, A).coordinator);
	s = state_of(p, A);
	assert_true(s.id.step == step && s.world->size == 2 && s.part == CORE_STAGING);
	duo_compute(p, A, true, true);
	duo_compute(p, B, true, true);
	for (unsigned n = 0; n < 2; n++)
		duo_event(p, n, "applied", (struct core_event){.type = CORE_EV_APPLIED});
	for (unsigned n = 0; n < 2; n++)
		assert_int_equal(state_of(p, n).committed, step);
	assert_int_equal(state_of(p, A).term, 9);
}

/* Both have voted, and a did not hear the vote of b. The step may not have been decided, but it has
 * to be, because b cannot know that. */
static void test_both_voted(void **state)
{
	struct duo p;

	(void)state;
	begun(&p);
	duo_compute(&p, B, false, true);
	duo_compute(&p, A, true, true);
	duo_line(&p, "b: staged (what it says is lost)\n");
	duo_feed(&p, B,
		 &(struct core_event){.type = CORE_EV_STAGED,
				      .chunk = B,
				      .sumsq = 16,
				      .finite = true,
				      .bad_tensor = -1,
				      .id = p.id[B]});
	p.head = p.tail;
	assert_int_equal(state_of(&p, B).part, CORE_PREPARED);
	duo_lead(&p, B, 9);
	assert_false(state_of(&p, A).coordinator);
	persisted(&p, B);
	for (unsigned n = 0; n < 2; n++) {
		assert_int_equal(state_of(&p, n).part, CORE_APPLYING);
		duo_event(&p, n, "applied", (struct core_event){.type = CORE_EV_APPLIED});
	}
	assert_int_equal(state_of(&p, A).committed, 5);
	goes_on(&p, 6);
	duo_compare(&p, "tests/trace/takeover.txt");
	duo_deinit(&p);
}

/* Only one has voted, so nothing was decided. */
static void test_one_voted(void **state)
{
	struct duo p;

	(void)state;
	begun(&p);
	duo_compute(&p, B, false, true);
	duo_compute(&p, A, true, true);
	assert_int_equal(state_of(&p, A).part, CORE_PREPARED);
	duo_lead(&p, B, 9);
	persisted(&p, B);
	for (unsigned n = 0; n < 2; n++)
		duo_event(&p, n, "drained",
			  (struct core_event){.type = CORE_EV_DRAINED, .id = p.id[n]});
	assert_int_equal(state_of(&p, A).committed, 4);
	goes_on(&p, 5);
	duo_deinit(&p);
}

/* a does not hear of the election. What it orders has no effect, and b begins nothing for it. */
static void test_old_leader_goes_on(void **state)
{
	struct duo p;
	uint32_t from;

	(void)state;
	begun(&p);
	duo_compute(&p, A, true, true);
	duo_line(&p, "b: leads in term 9 (a does not hear it)\n");
	duo_feed(&p, B, &(struct core_event){.type = CORE_EV_LEAD, .id.term = 9, .view = &p.view});
	duo_feed(&p, B, &(struct core_event){.type = CORE_EV_TICK});
	p.head = p.tail;
	assert_true(state_of(&p, A).coordinator && state_of(&p, B).coordinator);
	assert_int_equal(state_of(&p, B).part, CORE_FREE); /* It promised, and had not voted. */
	p.now += 2000000000;
	duo_event(&p, A, "tick", (struct core_event){.type = CORE_EV_TICK});
	assert_int_equal(state_of(&p, B).part, CORE_FREE);
	assert_int_equal(state_of(&p, A).committed, 4);
	/* The question comes once more. */
	from = p.tail;
	duo_event(&p, B, "tick", (struct core_event){.type = CORE_EV_TICK});
	assert_true(p.tail > from);
	assert_false(state_of(&p, A).coordinator);
	persisted(&p, B);
	for (unsigned n = 0; n < 2; n++)
		duo_event(&p, n, "drained",
			  (struct core_event){.type = CORE_EV_DRAINED, .id = p.id[n]});
	goes_on(&p, 5);
	duo_deinit(&p);
}

static void test_resigned(void **state)
{
	struct duo p;

	(void)state;
	begun(&p);
	duo_event(&p, A, "hold", (struct core_event){.type = CORE_EV_HOLD, .on = true});
	assert_true(state_of(&p, A).held);
	duo_compute(&p, B, true, true);
	duo_compute(&p, A, true, true);
	duo_event(&p, A, "resign", (struct core_event){.type = CORE_EV_RESIGN});
	assert_non_null(acted(&p, CORE_ACT_RESIGNED));
	/* The hold is over, and it did not vote for what nobody can decide. */
	assert_true(!state_of(&p, A).held && !state_of(&p, A).coordinator);
	assert_int_equal(state_of(&p, A).part, CORE_FREE);
	assert_int_equal(core_deadline(p.core[A]) == 0, 0);
	duo_event(&p, A, "resign", (struct core_event){.type = CORE_EV_RESIGN});
	assert_null(acted(&p, CORE_ACT_RESIGNED)); /* It was not the coordinator. */
	duo_lead(&p, B, 9);
	persisted(&p, B);
	for (unsigned n = 0; n < 2; n++)
		duo_event(&p, n, "drained",
			  (struct core_event){.type = CORE_EV_DRAINED, .id = p.id[n]});
	goes_on(&p, 5);
	duo_deinit(&p);
}

/* The view that a resigned coordinator proposed may still become durable. Nobody hears it. */
static void test_persisted_after_it_resigned(void **state)
{
	struct duo p;

	(void)state;
	begun(&p);
	duo_event(&p, A, "rollback",
		  (struct core_event){.type = CORE_EV_ROLLBACK, .on = true, .why = "an order"});
	assert_int_equal(p.view.generation, 2);
	duo_event(&p, A, "resign", (struct core_event){.type = CORE_EV_RESIGN});
	persisted(&p, A);
	assert_int_equal(p.out.nr, 0);
	/* It leads again, and asks. Once more it hears of the old proposal. */
	duo_feed(&p, A, &(struct core_event){.type = CORE_EV_LEAD, .id.term = 8, .view = &p.view});
	duo_event(&p, A, "tick", (struct core_event){.type = CORE_EV_TICK});
	assert_int_equal(p.view.term, 8);
	duo_feed(&p, A,
		 &(struct core_event){.type = CORE_EV_PERSISTED, .id = {.term = 7, .seq = 3}});
	assert_int_equal(p.out.nr, 0);
	persisted(&p, A);
	assert_int_equal(state_of(&p, B).term, 8);
	duo_deinit(&p);
}

/* b promised to a leader of a later term before its own election was told to it. */
static void test_elected_too_late(void **state)
{
	struct core_id id = {.term = 12};
	struct core_msg ask = {
		.op = CORE_ASK, .from = A, .to = B, .from_incarnation = duo_who(A).incarnation};
	struct duo p;

	(void)state;
	begun(&p);
	ask.id = id;
	duo_feed(&p, B, &(struct core_event){.type = CORE_EV_MSG, .msg = &ask});
	p.head = p.tail;
	duo_feed(&p, B, &(struct core_event){.type = CORE_EV_LEAD, .id.term = 9, .view = &p.view});
	assert_non_null(acted(&p, CORE_ACT_RESIGNED));
	assert_false(state_of(&p, B).coordinator);
	duo_deinit(&p);
}

/* The process that promised is gone, and the one that comes back with its memory keeps the promise
 * to that very node. */
static void test_promise_outlives_the_process(void **state)
{
	struct duo p;

	(void)state;
	begun(&p);
	duo_lead(&p, B, 9);
	persisted(&p, B);
	assert_int_equal(p.core[A]->member.leader, B);
	duo_dies(&p, A);
	assert_int_equal(p.core[A]->member.leader, B);
	assert_int_equal(p.core[A]->member.promised, 9);
	assert_false(state_of(&p, A).coordinator);
	duo_deinit(&p);
}

/* What an old coordinator sends back to a node about its trainer looks like what a node asks a
 * coordinator. The new one does not take it for a trainer of the old one. */
static void test_echo_of_the_old_one(void **state)
{
	struct core_msg echo = {.op = CORE_JOIN,
				.from = A,
				.to = B,
				.from_incarnation = duo_who(A).incarnation,
				.id.term = 7,
				.trainer = {.session = 21, .pid = 221, .hint = 1}};
	struct duo p;

	(void)state;
	begun(&p);
	duo_lead(&p, B, 9);
	duo_feed(&p, B, &(struct core_event){.type = CORE_EV_MSG, .msg = &echo});
	assert_int_equal(p.core[B]->coord.trainers_nr, 0);
	duo_deinit(&p);
}

/* Nobody is elected here. The other node has no say, whatever its term. */
static void test_no_elections(void **state)
{
	struct core_msg ask = {.op = CORE_ASK,
			       .from = B,
			       .to = A,
			       .from_incarnation = duo_who(B).incarnation,
			       .id.term = 99};
	struct duo p;

	(void)state;
	duo_init(&p);
	duo_first_begin(&p);
	duo_feed(&p, A, &(struct core_event){.type = CORE_EV_MSG, .msg = &ask});
	assert_true(state_of(&p, A).coordinator);
	assert_int_equal(p.core[A]->member.promised, 7);
	assert_int_equal(p.out.nr, 0);
	duo_deinit(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_both_voted),
		cmocka_unit_test(test_one_voted),
		cmocka_unit_test(test_old_leader_goes_on),
		cmocka_unit_test(test_resigned),
		cmocka_unit_test(test_persisted_after_it_resigned),
		cmocka_unit_test(test_elected_too_late),
		cmocka_unit_test(test_promise_outlives_the_process),
		cmocka_unit_test(test_echo_of_the_old_one),
		cmocka_unit_test(test_no_elections),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
