/* SPDX-License-Identifier: Apache-2.0 */
/* push.h: the arena, and chunks on their way to the daemon. */
#ifndef SHARD_CLIENT_PUSH_H
#define SHARD_CLIENT_PUSH_H

#include "handle.h"

/* At join: memory for the bookkeeping. */
enum shard_status push_init(struct shard_model *m, struct err *e);
/* A step begins: the arena is the trainer's again. */
void push_begin(struct shard_model *m);
/* The attempt is over: what is not sent need not be. */
void push_drop(struct shard_model *m);
/* vote_skip: every chunk that is not complete goes as wholly absent. */
void push_rest_absent(struct shard_model *m);
/* READY follows the last chunk. */
void push_ready(struct shard_model *m, bool skip, const char *why);
/* Sends what may go and has room. */
void push_flush(struct shard_model *m);
/* The same for all models. True: the stream had no room for all of it. */
bool push_flush_all(struct shard_client *c);

#endif
