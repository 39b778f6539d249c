/* SPDX-License-Identifier: Apache-2.0 */
/* layout.h: where a model's tensors lie in its element space, and how chunks cut them into segments. Made once from what a trainer
 * sent, which is checked here; read-only after that. */
#ifndef SHARD_STORE_LAYOUT_H
#define SHARD_STORE_LAYOUT_H

#include "base/status.h"
#include "optim/segment.h"

#include <stdbool.h>

#define LAYOUT_ALIGN       64 /* elements: every tensor starts at a multiple */
#define LAYOUT_TENSORS_MAX (1u << 20)
#define LAYOUT_ELEMS_MAX   (1ull << 44)
#define LAYOUT_CHUNKS_MAX  (1u << 20)
#define LAYOUT_DIMS_MAX    8
#define LAYOUT_NAME_MAX    255 /* bytes of a tensor's name */

struct layout_tensor {
	const char *name;
	uint64_t offset, numel; /* elements */
	uint64_t shape[LAYOUT_DIMS_MAX];
	uint32_t ndim, group, flags;
};

struct layout {
	uint32_t tensors_nr, chunks_nr, chunk_elems, segments_nr;
	uint64_t numel; /* sum over tensors, padding not counted */
	uint64_t elems; /* end of the element space: a multiple of LAYOUT_ALIGN */
	struct layout_tensor *tensor;
	struct segment *segment;  /* [segments_nr] in element order; a frozen tensor has segments too */
	uint32_t *segment_tensor; /* [segments_nr] */
	uint32_t *chunk_segment;  /* [chunks_nr + 1] first segment of a chunk */
};

/* Copies what it needs. Refuses: no tensors, a bad or repeated name, a dimension of 0, more than the limits, a group >= groups_nr
 * (groups_nr 0: only group 0), unknown flags, reserved fields that are not zero. */
enum shard_status layout_init(struct layout **out, const struct shard_tensor *tensors, uint32_t tensors_nr, uint32_t groups_nr,
			      uint32_t chunk_elems, struct err *e);
void layout_free(struct layout **l);

uint32_t layout_chunk_elems(const struct layout *l, uint32_t chunk); /* the last one may be shorter; a multiple of 64 */
uint64_t layout_chunk_start(const struct layout *l, uint32_t chunk); /* element */
bool layout_frozen(const struct layout *l, uint32_t segment);
bool layout_trained(const struct layout *l, uint32_t chunk); /* has an element that is not frozen */
/* Tensor that holds this element, or UINT32_MAX: padding or beyond the end. */
uint32_t layout_tensor_at(const struct layout *l, uint64_t element);
/* [first, first + count) inside one tensor and count > 0? else SHARD_RANGE with what is valid. */
enum shard_status layout_range(const struct layout *l, uint64_t first, uint64_t count, struct err *e);
/* First difference: tensor, field, both values; SHARD_OK if there is none. */
enum shard_status layout_compare(const struct layout *here, const struct layout *there, const char *there_name, struct err *e);

#endif
