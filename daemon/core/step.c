/* SPDX-License-Identifier: Apache-2.0 */
/* The participant of the step transaction on one node, called by core.c, member.c and the parts of
 * the coordinator. Happy path: BEGIN makes it STAGING. When every chunk of this node is staged,
 * every local rank is ready, and every other node with ranks has told what its ranks gave, it marks
 * the image open, votes and is PREPARED, from where the node can no longer fail. COMMIT makes it
 * APPLYING, and DONE follows. A skip takes the same way, but then only versions move. Before the
 * vote anything drops the attempt without effect: the loss of a link that contributions came over,
 * ABORT, a newer attempt, ASK, a view. If the node drops it by itself, it repeats ABANDON until the
 * coordinator acts. Only a verdict ends PREPARED, never a deadline. Arenas and slots of a dropped
 * attempt are not used again before its transfers have drained. */
#include "core/step.h"

#include "core/inner.h"
#include "core/slots.h"

#include <string.h>

#define VALUES_BYTES (CORE_VALUES_NR * sizeof(double))

static const uint32_t step_may_move[CORE_PART_NR] = {
	[CORE_FREE] = BIT(CORE_STAGING),
	[CORE_STAGING] = BIT(CORE_PREPARED) | BIT(CORE_FREE),
	[CORE_PREPARED] = BIT(CORE_APPLYING) | BIT(CORE_FREE), /* The verdict, or an abort. */
	[CORE_APPLYING] = BIT(CORE_FREE),                      /* There is no way back. */
};

static void step_move(struct ctx *x, enum core_part to)
{
	struct step *s = &x->c->step;

	CHECK(step_may_move[s->part] & BIT(to));
	s->part = to;
	if (to == CORE_STAGING || to == CORE_PREPARED)
		timer_start(x->c, &s->timer, x->now);
	else
		timer_stop(&s->timer);
	step_check(x->c);
}

bool step_complete(const struct core *c)
{
	return c->step.chunks_staged == c->held_nr[c->conf.self] && c->step.told == c->step.ranked;
}

void step_check(const struct core *c)
{
	const struct step *s = &c->step;

	CHECK(s->part < CORE_PART_NR);
	CHECK(s->part == CORE_FREE ||
	      (s->id.step > 0 && s->world.size > 0 && !s->draining && !s->dropped));
	CHECK(s->chunks_staged <= c->held_nr[c->conf.self] && s->ranks_ready <= s->ranks_nr);
	CHECK(!(s->told & ~s->ranked));
	CHECK(!step_undecided(s) || !s->ranks_nr ||
	      (s->ranks_ready == s->ranks_nr) == slots_told(s, c->conf.self));
	CHECK(s->part != CORE_PREPARED || step_complete(c));
	CHECK(s->part != CORE_APPLYING || (s->has_record && !core_id_cmp(&s->record.id, &s->id)));
	CHECK(!s->caught || (s->has_record && s->part != CORE_APPLYING));
	CHECK(!step_undecided(s) || core_id_cmp(&s->id, &s->aborted) > 0);
	CHECK(!step_undecided(s) || core_id_cmp(&s->id, &s->drained) > 0);
	CHECK(!step_undecided(s) || (s->has_record && s->record.id.step + 1 == s->id.step));
	CHECK(!s->has_next || (!step_undecided(s) && core_id_cmp(&s->next_id, &s->id) > 0));
}

bool step_undecided(const struct step *s)
{
	return s->part == CORE_STAGING || s->part == CORE_PREPARED;
}

/* What the rank gave with the step. */
static double *step_values(struct core *c, uint32_t rank)
{
	CHECK(rank < CORE_RANKS_MAX);
	return (double *)core_at(c, c->at_values) + (size_t)rank * CORE_VALUES_NR;
}

/* --- voting --- */

void step_vote_fill(struct core *c, struct core_vote *v)
{
	struct step *s = &c->step;
	double *weights = core_at(c, c->at_weights);

	for (uint32_t i = 0; i < s->world.size; i++)
		weights[i] = s->world.rank[i].weight;
	v->sumsq = core_at(c, c->at_sumsq);
	v->finite = core_at(c, c->at_finite);
	v->chunks_nr = c->votes_nr;
	v->weights = weights;
	v->ranks_nr = s->world.size;
	v->lr = s->lr_nr ? s->lr : NULL;
	v->lr_nr = s->lr_nr;
	v->has_clip = s->has_clip;
	v->clip = s->clip;
	v->values = s->values;
	v->values_nr = CORE_VALUES_NR;
	v->skip = s->skip;
	v->bad_tensor = s->bad_tensor;
	v->bad_rank = s->bad_rank;
}

static void step_send_vote(struct ctx *x)
{
	struct core *c = x->c;

	CHECK(c->step.part == CORE_PREPARED);
	step_vote_fill(c, &core_send(x, core_coordinator(c), CORE_VOTE, &c->step.id)->vote);
}

/* Everything is here, and it is not what the primaries said. The coordinator compares what all
 * nodes found, and ends the attempt. */
static void step_tell_differs(struct ctx *x)
{
	struct core *c = x->c;
	struct core_msg *m = core_send(x, core_coordinator(c), CORE_VOTE, &c->step.id);

	CHECK(c->step.part == CORE_STAGING && c->step.differs);
	step_vote_fill(c, &m->vote);
	m->differs = true;
}

static void step_send_done(struct ctx *x)
{
	struct step *s = &x->c->step;

	core_send(x, core_coordinator(x->c), CORE_DONE, &s->record.id)->caught = s->caught;
}

static void step_vote(struct ctx *x) /* Votes when everything that the vote waits for has come. */
{
	struct step *s = &x->c->step;

	if (s->part != CORE_STAGING || !step_complete(x->c) || x->c->step.hold)
		return;
	record_values(s->values, core_at(x->c, x->c->at_values), s->world.size);
	if (s->differs) {
		step_tell_differs(x);
		return;
	}
	core_act(x, CORE_ACT_OPEN)->id = s->id;
	step_move(x, CORE_PREPARED);
	step_send_vote(x);
}

void step_hold(struct ctx *x, bool on)
{
	x->c->step.hold = on;
	if (!on)
		step_vote(x);
}

static void step_waiting(struct ctx *x)
{
	struct core *c = x->c;
	struct step *s = &c->step;
	struct core_waits *w = &core_send(x, core_coordinator(c), CORE_WAITING, &s->id)->waits;

	for (uint32_t i = 0; i < s->world.size; i++) {
		if (s->world.rank[i].node == c->conf.self && !(s->ready[i / 64] >> (i % 64) & 1))
			w->ranks[i / 64] |= 1ull << (i % 64);
	}
	w->chunks_staged = s->chunks_staged;
	w->chunks_nr = c->held_nr[c->conf.self];
	w->image_chunk = s->image_chunk;
	w->image_step = s->image_step;
	if (w->chunks_staged < w->chunks_nr)
		w->nodes |= 1ull << c->conf.self;
}

static void step_tell_dropped(struct ctx *x)
{
	struct step *s = &x->c->step;
	struct core_msg *m = core_send(x, core_coordinator(x->c), CORE_ABANDON, &s->id);

	m->why = core_text(x->c, "%s", s->why);
	m->status = s->status;
	m->differs = s->harmed;
	if (s->blamed == 0)
		return;
	m->trainer.hint = (int32_t)s->blamed - 1;
	m->trainer.session = s->world.rank[s->blamed - 1].session;
}

void step_drop(struct ctx *x, enum shard_status status, const char *why)
{
	struct step *s = &x->c->step;
	struct core_action *a;

	if (!step_undecided(s))
		return;
	slots_dropped(x);
	a = core_act(x, CORE_ACT_ENDED);
	a->id = s->id;
	a->world = &s->world;
	a->why = why;
	a->status = status;
	s->aborted = s->id;
	step_move(x, CORE_FREE);
	s->draining = true;
}

/* Tells the coordinator, until it acts, that this node will never vote for the attempt. */
static void step_refuse(struct ctx *x, enum shard_status status, const char *why, uint32_t blamed)
{
	struct step *s = &x->c->step;

	s->dropped = true;
	s->blamed = blamed;
	s->status = status;
	core_copy_text(s->why, sizeof(s->why), why);
	timer_start(x->c, &s->timer, x->now);
	step_tell_dropped(x);
}

void step_abandon(struct ctx *x, enum shard_status status, const char *why)
{
	CHECK(x->c->step.part == CORE_STAGING);
	step_drop(x, status, why);
	step_refuse(x, status, why, 0);
}

void step_forget(struct ctx *x)
{
	struct step *s = &x->c->step;

	CHECK(s->part == CORE_FREE);
	s->has_record = s->has_next = s->dropped = s->caught = false;
	memset(&s->record, 0, sizeof(s->record));
	timer_stop(&s->timer);
}

void step_new_view(struct ctx *x)
{
	struct step *s = &x->c->step;

	CHECK(s->part == CORE_FREE);
	s->has_next = s->dropped = false;
	s->chunks_staged = 0; /* It may have other chunks from now on. */
	timer_stop(&s->timer);
}

void step_take_record(struct ctx *x, const struct record *r, const struct step_copies *copies)
{
	struct step *s = &x->c->step;
	bool same = s->has_record && !core_id_cmp(&s->record.id, &r->id),
	     learns = core_fetches(x->c);

	CHECK(s->part == CORE_FREE);
	/* Copies of the same record are the same copies, so none has to be fetched. */
	s->caught = learns && same && copies->complete;
	if (same && (!learns || copies->fetched || s->caught))
		return;
	s->record = *r;
	s->has_record = true;
	core_act(x, learns ? CORE_ACT_LEARN : CORE_ACT_SEAL)->record = &s->record;
}

void step_on_learned(struct ctx *x, const struct core_event *e)
{
	struct step *s = &x->c->step;

	if (!core_fetches(x->c) || s->part == CORE_APPLYING || !s->has_record ||
	    core_id_cmp(&e->id, &s->record.id))
		return;
	s->caught = true;
	member_tell_caught(x);
}

void step_asked(struct ctx *x)
{
	struct step *s = &x->c->step;

	s->has_next = false;
	if (s->part == CORE_STAGING)
		step_drop(x, SHARD_WORLD_CHANGED, "a new coordinator asks for the state");
}

static void step_enter(struct ctx *x)
{
	struct core *c = x->c;
	struct step *s = &c->step;
	struct core_action *a;
	const char *missing;

	CHECK(s->has_next && s->part == CORE_FREE && !s->draining);
	s->has_next = s->dropped = s->skip = s->kept = s->has_lr = false;
	s->id = s->drained = s->next_id;
	/* Every earlier attempt that began here has drained, and nothing left for those that did
	 * not begin. */
	s->drained.attempt--;
	s->world = s->next_world;
	s->chunks_staged = s->ranks_ready = s->lr_nr = 0;
	s->ranks_nr = core_local_ranks(&s->world, c->conf.self);
	s->told = 0;
	s->ranked = core_ranked(&s->world);
	s->differs = s->harmed = false;
	s->bad_tensor = -1;
	s->bad_rank = -1;
	memset(s->ready, 0, sizeof(s->ready));
	memset(core_at(c, c->at_staged), 0, (c->conf.chunks_nr + 7) / 8);
	memset(step_values(c, 0), 0, s->world.size * VALUES_BYTES);
	missing = local_missing(x, &s->world);
	if (missing) {
		/* Nothing of this attempt ever leaves, so lenders may lend their slots again. */
		s->aborted = s->drained = s->id;
		slots_drained(x);
		step_refuse(x, SHARD_WORLD_CHANGED, missing, 0);
		return;
	}
	step_move(x, CORE_STAGING);
	a = core_act(x, CORE_ACT_BEGIN);
	a->id = s->id;
	a->world = &s->world;
	a->record = &s->record;
	slots_begin(x);
	step_vote(x); /* A node without chunks and ranks has nothing to wait for. */
}

/* Enters the attempt of a BEGIN that waited, once nothing is in its way. */
void step_resume(struct ctx *x)
{
	struct step *s = &x->c->step;

	if (!s->has_next || s->part != CORE_FREE || s->draining || x->c->stopping)
		return;
	/* The attempt may have become void while it waited. Its view is then an older one, or it is
	 * aborted, or it does not follow the last record. */
	if (!core_adopted(x->c, &s->next_id) || core_id_cmp(&s->next_id, &s->aborted) <= 0 ||
	    !s->has_record || s->record.id.step + 1 != s->next_id.step) {
		s->has_next = false;
		return;
	}
	step_enter(x);
}

/* BEGIN of the attempt in hand came once more. */
static void step_answer_again(struct ctx *x)
{
	struct step *s = &x->c->step;

	if (s->part == CORE_STAGING)
		step_waiting(x);
	else if (s->part == CORE_PREPARED)
		step_send_vote(x);
	else if (s->dropped)
		step_tell_dropped(x);
}

void step_on_begin(struct ctx *x, const struct core_msg *m)
{
	struct step *s = &x->c->step;

	if (!core_world_ok(x->c, m->world, core_members(x->c)->nodes) || !m->record ||
	    !m->id.step || !m->id.attempt || !core_adopted(x->c, &m->id))
		return;
	if (!core_id_cmp(&m->id, &s->id)) {
		step_answer_again(x);
		return;
	}
	if (core_id_cmp(&m->id, &s->id) < 0 || m->id.step != m->record->id.step + 1)
		return;
	if (!step_took(x, m->record))
		step_drop(x, SHARD_WORLD_CHANGED,
			  core_text(x->c, "step %llu attempt %u takes its place",
				    (unsigned long long)m->id.step, m->id.attempt));
	if (s->has_next && core_id_cmp(&m->id, &s->next_id) <= 0)
		return;
	s->has_next = true;
	s->next_id = m->id;
	s->next_world = *m->world;
	step_resume(x);
}

bool step_took(struct ctx *x, const struct record *r)
{
	struct step *s = &x->c->step;
	struct core_action *a;

	if (s->part != CORE_PREPARED || core_id_cmp(&r->id, &s->id) ||
	    !record_can_follow(r, &s->record, &s->world))
		return false;
	s->record = *r;
	s->has_record = true;
	s->caught = false;
	step_move(x, CORE_APPLYING);
	core_act(x, CORE_ACT_RESULT)->record = &s->record;
	a = core_act(x, CORE_ACT_APPLY);
	a->id = s->id;
	a->record = &s->record;
	return true;
}

void step_on_commit(struct ctx *x, const struct core_msg *m)
{
	struct step *s = &x->c->step;

	if (!m->record || core_id_cmp(&m->record->id, &m->id) || !core_adopted(x->c, &m->id))
		return;
	if (step_took(x, m->record))
		return;
	/* COMMIT came again. The DONE was lost, unless the record is still being applied. */
	if (s->part != CORE_APPLYING && s->has_record && !core_id_cmp(&s->record.id, &m->id))
		step_send_done(x);
}

void step_on_abort(struct ctx *x, const struct core_msg *m)
{
	struct step *s = &x->c->step;

	if (!core_adopted(x->c, &m->id))
		return;
	/* The ABORT is of a later step. The step in hand was then decided, and its verdict still
	 * has to come. */
	if (step_undecided(s) && s->id.step < m->id.step)
		return;
	if (core_id_cmp(&s->id, &m->id) < 0)
		step_drop(x, SHARD_WORLD_CHANGED,
			  core_text(x->c, "step %llu attempt %u took its place",
				    (unsigned long long)m->id.step, m->id.attempt));
	if (core_id_cmp(&s->id, &m->id) <= 0) {
		step_drop(x, m->status ? m->status : SHARD_WORLD_CHANGED,
			  m->why ? core_text(x->c, "%s", m->why) : "the coordinator aborted it");
		if (s->dropped)
			timer_stop(&s->timer);
		s->dropped = false;
	}
	if (!step_undecided(s) && core_id_cmp(&m->id, &s->aborted) > 0)
		s->aborted = m->id;
}

/* Is the event about the attempt in hand? Events name their attempt. A shell that never has an
 * event of an ended attempt in flight may leave it zero. */
static bool step_in_hand(const struct step *s, const struct core_id *id)
{
	return s->part == CORE_STAGING && (!id->step || !core_id_cmp(id, &s->id));
}

static bool worse(int64_t tensor, int32_t rank, int64_t than_tensor,
		  int32_t than_rank) /* The first one in order is told with the step. */
{
	if (tensor < 0 || than_tensor < 0)
		return tensor >= 0;
	return tensor < than_tensor || (tensor == than_tensor && rank < than_rank);
}

void step_on_staged(struct ctx *x, const struct core_event *e)
{
	struct core *c = x->c;
	struct step *s = &c->step;
	uint8_t *staged = core_at(c, c->at_staged);
	uint32_t *index = core_at(c, c->at_index);

	CHECK(e->chunk < c->conf.chunks_nr);
	/* The attempt ended before the worker was done, and the chunk may have moved since. */
	if (!step_in_hand(s, &e->id))
		return;
	CHECK(place_keeps(core_place(c), e->chunk, c->conf.self));
	CHECK(!(staged[e->chunk / 8] >> (e->chunk % 8) & 1));
	staged[e->chunk / 8] |= (uint8_t)(1u << (e->chunk % 8));
	((double *)core_at(c, c->at_sumsq))[index[e->chunk]] = e->sumsq;
	((uint8_t *)core_at(c, c->at_finite))[index[e->chunk]] = e->finite;
	if (worse(e->bad_tensor, e->bad_rank, s->bad_tensor, s->bad_rank) && !e->finite) {
		s->bad_tensor = e->bad_tensor;
		s->bad_rank = e->bad_rank;
	}
	s->differs = s->differs || e->on;
	s->chunks_staged++;
	step_vote(x);
}

/* Returns a sentence if the rank gave other learning rates than the first one, else NULL. */
static const char *step_other_lr(struct core *c, const double *lr, uint32_t nr, uint32_t rank)
{
	struct step *s = &c->step;
	const char *who, *other;
	uint32_t g = 0;

	while (nr == s->lr_nr && g < nr && lr[g] == s->lr[g])
		g++;
	if (nr == s->lr_nr && g == nr)
		return NULL;
	who = core_rank_name(c, &s->world, rank);
	other = core_rank_name(c, &s->world, s->lr_rank);
	if (nr != s->lr_nr)
		return core_text(c,
				 "lr: %s gave %s, %s gave %s: give lr at shard_begin() on all "
				 "ranks, or on none",
				 who, nr ? "its own" : "none", other,
				 s->lr_nr ? "its own" : "none");
	return core_text(c,
			 "lr of group %u: %s gave %.17g, %s gave %.17g: give the same on all ranks",
			 g, who, lr[g], other, s->lr[g]);
}

/* The same of the clip. */
static const char *step_other_clip(struct core *c, bool has, double clip, uint32_t rank)
{
	struct step *s = &c->step;
	const char *who, *other;

	if (has == s->has_clip && clip == s->clip)
		return NULL;
	who = core_rank_name(c, &s->world, rank);
	other = core_rank_name(c, &s->world, s->lr_rank);
	if (has && s->has_clip)
		return core_text(c,
				 "clip: %s gave %.17g, %s gave %.17g: give the same on all ranks",
				 who, clip, other, s->clip);
	return core_text(c,
			 "clip: %s gave %.17g, %s gave none: give clip at shard_commit_opts() on "
			 "all ranks, or on none",
			 has ? who : other, has ? clip : s->clip, has ? other : who);
}

/* Takes what a rank gave and all have to give alike. Returns a sentence if it differs from what was
 * known before, else NULL. */
static const char *step_take_alike(struct core *c, const double *lr, uint32_t nr,
				   const double *clip, uint32_t rank)
{
	struct step *s = &c->step;
	const char *differs;

	if (!s->has_lr) {
		s->has_lr = true;
		s->lr_nr = nr;
		s->lr_rank = rank;
		if (nr)
			memcpy(s->lr, lr, nr * sizeof(s->lr[0]));
		s->has_clip = clip;
		s->clip = clip ? *clip : 0;
		return NULL;
	}
	differs = step_other_lr(c, lr, nr, rank);
	return differs ? differs : step_other_clip(c, clip, clip ? *clip : 0, rank);
}

static void step_all_ready(struct ctx *x) /* All ranks of this node are. */
{
	struct core *c = x->c;

	c->step.told |= 1ull << c->conf.self;
	view_each(i, core_members(c)) {
		if (i != c->conf.self)
			slots_tell_ranks(x, i);
	}
}

static uint32_t step_first_rank(const struct step *s, uint16_t node)
{
	uint32_t rank = 0;

	while (s->world.rank[rank].node != node)
		rank++;
	return rank;
}

/* A message that names other ranks than the world does, or gives them impossible learning rates, is
 * as good as lost. */
void step_on_ranks(struct ctx *x, const struct core_msg *m)
{
	struct core *c = x->c;
	struct step *s = &c->step;
	const struct core_vote *v = &m->vote;
	const char *differs;
	uint32_t nr = 0;

	if (s->part != CORE_STAGING || core_id_cmp(&m->id, &s->id) || !(s->ranked >> m->from & 1) ||
	    slots_told(s, m->from) || v->ranks_nr != core_local_ranks(&s->world, m->from) ||
	    !v->weights || (v->lr_nr && (!v->lr || v->lr_nr != c->conf.record.groups_nr)) ||
	    (v->values_nr && (!v->values || v->values_nr != v->ranks_nr * CORE_VALUES_NR)))
		return;
	differs = step_take_alike(c, v->lr, v->lr_nr, v->has_clip ? &v->clip : NULL,
				  step_first_rank(s, m->from));
	if (differs) {
		step_abandon(x, SHARD_MISMATCH, differs);
		return;
	}
	for (uint32_t i = 0; i < s->world.size; i++) {
		if (s->world.rank[i].node != m->from)
			continue;
		if (v->values_nr)
			memcpy(step_values(c, i), v->values + (size_t)nr * CORE_VALUES_NR,
			       VALUES_BYTES);
		s->world.rank[i].weight = v->weights[nr++];
	}
	s->skip = s->skip || v->skip;
	s->told |= 1ull << m->from;
	step_vote(x);
}

void step_on_ready(struct ctx *x, const struct core_event *e)
{
	struct step *s = &x->c->step;
	int32_t rank = core_rank_of(&s->world, x->c->conf.self, e->session);
	const char *differs;

	if (!step_in_hand(s, &e->id) || rank < 0 || s->ready[rank / 64] >> (rank % 64) & 1)
		return;
	CHECK(!e->lr_nr || (e->lr && e->lr_nr == x->c->conf.record.groups_nr));
	differs = step_take_alike(x->c, e->lr, e->lr_nr, e->clip, (uint32_t)rank);
	if (differs) {
		step_abandon(x, SHARD_MISMATCH, differs);
		return;
	}
	s->ready[rank / 64] |= 1ull << (rank % 64);
	s->world.rank[rank].weight = e->weight;
	if (e->values)
		memcpy(step_values(x->c, (uint32_t)rank), e->values, VALUES_BYTES);
	s->skip = s->skip || e->skip;
	if (++s->ranks_ready == s->ranks_nr)
		step_all_ready(x);
	step_vote(x);
	/* What this node reported before is not true any more. */
	if (s->part == CORE_STAGING && s->timer.count > 0)
		step_waiting(x);
}

/* The coordinator is told with the next WAITING. */
void step_on_image(struct ctx *x, const struct core_event *e)
{
	struct step *s = &x->c->step;

	CHECK(!e->on || e->chunk < x->c->conf.chunks_nr);
	s->image_chunk = e->on ? e->chunk + 1 : 0;
	s->image_step = e->on ? e->step : 0;
}

void step_applied(struct ctx *x, bool caught)
{
	struct step *s = &x->c->step;

	CHECK(s->part == CORE_APPLYING);
	step_move(x, CORE_FREE);
	/* The shell has waited for its transfers. */
	s->drained = s->id;
	s->caught = caught && core_fetches(x->c);
	step_send_done(x);
}

void step_on_drained(struct ctx *x, const struct core_event *e)
{
	struct step *s = &x->c->step;

	if (!s->draining || core_id_cmp(&e->id, &s->id) < 0)
		return;
	s->draining = false;
	s->drained = s->id;
	slots_drained(x);
	step_resume(x);
}

/* A contribution did not arrive as it was sent. If that node has one rank, the contribution was
 * read from the memory of that trainer, which may have changed on the way. The coordinator is then
 * told which rank it was. A sum over several ranks, and a gradient that the primary reduced, lie in
 * the node's own memory. */
void step_on_damaged(struct ctx *x, const struct core_event *e)
{
	struct core *c = x->c;
	struct step *s = &c->step;
	uint32_t rank;
	const char *why;

	CHECK(e->node < CORE_NODES_MAX && e->chunk < c->conf.chunks_nr);
	if (!step_in_hand(s, &e->id))
		return;
	if (place_primary(core_place(c), e->chunk) != c->conf.self ||
	    core_local_ranks(&s->world, e->node) != 1) {
		why = core_text(c,
				"gradient of chunk %u from node %s arrived damaged: look at its "
				"memory and network",
				e->chunk, core_node_name(c, e->node));
		step_drop(x, SHARD_WORLD_CHANGED, why);
		s->harmed = true;
		step_refuse(x, SHARD_WORLD_CHANGED, why, 0);
		return;
	}
	rank = step_first_rank(s, e->node);
	why = core_text(c,
			"gradient of chunk %u from %s arrived damaged: its trainer wrote to it "
			"after the push "
			"(SHARD_GUARD=1 finds where), or memory or network is bad",
			e->chunk, core_rank_name(c, &s->world, rank));
	step_drop(x, SHARD_WORLD_CHANGED, why);
	step_refuse(x, SHARD_WORLD_CHANGED, why, rank + 1);
}

/* The verdict of the coordinator, or what the ranks of that node gave, cannot come any more. An
 * attempt that this node has not voted for ends here. */
void step_on_link_down(struct ctx *x, uint16_t node, const char *why)
{
	struct core *c = x->c;
	struct step *s = &c->step;
	bool needed = slots_needs(c, node);

	slots_link_down(x, node);
	if (node == core_coordinator(c))
		s->has_next = false;
	if (s->part == CORE_STAGING && (node == core_coordinator(c) || needed))
		step_abandon(x, SHARD_WORLD_CHANGED, why);
}

void step_on_link_up(struct ctx *x, uint16_t node)
{
	struct core *c = x->c;

	slots_link_up(x, node);
	if (node != core_coordinator(c))
		return;
	if (c->step.part == CORE_PREPARED)
		step_send_vote(x);
	else if (c->step.dropped)
		step_tell_dropped(x);
}

void step_on_tick(struct ctx *x)
{
	struct step *s = &x->c->step;

	if (x->now < s->timer.at)
		return;
	if (s->part == CORE_STAGING) {
		step_waiting(x);
		slots_repeat(x);
	} else if (s->part == CORE_PREPARED) {
		step_send_vote(x);
		slots_repeat(x);
	} else if (s->dropped) {
		step_tell_dropped(x);
	}
	if (s->part == CORE_STAGING)
		step_vote(x); /* What differs is told again. */
	timer_next(x->c, &s->timer, x->now);
}

/* --- trainers of this node --- */

/* Does STAGING still wait for it? */
static bool step_not_ready(const struct core *c, uint64_t session)
{
	const struct step *s = &c->step;
	int32_t rank = core_rank_of(&s->world, c->conf.self, session);

	return s->part == CORE_STAGING && rank >= 0 && !(s->ready[rank / 64] >> (rank % 64) & 1);
}

void step_on_abandon(struct ctx *x, const struct core_event *e)
{
	struct core *c = x->c;
	int32_t rank = core_rank_of(&c->step.world, c->conf.self, e->session);

	if (c->step.part != CORE_STAGING || rank < 0)
		return;
	if (e->differ)
		step_abandon(x, SHARD_MISMATCH, e->why);
	else
		step_abandon(x, SHARD_WORLD_CHANGED,
			     core_text(c, "%s abandoned it: %s",
				       core_rank_name(c, &c->step.world, (uint32_t)rank),
				       e->why ? e->why : "no reason given"));
}

void step_on_gone(struct ctx *x, const struct core_event *e)
{
	struct core *c = x->c;
	int32_t rank = core_rank_of(&c->step.world, c->conf.self, e->trainer.session);
	const char *why = local_gone(x, e);

	if (why && step_not_ready(c, e->trainer.session))
		step_abandon(x, SHARD_WORLD_CHANGED,
			     core_text(c, "%s %s",
				       core_rank_name(c, &c->step.world, (uint32_t)rank), why));
}
