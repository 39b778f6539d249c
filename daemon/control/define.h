/* SPDX-License-Identifier: Apache-2.0 */
/* define.h: how a model comes to be on every node: the coordinator resolves its settings, places
 * its chunks and has every node reserve its memory, or refuses it with figures; and how its weights
 * become a sealed model. */
#ifndef SHARD_DEFINE_H
#define SHARD_DEFINE_H

#include "link/call.h"
#include "shard.pb-c.h"
#include "node/state.h"
#include "wire/frame.h"

struct model_settings;

typedef void define_made_fn(void *arg, struct model *m);

/* requests of trainers here */
enum shard_status define_request(struct session *t, const struct wire_head *h,
				 const ProtobufCMessage *msg, struct err *e);
enum shard_status define_seal_request(struct session *t, const struct wire_head *h,
				      const ProtobufCMessage *msg, struct err *e);
/* For a RESTORE that is passed on to the coordinator: it is answered when the image is whole. */
extern const struct call_ops restore_passed;

/* requests of nodes, on the coordinator */
enum shard_status define_node_request(struct peer *p, const struct wire_head *h,
				      const Shard__Define *body, struct err *e);
enum shard_status define_node_seal(struct peer *p, const struct wire_head *h,
				   const Shard__Seal *body, struct err *e);
void define_detached(struct server *s, uint16_t node, uint64_t session);
/* what the coordinator asks of nodes */
enum shard_status define_model(struct peer *p, const struct wire_head *h, const Shard__Model *body,
			       struct err *e);
enum shard_status define_written(struct peer *p, const struct wire_head *h,
				 const Shard__Written *body, struct err *e);

void define_node_up(struct server *s, uint16_t node);
void define_node_down(struct server *s, uint16_t node, const struct err *e);
void define_fail(struct model *m, const struct err *e); /* seals and reads that wait */
/* For restores: makes the model everywhere; made() hears of it before anybody is asked. Who asked
 * while that lasts is answered, or refused and the model dropped. */
enum shard_status define_restored(struct server *s, define_made_fn *made, void *arg,
				  const Shard__Define *d, const struct model_settings *set,
				  struct err *e);
void define_answer(struct model *m);
/* It is dropped: who waits for its definition hears so, here and on the coordinator. */
void define_over(struct model *m, const struct err *e);
void define_abandon(struct model *m, const struct err *e);
void define_beat(struct server *s, uint64_t now_ns);

#endif
