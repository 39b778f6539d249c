/* SPDX-License-Identifier: Apache-2.0 */
/* apply.h: from a record to new weights and a published image: the optimizer over the chunks held
 * here, image chunks to and from other nodes and trainers over TCP. */
#ifndef SHARD_APPLY_H
#define SHARD_APPLY_H

#include "data/model.h"

void apply_start(struct model *m, const struct record *r);
/* A warm start: workers make the images again, while the loop answers. No vote leaves before that
 * is done, and a decision about an earlier vote is carried out behind it, so that no weight changes
 * meanwhile. */
void apply_settle(struct model *m);
void apply_settled(const struct model *m, uint32_t *done,
		   uint32_t *all); /* chunks held here; all = 0: it is over */
void apply_seal(struct model *m, const struct record *r);
void apply_image_asked(struct model *m, uint16_t node, const Shard__Chunks *want);
void apply_image_ask(struct model *m, uint64_t now_ns);
/* The reduced gradient of a chunk held here: told above now, or when the image before has left. */
void apply_stage(struct model *m, uint32_t chunk);
extern const struct send_source apply_images; /* How an image's chunks leave. */
/* Chunks lack here: asks for them again, once a second, and says so if they do not come. */
void apply_image_beat(struct model *m, uint64_t now_ns);
/* The first chunk that local trainers cannot begin without, and of which step; false: none. */
bool apply_image_awaited(const struct model *m, uint32_t *chunk, uint64_t *step);
enum shard_status apply_image_head(struct model *m, const struct wire_head *h, void **to,
				   struct err *e);
void apply_landings(struct model *m); /* what is wanted has changed: ends those of image parts that
					 are not wanted any more */
enum shard_status apply_image_part(struct model *m, const struct wire_head *h, struct err *e);
void apply_trainer_image(
	struct model *m,
	struct trainer *t);    /* a TCP trainer is in the world now: it needs the whole image */
void apply_turn(void *server); /* worker.h's turn() */
bool apply_image_whole(const struct model *m);
uint64_t apply_version(const struct model *m); /* what a chunk of the newest image says of itself
						  when it is there */
/* The image that has the record's weights: the same one on every node, so that a node knows where
 * another's is. */
uint32_t apply_slot(const struct model *m, const struct record *r);
void apply_node_gone(struct model *m, uint16_t node);
void apply_node_back(struct model *m, uint16_t node);

#endif
