/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of other nodes that this node may write, as they told it, and which chunks can go there.
 * dispatch.c brings REGION frames, and contrib.c and apply.c ask how a chunk can go. Happy path: a
 * peer tells one region for each kind of memory. The region holds every address that is ever
 * computed here, so that no number of the peer is checked again. A region that is too small, or of
 * chunks that do not exist, ends the link. The memory of a model that this node does not have yet
 * is told again when it has the model. A chunk goes by TCP as a whole if any of its source or
 * destination is not registered. */
#include "data/mr.h"

#include "base/check.h"
#include "data/deltas.h"
#include "link/peer.h"
#include "wire/frame.h"
#include "wire/ops.h"

#include <string.h>

/* The bytes of a CONTRIB, beside its absent tensors of at most 5 bytes each. */
#define CLOSING_BYTES 64

static struct mr *find(const struct server *s, uint32_t id)
{
	list_each(it, (struct list *)(uintptr_t)&s->mr)
		if (list_of(it, struct mr, link)->m->id == id)
			return list_of(it, struct mr, link);
	return NULL;
}

/* --- what a peer tells --- */

static enum shard_status bad(const struct mr *g, const Shard__Region *r, const char *what,
			     struct err *e)
{
	return err_set(e, SHARD_PROTOCOL,
		       "memory for \"%s\": kind %u, image %u, chunks %u from %u on, %lu bytes: %s",
		       g->m->name, r->kind, r->image, r->chunks, r->first, (unsigned long)r->bytes,
		       what);
}

static enum shard_status take_image(const struct mr *g, const Shard__Region *r, struct mr_peer *to,
				    struct err *e)
{
	const struct layout *l = g->m->layout;
	uint64_t end = (uint64_t)r->first + r->chunks, bytes;

	if (r->image > g->m->set.max_staleness || r->chunks == 0 || end > l->chunks_nr)
		return bad(g, r, "there are no such chunks", e);
	bytes = layout_image_bytes(l, r->first, r->chunks);
	if (r->bytes < bytes)
		return bad(g, r, "too few for them", e);
	if (to->images_nr == NR(to->image))
		return bad(g, r, "too many regions", e);
	to->image[to->images_nr++] =
		(struct mr_place){r->address, r->rkey, r->image, {r->first, r->chunks}};
	return SHARD_OK;
}

static enum shard_status take_codes(const struct mr *g, const Shard__Regions *body,
				    struct mr_peer *to, struct err *e)
{
	const struct codes *c = deltas_codes(g->m);

	for (size_t i = 0; i < body->n_codes; i++) {
		const Shard__Region *r = body->codes[i];

		if (c == NULL || r->chunks == 0 ||
		    (uint64_t)r->first + r->chunks > g->m->layout->chunks_nr)
			return bad(g, r, "there are no such codes", e);
		if (r->address == 0 || r->address + r->bytes < r->address)
			return bad(g, r, "no address", e);
		if (r->bytes < codes_span(c, r->first, r->chunks))
			return bad(g, r, "too few for their codes", e);
		if (to->codes_nr == NR(to->codes))
			return bad(g, r, "too many regions", e);
		to->codes[to->codes_nr++] =
			(struct mr_place){r->address, r->rkey, 0, {r->first, r->chunks}};
	}
	return SHARD_OK;
}

static enum shard_status take_direct(const struct mr *g, uint16_t node, const Shard__Region *r,
				     struct mr_peer *to, struct err *e)
{
	const struct model *m = g->m;
	uint32_t chunk = r->first, nr = 0;
	uint64_t elems = 0;

	if (r->placed != g->sum[node]) {
		to->elsewhere = true;
		return SHARD_OK;
	}
	if (r->chunks == 0 || chunk >= m->layout->chunks_nr || !mr_held(m, node, chunk))
		return bad(g, r, "there are no such chunks", e);
	for (; chunk < m->layout->chunks_nr && nr < r->chunks; chunk++) {
		if (!mr_held(m, node, chunk))
			continue;
		elems += layout_chunk_elems(m->layout, chunk);
		nr++;
	}
	if (nr < r->chunks)
		return bad(g, r, "more chunks than are held there", e);
	if (r->bytes < elems * m->grad_bytes)
		return bad(g, r, "too few for them", e);
	if (to->directs_nr == NR(to->direct_there))
		return bad(g, r, "too many regions", e);
	to->direct_there[to->directs_nr++] = (struct mr_place){
		.address = r->address, .rkey = r->rkey, .run = {r->first, chunk - r->first}};
	return SHARD_OK;
}

static enum shard_status take(const struct mr *g, uint16_t node, const Shard__Regions *body,
			      struct mr_peer *to, struct err *e)
{
	enum shard_status st = SHARD_OK;

	for (size_t i = 0; i < body->n_region && st == SHARD_OK; i++) {
		const Shard__Region *r = body->region[i];

		if (r->address == 0 || r->address + r->bytes < r->address)
			return bad(g, r, "no address", e);
		if (r->kind == 2) {
			st = take_image(g, r, to, e);
			continue;
		}
		if (r->kind == 3) {
			st = take_direct(g, node, r, to, e);
			continue;
		}
		if (r->kind != 1 || to->slots.address != 0 || (r->placed == 0 && !g->held[node]))
			return bad(g, r, "there is nothing of that kind", e);
		/* 0: it is of a release that moves no chunks. */
		if (r->placed != 0 && r->placed != g->sum[node]) {
			to->elsewhere = true;
			continue;
		}
		if (r->bytes < g->held[node] * g->m->grad_bytes)
			return bad(g, r, "too few for the chunks held there", e);
		to->slots = (struct mr_place){.address = r->address, .rkey = r->rkey};
	}
	return st == SHARD_OK ? take_codes(g, body, to, e) : st;
}

static void answer_release(struct peer *p, uint32_t model)
{
	struct wire_head h = {.op = OP_REGION, .model = model};
	Shard__Regions body = SHARD__REGIONS__INIT;

	body.released = true;
	peer_tell(p->server, p->node, &h, &body.base);
}

/* From now on nothing of the model is written there. What is on its way is waited for. */
static void release(struct mr *g, struct peer *p)
{
	uint32_t connections = p->server->conf->connections;
	struct mr_peer *rp = &g->peer[p->node];

	rp->known = false;
	for (uint32_t i = 0; i < connections; i++) {
		send_queue_drop(&g->m->attempt.out[p->node * connections + i]);
		send_queue_drop(&g->m->img.out[p->node * connections + i]);
	}
	grad_node_drop(g->m, p->node);
	rp->release_due = rp->posted > 0;
	if (!rp->release_due)
		answer_release(p, g->m->id);
}

enum shard_status mr_told(struct peer *p, const struct wire_head *h, const Shard__Regions *body,
			  struct err *e)
{
	struct mr *g = find(p->server, h->model);
	struct mr_peer *rp, fresh = {.images_nr = 0};
	enum shard_status st;
	bool first;

	if (rdma_link_queues(p) == NULL)
		return SHARD_OK;                   /* It is about queue pairs that are gone. */
	if (g == NULL || p->node >= g->nodes_nr) { /* Nothing of it is used. */
		if (body->release)
			answer_release(p, h->model);
		return SHARD_OK;
	}
	rp = &g->peer[p->node];
	if (body->released) {
		rp->releasing = false;
		server_wake(p->server, 1);
		return SHARD_OK;
	}
	if (body->release) {
		release(g, p);
		return SHARD_OK;
	}
	if ((st = take(g, p->node, body, &fresh, e)) != SHARD_OK || g->m->dropping)
		return st;
	first = !rp->known;
	rp->known = true;
	rp->slots = fresh.slots;
	rp->elsewhere = fresh.elsewhere;
	rp->images_nr = fresh.images_nr;
	memcpy(rp->image, fresh.image, sizeof(rp->image));
	rp->codes_nr = fresh.codes_nr;
	memcpy(rp->codes, fresh.codes, sizeof(rp->codes));
	rp->directs_nr = fresh.directs_nr;
	memcpy(rp->direct_there, fresh.direct_there, sizeof(rp->direct_there));
	if (first && rp->told)
		mr_tell(g, p->node); /* The peer may not have had the model when it was told. */
	return SHARD_OK;
}

bool mr_heard(const struct peer *p)
{
	list_each(it, &p->server->mr) {
		const struct mr *g = list_of(it, struct mr, link);

		if (p->node < g->nodes_nr && g->peer[p->node].known)
			return true;
	}
	return false;
}

/* --- the way of a chunk --- */

static void way(const struct peer *p, uint32_t chunk, struct send_route *out)
{
	out->queues = rdma_link_queues(p);
	out->qp = chunk % p->rdma.qps_nr;
}

static const struct rdma_region *source(const struct model *m, uint16_t node, const void *at,
					size_t bytes)
{
	const struct mr_peer *rp = &m->mr->peer[node];

	for (uint32_t kind = MR_SUMS; kind < MR_ARENA + m->set.local_world; kind++) {
		if (kind == MR_OWN)
			kind = MR_ARENA;
		if (rp->here[kind] != NULL && rdma_region_has(rp->here[kind], at, bytes))
			return rp->here[kind];
	}
	return NULL;
}

/* Where the chunk's slot there is: in memory of a device, if the peer told that, or of the host.
 * Codes take fewer bytes than the elements, so they have room where these have it. */
static void slot_there(const struct model *m, uint16_t node, uint32_t chunk, struct send_route *out)
{
	const struct mr_peer *rp = &m->mr->peer[node];
	uint64_t at = mr_held_at(m, node, chunk);
	const struct mr_place *place = &rp->slots;

	for (uint32_t i = 0; i < rp->directs_nr; i++) {
		const struct mr_place *d = &rp->direct_there[i];

		if (chunk < d->run.first || chunk - d->run.first >= d->run.chunks)
			continue;
		at -= mr_held_at(m, node, d->run.first);
		place = d;
		break;
	}
	out->remote = place->address + at * m->grad_bytes;
	out->rkey = place->rkey;
}

bool mr_contribution(const struct model *m, const struct peer *p, uint32_t chunk, const void *at,
		     uint64_t bytes, uint32_t absent, struct send_route *out)
{
	const struct mr_peer *rp = &m->mr->peer[p->node];

	CHECK(bytes <= (uint64_t)layout_chunk_elems(m->layout, chunk) * m->grad_bytes);
	if (p->node >= m->mr->nodes_nr || rdma_link_queues(p) == NULL || !rp->known ||
	    rp->slots.address == 0 || !mr_held(m, p->node, chunk))
		return false;
	if (CLOSING_BYTES + 5 * (size_t)absent > RDMA_BODY_MAX)
		return false; /* Its last frame would not fit. */
	way(p, chunk, out);
	out->from = source(m, p->node, at, bytes);
	slot_there(m, p->node, chunk, out);
	return out->from != NULL;
}

/* What that node shows or computes with may be overwritten only for a step that it voted for. It
 * may not be for a seal, or long after the step. Over TCP it judges by itself what it takes. */
static bool open_there(const struct model *m, const struct peer *p)
{
	return p->node < m->mr->nodes_nr && rdma_link_queues(p) != NULL &&
	       m->mr->peer[p->node].known && m->record.outcome == RECORD_APPLIED &&
	       m->record.id.step == m->content_step && core_voted(m->core, &m->record.id, p->node);
}

/* The place in that node's memory whose run has the chunk. NULL: there is none. */
static const struct mr_place *place_with(const struct mr_place *at, uint32_t nr, uint32_t image,
					 uint32_t chunk)
{
	for (uint32_t i = 0; i < nr; i++)
		if (at[i].image == image && mr_run_has(&at[i].run, chunk))
			return &at[i];
	return NULL;
}

bool mr_image(const struct model *m, const struct peer *p, uint32_t slot, uint32_t chunk,
	      struct send_route *out)
{
	const struct mr_peer *rp = &m->mr->peer[p->node];
	const struct layout *l = m->layout;
	const struct mr_place *at;

	if (!open_there(m, p) || slot != m->img.slot || rp->here[MR_OWN + slot] == NULL ||
	    (at = place_with(rp->image, rp->images_nr, slot, chunk)) == NULL)
		return false;
	way(p, chunk, out);
	out->from = rp->here[MR_OWN + slot];
	out->remote = at->address + layout_image_at(l, layout_chunk_start(l, chunk)) -
		      layout_image_at(l, layout_chunk_start(l, at->run.first));
	out->rkey = at->rkey;
	return true;
}

bool mr_codes(const struct model *m, const struct peer *p, uint32_t chunk, struct send_route *out)
{
	const struct mr_peer *rp = &m->mr->peer[p->node];
	const struct codes *c = deltas_codes(m);
	const struct mr_place *at;

	if (!open_there(m, p) || !m->img.coded ||
	    (at = place_with(rp->codes, rp->codes_nr, 0, chunk)) == NULL)
		return false;
	way(p, chunk, out);
	out->from = source(m, p->node, deltas_at(m, chunk), c->bytes[chunk]);
	out->remote = at->address + c->from[chunk] - c->from[at->run.first];
	out->rkey = at->rkey;
	return out->from != NULL;
}

void mr_posted(struct model *m, uint16_t node)
{
	m->mr->peer[node].posted++;
}

void mr_sent(struct model *m, uint16_t node)
{
	struct mr_peer *rp = &m->mr->peer[node];

	CHECK(rp->posted > 0);
	if (--rp->posted > 0 || !rp->release_due)
		return;
	rp->release_due = false;
	answer_release(m->server->peer[node], m->id);
}
