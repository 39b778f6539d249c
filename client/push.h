/* SPDX-License-Identifier: Apache-2.0 */
/* push.h: the arena, and the sending of chunks to the daemon. */
#ifndef SHARD_CLIENT_PUSH_H
#define SHARD_CLIENT_PUSH_H

#include "handle.h"

/* At join: makes the memory of the bookkeeping. */
enum shard_status push_init(struct shard_model *m, struct err *e);
/* A step begins, and the trainer may write the arena. */
void push_begin(struct shard_model *m);
/* Right after push_begin(): as shard_push_none() of every tensor. */
void push_absent(struct shard_model *m);
/* The attempt is over. What is not sent is dropped. */
void push_drop(struct shard_model *m);
/* vote_skip: every chunk that is not complete is sent as wholly absent. */
void push_rest_absent(struct shard_model *m);
/* READY follows the last chunk. */
void push_ready(struct shard_model *m, bool skip, const char *why);
/* Sends what may be sent and has room. */
void push_flush(struct shard_model *m);
/* The same for all models. True: the stream had no room for all of it. */
bool push_flush_all(struct shard_client *c);

#endif
