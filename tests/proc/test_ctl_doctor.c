/* SPDX-License-Identifier: Apache-2.0 */
/* Tests `shardctl doctor`. Every check is brought to each of its results, on a made-up proc and sys
 * tree and with real ports, folders and daemons. Every finding that is not ok has a remedy. */
#include "base/check.h"
#include "lib/checkup.h"
#include "lib/ports.h"
#include "lib/proc.h"
#include "lib/tool.h"

#include <arpa/inet.h>
#include <errno.h>
#include <jansson.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static void test_files(void **state)
{
	static const struct {
		const char *file, *content, *check, *result, *text;
	} rows[] = {
		{"proc/meminfo", "MemTotal: 64000000 kB\n", "memory", "fail",
		 "lower [daemon] memory"},
		{"proc/meminfo", "MemTotal: 70000000 kB\n", "memory", "warn", "80 %"},
		{"sys/fs/cgroup/x/memory.max", "34359738368\n", "cgroup", "fail", "32.0 GiB"},
		{"sys/fs/cgroup/x/y/memory.max", "70000000000\n", "cgroup", "warn", "65.2 GiB"},
		{"sys/fs/cgroup/x/y/memory.max", "170000000000\n", "cgroup", "ok", "158.3 GiB"},
		{"proc/self/limits", "Max locked memory         8388608 8388608 bytes\n", "memlock",
		 "ok", "8.00 MiB in this shell"},
		{"proc/712/limits", "Max locked memory         8388608 8388608 bytes\n", "memlock",
		 "warn", "8.00 MiB may be locked for the service that runs"},
		{"proc/712/limits", "Max locked memory         99999999999 99999999999 bytes\n",
		 "memlock", "ok", "93.1 GiB for the service that runs; unlimited in this shell"},
		{"proc/712/limits", "Max open files            40 40 files\n", "descriptors",
		 "fail", "40 may be open for the service that runs, and at least 62 are needed"},
		{"proc/712/limits", "Max open files            100 100 files\n", "descriptors",
		 "warn", "100 may be open for the service that runs, and 310 are needed"},
		{"proc/712/limits", "Max open files            310 310 files\n", "descriptors",
		 "ok", "310 may be open for the service that runs, and 310 are needed; 65536 in"},
		{CHECKUP_IB "ports/2/gids/1", "\n", "rdma", "ok",
		 "mlx5_0 port 2 gid 2 of 3 (10.0.0.1, RoCE v2, eth2), 100 Gb/sec"},
		{CHECKUP_IB "ports/2/gid_attrs/types/2", "IB/RoCE v1\n", "rdma", "ok",
		 "gid 3 of 4 (203.0.113.2"},
		{CHECKUP_THP "enabled", "always madvise [never]\n", "huge_pages", "warn",
		 "echo madvise >"},
		{CHECKUP_THP "shmem_enabled", "always within_size advise [never] deny force\n",
		 "shmem", "warn", "echo advise >"},
		{CHECKUP_THP "shmem_enabled", "always within_size advise never [deny] force\n",
		 "shmem", "warn", "deny"},
		{CHECKUP_CLOCK, "hpet\n", "clock", "warn", "dmesg"},
		{"adjtimex", "8193 2500\n", "ntp", "ok", "within 2.5 ms"},
		{"adjtimex", "64 16000000\n", "ntp", "warn",
		 "systemctl enable --now systemd-timesyncd"},
		{"adjtimex", "\n", "ntp", "warn", "timedatectl"},
		{"sys/class/net/eth0/mtu", "1280\n", "mtu", "warn", "ip link set eth0 mtu 1500"},
		{"sys/class/net/eth0/mtu", "1460\n", "mtu", "ok", "9000 is faster"},
		{"sys/class/net/eth0/operstate", "down\n", "mtu", "ok", "no link"},
	};
	char name[200];
	json_t *o;

	(void)state;
	checkup_machine();
	o = checkup_run(0, "shardctl", "");
	assert_int_equal(json_integer_value(json_object_get(o, "ok")), CHECKUP_CHECKS);
	assert_int_equal(json_array_size(json_object_get(o, "checks")), CHECKUP_CHECKS);
	json_decref(o);
	for (size_t i = 0; i < NR(rows); i++) {
		checkup_machine();
		snprintf(name, sizeof(name), "root/%s", rows[i].file);
		checkup_put(name, rows[i].content);
		o = checkup_run(strcmp(rows[i].result, "fail") == 0, "shardctl", "");
		checkup_is(o, rows[i].check, rows[i].result, rows[i].text);
		assert_int_equal(json_integer_value(json_object_get(o, "ok")),
				 CHECKUP_CHECKS - (strcmp(rows[i].result, "ok") != 0));
		json_decref(o);
	}
}

static void test_disk(void **state)
{
	char here[4096], conf[4200];
	json_t *o;

	(void)state;
	checkup_machine();
	checkup_conf("nvme_dir = /there/is/none\n");
	o = checkup_run(1, "shardctl", "");
	checkup_is(o, "nvme", "fail", "on a local disk");
	json_decref(o);
	assert_non_null(realpath("build", here));
	snprintf(conf, sizeof(conf), "nvme_dir = %.200s\n", here);
	checkup_conf(conf);
	o = checkup_run(0, "shardctl", "");
	checkup_is(o, "nvme", "ok", "are free");
	json_decref(o);
	checkup_put("root/proc/sys/kernel/io_uring_disabled", "2\n");
	o = checkup_run(0, "shardctl", "");
	checkup_is(o, "nvme", "warn", "sysctl -w kernel.io_uring_disabled=0");
	json_decref(o);
}

static void test_gpu(void **state)
{
	json_t *o;

	(void)state;
	checkup_machine();
	checkup_conf("gpu = auto\n");
	o = checkup_run(0, "shardctl", "");
	checkup_is(o, "gpu", "warn", "no NVIDIA driver is loaded");
	json_decref(o);
	checkup_conf("gpu = GPU-3d2f9c54-0000-1111-2222-0123456789ab\n");
	o = checkup_run(1, "shardctl", "");
	checkup_is(o, "gpu", "fail", "no NVIDIA driver is loaded");
	json_decref(o);
	checkup_put("root/proc/driver/nvidia/version", "NVRM version: NVIDIA 580.1\n");
	o = checkup_run(1, "shardctl", "");
	checkup_is(o, "gpu", "fail", "there is no /dev/nvidiactl");
	json_decref(o);
	checkup_put("root/dev/nvidiactl", "");
	o = checkup_run(0, "shardctl", "");
	checkup_is(o, "gpu", "ok", "NVIDIA 580.1");
	json_decref(o);
}

static void test_options(void **state)
{
	char path[200];
	json_t *o;

	(void)state;
	checkup_machine();
	checkup_conf("huge_pages = require\n");
	o = checkup_run(1, "shardctl", "");
	checkup_is(o, "huge_pages", "fail", "sysctl vm.nr_hugepages=32769");
	json_decref(o);
	checkup_put("root/proc/meminfo",
		    "MemTotal: 131072000 kB\nHugePages_Free: 32768\nHugepagesize: 2048 kB\n");
	o = checkup_run(0, "shardctl", "");
	checkup_is(o, "huge_pages", "ok", "64.0 GiB of huge pages are reserved");
	json_decref(o);
	checkup_put("root/" CHECKUP_THP "shmem_enabled",
		    "always within_size advise [never] deny force\n");
	o = checkup_run(0, "shardctl", ""); /* Arenas use none of the reserved huge pages. */
	checkup_is(o, "huge_pages", "ok", "are reserved");
	checkup_is(o, "shmem", "warn", "echo advise >");
	json_decref(o);
	checkup_conf("huge_pages = no\n");
	checkup_put("root/" CHECKUP_THP "enabled", "always madvise [never]\n");
	o = checkup_run(0, "shardctl", "");
	checkup_is(o, "huge_pages", "ok", "huge_pages = no");
	json_decref(o);
	checkup_conf("listen = 127.0.0.1:1\nconnections_max = 60000\n[net]\nconnections = "
		     "16\n[nodes]\na = "
		     "127.0.0.1:1\nb = 127.0.0.1:2\n");
	checkup_put("root/proc/712/limits", "Max open files   65536 65536 files\n");
	checkup_put("root/proc/sys/net/ipv4/tcp_rmem", "4096 131072 6291456\n");
	checkup_put("root/proc/sys/net/ipv4/tcp_wmem", "4096 16384 67108864\n");
	o = checkup_run(0, "shardctl", "");
	checkup_is(o, "tcp_buffers", "warn", "at most 6.00 MiB to receive");
	checkup_put("root/proc/sys/net/ipv4/tcp_rmem", "4096 131072 67108864\n");
	json_decref(o);
	o = checkup_run(0, "shardctl", "");
	checkup_is(o, "tcp_buffers", "ok", "at most 64.0 MiB to receive");
	checkup_is(o, "descriptors", "ok", "60070 are needed");
	json_decref(o);
	checkup_machine();
	checkup_conf("socket_mode = 0666\n");
	o = checkup_run(0, "shardctl", "");
	checkup_is(o, "socket", "warn", "every user");
	json_decref(o);
	checkup_conf("log_lvl = info\n");
	o = checkup_run(4, "shardctl", "");
	checkup_is(o, "config", "fail", "conf:9: [daemon] log_lvl = info: unknown key");
	checkup_is(o, "clock", "ok", "tsc"); /* Checks that need no configuration are still made. */
	json_decref(o);
	checkup_conf("");
	snprintf(path, sizeof(path), "%s/run/x", checkup_dir());
	unlink(path);
	*strrchr(path, '/') = 0;
	CHECK(rmdir(path) == 0);
	o = checkup_run(1, "shardctl", "");
	checkup_is(o, "socket", "fail", "mkdir -p");
	json_decref(o);
}

static void test_folders(void **state)
{
	char path[200], words[300], *out;
	json_t *o;
	int rc;

	(void)state;
	checkup_machine();
	checkup_put("state", "a file");
	o = checkup_run(1, "shardctl", "");
	checkup_is(o, "state", "fail", "is no folder");
	json_decref(o);
	snprintf(path, sizeof(path), "%s/state", checkup_dir());
	CHECK(unlink(path) == 0 && mkdir(path, 0700) == 0 && chmod(path, 0777) == 0);
	o = checkup_run(0, "shardctl", "");
	checkup_is(o, "state", "warn", "chmod 0700");
	json_decref(o);
	CHECK(chmod(path, 0700) == 0 && chmod(checkup_dir(), 0755) == 0);
	if (geteuid() == 0) { /* As a user who may read the configuration and write nothing. */
		snprintf(words, sizeof(words), "doctor --config %s/conf --root %s/root",
			 checkup_dir(), checkup_dir());
		rc = tool_run_as(65534, &out, "shardctl", words);
		if (rc != 97 && (rc != 1 || !strstr(out, "may not write to") ||
				 !strstr(out, "StateDirectory=shardd")))
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
	checkup_machine();
	CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&in, bytes) == 0 && listen(fd, 1) == 0);
	CHECK(getsockname(fd, (struct sockaddr *)&in, &bytes) == 0);
	snprintf(more, sizeof(more), "listen = 127.0.0.1:%u\nhttp = 127.0.0.1:%u\n",
		 ntohs(in.sin_port), ntohs(in.sin_port));
	checkup_conf(more);
	o = checkup_run(1, "shardctl", "-a unix:/nonexistent/x.sock");
	checkup_is(o, "port", "fail", "choose another [daemon] listen");
	checkup_is(o, "http", "fail", "choose another [daemon] http");
	snprintf(more, sizeof(more), "is in use by pid %d (test_ctl_doctor)", (int)getpid());
	checkup_is(o, "port", "fail", more);
	json_decref(o);
	c = cluster_start(1, NULL, NULL); /* If a daemon answers, the port belongs to it. */
	snprintf(more, sizeof(more), "-a %s", c->node[0].unix_address);
	o = checkup_run(0, "shardctl", more);
	checkup_is(o, "port", "ok", "a daemon runs (pid");
	checkup_is(o, "versions", "ok", "running with pid");
	json_decref(o);
	cluster_signal(c, 0, SIGSTOP);
	snprintf(more, sizeof(more), "--timeout 1 -a %s", c->node[0].unix_address);
	o = checkup_run(1, "shardctl", more);
	checkup_is(o, "versions", "fail", "is there, but does not answer");
	checkup_is(o, "port", "ok", "a daemon is there that does not answer");
	json_decref(o);
	cluster_signal(c, 0, SIGCONT);
	cluster_stop(c);
	close(fd);
	checkup_conf("listen = 192.0.2.1:4000\nallow_unauthenticated = yes\n");
	o = checkup_run(1, "shardctl", "");
	checkup_is(o, "port", "fail", "is no address of this machine");
	json_decref(o);
}

/* Only root may use a low port, unless the kernel allows it to all users. */
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
	checkup_machine();
	checkup_conf("listen = 127.0.0.1:1\n");
	CHECK(chmod(checkup_dir(), 0755) == 0);
	snprintf(words, sizeof(words), "doctor --config %s/conf --root %s/root", checkup_dir(),
		 checkup_dir());
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
	checkup_machine();
	CHECK(setenv("SHARD_WORKER", "3", 1) == 0 && setenv("SHARD_GUARD", "1", 1) == 0);
	o = checkup_run(0, "shardctl", "");
	checkup_is(o, "environment", "warn", "nothing reads SHARD_WORKER");
	unsetenv("SHARD_WORKER");
	json_decref(o);
	o = checkup_run(0, "shardctl", "");
	checkup_is(o, "environment", "ok", "no SHARD_* variable is unknown");
	unsetenv("SHARD_GUARD");
	json_decref(o);
}

/* Node a is on this machine, b is a real daemon, and c is what a test makes of it. */
static void put_nodes(uint16_t a, uint16_t b, uint16_t c, const char *more)
{
	char text[600];
	int n = snprintf(text, sizeof(text),
			 "listen = 127.0.0.1:%u\n[nodes]\na = 127.0.0.1:%u\nb = 127.0.0.1:%u\n", a,
			 a, b);

	if (c > 0)
		n += snprintf(text + n, sizeof(text) - (size_t)n, "c = 127.0.0.1:%u\n", c);
	/* The same values as in proc_lost_timeout() and of two nodes. */
	snprintf(text + n, sizeof(text) - (size_t)n, "%slost_timeout = 5s\nmembership = static\n",
		 more);
	checkup_conf(text);
}

static void nodes_are(int rc, const char *more, const char *result, const char *text)
{
	json_t *o = checkup_run(rc, "shardctl", more);

	checkup_is(o, "nodes", result, text);
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
	checkup_machine();
	/* Port a belongs to that daemon. */
	snprintf(at, sizeof(at), "--timeout 0.5 -a %s", c->node[0].unix_address);
	put_nodes(a, b, 0, "[cluster]\nrun_id = test\n");
	nodes_are(0, at, "ok", "1 of 1 others answer");
	put_nodes(a, b, 0, "[cluster]\nrun_id = other\n");
	nodes_are(1, at, "fail", "b: cluster.run_id is test there, other here");
	put_nodes(a, b, 0, "[cluster]\nrun_id = test\nheartbeat_timeout = 4s\n");
	nodes_are(1, at, "fail", "b: cluster.heartbeat_timeout is 5s there, 4s here");
	put_nodes(a, b, ports_take(), "[cluster]\nrun_id = test\n");
	nodes_are(0, at, "warn", "c: no shardd runs at 127.0.0.1:");
	snprintf(text, sizeof(text),
		 "listen = 127.0.0.1:%u\n[nodes]\na = 127.0.0.1:%u\nx = "
		 "127.0.0.1:%u\n[cluster]\nrun_id = test\nlost_timeout = 5s\n",
		 a, a, b);
	checkup_conf(text);
	nodes_are(1, at, "fail", "x: node b answers there");
	CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&in, bytes) == 0 &&
	      listen(fd, 5) == 0); /* It accepts and never sends anything. */
	CHECK(getsockname(fd, (struct sockaddr *)&in, &bytes) == 0);
	put_nodes(a, ntohs(in.sin_port), 0, "[cluster]\nrun_id = test\n");
	nodes_are(1, at, "fail", "did not answer HELLO in 0.5 s");
	CHECK(listen(fd, 0) == 0);
	/* Fills its queue. Further connections are then dropped, as by a firewall. */
	for (int i = 0; i < 6; i++) {
		full[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
		CHECK(full[i] >= 0 && (connect(full[i], (struct sockaddr *)&in, bytes) == 0 ||
				       errno == EINPROGRESS));
	}
	nodes_are(1, at, "fail", "(ETIMEDOUT)");
	for (int i = 0; i < 6; i++)
		close(full[i]);
	close(fd);
	cluster_stop(c);
}

/* Runs a daemon of another release, which is the same program with another number in it. */
static void test_other_release(void **state)
{
	struct cluster *c = cluster_make(2, NULL, NULL);
	char from[600], command[1500], at[200];
	pid_t pid;

	(void)state;
	checkup_machine();
	proc_beside(from, sizeof(from), "shardd");
	snprintf(command, sizeof(command), "sed 's/%s/9%s/g' %s > %s/old && chmod 755 %s/old",
		 SHARD_RELEASE, &SHARD_RELEASE[1], from, checkup_dir(), checkup_dir());
	assert_int_equal(system(command), 0);
	snprintf(command, sizeof(command), "exec %s/old --config %s 2>%s", checkup_dir(),
		 c->node[1].conf, c->node[1].log);
	pid = proc_fork(run_shell, command);
	c->node[1].pid = pid;
	cluster_ready(c, 1);
	snprintf(at, sizeof(at), "--timeout 2 -a unix:%s/run/none.sock", checkup_dir());
	put_nodes(c->node[0].port, c->node[1].port, 0, "[cluster]\nrun_id = test\n");
	nodes_are(0, at, "warn", "b: runs shardd 9");
	cluster_stop(c);
}

static void test_versions(void **state)
{
	char from[600], copy[700], command[1400];
	json_t *o;

	(void)state;
	checkup_machine();
	proc_beside(from, sizeof(from), "shardctl");
	snprintf(copy, sizeof(copy), "%s/shardctl", checkup_dir());
	snprintf(command, sizeof(command), "cp %s %s", from, copy);
	assert_int_equal(system(command), 0);
	checkup_put("shardd", "#!/bin/sh\n[ \"$1\" = --version ] && echo 'shardd 0.0.1' || echo "
			      "'{\"options\": []}'\n");
	snprintf(command, sizeof(command), "chmod 755 %s/shardd", checkup_dir());
	assert_int_equal(system(command), 0);
	o = checkup_run(1, copy, "");
	checkup_is(o, "versions", "warn", "shardd 0.0.1");
	json_decref(o);
	snprintf(command, sizeof(command), "%s/shardd", checkup_dir());
	CHECK(unlink(command) == 0);
	char *path = strdup(getenv("PATH") ? getenv("PATH") : "");
	CHECK(path && setenv("PATH", "/nonexistent", 1) == 0);
	o = checkup_run(1, copy, "");
	CHECK(setenv("PATH", path, 1) == 0);
	free(path);
	checkup_is(o, "versions", "fail", "install shardd");
	checkup_is(o, "config", "fail", "shardd cannot be run");
	json_decref(o);
}

static void test_text(void **state)
{
	char words[300];

	(void)state;
	checkup_machine();
	checkup_put("root/" CHECKUP_CLOCK, "jiffies\n");
	snprintf(words, sizeof(words), "doctor --config %s/conf --root %s/root", checkup_dir(),
		 checkup_dir());
	tool_expect(0, "23 ok, 1 warn, 0 fail", "shardctl", words);
	tool_expect(0, "-> see `dmesg", "shardctl", words);
	tool_expect(2, "write doctor", "shardctl", "doctor word");
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_disk),     cmocka_unit_test(test_files),
		cmocka_unit_test(test_gpu),      cmocka_unit_test(test_options),
		cmocka_unit_test(test_folders),  cmocka_unit_test(test_ports),
		cmocka_unit_test(test_versions), cmocka_unit_test(test_text),
		cmocka_unit_test(test_low_port), cmocka_unit_test(test_environment),
		cmocka_unit_test(test_nodes),    cmocka_unit_test(test_other_release),
	};

	return cmocka_run_group_tests(tests, checkup_setup, checkup_teardown);
}
