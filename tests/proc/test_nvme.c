// SPDX-License-Identifier: Apache-2.0
/* Models whose state is on disks, on real daemons. Daemons that are killed go on with what they had
 * in memory and in files, copies are equal, a save is restored in main memory and the other way
 * round, chunks move, and files go with their models. A node whose disk brings other bytes than
 * were written loses its copies, and gets them from the other nodes. A node without a folder
 * refuses, by name.
 */
#include "base/check.h"
#include "lib/ondisk.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/rmtree.h"
#include "lib/tool.h"

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

static struct ondisk on;

static int setup(void **state)
{
	(void)state;
	ondisk_make(&on);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	ondisk_put_away(&on);
	return 0;
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

static void end(uint32_t left)
{
	uint64_t last = crew_finish(on.crew);

	for (int n = 0; n < NODES; n++)
		crew_check(on.crew, on.cluster->node[n].unix_address, last);
	cluster_done(&on.cluster);
	assert_int_equal(ondisk_files(&on), left);
}

static void test_killed(void **state)
{
	char w[400];

	(void)state;
	ondisk_begin(&on, NODES, TIER);
	assert_int_equal(ondisk_files(&on), NODES);
	for (int n = 0; n < NODES; n++)
		assert_int_equal(cluster_logged(on.cluster, n, "event=nvme model=m"), 1);
	for (int n = NODES; n-- > 0;) {
		cluster_kill(on.cluster, n);
		cluster_spawn(on.cluster, n);
		cluster_ready(on.cluster, n);
		more(3);
		assert_int_equal(cluster_logged(on.cluster, n, "event=model_kept model=m"), 1);
	}
	tool_expect(0, "all equal", "shardctl", words(w, "verify", "m"));
	assert_int_equal(cluster_logged(on.cluster, 1, "event=model_void"), 0);
	end(NODES); /* They are for the next start. */
}

/* What a save has of chunks on disks is what the crew has computed. */
static void restored(const char *saved, const char *into)
{
	uint64_t last;
	char w[512];

	ondisk_begin(&on, NODES, saved);
	last = crew_finish(on.crew);
	tool_expect(0, "step", "shardctl", words(w, "save", "m"));
	tool_expect(0, "", "shardctl", words(w, "model drop", "m"));
	assert_int_equal(ondisk_files(&on), 1); /* The folder of the saves. */
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
		 "replicas=2 chunk_elems=2048 tier=nvme nvme_cache=4 nvme_share=60 "
		 "restore_at_start=yes");
}

/* Chunks that a node was made with come back to its file, and others to its memory. Nodes that
 * learn chunks from each other do not wait for each other. */
static void test_moves(void **state)
{
	char w[400], what[32];

	(void)state;
	ondisk_begin(&on, NODES, TIER);
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
	ondisk_begin(&on, NODES, TIER);
	/* Which file is that of node c its log says. */
	snprintf(path, sizeof(path), "grep -o 'file=[^ ]*' %s | head -n 1 | cut -c 6-",
		 on.cluster->node[2].log);
	in = popen(path, "r");
	assert_non_null(in);
	assert_non_null(fgets(text, sizeof(text), in));
	text[strcspn(text, "\n")] = 0;
	(void)pclose(in);
	spoil(text);
	status = cluster_wait(on.cluster, 2, pace_ms(20000));
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 1);
	assert_int_equal(cluster_logged(on.cluster, 2, "event=nvme_lost model=m"), 1);
	more(3); /* The others go on. */
	cluster_spawn(on.cluster, 2);
	cluster_ready(on.cluster, 2);
	cluster_wait_log(on.cluster, 2, "event=learned model=m", 1);
	more(3);
	end(NODES);
}

static void test_no_folder(void **state)
{
	char error[512];

	(void)state;
	on.crew = calloc(1, sizeof(*on.crew));
	CHECK(on.crew != NULL);
	crew_init(on.crew, "m");
	on.crew->extra = TIER;
	on.cluster = cluster_start(2, NULL, NULL);
	crew_add(on.crew, on.cluster->node[0].unix_address, 0);
	assert_int_equal(crew_define(on.crew, on.cluster->node[0].unix_address, error),
			 SHARD_UNSUPPORTED);
	assert_non_null(strstr(error, "tier = nvme"));
	assert_non_null(strstr(error, "nvme_dir"));
	assert_non_null(strstr(error, "node a"));
	cluster_done(&on.cluster);
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
