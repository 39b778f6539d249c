/* SPDX-License-Identifier: Apache-2.0 */
/* What a node may say on a link that is up: one table of ops, their bodies and where they go; messages of the cores; bulk, which lands
 * where the model says; answers, which go to who asked. peer.c calls for each frame. A status other than SHARD_OK ends the link,
 * but for a request, which is refused by name. Frames of an unknown model are dropped. */
#include "peer_ops.h"

#include "apply.h"
#include "blobs.h"
#include "define.h"
#include "drop.h"
#include "manage.h"
#include "model.h"
#include "regions.h"
#include "relay.h"
#include "transfer.h"
#include "wire/control.h"
#include "wire/ops.h"

#include <stdlib.h>
static enum shard_status on_define(struct peer *p, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e)
{
	return define_node_request(p, h, (const Shard__Define *)msg, e);
}

static enum shard_status on_seal(struct peer *p, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e)
{
	return define_node_seal(p, h, (const Shard__Seal *)msg, e);
}

static enum shard_status on_read(struct peer *p, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e)
{
	return transfer_node_read(p, h, (const Shard__Read *)msg, e);
}

static enum shard_status on_model(struct peer *p, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e)
{
	return define_model(p, h, (const Shard__Model *)msg, e);
}

static enum shard_status on_model_drop(struct peer *p, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e)
{
	(void)e;
	drop_told(p, h, (const Shard__Why *)msg);
	return SHARD_OK;
}

static enum shard_status on_manage(struct peer *p, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e)
{
	return manage_node_request(p, h, (const Shard__Manage *)msg, e);
}

static enum shard_status on_progress(struct peer *p, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e)
{
	(void)e;
	relay_progress(p->server, p->node, h, (const Shard__Progress *)msg);
	return SHARD_OK;
}

static enum shard_status on_part_cancel(struct peer *p, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e)
{
	(void)msg, (void)e;
	ckpt_part_cancel(p, h);
	return SHARD_OK;
}

static enum shard_status on_written(struct peer *p, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e)
{
	(void)msg;
	return define_written(p, h, e);
}

static enum shard_status on_detached(struct peer *p, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e)
{
	(void)h, (void)e;
	define_detached(p->server, p->node, ((const Shard__Trainer *)msg)->session);
	return SHARD_OK;
}

static enum shard_status on_image_ask(struct peer *p, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e)
{
	struct model *m = model_find(p->server, h->model);

	(void)e;
	if (m != NULL && h->generation == m->generation)
		apply_image_asked(m, p->node, (const Shard__Chunks *)msg);
	return SHARD_OK;
}

static enum shard_status on_blob(struct peer *p, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e)
{
	return blobs_node_request(p, h, (const Shard__Blob *)msg, e);
}

static enum shard_status on_contrib(struct peer *p, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e)
{
	struct model *m = model_find(p->server, h->model);

	return m != NULL ? gather_contrib(m, p, h, (const Shard__Push *)msg, e) : SHARD_OK;
}

static enum shard_status on_rail(struct peer *p, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e)
{
	(void)h;
	return rail_told(p, (const Shard__Rail *)msg, e);
}

static enum shard_status on_region(struct peer *p, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e)
{
	return regions_told(p, h, (const Shard__Regions *)msg, e);
}

static enum shard_status on_ping(struct peer *p, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e)
{
	(void)msg, (void)e;
	if (h->model != 0)
		drop_unknown(p, h->model);
	return SHARD_OK; /* both ends send them; being heard is what they are for */
}

static enum shard_status on_error(struct peer *p, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e)
{
	const Shard__Error *body = (const Shard__Error *)msg;

	(void)h;
	if (body->status == SHARD_CLOSED) { /* not this node's fault: the other one leaves */
		p->leaves = true;
		return err_set(e, SHARD_CLOSED, "%s", body->text);
	}
	return err_set(e, SHARD_CLOSED, "node %s refused: %s", server_node_name(p->server, p->node), body->text);
}

static const struct peer_op {
	enum shard_status (*run)(struct peer *p, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e);
	const ProtobufCMessageDescriptor *body;
	bool request; /* a failure is its answer; else it closes the link */
} ops[OP_NR] = {
	[OP_ERROR] = {on_error, &shard__error__descriptor, false},
	[OP_PING] = {on_ping, NULL, false},
	[OP_PONG] = {on_ping, NULL, false},
	[OP_DEFINE] = {on_define, &shard__define__descriptor, true},
	[OP_SEAL] = {on_seal, &shard__seal__descriptor, true},
	[OP_READ] = {on_read, &shard__read__descriptor, true},
	[OP_MODEL] = {on_model, &shard__model__descriptor, true},
	[OP_MODEL_DROP] = {on_model_drop, &shard__why__descriptor, false},
	[OP_MANAGE] = {on_manage, &shard__manage__descriptor, true},
	[OP_WRITTEN] = {on_written, NULL, true},
	[OP_SAVE] = {ckpt_node_save, &shard__save__descriptor, true},
	[OP_RESTORE] = {ckpt_node_restore, &shard__restore__descriptor, true},
	[OP_PROGRESS] = {on_progress, &shard__progress__descriptor, false},
	[OP_SAVE_PART] = {ckpt_save_part, &shard__save_part__descriptor, true},
	[OP_LOAD_PART] = {ckpt_load_part, &shard__load_part__descriptor, true},
	[OP_PART_CANCEL] = {on_part_cancel, NULL, false},
	[OP_DETACHED] = {on_detached, &shard__trainer__descriptor, false},
	[OP_IMAGE_ASK] = {on_image_ask, &shard__chunks__descriptor, false},
	[OP_BLOB] = {on_blob, &shard__blob__descriptor, true},
	[OP_CONTRIB] = {on_contrib, &shard__push__descriptor, false},
	[OP_RAIL] = {on_rail, &shard__rail__descriptor, false},
	[OP_REGION] = {on_region, &shard__regions__descriptor, false},
};

enum shard_status peer_ops_bulk_head(struct peer *p, const struct wire_head *h, void **to, struct err *e)
{
	struct model *m = model_find(p->server, h->model);
	struct relay *r;

	if (h->op == OP_WRITE && !(h->flags & WIRE_REPLY))
		return transfer_node_write_head(p, h, to, e);
	*to = STREAM_DISCARD;
	if (h->op == OP_READ) { /* an answer */
		r = relay_find(p->server, p->node, h->attempt);
		if (r == NULL || r->buffer != NULL || (r->buffer = malloc(h->body_bytes)) == NULL)
			return SHARD_OK;
		*to = r->buffer;
		return SHARD_OK;
	}
	if (m == NULL)
		return SHARD_OK;
	return h->op == OP_CONTRIB_DATA ? gather_contrib_head(m, p, h, to, e) : apply_image_head(m, h, to, e);
}

static enum shard_status bulk(struct peer *p, const struct wire_head *h, struct err *e)
{
	struct model *m = model_find(p->server, h->model);

	if (h->op == OP_WRITE)
		transfer_node_write_frame(p, h);
	if (h->op == OP_WRITE || m == NULL)
		return SHARD_OK;
	return h->op == OP_CONTRIB_DATA ? gather_contrib_data(m, p, h, e) : apply_image_part(m, h, e);
}

static enum shard_status answered(struct peer *p, const struct wire_head *h, const void *body, struct err *e)
{
	struct server *s = p->server;
	struct relay *r = relay_find(s, p->node, h->attempt);
	const ProtobufCMessage *msg;
	enum shard_status st;
	struct err why;

	if (r == NULL)
		return SHARD_OK;
	if (h->op != OP_ERROR) {
		if (h->op != r->op)
			return err_set(e, SHARD_PROTOCOL, "answer %s to request %s", wire_op(h->op)->name, wire_op(r->op)->name);
		relay_answer(s, r, h, body);
		return SHARD_OK;
	}
	st = control_unpack(&msg, &shard__error__descriptor, body, h->body_bytes, &s->rx, e);
	if (st == SHARD_OK) {
		const Shard__Error *x = (const Shard__Error *)msg;

		err_set(&why, (enum shard_status)x->status, "%s", x->text);
		why.sys = (int)x->sys;
		arena_reset(&s->rx);
		relay_refuse(s, r, &why);
	}
	return st;
}

static enum shard_status core_frame(struct peer *p, const struct wire_head *h, const void *body, struct err *e)
{
	struct model *m = model_find(p->server, h->model);
	const ProtobufCMessage *msg;
	enum shard_status st = SHARD_OK;

	if (m == NULL || m->defining)
		return SHARD_OK;
	st = control_unpack(&msg, &shard__core__descriptor, body, h->body_bytes, &p->server->rx, e);
	if (st == SHARD_OK)
		st = model_core_frame(m, p, h, (const Shard__Core *)msg, e);
	arena_reset(&p->server->rx);
	return st;
}

static enum shard_status control(struct peer *p, const struct wire_head *h, const void *body, struct err *e)
{
	const struct peer_op *op = &ops[h->op];
	const ProtobufCMessage *msg;
	enum shard_status st;
	void *memory;

	st = server_unpack(p->server, h, op->body, body, &msg, &memory, e);
	if (st == SHARD_OK) {
		st = op->run(p, h, msg, e);
		if (st != SHARD_OK && op->request) {
			peer_refuse(p, h->attempt, e);
			st = SHARD_OK;
		}
	}
	arena_reset(&p->server->rx);
	free(memory);
	return st;
}

enum shard_status peer_ops_frame(struct peer *p, const struct wire_head *h, const void *body, struct err *e)
{
	if (h->flags & WIRE_REPLY)
		return answered(p, h, body, e);
	if (wire_op(h->op)->body == BODY_BULK)
		return bulk(p, h, e);
	if (h->op > OP_CORE)
		return core_frame(p, h, body, e);
	if (ops[h->op].run == NULL)
		return err_set(e, SHARD_PROTOCOL, "frame %s is not for a node", wire_op(h->op)->name);
	return control(p, h, body, e);
}
