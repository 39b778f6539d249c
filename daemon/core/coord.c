/* SPDX-License-Identifier: Apache-2.0 */
/* The coordinator as a whole: what it does at the end of every event, at its timer, and when a link
 * comes or goes. core.c calls it. It owns the orders that hold decisions (HOLD) or put a trainer
 * out (KICK), and the text about who is waited for. Happy path: views are settled (recover.c), a
 * world is made (world.c), and an attempt begins (attempt.c), as long as every member is linked and
 * nobody has ordered a pause. When the deadline of a step passes, the trainers that are waited for
 * are expelled, so that the same attempt is not repeated unchanged. With straggler_timeout they are
 * expelled earlier, as soon as the others alone may go on. Everything that was not answered is sent
 * again at each tick. Nodes that are not the coordinator skip all of this, because their state is
 * COORD_OFF. */
#include "core/coord.h"

#include "core/inner.h"
#include "core/judge.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void coord_check(const struct core *c)
{
	const struct coord *co = &c->coord;

	CHECK(co->state < COORD_NR);
	CHECK(!co->term == (co->state == COORD_OFF));
	CHECK(co->term <= c->member.promised || co->state <= COORD_RECOVER);
	CHECK(!co->held || (c->step.hold && co->has_last && c->step.part != CORE_PREPARED));
	attempt_check(c);
	world_check(c);
	recover_check(c);
}

/* One damaged contribution may be the network or a stray write. A second one in the same step means
 * that the trainer keeps writing to memory that it pushed. It is expelled, because the step would
 * never end. */
static void coord_damaged(struct ctx *x, const struct core_msg *m, const char *why)
{
	struct coord *co = &x->c->coord;
	uint32_t rank = (uint32_t)m->trainer.hint;
	const struct core_rank *r = &co->world.rank[rank];

	if (!m->trainer.session || rank >= co->world.size || r->session != m->trainer.session)
		return;
	if (co->damaged_step == co->id.step && co->damaged.session == r->session &&
	    co->damaged.node == r->node)
		world_expel(x, &co->world, rank, why);
	co->damaged = *r;
	co->damaged_step = co->id.step;
}

void coord_on_abandon(struct ctx *x, const struct core_msg *m)
{
	struct core *c = x->c;
	const char *why;

	/* A node that has voted has nothing to say of its gradients. But it may have started again
	 * since, and others wait for what it does not send any more. */
	if (!attempt_is_of(x, m) ||
	    (c->coord.node[m->from].voted && (m->trainer.session || m->differs)))
		return;
	why = m->why ? core_text(c, "%s", m->why)
		     : core_text(c, "node %s dropped it", core_node_name(c, m->from));
	coord_damaged(x, m, why);
	if (m->differs)
		odd_tried(c, why, "Look at the nodes, stop a bad one");
	attempt_abort(x, m->status ? m->status : SHARD_WORLD_CHANGED, why);
}

void coord_on_link_up(struct ctx *x, uint16_t node)
{
	struct core *c = x->c;
	struct coord *co = &c->coord;

	co->node[node].absent_since = 0;
	if (co->node[node].answered && !view_same(&co->node[node].who, &c->link[node].who))
		co->node[node].answered = co->node[node].is_prepared = false;
	recover_send(x, node);
	hear_send(x, node);
	if (co->state != COORD_OPEN || !coord_lists(c, node))
		return;
	if (!co->node[node].done)
		attempt_send_commit(x, node);
	if (co->undecided && !co->node[node].voted)
		attempt_send_begin(x, node);
}

void coord_on_link_down(struct ctx *x, uint16_t node, const char *why)
{
	struct core *c = x->c;

	c->coord.node[node].absent_since = x->now ? x->now : 1;
	hear_missed(x, node);
	back_link_down(c, node);
	world_lost_node(x, node, why);
	if (c->coord.undecided && !c->coord.node[node].voted)
		attempt_abort(x, SHARD_WORLD_CHANGED, why);
}

/* --- orders --- */

/* Is a hold ordered that can begin, because this node has voted for nothing that is undecided? */
static bool hold_can(const struct core *c)
{
	const struct coord *co = &c->coord;

	return c->step.hold && !co->held && co->state == COORD_OPEN && co->view.sealed &&
	       c->step.part != CORE_PREPARED;
}

static void hold_settle(struct ctx *x)
{
	struct coord *co = &x->c->coord;

	if (!hold_can(x->c))
		return;
	CHECK(co->has_last);
	co->held = true;
	co->held_ns = x->now;
	core_act(x, CORE_ACT_HELD)->record = &co->last;
}

/* Moves the time `at` on by the part of the hold that came after it. */
static uint64_t hold_later(uint64_t at, uint64_t held_ns, uint64_t now)
{
	return at + now - (at > held_ns ? at : held_ns);
}

void coord_on_hold(struct ctx *x, const struct core_event *e)
{
	struct coord *co = &x->c->coord;

	if (co->state == COORD_OFF || x->c->step.hold == e->on)
		return;
	if (!e->on && co->held && co->undecided) {
		/* The deadline of the attempt did not run during the hold. */
		co->begun_ns = hold_later(co->begun_ns, co->held_ns, x->now);
		co->behind_ns = hold_later(co->behind_ns, co->held_ns, x->now);
		co->ready_ns = hold_later(co->ready_ns, co->held_ns, x->now);
	}
	if (!e->on)
		co->held = false;
	step_hold(x, e->on);
}

void coord_on_keep_view(struct ctx *x, const struct core_event *e)
{
	if (x->c->coord.state != COORD_OFF)
		x->c->coord.keeps_view = e->on;
}

static void kick_process(struct ctx *x, const struct core_trainer *t, const char *why)
{
	struct core *c = x->c;
	struct coord *co = &c->coord;
	uint32_t rank = 0;

	while (rank < co->world.size &&
	       (co->world.rank[rank].node != t->node || co->world.rank[rank].pid != t->pid))
		rank++;
	world_expel_process(x, t->node, t->pid, why);
	if (rank < co->world.size)
		attempt_abort(
			x, SHARD_WORLD_CHANGED,
			core_text(c, "%s is out: %s", core_rank_name(c, &co->world, rank), why));
}

void coord_on_kick(struct ctx *x, const struct core_event *e)
{
	struct core *c = x->c;
	struct coord *co = &c->coord;
	const char *why = core_text(c, "%s", e->why ? e->why : "an operator put it out");

	if (co->state != COORD_OFF && e->on) {
		kick_process(x, &e->trainer, why);
		return;
	}
	if (co->state == COORD_OFF || e->rank >= co->world.size ||
	    !world_expel(x, &co->world, e->rank, why))
		return;
	attempt_abort(x, SHARD_WORLD_CHANGED,
		      core_text(c, "%s is out: %s", core_rank_name(c, &co->world, e->rank), why));
}

void coord_end(struct ctx *x)
{
	struct core *c = x->c;

	if (c->coord.state == COORD_OFF)
		return;
	/* The coordinator here began it, and had no vote of this node. */
	if (c->step.part == CORE_STAGING && c->step.id.term == c->coord.term)
		step_drop(x, SHARD_WORLD_CHANGED, "this node does not coordinate any more");
	step_hold(x, false);
	memset(&c->coord, 0, sizeof(c->coord));
	timer_stop(&c->coord.timer);
	(void)core_act(x, CORE_ACT_RESIGNED);
}

void coord_on_lead(struct ctx *x, const struct core_event *e)
{
	struct core *c = x->c;

	CHECK(c->conf.elected && e->id.term > c->coord.term);
	coord_end(x);
	/* A higher term was heard, so the election is out of date. Or whoever gives out the terms
	 * has forgotten some. */
	if (e->id.term <= c->member.promised || (e->view && e->id.term <= e->view->term)) {
		(void)core_act(x, CORE_ACT_RESIGNED);
		return;
	}
	recover_init(c, e->id.term, e->view);
	view_each(i, coord_members(c)) {
		if (!core_linked(c, i))
			c->coord.node[i].absent_since = x->now ? x->now : 1;
	}
}

void coord_on_resign(struct ctx *x, const struct core_event *e)
{
	(void)e;
	coord_end(x);
}

bool coord_unheard(const struct core *c)
{
	const struct coord *co = &c->coord;

	if (co->state != COORD_OPEN || !co->has_last)
		return false;
	view_each(i, coord_members(c)) {
		if (!co->node[i].done && core_linked(c, i))
			return true;
	}
	return false;
}

static bool coord_paused(const struct core *c)
{
	const struct coord *co = &c->coord;

	return co->view.tune.paused || (co->has_last && record_pauses(&co->last, &co->view.tune));
}

/* Does the view leave a chunk with fewer copies than the model wants before another step begins? */
static bool coord_thin(const struct core *c)
{
	const struct coord *co = &c->coord;

	return co->state == COORD_OPEN && co->view.sealed && co->least < c->conf.min_copies;
}

/* --- who is waited for, in words --- */

#define WAITS_NAMES_MAX 3

struct words {
	char *text;
	size_t used, bytes;
	uint32_t names_nr;
};

__attribute__((format(printf, 2, 3))) static void words_add(struct words *w, const char *fmt, ...)
{
	va_list ap;
	int nr;

	va_start(ap, fmt);
	nr = vsnprintf(w->text + w->used, w->bytes - w->used, fmt, ap);
	va_end(ap);
	if (nr > 0)
		w->used = w->used + (size_t)nr < w->bytes ? w->used + (size_t)nr : w->bytes - 1;
}

/* Is there room for one more name? Names beyond the limit are only counted. */
static bool words_room(struct words *w)
{
	if (w->names_nr++ >= WAITS_NAMES_MAX)
		return false;
	if (w->names_nr > 1)
		words_add(w, ", ");
	return true;
}

/* Has the node voted, or would it have voted if this node did not hold? */
static bool node_voted(const struct core *c, uint16_t node)
{
	return c->coord.node[node].voted || c->coord.odd.spoke >> node & 1 ||
	       (c->step.hold && node == c->conf.self && step_complete(c) &&
		c->step.part == CORE_STAGING && !core_id_cmp(&c->step.id, &c->coord.id));
}

static bool rank_missing(const struct core *c, uint32_t rank)
{
	uint16_t node = c->coord.world.rank[rank].node;
	const struct coord_node *n = &c->coord.node[node];

	return !node_voted(c, node) &&
	       (!n->reported || n->waits.ranks[rank / 64] >> (rank % 64) & 1);
}

/* Does the attempt wait for something that no trainer can hasten? The node still applies the step
 * before, or makes its image again after a restart. */
static bool coord_behind(const struct core *c, uint16_t node)
{
	const struct coord_node *n = &c->coord.node[node];
	uint32_t chunk = n->waits.image_chunk - 1;

	if (n->voted || !n->done)
		return !n->voted;
	return n->reported && chunk < c->conf.chunks_nr && place_holds(coord_place(c), chunk, node);
}

static bool coord_any_behind(const struct core *c)
{
	view_each(i, coord_members(c)) {
		if (coord_behind(c, i))
			return true;
	}
	return false;
}

/* When an undecided attempt ends. A node that is behind is waited for at least as long as one that
 * is away. */
static uint64_t coord_ends_ns(const struct core *c)
{
	const struct coord *co = &c->coord;
	uint64_t step = c->conf.step_timeout_ns, lost = c->conf.lost_timeout_ns;

	if (coord_any_behind(c))
		return co->begun_ns + (lost > step ? lost : step);
	return co->behind_ns + step;
}

static void words_rank(const struct core *c, struct words *w, uint32_t rank)
{
	const struct core_rank *r = &c->coord.world.rank[rank];
	const struct core_waits *its = &c->coord.node[r->node].waits;
	uint32_t chunk = its->image_chunk - 1;

	words_add(w, "rank %u (pid %u, node %s)", rank, r->pid, core_node_name(c, r->node));
	if (!c->coord.node[r->node].done)
		words_add(w, ", which still applies step %llu",
			  (unsigned long long)c->coord.last.id.step);
	if (!c->coord.node[r->node].reported || its->image_chunk == 0 || chunk >= c->conf.chunks_nr)
		return;
	words_add(w, ", which waits there for chunk %u of the image of step %llu, which ", chunk,
		  (unsigned long long)its->image_step);
	if (place_holds(coord_place(c), chunk, r->node))
		words_add(w, "is being made again after a restart");
	else
		words_add(w, "node %s holds",
			  core_node_name(c, place_primary(coord_place(c), chunk)));
}

/* Describes a node whose ranks are all ready. A node lacks the image of its own chunks only after a
 * restart. */
static void words_node(const struct core *c, struct words *w, uint16_t node)
{
	words_add(w, "node %s", core_node_name(c, node));
	if (!c->coord.node[node].done)
		words_add(w, ", which still applies step %llu",
			  (unsigned long long)c->coord.last.id.step);
	else if (coord_behind(c, node))
		words_add(w, ", whose image is being made again after a restart");
}

static void waits_nodes(const struct core *c, struct words *w)
{
	const struct coord *co = &c->coord;
	uint16_t a, b;

	view_each(i, coord_members(c)) {
		const char *what = !core_linked(c, i) ? "has no link"
				   : co->state == COORD_RECOVER && !co->node[i].answered
					   ? "has not answered"
				   : co->state == COORD_VIEW && !co->node[i].view_ok
					   ? "has not adopted the view"
					   : NULL;

		if (what && words_room(w))
			words_add(w, "node %s, which %s", core_node_name(c, i), what);
	}
	if (recover_twins(c, &a, &b) && words_room(w))
		words_add(w, "nodes %s and %s, one of which has a copy of the other's state folder",
			  core_node_name(c, a), core_node_name(c, b));
}

/* Names the first chunk that has too few copies, and why the other nodes that have memory for it do
 * not count. */
static void waits_copies(const struct core *c, struct words *w)
{
	const struct placement *p = coord_place(c);
	uint32_t chunk = 0, nr;
	uint64_t others;

	while (chunk < c->conf.chunks_nr &&
	       (uint32_t)__builtin_popcountll(place_copies(p, chunk)) >= c->conf.min_copies)
		chunk++;
	CHECK(chunk < c->conf.chunks_nr);
	nr = (uint32_t)__builtin_popcountll(place_copies(p, chunk));
	words_add(w, "more copies of chunk %u, of which %u count%s and min_copies = %u", chunk, nr,
		  nr == 1 ? "s" : "", c->conf.min_copies);
	others = place_keepers(p, chunk) & ~place_copies(p, chunk);
	for (; others; others &= others - 1) {
		uint16_t node = (uint16_t)__builtin_ctzll(others);

		words_add(w, "%s node %s %s", w->names_nr ? "," : ":", core_node_name(c, node),
			  place_is_member(p, node) ? "catches up" : "is away");
		w->names_nr++;
	}
}

static void waits_attempt(const struct core *c, struct words *w)
{
	const struct coord *co = &c->coord;
	uint32_t staged = 0, all = 0,
		 ranks_nr; /* A chunk counts once on each node that holds it. */

	view_each(i, coord_members(c)) {
		all += co->held_nr[i];
		staged += node_voted(c, i)       ? co->held_nr[i]
			  : co->node[i].reported ? co->node[i].waits.chunks_staged
						 : 0;
	}
	for (uint32_t i = 0; i < co->world.size; i++) {
		if (rank_missing(c, i) && words_room(w))
			words_rank(c, w, i);
	}
	ranks_nr = w->names_nr;
	view_each(i, coord_members(c)) {
		/* A node with ranks is described together with its ranks. */
		bool behind = coord_behind(c, i) && core_local_ranks(&co->world, i) == 0;

		if (!node_voted(c, i) && (ranks_nr == 0 || behind) && words_room(w))
			words_node(c, w, i);
	}
	if (!w->names_nr && co->held) {
		words_add(
			w,
			"step %llu to be written to a checkpoint, or for its copies to be compared",
			(unsigned long long)co->last.id.step);
		return;
	}
	if (w->names_nr > WAITS_NAMES_MAX)
		words_add(w, " and %u more", w->names_nr - WAITS_NAMES_MAX);
	words_add(w, ": %u of %u chunks", staged, all);
}

bool coord_too_few(const struct core *c)
{
	const struct coord *co = &c->coord;

	return co->state == COORD_OPEN && co->view.sealed && !co->undecided && !coord_paused(c) &&
	       !judge_blocks(c) && !coord_thin(c) && !world_enough(c);
}

/* Names who was in the last world and is gone. A coordinator that has begun no attempt yet says
 * which ranks nobody asked for, if everybody asked for one. These are only hints, so it says no
 * more than that. */
static void words_gone(const struct core *c, struct words *w)
{
	const struct coord *co = &c->coord;
	uint32_t before = w->names_nr;

	for (uint32_t i = 0; i < co->world.size; i++) {
		const struct core_rank *r = &co->world.rank[i];

		if (world_joined(c, r->node, r->session))
			continue;
		words_add(w, "%s", w->names_nr == before ? "; gone: " : "");
		if (words_room(w))
			words_add(w, "rank %u (pid %u, node %s)", i, r->pid,
				  core_node_name(c, r->node));
	}
	if (co->world.size > 0 && w->names_nr > before + WAITS_NAMES_MAX)
		words_add(w, " and %u more", w->names_nr - before - WAITS_NAMES_MAX);
	if (co->world.size > 0 || !world_hinted(c))
		return;
	for (uint32_t i = 0; i < c->conf.min_world; i++) {
		if (world_asked(c, i))
			continue;
		words_add(w, "%s", w->names_nr == before ? "; nobody asked to be rank " : "");
		if (words_room(w))
			words_add(w, "%u", i);
	}
	if (w->names_nr > before + WAITS_NAMES_MAX)
		words_add(w, " and %u more", w->names_nr - before - WAITS_NAMES_MAX);
}

/* The step may wait for a link that other nodes lack. */
static void waits_links(const struct core *c, struct words *w)
{
	char pair[160];

	if (hear_pair(c, pair, sizeof(pair)))
		words_add(w, "%s%s", w->used ? "; " : "", pair);
}

void coord_waits(const struct core *c, char *text, size_t bytes)
{
	const struct coord *co = &c->coord;
	struct words w = {.text = text, .bytes = bytes};
	uint32_t missing =
		co->trainers_nr < c->conf.min_world ? c->conf.min_world - co->trainers_nr : 0;

	text[0] = 0;
	if (co->state == COORD_PERSIST) {
		words_add(&w, "%s",
			  c->conf.elected ? "the next view, which is not durable yet"
					  : "its own disk: the view is being written");
		return;
	}
	waits_nodes(c, &w);
	if (w.names_nr || co->state != COORD_OPEN || !co->view.sealed) {
		waits_links(c, &w);
		return;
	}
	if (co->undecided)
		waits_attempt(c, &w);
	else if (co->view.tune.paused)
		words_add(&w, "an operator paused the model: `shardctl model resume` lets it go "
			      "on");
	else if (coord_paused(c))
		words_add(&w,
			  "the model is paused since step %llu diverged: lower lr, or restore a "
			  "checkpoint, then `shardctl model resume` lets it go on",
			  (unsigned long long)co->last.id.step);
	else if (judge_blocks(c))
		words_add(&w, "%s", judge_waits(c));
	else if (coord_thin(c))
		waits_copies(c, &w);
	else if (missing) {
		words_add(&w, "%u more trainer%s: %u of at least %u joined", missing,
			  missing == 1 ? "" : "s", co->trainers_nr, c->conf.min_world);
		words_gone(c, &w);
	} else if (world_gathers(c))
		words_add(&w, "more trainers until join_timeout: %u of at most %u joined",
			  co->trainers_nr, c->conf.max_world);
	waits_links(c, &w);
}

static void coord_expel(struct ctx *x)
{
	struct core *c = x->c;
	struct coord *co = &c->coord;
	char text[512];
	const char *why;
	uint32_t expelled = 0;

	coord_waits(c, text, sizeof(text));
	why = core_text(c, "step %llu attempt %u waited %.1f s for %s",
			(unsigned long long)co->id.step, co->id.attempt,
			(double)(x->now - co->begun_ns) / (double)CORE_SECOND_NS, text);
	for (uint32_t i = 0; i < co->world.size; i++) {
		if (!rank_missing(c, i))
			continue;
		world_expel(x, &co->world, i, why);
		expelled++;
	}
	for (uint32_t i = 0; i < co->world.size && !expelled; i++) {
		/* All ranks are ready, but not all chunks come together. */
		if (co->node[co->world.rank[i].node].voted && i + 1 < co->world.size)
			continue;
		world_expel(x, &co->world, i, why);
		expelled++;
	}
	attempt_abort(x, SHARD_WORLD_CHANGED, why);
}

/* --- stragglers --- */

/* Can every rank that is not ready hasten the step? It cannot while its node has said nothing yet,
 * or while the node lacks the image. */
static bool stragglers_known(const struct core *c)
{
	const struct coord *co = &c->coord;

	for (uint32_t i = 0; i < co->world.size; i++) {
		const struct coord_node *n = &co->node[co->world.rank[i].node];

		if (rank_missing(c, i) && (!n->reported || n->waits.image_chunk))
			return false;
	}
	return !coord_any_behind(c);
}

/* Some trainers are ready and others are not: returns when the latter are put out. UINT64_MAX: they
 * are waited for, because fewer than min_world trainers would be left. A trainer that waits to join
 * counts as one that is left, and one that leaves does not. */
static uint64_t stragglers_deadline(const struct core *c)
{
	const struct coord *co = &c->coord;
	uint32_t gone = co->world.size - co->ready_nr;

	if (!c->conf.straggler_timeout_ns || !co->undecided || co->held || !co->ready_nr || !gone)
		return UINT64_MAX;
	for (uint32_t i = 0; i < co->trainers_nr; i++)
		gone += co->trainer[i].leave;
	return co->trainers_nr < gone + c->conf.min_world
		       ? UINT64_MAX
		       : co->ready_ns + c->conf.straggler_timeout_ns;
}

/* Notes how many ranks are ready. The clock of the others starts again with each of them, so that
 * trainers that are slow, but come one after the other, are waited for. */
static void stragglers_look(struct ctx *x)
{
	struct core *c = x->c;
	struct coord *co = &c->coord;
	uint32_t ready = 0;

	if (!c->conf.straggler_timeout_ns || !co->undecided)
		return;
	for (uint32_t i = 0; i < co->world.size; i++)
		ready += !rank_missing(c, i);
	if (ready != co->ready_nr || !stragglers_known(c))
		co->ready_ns = x->now;
	co->ready_nr = ready;
}

static void stragglers_drop(struct ctx *x)
{
	struct core *c = x->c;
	struct coord *co = &c->coord;
	struct words w = {0};
	char text[512] = "";
	const char *why;

	w.text = text;
	w.bytes = sizeof(text);
	for (uint32_t i = 0; i < co->world.size; i++) {
		if (rank_missing(c, i) && words_room(&w))
			words_add(&w, "%s", core_rank_name(c, &co->world, i));
	}
	if (w.names_nr > WAITS_NAMES_MAX)
		words_add(&w, " and %u more", w.names_nr - WAITS_NAMES_MAX);
	why = core_text(c,
			"dropped as a straggler: %u of %u ranks of step %llu were ready for %.1f "
			"s, but not %s, which may join again",
			co->ready_nr, co->world.size, (unsigned long long)co->id.step,
			(double)(x->now - co->ready_ns) / (double)CORE_SECOND_NS, text);
	for (uint32_t i = 0; i < co->world.size; i++) {
		if (rank_missing(c, i) && world_expel(x, &co->world, i, why))
			co->stragglers_nr++;
	}
	attempt_abort(x, SHARD_WORLD_CHANGED, why);
}

static void coord_send_waits(struct ctx *x)
{
	struct core *c = x->c;
	bool too_few = coord_too_few(c);
	const char *why;
	char text[512];

	coord_waits(c, text, sizeof(text));
	why = core_text(c, "%s", text);
	view_each(i, coord_members(c)) {
		struct core_msg *m;

		if (i == c->conf.self)
			continue;
		m = core_send(x, i, CORE_WAITING, &c->coord.id);
		m->why = why;
		m->too_few = too_few;
	}
}

/* Do trainers wait for more trainers, for copies or for an operator? The trainers on every node
 * want to hear of it. */
static bool coord_short(const struct core *c)
{
	const struct coord *co = &c->coord;

	return co->state == COORD_OPEN && co->view.sealed && !co->undecided &&
	       co->trainers_nr > 0 &&
	       (coord_paused(c) || judge_blocks(c) || coord_thin(c) || !world_enough(c) ||
		world_gathers(c));
}

static void coord_repeat(struct ctx *x)
{
	struct core *c = x->c;
	struct coord *co = &c->coord;

	view_each(i, coord_members(c)) {
		recover_send(x, i);
		hear_send(x, i);
		if (co->state != COORD_OPEN)
			continue;
		if (!co->node[i].done)
			attempt_send_commit(x, i);
		if (co->undecided && !co->node[i].begun)
			attempt_send_begin(x, i);
	}
	hear_repeat_outside(x);
	judge_repeat(x);
	if (co->undecided || coord_short(c))
		coord_send_waits(x);
	if (co->state == COORD_OPEN)
		world_repeat(x);
}

void coord_on_tick(struct ctx *x)
{
	struct core *c = x->c;
	struct coord *co = &c->coord;

	if (co->undecided && !co->held && x->now >= coord_ends_ns(c))
		coord_expel(x);
	else if (x->now >= stragglers_deadline(c))
		stragglers_drop(x);
	if (x->now < co->timer.at)
		return;
	if (co->state == COORD_PERSIST ||
	    (co->state == COORD_OPEN && !co->undecided && attempt_all_done(c) && !coord_short(c) &&
	     !co->expelled_nr && !hear_asks(c) && !judge_tells(c))) {
		timer_stop(&co->timer);
		return;
	}
	coord_repeat(x);
	timer_next(c, &co->timer, x->now);
}

static bool coord_may_begin(const struct core *c)
{
	const struct coord *co = &c->coord;

	if (judge_blocks(c) || co->reports.out)
		return false;
	return co->state == COORD_OPEN && !co->undecided && co->view.sealed && co->has_last &&
	       !(co->tune_due && !co->keeps_view) && !coord_paused(c) && !coord_thin(c) &&
	       attempt_all_linked(c) && !c->stopping && !recover_boundary(c) && !world_gathers(c) &&
	       recover_differ(c);
}

void coord_settle(struct ctx *x)
{
	struct core *c = x->c;
	struct coord *co = &c->coord;

	if (co->state == COORD_OFF)
		return;
	view_each(i, coord_members(c)) {
		if (!core_linked(c, i) && !co->node[i].absent_since)
			co->node[i].absent_since = x->now ? x->now : 1;
	}
	co->seen_ns = x->now;
	judge_votes(x);
	hear_look(x);
	recover_settle(x);
	world_sweep(x);
	judge_settle(x);
	hold_settle(x);
	world_look(x);
	if (coord_may_begin(c) && world_make(c, &co->world))
		attempt_begin(x);
	if (co->undecided && coord_any_behind(c))
		co->behind_ns = x->now;
	stragglers_look(x);
	if ((coord_short(c) ||
	     (co->state == COORD_OPEN && (co->expelled_nr || hear_asks(c) || judge_tells(c)))) &&
	    co->timer.at == UINT64_MAX)
		timer_start(c, &co->timer, x->now);
	coord_check(c);
}

bool coord_due(const struct core *c)
{
	return (coord_may_begin(c) && world_enough(c)) || recover_due(c) || hold_can(c);
}

uint64_t coord_deadline(const struct core *c)
{
	const struct coord *co = &c->coord;
	uint64_t at = co->timer.at, lost = recover_deadline(c), slow = stragglers_deadline(c),
		 links = hear_deadline(c);

	if (co->state == COORD_OFF)
		return UINT64_MAX;
	if (co->undecided && !co->held && coord_ends_ns(c) < at)
		at = coord_ends_ns(c);
	if (slow < at)
		at = slow;
	if (links < at)
		at = links;
	if (world_gathers(c) && world_deadline(c) < at)
		at = world_deadline(c);
	return lost < at ? lost : at;
}
