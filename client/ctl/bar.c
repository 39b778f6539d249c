/* SPDX-License-Identifier: Apache-2.0 */
/* Shows the progress of save, restore, export, import and verify, for example `export 42 %
 * [########------------] 1.2 GiB of 2.9 GiB, 812 MiB/s, 0:02 left`. The subcommand calls bar_set()
 * with the bytes that are done, as often as it likes, and bar_done() at the end. The rate is the
 * mean since the beginning, so that the time left does not jump. Everything goes to standard error,
 * because standard output is for results. Nothing here can fail. */
#include "ctl/bar.h"

#include "base/clock.h"
#include "ctl/ctl.h"

#include <stdio.h>
#include <string.h>

enum { CELLS = 20 };
#define EVERY_TTY_NS  100000000ull
#define EVERY_LINE_NS 10000000000ull

void bar_init(struct bar *b, const char *what, uint64_t total_bytes, bool tty)
{
	*b = (struct bar){.what = what, .total = total_bytes, .tty = tty};
	b->began_ns = b->shown_ns = clock_ns();
}

void bar_total(struct bar *b, uint64_t total_bytes)
{
	b->total = total_bytes;
}

static void time_left(char *out, size_t room, double seconds)
{
	unsigned long s;

	/* The first bytes can give a huge estimate, so 100 hours are the most. */
	if (!(seconds < 360000))
		seconds = 360000;
	s = (unsigned long)(seconds + 0.5);
	if (s >= 3600)
		snprintf(out, room, "%lu:%02lu:%02lu", s / 3600, s / 60 % 60, s % 60);
	else
		snprintf(out, room, "%lu:%02lu", s / 60, s % 60);
}

void bar_line(char out[BAR_LINE_BYTES], const struct bar *b, uint64_t elapsed_ns)
{
	char done[CTL_NUMBER_BYTES], total[CTL_NUMBER_BYTES], rate[CTL_NUMBER_BYTES], left[32],
		cells[CELLS + 1];
	double share = b->total ? (double)b->done / (double)b->total : 0,
	       s = (double)elapsed_ns * 1e-9;
	double per_s = s > 0 ? (double)b->done / s : 0;

	share = share > 1 ? 1 : share;
	for (int i = 0; i < CELLS; i++)
		cells[i] = i < (int)(share * CELLS) ? '#' : '-';
	cells[CELLS] = 0;
	ctl_bytes(done, (double)b->done);
	ctl_bytes(total, (double)b->total);
	ctl_bytes(rate, per_s);
	if (b->total == 0) {
		snprintf(out, BAR_LINE_BYTES, "%s: %s, %s/s", b->what, done, rate);
	} else if (b->done >= b->total) {
		time_left(left, sizeof(left), s);
		snprintf(out, BAR_LINE_BYTES, "%s: 100 %% [%s] %s in %s, %s/s", b->what, cells,
			 total, left, rate);
	} else {
		time_left(left, sizeof(left),
			  per_s > 0 ? (double)(b->total - b->done) / per_s : 1e9);
		snprintf(out, BAR_LINE_BYTES, "%s: %2d %% [%s] %s of %s, %s/s, %s left", b->what,
			 (int)(share * 100), cells, done, total, rate, per_s > 0 ? left : "?");
	}
}

static void show(struct bar *b, uint64_t now_ns)
{
	char line[BAR_LINE_BYTES];

	bar_line(line, b, now_ns - b->began_ns);
	if (b->tty)
		fprintf(stderr, "\r%s\x1b[K", line);
	else
		fprintf(stderr, "%s\n", line);
	fflush(stderr);
	b->shown_ns = now_ns;
	b->drawn = true;
}

void bar_set(struct bar *b, uint64_t done_bytes)
{
	uint64_t now_ns = clock_ns();

	b->done = done_bytes;
	if (now_ns - b->shown_ns >= (b->tty ? EVERY_TTY_NS : EVERY_LINE_NS))
		show(b, now_ns);
}

void bar_done(struct bar *b)
{
	if (b->tty && b->drawn) {
		show(b, clock_ns());
		fputc('\n', stderr);
	}
	b->drawn = false;
}
