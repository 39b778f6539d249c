/* SPDX-License-Identifier: Apache-2.0 */
/* `shardctl top` shows what the daemon does, again and again at an interval. It uses the alternate
 * screen until q or ^C. With --json it prints a line of JSON per interval, and with --once it ends
 * after one interval. Happy path: it asks for the status twice, makes figures from the two answers,
 * shows them, and asks again. It fails if the first question fails (ctl_exit_of), or without a
 * terminal (exit 2). On the screen a later failure is shown and the question is asked again. With
 * --json or --once it ends the program. */
#include "ctl/ctl.h"
#include "ctl/json.h"
#include "ctl/figures.h"
#include "ctl/term.h"

#include "base/clock.h"
#include "wire/ops.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ONCE, INTERVAL, ALL };

const struct argp_option ctl_top_options[] = {
	{"once", CTL_KEY + ONCE, NULL, 0, "show one interval and end", 0},
	{"all", CTL_KEY + ALL, NULL, 0,
	 "ranks of every node, through this one, those that keep others waiting first", 0},
	{"interval", CTL_KEY + INTERVAL, "SECONDS", 0, "between two looks (default: 1)", 0},
	{0},
};

struct top {
	struct ctl_options options;
	json_t *before, *now, *figures;
	uint64_t before_ns, now_ns;
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

static void show(struct top *t, struct term *term)
{
	char *text = NULL;
	size_t bytes = 0;
	FILE *f = open_memstream(&text, &bytes);

	if (!f)
		return;
	fprintf(f, "shardctl top: %s%s   q: quit\n", t->options.address,
		t->trouble[0] ? "" : ", alive");
	if (t->trouble[0])
		fprintf(f, "%s\n", t->trouble);
	figures_print(t->figures, f);
	if (fclose(f) == 0)
		term_show(term, text);
	free(text);
}

/* Handles keys and signals until the next question is due. False: the user ends the program. */
static bool idle(struct top *t, struct term *term, uint64_t until_ns)
{
	uint64_t now;
	char key;

	while ((now = clock_ns()) < until_ns) {
		switch (term_wait(term, (until_ns - now) / NS_PER_MS + 1, &key)) {
		case TERM_TIMEOUT:
			break;
		case TERM_KEY:
			if (key == 'q' || key == 'Q' || key == 3 || key == 27)
				return false;
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
			ctl_print(json_incref(t->figures));
		} else {
			figures_print(t->figures, stdout);
		}
		if (fflush(stdout) != 0)
			return CTL_FAILED;
	} while (!once);
	return CTL_OK;
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
