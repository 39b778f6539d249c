/* SPDX-License-Identifier: Apache-2.0 */
/* note.h: lines of the log from which a training run can be replayed. */
#ifndef SHARD_NOTE_H
#define SHARD_NOTE_H

#include "core/core.h"

struct model;

/* Logs a line if the world differs from the one before: the first step of the new world, and the
 * nodes of its ranks in rank order, as nodes=a:2,b:1. `reference --history` reads these lines. A
 * step was decided in the world of the last line at or before it. */
void note_world(const struct model *m, const struct core_world *w);
/* Puts into the model's .why who left and who joined since the attempt before, unless it says
 * already why that ended. */
void note_change(struct model *m, const struct core_world *w);
/* Is this why an attempt ended: a trainer left by itself? */
bool note_left(const char *why);
/* Logs which member the next view is without, because it has no link to others. */
void note_cut(struct model *m, const struct core_action *a);

#endif
