/* SPDX-License-Identifier: Apache-2.0 */
/* Takes every frame that links and sessions bring. link/ calls through link_events. One table has a
 * row for each op with its body, its handlers for a session and for a node, and what a failure
 * means. Happy path: the op has a row, its body unpacks, and the handler runs. Beside the table go
 * messages of the cores, tensor parts, whose place in memory is chosen here, and answers, which go
 * to their call. A request that fails is answered with the reason, and any other failure closes the
 * connection. Frames of an unknown model are dropped. Permission is checked here, by the op's row,
 * on the node that acts, so that no handler can forget it. DEFINE and RESTORE check it themselves,
 * because they act later than their frame comes, on a model that the frame may not name. */
#include "dispatch.h"
#include "ckpt/ckpt.h"
#include "ckpt/share.h"
#include "ckpt/verify.h"

#include "control/access.h"
#include "control/admit.h"
#include "control/anew.h"
#include "data/apply.h"
#include "data/images.h"
#include "data/blobs.h"
#include "data/grad.h"
#include "control/attach.h"
#include "control/blob.h"
#include "control/define.h"
#include "control/drop.h"
#include "control/have.h"
#include "link/call.h"
#include "link/events.h"
#include "link/intake.h"
#include "link/session.h"
#include "control/manage.h"
#include "control/move.h"
#include "model/rooms.h"
#include "model/model.h"
#include "model/lead.h"
#include "model/join.h"
#include "obs/everywhere.h"
#include "obs/health.h"
#include "obs/history.h"
#include "obs/waits.h"
#include "link/peer.h"
#include "data/catchup.h"
#include "data/patches.h"
#include "data/mr.h"
#include "control/transfer.h"
#include "control/unmade.h"
#include "wire/control.h"
#include "wire/ops.h"

#include "base/check.h"
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* --- requests and news of a node --- */

static enum shard_status on_define(struct peer *p, const struct wire_head *h,
				   const ProtobufCMessage *msg, struct err *e)
{
	return define_node_request(p, h, (const Shard__Define *)msg, e);
}

static enum shard_status on_seal(struct peer *p, const struct wire_head *h,
				 const ProtobufCMessage *msg, struct err *e)
{
	return define_node_seal(p, h, (const Shard__Seal *)msg, e);
}

static enum shard_status on_read(struct peer *p, const struct wire_head *h,
				 const ProtobufCMessage *msg, struct err *e)
{
	return transfer_node_read(p, h, (const Shard__Read *)msg, e);
}

static enum shard_status on_model(struct peer *p, const struct wire_head *h,
				  const ProtobufCMessage *msg, struct err *e)
{
	return have_model(p, h, (const Shard__Model *)msg, e);
}

static enum shard_status on_held(struct peer *p, const struct wire_head *h,
				 const ProtobufCMessage *msg, struct err *e)
{
	const Shard__Memory *body = (const Shard__Memory *)msg;
	struct model *m = model_find(p->server, h->model);

	if (m != NULL && body->incarnation == 0)
		ckpt_memory_gone(m, p->node);
	return have_held(p, h, body, e);
}

static enum shard_status on_room(struct peer *p, const struct wire_head *h,
				 const ProtobufCMessage *msg, struct err *e)
{
	return rooms_asked(model_find(p->server, h->model), p, h, (const Shard__Tables *)msg, e);
}

static enum shard_status on_capacity(struct peer *p, const struct wire_head *h,
				     const ProtobufCMessage *msg, struct err *e)
{
	(void)h, (void)e;
	move_capacity(p, (const Shard__Capacity *)msg);
	return SHARD_OK;
}

static enum shard_status on_nodes(struct peer *p, const struct wire_head *h,
				  const ProtobufCMessage *msg, struct err *e)
{
	(void)h;
	return intake_told(p, (const Shard__Nodes *)msg, e);
}

static enum shard_status on_health(struct peer *p, const struct wire_head *h,
				   const ProtobufCMessage *msg, struct err *e)
{
	(void)h;
	return health_told(p, (const Shard__Health *)msg, e);
}

static enum shard_status on_model_drop(struct peer *p, const struct wire_head *h,
				       const ProtobufCMessage *msg, struct err *e)
{
	(void)e;
	drop_told(p, h, (const Shard__Why *)msg);
	if (p->node == server_coordinator(p->server) && model_find(p->server, h->model) == NULL &&
	    model_making(p->server, h->model) == NULL) {
		anew_forget(p->server, h->model);
		history_forget(p->server, h->model);
	}
	return SHARD_OK;
}

static enum shard_status on_manage(struct peer *p, const struct wire_head *h,
				   const ProtobufCMessage *msg, struct err *e)
{
	return manage_node_request(p, h, (const Shard__Manage *)msg, e);
}

static enum shard_status on_progress(struct peer *p, const struct wire_head *h,
				     const ProtobufCMessage *msg, struct err *e)
{
	(void)e;
	call_progress(p->server, p->node, h, (const Shard__Progress *)msg);
	return SHARD_OK;
}

static enum shard_status on_part_cancel(struct peer *p, const struct wire_head *h,
					const ProtobufCMessage *msg, struct err *e)
{
	(void)msg, (void)e;
	ckpt_part_cancel(p, h);
	verify_unwanted(p, h);
	return SHARD_OK;
}

static enum shard_status on_written(struct peer *p, const struct wire_head *h,
				    const ProtobufCMessage *msg, struct err *e)
{
	return define_written(p, h, (const Shard__Written *)msg, e);
}

static enum shard_status on_detached(struct peer *p, const struct wire_head *h,
				     const ProtobufCMessage *msg, struct err *e)
{
	(void)h, (void)e;
	define_detached(p->server, p->node, ((const Shard__Trainer *)msg)->session);
	return SHARD_OK;
}

static enum shard_status on_node_image_ask(struct peer *p, const struct wire_head *h,
					   const ProtobufCMessage *msg, struct err *e)
{
	struct model *m = model_find(p->server, h->model);

	(void)e;
	if (m != NULL && h->generation == m->generation)
		images_asked(m, p->node, (const Shard__Chunks *)msg);
	return SHARD_OK;
}

static enum shard_status on_blob(struct peer *p, const struct wire_head *h,
				 const ProtobufCMessage *msg, struct err *e)
{
	return blob_node_request(p, h, (const Shard__Blob *)msg, e);
}

static enum shard_status on_contrib(struct peer *p, const struct wire_head *h,
				    const ProtobufCMessage *msg, struct err *e)
{
	struct model *m = model_find(p->server, h->model);

	return m != NULL ? contrib_node(m, p, h, (const Shard__Push *)msg, e) : SHARD_OK;
}

static enum shard_status on_grad(struct peer *p, const struct wire_head *h,
				 const ProtobufCMessage *msg, struct err *e)
{
	struct model *m = model_find(p->server, h->model);

	return m != NULL ? contrib_node_grad(m, p, h, (const Shard__Grad *)msg, e) : SHARD_OK;
}

static enum shard_status on_copy_ask(struct peer *p, const struct wire_head *h,
				     const ProtobufCMessage *msg, struct err *e)
{
	struct model *m = model_find(p->server, h->model);

	(void)msg;
	return m != NULL ? catchup_asked(m, p, h, e) : SHARD_OK;
}

static enum shard_status on_rail(struct peer *p, const struct wire_head *h,
				 const ProtobufCMessage *msg, struct err *e)
{
	(void)h;
	return rdma_link_told(p, (const Shard__Rail *)msg, e);
}

static enum shard_status on_region(struct peer *p, const struct wire_head *h,
				   const ProtobufCMessage *msg, struct err *e)
{
	return mr_told(p, h, (const Shard__Regions *)msg, e);
}

static enum shard_status on_node_ping(struct peer *p, const struct wire_head *h,
				      const ProtobufCMessage *msg, struct err *e)
{
	(void)msg, (void)e;
	if (h->model != 0)
		drop_unknown(p, h->model, h->attempt == 0);
	return SHARD_OK; /* Both ends send PINGs, only to be heard. */
}

static enum shard_status on_error(struct peer *p, const struct wire_head *h,
				  const ProtobufCMessage *msg, struct err *e)
{
	const Shard__Error *body = (const Shard__Error *)msg;

	(void)h;
	if (body->status == SHARD_CLOSED) {
		/* Not this node's fault: the other node leaves. */
		p->leaves = true;
		return err_set(e, SHARD_CLOSED, "%s", body->text);
	}
	return err_set(e, SHARD_CLOSED, "node %s refused: %s", members_name(p->server, p->node),
		       body->text);
}

/* --- requests of a session --- */

/* Of IMAGE_ASK: the image is sent with the first attempt that the trainer is in. Before that
 * nothing keeps it unchanged. */
static enum shard_status on_trainer_nothing(struct session *t, const struct wire_head *h,
					    const ProtobufCMessage *msg, struct err *e)
{
	(void)t, (void)h, (void)msg, (void)e;
	return SHARD_OK;
}

static enum shard_status on_trainer_ping(struct session *t, const struct wire_head *h,
					 const ProtobufCMessage *msg, struct err *e)
{
	struct wire_head pong = {.op = OP_PONG};

	(void)h, (void)msg, (void)e;
	session_tell(t, &pong, NULL);
	return SHARD_OK;
}

/* --- the table --- */

typedef enum shard_status (*trainer_op)(struct session *t, const struct wire_head *h,
					const ProtobufCMessage *msg, struct err *e);
typedef enum shard_status (*node_op)(struct peer *p, const struct wire_head *h,
				     const ProtobufCMessage *msg, struct err *e);

/* What the requester needs. 0: nobody has said, and the op is for no session. */
enum op_access {
	/* It names no model, or it is STATUS, which shows of each model what the requester
	 * may know. */
	NO_MODEL = 1,
	READS,  /* Read permission of the model that it names. */
	WRITES, /* Write permission of that model. */
	/* It is about the model that the session has joined. JOIN has checked that. */
	JOINED,
	LATER, /* The handler checks when it knows the model and acts on it. */
};

/* A failed request is answered with the reason; any other failure closes the connection. */
static const struct op {
	const ProtobufCMessageDescriptor *body; /* NULL: there is none. */
	trainer_op trainer;                     /* NULL: not for a session. */
	node_op node;                           /* NULL: not for a link. */
	bool request;
	/* Checked for a session, and for a node's frame that says who asks. */
	enum op_access access;
	/* Offsets in the body. cred: the field in which a node says who asks. Such a request is
	 * judged where it is carried out, on the coordinator. name: the field with the model's
	 * name; 0: the header has the model's number. */
	size_t cred, name;
} ops[OP_NR] = {
	[OP_ERROR] = {.body = &shard__error__descriptor, .node = on_error},
	[OP_PING] = {.trainer = on_trainer_ping, .node = on_node_ping, .access = NO_MODEL},
	[OP_PONG] = {.trainer = on_trainer_nothing, .node = on_node_ping, .access = NO_MODEL},

	/* Its body is raw bytes. */
	[OP_DEFINE] = {.body = &shard__define__descriptor,
		       .trainer = define_request,
		       .node = on_define,
		       .request = true,
		       .access = LATER,
		       .cred = offsetof(Shard__Define, cred)},
	[OP_ATTACH] = {.body = &shard__attach__descriptor,
		       .trainer = attach_request,
		       .request = true,
		       .access = READS,
		       .name = offsetof(Shard__Attach, name)},
	[OP_WRITE] = {.access = WRITES},
	[OP_SEAL] = {.body = &shard__seal__descriptor,
		     .trainer = define_seal_request,
		     .node = on_seal,
		     .request = true,
		     .access = WRITES},
	[OP_READ] = {.body = &shard__read__descriptor,
		     .trainer = transfer_read_request,
		     .node = on_read,
		     .request = true,
		     .access = READS},
	[OP_MANAGE] = {.body = &shard__manage__descriptor,
		       .trainer = manage_request,
		       .node = on_manage,
		       .request = true,
		       .access = WRITES,
		       .cred = offsetof(Shard__Manage, cred),
		       .name = offsetof(Shard__Manage, name)},
	[OP_SAVE] = {.body = &shard__save__descriptor,
		     .trainer = ckpt_save_request,
		     .node = ckpt_node_save,
		     .request = true,
		     .access = WRITES,
		     .cred = offsetof(Shard__Save, cred),
		     .name = offsetof(Shard__Save, name)},
	[OP_RESTORE] = {.body = &shard__restore__descriptor,
			.trainer = ckpt_restore_request,
			.node = ckpt_node_restore,
			.request = true,
			.access = LATER,
			.cred = offsetof(Shard__Restore, cred)},
	[OP_VERIFY] = {.body = &shard__attach__descriptor,
		       .trainer = verify_request,
		       .node = verify_node,
		       .request = true,
		       .access = WRITES,
		       .cred = offsetof(Shard__Attach, cred),
		       .name = offsetof(Shard__Attach, name)},
	[OP_BLOB] = {.body = &shard__blob__descriptor,
		     .trainer = blob_request,
		     .node = on_blob,
		     .request = true,
		     .access = READS},

	[OP_MOVE] = {.body = &shard__move__descriptor,
		     .trainer = move_request,
		     .node = move_node_request,
		     .request = true,
		     .access = NO_MODEL},
	[OP_HISTORY] = {.body = &shard__history__descriptor,
			.trainer = history_request,
			.node = history_node_request,
			.request = true,
			.access = READS,
			.name = offsetof(Shard__History, name)},
	[OP_STATUS] = {.body = &shard__look__descriptor,
		       .trainer = everywhere_request,
		       .node = everywhere_node_request,
		       .request = true,
		       .access = NO_MODEL,
		       .cred = offsetof(Shard__Look, cred)},
	[OP_WAITS] = {.trainer = waits_request, .request = true, .access = READS},
	[OP_JOIN] = {.body = &shard__join__descriptor,
		     .trainer = join_request,
		     .request = true,
		     .access = WRITES},
	[OP_DEVICE] = {.body = &shard__device__descriptor,
		       .trainer = join_device,
		       .request = true,
		       .access = JOINED},
	[OP_LEAVE] = {.trainer = join_leave, .request = true, .access = JOINED},
	[OP_PUSH] = {.body = &shard__push__descriptor, .trainer = join_push, .access = JOINED},
	[OP_READY] = {.body = &shard__ready__descriptor, .trainer = join_ready, .access = JOINED},
	[OP_ABANDON] = {.body = &shard__why__descriptor, .trainer = join_abandon, .access = JOINED},
	[OP_IMAGE_ASK] = {.body = &shard__chunks__descriptor,
			  .trainer = on_trainer_nothing,
			  .node = on_node_image_ask,
			  .access = JOINED},

	[OP_MODEL] = {.body = &shard__model__descriptor, .node = on_model, .request = true},
	[OP_MODEL_DROP] = {.body = &shard__why__descriptor, .node = on_model_drop},
	[OP_WRITTEN] = {.body = &shard__written__descriptor, .node = on_written, .request = true},
	[OP_PROGRESS] = {.body = &shard__progress__descriptor, .node = on_progress},
	[OP_SAVE_PART] = {.body = &shard__save_part__descriptor,
			  .node = ckpt_save_part,
			  .request = true},
	[OP_LOAD_PART] = {.body = &shard__load_part__descriptor,
			  .node = ckpt_load_part,
			  .request = true},
	[OP_VERIFY_PART] = {.node = ckpt_verify_part, .request = true},
	[OP_PART_CANCEL] = {.node = on_part_cancel},
	[OP_DETACHED] = {.body = &shard__trainer__descriptor, .node = on_detached},
	[OP_CONTRIB] = {.body = &shard__push__descriptor, .node = on_contrib},
	[OP_RAIL] = {.body = &shard__rail__descriptor, .node = on_rail},
	[OP_REGION] = {.body = &shard__regions__descriptor, .node = on_region},
	[OP_GRAD] = {.body = &shard__grad__descriptor, .node = on_grad},
	[OP_HELD] = {.body = &shard__memory__descriptor, .node = on_held},
	[OP_COPY_ASK] = {.node = on_copy_ask},
	[OP_ROOM] = {.body = &shard__tables__descriptor, .node = on_room, .request = true},
	[OP_CAPACITY] = {.body = &shard__capacity__descriptor, .node = on_capacity},
	[OP_NODES] = {.body = &shard__nodes__descriptor, .node = on_nodes},
	[OP_NODE_ADD] = {.body = &shard__nodes__descriptor,
			 .node = admit_node_request,
			 .request = true},
	[OP_HEALTH] = {.body = &shard__health__descriptor, .node = on_health},
};

/* May the requester do this with the model that the frame names? If there is no such model here,
 * the handler says so. */
static enum shard_status allowed(struct server *s, const struct op *op, const struct wire_head *h,
				 const ProtobufCMessage *msg, const Shard__Cred *who, struct err *e)
{
	const struct model *m;
	const char *name;

	if (op->access != READS && op->access != WRITES)
		return SHARD_OK;
	if (op->name != 0)
		memcpy(&name, (const char *)msg + op->name, sizeof(name));
	m = op->name != 0 ? model_by_name(s, name) : model_find(s, h->model);
	return m != NULL ? access_check(m, who, op->access == WRITES, e) : SHARD_OK;
}

static enum shard_status session_allowed(const struct session *t, const struct wire_head *h,
					 const ProtobufCMessage *msg, struct err *e)
{
	const struct op *op = &ops[h->op];
	uint32_t groups[SESSION_GROUPS_MAX];
	Shard__Cred who;

	CHECK(op->access != 0);
	if (h->model != 0 && unmade_check_number(t->server, h->model, e) != SHARD_OK)
		return e->status;
	if (op->cred != 0 && !server_leads(t->server))
		return SHARD_OK; /* The request is passed on with the requester. */
	access_cred(t, &who, groups);
	return allowed(t->server, op, h, msg, &who, e);
}

/* --- frames of a link --- */

static enum shard_status node_body(struct peer *p, const struct wire_head *h, void **to,
				   struct landing **l, struct err *e)
{
	struct model *m = model_find(p->server, h->model);
	enum shard_status st;

	/* The stream itself keeps answers and WRITEs until they are whole, because what they are
	 * for may end meanwhile. */
	if (h->flags & WIRE_REPLY) {
		if (call_find(p->server, p->node, h->attempt) == NULL)
			*to = STREAM_DISCARD;
		return SHARD_OK;
	}
	if (h->op == OP_WRITE) {
		transfer_node_write_head(p, h, to);
		return SHARD_OK;
	}
	if (h->op == OP_MEMBER || h->op == OP_COPY_DATA || h->op == OP_BLOB_DATA)
		return SHARD_OK; /* The stream keeps it. */
	*to = STREAM_DISCARD;
	if (m == NULL)
		return SHARD_OK;
	if (h->op == OP_CONTRIB_DATA)
		st = contrib_node_head(m, p, h, to, e);
	else if (h->op == OP_GRAD_DATA)
		st = grad_node_head(m, p, h, to, e);
	else if (h->op == OP_IMAGE_CODES)
		st = patches_head(m, p, h, to, e);
	else
		st = apply_image_head(m, h, to, e);
	if (st == SHARD_OK && *to != STREAM_DISCARD)
		*l = h->op == OP_IMAGE_DATA || h->op == OP_IMAGE_CODES ? &m->img.landing
								       : &m->attempt.landing;
	return st;
}

/* A contribution is read from memory that its trainer can write, so it may change between the sum
 * and the sending. That spoils only one attempt of one model. So does a reduced gradient. Any other
 * damaged body is the fault of the network or a machine, and nothing on such a link can be trusted.
 */
static bool node_damaged(struct peer *p, const struct wire_head *h)
{
	struct model *m = model_find(p->server, h->model);

	if ((h->op != OP_CONTRIB_DATA && h->op != OP_GRAD_DATA) || (h->flags & WIRE_REPLY))
		return false;
	if (m != NULL && h->op == OP_CONTRIB_DATA)
		contrib_node_damaged(m, p, h);
	else if (m != NULL)
		grad_node_damaged(m, p, h);
	return true;
}

static enum shard_status copy_part(struct model *m, struct peer *p, const struct wire_head *h,
				   const void *body, struct err *e)
{
	enum shard_status st = catchup_part(m, p, h, body, e);

	if (st == SHARD_OK)
		apply_stage_again(m); /* A vote may have waited for it. */
	return st;
}

static enum shard_status bulk(struct peer *p, const struct wire_head *h, const void *body,
			      struct err *e)
{
	struct model *m = model_find(p->server, h->model);

	if (h->op == OP_MEMBER)
		return lead_message(p, body, h->body_bytes, e);
	if (h->op == OP_WRITE)
		transfer_node_write_frame(p, h, body);
	if (h->op == OP_WRITE || m == NULL)
		return SHARD_OK;
	if (h->op == OP_COPY_DATA)
		return copy_part(m, p, h, body, e);
	if (h->op == OP_BLOB_DATA)
		return blobs_came(m, p, h, body, e);
	if (h->op == OP_CONTRIB_DATA)
		return contrib_node_data(m, p, h, e);
	if (h->op == OP_IMAGE_CODES)
		return patches_part(m, h, e);
	return h->op == OP_GRAD_DATA ? grad_node_data(m, p, h, e) : apply_image_part(m, h, e);
}

static enum shard_status answered(struct peer *p, const struct wire_head *h, const void *body,
				  struct err *e)
{
	struct server *s = p->server;
	struct call *r = call_find(s, p->node, h->attempt);
	const ProtobufCMessage *msg;
	enum shard_status st;
	struct err why;

	if (r == NULL)
		return SHARD_OK;
	if (h->op != OP_ERROR) {
		if (h->op != r->op)
			return err_set(e, SHARD_PROTOCOL, "answer %s to request %s",
				       wire_op(h->op)->name, wire_op(r->op)->name);
		call_answer(s, r, h, body);
		return SHARD_OK;
	}
	st = control_unpack(&msg, &shard__error__descriptor, body, h->body_bytes, &s->scratch.rx,
			    e);
	if (st == SHARD_OK) {
		const Shard__Error *x = (const Shard__Error *)msg;

		/* Nobody could act on a refusal with status OK. */
		err_set(&why, x->status != SHARD_OK ? (enum shard_status)x->status : SHARD_PROTOCOL,
			"%s", x->text);
		why.sys = (int)x->sys;
		arena_reset(&s->scratch.rx);
		call_refuse(s, r, &why);
	}
	return st;
}

static enum shard_status core_frame(struct peer *p, const struct wire_head *h, const void *body,
				    struct err *e)
{
	struct model *m = model_find(p->server, h->model);
	const ProtobufCMessage *msg;
	enum shard_status st = SHARD_OK;

	if (m == NULL || m->defining)
		return SHARD_OK;
	st = control_unpack(&msg, &shard__core__descriptor, body, h->body_bytes,
			    &p->server->scratch.rx, e);
	if (st == SHARD_OK)
		st = model_core_frame(m, p, h, (const Shard__Core *)msg, e);
	arena_reset(&p->server->scratch.rx);
	return st;
}

/* Judges what the other node says of a user before any handler sees it. The message belongs to this
 * call, so it may be changed. For a request that does not say who asks, the requester's own node
 * has judged. */
static enum shard_status judge_cred(struct peer *p, const struct op *op, const struct wire_head *h,
				    const ProtobufCMessage *msg, struct err *e)
{
	Shard__Cred *who;

	if (op->cred == 0)
		return SHARD_OK;
	memcpy(&who, (const char *)msg + op->cred, sizeof(who));
	if (who != NULL)
		access_from_node(p->server, p->node, who);
	return allowed(p->server, op, h, msg, who, e);
}

static enum shard_status control(struct peer *p, const struct wire_head *h, const void *body,
				 struct err *e)
{
	const struct op *op = &ops[h->op];
	const ProtobufCMessage *msg;
	enum shard_status st;
	void *memory;

	st = server_unpack(p->server, h, op->body, body, &msg, &memory, e);
	if (st == SHARD_OK) {
		st = judge_cred(p, op, h, msg, e);
		if (st == SHARD_OK)
			st = op->node(p, h, msg, e);
		if (st != SHARD_OK && op->request) {
			peer_refuse(p, h->attempt, e);
			st = SHARD_OK;
		}
	}
	arena_reset(&p->server->scratch.rx);
	free(memory);
	return st;
}

static enum shard_status node_frame(struct peer *p, const struct wire_head *h, const void *body,
				    struct err *e)
{
	lead_wake(p->server);
	if (h->flags & WIRE_REPLY)
		return answered(p, h, body, e);
	if (wire_op(h->op)->body == BODY_BULK)
		return bulk(p, h, body, e);
	if (h->op > OP_CORE)
		return core_frame(p, h, body, e);
	if (ops[h->op].node == NULL)
		return err_set(e, SHARD_PROTOCOL, "frame %s is not for a node",
			       wire_op(h->op)->name);
	return control(p, h, body, e);
}

static void node_up(struct server *s, uint16_t node)
{
	CHECK(node < s->nodes_nr && node != s->self);
	intake_node_up(s, node);
	health_node_up(s, node);
	lead_node_up(s, node);
	define_node_up(s, node);
	list_each(it, &s->models)
		if (server_leads(s) && !list_of(it, struct model, link)->defining)
			ckpt_node_up(list_of(it, struct model, link), node);
}

static void node_added(struct server *s, uint16_t node)
{
	list_each(it, &s->models)
		model_node_added(list_of(it, struct model, link), node);
}

static void node_going(struct server *s, uint16_t node)
{
	list_each(it, &s->models)
		apply_node_gone(list_of(it, struct model, link), node);
}

static void node_down(struct server *s, uint16_t node, const struct err *why)
{
	CHECK(node < s->nodes_nr && node != s->self);
	lead_node_down(s, node);
	call_node_gone(s, node, why);
	ckpt_node_gone(s, node);
	define_node_down(s, node, why);
}

static enum shard_status rdma_body(struct peer *p, const struct wire_head *h, void **to,
				   struct err *e)
{
	struct model *m = model_find(p->server, h->model);

	CHECK(m != NULL); /* node_body() has found it. */
	if (mr_landed(m, p->node, h, to))
		return SHARD_OK;
	return err_set(e, SHARD_PROTOCOL,
		       "frame %s by RDMA of chunk %u of \"%s\", for which no memory was told",
		       wire_op(h->op)->name, h->chunk, m->name);
}

/* --- frames of a session --- */

static enum shard_status session_body(struct session *t, const struct wire_head *h, void **to,
				      struct landing **l, struct err *e)
{
	enum shard_status st;
	struct err why;

	if (h->op == OP_WRITE) {
		if (session_allowed(t, h, NULL, &why) == SHARD_OK)
			return transfer_write_head(t, h, to, e);
		session_refuse(t, h->attempt, &why);
		*to = STREAM_DISCARD;
		return SHARD_OK;
	}
	st = contrib_push_head(t->trainer, h, to, e);
	if (st == SHARD_OK && *to != STREAM_DISCARD)
		*l = &t->trainer->model->attempt.landing;
	return st;
}

static enum shard_status session_frame(struct session *t, const struct wire_head *h,
				       const void *body, struct err *e)
{
	const struct op *op = &ops[h->op];
	const ProtobufCMessage *msg;
	enum shard_status st;
	bool refused = false;
	void *memory;

	if (h->op == OP_PUSH_DATA)
		return contrib_push_data(t->trainer, h, e);
	if (h->op == OP_WRITE) {
		transfer_write_frame(t, h, body);
		return SHARD_OK;
	}
	if (op->trainer == NULL)
		return err_set(e, SHARD_PROTOCOL, "frame %s is not for this connection",
			       wire_op(h->op)->name);
	st = server_unpack(t->server, h, op->body, body, &msg, &memory, e);
	if (st == SHARD_OK && ((st = session_allowed(t, h, msg, e)) != SHARD_OK ||
			       (st = op->trainer(t, h, msg, e)) != SHARD_OK))
		refused = op->request;
	else if (st == SHARD_BAD_ARG) /* A malformed text only costs the request. */
		refused = op->request;
	if (refused) {
		session_refuse(t, h->attempt, e);
		st = SHARD_OK;
	}
	arena_reset(&t->server->scratch.rx);
	free(memory);
	return st;
}

static void session_gone(struct session *t, const char *why)
{
	join_closed(t, why);
	if (t->uses)
		define_detached(t->server, t->server->self, t->id);
	transfer_session_gone(t->server, t->id);
}

const struct link_events dispatch_events = {
	.session_opened = join_opened,
	.session_body = session_body,
	.session_frame = session_frame,
	.session_gone = session_gone,
	.node_body = node_body,
	.node_frame = node_frame,
	.node_damaged = node_damaged,
	.node_up = node_up,
	.node_room = admit_room,
	.node_added = node_added,
	.node_joins = admit_asked,
	.node_going = node_going,
	.node_down = node_down,
	.rdma_body = rdma_body,
	.rdma_up = mr_rail_up,
	.rdma_down = mr_rail_down,
	.rdma_beat = mr_beat,
	.rdma_told = mr_heard,
	.rdma_lacks = mr_why,
	.rdma_forget = mr_forget,
};
