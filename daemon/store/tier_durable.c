/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the chunks of a file outlive a loss of power, step by step. data/durable.c asks for it when
 * a step is applied to all of them. Happy path: each dirty buffer is written to a slot that no
 * superblock names, the disk is told to keep that, the superblock with the words of all chunks is
 * written, and the disk is told to keep that, too. Only then are the slots free that the superblock
 * before has named. So whatever of the writes since the last sync is lost, one superblock is whole,
 * and what it names is there. While a step is applied, its chunks are written as soon as they are
 * done. If the disk fails, this node's copy is lost, as with any other write of the tier. */
#include "store/away.h"
#include "store/store_impl.h"
#include "store/tier_nvme_impl.h"

#include "base/check.h"

static uint64_t voids(const struct nvme *n)
{
	uint64_t all = 0;

	for (uint32_t c = 0; c < n->chunks_nr; c++)
		all += store_is_away(n->away.store, c) ? store_away_voids(n->away.store, c) : 0;
	return all;
}

static struct nvme *nvme_of(struct tier *t)
{
	return (struct nvme *)(void *)t; /* The first field. */
}

uint64_t tier_nvme_super_bytes(const struct store *st)
{
	uint64_t payload = st->conf.durable_bytes;

	return payload > 0 && store_away_nr(st) > 0
		       ? SUPER_BLOCK + super_room(store_away_nr(st), payload)
		       : 0;
}

enum shard_status tier_nvme_recall(struct store *st, const struct super_found *f, struct err *e)
{
	const struct super_cell *cell = super_cells(f->at);
	uint32_t nr = store_away_nr(st);
	uint64_t payload = st->conf.durable_bytes;

	if (nr == 0 || f->of.cells_nr != nr || f->of.payload_bytes != payload ||
	    f->of.room != super_room(nr, payload) || f->of.slot_bytes != store_away_slot(st))
		return err_set(e, SHARD_MISMATCH,
			       "the superblock of its file is one of %u chunks in slots of %llu "
			       "bytes, and there are %u in slots of %llu",
			       f->of.cells_nr, (unsigned long long)f->of.slot_bytes, nr,
			       (unsigned long long)store_away_slot(st));
	for (uint32_t i = 0; i < nr; i++) {
		uint32_t c = cell[i].chunk;

		if (c >= st->conf.layout->chunks_nr || !store_is_away(st, c) ||
		    cell[i].blocks != store_away_bytes(st, c) / SUPER_BLOCK)
			return err_set(e, SHARD_MISMATCH,
				       "the superblock of its file has a chunk %u of %u blocks, "
				       "which cannot be",
				       c, cell[i].blocks);
		atomic_store(store_away_cell(st, c), cell[i].word);
	}
	return SHARD_OK;
}

enum shard_status durable_open(struct nvme *n, struct err *e)
{
	const struct tier_nvme_super *s = &n->conf.super;

	CHECK((s->at != NULL) == (tier_nvme_super_bytes(n->away.store) > 0));
	if (s->at == NULL)
		return SHARD_OK;
	n->commit.of = (struct super_of){
		.id = n->conf.id,
		.seq = s->seq,
		.room = super_room(store_away_nr(n->away.store), n->away.store->conf.durable_bytes),
		.slot_bytes = store_away_slot(n->away.store),
		.payload_bytes = n->away.store->conf.durable_bytes,
		.cells_nr = store_away_nr(n->away.store)};
	return slots_keep(&n->slots, s->cell, s->cells_nr, e);
}

bool durable_pauses(const struct nvme *n)
{
	return n->commit.at > COMMIT_WRITES;
}

uint8_t *tier_nvme_payload(struct tier *t)
{
	struct nvme *n;

	if (!tier_is_nvme(t) || nvme_of(t)->conf.super.at == NULL)
		return NULL;
	n = nvme_of(t);
	CHECK(n->commit.at == COMMIT_NONE);
	return super_payload(n->conf.super.at, n->commit.of.cells_nr);
}

static void end(struct nvme *n, bool whole)
{
	tier_nvme_committed *done = n->commit.done;

	n->commit.at = COMMIT_NONE;
	n->commit.eager = false;
	done(n->commit.arg, whole);
	nvme_serve(n); /* What waits for a write may go on. */
}

/* The weights are lost: the file counts as it is until there are others, and what is being written
 * is no step of those. */
static bool gives_up(struct nvme *n)
{
	if (voids(n) == n->commit.voids)
		return false;
	end(n, false);
	return true;
}

static void after_done(void *owner, uint64_t tag, int64_t result)
{
	struct nvme *n = owner;

	(void)tag;
	CHECK(n->commit.at == COMMIT_AFTER);
	if (result < 0) {
		nvme_lose(n, "syncing the superblock", 0, result);
		return;
	}
	slots_kept(&n->slots);
	if (!gives_up(n))
		end(n, true);
}

static void super_done(void *owner, uint64_t tag, int64_t result)
{
	struct nvme *n = owner;

	(void)tag;
	CHECK(n->commit.at == COMMIT_SUPER && n->commit.parts > 0);
	n->commit.parts--;
	if (result < 0) {
		nvme_lose(n, "writing the superblock", 0, result);
		return;
	}
	n->count.written_bytes += (uint64_t)result;
	if (n->commit.parts > 0 || nvme_over(n))
		return;
	n->commit.at = COMMIT_AFTER;
	CHECK(ring_sync(n->conf.ring, after_done, n, 0) == SHARD_OK);
}

static void write_super(struct nvme *n)
{
	struct commit *c = &n->commit;
	uint32_t buffer = n->buffers_nr; /* The one behind those of chunks. */

	c->of.seq++;
	slots_name(&n->slots, super_cells(n->conf.super.at));
	super_seal(&c->of, n->conf.super.at);
	c->at = COMMIT_SUPER;
	c->parts = 2;
	CHECK(ring_write(n->conf.ring, buffer, SUPER_BLOCK, super_body_bytes(&c->of),
			 super_body_at(&c->of), super_done, n, 0) == SHARD_OK);
	CHECK(ring_write(n->conf.ring, buffer, 0, SUPER_BLOCK, super_head_at(&c->of), super_done, n,
			 0) == SHARD_OK);
}

static void sync_done(void *owner, uint64_t tag, int64_t result)
{
	struct nvme *n = owner;

	(void)tag;
	CHECK(n->commit.at == COMMIT_SYNC);
	if (result < 0) {
		nvme_lose(n, "syncing the state", 0, result);
		return;
	}
	if (!nvme_over(n) && !gives_up(n))
		write_super(n);
}

/* The next dirty buffer that nobody uses. NONE: there is none. */
static uint32_t next_dirty(struct nvme *n)
{
	for (uint32_t i = 0; i < n->buffers_nr; i++) {
		uint32_t b = (n->commit.from + i) % n->buffers_nr;

		if (n->buffer[b].dirty && nvme_idle(&n->buffer[b])) {
			n->commit.from = b + 1;
			return b;
		}
	}
	return NONE;
}

void durable_go(struct nvme *n)
{
	struct commit *c = &n->commit;
	uint32_t b;

	if (n->conf.super.at == NULL || nvme_over(n) || durable_pauses(n) ||
	    (c->at == COMMIT_NONE && !c->eager))
		return;
	if (c->at == COMMIT_WRITES && gives_up(n))
		return;
	while (n->writes < WRITES_MAX && n->count.dirty > n->writes && (b = next_dirty(n)) != NONE)
		nvme_write_begin(n, b);
	if (c->at != COMMIT_WRITES || n->count.dirty > 0 || n->writes > 0)
		return;
	c->at = COMMIT_SYNC;
	CHECK(ring_sync(n->conf.ring, sync_done, n, 0) == SHARD_OK);
}

void tier_nvme_commit(struct tier *t, uint64_t step, tier_nvme_committed *done, void *arg)
{
	struct nvme *n = nvme_of(t);

	CHECK(tier_is_nvme(t) && n->conf.super.at != NULL && n->commit.at == COMMIT_NONE &&
	      done != NULL);
	n->commit.at = COMMIT_WRITES;
	n->commit.voids = voids(n);
	n->commit.of.step = step;
	n->commit.done = done;
	n->commit.arg = arg;
	nvme_serve(n);
}
