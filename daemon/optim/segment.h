/* SPDX-License-Identifier: Apache-2.0 */
/* segment.h: a chunk's intersection with one tensor. Kernels run over segments: what lies between them is padding, which is neither
 * read nor written. A caller adds at the element offset itself: kernels take plain pointers and n. */
#ifndef SHARD_OPTIM_SEGMENT_H
#define SHARD_OPTIM_SEGMENT_H

#include <stdint.h>

struct segment {
	uint32_t start; /* element within the chunk, a multiple of 64 */
	uint32_t n;     /* elements, at least 1 */
	uint32_t group; /* index of the optim_args that apply */
};

#endif
