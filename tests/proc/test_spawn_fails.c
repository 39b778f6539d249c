/* SPDX-License-Identifier: Apache-2.0 */
/* Tests what can go wrong with spawn:NAME, and the sentence for each case: there is no program, it
 * ends at once or says nothing, the budget is too small, a lock is held, or a folder belongs to
 * another user. */
#include "base/check.h"
#include "lib/proc.h"
#include "lib/spawned.h"
#include "lib/trainer.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

static void test_program(void **state)
{
	char path[SPAWNED_PATH], shardd[600];
	shard_client *c;

	(void)state;
	CHECK(setenv("SHARD_DAEMON", "/nonexistent/shardd", 1) == 0);
	EXPECT(SHARD_NOT_FOUND, spawned_try("spawn:p", 5000));
	EXPECT_TEXT("SHARD_DAEMON = /nonexistent/shardd cannot be run (No such file or directory)");
	spawned_put("plain", "no program", 0644);
	spawned_path(path, "plain");
	CHECK(setenv("SHARD_DAEMON", path, 1) == 0);
	EXPECT(SHARD_NOT_FOUND, spawned_try("spawn:p", 5000));
	EXPECT_TEXT("cannot be run (Permission denied)");
	CHECK(chmod(path, 0755) == 0);
	EXPECT(SHARD_SYSTEM, spawned_try("spawn:p", 5000));
	EXPECT_TEXT("plain cannot be run: Exec format error");
	CHECK(setenv("SHARD_DAEMON", getenv("XDG_RUNTIME_DIR"), 1) == 0);
	EXPECT(SHARD_NOT_FOUND, spawned_try("spawn:p", 5000));
	unsetenv("SHARD_DAEMON");
	char *old = strdup(getenv("PATH"));
	CHECK(old);
	if (access("/usr/local/bin/shardd", F_OK) != 0 &&
	    access("/usr/local/libexec/shardd/shardd", F_OK) != 0) {
		CHECK(setenv("PATH", "/nonexistent:/usr", 1) == 0);
		EXPECT(SHARD_NOT_FOUND, spawned_try("spawn:p", 5000));
		EXPECT_TEXT("SHARD_DAEMON is not set, it is not installed beside the library, not "
			    "in /");
		EXPECT_TEXT("and not in PATH: install it, or set SHARD_DAEMON to its path");
		proc_beside(shardd, sizeof(shardd), "shardd");
		*strrchr(shardd, '/') = 0;
		CHECK(setenv("PATH", shardd, 1) == 0);
		c = spawned_connect("spawn:p");
		shard_disconnect(&c);
	}
	CHECK(setenv("PATH", old, 1) == 0);
	free(old);
}

/* The folder belongs to this user, and the process that listens in it to another user. It was there
 * before or came by mistake. */
static void test_stranger(void **state)
{
	struct sockaddr_un at = {.sun_family = AF_UNIX};
	char path[SPAWNED_PATH];
	int fd;

	(void)state;
	if (geteuid() != 0)
		skip();
	spawned_path(path, "shardd");
	CHECK(mkdir(path, 0700) == 0 || errno == EEXIST);
	spawned_path(path, "shardd/stranger");
	CHECK(mkdir(path, 0700) == 0);
	spawned_path(path, "shardd/stranger/shardd.sock");
	CHECK(strlen(path) < sizeof(at.sun_path));
	strcpy(at.sun_path, path);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof(at)) == 0);
	CHECK(seteuid(12345) == 0 && listen(fd, 8) == 0 &&
	      seteuid(0) == 0); /* SO_PEERCRED then says this user. */
	EXPECT(SHARD_DENIED, spawned_try("spawn:stranger", 5000));
	EXPECT_TEXT("is answered by a process of user 12345, this process runs as 0");
	close(fd);
}

static void test_open_runtime(void **state)
{
	char path[SPAWNED_PATH];

	(void)state;
	spawned_path(path, "");
	CHECK(chmod(path, 0777) == 0);
	EXPECT(SHARD_DENIED, spawned_try("spawn:open", 5000));
	EXPECT_TEXT("has mode 0777, so that others may change what is in it");
	CHECK(chmod(path, 0700) == 0);
}

static void test_last_words(void **state)
{
	pid_t pids[SPAWNED_MAX];
	char path[SPAWNED_PATH];

	(void)state;
	CHECK(setenv("SHARD_MEMORY", "lots", 1) == 0);
	EXPECT(SHARD_SYSTEM, spawned_try("spawn:w", 5000));
	EXPECT_TEXT("ended at once: shardd: SHARD_MEMORY in the environment: [daemon] memory = "
		    "lots: choose auto or a size");
	CHECK(setenv("SHARD_MEMORY", "64MiB", 1) == 0);
	CHECK(setenv("SHARD_DAEMON", "/bin/false", 1) == 0);
	EXPECT(SHARD_SYSTEM, spawned_try("spawn:w", 5000));
	EXPECT_TEXT("/bin/false ended at once: without a word");
	spawned_put("sleeper", "#!/bin/sh\necho $$ >> ${0%/*}/starts\nexec sleep 60\n", 0755);
	spawned_path(path, "sleeper");
	CHECK(setenv("SHARD_DAEMON", path, 1) == 0);
	EXPECT(SHARD_TIMEOUT, spawned_try("spawn:w", 500));
	EXPECT_TEXT("was started, but has not answered in 0.");
	int n = spawned_started(pids);
	assert_true(n > 0);
	CHECK(kill(pids[n - 1], SIGKILL) == 0);
}

static void test_budget(void **state)
{
	static const struct shard_tensor big = {.name = "w", .ndim = 1, .shape = {1 << 20}};
	struct shard_spec s = SHARD_INIT(struct shard_spec);
	shard_model *m;
	shard_client *c;
	int created;

	(void)state;
	CHECK(setenv("SHARD_MEMORY", "1MiB", 1) == 0);
	c = spawned_connect("spawn:b");
	s.name = "big";
	s.tensors = &big;
	s.tensors_nr = 1;
	s.image = s.grad = SHARD_BF16;
	EXPECT(SHARD_BUDGET, shard_define(c, &s, &m, &created));
	EXPECT_TEXT("\"big\" needs ");
	EXPECT_TEXT("SHARD_MEMORY=SIZE, in the environment of the process that starts spawn:b, "
		    "raises it");
	shard_disconnect(&c);
}

/* Another process holds the lock and does not go on. */
static void test_locked(void **state)
{
	char path[SPAWNED_PATH];
	shard_client *c;
	int fd;

	(void)state;
	spawned_path(path, "shardd");
	CHECK(mkdir(path, 0700) == 0);
	spawned_path(path, "shardd/l");
	CHECK(mkdir(path, 0700) == 0);
	spawned_path(path, "shardd/l/lock");
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	CHECK(fd >= 0 && flock(fd, LOCK_EX) == 0);
	EXPECT(SHARD_TIMEOUT, spawned_try("spawn:l", 100));
	EXPECT_TEXT("another process has kept ");
	close(fd);
	c = spawned_connect("spawn:l"); /* A lock file that nobody holds does not matter. */
	shard_disconnect(&c);
}

static void test_folder(void **state)
{
	char path[SPAWNED_PATH], other[SPAWNED_PATH];

	(void)state;
	spawned_path(path, "shardd");
	CHECK(mkdir(path, 0700) == 0 && chmod(path, 0755) == 0);
	EXPECT(SHARD_DENIED, spawned_try("spawn:f", 5000));
	EXPECT_TEXT("chmod 700");
	CHECK(chmod(path, 0700) == 0);
	if (geteuid() == 0) {
		CHECK(chown(path, 65534, 65534) == 0);
		EXPECT(SHARD_DENIED, spawned_try("spawn:f", 5000));
		EXPECT_TEXT("belongs to user 65534, this process runs as 0");
	}
	CHECK(rmdir(path) == 0);
	spawned_path(other, "elsewhere");
	CHECK(mkdir(other, 0700) == 0 && symlink(other, path) == 0);
	EXPECT(SHARD_DENIED, spawned_try("spawn:f", 5000));
	EXPECT_TEXT("is no folder but a link: remove it");
	CHECK(unlink(path) == 0 && mkdir(path, 0700) == 0);
	spawned_path(path, "shardd/f");
	CHECK(symlink(other, path) == 0);
	EXPECT(SHARD_DENIED, spawned_try("spawn:f", 5000));
	CHECK(unlink(path) == 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, spawned_begin, spawned_end)
	static const struct CMUnitTest tests[] = {
		TEST(test_program),    TEST(test_stranger), TEST(test_open_runtime),
		TEST(test_last_words), TEST(test_budget),   TEST(test_locked),
		TEST(test_folder),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
