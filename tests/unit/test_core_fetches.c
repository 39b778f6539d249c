/* SPDX-License-Identifier: Apache-2.0 */
/* Tests node c alone while a chunk moves to it or away from it. Nodes b and c hold the copies: b
 * both chunks, c the second one, and the first one moves to c. What does c fetch, vote for and
 * serve, and what does it keep over a warm start? */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/copies.h"
#include "core/inner.h"
#include "core/moves.h"
#include "lib/lone.h"

#include <stdlib.h>
#include <string.h>

enum { TERM = 5 };

static const uint16_t primary[2] = {B, C}, to_primary[2] = {C, C};
static const uint64_t holders[2] = {1u << B, 1u << B | 1u << C};
static const uint64_t to[2] = {1u << C, 1u << B | 1u << C};

static struct core_view view_of(uint64_t term, uint32_t seq, uint64_t step)
{
	struct record r = lone_record(term, 3, step);
	struct core_view v = lone_view(term, seq, &r);

	v.place = place_of(primary, holders, 2);
	return v;
}

/* The first chunk is on its way to c. */
static struct core_view moving_of(uint64_t term, uint32_t seq, uint64_t step)
{
	struct core_view v = view_of(term, seq, step);

	v.place = place_moving(primary, holders, to_primary, to, 2);
	v.place.moves = 1u << C;
	return v;
}

static void say_view(struct lone *l, const struct core_view *v)
{
	lone_msg(l, A,
		 (struct core_msg){
			 .op = CORE_VIEW, .id = lone_id(v->term, v->seq, 0, 0), .view = v});
}

static void member(struct lone *l)
{
	struct core_view v = view_of(TERM, 3, 4);

	lone_init(l, C, 0x7fffffff, &v);
	say_view(l, &v);
	assert_non_null(lone_acted(l, CORE_ACT_SEAL));
}

/* It fetches what is new, goes on with the rest, and votes for that. */
static void test_fetches(void **state)
{
	struct core_view v = moving_of(TERM, 4, 4);
	const uint32_t *index;
	struct core_vote vote;
	struct core_state st;
	struct lone l;

	(void)state;
	member(&l);
	assert_int_equal(l.core->votes_nr, 1);
	v.place.moves = 0; /* It counts for what it does not have. */
	v.seq = 5;
	say_view(&l, &v);
	assert_null(lone_sent(&l, CORE_VIEW_OK));
	v.place.moves = 1u << C;
	say_view(&l, &v);
	assert_non_null(lone_acted(&l, CORE_ACT_LEARN));
	assert_non_null(lone_acted(&l, CORE_ACT_PLACED));
	assert_null(lone_acted(&l, CORE_ACT_SEAL));
	assert_false(lone_sent(&l, CORE_VIEW_OK)->caught);
	index = core_at(l.core, l.core->at_index);
	assert_true(index[0] == 1 && index[1] == 0); /* The votes come first. */
	assert_int_equal(l.core->held_nr[C], 2);
	step_vote_fill(l.core, &vote);
	assert_int_equal(vote.chunks_nr, 1);
	core_state(l.core, &st);
	assert_true(st.learning);
	lone_event(&l, (struct core_event){.type = CORE_EV_LEARNED, .id = v.record.id});
	assert_true(lone_sent(&l, CORE_VIEW_OK)->caught);
	assert_int_equal(lone_sent(&l, CORE_VIEW_OK)->id.seq, 5);
	v.place.moves = 0;
	v.seq = 6;
	say_view(&l, &v);
	assert_non_null(lone_sent(&l, CORE_VIEW_OK));
	assert_false(lone_sent(&l, CORE_VIEW_OK)->caught);
	assert_null(lone_acted(&l, CORE_ACT_LEARN));
	assert_int_equal(l.core->votes_nr, 2);
	lone_deinit(&l);
}

/* It has fetched the chunk, and another view gives it one more. What it said does not hold. */
static void test_gets_more(void **state)
{
	static const uint16_t all_c[2] = {C, C}, of_b[2] = {B, B};
	static const uint64_t only_b[2] = {1u << B, 1u << B}, one[2] = {1u << B | 1u << C, 1u << B},
			      two[2] = {1u << C, 1u << C};
	struct core_view v = view_of(TERM, 3, 4);
	struct lone l;

	(void)state;
	v.place = place_of(of_b, only_b, 2);
	lone_init(&l, C, 0x7fffffff, &v);
	say_view(&l, &v);
	v.place = place_moving(of_b, only_b, of_b, one, 2);
	v.place.moves = 1u << C;
	v.seq++;
	say_view(&l, &v);
	assert_non_null(lone_acted(&l, CORE_ACT_LEARN));
	lone_event(&l, (struct core_event){.type = CORE_EV_LEARNED, .id = v.record.id});
	assert_true(lone_sent(&l, CORE_VIEW_OK)->caught);
	v.place = place_moving(of_b, only_b, all_c, two, 2);
	v.place.moves = 1u << C;
	v.seq++;
	say_view(&l, &v);
	assert_non_null(lone_acted(&l, CORE_ACT_LEARN));
	assert_false(lone_sent(&l, CORE_VIEW_OK)->caught);
	lone_deinit(&l);
}

/* A chunk is taken from it only by a view that it has adopted. */
static void test_gives_up(void **state)
{
	static const uint16_t of_b[2] = {B, B};
	static const uint64_t only_b[2] = {1u << B, 1u << B};
	struct core_view v = view_of(TERM, 4, 4);
	struct lone l;

	(void)state;
	member(&l);
	v.place = place_of(of_b, only_b, 2);
	say_view(&l, &v);
	assert_non_null(lone_acted(&l, CORE_ACT_PLACED));
	assert_non_null(lone_sent(&l, CORE_VIEW_OK));
	assert_int_equal(l.core->held_nr[C], 0);
	assert_int_equal(l.core->votes_nr, 0);
	assert_null(lone_acted(&l, CORE_ACT_LEARN));
	lone_deinit(&l);
}

/* GRANT to this node in the last event? */
static bool granted(const struct lone *l, uint16_t node)
{
	for (uint32_t i = 0; i < l->out.nr; i++) {
		const struct core_action *a = &l->out.act[i];

		if (a->type == CORE_ACT_SEND && a->msg.op == CORE_GRANT && a->msg.to == node)
			return true;
	}
	return false;
}

static void say_begin(struct lone *l, struct core_id id, const struct record *before)
{
	struct core_world w = {.size = 1};

	w.rank[0] = (struct core_rank){.session = SESSION, .node = B};
	lone_msg(l, A,
		 (struct core_msg){.op = CORE_BEGIN, .id = id, .world = &w, .record = before});
}

/* It has lent its landing slots to b and heard nothing of them since. It has none any more, so it
 * asks b for its ranks. */
static void test_gives_all_up(void **state)
{
	static const uint16_t of_b[2] = {B, B};
	static const uint64_t only_b[2] = {1u << B, 1u << B};
	struct core_view v = view_of(TERM, 4, 4);
	struct lone l;

	(void)state;
	member(&l);
	say_begin(&l, lone_id(TERM, 3, 5, 1), &v.record);
	assert_true(granted(&l, B));
	v.place = place_of(of_b, only_b, 2);
	say_view(&l, &v);
	assert_non_null(lone_acted(&l, CORE_ACT_ENDED));
	lone_event(&l, (struct core_event){.type = CORE_EV_DRAINED, .id = lone_id(TERM, 3, 5, 1)});
	say_begin(&l, lone_id(TERM, 4, 5, 2), &v.record);
	assert_non_null(lone_acted(&l, CORE_ACT_BEGIN));
	assert_true(granted(&l, B));
	lone_deinit(&l);
}

/* Views that no coordinator makes. */
static void test_impossible_views(void **state)
{
	static const uint16_t nowhere[2] = {CORE_NODES_MAX, C}, no_holder[2] = {A, C};
	struct core_view v = moving_of(TERM, 4, 4), good = v;
	struct lone l;

	(void)state;
	member(&l);
	v.place.learns = 1u << C; /* Both. */
	say_view(&l, &v);
	assert_null(lone_sent(&l, CORE_VIEW_OK));
	v = good;
	v.place.moves = 1u << 3;
	say_view(&l, &v);
	assert_null(lone_sent(&l, CORE_VIEW_OK));
	v = good;
	v.place.to = NULL; /* Nothing moves. */
	say_view(&l, &v);
	assert_null(lone_sent(&l, CORE_VIEW_OK));
	v.place.to_primary = NULL;
	say_view(&l, &v);
	assert_null(lone_sent(&l, CORE_VIEW_OK));
	v = good;
	v.place = place_moving(primary, holders, nowhere, to, 2);
	say_view(&l, &v);
	assert_null(lone_sent(&l, CORE_VIEW_OK));
	v.place = place_moving(primary, holders, no_holder, to, 2);
	say_view(&l, &v);
	assert_null(lone_sent(&l, CORE_VIEW_OK));
	say_view(&l, &good);
	assert_non_null(lone_sent(&l, CORE_VIEW_OK));
	lone_deinit(&l);
}

/* --- c starts again with its memory --- */

/* The process of c ends, and the next one takes its state, if the shell says that chunks lie as in
 * this placement. False: it is refused. */
static bool again(struct lone *l, const struct placement *p)
{
	struct core_conf conf = lone_conf(C, 0x7fffffff);
	void *saved = aligned_alloc(64, core_warm_bytes(&conf));
	struct core_warm_view is;
	bool took;

	assert_non_null(saved);
	memset(saved, 0, core_warm_bytes(&conf));
	assert_true(core_warm_save(l->core, saved));
	assert_true(core_warm_view(saved, core_warm_bytes(&conf), &is));
	assert_int_equal(is.place, l->core->member.place.sum);
	conf.place = *p;
	conf.place.moves = 0;
	memset(l->core, 0, core_bytes(&conf));
	took = core_init(l->core, &conf, NULL, saved) != NULL;
	free(saved);
	if (took)
		lone_event(l, (struct core_event){.type = CORE_EV_WARM});
	return took;
}

static void test_warm(void **state)
{
	static const uint64_t another[2] = {1u << B | 1u << C, 1u << C};
	struct core_view v = moving_of(TERM, 4, 4);
	struct lone l;

	(void)state;
	member(&l);
	say_view(&l, &v);
	assert_true(again(&l, &v.place)); /* What it held counts on, the rest is fetched. */
	assert_non_null(lone_acted(&l, CORE_ACT_SEAL));
	assert_non_null(lone_acted(&l, CORE_ACT_LEARN));
	assert_non_null(lone_acted(&l, CORE_ACT_PLACED));
	assert_int_equal(l.core->member.place.moves, 1u << C);
	assert_int_equal(l.core->votes_nr, 1);
	lone_event(&l, (struct core_event){.type = CORE_EV_LEARNED, .id = v.record.id});
	assert_true(again(&l, &v.place)); /* It said that it has all, and may count by now. */
	assert_null(lone_acted(&l, CORE_ACT_LEARN));
	assert_true(l.core->step.caught);
	v.place = place_moving(primary, holders, to_primary, another, 2);
	assert_false(again(&l, &v.place)); /* It has as many chunks by these tables. */
	lone_deinit(&l);
}

/* That it has all is saved before anybody hears of it. */
static void test_warm_saves_first(void **state)
{
	struct core_view v = moving_of(TERM, 4, 4);
	struct core_conf conf = lone_conf(C, 0x7fffffff);
	void *saved = aligned_alloc(64, core_warm_bytes(&conf));
	struct lone l;

	(void)state;
	assert_non_null(saved);
	member(&l);
	say_view(&l, &v);
	assert_true(core_warm_save(l.core, saved));
	lone_event(&l, (struct core_event){.type = CORE_EV_LEARNED, .id = v.record.id});
	assert_true(core_warm_save(l.core, saved));
	free(saved);
	lone_deinit(&l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_fetches),          cmocka_unit_test(test_gets_more),
		cmocka_unit_test(test_gives_up),         cmocka_unit_test(test_gives_all_up),
		cmocka_unit_test(test_impossible_views), cmocka_unit_test(test_warm),
		cmocka_unit_test(test_warm_saves_first),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
