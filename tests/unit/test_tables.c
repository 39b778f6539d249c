/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of the placements of a model: equal ones are one, those that nobody names are freed,
 * and each allocation may fail. Then the memory that outlives the process: whatever a kill leaves
 * of the place that is being written, the tables that the saved core names are there. */
#include "base/check.h"
#include "base/rng.h"
#include "core/moves.h"
#include "data/model.h"
#include "lib/fault.h"
#include "lib/lone.h"
#include "model/tables.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { CHUNKS = 2, NODES = 3 };

static const uint16_t first[] = {B, C}, second[] = {C, C};
static const uint64_t both[] = {1u << B, 1u << B | 1u << C}, later[] = {1u << C, 1u << C};

static struct layout layout = {.chunks_nr = CHUNKS};

static struct model *model_new(void)
{
	struct model *m = calloc(1, sizeof(*m));

	assert_non_null(m);
	m->layout = &layout;
	list_init(&m->tables.kept);
	return m;
}

static uint32_t kept(const struct model *m)
{
	uint32_t nr = 0;

	list_each(it, (struct list *)(uintptr_t)&m->tables.kept)
		nr++;
	return nr;
}

/* A placement whose tables are gone when this returns. */
static struct placement take(struct model *m, const uint16_t *primary, const uint64_t *holders,
			     const uint16_t *to_primary, const uint64_t *to)
{
	uint16_t a[CHUNKS], c[CHUNKS];
	uint64_t b[CHUNKS], d[CHUNKS];
	struct placement p;
	struct err e;

	memcpy(a, primary, sizeof(a));
	if (holders != NULL)
		memcpy(b, holders, sizeof(b));
	if (to != NULL) {
		memcpy(c, to_primary, sizeof(c));
		memcpy(d, to, sizeof(d));
		p = place_moving(a, holders != NULL ? b : NULL, c, d, CHUNKS);
	} else {
		p = place_of(a, holders != NULL ? b : NULL, CHUNKS);
	}
	assert_int_equal(tables_take(m, &p, &e), SHARD_OK);
	memset(a, 0xff, sizeof(a));
	memset(b, 0xff, sizeof(b));
	return p;
}

static void test_shared(void **state)
{
	struct model *m = model_new();
	struct placement p, q, r;

	(void)state;
	p = take(m, first, both, second, later);
	assert_int_equal(kept(m), 4);
	q = take(m, first, both, NULL, NULL);
	r = take(m, second, later, NULL, NULL);
	assert_int_equal(kept(m), 4);
	assert_true(q.primary == p.primary && q.holders == p.holders && q.to == NULL);
	assert_true(r.primary == p.to_primary && r.holders == p.to);
	assert_memory_equal(p.holders, both, sizeof(both));
	assert_memory_equal(p.to_primary, second, sizeof(second));
	r = take(m, second, NULL, NULL, NULL);
	assert_null(r.holders);
	assert_int_equal(kept(m), 4);
	tables_free(m);
	free(m);
}

/* A table that the core may write is nobody else's. */
static void test_room(void **state)
{
	struct model *m = model_new();
	uint64_t *room = tables_room(m);
	struct placement p;

	(void)state;
	assert_non_null(room);
	memcpy(room, both, sizeof(both));
	p = take(m, first, both, NULL, NULL);
	assert_ptr_not_equal(p.holders, room);
	p = place_of(p.primary, room, CHUNKS);
	assert_int_equal(tables_take(m, &p, NULL), SHARD_OK);
	assert_ptr_equal(p.holders, room);
	tables_free(m);
	free(m);
}

static void test_tidy(void **state)
{
	struct model *m = model_new();
	struct core_view v;
	struct record r = lone_record(5, 3, 4);
	struct placement p;
	struct lone l;

	(void)state;
	m->tables.defined = take(m, first, both, NULL, NULL);
	m->place = m->tables.defined;
	p = take(m, second, later, NULL, NULL);
	tables_tidy(m);
	assert_int_equal(kept(m), 2);
	assert_memory_equal(m->place.holders, both, sizeof(both));
	/* The core names what this node has not adopted yet. */
	v = lone_view(5, 3, &r);
	v.place = take(m, first, both, second, later);
	lone_init(&l, A, 9, &v);
	m->core = l.core;
	tables_tidy(m);
	assert_int_equal(kept(m), 4);
	assert_memory_equal(l.core->coord.view.place.to, later, sizeof(later));
	m->core = NULL;
	lone_deinit(&l);
	p = m->place = take(m, second, later, NULL, NULL);
	tables_tidy(m); /* Those of the definition stay. */
	assert_int_equal(kept(m), 4);
	m->tables.defined = p;
	tables_tidy(m);
	assert_int_equal(kept(m), 2);
	tables_free(m);
	free(m);
}

static void test_refused(void **state)
{
	struct model *m = model_new();
	struct placement p = place_of(first, both, CHUNKS), bare = {.learns = 1u << C}, was;
	struct err e;

	(void)state;
	m->tables.defined = take(m, first, both, NULL, NULL);
	bare.sum = m->tables.defined.sum;
	assert_int_equal(tables_take(m, &bare, &e), SHARD_OK);
	assert_ptr_equal(bare.holders, m->tables.defined.holders);
	assert_int_equal(bare.learns, 1u << C);
	bare = was = (struct placement){.sum = 1};
	assert_int_equal(tables_take(m, &bare, &e), SHARD_PROTOCOL);
	assert_memory_equal(&bare, &was, sizeof(was));
	p.chunks_nr--;
	assert_int_equal(tables_take(m, &p, &e), SHARD_PROTOCOL);
	assert_ptr_equal(p.primary, first);
	assert_int_equal(kept(m), 2);
	tables_free(m);
	free(m);
}

/* --- memory that outlives the process --- */

struct kept_meta {
	struct meta meta;
	struct layout *layout;
	struct core_conf conf;
	struct lone lone;
	uint64_t defined;
};

static void meta_begin(struct kept_meta *k)
{
	static const struct shard_tensor tensor = {.name = "x", .ndim = 1, .shape = {1100}};
	struct meta_conf c = {.self = C, .undo_nr = 1, .spec_bytes = 8, .incarnation = 7};
	struct core_view v;
	struct record r = lone_record(5, 3, 4);
	struct err e;

	memset(k, 0, sizeof(*k));
	assert_int_equal(layout_init(&k->layout, &tensor, 1, 1, SHARD_BF16, 1024, &e), SHARD_OK);
	assert_int_equal(k->layout->chunks_nr, CHUNKS);
	k->conf = lone_conf(C, 9);
	c.layout = k->layout;
	c.place = place_of(first, both, CHUNKS);
	k->defined = c.place.sum;
	c.core_bytes = core_warm_bytes(&k->conf);
	k->meta.shm.bytes = meta_bytes(&c);
	k->meta.shm.base = aligned_alloc(4096, k->meta.shm.bytes);
	assert_non_null(k->meta.shm.base);
	memset(k->meta.shm.base, 0, k->meta.shm.bytes);
	assert_int_equal(meta_make(&k->meta, &c, 3, "8 bytes", &e), SHARD_OK);
	v = lone_view(5, 3, &r);
	v.place = c.place;
	lone_init(&k->lone, C, 0x7fffffff, &v);
}

static void meta_end(struct kept_meta *k)
{
	free(k->meta.shm.base);
	k->meta.shm.base = NULL;
	meta_free(&k->meta);
	layout_free(&k->layout);
	lone_deinit(&k->lone);
}

/* The core adopts this placement, and its process ends before the next core counts. */
static void adopt(struct kept_meta *k, const struct placement *p)
{
	k->lone.core->member.place = *p;
	k->lone.core->member.seq++;
}

static void save(struct kept_meta *k)
{
	assert_true(core_warm_save(k->lone.core, meta_core_next(&k->meta)));
	meta_core_switch(&k->meta);
}

/* Are the tables there that the saved core names, or else those of `want`? */
static bool finds(const struct kept_meta *k, void *region, const struct placement *want)
{
	struct meta_found found = {.shm = {.base = region, .bytes = k->meta.shm.bytes}};
	_Alignas(16) unsigned char room[1024];
	struct placement p;
	struct arena a;
	struct err e;

	assert_true(meta_tables_bytes(CHUNKS) <= sizeof(room));
	arena_init(&a, room, sizeof(room));
	if (meta_found_tables(&found, want->sum, CHUNKS, NODES, &a, &p, &e) != SHARD_OK) {
		assert_int_equal(e.status, SHARD_MISMATCH);
		return false;
	}
	assert_int_equal(p.sum, want->sum);
	assert_memory_equal(p.primary, want->primary, sizeof(first));
	assert_true(!p.holders == !want->holders && !p.to == !want->to);
	if (p.holders != NULL)
		assert_memory_equal(p.holders, want->holders, sizeof(both));
	if (p.to != NULL)
		assert_memory_equal(p.to, want->to, sizeof(later));
	return true;
}

/* What a kill leaves while the tables of `next` are stored: some of the bytes are the old ones, and
 * the name of the place is not there yet, or everything is. */
static void kill_anywhere(struct kept_meta *k, const struct placement *now,
			  const struct placement *next)
{
	size_t bytes = k->meta.shm.bytes;
	unsigned char *was = malloc(bytes), *is = k->meta.shm.base, *cut = malloc(bytes);
	struct rng rng = {3};

	assert_true(was != NULL && cut != NULL);
	memcpy(was, is, bytes);
	adopt(k, next);
	meta_tables(&k->meta, next, k->defined);
	for (int i = 0; i < 300; i++) {
		memcpy(cut, is, bytes);
		for (size_t at = 0; at < bytes && i > 0; at++)
			if (is[at] != was[at] && rng_next(&rng) % 2)
				cut[at] = was[at];
		assert_true(now->sum == k->defined || finds(k, cut, now));
		if (memcmp(cut, is, bytes) != 0)
			(void)finds(k, cut, next); /* Never half of it. */
		else
			assert_true(next->sum == k->defined || finds(k, cut, next));
	}
	save(k);
	assert_true(next->sum == k->defined || finds(k, is, next));
	free(was);
	free(cut);
}

static void test_kills(void **state)
{
	static const uint64_t wide[] = {1u << A | 1u << B, 1u << B | 1u << C};
	static const uint64_t alone[] = {1u << B, 1u << C};
	struct placement way[] = {place_of(first, both, CHUNKS),
				  place_moving(first, both, second, later, CHUNKS),
				  place_of(second, later, CHUNKS),
				  place_moving(second, later, first, wide, CHUNKS),
				  place_moving(first, NULL, first, alone, CHUNKS),
				  place_of(first, alone, CHUNKS),
				  place_of(first, both, CHUNKS),
				  place_of(first, wide, CHUNKS)};
	struct kept_meta k;

	(void)state;
	meta_begin(&k);
	save(&k);
	for (size_t i = 1; i < NR(way); i++)
		kill_anywhere(&k, &way[i - 1], &way[i]);
	meta_end(&k);
}

/* A move that is called back before the next core counts, and goes on, and so forth. */
static void test_not_saved(void **state)
{
	static const uint64_t alone[] = {1u << B, 1u << C};
	struct placement one = place_of(second, later, CHUNKS),
			 two = place_moving(first, both, second, later, CHUNKS),
			 three = place_of(first, alone, CHUNKS);
	struct kept_meta k;

	(void)state;
	meta_begin(&k);
	kill_anywhere(&k, &(struct placement){.sum = k.defined}, &one);
	for (int i = 0; i < 5; i++) {
		meta_tables(&k.meta, i % 2 ? &two : &three, k.defined);
		assert_true(finds(&k, k.meta.shm.base, &one)); /* It counts. */
		assert_true(finds(&k, k.meta.shm.base, i % 2 ? &two : &three));
		assert_false(finds(&k, k.meta.shm.base, i % 2 ? &three : &two));
	}
	meta_end(&k);
}

/* Whoever wrote the memory: what is found is a table of this cluster. */
static void test_damaged(void **state)
{
	static const uint16_t far[] = {B, 7};
	static const uint64_t nobody[] = {1u << B, 1u << B}, high[] = {1u << B, 1ull << 40 | 4};
	const struct placement bad[] = {
		place_of(far, NULL, CHUNKS), place_of(first, nobody, CHUNKS),
		place_of(first, high, CHUNKS), place_moving(first, both, far, later, CHUNKS),
		place_moving(first, both, second, nobody, CHUNKS)};
	struct placement good = place_of(second, later, CHUNKS);
	struct kept_meta k;
	unsigned char *at, *cut;

	(void)state;
	for (size_t i = 0; i < NR(bad); i++) {
		meta_begin(&k);
		meta_tables(&k.meta, &bad[i], k.defined);
		assert_false(finds(&k, k.meta.shm.base, &bad[i]));
		meta_end(&k);
	}
	meta_begin(&k);
	at = k.meta.shm.base;
	cut = malloc(k.meta.shm.bytes);
	assert_non_null(cut);
	memcpy(cut, at, k.meta.shm.bytes);
	meta_tables(&k.meta, &good, k.defined);
	for (size_t i = 0; i < k.meta.shm.bytes; i++) { /* Each byte that was stored, lost. */
		unsigned char is = at[i];

		if (is == cut[i])
			continue;
		at[i] = cut[i];
		assert_false(finds(&k, at, &good));
		at[i] = is;
	}
	assert_true(finds(&k, at, &good));
	free(cut);
	meta_end(&k);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_shared),  cmocka_unit_test(test_room),
		cmocka_unit_test(test_tidy),    cmocka_unit_test(test_refused),
		cmocka_unit_test(test_kills),   cmocka_unit_test(test_not_saved),
		cmocka_unit_test(test_damaged),
	};

	return cmocka_run_group_tests_name("tables", tests, NULL, NULL);
}
