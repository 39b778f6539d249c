/* SPDX-License-Identifier: Apache-2.0 */
/* images.h: image chunks that a node lacks and that do not come unasked, because its link fell or
 * because it was away. It asks the primaries of these chunks, all of them at the same time and each
 * for a few chunks. A primary sends a few chunks to all who ask. So neither side has more than a
 * bound in flight, and a step never waits for the image of a node that came back. */
#ifndef SHARD_DATA_IMAGES_H
#define SHARD_DATA_IMAGES_H

#include "base/status.h"
#include "shard.pb-c.h"

#include <stdbool.h>
#include <stdint.h>

/* In chunks: what a node has asked for and not yet got, from all nodes together; and what a node
 * has on its way to all others, before it begins to send another one that was asked for. */
#define IMAGES_ASKED_MAX 16
#define IMAGES_SENT_MAX  16

struct model;

enum shard_status images_init(struct model *m, struct err *e);
void images_free(struct model *m);

/* --- which chunks are here --- */

/* Is the chunk of the newest image here, of the image of the step before? */
bool images_here(const struct model *m, uint32_t chunk);
bool images_has_old(const struct model *m, uint32_t chunk);
/* Does this node lack it, or that of the image of the step before, on which trainers may still
 * compute? */
bool images_lacks(const struct model *m, uint32_t chunk);
bool images_lacks_old(const struct model *m, uint32_t chunk);
/* Gives the first chunk that local trainers need to begin, and the step of its image. Returns false
 * if they need none. */
bool images_awaited(const struct model *m, uint32_t *chunk, uint64_t *step);
/* A chunk of the image of that step keeps trainers waiting, or none does any more. */
void images_late(struct model *m, bool late, uint32_t chunk, uint64_t step);

/* --- the node that lacks chunks --- */

/* All that lacks is asked for from now on, what was asked for before, too. */
void images_ask(struct model *m);
void images_node_back(struct model *m, uint16_t node); /* What it is the primary of is asked for. */
/* A view has changed the primaries. The new ones are asked at once. */
void images_placed(struct model *m);
void images_moved(struct model *m); /* What lacks is not what was late until now. */
/* Codes of the chunk have come from that node and are of no use here. It is told at once, so that
 * the chunk comes as it is with the next record at the latest. */
void images_missed(struct model *m, uint16_t node, uint32_t chunk);
/* A part of the chunk, or all of it, has come. */
void images_heard(struct model *m, uint32_t chunk);
void images_came(struct model *m, uint32_t chunk);
/* A record changes weights here. The chunks of its image come unasked, and of the image before it
 * what was asked for is asked for again, if trainers still use it. */
void images_begin(struct model *m);
/* Asks once a second for what does not come, and reports it. Serves those who ask, too. */
void images_beat(struct model *m, uint64_t now_ns);

/* --- the node that has them --- */

void images_asked(struct model *m, uint16_t node, const Shard__Chunks *want);
void images_serve(struct model *m); /* There may be room for another chunk. */
/* While a model settles: this chunk is made. */
void images_made(struct model *m, uint32_t chunk);
/* A record is applied completely. */
void images_applied(struct model *m);
/* A chunk of the attempt in hand is reduced. The step goes first for a while. */
void images_yield(struct model *m);
void images_node_gone(struct model *m, uint16_t node);
/* Nothing that was asked for is wanted any more, neither here nor there. */
void images_reset(struct model *m);
/* Chunks that others have asked for and that are not on their way yet. */
uint32_t images_waiting(const struct model *m);

#endif
