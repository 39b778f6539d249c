/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients on their way from arenas to the reduced gradient of a chunk. Called by session.c and peer_ops.c for frames, by model.c for
 * the core's BEGIN and CREDIT. Happy path: every local rank closes a chunk (gather_push) → the node's sum, on a worker if there are
 * several ranks (sums.c) → the contribution goes to the chunk's holder (outbox.c) or, held here, waits for those of the other
 * nodes (gather_contrib) → one pass sums them in node order and takes the norm → model_stage(). A frame of an older attempt is
 * read and dropped; one that breaks the rules closes its connection; nothing here waits or allocates after the model was made. */
#include "gather.h"

#include "base/check.h"
#include "base/clock.h"
#include "model.h"
#include "peer.h"
#include "session.h"
#include "sums.h"
#include "wire/ops.h"

#include <stdlib.h>
#include <string.h>

enum shard_status gather_init(struct model *m, struct err *e)
{
	struct gather *g = &m->gather;
	size_t chunks = m->layout->chunks_nr, segments = m->layout->segments_nr, nodes = m->server->nodes_nr,
	       local = m->set.local_world;

	g->chunk = calloc(chunks, sizeof(*g->chunk));
	g->absent_local = calloc(local * segments, 1);
	g->absent_node = calloc(nodes * segments, 1);
	g->zero = calloc(segments, 1);
	g->parts_in = calloc(nodes * chunks, sizeof(*g->parts_in));
	g->push_parts = calloc(local * chunks, sizeof(*g->push_parts));
	g->bad_rank_in = calloc(nodes * chunks, sizeof(*g->bad_rank_in));
	if (g->chunk == NULL || g->absent_local == NULL || g->absent_node == NULL || g->zero == NULL || g->parts_in == NULL ||
	    g->push_parts == NULL || g->bad_rank_in == NULL) {
		gather_free(m);
		return err_set(e, SHARD_SYSTEM, "no memory to keep track of %zu chunks of \"%s\"", chunks, m->name);
	}
	return SHARD_OK;
}

void gather_free(struct model *m)
{
	struct gather *g = &m->gather;

	free(g->chunk);
	free(g->absent_local);
	free(g->absent_node);
	free(g->zero);
	free(g->parts_in);
	free(g->push_parts);
	free(g->bad_rank_in);
	memset(g, 0, sizeof(*g));
}

uint8_t *gather_absent_local(const struct model *m, uint32_t i)
{
	return m->gather.absent_local + (size_t)i * m->layout->segments_nr;
}

uint8_t *gather_absent_node(const struct model *m, uint32_t place)
{
	return m->gather.absent_node + (size_t)place * m->layout->segments_nr;
}

static void find_places(struct model *m)
{
	struct gather *g = &m->gather;

	g->nodes_nr = g->local_nr = 0;
	memset(g->place, -1, sizeof(g->place));
	for (uint32_t r = 0; r < m->world.size; r++) { /* rank order, so nodes come in order of their lowest rank */
		uint16_t node = m->world.rank[r].node;

		if (g->place[node] < 0) {
			g->place[node] = (int8_t)g->nodes_nr;
			g->only_rank[g->nodes_nr] = (int32_t)r;
			g->node[g->nodes_nr++] = node;
		} else {
			g->only_rank[(int)g->place[node]] = -1;
		}
		if (node != m->server->self)
			continue;
		CHECK(g->local_nr < GATHER_LOCAL_MAX && g->local_nr < m->set.local_world);
		g->local[g->local_nr++] = (struct gather_rank){
			.session = session_trainer(m->server, m->world.rank[r].session), .rank = r, .slot = UINT32_MAX};
	}
}

void gather_begin(struct model *m)
{
	struct gather *g = &m->gather;
	size_t chunks = m->layout->chunks_nr, segments = m->layout->segments_nr, nodes = m->server->nodes_nr,
	       local = m->set.local_world;

	find_places(m);
	for (uint32_t i = 0; i < g->local_nr; i++) {
		struct session *t = g->local[i].session;

		if (t == NULL || t->model != m) {
			g->local[i].session = NULL; /* it went while BEGIN was on its way; the coordinator will hear */
			continue;
		}
		g->local[i].slot = t->slot;
		t->rank = (int32_t)g->local[i].rank;
		t->local_index = i;
	}
	g->pre = m->world.size > 1 ? (float)(1 / m->set.predivide) : 1;
	g->credit = 0;
	g->reduce_began_ns = g->reduce_ns = 0;
	m->contrib_in = (struct model_flow){0};
	memset(g->chunk, 0, chunks * sizeof(*g->chunk));
	memset(g->absent_local, 0, local * segments);
	memset(g->absent_node, 0, nodes * segments);
	memset(g->zero, 0, segments);
	memset(g->parts_in, 0, nodes * chunks * sizeof(*g->parts_in));
	memset(g->push_parts, 0, local * chunks * sizeof(*g->push_parts));
	memset(g->bad_rank_in, -1, nodes * chunks * sizeof(*g->bad_rank_in));
}

void gather_keep(struct model *m)
{
	for (uint32_t c = 0; c < m->layout->chunks_nr; c++) {
		struct meta_fact *f = &m->meta.fact[c];
		enum store_region region;

		if (m->owner[c] != m->server->self)
			continue;
		CHECK(store_where(m->store, m->gather.chunk[c].base, &region, &f->offset));
		f->region = region;
	}
	memcpy(m->meta.zero, m->gather.zero, m->layout->segments_nr);
	*m->meta.facts_id = m->id_now;
}

enum shard_status gather_again(struct model *m, struct err *e)
{
	struct gather *g = &m->gather;

	if (core_id_cmp(m->meta.facts_id, &m->id_now) != 0)
		return err_set(e, SHARD_MISMATCH, "its gradients are of step %lu attempt %u, not of step %lu attempt %u",
			       (unsigned long)m->meta.facts_id->step, m->meta.facts_id->attempt, (unsigned long)m->id_now.step,
			       m->id_now.attempt);
	gather_begin(m);
	memset(g->parts_in, 0xff, (size_t)m->server->nodes_nr * m->layout->chunks_nr * sizeof(*g->parts_in)); /* GATHER_CLOSED */
	for (uint32_t s = 0; s < m->layout->segments_nr; s++)
		g->zero[s] = m->meta.zero[s] != 0;
	for (uint32_t c = 0; c < m->layout->chunks_nr; c++) {
		struct meta_fact f = m->meta.fact[c];
		uint64_t bytes = (uint64_t)layout_chunk_elems(m->layout, c) * m->grad_bytes;

		if (m->owner[c] != m->server->self)
			continue;
		g->chunk[c].base = store_at(m->store, f.region, f.offset, bytes);
		if (g->chunk[c].base == NULL)
			return err_set(e, SHARD_MISMATCH, "the gradient of chunk %u is where there is none", c);
		g->chunk[c].reduced = true;
		g->chunk[c].arrived = UINT64_MAX;
	}
	return SHARD_OK;
}

void gather_session_gone(struct model *m, struct session *t)
{
	for (uint32_t i = 0; i < m->gather.local_nr; i++)
		if (m->gather.local[i].session == t)
			m->gather.local[i].session = NULL;
}

/* --- what is absent --- */

static bool chunk_part_absent(const struct model *m, uint32_t chunk, const uint8_t *absent, uint32_t part)
{
	const struct layout *l = m->layout;
	uint32_t per = WIRE_PART_BYTES / m->grad_bytes, from = part * per, to = from + per;

	for (uint32_t s = l->chunk_segment[chunk]; s < l->chunk_segment[chunk + 1]; s++)
		if (!absent[s] && l->segment[s].start < to && l->segment[s].start + l->segment[s].n > from)
			return false;
	return true;
}

static uint32_t chunk_parts_present(const struct model *m, uint32_t chunk, const uint8_t *absent)
{
	uint32_t parts = model_parts(m, chunk, m->grad_bytes), nr = 0;

	for (uint32_t p = 0; p < parts; p++)
		nr += !chunk_part_absent(m, chunk, absent, p);
	return nr;
}

static enum shard_status mark_absent(const struct model *m, uint32_t chunk, const Shard__Push *body, uint8_t *absent, struct err *e)
{
	const struct layout *l = m->layout;

	for (size_t i = 0; i < body->n_absent; i++) {
		bool found = false;

		for (uint32_t s = l->chunk_segment[chunk]; s < l->chunk_segment[chunk + 1]; s++)
			if (l->segment_tensor[s] == body->absent[i])
				absent[s] = found = true;
		if (!found)
			return err_set(e, SHARD_PROTOCOL, "tensor %u is absent from chunk %u, where it has no element",
				       body->absent[i], chunk);
	}
	return SHARD_OK;
}

bool gather_part_absent(const struct model *m, uint32_t chunk, uint32_t part)
{
	return chunk_part_absent(m, chunk, gather_absent_node(m, (uint32_t)m->gather.place[m->server->self]), part);
}

uint32_t gather_absent(const struct model *m, uint32_t chunk, uint32_t *tensors, uint32_t max)
{
	const struct layout *l = m->layout;
	const uint8_t *absent = gather_absent_node(m, (uint32_t)m->gather.place[m->server->self]);
	uint32_t nr = 0;

	for (uint32_t s = l->chunk_segment[chunk]; s < l->chunk_segment[chunk + 1]; s++)
		if (absent[s] && nr++ < max)
			tensors[nr - 1] = l->segment_tensor[s];
	return nr;
}

/* --- contributions --- */

static void maybe_reduce(struct model *m, uint32_t chunk)
{
	struct gather_chunk *c = &m->gather.chunk[chunk];
	uint64_t all = m->gather.nodes_nr == 64 ? UINT64_MAX : (1ull << m->gather.nodes_nr) - 1;

	if (c->arrived == all && !c->reduced)
		sums_submit(m, SUMS_NODES, chunk);
}

static void send_contribution(struct model *m, uint32_t chunk)
{
	uint16_t node = m->owner[chunk];
	uint32_t connections = m->server->conf->connections;
	struct outbox *o = &m->contrib_out[node * connections + chunk % connections];

	if (o->conn == NULL || m->gather.chunk[chunk].sent)
		return; /* repeated credit; or the link is down, then the attempt ends */
	m->gather.chunk[chunk].sent = true;
	outbox_push(o, chunk);
	outbox_pump(o);
}

void gather_summed(struct model *m, uint32_t chunk)
{
	struct gather_chunk *c = &m->gather.chunk[chunk];
	uint16_t self = m->server->self, owner = m->owner[chunk];

	c->summed = true;
	if (owner != self) {
		if (m->gather.credit >> owner & 1)
			send_contribution(m, chunk);
		return;
	}
	c->arrived |= 1ull << m->gather.place[self];
	maybe_reduce(m, chunk);
}

void gather_credit(struct model *m, uint16_t node)
{
	m->gather.credit |= 1ull << node;
	for (uint32_t c = m->layout->chunks_nr; c-- > 0;) /* as they are pushed: last layer first */
		if (m->owner[c] == node && m->gather.chunk[c].summed)
			send_contribution(m, c);
}

/* Every local rank has closed the chunk. */
static void local_complete(struct model *m, uint32_t chunk)
{
	struct gather *g = &m->gather;
	uint8_t *none = gather_absent_node(m, (uint32_t)g->place[m->server->self]);

	for (uint32_t s = m->layout->chunk_segment[chunk]; s < m->layout->chunk_segment[chunk + 1]; s++) {
		uint32_t absent = 0;

		for (uint32_t i = 0; i < g->local_nr; i++)
			absent += gather_absent_local(m, i)[s];
		none[s] = absent == g->local_nr;
	}
	if (g->local_nr > 1 || g->pre != 1 || sums_final(m, SUMS_LOCAL, chunk))
		sums_submit(m, SUMS_LOCAL, chunk);
	else
		gather_summed(m, chunk);
}

/* --- frames from trainers --- */

/* SHARD_OK: of the attempt in hand; SHARD_STALE: of an older one, drop it; else refuse. */
static enum shard_status attempt_of(const struct model *m, const struct wire_head *h, struct err *e)
{
	struct core_id id = {h->term, h->step, h->seq, h->generation, h->attempt};
	int order = core_id_cmp(&id, &m->id_now);

	if (order < 0 || (order == 0 && !m->attempt_on))
		return SHARD_STALE;
	if (order > 0)
		return err_set(e, SHARD_PROTOCOL, "step %lu attempt %u of \"%s\", which has not begun: this is step %lu attempt %u",
			       (unsigned long)h->step, h->attempt, m->name, (unsigned long)m->id_now.step, m->id_now.attempt);
	if (h->chunk >= m->layout->chunks_nr)
		return err_set(e, SHARD_RANGE, "chunk %u of \"%s\", which has %u", h->chunk, m->name, m->layout->chunks_nr);
	return SHARD_OK;
}

static enum shard_status session_attempt(struct session *t, const struct wire_head *h, struct err *e)
{
	struct model *m = t->model;
	enum shard_status st;

	if (m == NULL || m->id != h->model)
		return err_set(e, SHARD_BAD_STATE, "a push to model %u, which this trainer has not joined", h->model);
	if ((st = attempt_of(m, h, e)) != SHARD_OK)
		return st;
	if (t->rank < 0 || m->gather.local[t->local_index].session != t)
		return SHARD_STALE;
	return SHARD_OK;
}

static enum shard_status check_part(const struct model *m, const struct wire_head *h, struct err *e)
{
	uint32_t part = WIRE_PART(h->flags), parts = model_parts(m, h->chunk, m->grad_bytes);

	if (part >= parts || h->body_bytes != model_part_bytes(m, h->chunk, m->grad_bytes, part))
		return err_set(e, SHARD_RANGE, "part %u (%u bytes) of chunk %u: it has %u parts of at most %u bytes", part,
			       h->body_bytes, h->chunk, parts, WIRE_PART_BYTES);
	return SHARD_OK;
}

enum shard_status gather_push_head(struct session *t, const struct wire_head *h, void **to, struct err *e)
{
	enum shard_status st = session_attempt(t, h, e);
	struct model *m = t->model;

	*to = STREAM_DISCARD;
	if (st != SHARD_OK)
		return st == SHARD_STALE ? SHARD_OK : st;
	if (t->local)
		return err_set(e, SHARD_PROTOCOL, "gradient bytes over a unix socket: they belong in the arena");
	if ((st = check_part(m, h, e)) != SHARD_OK)
		return st;
	if (m->gather.push_parts[t->local_index * m->layout->chunks_nr + h->chunk] == GATHER_CLOSED)
		return err_set(e, SHARD_DUPLICATE, "chunk %u of step %lu was pushed already", h->chunk, (unsigned long)h->step);
	*to = (uint8_t *)store_arena(m->store, t->slot, h->step, h->chunk) + (size_t)WIRE_PART(h->flags) * WIRE_PART_BYTES;
	return SHARD_OK;
}

enum shard_status gather_push_data(struct session *t, const struct wire_head *h, struct err *e)
{
	if (session_attempt(t, h, e) == SHARD_OK) /* it may have ended while the body came in */
		t->model->gather.push_parts[t->local_index * t->model->layout->chunks_nr + h->chunk]++;
	return SHARD_OK;
}

enum shard_status gather_push(struct session *t, const struct wire_head *h, const Shard__Push *body, struct err *e)
{
	enum shard_status st = session_attempt(t, h, e);
	struct model *m = t->model;
	struct gather_chunk *c;
	uint16_t *parts;

	if (st != SHARD_OK)
		return st == SHARD_STALE ? SHARD_OK : st;
	c = &m->gather.chunk[h->chunk];
	parts = &m->gather.push_parts[t->local_index * m->layout->chunks_nr + h->chunk];
	if (c->pushed >> t->local_index & 1)
		return err_set(e, SHARD_DUPLICATE, "chunk %u of step %lu was pushed already", h->chunk, (unsigned long)h->step);
	if ((st = mark_absent(m, h->chunk, body, gather_absent_local(m, t->local_index), e)) != SHARD_OK)
		return st;
	if (!t->local && *parts != chunk_parts_present(m, h->chunk, gather_absent_local(m, t->local_index)))
		return err_set(e, SHARD_MISSING, "chunk %u closed after %u parts of %u", h->chunk, *parts,
			       chunk_parts_present(m, h->chunk, gather_absent_local(m, t->local_index)));
	*parts = GATHER_CLOSED;
	c->pushed |= 1ull << t->local_index;
	m->gather.local[t->local_index].chunks_pushed++;
	m->gather.local[t->local_index].pushed_ns = clock_ns();
	if ((uint32_t)__builtin_popcountll(c->pushed) == m->gather.local_nr)
		local_complete(m, h->chunk);
	return SHARD_OK;
}

/* --- frames from nodes --- */

static enum shard_status contrib_attempt(const struct model *m, const struct peer *p, const struct wire_head *h, struct err *e)
{
	enum shard_status st = attempt_of(m, h, e);

	if (st != SHARD_OK)
		return st;
	if (m->owner[h->chunk] != m->server->self || m->gather.place[p->node] < 0)
		return err_set(e, SHARD_PROTOCOL,
			       "a contribution to chunk %u, which node %s holds, from a node with%s ranks in this world", h->chunk,
			       server_node_name(m->server, m->owner[h->chunk]), m->gather.place[p->node] < 0 ? "out" : "");
	if (m->gather.parts_in[(uint32_t)m->gather.place[p->node] * m->layout->chunks_nr + h->chunk] == GATHER_CLOSED)
		return SHARD_STALE; /* repeated */
	return SHARD_OK;
}

enum shard_status gather_contrib_head(struct model *m, struct peer *p, const struct wire_head *h, void **to, struct err *e)
{
	enum shard_status st = contrib_attempt(m, p, h, e);

	*to = STREAM_DISCARD;
	if (st != SHARD_OK)
		return st == SHARD_STALE ? SHARD_OK : st;
	if ((st = check_part(m, h, e)) != SHARD_OK)
		return st;
	*to = (uint8_t *)store_slot(m->store, h->chunk, p->node) + (size_t)WIRE_PART(h->flags) * WIRE_PART_BYTES;
	model_flow_add(&m->contrib_in, 0);
	return SHARD_OK;
}

enum shard_status gather_contrib_data(struct model *m, struct peer *p, const struct wire_head *h, struct err *e)
{
	if (contrib_attempt(m, p, h, e) != SHARD_OK)
		return SHARD_OK;
	m->gather.parts_in[(uint32_t)m->gather.place[p->node] * m->layout->chunks_nr + h->chunk]++;
	model_flow_add(&m->contrib_in, h->body_bytes);
	return SHARD_OK;
}

enum shard_status gather_contrib(struct model *m, struct peer *p, const struct wire_head *h, const Shard__Push *body, struct err *e)
{
	enum shard_status st = contrib_attempt(m, p, h, e);
	uint32_t place, present;
	uint16_t *parts;

	if (st != SHARD_OK)
		return st == SHARD_STALE ? SHARD_OK : st;
	place = (uint32_t)m->gather.place[p->node];
	parts = &m->gather.parts_in[place * m->layout->chunks_nr + h->chunk];
	if ((st = mark_absent(m, h->chunk, body, gather_absent_node(m, place), e)) != SHARD_OK)
		return st;
	present = chunk_parts_present(m, h->chunk, gather_absent_node(m, place));
	if (*parts != present)
		return err_set(e, SHARD_PROTOCOL, "contribution to chunk %u closed after %u parts of %u", h->chunk, *parts,
			       present);
	*parts = GATHER_CLOSED;
	if (body->bad_rank != 0 && body->bad_rank <= m->world.size)
		m->gather.bad_rank_in[(size_t)place * m->layout->chunks_nr + h->chunk] = (int32_t)body->bad_rank - 1;
	m->gather.chunk[h->chunk].arrived |= 1ull << place;
	maybe_reduce(m, h->chunk);
	return SHARD_OK;
}
