/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks of devices in buffers of the host, for tier_gpu.c. Happy path: a chunk is copied into a
 * buffer that is free, is lent it, and is as one in main memory, its tiles, too. When nobody uses
 * it any more, a chunk that was changed is copied to a free slot of its device, and one word says
 * that it is there now; any other is forgotten. A word of the buffer says which chunk it has, and
 * whether that is newer than what the device has. It fails if the device does. */
#include "store/tier_gpu_impl.h"

#include "base/check.h"
#include "store/away.h"
#include "store/store_impl.h"

struct device *gpus_device(struct gpus *n, uint32_t chunk)
{
	uint32_t index = store_away_index(n->away.store, chunk), i = 0;

	while (index >= n->device[i].slots.to)
		i++;
	CHECK(i < n->conf.devices_nr);
	return &n->device[i];
}

uint64_t gpus_slot_at(const struct gpus *n, const struct device *d, uint32_t slot)
{
	return d->mem->at + slot * store_away_slot(n->away.store);
}

void gpus_lose(struct gpus *n, const struct device *d)
{
	const char *why = "it does not answer";

	if (n->lost)
		return;
	n->lost = true;
	(void)gpu_lost(d->mem->gpu, &why);
	n->conf.lost(n->conf.arg, why);
}

void gpus_submit(struct gpus *n, const struct device *d, const struct gpu_job *job)
{
	enum shard_status st;

	n->conf.hold(n->conf.arg);
	st = gpu_submit(d->mem->gpu, job);
	CHECK(st == SHARD_OK); /* It takes what all models may have under way. */
}

/* --- words that outlive the process --- */

static void holds(const struct gpus *n, uint32_t b)
{
	const struct buffer *u = &n->buffer[b];
	uint64_t word = u->chunk == NONE ? 0 : u->chunk + 1ull;

	atomic_store(store_away_holds(n->away.store, b), word | (u->dirty ? DIRTY : 0));
}

void gpus_set_dirty(struct gpus *n, uint32_t b, bool dirty)
{
	if (n->buffer[b].dirty == dirty)
		return;
	n->buffer[b].dirty = dirty;
	n->count.dirty += dirty ? 1 : UINT32_MAX;
	holds(n, b);
}

/* In a buffer the tiles of a chunk have its stamp, as in main memory. */
static void set_stamp(const struct gpus *n, uint32_t chunk, uint64_t stamp)
{
	const struct layout *l = n->away.store->conf.layout;

	for (uint32_t i = 0; n->tiles != NULL && i < tile_count(l, chunk); i++)
		atomic_store(&n->tiles->version[n->tiles->first[chunk] + i], stamp);
}

static uint64_t stamp_of(const struct gpus *n, uint32_t chunk)
{
	return n->tiles != NULL ? atomic_load(&n->tiles->version[n->tiles->first[chunk]]) : 0;
}

/* --- buffers --- */

static void copy_done(void *owner, uint64_t tag, enum shard_status st, uint64_t kept);

static void copy(struct gpus *n, uint32_t b, enum gpu_what what, uint32_t slot)
{
	struct buffer *u = &n->buffer[b];
	const struct device *d = gpus_device(n, u->chunk);
	struct gpu_job job = {
		.done = copy_done,
		.owner = n,
		.tag = b,
		.what = what,
		.copy = {{store_away_buffer(n->away.store, b), gpus_slot_at(n, d, slot),
			  store_away_bytes(n->away.store, u->chunk)}},
		.copies_nr = 1};

	u->voids = store_away_voids(n->away.store, u->chunk);
	gpus_submit(n, d, &job);
}

/* The chunk is in the buffer. is_void: what is there is another chunk's, or counts no more. */
static void warm(struct gpus *n, uint32_t b, bool is_void)
{
	struct buffer *u = &n->buffer[b];

	u->state = WARM;
	u->used = ++n->uses;
	store_away_lend(n->away.store, u->chunk, store_away_buffer(n->away.store, b));
	if (is_void)
		store_void_set(n->away.store, u->chunk);
	holds(n, b);
}

static void forget(struct gpus *n, uint32_t b)
{
	struct buffer *u = &n->buffer[b];

	CHECK(u->users.all == 0 && !u->dirty);
	if (u->chunk == NONE)
		return;
	store_away_lend(n->away.store, u->chunk, NULL);
	n->where[u->chunk] = NONE;
	*u = (struct buffer){.chunk = NONE};
	holds(n, b);
}

static bool idle(const struct buffer *u)
{
	return u->state == WARM && u->users.all == 0;
}

/* Of the idle buffers that are dirty, or of those that are not, the one that was used longest ago.
 */
static uint32_t oldest(const struct gpus *n, bool dirty)
{
	uint32_t best = NONE;

	for (uint32_t b = 0; b < n->buffers_nr; b++) {
		const struct buffer *u = &n->buffer[b];

		if (idle(u) && u->dirty == dirty &&
		    (best == NONE || u->used < n->buffer[best].used))
			best = b;
	}
	return best;
}

bool gpus_bring(struct gpus *n, uint32_t chunk)
{
	struct slot_at at = slots_at(&gpus_device(n, chunk)->slots, chunk);
	uint32_t b = 0;

	while (b < n->buffers_nr && n->buffer[b].state != FREE)
		b++;
	if (b == n->buffers_nr && (b = oldest(n, false)) == NONE)
		return false;
	forget(n, b);
	n->buffer[b].chunk = chunk;
	n->where[chunk] = b;
	/* Of a chunk that is void, and may have been updated before, the notes of a thread that
	 * died still count: they name that stamp. */
	if (at.slot != SLOT_NONE && at.seq != 0)
		set_stamp(n, chunk, at.seq);
	if (at.slot == SLOT_NONE) {
		warm(n, b, true);
		return true;
	}
	n->buffer[b].state = LOADING;
	copy(n, b, GPU_TO_HOST, at.slot);
	return true;
}

bool gpus_forget_chunk(struct gpus *n, uint32_t chunk)
{
	uint32_t b = n->where[chunk];

	if (b == NONE)
		return true;
	if (!idle(&n->buffer[b]) || n->buffer[b].dirty)
		return false;
	forget(n, b);
	return true;
}

void gpus_store(struct gpus *n, uint32_t b)
{
	struct buffer *u = &n->buffer[b];

	if (!idle(u) || !u->dirty || gpus_over(n))
		return; /* After the end it stays dirty, for the next process. */
	u->state = STORING;
	u->to = slots_take(&gpus_device(n, u->chunk)->slots);
	u->to.seq = stamp_of(n, u->chunk);
	copy(n, b, GPU_TO_DEVICE, u->to.slot);
}

void gpus_clean(struct gpus *n)
{
	uint32_t spare = 0, b;

	for (b = 0; b < n->buffers_nr; b++) {
		const struct buffer *u = &n->buffer[b];

		spare += u->state == FREE || u->state == STORING || (idle(u) && !u->dirty);
	}
	for (; spare < SPARE && !gpus_over(n) && (b = oldest(n, true)) != NONE; spare++)
		gpus_store(n, b);
}

static void stored(struct gpus *n, uint32_t b)
{
	struct buffer *u = &n->buffer[b];
	struct slots *s = &gpus_device(n, u->chunk)->slots;

	u->state = WARM;
	if (u->voids != store_away_voids(n->away.store, u->chunk)) {
		slots_give(s, u->to.slot);
		return;
	}
	slots_put(s, u->chunk, &u->to);
	gpus_set_dirty(n, b, false);
}

static void copy_done(void *owner, uint64_t tag, enum shard_status st, uint64_t kept)
{
	struct gpus *n = owner;
	struct buffer *u = &n->buffer[tag];

	(void)kept;
	if (st != SHARD_OK)
		gpus_lose(n, gpus_device(n, u->chunk));
	else if (u->state == LOADING)
		warm(n, (uint32_t)tag, u->voids != store_away_voids(n->away.store, u->chunk));
	else
		stored(n, (uint32_t)tag);
	gpus_serve(n);
	n->conf.release(n->conf.arg);
}

enum shard_status gpus_take_buffers(struct gpus *n, struct err *e)
{
	for (uint32_t b = 0; b < n->buffers_nr; b++) {
		uint64_t word = atomic_load(store_away_holds(n->away.store, b)),
			 chunk = (word & ~DIRTY) - 1;

		if ((word & DIRTY) == 0) {
			holds(n, b);
			continue;
		}
		if (chunk >= n->chunks_nr || !store_is_away(n->away.store, (uint32_t)chunk) ||
		    n->where[chunk] != NONE)
			return err_set(e, SHARD_MISMATCH,
				       "a buffer is said to hold chunk %llu, which cannot be",
				       (unsigned long long)chunk);
		n->buffer[b] =
			(struct buffer){.state = WARM, .dirty = true, .chunk = (uint32_t)chunk};
		n->count.dirty++;
		n->where[chunk] = b;
		store_away_lend(n->away.store, (uint32_t)chunk,
				store_away_buffer(n->away.store, b));
	}
	return SHARD_OK;
}
