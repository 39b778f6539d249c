/* SPDX-License-Identifier: Apache-2.0 */
/* model.h: one model on this node. model.c gives its core events and carries out the core's
 * actions. make.c makes the model and frees it. struct model is in data/model.h. Loop thread only.
 */
#ifndef SHARD_MODEL_H
#define SHARD_MODEL_H

#include "data/model.h"

struct peer;
struct session;

struct model *model_find(struct server *s, uint32_t id);
struct model *model_by_name(struct server *s, const char *name);
/* Makes a model at a start, before the loop runs. Takes spec over. view: the view that was durable,
 * on the coordinator only. found: memory of an earlier start, whose .shm is taken over, or NULL.
 * SHARD_MISMATCH: that memory cannot be taken over. */
enum shard_status model_make(struct model **out, struct server *s, Shard__Model *spec,
			     const struct core_view *view, const struct meta_found *found,
			     struct err *e);
/* The same while the loop runs, anew: the model is on server.makings until its memory is there, and
 * found by the two functions below only. layout: that of spec, which is taken over, or NULL. Where
 * there is no room, and other models that end, or may have been dropped while this node was away,
 * give enough back, it waits for that, for heartbeat_timeout. Then made() hears that it is on
 * server.models, or (e not NULL) why it cannot be; not if it is dropped meanwhile, or the daemon
 * stops. The model stays in any case: its definer ends it. */
typedef void model_made_fn(struct model *m, const struct err *e);
enum shard_status model_make_later(struct model **out, struct server *s, Shard__Model *spec,
				   struct layout **layout, model_made_fn *made, struct err *e);
/* The same of a model whose copy here is lost, on the node that coordinates. view: the newest one
 * that is durable, which stays until made(). */
enum shard_status model_make_again(struct model **out, struct server *s, Shard__Model *spec,
				   const struct core_view *view, model_made_fn *made,
				   struct err *e);
struct model *model_making(struct server *s, uint32_t id);
struct model *model_making_name(struct server *s, const char *name);
/* model_working(): a thread makes or frees its memory, so the model may not be freed yet.
 * model_give_up() makes a thread that makes memory end soon. */
bool model_working(const struct model *m);
void model_give_up(struct model *m);
/* The model is dropped: models that wait for room may count on its memory. */
void model_leaves(struct model *m);
void model_make_beat(struct server *s, uint64_t now_ns); /* For models that wait for room. */
void model_reset(struct model *m); /* Clears its memory by store_reset(), and notes that. */
void model_free(struct model **m); /* Slow if its memory is large. */
/* Frees its memory in a thread. freed() is called when the budget has it back. */
void model_free_later(struct model **m, void (*freed)(void *arg), void *arg);

/* Gives the core an event and carries out its actions. Pointers in ev need to be valid during the
 * call only. */
void model_event(struct model *m, const struct core_event *ev);
void model_run(struct model *m,
	       const struct core_event *ev); /* For model.c: no other event is being handled. */
/* How views name that node, which is this one or is linked, with that memory of the model. */
struct view_node model_node(const struct model *m, uint16_t node, uint64_t incarnation);
/* The model is linked with that node, whose memory of it has that incarnation. why: what became of
 * the node's memory before that, or NULL. */
void model_link_up(struct model *m, uint16_t node, uint64_t incarnation, const char *why);
void model_link_down(struct model *m, const struct peer *p, const char *why);
/* The list of nodes has grown by this one, which has no link yet. */
void model_node_added(struct model *m, uint16_t node);
void model_tick(struct model *m, uint64_t now_ns);
enum shard_status model_core_frame(struct model *m, struct peer *p, const struct wire_head *h,
				   const Shard__Core *body, struct err *e);
void model_persisted(struct model *m);             /* Its view is durable. */
void model_beat(struct model *m, uint64_t now_ns); /* About once a second. */

/* Answers a request of a session. m NULL: the answer is about no model. */
void model_reply(struct session *t, uint16_t op, uint32_t tag, const struct model *m,
		 const ProtobufCMessage *msg);
/* Sends an event to a session. The header carries the model's id and the attempt. */
void model_tell(struct session *t, uint16_t op, const struct model *m, const struct core_id *id,
		const ProtobufCMessage *msg);

void model_close_attempt(struct model *m); /* Nothing more of it is received or sent. */
void model_orphan(struct model *m,
		  uint32_t slot); /* Its trainer is gone. Closed when nothing reads it. */
extern const struct data_events model_data_events; /* The events of data/. */
#endif
