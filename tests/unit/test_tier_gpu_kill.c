// SPDX-License-Identifier: Apache-2.0
/* Tests what a process leaves to the next one whose chunks are in the memory of devices, moved by
 * hand. One that ends at any moment leaves a chunk with the state before or after its update, and
 * the next one finishes the step. Buffers that were not stored are, and words that cannot be are
 * refused. */
#include "base/check.h"
#include "cuda/hand_gpu.h"
#include "lib/fault.h"
#include "store/away.h"

#include <stdlib.h>
#include <string.h>

static void operands(void *arg, uint32_t chunk, struct tier_apply *a)
{
	*a = bench_update(arg, chunk);
}

static void made(void *owner, uint64_t tag, const struct tier_result *r)
{
	bench_applied(owner, tag, &(struct tier_result){.kept = r->kept + r->unwritten});
}

/* As a warm start does. */
static void finish_step(struct bench *b)
{
	uint64_t kept = 0;
	struct err e;

	assert_int_equal(b->tier->row->repair(b->tier, b->stamp, true, operands, b, &kept, &e),
			 SHARD_OK);
	memset(b->done, 0, sizeof(b->done));
	for (uint32_t c = 0; c < CHUNKS; c++) {
		struct tier_call call = {.done = made, .owner = b, .tag = c};
		struct tier_make make = {.update = bench_update(b, c), .finish = true};

		while (b->tier->row->make(b->tier, &make, &call) != SHARD_OK)
			bench_something(b);
	}
	while (bench_done(b) < CHUNKS)
		bench_something(b);
	bench_quiet(b);
}

static void killed(uint32_t share, uint32_t devices, bool pins)
{
	struct bench *b = bench_new(share, devices), *ref = bench_reference();

	bench_fill(b);
	bench_quiet(b);
	for (uint32_t s = 1; s <= 30; s++) {
		bench_step_until(b, s, bench_draw(b, CHUNKS + 1), pins);
		bench_step_reference(ref, s);
		bench_ends(b);
		finish_step(b);
		bench_same(b, ref);
	}
	bench_quiet(b);
	assert_int_equal(b->lost, 0);
	bench_reference_free(ref);
	bench_free(b);
}

static void killed_anywhere(void **state)
{
	(void)state;
	killed(100, 1, false);
	killed(100, 3, true);
	killed(50, 2, true);
}

/* The weights of chunks that the last step has updated in buffers are written anew, as by a
 * restore, and the process ends before the next step. What threads noted of that step changes
 * nothing. */
static void written_anew(void **state)
{
	struct bench *b = bench_new(100, 1);
	uint64_t kept = 0;
	struct tier_pin p;
	struct err e;

	(void)state;
	bench_fill(b);
	bench_step(b, 1);
	assert_true(tier_gpu_count(b->tier).host_updates > 1);
	bench_quiet(b);
	for (uint32_t c = 0; c < CHUNKS; c++)
		store_void_set(b->store, c);
	bench_fill(b);
	bench_ends(b);
	assert_int_equal(b->tier->row->repair(b->tier, b->stamp, false, operands, b, &kept, &e),
			 SHARD_OK);
	for (uint32_t c = 0; c < CHUNKS; c++) {
		bench_pin(b, &p, c, false);
		for (uint32_t i = 0; i < layout_chunk_elems(b->layout, c); i++)
			assert_true(store_master(b->store, c)[i] == bench_weight(c * CE + i));
		tier_unpin(b->tier, &p);
	}
	bench_quiet(b);
	bench_free(b);
}

static void words_that_cannot_be(void **state)
{
	struct bench *b = bench_new(100, 1);
	_Atomic uint64_t *cell = NULL;
	uint64_t was;
	struct err e;

	(void)state;
	bench_fill(b);
	bench_step(b, 1);
	bench_quiet(b);
	tier_close(&b->tier);
	cell = store_away_cell(b->store, 2);
	was = atomic_load(cell);
	atomic_store(cell, 1000ull << 40 | 3);
	assert_int_equal(bench_open(b, &e), SHARD_MISMATCH);
	atomic_store(cell, atomic_load(store_away_cell(b->store, 3)));
	assert_int_equal(bench_open(b, &e), SHARD_MISMATCH);
	atomic_store(cell, (was >> 40) << 40 | 1ull << 39 | 1);
	assert_int_equal(bench_open(b, &e), SHARD_MISMATCH);
	atomic_store(cell, was);
	atomic_store(store_away_holds(b->store, 0), 1ull << 63 | (CHUNKS + 1));
	assert_int_equal(bench_open(b, &e), SHARD_MISMATCH);
	atomic_store(store_away_holds(b->store, 0), 1ull << 63 | 3);
	atomic_store(store_away_holds(b->store, 1), 1ull << 63 | 3);
	assert_int_equal(bench_open(b, &e), SHARD_MISMATCH);
	assert_null(b->tier);
	bench_free(b);
}

static void no_memory(void **state)
{
	struct bench *b = bench_new(100, 2);
	struct fault f;

	(void)state;
	tier_close(&b->tier);
	for (fault_begin(&f); fault_next(&f);) {
		struct err e;
		enum shard_status st = bench_open(b, &e);

		if (fault_end(&f))
			assert_int_equal(st, SHARD_SYSTEM);
		else
			assert_int_equal(st, SHARD_OK);
	}
	bench_free(b);
}

/* Buffers that an earlier process left dirty, and those of chunks that nobody waits for any more,
 * are there for others. */
static void buffers_come_back(void **state)
{
	struct bench *b = bench_new(100, 1), *ref = bench_reference();
	struct tier_pin p[PINS];
	uint32_t job;

	(void)state;
	bench_fill(b);
	bench_step(b, 1);
	bench_step_reference(ref, 1);
	bench_quiet(b);
	for (uint32_t turn = 0; turn < 4; turn++) {
		for (uint32_t i = 0; i < 2; i++) {
			p[i] = (struct tier_pin){
				.chunk = 2 * turn + i, .writes = true, .done = bench_pinned};
			assert_false(tier_pin(b->tier, &p[i]));
			for (job = 0; gpus[0].job[job].what != GPU_TO_HOST;)
				job++;
			hand_runs(&gpus[0], job); /* Those that store wait. */
			assert_int_equal(p[i].at, TIER_PINNED);
			store_master(b->store, p[i].chunk)[7] = 1;
			store_master(ref->store, p[i].chunk)[7] = 1;
		}
		for (uint32_t i = 0; i < 2; i++)
			tier_unpin(b->tier, &p[i]);
		bench_ends(b); /* What is stored is not done: the buffers are dirty. */
	}
	assert_int_equal(tier_gpu_count(b->tier).dirty, 8);
	bench_pin(b, &p[0], CHUNKS - 1, false);
	bench_quiet(b);
	assert_in_range(tier_gpu_count(b->tier).dirty, 0, 6);
	tier_unpin(b->tier, &p[0]);
	for (uint32_t turn = 0; turn < 4; turn++) {
		for (uint32_t i = 0; i < 4; i++) {
			p[i] = (struct tier_pin){.chunk = 4 * turn + i, .done = bench_pinned};
			(void)tier_pin(b->tier, &p[i]);
		}
		for (uint32_t i = 0; i < 4; i++)
			tier_unpin(b->tier, &p[i]);
		bench_quiet(b);
	}
	bench_step(b, 2);
	bench_step_reference(ref, 2);
	bench_same(b, ref);
	bench_reference_free(ref);
	bench_free(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(killed_anywhere),      cmocka_unit_test(written_anew),
		cmocka_unit_test(words_that_cannot_be), cmocka_unit_test(no_memory),
		cmocka_unit_test(buffers_come_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
