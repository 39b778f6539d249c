/* SPDX-License-Identifier: Apache-2.0 */
/* The learning-rate schedules, one row and one function for each. record.c calls them for the step
 * that it decides. The argument `last` is what DeepSpeed calls last_batch_iteration. It is -1
 * before the first step and grows by one with each applied step, so that step t is computed with t
 * - 2. The order of operations is that of DeepSpeed, too, and tests/golden compares the bits.
 * Nothing here can fail, because every parameter was checked when the settings were made. The decay
 * may carry a momentum to 1 or beyond, where the bias correction of DeepSpeed turns negative. It is
 * limited to a value just below 1. */
#include "core/schedule.h"

#include "base/check.h"

#include <math.h>
#include <string.h>

#define MOMENTUM_MAX 0.999999
#define PI           3.14159265358979311600 /* This is the nearest double. */

static double lr_range_test(const struct schedule_conf *s, double last)
{
	double interval = (last + 1) / s->param[SCHEDULE_LR_RANGE_TEST_STEP_SIZE];

	if (s->param[SCHEDULE_LR_RANGE_TEST_STAIRCASE] != 0)
		interval = floor(interval);
	return s->param[SCHEDULE_LR_RANGE_TEST_MIN_LR] *
	       (1 + s->param[SCHEDULE_LR_RANGE_TEST_STEP_RATE] * interval);
}

static double cycle_total(const struct schedule_conf *s)
{
	return s->param[SCHEDULE_CYCLE_FIRST_STEP_SIZE] + s->param[SCHEDULE_CYCLE_SECOND_STEP_SIZE];
}

/* How far the cycle is from its minimum to its maximum. It goes from 0 to 1 in the first half and
 * back to 0 in the second. */
static double cycle_scale(const struct schedule_conf *s, double last)
{
	double first = s->param[SCHEDULE_CYCLE_FIRST_STEP_SIZE],
	       second = s->param[SCHEDULE_CYCLE_SECOND_STEP_SIZE];
	double total = cycle_total(s), ratio = first / total, at = last + 1;
	double x = 1 + at / total - floor(1 + at / total);
	double scale, stairs, in_cycle = fmod(at, total);

	if (x <= ratio) {
		scale = x / ratio;
		stairs = s->param[SCHEDULE_CYCLE_FIRST_STAIR_COUNT];
	} else {
		scale = (x - 1) / (ratio - 1);
		stairs = s->param[SCHEDULE_CYCLE_SECOND_STAIR_COUNT];
	}
	if (stairs == 0)
		return scale;
	/* This uses the count of steps, because the quotient above may be an ulp below an exact
	 * stair. */
	scale = in_cycle <= first ? in_cycle * stairs / first
				  : (total - in_cycle) * stairs / second;
	return floor(scale) / stairs;
}

/* Returns 1 + rate * (intervals since the cycle ended). Without intervals, or without a rate, it is
 * 1. */
static double cycle_decay(const struct schedule_conf *s, double last, enum schedule_param rate)
{
	if (s->param[SCHEDULE_DECAY_STEP_SIZE] == 0 || s->param[rate] == 0)
		return 1;
	return 1 +
	       s->param[rate] * ((last - cycle_total(s) + 1) / s->param[SCHEDULE_DECAY_STEP_SIZE]);
}

static double one_cycle(const struct schedule_conf *s, double last)
{
	double min = s->param[SCHEDULE_CYCLE_MIN_LR];

	if (last < cycle_total(s))
		return min + (s->param[SCHEDULE_CYCLE_MAX_LR] - min) * cycle_scale(s, last);
	return min / cycle_decay(s, last, SCHEDULE_DECAY_LR_RATE);
}

static double one_cycle_momentum(const struct schedule_conf *s, double last)
{
	double min = s->param[SCHEDULE_CYCLE_MIN_MOM], max = s->param[SCHEDULE_CYCLE_MAX_MOM];

	/* The optimizer starts with the minimum. The cycle itself begins at the maximum. */
	if (last < 0)
		return min;
	if (last < cycle_total(s))
		return max - (max - min) * cycle_scale(s, last);
	return max * cycle_decay(s, last, SCHEDULE_DECAY_MOM_RATE);
}

static double warmup_steps(const struct schedule_conf *s)
{
	return s->param[SCHEDULE_WARMUP_NUM_STEPS] > 2 ? s->param[SCHEDULE_WARMUP_NUM_STEPS] : 2;
}

static double warmup_gamma(const struct schedule_conf *s, double last)
{
	if (s->param[SCHEDULE_WARMUP_TYPE] == SCHEDULE_LINEAR)
		return last / warmup_steps(s);
	return 1 / log(warmup_steps(s)) * log(last + 1);
}

static double warmup_between(const struct schedule_conf *s, double gamma)
{
	double min = s->param[SCHEDULE_WARMUP_MIN_LR];

	return min + (s->param[SCHEDULE_WARMUP_MAX_LR] - min) * gamma;
}

static double warmup(const struct schedule_conf *s, double last)
{
	if (last < 0)
		return s->param[SCHEDULE_WARMUP_MIN_LR];
	return warmup_between(s, last < warmup_steps(s) ? warmup_gamma(s, last) : 1);
}

static double warmup_decay(const struct schedule_conf *s, double last)
{
	double total = s->param[SCHEDULE_TOTAL_NUM_STEPS], steps = warmup_steps(s);

	if (last < steps)
		return warmup(s, last);
	return warmup_between(s, fmax(0, (total - last) / fmax(1, total - steps)));
}

static double warmup_cosine(const struct schedule_conf *s, double last)
{
	double steps = warmup_steps(s), min = s->param[SCHEDULE_WARMUP_MIN_RATIO],
	       floor_ = s->param[SCHEDULE_COS_MIN_RATIO];
	double progress;

	if (last < 0)
		return 0;
	if (last < steps)
		return s->lr * (min + warmup_gamma(s, last) * (1 - min));
	progress =
		fmin(1, (last - steps + 1) / fmax(1, s->param[SCHEDULE_TOTAL_NUM_STEPS] - steps));
	return s->lr * fmax(0, floor_ + (1 - floor_) * ((1 + cos(PI * progress)) / 2));
}

#define VALUE(x)                                                                                   \
	{                                                                                          \
		SCHEDULE_VALUE, x, 0                                                               \
	}
#define AS(p)                                                                                      \
	{                                                                                          \
		SCHEDULE_AS_PARAM, 0, p                                                            \
	}
#define REQUIRED                                                                                   \
	{                                                                                          \
		SCHEDULE_REQUIRED, 0, 0                                                            \
	}
#define AS_LR                                                                                      \
	{                                                                                          \
		SCHEDULE_AS_LR, 0, 0                                                               \
	}

static const struct schedule_row rows[SCHEDULE_NR] = {
	[SCHEDULE_NONE] = {.name = "none"},
	[SCHEDULE_LR_RANGE_TEST] = {"LRRangeTest",
				    lr_range_test,
				    {[SCHEDULE_LR_RANGE_TEST_MIN_LR] = VALUE(1e-3),
				     [SCHEDULE_LR_RANGE_TEST_STEP_SIZE] = VALUE(2000),
				     [SCHEDULE_LR_RANGE_TEST_STEP_RATE] = VALUE(1),
				     [SCHEDULE_LR_RANGE_TEST_STAIRCASE] = VALUE(0)}},
	[SCHEDULE_ONE_CYCLE] = {"OneCycle",
				one_cycle,
				{[SCHEDULE_CYCLE_MIN_LR] = REQUIRED,
				 [SCHEDULE_CYCLE_MAX_LR] = REQUIRED,
				 [SCHEDULE_DECAY_LR_RATE] = VALUE(0),
				 [SCHEDULE_CYCLE_FIRST_STEP_SIZE] = VALUE(2000),
				 [SCHEDULE_CYCLE_SECOND_STEP_SIZE] =
					 AS(SCHEDULE_CYCLE_FIRST_STEP_SIZE),
				 [SCHEDULE_CYCLE_FIRST_STAIR_COUNT] = VALUE(0),
				 [SCHEDULE_CYCLE_SECOND_STAIR_COUNT] =
					 AS(SCHEDULE_CYCLE_FIRST_STAIR_COUNT),
				 [SCHEDULE_DECAY_STEP_SIZE] = VALUE(0),
				 [SCHEDULE_CYCLE_MOMENTUM] = VALUE(1),
				 [SCHEDULE_CYCLE_MIN_MOM] = VALUE(0.8),
				 [SCHEDULE_CYCLE_MAX_MOM] = VALUE(0.9),
				 [SCHEDULE_DECAY_MOM_RATE] = VALUE(0)}},
	[SCHEDULE_WARMUP] = {"WarmupLR",
			     warmup,
			     {[SCHEDULE_WARMUP_MIN_LR] = VALUE(0),
			      [SCHEDULE_WARMUP_MAX_LR] = AS_LR,
			      [SCHEDULE_WARMUP_NUM_STEPS] = VALUE(1000),
			      [SCHEDULE_WARMUP_TYPE] = VALUE(SCHEDULE_LOG)}},
	[SCHEDULE_WARMUP_DECAY] = {"WarmupDecayLR",
				   warmup_decay,
				   {[SCHEDULE_TOTAL_NUM_STEPS] = REQUIRED,
				    [SCHEDULE_WARMUP_MIN_LR] = VALUE(0),
				    [SCHEDULE_WARMUP_MAX_LR] = VALUE(0.001),
				    [SCHEDULE_WARMUP_NUM_STEPS] = VALUE(1000),
				    [SCHEDULE_WARMUP_TYPE] = VALUE(SCHEDULE_LOG)}},
	[SCHEDULE_WARMUP_COSINE] = {"WarmupCosineLR",
				    warmup_cosine,
				    {[SCHEDULE_TOTAL_NUM_STEPS] = REQUIRED,
				     [SCHEDULE_WARMUP_MIN_RATIO] = VALUE(0),
				     [SCHEDULE_WARMUP_NUM_STEPS] = VALUE(1000),
				     [SCHEDULE_COS_MIN_RATIO] = VALUE(0.0001),
				     [SCHEDULE_WARMUP_TYPE] = VALUE(SCHEDULE_LOG)}},
};

const struct schedule_row *schedule_row(enum schedule_id id)
{
	CHECK((unsigned)id < SCHEDULE_NR);
	return &rows[id];
}

enum schedule_id schedule_row_id(const struct schedule_row *row)
{
	CHECK(row >= rows && row < rows + SCHEDULE_NR);
	return (enum schedule_id)(row - rows);
}

double schedule_lr(const struct schedule_conf *s, uint64_t t)
{
	CHECK(t >= 1 && s->id != SCHEDULE_NONE);
	return schedule_row(s->id)->lr(s, (double)t - 2);
}

bool schedule_momentum(const struct schedule_conf *s, uint64_t t, double *momentum)
{
	CHECK(t >= 1);
	if (s->id != SCHEDULE_ONE_CYCLE || s->param[SCHEDULE_CYCLE_MOMENTUM] == 0)
		return false;
	*momentum = fmin(MOMENTUM_MAX, one_cycle_momentum(s, (double)t - 2));
	return true;
}
