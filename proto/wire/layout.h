/* SPDX-License-Identifier: Apache-2.0 */
/* layout.h: where a model's tensors lie in its element space, and how chunks cut them into
 * segments. All tensors lie one after the other, and each starts at a multiple of LAYOUT_ALIGN. The
 * library and every node make the layout from the same list, which is checked here. Any thread may
 * read a layout, because it does not change after it was cut. */
#ifndef SHARD_WIRE_LAYOUT_H
#define SHARD_WIRE_LAYOUT_H

#include "base/status.h"

#include <stdbool.h>

#define LAYOUT_ALIGN          64 /* In elements. Every tensor starts at a multiple of it. */
#define LAYOUT_TENSORS_MAX    (1u << 20)
#define LAYOUT_ELEMS_MAX      (1ull << 44)
#define LAYOUT_CHUNKS_MAX     (1u << 20)
#define LAYOUT_DIMS_MAX       8
#define LAYOUT_NAME_MAX       255 /* Bytes of a tensor's name. */
#define LAYOUT_MODEL_NAME_MAX 64  /* Bytes of a model's name. */

struct layout_tensor {
	const char *name;
	uint64_t offset, numel; /* In elements. */
	uint64_t shape[LAYOUT_DIMS_MAX];
	uint32_t ndim;
	uint32_t group; /* Index of its settings. */
	uint32_t flags; /* SHARD_FROZEN or 0. */
};

/* A chunk's intersection with one tensor. Kernels run over segments. What lies between them is
 * padding, which is neither read nor written. A caller adds the element offset itself, because
 * kernels take plain pointers and n. */
struct segment {
	uint32_t start; /* First element within the chunk, a multiple of LAYOUT_ALIGN. */
	uint32_t n;     /* Number of elements, at least 1. */
	uint32_t group; /* Index of the optim_args that apply. */
};

struct layout {
	uint32_t tensors_nr;
	uint64_t numel; /* Sum over the tensors without padding. */
	uint64_t elems; /* End of the element space, a multiple of LAYOUT_ALIGN. */
	struct layout_tensor *tensor;
	char *names; /* Memory of all names. */
	/* The fields below are zero until layout_cut(). */
	uint32_t chunk_elems, chunks_nr, segments_nr;
	/* [segments_nr] in element order. Frozen tensors have segments, too. */
	struct segment *segment;
	uint32_t *segment_tensor; /* [segments_nr] index of the tensor. */
	uint32_t *chunk_segment;  /* [chunks_nr + 1] first segment of each chunk. */
};

/* True for 1 to LAYOUT_MODEL_NAME_MAX characters of [a-z0-9._-]. False for NULL. */
bool layout_model_name_ok(const char *name);
/* Copies what it needs from tensors. It refuses an empty list, a bad or repeated name, a dimension
 * of 0, more than the limits, a group >= groups_nr, unknown flags, and reserved fields that are not
 * zero. With groups_nr 0 only group 0 is valid. With chunk_elems 0 the caller calls layout_cut()
 * later. */
enum shard_status layout_init(struct layout **out, const struct shard_tensor *tensors,
			      uint32_t tensors_nr, uint32_t groups_nr, uint32_t chunk_elems,
			      struct err *e);
/* May be called once. chunk_elems is a power of two, at least LAYOUT_ALIGN. SHARD_RANGE: there
 * would be more than LAYOUT_CHUNKS_MAX chunks. After a failure the layout can only be freed. */
enum shard_status layout_cut(struct layout *l, uint32_t chunk_elems, struct err *e);
void layout_free(struct layout **l);

/* The last chunk may be shorter than the others, but is also a multiple of LAYOUT_ALIGN. */
uint32_t layout_chunk_elems(const struct layout *l, uint32_t chunk);
uint64_t layout_chunk_start(const struct layout *l, uint32_t chunk); /* First element. */
/* How many elements of [at, end) lie in the chunk of `at`. */
uint64_t layout_piece(const struct layout *l, uint64_t at, uint64_t end);
bool layout_frozen(const struct layout *l, uint32_t segment);
/* True if the chunk has an element that is not frozen. */
bool layout_trained(const struct layout *l, uint32_t chunk);
/* The tensor that holds this element. UINT32_MAX means padding or beyond the end. */
uint32_t layout_tensor_at(const struct layout *l, uint64_t element);
/* SHARD_OK if [first, first + count) is inside one tensor and count > 0. Otherwise SHARD_RANGE with
 * a text that says what is valid. */
enum shard_status layout_range(const struct layout *l, uint64_t first, uint64_t count,
			       struct err *e);
/* SHARD_OK, or SHARD_MISMATCH with the tensor, the field and both values of the first
 * difference. */
enum shard_status layout_compare(const struct layout *here, const struct layout *there,
				 const char *there_name, struct err *e);

#endif
