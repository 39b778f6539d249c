/* SPDX-License-Identifier: Apache-2.0 */
/* Bulk in the simulator: gradients move from arenas to landing slots as raw late writes, as a network card makes them: nothing but
 * the end of the connection stops them. Workers stage and apply chunks and write images. The single-writer checkers are here,
 * where the bytes are. */
#include "sim/sim.h"

#include <string.h>

static bool same(const struct core_id *a, const struct core_id *b)
{
	return core_id_cmp(a, b) == 0;
}

static bool has_ranks(const struct core_world *w, uint16_t n)
{
	for (uint32_t i = 0; i < w->size; i++) {
		if (w->rank[i].node == n)
			return true;
	}
	return false;
}

struct sim_trainer *shell_trainer(struct sim *s, uint16_t n, uint64_t session)
{
	for (uint32_t t = 0; t < s->trainers_nr; t++) {
		if (s->trainer[t].state != TR_DEAD && s->trainer[t].node == n && s->trainer[t].session == session)
			return &s->trainer[t];
	}
	return NULL;
}

/* This node's contribution: over its ranks in rank order, from their arenas. false: a rank has not pushed. */
static bool local_sum(struct sim *s, uint16_t n, uint32_t chunk, struct cell *sum)
{
	struct sim_node *nd = &s->node[n];

	sum->id = nd->id;
	sum->hash = 0;
	sum->nan = false;
	for (uint32_t i = 0; i < nd->world.size; i++) {
		const struct core_rank *r = &nd->world.rank[i];
		const struct sim_trainer *t = r->node == n ? shell_trainer(s, n, r->session) : NULL;

		if (r->node != n)
			continue;
		if (!t || !same(&t->arena[chunk].id, &nd->id))
			return false;
		sum->hash += sim_mix(t->arena[chunk].hash, i);
		sum->nan = sum->nan || t->arena[chunk].nan;
	}
	return true;
}

static bool summed(const struct sim_node *nd, uint32_t chunk)
{
	return same(&nd->sum[chunk].id, &nd->id);
}

void shell_transfer(struct sim *s, uint16_t n, uint32_t chunk) /* to its owner, if everything is there */
{
	struct sim_node *nd = &s->node[n];
	uint16_t to = s->owner[chunk];
	struct sim_event *e;
	uint32_t i = 0;

	if (to == n || !nd->running || nd->sent[to][chunk] || !summed(nd, chunk) || !same(&nd->credit[to], &nd->id) ||
	    !nd->link[to])
		return;
	while (i < TRANSFERS && s->transfer[i].used)
		i++;
	CHECK(i < TRANSFERS);
	s->transfer[i] = (struct transfer){.used = true,
					   .src = n,
					   .dst = to,
					   .chunk = chunk,
					   .id = nd->id,
					   .nan = nd->sum[chunk].nan,
					   .epoch = nd->link[to],
					   .src_start = nd->starts};
	nd->sent[to][chunk] = true;
	nd->transfers++;
	e = sim_at(s, s->faults && sim_chance(s, s->late) ? sim_between(s, MS, 800 * MS) : sim_between(s, 100000, 4 * MS),
		   SIM_LANDED, NODES);
	e->chunk = i;
	e->session = nd->sum[chunk].hash;
}

void shell_stage_try(struct sim *s, uint16_t n, uint32_t chunk)
{
	struct sim_node *nd = &s->node[n];
	struct sim_event *e;

	if (s->owner[chunk] != n || !nd->running || nd->queued[chunk] || (has_ranks(&nd->world, n) && !summed(nd, chunk)))
		return;
	for (uint16_t p = 0; p < s->nodes_nr; p++) {
		if (p != n && has_ranks(&nd->world, p) && !same(&nd->slot[p][chunk].id, &nd->id))
			return;
	}
	nd->queued[chunk] = true;
	nd->jobs++;
	e = sim_at(s, sim_between(s, 10000, 2 * MS), SIM_STAGE, n);
	e->chunk = chunk;
	e->id = nd->id;
}

void shell_pushed(struct sim *s, uint16_t n, uint32_t chunk)
{
	struct sim_node *nd = &s->node[n];
	struct cell sum;

	if (!nd->running || summed(nd, chunk) || !local_sum(s, n, chunk, &sum))
		return;
	nd->sum[chunk] = sum;
	shell_transfer(s, n, chunk);
	shell_stage_try(s, n, chunk);
}

void shell_landed(struct sim *s, const struct sim_event *e)
{
	struct transfer *t = &s->transfer[e->chunk];
	struct sim_node *src = &s->node[t->src], *dst = &s->node[t->dst];
	char a[64], b[64];

	t->used = false;
	if (dst->alive && dst->link[t->src] == t->epoch) {
		if (!same(&dst->lent[t->src], &t->id))
			sim_fail(s, "slot_one_writer", "n%u writes chunk %u of %s into slots that n%u lent for %s", t->src,
				 t->chunk, sim_id(&t->id, a), t->dst, sim_id(&dst->lent[t->src], b));
		dst->slot[t->src][t->chunk] = (struct cell){.id = t->id, .hash = e->session, .nan = t->nan};
		if (same(&t->id, &dst->id))
			shell_stage_try(s, t->dst, t->chunk);
	}
	if (src->alive && src->starts == t->src_start && !t->flushed) {
		src->transfers--;
		shell_settle_drain(s, t->src);
	}
}

void shell_link_lost(struct sim *s, uint16_t n, uint16_t peer)
{
	struct sim_node *nd = &s->node[n];

	for (uint32_t i = 0; i < TRANSFERS; i++) {
		struct transfer *t = &s->transfer[i];

		if (!t->used || t->src != n || t->dst != peer || t->flushed || t->src_start != nd->starts ||
		    t->epoch != nd->link[peer])
			continue;
		t->flushed = true;
		nd->transfers--;
	}
	nd->credit[peer] = (struct core_id){0};
	nd->lent[peer] = (struct core_id){0};
	shell_settle_drain(s, n);
}

/* What the staged gradient of a chunk is, read from where it lies. */
static uint64_t shell_reduced(struct sim *s, uint16_t n, uint32_t chunk, const struct core_id *id, bool *nan)
{
	struct sim_node *nd = &s->node[n];
	uint64_t hash = 0;
	char a[64], b[64];

	*nan = false;
	for (uint16_t p = 0; p < s->nodes_nr; p++) {
		const struct cell *cell = p == n ? &nd->sum[chunk] : &nd->slot[p][chunk];
		struct cell now;

		if (!has_ranks(&nd->world, p))
			continue;
		if (!same(&cell->id, id))
			sim_fail(s, "no_tear", "n%u reads chunk %u of %s for %s from n%u", n, chunk, sim_id(&cell->id, a),
				 sim_id(id, b), p);
		if (p == n && nd->running && local_sum(s, n, chunk, &now) && now.hash != cell->hash)
			sim_fail(s, "arena_one_writer", "n%u: an arena changed under chunk %u of %s", n, chunk, sim_id(id, b));
		hash += cell->hash;
		*nan = *nan || cell->nan;
	}
	return hash;
}

void shell_stage(struct sim *s, const struct sim_event *e)
{
	struct sim_node *nd = &s->node[e->node];
	struct core_event staged = {.type = CORE_EV_STAGED, .chunk = e->chunk, .id = e->id, .bad_tensor = -1, .bad_rank = -1};
	bool nan;

	nd->jobs--;
	if (!same(&nd->id, &e->id) || !nd->running) {
		shell_settle_drain(s, e->node);
		return;
	}
	staged.sumsq = 1e-3 * (double)(shell_reduced(s, e->node, e->chunk, &e->id, &nan) >> 32);
	staged.finite = !nan;
	if (nan)
		staged.bad_tensor = (int64_t)e->chunk;
	node_event(s, e->node, &staged);
}

static void shell_image_to(struct sim *s, uint16_t to, uint32_t chunk, uint64_t step, uint64_t delay, uint16_t from)
{
	struct sim_event *e = sim_at(s, delay, SIM_IMAGE, to);

	e->peer = from;
	e->chunk = chunk;
	e->session = step;
	e->epoch = s->node[from].record.id.generation;
	e->id = s->node[from].record.id;
}

/* A node's network card writes an image chunk: whatever the node itself is doing. */
void shell_image(struct sim *s, const struct sim_event *e)
{
	struct sim_node *nd = &s->node[e->node];
	char a[64], b[64];

	if (!nd->alive || nd->generation != e->epoch || nd->image[e->chunk] >= e->session)
		return;
	if (nd->image[e->chunk] + 1 == e->session && core_id_cmp(&nd->open, &e->id) < 0)
		sim_fail(s, "image_open", "n%u: chunk %u of %s is written into an image that is open for %s", e->node, e->chunk,
			 sim_id(&e->id, a), sim_id(&nd->open, b));
	nd->image[e->chunk] = e->session;
}

void shell_apply(struct sim *s, const struct sim_event *e)
{
	struct sim_node *nd = &s->node[e->node];
	bool nan;
	uint64_t g;

	if (nd->record.outcome == RECORD_APPLIED) {
		g = shell_reduced(s, e->node, e->chunk, &nd->record.id, &nan);
		if (nan)
			sim_fail(s, "nonfinite_kept", "n%u applies a non-finite gradient of chunk %u", e->node, e->chunk);
		nd->weights[e->chunk] = sim_mix(nd->weights[e->chunk], sim_mix(g, dtype_bits(nd->record.args[0].step_size)));
	}
	nd->version[e->chunk]++;
	truth_applied(s, e->node, e->chunk);
	nd->image[e->chunk] = nd->record.id.step;
	for (uint16_t p = 0; p < s->nodes_nr; p++) {
		if (p != e->node && nd->link[p])
			shell_image_to(s, p, e->chunk, nd->record.id.step, sim_between(s, 10000, 2 * MS), e->node);
	}
	if (--nd->chunks_left == 0)
		sim_at(s, 3 * MS, SIM_APPLIED, e->node); /* after its image writes */
}
