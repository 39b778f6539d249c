/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of one model on one node. make.c makes it after the budget agreed (budget.c computes
 * the same sizes) and frees it with the model, both in a thread. In between only arenas get new
 * memory, after each session that had one, for join.c. Each kind of buffer is one mapping, so that
 * huge pages are possible. The chunks held here lie in it one after the other. It fails if there is
 * no memory or no huge pages, if the model is given up, or if a range that came from outside is
 * wrong. A wrong chunk number or slot is a CHECK. */
#include "store/store.h"

#include "base/check.h"
#include "node/limits.h"
#include "store/away.h"
#include "store/hold.h"
#include "store/room.h"
#include "store/store_impl.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void unmap(struct shm *m)
{
	if (m->base || m->room)
		shm_unmap(m);
	m->base = NULL;
}

/* Asked between two buffers, so that a model that is given up ends soon. */
static enum shard_status given_up(const struct store_conf *conf, struct err *e)
{
	if (conf->given_up == NULL || !atomic_load(conf->given_up))
		return SHARD_OK;
	return err_set(e, SHARD_CLOSED, "\"%s\" is given up", conf->name);
}

static enum shard_status map_region(struct store *st, enum store_region what, uint64_t bytes,
				    struct err *e)
{
	const struct store_park *warm = st->conf.warm;

	uint64_t room = store_room_bytes(&st->conf, what);
	enum shard_status rc = SHARD_OK;
	struct shm *m = &st->region[what];

	m->fd = -1;
	if (bytes == 0 && room == 0)
		return SHARD_OK;
	if (given_up(&st->conf, e) != SHARD_OK)
		return e->status;
	if (warm)
		rc = warm->map(warm->arg, what, bytes, room, m, e);
	else if (bytes > 0)
		rc = shm_private(m, bytes, st->conf.huge, e);
	if (rc == SHARD_OK && room > 0 && !warm)
		rc = shm_room(m, room, e);
	if (rc == SHARD_OK && room > 0)
		shm_room_huge(m, store_room_huge(&st->conf, what));
	return rc;
}

static void shared_name(char name[128], const struct store_conf *conf, const char *what)
{
	snprintf(name, 128, "shardd-%.64s-%s", conf->name, what);
}

static enum shard_status map_shared(struct shm *m, const char *name, uint64_t bytes,
				    enum shm_use use, enum shm_huge huge, struct err *e)
{
	enum shard_status st = shm_create(m, name, bytes, use, huge, e);

	if (st != SHARD_OK || limits_spare(m->fd, 0))
		return st;
	shm_unmap(m);
	return err_set(e, SHARD_BUDGET,
		       "%s: %lu descriptors may be open, and what is left is kept for files: raise "
		       "LimitNOFILE= of the service (`ulimit -n`), or lower max_world",
		       name, (unsigned long)limits_files());
}

static void arena_name(char name[128], const struct store *st, uint32_t slot)
{
	char what[24];

	snprintf(what, sizeof(what), "arena%u", slot);
	shared_name(name, &st->conf, what);
}

static enum shard_status map_arena(struct store *st, uint32_t slot, struct err *e)
{
	char name[128];
	enum shard_status rc = given_up(&st->conf, e);

	arena_name(name, st, slot);
	if (rc == SHARD_OK)
		rc = map_shared(&st->arena[slot].shm, name, st->sizes.arena, SHM_ARENA,
				st->conf.huge, e);
	if (rc == SHARD_OK)
		st->arena[slot].use = ARENA_FRESH;
	else
		st->arena[slot].shm.base = NULL;
	return rc;
}

uint32_t store_conf_firsts(const struct store_conf *conf)
{
	uint32_t nr = 0;

	for (uint32_t c = 0; c < conf->layout->chunks_nr; c++)
		nr += store_conf_first(conf, c);
	return nr;
}

bool store_conf_first(const struct store_conf *conf, uint32_t chunk)
{
	return conf->first ? conf->first[chunk / 8] >> chunk % 8 & 1
			   : place_keeps(&conf->place, chunk, conf->self);
}

static void index_chunks(struct store *st)
{
	uint32_t firsts = store_conf_firsts(&st->conf), first = 0;
	uint64_t held = 0, here = 0, trained = 0, other = 0, image = 0;

	for (uint32_t c = 0; c < st->conf.layout->chunks_nr; c++) {
		uint32_t n = layout_chunk_elems(st->conf.layout, c);

		st->held_at[c] = st->here_at[c] = st->moment_at[c] = st->else_at[c] = NOT_HELD;
		if (place_keeps(&st->conf.place, c, st->conf.self)) {
			st->held[c / 8] |= (uint8_t)(1u << c % 8);
			st->owned++;
		}
		if (!store_conf_first(&st->conf, c)) {
			st->else_at[c] = other;
			other += n;
			continue;
		}
		st->first[c / 8] |= (uint8_t)(1u << c % 8);
		st->held_at[c] = held;
		st->image_at[c] = image;
		held += n;
		image += layout_image_bytes(st->conf.layout, c, 1);
		if (store_conf_away(&st->conf, first++, firsts))
			continue;
		st->here_at[c] = here;
		here += n;
		if (layout_trained(st->conf.layout, c)) {
			st->moment_at[c] = trained;
			trained += n;
		}
	}
	CHECK(held == st->sizes.held_elems && here == st->sizes.here_elems &&
	      trained == st->sizes.trained_elems && image == st->sizes.held_image);
}

static struct image_head *image_head(const struct store *st)
{
	return st->image.base;
}

static enum shard_status map_image(struct store *st, struct err *e)
{
	char name[128];
	enum shard_status rc = given_up(&st->conf, e);

	shared_name(name, &st->conf, "image");
	if (rc == SHARD_OK)
		rc = map_shared(&st->image, name, st->sizes.image, SHM_IMAGE, st->conf.huge, e);
	if (rc != SHARD_OK)
		return rc;
	struct image_head *h = image_head(st);
	h->chunks_nr = st->conf.layout->chunks_nr;
	h->data_offset = image_data_offset(h->chunks_nr * (st->conf.staleness + 1));
	h->slot_bytes = st->conf.staleness ? st->sizes.image_half : 0;
	h->magic = IMAGE_MAGIC;
	return SHARD_OK;
}

static void no_versions(struct store *st)
{
	for (uint32_t slot = 0; slot <= st->conf.staleness; slot++)
		for (uint32_t c = 0; c < st->conf.layout->chunks_nr; c++)
			store_image_version(st, slot, c, NO_VERSION);
}

enum shard_status store_init(struct store **out, const struct store_conf *conf, struct err *e)
{
	uint32_t chunks_nr = conf->layout->chunks_nr;
	enum shard_status rc;
	struct store *st;

	CHECK(conf->self < conf->nodes_nr && conf->local_world > 0 && conf->staleness <= 1 &&
	      dtype_ok(conf->grad));
	st = calloc(1, sizeof(*st) + conf->local_world * sizeof(st->arena[0]));
	if (!st)
		return err_set(e, SHARD_SYSTEM, "no memory for model \"%s\"", conf->name);
	st->conf = *conf;
	store_sizes(&st->sizes, conf);
	st->held_at = calloc(chunks_nr, sizeof(uint64_t));
	st->here_at = calloc(chunks_nr, sizeof(uint64_t));
	st->moment_at = calloc(chunks_nr, sizeof(uint64_t));
	st->else_at = calloc(chunks_nr, sizeof(uint64_t));
	st->image_at = calloc(chunks_nr, sizeof(uint64_t));
	st->held = calloc(chunks_nr / 8 + 1, 1);
	st->first = calloc(chunks_nr / 8 + 1, 1);
	st->given = calloc(chunks_nr / 8 + 1, 1);
	st->first_nodes = conf->first_nodes ? conf->first_nodes : conf->nodes_nr;
	st->parked = conf->warm != NULL;
	if (!st->held_at || !st->here_at || !st->moment_at || !st->else_at || !st->image_at ||
	    !st->held || !st->first || !st->given) {
		rc = err_set(e, SHARD_SYSTEM, "no memory for the chunk table of model \"%s\"",
			     conf->name);
		goto err_store;
	}
	index_chunks(st);
	if ((rc = map_region(st, STORE_STATE, store_state_bytes(&st->sizes, conf->optim->states_nr),
			     e)) != SHARD_OK ||
	    (rc = store_away_init(st, e)) != SHARD_OK || (rc = hold_init(st, e)) != SHARD_OK ||
	    (rc = map_region(st, STORE_SLOTS, st->sizes.slot * (st->first_nodes - 1u), e)) !=
		    SHARD_OK ||
	    (rc = map_region(st, STORE_SUMS, store_sums_bytes(&st->sizes), e)) != SHARD_OK ||
	    (rc = map_region(st, STORE_IMAGES, st->sizes.images, e)) != SHARD_OK ||
	    (conf->warm && conf->warm->there && (rc = store_room_again(st, e)) != SHARD_OK) ||
	    (rc = map_image(st, e)) != SHARD_OK)
		goto err_store;
	for (uint32_t i = 0; i < conf->local_world; i++)
		if ((rc = map_arena(st, i, e)) != SHARD_OK)
			goto err_store;
	if (conf->warm && conf->warm->there)
		no_versions(st);
	else
		store_reset(st);
	st->conf.warm = NULL;
	st->conf.first = NULL; /* Only until here. */
	st->conf.given_up = NULL;
	*out = st;
	return SHARD_OK;
err_store:
	store_free(&st);
	return rc;
}

void store_free(struct store **stp)
{
	struct store *st = *stp;

	*stp = NULL;
	if (!st)
		return;
	CHECK(store_renewals(st) == 0);
	for (uint32_t i = 0; i < st->conf.local_world; i++)
		unmap(&st->arena[i].shm);
	unmap(&st->image);
	for (int i = 0; i < STORE_REGIONS; i++)
		unmap(&st->region[i]);
	store_away_deinit(st);
	hold_deinit(st);
	free(st->held_at);
	free(st->here_at);
	free(st->moment_at);
	free(st->else_at);
	free(st->image_at);
	free(st->held);
	free(st->first);
	free(st->given);
	free(st);
}

enum shm_pages store_pages(const struct store *st)
{
	enum shm_pages worst = st->image.got;
	const struct shm *all[] = {&st->region[STORE_STATE], &st->region[STORE_SLOTS],
				   &st->region[STORE_SUMS], &st->arena[0].shm};

	for (uint32_t i = 0; i < NR(all); i++)
		if (all[i]->base && all[i]->got < worst)
			worst = all[i]->got;
	return worst;
}

uint64_t store_bytes(const struct store *st)
{
	uint64_t sum = st->image.bytes;

	for (int i = 0; i < STORE_REGIONS; i++)
		sum += st->region[i].bytes;
	for (uint32_t i = 0; i < st->conf.local_world; i++)
		sum += st->arena[i].shm.base ? st->arena[i].shm.bytes : 0;
	return sum;
}

uint32_t store_owned(const struct store *st)
{
	return st->owned;
}

bool store_holds(const struct store *st, uint32_t chunk)
{
	CHECK(chunk < st->conf.layout->chunks_nr);
	return st->held[chunk / 8] >> chunk % 8 & 1;
}

void *store_first_state(const struct store *st, uint32_t chunk, uint32_t i)
{
	uint64_t at = i == 0 ? st->here_at[chunk] : st->moment_at[chunk];

	if (at == NOT_HELD)
		return NULL;
	return (char *)st->region[STORE_STATE].base +
	       (i == 0 ? 0 : st->sizes.master + (i - 1) * st->sizes.moment) + at * sizeof(float);
}

uint8_t *store_codes(struct store *st)
{
	return (uint8_t *)st->region[STORE_SUMS].base + st->sizes.reduced + st->sizes.sums;
}

uint8_t *store_image_codes(struct store *st)
{
	return store_codes(st) + st->sizes.codes + 2 * st->sizes.residual;
}

uint16_t *store_residual(struct store *st, uint32_t half, uint32_t chunk)
{
	const struct layout *l = st->conf.layout;

	CHECK(half < 2 && chunk < l->chunks_nr);
	if (st->sizes.residual == 0)
		return NULL;
	return (uint16_t *)(store_codes(st) + st->sizes.codes + half * st->sizes.residual) +
	       layout_stored_before(l, chunk);
}

static void *first_in(const struct store *st, enum store_region what, uint64_t start,
		      uint32_t chunk, size_t size)
{
	return st->held_at[chunk] == NOT_HELD
		       ? NULL
		       : (char *)st->region[what].base + start + st->held_at[chunk] * size;
}

void *store_first_slot(const struct store *st, uint32_t chunk, uint32_t i)
{
	return first_in(st, STORE_SLOTS, i * st->sizes.slot, chunk, dtype_bytes(st->conf.grad));
}

void *store_first_sum(const struct store *st, uint32_t chunk)
{
	return first_in(st, STORE_SUMS, 0, chunk, dtype_bytes(st->conf.grad));
}

void *store_first_image(const struct store *st, uint32_t chunk, uint32_t half)
{
	return st->held_at[chunk] == NOT_HELD
		       ? NULL
		       : (char *)st->region[STORE_IMAGES].base + half * (st->sizes.images / 2) +
				 st->image_at[chunk];
}

bool store_has_room(const struct store *st)
{
	return st->region[STORE_STATE].room != NULL && st->region[STORE_SLOTS].room != NULL;
}

float *store_master(struct store *st, uint32_t chunk)
{
	void *at = store_first_state(st, chunk, 0);

	CHECK(store_holds(st, chunk));
	if (store_is_away(st, chunk))
		return store_away_at(st, chunk, 0);
	return at != NULL ? at : store_room_at(st, STORE_STATE, chunk, 0);
}

uint32_t store_states(const struct store *st, uint32_t chunk)
{
	return states_nr(st, chunk);
}

float *store_state(struct store *st, uint32_t chunk, uint32_t i)
{
	CHECK(store_holds(st, chunk) && i < OPTIM_STATES_MAX);
	if (i >= store_states(st, chunk))
		return NULL;
	if (store_is_away(st, chunk))
		return store_away_at(st, chunk, i + 1);
	return st->held_at[chunk] != NOT_HELD ? store_first_state(st, chunk, i + 1)
					      : store_room_at(st, STORE_STATE, chunk, i + 1);
}

void *store_slot(struct store *st, uint32_t chunk, uint16_t node)
{
	uint32_t i = node < st->conf.self ? node : node - 1u;
	void *at;

	CHECK(store_holds(st, chunk) && node < st->conf.nodes_nr && node != st->conf.self);
	at = i < st->first_nodes - 1u ? store_first_slot(st, chunk, i) : NULL;
	return at != NULL ? at : store_room_at(st, STORE_SLOTS, chunk, i);
}

void *store_sum(struct store *st, uint32_t chunk)
{
	size_t size = dtype_bytes(st->conf.grad);

	if (st->conf.local_world == 1 && !store_holds(st, chunk))
		return NULL;
	if (st->held_at[chunk] != NOT_HELD)
		return store_first_sum(st, chunk);
	return st->conf.local_world > 1 ? (char *)st->region[STORE_SUMS].base + st->sizes.reduced +
						  st->else_at[chunk] * size
					: store_room_at(st, STORE_SUMS, chunk, 0);
}

void *store_image(struct store *st, uint32_t slot, uint32_t chunk)
{
	const struct store_conf *conf = &st->conf;

	CHECK(slot <= conf->staleness);
	return (char *)st->image.base + image_head(st)->data_offset + slot * st->sizes.image_half +
	       layout_image_at(conf->layout, layout_chunk_start(conf->layout, chunk));
}

const struct shm *store_region(const struct store *st, enum store_region what)
{
	return &st->region[what];
}

void *store_first_slots(const struct store *st, uint16_t node, uint64_t *bytes)
{
	uint32_t i = node < st->conf.self ? node : node - 1u;

	*bytes = st->sizes.held_elems * dtype_bytes(st->conf.grad);
	return *bytes > 0 && i < st->first_nodes - 1u
		       ? (char *)st->region[STORE_SLOTS].base + i * st->sizes.slot
		       : NULL;
}

void *store_first_sums(const struct store *st, uint64_t *bytes)
{
	*bytes = (st->conf.layout->stored - st->sizes.held_elems) * dtype_bytes(st->conf.grad);
	return *bytes > 0 && st->sizes.sums > 0
		       ? (char *)st->region[STORE_SUMS].base + st->sizes.reduced
		       : NULL;
}

static void *kept_image(const struct store *st, uint32_t half, uint32_t chunk)
{
	CHECK(half < 2 && store_holds(st, chunk));
	if (!store_keeps_images(&st->conf, st->parked))
		return NULL;
	return st->held_at[chunk] != NOT_HELD ? store_first_image(st, chunk, half)
					      : store_room_at(st, STORE_IMAGES, chunk, half);
}

void store_image_keep(struct store *st, uint32_t slot, uint32_t half, uint32_t chunk)
{
	void *kept = kept_image(st, half, chunk);

	if (kept != NULL)
		memcpy(kept, store_image(st, slot, chunk),
		       layout_image_bytes(st->conf.layout, chunk, 1));
}

void store_image_again(struct store *st, uint32_t slot, uint32_t half, uint32_t chunk)
{
	const void *kept = kept_image(st, half, chunk);

	if (kept != NULL)
		memcpy(store_image(st, slot, chunk), kept,
		       layout_image_bytes(st->conf.layout, chunk, 1));
}

bool store_where(const struct store *st, const void *at, enum store_region *region,
		 uint64_t *offset)
{
	for (int i = STORE_SUMS; i <= STORE_SLOTS; i++) {
		const struct shm *m = &st->region[i];
		const char *base = m->base;

		*region = (enum store_region)i;
		if (base != NULL && (const char *)at >= base &&
		    (const char *)at < base + m->bytes) {
			*offset = (uint64_t)((const char *)at - base);
			return true;
		}
		if (m->room != NULL && (const char *)at >= m->room &&
		    (const char *)at < m->room + m->room_bytes) {
			*offset = shm_room_start(m->bytes) + (uint64_t)((const char *)at - m->room);
			return true;
		}
	}
	return false;
}

void *store_at(const struct store *st, uint32_t region, uint64_t offset, uint64_t bytes)
{
	if (region != STORE_SUMS && region != STORE_SLOTS)
		return NULL;
	const struct shm *m = &st->region[region];
	uint64_t room = shm_room_start(m->bytes);

	if (offset % 64 != 0)
		return NULL;
	if (m->room != NULL && offset >= room)
		return store_room_has(st, (enum store_region)region, offset - room, bytes)
			       ? m->room + (offset - room)
			       : NULL;
	if (m->base == NULL || offset > m->bytes || bytes > m->bytes - offset)
		return NULL;
	return (char *)m->base + offset;
}

const struct shm *store_image_shm(const struct store *st)
{
	return &st->image;
}

void store_image_open(struct store *st)
{
	uint64_t open = atomic_load_explicit(&image_head(st)->open, memory_order_relaxed);

	if (!(open & 1))
		atomic_store(&image_head(st)->open, open + 1);
	/* A reader that sees any byte that is written from now on also sees that the image is
	 * open. */
	atomic_thread_fence(memory_order_release);
}

void store_image_whole(struct store *st)
{
	uint64_t open = atomic_load_explicit(&image_head(st)->open, memory_order_relaxed);

	if (open & 1)
		atomic_store(&image_head(st)->open, open + 1);
}

static _Atomic uint64_t *version_of(const struct store *st, uint32_t slot, uint32_t chunk)
{
	CHECK(chunk < st->conf.layout->chunks_nr && slot <= st->conf.staleness);
	return &image_head(st)->version[(size_t)slot * st->conf.layout->chunks_nr + chunk];
}

void store_image_version(struct store *st, uint32_t slot, uint32_t chunk, uint64_t step)
{
	atomic_store_explicit(version_of(st, slot, chunk), step, memory_order_release);
}

void store_image_newest(struct store *st, uint32_t slot)
{
	CHECK(slot <= st->conf.staleness);
	st->newest = slot;
}

void store_image_published(struct store *st)
{
	atomic_fetch_add(&image_head(st)->published, 1);
}

void store_image_generation(struct store *st, uint32_t generation)
{
	atomic_store_explicit(&image_head(st)->generation, generation, memory_order_release);
	/* A reader that sees any later version or byte also sees this generation. */
	atomic_thread_fence(memory_order_release);
	no_versions(st);
	atomic_thread_fence(memory_order_release);
}

uint64_t store_image_chunk(const struct store *st, uint32_t slot, uint32_t chunk)
{
	return atomic_load_explicit(version_of(st, slot, chunk), memory_order_relaxed);
}

enum shard_status store_arena_open(struct store *st, uint32_t *slot, struct err *e)
{
	for (uint32_t i = 0; i < st->conf.local_world; i++) {
		if (st->arena[i].use != ARENA_FRESH)
			continue;
		st->arena[i].use = ARENA_USED;
		*slot = i;
		return SHARD_OK;
	}
	return err_set(
		e, SHARD_BUSY,
		"model \"%s\" has %u trainer%s on this node already, which is its local_world: "
		"wait for one to leave, start this one on another node, or save the model, "
		"drop it and define it anew with local_world=%u and restore_at_start",
		st->conf.name, st->conf.local_world, st->conf.local_world == 1 ? "" : "s",
		st->conf.local_world + 1);
}

void store_arena_close(struct store *st, uint32_t slot)
{
	CHECK(slot < st->conf.local_world && st->arena[slot].use == ARENA_USED);
	st->arena[slot].use = ARENA_SPENT;
}

bool store_renewal_begin(struct store *st, struct store_renewal *r)
{
	uint32_t i = 0;

	while (i < st->conf.local_world && st->arena[i].use != ARENA_SPENT)
		i++;
	if (i == st->conf.local_world)
		return false;
	*r = (struct store_renewal){.slot = i,
				    .bytes = st->sizes.arena,
				    .huge = st->conf.huge,
				    .shm = st->arena[i].shm};
	arena_name(r->name, st, i);
	st->arena[i] = (struct arena_slot){.use = ARENA_RENEWING, .shm.fd = -1};
	return true;
}

/* The old memory is unmapped before the new one is made, because the budget counts one arena per
 * slot. */
void store_renewal_run(struct store_renewal *r)
{
	unmap(&r->shm);
	if (map_shared(&r->shm, r->name, r->bytes, SHM_ARENA, r->huge, &r->e) == SHARD_OK)
		r->e.status = SHARD_OK;
	else
		r->shm.base = NULL;
}

void store_renewal_end(struct store *st, const struct store_renewal *r)
{
	struct arena_slot *a = &st->arena[r->slot];

	CHECK(r->slot < st->conf.local_world && a->use == ARENA_RENEWING);
	a->shm = r->shm;
	a->use = r->e.status == SHARD_OK ? ARENA_FRESH : ARENA_SPENT;
}

uint32_t store_renewals(const struct store *st)
{
	uint32_t nr = 0;

	for (uint32_t i = 0; i < st->conf.local_world; i++)
		nr += st->arena[i].use == ARENA_RENEWING;
	return nr;
}

bool store_renewable(const struct store *st)
{
	for (uint32_t i = 0; i < st->conf.local_world; i++)
		if (st->arena[i].use == ARENA_SPENT || st->arena[i].use == ARENA_RENEWING)
			return true;
	return false;
}

const struct shm *store_arena_shm(const struct store *st, uint32_t slot)
{
	CHECK(slot < st->conf.local_world && st->arena[slot].use == ARENA_USED);
	return &st->arena[slot].shm;
}

void *store_arena(struct store *st, uint32_t slot, uint64_t step, uint32_t chunk)
{
	CHECK(slot < st->conf.local_world && st->arena[slot].use == ARENA_USED);
	return (char *)st->arena[slot].shm.base +
	       step % (st->conf.staleness + 1) * st->sizes.arena_half +
	       layout_chunk_start(st->conf.layout, chunk) * dtype_bytes(st->conf.grad);
}

static enum shard_status check_inside_chunk(const struct store *st, uint64_t first, uint32_t count,
					    struct err *e)
{
	uint32_t size = st->conf.layout->chunk_elems, in = (uint32_t)(first & (size - 1));
	enum shard_status rc = layout_range(st->conf.layout, first, count, e);

	if (rc == SHARD_OK && count > size - in)
		rc = err_set(e, SHARD_RANGE, "%u elements from %llu on cross the end of chunk %u",
			     count, (unsigned long long)first, (uint32_t)(first / size));
	return rc;
}

/* Which tensor of a chunk is of that kind, 0 for the master. UINT32_MAX: the optimizer has none. */
static uint32_t tensor_by_kind(const struct store *st, enum shard_kind kind)
{
	if (kind == SHARD_MASTER)
		return 0;
	for (uint32_t i = 0; i < st->conf.optim->states_nr; i++)
		if (st->conf.optim->states[i] == kind)
			return i + 1;
	return UINT32_MAX;
}

enum shard_status store_has_range(const struct store *st, enum shard_kind kind, uint64_t first,
				  uint32_t count, struct err *e)
{
	const struct layout *l = st->conf.layout;
	enum shard_status rc = check_inside_chunk(st, first, count, e);
	uint32_t chunk = (uint32_t)(first / l->chunk_elems);

	if (rc != SHARD_OK)
		return rc;
	if (!store_holds(st, chunk))
		return err_set(e, SHARD_NOT_FOUND,
			       "chunk %u of model \"%s\" is held by another node", chunk,
			       st->conf.name);
	if (kind != SHARD_MASTER && l->tensor[layout_tensor_at(l, first)].flags & SHARD_FROZEN)
		return err_set(e, SHARD_NOT_FOUND,
			       "tensor \"%.200s\" is frozen: the optimizer keeps nothing for it",
			       l->tensor[layout_tensor_at(l, first)].name);
	if (tensor_by_kind(st, kind) == UINT32_MAX)
		return err_set(e, SHARD_NOT_FOUND, "optimizer %s keeps no tensor of kind %d",
			       st->conf.optim->name, (int)kind);
	return SHARD_OK;
}

enum shard_status store_range(struct store *st, enum shard_kind kind, uint64_t first,
			      uint32_t count, float **at, struct err *e)
{
	enum shard_status rc = store_has_range(st, kind, first, count, e);
	uint32_t chunk = (uint32_t)(first / st->conf.layout->chunk_elems);
	uint32_t i = tensor_by_kind(st, kind);

	if (rc != SHARD_OK)
		return rc;
	*at = (i == 0 ? store_master(st, chunk) : store_state(st, chunk, i - 1)) +
	      (first & (st->conf.layout->chunk_elems - 1));
	return SHARD_OK;
}

enum shard_status store_read(struct store *st, enum shard_kind kind, uint64_t first, uint32_t count,
			     float *dst, struct err *e)
{
	enum shard_status rc;
	float *at;

	if (kind == SHARD_IMAGE) {
		uint32_t chunk = (uint32_t)(first / st->conf.layout->chunk_elems);
		enum shard_dtype image;

		if ((rc = check_inside_chunk(st, first, count, e)) != SHARD_OK)
			return rc;
		const char *base = store_image(st, st->newest, chunk);
		image = layout_image(st->conf.layout, chunk);
		base += (first & (st->conf.layout->chunk_elems - 1)) * dtype_bytes(image);
		dtype_convert(dst, SHARD_F32, base, image, count);
		return SHARD_OK;
	}
	if ((rc = store_range(st, kind, first, count, &at, e)) == SHARD_OK)
		memcpy(dst, at, count * sizeof(*dst));
	return rc;
}

void store_reset(struct store *st)
{
	for (uint32_t c = 0; c < st->conf.layout->chunks_nr; c++)
		if (store_holds(st, c))
			store_void_set(st, c);
	no_versions(st);
}

uint64_t store_digest(struct store *st, uint32_t chunk)
{
	const struct layout *l = st->conf.layout;
	uint64_t sum = chunk;

	for (uint32_t s = l->chunk_segment[chunk]; s < l->chunk_segment[chunk + 1]; s++) {
		const struct segment *g = &l->segment[s];

		sum = xxh_sum(store_master(st, chunk) + g->start, g->n * sizeof(float), sum);
		for (uint32_t i = 0; i < st->conf.optim->states_nr; i++)
			if (store_state(st, chunk, i) != NULL)
				sum = xxh_sum(store_state(st, chunk, i) + g->start,
					      g->n * sizeof(float), sum);
	}
	return sum;
}

void store_seal_chunk(struct store *st, uint32_t slot, uint32_t chunk)
{
	const struct layout *l = st->conf.layout;
	const float *master = store_master(st, chunk);
	enum shard_dtype dt = layout_image(l, chunk);
	size_t size = dtype_bytes(dt);

	for (uint32_t i = 0; i <= st->conf.staleness; i++) {
		char *image = store_image(st, i, chunk);

		for (uint32_t s = l->chunk_segment[chunk]; s < l->chunk_segment[chunk + 1]; s++) {
			const struct segment *g = &l->segment[s];

			/* No step writes a frozen tensor, so every image must have it from the
			 * start. */
			if (i == slot || layout_frozen(l, s))
				dtype_convert(image + g->start * size, dt, master + g->start,
					      SHARD_F32, g->n);
		}
	}
}
