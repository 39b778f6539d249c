/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the decision about a step. The loss scaler is compared with a table worked out by hand, and
 * with a second implementation in the order of DeepSpeed's written rules. The record's sums, clip,
 * multiplier, skips and limits are tested, too. The decision must be pure: the same input gives the
 * same bytes, and the previous record is not touched. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/record.h"
#include "core/scaler.h"

#include "base/check.h"
#include "base/rng.h"
#include <math.h>
#include <string.h>

static struct record_conf conf_fp16(void)
{
	struct record_conf conf = {.optim = optim_row(OPTIM_ADAMW),
				   .groups_nr = 2,
				   .clip = 1,
				   .dynamic_scale = true,
				   .initial_scale = 16,
				   .min_scale = 2,
				   .scale_window = 2,
				   .hysteresis = 2};

	optim_defaults(conf.optim, conf.hyper[0]);
	optim_defaults(conf.optim, conf.hyper[1]);
	conf.hyper[0][HYPER_LR] = 1e-2;
	return conf;
}

/* Overflow or not, and then the scale, the hysteresis that is left, the last overflow and the
 * iterations. The scale begins at 16, the window is 2, the hysteresis 2 and the floor 2. */
static const struct {
	int overflow;
	double scale;
	int hysteresis;
	int last, iter;
	int ok;
} by_hand[] = {
	{0, 16, 2, -1, 1, 1}, /* Stable for 0 steps, which is no window. */
	{0, 16, 2, -1, 2, 1}, /* Stable for 1 step. */
	{0, 32, 2, -1, 3, 1}, /* Stable for 2 steps, so it is doubled. */
	{1, 32, 1, 3, 4, 1},  /* It is tolerated. */
	{0, 32, 1, 3, 5, 1},  /* Stable for 0 steps. */
	{1, 16, 1, 5, 6, 1},  /* It is halved. The hysteresis stays used up. */
	{1, 8, 1, 6, 7, 1},    {0, 8, 1, 6, 8, 1},   {0, 8, 1, 6, 9, 1},
	{0, 16, 2, 6, 10, 1}, /* It is doubled, and the hysteresis is refilled. */
	{1, 16, 1, 10, 11, 1}, {1, 8, 1, 11, 12, 1}, {1, 4, 1, 12, 13, 1},
	{1, 2, 1, 13, 14, 1},  {1, 2, 1, 13, 14, 0}, /* At the floor this is an error, and nothing
							changes. */
};

static void test_scaler_table(void **state)
{
	struct record_conf conf = conf_fp16();
	struct scaler s;

	(void)state;
	scaler_start(&s, &conf);
	for (size_t i = 0; i < NR(by_hand); i++) {
		assert_int_equal(scaler_update(&s, &conf, by_hand[i].overflow), by_hand[i].ok);
		assert_true(s.scale == by_hand[i].scale);
		assert_int_equal(s.hysteresis, by_hand[i].hysteresis);
		assert_int_equal(s.last_overflow, by_hand[i].last);
		assert_int_equal(s.iter, by_hand[i].iter);
	}
}

struct ds { /* The attributes of DynamicLossScaler. */
	double cur_scale, min_scale;
	int cur_iter, last_overflow_iter, scale_window, delayed_shift, cur_hysteresis;
	bool consecutive_hysteresis;
};

static bool ds_update_scale(struct ds *d, bool overflow)
{
	if (overflow) {
		if (d->delayed_shift == 1 || d->cur_hysteresis == 1) {
			if (d->cur_scale == d->min_scale)
				return false;
			d->cur_scale = fmax(d->cur_scale / 2.0, d->min_scale);
		} else {
			d->cur_hysteresis -= 1;
		}
		d->last_overflow_iter = d->cur_iter;
	} else {
		int stable_interval = d->cur_iter - d->last_overflow_iter - 1;

		if (d->consecutive_hysteresis)
			d->cur_hysteresis = d->delayed_shift;
		if (stable_interval > 0 && stable_interval % d->scale_window == 0) {
			if (!d->consecutive_hysteresis)
				d->cur_hysteresis = d->delayed_shift;
			d->cur_scale *= 2;
		}
	}
	d->cur_iter += 1;
	return true;
}

static void test_scaler_second(void **state)
{
	struct rng rng = {.state = 1};

	(void)state;
	for (int run = 0; run < 200; run++) {
		struct record_conf conf = conf_fp16();
		struct scaler s;
		struct ds d;

		conf.scale_window = 1 + (int32_t)rng_below(&rng, 5);
		conf.hysteresis = 1 + (int32_t)rng_below(&rng, 4);
		conf.consecutive_hysteresis = rng_below(&rng, 2);
		/* This is no power of two below the start, so the floor cuts a halving short. */
		conf.min_scale = 0.3;
		scaler_start(&s, &conf);
		d = (struct ds){16,
				conf.min_scale,
				0,
				-1,
				conf.scale_window,
				conf.hysteresis,
				conf.hysteresis,
				conf.consecutive_hysteresis};
		for (int i = 0; i < 300; i++) {
			bool overflow = rng_below(&rng, 10) < 3;

			assert_int_equal(scaler_update(&s, &conf, overflow),
					 ds_update_scale(&d, overflow));
			assert_true(s.scale == d.cur_scale);
			assert_int_equal(s.hysteresis, d.cur_hysteresis);
			assert_int_equal(s.iter, d.cur_iter);
			assert_int_equal(s.last_overflow, d.last_overflow_iter);
		}
	}
}

static void test_scaler_static(void **state)
{
	struct record_conf conf = conf_fp16();
	struct scaler s, was;

	(void)state;
	conf.dynamic_scale = false;
	scaler_start(&s, &conf);
	was = s;
	for (int i = 0; i < 100; i++)
		assert_true(scaler_update(&s, &conf, i % 2));
	assert_memory_equal(&s, &was, sizeof(s));
}

struct decided {
	struct record_conf conf;
	struct record prev, r;
	struct core_world world;
	struct core_id id;
	struct record_votes votes;
	double sumsq[3];
	uint8_t finite[3];
};

static void decided_init(struct decided *d)
{
	memset(d, 0, sizeof(*d));
	d->conf = conf_fp16();
	d->id = (struct core_id){.term = 3, .seq = 2, .generation = 1, .step = 8};
	record_seal(&d->prev, &d->conf, &d->id);
	d->id.step = 9;
	d->id.attempt = 4;
	d->world.size = 3;
	for (uint32_t i = 0; i < 3; i++) {
		d->world.rank[i] = (struct core_rank){
			.session = 10 + i, .pid = 20 + i, .node = (uint16_t)i, .weight = 1 + i};
		d->sumsq[i] = 1e6 * (1 + i);
		d->finite[i] = 1;
	}
	d->votes = (struct record_votes){.sumsq = d->sumsq,
					 .finite = d->finite,
					 .chunks_nr = 3,
					 .bad_tensor = -1,
					 .bad_rank = -1};
}

static void decide(struct decided *d)
{
	record_decide(&d->r, &d->prev, &d->conf, &d->id, &d->world, &d->votes);
}

static void test_applied(void **state)
{
	struct decided d;
	double norm = sqrt(6e6) / (16.0 * 6.0), clip = 1 / (norm + 1e-6);
	struct optim_args a;

	(void)state;
	decided_init(&d);
	decide(&d);
	assert_int_equal(d.r.outcome, RECORD_APPLIED);
	assert_int_equal(d.r.applied, 9);
	assert_int_equal(d.prev.content, 8);
	assert_int_equal(d.r.content, 9);
	assert_int_equal(d.r.content_old, 8);
	assert_int_equal(d.r.attempts, 4);
	assert_true(d.r.grad_norm == norm && d.r.clip_factor == clip && d.r.weight_sum == 6 &&
		    d.r.loss_scale == 16);
	assert_true(d.r.lr == 1e-2);
	optim_args_set(&a, d.conf.optim, d.conf.hyper[0], 9, (float)(clip / (16.0 * 6.0)));
	assert_memory_equal(&d.r.args[0], &a, sizeof(a));
	optim_args_set(&a, d.conf.optim, d.conf.hyper[1], 9, (float)(clip / (16.0 * 6.0)));
	assert_memory_equal(&d.r.args[1], &a, sizeof(a));
	d.conf.clip = 0;
	decide(&d);
	assert_true(d.r.clip_factor == 1);
	d.conf.clip = 1e9; /* A norm below the limit is not scaled up. */
	decide(&d);
	assert_true(d.r.clip_factor == 1);
}

static void test_pure(void **state)
{
	struct decided d;
	struct record first, prev;

	(void)state;
	decided_init(&d);
	prev = d.prev;
	decide(&d);
	first = d.r;
	memset(&d.r, 0xa5, sizeof(d.r));
	decide(&d);
	assert_memory_equal(&first, &d.r, sizeof(first));
	assert_memory_equal(&prev, &d.prev, sizeof(prev));
}

static void test_skips(void **state)
{
	struct decided d;

	(void)state;
	decided_init(&d);
	decide(&d);
	d.prev = d.r;
	d.id.step++;
	d.finite[1] = 0;
	d.votes.skip = true; /* What the data say comes before what a trainer asks for. */
	d.votes.bad_tensor = 5;
	d.votes.bad_rank = 1;
	decide(&d);
	assert_int_equal(d.r.outcome, RECORD_NONFINITE);
	assert_int_equal(d.r.applied, d.prev.applied);
	assert_int_equal(d.r.skipped_in_row, 1);
	assert_int_equal(d.r.content, 9); /* The weights are still those of the step before. */
	assert_int_equal(d.r.scaler.hysteresis, 1);
	assert_int_equal(d.r.bad_tensor, 5);
	assert_true(isnan(d.r.grad_norm) && !d.r.diverged);
	assert_memory_equal(d.r.args, d.prev.args, sizeof(d.r.args));
	d.prev = d.r;
	d.finite[1] = 1;
	decide(&d);
	assert_int_equal(d.r.outcome, RECORD_SKIP);
	assert_int_equal(d.r.skipped_in_row, 2);
	assert_int_equal(d.r.content, 9);
	assert_memory_equal(&d.r.scaler, &d.prev.scaler, sizeof(d.r.scaler));
	d.prev = d.r;
	d.votes.skip = false;
	decide(&d);
	assert_int_equal(d.r.outcome, RECORD_APPLIED);
	assert_int_equal(d.r.skipped_in_row, 0);
	assert_int_equal(d.r.applied, 10);
	assert_int_equal(d.r.content, 10);
	assert_int_equal(d.r.content_old, 9); /* Two steps were skipped since. */
	assert_true(record_content_ok(&d.r));
	d.r.content = 9;
	assert_false(record_content_ok(&d.r));
	d.r.outcome = RECORD_SKIP;
	assert_true(record_content_ok(&d.r));
	d.r.content_old = 8;
	assert_false(record_content_ok(&d.r));
	d.r.content = 10;
	assert_false(record_content_ok(&d.r));
}

static void test_limits(void **state)
{
	struct decided d;

	(void)state;
	decided_init(&d);
	d.finite[0] = 0;
	d.prev.scaler.scale = d.conf.min_scale;
	d.prev.scaler.hysteresis = 1;
	decide(&d);
	assert_true(d.r.diverged); /* At its floor. */
	decided_init(&d);
	d.conf.max_skips = 3;
	d.votes.skip = true;
	for (int i = 1; i <= 3; i++) {
		decide(&d);
		assert_int_equal(d.r.diverged, i == 3);
		d.prev = d.r;
	}
	decided_init(&d);
	d.world.rank[0].weight = d.world.rank[1].weight = d.world.rank[2].weight = 0;
	decide(&d);
	assert_int_equal(d.r.outcome,
			 /* A sum of weights of zero would be a division by zero. */
			 RECORD_NONFINITE);
	decided_init(&d);
	d.sumsq[2] = (double)INFINITY;
	decide(&d);
	assert_int_equal(d.r.outcome, RECORD_NONFINITE);
}

/* What an operator changed: lr, before the factors of the groups and only where nobody else
 * gives one, then clip, and the skips that the operator has seen. */
static void test_tune(void **state)
{
	struct core_tune tune = {.has_lr = true, .has_clip = true, .lr = 0.5, .clip = 1e9};
	const double own[2] = {0.25, 0.125}, off = 0;
	struct optim_args a;
	struct decided d;
	double h[HYPER_NR];

	(void)state;
	decided_init(&d);
	d.conf.lr_factor[0] = 1;
	d.conf.lr_factor[1] = 0.5;
	d.votes.tune = &tune;
	decide(&d);
	assert_true(d.r.lr == 0.5 && d.r.clip_factor == 1);
	memcpy(h, d.conf.hyper[1], sizeof(h));
	h[HYPER_LR] = 0.25;
	optim_args_set(&a, d.conf.optim, h, 9, (float)(1 / (16.0 * 6.0)));
	assert_memory_equal(&d.r.args[1], &a, sizeof(a));
	d.votes.lr = own; /* The learning rate of the trainers comes first. */
	decide(&d);
	assert_true(d.r.lr == 0.25);
	d.votes.lr = NULL;
	tune.clip = 0; /* Off. */
	decide(&d);
	assert_true(d.r.clip_factor == 1);
	/* The clip of the trainers comes before both, and it may be off, too. */
	d.votes.clip = &own[0];
	decide(&d);
	assert_true(d.r.clip_factor == 0.25 / (d.r.grad_norm + 1e-6));
	tune.clip = 0.125;
	d.votes.clip = &off;
	decide(&d);
	assert_true(d.r.clip_factor == 1);
	d.votes.clip = NULL;
	tune.has_lr = tune.has_clip = false;
	decide(&d);
	assert_true(d.r.lr == 1e-2 && d.r.clip_factor < 1);
	/* Other hyper-parameters are of one group, and the lr comes on top of them. */
	tune.set[1] = 1u << HYPER_BETA1 | 1u << HYPER_WEIGHT_DECAY;
	tune.hyper[1][HYPER_BETA1] = 0.25;
	decide(&d);
	memcpy(h, d.conf.hyper[1], sizeof(h));
	h[HYPER_BETA1] = 0.25;
	h[HYPER_WEIGHT_DECAY] = 0;
	optim_args_set(&a, d.conf.optim, h, 9, (float)(d.r.clip_factor / (16.0 * 6.0)));
	assert_memory_equal(&d.r.args[1], &a, sizeof(a));
	optim_args_set(&a, d.conf.optim, d.conf.hyper[0], 9,
		       (float)(d.r.clip_factor / (16.0 * 6.0)));
	assert_memory_equal(&d.r.args[0], &a, sizeof(a));
	tune.has_lr = true;
	d.conf.schedule = (struct schedule_conf){.id = SCHEDULE_WARMUP};
	decide(&d);
	assert_true(d.r.lr != 0.5);
}

static uint64_t bits(double x)
{
	uint64_t b;

	memcpy(&b, &x, sizeof(b));
	return b;
}

/* Ranks are added in their order, one alone keeps its bits, and every NaN is the same. They do no
 * harm to the step, and a step that is skipped has them, too. */
static void test_values(void **state)
{
	double ranks[3 * CORE_VALUES_NR] = {0}, sum[CORE_VALUES_NR];
	uint64_t odd = 0xfff4000000000123;
	struct decided d;

	(void)state;
	ranks[0] = 1;
	ranks[CORE_VALUES_NR] = 1e16;
	ranks[2 * CORE_VALUES_NR] = -1e16;
	ranks[1] = -0.0;
	memcpy(&ranks[2], &odd, sizeof(odd));
	ranks[3] = (double)INFINITY;
	record_values(sum, ranks, 1);
	assert_true(sum[0] == 1 && bits(sum[1]) == bits(-0.0));
	assert_true(bits(sum[2]) == 0x7ff8000000000000 && sum[3] == (double)INFINITY);
	record_values(sum, ranks, 3);
	assert_true(sum[0] == 0); /* In another order it is 1. */
	assert_true(bits(sum[1]) == 0 && bits(sum[2]) == 0x7ff8000000000000);
	decided_init(&d);
	d.votes.values = sum;
	decide(&d);
	assert_int_equal(d.r.outcome, RECORD_APPLIED);
	assert_memory_equal(d.r.values, sum, sizeof(sum));
	d.votes.skip = true;
	decide(&d);
	assert_int_equal(d.r.outcome, RECORD_SKIP);
	assert_memory_equal(d.r.values, sum, sizeof(sum));
}

static void decide_skip(struct decided *d, bool skips, bool diverges)
{
	d->votes.skip = skips;
	decide(d);
	assert_int_equal(d->r.diverged, diverges);
	d->prev = d->r;
	d->id.step++;
}

static void test_resume(void **state)
{
	struct core_tune tune = {0};
	struct decided d;

	(void)state;
	decided_init(&d);
	d.votes.tune = &tune;
	d.conf.max_skips = 3;
	for (int i = 1; i <= 3; i++)
		decide_skip(&d, true, i == 3);
	assert_true(record_pauses(&d.prev, &tune));
	tune.resumed_step = d.prev.id.step;
	tune.resumed_skips = d.prev.skipped_in_row;
	assert_false(record_pauses(&d.prev, &tune));
	for (int i = 1; i <= 3; i++)
		decide_skip(&d, true, i == 3); /* Three more. */
	assert_int_equal(d.prev.skipped_in_row, 6);
	assert_true(record_pauses(&d.prev, &tune));
	tune.resumed_step = d.prev.id.step;
	tune.resumed_skips = d.prev.skipped_in_row;
	decide_skip(&d, true, false);
	decide_skip(&d, false, false); /* The row is broken. From here on all of them count. */
	for (int i = 1; i <= 3; i++)
		decide_skip(&d, true, i == 3);
}

static void test_order(void **state)
{
	struct core_id a = {.generation = 1, .term = 5, .seq = 2, .step = 9, .attempt = 1}, b = a;

	(void)state;
	assert_int_equal(core_id_cmp(&a, &b), 0);
	b.attempt = 2;
	assert_true(core_id_cmp(&a, &b) < 0);
	b = a;
	b.step = 8;
	b.attempt = 99;
	assert_true(core_id_cmp(&a, &b) > 0);
	b.seq = 3;
	assert_true(core_id_cmp(&a, &b) < 0);
	b.term = 4;
	assert_true(core_id_cmp(&a, &b) > 0);
	b.generation = 2;
	assert_true(core_id_cmp(&a, &b) < 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_scaler_table),  cmocka_unit_test(test_scaler_second),
		cmocka_unit_test(test_scaler_static), cmocka_unit_test(test_applied),
		cmocka_unit_test(test_pure),          cmocka_unit_test(test_skips),
		cmocka_unit_test(test_limits),        cmocka_unit_test(test_order),
		cmocka_unit_test(test_tune),          cmocka_unit_test(test_resume),
		cmocka_unit_test(test_values),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
