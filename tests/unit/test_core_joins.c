/* SPDX-License-Identifier: Apache-2.0 */
/* Tests one core alone when a node joins that was not in the first view. Nodes a, b and c are the
 * members of the first view, b and c hold one chunk each, and the node of slot 5 has no chunk and
 * no name. a coordinates: when the node becomes a member, under which name, and when it leaves.
 * Then the node itself: it knows of no view that has it, and of nothing that was decided. tests/sim
 * has joins at any moment of whole clusters. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/inner.h"
#include "lib/lone.h"

#include <stdlib.h>
#include <string.h>

enum { NEW = 5, TERM = 5, NOW = 9, LOST_NS = 1000000000 };
static const uint64_t bit_new = 1u << NEW;

static struct core_view view_of(uint64_t term, uint32_t seq, uint64_t nodes)
{
	struct record r = lone_record(TERM, 1, 4);
	struct core_view v = lone_view(term, seq, &r);

	v.members.nodes |= nodes;
	if (nodes)
		v.members.node[NEW] = lone_who(NEW);
	return v;
}

static void init(struct lone *l, uint16_t self, bool elected, const struct core_view *view,
		 uint64_t slots)
{
	struct core_conf conf = lone_conf(self, elected ? 0 : NOW);
	void *memory;

	conf.elected = elected;
	conf.slots = slots;
	conf.heartbeat_timeout_ns = LOST_NS / 4;
	memory = aligned_alloc(64, (core_bytes(&conf) + 63) & ~(size_t)63);
	assert_non_null(memory);
	memset(memory, 0, core_bytes(&conf));
	memset(l, 0, sizeof(*l));
	l->core = core_init(memory, &conf, view, NULL);
	assert_non_null(l->core);
}

static void comes(struct lone *l, uint16_t n, struct view_node who)
{
	lone_event(l, (struct core_event){.type = CORE_EV_LINK_UP, .node = n, .who = who});
}

static void goes(struct lone *l, uint16_t n)
{
	lone_event(l, (struct core_event){.type = CORE_EV_LINK_DOWN, .node = n, .why = "cut"});
}

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

static void answer(struct lone *l, uint16_t node)
{
	struct core_answer a = {.incarnation = lone_incarnation(node),
				.term = TERM,
				.seq = 3,
				.generation = 1,
				.has_record = true,
				.record = lone_record(TERM, 1, 4)};

	lone_msg(l, node,
		 (struct core_msg){
			 .op = CORE_ANSWER, .id = {.term = l->core->coord.term}, .answer = &a});
}

static void adopt(struct lone *l) /* The newest view is durable, and all adopt it. */
{
	struct view_members v;
	uint32_t seq = l->core->coord.view.seq;

	if (l->core->coord.state == COORD_PERSIST)
		lone_event(l, (struct core_event){.type = CORE_EV_PERSISTED,
						  .id = {.term = l->core->coord.term, .seq = seq}});
	v = l->core->coord.view.members;
	for (uint16_t n = 0; n < CORE_NODES_MAX; n++) {
		struct core_id id = lone_id(l->core->coord.term, seq, 0, 0);

		id.generation = l->core->coord.view.generation;
		if (n != l->core->conf.self && view_is_member(&v, n))
			lone_msg(l, n,
				 (struct core_msg){.op = CORE_VIEW_OK,
						   .from_incarnation = v.node[n].incarnation,
						   .id = id});
	}
	assert_true(l->core->coord.state == COORD_OPEN || lone_acted(l, CORE_ACT_PERSIST));
}

/* a has started again in term 9, and its view is open. */
static void opened(struct lone *l, uint64_t slots, const struct core_view *disk)
{
	init(l, A, false, disk, slots);
	comes(l, B, lone_who(B));
	comes(l, C, lone_who(C));
	tick(l, 0);
	answer(l, B);
	answer(l, C);
	assert_non_null(persists(l));
	adopt(l);
}

static void begins(struct lone *l) /* Step 5, with the trainer of b. */
{
	lone_msg(l, B,
		 (struct core_msg){.op = CORE_JOIN,
				   .id = {.term = NOW},
				   .trainer = {.session = SESSION, .hint = -1}});
	if (!lone_sent(l, CORE_BEGIN))
		tick(l, 0);
	assert_non_null(lone_sent(l, CORE_BEGIN));
}

static void vote(struct lone *l, uint16_t from)
{
	double sumsq = 1, weight = 1;
	uint8_t finite = 1;
	struct core_vote v = {.sumsq = &sumsq,
			      .finite = &finite,
			      .chunks_nr = from != NEW,
			      .weights = &weight,
			      .ranks_nr = 1,
			      .bad_tensor = -1};

	lone_msg(l, from, (struct core_msg){.op = CORE_VOTE, .id = l->core->coord.id, .vote = v});
}

static void commits(struct lone *l, bool with_new)
{
	double weight = 1;

	lone_msg(l, B, (struct core_msg){.op = CORE_GRANT, .id = l->core->coord.id});
	lone_msg(l, B,
		 (struct core_msg){.op = CORE_RANKS,
				   .id = l->core->coord.id,
				   .vote = {.weights = &weight, .ranks_nr = 1, .bad_tensor = -1}});
	vote(l, B);
	vote(l, C);
	if (with_new) {
		assert_int_equal(l->core->coord.last.id.step, 4); /* Not without its vote. */
		vote(l, NEW);
	}
	assert_int_equal(l->core->coord.last.id.step, 5);
	lone_event(l, (struct core_event){.type = CORE_EV_APPLIED});
}

static void done(struct lone *l, uint16_t from)
{
	lone_msg(l, from, (struct core_msg){.op = CORE_DONE, .id = l->core->coord.last.id});
}

static void check_joins(const struct core_view *v)
{
	struct view_node who = lone_who(NEW);

	assert_non_null(v);
	assert_true(view_is_member(&v->members, NEW));
	assert_memory_equal(&v->members.node[NEW], &who, sizeof(who));
	assert_true(!v->place.learns && !v->place.moves && v->place.gone == ~v->members.nodes);
	assert_null(v->place.to);
}

/* It waits for the end of the step in hand, which does not end because of it. From the view on it
 * votes, and may have ranks. */
static void test_joins_at_a_boundary(void **state)
{
	struct core_view disk = view_of(TERM, 3, 0);
	const struct core_msg *m;
	struct core_state st;
	struct lone l;

	(void)state;
	opened(&l, UINT64_MAX, &disk);
	begins(&l);
	comes(&l, NEW, lone_who(NEW));
	assert_null(persists(&l));
	assert_true(l.core->coord.undecided);
	commits(&l, false);
	done(&l, B);
	assert_null(persists(&l)); /* c has not finished the step. */
	assert_null(lone_sent(&l, CORE_BEGIN));
	lone_msg(&l, NEW, (struct core_msg){.op = CORE_JOIN, .id = {.term = NOW}});
	assert_int_equal(l.core->coord.trainers_nr, 1); /* It is no member yet. */
	done(&l, C);
	check_joins(persists(&l));
	lone_event(&l, (struct core_event){.type = CORE_EV_PERSISTED});
	m = NULL;
	for (uint32_t i = 0; i < l.out.nr; i++) {
		if (l.out.act[i].type == CORE_ACT_SEND && l.out.act[i].msg.to == NEW &&
		    l.out.act[i].msg.op == CORE_VIEW)
			m = &l.out.act[i].msg;
	}
	assert_non_null(m);
	check_joins(m->view);
	core_state(l.core, &st);
	assert_non_null(strstr(st.waits, "node b, which has not adopted the view"));
	assert_non_null(strstr(st.waits, "node 5, which has not adopted the view"));
	adopt(&l);
	lone_msg(&l, NEW,
		 (struct core_msg){.op = CORE_JOIN,
				   .id = {.term = NOW},
				   .trainer = {.session = SESSION, .pid = 7, .hint = -1}});
	assert_int_equal(l.core->coord.trainers_nr, 2);
	lone_deinit(&l);
}

static void test_its_vote_counts(void **state)
{
	struct core_view disk = view_of(TERM, 3, 0);
	struct lone l;

	(void)state;
	opened(&l, UINT64_MAX, &disk);
	comes(&l, NEW, lone_who(NEW));
	check_joins(persists(&l));
	adopt(&l);
	begins(&l);
	commits(&l, true);
	lone_deinit(&l);
}

/* Nobody joins who is not linked, whose slot no view may have, while there are no weights, or with
 * the state folder of a member. Nothing waits for such a node. */
static void test_who_does_not_join(void **state)
{
	struct core_view disk = view_of(TERM, 3, 0);
	struct view_node copy = {.incarnation = 400};
	struct lone l;

	(void)state;
	opened(&l, UINT64_MAX, &disk);
	begins(&l);
	comes(&l, NEW, lone_who(NEW));
	commits(&l, false);
	goes(&l, NEW);
	done(&l, B);
	done(&l, C);
	assert_null(persists(&l));
	lone_deinit(&l);

	opened(&l, 7, &disk);
	comes(&l, NEW, lone_who(NEW));
	assert_null(persists(&l));
	begins(&l);
	lone_deinit(&l);

	opened(&l, UINT64_MAX, &disk);
	memcpy(copy.uuid, lone_who(B).uuid, sizeof(copy.uuid));
	comes(&l, NEW, copy);
	assert_null(persists(&l));
	begins(&l);
	lone_deinit(&l);

	disk.sealed = false;
	opened(&l, UINT64_MAX, &disk);
	comes(&l, NEW, lone_who(NEW));
	assert_null(persists(&l));
	lone_event(&l, (struct core_event){.type = CORE_EV_WRITTEN, .step = 4});
	assert_non_null(persists(&l));
	assert_false(view_is_member(&l.core->coord.view.members, NEW));
	adopt(&l);
	check_joins(persists(&l)); /* The weights are there. */
	lone_deinit(&l);
}

/* Two nodes come with one folder. The first slot has it. */
static void test_two_with_one_folder(void **state)
{
	struct core_view disk = view_of(TERM, 3, 0);
	struct view_node other = lone_who(NEW);
	struct lone l;

	(void)state;
	opened(&l, UINT64_MAX, &disk);
	begins(&l);
	other.incarnation++;
	comes(&l, NEW + 1, other);
	comes(&l, NEW, lone_who(NEW));
	commits(&l, false);
	done(&l, B);
	done(&l, C);
	check_joins(persists(&l));
	assert_false(view_is_member(&l.core->coord.view.members, NEW + 1));
	lone_deinit(&l);
}

static void heard(struct lone *l, uint16_t from)
{
	lone_msg(l, from,
		 (struct core_msg){.op = CORE_HEARD,
				   .from_incarnation = l->core->link[from].who.incarnation,
				   .id = {.term = NOW, .step = l->core->coord.hear}});
}

/* There is one copy of each chunk. A member that has none leaves when it is missed, and comes back
 * as the node that it is then. c, which has one, is waited for. */
static void test_leaves_and_returns(void **state)
{
	struct core_view disk = view_of(TERM, 3, 0);
	struct view_node other = {.uuid = "another folder", .incarnation = 500};
	struct core_state st;
	struct lone l;

	(void)state;
	opened(&l, UINT64_MAX, &disk);
	comes(&l, NEW, lone_who(NEW));
	check_joins(persists(&l));
	adopt(&l);
	goes(&l, NEW);
	assert_null(persists(&l));
	core_state(l.core, &st);
	assert_string_equal(st.waits, "node 5, which has no link");
	heard(&l, B);
	heard(&l, C);
	assert_non_null(persists(&l));
	assert_int_equal(l.core->coord.view.members.nodes, 7);
	assert_int_equal(l.core->coord.view.members.node[NEW].incarnation, 0);
	adopt(&l);
	comes(&l, NEW, other);
	assert_non_null(persists(&l));
	assert_memory_equal(&l.core->coord.view.members.node[NEW], &other, sizeof(other));
	adopt(&l);
	goes(&l, C);
	heard(&l, B);
	heard(&l, NEW);
	assert_null(persists(&l));
	tick(&l, 2 * LOST_NS);
	assert_non_null(persists(&l));
	assert_int_equal(l.core->coord.view.generation, 2);
	assert_true(view_is_member(&l.core->coord.view.members, NEW));
	lone_deinit(&l);
}

/* Of a node that joined, and that starts again meanwhile, the next view says so. */
static void test_starts_again(void **state)
{
	struct core_view disk = view_of(TERM, 3, 0);
	struct view_node other = lone_who(NEW);
	struct lone l;

	(void)state;
	opened(&l, UINT64_MAX, &disk);
	comes(&l, NEW, lone_who(NEW));
	check_joins(persists(&l));
	other.incarnation = 500;
	comes(&l, NEW, other);
	lone_event(&l, (struct core_event){.type = CORE_EV_PERSISTED});
	assert_non_null(persists(&l)); /* Nobody can adopt the view before. */
	assert_memory_equal(&l.core->coord.view.members.node[NEW], &other, sizeof(other));
	assert_true(l.core->coord.view.sealed && l.core->coord.view.generation == 1);
	adopt(&l);
	lone_deinit(&l);
}

/* The view on the disk has a member that the first view had not. It is asked like the others, and
 * waited for as long as its link may take. */
static void test_recovers_with_it(void **state)
{
	struct core_view disk = view_of(TERM, 3, bit_new);
	struct lone l;

	(void)state;
	init(&l, A, false, &disk, UINT64_MAX);
	comes(&l, B, lone_who(B));
	comes(&l, C, lone_who(C));
	tick(&l, 0);
	answer(&l, B);
	answer(&l, C);
	assert_null(persists(&l));
	assert_true(core_deadline(l.core) <= l.now + LOST_NS / 4);
	tick(&l, LOST_NS / 4);
	assert_non_null(persists(&l));
	assert_int_equal(l.core->coord.view.members.nodes, 7);
	lone_deinit(&l);

	init(&l, A, false, &disk, UINT64_MAX);
	comes(&l, B, lone_who(B));
	comes(&l, C, lone_who(C));
	tick(&l, 0);
	answer(&l, B);
	answer(&l, C);
	comes(&l, NEW, lone_who(NEW));
	assert_int_equal(lone_sent(&l, CORE_ASK)->to, NEW);
	answer(&l, NEW);
	check_joins(persists(&l));
	lone_deinit(&l);
}

/* A table may name it before it is a member, but gives it nothing before it is one. */
static void test_is_given_chunks(void **state)
{
	static const uint16_t primary[2] = {NEW, C};
	static const uint64_t holders[2] = {bit_new, 1u << C};
	static uint64_t room[2];
	struct placement to = place_of(primary, holders, 2);
	struct core_view disk = view_of(TERM, 3, 0);
	struct core_state st;
	struct lone l;

	(void)state;
	opened(&l, UINT64_MAX, &disk);
	lone_event(&l, (struct core_event){.type = CORE_EV_PLACE, .to = &to, .room = room});
	assert_non_null(persists(&l));
	assert_true(l.core->coord.view.place.to == holders);
	assert_int_equal(l.core->coord.view.place.moves, 0);
	adopt(&l);
	core_state(l.core, &st);
	assert_string_equal(st.moves, "node 5, which is no member, for chunk 0");
	comes(&l, NEW, lone_who(NEW));
	assert_non_null(persists(&l));
	assert_int_equal(l.core->coord.view.place.learns, bit_new);
	assert_int_equal(place_copies(&l.core->coord.view.place, 0), 1u << B);
	lone_deinit(&l);
}

/* --- the node that joins --- */

static void say_view(struct lone *l, const struct core_view *v)
{
	lone_msg(l, A,
		 (struct core_msg){
			 .op = CORE_VIEW, .id = lone_id(v->term, v->seq, 0, 0), .view = v});
}

static void say_begin(struct lone *l, const struct core_view *v)
{
	struct core_world w = {.size = 1};

	w.rank[0] = (struct core_rank){.session = SESSION, .pid = 7, .node = NEW};
	lone_msg(l, A,
		 (struct core_msg){.op = CORE_BEGIN,
				   .id = lone_id(v->term, v->seq, 5, 1),
				   .world = &w,
				   .record = &v->record});
}

/* Its memory outlives it, whatever it had adopted. */
static void starts_warm(struct lone *l)
{
	struct core_conf conf = lone_conf(NEW, 1);
	void *saved = aligned_alloc(64, core_warm_bytes(&conf));

	assert_non_null(saved);
	memset(saved, 0, core_warm_bytes(&conf));
	memset(l->core->warm_word, 0, sizeof(l->core->warm_word));
	assert_true(core_warm_save(l->core, saved));
	conf.slots = UINT64_MAX;
	memset(l->core, 0, core_bytes(&conf));
	assert_non_null(core_init(l->core, &conf, NULL, saved));
	lone_event(l, (struct core_event){.type = CORE_EV_WARM});
	free(saved);
	for (uint16_t n = A; n < LONE_NODES; n++)
		comes(l, n, lone_who(n));
}

static void test_the_node_that_joins(void **state)
{
	struct core_view v = view_of(5, 3, bit_new), without = view_of(5, 2, 0);
	struct core_trainer t = {.session = SESSION, .pid = 7, .hint = -1};
	struct core_state st;
	struct lone l;

	(void)state;
	init(&l, NEW, false, NULL, UINT64_MAX);
	for (uint16_t n = A; n < LONE_NODES; n++)
		comes(&l, n, lone_who(n));
	say_view(&l, &without);
	assert_null(lone_sent(&l, CORE_VIEW_OK));
	comes(&l, C, lone_who(NEW));
	core_state(l.core, &st);
	assert_string_equal(st.waits, "an operator: one of the nodes c and 5 has a copy of the "
				      "other's state folder");
	starts_warm(&l);
	core_state(l.core, &st);
	assert_true(!st.term && st.recovering);
	assert_string_equal(st.waits, "node a, which takes in new nodes after a step");
	lone_event(&l, (struct core_event){.type = CORE_EV_JOIN, .trainer = t});
	say_view(&l, &v);
	assert_non_null(lone_sent(&l, CORE_VIEW_OK));
	assert_non_null(lone_sent(&l, CORE_JOIN)); /* The coordinator may not have heard it. */
	assert_non_null(lone_acted(&l, CORE_ACT_SEAL));
	assert_null(lone_acted(&l, CORE_ACT_LEARN));
	core_state(l.core, &st);
	assert_string_equal(st.waits, "");
	v.seq = 4; /* The next view does not make it tell again, but one that it was not in does. */
	say_view(&l, &v);
	assert_null(lone_sent(&l, CORE_JOIN));
	v.seq = 6;
	say_view(&l, &v);
	assert_non_null(lone_sent(&l, CORE_JOIN));
	say_begin(&l, &v);
	assert_non_null(lone_acted(&l, CORE_ACT_BEGIN));
	lone_event(&l, (struct core_event){.type = CORE_EV_READY,
					   .session = SESSION,
					   .weight = 1,
					   .id = lone_id(5, 6, 5, 1)});
	assert_int_equal(lone_sent(&l, CORE_VOTE)->vote.chunks_nr, 0);
	starts_warm(&l);
	core_state(l.core, &st);
	assert_int_equal(st.part, CORE_PREPARED);
	assert_string_equal(core_node_name(l.core, NEW), "5");
	assert_string_equal(core_node_name(l.core, CORE_NODES_MAX), "?");
	lone_deinit(&l);
}

/* The view that it adopted has tables that name only itself. */
static void test_warm_with_its_tables(void **state)
{
	static const uint16_t all_of_new[2] = {NEW, NEW};
	struct core_view v = view_of(5, 3, bit_new);
	struct core_conf conf = lone_conf(NEW, 1);
	void *saved = aligned_alloc(64, core_warm_bytes(&conf));
	struct lone l;

	(void)state;
	assert_non_null(saved);
	memset(saved, 0, core_warm_bytes(&conf));
	v.generation = 1;
	v.sealed = false;
	v.place = place_of(all_of_new, NULL, 2);
	init(&l, NEW, false, NULL, UINT64_MAX);
	comes(&l, A, lone_who(A));
	say_view(&l, &v);
	assert_non_null(lone_sent(&l, CORE_VIEW_OK));
	assert_true(core_warm_save(l.core, saved));
	conf.slots = UINT64_MAX;
	conf.place = v.place;
	memset(l.core, 0, core_bytes(&conf));
	assert_non_null(core_init(l.core, &conf, NULL, saved));
	assert_int_equal(l.core->held_nr[NEW], 2);
	/* With fewer slots it is no member that there can be. */
	conf.slots = conf.members.nodes | 1u << (NEW + 1);
	conf.self = NEW + 1;
	memset(l.core, 0, core_bytes(&conf));
	assert_null(core_init(l.core, &conf, NULL, saved));
	free(saved);
	lone_deinit(&l);
}

/* It is elected: before there is any view of the model, with one that has not got it, and with one
 * that has. */
static void test_is_elected(void **state)
{
	struct core_view disk[2] = {view_of(5, 3, 0), view_of(5, 3, bit_new)};
	struct view_node who = lone_who(NEW);
	struct core_answer nothing = {.generation = 0};
	struct lone l;

	(void)state;
	for (uint32_t i = 0; i < 3; i++) {
		const struct core_view *v = i ? &disk[i - 1] : NULL;

		init(&l, NEW, true, NULL, UINT64_MAX);
		for (uint16_t n = A; n < LONE_NODES; n++)
			comes(&l, n, lone_who(n));
		lone_event(&l,
			   (struct core_event){.type = CORE_EV_LEAD, .id.term = NOW, .view = v});
		assert_null(lone_acted(&l, CORE_ACT_RESIGNED));
		tick(&l, 0);
		for (uint16_t n = A; n < LONE_NODES; n++) {
			if (v)
				answer(&l, n);
			else
				lone_msg(&l, n,
					 (struct core_msg){.op = CORE_ANSWER,
							   .id = {.term = NOW},
							   .answer = &nothing});
		}
		assert_non_null(persists(&l));
		v = &l.core->coord.view;
		assert_int_equal(v->members.nodes, 7 | bit_new);
		assert_int_equal(view_coordinator(&v->members), NEW);
		assert_memory_equal(&v->members.node[NEW], &who, sizeof(who));
		assert_true(!v->place.learns && v->sealed == (i > 0));
		adopt(&l);
		lone_deinit(&l);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_joins_at_a_boundary),
					   cmocka_unit_test(test_its_vote_counts),
					   cmocka_unit_test(test_who_does_not_join),
					   cmocka_unit_test(test_two_with_one_folder),
					   cmocka_unit_test(test_leaves_and_returns),
					   cmocka_unit_test(test_starts_again),
					   cmocka_unit_test(test_recovers_with_it),
					   cmocka_unit_test(test_is_given_chunks),
					   cmocka_unit_test(test_the_node_that_joins),
					   cmocka_unit_test(test_warm_with_its_tables),
					   cmocka_unit_test(test_is_elected)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
