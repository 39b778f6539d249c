/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients on their way from arenas to the reduced gradient of a chunk. model/join.c and
 * dispatch.c call it for frames, and model.c for BEGIN and CREDIT of the core. Happy path: every
 * local rank closes a chunk (contrib_push). The node sums it, on a worker if there are several
 * ranks (reduce.c). The contribution goes to the holder of the chunk (send.c) or, if it is held
 * here, waits for those of the other nodes (contrib_node). One pass sums them in node order and
 * takes the norm, and apply_stage() follows. A frame of an older attempt is read and dropped. A
 * frame that breaks the rules closes its connection. Nothing here waits or allocates after the
 * model was made. */
#include "data/contrib.h"

#include "base/check.h"
#include "base/clock.h"
#include "data/data.h"
#include "data/device_grads.h"
#include "data/events.h"
#include "data/grad.h"
#include "data/trainer.h"
#include "data/model.h"
#include "link/peer.h"
#include "data/mr.h"
#include "link/session.h"
#include "data/reduce.h"
#include "data/shares.h"
#include "store/budget.h"
#include "store/share.h"
#include "wire/ops.h"

#include <stdlib.h>
#include <string.h>

/* What contrib_init() allocates. The budget has counted it. */
static uint64_t tables_bytes(const struct model *m)
{
	const struct contrib *g = &m->contrib;
	uint64_t nodes = CORE_NODES_MAX, local = m->set.local_world,
		 chunk = sizeof(*g->chunk) + nodes * sizeof(*g->bad_rank_in) + sizeof(*g->due.sum),
		 segment = nodes + sizeof(*g->zero) +
			   local * (sizeof(*g->absent_local) + sizeof(*g->share));

	return m->layout->chunks_nr * chunk + m->layout->segments_nr * segment +
	       2 * g->parts_in.bytes + 2 * g->push_parts.bytes;
}

enum shard_status contrib_init(struct model *m, struct err *e)
{
	struct contrib *g = &m->contrib;
	size_t chunks = m->layout->chunks_nr, segments = m->layout->segments_nr,
	       nodes = CORE_NODES_MAX, local = m->set.local_world;
	uint32_t parts = data_parts_max(m);
	bool made = parts_init(&g->parts_in, nodes * chunks, parts);

	CHECK(m->contrib.chunk == NULL && m->set.local_world <= CONTRIB_LOCAL_MAX);
	made = made && parts_init(&g->push_parts, local * chunks, parts);
	g->chunk = calloc(chunks, sizeof(*g->chunk));
	g->absent_local = calloc(local * segments, 1);
	g->share = calloc(local * segments, sizeof(*g->share));
	g->absent_node = calloc(nodes * segments, 1);
	g->zero = calloc(segments, 1);
	g->bad_rank_in = calloc(nodes * chunks, sizeof(*g->bad_rank_in));
	g->due.sum = calloc(chunks, sizeof(*g->due.sum));
	made = made && g->chunk != NULL && g->absent_local != NULL && g->absent_node != NULL;
	if (!made || g->share == NULL || g->zero == NULL || g->bad_rank_in == NULL ||
	    g->due.sum == NULL) {
		contrib_free(m);
		return err_set(e, SHARD_SYSTEM, "no memory to keep track of %zu chunks of \"%s\"",
			       chunks, m->name);
	}
	CHECK(tables_bytes(m) <= budget_contribs(m->layout, m->set.local_world, m->grad));
	return codes_init(&m->codes, m->layout, &m->set.grad_codec, m->grad, e);
}

void contrib_free(struct model *m)
{
	struct contrib *g = &m->contrib;

	free(g->chunk);
	free(g->absent_local);
	free(g->share);
	free(g->absent_node);
	free(g->zero);
	parts_free(&g->parts_in);
	parts_free(&g->push_parts);
	free(g->bad_rank_in);
	free(g->due.sum);
	codes_free(&m->codes);
	memset(g, 0, sizeof(*g));
}

uint8_t *contrib_absent_local(const struct model *m, uint32_t i)
{
	return m->contrib.absent_local + (size_t)i * m->layout->segments_nr;
}

uint8_t *contrib_absent_node(const struct model *m, uint32_t place)
{
	return m->contrib.absent_node + (size_t)place * m->layout->segments_nr;
}

static void find_places(struct model *m)
{
	struct contrib *g = &m->contrib;

	g->nodes_nr = g->local_nr = 0;
	memset(g->place, -1, sizeof(g->place));
	for (uint32_t r = 0; r < m->attempt.world.size; r++) {
		/* Ranks are in order, so nodes come in the order of their lowest rank. */
		uint16_t node = m->attempt.world.rank[r].node;

		if (g->place[node] < 0) {
			g->place[node] = (int8_t)g->nodes_nr;
			g->only_rank[g->nodes_nr] = (int32_t)r;
			g->node[g->nodes_nr++] = node;
		} else {
			g->only_rank[(int)g->place[node]] = -1;
		}
		if (node != m->server->self)
			continue;
		CHECK(g->local_nr < CONTRIB_LOCAL_MAX && g->local_nr < m->set.local_world);
		g->local[g->local_nr++] = (struct contrib_rank){
			.trainer = trainer_find(m->server, m->attempt.world.rank[r].session),
			.rank = r,
			.slot = UINT32_MAX};
	}
}

void contrib_begin(struct model *m)
{
	struct contrib *g = &m->contrib;
	size_t chunks = m->layout->chunks_nr, segments = m->layout->segments_nr, nodes,
	       local = m->set.local_world;

	CHECK(m->attempt.world.size > 0);
	find_places(m);
	nodes = g->nodes_nr; /* Of the others nothing is used. */
	for (uint32_t i = 0; i < g->local_nr; i++) {
		struct trainer *t = g->local[i].trainer;

		if (t == NULL || t->model != m) {
			/* It went while BEGIN was on its way. The coordinator will hear of it. */
			g->local[i].trainer = NULL;
			continue;
		}
		g->local[i].slot = t->slot;
		t->rank = (int32_t)g->local[i].rank;
		t->local_index = i;
	}
	g->pre = m->attempt.world.size > 1 ? (float)(1 / m->set.predivide) : 1;
	g->coded = m->codes.quant.kind != QUANT_NONE && g->nodes_nr > 1;
	g->credit = 0;
	g->reduce_began_ns = g->reduce_ns = 0;
	g->due.first = g->due.nr = 0;
	m->contrib_in = (struct model_flow){0};
	memset(g->chunk, 0, chunks * sizeof(*g->chunk));
	memset(g->absent_local, 0, local * segments);
	shares_begin(m);
	device_grads_begin(m);
	memset(g->absent_node, 0, nodes * segments);
	memset(g->zero, 0, segments);
	parts_clear(&g->parts_in, nodes * chunks);
	parts_clear(&g->push_parts, local * chunks);
	memset(g->bad_rank_in, -1, nodes * chunks * sizeof(*g->bad_rank_in));
	grad_begin(m);
}

/* A node without chunks and trainers begins an attempt and votes for it in one event of its core.
 * Its shell has not carried out the beginning yet, and keeps nothing but the name of the
 * attempt. */
void contrib_keep(struct model *m, const struct core_id *id)
{
	CHECK(store_owned(m->store) == 0 || core_id_cmp(id, &m->attempt.id) == 0);
	for (uint32_t c = 0; c < m->layout->chunks_nr && store_owned(m->store) > 0; c++) {
		struct meta_fact *f = &m->meta.fact[c];
		enum store_region region;

		if (!place_keeps(&m->place, c, m->server->self))
			continue;
		CHECK(store_where(m->store, m->contrib.chunk[c].base, &region, &f->offset));
		f->region = region;
	}
	if (store_owned(m->store) > 0)
		memcpy(m->meta.zero, m->contrib.zero, m->layout->segments_nr);
	*m->meta.facts_id = *id;
}

enum shard_status contrib_again(struct model *m, struct err *e)
{
	struct contrib *g = &m->contrib;

	if (store_owned(m->store) > 0 && core_id_cmp(m->meta.facts_id, &m->attempt.id) != 0)
		return err_set(
			e, SHARD_MISMATCH,
			"its gradients are of step %lu attempt %u, not of step %lu attempt %u",
			(unsigned long)m->meta.facts_id->step, m->meta.facts_id->attempt,
			(unsigned long)m->attempt.id.step, m->attempt.id.attempt);
	contrib_begin(m);
	for (uint32_t s = 0; s < m->layout->segments_nr; s++)
		g->zero[s] = m->meta.zero[s] != 0;
	for (uint32_t c = 0; c < m->layout->chunks_nr; c++) {
		struct meta_fact f = m->meta.fact[c];
		uint64_t bytes = (uint64_t)layout_chunk_elems(m->layout, c) * m->grad_bytes;

		if (!place_keeps(&m->place, c, m->server->self))
			continue;
		g->chunk[c].base = store_at(m->store, f.region, f.offset, bytes);
		if (g->chunk[c].base == NULL)
			return err_set(e, SHARD_MISMATCH,
				       "the gradient of chunk %u is where there is none", c);
		g->chunk[c].reduced = true;
		g->chunk[c].arrived = UINT64_MAX;
	}
	return SHARD_OK;
}

void contrib_lost(const struct model *m, const struct record *r, struct meta_residual *out)
{
	bool here = false, elsewhere = false;

	for (uint32_t i = 0; i < r->world.size; i++) {
		here = here || r->world.rank[i].node == m->server->self;
		elsewhere = elsewhere || r->world.rank[i].node != m->server->self;
	}
	/* Otherwise the step lost nothing here, and what is kept is void after it. */
	if (m->codes.quant.kind != QUANT_NONE && r->outcome == RECORD_APPLIED && here && elsewhere)
		*out = (struct meta_residual){.step = r->content,
					      .generation = r->id.generation,
					      .half = out->half ^ 1,
					      .scale = r->loss_scale};
}

struct quant_residual contrib_residual(const struct model *m, uint32_t chunk)
{
	const struct meta_residual *last = &m->residual;
	bool counts = last->step > 0 && last->step == m->content_step &&
		      last->generation == m->generation;
	struct quant_residual r = {.next = store_residual(m->store, last->half ^ 1, chunk)};

	if (r.next == NULL || !counts)
		return r;
	r.last = store_residual(m->store, last->half, chunk);
	/* The next step has the scale that the last record says. */
	r.factor = (float)(m->record.scaler.scale / last->scale);
	return r;
}

void contrib_trainer_gone(struct model *m, struct trainer *t)
{
	for (uint32_t i = 0; i < m->contrib.local_nr; i++)
		if (m->contrib.local[i].trainer == t)
			m->contrib.local[i].trainer = NULL;
}

/* --- on their way out --- */

static bool part_absent(const struct model *m, uint32_t chunk, uint32_t part)
{
	return !m->contrib.coded &&
	       data_part_absent(m, chunk,
				contrib_absent_node(m, (uint32_t)m->contrib.place[m->server->self]),
				part);
}

/* Writes at most max tensors that have no gradient from this node, and returns how many there
 * are. */
static uint32_t absent_from(const struct model *m, uint32_t chunk, uint32_t *tensors, uint32_t max)
{
	const struct layout *l = m->layout;
	const uint8_t *absent = contrib_absent_node(m, (uint32_t)m->contrib.place[m->server->self]);
	uint32_t nr = 0;

	for (uint32_t s = l->chunk_segment[chunk]; s < l->chunk_segment[chunk + 1]; s++)
		if (absent[s] && nr++ < max)
			tensors[nr - 1] = l->segment_tensor[s];
	return nr;
}

static void close_with(const struct model *m, uint32_t chunk, struct send_closing *with,
		       uint32_t *tensors, uint32_t room)
{
	const struct contrib_chunk *c = &m->contrib.chunk[chunk];
	Shard__Push *push = &with->body.push;

	with->op = OP_CONTRIB;
	shard__push__init(push);
	push->n_absent = absent_from(m, chunk, tensors, room);
	push->absent = tensors;
	if (c->summed && !c->finite && m->contrib.local_nr > 1 && c->bad_rank >= 0) {
		push->bad_rank = (uint32_t)c->bad_rank + 1;
		push->bad_tensor = c->bad_tensor;
	}
}

const uint8_t *contrib_sum(const struct model *m, uint32_t chunk)
{
	if (m->contrib.local_nr > 1)
		return store_sum(m->store, chunk);
	return store_arena(m->store, m->contrib.local[0].slot, m->attempt.id.step, chunk);
}

uint8_t *contrib_codes(const struct model *m, uint32_t chunk)
{
	return store_codes(m->store) + m->codes.from[chunk];
}

const uint8_t *contrib_here(const struct model *m, uint32_t chunk)
{
	return m->contrib.coded ? contrib_codes(m, chunk) : contrib_sum(m, chunk);
}

/* As it travels. */
static uint64_t contribution_bytes(const struct model *m, uint32_t which, uint32_t chunk)
{
	(void)which;
	return m->contrib.coded ? m->codes.bytes[chunk] : data_bytes(m, chunk, m->grad_bytes);
}

static const uint8_t *contribution_at(const struct model *m, uint32_t which, uint32_t chunk)
{
	(void)which;
	return contrib_here(m, chunk);
}

static void contribution_head(const struct send_queue *o, uint32_t which, struct wire_head *h)
{
	uint32_t chunk = h->chunk;

	(void)which;
	data_head(o->model, h, OP_CONTRIB_DATA, &o->model->attempt.id);
	h->chunk = chunk;
}

static bool contribution_route(const struct send_queue *o, uint32_t which, uint32_t chunk,
			       struct send_route *out)
{
	const struct model *m = o->model;

	return mr_contribution(m, o->peer, chunk, contrib_here(m, chunk),
			       contribution_bytes(m, which, chunk), absent_from(m, chunk, NULL, 0),
			       out);
}

const struct send_source contrib_chunks = {
	.bytes = contribution_bytes,
	.at = contribution_at,
	.head = contribution_head,
	.route = contribution_route,
	.absent = part_absent,
	.close = close_with,
	.out = data_leaves,
	.back = data_left,
};

/* --- contributions --- */

static void maybe_reduce(struct model *m, uint32_t chunk)
{
	struct contrib_chunk *c = &m->contrib.chunk[chunk];
	uint64_t all = m->contrib.nodes_nr == 64 ? UINT64_MAX : (1ull << m->contrib.nodes_nr) - 1;

	CHECK(place_primary(&m->place, chunk) == m->server->self);
	if (c->arrived == all && !c->reduced)
		reduce_submit(m, REDUCE_NODES, chunk);
}

static struct send_queue *queue_of(const struct model *m, uint32_t chunk)
{
	uint32_t connections = m->server->conf->connections;
	uint16_t node = place_primary(&m->place, chunk);

	CHECK(node != m->server->self);
	return &m->attempt.out[node * connections + chunk % connections];
}

static void send_contribution(struct model *m, uint32_t chunk)
{
	struct send_queue *o = queue_of(m, chunk);

	if (o->lane == NULL || m->contrib.chunk[chunk].sent)
		return; /* The credit was repeated, or the link is down and the attempt ends. */
	m->contrib.chunk[chunk].sent = true;
	send_queue_add(o, chunk);
}

void contrib_added(struct model *m, uint32_t chunk)
{
	if (m->contrib.coded)
		reduce_submit(m, REDUCE_CODE, chunk);
	else
		contrib_summed(m, chunk);
}

void contrib_summed(struct model *m, uint32_t chunk)
{
	struct contrib_chunk *c = &m->contrib.chunk[chunk];
	uint16_t self = m->server->self, owner = place_primary(&m->place, chunk);

	CHECK(chunk < m->layout->chunks_nr && !m->contrib.chunk[chunk].summed);
	c->summed = true;
	if (owner != self) {
		if (m->contrib.credit >> owner & 1)
			send_contribution(m, chunk);
		return;
	}
	c->arrived |= 1ull << m->contrib.place[self];
	maybe_reduce(m, chunk);
}

void contrib_credit(struct model *m, uint16_t node)
{
	CHECK(node < m->server->nodes_nr && node != m->server->self);
	m->contrib.credit |= 1ull << node;
	/* In the order in which they are pushed: the last layer comes first. */
	for (uint32_t c = m->layout->chunks_nr; c-- > 0;)
		if (place_primary(&m->place, c) == node && m->contrib.chunk[c].summed)
			send_contribution(m, c);
	grad_credit(m, node);
}

/* The sum over one rank, or the only gradient times pre, may stay in its arena if it only goes on
 * to the holder of the chunk. */
static bool goes_to_sums(const struct model *m, uint32_t chunk)
{
	return m->contrib.local_nr > 1 || reduce_final(m, REDUCE_LOCAL, chunk);
}

void contrib_gathered(struct model *m, uint32_t chunk)
{
	if (m->contrib.pre != 1 || goes_to_sums(m, chunk))
		reduce_submit(m, REDUCE_LOCAL, chunk);
	else
		contrib_added(m, chunk);
}

/* Every local rank has closed the chunk. */
static void local_complete(struct model *m, uint32_t chunk)
{
	struct contrib *g = &m->contrib;
	uint8_t *none = contrib_absent_node(m, (uint32_t)g->place[m->server->self]);

	CHECK(m->contrib.local_nr > 0);
	if (!shares_settle(m, chunk))
		return; /* The attempt ends. */
	for (uint32_t s = m->layout->chunk_segment[chunk]; s < m->layout->chunk_segment[chunk + 1];
	     s++) {
		uint32_t absent = 0;

		for (uint32_t i = 0; i < g->local_nr; i++)
			absent += contrib_absent_local(m, i)[s];
		none[s] = absent == g->local_nr;
	}
	if (device_grads_has(m, chunk))
		device_grads_submit(m, chunk, goes_to_sums(m, chunk));
	else
		contrib_gathered(m, chunk);
}

/* --- frames from trainers --- */

static enum shard_status trainer_attempt(struct trainer *t, const struct wire_head *h,
					 struct err *e)
{
	struct model *m = t->model;
	enum shard_status st;

	/* The model was dropped, or the trainer put out, while the push was on its way. */
	if (m == NULL && h->model == t->left_model && h->model != 0)
		return SHARD_STALE;
	if (m == NULL || m->id != h->model)
		return err_set(e, SHARD_BAD_STATE,
			       "a push to model %u, which this trainer has not joined", h->model);
	if ((st = data_attempt(m, h, e)) != SHARD_OK)
		return st;
	if (t->rank < 0 || m->contrib.local[t->local_index].trainer != t)
		return SHARD_STALE;
	return SHARD_OK;
}

enum shard_status contrib_push_head(struct trainer *t, const struct wire_head *h, void **to,
				    struct err *e)
{
	enum shard_status st = trainer_attempt(t, h, e);
	struct model *m = t->model;

	*to = STREAM_DISCARD;
	if (st != SHARD_OK)
		return st == SHARD_STALE ? SHARD_OK : st;
	if (t->session->local)
		return err_set(e, SHARD_PROTOCOL,
			       "gradient bytes over a unix socket: they belong in the arena");
	if (m->contrib.chunk[h->chunk].pushed >> t->local_index & 1)
		return err_set(e, SHARD_DUPLICATE, "chunk %u of step %lu was pushed already",
			       h->chunk, (unsigned long)h->step);
	if ((st = data_take_part(m, h, data_bytes(m, h->chunk, m->grad_bytes),
				 &m->contrib.push_parts, t->local_index, e)) != SHARD_OK)
		return st;
	*to = (uint8_t *)store_arena(m->store, t->slot, h->step, h->chunk) +
	      (size_t)WIRE_PART(h->flags) * WIRE_PART_BYTES;
	return SHARD_OK;
}

enum shard_status contrib_push_data(struct trainer *t, const struct wire_head *h, struct err *e)
{
	struct model *m = t->model;

	/* The attempt may have ended while the body came in. */
	if (trainer_attempt(t, h, e) == SHARD_OK)
		data_part_came(m, h, &m->contrib.push_parts, t->local_index);
	return SHARD_OK;
}

enum shard_status contrib_push(struct trainer *t, const struct wire_head *h,
			       const Shard__Push *body, struct err *e)
{
	enum shard_status st = trainer_attempt(t, h, e);
	struct model *m = t->model;
	struct contrib_chunk *c;
	uint8_t *absent;

	if (st != SHARD_OK)
		return st == SHARD_STALE ? SHARD_OK : st;
	c = &m->contrib.chunk[h->chunk];
	absent = contrib_absent_local(m, t->local_index);
	if (c->pushed >> t->local_index & 1)
		return err_set(e, SHARD_DUPLICATE, "chunk %u of step %lu was pushed already",
			       h->chunk, (unsigned long)h->step);
	st = data_mark_absent(m, h->chunk, body->absent, body->n_absent, absent, e);
	if (st == SHARD_OK)
		st = shares_take(m, h->chunk, t->local_index, body, e);
	if (st == SHARD_OK)
		st = device_grads_take(m, h->chunk, t, body, e);
	if (st != SHARD_OK)
		return st;
	if (!t->session->local)
		st = data_check_whole(m, h->chunk, data_bytes(m, h->chunk, m->grad_bytes),
				      &m->contrib.push_parts, t->local_index, absent, e);
	if (st != SHARD_OK)
		return st;
	c->skip = c->skip || body->skip;
	m->contrib.local[t->local_index].skip |= body->skip;
	c->pushed |= 1ull << t->local_index;
	m->contrib.local[t->local_index].chunks_pushed++;
	m->contrib.local[t->local_index].pushed_ns = clock_ns();
	if ((uint32_t)__builtin_popcountll(c->pushed) == m->contrib.local_nr)
		local_complete(m, h->chunk);
	return SHARD_OK;
}

/* --- frames from nodes --- */

static enum shard_status node_attempt(const struct model *m, const struct peer *p,
				      const struct wire_head *h, struct err *e)
{
	enum shard_status st = data_attempt(m, h, e);

	if (st != SHARD_OK)
		return st;
	if (place_primary(&m->place, h->chunk) != m->server->self || m->contrib.place[p->node] < 0)
		return err_set(e, SHARD_PROTOCOL,
			       "a contribution to chunk %u, which node %s reduces, from a node "
			       "with%s ranks in this world",
			       h->chunk,
			       members_name(m->server, place_primary(&m->place, h->chunk)),
			       m->contrib.place[p->node] < 0 ? "out" : "");
	if (m->contrib.chunk[h->chunk].arrived >> m->contrib.place[p->node] & 1)
		return SHARD_STALE; /* It was repeated. */
	return SHARD_OK;
}

enum shard_status contrib_node_head(struct model *m, struct peer *p, const struct wire_head *h,
				    void **to, struct err *e)
{
	enum shard_status st = node_attempt(m, p, h, e);

	*to = STREAM_DISCARD;
	if (st != SHARD_OK)
		return st == SHARD_STALE ? SHARD_OK : st;
	if ((st = data_take_part(m, h, contribution_bytes(m, 0, h->chunk), &m->contrib.parts_in,
				 (size_t)m->contrib.place[p->node], e)) != SHARD_OK)
		return st;
	*to = (uint8_t *)store_slot(m->store, h->chunk, p->node) +
	      (size_t)WIRE_PART(h->flags) * WIRE_PART_BYTES;
	data_flow_add(&m->contrib_in, 0);
	return SHARD_OK;
}

void contrib_node_damaged(struct model *m, struct peer *p, const struct wire_head *h)
{
	struct err e;

	if (node_attempt(m, p, h, &e) != SHARD_OK)
		return; /* Nobody waits for it any more. */
	log_line(m->server->log, LOG_LEVEL_WARN,
		 "event=contribution_damaged model=%s step=%lu attempt=%u chunk=%u node=%s",
		 m->name, (unsigned long)h->step, h->attempt, h->chunk,
		 members_name(m->server, p->node));
	m->server->data->damaged(m, p->node, h->chunk);
}

enum shard_status contrib_node_data(struct model *m, struct peer *p, const struct wire_head *h,
				    struct err *e)
{
	if (node_attempt(m, p, h, e) != SHARD_OK)
		return SHARD_OK;
	data_part_came(m, h, &m->contrib.parts_in, (size_t)m->contrib.place[p->node]);
	data_flow_add(&m->contrib_in, h->body_bytes);
	return SHARD_OK;
}

enum shard_status contrib_node(struct model *m, struct peer *p, const struct wire_head *h,
			       const Shard__Push *body, struct err *e)
{
	enum shard_status st = node_attempt(m, p, h, e);
	uint32_t place;

	if (st != SHARD_OK)
		return st == SHARD_STALE ? SHARD_OK : st;
	place = (uint32_t)m->contrib.place[p->node];
	if ((st = data_mark_absent(m, h->chunk, body->absent, body->n_absent,
				   contrib_absent_node(m, place), e)) != SHARD_OK)
		return st;
	st = data_check_whole(m, h->chunk, contribution_bytes(m, 0, h->chunk), &m->contrib.parts_in,
			      place, m->contrib.coded ? NULL : contrib_absent_node(m, place), e);
	if (st != SHARD_OK)
		return st;
	if (body->bad_rank != 0 && body->bad_rank <= m->attempt.world.size)
		m->contrib.bad_rank_in[(size_t)place * m->layout->chunks_nr + h->chunk] =
			(int32_t)body->bad_rank - 1;
	m->contrib.chunk[h->chunk].arrived |= 1ull << place;
	maybe_reduce(m, h->chunk);
	return SHARD_OK;
}

enum shard_status contrib_node_grad(struct model *m, struct peer *p, const struct wire_head *h,
				    const Shard__Grad *body, struct err *e)
{
	bool whole = false;
	enum shard_status st = grad_node(m, p, h, body, &whole, e);

	if (st == SHARD_OK && whole)
		reduce_submit(m, REDUCE_COPY, h->chunk);
	return st;
}
