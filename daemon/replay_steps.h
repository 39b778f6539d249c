/* SPDX-License-Identifier: Apache-2.0 */
/* replay_steps.h: the steps that a history has between two checkpoints, for replay.c. */
#ifndef SHARD_REPLAY_STEPS_H
#define SHARD_REPLAY_STEPS_H

#include "base/status.h"

#include <jansson.h>
#include <stdint.h>

struct replay_steps; /* Opaque. */

/* Reads and merges the lines of a file. SHARD_MISMATCH: two nodes have different records of a
 * step. SHARD_PROTOCOL: a line is no entry. */
enum shard_status replay_steps_read(struct replay_steps **out, const char *path, struct err *e);
void replay_steps_free(struct replay_steps **s);
/* The record that leads to `step` on the way to the newest generation, behind `from`. A model that
 * was restored to an older step has several of one number. The last one counts, but a step up to
 * which it was restored is of the generation before. NULL: no node has it. */
const json_t *replay_steps_at(const struct replay_steps *s, uint64_t step, struct err *e);

#endif
