/* SPDX-License-Identifier: Apache-2.0 */
/* How the coordinator's shell has weights written and saves them, in phases and node by node, so
 * that it can lose what it has. To write, it asks each node for its chunks. They come from the
 * trainer that defined the model, or are read from a checkpoint. When all nodes say that their
 * chunks are there, it asks each once more whether it still has them, and then the core seals. A
 * node that loses the link to the coordinator while it reads throws away what it has read, since
 * nobody would tell it that the restore is over. It keeps what it has confirmed. A mark in its
 * memory says that a restore was reading, and a process that finds the mark throws that away, too.
 * What fails begins again under another number. To save, it reads each node's chunks while the
 * model is held, over links that stay up. */
#include "sim/sim.h"

#include "core/inner.h"

#include <string.h>

#define LOAD_NS (700 * MS) /* After this time it begins again. */

/* Is it a member of the view that the coordinator has adopted? All others are left alone. A zombie
 * may ask before its successor has started. */
static bool load_member(struct sim *s, uint16_t n)
{
	const struct core *c = shell_of(s, s->lead)->core;

	return !c || view_is_member(&c->member.members, n);
}

/* The link of a node to the coordinator, or of the coordinator to itself. 0: none. */
static uint32_t link_to_lead(const struct sim *s, uint16_t n)
{
	return n == s->lead                         ? UINT32_MAX
	       : s->node[n].end[s->lead] == s->lead ? s->node[n].link[s->lead]
						    : 0;
}

static uint32_t link_of_lead(const struct sim *s, uint16_t n)
{
	return n == s->lead ? UINT32_MAX : s->node[s->lead].link[n];
}

static void load_at(struct sim *s, uint16_t n, enum sim_kind kind, uint16_t peer, uint64_t delay)
{
	struct sim_event *e = sim_at(s, delay, kind, n);

	e->peer = peer;
	e->epoch = s->m->load.number;
	e->session = link_of_lead(s, n == s->lead ? peer : n);
}

void load_forget(struct sim *s, uint16_t n)
{
	struct shell *sh = shell_of(s, n);

	for (uint32_t c = 0; c < s->m->chunks_nr && sh->loading; c++) {
		if (!shell_keeps(s, n, c))
			continue;
		sh->written[c] = false;
		sh->weights[c] = 0;
	}
	sh->loading = 0;
	sh->confirmed = false;
	sh->load = 0;
}

void load_link_lost(struct sim *s, uint16_t n, uint16_t peer)
{
	struct shell *sh = shell_of(s, n);

	if (peer == s->lead && sh->loading && !sh->confirmed)
		load_forget(s, n);
}

static void load_said(struct sim *s, uint16_t n)
{
	load_at(s, s->lead, SIM_LOAD_SAID, n, sim_between(s, 50000, 3 * MS));
}

/* A node is asked for its chunks. */
void load_asked(struct sim *s, const struct sim_event *e)
{
	const struct sim_load *l = &s->m->load;
	struct shell *sh = shell_of(s, e->node);
	struct core_state st;

	core_state(sh->core, &st);
	if (e->epoch != l->number || link_to_lead(s, e->node) != e->session ||
	    st.generation != l->generation || st.sealed)
		return;
	sh->generation = st.generation;
	load_forget(s, e->node); /* What an earlier request has read. */
	sh->load = l->number;
	sh->loading = l->reads ? l->number : 0;
	sh->load_left = 0;
	for (uint32_t c = 0; c < s->m->chunks_nr; c++) {
		struct sim_event *read;

		if (!shell_keeps(s, e->node, c) || (!l->reads && sh->written[c]))
			continue;
		sh->load_left++;
		read = sim_at(s, sim_between(s, 100000, e->node == s->slow ? 150 * MS : 30 * MS),
			      SIM_LOAD_CHUNK, e->node);
		read->chunk = c;
		read->epoch = l->number;
	}
	if (!sh->load_left)
		load_said(s, e->node);
}

void load_chunk(struct sim *s, const struct sim_event *e)
{
	const struct sim_load *l = &s->m->load;
	struct shell *sh = shell_of(s, e->node);

	if (sh->load != e->epoch || l->number != e->epoch || sh->generation != l->generation)
		return;
	if (s->faults && sim_chance(s, 20 * s->dies)) { /* The process dies while it reads. */
		fault_crash(s, e->node);
		return;
	}
	sh->written[e->chunk] = true;
	sh->weights[e->chunk] =
		l->reads ? s->m->orders.newest.weights[e->chunk] : sim_mix(l->generation, e->chunk);
	if (--sh->load_left == 0)
		load_said(s, e->node);
}

/* A node is asked whether it still has what it said. From here on it keeps it, whatever happens to
 * the link. */
void load_confirm(struct sim *s, const struct sim_event *e)
{
	struct shell *sh = shell_of(s, e->node);

	if (sh->load != e->epoch || link_to_lead(s, e->node) != e->session)
		return;
	for (uint32_t c = 0; c < s->m->chunks_nr; c++) {
		if (shell_keeps(s, e->node, c) && !sh->written[c])
			return;
	}
	sh->confirmed = true;
	load_said(s, e->node);
}

/* True: these are the links over which the nodes were asked. */
static bool load_links(struct sim *s)
{
	for (uint16_t n = 0; n < s->nodes_nr; n++) {
		if (load_member(s, n) && s->m->load.link[n] != link_of_lead(s, n))
			return false;
	}
	return true;
}

static void load_seal(struct sim *s)
{
	const struct sim_load *l = &s->m->load;
	const struct sim_checkpoint *from = &s->m->orders.newest;
	struct core_event written = {.type = CORE_EV_WRITTEN, .id.generation = l->generation};

	written.step = l->reads ? from->step : 10 * l->generation;
	written.restored = l->reads ? &from->restored : NULL;
	sim_trace(s, "n%u WRITTEN generation %u step %llu%s", s->lead, l->generation,
		  (unsigned long long)written.step, l->reads ? " from the checkpoint" : "");
	truth_written(s, l->generation, l->reads);
	node_event(s, s->lead, &written);
}

/* A node has said that its part is there, or later that it still is. */
void load_answer(struct sim *s, const struct sim_event *e)
{
	struct sim_load *l = &s->m->load;

	if (!l->on || e->epoch != l->number || !load_links(s))
		return;
	l->part[e->peer]++;
	for (uint16_t n = 0; n < s->nodes_nr; n++) {
		if (load_member(s, n) && l->part[n] != l->part[e->peer])
			return;
	}
	if (l->part[e->peer] == LOAD_CONFIRMED) {
		l->on = false;
		load_seal(s);
		return;
	}
	for (uint16_t n = 0; n < s->nodes_nr; n++) {
		if (load_member(s, n))
			load_at(s, n, SIM_LOAD_CONFIRM, n, sim_between(s, 50000, 3 * MS));
	}
}

static void load_begin(struct sim *s, const struct core_state *st)
{
	struct sim_load *l = &s->m->load;
	const struct sim_orders *o = &s->m->orders;

	l->on = true;
	l->number++;
	l->generation = st->generation;
	l->start = s->node[s->lead].starts;
	l->until = s->now + LOAD_NS;
	l->reads = st->restoring || (o->newest.step && !o->script &&
				     sim_chance(s, 500)); /* An operator kept a copy. */
	memset(l->part, 0, sizeof(l->part));
	sim_trace(s, "n%u LOADS generation %u number %u%s", s->lead, l->generation, l->number,
		  l->reads ? " from the checkpoint" : "");
	for (uint16_t n = 0; n < s->nodes_nr; n++) {
		l->link[n] = link_of_lead(s, n);
		if (load_member(s, n))
			load_at(s, n, SIM_LOAD, n, sim_between(s, 50000, 3 * MS));
	}
}

/* Runs at the coordinator from time to time. A model that is not sealed gets its weights, also
 * after LOST. */
void load_tick(struct sim *s)
{
	const struct sim_node *nd = &s->node[s->lead];
	struct sim_load *l = &s->m->load;
	struct core_state st;
	bool linked = true;

	sim_at(s, sim_between(s, 5 * MS, 60 * MS), SIM_WRITE, NOWHERE);
	if (!nd->alive || nd->paused || !elect_acts(s))
		return;
	core_state(shell_of(s, s->lead)->core, &st);
	if (!st.generation || st.sealed || st.seals || (st.restoring && !s->m->orders.newest.has)) {
		l->on = false;
		return;
	}
	if (l->on && (l->generation != st.generation || l->start != nd->starts || !load_links(s) ||
		      s->now >= l->until))
		l->on = false;
	for (uint16_t n = 0; n < s->nodes_nr; n++)
		linked = linked && (!load_member(s, n) || link_of_lead(s, n));
	if (!l->on && linked)
		load_begin(s, &st);
}

/* --- saving --- */

/* Has the node a copy that counts, in the view of the coordinator? All of them are the same. */
static bool saves(struct sim *s, uint16_t n, uint32_t chunk)
{
	return place_holds(&shell_of(s, s->lead)->place, chunk, n) && load_member(s, n);
}

static bool save_part(struct sim *s, uint16_t n, struct sim_save *v)
{
	const struct shell *sh = shell_of(s, n);
	const struct truth *t = truth_of(s, v->id.generation);

	if (!s->node[n].alive || !link_of_lead(s, n) || sh->generation != v->id.generation ||
	    sh->chunks_left)
		return false;
	for (uint32_t c = 0; c < s->m->chunks_nr; c++) {
		if (saves(s, n, c) && sh->version[c] != v->id.step)
			return false;
	}
	for (uint32_t c = 0; c < s->m->chunks_nr; c++) {
		if (saves(s, n, c) &&
		    (!sh->written[c] || sh->weights[c] != t->weights[v->id.step % 2][c]))
			sim_fail(s, "held", "chunk %u is not as of step %llu, which is held", c,
				 (unsigned long long)v->id.step);
		if (saves(s, n, c))
			v->weights[c] = sh->weights[c];
	}
	v->link[n] = link_of_lead(s, n);
	v->saved[n] = true;
	return true;
}

/* Saves the parts of some more nodes of the held step. True: all parts are there, over links that
 * stayed up. */
bool load_save(struct sim *s, const struct core_id *id, uint64_t weights[CHUNKS])
{
	struct sim_save *v = &s->m->save;

	if (core_id_cmp(&v->id, id) || v->start != s->node[s->lead].starts)
		*v = (struct sim_save){.id = *id, .start = s->node[s->lead].starts};
	for (uint16_t n = 0; n < s->nodes_nr; n++) {
		if (v->saved[n] && v->link[n] != link_of_lead(s, n))
			*v = (struct sim_save){.id = *id, .start = v->start};
	}
	for (uint16_t n = 0; n < s->nodes_nr; n++) {
		if (!v->saved[n] && load_member(s, n) &&
		    (sim_chance(s, 300) || !save_part(s, n, v)))
			return false;
	}
	memcpy(weights, v->weights, sizeof(v->weights));
	*v = (struct sim_save){0};
	return true;
}
