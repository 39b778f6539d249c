// SPDX-License-Identifier: Apache-2.0
/* The membership source `etcd` with a real etcd on loopback and with nodes as real processes. Nodes
 * are killed, stopped and resign, and members of etcd are killed, stopped and compacted. Clients
 * write and read all the time, and in the end the whole history must be linearizable
 * (lib/register.h). The times that a failover takes are printed. Without etcd it is skipped. */
#include "lib/etcd_steps.h"

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

enum { ROUNDS = 5 };

static void test_not_built(void **state)
{
	(void)state;
	assert_ptr_equal(member_source_find("etcd"), &source_etcd);
	assert_null(member_source_find("zookeeper"));
}

/* --- nodes --- */

static void test_answers(void **state)
{
	struct step_both b;
	struct members *m = &b.m;
	uint64_t term;
	int n, other;

	(void)state;
	step_make(&b, 1, STEP_NODES, 0);
	n = step_leader(m);
	other = (n + 1) % STEP_NODES;
	term = m->node[n].leads;
	assert_int_equal(step_write(m, n, 100), MEMBER_OK);
	assert_int_equal(step_write(m, n, 0), MEMBER_OK);
	assert_int_equal(step_write(m, n, MEMBER_VIEW_MAX), MEMBER_OK);
	assert_int_equal(step_write_at(m, n, term, m->node[n].seq + 1, 10), MEMBER_CONFLICT);
	assert_int_equal(step_write_at(m, n, term, m->node[n].seq - 1, 10), MEMBER_CONFLICT);
	assert_int_equal(step_write_at(m, n, term + 1, m->node[n].seq, 10), MEMBER_FENCED);
	assert_int_equal(step_write_at(m, n, term - 1, m->node[n].seq, 10), MEMBER_FENCED);
	assert_int_equal(step_write_at(m, other, term, m->node[n].seq, 10), MEMBER_FENCED);
	assert_int_equal(step_read(m, other), MEMBER_OK);
	members_voter(m, n, m->node[other].uuid, true);
	members_wait(m, members_write_ended, n, 10, "a change of voters");
	assert_int_equal(m->node[n].write.how, -1 - (int)SHARD_UNSUPPORTED);
	step_end(&b);
}

/* The links of the others are reset, so they revoke the lease. */
static void test_kill(void **state)
{
	uint64_t took[ROUNDS];
	struct step_both b;
	struct members *m = &b.m;

	(void)state;
	step_make(&b, 1, STEP_NODES, 0);
	m->load = true;
	for (int round = 0; round < ROUNDS; round++) {
		uint64_t from;
		int n;

		step_progress(m);
		n = step_leader(m);
		from = clock_ns();
		members_kill(m, n);
		members_wait(m, step_another_leads, n, 20, "another node to lead");
		took[round] = clock_ns() - from;
		assert_true(took[round] < pace_ns(STEP_LEASE_MS * NS_PER_MS + NS_PER_SEC));
		step_progress(m);
		step_start(m, n);
	}
	step_end(&b);
	step_say("kill -9 of the leader, links reset", took, ROUNDS);
}

/* No link is reset, so the lease has to run out. When the node goes on, it must know that its time
 * is up before it looks at the change that waits. */
static void test_pause(void **state)
{
	uint64_t took[2];
	struct step_both b;
	struct members *m = &b.m;

	(void)state;
	step_make(&b, 1, STEP_NODES, 0);
	m->load = true;
	for (int round = 0; round < 2; round++) {
		const char *order;
		uint64_t from;
		int n;

		step_progress(m);
		n = step_leader(m);
		members_wait(m, members_write_ended, n, 10, "the change under way");
		from = clock_ns();
		members_pause(m, n);
		members_note(m, n);
		m->node[n].lost_nr = 0;
		if (!m->node[n].write.open)
			members_propose(m, n, m->node[n].leads, m->node[n].seq, 10);
		members_wait(m, step_another_leads, n, 20, "another node to lead");
		took[round] = clock_ns() - from;
		/* etcd says nothing, so the node can only know it by its clock. */
		etcds_signal(&b.etcd, 0, SIGSTOP);
		members_go_on(m, n);
		members_wait(m, step_is_lost, n, 10, "a node that stood still to notice it");
		/* It may have been stopped while it answered a read. */
		order = m->node[n].order;
		assert_true(order[0] == 'l' || (order[0] == 'o' && order[1] == 'l'));
		etcds_signal(&b.etcd, 0, SIGCONT);
		members_wait(m, members_write_ended, n, 10, "the change that waited");
		assert_int_not_equal(m->node[n].write.how, MEMBER_OK);
		step_progress(m);
	}
	step_end(&b);
	step_say("SIGSTOP of the leader, lease runs out", took, 2);
}

static void test_resign(void **state)
{
	uint64_t resigned[ROUNDS], stopped[ROUNDS];
	struct step_both b;
	struct members *m = &b.m;

	(void)state;
	step_make(&b, 1, STEP_NODES, 0);
	m->load = true;
	for (int round = 0; round < ROUNDS; round++) {
		int n = step_leader(m);
		uint64_t from = clock_ns();

		m->node[n].lost_nr = 0;
		members_resign(m, n);
		members_wait(m, step_is_lost, n, 10, "a node to resign");
		members_wait(m, step_another_leads, n, 10, "another one to take over");
		resigned[round] = clock_ns() - from;
		step_progress(m);
		n = step_leader(m);
		from = clock_ns();
		members_stop(m, n);
		members_wait(m, step_another_leads, n, 10, "another one to take over");
		stopped[round] = clock_ns() - from;
		step_progress(m);
		step_start(m, n);
	}
	step_end(&b);
	step_say("the leader resigns", resigned, ROUNDS);
	step_say("the leader stops", stopped, ROUNDS);
}

/* It finds the key of its earlier life, and need not wait for that lease. */
static void test_alone(void **state)
{
	uint64_t took[ROUNDS];
	struct step_both b;
	struct members *m = &b.m;

	(void)state;
	step_make(&b, 1, 1, 0);
	for (int round = 0; round < ROUNDS; round++) {
		uint64_t from = clock_ns(), term = m->node[0].leads;

		members_kill(m, 0);
		step_start(m, 0);
		step_wait_leader(m, "the node to lead again");
		took[round] = clock_ns() - from;
		assert_true(m->node[0].leads > term);
		assert_int_equal(step_write(m, 0, 100), MEMBER_OK);
	}
	step_end(&b);
	step_say("the only node is killed and starts again", took, ROUNDS);
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
	struct step_both b;
	struct members *m = &b.m;

	(void)state;
	step_make(&b, 1, 1, 0);
	assert_int_equal(step_write(m, 0, 100), MEMBER_OK);
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
	step_start(m, 0);
	step_wait_leader(m, "the node to lead again");
	step_end(&b);
}

/* The folder of a node that led is put back from a copy, another one's is wiped, and a third one's
 * is damaged. What counts is in etcd, so the first two go on. */
static void test_own_folder(void **state)
{
	struct step_both b;
	struct members *m = &b.m;
	int n;

	(void)state;
	step_make(&b, 1, STEP_NODES, 0);
	m->load = true;
	step_progress(m);
	for (int wiped = 0; wiped < 2; wiped++) {
		uint64_t seq;

		n = step_leader(m);
		members_keep(m, n);
		step_progress(m);
		members_kill(m, n);
		seq = m->node[n].seq;
		members_wait(m, step_another_leads, n, 20, "another node to lead");
		if (wiped)
			members_fresh(m, n);
		else
			members_put_back(m, n);
		step_start(m, n);
		step_progress(m);
		members_settle(m);
		assert_int_equal(step_read(m, n), MEMBER_OK);
		assert_true(m->node[n].seq > seq);
		m->load = true;
	}
	n = (step_leader(m) + 1) % STEP_NODES;
	members_kill(m, n);
	members_keep(m, n);
	members_damage(m, n, 1);
	expect_refused(m, n, "damaged");
	members_put_back(m, n);
	members_damage(m, n, -1);
	expect_refused(m, n, "its sum is wrong");
	members_put_back(m, n);
	step_start(m, n);
	step_progress(m);
	step_end(&b);
}

/* Over https, and only with a server whose certificate is known. */
static void test_tls(void **state)
{
	struct step_both b;
	struct members *m = &b.m;
	char path[96];

	(void)state;
	if (!etcds_here() || !etcds_make_tls(&b.etcd))
		skip();
	snprintf(path, sizeof(path), "%s/cert", b.etcd.dir);
	CHECK(setenv("MEMBERS_ETCD", b.etcd.endpoints, 1) == 0);
	CHECK(setenv("MEMBERS_ETCD_CA", path, 1) == 0);
	members_make(m, "etcd", 1, true);
	m->election_ms = STEP_LEASE_MS;
	step_start(m, 0);
	step_wait_leader(m, "a node to lead");
	assert_int_equal(step_write(m, 0, 100), MEMBER_OK);
	assert_int_equal(step_write(m, 0, 60000), MEMBER_OK);
	members_stop(m, 0);
	unsetenv("MEMBERS_ETCD_CA");
	step_start(m, 0);
	assert_int_equal(step_read(m, 0), MEMBER_UNKNOWN);
	assert_int_equal(members_leader(m), -1);
	members_end(m);
	etcds_end(&b.etcd);
}

/* --- etcd goes and comes --- */

/* The leader leads on while etcd is down, longer than its lease, but writes nothing. */
static void test_down(void **state)
{
	struct step_both b;
	struct members *m = &b.m;
	uint64_t term, from, seq;
	int n;

	(void)state;
	step_make(&b, 1, STEP_NODES, 0);
	n = step_leader(m);
	assert_int_equal(step_write(m, n, 100), MEMBER_OK);
	term = m->node[n].leads;
	seq = m->node[n].seq;
	m->node[n].lost_nr = 0;
	etcds_kill(&b.etcd, 0);
	from = clock_ns();
	while (clock_ns() - from < STEP_LEASE_MS * 3 / 2 * NS_PER_MS) {
		assert_int_equal(step_write(m, n, 10), MEMBER_UNKNOWN);
		assert_int_equal(step_read(m, n), MEMBER_UNKNOWN);
	}
	assert_int_equal(m->node[n].leads, term);
	assert_int_equal(m->node[n].seq, seq);
	etcds_start(&b.etcd, 0);
	etcds_ready(&b.etcd, 0);
	while (step_read(m, n) != MEMBER_OK)
		;
	assert_int_equal(m->node[n].lost_nr, 0);
	assert_int_equal(step_write(m, n, 10), MEMBER_OK);
	m->load = true;
	step_progress(m);
	step_end(&b);
}

/* It loses the lead with its lease, if it is told to. */
static void test_strict(void **state)
{
	struct step_both b;
	struct members *m = &b.m;
	uint64_t from;
	int n;

	(void)state;
	step_make(&b, 1, STEP_NODES, 0);
	for (int i = 0; i < STEP_NODES; i++)
		members_stop(m, i);
	CHECK(setenv("MEMBERS_STRICT", "1", 1) == 0);
	for (int i = 0; i < STEP_NODES; i++)
		step_start(m, i);
	n = step_leader(m);
	m->node[n].lost_nr = 0;
	m->load = true;
	step_progress(m);
	n = step_leader(m);
	from = clock_ns();
	etcds_kill(&b.etcd, 0);
	members_wait(m, step_is_lost, n, 10, "the lead to be lost with the lease");
	print_message("etcd: the lead was lost %.0f ms after etcd\n",
		      (double)(clock_ns() - from) / 1e6);
	etcds_start(&b.etcd, 0);
	etcds_ready(&b.etcd, 0);
	step_progress(m);
	step_end(&b);
}

/* Kill -9 of etcd under load, again and again. */
static void test_crashes(void **state)
{
	struct step_both b;
	struct members *m = &b.m;

	(void)state;
	step_make(&b, 1, STEP_NODES, 0);
	m->load = true;
	for (int round = 0; round < 3; round++) {
		step_progress(m);
		etcds_kill(&b.etcd, 0);
		for (int turn = 0; turn < 20; turn++)
			members_turn(m);
		etcds_start(&b.etcd, 0);
		step_progress(m);
	}
	step_end(&b);
}

/* One member of etcd is stopped or killed, and one after the other. A majority goes on. */
static void test_member(void **state)
{
	struct step_both b;
	struct members *m = &b.m;

	(void)state;
	step_make(&b, 3, STEP_NODES, 0);
	m->load = true;
	for (int i = 0; i < 3; i++) {
		step_progress(m);
		etcds_signal(&b.etcd, i, SIGSTOP);
		step_progress(m);
		etcds_signal(&b.etcd, i, SIGCONT);
		etcds_ready(&b.etcd, i);
		etcds_kill(&b.etcd, i);
		step_progress(m);
		etcds_start(&b.etcd, i);
		etcds_ready(&b.etcd, i);
	}
	step_end(&b);
}

/* Two of three are gone: the third one answers, but it cannot know anything. */
static void test_minority(void **state)
{
	struct step_both b;
	struct members *m = &b.m;
	int n;

	(void)state;
	step_make(&b, 3, STEP_NODES, 0);
	n = step_leader(m);
	assert_int_equal(step_write(m, n, 10), MEMBER_OK);
	etcds_signal(&b.etcd, 1, SIGSTOP);
	etcds_signal(&b.etcd, 2, SIGSTOP);
	assert_int_equal(step_write(m, n, 10), MEMBER_UNKNOWN);
	assert_int_equal(step_read(m, (n + 1) % STEP_NODES), MEMBER_UNKNOWN);
	etcds_signal(&b.etcd, 1, SIGCONT);
	etcds_signal(&b.etcd, 2, SIGCONT);
	m->load = true;
	step_progress(m);
	step_end(&b);
}

/* What a watch should tell was compacted away while the node stood still. */
static void test_compaction(void **state)
{
	struct step_both b;
	struct members *m = &b.m;
	char body[64];
	int n, other;

	(void)state;
	step_make(&b, 1, STEP_NODES, 0);
	m->load = true;
	for (int round = 0; round < 2; round++) {
		step_progress(m);
		n = step_leader(m);
		other = (n + 1) % STEP_NODES;
		members_pause(m, other);
		step_progress(m);
		snprintf(body, sizeof(body), "{\"revision\":\"%llu\",\"physical\":true}",
			 (unsigned long long)etcds_revision(&b.etcd));
		assert_int_equal(etcds_ask(&b.etcd, 0, "/v3/kv/compaction", body, NULL, 0), 200);
		members_go_on(m, other);
		step_progress(m);
		etcds_kill(&b.etcd, 0); /* Every watch begins again. */
		etcds_start(&b.etcd, 0);
		step_progress(m);
	}
	step_end(&b);
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_not_built),  cmocka_unit_test(test_answers),
		cmocka_unit_test(test_kill),       cmocka_unit_test(test_pause),
		cmocka_unit_test(test_resign),     cmocka_unit_test(test_alone),
		cmocka_unit_test(test_folder),     cmocka_unit_test(test_own_folder),
		cmocka_unit_test(test_tls),        cmocka_unit_test(test_down),
		cmocka_unit_test(test_strict),     cmocka_unit_test(test_crashes),
		cmocka_unit_test(test_member),     cmocka_unit_test(test_minority),
		cmocka_unit_test(test_compaction),
	};
	int status;

	if (members_is_node(argc, argv, &status))
		return status;
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
