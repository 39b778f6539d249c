/* SPDX-License-Identifier: Apache-2.0 */
/* define.h: how a model comes to be on every node: the coordinator resolves its settings, places its chunks and has every node
 * reserve its memory, or refuses it with figures; and how its weights become a sealed model. */
#ifndef SHARD_DEFINE_H
#define SHARD_DEFINE_H

#include "relay.h"
#include "shard.pb-c.h"
#include "state.h"
#include "wire/frame.h"

struct ckpt_op;
struct model_settings;

/* requests of trainers here */
enum shard_status define_request(struct session *t, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e);
enum shard_status define_seal_request(struct session *t, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e);
void define_seal_accepted(struct session *t, uint32_t model, uint32_t tag, uint64_t step);
/* A RESTORE that the coordinator has answered; body is packed. */
void define_restore_accepted(struct session *t, uint32_t tag, const struct wire_head *h, const void *body);
void define_seal_answer(struct session *t, struct model *m);

/* requests of nodes, on the coordinator */
enum shard_status define_node_request(struct peer *p, const struct wire_head *h, const Shard__Define *body, struct err *e);
enum shard_status define_node_seal(struct peer *p, const struct wire_head *h, const Shard__Seal *body, struct err *e);
void define_detached(struct server *s, uint16_t node, uint64_t session);
/* what the coordinator asks of nodes */
enum shard_status define_model(struct peer *p, const struct wire_head *h, const Shard__Model *body, struct err *e);
enum shard_status define_written(struct peer *p, const struct wire_head *h, struct err *e);
void define_answered(struct server *s, const struct relay *r, const struct wire_head *h, const void *body, const struct err *e);

void define_node_up(struct server *s, uint16_t node);
void define_node_down(struct server *s, uint16_t node, const struct err *e);
void define_lost(struct model *m, enum shard_status st);
void define_fail(struct model *m, const struct err *e);       /* seals and reads that wait */
void define_say(const struct model *m, Shard__Defined *body); /* all but created and spec */
/* For restores: makes op's model everywhere; who asked while that lasts is answered, or refused and the model dropped. */
enum shard_status define_restored(struct server *s, struct ckpt_op *op, const Shard__Define *d, const struct model_settings *set,
				  struct err *e);
void define_answer(struct model *m);
void define_abandon(struct model *m, const struct err *e);
void define_beat(struct server *s, uint64_t now_ns);
void define_free(struct server *s);

#endif
