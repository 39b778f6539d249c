/* SPDX-License-Identifier: Apache-2.0 */
/* voters.h: which nodes should vote where a majority elects the coordinator (membership = quorum).
 * Three nodes of the list do, or five of five and more: an even number tolerates no more losses.
 * Pure. */
#ifndef SHARD_MODEL_VOTERS_H
#define SHARD_MODEL_VOTERS_H

#include "cluster/source.h"

#include <stdbool.h>
#include <stdint.h>

struct voters {
	uint8_t uuid[MEMBER_VOTERS_MAX][MEMBER_UUID_BYTES];
	uint32_t nr;
};

bool voters_has(const struct voters *v, const uint8_t *uuid);
/* node[i] is the uuid of node i of nodes_nr, if bit i of known is set: it is linked. gone: nodes
 * that have been away for lost_timeout. Returns who should become a voter (*joins), or be none any
 * more, or NULL: nothing is to change, or not yet. One change at a time. A voter that is gone, or
 * whose node has another uuid now, because its state folder was lost or the node was replaced,
 * leaves when another one has joined for it. That is only recognised while all other nodes are
 * known. Of five voters one that is gone leaves at once: the four tolerate as many losses. */
const uint8_t *voters_next(const struct voters *v, const uint8_t (*node)[MEMBER_UUID_BYTES],
			   uint64_t known, uint64_t gone, uint32_t nodes_nr, bool *joins);

#endif
