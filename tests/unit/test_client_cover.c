// SPDX-License-Identifier: Apache-2.0
/* Tests which elements count as pushed. Random ranges in random order are compared with a plain
 * array of flags. The layouts have padding, frozen tensors, and chunks without a trainable
 * element. */
#include "base/check.h"
#include "base/rng.h"
#include "client/cover.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { TENSORS = 5 };

static const struct shard_tensor tensors[TENSORS] = {
	{.name = "a", .ndim = 1, .shape = {3000}},
	{.name = "b", .ndim = 2, .shape = {5, 13}},
	{.name = "frozen", .ndim = 1, .shape = {2500}, .flags = SHARD_FROZEN},
	{.name = "c", .ndim = 0},
	{.name = "d", .ndim = 1, .shape = {1024}},
};

struct model {
	struct layout *layout;
	struct cover cover;
	uint8_t *pushed; /* [elems] */
	uint8_t *complete;
	uint32_t completed;
};

static void on_complete(void *arg, uint32_t chunk)
{
	struct model *m = arg;

	assert_int_equal(m->complete[chunk], 0);
	m->complete[chunk] = 1;
	m->completed++;
}

static void model_init(struct model *m)
{
	struct err e;

	memset(m, 0, sizeof(*m));
	assert_int_equal(layout_init(&m->layout, tensors, TENSORS, 0, SHARD_BF16, 0, &e), SHARD_OK);
	assert_int_equal(layout_cut(m->layout, 1024, &e), SHARD_OK);
	assert_int_equal(cover_init(&m->cover, m->layout, &e), SHARD_OK);
	m->pushed = calloc(m->layout->elems, 1);
	m->complete = calloc(m->layout->chunks_nr, 1);
}

static void model_deinit(struct model *m)
{
	cover_deinit(&m->cover);
	layout_free(&m->layout);
	free(m->pushed);
	free(m->complete);
}

static bool chunk_whole(struct model *m, uint32_t chunk)
{
	for (uint32_t t = 0; t < TENSORS; t++)
		for (uint64_t i = 0; i < m->layout->tensor[t].numel; i++) {
			uint64_t at = m->layout->tensor[t].offset + i;

			if (at / 1024 == chunk && t != 2 && !m->pushed[at])
				return false;
		}
	return true;
}

static bool overlaps(struct model *m, uint32_t t, uint64_t first, uint64_t count)
{
	return memchr(m->pushed + m->layout->tensor[t].offset + first, 1, count) != NULL;
}

/* The tests below rely on this layout of tensors and chunks. */
static void test_layout(void **state)
{
	static const uint32_t first[] = {0, 0, 0, 1, 2, 2, 4}; /* The first tensor of each chunk. */
	struct model m;

	(void)state;
	model_init(&m);
	assert_int_equal(m.layout->tensor[1].offset, 3008);
	assert_int_equal(m.layout->tensor[2].offset, 3136);
	assert_int_equal(m.layout->tensor[3].offset, 5696);
	assert_int_equal(m.layout->tensor[4].offset, 5760);
	assert_int_equal(m.layout->elems, 6784);
	assert_int_equal(m.layout->chunks_nr, 7);
	assert_int_equal(layout_chunk_elems(m.layout, 6), 640);
	for (uint32_t i = 0; i < NR(first); i++)
		assert_int_equal(m.layout->segment_tensor[m.layout->chunk_segment[i]], first[i]);
	model_deinit(&m);
}

static void one_step(struct model *m, struct rng *r)
{
	struct err e;

	memset(m->pushed, 0, m->layout->elems);
	memset(m->complete, 0, m->layout->chunks_nr);
	m->completed = 0;
	cover_reset(&m->cover, on_complete, m);
	assert_int_equal(m->completed, 1); /* Chunk 4 holds only the frozen tensor. */
	assert_int_equal(m->complete[4], 1);
	while (cover_missing(&m->cover, &e) != SHARD_OK) {
		uint32_t t = (uint32_t)rng_below(r, TENSORS);
		uint64_t numel = m->layout->tensor[t].numel, first = rng_below(r, numel),
			 count = 1 + rng_below(r, numel - first);
		enum shard_status rc;

		if (t == 2)
			continue;
		if (rng_below(r, 4) == 0) {
			first = 0;
			count = numel;
		} else if (rng_below(r, 2)) { /* Fills the rest of a hole, so that the loop ends. */
			while (first > 0 && m->pushed[m->layout->tensor[t].offset + first])
				first--;
			count = 1;
			while (first + count < numel &&
			       !m->pushed[m->layout->tensor[t].offset + first + count])
				count++;
		}
		rc = cover_claim(&m->cover, t, first, count, &e);
		assert_int_equal(rc, overlaps(m, t, first, count) ? SHARD_DUPLICATE : SHARD_OK);
		if (rc != SHARD_OK)
			continue;
		memset(m->pushed + m->layout->tensor[t].offset + first, 1, count);
		cover_fill(&m->cover, t, first, count, on_complete, m);
		for (uint32_t c = 0; c < m->layout->chunks_nr; c++)
			assert_int_equal(m->complete[c], chunk_whole(m, c));
	}
	assert_int_equal(m->completed, m->layout->chunks_nr);
	assert_int_equal(m->cover.complete, m->layout->chunks_nr);
}

/* In every step the same elements count as pushed as in the array of flags. */
static void test_random(void **state)
{
	struct rng r = {42};
	struct model m;

	(void)state;
	model_init(&m);
	for (int step = 0; step < 60; step++)
		one_step(&m, &r);
	model_deinit(&m);
}

/* A tensor may be declared to have no gradient only if none of its elements were pushed. The text
 * for missing tensors names and counts them. */
static void test_absent(void **state)
{
	struct model m;
	struct err e;

	(void)state;
	model_init(&m);
	cover_reset(&m.cover, on_complete, &m);
	assert_true(cover_absent(&m.cover, 2));
	assert_false(cover_absent(&m.cover, 0));
	assert_int_equal(cover_claim_absent(&m.cover, 0, &e), SHARD_OK);
	cover_fill(&m.cover, 0, 0, 3000, on_complete, &m);
	assert_true(cover_absent(&m.cover, 0));
	/* Chunks 0, 1 and the frozen 4. Chunk 2 also holds "b". */
	assert_int_equal(m.completed, 3);
	assert_int_equal(cover_claim_absent(&m.cover, 0, &e), SHARD_DUPLICATE);
	assert_int_equal(cover_claim(&m.cover, 0, 0, 1, &e), SHARD_DUPLICATE);
	assert_int_equal(cover_claim(&m.cover, 1, 3, 4, &e), SHARD_OK);
	assert_int_equal(cover_claim_absent(&m.cover, 1, &e), SHARD_DUPLICATE);
	assert_int_equal(cover_missing(&m.cover, &e), SHARD_MISSING);
	assert_string_equal(e.text, "3 of 4 tensors were not pushed: b (4 of 65 elements), c, d: "
				    "push them, or shard_push_none()");
	cover_rest(&m.cover, on_complete, &m);
	assert_int_equal(m.completed, m.layout->chunks_nr);
	model_deinit(&m);
}

/* A share counts once it is filled, and what is beside it at once. */
static void test_share(void **state)
{
	struct model m;
	struct err e;

	(void)state;
	model_init(&m);
	cover_reset(&m.cover, on_complete, &m);
	assert_int_equal(cover_claim_share(&m.cover, 0, 1000, 100, false, &e), SHARD_OK);
	cover_fill(&m.cover, 0, 0, 1000, on_complete, &m);
	cover_fill(&m.cover, 0, 1100, 1900, on_complete, &m);
	assert_int_equal(m.completed, 1); /* The frozen one. Chunks 0 and 1 have a part of it. */
	cover_fill(&m.cover, 0, 1000, 100, on_complete, &m);
	assert_int_equal(m.completed, 3);
	assert_int_equal(cover_claim(&m.cover, 0, 0, 10, &e), SHARD_DUPLICATE);
	assert_int_equal(cover_claim_absent(&m.cover, 0, &e), SHARD_DUPLICATE);
	assert_int_equal(cover_claim_share(&m.cover, 0, 0, 10, false, &e), SHARD_DUPLICATE);
	assert_string_equal(e.text, "push of a share of \"a\": this rank's share in this step is "
				    "100 elements from 1000 on, and was pushed already");
	assert_int_equal(cover_claim(&m.cover, 1, 0, 5, &e), SHARD_OK);
	assert_int_equal(cover_claim_share(&m.cover, 1, 0, 10, false, &e), SHARD_DUPLICATE);
	assert_string_equal(e.text, "push of a share of \"b\", of which 5 of 65 elements were "
				    "pushed without SHARD_SHARE already in this step");
	/* Of several micro-steps: the parts of the share are claimed when they are complete. */
	assert_int_equal(cover_claim_share(&m.cover, 4, 24, 1000, true, &e), SHARD_OK);
	assert_int_equal(cover_claim(&m.cover, 4, 24, 400, &e), SHARD_OK);
	assert_int_equal(cover_claim(&m.cover, 4, 400, 100, &e), SHARD_DUPLICATE);
	assert_int_equal(cover_missing(&m.cover, &e), SHARD_MISSING);
	assert_non_null(strstr(e.text, "d (424 of 1024 elements)"));
	assert_int_equal(cover_claim(&m.cover, 4, 424, 600, &e), SHARD_OK);
	assert_int_equal(cover_claim(&m.cover, 4, 0, 1, &e), SHARD_DUPLICATE);
	assert_int_equal(cover_claim_share(&m.cover, 3, 0, 0, true, &e), SHARD_OK);
	assert_int_equal(cover_missing(&m.cover, &e), SHARD_MISSING); /* The rest of b. */
	assert_null(strstr(e.text, "c"));
	model_deinit(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_layout),
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_absent),
		cmocka_unit_test(test_share),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
