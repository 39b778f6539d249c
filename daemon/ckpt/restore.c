/* SPDX-License-Identifier: Apache-2.0 */
/* A restore, the coordinator's side. Happy path: a request → the manifest is read (with latest, lengths, blobs) → the model is made from it
 * on every node, or one without weights is compared with it, or, with force, one that has weights gives them up (as LOST, rolled
 * back) → every node reads its share → the core seals with the checkpoint's counters → the image is whole: Defined. auto.c begins
 * the same for a model that was LOST and for a definition with restore_at_start. What is wrong with a checkpoint is named; a model
 * that was made for it goes again, one that was there stays without weights and the answer says so. */
#include "access.h"
#include "base/check.h"
#include "base/clock.h"
#include "blobs.h"
#include "ckpt/op.h"
#include "ckpt/spec_of.h"
#include "define.h"
#include "drop.h"
#include "peer.h"
#include "relay.h"
#include "session.h"
#include "spec.h"
#include "wire/control.h"
#include "wire/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOTE_NS (10 * NS_PER_SEC)

/* --- the end --- */

static void answer(struct ckpt_op *op)
{
	struct server *s = op->server;
	struct session *t = ckpt_op_session(op);
	struct model *m = op->m;
	struct wire_head h = {.op = OP_RESTORE,
			      .flags = WIRE_REPLY,
			      .model = m->id,
			      .generation = m->generation,
			      .step = m->step,
			      .attempt = op->asker.tag};
	Shard__Defined body = SHARD__DEFINED__INIT;
	struct err e;

	define_say(m, &body);
	body.spec = m->spec->spec;
	if (t != NULL)
		session_reply(t, OP_RESTORE, op->asker.tag, m, &body.base);
	else if (op->asked && op->asker.node != s->self && peer_send(s, op->asker.node, &h, &body.base, &e) != SHARD_OK)
		log_line(s->log, LOG_LEVEL_WARN, "event=answer_dropped model=%s why=%s", m->name, e.text);
	op->asked = false;
}

static void done(struct ckpt_op *op)
{
	struct model *m = op->m;
	struct ckpt_last *l = &m->ckpt.last;

	snprintf(l->path, sizeof(l->path), "%s", op->path);
	l->step = op->manifest->step;
	l->bytes = ckpt_op_tell_whole(op);
	l->at = ckpt_time(op->manifest->created);
	m->ckpt.last_error[0] = 0;
	log_line(op->server->log, LOG_LEVEL_INFO, "event=restored model=%s path=%s step=%lu bytes=%lu seconds=%.3f", m->name,
		 op->path, (unsigned long)l->step, (unsigned long)l->bytes, (double)(clock_ns() - op->began_ns) / NS_PER_SEC);
	ckpt_persist_dir(m, op->dir);
	answer(op);
	ckpt_op_free(op);
	define_answer(m);
	model_event(m, &(struct core_event){.type = CORE_EV_CHECKPOINT, .on = true});
}

void ckpt_restore_end(struct ckpt_op *op, const struct err *e)
{
	struct model *m = op->m;
	struct err why; /* e may be op's, and op goes */

	CHECK(!op->working && op->out_nr == 0);
	if (e == NULL) {
		done(op);
		return;
	}
	why = *e;
	if (m != NULL && op->made) {
		define_abandon(m, &why); /* ckpt_refused() comes back without the model */
		return;
	}
	if (m != NULL && op->kind == CKPT_RESTORE)
		err_wrap(&why, e, "%s; %s", e->text,
			 m->ckpt.rolled_back ? "its newest checkpoint is being restored instead"
			 : m->sealed         ? "nothing has changed"
					     : "the model stays without weights");
	op->why = why;
	op->failed = true;
	ckpt_op_note_failure(op);
	ckpt_op_refuse(op, &why);
	ckpt_op_free(op);
	if (m == NULL || m->server->stopping)
		return;
	define_answer(m);
	if (m->ckpt.rolled_back)
		ckpt_auto_return(m);
}

void ckpt_refused(struct model *m, const struct err *e)
{
	struct ckpt_op *op = m->ckpt.op;

	if (op == NULL || op->kind == CKPT_SAVE)
		return;
	op->m = NULL;
	m->ckpt.op = NULL;
	ckpt_restore_end(op, e);
}

/* --- reading --- */

static void run_open(struct ckpt_op *op)
{
	if (op->tag[0] == 0)
		op->st = checkpoint_latest(op->dir, op->tag, &op->why);
	if (op->st == SHARD_OK)
		ckpt_read_manifest(op, op->name[0] != 0 ? op->name : NULL);
}

/* --- the way there --- */

/* A node that was started again since has read nothing. */
static bool as_loaded(const struct ckpt_op *op)
{
	const struct server *s = op->server;

	for (uint16_t n = 0; n < s->nodes_nr; n++)
		if (s->peer[n] != NULL && (!s->peer[n]->up || s->peer[n]->incarnation != op->incarnation[n]))
			return false;
	return true;
}

/* Sealed in the call, or not at all: the view in force is of the nodes that have read. */
void ckpt_restore_written(struct ckpt_op *op)
{
	struct core_state core;
	const struct manifest *c = op->manifest;
	struct core_restored r = {
		.applied = c->applied,
		.skipped_in_row = c->skipped_in_row,
		.scaler = {c->scaler.scale, c->scaler.hysteresis, c->scaler.last_overflow, c->scaler.iter},
		.tune = {c->tune.paused, c->tune.has_lr, c->tune.has_clip, c->tune.lr, c->tune.clip, 0, 0},
	};

	if (!as_loaded(op)) {
		op->phase = CKPT_LINKS;
		server_wake(op->server, 0);
		return;
	}
	core_state(op->m->core, &core);
	if (core.recovering) {
		server_deadline(op->server); /* a model just made has not heard anything yet */
		server_wake(op->server, clock_ns() + 5 * NS_PER_MS);
		return;
	}
	for (uint16_t n = 0; n < op->server->nodes_nr; n++)
		op->share[n].asked = false; /* from here on it is the model's */
	model_event(op->m, &(struct core_event){.type = CORE_EV_WRITTEN,
						.id.generation = op->m->generation,
						.step = c->step,
						.restored = c->kinds_nr == 1 ? NULL : &r});
}

static void loaded(struct ckpt_op *op)
{
	bool links = op->failed && !op->shares_bad;

	if (!op->failed) {
		for (uint32_t i = 0; i < op->blobs_nr; i++)
			blobs_restore(op->m, op->blobs[i].rank, op->blobs[i].step, op->blobs[i].data, op->blobs[i].bytes);
		op->phase = CKPT_SEALING;
		ckpt_restore_written(op);
		return;
	}
	if (op->server->stopping || op->m == NULL) {
		ckpt_restore_end(op, &op->why);
	} else if (links && op->m->ckpt.rolled_back) { /* nothing is wrong with the files: again, when all nodes are there */
		op->failed = false;
		op->phase = CKPT_LINKS;
	} else if (op->kind == CKPT_RESTORE || (links && op->kind == CKPT_START)) {
		ckpt_restore_end(op, &op->why);
	} else {
		ckpt_auto_next(op);
	}
}

void ckpt_restore_load(struct ckpt_op *op)
{
	Shard__LoadPart body = SHARD__LOAD_PART__INIT;
	struct server *s = op->server;
	const struct peer *p = ckpt_away(s);

	if (p != NULL && op->m->ckpt.rolled_back) {
		bool due = op->noted_ns == 0 || clock_ns() - op->noted_ns > NOTE_NS;

		if (due)
			log_line(s->log, LOG_LEVEL_WARN, "event=restore_waits model=%s path=%s node=%s why=%s", op->m->name,
				 op->path, server_node_name(s, p->node), p->why);
		op->noted_ns = due ? clock_ns() : op->noted_ns;
		op->phase = CKPT_LINKS;
		return;
	}
	op->phase = CKPT_LOADING;
	log_line(s->log, LOG_LEVEL_INFO, "event=restoring model=%s path=%s step=%lu", op->m->name, op->path,
		 (unsigned long)op->manifest->step);
	body.path = op->path;
	body.sum = op->manifest->sum;
	ckpt_op_ask(op, OP_LOAD_PART, &body.base, loaded);
}

static void give_up(struct ckpt_op *op)
{
	char why[CHECKPOINT_PATH_MAX + 64];

	snprintf(why, sizeof(why), "restored from %.200s by uid %u", op->path, op->uid);
	model_event(op->m, &(struct core_event){.type = CORE_EV_CHECKPOINT, .on = true});
	model_event(op->m, &(struct core_event){.type = CORE_EV_ROLLBACK, .why = why});
}

static void define(struct ckpt_op *op)
{
	struct server *s = op->server;
	const struct peer *p = ckpt_away(s);
	struct err e;
	enum shard_status st;

	op->phase = CKPT_DEFINING;
	if ((p != NULL || drop_in_hand(s, op->name)) && clock_ns() - op->began_ns < s->conf->heartbeat_timeout_ns) {
		server_wake(s, clock_ns() + 20 * NS_PER_MS);
		return; /* the beat comes again */
	}
	if (p == NULL && drop_in_hand(s, op->name))
		st = err_set(&e, SHARD_BUSY, "\"%s\" is being dropped: try again", op->name);
	else if (p != NULL)
		st = err_set(&e, SHARD_UNREACHABLE, "\"%s\" needs every node, and node %s is down: %s", op->manifest->name,
			     server_node_name(s, p->node), p->why);
	else
		st = ckpt_spec_define(op, &e);
	if (st != SHARD_OK)
		ckpt_restore_end(op, &e);
}

static enum shard_status take(struct ckpt_op *op, struct model *m, struct err *e)
{
	char text[CHECKPOINT_PATH_MAX + 64];
	enum shard_status st;

	if (m->defining)
		return err_set(e, SHARD_BUSY, "\"%s\" is being defined: try again", m->name);
	if (m->ckpt.op != NULL)
		return err_set(e, SHARD_BUSY, "\"%s\" %s: one at a time", m->name, ckpt_op_text(m->ckpt.op, text));
	if ((st = access_check(m, op->request->cred, true, e)) != SHARD_OK ||
	    (st = ckpt_restore_compare(m, op->manifest, e)) != SHARD_OK)
		return st;
	if (m->sealed && !op->force)
		return err_set(e, SHARD_EXISTS, "\"%s\" has weights, of step %lu: restoring gives them up, ask for that by force",
			       m->name, (unsigned long)m->step);
	if (!m->sealed && m->writer_session != 0)
		return err_set(e, SHARD_BUSY, "a trainer is writing the weights of \"%s\": let it seal or end first", m->name);
	return SHARD_OK;
}

static void checked(struct ckpt_op *op)
{
	struct err e;

	if (op->failed || op->st != SHARD_OK) {
		e = op->why;
		ckpt_restore_end(op, &e);
	} else if (op->m->sealed) {
		op->phase = CKPT_GIVING_UP;
		give_up(op);
	} else { /* it was LOST meanwhile */
		ckpt_restore_load(op);
	}
}

static void opened(struct ckpt_op *op)
{
	struct server *s = op->server;
	struct model *m;
	struct err e;

	if (op->failed || op->st != SHARD_OK) {
		e = op->why;
		ckpt_restore_end(op, &e);
		return;
	}
	m = model_by_name(s, op->manifest->name);
	snprintf(op->name, sizeof(op->name), "%s", op->manifest->name);
	if (m == NULL) {
		define(op);
		return;
	}
	if (take(op, m, &e) != SHARD_OK) {
		ckpt_restore_end(op, &e);
		return;
	}
	ckpt_op_attach(op, m);
	if (m->sealed)
		ckpt_op_work(op, ckpt_check_files, checked);
	else
		ckpt_restore_load(op);
}

/* --- what the core says --- */

void ckpt_lost(struct model *m, bool rolled_back)
{
	struct ckpt_op *op = m->ckpt.op;
	struct err e;

	m->ckpt.rolled_back = rolled_back;
	m->ckpt.loaded = false;
	err_set(&e, SHARD_LOST, "\"%s\" was lost meanwhile: %.300s", m->name, m->lost);
	if (op != NULL && op->kind == CKPT_SAVE) {
		ckpt_op_fail(op, &e);
		ckpt_save_lost(op);
	} else if (op != NULL && !rolled_back) {
		ckpt_op_fail(op, &e);
		server_wake(m->server, 0); /* ends it: a drop cannot begin inside an event */
	} else if (op != NULL && (op->phase == CKPT_GIVING_UP || op->phase == CKPT_SEALING || op->phase == CKPT_PUBLISHING)) {
		op->phase = CKPT_LINKS;
		server_wake(m->server, 0);
	}
	if (rolled_back && m->ckpt.op == NULL)
		ckpt_auto_return(m); /* else when that has ended */
}

void ckpt_sealed(struct model *m)
{
	struct ckpt_op *op = m->ckpt.op;

	m->ckpt.rolled_back = m->ckpt.loaded = m->ckpt.read = false;
	if (op != NULL && op->phase == CKPT_SEALING)
		op->phase = CKPT_PUBLISHING;
}

void ckpt_whole(struct model *m)
{
	struct ckpt_op *op = m->ckpt.op;

	if (op != NULL && op->phase == CKPT_PUBLISHING)
		ckpt_restore_end(op, NULL);
}

void ckpt_made(struct ckpt_op *op, struct model *m)
{
	op->made = true;
	ckpt_op_attach(op, m);
}

bool ckpt_defined(struct model *m)
{
	struct ckpt_op *op = m->ckpt.op;

	if (m->server->self != m->server->coordinator)
		return false;
	if (op == NULL)
		return ckpt_auto_start(m);
	ckpt_restore_load(op);
	return true;
}

/* --- requests --- */

static enum shard_status folder(struct server *s, struct ckpt_op *op, const Shard__Restore *body, struct err *e)
{
	struct model *m = body->name[0] != 0 ? model_by_name(s, body->name) : NULL;
	char dir[256] = "";

	if (body->name[0] != 0 && !control_name_ok(body->name, 64))
		return err_set(e, SHARD_BAD_ARG, "a model's name is 1 to 64 of [a-z0-9._-]");
	if (body->tag[0] != 0 && !checkpoint_tag_ok(body->tag))
		return err_set(e, SHARD_BAD_ARG, "tag \"%.80s\": 1 to %d of [A-Za-z0-9._-], not starting with a dot", body->tag,
			       CHECKPOINT_TAG_MAX);
	if (body->dir[0] == 0 && body->name[0] == 0)
		return err_set(e, SHARD_BAD_ARG, "neither a folder nor a model: name one of them");
	if (m != NULL)
		snprintf(dir, sizeof(dir), "%s", m->set.checkpoint_dir);
	else if (body->dir[0] == 0)
		ckpt_spec_dir(s, body->name, dir, sizeof(dir));
	snprintf(op->name, sizeof(op->name), "%s", body->name);
	snprintf(op->tag, sizeof(op->tag), "%s", body->tag);
	return ckpt_dir(op->dir, body->dir, dir, body->name, e);
}

static enum shard_status restore_here(struct server *s, const struct model_asker *a, const Shard__Restore *body, struct err *e)
{
	struct ckpt_op *op;
	enum shard_status st = ckpt_op_new(&op, s, NULL, CKPT_RESTORE, e);

	if (st != SHARD_OK)
		return st;
	op->asker = *a;
	op->force = body->force;
	op->uid = body->cred != NULL && body->cred->known ? body->cred->uid : UINT32_MAX;
	op->phase = CKPT_LOOKING;
	if ((op->request = spec_copy(&body->base)) == NULL)
		st = err_set(e, SHARD_SYSTEM, "no memory for a request");
	if (st == SHARD_OK)
		st = folder(s, op, body, e);
	if (st != SHARD_OK) {
		ckpt_op_free(op);
		return st;
	}
	op->asked = true;
	ckpt_op_work(op, run_open, opened);
	return SHARD_OK;
}

/* A cluster that has just been started: the link to the coordinator may be a moment away. */
static enum shard_status pass_on(struct session *t, const struct wire_head *h, Shard__Restore *body, struct err *e)
{
	struct server *s = t->server;
	struct ckpt_op *op;
	enum shard_status st;

	if (s->peer[s->coordinator]->up)
		return relay_request(t, s->coordinator, h, &body->base, e);
	if ((st = ckpt_op_new(&op, s, NULL, CKPT_RESTORE, e)) != SHARD_OK)
		return st;
	if ((op->request = spec_copy(&body->base)) == NULL) {
		ckpt_op_free(op);
		return err_set(e, SHARD_SYSTEM, "no memory for a request");
	}
	op->phase = CKPT_PASSING;
	op->asked = true;
	op->asker = (struct model_asker){.node = s->self, .session = t->id, .tag = h->attempt};
	snprintf(op->name, sizeof(op->name), "%s", body->name);
	snprintf(op->dir, sizeof(op->dir), "%.512s", body->dir);
	return SHARD_OK;
}

static void pass_now(struct ckpt_op *op)
{
	struct server *s = op->server;
	struct wire_head h = {.op = OP_RESTORE, .attempt = op->asker.tag};
	struct session *t = ckpt_op_session(op);
	struct err e;

	if (!s->peer[s->coordinator]->up && clock_ns() - op->began_ns < s->conf->heartbeat_timeout_ns)
		return;
	if (t == NULL || relay_request(t, s->coordinator, &h, &op->request->base, &e) == SHARD_OK)
		ckpt_op_free(op);
	else
		ckpt_restore_end(op, &e);
}

enum shard_status ckpt_restore_request(struct session *t, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e)
{
	struct server *s = t->server;
	struct model_asker a = {.node = s->self, .session = t->id, .tag = h->attempt, .pid = t->pid};
	Shard__Restore body = *(const Shard__Restore *)msg;
	Shard__Cred cred = SHARD__CRED__INIT;
	uint32_t groups[ACCESS_GROUPS_MAX];

	if (t->seal_model != NULL)
		return err_set(e, SHARD_BUSY, "this connection is sealing \"%s\"", t->seal_model->name);
	access_cred(t, &cred, groups);
	body.cred = &cred;
	body.pid = t->pid;
	body.session = t->id;
	t->defined = true;
	return s->self == s->coordinator ? restore_here(s, &a, &body, e) : pass_on(t, h, &body, e);
}

void ckpt_restore_beat(struct ckpt_op *op)
{
	if (op->phase == CKPT_PASSING)
		pass_now(op);
	else if (op->phase == CKPT_DEFINING && op->m == NULL)
		define(op);
	else if (op->phase == CKPT_GIVING_UP && op->m->sealed)
		give_up(op); /* it may have been recovering */
	else if (op->phase == CKPT_LINKS)
		ckpt_restore_load(op);
	else if (op->phase == CKPT_SEALING)
		ckpt_restore_written(op);
}

enum shard_status ckpt_node_restore(struct peer *p, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e)
{
	const Shard__Restore *body = (const Shard__Restore *)msg;
	struct model_asker a = {.node = p->node, .session = body->session, .tag = h->attempt, .pid = body->pid};

	if (p->server->self != p->server->coordinator)
		return err_set(e, SHARD_BAD_STATE, "node %s does not coordinate", server_node_name(p->server, p->server->self));
	return restore_here(p->server, &a, body, e);
}
