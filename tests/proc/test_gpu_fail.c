// SPDX-License-Identifier: Apache-2.0
/* GPUs that fail while a daemon works, on real daemons over the driver library for tests. One model
 * has its state on the GPUs and another one in main memory. Whatever call of the driver fails or
 * hangs, and on whichever node, the daemon goes on, the model in memory trains on without a lost
 * connection or a repeated step, and the other one gets its copies back: from other nodes, or from
 * its checkpoint. Without either it is lost, by name. All weights are then bit for bit what they
 * have to be. A node whose named GPU is gone starts all the same.
 */
#include "base/check.h"
#include "lib/crew.h"
#include "lib/cutter.h"
#include "lib/fakegpu.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/rmtree.h"
#include "lib/tool.h"
#include "lib/trainer.h"
#include "wire/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

/* Those of devices 0 and 1 of the library, and one that there is not. */
#define UUID(n) "GPU-fa4e6e6f-2047-5055-2068-6572652e000" n
#define NOWHERE "GPU-fa4e6e6f-2047-5055-2068-6572652e0077"
#define GPU     "chunk_elems=1024 tier=gpu"

static struct {
	struct cluster *cluster; /* NULL: none. */
	struct crew *gpu, *ram;
	pid_t trainer[2]; /* Of the model on the GPU, where they are apart. */
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
	CHECK(unsetenv("FAKE_CUDA_FAIL") == 0 && unsetenv("SHARDD_GPU_DEADLINE_MS") == 0);
	CHECK(setenv("FAKE_CUDA_DEVICES", "2", 1) == 0);
	cluster_put_away(&on.cluster);
	free(on.gpu);
	free(on.ram);
	on.gpu = on.ram = NULL;
	rmtree(on.folder);
	return 0;
}

static struct crew *crew_of(const char *name, const char *settings)
{
	struct crew *c = calloc(1, sizeof(*c));

	CHECK(c != NULL);
	crew_init(c, name);
	crew_larger(c, CREW_SCALE_MAX);
	c->extra = settings;
	c->pause_us = 10000;
	return c;
}

static int trainer(void *rank)
{
	crew_run(on.gpu, (uint32_t)(intptr_t)rank, UINT64_MAX);
	return 0;
}

struct begins {
	int nodes_nr, fails_on;
	const char *fail;           /* FAKE_CUDA_FAIL of that node. */
	const char *settings, *ram; /* Of the models. */
	const char *lines;          /* Of the configuration. NULL: none. */
	enum cluster_warm warm;
	bool between; /* Links lead through a cutter. */
	bool apart;   /* The trainers on the GPU are processes, which end when it is lost. */
};

/* Starts the nodes, with checkpoints in folder/saves, and two trainers of each model. */
static void begin(const struct begins *b)
{
	char model[512];

	snprintf(model, sizeof(model), "checkpoint_dir = %s/saves\n", on.folder);
	on.cluster =
		cluster_make(b->nodes_nr, model, b->lines ? b->lines : "[daemon]\ngpu = auto\n");
	if (b->between)
		cluster_between(on.cluster);
	if (b->warm < CLUSTER_WARM_NR)
		cluster_warm(on.cluster, b->warm);
	for (int n = 0; n < b->nodes_nr; n++) {
		if (n == b->fails_on)
			CHECK(setenv("FAKE_CUDA_FAIL", b->fail, 1) == 0);
		cluster_spawn(on.cluster, n);
		CHECK(unsetenv("FAKE_CUDA_FAIL") == 0);
	}
	for (int n = 0; n < b->nodes_nr; n++)
		cluster_ready(on.cluster, n);
	on.ram = crew_of("r", b->ram);
	on.gpu = crew_of("m", b->settings);
	for (int i = 0; i < 2; i++) {
		crew_add(on.ram, on.cluster->node[b->nodes_nr - 1].unix_address, 0);
		crew_add(on.gpu, on.cluster->node[0].unix_address, 0)->reconnects = true;
	}
	crew_start(on.ram, UINT64_MAX);
	crew_wait_step(on.ram, 3);
	if (!b->apart)
		crew_start(on.gpu, UINT64_MAX);
	for (intptr_t i = 0; i < 2 && b->apart; i++)
		on.trainer[i] = proc_fork(trainer, (void *)i);
}

static const char *words(char out[400], const char *what, const char *rest)
{
	snprintf(out, 400, "%s --address %s %s", what, on.cluster->node[0].unix_address, rest);
	return out;
}

static void more(struct crew *c, uint64_t steps)
{
	crew_wait_step(c, crew_step(c) + steps);
}

/* No daemon has ended, and nothing that is not about the GPU has happened to the other model. */
static void undisturbed(int nodes_nr, bool repeats)
{
	more(on.ram, 3);
	for (uint32_t i = 0; i < on.ram->nr; i++) {
		assert_int_equal(on.ram->member[i].reconnected, 0);
		assert_int_equal(on.ram->member[i].rolled_back, 0);
		if (!repeats)
			assert_int_equal(on.ram->member[i].retries, 0);
	}
	for (int n = 0; n < nodes_nr; n++)
		assert_int_equal(cluster_logged(on.cluster, n, "event=start "), 1);
}

static void end(int nodes_nr)
{
	uint64_t last = crew_finish(on.gpu), other = crew_finish(on.ram);

	for (int n = 0; n < nodes_nr; n++) {
		crew_check(on.gpu, on.cluster->node[n].unix_address, last);
		crew_check(on.ram, on.cluster->node[n].unix_address, other);
	}
	cluster_done(&on.cluster);
	free(on.gpu);
	free(on.ram);
	on.gpu = on.ram = NULL;
}

/* --- two copies --- */

static void copies(int fails_on, const char *fail, enum cluster_warm warm)
{
	const struct begins b = {.nodes_nr = 2,
				 .fails_on = fails_on,
				 .fail = fail,
				 .settings = GPU " replicas=2",
				 .ram = "chunk_elems=1024 replicas=2",
				 .warm = warm};
	char w[400];

	begin(&b);
	cluster_wait_log(on.cluster, fails_on, "event=gpu_state_lost model=m", 1);
	cluster_wait_log(on.cluster, fails_on, "event=copy_ended model=m", 1);
	assert_int_equal(cluster_logged(on.cluster, !fails_on, "event=copy_gone model=m"), 1);
	cluster_wait_log(on.cluster, fails_on, "event=learned model=m", 1);
	more(on.gpu, 3);
	undisturbed(2, false);
	tool_expect(0, "all equal", "shardctl", words(w, "verify", "m"));
	tool_expect(1, "is lost: ", "shardctl", words(w, "status", ""));
	end(2);
}

/* The node that coordinates, and the other one. */
static void test_kernel_fails(void **state)
{
	(void)state;
	copies(1, "cuLaunchKernel 90 700", CLUSTER_SYSTEMD);
	copies(0, "cuLaunchKernel 90 700", CLUSTER_SYSTEMD);
}

/* Any call of a job, at any time. */
static void test_calls_fail(void **state)
{
	static const char *const calls[] = {"cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2",
					    "cuEventRecord", "cuEventSynchronize"};
	unsigned seed = (unsigned)getpid();
	char fail[64];

	(void)state;
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		snprintf(fail, sizeof(fail), "%s %u 719", calls[i], 1200 + rand_r(&seed) % 600);
		print_message("%s\n", fail);
		copies((int)(i & 1), fail, i & 2 ? CLUSTER_SYSTEMD : CLUSTER_WARM_NR);
	}
}

/* The only GPU of the node: the copy comes to main memory there, and is taken over by a later
 * process. */
static void test_to_memory(void **state)
{
	const struct begins b = {.nodes_nr = 2,
				 .fails_on = 1,
				 .fail = "cuLaunchKernel 90 700",
				 .settings = GPU " replicas=2",
				 .ram = "chunk_elems=1024 replicas=2"};

	(void)state;
	CHECK(setenv("FAKE_CUDA_DEVICES", "1", 1) == 0);
	begin(&b);
	cluster_wait_log(on.cluster, 1, "event=gpu_to_memory model=m", 1);
	cluster_wait_log(on.cluster, 1, "event=learned model=m", 1);
	more(on.gpu, 3);
	undisturbed(2, false);
	(void)crew_finish(on.ram); /* Its trainers are at the node that is killed. */
	cluster_kill(on.cluster, 1);
	cluster_spawn(on.cluster, 1);
	cluster_ready(on.cluster, 1);
	more(on.gpu, 3);
	assert_int_equal(cluster_logged(on.cluster, 1, "event=model_kept model=m"), 1);
	assert_int_equal(cluster_logged(on.cluster, 1, "event=model_void"), 0);
	(void)crew_finish(on.gpu);
	cluster_done(&on.cluster);
}

/* A call that does not come back: the driver keeps the memory, and the daemon goes on. */
static void test_hangs(void **state)
{
	(void)state;
	CHECK(setenv("SHARDD_GPU_DEADLINE_MS", "1500", 1) == 0);
	copies(1, "cuEventSynchronize 700 -1", CLUSTER_SYSTEMD);
	copies(0, "cuMemcpyHtoDAsync_v2 1500 -1", CLUSTER_SYSTEMD);
}

/* --- elected --- */

static void elected(int fails_on)
{
	const struct begins b = {.nodes_nr = 3,
				 .fails_on = fails_on,
				 .fail = "cuLaunchKernel 90 700",
				 .settings = GPU " replicas=2",
				 .ram = "chunk_elems=1024 replicas=2",
				 .lines = "[cluster]\nmembership = quorum\n[daemon]\ngpu = auto\n"};

	begin(&b);
	cluster_wait_log(on.cluster, fails_on, "event=gpu_state_lost model=m", 1);
	cluster_wait_log(on.cluster, fails_on, "event=learned model=m", 1);
	more(on.gpu, 3);
	undisturbed(3, true);
	end(3);
}

static void test_elected(void **state)
{
	(void)state;
	for (int n = 0; n < 3; n++)
		elected(n);
}

/* --- one copy --- */

static void lone(const char *fail)
{
	const struct begins b = {
		.nodes_nr = 1, .fail = fail, .settings = GPU, .ram = "chunk_elems=1024"};
	char w[400];

	begin(&b);
	crew_wait_step(on.gpu, 2);
	tool_expect(0, "step", "shardctl", words(w, "save", "m"));
}

/* It comes back from its checkpoint, on the other GPU or in main memory. */
static void test_lone_restored(void **state)
{
	(void)state;
	for (int devices = 2; devices-- > 0;) {
		CHECK(setenv("FAKE_CUDA_DEVICES", devices ? "2" : "1", 1) == 0);
		lone("cuLaunchKernel 6000 700");
		cluster_wait_log(on.cluster, 0, "event=gpu_state_lost model=m", 1);
		cluster_wait_log(on.cluster, 0, "event=lost model=m", 1);
		cluster_wait_log(on.cluster, 0, "event=restored model=m", 1);
		assert_int_equal(cluster_logged(on.cluster, 0, "event=gpu_to_memory model=m"),
				 !devices);
		more(on.gpu, 3);
		undisturbed(1, false);
		end(1);
	}
}

static void fails_to(int rc, const char *what)
{
	char error[512];

	error[0] = 0;
	assert_int_equal(crew_define(on.gpu, on.cluster->node[0].unix_address, error), rc);
	if (strstr(error, what) == NULL)
		fail_msg("\"%s\" is not in \"%s\"", what, error);
}

/* Without a checkpoint it is lost, by name. Then it can be dropped, and defined anew. */
static void test_lone_lost(void **state)
{
	const struct begins b = {.nodes_nr = 1,
				 .fail = "cuLaunchKernel 200 700",
				 .settings = GPU,
				 .ram = "chunk_elems=1024",
				 .apart = true};
	char w[400];

	(void)state;
	begin(&b);
	cluster_wait_log(on.cluster, 0, "event=lost model=m", 1);
	for (int i = 0; i < 2; i++) /* Nothing else ends them. */
		assert_int_not_equal(proc_wait(on.trainer[i], pace_ms(20000)), -1);
	fails_to(SHARD_LOST, "is lost: cuLaunchKernel: CUDA_ERROR_ILLEGAL_ADDRESS");
	tool_expect(0, "", "shardctl", words(w, "model drop", "m"));
	fails_to(SHARD_OK, "");
	undisturbed(1, false);
	(void)crew_finish(on.ram);
}

/* A model is dropped while its device hangs, in the middle of a copy that its weights wait for.
 * What waits for the device comes to an end when it is given up. */
static void test_dropped(void **state)
{
	const struct begins b = {.nodes_nr = 1,
				 .fail = "cuMemcpyHtoDAsync_v2 5 -1",
				 .settings = GPU,
				 .ram = "chunk_elems=1024",
				 .apart = true};
	char w[400];

	(void)state;
	CHECK(setenv("FAKE_CUDA_DEVICES", "1", 1) == 0);
	CHECK(setenv("SHARDD_GPU_DEADLINE_MS", "1500", 1) == 0);
	begin(&b);
	/* That many slots, of masters and two moments of 1024 elements: it hangs now. */
	cluster_says(on.cluster, 0, "\"to_device_bytes\":61440");
	tool_expect(0, "", "shardctl", words(w, "model drop --force", "m"));
	assert_int_equal(cluster_logged(on.cluster, 0, "event=dropped model=m"), 1);
	assert_int_equal(cluster_logged(on.cluster, 0, "event=gpu_holds_memory model=m"), 1);
	assert_int_equal(cluster_logged(on.cluster, 0, "event=copy_ends"), 0);
	for (int i = 0; i < 2; i++)
		assert_int_not_equal(proc_wait(on.trainer[i], pace_ms(20000)), -1);
	fails_to(SHARD_UNSUPPORTED, "the GPU of node a is lost: ");
	undisturbed(1, false);
	(void)crew_finish(on.ram);
	cluster_done(&on.cluster);
}

/* --- a copy that is not made again yet --- */

static void ends(void)
{
	for (int i = 0; i < 2; i++)
		assert_int_not_equal(proc_wait(on.trainer[i], pace_ms(20000)), -1);
	(void)crew_finish(on.ram);
	cluster_done(&on.cluster);
}

/* A node has lost its copy, and its link before the coordinator asked for another one. Meanwhile
 * the model is dropped. When the link is back the node hears of it, and nobody waits any more. */
static void test_dropped_away(void **state)
{
	const struct begins b = {.nodes_nr = 2,
				 .fails_on = 1,
				 .fail = "cuLaunchKernel 600 700",
				 .settings = GPU " replicas=2",
				 .ram = "chunk_elems=1024 replicas=2",
				 .between = true,
				 .apart = true};
	struct trainer t;
	char w[400];

	(void)state;
	begin(&b);
	cluster_wait_log(on.cluster, 1, "event=sealed model=m", 1);
	cutter_lose(on.cluster->cutter, OP_MODEL);
	cluster_wait_log(on.cluster, 1, "event=copy_ended model=m", 1);
	cutter_part(on.cluster->cutter, 0, 1, CUTTER_ENDS);
	cluster_wait_log(on.cluster, 0, "event=link_down peer=b", 1);
	tool_expect(0, "", "shardctl", words(w, "model drop --force", "m"));
	cutter_lose(on.cluster->cutter, 0);
	cutter_part(on.cluster->cutter, 0, 1, CUTTER_WHOLE);
	cluster_wait_log(on.cluster, 1, "event=link_up peer=a", 2);
	trainer_connect(&t, on.cluster->node[1].unix_address);
	EXPECT(SHARD_NOT_FOUND, shard_attach(t.client, "m", &t.model));
	trainer_end(&t);
	ends();
}

/* The coordinator has lost its copy and cannot make another one, because the model's file is away.
 * A node whose link is made again meanwhile keeps its copy. */
static void test_kept_elsewhere(void **state)
{
	const struct begins b = {.nodes_nr = 2,
				 .fails_on = 0,
				 .fail = "cuLaunchKernel 600 700",
				 .settings = GPU " replicas=2",
				 .ram = "chunk_elems=1024 replicas=2",
				 .between = true};
	char path[200], away[220], *log, *at;
	uint32_t id;

	(void)state;
	begin(&b);
	cluster_wait_log(on.cluster, 0, "event=sealed model=m", 1);
	log = cluster_log(on.cluster, 0);
	at = strstr(log, "event=model model=m id=");
	assert_non_null(at);
	id = (uint32_t)strtoul(strstr(at, "id=") + 3, NULL, 10);
	free(log);
	snprintf(path, sizeof(path), "%s/model-%08x", on.cluster->node[0].state, id);
	snprintf(away, sizeof(away), "%s/away", on.folder);
	assert_int_equal(rename(path, away), 0);
	cluster_wait_log(on.cluster, 0, "event=model_not_made model=m", 1);
	cutter_cut(on.cluster->cutter);
	cluster_wait_log(on.cluster, 1, "event=link_up peer=a", 2);
	assert_int_equal(rename(away, path), 0);
	cluster_wait_log(on.cluster, 0, "event=learned model=m", 1);
	assert_int_equal(cluster_logged(on.cluster, 1, "event=drop model=m"), 0);
	more(on.gpu, 3);
	end(2);
}

/* --- the image of a copy that is lost --- */

/* Trains with gradients of 1 and lr=1 until the GPU fails, and returns what is kept of the image
 * after that. Each weight of step N has to be N less than what was written. */
static struct shard_kept kept_of(const char *settings)
{
	struct shard_kept kept = SHARD_INIT(struct shard_kept);
	struct shard_result res = SHARD_INIT(struct shard_result);
	struct shard_info info = SHARD_INIT(struct shard_info);
	struct shard_spec spec;
	struct trainer t;

	trainer_spec(&spec, SHARD_F32, SHARD_F32);
	spec.name = "m";
	spec.settings = settings;
	trainer_define_as(&t, on.cluster->node[0].unix_address, &spec);
	EXPECT(SHARD_OK, shard_join(t.model, -1, pace_ms(10000), &t.world));
	while (shard_begin(t.model, NULL, &t.step) == SHARD_OK) {
		trainer_push_all(&t, 1);
		EXPECT(SHARD_OK, shard_commit(t.model, NULL));
		if (shard_result(t.model, 0, pace_ms(20000), &res) != SHARD_OK)
			break;
	}
	cluster_wait_log(on.cluster, 0, "event=copy_ended model=m", 1);
	EXPECT(SHARD_OK, shard_keep(t.model, SHARD_IMAGE, pace_ms(20000), &kept));
	for (uint32_t i = 0; i < TRAINER_TENSORS && !kept.mixed; i++) {
		const float *w;

		EXPECT(SHARD_OK, shard_tensor_info(t.model, i, &info));
		w = (const float *)(const void *)((char *)kept.base + info.image_offset);
		for (uint64_t k = 0; k < trainer_numel[i]; k++)
			if (w[k] != trainer_weight(i, k) - (float)kept.step)
				fail_msg("step %llu: element %llu of tensor %u is %g, not %g",
					 (unsigned long long)kept.step, (unsigned long long)k, i,
					 (double)w[k],
					 (double)(trainer_weight(i, k) - (float)kept.step));
	}
	trainer_end(&t);
	return kept;
}

/* A trainer keeps the image of a model whose last chunks were being updated when the GPU failed.
 * It is told that the image is of no step, or the weights are those of the step that it is told. */
static void test_kept(void **state)
{
	static const char *const more[] = {"", " gpu_share=60"};
	uint32_t mixed = 0;
	char fail[64], settings[128];

	(void)state;
	for (unsigned nth = 60; nth < 84; nth++) {
		struct shard_kept kept;

		snprintf(fail, sizeof(fail), "cuEventSynchronize %u 719", nth);
		snprintf(settings, sizeof(settings),
			 "optimizer=sgd lr=1 chunk_elems=1024 tier=gpu%s", more[nth % 2]);
		on.cluster = cluster_make(1, NULL, "[daemon]\ngpu = auto\n");
		CHECK(setenv("FAKE_CUDA_FAIL", fail, 1) == 0);
		cluster_up(on.cluster);
		CHECK(unsetenv("FAKE_CUDA_FAIL") == 0);
		kept = kept_of(settings);
		mixed += kept.mixed;
		shard_unmap(&kept);
		cluster_done(&on.cluster);
	}
	assert_true(mixed > 0);
}

/* --- a start --- */

static void test_named_gone(void **state)
{
	const struct begins b = {.nodes_nr = 1,
				 .fails_on = -1,
				 .settings = GPU,
				 .ram = "chunk_elems=1024",
				 .lines = "[daemon]\ngpu = " UUID("0") "," UUID("1") "\n"};
	char w[400];

	(void)state;
	begin(&b);
	crew_wait_step(on.gpu, 3);
	tool_expect(0, "step", "shardctl", words(w, "save", "m"));
	(void)crew_finish(on.ram);
	cluster_kill(on.cluster, 0);
	CHECK(setenv("FAKE_CUDA_DEVICES", "1", 1) == 0);
	cluster_spawn(on.cluster, 0);
	cluster_ready(on.cluster, 0);
	assert_int_equal(cluster_logged(on.cluster, 0,
					"event=no_gpu why=\"[daemon] gpu = " UUID(
						"1") ": there is no " UUID("1")),
			 1);
	cluster_wait_log(on.cluster, 0, "event=restored model=m", 1);
	more(on.gpu, 3);
	assert_int_equal(cluster_logged(on.cluster, 0, "event=model_kept model=r"), 1);
	tool_expect(1, "started without a GPU: ", "shardctl", words(w, "status", ""));
	(void)crew_finish(on.gpu);
	cluster_done(&on.cluster);
}

int main(int argc, char **argv)
{
#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(test_kernel_fails), TEST(test_calls_fail),   TEST(test_to_memory),
		TEST(test_hangs),        TEST(test_elected),      TEST(test_lone_restored),
		TEST(test_lone_lost),    TEST(test_dropped),      TEST(test_named_gone),
		TEST(test_kept),         TEST(test_dropped_away), TEST(test_kept_elsewhere),
	};

	fakegpu_path(argv);
	CHECK(setenv("FAKE_CUDA_DEVICES", "2", 1) == 0);
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
