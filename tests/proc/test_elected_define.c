// SPDX-License-Identifier: Apache-2.0
/* shard_define(), shard_attach() and other requests while nobody coordinates. Elections take longer
 * here than anything waits in a daemon, so that the library has to ask again: in a cluster that has
 * just been started, after the coordinator was killed, and on a node that begins without its
 * memory. Also a coordinator that is one no more before the other nodes have said that they have
 * made the model. */
#include "base/clock.h"
#include "lib/crew.h"
#include "lib/cutter.h"
#include "lib/keep.h"
#include "lib/moved.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/trainer.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define SLOW                                                                                       \
	"[cluster]\nmembership = quorum\nelection_timeout = 3s\nheartbeat_timeout = 1s\n"          \
	"lost_timeout = 60s\n"

static struct cluster *cluster;
static struct shard_spec spec;
static enum shard_status defined;
static char why[600];

static void attach(struct trainer *t, int node)
{
	trainer_connect(t, cluster->node[node].unix_address);
	EXPECT(SHARD_OK, shard_attach(t->client, "gpt", &t->model));
}

static void *define(void *arg)
{
	struct trainer *t = arg;

	trainer_spec(&spec, SHARD_BF16, SHARD_BF16);
	defined = shard_define(t->client, &spec, &t->model, &t->created);
	snprintf(why, sizeof(why), "%s", shard_error());
	return NULL;
}

static int leader(void)
{
	uint64_t until = pace_by(30);

	for (;;) {
		for (int n = 0; n < 3; n++)
			if (cluster_logged(cluster, n, "event=leading term=") > 0)
				return n;
		if (clock_ns() > until)
			fail_msg("nobody coordinates");
		usleep(10000);
	}
}

static void test_waits(void **state)
{
	struct trainer t[3] = {{.client = NULL}}, again = {.client = NULL},
		       other = {.client = NULL};
	pthread_t thread;
	int first, b, c;

	(void)state;
	cluster = cluster_make(3, NULL, SLOW);
	cluster_warm(cluster, CLUSTER_TMPFS);
	for (int n = 0; n < 3; n++)
		cluster_spawn(cluster, n);
	for (int n = 0; n < 3; n++)
		cluster_ready(cluster, n);
	for (int n = 2; n >= 0; n--) /* At once: nobody has been elected yet. */
		trainer_define(&t[n], cluster->node[n].unix_address, SHARD_BF16, SHARD_BF16);
	assert_int_equal(t[0].created + t[1].created + t[2].created, 1);
	first = leader();
	cluster_voters(cluster);
	b = (first + 1) % 3;
	c = (first + 2) % 3;
	/* One node of three elects nobody, however long it waits. */
	cluster_kill(cluster, first);
	cluster_kill(cluster, c);
	trainer_connect(&again, cluster->node[b].unix_address);
	assert_int_equal(pthread_create(&thread, NULL, define, &again), 0);
	cluster_wait_log(cluster, b, "event=no_coordinator ", 1);
	cluster_spawn(cluster, c);
	cluster_ready(cluster, c);
	attach(&other, c);
	assert_int_equal(pthread_join(thread, NULL), 0);
	if (defined != SHARD_OK)
		fail_msg("%s: %s", shard_name(defined), why);
	assert_int_equal(again.created, 0);
	trainer_end(&again);
	trainer_end(&other);
	/* It knows of the model when it has heard of it, and no sooner. */
	cluster_spawn(cluster, first);
	cluster_ready(cluster, first);
	attach(&other, first);
	trainer_end(&other);
	trainer_connect(&other, cluster->node[first].unix_address);
	EXPECT(SHARD_NOT_FOUND, shard_attach(other.client, "nowhere", &other.model));
	trainer_end(&other);
	for (int n = 0; n < 3; n++)
		trainer_end(&t[n]);
	cluster_done(&cluster);
}

/* The other requests that only the coordinator carries out. */
static void test_asks_again(void **state)
{
	shard_client *c;
	enum shard_status st;

	(void)state;
	cluster = cluster_make(3, NULL, SLOW);
	cluster_up(cluster);
	st = keep_restore(cluster->node[1].unix_address, cluster->dir, NULL, NULL);
	if (st != SHARD_NOT_FOUND)
		fail_msg("restore: %s: %s", shard_name(st), shard_error());
	cluster_done(&cluster);
	cluster = cluster_make(3, NULL, SLOW);
	cluster_up(cluster);
	c = crew_connect(cluster->node[1].unix_address);
	EXPECT(SHARD_NOT_FOUND, shard_drop(c, "nowhere", 0));
	shard_disconnect(&c);
	cluster_done(&cluster);
}

/* The node that leads and has not lost that. */
static int leads(void)
{
	uint64_t until = pace_by(30);

	for (;;) {
		for (int n = 0; n < 3; n++)
			if (cluster_logged(cluster, n, "event=leading term=") >
			    cluster_logged(cluster, n, "event=not_leading term="))
				return n;
		if (clock_ns() > until)
			fail_msg("nobody coordinates");
		usleep(10000);
	}
}

/* Nothing passes between nodes from before the definition until the lead is lost. Then all that was
 * sent arrives, the requests to make the model and their answers among it. Whether they were sent
 * before depends on the moment, so it is done again until one was. */
static void test_leads_no_more(void **state)
{
	uint32_t refused = 0;
	struct cutter *k;

	(void)state;
	cluster = cluster_make(3, NULL,
			       "[cluster]\nmembership = quorum\nelection_timeout = 300ms\n"
			       "heartbeat_timeout = 60s\n");
	k = cutter_start(cluster);
	cluster_up(cluster);
	for (int tries = 0; refused == 0 && tries < 20; tries++) {
		struct trainer t = {.client = NULL};
		pthread_t thread;
		uint32_t before;
		int first;

		first = leads();
		before = cluster_logged(cluster, first, "event=not_leading term=");
		trainer_connect(&t, cluster->node[first].unix_address);
		cutter_deaf(k, true);
		assert_int_equal(pthread_create(&thread, NULL, define, &t), 0);
		cluster_wait_log(cluster, first, "event=not_leading term=", before + 1);
		cutter_deaf(k, false);
		assert_int_equal(pthread_join(thread, NULL), 0);
		if (defined != SHARD_OK)
			fail_msg("%s: %s", shard_name(defined), why);
		assert_int_equal(t.created, 1);
		EXPECT(SHARD_OK, shard_drop(t.client, "gpt", 1));
		trainer_end(&t);
		for (int n = 0; n < 3; n++)
			refused += cluster_logged(cluster, n, "event=model_refused model=gpt");
	}
	assert_true(refused > 0);
	cluster_done(&cluster);
	cutter_stop(&k);
}

static int put_away(void **state)
{
	(void)state;
	cluster_put_away(&cluster);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_waits, put_away),
		cmocka_unit_test_teardown(test_asks_again, put_away),
		cmocka_unit_test_teardown(test_leads_no_more, put_away),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
