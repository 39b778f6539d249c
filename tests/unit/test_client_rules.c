// SPDX-License-Identifier: Apache-2.0
/* Tests the rules of shard.h's head comment about what the library does to its process, which is as
 * little as possible. Each rule is checked around a session that connects, joins, steps and
 * fails. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/fakeserver.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/trainer.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdarg.h>
#include <cmocka.h>

static struct fake *start(bool tcp)
{
	struct fake_conf conf = {.tcp = tcp};

	return fake_start(&conf);
}

static void step(struct trainer *t)
{
	struct shard_result r = SHARD_INIT(struct shard_result);

	trainer_begin(t);
	trainer_push_all(t, 1);
	EXPECT(SHARD_OK, shard_commit(t->model, NULL));
	EXPECT(SHARD_OK, shard_result(t->model, 0, SHARD_DEFAULT, &r));
}

/* Makes calls that succeed and calls that fail, and ends with a broken connection. */
static void session(struct fake *f, struct trainer *t)
{
	float g = 0;

	trainer_join(t, f->address, SHARD_BF16, SHARD_BF16);
	step(t);
	EXPECT(SHARD_STALE, shard_push(t->model, 0, 0, 1, &g, SHARD_F32, SHARD_CAST, NULL));
	trainer_begin(t);
	EXPECT(SHARD_MISSING, shard_commit(t->model, NULL));
	fake_error(f, SHARD_DENIED, "go away");
	while (shard_progress(t->client) == SHARD_OK)
		;
	EXPECT(SHARD_CLOSED, shard_commit(t->model, NULL));
}

static int entries(const char *path)
{
	DIR *d = opendir(path);
	int n = 0;

	CHECK(d != NULL);
	while (readdir(d) != NULL)
		n++;
	closedir(d);
	return n;
}

static int run_text(const char *command, char *text, size_t bytes)
{
	FILE *p = popen(command, "re");
	size_t n;

	CHECK(p != NULL);
	n = fread(text, 1, bytes - 1, p);
	text[n] = 0;
	return pclose(p);
}

/* The library starts no thread, except one for a tcp connection, and that one ends with it. */
static void test_threads(void **state)
{
	bool tcp = *state != NULL;
	struct fake *f = start(tcp);
	int before = entries("/proc/self/task");
	struct trainer t;

	trainer_join(&t, f->address, SHARD_BF16, SHARD_BF16);
	step(&t);
	assert_int_equal(entries("/proc/self/task"), before + (tcp ? 1 : 0));
	trainer_end(&t);
	assert_int_equal(entries("/proc/self/task"), before);
	fake_stop(f);
}

/* Descriptors of the library are closed on exec and gone after a disconnect. */
static void test_descriptors(void **state)
{
	struct fake *f = start(*state != NULL);
	int before = entries("/proc/self/fd");
	char there[4096], then[4096];
	struct trainer t;

	assert_int_equal(run_text("ls /proc/self/fd", there, sizeof(there)), 0);
	trainer_join(&t, f->address, SHARD_BF16, SHARD_BF16);
	step(&t);
	assert_true(entries("/proc/self/fd") > before);
	/* A program that is started inherits none of them. */
	assert_int_equal(run_text("ls /proc/self/fd", then, sizeof(then)), 0);
	assert_string_equal(there, then);
	trainer_end(&t);
	fake_close(f);
	/* The scripted daemon in this process has a socket and two memfds of its own. */
	fake_lock(f);
	shm_unmap(&f->arena);
	shm_unmap(&f->shared);
	f->joined = false;
	fake_unlock(f);
	assert_int_equal(entries("/proc/self/fd"), before);
	fake_stop(f);
}

/* The library prints nothing, whatever fails. */
static void test_no_print(void **state)
{
	struct fake *f = start(*state != NULL);
	int fd = memfd_create("output", MFD_CLOEXEC), out = dup(1), err = dup(2);
	struct trainer t;
	struct stat st;

	fflush(NULL);
	dup2(fd, 1);
	dup2(fd, 2);
	session(f, &t);
	trainer_end(&t);
	(void)!shard_connect(&t.client, NULL);
	fflush(NULL);
	dup2(out, 1);
	dup2(err, 2);
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_size, 0);
	close(fd);
	close(out);
	close(err);
	fake_stop(f);
}

static void handlers(struct sigaction *a)
{
	memset(a, 0, 65 * sizeof(*a));
	for (int s = 1; s < 65; s++)
		(void)sigaction(s, NULL, &a[s]);
}

/* The library changes neither handlers nor the signal mask, and raises no SIGPIPE. */
static void test_signals(void **state)
{
	struct fake *f = start(*state != NULL);
	struct sigaction before[65], after[65];
	sigset_t mask, mask_after;
	struct trainer t;

	handlers(before);
	pthread_sigmask(SIG_SETMASK, NULL, &mask);
	/* The session also writes to a socket whose other end is gone. A SIGPIPE would end the
	 * test. */
	session(f, &t);
	handlers(after);
	pthread_sigmask(SIG_SETMASK, NULL, &mask_after);
	for (int s = 1; s < 65; s++) /* The kernel fills in only a part of a sigset_t. */
		assert_true(before[s].sa_handler == after[s].sa_handler &&
			    before[s].sa_flags == after[s].sa_flags &&
			    sigismember(&mask, s) == sigismember(&mask_after, s));
	trainer_end(&t);
	fake_stop(f);
}

struct fork_case {
	struct trainer *t;
	void *grad;
};

#define CHILD(x)                                                                                   \
	do {                                                                                       \
		if (!(x)) {                                                                        \
			fprintf(stderr, "child: %s: %s\n", #x, shard_error());                     \
			return 1;                                                                  \
		}                                                                                  \
	} while (0)

static int child(void *arg)
{
	struct fork_case *c = arg;
	struct trainer *t = c->t;
	struct shard_result r = SHARD_INIT(struct shard_result);
	struct shard_info info = SHARD_INIT(struct shard_info);
	struct shard_spec s;
	shard_model *m;
	unsigned char vec;
	uint64_t at = 0;
	uint32_t i;
	int created;
	float g = 0;

	trainer_spec(&s, SHARD_BF16, SHARD_BF16);
	/* The child has no copy of the arena. */
	CHILD(mincore(c->grad, 1, &vec) == -1 && errno == ENOMEM);
	CHILD(shard_progress(t->client) == SHARD_FORKED);
	CHILD(strstr(shard_error(), "parent process") != NULL);
	CHILD(shard_fd(t->client) == -1);
	CHILD(shard_define(t->client, &s, &m, &created) == SHARD_FORKED);
	CHILD(shard_tensors(t->model) == 0);
	CHILD(shard_tensor_info(t->model, 0, &info) == SHARD_FORKED);
	CHILD(shard_find(t->model, "wte", &i) == SHARD_FORKED);
	CHILD(shard_write(t->model, SHARD_MASTER, 0, 0, 1, SHARD_F32, &g) == SHARD_FORKED);
	CHILD(shard_seal(t->model, 0) == SHARD_FORKED);
	CHILD(shard_read(t->model, SHARD_MASTER, 0, 0, 1, SHARD_F32, &g, &at) == SHARD_FORKED);
	CHILD(shard_join(t->model, 0, 0, &t->world) == SHARD_FORKED);
	CHILD(shard_world_get(t->model, &t->world) == SHARD_FORKED);
	CHILD(shard_leave(t->model, 0) == SHARD_FORKED);
	CHILD(shard_begin(t->model, NULL, &t->step) == SHARD_FORKED);
	CHILD(shard_grad(t->model, 0) == NULL);
	CHILD(shard_push(t->model, 0, 0, 1, &g, SHARD_F32, SHARD_CAST, NULL) == SHARD_FORKED);
	CHILD(shard_push_none(t->model, 0) == SHARD_FORKED);
	CHILD(shard_commit(t->model, NULL) == SHARD_FORKED);
	CHILD(shard_vote_skip(t->model, "") == SHARD_FORKED);
	CHILD(shard_abandon(t->model, "") == SHARD_FORKED);
	CHILD(shard_result(t->model, 0, 0, &r) == SHARD_FORKED);
	CHILD(shard_image(t->model, 0) == NULL);
	CHILD(shard_pull(t->model, 0, 0, 1, 0, NULL, SHARD_F32, &at) == SHARD_FORKED);
	CHILD(shard_wait(t->model, 0, 0) == SHARD_FORKED);
	CHILD(shard_test(t->model, 0) == SHARD_FORKED);
	shard_interrupt(t->client);
	shard_detach(&t->model);
	shard_disconnect(&t->client);
	return 0;
}

/* In a forked child every call returns SHARD_FORKED, and the parent does not notice the child. */
static void test_fork(void **state)
{
	struct fake *f = start(*state != NULL);
	struct shard_result r = SHARD_INIT(struct shard_result);
	struct fork_case c;
	struct trainer t;

	trainer_join(&t, f->address, SHARD_BF16, SHARD_BF16);
	trainer_begin(&t);
	c.t = &t;
	c.grad = shard_grad(t.model, 0);
	proc_expect_exit(proc_fork(child, &c), 0, 10000);
	/* The parent's step goes on as if nothing had happened. */
	trainer_push_all(&t, 1);
	EXPECT(SHARD_OK, shard_commit(t.model, NULL));
	EXPECT(SHARD_OK, shard_result(t.model, 0, SHARD_DEFAULT, &r));
	step(&t);
	EXPECT(SHARD_OK, shard_leave(t.model, SHARD_DEFAULT));
	trainer_end(&t);
	fake_stop(f);
}

static int child_leaves(void *arg)
{
	struct trainer *t = arg;

	shard_detach(&t->model);
	shard_disconnect(&t->client);
	return 0;
}

/* A fork comes at any moment of the other threads' work. The child's copy of the client may be in
 * the middle of a frame, or locked, and the child must still be able to disconnect. */
static void test_fork_any_time(void **state)
{
	struct fake *f = start(*state != NULL);
	struct wire_head ping = {.op = OP_PING};
	struct trainer t;

	trainer_join(&t, f->address, SHARD_BF16, SHARD_BF16);
	for (int i = 0; i < 40; i++) {
		for (int k = 0; k < 50; k++)
			fake_send(f, &ping, NULL);
		proc_expect_exit(proc_fork(child_leaves, &t), 0, 10000);
		EXPECT(SHARD_OK, shard_progress(t.client));
	}
	step(&t);
	trainer_end(&t);
	fake_stop(f);
}

/* --- SHARD_GUARD --- */

static sigjmp_buf caught;

static void on_segv(int s)
{
	siglongjmp(caught, s);
}

/* With SHARD_GUARD=1 a write to a gradient that was pushed ends in SIGSEGV. */
static void test_guard(void **state)
{
	struct sigaction a = {.sa_handler = on_segv, .sa_flags = SA_NODEFER}, before;
	struct fake *f = start(*state != NULL);
	volatile int stopped = 0;
	struct trainer t;
	uint16_t *grad;

	setenv("SHARD_GUARD", "1", 1);
	trainer_join(&t, f->address, SHARD_BF16, SHARD_BF16);
	unsetenv("SHARD_GUARD");
	trainer_begin(&t);
	grad = shard_grad(t.model, 0);
	grad[0] = 1;
	EXPECT(SHARD_OK, shard_push(t.model, 0, 0, 3000, NULL, SHARD_BF16, 0, NULL));
	sigaction(SIGSEGV, &a, &before);
	if (sigsetjmp(caught, 1) == 0)
		*(volatile uint16_t *)grad = 2; /* A write after the push. */
	else
		stopped = 1;
	sigaction(SIGSEGV, &before, NULL);
	assert_true(stopped);
	for (uint32_t i = 1; i < TRAINER_TENSORS; i++)
		EXPECT(SHARD_OK, shard_push_none(t.model, i));
	EXPECT(SHARD_OK, shard_commit(t.model, NULL));
	trainer_begin(&t);
	*(volatile uint16_t *)grad = 2; /* In the next step the trainer may write again. */
	trainer_end(&t);
	fake_stop(f);
}

/* --- interrupts --- */

static shard_client *interrupted; /* For the signal handler. */

static void on_alarm(int s)
{
	(void)s;
	shard_interrupt(interrupted);
}

/* A signal handler may call shard_interrupt(). */
static void test_interrupt(void **state)
{
	struct fake *f = start(*state != NULL);
	struct shard_result r = SHARD_INIT(struct shard_result);
	struct sigaction a = {.sa_handler = on_alarm}, before;
	struct itimerval in = {.it_value.tv_usec = 50000};
	uint64_t began;
	struct trainer t;

	fake_lock(f);
	f->knobs.mute[OP_READY] = true;
	fake_unlock(f);
	trainer_join(&t, f->address, SHARD_BF16, SHARD_BF16);
	trainer_begin(&t);
	trainer_push_all(&t, 1);
	EXPECT(SHARD_OK, shard_commit(t.model, NULL));
	interrupted = t.client;
	sigaction(SIGALRM, &a, &before);
	began = clock_ns();
	setitimer(ITIMER_REAL, &in, NULL);
	EXPECT(SHARD_INTERRUPTED, shard_result(t.model, 0, pace_ms(10000), &r));
	assert_true(clock_ns() - began < pace_ns(5 * NS_PER_SEC));
	sigaction(SIGALRM, &before, NULL);
	/* The interrupt ended only a call that waited, and undid nothing. */
	EXPECT(SHARD_TIMEOUT, shard_result(t.model, 0, 0, &r));
	fake_await(f, OP_READY, 1);
	fake_result(f);
	EXPECT(SHARD_OK, shard_result(t.model, 0, pace_ms(10000), &r));
	trainer_end(&t);
	fake_stop(f);
}

/* --- what is linked --- */

/* The library uses no function that prints, ends the process, or changes its signals. */
static void test_symbols(void **state)
{
	static const char *const forbidden[] = {"exit",           "_exit",
						"quick_exit",     "abort",
						"printf",         "puts",
						"putchar",        "fprintf",
						"perror",         "__printf_chk",
						"__fprintf_chk",  "stdout",
						"stderr",         "signal",
						"sigaction",      "atexit",
						"pthread_atfork", "__assert_fail",
						"raise",          "kill",
						"system",         "__register_atfork"};
	char path[600], command[700], *text = malloc(1 << 20), *line, *save = NULL;
	bool on_request = false; /* What only shard_explain_faults() does. */
	uint32_t seen = 0;

	(void)state;
	proc_beside(path, sizeof(path), "libshard.a");
	snprintf(command, sizeof(command), "nm -u -P %s", path);
	assert_int_equal(run_text(command, text, 1 << 20), 0);
	for (line = strtok_r(text, "\n", &save); line != NULL; line = strtok_r(NULL, "\n", &save)) {
		line[strcspn(line, " ")] = 0;
		if (strchr(line, '[') != NULL)
			on_request = strstr(line, "[fault.o]") != NULL;
		if (on_request && (!strcmp(line, "raise") || !strcmp(line, "sigaction")))
			continue;
		seen++;
		for (size_t i = 0; i < NR(forbidden); i++)
			if (strcmp(line, forbidden[i]) == 0)
				fail_msg("libshard uses %s", line);
	}
	assert_true(seen > 50);
	free(text);
}

/* The public header compiles without warnings as C11 and as C++17. */
static void test_header(void **state)
{
	static const char *const commands[] = {
		"printf '#include <shard.h>\\nint f(void);\\nint f(void) { struct shard_world w = "
		"SHARD_INIT(struct shard_world); "
		"return !w.size; }\\n' |"
		" cc -std=c11 -Wall -Wextra -Wpedantic -Werror -Iinclude -fsyntax-only -x c - 2>&1",
		"printf '#include <shard.h>\\nint f() { shard_world w = SHARD_INIT(shard_world); "
		"return !w.size; }\\n' |"
		" c++ -std=c++17 -Wall -Wextra -Wpedantic -Werror -Iinclude -fsyntax-only -x c++ - "
		"2>&1"};
	char text[4096];

	(void)state;
	if (access("include/shard.h", R_OK) != 0 || system("command -v cc c++ >/dev/null") != 0)
		skip();
	for (size_t i = 0; i < NR(commands); i++)
		if (run_text(commands[i], text, sizeof(text)) != 0)
			fail_msg("%s", text);
}

/* The shared object exports only names of its API, and is small. */
static void test_shared_object(void **state)
{
	char path[600], command[1400], text[16384], *line, *save = NULL;
	struct stat st;

	(void)state;
	proc_beside(path, sizeof(path), "libshard.so.0");
	if (access(path, R_OK) != 0)
		skip(); /* Only `make all` builds it. */
	snprintf(command, sizeof(command), "nm -D --defined-only -P %s", path);
	assert_int_equal(run_text(command, text, sizeof(text)), 0);
	for (line = strtok_r(text, "\n", &save); line != NULL; line = strtok_r(NULL, "\n", &save))
		if (strncmp(line, "SHARD_", 6) != 0) /* Not the name of a version. */
			assert_memory_equal(line, "shard_", 6);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
	snprintf(command, sizeof(command), "strip -o %s.stripped %s", path, path);
	assert_int_equal(run_text(command, text, sizeof(text)), 0);
	strcat(path, ".stripped");
	assert_int_equal(stat(path, &st), 0);
	unlink(path);
	assert_in_range(st.st_size, 1, 236 << 10);
#else
	(void)st;
#endif
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		OVER_BOTH(test_threads),        OVER_BOTH(test_descriptors),
		OVER_BOTH(test_no_print),       OVER_BOTH(test_signals),
		OVER_BOTH(test_fork),           OVER_BOTH(test_fork_any_time),
		OVER_BOTH(test_guard),          OVER_BOTH(test_interrupt),
		cmocka_unit_test(test_symbols), cmocka_unit_test(test_shared_object),
		cmocka_unit_test(test_header),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
