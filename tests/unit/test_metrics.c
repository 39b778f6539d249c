// SPDX-License-Identifier: Apache-2.0
/* Tests obs/metrics: to which bucket a time goes, that buckets are cumulative in the text, labels
 * with any content, and values that are no numbers. */
#include "obs/metrics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

struct text {
	FILE *f;
	char *bytes;
	size_t nr;
};

static void open_text(struct text *t)
{
	t->f = open_memstream(&t->bytes, &t->nr);
	assert_non_null(t->f);
}

static void expect(struct text *t, const char *want)
{
	assert_int_equal(fclose(t->f), 0);
	assert_string_equal(t->bytes, want);
	free(t->bytes);
}

static void bounds_grow(void **state)
{
	(void)state;
	for (uint32_t i = 1; i < HISTOGRAM_BOUNDS; i++)
		assert_true(histogram_bound_ns(i - 1) < histogram_bound_ns(i));
}

static void buckets(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < HISTOGRAM_BOUNDS; i++) {
		struct histogram h = {0};
		uint64_t at = histogram_bound_ns(i);

		histogram_add(&h, at - 1);
		histogram_add(&h, at);
		histogram_add(&h, at + 1);
		assert_int_equal(h.bucket[i], 2);
		assert_int_equal(h.bucket[i + 1], 1);
		assert_int_equal(h.count, 3);
		assert_true(h.sum_ns == 3 * at);
	}
}

static void extremes(void **state)
{
	struct histogram h = {0};

	(void)state;
	histogram_add(&h, 0);
	histogram_add(&h, UINT64_MAX / 2);
	assert_int_equal(h.bucket[0], 1);
	assert_int_equal(h.bucket[HISTOGRAM_BOUNDS], 1);
}

static uint64_t value_of(const char *text, const char *start)
{
	const char *at = strstr(text, start);

	if (at == NULL)
		fail_msg("no \"%s\" in\n%s", start, text);
	return strtoull(at + strlen(start), NULL, 10);
}

static void histogram_text(void **state)
{
	const struct metrics_label labels[] = {{"model", "m"}, {NULL, NULL}};
	struct histogram h = {0};
	struct text t;
	uint32_t lines = 0;

	(void)state;
	histogram_add(&h, 50000);   /* 50 us */
	histogram_add(&h, 2000000); /* 2 ms */
	histogram_add(&h, 2000000);
	histogram_add(&h, 900000000000u); /* 15 min */
	open_text(&t);
	metrics_histogram(t.f, "x_seconds", labels, &h);
	assert_int_equal(fclose(t.f), 0);
	for (const char *at = t.bytes; (at = strchr(at, '\n')) != NULL; at++)
		lines++;
	assert_int_equal(lines, HISTOGRAM_BOUNDS + 3);
	assert_int_equal(value_of(t.bytes, "x_seconds_bucket{model=\"m\",le=\"0.0001\"} "), 1);
	assert_int_equal(value_of(t.bytes, "x_seconds_bucket{model=\"m\",le=\"0.001\"} "), 1);
	assert_int_equal(value_of(t.bytes, "x_seconds_bucket{model=\"m\",le=\"0.0025\"} "), 3);
	assert_int_equal(value_of(t.bytes, "x_seconds_bucket{model=\"m\",le=\"300\"} "), 3);
	assert_int_equal(value_of(t.bytes, "x_seconds_bucket{model=\"m\",le=\"+Inf\"} "), 4);
	assert_non_null(strstr(t.bytes, "x_seconds_sum{model=\"m\"} 900.004050000\n"));
	assert_int_equal(value_of(t.bytes, "x_seconds_count{model=\"m\"} "), 4);
	free(t.bytes);
}

static void families(void **state)
{
	struct text t;

	(void)state;
	open_text(&t);
	metrics_family(t.f, "a_total", METRICS_COUNTER, "Things.");
	metrics_count(t.f, "a_total", NULL, UINT64_MAX);
	metrics_family(t.f, "b_seconds", METRICS_GAUGE, "Time.");
	metrics_sample(t.f, "b_seconds", NULL, 0.25);
	metrics_family(t.f, "c_seconds", METRICS_HISTOGRAM, "Times.");
	expect(&t, "# HELP a_total Things.\n# TYPE a_total counter\na_total 18446744073709551615\n"
		   "# HELP b_seconds Time.\n# TYPE b_seconds gauge\nb_seconds 0.25\n"
		   "# HELP c_seconds Times.\n# TYPE c_seconds histogram\n");
}

static void labels_escaped(void **state)
{
	struct text t;

	(void)state;
	open_text(&t);
	metrics_count(
		t.f, "a",
		(const struct metrics_label[]){{"x", "a\\b\"c\nd{},="}, {"y", ""}, {NULL, NULL}},
		1);
	expect(&t, "a{x=\"a\\\\b\\\"c\\nd{},=\",y=\"\"} 1\n");
}

static void not_numbers(void **state)
{
	struct text t;

	(void)state;
	open_text(&t);
	metrics_sample(t.f, "a", NULL, (double)NAN);
	metrics_sample(t.f, "a", NULL, (double)INFINITY);
	metrics_sample(t.f, "a", NULL, -(double)INFINITY);
	metrics_sample(t.f, "a", NULL, 65536);
	metrics_sample(t.f, "a", NULL, 1e-30);
	expect(&t, "a NaN\na +Inf\na -Inf\na 65536\na 1e-30\n");
}

static void skip_names(void **state)
{
	(void)state;
	assert_string_equal(metrics_skip_name(METRICS_SKIP_NONFINITE), "nonfinite");
	assert_string_equal(metrics_skip_name(METRICS_SKIP_VOTE), "vote");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bounds_grow), cmocka_unit_test(buckets),
		cmocka_unit_test(extremes),    cmocka_unit_test(histogram_text),
		cmocka_unit_test(families),    cmocka_unit_test(labels_escaped),
		cmocka_unit_test(not_numbers), cmocka_unit_test(skip_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
