/* SPDX-License-Identifier: Apache-2.0 */
/* apply.h: from a record to new weights and a published image. It runs the optimizer over the
 * chunks held here, and moves image chunks to and from other nodes and to trainers over TCP. */
#ifndef SHARD_APPLY_H
#define SHARD_APPLY_H

#include "data/model.h"

void apply_start(struct model *m, const struct record *r);
/* For a warm start: workers make the images again while the loop answers. No vote leaves before
 * that is done. A decision about an earlier vote is carried out after it, so that no weight changes
 * meanwhile. */
void apply_settle(struct model *m);
/* Ends that where no chunk here counts, as of a node that was still fetching its first ones. */
void apply_settle_none(struct model *m);
/* How many of the chunks held here are done. all = 0: it is over. */
void apply_settled(const struct model *m, uint32_t *done, uint32_t *all);
void apply_seal(struct model *m, const struct record *r);
/* This node has no copy that counts any more. It takes the record as that of its images, which come
 * from other nodes, and fetches copies. */
void apply_learn(struct model *m, const struct record *r);
void apply_stage_again(struct model *m); /* What kept chunks from being staged may be over. */
/* A view has taken nodes out or in. A chunk that lacks here may have another primary now, which is
 * asked at once: its old one may have died before it had sent the chunk. */
void apply_placed(struct model *m);
/* The gradient of a chunk held here is reduced. The layer above is told now, or when the image of
 * the step before has left. */
void apply_stage(struct model *m, uint32_t chunk);
extern const struct send_source apply_images; /* How the chunks of an image leave. */
enum shard_status apply_image_head(struct model *m, const struct wire_head *h, void **to,
				   struct err *e);
/* The wanted image parts have changed. Ends the landings of those that are not wanted any more. */
void apply_landings(struct model *m);
/* This node has voted. From now on its image may be overwritten, and what is landing of codes of
 * the step before is dropped. */
void apply_open(struct model *m);
enum shard_status apply_image_part(struct model *m, const struct wire_head *h, struct err *e);
/* For patches.c. apply_image_wanted(): is this a part to take now, and into which image?
 * apply_image_lacks(): the same of a whole chunk of that step, if it is of the newest image or of
 * the one that is voted for. apply_image_came(): all bytes of it are there. */
bool apply_image_wanted(const struct model *m, const struct wire_head *h, uint32_t *slot);
bool apply_image_lacks(const struct model *m, uint64_t step, uint32_t chunk, uint32_t *slot);
void apply_image_came(struct model *m, uint32_t slot, uint32_t chunk, uint64_t step);
void apply_trainer_image(
	struct model *m,
	struct trainer *t);    /* A TCP trainer is in the world now. It needs the whole image. */
void apply_turn(void *server); /* For turn() of worker.h: hands out what waits for room. */
/* For feed.c. apply_fed(): the tier is done with a chunk, in which so many weights are missing.
 * apply_maybe_done(): the record in hand may be applied completely. apply_makes_older(): while a
 * model settles, is the image of the step before made again, too? */
void apply_fed(struct model *m, enum feed_what what, uint32_t chunk, uint64_t missing);
void apply_maybe_done(struct model *m);
bool apply_makes_older(const struct model *m);
bool apply_has_kept(const struct model *m); /* Was its newest image kept, all of it? */
bool apply_image_whole(const struct model *m);
/* For device_images.c. A chunk of the image is being read, so that no vote leaves, from
 * apply_image_leaves() to apply_image_left(). apply_tell(): trainers here look at versions. */
void apply_image_leaves(struct model *m);
void apply_image_left(struct model *m);
void apply_tell(struct model *m);
/* The image that has the weights of the record. It is the same one on every node, so that a node
 * knows where the image of another node is. */
uint32_t apply_slot(const struct model *m, const struct record *r);
void apply_node_gone(struct model *m, uint16_t node);
void apply_node_back(struct model *m, uint16_t node);

#endif
