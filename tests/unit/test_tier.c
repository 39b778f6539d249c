// SPDX-License-Identifier: Apache-2.0
/* Tests the tier of main memory with an exec that the test moves by hand, and pins of all rows.
 * Sums, updates and images have the bits of plain loops. A job holds its operands by value, so that
 * the caller may overwrite what it passed. Each accepted call ends in one done(), in whatever order
 * jobs run, and a full queue says so. */
#include "base/check.h"
#include "lib/fault.h"
#include "optim/reduce.h"
#include "store/share.h"
#include "store/store_missing.h"
#include "store/tier.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { CE = 16384, CHUNKS = 3, SOURCES = 3, ROOM = 2, TAGS = 8 };

static const struct shard_tensor tensors[] = {
	{.name = "a", .ndim = 1, .shape = {100}},
	{.name = "b", .ndim = 1, .group = 1, .shape = {2 * CE}},
	{.name = "c", .flags = SHARD_FROZEN, .ndim = 1, .shape = {300}},
};

/* Jobs wait until the test runs them. */
struct hand {
	struct exec_job job[ROOM];
	uint32_t nr;
	bool closed;
};

static enum shard_status hand_submit(void *self, const struct exec_job *job)
{
	struct hand *h = self;

	if (h->closed)
		return SHARD_CLOSED;
	if (h->nr == ROOM)
		return SHARD_AGAIN;
	h->job[h->nr++] = *job;
	return SHARD_OK;
}

static void hand_here(void *self, const struct exec_job *job)
{
	struct exec_job mine = *job;

	(void)self;
	mine.run(mine.args);
	mine.done(mine.owner, mine.args);
}

static uint32_t hand_lanes(const void *self)
{
	(void)self;
	return ROOM;
}

static void hand_run(struct hand *h) /* The newest job runs first. */
{
	struct exec_job job;

	assert_in_range(h->nr, 1, ROOM);
	job = h->job[--h->nr];
	job.run(job.args);
	job.done(job.owner, job.args);
}

struct bench {
	struct layout *layout;
	uint16_t owner[CHUNKS];
	struct store *store;
	struct hand hand;
	struct tiles tiles;
	struct tier *tier;
	uint32_t done[TAGS];
	struct tier_result result[TAGS];
};

static void done(void *owner, uint64_t tag, const struct tier_result *r)
{
	struct bench *b = owner;

	assert_in_range(tag, 0, TAGS - 1);
	b->done[tag]++;
	b->result[tag] = *r;
}

static struct tier_call call(struct bench *b, uint64_t tag)
{
	return (struct tier_call){.done = done, .owner = b, .tag = tag};
}

static void make_tiles(struct bench *b)
{
	uint32_t nr = 0;

	b->tiles.first = calloc(CHUNKS, sizeof(*b->tiles.first));
	for (uint32_t c = 0; c < CHUNKS; c++) {
		b->tiles.first[c] = nr;
		nr += tile_count(b->layout, c);
	}
	b->tiles.version = calloc(nr, sizeof(*b->tiles.version));
	b->tiles.undo_nr = ROOM;
	b->tiles.undo = calloc(ROOM, sizeof(*b->tiles.undo));
	b->tiles.used = calloc(ROOM, sizeof(*b->tiles.used));
}

static struct bench *bench(bool tiles)
{
	static const struct exec_row row = {
		.name = "hand", .submit = hand_submit, .here = hand_here, .lanes = hand_lanes};
	struct bench *b = calloc(1, sizeof(*b));
	struct store_conf conf = {.name = "m",
				  .optim = optim_find("adamw"),
				  .grad = SHARD_F32,
				  .nodes_nr = 1,
				  .local_world = 1,
				  .huge = SHM_HUGE_NO};
	struct tier_conf tier = {.isa = ISA_SCALAR};
	struct err e = {.text = ""};

	assert_non_null(b);
	if (layout_init(&b->layout, tensors, 3, 2, SHARD_F32, CE, &e) != SHARD_OK)
		fail_msg("%s", e.text);
	assert_int_equal(b->layout->chunks_nr, CHUNKS);
	conf.layout = b->layout;
	conf.place = place_of(b->owner, NULL, CHUNKS);
	if (store_init(&b->store, &conf, &e) != SHARD_OK)
		fail_msg("%s", e.text);
	if (tiles)
		make_tiles(b);
	tier.store = b->store;
	tier.exec = (struct exec){&row, &b->hand};
	tier.tiles = tiles ? &b->tiles : NULL;
	if (tier_ram_open(&b->tier, &tier, &e) != SHARD_OK)
		fail_msg("%s", e.text);
	return b;
}

static void bench_free(struct bench *b)
{
	assert_int_equal(b->hand.nr, 0);
	tier_close(&b->tier);
	assert_null(b->tier);
	tier_close(&b->tier);
	store_free(&b->store);
	layout_free(&b->layout);
	free(b->tiles.first);
	free((void *)b->tiles.version);
	free(b->tiles.undo);
	free((void *)b->tiles.used);
	free(b);
}

static float value(uint32_t i, uint32_t k)
{
	return (float)((i * 7 + k * 13) % 101) / 17.0f - 3.0f;
}

static void fill_state(struct bench *b)
{
	for (uint32_t c = 0; c < CHUNKS; c++) {
		store_clear_chunk(b->store, c);
		for (uint32_t i = 0; i < layout_chunk_elems(b->layout, c); i++)
			store_master(b->store, c)[i] = value(i, c);
	}
}

/* --- sums --- */

static void sums(void **state)
{
	static float source[SOURCES][CE], want[CE], got[2][CE];
	struct bench *b = bench(false);
	uint8_t *absent[SOURCES];
	struct tier_sum sum = {.chunk = 1, .sources_nr = SOURCES, .pre = 1, .norm = true};
	struct tier_call c = call(b, 0);
	double sq = 0;

	(void)state;
	for (uint32_t k = 0; k < SOURCES; k++) {
		absent[k] = calloc(b->layout->segments_nr, 1);
		for (uint32_t i = 0; i < CE; i++)
			source[k][i] = value(i, k);
		sum.source[k] = (struct tier_source){(uint8_t *)source[k], absent[k]};
	}
	memset(absent[1], 1, b->layout->segments_nr); /* It has no gradient at all. */
	for (uint32_t i = 0; i < CE; i++) {
		want[i] = source[0][i] + source[2][i];
		sq += (double)want[i] * want[i];
	}
	sum.to = (uint8_t *)got[0];
	assert_int_equal(b->tier->row->sum(b->tier, &sum, &c), SHARD_OK);
	c.tag = 1;
	sum.to = (uint8_t *)got[1];
	sum.pre = 0.5f;
	sum.norm = false;
	assert_int_equal(b->tier->row->sum(b->tier, &sum, &c), SHARD_OK);
	c.tag = 2;
	assert_int_equal(b->tier->row->sum(b->tier, &sum, &c), SHARD_AGAIN);
	/* Jobs hold what they were given by value. */
	memset(&sum, 0xff, sizeof(sum));
	memset(&c, 0xff, sizeof(c));
	assert_int_equal(b->done[0] + b->done[1] + b->done[2], 0);
	hand_run(&b->hand);
	assert_int_equal(b->done[1], 1);
	hand_run(&b->hand);
	assert_int_equal(b->done[0], 1);
	assert_int_equal(b->done[2], 0);
	assert_memory_equal(got[0], want, sizeof(want));
	assert_true(fabs(b->result[0].sumsq - sq) <= 1e-9 * sq && b->result[0].finite);
	assert_true(b->result[1].sumsq == 0);
	for (uint32_t i = 0; i < CE; i++)
		assert_true(got[1][i] == 0.5f * source[0][i] + 0.5f * source[2][i]);
	b->hand.closed = true;
	c = call(b, 3);
	sum = (struct tier_sum){.chunk = 1,
				.sources_nr = 1,
				.pre = 1,
				.to = (uint8_t *)got[0],
				.source = {{(uint8_t *)source[0], absent[0]}}};
	assert_int_equal(b->tier->row->sum(b->tier, &sum, &c), SHARD_CLOSED);
	c.here = true; /* It takes no place in the queue. */
	assert_int_equal(b->tier->row->sum(b->tier, &sum, &c), SHARD_OK);
	assert_int_equal(b->done[3], 1);
	for (uint32_t k = 0; k < SOURCES; k++)
		free(absent[k]);
	bench_free(b);
}

/* Sources with shares of a segment are no operands of a sum, whatever lies beside the shares. */
static void shares(void **state)
{
	static float source[SOURCES][CE], got[CE];
	struct bench *b = bench(false);
	uint8_t *absent[SOURCES];
	struct share *all, *share[SOURCES];
	struct tier_sum sum = {
		.chunk = 0, .sources_nr = SOURCES, .pre = 0.5f, .norm = true, .to = (uint8_t *)got};
	struct tier_call c = call(b, 0);
	double sq = 0;

	(void)state;
	sum.share = all = malloc(SOURCES * b->layout->segments_nr * sizeof(*all));
	memset(all, 0xff, SOURCES * b->layout->segments_nr * sizeof(*all));
	for (uint32_t k = 0; k < SOURCES; k++) {
		absent[k] = calloc(b->layout->segments_nr, 1);
		share[k] = all + (size_t)k * b->layout->segments_nr;
		for (uint32_t i = 0; i < CE; i++)
			source[k][i] = NAN;
		sum.source[k] = (struct tier_source){(uint8_t *)source[k], absent[k]};
	}
	/* Tensor a is summed. Of b, which begins at 128, sources 2 and 0 have shares. */
	for (uint32_t i = 0; i < 100; i++)
		source[0][i] = source[1][i] = source[2][i] = 1;
	share[2][1] = (struct share){0, 77};
	share[0][1] = (struct share){77, CE - 128 - 77};
	share[1][1] = (struct share){0, 0};
	absent[1][1] = 1;
	for (uint32_t i = 128; i < CE; i++)
		source[i < 128 + 77 ? 2 : 0][i] = value(i, 0);
	c.here = true;
	assert_int_equal(b->tier->row->sum(b->tier, &sum, &c), SHARD_OK);
	for (uint32_t i = 0; i < 100; i++)
		assert_true(got[i] == 1.5f);
	for (uint32_t i = 128; i < CE; i++) {
		assert_true(got[i] == 0.5f * value(i, 0));
		sq += (double)got[i] * got[i];
	}
	assert_true(b->result[0].finite);
	assert_true(fabs(b->result[0].sumsq - (sq + 225)) <= 1e-9 * sq);
	source[0][128 + 77] = INFINITY;
	assert_int_equal(b->tier->row->sum(b->tier, &sum, &c), SHARD_OK);
	assert_false(b->result[0].finite);
	assert_int_equal(b->result[0].bad_segment, 1);
	assert_int_equal(b->result[0].bad_sources, 1 << 0);
	for (uint32_t k = 0; k < SOURCES; k++)
		free(absent[k]);
	free(all);
	bench_free(b);
}

/* The sources with an element that is not finite are named, and the first such segment. */
static void not_finite(void **state)
{
	static float source[SOURCES][CE], got[CE];
	struct bench *b = bench(false);
	uint8_t *absent = calloc(b->layout->segments_nr, 1);
	struct tier_sum sum = {
		.chunk = 0, .sources_nr = SOURCES, .pre = 1, .norm = true, .to = (uint8_t *)got};
	struct tier_call c = call(b, 0);

	(void)state;
	for (uint32_t k = 0; k < SOURCES; k++)
		sum.source[k] = (struct tier_source){(uint8_t *)source[k], absent};
	source[1][200] = INFINITY; /* In tensor b, which is the second segment. */
	source[2][200] = NAN;
	c.here = true;
	assert_int_equal(b->tier->row->sum(b->tier, &sum, &c), SHARD_OK);
	assert_false(b->result[0].finite);
	assert_int_equal(b->result[0].bad_segment, 1);
	assert_int_equal(b->result[0].bad_sources, 1 << 1 | 1 << 2);
	/* Finite sources may have a sum that is not. */
	source[1][200] = source[2][200] = 3e38f;
	assert_int_equal(b->tier->row->sum(b->tier, &sum, &c), SHARD_OK);
	assert_false(b->result[0].finite);
	assert_int_equal(b->result[0].bad_sources, 0);
	free(absent);
	bench_free(b);
}

/* --- updates --- */

struct copy {
	float tensor[3][CE], image[CE];
};

static void take_copy(struct bench *b, uint32_t chunk, struct copy *c)
{
	size_t bytes = layout_chunk_elems(b->layout, chunk) * sizeof(float);

	memset(c, 0, sizeof(*c));
	memcpy(c->tensor[0], store_master(b->store, chunk), bytes);
	for (uint32_t i = 0; i < 2; i++)
		if (store_state(b->store, chunk, i) != NULL)
			memcpy(c->tensor[i + 1], store_state(b->store, chunk, i), bytes);
	memcpy(c->image, store_image(b->store, 0, chunk), bytes);
}

/* The reference runs the scalar kernel over each segment that is not frozen. */
static void update_copy(const struct layout *l, uint32_t chunk, const struct optim_args *args,
			const uint8_t *zero, const float *grad, struct copy *c)
{
	optim_apply *kernel = optim_kernel(optim_find("adamw"), ISA_SCALAR, SHARD_F32, SHARD_F32);

	for (uint32_t s = l->chunk_segment[chunk]; s < l->chunk_segment[chunk + 1]; s++) {
		const struct segment *g = &l->segment[s];

		if (l->segment_tensor[s] != 2)
			kernel(&args[g->group], g->n, zero[s] ? NULL : grad + g->start,
			       c->tensor[0] + g->start, c->tensor[1] + g->start,
			       c->tensor[2] + g->start, c->image + g->start);
	}
}

static void updates(bool tiles)
{
	static float grad[CE];
	static struct copy want[CHUNKS], got;
	struct optim_args args[2];
	struct bench *b = bench(tiles);
	uint8_t *zero = calloc(b->layout->segments_nr, 1);
	double h[HYPER_NR];

	fill_state(b);
	optim_defaults(optim_find("adamw"), h);
	h[HYPER_LR] = 0.01;
	optim_args_set(&args[0], optim_find("adamw"), h, 3, 0.5f);
	h[HYPER_LR] = 0.1;
	optim_args_set(&args[1], optim_find("adamw"), h, 3, 0.25f);
	zero[0] = 1; /* Nobody has a gradient of tensor a. */
	for (uint32_t i = 0; i < CE; i++)
		grad[i] = value(i, 5);
	for (uint32_t c = 0; c < CHUNKS; c++) {
		struct tier_apply a = {.chunk = c,
				       .stamp = 7,
				       .args = args,
				       .zero = zero,
				       .grad = (const uint8_t *)grad};
		struct tier_call to = call(b, c);

		take_copy(b, c, &want[c]);
		update_copy(b->layout, c, args, zero, grad, &want[c]);
		if (b->tier->row->apply(b->tier, &a, &to) == SHARD_OK)
			continue;
		/* The queue is full. The caller comes again when a job is done. */
		assert_int_equal(c, ROOM);
		hand_run(&b->hand);
		assert_int_equal(b->tier->row->apply(b->tier, &a, &to), SHARD_OK);
	}
	while (b->hand.nr > 0)
		hand_run(&b->hand);
	for (uint32_t c = 0; c < CHUNKS; c++) {
		struct tier_apply a = {.chunk = c,
				       .stamp = 7,
				       .args = args,
				       .zero = zero,
				       .grad = (const uint8_t *)grad};
		struct tier_call to = call(b, c + CHUNKS);

		assert_int_equal(b->done[c], 1);
		take_copy(b, c, &got);
		assert_memory_equal(&got, &want[c], sizeof(got));
		if (!tiles || c + CHUNKS >= TAGS)
			continue;
		to.here = true; /* The chunk has the stamp, so a second call changes nothing. */
		assert_int_equal(b->tier->row->apply(b->tier, &a, &to), SHARD_OK);
		take_copy(b, c, &got);
		assert_memory_equal(&got, &want[c], sizeof(got));
	}
	free(zero);
	bench_free(b);
}

static void updates_plain(void **state)
{
	(void)state;
	updates(false);
}

static void updates_by_tiles(void **state)
{
	(void)state;
	updates(true);
}

/* --- images --- */

static void images(void **state)
{
	struct bench *b = bench(false);
	struct tier_make make = {.update = {.chunk = 1}};
	struct tier_call c = call(b, 0);
	const float *image = store_image(b->store, 0, 1);

	(void)state;
	fill_state(b);
	assert_int_equal(b->tier->row->make(b->tier, &make, &c), SHARD_OK);
	hand_run(&b->hand);
	assert_int_equal(b->result[0].unwritten + b->result[0].nonfinite, 0);
	assert_memory_equal(image, store_master(b->store, 1), CE * sizeof(float));
	store_clear_chunk(b->store, 1); /* Every weight counts as unwritten. */
	for (uint32_t i = 10; i < layout_chunk_elems(b->layout, 1); i++)
		store_master(b->store, 1)[i] = 1;
	store_master(b->store, 1)[11] = NAN;
	c = call(b, 1);
	assert_int_equal(b->tier->row->make(b->tier, &make, &c), SHARD_OK);
	hand_run(&b->hand);
	assert_int_equal(b->result[1].unwritten, 10);
	assert_int_equal(b->result[1].nonfinite, 1);
	assert_int_equal(b->done[0] + b->done[1], 2);
	bench_free(b);
}

/* --- pins --- */

/* A row that brings the state later. */
static struct {
	struct list waiting;
	uint32_t unpinned;
} late;

static bool late_pin(struct tier *t, struct tier_pin *p)
{
	(void)t;
	list_push(&late.waiting, &p->link);
	return false;
}

static void late_unpin(struct tier *t, struct tier_pin *p, bool waited)
{
	(void)t;
	assert_int_equal(p->at, TIER_UNPINNED); /* Whoever is called by this sees it so. */
	assert_true(waited || list_empty(&p->link));
	late.unpinned++;
	list_remove(&p->link);
}

static void count_pinned(struct tier_pin *p)
{
	assert_int_equal(p->at, TIER_PINNED);
	++*(uint32_t *)p->owner;
}

static void pins(void **state)
{
	static const struct tier_row row = {.name = "late", .pin = late_pin, .unpin = late_unpin};
	struct tier t = {.row = &row};
	struct bench *b = bench(false);
	uint32_t told = 0;
	struct tier_pin a = {.chunk = 1, .done = count_pinned, .owner = &told}, c = a;

	(void)state;
	/* Main memory has all of it. An unpin may come twice. */
	assert_true(tier_pin(b->tier, &a));
	assert_true(tier_pin_now(b->tier, &c));
	assert_int_equal(b->tier->pins, 2);
	tier_unpin(b->tier, &a);
	tier_unpin(b->tier, &a);
	tier_unpin(b->tier, &c);
	assert_int_equal(b->tier->pins, 0);
	assert_int_equal(told, 0);
	/* A late row tells when it is there. A wait can be given up, and one that must not wait
	 * leaves nothing behind. */
	list_init(&late.waiting);
	c = a;
	assert_false(tier_pin(&t, &a));
	assert_false(tier_pin(&t, &c));
	assert_int_equal(a.at, TIER_WAITS);
	tier_unpin(&t, &c);
	assert_int_equal(c.at, TIER_UNPINNED);
	list_remove(&a.link);
	tier_pinned(&a);
	assert_int_equal(told, 1);
	assert_false(tier_pin_now(&t, &c));
	assert_int_equal(c.at, TIER_UNPINNED);
	assert_true(list_empty(&late.waiting));
	tier_unpin(&t, &a);
	assert_int_equal(late.unpinned, 3);
	assert_int_equal(t.pins, 0);
	bench_free(b);
}

/* --- at a start --- */

static void of(void *arg, uint32_t chunk, struct tier_apply *a)
{
	*a = *(const struct tier_apply *)arg;
	a->chunk = chunk;
}

/* A note of a killed thread that cannot be right is refused, whatever it says. */
static void notes_that_are_impossible(void **state)
{
	static float grad[CE];
	struct optim_args args[2] = {{0}};
	struct bench *b = bench(true);
	uint8_t *zero = calloc(b->layout->segments_nr, 1);
	struct tier_apply a = {
		.stamp = 9, .args = args, .zero = zero, .grad = (const uint8_t *)grad};
	struct tile_undo *n = &b->tiles.undo[1];
	uint64_t kept = 0;
	struct err e;

	(void)state;
	fill_state(b);
	n->stamp = 9;
	n->chunk = CHUNKS;
	n->undo.at = 32 << 8 | 8;
	assert_int_equal(b->tier->row->repair(b->tier, 8, true, of, &a, &kept, &e), SHARD_OK);
	assert_int_equal(b->tier->row->repair(b->tier, 9, true, of, &a, &kept, &e), SHARD_MISMATCH);
	n->chunk = 1;
	for (uint32_t lanes = 0; lanes < 2; lanes++) {
		n->undo.at = 32 << 8 | lanes * (UNDO_LANES + 1);
		assert_int_equal(b->tier->row->repair(b->tier, 9, true, of, &a, &kept, &e),
				 SHARD_MISMATCH);
	}
	n->undo.at = (uint64_t)CE << 8 | 8;
	assert_int_equal(b->tier->row->repair(b->tier, 9, true, of, &a, &kept, &e), SHARD_MISMATCH);
	n->undo.at = 32 << 8 | 8;
	assert_int_equal(b->tier->row->repair(b->tier, 9, false, of, &a, &kept, &e),
			 SHARD_MISMATCH);
	assert_int_equal(b->tier->row->repair(b->tier, 9, true, of, &a, &kept, &e), SHARD_OK);
	assert_int_equal(b->tiles.version[b->tiles.first[1]], 9);
	free(zero);
	bench_free(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sums),
		cmocka_unit_test(not_finite),
		cmocka_unit_test(shares),
		cmocka_unit_test(updates_plain),
		cmocka_unit_test(updates_by_tiles),
		cmocka_unit_test(images),
		cmocka_unit_test(notes_that_are_impossible),
		cmocka_unit_test(pins),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
