/* SPDX-License-Identifier: Apache-2.0 */
/* `shardctl top` shows what the daemon does, again and again at an interval. It uses the alternate
 * screen until q or ^C; screen.c has its other keys. With --json it prints a line of JSON per
 * interval, and with --once it ends after one interval. Happy path: it asks for the status twice,
 * makes figures from the two answers, shows them, and asks again. It fails if the first question
 * fails (ctl_exit_of), or without a terminal (exit 2). On the screen a later failure is shown and
 * the question is asked again. With
 * --json or --once it ends the program. */
#include "ctl/ctl.h"
#include "ctl/json.h"
#include "ctl/figures.h"
#include "ctl/palette.h"
#include "ctl/screen.h"
#include "ctl/term.h"

#include "base/clock.h"
#include "wire/ops.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ONCE, INTERVAL, ALL, SORT, FILTER, REVERSE, COLOR };

const struct argp_option ctl_top_options[] = {
	{"once", CTL_KEY + ONCE, NULL, 0, "show one interval and end", 0},
	{"all", CTL_KEY + ALL, NULL, 0, "ranks of every node, through this one", 0},
	{"sort", CTL_KEY + SORT, "BY", 0,
	 "ranks by wait, rank, node, rate or chunks (default: wait, the longest first)", 0},
	{"reverse", CTL_KEY + REVERSE, NULL, 0, "the other way round", 0},
	{"filter", CTL_KEY + FILTER, "TEXT", 0, "only nodes, models and ranks with TEXT", 0},
	PALETTE_OPTION(COLOR),
	{"interval", CTL_KEY + INTERVAL, "SECONDS", 0, "between two looks (default: 1)", 0},
	{0},
};

struct top {
	struct ctl_options options;
	json_t *before, *now, *figures;
	uint64_t before_ns, now_ns;
	struct screen screen;
	bool colour;
	char trouble[ERR_TEXT_BYTES]; /* Why the last question failed, or "". */
};

static enum shard_status look(struct top *t, struct err *e)
{
	json_t *o;
	enum shard_status st = ctl_ask_status(&t->options, &o, e);

	if (st != SHARD_OK)
		return st;
	json_decref(t->before);
	t->before = t->now;
	t->before_ns = t->now_ns;
	t->now = o;
	t->now_ns = clock_ns();
	json_decref(t->figures);
	t->figures = figures_make(t->before, t->now,
				  t->before ? (double)(t->now_ns - t->before_ns) / 1e9 : 0);
	return t->figures ? SHARD_OK : err_set(e, SHARD_SYSTEM, "no memory for the figures");
}

/* The figures as they are to be shown. */
static void print(const struct top *t, const struct palette *p, FILE *f)
{
	json_t *shown = figures_in(t->figures, &t->screen.view);

	figures_print(shown, p, f);
	json_decref(shown);
}

static void show(struct top *t, struct term *term)
{
	char *body = NULL, *text = NULL, title[200];
	unsigned columns, lines;
	size_t bytes = 0;
	FILE *f = open_memstream(&body, &bytes);

	if (!f)
		return;
	snprintf(title, sizeof(title), "shardctl top: %s%s", t->options.address,
		 t->trouble[0] ? "" : ", alive");
	if (t->trouble[0])
		fprintf(f, "%s%s%s%s\n", palette_marks.sentence, palette_marks.bad, t->trouble,
			palette_marks.end);
	print(t, &palette_marks, f);
	term_size(term, &columns, &lines);
	if (fclose(f) == 0)
		text = screen_text(&t->screen, title, body, columns, lines);
	if (text != NULL)
		term_show(term, text);
	free(text);
	free(body);
}

/* Handles keys and signals until the next question is due. False: the user ends the program. */
static bool idle(struct top *t, struct term *term, uint64_t until_ns)
{
	uint64_t now;
	enum screen_act act;
	int key;

	while ((now = clock_ns()) < until_ns) {
		switch (term_wait(term, (until_ns - now) / NS_PER_MS + 1, &key)) {
		case TERM_TIMEOUT:
			break;
		case TERM_KEY:
			act = screen_key(&t->screen, key);
			if (act == SCREEN_QUIT)
				return false;
			if (act == SCREEN_DRAW)
				show(t, term);
			break;
		case TERM_RESIZED:
			show(t, term);
			break;
		case TERM_QUIT:
			return false;
		}
	}
	return true;
}

static enum ctl_exit on_screen(struct top *t, uint64_t interval_ns)
{
	struct term term;
	struct err e;

	if (term_enter(&term, STDIN_FILENO, STDOUT_FILENO, &e) != SHARD_OK)
		return ctl_fail(&t->options, CTL_USAGE, "top: %s", e.text);
	term.colour = t->colour;
	if (t->options.timeout_ns > NS_PER_SEC)
		/* A key must not wait long for a daemon that hangs. */
		t->options.timeout_ns = NS_PER_SEC;
	do {
		show(t, &term);
		if (!idle(t, &term, clock_ns() + interval_ns))
			break;
		t->trouble[0] = 0;
		if (look(t, &e) != SHARD_OK)
			snprintf(t->trouble, sizeof(t->trouble), "%s", e.text);
	} while (true);
	term_leave(&term);
	return CTL_OK;
}

static enum ctl_exit as_lines(struct top *t, uint64_t interval_ns, bool once)
{
	enum shard_status st = SHARD_OK;
	struct err e;

	do {
		(void)poll(NULL, 0, (int)(interval_ns / NS_PER_MS));
		if ((st = look(t, &e)) != SHARD_OK)
			return ctl_fail_as(&t->options, st, "", e.text);
		if (t->options.json) {
			(void)ctl_print(figures_in(t->figures, &t->screen.view));
		} else {
			print(t, t->colour ? &palette_colour : &palette_plain, stdout);
		}
		if (fflush(stdout) != 0)
			return CTL_FAILED;
	} while (!once);
	return CTL_OK;
}

static bool take_view(const struct ctl_options *o, struct top *t)
{
	struct figures_view v = {.sort = FIGURES_WAIT, .reverse = o->value[REVERSE] != NULL};

	if (o->value[SORT] != NULL && !figures_sort_parse(o->value[SORT], &v.sort)) {
		ctl_fail(o, CTL_USAGE, "top: --sort %s: choose wait, rank, node, rate or chunks",
			 o->value[SORT]);
		return false;
	}
	if (o->value[FILTER] != NULL)
		snprintf(v.filter, sizeof(v.filter), "%s", o->value[FILTER]);
	screen_init(&t->screen, &v);
	if (palette_wanted(o->value[COLOR], stdout, &t->colour))
		return true;
	ctl_fail(o, CTL_USAGE, PALETTE_WRONG, o->value[COLOR]);
	return false;
}

enum ctl_exit ctl_top(const struct ctl_options *o)
{
	struct top t = {.options = *o};
	bool once = o->value[ONCE] != NULL;
	enum ctl_exit rc;
	enum shard_status st;
	double seconds = 1;
	struct err e;
	char *end;

	if (o->value[INTERVAL]) {
		seconds = strtod(o->value[INTERVAL], &end);
		if (end == o->value[INTERVAL] || *end || !(seconds >= 0.05 && seconds <= 3600))
			return ctl_fail(o, CTL_USAGE,
					"top: --interval %s: choose seconds from 0.05 to 3600",
					o->value[INTERVAL]);
	}
	if (!once && !o->json && !isatty(STDOUT_FILENO))
		return ctl_fail(o, CTL_USAGE,
				"top: the output is no terminal: write --once, or "
				"--json for a line per interval");
	if (!take_view(o, &t))
		return CTL_USAGE;
	t.options.all = o->value[ALL] != NULL;
	if ((st = look(&t, &e)) != SHARD_OK)
		return ctl_fail_as(o, st, "", e.text);
	if (once || o->json)
		rc = as_lines(&t, (uint64_t)(seconds * 1e9), once);
	else
		rc = on_screen(&t, (uint64_t)(seconds * 1e9));
	json_decref(t.before);
	json_decref(t.now);
	json_decref(t.figures);
	return rc;
}
