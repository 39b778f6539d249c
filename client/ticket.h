/* SPDX-License-Identifier: Apache-2.0 */
/* ticket.h: numbers that stand for what a caller may wait for. */
#ifndef SHARD_CLIENT_TICKET_H
#define SHARD_CLIENT_TICKET_H

#include "handle.h"

/* A number that is done already, for a push or a save. The wait for a save is in ckpt.c. */
shard_ticket ticket_done_now(struct shard_model *m);
/* The next number. It is done when ready() says so, and so are all before it. NULL if MODEL_TICKETS
 * are waiting. */
struct ticket *ticket_new(struct shard_model *m, ticket_ready_fn ready);
/* Checks which tickets have become ready. */
void ticket_settle(struct shard_model *m);
/* Settles, and checks this ticket even if older ones still wait. */
bool ticket_is_done(struct shard_model *m, shard_ticket no);
/* The model was rolled back, or the connection broke, and what tickets wait for will not come. They
 * end as that status. */
void ticket_void(struct shard_model *m, enum shard_status status);
/* The trainer leaves. It waits for nothing more, and all tickets count as done. */
void ticket_drop(struct shard_model *m);
/* How a done ticket ended: SHARD_OK, or what ticket_void() said, with its sentence. */
enum shard_status ticket_end(const struct shard_model *m, shard_ticket no);
/* Without the lock. False: if the ticket is done, it ended as SHARD_OK. */
bool ticket_may_be_void(const struct shard_model *m, shard_ticket no);

#endif
