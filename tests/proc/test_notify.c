// SPDX-License-Identifier: Apache-2.0
/* Tests what a service manager hears. The test listens on its socket. The daemon says ready when a
 * trainer can connect, and a status that follows the models at most once a second. The watchdog is
 * silent while the process does not run. Around each SIGHUP come reloading and ready, with a
 * changed, a wrong and a missing file. Stopping comes last. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/drill.h"
#include "lib/fdstore.h"
#include "lib/pace.h"
#include "lib/tool.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define SGD         "optimizer=sgd lr=1 chunk_elems=1024 timeout=20s min_world=1 max_world=1"
#define WATCHDOG_MS 800

static struct { /* The service manager. */
	int fd;
	char dir[64], text[2048];
	uint64_t at_ns;
} manager;

static int setup(void **state)
{
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	char us[32];

	strcpy(manager.dir, "/tmp/shard-notify-XXXXXX");
	CHECK(mkdtemp(manager.dir) != NULL);
	snprintf(un.sun_path, sizeof(un.sun_path), "%.60s/socket", manager.dir);
	manager.fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	CHECK(manager.fd >= 0 && bind(manager.fd, (struct sockaddr *)&un, sizeof(un)) == 0);
	snprintf(us, sizeof(us), "%d", WATCHDOG_MS * 1000);
	setenv("NOTIFY_SOCKET", un.sun_path, 1);
	setenv("WATCHDOG_USEC", us, 1);
	unsetenv("WATCHDOG_PID");
	return drill_setup(state);
}

static int teardown(void **state)
{
	char path[80];

	snprintf(path, sizeof(path), "%.60s/socket", manager.dir);
	close(manager.fd);
	unlink(path);
	rmdir(manager.dir);
	unsetenv("NOTIFY_SOCKET");
	unsetenv("WATCHDOG_USEC");
	return drill_teardown(state);
}

/* The next message within ms. False: there was none. */
static bool heard(int ms)
{
	struct pollfd p = {.fd = manager.fd, .events = POLLIN};
	ssize_t n;

	if (poll(&p, 1, ms) != 1)
		return false;
	n = recv(manager.fd, manager.text, sizeof(manager.text) - 1, 0);
	CHECK(n >= 0);
	manager.text[n] = 0;
	manager.at_ns = clock_ns();
	return true;
}

/* Waits for a message with `part`. What comes before it must be of the watchdog, or a status. */
static void hears(const char *part)
{
	uint64_t by = pace_by(10);

	while (clock_ns() < by && heard(10000)) {
		if (strstr(manager.text, part) != NULL)
			return;
		if (strcmp(manager.text, "WATCHDOG=1") != 0 &&
		    strncmp(manager.text, "STATUS=", 7) != 0)
			break;
	}
	fail_msg("\"%s\" was not said; the last word was \"%s\"", part, manager.text);
}

static bool in_log(struct cluster *c, const char *part)
{
	char *text = cluster_log(c, 0);
	bool in = strstr(text, part) != NULL;

	free(text);
	return in;
}

static void logged(struct cluster *c, const char *part, bool want)
{
	char *text = cluster_log(c, 0);

	if ((strstr(text, part) != NULL) != want)
		fail_msg("the log %s \"%s\":\n%s", want ? "lacks" : "has", part, text);
	free(text);
}

static struct cluster *started(struct drill_yard *y)
{
	y->cluster = cluster_make(1, NULL, NULL);
	cluster_spawn(y->cluster, 0);
	hears("READY=1\n");
	return y->cluster;
}

static void ended(struct drill_yard *y)
{
	cluster_stop(y->cluster);
	y->cluster = NULL;
}

static void test_ready(void **state)
{
	struct drill_yard *y = *state;
	struct cluster *c = started(y);
	struct drill *t;

	drill_text(manager.text, "STATUS=nodes 1 of 1, no models");
	t = drill_new(y, c->node[0].unix_address); /* It can connect at once. */
	drill_end(t);
	cluster_signal(c, 0, SIGTERM);
	hears("STOPPING=1");
	drill_text(manager.text, "SIGTERM");
	assert_int_equal(cluster_wait(c, 0, 10000), 0);
	while (heard(0))
		assert_string_equal(manager.text, "WATCHDOG=1");
	ended(y);
}

/* A daemon that could not start never says ready. */
static void test_not_ready(void **state)
{
	struct drill_yard *y = *state;

	y->cluster = cluster_make(1, NULL, NULL);
	drill_conf(y->cluster, 0, "[net]\nconnections = 17");
	cluster_spawn(y->cluster, 0);
	assert_int_equal(WEXITSTATUS(cluster_wait(y->cluster, 0, 10000)), 4);
	assert_false(heard(0));
	ended(y);
}

/* After too many quick failures systemd gives up the daemon, and with it the memory that it keeps
 * for the next start. So a start that fails with such memory is slow to end. */
static void test_kept(void **state)
{
	struct drill_yard *y = *state;
	struct cluster *c = y->cluster = cluster_make(1, NULL, NULL);
	char path[96];
	int fd = memfd_create("kept", MFD_CLOEXEC);

	snprintf(path, sizeof(path), "%.60s/kept", manager.dir);
	c->node[0].store = fdstore_start(path, 8);
	CHECK(c->node[0].store != NULL && fd >= 0);
	fdstore_put(c->node[0].store, "shardd-kept", fd);
	drill_conf(c, 0, "[net]\nconnections = 17");
	cluster_spawn(c, 0);
	for (int i = 0; i < 1000 && !in_log(c, "the models in memory are kept"); i++)
		(void)poll(NULL, 0, 10);
	logged(c, "connections = 17: ", true);
	logged(c, "the models in memory are kept: tried again in 30 s", true);
	assert_int_equal(waitpid(c->node[0].pid, NULL, WNOHANG), 0);
	assert_int_equal(fdstore_count(c->node[0].store), 1);
	cluster_signal(c, 0, SIGTERM);
	assert_int_equal(WTERMSIG(cluster_wait(c, 0, 10000)), SIGTERM);
	ended(y);
}

/* Only the page of models is kept, which a start makes before any model. An end at once loses
 * nothing. */
static void test_nothing_kept(void **state)
{
	struct drill_yard *y = *state;
	struct cluster *c = y->cluster = cluster_make(1, NULL, NULL);
	char path[96];
	int fd = memfd_create("node", MFD_CLOEXEC);

	snprintf(path, sizeof(path), "%.60s/kept", manager.dir);
	c->node[0].store = fdstore_start(path, 8);
	CHECK(c->node[0].store != NULL && fd >= 0);
	fdstore_put(c->node[0].store, "shardd-node", fd);
	drill_conf(c, 0, "[net]\nconnections = 17");
	cluster_spawn(c, 0);
	assert_int_equal(WEXITSTATUS(cluster_wait(c, 0, 20000)), 4);
	logged(c, "the models in memory are kept", false);
	ended(y);
}

static void test_status(void **state)
{
	struct drill_yard *y = *state;
	struct cluster *c = started(y);
	struct drill *t = drill_joining(y, c->node[0].unix_address, 0, SGD);
	uint64_t last = 0;
	int said = 0;

	drill_get(t, SHARD_OK);
	hears("STATUS=nodes 1 of 1, models m (step 0, world ");
	last = manager.at_ns;
	DRILL_SEND(t, .op = DRILL_TRAIN, .step = 300);
	while (!strstr(manager.text, "(step 300, world 1)")) {
		assert_true(heard(10000));
		if (strncmp(manager.text, "STATUS=", 7) != 0)
			continue;
		assert_true(manager.at_ns - last >
			    900 * NS_PER_MS); /* Once a second, less what this process slept. */
		last = manager.at_ns;
		said++;
	}
	assert_true(said < 20);
	drill_get(t, SHARD_OK);
	drill_end(t);
	ended(y);
}

/* A stop in STAGING says what becomes of the attempt, and how long it may take. */
static void test_stopping(void **state)
{
	struct drill_yard *y = *state;
	struct cluster *c = started(y);
	struct drill *t = drill_joining(y, c->node[0].unix_address, 0, SGD);

	drill_get(t, SHARD_OK);
	DRILL(t, SHARD_OK, .op = DRILL_BEGIN);
	DRILL(t, SHARD_OK, .op = DRILL_PUSH);
	cluster_signal(c, 0, SIGTERM);
	hears("STOPPING=1\n");
	drill_text(
		manager.text,
		"STATUS=stopping: SIGTERM; m: attempt 1 at step 1: not decided, it is aborted\n");
	drill_text(manager.text, "EXTEND_TIMEOUT_USEC=70000000");
	assert_int_equal(cluster_wait(c, 0, 10000), 0);
	drill_do(t, (struct drill_cmd){.op = DRILL_COMMIT}); /* A commit has no answer. */
	if (t->last.rc == SHARD_OK)
		DRILL(t, SHARD_CLOSED, .op = DRILL_RESULT);
	drill_text(t->last.error, "node a stops: SIGTERM");
	ended(y);
}

static void test_watchdog(void **state)
{
	struct drill_yard *y = *state;
	struct cluster *c = started(y);

	drill_text(manager.text, "WATCHDOG=1");
	for (int i = 0; i < 4; i++)
		hears("WATCHDOG=1");
	cluster_signal(c, 0, SIGSTOP);
	while (heard(0)) /* Messages of before. */
		;
	assert_false(heard(2 * WATCHDOG_MS));
	cluster_signal(c, 0, SIGCONT);
	hears("WATCHDOG=1");
	ended(y);
}

static void hup(struct cluster *c)
{
	cluster_signal(c, 0, SIGHUP);
	hears("RELOADING=1\nMONOTONIC_USEC=");
	{
		uint64_t us = strtoull(strstr(manager.text, "USEC=") + 5, NULL, 10),
			 now = clock_ns() / 1000;

		assert_true(us <= now && now - us < 10000000);
	}
	hears("READY=1");
}

static void write_file(const char *path, const char *text)
{
	FILE *f = fopen(path, "we");

	CHECK(f != NULL && fputs(text, f) >= 0 && fclose(f) == 0);
}

static char *read_text(const char *path)
{
	char *text = calloc(1, 4096);
	FILE *f = fopen(path, "re");

	CHECK(text != NULL && f != NULL && fread(text, 1, 4095, f) > 0);
	fclose(f);
	return text;
}

static void test_reload(void **state)
{
	struct drill_yard *y = *state;
	struct cluster *c = started(y);
	char *before = read_text(c->node[0].conf), *text, *at, words[256];
	struct drill *t;

	hup(c);
	logged(c, "event=reload taken=\"nothing has changed\"", true);
	/* What cannot change is named, and what can has changed. */
	text = read_text(c->node[0].conf);
	at = strstr(text, "log_level = debug");
	CHECK(at != NULL);
	memcpy(at, "log_level = info ", 17);
	write_file(c->node[0].conf, text);
	drill_conf(
		c, 0,
		"[net]\nconnections = 2\n[daemon]\nconnections_max = 4\n[model]\noptimizer = lion");
	hup(c);
	logged(c, "taken=\"daemon.log_level, daemon.connections_max, [model]\"", true);
	logged(c, "event=reload_left options=net.connections", true);
	/* Of a wrong file the line is named, and everything stays as it was. */
	write_file(c->node[0].conf, "[daemon]\nlog_level = debug\nlog_lvel = info\n");
	hup(c);
	logged(c, "event=reload_failed", true);
	logged(c, "a.conf:3: [daemon] log_lvel = info: unknown key: did you mean log_level", true);
	CHECK(unlink(c->node[0].conf) == 0);
	hup(c);
	logged(c, "a.conf: cannot be opened", true);
	write_file(c->node[0].conf, before);
	t = drill_joining(y, c->node[0].unix_address, 0,
			  "chunk_elems=1024 timeout=20s min_world=1 max_world=1");
	drill_get(t, SHARD_OK);
	snprintf(words, sizeof(words), "--address %s --json status", c->node[0].unix_address);
	tool_expect(0, "\"optimizer\":\"lion\"", "shardctl",
		    words); /* Of the sections that were taken last. */
	free(text);
	text = cluster_log(c, 0);
	assert_null(strstr(strstr(text, "event=reload_failed"), "level=debug"));
	drill_end(t);
	hup(c);
	logged(c, "event=reload taken=\"daemon.log_level, daemon.connections_max, [model]\"", true);
	free(text);
	free(before);
	ended(y);
}

static bool built_in(void)
{
#ifdef SHARD_SYSTEMD
	return true;
#else
	return false;
#endif
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_ready, setup, teardown),
		cmocka_unit_test_setup_teardown(test_not_ready, setup, teardown),
		cmocka_unit_test_setup_teardown(test_kept, setup, teardown),
		cmocka_unit_test_setup_teardown(test_nothing_kept, setup, teardown),
		cmocka_unit_test_setup_teardown(test_status, setup, teardown),
		cmocka_unit_test_setup_teardown(test_stopping, setup, teardown),
		cmocka_unit_test_setup_teardown(test_watchdog, setup, teardown),
		cmocka_unit_test_setup_teardown(test_reload, setup, teardown),
	};

	if (!built_in()) {
		print_message("built without libsystemd: nothing is said to a service manager\n");
		return 0;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
