/* SPDX-License-Identifier: Apache-2.0 */
/* blob.h: what this trainer keeps with its steps. */
#ifndef SHARD_CLIENT_BLOB_H
#define SHARD_CLIENT_BLOB_H

#include "handle.h"

/* READY is being made: the blob goes with it if one was set. */
void blob_ready(struct shard_model *m, Shard__Ready *r);
/* The step was decided, and a blob that was set for it with it. */
void blob_decided(struct shard_model *m, uint64_t step);
/* The model was rolled back: what was set is of a step that is gone. */
void blob_drop(struct shard_model *m);

#endif
