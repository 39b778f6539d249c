/* SPDX-License-Identifier: Apache-2.0 */
/* push.h: the arena, and chunks on their way to the daemon. */
#ifndef SHARD_CLIENT_PUSH_H
#define SHARD_CLIENT_PUSH_H

#include "handle.h"

enum shard_status push_init(struct shard_model *m, struct err *e);  /* at join */
void push_begin(struct shard_model *m);                             /* the arena is the trainer's again */
void push_drop(struct shard_model *m);                              /* the attempt is over: what is not sent needs not be */
void push_rest_absent(struct shard_model *m);                       /* vote_skip */
void push_ready(struct shard_model *m, bool skip, const char *why); /* READY, behind the last chunk */
void push_flush(struct shard_model *m);                             /* sends what may go and has room */
bool push_flush_all(struct shard_client *c);                        /* true: the stream has no room for all */

#endif
