/* SPDX-License-Identifier: Apache-2.0 */
/* How a node that catches up gets its copies. shell.c calls it for CORE_ACT_LEARN, and the event
 * table in sim.c moves it on. Each chunk is fetched from its primary, at the version that the
 * primary has at that moment, over a link that may end before it has arrived. Records are applied
 * to what is there. A chunk that misses one is fetched again, and so is one that comes from before
 * the last record. When all chunks are at the record, the core hears of it. */
#include "sim/sim.h"

#include <string.h>

bool learn_keeps_up(const struct shell *sh, uint32_t chunk, uint64_t step)
{
	return sh->written[chunk] && sh->version[chunk] + 1 == step;
}

bool learn_complete(struct sim *s, uint16_t n)
{
	const struct shell *sh = shell_of(s, n);

	for (uint32_t c = 0; c < s->m->chunks_nr; c++) {
		if (shell_keeps(s, n, c) &&
		    (!sh->written[c] || sh->version[c] != sh->record.id.step))
			return false;
	}
	return true;
}

static void learn_again(struct sim *s, uint16_t n, uint32_t chunk, uint64_t delay)
{
	struct sim_event *e = sim_at(s, delay, SIM_LEARN, n);

	e->chunk = chunk;
	e->trainer = shell_of(s, n)->learn;
}

void learn_start(struct sim *s, uint16_t n, const struct record *r)
{
	struct shell *sh = shell_of(s, n);

	if (core_id_cmp(&sh->record.id, &r->id) || sh->place.learns >> s->node[n].self & 1)
		memset(sh->image, 0, sizeof(sh->image));
	sh->record = *r;
	sh->generation = r->id.generation;
	sh->learn++;
	sh->learning = true;
	for (uint32_t c = 0; c < s->m->chunks_nr; c++) {
		if (!shell_keeps(s, n, c) || shell_holds(s, n, c))
			continue;
		sh->written[c] = false;
		sh->weights[c] = sh->version[c] = 0;
		learn_again(s, n, c, sim_between(s, 10000, 2 * MS));
	}
}

/* A record came of which the chunk had no gradient here, or which it was not ready for. */
static void learn_missed(struct sim *s, uint16_t n, uint32_t chunk)
{
	shell_of(s, n)->written[chunk] = false;
	learn_again(s, n, chunk, sim_between(s, MS, 20 * MS));
}

/* Asks the primary for the chunk, and reads it there. */
void learn_ask(struct sim *s, const struct sim_event *e)
{
	const struct sim_node *nd = &s->node[e->node];
	const struct shell *sh = shell_of(s, e->node), *from;
	uint16_t primary = place_primary(&sh->place, e->chunk), src;
	struct sim_event *landed;

	if (!sh->learning || sh->learn != e->trainer)
		return;
	src = primary < NODES && nd->link[primary] ? nd->end[primary] : NOWHERE;
	from = src < SLOTS ? shell_of(s, src) : NULL;
	if (!from || !s->node[src].alive || s->node[src].paused || !from->written[e->chunk] ||
	    from->generation != sh->generation ||
	    (from->learning && !shell_holds(s, src, e->chunk))) {
		learn_again(s, e->node, e->chunk, sim_between(s, 5 * MS, 30 * MS));
		return;
	}
	landed = sim_at(s,
			s->faults && sim_chance(s, 300) ? sim_between(s, MS, 300 * MS)
							: sim_between(s, 100000, 20 * MS),
			SIM_LEARN_LANDED, e->node);
	landed->chunk = e->chunk;
	landed->trainer = e->trainer;
	landed->peer = primary;
	landed->epoch = nd->link[primary];
	landed->session = from->weights[e->chunk];
	landed->id.step = from->version[e->chunk];
}

void learn_landed(struct sim *s, const struct sim_event *e)
{
	struct shell *sh = shell_of(s, e->node);
	uint64_t at = sh->record.id.step, step = e->id.step;
	struct sim_event *done;

	if (!sh->learning || sh->learn != e->trainer)
		return;
	/* One that is a step behind keeps up if the step is still being applied. */
	if (s->node[e->node].link[e->peer] != e->epoch || step + 1 < at || step > at + 1 ||
	    (step + 1 == at && !sh->chunks_left) || (s->faults && sim_chance(s, 50))) {
		learn_again(s, e->node, e->chunk, sim_between(s, MS, 20 * MS));
		return;
	}
	sh->written[e->chunk] = true;
	sh->weights[e->chunk] = e->session;
	sh->version[e->chunk] = step;
	truth_fetched(s, e->node, e->chunk);
	if (step + 1 == at)
		shell_apply_at(s, e->node, e->chunk);
	else if (step == at && sh->image[e->chunk] < at)
		sh->image[e->chunk] = at;
	if (sh->applying || !learn_complete(s, e->node))
		return;
	sh->learning = false;
	s->m->learned++;
	done = sim_at(s,
		      s->faults && sim_chance(s, 300) ? sim_between(s, MS, 200 * MS)
						      : sim_between(s, 1000, MS),
		      SIM_LEARNED, e->node);
	done->id = sh->record.id;
	done->trainer = sh->learn;
}

/* A worker tells the core, which may have another record by then. If the core has asked again, the
 * answer is void. */
void learn_done(struct sim *s, const struct sim_event *e)
{
	struct core_event learned = {.type = CORE_EV_LEARNED, .id = e->id};
	char id[64];

	if (shell_of(s, e->node)->learn != e->trainer)
		return;
	sim_trace(s, "n%u LEARNED %s", e->node, sim_id(&e->id, id));
	node_event(s, e->node, &learned);
}

/* The step is applied. Chunks that it passed by are fetched again. True: every copy is here. */
bool learn_applied(struct sim *s, uint16_t n)
{
	struct shell *sh = shell_of(s, n);

	for (uint32_t c = 0; c < s->m->chunks_nr && sh->learning; c++) {
		if (shell_keeps(s, n, c) && sh->written[c] && sh->version[c] < sh->record.id.step)
			learn_missed(s, n, c);
	}
	if (!learn_complete(s, n))
		return false;
	s->m->learned += sh->learning;
	sh->learning = false;
	return true;
}
