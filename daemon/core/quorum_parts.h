/* SPDX-License-Identifier: Apache-2.0 */
/* quorum_parts.h: what the files of the register share. Nobody else includes it. */
#ifndef SHARD_CORE_QUORUM_PARTS_H
#define SHARD_CORE_QUORUM_PARTS_H

#include "core/quorum.h"

#define QUORUM_NEVER UINT64_MAX

_Static_assert(QUORUM_PEERS_MAX <= 64, "peers are bits of a word");

enum quorum_phase {
	QUORUM_IDLE,
	QUORUM_POLLING, /* Asks whether others would promise. */
	QUORUM_ASKING,  /* Has promised its own term, and gathers promises of others. */
	QUORUM_WRITING, /* Writes the value that it took at its own term. */
	QUORUM_LEADING,
};

struct quorum_peer {
	uint8_t uuid[QUORUM_UUID_BYTES];
	bool linked;
	uint64_t acked_seq; /* In this node's term. */
	uint64_t round;     /* The last LEAD of this node's term that it answered. */
	uint64_t heard_ns;
	/* What it said of its own disk. It must never say less. */
	uint64_t told_promised, told_accepted, told_seq;
	bool reads; /* It waits for the answer to READ .asked, due when .after is confirmed. */
	uint64_t asked, after;
};

struct quorum {
	struct quorum_conf conf;
	struct quorum_disk disk;
	enum quorum_phase phase;
	uint64_t term; /* This node's own, from ASKING on. While POLLING the one that it may ask. */
	/* ASKING: the highest value that was heard. Otherwise room for the answer to a read. */
	struct quorum_value best;
	uint64_t best_term;
	uint64_t answered; /* A bit for each peer: POLLING those who would, ASKING those who did. */
	uint64_t chosen_seq; /* Of this term. 0: the value that was taken is not chosen yet. */
	uint64_t told_seq;   /* Of the last QUORUM_ACT_VIEW. */
	uint64_t highest;    /* The highest promise that anybody has told. */
	uint64_t round;
	uint8_t leader[QUORUM_UUID_BYTES]; /* Zeros: none is known. */
	uint64_t leader_term, leader_ns;   /* leader_ns: when it was heard. */
	uint64_t elect_at, beat_at, done_at, read_at, read_again_at;
	uint64_t read_round;
	uint32_t spread; /* Counts the elections, for their times. */
	bool failed, reading;
	uint32_t peers_nr;
	struct quorum_peer peer[QUORUM_PEERS_MAX]; /* The first one is this node. */
};

extern const uint8_t quorum_nobody[QUORUM_UUID_BYTES];

/* --- quorum_parts.c --- */

bool quorum_same(const uint8_t *a, const uint8_t *b);
bool quorum_above(uint64_t term, uint64_t seq, uint64_t than_term, uint64_t than_seq);
bool quorum_names(const struct quorum_value *v, const uint8_t *uuid);
struct quorum_peer *quorum_find(struct quorum *q, const uint8_t *uuid);
uint64_t quorum_bit(const struct quorum *q, const struct quorum_peer *p);
bool quorum_majority(struct quorum *q, const struct quorum_value *v, uint64_t peers);
struct quorum_action *quorum_act(struct quorum_out *out, enum quorum_action_type type);
void quorum_send(struct quorum *q, const struct quorum_peer *to, struct quorum_msg m,
		 struct quorum_out *out);
void quorum_send_all(struct quorum *q, struct quorum_msg m, struct quorum_out *out);
void quorum_view(struct quorum *q, struct quorum_out *out);
void quorum_leader_is(struct quorum *q, const uint8_t *uuid, uint64_t term, struct quorum_out *out);
void quorum_fail(struct quorum *q, const char *why, struct quorum_out *out);
bool quorum_may_elect(struct quorum *q);
uint64_t quorum_jitter(struct quorum *q, uint64_t span);
void quorum_elect_after(struct quorum *q, uint64_t now, uint64_t wait);

/* --- quorum_lead.c --- */

void quorum_lead_one(struct quorum *q, const struct quorum_peer *to, struct quorum_out *out);
void quorum_lead_all(struct quorum *q, uint64_t now, struct quorum_out *out);
void quorum_step_down(struct quorum *q, const char *why, uint64_t now, struct quorum_out *out);
void quorum_resign(struct quorum *q, const char *why, uint64_t now, struct quorum_out *out);
void quorum_write_value(struct quorum *q, const struct quorum_value *v, uint64_t now,
			struct quorum_out *out);
void quorum_on_heard(struct quorum *q, struct quorum_peer *p, const struct quorum_msg *m,
		     uint64_t now, struct quorum_out *out);
void quorum_on_read(struct quorum *q, struct quorum_peer *p, const struct quorum_msg *m,
		    uint64_t now, struct quorum_out *out);
void quorum_propose(struct quorum *q, const struct quorum_event *e, uint64_t now,
		    struct quorum_out *out);
void quorum_read_again(struct quorum *q, uint64_t now, struct quorum_out *out);
void quorum_start_read(struct quorum *q, uint64_t now, struct quorum_out *out);
bool quorum_heard_by_majority(struct quorum *q, uint64_t now);

/* --- quorum_elect.c --- */

void quorum_ask(struct quorum *q, uint64_t now, struct quorum_out *out);
void quorum_poll(struct quorum *q, uint64_t now, struct quorum_out *out);
void quorum_on_poll(struct quorum *q, struct quorum_peer *p, const struct quorum_msg *m,
		    uint64_t now, struct quorum_out *out);
void quorum_on_would(struct quorum *q, struct quorum_peer *p, const struct quorum_msg *m,
		     uint64_t now, struct quorum_out *out);
void quorum_on_ask(struct quorum *q, struct quorum_peer *p, const struct quorum_msg *m,
		   uint64_t now, struct quorum_out *out);
void quorum_on_answer(struct quorum *q, struct quorum_peer *p, const struct quorum_msg *m,
		      uint64_t now, struct quorum_out *out);
void quorum_on_go(struct quorum *q, struct quorum_peer *p, const struct quorum_msg *m, uint64_t now,
		  struct quorum_out *out);

#endif
