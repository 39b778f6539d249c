/* SPDX-License-Identifier: Apache-2.0 */
/* Who is waited for, in words, and what happens when a step's deadline passes: whoever is waited for is expelled, so that nothing is
 * tried again unchanged. Members report each second which of their ranks are not ready and how many chunks they have; a member
 * that has not reported is taken to wait for all of its own. Called by coord.c; cannot fail. */
#include "core/coord.h"

#include "core/inner.h"

#include <stdarg.h>
#include <stdio.h>

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

static bool words_room(struct words *w) /* for one more name; the rest is only counted */
{
	if (w->names_nr++ >= WAITS_NAMES_MAX)
		return false;
	if (w->names_nr > 1)
		words_add(w, ", ");
	return true;
}

static bool node_voted(const struct core *c, uint16_t node) /* or would have, were it not held */
{
	return c->coord.node[node].voted || (c->coord.hold && node == c->conf.self && step_complete(c) &&
					     c->step.part == CORE_STAGING && !core_id_cmp(&c->step.id, &c->coord.id));
}

static bool rank_missing(const struct core *c, uint32_t rank)
{
	uint16_t node = c->coord.world.rank[rank].node;
	const struct coord_node *n = &c->coord.node[node];

	return !node_voted(c, node) && (!n->reported || n->waits.ranks[rank / 64] >> (rank % 64) & 1);
}

static void waits_nodes(const struct core *c, struct words *w)
{
	const struct coord *co = &c->coord;

	for (uint16_t i = 0; i < c->conf.nodes_nr; i++) {
		const char *what = !core_linked(c, i)                                    ? "has no link"
				   : co->state == COORD_RECOVER && !co->node[i].answered ? "has not answered"
				   : co->state == COORD_VIEW && !co->node[i].view_ok     ? "has not adopted the view"
											 : NULL;

		if (what && words_room(w))
			words_add(w, "node %s, which %s", c->conf.node_names[i], what);
	}
}

static void waits_attempt(const struct core *c, struct words *w)
{
	const struct coord *co = &c->coord;
	uint32_t staged = 0;

	for (uint16_t i = 0; i < c->conf.nodes_nr; i++)
		staged += node_voted(c, i) ? c->held_nr[i] : co->node[i].reported ? co->node[i].waits.chunks_staged : 0;
	for (uint32_t i = 0; i < co->world.size; i++) {
		const struct core_rank *r = &co->world.rank[i];

		if (rank_missing(c, i) && words_room(w))
			words_add(w, "rank %u (pid %u, node %s)", i, r->pid, c->conf.node_names[r->node]);
	}
	for (uint16_t i = 0; i < c->conf.nodes_nr && !w->names_nr; i++) {
		if (!node_voted(c, i) && words_room(w))
			words_add(w, "node %s", c->conf.node_names[i]);
	}
	if (!w->names_nr && co->held) {
		words_add(w, "a checkpoint of step %llu is being written", (unsigned long long)co->last.id.step);
		return;
	}
	if (w->names_nr > WAITS_NAMES_MAX)
		words_add(w, " and %u more", w->names_nr - WAITS_NAMES_MAX);
	words_add(w, ": %u of %u chunks", staged, c->conf.chunks_nr);
}

void waits_text(const struct core *c, char *text, size_t bytes)
{
	const struct coord *co = &c->coord;
	struct words w = {.text = text, .bytes = bytes};
	uint32_t missing = co->trainers_nr < c->conf.min_world ? c->conf.min_world - co->trainers_nr : 0;

	text[0] = 0;
	waits_nodes(c, &w);
	if (w.names_nr || co->state != COORD_OPEN || !co->view.sealed)
		return;
	if (co->undecided)
		waits_attempt(c, &w);
	else if (co->view.tune.paused)
		words_add(&w, "an operator paused the model");
	else if (coord_paused(c))
		words_add(&w, "the model is paused since step %llu diverged", (unsigned long long)co->last.id.step);
	else if (missing)
		words_add(&w, "%u more trainer%s: %u of at least %u joined", missing, missing == 1 ? "" : "s", co->trainers_nr,
			  c->conf.min_world);
}

void waits_expel(struct ctx *x)
{
	struct core *c = x->c;
	struct coord *co = &c->coord;
	char text[512];
	const char *why;
	uint32_t expelled = 0;

	waits_text(c, text, sizeof(text));
	why = core_text(c, "step %llu attempt %u waited %.1f s for %s", (unsigned long long)co->id.step, co->id.attempt,
			(double)(x->now - co->begun_ns) / (double)CORE_SECOND_NS, text);
	for (uint32_t i = 0; i < co->world.size; i++) {
		if (!rank_missing(c, i))
			continue;
		world_expel(x, &co->world, i, why);
		expelled++;
	}
	for (uint32_t i = 0; i < co->world.size && !expelled; i++) { /* all ranks are ready, but chunks do not come together */
		if (co->node[co->world.rank[i].node].voted && i + 1 < co->world.size)
			continue;
		world_expel(x, &co->world, i, why);
		expelled++;
	}
	coord_abort(x, SHARD_WORLD_CHANGED, why);
}
