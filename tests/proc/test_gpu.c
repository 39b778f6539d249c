// SPDX-License-Identifier: Apache-2.0
/* Models whose state is on GPUs, on real daemons over the driver library for tests, with two
 * devices each. Daemons that are killed go on with what they had on their devices, whose memory
 * systemd keeps, copies are equal, a save is restored in main memory and the other way round, and
 * chunks move. A node whose device fails loses its copies, and gets them from the other nodes.
 * Where only a tmpfs outlives a process, memory of devices does not. A node without a GPU refuses,
 * by name.
 */
#include "base/check.h"
#include "lib/crew.h"
#include "lib/fakegpu.h"
#include "lib/keep.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/rmtree.h"
#include "lib/tool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { NODES = 3 };
#define TIER "replicas=2 chunk_elems=1024 tier=gpu"

static struct {
	struct cluster *cluster; /* NULL: none. */
	struct crew *crew;
	char folder[64];
} on;

static int setup(void **state)
{
	(void)state;
	strcpy(on.folder, "/tmp/shardd-gpu-XXXXXX");
	CHECK(mkdtemp(on.folder) != NULL);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	CHECK(unsetenv("FAKE_CUDA_FAIL") == 0);
	cluster_put_away(&on.cluster);
	free(on.crew);
	on.crew = NULL;
	rmtree(on.folder);
	return 0;
}

/* Starts the nodes, with checkpoints in folder/saves, and two trainers of node a. Returns after
 * three steps. */
static void begin(int nodes_nr, const char *settings, enum cluster_warm warm)
{
	char model[512];

	snprintf(model, sizeof(model), "checkpoint_dir = %s/saves\n", on.folder);
	on.crew = calloc(1, sizeof(*on.crew));
	CHECK(on.crew != NULL);
	crew_init(on.crew, "m");
	crew_larger(on.crew, CREW_SCALE_MAX);
	on.crew->extra = settings;
	on.crew->pause_us = 10000;
	on.cluster = cluster_make(nodes_nr, model, "[daemon]\ngpu = auto\n");
	cluster_warm(on.cluster, warm);
	cluster_up(on.cluster);
	for (int i = 0; i < 2; i++)
		crew_add(on.crew, on.cluster->node[0].unix_address, 0)->reconnects = true;
	crew_start(on.crew, UINT64_MAX);
	crew_wait_step(on.crew, 3);
}

static void more(uint64_t steps)
{
	crew_wait_step(on.crew, crew_step(on.crew) + steps);
}

static const char *words(char out[400], const char *what, const char *rest)
{
	snprintf(out, 400, "%s --address %s %s", what, on.cluster->node[0].unix_address, rest);
	return out;
}

static void end(int nodes_nr)
{
	uint64_t last = crew_finish(on.crew);

	for (int n = 0; n < nodes_nr; n++)
		crew_check(on.crew, on.cluster->node[n].unix_address, last);
	cluster_done(&on.cluster);
}

static void again(int n)
{
	cluster_kill(on.cluster, n);
	cluster_spawn(on.cluster, n);
	cluster_ready(on.cluster, n);
	more(3);
	assert_int_equal(cluster_logged(on.cluster, n, "event=model_kept model=m"), 1);
}

static void test_killed(void **state)
{
	char w[400];

	(void)state;
	begin(NODES, TIER, CLUSTER_SYSTEMD);
	for (int n = 0; n < NODES; n++)
		assert_int_equal(cluster_logged(on.cluster, n, "event=gpu_tier model=m gpus=2"), 1);
	for (int n = NODES; n-- > 0;)
		again(n);
	tool_expect(0, "all equal", "shardctl", words(w, "verify", "m"));
	assert_int_equal(cluster_logged(on.cluster, 1, "event=model_void"), 0);
	end(NODES);
}

/* The devices have the only copy. */
static void test_killed_alone(void **state)
{
	(void)state;
	begin(1, "chunk_elems=1024 tier=gpu gpu_share=80", CLUSTER_SYSTEMD);
	for (int i = 0; i < 12; i++) {
		cluster_kill(on.cluster, 0);
		cluster_spawn(on.cluster, 0);
		cluster_ready(on.cluster, 0);
		more(2);
	}
	assert_int_equal(cluster_logged(on.cluster, 0, "event=model_void"), 0);
	end(1);
}

/* Two models on the same devices, of which one is dropped. A kill costs neither anything. */
static void test_two(void **state)
{
	struct crew *other = calloc(1, sizeof(*other));
	char w[400];
	uint64_t last;

	(void)state;
	CHECK(other != NULL);
	begin(NODES, TIER, CLUSTER_SYSTEMD);
	crew_init(other, "n");
	crew_larger(other, CREW_SCALE_MAX);
	other->extra = TIER " gpu_share=50";
	other->pause_us = 10000;
	for (int i = 0; i < 2; i++)
		crew_add(other, on.cluster->node[1].unix_address, 1)->reconnects = true;
	crew_start(other, UINT64_MAX);
	crew_wait_step(other, 3);
	for (int n = 0; n < NODES; n++) {
		again(n);
		assert_int_equal(cluster_logged(on.cluster, n, "event=model_kept model=n"), 1);
		crew_wait_step(other, crew_step(other) + 3);
	}
	last = crew_finish(other);
	for (int n = 0; n < NODES; n++)
		crew_check(other, on.cluster->node[n].unix_address, last);
	tool_expect(0, "", "shardctl", words(w, "model drop", "n"));
	cluster_kill(on.cluster, 2);
	cluster_spawn(on.cluster, 2);
	cluster_ready(on.cluster, 2);
	more(3);
	assert_int_equal(cluster_logged(on.cluster, 2, "event=model_kept model=m"), 2);
	assert_int_equal(cluster_logged(on.cluster, 2, "event=model_kept model=n"), 1);
	end(NODES);
	free(other);
}

/* What a save has of chunks on devices is what the crew has computed. */
static void restored(const char *saved, const char *into)
{
	uint64_t last;
	char w[512];

	begin(NODES, saved, CLUSTER_SYSTEMD);
	last = crew_finish(on.crew);
	tool_expect(0, "step", "shardctl", words(w, "save", "m"));
	tool_expect(0, "", "shardctl", words(w, "model drop", "m"));
	on.crew->extra = into;
	assert_int_equal(crew_define(on.crew, on.cluster->node[1].unix_address, w), SHARD_OK);
	for (int n = 0; n < NODES; n++)
		crew_check(on.crew, on.cluster->node[n].unix_address, last);
	cluster_done(&on.cluster);
}

static void test_saved(void **state)
{
	(void)state;
	restored(TIER, "replicas=2 chunk_elems=1024 restore_at_start=yes");
	free(on.crew);
	rmtree(on.folder);
	CHECK(mkdir(on.folder, 0700) == 0);
	restored("replicas=1 chunk_elems=1024",
		 "replicas=2 chunk_elems=2048 tier=gpu gpu_share=60 restore_at_start=yes");
}

/* Saves while steps change what is saved. */
static void test_saved_meanwhile(void **state)
{
	char w[512], folder[128], tag[65];
	uint64_t step;

	(void)state;
	begin(NODES, TIER, CLUSTER_SYSTEMD);
	for (int i = 0; i < 3; i++) {
		tool_expect(0, "step", "shardctl", words(w, "save", "m"));
		more(2);
	}
	(void)crew_finish(on.crew);
	snprintf(folder, sizeof(folder), "%s/saves/m", on.folder);
	step = keep_newest(folder, tag);
	tool_expect(0, "", "shardctl", words(w, "model drop", "m"));
	on.crew->extra = "replicas=2 chunk_elems=1024 restore_at_start=yes";
	assert_int_equal(crew_define(on.crew, on.cluster->node[1].unix_address, w), SHARD_OK);
	for (int n = 0; n < NODES; n++)
		crew_check(on.crew, on.cluster->node[n].unix_address, step);
	cluster_done(&on.cluster);
}

/* The image of a chunk is then made of codes, by the processors. */
static void test_codes(void **state)
{
	(void)state;
	begin(NODES, TIER " grad_codec=int8 image_codec=int4", CLUSTER_SYSTEMD);
	again(1);
	again(0);
	end(NODES);
}

/* Chunks that a node was made with come back to its devices, and others to its memory. */
static void test_moves(void **state)
{
	char w[400], what[32];

	(void)state;
	begin(NODES, TIER, CLUSTER_SYSTEMD);
	for (int n = NODES; n-- > 1;) {
		snprintf(what, sizeof(what), "%c", 'a' + n);
		tool_expect(0, "", "shardctl", words(w, "drain", what));
		more(2);
		snprintf(what, sizeof(what), "--undo %c", 'a' + n);
		tool_expect(0, "", "shardctl", words(w, "drain", what));
		more(2);
	}
	tool_expect(0, "all equal", "shardctl", words(w, "verify", "m"));
	end(NODES);
}

/* Between two nodes of which neither coordinates, too. More of it is in test_gpu_fail. */
static void test_device_fails(void **state)
{
	(void)state;
	begin(NODES, TIER, CLUSTER_SYSTEMD);
	cluster_kill(on.cluster, 2);
	CHECK(setenv("FAKE_CUDA_FAIL", "cuLaunchKernel 40 700", 1) == 0);
	cluster_spawn(on.cluster, 2);
	CHECK(unsetenv("FAKE_CUDA_FAIL") == 0);
	cluster_wait_log(on.cluster, 2, "event=gpu_state_lost model=m", 1);
	cluster_wait_log(on.cluster, 2, "event=learned model=m", 1);
	more(3);
	end(NODES);
}

/* A GPU that cannot be opened at one start costs no weights: that start ends, and the next one goes
 * on. One that is not there any more does, and the copies come from the other nodes. */
static void test_fewer(void **state)
{
	int status;

	(void)state;
	begin(NODES, TIER, CLUSTER_SYSTEMD);
	cluster_kill(on.cluster, 2);
	CHECK(setenv("FAKE_CUDA_FAIL", "cuDevicePrimaryCtxRetain 1 2", 1) == 0);
	cluster_spawn(on.cluster, 2);
	CHECK(unsetenv("FAKE_CUDA_FAIL") == 0);
	status = cluster_wait(on.cluster, 2, pace_ms(60000));
	assert_true(WIFEXITED(status));
	assert_int_not_equal(WEXITSTATUS(status), 0);
	cluster_spawn(on.cluster, 2);
	cluster_ready(on.cluster, 2);
	more(3);
	assert_int_equal(cluster_logged(on.cluster, 2, "event=model_kept model=m"), 1);
	assert_int_equal(cluster_logged(on.cluster, 2, "event=model_void"), 0);
	cluster_kill(on.cluster, 2);
	CHECK(setenv("FAKE_CUDA_DEVICES", "1", 1) == 0);
	cluster_spawn(on.cluster, 2);
	CHECK(setenv("FAKE_CUDA_DEVICES", "2", 1) == 0);
	cluster_ready(on.cluster, 2);
	cluster_wait_log(on.cluster, 2, "event=learned model=m", 1);
	assert_int_equal(cluster_logged(on.cluster, 2, "event=model_void model=m"), 1);
	more(3);
	end(NODES);
}

static void refused(const char *what)
{
	char error[512];

	on.crew = calloc(1, sizeof(*on.crew));
	CHECK(on.crew != NULL);
	crew_init(on.crew, "m");
	on.crew->extra = TIER;
	cluster_up(on.cluster);
	crew_add(on.crew, on.cluster->node[0].unix_address, 0);
	assert_int_equal(crew_define(on.crew, on.cluster->node[0].unix_address, error),
			 SHARD_UNSUPPORTED);
	assert_non_null(strstr(error, "\"m\" has tier = gpu"));
	assert_non_null(strstr(error, what));
	assert_non_null(strstr(error, "node "));
	cluster_done(&on.cluster);
}

static void test_tmpfs(void **state)
{
	(void)state;
	on.cluster = cluster_make(2, NULL, "[daemon]\ngpu = auto\n");
	cluster_warm(on.cluster, CLUSTER_TMPFS);
	refused("warm_restart = systemd");
}

static void test_no_gpu(void **state)
{
	(void)state;
	on.cluster = cluster_make(2, NULL, NULL);
	refused("set [daemon] gpu");
}

int main(int argc, char **argv)
{
#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(test_saved_meanwhile), TEST(test_codes),        TEST(test_killed),
		TEST(test_killed_alone),    TEST(test_two),          TEST(test_saved),
		TEST(test_moves),           TEST(test_device_fails), TEST(test_fewer),
		TEST(test_tmpfs),           TEST(test_no_gpu),
	};

	(void)argc;
	fakegpu_path(argv);
	CHECK(setenv("FAKE_CUDA_DEVICES", "2", 1) == 0);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
