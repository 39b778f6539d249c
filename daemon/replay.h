/* SPDX-License-Identifier: Apache-2.0 */
/* replay.h: computes steps again from a checkpoint, a history and the gradients, and compares the
 * result with later checkpoints. `shardctl replay` starts shardd for it, because the kernels are
 * here. */
#ifndef SHARD_REPLAY_H
#define SHARD_REPLAY_H

#include "base/status.h"

#include <stdint.h>

#define REPLAY_CHECKPOINTS_MAX 16

struct replay_conf {
	const char *history;   /* The output of `shardctl history NAME --json`, of any nodes. */
	const char *from;      /* The folder of a checkpoint, as DIR/global_step12. */
	const char *gradients; /* The folder with step12-rank0.safetensors and so on. */
	const char *compare[REPLAY_CHECKPOINTS_MAX]; /* Later checkpoints, in any order. */
	uint32_t compare_nr;
};

struct replay_done {
	uint64_t from, to, applied, skipped, elements; /* Steps, and elements that were equal. */
};

/* SHARD_MISMATCH: an element differs, or two nodes have different records of a step, or the
 * gradients are not those of the history, and e says which. SHARD_NOT_FOUND: a record, a file or a
 * tensor is missing. */
enum shard_status replay(const struct replay_conf *conf, struct replay_done *done, struct err *e);

/* The words behind `shardd --replay`: [--json] HISTORY FROM GRADIENTS CHECKPOINT... Returns the
 * exit code of shardctl. */
int replay_main(int argc, char **argv);

#endif
