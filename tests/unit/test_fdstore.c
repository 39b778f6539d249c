/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the stand-in for a service manager, against libsystemd's own calls where libsystemd is
 * installed. What is stored comes back by name, newest first, close-on-exec or not as systemd does
 * it. The same file stored twice is kept once, too many are refused, and a barrier is answered. */
#include "base/check.h"
#include "lib/fdstore.h"
#include "lib/frames.h"
#include "lib/proc.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#ifdef SHARD_SYSTEMD
#include <systemd/sd-daemon.h>

static char dir[64], path[80];

static int setup(void **state)
{
	strcpy(dir, "/tmp/shard-fdstore-XXXXXX");
	CHECK(mkdtemp(dir) != NULL);
	snprintf(path, sizeof(path), "%.60s/notify", dir);
	*state = fdstore_start(path, 4);
	return 0;
}

static int teardown(void **state)
{
	struct fdstore *s = *state;

	fdstore_stop(&s);
	unsetenv("NOTIFY_SOCKET");
	CHECK(rmdir(dir) == 0);
	return 0;
}

static int memory(char c)
{
	int fd = memfd_create("piece", MFD_CLOEXEC);

	CHECK(fd >= 0 && write(fd, &c, 1) == 1);
	return fd;
}

static void tell(const char *text, const int *fds, unsigned nr)
{
	assert_true(sd_pid_notify_with_fds(0, 0, text, fds, nr) > 0);
	assert_true(sd_notify_barrier(0, 5000000) > 0);
}

/* A stand-in that has come to its end leaves nothing behind. */
static int service_of_two(void *arg)
{
	int fd[2] = {memory('a'), memory('b')};

	fdstore_child(arg);
	tell("FDSTORE=1\nFDNAME=one", &fd[0], 1);
	tell("FDSTORE=1\nFDNAME=two", &fd[1], 1);
	tell("READY=1\nSTATUS=here", NULL, 0);
	return 0;
}

static int service_again(void *arg)
{
	char **names = NULL, c;
	int n;

	fdstore_child(arg);
	n = sd_listen_fds_with_names(1, &names);
	if (n != 2 || strcmp(names[0], "two") != 0 || strcmp(names[1], "one") != 0)
		return 1;
	for (int i = 0; i < n; i++)
		if (pread(SD_LISTEN_FDS_START + i, &c, 1, 0) != 1 || c != "ba"[i] ||
		    fcntl(SD_LISTEN_FDS_START + i, F_GETFD) != FD_CLOEXEC)
			return 2;
	tell("FDSTOREREMOVE=1\nFDNAME=two", NULL, 0);
	return 0;
}

static void test_comes_back(void **state)
{
	struct fdstore *s = *state;
	char name[FDSTORE_NAME], c;
	int fd;

	proc_expect_exit(proc_fork(service_of_two, s), 0, 10000);
	assert_int_equal(fdstore_count(s), 2);
	assert_true(fdstore_ready_ns(s, 0) > 0);
	fdstore_begin(s);
	assert_true(fdstore_ready_ns(s, 0) == 0);
	proc_expect_exit(proc_fork(service_again, s), 0, 10000);
	assert_int_equal(fdstore_count(s), 1);
	fdstore_name(s, 0, name);
	assert_string_equal(name, "one");
	fd = fdstore_fd(s, "one");
	assert_true(fd >= 0 && pread(fd, &c, 1, 0) == 1 && c == 'a');
	close(fd);
	assert_int_equal(fdstore_fd(s, "two"), -1);
}

static void test_rules(void **state)
{
	struct fdstore *s = *state;
	uint32_t before = frames_open_fds();
	int fd[6], again;

	setenv("NOTIFY_SOCKET", path, 1);
	for (int i = 0; i < 6; i++)
		fd[i] = memory('c');
	again = fcntl(fd[0], F_DUPFD_CLOEXEC, 0);
	tell("FDSTORE=1", fd, 1);
	tell("FDSTORE=1\nFDNAME=again", &again, 1); /* It is there. */
	close(again);
	assert_int_equal(fdstore_count(s), 1);
	again = fdstore_fd(s, "stored"); /* It has no name. */
	assert_true(again >= 0);
	close(again);
	tell("FDSTORE=1\nFDNAME=a:b", &fd[1], 1); /* This is no name. */
	tell("FDSTORE=1\nFDNAME=x", &fd[2], 4);
	assert_int_equal(fdstore_count(s), 4);
	assert_int_equal(fdstore_refused(s), 2);
	fdstore_put(s, "y", memory('d'));
	assert_int_equal(fdstore_refused(s), 3);
	tell("STATUS=nothing\nFDNAME=x", fd, 6); /* It was stored for nothing and is closed. */
	assert_int_equal(frames_open_fds(), before + 6 + 4);
	tell("FDSTOREREMOVE=1\nFDNAME=x", NULL, 0);
	assert_int_equal(fdstore_count(s), 2);
	assert_int_equal(fdstore_forget(s, NULL), 2);
	for (int i = 0; i < 6; i++)
		close(fd[i]);
	assert_int_equal(frames_open_fds(), before);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_comes_back, setup, teardown),
		cmocka_unit_test_setup_teardown(test_rules, setup, teardown),
	};

	return cmocka_run_group_tests_name("fdstore", tests, NULL, NULL);
}
#else
int main(void)
{
	print_message("built without libsystemd: nothing to hold it against\n");
	return 0;
}
#endif
