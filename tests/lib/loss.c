// SPDX-License-Identifier: Apache-2.0
/* The course of a story of loss.h. Tests call it. Waits are for what nodes and trainers say, up to
 * a deadline of a quiet machine. A trainer whose node is dead tries to connect until it is back.
 * What is wrong fails the test. */
#include "lib/loss.h"

#include "base/check.h"
#include "base/clock.h"
#include "lib/cutter.h"
#include "lib/drill.h"
#include "lib/pace.h"
#include "lib/tool.h"
#include "wire/ops.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { WHOLE_S = 60, AT_MS = 3000, TRIES = 8, STEPS = 3 };
/* Beyond the time of elections. Less than the silence after which a node counts as lost: the end of
 * a link is heard at once. */
#define MARGIN_MS 8000

int loss_setup(void **state)
{
	struct loss *l = calloc(1, sizeof(*l));

	CHECK(l != NULL);
	l->dead = -1;
	*state = l;
	return 0;
}

/* The last lines of a log that are of no step and no session. */
static void show(struct loss *l, int node)
{
	const char *last[60] = {NULL};
	char *text = cluster_log(l->cluster, node), *at = text;
	uint32_t nr = 0;

	for (char *line; (line = strsep(&at, "\n")) != NULL;)
		if (strstr(line, "event=begin ") == NULL && strstr(line, "event=session") == NULL)
			last[nr++ % NR(last)] = line;
	fprintf(stderr, "--- what node %c did ---\n", 'a' + node);
	for (uint32_t i = nr > NR(last) ? nr - NR(last) : 0; i < nr; i++)
		fprintf(stderr, "%s\n", last[i % NR(last)]);
	free(text);
}

int loss_teardown(void **state)
{
	struct loss *l = *state;

	if (l->cluster == NULL) {
		free(l);
		return 0;
	}
	if (l->trap.nr > 0 && kill(l->trap.pid, 0) == 0)
		trap_kill(&l->trap); /* A traced thread would keep the process from its end. */
	for (int n = 0; n < LOSS_NODES; n++)
		show(l, n);
	cluster_put_away(&l->cluster);
	return 0; /* Trainers of a test that failed still use it. */
}

static void train(struct loss *l)
{
	l->trains = true;
	crew_start(&l->crew, UINT64_MAX);
}

void loss_begin(struct loss *l, const struct loss_conf *conf)
{
	l->conf = *conf;
	l->cluster = cluster_make(LOSS_NODES, NULL,
				  conf->lines != NULL ? conf->lines : LOSS_QUORUM LOSS_BEAT);
	if (conf->of_c != NULL)
		drill_conf(l->cluster, 2, conf->of_c);
	if (conf->between)
		cluster_between(l->cluster);
	if (conf->warm)
		cluster_warm(l->cluster, CLUSTER_TMPFS);
	cluster_up(l->cluster);
	crew_init(&l->crew, "loss");
	l->crew.elastic = true;
	l->crew.extra = conf->extra != NULL ? conf->extra : "replicas=2";
	l->crew.pause_us = 2000;
	for (uint32_t n = 0; n < LOSS_NODES; n++)
		crew_add(&l->crew, l->cluster->node[n].unix_address, n)->reconnects = true;
	train(l);
	loss_whole(l);
}

void loss_finish(struct loss *l)
{
	(void)crew_finish(&l->crew);
	l->trains = false;
	for (int n = 0; n < LOSS_NODES; n++) {
		assert_int_equal(cluster_logged(l->cluster, n, "event=lost "), 0);
		assert_int_equal(cluster_logged(l->cluster, n, "event=check_failed"), 0);
	}
	cluster_done(&l->cluster);
}

int loss_leader(struct loss *l)
{
	static const char part[] = "event=leading term=";
	uint64_t best = 0, until = pace_by(WHOLE_S);
	int found = -1;

	if (cluster_logged(l->cluster, 0, "event=") > 0 &&
	    (l->conf.lines != NULL && strstr(l->conf.lines, "membership = static") != NULL))
		return 0;
	while (found < 0) {
		for (int n = 0; n < LOSS_NODES; n++) {
			char *log = cluster_log(l->cluster, n);

			for (char *at = log; (at = strstr(at, part)) != NULL; at++) {
				uint64_t term = strtoull(at + sizeof(part) - 1, NULL, 10);

				found = term > best ? n : found;
				best = term > best ? term : best;
			}
			free(log);
		}
		if (found < 0 && clock_ns() > until)
			fail_msg("nobody coordinates");
		if (found < 0)
			(void)poll(NULL, 0, 5);
	}
	return found;
}

/* The status of a node, as JSON. NULL: it does not answer. The next call overwrites it. */
static const char *status(struct loss *l, int node)
{
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	static char json[1 << 16];
	size_t bytes = sizeof(json);
	shard_client *client;
	enum shard_status st;

	o.address = l->cluster->node[node].unix_address;
	o.look_ms = -1; /* What broke is told, and not made again. */
	o.timeout_ms = pace_ms(5000);
	if (shard_connect(&client, &o) != SHARD_OK)
		return NULL;
	st = shard_stats(client, json, &bytes);
	shard_disconnect(&client);
	return st == SHARD_OK ? json : NULL;
}

bool loss_says(struct loss *l, int node, const char *part)
{
	const char *json = status(l, node);

	return json != NULL && strstr(json, part) != NULL;
}

static bool whole(struct loss *l, int node)
{
	static const char *const here = "\"members\":[\"a\",\"b\",\"c\"]",
				 *const two[] = {"\"members\":[\"b\",\"c\"]",
						 "\"members\":[\"a\",\"c\"]",
						 "\"members\":[\"a\",\"b\"]"};
	const char *json = status(l, node);

	return json != NULL && strstr(json, l->dead < 0 ? here : two[l->dead]) != NULL &&
	       strstr(json, "\"catching_up\":[]") != NULL && strstr(json, "\"least\":2") != NULL &&
	       (strstr(json, "\"state\":\"training\"") != NULL ||
		strstr(json, "\"state\":\"waiting\"") != NULL) &&
	       strstr(json, "\"moving\":") == NULL;
}

void loss_whole(struct loss *l)
{
	uint64_t until = pace_by(WHOLE_S);

	for (int n = 0; n < LOSS_NODES; n++)
		while (l->cluster->node[n].pid != 0 && !whole(l, n)) {
			if (clock_ns() > until)
				fail_msg("node %c does not say that all copies are there: %s",
					 'a' + n,
					 status(l, n) != NULL ? status(l, n) : shard_error());
			(void)poll(NULL, 0, 10);
		}
	if (l->trains)
		crew_wait_told(&l->crew, atomic_load(&l->crew.told) + STEPS,
			       l->dead < 0 ? LOSS_NODES : LOSS_NODES - 1, until);
}

int loss_holder(struct loss *l)
{
	return (loss_leader(l) + 1) % LOSS_NODES;
}

static void arm(struct loss *l, const struct loss_moment *m, int victim, int leader)
{
	struct trap_point at = m->at;
	int traced = m->where == LOSS_VICTIM ? victim : leader;

	if (at.what == TRAP_HEAR)
		at.node = m->where == LOSS_VICTIM ? leader : victim;
	fprintf(stderr, "node %c (node %c coordinates): %s\n", 'a' + victim, 'a' + leader, m->name);
	trap_set(&l->trap, l->cluster->node[traced].pid, &at);
}

static bool at_moment(struct loss *l, const struct loss_moment *m)
{
	if (!trap_wait(&l->trap, AT_MS))
		return false;
	if (m->then == NULL)
		return true;
	trap_next(&l->trap, m->then);
	return trap_wait(&l->trap, AT_MS);
}

int loss_at(struct loss *l, const struct loss_moment *m, loss_who *who, loss_order *order)
{
	for (int i = 0; i < TRIES; i++) {
		int leader = loss_leader(l), victim = who(l);

		arm(l, m, victim, leader);
		if (order != NULL)
			order(l, victim);
		if (at_moment(l, m))
			return victim;
		trap_end(&l->trap);
		(void)loss_ctl_end(l);
		if (loss_leader(l) == leader && order == NULL)
			break;
		loss_whole(l);
	}
	fail_msg("%s was not called %u times that way", l->trap.at.function, l->trap.at.nth);
	return -1;
}

void loss_died(struct loss *l, int victim)
{
	l->dead = victim;
	l->known = atomic_load(&l->crew.told);
	l->killed_ns = clock_ns();
	if (l->trap.nr > 0 && l->trap.pid == l->cluster->node[victim].pid) {
		trap_kill(&l->trap);
		(void)cluster_wait(l->cluster, victim, 10000);
	} else {
		cluster_kill(l->cluster, victim);
		trap_end(&l->trap);
	}
}

int loss_kill(struct loss *l, const struct loss_moment *m, loss_who *who, loss_order *order)
{
	int victim = loss_at(l, m, who, order);

	loss_died(l, victim);
	return victim;
}

int loss_still(struct loss *l, const struct loss_moment *m, loss_who *who)
{
	int victim = loss_at(l, m, who, NULL);

	l->known = atomic_load(&l->crew.told);
	/* What its trainer hears is old, until the node has heard what it missed. */
	atomic_fetch_or(&l->crew.away, 1ull << victim);
	cluster_signal(l->cluster, victim, SIGSTOP);
	trap_end(&l->trap);
	return victim;
}

void loss_goes_on(struct loss *l)
{
	uint64_t ms = 4 * LOSS_ELECTION_MS + MARGIN_MS; /* An election may take two rounds. */

	crew_wait_told(&l->crew, l->known + STEPS, LOSS_NODES - 1,
		       l->killed_ns + pace_ns(ms * NS_PER_MS));
}

void loss_back(struct loss *l)
{
	CHECK(l->dead >= 0);
	cluster_spawn(l->cluster, l->dead);
	cluster_ready(l->cluster, l->dead);
	l->dead = -1;
	loss_whole(l);
}

static int run_at(const struct loss *l, int node, const char *what)
{
	char words[600], *out = NULL;
	int rc;

	snprintf(words, sizeof(words), "%s --address %s", what,
		 l->cluster->node[node].unix_address);
	rc = tool_run(&out, "shardctl", words);
	if (rc != 0)
		fprintf(stderr, "shardctl %s: %d: %s\n", words, rc, out);
	free(out);
	return rc;
}

int loss_ctl(struct loss *l, int node, const char *what)
{
	return run_at(l, node, what);
}

struct ctl_words {
	const struct loss *l;
	int node;
	const char *what;
};

static int run_ctl(void *arg)
{
	const struct ctl_words *w = arg;

	return run_at(w->l, w->node, w->what);
}

void loss_ctl_begin(struct loss *l, int node, const char *what)
{
	struct ctl_words w = {.l = l, .node = node, .what = what};

	CHECK(l->ctl == 0);
	l->ctl = proc_fork(run_ctl, &w);
}

int loss_ctl_end(struct loss *l)
{
	int status = l->ctl != 0 ? proc_wait(l->ctl, 30000) : 0;

	l->ctl = 0;
	if (status == -1 || !WIFEXITED(status))
		fail_msg("shardctl does not end");
	return WEXITSTATUS(status);
}

void loss_check(struct loss *l)
{
	uint64_t last;
	int any = l->dead == 0 ? 1 : 0;

	if (l->dead >= 0)
		atomic_fetch_or(&l->crew.away, 1ull << l->dead);
	last = crew_finish(&l->crew);
	atomic_store(&l->crew.away, 0);
	l->trains = false;
	assert_int_equal(loss_ctl(l, any, "verify loss"), 0);
	for (int n = 0; n < LOSS_NODES; n++)
		if (l->cluster->node[n].pid != 0)
			crew_check(&l->crew, l->cluster->node[n].unix_address, last);
	train(l);
	loss_whole(l);
}

int loss_learner(struct loss *l)
{
	return l->learner;
}

int loss_node_c(struct loss *l)
{
	while (loss_leader(l) == 2) {
		l->known = atomic_load(&l->crew.told);
		l->killed_ns = clock_ns();
		l->dead = 2;
		cluster_kill(l->cluster, 2);
		loss_goes_on(l);
		loss_back(l);
	}
	return 2;
}

void loss_learns(struct loss *l, int node)
{
	cutter_lose(l->cluster->cutter, OP_COPY_DATA);
	cluster_spawn(l->cluster, node);
	cluster_ready(l->cluster, node);
	l->dead = -1;
	crew_wait_told(&l->crew, l->known + 1, LOSS_NODES, pace_by(20));
}
