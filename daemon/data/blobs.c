// SPDX-License-Identifier: Apache-2.0
/* Blobs of one model on this node. There are places for what READY brought (pending), and one per
 * rank for what a verdict made of it (kept). They are in a mapping that is reserved with the model
 * and touched when used. model/ brings the events of a step, and control/blob.c answers requests
 * for a blob. A verdict moves pending blobs to the places of their ranks, and an attempt that ends
 * without one drops them. It fails only while the model is made, if the memory of an earlier
 * process is impossible, or if another node sends what cannot be a blob.
 *
 * Of a model with several copies the nodes that have memory for place_blob_chunk() keep a rank's
 * blob. The node of the rank sends it to them before it tells them what its ranks gave (RANKS), on
 * the same connection. A node votes only when it has been told that, so each step that commits has
 * its blobs on all of these nodes, and whoever applies the verdict keeps the same bytes. */
#include "data/blobs.h"

#include "base/check.h"
#include "data/data.h"
#include "data/model.h"
#include "link/peer.h"
#include "wire/ops.h"

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
	/* pending_nr: places of pending blobs. Of a model with several copies it is one per rank,
	 * because they come from other nodes too. Of one with one copy it is one per local rank. */
	uint32_t pending_nr, ranks_nr;
	/* [node] Which link has carried the blobs of the attempt in hand there: its count of
	 * falls, plus 1. 0: none has. */
	uint64_t sent[CORE_NODES_MAX];
	void *own; /* NULL: the memory is in m->meta and outlives the process. */
	struct core_id *pending_id;
	struct pending *pending; /* [pending_nr] Of attempt .pending_id. */
	struct kept *kept;       /* [ranks_nr] */
	uint8_t *memory;         /* [pending_nr + ranks_nr] Places. */
};

static uint8_t *pending_at(const struct blobs *b, uint32_t i)
{
	CHECK(i < b->pending_nr);
	return b->memory + (size_t)i * BLOB_BYTES_MAX;
}

static uint8_t *kept_at(const struct blobs *b, uint32_t rank)
{
	CHECK(rank < b->ranks_nr);
	return b->memory + (size_t)(b->pending_nr + rank) * BLOB_BYTES_MAX;
}

static size_t tables_bytes(uint32_t pending_nr, uint32_t ranks_nr)
{
	size_t bytes = 64 + pending_nr * sizeof(struct pending) + ranks_nr * sizeof(struct kept);

	return (bytes + 4095) / 4096 * 4096;
}

size_t blobs_memory_bytes(uint32_t local_nr, uint32_t ranks_nr, bool copied)
{
	uint32_t pending_nr = budget_blobs_pending(local_nr, ranks_nr, copied);

	return tables_bytes(pending_nr, ranks_nr) +
	       (size_t)(pending_nr + ranks_nr) * BLOB_BYTES_MAX;
}

bool blobs_copied(const struct model *m)
{
	return m->set.replicas > 1;
}

/* Does this node keep the blob of that rank when it is committed? */
static bool keeps(const struct model *m, uint32_t rank, uint16_t node)
{
	return !blobs_copied(m) || place_keeps(&m->place, place_blob_chunk(&m->place, rank), node);
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
	size_t bytes = blobs_memory_bytes(m->set.local_world, m->set.max_world, blobs_copied(m));
	struct blobs *b = calloc(1, sizeof(*b));
	uint8_t *at = m->meta.blobs;

	CHECK(m->blobs == NULL && m->set.local_world > 0);
	m->blobs = b;
	if (b == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for the blobs of \"%s\"", m->name);
	b->ranks_nr = m->set.max_world;
	b->pending_nr = budget_blobs_pending(m->set.local_world, b->ranks_nr, blobs_copied(m));
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
	b->memory = at + tables_bytes(b->pending_nr, b->ranks_nr);
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
	for (uint32_t i = 0; i < b->pending_nr; i++)
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

static void pend(struct blobs *b, uint32_t i, const void *data, size_t bytes)
{
	CHECK(i < b->pending_nr && bytes <= BLOB_BYTES_MAX);
	atomic_store(&b->pending[i].has, 0);
	if (bytes > 0)
		memcpy(pending_at(b, i), data, bytes);
	b->pending[i].bytes = (uint32_t)bytes;
	atomic_store(&b->pending[i].has, 1);
}

void blobs_pending(struct model *m, uint32_t i, const Shard__Ready *body)
{
	CHECK(i < m->contrib.local_nr);
	if (body->has_blob)
		pend(m->blobs, blobs_copied(m) ? m->contrib.local[i].rank : i, body->blob.data,
		     body->blob.len);
}

void blobs_drop(struct model *m)
{
	for (uint32_t i = 0; i < m->blobs->pending_nr; i++)
		atomic_store(&m->blobs->pending[i].has, 0);
}

void blobs_begin(struct model *m)
{
	blobs_drop(m);
	memset(m->blobs->sent, 0, sizeof(m->blobs->sent));
	*m->blobs->pending_id = m->attempt.id;
}

/* --- between nodes --- */

static void sent(void *arg, enum shard_status st)
{
	(void)st; /* A link that ends says what it did not carry: see blobs_tell(). */
	data_left(arg);
}

/* The place is not written again before the attempt has drained. */
static enum shard_status send_blob(struct model *m, struct peer *p, uint32_t rank)
{
	struct wire_head h;
	enum shard_status st;

	data_head(m, &h, OP_BLOB_DATA, &m->attempt.id);
	h.chunk = rank;
	st = stream_send(conn_stream(peer_control(p)), &h, pending_at(m->blobs, rank),
			 m->blobs->pending[rank].bytes, sent, m);
	if (st == SHARD_OK)
		data_leaves(m);
	return st;
}

bool blobs_tell(struct model *m, uint16_t node)
{
	struct blobs *b = m->blobs;
	struct peer *p = m->server->peer[node];
	const struct core_world *w = &m->attempt.world;

	if (!blobs_copied(m))
		return true;
	if (!p->up)
		return false;
	/* What a link has taken comes before whatever it takes later, or the link ends. */
	if (b->sent[node] == p->downs + 1)
		return true;
	for (uint32_t r = 0; r < w->size; r++)
		if (w->rank[r].node == m->server->self && b->pending[r].has && keeps(m, r, node) &&
		    send_blob(m, p, r) != SHARD_OK)
			return false; /* The node asks for RANKS again, and gets all of them. */
	b->sent[node] = p->downs + 1;
	return true;
}

enum shard_status blobs_came(struct model *m, const struct peer *p, const struct wire_head *h,
			     const void *body, struct err *e)
{
	const struct core_world *w = &m->attempt.world;
	struct core_id id = {h->term, h->step, h->seq, h->generation, h->attempt};

	/* A node has asked for it in the attempt in hand. Nothing may change what it has voted for.
	 */
	if (core_id_cmp(&id, &m->attempt.id) != 0 || !m->attempt.on || m->attempt.voted)
		return SHARD_OK;
	if (!blobs_copied(m) || h->chunk >= w->size || w->rank[h->chunk].node != p->node ||
	    !keeps(m, h->chunk, m->server->self) || h->body_bytes > BLOB_BYTES_MAX)
		return err_set(
			e, SHARD_PROTOCOL,
			"node %s sent %u bytes as the blob of rank %u of \"%s\", which is not "
			"its rank or not kept on node %s",
			members_name(m->server, p->node), h->body_bytes, h->chunk, m->name,
			members_name(m->server, m->server->self));
	if (!m->blobs->pending[h->chunk].has)
		pend(m->blobs, h->chunk, body, h->body_bytes);
	return SHARD_OK;
}

bool blobs_pends(const struct model *m, uint32_t rank)
{
	CHECK(blobs_copied(m) && rank < m->blobs->ranks_nr);
	return m->blobs->pending[rank].has;
}

/* --- copies for a node that catches up --- */

static uint32_t rank_of_part(const struct model *m, uint32_t chunk, uint32_t i)
{
	return chunk + i * m->layout->chunks_nr;
}

uint32_t blobs_parts(const struct model *m, uint32_t chunk)
{
	uint32_t ranks = blobs_copied(m) ? m->blobs->ranks_nr : 0;

	CHECK(chunk < m->layout->chunks_nr);
	return chunk < ranks ? (ranks - 1 - chunk) / m->layout->chunks_nr + 1 : 0;
}

uint64_t blobs_copy(const struct model *m, uint32_t chunk, uint8_t *to)
{
	uint64_t at = 0;

	for (uint32_t i = 0; i < blobs_parts(m, chunk); i++) {
		struct part_blob k = blobs_kept(m, rank_of_part(m, chunk, i));
		uint64_t bytes = sizeof(k.step) + (k.step > 0 ? k.bytes : 0);

		if (to != NULL) {
			memcpy(to + at, &bytes, sizeof(bytes));
			memcpy(to + at + sizeof(bytes), &k.step, sizeof(k.step));
			memcpy(to + at + sizeof(bytes) + sizeof(k.step), k.data,
			       bytes - sizeof(k.step));
		}
		at += sizeof(bytes) + bytes;
	}
	return at;
}

const uint8_t *blobs_copy_next(const uint8_t **at, uint32_t *bytes)
{
	const uint8_t *body = *at + sizeof(uint64_t);
	uint64_t nr;

	memcpy(&nr, *at, sizeof(nr));
	CHECK(nr >= sizeof(uint64_t) && nr <= sizeof(uint64_t) + BLOB_BYTES_MAX);
	*bytes = (uint32_t)nr;
	*at = body + nr;
	return body;
}

enum shard_status blobs_copy_take(struct model *m, const struct wire_head *h, uint32_t i,
				  const uint8_t *body, struct err *e)
{
	uint32_t rank = rank_of_part(m, h->chunk, i);
	uint64_t step = 0;

	if (h->body_bytes >= sizeof(step))
		memcpy(&step, body, sizeof(step));
	if (h->body_bytes < sizeof(step) || h->body_bytes > sizeof(step) + BLOB_BYTES_MAX ||
	    step > h->step || (step == 0 && h->body_bytes > sizeof(step)))
		return err_set(
			e, SHARD_PROTOCOL,
			"a copy of the blob of rank %u of \"%s\" has %u bytes and is of step "
			"%lu, where the last step is %lu",
			rank, m->name, h->body_bytes, (unsigned long)step, (unsigned long)h->step);
	/* This node may have taken part in a later step already. */
	if (step > m->blobs->kept[rank].step)
		blobs_restore(m, rank, step, body + sizeof(step),
			      h->body_bytes - (uint32_t)sizeof(step));
	return SHARD_OK;
}

/* --- what is committed --- */

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

void blobs_forget(struct model *m, uint32_t chunk)
{
	for (uint32_t i = 0; i < blobs_parts(m, chunk); i++)
		m->blobs->kept[rank_of_part(m, chunk, i)] = (struct kept){0, 0};
}

void blobs_free(struct model *m)
{
	struct blobs *b = m->blobs;

	if (b == NULL)
		return;
	if (b->own != NULL)
		munmap(b->own,
		       blobs_memory_bytes(m->set.local_world, b->ranks_nr, blobs_copied(m)));
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

	for (uint32_t i = 0; in_hand && i < b->pending_nr; i++) {
		uint32_t rank = i;

		if (!b->pending[i].has || (!blobs_copied(m) && i >= m->contrib.local_nr))
			continue;
		if (!blobs_copied(m))
			rank = m->contrib.local[i].rank;
		if (keeps(m, rank, m->server->self))
			blobs_restore(m, rank, step, pending_at(b, i), b->pending[i].bytes);
	}
	blobs_drop(m);
}
