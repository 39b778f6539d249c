/* SPDX-License-Identifier: Apache-2.0 */
/* Requests for blobs. dispatch.c brings OP_BLOB of trainers and of other nodes, and data/blobs.h
 * keeps the blobs themselves. A trainer is answered at once if the blob here is of the newest step.
 * Otherwise every other node is asked. A node answers when it has decided the step of the node that
 * asks, and the blob of the greatest step goes to the trainer.
 *
 * Of a model with several copies any copy that counts is the answer, and one is enough. So it comes
 * from here if this node has one, or else from the first of the nodes that do. If that node has
 * voted for a step that brings a newer blob of the rank, the answer waits for the verdict, because
 * the step may be committed already.
 *
 * It fails if no node has a blob (SHARD_NOT_FOUND), if a node that could have a newer one does not
 * answer (SHARD_UNREACHABLE or SHARD_BUSY), or if the generation ends meanwhile (SHARD_STALE). */
#include "control/blob.h"

#include "base/check.h"
#include "data/blobs.h"
#include "link/call.h"
#include "link/session.h"
#include "control/control.h"
#include "model/model.h"
#include "model/watch.h"
#include "link/peer.h"
#include "wire/control.h"
#include "wire/ops.h"

#include <stdlib.h>
#include <string.h>

#define ASKS_MAX 256u /* Open requests of one model: one per rank of the largest world. */

struct ask { /* The request of a trainer, while other nodes are asked. */
	struct list link;
	struct caller who;
	struct model *m;
	struct round looked; /* The question to the other nodes. */
	uint64_t best_step;
	uint32_t rank, best_bytes;
	uint8_t *best;      /* The newest blob that another node sent. */
	bool settled;       /* Several copies: a node answered whose copy counts. */
	struct err lacking; /* Why a node did not answer. SHARD_OK: all nodes did. */
};

struct waiter { /* The request of a node that knows of a later step than this node, or of anybody
		   for a blob that may be about to be committed here. */
	struct list link;
	struct caller who;
	uint32_t rank;
	uint64_t step;
};

static void ask_free(struct model_blobs *b, struct ask *a)
{
	CHECK(b->asks_nr > 0);
	round_end(&a->looked, a->m->server);
	list_remove(&a->link);
	b->asks_nr--;
	free(a->best);
	free(a);
}

static void waiter_free(struct model_blobs *b, struct waiter *p)
{
	CHECK(b->waiters_nr > 0);
	list_remove(&p->link);
	b->waiters_nr--;
	free(p);
}

static void fail_asks(struct model *m, const struct err *e)
{
	struct model_blobs *b = &m->control->blob;

	CHECK(e->status != SHARD_OK);
	list_each(it, &b->asks) {
		struct ask *a = list_of(it, struct ask, link);
		caller_refuse(m->server, &a->who, e);
		ask_free(b, a);
	}
	list_each(it, &b->waiters) {
		struct waiter *p = list_of(it, struct waiter, link);

		caller_refuse(m->server, &p->who, e);
		waiter_free(b, p);
	}
}

static void blob_is(const struct model *m, uint32_t rank, Shard__BlobIs *out)
{
	struct part_blob kept = blobs_kept(m, rank);

	*out = (Shard__BlobIs)SHARD__BLOB_IS__INIT;
	out->rank = rank;
	out->step = kept.step;
	out->data.len = kept.bytes;
	out->data.data = (uint8_t *)(uintptr_t)kept.data; /* Packing only reads the data. */
}

/* Several copies. Does the copy of this node count? Before it has a view it does not know that. */
static bool own_counts(const struct model *m, uint32_t rank)
{
	return m->sealed &&
	       place_holds(&m->place, place_blob_chunk(&m->place, rank), m->server->self);
}

/* Several copies. May this node answer a trainer with its copy? After a warm start it may have been
 * voted out meanwhile, unless the others cannot go on without it. */
static bool own_is_sure(const struct model *m, uint32_t rank)
{
	uint64_t copies = place_copies(&m->place, place_blob_chunk(&m->place, rank));
	struct core_state core;

	if (!own_counts(m, rank))
		return false;
	core_state(m->core, &core);
	return !m->memory.doubted || copies == 1ull << m->server->self ||
	       (core.coordinator && !core.recovering);
}

/* Several copies. Has this node voted for a step whose verdict would change the blob? It may be
 * committed already. Who votes has all blobs of the step that it keeps. */
static bool undecided(const struct model *m, uint32_t rank)
{
	struct core_state core;

	if (!blobs_pends(m, rank))
		return false;
	core_state(m->core, &core);
	return core.part == CORE_PREPARED;
}

/* step: one that the asker knows to be decided. */
static bool must_wait(const struct model *m, uint32_t rank, uint64_t step)
{
	return step > m->step || (blobs_copied(m) && undecided(m, rank));
}

/* The newest blob, of this node or of the answers, or the reason why there is no answer. */
static enum shard_status ask_answer(const struct model *m, const struct ask *a, Shard__BlobIs *out,
				    struct err *e)
{
	blob_is(m, a->rank, out);
	if (blobs_copied(m) && !own_counts(m, a->rank)) {
		out->step = 0;
		out->data.len = 0;
	}
	if (a->best_step > out->step) {
		out->step = a->best_step;
		out->data.len = a->best_bytes;
		out->data.data = a->best;
	}
	/* A blob of the decided step is the newest that can be. */
	if (a->lacking.status != SHARD_OK && !a->settled &&
	    (blobs_copied(m) || out->step < m->step))
		return err_set(e, a->lacking.status == SHARD_BUSY ? SHARD_BUSY : SHARD_UNREACHABLE,
			       "the blob of rank %u of \"%s\": %.300s; it may have a newer one "
			       "than step %lu",
			       a->rank, m->name, a->lacking.text, (unsigned long)out->step);
	if (out->step == 0)
		return err_set(e, SHARD_NOT_FOUND,
			       "rank %u of \"%s\" has committed no blob: shard_set_blob() in a "
			       "step makes one",
			       a->rank, m->name);
	return SHARD_OK;
}

static void ask_done(struct model *m, struct ask *a)
{
	struct wire_head h = {
		.op = OP_BLOB, .model = m->id, .generation = m->generation, .step = m->step};
	Shard__BlobIs body;
	struct err e;

	CHECK(a->looked.out == 0 || a->settled);
	if (ask_answer(m, a, &body, &e) == SHARD_OK)
		caller_answer(m->server, &a->who, &h, &body.base);
	else
		caller_refuse(m->server, &a->who, &e);
	ask_free(&m->control->blob, a);
}

static enum shard_status ask_take(struct ask *a, const struct wire_head *h, const Shard__BlobIs *is,
				  struct err *e)
{
	uint8_t *copy;

	if (is->rank != a->rank || is->data.len > BLOB_BYTES_MAX)
		return err_set(e, SHARD_PROTOCOL, "a node answered with %zu bytes of rank %u",
			       is->data.len, is->rank);
	/* A node whose model has no weights yet says step 0, and knows nothing. */
	a->settled |= blobs_copied(a->m) && (h->step > 0 || is->step > 0);
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

static void answered(struct round *r, struct server *s, const struct call *c,
		     const struct wire_head *h, const void *body, const struct err *e)
{
	struct ask *a = list_of(r, struct ask, looked);
	const ProtobufCMessage *msg;
	struct err why;

	if (e == NULL) {
		if (control_unpack(&msg, &shard__blob_is__descriptor, body, h->body_bytes,
				   &s->scratch.tx, &why) != SHARD_OK ||
		    ask_take(a, h, (const Shard__BlobIs *)msg, &why) != SHARD_OK)
			a->lacking = why;
		arena_reset(&s->scratch.tx);
	} else {
		err_set(&a->lacking, SHARD_UNREACHABLE, "node %s does not answer: %.300s",
			members_name(s, c->node), e->text);
	}
	if (a->looked.out == 0 || a->settled)
		ask_done(a->m, a);
}

static const struct round_ops looked = {.answered = answered};

/* A bit for each node that could have the newest blob. */
static uint64_t who_could(const struct model *m, uint32_t rank)
{
	uint64_t all = UINT64_MAX >> (64 - m->server->nodes_nr);

	if (blobs_copied(m) && m->sealed)
		all &= place_copies(&m->place, place_blob_chunk(&m->place, rank));
	return all & ~(1ull << m->server->self);
}

static void ask_nodes(struct model *m, struct session *t, struct ask *a)
{
	struct server *s = m->server;
	uint64_t could = who_could(m, a->rank);
	Shard__Blob body = SHARD__BLOB__INIT;
	enum shard_status st;
	struct err e;

	CHECK(a->looked.out == 0 && a->rank < m->set.max_world);
	a->looked.ops = &looked;
	body.rank = a->rank;
	for (uint16_t n = 0; n < s->nodes_nr; n++) {
		struct wire_head h = {.op = OP_BLOB,
				      .model = m->id,
				      .generation = m->generation,
				      .step = m->step};

		if (!(could >> n & 1))
			continue;
		st = round_pass(&a->looked, t, n, &h, &body.base, &e);
		if (st != SHARD_OK)
			a->lacking = e;
	}
	if (blobs_copied(m) && could == 0)
		err_set(&a->lacking, SHARD_UNREACHABLE, "no node has a copy of it that counts");
}

static enum shard_status request_check(const struct model *m, const struct wire_head *h,
				       uint32_t rank, struct err *e)
{
	if (m == NULL || m->defining)
		return err_set(e, SHARD_NOT_FOUND, "no model %u here: define it or attach first",
			       h->model);
	if (m->generation != h->generation)
		return err_set(e, SHARD_STALE, "a blob of generation %u of \"%s\", which is at %u",
			       h->generation, m->name, m->generation);
	if (rank >= m->set.max_world)
		return err_set(e, SHARD_RANGE, "the blob of rank %u of \"%s\": max_world is %u",
			       rank, m->name, m->set.max_world);
	return SHARD_OK;
}

static enum shard_status wait_for(struct model *m, const struct caller *who, uint32_t rank,
				  uint64_t step, struct err *e)
{
	struct waiter *k;

	if (m->control->blob.waiters_nr >= ASKS_MAX)
		return err_set(e, SHARD_BUSY, "%u blobs of \"%s\" are being looked for: try again",
			       ASKS_MAX, m->name);
	if ((k = malloc(sizeof(*k))) == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a request");
	*k = (struct waiter){.who = *who, .rank = rank, .step = step};
	list_push(&m->control->blob.waiters, &k->link);
	m->control->blob.waiters_nr++;
	return SHARD_OK;
}

static bool newest_here(const struct model *m, uint32_t rank)
{
	uint64_t step = blobs_kept(m, rank).step;

	return blobs_copied(m) ? own_is_sure(m, rank) : step > 0 && step >= m->step;
}

static enum shard_status look(struct model *m, struct session *t, const struct caller *who,
			      uint32_t rank, struct err *e)
{
	struct ask *a;

	if (m->control->blob.asks_nr >= ASKS_MAX)
		return err_set(e, SHARD_BUSY, "%u blobs of \"%s\" are being looked for: try again",
			       ASKS_MAX, m->name);
	if ((a = calloc(1, sizeof(*a))) == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a request");
	a->m = m;
	a->who = *who;
	a->rank = rank;
	list_push(&m->control->blob.asks, &a->link);
	m->control->blob.asks_nr++;
	if (!newest_here(m, rank))
		ask_nodes(m, t, a);
	if (a->looked.out == 0)
		ask_done(m, a);
	return SHARD_OK;
}

enum shard_status blob_request(struct session *t, const struct wire_head *h,
			       const ProtobufCMessage *msg, struct err *e)
{
	const Shard__Blob *body = (const Shard__Blob *)msg;
	struct model *m = model_find(t->server, h->model);
	struct caller who = caller_session(t, h->attempt);
	enum shard_status st = request_check(m, h, body->rank, e);

	if (st != SHARD_OK)
		return st;
	if (must_wait(m, body->rank, 0))
		return wait_for(m, &who, body->rank, 0, e);
	return look(m, t, &who, body->rank, e);
}

static void node_answer(struct model *m, const struct caller *who, uint32_t rank)
{
	struct wire_head reply = {.op = OP_BLOB,
				  .model = m->id,
				  .generation = m->generation,
				  .step = m->sealed ? m->step : 0};
	Shard__BlobIs is;
	struct err e;

	CHECK(rank < m->set.max_world);
	if (blobs_copied(m) && m->sealed && !own_counts(m, rank)) {
		err_set(&e, SHARD_STALE, "the copy of node %s does not count any more",
			members_name(m->server, m->server->self));
		caller_refuse(m->server, who, &e);
		return;
	}
	blob_is(m, rank, &is);
	if (!caller_waits(m->server, who))
		return;
	if (!stream_roomy(conn_stream(peer_control(m->server->peer[who->node]))))
		caller_refuse(m->server, who,
			      &(struct err){.status = SHARD_BUSY,
					    .text = "too much waits for this link: ask again"});
	else
		caller_answer(m->server, who, &reply, &is.base);
}

enum shard_status blob_node_request(struct peer *p, const struct wire_head *h,
				    const Shard__Blob *body, struct err *e)
{
	struct model *m = model_find(p->server, h->model);
	struct caller who = caller_node(p, h->attempt);

	if (m == NULL || m->generation != h->generation || body->rank >= m->set.max_world)
		return err_set(e, SHARD_STALE, "node %s has no generation %u of model %u",
			       members_name(p->server, p->server->self), h->generation, h->model);
	if (must_wait(m, body->rank, h->step))
		return wait_for(m, &who, body->rank, h->step, e);
	node_answer(m, &who, body->rank);
	return SHARD_OK;
}

static void lost(struct model *m, bool back, const struct err *e)
{
	(void)back;
	(void)e;
	fail_asks(m,
		  &(struct err){
			  .status = SHARD_STALE,
			  .text = "the model's generation is over, its blobs with it: ask again"});
}

static void going(struct model *m)
{
	if (m->control == NULL)
		return;
	fail_asks(m, &(struct err){.status = SHARD_NOT_FOUND, .text = "the model is gone"});
}

static void go_on(struct model *m, const struct waiter *k)
{
	struct session *t;
	struct err e;

	if (k->who.session == 0) {
		node_answer(m, &k->who, k->rank);
		return;
	}
	t = caller_here(m->server, &k->who);
	if (t != NULL && look(m, t, &k->who, k->rank, &e) != SHARD_OK)
		caller_refuse(m->server, &k->who, &e);
}

/* step: the last one that is decided. */
static void wake(struct model *m, uint64_t step)
{
	list_each(it, &m->control->blob.waiters) {
		struct waiter *k = list_of(it, struct waiter, link), go = *k;

		if (k->step > step)
			continue;
		waiter_free(&m->control->blob, k);
		go_on(m, &go);
	}
}

/* The blobs of the decided step are committed here already. */
static void decided(struct model *m, const struct record *r)
{
	wake(m, r->id.step);
}

static void ended(struct model *m)
{
	wake(m, m->step);
}

const struct model_watch blob_watch = {
	.lost = lost,
	.going = going,
	.decided = decided,
	.ended = ended,
};
