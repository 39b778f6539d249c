/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the figures of `shardctl top` from two answers to STATUS: rates per second, no rate across
 * a restart or a new generation, and fields that an older daemon does not send. */
#include "base/check.h"
#include "ctl/figures.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* One node, one peer, one model of 1000 fp32 elements in 4 chunks with two ranks, of which rank 0
 * is here. */
static json_t *status(int incarnation, int generation, int step, int pushed, int in_bytes, int pid)
{
	return json_pack(
		"{s:s, s:i, s:f, s:i, s:{s:i, s:i}, s:[{s:s, s:s, s:b}, {s:s, s:s, s:b, s:i, s:i}],"
		" s:[{s:s, s:i, s:s, s:i, s:i, s:s, s:s, s:i, s:{s:i}, s:{s:f, s:f},"
		" s:[{s:i, s:i, s:s, s:s, s:i, s:f}, {s:i, s:i, s:s}]}]}",
		"node", "a", "incarnation", incarnation, "uptime_s", 9.0, "connections", 2,
		"budget", "used", 10, "total", 2048, "nodes", "name", "a", "state", "self",
		"coordinator", 1, "name", "b", "state", "up", "coordinator", 0, "in_bytes",
		in_bytes, "out_bytes", 7, "models", "name", "m", "generation", generation, "state",
		"training", "step", step, "attempt", 1, "phase", "staging", "grad", "fp32", "numel",
		1000, "chunks", "nr", 4, "last_step", "step_s", 0.5, "wait_s", 0.25, "world",
		"rank", 0, "pid", pid, "node", "a", "state", "computing", "chunks_pushed", pushed,
		"wait_s", 1.5, "rank", 1, "pid", 5, "node", "b");
}

static double at(const json_t *figures, const char *what)
{
	const json_t *m = json_array_get(json_object_get(figures, "models"), 0);
	const json_t *rank = json_array_get(json_object_get(m, "ranks"), 0),
		     *peer = json_array_get(json_object_get(figures, "nodes"), 1);

	if (strcmp(what, "steps") == 0)
		return json_number_value(json_object_get(m, "steps_per_s"));
	if (strcmp(what, "rank") == 0)
		return json_number_value(json_object_get(rank, "bytes_per_s"));
	return json_number_value(json_object_get(peer, "in_bytes_per_s"));
}

static void expect(json_t *before, json_t *now, double seconds, double steps, double rank,
		   double in)
{
	json_t *f = figures_make(before, now, seconds);

	assert_non_null(f);
	if (fabs(at(f, "steps") - steps) > 1e-9 || fabs(at(f, "rank") - rank) > 1e-6 ||
	    fabs(at(f, "in") - in) > 1e-9)
		fail_msg("%f step/s, rank %f B/s, in %f B/s; expected %f, %f, %f", at(f, "steps"),
			 at(f, "rank"), at(f, "in"), steps, rank, in);
	json_decref(f);
	json_decref(before);
	json_decref(now);
}

/* Steps, pushed bytes and received bytes become rates, and one answer alone gives no rate. */
static void rates(void **state)
{
	(void)state;
	/* 3 steps of 4 chunks, and 2 chunks more, are 14 chunks of 1000 bytes in 2 s. */
	expect(status(1, 0, 10, 1, 100, 4), status(1, 0, 13, 3, 700, 4), 2, 1.5, 7000, 300);
	expect(status(1, 0, 10, 1, 100, 4), status(1, 0, 10, 1, 100, 4), 2, 0, 0, 0);
	expect(NULL, status(1, 0, 13, 3, 700, 4), 0, 0, 0, 0);
}

/* Two answers give a rate only if both are of the same life of the daemon, the model or the
 * trainer. */
static void other_lives(void **state)
{
	(void)state;
	/* The daemon restarted. */
	expect(status(1, 0, 10, 1, 100, 4), status(2, 0, 13, 3, 700, 4), 2, 0, 0, 0);
	/* The model was lost and has a new generation. */
	expect(status(1, 0, 10, 1, 100, 4), status(1, 1, 13, 3, 700, 4), 2, 0, 0, 300);
	/* Another trainer has the rank. */
	expect(status(1, 0, 10, 1, 100, 4), status(1, 0, 13, 3, 700, 6), 2, 1.5, 0, 300);
	/* A number that went down gives no rate. */
	expect(status(1, 0, 10, 3, 100, 4), status(1, 0, 9, 1, 50, 4), 2, 0, 0, 0);
}

static char *shown(const json_t *before, const json_t *now)
{
	json_t *f = figures_make(before, now, 1);
	char *text = NULL;
	size_t bytes = 0;
	FILE *out = open_memstream(&text, &bytes);

	assert_true(f && out);
	figures_print(f, &palette_plain, out);
	assert_int_equal(fclose(out), 0);
	json_decref(f);
	return text;
}

/* The output shows the state of the model, its ranks and the peers. */
static void texts(void **state)
{
	json_t *before = status(1, 0, 10, 1, 100, 4), *now = status(1, 0, 12, 1, 1124, 4),
	       *empty = json_object();
	char *text = shown(before, now);

	(void)state;
	assert_non_null(strstr(text, "model \"m\": training, step 12, 2.00 step/s, "
				     "last step 0.500 s, waits 0.250 s"));
	assert_non_null(strstr(text, "1/4           1.5 s     7.81 KiB"));
	assert_non_null(strstr(text, "(its node knows)"));
	assert_non_null(strstr(text, "b                up         1.00 KiB"));
	free(text);
	text = shown(NULL, empty); /* An answer without any field can be shown, too. */
	assert_non_null(strstr(text, "no models"));
	free(text);
	json_decref(before);
	json_decref(now);
	json_decref(empty);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(rates), cmocka_unit_test(other_lives), cmocka_unit_test(texts)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
