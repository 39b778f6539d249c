/* SPDX-License-Identifier: Apache-2.0 */
/* Tests one core alone as a member that learns what the ranks of another node gave. Node c has one
 * rank and one chunk, and b has the other rank. c votes when it knows the weight, the learning
 * rates and the skip of both, and its vote has all of them, so that the step can be decided without
 * b. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/inner.h"
#include "lib/lone.h"

#include <math.h>
#include <string.h>

enum { AT_C = SESSION + 1 };

static void begin(struct lone *l, uint32_t number)
{
	struct record seal = lone_record(5, 1, 4);
	struct core_world w = {.size = 2};

	w.rank[0] = (struct core_rank){.session = SESSION, .node = B};
	w.rank[1] = (struct core_rank){.session = AT_C, .node = C};
	lone_msg(l, A,
		 (struct core_msg){.op = CORE_BEGIN,
				   .id = lone_id(5, 2, 5, number),
				   .world = &w,
				   .record = &seal});
}

static void init(struct lone *l)
{
	struct record seal = lone_record(5, 1, 4);
	struct core_view v = lone_view(5, 2, &seal);

	lone_init(l, C, 1, NULL);
	lone_event(l, (struct core_event){.type = CORE_EV_JOIN,
					  .trainer = {.session = AT_C, .pid = 7, .hint = -1}});
	lone_msg(l, A, (struct core_msg){.op = CORE_VIEW, .id = lone_id(5, 2, 0, 0), .view = &v});
	begin(l, 1);
	assert_int_equal(lone_sent(l, CORE_GRANT)->to, B);
	assert_int_equal(l->core->step.part, CORE_STAGING);
}

static void ready(struct lone *l, double weight, const double *lr, bool skip)
{
	lone_event(l, (struct core_event){.type = CORE_EV_READY,
					  .session = AT_C,
					  .weight = weight,
					  .lr = lr,
					  .lr_nr = lr != NULL,
					  .skip = skip});
}

static void ready_values(struct lone *l, const double *values)
{
	lone_event(l,
		   (struct core_event){
			   .type = CORE_EV_READY, .session = AT_C, .weight = 1, .values = values});
}

static void staged(struct lone *l)
{
	lone_event(l,
		   (struct core_event){
			   .type = CORE_EV_STAGED, .chunk = 1, .finite = true, .bad_tensor = -1});
}

static void grant(struct lone *l, uint32_t number)
{
	lone_msg(l, B, (struct core_msg){.op = CORE_GRANT, .id = lone_id(5, 2, 5, number)});
}

static void ranks(struct lone *l, uint32_t number, struct core_vote v)
{
	v.bad_tensor = -1;
	lone_msg(l, B,
		 (struct core_msg){.op = CORE_RANKS, .id = lone_id(5, 2, 5, number), .vote = v});
}

static void test_vote_has_the_whole_world(void **state)
{
	const double weight = 3, lr = 0.5;
	const struct core_vote *v;
	struct lone l;

	(void)state;
	for (int of_b = 0; of_b < 2; of_b++) {
		init(&l);
		staged(&l);
		ready(&l, 2, &lr, !of_b);
		assert_null(lone_sent(&l, CORE_VOTE));
		assert_null(lone_sent(&l, CORE_RANKS)); /* Nobody has asked. */
		ranks(&l, 1,
		      (struct core_vote){.weights = &weight,
					 .ranks_nr = 1,
					 .lr = &lr,
					 .lr_nr = 1,
					 .skip = of_b});
		assert_non_null(lone_sent(&l, CORE_VOTE));
		v = &lone_sent(&l, CORE_VOTE)->vote;
		assert_int_equal(v->ranks_nr, 2);
		assert_true(v->weights[0] == 3 && v->weights[1] == 2);
		assert_true(v->lr_nr == 1 && v->lr[0] == 0.5 && v->skip);
		lone_deinit(&l);
	}
}

/* The answer waits for the rank and for the question, and the question may come again. */
static void test_question_is_answered(void **state)
{
	const struct core_msg *m;
	struct lone l;

	(void)state;
	for (int early = 0; early < 2; early++) {
		init(&l);
		if (early)
			grant(&l, 1);
		assert_null(lone_sent(&l, CORE_RANKS));
		ready(&l, 2, NULL, true);
		if (!early)
			grant(&l, 1);
		for (int again = 0; again < 2; again++) {
			m = lone_sent(&l, CORE_RANKS);
			assert_non_null(m);
			assert_int_equal(m->to, B);
			assert_int_equal(m->vote.ranks_nr, 1);
			assert_true(m->vote.weights[0] == 2 && m->vote.skip);
			grant(&l, 1);
		}
		grant(&l, 0);
		assert_null(lone_sent(&l, CORE_RANKS)); /* It asks for an older attempt. */
		lone_deinit(&l);
	}
}

static void test_question_is_repeated(void **state)
{
	const double weight = 3;
	struct lone l;

	(void)state;
	init(&l);
	staged(&l);
	ready(&l, 2, NULL, false);
	l.now += 10000000;
	lone_event(&l, (struct core_event){.type = CORE_EV_TICK});
	assert_non_null(lone_sent(&l, CORE_GRANT));
	lone_event(&l, (struct core_event){.type = CORE_EV_LINK_UP, .node = B, .who = lone_who(B)});
	assert_non_null(lone_sent(&l, CORE_ABANDON)); /* The link was down in between. */
	begin(&l, 2);
	lone_event(&l, (struct core_event){.type = CORE_EV_DRAINED, .id = lone_id(5, 2, 5, 1)});
	assert_non_null(lone_sent(&l, CORE_GRANT));
	ranks(&l, 2, (struct core_vote){.weights = &weight, .ranks_nr = 1});
	l.now += 10000000;
	lone_event(&l, (struct core_event){.type = CORE_EV_TICK});
	assert_null(lone_sent(&l, CORE_RANKS));
	lone_deinit(&l);
}

/* The trainers gave other learning rates. They are told, by both names, and nobody votes. */
static void test_other_lr(void **state)
{
	const double weight = 3, lr[2] = {0.5, 0.25};
	const struct core_msg *m;
	struct lone l;

	(void)state;
	for (int of_b_first = 0; of_b_first < 2; of_b_first++) {
		init(&l);
		for (int i = 0; i < 2; i++) {
			if (i == of_b_first)
				ready(&l, 2, &lr[0], false);
			else
				ranks(&l, 1,
				      (struct core_vote){.weights = &weight,
							 .ranks_nr = 1,
							 .lr = &lr[1],
							 .lr_nr = 1});
		}
		m = lone_sent(&l, CORE_ABANDON);
		assert_non_null(m);
		assert_int_equal(m->status, SHARD_MISMATCH);
		assert_non_null(strstr(m->why, "rank 0 "));
		assert_non_null(strstr(m->why, "rank 1 "));
		/* The next attempt is a new one in this, too. */
		begin(&l, 2);
		lone_event(&l,
			   (struct core_event){.type = CORE_EV_DRAINED, .id = lone_id(5, 2, 5, 1)});
		assert_int_equal(l.core->step.part, CORE_STAGING);
		ready(&l, 2, &lr[1], false);
		staged(&l);
		ranks(&l, 2,
		      (struct core_vote){
			      .weights = &weight, .ranks_nr = 1, .lr = &lr[1], .lr_nr = 1});
		assert_non_null(lone_sent(&l, CORE_VOTE));
		lone_deinit(&l);
	}
}

/* The same of the clip, also where one gave none. 0 is a clip, too. */
static void test_other_clip(void **state)
{
	static const struct {
		double own, theirs; /* Below 0: none. */
		const char *says;
	} cases[] = {
		{0.5, 0.25,
		 "clip: rank 0 (pid 0, node b) gave 0.25, rank 1 (pid 0, node c) gave 0.5"},
		{0.5, -1, "gave 0.5, rank 0 (pid 0, node b) gave none"},
		{-1, 0, "clip: rank 0 (pid 0, node b) gave 0, rank 1 (pid 0, node c) gave none"},
		{0, 0, NULL},
		{2, 2, NULL},
	};
	const double weight = 1;
	const struct core_msg *m;
	struct lone l;

	(void)state;
	for (size_t i = 0; i < NR(cases); i++) {
		bool has = cases[i].theirs >= 0;

		init(&l);
		lone_event(&l,
			   (struct core_event){.type = CORE_EV_READY,
					       .session = AT_C,
					       .weight = 1,
					       .clip = cases[i].own < 0 ? NULL : &cases[i].own});
		staged(&l);
		ranks(&l, 1,
		      (struct core_vote){.weights = &weight,
					 .ranks_nr = 1,
					 .has_clip = has,
					 .clip = has ? cases[i].theirs : 0});
		m = lone_sent(&l, cases[i].says ? CORE_ABANDON : CORE_VOTE);
		assert_non_null(m);
		if (cases[i].says) {
			assert_int_equal(m->status, SHARD_MISMATCH);
			if (!strstr(m->why, cases[i].says))
				fail_msg("\"%s\" does not say \"%s\"", m->why, cases[i].says);
		} else {
			assert_true(m->vote.has_clip && m->vote.clip == cases[i].own);
		}
		begin(&l, 2); /* The next attempt is a new one in this, too. */
		if (cases[i].says) {
			lone_event(&l, (struct core_event){.type = CORE_EV_DRAINED,
							   .id = lone_id(5, 2, 5, 1)});
			ready(&l, 1, NULL, false);
			staged(&l);
			ranks(&l, 2, (struct core_vote){.weights = &weight, .ranks_nr = 1});
			assert_false(lone_sent(&l, CORE_VOTE)->vote.has_clip);
		}
		lone_deinit(&l);
	}
}

/* The vote has the sums in the order of ranks, whoever was ready first: b has rank 0. What a rank
 * of an attempt before gave is not in them. */
static void test_values_are_summed(void **state)
{
	const double weight = 1,
		     of_b[CORE_VALUES_NR] = {0.1, -0.0, (double)INFINITY, 1, [15] = 1e16},
		     of_c[CORE_VALUES_NR] = {0.2, -0.0, (double)-INFINITY, [15] = 1};
	const struct core_vote *v;
	struct lone l;

	(void)state;
	for (int again = 0; again < 2; again++) {
		init(&l);
		ready_values(&l, of_c);
		grant(&l, 1);
		v = &lone_sent(&l, CORE_RANKS)->vote;
		assert_int_equal(v->values_nr, CORE_VALUES_NR);
		assert_memory_equal(v->values, of_c, sizeof(of_c));
		if (again) {
			lone_event(&l,
				   (struct core_event){.type = CORE_EV_ABANDON, .session = AT_C});
			begin(&l, 2);
			lone_event(&l, (struct core_event){.type = CORE_EV_DRAINED,
							   .id = lone_id(5, 2, 5, 1)});
			ready(&l, 1, NULL, false);
		}
		staged(&l);
		ranks(&l, again ? 2 : 1,
		      (struct core_vote){.weights = &weight,
					 .ranks_nr = 1,
					 .values = of_b,
					 .values_nr = CORE_VALUES_NR});
		v = &lone_sent(&l, CORE_VOTE)->vote;
		assert_int_equal(v->values_nr, CORE_VALUES_NR);
		assert_true(v->values[0] == (again ? 0.1 : 0.1 + 0.2));
		assert_true(v->values[3] == 1 && v->values[15] == 1e16);
		assert_int_equal(signbit(v->values[1]) != 0, !again);
		assert_true(again ? isinf(v->values[2]) : isnan(v->values[2]));
		lone_deinit(&l);
	}
}

/* None of these counts, and none does harm. */
static void test_wrong_ranks(void **state)
{
	const double weight[3] = {3, 3, 3}, lr[2] = {1, 1};
	const struct core_vote
		good = {.weights = weight, .ranks_nr = 1},
		wrong[] = {
			{.weights = weight, .ranks_nr = 2},
			{.weights = weight, .ranks_nr = 0},
			{.ranks_nr = 1},
			{.weights = weight, .ranks_nr = 1, .lr_nr = 1},
			{.weights = weight, .ranks_nr = 1, .lr = lr, .lr_nr = 2},
			{.weights = weight, .ranks_nr = 1, .values_nr = CORE_VALUES_NR},
			{.weights = weight, .ranks_nr = 1, .values = weight, .values_nr = 3},
		};
	struct lone l;

	(void)state;
	init(&l);
	staged(&l);
	ready(&l, 2, NULL, false);
	for (size_t i = 0; i < NR(wrong); i++) {
		ranks(&l, 1, wrong[i]);
		assert_int_equal(l.out.nr, 0);
	}
	ranks(&l, 0, good);
	ranks(&l, 2, good);
	assert_int_equal(l.out.nr, 0);
	lone_msg(&l, A, /* It has no ranks. */
		 (struct core_msg){.op = CORE_RANKS, .id = lone_id(5, 2, 5, 1), .vote = good});
	assert_int_equal(l.core->step.part, CORE_STAGING);
	ranks(&l, 1, good);
	assert_int_equal(l.core->step.part, CORE_PREPARED);
	ranks(&l, 1, good);
	assert_int_equal(l.out.nr, 0);
	lone_deinit(&l);
}

/* What b gave cannot come any more. */
static void test_link_ends(void **state)
{
	struct lone l;

	(void)state;
	init(&l);
	staged(&l);
	ready(&l, 2, NULL, false);
	lone_event(&l, (struct core_event){.type = CORE_EV_LINK_DOWN, .node = B, .why = "cut"});
	assert_non_null(lone_sent(&l, CORE_ABANDON));
	lone_deinit(&l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_vote_has_the_whole_world),
		cmocka_unit_test(test_question_is_answered),
		cmocka_unit_test(test_question_is_repeated),
		cmocka_unit_test(test_other_lr),
		cmocka_unit_test(test_other_clip),
		cmocka_unit_test(test_values_are_summed),
		cmocka_unit_test(test_wrong_ranks),
		cmocka_unit_test(test_link_ends),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
