/* SPDX-License-Identifier: Apache-2.0 */
/* Tests what `shardctl top` shows of 64 ranks in 80 columns and 24 lines: order, filter, scrolling
 * to every line, sentences that are folded, keys, and terminals that are too small. */
#include "base/check.h"
#include "ctl/screen.h"
#include "ctl/term.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 64, COLUMNS = 80, LINES = 24 };

/* Rank 7 has waited longest, and every fifth one is on node c. A model that is lost comes second.
 */
static json_t *figures(void)
{
	json_t *ranks = json_array();

	for (int r = 0; r < RANKS; r++)
		json_array_append_new(
			ranks, json_pack("{s:i, s:s, s:i, s:s, s:i, s:f, s:f}", "rank", r, "node",
					 r % 5 == 4 ? "c" : "node-with-a-long-name", "pid",
					 100000 + r, "state", "computing", "chunks_pushed", r,
					 "wait_s", r == 7 ? 99.0 : 0.5, "bytes_per_s", 64.0 - r));
	return json_pack(
		"{s:s, s:[{s:s, s:s}, {s:s, s:s}], s:[{s:s, s:s, s:i, s:o}, {s:s, s:s, s:s, "
		"s:[]}], s:{s:[{s:s, s:s}]}}",
		"node", "a", "nodes", "name", "a", "state", "self", "name", "z", "state", "down",
		"models", "name", "big", "state", "training", "chunks", 64, "ranks", ranks, "name",
		"gone", "state", "lost", "lost", "node b started again", "ranks", "health",
		"findings", "level", "ill", "text",
		"node z 10.0.0.9:29700 is down for 14 s: connection refused, nothing "
		"listens there, and the next attempt is made in one second from now");
}

static char *drawn(struct screen *s, unsigned columns, unsigned lines)
{
	json_t *f = figures(), *shown = figures_in(f, &s->view);
	char *body = NULL, *text;
	size_t bytes = 0;
	FILE *out = open_memstream(&body, &bytes);

	CHECK(out);
	figures_print(shown, &palette_marks, out);
	fclose(out);
	text = screen_text(s, "title", body, columns, lines);
	assert_non_null(text);
	free(body);
	json_decref(shown);
	json_decref(f);
	return text;
}

static struct screen begin(void)
{
	static const struct figures_view all = {.sort = FIGURES_WAIT};
	struct screen s;

	screen_init(&s, &all);
	return s;
}

static void has(struct screen *s, const char *text, bool there)
{
	char *now = drawn(s, COLUMNS, LINES);

	if ((strstr(now, text) != NULL) != there)
		fail_msg("%s\"%s\" in\n%s", there ? "no " : "", text, now);
	free(now);
}

/* Each line fits, and there are exactly as many as the terminal has. */
static void fits(struct screen *s, unsigned columns, unsigned lines)
{
	char *now = drawn(s, columns, lines);
	unsigned column = 0, line = 1;

	for (const char *at = now; *at; at++) {
		column = *at == '\n' ? 0 : column + ((unsigned char)*at > TERM_MARK_LAST);
		line += *at == '\n';
		if (column > columns)
			fail_msg("line %u is wider than %u:\n%s", line, columns, now);
	}
	assert_int_equal(line, lines);
	free(now);
}

static void test_worst_first(void **state)
{
	struct screen s = begin();
	char *now = drawn(&s, COLUMNS, LINES), *down = strstr(now, "\nz "),
	     *self = strstr(now, "\na ");

	(void)state;
	assert_true(down && self && down < self);
	assert_non_null(strstr(now, "gone"));
	free(now);
	fits(&s, COLUMNS, LINES);
	has(&s, "is made in one second from now", true); /* The sentence is folded. */
	screen_key(&s, 'G');
	screen_key(&s, 'g');
	while (s.below > 0) {
		now = drawn(&s, COLUMNS, LINES);
		if (strstr(now, "RANK")) {
			char *first = strchr(strstr(now, "RANK"), '\n');

			if (first && first[1])
				assert_non_null(strstr(first, "\n   7 node-with-a-long"));
			free(now);
			return;
		}
		free(now);
		screen_key(&s, TERM_DOWN);
	}
	fail_msg("no ranks");
}

/* Every rank can be reached, line by line and page by page, and from the end. */
static void test_scrolls(void **state)
{
	static const int keys[] = {TERM_DOWN, 'j', TERM_PAGE_DOWN, ' '};

	(void)state;
	for (size_t k = 0; k < NR(keys); k++) {
		struct screen s = begin();
		bool seen[RANKS] = {false};

		for (int turn = 0;; turn++) {
			char *now = drawn(&s, COLUMNS, LINES), text[16];

			for (int r = 0; r < RANKS; r++) {
				snprintf(text, sizeof(text), " %d ", 100000 + r);
				seen[r] = seen[r] || strstr(now, text) != NULL;
			}
			free(now);
			fits(&s, COLUMNS, LINES);
			if (s.below == 0)
				break;
			assert_int_equal(screen_key(&s, keys[k]), SCREEN_DRAW);
			assert_true(turn < 200);
		}
		for (int r = 0; r < RANKS; r++)
			assert_true(seen[r]);
		has(&s, "the end, ", true);
		screen_key(&s, TERM_PAGE_UP);
		screen_key(&s, TERM_UP);
		has(&s, "more lines below", true);
		screen_key(&s, TERM_HOME);
		has(&s, "node z 10.0.0.9", true);
		screen_key(&s, TERM_END);
		has(&s, "the end, ", true);
	}
}

static void test_sorts(void **state)
{
	static const char *const first[] = {"100007", "100000", "100004", "100063", "100000"};
	struct screen s = begin();

	(void)state;
	for (size_t k = 0; k < FIGURES_SORTS; k++) {
		json_t *f = figures(), *shown = figures_in(f, &s.view);
		const json_t *m = NULL, *models = json_object_get(shown, "models");
		char pid[16];
		size_t i;

		json_array_foreach(models, i, m)
			if (json_array_size(json_object_get(m, "ranks")) > 0)
				break;
		snprintf(pid, sizeof(pid), "%d",
			 (int)json_integer_value(json_object_get(
				 json_array_get(json_object_get(m, "ranks"), 0), "pid")));
		assert_string_equal(pid, first[k]);
		json_decref(shown);
		json_decref(f);
		screen_key(&s, 's');
	}
	assert_int_equal(s.view.sort, FIGURES_WAIT);
	screen_key(&s, 'S');
	assert_int_equal(s.view.sort, FIGURES_CHUNKS);
	screen_key(&s, 'r');
	assert_true(s.view.reverse);
}

static void type(struct screen *s, const char *keys)
{
	for (; *keys; keys++)
		screen_key(s, *keys);
}

static void test_filters(void **state)
{
	struct screen s = begin();

	(void)state;
	type(&s, "/C");
	has(&s, "/C_", true);
	type(&s, "\x7f"
		 "100007\r");
	has(&s, "   7 node-with-a-long", true);
	has(&s, "   8 node-with-a-long", false);
	has(&s, "only with 100007", true);
	has(&s, "gone", false);
	type(&s, "/q\033"); /* Esc takes nothing, and q is a letter here. */
	has(&s, "only with 100007", true);
	type(&s, "/\x7f\x7f\x7f\x7f\x7f\x7fgone\r");
	has(&s, "node b started again", true);
	has(&s, "100007", false);
}

static void test_keys(void **state)
{
	struct screen s = begin();

	(void)state;
	assert_int_equal(screen_key(&s, 'x'), SCREEN_NOTHING);
	assert_int_equal(screen_key(&s, TERM_OTHER), SCREEN_NOTHING);
	assert_int_equal(screen_key(&s, '?'), SCREEN_DRAW);
	has(&s, "Keys of shardctl top", true);
	fits(&s, COLUMNS, LINES);
	assert_int_equal(screen_key(&s, 'x'), SCREEN_DRAW);
	has(&s, "Keys of shardctl top", false);
	assert_int_equal(screen_key(&s, 'q'), SCREEN_QUIT);
	assert_int_equal(screen_key(&s, 27), SCREEN_QUIT);
	assert_int_equal(screen_key(&s, 3), SCREEN_QUIT);
}

static void test_small(void **state)
{
	struct screen s = begin();
	char *now = drawn(&s, SCREEN_COLUMNS_MIN, SCREEN_LINES_MIN);

	(void)state;
	assert_null(strstr(now, "too small"));
	free(now);
	now = drawn(&s, 39, 24);
	assert_string_equal(now, "too small: 39x24, 40x8 needed\nq: quit");
	free(now);
	now = drawn(&s, 80, 7);
	assert_string_equal(now, "too small: 80x7, 40x8 needed\nq: quit");
	free(now);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_worst_first), cmocka_unit_test(test_scrolls),
		cmocka_unit_test(test_sorts),       cmocka_unit_test(test_filters),
		cmocka_unit_test(test_keys),        cmocka_unit_test(test_small)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
