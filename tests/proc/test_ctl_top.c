/* SPDX-License-Identifier: Apache-2.0 */
/* Tests `shardctl top` in a pseudo-terminal. The screen fits the terminal and follows its size. q,
 * ^C and SIGTERM end it and leave the terminal as it was. It reports a daemon that went away, and
 * waits for it. Also tests --once, and --json as lines. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/tool.h"
#include "lib/trainer.h"

#include <jansson.h>
#include <errno.h>
#include <poll.h>
#include <pty.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>
#include <utmp.h>

#include <cmocka.h>

#define ENTER    "\033[?1049h\033[?25l"
#define LEAVE    "\033[?25h\033[?1049l"
#define SEEN_MAX (1 << 18)

struct pty {
	int master;
	pid_t pid;
	struct termios before;
	size_t bytes;
	char seen[SEEN_MAX];
};

static void pty_start(struct pty *p, unsigned short columns, unsigned short lines,
		      const char *address)
{
	struct winsize size = {.ws_col = columns, .ws_row = lines};
	char path[600];
	int slave;

	proc_beside(path, sizeof(path), "shardctl");
	if (openpty(&p->master, &slave, NULL, NULL, &size) != 0) {
		print_message("no pseudo-terminal here (is /dev/pts mounted?): %s\n",
			      strerror(errno));
		skip();
	}
	CHECK(tcgetattr(p->master, &p->before) == 0);
	p->bytes = 0;
	p->seen[0] = 0;
	fflush(NULL);
	p->pid = fork();
	CHECK(p->pid >= 0);
	if (p->pid == 0) {
		close(p->master);
		if (login_tty(slave) != 0)
			_exit(98);
		execl(path, "shardctl", "top", "--interval", "0.1", "--address", address,
		      (char *)NULL);
		_exit(97);
	}
	close(slave);
}

/* Reads until text appears after what was there before, for at most 10 s. With `end` the program
 * may also end. */
static void pty_read(struct pty *p, const char *text)
{
	uint64_t deadline = pace_by(10);
	size_t from = p->bytes;

	while (!strstr(p->seen + from, text)) {
		struct pollfd f = {.fd = p->master, .events = POLLIN};
		ssize_t n = -1;

		if (clock_ns() < deadline && poll(&f, 1, 1000) >= 0) {
			if (!(f.revents & (POLLIN | POLLHUP)))
				continue;
			CHECK(p->bytes < SEEN_MAX - 1);
			n = read(p->master, p->seen + p->bytes, SEEN_MAX - 1 - p->bytes);
		}
		if (n <= 0)
			fail_msg("\"%s\" did not come: %s", text, p->seen + from);
		p->bytes += (size_t)n;
		p->seen[p->bytes] = 0;
	}
}

/* Checks the last complete screen, from cursor home to "erase below". */
static void check_screen(struct pty *p, unsigned columns, unsigned lines)
{
	unsigned column = 0, line = 1;
	char *home = NULL, *at, *end;

	p->bytes = 0;
	p->seen[0] = 0;
	pty_read(p, "\033[J"); /* The rest of a screen. */
	pty_read(p, "\033[J");
	for (at = p->seen; (at = strstr(at, "\033[H")) != NULL && strstr(at, "\033[J"); at++)
		home = at;
	assert_non_null(home);
	end = strstr(home, "\033[J");
	for (at = home; at < end; at++) {
		if (*at == '\033') {
			at += 1 + strcspn(at + 1, "HJKm"); /* ESC [ 3 1 m. */
		} else if (*at == '\n') {
			line++;
			column = 0;
		} else if (*at != '\r') {
			column++;
		}
		if (column > columns || line > lines)
			fail_msg("line %u column %u in a terminal of %u x %u", line, column,
				 columns, lines);
	}
	assert_in_range(line, lines < 5 ? lines : 5, lines);
}

static void pty_end(struct pty *p, int code)
{
	struct termios after;

	pty_read(p, LEAVE);
	proc_expect_exit(p->pid, code, 10000);
	CHECK(tcgetattr(p->master, &after) == 0);
	assert_int_equal(after.c_lflag, p->before.c_lflag);
	assert_int_equal(after.c_iflag, p->before.c_iflag);
	assert_int_equal(after.c_oflag, p->before.c_oflag);
	assert_int_equal(after.c_cc[VMIN], p->before.c_cc[VMIN]);
	close(p->master);
}

static void test_screen(void **state)
{
	struct cluster *c = cluster_start(1, NULL, NULL);
	struct pty *p = malloc(sizeof(*p));
	struct trainer t;
	struct termios raw;
	struct winsize size = {.ws_col = 50, .ws_row = 9};

	(void)state;
	CHECK(p);
	trainer_join(&t, c->node[0].unix_address, SHARD_F32, SHARD_F32);
	trainer_begin(&t);
	CHECK(setenv("TERM", "xterm", 1) == 0);
	pty_start(p, 80, 24, c->node[0].unix_address);
	pty_read(p, ENTER);
	pty_read(p, "CHUNKS PUSHED");
	pty_read(p, "computing");
	CHECK(tcgetattr(p->master, &raw) == 0);
	assert_int_equal(raw.c_lflag & (tcflag_t)(ICANON | ECHO), 0);
	check_screen(p, 80, 24);
	CHECK(ioctl(p->master, TIOCSWINSZ, &size) == 0);
	check_screen(p, 50, 9);
	size.ws_col = 200, size.ws_row = 3;
	CHECK(ioctl(p->master, TIOCSWINSZ, &size) == 0);
	pty_read(p, "too small: 200x3, 40x8 needed");
	size.ws_col = 80, size.ws_row = 24;
	CHECK(ioctl(p->master, TIOCSWINSZ, &size) == 0);
	trainer_push_all(&t, 0.5f);
	trainer_end(&t);
	pty_read(p, "model \"");
	CHECK(write(p->master, "x", 1) == 1); /* Any other key does nothing. */
	check_screen(p, 80, 24);
	CHECK(write(p->master, "?", 1) == 1);
	pty_read(p, "Keys of shardctl top");
	CHECK(write(p->master, "x/nothing\r", 10) == 10);
	pty_read(p, "only with nothing");
	CHECK(write(p->master, "q", 1) == 1);
	pty_end(p, 0);
	/* Colours are there on a terminal, unless somebody wants none. */
	assert_non_null(strstr(p->seen, "\033[1mnode a\033[0m"));
	CHECK(setenv("NO_COLOR", "1", 1) == 0);
	pty_start(p, 80, 24, c->node[0].unix_address);
	pty_read(p, "node a");
	CHECK(write(p->master, "\033[B\033[Fq", 7) == 7); /* Neither key ends it. */
	pty_end(p, 0);
	assert_null(strstr(p->seen, "\033[1m"));
	CHECK(unsetenv("NO_COLOR") == 0);
	free(p);
	cluster_stop(c);
}

static void test_ends(void **state)
{
	struct cluster *c = cluster_start(1, NULL, NULL);
	struct pty *p = malloc(sizeof(*p));

	(void)state;
	CHECK(p);
	pty_start(p, 80, 24, c->node[0].unix_address);
	pty_read(p, "no models");
	CHECK(write(p->master, "\003", 1) == 1); /* ^C. */
	pty_end(p, 0);
	pty_start(p, 80, 24, c->node[0].unix_address);
	pty_read(p, "no models");
	CHECK(kill(p->pid, SIGTERM) == 0);
	pty_end(p, 0);
	pty_start(p, 80, 24, c->node[0].unix_address);
	pty_read(p, "no models");
	cluster_signal(c, 0, SIGTERM);
	assert_int_equal(cluster_wait(c, 0, 10000), 0);
	pty_read(p, "no shardd at");
	cluster_spawn(c, 0);
	pty_read(p, ", alive");
	CHECK(write(p->master, "q", 1) == 1);
	pty_end(p, 0);
	cluster_ready(c, 0);
	free(p);
	cluster_stop(c);
}

static void test_once(void **state)
{
	struct cluster *c = cluster_start(2, NULL, NULL);
	const json_t *model, *rank;
	char words[300], *out;
	struct trainer t;
	json_error_t wrong;
	json_t *o;

	(void)state;
	trainer_join(&t, c->node[0].unix_address, SHARD_F32, SHARD_F32);
	trainer_begin(&t);
	snprintf(words, sizeof(words), "top --once --interval 0.1 --json -a %s",
		 c->node[0].unix_address);
	assert_int_equal(tool_run(&out, "shardctl", words), 0);
	o = json_loads(out, 0, &wrong);
	if (!o)
		fail_msg("%s: %s", wrong.text, out);
	free(out);
	model = json_array_get(json_object_get(o, "models"), 0);
	rank = json_array_get(json_object_get(model, "ranks"), 0);
	assert_int_equal(json_array_size(json_object_get(o, "nodes")), 2);
	assert_int_equal(json_integer_value(json_object_get(rank, "pid")), getpid());
	assert_int_equal(json_integer_value(json_object_get(rank, "chunks_pushed")), 0);
	/* The rank pushed nothing for at least one interval. */
	assert_true(json_number_value(json_object_get(rank, "wait_s")) > 0.1);
	assert_true(json_number_value(json_object_get(o, "interval_s")) > 0.09);
	json_decref(o);
	snprintf(words, sizeof(words), "top --once --interval 0.1 -a %s",
		 c->node[1].tcp_address + strlen("tcp://"));
	tool_expect(0, "(its node knows)", "shardctl", words);
	tool_expect(0, "(its node knows)", "shardctl",
		    strcat(words, " --sort node --color always"));
	tool_expect(0, "no models", "shardctl", strcat(words, " --filter nobody"));
	trainer_end(&t);
	tool_expect(2, "top: --sort x: choose wait, rank", "shardctl", "top --once --sort x");
	tool_expect(2, "--color x: choose auto", "shardctl", "top --once --color x");
	tool_expect(2, "--color x: choose auto", "shardctl", "status --color x");
	tool_expect(2, "--color x: choose auto", "shardctl", "doctor --color x");
	tool_expect(2, "the output is no terminal", "shardctl", "top");
	tool_expect(2, "choose seconds from 0.05", "shardctl", "top --once --interval 0");
	tool_expect(3, "SHARD_UNREACHABLE", "shardctl", "top --once -a unix:/nonexistent/x.sock");
	cluster_stop(c);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {cmocka_unit_test(test_screen),
						  cmocka_unit_test(test_ends),
						  cmocka_unit_test(test_once)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
