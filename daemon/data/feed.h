/* SPDX-License-Identifier: Apache-2.0 */
/* feed.h: hands the chunks of a model that are held here to its tier, a few at a time. */
#ifndef SHARD_DATA_FEED_H
#define SHARD_DATA_FEED_H

#include "data/model.h"

/* apply_fed() follows for each chunk held here, before this returns or later. The operands are
 * those of the model's record, gradients and images, which stay as they are until then. */
void feed_begin(struct model *m, enum feed_what what);
void feed_go(struct model *m);  /* Goes on. Called when there may be room. */
void feed_end(struct model *m); /* No chunk is left to be handed out. */
/* The placement has changed. Chunks that this node makes no image of any more are not handed out,
 * and .apply_left is without them. Updates and seals are over before a view is taken. */
void feed_placed(struct model *m);
/* Not every chunk of an update or a seal is handed out. */
bool feed_open(const struct model *m);
/* At a warm start, when record and gradients are those that the tensors are to have: finishes what
 * a killed process was changing. applying = false: everything had been changed. SHARD_MISMATCH: the
 * memory contradicts itself. */
enum shard_status feed_repair(struct model *m, bool applying, struct err *e);
/* For tiers: a thread or a device works for the tier of the model from feed_hold() to
 * feed_release(), so that the model stays, and then there may be room. */
void feed_hold(void *model);
void feed_release(void *model);

#endif
