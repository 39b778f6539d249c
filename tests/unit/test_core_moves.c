/* SPDX-License-Identifier: Apache-2.0 */
/* Tests one core alone while chunks move. Nodes b and c hold the copies: b both chunks, c the
 * second one. The first chunk moves from b to c. Node a coordinates: when a move begins, who counts
 * when, and when b may give its copy up. What c does is in test_core_fetches.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/copies.h"
#include "core/inner.h"
#include "core/moves.h"
#include "lib/lone.h"

#include <string.h>

enum { LOST_NS = 1000000000, TERM = 5, NOW = 9 };

static const uint16_t primary[2] = {B, C}, to_primary[2] = {C, C}, b_alone[2] = {B, B};
static const uint64_t holders[2] = {1u << B, 1u << B | 1u << C};
static const uint64_t to[2] = {1u << C, 1u << B | 1u << C};
/* Another place to go: the first chunk to a, too. */
static const uint64_t other[2] = {1u << A | 1u << B, 1u << B | 1u << C};

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

/* --- a coordinates --- */

static void tick(struct lone *l, uint64_t later)
{
	l->now += later;
	lone_event(l, (struct core_event){.type = CORE_EV_TICK});
}

static const struct core_view *persists(struct lone *l)
{
	const struct core_action *a = lone_acted(l, CORE_ACT_PERSIST);

	if (!a && core_deadline(l->core) <= l->now) { /* At once, but in another call. */
		tick(l, 0);
		a = lone_acted(l, CORE_ACT_PERSIST);
	}
	return a ? a->view : NULL;
}

static void answer(struct lone *l, uint16_t node, uint64_t step)
{
	struct core_answer a = {.incarnation = lone_incarnation(node),
				.term = TERM,
				.seq = 3,
				.generation = 1,
				.has_record = true,
				.record = lone_record(TERM, 3, step)};

	lone_msg(l, node, (struct core_msg){.op = CORE_ANSWER, .id = {.term = NOW}, .answer = &a});
}

static void view_ok_from(struct lone *l, uint16_t node, bool caught, uint64_t incarnation)
{
	struct core_id id = {.term = NOW, .seq = l->core->coord.view.seq, .generation = 1};

	lone_msg(l, node,
		 (struct core_msg){.op = CORE_VIEW_OK,
				   .from_incarnation = incarnation,
				   .id = id,
				   .caught = caught});
}

static void view_ok(struct lone *l, uint16_t node, bool caught)
{
	view_ok_from(l, node, caught, 0);
}

static void adopted(struct lone *l) /* The view is durable, and all adopt it. */
{
	lone_event(l, (struct core_event){.type = CORE_EV_PERSISTED});
	view_ok(l, B, false);
	view_ok(l, C, false);
	assert_true(l->core->coord.state == COORD_OPEN || lone_acted(l, CORE_ACT_PERSIST));
}

/* a has started again in term 9, and the view on its disk is open. */
static void recovered(struct lone *l, const struct core_view *disk)
{
	lone_init(l, A, NOW, disk);
	l->core->conf.heartbeat_timeout_ns = LOST_NS / 2;
	tick(l, 0);
	answer(l, B, 4);
	answer(l, C, 4);
	assert_non_null(persists(l));
	adopted(l);
}

static void opened(struct lone *l)
{
	struct core_view v = view_of(TERM, 3, 4);

	recovered(l, &v);
}

static void move_to(struct lone *l, const uint16_t *first, const uint64_t *all)
{
	static uint64_t room[2];
	struct placement p = place_of(first, all, 2);

	lone_event(l, (struct core_event){.type = CORE_EV_PLACE, .to = &p, .room = room});
}

static void done(struct lone *l, uint16_t node, bool caught)
{
	lone_msg(
		l, node,
		(struct core_msg){.op = CORE_DONE, .id = l->core->coord.last.id, .caught = caught});
}

/* Each of the two has this many copies that count. */
static void vote(struct lone *l, uint16_t node, uint32_t nr)
{
	double sumsq[2] = {1, 1}, weights[1] = {1};
	uint8_t finite[2] = {1, 1};

	lone_msg(l, node,
		 (struct core_msg){.op = CORE_VOTE,
				   .id = l->core->coord.id,
				   .vote = {.sumsq = sumsq,
					    .finite = finite,
					    .chunks_nr = nr,
					    .weights = weights,
					    .ranks_nr = 1,
					    .bad_tensor = -1,
					    .bad_rank = -1}});
}

static void begin(struct lone *l) /* The trainer at b joins, if it has not. */
{
	lone_msg(l, B,
		 (struct core_msg){.op = CORE_JOIN,
				   .id = {.term = NOW},
				   .trainer = {.session = SESSION, .pid = 1, .hint = -1}});
	if (!l->core->coord.undecided)
		tick(l, 0);
	assert_true(l->core->coord.undecided);
}

static void commit(struct lone *l, uint32_t of_b, uint32_t of_c)
{
	double weights[1] = {1};
	uint64_t step = l->core->coord.last.id.step;

	lone_msg(l, B,
		 (struct core_msg){.op = CORE_RANKS,
				   .id = l->core->coord.id,
				   .vote = {.weights = weights,
					    .ranks_nr = 1,
					    .bad_tensor = -1,
					    .bad_rank = -1}});
	vote(l, B, of_b);
	vote(l, C, of_c);
	assert_int_equal(l->core->coord.last.id.step, step + 1);
	lone_event(l, (struct core_event){.type = CORE_EV_APPLIED});
}

/* The model is open, and the first view of the move is adopted. */
static void moving(struct lone *l)
{
	opened(l);
	move_to(l, to_primary, to);
	assert_non_null(persists(l));
	adopted(l);
}

/* A trainer that leaves, so that no further step follows. */
static void leave(struct lone *l)
{
	lone_msg(l, B,
		 (struct core_msg){.op = CORE_GONE,
				   .id = {.term = NOW},
				   .trainer = {.session = SESSION, .pid = 1, .hint = -1}});
}

/* The first view has both tables. Nobody gains or loses a copy that counts by it. */
static void test_begins(void **state)
{
	const struct core_view *v;
	struct lone l;

	(void)state;
	opened(&l);
	move_to(&l, to_primary, to);
	v = persists(&l);
	assert_non_null(v);
	assert_true(v->place.to == to && v->place.holders == holders);
	assert_int_equal(v->place.moves, 1u << C);
	assert_int_equal(v->place.learns, 0);
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(place_copies(&v->place, i), holders[i]);
	assert_int_equal(place_keepers(&v->place, 0), 1u << B | 1u << C);
	assert_int_equal(place_primary(&v->place, 0), B);
	assert_int_equal(place_followers(&v->place, 0), 1u << C);
	assert_int_equal(l.core->coord.held_nr[C], 2);
	assert_int_equal(l.core->coord.votes_nr[C], 1);
	assert_int_not_equal(v->place.sum, place_of(primary, holders, 2).sum);
	lone_deinit(&l);
}

/* C1: a boundary first. No attempt is open, and all have said DONE. No other attempt begins. */
static void test_waits_for_a_boundary(void **state)
{
	struct core_state st;
	struct lone l;

	(void)state;
	opened(&l);
	begin(&l);
	move_to(&l, to_primary, to);
	assert_null(persists(&l));
	core_state(l.core, &st);
	assert_non_null(strstr(st.moves, "the step in hand"));
	commit(&l, 2, 1);
	assert_false(l.core->coord.undecided);
	done(&l, B, false);
	assert_null(persists(&l)); /* c still applies it. */
	assert_false(l.core->coord.undecided);
	done(&l, C, false);
	assert_non_null(persists(&l));
	assert_true(persists(&l)->place.to == to);
	assert_int_equal(persists(&l)->record.id.step, 5);
	lone_deinit(&l);
}

/* C5: the copies of c count from a view on that follows its report of the last record in this very
 * view. Until then a vote of c is for one chunk. */
static void test_counts_when_caught(void **state)
{
	struct core_id old = {.term = NOW, .generation = 1};
	struct lone l;

	(void)state;
	moving(&l);
	done(&l, C, true); /* Of the record with which the view began. It may be an old one. */
	assert_null(persists(&l));
	old.seq = l.core->coord.view.seq - 1;
	lone_msg(&l, C, (struct core_msg){.op = CORE_VIEW_OK, .id = old, .caught = true});
	assert_null(persists(&l));
	begin(&l);
	commit(&l, 2, 1);
	leave(&l);
	done(&l, B, false);
	done(&l, C, true);
	assert_non_null(persists(&l));
	assert_int_equal(persists(&l)->place.moves, 0);
	assert_true(persists(&l)->place.to == to);
	assert_int_equal(place_copies(&persists(&l)->place, 0), 1u << B | 1u << C);
	lone_deinit(&l);
}

/* A report that is about the view's own record comes with VIEW_OK. */
static void caught_up(struct lone *l)
{
	opened(l);
	move_to(l, to_primary, to);
	assert_non_null(persists(l));
	adopted(l);
	view_ok(l, C, true);
	assert_non_null(persists(l));
	assert_int_equal(persists(l)->place.moves, 0);
	adopted(l);
}

/* C6: b gives its copy up when c has voted for its own in a step of the view in which it counts. */
static void test_ends_after_a_step(void **state)
{
	const struct core_view *v;
	struct core_state st;
	struct lone l;

	(void)state;
	caught_up(&l);
	assert_null(persists(&l));
	core_state(l.core, &st);
	assert_string_equal(st.moves, "the next step, for which trainers are missing");
	begin(&l);
	assert_null(persists(&l));
	commit(&l, 2, 2);
	done(&l, B, false);
	assert_null(persists(&l));
	done(&l, C, false);
	v = persists(&l);
	assert_non_null(v);
	assert_null(v->place.to);
	assert_true(v->place.holders == to && v->place.primary == to_primary);
	assert_int_equal(v->place.sum, place_of(to_primary, to, 2).sum);
	assert_int_equal(l.core->coord.held_nr[B], 1);
	lone_event(&l, (struct core_event){.type = CORE_EV_PERSISTED});
	view_ok(&l, B, false);
	assert_null(lone_acted(&l, CORE_ACT_MOVED)); /* Not before all know. */
	view_ok(&l, C, false);
	assert_non_null(lone_acted(&l, CORE_ACT_MOVED));
	core_state(l.core, &st);
	assert_string_equal(st.moves, "");
	lone_deinit(&l);
}

/* The view ends no move while c is away. When c is back without its memory, it learns all anew. */
static void test_new_holder_is_lost(void **state)
{
	struct core_state st;
	struct lone l;

	(void)state;
	caught_up(&l);
	begin(&l);
	commit(&l, 2, 2);
	leave(&l);
	done(&l, B, false);
	lone_event(&l, (struct core_event){.type = CORE_EV_LINK_DOWN, .node = C, .why = "cut"});
	assert_null(persists(&l)); /* c has not said DONE, and b may be gone, too. */
	lone_msg(&l, B,
		 (struct core_msg){.op = CORE_HEARD,
				   .id = {.term = NOW, .step = l.core->coord.hear}});
	assert_non_null(persists(&l));
	assert_true(persists(&l)->place.to == to);
	assert_int_equal(persists(&l)->members.nodes, 1u << A | 1u << B);
	assert_int_equal(place_copies(&persists(&l)->place, 0), 1u << B);
	lone_event(&l, (struct core_event){.type = CORE_EV_PERSISTED});
	view_ok(&l, B, false);
	assert_null(persists(&l));
	core_state(l.core, &st);
	assert_string_equal(st.moves, "node c, which is no member, for chunk 0");
	lone_event(&l, (struct core_event){.type = CORE_EV_LINK_UP,
					   .node = C,
					   .who = {.uuid = {'n', 1 + C}, .incarnation = 777}});
	assert_non_null(persists(&l));
	assert_int_equal(persists(&l)->place.learns, 1u << C);
	assert_int_equal(persists(&l)->place.moves, 0);
	assert_true(persists(&l)->place.to == to);
	lone_deinit(&l);
}

/* C6: c has voted and said DONE, and its link breaks. b may be the only one by now. */
static void test_new_holder_is_away(void **state)
{
	struct core_state st;
	struct lone l;

	(void)state;
	caught_up(&l);
	begin(&l);
	commit(&l, 2, 2);
	leave(&l);
	done(&l, C, false);
	lone_event(&l, (struct core_event){.type = CORE_EV_LINK_DOWN, .node = C, .why = "cut"});
	done(&l, B, false);
	assert_null(persists(&l));
	core_state(l.core, &st);
	assert_string_equal(st.moves, "node c, which has no link, for chunk 0");
	lone_deinit(&l);
}

/* c starts again while it fetches. Its other copy does not count any more either. */
static void test_restarts_while_it_fetches(void **state)
{
	struct lone l;

	(void)state;
	moving(&l);
	lone_event(&l, (struct core_event){.type = CORE_EV_LINK_UP,
					   .node = C,
					   .who = {.uuid = {'n', 1 + C}, .incarnation = 777}});
	assert_non_null(persists(&l));
	assert_int_equal(persists(&l)->place.learns, 1u << C);
	assert_int_equal(persists(&l)->place.moves, 0);
	assert_int_equal(place_copies(&persists(&l)->place, 0), 1u << B);
	assert_int_equal(place_copies(&persists(&l)->place, 1), 1u << B);
	lone_event(&l, (struct core_event){.type = CORE_EV_PERSISTED});
	view_ok(&l, B, false);
	view_ok_from(&l, C, true, 777); /* It has all of them. */
	assert_non_null(persists(&l));
	assert_int_equal(place_copies(&persists(&l)->place, 0), 1u << B | 1u << C);
	assert_int_equal(place_copies(&persists(&l)->place, 1), 1u << B | 1u << C);
	lone_deinit(&l);
}

/* The table from which the move began is given again. Nobody gives up what counts, so no step has
 * to be waited for. */
static void test_is_called_back(void **state)
{
	struct lone l;

	(void)state;
	moving(&l);
	move_to(&l, primary, holders);
	assert_non_null(persists(&l));
	assert_int_equal(persists(&l)->place.moves, 0);
	assert_int_equal(place_keepers(&persists(&l)->place, 0), 1u << B);
	adopted(&l);
	assert_non_null(persists(&l));
	assert_null(persists(&l)->place.to);
	assert_int_equal(persists(&l)->place.sum, place_of(primary, holders, 2).sum);
	adopted(&l);
	assert_non_null(lone_acted(&l, CORE_ACT_MOVED));
	lone_deinit(&l);
}

/* The copy of c counts by now. It is kept until the holders of the table before have voted. */
static void test_is_called_back_late(void **state)
{
	const struct core_view *v;
	struct lone l;

	(void)state;
	caught_up(&l);
	move_to(&l, primary, holders);
	v = persists(&l);
	assert_non_null(v);
	assert_int_equal(place_copies(&v->place, 0), 1u << B | 1u << C);
	assert_int_equal(v->place.holders[0], 1u << B | 1u << C);
	adopted(&l);
	assert_null(persists(&l));
	begin(&l);
	commit(&l, 2, 2);
	done(&l, B, false);
	done(&l, C, false);
	assert_non_null(persists(&l));
	assert_null(persists(&l)->place.to);
	assert_int_equal(place_copies(&persists(&l)->place, 0), 1u << B);
	lone_deinit(&l);
}

/* Another table takes the place of one that nobody has copied anything for. */
static void test_is_replaced(void **state)
{
	struct lone l;

	(void)state;
	moving(&l);
	move_to(&l, b_alone, other);
	assert_non_null(persists(&l));
	assert_int_equal(persists(&l)->place.moves, 1u << A);
	assert_int_equal(place_keepers(&persists(&l)->place, 0), 1u << A | 1u << B);
	assert_int_equal(place_copies(&persists(&l)->place, 0), 1u << B);
	lone_deinit(&l);
}

/* A new coordinator reads the view, and the move goes on. */
static void test_takeover(void **state)
{
	struct core_view v = moving_of(TERM, 3, 4);
	struct lone l;

	(void)state;
	recovered(&l, &v);
	assert_int_equal(l.core->coord.view.place.moves, 1u << C);
	assert_true(l.core->coord.view.place.to == to);
	view_ok(&l, C, true);
	assert_non_null(persists(&l));
	assert_int_equal(persists(&l)->place.moves, 0);
	lone_deinit(&l);
	/* It knows no votes of the view that it has read. */
	v.place.moves = 0;
	v.record = lone_record(TERM, 3, 6);
	lone_init(&l, A, NOW, &v);
	tick(&l, 0);
	answer(&l, B, 6);
	answer(&l, C, 6);
	assert_non_null(persists(&l));
	assert_true(persists(&l)->place.to == to);
	adopted(&l);
	assert_null(persists(&l));
	assert_true(l.core->coord.view.place.to == to);
	lone_deinit(&l);
}

/* The only copy of the first chunk is lost. The weights are written anew by everybody who has
 * memory, and the move goes on with all copies. */
static void test_lost(void **state)
{
	const struct core_view *v;
	struct lone l;

	(void)state;
	moving(&l);
	lone_event(&l, (struct core_event){.type = CORE_EV_LINK_UP,
					   .node = B,
					   .who = {.uuid = {'n', 1 + B}, .incarnation = 777}});
	v = persists(&l);
	assert_non_null(v);
	assert_true(!v->sealed && v->generation == 2);
	assert_int_equal(v->place.moves | v->place.learns, 0);
	assert_true(v->place.to == to);
	assert_int_equal(place_copies(&v->place, 0), 1u << B | 1u << C);
	lone_deinit(&l);
}

/* A save reads the copies where they lie. */
static void test_hold(void **state)
{
	struct core_state st;
	struct lone l;

	(void)state;
	opened(&l);
	lone_event(&l, (struct core_event){.type = CORE_EV_HOLD, .on = true});
	move_to(&l, to_primary, to);
	assert_null(persists(&l));
	core_state(l.core, &st);
	assert_non_null(strstr(st.moves, "checkpoint"));
	lone_event(&l, (struct core_event){.type = CORE_EV_HOLD});
	assert_non_null(persists(&l));
	lone_deinit(&l);
}

/* A model with one copy of each chunk moves, too. */
static void test_single_copies(void **state)
{
	static const uint64_t single[2] = {1u << C, 1u << C};
	struct record r = lone_record(TERM, 3, 4);
	struct core_view v = lone_view(TERM, 3, &r);
	struct lone l;

	(void)state;
	recovered(&l, &v);
	move_to(&l, to_primary, single);
	assert_non_null(persists(&l));
	assert_int_equal(persists(&l)->place.moves, 1u << C);
	assert_int_equal(place_copies(&persists(&l)->place, 0), 1u << B);
	assert_int_equal(place_copies(&persists(&l)->place, 1), 1u << C);
	lone_deinit(&l);
}

/* The shell may free a table that no placement names which the core keeps. */
static void test_names(void **state)
{
	static const uint64_t *const tables[] = {holders, to, other};
	static uint64_t room[2];
	struct core_view v = moving_of(TERM, 3, 4);
	struct core_event e = {.type = CORE_EV_PLACE, .room = room};
	struct placement want = place_of(b_alone, other, 2);
	struct lone l;

	(void)state;
	recovered(&l, &v); /* Its first tables are those of the view, and do not move. */
	assert_true(core_names(l.core, primary) && core_names(l.core, holders));
	assert_true(core_names(l.core, to_primary) && core_names(l.core, to));
	assert_false(core_names(l.core, other) || core_names(l.core, room));
	assert_ptr_equal(core_newest_place(l.core), &l.core->coord.view.place);
	e.to = &want;
	lone_event(&l, e);
	assert_true(core_names(l.core, other) && core_names(l.core, room));
	for (size_t i = 0; i < NR(tables); i++) { /* Each of the placements alone. */
		struct placement *const in[] = {
			&l.core->conf.place,          &l.core->member.place,
			&l.core->member.next.place,   &l.core->coord.view.place,
			&l.core->coord.durable.place, &l.core->coord.to};

		for (size_t k = 0; k < NR(in); k++)
			*in[k] = (struct placement){.primary = b_alone};
		assert_false(core_names(l.core, tables[i]));
		for (size_t k = 0; k < NR(in); k++) {
			in[k]->holders = tables[i];
			assert_true(core_names(l.core, tables[i]));
			in[k]->holders = NULL;
			in[k]->to = tables[i];
			assert_true(core_names(l.core, tables[i]));
			in[k]->to = NULL;
		}
	}
	lone_deinit(&l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_begins),
		cmocka_unit_test(test_waits_for_a_boundary),
		cmocka_unit_test(test_counts_when_caught),
		cmocka_unit_test(test_ends_after_a_step),
		cmocka_unit_test(test_new_holder_is_lost),
		cmocka_unit_test(test_new_holder_is_away),
		cmocka_unit_test(test_restarts_while_it_fetches),
		cmocka_unit_test(test_is_called_back),
		cmocka_unit_test(test_is_called_back_late),
		cmocka_unit_test(test_is_replaced),
		cmocka_unit_test(test_takeover),
		cmocka_unit_test(test_lost),
		cmocka_unit_test(test_hold),
		cmocka_unit_test(test_single_copies),
		cmocka_unit_test(test_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
