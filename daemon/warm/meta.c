/* SPDX-License-Identifier: Apache-2.0 */
/* The region beside a model's tensors. make.c makes it or takes it up again, after resume.c has
 * looked into it. model.c saves the core in it, contrib.c the facts, tile.c the tiles, and blobs.c
 * has a part of its own. Whatever is replaced as a whole is there twice: the copy that does not
 * count is written, and then one word makes it count. What another process wrote is checked before
 * any number of it is used. The places of all parts follow from the definition and have to be those
 * that the head says. Fails with SHARD_MISMATCH, which says what differs. */
#include "warm/meta.h"

#include "base/arena.h"
#include "base/check.h"
#include "core/core.h"
#include "core/moves.h"
#include "wire/place.h"
#include "wire/xxh.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define META_MAGIC 0x336174656d6473ull /* "sdmeta3" */
#define PAGE       4096u
#define SPEC_MAX   (64u << 20)
#define REGION_MAX (1ull << 40)

enum {
	AT_SPEC,
	AT_CORE,
	AT_TABLES,
	AT_FACTS_ID,
	AT_FACTS,
	AT_ZERO,
	AT_VERSIONS,
	AT_UNDO,
	AT_FIRST,
	AT_BLOBS,
	AT_END,
	AT_NR
};

enum { TABLES_HOLDERS = 1, TABLES_TO = 2, TABLES_ALL = 3 };

/* One of two places for the tables of a placement. The words of holders follow, then those of .to,
 * then the primaries, whether they count or not. */
struct meta_tables {
	_Atomic uint64_t sum; /* Names and checks what follows. It is set last. 0: nothing. */
	uint64_t has;
	uint64_t reserved[6];
};

struct meta_head {
	_Atomic uint64_t magic; /* Set last. */
	uint32_t model, undo_nr;
	uint64_t at[AT_NR]; /* In bytes from the start of the region. */
	uint64_t spec_bytes, spec_sum, core_bytes, incarnation;
	uint8_t from[16];
	uint32_t first_nodes; /* The nodes that the memory was made for. */
	_Atomic uint32_t odd; /* Not 0: what is here must not be trusted. */
	_Atomic uint32_t core_now, mark_now;
	struct meta_mark mark[2];
};

static_assert(sizeof(struct meta_head) == 360 && sizeof(struct meta_tables) == 64,
	      "META_MAGIC, and WARM_FORMAT of warm.c, grow when this does");

/* How many tiles there are. first: NULL, or the first one of each chunk. */
static uint32_t tiles_all(const struct meta_conf *c, uint32_t *first)
{
	uint32_t nr = 0;

	for (uint32_t i = 0; i < c->layout->chunks_nr; i++) {
		if (first != NULL)
			first[i] = nr;
		nr += tile_count(c->layout, i);
	}
	return nr;
}

static uint64_t part(uint64_t *at, uint64_t bytes, uint64_t align)
{
	uint64_t start = (*at + align - 1) / align * align;

	*at = start + bytes;
	return start;
}

static uint64_t core_step(uint64_t bytes) /* Distance between the two copies. */
{
	return (bytes + 63) / 64 * 64;
}

size_t meta_tables_bytes(uint32_t chunks_nr)
{
	size_t bytes = sizeof(struct meta_tables) +
		       2 * (size_t)chunks_nr * (sizeof(uint64_t) + sizeof(uint16_t));

	return (bytes + 63) / 64 * 64;
}

static uint64_t first_bytes(uint32_t chunks_nr)
{
	return (chunks_nr + 7u) / 8;
}

static void plan(const struct meta_conf *c, uint64_t at[AT_NR])
{
	const struct layout *l = c->layout;
	uint64_t end = sizeof(struct meta_head);

	at[AT_SPEC] = part(&end, c->spec_bytes, 64);
	at[AT_CORE] = part(&end, 2 * core_step(c->core_bytes), 64);
	at[AT_TABLES] = part(&end, 2 * meta_tables_bytes(l->chunks_nr), 64);
	at[AT_FACTS_ID] = part(&end, sizeof(struct core_id), 64);
	at[AT_FACTS] = part(&end, l->chunks_nr * sizeof(struct meta_fact), 64);
	at[AT_ZERO] = part(&end, l->segments_nr, 64);
	at[AT_VERSIONS] = part(&end, tiles_all(c, NULL) * sizeof(uint64_t), 64);
	at[AT_UNDO] = part(&end, c->undo_nr * sizeof(struct tile_undo), 64);
	at[AT_FIRST] = part(&end, first_bytes(l->chunks_nr), 64);
	at[AT_BLOBS] = part(&end, c->blobs_bytes, PAGE);
	at[AT_END] = part(&end, 0, PAGE);
}

bool meta_persistent(const struct meta *m)
{
	return m->shm.base != NULL;
}

uint64_t meta_bytes(const struct meta_conf *c)
{
	uint64_t at[AT_NR];

	plan(c, at);
	return at[AT_END];
}

uint32_t meta_undo_nr(const struct layout *l, uint32_t threads)
{
	return l->chunks_nr < threads ? l->chunks_nr : threads;
}

static void *in(const struct meta *m, uint32_t which)
{
	return (char *)m->shm.base + m->head->at[which];
}

/* Needs a head->at that was checked. */
static enum shard_status attach(struct meta *m, const struct meta_conf *c, struct err *e)
{
	m->tiles.first = calloc(c->layout->chunks_nr, sizeof(*m->tiles.first));
	m->tiles.used = calloc(c->undo_nr, sizeof(*m->tiles.used));
	if (m->tiles.first == NULL || m->tiles.used == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for the tiles of %u chunks",
			       c->layout->chunks_nr);
	(void)tiles_all(c, m->tiles.first);
	m->facts_id = in(m, AT_FACTS_ID);
	m->fact = in(m, AT_FACTS);
	m->zero = in(m, AT_ZERO);
	m->tiles.version = in(m, AT_VERSIONS);
	m->tiles.undo = in(m, AT_UNDO);
	m->blobs = in(m, AT_BLOBS);
	m->tiles.undo_nr = c->undo_nr;
	return SHARD_OK;
}

enum shard_status meta_make(struct meta *m, const struct meta_conf *c, uint32_t model,
			    const void *spec, struct err *e)
{
	struct meta_head *h = m->shm.base;
	uint8_t *first;

	CHECK(m->shm.bytes >= meta_bytes(c) && c->undo_nr > 0 && c->undo_nr <= TILE_UNDO_MAX &&
	      c->spec_bytes <= SPEC_MAX);
	m->head = h;
	plan(c, h->at);
	h->model = model;
	h->undo_nr = c->undo_nr;
	h->core_bytes = c->core_bytes;
	h->incarnation = c->incarnation;
	h->first_nodes = c->nodes_nr;
	first = in(m, AT_FIRST);
	for (uint32_t i = 0; i < c->layout->chunks_nr; i++)
		if (place_keeps(&c->place, i, c->self))
			first[i / 8] |= (uint8_t)(1u << i % 8);
	h->spec_bytes = c->spec_bytes;
	memcpy(in(m, AT_SPEC), spec, c->spec_bytes);
	h->spec_sum = xxh_sum(spec, c->spec_bytes, META_MAGIC);
	atomic_store(&h->magic, META_MAGIC);
	return attach(m, c, e);
}

static void find_core(struct meta_found *found)
{
	const struct meta_head *h = found->shm.base;
	uint64_t room = found->shm.bytes, at = h->at[AT_CORE], bytes = h->core_bytes;
	uint32_t now = h->core_now;

	found->core = NULL;
	found->core_bytes = bytes;
	if (now > 1 || at % 64 != 0 || at > room || bytes > room || core_step(bytes) > room - at ||
	    bytes > room - at - now * core_step(bytes))
		return;
	found->core = (const char *)h + at + now * core_step(bytes);
}

/* Was it ordered to go back? The definition is of no use then. */
static enum shard_status goes_back(struct meta_found *found, struct err *e)
{
	struct meta_mark mark;
	struct record r;

	if (!meta_found_mark(found, &mark) || mark.load < META_LOAD_BACK || found->core == NULL ||
	    !core_warm_record(found->core, found->core_bytes, &r) ||
	    (mark.load == META_LOAD_BACK && r.id.step == 0))
		return SHARD_OK;
	found->goes_back = true;
	found->back_step = r.id.step - (mark.load == META_LOAD_BACK);
	free(found->spec);
	found->spec = NULL;
	return err_set(e, SHARD_MISMATCH,
		       "it has step %lu, and goes back to step %lu, which the disks of all nodes "
		       "have",
		       (unsigned long)r.id.step, (unsigned long)found->back_step);
}

enum shard_status meta_peek(struct meta_found *found, uint32_t model, struct err *e)
{
	const struct meta_head *h = found->shm.base;
	size_t room = found->shm.bytes;
	uint64_t at, bytes;

	if (room < sizeof(*h) || h->magic != META_MAGIC || h->model != model)
		return err_set(e, SHARD_MISMATCH, "its head is not one of this model");
	found->odd = h->odd != 0;
	if (found->odd)
		return err_set(e, SHARD_MISMATCH,
			       "its votes differed from those of the other copies: the memory or a "
			       "processor of this node is bad");
	at = h->at[AT_SPEC];
	bytes = h->spec_bytes;
	found->undo_nr = h->undo_nr;
	found->incarnation = h->incarnation;
	memcpy(found->from, h->from, sizeof(found->from));
	if (found->undo_nr == 0 || found->undo_nr > TILE_UNDO_MAX)
		return err_set(e, SHARD_MISMATCH, "its head has %u places for tiles",
			       found->undo_nr);
	if (bytes == 0 || bytes > SPEC_MAX || at > room || bytes > room - at)
		return err_set(e, SHARD_MISMATCH, "its definition has %llu bytes at %llu of %zu",
			       (unsigned long long)bytes, (unsigned long long)at, room);
	if ((found->spec = malloc(bytes)) == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a definition");
	memcpy(found->spec, (const char *)h + at, bytes);
	found->spec_bytes = bytes;
	find_core(found);
	if (xxh_sum(found->spec, bytes, META_MAGIC) == h->spec_sum)
		return goes_back(found, e);
	free(found->spec);
	found->spec = NULL;
	return err_set(e, SHARD_MISMATCH, "the sum over its definition is wrong");
}

bool meta_found_mark(const struct meta_found *found, struct meta_mark *mark)
{
	const struct meta_head *h = found->shm.base;
	uint32_t now = h->mark_now;

	if (now > 1)
		return false;
	*mark = h->mark[now];
	return true;
}

const uint8_t *meta_first(const struct meta_found *found, uint32_t chunks_nr, uint16_t *nodes_nr)
{
	const struct meta_head *h = found->shm.base;
	uint64_t room = found->shm.bytes, at = h->at[AT_FIRST];

	if (h->first_nodes == 0 || h->first_nodes > CORE_NODES_MAX || at > room ||
	    first_bytes(chunks_nr) > room - at)
		return NULL;
	*nodes_nr = (uint16_t)h->first_nodes;
	return (const uint8_t *)h + at;
}

enum shard_status meta_again(struct meta *m, const struct meta_conf *c, struct err *e)
{
	struct meta_head *h = m->shm.base;
	uint64_t at[AT_NR];

	plan(c, at);
	if (m->shm.bytes < at[AT_END] || memcmp(h->at, at, sizeof(at)) != 0 ||
	    h->core_bytes != c->core_bytes || h->undo_nr != c->undo_nr || h->core_now > 1 ||
	    h->mark_now > 1)
		return err_set(e, SHARD_MISMATCH, "its parts are not where this release has them");
	m->head = h;
	m->mark = h->mark[h->mark_now];
	return attach(m, c, e);
}

void meta_free(struct meta *m)
{
	free(m->tiles.first);
	free((void *)m->tiles.used);
	if (m->shm.base != NULL)
		shm_unmap(&m->shm);
	memset(m, 0, sizeof(*m));
}

void meta_from(struct meta *m, const uint8_t *uuid)
{
	memcpy(m->head->from, uuid, sizeof(m->head->from));
}

static void *core_at(const struct meta *m, uint32_t which)
{
	return (char *)in(m, AT_CORE) + which * core_step(m->head->core_bytes);
}

/* --- tables of placement --- */

/* The parts of a copy or a slot of tables. */
static struct placement tables_at(void *at, uint32_t chunks_nr, uint64_t has)
{
	uint64_t *holders = (uint64_t *)(void *)((struct meta_tables *)at + 1),
		 *to = holders + chunks_nr;
	uint16_t *primary = (uint16_t *)(void *)(to + chunks_nr), *to_primary = primary + chunks_nr;

	return (struct placement){.primary = primary,
				  .holders = has & TABLES_HOLDERS ? holders : NULL,
				  .to_primary = has & TABLES_TO ? to_primary : NULL,
				  .to = has & TABLES_TO ? to : NULL,
				  .chunks_nr = chunks_nr};
}

static void store_table(const void *to, const void *from, size_t bytes)
{
	memcpy((void *)(uintptr_t)to, from, bytes);
}

/* A kill between any two stores leaves the other slot whole, and this one without a name. */
static void tables_store(struct meta_tables *t, const struct placement *p)
{
	uint64_t has = (p->holders ? TABLES_HOLDERS : 0u) | (p->to ? TABLES_TO : 0u);
	struct placement to = tables_at(t, p->chunks_nr, has);

	atomic_store(&t->sum, 0);
	t->has = has;
	store_table(to.primary, p->primary, p->chunks_nr * sizeof(*p->primary));
	if (p->holders != NULL)
		store_table(to.holders, p->holders, p->chunks_nr * sizeof(*p->holders));
	if (p->to != NULL) {
		store_table(to.to_primary, p->to_primary, p->chunks_nr * sizeof(*p->to_primary));
		store_table(to.to, p->to, p->chunks_nr * sizeof(*p->to));
	}
	atomic_store(&t->sum, p->sum);
}

void meta_tables(struct meta *m, const struct placement *p, uint64_t defined)
{
	size_t step = meta_tables_bytes(p->chunks_nr);
	struct meta_tables *slot[2] = {in(m, AT_TABLES), (void *)((char *)in(m, AT_TABLES) + step)};
	struct core_warm_view now = {.place = defined};

	if (p->sum == defined || slot[0]->sum == p->sum || slot[1]->sum == p->sum)
		return;
	/* A core that cannot be read has just been made, and names nothing. */
	(void)core_warm_view(meta_core(m), m->head->core_bytes, &now);
	tables_store(slot[slot[0]->sum == now.place], p);
}

/* Anybody may have written the slot, so it is copied before it is checked. */
static bool tables_read(const struct meta_tables *slot, uint64_t sum, uint16_t nodes_nr,
			uint32_t chunks_nr, void *copy, struct placement *p)
{
	struct meta_tables *head = copy;

	memcpy(copy, slot, meta_tables_bytes(chunks_nr));
	if (head->sum != sum || head->has & ~(uint64_t)TABLES_ALL)
		return false;
	*p = tables_at(copy, chunks_nr, head->has);
	*p = p->to ? place_moving(p->primary, p->holders, p->to_primary, p->to, chunks_nr)
		   : place_of(p->primary, p->holders, chunks_nr);
	return p->sum == sum && place_wrong(p->primary, p->holders, chunks_nr, nodes_nr) == NULL &&
	       (p->to == NULL || place_wrong(p->to_primary, p->to, chunks_nr, nodes_nr) == NULL);
}

enum shard_status meta_found_tables(const struct meta_found *found, uint64_t sum,
				    uint32_t chunks_nr, uint16_t nodes_nr, struct arena *a,
				    struct placement *p, struct err *e)
{
	const struct meta_head *h = found->shm.base;
	uint64_t step = meta_tables_bytes(chunks_nr), at = h->at[AT_TABLES],
		 room = found->shm.bytes;
	void *copy = arena_take(a, step);

	CHECK(copy != NULL);
	for (uint64_t i = 0; i < 2 && at % 64 == 0 && at <= room && 2 * step <= room - at; i++)
		if (tables_read((const void *)((const char *)h + at + i * step), sum, nodes_nr,
				chunks_nr, copy, p))
			return SHARD_OK;
	return err_set(e, SHARD_MISMATCH,
		       "the tables of its placement, of the sum %016lx, are not there",
		       (unsigned long)sum);
}

/* --- for a file --- */

static uint64_t packed_bytes(const uint64_t at[AT_NR])
{
	return at[AT_VERSIONS] + at[AT_END] - at[AT_FIRST];
}

uint64_t meta_packed_bytes(const struct meta_conf *c)
{
	uint64_t at[AT_NR];

	plan(c, at);
	return packed_bytes(at);
}

void meta_pack(const struct meta *m, void *to)
{
	const uint64_t *at = m->head->at;

	memcpy(to, m->shm.base, at[AT_VERSIONS]);
	memcpy((char *)to + at[AT_VERSIONS], (const char *)m->shm.base + at[AT_FIRST],
	       at[AT_END] - at[AT_FIRST]);
}

uint64_t meta_packed_region(const void *packed, uint64_t bytes)
{
	const struct meta_head *h = packed;
	const uint64_t *at = h->at;

	if (bytes < sizeof(*h) || h->magic != META_MAGIC || at[AT_VERSIONS] < sizeof(*h) ||
	    at[AT_VERSIONS] > bytes || at[AT_VERSIONS] % 64 != 0 || at[AT_UNDO] < at[AT_VERSIONS] ||
	    at[AT_FIRST] < at[AT_UNDO] || at[AT_END] < at[AT_FIRST] || at[AT_END] > REGION_MAX ||
	    at[AT_END] % PAGE != 0 || packed_bytes(at) != bytes)
		return 0;
	return at[AT_END];
}

bool meta_packed_mark(const void *packed, uint64_t bytes, struct meta_mark *mark)
{
	const struct meta_head *h = packed;

	if (meta_packed_region(packed, bytes) == 0 || h->mark_now > 1)
		return false;
	*mark = h->mark[h->mark_now];
	return true;
}

/* No tile is being changed. What codes have lost is not there. */
enum shard_status meta_unpack(const struct shm *region, const void *packed, uint64_t bytes,
			      struct err *e)
{
	struct meta_head *h = region->base;
	const uint64_t *at = h->at;
	uint32_t now;

	if (meta_packed_region(packed, bytes) != region->bytes)
		return err_set(e, SHARD_MISMATCH, "its parts are not where this release has them");
	memcpy(h, packed, ((const struct meta_head *)packed)->at[AT_VERSIONS]);
	memcpy((char *)h + at[AT_FIRST], (const char *)packed + at[AT_VERSIONS],
	       at[AT_END] - at[AT_FIRST]);
	if ((now = h->mark_now) > 1)
		return err_set(e, SHARD_MISMATCH, "it does not say which step its tensors have");
	h->mark[now].residual = (struct meta_residual){.step = 0};
	h->mark[now].load = META_LOAD_NONE;
	return SHARD_OK;
}

/* --- what is switched --- */

void *meta_core_next(struct meta *m)
{
	return core_at(m, m->head->core_now ^ 1);
}

void meta_core_switch(struct meta *m)
{
	atomic_store(&m->head->core_now, m->head->core_now ^ 1);
}

const void *meta_core(const struct meta *m)
{
	return core_at(m, m->head->core_now);
}

void meta_void(struct meta *m)
{
	atomic_store(&m->head->odd, 1);
}

bool meta_voided(const struct meta *m)
{
	return m->head != NULL && atomic_load(&m->head->odd) != 0;
}

void meta_mark(struct meta *m, const struct meta_mark *mark)
{
	uint32_t next = m->head->mark_now ^ 1;

	m->mark = *mark;
	m->head->mark[next] = *mark;
	atomic_store(&m->head->mark_now, next);
}
