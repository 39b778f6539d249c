/* SPDX-License-Identifier: Apache-2.0 */
/* layout.h: where a model's tensors lie in its element space, and how chunks cut them into
 * segments. All tensors lie one after the other, and each starts at a multiple of LAYOUT_ALIGN. The
 * library and every node make it from the same list, which is checked here. It never changes
 * afterwards, so any thread may read it. */
#ifndef SHARD_WIRE_LAYOUT_H
#define SHARD_WIRE_LAYOUT_H

#include "base/status.h"

#include <stdbool.h>

#define LAYOUT_ALIGN          64 /* elements: every tensor starts at a multiple */
#define LAYOUT_TENSORS_MAX    (1u << 20)
#define LAYOUT_ELEMS_MAX      (1ull << 44)
#define LAYOUT_CHUNKS_MAX     (1u << 20)
#define LAYOUT_DIMS_MAX       8
#define LAYOUT_NAME_MAX       255 /* bytes of a tensor's name */
#define LAYOUT_MODEL_NAME_MAX 64  /* bytes of a model's name */

struct layout_tensor {
	const char *name;
	uint64_t offset, numel; /* elements */
	uint64_t shape[LAYOUT_DIMS_MAX];
	uint32_t ndim;
	uint32_t group; /* index of its settings */
	uint32_t flags; /* SHARD_FROZEN */
};

/* A chunk's intersection with one tensor. Kernels run over segments. What lies between them is
 * padding, which is neither read nor written. A caller adds the element offset itself, because
 * kernels take plain pointers and n. */
struct segment {
	uint32_t start; /* element within the chunk, a multiple of LAYOUT_ALIGN */
	uint32_t n;     /* elements, at least 1 */
	uint32_t group; /* index of the optim_args that apply */
};

struct layout {
	uint32_t tensors_nr;
	uint64_t numel; /* sum over the tensors; padding is not counted */
	uint64_t elems; /* end of the element space: a multiple of LAYOUT_ALIGN */
	struct layout_tensor *tensor;
	char *names; /* memory of all names */
	/* All zero until the space is cut. */
	uint32_t chunk_elems, chunks_nr, segments_nr;
	struct segment *segment; /* [segments_nr] in element order; a frozen tensor has some, too */
	uint32_t *segment_tensor; /* [segments_nr] index of the tensor */
	uint32_t *chunk_segment;  /* [chunks_nr + 1] first segment of a chunk */
};

/* 1 to LAYOUT_MODEL_NAME_MAX of [a-z0-9._-]. NULL is none. */
bool layout_model_name_ok(const char *name);
/* Copies what it needs. Refuses: no tensors, a bad or repeated name, a dimension of 0, more than
 * the limits, a group >= groups_nr (groups_nr 0: only group 0), unknown flags, reserved fields that
 * are not zero. chunk_elems 0: layout_cut() follows when it is known. */
enum shard_status layout_init(struct layout **out, const struct shard_tensor *tensors,
			      uint32_t tensors_nr, uint32_t groups_nr, uint32_t chunk_elems,
			      struct err *e);
/* Once. chunk_elems is a power of two, at least LAYOUT_ALIGN. SHARD_RANGE: more than
 * LAYOUT_CHUNKS_MAX chunks. After a failure the layout can only be freed. */
enum shard_status layout_cut(struct layout *l, uint32_t chunk_elems, struct err *e);
void layout_free(struct layout **l);

/* The last chunk may be shorter than the others; it is still a multiple of LAYOUT_ALIGN. */
uint32_t layout_chunk_elems(const struct layout *l, uint32_t chunk);
uint64_t layout_chunk_start(const struct layout *l, uint32_t chunk); /* element */
/* How many elements of [at, end) lie in the chunk of `at`. */
uint64_t layout_piece(const struct layout *l, uint64_t at, uint64_t end);
bool layout_frozen(const struct layout *l, uint32_t segment);
/* The chunk has an element that is not frozen. */
bool layout_trained(const struct layout *l, uint32_t chunk);
/* Tensor that holds this element, or UINT32_MAX: padding or beyond the end. */
uint32_t layout_tensor_at(const struct layout *l, uint64_t element);
/* SHARD_OK if [first, first + count) is inside one tensor and count > 0. Else SHARD_RANGE, and the
 * text says what is valid. */
enum shard_status layout_range(const struct layout *l, uint64_t first, uint64_t count,
			       struct err *e);
/* SHARD_OK, or SHARD_MISMATCH with the first difference: tensor, field, both values. */
enum shard_status layout_compare(const struct layout *here, const struct layout *there,
				 const char *there_name, struct err *e);

#endif
