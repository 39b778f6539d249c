/* SPDX-License-Identifier: Apache-2.0 */
/* spare.h: memory of the budget that saves borrow (store/hold.h). A model that saves by itself
 * keeps it from one save to the next, as long as nobody else needs it. */
#ifndef SHARD_MODEL_SPARE_H
#define SHARD_MODEL_SPARE_H

#include <stdbool.h>
#include <stdint.h>

struct model;
struct server;

/* A save of these chunks begins (hold_begin()), with places for as many as there is room for. */
void spare_begin(struct model *m, const uint64_t *bytes);
void spare_end(struct model *m);   /* After hold_end(). */
void spare_leave(struct model *m); /* The model ends, and its memory with it. */
/* Room is needed: what no save uses now goes. True: there was something. */
bool spare_drop(struct server *s);

#endif
