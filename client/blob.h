/* SPDX-License-Identifier: Apache-2.0 */
/* blob.h: the blobs that this trainer keeps with its steps. */
#ifndef SHARD_CLIENT_BLOB_H
#define SHARD_CLIENT_BLOB_H

#include "handle.h"

/* READY is being made. The blob goes with it if one was set. */
void blob_ready(struct shard_model *m, Shard__Ready *r);
/* The step was decided, and with it a blob that was set for it. */
void blob_decided(struct shard_model *m, uint64_t step);
/* The model was rolled back. The blob was of a step that no longer exists. */
void blob_drop(struct shard_model *m);

#endif
