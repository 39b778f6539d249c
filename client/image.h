/* SPDX-License-Identifier: Apache-2.0 */
/* image.h: the image that a trainer reads. A model with max_staleness = 1 has two of them. Each
 * chunk of those is numbered by the step whose record wrote it (a skipped step writes none). So a
 * chunk either has exactly the weights that are wanted, or not. */
#ifndef SHARD_CLIENT_IMAGE_H
#define SHARD_CLIENT_IMAGE_H

#include "handle.h"

/* The memory is mapped. Checks its head and finds the versions. */
enum shard_status image_init(struct shard_model *m, struct err *e);
void image_deinit(struct shard_model *m);
/* An ATTEMPT says which steps wrote the weights of the step before it. */
void image_attempt(struct shard_model *m, const struct attempt *a);
/* For a RESULT: the step wrote new weights, or it was skipped and only versions move. */
void image_decided(struct shard_model *m, uint64_t step, bool applied);
/* The model was set back to another generation, so the image's contents do not count. */
void image_anew(struct shard_model *m);
/* True if all chunks of the range are of this step or later. Otherwise *chunk is one that is not.
 * chunk may be NULL. */
bool image_holds(const struct shard_model *m, uint64_t first, uint64_t count, uint64_t step,
		 uint32_t *chunk);
/* max_staleness = 1: true if one of the images has each chunk of the range as step `wrote` left it.
 * Otherwise *chunk is one that none has. chunk may be NULL. */
bool image_has(const struct shard_model *m, uint64_t first, uint64_t count, uint64_t wrote,
	       uint32_t *chunk);
/* What image_copy() found. */
struct image_look {
	uint32_t slot; /* Which image shard_image() shows. */
	uint64_t step; /* The step that left the weights of the oldest chunk. UINT64_MAX: none. */
	bool mixed;    /* Not all chunks are of that step, or some were written meanwhile. */
};
/* Copies the weights that shard_image() shows to the same place in an image that begins at `to`.
 * False: they are mixed, or the model has newer ones that are still to come. */
bool image_copy(struct shard_model *m, char *to, struct image_look *look);
/* The image was mapped elsewhere. */
void image_moved(struct shard_model *m);
/* tcp: sets *to to the memory for this part of a chunk. SHARD_PROTOCOL if there is no such part. */
enum shard_status image_part(struct shard_model *m, const struct wire_head *h, void **to,
			     struct err *e);
/* tcp: the part was received. */
void image_part_came(struct shard_model *m, const struct wire_head *h);

#endif
