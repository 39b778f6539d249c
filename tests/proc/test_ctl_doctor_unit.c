/* SPDX-License-Identifier: Apache-2.0 */
/* Tests `shardctl doctor` on RDMA and on the service, on a made-up machine: which device, port and
 * GID would be used and why, and what systemd says. Also tests that --address selects another
 * socket than the configured one. */
#include "base/check.h"
#include "lib/checkup.h"
#include "lib/proc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void rdma_is(int rc, const char *conf, const char *result, const char *text)
{
	char all[300];
	json_t *o;

	snprintf(all, sizeof(all), "allow_unauthenticated = yes\n%s", conf);
	checkup_conf(all);
	o = checkup_run(rc, "shardctl", "");
	checkup_is(o, "rdma", result, text);
	json_decref(o);
}

static void test_rdma(void **state)
{
	static const char *const ipv4[] = {"1", "2", "3"};
	char command[200], name[80];
	json_t *o;

	(void)state;
	checkup_machine();
	/* 203.0.113.2 is not an address of this machine, so the check of its port fails and the
	 * status is 1. */
	rdma_is(1, "listen = 203.0.113.2:4000\n", "ok",
		"gid 3 of 4 (203.0.113.2, RoCE v2), 100 Gb/sec (2X HDR): it has the address");
	rdma_is(1, "listen = 203.0.113.3:4000\n", "warn", "takes another way than TCP");
	rdma_is(0, "[net]\nrdma_gid_index = 1\n", "ok", "gid 1 of 1 (10.0.0.1, IB/RoCE v1)");
	rdma_is(0, "[net]\nrdma_gid_index = 9\n", "warn", "has no GID 9");
	rdma_is(1, "[net]\nrdma_gid_index = 9\ntransport = rdma\n", "fail", "has no GID 9");
	rdma_is(0, "[net]\nrdma_device = mlx5_1\n", "warn", "is none of the 1 here");
	rdma_is(0, "[net]\ntransport = tcp\n", "ok", "transport = tcp");
	checkup_put("root/" CHECKUP_IB "ports/2/state", "1: DOWN\n");
	rdma_is(0, "", "warn", "mlx5_0 has no active port: nodes use TCP");
	checkup_put("root/" CHECKUP_IB "ports/2/state", "4: ACTIVE\n");
	for (size_t i = 0; i < NR(ipv4); i++) {
		snprintf(name, sizeof(name), "root/" CHECKUP_IB "ports/2/gids/%s", ipv4[i]);
		checkup_put(name, "0000:0000:0000:0000:0000:0000:0000:0000\n");
	}
	rdma_is(0, "", "warn", "no GID of RoCE v2 with an IPv4 address");
	checkup_put("root/" CHECKUP_IB "ports/2/link_layer", "InfiniBand\n");
	rdma_is(0, "", "ok", "the first that fits");
	checkup_put("root/" CHECKUP_IB "ports/2/gids/0",
		    "0000:0000:0000:0000:0000:0000:0000:0000\n");
	rdma_is(0, "", "warn", "mlx5_0 port 2 has no GID");
	checkup_machine();
	checkup_uverbs_mode(0600);
	o = checkup_run(0, "shardctl", "");
	checkup_is(o, "verbs", "warn", "mode 0600");
	json_decref(o);
	checkup_put("root/sys/class/infiniband_verbs/uverbs0/ibdev", "mlx4_0\n");
	o = checkup_run(0, "shardctl", "");
	checkup_is(o, "verbs", "warn", "modprobe ib_uverbs");
	json_decref(o);
	snprintf(command, sizeof(command), "rm -rf %s/root/sys/class/infiniband", checkup_dir());
	assert_int_equal(system(command), 0);
	rdma_is(0, "", "ok", "no RDMA device: nodes use TCP");
	rdma_is(1, "[net]\ntransport = rdma\n", "fail", "rdma link add rxe0 type rxe");
}

static void test_unit(void **state)
{
	static const struct {
		const char *key, *value, *check, *result, *text;
	} rows[] = {
		{"LoadState", "not-found", "unit", "ok", "shardd is run otherwise"},
		{"ActiveState", "failed", "unit", "fail", "systemctl reset-failed shardd"},
		{"SubState", "auto-restart", "unit", "fail", "falls again and again"},
		{"ActiveState", "inactive", "unit", "warn", "systemctl enable --now shardd"},
		{"UnitFileState", "disabled", "unit", "warn", "does not start at boot"},
		{"NRestarts", "3", "unit", "warn", "it fell 3 times"},
		{"MainPID", "712", "unit", "ok", "active, pid 712, enabled, no restarts"},
		{"WatchdogUSec", "0", "watchdog", "warn", "WatchdogSec=30s"},
		{"WatchdogUSec", "30s", "watchdog", "ok", "30s without a word"},
		{"MainPID", "0", "memlock", "ok", "unlimited under the unit"},
		{"MainPID", "0", "descriptors", "ok", "65536 may be open under the unit"},
	};
	json_t *o;

	(void)state;
	for (size_t i = 0; i < NR(rows); i++) {
		checkup_machine();
		checkup_service(rows[i].key, rows[i].value);
		o = checkup_run(strcmp(rows[i].result, "fail") == 0, "shardctl", "");
		checkup_is(o, rows[i].check, rows[i].result, rows[i].text);
		json_decref(o);
	}
	checkup_machine();
	checkup_put("root/systemctl", "LoadState=loaded\nActiveState=failed\nSubState="
				      "failed\nResult=exit-code\nExecMainStatus=4\nNRestarts=0\n");
	o = checkup_run(1, "shardctl", "");
	checkup_is(o, "unit", "fail", "failed: exit-code, exit status 4, after 0 restarts");
	checkup_is(o, "unit", "fail", "shardctl config check");
	json_decref(o);
	checkup_put("root/systemctl", "");
	checkup_put("root/proc/self/limits", "Max locked memory         8388608 8388608 bytes\n"
					     "Max open files            64 128 files\n");
	o = checkup_run(0, "shardctl", "");
	checkup_is(o, "unit", "ok", "systemd does not run here");
	checkup_is(o, "memlock", "warn", "ulimit -l unlimited");
	checkup_is(o, "descriptors", "warn", "128 may be open, and 310 are needed");
	checkup_is(o, "descriptors", "warn", "ulimit -n");
	json_decref(o);
}

/* Checks the socket of --address, not the configured one. */
static void test_address(void **state)
{
	struct cluster *c = cluster_start(1, NULL, NULL);
	char more[200];
	json_t *o;

	(void)state;
	checkup_machine();
	snprintf(more, sizeof(more), "-a %s", c->node[0].unix_address);
	o = checkup_run(0, "shardctl", more);
	checkup_is(o, "socket", "ok", c->node[0].socket);
	checkup_is(o, "socket", "ok", "mode 0660");
	json_decref(o);
	CHECK(chmod(c->node[0].socket, 0666) == 0);
	o = checkup_run(0, "shardctl", more);
	checkup_is(o, "socket", "warn", "mode 0666 lets every user");
	json_decref(o);
	cluster_stop(c);
	o = checkup_run(1, "shardctl", "-a unix:/nonexistent/x.sock");
	checkup_is(o, "socket", "fail", "mkdir -p /nonexistent");
	json_decref(o);
	o = checkup_run(0, "shardctl", "-a 127.0.0.1:1");
	checkup_is(o, "socket", "ok", "run/s.sock");
	json_decref(o);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rdma),
		cmocka_unit_test(test_unit),
		cmocka_unit_test(test_address),
	};

	return cmocka_run_group_tests(tests, checkup_setup, checkup_teardown);
}
