// SPDX-License-Identifier: Apache-2.0
/* The membership source `etcd` when etcd itself goes wrong: somebody takes leases and keys away,
 * requests and answers are lost or come late (lib/etcd_proxy.h), something else than etcd answers,
 * etcd was wiped, restored from a backup or exchanged, and disks are full. Clients' history must be
 * linearizable. Without etcd it is skipped. */
#include "lib/etcd_proxy.h"
#include "lib/etcd_steps.h"

#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

/* The JSON that names the leader's key, from a range over all that begins with "shardd/". */
static const char *find_key(struct step_both *b, const char *order)
{
	static char text[2048], key[512];
	char body[256];
	const char *at;

	snprintf(body, sizeof(body),
		 "{\"key\":\"c2hhcmRkLw==\",\"range_end\":\"c2hhcmRkMA==\",\"limit\":\"1\","
		 "\"keys_only\":true,\"sort_order\":\"%s\",\"sort_target\":\"KEY\"}",
		 order);
	CHECK(etcds_ask(&b->etcd, 0, "/v3/kv/range", body, text, sizeof(text)) == 200);
	at = strstr(text, "\"key\":\"");
	CHECK(at != NULL);
	snprintf(key, sizeof(key), "%.*s", (int)strcspn(at, ","), at);
	return key;
}

/* Somebody revokes every lease, or deletes the leader's key. */
static void test_revoked(void **state)
{
	struct step_both b;
	struct members *m = &b.m;
	char text[4096], body[128];

	(void)state;
	step_make(&b, 1, STEP_NODES, 0);
	m->load = true;
	for (int round = 0; round < 2; round++) {
		const char *at = text;
		int n;

		step_progress(m);
		n = step_leader(m);
		m->node[n].lost_nr = 0;
		assert_int_equal(
			etcds_ask(&b.etcd, 0, "/v3/lease/leases", "{}", text, sizeof(text)), 200);
		while (round == 0 && (at = strstr(at, "\"ID\":\"")) != NULL) {
			at += 6;
			snprintf(body, sizeof(body), "{\"ID\":\"%llu\"}", strtoull(at, NULL, 10));
			assert_int_equal(etcds_ask(&b.etcd, 0, "/v3/lease/revoke", body, NULL, 0),
					 200);
		}
		snprintf(body, sizeof(body), "{%s}", find_key(&b, "ASCEND"));
		if (round == 1)
			assert_int_equal(etcds_ask(&b.etcd, 0, "/v3/kv/deleterange", body, NULL, 0),
					 200);
		members_wait(m, step_was_lost, n, 10, "a lead that was taken away to be lost");
		step_progress(m);
	}
	step_end(&b);
}

/* --- one node and etcd do not hear each other --- */

/* A node whose only way to etcd is the proxy. It leads. */
static int make_behind(struct step_both *b, struct etcd_proxy *p)
{
	char endpoint[64];
	struct members *m = &b->m;
	int n;

	step_make(b, 1, STEP_NODES, 0);
	n = step_leader(m);
	etcd_proxy_start(p, b->etcd.member[0].client);
	snprintf(endpoint, sizeof(endpoint), "http://127.0.0.1:%u", p->port);
	members_stop(m, n);
	CHECK(setenv("MEMBERS_ETCD", endpoint, 1) == 0);
	step_start(m, n);
	CHECK(setenv("MEMBERS_ETCD", b->etcd.endpoints, 1) == 0);
	while (step_leader(m) != n) {
		int other = members_leader(m);

		m->node[other].lost_nr = 0;
		members_resign(m, other);
		members_wait(m, step_is_lost, other, 10, "a node to resign");
	}
	assert_int_equal(step_write(m, n, 100), MEMBER_OK);
	return n;
}

/* The others elect a leader when the lease has run out. This one leads on, but can write nothing,
 * and it hears that it is over as soon as it hears anything. */
static void test_partition(void **state)
{
	struct etcd_proxy p;
	struct step_both b;
	struct members *m = &b.m;
	uint64_t term;
	int n;

	(void)state;
	n = make_behind(&b, &p);
	term = m->node[n].leads;
	m->node[n].lost_nr = 0;
	atomic_store(&p.mode, ETCD_PROXY_SILENT);
	members_propose(m, n, term, m->node[n].seq, 10);
	members_wait(m, step_another_leads, n, 20, "another node to lead");
	members_wait(m, members_write_ended, n, 10, "a change that reaches nobody");
	assert_int_equal(m->node[n].write.how, MEMBER_UNKNOWN);
	assert_int_equal(step_read(m, n), MEMBER_UNKNOWN);
	assert_int_equal(m->node[n].lost_nr, 0);
	atomic_store(&p.mode, ETCD_PROXY_PASS);
	members_wait(m, step_is_lost, n, 10, "the lead to be lost");
	assert_int_equal(step_write_at(m, n, term, m->node[n].seq, 10), MEMBER_FENCED);
	m->load = true;
	step_progress(m);
	step_end(&b);
	etcd_proxy_stop(&p);
}

static bool has_written(struct members *m, int n)
{
	for (int i = 0; i < m->nodes_nr; i++)
		if (i != n && m->node[i].seq == m->node[n].seq + 1)
			return true;
	return false;
}

/* The change is written, and its answer is lost. */
static void test_unknown(void **state)
{
	struct etcd_proxy p;
	struct step_both b;
	struct members *m = &b.m;
	uint64_t seq;
	int n;

	(void)state;
	n = make_behind(&b, &p);
	seq = m->node[n].seq;
	atomic_store(&p.mode, ETCD_PROXY_NO_ANSWERS);
	members_propose(m, n, m->node[n].leads, seq, 10);
	members_wait(m, has_written, n, 10, "the others to hear the change");
	members_wait(m, members_write_ended, n, 10, "an answer to the change");
	assert_int_equal(m->node[n].write.how, MEMBER_UNKNOWN);
	members_propose(m, n, m->node[n].leads, seq, 10);
	members_wait(m, members_write_ended, n, 10, "an answer to the next one");
	assert_int_equal(m->node[n].write.how, -1 - (int)SHARD_AGAIN);
	atomic_store(&p.mode, ETCD_PROXY_PASS);
	m->load = true;
	step_progress(m);
	step_end(&b);
	etcd_proxy_stop(&p);
}

static struct etcd_proxy *late;

static bool arrived_late(struct members *m, int n)
{
	(void)m;
	(void)n;
	return atomic_load(&late->late_nr) > 0;
}

/* Requests of a node that has lost the lead arrive when somebody else leads. */
static void test_late(void **state)
{
	struct etcd_proxy p;
	struct step_both b;
	struct members *m = &b.m;
	uint64_t term, seq;
	int n, other;

	(void)state;
	n = make_behind(&b, &p);
	late = &p;
	term = m->node[n].leads;
	seq = m->node[n].seq;
	m->node[n].lost_nr = 0;
	atomic_store(&p.mode, ETCD_PROXY_LATE);
	members_propose(m, n, term, m->node[n].seq, 10);
	members_wait(m, step_another_leads, n, 20, "another node to lead");
	members_wait(m, members_write_ended, n, 10, "a change that comes late");
	assert_int_equal(m->node[n].write.how, MEMBER_UNKNOWN);
	atomic_store(&p.mode, ETCD_PROXY_PASS);
	members_wait(m, arrived_late, n, 10, "the change to arrive");
	members_wait(m, step_is_lost, n, 10, "the lead to be lost");
	/* It was not written, although its number is still the current one. */
	other = step_leader(m);
	assert_true(m->node[other].leads > term);
	assert_int_equal(step_write_at(m, other, m->node[other].leads, seq, 10), MEMBER_OK);
	m->load = true;
	step_progress(m);
	assert_true(m->node[n].leads != term);
	step_end(&b);
	etcd_proxy_stop(&p);
}

/* What answers is no etcd, or one that lies. The node neither ends nor leads. */
static void test_lies(void **state)
{
	struct etcd_proxy p;
	struct step_both b;
	struct members *m = &b.m;
	int n;

	(void)state;
	n = make_behind(&b, &p);
	members_stop(m, (n + 1) % STEP_NODES);
	members_stop(m, (n + 2) % STEP_NODES);
	for (int round = 0; round < 2; round++) {
		uint32_t from = atomic_load(&p.lies_nr);

		atomic_store(&p.mode, ETCD_PROXY_LIES);
		while (atomic_load(&p.lies_nr) < from + etcd_proxy_lies())
			assert_int_equal(step_read(m, n), MEMBER_UNKNOWN);
		assert_int_equal(m->node[n].failed[0], 0);
		assert_int_equal(m->node[n].gone, false);
		atomic_store(&p.mode, ETCD_PROXY_PASS);
		while (step_read(m, n) != MEMBER_OK)
			;
		step_wait_leader(m, "the node to lead");
		assert_int_equal(step_write(m, n, 100), MEMBER_OK);
	}
	step_end(&b);
	etcd_proxy_stop(&p);
}

/* --- etcd forgets --- */

static bool all_failed(struct members *m, int n)
{
	for (int i = 0; i < m->nodes_nr; i++)
		if (m->node[i].failed[0] == 0)
			return false;
	(void)n;
	return true;
}

/* For a test after which no node is of use any more. */
static void end_failed(struct step_both *b)
{
	for (int n = 0; n < b->m.nodes_nr; n++)
		if (b->m.node[n].pid != 0)
			members_stop(&b->m, n);
	members_end(&b->m);
	etcds_end(&b->etcd);
}

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
	int n = step_leader(m);

	for (int i = 0; i < 3; i++)
		assert_int_equal(step_write(m, n, 100), MEMBER_OK);
	members_settle(m);
}

static void test_wiped(void **state)
{
	struct step_both b;

	(void)state;
	step_make(&b, 1, STEP_NODES, 0);
	some_writes(&b.m);
	etcds_kill(&b.etcd, 0);
	etcds_wipe(&b.etcd, 0);
	etcds_start(&b.etcd, 0);
	again_failed(&b.m, "wiped, or restored from a backup. Start the etcd with its own data");
	end_failed(&b);
}

static void test_backup(void **state)
{
	struct step_both b;

	(void)state;
	step_make(&b, 1, STEP_NODES, 0);
	some_writes(&b.m);
	etcds_save(&b.etcd);
	some_writes(&b.m);
	etcds_kill(&b.etcd, 0);
	etcds_restore(&b.etcd);
	etcds_start(&b.etcd, 0);
	again_failed(&b.m, "wiped, or restored from a backup. Start the etcd with its own data");
	end_failed(&b);
}

static void test_other_cluster(void **state)
{
	struct step_both b;

	(void)state;
	step_make(&b, 1, STEP_NODES, 0);
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
	char put[256];
	struct step_both b;

	(void)state;
	step_make(&b, 1, STEP_NODES, 0);
	some_writes(&b.m);
	/* The view's key comes after the leader's. */
	snprintf(put, sizeof(put), "{%s,\"value\":\"AAAA\"}", find_key(&b, "DESCEND"));
	assert_int_equal(etcds_ask(&b.etcd, 0, "/v3/kv/put", put, NULL, 0), 200);
	again_failed(&b.m, "something else than shardd");
	end_failed(&b);
}

/* --- etcd is full --- */

static void test_quota(void **state)
{
	struct step_both b;
	struct members *m = &b.m;
	uint64_t term;
	char body[96], alarm[512];
	const char *who;
	int n, how;

	(void)state;
	step_make(&b, 1, STEP_NODES, 1 << 20);
	n = step_leader(m);
	term = m->node[n].leads;
	while ((how = step_write(m, n, 60000)) == MEMBER_OK)
		;
	assert_int_equal(how, MEMBER_NOSPACE);
	assert_int_equal(step_write(m, n, 10), MEMBER_NOSPACE);
	assert_int_equal(step_read(m, (n + 1) % STEP_NODES), MEMBER_OK);
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
	assert_int_equal(step_write(m, n, 100), MEMBER_OK);
	assert_int_equal(m->node[n].leads, term);
	step_end(&b);
}

/* etcd refuses a change with "no space" after it has written it: its server measures the room, the
 * change is applied, and is then found to be what took the last of it. */
static void test_full_written(void **state)
{
	struct etcd_proxy p;
	struct step_both b;
	struct members *m = &b.m;
	uint64_t term;
	int n;

	(void)state;
	n = make_behind(&b, &p);
	term = m->node[n].leads;
	atomic_store(&p.mode, ETCD_PROXY_FULL);
	assert_int_equal(step_write(m, n, 100), MEMBER_OK);
	assert_int_equal(step_write(m, n, 100), MEMBER_OK);
	atomic_store(&p.mode, ETCD_PROXY_PASS);
	assert_int_equal(step_write(m, n, 100), MEMBER_OK);
	assert_int_equal(m->node[n].leads, term);
	step_end(&b);
	etcd_proxy_stop(&p);
}

/* The disk of etcd is full, which ends it. With room it starts again, and everything goes on. */
static void test_etcd_disk(void **state)
{
	struct step_both b;
	struct members *m = &b.m;
	int n;

	(void)state;
	step_make(&b, 1, STEP_NODES, 0);
	n = step_leader(m);
	assert_int_equal(step_write(m, n, 100), MEMBER_OK);
	etcds_room(&b.etcd, 0, false);
	assert_int_equal(step_write(m, n, 100), MEMBER_UNKNOWN);
	etcds_wait_end(&b.etcd, 0);
	etcds_start(&b.etcd, 0);
	m->load = true;
	step_progress(m);
	step_end(&b);
}

/* The disk of a node is full. It goes on, and a new one leads only when it knows its etcd. */
static void test_node_disk(void **state)
{
	struct step_both b;
	struct members *m = &b.m;
	int n;

	(void)state;
	step_make(&b, 1, 1, 0);
	members_room(m, 0, false);
	for (int i = 0; i < 3; i++)
		assert_int_equal(step_write(m, 0, 100), MEMBER_OK);
	members_room(m, 0, true);
	assert_int_equal(step_write(m, 0, 100), MEMBER_OK);
	members_stop(m, 0);
	members_fresh(m, 0);
	members_start(m, 0, false);
	members_room(m, 0, false);
	members_wait(m, step_is_ready, 0, 10, "a node to start");
	while (step_read(m, 0) != MEMBER_OK)
		;
	n = members_leader(m);
	assert_int_equal(n, -1);
	members_room(m, 0, true);
	step_wait_leader(m, "a node with room to lead");
	step_end(&b);
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_revoked),      cmocka_unit_test(test_partition),
		cmocka_unit_test(test_unknown),      cmocka_unit_test(test_late),
		cmocka_unit_test(test_lies),         cmocka_unit_test(test_wiped),
		cmocka_unit_test(test_backup),       cmocka_unit_test(test_other_cluster),
		cmocka_unit_test(test_foreign),      cmocka_unit_test(test_quota),
		cmocka_unit_test(test_full_written), cmocka_unit_test(test_etcd_disk),
		cmocka_unit_test(test_node_disk),
	};
	int status;

	if (members_is_node(argc, argv, &status))
		return status;
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
