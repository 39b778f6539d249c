/* SPDX-License-Identifier: Apache-2.0 */
/* save.h: how a save is begun, by a request or without one. */
#ifndef SHARD_CKPT_SAVE_H
#define SHARD_CKPT_SAVE_H

#include "ckpt/ckpt.h"

struct caller;

/* a: who gets the answer. NULL: nobody does. */
enum shard_status ckpt_save_begin(struct model *m, const struct caller *a, const char *dir,
				  const char *tag, uint32_t keep, bool fresh, bool anywhere,
				  struct err *e);

#endif
