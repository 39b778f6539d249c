/* SPDX-License-Identifier: Apache-2.0 */
/* The terminal of `shardctl top`. Happy path: term_enter() saves the settings, turns echo and line
 * mode off and switches to the alternate screen. top.c then calls term_show() and term_wait() in
 * turn, and term_leave() restores everything. SIGINT, SIGTERM, SIGHUP, SIGTSTP and SIGWINCH are
 * blocked and read from a descriptor, so that no signal ends the program while the terminal is
 * changed. It fails where the output is no terminal. */
#include "ctl/term.h"

#include "base/check.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define ENTER "\033[?1049h\033[?25l"
#define LEAVE "\033[?25h\033[?1049l"
#define HOME  "\033[H"
#define END   "\033[K"
#define BELOW "\033[J"
#define PLAIN "\033[0m"

#define ESC_MS 50 /* The bytes of one key come together. A lone Esc has none behind it. */

static void caught(sigset_t *set)
{
	sigemptyset(set);
	sigaddset(set, SIGINT);
	sigaddset(set, SIGTERM);
	sigaddset(set, SIGHUP);
	sigaddset(set, SIGTSTP);
	sigaddset(set, SIGWINCH);
}

static void put(const struct term *t, const char *text, size_t bytes)
{
	while (bytes > 0) {
		ssize_t n = write(t->out, text, bytes);

		if (n < 0 && errno != EINTR)
			return; /* The terminal is gone, and term_wait() will notice it. */
		text += n > 0 ? n : 0;
		bytes -= n > 0 ? (size_t)n : 0;
	}
}

static void on(struct term *t)
{
	struct termios raw;

	t->keys = tcgetattr(t->in, &t->saved) == 0;
	if (t->keys) {
		raw = t->saved;
		raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
		raw.c_cc[VMIN] = 1;
		raw.c_cc[VTIME] = 0;
		tcsetattr(t->in, TCSAFLUSH, &raw);
	}
	put(t, ENTER, strlen(ENTER));
}

static void off(struct term *t)
{
	put(t, LEAVE, strlen(LEAVE));
	if (t->keys)
		tcsetattr(t->in, TCSAFLUSH, &t->saved);
}

enum shard_status term_enter(struct term *t, int in, int out, struct err *e)
{
	sigset_t set;

	*t = (struct term){.in = in, .out = out};
	if (!isatty(out))
		return err_set(e, SHARD_SYSTEM,
			       "the output is no terminal: write --once, or --json for a line per "
			       "interval");
	caught(&set);
	sigprocmask(SIG_BLOCK, &set, NULL);
	t->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (t->signals < 0)
		return err_set(e, SHARD_SYSTEM, "signalfd: %s", strerror(errno));
	on(t);
	t->entered = true;
	return SHARD_OK;
}

void term_leave(struct term *t)
{
	if (!t->entered)
		return;
	t->entered = false;
	off(t);
	close(t->signals);
}

void term_size(const struct term *t, unsigned *columns, unsigned *lines)
{
	struct winsize w = {.ws_col = 0};

	(void)ioctl(t->out, TIOCGWINSZ, &w);
	*columns = w.ws_col > 0 ? w.ws_col : 80;
	*lines = w.ws_row > 0 ? w.ws_row : 24;
}

/* Writes a line cut to so many columns, and returns whether it is shorter than that. */
static bool put_line(const struct term *t, FILE *f, const char *text, size_t n, unsigned columns)
{
	static const char *const tones[] = {"",         "\033[32m", "\033[33m",
					    "\033[31m", "\033[2m",  "\033[1m"};
	unsigned column = 0;
	bool toned = false;

	for (size_t i = 0; i < n; i++) {
		unsigned char c = (unsigned char)text[i];

		if (c >= 1 && c <= TERM_MARK_LAST) {
			if (t->colour && c < TERM_MARK_END)
				fputs(tones[c], f);
			else if (t->colour && c == TERM_MARK_END && toned)
				fputs(PLAIN, f);
			toned = c < TERM_MARK_END || (toned && c > TERM_MARK_END);
			continue;
		}
		if (column == columns)
			break;
		/* The text of a daemon must not steer the terminal. */
		fputc(c < ' ' || c == 0x7f ? '?' : c, f);
		column++;
	}
	if (toned && t->colour)
		fputs(PLAIN, f);
	return column < columns;
}

void term_show(struct term *t, const char *text)
{
	unsigned columns, lines, line = 0;
	size_t bytes = 0;
	char *screen = NULL;
	FILE *f = open_memstream(&screen, &bytes);

	CHECK(t->entered);
	if (!f)
		return;
	term_size(t, &columns, &lines);
	fputs(HOME, f);
	while (*text && line < lines) {
		size_t n = strcspn(text, "\n");

		if (line++ > 0)
			fputs("\r\n", f);
		fputs(put_line(t, f, text, n, columns) ? END : "", f);
		text += n + (text[n] == '\n');
	}
	fputs(BELOW, f);
	if (fclose(f) == 0)
		put(t, screen, bytes);
	free(screen);
}

static enum term_event on_signal(struct term *t)
{
	struct signalfd_siginfo info;

	if (read(t->signals, &info, sizeof(info)) != sizeof(info))
		return TERM_RESIZED;
	if (info.ssi_signo == SIGTSTP) {
		off(t);
		raise(SIGSTOP);
		on(t);
	} else if (info.ssi_signo != SIGWINCH) {
		return TERM_QUIT;
	}
	return TERM_RESIZED;
}

/* What stands behind Esc of a key that is no character. */
static int special(const char *tail)
{
	static const struct {
		const char *tail;
		int key;
	} rows[] = {{"[A", TERM_UP},   {"[B", TERM_DOWN}, {"[5~", TERM_PAGE_UP},
		    {"OA", TERM_UP},   {"OB", TERM_DOWN}, {"[6~", TERM_PAGE_DOWN},
		    {"[H", TERM_HOME}, {"[F", TERM_END},  {"[1~", TERM_HOME},
		    {"OH", TERM_HOME}, {"OF", TERM_END},  {"[4~", TERM_END}};

	for (size_t i = 0; i < NR(rows); i++)
		if (strcmp(rows[i].tail, tail) == 0)
			return rows[i].key;
	return TERM_OTHER;
}

static enum term_event read_key(struct term *t, int *key)
{
	struct pollfd p = {.fd = t->in, .events = POLLIN};
	char byte, tail[8] = "";

	if (read(t->in, &byte, 1) != 1)
		return TERM_QUIT;
	*key = (unsigned char)byte;
	if (byte != 27)
		return TERM_KEY;
	for (size_t n = 0; n < sizeof(tail) - 1 && poll(&p, 1, ESC_MS) == 1; n++) {
		if (read(t->in, &byte, 1) != 1)
			return TERM_QUIT;
		tail[n] = byte;
		tail[n + 1] = 0;
		if (n > 0 && (byte == '~' || (byte >= 'A' && byte <= 'Z')))
			break;
	}
	if (tail[0] != 0)
		*key = special(tail);
	return TERM_KEY;
}

enum term_event term_wait(struct term *t, uint64_t ms, int *key)
{
	struct pollfd p[2] = {{.fd = t->signals, .events = POLLIN},
			      {.fd = t->keys ? t->in : -1, .events = POLLIN}};
	int n;

	CHECK(t->entered);
	n = poll(p, 2, ms > 1000000 ? 1000000 : (int)ms);
	if (n <= 0)
		return TERM_TIMEOUT;
	return p[0].revents ? on_signal(t) : read_key(t, key);
}
