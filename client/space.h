/* SPDX-License-Identifier: Apache-2.0 */
/* space.h: where each tensor lies in the model's element space and which chunks it touches. Made from a shard_spec that was
 * checked, or from what the daemon says; never changes afterwards, so any thread may read it. */
#ifndef SHARD_SPACE_H
#define SHARD_SPACE_H

#include "base/status.h"

#include "shard.pb-c.h"

#include <stdbool.h>

#define SPACE_ALIGN     64u /* elements: every tensor starts at a multiple */
#define SPACE_ELEMS_MAX (1ull << 44)
#define SPACE_CHUNK_MIN 1024u
#define SPACE_CHUNK_MAX (1u << 26)

struct space_tensor {
	const char *name;
	uint64_t offset, numel; /* elements */
	uint64_t shape[8];
	uint32_t ndim, group, flags;
};

struct space {
	char name[65];
	struct space_tensor *tensors;
	char *names;                                            /* memory of all names */
	uint32_t tensors_nr, groups_nr, chunk_elems, chunks_nr; /* groups_nr: at least 1 */
	uint64_t elems;                                         /* of the element space: a multiple of SPACE_ALIGN */
	enum shard_dtype image, grad;
	uint32_t *chunk_tensor; /* [chunks_nr] first tensor that touches the chunk */
};

/* What a caller can get wrong, before anything is sent: names, shapes, groups, dtypes, reserved fields. */
enum shard_status space_check(const struct shard_spec *s, struct err *e);
enum shard_status space_init(struct space *l, const struct shard_spec *s, struct err *e); /* s passed space_check() */
enum shard_status space_chunks(struct space *l, uint32_t chunk_elems, struct err *e);     /* when the daemon said how large */
/* Both, of a model that the daemon describes; what it got wrong is SHARD_PROTOCOL. */
enum shard_status space_init_wire(struct space *l, const Shard__Spec *s, struct err *e);
void space_deinit(struct space *l);
uint64_t space_chunk_elems(const struct space *l,
			   uint32_t chunk); /* the last one may be shorter, still a multiple of SPACE_ALIGN */
uint64_t space_piece(const struct space *l, uint64_t at, uint64_t end); /* elements of [at, end) that are in at's chunk */
/* SHARD_RANGE unless tensor exists and [first, first + count) is inside it and not empty. */
enum shard_status space_range(const struct space *l, const char *what, uint32_t tensor, uint64_t first, uint64_t count,
			      struct err *e);
bool space_find(const struct space *l, const char *name, uint32_t *tensor);

#endif
