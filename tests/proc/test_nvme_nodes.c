// SPDX-License-Identifier: Apache-2.0
/* A model of several nodes with nvme_durable = step, on real daemons that lose their memory: all of
 * them at many moments of a step, one of them while the others live on, again while they come back,
 * and in any order. A service manager of the test starts what ends by itself. Afterwards all nodes
 * have one step, the last that was told or the one before, with the right weights, and go on. Where
 * the disks of two nodes differ by a step, the test has put an older copy of a file in its place,
 * which is what the disk has when power is lost before the last superblock is written. What no step
 * can be made of is lost by name, and a node that is away is waited for by name. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/rmtree.h"
#include "lib/tool.h"
#include "lib/trainer.h"
#include "lib/warm.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define DURABLE "optimizer=sgd momentum=1 chunk_elems=1024 tier=nvme nvme_cache=4 nvme_durable=step"
enum { NODES = 3, MODELS = 4, ALL = (1 << NODES) - 1, A = 1, B = 2, C = 4 };

static struct warm *w;
static char folder[4096]; /* Of the files: not in /tmp, which may have no O_DIRECT. */

static int setup(void **state)
{
	char name[] = "build/nvme-test-XXXXXX";

	*state = (void *)(uintptr_t)CLUSTER_TMPFS;
	CHECK(warm_setup(state) == 0);
	w = *state;
	CHECK(mkdtemp(name) != NULL);
	CHECK(realpath(name, folder) != NULL);
	return 0;
}

static void kept_path(int node, char path[5000])
{
	snprintf(path, 5000, "%.4000s.kept-%d", folder, node);
}

static int teardown(void **state)
{
	rmtree(folder);
	for (int n = 0; n < MODELS; n++) { /* Not fewer than nodes. */
		char kept[5000];

		kept_path(n, kept);
		(void)unlink(kept);
	}
	return warm_teardown(state);
}

static void begin(const char *more)
{
	const int ranks[NODES] = {1, 1, 1};
	char extra[4300];

	snprintf(extra, sizeof(extra), "[daemon]\nnvme_dir = %.4000s\n%s", folder, more);
	warm_start(w, NODES, ranks, extra);
	w->settings = DURABLE;
	w->momentum = 1; /* All numbers stay whole. */
	w->numel = 9 * 1024 - 100;
}

/* The file of that node and model. */
static void file_of(const char *model, int node, char path[5000])
{
	char *log = cluster_log(w->cluster, node), *at = log, *last = NULL, what[80];

	snprintf(what, sizeof(what), "event=nvme model=%s file=", model);
	while ((at = strstr(at, what)) != NULL)
		last = at += strlen(what);
	assert_non_null(last);
	snprintf(path, 5000, "%.*s", (int)strcspn(last, " "), last);
	free(log);
	assert_int_equal(access(path, F_OK), 0);
}

static void file(int node, char path[5000])
{
	file_of("m", node, path);
}

static void copy(const char *from, const char *to)
{
	char words[11000];

	snprintf(words, sizeof(words), "cp '%s' '%s'", from, to);
	assert_int_equal(system(words), 0);
}

static void keep(int node) /* What its file is now, beside it. */
{
	char path[5000], kept[5000];

	file(node, path);
	kept_path(node, kept);
	copy(path, kept);
}

static void put_back(int node)
{
	char path[5000], kept[5000];

	file(node, path);
	kept_path(node, kept);
	copy(kept, path);
}

/* What all nodes had in memory is gone. */
static void forget_all(void)
{
	char words[300];

	snprintf(words, sizeof(words), "rm -rf %s/*", w->cluster->warm_dir);
	assert_int_equal(system(words), 0);
}

/* The node has ended, or is killed. forget: with all that it had in memory. */
static void end_any(int node, bool forget)
{
	struct cluster_node *n = &w->cluster->node[node];
	char path[64], line[600], memory[300] = "";
	int status;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/maps", (int)n->pid);
	f = fopen(path, "re");
	while (f != NULL && memory[0] == 0 && fgets(line, sizeof(line), f) != NULL) {
		const char *at = strstr(line, w->cluster->warm_dir);
		size_t bytes = at != NULL ? strlen(w->cluster->warm_dir) + 1 : 0;

		if (at != NULL) /* The folder of this node. */
			snprintf(memory, sizeof(memory), "%.*s",
				 (int)(bytes + strcspn(at + bytes, "/")), at);
	}
	if (f != NULL)
		(void)fclose(f);
	proc_signal(n->pid, SIGKILL);
	status = proc_wait(n->pid, 20000);
	assert_true((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) ||
		    (WIFEXITED(status) && WEXITSTATUS(status) == 1));
	n->killed = true;
	n->pid = 0;
	if (forget && memory[0] != 0)
		rmtree(memory);
}

static void lose_power(unsigned nodes)
{
	for (int n = 0; n < NODES; n++)
		if (nodes >> n & 1)
			end_any(n, true);
}

static uint32_t ends[NODES]; /* How often the node has ended by itself. */

/* What has ended by itself is started again. */
static void revive(void)
{
	for (int n = 0; n < NODES; n++) {
		struct cluster_node *node = &w->cluster->node[n];
		int status = node->pid > 0 ? proc_wait(node->pid, 0) : -1;

		if (status == -1)
			continue;
		assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
		node->pid = 0;
		ends[n]++;
		cluster_spawn(w->cluster, n);
	}
}

static bool says(int node, const char *text)
{
	char words[300], *out;
	bool there;

	snprintf(words, sizeof(words), "status --json --address %s",
		 w->cluster->node[node].unix_address);
	(void)tool_run(&out, "shardctl", words); /* What is wrong makes it fail. */
	there = strstr(out, text) != NULL;
	free(out);
	return there;
}

static bool all_say(const char *text)
{
	bool all = true;

	for (int n = 0; n < NODES && all; n++)
		all = says(n, text);
	return all;
}

static void until_all_say(const char *text)
{
	uint64_t by = clock_ns() + (uint64_t)pace_ms(60000) * NS_PER_MS;

	/* Twice, because node a may have begun anew after it was asked. */
	while (!all_say(text) || !all_say(text)) {
		revive();
		if (clock_ns() > by || warm_logged(w, 0, "event=lost model=m") > 0) {
			cluster_dump(w->cluster);
			fail_msg("it is lost, or not all nodes say %s", text);
		}
	}
}

/* These nodes start, and all have the weights of one step in this range. Returns the step. */
static uint64_t again(unsigned nodes, uint64_t least, uint64_t most)
{
	uint64_t next;

	for (int n = 0; n < NODES; n++)
		if (nodes >> n & 1)
			cluster_spawn(w->cluster, n);
	for (uint32_t r = 0; r < w->ranks; r++)
		warm_end(w, r);
	until_all_say("\"state\":\"waiting\"");
	next = warm_back(w, ALL);
	assert_in_range(next, least + 1, most + 1);
	warm_check(w, next - 1);
	return next - 1;
}

static uint32_t logged(const char *what)
{
	uint32_t nr = 0;

	for (int n = 0; n < NODES; n++)
		nr += warm_logged(w, n, what);
	return nr;
}

static void test_losses(void **state)
{
	static const unsigned lost[] = {ALL, B, A, ALL, B | C, A | B, ALL, C};
	uint64_t step = 4;

	(void)state;
	begin("");
	warm_all(w);
	warm_train(w, step);
	for (uint32_t round = 0; round < 16; round++) {
		uint64_t least = step - 1, most = step;

		if (round % 4 > 0) /* A step is begun. */
			for (uint32_t r = 0; r < w->ranks; r++)
				warm_begin(w, r);
		if (round % 4 > 1) /* Its gradients are all there, so it may be decided. */
			for (uint32_t r = 0; r < w->ranks; r++)
				warm_commit(w, r);
		if (round % 4 > 1)
			most++;
		if (round % 4 == 3) { /* It is, and the one before is on all disks. */
			EXPECT(SHARD_OK, warm_result(w, 0));
			least++;
		}
		lose_power(lost[round % NR(lost)]);
		if (round % 5 == 4) /* The others are killed as well, and keep their memory. */
			warm_kill(w, ALL & ~lost[round % NR(lost)]);
		step = again(round % 5 == 4 ? ALL : lost[round % NR(lost)], least, most);
		warm_train(w, step + 1 + round % 3);
		step += 1 + round % 3;
	}
	warm_check(w, step);
	assert_int_equal(logged("event=lost"), 0);
	warm_finish(w);
}

static void stop_all(void)
{
	for (uint32_t r = 0; r < w->ranks; r++)
		warm_end(w, r);
	for (int n = 0; n < NODES; n++)
		cluster_signal(w->cluster, n, SIGTERM);
	for (int n = 0; n < NODES; n++)
		assert_int_equal(cluster_wait(w->cluster, n, pace_ms(20000)), 0);
}

/* All have stopped at step 6, and then the disk of one node has no more than that, while the others
 * have step 7. */
static void one_behind(int node)
{
	begin("");
	warm_all(w);
	warm_train(w, 6);
	stop_all();
	keep(node);
	assert_int_equal(again(ALL, 6, 6), 6);
	warm_train(w, 7);
}

static void test_one_disk_behind(void **state)
{
	(void)state;
	for (int node = 0; node < NODES; node++) {
		one_behind(node);
		stop_all(); /* Then all others have the superblock of step 7. */
		forget_all();
		put_back(node);
		assert_int_equal(again(ALL, 6, 6), 6);
		/* The others went back, by their disks. */
		assert_int_equal(logged("event=nvme_back model=m"), NODES - 1);
		warm_train(w, 8);
		lose_power(ALL); /* What was given up does not come back. */
		warm_train(w, again(ALL, 7, 8) + 1);
		assert_int_equal(logged("event=lost"), 0);
		warm_finish(w);
	}
}

/* One loses its power and has less than those that live on. */
static void test_one_node_behind(void **state)
{
	(void)state;
	for (int node = 0; node < NODES; node++) {
		one_behind(node);
		lose_power(1u << node);
		put_back(node);
		assert_int_equal(again(1u << node, 6, 6), 6);
		assert_int_equal(logged("event=nvme_back model=m"), NODES - 1);
		assert_int_equal(logged("event=nvme_asks_again model=m"), node != 0);
		warm_train(w, 8);
		assert_int_equal(logged("event=lost"), 0);
		warm_finish(w);
	}
}

/* Several models have to go back. A service manager gives up what ends too often, so the process
 * ends for all of them at once, or twice if one has come later than the others. */
static void test_models_behind(void **state)
{
	static const char *const names[MODELS] = {"m", "n", "o", "p"};
	struct warm all[MODELS];
	char path[5000], kept[5100];

	(void)state;
	begin("");
	for (int i = 0; i < MODELS; i++) {
		all[i] = *w;
		all[i].name = names[i];
		warm_all(&all[i]);
		warm_train(&all[i], 6);
	}
	for (int i = 0; i < MODELS; i++)
		for (uint32_t r = 0; r < w->ranks; r++)
			warm_end(&all[i], r);
	stop_all();
	for (int i = 0; i < MODELS; i++) {
		file_of(names[i], 1, path);
		snprintf(kept, sizeof(kept), "%s.kept-%d", folder, i);
		copy(path, kept);
	}
	warm_spawn(w, ALL);
	for (int i = 0; i < MODELS; i++) {
		assert_int_equal(warm_back(&all[i], ALL), 7);
		warm_train(&all[i], 7);
		for (uint32_t r = 0; r < w->ranks; r++)
			warm_end(&all[i], r);
	}
	stop_all();
	forget_all();
	for (int i = 0; i < MODELS; i++) {
		file_of(names[i], 1, path);
		snprintf(kept, sizeof(kept), "%s.kept-%d", folder, i);
		copy(kept, path);
		assert_int_equal(unlink(kept), 0);
	}
	memset(ends, 0, sizeof(ends));
	for (int n = 0; n < NODES; n++)
		cluster_spawn(w->cluster, n);
	for (int n = 0; n < NODES; n += 2) /* Those that are ahead. */
		for (int i = 0; i < MODELS; i++) {
			char what[80];
			uint64_t by = clock_ns() + (uint64_t)pace_ms(60000) * NS_PER_MS;

			snprintf(what, sizeof(what), "event=nvme_back model=%s", names[i]);
			for (; warm_logged(w, n, what) == 0; revive())
				assert_true(clock_ns() < by);
		}
	until_all_say("\"state\":\"waiting\"");
	for (int i = 0; i < MODELS; i++) {
		assert_int_equal(warm_back(&all[i], ALL), 7);
		warm_check(&all[i], 6);
		for (uint32_t r = 0; r < w->ranks; r++)
			warm_end(&all[i], r);
	}
	for (int n = 0; n < NODES; n++)
		assert_in_range(ends[n], n != 1, n != 1 ? 2 : 0);
	assert_int_equal(logged("event=lost"), 0);
	warm_finish(w);
}

/* They come one after the other, and lose their power again while they find their step. */
static void test_again_meanwhile(void **state)
{
	static const int order[][NODES] = {{0, 1, 2}, {2, 1, 0}, {1, 0, 2}, {2, 0, 1}};

	(void)state;
	one_behind(1);
	lose_power(ALL);
	put_back(1);
	for (uint32_t i = 0; i < 3 * NR(order); i++) {
		for (int n = 0; n < NODES; n++)
			cluster_spawn(w->cluster, order[i % NR(order)][n]);
		(void)poll(NULL, 0, (int)(i * 15)); /* Any moment will do. */
		for (int n = 0; n < NODES; n++)
			end_any(n, i % 3 < 2 || n == 1);
	}
	assert_int_equal(again(ALL, 6, 6), 6);
	warm_train(w, 8);
	assert_int_equal(logged("event=lost"), 0);
	warm_finish(w);
}

/* A node that does not come back is waited for, by name, and not given up: its disk has what it
 * held. A start without that disk ends, and gives nothing up either. */
static void test_away(void **state)
{
	char path[5000], aside[5000];
	uint64_t by;

	(void)state;
	begin("[cluster]\nlost_timeout = 200ms\n");
	warm_all(w);
	warm_train(w, 5);
	lose_power(ALL);
	file(1, path);
	kept_path(1, aside);
	assert_int_equal(rename(path, aside), 0);
	for (int n = 0; n < NODES; n++)
		cluster_spawn(w->cluster, n);
	assert_true(WEXITSTATUS(cluster_wait(w->cluster, 1, pace_ms(20000))) != 0);
	assert_int_equal(warm_logged(w, 1, "see that nvme_dir is mounted"), 1);
	/* It is there, and cannot be read: the way out is that of a node without definitions. */
	assert_int_equal(mkdir(path, 0700), 0);
	cluster_spawn(w->cluster, 1);
	assert_true(WEXITSTATUS(cluster_wait(w->cluster, 1, pace_ms(20000))) != 0);
	assert_int_equal(warm_logged(w, 1, "To give them up: remove nvme-"), 2);
	assert_int_equal(rmdir(path), 0);
	by = clock_ns() + NS_PER_SEC; /* Five times lost_timeout. */
	while (!says(0, "node b, which has no link") || clock_ns() < by)
		assert_true(clock_ns() < by + (uint64_t)pace_ms(30000) * NS_PER_MS);
	assert_int_equal(rename(aside, path), 0);
	/* What cannot be read and has no steps is in nobody's way. */
	snprintf(aside, sizeof(aside), "%.*s-000000ff-0000000000000009",
		 (int)(strlen(path) - strlen("-00000001-0000000000000001")), path);
	assert_int_equal(mkdir(aside, 0700), 0);
	warm_train(w, again(B, 4, 5) + 1);
	assert_int_equal(logged("event=lost"), 0);
	warm_finish(w);
}

/* The disk of a node is another one: the file is not of this model's memory, or is empty, or much
 * older. Then its chunks are lost, and nothing else goes on with them. */
static void test_other_disk(void **state)
{
	(void)state;
	for (int how = 0; how < 3; how++) {
		char path[5000], other[5000], words[5100];

		one_behind(1);
		warm_train(w, 8);
		stop_all();
		forget_all();
		file(1, path);
		file(2, other);
		snprintf(words, sizeof(words), "truncate -s 0 '%s'", path);
		if (how == 0)
			copy(other, path);
		else if (how == 1)
			assert_int_equal(system(words), 0);
		if (how == 2)
			put_back(1);
		for (int n = 0; n < NODES; n++)
			cluster_spawn(w->cluster, n);
		warm_wait_log(w, 0, "event=lost model=m", 1);
		assert_true(how != 2 ||
			    warm_logged(w, 0, "no step is on the disks of all nodes") > 0);
		warm_finish(w);
	}
}

static void spoil(const char *path)
{
	static _Alignas(4096) char zeros[4096];
	int fd = open(path, O_WRONLY | O_DIRECT | O_CLOEXEC);
	struct stat s;

	assert_true(fd >= 0 && fstat(fd, &s) == 0 && s.st_size % 4096 == 0);
	for (off_t at = 0; at < s.st_size; at += 4096)
		assert_int_equal(pwrite(fd, zeros, 4096, at), 4096);
	assert_int_equal(close(fd), 0);
}

/* A disk fails, and is taken out. The node starts without it and without its chunks. */
static void test_bad_disk(void **state)
{
	char path[5000];

	(void)state;
	begin("");
	w->numel = 48 * 1024;
	warm_all(w);
	warm_train(w, 4);
	file(1, path);
	spoil(path);
	for (uint32_t r = 0; r < w->ranks; r++)
		warm_begin(w, r);
	for (uint32_t r = 0; r < w->ranks; r++)
		warm_commit(w, r);
	assert_int_equal(WEXITSTATUS(cluster_wait(w->cluster, 1, pace_ms(20000))), 1);
	assert_true(warm_logged(w, 1, "event=nvme_lost model=m") > 0);
	assert_int_equal(unlink(path), 0);
	for (uint32_t r = 0; r < w->ranks; r++)
		warm_end(w, r);
	warm_spawn(w, B);
	warm_wait_log(w, 0, "event=lost model=m", 1);
	warm_finish(w);
}

static void refused(const char *settings, const char *why)
{
	struct shard_tensor tensor = {.name = "w", .ndim = 1, .shape = {5000}};
	struct shard_spec s = SHARD_INIT(struct shard_spec);
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	shard_client *c = NULL;
	shard_model *m;
	char all[400];
	int created;

	o.address = w->cluster->node[0].unix_address;
	EXPECT(SHARD_OK, shard_connect(&c, &o));
	snprintf(all, sizeof(all), "%s max_world=1 %s", DURABLE, settings);
	s.name = "other";
	s.tensors = &tensor;
	s.tensors_nr = 1;
	s.image = s.grad = SHARD_F32;
	s.settings = all;
	EXPECT(SHARD_UNSUPPORTED, shard_define(c, &s, &m, &created));
	EXPECT_TEXT(why);
	shard_disconnect(&c);
}

static void test_refused(void **state)
{
	(void)state;
	begin("");
	refused("replicas=2", "replicas = 1");
	refused("grad_codec=int8", "error_feedback = no");
	warm_finish(w);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_losses, setup, teardown),
		cmocka_unit_test_setup_teardown(test_one_disk_behind, setup, teardown),
		cmocka_unit_test_setup_teardown(test_one_node_behind, setup, teardown),
		cmocka_unit_test_setup_teardown(test_models_behind, setup, teardown),
		cmocka_unit_test_setup_teardown(test_again_meanwhile, setup, teardown),
		cmocka_unit_test_setup_teardown(test_away, setup, teardown),
		cmocka_unit_test_setup_teardown(test_other_disk, setup, teardown),
		cmocka_unit_test_setup_teardown(test_bad_disk, setup, teardown),
		cmocka_unit_test_setup_teardown(test_refused, setup, teardown),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
