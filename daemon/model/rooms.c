/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for chunks that move to this node, and from it. Happy path: the coordinator asks (ROOM),
 * the budget agrees, a thread makes the memory, and the answer says so. Then a view gives the
 * chunks to this node, and it takes the memory. Another view takes chunks away, and their memory
 * goes back when no job or frame reads it. Memory that no view asks for goes back after a while. A
 * node that was away may get such a view without having been asked. The view then waits until the
 * memory is there. It fails if the budget or the system has no room. */
#include "model/rooms.h"

#include "base/check.h"
#include "base/clock.h"
#include "data/apply.h"
#include "data/catchup.h"
#include "link/call.h"
#include "link/caller.h"
#include "link/peer.h"
#include "data/model.h"
#include "data/data.h"
#include "model/spare.h"
#include "model/tables.h"
#include "model/view_file.h"
#include "store/tier_gpu.h"
#include "store/hold.h"
#include "store/room.h"
#include "wire/ops.h"

#include <stdlib.h>

#define NODES_AGAIN_NS (15 * NS_PER_SEC) /* After there was none for a node that comes. */
#define ROOMS_KEPT_NS  (60 * NS_PER_SEC) /* So long it waits for a view that gives it a use. */

struct rooms {
	struct model *m;
	struct job job;
	struct store_room room;
	uint32_t *chunk; /* [chunks_nr] Those of .room. */
	bool making;     /* A thread makes .room. */
	bool made;       /* It is there, and reserved. */
	bool promised;   /* And a view that this node has will take it. */
	bool give_due;   /* Chunks that are held here are not this node's any more. */
	bool *asked; /* [chunks_nr] Those that this node has ordered for itself at asked_ns. They
			are not given back before the move begins, which finds them held. */
	uint64_t asked_ns; /* 0: none. */
	uint64_t made_ns;
	rooms_made_fn *done;
	struct caller who; /* Who asked by ROOM. */
	/* Slots for nodes that come. While a thread makes them, .making is set, too. */
	struct store_nodes nodes;
	uint64_t nodes_again_ns; /* When it may be tried again. */
};

enum shard_status rooms_init(struct model *m, struct err *e)
{
	struct rooms *r = calloc(1, sizeof(*r));

	m->rooms = r;
	if (r != NULL) {
		r->chunk = calloc(m->layout->chunks_nr, sizeof(*r->chunk));
		r->asked = calloc(m->layout->chunks_nr, sizeof(*r->asked));
	}
	if (r == NULL || r->chunk == NULL || r->asked == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory to keep track of the chunks of \"%s\"",
			       m->name);
	r->m = m;
	return SHARD_OK;
}

bool rooms_making(const struct model *m)
{
	return m->rooms != NULL && m->rooms->making;
}

void rooms_free(struct model *m)
{
	struct rooms *r = m->rooms;

	m->rooms = NULL;
	if (r == NULL)
		return;
	CHECK(!r->making); /* What was made goes with the store, and its account with the model's.
			    */
	free(r->chunk);
	free(r->asked);
	free(r);
}

/* --- more --- */

static void reserve(struct rooms *r)
{
	budget_more(&r->m->server->budget, &r->m->need, &r->room.need);
}

static void unreserve(struct rooms *r)
{
	budget_less(&r->m->server->budget, &r->m->need, &r->room.need);
}

static void make_run(struct job *j)
{
	store_room_make(&list_of(j, struct rooms, job)->room);
}

static void tell(struct rooms *r, const struct err *e)
{
	rooms_made_fn *done = r->done;

	r->done = NULL;
	if (done != NULL)
		done(r->m, e);
}

static void made(struct rooms *r)
{
	struct model *m = r->m;
	struct err e;

	r->made = r->room.e.status == SHARD_OK;
	r->made_ns = clock_ns();
	if (r->made) {
		tell(r, NULL);
		return;
	}
	unreserve(r);
	err_set(&e, r->room.e.status, "\"%s\" gets no room for %u chunks on node %s: %.300s",
		m->name, r->room.chunks_nr, members_name(m->server, m->server->self),
		r->room.e.text);
	log_line(m->server->log, LOG_LEVEL_WARN, "event=no_room model=%s why=%s", m->name, e.text);
	tell(r, &e);
}

static void make_done(struct job *j)
{
	struct rooms *r = list_of(j, struct rooms, job);
	struct model *m = r->m;

	r->making = false;
	if (m->dropping || m->server->stop.on) {
		r->done = NULL;
		server_wake(m->server, 1);
		return;
	}
	made(r);
	server_wake(m->server, 0); /* A view may have waited for it, or the end of the model. */
}

static void undo(struct rooms *r)
{
	CHECK(r->made && !r->making);
	r->made = r->promised = false;
	store_room_drop(&r->room);
	unreserve(r);
}

static bool wants(const struct model *m, const uint64_t *holders, uint32_t chunk)
{
	return holders[chunk] >> m->server->self & 1 && !store_holds(m->store, chunk);
}

static enum shard_status has_room(const struct model *m, uint64_t bytes, struct err *e)
{
	struct server *s = m->server;
	enum shard_status st;

	st = budget_room(&s->budget, bytes, m->name, members_name(s, s->self), e);
	if (st != SHARD_OK && spare_drop(s))
		st = budget_room(&s->budget, bytes, m->name, members_name(s, s->self), e);
	return st;
}

/* Has it been made already, all of it? */
static bool covers(const struct rooms *r, const uint64_t *holders)
{
	uint32_t wanted = 0, there = 0;

	for (uint32_t c = 0; c < r->m->layout->chunks_nr; c++)
		wanted += wants(r->m, holders, c);
	for (uint32_t i = 0; r->made && i < r->room.chunks_nr; i++)
		there += wants(r->m, holders, r->chunk[i]);
	return wanted == there;
}

/* Fills in what is to be made. Zero chunks: nothing is. */
static enum shard_status plan(struct rooms *r, const uint64_t *holders, struct err *e)
{
	struct model *m = r->m;
	uint32_t nr = 0;

	if (r->making)
		return err_set(e, SHARD_BUSY, "node %s makes other room for \"%s\" now",
			       members_name(m->server, m->server->self), m->name);
	if (covers(r, holders))
		return SHARD_OK;
	if (r->made)
		undo(r);
	for (uint32_t c = 0; c < m->layout->chunks_nr; c++)
		if (wants(m, holders, c))
			r->chunk[nr++] = c;
	store_room_plan(&r->room, m->store, r->chunk, nr);
	if (has_room(m, r->room.need.all, e) != SHARD_OK)
		return e->status;
	reserve(r);
	return SHARD_AGAIN;
}

static void begin(struct rooms *r)
{
	struct model *m = r->m;

	r->making = true;
	job_begin(&r->job, m->server, r->room.need.all <= JOB_SMALL_BYTES ? JOB_SMALL : JOB_MEMORY,
		  make_run, make_done);
}

static enum shard_status make_rooms(struct model *m, const uint64_t *holders, rooms_made_fn *done,
				    struct err *e)
{
	enum shard_status st = plan(m->rooms, holders, e);

	if (st != SHARD_OK && st != SHARD_AGAIN)
		return st;
	CHECK(m->rooms->done == NULL);
	m->rooms->done = done;
	if (st == SHARD_AGAIN)
		begin(m->rooms);
	else
		tell(m->rooms, NULL);
	return SHARD_OK;
}

enum shard_status rooms_make(struct model *m, const uint64_t *holders, rooms_made_fn *done,
			     struct err *e)
{
	struct rooms *r = m->rooms;

	for (uint32_t c = 0; c < m->layout->chunks_nr; c++)
		r->asked[c] = holders[c] >> m->server->self & 1;
	r->asked_ns = clock_ns();
	return make_rooms(m, holders, done, e);
}

static void asked_made(struct model *m, const struct err *e)
{
	struct caller *who = &m->rooms->who;

	if (e != NULL)
		caller_refuse(m->server, who, e);
	else
		caller_answer(m->server, who, &(struct wire_head){.op = OP_ROOM, .model = m->id},
			      NULL);
}

enum shard_status rooms_asked(struct model *m, struct peer *p, const struct wire_head *h,
			      const Shard__Tables *body, struct err *e)
{
	struct placement to;
	struct caller before;
	enum shard_status st;

	if (m == NULL || m->defining || m->dropping)
		return err_set(e, SHARD_NOT_FOUND, "node %s has no model %u",
			       members_name(p->server, p->server->self), h->model);
	if (p->node != server_coordinator(p->server))
		return err_set(e, SHARD_BUSY, "node %s has not heard yet that node %s coordinates",
			       members_name(p->server, p->server->self),
			       members_name(p->server, p->node));
	if ((st = tables_read(m, body, &to, e)) != SHARD_OK)
		return st;
	before = m->rooms->who;
	m->rooms->who = caller_node(p, h->attempt); /* The answer may come at once. */
	if (to.holders == NULL)
		st = err_set(e, SHARD_PROTOCOL, "a table without the holders of chunks");
	else
		st = make_rooms(m, to.holders, asked_made, e);
	if (st != SHARD_OK)
		m->rooms->who = before;
	tables_tidy(m);
	return st;
}

/* As plan(), for all that a placement gives to this node, by either table. */
static enum shard_status plan_all(struct model *m, const struct placement *p, struct err *e)
{
	uint64_t *keepers;
	enum shard_status st;
	uint32_t lacks = 0;

	for (uint32_t c = 0; c < p->chunks_nr && p->primary != NULL; c++)
		lacks += place_keeps(p, c, m->server->self) && !store_holds(m->store, c);
	if (lacks == 0)
		return SHARD_OK;
	if ((keepers = malloc(p->chunks_nr * sizeof(*keepers))) == NULL)
		return err_set(e, SHARD_BUSY, "no memory to look for room");
	for (uint32_t c = 0; c < p->chunks_nr; c++)
		keepers[c] = place_keepers(p, c);
	st = plan(m->rooms, keepers, e);
	m->rooms->promised = st == SHARD_OK;
	free(keepers);
	return st;
}

/* Is there memory for all of that? SHARD_AGAIN: it is being made. */
static enum shard_status rooms_for(struct model *m, const struct placement *p, struct err *e)
{
	enum shard_status st = plan_all(m, p, e);

	if (st == SHARD_AGAIN)
		begin(m->rooms);
	return st == SHARD_BUSY ? SHARD_AGAIN : st;
}

bool rooms_view(struct model *m, struct peer *p, const struct core_view *v)
{
	struct core_state core;
	enum shard_status st;
	struct err e;

	core_state(m->core, &core);
	if (v->term < core.term || view_coordinator(&v->members) != p->node)
		return true;
	st = rooms_for(m, &v->place, &e);
	if (st != SHARD_OK && st != SHARD_AGAIN)
		peer_close(p, &e);
	return st == SHARD_OK;
}

enum shard_status rooms_now(struct model *m, const struct placement *p, struct err *e)
{
	struct rooms *r = m->rooms;
	enum shard_status st = plan_all(m, p, e);

	if (st != SHARD_AGAIN)
		return st;
	store_room_make(&r->room);
	r->made = r->room.e.status == SHARD_OK;
	r->made_ns = clock_ns();
	if (r->made)
		return SHARD_OK;
	unreserve(r);
	*e = r->room.e;
	return e->status;
}

void rooms_unled(struct model *m, enum shard_status st, const char *why)
{
	bool soon = st == SHARD_OK || st == SHARD_AGAIN;
	char whole[sizeof(m->memory.unled_why)];

	if (!soon) {
		snprintf(whole, sizeof(whole),
			 "%.250s. Stop shardd on node %s, so that another one leads, or give the "
			 "weights up: `shardctl model drop %s --force`, and restore a checkpoint",
			 why, members_name(m->server, m->server->self), m->name);
		why = whole;
	}
	if (st != SHARD_OK && !m->memory.unled)
		log_line(m->server->log, soon ? LOG_LEVEL_INFO : LOG_LEVEL_ERROR,
			 "event=not_led model=%s why=%s", m->name, why);
	m->memory.unled = st != SHARD_OK;
	snprintf(m->memory.unled_why, sizeof(m->memory.unled_why), "%s", soon ? "" : why);
}

bool rooms_led(struct model *m, const struct core_view *view)
{
	struct err e;
	enum shard_status st = view != NULL ? rooms_for(m, &view->place, &e) : SHARD_OK;

	if (st == SHARD_AGAIN)
		rooms_unled(m, st,
			    "memory is made first for the chunks that its view gives to this node");
	else
		rooms_unled(m, st, e.text);
	return !m->memory.unled;
}

/* --- slots of nodes that come --- */

static void nodes_run(struct job *j)
{
	store_nodes_make(&list_of(j, struct rooms, job)->nodes);
}

static void say_direct_short(const struct model *m)
{
	uint32_t chunks = tier_gpu_direct_short(m->tier, m->memory.nodes_nr);

	if (chunks > 0)
		log_line(m->server->log, LOG_LEVEL_WARN,
			 "event=gpu_direct_short model=%s chunks=%u nodes=%u means=%s", m->name,
			 chunks, m->memory.nodes_nr,
			 "a node that has joined has no room for its gradients on the GPUs here: "
			 "those of these chunks to which it contributes are added up in main "
			 "memory, which is slower, until shardd is restarted on this node");
}

static void nodes_done(struct job *j)
{
	struct rooms *r = list_of(j, struct rooms, job);
	struct model *m = r->m;

	r->making = false;
	if (r->nodes.e.status == SHARD_OK) {
		store_nodes_take(m->store, &r->nodes);
		m->memory.nodes_nr = r->nodes.nodes_nr;
		say_direct_short(m);
	} else {
		budget_less(&m->server->budget, &m->need, &r->nodes.need);
		r->nodes_again_ns = clock_ns() + NODES_AGAIN_NS;
	}
	server_wake(m->server, 0);
}

static enum shard_status refuse_nodes(struct rooms *r, struct err *e)
{
	struct err why = r->nodes.e;

	return err_set(e, why.status, "\"%s\" gets no room for gradients of %u nodes: %.300s",
		       r->m->name, r->nodes.nodes_nr, why.text);
}

/* Has this node, as the coordinator, a move that waits for its boundary? A save may hold it. */
static bool ordered(const struct model *m)
{
	struct core_state core;

	core_state(m->core, &core);
	return core.moves[0] != 0;
}

/* Is there memory that no view and no order will take? The coordinator of an order may have died,
 * and an order fails when another node has no room, or is away. It may be ordered again, and is
 * made again then. */
static bool spare(const struct rooms *r, bool moving)
{
	struct model *m = r->m;

	if (!r->made || r->promised || persist_pending(m))
		return false;
	return !server_leads(m->server) || !(moving || ordered(m));
}

enum shard_status rooms_grow(struct model *m, uint16_t nodes_nr, bool moving, struct err *e)
{
	struct rooms *r = m->rooms;
	struct server *s = m->server;

	if (m->memory.nodes_nr >= nodes_nr)
		return SHARD_OK;
	if (spare(r, moving)) /* A view may name nodes that this node does not know yet. */
		undo(r);
	if (r->made)
		return err_set(e, SHARD_AGAIN, "chunks of \"%s\" are about to move to node %s",
			       m->name, members_name(s, s->self));
	if (m->dropping || r->making)
		return err_set(e, SHARD_AGAIN, "memory of \"%s\" is being made", m->name);
	if (clock_ns() < r->nodes_again_ns)
		return refuse_nodes(r, e);
	store_nodes_plan(&r->nodes, m->store, nodes_nr);
	r->nodes.e.status = SHARD_OK;
	if (data_more_nodes(m, nodes_nr, &r->nodes.e) != SHARD_OK ||
	    has_room(m, r->nodes.need.all, &r->nodes.e) != SHARD_OK) {
		r->nodes_again_ns = clock_ns() + NODES_AGAIN_NS;
		return refuse_nodes(r, e);
	}
	budget_more(&s->budget, &m->need, &r->nodes.need);
	r->making = true;
	job_begin(&r->job, s, r->nodes.need.all <= JOB_SMALL_BYTES ? JOB_SMALL : JOB_MEMORY,
		  nodes_run, nodes_done);
	return err_set(e, SHARD_AGAIN, "memory of \"%s\" is being made", m->name);
}

/* --- less --- */

static void give(struct rooms *r)
{
	struct model *m = r->m;
	struct store_bytes back = {.all = 0};
	uint32_t nr = 0;

	/* A save may be reading a chunk that goes. */
	r->give_due = m->attempt.busy > 0 || m->attempt.on || hold_on(m->store);
	if (r->give_due)
		return;
	for (uint32_t c = 0; c < m->layout->chunks_nr; c++) {
		if (!store_holds(m->store, c) || place_keeps(&m->place, c, m->server->self) ||
		    (r->asked_ns != 0 && r->asked[c]))
			continue;
		store_room_give(m->store, c, &back);
		nr++;
	}
	budget_less(&m->server->budget, &m->need, &back);
	if (nr > 0)
		log_line(m->server->log, LOG_LEVEL_INFO,
			 "event=room_given_back model=%s chunks=%u bytes=%lu", m->name, nr,
			 (unsigned long)back.all);
}

static void placed(struct model *m)
{
	struct rooms *r = m->rooms;

	for (uint32_t c = 0; c < m->layout->chunks_nr; c++) {
		bool keeps = place_keeps(&m->place, c, m->server->self);

		if (keeps && !store_holds(m->store, c)) {
			/* rooms_for() has seen this view, or rooms_make() what it is made of. */
			CHECK(r->made);
			r->made = r->promised = false;
			store_room_take(m->store, &r->room);
			CHECK(store_holds(m->store, c));
		}
		r->give_due |= !keeps && store_holds(m->store, c);
	}
	if (r->give_due)
		give(r);
}

/* Frames of a node that is no member any more are judged by their attempt. What it writes by RDMA
 * nobody judges, so its queue pairs end with the link. It dials again, and is taken in over new
 * ones. */
static void end_links(const struct model *m, uint64_t left)
{
	for (uint16_t n = 0; n < m->server->nodes_nr; n++) {
		struct peer *p = m->server->peer[n];
		struct err e;

		if (p == NULL || !(left >> n & 1) || !p->up || rdma_link_queues(p) == NULL)
			continue;
		err_set(&e, SHARD_CLOSED,
			"node %s is out of the view of \"%s\": what it still writes by RDMA must "
			"not arrive",
			members_name(m->server, n), m->name);
		peer_close(p, &e);
	}
}

void rooms_placed(struct model *m, const struct placement *p)
{
	struct placement before = m->place;
	struct core_state core;
	uint64_t k;

	if (place_same(&m->place, p))
		return;
	core_state(m->core, &core);
	end_links(m, p->gone & ~before.gone);
	m->place = *p;
	for (k = (p->learns | p->moves) & ~(before.learns | before.moves); k != 0; k &= k - 1)
		m->learns_ns[__builtin_ctzll(k)] = clock_ns();
	placed(m);
	catchup_placed(m, &before, core.caught);
	apply_placed(m);
	tables_tidy(m); /* Last: `before` names tables, too. */
}

void rooms_beat(struct model *m, uint64_t now_ns)
{
	struct rooms *r = m->rooms;

	if (r->asked_ns != 0 && now_ns > r->asked_ns + ROOMS_KEPT_NS && !ordered(m)) {
		r->asked_ns = 0;
		r->give_due = true;
	}
	if (r->give_due)
		give(r);
	if (r->made && now_ns - r->made_ns > ROOMS_KEPT_NS && !ordered(m))
		undo(r);
}
