/* SPDX-License-Identifier: Apache-2.0 */
/* `shardctl doctor`: every check is provoked into each result that it has, on a made-up proc and sys tree and with real ports, folders and
 * daemons. Every finding that is not ok has a remedy. */
#include "base/check.h"
#include "lib/proc.h"
#include "lib/tool.h"

#include <arpa/inet.h>
#include <errno.h>
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { CHECKS = 16 };

#define THP   "sys/kernel/mm/transparent_hugepage/"
#define CLOCK "sys/devices/system/clocksource/clocksource0/current_clocksource"

static char dir[] = "/tmp/shard-doctor-XXXXXX"; /* cmocka's groups have one state; this is simpler */

static void put(const char *name, const char *text)
{
	char path[300];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	for (char *p = path + strlen(dir) + 1; (p = strchr(p, '/')) != NULL; *p++ = '/') {
		*p = 0;
		(void)mkdir(path, 0755);
	}
	f = fopen(path, "we");
	CHECK(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

static void put_conf(const char *more)
{
	char text[1000], listen[64];

	snprintf(listen, sizeof(listen), "listen = 127.0.0.1:%u\n", proc_free_port());
	snprintf(text, sizeof(text), "[daemon]\nnode = a\nsocket = %s/run/s.sock\nstate = %s/state\nmemory = 64GiB\n%s%s%s", dir,
		 dir, strstr(more, "listen") ? "" : listen, strstr(more, "http") ? "" : "http = off\n", more);
	put("conf", text);
}

/* A machine without fault. */
static void put_machine(void)
{
	put("root/proc/meminfo", "MemTotal:       131072000 kB\nHugePages_Free:        0\nHugepagesize:       2048 kB\n");
	put("root/proc/self/cgroup", "0::/x/y\n");
	put("root/proc/self/limits", "Max locked memory         unlimited            unlimited            bytes\n");
	put("root/sys/fs/cgroup/x/memory.max", "max\n");
	put("root/sys/fs/cgroup/x/y/memory.max", "max\n");
	put("root/" THP "enabled", "always [madvise] never\n");
	put("root/" THP "shmem_enabled", "always within_size [advise] never deny force\n");
	put("root/" CLOCK, "tsc\n");
	put("root/adjtimex", "8193 1500\n"); /* what the kernel would say: STA_PLL and STA_NANO, within 1.5 ms */
	put("root/sys/class/net/lo/operstate", "unknown\n");
	put("root/sys/class/net/lo/mtu", "100\n");
	put("root/sys/class/net/eth0/operstate", "up\n");
	put("root/sys/class/net/eth0/mtu", "9000\n");
	put("run/x", "");
	put_conf("");
}

static json_t *examine(int rc, const char *program, const char *more)
{
	char words[300], *out;
	json_error_t wrong;
	json_t *o;
	int got;

	snprintf(words, sizeof(words), "doctor --json --config %s/conf --root %s/root %s", dir, dir, more);
	got = tool_run(&out, program, words);
	o = json_loads(out, 0, &wrong);
	if (!o || got != rc)
		fail_msg("exit %d, expected %d: %s", got, rc, out);
	free(out);
	return o;
}

static void is(const json_t *o, const char *check, const char *result, const char *text)
{
	size_t i;
	json_t *c;

	json_array_foreach(json_object_get(o, "checks"), i, c) {
		const char *found = json_string_value(json_object_get(c, "found"));
		const char *remedy = json_string_value(json_object_get(c, "remedy"));

		if (strcmp(json_string_value(json_object_get(c, "check")), check) != 0)
			continue;
		assert_int_equal(strcmp(result, "ok") == 0, remedy[0] == 0);
		if (strcmp(json_string_value(json_object_get(c, "result")), result) != 0 ||
		    (!strstr(found, text) && !strstr(remedy, text)))
			fail_msg("%s: %s: %s -> %s; expected %s with \"%s\"", check,
				 json_string_value(json_object_get(c, "result")), found, remedy, result, text);
		return;
	}
	fail_msg("%s is not there", check);
}

static void test_files(void **state)
{
	static const struct {
		const char *file, *content, *check, *result, *text;
	} rows[] = {
		{"proc/meminfo", "MemTotal: 64000000 kB\n", "memory", "fail", "lower [daemon] memory"},
		{"proc/meminfo", "MemTotal: 70000000 kB\n", "memory", "warn", "80 %"},
		{"sys/fs/cgroup/x/memory.max", "34359738368\n", "cgroup", "fail", "32.0 GiB"},
		{"sys/fs/cgroup/x/y/memory.max", "70000000000\n", "cgroup", "warn", "65.2 GiB"},
		{"sys/fs/cgroup/x/y/memory.max", "170000000000\n", "cgroup", "ok", "158.3 GiB"},
		{"proc/self/limits", "Max locked memory         8388608 8388608 bytes\n", "memlock", "warn", "LimitMEMLOCK"},
		{"proc/self/limits", "Max locked memory         99999999999 99999999999 bytes\n", "memlock", "ok", "93.1 GiB"},
		{THP "enabled", "always madvise [never]\n", "huge_pages", "warn", "echo madvise >"},
		{THP "shmem_enabled", "always within_size advise [never] deny force\n", "shmem", "warn", "echo advise >"},
		{THP "shmem_enabled", "always within_size advise never [deny] force\n", "shmem", "warn", "deny"},
		{CLOCK, "hpet\n", "clock", "warn", "dmesg"},
		{"adjtimex", "8193 2500\n", "ntp", "ok", "within 2.5 ms"},
		{"adjtimex", "64 16000000\n", "ntp", "warn", "systemctl enable --now systemd-timesyncd"},
		{"adjtimex", "\n", "ntp", "warn", "timedatectl"},
		{"sys/class/net/eth0/mtu", "1280\n", "mtu", "warn", "ip link set eth0 mtu 1500"},
		{"sys/class/net/eth0/mtu", "1460\n", "mtu", "ok", "9000 is faster"},
		{"sys/class/net/eth0/operstate", "down\n", "mtu", "ok", "no link"},
	};
	char name[200];
	json_t *o;

	(void)state;
	put_machine();
	o = examine(0, "shardctl", "");
	assert_int_equal(json_integer_value(json_object_get(o, "ok")), CHECKS);
	assert_int_equal(json_array_size(json_object_get(o, "checks")), CHECKS);
	json_decref(o);
	for (size_t i = 0; i < NR(rows); i++) {
		put_machine();
		snprintf(name, sizeof(name), "root/%s", rows[i].file);
		put(name, rows[i].content);
		o = examine(strcmp(rows[i].result, "fail") == 0, "shardctl", "");
		is(o, rows[i].check, rows[i].result, rows[i].text);
		assert_int_equal(json_integer_value(json_object_get(o, "ok")), CHECKS - (strcmp(rows[i].result, "ok") != 0));
		json_decref(o);
	}
}

static void test_options(void **state)
{
	char path[200];
	json_t *o;

	(void)state;
	put_machine();
	put_conf("huge_pages = require\n");
	o = examine(1, "shardctl", "");
	is(o, "huge_pages", "fail", "sysctl vm.nr_hugepages=32769");
	json_decref(o);
	put("root/proc/meminfo", "MemTotal: 131072000 kB\nHugePages_Free: 32768\nHugepagesize: 2048 kB\n");
	o = examine(0, "shardctl", "");
	is(o, "huge_pages", "ok", "64.0 GiB of huge pages are reserved");
	json_decref(o);
	put_conf("huge_pages = no\n");
	put("root/" THP "enabled", "always madvise [never]\n");
	o = examine(0, "shardctl", "");
	is(o, "huge_pages", "ok", "huge_pages = no");
	json_decref(o);
	put_conf("socket_mode = 0666\n");
	o = examine(0, "shardctl", "");
	is(o, "socket", "warn", "every user");
	json_decref(o);
	put_conf("log_lvl = info\n");
	o = examine(4, "shardctl", "");
	is(o, "config", "fail", "conf:8: [daemon] log_lvl = info: unknown key");
	is(o, "clock", "ok", "tsc"); /* what needs no configuration is looked at */
	json_decref(o);
	put_conf("");
	snprintf(path, sizeof(path), "%s/run/x", dir);
	unlink(path);
	*strrchr(path, '/') = 0;
	CHECK(rmdir(path) == 0);
	o = examine(1, "shardctl", "");
	is(o, "socket", "fail", "mkdir -p");
	json_decref(o);
}

static void test_folders(void **state)
{
	char path[200], words[300], *out;
	json_t *o;
	int rc;

	(void)state;
	put_machine();
	put("state", "a file");
	o = examine(1, "shardctl", "");
	is(o, "state", "fail", "is no folder");
	json_decref(o);
	snprintf(path, sizeof(path), "%s/state", dir);
	CHECK(unlink(path) == 0 && mkdir(path, 0700) == 0 && chmod(path, 0777) == 0);
	o = examine(0, "shardctl", "");
	is(o, "state", "warn", "chmod 0700");
	json_decref(o);
	CHECK(chmod(path, 0700) == 0 && chmod(dir, 0755) == 0);
	if (geteuid() == 0) { /* as somebody who may read the configuration and write nothing */
		snprintf(words, sizeof(words), "doctor --config %s/conf --root %s/root", dir, dir);
		rc = tool_run_as(65534, &out, "shardctl", words);
		if (rc != 97 && (rc != 1 || !strstr(out, "may not write to") || !strstr(out, "StateDirectory=shardd")))
			fail_msg("exit %d: %s", rc, out);
		free(out);
	}
	CHECK(rmdir(path) == 0);
}

static void test_ports(void **state)
{
	struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t bytes = sizeof(in);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct cluster *c;
	char more[200];
	json_t *o;

	(void)state;
	put_machine();
	CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&in, bytes) == 0 && listen(fd, 1) == 0);
	CHECK(getsockname(fd, (struct sockaddr *)&in, &bytes) == 0);
	snprintf(more, sizeof(more), "listen = 127.0.0.1:%u\nhttp = 127.0.0.1:%u\n", ntohs(in.sin_port), ntohs(in.sin_port));
	put_conf(more);
	o = examine(1, "shardctl", "-a unix:/nonexistent/x.sock");
	is(o, "port", "fail", "choose another [daemon] listen");
	is(o, "http", "fail", "choose another [daemon] http");
	json_decref(o);
	c = cluster_start(1, NULL, NULL); /* if a daemon answers, the port is its own */
	snprintf(more, sizeof(more), "-a %s", c->node[0].unix_address);
	o = examine(0, "shardctl", more);
	is(o, "port", "ok", "a daemon runs (pid");
	is(o, "versions", "ok", "running with pid");
	json_decref(o);
	cluster_stop(c);
	close(fd);
	put_conf("listen = 192.0.2.1:4000\nallow_unauthenticated = yes\n");
	o = examine(1, "shardctl", "");
	is(o, "port", "fail", "is no address of this machine");
	json_decref(o);
}

/* A port that only root may have, unless the kernel gives it to all. */
static void test_low_port(void **state)
{
	FILE *f = fopen("/proc/sys/net/ipv4/ip_unprivileged_port_start", "re");
	int first = 1024, rc;
	char words[300], *out;

	(void)state;
	if (f && fscanf(f, "%d", &first) != 1)
		first = 1024;
	if (f)
		fclose(f);
	if (first <= 1)
		skip();
	put_machine();
	put_conf("listen = 127.0.0.1:1\n");
	CHECK(chmod(dir, 0755) == 0);
	snprintf(words, sizeof(words), "doctor --config %s/conf --root %s/root", dir, dir);
	rc = tool_run_as(geteuid() == 0 ? 65534 : 0, &out, "shardctl", words);
	if (rc != 97 && (rc != 1 || !strstr(out, "choose a port from 1024 on")))
		fail_msg("exit %d: %s", rc, out);
	free(out);
}

static int run_shell(void *command)
{
	execl("/bin/sh", "sh", "-c", (const char *)command, (char *)NULL);
	return 97;
}

static void test_environment(void **state)
{
	json_t *o;

	(void)state;
	put_machine();
	CHECK(setenv("SHARD_WORKER", "3", 1) == 0 && setenv("SHARD_GUARD", "1", 1) == 0);
	o = examine(0, "shardctl", "");
	is(o, "environment", "warn", "nothing reads SHARD_WORKER");
	unsetenv("SHARD_WORKER");
	json_decref(o);
	o = examine(0, "shardctl", "");
	is(o, "environment", "ok", "no SHARD_* variable is unknown");
	unsetenv("SHARD_GUARD");
	json_decref(o);
}

/* Node a is this machine's; b, a real daemon, and c, whatever a test makes of it. */
static void put_nodes(uint16_t a, uint16_t b, uint16_t c, const char *more)
{
	char text[600];
	int n = snprintf(text, sizeof(text), "listen = 127.0.0.1:%u\n[nodes]\na = 127.0.0.1:%u\nb = 127.0.0.1:%u\n", a, a, b);

	if (c > 0)
		n += snprintf(text + n, sizeof(text) - (size_t)n, "c = 127.0.0.1:%u\n", c);
	snprintf(text + n, sizeof(text) - (size_t)n, "%s", more);
	put_conf(text);
}

static void nodes_are(int rc, const char *more, const char *result, const char *text)
{
	json_t *o = examine(rc, "shardctl", more);

	is(o, "nodes", result, text);
	json_decref(o);
}

static void test_nodes(void **state)
{
	struct cluster *c = cluster_start(2, NULL, NULL);
	struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	const uint16_t a = c->node[0].port, b = c->node[1].port;
	socklen_t bytes = sizeof(in);
	char at[200], text[200];
	int full[6];

	(void)state;
	put_machine();
	snprintf(at, sizeof(at), "--timeout 0.5 -a %s", c->node[0].unix_address); /* port a is that daemon's */
	put_nodes(a, b, 0, "[cluster]\nrun_id = test\n");
	nodes_are(0, at, "ok", "1 of 1 others answer");
	put_nodes(a, b, 0, "[cluster]\nrun_id = other\n");
	nodes_are(1, at, "fail", "b: cluster.run_id is test there, other here");
	put_nodes(a, b, 0, "[cluster]\nrun_id = test\nheartbeat_timeout = 7s\n");
	nodes_are(1, at, "fail", "b: cluster.heartbeat_timeout is 5s there, 7s here");
	put_nodes(a, b, proc_free_port(), "[cluster]\nrun_id = test\n");
	nodes_are(0, at, "warn", "c: no shardd runs at 127.0.0.1:");
	snprintf(text, sizeof(text),
		 "listen = 127.0.0.1:%u\n[nodes]\na = 127.0.0.1:%u\nx = 127.0.0.1:%u\n[cluster]\nrun_id = test\n", a, a, b);
	put_conf(text);
	nodes_are(1, at, "fail", "x: node b answers there");
	CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&in, bytes) == 0 && listen(fd, 5) == 0); /* accepts, and never says a word */
	CHECK(getsockname(fd, (struct sockaddr *)&in, &bytes) == 0);
	put_nodes(a, ntohs(in.sin_port), 0, "[cluster]\nrun_id = test\n");
	nodes_are(1, at, "fail", "did not answer HELLO in 0.5 s");
	CHECK(listen(fd, 0) == 0);
	for (int i = 0; i < 6; i++) { /* its queue is full: what comes now is dropped, as by a firewall */
		full[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
		CHECK(full[i] >= 0 && (connect(full[i], (struct sockaddr *)&in, bytes) == 0 || errno == EINPROGRESS));
	}
	nodes_are(1, at, "fail", "(ETIMEDOUT)");
	for (int i = 0; i < 6; i++)
		close(full[i]);
	close(fd);
	cluster_stop(c);
}

/* A daemon of another release: the same one, with another number written into it. */
static void test_other_release(void **state)
{
	struct cluster *c = cluster_make(2, NULL, NULL);
	char from[600], command[1500], at[200];
	pid_t pid;

	(void)state;
	put_machine();
	proc_beside(from, sizeof(from), "shardd");
	snprintf(command, sizeof(command), "sed 's/%s/9%s/g' %s > %s/old && chmod 755 %s/old", SHARD_RELEASE, SHARD_RELEASE + 1,
		 from, dir, dir);
	assert_int_equal(system(command), 0);
	snprintf(command, sizeof(command), "exec %s/old --config %s 2>%s", dir, c->node[1].conf, c->node[1].log);
	pid = proc_fork(run_shell, command);
	c->node[1].pid = pid;
	cluster_ready(c, 1);
	snprintf(at, sizeof(at), "--timeout 2 -a unix:/nonexistent");
	put_nodes(c->node[0].port, c->node[1].port, 0, "[cluster]\nrun_id = test\n");
	nodes_are(0, at, "warn", "b: runs shardd 9");
	cluster_stop(c);
}

static void test_versions(void **state)
{
	char from[600], copy[700], command[1400];
	json_t *o;

	(void)state;
	put_machine();
	proc_beside(from, sizeof(from), "shardctl");
	snprintf(copy, sizeof(copy), "%s/shardctl", dir);
	snprintf(command, sizeof(command), "cp %s %s", from, copy);
	assert_int_equal(system(command), 0);
	put("shardd", "#!/bin/sh\n[ \"$1\" = --version ] && echo 'shardd 0.0.1' || echo '{\"options\": []}'\n");
	snprintf(command, sizeof(command), "chmod 755 %s/shardd", dir);
	assert_int_equal(system(command), 0);
	o = examine(1, copy, "");
	is(o, "versions", "warn", "shardd 0.0.1");
	json_decref(o);
	snprintf(command, sizeof(command), "%s/shardd", dir);
	CHECK(unlink(command) == 0);
	char *path = strdup(getenv("PATH") ? getenv("PATH") : "");
	CHECK(path && setenv("PATH", "/nonexistent", 1) == 0);
	o = examine(1, copy, "");
	CHECK(setenv("PATH", path, 1) == 0);
	free(path);
	is(o, "versions", "fail", "install shardd");
	is(o, "config", "fail", "shardd cannot be run");
	json_decref(o);
}

static void test_text(void **state)
{
	char words[300];

	(void)state;
	put_machine();
	put("root/" CLOCK, "jiffies\n");
	snprintf(words, sizeof(words), "doctor --config %s/conf --root %s/root", dir, dir);
	tool_expect(0, "15 ok, 1 warn, 0 fail", "shardctl", words);
	tool_expect(0, "-> see `dmesg", "shardctl", words);
	tool_expect(2, "write doctor", "shardctl", "doctor word");
}

static int begin(void **state)
{
	(void)state;
	return mkdtemp(dir) ? 0 : -1;
}

static int end(void **state)
{
	char command[100];

	(void)state;
	snprintf(command, sizeof(command), "rm -rf %s", dir);
	return system(command);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_files),         cmocka_unit_test(test_options),     cmocka_unit_test(test_folders),
		cmocka_unit_test(test_ports),         cmocka_unit_test(test_versions),    cmocka_unit_test(test_text),
		cmocka_unit_test(test_low_port),      cmocka_unit_test(test_environment), cmocka_unit_test(test_nodes),
		cmocka_unit_test(test_other_release),
	};

	return cmocka_run_group_tests(tests, begin, end);
}
