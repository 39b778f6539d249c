/* SPDX-License-Identifier: Apache-2.0 */
/* writer.h: who writes the weights of a model that is not sealed: one session of the cluster, the
 * one that DEFINE answered with created=1. The coordinator grants it, and numbers the grant by its
 * own term and a count. A WRITE and a SEAL travel with the number of their session's grant, and
 * each node knows which grant its memory was written under: under a newer one it counts as
 * unwritten first, and an older one is refused. So a seal never takes weights of two writers. Loop
 * thread only. */
#ifndef SHARD_WRITER_H
#define SHARD_WRITER_H

#include "data/model_parts.h"

#include <stdbool.h>
#include <stdint.h>

struct caller;
struct model;
struct session;
struct wire_head;

enum shard_status writer_init(struct model *m, struct err *e);
void writer_deinit(struct model *m);

/* On the coordinator: from now on that session alone writes. h, of the answer to its DEFINE, says
 * so to its node. It may be told again: the answer before was not waited for. */
void writer_grant(struct model *m, const struct caller *to, struct wire_head *h);
/* On the node of a session whose DEFINE was answered with h: takes it down, and out of h. */
void writer_granted(struct model *m, const struct session *t, struct wire_head *h);
bool writer_is(const struct model *m, const struct caller *a);
bool writer_free(const struct model *m); /* On the coordinator: nobody writes. */
/* That session ended, or the link to its node did (session 0). true: it was the writer. */
bool writer_gone(struct model *m, uint16_t node, uint64_t session);
void writer_reset(struct model *m); /* The memory here was reset. */

/* Puts the number of t's grant into h; false: it has none. */
bool writer_stamp(const struct model *m, const struct session *t, struct wire_head *h);
/* May a WRITE or SEAL with h be carried out here? SHARD_BUSY: the text names who writes, or this
 * node clears its memory still, of a restore. SHARD_BAD_STATE: nobody does; SHARD_STALE: somebody
 * else has begun since. */
enum shard_status writer_check(struct model *m, const struct wire_head *h, struct err *e);
/* The same before the memory here is counted for a seal. */
enum shard_status writer_turn(struct model *m, struct writer_grant g, struct err *e);
/* Before a WRITE that may be carried out here: what an older grant left in the chunk goes. */
void writer_touch(struct model *m, uint32_t chunk);
bool writer_void(const struct model *m, uint32_t chunk); /* It is of an older grant. */

#endif
