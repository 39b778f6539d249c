/* SPDX-License-Identifier: Apache-2.0 */
/* Tests what the optimizers compute: each against the textbook formula in double, a few results
 * computed by hand, the rule about values that are not finite, and the table itself (names,
 * defaults, ranges, texts). Other tests show that the wide kernels equal the scalar one. */
#include "kernel/cases.h"

#include <math.h>

/* One parameter in double, written from the papers and PyTorch's documentation. */
struct model {
	double p, m, v;
};

static void textbook(struct model *w, const struct optim_row *row, const double *h, int t, double g)
{
	double lr = h[HYPER_LR], b1 = h[HYPER_BETA1], b2 = h[HYPER_BETA2],
	       wd = h[HYPER_WEIGHT_DECAY], c;

	switch (row->id) {
	case OPTIM_ADAMW:
	case OPTIM_ADAM:
		if (row->id == OPTIM_ADAMW)
			w->p -= lr * wd * w->p;
		else
			g += wd * w->p;
		w->m = b1 * w->m + (1 - b1) * g;
		w->v = b2 * w->v + (1 - b2) * g * g;
		w->p -= lr * (w->m / (1 - pow(b1, t))) /
			(sqrt(w->v / (1 - pow(b2, t))) + h[HYPER_EPS]);
		return;
	case OPTIM_SGD:
		g += wd * w->p;
		w->m = t == 1 ? g : h[HYPER_MOMENTUM] * w->m + g;
		w->p -= lr * (h[HYPER_NESTEROV] != 0 ? g + h[HYPER_MOMENTUM] * w->m : w->m);
		return;
	case OPTIM_ADAGRAD:
		g += wd * w->p;
		w->m += g * g;
		w->p -= lr * g / (sqrt(w->m) + h[HYPER_EPS]);
		return;
	case OPTIM_LION:
		c = b1 * w->m + (1 - b1) * g;
		w->p -= lr * ((c > 0) - (c < 0) + wd * w->p);
		w->m = b2 * w->m + (1 - b2) * g;
		return;
	case OPTIM_NR:
		break;
	}
	fail();
}

static void run_one(const struct optim_row *row, const double *h, int t, float mult, float g,
		    float *p, float *s1, float *s2)
{
	struct optim_args a;
	float image;

	optim_args_set(&a, row, h, (uint64_t)t, mult);
	assert_int_equal(
		optim_kernel(row, ISA_SCALAR, SHARD_F32, SHARD_F32)(&a, 1, &g, p, s1, s2, &image),
		0);
	assert_true(image == *p);
}

static void follow(const struct optim_row *row, const double *h)
{
	struct rng r = {42};

	for (int run = 0; run < 200; run++) {
		struct model w = {rng_unit(&r) - 0.5, 0, 0};
		float p = (float)w.p, s1 = 0, s2 = 0;

		for (int t = 1; t <= 50; t++) {
			/* It is not centred, so that Lion's sign stays away from 0. */
			float g = (float)((rng_unit(&r) - 0.4) * 3), mult = 0.25f;

			textbook(&w, row, h, t, (double)g * mult);
			run_one(row, h, t, mult, g, &p, &s1, &s2);
			if (fabs(p - w.p) > 1e-5 * fmax(1, fabs(w.p)) ||
			    fabs(s1 - w.m) > 1e-4 * fmax(1, fabs(w.m)) || fabs(s2 - w.v) > 1e-4)
				fail_msg("%s step %d: %.9g %.9g %.9g, textbook %.9g %.9g %.9g",
					 row->name, t, p, s1, s2, w.p, w.m, w.v);
		}
	}
}

static void formulas(void **state)
{
	(void)state;
	for (int id = 0; id < OPTIM_NR; id++) {
		const struct optim_row *row = optim_row((enum optim_id)id);
		double h[HYPER_NR];

		optim_defaults(row, h);
		follow(row, h);
		h[HYPER_WEIGHT_DECAY] = 0.1;
		if (row->hyper[HYPER_MOMENTUM].name) {
			h[HYPER_MOMENTUM] = 0.9;
			follow(row, h);
			h[HYPER_NESTEROV] = 1;
		}
		follow(row, h);
	}
}

static void near(double got, double want)
{
	if (fabs(got - want) > 2e-6 * fmax(1, fabs(want)))
		fail_msg("%.9g, by hand it is %.9g", got, want);
}

/* With a constant gradient both of Adam's corrected moments are exact, so each step moves by lr
 * times the gradient's sign. */
static void by_hand(void **state)
{
	double h[HYPER_NR];
	float p = 1, s1 = 0, s2 = 0;

	(void)state;
	optim_defaults(optim_row(OPTIM_ADAMW), h);
	h[HYPER_LR] = 0.1;
	h[HYPER_WEIGHT_DECAY] = 0.1;
	const double adamw[] = {0.89, 0.7811, 0.673289};
	for (int t = 1; t <= 3; t++) {
		run_one(optim_row(OPTIM_ADAMW), h, t, 1, 0.5f, &p, &s1, &s2);
		near(p, adamw[t - 1]); /* p = 0.99 p - 0.1. */
	}
	near(s1, 0.5 * (1 - 0.9 * 0.9 * 0.9));
	near(s2 * 1000, 250 * (1 - 0.999 * 0.999 * 0.999));

	optim_defaults(optim_row(OPTIM_SGD), h);
	h[HYPER_LR] = 0.5;
	h[HYPER_MOMENTUM] = 0.5;
	p = 1, s1 = 0;
	const double heavy[] = {0.5, -0.25, -1.125};
	for (int t = 1; t <= 3; t++) { /* The buffers are 1, 1.5 and 1.75. */
		run_one(optim_row(OPTIM_SGD), h, t, 1, 1, &p, &s1, NULL);
		assert_true(p == (float)heavy[t - 1]);
	}
	h[HYPER_NESTEROV] = 1;
	p = 1, s1 = 0;
	const double nesterov[] = {0.25, -0.625};
	for (int t = 1; t <= 2; t++) { /* The directions are 1.5 and 1.75. */
		run_one(optim_row(OPTIM_SGD), h, t, 1, 1, &p, &s1, NULL);
		assert_true(p == (float)nesterov[t - 1]);
	}

	optim_defaults(optim_row(OPTIM_ADAGRAD), h);
	h[HYPER_LR] = 1;
	p = 0, s1 = 0;
	run_one(optim_row(OPTIM_ADAGRAD), h, 1, 1, 3, &p, &s1, NULL);
	near(p, -1);
	run_one(optim_row(OPTIM_ADAGRAD), h, 2, 1, 4, &p, &s1, NULL); /* The sum is 25. */
	near(p, -1.8);

	optim_defaults(optim_row(OPTIM_LION), h);
	h[HYPER_LR] = 0.25;
	h[HYPER_WEIGHT_DECAY] = 1;
	p = 1, s1 = 0;
	run_one(optim_row(OPTIM_LION), h, 1, 1, -2, &p, &s1, NULL);
	assert_true(p == 1.0f); /* 0.75 + 0.25. */
	near(s1, -0.02);
}

static void not_finite(void **state)
{
	const float bad[] = {INFINITY, -INFINITY, NAN, 3e38f};

	(void)state;
	for (int id = 0; id < OPTIM_NR; id++) {
		const struct optim_row *row = optim_row((enum optim_id)id);
		struct optim_args a;

		args_make(&a, row);
		a.mult = 1e10f; /* 3e38 is finite as a gradient and infinite as g. */
		for (size_t k = 0; k < NR(bad); k++) {
			float g[3] = {1e-10f, bad[k], 1e-10f}, p[3] = {1, 1, 1},
			      s1[3] = {0.5f, 0.5f, 0.5f}, s2[3] = {0.5f, 0.5f, 0.5f};
			uint16_t image[3] = {0, 0, 0};
			uint64_t kept = optim_kernel(row, ISA_SCALAR, SHARD_F32,
						     SHARD_BF16)(&a, 3, g, p, s1, s2, image);

			assert_int_equal(kept, 1);
			assert_true(p[1] == 1 && s1[1] == 0.5f && s2[1] == 0.5f &&
				    image[1] == 0x3f80);
			assert_true(p[0] != 1 && p[2] == p[0] && dtype_finite(p[0]));
		}
	}
}

static void step_words(void **state)
{
	double h[HYPER_NR];
	struct optim_args a;

	(void)state;
	assert_int_equal(OPTIM_ARGS_WORDS, 12);
	optim_defaults(optim_row(OPTIM_ADAMW), h);
	optim_args_set(&a, optim_row(OPTIM_ADAMW), h, 1, 2);
	assert_true(a.mult == 2 && a.beta1 == 0.9f && a.beta2 == 0.999f && a.eps == 1e-8f &&
		    a.decay == (float)(1 - 1e-5));
	assert_true(a.one_minus_beta1 == (float)(1 - 0.9) &&
		    a.one_minus_beta2 == (float)(1 - 0.999));
	near(a.step_size, 1e-2);
	near(a.bc2_sqrt, sqrt(1e-3));
	assert_true(a.l2 == 0 && a.nesterov == 0 && a.lr == 0); /* Unused words are zero. */
	optim_args_set(&a, optim_row(OPTIM_ADAMW), h, 1000000, 2);
	near(a.step_size, 1e-3);
	assert_true(a.bc2_sqrt == 1);
}

static void table(void **state)
{
	(void)state;
	for (int id = 0; id < OPTIM_NR; id++) {
		const struct optim_row *row = optim_row((enum optim_id)id);
		double h[HYPER_NR];

		assert_int_equal(row->id, id);
		assert_ptr_equal(optim_find(row->name), row);
		optim_defaults(row, h);
		assert_int_equal(optim_hyper_check(row, h, NULL), SHARD_OK);
		assert_true(row->states_nr <= OPTIM_STATES_MAX && h[HYPER_LR] > 0);
		for (uint32_t i = 0; i < row->states_nr; i++)
			assert_true(row->states[i] >= SHARD_EXP_AVG &&
				    row->states[i] <= SHARD_MOMENTUM);
	}
	assert_null(optim_find("adamx"));
	assert_null(optim_find(""));
	assert_null(optim_row(OPTIM_ADAMW)->hyper[HYPER_MOMENTUM].name);
	assert_null(optim_row(OPTIM_LION)->hyper[HYPER_EPS].name);
}

static void refuse(enum optim_id id, enum optim_hyper i, double x, const char *text)
{
	double h[HYPER_NR];
	struct err e;

	optim_defaults(optim_row(id), h);
	h[i] = x;
	assert_int_equal(optim_hyper_check(optim_row(id), h, &e), SHARD_BAD_ARG);
	assert_int_equal(e.status, SHARD_BAD_ARG);
	assert_string_equal(e.text, text);
}

static void ranges(void **state)
{
	(void)state;
	refuse(OPTIM_ADAMW, HYPER_BETA1, 1, "beta1 = 1: choose a number of at least 0 and below 1");
	refuse(OPTIM_ADAMW, HYPER_BETA2, -0.5,
	       "beta2 = -0.5: choose a number of at least 0 and below 1");
	refuse(OPTIM_LION, HYPER_LR, -1, "lr = -1: choose a finite number of at least 0");
	refuse(OPTIM_ADAM, HYPER_EPS, INFINITY, "eps = inf: choose a finite number of at least 0");
	refuse(OPTIM_ADAGRAD, HYPER_WEIGHT_DECAY, 1e39,
	       "weight_decay = 1e+39: choose a finite number of at least 0");
	refuse(OPTIM_SGD, HYPER_NESTEROV, 0.5, "nesterov = 0.5: choose 0 or 1");
	refuse(OPTIM_SGD, HYPER_NESTEROV, 1,
	       "nesterov = 1 with momentum = 0: choose a momentum above 0, or nesterov = 0");
	for (int id = 0; id < OPTIM_NR; id++) {
		double h[HYPER_NR];

		optim_defaults(optim_row((enum optim_id)id), h);
		h[HYPER_LR] = NAN;
		assert_int_equal(optim_hyper_check(optim_row((enum optim_id)id), h, NULL),
				 SHARD_BAD_ARG);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(formulas),   cmocka_unit_test(by_hand),
		cmocka_unit_test(not_finite), cmocka_unit_test(step_words),
		cmocka_unit_test(table),      cmocka_unit_test(ranges)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
