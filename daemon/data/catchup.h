/* SPDX-License-Identifier: Apache-2.0 */
/* catchup.h: how a node that catches up gets copies of the chunks that it has memory for. It
 * fetches one chunk at a time from each primary, at a version of the primary, and then applies
 * every record to it. The other side of it, which copies a chunk at a boundary and sends it, is
 * here too. */
#ifndef SHARD_DATA_CATCHUP_H
#define SHARD_DATA_CATCHUP_H

#include "base/status.h"
#include "wire/frame.h"

#include <stdbool.h>
#include <stdint.h>

struct model;
struct peer;
struct placement;
struct record;

enum shard_status catchup_init(struct model *m, struct err *e);
void catchup_free(struct model *m);

/* --- the node that catches up --- */

/* Fetches the chunks whose copies here do not count, beginning at m->record. anew: also those that
 * are here. Otherwise those that are at m->record stay. */
void catchup_start(struct model *m, bool anew);
/* Takes catchup_start() up later, with this record, because the images are being made again.
 * catchup_due() gives it then, once. NULL: nothing is due. */
void catchup_later(struct model *m, const struct record *r);
const struct record *catchup_due(struct model *m);
/* The placement has changed, and was `before`. A copy that counts now is caught up. One that does
 * not count any more is still that of m->record, unless catchup_start() follows. caught: at a warm
 * start, the copies that do not count are all here. */
void catchup_placed(struct model *m, const struct placement *before, bool caught);
/* Does this node apply records to the chunk and make its image? A holder does. A node that catches
 * up does for the chunks that it has fetched. */
bool catchup_has(const struct model *m, uint32_t chunk);
/* Will it from the next record on that changes weights, if it has the image before? */
bool catchup_will(const struct model *m, uint32_t chunk);
/* For how many chunks catchup_has() is true. */
uint32_t catchup_count(const struct model *m);
/* m->record was just taken, and m->step was `before` until then. skip: no weight changes. Says
 * which chunks catchup_has() from now on. */
void catchup_record(struct model *m, uint64_t before, bool skip);
/* Are all copies here, and the images of their chunks, those of m->record? */
bool catchup_caught(const struct model *m);
/* A chunk of the image has come. Tells the layer above if that was the last that was missing. */
void catchup_tell(struct model *m);
/* A chunk that is on its way has missed a record again and again. The next vote waits for it. */
bool catchup_holds(const struct model *m);
void catchup_beat(struct model *m, uint64_t now_ns); /* Asks again for what does not come. */
/* A part of a copy has come. The body is that of the frame, and only valid during the call.
 * catchup_holds() may be over after it. */
enum shard_status catchup_part(struct model *m, struct peer *p, const struct wire_head *h,
			       const void *body, struct err *e);
/* How many chunks are here, and of how many. all = 0: this node does not catch up. */
void catchup_progress(const struct model *m, uint32_t *here, uint32_t *all);

/* The weights are lost. Nothing is asked for, or copied, until there are others. */
void catchup_lost(struct model *m);

/* --- the primary --- */

/* That node asks for a copy of the chunk h->chunk. */
enum shard_status catchup_asked(struct model *m, struct peer *p, const struct wire_head *h,
				struct err *e);
/* Begins what was asked for and had to wait for a boundary. */
void catchup_serve(struct model *m);
void catchup_node_gone(struct model *m, uint16_t node); /* The link is going down. */
void catchup_node_back(struct model *m, uint16_t node);

#endif
