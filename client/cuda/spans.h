/* SPDX-License-Identifier: Apache-2.0 */
/* spans.h: which elements were pushed in a step. The arena must not be written once it was pushed,
 * so a second push of an element has to be refused before its copy is queued, and not when libshard
 * sees it. Whoever calls has a lock. */
#ifndef SHARD_CUDA_SPANS_H
#define SHARD_CUDA_SPANS_H

#include <stdbool.h>
#include <stdint.h>

struct span {
	uint64_t first, end;
	uint32_t next; /* The next one of the tensor, plus 1. 0: none. */
};

struct spans {
	struct span *span;
	uint32_t nr, cap;
	uint32_t *head; /* [tensors] the newest span of each, plus 1. */
	uint32_t tensors;
};

bool spans_init(struct spans *s, uint32_t tensors); /* False: no memory. */
void spans_deinit(struct spans *s);
void spans_reset(struct spans *s);
/* Makes room for one more. False: no memory. */
bool spans_room(struct spans *s);
bool spans_overlap(const struct spans *s, uint32_t tensor, uint64_t first, uint64_t end);
/* There is room, and no overlap. */
void spans_add(struct spans *s, uint32_t tensor, uint64_t first, uint64_t end);

#endif
