/* SPDX-License-Identifier: Apache-2.0 */
/* Tests what the coordinator makes of votes for copies that differ, and what a node does that finds
 * another norm than its primary said, or is told that it is odd. Node a coordinates. Which nodes
 * have copies differs from test to test. That exactly those are suspected that alone explain all
 * differences is compared with a count of all possible votes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/inner.h"
#include "lib/lone.h"

#include <string.h>

enum { TERM = 5, AB = 1 << A | 1 << B, BC = 1 << B | 1 << C, ALL = 1 << A | 1 << B | 1 << C };

static const uint16_t primary[2] = {B, C};
static const uint64_t two[2] = {BC, BC}, three[2] = {ALL, ALL}, last[2] = {ALL, 1 << C},
		      chain[2] = {AB, BC};
static const uint16_t of_chain[2] = {A, C};
static const double alike[2] = {1, 1};

static struct core_view view_of(const uint64_t *holders)
{
	struct record r = lone_record(TERM, 3, 4);
	struct core_view v = lone_view(TERM, 3, &r);

	v.place = place_of(holders == chain ? of_chain : primary, holders, 2);
	return v;
}

static void tick(struct lone *l)
{
	l->now += 2 * CORE_SECOND_NS / 1000;
	lone_event(l, (struct core_event){.type = CORE_EV_TICK});
}

static void answer(struct lone *l, uint16_t node)
{
	struct core_answer a = {.incarnation = lone_incarnation(node),
				.term = TERM,
				.seq = 3,
				.generation = 1,
				.has_record = true,
				.record = lone_record(TERM, 3, 4)};

	lone_msg(l, node, (struct core_msg){.op = CORE_ANSWER, .id = {.term = 9}, .answer = &a});
}

static void view_ok(struct lone *l, uint16_t node)
{
	struct core_id id = {.term = 9, .seq = l->core->coord.view.seq, .generation = 1};

	lone_msg(l, node, (struct core_msg){.op = CORE_VIEW_OK, .id = id});
}

static void persisted(struct lone *l)
{
	lone_event(l, (struct core_event){.type = CORE_EV_PERSISTED});
}

static void begun(const struct lone *l)
{
	assert_true(l->core->coord.undecided);
	assert_int_equal(l->core->coord.id.step, 5);
}

/* The view is open, and b has a trainer. */
static void opened(struct lone *l, const uint64_t *holders)
{
	struct core_view v = view_of(holders);

	lone_init(l, A, 9, &v);
	/* What a warm start would give: it has the copies that the view says. */
	l->core->conf.step_timeout_ns = l->core->conf.lost_timeout_ns = 100 * CORE_SECOND_NS;
	tick(l);
	answer(l, B);
	answer(l, C);
	if (holders != two) { /* Its own participant has nothing yet, and would be restarted. */
		l->core->member.generation = 1;
		l->core->member.sealed = true;
		l->core->step.has_record = true;
		l->core->step.record = lone_record(TERM, 3, 4);
	}
	persisted(l);
	view_ok(l, B);
	view_ok(l, C);
	assert_int_equal(l->core->coord.state, COORD_OPEN);
	lone_msg(l, B,
		 (struct core_msg){.op = CORE_JOIN,
				   .id = {.term = 9},
				   .trainer = {.session = SESSION, .pid = 1, .hint = -1}});
	begun(l);
}

static void says(struct lone *l, uint16_t node, const double *sumsq, uint32_t nr, bool differs)
{
	static const double weights[1] = {1};
	uint8_t finite[2] = {1, 1};

	lone_msg(l, node,
		 (struct core_msg){.op = CORE_VOTE,
				   .id = l->core->coord.id,
				   .differs = differs,
				   .vote = {.sumsq = sumsq,
					    .finite = finite,
					    .chunks_nr = nr,
					    .weights = weights,
					    .ranks_nr = 1,
					    .bad_tensor = -1,
					    .bad_rank = -1}});
}

/* a itself: every chunk that it has, and what the ranks of b gave. */
static void own(struct lone *l, double first, double second)
{
	static const double weights[1] = {1};
	const double sumsq[2] = {first, second};

	for (uint32_t c = 0; c < 2; c++) {
		if (place_keeps(core_place(l->core), c, A))
			lone_event(l, (struct core_event){.type = CORE_EV_STAGED,
							  .chunk = c,
							  .sumsq = sumsq[c],
							  .finite = true,
							  .bad_tensor = -1,
							  .bad_rank = -1});
	}
	lone_msg(l, B,
		 (struct core_msg){.op = CORE_RANKS,
				   .id = l->core->coord.id,
				   .vote = {.weights = weights,
					    .ranks_nr = 1,
					    .bad_tensor = -1,
					    .bad_rank = -1}});
}

/* Votes that nobody can judge. The last event was the last vote. */
static void undecided(const struct lone *l)
{
	assert_non_null(lone_acted(l, CORE_ACT_DIFFER));
	assert_int_equal(lone_acted(l, CORE_ACT_DIFFER)->node, CORE_NODES_MAX);
	assert_null(lone_sent(l, CORE_COMMIT));
	assert_non_null(lone_sent(l, CORE_ABORT));
}

static void drained(struct lone *l)
{
	lone_event(l, (struct core_event){.type = CORE_EV_DRAINED, .id = l->core->step.id});
	if (!l->core->coord.undecided)
		tick(l);
}

static struct core_state state_of(const struct lone *l)
{
	struct core_state s;

	core_state(l->core, &s);
	return s;
}

/* Which of two is wrong nobody can say. After three attempts an operator must look. */
static void test_two_copies(void **state)
{
	const double other[2] = {1, 2};
	struct core_tune tune = {0};
	struct lone l;

	(void)state;
	opened(&l, two);
	for (int tries = 1; tries <= 3; tries++) {
		begun(&l);
		assert_false(state_of(&l).disputed);
		own(&l, 0, 0);
		says(&l, B, alike, 2, false);
		assert_null(lone_acted(&l, CORE_ACT_DIFFER)); /* More is known with all votes. */
		says(&l, C, other, 2, false);
		undecided(&l);
		assert_non_null(strstr(lone_acted(&l, CORE_ACT_DIFFER)->why,
				       "copies of chunk 1 differ in step 5: sums of squares: node "
				       "b 1, node c 2"));
		drained(&l);
	}
	assert_false(l.core->coord.undecided);
	assert_true(state_of(&l).disputed && state_of(&l).paused);
	assert_int_equal(state_of(&l).differed, 3);
	assert_non_null(strstr(state_of(&l).waits, "shardctl verify"));
	assert_non_null(lone_sent(&l, CORE_WAITING)); /* Trainers on other nodes hear why. */
	assert_null(lone_sent(&l, CORE_ODD));
	tick(&l);
	assert_false(l.core->coord.undecided);
	lone_event(&l, (struct core_event){.type = CORE_EV_TUNE, .tune = &tune, .on = true});
	assert_false(state_of(&l).disputed);
	persisted(&l);
	view_ok(&l, B);
	view_ok(&l, C);
	drained(&l);
	begun(&l);
	own(&l, 0, 0);
	says(&l, C, alike, 2, false);
	says(&l, B, alike, 2, false);
	assert_non_null(lone_sent(&l, CORE_COMMIT));
	lone_deinit(&l);
}

/* The next view is without c. */
static void leaves(struct lone *l)
{
	const struct core_action *a;

	assert_int_equal(lone_acted(l, CORE_ACT_DIFFER)->node, C);
	assert_non_null(lone_sent(l, CORE_ABORT));
	assert_null(lone_sent(l, CORE_ODD));
	drained(l);
	assert_false(l->core->coord.undecided);
	assert_null(lone_acted(l, CORE_ACT_PERSIST)); /* b may be gone by now. */
	lone_msg(l, B,
		 (struct core_msg){.op = CORE_HEARD,
				   .id = {.term = 9, .step = l->core->coord.hear}});
	a = lone_acted(l, CORE_ACT_PERSIST);
	assert_non_null(a);
	assert_int_equal(a->view->members.nodes, AB);
	assert_true(a->view->sealed);
	assert_null(lone_sent(l, CORE_ODD));
	persisted(l);
	assert_null(lone_sent(l, CORE_ODD));
	view_ok(l, B);
	assert_non_null(lone_sent(l, CORE_ODD));
	assert_int_equal(lone_sent(l, CORE_ODD)->to, C);
	assert_non_null(strstr(lone_sent(l, CORE_ODD)->why, "node c 2"));
}

static void test_three_copies(void **state)
{
	const double other[2] = {2, 1};
	struct view_node who = lone_who(C);
	struct lone l;

	(void)state;
	for (int order = 0; order < 2; order++) {
		opened(&l, three);
		if (order)
			says(&l, C, other, 2, false);
		own(&l, 1, 1);
		says(&l, order ? B : C, order ? alike : other, 2, false);
		if (!order)
			says(&l, B, alike, 2, false);
		leaves(&l);
		l.now += CORE_SECOND_NS;
		tick(&l);
		assert_non_null(lone_sent(&l, CORE_ODD)); /* It may have been lost. */
		/* It is back with the memory that it had. */
		lone_event(&l, (struct core_event){
				       .type = CORE_EV_LINK_DOWN, .node = C, .why = "it broke"});
		assert_null(lone_sent(&l, CORE_ODD));
		lone_event(&l, (struct core_event){.type = CORE_EV_LINK_UP, .node = C, .who = who});
		assert_non_null(lone_sent(&l, CORE_ODD));
		assert_int_equal(l.core->coord.view.members.nodes, AB);
		/* With other memory it is as any node that joins. */
		who.incarnation++;
		lone_event(&l, (struct core_event){.type = CORE_EV_LINK_UP, .node = C, .who = who});
		assert_null(lone_sent(&l, CORE_ODD));
		drained(&l);
		assert_int_equal(l.core->coord.view.members.nodes, ALL);
		assert_int_equal(l.core->coord.view.place.learns, 1 << C);
		who.incarnation--;
		lone_deinit(&l);
	}
}

/* c found something else than its primary said. It is as if it had voted so. */
static void test_says_that_it_differs(void **state)
{
	const double other[2] = {2, 1};
	struct lone l;

	(void)state;
	opened(&l, three);
	own(&l, 1, 1);
	says(&l, C, other, 2, true);
	says(&l, C, alike, 2, false); /* What it said first counts. */
	says(&l, B, alike, 2, false);
	leaves(&l);
	lone_deinit(&l);
	/* All agree on what they have, but not on what was said. */
	opened(&l, three);
	own(&l, 1, 1);
	says(&l, C, alike, 2, true);
	says(&l, B, alike, 2, false);
	undecided(&l);
	lone_deinit(&l);
	/* Two followers found the same, and the primary says something else. */
	opened(&l, three);
	own(&l, 1, 1);
	says(&l, B, alike, 2, true);
	says(&l, C, other, 2, false);
	leaves(&l);
	lone_deinit(&l);
}

/* b differs from a in one chunk, and from c in another one. */
static void test_chain(void **state)
{
	const double of_b[2] = {2, 2};
	struct lone l;

	(void)state;
	opened(&l, chain);
	own(&l, 1, 0);
	says(&l, B, of_b, 2, false);
	says(&l, C, alike, 1, false);
	assert_int_equal(lone_acted(&l, CORE_ACT_DIFFER)->node, B);
	lone_deinit(&l);
	opened(&l, chain);
	own(&l, 1, 0);
	says(&l, B, (const double[]){1, 2}, 2, false);
	says(&l, C, alike, 1, false);
	undecided(&l);
	lone_deinit(&l);
}

/* Its end would be the end of chunk 1. */
static void test_last_copy_stays(void **state)
{
	const double other[2] = {2, 1};
	struct lone l;

	(void)state;
	opened(&l, last);
	for (int tries = 1; tries <= 3; tries++) {
		begun(&l);
		own(&l, 1, 0);
		says(&l, B, alike, 1, false);
		says(&l, C, other, 2, false);
		assert_int_equal(lone_acted(&l, CORE_ACT_DIFFER)->node, C);
		assert_null(lone_acted(&l, CORE_ACT_PERSIST));
		drained(&l);
	}
	assert_true(state_of(&l).disputed);
	assert_non_null(strstr(state_of(&l).waits, "the last copy of a chunk"));
	assert_int_equal(l.core->coord.view.members.nodes, ALL);
	lone_deinit(&l);
}

/* The coordinator's own copies stop to count before it ends. */
static void test_coordinator(void **state)
{
	struct lone l;

	(void)state;
	opened(&l, three);
	says(&l, B, alike, 2, false);
	says(&l, C, alike, 2, false);
	own(&l, 1, 3);
	assert_int_equal(lone_acted(&l, CORE_ACT_DIFFER)->node, A);
	assert_null(lone_acted(&l, CORE_ACT_ODD));
	assert_non_null(lone_acted(&l, CORE_ACT_PERSIST));
	assert_int_equal(lone_acted(&l, CORE_ACT_PERSIST)->view->members.nodes, ALL);
	assert_int_equal(lone_acted(&l, CORE_ACT_PERSIST)->view->place.learns, 1 << A);
	persisted(&l);
	view_ok(&l, B);
	assert_null(lone_acted(&l, CORE_ACT_ODD));
	view_ok(&l, C);
	assert_non_null(lone_acted(&l, CORE_ACT_ODD));
	assert_non_null(strstr(lone_acted(&l, CORE_ACT_ODD)->why, "node a 3"));
	drained(&l);
	assert_false(l.core->coord.undecided);
	lone_deinit(&l);
}

/* c catches up, and says that a chunk differs. Nothing is lost without it. */
static void test_learner(void **state)
{
	struct lone l;

	(void)state;
	opened(&l, three);
	l.core->coord.view.place.learns = 1 << C;
	coord_placed(l.core);
	member_place(l.core, &l.core->coord.view.place);
	own(&l, 1, 1);
	says(&l, B, alike, 2, false);
	says(&l, C, NULL, 0, true);
	assert_int_equal(lone_acted(&l, CORE_ACT_DIFFER)->node, C);
	assert_non_null(lone_sent(&l, CORE_ODD));
	lone_deinit(&l);
}

/* Bytes that arrive damaged again and again are nobody's. */
static void test_damage(void **state)
{
	struct lone l;

	(void)state;
	opened(&l, two);
	for (int tries = 1; tries <= 3; tries++) {
		begun(&l);
		assert_false(state_of(&l).disputed);
		lone_msg(&l, C,
			 (struct core_msg){.op = CORE_ABANDON,
					   .id = l.core->coord.id,
					   .differs = true,
					   .why = "gradient of chunk 0 arrived damaged"});
		drained(&l);
	}
	assert_true(state_of(&l).disputed);
	assert_non_null(strstr(state_of(&l).waits, "after 3 attempts: gradient of chunk 0"));
	lone_deinit(&l);
	/* Other reasons are not counted. */
	opened(&l, two);
	for (int tries = 1; tries <= 5; tries++) {
		begun(&l);
		lone_msg(&l, C, (struct core_msg){.op = CORE_ABANDON, .id = l.core->coord.id});
		drained(&l);
	}
	begun(&l);
	lone_deinit(&l);
}

/* b or c has voted for step 5 in the view that a, which started again, finds. */
static void prepared(struct lone *l, uint16_t node, const double *sumsq)
{
	static const double weights[1] = {1};
	static const uint8_t finite[2] = {1, 1};
	struct core_answer a = {.incarnation = lone_incarnation(node),
				.term = TERM,
				.seq = 3,
				.generation = 1,
				.has_record = true,
				.record = lone_record(TERM, 3, 4),
				.prepared = true,
				.id = lone_id(TERM, 3, 5, 1),
				.vote = {.sumsq = sumsq,
					 .finite = finite,
					 .chunks_nr = 2,
					 .weights = weights,
					 .ranks_nr = 1,
					 .bad_tensor = -1,
					 .bad_rank = -1}};

	a.world.size = 1;
	a.world.rank[0] = (struct core_rank){.session = SESSION, .node = B};
	lone_msg(l, node, (struct core_msg){.op = CORE_ANSWER, .id = {.term = 9}, .answer = &a});
}

/* Both have voted, but the coordinator before cannot have committed what differs. */
static void test_recovery(void **state)
{
	const double other[2] = {1, 2};
	struct lone l;

	(void)state;
	for (int differ = 0; differ < 2; differ++) {
		struct core_view v = view_of(two);

		v.members.node[A].incarnation = 77; /* Of the memory that a had. */
		lone_init(&l, A, 9, &v);
		tick(&l);
		prepared(&l, B, alike);
		prepared(&l, C, differ ? other : alike);
		assert_non_null(lone_acted(&l, CORE_ACT_PERSIST));
		assert_int_equal(lone_acted(&l, CORE_ACT_PERSIST)->view->record.id.step,
				 differ ? 4 : 5);
		lone_deinit(&l);
	}
}

/* --- another node --- */

static void say_begin(struct lone *l, uint32_t attempt)
{
	struct record before = lone_record(TERM, 3, 4);
	struct core_world w = {.size = 1};

	w.rank[0] = (struct core_rank){.session = 1, .node = A};
	lone_msg(l, A,
		 (struct core_msg){.op = CORE_BEGIN,
				   .id = lone_id(TERM, 3, 5, attempt),
				   .world = &w,
				   .record = &before});
}

static void member(struct lone *l)
{
	static struct core_view v;

	v = view_of(two);
	lone_init(l, B, 0x7fffffff, &v);
	lone_msg(l, A,
		 (struct core_msg){.op = CORE_VIEW, .id = lone_id(TERM, 3, 0, 0), .view = &v});
	say_begin(l, 1);
	assert_int_equal(l->core->step.part, CORE_STAGING);
}

static void staged(struct lone *l, uint32_t chunk, bool differs)
{
	lone_event(l, (struct core_event){.type = CORE_EV_STAGED,
					  .chunk = chunk,
					  .sumsq = 3,
					  .finite = true,
					  .on = differs,
					  .bad_tensor = -1,
					  .bad_rank = -1});
}

static void told_ranks(struct lone *l)
{
	static const double weights[1] = {1};

	lone_msg(l, A,
		 (struct core_msg){.op = CORE_RANKS,
				   .id = l->core->step.id,
				   .vote = {.weights = weights,
					    .ranks_nr = 1,
					    .bad_tensor = -1,
					    .bad_rank = -1}});
}

/* It says what it found, and is not PREPARED, so nothing can be committed with its copy. */
static void test_follower(void **state)
{
	struct record r = lone_record(TERM, 3, 5);
	struct lone l;

	(void)state;
	member(&l);
	staged(&l, 0, true);
	staged(&l, 1, false);
	assert_null(lone_sent(&l, CORE_VOTE));
	told_ranks(&l);
	for (int again = 0; again < 2; again++) {
		assert_non_null(lone_sent(&l, CORE_VOTE));
		assert_true(lone_sent(&l, CORE_VOTE)->differs);
		assert_true(lone_sent(&l, CORE_VOTE)->vote.sumsq[0] == 3);
		assert_null(lone_acted(&l, CORE_ACT_OPEN));
		assert_int_equal(l.core->step.part, CORE_STAGING);
		l.now += CORE_SECOND_NS;
		tick(&l);
	}
	r.id = l.core->step.id;
	r.world.rank[0] = (struct core_rank){.session = 1, .node = A, .weight = 1};
	lone_msg(&l, A, (struct core_msg){.op = CORE_COMMIT, .id = r.id, .record = &r});
	assert_null(lone_acted(&l, CORE_ACT_APPLY));
	lone_msg(&l, A, (struct core_msg){.op = CORE_ABORT, .id = l.core->step.id, .why = "so"});
	lone_event(&l, (struct core_event){.type = CORE_EV_DRAINED, .id = l.core->step.id});
	say_begin(&l, 2);
	staged(&l, 0, false);
	staged(&l, 1, false);
	told_ranks(&l);
	assert_false(lone_sent(&l, CORE_VOTE)->differs); /* It was about that attempt. */
	lone_deinit(&l);
}

static void say_odd(struct lone *l, struct core_id id, uint16_t from)
{
	lone_msg(l, from, (struct core_msg){.op = CORE_ODD, .id = id, .why = "it differs"});
}

static void test_told(void **state)
{
	struct core_id old = lone_id(TERM - 1, 3, 5, 1), other = lone_id(TERM, 3, 5, 1);
	struct lone l;

	(void)state;
	member(&l);
	other.generation = 2;
	say_odd(&l, old, A);
	assert_null(lone_acted(&l, CORE_ACT_ODD));
	say_odd(&l, other, A);
	assert_null(lone_acted(&l, CORE_ACT_ODD));
	say_odd(&l, lone_id(TERM, 3, 5, 1), C); /* c gives no orders. */
	assert_null(lone_acted(&l, CORE_ACT_ODD));
	say_odd(&l, lone_id(TERM, 3, 5, 1), A);
	assert_non_null(lone_acted(&l, CORE_ACT_ODD));
	assert_string_equal(lone_acted(&l, CORE_ACT_ODD)->why, "it differs");
	assert_non_null(lone_acted(&l, CORE_ACT_ENDED));
	say_odd(&l, lone_id(TERM, 3, 5, 1), A);
	assert_null(lone_acted(&l, CORE_ACT_ODD));
	lone_event(&l, (struct core_event){.type = CORE_EV_DRAINED, .id = l.core->step.id});
	say_begin(&l, 2);
	assert_null(lone_acted(&l, CORE_ACT_BEGIN));
	lone_deinit(&l);
}

/* --- who is suspected --- */

enum { NODES = 4, VALUES = 3 };

/* Do the nodes that hold the chunk agree, if one of them is left out? */
static bool agree_without(const uint8_t *value, uint64_t copies, uint16_t out)
{
	int one = -1;

	for (uint16_t n = 0; n < NODES; n++) {
		if (!(copies >> n & 1) || n == out)
			continue;
		if (one >= 0 && value[n] != one)
			return false;
		one = value[n];
	}
	return true;
}

/* All votes of four nodes for two chunks, with all sets of copies. */
static void test_suspects(void **state)
{
	static const uint8_t orders[][NODES] = {{0, 1, 2, 3}, {3, 1, 0, 2}, {2, 3, 1, 0}};
	uint32_t compared = 0;

	(void)state;
	for (uint32_t way = 0; way < 81 * 81 * 9; way++) {
		uint64_t sets[3] = {0xf, 0x7, 0xc}, holders[2] = {sets[way % 3], sets[way / 3 % 3]};
		uint16_t first[2] = {2, 2};
		struct placement p = place_of(first, holders, 2);
		uint8_t value[2][NODES];
		uint64_t suspects = 0;
		bool differ = false;
		struct odd o = {0};

		for (uint32_t i = 0, v = way / 9; i < 2 * NODES; i++, v /= VALUES)
			value[i / NODES][i % NODES] = (uint8_t)(v % VALUES);
		odd_begin(&o);
		for (uint32_t i = 0; i < NODES; i++) {
			uint16_t n = orders[way % 3][i];

			for (uint32_t c = 0; c < 2; c++) {
				struct odd_vote vote = {value[c][n], true}, head;
				uint32_t k = 0;

				if (!(holders[c] >> n & 1))
					continue;
				while (!(holders[c] >> orders[way % 3][k] & 1))
					k++;
				head = (struct odd_vote){value[c][orders[way % 3][k]], true};
				if (k < i)
					odd_vote(&o, &p, c, n, &head, &vote);
			}
			o.spoke |= 1ull << n;
		}
		for (uint32_t c = 0; c < 2; c++)
			differ = differ || !agree_without(value[c], holders[c], NODES);
		assert_int_equal(o.others != 0, differ);
		for (uint16_t n = 0; n < NODES && differ; n++) {
			bool all = true;

			for (uint32_t c = 0; c < 2; c++) {
				/* Of chunks of the same nodes one is enough. */
				bool kept = false;

				for (uint32_t i = 0; i < o.chunks_nr; i++)
					kept = kept || o.chunk[i].chunk == c;
				all = all && (!kept || agree_without(value[c], holders[c], n));
			}
			suspects |= (uint64_t)all << n;
		}
		for (uint32_t c = 0; c < 2 && holders[0] != holders[1]; c++)
			assert_true(agree_without(value[c], holders[c], NODES) ||
				    (o.chunks_nr && (o.chunk[0].chunk == c ||
						     (o.chunks_nr > 1 && o.chunk[1].chunk == c))));
		assert_int_equal(odd_suspects(&o), suspects);
		compared++;
	}
	print_message("%u sets of votes\n", compared);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_two_copies),
		cmocka_unit_test(test_three_copies),
		cmocka_unit_test(test_says_that_it_differs),
		cmocka_unit_test(test_chain),
		cmocka_unit_test(test_last_copy_stays),
		cmocka_unit_test(test_coordinator),
		cmocka_unit_test(test_learner),
		cmocka_unit_test(test_damage),
		cmocka_unit_test(test_recovery),
		cmocka_unit_test(test_follower),
		cmocka_unit_test(test_told),
		cmocka_unit_test(test_suspects),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
