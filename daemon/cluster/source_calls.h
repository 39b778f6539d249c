/* SPDX-License-Identifier: Apache-2.0 */
/* source_calls.h: the one change and the one read that the owner of a membership source may have
 * open, for all sources. Each is answered exactly once, and in time. A change that was
 * answered because its time was up keeps its place until the source knows how it ended. */
#ifndef SHARD_CLUSTER_SOURCE_CALLS_H
#define SHARD_CLUSTER_SOURCE_CALLS_H

#include "cluster/source.h"

enum change_state {
	CHANGE_NONE,
	CHANGE_WAITS,  /* Until the source can take it up. */
	CHANGE_HANDED, /* To the disk or the register, which will end it. */
};

enum change_kind { CHANGE_VALUE, CHANGE_JOIN, CHANGE_LEAVE };

struct source_change {
	enum change_state state;
	enum change_kind kind;
	bool answered;
	uint64_t term, seq, by_ns; /* by_ns: when it has to be answered. */
	uint8_t writer[MEMBER_UUID_BYTES], uuid[MEMBER_UUID_BYTES]; /* uuid: who joins or leaves. */
	uint32_t bytes_nr;
	unsigned char *bytes; /* [MEMBER_VIEW_MAX] Of CHANGE_VALUE. */
	member_done_fn *done;
	void *arg;
};

struct source_read {
	member_done_fn *done; /* NULL: it is answered, or there is none. */
	void *arg;
	bool handed; /* To the register, which will end it. */
	uint64_t by_ns;
};

struct source_calls {
	struct source_change change;
	struct source_read read;
	uint64_t deadline_ns;
};

/* False: no memory. */
bool calls_init(struct source_calls *c, uint64_t deadline_ns);
void calls_deinit(struct source_calls *c);
/* Opens a change. There must be none. `what` has what the change is; its bytes are copied. */
void calls_begin(struct source_calls *c, const struct source_change *what, uint64_t now_ns);
/* Ends the change, whose place is free then. Tells its owner, unless that was done. */
void calls_end(struct source_calls *c, enum member_done how, const struct member_view *current);
void calls_begin_read(struct source_calls *c, member_done_fn *done, void *arg, uint64_t now_ns);
void calls_end_read(struct source_calls *c, enum member_done how,
		    const struct member_view *current);
/* Answers what should have been answered by now_ns with MEMBER_UNKNOWN. UINT64_MAX: all. */
void calls_late(struct source_calls *c, uint64_t now_ns);
uint64_t calls_due(const struct source_calls *c); /* When calls_late() has something to do. */

/* Of a source without voters, and of one whose nodes tell each other nothing. Messages that come
 * are dropped. */
enum shard_status calls_no_voters(struct member_source *s, uint64_t term, uint64_t expect_seq,
				  const uint8_t writer[MEMBER_UUID_BYTES],
				  const uint8_t uuid[MEMBER_UUID_BYTES], member_done_fn *done,
				  void *arg);
enum shard_status calls_no_message(struct member_source *s, const uint8_t from[MEMBER_UUID_BYTES],
				   const void *bytes, uint32_t bytes_nr, struct err *e);

#endif
