// SPDX-License-Identifier: Apache-2.0
/* The contract of cluster/source.h, which every membership source has to keep, with real processes:
 * kill -9, SIGSTOP, a partition, a wiped folder, one that was put back from a copy, a damaged one,
 * a full disk, voters that come and go, and a stop in the middle of calls. Clients write and read
 * all the time, and in the end the whole history must be linearizable (lib/register.h). Each source
 * is a row, which says what it cannot do. Two more tests show that the checker finds what is wrong.
 */
#include "lib/members.h"

#include "base/check.h"
#include "base/clock.h"
#include "lib/pace.h"

#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

struct row {
	const char *name;
	int nodes_nr;     /* How many the tests run with. */
	bool takes_over;  /* Another node leads when the one that led is gone. */
	bool has_voters;  /* join and leave work. */
	bool finds_older; /* A folder that was put back is noticed by the source itself. */
};

static const struct row row_static = {.name = "static", .nodes_nr = 1};
static const struct row row_quorum = {.name = "quorum",
				      .nodes_nr = 3,
				      .takes_over = true,
				      .has_voters = true,
				      .finds_older = true};

/* --- steps that the tests share --- */

static void wait_leader(struct members *m, const char *what)
{
	members_wait(m, members_has_leader, -1, 20, what);
}

/* Has n's own leader been written after? Each round of load() needs a leader that is heard of. */
static bool has_progress(struct members *m, int n)
{
	static uint64_t from;
	uint64_t most = 0;

	for (int i = 0; i < m->nodes_nr; i++)
		if (m->node[i].leads != 0 && m->node[i].seq > most)
			most = m->node[i].seq;
	if (n < 0)
		from = most;
	return n >= 0 && most >= from + 10;
}

/* Waits until ten more values were written. */
static void wait_progress(struct members *m)
{
	wait_leader(m, "somebody to lead");
	(void)has_progress(m, -1);
	members_wait(m, has_progress, 0, 20, "ten more values");
}

/* One write by the node that leads, as often as it says AGAIN or leads no more. Returns how it
 * ended. */
static int write_at(struct members *m, int n, uint64_t term, uint64_t seq)
{
	members_propose(m, n, term, seq, 100);
	members_wait(m, members_write_ended, n, 20, "an answer to a change");
	return m->node[n].write.how;
}

static int write_again(struct members *m, int n)
{
	int how;

	do
		how = write_at(m, n, m->node[n].leads, m->node[n].seq);
	while (how == -1 - (int)SHARD_AGAIN);
	return how;
}

static int voter_of(struct members *m, int n, const uint8_t *uuid, bool joins)
{
	do {
		members_voter(m, n, uuid, joins);
		members_wait(m, members_write_ended, n, 20, "an answer to a change of voters");
	} while (m->node[n].write.how == -1 - (int)SHARD_AGAIN);
	return m->node[n].write.how;
}

static int voter(struct members *m, int n, int who, bool joins)
{
	return voter_of(m, n, m->node[who].uuid, joins);
}

static bool is_ready(struct members *m, int n)
{
	return m->node[n].ready;
}

static bool has_value(struct members *m, int n)
{
	return m->node[n].seq > 0;
}

/* Who leads, once somebody does. */
static int leader(struct members *m)
{
	wait_leader(m, "somebody to lead");
	return members_leader(m);
}

/* A slow machine may change who leads, so this is repeated until it is done. */
static void write_one(struct members *m)
{
	while (write_again(m, leader(m)) != MEMBER_OK)
		;
}

/* The same for a change of voters. One that may be made already does no harm again. */
static int voter_led(struct members *m, const uint8_t *uuid, bool joins)
{
	int how;

	do
		how = voter_of(m, leader(m), uuid, joins);
	while (how == MEMBER_FENCED || how == MEMBER_UNKNOWN);
	return how;
}

static void join(struct members *m, int n)
{
	members_start(m, n, false);
	members_wait(m, is_ready, n, 10, "a node to start");
	members_wait(m, has_value, n, 10, "a node to hear the value");
	while (voter(m, leader(m), n, true) != MEMBER_OK)
		;
}

/* All nodes of the row run, and vote where there are voters. Node 0 leads. */
static void make(struct members *m, const struct row *r, bool quick)
{
	members_make(m, r->name, r->nodes_nr, quick);
	m->alone = r->nodes_nr == 1;
	members_start(m, 0, true);
	wait_leader(m, "the first node to lead");
	for (int n = 1; n < r->nodes_nr; n++) {
		if (r->has_voters) {
			join(m, n);
		} else {
			members_start(m, n, false);
			members_wait(m, is_ready, n, 10, "a node to start");
		}
	}
	write_one(m);
}

static const struct row *row_of(void **state)
{
	return *state;
}

/* --- the contract --- */

static void test_kill(void **state)
{
	const struct row *r = row_of(state);
	struct members m;

	make(&m, r, true);
	m.load = true;
	for (int round = 0; round < 3; round++) {
		uint64_t term;
		int n;

		wait_progress(&m);
		n = leader(&m);
		term = m.node[n].leads;
		members_kill(&m, n);
		if (r->takes_over)
			wait_progress(&m);
		members_start(&m, n, !r->takes_over);
		wait_progress(&m);
		assert_true(m.node[leader(&m)].leads > term);
	}
	members_settle(&m);
	members_end(&m);
}

static bool is_lost(struct members *m, int n)
{
	return m->node[n].lost_nr > 0 && m->node[n].leads == 0;
}

/* Somebody else leads while this node believes that it does. */
static bool another_leads(struct members *m, int n)
{
	for (int i = 0; i < m->nodes_nr; i++)
		if (i != n && m->node[i].leads > m->node[n].last_led)
			return true;
	return false;
}

/* Also by its own clock, which counts from the last answer that it heard. */
static bool its_time_is_up(struct members *m, int n)
{
	return clock_ns() - m->node[n].stopped_ns > m->election_ms * NS_PER_MS;
}

/* The process stands still, and a change waits for it. When it goes on, it must know that its time
 * is up before it looks at the change. */
static void test_pause(void **state)
{
	const struct row *r = row_of(state);
	struct members m;

	make(&m, r, true);
	for (int round = 0; round < 2; round++) {
		int n;

		m.load = true;
		wait_progress(&m);
		members_settle(&m); /* So that it is not stopped between two events. */
		n = leader(&m);
		members_pause(&m, n);
		members_note(&m, n);
		m.node[n].lost_nr = 0;
		if (m.node[n].leads == 0) { /* It has just lost the lead. */
			members_go_on(&m, n);
			continue;
		}
		members_propose(&m, n, m.node[n].leads, m.node[n].seq, 10);
		if (r->takes_over)
			members_wait(&m, another_leads, n, 20, "another node to lead");
		members_wait(&m, its_time_is_up, n, 20, "the time of an election");
		members_go_on(&m, n);
		members_wait(&m, members_write_ended, n, 10, "the change that waited");
		if (r->takes_over) {
			assert_int_equal(m.node[n].order[0], 'l');
			assert_int_equal(m.node[n].lost_nr, 1);
			assert_int_equal(m.node[n].write.how, MEMBER_FENCED);
		}
	}
	m.load = true;
	wait_progress(&m);
	members_settle(&m);
	members_end(&m);
}

/* The node that leads hears nobody any more, but all links seem to be up. */
static void test_partition(void **state)
{
	const struct row *r = row_of(state);
	struct members m;
	int n, how;

	make(&m, r, true);
	if (!r->takes_over) {
		members_end(&m);
		return;
	}
	do {
		n = leader(&m);
		m.node[n].lost_nr = 0;
		members_isolate(&m, n, true);
		how = write_at(&m, n, m.node[n].leads, m.node[n].seq);
		/* It was sent to the others for all that this node knows. */
		if (how != MEMBER_UNKNOWN)
			members_isolate(&m, n, false); /* It did not lead any more. */
	} while (how != MEMBER_UNKNOWN);
	members_wait(&m, is_lost, n, 10, "a node that nobody answers to stop leading");
	members_wait(&m, another_leads, n, 20, "another node to lead");
	how = write_at(&m, n, m.node[n].last_led, m.node[n].seq);
	assert_int_equal(how, MEMBER_FENCED);
	members_read(&m, n);
	members_wait(&m, members_read_ended, n, 10, "a read that nobody answers");
	assert_int_equal(m.node[n].read.how, MEMBER_UNKNOWN);
	m.load = true;
	wait_progress(&m);
	members_isolate(&m, n, false);
	wait_progress(&m);
	members_settle(&m);
	members_end(&m);
}

/* One node loses messages in both directions all the time, and another one links. */
static void test_links(void **state)
{
	const struct row *r = row_of(state);
	struct members m;

	make(&m, r, true);
	m.load = true;
	for (int round = 0; round < 12; round++) {
		int n = round % m.nodes_nr;

		members_isolate(&m, n, true);
		for (int turn = 0; turn < 20; turn++)
			members_turn(&m);
		members_isolate(&m, n, false);
	}
	wait_progress(&m);
	members_settle(&m);
	members_end(&m);
}

/* A wiped folder is a new node: it joins, and the one that it was leaves. */
static void test_wiped(void **state)
{
	const struct row *r = row_of(state);
	struct members m;
	uint64_t term;

	make(&m, r, false);
	term = m.node[0].leads;
	if (r->has_voters) {
		uint8_t old[MEMBER_UUID_BYTES];

		memcpy(old, m.node[2].uuid, sizeof(old));
		members_kill(&m, 2);
		members_fresh(&m, 2);
		join(&m, 2);
		assert_int_equal(m.node[leader(&m)].voters_nr, 4);
		assert_int_equal(voter_led(&m, old, false), MEMBER_OK);
		assert_int_equal(m.node[leader(&m)].voters_nr, 3);
		members_kill(&m, 1); /* The new node and node 0 are two of three. */
		write_one(&m);
		members_start(&m, 1, false);
	} else {
		members_kill(&m, 0);
		members_fresh(&m, 0);
		m.ops_nr = 0; /* Its history is gone with it. */
		members_start(&m, 0, true);
		wait_leader(&m, "the first node to lead again");
		assert_int_equal(m.node[0].seq, 0);
		assert_true(m.node[0].leads <= term); /* Members refuse it by their promise. */
		assert_int_equal(write_again(&m, 0), MEMBER_OK);
	}
	members_settle(&m);
	members_end(&m);
}

/* A folder that is older than what this node has said since. */
static void test_put_back(void **state)
{
	const struct row *r = row_of(state);
	struct members m;
	int n;

	make(&m, r, false);
	n = m.nodes_nr - 1;
	if (r->takes_over)
		members_settle(&m);
	members_keep(&m, n);
	for (int i = 0; i < 3; i++)
		assert_int_equal(write_again(&m, 0), MEMBER_OK);
	members_settle(&m);
	members_kill(&m, n);
	members_put_back(&m, n);
	members_start(&m, n, !r->takes_over);
	if (r->finds_older) {
		members_wait(&m, members_went_wrong, n, 10, "a folder that was put back");
		assert_non_null(strstr(m.node[n].failed, "put back"));
		members_kill(&m, n);
		assert_int_equal(write_again(&m, 0), MEMBER_OK);
	} else {
		m.ops_nr = 0;
		wait_leader(&m, "a node to lead");
	}
	members_end(&m);
}

/* A wiped folder under the same name. */
static void test_forgot(void **state)
{
	const struct row *r = row_of(state);
	struct members m;
	uint8_t uuid[MEMBER_UUID_BYTES];

	make(&m, r, false);
	if (r->finds_older) {
		members_kill(&m, 1);
		memcpy(uuid, m.node[1].uuid, sizeof(uuid));
		members_fresh(&m, 1);
		memcpy(m.node[1].uuid, uuid, sizeof(uuid));
		members_start(&m, 1, false);
		members_wait(&m, members_went_wrong, 1, 10, "a folder that was wiped");
		members_kill(&m, 1);
		assert_int_equal(write_again(&m, 0), MEMBER_OK);
	}
	members_end(&m);
}

static void expect_refused(struct members *m, int n, const char *text)
{
	members_start(m, n, false);
	members_wait(m, members_refused, n, 10, "a folder that cannot be used");
	if (strstr(m->node[n].refused, text) == NULL)
		fail_msg("\"%s\" is not in \"%s\"", text, m->node[n].refused);
}

static void test_damaged(void **state)
{
	const struct row *r = row_of(state);
	struct members m;
	int n;

	make(&m, r, false);
	n = m.nodes_nr - 1;
	members_kill(&m, n);
	members_keep(&m, n);
	members_damage(&m, n, 1);
	expect_refused(&m, n, "damaged");
	members_put_back(&m, n);
	members_damage(&m, n, -1);
	expect_refused(&m, n, "its sum is wrong");
	members_put_back(&m, n);
	m.node[n].uuid[15] ^= 1;
	expect_refused(&m, n, "another node");
	m.node[n].uuid[15] ^= 1;
	m.source = strcmp(r->name, "static") == 0 ? "quorum" : "static";
	expect_refused(&m, n, "was written by the membership source");
	m.source = r->name;
	members_start(&m, n, !r->takes_over);
	members_wait(&m, is_ready, n, 10, "a node to start");
	members_settle(&m);
	assert_non_null(strchr(m.node[n].order, 'V')); /* Told once after the start. */
	members_end(&m);
}

/* The disk of the node that leads is full, and then that of another one. */
static void test_full(void **state)
{
	const struct row *r = row_of(state);
	struct members m;
	uint64_t term, seq;

	make(&m, r, false);
	term = m.node[0].leads;
	members_room(&m, 0, false);
	seq = m.node[0].seq;
	for (int i = 0; i < 3; i++)
		assert_int_equal(write_again(&m, 0), MEMBER_NOSPACE);
	members_read(&m, 0);
	members_wait(&m, members_read_ended, 0, 10, "a read on a full disk");
	assert_int_equal(m.node[0].read.how, MEMBER_OK);
	assert_int_equal(m.node[0].seq, seq);
	members_room(&m, 0, true);
	assert_int_equal(write_again(&m, 0), MEMBER_OK);
	assert_int_equal(m.node[0].leads, term);
	if (r->takes_over) {
		members_room(&m, 1, false);
		for (int i = 0; i < 5; i++)
			assert_int_equal(write_again(&m, 0), MEMBER_OK);
		assert_true(m.node[1].seq < m.node[0].seq);
		members_room(&m, 1, true);
		members_settle(&m);
		/* No majority has room, so nothing can be promised or accepted. */
		members_room(&m, 1, false);
		members_room(&m, 2, false);
		assert_int_equal(write_again(&m, 0), MEMBER_UNKNOWN);
		members_room(&m, 1, true);
		members_room(&m, 2, true);
		wait_leader(&m, "somebody to lead again");
	}
	members_settle(&m);
	members_end(&m);
}

/* A start on a full disk waits for room. */
static void test_full_start(void **state)
{
	const struct row *r = row_of(state);
	struct members m;

	members_make(&m, r->name, 1, false);
	m.alone = true;
	members_start(&m, 0, true);
	members_room(&m, 0, false);
	members_wait(&m, is_ready, 0, 10, "a node to start");
	for (int turn = 0; turn < 20; turn++)
		members_turn(&m);
	members_room(&m, 0, true);
	wait_leader(&m, "a node with room to lead");
	members_end(&m);
}

static void test_answers(void **state)
{
	const struct row *r = row_of(state);
	struct members m;
	uint64_t term;

	make(&m, r, false);
	term = m.node[0].leads;
	assert_int_equal(write_at(&m, 0, term, m.node[0].seq + 1), MEMBER_CONFLICT);
	assert_int_equal(write_at(&m, 0, term, m.node[0].seq - 1), MEMBER_CONFLICT);
	assert_int_equal(write_at(&m, 0, term + 1, m.node[0].seq), MEMBER_FENCED);
	assert_int_equal(write_at(&m, 0, term - 1, m.node[0].seq), MEMBER_FENCED);
	members_propose(&m, 0, term, m.node[0].seq, MEMBER_VIEW_MAX);
	members_wait(&m, members_write_ended, 0, 10, "a change as large as can be");
	assert_int_equal(m.node[0].write.how, MEMBER_OK);
	members_settle(&m);
	members_end(&m);
}

/* Voters come and go one at a time; the node that leads may be one of them. */
static void test_voters(void **state)
{
	const struct row *r = row_of(state);
	struct members m;
	int n;

	if (!r->has_voters) {
		make(&m, r, false);
		assert_int_equal(voter(&m, 0, 0, true), -1 - (int)SHARD_UNSUPPORTED);
		members_end(&m);
		return;
	}
	members_make(&m, r->name, 6, false);
	members_start(&m, 0, true);
	wait_leader(&m, "the first node to lead");
	assert_int_equal(voter(&m, 0, 0, false), MEMBER_CONFLICT);
	assert_int_equal(voter(&m, 0, 1, true), -1 - (int)SHARD_UNREACHABLE);
	for (n = 1; n < 5; n++)
		join(&m, n);
	assert_int_equal(m.node[leader(&m)].voters_nr, 5);
	members_start(&m, 5, false);
	members_wait(&m, has_value, 5, 10, "a node to hear the value");
	assert_int_equal(voter_led(&m, m.node[5].uuid, true), MEMBER_CONFLICT);
	members_kill(&m, 3);
	members_kill(&m, 4);
	write_one(&m);
	assert_int_equal(voter_led(&m, m.node[3].uuid, false), MEMBER_OK);
	assert_int_equal(voter_led(&m, m.node[4].uuid, false), MEMBER_OK);
	assert_int_equal(voter_led(&m, m.node[5].uuid, true), MEMBER_OK);
	assert_int_equal(voter_led(&m, m.node[0].uuid, false), MEMBER_OK);
	members_wait(&m, another_leads, 0, 20, "a voter to lead");
	m.load = true;
	wait_progress(&m);
	members_settle(&m);
	n = members_leader(&m);
	assert_true(n == 1 || n == 2 || n == 5);
	assert_int_equal(m.node[n].voters_nr, 3);
	members_resign(&m, n);
	m.node[n].lost_nr = 0;
	members_wait(&m, is_lost, n, 10, "a node to resign");
	members_wait(&m, another_leads, n, 10, "another one to take over");
	members_settle(&m);
	members_end(&m);
}

/* A stop in the middle of calls answers them, and the process ends well. */
static void test_stop(void **state)
{
	const struct row *r = row_of(state);
	struct members m;

	make(&m, r, true);
	m.load = true;
	for (int round = 0; round < 4; round++) {
		int n = round % m.nodes_nr;

		wait_progress(&m);
		members_stop(&m, n);
		members_start(&m, n, !r->takes_over);
		members_wait(&m, is_ready, n, 10, "a node to start");
	}
	wait_progress(&m);
	members_settle(&m);
	members_end(&m);
}

/* --- the checker --- */

/* A node that answers reads with the first value that it heard of is found out. */
static void test_lies(void **state)
{
	const struct row *r = row_of(state);
	struct members m;

	members_make(&m, r->name, 1, false);
	m.alone = m.lies = true;
	members_start(&m, 0, true);
	wait_leader(&m, "the first node to lead");
	for (int i = 0; i < 4; i++) {
		assert_int_equal(write_again(&m, 0), MEMBER_OK);
		members_read(&m, 0);
		members_wait(&m, members_read_ended, 0, 10, "a read");
	}
	assert_non_null(members_judge(&m));
	m.ops_nr = 0;
	members_end(&m);
}

static struct register_op wrote(uint64_t expect, uint64_t writer, uint64_t called,
				uint64_t returned, enum register_how how)
{
	return (struct register_op){.kind = REGISTER_WRITE,
				    .how = how,
				    .called = called,
				    .returned = returned,
				    .expect = expect,
				    .writer = writer};
}

static struct register_op did_read(uint64_t seq, uint64_t writer, uint64_t called,
				   uint64_t returned)
{
	return (struct register_op){.kind = REGISTER_READ,
				    .how = REGISTER_DONE,
				    .called = called,
				    .returned = returned,
				    .seq = seq,
				    .writer = writer};
}

static void judge(bool right, const struct register_op *ops, size_t nr, int line)
{
	char text[256];
	const char *wrong = register_check(ops, nr, text);

	if ((wrong == NULL) != right)
		fail_msg("history of line %d: %s", line, wrong != NULL ? wrong : "nothing found");
}
#define RIGHT(...)                                                                                 \
	judge(true, (struct register_op[]){__VA_ARGS__},                                           \
	      NR(((struct register_op[]){__VA_ARGS__})), __LINE__)
#define WRONG(...)                                                                                 \
	judge(false, (struct register_op[]){__VA_ARGS__},                                          \
	      NR(((struct register_op[]){__VA_ARGS__})), __LINE__)
#define DONE  REGISTER_DONE
#define OPEN  REGISTER_OPEN
#define NO    REGISTER_REFUSED
#define OTHER REGISTER_CONFLICT
#define EVER  UINT64_MAX

static void test_checker(void **state)
{
	(void)state;
	RIGHT(wrote(0, 1, 10, 20, DONE), wrote(1, 2, 30, 40, DONE), did_read(2, 2, 50, 60));
	RIGHT(wrote(0, 1, 10, 20, DONE), wrote(1, 2, 30, 40, DONE), did_read(1, 1, 35, 60));
	/* A read that began after a write has ended shows an older value. */
	WRONG(wrote(0, 1, 10, 20, DONE), wrote(1, 2, 30, 40, DONE), did_read(1, 1, 41, 60));
	/* Two reads, one after the other, go backwards while a write is under way. */
	WRONG(wrote(0, 1, 10, 20, DONE), wrote(1, 2, 30, 90, DONE), did_read(2, 2, 40, 50),
	      did_read(1, 1, 51, 60));
	RIGHT(wrote(0, 1, 10, 20, DONE), wrote(1, 2, 30, 90, DONE), did_read(2, 2, 40, 50),
	      did_read(1, 1, 45, 60));
	/* A value is read before anybody wrote it, or nobody wrote it. */
	WRONG(wrote(0, 1, 10, 20, DONE), wrote(1, 2, 30, 40, DONE), did_read(2, 2, 21, 29));
	WRONG(wrote(0, 1, 10, 20, DONE), did_read(2, 7, 21, 29));
	/* One number has two values; so would a write that is lost. */
	WRONG(wrote(0, 1, 10, 20, DONE), wrote(0, 2, 30, 40, DONE));
	WRONG(wrote(0, 1, 10, 20, DONE), wrote(1, 2, 30, 40, DONE), did_read(2, 3, 50, 60));
	/* What was refused is there. */
	WRONG(wrote(0, 1, 10, 20, DONE), wrote(1, 2, 30, 40, NO), did_read(2, 2, 50, 60));
	/* An open write may happen late, or not at all, or fill a gap. */
	RIGHT(wrote(0, 1, 10, 20, DONE), wrote(1, 2, 30, EVER, OPEN), did_read(1, 1, 50, 60),
	      did_read(2, 2, 70, 80));
	RIGHT(wrote(0, 1, 10, 20, DONE), wrote(1, 2, 30, EVER, OPEN), did_read(1, 1, 50, 60));
	RIGHT(wrote(0, 1, 10, 20, DONE), wrote(1, 2, 30, EVER, OPEN), wrote(2, 3, 50, 60, DONE));
	WRONG(wrote(0, 1, 10, 20, DONE), wrote(2, 3, 50, 60, DONE));
	/* It was seen, and is gone again. */
	WRONG(wrote(0, 1, 10, 20, DONE), wrote(1, 2, 30, EVER, OPEN), did_read(2, 2, 40, 50),
	      did_read(1, 1, 60, 70));
	/* A conflict although the number was the right one all the time. */
	WRONG(wrote(0, 1, 10, 20, DONE), wrote(1, 2, 30, 40, OTHER), wrote(1, 3, 50, 60, DONE));
	RIGHT(wrote(0, 1, 10, 20, DONE), wrote(1, 2, 30, 55, OTHER), wrote(1, 3, 50, 60, DONE));
	RIGHT(wrote(0, 1, 10, 20, DONE), wrote(1, 3, 25, EVER, OPEN), wrote(1, 2, 30, 55, OTHER));
}

#define ROW(test, row)                                                                             \
	{                                                                                          \
		.name = #test "(" #row ")", .test_func = test, .initial_state = (void *)&row_##row \
	}
#define ROWS(row)                                                                                  \
	ROW(test_answers, row), ROW(test_kill, row), ROW(test_pause, row),                         \
		ROW(test_partition, row), ROW(test_links, row), ROW(test_wiped, row),              \
		ROW(test_put_back, row), ROW(test_forgot, row), ROW(test_damaged, row),            \
		ROW(test_full, row), ROW(test_full_start, row), ROW(test_voters, row),             \
		ROW(test_stop, row), ROW(test_lies, row)

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {cmocka_unit_test(test_checker), ROWS(static),
						  ROWS(quorum)};
	int status;

	if (members_is_node(argc, argv, &status))
		return status;
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
