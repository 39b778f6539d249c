/* SPDX-License-Identifier: Apache-2.0 */
/* define_wait.h: the list server.defines of DEFINEs that cannot be carried out yet. */
#ifndef SHARD_DEFINE_WAIT_H
#define SHARD_DEFINE_WAIT_H

#include "link/caller.h"
#include "shard.pb-c.h"

typedef enum shard_status define_again_fn(struct server *s, const struct caller *a,
					  const Shard__Define *d, struct err *e);

/* Keeps a copy of d. SHARD_BUSY: a DEFINE of this connection waits already, or its user has used up
 * the share (held.h). */
enum shard_status define_wait(struct server *s, const struct caller *a, const Shard__Define *d,
			      struct err *e);
/* Drops the DEFINEs of a session that has ended, or (session 0) all of that node. */
void define_wait_forget(struct server *s, uint16_t node, uint64_t session);
/* What one turn of the loop takes up, in bytes of packed specs: a millisecond or so. One definition
 * that is larger has a turn of its own. */
#define DEFINE_TURN_BYTES (64u << 10)

/* Goes on with those that may, or have waited long enough, the oldest first, as many as one turn
 * takes up. The next beat comes at once if others may go on. What again() refuses is told to who
 * asked. */
void define_wait_retry(struct server *s, uint64_t now_ns,
		       bool (*may_go)(struct server *s, const char *name), define_again_fn *again);
void define_wait_free(struct server *s);

#endif
