/* SPDX-License-Identifier: Apache-2.0 */
/* save.h: how a save is begun, by a request or without one. */
#ifndef SHARD_CKPT_SAVE_H
#define SHARD_CKPT_SAVE_H

#include "ckpt/ckpt.h"

struct caller;

/* What is asked for. Texts may be NULL or empty. */
struct ckpt_wish {
	const char *dir;     /* Default: the model's own. */
	const char *tag;     /* Default: global_step and the step. */
	const char *client;  /* A folder of the one who asks, for the checkpoint. Default: none. */
	uint32_t client_uid; /* Who that is. */
	uint32_t keep;       /* Checkpoints to keep. 0: all. */
	bool fresh;          /* Replaces no other step. */
	bool anywhere;       /* Who asks may name any folder. */
};

/* a: who gets the answer. NULL: nobody does. */
enum shard_status ckpt_save_begin(struct model *m, const struct caller *a,
				  const struct ckpt_wish *wish, struct err *e);

#endif
