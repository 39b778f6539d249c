/* SPDX-License-Identifier: Apache-2.0 */
/* layout.h: where a model's tensors lie in its element space, and how chunks cut them into
 * segments. All tensors lie one after the other, and each starts at a multiple of LAYOUT_ALIGN.
 * Tensors whose image has another dtype than the model's come after all others, by dtype, and each
 * dtype begins with a chunk of its own. So every chunk has one image dtype, and what lies before
 * such a chunk is a gap that no chunk has. The library and every node make the layout from the same
 * list, which is checked here. Any thread may read a layout, because it does not change after it
 * was cut. A tensor with a dimension of 0 has a place, which may be that of the next tensor or the
 * end of the space, and no segment. */
#ifndef SHARD_WIRE_LAYOUT_H
#define SHARD_WIRE_LAYOUT_H

#include "base/status.h"
#include "wire/dtype.h"

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
	uint64_t offset, numel; /* In elements. The offset is final when the layout is cut. */
	uint64_t shape[LAYOUT_DIMS_MAX];
	uint32_t ndim;
	uint32_t group; /* Index of its settings. */
	uint32_t flags; /* SHARD_FROZEN or 0. */
	enum shard_dtype image;
};

struct layout_region {       /* The chunks of one image dtype. */
	uint32_t chunk;      /* The first one. */
	uint64_t first, end; /* The first element, and that behind the last one. */
	uint64_t byte;       /* Where its image begins, in bytes from that of element 0. */
	enum shard_dtype image;
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
	char *names;            /* Memory of all names. */
	enum shard_dtype image; /* That of the model. */
	/* The fields below are zero until layout_cut(). */
	uint32_t chunk_elems, chunks_nr, segments_nr;
	uint64_t stored;      /* The elements of all chunks: elems without the gaps. */
	uint64_t image_bytes; /* Of all chunks. */
	struct layout_region region[DTYPE_NR];
	uint32_t regions_nr;
	uint32_t *order; /* [tensors_nr] The tensors in element order. */
	/* [segments_nr] in element order. Frozen tensors have segments, too. */
	struct segment *segment;
	uint32_t *segment_tensor; /* [segments_nr] index of the tensor. */
	uint32_t *chunk_segment;  /* [chunks_nr + 1] first segment of each chunk. */
};

/* True for 1 to LAYOUT_MODEL_NAME_MAX characters of [a-z0-9._-]. False for NULL. */
bool layout_model_name_ok(const char *name);
/* The same for the name of a model that is made now. A model that is there keeps its name. */
bool layout_model_name_new(const char *name);
#define LAYOUT_MODEL_NAME_NEW                                                                      \
	"1 to 64 of a-z 0-9 . _ - that do not begin with -, which commands take for an option"
/* The product of a shape, which is 0 if a dimension is. False: without those of 0 it is more than
 * LAYOUT_ELEMS_MAX. */
bool layout_numel(uint64_t *numel, const uint64_t *shape, size_t ndim);
/* How many chunks a tensor lies in that begins at element first. */
uint64_t layout_pieces(uint64_t first, uint64_t numel, uint32_t chunk_elems);
/* Copies what it needs from tensors. It refuses an empty list, a bad or repeated name, no element
 * at all, more than the limits, a group >= groups_nr, unknown flags, an unknown dtype, and reserved
 * fields that are not zero. With groups_nr 0 only group 0 is valid. image is the model's, which is
 * valid. With chunk_elems 0 the caller calls layout_cut() later. */
enum shard_status layout_init(struct layout **out, const struct shard_tensor *tensors,
			      uint32_t tensors_nr, uint32_t groups_nr, enum shard_dtype image,
			      uint32_t chunk_elems, struct err *e);
/* Messages and manifests have the image dtype of a tensor, if it is not the model's, in bits 8 and
 * 9 of its flags. A release that knows no such dtypes refuses these flags and names the tensor. */
uint32_t layout_flags(const struct shard_tensor *t, enum shard_dtype model);
/* Sets .flags and .image of t. */
void layout_flags_take(struct shard_tensor *t, uint32_t flags);
/* Fills the fields from chunk_elems on that only depend on how many elements there are of each
 * image dtype, each tensor aligned: elems_of[dtype]. False: there are too many chunks. */
bool layout_regions(struct layout *l, enum shard_dtype image, const uint64_t elems_of[DTYPE_NR + 1],
		    uint32_t chunk_elems);
/* May be called once. chunk_elems is a power of two, at least LAYOUT_ALIGN. SHARD_RANGE: there
 * would be more than LAYOUT_CHUNKS_MAX chunks. After a failure the layout can only be freed. */
enum shard_status layout_cut(struct layout *l, uint32_t chunk_elems, struct err *e);
void layout_free(struct layout **l);

/* The last chunk of a region may be shorter than the others, but is also a multiple of
 * LAYOUT_ALIGN. */
uint32_t layout_chunk_elems(const struct layout *l, uint32_t chunk);
uint64_t layout_chunk_start(const struct layout *l, uint32_t chunk); /* First element. */
/* The elements of all chunks before it, without the gaps. */
uint64_t layout_stored_before(const struct layout *l, uint32_t chunk);
/* How many elements of [at, end) lie in the chunk of `at`. */
uint64_t layout_piece(const struct layout *l, uint64_t at, uint64_t end);
bool layout_frozen(const struct layout *l, uint32_t segment);
/* Sets *segment to that of the tensor in the chunk. False: it has no element there. The search
 * begins at *segment, one of the chunk, and goes around. So all searches for a list in the order of
 * segments are one pass. */
bool layout_find_segment(const struct layout *l, uint32_t chunk, uint32_t tensor,
			 uint32_t *segment);
/* The image of a chunk: the dtype of its elements, the size of one, and the bytes of a run of
 * chunks. */
enum shard_dtype layout_image(const struct layout *l, uint32_t chunk);
uint32_t layout_image_elem(const struct layout *l, uint32_t chunk);
uint64_t layout_image_bytes(const struct layout *l, uint32_t chunk, uint32_t chunks);
/* Where the image of an element lies, in bytes from that of element 0. The element may be the end
 * of the element space, but not in the middle of a gap. */
uint64_t layout_image_at(const struct layout *l, uint64_t element);
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
