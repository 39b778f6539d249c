// SPDX-License-Identifier: Apache-2.0
/* Models whose state is on disks end while others use it, on real daemons. Trainers read weights
 * all the time, from chunks that take turns in memory, while steps are applied and when the model
 * is dropped. A model is dropped while a node catches up, and waits for a chunk of a node that
 * stands still. No daemon may end, keep a pin or a file. */
#include "base/check.h"
#include "lib/ondisk.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/rmtree.h"
#include "lib/tool.h"
#include "lib/trap.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { NODES = 3, READERS = 6, ELEMS = 5000 /* Of several chunks. */ };
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

/* Nobody has the model any more, and every daemon is there. */
static void gone(void)
{
	char words[400];

	assert_int_equal(ondisk_files(&on), 0);
	for (int n = 0; n < NODES; n++) {
		snprintf(words, sizeof(words), "status --address %s",
			 on.cluster->node[n].unix_address);
		tool_expect(0, "", "shardctl", words);
	}
	cluster_done(&on.cluster);
}

/* --- reads --- */

struct reader {
	pthread_t thread;
	const char *address;
	enum shard_kind kind;
	_Atomic uint32_t reads;
	enum shard_status end;
};

static void *read_on(void *arg)
{
	struct reader *r = arg;
	shard_client *c = crew_connect(r->address);
	float *to = malloc(ELEMS * sizeof(*to));
	shard_model *m;
	uint64_t step;

	CHECK(to != NULL);
	MUST(shard_attach(c, "m", &m));
	do {
		step = 0;
		r->end = shard_read(m, r->kind, 0, 0, ELEMS, SHARD_F32, to, &step);
		r->reads++;
		/* The model moves on, or there are too many reads. */
	} while (r->end == SHARD_OK || r->end == SHARD_STALE || r->end == SHARD_BUSY);
	free(to);
	shard_disconnect(&c);
	return NULL;
}

static void test_reads(void **state)
{
	struct reader reader[READERS];
	char words[400];

	(void)state;
	ondisk_begin(&on, NODES, TIER);
	for (int i = 0; i < READERS; i++) {
		reader[i] = (struct reader){.address = on.cluster->node[i % NODES].unix_address,
					    .kind = i % 2 ? SHARD_MASTER : SHARD_EXP_AVG};
		CHECK(pthread_create(&reader[i].thread, NULL, read_on, &reader[i]) == 0);
	}
	for (int i = 0; i < READERS; i++) { /* Each reads, and steps are applied meanwhile. */
		uint32_t had = reader[i].reads;

		while (reader[i].reads < had + 2)
			crew_wait_step(on.crew, crew_step(on.crew) + 1);
	}
	(void)crew_finish(on.crew);
	snprintf(words, sizeof(words), "model drop m --address %s",
		 on.cluster->node[0].unix_address);
	tool_expect(0, "", "shardctl", words);
	for (int i = 0; i < READERS; i++) {
		CHECK(pthread_join(reader[i].thread, NULL) == 0);
		assert_int_equal(reader[i].end, SHARD_NOT_FOUND);
	}
	gone();
}

/* --- a node that catches up --- */

/* Node c has lost its memory, and starts again. */
static void without_memory(void)
{
	char line[300], place[1024];
	FILE *in;

	snprintf(line, sizeof(line), "grep -o 'place=[^ ]*' %.200s | head -n 1 | cut -c 7-",
		 on.cluster->node[2].log);
	in = popen(line, "r");
	assert_non_null(in);
	assert_non_null(fgets(place, sizeof(place), in));
	place[strcspn(place, "\n")] = 0;
	(void)pclose(in);
	cluster_kill(on.cluster, 2);
	rmtree(place);
	cluster_spawn(on.cluster, 2);
}

static void test_catches_up(void **state)
{
	const struct trap_point asked = TRAP_CALLS("catchup_asked", 3);
	char line[400], out[256];
	struct trap t;
	FILE *drop;

	(void)state;
	if (!trap_here())
		skip();
	ondisk_begin(&on, NODES, TIER);
	(void)crew_finish(on.crew);
	trap_set(&t, on.cluster->node[1].pid, &asked);
	without_memory();
	assert_true(trap_wait(&t, 20000)); /* Node c waits for b, with pins. */
	snprintf(line, sizeof(line), "build/shardctl model drop m --address %s 2>&1",
		 on.cluster->node[0].unix_address);
	drop = popen(line, "r");
	assert_non_null(drop);
	cluster_wait_log(on.cluster, 0, "event=drop model=m", 1);
	cluster_wait_log(on.cluster, 2, "event=drop model=m", 1);
	trap_end(&t);
	while (fgets(out, sizeof(out), drop) != NULL)
		print_message("%s", out);
	assert_int_equal(pclose(drop), 0);
	for (int n = 0; n < NODES; n++)
		cluster_wait_log(on.cluster, n, "event=dropped model=m", 1);
	gone();
}

int main(void)
{
#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(test_reads),
		TEST(test_catches_up),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
