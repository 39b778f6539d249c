/* SPDX-License-Identifier: Apache-2.0 */
/* The checkers, named after what they watch (DESIGN section 4): one_verdict, exactly_once, no_tear, no_partial_effect, durable_view,
 * told_stays_true, record_pure, image_open, nonfinite_kept, deadline_named. slot_one_writer, arena_one_writer are in shell.c where the bytes
 * move, liveness in fault.c. They look at every action of every node, knowing what no node knows: what all others did. */
#include "sim/sim.h"

#include <math.h>
#include <string.h>

static bool same(const struct core_id *a, const struct core_id *b)
{
	return core_id_cmp(a, b) == 0;
}

uint64_t truth_gradient(const struct core_id *id, uint64_t session, uint32_t chunk)
{
	return sim_mix(sim_mix(id->step * 1000 + id->attempt, id->term * 64 + id->seq), sim_mix(session, chunk));
}

static bool bits_equal(double a, double b)
{
	return memcmp(&a, &b, sizeof(a)) == 0;
}

static bool records_equal(const struct record *a, const struct record *b)
{
	if (!same(&a->id, &b->id) || a->outcome != b->outcome || a->applied != b->applied ||
	    a->skipped_in_row != b->skipped_in_row || a->diverged != b->diverged || a->world.size != b->world.size ||
	    a->groups_nr != b->groups_nr)
		return false;
	if (!bits_equal(a->grad_norm, b->grad_norm) || !bits_equal(a->clip_factor, b->clip_factor) ||
	    !bits_equal(a->weight_sum, b->weight_sum) || !bits_equal(a->loss_scale, b->loss_scale) ||
	    !bits_equal(a->scaler.scale, b->scaler.scale) || a->scaler.iter != b->scaler.iter ||
	    a->scaler.hysteresis != b->scaler.hysteresis || a->scaler.last_overflow != b->scaler.last_overflow)
		return false;
	for (uint32_t i = 0; i < a->world.size; i++) {
		if (a->world.rank[i].session != b->world.rank[i].session || a->world.rank[i].node != b->world.rank[i].node ||
		    !bits_equal(a->world.rank[i].weight, b->world.rank[i].weight))
			return false;
	}
	return memcmp(a->args, b->args, sizeof(a->args)) == 0;
}

struct truth *truth_of(struct sim *s, uint32_t generation)
{
	if (generation >= GENERATIONS)
		sim_fail(s, "liveness", "generation %u", generation);
	return &s->truth[generation];
}

/* A new coordinator decides over the members that answered as who they were: one that started again has left the view. */
static bool truth_left(const struct sim *s, uint16_t n, const struct record *r)
{
	if (s->node[0].starts <= r->id.term)
		return false;
	for (uint32_t i = s->views_nr; i-- > 0 && i + VIEWS > s->views_nr;) {
		if (s->view[i % VIEWS].term == r->id.term && s->view[i % VIEWS].seq == r->id.seq)
			return s->view[i % VIEWS].incarnation[n] != s->node[n].incarnation || !s->node[n].alive;
	}
	return false;
}

static void truth_votes(struct sim *s,
			const struct record *r) /* a commit needs the vote of every member and the ready of every rank */
{
	bool nan = false, skip = false;
	char a[64], b[64];

	for (uint16_t n = 0; n < s->nodes_nr; n++) {
		if (!same(&s->node[n].prepared, &r->id) && !truth_left(s, n, r))
			sim_fail(s, "one_verdict", "%s is committed, but n%u was last prepared for %s", sim_id(&r->id, a), n,
				 sim_id(&s->node[n].prepared, b));
	}
	for (uint32_t i = 0; i < r->world.size; i++) {
		const struct core_rank *k = &r->world.rank[i];
		const struct sim_session *ses = &s->session[k->session];

		if (!same(&ses->ready, &r->id) || !bits_equal(ses->weight, k->weight))
			sim_fail(s, "no_partial_effect", "%s is committed with rank %u, which did not commit it", sim_id(&r->id, a),
				 i);
		nan = nan || ses->nan;
		skip = skip || ses->skip;
	}
	if (r->outcome != (nan ? RECORD_NONFINITE : skip ? RECORD_SKIP : RECORD_APPLIED))
		sim_fail(s, "nonfinite_kept", "%s: outcome %d, but nan %d skip %d", sim_id(&r->id, a), r->outcome, nan, skip);
}

/* DeepSpeed's rules once more, written from their description and not from scaler.c. */
static bool scaler_next(const struct scaler *was, bool fp16, bool overflow, struct scaler *now)
{
	*now = *was;
	if (!fp16)
		return true;
	if (overflow && was->hysteresis == 1) {
		now->scale = was->scale / 2 < 0x1p-40 ? 0x1p-40 : was->scale / 2;
		now->last_overflow = was->iter;
	} else if (overflow) {
		now->hysteresis = was->hysteresis - 1;
		now->last_overflow = was->iter;
	} else if (was->iter - was->last_overflow > 1 && (was->iter - was->last_overflow - 1) % 4 == 0) {
		now->scale = was->scale * 2;
		now->hysteresis = 2;
	}
	now->iter = was->iter + 1;
	return true;
}

/* The record is a function of the votes, the configuration and the record before: worked out here a second time. */
static void truth_pure(struct sim *s, const struct record *prev, const struct record *r)
{
	struct scaler scaler = prev->scaler;
	double weight_sum = 0, squares = 0, norm;
	char a[64];

	if (r->outcome != RECORD_SKIP)
		scaler_next(&prev->scaler, s->fp16, r->outcome == RECORD_NONFINITE, &scaler);
	if (!bits_equal(scaler.scale, r->scaler.scale) || scaler.iter != r->scaler.iter ||
	    scaler.hysteresis != r->scaler.hysteresis || scaler.last_overflow != r->scaler.last_overflow ||
	    !bits_equal(prev->scaler.scale, r->loss_scale))
		sim_fail(s, "record_pure", "%s: the loss scale does not follow from the step before", sim_id(&r->id, a));
	if (r->applied != prev->applied + (r->outcome == RECORD_APPLIED))
		sim_fail(s, "record_pure", "%s: %llu applied after %llu", sim_id(&r->id, a), (unsigned long long)r->applied,
			 (unsigned long long)prev->applied);
	if (r->skipped_in_row != (r->outcome == RECORD_APPLIED ? 0 : prev->skipped_in_row + 1))
		sim_fail(s, "record_pure", "%s: skipped in a row", sim_id(&r->id, a));
	for (uint32_t i = 0; i < r->world.size; i++)
		weight_sum += r->world.rank[i].weight;
	for (uint32_t c = 0; c < s->chunks_nr; c++) {
		uint64_t g = 0;

		for (uint32_t i = 0; i < r->world.size; i++)
			g += sim_mix(truth_gradient(&r->id, r->world.rank[i].session, c), i);
		squares += 1e-3 * (double)(g >> 32);
	}
	norm = sqrt(squares) / (prev->scaler.scale * weight_sum);
	if (r->outcome == RECORD_APPLIED && (!bits_equal(norm, r->grad_norm) || !bits_equal(weight_sum, r->weight_sum)))
		sim_fail(s, "record_pure", "%s: norm %a, but its votes give %a", sim_id(&r->id, a), r->grad_norm, norm);
	truth_tuned(s, prev, r, norm);
}

static void truth_weights(struct sim *s, struct truth *t, const struct record *r)
{
	for (uint32_t c = 0; c < s->chunks_nr; c++) {
		uint64_t before = t->weights[(r->id.step + 1) % 2][c], g = 0;

		for (uint32_t i = 0; i < r->world.size; i++)
			g += sim_mix(truth_gradient(&r->id, r->world.rank[i].session, c), i);
		t->weights[r->id.step % 2][c] =
			r->outcome == RECORD_APPLIED ? sim_mix(before, sim_mix(g, dtype_bits(r->args[0].step_size))) : before;
	}
}

void truth_record(struct sim *s, const struct record *r)
{
	struct truth *t = truth_of(s, r->id.generation);
	char a[64], b[64];

	if (r->outcome == RECORD_SEAL) {
		if (t->sealed && (t->seal_step != r->id.step || t->last < r->id.step))
			sim_fail(s, "one_verdict", "generation %u is sealed twice", r->id.generation);
		if (t->sealed)
			return;
		t->sealed = true;
		t->seal_step = t->last = r->id.step;
		t->record[r->id.step % 2] = *r;
		for (uint32_t c = 0; c < s->chunks_nr; c++)
			t->weights[r->id.step % 2][c] = t->restoring ? t->checkpoint.weights[c] : sim_mix(r->id.generation, c);
		truth_seal(s, t, r);
		return;
	}
	if (!t->sealed)
		sim_fail(s, "one_verdict", "%s is committed to a model that is not sealed", sim_id(&r->id, a));
	if (r->id.step + 1 < t->last || r->id.step < t->seal_step)
		return; /* an old copy of a message */
	if (r->id.step <= t->last) {
		const struct record *known = &t->record[r->id.step % 2];

		if (!records_equal(known, r))
			sim_fail(s, "one_verdict", "step %llu is committed as %s and as %s", (unsigned long long)r->id.step,
				 sim_id(&known->id, a), sim_id(&r->id, b));
		return;
	}
	if (r->id.step != t->last + 1)
		sim_fail(s, "exactly_once", "%s is committed after step %llu", sim_id(&r->id, a), (unsigned long long)t->last);
	if (r->id.generation < s->generation)
		sim_fail(s, "durable_view", "%s is committed in a generation that was LOST", sim_id(&r->id, a));
	truth_votes(s, r);
	truth_pure(s, &t->record[t->last % 2], r);
	t->last = r->id.step;
	t->record[r->id.step % 2] = *r;
	truth_weights(s, t, r);
	s->commits++;
	s->progress_at = s->now;
	if (!s->faults && s->now >= s->faults_end)
		s->healed_commits++;
}

void truth_applied(struct sim *s, uint16_t n, uint32_t chunk)
{
	struct sim_node *nd = &s->node[n];
	const struct record *r = &nd->record;
	struct truth *t = truth_of(s, r->id.generation);
	char a[64];

	if (nd->version[chunk] != r->id.step)
		sim_fail(s, "exactly_once", "n%u applies %s to chunk %u, which is then at %llu", n, sim_id(&r->id, a), chunk,
			 (unsigned long long)nd->version[chunk]);
	if (nd->weights[chunk] != t->weights[r->id.step % 2][chunk])
		sim_fail(s, "no_tear", "n%u: chunk %u after %s is not what the committed steps make of it", n, chunk,
			 sim_id(&r->id, a));
}

void truth_durable(struct sim *s, const struct core_view *v)
{
	struct truth *t;

	if (v->generation > s->generation) {
		if (s->generation)
			s->losts++;
		s->generation = v->generation;
	}
	s->view[s->views_nr % VIEWS].term = v->term;
	s->view[s->views_nr % VIEWS].seq = v->seq;
	for (uint16_t n = 0; n < s->nodes_nr; n++)
		s->view[s->views_nr % VIEWS].incarnation[n] = v->incarnation[n];
	s->view[s->views_nr % VIEWS].tune = v->tune;
	s->views_nr++;
	truth_view(s, v);
	if (!v->sealed)
		return;
	t = truth_of(s, v->generation);
	s->forwards += t->sealed && v->record.id.step > t->last; /* the recovery rule committed what nobody had seen */
	truth_record(s, &v->record);
	if (v->record.id.step < t->last)
		sim_fail(s, "told_stays_true", "a view at step %llu, but step %llu was committed",
			 (unsigned long long)v->record.id.step, (unsigned long long)t->last);
}

static bool view_durable(const struct sim *s, const struct core_id *id)
{
	const struct core_view *v = &s->node[0].disk;

	return s->node[0].has_disk && v->term == id->term && v->seq == id->seq && v->generation == id->generation;
}

static void truth_send(struct sim *s, uint16_t n, const struct core_msg *m)
{
	char a[64];
	bool coordinator = m->op == CORE_VIEW || m->op == CORE_BEGIN || m->op == CORE_COMMIT;

	if (coordinator && n == 0 && !view_durable(s, &m->id) && !(m->record && m->op == CORE_COMMIT))
		sim_fail(s, "durable_view", "n%u sends %s of a view that is not durable", n, sim_id(&m->id, a));
	if (m->view && (m->view->seq != m->id.seq || m->view->generation != m->id.generation))
		sim_fail(s, "durable_view", "n%u sends a view as %s, which it is not", n, sim_id(&m->id, a));
	if (m->record && m->record->outcome != RECORD_SEAL)
		truth_record(s, m->record);
	if (m->op == CORE_VOTE && !same(&s->node[n].open, &m->id))
		sim_fail(s, "image_open", "n%u votes for %s before its image is open", n, sim_id(&m->id, a));
	if (m->op == CORE_VOTE && !same(&s->node[n].prepared, &m->id))
		sim_fail(s, "one_verdict", "n%u votes for %s without being prepared", n, sim_id(&m->id, a));
}

static void truth_open(struct sim *s, uint16_t n, const struct core_action *a)
{
	struct sim_node *nd = &s->node[n];
	char id[64];

	if (!same(&nd->id, &a->id) || (!nd->running && !nd->warming))
		sim_fail(s, "image_open", "n%u opens its image for %s", n, sim_id(&a->id, id));
	for (uint32_t i = 0; i < nd->world.size; i++) {
		const struct core_rank *k = &nd->world.rank[i];

		if (k->node == n && !same(&s->session[k->session].ready, &a->id))
			sim_fail(s, "no_partial_effect", "n%u votes for %s before its rank %u did", n, sim_id(&a->id, id), i);
	}
	nd->prepared = a->id;
}

static void truth_ended(struct sim *s, uint16_t n, const struct core_action *a)
{
	struct truth *t = truth_of(s, a->id.generation);
	char id[64];

	s->aborts++;
	if (!a->why || !a->why[0])
		sim_fail(s, "deadline_named", "%s ends without a reason", sim_id(&a->id, id));
	if (a->id.generation == s->generation && a->id.step <= t->last && a->id.step + 1 >= t->last &&
	    same(&t->record[a->id.step % 2].id, &a->id))
		sim_fail(s, "told_stays_true", "n%u drops %s, which was committed", n, sim_id(&a->id, id));
}

void truth_action(struct sim *s, uint16_t n, const struct core_action *a)
{
	truth_order(s, n, a);
	switch (a->type) {
	case CORE_ACT_SEND:
		truth_send(s, n, &a->msg);
		break;
	case CORE_ACT_OPEN:
		truth_open(s, n, a);
		break;
	case CORE_ACT_APPLY:
	case CORE_ACT_RESULT:
	case CORE_ACT_SEAL:
		truth_record(s, a->record);
		break;
	case CORE_ACT_ENDED:
		truth_ended(s, n, a);
		break;
	case CORE_ACT_LOST:
	case CORE_ACT_EXPEL:
		if (!a->why || !a->why[0])
			sim_fail(s, "deadline_named", "n%u: action %d without a reason", n, a->type);
		break;
	case CORE_ACT_PERSIST:
		truth_lost(s, a->view);
		break;
	case CORE_ACT_HELD:
	case CORE_ACT_TUNED:
	case CORE_ACT_BEGIN:
	case CORE_ACT_CREDIT:
	case CORE_ACT_LEFT:
		break;
	}
}

/* Nothing is wrong any more and the trainer did what it had to: then no deadline may pass. */
void truth_expelled(struct sim *s, uint32_t trainer, const char *why)
{
	if (!s->faults && s->now > s->healed_at + 10 * SEC && !s->trainer[trainer].stopped)
		sim_fail(s, "liveness", "trainer %u is expelled without a fault: %s", trainer, why);
}

void truth_end(struct sim *s)
{
	if (s->healed_commits < HEALED_COMMITS)
		sim_fail(s, "liveness", "the run ended by itself");
	truth_orders_end(s);
}
