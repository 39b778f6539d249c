/* SPDX-License-Identifier: Apache-2.0 */
/* Tests spawn:NAME with real daemons. Processes that connect at once share one daemon, which ends
 * after the last of them. After that or after a kill -9 the next one starts a new daemon. The
 * process that started it sees nothing of it. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/crew.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/spawned.h"
#include "lib/tool.h"
#include "lib/trainer.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { RANKS = 8, LAST = 6 };

/* --- many at once --- */

struct rank {
	uint32_t rank;
	int gate;
};

static int race(void *arg)
{
	struct crew *crew = calloc(1, sizeof(*crew));
	struct rank *r = arg;
	shard_client *stays;
	char byte;

	CHECK(crew && read(r->gate, &byte, 1) == 0); /* All begin at once. */
	crew_init(crew, "race");
	for (int i = 0; i < RANKS; i++)
		crew_add(crew, "spawn:race", 0);
	/* It stays connected so that the daemon is there for the check. */
	stays = crew_connect("spawn:race");
	crew_run(crew, r->rank, LAST);
	if (r->rank == 0)
		crew_check(crew, "spawn:race", LAST);
	shard_disconnect(&stays);
	free(crew);
	return 0;
}

static void test_race(void **state)
{
	struct rank rank[RANKS];
	pid_t pid[RANKS], daemons[SPAWNED_MAX];
	char path[SPAWNED_PATH];
	int gate[2];

	(void)state;
	CHECK(pipe2(gate, O_CLOEXEC) == 0);
	for (uint32_t i = 0; i < RANKS; i++) {
		rank[i] = (struct rank){i, gate[0]};
		pid[i] = fork();
		CHECK(pid[i] >= 0);
		if (pid[i] == 0) {
			close(gate[1]);
			_exit(race(&rank[i]));
		}
	}
	close(gate[0]);
	close(gate[1]);
	for (int i = 0; i < RANKS; i++)
		proc_expect_exit(pid[i], 0, 30000);
	assert_int_equal(spawned_started(daemons), 1);
	spawned_must_end(daemons[0]); /* It ends after the last connection. */
	spawned_path(path, "shardd/race/shardd.sock");
	assert_int_equal(access(path, F_OK), -1);
}

static void test_names(void **state)
{
	shard_client *a = spawned_connect("spawn:a"), *b = spawned_connect("spawn:b"),
		     *again = spawned_connect("spawn:a");
	pid_t pids[SPAWNED_MAX];
	char words[300];

	(void)state;
	assert_int_equal(spawned_started(pids), 2);
	assert_int_not_equal(pids[0], pids[1]);
	snprintf(words, sizeof(words), "--address spawn:b status");
	tool_expect(0, "node local", "shardctl", words);
	/* A tool that only looks starts nothing. */
	tool_expect(3, "shardd/c/shardd.sock", "shardctl", "--address spawn:c status");
	tool_expect(2, "a name has", "shardctl", "--address spawn:C status");
	assert_int_equal(spawned_started(pids), 2);
	shard_disconnect(&a);
	shard_disconnect(&b);
	shard_disconnect(&again);
	CHECK(setenv("SHARD_ADDRESS", "spawn:d", 1) == 0);
	EXPECT(SHARD_OK, shard_connect(&a, NULL));
	unsetenv("SHARD_ADDRESS");
	shard_disconnect(&a);
	assert_int_equal(spawned_started(pids), 3);
}

/* --- ends --- */

static void test_kill(void **state)
{
	pid_t pids[SPAWNED_MAX];
	struct trainer t;
	char path[SPAWNED_PATH];

	(void)state;
	trainer_join(&t, "spawn:k", SHARD_F32, SHARD_F32);
	assert_true(t.created);
	assert_int_equal(spawned_started(pids), 1);
	CHECK(kill(pids[0], SIGKILL) == 0);
	spawned_must_end(pids[0]);
	EXPECT(SHARD_CLOSED, shard_progress(t.client));
	spawned_path(path, "shardd/k/shardd.sock");
	/* The socket is stale, and the model is gone with the daemon. */
	assert_int_equal(access(path, F_OK), 0);
	shard_disconnect(&t.client);
	trainer_join(&t, "spawn:k", SHARD_F32, SHARD_F32);
	assert_true(t.created);
	assert_int_equal(spawned_started(pids), 2);
	trainer_begin(&t);
	trainer_push_all(&t, 1);
	EXPECT(SHARD_OK, shard_commit(t.model, NULL));
	EXPECT(SHARD_OK,
	       shard_result(t.model, 0, pace_ms(10000), &SHARD_INIT(struct shard_result)));
	trainer_end(&t);
}

/* The daemon does not end while a process that may be about to connect holds the lock. It ends
 * after that. */
static void test_hold(void **state)
{
	struct pollfd p = {.events = POLLIN};
	pid_t pids[SPAWNED_MAX];
	shard_client *c;
	char path[SPAWNED_PATH];
	int fd;

	(void)state;
	CHECK(setenv("SHARD_LINGER", "20ms", 1) == 0);
	c = spawned_connect("spawn:h");
	assert_int_equal(spawned_started(pids), 1);
	spawned_path(path, "shardd/h/lock");
	fd = open(path, O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0 && flock(fd, LOCK_EX) == 0);
	shard_disconnect(&c);
	p.fd = (int)syscall(SYS_pidfd_open, pids[0], 0);
	CHECK(p.fd >= 0);
	assert_int_equal(poll(&p, 1, 300), 0);
	c = spawned_connect("spawn:h"); /* Where there is a daemon, no lock is needed. */
	close(fd);
	assert_int_equal(poll(&p, 1, 100), 0);
	shard_disconnect(&c);
	assert_int_equal(poll(&p, 1, pace_ms(SPAWNED_ENDS_MS)), 1);
	close(p.fd);
	assert_int_equal(spawned_started(pids), 1);
}

/* A client connects while the daemon is about to end. Either this daemon serves it or a new one
 * does, and it is never refused. */
static void test_last_moment(void **state)
{
	pid_t pids[SPAWNED_MAX];
	int n;

	(void)state;
	CHECK(setenv("SHARD_LINGER", "16ms", 1) == 0); /* The daemon checks it every 2 ms. */
	for (int i = 0; i < 50; i++) {
		shard_client *c = spawned_connect("spawn:moment");

		shard_disconnect(&c);
		/* The wait makes connections come at all moments around its end. */
		(void)poll(NULL, 0, 12 + i % 10);
	}
	n = spawned_started(pids);
	assert_in_range(n, 2, 50); /* Some daemons were new. */
	for (int i = 0; i + 1 < n; i++)
		spawned_must_end(pids[i]); /* Two daemons do not live beside each other for long. */
}

/* The same from several processes. A client that got in can use the daemon. */
static int come_and_go(void *arg)
{
	unsigned random = *(const unsigned *)arg;
	struct shard_spec s;

	trainer_spec(&s, SHARD_F32, SHARD_F32);
	for (int i = 0; i < 60; i++) {
		shard_client *c = crew_connect("spawn:crowd");
		shard_model *m;
		int created;

		MUST(shard_define(c, &s, &m, &created));
		shard_disconnect(&c);
		random = random * 1103515245 + 12345;
		/* This makes it connect at all moments. */
		(void)poll(NULL, 0, (int)(random >> 16) % 45);
	}
	return 0;
}

static void test_crowd(void **state)
{
	unsigned seeds[4] = {1, 2, 3, 4};
	pid_t pid[4];

	(void)state;
	CHECK(setenv("SHARD_LINGER", "10ms", 1) == 0);
	for (int i = 0; i < 4; i++)
		pid[i] = proc_fork(come_and_go, &seeds[i]);
	for (int i = 0; i < 4; i++)
		proc_expect_exit(pid[i], 0, 30000);
}

/* --- what the host sees --- */

static volatile sig_atomic_t children_ended;

static void on_child(int number)
{
	(void)number;
	children_ended = children_ended + 1;
}

static int wait_for_end(void *arg)
{
	char byte;

	(void)arg;
	pause();
	return read(0, &byte, 1) < 0;
}

static void check_descriptors(pid_t pid)
{
	char path[300], name[32], target[300], log[200];
	struct dirent *entry;
	DIR *fds;

	spawned_path(log, "shardd/clean/log");
	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	fds = opendir(path);
	CHECK(fds);
	while ((entry = readdir(fds)) != NULL) {
		ssize_t n;

		snprintf(name, sizeof(name), "%.20s", entry->d_name);
		snprintf(path, sizeof(path), "/proc/%d/fd/%s", (int)pid, name);
		n = readlink(path, target, sizeof(target) - 1);
		if (name[0] == '.' || n < 0)
			continue;
		target[n] = 0;
		if (strcmp(name, "0") == 0 || strcmp(name, "1") == 0)
			assert_string_equal(target, "/dev/null");
		else if (strcmp(name, "2") == 0)
			assert_string_equal(target, log);
		else if (strncmp(target, "pipe:", 5) == 0) /* The loop has a pipe for signals. */
			assert_true(atoi(name) < 30);
		else if (strstr(target, "/inherited") || strstr(target, "/clean/lock"))
			fail_msg("shardd has descriptor %s: %s", name, target);
	}
	closedir(fds);
}

static void test_host(void **state)
{
	struct sigaction act = {.sa_handler = on_child}, now;
	pid_t mine, pids[SPAWNED_MAX];
	shard_client *c;
	char path[SPAWNED_PATH];
	int fd, pipes[2];

	(void)state;
	spawned_path(path, "inherited");
	/* It lacks O_CLOEXEC, as descriptors of other programs do. */
	fd = open(path, O_RDWR | O_CREAT, 0600);
	CHECK(fd >= 0 && pipe(pipes) == 0 && dup2(pipes[0], 40) == 40 && dup2(pipes[1], 41) == 41 &&
	      dup2(fd, 42) == 42);
	mine = proc_fork(wait_for_end, NULL);
	CHECK(sigaction(SIGCHLD, &act, NULL) == 0);
	signal(SIGUSR1, SIG_IGN);
	c = spawned_connect("spawn:clean");
	assert_int_equal(spawned_started(pids), 1);
	assert_int_equal(children_ended, 0);
	/* The only child is `mine`, which lives. */
	assert_int_equal(waitpid(-1, NULL, WNOHANG), 0);
	CHECK(sigaction(SIGCHLD, NULL, &now) == 0 && now.sa_handler == on_child);
	assert_int_equal(getsid(pids[0]), pids[0]);
	check_descriptors(pids[0]);
	/* SIGUSR1 is ignored here and not in the daemon, so it ends. */
	CHECK(kill(pids[0], SIGUSR1) == 0);
	spawned_must_end(pids[0]);
	assert_int_equal(children_ended, 0);
	assert_int_equal(waitpid(-1, NULL, WNOHANG | __WALL), 0);
	shard_disconnect(&c);
	signal(SIGCHLD, SIG_IGN);
	c = spawned_connect("spawn:clean");
	assert_int_equal(spawned_started(pids), 2);
	shard_disconnect(&c);
	signal(SIGUSR1, SIG_DFL);
	signal(SIGCHLD, SIG_DFL);
	kill(mine, SIGKILL);
	waitpid(mine, NULL, 0);
	for (int i = 40; i < 43; i++)
		close(i);
	close(fd);
	close(pipes[0]);
	close(pipes[1]);
}

/* Connects from a process that has closed its first three descriptors. */
static int without_three(void *arg)
{
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	shard_client *c;

	(void)arg;
	for (int i = 0; i < 3; i++)
		close(i);
	o.address = "spawn:clean";
	if (shard_connect(&c, &o) != SHARD_OK)
		return 1;
	shard_disconnect(&c);
	return 0;
}

static void test_closed(void **state)
{
	pid_t pids[SPAWNED_MAX];
	char path[SPAWNED_PATH], line[300] = "";
	FILE *log;

	(void)state;
	/* This gives the test time to look at its descriptors. */
	CHECK(setenv("SHARD_LINGER", "2s", 1) == 0);
	CHECK(setenv("SHARD_TYPO", "1", 1) == 0);
	proc_expect_exit(proc_fork(without_three, NULL), 0, 10000);
	assert_int_equal(spawned_started(pids), 1);
	check_descriptors(pids[0]);
	spawned_path(path, "shardd/clean/log");
	log = fopen(path, "re");
	CHECK(log != NULL);
	do
		CHECK(fgets(line, sizeof(line), log));
	while (strstr(line, "event=start ") == NULL);
	assert_non_null(strstr(line, " listen=off "));
	CHECK(fgets(line, sizeof(line), log) && fclose(log) == 0);
	assert_non_null(
		strstr(line, "level=warn node=local event=unknown_variables names=SHARD_TYPO "));
	unsetenv("SHARD_TYPO");
	CHECK(kill(pids[0], SIGTERM) == 0);
}

/* A daemon that nobody gave another time waits for minutes, so that a job which crashed and starts
 * again finds its model. */
static void test_returns(void **state)
{
	char path[64], words[1000];
	pid_t pids[SPAWNED_MAX];
	shard_client *c;
	size_t n;
	FILE *f;

	(void)state;
	unsetenv("SHARD_LINGER");
	c = spawned_connect("spawn:returns");
	shard_disconnect(&c);
	assert_int_equal(spawned_started(pids), 1);
	snprintf(path, sizeof(path), "/proc/%d/cmdline", (int)pids[0]);
	CHECK((f = fopen(path, "re")) != NULL);
	n = fread(words, 1, sizeof(words) - 1, f);
	fclose(f);
	for (size_t i = 0; i < n; i++)
		if (words[i] == 0)
			words[i] = ' ';
	words[n] = 0;
	assert_non_null(strstr(words, " --linger 5min "));
	CHECK(kill(pids[0], SIGTERM) == 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, spawned_begin, spawned_end)
	static const struct CMUnitTest tests[] = {
		TEST(test_race),        TEST(test_names),  TEST(test_kill),
		TEST(test_last_moment), TEST(test_crowd),  TEST(test_hold),
		TEST(test_host),        TEST(test_closed), TEST(test_returns),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
