/* SPDX-License-Identifier: Apache-2.0 */
/* codes.h: gradients or images as codes (optim/quant.h), chunk by chunk as they travel to other
 * nodes. The codes of a chunk are those of its segments, one segment after the other. A frozen
 * segment has none. They take fewer bytes than the elements, so where there is room for a chunk's
 * gradient there is room for its codes, too. */
#ifndef SHARD_STORE_CODES_H
#define SHARD_STORE_CODES_H

#include "optim/quant.h"
#include "wire/layout.h"

struct codes {
	struct quant quant; /* QUANT_NONE: no chunk is coded, and the rest is NULL. */
	uint32_t *at;       /* [segments_nr] From where on in the coded form of its chunk. */
	uint32_t *bytes;    /* [chunks_nr] Of the coded form. */
	uint64_t *from;     /* [chunks_nr] From where on it lies among those of all chunks. */
};

/* The bytes of the codes of all chunks of a model. dt: the smallest dtype of what is coded. */
uint64_t codes_bytes(const struct layout *l, const struct quant *q, enum shard_dtype dt);
enum shard_status codes_init(struct codes *c, const struct layout *l, const struct quant *q,
			     enum shard_dtype dt, struct err *e);
void codes_free(struct codes *c); /* NULL pointers are fine. */
/* The bytes from where those of chunk `first` begin to where those of the last of so many end. */
uint64_t codes_span(const struct codes *c, uint32_t first, uint32_t chunks);

#endif
