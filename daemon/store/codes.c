/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of coded gradients and images, which data/ makes with the model and which stay as they
 * are. The codes themselves lie in the store. Sizes follow from the layout alone, so that all nodes
 * have the same. Only memory can lack. */
#include "store/codes.h"

#include "base/check.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define LINE_BYTES 64u /* The codes of each chunk begin at one. */
static_assert(LAYOUT_ALIGN >= QUANT_BLOCK_MIN, "codes of two-byte elements are fewer bytes");

/* The bytes of the coded form of a chunk. at: from where on each segment of the chunk lies, or
 * NULL. Tensors begin at multiples of LAYOUT_ALIGN elements, and a block has at least so many. */
static uint32_t chunk_bytes(const struct layout *l, const struct quant *q, enum shard_dtype dt,
			    uint32_t chunk, uint32_t *at)
{
	uint64_t bytes = 0;

	for (uint32_t s = l->chunk_segment[chunk]; s < l->chunk_segment[chunk + 1]; s++) {
		if (at != NULL)
			at[s] = (uint32_t)bytes;
		if (!layout_frozen(l, s))
			bytes += quant_bytes(q, l->segment[s].n);
	}
	CHECK(bytes <= (uint64_t)layout_chunk_elems(l, chunk) * dtype_bytes(dt));
	return (uint32_t)bytes;
}

static uint64_t lines(uint64_t bytes)
{
	return (bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
}

uint64_t codes_bytes(const struct layout *l, const struct quant *q, enum shard_dtype dt)
{
	uint64_t all = 0;

	for (uint32_t c = 0; q->kind != QUANT_NONE && c < l->chunks_nr; c++)
		all += lines(chunk_bytes(l, q, dt, c, NULL));
	return all;
}

enum shard_status codes_init(struct codes *c, const struct layout *l, const struct quant *q,
			     enum shard_dtype dt, struct err *e)
{
	uint64_t all = 0;

	*c = (struct codes){.quant = *q};
	if (q->kind == QUANT_NONE)
		return SHARD_OK;
	c->at = calloc(l->segments_nr, sizeof(*c->at));
	c->bytes = calloc(l->chunks_nr, sizeof(*c->bytes));
	c->from = calloc(l->chunks_nr, sizeof(*c->from));
	if (c->at == NULL || c->bytes == NULL || c->from == NULL) {
		codes_free(c);
		return err_set(e, SHARD_SYSTEM, "no memory for the codes of %u chunks",
			       l->chunks_nr);
	}
	for (uint32_t i = 0; i < l->chunks_nr; i++) {
		c->from[i] = all;
		c->bytes[i] = chunk_bytes(l, q, dt, i, c->at);
		all += lines(c->bytes[i]);
	}
	return SHARD_OK;
}

uint64_t codes_span(const struct codes *c, uint32_t first, uint32_t chunks)
{
	uint32_t last = first + chunks - 1;

	CHECK(chunks > 0 && last >= first);
	return c->from[last] + c->bytes[last] - c->from[first];
}

void codes_free(struct codes *c)
{
	free(c->at);
	free(c->bytes);
	free(c->from);
	memset(c, 0, sizeof(*c));
}
