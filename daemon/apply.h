/* SPDX-License-Identifier: Apache-2.0 */
/* apply.h: from a record to new weights and a published image: the optimizer over the chunks held here, image chunks to and from
 * other nodes and trainers over TCP. */
#ifndef SHARD_APPLY_H
#define SHARD_APPLY_H

#include "model.h"

void apply_start(struct model *m, const struct record *r);
void apply_seal(struct model *m, const struct record *r);
void apply_image_asked(struct model *m, uint16_t node, const Shard__Chunks *want);
void apply_image_ask(struct model *m, uint64_t now_ns);
void apply_image_sent(struct model *m);
enum shard_status apply_image_head(struct model *m, const struct wire_head *h, void **to, struct err *e);
enum shard_status apply_image_part(struct model *m, const struct wire_head *h, struct err *e);
void apply_session_image(struct model *m, struct session *t); /* a TCP trainer is in the world now: it needs the whole image */
void apply_turn(void *server);                                /* worker.h's turn() */
bool apply_image_whole(const struct model *m);
uint64_t apply_version(const struct model *m); /* what a chunk of the newest image says of itself when it is there */
/* The image that has the record's weights: the same one on every node, so that a node knows where another's is. */
uint32_t apply_slot(const struct model *m, const struct record *r);
void apply_node_gone(struct model *m, uint16_t node);
void apply_node_back(struct model *m, uint16_t node);

#endif
