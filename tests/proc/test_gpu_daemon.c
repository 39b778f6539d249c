// SPDX-License-Identifier: Apache-2.0
/* Daemons with GPUs, on the driver library of tests/cuda: which of them a daemon takes, what it
 * does where one is missing, and who shows them: the log, status, metrics and health. One that is
 * lost is told once, and is ill. */
#include "base/check.h"
#include "gpu/device.h"
#include "lib/fakegpu.h"
#include "lib/inproc.h"
#include "lib/ports.h"
#include "lib/tool.h"
#include "lib/web.h"
#include "node/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

/* That of device 1, and one that there is not. */
#define UUID    "GPU-fa4e6e6f-2047-5055-2068-6572652e0001"
#define NOWHERE "GPU-fa4e6e6f-2047-5055-2068-6572652e0077"

static struct fakegpu fake;
static char dir[64];

/* Runs a daemon that ends a moment after its start. */
static void start(int rc, const char *text, const char *options)
{
	char words[800];

	snprintf(words, sizeof(words),
		 "--config /dev/null --node a --listen off --state %s/state --socket %s/s --linger "
		 "50ms --set daemon.http=off --set daemon.memory=64MiB --set "
		 "daemon.warm_restart=off %s",
		 dir, dir, options);
	tool_expect(rc, text, "shardd", words);
}

static void takes(void **state)
{
	(void)state;
	start(0, "event=stopped", "");
	start(0, "event=gpu uuid=" UUID " name=\"no GPU: a processor\" memory=1073741824",
	      "--set daemon.gpu=auto");
	start(0, "limit=67108864", "--set daemon.gpu=" UUID " --set daemon.gpu_memory=64MiB");
	/* One that is gone keeps no daemon from starting. */
	start(0,
	      "level=error node=a event=no_gpu why=\"[daemon] gpu = " NOWHERE
	      ": there is no " NOWHERE " among the 2 GPUs",
	      "--set daemon.gpu=" UUID "," NOWHERE);
	start(4, "each once", "--set daemon.gpu=" UUID "," UUID);
	start(4, "off, auto, or up to 16 uuids", "--set daemon.gpu=0");
}

/* auto is no reason to fail. */
static void no_driver(void **state)
{
	char *path = strdup(getenv("LD_LIBRARY_PATH"));

	(void)state;
	setenv("LD_LIBRARY_PATH", dir, 1);
	start(0, "event=no_gpu why=\"no CUDA on this machine: ", "--set daemon.gpu=auto");
	start(0, "event=no_gpu why=\"[daemon] gpu = " UUID ": no CUDA on this machine: ",
	      "--set daemon.gpu=" UUID);
	setenv("LD_LIBRARY_PATH", path, 1);
	setenv("FAKE_CUDA_FAIL", "cuModuleLoadData 1 209", 1); /* The first one is too old. */
	start(0, "event=no_gpu device=0 why=\"cuModuleLoadData of the kernels",
	      "--set daemon.gpu=auto");
	unsetenv("FAKE_CUDA_FAIL");
	free(path);
}

static void shows(void **state)
{
	uint16_t port = ports_take();
	char daemon[200], address[200];
	struct inproc c;
	struct gpu_mem m = {.fd = -1};
	struct inproc_conf conf = {.nodes = 1, .daemon = daemon};
	struct err e = {0};
	json_t *status, *gpus;

	(void)state;
	snprintf(daemon, sizeof(daemon),
		 "gpu = auto\ngpu_memory = 8MiB\nmemory = 256MiB\nhttp = 127.0.0.1:%u\n", port);
	inproc_start(&c, &conf);
	assert_int_equal(inproc_logged(&c.node[0], "event=gpu "), 2);
	assert_int_equal(gpu_map(c.node[0].server->gpu[1], 4 << 20, false, &m, &e), SHARD_OK);
	status = inproc_status(&c.node[0]);
	gpus = json_object_get(status, "gpus");
	assert_int_equal(json_array_size(gpus), 2);
	assert_string_equal(json_string_value(json_object_get(json_array_get(gpus, 1), "uuid")),
			    UUID);
	assert_int_equal(json_integer_value(json_object_get(json_array_get(gpus, 1), "used")),
			 4 << 20);
	assert_null(json_object_get(json_array_get(gpus, 1), "lost"));
	/* Its buffers are in the budget of the node. */
	assert_in_range(json_integer_value(json_object_get(json_array_get(gpus, 1), "host")),
			18 << 20, 19 << 20); /* As `shardctl plan` says. */
	assert_int_equal(
		json_integer_value(json_object_get(json_array_get(gpus, 0), "host")) +
			json_integer_value(json_object_get(json_array_get(gpus, 1), "host")),
		c.node[0].server->budget.gpus);
	assert_int_equal(c.node[0].server->budget.used,
			 c.node[0].server->budget.gpus + c.node[0].server->budget.queues);
	json_decref(status);
	WEB_EXPECT(port, "GET", "/metrics", "shardd_gpu_memory_bytes{gpu=\"" UUID "\"} 8388608",
		   "shardd_gpu_memory_used_bytes{gpu=\"" UUID "\"} 4194304",
		   "shardd_gpu_copied_bytes_total{gpu=\"" UUID "\",direction=\"in\"} 0",
		   "shardd_gpu_updates_total{gpu=\"" UUID "\"} 0",
		   "shardd_gpu_lost{gpu=\"" UUID "\"} 0");
	snprintf(address, sizeof(address), "--address %.140s status", c.node[0].unix_address);
	tool_expect(0, "gpu " UUID ": no GPU: a processor, 4.00 MiB of 8.00 MiB for models",
		    "shardctl", address);
	gpu_unmap(&m);

	/* One fails. */
	fake.fake_cuda_fail("cuMemCreate", 1, 719);
	assert_int_equal(gpu_map(c.node[0].server->gpu[1], 4 << 20, false, &m, &e), SHARD_SYSTEM);
	fake.fake_cuda_fail(NULL, 0, 0);
	inproc_wait_log(&c.node[0], "event=gpu_lost why=\"" UUID " is lost: cuMemCreate: ", 1);
	web_await(port, "/healthz", "ill: node a: " UUID " is lost");
	web_await(port, "/metrics", "shardd_gpu_lost{gpu=\"" UUID "\"} 1");
	WEB_EXPECT(port, "GET", "/metrics",
		   "shardd_gpu_lost{gpu=\"GPU-fa4e6e6f-2047-5055-2068-6572652e0000\"} 0");
	tool_expect(1, "CUDA_ERROR_LAUNCH_FAILED", "shardctl", address);
	assert_int_equal(inproc_logged(&c.node[0], "event=gpu_lost"), 1);
	inproc_stop(&c);
	fake.fake_cuda_forget(1);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(takes),
		cmocka_unit_test(no_driver),
		cmocka_unit_test(shows),
	};
	char command[100];
	int rc;

	setenv("FAKE_CUDA_DEVICES", "2", 0);
	fakegpu_path(argv);
	fakegpu_find(&fake);
	strcpy(dir, "/tmp/shard-gpu-XXXXXX");
	CHECK(mkdtemp(dir) != NULL);
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	rc = cmocka_run_group_tests(tests, NULL, NULL);
	snprintf(command, sizeof(command), "rm -rf %s", dir);
	return system(command) == 0 ? rc : 1;
}
