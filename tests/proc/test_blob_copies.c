// SPDX-License-Identifier: Apache-2.0
/* Tests blobs of a model with replicas = 2 on three real nodes. The trainers are all on node b.
 * When that node is killed for good, they start elsewhere with the same ranks and find their blobs,
 * the ones of a step included that was voted for and whose result nobody heard. A node that comes
 * back without memory has its blobs again when it has caught up, and serves them when another node
 * is gone. Warm restarts keep them, a save writes each once, and a restore gives them to all copies
 * again. There are as many ranks as chunks, so every pair of nodes keeps the blob of some rank. The
 * contents are a function of rank and step, so every bit is checked. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/tool.h"
#include "lib/trainer.h"

#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { RANKS = 6, LARGEST = 65536, MARK = 24 };

#define MODEL   "[cluster]\nheartbeat_timeout = 5s\nlost_timeout = 60s\n"
#define ELECTED MODEL "membership = quorum\nelection_timeout = 300ms\n"

static struct cluster *cluster;

/* --- the contents of the blob of a rank at a step --- */

static uint32_t blob_bytes(uint32_t rank, uint64_t step)
{
	static const uint32_t sizes[] = {0, 4096, LARGEST, 65535, MARK, 100};

	return sizes[(rank + step) % NR(sizes)];
}

/* No two blobs begin alike. */
static void blob_fill(unsigned char *to, uint32_t rank, uint64_t step)
{
	char mark[MARK + 1];

	for (uint32_t i = 0; i < LARGEST; i++)
		to[i] = (unsigned char)((i * 2654435761u + rank * 40503u + step * 977u) >> 13);
	snprintf(mark, sizeof(mark), "<blob %05u %010lu>", rank, (unsigned long)step);
	memcpy(to, mark, MARK);
}

static enum shard_status read_blob(struct trainer *t, uint32_t rank, uint64_t *step)
{
	unsigned char *data = malloc(2 * LARGEST), *want = data + LARGEST;
	uint64_t until = pace_by(20);
	size_t bytes;
	enum shard_status rc;

	CHECK(data != NULL);
	do { /* Nodes that have just started find each other one after the other. */
		bytes = LARGEST;
		rc = shard_blob(t->model, rank, data, &bytes, step);
	} while (rc == SHARD_UNREACHABLE && clock_ns() < until);
	if (rc == SHARD_OK) {
		blob_fill(want, rank, *step);
		if (bytes != blob_bytes(rank, *step) || memcmp(data, want, bytes) != 0)
			fail_msg("the blob of rank %u, step %lu: %zu bytes that were not set", rank,
				 *step, bytes);
	}
	free(data);
	return rc;
}

static void expect_blobs(struct trainer *t, uint64_t step)
{
	for (uint32_t r = 0; r < RANKS; r++) {
		uint64_t got = 0;

		EXPECT(SHARD_OK, read_blob(t, r, &got));
		if (got != step)
			fail_msg("the blob of rank %u is of step %lu, not %lu", r, got, step);
	}
}

/* --- a world of trainers in this process, all on one node --- */

static void spec_of(struct shard_spec *s, const char *extra)
{
	static char settings[300];

	trainer_spec(s, SHARD_BF16, SHARD_BF16);
	snprintf(settings, sizeof(settings),
		 "optimizer=sgd lr=1 replicas=2 chunk_elems=1024 min_world=%d max_world=%d "
		 "local_world=%d %s",
		 RANKS, RANKS, RANKS, extra);
	s->settings = settings;
}

/* A node may just have found out who leads, or that another one is gone. */
static void define(struct trainer *t, int node, const char *extra)
{
	struct shard_spec s;
	enum shard_status rc;
	uint64_t until = pace_by(20);

	spec_of(&s, extra);
	trainer_connect(t, cluster->node[node].unix_address);
	do
		rc = shard_define(t->client, &s, &t->model, &t->created);
	while ((rc == SHARD_BUSY || rc == SHARD_UNREACHABLE) && clock_ns() < until);
	EXPECT(SHARD_OK, rc);
	if (!t->created)
		return;
	for (uint32_t i = 0; i < TRAINER_TENSORS; i++) {
		float *w = calloc(trainer_numel[i], sizeof(*w));

		CHECK(w != NULL);
		EXPECT(SHARD_OK,
		       shard_write(t->model, SHARD_MASTER, i, 0, trainer_numel[i], SHARD_F32, w));
		free(w);
	}
	EXPECT(SHARD_OK, shard_seal(t->model, 0));
}

static void start(struct trainer *t, int node, const char *extra)
{
	for (int i = 0; i < RANKS; i++)
		define(&t[i], node, extra);
}

static void join(struct trainer *t)
{
	for (int i = 0; i < RANKS - 1; i++) /* The world needs all. */
		EXPECT(SHARD_TIMEOUT, shard_join(t[i].model, i, 0, &t[i].world));
	for (int i = RANKS - 1; i >= 0; i--) {
		EXPECT(SHARD_OK, shard_join(t[i].model, i, pace_ms(20000), &t[i].world));
		assert_int_equal(t[i].world.rank, i);
	}
}

/* Begins a step with a blob of each rank, and commits it. Nobody waits for the result. */
static uint64_t commit(struct trainer *t)
{
	unsigned char *data = malloc(LARGEST);

	CHECK(data != NULL);
	for (int i = 0; i < RANKS; i++) {
		trainer_begin(&t[i]);
		blob_fill(data, (uint32_t)i, t[i].step.step);
		EXPECT(SHARD_OK,
		       shard_set_blob(t[i].model, data, blob_bytes((uint32_t)i, t[i].step.step)));
		trainer_push_all(&t[i], 0.25f);
	}
	for (int i = 0; i < RANKS; i++)
		EXPECT(SHARD_OK, shard_commit(t[i].model, NULL));
	free(data);
	return t[0].step.step;
}

struct rank {
	struct trainer *t;
	uint32_t nr;
	bool with_blob;
	pthread_t thread;
	uint64_t step;
};

static void *rank_step(void *arg)
{
	struct rank *r = arg;
	struct trainer *t = r->t;
	struct shard_result result = SHARD_INIT(struct shard_result);
	unsigned char *data = malloc(LARGEST);
	enum shard_status rc;

	CHECK(data != NULL);
	do {
		if ((rc = shard_begin(t->model, NULL, &t->step)) == SHARD_OK && r->with_blob) {
			blob_fill(data, r->nr, t->step.step);
			rc = shard_set_blob(t->model, data, blob_bytes(r->nr, t->step.step));
		}
		for (uint32_t i = 0; i < TRAINER_TENSORS && rc == SHARD_OK; i++)
			rc = shard_push_none(t->model, i);
		if (rc == SHARD_OK)
			rc = shard_commit(t->model, NULL);
		if (rc == SHARD_OK)
			rc = shard_result(t->model, 0, pace_ms(20000), &result);
		CHECK(shard_world_get(t->model, &t->world) == SHARD_OK);
	} while (rc == SHARD_WORLD_CHANGED); /* A node has gone, or came. */
	if (rc != SHARD_OK) {
		fprintf(stderr, "rank %u: %s: %s\n", r->nr, shard_name(rc), shard_error());
		abort();
	}
	r->step = result.step;
	free(data);
	return NULL;
}

static uint64_t step(struct trainer *t, bool with_blobs)
{
	struct rank rank[RANKS];

	for (uint32_t i = 0; i < RANKS; i++) {
		rank[i] = (struct rank){.t = &t[i], .nr = i, .with_blob = with_blobs};
		CHECK(pthread_create(&rank[i].thread, NULL, rank_step, &rank[i]) == 0);
	}
	for (int i = 0; i < RANKS; i++) {
		CHECK(pthread_join(rank[i].thread, NULL) == 0);
		assert_int_equal(rank[i].step, rank[0].step);
	}
	return rank[0].step;
}

/* Trains until the node has its copies. Returns the last step. */
static uint64_t until_learned(struct trainer *t, int node, bool with_blobs)
{
	uint64_t last, until = pace_by(20);

	do {
		if (clock_ns() > until)
			fail_msg("node %s has not caught up", cluster->node[node].name);
		last = step(t, with_blobs);
	} while (cluster_logged(cluster, node, "event=learned") == 0);
	return last;
}

static void end(struct trainer *t)
{
	for (int i = 0; i < RANKS; i++)
		trainer_end(&t[i]);
}

/* --- the tests --- */

/* Committed by an earlier step, by the last one, and with a step that set none after it. */
static void test_lost_for_good(void **state)
{
	struct trainer t[RANKS];
	uint64_t last = 0;

	(void)state;
	cluster = cluster_start(3, NULL, MODEL);
	start(t, 1, "");
	join(t);
	for (int i = 0; i < 6; i++)
		last = step(t, true);
	step(t, false);
	cluster_kill(cluster, 1);
	end(t);
	start(t, 2, "");
	expect_blobs(t, last);
	join(t);
	last = step(t, true);
	expect_blobs(t, last);
	end(t);
	for (int n = 0; n < 3; n += 2) { /* From a node without trainers, too. */
		define(t, n, "");
		expect_blobs(t, last);
		trainer_end(t);
	}
	cluster_done(&cluster);
}

/* The one that led last. */
static int leader(void)
{
	uint64_t best = 0, until = pace_by(20);
	int found = -1;

	while (found < 0 && clock_ns() < until) {
		for (int n = 0; n < 3; n++) {
			char *log = cluster_log(cluster, n), *at = log;

			while ((at = strstr(at, "event=leading term=")) != NULL) {
				at += strlen("event=leading term=");
				if (strtoull(at, NULL, 10) > best) {
					best = strtoull(at, NULL, 10);
					found = n;
				}
			}
			free(log);
		}
	}
	if (found < 0)
		fail_msg("nobody coordinates");
	return found;
}

/* All nodes have voted, and the node of the trainers dies before anybody hears the vote of another
 * node. Returns whether the step was committed all the same. Its blobs are found if it was, and
 * those of the step before if it was not. */
static bool voted(bool elected)
{
	struct trainer t[RANKS], other;
	uint64_t last, got = 0;
	int home = 1;

	cluster = cluster_make(3, NULL, elected ? ELECTED : MODEL);
	cluster_between(cluster);
	cluster_up(cluster);
	if (elected)
		home = leader();
	start(t, home, "");
	join(t);
	step(t, true);
	define(&other, (home + 1) % 3, "");
	expect_blobs(&other, 1);
	cluster_votes(cluster, false);
	last = commit(t);
	for (int n = 0; n < 3; n++)
		cluster_phase(cluster, n, "prepared");
	cluster_kill(cluster, home);
	cluster_votes(cluster, true);
	end(t);
	EXPECT(SHARD_OK, read_blob(&other, 0, &got));
	assert_true(got == last || got == last - 1);
	expect_blobs(&other, got);
	trainer_end(&other);
	start(t, (home + 2) % 3, "");
	expect_blobs(t, got);
	join(t);
	assert_int_equal(t[0].world.step, got + 1);
	expect_blobs(t, step(t, true));
	end(t);
	cluster_done(&cluster);
	return got == last;
}

/* The coordinator lives, has no vote of the dead node, and aborts the step. */
static void test_voted(void **state)
{
	(void)state;
	assert_false(voted(false));
}

/* The coordinator dies, and may have had all votes. So the next one commits the step. */
static void test_voted_elected(void **state)
{
	(void)state;
	assert_true(voted(true));
}

/* While a step is voted for, nobody can know whether its blobs count. So no answer comes. */
static void test_undecided(void **state)
{
	struct trainer t[RANKS], other[3];
	struct shard_result r = SHARD_INIT(struct shard_result);
	uint64_t last, got;

	(void)state;
	cluster = cluster_make(3, NULL, MODEL);
	cluster_between(cluster);
	cluster_up(cluster);
	start(t, 1, "timeout=1s");
	for (int n = 0; n < 3; n++)
		define(&other[n], n, "timeout=1s");
	join(t);
	step(t, true);
	cluster_votes(cluster, false);
	last = commit(t);
	for (int n = 0; n < 3; n++)
		cluster_phase(cluster, n, "prepared");
	for (int n = 0; n < 3; n++)
		for (uint32_t k = 0; k < RANKS; k += 4)
			EXPECT(SHARD_TIMEOUT, read_blob(&other[n], k, &got));
	cluster_votes(cluster, true);
	for (int i = 0; i < RANKS; i++)
		EXPECT(SHARD_OK, shard_result(t[i].model, 0, pace_ms(20000), &r));
	for (int n = 0; n < 3; n++) {
		expect_blobs(&other[n], last);
		trainer_end(&other[n]);
	}
	end(t);
	cluster_done(&cluster);
}

/* Each node in turn loses its memory and catches up, and then another one is gone for good. The
 * blobs are of different steps: the last one set none. */
static void test_caught_up(void **state)
{
	struct trainer t[RANKS];
	uint64_t last;

	(void)state;
	for (int gone = 1; gone <= 2; gone++) {
		int back = 3 - gone;

		cluster = cluster_start(3, NULL, MODEL);
		start(t, 0, "");
		join(t);
		step(t, true);
		last = step(t, true);
		cluster_kill(cluster, back);
		step(t, false); /* Without it. */
		cluster_spawn(cluster, back);
		until_learned(t, back, false);
		cluster_kill(cluster, gone);
		step(t, false);
		expect_blobs(t, last);
		end(t);
		start(t, back, "");
		expect_blobs(t, last);
		join(t);
		expect_blobs(t, step(t, true));
		end(t);
		cluster_done(&cluster);
	}
}

/* A node that catches up takes part in the steps that are made meanwhile. */
static void test_learns_while_training(void **state)
{
	struct trainer t[RANKS];
	uint64_t last;

	(void)state;
	cluster = cluster_start(3, NULL, MODEL);
	start(t, 0, "");
	join(t);
	step(t, true);
	cluster_kill(cluster, 1);
	step(t, true);
	cluster_spawn(cluster, 1);
	last = until_learned(t, 1, true);
	cluster_kill(cluster, 2);
	step(t, false);
	expect_blobs(t, last);
	end(t);
	cluster_done(&cluster);
}

static void test_warm(void **state)
{
	struct trainer t[RANKS];
	uint64_t last;

	(void)state;
	cluster = cluster_make(3, NULL, MODEL);
	cluster_warm(cluster, CLUSTER_TMPFS);
	cluster_up(cluster);
	start(t, 1, "");
	join(t);
	step(t, true);
	last = step(t, true);
	step(t, false);
	for (int n = 0; n < 3; n++)
		cluster_kill(cluster, n);
	end(t);
	cluster_up(cluster);
	start(t, 2, "");
	expect_blobs(t, last);
	join(t);
	cluster_kill(cluster, 1);
	expect_blobs(t, step(t, true));
	end(t);
	cluster_done(&cluster);
}

/* How often the bytes stand in the files of the folder. */
static uint32_t count(const char *dir, const char *mark)
{
	DIR *d = opendir(dir);
	uint32_t nr = 0;

	CHECK(d != NULL);
	for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
		char path[512], *bytes;
		struct stat st;
		FILE *f;

		snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
		if (stat(path, &st) != 0 || !S_ISREG(st.st_mode))
			continue;
		bytes = malloc((size_t)st.st_size + 1);
		f = fopen(path, "r");
		CHECK(bytes != NULL && f != NULL);
		CHECK(fread(bytes, 1, (size_t)st.st_size, f) == (size_t)st.st_size);
		for (char *at = bytes, *to = bytes + st.st_size;
		     (at = memmem(at, (size_t)(to - at), mark, MARK)) != NULL; at++)
			nr++;
		fclose(f);
		free(bytes);
	}
	closedir(d);
	return nr;
}

static void test_save_and_restore(void **state)
{
	char words[400], saved[200], mark[MARK + 1];
	unsigned char *data = malloc(LARGEST);
	struct trainer t[RANKS];
	uint64_t last;

	(void)state;
	CHECK(data != NULL);
	cluster = cluster_start(3, NULL, MODEL);
	snprintf(saved, sizeof(saved), "%s/saved", cluster->dir);
	CHECK(mkdir(saved, 0777) == 0);
	start(t, 1, "");
	join(t);
	last = step(t, true);
	snprintf(words, sizeof(words), "save gpt --dir=%s --tag=one --address %s", saved,
		 cluster->node[0].unix_address);
	tool_expect(0, "", "shardctl", words);
	snprintf(words, sizeof(words), "%s/one", saved);
	for (uint32_t r = 0; r < RANKS; r++) {
		if (blob_bytes(r, last) < MARK)
			continue;
		blob_fill(data, r, last);
		memcpy(mark, data, MARK);
		mark[MARK] = 0;
		if (count(words, mark) != 1)
			fail_msg("the blob of rank %u was saved %u times", r, count(words, mark));
	}
	step(t, true);
	step(t, true);
	end(t);
	snprintf(words, sizeof(words), "restore %s --tag=one --force --address %s", saved,
		 cluster->node[0].unix_address);
	tool_expect(0, "", "shardctl", words);
	for (int n = 0; n < 3; n++) {
		define(t, n, "");
		expect_blobs(t, last);
		trainer_end(t);
	}
	cluster_kill(cluster, 1);
	start(t, 2, "");
	expect_blobs(t, last);
	join(t);
	expect_blobs(t, step(t, true));
	end(t);
	free(data);
	cluster_done(&cluster);
}

static int teardown(void **state)
{
	(void)state;
	cluster_put_away(&cluster);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_lost_for_good, teardown),
		cmocka_unit_test_teardown(test_voted, teardown),
		cmocka_unit_test_teardown(test_voted_elected, teardown),
		cmocka_unit_test_teardown(test_undecided, teardown),
		cmocka_unit_test_teardown(test_caught_up, teardown),
		cmocka_unit_test_teardown(test_learns_while_training, teardown),
		cmocka_unit_test_teardown(test_warm, teardown),
		cmocka_unit_test_teardown(test_save_and_restore, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
