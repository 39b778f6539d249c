/* SPDX-License-Identifier: Apache-2.0 */
/* What test_source_etcd and test_source_etcd_wrong do in common. Nodes get their endpoints by the
 * environment, because their command line is the same for all sources (members_node.c). */
#include "lib/etcd_steps.h"

#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

void step_wait_leader(struct members *m, const char *what)
{
	members_wait(m, members_has_leader, -1, 20, what);
}

static uint64_t newest(const struct members *m)
{
	uint64_t most = 0;

	for (int i = 0; i < m->nodes_nr; i++)
		if (m->node[i].leads != 0 && m->node[i].seq > most)
			most = m->node[i].seq;
	return most;
}

static uint64_t progress_from;

static bool has_progress(struct members *m, int n)
{
	(void)n;
	return newest(m) >= progress_from + 10;
}

void step_progress(struct members *m)
{
	step_wait_leader(m, "somebody to lead");
	progress_from = newest(m);
	members_wait(m, has_progress, -1, 20, "ten more values");
}

int step_write_at(struct members *m, int n, uint64_t term, uint64_t seq, uint32_t bytes_nr)
{
	do {
		members_propose(m, n, term, seq, bytes_nr);
		members_wait(m, members_write_ended, n, 20, "an answer to a change");
	} while (m->node[n].write.how == -1 - (int)SHARD_AGAIN);
	return m->node[n].write.how;
}

int step_write(struct members *m, int n, uint32_t bytes_nr)
{
	return step_write_at(m, n, m->node[n].leads, m->node[n].seq, bytes_nr);
}

int step_read(struct members *m, int n)
{
	members_read(m, n);
	members_wait(m, members_read_ended, n, 20, "an answer to a read");
	return m->node[n].read.how;
}

bool step_is_ready(struct members *m, int n)
{
	return m->node[n].ready;
}

bool step_is_lost(struct members *m, int n)
{
	return m->node[n].lost_nr > 0 && m->node[n].leads == 0;
}

bool step_was_lost(struct members *m, int n)
{
	return m->node[n].lost_nr > 0;
}

bool step_another_leads(struct members *m, int n)
{
	for (int i = 0; i < m->nodes_nr; i++)
		if (i != n && m->node[i].leads > m->node[n].last_led)
			return true;
	return false;
}

static bool all_know(struct members *m, int n)
{
	int leader = members_leader(m);

	(void)n;
	for (int i = 0; i < m->nodes_nr && leader >= 0; i++)
		if (m->node[i].ready && m->node[i].leader != leader)
			return false;
	return leader >= 0;
}

int step_leader(struct members *m)
{
	members_wait(m, all_know, -1, 20, "all nodes to know who leads");
	return members_leader(m);
}

void step_start(struct members *m, int n)
{
	members_start(m, n, false);
	members_wait(m, step_is_ready, n, 10, "a node to start");
}

void step_make(struct step_both *b, int etcds_nr, int nodes_nr, uint64_t quota_bytes)
{
	if (!etcds_here())
		skip();
	etcds_make(&b->etcd, etcds_nr, quota_bytes);
	CHECK(setenv("MEMBERS_ETCD", b->etcd.endpoints, 1) == 0);
	unsetenv("MEMBERS_STRICT");
	members_make(&b->m, "etcd", nodes_nr, true);
	b->m.election_ms = STEP_LEASE_MS;
	b->m.deadline_ms /= 2;
	for (int n = 0; n < nodes_nr; n++)
		step_start(&b->m, n);
	step_wait_leader(&b->m, "a node to lead");
}

void step_end(struct step_both *b)
{
	members_settle(&b->m);
	members_end(&b->m);
	etcds_end(&b->etcd);
}

static int by_size(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

void step_say(const char *what, uint64_t *ns, size_t nr)
{
	qsort(ns, nr, sizeof(*ns), by_size);
	print_message("etcd: %s: next leader after %.0f ms (median), %.0f ms (max of %zu)\n", what,
		      (double)ns[(nr - 1) / 2] / 1e6, (double)ns[nr - 1] / 1e6, nr);
}
