/* SPDX-License-Identifier: Apache-2.0 */
/* Tests layout, budget and store: what is refused, where everything lies, that the budget is what
 * gets mapped, and that no buffers overlap. */
#include "base/check.h"
#include "lib/fault.h"
#include "store/budget.h"
#include "store/store_missing.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CE 1024 /* The chunk_elems of these layouts. */

static const struct shard_tensor three[] = {
	{.name = "a", .ndim = 2, .shape = {10, 10}},           /* 100 at 0 */
	{.name = "b", .ndim = 1, .group = 1, .shape = {2500}}, /* 2500 at 128: chunks 0, 1, 2 */
	{.name = "c",
	 .flags = SHARD_FROZEN,
	 .ndim = 1,
	 .shape = {64 * 7}}, /* 448 at 2688: chunk 2 and 3 */
};

static struct layout *laid(const struct shard_tensor *t, uint32_t nr, uint32_t groups_nr)
{
	struct layout *l = NULL;
	struct err e = {.text = ""};

	if (layout_init(&l, t, nr, groups_nr, SHARD_BF16, CE, &e) != SHARD_OK)
		fail_msg("%s", e.text);
	return l;
}

static void places(void **state)
{
	struct layout *l = laid(three, 3, 2);

	(void)state;
	assert_int_equal(l->tensor[1].offset, 128);
	assert_int_equal(l->tensor[2].offset, 2688);
	assert_int_equal(l->elems, 3136);
	assert_int_equal(l->numel, 3048);
	assert_int_equal(l->chunks_nr, 4);
	assert_int_equal(l->segments_nr, 6);
	assert_int_equal(layout_chunk_elems(l, 0), 1024);
	assert_int_equal(layout_chunk_elems(l, 3), 64);
	uint64_t numel = 0;
	for (uint32_t c = 0; c < l->chunks_nr; c++) {
		uint64_t end = 0;

		assert_true(l->chunk_segment[c] < l->chunk_segment[c + 1]);
		for (uint32_t s = l->chunk_segment[c]; s < l->chunk_segment[c + 1]; s++) {
			const struct segment *seg = &l->segment[s];

			assert_int_equal(seg->start % LAYOUT_ALIGN, 0);
			assert_true(seg->start >= end &&
				    seg->start + seg->n <= layout_chunk_elems(l, c));
			assert_int_equal(layout_tensor_at(l, layout_chunk_start(l, c) + seg->start),
					 l->segment_tensor[s]);
			assert_int_equal(seg->group, l->tensor[l->segment_tensor[s]].group);
			assert_int_equal(layout_frozen(l, s), l->segment_tensor[s] == 2);
			end = seg->start + seg->n;
			numel += seg->n;
		}
	}
	assert_int_equal(numel, l->numel);
	assert_int_equal(layout_tensor_at(l, 99), 0);
	assert_int_equal(layout_tensor_at(l, 100), UINT32_MAX); /* Padding. */
	assert_int_equal(layout_tensor_at(l, 128), 1);
	assert_int_equal(layout_tensor_at(l, 3135), 2);
	assert_int_equal(layout_tensor_at(l, 3136), UINT32_MAX);
	layout_free(&l); /* A second call does no harm. */
	layout_free(&l);
}

static void ranges(void **state)
{
	struct layout *l = laid(three, 3, 2);
	struct err e;

	(void)state;
	assert_int_equal(layout_range(l, 0, 100, &e), SHARD_OK);
	assert_int_equal(layout_range(l, 0, 101, &e), SHARD_RANGE);
	assert_string_equal(e.text, "tensor \"a\": 101 elements from 0 on, it has 100");
	assert_int_equal(layout_range(l, 99, UINT64_MAX, &e), SHARD_RANGE);
	assert_int_equal(layout_range(l, 99, 0, &e), SHARD_RANGE);
	assert_int_equal(layout_range(l, 100, 1, &e), SHARD_RANGE);
	assert_string_equal(e.text, "element 100 belongs to no tensor: the element space has 3136");
	assert_int_equal(layout_range(l, UINT64_MAX, 1, &e), SHARD_RANGE);
	layout_free(&l);
}

static void refuse_one(struct shard_tensor t, uint32_t groups_nr, const char *want)
{
	struct shard_tensor two[2] = {three[0], t};
	struct layout *l = NULL;
	struct err e = {.text = ""};

	if (layout_init(&l, two, 2, groups_nr, SHARD_BF16, CE, &e) == SHARD_OK)
		fail_msg("expected: %s", want);
	if (strcmp(e.text, want) != 0)
		fail_msg("\"%s\", expected \"%s\"", e.text, want);
	assert_null(l);
}

static void refused_layouts(void **state)
{
	struct shard_tensor t = {.name = "x", .ndim = 1, .shape = {1}};
	char longest[300];
	struct layout *l = NULL;
	struct err e;

	(void)state;
	assert_int_equal(layout_init(&l, three, 0, 0, SHARD_BF16, CE, &e), SHARD_BAD_ARG);
	t.name = "a";
	refuse_one(t, 0, "tensor \"a\" is there twice, as 0 and as 1");
	t.name = "";
	refuse_one(t, 0,
		   "tensor 1: a name has 1 to 255 bytes of UTF-8, no blanks, quotes or control "
		   "characters");
	t.name = "a\nb";
	refuse_one(t, 0,
		   "tensor 1: a name has 1 to 255 bytes of UTF-8, no blanks, quotes or control "
		   "characters");
	memset(longest, 'x', sizeof(longest) - 1);
	longest[sizeof(longest) - 1] = 0;
	t.name = longest;
	refuse_one(t, 0,
		   "tensor 1: a name has 1 to 255 bytes of UTF-8, no blanks, quotes or control "
		   "characters");
	t.name = "x";
	t.group = 1;
	refuse_one(t, 0, "tensor \"x\": group 1 of 1");
	refuse_one(t, 1, "tensor \"x\": group 1 of 1");
	t.group = 0;
	t.flags = 6;
	refuse_one(t, 0, "tensor \"x\": flags 0x6: only SHARD_FROZEN (0x1) is known");
	t.flags = 0;
	t.reserved[2] = 1;
	refuse_one(t, 0, "tensor \"x\": reserved[2] is not zero");
	t.reserved[2] = 0;
	t.image = 4;
	refuse_one(t, 0,
		   "tensor \"x\": image dtype 4: choose SHARD_F32, SHARD_BF16, SHARD_F16, or 0 for "
		   "that of the model");
	t.image = 0;
	t.reserved_32 = 1;
	refuse_one(t, 0, "tensor \"x\": reserved_32 is not zero");
	t.reserved_32 = 0;
	t.ndim = 9;
	refuse_one(t, 0, "tensor \"x\": 9 dimensions, at most 8 are possible");
	t.ndim = 2;
	t.shape[0] = 0; /* Its other dimensions are still limited. */
	t.shape[1] = (1ull << 44) + 1;
	refuse_one(t, 0, "tensor \"x\": more than 17592186044416 elements");
	assert_int_equal(layout_init(&l, &t, 1, 0, SHARD_BF16, CE, &e), SHARD_BAD_ARG);
	t.shape[1] = 1ull << 44;
	assert_int_equal(layout_init(&l, &t, 1, 0, SHARD_BF16, CE, &e), SHARD_BAD_ARG);
	assert_string_equal(e.text,
			    "1 tensors, and each has a dimension of 0: a model needs an element");
	t.shape[0] = t.shape[1] = 1ull << 32;
	refuse_one(t, 0, "tensor \"x\": more than 17592186044416 elements");
	t.ndim = 1;
	t.shape[0] = 1ull << 40;
	refuse_one(t, 0,
		   "1099511627904 elements in chunks of 1024 are 1073741825 chunks, at most "
		   "1048576 are possible: raise chunk_elems");
}

static void compared(void **state)
{
	struct shard_tensor other[3];
	struct layout *a = laid(three, 3, 2), *b;
	struct err e;

	(void)state;
	memcpy(other, three, sizeof(other));
	other[0].ndim = 3;
	other[0].shape[2] = 1;
	b = laid(other, 3, 2);
	assert_int_equal(
		layout_compare(a, b, "in the model that rank 0 (pid 4409, node a) defined", &e),
		SHARD_MISMATCH);
	assert_string_equal(e.text, "tensor \"a\": shape [10, 10] here, [10, 10, 1] in the model "
				    "that rank 0 (pid 4409, node a) defined");
	layout_free(&b);
	memcpy(other, three, sizeof(other));
	other[1].name = "bb";
	b = laid(other, 3, 2);
	assert_int_equal(layout_compare(a, b, "there", &e), SHARD_MISMATCH);
	assert_string_equal(e.text, "tensor 1: name \"b\" here, \"bb\" there");
	layout_free(&b);
	memcpy(other, three, sizeof(other));
	other[2].flags = 0;
	b = laid(other, 3, 2);
	assert_int_equal(layout_compare(a, b, "there", &e), SHARD_MISMATCH);
	assert_string_equal(e.text, "tensor \"c\": flags 0x1 here, 0x0 there");
	layout_free(&b);
	b = laid(three, 2, 2);
	assert_int_equal(layout_compare(a, b, "there", &e), SHARD_MISMATCH);
	assert_string_equal(e.text, "3 tensors here, 2 there");
	layout_free(&b);
	b = laid(three, 3, 2);
	assert_int_equal(layout_compare(a, b, "there", &e), SHARD_OK);
	layout_free(&b);
	layout_free(&a);
}

struct made {
	struct layout *layout;
	uint16_t owner[64];
	struct store_conf conf;
	struct store *store;
};

static struct made make(uint16_t self, uint16_t nodes_nr, uint32_t local_world, const char *optim)
{
	struct made m = {.layout = laid(three, 3, 2)};

	for (uint32_t c = 0; c < m.layout->chunks_nr; c++) /* Contiguous runs. */
		m.owner[c] = (uint16_t)(c * nodes_nr / m.layout->chunks_nr);
	m.conf = (struct store_conf){
		.name = "gpt",
		.layout = m.layout,
		.optim = optim_find(optim),
		.grad = SHARD_BF16,
		.self = self,
		.nodes_nr = nodes_nr,
		.local_world = local_world,
		.huge = SHM_HUGE_NO,
	};
	return m;
}

static void open_store(struct made *m)
{
	struct err e = {.text = ""};

	m->conf.place = place_of(m->owner, NULL, m->layout->chunks_nr);
	if (store_init(&m->store, &m->conf, &e) != SHARD_OK)
		fail_msg("%s", e.text);
}

static void close_store(struct made *m)
{
	store_free(&m->store);
	layout_free(&m->layout);
}

static void budget_mirrors(void **state)
{
	(void)state;
	for (uint16_t nodes = 1; nodes <= 4; nodes++) {
		for (uint32_t local = 1; local <= 3; local++) {
			struct made m = make(0, nodes, local, local == 2 ? "sgd" : "adamw");
			struct budget_need need;

			open_store(&m);
			budget_need(&need, &m.conf);
			assert_int_equal(need.total - need.bytes[BUDGET_FIXED],
					 store_bytes(m.store));
			assert_int_equal(need.bytes[BUDGET_SLOTS] > 0, nodes > 1);
			assert_true(need.bytes[BUDGET_SUMS] >
				    0); /* What is judged is copied, also that of one trainer. */
			close_store(&m);
		}
	}
}

/* The lower bound, from counts alone, is what is needed where no tensor is frozen. */
static void budget_bound(void **state)
{
	const uint64_t alike[] = {7, 7, 7, 7, 7};

	(void)state;
	for (uint16_t nodes = 1; nodes <= 5; nodes++) {
		for (uint16_t self = 0; self < nodes; self++) {
			struct made m = make(self, nodes, 2, "adamw");
			struct layout counts = *m.layout;
			struct store_conf conf = m.conf;
			struct budget_need need, least;

			counts.tensor = NULL; /* Counts alone. */
			counts.segment = NULL;
			counts.segment_tensor = counts.chunk_segment = counts.order = NULL;
			for (uint32_t c = 0; c < counts.chunks_nr; c++)
				m.owner[c] = (uint16_t)(c % nodes);
			m.conf.place = place_of(m.owner, NULL, counts.chunks_nr);
			conf.layout = &counts;
			budget_need(&need, &m.conf);
			budget_least(&least, &conf, 1, alike, false);
			assert_in_range(least.total, 1, need.total);
			for (uint32_t i = 0; i < m.layout->tensors_nr; i++)
				m.layout->tensor[i].flags = 0;
			budget_need(&need, &m.conf);
			budget_least(&least, &conf, 1, alike, true);
			assert_memory_equal(need.bytes, least.bytes, sizeof(need.bytes));
			assert_int_equal(need.total, least.total);
			layout_free(&m.layout);
		}
	}
}

static void budget_account(void **state)
{
	struct budget_need need = {
		.bytes = {72ull << 30, 12ull << 30, 3ull << 30, 6ull << 30, 0, 0},
		.total = 93ull << 30};
	struct budget b = {.total = 80ull << 30, .used = 16ull << 30};
	struct err e;

	(void)state;
	assert_int_equal(budget_reserve(&b, &need, "gpt", "a", &e), SHARD_BUDGET);
	assert_string_equal(e.text,
			    "\"gpt\" needs 93.0 GiB on node a (state 72.0, image 12.0, "
			    "arenas 3.0, landing slots 6.0, node sums 0.0, codes 0.0, "
			    "fixed 0.0), 64.0 of 80.0 GiB are free: raise [daemon] memory there; "
			    "`shardctl plan` says what a model needs");
	assert_int_equal(b.used, 16ull << 30);
	b.total = 200ull << 30;
	assert_int_equal(budget_reserve(&b, &need, "gpt", "a", &e), SHARD_OK);
	assert_int_equal(b.used, 109ull << 30);
	assert_int_equal(budget_reserve(&b, &need, "gpt", "a", &e), SHARD_BUDGET);
	budget_release(&b, &need);
	assert_int_equal(b.used, 16ull << 30);
	need = (struct budget_need){.bytes = {2 << 20}, .total = 2 << 20};
	b = (struct budget){.total = 1 << 20};
	assert_int_equal(budget_reserve(&b, &need, "gpt", "a", &e), SHARD_BUDGET);
	assert_non_null(strstr(e.text, "needs 2.0 MiB on node a"));
	assert_non_null(strstr(e.text, "1.0 of 1.0 MiB are free"));
}

/* Fills every buffer of every chunk with a value of its own and looks whether all are still there.
 */
static void no_overlap(void **state)
{
	struct made m = make(1, 3, 2, "adamw");
	uint32_t a, b, pass;
	struct err e;

	(void)state;
	open_store(&m);
	assert_int_equal(store_arena_open(m.store, &a, &e), SHARD_OK);
	assert_int_equal(store_arena_open(m.store, &b, &e), SHARD_OK);
	for (pass = 0; pass < 2; pass++) {
		unsigned char mark = 1;

		for (uint32_t c = 0; c < m.layout->chunks_nr; c++) {
			uint32_t n = layout_chunk_elems(m.layout, c);
			bool held = store_holds(m.store, c);
			void *at[] = {
				store_image(m.store, 0, c),
				store_sum(m.store, c),
				store_arena(m.store, a, 1, c),
				store_arena(m.store, b, 1, c),
				held ? store_slot(m.store, c, 0) : NULL,
				held ? store_slot(m.store, c, 2) : NULL,
				held ? store_master(m.store, c) : NULL,
				held ? store_state(m.store, c, 0) : NULL,
				held ? store_state(m.store, c, 1) : NULL,
			};

			assert_int_equal(held, m.owner[c] == 1);
			for (uint32_t i = 0; i < NR(at); i++, mark++) {
				unsigned char *bytes = at[i];
				size_t nr = n * (i >= 6 ? 4 : 2);

				if (!bytes)
					continue;
				assert_int_equal((uintptr_t)bytes % 128, 0);
				if (pass == 0)
					memset(bytes, mark, nr);
				else
					for (size_t k = 0; k < nr; k++)
						assert_int_equal(bytes[k], mark);
			}
		}
	}
	close_store(&m);
}

static void writing(void **state)
{
	struct made m = make(0, 2, 1, "adamw");
	struct store_missing missing;
	float got[100], *at;
	struct err e;

	(void)state;
	open_store(&m); /* Chunks 0 and 1 are held here. */
	assert_int_equal(store_owned(m.store), 2);
	store_missing_init(&missing);
	store_missing(m.store, 0, &missing);
	store_missing(m.store, 1, &missing);
	assert_int_equal(missing.unwritten, 100 + 2048 - 128); /* Padding does not count. */
	assert_int_equal(missing.first, 0);
	assert_int_equal(store_range(m.store, SHARD_MASTER, 0, 100, &at, &e), SHARD_OK);
	assert_ptr_equal(at, store_master(m.store, 0));
	store_clear_chunk(m.store, 0);
	store_clear_chunk(m.store, 1);
	for (int i = 0; i < 100; i++)
		at[i] = (float)i;
	assert_int_equal(store_range(m.store, SHARD_MASTER, 128, 1024 - 128, &at, &e), SHARD_OK);
	memset(at, 0, (1024 - 128) * 4);
	at[700] = INFINITY;
	assert_int_equal(store_range(m.store, SHARD_MASTER, 1024, 1024, &at, &e), SHARD_OK);
	memset(at, 0, 1023 * 4);
	store_missing_init(&missing);
	store_missing(m.store, 0, &missing);
	store_missing(m.store, 1, &missing);
	assert_int_equal(missing.unwritten, 1);
	assert_int_equal(missing.nonfinite, 1);
	assert_int_equal(missing.first, 128 + 700);
	assert_int_equal(store_read(m.store, SHARD_MASTER, 3, 2, got, &e), SHARD_OK);
	assert_true(got[0] == 3 && got[1] == 4);
	assert_int_equal(store_read(m.store, SHARD_EXP_AVG_SQ, 0, 100, got, &e), SHARD_OK);
	assert_true(got[99] == 0);
	store_seal_chunk(m.store, 0, 0);
	assert_int_equal(store_read(m.store, SHARD_IMAGE, 3, 2, got, &e), SHARD_OK);
	assert_true(got[0] == 3 && got[1] == 4);
	store_reset(m.store);
	store_missing_init(&missing);
	store_missing(m.store, 1, &missing);
	assert_int_equal(missing.unwritten, 1024);
	assert_int_equal(missing.first, 1024);
	close_store(&m);
}

/* This runs on the loop thread, so what it writes must not grow with the bytes of a chunk. */
static void a_reset_writes_a_word_of_each_chunk(void **state)
{
	struct made m = make(0, 2, 1, "adamw");
	struct store_missing missing;
	uint32_t kept = 0;
	float *master, *moment;

	(void)state;
	open_store(&m);
	master = store_master(m.store, 1);
	moment = store_state(m.store, 1, 0);
	for (int i = 0; i < 1024; i++)
		master[i] = moment[i] = 1;
	store_missing_init(&missing);
	store_missing(m.store, 1, &missing);
	assert_int_equal(missing.unwritten, 0);

	store_reset(m.store);
	for (int i = 0; i < 1024; i++)
		kept += (master[i] == 1) + (moment[i] == 1);
	assert_int_equal(kept, 2 * 1024 - 1);
	assert_true(store_void(m.store, 1));
	store_missing_init(&missing);
	store_missing(m.store, 1, &missing);
	assert_int_equal(missing.unwritten, 1024);

	/* The first write clears the chunk. From then on each weight counts by itself. */
	store_clear_chunk(m.store, 1);
	assert_false(store_void(m.store, 1));
	for (int i = 0; i < 1024; i++)
		assert_true(moment[i] == 0 && master[i] != 1);
	master[0] = 2;
	store_missing_init(&missing);
	store_missing(m.store, 1, &missing);
	assert_int_equal(missing.unwritten, 1023);
	assert_int_equal(missing.first, 1025);

	/* A restore, which writes all of it, does the same. */
	store_reset(m.store);
	for (int i = 0; i < 1024; i++)
		master[i] = 3;
	store_missing_init(&missing);
	store_missing(m.store, 1, &missing);
	assert_int_equal(missing.unwritten, 0);
	close_store(&m);
}

static void refused_ranges(void **state)
{
	struct made m = make(0, 2, 1, "sgd");
	struct err e;
	float *at, got[1];

	(void)state;
	open_store(&m);
	assert_int_equal(store_range(m.store, SHARD_MASTER, 128, 2000, &at, &e), SHARD_RANGE);
	assert_string_equal(e.text, "2000 elements from 128 on cross the end of chunk 0");
	assert_int_equal(store_range(m.store, SHARD_MASTER, 50, 60, &at, &e), SHARD_RANGE);
	assert_int_equal(store_range(m.store, SHARD_MASTER, 1ull << 60, 60, &at, &e), SHARD_RANGE);
	assert_int_equal(store_range(m.store, SHARD_MASTER, 2048, 1, &at, &e), SHARD_NOT_FOUND);
	assert_string_equal(e.text, "chunk 2 of model \"gpt\" is held by another node");
	assert_int_equal(store_range(m.store, SHARD_EXP_AVG, 0, 1, &at, &e), SHARD_NOT_FOUND);
	assert_string_equal(e.text, "optimizer sgd keeps no tensor of kind 3");
	assert_int_equal(store_range(m.store, SHARD_MOMENTUM, 0, 1, &at, &e), SHARD_OK);
	assert_int_equal(store_range(m.store, SHARD_GRAD, 0, 1, &at, &e), SHARD_NOT_FOUND);
	assert_int_equal(store_range(m.store, (enum shard_kind)99, 0, 1, &at, &e), SHARD_NOT_FOUND);
	assert_int_equal(store_read(m.store, SHARD_IMAGE, 3136, 1, got, &e), SHARD_RANGE);
	assert_int_equal(store_read(m.store, SHARD_IMAGE, 2100, 1, got, &e),
			 SHARD_OK); /* Every node has the whole image. */
	assert_null(store_state(m.store, 0, 1));
	close_store(&m);
}

/* A chunk that is all frozen has no moments, and none are counted. Its weights are there. */
static void frozen(void **state)
{
	struct made m = make(0, 1, 1, "adamw");
	struct budget_need need[3];
	struct err e;
	float *at;

	(void)state;
	open_store(&m);
	assert_true(layout_trained(m.layout, 2) && !layout_trained(m.layout, 3));
	assert_true(store_state(m.store, 2, 1) && !store_state(m.store, 3, 0));
	assert_int_equal(store_range(m.store, SHARD_MASTER, 3072, 64, &at, &e), SHARD_OK);
	assert_int_equal(store_range(m.store, SHARD_EXP_AVG, 2688, 64, &at, &e),
			 SHARD_NOT_FOUND); /* In chunk 2, which has some. */
	assert_string_equal(e.text, "tensor \"c\" is frozen: the optimizer keeps nothing for it");
	for (uint32_t i = 0; i < 2; m.layout->tensor[i++].flags = SHARD_FROZEN)
		budget_need(&need[i], &m.conf);
	/* All of it is frozen: 3,136 weights of 4 bytes in whole pages. Before, there were
	 * moments of chunks 0 to 2. */
	budget_need(&need[2], &m.conf);
	assert_true(need[2].bytes[BUDGET_STATE] == 4 * 4096 &&
		    need[0].bytes[BUDGET_STATE] == (4 + 2 * 3) * 4096);
	close_store(&m);
}

static void arenas(void **state)
{
	struct made m = make(0, 1, 2, "adamw");
	struct store_renewal r, again;
	uint32_t a, b, c;
	struct err e;

	(void)state;
	open_store(&m);
	assert_int_equal(store_arena_open(m.store, &a, &e), SHARD_OK);
	assert_int_equal(store_arena_open(m.store, &b, &e), SHARD_OK);
	assert_int_not_equal(a, b);
	assert_int_equal(store_arena_open(m.store, &c, &e), SHARD_BUSY);
	assert_string_equal(e.text,
			    "model \"gpt\" has 2 trainers on this node already, which is its "
			    "local_world: wait for one to leave, start this one on another node, "
			    "or save the model, drop it and define it anew with local_world=3 and "
			    "restore_at_start");
	memset(store_arena(m.store, a, 1, 0), 0x5a, 2048);
	assert_false(store_renewal_begin(m.store, &r));
	store_arena_close(m.store, a);
	assert_int_equal(store_arena_open(m.store, &c, &e), SHARD_BUSY); /* Not what others had. */
	assert_true(store_renewable(m.store));
	assert_true(store_renewal_begin(m.store, &r));
	assert_false(store_renewal_begin(m.store, &again));
	assert_true(store_renewable(m.store));
	assert_int_equal(store_renewals(m.store), 1);
	store_renewal_run(&r);
	store_renewal_end(m.store, &r);
	assert_int_equal(store_renewals(m.store), 0);
	assert_int_equal(store_arena_open(m.store, &c, &e), SHARD_OK);
	assert_int_equal(c, a);
	for (int i = 0; i < 2048; i++)
		assert_int_equal(((unsigned char *)store_arena(m.store, c, 1, 0))[i],
				 0); /* This is fresh memory, not that of the old session. */
	assert_true(store_arena_shm(m.store, c)->fd >= 0);
	store_arena_close(m.store, c);
	assert_true(store_renewal_begin(m.store, &r));
	r.bytes = (size_t)1 << 60; /* No machine has that. */
	store_renewal_run(&r);
	assert_int_not_equal(r.e.status, SHARD_OK);
	store_renewal_end(m.store, &r);
	assert_int_equal(store_arena_open(m.store, &c, &e), SHARD_BUSY);
	assert_true(store_renewal_begin(m.store, &r)); /* The next one tries again. */
	store_renewal_run(&r);
	store_renewal_end(m.store, &r);
	assert_int_equal(store_arena_open(m.store, &c, &e), SHARD_OK);
	close_store(&m);
}

/* What nobody wants any more is not made. */
static void given_up(void **state)
{
	struct made m = make(0, 1, 2, "adamw");
	_Atomic bool given_up = true;
	struct err e;

	(void)state;
	m.conf.given_up = &given_up;
	m.conf.place = place_of(m.owner, NULL, m.layout->chunks_nr);
	assert_int_equal(store_init(&m.store, &m.conf, &e), SHARD_CLOSED);
	layout_free(&m.layout);
}

static void image_versions(void **state)
{
	struct made m = make(0, 1, 1, "adamw");
	const struct image_head *h;

	(void)state;
	open_store(&m);
	h = store_image_shm(m.store)->base;
	assert_int_equal(h->magic, IMAGE_MAGIC);
	assert_int_equal(h->chunks_nr, 4);
	assert_int_equal(h->data_offset % 4096, 0);
	assert_true(store_image_chunk(m.store, 0, 3) == UINT64_MAX);
	store_image_generation(m.store, 2);
	assert_int_equal(h->generation, 2);
	store_image_open(m.store);
	store_image_open(m.store);
	assert_int_equal(h->open, 1);
	store_image_version(m.store, 0, 3, 12);
	assert_int_equal(store_image_chunk(m.store, 0, 3), 12);
	store_image_published(m.store);
	assert_int_equal(h->published, 1);
	store_image_whole(m.store);
	store_image_whole(m.store);
	assert_int_equal(h->open, 2);
	store_image_generation(m.store, 3);
	assert_true(store_image_chunk(m.store, 0, 3) == UINT64_MAX);
	assert_int_equal(store_pages(m.store), SHM_PAGES_NORMAL);
	close_store(&m);
}

static void no_memory(void **state)
{
	struct made m = make(0, 2, 2, "adamw");
	struct layout *l = NULL;
	struct fault f;
	struct err e;

	(void)state;
	m.conf.place = place_of(m.owner, NULL, m.layout->chunks_nr);
	for (fault_begin(&f); fault_next(&f);) {
		enum shard_status st = store_init(&m.store, &m.conf, &e);

		assert_int_equal(st, fault_end(&f) ? SHARD_SYSTEM : SHARD_OK);
		store_free(&m.store);
	}
	for (fault_begin(&f); fault_next(&f);) {
		enum shard_status st = layout_init(&l, three, 3, 2, SHARD_BF16, CE, &e);

		assert_int_equal(st, fault_end(&f) ? SHARD_SYSTEM : SHARD_OK);
		layout_free(&l);
	}
	layout_free(&m.layout);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(places),
		cmocka_unit_test(ranges),
		cmocka_unit_test(refused_layouts),
		cmocka_unit_test(compared),
		cmocka_unit_test(budget_mirrors),
		cmocka_unit_test(budget_bound),
		cmocka_unit_test(budget_account),
		cmocka_unit_test(no_overlap),
		cmocka_unit_test(writing),
		cmocka_unit_test(a_reset_writes_a_word_of_each_chunk),
		cmocka_unit_test(refused_ranges),
		cmocka_unit_test(frozen),
		cmocka_unit_test(arenas),
		cmocka_unit_test(given_up),
		cmocka_unit_test(image_versions),
		cmocka_unit_test(no_memory),
	};

	return cmocka_run_group_tests_name("store", tests, NULL, NULL);
}
