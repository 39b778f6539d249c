// SPDX-License-Identifier: Apache-2.0
/* Blobs of one model on this node. There is one place per local rank for what READY brought
 * (pending), and one per rank for what a verdict made of it (kept). They are in a mapping that is
 * reserved with the model and touched when used. model/ brings the events of a step, and
 * control/blob.c answers requests for a blob. A verdict moves pending blobs to the places of their
 * ranks, and an attempt that ends without one drops them. It fails only while the model is made, or
 * if the memory of an earlier process is impossible. */
#include "data/blobs.h"

#include "base/check.h"
#include "data/model.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static_assert(BLOB_BYTES_MAX == BUDGET_BLOB_BYTES, "the budget counts a place per blob");

struct pending {
	_Atomic uint32_t has; /* Set last. */
	uint32_t bytes;
};

struct kept {
	uint64_t step; /* 0: none. */
	uint32_t bytes;
};

struct blobs {
	uint32_t local_nr, ranks_nr;
	void *own; /* NULL: the memory is in m->meta and outlives the process. */
	struct core_id *pending_id;
	struct pending *pending; /* [local_nr] Of attempt .pending_id. */
	struct kept *kept;       /* [ranks_nr] */
	uint8_t *memory;         /* [local_nr + ranks_nr] Places. */
};

static uint8_t *pending_at(const struct blobs *b, uint32_t i)
{
	CHECK(i < b->local_nr);
	return b->memory + (size_t)i * BLOB_BYTES_MAX;
}

static uint8_t *kept_at(const struct blobs *b, uint32_t rank)
{
	CHECK(rank < b->ranks_nr);
	return b->memory + (size_t)(b->local_nr + rank) * BLOB_BYTES_MAX;
}

static size_t tables_bytes(uint32_t local_nr, uint32_t ranks_nr)
{
	size_t bytes = 64 + local_nr * sizeof(struct pending) + ranks_nr * sizeof(struct kept);

	return (bytes + 4095) / 4096 * 4096;
}

size_t blobs_memory_bytes(uint32_t local_nr, uint32_t ranks_nr)
{
	return tables_bytes(local_nr, ranks_nr) + (size_t)(local_nr + ranks_nr) * BLOB_BYTES_MAX;
}

static void *map_own(size_t bytes)
{
	void *memory =
		mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		return NULL;
	(void)madvise(memory, bytes, MADV_NOHUGEPAGE); /* Most ranks keep a page or two, if any. */
	return memory;
}

enum shard_status blobs_init(struct model *m, struct err *e)
{
	size_t bytes = blobs_memory_bytes(m->set.local_world, m->set.max_world);
	struct blobs *b = calloc(1, sizeof(*b));
	uint8_t *at = m->meta.blobs;

	CHECK(m->blobs == NULL && m->set.local_world > 0);
	m->blobs = b;
	if (b == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for the blobs of \"%s\"", m->name);
	b->local_nr = m->set.local_world;
	b->ranks_nr = m->set.max_world;
	if (at == NULL)
		at = b->own = map_own(bytes);
	if (at == NULL) {
		blobs_free(m);
		return err_set(e, SHARD_SYSTEM, "no memory for %zu bytes of blobs of \"%s\"", bytes,
			       m->name);
	}
	b->pending_id = (struct core_id *)(void *)at;
	b->kept = (struct kept *)(void *)(at + 64);
	b->pending = (struct pending *)(void *)(b->kept + b->ranks_nr);
	b->memory = at + tables_bytes(b->local_nr, b->ranks_nr);
	return SHARD_OK;
}

/* What READY brought for attempt id stays. The places of the trainers are the same, because world
 * and order are those of the attempt. */
enum shard_status blobs_again(struct model *m, const struct core_id *id, struct err *e)
{
	struct blobs *b = m->blobs;

	for (uint32_t r = 0; r < b->ranks_nr; r++)
		if (b->kept[r].bytes > BLOB_BYTES_MAX)
			return err_set(e, SHARD_MISMATCH, "the blob of rank %u has %u bytes", r,
				       b->kept[r].bytes);
	if (id == NULL || core_id_cmp(b->pending_id, id) != 0) {
		blobs_drop(m);
		return SHARD_OK;
	}
	for (uint32_t i = 0; i < b->local_nr; i++)
		if (b->pending[i].has > 1 || b->pending[i].bytes > BLOB_BYTES_MAX)
			return err_set(e, SHARD_MISMATCH,
				       "a blob that is to be committed has %u bytes",
				       b->pending[i].bytes);
	return SHARD_OK;
}

/* --- the step --- */

enum shard_status blobs_check(const Shard__Ready *body, struct err *e)
{
	if (body->blob.len > BLOB_BYTES_MAX || (body->blob.len > 0 && !body->has_blob))
		return err_set(e, SHARD_RANGE, "a blob of %zu bytes: at most %u are kept",
			       body->blob.len, BLOB_BYTES_MAX);
	return SHARD_OK;
}

void blobs_pending(struct model *m, uint32_t i, const Shard__Ready *body)
{
	struct blobs *b = m->blobs;

	CHECK(i < b->local_nr && body->blob.len <= BLOB_BYTES_MAX);
	atomic_store(&b->pending[i].has, 0);
	if (body->blob.len > 0)
		memcpy(pending_at(b, i), body->blob.data, body->blob.len);
	b->pending[i].bytes = (uint32_t)body->blob.len;
	atomic_store(&b->pending[i].has, body->has_blob);
}

void blobs_drop(struct model *m)
{
	for (uint32_t i = 0; i < m->blobs->local_nr; i++)
		atomic_store(&m->blobs->pending[i].has, 0);
}

void blobs_begin(struct model *m)
{
	blobs_drop(m);
	*m->blobs->pending_id = m->attempt.id;
}

void blobs_restore(struct model *m, uint32_t rank, uint64_t step, const void *data, uint32_t bytes)
{
	CHECK(bytes <= BLOB_BYTES_MAX && step > 0);
	if (rank >= m->blobs->ranks_nr)
		return;
	m->blobs->kept[rank] = (struct kept){step, bytes};
	if (bytes > 0)
		memcpy(kept_at(m->blobs, rank), data, bytes);
}

uint32_t blobs_committed(const struct model *m, struct part_blob *out, uint32_t room)
{
	const struct blobs *b = m->blobs;
	uint32_t nr = 0;

	for (uint32_t r = 0; r < b->ranks_nr; r++) {
		if (b->kept[r].step == 0)
			continue;
		if (nr < room)
			out[nr] = blobs_kept(m, r);
		nr++;
	}
	return nr;
}

void blobs_reset(struct model *m)
{
	blobs_drop(m);
	memset((void *)m->blobs->kept, 0, m->blobs->ranks_nr * sizeof(*m->blobs->kept));
}

void blobs_free(struct model *m)
{
	struct blobs *b = m->blobs;

	if (b == NULL)
		return;
	if (b->own != NULL)
		munmap(b->own, blobs_memory_bytes(b->local_nr, b->ranks_nr));
	free(b);
	m->blobs = NULL;
}

struct part_blob blobs_kept(const struct model *m, uint32_t rank)
{
	const struct blobs *b = m->blobs;

	CHECK(rank < b->ranks_nr);
	return (struct part_blob){.rank = rank,
				  .bytes = b->kept[rank].bytes,
				  .step = b->kept[rank].step,
				  .data = kept_at(b, rank)};
}

void blobs_decided(struct model *m, uint64_t step, bool in_hand)
{
	struct blobs *b = m->blobs;

	for (uint32_t i = 0; in_hand && i < m->contrib.local_nr; i++)
		if (b->pending[i].has)
			blobs_restore(m, m->contrib.local[i].rank, step, pending_at(b, i),
				      b->pending[i].bytes);
	blobs_drop(m);
}
