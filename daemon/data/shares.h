/* SPDX-License-Identifier: Apache-2.0 */
/* shares.h: gradients that the ranks of a node have reduced among themselves. Of such a tensor each
 * rank pushes a share, the shares of a node cover it exactly once, and the node adds nothing up.
 * contrib.c calls it. ../proto/wire/README.md, "Shares", has the rules. */
#ifndef SHARD_DATA_SHARES_H
#define SHARD_DATA_SHARES_H

#include "shard.pb-c.h"
#include "wire/layout.h"

struct model;

void shares_begin(struct model *m); /* Forgets everything. The ranks of the attempt are set. */
/* Takes what a PUSH of local rank i says of its shares of a chunk. Its absent tensors are marked.
 * Where a share is empty, the segment is marked as absent, too. SHARD_PROTOCOL: they are no shares.
 */
enum shard_status shares_take(struct model *m, uint32_t chunk, uint32_t i, const Shard__Push *body,
			      struct err *e);
/* Every local rank has closed the chunk. False: their shares do not fit, and the layer above was
 * told. */
bool shares_settle(struct model *m, uint32_t chunk);

#endif
