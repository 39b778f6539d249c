/* SPDX-License-Identifier: Apache-2.0 */
/* Bulk data in the simulator. shell.c and the event table in sim.c call it. Gradients move from
 * arenas to landing slots as raw late writes, as a network card makes them, and only the end of the
 * connection stops them. Workers stage chunks, apply them and write images. The single-writer
 * checkers (slot_one_writer, arena_one_writer) are here, where the bytes move. */
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
	for (uint32_t t = 0; t < s->m->trainers_nr; t++) {
		if (s->m->trainer[t].state != TR_DEAD && s->m->trainer[t].node == n &&
		    s->m->trainer[t].session == session)
			return &s->m->trainer[t];
	}
	return NULL;
}

/* Sums this node's contribution over its ranks in rank order, from their arenas. False: a rank has
 * not pushed. */
static bool local_sum(struct sim *s, uint16_t n, uint32_t chunk, struct cell *sum)
{
	struct shell *sh = shell_of(s, n);
	uint16_t self = s->node[n].self;

	sum->id = sh->id;
	sum->hash = 0;
	sum->nan = false;
	for (uint32_t i = 0; i < sh->world.size; i++) {
		const struct core_rank *r = &sh->world.rank[i];
		const struct sim_trainer *t =
			r->node == self ? shell_trainer(s, n, r->session) : NULL;

		if (r->node != self)
			continue;
		if (!t || !same(&t->arena[chunk].id, &sh->id))
			return false;
		sum->hash += sim_mix(t->arena[chunk].hash, i);
		sum->nan = sum->nan || t->arena[chunk].nan;
	}
	return true;
}

static bool summed(const struct shell *sh, uint32_t chunk)
{
	return same(&sh->sum[chunk].id, &sh->id);
}

static void transfer_start(struct sim *s, uint16_t n, uint16_t to, uint32_t chunk,
			   const struct cell *what, bool reduced)
{
	struct shell *sh = shell_of(s, n);
	struct sim_node *nd = &s->node[n];
	struct sim_event *e;
	uint32_t i = 0;

	while (i < TRANSFERS && s->m->transfer[i].used)
		i++;
	CHECK(i < TRANSFERS);
	s->m->transfer[i] = (struct transfer){.used = true,
					      .src = n,
					      .dst = nd->end[to],
					      .chunk = chunk,
					      .id = what->id,
					      .nan = what->nan,
					      .said = what->said,
					      .reduced = reduced,
					      .epoch = nd->link[to],
					      .src_start = nd->starts};
	if (s->faults && s->damage)
		s->m->transfer[i].damaged = sim_chance(s, s->damage);
	sh->transfers++;
	e = sim_at(s,
		   s->faults && sim_chance(s, s->late) ? sim_between(s, MS, 800 * MS)
						       : sim_between(s, 100000, 4 * MS),
		   SIM_LANDED, NOWHERE);
	e->chunk = i;
	e->session = what->hash;
}

/* Does this node have the landing slots of that one for the attempt in hand? */
static bool shell_may_send(struct sim *s, uint16_t n, uint16_t to)
{
	struct shell *sh = shell_of(s, n);

	return to < NODES && to != s->node[n].self && sh->running &&
	       same(&sh->credit[to], &sh->id) && s->node[n].link[to];
}

/* Sends the chunk's sum to its primary, if all ranks have pushed it. */
void shell_transfer(struct sim *s, uint16_t n, uint32_t chunk)
{
	struct shell *sh = shell_of(s, n);
	uint16_t to = place_primary(&sh->place, chunk);

	if (!shell_may_send(s, n, to) || sh->sent[to][chunk] || !summed(sh, chunk))
		return;
	sh->sent[to][chunk] = true;
	transfer_start(s, n, to, chunk, &sh->sum[chunk], false);
}

/* The primary sends the reduced gradient to those who need it, once it is made. */
void shell_transfer_reduced(struct sim *s, uint16_t n, uint32_t chunk)
{
	struct shell *sh = shell_of(s, n);
	uint64_t to = place_followers(&sh->place, chunk);

	if (place_primary(&sh->place, chunk) != s->node[n].self ||
	    !same(&sh->reduced[chunk].id, &sh->id))
		return;
	for (uint16_t p = 0; p < NODES; p++) {
		if (!(to >> p & 1) || !shell_may_send(s, n, p) || sh->sent_reduced[p][chunk])
			continue;
		sh->sent_reduced[p][chunk] = true;
		transfer_start(s, n, p, chunk, &sh->reduced[chunk], true);
	}
}

/* Are the parts of all ranks here? */
static bool contributed(struct sim *s, uint16_t n, uint32_t chunk)
{
	struct shell *sh = shell_of(s, n);
	uint16_t self = s->node[n].self;

	if (has_ranks(&sh->world, self) && !summed(sh, chunk))
		return false;
	for (uint16_t p = 0; p < s->nodes_nr; p++) {
		if (p != self && has_ranks(&sh->world, p) && !same(&sh->slot[p][chunk].id, &sh->id))
			return false;
	}
	return true;
}

void shell_stage_try(struct sim *s, uint16_t n, uint32_t chunk)
{
	struct shell *sh = shell_of(s, n);
	uint16_t self = s->node[n].self;
	struct sim_event *e;

	if (!shell_keeps(s, n, chunk) || !sh->running || sh->queued[chunk])
		return;
	if (place_primary(&sh->place, chunk) == self ? !contributed(s, n, chunk)
						     : !same(&sh->arrived[chunk].id, &sh->id))
		return;
	sh->queued[chunk] = true;
	sh->jobs++;
	e = sim_at(s, sim_between(s, 10000, 2 * MS), SIM_STAGE, n);
	e->chunk = chunk;
	e->id = sh->id;
}

void shell_pushed(struct sim *s, uint16_t n, uint32_t chunk)
{
	struct shell *sh = shell_of(s, n);
	struct cell sum;

	if (!sh->running || summed(sh, chunk) || !local_sum(s, n, chunk, &sum))
		return;
	sh->sum[chunk] = sum;
	shell_transfer(s, n, chunk);
	shell_stage_try(s, n, chunk);
}

/* The checksum is wrong. The bytes are not used, and the core decides whom to blame. */
static void shell_damaged(struct sim *s, struct transfer *t)
{
	struct sim_node *dst = &s->node[t->dst];
	struct shell *to = shell_of(s, t->dst);
	struct core_event e = {.type = CORE_EV_DAMAGED,
			       .node = s->node[t->src].self,
			       .chunk = t->chunk,
			       .id = t->id};
	/* If the attempt is over, what ended it may have been another chunk. */
	bool reduced = t->reduced && to->running;

	memset(t->reduced ? &to->arrived[t->chunk].id : &to->slot[e.node][t->chunk].id, 0,
	       sizeof(t->id));
	/* A process that is stopped sees it later, and its links may be gone by then. */
	if (dst->paused)
		return;
	sim_trace(s, "n%u gets chunk %u from n%u damaged", t->dst, t->chunk, t->src);
	node_event(s, t->dst, &e);
	truth_blamed(s, (uint16_t)(dst - s->node), &e.id, reduced);
}

void shell_landed(struct sim *s, const struct sim_event *e)
{
	struct transfer *t = &s->m->transfer[e->chunk];
	struct sim_node *src = &s->node[t->src], *dst = &s->node[t->dst];
	struct shell *to = shell_of(s, t->dst);
	uint16_t from = src->self;
	char a[64], b[64];

	if (one_way_lost(s, t->src, t->dst)) {
		struct sim_event *later = sim_at(s, 10 * MS, SIM_LANDED, NOWHERE);

		later->chunk = e->chunk;
		later->session = e->session;
		return;
	}
	t->used = false;
	/* The memory of a chunk that is not held there any more was given back. */
	if (dst->alive && dst->link[from] == t->epoch && to->fenced[from] != t->epoch &&
	    shell_keeps(s, t->dst, t->chunk)) {
		if (to->place.gone >> from & 1)
			sim_fail(s, "slot_one_writer",
				 "n%u writes chunk %u of %s at n%u, for which it is no member",
				 t->src, t->chunk, sim_id(&t->id, a), t->dst);
		if (!same(&to->lent[from], &t->id))
			sim_fail(s, "slot_one_writer",
				 "n%u writes chunk %u of %s into slots that n%u lent for %s",
				 t->src, t->chunk, sim_id(&t->id, a), t->dst,
				 sim_id(&to->lent[from], b));
		*(t->reduced ? &to->arrived[t->chunk] : &to->slot[from][t->chunk]) = (struct cell){
			.id = t->id, .hash = e->session, .nan = t->nan, .said = t->said};
		if (t->damaged)
			shell_damaged(s, t);
		else if (same(&t->id, &to->id))
			shell_stage_try(s, t->dst, t->chunk);
	}
	if (src->alive && src->starts == t->src_start && !t->flushed) {
		shell_of(s, t->src)->transfers--;
		shell_settle_drain(s, t->src);
	}
}

void shell_fence(struct sim *s, uint16_t n, uint64_t gone)
{
	const struct sim_node *nd = &s->node[n];

	for (uint16_t p = 0; p < s->nodes_nr; p++) {
		if (!(gone >> p & 1) || !nd->link[p])
			continue;
		shell_of(s, n)->fenced[p] = nd->link[p];
		link_break(s, n, nd->end[p]);
	}
}

void shell_link_lost(struct sim *s, uint16_t n, uint16_t peer)
{
	const struct sim_node *nd = &s->node[n];
	struct shell *sh = shell_of(s, n);

	for (uint32_t i = 0; i < TRANSFERS; i++) {
		struct transfer *t = &s->m->transfer[i];

		if (!t->used || t->src != n || t->flushed || t->src_start != nd->starts ||
		    t->epoch != nd->link[peer])
			continue;
		t->flushed = true;
		sh->transfers--;
	}
	load_link_lost(s, n, peer);
	sh->credit[peer] = (struct core_id){0};
	sh->lent[peer] = (struct core_id){0};
	shell_settle_drain(s, n);
}

/* The gradient of a chunk, read from where it lies. The primary adds up what was contributed, and
 * the others have it from the primary. */
static uint64_t shell_reduced(struct sim *s, uint16_t n, uint32_t chunk, const struct core_id *id,
			      bool *nan)
{
	struct shell *sh = shell_of(s, n);
	uint16_t self = s->node[n].self;
	uint64_t hash = 0;
	char a[64], b[64];

	*nan = false;
	if (place_primary(&sh->place, chunk) != self) {
		if (!same(&sh->reduced[chunk].id, id))
			sim_fail(s, "no_tear", "n%u reads the reduced chunk %u of %s for %s", n,
				 chunk, sim_id(&sh->reduced[chunk].id, a), sim_id(id, b));
		*nan = sh->reduced[chunk].nan;
		return sh->reduced[chunk].hash;
	}
	for (uint16_t p = 0; p < s->nodes_nr; p++) {
		const struct cell *cell = p == self ? &sh->sum[chunk] : &sh->slot[p][chunk];
		struct cell now;

		if (!has_ranks(&sh->world, p))
			continue;
		if (!same(&cell->id, id))
			sim_fail(s, "no_tear", "n%u reads chunk %u of %s for %s from n%u", n, chunk,
				 sim_id(&cell->id, a), sim_id(id, b), p);
		if (p == self && sh->running && local_sum(s, n, chunk, &now) &&
		    now.hash != cell->hash)
			sim_fail(s, "arena_one_writer",
				 "n%u: an arena changed under chunk %u of %s", n, chunk,
				 sim_id(id, b));
		hash += cell->hash;
		*nan = *nan || cell->nan;
	}
	return hash;
}

void shell_stage(struct sim *s, const struct sim_event *e)
{
	struct shell *sh = shell_of(s, e->node);
	struct core_event staged = {.type = CORE_EV_STAGED,
				    .chunk = e->chunk,
				    .id = e->id,
				    .bad_tensor = -1,
				    .bad_rank = -1};
	uint16_t primary = place_primary(&sh->place, e->chunk);
	uint64_t hash;
	double sum;
	bool nan, says;

	sh->jobs--;
	if (!same(&sh->id, &e->id) || !sh->running) {
		shell_settle_drain(s, e->node);
		return;
	}
	if (primary == s->node[e->node].self)
		truth_serves(s, e->node, e->chunk, "reduces");
	else /* It is copied to memory that only this process writes. */
		sh->reduced[e->chunk] = sh->arrived[e->chunk];
	hash = shell_reduced(s, e->node, e->chunk, &e->id, &nan);
	sum = staged.sumsq = 1e-3 * (double)(hash >> 32);
	staged.finite = !nan;
	if (!nan)
		staged.sumsq = odd_sum(s, e->node, e->chunk, sum);
	says = staged.sumsq == sum || odd_says(s, e->node, e->chunk);
	if (primary != s->node[e->node].self)
		staged.on = says && !truth_bits(staged.sumsq, sh->reduced[e->chunk].said);
	sh->reduced[e->chunk] = (struct cell){
		.id = e->id, .hash = hash, .nan = nan, .said = says ? staged.sumsq : sum};
	shell_transfer_reduced(s, e->node, e->chunk);
	if (nan)
		staged.bad_tensor = (int64_t)e->chunk;
	node_event(s, e->node, &staged);
}

/* False: the node has answered the zombie's successor and sends the zombie nothing any more. */
static bool shell_gets_images(struct sim *s, uint16_t n, uint16_t peer)
{
	const struct sim_node *nd = &s->node[n];

	return nd->link[peer] &&
	       (nd->end[peer] != ZOMBIE || shell_of(s, n)->term_promised <= s->node[ZOMBIE].starts);
}

static void shell_image_to(struct sim *s, uint16_t to, uint32_t chunk, uint64_t step,
			   uint64_t delay, uint16_t from)
{
	struct sim_event *e = sim_at(s, delay, SIM_IMAGE, to);

	e->peer = from;
	e->chunk = chunk;
	e->session = step;
	e->epoch = shell_of(s, from)->record.id.generation;
	e->id = shell_of(s, from)->record.id;
}

/* Was the step decided without this node, so far as the checkers know of it? */
static bool shell_passed_by(struct sim *s, uint16_t n, uint32_t generation, uint64_t step)
{
	const struct truth *t = truth_of(s, generation);

	return t->sealed && step > t->seal_step && step + 1 >= t->last && step <= t->last &&
	       !(t->of[step % 2] >> s->node[n].self & 1);
}

/* A node's network card writes an image chunk, whatever the node itself is doing. */
void shell_image(struct sim *s, const struct sim_event *e)
{
	struct shell *sh = shell_of(s, e->node);
	char a[64], b[64];

	if (!s->node[e->node].alive || sh->generation != e->epoch ||
	    sh->image[e->chunk] >= e->session)
		return;
	/* A recovery left this node out, and may have taken it in again. What it has in hand is
	 * void, and so is its image. */
	if (!truth_lists(s, e->node) || shell_passed_by(s, e->node, e->epoch, e->session))
		return;
	if (sh->image[e->chunk] + 1 == e->session && core_id_cmp(&sh->open, &e->id) < 0)
		sim_fail(s, "image_open",
			 "n%u: chunk %u of %s is written into an image that is open for %s",
			 e->node, e->chunk, sim_id(&e->id, a), sim_id(&sh->open, b));
	sh->image[e->chunk] = e->session;
}

void shell_apply(struct sim *s, const struct sim_event *e)
{
	const struct sim_node *nd = &s->node[e->node];
	struct shell *sh = shell_of(s, e->node);
	bool nan;
	uint64_t g;

	if (sh->record.outcome == RECORD_APPLIED) {
		g = shell_reduced(s, e->node, e->chunk, &sh->record.id, &nan);
		if (nan)
			sim_fail(s, "nonfinite_kept",
				 "n%u applies a non-finite gradient of chunk %u", e->node,
				 e->chunk);
		sh->weights[e->chunk] =
			truth_updated(sh->weights[e->chunk], g,
				      &sh->record.args[e->chunk % sh->record.groups_nr]);
	}
	sh->version[e->chunk]++;
	truth_applied(s, e->node, e->chunk);
	sh->image[e->chunk] = sh->record.id.step;
	for (uint16_t p = 0; p < s->nodes_nr; p++) {
		if (place_primary(&sh->place, e->chunk) == nd->self && p != nd->self &&
		    !place_holds(&sh->place, e->chunk, p) && !(sh->place.gone >> p & 1) &&
		    shell_gets_images(s, e->node, p))
			shell_image_to(s, nd->end[p], e->chunk, sh->record.id.step,
				       sim_between(s, 10000, 2 * MS), e->node);
	}
	if (--sh->chunks_left == 0)
		sim_at(s, 3 * MS, SIM_APPLIED, e->node); /* After its image writes. */
}
