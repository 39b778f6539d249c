/* SPDX-License-Identifier: Apache-2.0 */
/* sizes.h: bytes of each mapping of a store; what store.c maps and budget.c adds up. Private to
 * this folder. */
#ifndef SHARD_STORE_SIZES_H
#define SHARD_STORE_SIZES_H

#include "store/store.h"

struct store_sizes {
	uint64_t held_elems;    /* of the chunks that this node holds */
	uint64_t trained_elems; /* of those with an element that is not frozen */
	uint64_t master,
		moment;   /* fp32; moment: one state tensor of the optimizer, for trained_elems */
	uint64_t slot;    /* one other node's contribution to them */
	uint64_t reduced; /* gradients of chunks held here, as they are judged */
	uint64_t sums;    /* local sums for all other chunks; 0: one local trainer at most */
	uint64_t images;  /* max_staleness, parked: of chunks held here, both images again, which
			     trainers do not see */
	uint64_t image_half,
		arena_half; /* of one image, of one gradient; max_staleness more of each */
	uint64_t image, arena;
};

void store_sizes(struct store_sizes *s, const struct store_conf *conf);

#endif
