// SPDX-License-Identifier: Apache-2.0
/* Blobs of one model on this node: one place per local rank for what READY brought (pending), one per rank for what a verdict made of it
 * (kept), in a mapping that is reserved with the model and touched when used. session.c and model.c bring the step's events; a trainer's
 * OP_BLOB is answered from here if it is of the newest step, else every other node is asked, answers when it is as far as who asks,
 * and the greatest step is the answer. Ways to fail: nobody has one (SHARD_NOT_FOUND), a node that could have a newer one is out of
 * reach (SHARD_UNREACHABLE, by name). */
#include "blobs.h"

#include "base/check.h"
#include "model.h"
#include "peer.h"
#include "relay.h"
#include "session.h"
#include "wire/control.h"
#include "wire/ops.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ASKS_MAX 256u /* open at one time; one per rank of the largest world */

static_assert(BLOB_BYTES_MAX == BUDGET_BLOB_BYTES, "the budget counts a place per blob");

struct pending {
	_Atomic uint32_t has; /* set last */
	uint32_t bytes;
};

struct kept {
	uint64_t step; /* 0: none */
	uint32_t bytes;
};

struct ask { /* a trainer's, while other nodes look */
	struct list link;
	uint64_t session, best_step;
	uint32_t id, tag, rank, left, best_bytes;
	uint8_t *best;      /* of other nodes */
	struct err lacking; /* status: a node did not answer, and why */
};

struct parked { /* a node's, which knows of a later step than this node: the blob may be about to be committed here */
	struct list link;
	uint16_t node;
	uint32_t tag, rank;
	uint64_t step;
};

struct blobs {
	uint32_t local_nr, ranks_nr, next_ask, asks_nr;
	uint32_t parked_nr;
	struct list asks, parked;
	void *own; /* NULL: the memory is in m->meta, and outlives the process */
	struct core_id *pending_id;
	struct pending *pending; /* [local_nr] of the attempt .pending_id */
	struct kept *kept;       /* [ranks_nr] */
	uint8_t *memory;         /* [local_nr + ranks_nr] places */
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

size_t blobs_bytes(uint32_t local_nr, uint32_t ranks_nr)
{
	return tables_bytes(local_nr, ranks_nr) + (size_t)(local_nr + ranks_nr) * BLOB_BYTES_MAX;
}

static void *map_own(size_t bytes)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		return NULL;
	(void)madvise(memory, bytes, MADV_NOHUGEPAGE); /* most ranks keep a page or two, if any */
	return memory;
}

enum shard_status blobs_init(struct model *m, struct err *e)
{
	size_t bytes = blobs_bytes(m->set.local_world, m->set.max_world);
	struct blobs *b = calloc(1, sizeof(*b));
	uint8_t *at = m->meta.blobs;

	m->blobs = b;
	if (b == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for the blobs of \"%s\"", m->name);
	list_init(&b->asks);
	list_init(&b->parked);
	b->local_nr = m->set.local_world;
	b->ranks_nr = m->set.max_world;
	if (at == NULL)
		at = b->own = map_own(bytes);
	if (at == NULL) {
		blobs_free(m);
		return err_set(e, SHARD_SYSTEM, "no memory for %zu bytes of blobs of \"%s\"", bytes, m->name);
	}
	b->pending_id = (struct core_id *)(void *)at;
	b->kept = (struct kept *)(void *)(at + 64);
	b->pending = (struct pending *)(void *)(b->kept + b->ranks_nr);
	b->memory = at + tables_bytes(b->local_nr, b->ranks_nr);
	return SHARD_OK;
}

/* What READY brought for this attempt stays, if its trainers' places are the same: world and order are the attempt's. */
enum shard_status blobs_again(struct model *m, const struct core_id *id, struct err *e)
{
	struct blobs *b = m->blobs;

	for (uint32_t r = 0; r < b->ranks_nr; r++)
		if (b->kept[r].bytes > BLOB_BYTES_MAX)
			return err_set(e, SHARD_MISMATCH, "the blob of rank %u has %u bytes", r, b->kept[r].bytes);
	if (id == NULL || core_id_cmp(b->pending_id, id) != 0) {
		blobs_drop(m);
		return SHARD_OK;
	}
	for (uint32_t i = 0; i < b->local_nr; i++)
		if (b->pending[i].has > 1 || b->pending[i].bytes > BLOB_BYTES_MAX)
			return err_set(e, SHARD_MISMATCH, "a blob that is to be committed has %u bytes", b->pending[i].bytes);
	return SHARD_OK;
}

/* --- the step --- */

enum shard_status blobs_check(const Shard__Ready *body, struct err *e)
{
	if (body->blob.len > BLOB_BYTES_MAX || (body->blob.len > 0 && !body->has_blob))
		return err_set(e, SHARD_RANGE, "a blob of %zu bytes: at most %u are kept", body->blob.len, BLOB_BYTES_MAX);
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
	*m->blobs->pending_id = m->id_now;
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
			out[nr] = (struct part_blob){
				.rank = r, .bytes = b->kept[r].bytes, .step = b->kept[r].step, .data = kept_at(b, r)};
		nr++;
	}
	return nr;
}

/* --- OP_BLOB --- */

static void ask_free(struct blobs *b, struct ask *a)
{
	list_remove(&a->link);
	b->asks_nr--;
	free(a->best);
	free(a);
}

static void parked_free(struct blobs *b, struct parked *p)
{
	list_remove(&p->link);
	b->parked_nr--;
	free(p);
}

static void fail_asks(struct model *m, const struct err *e)
{
	struct blobs *b = m->blobs;

	list_each(it, &b->asks) {
		struct ask *a = list_of(it, struct ask, link);
		struct session *t = session_find(m->server, a->session);

		if (t != NULL)
			session_refuse(t, a->tag, e);
		ask_free(b, a);
	}
	list_each(it, &b->parked) {
		struct parked *p = list_of(it, struct parked, link);

		peer_refuse(m->server->peer[p->node], p->tag, e);
		parked_free(b, p);
	}
}

void blobs_reset(struct model *m)
{
	blobs_drop(m);
	memset((void *)m->blobs->kept, 0, m->blobs->ranks_nr * sizeof(*m->blobs->kept));
	fail_asks(m, &(struct err){.status = SHARD_STALE, .text = "the model's generation is over, its blobs with it: ask again"});
}

void blobs_free(struct model *m)
{
	struct blobs *b = m->blobs;

	if (b == NULL)
		return;
	fail_asks(m, &(struct err){.status = SHARD_NOT_FOUND, .text = "the model is gone"});
	if (b->own != NULL)
		munmap(b->own, blobs_bytes(b->local_nr, b->ranks_nr));
	free(b);
	m->blobs = NULL;
}

static void blob_is(const struct blobs *b, uint32_t rank, Shard__BlobIs *out)
{
	*out = (Shard__BlobIs)SHARD__BLOB_IS__INIT;
	out->rank = rank;
	out->step = b->kept[rank].step;
	out->data.len = b->kept[rank].bytes;
	out->data.data = kept_at(b, rank);
}

/* What counts by now, here or among the answers; or why there is no answer. */
static enum shard_status ask_answer(const struct model *m, const struct ask *a, Shard__BlobIs *out, struct err *e)
{
	blob_is(m->blobs, a->rank, out);
	if (a->best_step > out->step) {
		out->step = a->best_step;
		out->data.len = a->best_bytes;
		out->data.data = a->best;
	}
	if (a->lacking.status != SHARD_OK && out->step < m->step) /* nobody has one of a step that is not decided */
		return err_set(e, SHARD_UNREACHABLE, "the blob of rank %u of \"%s\": %.300s; it may have a newer one than step %lu",
			       a->rank, m->name, a->lacking.text, (unsigned long)out->step);
	if (out->step == 0)
		return err_set(e, SHARD_NOT_FOUND, "rank %u of \"%s\" has committed no blob: shard_set_blob() in a step makes one",
			       a->rank, m->name);
	return SHARD_OK;
}

static void ask_done(struct model *m, struct ask *a)
{
	struct session *t = session_find(m->server, a->session);
	Shard__BlobIs body;
	struct err e;

	if (t != NULL && ask_answer(m, a, &body, &e) == SHARD_OK)
		session_reply(t, OP_BLOB, a->tag, m, &body.base);
	else if (t != NULL)
		session_refuse(t, a->tag, &e);
	ask_free(m->blobs, a);
}

static void ask_nodes(struct model *m, struct ask *a)
{
	struct server *s = m->server;
	Shard__Blob body = SHARD__BLOB__INIT;
	enum shard_status st;
	struct err e;

	body.rank = a->rank;
	for (uint16_t n = 0; n < s->nodes_nr; n++) {
		struct wire_head h = {.op = OP_BLOB, .model = m->id, .generation = m->generation, .step = m->step};
		struct relay *r = NULL;

		if (n == s->self)
			continue;
		if ((st = relay_new(&r, s, OP_BLOB, n, m->id, &e)) == SHARD_OK) {
			r->session_tag = a->id;
			h.attempt = r->tag;
			if ((st = peer_send(s, n, &h, &body.base, &e)) != SHARD_OK)
				relay_drop(s, r);
		}
		if (st == SHARD_OK)
			a->left++;
		else
			a->lacking = e;
	}
}

static enum shard_status request_check(const struct model *m, const struct wire_head *h, uint32_t rank, struct err *e)
{
	if (m == NULL || m->defining)
		return err_set(e, SHARD_NOT_FOUND, "no model %u here: define it or attach first", h->model);
	if (m->generation != h->generation)
		return err_set(e, SHARD_STALE, "a blob of generation %u of \"%s\", which is at %u", h->generation, m->name,
			       m->generation);
	if (rank >= m->blobs->ranks_nr)
		return err_set(e, SHARD_RANGE, "the blob of rank %u of \"%s\": max_world is %u", rank, m->name, m->blobs->ranks_nr);
	return SHARD_OK;
}

enum shard_status blobs_request(struct session *t, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e)
{
	const Shard__Blob *body = (const Shard__Blob *)msg;
	struct model *m = model_find(t->server, h->model);
	enum shard_status st = request_check(m, h, body->rank, e);
	struct ask *a;

	if (st != SHARD_OK)
		return st;
	if (m->blobs->asks_nr >= ASKS_MAX)
		return err_set(e, SHARD_BUSY, "%u blobs of \"%s\" are being looked for: try again", ASKS_MAX, m->name);
	if ((a = calloc(1, sizeof(*a))) == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a request");
	a->id = ++m->blobs->next_ask;
	a->session = t->id;
	a->tag = h->attempt;
	a->rank = body->rank;
	list_push(&m->blobs->asks, &a->link);
	m->blobs->asks_nr++;
	if (m->blobs->kept[a->rank].step == 0 || m->blobs->kept[a->rank].step < m->step)
		ask_nodes(m, a);
	if (a->left == 0)
		ask_done(m, a);
	return SHARD_OK;
}

static enum shard_status node_answer(struct model *m, uint16_t node, uint32_t tag, uint32_t rank, struct err *e)
{
	struct wire_head reply = {.op = OP_BLOB, .flags = WIRE_REPLY, .model = m->id, .generation = m->generation, .attempt = tag};
	Shard__BlobIs is;

	blob_is(m->blobs, rank, &is);
	return peer_send(m->server, node, &reply, &is.base, e);
}

enum shard_status blobs_node_request(struct peer *p, const struct wire_head *h, const Shard__Blob *body, struct err *e)
{
	struct model *m = model_find(p->server, h->model);
	struct parked *k;

	if (m == NULL || m->generation != h->generation || body->rank >= m->blobs->ranks_nr)
		return err_set(e, SHARD_STALE, "node %s has no generation %u of model %u",
			       server_node_name(p->server, p->server->self), h->generation, h->model);
	if (h->step <= m->step)
		return node_answer(m, p->node, h->attempt, body->rank, e);
	if (m->blobs->parked_nr >= ASKS_MAX)
		return err_set(e, SHARD_BUSY, "%u blobs are being looked for", ASKS_MAX);
	if ((k = malloc(sizeof(*k))) == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a request");
	*k = (struct parked){.node = p->node, .tag = h->attempt, .rank = body->rank, .step = h->step};
	list_push(&m->blobs->parked, &k->link);
	m->blobs->parked_nr++;
	return SHARD_OK;
}

void blobs_decided(struct model *m, uint64_t step, bool in_hand)
{
	struct blobs *b = m->blobs;

	for (uint32_t i = 0; in_hand && i < m->gather.local_nr; i++)
		if (b->pending[i].has)
			blobs_restore(m, m->gather.local[i].rank, step, pending_at(b, i), b->pending[i].bytes);
	blobs_drop(m);
	list_each(it, &b->parked) {
		struct parked *k = list_of(it, struct parked, link);

		if (k->step > step)
			continue;
		(void)node_answer(m, k->node, k->tag, k->rank, NULL); /* a link that fell asks again */
		parked_free(b, k);
	}
}

static struct ask *ask_find(const struct blobs *b, uint32_t id)
{
	list_each(it, &b->asks)
		if (list_of(it, struct ask, link)->id == id)
			return list_of(it, struct ask, link);
	return NULL;
}

static enum shard_status ask_take(struct ask *a, const Shard__BlobIs *is, struct err *e)
{
	uint8_t *copy;

	if (is->rank != a->rank || is->data.len > BLOB_BYTES_MAX)
		return err_set(e, SHARD_PROTOCOL, "a node answered with %zu bytes of rank %u", is->data.len, is->rank);
	if (is->step <= a->best_step)
		return SHARD_OK;
	if ((copy = malloc(is->data.len + 1)) == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a blob");
	if (is->data.len > 0)
		memcpy(copy, is->data.data, is->data.len);
	free(a->best);
	a->best = copy;
	a->best_step = is->step;
	a->best_bytes = (uint32_t)is->data.len;
	return SHARD_OK;
}

void blobs_answered(struct model *m, const struct relay *r, const struct wire_head *h, const void *body, const struct err *e)
{
	struct ask *a = ask_find(m->blobs, r->session_tag);
	const Shard__BlobIs *is;
	struct err why;

	if (a == NULL)
		return; /* its generation is over */
	if (e == NULL) {
		if (control_unpack((const ProtobufCMessage **)&is, &shard__blob_is__descriptor, body, h->body_bytes, &m->server->tx,
				   &why) != SHARD_OK ||
		    ask_take(a, is, &why) != SHARD_OK)
			a->lacking = why;
		arena_reset(&m->server->tx);
	} else {
		err_set(&a->lacking, SHARD_UNREACHABLE, "node %s does not answer: %.300s", server_node_name(m->server, r->node),
			e->text);
	}
	if (--a->left == 0)
		ask_done(m, a);
}
