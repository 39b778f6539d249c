// SPDX-License-Identifier: Apache-2.0
/* Tests the hold of a store. What is read is as it was when the hold began, whatever the order of
 * copies, changes and reads, also with threads that read and others that change at the same time. A
 * hold without a place for a change is broken, and says so, and so is one of which not all is read.
 * It is covered from when each chunk that was not read has a place. Places stay from one hold to
 * the next. */
#include "base/check.h"
#include "store/hold.h"
#include "store/store_impl.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

enum { CE = 16384, CHUNKS = 12, ARRAYS = 3, PIECES = 4, PIECE = CE / PIECES, ROUNDS = 30 };

static const struct shard_tensor tensors[] = {
	{.name = "a", .ndim = 1, .shape = {CHUNKS * CE}},
};

struct yard {
	struct layout *layout;
	uint16_t owner[CHUNKS];
	struct store *store;
	uint64_t bytes[CHUNKS];
	float got[ARRAYS][CHUNKS][CE];
	_Atomic uint32_t next; /* Of the pieces, for threads that read. */
	_Atomic uint32_t changed;
};

static float *array_at(struct yard *y, uint32_t chunk, uint32_t array)
{
	return array == 0 ? store_master(y->store, chunk) : store_state(y->store, chunk, array - 1);
}

static float value(uint32_t chunk, uint32_t array, uint32_t step)
{
	return (float)(step * 1000 + chunk * 10 + array);
}

static void write_chunk(struct yard *y, uint32_t chunk, uint32_t step)
{
	for (uint32_t a = 0; a < ARRAYS; a++)
		for (uint32_t i = 0; i < CE; i++)
			array_at(y, chunk, a)[i] = value(chunk, a, step);
}

static int setup(void **state)
{
	struct yard *y = calloc(1, sizeof(*y));
	struct store_conf conf = {.name = "m",
				  .optim = optim_find("adamw"),
				  .grad = SHARD_F32,
				  .nodes_nr = 1,
				  .local_world = 1,
				  .huge = SHM_HUGE_NO};
	struct err e = {.text = ""};

	assert_non_null(y);
	if (layout_init(&y->layout, tensors, 1, 1, SHARD_F32, CE, &e) != SHARD_OK)
		fail_msg("%s", e.text);
	assert_int_equal(y->layout->chunks_nr, CHUNKS);
	conf.layout = y->layout;
	conf.place = place_of(y->owner, NULL, CHUNKS);
	if (store_init(&y->store, &conf, &e) != SHARD_OK)
		fail_msg("%s", e.text);
	for (uint32_t c = 0; c < CHUNKS; c++) {
		write_chunk(y, c, 0);
		y->bytes[c] = (uint64_t)ARRAYS * CE * sizeof(float);
	}
	*state = y;
	return 0;
}

static int teardown(void **state)
{
	struct yard *y = *state;

	store_free(&y->store);
	layout_free(&y->layout);
	free(y);
	return 0;
}

/* As tier_ram.c does it. */
static void change(struct yard *y, uint32_t chunk, uint32_t step)
{
	float *place[3] = {NULL, NULL, NULL};
	bool keeps = hold_keep(y->store, chunk, place);

	for (uint32_t i = 0; keeps && i < ARRAYS; i++)
		memcpy(place[i], array_at(y, chunk, i), CE * sizeof(float));
	write_chunk(y, chunk, step);
	if (keeps)
		hold_kept(y->store, chunk);
}

struct copy {
	float *to;
	uint32_t first;
	bool called;
};

static void copy(void *ctx, float *at)
{
	struct copy *c = ctx;

	memcpy(c->to, at + c->first, PIECE * sizeof(float));
	c->called = true;
}

/* False: the hold is broken. */
static bool read_piece(struct yard *y, uint32_t chunk, uint32_t array, uint32_t piece)
{
	struct copy c = {&y->got[array][chunk][piece * PIECE], piece * PIECE, false};
	struct hold_read r = {.chunk = chunk,
			      .array = array,
			      .bytes = PIECE * sizeof(float),
			      .with = copy,
			      .ctx = &c};

	hold_read(y->store, &r, array_at(y, chunk, array));
	return c.called;
}

static void read_chunk(struct yard *y, uint32_t chunk)
{
	for (uint32_t a = 0; a < ARRAYS; a++)
		for (uint32_t p = 0; p < PIECES; p++)
			assert_true(read_piece(y, chunk, a, p));
}

static void check_read(struct yard *y, uint32_t chunk, uint32_t step)
{
	for (uint32_t a = 0; a < ARRAYS; a++)
		for (uint32_t i = 0; i < CE; i++)
			if (y->got[a][chunk][i] != value(chunk, a, step))
				fail_msg("array %u of chunk %u is %g at %u, not %g", a, chunk,
					 (double)y->got[a][chunk][i], i,
					 (double)value(chunk, a, step));
}

static void copies_before_the_first_change(void **state)
{
	struct yard *y = *state;

	hold_begin(y->store, y->bytes, CHUNKS);
	assert_true(hold_on(y->store) && hold_covered(y->store));
	assert_int_equal(hold_places(y->store), CHUNKS);
	read_chunk(y, 0); /* Nothing is copied of a chunk that was read. */
	change(y, 0, 1);
	assert_false(hold_copied(y->store, 0));
	assert_true(read_piece(y, 1, 0, 2)); /* In part. */
	change(y, 1, 1);
	assert_true(hold_copied(y->store, 1));
	change(y, 1, 2); /* Only the first change copies. */
	for (uint32_t c = 2; c < CHUNKS; c++)
		change(y, c, 1);
	for (uint32_t c = 1; c < CHUNKS; c++)
		for (uint32_t a = 0; a < ARRAYS; a++)
			for (uint32_t p = 0; p < PIECES; p++)
				assert_true((c == 1 && a == 0 && p == 2) || read_piece(y, c, a, p));
	for (uint32_t c = 0; c < CHUNKS; c++)
		check_read(y, c, 0);
	assert_true(hold_end(y->store));
	assert_false(hold_on(y->store));
	change(y, 3, 2); /* Nothing is held. */
	assert_true(store_master(y->store, 3)[5] == value(3, 0, 2));
}

static void is_covered(void **state)
{
	struct yard *y = *state;
	void *at;

	hold_begin(y->store, y->bytes, 2);
	for (uint32_t c = 0; c < CHUNKS - 2; c++) {
		assert_false(hold_covered(y->store));
		read_chunk(y, c);
	}
	assert_true(hold_covered(y->store));
	change(y, CHUNKS - 1, 1);
	assert_true(hold_covered(y->store));
	change(y, CHUNKS - 2, 1);
	for (uint32_t c = CHUNKS - 2; c < CHUNKS; c++) {
		read_chunk(y, c);
		check_read(y, c, 0);
	}
	assert_true(hold_end(y->store));
	/* The two places are there for the next hold, and more may be added. */
	hold_begin(y->store, y->bytes, 0);
	change(y, 0, 5);
	change(y, 1, 5);
	read_chunk(y, 1);
	check_read(y, 1, 0);
	change(y, 2, 5); /* In the place of chunk 1. */
	read_chunk(y, 2);
	check_read(y, 2, 0);
	assert_false(hold_end(y->store)); /* Not all was read. */
	hold_begin(y->store, y->bytes, 3);
	assert_int_equal(hold_places(y->store), 5);
	assert_false(hold_end(y->store));
	assert_int_equal(hold_detach(y->store, &at), 5 * hold_place_bytes(y->store));
	munmap(at, 5 * hold_place_bytes(y->store));
	assert_int_equal(hold_detach(y->store, &at), 0);
}

static void is_broken(void **state)
{
	struct yard *y = *state;
	uint64_t one[CHUNKS] = {[4] = y->bytes[4], [5] = y->bytes[5]};

	hold_begin(y->store, one, 1);
	change(y, 0, 1); /* It is not held. */
	change(y, 4, 1);
	change(y, 5, 1);                     /* There is no place. */
	assert_true(hold_covered(y->store)); /* Nobody need wait for it. */
	assert_true(hold_copied(y->store, 5));
	assert_false(read_piece(y, 5, 0, 0));
	assert_false(hold_end(y->store));
	/* Something else than a step changes a chunk. */
	hold_begin(y->store, one, 1);
	hold_break(y->store, 0);
	assert_true(read_piece(y, 4, 0, 0));
	hold_break(y->store, 4);
	assert_false(read_piece(y, 4, 0, 1));
	assert_false(hold_end(y->store));
	/* Not of one that was copied or read. */
	hold_begin(y->store, one, 1);
	change(y, 4, 2);
	read_chunk(y, 5);
	hold_break(y->store, 4);
	hold_break(y->store, 5);
	read_chunk(y, 4);
	check_read(y, 4, 1);
	assert_true(hold_end(y->store));
}

/* What is frozen needs no place, and is read where it lies whatever steps do. */
static void frozen_chunks(void **state)
{
	static const struct shard_tensor some[] = {
		{.name = "a", .ndim = 1, .shape = {CE}},
		{.name = "b", .ndim = 1, .shape = {2 * CE}, .flags = SHARD_FROZEN},
	};
	const uint64_t bytes[] = {CE * 4, CE * 4, CE * 4};
	struct yard *y = *state;
	struct layout *whole = y->layout;
	float *place[3] = {NULL, NULL, NULL};
	struct err e = {.text = ""};
	struct store_conf conf = y->store->conf;
	struct store *st;

	if (layout_init(&y->layout, some, 2, 1, SHARD_F32, CE, &e) != SHARD_OK)
		fail_msg("%s", e.text);
	assert_int_equal(y->layout->chunks_nr, 3);
	conf.layout = y->layout;
	conf.place = place_of(y->owner, NULL, 3);
	if (store_init(&st, &conf, &e) != SHARD_OK)
		fail_msg("%s", e.text);
	assert_int_equal(hold_wants(st, bytes), 1);
	hold_begin(st, bytes, 1);
	assert_true(hold_covered(st));
	for (uint32_t c = 1; c < 3; c++) {
		assert_false(hold_keep(st, c, place));
		assert_false(hold_copied(st, c));
	}
	assert_true(hold_keep(st, 0, place));
	hold_kept(st, 0);
	assert_true(hold_copied(st, 0));
	for (uint32_t c = 0; c < 3; c++) {
		struct copy got = {y->got[0][c], 0, false};
		struct hold_read r = {
			.chunk = c, .array = 0, .bytes = CE * 4, .with = copy, .ctx = &got};

		hold_read(st, &r, store_master(st, c));
		assert_true(got.called);
	}
	assert_true(hold_end(st));
	store_free(&st);
	layout_free(&y->layout);
	y->layout = whole;
}

static void *reads(void *arg)
{
	struct yard *y = arg;
	uint32_t i;

	while ((i = atomic_fetch_add(&y->next, 1)) < CHUNKS * ARRAYS * PIECES)
		CHECK(read_piece(y, i / (ARRAYS * PIECES), i / PIECES % ARRAYS, i % PIECES));
	return NULL;
}

static void *changes(void *arg)
{
	struct yard *y = arg;
	uint32_t i;

	while ((i = atomic_fetch_add(&y->changed, 1)) < 2 * CHUNKS)
		change(y, i * 7 % CHUNKS, 100 + i);
	return NULL;
}

/* Chunks are changed from the end and the beginning while threads read them. */
static void many_threads(void **state)
{
	struct yard *y = *state;
	pthread_t thread[4];

	for (uint32_t round = 0; round < ROUNDS; round++) {
		for (uint32_t c = 0; c < CHUNKS; c++)
			write_chunk(y, c, round);
		atomic_store(&y->next, 0);
		atomic_store(&y->changed, CHUNKS);
		hold_begin(y->store, y->bytes, round == 0 ? CHUNKS : 0);
		for (uint32_t t = 0; t < 4; t++)
			assert_int_equal(
				pthread_create(&thread[t], NULL, t < 2 ? reads : changes, y), 0);
		for (uint32_t t = 0; t < 4; t++)
			pthread_join(thread[t], NULL);
		assert_true(hold_end(y->store));
		for (uint32_t c = 0; c < CHUNKS; c++) {
			check_read(y, c, round);
			assert_true(store_master(y->store, c)[0] >= value(c, 0, 100));
		}
	}
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(copies_before_the_first_change),
		TEST(is_covered),
		TEST(is_broken),
		TEST(frozen_chunks),
		TEST(many_threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
