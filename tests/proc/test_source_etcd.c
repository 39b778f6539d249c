// SPDX-License-Identifier: Apache-2.0
/* The membership source `etcd` with a real etcd on loopback and with nodes as real processes. Nodes
 * are killed, stopped and raced against each other; etcd is killed, stopped, wiped, restored from a
 * backup, exchanged, full, and compacted. Clients write and read all the time, and in the end the
 * whole history must be linearizable (lib/register.h). The times that a failover takes are printed.
 * Without etcd all tests are skipped. */
#include "lib/etcds.h"
#include "lib/members.h"

#include "base/check.h"
#include "base/clock.h"
#include "cluster/source_etcd.h"
#include "lib/pace.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { NODES = 3, LEASE_MS = 1000, ROUNDS = 5 };

struct both {
	struct etcds etcd;
	struct members m;
};

/* --- steps that the tests share --- */

static void wait_leader(struct members *m, const char *what)
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

/* Waits until ten more values were written. */
static void wait_progress(struct members *m)
{
	wait_leader(m, "somebody to lead");
	progress_from = newest(m);
	members_wait(m, has_progress, -1, 20, "ten more values");
}

static int write_at(struct members *m, int n, uint64_t term, uint64_t seq, uint32_t bytes_nr)
{
	do {
		members_propose(m, n, term, seq, bytes_nr);
		members_wait(m, members_write_ended, n, 20, "an answer to a change");
	} while (m->node[n].write.how == -1 - (int)SHARD_AGAIN);
	return m->node[n].write.how;
}

static int write_more(struct members *m, int n, uint32_t bytes_nr)
{
	return write_at(m, n, m->node[n].leads, m->node[n].seq, bytes_nr);
}

static int read_at(struct members *m, int n)
{
	members_read(m, n);
	members_wait(m, members_read_ended, n, 20, "an answer to a read");
	return m->node[n].read.how;
}

static bool is_ready(struct members *m, int n)
{
	return m->node[n].ready;
}

static bool is_lost(struct members *m, int n)
{
	return m->node[n].lost_nr > 0 && m->node[n].leads == 0;
}

static bool another_leads(struct members *m, int n)
{
	for (int i = 0; i < m->nodes_nr; i++)
		if (i != n && m->node[i].leads > m->node[n].last_led)
			return true;
	return false;
}

static bool all_failed(struct members *m, int n)
{
	for (int i = 0; i < m->nodes_nr; i++)
		if (m->node[i].failed[0] == 0)
			return false;
	(void)n;
	return true;
}

/* All nodes know who leads, so that they can do something about it. */
static bool all_know(struct members *m, int n)
{
	int leader = members_leader(m);

	(void)n;
	for (int i = 0; i < m->nodes_nr && leader >= 0; i++)
		if (m->node[i].ready && m->node[i].leader != leader)
			return false;
	return leader >= 0;
}

static int wait_leader_known(struct members *m)
{
	members_wait(m, all_know, -1, 20, "all nodes to know who leads");
	return members_leader(m);
}

static void start(struct members *m, int n)
{
	members_start(m, n, false);
	members_wait(m, is_ready, n, 10, "a node to start");
}

static void make(struct both *b, int etcds_nr, int nodes_nr, uint64_t quota_bytes)
{
	if (!etcds_here())
		skip();
	etcds_make(&b->etcd, etcds_nr, quota_bytes);
	CHECK(setenv("MEMBERS_ETCD", b->etcd.endpoints, 1) == 0);
	unsetenv("MEMBERS_STRICT");
	members_make(&b->m, "etcd", nodes_nr);
	b->m.election_ms = LEASE_MS;
	for (int n = 0; n < nodes_nr; n++)
		start(&b->m, n);
	wait_leader(&b->m, "a node to lead");
}

static void end(struct both *b)
{
	members_settle(&b->m);
	members_end(&b->m);
	etcds_end(&b->etcd);
}

/* For a test after which no node is of use any more. */
static void end_failed(struct both *b)
{
	for (int n = 0; n < b->m.nodes_nr; n++)
		if (b->m.node[n].pid != 0)
			members_stop(&b->m, n);
	members_end(&b->m);
	etcds_end(&b->etcd);
}

static int by_size(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static void say(const char *what, uint64_t *ns, size_t nr)
{
	qsort(ns, nr, sizeof(*ns), by_size);
	print_message("etcd: %s: next leader after %.0f ms (median), %.0f ms (max of %zu)\n", what,
		      (double)ns[(nr - 1) / 2] / 1e6, (double)ns[nr - 1] / 1e6, nr);
}

/* --- nodes --- */

static void test_answers(void **state)
{
	struct both b;
	struct members *m = &b.m;
	uint64_t term;
	int n, other;

	(void)state;
	make(&b, 1, NODES, 0);
	n = wait_leader_known(m);
	other = (n + 1) % NODES;
	term = m->node[n].leads;
	assert_int_equal(write_more(m, n, 100), MEMBER_OK);
	assert_int_equal(write_more(m, n, 0), MEMBER_OK);
	assert_int_equal(write_more(m, n, MEMBER_VIEW_MAX), MEMBER_OK);
	assert_int_equal(write_at(m, n, term, m->node[n].seq + 1, 10), MEMBER_CONFLICT);
	assert_int_equal(write_at(m, n, term, m->node[n].seq - 1, 10), MEMBER_CONFLICT);
	assert_int_equal(write_at(m, n, term + 1, m->node[n].seq, 10), MEMBER_FENCED);
	assert_int_equal(write_at(m, n, term - 1, m->node[n].seq, 10), MEMBER_FENCED);
	assert_int_equal(write_at(m, other, term, m->node[n].seq, 10), MEMBER_FENCED);
	assert_int_equal(read_at(m, other), MEMBER_OK);
	members_voter(m, n, m->node[other].uuid, true);
	members_wait(m, members_write_ended, n, 10, "a change of voters");
	assert_int_equal(m->node[n].write.how, -1 - (int)SHARD_UNSUPPORTED);
	end(&b);
}

/* The links of the others are reset, so they revoke the lease. */
static void test_kill(void **state)
{
	uint64_t took[ROUNDS];
	struct both b;
	struct members *m = &b.m;

	(void)state;
	make(&b, 1, NODES, 0);
	m->load = true;
	for (int round = 0; round < ROUNDS; round++) {
		uint64_t from;
		int n;

		wait_progress(m);
		n = wait_leader_known(m);
		from = clock_ns();
		members_kill(m, n);
		members_wait(m, another_leads, n, 20, "another node to lead");
		took[round] = clock_ns() - from;
		assert_true(took[round] < pace_ns(LEASE_MS * NS_PER_MS + NS_PER_SEC));
		wait_progress(m);
		start(m, n);
	}
	end(&b);
	say("kill -9 of the leader, links reset", took, ROUNDS);
}

/* No link is reset, so the lease has to run out. When the node goes on, it must know that its time
 * is up before it looks at the change that waits. */
static void test_pause(void **state)
{
	uint64_t took[2];
	struct both b;
	struct members *m = &b.m;

	(void)state;
	make(&b, 1, NODES, 0);
	m->load = true;
	for (int round = 0; round < 2; round++) {
		uint64_t from;
		const char *order;
		int n;

		wait_progress(m);
		n = wait_leader_known(m);
		members_wait(m, members_write_ended, n, 10, "the change under way");
		from = clock_ns();
		members_pause(m, n);
		members_note(m, n);
		m->node[n].lost_nr = 0;
		if (!m->node[n].write.open)
			members_propose(m, n, m->node[n].leads, m->node[n].seq, 10);
		members_wait(m, another_leads, n, 20, "another node to lead");
		took[round] = clock_ns() - from;
		members_go_on(m, n);
		members_wait(m, is_lost, n, 10, "a node that stood still to notice it");
		members_wait(m, members_write_ended, n, 10, "the change that waited");
		order = m->node[n].order;
		/* Before `lost` there may be answers to reads that were lost in the pause, but no
		 * change may have been done, and nothing new be told. */
		assert_non_null(strchr(order, 'l'));
		for (const char *at = order; at < strchr(order, 'l'); at++)
			assert_true(*at != 'o' && *at != 'V');
		wait_progress(m);
	}
	end(&b);
	say("SIGSTOP of the leader, lease runs out", took, 2);
}

static void test_resign(void **state)
{
	uint64_t resigned[ROUNDS], stopped[ROUNDS];
	struct both b;
	struct members *m = &b.m;

	(void)state;
	make(&b, 1, NODES, 0);
	m->load = true;
	for (int round = 0; round < ROUNDS; round++) {
		int n = wait_leader_known(m);
		uint64_t from = clock_ns();

		m->node[n].lost_nr = 0;
		members_resign(m, n);
		members_wait(m, is_lost, n, 10, "a node to resign");
		members_wait(m, another_leads, n, 10, "another one to take over");
		resigned[round] = clock_ns() - from;
		wait_progress(m);
		n = wait_leader_known(m);
		from = clock_ns();
		members_stop(m, n);
		members_wait(m, another_leads, n, 10, "another one to take over");
		stopped[round] = clock_ns() - from;
		wait_progress(m);
		start(m, n);
	}
	end(&b);
	say("the leader resigns", resigned, ROUNDS);
	say("the leader stops", stopped, ROUNDS);
}

/* It finds the key of its earlier life, and need not wait for that lease. */
static void test_alone(void **state)
{
	uint64_t took[ROUNDS];
	struct both b;
	struct members *m = &b.m;

	(void)state;
	make(&b, 1, 1, 0);
	for (int round = 0; round < ROUNDS; round++) {
		uint64_t from = clock_ns(), term = m->node[0].leads;

		members_kill(m, 0);
		start(m, 0);
		wait_leader(m, "the node to lead again");
		took[round] = clock_ns() - from;
		assert_true(m->node[0].leads > term);
		assert_int_equal(write_more(m, 0, 100), MEMBER_OK);
	}
	end(&b);
	say("the only node is killed and starts again", took, ROUNDS);
}

static void expect_refused(struct members *m, int n, const char *text)
{
	members_start(m, n, false);
	members_wait(m, members_refused, n, 10, "a folder that cannot be used");
	if (strstr(m->node[n].refused, text) == NULL)
		fail_msg("\"%s\" is not in \"%s\"", text, m->node[n].refused);
}

static void test_folder(void **state)
{
	struct both b;
	struct members *m = &b.m;

	(void)state;
	make(&b, 1, 1, 0);
	assert_int_equal(write_more(m, 0, 100), MEMBER_OK);
	members_kill(m, 0);
	m->node[0].uuid[15] ^= 1;
	expect_refused(m, 0, "another node");
	m->node[0].uuid[15] ^= 1;
	m->source = "static";
	expect_refused(m, 0, "was written by the membership source");
	m->source = "etcd";
	CHECK(setenv("MEMBERS_ETCD", "ftp://127.0.0.1", 1) == 0);
	expect_refused(m, 0, "does not begin with http://");
	CHECK(setenv("MEMBERS_ETCD", " , ", 1) == 0);
	expect_refused(m, 0, "no endpoints");
	CHECK(setenv("MEMBERS_ETCD", b.etcd.endpoints, 1) == 0);
	start(m, 0);
	wait_leader(m, "the node to lead again");
	end(&b);
}

/* --- etcd goes and comes --- */

/* The leader leads on while etcd is down, longer than its lease, but writes nothing. */
static void test_down(void **state)
{
	struct both b;
	struct members *m = &b.m;
	uint64_t term, from, seq;
	int n;

	(void)state;
	make(&b, 1, NODES, 0);
	n = wait_leader_known(m);
	assert_int_equal(write_more(m, n, 100), MEMBER_OK);
	term = m->node[n].leads;
	seq = m->node[n].seq;
	m->node[n].lost_nr = 0;
	etcds_kill(&b.etcd, 0);
	from = clock_ns();
	while (clock_ns() - from < 2 * LEASE_MS * NS_PER_MS) {
		assert_int_equal(write_more(m, n, 10), MEMBER_UNKNOWN);
		assert_int_equal(read_at(m, n), MEMBER_UNKNOWN);
	}
	assert_int_equal(m->node[n].leads, term);
	assert_int_equal(m->node[n].seq, seq);
	etcds_start(&b.etcd, 0);
	etcds_ready(&b.etcd, 0);
	while (read_at(m, n) != MEMBER_OK)
		;
	assert_int_equal(m->node[n].lost_nr, 0);
	assert_int_equal(write_more(m, n, 10), MEMBER_OK);
	m->load = true;
	wait_progress(m);
	end(&b);
}

/* It loses the lead with its lease, if it is told to. */
static void test_strict(void **state)
{
	struct both b;
	struct members *m = &b.m;
	uint64_t from;
	int n;

	(void)state;
	make(&b, 1, NODES, 0);
	for (int i = 0; i < NODES; i++)
		members_stop(m, i);
	CHECK(setenv("MEMBERS_STRICT", "1", 1) == 0);
	for (int i = 0; i < NODES; i++)
		start(m, i);
	n = wait_leader_known(m);
	m->node[n].lost_nr = 0;
	m->load = true;
	wait_progress(m);
	n = wait_leader_known(m);
	from = clock_ns();
	etcds_kill(&b.etcd, 0);
	members_wait(m, is_lost, n, 10, "the lead to be lost with the lease");
	print_message("etcd: the lead was lost %.0f ms after etcd\n",
		      (double)(clock_ns() - from) / 1e6);
	etcds_start(&b.etcd, 0);
	etcds_ready(&b.etcd, 0);
	wait_progress(m);
	end(&b);
}

/* Kill -9 of etcd under load, again and again. */
static void test_crashes(void **state)
{
	struct both b;
	struct members *m = &b.m;

	(void)state;
	make(&b, 1, NODES, 0);
	m->load = true;
	for (int round = 0; round < 3; round++) {
		wait_progress(m);
		etcds_kill(&b.etcd, 0);
		for (int turn = 0; turn < 20; turn++)
			members_turn(m);
		etcds_start(&b.etcd, 0);
		wait_progress(m);
	}
	end(&b);
}

/* One member of etcd is stopped or killed, and one after the other. A majority goes on. */
static void test_member(void **state)
{
	struct both b;
	struct members *m = &b.m;

	(void)state;
	make(&b, 3, NODES, 0);
	m->load = true;
	for (int i = 0; i < 3; i++) {
		wait_progress(m);
		etcds_signal(&b.etcd, i, SIGSTOP);
		wait_progress(m);
		etcds_signal(&b.etcd, i, SIGCONT);
		etcds_ready(&b.etcd, i);
		etcds_kill(&b.etcd, i);
		wait_progress(m);
		etcds_start(&b.etcd, i);
		etcds_ready(&b.etcd, i);
	}
	end(&b);
}

/* Two of three are gone: the third one answers, but it cannot know anything. */
static void test_minority(void **state)
{
	struct both b;
	struct members *m = &b.m;
	int n;

	(void)state;
	make(&b, 3, NODES, 0);
	n = wait_leader_known(m);
	assert_int_equal(write_more(m, n, 10), MEMBER_OK);
	etcds_signal(&b.etcd, 1, SIGSTOP);
	etcds_signal(&b.etcd, 2, SIGSTOP);
	assert_int_equal(write_more(m, n, 10), MEMBER_UNKNOWN);
	assert_int_equal(read_at(m, (n + 1) % NODES), MEMBER_UNKNOWN);
	etcds_signal(&b.etcd, 1, SIGCONT);
	etcds_signal(&b.etcd, 2, SIGCONT);
	m->load = true;
	wait_progress(m);
	end(&b);
}

/* What a watch should tell was compacted away while the node stood still. */
static void test_compaction(void **state)
{
	struct both b;
	struct members *m = &b.m;
	char body[64];
	int n, other;

	(void)state;
	make(&b, 1, NODES, 0);
	m->load = true;
	for (int round = 0; round < 2; round++) {
		wait_progress(m);
		n = wait_leader_known(m);
		other = (n + 1) % NODES;
		members_pause(m, other);
		wait_progress(m);
		snprintf(body, sizeof(body), "{\"revision\":\"%llu\",\"physical\":true}",
			 (unsigned long long)etcds_revision(&b.etcd));
		assert_int_equal(etcds_ask(&b.etcd, 0, "/v3/kv/compaction", body, NULL, 0), 200);
		members_go_on(m, other);
		wait_progress(m);
		etcds_kill(&b.etcd, 0); /* Every watch begins again. */
		etcds_start(&b.etcd, 0);
		wait_progress(m);
	}
	end(&b);
}

/* --- etcd forgets --- */

static void expect_failed(struct members *m, const char *text)
{
	members_wait(m, all_failed, -1, 20, "all nodes to fail");
	for (int i = 0; i < m->nodes_nr; i++) {
		if (strstr(m->node[i].failed, text) == NULL)
			fail_msg("\"%s\" is not in \"%s\"", text, m->node[i].failed);
		assert_int_equal(m->node[i].leads, 0);
	}
}

/* Nodes that run notice it, and nodes that start again, too. */
static void again_failed(struct members *m, const char *text)
{
	expect_failed(m, text);
	for (int i = 0; i < m->nodes_nr; i++) {
		members_kill(m, i);
		members_start(m, i, false);
	}
	expect_failed(m, text);
}

static void some_writes(struct members *m)
{
	int n = wait_leader_known(m);

	for (int i = 0; i < 3; i++)
		assert_int_equal(write_more(m, n, 100), MEMBER_OK);
	members_settle(m);
}

static void test_wiped(void **state)
{
	struct both b;

	(void)state;
	make(&b, 1, NODES, 0);
	some_writes(&b.m);
	etcds_kill(&b.etcd, 0);
	etcds_wipe(&b.etcd, 0);
	etcds_start(&b.etcd, 0);
	again_failed(&b.m, "wiped, or restored");
	end_failed(&b);
}

static void test_backup(void **state)
{
	struct both b;

	(void)state;
	make(&b, 1, NODES, 0);
	some_writes(&b.m);
	etcds_save(&b.etcd);
	some_writes(&b.m);
	etcds_kill(&b.etcd, 0);
	etcds_restore(&b.etcd);
	etcds_start(&b.etcd, 0);
	again_failed(&b.m, "wiped, or restored");
	end_failed(&b);
}

static void test_other_cluster(void **state)
{
	struct both b;

	(void)state;
	make(&b, 1, NODES, 0);
	some_writes(&b.m);
	etcds_kill(&b.etcd, 0);
	etcds_wipe(&b.etcd, 0);
	b.etcd.token = "another";
	etcds_start(&b.etcd, 0);
	again_failed(&b.m, "this etcd is the cluster");
	end_failed(&b);
}

/* An operator or another program writes where only shardd may. */
static void test_foreign(void **state)
{
	static const char body[] =
		"{\"key\":\"c2hhcmRkLw==\",\"range_end\":\"c2hhcmRkMA==\",\"limit\":\"1\","
		"\"keys_only\":true,\"sort_order\":\"DESCEND\",\"sort_target\":\"KEY\"}";
	char text[2048], put[512];
	const char *key;
	struct both b;

	(void)state;
	make(&b, 1, NODES, 0);
	some_writes(&b.m);
	assert_int_equal(etcds_ask(&b.etcd, 0, "/v3/kv/range", body, text, sizeof(text)), 200);
	key = strstr(text, "\"key\":\"");
	CHECK(key != NULL); /* The view's comes after the leader's. */
	snprintf(put, sizeof(put), "{%.*s,\"value\":\"AAAA\"}", (int)(strcspn(key, ",")), key);
	assert_int_equal(etcds_ask(&b.etcd, 0, "/v3/kv/put", put, NULL, 0), 200);
	again_failed(&b.m, "something else than shardd");
	end_failed(&b);
}

/* --- etcd is full --- */

static void test_quota(void **state)
{
	struct both b;
	struct members *m = &b.m;
	uint64_t term;
	char body[96], alarm[512];
	const char *who;
	int n, how;

	(void)state;
	make(&b, 1, NODES, 1 << 20);
	n = wait_leader_known(m);
	term = m->node[n].leads;
	while ((how = write_more(m, n, 60000)) == MEMBER_OK)
		;
	assert_int_equal(how, MEMBER_NOSPACE);
	assert_int_equal(write_more(m, n, 10), MEMBER_NOSPACE);
	assert_int_equal(read_at(m, (n + 1) % NODES), MEMBER_OK);
	assert_int_equal(m->node[n].leads, term);
	snprintf(body, sizeof(body), "{\"revision\":\"%llu\",\"physical\":true}",
		 (unsigned long long)etcds_revision(&b.etcd));
	assert_int_equal(etcds_ask(&b.etcd, 0, "/v3/kv/compaction", body, NULL, 0), 200);
	assert_int_equal(etcds_ask(&b.etcd, 0, "/v3/maintenance/defragment", "{}", NULL, 0), 200);
	assert_int_equal(etcds_ask(&b.etcd, 0, "/v3/maintenance/alarm", "{\"action\":\"GET\"}",
				   alarm, sizeof(alarm)),
			 200);
	who = strstr(alarm, "\"memberID\":\"");
	CHECK(who != NULL);
	snprintf(body, sizeof(body),
		 "{\"action\":\"DEACTIVATE\",\"memberID\":\"%llu\",\"alarm\":\"NOSPACE\"}",
		 strtoull(who + 12, NULL, 10));
	assert_int_equal(etcds_ask(&b.etcd, 0, "/v3/maintenance/alarm", body, NULL, 0), 200);
	assert_int_equal(write_more(m, n, 100), MEMBER_OK);
	assert_int_equal(m->node[n].leads, term);
	end(&b);
}

/* The disk of etcd is full, which ends it. With room it starts again, and everything goes on. */
static void test_etcd_disk(void **state)
{
	struct both b;
	struct members *m = &b.m;
	int n;

	(void)state;
	make(&b, 1, NODES, 0);
	n = wait_leader_known(m);
	assert_int_equal(write_more(m, n, 100), MEMBER_OK);
	etcds_room(&b.etcd, 0, false);
	assert_int_equal(write_more(m, n, 100), MEMBER_UNKNOWN);
	etcds_wait_end(&b.etcd, 0);
	etcds_start(&b.etcd, 0);
	m->load = true;
	wait_progress(m);
	end(&b);
}

/* The disk of a node is full. It goes on, and a new one leads only when it knows its etcd. */
static void test_node_disk(void **state)
{
	struct both b;
	struct members *m = &b.m;
	int n;

	(void)state;
	make(&b, 1, 1, 0);
	members_room(m, 0, false);
	for (int i = 0; i < 3; i++)
		assert_int_equal(write_more(m, 0, 100), MEMBER_OK);
	members_room(m, 0, true);
	assert_int_equal(write_more(m, 0, 100), MEMBER_OK);
	members_stop(m, 0);
	members_fresh(m, 0);
	members_start(m, 0, false);
	members_room(m, 0, false);
	members_wait(m, is_ready, 0, 10, "a node to start");
	while (read_at(m, 0) != MEMBER_OK)
		;
	n = members_leader(m);
	assert_int_equal(n, -1);
	members_room(m, 0, true);
	wait_leader(m, "a node with room to lead");
	end(&b);
}

static void test_not_built(void **state)
{
	(void)state;
	assert_ptr_equal(member_source_find("etcd"), &source_etcd);
	assert_null(member_source_find("zookeeper"));
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_not_built),  cmocka_unit_test(test_answers),
		cmocka_unit_test(test_kill),       cmocka_unit_test(test_pause),
		cmocka_unit_test(test_resign),     cmocka_unit_test(test_alone),
		cmocka_unit_test(test_folder),     cmocka_unit_test(test_down),
		cmocka_unit_test(test_strict),     cmocka_unit_test(test_crashes),
		cmocka_unit_test(test_member),     cmocka_unit_test(test_minority),
		cmocka_unit_test(test_compaction), cmocka_unit_test(test_wiped),
		cmocka_unit_test(test_backup),     cmocka_unit_test(test_other_cluster),
		cmocka_unit_test(test_foreign),    cmocka_unit_test(test_quota),
		cmocka_unit_test(test_etcd_disk),  cmocka_unit_test(test_node_disk),
	};
	int status;

	if (members_is_node(argc, argv, &status))
		return status;
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
