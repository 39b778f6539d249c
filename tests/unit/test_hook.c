// SPDX-License-Identifier: Apache-2.0
/* Tests daemon/ckpt/hook.c with shell scripts: how a program ends, what it inherits, what it leaves
 * in another session, that it cannot be watched, and that it outlives SIGKILL while the daemon
 * stops, for which kill() does nothing here. */
#include "ckpt/hook.h"

#include "base/check.h"
#include "base/clock.h"
#include "lib/pace.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static bool deaf; /* Signals reach nobody. */
static unsigned killed;

int __real_kill(pid_t pid, int sig);
int __wrap_kill(pid_t pid, int sig);

int __wrap_kill(pid_t pid, int sig)
{
	killed += sig == SIGKILL;
	return deaf ? 0 : __real_kill(pid, sig);
}

static unsigned reads_left; /* That many find more. 0: as it is. */

ssize_t __real_read(int fd, void *out, size_t n);
ssize_t __wrap_read(int fd, void *out, size_t n);

ssize_t __wrap_read(int fd, void *out, size_t n)
{
	if (reads_left == 0)
		return __real_read(fd, out, n);
	if (--reads_left == 0)
		fail_msg("it is listened to for ever");
	memset(out, 'y', n);
	return (ssize_t)n;
}

struct bench {
	uv_loop_t loop;
	struct hook hook;
	int held;
	bool done;
};

static void done(struct hook *h)
{
	struct bench *b = h->timer.loop->data;

	b->done = true;
}

static void begin(struct bench *b, const char *script)
{
	char sh[] = "/bin/sh", c[] = "-c", words[512];
	char *const argv[] = {sh, c, words, NULL};
	const char *const more[] = {"SHARDD_MODEL=m", NULL};
	struct err e;

	*b = (struct bench){.held = -1};
	snprintf(words, sizeof(words), "%s", script);
	assert_int_equal(uv_loop_init(&b->loop), 0);
	b->loop.data = b;
	assert_true((b->held = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600)) >= 0);
	assert_int_equal(hook_spawn(&b->hook, argv, more, b->held, &e), SHARD_OK);
}

/* A daemon that stops has only the program to wait for, as this loop has. */
static void runs(struct bench *b)
{
	assert_int_equal(uv_run(&b->loop, UV_RUN_DEFAULT), 0);
	assert_true(b->done);
	assert_int_equal(uv_loop_close(&b->loop), 0);
	close(b->held);
}

static void watched(struct bench *b, const char *script)
{
	begin(b, script);
	hook_watch(&b->hook, &b->loop, pace_ns(20 * NS_PER_SEC), done);
	runs(b);
}

static void ends(void **state)
{
	struct bench b;

	(void)state;
	watched(&b, "[ $SHARDD_MODEL = m ] && [ -e /proc/self/fd/3 ] && [ ! -e /proc/self/fd/4 ]");
	assert_int_equal(b.hook.why.status, SHARD_OK);
	watched(&b, "echo no such bucket >&2; exit 3");
	assert_string_equal(b.hook.why.text, "it exited with 3: no such bucket");
	watched(&b, "kill -9 $$");
	assert_string_equal(b.hook.why.text, "it died of signal 9");
}

/* What it left in another session may write for ever, and faster than it is read. */
static void leaves_a_flood(void **state)
{
	struct bench b;

	(void)state;
	reads_left = 1000000;
	watched(&b, "exit 3");
	reads_left = 0;
	assert_non_null(strstr(b.hook.why.text, "it exited with 3: yyy"));
}

static void cannot_be_watched(void **state)
{
	struct bench b;

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		begin(&b, "echo begun >&2; exec sleep 3600");
		/* epoll takes no regular file. */
		assert_true(dup2(b.held, i == 0 ? b.hook.ends_fd : b.hook.says_fd) >= 0);
		hook_watch(&b.hook, &b.loop, pace_ns(20 * NS_PER_SEC), done);
		runs(&b);
		assert_string_equal(b.hook.why.text,
				    "it cannot be watched: operation not permitted");
		assert_int_equal(waitpid(b.hook.pid, NULL, 0), -1);
	}
}

static void outlives(struct bench *b, bool told)
{
	uint64_t from = clock_ns();
	struct err e;

	begin(b, "exec sleep 3600");
	hook_watch(&b->hook, &b->loop, pace_ns(20 * NS_PER_SEC), done);
	deaf = true;
	killed = 0;
	err_set(&e, SHARD_CLOSED, "the daemon stops");
	if (told)
		hook_end(&b->hook, &e);
	hook_leave(&b->hook, &e);
	hook_leave(&b->hook, &e);
	runs(b);
	deaf = false;
	assert_true(clock_ns() - from >= HOOK_GRACE_MS * NS_PER_MS);
	assert_int_equal(killed, 1);
	assert_non_null(strstr(b->hook.why.text, "the daemon stops; it outlives SIGKILL"));
	assert_int_equal(__real_kill(b->hook.pid, SIGKILL), 0);
	assert_int_equal(waitpid(b->hook.pid, NULL, 0), b->hook.pid);
}

static void hangs_at_a_stop(void **state)
{
	struct bench b;

	(void)state;
	outlives(&b, false);
	outlives(&b, true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ends),
		cmocka_unit_test(leaves_a_flood),
		cmocka_unit_test(cannot_be_watched),
		cmocka_unit_test(hangs_at_a_stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
