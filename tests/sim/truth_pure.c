/* SPDX-License-Identifier: Apache-2.0 */
/* Works out the record of a step a second time, from its votes, its view's tune, the settings and
 * the record before. truth.c calls it for each decided step. The checkers are record_pure (sums,
 * norm, counters, loss scale) and tuned (whose learning rate it is, momentum, clip factor, and what
 * the optimizer gets for each group), and values_summed. It is written from the README and
 * DeepSpeed's description, not from daemon/core/record.c and scaler.c. Only the values of the
 * schedules are taken from there, which unit/test_schedule compares with DeepSpeed. */
#include "sim/sim.h"

#include <math.h>
#include <string.h>

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
	} else if (was->iter - was->last_overflow > 1 &&
		   (was->iter - was->last_overflow - 1) % 4 == 0) {
		now->scale = was->scale * 2;
		now->hysteresis = 2;
	}
	now->iter = was->iter + 1;
	return true;
}

static void pure_counters(struct sim *s, const struct record *prev, const struct record *r)
{
	struct scaler scaler = prev->scaler;
	char a[64];

	if (r->outcome != RECORD_SKIP)
		scaler_next(&prev->scaler, s->m->fp16, r->outcome == RECORD_NONFINITE, &scaler);
	if (!truth_bits(scaler.scale, r->scaler.scale) || scaler.iter != r->scaler.iter ||
	    scaler.hysteresis != r->scaler.hysteresis ||
	    scaler.last_overflow != r->scaler.last_overflow ||
	    !truth_bits(prev->scaler.scale, r->loss_scale))
		sim_fail(s, "record_pure",
			 "%s: the loss scale does not follow from the step before",
			 sim_id(&r->id, a));
	if (r->applied != prev->applied + (r->outcome == RECORD_APPLIED))
		sim_fail(s, "record_pure", "%s: %llu applied after %llu", sim_id(&r->id, a),
			 (unsigned long long)r->applied, (unsigned long long)prev->applied);
	if (r->content != (r->outcome == RECORD_APPLIED ? r->id.step : prev->content))
		sim_fail(s, "record_pure", "%s: weights are said to be of step %llu",
			 sim_id(&r->id, a), (unsigned long long)r->content);
	if (r->content_old != prev->content)
		sim_fail(s, "record_pure", "%s: the weights before are said to be of step %llu",
			 sim_id(&r->id, a), (unsigned long long)r->content_old);
	if (r->skipped_in_row != (r->outcome == RECORD_APPLIED ? 0 : prev->skipped_in_row + 1))
		sim_fail(s, "record_pure", "%s: skipped in a row", sim_id(&r->id, a));
}

/* What the ranks gave with the step, added in the order of ranks. All NaNs are one. */
static void pure_values(struct sim *s, const struct record *r)
{
	char a[64];

	for (uint32_t i = 0; i < CORE_VALUES_NR; i++) {
		double sum = truth_value(&r->id, r->world.rank[0].session, i);

		for (uint32_t k = 1; k < r->world.size; k++)
			sum += truth_value(&r->id, r->world.rank[k].session, i);
		if (!truth_bits(sum == sum ? sum : (double)NAN, r->values[i]))
			sim_fail(s, "values_summed", "%s: value %u is %a, but its ranks gave %a",
				 sim_id(&r->id, a), i, r->values[i], sum);
	}
}

/* Returns what the sum of gradients is divided by: the loss scale and the sum of weights, less what
 * trainers of a world of several ranks divided by before they summed. */
static double pure_divisor(const struct sim *s, const struct record *prev, const struct record *r,
			   double weight_sum)
{
	double before = r->world.size > 1 && s->m->conf.predivide > 0 ? s->m->conf.predivide : 1;

	return prev->scaler.scale * weight_sum / before;
}

/* The trainer's own rate comes before the schedule, the schedule before the operator's rate, and
 * that before the settings. The same holds for what else an operator sets for a group. The last
 * three are multiplied by the group's factor. */
static void pure_hyper(const struct sim *s, const struct record *r, const struct core_tune *tune,
		       uint32_t g, double h[HYPER_NR])
{
	const struct sim_gave *gave = truth_gave(&s->m->session[r->world.rank[0].session], &r->id);
	const struct record_conf *conf = &s->m->conf;
	uint64_t t = r->outcome == RECORD_APPLIED ? r->applied : r->applied + 1;

	memcpy(h, conf->hyper[g], HYPER_NR * sizeof(h[0]));
	for (uint32_t i = 0; i < HYPER_NR; i++) {
		if (tune->set[g] & 1u << i)
			h[i] = tune->hyper[g][i];
	}
	if (tune->has_lr)
		h[HYPER_LR] = tune->lr * conf->lr_factor[g];
	if (conf->schedule.id != SCHEDULE_NONE)
		h[HYPER_LR] = schedule_lr(&conf->schedule, t) * conf->lr_factor[g];
	if (gave && gave->lr_nr)
		h[HYPER_LR] = gave->lr[g];
	if (conf->schedule.id == SCHEDULE_ONE_CYCLE)
		(void)schedule_momentum(
			&conf->schedule, t,
			&h[conf->optim->id == OPTIM_SGD ? HYPER_MOMENTUM : HYPER_BETA1]);
}

static void pure_tuned(struct sim *s, const struct record *r, const struct core_tune *tune,
		       double norm, double divisor)
{
	const struct sim_gave *gave = truth_gave(&s->m->session[r->world.rank[0].session], &r->id);
	double h[HYPER_NR], factor = 1, clip = tune->has_clip ? tune->clip : s->m->conf.clip;
	struct optim_args args;
	char a[64];

	if (gave && gave->clip >= 0)
		clip = gave->clip;
	pure_hyper(s, r, tune, 0, h);
	if (!truth_bits(h[HYPER_LR], r->lr))
		sim_fail(s, "tuned", "%s: lr %a, but it should be %a", sim_id(&r->id, a), r->lr,
			 h[HYPER_LR]);
	if (r->outcome != RECORD_APPLIED)
		return;
	if (clip > 0 && norm + 1e-6 > clip)
		factor = clip / (norm + 1e-6);
	if (!truth_bits(factor, r->clip_factor))
		sim_fail(s, "tuned", "%s: clip factor %a, but its view makes it %a",
			 sim_id(&r->id, a), r->clip_factor, factor);
	for (uint32_t g = 0; g < s->m->conf.groups_nr; g++) {
		memset(&args, 0, sizeof(args));
		pure_hyper(s, r, tune, g, h);
		optim_args_set(&args, s->m->conf.optim, h, r->applied, (float)(factor / divisor));
		if (r->groups_nr != s->m->conf.groups_nr ||
		    memcmp(&args, &r->args[g], sizeof(args)))
			sim_fail(s, "tuned",
				 "%s: the optimizer is given other numbers for group %u",
				 sim_id(&r->id, a), g);
	}
}

void truth_pure(struct sim *s, const struct record *prev, const struct record *r)
{
	const struct core_tune *tune = truth_tune_of(s, &r->id);
	double weight_sum = 0, squares = 0, norm, divisor;
	char a[64];

	pure_counters(s, prev, r);
	pure_values(s, r);
	for (uint32_t i = 0; i < r->world.size; i++)
		weight_sum += r->world.rank[i].weight;
	for (uint32_t c = 0; c < s->m->chunks_nr; c++) {
		uint64_t g = 0;

		for (uint32_t i = 0; i < r->world.size; i++)
			g += sim_mix(truth_gradient(&r->id, r->world.rank[i].session, c), i);
		squares += odd_alone(s, r, c, 1e-3 * (double)(g >> 32));
	}
	divisor = pure_divisor(s, prev, r, weight_sum);
	norm = sqrt(squares) / divisor;
	if (r->outcome == RECORD_APPLIED &&
	    (!truth_bits(norm, r->grad_norm) || !truth_bits(weight_sum, r->weight_sum)))
		sim_fail(s, "record_pure", "%s: norm %a, but its votes give %a", sim_id(&r->id, a),
			 r->grad_norm, norm);
	if (tune)
		pure_tuned(s, r, tune, norm, divisor);
	if (tune)
		truth_ordered(s, prev, r, tune);
}
