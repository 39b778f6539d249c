/* SPDX-License-Identifier: Apache-2.0 */
/* What every part of a core needs: actions and messages to append, sentences, timers, and questions
 * about the core that decide nothing. All other parts of the core call it. A message to this very
 * node goes to the inbox of the call, and core.c delivers it before the call ends. The functions of
 * this file cannot fail. One event can cause only a bounded number of actions and messages, which a
 * CHECK holds. A sentence for which there is no room is cut short. */
#include "core/ctx.h"

#include "core/inner.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const struct view_members *core_members(const struct core *c)
{
	return &c->member.members;
}

const struct placement *core_place(const struct core *c)
{
	return &c->member.place;
}

bool core_counts(const struct core *c, uint16_t node)
{
	const struct placement *p = core_place(c);

	return !((p->learns | p->gone) >> node & 1);
}

bool core_fetches(const struct core *c)
{
	return !core_counts(c, c->conf.self) || core_place(c)->moves >> c->conf.self & 1;
}

uint16_t core_coordinator(const struct core *c)
{
	return core_coordinates(c) ? c->conf.self : view_coordinator(core_members(c));
}

const char *core_node_name(const struct core *c, uint16_t node)
{
	static const char *const numbers[] = {
		"0",  "1",  "2",  "3",  "4",  "5",  "6",  "7",  "8",  "9",  "10", "11", "12",
		"13", "14", "15", "16", "17", "18", "19", "20", "21", "22", "23", "24", "25",
		"26", "27", "28", "29", "30", "31", "32", "33", "34", "35", "36", "37", "38",
		"39", "40", "41", "42", "43", "44", "45", "46", "47", "48", "49", "50", "51",
		"52", "53", "54", "55", "56", "57", "58", "59", "60", "61", "62", "63"};

	_Static_assert(NR(numbers) >= CORE_NODES_MAX, "every slot has a number");
	if (node >= CORE_NODES_MAX || !(c->conf.slots >> node & 1))
		return "?";
	return c->conf.node_names[node] ? c->conf.node_names[node] : numbers[node];
}

bool core_coordinates(const struct core *c)
{
	return c->coord.state != COORD_OFF;
}

bool core_linked(const struct core *c, uint16_t node)
{
	return c->linked >> node & 1;
}

bool core_world_ok(const struct core *c, const struct core_world *w, uint64_t nodes)
{
	if (!w || core_world_wrong(w, CORE_NODES_MAX, c->conf.max_world, c->conf.local_world))
		return false;
	for (uint32_t i = 0; i < w->size; i++) {
		if (!(nodes >> w->rank[i].node & 1))
			return false;
	}
	return true;
}

uint32_t core_local_ranks(const struct core_world *w, uint16_t node)
{
	uint32_t nr = 0;

	for (uint32_t i = 0; i < w->size; i++)
		nr += w->rank[i].node == node;
	return nr;
}

uint64_t core_ranked(const struct core_world *w)
{
	uint64_t nodes = 0;

	for (uint32_t i = 0; i < w->size; i++)
		nodes |= 1ull << w->rank[i].node;
	return nodes;
}

void timer_stop(struct timer *t)
{
	t->at = UINT64_MAX;
	t->count = 0;
}

void timer_start(const struct core *c, struct timer *t, uint64_t now)
{
	t->at = now + c->conf.repeat_ns;
	t->count = 0;
}

void timer_next(const struct core *c, struct timer *t, uint64_t now)
{
	uint64_t gap = c->conf.repeat_ns << (t->count < 16 ? ++t->count : t->count);

	/* Slow repeats of all timers fall on the same instants, so that a waiting node wakes only
	 * once a second. */
	t->at = gap < CORE_SECOND_NS ? now + gap : (now / CORE_SECOND_NS + 1) * CORE_SECOND_NS;
}

void core_copy_text(char *to, size_t bytes, const char *from)
{
	size_t nr = from ? strlen(from) : 0;

	CHECK(bytes > 0);
	if (nr >= bytes)
		nr = bytes - 1;
	if (nr)
		memmove(to, from, nr);
	to[nr] = 0;
}

const char *core_text(struct core *c, const char *fmt, ...)
{
	size_t left = CORE_TEXTS_BYTES - c->texts_used;
	char *text = c->texts + c->texts_used;
	va_list ap;
	int nr;

	if (left < 2)
		return "";
	va_start(ap, fmt);
	nr = vsnprintf(text, left, fmt, ap);
	va_end(ap);
	c->texts_used += nr < 0 ? 0 : (size_t)nr < left ? (size_t)nr + 1 : left;
	return text;
}

const char *core_rank_name(struct core *c, const struct core_world *w, uint32_t rank)
{
	const struct core_rank *r = &w->rank[rank];

	CHECK(rank < w->size);
	return core_text(c, "rank %u (pid %u, node %s)", rank, r->pid, core_node_name(c, r->node));
}

struct core_action *core_act(struct ctx *x, enum core_action_type type)
{
	struct core_action *a = &x->out->act[x->out->nr];

	CHECK(x->out->nr < CORE_ACTIONS_MAX);
	x->out->nr++;
	memset(a, 0, sizeof(*a));
	a->type = type;
	return a;
}

struct core_msg *core_send(struct ctx *x, uint16_t to, enum core_op op, const struct core_id *id)
{
	struct core *c = x->c;
	struct core_msg *m = &x->nobody;

	CHECK(to < CORE_NODES_MAX);
	if (to == c->conf.self) {
		CHECK(x->tail < CORE_INBOX_NR);
		m = &x->inbox[x->tail++];
	} else if (core_linked(c, to)) {
		m = &core_act(x, CORE_ACT_SEND)->msg;
	}
	memset(m, 0, sizeof(*m));
	m->op = op;
	m->from = c->conf.self;
	m->to = to;
	m->from_incarnation = c->conf.who.incarnation;
	m->id = *id;
	return m;
}

bool core_adopted(const struct core *c, const struct core_id *id)
{
	const struct member *m = &c->member;

	return m->term && id->term == m->term && id->seq == m->seq &&
	       id->generation == m->generation && id->term >= m->promised;
}

int32_t core_rank_of(const struct core_world *w, uint16_t node, uint64_t session)
{
	for (uint32_t i = 0; i < w->size; i++) {
		if (w->rank[i].node == node && w->rank[i].session == session)
			return (int32_t)i;
	}
	return -1;
}
