// SPDX-License-Identifier: Apache-2.0
/* Tests the example's model: its gradients against central differences, tensor by tensor, and the
 * order in which backward hands them over. Following the gradients must also learn one sequence by
 * heart. */
#include "base/rng.h"
#include "examples/layer.h"
#include "examples/matmul.h"
#include "examples/transformer.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const uint8_t text[] = "The quick brown fox jumps over the lazy dog.";

static void start(struct transformer *t, struct transformer_shape shape)
{
	struct err e;

	assert_int_equal(transformer_init(t, &shape, &e), SHARD_OK);
	for (uint32_t i = 0; i < t->tensors_nr; i++) {
		struct rng r = {i};

		transformer_initial(t, i, 7, t->w[i]);
		for (uint64_t j = 0; j < t->tensors[i].numel;
		     j++) /* No value is special. No weight is one, and no bias is zero. */
			t->w[i][j] += (float)(0.4 * rng_unit(&r) - 0.2);
	}
}

/* A difference of the fourth order. The third derivative falls out, so that the step may be
 * large compared with the rounding of fp32. */
static double slope(struct transformer *t, float *x)
{
	static const double factor[] = {8, -8, -1, 1}, at[] = {1, -1, 2, -2};
	const double h = 0.02;
	const float kept = *x;
	double sum = 0;

	for (int i = 0; i < 4; i++) {
		*x = (float)(kept + at[i] * h);
		sum += factor[i] * transformer_sequence(t, text, 1, NULL, NULL);
	}
	*x = kept;
	return sum / (12 * h);
}

/* The relative distance between the gradient and the slopes, over one whole tensor. */
static double error_of(struct transformer *t, uint32_t tensor, const float *grad)
{
	double off = 0, whole = 0;

	for (uint64_t j = 0; j < t->tensors[tensor].numel; j++) {
		double s = slope(t, &t->w[tensor][j]);

		off += (s - (double)grad[j]) * (s - (double)grad[j]);
		whole += s * s;
	}
	return sqrt(off / whole);
}

static void check_gradients(struct transformer_shape shape)
{
	struct transformer t;
	float **grad;

	start(&t, shape);
	transformer_zero_grad(&t);
	transformer_sequence(&t, text, 1, NULL, NULL);
	assert_non_null(grad = calloc(t.tensors_nr, sizeof(*grad)));
	for (uint32_t i = 0; i < t.tensors_nr; i++) {
		assert_non_null(grad[i] = calloc(t.tensors[i].numel, sizeof(float)));
		memcpy(grad[i], t.g[i], t.tensors[i].numel * sizeof(float));
	}
	for (uint32_t i = 0; i < t.tensors_nr; i++) {
		double error = error_of(&t, i, grad[i]);

		if (!(error < 2e-3))
			fail_msg("%s: relative error %.2e", t.tensors[i].name, error);
		free(grad[i]);
	}
	free(grad);
	transformer_deinit(&t);
}

static void gradients_equal_slopes(void **state)
{
	(void)state;
	check_gradients((struct transformer_shape){.layers = 1, .dim = 8, .heads = 2, .seq = 8});
}

static void gradients_equal_slopes_in_odd_shapes(void **state)
{
	(void)state;
	check_gradients((struct transformer_shape){.layers = 2, .dim = 6, .heads = 3, .seq = 5});
}

static void gradients_equal_slopes_for_one_byte(void **state)
{
	(void)state;
	check_gradients((struct transformer_shape){.layers = 1, .dim = 4, .heads = 1, .seq = 2});
}

/* --- hand-over --- */

struct seen {
	const struct transformer *t;
	uint32_t next, stop_after;
	float *copy[64];
};

static bool see(void *arg, uint32_t tensor, const float *grad)
{
	struct seen *s = arg;
	size_t bytes = s->t->tensors[tensor].numel * sizeof(float);

	assert_int_equal(tensor, --s->next);
	if (s->copy[tensor])
		memcpy(s->copy[tensor], grad, bytes);
	return s->next != s->stop_after;
}

static void handed_over_in_reverse_order_and_complete(void **state)
{
	struct transformer t;
	struct seen s = {.t = &t, .stop_after = UINT32_MAX};

	(void)state;
	start(&t, (struct transformer_shape){.layers = 2, .dim = 8, .heads = 2, .seq = 8});
	s.next = t.tensors_nr;
	for (uint32_t i = 0; i < t.tensors_nr; i++)
		assert_non_null(s.copy[i] = calloc(t.tensors[i].numel, sizeof(float)));
	transformer_sequence(&t, text, 1, NULL, NULL);
	transformer_sequence(&t, text + 9, 1, see, &s); /* Adds to the first one. */
	assert_int_equal(s.next, 0);
	for (uint32_t i = 0; i < t.tensors_nr; i++) {
		assert_memory_equal(s.copy[i], t.g[i], t.tensors[i].numel * sizeof(float));
		free(s.copy[i]);
		s.copy[i] = NULL;
	}
	s.next = t.tensors_nr;
	s.stop_after = t.tensors_nr - 5;
	transformer_sequence(&t, text, 1, see, &s);
	assert_int_equal(s.next, t.tensors_nr - 5); /* Nothing came after the refusal. */
	transformer_deinit(&t);
}

static void scale_multiplies_the_gradient(void **state)
{
	struct transformer a, b;
	const struct transformer_shape shape = {.layers = 1, .dim = 8, .heads = 2, .seq = 8};

	(void)state;
	start(&a, shape);
	start(&b, shape);
	assert_true(transformer_sequence(&a, text, 1, NULL, NULL) ==
		    transformer_sequence(&b, text, 65536, NULL, NULL));
	for (uint32_t i = 0; i < a.tensors_nr; i++) {
		for (uint64_t j = 0; j < a.tensors[i].numel;
		     j++) /* A power of two changes no digit. */
			assert_true(a.g[i][j] * 65536 == b.g[i][j]);
	}
	transformer_deinit(&a);
	transformer_deinit(&b);
}

static void later_bytes_do_not_change_earlier_odds(void **state)
{
	struct transformer t;
	uint8_t other[sizeof(text)];
	float before[4 * TRANSFORMER_CLASSES];

	(void)state;
	start(&t, (struct transformer_shape){.layers = 2, .dim = 8, .heads = 2, .seq = 8});
	memcpy(other, text, sizeof(text));
	other[5] ^= 1; /* The target of row 4 is the input of row 5. */
	transformer_sequence(&t, text, 1, NULL, NULL);
	memcpy(before, t.logits, sizeof(before));
	transformer_sequence(&t, other, 1, NULL, NULL);
	assert_memory_equal(before, t.logits, sizeof(before));
	transformer_deinit(&t);
}

/* --- learning --- */

static void learns_a_sequence_by_heart(void **state)
{
	struct transformer t;
	double loss = 0, first = 0;

	(void)state;
	start(&t, (struct transformer_shape){.layers = 2, .dim = 32, .heads = 4, .seq = 32});
	for (int step = 0; step < 120; step++) {
		transformer_zero_grad(&t);
		loss = transformer_sequence(&t, text, 1, NULL, NULL);
		first = step ? first : loss;
		for (uint32_t i = 0; i < t.tensors_nr; i++) {
			for (uint64_t j = 0; j < t.tensors[i].numel; j++)
				t.w[i][j] -= 0.1f * t.g[i][j];
		}
	}
	assert_true(first > 4 && first < 8);
	assert_true(loss < 0.1);
	transformer_deinit(&t);
}

/* --- parts --- */

static void matmul_sums_in_order(void **state)
{
	enum { MAX = 23 };
	static float a[MAX * MAX], b[MAX * MAX], c[MAX * MAX], want[MAX * MAX], panel[MAX * 8];
	struct rng r = {3};

	(void)state;
	for (int i = 0; i < MAX * MAX; i++)
		a[i] = (float)rng_unit(&r) - 0.5f, b[i] = (float)rng_unit(&r) - 0.5f,
		c[i] = (float)rng_unit(&r);
	for (int trial = 0; trial < 400; trial++) {
		size_t m = 1 + rng_below(&r, MAX), n = 1 + rng_below(&r, MAX),
		       k = 1 + rng_below(&r, MAX);
		bool add = trial & 1, ta = trial & 2, tb = trial & 4;
		struct matmul_view va = ta ? matmul_transposed(a, m) : matmul_rows(a, k);
		struct matmul_view vb = tb ? matmul_transposed(b, k) : matmul_rows(b, n);

		memcpy(want, c, sizeof(want));
		for (size_t i = 0; i < m; i++) {
			for (size_t j = 0; j < n; j++) {
				float sum = add ? want[i * n + j] : 0;

				for (size_t x = 0; x < k; x++)
					sum += va.p[i * va.row + x * va.col] *
					       vb.p[x * vb.row + j * vb.col];
				want[i * n + j] = sum;
			}
		}
		matmul(c, n, va, vb, m, n, k, add, panel);
		/* The bits are equal, and nothing beyond m x n is written. */
		assert_memory_equal(c, want, sizeof(want));
	}
}

static void exp_is_close(void **state)
{
	(void)state;
	for (double x = -87; x < 88; x += 0.0137) {
		double want = exp((double)(float)x);

		assert_true(fabs((double)layer_exp((float)x) - want) < 3e-7 * want);
	}
	assert_true(layer_exp(0) == 1.0f);
	assert_true(layer_exp(-1000) < 1e-37f);
	assert_true(isnan(layer_exp(NAN)));
}

static void bad_shapes_are_refused(void **state)
{
	static const struct transformer_shape bad[] = {{0, 8, 2, 8}, {1, 0, 1, 8},
						       {1, 8, 3, 8}, {1, 8, 0, 8},
						       {1, 8, 2, 0}, {1, 8, 2, 1u << 20}};
	struct transformer t;
	struct err e;

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		assert_int_equal(transformer_init(&t, &bad[i], &e), SHARD_BAD_ARG);
		assert_non_null(strstr(e.text, "must"));
		transformer_deinit(&t);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(gradients_equal_slopes),
		cmocka_unit_test(gradients_equal_slopes_in_odd_shapes),
		cmocka_unit_test(gradients_equal_slopes_for_one_byte),
		cmocka_unit_test(handed_over_in_reverse_order_and_complete),
		cmocka_unit_test(scale_multiplies_the_gradient),
		cmocka_unit_test(later_bytes_do_not_change_earlier_odds),
		cmocka_unit_test(learns_a_sequence_by_heart),
		cmocka_unit_test(matmul_sums_in_order),
		cmocka_unit_test(exp_is_close),
		cmocka_unit_test(bad_shapes_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
