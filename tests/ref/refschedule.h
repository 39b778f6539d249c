/* SPDX-License-Identifier: Apache-2.0 */
/* refschedule.h: learning rate and momentum of a step by DeepSpeed's schedules, written a second
 * time for the reference. */
#ifndef REF_SCHEDULE_H
#define REF_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

struct refschedule {
	char name[24];                                  /* Empty or "none": no schedule. */
	double min_lr, step_size, step_rate, staircase; /* The lr_range_test_... settings. */
	/* OneCycle. second < 0: the same as first. */
	double cycle_min_lr, cycle_max_lr, first, second;
	double first_stairs, second_stairs, moves, min_mom, max_mom;
	double decay_lr, decay_mom, decay_steps;
	double warm_steps, warm_min, warm_max, warm_ratio,
		linear; /* warm_max < 0: the schedule's default. */
	double total, cos_min;
};

void refschedule_start(struct refschedule *s);
/* False: there is no such key. */
bool refschedule_set(struct refschedule *s, const char *key, const char *value);
/* t counts applied steps from 1, including this one. lr is the optimizer's own. */
double refschedule_lr(const struct refschedule *s, double lr, uint64_t t);
/* Negative: the schedule does not change it. */
double refschedule_momentum(const struct refschedule *s, uint64_t t);

#endif
