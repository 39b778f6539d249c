/* SPDX-License-Identifier: Apache-2.0 */
/* Clusters, a folder and crews for tests of saves, restores and restarts (see yard.h). Tests of
 * tests/proc call it. Failures end the test. */
#include "lib/yard.h"

#include "base/check.h"
#include "base/clock.h"
#include "lib/pace.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

int yard_setup(void **state)
{
	struct yard *y = calloc(1, sizeof(*y));

	CHECK(y != NULL);
	keep_init(&y->keep);
	*state = y;
	return 0;
}

int yard_teardown(void **state)
{
	struct yard *y = *state;

	cluster_put_away(&y->cluster);
	cluster_put_away(&y->other);
	keep_free(&y->keep);
	free(y);
	return 0;
}

void yard_add(struct crew *crew, const struct cluster *c, const int *per, bool reconnects)
{
	for (int n = 0; n < c->nodes_nr; n++)
		for (int i = 0; i < per[n]; i++)
			crew_add(crew, c->node[n].unix_address, (uint32_t)n)->reconnects =
				reconnects;
}

void yard_train(struct crew *crew, const struct cluster *c, const int *per, uint64_t last)
{
	crew->nr = 0;
	yard_add(crew, c, per, false);
	crew_start(crew, last);
	crew_finish(crew);
}

static void *save(void *arg)
{
	struct yard_save *s = arg;

	s->rc = keep_save(s->address, "m", s->dir, s->tag);
	snprintf(s->text, sizeof(s->text), "%s", shard_error());
	return NULL;
}

void yard_save_stuck(struct yard *y, const char *tag, struct yard_save *s)
{
	*s = (struct yard_save){
		.address = y->cluster->node[0].unix_address, .dir = y->keep.dir, .tag = tag};
	uint32_t before;

	cluster_signal(y->cluster, 1, SIGSTOP);
	before = cluster_logged(y->cluster, 0, "event=saving ");
	CHECK(pthread_create(&s->thread, NULL, save, s) == 0);
	cluster_wait_log(y->cluster, 0, "event=saving ", before + 1);
}

void yard_save_failed(struct yard_save *s)
{
	pthread_join(s->thread, NULL);
	assert_int_not_equal(s->rc, SHARD_OK);
}

static bool linked(const struct cluster *c)
{
	for (int n = 0; n < c->nodes_nr; n++) {
		shard_client *client = crew_connect(c->node[n].unix_address);
		char json[65536];
		size_t bytes = sizeof(json);
		int up = 0;

		MUST(shard_stats(client, json, &bytes));
		shard_disconnect(&client);
		for (const char *at = json; (at = strstr(at, "\"state\":\"up\"")) != NULL; at++)
			up++;
		if (up != c->nodes_nr - 1)
			return false;
	}
	return true;
}

void yard_linked(const struct cluster *c)
{
	uint64_t until = pace_by(30);

	while (!linked(c)) {
		if (clock_ns() > until)
			fail_msg("the nodes are not linked");
		usleep(5000);
	}
}
