/* SPDX-License-Identifier: Apache-2.0 */
/* Shares of a save or restore: the coordinator asks every node for its own, sums up their progress, keeps the first failure and waits for
 * the others' end; a node's side of the asking is here too, the work is part.c's. An answer of a share that was given up is ignored.
 * A link that falls answers for its node. */
#include "ckpt/op.h"

#include "base/check.h"
#include "base/clock.h"
#include "define.h"
#include "peer.h"
#include "relay.h"
#include "session.h"
#include "wire/control.h"
#include "wire/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void ckpt_op_tell(struct ckpt_op *op)
{
	struct server *s = op->server;
	struct session *t = ckpt_op_session(op);
	Shard__Progress body = SHARD__PROGRESS__INIT;
	struct wire_head h = {.op = OP_PROGRESS, .attempt = op->asker.tag};
	struct core_id id = {.attempt = op->asker.tag};
	uint64_t now = clock_ns();

	if (!op->asked || op->m == NULL || now - op->told_ns < CKPT_PROGRESS_NS)
		return;
	h.model = op->m->id;
	id.generation = op->m->generation;
	op->told_ns = now;
	for (uint16_t n = 0; n < s->nodes_nr; n++) {
		body.done_bytes += op->share[n].done;
		body.total_bytes += op->share[n].total;
	}
	if (t != NULL)
		session_event(t, OP_PROGRESS, op->m, &id, &body.base);
	else if (op->asker.node != s->self)
		(void)peer_send(s, op->asker.node, &h, &body.base, NULL);
}

uint64_t ckpt_op_tell_whole(struct ckpt_op *op)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < op->manifest->files_nr; i++)
		bytes += op->manifest->files[i].bytes;
	memset(op->share, 0, sizeof(op->share));
	op->share[0] = (struct ckpt_share){.done = bytes, .total = bytes};
	op->told_ns = 0; /* however soon after the one before */
	ckpt_op_tell(op);
	return bytes;
}

void ckpt_op_cancel(struct ckpt_op *op)
{
	struct server *s = op->server;

	if (op->cancelled || op->m == NULL)
		return;
	op->cancelled = true;
	for (uint16_t n = 0; n < s->nodes_nr; n++) {
		struct wire_head h = {.op = OP_PART_CANCEL, .model = op->m->id, .attempt = op->share[n].tag};

		/* a load that has ended as well: what it brought belongs to no model now */
		if (n == s->self && op->share[n].asked)
			ckpt_part_end(op->m, n, 0);
		else if (op->share[n].asked)
			(void)peer_send(s, n, &h, NULL, NULL);
	}
}

void ckpt_op_fail(struct ckpt_op *op, const struct err *e)
{
	if (!op->failed) {
		op->failed = true;
		op->why = *e;
	}
	atomic_store(&op->checking.cancel, true);
	ckpt_op_cancel(op);
}

void ckpt_op_ask(struct ckpt_op *op, uint16_t wire_op, const ProtobufCMessage *body, void (*shares_done)(struct ckpt_op *))
{
	struct server *s = op->server;
	struct err e;
	enum shard_status st = SHARD_OK;

	CHECK(op->out_nr == 0 && op->m != NULL);
	memset(op->share, 0, sizeof(op->share));
	op->cancelled = op->shares_bad = false;
	op->shares_done = shares_done;
	op->moved_ns = clock_ns();
	op->share[s->self].out = op->share[s->self].asked = true;
	op->out_nr = 1;
	ckpt_part_begin(op->m, s->self, 0, wire_op, op->m->generation, op->path,
			wire_op == OP_SAVE_PART ? op->step : op->manifest->sum);
	for (uint16_t n = 0; n < s->nodes_nr && st == SHARD_OK; n++) {
		struct wire_head h = {.op = wire_op, .model = op->m->id, .generation = op->m->generation};
		struct relay *r;

		if (n == s->self || (st = relay_new(&r, s, wire_op, n, op->m->id, &e)) != SHARD_OK)
			continue;
		h.attempt = r->tag;
		if ((st = peer_send(s, n, &h, body, &e)) != SHARD_OK) {
			relay_drop(s, r);
			continue;
		}
		op->share[n] = (struct ckpt_share){.out = true, .asked = true, .tag = r->tag};
		op->incarnation[n] = s->peer[n]->incarnation;
		op->out_nr++;
	}
	if (st != SHARD_OK)
		ckpt_op_fail(op, &e);
}

void ckpt_share_done(struct model *m, uint16_t node, uint32_t tag, bool bad, const struct err *e)
{
	struct ckpt_op *op = m->ckpt.op;
	struct err why;

	if (op == NULL || !op->share[node].out || op->share[node].tag != tag)
		return;
	op->share[node].out = false;
	op->out_nr--;
	op->moved_ns = clock_ns();
	if (e != NULL) {
		op->shares_bad = op->shares_bad || (bad && !op->failed);
		err_wrap(&why, e, "node %s: %s", server_node_name(op->server, node), e->text);
		ckpt_op_fail(op, &why);
	} else {
		op->share[node].done = op->share[node].total;
	}
	if (op->out_nr == 0)
		op->shares_done(op);
}

void ckpt_progress(struct model *m, uint16_t node, uint32_t tag, uint64_t done, uint64_t total)
{
	struct ckpt_op *op = m->ckpt.op;

	if (op == NULL || !op->share[node].out || op->share[node].tag != tag)
		return;
	if (done != op->share[node].done)
		op->moved_ns = clock_ns();
	op->done_bytes += done - op->share[node].done;
	op->share[node].done = done;
	op->share[node].total = total;
	ckpt_op_tell(op);
}

/* --- answers of nodes --- */

static enum shard_status take_file(struct ckpt_op *op, uint16_t node, const Shard__PartFile *body, struct err *e)
{
	struct manifest_blob *blobs = calloc(body->n_blobs + 1, sizeof(*blobs));
	struct part_file f = {.bytes = body->bytes,
			      .header_bytes = body->header_bytes,
			      .piece_bytes = body->piece_bytes,
			      .sums_nr = (uint32_t)body->n_sums,
			      .sums = malloc((body->n_sums + 1) * sizeof(*f.sums))};
	char want[80];

	snprintf(want, sizeof(want), "node-%s.safetensors", server_node_name(op->server, node));
	if (blobs == NULL || f.sums == NULL || (body->name[0] != 0 && strcmp(body->name, want) != 0)) {
		bool memory = blobs == NULL || f.sums == NULL;

		free(blobs);
		free(f.sums);
		return memory ? err_set(e, SHARD_SYSTEM, "no memory for a manifest")
			      : err_set(e, SHARD_PROTOCOL, "it wrote a file %s, not %s", body->name, want);
	}
	snprintf(f.name, sizeof(f.name), "%s", body->name);
	for (size_t i = 0; i < body->n_sums; i++)
		f.sums[i] = body->sums[i];
	for (size_t i = 0; i < body->n_blobs; i++)
		blobs[i] = (struct manifest_blob){.rank = body->blobs[i]->rank,
						  .bytes = body->blobs[i]->data_bytes,
						  .step = body->blobs[i]->step,
						  .offset = body->blobs[i]->offset,
						  .sum = body->blobs[i]->sum};
	ckpt_save_part_is(op, node, &f, blobs, (uint32_t)body->n_blobs);
	part_file_free(&f);
	return SHARD_OK;
}

static enum shard_status take_answer(struct ckpt_op *op, uint16_t node, const struct wire_head *h, const void *body, struct err *e)
{
	const ProtobufCMessage *msg;
	struct arena a;
	void *memory = malloc(CONTROL_ARENA_BYTES(h->body_bytes));
	enum shard_status st;

	if (memory == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for an answer of %u bytes", h->body_bytes);
	arena_init(&a, memory, CONTROL_ARENA_BYTES(h->body_bytes));
	st = control_unpack(&msg, &shard__part_file__descriptor, body, h->body_bytes, &a, e);
	if (st == SHARD_OK)
		st = take_file(op, node, (const Shard__PartFile *)msg, e);
	free(memory);
	return st;
}

void ckpt_answered(struct model *m, const struct relay *r, const struct wire_head *h, const void *body, const struct err *e)
{
	struct ckpt_op *op = m->ckpt.op;
	struct peer *p = m->server->peer[r->node];
	bool link = !p->up; /* it is the link that ended, not the share */
	struct err why;

	if (op == NULL || !op->share[r->node].out || op->share[r->node].tag != r->tag)
		return;
	if (h != NULL && r->op == OP_SAVE_PART && take_answer(op, r->node, h, body, &why) != SHARD_OK)
		e = &why;
	ckpt_share_done(m, r->node, r->tag,
			e != NULL && !link && e->status != SHARD_INTERRUPTED && e->status != SHARD_STALE && e->status != SHARD_BUSY,
			e);
}

void ckpt_node_gone(struct server *s, uint16_t node)
{
	if (node != s->coordinator)
		return;
	list_each(it, &s->models)
		ckpt_part_end(list_of(it, struct model, link), node, 0);
}

/* --- requests of the coordinator --- */

static enum shard_status asked(struct peer *p, const struct wire_head *h, const char *path, struct model **out, struct err *e)
{
	struct server *s = p->server;

	*out = model_find(s, h->model);
	if (*out == NULL || (*out)->defining || p->node != s->coordinator)
		return err_set(e, SHARD_NOT_FOUND, "no model %u on node %s", h->model, server_node_name(s, s->self));
	if (path == NULL || path[0] != '/' || strlen(path) >= CHECKPOINT_PATH_MAX)
		return err_set(e, SHARD_BAD_ARG, "a checkpoint without an absolute path");
	return SHARD_OK;
}

enum shard_status ckpt_save_part(struct peer *p, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e)
{
	const Shard__SavePart *body = (const Shard__SavePart *)msg;
	struct model *m;
	enum shard_status st = asked(p, h, body->path, &m, e);

	if (st == SHARD_OK)
		ckpt_part_begin(m, p->node, h->attempt, OP_SAVE_PART, h->generation, body->path, body->step);
	return st;
}

enum shard_status ckpt_load_part(struct peer *p, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e)
{
	const Shard__LoadPart *body = (const Shard__LoadPart *)msg;
	struct model *m;
	enum shard_status st = asked(p, h, body->path, &m, e);

	if (st == SHARD_OK)
		ckpt_part_begin(m, p->node, h->attempt, OP_LOAD_PART, h->generation, body->path, body->sum);
	return st;
}

void ckpt_part_cancel(struct peer *p, const struct wire_head *h)
{
	struct model *m = model_find(p->server, h->model);

	if (m != NULL)
		ckpt_part_end(m, p->node, h->attempt);
}
