/* SPDX-License-Identifier: Apache-2.0 */
/* The decision about a step as a pure function (DESIGN section 5). The same votes, configuration
 * and previous record give the same record, bit for bit, whichever node computes it and in
 * whichever order the votes arrived. The coordinator calls it when it has every vote. A recovering
 * coordinator calls it when the recovery rule says that the old one may have committed. All libm of
 * a step is here and in args.c of optim, and participants get bits. A step with a non-finite
 * gradient, or with a norm that is not finite, is decided as a skip. A skip counts as a step, but
 * not as an applied step and not for the schedule. */
#include "core/record.h"

#include "base/check.h"
#include "core/scaler.h"

#include <math.h>
#include <string.h>

#define CLIP_EPS 1e-6

int core_id_cmp(const struct core_id *a, const struct core_id *b)
{
	if (a->generation != b->generation)
		return a->generation < b->generation ? -1 : 1;
	if (a->term != b->term)
		return a->term < b->term ? -1 : 1;
	if (a->seq != b->seq)
		return a->seq < b->seq ? -1 : 1;
	if (a->step != b->step)
		return a->step < b->step ? -1 : 1;
	if (a->attempt != b->attempt)
		return a->attempt < b->attempt ? -1 : 1;
	return 0;
}

const char *core_world_wrong(const struct core_world *w, uint16_t nodes_nr, uint32_t max_world,
			     uint32_t local_world)
{
	uint32_t local[CORE_NODES_MAX] = {0};

	if (w->size == 0)
		return "it has no rank";
	if (w->size > CORE_RANKS_MAX || (max_world && w->size > max_world))
		return "it has more ranks than max_world";
	for (uint32_t i = 0; i < w->size; i++) {
		const struct core_rank *r = &w->rank[i];

		if (r->node >= nodes_nr)
			return "a rank is on a node that there is not";
		if (local_world && ++local[r->node] > local_world)
			return "a node has more ranks than local_world";
		for (uint32_t k = 0; k < i; k++) {
			if (w->rank[k].session == r->session && w->rank[k].node == r->node)
				return "a trainer is in it twice";
		}
	}
	return NULL;
}

bool record_can_follow(const struct record *r, const struct record *prev,
		       const struct core_world *world)
{
	if (r->content != (r->outcome == RECORD_APPLIED ? r->id.step : prev->content))
		return false;
	if (r->content_old != prev->content && r->content_old != r->content)
		return false;
	if (r->outcome == RECORD_SEAL || r->id.step != prev->id.step + 1 ||
	    r->applied != prev->applied + (r->outcome == RECORD_APPLIED) ||
	    r->world.size != world->size)
		return false;
	for (uint32_t i = 0; i < world->size; i++) {
		if (r->world.rank[i].session != world->rank[i].session ||
		    r->world.rank[i].node != world->rank[i].node)
			return false;
	}
	return true;
}

void record_seal(struct record *r, const struct record_conf *conf, const struct core_id *id)
{
	CHECK(conf->groups_nr <= CORE_GROUPS_MAX);
	memset(r, 0, sizeof(*r));
	r->id = *id;
	r->outcome = RECORD_SEAL;
	r->content = r->content_old = r->applied = id->step;
	r->clip_factor = 1;
	r->bad_tensor = -1;
	r->bad_rank = -1;
	scaler_start(&r->scaler, conf);
	r->loss_scale = r->scaler.scale;
	r->groups_nr = conf->groups_nr;
}

static double weights_sum(const struct core_world *w) /* Adds in rank order. */
{
	double sum = w->rank[0].weight;

	for (uint32_t i = 1; i < w->size; i++)
		sum += w->rank[i].weight;
	return sum;
}

void record_values(double sum[CORE_VALUES_NR], const double *ranks, uint32_t ranks_nr)
{
	CHECK(ranks_nr > 0);
	for (uint32_t i = 0; i < CORE_VALUES_NR; i++) {
		double all = ranks[i];

		for (uint32_t r = 1; r < ranks_nr; r++)
			all += ranks[(size_t)r * CORE_VALUES_NR + i];
		sum[i] = isnan(all) ? (double)NAN : all;
	}
}

static double squares_sum(const struct record_votes *v, bool *finite) /* Adds in chunk order. */
{
	double sum = v->sumsq[0];

	*finite = v->finite[0];
	for (uint32_t i = 1; i < v->chunks_nr; i++) {
		sum += v->sumsq[i];
		*finite = *finite && v->finite[i];
	}
	return sum;
}

void tune_hyper(const struct core_tune *tune, uint32_t group, double h[HYPER_NR])
{
	CHECK(group < CORE_GROUPS_MAX);
	for (uint32_t i = 0; i < HYPER_NR; i++) {
		if (tune->set[group] >> i & 1)
			h[i] = tune->hyper[group][i];
	}
}

bool tune_hyper_ok(const struct core_tune *tune, uint32_t groups_nr)
{
	for (uint32_t g = 0; g < CORE_GROUPS_MAX; g++) {
		if (tune->set[g] & ~TUNE_HYPERS || (tune->set[g] && g >= groups_nr))
			return false;
		for (uint32_t i = 0; i < HYPER_NR; i++) {
			if (tune->set[g] >> i & 1
				    ? !(tune->hyper[g][i] >= 0) || isinf(tune->hyper[g][i])
				    : tune->hyper[g][i] != 0)
				return false;
		}
	}
	return true;
}

bool tune_same_hyper(const struct core_tune *a, const struct core_tune *b)
{
	return !memcmp(a->set, b->set, sizeof(a->set)) &&
	       !memcmp(a->hyper, b->hyper, sizeof(a->hyper));
}

bool tune_has_hyper(const struct core_tune *tune)
{
	for (uint32_t g = 0; g < CORE_GROUPS_MAX; g++)
		if (tune->set[g])
			return true;
	return false;
}

/* Fills in the hyper-parameters of group g in applied step t. Learning rates of the trainers come
 * first, then what an operator set. */
static void hyper_at(double h[HYPER_NR], const struct record_conf *conf,
		     const struct record_votes *votes, uint32_t g, uint64_t t)
{
	const double *lr = votes->lr;
	double momentum;

	memcpy(h, conf->hyper[g], HYPER_NR * sizeof(h[0]));
	if (votes->tune)
		tune_hyper(votes->tune, g, h);
	if (lr)
		h[HYPER_LR] = lr[g];
	else if (votes->tune && votes->tune->has_lr)
		h[HYPER_LR] = votes->tune->lr * conf->lr_factor[g];
	if (conf->schedule.id == SCHEDULE_NONE)
		return;
	if (!lr)
		h[HYPER_LR] = schedule_lr(&conf->schedule, t) * conf->lr_factor[g];
	if (schedule_momentum(&conf->schedule, t, &momentum))
		h[conf->optim->hyper[HYPER_BETA1].name ? HYPER_BETA1 : HYPER_MOMENTUM] = momentum;
}

/* The reduced gradient is divided by this to be the mean. The gradient of a lone rank was not
 * multiplied before. */
static double divisor(const struct record *r, const struct record_conf *conf)
{
	double all = r->loss_scale * r->weight_sum;

	return r->world.size > 1 && conf->predivide != 0 ? all / conf->predivide : all;
}

static void record_apply(struct record *r, const struct record *prev,
			 const struct record_conf *conf, const struct record_votes *votes,
			 double norm)
{
	double h[HYPER_NR], clip = conf->clip;
	float mult;

	if (votes->clip)
		clip = *votes->clip;
	else if (votes->tune && votes->tune->has_clip)
		clip = votes->tune->clip;
	r->outcome = RECORD_APPLIED;
	r->content = r->id.step;
	r->applied = prev->applied + 1;
	r->skipped_in_row = 0;
	r->grad_norm = norm;
	if (clip > 0 && clip / (norm + CLIP_EPS) < 1)
		r->clip_factor = clip / (norm + CLIP_EPS);
	mult = (float)(r->clip_factor / divisor(r, conf));
	for (uint32_t g = 0; g < conf->groups_nr; g++) {
		hyper_at(h, conf, votes, g, r->applied);
		optim_args_set(&r->args[g], conf->optim, h, r->applied, mult);
	}
}

static void record_skip(struct record *r, const struct record *prev, enum record_outcome why)
{
	r->outcome = why;
	r->content = prev->content;
	r->applied = prev->applied;
	r->skipped_in_row = prev->skipped_in_row + 1;
	r->grad_norm = (double)NAN;
	memcpy(r->args, prev->args, sizeof(r->args));
}

bool record_pauses(const struct record *r, const struct core_tune *tune)
{
	return r->diverged && r->id.step > tune->resumed_step;
}

/* The skips in a row, without those before the last resume of an operator. */
static uint64_t record_skips(const struct record *r, const struct core_tune *tune)
{
	/* The resume lies within the present row of skips if no step after it was applied. */
	bool since = tune && r->id.step > tune->resumed_step &&
		     r->skipped_in_row == tune->resumed_skips + (r->id.step - tune->resumed_step);

	return since ? r->skipped_in_row - tune->resumed_skips : r->skipped_in_row;
}

bool record_content_ok(const struct record *r)
{
	if (r->outcome == RECORD_APPLIED)
		return r->content == r->id.step && r->content_old <= r->content;
	if (r->content_old != r->content)
		return false;
	return r->outcome == RECORD_SEAL ? r->content == r->id.step : r->content < r->id.step;
}

void record_decide(struct record *r, const struct record *prev, const struct record_conf *conf,
		   const struct core_id *id, const struct core_world *world,
		   const struct record_votes *votes)
{
	bool finite;
	double sum, norm, h[HYPER_NR];

	CHECK(r != prev && world->size > 0 && votes->chunks_nr > 0 &&
	      conf->groups_nr <= CORE_GROUPS_MAX);
	memset(r, 0, sizeof(*r));
	r->id = *id;
	r->content_old = prev->content;
	r->attempts = id->attempt;
	r->groups_nr = conf->groups_nr;
	r->world = *world;
	r->clip_factor = 1;
	/* A skipped step shows the learning rate that it would have had. The next step has the
	 * same. */
	hyper_at(h, conf, votes, 0, prev->applied + 1);
	r->lr = h[HYPER_LR];
	if (votes->values)
		memcpy(r->values, votes->values, sizeof(r->values));
	r->bad_tensor = votes->bad_tensor;
	r->bad_rank = votes->bad_rank;
	r->scaler = prev->scaler;
	r->loss_scale = prev->scaler.scale;
	r->weight_sum = weights_sum(world);
	sum = squares_sum(votes, &finite);
	norm = sqrt(sum) / divisor(r, conf);
	/* With a weight sum of zero or an overflow of the norm, a non-finite multiplier would get
	 * into every weight. */
	finite = finite && isfinite(norm) && r->weight_sum > 0;
	if (!finite)
		record_skip(r, prev, RECORD_NONFINITE);
	else if (votes->skip)
		record_skip(r, prev, RECORD_SKIP);
	else
		record_apply(r, prev, conf, votes, norm);
	/* A skip that a trainer asked for says nothing about the scale. */
	if (r->outcome != RECORD_SKIP &&
	    !scaler_update(&r->scaler, conf, r->outcome == RECORD_NONFINITE))
		r->diverged = true;
	if (conf->max_skips && record_skips(r, votes->tune) >= conf->max_skips)
		r->diverged = true;
}
