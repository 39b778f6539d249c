// SPDX-License-Identifier: Apache-2.0
/* Tests the tier whose chunks are in the memory of devices, with devices and threads that the test
 * moves by hand. Whatever comes late or in another order, chunks have the bits of the same updates
 * in main memory: on one device and on several, with a part of the chunks in memory, while others
 * pin chunks, and while a save holds them. A device that fails loses the chunks, says so once, and
 * a save that copies from it is not whole. A chunk that becomes void while it is on its way is
 * void. */
#include "base/check.h"
#include "cuda/hand_gpu.h"
#include "store/away.h"
#include "store/hold.h"
#include "store/store_missing.h"

#include <stdlib.h>
#include <string.h>

static void bits(uint32_t share, uint32_t devices, bool full, bool pins)
{
	struct bench *b = bench_new(share, devices), *ref = bench_reference();

	b->often_full = full;
	bench_fill(b);
	for (uint32_t s = 1; s <= 20; s++) {
		bench_step_until(b, s, CHUNKS, pins);
		bench_step_reference(ref, s);
		if (s % 5 == 0)
			bench_same(b, ref);
	}
	bench_quiet(b);
	assert_int_equal(b->lost, 0);
	if (!pins) { /* After the first step not even one chunk had to be in a buffer for it. */
		assert_int_equal(tier_gpu_count(b->tier).dirty, 0);
		assert_int_equal(tier_gpu_count(b->tier).updates +
					 tier_gpu_count(b->tier).host_updates,
				 20ull * (CHUNKS * share / 100));
		assert_in_range(tier_gpu_count(b->tier).host_updates, 0, TIER_GPU_BUFFERS);
	}
	bench_reference_free(ref);
	bench_free(b);
}

static void same_bits(void **state)
{
	(void)state;
	bits(100, 1, false, false);
	bits(100, 3, false, false);
	bits(50, 2, false, false);
	bits(100, 1, true, true);
	bits(100, 3, true, true);
	bits(60, 2, false, true);
}

/* --- a save --- */

struct reading {
	struct bench *ref;
	uint32_t chunk, array;
	bool came;
};

static void read_one(void *ctx, float *at)
{
	struct reading *r = ctx;
	struct store *st = r->ref->store;
	const float *want = r->array == 0 ? store_master(st, r->chunk)
					  : store_state(st, r->chunk, r->array - 1);

	assert_memory_equal(at, want, layout_chunk_elems(r->ref->layout, r->chunk) * sizeof(float));
	r->came = true;
}

/* Chunks are read as they were, before and after later steps. */
static void held_for_a_save(void **state)
{
	struct bench *b = bench_new(100, 2), *ref = bench_reference();
	uint64_t bytes[CHUNKS];

	(void)state;
	bench_fill(b);
	for (uint32_t s = 1; s <= 3; s++) {
		bench_step(b, s);
		bench_step_reference(ref, s);
	}
	bench_quiet(b);
	for (uint32_t c = 0; c < CHUNKS; c++)
		bytes[c] = layout_chunk_elems(b->layout, c) * sizeof(float) *
			   (1 + store_states(b->store, c));
	hold_begin(b->store, bytes, CHUNKS);
	assert_true(hold_covered(b->store));
	for (uint32_t c = 0; c < CHUNKS; c++) {
		if (c == CHUNKS / 2)
			for (uint32_t s = 4; s <= 6; s++)
				bench_step(b, s);
		for (uint32_t k = 0; k <= store_states(b->store, c); k++) {
			struct reading r = {ref, c, k, false};
			struct hold_read read = {.chunk = c,
						 .array = k,
						 .bytes =
							 bytes[c] / (1 + store_states(b->store, c)),
						 .with = read_one,
						 .ctx = &r};
			bool copied = hold_copied(b->store, c);
			struct tier_pin p = {.at = TIER_UNPINNED};
			float *at = NULL;

			if (!copied)
				bench_pin(b, &p, c, false);
			if (!copied)
				at = k == 0 ? store_master(b->store, c)
					    : store_state(b->store, c, k - 1);
			hold_read(b->store, &read, at);
			assert_true(r.came);
			tier_unpin(b->tier, &p);
		}
	}
	assert_true(hold_end(b->store));
	for (uint32_t s = 4; s <= 6; s++)
		bench_step_reference(ref, s);
	bench_same(b, ref);
	bench_quiet(b);
	bench_reference_free(ref);
	bench_free(b);
}

/* --- what goes wrong --- */

static void device_fails(void **state)
{
	struct bench *b = bench_new(100, 2);
	uint64_t bytes[CHUNKS] = {CE * sizeof(float)};
	struct tier_pin p = {.chunk = 1, .done = bench_pinned};
	struct reading r = {.came = false};
	struct hold_read read = {.bytes = bytes[0], .with = read_one, .ctx = &r};

	(void)state;
	bench_fill(b);
	bench_quiet(b);
	hold_begin(b->store, bytes, CHUNKS);
	bench_gradients(b, 1);
	assert_int_equal(bench_apply(b, 0), SHARD_OK);
	assert_int_equal(bench_apply(b, CHUNKS - 1), SHARD_OK);
	gpus[0].lost = true;
	while (bench_flying(b) > 0)
		bench_something(b);
	assert_int_equal(b->lost, 1);
	assert_string_equal(b->why, "CUDA_ERROR_ILLEGAL_ADDRESS");
	assert_int_equal(b->held, 0);
	assert_int_equal(b->done[0], 0);
	hold_read(b->store, &read, NULL); /* What was copied is worth nothing. */
	assert_false(r.came || hold_end(b->store));
	/* Nothing comes any more, and it is said once. */
	assert_false(tier_pin(b->tier, &p));
	assert_int_equal(bench_apply(b, 2), SHARD_OK);
	assert_int_equal(bench_flying(b), 0);
	tier_unpin(b->tier, &p);
	assert_int_equal(b->lost, 1);
	bench_free(b);
}

/* For the end of a model whose device has failed, all that waits comes to an end: updates that came
 * back without results, those that did not go out yet, and one that comes back later; and pins, of
 * those who wait and who come later. */
static void forsaken(void **state)
{
	struct bench *b = bench_new(100, 2);
	struct tier_pin p[PINS], later = {.chunk = 6, .done = bench_pinned};
	uint32_t last = CHUNKS - 1;

	(void)state;
	bench_fill(b);
	bench_step(b, 1);
	bench_quiet(b);
	memset(b->done, 0, sizeof(b->done));
	bench_gradients(b, 2);
	assert_int_equal(bench_apply(b, 0), SHARD_OK);
	assert_int_equal(bench_apply(b, last), SHARD_OK); /* On the other device. */
	gpus[0].lost = true;
	while (gpus[0].nr > 0)
		hand_runs(&gpus[0], 0);
	assert_int_equal(b->lost, 1);
	for (uint32_t i = 0; i < PINS; i++) {
		p[i] = (struct tier_pin){.chunk = i, .writes = i & 1, .done = bench_pinned};
		assert_false(tier_pin(b->tier, &p[i]));
	}
	assert_int_equal(bench_apply(b, 3), SHARD_OK);
	assert_int_equal(b->done[0] + b->done[3] + b->done[last], 0);
	tier_gpu_forsake(b->tier);
	assert_int_equal(b->done[0], 1);
	assert_int_equal(b->done[3], 1);
	for (uint32_t i = 0; i < PINS; i++)
		assert_int_equal(p[i].at, TIER_PINNED);
	assert_non_null(store_master(b->store, 5));
	assert_true(tier_pin(b->tier, &later));
	gpus[1].lost = true;
	while (bench_flying(b) > 0)
		bench_something(b);
	assert_int_equal(b->done[last], 1);
	assert_int_equal(b->lost, 1);
	assert_int_equal(b->held, 0);
	for (uint32_t i = 0; i < PINS; i++)
		tier_unpin(b->tier, &p[i]);
	tier_unpin(b->tier, &later);
	bench_free(b);
}

static void void_meanwhile(void **state)
{
	struct bench *b = bench_new(100, 1);
	struct store_missing m;
	struct tier_pin p = {.chunk = 4, .done = bench_pinned}, q;

	(void)state;
	bench_fill(b);
	bench_step(b, 1);
	bench_quiet(b);
	/* While it is read. */
	p.chunk = 4;
	assert_false(tier_pin(b->tier, &p));
	store_void_set(b->store, 4);
	while (p.at != TIER_PINNED)
		bench_something(b);
	assert_true(store_void(b->store, 4));
	store_missing_init(&m);
	store_missing(b->store, 4, &m);
	assert_int_equal(m.unwritten, CE);
	tier_unpin(b->tier, &p);
	/* While it is stored. */
	bench_pin(b, &p, 4, true);
	bench_fill_chunk(b->store, b->layout, 4);
	tier_unpin(b->tier, &p);
	for (uint32_t c = 12; bench_flying(b) == 0; c++) { /* Until the buffer is wanted. */
		bench_pin(b, &q, c, true);
		tier_unpin(b->tier, &q);
	}
	assert_int_equal(gpus[0].job[0].what, GPU_TO_DEVICE);
	hand_copies(&gpus[0], &gpus[0].job[0]);
	gpus[0].job[0].copies_nr = 0;
	store_void_set(b->store, 4);
	bench_quiet(b);
	bench_pin(b, &p, 4, false);
	assert_true(store_void(b->store, 4));
	tier_unpin(b->tier, &p);
	/* While it is updated. */
	bench_gradients(b, 2);
	assert_int_equal(bench_apply(b, 5), SHARD_OK);
	assert_int_equal(bench_flying(b), 1);
	store_void_set(b->store, 5);
	bench_quiet(b);
	bench_pin(b, &p, 5, false);
	assert_true(store_void(b->store, 5));
	tier_unpin(b->tier, &p);
	/* No slot is lost by that. */
	bench_fill(b);
	for (uint32_t s = 3; s <= 20; s++)
		bench_step(b, s);
	bench_quiet(b);
	bench_free(b);
}

/* --- pins --- */

static uint32_t granted(struct bench *b, struct tier_pin *p, uint32_t nr, bool writes)
{
	uint32_t got = 0;

	for (uint32_t i = 0; i < nr; i++) {
		p[i] = (struct tier_pin){.chunk = i + 1, .writes = writes, .done = bench_pinned};
		(void)tier_pin(b->tier, &p[i]);
	}
	bench_quiet(b);
	for (uint32_t i = 0; i < nr; i++)
		got += p[i].at == TIER_PINNED;
	return got;
}

/* Others get a part of the buffers, so that a step goes on, and those who write leave some to those
 * who read. A wait can be given up. */
static void pins_of_others(void **state)
{
	struct tier_pin p[PINS], q[PINS];
	struct bench *b = bench_new(100, 1), *ref = bench_reference();

	(void)state;
	bench_fill(b);
	bench_quiet(b);
	assert_int_equal(granted(b, q, 5, true), 2);
	assert_int_equal(granted(b, p, 8, false), 4); /* Two of them share the chunk. */
	for (uint32_t i = 0; i < 5; i++)
		tier_unpin(b->tier, &q[i]);
	bench_quiet(b);
	bench_step(b, 1);
	bench_step_reference(ref, 1);
	for (uint32_t i = 0; i < 8; i++) {
		tier_unpin(b->tier, &p[i]);
		assert_int_equal(p[i].at, TIER_UNPINNED);
		bench_quiet(b);
	}
	bench_same(b, ref);
	bench_reference_free(ref);
	bench_free(b);
}

static void nothing_after_the_stop(void **state)
{
	struct bench *b = bench_new(100, 1);
	struct tier_pin p[PINS];

	(void)state;
	bench_fill(b);
	bench_quiet(b);
	assert_int_equal(granted(b, p, 3, true), 2);
	tier_stop(b->tier);
	for (uint32_t i = 0; i < 3; i++)
		tier_unpin(b->tier, &p[i]);
	assert_int_equal(b->held, 0);
	assert_int_equal(b->hand.nr + bench_flying(b), 0);
	bench_free(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(same_bits),
		cmocka_unit_test(held_for_a_save),
		cmocka_unit_test(device_fails),
		cmocka_unit_test(forsaken),
		cmocka_unit_test(void_meanwhile),
		cmocka_unit_test(pins_of_others),
		cmocka_unit_test(nothing_after_the_stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
