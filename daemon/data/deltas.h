/* SPDX-License-Identifier: Apache-2.0 */
/* deltas.h: images that travel from node to node as codes of what has changed (image_codec). Only a
 * receiver that has all bytes of the image before can use them, so a primary keeps track of who has
 * what, and sends the chunk as it is to all others. The arithmetic is in
 * ../proto/wire/ARITHMETIC.md, section 2a. */
#ifndef SHARD_DATA_DELTAS_H
#define SHARD_DATA_DELTAS_H

#include "base/status.h"
#include "data/model.h"
#include "store/codes.h"

#include <stdbool.h>
#include <stdint.h>

struct record;

struct deltas { /* Of one model. */
	struct codes codes;
	/* [chunks_nr] A bit for each node that has got the chunk of the newest image. */
	uint64_t *got;
	/* The rest belongs to patches.c. [chunks_nr] Of the codes that come in: the step, and how
	 * many parts there are. */
	uint64_t *step;
	uint16_t *parts;
	uint8_t *busy; /* [chunks_nr] All codes are here, and are in the ring or at the tier. */
	uint32_t *due; /* [chunks_nr] A ring of chunks that wait for the tier. */
	uint32_t first, nr, in_hand;
};

enum shard_status deltas_init(struct model *m, struct err *e);
void deltas_free(struct model *m);
/* How codes are coded, and where those of a chunk lie. NULL: the model has no image_codec. */
static inline const struct codes *deltas_codes(const struct model *m)
{
	return m->deltas != NULL ? &m->deltas->codes : NULL;
}
static inline uint8_t *deltas_at(const struct model *m, uint32_t chunk)
{
	return store_image_codes(m->store) + m->deltas->codes.from[chunk];
}
/* Does the record make the image of codes, on all nodes? It does if several nodes gave gradients.
 */
bool deltas_made(const struct model *m, const struct record *r);
uint32_t deltas_before(const struct model *m,
		       uint32_t slot); /* The image that `slot` comes from. */
/* Are all bytes of the chunk here of the image before that of m->record? */
bool deltas_based(const struct model *m, uint32_t chunk);

/* --- the primary --- */

/* Which of the entries of a queue for a node has the codes of the newest image (data/send.h). */
uint32_t deltas_which(const struct model *m);
/* The chunk of the newest image goes to the node next. Returns which entry. whole: as it is. */
uint32_t deltas_give(struct model *m, uint16_t node, uint32_t chunk, bool whole);
/* The node lacks the chunk, or all chunks, whatever it has been sent. */
void deltas_lost(struct model *m, uint16_t node, uint32_t chunk);
void deltas_node_gone(struct model *m, uint16_t node);
/* Other images follow, which do not come from those that are here. */
void deltas_reset(struct model *m);

/* --- a receiver --- */

/* A worker is making the next bytes of the chunk. Nobody else may write there. */
bool deltas_busy(const struct model *m, uint32_t chunk);
/* Do codes of that step go with the bytes of the chunk that are here? They may come before the
 * record does. */
bool deltas_fit(const struct model *m, uint64_t step, uint32_t chunk);
/* That version of the chunk is in the image, and this node does not make its images yet. If it
 * will, because it has memory for the chunk, the chunk is kept where its own images will be, which
 * may be made of it. Also without codes, where there are two images. */
void deltas_fetched(struct model *m, uint32_t slot, uint32_t chunk, uint64_t version);

#endif
