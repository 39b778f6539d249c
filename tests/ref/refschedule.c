// SPDX-License-Identifier: Apache-2.0
/* refschedule.c: the schedules for the reference, from DeepSpeed's description and in its order of
 * operations. On purpose it is not the daemon's code. reference.c asks for one step at a time. It
 * cannot fail, because the daemon has refused wrong values. */
#include "ref/refschedule.h"
#include "base/check.h"
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static const struct {
	const char *key;
	size_t at;
	double fallback;
} keys[] = {
	{"lr_range_test_min_lr", offsetof(struct refschedule, min_lr), 1e-3},
	{"lr_range_test_step_size", offsetof(struct refschedule, step_size), 2000},
	{"lr_range_test_step_rate", offsetof(struct refschedule, step_rate), 1},
	{"lr_range_test_staircase", offsetof(struct refschedule, staircase), 0},
	{"cycle_min_lr", offsetof(struct refschedule, cycle_min_lr), 0},
	{"cycle_max_lr", offsetof(struct refschedule, cycle_max_lr), 0},
	{"cycle_first_step_size", offsetof(struct refschedule, first), 2000},
	{"cycle_second_step_size", offsetof(struct refschedule, second), -1},
	{"cycle_first_stair_count", offsetof(struct refschedule, first_stairs), 0},
	{"cycle_second_stair_count", offsetof(struct refschedule, second_stairs), -1},
	{"cycle_momentum", offsetof(struct refschedule, moves), 1},
	{"cycle_min_mom", offsetof(struct refschedule, min_mom), 0.8},
	{"cycle_max_mom", offsetof(struct refschedule, max_mom), 0.9},
	{"decay_lr_rate", offsetof(struct refschedule, decay_lr), 0},
	{"decay_mom_rate", offsetof(struct refschedule, decay_mom), 0},
	{"decay_step_size", offsetof(struct refschedule, decay_steps), 0},
	{"warmup_num_steps", offsetof(struct refschedule, warm_steps), 1000},
	{"warmup_min_lr", offsetof(struct refschedule, warm_min), 0},
	{"warmup_max_lr", offsetof(struct refschedule, warm_max), -1},
	{"warmup_min_ratio", offsetof(struct refschedule, warm_ratio), 0},
	{"warmup_type", offsetof(struct refschedule, linear), 0},
	{"total_num_steps", offsetof(struct refschedule, total), 0},
	{"cos_min_ratio", offsetof(struct refschedule, cos_min), 1e-4},
};

static double *field(struct refschedule *s, size_t i)
{
	return (double *)(void *)((char *)s + keys[i].at);
}

void refschedule_start(struct refschedule *s)
{
	memset(s, 0, sizeof(*s));
	for (size_t i = 0; i < NR(keys); i++)
		*field(s, i) = keys[i].fallback;
}

bool refschedule_set(struct refschedule *s, const char *key, const char *value)
{
	if (strcmp(key, "schedule") == 0) {
		strncpy(s->name, value, sizeof(s->name) - 1);
		return true;
	}
	for (size_t i = 0; i < NR(keys); i++) {
		if (strcmp(key, keys[i].key) != 0)
			continue;
		*field(s, i) = strcmp(value, "linear") == 0 || strcmp(value, "yes") == 0
				       ? 1
				       : strtod(value, NULL);
		return true;
	}
	return false;
}

/* OneCycle: 0 at the ends, 1 in the middle. `it` is DeepSpeed's last_batch_iteration. */
static double cycle_scale(const struct refschedule *s, double it, double second)
{
	double total = s->first + second, ratio = s->first / total,
	       cycle = floor(1 + (it + 1) / total);
	double x = 1 + (it + 1) / total - cycle, in = fmod(it + 1, total);
	double stairs = x > ratio && s->second_stairs >= 0 ? s->second_stairs : s->first_stairs;

	if (stairs > 0)
		return floor(in <= s->first ? in * stairs / s->first
					    : (total - in) * stairs / second) /
		       stairs;
	return x <= ratio ? x / ratio : (x - 1) / (ratio - 1);
}

static double one_cycle(const struct refschedule *s, double it)
{
	double second = s->second < 0 ? s->first : s->second, total = s->first + second;

	if (it < total)
		return s->cycle_min_lr +
		       (s->cycle_max_lr - s->cycle_min_lr) * cycle_scale(s, it, second);
	if (s->decay_steps == 0)
		return s->cycle_min_lr;
	return s->cycle_min_lr / (1 + s->decay_lr * ((it - total + 1) / s->decay_steps));
}

double refschedule_momentum(const struct refschedule *s, uint64_t t)
{
	double second = s->second < 0 ? s->first : s->second, total = s->first + second,
	       it = (double)t - 2;

	if (strcmp(s->name, "OneCycle") != 0 || s->moves == 0)
		return -1;
	if (it < 0)
		return s->min_mom;
	if (it < total)
		return s->max_mom - (s->max_mom - s->min_mom) * cycle_scale(s, it, second);
	if (s->decay_steps == 0)
		return s->max_mom;
	return fmin(0.999999,
		    s->max_mom * (1 + s->decay_mom * ((it - total + 1) / s->decay_steps)));
}

double refschedule_lr(const struct refschedule *s, double lr, uint64_t t)
{
	double it = (double)t - 2, n = s->warm_steps < 2 ? 2 : s->warm_steps,
	       interval = (it + 1) / s->step_size, gamma = 1, max, left;

	if (s->name[0] == 0 || strcmp(s->name, "none") == 0)
		return lr;
	if (strcmp(s->name, "LRRangeTest") == 0)
		return s->min_lr *
		       (1 + s->step_rate * (s->staircase != 0 ? floor(interval) : interval));
	if (strcmp(s->name, "OneCycle") == 0)
		return one_cycle(s, it);
	if (it >= 0 && it < n)
		gamma = s->linear != 0 ? it / n : 1.0 / log(n) * log(it + 1);
	left = s->total - n < 1 ? 1 : s->total - n;
	if (strcmp(s->name, "WarmupCosineLR") == 0) {
		if (it < 0)
			return 0;
		if (it < n)
			return lr * (s->warm_ratio + gamma * (1 - s->warm_ratio));
		gamma = (1 + cos(M_PI * fmin(1, (it - n + 1) / left))) / 2;
		return lr * fmax(0, s->cos_min + (1 - s->cos_min) * gamma);
	}
	if (strcmp(s->name, "WarmupDecayLR") == 0 && it >= n)
		gamma = fmax(0, (s->total - it) / left);
	max = s->warm_max >= 0 ? s->warm_max : s->name[6] == 'D' ? 0.001 : lr;
	return it < 0 ? s->warm_min : s->warm_min + (max - s->warm_min) * gamma;
}
