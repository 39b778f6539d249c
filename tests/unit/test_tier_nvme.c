// SPDX-License-Identifier: Apache-2.0
/* Tests the tier whose chunks are on a disk, with a disk and threads that the test moves by hand.
 * Whatever comes late, short or in another order, chunks have the bits of the same updates in main
 * memory. A read that fails, or that brings another slot's bytes, loses the chunk, and says so
 * once. A write that fails goes elsewhere, three times. A chunk that becomes void while it is on
 * its way is void. Pins of others leave buffers to steps. Chunks that all fit are never written.
 * What an earlier process left is checked. */
#include "base/check.h"
#include "lib/fault.h"
#include "lib/handexec.h"
#include "store/away.h"
#include "store/ring_impl.h"
#include "store/store_impl.h"
#include "store/store_missing.h"
#include "store/tier_nvme.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { CE = 1024, CHUNKS = 9, SLOT = 3 * 4096 + 4096, SLOTS = 64, PINS = 12 };

static const struct shard_tensor tensors[] = {
	{.name = "a", .ndim = 1, .shape = {CHUNKS * CE - 100}}};

/* --- a disk and threads that do what the test says --- */

struct disk {
	uint8_t slot[SLOTS * SLOT];
	struct ring_io io[16];
	uint32_t nr;
};

static struct disk disk; /* The row has no other way to it. */

static bool disk_open(void **self, const struct ring_conf *conf, int event, char why[128])
{
	(void)conf;
	(void)event;
	(void)why;
	disk.nr = 0;
	*self = &disk;
	return true;
}

static void disk_submit(void *self, const struct ring_io *io)
{
	(void)self;
	assert_in_range(disk.nr, 0, 15);
	disk.io[disk.nr++] = *io;
}

static void disk_reap(void *self, struct ring *r, bool wait)
{
	(void)self;
	while (wait && disk.nr > 0)
		ring_moved(r, disk.io[--disk.nr].nr, -EIO);
}

static void disk_close(void *self)
{
	(void)self;
}

static const struct ring_row disk_row = {.name = "disk",
					 .open = disk_open,
					 .submit = disk_submit,
					 .reap = disk_reap,
					 .close = disk_close};

/* --- the bench --- */

struct bench {
	struct layout *layout;
	uint16_t owner[CHUNKS];
	struct store *store;
	struct hand hand;
	struct tier *tier;
	struct ring *ring;
	uv_loop_t loop;
	uint32_t seed, done[CHUNKS], held, lost;
	char why[256];
	bool often_full; /* The queue of the threads. */
	struct optim_args args;
	uint8_t zero[CHUNKS];
	float grad[CHUNKS * CE];
};

static uint32_t draw(struct bench *b, uint32_t of)
{
	b->seed = b->seed * 1664525 + 1013904223;
	return (b->seed >> 10) % of;
}

static void make_store(struct bench *b, uint32_t share, uint32_t cache)
{
	struct store_conf conf = {.name = "m",
				  .optim = optim_find("adamw"),
				  .grad = SHARD_F32,
				  .nodes_nr = 1,
				  .local_world = 1,
				  .away_share = share,
				  .away_cache = cache,
				  .huge = SHM_HUGE_NO};
	struct err e;

	assert_int_equal(layout_init(&b->layout, tensors, 1, 1, SHARD_F32, CE, &e), SHARD_OK);
	assert_int_equal(b->layout->chunks_nr, CHUNKS);
	conf.layout = b->layout;
	conf.place = place_of(b->owner, NULL, CHUNKS);
	assert_int_equal(store_init(&b->store, &conf, &e), SHARD_OK);
	b->args = (struct optim_args){.mult = 1,
				      .decay = 0.99f,
				      .beta1 = 0.9f,
				      .one_minus_beta1 = 0.1f,
				      .beta2 = 0.99f,
				      .one_minus_beta2 = 0.01f,
				      .eps = 1e-8f,
				      .step_size = 0.01f,
				      .bc2_sqrt = 0.5f};
}

static void hold(void *arg)
{
	((struct bench *)arg)->held++;
}

static void release(void *arg)
{
	assert_true(((struct bench *)arg)->held > 0);
	((struct bench *)arg)->held--;
}

static void lost(void *arg, const char *why)
{
	struct bench *b = arg;

	b->lost++;
	snprintf(b->why, sizeof(b->why), "%s", why);
}

static enum shard_status open_tier(struct bench *b, struct err *e)
{
	struct tier_conf conf = {
		.store = b->store, .isa = ISA_SCALAR, .exec = {&hand_row, &b->hand}};
	struct tier_nvme_conf nvme = {
		.ring = b->ring, .id = 5, .hold = hold, .release = release, .lost = lost, .arg = b};

	return tier_nvme_open(&b->tier, &conf, &nvme, e);
}

static void open_ring(struct bench *b)
{
	uint32_t nr = store_away_buffers(b->store);
	struct iovec iov[CHUNKS];
	struct ring_conf conf = {
		.fd = open("/dev/null", O_RDWR), .buffer = iov, .buffers_nr = nr, .entries = nr};
	struct err e;

	assert_int_equal(store_away_slot(b->store), SLOT);
	for (uint32_t i = 0; i < nr; i++)
		iov[i] = (struct iovec){store_away_buffer(b->store, i), SLOT};
	assert_int_equal(ring_open_row(&b->ring, &disk_row, &conf, &e), SHARD_OK);
	assert_int_equal(ring_start(b->ring, &b->loop, &e), SHARD_OK);
}

static struct bench *bench(uint32_t share, uint32_t cache)
{
	struct bench *b = calloc(1, sizeof(*b));
	struct err e;

	assert_non_null(b);
	b->seed = 1;
	make_store(b, share, cache);
	assert_int_equal(uv_loop_init(&b->loop), 0);
	open_ring(b);
	assert_int_equal(open_tier(b, &e), SHARD_OK);
	assert_true(tier_nvme_bytes(b->store) <= sizeof(disk.slot));
	return b;
}

static void bench_free(struct bench *b)
{
	if (b->tier != NULL)
		tier_close(&b->tier);
	ring_stop(b->ring);
	uv_run(&b->loop, UV_RUN_DEFAULT);
	assert_int_equal(uv_loop_close(&b->loop), 0);
	ring_close(&b->ring);
	store_free(&b->store);
	layout_free(&b->layout);
	free(b);
}

/* The i-th request under way is carried out, in full or in part. */
static void moves(struct bench *b, uint32_t i, uint32_t bytes)
{
	struct ring_io io = disk.io[i];

	assert_in_range(i, 0, disk.nr - 1);
	assert_true(io.offset + io.bytes <= sizeof(disk.slot));
	disk.nr--;
	memmove(&disk.io[i], &disk.io[i + 1], (disk.nr - i) * sizeof(io));
	if (io.what == RING_WRITE)
		memcpy(disk.slot + io.offset, io.at, bytes);
	else
		memcpy(io.at, disk.slot + io.offset, bytes);
	ring_moved(b->ring, io.nr, bytes);
}

static void fails(struct bench *b, int error)
{
	assert_true(disk.nr > 0);
	ring_moved(b->ring, disk.io[--disk.nr].nr, -error);
}

static void something(struct bench *b) /* Happens. */
{
	if (b->hand.nr > 0 && (disk.nr == 0 || draw(b, 2) == 0)) {
		hand_run(&b->hand, draw(b, b->hand.nr));
	} else if (disk.nr > 0) {
		uint32_t i = draw(b, disk.nr), bytes = disk.io[i].bytes;

		moves(b, i, draw(b, 3) == 0 && bytes > RING_ALIGN ? RING_ALIGN : bytes);
	}
}

static void quiet(struct bench *b)
{
	while (b->hand.nr > 0 || disk.nr > 0)
		something(b);
	assert_int_equal(b->held, 0);
}

static void pinned(struct tier_pin *p)
{
	(void)p;
}

static void pin(struct bench *b, struct tier_pin *p, uint32_t chunk, bool writes)
{
	*p = (struct tier_pin){.chunk = chunk, .writes = writes, .done = pinned};
	(void)tier_pin(b->tier, p);
	while (p->at != TIER_PINNED) {
		assert_true(b->hand.nr > 0 || disk.nr > 0);
		something(b);
	}
}

static float weight(uint32_t i)
{
	return (float)(i % 97) * 0.125f - 6;
}

static void fill(struct store *st, const struct layout *l, uint32_t c)
{
	store_clear_chunk(st, c);
	for (uint32_t i = 0; i < layout_chunk_elems(l, c); i++)
		store_master(st, c)[i] = weight(c * CE + i);
}

static void fill_all(struct bench *b)
{
	for (uint32_t c = 0; c < CHUNKS; c++) {
		struct tier_pin p;

		pin(b, &p, c, true);
		fill(b->store, b->layout, c);
		tier_unpin(b->tier, &p);
	}
}

/* --- updates --- */

static void applied(void *owner, uint64_t tag, const struct tier_result *r)
{
	struct bench *b = owner;

	assert_int_equal(r->kept, 0);
	b->done[tag]++;
}

static struct tier_apply update(struct bench *b, uint32_t c)
{
	return (struct tier_apply){.chunk = c,
				   .args = &b->args,
				   .zero = b->zero,
				   .grad = (const uint8_t *)(b->grad + c * CE)};
}

static void gradients(struct bench *b, uint32_t step)
{
	for (uint32_t i = 0; i < CHUNKS * CE; i++)
		b->grad[i] = (float)((i * 7 + step * 13) % 101) / 50.0f - 1;
}

static enum shard_status apply(struct bench *b, uint32_t c)
{
	struct tier_call call = {.done = applied, .owner = b, .tag = c};
	struct tier_apply a = update(b, c);

	return b->tier->row->apply(b->tier, &a, &call);
}

/* The same in main memory. */
static void step_reference(struct bench *ref, uint32_t step)
{
	gradients(ref, step);
	for (uint32_t c = 0; c < CHUNKS; c++) {
		struct tier_call call = {.done = applied, .owner = ref, .tag = c, .here = true};
		struct tier_apply a = update(ref, c);

		assert_int_equal(ref->tier->row->apply(ref->tier, &a, &call), SHARD_OK);
	}
}

static struct bench *reference(void)
{
	struct bench *ref = calloc(1, sizeof(*ref));
	struct tier_conf conf = {.isa = ISA_SCALAR};
	struct err e;

	assert_non_null(ref);
	make_store(ref, 0, 4);
	conf.store = ref->store;
	conf.exec = (struct exec){&hand_row, &ref->hand};
	assert_int_equal(tier_ram_open(&ref->tier, &conf, &e), SHARD_OK);
	for (uint32_t c = 0; c < CHUNKS; c++)
		fill(ref->store, ref->layout, c);
	return ref;
}

static void reference_free(struct bench *ref)
{
	tier_close(&ref->tier);
	store_free(&ref->store);
	layout_free(&ref->layout);
	free(ref);
}

static void same(struct bench *b, struct bench *ref)
{
	for (uint32_t c = 0; c < CHUNKS; c++) {
		size_t bytes = layout_chunk_elems(b->layout, c) * sizeof(float);
		struct tier_pin p;

		pin(b, &p, c, false);
		assert_memory_equal(store_master(b->store, c), store_master(ref->store, c), bytes);
		for (uint32_t i = 0; i < 2; i++)
			assert_memory_equal(store_state(b->store, c, i),
					    store_state(ref->store, c, i), bytes);
		assert_memory_equal(store_image(b->store, 0, c), store_image(ref->store, 0, c),
				    bytes);
		tier_unpin(b->tier, &p);
	}
}

static void step(struct bench *b, uint32_t nr)
{
	uint32_t next = 0, done = 0, since = 0;

	gradients(b, nr);
	memset(b->done, 0, sizeof(b->done));
	tier_ahead(b->tier);
	while (done < CHUNKS) {
		b->hand.full = b->often_full && draw(b, 2) == 0;
		if (next < CHUNKS && draw(b, 3) == 0)
			next += apply(b, next) == SHARD_OK;
		else
			something(b);
		for (done = 0; done < CHUNKS && b->done[done] > 0;)
			done++;
		assert_in_range(since++, 0, 100000);
	}
	for (uint32_t c = 0; c < CHUNKS; c++)
		assert_int_equal(b->done[c], 1);
	b->hand.full = false;
}

static void bits(uint32_t share, uint32_t cache, bool full)
{
	struct bench *b = bench(share, cache), *ref = reference();

	b->often_full = full;
	fill_all(b);
	for (uint32_t s = 1; s <= 40; s++) {
		step(b, s);
		step_reference(ref, s);
		if (s % 10 == 0)
			same(b, ref);
	}
	quiet(b);
	assert_int_equal(b->lost, 0);
	reference_free(ref);
	bench_free(b);
}

static void same_bits(void **state)
{
	(void)state;
	bits(100, 4, false);
	bits(100, 6, false);
	bits(50, 4, false);
	bits(100, 4, true);
}

/* Chunks that all fit are read never and written never. Otherwise some stay in memory. */
static void stays(void **state)
{
	struct bench *b = bench(100, CHUNKS);
	struct tier_nvme_count k;

	(void)state;
	fill_all(b);
	for (uint32_t s = 1; s <= 5; s++)
		step(b, s);
	quiet(b);
	k = tier_nvme_count(b->tier);
	assert_int_equal(k.read_bytes + k.written_bytes, 0);
	assert_int_equal(k.dirty, CHUNKS);
	bench_free(b);
	b = bench(100, 7);
	fill_all(b);
	for (uint32_t s = 1; s <= 5; s++)
		step(b, s);
	quiet(b);
	k = tier_nvme_count(b->tier);
	for (uint32_t s = 6; s <= 25; s++)
		step(b, s);
	quiet(b);
	/* Seven buffers: four chunks stay, and the others take turns in three. */
	assert_int_equal(tier_nvme_count(b->tier).written_bytes - k.written_bytes,
			 20ull * (CHUNKS - 4) * SLOT);
	assert_true(tier_nvme_count(b->tier).read_bytes - k.read_bytes <=
		    20ull * (CHUNKS - 4) * SLOT);
	bench_free(b);
}

/* --- what goes wrong --- */

enum { OUT = 4 };

/* Chunk OUT is only on the disk after this. */
static void push_out(struct bench *b)
{
	fill_all(b);
	quiet(b);
	for (uint32_t c = CHUNKS; store_away_here(b->store, OUT); c--) {
		struct tier_pin p;

		assert_in_range(c, 1, CHUNKS);
		pin(b, &p, c - 1, false);
		tier_unpin(b->tier, &p);
		quiet(b);
	}
}

static void reads_that_fail(void **state)
{
	struct tier_pin p = {.chunk = OUT, .done = pinned}, q = {.chunk = OUT + 1, .done = pinned};
	struct bench *b = bench(100, 4);

	(void)state;
	push_out(b);
	assert_false(tier_pin(b->tier, &p));
	fails(b, EIO);
	assert_int_equal(b->lost, 1);
	assert_non_null(strstr(b->why, "chunk 4"));
	assert_non_null(strstr(b->why, strerror(EIO)));
	/* Nothing comes any more, and it is said once. */
	assert_false(tier_pin(b->tier, &q));
	assert_int_equal(disk.nr, 0);
	tier_unpin(b->tier, &p);
	tier_unpin(b->tier, &q);
	bench_free(b);
}

/* A bit that differs, and a slot that is older than it should be. */
static void other_bytes(void **state)
{
	static struct disk was;
	struct tier_pin p = {.chunk = OUT, .done = pinned};

	(void)state;
	for (int how = 0; how < 2; how++) {
		struct bench *b = bench(100, 4);
		uint64_t slot;

		push_out(b);
		slot = (atomic_load(store_away_cell(b->store, OUT)) >> 40) - 1;
		if (how == 0) {
			disk.slot[slot * SLOT + 1234] ^= 4;
		} else {
			was = disk;
			for (uint32_t s = 1; s <= 3; s++)
				step(b, s);
			quiet(b);
			push_out(b);
			memcpy(disk.slot, was.slot, sizeof(disk.slot));
		}
		assert_false(tier_pin(b->tier, &p));
		while (b->lost == 0)
			something(b);
		assert_int_equal(p.at, TIER_WAITS);
		assert_non_null(strstr(b->why, "not what was written"));
		tier_unpin(b->tier, &p);
		while (b->hand.nr > 0)
			hand_run(&b->hand, 0);
		bench_free(b);
	}
}

static void writes_that_fail(void **state)
{
	struct bench *b = bench(100, 4);
	uint64_t at[2] = {0};
	struct tier_pin p;

	(void)state;
	for (uint32_t c = 2; c < 6; c++) {
		pin(b, &p, c, true);
		fill(b->store, b->layout, c);
		tier_unpin(b->tier, &p);
	}
	for (int i = 0; i < 2; i++) { /* The slots are different ones. */
		while (disk.nr == 0)
			hand_run(&b->hand, 0);
		at[i] = disk.io[disk.nr - 1].offset;
		assert_int_equal(disk.io[disk.nr - 1].what, RING_WRITE);
		fails(b, EIO);
		assert_int_equal(b->lost, 0);
	}
	assert_true(at[0] != at[1]);
	quiet(b);
	assert_int_equal(b->lost, 0);
	pin(b, &p, 7, true);
	fill(b->store, b->layout, 7);
	tier_unpin(b->tier, &p);
	while (disk.nr == 0)
		hand_run(&b->hand, 0);
	fails(b, ENOSPC);
	assert_int_equal(b->lost, 1);
	assert_non_null(strstr(b->why, strerror(ENOSPC)));
	while (b->hand.nr > 0)
		hand_run(&b->hand, 0);
	bench_free(b);
}

/* --- void --- */

static void void_meanwhile(void **state)
{
	struct bench *b = bench(100, 4);
	struct store_missing m;
	struct tier_pin p;
	uint32_t chunk;

	(void)state;
	push_out(b);
	/* While it is read. */
	p = (struct tier_pin){.chunk = OUT, .done = pinned};
	assert_false(tier_pin(b->tier, &p));
	store_void_set(b->store, OUT);
	while (p.at != TIER_PINNED)
		something(b);
	assert_true(store_void(b->store, OUT));
	store_missing_init(&m);
	store_missing(b->store, OUT, &m);
	assert_int_equal(m.unwritten, CE);
	tier_unpin(b->tier, &p);
	/* While it is written. */
	pin(b, &p, OUT, true);
	fill(b->store, b->layout, OUT);
	tier_unpin(b->tier, &p);
	step(b, 1);
	while (disk.nr == 0 || disk.io[0].what != RING_WRITE)
		something(b);
	for (chunk = 0; disk.io[0].at < store_away_buffer(b->store, 0) ||
			store_away_at(b->store, chunk, 0) != (float *)(void *)disk.io[0].at;)
		do
			chunk++;
		while (!store_away_here(b->store, chunk));
	store_void_set(b->store, chunk);
	quiet(b);
	pin(b, &p, chunk, false);
	assert_true(store_void(b->store, chunk));
	tier_unpin(b->tier, &p);
	assert_int_equal(b->lost, 0);
	bench_free(b);
}

/* --- pins --- */

static uint32_t granted(struct bench *b, struct tier_pin *p, uint32_t nr, bool writes)
{
	uint32_t got = 0;

	for (uint32_t i = 0; i < nr; i++) {
		p[i] = (struct tier_pin){.chunk = i + 1, .writes = writes, .done = pinned};
		(void)tier_pin(b->tier, &p[i]);
	}
	quiet(b);
	for (uint32_t i = 0; i < nr; i++)
		got += p[i].at == TIER_PINNED;
	return got;
}

/* Others get a part of the buffers that chunks take turns in, so that a step goes on, and those who
 * write leave some to those who read. A wait can be given up. */
static void pins_of_others(void **state)
{
	struct tier_pin p[PINS], q[PINS];
	struct bench *b = bench(100, 4), *ref = reference();

	(void)state;
	fill_all(b);
	quiet(b);
	assert_int_equal(granted(b, q, 3, true), 1);
	assert_int_equal(granted(b, p, 6, false), 2); /* One of them shares the chunk. */
	for (uint32_t i = 0; i < 3; i++)
		tier_unpin(b->tier, &q[i]);
	quiet(b);
	step(b, 1);
	step_reference(ref, 1);
	for (uint32_t i = 0; i < 6; i++) {
		tier_unpin(b->tier, &p[i]);
		assert_int_equal(p[i].at, TIER_UNPINNED);
		quiet(b);
	}
	same(b, ref);
	reference_free(ref);
	bench_free(b);
}

/* A model that goes unpins what it still has. Nothing may be begun for it by then, because its
 * memory goes, too. */
static void nothing_after_the_stop(void **state)
{
	struct bench *b = bench(100, 4);
	struct tier_pin p[PINS];

	(void)state;
	fill_all(b);
	quiet(b);
	assert_int_equal(granted(b, p, 2, true), 1);
	tier_stop(b->tier);
	for (uint32_t i = 0; i < 2; i++)
		tier_unpin(b->tier, &p[i]);
	assert_int_equal(b->held, 0);
	assert_int_equal(b->hand.nr, 0);
	assert_int_equal(ring_flying(b->ring), 0);
	bench_free(b);
}

/* --- what an earlier process left --- */

static void left_over(void **state)
{
	struct bench *b = bench(100, 4), *ref = reference();
	_Atomic uint64_t *cell;
	uint64_t was;
	struct err e;

	(void)state;
	fill_all(b);
	for (uint32_t s = 1; s <= 3; s++) {
		step(b, s);
		step_reference(ref, s);
	}
	/* It ends with requests under way. The memory and the disk stay. */
	while (b->hand.nr > 0)
		hand_run(&b->hand, 0);
	tier_close(&b->tier);
	uv_run(&b->loop, UV_RUN_DEFAULT);
	ring_close(&b->ring);
	open_ring(b);
	assert_int_equal(open_tier(b, &e), SHARD_OK);
	same(b, ref);
	quiet(b);
	tier_close(&b->tier);
	uv_run(&b->loop, UV_RUN_DEFAULT);
	/* Words that cannot be. */
	cell = store_away_cell(b->store, 2);
	was = atomic_load(cell);
	atomic_store(cell, 1000ull << 40 | 3);
	assert_int_equal(open_tier(b, &e), SHARD_MISMATCH);
	atomic_store(cell, atomic_load(store_away_cell(b->store, 3)));
	if (atomic_load(cell) != 0)
		assert_int_equal(open_tier(b, &e), SHARD_MISMATCH);
	atomic_store(cell, was);
	atomic_store(store_away_holds(b->store, 0), CHUNKS + 1);
	assert_int_equal(open_tier(b, &e), SHARD_MISMATCH);
	atomic_store(store_away_holds(b->store, 0), 3);
	atomic_store(store_away_holds(b->store, 1), 3);
	assert_int_equal(open_tier(b, &e), SHARD_MISMATCH);
	assert_null(b->tier);
	reference_free(ref);
	bench_free(b);
}

static void no_memory(void **state)
{
	struct bench *b = bench(100, 4);
	struct fault f;

	(void)state;
	tier_close(&b->tier);
	for (fault_begin(&f); fault_next(&f);) {
		struct err e;
		enum shard_status st = open_tier(b, &e);

		if (fault_end(&f))
			assert_int_equal(st, SHARD_SYSTEM);
		else
			assert_int_equal(st, SHARD_OK);
	}
	bench_free(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(same_bits),        cmocka_unit_test(stays),
		cmocka_unit_test(reads_that_fail),  cmocka_unit_test(other_bytes),
		cmocka_unit_test(writes_that_fail), cmocka_unit_test(void_meanwhile),
		cmocka_unit_test(pins_of_others),   cmocka_unit_test(nothing_after_the_stop),
		cmocka_unit_test(left_over),        cmocka_unit_test(no_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
