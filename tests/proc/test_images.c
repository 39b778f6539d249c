// SPDX-License-Identifier: Apache-2.0
/* A node that was killed comes back without its memory, and gets the image of the model from the
 * primaries of its chunks. A cutter between the nodes sees each question and each chunk that
 * passes. So the test knows how much the node has asked for and not yet got, and whom it asked. At
 * the end masters, moments and image equal the reference of the crew bit by bit on each node. */
#include "base/clock.h"
#include "data/images.h"
#include "lib/cutter.h"
#include "lib/moved.h"
#include "lib/pace.h"
#include "shard.pb-c.h"
#include "wire/ops.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { NODES = 4, BACK = 3, CHUNKS_MAX = 4096 };

static const char conf[] = "[cluster]\nheartbeat_timeout = 5s\nlost_timeout = 60s\n";
static struct cluster *cluster;
static struct crew *crew;

static struct seen { /* The cutter writes it while .lock is held. */
	pthread_mutex_t lock;
	bool flies[CHUNKS_MAX]; /* Node d has asked for it, and it has not passed yet. */
	uint32_t flying, most;
	uint64_t step, next[NODES]; /* Which record it asks for, and each node from which chunk. */
	uint32_t got[NODES];        /* Chunks that it had asked a node for and got from it. */
	uint8_t asked[CHUNKS_MAX];  /* 1 + the node. 0: it was not asked for. */
	uint64_t bad;               /* Chunks that cannot be. */
} seen = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Node d asks each node in ascending order. If it begins again, for another record or because
 * nothing came for a second, it has given up what it had asked for, and so does this count. */
static void again(struct seen *s, int of, uint64_t step, uint32_t first)
{
	if (step == s->step && first >= s->next[of])
		return;
	memset(s->flies, 0, sizeof(s->flies));
	memset(s->next, 0, sizeof(s->next));
	s->flying = 0;
	s->step = step;
}

static void asks(struct seen *s, int of, const struct wire_head *h, const void *body)
{
	Shard__Chunks *runs = shard__chunks__unpack(NULL, h->body_bytes, body);

	if (runs != NULL && runs->n_runs > 0)
		again(s, of, h->step, runs->runs[0]);
	for (size_t i = 0; runs != NULL && i + 1 < runs->n_runs; i += 2)
		for (uint32_t k = 0; k < runs->runs[i + 1]; k++) {
			uint64_t c = (uint64_t)runs->runs[i] + k;

			if (c >= CHUNKS_MAX) {
				s->bad++;
				break;
			}
			s->flying += !s->flies[c];
			s->flies[c] = true;
			s->asked[c] = (uint8_t)(1 + of);
			s->next[of] = c + 1;
		}
	if (s->flying > s->most)
		s->most = s->flying;
	shard__chunks__free_unpacked(runs, NULL);
}

static void watch(void *arg, int from, int to, const struct wire_head *h, const void *body)
{
	struct seen *s = arg;

	pthread_mutex_lock(&s->lock);
	if (h->op == OP_IMAGE_ASK && from == BACK)
		asks(s, to, h, body);
	if (h->op == OP_IMAGE_DATA && to == BACK && h->chunk < CHUNKS_MAX) {
		s->flying -= s->flies[h->chunk];
		s->flies[h->chunk] = false;
		s->got[from] += s->asked[h->chunk] == 1 + from;
		s->asked[h->chunk] = 0;
	}
	pthread_mutex_unlock(&s->lock);
}

static void begin(const char *extra, uint32_t pause_us)
{
	moved_begin(&cluster, &crew,
		    &(struct moved_plan){.nodes = NODES,
					 .conf = conf,
					 .extra = extra,
					 .scale = 12,
					 .between = true,
					 .pause_us = pause_us});
	memset(&seen.flies, 0, sizeof(seen) - offsetof(struct seen, flies));
	cutter_watch(cluster->cutter, watch, &seen);
}

/* Waits until node d lacks nothing. */
static void comes_back(void)
{
	cluster_kill(cluster, BACK);
	cluster_spawn(cluster, BACK);
	cluster_ready(cluster, BACK);
	cluster_wait_log(cluster, BACK, "event=learned", 1);
}

static void ends(void)
{
	uint32_t from = 0, all = 0;

	cutter_watch(cluster->cutter, NULL, NULL);
	for (int n = 0; n < BACK; n++) {
		from += seen.got[n] > 0;
		all += seen.got[n];
	}
	assert_int_equal(seen.bad, 0);
	if (seen.most > IMAGES_ASKED_MAX)
		fail_msg("node d had asked for %u chunks at the same time, %u may be", seen.most,
			 IMAGES_ASKED_MAX);
	if (from < 2 || all < 3 * IMAGES_ASKED_MAX)
		fail_msg("node d got %u chunks that it had asked for, of %u nodes", all, from);
	moved_ends(&cluster, &crew, true);
}

/* The next step takes so long that all chunks come before its image does. */
static void test_while_trained(void **state)
{
	(void)state;
	begin("replicas=2", 300000);
	comes_back();
	crew_wait_step(crew, crew_step(crew) + 3);
	ends();
}

static void test_stale(void **state)
{
	(void)state;
	begin("replicas=2 max_staleness=1", 300000);
	comes_back();
	crew_wait_step(crew, crew_step(crew) + 3);
	ends();
}

/* The metrics say what has yet to come, while nothing does, and that it has come. */
static void test_said(void **state)
{
	static uint16_t port[NODES];

	(void)state;
	moved_begin(&cluster, &crew,
		    &(struct moved_plan){.nodes = NODES,
					 .conf = conf,
					 .extra = "replicas=2",
					 .scale = 2,
					 .between = true,
					 .pause_us = 300000,
					 .http_port = port});
	cutter_lose(cluster->cutter, OP_IMAGE_DATA);
	moved_wait_metric(port[0], "shardd_image_lacking_chunks", "", 1, CHUNKS_MAX);
	cutter_lose(cluster->cutter, 0);
	moved_wait_metric(port[0], "shardd_image_lacking_chunks", "", 0, 0);
	for (int n = 0; n < NODES; n++)
		moved_wait_metric(port[n], "shardd_image_asked_chunks", "", 0, 0);
	moved_ends(&cluster, &crew, true);
}

static int cleanup(void **state)
{
	(void)state;
	cluster_put_away(&cluster);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_while_trained, cleanup),
		cmocka_unit_test_teardown(test_stale, cleanup),
		cmocka_unit_test_teardown(test_said, cleanup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
