/* SPDX-License-Identifier: Apache-2.0 */
/* quorum.h: one value that a majority of voters keeps, and one node that may replace it. It is
 * the state behind the membership source `quorum`. The rule is that of CASPaxos (Rystsov, 2018,
 * section 2), with the voters inside the value. A quorum takes an event and the time, changes
 * itself, and appends actions to a bounded list. It does no I/O, allocates nothing and reads no
 * clock. Messages may be lost, late, doubled and in any order. */
#ifndef SHARD_CORE_QUORUM_H
#define SHARD_CORE_QUORUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define QUORUM_UUID_BYTES 16
#define QUORUM_VOTERS_MAX 5
#ifndef QUORUM_PEERS_MAX /* This node included. */
#define QUORUM_PEERS_MAX 64
#endif
#ifndef QUORUM_BYTES_MAX
#define QUORUM_BYTES_MAX 65536
#endif
/* A term is counter << QUORUM_ORDINAL_BITS | ordinal of the node that leads in it. No second node
 * is ever given the same ordinal. */
#define QUORUM_ORDINAL_BITS 16
#define QUORUM_TERM_MAX     (1ull << 62)
#define QUORUM_SEQ_MAX      (1ull << 62)

struct quorum_value {
	uint64_t seq;                      /* 1, 2, 3 ... whatever the term. 0: no value. */
	uint8_t writer[QUORUM_UUID_BYTES]; /* Drawn at random for each proposal. */
	uint8_t voter[QUORUM_VOTERS_MAX][QUORUM_UUID_BYTES];
	uint32_t voters_nr, bytes_nr;
	uint8_t bytes[QUORUM_BYTES_MAX]; /* What they say has no part in the rule. */
};

/* What a voter must never forget. Another node's memory of it is checked (QUORUM_YOU). */
struct quorum_disk {
	uint64_t promised; /* Nothing of a lower term is accepted any more. */
	uint64_t term;     /* The one in which value was accepted. */
	struct quorum_value value;
};

enum quorum_op {
	/* Would the receiver promise .term? It says no while it hears from a leader. Without this
	 * question a node that comes back would end the term of a leader that does well. */
	QUORUM_POLL = 1,
	QUORUM_WOULD,  /* .yes */
	QUORUM_ASK,    /* Promise .term. */
	QUORUM_ANSWER, /* Promised .term. .value is what was accepted last, NULL: nothing. */
	/* From the leader of .term, or from who will be it: accept .value, if that is not NULL.
	 * .chosen_seq is known to be chosen. */
	QUORUM_LEAD,
	QUORUM_HEARD, /* The answer to LEAD. */
	QUORUM_GO,    /* The leader resigns, and the receiver should ask at once. */
	/* The first message on a link: .promised, .accepted and .seq are what the receiver has said
	 * of itself. If it does not know that any more, its disk was put back. */
	QUORUM_YOU,
	QUORUM_READ, /* Which value is the current one? .round is the asker's number. */
	QUORUM_IS,   /* The answer to READ, with .value. */
};

struct quorum_msg {
	enum quorum_op op;
	uint8_t from[QUORUM_UUID_BYTES], to[QUORUM_UUID_BYTES];
	uint64_t term;
	/* In every message but YOU: the sender's promise, and the term and seq that it accepted. */
	uint64_t promised, accepted, seq;
	uint64_t chosen_seq, round;
	bool yes;
	const struct quorum_value *value;
};

enum quorum_event_type {
	QUORUM_EV_MSG = 1, /* .msg came from a peer whose link is up. */
	QUORUM_EV_TICK,    /* The time that quorum_deadline() named has come. */
	QUORUM_EV_UP,      /* The link to .uuid is up. */
	QUORUM_EV_DOWN,    /* The link to .uuid is down. */
	/* Replace the value by .value (writer, voters, bytes; its seq is not looked at) if this
	 * node leads .term and the current seq is .seq. At most one voter is added or removed.
	 * QUORUM_ACT_DONE answers. Only if quorum_may_propose(). */
	QUORUM_EV_PROPOSE,
	/* Which value is the current one? QUORUM_ACT_READ answers. Only if quorum_may_read(). */
	QUORUM_EV_READ,
	QUORUM_EV_RESIGN, /* Give the lead away, if this node has it. */
};

struct quorum_event {
	enum quorum_event_type type;
	const struct quorum_msg *msg;
	uint8_t uuid[QUORUM_UUID_BYTES];
	uint64_t term, seq;
	const struct quorum_value *value;
};

enum quorum_done {
	QUORUM_OK,       /* It is kept by a majority, and was current at that moment. */
	QUORUM_CONFLICT, /* The current seq is another one. Nothing was written. */
	QUORUM_FENCED,   /* This node does not lead that term. Nothing was written. */
	QUORUM_UNKNOWN,  /* It may be kept already, or may be kept later. Read, compare writer. */
};

enum quorum_action_type {
	QUORUM_ACT_SEND = 1, /* Send .msg to .msg.to. It may be lost. */
	QUORUM_ACT_VIEW,     /* .value is kept by a majority. Its seq only grows. */
	/* This node leads .term, and .value is the newest value that there is. */
	QUORUM_ACT_LEADING,
	QUORUM_ACT_LOST,   /* This node does not lead .term any more, because of .why. */
	QUORUM_ACT_LEADER, /* .uuid leads .term, as far as this node knows. Zeros: nobody does. */
	QUORUM_ACT_DONE,   /* The answer .how to the proposal of .term. */
	QUORUM_ACT_READ,   /* The answer .how, QUORUM_OK with .value, or QUORUM_UNKNOWN. */
	QUORUM_ACT_FAILED, /* The disk forgot something, .why. The process has to end. */
};

struct quorum_action {
	enum quorum_action_type type;
	struct quorum_msg msg;
	const struct quorum_value *value; /* Pointers live until the next call. */
	uint64_t term;
	uint8_t uuid[QUORUM_UUID_BYTES];
	enum quorum_done how;
	const char *why;
};

#define QUORUM_ACTIONS_MAX (4 * QUORUM_PEERS_MAX + 8)
struct quorum_out {
	/* quorum_disk() has changed, and must be synced before any of the actions is done. */
	bool sync;
	uint32_t nr;
	struct quorum_action act[QUORUM_ACTIONS_MAX];
};

struct quorum_conf {
	uint8_t self[QUORUM_UUID_BYTES];
	uint32_t ordinal; /* Below 1 << QUORUM_ORDINAL_BITS. */
	bool alone;       /* No other node is a member, so the only voter leads at once. */
	/* A leader speaks each beat_ns. A voter that hears nothing for election_ns asks to lead. A
	 * proposal or read that takes deadline_ns is answered with QUORUM_UNKNOWN. */
	uint64_t beat_ns, election_ns, deadline_ns;
	uint64_t seed; /* Drawn at random for each process. */
};

struct quorum;             /* Opaque, flat, without pointers into itself. */
size_t quorum_bytes(void); /* The caller gives so many zeroed, 16-byte aligned bytes. */
/* disk is what was synced last, or all zeros for a node that never had anything. The caller has
 * checked its checksum. NULL: disk cannot be what a quorum wrote. */
struct quorum *quorum_init(void *memory, const struct quorum_conf *conf,
			   const struct quorum_disk *disk, uint64_t now_ns);
/* The disk of the first node of a new cluster, which is its only voter. No other node writes a
 * first value. */
void quorum_first(struct quorum_disk *disk, const struct quorum_conf *conf,
		  const uint8_t writer[QUORUM_UUID_BYTES], const void *bytes, uint32_t bytes_nr);
void quorum_handle(struct quorum *q, const struct quorum_event *e, uint64_t now_ns,
		   struct quorum_out *out);
const struct quorum_disk *quorum_disk(const struct quorum *q);
uint64_t quorum_deadline(const struct quorum *q);
bool quorum_may_propose(const struct quorum *q);
bool quorum_may_read(const struct quorum *q);
bool quorum_value_ok(const struct quorum_value *v); /* For what a peer or a disk has brought. */

#endif
