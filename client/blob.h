/* SPDX-License-Identifier: Apache-2.0 */
/* blob.h: what this trainer keeps with its steps. */
#ifndef SHARD_CLIENT_BLOB_H
#define SHARD_CLIENT_BLOB_H

#include "handle.h"

void blob_ready(struct shard_model *m, Shard__Ready *r); /* READY is being made: the blob goes with it if it was set */
void blob_decided(struct shard_model *m, uint64_t step); /* with that step */
void blob_drop(struct shard_model *m);                   /* rolled back: what was set is of a step that is gone */

#endif
