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

struct core_view;
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
/* A view has come from that node. False: this node lacks memory for what the view gives to it, so
 * it is as if the view were lost, and it comes again. The memory is being made. If there is no room
 * at all, the link ends, because this node cannot be a member. True also for a view that the core
 * does not adopt anyway. */
bool rooms_view(struct model *m, struct peer *p, const struct core_view *v);
/* Before the loop runs: makes memory for what this placement gives to this node. SHARD_BUDGET:
 * there is no room. */
enum shard_status rooms_now(struct model *m, const struct placement *p, struct err *e);
/* This node leads, and goes on from this view, or from none (NULL). False: it lacks memory for what
 * the view gives to it, which is being made, or cannot be. Each beat asks again
 * (model_memory.unled). */
bool rooms_led(struct model *m, const struct core_view *view);
/* Notes and logs why this node does not lead the model yet. SHARD_OK: it does. SHARD_AGAIN: memory
 * for it is being made. Anything else is for people to mend, and the health shows it. */
void rooms_unled(struct model *m, enum shard_status st, const char *why);
/* Makes slots for the gradients of so many nodes. moving: this node, as the coordinator, has an
 * order under way that takes the memory of rooms_make(). Otherwise that memory goes back.
 * SHARD_AGAIN: it is being done, and the next beat asks again. SHARD_BUDGET, SHARD_SYSTEM: there is
 * no room for them now, which is tried again after a while. */
enum shard_status rooms_grow(struct model *m, uint16_t nodes_nr, bool moving, struct err *e);
/* CORE_ACT_PLACED: the model has another placement now. There is memory for it, because of
 * rooms_view() and its kin. What it does not give to this node any more is given back as soon as
 * nothing reads it. */
void rooms_placed(struct model *m, const struct placement *p);
/* Gives back what is due: nothing uses the model's buffers, or time has passed. */
void rooms_beat(struct model *m, uint64_t now_ns);

#endif
