/* SPDX-License-Identifier: Apache-2.0 */
/* define.h: how a model is made on every node. The coordinator resolves its settings, places its
 * chunks and has every node make its memory, or refuses the definition with figures. The SEAL
 * requests of seal.c are declared here too. */
#ifndef SHARD_DEFINE_H
#define SHARD_DEFINE_H

#include "link/call.h"
#include "shard.pb-c.h"
#include "node/state.h"
#include "wire/frame.h"

struct model_settings;

typedef void define_made_fn(void *arg, struct model *m);

/* Requests of sessions of this node. */
enum shard_status define_request(struct session *t, const struct wire_head *h,
				 const ProtobufCMessage *msg, struct err *e);
enum shard_status define_seal_request(struct session *t, const struct wire_head *h,
				      const ProtobufCMessage *msg, struct err *e);
/* For a RESTORE that is passed on to the coordinator: the session is answered when the image is
 * whole here. */
extern const struct call_ops restore_passed;

/* Requests of other nodes, on the coordinator. */
enum shard_status define_node_request(struct peer *p, const struct wire_head *h,
				      const Shard__Define *body, struct err *e);
enum shard_status define_node_seal(struct peer *p, const struct wire_head *h,
				   const Shard__Seal *body, struct err *e);
/* A session of that node has ended. */
void define_detached(struct server *s, uint16_t node, uint64_t session);
/* A request of the coordinator, and a report to it. */
enum shard_status define_written(struct peer *p, const struct wire_head *h,
				 const Shard__Written *body, struct err *e);

/* The model is made on every node, or here for the coordinator. It is linked now. */
void define_finish(struct model *m);
void define_coordinator(struct server *s); /* Another node coordinates now. */
void define_node_up(struct server *s, uint16_t node);
void define_node_down(struct server *s, uint16_t node, const struct err *e);
/* That node cannot be reached for the model. gone: for trainers. */
void define_unlink(struct model *m, uint16_t node, const struct err *gone, const char *why);
/* Between the coordinator and another node a model is linked once MODEL and its answer have told
 * each end the incarnation of the other's memory, because one model's memory can be lost alone. Two
 * nodes of which neither coordinates need not know that of each other. */
static inline bool define_told_by_model(const struct server *s, uint16_t node)
{
	return server_leads(s) || node == server_coordinator(s);
}
void define_fail(struct model *m, const struct err *e); /* Refuses seals and reads that wait. */
/* For restores: makes the model on every node. made() is called with the model before any other
 * node is asked. A DEFINE that comes meanwhile is answered at the end, or refused if the model is
 * dropped. */
enum shard_status define_restored(struct server *s, define_made_fn *made, void *arg,
				  const Shard__Define *d, const struct model_settings *set,
				  struct err *e);
/* Answers the DEFINEs that wait for this model. */
void define_answer(struct model *m);
/* The model is dropped: refuses the DEFINEs that wait for it, and the coordinator's MODEL. */
void define_over(struct model *m, const struct err *e);
/* The model cannot be made, or its weights cannot come: refuses as above, and drops it. */
void define_abandon(struct model *m, const struct err *e);
void define_beat(struct server *s, uint64_t now_ns);

#endif
