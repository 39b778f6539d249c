/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that a view that goes over the wire and back is the same view, with what operators changed
 * and whether it is restored. What no coordinator sends is refused. A file from before tunes
 * existed reads as one without a tune. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "model/corewire.h"

#include "base/check.h"
#include <math.h>
#include <string.h>

static const struct corewire_limits limits = {.chunks_nr = 2, .groups_nr = 1, .nodes_nr = 2};

struct fixture {
	struct arena arena;
	_Alignas(16) unsigned char memory[1 << 16];
	struct core_view view, back;
	Shard__View wire;
	struct err e;
};

static void pack(struct fixture *f)
{
	memset(f, 0, sizeof(*f));
	arena_init(&f->arena, f->memory, sizeof(f->memory));
	f->view = (struct core_view){.term = 7,
				     .seq = 3,
				     .generation = 2,
				     .members = view_first(2, 0),
				     .restoring = true};
	f->view.members.node[0] = (struct view_node){.uuid = "the first", .incarnation = 7};
	f->view.members.node[1] = (struct view_node){.uuid = "the second", .incarnation = 9};
	f->view.place.gone = ~f->view.members.nodes;
	f->view.tune = (struct core_tune){.paused = true,
					  .has_lr = true,
					  .has_clip = true,
					  .lr = 1e-3,
					  .clip = 0.5,
					  .resumed_step = 40,
					  .resumed_skips = 4};
	assert_int_equal(corewire_pack_view(&f->view, &f->arena, &f->wire), SHARD_OK);
}

static void test_view(void **state)
{
	static struct fixture f;

	(void)state;
	pack(&f);
	assert_int_equal(corewire_unpack_view(&f.wire, &limits, &f.arena, &f.back, &f.e), SHARD_OK);
	assert_memory_equal(&f.view, &f.back, sizeof(f.view));
	f.wire.tune = NULL;
	assert_int_equal(corewire_unpack_view(&f.wire, &limits, &f.arena, &f.back, &f.e), SHARD_OK);
	assert_false(f.back.tune.paused || f.back.tune.has_lr || f.back.tune.has_clip);
}

/* Wherever the memory ends, the caller is told, and nothing is written past the end. */
static void test_small(void **state)
{
	static struct fixture f;
	size_t bytes = 0;

	(void)state;
	pack(&f);
	do {
		arena_init(&f.arena, f.memory, bytes);
		bytes += 16;
	} while (corewire_pack_view(&f.view, &f.arena, &f.wire) == SHARD_AGAIN &&
		 bytes < sizeof(f.memory));
	assert_true(bytes > 16 && bytes < sizeof(f.memory));
}

static void test_refused(void **state)
{
	static const double bad[] = {-1, (double)NAN, (double)INFINITY};
	static struct fixture f;

	(void)state;
	for (size_t i = 0; i < 2 * NR(bad); i++) {
		pack(&f);
		*(i % 2 ? &f.wire.tune->lr : &f.wire.tune->clip) = bad[i / 2];
		assert_int_equal(corewire_unpack_view(&f.wire, &limits, &f.arena, &f.back, &f.e),
				 SHARD_PROTOCOL);
	}
	pack(&f);
	f.view.sealed = true;
	f.view.record.groups_nr = 1;
	assert_int_equal(corewire_pack_view(&f.view, &f.arena, &f.wire), SHARD_OK);
	assert_int_equal(corewire_unpack_view(&f.wire, &limits, &f.arena, &f.back, &f.e),
			 SHARD_PROTOCOL);
	assert_non_null(strstr(f.e.text, "restoring"));
}

/* What a peer says of members is checked before anything uses it. */
static void test_members(void **state)
{
	static const struct {
		uint64_t nodes;
		uint32_t coordinator;
		size_t incarnations;
	} bad[] = {{4, 2, 1}, {3, 2, 2},     {3, UINT32_MAX, 2}, {3, 0, 1}, {1, 0, 2},
		   {2, 0, 1}, {~0ull, 0, 2}, {0, 0, 1},          {0, 0, 3}, {0, 0, 0}};
	static struct fixture f;

	(void)state;
	for (size_t i = 0; i < NR(bad); i++) {
		uint64_t incarnation[3] = {7, 9, 11};

		pack(&f);
		f.wire.members = bad[i].nodes;
		f.wire.coordinator = bad[i].coordinator;
		f.wire.incarnation = incarnation;
		f.wire.n_incarnation = bad[i].incarnations;
		assert_int_equal(corewire_unpack_view(&f.wire, &limits, &f.arena, &f.back, &f.e),
				 SHARD_PROTOCOL);
		assert_non_null(strstr(f.e.text, "this cluster has 2 nodes"));
	}
	pack(&f); /* Slots with a gap. */
	f.view.members.nodes = 2;
	f.view.members.coordinator = 1;
	memset(&f.view.members.node[0], 0, sizeof(f.view.members.node[0]));
	f.view.place.gone = ~2ull;
	assert_int_equal(corewire_pack_view(&f.view, &f.arena, &f.wire), SHARD_OK);
	assert_int_equal(f.wire.n_incarnation, 1);
	assert_int_equal(corewire_unpack_view(&f.wire, &limits, &f.arena, &f.back, &f.e), SHARD_OK);
	assert_memory_equal(&f.view, &f.back, sizeof(f.view));
}

/* Who the members are is checked, too. */
static void test_names(void **state)
{
	static const struct view_node second = {.uuid = "the second"};
	struct corewire_limits mine = limits;
	static struct fixture f;

	(void)state;
	for (size_t n = 0; n < 4; n++) {
		ProtobufCBinaryData uuid[3];

		pack(&f);
		memcpy(uuid, f.wire.uuid, 2 * sizeof(uuid[0]));
		uuid[2] = uuid[1];
		uuid[1].len--;
		f.wire.uuid = uuid;
		f.wire.n_uuid = n;
		assert_int_equal(corewire_unpack_view(&f.wire, &limits, &f.arena, &f.back, &f.e),
				 SHARD_PROTOCOL);
		assert_non_null(strstr(f.e.text, n == 2 ? "node 1 by a uuid of 15 bytes"
							: "uuids: this cluster has 2 nodes"));
	}
	pack(&f);
	memset(&f.view.members.node[1].uuid, 0, VIEW_UUID_BYTES);
	assert_int_equal(corewire_unpack_view(&f.wire, &limits, &f.arena, &f.back, &f.e),
			 SHARD_PROTOCOL);
	assert_non_null(strstr(f.e.text, "node 1 has no uuid"));
	pack(&f);
	f.view.members.node[1] = f.view.members.node[0];
	assert_int_equal(corewire_unpack_view(&f.wire, &limits, &f.arena, &f.back, &f.e),
			 SHARD_PROTOCOL);
	assert_non_null(strstr(f.e.text, "nodes 0 and 1 by the same uuid"));
	mine.uuid = second.uuid;
	/* In a view without this node the uuid may be any. */
	for (mine.self = 0; mine.self < 3; mine.self++) {
		pack(&f);
		assert_int_equal(corewire_unpack_view(&f.wire, &mine, &f.arena, &f.back, &f.e),
				 mine.self == 0 ? SHARD_PROTOCOL : SHARD_OK);
		assert_true(mine.self > 0 || strstr(f.e.text, "node 0, which is this one"));
	}
}

/* A view that moves chunks is refused where the memory is made already. */
static void test_placement(void **state)
{
	static const uint16_t here[2] = {0, 1}, there[2] = {1, 0};
	struct corewire_limits mine = limits;
	static struct fixture f;

	(void)state;
	mine.place = place_of(here, NULL, 2);
	pack(&f);
	f.wire.place = place_of(there, NULL, 2).sum;
	assert_int_equal(corewire_unpack_view(&f.wire, &mine, &f.arena, &f.back, &f.e),
			 SHARD_PROTOCOL);
	assert_non_null(strstr(f.e.text, "this release cannot move chunks"));
	f.wire.place = mine.place.sum;
	assert_int_equal(corewire_unpack_view(&f.wire, &mine, &f.arena, &f.back, &f.e), SHARD_OK);
	assert_true(f.back.place.primary == here && f.back.place.sum == mine.place.sum);
	assert_int_equal(corewire_unpack_view(&f.wire, &limits, &f.arena, &f.back, &f.e), SHARD_OK);
	assert_null(f.back.place.primary);
	assert_int_equal(f.back.place.sum, mine.place.sum);
}

/* Who catches up is a member, and only weights can be caught up with. */
static void test_learns(void **state)
{
	static struct fixture f;

	(void)state;
	pack(&f);
	f.wire.learns = 2;
	assert_int_equal(corewire_unpack_view(&f.wire, &limits, &f.arena, &f.back, &f.e),
			 SHARD_PROTOCOL);
	f.view.restoring = false;
	f.view.sealed = true;
	f.view.record.id.generation = f.view.generation;
	f.view.record.groups_nr = 1;
	f.view.place.learns = 2;
	assert_int_equal(corewire_pack_view(&f.view, &f.arena, &f.wire), SHARD_OK);
	assert_int_equal(corewire_unpack_view(&f.wire, &limits, &f.arena, &f.back, &f.e), SHARD_OK);
	assert_memory_equal(&f.view, &f.back, sizeof(f.view));
	f.wire.learns = 4;
	assert_int_equal(corewire_unpack_view(&f.wire, &limits, &f.arena, &f.back, &f.e),
			 SHARD_PROTOCOL);
	assert_non_null(strstr(f.e.text, "catch up"));
}

/* The step that an image is named by travels with the record. An impossible one is refused. */
static void test_content(void **state)
{
	static struct fixture f;

	(void)state;
	pack(&f);
	f.view.restoring = false;
	f.view.sealed = true;
	f.view.record = (struct record){.id = {.step = 9, .generation = 2},
					.outcome = RECORD_SKIP,
					.content = 6,
					.bad_tensor = -1,
					.bad_rank = -1,
					.groups_nr = 1,
					.world.size = 1};
	assert_int_equal(corewire_pack_view(&f.view, &f.arena, &f.wire), SHARD_OK);
	assert_int_equal(corewire_unpack_view(&f.wire, &limits, &f.arena, &f.back, &f.e), SHARD_OK);
	assert_int_equal(f.back.record.content, 6);
	f.wire.record->content = 9;
	assert_int_equal(corewire_unpack_view(&f.wire, &limits, &f.arena, &f.back, &f.e),
			 SHARD_PROTOCOL);
	assert_non_null(strstr(f.e.text, "whose weights are of step 9"));
	f.wire.record->outcome = RECORD_APPLIED;
	assert_int_equal(corewire_unpack_view(&f.wire, &limits, &f.arena, &f.back, &f.e), SHARD_OK);
}

/* The record of a view has the generation of the view, and generations count from 1. */
static void test_generation(void **state)
{
	static const struct {
		uint32_t view, record;
	} wrong[] = {{2, 1}, {2, 3}, {2, 0}, {0, 0}, {0, 2}};
	static struct fixture f;

	(void)state;
	pack(&f);
	f.view.restoring = false;
	f.view.sealed = true;
	f.view.record = (struct record){.id.generation = 2, .groups_nr = 1, .world.size = 1};
	assert_int_equal(corewire_pack_view(&f.view, &f.arena, &f.wire), SHARD_OK);
	assert_int_equal(corewire_unpack_view(&f.wire, &limits, &f.arena, &f.back, &f.e), SHARD_OK);
	for (size_t i = 0; i < NR(wrong); i++) {
		f.wire.generation = wrong[i].view;
		f.wire.record->id->generation = wrong[i].record;
		assert_int_equal(corewire_unpack_view(&f.wire, &limits, &f.arena, &f.back, &f.e),
				 SHARD_PROTOCOL);
		assert_non_null(strstr(f.e.text, "with a record of generation"));
	}
}

/* An answer says which view its sender adopted. */
static void test_answer(void **state)
{
	static struct fixture f;
	struct core_answer answer = {
		.incarnation = 7, .term = 1ull << 40, .seq = 3, .generation = 2};
	struct core_msg m = {.op = CORE_ANSWER, .answer = &answer}, back;
	struct wire_head h;
	Shard__Core wire;

	(void)state;
	pack(&f);
	assert_int_equal(corewire_pack(&m, &f.arena, &h, &wire), SHARD_OK);
	assert_int_equal(corewire_unpack(&h, &wire, &limits, &f.arena, &back, &f.e), SHARD_OK);
	assert_memory_equal(back.answer, &answer, sizeof(answer));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_view),    cmocka_unit_test(test_small),
		cmocka_unit_test(test_refused), cmocka_unit_test(test_content),
		cmocka_unit_test(test_answer),  cmocka_unit_test(test_members),
		cmocka_unit_test(test_names),   cmocka_unit_test(test_placement),
		cmocka_unit_test(test_learns),  cmocka_unit_test(test_generation)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
