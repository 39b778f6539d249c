/* SPDX-License-Identifier: Apache-2.0 */
/* blobs.h: what trainers keep with a step (random number state, place in the data): at most 64 KiB
 * per rank, committed with the step whose READY brought it, found again by rank from any node.
 * Memory is made with the model; nothing of the step allocates. Each node keeps what its own ranks
 * committed; of several nodes that have one of a rank the greatest step counts. */
#ifndef SHARD_BLOBS_H
#define SHARD_BLOBS_H

#include "ckpt/part.h"
#include "shard.pb-c.h"

struct model;
struct blobs;
struct core_id;

#define BLOB_BYTES_MAX PART_BLOB_BYTES

size_t blobs_memory_bytes(uint32_t local_nr, uint32_t ranks_nr);
enum shard_status blobs_init(struct model *m, struct err *e);
/* In memory of a process before this one: what was kept stays; what was brought for attempt id, if
 * that may still be committed. */
enum shard_status blobs_again(struct model *m, const struct core_id *id, struct err *e);
void blobs_free(struct model *m);

/* The step. i: local index in the attempt in hand. */
enum shard_status blobs_check(const Shard__Ready *body, struct err *e); /* SHARD_RANGE: too large */
void blobs_pending(struct model *m, uint32_t i, const Shard__Ready *body);
/* The verdict on that step is here, whatever it is; in_hand: on the attempt whose READYs are
 * pending. */
void blobs_decided(struct model *m, uint64_t step, bool in_hand);
void blobs_begin(struct model *m); /* the attempt m->attempt.id */
void blobs_drop(struct model *m);  /* it is over without effect */
void blobs_reset(struct model *m); /* LOST: nothing of the older generation counts */

/* What is committed here of a rank < max_world; step 0: nothing. Good until the next verdict. */
struct part_blob blobs_kept(const struct model *m, uint32_t rank);
/* For checkpoints. Fills at most room of what is committed here and returns how many there are;
 * data are good until the next verdict. */
uint32_t blobs_committed(const struct model *m, struct part_blob *out, uint32_t room);
/* After blobs_reset(), before the seal: a rank from max_world on is left out. bytes <=
 * BLOB_BYTES_MAX. */
void blobs_restore(struct model *m, uint32_t rank, uint64_t step, const void *data, uint32_t bytes);

#endif
