/* SPDX-License-Identifier: Apache-2.0 */
/* writer.h: which session may write the weights of a model that is not sealed. It is one session of
 * the cluster, the one whose DEFINE was answered with created=1. The coordinator grants this, and
 * numbers the grant by its own term and a count. WRITE and SEAL carry the number of their session's
 * grant. Each node knows under which grant its memory was written. Under a newer grant that memory
 * counts as unwritten, and an older grant is refused. So a seal never mixes weights of two writers.
 * Loop thread only. */
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

/* On the coordinator: only that session may write from now on. The grant goes into h, the header of
 * the answer to its DEFINE, for its node. The same session may be granted again, if it did not wait
 * for the answer before. */
void writer_grant(struct model *m, const struct caller *to, struct wire_head *h);
/* On the node of a session whose DEFINE was answered with h: stores the grant and removes it from
 * h. */
void writer_granted(struct model *m, const struct session *t, struct wire_head *h);
bool writer_is(const struct model *m, const struct caller *a);
bool writer_free(const struct model *m); /* On the coordinator: no session may write. */
/* That session ended, or (session 0) the link to its node fell. True: it was the writer. */
bool writer_gone(struct model *m, uint16_t node, uint64_t session);
void writer_reset(struct model *m); /* This node's memory was reset. */

/* Puts the number of t's grant into h. False: t has none. */
bool writer_stamp(const struct model *m, const struct session *t, struct wire_head *h);
/* Checks that a WRITE or SEAL with h may be carried out here. SHARD_BUSY: the error names the
 * writer, or this node is still clearing its memory. SHARD_BAD_STATE: no session may write.
 * SHARD_STALE: there is a newer grant. SHARD_LOST: the weights of that generation are lost. */
enum shard_status writer_check(struct model *m, const struct wire_head *h, struct err *e);
/* The same for grant g alone, before this node's memory is counted for a seal. */
enum shard_status writer_turn(struct model *m, struct writer_grant g, struct err *e);
/* Before a WRITE is carried out: clears the chunk if an older grant wrote it. */
void writer_touch(struct model *m, uint32_t chunk);
bool writer_void(const struct model *m, uint32_t chunk); /* An older grant wrote it. */

#endif
