/* SPDX-License-Identifier: Apache-2.0 */
/* members.h: real processes that each run one membership source, for tests of the contract of
 * cluster/source.h. Every node is the test's own program, started again with other arguments. All
 * messages between nodes go through the test (members_turn()), which can hold them back. Clients
 * write and read on every node, and what they see is a history for lib/register.h. Whatever breaks
 * the contract at once, such as two nodes that lead one term, ends the test by fail_msg(). */
#ifndef SHARD_TESTS_MEMBERS_H
#define SHARD_TESTS_MEMBERS_H

#include "cluster/source.h"
#include "lib/register.h"

#include <sys/types.h>

enum { MEMBERS_MAX = 6, MEMBERS_OPS_MAX = 40000, MEMBERS_TERMS_MAX = 1024 };

struct member_call {      /* A client's operation under way. */
	bool open, voter; /* voter: it changes one. */
	uint32_t op;      /* Its place in the history. */
	int how;          /* The member_done of the last one, or -1 - its shard_status. */
	uint64_t nr;      /* How many were answered. */
};

struct member_node {
	pid_t pid; /* 0: not running. */
	int control, wire;
	bool stopped; /* By SIGSTOP, or it stops for good. */
	uint64_t stopped_ns;
	bool ready; /* Its source has started. */
	bool gone;  /* It has ended by itself since it was started. */
	uint8_t uuid[MEMBER_UUID_BYTES];
	uint16_t ordinal;
	char dir[96], failed[512], refused[512]; /* refused: why its source did not start. */
	int refused_status, exit_status;
	uint64_t leads, last_led, led_nr, lost_nr; /* leads: a term, or 0. */
	uint64_t seq, term;                        /* Of the newest view that it has told. */
	uint32_t voters_nr;
	int leader; /* Who leads, as it has told. -1: nobody. */
	struct member_call write, read;
	char order[256]; /* A letter for each event since members_note(): L leading, l lost, F V ...
			  */
};

struct members {
	const char *source;
	char dir[64];
	int nodes_nr;
	bool alone, lies; /* alone: nobody else is a member. lies: nodes answer reads with the first
			     value that they heard of. */
	uint32_t beat_ms, election_ms, deadline_ms;
	bool load;                          /* Clients write and read all the time. */
	uint64_t load_ns;                   /* When they begin next. */
	bool cut[MEMBERS_MAX][MEMBERS_MAX]; /* Nothing passes from the first to the second. */
	struct member_node node[MEMBERS_MAX];
	struct register_op *ops;
	uint32_t ops_nr;
	uint64_t writers; /* Numbers of proposals. */
	uint64_t term_of[MEMBERS_TERMS_MAX];
	uint8_t led_by[MEMBERS_TERMS_MAX][MEMBER_UUID_BYTES];
	uint32_t terms_nr;
};

/* For main(): true if this process was started as a node. It has run then, and *status is its exit
 * status. */
bool members_is_node(int argc, char **argv, int *status);

/* Makes the folders. Starts nothing. quick: somebody leads soon after the node that led is gone.
 * Otherwise nobody else leads because a machine is slow for a moment. */
void members_make(struct members *m, const char *source, int nodes_nr, bool quick);
/* Starts the process of a node and returns. first: it is the first one of the list, or writes the
 * first value, when no other node is there. */
void members_start(struct members *m, int n, bool first);
void members_kill(struct members *m, int n);  /* SIGKILL, and the end of the process. */
void members_pause(struct members *m, int n); /* SIGSTOP */
void members_go_on(struct members *m, int n); /* SIGCONT */
/* Stops its source in the way of source.h and expects the process to end well. */
void members_stop(struct members *m, int n);
void members_fresh(struct members *m, int n); /* A wiped folder: a new uuid and ordinal, too. */
void members_keep(struct members *m, int n);  /* Copies its file to "kept". */
void members_put_back(struct members *m, int n);
/* Changes a bit of its file, `at` bytes from the start, or below 0 from the end. */
void members_damage(struct members *m, int n, long at);
/* Cuts node n off from all others, silently. Or heals that, and all links begin anew. */
void members_isolate(struct members *m, int n, bool off);
void members_room(struct members *m, int n, bool room); /* false: its disk is full. */

/* One operation of a client. Its result is in node[n].write or .read, once that is not open. */
void members_propose(struct members *m, int n, uint64_t term, uint64_t expect, uint32_t bytes_nr);
void members_voter(struct members *m, int n, const uint8_t *uuid, bool joins);
void members_read(struct members *m, int n);
void members_resign(struct members *m, int n);
void members_note(struct members *m, int n); /* Empties .order. */

void members_turn(struct members *m); /* Waits for input for a few ms, and takes it. */
/* Waits until it is true, or ends the test with `what` after seconds of a quiet machine. */
typedef bool members_is(struct members *m, int n);
void members_wait(struct members *m, members_is *is, int n, int seconds, const char *what);
bool members_has_leader(struct members *m, int n); /* n is not looked at. */
bool members_write_ended(struct members *m, int n);
bool members_read_ended(struct members *m, int n);
bool members_went_wrong(struct members *m, int n); /* It told `failed`. */
bool members_refused(struct members *m, int n);    /* Its source did not start. */
int members_leader(const struct members *m);       /* -1: none, or more than one believes it. */
/* Ends the load, waits for its answers, and until all running nodes tell the newest value. */
void members_settle(struct members *m);
/* NULL, or what is wrong with the history so far. */
const char *members_judge(const struct members *m);
/* Stops what runs, checks the history, and removes the folders. */
void members_end(struct members *m);

#endif
