// SPDX-License-Identifier: Apache-2.0
/* Tests that a start that fails leaves nothing: no state folder, no count in it, and no folder for
 * the socket. A start that succeeds makes the socket's folder, and only that one. */
#include "lib/ports.h"
#include "lib/proc.h"
#include "lib/tool.h"

#include "base/check.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static char dir[64];

static int begin(void **state)
{
	(void)state;
	strcpy(dir, "/tmp/shard-start-XXXXXX");
	return mkdtemp(dir) != NULL ? 0 : -1;
}

static int end(void **state)
{
	char command[100];

	(void)state;
	snprintf(command, sizeof(command), "rm -rf %s", dir);
	return system(command);
}

static bool there(const char *name)
{
	char path[128];
	struct stat st;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	return lstat(path, &st) == 0;
}

/* Runs shardd. It ends by itself a moment after its start, because nobody connects. */
static void shardd(int rc, const char *text, const char *socket, unsigned http)
{
	char words[600];

	snprintf(words, sizeof(words),
		 "--config /dev/null --node a --listen off --state %s/state --socket %s/%s "
		 "--linger 50ms --set "
		 "daemon.http=127.0.0.1:%u "
		 "--set daemon.memory=64MiB --set daemon.warm_restart=off",
		 dir, dir, socket, http);
	tool_expect(rc, text, "shardd", words);
}

#define FIRST "--config /dev/null --node a --listen off --state %s/state --socket %s/s "

/* What is to copy checkpoints is there, and can be run. */
static void test_hook(void **state)
{
	char words[400], text[200];

	(void)state;
	snprintf(words, sizeof(words), FIRST "--set daemon.checkpoint_hook=%s/hook", dir, dir, dir);
	snprintf(text, sizeof(text), "[daemon] checkpoint_hook = %s/hook: cannot be run by uid %u",
		 dir, (unsigned)geteuid());
	tool_expect(4, text, "shardd", words);
	snprintf(words, sizeof(words), FIRST "--set daemon.prune_copied_only=yes", dir, dir);
	tool_expect(4, "nothing copies checkpoints, so none would ever be removed", "shardd",
		    words);
	assert_false(there("state"));
}

static void starts(char bytes[64])
{
	char path[128];
	FILE *f;

	memset(bytes, 0, 64);
	snprintf(path, sizeof(path), "%s/state/incarnation", dir);
	f = fopen(path, "re");
	CHECK(f != NULL && fread(bytes, 1, 64, f) > 0);
	fclose(f);
}

static void test_litter(void **state)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t bytes = sizeof(at);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	char before[64], after[64];

	(void)state;
	CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof(at)) == 0 && listen(fd, 1) == 0);
	CHECK(getsockname(fd, (struct sockaddr *)&at, &bytes) == 0);
	shardd(1, "deeper", "run/deeper/shardd.sock", ports_take());
	assert_false(there("state") || there("run"));
	shardd(1, "[daemon] http", "run/shardd.sock", ntohs(at.sin_port)); /* The port is taken. */
	assert_false(there("state") || there("run"));
	shardd(0, "event=start", "run/shardd.sock", ports_take());
	assert_true(there("state") && there("run"));
	starts(before);
	shardd(1, "[daemon] http", "run/shardd.sock", ntohs(at.sin_port));
	starts(after);
	assert_memory_equal(before, after, sizeof(before));
	assert_true(there("run"));
	close(fd);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_litter, begin, end),
		cmocka_unit_test_setup_teardown(test_hook, begin, end)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
