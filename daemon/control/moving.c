/* SPDX-License-Identifier: Apache-2.0 */
/* Orders of moves, on the coordinator. At each beat it looks whether a node has no chunks and
 * should have some, or has some and should have none, because it is drained or has been away for
 * lost_timeout. Happy path: a thread makes the plan, each node that gets chunks is asked for room
 * and makes it, and the core gets the table. The core says when the chunks lie that way. A node
 * without room refuses, and the order is tried again after a while. Another coordinator sees for
 * itself what has to be moved. What the core has begun goes on without this. */
#include "control/moving.h"

#include "base/check.h"
#include "base/clock.h"
#include "control/control.h"
#include "data/catchup.h"
#include "link/call.h"
#include "link/peer.h"
#include "model/lead.h"
#include "model/model.h"
#include "model/placing.h"
#include "model/corewire.h"
#include "model/tablewire.h"
#include "model/rooms.h"
#include "model/tables.h"
#include "model/watch.h"
#include "wire/ops.h"
#include "wire/xxh.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AGAIN_NS (15 * NS_PER_SEC) /* After an order that a node refused. */

enum moving_state {
	MOVING_IDLE,
	MOVING_PLANS, /* A thread makes the plan. */
	MOVING_ROOM,  /* Nodes make room. */
	MOVING_ON,    /* The core has the table. */
};

struct plan_task {
	struct job job;
	struct moving *v; /* NULL: the model is gone. The rest is for a thread. */
	struct plan_conf conf;
	struct plan_table from, to;
	struct plan_cost cost;
	struct plan *scratch;
};

struct moving {
	struct model *m;
	enum moving_state state;
	bool due;               /* An operator wants it. */
	struct plan_task *task; /* It is being planned. NULL: nothing is. */
	uint64_t seen;          /* A sum of what the last plan was made of. 0: it failed. */
	/* The same of the last plan that failed. It is not tried again before again_ns, unless
	 * something has changed. */
	uint64_t tried, again_ns;
	struct placement to; /* Its tables are freed when the core has its own. */
	struct round round;  /* Nodes that are asked for room. */
	uint64_t began_ns;
	uint64_t since_ns; /* Since when it is wanted, over orders that failed. 0: it is not. */
	char why[400];
};

static struct moving *moving_of(const struct model *m)
{
	return m->control->moving;
}

/* The struct is made when the first order is. NULL: no memory. */
static struct moving *moving_new(struct model *m)
{
	struct moving *v = m->control->moving;

	if (v == NULL && (v = m->control->moving = calloc(1, sizeof(*v))) != NULL)
		v->m = m;
	return v;
}

static void task_free(struct plan_task *t)
{
	free(t->from.primary);
	free(t->from.holders);
	free(t->to.primary);
	free(t->to.holders);
	free(t->scratch);
	free(t);
}

static void moving_going(struct model *m)
{
	struct moving *v = m->control != NULL ? moving_of(m) : NULL;

	if (v == NULL)
		return;
	m->control->moving = NULL;
	round_end(&v->round, m->server);
	if (v->task != NULL)
		v->task->v = NULL;
	placing_free(&v->to);
	free(v);
}

const char *moving_trouble(const struct model *m)
{
	return moving_of(m) != NULL ? moving_of(m)->why : "";
}

bool moving_on(const struct model *m)
{
	const struct moving *v = moving_of(m);

	return (v != NULL && (v->due || v->state != MOVING_IDLE)) || m->place.to != NULL;
}

bool moving_ordered(const struct model *m)
{
	const struct moving *v = moving_of(m);

	return v != NULL && v->state != MOVING_IDLE;
}

const char *moving_state(const struct model *m)
{
	static const char *const words[] = {[MOVING_IDLE] = "none",
					    [MOVING_PLANS] = "planning",
					    [MOVING_ROOM] = "room",
					    [MOVING_ON] = "moving"};
	const struct moving *v = moving_of(m);

	if (m->place.to != NULL)
		return "moving";
	if (v == NULL)
		return "none";
	if (v->state == MOVING_IDLE && v->why[0] != 0)
		return "refused";
	return v->state == MOVING_IDLE && v->due ? "planning" : words[v->state];
}

uint64_t moving_since(const struct model *m)
{
	return moving_of(m) != NULL ? moving_of(m)->since_ns : 0;
}

/* --- where chunks should lie --- */

/* A bit for each node that shall have the chunk, when a move under way is over. */
static uint64_t shall_have(const struct placement *p, uint32_t chunk)
{
	return p->to != NULL ? p->to[chunk] : place_base(p, chunk);
}

static void count_chunks(const struct placement *p, uint32_t nr[CORE_NODES_MAX])
{
	memset(nr, 0, CORE_NODES_MAX * sizeof(nr[0]));
	for (uint32_t c = 0; c < p->chunks_nr; c++)
		for (uint64_t k = shall_have(p, c); k != 0; k &= k - 1)
			nr[__builtin_ctzll(k)]++;
}

/* A node that is away keeps what it has, and gets nothing more, until it is given up. */
static void capacities(const struct model *m, const uint32_t nr[CORE_NODES_MAX], uint64_t now_ns,
		       uint64_t *capacity)
{
	placing_capacity(m->server, capacity);
	for (uint16_t n = 0; n < m->server->nodes_nr; n++) {
		const struct peer *p = m->server->peer[n];

		if (p != NULL && !p->up && (nr[n] == 0 || peer_given_up(p, now_ns)))
			capacity[n] = 0;
		/* A node that has just come does not have the model yet. */
		if (nr[n] == 0 &&
		    (!place_is_member(&m->place, n) || (p != NULL && m->memory.there[n] == 0)))
			capacity[n] = 0;
	}
}

static uint32_t nodes_of(const uint64_t *capacity)
{
	uint32_t nr = 0;

	for (uint16_t n = 0; n < CORE_NODES_MAX; n++)
		nr += capacity[n] > 0;
	return nr;
}

/* Does a node have chunks that should have none, or the other way round? */
static bool out_of_place(const struct model *m, const uint32_t nr[CORE_NODES_MAX],
			 const uint64_t *capacity)
{
	for (uint16_t n = 0; n < m->server->nodes_nr; n++)
		if ((nr[n] > 0) != (capacity[n] > 0))
			return true;
	return false;
}

static uint64_t nodes_up(const struct server *s)
{
	uint64_t up = 1ull << s->self;

	for (uint16_t n = 0; n < s->nodes_nr; n++)
		up |= (uint64_t)(s->peer[n] != NULL && s->peer[n]->up) << n;
	return up;
}

uint32_t moving_only_at(const struct model *m, uint16_t node, bool *alone)
{
	uint64_t it = 1ull << node, up = nodes_up(m->server) & ~it;
	uint32_t nr = 0;

	*alone = true;
	for (uint32_t c = 0; c < m->place.chunks_nr; c++) {
		uint64_t copies = place_copies(&m->place, c);

		if (!(copies & it) || copies & up)
			continue;
		nr++;
		*alone = *alone && copies == it;
	}
	return nr;
}

/* Are there copies of all chunks at nodes that are up? Where the only one is away, it is waited
 * for, or the model is LOST. */
static bool all_here(const struct model *m)
{
	uint64_t up = nodes_up(m->server);

	for (uint32_t c = 0; c < m->place.chunks_nr; c++)
		if (!(place_copies(&m->place, c) & up))
			return false;
	return true;
}

static enum shard_status task_make(const struct model *m, struct plan_task **out,
				   const uint64_t *capacity, struct err *e)
{
	const struct placement *p = &m->place;
	uint32_t chunks = p->chunks_nr;
	struct plan_task *t = *out = calloc(1, sizeof(*t));

	if (t == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory to place %u chunks", chunks);
	if (nodes_of(capacity) < m->set.replicas)
		return err_set(e, SHARD_BAD_STATE,
			       "\"%s\" has %u copies of each chunk (replicas), and of the nodes "
			       "that are up or will be back %u can hold any: add a node first",
			       m->name, m->set.replicas, nodes_of(capacity));
	t->from.primary = malloc(chunks * sizeof(uint16_t));
	t->from.holders = malloc(chunks * sizeof(uint64_t));
	t->to.primary = malloc(chunks * sizeof(uint16_t));
	t->to.holders = malloc(chunks * sizeof(uint64_t));
	t->scratch = aligned_alloc(16, (plan_bytes() + 15) & ~(size_t)15);
	if (!t->from.primary || !t->from.holders || !t->to.primary || !t->to.holders || !t->scratch)
		return err_set(e, SHARD_SYSTEM, "no memory to place %u chunks", chunks);
	t->conf.chunks_nr = chunks;
	t->conf.copies = m->set.replicas;
	memcpy(t->conf.capacity, capacity, sizeof(t->conf.capacity));
	for (uint32_t c = 0; c < chunks; c++) {
		t->from.primary[c] = p->to != NULL ? p->to_primary[c] : p->primary[c];
		t->from.holders[c] = shall_have(p, c);
	}
	return SHARD_OK;
}

static uint64_t chunk_bytes(const struct model *m, uint32_t chunk)
{
	uint64_t tensors = layout_trained(m->layout, chunk) ? 1 + m->set.optim->states_nr : 1;

	return layout_chunk_elems(m->layout, chunk) * sizeof(float) * tensors;
}

struct moving_left moving_left(const struct model *m, bool here)
{
	const struct placement *p = &m->place;
	uint64_t self = 1ull << m->server->self, of = here ? self : ~0ull;
	struct moving_left left = {.copies = 0};

	for (uint32_t c = 0; p->to != NULL && p->moves & of && c < p->chunks_nr; c++) {
		uint64_t lack = p->to[c] & ~place_base(p, c) & p->moves & of;
		uint64_t nr;

		if (lack & self && m->catchup != NULL && catchup_has(m, c))
			lack &= ~self;
		nr = (uint64_t)__builtin_popcountll(lack);
		left.copies += nr;
		left.bytes += nr * chunk_bytes(m, c);
	}
	return left;
}

static enum shard_status may_ask(const struct server *s, uint64_t gain, struct err *e)
{
	for (uint16_t n = 0; n < s->nodes_nr; n++) {
		const struct peer *p = s->peer[n];

		if (p != NULL && p->up && !peer_knows(p, WIRE_MOVES))
			return err_set(e, SHARD_UNSUPPORTED,
				       "node %s runs release %s, which cannot move chunks: upgrade "
				       "it first",
				       members_name(s, n), p->release);
		if (gain >> n & 1 && p != NULL && !p->up)
			return err_set(e, SHARD_UNREACHABLE, "node %s is down: %.200s",
				       members_name(s, n), p->why);
	}
	return SHARD_OK;
}

enum shard_status moving_plan(const struct model *m, struct moving_plan *out, struct err *e)
{
	uint64_t capacity[CORE_NODES_MAX];
	uint64_t gain = 0;
	struct placement then;
	struct plan_task *t;
	enum shard_status st;

	memset(out, 0, sizeof(*out));
	count_chunks(&m->place, out->now);
	capacities(m, out->now, clock_ns(), capacity);
	if ((st = task_make(m, &t, capacity, e)) == SHARD_OK) {
		plan_make(t->scratch, &t->conf, &t->from, &t->to, &t->cost);
		out->primary = t->to.primary;
		out->holders = t->to.holders;
		out->cost = t->cost;
		t->to = (struct plan_table){.holders = NULL};
		then = place_of(out->primary, out->holders, m->place.chunks_nr);
		count_chunks(&then, out->then);
		for (uint32_t c = 0; c < then.chunks_nr; c++) {
			uint64_t more = out->holders[c] & ~place_keepers(&m->place, c);

			out->bytes += (uint64_t)__builtin_popcountll(more) * chunk_bytes(m, c);
			gain |= more;
		}
		if (!m->sealed && out->cost.copies + out->cost.primaries > 0)
			snprintf(out->trouble, sizeof(out->trouble),
				 "it has no weights, and its chunks move when it has");
		else if (gain != 0 && may_ask(m->server, gain, e) != SHARD_OK)
			snprintf(out->trouble, sizeof(out->trouble), "%.299s", e->text);
	}
	if (t != NULL)
		task_free(t);
	return st;
}

void moving_plan_free(struct moving_plan *p)
{
	free(p->primary);
	free(p->holders);
	p->primary = NULL;
	p->holders = NULL;
}

/* --- an order --- */

static void failed(struct moving *v, const struct err *e)
{
	struct model *m = v->m;

	round_end(&v->round, m->server);
	v->state = MOVING_IDLE;
	v->again_ns = clock_ns() + AGAIN_NS;
	v->tried = v->seen;
	v->seen = 0;
	if (strcmp(v->why, e->text) != 0)
		log_line(m->server->log, LOG_LEVEL_WARN, "event=not_moved model=%s why=%s", m->name,
			 e->text);
	snprintf(v->why, sizeof(v->why), "%.399s", e->text);
	placing_free(&v->to);
}

/* All nodes have room. */
static void place(struct moving *v)
{
	struct model *m = v->m;
	struct placement to = v->to;
	struct core_event ev = {.type = CORE_EV_PLACE, .to = &to, .room = tables_room(m)};
	struct err e;

	if (ev.room == NULL || tables_take(m, &to, &e) != SHARD_OK) {
		err_set(&e, SHARD_SYSTEM, "no memory to place %u chunks", v->to.chunks_nr);
		failed(v, &e);
		return;
	}
	placing_free(&v->to);
	v->state = MOVING_ON;
	v->why[0] = 0;
	model_event(m, &ev);
}

static void asked(struct round *r, struct server *s, const struct call *c,
		  const struct wire_head *h, const void *body, const struct err *e)
{
	struct moving *v = list_of(r, struct moving, round);
	struct err why;

	(void)h;
	(void)body;
	if (v->state != MOVING_ROOM)
		return;
	if (e != NULL) {
		err_set(&why, e->status, "node %s: %.300s", members_name(s, c->node), e->text);
		failed(v, &why);
	} else if (v->round.out == 0) {
		place(v);
	}
}

static const struct round_ops asks = {.answered = asked};

static void made_here(struct model *m, const struct err *e)
{
	struct moving *v = moving_of(m);

	if (v == NULL || v->state != MOVING_ROOM || !round_took(&v->round, m->server->self))
		return;
	if (e != NULL)
		failed(v, e);
	else if (v->round.out == 0)
		place(v);
}

/* A bit for each node that gets chunks. */
static uint64_t gainers(const struct moving *v)
{
	uint64_t gain = 0;

	for (uint32_t c = 0; c < v->to.chunks_nr; c++)
		gain |= v->to.holders[c] & ~place_keepers(&v->m->place, c);
	return gain;
}

static enum shard_status ask_nodes(struct moving *v, struct err *e)
{
	struct model *m = v->m;
	uint64_t gain = gainers(v);
	Shard__Tables body = SHARD__TABLES__INIT;
	struct wire_head h = {.op = OP_ROOM, .model = m->id};
	enum shard_status st = may_ask(m->server, gain, e);

	if (st == SHARD_OK && tablewire_pack(&v->to, &m->server->scratch.tx, &body) != SHARD_OK)
		st = err_set(e, SHARD_SYSTEM, "the tables of \"%s\" are too large", m->name);
	v->state = MOVING_ROOM;
	v->round.ops = &asks;
	if (st == SHARD_OK)
		round_own(&v->round, m->server); /* Until all are asked. */
	for (uint16_t n = 0; n < m->server->nodes_nr && st == SHARD_OK; n++)
		if (gain >> n & 1 && n != m->server->self)
			st = round_ask(&v->round, m->server, n, &h, &body.base, NULL, e);
	arena_reset(&m->server->scratch.tx);
	return st == SHARD_OK ? rooms_make(m, v->to.holders, made_here, e) : st;
}

static void planned(struct moving *v, struct plan_task *t)
{
	struct model *m = v->m;
	enum shard_status st;
	struct err e;

	v->due = false;
	if (t->cost.copies == 0 && t->cost.primaries == 0) {
		v->state = MOVING_IDLE;
		v->why[0] = 0;
		return;
	}
	v->to = place_of(t->to.primary, t->to.holders, m->layout->chunks_nr);
	t->to = (struct plan_table){.holders = NULL};
	log_line(m->server->log, LOG_LEVEL_INFO, "event=moving model=%s copies=%lu primaries=%lu",
		 m->name, (unsigned long)t->cost.copies, (unsigned long)t->cost.primaries);
	v->began_ns = clock_ns();
	if ((st = ask_nodes(v, &e)) != SHARD_OK)
		failed(v, &e);
}

static void plan_run(struct job *j)
{
	struct plan_task *t = list_of(j, struct plan_task, job);

	plan_make(t->scratch, &t->conf, &t->from, &t->to, &t->cost);
}

static void plan_done(struct job *j)
{
	struct plan_task *t = list_of(j, struct plan_task, job);
	struct moving *v = t->v;

	if (v != NULL) {
		v->task = NULL;
		if (v->state == MOVING_PLANS && !v->m->dropping && !v->m->server->stop.on)
			planned(v, t);
	}
	task_free(t);
}

static void order(struct moving *v, const uint64_t *capacity)
{
	struct plan_task *t;
	struct err e;

	CHECK(v->task == NULL);
	if (task_make(v->m, &t, capacity, &e) != SHARD_OK) {
		if (t != NULL)
			task_free(t);
		v->due = false;
		failed(v, &e);
		return;
	}
	v->state = MOVING_PLANS;
	v->task = t;
	t->v = v;
	job_begin(&t->job, v->m->server, JOB_SMALL, plan_run, plan_done);
}

void moving_order(struct model *m)
{
	struct moving *v = moving_new(m);

	if (v == NULL)
		return; /* Who asked sees that nothing moves. */
	v->due = true;
	v->again_ns = 0;
	server_wake(m->server, 0);
}

/* Has this node adopted the newest view, and has a move that was ordered begun? Otherwise the
 * chunks lie elsewhere soon, and memory that was made for them would be given back for other
 * chunks. */
static bool settled(const struct model *m)
{
	const struct moving *v = moving_of(m);
	struct core_state core;

	core_state(m->core, &core);
	return core.coordinator && !core.recovering &&
	       core_newest_place(m->core)->sum == m->place.sum &&
	       (v == NULL || v->state == MOVING_IDLE || m->place.to != NULL);
}

/* A sum of what a plan is made of, and of which links stand since when: a node that refused, or was
 * away, may have come back with more memory. */
static uint64_t seen_sum(const struct model *m, const uint64_t *capacity)
{
	uint64_t since[CORE_NODES_MAX] = {0};
	uint64_t sum = xxh_sum(capacity, CORE_NODES_MAX * sizeof(*capacity), m->place.sum);

	for (uint16_t n = 0; n < m->server->nodes_nr; n++)
		if (m->server->peer[n] != NULL)
			since[n] = m->server->peer[n]->since_ns;
	return xxh_sum(since, sizeof(since), sum) | 1;
}

static void note_since(struct model *m, uint64_t now_ns)
{
	struct moving *v = moving_of(m);

	if (!moving_on(m) && moving_trouble(m)[0] == 0) {
		if (v != NULL)
			v->since_ns = 0;
	} else if ((v = moving_new(m)) != NULL && v->since_ns == 0) {
		v->since_ns = now_ns;
	}
}

/* A file has the chunks that it was made for. */
static void stays(struct model *m)
{
	struct moving *v = moving_new(m);

	if (v == NULL)
		return;
	v->due = false;
	snprintf(v->why, sizeof(v->why),
		 "\"%s\" has nvme_durable = step, whose chunks stay where they are", m->name);
}

static void moving_beat(struct model *m, uint64_t now_ns)
{
	struct moving *v = moving_of(m);
	uint64_t capacity[CORE_NODES_MAX], seen;
	uint32_t nr[CORE_NODES_MAX];
	bool due = v != NULL && v->due, out;

	if (!server_leads(m->server) || lead_known(m->server, NULL) != SHARD_OK || m->defining ||
	    m->dropping || !m->sealed || m->server->stop.on)
		return;
	note_since(m, now_ns);
	v = moving_of(m);
	if (v != NULL && (v->task != NULL || v->state == MOVING_ROOM))
		return;
	count_chunks(&m->place, nr);
	capacities(m, nr, now_ns, capacity);
	out = out_of_place(m, nr, capacity);
	if (!due && !out && v != NULL)
		v->why[0] = 0;
	if ((due || out) && m->set.nvme_durable) {
		if (all_here(m)) /* Else it is a node that is away, and waited for. */
			stays(m);
		return;
	}
	if ((!due && !out) || !settled(m) || (v = moving_new(m)) == NULL)
		return;
	seen = seen_sum(m, capacity);
	if (!due && (seen == v->seen || (seen == v->tried && now_ns < v->again_ns) || !all_here(m)))
		return;
	v->seen = seen;
	order(v, capacity);
}

static void moving_moved(struct model *m)
{
	struct moving *v = moving_of(m);

	log_line(m->server->log, LOG_LEVEL_INFO, "event=moved model=%s seconds=%.3f", m->name,
		 v != NULL && v->state == MOVING_ON
			 ? (double)(clock_ns() - v->began_ns) / NS_PER_SEC
			 : 0);
	if (v == NULL)
		return;
	v->state = MOVING_IDLE;
	v->why[0] = 0;
	v->since_ns = 0;
}

static void moving_resigned(struct model *m)
{
	struct moving *v = moving_of(m);

	if (v == NULL)
		return;
	round_end(&v->round, m->server);
	placing_free(&v->to);
	v->state = MOVING_IDLE;
	v->due = false;
	v->seen = 0;
	v->since_ns = 0;
	v->why[0] = 0;
}

const struct model_watch moving_watch = {.beat = moving_beat,
					 .moved = moving_moved,
					 .resigned = moving_resigned,
					 .going = moving_going};
