/* SPDX-License-Identifier: Apache-2.0 */
/* Tests schedules and the loss scaler against tables that DeepSpeed 0.19's own classes wrote
 * (tests/golden/generate.py). It goes through the settings, so that names and defaults are
 * compared, too. Then it tests the schedule inside the record: factors of groups, skips and
 * momentum. What takes no libm must have the table's bits. log and cos may round differently in
 * another libm than the one that wrote the table. That is an ulp each, and a learning rate is a
 * product of two logs. With the libm of Debian 12 they are equal, too. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/check.h"
#include "core/record.h"
#include "core/scaler.h"
#include "config/settings.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ULPS_LIBM = 4, CASES_SCHEDULES = 20, CASES_SCALERS = 10 };

static FILE *golden(const char *name)
{
	char path[256], up[] = "../../../../";
	FILE *f = NULL;

	for (size_t i = 0; i < sizeof(up) && !f;
	     i += 3) { /* The tests run in the source tree or somewhere in build/. */
		snprintf(path, sizeof(path), "%.*stests/golden/%s", (int)i, up, name);
		f = fopen(path, "r");
	}
	if (!f)
		fail_msg("tests/golden/%s is not there", name);
	return f;
}

static struct model_settings made(const char *text, enum shard_dtype grad)
{
	struct settings_layer l = {.text = text, .origin = "test"};
	struct model_settings s;
	struct err e = {.text = ""};

	if (settings_make(&s, &l, 1, NULL, 0, grad, &e) != SHARD_OK)
		fail_msg("%s: %s", text, e.text);
	return s;
}

static double far(double a, double b) /* In ulps. Both are finite and not negative. */
{
	uint64_t x, y;

	memcpy(&x, &a, 8);
	memcpy(&y, &b, 8);
	return x > y ? (double)(x - y) : (double)(y - x);
}

static void row_is_ours(const struct schedule_conf *s, const char *line, double *worst)
{
	double limit = strstr(schedule_row(s->id)->name, "Warmup") &&
				       s->param[SCHEDULE_WARMUP_TYPE] == SCHEDULE_LOG
			       ? ULPS_LIBM
			       : 0;
	double want, lr, momentum = -1, off;
	unsigned long step;
	char *end, *at;

	step = strtoul(line, &end, 10);
	want = strtod(end + 1, &at);
	assert_true(step > 0 && *end == ',' && *at == ',');
	if (s->id == SCHEDULE_WARMUP_COSINE)
		limit = ULPS_LIBM;
	lr = schedule_lr(s, step);
	off = far(lr, want);
	if (off > limit)
		fail_msg("step %lu: lr %a, DeepSpeed has %a, %.0f ulps away", step, lr, want, off);
	if (off > *worst)
		*worst = off;
	if (schedule_momentum(s, step, &momentum) != (at[1] != '\n') ||
	    (at[1] != '\n' && momentum != strtod(at + 1, NULL)))
		fail_msg("step %lu: momentum %a, DeepSpeed has %s", step, momentum, at + 1);
}

static void schedules_are_deepspeeds(void **state)
{
	FILE *f = golden("schedules.csv");
	struct model_settings s = {.groups_nr = 0};
	int cases = 0, rows = 0;
	double worst = 0;
	char line[1024];

	(void)state;
	while (fgets(line, sizeof(line), f)) {
		if (line[0] == '#')
			continue;
		if (strncmp(line, "case: ", 6) == 0) {
			s = made(line + 6, SHARD_BF16);
			cases++;
			continue;
		}
		row_is_ours(&s.schedule, line, &worst);
		rows++;
	}
	fclose(f);
	assert_int_equal(cases, CASES_SCHEDULES);
	assert_true(rows >= 100 * cases);
	print_message("%d rows, at most %.0f ulps away\n", rows, worst);
}

static void scalers_are_deepspeeds(void **state)
{
	FILE *f = golden("scalers.csv");
	struct record_conf conf = {.dynamic_scale = true};
	struct scaler s = {.scale = 0};
	int cases = 0, rows = 0;
	char line[1024], scale[64];

	(void)state;
	while (fgets(line, sizeof(line), f)) {
		long hysteresis, last, iter;
		int overflow;

		if (line[0] == '#')
			continue;
		if (strncmp(line, "case: ", 6) == 0) {
			struct model_settings set = made(line + 6, SHARD_F16);

			conf.initial_scale = set.initial_scale;
			conf.min_scale = set.min_scale;
			conf.scale_window = (int32_t)set.scale_window;
			conf.hysteresis = (int32_t)set.hysteresis;
			conf.consecutive_hysteresis = set.consecutive_hysteresis;
			scaler_start(&s, &conf);
			cases++;
			continue;
		}
		rows++;
		if (strcmp(line, "1,floor\n") == 0) {
			assert_false(scaler_update(&s, &conf, true));
			continue;
		}
		assert_int_equal(sscanf(line, "%d,%63[^,],%ld,%ld,%ld", &overflow, scale,
					&hysteresis, &last, &iter),
				 5);
		assert_true(scaler_update(&s, &conf, overflow));
		if (s.scale != strtod(scale, NULL) || s.hysteresis != hysteresis ||
		    s.last_overflow != last || s.iter != iter)
			fail_msg("case %d: %g %d %ld %ld, DeepSpeed has %s", cases, s.scale,
				 s.hysteresis, (long)s.last_overflow, (long)s.iter, line);
	}
	fclose(f);
	assert_int_equal(cases, CASES_SCALERS);
	assert_true(rows > 500);
}

static struct record decide(const struct record *prev, const struct record_conf *conf, bool finite,
			    bool skip)
{
	struct core_id id = {
		.term = 1, .seq = 1, .generation = 1, .step = prev->id.step + 1, .attempt = 1};
	struct core_world world = {.size = 1, .rank = {{.weight = 1}}};
	struct record_votes votes = {.sumsq = (const double[]){1},
				     .finite = (const uint8_t[]){finite},
				     .chunks_nr = 1,
				     .skip = skip,
				     .bad_tensor = -1,
				     .bad_rank = -1};
	struct record r;

	record_decide(&r, prev, conf, &id, &world, &votes);
	return r;
}

static void record_follows(void **state)
{
	struct model_settings s =
		made("schedule=WarmupLR warmup_type=linear warmup_num_steps=4 lr=0.5 optimizer=sgd",
		     SHARD_BF16);
	struct record_conf conf = {.optim = s.optim,
				   .groups_nr = 2,
				   .schedule = s.schedule,
				   .lr_factor = {1, 0.5},
				   .initial_scale = 1};
	static const struct {
		bool finite, skip;
		double lr;
		uint64_t applied;
	} steps[] = {{true, false, 0, 1},      {true, false, 0, 2},     {true, true, 0.125, 2},
		     {false, false, 0.125, 2}, {true, false, 0.125, 3}, {true, false, 0.25, 4},
		     {true, false, 0.375, 5},  {true, false, 0.5, 6},   {true, false, 0.5, 7}};
	struct core_id id = {.term = 1, .seq = 1, .generation = 1, .step = 0};
	struct record r;

	(void)state;
	memcpy(conf.hyper[0], s.hyper[0], sizeof(s.hyper[0]));
	memcpy(conf.hyper[1], s.hyper[0], sizeof(s.hyper[0]));
	record_seal(&r, &conf, &id);
	for (size_t i = 0; i < NR(steps); i++) {
		r = decide(&r, &conf, steps[i].finite, steps[i].skip);
		assert_true(r.lr == steps[i].lr && r.applied == steps[i].applied);
		if (r.outcome == RECORD_APPLIED)
			assert_true(r.args[0].lr == (float)steps[i].lr &&
				    r.args[1].lr == (float)(0.5 * steps[i].lr));
	}
	record_seal(
		&r, &conf,
		&(struct core_id){
			.term = 1, .seq = 1, .generation = 1, .step = 3}); /* From a checkpoint. */
	r = decide(&r, &conf, true, false);
	assert_true(r.lr == 0.25 && r.applied == 4);
}

static void record_cycles_momentum(void **state)
{
	static const char *const optimizers[] = {"adamw", "adam", "lion", "sgd", "adagrad"};

	(void)state;
	for (size_t i = 0; i < NR(optimizers); i++) {
		char text[256];
		double momentum;
		struct model_settings s;
		struct record_conf conf = {.groups_nr = 1, .lr_factor = {1}, .initial_scale = 1};
		struct core_id id = {.term = 1, .seq = 1, .generation = 1, .step = 0};
		struct record r;

		snprintf(text, sizeof(text),
			 "optimizer=%s schedule=OneCycle cycle_min_lr=0.1 cycle_max_lr=0.5 "
			 "cycle_first_step_size=4",
			 optimizers[i]);
		s = made(text, SHARD_BF16);
		conf.optim = s.optim;
		conf.schedule = s.schedule;
		memcpy(conf.hyper[0], s.hyper[0], sizeof(s.hyper[0]));
		record_seal(&r, &conf, &id);
		for (uint64_t t = 1; t < 20; t++) {
			r = decide(&r, &conf, true, false);
			assert_true(r.lr == schedule_lr(&s.schedule, t));
			assert_int_equal(schedule_momentum(&s.schedule, t, &momentum), i < 4);
			assert_true(i == 4 || r.args[0].beta1 == (float)momentum);
			assert_true(i == 4 || (momentum >= 0.8 && momentum <= 0.9));
		}
		assert_true(i == 4 || momentum == 0.9); /* The cycle is over. */
		assert_true(r.lr == 0.1);
	}
}

static void refused(const char *text, const char *want)
{
	struct settings_layer l = {.text = text, .origin = "f:3"};
	struct model_settings s;
	struct err e = {.text = ""};

	if (settings_make(&s, &l, 1, NULL, 0, SHARD_BF16, &e) == SHARD_OK)
		fail_msg("%s: was taken", text);
	if (strcmp(e.text, want) != 0)
		fail_msg("%s: \"%s\", expected \"%s\"", text, e.text, want);
}

static void contradictions(void **state)
{
	(void)state;
	refused("schedule=OneCycle cycle_max_lr=1",
		"f:3: schedule = OneCycle needs cycle_min_lr, which has no default: set it");
	refused("schedule=OneCycle cycle_min_lr=1",
		"f:3: schedule = OneCycle needs cycle_max_lr, which has no default: set it");
	refused("schedule=WarmupDecayLR", "f:3: schedule = WarmupDecayLR needs total_num_steps, "
					  "which has no default: set it");
	refused("schedule=WarmupCosineLR", "f:3: schedule = WarmupCosineLR needs total_num_steps, "
					   "which has no default: set it");
	refused("schedule=WarmupCosineLR total_num_steps=10",
		"f:3: total_num_steps = 10 is below warmup_num_steps = 1000 (default): lower it");
	refused("warmup_num_steps=10",
		"f:3: warmup_num_steps = 10: there is no schedule: set schedule too");
	refused("schedule=LRRangeTest warmup_type=log",
		"f:3: warmup_type = log: schedule LRRangeTest has no such key: it has "
		"lr_range_test_min_lr, lr_range_test_staircase, "
		"lr_range_test_step_rate, lr_range_test_step_size");
	refused("schedule=OneCycle cycle_min_lr=1 cycle_max_lr=1 decay_lr_rate=0.5",
		"f:3: decay_lr_rate has no effect while decay_step_size is 0: set decay_step_size");
	refused("optimizer=adagrad schedule=OneCycle cycle_min_lr=1 cycle_max_lr=1 "
		"cycle_momentum=yes",
		"f:3: cycle_momentum = yes: optimizer adagrad has neither beta1 nor momentum: "
		"choose no");
	refused("schedule=warmup", "f:3: schedule = warmup: choose none, LRRangeTest, OneCycle, "
				   "WarmupLR, WarmupDecayLR or WarmupCosineLR");
	refused("schedule=WarmupLR warmup_type=cubic",
		"f:3: warmup_type = cubic: choose log or linear");
	refused("schedule=WarmupLR warmup_num_steps=0",
		"f:3: warmup_num_steps = 0: choose a whole number from 1 to 1000000000000");
	refused("schedule=OneCycle cycle_max_mom=1",
		"f:3: cycle_max_mom = 1: choose a number from 0 to 0.999999");
	refused("warmup_num_step=3",
		"f:3: warmup_num_step: unknown key: did you mean warmup_num_steps?");
}

/* A decay of momentum that would pass 1 stops below it. The schedule of a later layer of
 * settings makes the parameters of an earlier one void. */
static void edges(void **state)
{
	struct model_settings s = made("schedule=OneCycle cycle_min_lr=0.1 cycle_max_lr=1 "
				       "cycle_first_step_size=1 decay_step_size=1 "
				       "decay_mom_rate=100",
				       SHARD_BF16);
	struct settings_layer l[] = {
		{.text = "schedule=WarmupDecayLR total_num_steps=5000 warmup_max_lr=2",
		 .origin = "file"},
		{.text = "schedule=WarmupLR lr=3", .origin = "trainer", .trainer = true}};
	double momentum;
	struct err e;

	(void)state;
	assert_true(schedule_momentum(&s.schedule, 1000000, &momentum) && momentum < 1);
	assert_true(isfinite(schedule_lr(&s.schedule, UINT64_MAX)) &&
		    schedule_lr(&s.schedule, UINT64_MAX) >= 0);
	assert_int_equal(settings_make(&s, l, 2, NULL, 0, SHARD_BF16, &e), SHARD_OK);
	assert_true(s.schedule.id == SCHEDULE_WARMUP &&
		    s.schedule.param[SCHEDULE_WARMUP_MAX_LR] == 2);
	l[0].text = "schedule=WarmupDecayLR total_num_steps=5000";
	assert_int_equal(settings_make(&s, l, 2, NULL, 0, SHARD_BF16, &e), SHARD_OK);
	assert_true(s.schedule.param[SCHEDULE_WARMUP_MAX_LR] == 3); /* The lr of the optimizer. */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(schedules_are_deepspeeds),
		cmocka_unit_test(scalers_are_deepspeeds),
		cmocka_unit_test(record_follows),
		cmocka_unit_test(record_cycles_momentum),
		cmocka_unit_test(contradictions),
		cmocka_unit_test(edges),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
