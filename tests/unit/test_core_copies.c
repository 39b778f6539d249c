/* SPDX-License-Identifier: Apache-2.0 */
/* Tests one core alone with two copies of each chunk, on b and on c. Node a coordinates and holds
 * none. As the coordinator: who leaves the view and when, who comes back, when copies count. As a
 * member: what it does with a view in which its copies do not count. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/inner.h"
#include "lib/lone.h"

#include <math.h>
#include <string.h>

enum { LOST_NS = 1000000000, TERM = 5 };

static const uint16_t primary[2] = {B, C};
static const uint64_t both[2] = {1u << B | 1u << C, 1u << B | 1u << C};

/* Sealed at step 4, as an earlier start of a left it. */
static struct core_view view_of(uint64_t term, uint32_t seq, uint64_t step)
{
	struct record r = lone_record(term, seq, step);
	struct core_view v = lone_view(term, seq, &r);

	v.place = place_of(primary, both, 2);
	return v;
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

static void view_ok(struct lone *l, uint16_t node, bool caught)
{
	struct core_id id = {.term = 9, .seq = l->core->coord.view.seq, .generation = 1};

	lone_msg(l, node, (struct core_msg){.op = CORE_VIEW_OK, .id = id, .caught = caught});
}

static void tick(struct lone *l, uint64_t later)
{
	l->now += later;
	lone_event(l, (struct core_event){.type = CORE_EV_TICK});
}

/* a started again in term 9. */
static void recovering(struct lone *l)
{
	static struct core_view v;

	v = view_of(TERM, 3, 4);
	lone_init(l, A, 9, &v);
	l->core->conf.heartbeat_timeout_ns = LOST_NS / 2;
	tick(l, 0);
	assert_non_null(lone_sent(l, CORE_ASK));
}

static void persisted(struct lone *l)
{
	lone_event(l, (struct core_event){.type = CORE_EV_PERSISTED});
}

/* All are there, and the view is open. */
static void opened(struct lone *l)
{
	recovering(l);
	answer(l, B);
	answer(l, C);
	assert_non_null(lone_acted(l, CORE_ACT_PERSIST));
	persisted(l);
	view_ok(l, B, false);
	view_ok(l, C, false);
	assert_int_equal(l->core->coord.state, COORD_OPEN);
}

static void down(struct lone *l, uint16_t node)
{
	lone_event(l,
		   (struct core_event){.type = CORE_EV_LINK_DOWN, .node = node, .why = "it broke"});
}

static void up(struct lone *l, uint16_t node, uint64_t incarnation)
{
	struct view_node who = lone_who(node);

	who.incarnation = incarnation;
	lone_event(l, (struct core_event){.type = CORE_EV_LINK_UP, .node = node, .who = who});
}

static void heard(struct lone *l, uint16_t node, uint64_t question)
{
	lone_msg(l, node, (struct core_msg){.op = CORE_HEARD, .id = {.term = 9, .step = question}});
}

static const struct core_view *persists(const struct lone *l)
{
	const struct core_action *a = lone_acted(l, CORE_ACT_PERSIST);

	return a ? a->view : NULL;
}

/* A member that is missed leaves when the other holder has answered after that. */
static void test_leaves(void **state)
{
	const struct core_view *v;
	struct lone l;

	(void)state;
	opened(&l);
	down(&l, C);
	assert_non_null(lone_sent(&l, CORE_HEAR));
	assert_int_equal(lone_sent(&l, CORE_HEAR)->to, B);
	assert_null(persists(&l));
	heard(&l, B, l.core->coord.hear - 1); /* The answer to an earlier question. */
	assert_null(persists(&l));
	heard(&l, B, l.core->coord.hear);
	v = persists(&l);
	assert_non_null(v);
	assert_int_equal(v->members.nodes, 1u << A | 1u << B);
	assert_int_equal(v->place.gone, ~v->members.nodes);
	assert_int_equal(place_primary(&v->place, 1), B);
	assert_true(v->sealed && v->generation == 1);
	persisted(&l);
	view_ok(&l, B, false);
	assert_int_equal(l.core->coord.state, COORD_OPEN);
	lone_deinit(&l);
}

/* The death of the other holder is noticed before it has answered. Nobody leaves. Its chunks are
 * lost when both have been away for long enough. */
static void test_last_holder_is_waited_for(void **state)
{
	struct lone l;

	(void)state;
	opened(&l);
	down(&l, C);
	tick(&l, LOST_NS / 2);
	down(&l, B);
	assert_null(persists(&l));
	tick(&l, LOST_NS / 2); /* c has been away for too long, but b may come back. */
	assert_null(persists(&l));
	assert_true(core_deadline(l.core) > l.now); /* Nothing is due meanwhile. */
	tick(&l, LOST_NS / 2);
	assert_non_null(persists(&l));
	assert_true(!persists(&l)->sealed && persists(&l)->generation == 2);
	assert_non_null(strstr(lone_acted(&l, CORE_ACT_PERSIST)->why, "no other node has a copy"));
	lone_deinit(&l);
}

/* The other holder comes back in time, and then c leaves. */
static void test_last_holder_comes_back(void **state)
{
	struct lone l;

	(void)state;
	opened(&l);
	down(&l, C);
	down(&l, B);
	up(&l, B, lone_incarnation(B));
	assert_null(persists(&l)); /* It has not answered yet. */
	assert_non_null(lone_sent(&l, CORE_HEAR));
	heard(&l, B, l.core->coord.hear);
	assert_non_null(persists(&l));
	assert_int_equal(persists(&l)->members.nodes, 1u << A | 1u << B);
	lone_deinit(&l);
}

/* Nobody had a view of the model yet when its first coordinator was gone. The next one waits for a
 * member that does not come back for lost_timeout, and then the weights may be written. */
static void test_no_first_view(void **state)
{
	struct core_answer none = {.incarnation = lone_incarnation(B)};
	struct lone l;

	(void)state;
	lone_first(&l, A, 9, place_of(primary, both, 2));
	tick(&l, 0);
	down(&l, C);
	lone_msg(&l, B, (struct core_msg){.op = CORE_ANSWER, .id = {.term = 9}, .answer = &none});
	tick(&l, LOST_NS / 2);
	assert_null(persists(&l));
	tick(&l, LOST_NS / 2);
	assert_non_null(persists(&l));
	assert_int_equal(persists(&l)->members.nodes, 1u << A | 1u << B);
	assert_int_equal(persists(&l)->place.gone, ~persists(&l)->members.nodes);
	assert_false(persists(&l)->sealed);
	lone_deinit(&l);
}

/* c starts again without its memory. The view goes on with it, and its copies count from the view
 * on that follows its report of the last record in that view. */
static void test_restarts(void **state)
{
	struct core_id last = lone_id(TERM, 3, 4, 0), in = {.generation = 1};
	struct lone l;

	(void)state;
	opened(&l);
	up(&l, C, 202);
	assert_non_null(persists(&l));
	assert_int_equal(persists(&l)->members.nodes, 7);
	assert_int_equal(persists(&l)->place.learns, 1u << C);
	persisted(&l);
	view_ok(&l, B, false);
	lone_msg(&l, C,
		 (struct core_msg){
			 .op = CORE_VIEW_OK,
			 .from_incarnation = 202,
			 .id = {.term = 9, .seq = l.core->coord.view.seq, .generation = 1}});
	assert_int_equal(l.core->coord.state, COORD_OPEN);
	assert_null(persists(&l));
	last.step = 3; /* Of an older record. */
	lone_msg(&l, C,
		 (struct core_msg){
			 .op = CORE_DONE, .from_incarnation = 202, .id = last, .caught = true});
	assert_null(persists(&l));
	last.step = 4; /* It may have been sent in an older view. */
	lone_msg(&l, C,
		 (struct core_msg){
			 .op = CORE_DONE, .from_incarnation = 202, .id = last, .caught = true});
	assert_null(persists(&l));
	in.term = 9;
	in.seq = l.core->coord.view.seq - 1;
	lone_msg(&l, C,
		 (struct core_msg){
			 .op = CORE_VIEW_OK, .from_incarnation = 202, .id = in, .caught = true});
	assert_null(persists(&l));
	in.seq++;
	lone_msg(&l, C,
		 (struct core_msg){
			 .op = CORE_VIEW_OK, .from_incarnation = 202, .id = in, .caught = true});
	assert_non_null(persists(&l));
	assert_int_equal(persists(&l)->place.learns, 0);
	lone_deinit(&l);
}

/* c says that it has adopted the view, and whether its copies are complete. */
static void adopted(struct lone *l, bool caught)
{
	lone_msg(l, C,
		 (struct core_msg){
			 .op = CORE_VIEW_OK,
			 .from_incarnation = 202,
			 .id = {.term = 9, .seq = l->core->coord.view.seq, .generation = 1},
			 .caught = caught});
}

/* c has come back without its memory, and fetches its copies. */
static void learns(struct lone *l)
{
	opened(l);
	up(l, C, 202);
	persisted(l);
	view_ok(l, B, false);
}

static void counts(struct lone *l)
{
	assert_non_null(persists(l));
	assert_int_equal(persists(l)->place.learns, 0);
	lone_deinit(l);
}

/* While a model is saved no copy begins to count, because then another node may be the primary of a
 * chunk, which is who saves it. */
static void test_not_in_a_save(void **state)
{
	struct lone l;

	(void)state;
	learns(&l);
	adopted(&l, false);
	lone_event(&l, (struct core_event){.type = CORE_EV_HOLD, .on = true});
	assert_non_null(lone_acted(&l, CORE_ACT_HELD));
	adopted(&l, true);
	assert_null(persists(&l));
	lone_event(&l, (struct core_event){.type = CORE_EV_HOLD});
	counts(&l);
}

/* As long as no view can be made durable, steps go on in the one that there is, and a copy that is
 * complete counts later. */
static void test_not_in_a_new_view(void **state)
{
	struct lone l;

	(void)state;
	learns(&l);
	lone_event(&l, (struct core_event){.type = CORE_EV_KEEP_VIEW, .on = true});
	adopted(&l, false);
	adopted(&l, true);
	assert_int_equal(l.core->coord.state, COORD_OPEN);
	assert_null(persists(&l));
	assert_false(recover_boundary(l.core));
	lone_event(&l, (struct core_event){.type = CORE_EV_KEEP_VIEW});
	counts(&l);
}

/* c was put out although it lived. It comes back with its memory, at the boundary. */
static void test_comes_back(void **state)
{
	struct lone l;

	(void)state;
	opened(&l);
	down(&l, C);
	heard(&l, B, l.core->coord.hear);
	persisted(&l);
	up(&l, C, lone_incarnation(C));
	assert_null(persists(&l)); /* The view before is not adopted. */
	view_ok(&l, B, false);
	if (persists(&l) == NULL) /* It is taken in at once, but in another call. */
		tick(&l, 0);
	assert_non_null(persists(&l));
	assert_int_equal(persists(&l)->members.nodes, 7);
	assert_int_equal(persists(&l)->place.learns, 1u << C);
	persisted(&l);
	view_ok(&l, B, false);
	view_ok(&l, C, true);
	if (persists(&l) == NULL)
		tick(&l, 0);
	assert_non_null(persists(&l));
	assert_int_equal(persists(&l)->place.learns, 0);
	lone_deinit(&l);
}

/* A new coordinator goes on without a member whose link broke, at once, and without one that it has
 * never seen after heartbeat_timeout. The other holder has answered after it was missed. */
static void test_recovers_without(void **state)
{
	struct core_view v = view_of(TERM, 3, 4);
	struct lone l;

	(void)state;
	recovering(&l);
	answer(&l, B);
	assert_null(persists(&l));
	down(&l, C);
	assert_null(persists(&l)); /* b may have gone before. */
	heard(&l, B, 1);
	assert_non_null(persists(&l));
	assert_int_equal(persists(&l)->members.nodes, 1u << A | 1u << B);
	lone_deinit(&l);
	recovering(&l);
	down(&l, C);
	l.core->link[C].known = false;
	answer(&l, B);
	heard(&l, B, 1);
	tick(&l, LOST_NS / 4);
	assert_null(persists(&l));
	tick(&l, LOST_NS / 2);
	assert_non_null(persists(&l));
	lone_deinit(&l);
	/* b answered and is gone. Its copies do not excuse that c is left out. */
	recovering(&l);
	answer(&l, B);
	down(&l, C);
	l.core->link[C].known = false;
	down(&l, B);
	tick(&l, LOST_NS / 4 * 3);
	assert_null(persists(&l));
	lone_deinit(&l);
	/* c catches up, so b has the only copies. */
	v.place.learns = 1u << C;
	lone_init(&l, A, 9, &v);
	tick(&l, 0);
	answer(&l, C);
	down(&l, B);
	assert_null(persists(&l));
	tick(&l, 2ull * LOST_NS);
	assert_non_null(persists(&l));
	assert_false(persists(&l)->sealed);
	lone_deinit(&l);
}

/* The votes for two copies are the same, or the attempt ends. */
static void vote(struct lone *l, uint16_t node, double second)
{
	double sumsq[2] = {1, second}, weights[1] = {1};
	uint8_t finite[2] = {1, 1};

	lone_msg(l, node,
		 (struct core_msg){.op = CORE_VOTE,
				   .id = l->core->coord.id,
				   .vote = {.sumsq = sumsq,
					    .finite = finite,
					    .chunks_nr = 2,
					    .weights = weights,
					    .ranks_nr = 1,
					    .bad_tensor = -1,
					    .bad_rank = -1}});
}

static void ranks(struct lone *l)
{
	double weights[1] = {1};

	lone_msg(l, B,
		 (struct core_msg){.op = CORE_RANKS,
				   .id = l->core->coord.id,
				   .vote = {.weights = weights,
					    .ranks_nr = 1,
					    .bad_tensor = -1,
					    .bad_rank = -1}});
}

static void join(struct lone *l)
{
	lone_msg(l, B,
		 (struct core_msg){.op = CORE_JOIN,
				   .id = {.term = 9},
				   .trainer = {.session = SESSION, .pid = 1, .hint = -1}});
	assert_true(l->core->coord.undecided);
}

static void test_votes_are_compared(void **state)
{
	struct lone l;

	(void)state;
	opened(&l);
	join(&l);
	ranks(&l);
	vote(&l, B, 2);
	vote(&l, C, 3);
	assert_non_null(lone_sent(&l, CORE_ABORT));
	assert_non_null(
		strstr(lone_sent(&l, CORE_ABORT)->why, "copies of chunk 1 differ in step 5"));
	lone_deinit(&l);
	opened(&l);
	join(&l);
	ranks(&l);
	vote(&l, B, (double)NAN);
	vote(&l, C, (double)NAN); /* The same bits. */
	assert_non_null(lone_sent(&l, CORE_COMMIT));
	lone_deinit(&l);
}

/* Each copy of a chunk is waited for, and counted. */
static void test_waits_for_copies(void **state)
{
	struct core_state s;
	struct lone l;

	(void)state;
	opened(&l);
	join(&l);
	ranks(&l);
	vote(&l, B, 2);
	core_state(l.core, &s);
	assert_non_null(strstr(s.waits, "node c"));
	assert_non_null(strstr(s.waits, ": 2 of 4 chunks"));
	lone_deinit(&l);
}

/* --- b is elected --- */

/* b is elected, and the view does not have it as a member, or has another node in its slot. b asks
 * the members, decides nothing before it has promised its own term, and becomes a member that
 * catches up. */
static void leads_from_outside(bool other)
{
	struct core_view v = view_of(TERM, 3, 4);
	const struct core_view *next;
	struct lone l;

	if (other) {
		v.members.node[B].uuid[0] = 'o';
	} else {
		v.members.nodes = 1u << A | 1u << C;
		memset(&v.members.node[B], 0, sizeof(v.members.node[B]));
	}
	v.members.coordinator = A;
	v.place.gone = ~v.members.nodes;
	lone_init(&l, B, 0x7fffffff, &v);
	l.core->conf.elected = true;
	l.core->conf.heartbeat_timeout_ns = LOST_NS / 2;
	lone_event(&l, (struct core_event){.type = CORE_EV_LEAD, .id.term = 9, .view = &v});
	assert_null(persists(&l));
	tick(&l, 0);
	assert_int_equal(l.core->member.promised, 9);
	assert_non_null(lone_sent(&l, CORE_ASK));
	answer(&l, A);
	assert_null(persists(&l));
	answer(&l, C);
	next = persists(&l);
	assert_non_null(next);
	assert_true(next->sealed && next->generation == 1 && next->record.id.step == 4);
	assert_int_equal(next->members.nodes, 1u << A | 1u << B | 1u << C);
	assert_int_equal(next->members.coordinator, B);
	assert_true(view_same(&next->members.node[B], &l.core->conf.who));
	assert_int_equal(next->place.learns, 1u << B);
	assert_int_equal(place_primary(&next->place, 0), C);
	lone_event(&l, (struct core_event){.type = CORE_EV_PERSISTED,
					   .id = {.term = next->term, .seq = next->seq}});
	assert_non_null(lone_acted(&l, CORE_ACT_LEARN));
	/* It has its copies before the others have adopted the view, and no step follows. */
	lone_event(&l, (struct core_event){.type = CORE_EV_LEARNED, .id = l.core->step.record.id});
	view_ok(&l, A, false);
	view_ok(&l, C, false);
	if (persists(&l) == NULL) /* They count at once, but in another call. */
		tick(&l, 0);
	assert_non_null(persists(&l));
	assert_int_equal(persists(&l)->place.learns, 0);
	lone_deinit(&l);
}

static void test_leader_is_no_member(void **state)
{
	(void)state;
	leads_from_outside(false);
}

static void test_leader_is_another_node(void **state)
{
	(void)state;
	leads_from_outside(true);
}

/* --- b as a member --- */

static void say_view(struct lone *l, const struct core_view *v)
{
	lone_msg(l, A,
		 (struct core_msg){
			 .op = CORE_VIEW, .id = lone_id(v->term, v->seq, 0, 0), .view = v});
}

static void member(struct lone *l)
{
	struct core_view v = view_of(TERM, 3, 4);

	lone_init(l, B, 0x7fffffff, &v);
	say_view(l, &v);
	assert_non_null(lone_acted(l, CORE_ACT_SEAL));
}

/* Its copies are those of the record, so none has to be fetched. */
static void test_same_record_is_caught(void **state)
{
	struct core_view v = view_of(TERM, 3, 4);
	struct lone l;

	(void)state;
	member(&l);
	v.seq = 5;
	v.place.learns = 1u << B;
	say_view(&l, &v);
	assert_null(lone_acted(&l, CORE_ACT_LEARN));
	assert_non_null(lone_acted(&l, CORE_ACT_PLACED));
	assert_true(lone_sent(&l, CORE_VIEW_OK)->caught);
	v.seq = 6;
	v.place.learns = 0;
	say_view(&l, &v);
	assert_false(lone_sent(&l, CORE_VIEW_OK)->caught);
	lone_deinit(&l);
}

/* Steps were committed without it. It learns, and does not count before it has said that it has
 * learned. */
static void test_learns(void **state)
{
	struct core_view v = view_of(TERM, 5, 7);
	struct lone l;

	(void)state;
	member(&l);
	say_view(&l, &v); /* It counts, although it has missed records. */
	assert_null(lone_sent(&l, CORE_VIEW_OK));
	v.seq = 6;
	v.place.learns = 1u << B;
	say_view(&l, &v);
	assert_non_null(lone_acted(&l, CORE_ACT_LEARN));
	assert_int_equal(lone_acted(&l, CORE_ACT_LEARN)->record->id.step, 7);
	assert_false(lone_sent(&l, CORE_VIEW_OK)->caught);
	v.seq = 7;
	v.place.learns = 0;
	say_view(&l, &v);
	assert_null(lone_sent(&l, CORE_VIEW_OK));
	lone_event(&l, (struct core_event){.type = CORE_EV_LEARNED, .id = lone_id(TERM, 3, 4, 0)});
	assert_null(lone_sent(&l, CORE_VIEW_OK)); /* Of a record before. */
	lone_event(&l, (struct core_event){.type = CORE_EV_LEARNED, .id = v.record.id});
	assert_true(lone_sent(&l, CORE_VIEW_OK)->caught);
	assert_int_equal(lone_sent(&l, CORE_VIEW_OK)->id.seq, 6);
	lone_msg(&l, A, (struct core_msg){.op = CORE_HEAR, .id = {.term = TERM, .step = 8}});
	assert_int_equal(lone_sent(&l, CORE_HEARD)->id.step, 8);
	assert_true(lone_sent(&l, CORE_VIEW_OK)->caught); /* It may have been lost. */
	say_view(&l, &v);
	assert_non_null(lone_sent(&l, CORE_VIEW_OK));
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

	w.rank[0] = (struct core_rank){.session = 1, .node = A};
	lone_msg(l, A,
		 (struct core_msg){.op = CORE_BEGIN, .id = id, .world = &w, .record = before});
}

/* The place for a reduced gradient is not lent to a new primary before the old one has drained. */
static void test_primary_changes(void **state)
{
	struct core_view v = view_of(TERM, 3, 4);
	struct lone l;

	(void)state;
	lone_init(&l, B, 0x7fffffff, &v);
	v.place.primary = (const uint16_t[]){C, C};
	v.place.holders = (const uint64_t[]){7, 7};
	v.place = place_of(v.place.primary, v.place.holders, 2);
	l.core->conf.place = v.place;
	member_place(l.core, &v.place);
	say_view(&l, &v);
	say_begin(&l, lone_id(TERM, 3, 5, 1), &v.record);
	assert_true(granted(&l, C));
	v.seq = 4;
	v.place.learns = 1u << C;
	say_view(&l, &v);
	lone_event(&l, (struct core_event){.type = CORE_EV_DRAINED, .id = lone_id(TERM, 3, 5, 1)});
	say_begin(&l, lone_id(TERM, 4, 5, 2), &v.record);
	assert_non_null(lone_acted(&l, CORE_ACT_BEGIN));
	lone_msg(&l, A, (struct core_msg){.op = CORE_DRAINED, .id = lone_id(TERM, 3, 5, 1)});
	assert_false(granted(&l, A)); /* It reduces now. */
	lone_msg(&l, C, (struct core_msg){.op = CORE_DRAINED, .id = lone_id(TERM, 3, 5, 1)});
	assert_true(granted(&l, A));
	lone_deinit(&l);
}

/* This node was the primary, and its DRAINED was lost. It repeats it, though it has nothing to send
 * any more. */
static void test_former_primary_drains(void **state)
{
	struct core_view v = view_of(TERM, 3, 4);
	struct lone l;

	(void)state;
	lone_init(&l, B, 0x7fffffff, &v);
	v.place = place_of((const uint16_t[]){B, B}, (const uint64_t[]){7, 7}, 2);
	l.core->conf.place = v.place;
	member_place(l.core, &v.place);
	say_view(&l, &v);
	say_begin(&l, lone_id(TERM, 3, 5, 1), &v.record);
	lone_msg(&l, C, (struct core_msg){.op = CORE_GRANT, .id = lone_id(TERM, 3, 5, 1)});
	assert_non_null(lone_acted(&l, CORE_ACT_CREDIT));
	v.seq = 4;
	v.place.learns = 1u << B;
	say_view(&l, &v);
	lone_event(&l, (struct core_event){.type = CORE_EV_DRAINED, .id = lone_id(TERM, 3, 5, 1)});
	assert_non_null(lone_sent(&l, CORE_DRAINED));
	say_begin(&l, lone_id(TERM, 4, 5, 2), &v.record);
	assert_non_null(lone_acted(&l, CORE_ACT_BEGIN));
	tick(&l, LOST_NS / 4);
	assert_non_null(lone_sent(&l, CORE_DRAINED));
	assert_int_equal(lone_sent(&l, CORE_DRAINED)->to, C);
	lone_deinit(&l);
}

/* A view in which a chunk has no copy is not adopted. */
static void test_no_copy_left(void **state)
{
	struct core_view v = view_of(TERM, 5, 4);
	struct lone l;

	(void)state;
	member(&l);
	v.place.learns = 1u << B | 1u << C;
	say_view(&l, &v);
	assert_null(lone_sent(&l, CORE_VIEW_OK));
	lone_deinit(&l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_leader_is_no_member),
		cmocka_unit_test(test_leader_is_another_node),
		cmocka_unit_test(test_leaves),
		cmocka_unit_test(test_last_holder_is_waited_for),
		cmocka_unit_test(test_last_holder_comes_back),
		cmocka_unit_test(test_no_first_view),
		cmocka_unit_test(test_restarts),
		cmocka_unit_test(test_not_in_a_save),
		cmocka_unit_test(test_not_in_a_new_view),
		cmocka_unit_test(test_comes_back),
		cmocka_unit_test(test_recovers_without),
		cmocka_unit_test(test_votes_are_compared),
		cmocka_unit_test(test_waits_for_copies),
		cmocka_unit_test(test_same_record_is_caught),
		cmocka_unit_test(test_learns),
		cmocka_unit_test(test_primary_changes),
		cmocka_unit_test(test_former_primary_drains),
		cmocka_unit_test(test_no_copy_left),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
