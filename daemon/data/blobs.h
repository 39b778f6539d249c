/* SPDX-License-Identifier: Apache-2.0 */
/* blobs.h: what trainers keep with a step (random number state, place in the data). It is at most
 * 64 KiB per rank. It is committed with the step whose READY brought it, and any node can find it
 * by rank. The memory is made with the model. Of a model with one copy each node keeps what its own
 * ranks committed. If several nodes have a blob of the same rank, that of the greatest step counts.
 * Of a model with several copies as many nodes keep a rank's blob, place_blob_chunk() says which,
 * and all of them that count have the same one. Nothing on the step path allocates. */
#ifndef SHARD_BLOBS_H
#define SHARD_BLOBS_H

#include "ckpt/part.h"
#include "shard.pb-c.h"

struct model;
struct blobs;
struct core_id;
struct err;
struct peer;
struct wire_head;

#define BLOB_BYTES_MAX PART_BLOB_BYTES

/* copied: the model has several copies. */
size_t blobs_memory_bytes(uint32_t local_nr, uint32_t ranks_nr, bool copied);
bool blobs_copied(const struct model *m);
enum shard_status blobs_init(struct model *m, struct err *e);
/* Called after blobs_init() if the memory is that of an earlier process. What was kept stays. What
 * READY brought for attempt id stays if that may still be committed. id NULL: nothing may. */
enum shard_status blobs_again(struct model *m, const struct core_id *id, struct err *e);
void blobs_free(struct model *m);

/* The step. i is the local index in the attempt in hand. */
/* SHARD_RANGE: too large. */
enum shard_status blobs_check(const Shard__Ready *body, struct err *e);
/* Called once in an attempt for each rank. */
void blobs_pending(struct model *m, uint32_t i, const Shard__Ready *body);
/* The verdict on that step is here, whatever it is. in_hand: it is on the attempt whose READYs are
 * pending. */
void blobs_decided(struct model *m, uint64_t step, bool in_hand);
void blobs_begin(struct model *m); /* Attempt m->attempt.id begins. */
void blobs_drop(struct model *m);  /* The attempt is over without effect. */
void blobs_reset(struct model *m);
/* The committed blobs that lie where this chunk does are not here any more. */
void blobs_forget(struct model *m,
		  uint32_t chunk); /* LOST: nothing of the older generation counts. */

/* Several copies. Sends that node the blobs of this node's ranks that it keeps, before it is sent
 * RANKS of the attempt in hand. False: it has not got all of them, so RANKS must wait, too. With
 * one copy there is nothing to send. */
bool blobs_tell(struct model *m, uint16_t node);
/* BLOB_DATA of that node. The body is only valid during the call. */
enum shard_status blobs_came(struct model *m, const struct peer *p, const struct wire_head *h,
			     const void *body, struct err *e);
/* Several copies. Will the verdict on the attempt in hand change the blob of the rank? */
bool blobs_pends(const struct model *m, uint32_t rank);

/* Several copies. The blobs that go with a chunk, for a node that catches up: one part for each
 * rank, in their order. blobs_copy() writes all that is committed and returns how many bytes that
 * takes; to NULL: only that. blobs_copy_next() goes through what it wrote, part by part.
 * blobs_copy_take(): part i has come with COPY_DATA. */
uint32_t blobs_parts(const struct model *m, uint32_t chunk);
uint64_t blobs_copy(const struct model *m, uint32_t chunk, uint8_t *to);
const uint8_t *blobs_copy_next(const uint8_t **at, uint32_t *bytes);
enum shard_status blobs_copy_take(struct model *m, const struct wire_head *h, uint32_t i,
				  const uint8_t *body, struct err *e);

/* What is committed here of a rank < max_world. Step 0: nothing. It is valid until the next
 * verdict. */
struct part_blob blobs_kept(const struct model *m, uint32_t rank);
/* For checkpoints. Writes at most room of the blobs that are committed here to out, and returns how
 * many there are. Their data are valid until the next verdict. */
uint32_t blobs_committed(const struct model *m, struct part_blob *out, uint32_t room);
/* Called after blobs_reset() and before the seal. A rank from max_world on is ignored. bytes <=
 * BLOB_BYTES_MAX. */
void blobs_restore(struct model *m, uint32_t rank, uint64_t step, const void *data, uint32_t bytes);

#endif
