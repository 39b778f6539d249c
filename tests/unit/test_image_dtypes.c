// SPDX-License-Identifier: Apache-2.0
/* Tests tensors with an image dtype of their own and tensors without elements, on random lists.
 * Where each of them
 * lies, in elements and in the bytes of the image, is computed here a second time. The layout that
 * is cut later, as the library does, and the one that is cut at once from what a message has, as a
 * node does, are the same. A list without such tensors has the layout that it always had. The
 * memory is what the budget says, no two images overlap, and each is rounded to its own dtype. */
#include "base/check.h"
#include "base/rng.h"
#include "store/budget.h"
#include "store/store_missing.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TENSORS = 24, ROUNDS = 1500, STORES = 60, NUMEL_MAX = 3 * 40 * 64 };

struct list {
	char name[TENSORS][8];
	struct shard_tensor tensor[TENSORS];
	uint32_t nr, chunk;
	enum shard_dtype image;
	bool mixed;
};

static void any_list(struct list *l, struct rng *r)
{
	*l = (struct list){.nr = 1 + (uint32_t)rng_below(r, TENSORS),
			   .chunk = 64u << rng_below(r, 7),
			   .image = (enum shard_dtype)(1 + rng_below(r, 3))};
	bool own = rng_below(r, 4) > 0;

	for (uint32_t i = 0; i < l->nr; i++) {
		struct shard_tensor *t = &l->tensor[i];

		snprintf(l->name[i], sizeof(l->name[i]), "t%u", i);
		*t = (struct shard_tensor){
			.name = l->name[i],
			.ndim = 2,
			.flags = rng_below(r, 5) == 0 ? SHARD_FROZEN : 0,
			.shape = {1 + rng_below(r, 3), rng_below(r, 3) == 0
							       ? 64 * (1 + rng_below(r, 40))
							       : 1 + rng_below(r, 2000)}};
		if (own && rng_below(r, 2) == 0)
			t->image = (uint32_t)rng_below(r, 4);
		if (i != l->nr / 2 && rng_below(r, 6) == 0)
			t->shape[rng_below(r, 2)] = 0;
		l->mixed = l->mixed || (t->image != 0 && t->image != l->image);
	}
}

static enum shard_dtype image_of(const struct list *l, uint32_t i)
{
	return l->tensor[i].image ? (enum shard_dtype)l->tensor[i].image : l->image;
}

static struct layout *at_once(const struct list *l)
{
	struct shard_tensor sent[TENSORS];
	struct layout *out = NULL;
	struct err e;

	memcpy(sent, l->tensor, sizeof(sent));
	for (uint32_t i = 0; i < l->nr; i++) {
		uint32_t flags = layout_flags(&l->tensor[i], l->image);

		if (image_of(l, i) == l->image)
			assert_int_equal(flags, l->tensor[i].flags);
		else /* A release that does not know it refuses the flags. */
			assert_int_equal(flags, l->tensor[i].flags | l->tensor[i].image << 8);
		layout_flags_take(&sent[i], flags);
	}
	if (layout_init(&out, sent, l->nr, 1, l->image, l->chunk, &e) != SHARD_OK)
		fail_msg("%s", e.text);
	return out;
}

static struct layout *cut_later(const struct list *l)
{
	struct layout *out = NULL;
	struct err e;

	if (layout_init(&out, l->tensor, l->nr, 1, l->image, 0, &e) != SHARD_OK ||
	    layout_cut(out, l->chunk, &e) != SHARD_OK)
		fail_msg("%s", e.text);
	return out;
}

static void same(const struct layout *a, const struct layout *b)
{
	struct err e;

	assert_int_equal(layout_compare(a, b, "there", &e), SHARD_OK);
	assert_int_equal(a->elems, b->elems);
	assert_int_equal(a->stored, b->stored);
	assert_int_equal(a->image_bytes, b->image_bytes);
	assert_int_equal(a->chunks_nr, b->chunks_nr);
	assert_int_equal(a->segments_nr, b->segments_nr);
	assert_int_equal(a->regions_nr, b->regions_nr);
	assert_memory_equal(a->segment, b->segment, a->segments_nr * sizeof(*a->segment));
	assert_memory_equal(a->segment_tensor, b->segment_tensor,
			    a->segments_nr * sizeof(*a->segment_tensor));
	assert_memory_equal(a->chunk_segment, b->chunk_segment,
			    (a->chunks_nr + 1) * sizeof(*a->chunk_segment));
	for (uint32_t i = 0; i < a->tensors_nr; i++)
		assert_int_equal(a->tensor[i].offset, b->tensor[i].offset);
}

static uint64_t numel(const struct list *l, uint32_t i)
{
	return l->tensor[i].shape[0] * l->tensor[i].shape[1];
}

static bool has_elements(const struct list *l, enum shard_dtype dt)
{
	for (uint32_t i = 0; i < l->nr; i++)
		if (image_of(l, i) == dt && numel(l, i) > 0)
			return true;
	return false;
}

/* One without elements has a place all the same, which a trainer may ask for. */
static void placed_empty(const struct layout *is, uint32_t i, uint64_t at, uint64_t byte)
{
	assert_int_equal(is->tensor[i].numel, 0);
	assert_int_equal(is->tensor[i].offset, at);
	assert_int_equal(layout_image_at(is, at), byte);
	assert_int_not_equal(layout_tensor_at(is, at), i);
}

/* Where the rules of proto/wire/README.md put each tensor. */
static void placed(const struct list *l, const struct layout *is)
{
	uint64_t at = 0, byte = 0;
	uint32_t placed_nr = 0;

	for (int d = 0; d <= DTYPE_NR; d++) {
		enum shard_dtype dt = d == 0 ? l->image : (enum shard_dtype)d;
		bool some = has_elements(l, dt);

		if (d > 0 && dt == l->image)
			continue;
		at = some ? (at + l->chunk - 1) / l->chunk * l->chunk : at;
		for (uint32_t i = 0; i < l->nr; i++) {
			uint64_t n = numel(l, i);

			if (image_of(l, i) != dt)
				continue;
			placed_nr++;
			if (n == 0) {
				placed_empty(is, i, some ? at : is->elems,
					     some ? byte : is->image_bytes);
				continue;
			}
			assert_int_equal(is->tensor[i].offset, at);
			assert_int_equal(is->tensor[i].image, dt);
			assert_int_equal(layout_image_at(is, at), byte);
			assert_int_equal(layout_image_at(is, at + n - 1),
					 byte + (n - 1) * dtype_bytes(dt));
			assert_int_equal(layout_tensor_at(is, at), i);
			assert_int_equal(layout_tensor_at(is, at + n - 1), i);
			assert_int_equal(layout_tensor_at(is, at + n),
					 n % 64 == 0 && at + n < is->elems
						 ? layout_tensor_at(is, at + n)
						 : UINT32_MAX);
			for (uint64_t k = at / l->chunk; k <= (at + n - 1) / l->chunk; k++)
				assert_int_equal(layout_image(is, (uint32_t)k), dt);
			n = (n + 63) / 64 * 64;
			at += n;
			byte += n * dtype_bytes(dt);
		}
	}
	assert_int_equal(placed_nr, l->nr);
	assert_int_equal(is->elems, at);
	assert_int_equal(is->image_bytes, byte);
	assert_int_equal(layout_image_at(is, at), byte);
}

static void chunks(const struct layout *is)
{
	uint64_t stored = 0, byte = 0;

	for (uint32_t c = 0; c < is->chunks_nr; c++) {
		assert_int_equal(layout_image_at(is, layout_chunk_start(is, c)), byte);
		assert_int_equal(layout_image_elem(is, c), dtype_bytes(layout_image(is, c)));
		assert_int_equal(layout_image_bytes(is, c, 1),
				 layout_chunk_elems(is, c) * (uint64_t)layout_image_elem(is, c));
		assert_in_range(layout_chunk_elems(is, c), LAYOUT_ALIGN, is->chunk_elems);
		byte += layout_image_bytes(is, c, 1);
		assert_int_equal(layout_image_bytes(is, 0, c + 1), byte);
		stored += layout_chunk_elems(is, c);
		for (uint32_t s = is->chunk_segment[c]; s < is->chunk_segment[c + 1]; s++)
			assert_true(is->segment[s].start + is->segment[s].n <=
				    layout_chunk_elems(is, c));
	}
	assert_int_equal(byte, is->image_bytes);
	assert_int_equal(stored, is->stored);
}

/* As it was before there were such tensors. */
static void as_always(const struct list *l, const struct layout *is)
{
	uint64_t at = 0;

	assert_int_equal(is->regions_nr, 1);
	for (uint32_t i = 0; i < l->nr; i++) {
		assert_int_equal(is->tensor[i].offset, at);
		assert_int_equal(is->order[i], i);
		at += (numel(l, i) + 63) / 64 * 64;
	}
	assert_int_equal(is->elems, at);
	assert_int_equal(is->stored, at);
	assert_int_equal(is->chunks_nr, (at + l->chunk - 1) / l->chunk);
	assert_int_equal(is->image_bytes, at * dtype_bytes(l->image));
}

static void layouts(void **state)
{
	struct rng r = {5};
	uint32_t mixed = 0;
	static struct list l;

	(void)state;
	for (int round = 0; round < ROUNDS; round++) {
		struct layout *a, *b;

		any_list(&l, &r);
		a = at_once(&l);
		b = cut_later(&l);
		same(a, b);
		placed(&l, a);
		chunks(a);
		if (!l.mixed)
			as_always(&l, a);
		mixed += l.mixed;
		layout_free(&a);
		layout_free(&b);
	}
	assert_in_range(mixed, ROUNDS / 4, ROUNDS - ROUNDS / 8);
}

static void compared(void **state)
{
	struct shard_tensor t = {.name = "ln", .ndim = 1, .shape = {8}};
	struct layout *bf16 = NULL, *f32 = NULL, *same_dtype = NULL;
	struct err e;

	(void)state;
	assert_int_equal(layout_init(&bf16, &t, 1, 0, SHARD_BF16, 64, &e), SHARD_OK);
	t.image = SHARD_F32;
	assert_int_equal(layout_init(&f32, &t, 1, 0, SHARD_BF16, 64, &e), SHARD_OK);
	t.image = SHARD_BF16;
	assert_int_equal(layout_init(&same_dtype, &t, 1, 0, SHARD_BF16, 64, &e), SHARD_OK);
	assert_int_equal(layout_compare(bf16, f32, "there", &e), SHARD_MISMATCH);
	assert_string_equal(e.text, "tensor \"ln\": image bf16 here, fp32 there");
	assert_int_equal(layout_compare(bf16, same_dtype, "there", &e), SHARD_OK);
	layout_free(&bf16);
	layout_free(&f32);
	layout_free(&same_dtype);
}

/* --- memory --- */

static void fill_and_seal(struct store *st, const struct layout *l)
{
	for (uint32_t c = 0; c < l->chunks_nr; c++) {
		float *master = store_master(st, c);

		store_clear_chunk(st, c);
		for (uint32_t i = 0; i < layout_chunk_elems(l, c); i++)
			master[i] = (float)(layout_chunk_start(l, c) + i) * 0.37f + 1;
	}
	for (uint32_t c = l->chunks_nr; c-- > 0;)
		store_seal_chunk(st, 0, c);
}

/* Each tensor is in the image at its place and rounded to its dtype, so no image is over another
 * one. */
static void images(struct store *st, const struct layout *l)
{
	const char *base = store_image(st, 0, 0);
	static float want[NUMEL_MAX], got[NUMEL_MAX], read[NUMEL_MAX];

	for (uint32_t i = 0; i < l->tensors_nr; i++) {
		const struct layout_tensor *t = &l->tensor[i];
		struct err e;

		CHECK(t->numel <= NUMEL_MAX);
		for (uint64_t k = 0; k < t->numel; k++)
			want[k] = (float)(t->offset + k) * 0.37f + 1;
		dtype_convert(got, t->image, want, SHARD_F32, t->numel);
		assert_memory_equal(base + layout_image_at(l, t->offset), got,
				    t->numel * dtype_bytes(t->image));
		for (uint64_t at = t->offset, end = at + t->numel, n; at < end; at += n) {
			n = layout_piece(l, at, end);
			assert_int_equal(store_read(st, SHARD_IMAGE, at, (uint32_t)n, read, &e),
					 SHARD_OK);
			dtype_convert(got, SHARD_F32, base + layout_image_at(l, at), t->image, n);
			assert_memory_equal(read, got, n * sizeof(float));
		}
	}
}

static void memory(void **state)
{
	const uint64_t alike[] = {3, 3, 3};
	struct rng r = {6};
	static struct list all;
	struct err e;

	(void)state;
	for (int round = 0; round < STORES; round++) {
		struct store_conf conf = {.name = "m",
					  .optim = optim_find("adamw"),
					  .grad = SHARD_BF16,
					  .nodes_nr = (uint16_t)(1 + rng_below(&r, 3)),
					  .local_world = 1 + (uint32_t)rng_below(&r, 2),
					  .staleness = (uint32_t)rng_below(&r, 2),
					  .huge = SHM_HUGE_NO};
		struct budget_need need, least;
		struct store *st = NULL;
		struct layout *l;
		uint16_t *owner;

		any_list(&all, &r);
		for (uint32_t i = 0; i < all.nr; i++)
			all.tensor[i].flags = 0;
		conf.layout = l = at_once(&all);
		owner = calloc(l->chunks_nr, sizeof(*owner));
		for (uint32_t c = 0; c < l->chunks_nr; c++)
			owner[c] = (uint16_t)(c % conf.nodes_nr);
		conf.place = place_of(owner, NULL, l->chunks_nr);
		conf.self = (uint16_t)rng_below(&r, conf.nodes_nr);
		budget_need(&need, &conf);
		budget_least(&least, &conf, 1, alike, true);
		assert_memory_equal(need.bytes, least.bytes, sizeof(need.bytes));
		assert_int_equal(store_init(&st, &conf, &e), SHARD_OK);
		assert_int_equal(need.total - need.bytes[BUDGET_FIXED], store_bytes(st));
		assert_true(store_image_shm(st)->bytes >= l->image_bytes * (1 + conf.staleness));
		if (conf.nodes_nr == 1) {
			fill_and_seal(st, l);
			images(st, l);
		}
		store_free(&st);
		/* Where the chunks do not come in turn it is a bound. */
		if (conf.nodes_nr > 1) {
			for (uint32_t c = 0; c < l->chunks_nr; c++)
				owner[c] = (uint16_t)(c * conf.nodes_nr / l->chunks_nr);
			for (uint16_t n = 0; n < conf.nodes_nr; n++) {
				uint64_t own[3] = {0};

				for (uint32_t c = 0; c < l->chunks_nr; c++)
					own[owner[c]]++;
				conf.self = n;
				budget_need(&need, &conf);
				budget_least(&least, &conf, 1, own, true);
				if (own[0] != own[conf.nodes_nr - 1])
					assert_in_range(least.total, 1, need.total);
			}
		}
		free(owner);
		layout_free(&l);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(layouts), cmocka_unit_test(compared),
					   cmocka_unit_test(memory)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
