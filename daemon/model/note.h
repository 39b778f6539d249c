/* SPDX-License-Identifier: Apache-2.0 */
/* note.h: what a model's life leaves in the log for who replays it. */
#ifndef SHARD_NOTE_H
#define SHARD_NOTE_H

#include "core/core.h"

struct model;

/* A line when who trains is not who trained before: the step it begins with, and the nodes of the
 * ranks in rank order, as nodes=a:2,b:1. The last such line at or below a step is the world that
 * the step was decided in: `reference --history` reads it. */
void note_world(const struct model *m, const struct core_world *w);

#endif
