/* SPDX-License-Identifier: Apache-2.0 */
/* Links of the simulated cluster. shell.c sends messages here, and the event table in sim.c
 * delivers them. A connection has an epoch, and each end learns of its beginning and its end at its
 * own time. Within an epoch messages may be lost, late, copied and, if the seed says so, reordered.
 * Nothing crosses from one epoch to the next. */
#include "sim/sim.h"

#include <stdlib.h>
#include <string.h>

static const char *const op_names[CORE_MSG_NR] = {
	"?",       "ASK",     "ANSWER", "VIEW", "VIEW_OK", "BEGIN", "GRANT",
	"VOTE",    "COMMIT",  "ABORT",  "DONE", "DRAINED", "JOIN",  "GONE",
	"ABANDON", "WAITING", "RANKS",  "HEAR", "HEARD",   "ODD",   "BACK"};

struct conn *link_conn(struct sim *s, uint16_t a, uint16_t b)
{
	return a < b ? &s->conn[a][b] : &s->conn[b][a];
}

static void *append(char **at, const void *what, size_t bytes)
{
	void *to = *at;

	if (!what)
		return NULL;
	memcpy(to, what, bytes);
	*at += (bytes + 15) & ~(size_t)15;
	return to;
}

static size_t vote_bytes(const struct core_vote *v)
{
	return v->chunks_nr * 9 + v->ranks_nr * 8 + v->lr_nr * 8 + v->values_nr * 8 + 96;
}

static void vote_copy(char **at, struct core_vote *v)
{
	v->sumsq = append(at, v->sumsq, v->chunks_nr * sizeof(double));
	v->finite = append(at, v->finite, v->chunks_nr);
	v->weights = append(at, v->weights, v->ranks_nr * sizeof(double));
	v->lr = append(at, v->lr, v->lr_nr * sizeof(double));
	v->values = append(at, v->values, v->values_nr * sizeof(double));
}

static struct flight *flight_copy(const struct core_msg *m, uint32_t epoch)
{
	size_t bytes = sizeof(struct flight) + 256 + vote_bytes(&m->vote) +
		       (m->world ? sizeof(*m->world) + 16 : 0) +
		       (m->record ? sizeof(*m->record) + 16 : 0) +
		       (m->view ? sizeof(*m->view) + 16 : 0) +
		       (m->answer ? sizeof(*m->answer) + 16 + vote_bytes(&m->answer->vote) : 0) +
		       (m->why ? strlen(m->why) + 17 : 0);
	struct flight *f = malloc(bytes);
	char *at = (char *)(f + 1);
	struct core_answer *answer;

	CHECK(f);
	at += 16 - (uintptr_t)at % 16;
	f->msg = *m;
	f->epoch = epoch;
	vote_copy(&at, &f->msg.vote);
	f->msg.world = append(&at, m->world, sizeof(*m->world));
	f->msg.record = append(&at, m->record, sizeof(*m->record));
	f->msg.view = append(&at, m->view, sizeof(*m->view));
	f->msg.answer = answer = append(&at, m->answer, sizeof(*m->answer));
	if (answer)
		vote_copy(&at, &answer->vote);
	f->msg.why = append(&at, m->why, m->why ? strlen(m->why) + 1 : 0);
	CHECK((size_t)(at - (char *)f) <= bytes);
	return f;
}

/* A message that is sent now arrives with this event. */
struct sim_event *link_time(struct sim *s, uint16_t from, uint16_t to, enum sim_kind kind)
{
	struct conn *c = link_conn(s, from, to);
	uint64_t *last = &c->last_at[from < to];
	uint64_t delay = s->faults && sim_chance(s, s->late) ? sim_between(s, MS, 400 * MS)
							     : sim_between(s, 50000, 2 * MS);

	if (!s->reorder && s->now + delay < *last)
		delay = *last - s->now;
	if (!s->reorder)
		*last = s->now + delay;
	return sim_at(s, delay, kind, to);
}

static void link_put(struct sim *s, uint16_t from, uint16_t to, const struct core_msg *m,
		     uint32_t epoch)
{
	struct sim_event *e = link_time(s, from, to, SIM_DELIVER);

	e->flight = flight_copy(m, epoch);
}

void link_send(struct sim *s, uint16_t from, const struct core_msg *m)
{
	char id[64];
	const struct sim_node *nd = &s->node[from];
	uint32_t epoch = nd->link[m->to];

	CHECK(m->from == nd->self && m->to < s->nodes_nr && m->to != nd->self);
	CHECK(m->from_incarnation == shell_of(s, from)->incarnation && epoch);
	sim_trace(s, "n%u -> n%u %s %s%s%s", from, nd->end[m->to], op_names[m->op],
		  sim_id(&m->id, id), m->why ? ": " : "", m->why ? m->why : "");
	if ((s->faults && sim_chance(s, s->loss)) || one_way_lost(s, from, nd->end[m->to])) {
		sim_trace(s, "  lost");
		return;
	}
	link_put(s, from, nd->end[m->to], m, epoch);
	if (s->faults && sim_chance(s, s->copy))
		link_put(s, from, nd->end[m->to], m, epoch);
}

void link_deliver(struct sim *s, const struct sim_event *e)
{
	struct sim_node *n = &s->node[e->node];
	const struct core_msg *m = &e->flight->msg;
	struct core_event msg = {.type = CORE_EV_MSG, .msg = m};
	char id[64];

	/* The frames of a closed connection went with it. */
	if (n->alive && n->link[m->from] == e->flight->epoch) {
		sim_trace(s, "n%u <- n%u %s %s", e->node, n->end[m->from], op_names[m->op],
			  sim_id(&m->id, id));
		node_event(s, e->node, &msg);
	}
	free(e->flight);
}

/* Every model of a process hears of its links. The process may die of what one of them does. */
void link_tell(struct sim *s, uint16_t slot, const struct core_event *e)
{
	struct core_event tell = *e;
	uint64_t start = s->node[slot].starts;

	for (uint16_t i = 0;
	     i < s->models_nr && s->node[slot].alive && s->node[slot].starts == start; i++) {
		s->m = &s->model[i];
		if (e->type == CORE_EV_LINK_UP)
			tell.who = shell_who(s, s->node[slot].end[e->node]);
		node_event(s, slot, &tell);
	}
}

static void link_gone(struct sim *s, uint16_t slot, uint16_t peer)
{
	for (uint16_t i = 0; i < s->models_nr; i++) {
		s->m = &s->model[i];
		shell_link_lost(s, slot, peer);
	}
}

void link_up(struct sim *s, const struct sim_event *e)
{
	struct sim_node *n = &s->node[e->node];
	struct conn *c = link_conn(s, e->node, e->peer);
	uint16_t peer = s->node[e->peer].self;
	struct core_event up = {.type = CORE_EV_LINK_UP, .node = peer};

	if (e->epoch != c->epoch || !c->up)
		return;
	if (n->link[peer] >= e->epoch) {
		/* A newer connection to another process of that node was there first. */
		if (n->end[peer] != e->peer)
			link_break(s, e->node, e->peer);
		return;
	}
	if (n->link[peer]) {
		link_gone(s, e->node, peer);
		voters_link(s, e->node, peer, false);
	}
	voters_link(s, e->node, peer, true);
	/* The newest connection counts, and the other process loses its own. */
	if (n->link[peer] && n->end[peer] != e->peer)
		link_break(s, e->node, n->end[peer]);
	n->link[peer] = e->epoch;
	n->end[peer] = e->peer;
	n->knows |= 1ull << peer;
	if (e->node == s->lead) {
		s->node[peer].away_since = 0;
		s->node[peer].known = true;
		joins_linked(s, peer);
	}
	sim_trace(s, "n%u LINK UP n%u epoch %u", e->node, e->peer, e->epoch);
	link_tell(s, e->node, &up);
}

void link_down(struct sim *s, const struct sim_event *e)
{
	struct sim_node *n = &s->node[e->node];
	uint16_t peer = s->node[e->peer].self;
	struct core_event down = {
		.type = CORE_EV_LINK_DOWN, .node = peer, .why = "connection closed"};

	if (n->link[peer] != e->epoch)
		return;
	link_gone(s, e->node, peer);
	n->link[peer] = 0;
	voters_link(s, e->node, peer, false);
	if (e->node == s->lead) {
		s->missed_at = s->now;
		s->node[peer].away_since = clock_of(s, e->node);
	}
	sim_trace(s, "n%u LINK DOWN n%u epoch %u", e->node, e->peer, e->epoch);
	link_tell(s, e->node, &down);
}

void link_connect(struct sim *s, const struct sim_event *e)
{
	struct conn *c = link_conn(s, e->node, e->peer);
	struct sim_node *a = &s->node[e->node], *b = &s->node[e->peer];

	c->connecting = false;
	if (c->up || (e->peer == ZOMBIE && !b->alive) || (e->node == ZOMBIE && !a->alive))
		return;
	if (!a->alive || !b->alive || a->paused || b->paused || c->cut || one_way_shut(s, c)) {
		struct sim_event *again = sim_at(s, 100 * MS, SIM_CONNECT, e->node);

		again->peer = e->peer;
		c->connecting = true;
		return;
	}
	c->up = true;
	c->epoch = ++s->epochs;
	c->last_at[0] = c->last_at[1] = 0;
	for (uint32_t i = 0; i < 2; i++) {
		uint16_t me = i ? e->peer : e->node, you = i ? e->node : e->peer;
		uint64_t delay = sim_between(s, 0, 3 * MS);
		struct sim_event *up = sim_at(s, delay, SIM_LINK_UP, me);

		up->peer = you;
		up->epoch = c->epoch;
	}
}

void link_break(struct sim *s, uint16_t a, uint16_t b)
{
	struct conn *c = link_conn(s, a, b);

	if (c->up) {
		for (uint32_t i = 0; i < 2; i++) {
			uint64_t delay = sim_between(s, 0, sim_chance(s, 200) ? 1500 * MS : 5 * MS);
			struct sim_event *down = sim_at(s, delay, SIM_LINK_DOWN, i ? a : b);

			down->peer = i ? b : a;
			down->epoch = c->epoch;
		}
	}
	c->up = false;
	if (!c->connecting) {
		struct sim_event *again =
			sim_at(s, sim_between(s, MS, 700 * MS), SIM_CONNECT, a < b ? a : b);

		again->peer = a < b ? b : a;
		c->connecting = true;
	}
}

void link_heal(struct sim *s)
{
	for (uint16_t i = 0; i < s->nodes_nr; i++) {
		for (uint16_t j = i + 1; j < s->nodes_nr; j++) {
			s->conn[i][j].cut = false;
			if (!s->conn[i][j].up)
				link_break(s, i, j);
		}
	}
}
