/* SPDX-License-Identifier: Apache-2.0 */
/* source.h: where the durable view of the members is kept, and who may change it. A source keeps
 * one value, an opaque row of bytes with the number seq, and lets one node at a time lead. The one
 * that leads replaces the value by compare-and-swap on seq. There is a row of functions for each
 * source, and callers know nothing else of it. A source runs on one loop: all calls come from the
 * thread of that loop, and all callbacks are called there, but not from inside a call of these
 * functions (wake() is the exception). Callbacks may call every function of the source. Nothing
 * here waits for a disk or another node. What the outside can cause is a status, a member_done or
 * `failed`. */
#ifndef SHARD_CLUSTER_SOURCE_H
#define SHARD_CLUSTER_SOURCE_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MEMBER_UUID_BYTES 16
#define MEMBER_VIEW_MAX   65536 /* Bytes of a value. */
#define MEMBER_VOTERS_MAX 5
#define MEMBER_LINKS_MAX  63 /* Other nodes that `quorum` knows at a time. */

enum member_done {
	/* It is durable, on a majority if there are voters, and was current at that moment. */
	MEMBER_OK,
	/* The current seq is not expect_seq, or these voters cannot be changed like that (a sixth
	 * one, the last one). Nothing was written, and nothing will be. */
	MEMBER_CONFLICT,
	/* This node does not lead that term. Nothing was written, and nothing will be. `quorum`
	 * says so only if no node was asked to accept. From then on it is MEMBER_UNKNOWN. */
	MEMBER_FENCED,
	/* It may be durable already, or become so later. Read, and compare `writer`. */
	MEMBER_UNKNOWN,
	/* The disk refused it. Nothing was written. Proposing again is allowed. */
	MEMBER_NOSPACE,
};

struct member_view {
	uint64_t term; /* In which this node knows the value: a new leader writes it again. */
	uint64_t seq;  /* 1, 2, 3 ... without gaps, across all terms. */
	uint8_t writer[MEMBER_UUID_BYTES]; /* Drawn at random by the caller for each change. */
	const uint8_t (*voter)[MEMBER_UUID_BYTES]; /* Only `quorum` has voters. */
	uint32_t voters_nr;
	uint32_t bytes_nr; /* 0 in the first value of `quorum`, which only names its voter. */
	const void *bytes; /* All pointers are valid during the call that hands the view over. */
};

struct member_events {
	void *arg;
	/* A value is durable. Its seq only grows, and numbers may be skipped. Also once after the
	 * start, when it is known what is current. `static`: on the first node only. */
	void (*view)(void *arg, const struct member_view *v);
	/* This node leads `term`, which no other node has or had. v is the newest value that there
	 * is, read in this term. NULL: none was ever written. */
	void (*leading)(void *arg, uint64_t term, const struct member_view *v);
	/* Comes exactly once for each `leading`. This node may decide nothing in `term` any more.
	 */
	void (*lost)(void *arg, uint64_t term, const char *why);
	/* As far as this node knows, `uuid` leads `term`. NULL: nobody does. It may be out of date
	 * and is never a fence. */
	void (*leader)(void *arg, uint64_t term, const uint8_t *uuid);
	/* The source cannot keep its promises any more. text says why. Open calls were answered,
	 * and `lost` has come. No other event follows. The process has to end. */
	void (*failed)(void *arg, const char *text);
	/* Sends a message to a node whose link is up. It may be lost, late or doubled. The bytes
	 * are valid during the call. Only `quorum` sends. Must not call back into the source. */
	void (*send)(void *arg, const uint8_t to[MEMBER_UUID_BYTES], const void *bytes,
		     uint32_t bytes_nr);
};

struct member_config {
	struct uv_loop_s *loop;
	const char *dir; /* The state folder. The caller has locked it. Copied. */
	/* This node. It belongs to the folder: a wiped folder is another node. Not all zeros. */
	uint8_t self[MEMBER_UUID_BYTES];
	/* Is kept beside the data. Data of another cluster, node or source is refused. */
	uint8_t cluster[MEMBER_UUID_BYTES];
	bool first; /* `static`: this node is the first of the list, and so it leads. */
	/* `quorum`: no node of this cluster has a value yet, and this one writes the first, with
	 * itself as the only voter. Ignored if there is data. If it is set at a second node, or
	 * again after the folder was wiped, there are two clusters. */
	bool bootstrap;
	bool alone; /* `quorum`: no other node is a member, so the only voter leads at once. */
	uint16_t ordinal; /* `quorum`: of this node. No second one is ever given the same. */
	/* A leader speaks each beat_ms. Who hears nothing for election_ms (above beat_ms) asks to
	 * lead. A propose, join, leave or read is answered within deadline_ms. All above 0. */
	uint32_t beat_ms, election_ms, deadline_ms;
	const void *more; /* What only one source reads, as its own header says. NULL: nothing. */
};

/* current is the value that this node knows now; NULL: not known, or there is none. */
typedef void member_done_fn(void *arg, enum member_done how, const struct member_view *current);

struct member_source; /* Opaque. Each source has its own. */

/* A propose, join or leave is a change. There is one change at a time, and one read. Errors that
 * these functions share: SHARD_AGAIN: the one before is not answered, or was answered with
 * MEMBER_UNKNOWN and is not settled yet; nothing was taken; call again later. SHARD_BAD_STATE: the
 * source has failed or stops. If SHARD_OK is returned, done is called exactly once. */
struct member_source_ops {
	const char *name;
	/* Loads and checks what is in the folder, which is the only I/O that the caller waits for.
	 * c and ev are copied. SHARD_PROTOCOL: a file is damaged. SHARD_MISMATCH: it belongs to
	 * another source, cluster or node. SHARD_SYSTEM: the file system or memory. SHARD_BAD_ARG:
	 * c makes no sense. A failed start leaves nothing to undo. */
	enum shard_status (*start)(struct member_source **out, const struct member_config *c,
				   const struct member_events *ev, struct err *e);
	/* Replaces the value if this node leads `term` and the current seq is expect_seq (0: there
	 * is no value). The new one has expect_seq + 1. bytes are copied. SHARD_RANGE: more than
	 * MEMBER_VIEW_MAX bytes. */
	enum shard_status (*propose)(struct member_source *s, uint64_t term, uint64_t expect_seq,
				     const uint8_t writer[MEMBER_UUID_BYTES], const void *bytes,
				     uint32_t bytes_nr, member_done_fn *done, void *arg);
	/* Finds the value that was current at some moment after the call, on any node, and answers
	 * MEMBER_OK with it, or MEMBER_UNKNOWN if it could not be known in time. */
	enum shard_status (*read)(struct member_source *s, member_done_fn *done, void *arg);
	/* Makes a node a voter, or ends that. It is a change like propose: the same bytes are
	 * written with expect_seq + 1 and this writer. Joining a voter, or leaving of a node that
	 * is none, changes no voter but is written too. A node should have been linked for a while
	 * before it joins, so that it has the value: from then on it counts. Never let a live voter
	 * leave while another one is down. SHARD_UNREACHABLE: who joins is not linked.
	 * SHARD_UNSUPPORTED: this source has no voters. */
	enum shard_status (*join)(struct member_source *s, uint64_t term, uint64_t expect_seq,
				  const uint8_t writer[MEMBER_UUID_BYTES],
				  const uint8_t uuid[MEMBER_UUID_BYTES], member_done_fn *done,
				  void *arg);
	enum shard_status (*leave)(struct member_source *s, uint64_t term, uint64_t expect_seq,
				   const uint8_t writer[MEMBER_UUID_BYTES],
				   const uint8_t uuid[MEMBER_UUID_BYTES], member_done_fn *done,
				   void *arg);
	/* Gives the lead away if another node can have it. `lost` follows. Without effect if this
	 * node does not lead `term`, or the source cannot give it away. Only SHARD_BAD_STATE. */
	enum shard_status (*resign)(struct member_source *s, uint64_t term);
	/* The link to another node is up or down. The source is told of each change, and of a link
	 * that ends and begins anew. */
	void (*link)(struct member_source *s, const uint8_t uuid[MEMBER_UUID_BYTES], bool up);
	/* A message came over the link to `from`, which has proven who it is. The bytes are copied.
	 * It is dropped without an error while the link is down or the queue is full.
	 * SHARD_PROTOCOL: no node that works sends that; e says why. `static` and `etcd` ignore
	 * links and messages. */
	enum shard_status (*message)(struct member_source *s, const uint8_t from[MEMBER_UUID_BYTES],
				     const void *bytes, uint32_t bytes_nr, struct err *e);
	/* Looks at the clock now, and tells `lost` from inside this call if the time of this node
	 * is up. A process that was stopped for a while finds its input before its timers. So
	 * whoever acts on other input as the one that leads calls this before. It is cheap. */
	void (*wake)(struct member_source *s);
	/* Resigns, answers open calls with MEMBER_UNKNOWN, tells `lost`, and calls stopped, which
	 * may be NULL, when nothing of it is left. Sets *s to NULL at once. Waits for a write of
	 * the disk that is under way. */
	void (*stop)(struct member_source **s, void (*stopped)(void *arg), void *arg);
};

extern const struct member_source_ops source_static, source_quorum;
/* NULL: there is no source of that name. */
const struct member_source_ops *member_source_find(const char *name);

#endif
