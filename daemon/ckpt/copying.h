/* SPDX-License-Identifier: Apache-2.0 */
/* copying.h: [daemon] checkpoint_hook, a program that copies checkpoints elsewhere. The coordinator
 * runs it for each complete checkpoint of a model that it has not copied yet, the newest first, and
 * then marks the checkpoint as copied. */
#ifndef SHARD_CKPT_COPYING_H
#define SHARD_CKPT_COPYING_H

#include "ckpt/checkpoint.h"

#include <time.h>

struct config;
struct copying;
struct model;
struct server;

struct copying_state {
	bool running;
	char path[CHECKPOINT_PATH_MAX]; /* The last one that was copied; empty: none was. */
	uint64_t step;
	time_t at;
	uint32_t left; /* As of the last look, with the one in hand. */
	uint64_t failures;
	char last_error[ERR_TEXT_BYTES]; /* Empty: the last run succeeded. */
};

/* Looks for what is not copied yet. The model was saved, or this node begins to coordinate. */
void copying_begin(struct model *m);
/* NULL: nothing is copied here, or this node does not coordinate. */
const struct copying_state *copying_state(const struct model *m);
/* Called before the model goes. Ends the program, and frees c when that is done. */
void copying_forget(struct copying *c);
/* This node does not coordinate any more, and another one begins to copy. Ends the program. */
void copying_resigned(struct model *m);
void copying_stop(struct server *s); /* Ends all programs. server.persists counts them. */
/* At a start: is the program there, where one is needed? */
enum shard_status copying_check(const struct config *conf, struct err *e);

#endif
