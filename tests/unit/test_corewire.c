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
#include "model/tablewire.h"

#include "base/check.h"
#include "core/moves.h"
#include "wire/layout.h"
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
					  .resumed_skips = 4,
					  .set[0] = TUNE_HYPERS,
					  .hyper[0] = {0, 0.5, 0.25, 1e-8, 0, 0.125}};
	assert_int_equal(corewire_pack_view(&f->view, 0, &f->arena, &f->wire), SHARD_OK);
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
	} while (corewire_pack_view(&f.view, 0, &f.arena, &f.wire) == SHARD_AGAIN &&
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
	for (size_t i = 0; i < 2 * NR(bad); i++) {
		pack(&f);
		assert_int_equal(f.wire.tune->n_hyper, 5);
		if (i < NR(bad))
			f.wire.tune->hyper[4]->value = bad[i];
		else if (i == NR(bad))
			f.wire.tune->hyper[4]->group = 1;
		else
			f.wire.tune->hyper[4]->key = i == NR(bad) + 1 ? HYPER_LR : HYPER_NR;
		assert_int_equal(corewire_unpack_view(&f.wire, &limits, &f.arena, &f.back, &f.e),
				 SHARD_PROTOCOL);
		assert_non_null(strstr(f.e.text, "nobody could set that"));
	}
	pack(&f);
	f.view.sealed = true;
	f.view.record.groups_nr = 1;
	assert_int_equal(corewire_pack_view(&f.view, 0, &f.arena, &f.wire), SHARD_OK);
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
	assert_int_equal(corewire_pack_view(&f.view, 0, &f.arena, &f.wire), SHARD_OK);
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

/* A view that brings no tables has those of the definition. */
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
	assert_non_null(strstr(f.e.text, "not those of the definition"));
	f.wire.place = mine.place.sum;
	assert_int_equal(corewire_unpack_view(&f.wire, &mine, &f.arena, &f.back, &f.e), SHARD_OK);
	assert_true(f.back.place.primary == here && f.back.place.sum == mine.place.sum);
	assert_int_equal(corewire_unpack_view(&f.wire, &limits, &f.arena, &f.back, &f.e), SHARD_OK);
	assert_null(f.back.place.primary);
	assert_int_equal(f.back.place.sum, mine.place.sum);
}

/* --- tables --- */

enum { CHUNKS = 5, NODES = 4 };

static const struct corewire_limits moved = {
	.chunks_nr = CHUNKS, .groups_nr = 1, .nodes_nr = NODES};
static const uint16_t was[CHUNKS] = {0, 0, 1, 1, 2}, will[CHUNKS] = {3, 3, 1, 1, 2};
/* One move has given way to another, so the numbers differ. */
static const uint64_t had[CHUNKS] = {0x3, 0x1, 0xf, 0x6, 0x4},
		      has[CHUNKS] = {0x9, 0x8, 0x2, 0x2, 0x6};

/* A sealed view of four nodes, in which chunks move to nodes 2 and 3. */
static void pack_moving(struct fixture *f)
{
	pack(f);
	f->view.restoring = false;
	f->view.sealed = true;
	f->view.record.id.generation = f->view.generation;
	f->view.record.groups_nr = 1;
	f->view.members = view_first(NODES, 0);
	for (uint8_t n = 0; n < NODES; n++)
		f->view.members.node[n] =
			(struct view_node){.uuid = {(uint8_t)(1 + n)}, .incarnation = 7u + n};
	f->view.place = place_moving(was, had, will, has, CHUNKS);
	f->view.place.gone = ~f->view.members.nodes;
	f->view.place.moves = 1u << 3;
	f->view.place.learns = 1u << 2;
	assert_int_equal(corewire_pack_view(&f->view, 1, &f->arena, &f->wire), SHARD_OK);
}

static void same_table(const void *a, const void *b, size_t bytes)
{
	assert_int_equal(a == NULL, b == NULL);
	assert_true(a == NULL || (a != b && memcmp(a, b, bytes) == 0));
}

static void turns(struct fixture *f, const struct placement *p)
{
	struct placement want = *p;
	Shard__View *again;
	uint8_t packed[2048];
	size_t bytes;

	want.gone = f->view.place.gone;
	want.learns = f->view.place.learns;
	want.moves = f->view.place.moves;
	f->view.place = want;
	arena_reset(&f->arena);
	assert_int_equal(corewire_pack_view(&f->view, 1, &f->arena, &f->wire), SHARD_OK);
	bytes = shard__view__get_packed_size(&f->wire);
	assert_true(bytes <= sizeof(packed));
	shard__view__pack(&f->wire, packed);
	again = shard__view__unpack(NULL, bytes, packed);
	assert_non_null(again);
	arena_reset(&f->arena);
	if (corewire_unpack_view(again, &moved, &f->arena, &f->back, &f->e) != SHARD_OK)
		fail_msg("%s", f->e.text);
	assert_true(place_same(&f->back.place, &want));
	same_table(f->back.place.primary, p->primary, sizeof(was));
	same_table(f->back.place.holders, p->holders, sizeof(had));
	same_table(f->back.place.to_primary, p->to_primary, sizeof(will));
	same_table(f->back.place.to, p->to, sizeof(has));
	assert_true(f->arena.used <= tablewire_bytes(again->tables));
	/* The number of chunks may be read from the file. */
	arena_reset(&f->arena);
	assert_int_equal(
		corewire_unpack_view(again,
				     &(struct corewire_limits){.groups_nr = 1, .nodes_nr = NODES},
				     &f->arena, &f->back, &f->e),
		SHARD_OK);
	assert_true(place_same(&f->back.place, &want));
	shard__view__free_unpacked(again, NULL);
}

static void test_tables(void **state)
{
	static struct fixture f;
	struct placement p = place_moving(was, NULL, will, has, CHUNKS);

	(void)state;
	pack_moving(&f);
	turns(&f, &f.view.place);
	f.view.place.learns = 0;
	turns(&f, &p);
	f.view.place.moves = 0;
	p = place_of(will, has, CHUNKS);
	turns(&f, &p);
	p = place_of(was, NULL, CHUNKS);
	turns(&f, &p);
}

/* Tables of the definition do not travel, and an unchanged cluster sends what it sent before. */
static void test_tables_stay(void **state)
{
	static struct fixture f;
	struct corewire_limits mine = moved;
	size_t bytes;

	(void)state;
	pack_moving(&f);
	f.view.place = place_of(was, had, CHUNKS);
	f.view.place.gone = ~f.view.members.nodes;
	assert_int_equal(corewire_pack_view(&f.view, f.view.place.sum, &f.arena, &f.wire),
			 SHARD_OK);
	assert_null(f.wire.tables);
	bytes = shard__view__get_packed_size(&f.wire);
	f.view.place.primary = NULL;
	assert_int_equal(corewire_pack_view(&f.view, 1, &f.arena, &f.wire), SHARD_OK);
	assert_int_equal(shard__view__get_packed_size(&f.wire), bytes);
	mine.place = place_of(was, had, CHUNKS);
	assert_int_equal(corewire_unpack_view(&f.wire, &mine, &f.arena, &f.back, &f.e), SHARD_OK);
	assert_ptr_equal(f.back.place.holders, had);
}

/* What is wrong with the tables of a view, one by one. Every sum is that of what came. */
struct wrong {
	uint16_t primary[CHUNKS], to_primary[CHUNKS];
	uint64_t holders[CHUNKS], to[CHUNKS];
	const char *why;
};

static void refuse(struct fixture *f, const char *why)
{
	arena_reset(&f->arena);
	assert_int_equal(corewire_unpack_view(&f->wire, &moved, &f->arena, &f->back, &f->e),
			 SHARD_PROTOCOL);
	if (strstr(f->e.text, why) == NULL)
		fail_msg("\"%s\", expected \"%s\"", f->e.text, why);
}

static void test_tables_refused(void **state)
{
	static const struct wrong wrong[] = {
		{{0, 0, 1, 1, 4},
		 {3, 3, 1, 1, 2},
		 {3, 1, 15, 6, 16},
		 {9, 8, 2, 2, 6},
		 "a node that"},
		{{0, 0, 1, 1, 2},
		 {3, 3, 1, 1, 4},
		 {3, 1, 15, 6, 4},
		 {9, 8, 2, 2, 16},
		 "a node that"},
		{{0, 0, 1, 1, 2},
		 {3, 3, 1, 1, 2},
		 {3, 17, 15, 6, 4},
		 {9, 8, 2, 2, 6},
		 "a node that"},
		{{0, 0, 1, 1, 2},
		 {3, 3, 1, 1, 2},
		 {3, 1, 15, 6, 4},
		 {9, 24, 2, 2, 6},
		 "a node that"},
		{{0, 0, 1, 1, 2},
		 {3, 3, 1, 1, 2},
		 {3, 0, 15, 6, 4},
		 {9, 8, 2, 2, 6},
		 "primary does not"},
		{{0, 0, 1, 1, 2},
		 {3, 3, 1, 1, 2},
		 {3, 2, 15, 6, 4},
		 {9, 8, 2, 2, 6},
		 "primary does not"},
		{{0, 0, 1, 1, 2},
		 {3, 3, 1, 1, 2},
		 {3, 1, 15, 6, 4},
		 {9, 8, 2, 0, 6},
		 "primary does not"},
		{{0, 0, 1, 1, 2},
		 {3, 3, 1, 1, 2},
		 {3, 1, 15, 6, 4},
		 {9, 6, 2, 2, 6},
		 "primary does not"},
	};
	static struct fixture f;

	(void)state;
	for (size_t i = 0; i < NR(wrong); i++) {
		const struct wrong *w = &wrong[i];
		static uint8_t at[4][CHUNKS * 16];
		struct arena a;

		pack_moving(&f);
		arena_init(&a, at, sizeof(at));
		f.view.place = place_moving(w->primary, w->holders, w->to_primary, w->to, CHUNKS);
		assert_int_equal(tablewire_pack(&f.view.place, &a, f.wire.tables), SHARD_OK);
		f.wire.place = f.view.place.sum;
		refuse(&f, w->why);
	}
}

/* Runs that are no table. */
static void test_runs_refused(void **state)
{
	static struct fixture f;
	static const uint32_t odd[] = {0, 5, 1}, many[] = {0, 5, 1, UINT32_MAX}, few[] = {0, 4};
	static const uint64_t mask_few[] = {0xf, 4}, mask_many[] = {0xf, 5, 0xf, UINT64_MAX};
	static uint8_t at[2][4096];
	struct arena a;

	(void)state;
	for (int i = 0; i < 10; i++) {
		Shard__Tables *t;

		pack_moving(&f);
		arena_init(&a, at,
			   sizeof(at)); /* Runs that the unpacked tables do not overwrite. */
		t = f.wire.tables;
		assert_int_equal(tablewire_pack(&f.view.place, &a, t), SHARD_OK);
		if (i < 6) {
			*(i % 2 ? &t->to_primary : &t->primary) =
				(uint32_t *)(uintptr_t)(i / 2 == 0   ? odd
							: i / 2 == 1 ? many
								     : few);
			*(i % 2 ? &t->n_to_primary : &t->n_primary) = i / 2 == 0   ? NR(odd)
								      : i / 2 == 1 ? NR(many)
										   : NR(few);
		} else {
			*(i % 2 ? &t->to : &t->holders) =
				(uint64_t *)(uintptr_t)(i / 2 == 3 ? mask_few : mask_many);
			*(i % 2 ? &t->n_to : &t->n_holders) = i / 2 == 3 ? 2 : 4;
		}
		refuse(&f, "tables of 5 chunks");
	}
	pack_moving(&f);
	f.wire.tables->n_to = 0;
	refuse(&f, "move to no holders");
	pack_moving(&f);
	f.wire.tables->n_to_primary = 0;
	refuse(&f, "tables of 5 chunks: placement");
	pack_moving(&f);
	f.wire.place++;
	refuse(&f, "which names those of");
	pack_moving(&f); /* Nobody says how many chunks there are, and nothing is allocated. */
	f.wire.tables->n_primary = 2;
	f.wire.tables->primary = (uint32_t[]){0, LAYOUT_CHUNKS_MAX + 1};
	assert_int_equal(
		corewire_unpack_view(&f.wire,
				     &(struct corewire_limits){.groups_nr = 1, .nodes_nr = NODES},
				     &f.arena, &f.back, &f.e),
		SHARD_PROTOCOL);
	assert_non_null(strstr(f.e.text, "of no chunk, or of more than"));
}

/* The masks of a view fit its members and its tables. */
static void test_moves(void **state)
{
	static const struct {
		uint64_t moves, learns, members;
		bool sealed, to;
		const char *why;
	} bad[] = {
		{8, 8, 15, true, true, "chunks move to the nodes 0x8"},
		{8, 4, 7, true, true, "chunks move to the nodes 0x8"},
		{8, 0, 15, false, true, "chunks move to the nodes 0x8"},
		{8, 0, 15, true, false, "chunks move to the nodes 0x8"},
		{8, 1, 15, true, true, "has no copy"}, /* Of the second chunk. */
		{8, 0, 14, true, true, "has no copy"},
		{0, 9, 15, true, true, "has no copy"},
	};
	static struct fixture f;

	(void)state;
	for (size_t i = 0; i < NR(bad); i++) {
		pack_moving(&f);
		f.view.members.nodes = bad[i].members;
		f.view.members.coordinator = 1;
		f.view.sealed = bad[i].sealed;
		f.view.place = bad[i].to ? place_moving(was, had, will, has, CHUNKS)
					 : place_of(was, had, CHUNKS);
		f.view.place.moves = bad[i].moves;
		f.view.place.learns = bad[i].learns;
		assert_int_equal(corewire_pack_view(&f.view, 1, &f.arena, &f.wire), SHARD_OK);
		assert_int_equal(corewire_unpack_view(&f.wire, &moved, &f.arena, &f.back, &f.e),
				 SHARD_PROTOCOL);
		if (strstr(f.e.text, bad[i].why) == NULL)
			fail_msg("%zu: \"%s\"", i, f.e.text);
	}
}

/* Wherever the memory ends, a view with tables is not packed and not unpacked in part. */
static void test_tables_small(void **state)
{
	static struct fixture f;
	static uint8_t small[1 << 16];
	struct arena a;
	size_t bytes = 0, unpacked = 0;
	enum shard_status st;

	(void)state;
	pack_moving(&f);
	do {
		arena_init(&a, small, unpacked);
		unpacked += 16;
		st = corewire_unpack_view(&f.wire, &moved, &a, &f.back, &f.e);
		assert_true(st == SHARD_OK || strstr(f.e.text, "larger than this node's") != NULL);
	} while (st != SHARD_OK && unpacked < sizeof(small));
	assert_true(unpacked > 4 * 16 && unpacked < sizeof(small));
	do {
		arena_init(&a, small, bytes);
		bytes += 16;
	} while (corewire_pack_view(&f.view, 1, &a, &f.wire) == SHARD_AGAIN &&
		 bytes < sizeof(small));
	assert_true(bytes > unpacked && bytes < sizeof(small));
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
	assert_int_equal(corewire_pack_view(&f.view, 0, &f.arena, &f.wire), SHARD_OK);
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
					.content_old = 6,
					.bad_tensor = -1,
					.bad_rank = -1,
					.groups_nr = 1,
					.world.size = 1};
	assert_int_equal(corewire_pack_view(&f.view, 0, &f.arena, &f.wire), SHARD_OK);
	assert_int_equal(corewire_unpack_view(&f.wire, &limits, &f.arena, &f.back, &f.e), SHARD_OK);
	assert_int_equal(f.back.record.content, 6);
	f.wire.record->content = 9;
	assert_int_equal(corewire_unpack_view(&f.wire, &limits, &f.arena, &f.back, &f.e),
			 SHARD_PROTOCOL);
	assert_non_null(strstr(f.e.text, "whose weights are of step 9"));
	f.wire.record->outcome = RECORD_APPLIED;
	assert_int_equal(corewire_unpack_view(&f.wire, &limits, &f.arena, &f.back, &f.e), SHARD_OK);
	assert_int_equal(f.back.record.content_old, 6);
	f.wire.record->content_old = 0; /* A release that does not know it. */
	assert_int_equal(corewire_unpack_view(&f.wire, &limits, &f.arena, &f.back, &f.e), SHARD_OK);
	assert_int_equal(f.back.record.content_old, 9);
	f.wire.record->content_old = 11;
	assert_int_equal(corewire_unpack_view(&f.wire, &limits, &f.arena, &f.back, &f.e),
			 SHARD_PROTOCOL);
	assert_non_null(strstr(f.e.text, "of step 10 before"));
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
	assert_int_equal(corewire_pack_view(&f.view, 0, &f.arena, &f.wire), SHARD_OK);
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
	assert_int_equal(corewire_pack(&m, 0, &f.arena, &h, &wire), SHARD_OK);
	assert_int_equal(corewire_unpack(&h, &wire, &limits, &f.arena, &back, &f.e), SHARD_OK);
	assert_memory_equal(back.answer, &answer, sizeof(answer));
}

/* What ranks gave travels without the zeros behind the last number. What comes has equally many of
 * each rank, and at most as many as there are. */
static void test_values(void **state)
{
	static const struct {
		uint16_t op;
		size_t given, ranks, sent;
		bool good;
	} cases[] = {
		{CORE_VOTE, 1, 2, 1, true},   {CORE_VOTE, 0, 2, 0, true},
		{CORE_VOTE, 16, 2, 16, true}, {CORE_VOTE, 1, 2, 17, false},
		{CORE_RANKS, 3, 2, 6, true},  {CORE_RANKS, 16, 2, 32, true},
		{CORE_RANKS, 3, 2, 7, false}, {CORE_RANKS, 3, 2, 34, false},
		{CORE_RANKS, 1, 0, 0, true},  {CORE_RANKS, 1, 0, 1, false},
	};
	double values[2 * CORE_VALUES_NR], sent[34] = {0};
	const double weights[2] = {1, 2}, sumsq = 1;
	const uint8_t finite = 1;
	static struct fixture f;
	struct core_msg m, back;
	struct wire_head h;
	Shard__Core wire;

	(void)state;
	for (size_t i = 0; i < NR(cases); i++) {
		size_t rows = cases[i].op == CORE_RANKS ? cases[i].ranks : 1;

		arena_init(&f.arena, f.memory, sizeof(f.memory));
		memset(values, 0, sizeof(values));
		/* The number that counts is of the last rank, and it may be -0. */
		if (cases[i].given > 0 && rows > 0)
			values[(rows - 1) * CORE_VALUES_NR + cases[i].given - 1] = -0.0;
		m = (struct core_msg){.op = (enum core_op)cases[i].op,
				      .vote = {.sumsq = &sumsq,
					       .finite = &finite,
					       .chunks_nr = 1,
					       .weights = weights,
					       .ranks_nr = (uint32_t)cases[i].ranks,
					       .has_clip = i % 2,
					       .clip = i % 2 ? 0.5 : 0,
					       .values = values,
					       .values_nr = (uint32_t)rows * CORE_VALUES_NR}};
		assert_int_equal(corewire_pack(&m, 0, &f.arena, &h, &wire), SHARD_OK);
		if (cases[i].good)
			assert_int_equal(wire.vote->n_values, cases[i].sent);
		if (!cases[i].good) {
			wire.vote->n_values = cases[i].sent;
			wire.vote->values = sent;
		}
		assert_int_equal(corewire_unpack(&h, &wire, &limits, &f.arena, &back, &f.e),
				 cases[i].good ? SHARD_OK : SHARD_PROTOCOL);
		if (!cases[i].good) {
			assert_non_null(strstr(f.e.text, "each gives equally many, and at most"));
			continue;
		}
		assert_true(back.vote.has_clip == i % 2 && back.vote.clip == (i % 2 ? 0.5 : 0));
		assert_int_equal(back.vote.values_nr, rows * CORE_VALUES_NR);
		assert_memory_equal(back.vote.values, values,
				    rows * CORE_VALUES_NR * sizeof(values[0]));
	}
}

static void test_clips(void **state)
{
	static const double clips[] = {1, -1, (double)NAN, (double)INFINITY}, weights[2] = {1, 2},
			    sumsq = 1;
	static const uint8_t finite = 1;
	static struct fixture f;
	struct core_msg m = {.op = CORE_VOTE,
			     .vote = {.sumsq = &sumsq,
				      .finite = &finite,
				      .chunks_nr = 1,
				      .weights = weights,
				      .ranks_nr = 2}},
			back;
	struct wire_head h;
	Shard__Core wire;

	(void)state;
	for (size_t i = 0; i < NR(clips); i++) {
		arena_init(&f.arena, f.memory, sizeof(f.memory));
		assert_int_equal(corewire_pack(&m, 0, &f.arena, &h, &wire), SHARD_OK);
		wire.vote->has_clip = i > 0;
		wire.vote->clip = clips[i];
		assert_int_equal(corewire_unpack(&h, &wire, &limits, &f.arena, &back, &f.e),
				 SHARD_PROTOCOL);
		assert_non_null(strstr(f.e.text, "a vote with clip"));
	}
}

static void test_values_of_a_record(void **state)
{
	static double sent[17];
	static struct fixture f;

	(void)state;
	pack(&f);
	f.view.restoring = false;
	f.view.sealed = true;
	f.view.record = (struct record){.id.generation = 2, .groups_nr = 1, .world.size = 1};
	f.view.record.values[1] = 2.5;
	assert_int_equal(corewire_pack_view(&f.view, 0, &f.arena, &f.wire), SHARD_OK);
	assert_int_equal(f.wire.record->n_values, 2);
	assert_int_equal(corewire_unpack_view(&f.wire, &limits, &f.arena, &f.back, &f.e), SHARD_OK);
	assert_memory_equal(&f.view.record, &f.back.record, sizeof(f.view.record));
	f.wire.record->n_values = 17;
	f.wire.record->values = sent;
	assert_int_equal(corewire_unpack_view(&f.wire, &limits, &f.arena, &f.back, &f.e),
			 SHARD_PROTOCOL);
}

/* A core says the same to several nodes: it is packed once. Whatever differs is packed anew. */
static void test_same(void **state)
{
	static struct core_world world, other_world;
	static struct record record, other_record;
	static struct core_view view;
	const struct core_msg m = {.op = CORE_BEGIN,
				   .to = 1,
				   .id = {.term = 7, .step = 3},
				   .world = &world,
				   .record = &record,
				   .why = "so"};
	struct core_msg other[] = {m, m, m, m, m, m, m, m, m, m};
	struct core_msg same = m;
	char so[] = "so";

	(void)state;
	same.to = 2;
	same.why = so;
	assert_true(corewire_same(&m, &same));
	other[0].op = CORE_COMMIT;
	other[1].id.step = 4;
	other[2].world = &other_world;
	other[3].record = &other_record;
	other[4].view = &view;
	other[5].why = "not so";
	other[6].why = NULL;
	other[7].status = SHARD_MISMATCH;
	other[8].too_few = true;
	other[9].waits.nodes = 1;
	for (size_t i = 0; i < NR(other); i++)
		assert_false(corewire_same(&m, &other[i]));
	same.op = other[0].op = CORE_VOTE; /* Each is of one node. */
	assert_false(corewire_same(&same, &other[0]));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_view),           cmocka_unit_test(test_small),
		cmocka_unit_test(test_refused),        cmocka_unit_test(test_content),
		cmocka_unit_test(test_answer),         cmocka_unit_test(test_members),
		cmocka_unit_test(test_names),          cmocka_unit_test(test_placement),
		cmocka_unit_test(test_learns),         cmocka_unit_test(test_generation),
		cmocka_unit_test(test_tables),         cmocka_unit_test(test_tables_stay),
		cmocka_unit_test(test_tables_refused), cmocka_unit_test(test_runs_refused),
		cmocka_unit_test(test_moves),          cmocka_unit_test(test_tables_small),
		cmocka_unit_test(test_same),           cmocka_unit_test(test_values),
		cmocka_unit_test(test_clips),          cmocka_unit_test(test_values_of_a_record)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
