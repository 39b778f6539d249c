// SPDX-License-Identifier: Apache-2.0
/* Models whose state is on disks, on real daemons. Daemons that are killed go on with what they had
 * in memory and in files, copies are equal, a save is restored in main memory and the other way
 * round, chunks move, and files go with their models. A node whose disk brings other bytes than
 * were written loses its copies, and gets them from the other nodes. A node without a folder
 * refuses, by name.
 */
#include "base/check.h"
#include "lib/crew.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/rmtree.h"
#include "lib/tool.h"

#include <dirent.h>
#include <fcntl.h>
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
#define TIER "replicas=2 chunk_elems=1024 tier=nvme nvme_cache=4"

static struct cluster *cluster;
static struct crew *crew;
static char folder[4096]; /* Of the files: not in /tmp, which may have no O_DIRECT. */

static int setup(void **state)
{
	char name[] = "build/nvme-test-XXXXXX";

	(void)state;
	CHECK(mkdtemp(name) != NULL);
	CHECK(realpath(name, folder) != NULL);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	cluster_put_away(&cluster);
	free(crew);
	crew = NULL;
	rmtree(folder);
	return 0;
}

static void more(uint64_t steps)
{
	crew_wait_step(crew, crew_step(crew) + steps);
}

/* How many files there are. *first gets the name of the first one that is as long as any. */
static uint32_t files(char first[512])
{
	DIR *dir = opendir(folder);
	struct dirent *d;
	uint32_t nr = 0;

	assert_non_null(dir);
	while ((d = readdir(dir)) != NULL) {
		if (d->d_name[0] == '.')
			continue;
		nr++;
		if (first != NULL)
			snprintf(first, 512, "%.200s/%.200s", folder, d->d_name);
	}
	(void)closedir(dir);
	return nr;
}

static void begin(const char *settings)
{
	char extra[512], model[512];

	snprintf(extra, sizeof(extra), "[daemon]\nnvme_dir = %.400s\n", folder);
	snprintf(model, sizeof(model), "checkpoint_dir = %.400s/saves\n", folder);
	crew = calloc(1, sizeof(*crew));
	CHECK(crew != NULL);
	crew_init(crew, "m");
	crew_larger(crew, CREW_SCALE_MAX);
	crew->extra = settings;
	crew->pause_us = 1000;
	cluster = cluster_make(NODES, model, extra);
	cluster_warm(cluster, CLUSTER_TMPFS);
	cluster_up(cluster);
	for (int i = 0; i < 2; i++)
		crew_add(crew, cluster->node[0].unix_address, 0)->reconnects = true;
	crew_start(crew, UINT64_MAX);
	more(3);
}

static const char *words(char out[400], const char *what, const char *rest)
{
	snprintf(out, 400, "%s --address %s %s", what, cluster->node[0].unix_address, rest);
	return out;
}

static void end(uint32_t left)
{
	uint64_t last = crew_finish(crew);

	for (int n = 0; n < NODES; n++)
		crew_check(crew, cluster->node[n].unix_address, last);
	cluster_done(&cluster);
	assert_int_equal(files(NULL), left);
}

static void test_killed(void **state)
{
	char w[400];

	(void)state;
	begin(TIER);
	assert_int_equal(files(NULL), NODES);
	for (int n = 0; n < NODES; n++)
		assert_int_equal(cluster_logged(cluster, n, "event=nvme model=m"), 1);
	for (int n = NODES; n-- > 0;) {
		cluster_kill(cluster, n);
		cluster_spawn(cluster, n);
		cluster_ready(cluster, n);
		more(3);
		assert_int_equal(cluster_logged(cluster, n, "event=model_kept model=m"), 1);
	}
	tool_expect(0, "all equal", "shardctl", words(w, "verify", "m"));
	assert_int_equal(cluster_logged(cluster, 1, "event=model_void"), 0);
	end(NODES); /* They are for the next start. */
}

/* What a save has of chunks on disks is what the crew has computed. */
static void restored(const char *saved, const char *into)
{
	uint64_t last;
	char w[512];

	begin(saved);
	last = crew_finish(crew);
	tool_expect(0, "step", "shardctl", words(w, "save", "m"));
	tool_expect(0, "", "shardctl", words(w, "model drop", "m"));
	assert_int_equal(files(NULL), 1); /* The folder of the saves. */
	crew->extra = into;
	assert_int_equal(crew_define(crew, cluster->node[1].unix_address, w), SHARD_OK);
	for (int n = 0; n < NODES; n++)
		crew_check(crew, cluster->node[n].unix_address, last);
	cluster_done(&cluster);
}

static void test_saved(void **state)
{
	(void)state;
	restored(TIER, "replicas=2 chunk_elems=1024 restore_at_start=yes");
	free(crew);
	rmtree(folder);
	CHECK(mkdir(folder, 0700) == 0);
	restored("replicas=1 chunk_elems=1024",
		 "replicas=2 chunk_elems=2048 tier=nvme nvme_cache=4 nvme_share=60 "
		 "restore_at_start=yes");
}

/* Chunks that a node was made with come back to its file, and others to its memory. Nodes that
 * learn chunks from each other do not wait for each other. */
static void test_moves(void **state)
{
	char w[400], what[32];

	(void)state;
	begin(TIER);
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

/* Past the page cache, as the daemon writes: where both meet, fsync() says EIO. */
static void spoil(const char *path)
{
	static _Alignas(4096) char zeros[1 << 16];
	int fd = open(path, O_WRONLY | O_DIRECT);
	struct stat s;

	assert_true(fd >= 0 && fstat(fd, &s) == 0 && s.st_size % 4096 == 0);
	for (off_t at = 0; at < s.st_size; at += (off_t)sizeof(zeros)) {
		off_t left = s.st_size - at;
		size_t bytes = left < (off_t)sizeof(zeros) ? (size_t)left : sizeof(zeros);

		assert_int_equal(pwrite(fd, zeros, bytes, at), bytes);
	}
	assert_int_equal(close(fd), 0);
}

static void test_bad_disk(void **state)
{
	char path[512], text[1024];
	int status;
	FILE *in;

	(void)state;
	begin(TIER);
	/* Which file is that of node c its log says. */
	snprintf(path, sizeof(path), "grep -o 'file=[^ ]*' %s | head -n 1 | cut -c 6-",
		 cluster->node[2].log);
	in = popen(path, "r");
	assert_non_null(in);
	assert_non_null(fgets(text, sizeof(text), in));
	text[strcspn(text, "\n")] = 0;
	(void)pclose(in);
	spoil(text);
	status = cluster_wait(cluster, 2, pace_ms(20000));
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 1);
	assert_int_equal(cluster_logged(cluster, 2, "event=nvme_lost model=m"), 1);
	more(3); /* The others go on. */
	cluster_spawn(cluster, 2);
	cluster_ready(cluster, 2);
	cluster_wait_log(cluster, 2, "event=learned model=m", 1);
	more(3);
	end(NODES);
}

static void test_no_folder(void **state)
{
	char error[512];

	(void)state;
	crew = calloc(1, sizeof(*crew));
	CHECK(crew != NULL);
	crew_init(crew, "m");
	crew->extra = TIER;
	cluster = cluster_start(2, NULL, NULL);
	crew_add(crew, cluster->node[0].unix_address, 0);
	assert_int_equal(crew_define(crew, cluster->node[0].unix_address, error),
			 SHARD_UNSUPPORTED);
	assert_non_null(strstr(error, "tier = nvme"));
	assert_non_null(strstr(error, "nvme_dir"));
	assert_non_null(strstr(error, "node a"));
	cluster_done(&cluster);
}

int main(void)
{
#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(test_killed),   TEST(test_saved),     TEST(test_moves),
		TEST(test_bad_disk), TEST(test_no_folder),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
