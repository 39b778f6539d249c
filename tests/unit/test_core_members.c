/* SPDX-License-Identifier: Apache-2.0 */
/* Tests one core alone with views that do not list all nodes. The members are those of the view
 * that was adopted last. A coordinator that starts again takes those of the view on its disk.
 * Static membership never makes such a view, so the simulator does not reach this. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/inner.h"
#include "lib/lone.h"

#include <stdlib.h>
#include <string.h>

static const uint16_t all_of_b[2] = {B, B};

/* Sealed at step 4, and without c. */
static struct core_view view_of(uint64_t term, uint32_t seq)
{
	struct record r = lone_record(5, 1, 4);
	struct core_view v = lone_view(term, seq, &r);

	v.members.nodes = 1u << A | 1u << B;
	v.members.node[C] = (struct view_node){.incarnation = 0};
	v.place = place_of(all_of_b, NULL, 2);
	return v;
}

static void say_view(struct lone *l, const struct core_view *v)
{
	lone_msg(l, A,
		 (struct core_msg){
			 .op = CORE_VIEW, .id = lone_id(v->term, v->seq, 0, 0), .view = v});
}

static void say_begin(struct lone *l, const struct core_world *w, const struct core_view *v)
{
	lone_msg(l, A,
		 (struct core_msg){.op = CORE_BEGIN,
				   .id = lone_id(5, 3, 5, 1),
				   .world = w,
				   .record = &v->record});
}

static void test_members_of_the_view(void **state)
{
	const struct {
		uint64_t nodes, coordinator;
	} wrong[] = {
		{1u << A | 1u << C, A}, /* Without the node that is told of it. */
		{1u << B | 1u << C, A}, /* No member coordinates. */
		/* Another node coordinates than the one that sent it. */
		{1u << A | 1u << B | 1u << C, C},
		/* There is no such slot in this cluster. */
		{1u << A | 1u << B | 1u << LONE_NODES, A},
		{1u << A | 1u << B, CORE_NODES_MAX}, /* There is no such slot at all. */
		{0, A},
	};
	struct core_world w = {.size = 2};
	struct core_view v = view_of(5, 3);
	struct lone l;

	(void)state;
	w.rank[0] = (struct core_rank){.session = SESSION, .node = B};
	w.rank[1] = (struct core_rank){.session = SESSION, .node = C};
	lone_init(&l, B, 1, NULL);
	lone_event(&l, (struct core_event){.type = CORE_EV_JOIN,
					   .trainer = {.session = SESSION, .pid = 7, .hint = -1}});
	for (size_t i = 0; i < NR(wrong); i++) {
		uint16_t first = wrong[i].nodes ? (uint16_t)__builtin_ctzll(wrong[i].nodes) : 0,
			 holder[2] = {first, first};

		v = lone_view(5, 3, &v.record);
		v.place = place_of(holder, NULL, 2); /* The placement of each view is right. */
		v.members.nodes = wrong[i].nodes;
		v.members.coordinator = wrong[i].coordinator;
		v.members.node[LONE_NODES] = (struct view_node){.uuid = "another"};
		say_view(&l, &v);
		assert_int_equal(l.out.nr, 0);
		assert_int_equal(view_members_nr(core_members(l.core)), LONE_NODES);
	}
	v = view_of(5, 3);
	say_view(&l, &v);
	assert_non_null(lone_sent(&l, CORE_VIEW_OK));
	assert_false(view_is_member(core_members(l.core), C));
	say_begin(&l, &w, &v); /* With a rank of c. */
	assert_null(lone_acted(&l, CORE_ACT_BEGIN));
	lone_event(&l, (struct core_event){.type = CORE_EV_LINK_UP,
					   .node = C,
					   /* c may be linked without being a member. */
					   .who = lone_who(C)});
	w.size = 1;
	say_begin(&l, &w, &v);
	assert_non_null(lone_acted(&l, CORE_ACT_BEGIN));
	lone_deinit(&l);
}

/* A slot does not make a node a member. */
static void test_names_of_the_view(void **state)
{
	struct core_view v;
	struct lone l;

	(void)state;
	lone_init(&l, B, 1, NULL);
	for (int i = 0; i < 4; i++) {
		v = view_of(5, 3);
		if (i == 0)
			v.members.node[B].uuid[0] ^= 1; /* Of another node than this one. */
		else if (i == 1)
			memset(v.members.node[A].uuid, 0, VIEW_UUID_BYTES);
		else if (i == 2)
			memcpy(v.members.node[A].uuid, v.members.node[B].uuid, VIEW_UUID_BYTES);
		say_view(&l, &v);
		assert_int_equal(lone_sent(&l, CORE_VIEW_OK) != NULL, i == 3);
		assert_int_equal(view_named(&core_members(l.core)->node[A]), i == 3);
	}
	assert_memory_equal(core_members(l.core), &v.members, sizeof(v.members));
	lone_deinit(&l);
}

static void seal_of(struct core_view *v, uint32_t generation)
{
	v->generation = generation;
	v->sealed = true;
	v->record = lone_record(5, 1, 4);
	v->record.id.generation = generation;
}

/* The chunks lie as the adopted view says. In another generation they may lie anywhere. While there
 * are weights, a node does not count for a chunk that it has not copied. */
static void test_placement_of_the_view(void **state)
{
	static const uint16_t all_of_c[3] = {C, C, C}, none[2] = {B, CORE_NODES_MAX - 1};
	struct record r = lone_record(5, 1, 4);
	struct core_view v = lone_view(5, 3, &r), first = v;
	const uint32_t *index;
	struct lone l;

	(void)state;
	lone_init(&l, B, 1, NULL);
	index = core_at(l.core, l.core->at_index);
	assert_int_equal(l.core->held_nr[B], 1);
	assert_int_equal(l.core->held_nr[C], 1);
	v.place = place_of(none, NULL, 2); /* On a node that is no member. */
	say_view(&l, &v);
	assert_null(lone_sent(&l, CORE_VIEW_OK));
	v.place = place_of(all_of_c, NULL, 3); /* Of another model. */
	say_view(&l, &v);
	assert_null(lone_sent(&l, CORE_VIEW_OK));
	say_view(&l, &first);
	assert_non_null(lone_sent(&l, CORE_VIEW_OK));
	v.place = place_of(all_of_b, NULL, 2); /* It has no copy of the other chunk. */
	v.seq = 4;
	say_view(&l, &v);
	assert_null(lone_sent(&l, CORE_VIEW_OK));
	assert_int_equal(l.core->held_nr[B], 1);
	v.generation = 2; /* The weights are given up, so chunks may lie anywhere. */
	v.sealed = false;
	v.seq = 5;
	say_view(&l, &v);
	assert_non_null(lone_sent(&l, CORE_VIEW_OK));
	assert_int_equal(l.core->held_nr[B], 2);
	assert_int_equal(l.core->held_nr[C], 0);
	assert_true(index[0] == 0 && index[1] == 1);
	seal_of(&v, 2);
	v.seq = 6; /* Nobody seals with a step. */
	v.place = place_of(all_of_b, NULL, 2);
	v.record.outcome = RECORD_APPLIED;
	say_view(&l, &v);
	assert_null(lone_sent(&l, CORE_VIEW_OK));
	seal_of(&v, 2);
	v.seq = 7;
	say_view(&l, &v);
	assert_non_null(lone_sent(&l, CORE_VIEW_OK));
	lone_deinit(&l);
}

static void test_asks_the_members(void **state)
{
	struct core_view v = view_of(5, 2);
	struct core_answer answer = {.generation = 1};
	struct lone l;

	(void)state;
	lone_init(&l, A, 9, &v);
	lone_event(&l, (struct core_event){.type = CORE_EV_TICK});
	assert_int_equal(lone_sent(&l, CORE_ASK)->to, B);
	for (uint32_t i = 0; i < l.out.nr; i++)
		assert_true(l.out.act[i].type != CORE_ACT_SEND || l.out.act[i].msg.to != C);
	lone_msg(&l, C, (struct core_msg){.op = CORE_ANSWER, .id = {.term = 9}, .answer = &answer});
	assert_false(l.core->coord.node[C].answered);
	lone_msg(&l, B, (struct core_msg){.op = CORE_ANSWER, .id = {.term = 9}, .answer = &answer});
	assert_true(l.core->coord.node[B].answered);
	lone_deinit(&l);
}

/* Another view may make any node the coordinator, and the holder of every chunk. */
static void test_room_for_any_view(void **state)
{
	static const uint16_t held_by_c[64] = {[0 ... 63] = C};
	struct core_conf conf[LONE_NODES];

	(void)state;
	for (uint16_t n = 0; n < LONE_NODES; n++) {
		conf[n] = lone_conf(n, 1);
		conf[n].chunks_nr = NR(held_by_c);
		conf[n].place = place_of(held_by_c, NULL, NR(held_by_c));
		assert_int_equal(core_bytes(&conf[n]), core_bytes(&conf[A]));
		assert_int_equal(core_warm_bytes(&conf[n]), core_warm_bytes(&conf[A]));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_members_of_the_view),
					   cmocka_unit_test(test_names_of_the_view),
					   cmocka_unit_test(test_placement_of_the_view),
					   cmocka_unit_test(test_asks_the_members),
					   cmocka_unit_test(test_room_for_any_view)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
