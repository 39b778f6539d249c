// SPDX-License-Identifier: Apache-2.0
/* A model of one node with nvme_durable = step (test_nvme_nodes.c has one of several), on a real
 * daemon that loses its memory again and again: it is killed at many moments of a step, and what
 * would have outlived it is removed, as a loss of power does. (What a disk forgets then is tested
 * by unit/test_nvme_power.) The model is there with the last step that was told or the one before,
 * whole, and goes on. A file that is damaged, or a state folder that is older, gives no wrong
 * weights. While the file is not there, nothing starts, and no start removes a file that has
 * weights. What cannot be durable is refused, by name. */
#include "base/check.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/rmtree.h"
#include "lib/tool.h"
#include "lib/trainer.h"
#include "lib/warm.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define NVME    "optimizer=sgd momentum=1 chunk_elems=1024 tier=nvme nvme_cache=4"
#define DURABLE NVME " nvme_durable=step"

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

static int teardown(void **state)
{
	rmtree(folder);
	return warm_teardown(state);
}

static void begin(const char *settings, int ranks)
{
	char extra[4200];

	snprintf(extra, sizeof(extra), "[daemon]\nnvme_dir = %.4000s\n", folder);
	warm_start(w, 1, &ranks, extra);
	w->settings = settings;
	w->momentum = 1; /* All numbers stay whole. */
	w->numel = 9 * 1024 - 100;
}

/* The only file of that kind. */
static void file(char path[5000])
{
	DIR *dir = opendir(folder);
	struct dirent *d;

	assert_non_null(dir);
	path[0] = 0;
	while ((d = readdir(dir)) != NULL)
		if (d->d_name[0] != '.')
			snprintf(path, 5000, "%s/%.200s", folder, d->d_name);
	(void)closedir(dir);
}

static void empty(const char *path)
{
	DIR *dir = opendir(path);
	struct dirent *d;

	assert_non_null(dir);
	while ((d = readdir(dir)) != NULL) {
		char in[600];

		snprintf(in, sizeof(in), "%.300s/%.200s", path, d->d_name);
		if (d->d_name[0] != '.')
			rmtree(in);
	}
	(void)closedir(dir);
}

/* All memory is gone. */
static void lose_power(void)
{
	warm_kill(w, 1);
	empty(w->cluster->warm_dir);
}

/* The daemon starts, and has the weights of `told` or of one of the steps beside it. Returns the
 * step that they have. */
static uint64_t again(uint64_t least, uint64_t most)
{
	uint64_t next;

	warm_spawn(w, 1);
	next = warm_back(w, 1);
	assert_in_range(next, least + 1, most + 1);
	warm_check(w, next - 1);
	return next - 1;
}

static void test_losses(void **state)
{
	uint64_t step = 4, recalled = 0;

	(void)state;
	begin(DURABLE, 2);
	warm_all(w);
	warm_train(w, step);
	for (uint32_t round = 0; round < 12; round++) {
		uint64_t least = step - 1, most = step;

		if (round % 4 > 0) /* A step is begun. */
			for (uint32_t r = 0; r < w->ranks; r++)
				warm_begin(w, r);
		if (round % 4 > 1) /* Its gradients are all there, so it may be decided. */
			for (uint32_t r = 0; r < w->ranks; r++)
				warm_commit(w, r);
		if (round % 4 > 1)
			most++;
		if (round % 4 == 3) { /* It is, and the one before is on the disk. */
			EXPECT(SHARD_OK, warm_result(w, 0));
			least++;
		}
		/* After a kill alone the memory is there, and a vote in it counts. */
		if (round % 5 == 4)
			warm_kill(w, 1);
		else
			lose_power(), recalled++;
		step = again(least, most);
		assert_int_equal(warm_logged(w, 0, "event=nvme_recalled model="), recalled);
		warm_train(w, step + 1 + round % 3);
		step += 1 + round % 3;
	}
	warm_check(w, step);
	warm_finish(w);
}

static void flip(const char *path, off_t at)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	uint8_t b;

	assert_true(fd >= 0);
	assert_int_equal(pread(fd, &b, 1, at), 1);
	b ^= 4;
	assert_int_equal(pwrite(fd, &b, 1, at), 1);
	assert_int_equal(close(fd), 0);
}

static void stop_and_forget(void)
{
	warm_end(w, 0);
	cluster_signal(w->cluster, 0, SIGTERM);
	assert_int_equal(cluster_wait(w->cluster, 0, pace_ms(20000)), 0);
	empty(w->cluster->warm_dir);
}

/* One superblock is damaged: the other one has the step before. With both the weights are lost, and
 * nothing of them comes back. */
static void test_damaged(void **state)
{
	char path[5000];

	(void)state;
	begin(DURABLE, 1);
	warm_all(w);
	warm_train(w, 6);
	file(path);
	/* Before a kill the superblock of the last step may not be written. After a stop it is. */
	stop_and_forget();
	assert_int_equal(again(6, 6), 6);
	warm_train(w, 7);
	stop_and_forget();
	flip(path, 16); /* That of the seal was number 1, and a start makes none. */
	assert_int_equal(again(6, 6), 6);
	warm_train(w, 7);
	stop_and_forget();
	flip(path, 4096 + 16);
	flip(path, 16);
	warm_spawn(w, 1);
	assert_int_equal(warm_logged(w, 0, "event=nvme_void model=m"), 1);
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
	const int none[2] = {0, 0};
	char extra[4200], path[5000];

	(void)state;
	begin(DURABLE, 1);
	refused("nvme_share=50", "nvme_share = 100");
	refused("max_staleness=1", "max_staleness = 0");
	refused("image_codec=int8", "image_codec = none");
	warm_finish(w);
	snprintf(extra, sizeof(extra), "[daemon]\nnvme_dir = %.4000s\n", folder);
	w->how = CLUSTER_WARM_NR;
	warm_start(w, 1, none, extra);
	refused("", "warm_restart");
	warm_finish(w);
	file(path);
	assert_string_equal(path, "");
}

static void starts_not(const char *why)
{
	uint32_t told = warm_logged(w, 0, why);

	cluster_spawn(w->cluster, 0);
	assert_int_not_equal(cluster_wait(w->cluster, 0, pace_ms(20000)), 0);
	assert_int_equal(warm_logged(w, 0, why), told + 1);
}

/* The disk is not mounted yet: no start, and so nothing is lost. */
static void test_missing(void **state)
{
	char path[5000], other[5100];

	(void)state;
	begin(DURABLE, 1);
	warm_all(w);
	warm_train(w, 6);
	file(path);
	snprintf(other, sizeof(other), "%s.elsewhere", folder);
	lose_power();
	assert_int_equal(rename(folder, other), 0); /* The folder, too. */
	starts_not("mounted");
	assert_int_equal(mkdir(folder, 0700), 0);
	starts_not("left-model-");
	assert_int_equal(rmdir(folder), 0);
	assert_int_equal(rename(other, folder), 0);
	(void)again(5, 6);
	lose_power();
	/* The way out that the error names. The file is there, but no model has it any more. */
	snprintf(path, sizeof(path), "%s/model-00000001", w->cluster->node[0].state);
	snprintf(other, sizeof(other), "%s/left-model-00000001", w->cluster->node[0].state);
	assert_int_equal(rename(path, other), 0);
	warm_spawn(w, 1);
	assert_int_equal(warm_logged(w, 0, "event=nvme_set_aside"), 1);
	warm_finish(w);
}

/* What is in memory is damaged, and the file has all of it. */
static void test_memory_damaged(void **state)
{
	char words[4200];

	(void)state;
	begin(DURABLE, 1);
	warm_all(w);
	warm_train(w, 6);
	warm_kill(w, 1);
	snprintf(words, sizeof(words),
		 "for f in $(find '%.4000s' -name '*-meta'); do printf x | dd of=$f conv=notrunc "
		 "status=none; done",
		 w->cluster->warm_dir);
	assert_int_equal(system(words), 0);
	(void)again(5, 6);
	assert_int_equal(warm_logged(w, 0, "event=model_void model=m"), 1);
	assert_int_equal(warm_logged(w, 0, "event=nvme_recalled model=m"), 1);
	warm_train(w, 8);
	warm_finish(w);
}

static void copy(const char *from, const char *to)
{
	char words[11000];

	snprintf(words, sizeof(words), "cp '%s' '%s'", from, to);
	assert_int_equal(system(words), 0);
}

/* The state folder is ahead of the file, as when power is lost before the disk has a step whose
 * record the folder has. One step is given up. With two it is another file, which stays. */
static void test_behind(void **state)
{
	char path[5000], kept[5100], aside[5100];

	(void)state;
	snprintf(kept, sizeof(kept), "%s.copy", folder);
	for (uint64_t ahead = 1; ahead <= 2; ahead++) {
		begin(DURABLE, 1);
		warm_all(w);
		warm_train(w, 6);
		file(path);
		stop_and_forget();
		copy(path, kept);
		assert_int_equal(again(6, 6), 6);
		warm_train(w, 6 + ahead);
		warm_kill(w, 1);
		(void)again(6 + ahead, 6 + ahead); /* Its first view names that record. */
		lose_power();
		copy(kept, path);
		if (ahead == 1) {
			assert_int_equal(again(6, 6), 6);
			warm_train(w, 8);
			lose_power();
			(void)again(7, 8);
		} else {
			warm_spawn(w, 1);
			assert_int_equal(warm_logged(w, 0, "event=nvme_void model=m"), 1);
			warm_wait_log(w, 0, "event=lost model=m", 1);
			assert_int_equal(warm_logged(w, 0, "event=nvme_set_aside"), 1);
			snprintf(aside, sizeof(aside), "%s.void", path);
			assert_int_equal(access(aside, F_OK), 0);
		}
		warm_finish(w);
		empty(folder);
	}
	assert_int_equal(unlink(kept), 0);
}

/* A node that would join is refused, and the model starts again. */
static void test_joined(void **state)
{
	int node;

	(void)state;
	begin(DURABLE, 1);
	warm_all(w);
	warm_train(w, 3);
	node = cluster_joiner(w->cluster, 0, NULL);
	cluster_spawn(w->cluster, node);
	assert_int_not_equal(cluster_wait(w->cluster, node, pace_ms(60000)), 0);
	assert_int_equal(warm_logged(w, node, "event=start_failed status=SHARD_UNSUPPORTED"), 1);
	assert_true(warm_logged(w, node, "whose chunks stay on the nodes") > 0);
	lose_power();
	warm_spawn(w, 1);
	assert_in_range(warm_back(w, 1), 3, 4);
	warm_finish(w);
}

/* In both folders, in the order in which they went. */
static void expect_gone(int seen, const char *first, const char *second)
{
	_Alignas(struct inotify_event) char all[16384];
	ssize_t bytes = read(seen, all, sizeof(all));
	const struct inotify_event *e;
	int nr = 0;

	assert_true(bytes > 0);
	for (ssize_t at = 0; at < bytes; at += (ssize_t)(sizeof(*e) + e->len)) {
		e = (const struct inotify_event *)(all + at);
		if (strncmp(e->name, first, strlen(first)) == 0)
			assert_int_equal(nr++, 0);
		else if (strncmp(e->name, second, strlen(second)) == 0)
			assert_int_equal(nr++, 1);
	}
	assert_int_equal(nr, 2);
}

/* A model that was dropped does not come back, and its file is gone. A note without a file would
 * end the next start, so the note goes first. */
static void test_dropped(void **state)
{
	char path[5000], words[400];
	int seen = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);

	(void)state;
	begin(DURABLE, 1);
	warm_all(w);
	warm_train(w, 3);
	warm_end(w, 0);
	assert_true(inotify_add_watch(seen, w->cluster->node[0].state, IN_DELETE) >= 0);
	assert_true(inotify_add_watch(seen, folder, IN_DELETE) >= 0);
	snprintf(words, sizeof(words), "model drop m --address %s",
		 w->cluster->node[0].unix_address);
	tool_expect(0, "", "shardctl", words);
	file(path);
	assert_string_equal(path, "");
	expect_gone(seen, "nvme-", "shardd-");
	assert_int_equal(close(seen), 0);
	lose_power();
	warm_spawn(w, 1);
	assert_int_equal(warm_logged(w, 0, "event=nvme_recalled"), 0);
	warm_all(w); /* It is created, with other weights than those. */
	assert_int_equal(w->r[0].created, 1);
	warm_train(w, 2);
	warm_check(w, 2);
	warm_finish(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_losses, setup, teardown),
		cmocka_unit_test_setup_teardown(test_damaged, setup, teardown),
		cmocka_unit_test_setup_teardown(test_missing, setup, teardown),
		cmocka_unit_test_setup_teardown(test_memory_damaged, setup, teardown),
		cmocka_unit_test_setup_teardown(test_behind, setup, teardown),
		cmocka_unit_test_setup_teardown(test_joined, setup, teardown),
		cmocka_unit_test_setup_teardown(test_refused, setup, teardown),
		cmocka_unit_test_setup_teardown(test_dropped, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
