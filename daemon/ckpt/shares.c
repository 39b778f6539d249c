/* SPDX-License-Identifier: Apache-2.0 */
/* Shares of a save or restore. On the coordinator this file asks every node for its share, sums up
 * their progress, keeps the first failure and waits until all have ended. On a node it takes the
 * coordinator's requests and hands the work to part.c. An answer of a share that was given up is
 * ignored. When a link ends, its node's share has failed. */
#include "ckpt/op.h"

#include "base/check.h"
#include "base/clock.h"
#include "control/define.h"
#include "link/peer.h"
#include "link/call.h"
#include "control/seal.h"
#include "control/unmade.h"
#include "link/session.h"
#include "store/store_missing.h"
#include "wire/control.h"
#include "wire/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void ckpt_op_tell(struct ckpt_op *op)
{
	struct server *s = op->server;
	Shard__Progress body = SHARD__PROGRESS__INIT;
	struct wire_head h = {.op = OP_PROGRESS};
	uint64_t now = clock_ns();

	if (!op->asked || op->m == NULL || now - op->told_ns < CKPT_PROGRESS_NS)
		return;
	h.model = op->m->id;
	h.generation = op->m->generation;
	op->told_ns = now;
	for (uint16_t n = 0; n < s->nodes_nr; n++) {
		body.done_bytes += op->share[n].done;
		body.total_bytes += op->share[n].total;
		body.shared_bytes += op->share[n].shared;
	}
	caller_progress(s, &op->requester, &h, &body.base);
}

uint64_t ckpt_op_tell_whole(struct ckpt_op *op)
{
	uint64_t bytes = 0;

	CHECK(op->manifest != NULL);
	for (uint32_t i = 0; i < op->manifest->files_nr; i++)
		bytes += op->manifest->files[i].bytes;
	memset(op->share, 0, sizeof(op->share));
	op->share[0] = (struct ckpt_share){.done = bytes, .total = bytes};
	op->told_ns = 0; /* However soon after the last one. */
	ckpt_op_tell(op);
	return bytes;
}

static void cancel(struct model *m, uint16_t requester, uint32_t tag)
{
	ckpt_part_end(m, requester, tag);
	ckpt_load_forget(m, requester, tag);
}

void ckpt_op_cancel(struct ckpt_op *op)
{
	struct server *s = op->server;

	if (op->cancelled || op->m == NULL)
		return;
	op->cancelled = true;
	for (uint16_t n = 0; n < s->nodes_nr; n++) {
		struct wire_head h = {
			.op = OP_PART_CANCEL, .model = op->m->id, .attempt = op->share[n].part};

		/* Also a load that has ended, because what it has read belongs to no restore
		 * now. */
		if (n == s->self && op->share[n].asked)
			cancel(op->m, n, op->share[n].part);
		else if (op->share[n].asked)
			peer_tell(s, n, &h, NULL);
	}
}

void ckpt_op_fail(struct ckpt_op *op, const struct err *e)
{
	CHECK(e->status != SHARD_OK);
	if (!op->failed) {
		op->failed = true;
		op->why = *e;
	}
	atomic_store(&op->checking.cancel, true);
	ckpt_op_cancel(op);
}

static const struct round_ops shares; /* Defined below, after the functions that it needs. */

static void ask_begins(struct ckpt_op *op, void (*shares_done)(struct ckpt_op *))
{
	CHECK(op->shares.out == 0 && op->m != NULL);
	op->cancelled = op->shares_bad = false;
	op->shares_done = shares_done;
	op->moved_ns = clock_ns();
	op->shares.ops = &shares;
	round_own(&op->shares, op->server);
}

static enum shard_status ask_node(struct ckpt_op *op, uint16_t n, uint16_t wire_op,
				  const ProtobufCMessage *body, struct err *e)
{
	struct wire_head h = {.op = wire_op,
			      .model = op->m->id,
			      .generation = op->m->generation,
			      .step = wire_op == OP_VERIFY_PART ? op->step : 0};

	CHECK(n < op->server->nodes_nr);
	return round_ask(&op->shares, op->server, n, &h, body, &op->share[n].tag, e);
}

/* A node could not be asked, so this node was not asked either. The operation fails when the others
 * have ended. */
static void not_asked(struct ckpt_op *op, const struct err *e)
{
	(void)round_took(&op->shares, op->server->self);
	ckpt_op_fail(op, e);
	if (op->shares.out == 0)
		op->shares_done(op);
}

struct ckpt_view ckpt_view(const struct model *m)
{
	struct core_state core;

	core_state(m->core, &core);
	return (struct ckpt_view){.term = core.term, .seq = core.seq};
}

/* Each chunk is saved by its primary. So with two views a chunk may be in two files, or in none. */
static enum shard_status same_view(const struct ckpt_op *op, const struct ckpt_view *by,
				   struct err *e)
{
	if (by->term == 0 || (by->term == op->view.term && by->seq == op->view.seq))
		return SHARD_OK;
	return err_set(e, SHARD_BUSY,
		       "the members of \"%s\" have changed while it was saved: try again",
		       op->name);
}

void ckpt_op_ask(struct ckpt_op *op, uint16_t wire_op, const ProtobufCMessage *body,
		 void (*shares_done)(struct ckpt_op *))
{
	struct server *s = op->server;
	struct ckpt_share *own = &op->share[s->self];
	struct caller here = {.node = s->self};
	struct err e;
	enum shard_status st = SHARD_OK;

	CHECK(op->m != NULL && op->shares.out == 0 && shares_done != NULL);
	memset(op->share, 0, sizeof(op->share));
	op->view = ckpt_view(op->m);
	ask_begins(op, shares_done);
	for (uint16_t n = 0; n < s->nodes_nr && st == SHARD_OK; n++) {
		if (n == s->self || !place_is_member(&op->m->place, n) ||
		    (st = ask_node(op, n, wire_op, body, &e)) != SHARD_OK)
			continue;
		op->share[n].asked = true;
		op->share[n].part = op->share[n].tag;
		op->incarnation[n] = s->peer[n]->incarnation;
		op->downs[n] = s->peer[n]->downs;
	}
	if (st != SHARD_OK) {
		not_asked(op, &e);
		return;
	}
	own->asked = true;
	own->tag = own->part = call_tag(s);
	here.tag = own->tag;
	ckpt_part_begin(op->m, &here, wire_op, op->m->generation, op->path,
			wire_op == OP_LOAD_PART ? op->manifest->sum : op->step, op->place.anywhere);
}

void ckpt_op_count(struct ckpt_op *op, void (*shares_done)(struct ckpt_op *))
{
	struct server *s = op->server;
	struct err e;
	enum shard_status st = SHARD_OK;

	CHECK(op->m != NULL && op->shares.out == 0);
	ask_begins(op, shares_done);
	op->share[s->self].tag = call_tag(s);
	for (uint16_t n = 0; n < s->nodes_nr && st == SHARD_OK; n++) {
		Shard__Written body = SHARD__WRITTEN__INIT;

		body.load = op->share[n].part;
		if (n != s->self && place_is_member(&op->m->place, n))
			st = ask_node(op, n, OP_WRITTEN, &body.base, &e);
	}
	if (st == SHARD_OK)
		st = seal_count_restored(op->m, op->share[s->self].part, ckpt_counted, &e);
	if (st != SHARD_OK)
		not_asked(op, &e);
}

static enum shard_status count_ok(const struct model *m, const struct store_missing *w,
				  struct err *e)
{
	if (w->unwritten + w->nonfinite == 0)
		return SHARD_OK;
	return err_set(
		e, SHARD_STALE,
		"%lu weights of \"%s\" are not there after the restore, and %lu are not finite",
		(unsigned long)w->unwritten, m->name, (unsigned long)w->nonfinite);
}

void ckpt_counted(struct model *m, uint32_t load, const struct store_missing *w,
		  const struct err *e)
{
	struct ckpt_op *op = m->ckpt->op;
	struct err why;

	if (op == NULL || op->phase != CKPT_COUNTING || op->share[m->server->self].part != load)
		return;
	if (e == NULL && count_ok(m, w, &why) != SHARD_OK)
		e = &why;
	ckpt_share_done(m, op->share[m->server->self].tag, false, e);
}

/* Steps go on when each node that still writes keeps what it has to write as it is now. */
static void may_go_on(struct ckpt_op *op)
{
	if (op->kind != CKPT_SAVE || op->phase != CKPT_WRITING || op->failed)
		return;
	for (uint64_t k = op->shares.out; k != 0; k &= k - 1)
		if (!op->share[__builtin_ctzll(k)].covered)
			return;
	ckpt_op_hold(op, false);
}

static void share_done(struct ckpt_op *op, uint16_t node, bool bad, const struct err *e)
{
	struct err why;

	CHECK(node < op->server->nodes_nr && !(op->shares.out >> node & 1));
	op->moved_ns = clock_ns();
	if (e != NULL) {
		op->shares_bad = op->shares_bad || (bad && !op->failed);
		err_wrap(&why, e, "node %s: %s", members_name(op->server, node), e->text);
		ckpt_op_fail(op, &why);
	} else {
		op->share[node].done = op->share[node].total;
	}
	if (op->shares.out == 0)
		op->shares_done(op);
	else
		may_go_on(op);
}

/* The operation that this node's share with that tag belongs to. NULL: the share was given up, and
 * another operation may be in progress. */
static struct ckpt_op *own_share(const struct model *m, uint32_t tag)
{
	struct ckpt_op *op = m->ckpt->op;
	uint16_t self = m->server->self;

	return op != NULL && op->shares.out >> self & 1 && op->share[self].tag == tag ? op : NULL;
}

void ckpt_share_done(struct model *m, uint32_t tag, bool bad, const struct err *e)
{
	struct ckpt_op *op = own_share(m, tag);

	if (op != NULL && round_took(&op->shares, m->server->self))
		share_done(op, m->server->self, bad, e);
}

static void progress(struct ckpt_op *op, uint16_t node, const Shard__Progress *said)
{
	struct ckpt_share *share = &op->share[node];

	CHECK(node < op->server->nodes_nr);
	if (said->done_bytes != share->done)
		op->moved_ns = clock_ns();
	op->done_bytes += said->done_bytes - share->done;
	share->done = said->done_bytes;
	share->total = said->total_bytes;
	share->shared = said->shared_bytes;
	share->covered |= said->covered;
	ckpt_op_tell(op);
	may_go_on(op);
}

void ckpt_progress(struct model *m, uint32_t tag, const Shard__Progress *said)
{
	struct ckpt_op *op = own_share(m, tag);

	if (op != NULL)
		progress(op, m->server->self, said);
}

static void share_file(struct ckpt_op *op, uint16_t node, struct part_file *file,
		       struct manifest_blob *blobs, uint32_t blobs_nr)
{
	if (op == NULL || op->doing->part_is == NULL)
		free(blobs);
	else
		op->doing->part_is(op, node, file, blobs, blobs_nr);
}

void ckpt_share_file(struct model *m, uint32_t tag, const struct ckpt_view *by,
		     struct part_file *file, struct manifest_blob *blobs, uint32_t blobs_nr)
{
	struct ckpt_op *op = own_share(m, tag);
	struct err e;

	if (op != NULL && same_view(op, by, &e) != SHARD_OK)
		ckpt_op_fail(op, &e);
	share_file(op, m->server->self, file, blobs, blobs_nr);
}

/* --- answers of nodes --- */

static enum shard_status take_file(struct ckpt_op *op, uint16_t node, const Shard__PartFile *body,
				   struct err *e)
{
	struct manifest_blob *blobs = calloc(body->n_blobs + 1, sizeof(*blobs));
	struct part_file f = {.bytes = body->bytes,
			      .header_bytes = body->header_bytes,
			      .piece_bytes = body->piece_bytes,
			      .shared_bytes = body->shared_bytes,
			      .sums_nr = (uint32_t)body->n_sums,
			      .sums = malloc((body->n_sums + 1) * sizeof(*f.sums))};
	char want[80];

	CHECK(node < op->server->nodes_nr);
	snprintf(want, sizeof(want), "node-%s.safetensors", members_name(op->server, node));
	if (blobs == NULL || f.sums == NULL ||
	    (body->name[0] != 0 && strcmp(body->name, want) != 0)) {
		bool memory = blobs == NULL || f.sums == NULL;

		free(blobs);
		free(f.sums);
		return memory ? err_set(e, SHARD_SYSTEM, "no memory for a manifest")
			      : err_set(e, SHARD_PROTOCOL, "it wrote a file %s, not %s", body->name,
					want);
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
	share_file(op, node, &f, blobs, (uint32_t)body->n_blobs);
	part_file_free(&f);
	return SHARD_OK;
}

static enum shard_status take_count(const struct ckpt_op *op, const Shard__Written *body,
				    struct err *e)
{
	struct store_missing w = {
		.unwritten = body->missing, .nonfinite = body->nonfinite, .first = body->element};

	return count_ok(op->m, &w, e);
}

void ckpt_share_digests(struct model *m, uint32_t tag, uint64_t term, uint32_t seq,
			const uint64_t *digest, uint64_t nr)
{
	struct ckpt_op *op = own_share(m, tag);
	uint16_t self = m->server->self;
	struct err e;

	if (op == NULL || op->failed || op->doing->digests_are == NULL)
		return;
	if (op->doing->digests_are(op, self, term, seq, digest, nr, &e) != SHARD_OK)
		ckpt_op_fail(op, &e);
}

static enum shard_status take_digests(struct ckpt_op *op, uint16_t node, const struct wire_head *h,
				      const Shard__PartFile *body, struct err *e)
{
	if (op->failed || op->doing->digests_are == NULL)
		return SHARD_OK;
	return op->doing->digests_are(op, node, h->term, h->seq, body->sums, body->n_sums, e);
}

static enum shard_status take_answer(struct ckpt_op *op, const struct call *r,
				     const struct wire_head *h, const void *body, struct err *e)
{
	const struct ckpt_view by = {.term = h->term, .seq = h->seq};
	const ProtobufCMessage *msg;
	struct arena a;
	void *memory;
	enum shard_status st;

	if (r->op != OP_SAVE_PART && r->op != OP_WRITTEN && r->op != OP_VERIFY_PART)
		return SHARD_OK;
	memory = malloc(CONTROL_ARENA_BYTES(h->body_bytes));

	if (memory == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for an answer of %u bytes",
			       h->body_bytes);
	arena_init(&a, memory, CONTROL_ARENA_BYTES(h->body_bytes));
	st = control_unpack(&msg, control_type(r->op, true), body, h->body_bytes, &a, e);
	if (st == SHARD_OK && r->op == OP_SAVE_PART)
		st = same_view(op, &by, e);
	if (st == SHARD_OK && r->op == OP_SAVE_PART)
		st = take_file(op, r->node, (const Shard__PartFile *)msg, e);
	else if (st == SHARD_OK && r->op == OP_VERIFY_PART)
		st = take_digests(op, r->node, h, (const Shard__PartFile *)msg, e);
	else if (st == SHARD_OK)
		st = take_count(op, (const Shard__Written *)msg, e);
	free(memory);
	return st;
}

static void share_answered(struct round *r, struct server *s, const struct call *c,
			   const struct wire_head *h, const void *body, const struct err *e)
{
	struct ckpt_op *op = list_of(r, struct ckpt_op, shares);
	bool link = !s->peer[c->node]->up; /* The link ended, not the share. */
	struct err why;

	CHECK(op->m != NULL && op->share[c->node].tag == c->tag);
	if (h != NULL && take_answer(op, c, h, body, &why) != SHARD_OK)
		e = &why;
	share_done(op, c->node,
		   e != NULL && !link && e->status != SHARD_INTERRUPTED &&
			   e->status != SHARD_STALE && e->status != SHARD_BUSY,
		   e);
}

void ckpt_memory_gone(struct model *m, uint16_t node)
{
	if (node == server_coordinator(m->server))
		ckpt_part_end(m, node, 0);
}

void ckpt_node_gone(struct server *s, uint16_t node)
{
	list_each(it, &s->models)
		ckpt_memory_gone(list_of(it, struct model, link), node);
}

static void share_progress(struct round *r, struct server *s, const struct call *c,
			   const Shard__Progress *body)
{
	(void)s;
	progress(list_of(r, struct ckpt_op, shares), c->node, body);
}

static const struct round_ops shares = {.answered = share_answered, .progress = share_progress};

/* --- requests of the coordinator --- */

static enum shard_status asked(struct peer *p, const struct wire_head *h, struct model **out,
			       struct err *e)
{
	struct server *s = p->server;

	*out = model_find(s, h->model);
	if (*out == NULL && model_making(s, h->model) != NULL)
		return err_set(e, SHARD_BUSY, "model %u is being made on node %s", h->model,
			       members_name(s, s->self));
	/* After a start this node hears a moment later who coordinates. */
	if (p->node != server_coordinator(s))
		return err_set(e, SHARD_BUSY, "node %s has not heard yet that node %s coordinates",
			       members_name(s, s->self), members_name(s, p->node));
	if (unmade_check_number(s, h->model, e) != SHARD_OK)
		return e->status;
	if (*out == NULL || (*out)->defining)
		return err_set(e, SHARD_NOT_FOUND, "no model %u on node %s", h->model,
			       members_name(s, s->self));
	return SHARD_OK;
}

static enum shard_status asked_at(struct peer *p, const struct wire_head *h, const char *path,
				  struct model **out, struct err *e)
{
	enum shard_status st = asked(p, h, out, e);

	if (st == SHARD_OK &&
	    (path == NULL || path[0] != '/' || strlen(path) >= CHECKPOINT_PATH_MAX))
		return err_set(e, SHARD_BAD_ARG, "a checkpoint without an absolute path");
	return st;
}

enum shard_status ckpt_verify_part(struct peer *p, const struct wire_head *h,
				   const ProtobufCMessage *msg, struct err *e)
{
	struct caller who = caller_node(p, h->attempt);
	struct model *m;
	enum shard_status st = asked(p, h, &m, e);

	(void)msg;
	if (st == SHARD_OK)
		ckpt_part_begin(m, &who, OP_VERIFY_PART, h->generation, "", h->step, false);
	return st;
}

enum shard_status ckpt_save_part(struct peer *p, const struct wire_head *h,
				 const ProtobufCMessage *msg, struct err *e)
{
	const Shard__SavePart *body = (const Shard__SavePart *)msg;
	struct caller who = caller_node(p, h->attempt);
	struct model *m;
	enum shard_status st = asked_at(p, h, body->path, &m, e);

	if (st == SHARD_OK)
		ckpt_part_begin(m, &who, OP_SAVE_PART, h->generation, body->path, body->step,
				body->anywhere);
	return st;
}

enum shard_status ckpt_load_part(struct peer *p, const struct wire_head *h,
				 const ProtobufCMessage *msg, struct err *e)
{
	const Shard__LoadPart *body = (const Shard__LoadPart *)msg;
	struct caller who = caller_node(p, h->attempt);
	struct model *m;
	enum shard_status st = asked_at(p, h, body->path, &m, e);

	if (st == SHARD_OK)
		ckpt_part_begin(m, &who, OP_LOAD_PART, h->generation, body->path, body->sum,
				body->anywhere);
	return st;
}

void ckpt_part_cancel(struct peer *p, const struct wire_head *h)
{
	struct model *m = model_find(p->server, h->model);

	if (m != NULL)
		cancel(m, p->node, h->attempt);
}
