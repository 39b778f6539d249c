// SPDX-License-Identifier: Apache-2.0
/* GPUs that fail while a daemon does something else than a step: it saves, moves chunks, defines a
 * model, starts with what an earlier process left, or drops. Real daemons over the driver library
 * for tests. Each test first counts the calls of the driver that such a thing makes, and then has
 * one of them fail, drawn at random where trying all takes long. A save is whole or says why there
 * is none, a move ends or is refused by a sentence, a definition fails by name and works when it is
 * asked for again, and a model in main memory does not notice. A call that hangs ends nothing but
 * the GPU. All weights are then bit for bit what they have to be. `test_gpu_midst "*" SEED` draws
 * the same again. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/crew.h"
#include "lib/fakegpu.h"
#include "lib/keep.h"
#include "lib/moved.h"
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

#define GPU    "chunk_elems=1024 tier=gpu"
#define COPIES " replicas=2"

enum { HANGS = -1, OUT_OF_MEMORY = 2, ILLEGAL_ADDRESS = 700, UNKNOWN = 999 };

static struct {
	struct cluster *cluster; /* NULL: none. */
	struct crew *gpu, *ram;
	struct fake_control *control; /* Of the node that fails. */
	char folder[64];
	unsigned seed;
	int odd;   /* 0 or 1, as the first seed. */
	bool cold; /* Memory does not outlive a daemon. */
} on;

/* Another file, so that processes that run do not fail. */
static void control_anew(void)
{
	char path[96];

	fakegpu_control_end(&on.control);
	snprintf(path, sizeof(path), "%s/control", on.folder);
	(void)unlink(path);
	on.control = fakegpu_control(path);
}

static int setup(void **state)
{
	(void)state;
	strcpy(on.folder, "/tmp/shardd-gpu-XXXXXX");
	CHECK(mkdtemp(on.folder) != NULL);
	control_anew();
	return 0;
}

static void crews_end(void)
{
	free(on.gpu);
	free(on.ram);
	on.gpu = on.ram = NULL;
}

static int teardown(void **state)
{
	(void)state;
	CHECK(unsetenv("FAKE_CUDA_CONTROL") == 0 && unsetenv("SHARDD_GPU_DEADLINE_MS") == 0);
	cluster_put_away(&on.cluster);
	crews_end();
	on.cold = false;
	fakegpu_control_end(&on.control);
	rmtree(on.folder);
	return 0;
}

static uint32_t draw(uint32_t n)
{
	return n > 0 ? (uint32_t)rand_r(&on.seed) % n : 0;
}

/* Each try takes seconds, and draws what it does. A quarter of them is for every day. */
static int tries(int nr)
{
	return getenv("CHECK_ALL") != NULL && getenv("CI") == NULL ? nr : (nr + 3) / 4;
}

static struct crew *crew_of(const char *name, const char *settings, int node)
{
	struct crew *c = calloc(1, sizeof(*c));

	CHECK(c != NULL);
	crew_init(c, name);
	crew_larger(c, CREW_SCALE_MAX);
	c->extra = settings;
	c->pause_us = 10000;
	for (int i = 0; i < 2; i++)
		crew_add(c, on.cluster->node[node].unix_address, 0)->reconnects = true;
	return c;
}

/* A node that has the file of on.control. */
static void spawn_failing(int n)
{
	char path[96];

	snprintf(path, sizeof(path), "%s/control", on.folder);
	CHECK(setenv("FAKE_CUDA_CONTROL", path, 1) == 0);
	cluster_spawn(on.cluster, n);
	CHECK(unsetenv("FAKE_CUDA_CONTROL") == 0);
}

/* Starts the nodes, and trainers of a model in main memory, and of one on GPUs (settings; NULL:
 * none). The first trains at the last node, and the other one at the first. */
static void begin(int nodes_nr, int fails_on, const char *settings)
{
	char model[160];

	snprintf(model, sizeof(model), "checkpoint_dir = %s/saves\n", on.folder);
	on.cluster = cluster_make(nodes_nr, model, "[daemon]\ngpu = auto\n");
	if (!on.cold)
		cluster_warm(on.cluster, CLUSTER_SYSTEMD);
	fakegpu_disarm(on.control);
	for (int n = 0; n < nodes_nr; n++) {
		if (n == fails_on)
			spawn_failing(n);
		else
			cluster_spawn(on.cluster, n);
	}
	for (int n = 0; n < nodes_nr; n++)
		cluster_ready(on.cluster, n);
	if (settings != NULL) {
		on.gpu = crew_of("m", settings, 0);
		crew_start(on.gpu, UINT64_MAX);
		crew_wait_step(on.gpu, 3);
	}
	on.ram = crew_of("r", nodes_nr > 1 ? "chunk_elems=1024" COPIES : "chunk_elems=1024",
			 nodes_nr - 1);
	crew_start(on.ram, UINT64_MAX);
	crew_wait_step(on.ram, 3);
}

static const char *words(char out[400], int at, const char *what, const char *rest)
{
	snprintf(out, 400, "%s --address %s %s", what, on.cluster->node[at].unix_address, rest);
	return out;
}

static void more(struct crew *c, uint64_t steps)
{
	crew_wait_step(c, crew_step(c) + steps);
}

/* Until all copies are there, of which one may be lost just now. Comparing all the time would keep
 * it from being made. */
static void verified(int at)
{
	char w[400], *said = NULL;
	int rc;

	for (int i = 0;; i++) {
		rc = tool_run(&said, "shardctl", words(w, at, "verify", "m"));
		if (rc == 0 && strstr(said, "all equal") != NULL)
			break;
		if (rc == 1 || i == 50)
			fail_msg("verify: %d: %s", rc, said);
		free(said);
		more(on.gpu, 3);
	}
	free(said);
}

/* The model in main memory has heard of nothing. */
static void undisturbed(void)
{
	more(on.ram, 3);
	for (uint32_t i = 0; i < on.ram->nr; i++) {
		assert_int_equal(on.ram->member[i].reconnected, 0);
		assert_int_equal(on.ram->member[i].rolled_back, 0);
	}
}

static void end(int nodes_nr)
{
	uint64_t last = on.gpu != NULL ? crew_finish(on.gpu) : 0, other = crew_finish(on.ram);

	for (int n = 0; n < nodes_nr; n++) {
		if (on.gpu != NULL)
			crew_check(on.gpu, on.cluster->node[n].unix_address, last);
		crew_check(on.ram, on.cluster->node[n].unix_address, other);
	}
	cluster_done(&on.cluster);
	crews_end();
}

/* Counts the calls of the driver that it makes there, and has one of them fail the next time. */
static uint32_t counted(void)
{
	uint32_t n = on.control->calls;

	fakegpu_disarm(on.control);
	assert_true(n > 0);
	return n;
}

static void will_fail(uint32_t nth, int error)
{
	print_message("call %u fails with %d\n", nth, error);
	fakegpu_arm(on.control, NULL, nth, error);
}

static void has_failed(int n)
{
	cluster_wait_log(on.cluster, n, "event=gpu_state_lost model=m", 1);
	print_message("it was %s\n", on.control->was);
}

/* --- saves --- */

static int save(char **said)
{
	char w[400];

	return tool_run(said, "shardctl", words(w, 0, "save", "m"));
}

/* What the newest checkpoint has is what the crew has computed. */
static void saved_whole(uint64_t least)
{
	char folder[128], tag[65], error[512], w[400];
	struct crew *c;
	uint64_t step;

	snprintf(folder, sizeof(folder), "%s/saves/m", on.folder);
	step = keep_newest(folder, tag);
	assert_true(step >= least);
	snprintf(w, sizeof(w), "checkpoints %s --verify", folder);
	tool_expect(0, "", "shardctl", w);
	tool_expect(0, "", "shardctl", words(w, 0, "model drop", "m"));
	c = crew_of("m", "chunk_elems=1024 restore_at_start=yes", 0);
	assert_int_equal(crew_define(c, on.cluster->node[0].unix_address, error), SHARD_OK);
	crew_check(c, on.cluster->node[0].unix_address, step);
	free(c);
}

static void forget_saves(void)
{
	char path[96];

	snprintf(path, sizeof(path), "%s/saves", on.folder);
	rmtree(path);
}

static void saves(int nodes_nr, int fails_on)
{
	uint64_t first, last;
	char *said = NULL;
	int rc;

	begin(nodes_nr, fails_on, nodes_nr > 1 ? GPU COPIES : GPU);
	fakegpu_arm(on.control, NULL, 0, 0);
	assert_int_equal(save(NULL), 0);
	rc = (int)counted();
	first = crew_step(on.gpu);
	more(on.gpu, 1);
	will_fail(1 + draw((uint32_t)rc), ILLEGAL_ADDRESS);
	rc = save(&said);
	print_message("%d: %s", rc, said);
	if (rc != 0)
		assert_true(strstr(said, "GPU") != NULL || strstr(said, "copy") != NULL ||
			    strstr(said, "restor") != NULL);
	has_failed(fails_on);
	if (nodes_nr > 1)
		cluster_wait_log(on.cluster, fails_on, "event=learned model=m", 1);
	else
		cluster_wait_log(on.cluster, fails_on, "event=restored model=m", 1);
	more(on.gpu, 3);
	undisturbed();
	last = crew_finish(on.gpu);
	for (int n = 0; n < nodes_nr; n++)
		crew_check(on.gpu, on.cluster->node[n].unix_address, last);
	saved_whole(rc == 0 ? first : 0);
	free(on.gpu);
	on.gpu = NULL;
	end(nodes_nr);
	free(said);
	forget_saves();
}

static void test_save(void **state)
{
	(void)state;
	for (int i = 0; i < tries(4); i++)
		saves(2, (i + on.odd) & 1);
}

static void test_save_alone(void **state)
{
	(void)state;
	for (int i = 0; i < tries(4); i++)
		saves(1, 0);
}

/* --- moves --- */

/* It ends, or is refused by a sentence and ends when it is asked for again. */
static void drains(const char *rest)
{
	char w[400], *said = NULL;
	int rc = tool_run(&said, "shardctl", words(w, 0, "drain", rest));

	for (int i = 0; rc != 0 && i < 20; i++) {
		print_message("drain %s: %d: %s", rest, rc, said);
		assert_true(strstr(said, "node ") != NULL);
		free(said);
		more(on.gpu, 2);
		rc = tool_run(&said, "shardctl", words(w, 0, "drain", rest));
	}
	if (rc != 0)
		fail_msg("drain %s: %d: %s", rest, rc, said);
	free(said);
}

static void moves(int fails_on)
{
	uint32_t calls[2];
	int away;

	begin(3, fails_on, GPU COPIES);
	fakegpu_arm(on.control, NULL, 0, 0);
	drains("c");
	calls[0] = counted();
	fakegpu_arm(on.control, NULL, 0, 0);
	drains("--undo c");
	calls[1] = counted();
	moved_copied(on.cluster, 0);
	away = (int)draw(2); /* Chunks go, or come. */
	if (away == 0)
		will_fail(1 + draw(calls[0]), ILLEGAL_ADDRESS);
	drains("c");
	if (away == 1)
		will_fail(1 + draw(calls[1]), ILLEGAL_ADDRESS);
	drains("--undo c");
	has_failed(fails_on);
	cluster_wait_log(on.cluster, fails_on, "event=learned model=m", 1);
	more(on.gpu, 3);
	undisturbed();
	verified(0);
	end(3);
}

static void test_drain(void **state)
{
	(void)state;
	for (int i = 0; i < tries(3); i++)
		moves((int)((on.seed + (unsigned)i) % 3));
}

/* A node joins two others, of which one fails while it gives chunks away. */
static void joins(int fails_on)
{
	int node;

	on.cold = true; /* The new node has no service manager here. */
	begin(2, fails_on, GPU COPIES);
	will_fail(200 + draw(1500), ILLEGAL_ADDRESS);
	node = cluster_joiner(on.cluster, 1, "[daemon]\ngpu = auto\n");
	cluster_spawn(on.cluster, node);
	cluster_ready(on.cluster, node);
	has_failed(fails_on);
	cluster_wait_log(on.cluster, fails_on, "event=learned model=m", 1);
	moved_wait(on.cluster, 0, node, 1, 1000);
	more(on.gpu, 3);
	undisturbed();
	verified(0);
	end(3);
}

static void test_join(void **state)
{
	(void)state;
	for (int i = 0; i < tries(2); i++)
		joins((i + on.odd) & 1);
}

/* --- definitions and drops --- */

static enum shard_status define(char error[512])
{
	struct crew *c = crew_of("m", GPU, 0);
	enum shard_status st = crew_define(c, on.cluster->node[0].unix_address, error);

	if (st == SHARD_OK)
		error[0] = 0;
	free(c);
	return st;
}

static void drop(void)
{
	char w[400];

	tool_expect(0, "", "shardctl", words(w, 0, "model drop --force", "m"));
}

/* Trainers come and go, and the model is dropped. */
static void trains(void)
{
	uint64_t last;

	on.gpu = crew_of("m", GPU, 0);
	crew_start(on.gpu, UINT64_MAX);
	crew_wait_step(on.gpu, 3);
	last = crew_finish(on.gpu);
	crew_check(on.gpu, on.cluster->node[0].unix_address, last);
	free(on.gpu);
	on.gpu = NULL;
	drop();
}

/* The call that failed is in the sentence, without the "_v2" of its symbol. Of a device that is
 * full there are figures instead. */
static void names_call(const char *error)
{
	char stem[64];

	snprintf(stem, sizeof(stem), "%.*s", (int)strcspn(on.control->was, "_"), on.control->was);
	if (strstr(error, stem) == NULL && strstr(error, " bytes more of GPU-") == NULL)
		fail_msg("%s failed: \"%s\"", on.control->was, error);
}

/* Until no model has memory on the two GPUs. */
static void wait_unused(void)
{
	static const char none[] = "\"used\":0,\"host\":";
	uint64_t until = pace_by(20);
	char w[400], *said = NULL, *at;

	for (;;) {
		(void)tool_run(&said, "shardctl", words(w, 0, "status", "--json"));
		at = strstr(said, none);
		if (at != NULL && strstr(at + 1, none) != NULL)
			break;
		if (clock_ns() > until)
			fail_msg("memory is left on a GPU: %s", said);
		free(said);
	}
	free(said);
}

/* What is refused is refused by the name of the call, and leaves nothing behind. */
static void test_define_fails(void **state)
{
	static const int errors[] = {OUT_OF_MEMORY, UNKNOWN};
	char error[512];

	(void)state;
	begin(1, 0, NULL);
	for (int i = 0; i < 2; i++)
		for (uint32_t nth = 1, more = 1; more; nth++) {
			CHECK(nth < 1000);
			fakegpu_arm(on.control, NULL, nth, errors[i]);
			error[0] = 0;
			if (define(error) == SHARD_OK)
				drop();
			else
				names_call(error);
			more = on.control->failed;
			fakegpu_disarm(on.control);
			wait_unused();
		}
	trains();
	undisturbed();
	end(1);
}

/* The GPU is lost: a definition that is refused for that works when it comes again, on the other
 * GPU. */
static void test_define_lost(void **state)
{
	uint32_t calls;
	char error[512];

	(void)state;
	for (int i = 0; i < tries(6); i++) {
		begin(1, 0, NULL);
		fakegpu_arm(on.control, NULL, 0, 0);
		assert_int_equal(define(error), SHARD_OK);
		calls = counted();
		drop();
		will_fail(1 + draw(calls), ILLEGAL_ADDRESS);
		error[0] = 0;
		if (define(error) == SHARD_OK)
			drop();
		else
			assert_true(strstr(error, "is lost: ") != NULL);
		print_message("it was %s: %s\n", on.control->was, error);
		fakegpu_disarm(on.control);
		trains();
		undisturbed();
		end(1);
	}
}

/* A drop never fails because of the GPU. */
static void test_drop(void **state)
{
	uint32_t calls;
	char error[512];

	(void)state;
	for (int i = 0; i < tries(6); i++) {
		begin(1, 0, NULL);
		assert_int_equal(define(error), SHARD_OK);
		fakegpu_arm(on.control, NULL, 0, 0);
		drop();
		calls = counted();
		assert_int_equal(define(error), SHARD_OK);
		will_fail(1 + draw(calls), (i + on.odd) & 1 ? UNKNOWN : ILLEGAL_ADDRESS);
		drop();
		print_message("it was %s\n", on.control->was);
		fakegpu_disarm(on.control);
		assert_int_equal(cluster_logged(on.cluster, 0, "event=dropped model=m"), 2);
		trains();
		undisturbed();
		end(1);
	}
}

/* --- a driver that hangs --- */

/* A definition and a drop come to an end although a call does not, on the other GPU the next one
 * works, and nobody else waits. The call goes on later, and nothing comes of it. */
static void hangs(bool drops, uint32_t nth)
{
	char error[512];

	begin(1, 0, NULL);
	error[0] = 0;
	if (drops)
		assert_int_equal(define(error), SHARD_OK);
	print_message("%s: call %u hangs\n", drops ? "drop" : "define", nth);
	fakegpu_arm(on.control, NULL, nth, HANGS);
	if (drops)
		drop();
	else if (define(error) == SHARD_OK)
		drop();
	else
		assert_non_null(strstr(error, "a call of its driver has not ended"));
	print_message("it was %s: %s\n", on.control->was, error);
	assert_int_equal(on.control->failed, 1);
	cluster_wait_log(on.cluster, 0, "event=gpu_lost ", 1);
	undisturbed();
	trains();
	fakegpu_let_go(on.control);
	trains();
	undisturbed();
	end(1);
}

static void deadline(const char *ms)
{
	CHECK(setenv("SHARDD_GPU_DEADLINE_MS", ms, 1) == 0);
}

static void test_hangs(void **state)
{
	uint32_t calls[2];
	char error[512];

	(void)state;
	deadline("1500");
	begin(1, 0, NULL);
	fakegpu_arm(on.control, NULL, 0, 0);
	assert_int_equal(define(error), SHARD_OK);
	calls[0] = counted();
	fakegpu_arm(on.control, NULL, 0, 0);
	drop();
	calls[1] = counted();
	end(1);
	for (int i = on.odd; i < on.odd + tries(4); i++)
		hangs(i & 1, 1 + draw(calls[i & 1]));
}

/* A start that a driver hangs in goes on without that GPU. */
static void test_start_hangs(void **state)
{
	uint32_t calls;

	(void)state;
	deadline("1500");
	for (int i = 0; i < tries(3); i++) {
		begin(1, 0, NULL);
		(void)crew_finish(on.ram);
		cluster_kill(on.cluster, 0);
		fakegpu_arm(on.control, NULL, 0, 0);
		spawn_failing(0);
		cluster_ready(on.cluster, 0);
		calls = counted();
		cluster_kill(on.cluster, 0);
		fakegpu_arm(on.control, NULL, 1 + draw(calls - 8), HANGS); /* Not of its thread. */
		spawn_failing(0);
		cluster_ready(on.cluster, 0);
		print_message("it was %s\n", on.control->was);
		assert_int_equal(on.control->failed, 1);
		cluster_wait_log(on.cluster, 0, "is lost: a call of its driver has not ended", 1);
		assert_true(cluster_logged(on.cluster, 0, "event=no_gpu ") > 0);
		assert_int_equal(cluster_logged(on.cluster, 0, "event=model_kept model=r"), 2);
		fakegpu_let_go(on.control);
		cluster_done(&on.cluster);
		crews_end();
	}
}

/* --- a start --- */

/* False: it failed, said why, and waits before it ends. It is ended at once. */
static bool started(int n, uint32_t starts, uint32_t failures)
{
	uint64_t until = pace_by(60);

	while (clock_ns() < until) {
		if (cluster_logged(on.cluster, n, "memory are kept: tried again") > failures) {
			assert_int_equal(cluster_logged(on.cluster, n, "event=start_failed "),
					 failures + 1);
			cluster_kill(on.cluster, n);
			return false;
		}
		if (cluster_logged(on.cluster, n, "event=start ") > starts)
			return true;
	}
	fail_msg("node %c neither starts nor says why not", 'a' + n);
	return false;
}

/* It goes on with what the process before it left, or gets its copy from the other node, or ends
 * with a sentence, so that the next start has all of it. */
static void starts(int n, const char *call, uint32_t nth, int error)
{
	uint32_t times = cluster_logged(on.cluster, n, "event=start "),
		 failures = cluster_logged(on.cluster, n, "event=start_failed "),
		 kept = cluster_logged(on.cluster, n, "event=model_kept model=m"),
		 gone = cluster_logged(on.cluster, n, "event=model_void model=m");

	cluster_kill(on.cluster, n);
	control_anew();
	print_message("node %c: call %u of %s fails with %d\n", 'a' + n, nth, call, error);
	fakegpu_arm(on.control, call, nth, error);
	spawn_failing(n);
	if (!started(n, times, failures)) {
		print_message("%s: it ended\n", on.control->was);
		fakegpu_disarm(on.control);
		cluster_spawn(on.cluster, n);
		cluster_ready(on.cluster, n);
		assert_int_equal(cluster_logged(on.cluster, n, "event=model_kept model=m"),
				 kept + 1);
	}
	cluster_ready(on.cluster, n);
	more(on.gpu, 3);
	fakegpu_disarm(on.control);
	print_message("%s: kept %u, void %u\n", on.control->was,
		      cluster_logged(on.cluster, n, "event=model_kept model=m") - kept,
		      cluster_logged(on.cluster, n, "event=model_void model=m") - gone);
	verified(!n);
}

static void test_start(void **state)
{
	static const struct {
		const char *call;
		uint32_t up_to;
		int error;
	} faults[] = {{"*", 180, UNKNOWN},
		      {"cuMemImportFromShareableHandle", 2, ILLEGAL_ADDRESS},
		      {"cuMemSetAccess", 2, UNKNOWN},
		      {"cuMemMap", 4, ILLEGAL_ADDRESS},
		      {"cuMemHostRegister_v2", 6, ILLEGAL_ADDRESS},
		      {"cuMemHostRegister_v2", 6, OUT_OF_MEMORY},
		      {"cuMemcpyDtoHAsync_v2", 40, ILLEGAL_ADDRESS},
		      {"cuMemcpyHtoDAsync_v2", 40, ILLEGAL_ADDRESS}};
	uint64_t last;

	(void)state;
	begin(2, -1, GPU COPIES);
	(void)crew_finish(on.ram); /* Its trainers are at a node that is killed. */
	for (uint32_t i = draw(NR(faults)), left = (uint32_t)tries(NR(faults)); left > 0;
	     i = (i + 1) % NR(faults), left--)
		starts((int)draw(2), faults[i].call, 1 + draw(faults[i].up_to), faults[i].error);
	last = crew_finish(on.gpu);
	for (int n = 0; n < 2; n++)
		crew_check(on.gpu, on.cluster->node[n].unix_address, last);
	cluster_done(&on.cluster);
}

int main(int argc, char **argv)
{
#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(test_save),         TEST(test_save_alone),  TEST(test_drain), TEST(test_join),
		TEST(test_define_fails), TEST(test_define_lost), TEST(test_drop),  TEST(test_hangs),
		TEST(test_start_hangs),  TEST(test_start),
	};

	fakegpu_path(argv);
	CHECK(setenv("FAKE_CUDA_DEVICES", "2", 1) == 0);
	on.seed = argc > 2 ? (unsigned)atoi(argv[2]) : (unsigned)getpid();
	on.odd = (int)(on.seed & 1);
	print_message("seed %u\n", on.seed);
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
