/* SPDX-License-Identifier: Apache-2.0 */
/* rooms.h: the memory of a node for chunks that come and go, while the model lives. The coordinator
 * asks a node for room before it moves chunks there, so that a node which has none refuses in time,
 * by name. Loop thread only. */
#ifndef SHARD_MODEL_ROOMS_H
#define SHARD_MODEL_ROOMS_H

#include "base/status.h"
#include "shard.pb-c.h"
#include "wire/frame.h"

#include <stdbool.h>
#include <stdint.h>

struct model;
struct peer;
struct placement;

enum shard_status rooms_init(struct model *m, struct err *e);
bool rooms_making(const struct model *m); /* A thread does. The model may not be freed. */
void rooms_free(struct model *m);

/* Makes memory for what that table gives to this node beside what it has. done() hears the result,
 * later or at once. SHARD_BUSY: it makes other memory now. SHARD_BUDGET: there is no room, and e
 * has the figures. */
typedef void rooms_made_fn(struct model *m, const struct err *e);
enum shard_status rooms_make(struct model *m, const uint64_t *holders, rooms_made_fn *made,
			     struct err *e);
/* The coordinator asks for it: ROOM, of a model that may be NULL. The answer follows when the
 * memory is there. */
enum shard_status rooms_asked(struct model *m, struct peer *p, const struct wire_head *h,
			      const Shard__Tables *body, struct err *e);
/* Is there memory for all that this placement gives to this node? SHARD_AGAIN: it is being made.
 * SHARD_BUDGET: there is no room. */
enum shard_status rooms_for(struct model *m, const struct placement *p, struct err *e);
/* CORE_ACT_PLACED: the model has another placement now. There is memory for it, because of
 * rooms_for() or rooms_make(). What it does not give to this node any more is given back as soon as
 * nothing reads it. */
void rooms_placed(struct model *m, const struct placement *p);
/* Gives back what is due: nothing uses the model's buffers, or time has passed. */
void rooms_beat(struct model *m, uint64_t now_ns);

#endif
