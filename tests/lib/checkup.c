/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the files of a made-up machine for `shardctl doctor` below one folder, to which --root
 * leads. Tests of the doctor call it. checkup_machine() writes a machine without fault,
 * checkup_put() changes one file, and checkup_run() runs the doctor. A result that is not the
 * expected one fails the test. */
#include "lib/checkup.h"

#include "base/check.h"
#include "lib/ports.h"
#include "lib/proc.h"
#include "lib/rmtree.h"
#include "lib/tool.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* One folder serves all tests of the group. A global is simpler here than cmocka's state. */
static char dir[] = "/tmp/shard-doctor-XXXXXX";

const char *checkup_dir(void)
{
	return dir;
}

void checkup_put(const char *name, const char *text)
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

void checkup_conf(const char *more)
{
	char text[1000], listen[64];

	snprintf(listen, sizeof(listen), "listen = 127.0.0.1:%u\n", ports_take());
	snprintf(text, sizeof(text),
		 "[daemon]\nnode = a\nsocket = %s/run/s.sock\nstate = %s/state\nmemory = "
		 "64GiB\n%s%s%s%s",
		 dir, dir,
		 strstr(more, "allow_unauthenticated") || strstr(more, "secret")
			 ? ""
			 : "allow_unauthenticated = yes\n",
		 strstr(more, "listen") ? "" : listen, strstr(more, "http") ? "" : "http = off\n",
		 more);
	checkup_put("conf", text);
}

void checkup_uverbs_mode(mode_t mode)
{
	char path[200];

	snprintf(path, sizeof(path), "%s/root/dev/infiniband/uverbs0", dir);
	CHECK(chmod(path, mode) == 0);
}

static const char SERVICE[] =
	"LoadState=loaded\nActiveState=active\nSubState=running\nResult=success\nExecMainStatus="
	"0\nNRestarts=0\n"
	"MainPID=712\nUnitFileState=enabled\nWatchdogUSec=30s\nFileDescriptorStoreMax=512\n"
	"NFileDescriptorStore=3\nLimitMEMLOCK=infinity\nLimitNOFILE=65536\n";

/* Writes what systemd says of the service, with another value for one property. */
void checkup_service(const char *key, const char *value)
{
	char text[600], *at;
	size_t n;

	strcpy(text, SERVICE);
	at = strstr(text, key);
	CHECK(at && at[strlen(key)] == '=');
	at += strlen(key) + 1;
	n = strcspn(at, "\n");
	memmove(at + strlen(value), at + n, strlen(at + n) + 1);
	memcpy(at, value, strlen(value));
	checkup_put("root/systemctl", text);
}

/* One card with two ports and several GIDs. Only the second port has a link. */
static void put_rdma(void)
{
	checkup_put("root/" CHECKUP_IB "ports/1/state", "1: DOWN\n");
	checkup_put("root/" CHECKUP_IB "ports/2/state", "4: ACTIVE\n");
	checkup_put("root/" CHECKUP_IB "ports/2/link_layer", "Ethernet\n");
	checkup_put("root/" CHECKUP_IB "ports/2/rate", "100 Gb/sec (2X HDR)\n");
	checkup_put("root/" CHECKUP_IB "ports/2/gids/0",
		    "fe80:0000:0000:0000:0202:c9ff:fe00:0001\n");
	checkup_put("root/" CHECKUP_IB "ports/2/gids/1",
		    "0000:0000:0000:0000:0000:ffff:0a00:0001\n");
	checkup_put("root/" CHECKUP_IB "ports/2/gids/2",
		    "0000:0000:0000:0000:0000:ffff:0a00:0001\n");
	checkup_put("root/" CHECKUP_IB "ports/2/gids/3",
		    "0000:0000:0000:0000:0000:ffff:cb00:7102\n");
	checkup_put("root/" CHECKUP_IB "ports/2/gids/4",
		    "0000:0000:0000:0000:0000:0000:0000:0000\n");
	checkup_put("root/" CHECKUP_IB "ports/2/gid_attrs/types/0", "RoCE v2\n");
	checkup_put("root/" CHECKUP_IB "ports/2/gid_attrs/types/1", "IB/RoCE v1\n");
	checkup_put("root/" CHECKUP_IB "ports/2/gid_attrs/types/2", "RoCE v2\n");
	checkup_put("root/" CHECKUP_IB "ports/2/gid_attrs/types/3", "RoCE v2\n");
	checkup_put("root/" CHECKUP_IB "ports/2/gid_attrs/ndevs/2", "eth2\n");
	checkup_put("root/sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0\n");
	checkup_put("root/dev/infiniband/uverbs0", "");
	checkup_uverbs_mode(0666);
}

/* Writes a machine without fault. */
void checkup_machine(void)
{
	checkup_put("root/proc/meminfo", "MemTotal:       131072000 kB\nHugePages_Free:        "
					 "0\nHugepagesize:       2048 kB\n");
	checkup_put("root/proc/self/cgroup", "0::/x/y\n");
	checkup_put("root/proc/self/limits",
		    "Max locked memory         unlimited            unlimited            bytes\n"
		    "Max open files            1024                 65536                files\n");
	checkup_put("root/sys/fs/cgroup/x/memory.max", "max\n");
	checkup_put("root/sys/fs/cgroup/x/y/memory.max", "max\n");
	checkup_put("root/" CHECKUP_THP "enabled", "always [madvise] never\n");
	checkup_put("root/" CHECKUP_THP "shmem_enabled",
		    "always within_size [advise] never deny force\n");
	checkup_put("root/" CHECKUP_CLOCK, "tsc\n");
	checkup_put(
		"root/adjtimex",
		"8193 1500\n"); /* The answer of the kernel: STA_PLL and STA_NANO, within 1.5 ms. */
	checkup_put("root/sys/class/net/lo/operstate", "unknown\n");
	checkup_put("root/sys/class/net/lo/mtu", "100\n");
	checkup_put("root/sys/class/net/eth0/operstate", "up\n");
	checkup_put("root/sys/class/net/eth0/mtu", "9000\n");
	put_rdma();
	checkup_put("root/systemctl", SERVICE);
	checkup_put("root/proc/712/limits",
		    "Max locked memory         unlimited            unlimited            bytes\n"
		    "Max open files            1024                 65536                files\n");
	checkup_put("run/x", "");
	checkup_conf("");
}

json_t *checkup_run(int rc, const char *program, const char *more)
{
	char words[300], *out;
	json_error_t wrong;
	json_t *o;
	int got;

	snprintf(words, sizeof(words), "doctor --json --config %s/conf --root %s/root %s", dir, dir,
		 more);
	got = tool_run(&out, program, words);
	o = json_loads(out, 0, &wrong);
	if (!o || got != rc)
		fail_msg("exit %d, expected %d with %s", got, rc, out);
	free(out);
	return o;
}

void checkup_is(const json_t *o, const char *check, const char *result, const char *text)
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
				 json_string_value(json_object_get(c, "result")), found, remedy,
				 result, text);
		return;
	}
	fail_msg("%s is not there", check);
}

int checkup_setup(void **state)
{
	(void)state;
	return mkdtemp(dir) ? 0 : -1;
}

int checkup_teardown(void **state)
{
	(void)state;
	rmtree(dir);
	return 0;
}
