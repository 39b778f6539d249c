/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the terminal of `shardctl top` on a pseudo-terminal: what is cut, what is never passed on,
 * that the terminal is restored, and what is refused. */
#include "base/check.h"
#include "ctl/term.h"

#include <poll.h>
#include <pty.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cmocka.h>

static const char *seen(int master, char *text, size_t bytes)
{
	struct pollfd p = {.fd = master, .events = POLLIN};
	ssize_t n;

	text[0] = 0;
	for (size_t used = 0; poll(&p, 1, 0) == 1; used += (size_t)n) {
		n = read(master, text + used, bytes - 1 - used);
		CHECK(n > 0);
		text[used + (size_t)n] = 0;
	}
	return text;
}

static void shows(void **state)
{
	struct winsize size = {.ws_col = 6, .ws_row = 3};
	struct termios before, raw, after;
	unsigned columns, lines;
	int master, slave;
	char text[4096];
	int key = 0;
	struct term t;
	struct err e;

	(void)state;
	if (openpty(&master, &slave, NULL, NULL, &size) != 0)
		skip(); /* There are no pseudo-terminals here, because /dev/pts is not mounted. */
	CHECK(tcgetattr(slave, &before) == 0);
	assert_int_equal(term_enter(&t, slave, slave, &e), SHARD_OK);
	assert_string_equal(seen(master, text, sizeof(text)), "\033[?1049h\033[?25l");
	CHECK(tcgetattr(slave, &raw) == 0);
	assert_int_equal(raw.c_lflag & (tcflag_t)(ICANON | ECHO), 0);
	term_show(&t, "1234567\na\033[2J\tb\n\nfour\n");
	assert_string_equal(seen(master, text, sizeof(text)),
			    "\033[H123456\r\r\na?[2J?\r\r\n\033[K\033[J");
	/* Marks have no width, and are seen only with colours. */
	term_show(&t, "\7\003"
		      "12"
		      "\6"
		      "345678");
	assert_string_equal(seen(master, text, sizeof(text)), "\033[H123456\033[J");
	t.colour = true;
	term_show(&t, "\7\003"
		      "12"
		      "\6"
		      "345678\n\1a");
	assert_string_equal(seen(master, text, sizeof(text)),
			    "\033[H\033[31m12\033[0m3456\r\r\n\033[32ma\033[0m\033[K\033[J");
	t.colour = false;
	term_show(&t, "");
	assert_string_equal(seen(master, text, sizeof(text)), "\033[H\033[J");
	assert_int_equal(term_wait(&t, 0, &key), TERM_TIMEOUT);
	CHECK(write(master, "q", 1) == 1);
	assert_int_equal(term_wait(&t, 10000, &key), TERM_KEY);
	assert_int_equal(key, 'q');
	CHECK(write(master, "\033[B", 3) == 3);
	assert_int_equal(term_wait(&t, 10000, &key), TERM_KEY);
	assert_int_equal(key, TERM_DOWN);
	CHECK(write(master, "\033[6~", 4) == 4);
	assert_int_equal(term_wait(&t, 10000, &key), TERM_KEY);
	assert_int_equal(key, TERM_PAGE_DOWN);
	CHECK(write(master, "\033[15~", 5) == 5);
	assert_int_equal(term_wait(&t, 10000, &key), TERM_KEY);
	assert_int_equal(key, TERM_OTHER);
	CHECK(write(master, "\033", 1) == 1);
	assert_int_equal(term_wait(&t, 10000, &key), TERM_KEY);
	assert_int_equal(key, 27);
	CHECK(raise(SIGWINCH) == 0);
	assert_int_equal(term_wait(&t, 10000, &key), TERM_RESIZED);
	CHECK(raise(SIGTERM) == 0);
	assert_int_equal(term_wait(&t, 10000, &key), TERM_QUIT);
	size.ws_col = size.ws_row = 0;
	CHECK(ioctl(master, TIOCSWINSZ, &size) == 0);
	term_size(&t, &columns, &lines);
	assert_int_equal(columns, 80);
	assert_int_equal(lines, 24);
	term_leave(&t);
	term_leave(&t);
	assert_string_equal(seen(master, text, sizeof(text)), "\033[?25h\033[?1049l");
	CHECK(tcgetattr(slave, &after) == 0);
	assert_int_equal(after.c_lflag, before.c_lflag);
	close(slave);
	close(master);
}

static void refuses(void **state)
{
	struct term t;
	struct err e;
	int ends[2];

	(void)state;
	CHECK(pipe(ends) == 0);
	assert_int_equal(term_enter(&t, ends[0], ends[1], &e), SHARD_SYSTEM);
	assert_non_null(strstr(e.text, "--once"));
	term_leave(&t); /* There is nothing to put back. */
	close(ends[0]);
	close(ends[1]);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {cmocka_unit_test(shows),
						  cmocka_unit_test(refuses)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
