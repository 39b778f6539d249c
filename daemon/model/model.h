/* SPDX-License-Identifier: Apache-2.0 */
/* model.h: a model as a whole on this node: made, driven, told. model.c feeds its core and carries
 * out the core's actions; make.c makes it and frees it. What it holds is data/model.h's. Loop
 * thread only. */
#ifndef SHARD_MODEL_H
#define SHARD_MODEL_H

#include "data/model.h"

struct peer;
struct session;

struct model *model_find(struct server *s, uint32_t id);
struct model *model_by_name(struct server *s, const char *name);
/* Everything a model needs on this node, at a start; takes spec over. view: what was durable,
 * coordinator only. found: of a start before this one, its .shm is taken over, or NULL;
 * SHARD_MISMATCH: it cannot be. */
enum shard_status model_make(struct model **out, struct server *s, Shard__Model *spec,
			     const struct core_view *view, const struct meta_found *found,
			     struct err *e);
/* The same while the loop runs, anew: the model is on server.makings until its memory is there, and
 * found by the two functions below only. Where there is no room, and other models that end, or may
 * have been dropped while this node was away, give enough back, it waits for that, for
 * heartbeat_timeout. Then made() hears that it is on
 * server.models, or (e not NULL) why it cannot be; not if it is dropped meanwhile, or the daemon
 * stops. The model stays in any case: its definer ends it. */
typedef void model_made_fn(struct model *m, const struct err *e);
enum shard_status model_make_later(struct model **out, struct server *s, Shard__Model *spec,
				   model_made_fn *made, struct err *e);
struct model *model_making(struct server *s, uint32_t id);
struct model *model_making_name(struct server *s, const char *name);
/* A thread makes its memory: it may not be freed yet. Given up: the thread ends soon. */
bool model_working(const struct model *m);
void model_give_up(struct model *m);
/* It is dropped: who waits for memory may count on what it has. */
void model_leaves(struct model *m);
void model_make_beat(struct server *s, uint64_t now_ns); /* goes on with those that wait for room */
void model_reset(struct model *m);                       /* store_reset(), for good */
void model_free(struct model **m); /* Takes as long as its memory is large: at the end. */
/* Its memory goes in a thread; freed() when it is the budget's again. */
void model_free_later(struct model **m, void (*freed)(void *arg), void *arg);

/* Gives the core an event and carries out what it asks for. Pointers in ev live for the call. */
void model_event(struct model *m, const struct core_event *ev);
void model_run(struct model *m,
	       const struct core_event *ev); /* server.c: no other event is in hand */
/* That node answers, from memory of that incarnation; why: what became of the one before it, or
 * NULL. */
void model_link_up(struct model *m, uint16_t node, uint64_t incarnation, const char *why);
void model_link_down(struct model *m, const struct peer *p, const char *why);
void model_tick(struct model *m, uint64_t now_ns);
enum shard_status model_core_frame(struct model *m, struct peer *p, const struct wire_head *h,
				   const Shard__Core *body, struct err *e);
void model_persisted(struct model *m);             /* its view is durable */
void model_beat(struct model *m, uint64_t now_ns); /* about once a second */

/* To a session. An answer to its request; m NULL: of no model. */
void model_reply(struct session *t, uint16_t op, uint32_t tag, const struct model *m,
		 const ProtobufCMessage *msg);
/* What it has not asked for: the head carries the model's id and the attempt. */
void model_tell(struct session *t, uint16_t op, const struct model *m, const struct core_id *id,
		const ProtobufCMessage *msg);

void model_close_attempt(struct model *m); /* nothing of it is taken or sent any more */
void model_orphan(struct model *m,
		  uint32_t slot); /* its trainer is gone; closed when nobody reads it */
extern const struct data_events model_data_events; /* What data/ tells. */
#endif
