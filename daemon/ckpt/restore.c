/* SPDX-License-Identifier: Apache-2.0 */
/* The coordinator's side of a restore. ckpt_restore_request() and ckpt_node_restore() begin one,
 * and auto.c begins one for a model that was LOST and for restore_at_start. Happy path: the
 * manifest is read, with the lengths of the files and the blobs. A model that does not exist is
 * then made from it on every node. An existing one is compared with it, and with `force` gives up
 * its weights, which makes it LOST and rolled back. Every node reads its share, the core seals the
 * model with the checkpoint's counters, and when the image is whole the requester gets Defined. A
 * failure names what is wrong with the checkpoint. A model that was made for the restore is then
 * dropped, and one that existed stays without weights. */
#include "control/access.h"
#include "control/unmade.h"
#include "model/lost.h"
#include "model/writer.h"
#include "control/control.h"
#include "base/check.h"
#include "model/lead.h"
#include "base/clock.h"
#include "data/blobs.h"
#include "ckpt/auto.h"
#include "ckpt/op.h"
#include "ckpt/spec_of.h"
#include "control/define.h"
#include "control/drop.h"
#include "link/peer.h"
#include "link/call.h"
#include "data/trainer.h"
#include "link/session.h"
#include "model/view_file.h"
#include "model/placing.h"
#include "model/spec.h"
#include "wire/control.h"
#include "wire/layout.h"
#include "wire/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOTE_NS (10 * NS_PER_SEC)

/* --- the end --- */

static void answer(struct ckpt_op *op)
{
	struct model *m = op->m;
	struct wire_head h = {
		.op = OP_RESTORE, .model = m->id, .generation = m->generation, .step = m->step};
	Shard__Defined body = SHARD__DEFINED__INIT;

	CHECK(op->kind != CKPT_SAVE);
	spec_say(m, &body);
	body.spec = m->spec->spec;
	if (op->asked)
		caller_answer(op->server, &op->requester, &h, &body.base);
	op->asked = false;
}

static void noted(struct ckpt_op *op)
{
	struct model *m = op->m;

	if (!ckpt_op_noted(op))
		return;
	answer(op);
	ckpt_op_free(op);
	define_answer(m);
	model_event(m, &(struct core_event){.type = CORE_EV_CHECKPOINT, .on = true});
}

static void done(struct ckpt_op *op)
{
	struct model *m = op->m;
	struct ckpt_last *l = &m->ckpt->last;

	CHECK(op->manifest != NULL && op->kind != CKPT_SAVE);
	snprintf(l->path, sizeof(l->path), "%s", op->path);
	l->step = op->manifest->step;
	l->bytes = ckpt_op_tell_whole(op);
	l->at = ckpt_time(op->manifest->created);
	m->ckpt->last_error[0] = 0;
	if (op->newer[0] != 0) /* It stays until the next save or restore. */
		snprintf(m->ckpt->last_error, sizeof(m->ckpt->last_error),
			 "the older %.200s was restored: %.250s", op->path, op->newer_why.text);
	log_line(op->server->log, LOG_LEVEL_INFO,
		 "event=restored model=%s path=%s step=%lu bytes=%lu seconds=%.3f", m->name,
		 op->path, (unsigned long)l->step, (unsigned long)l->bytes,
		 (double)(clock_ns() - op->began_ns) / NS_PER_SEC);
	op->phase = CKPT_NOTING;
	noted(op);
}

void ckpt_restore_end(struct ckpt_op *op, const struct err *e)
{
	struct model *m = op->m;
	struct err why; /* A copy, because e may be op's and op is freed. */

	CHECK(!op->working && op->shares.out == 0);
	if (e == NULL) {
		done(op);
		return;
	}
	why = *e;
	if (m != NULL && m->dropping)
		m = NULL; /* The drop has answered, and only the memory is still waited for. */
	if (m != NULL && op->made) {
		/* This calls ckpt_refused(), which comes back without the model. */
		define_abandon(m, &why);
		return;
	}
	if (m != NULL && op->kind == CKPT_RESTORE)
		err_wrap(&why, e, "%s; %s", e->text,
			 m->rolled_back ? "its newest checkpoint is being restored instead"
			 : m->sealed    ? "nothing has changed"
					: "the model stays without weights");
	op->why = why;
	op->failed = true;
	ckpt_op_note_failure(op);
	ckpt_op_refuse(op, &why);
	ckpt_op_free(op);
	if (m == NULL || m->server->stop.on)
		return;
	if (m->ckpt->said)
		/* The requester has heard that it failed, so the file need not say it. */
		ckpt_persist(m);
	define_answer(m);
	if (m->rolled_back)
		ckpt_auto_return(m);
}

void ckpt_refused(struct model *m, const struct err *e)
{
	struct ckpt_op *op = m->ckpt->op;

	if (op == NULL || op->doing->held != NULL)
		return;
	op->m = NULL;
	m->ckpt->op = NULL;
	ckpt_restore_end(op, e);
}

/* --- reading --- */

static void run_open(struct ckpt_op *op)
{
	CHECK(op->kind == CKPT_RESTORE);
	if ((op->st = ckpt_place_open(&op->place, false, &op->why)) != SHARD_OK)
		return;
	if (op->tag[0] == 0)
		op->st = checkpoint_latest(op->place.at, op->tag, &op->why);
	if (op->st == SHARD_OK)
		ckpt_read_manifest(op, op->name[0] != 0 ? op->name : NULL);
	ckpt_place_close(&op->place, op->st != SHARD_OK ? &op->why : NULL);
}

/* --- the steps of a restore --- */

/* True: no link has changed since its node was asked to read. */
static bool as_loaded(const struct ckpt_op *op)
{
	const struct server *s = op->server;

	for (uint16_t n = 0; n < s->nodes_nr; n++) {
		const struct peer *p = s->peer[n];

		if (p != NULL && place_is_member(&op->m->place, n) &&
		    (!p->up || p->incarnation != op->incarnation[n] || p->downs != op->downs[n]))
			return false;
	}
	return true;
}

static struct core_tune tune_of(const struct model *m, const struct manifest *c)
{
	const struct optim_row *optim = m->set.optim;
	struct core_tune t = {.paused = c->tune.paused,
			      .has_lr = c->tune.has_lr,
			      .has_clip = c->tune.has_clip,
			      .lr = c->tune.lr,
			      .clip = c->tune.clip};

	for (uint32_t k = 0; k < c->tune.hyper_nr; k++) {
		const struct manifest_hyper *h = &c->tune.hyper[k];
		uint32_t i = optim_hyper_named(optim, h->key);

		/* An import may be of another optimizer. */
		if (i == HYPER_NR || h->group >= m->set.groups_nr)
			continue;
		t.set[h->group] |= 1u << i;
		t.hyper[h->group][i] = h->value;
	}
	CHECK(tune_hyper_ok(&t, m->set.groups_nr));
	return t;
}

/* Seals within this call or not at all, so that the view in force is of the nodes that have read.
 * Once the core has taken the seal, nothing here undoes it. The nodes keep what they have
 * confirmed, whatever becomes of their links. */
static void restore_written(struct ckpt_op *op)
{
	struct model *m = op->m;
	struct core_state core;
	const struct manifest *c = op->manifest;
	struct ckpt_run before = m->ckpt->run;
	struct core_restored r = {
		.applied = c->applied,
		.skipped_in_row = c->skipped_in_row,
		.scaler = {c->scaler.scale, c->scaler.hysteresis, c->scaler.last_overflow,
			   c->scaler.iter},
		.tune = tune_of(m, c),
	};

	CHECK(op->phase == CKPT_SEALING);
	core_state(m->core, &core);
	if (core.seals)
		return; /* The core waits until every node has adopted it. */
	if (!as_loaded(op)) {
		op->phase = CKPT_LINKS;
		server_wake(op->server, 0);
		return;
	}
	if (core.recovering) {
		server_deadline(op->server); /* A model just made has not heard of all nodes yet. */
		server_wake(op->server, clock_ns() + 5 * NS_PER_MS);
		return;
	}
	ckpt_run_from(&m->ckpt->run, op); /* The view that seals the model says it. */
	model_event(m, &(struct core_event){.type = CORE_EV_WRITTEN,
					    .id.generation = m->generation,
					    .step = c->step,
					    .restored = c->kinds_nr == 1 ? NULL : &r});
	core_state(m->core, &core);
	if (!core.seals && !core.sealed)
		m->ckpt->run = before;
	for (uint16_t n = 0; n < m->server->nodes_nr && core.seals && m->ckpt->op == op; n++)
		op->share[n].asked = false; /* From here on it belongs to the model. */
}

/* A share could not be read, or is gone again. */
static void share_failed(struct ckpt_op *op)
{
	bool links = !op->shares_bad;

	if (op->server->stop.on || op->m == NULL) {
		ckpt_restore_end(op, &op->why);
	} else if (links && (op->m->rolled_back || op->again)) {
		/* Nothing is wrong with the files, so it is tried again when all nodes are
		 * linked. */
		op->failed = false;
		op->phase = CKPT_LINKS;
	} else if (op->kind == CKPT_RESTORE || (links && op->kind == CKPT_START)) {
		ckpt_restore_end(op, &op->why);
	} else {
		ckpt_auto_next(op);
	}
}

static void counted(struct ckpt_op *op)
{
	if (op->failed) {
		share_failed(op);
		return;
	}
	/* Several copies: each node has read those that it keeps. */
	for (uint32_t i = 0; i < op->blobs_nr && !blobs_copied(op->m); i++)
		blobs_restore(op->m, op->blobs[i].rank, op->blobs[i].step, op->blobs[i].data,
			      op->blobs[i].bytes);
	op->phase = CKPT_SEALING;
	restore_written(op);
}

static void loaded(struct ckpt_op *op)
{
	if (op->failed) {
		share_failed(op);
		return;
	}
	op->phase = CKPT_COUNTING;
	ckpt_op_count(op, counted);
}

/* True: the model's file on disk names this restore. A model without weights gets some now, so a
 * coordinator that ends now has to say at its next start what was being restored. Otherwise the
 * model would begin anew. Nothing is read before that is on disk. */
static bool durable(struct ckpt_op *op)
{
	struct model *m = op->m;
	struct err e;

	if ((m->ckpt->said || op->noting) && ckpt_noted(m))
		return true;
	op->phase = CKPT_LINKS;
	if (!op->noting)
		ckpt_persist(m);
	op->noting = true;
	if (!m->ckpt->note_failed) {
		server_deadline(op->server); /* A model just made has not heard of all nodes yet. */
		server_wake(op->server, clock_ns() + 5 * NS_PER_MS);
		return false;
	}
	err_set(&e, SHARD_SYSTEM,
		"\"%s\": the restore cannot be written down among the state of node %s, see its "
		"log",
		m->name, members_name(op->server, op->server->self));
	ckpt_restore_end(op, &e);
	return false;
}

void ckpt_restore_load(struct ckpt_op *op)
{
	Shard__LoadPart body = SHARD__LOAD_PART__INIT;
	struct server *s = op->server;
	const struct peer *p = ckpt_away(op);

	CHECK(op->m != NULL && op->manifest != NULL);
	/* A node that makes its memory anew will be ready soon. A node that is away ends a restore
	 * that somebody asked for. */
	if (p != NULL && (op->m->rolled_back || op->again || p->up)) {
		bool due = op->noted_ns == 0 || op->noted_up != p->up ||
			   clock_ns() - op->noted_ns > NOTE_NS;

		if (due)
			log_line(s->log, LOG_LEVEL_WARN,
				 "event=restore_waits model=%s path=%s node=%s why=%s", op->m->name,
				 op->path, members_name(s, p->node),
				 p->up ? "it makes its memory anew" : p->why);
		op->noted_ns = due ? clock_ns() : op->noted_ns;
		op->noted_up = p->up;
		op->phase = CKPT_LINKS;
		return;
	}
	if (op->kind == CKPT_RESTORE && !op->m->rolled_back && !durable(op))
		return;
	op->phase = CKPT_LOADING;
	log_line(s->log, LOG_LEVEL_INFO, "event=restoring model=%s path=%s step=%lu", op->m->name,
		 op->path, (unsigned long)op->manifest->step);
	body.path = op->path;
	body.sum = op->manifest->sum;
	body.anywhere = op->place.anywhere;
	ckpt_op_ask(op, OP_LOAD_PART, &body.base, loaded);
}

static void give_up(struct ckpt_op *op)
{
	char why[CHECKPOINT_PATH_MAX + 64];

	snprintf(why, sizeof(why), LOST_BY_ORDER "%.200s by uid %u", op->path, op->uid);
	model_event(op->m, &(struct core_event){.type = CORE_EV_CHECKPOINT, .on = true});
	model_event(op->m, &(struct core_event){.type = CORE_EV_ROLLBACK, .why = why});
}

static void on_made(void *arg, struct model *m)
{
	struct ckpt_op *op = arg;

	CHECK(op->m == NULL && op->kind == CKPT_RESTORE);
	op->made = true;
	ckpt_op_attach(op, m);
}

static void define(struct ckpt_op *op)
{
	struct server *s = op->server;
	const struct peer *p = ckpt_away(op);
	struct err e;
	enum shard_status st;

	CHECK(op->m == NULL && op->manifest != NULL);
	op->phase = CKPT_DEFINING;
	if ((p != NULL || drop_in_hand(s, op->name)) &&
	    clock_ns() - op->began_ns < s->conf->heartbeat_timeout_ns) {
		server_wake(s, clock_ns() + 20 * NS_PER_MS);
		return; /* The beat calls again. */
	}
	if (unmade_check(s, op->name, &e) != SHARD_OK)
		st = e.status;
	else if (p == NULL && drop_in_hand(s, op->name))
		st = err_set(&e, SHARD_BUSY, "\"%s\" is being dropped: try again", op->name);
	else if (p != NULL)
		st = placing_refuse(p, op->manifest->name, &e);
	else {
		held_give(s, &op->kept); /* The model needs the memory now. */
		st = ckpt_spec_define(op, on_made, &e);
	}
	if (st != SHARD_OK)
		ckpt_restore_end(op, &e);
}

#define MANIFEST_TENSOR_BYTES 256 /* Approximate size in memory. */

static enum shard_status take(struct ckpt_op *op, struct model *m, struct err *e)
{
	char text[CHECKPOINT_PATH_MAX + 64];
	struct core_state core;
	enum shard_status st;

	CHECK(op->m == NULL && m != NULL);
	if (m->defining)
		return err_set(e, SHARD_BUSY, "\"%s\" is being defined: try again", m->name);
	core_state(m->core, &core);
	if (!m->sealed && (core.seals || m->control->sealer != NULL))
		return err_set(e, SHARD_BUSY, "\"%s\" is being sealed: try again", m->name);
	if (m->ckpt->op != NULL)
		return err_set(e, SHARD_BUSY, "\"%s\" %s: one at a time", m->name,
			       ckpt_op_text(m->ckpt->op, text));
	if ((st = access_check(m, op->request->cred, true, e)) != SHARD_OK ||
	    (st = ckpt_restore_compare(m, op->manifest, e)) != SHARD_OK)
		return st;
	if (m->sealed && !op->force)
		return err_set(e, SHARD_EXISTS,
			       "\"%s\" has weights, of step %lu: restoring gives them up, ask for "
			       "that by force",
			       m->name, (unsigned long)m->step);
	if (!m->sealed && !writer_free(m) && !writer_is(m, &op->requester))
		return err_set(
			e, SHARD_BUSY,
			"a trainer is writing the weights of \"%s\": let it seal or end first",
			m->name);
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
	} else {
		/* It was LOST meanwhile. */
		ckpt_restore_load(op);
	}
}

static struct model *there(const struct ckpt_op *op)
{
	struct model *m = model_by_name(op->server, op->name);

	return m != NULL ? m : model_making_name(op->server, op->name);
}

/* Looks for the model each time, because a wait for a link or a drop may have let somebody else
 * define or drop it. */
static void find(struct ckpt_op *op)
{
	struct model *m = there(op);
	struct err e;

	if (m == NULL) {
		define(op);
		return;
	}
	if (take(op, m, &e) != SHARD_OK) {
		ckpt_restore_end(op, &e);
		return;
	}
	op->phase = CKPT_LOOKING;
	ckpt_op_attach(op, m);
	if (m->sealed)
		ckpt_op_work(op, ckpt_check_files, checked);
	else
		ckpt_restore_load(op);
}

static void opened(struct ckpt_op *op)
{
	struct server *s = op->server;
	struct err e;

	if (op->failed || op->st != SHARD_OK) {
		e = op->why;
		ckpt_restore_end(op, &e);
		return;
	}
	if (ckpt_may_read(op->manifest, op->request->cred, op->path, &e) != SHARD_OK) {
		ckpt_restore_end(op, &e);
		return;
	}
	snprintf(op->name, sizeof(op->name), "%s", op->manifest->name);
	held_give(s, &op->kept); /* With its manifest the operation is larger. */
	if (there(op) == NULL &&
	    held_take(s, &op->kept, op->requester.node, op->request->cred,
		      sizeof(*op) + op->manifest->tensors_nr * MANIFEST_TENSOR_BYTES,
		      &e) != SHARD_OK)
		ckpt_restore_end(op, &e);
	else
		find(op);
}

/* --- what the core decides --- */

void ckpt_lost(struct model *m, bool rolled_back)
{
	struct ckpt_op *op = m->ckpt->op;
	struct core_state core;
	struct err e;

	m->rolled_back = rolled_back;
	m->ckpt->loaded = false;
	free(m->ckpt->cut); /* The core has its text now. */
	m->ckpt->cut = NULL;
	err_set(&e, SHARD_LOST, "\"%s\" was lost meanwhile: %.300s", m->name, m->lost);
	if (op != NULL && op->doing->held != NULL) {
		ckpt_op_fail(op, &e);
		op->doing->end(op);
	} else if (op != NULL && !rolled_back) {
		ckpt_op_fail(op, &e);
		/* The beat ends it, because a drop cannot begin inside an event. */
		server_wake(m->server, 0);
	} else if (op != NULL && (op->phase == CKPT_GIVING_UP || op->phase == CKPT_SEALING ||
				  op->phase == CKPT_PUBLISHING)) {
		op->phase = CKPT_LINKS;
		server_wake(m->server, 0);
	}
	/* Where it went back without this node its weights are there already. If there is an
	 * operation, its end begins this. */
	core_state(m->core, &core);
	if (rolled_back && core.restoring && m->ckpt->op == NULL)
		ckpt_auto_return(m);
}

void ckpt_sealed(struct model *m)
{
	struct ckpt_op *op = m->ckpt->op;

	m->rolled_back = m->ckpt->loaded = false;
	ckpt_load_over(m);
	if (op != NULL && op->phase == CKPT_SEALING)
		op->phase = CKPT_PUBLISHING;
}

void ckpt_whole(struct model *m)
{
	struct ckpt_op *op = m->ckpt->op;

	if (op != NULL && op->phase == CKPT_PUBLISHING)
		ckpt_restore_end(op, NULL);
}

bool ckpt_defined(struct model *m)
{
	struct ckpt_op *op = m->ckpt->op;

	if (!server_leads(m->server))
		return false;
	if (op == NULL && m->memory.unled)
		return false;
	if (op == NULL)
		return (!m->ckpt->led || m->ckpt->begins) && ckpt_auto_start(m, m->ckpt->led);
	ckpt_restore_load(op);
	return true;
}

/* --- requests --- */

static enum shard_status folder(struct server *s, struct ckpt_op *op, const Shard__Restore *body,
				struct err *e)
{
	struct model *m = body->name[0] != 0 ? model_by_name(s, body->name) : NULL;
	char dir[256] = "";

	if (body->name[0] != 0 && !layout_model_name_ok(body->name))
		return err_set(e, SHARD_BAD_ARG, "a model's name is 1 to 64 of [a-z0-9._-]");
	if (body->tag[0] != 0 && !checkpoint_tag_ok(body->tag))
		return err_set(e, SHARD_BAD_ARG,
			       "tag \"%.80s\": 1 to %d of [A-Za-z0-9._-], not starting with a dot",
			       body->tag, CHECKPOINT_TAG_MAX);
	if (body->dir[0] == 0 && body->name[0] == 0)
		return err_set(e, SHARD_BAD_ARG, "neither a folder nor a model: name one of them");
	if (m != NULL)
		snprintf(dir, sizeof(dir), "%s", m->set.checkpoint_dir);
	else if (body->dir[0] == 0)
		ckpt_spec_dir(s, body->name, dir, sizeof(dir));
	snprintf(op->name, sizeof(op->name), "%s", body->name);
	snprintf(op->tag, sizeof(op->tag), "%s", body->tag);
	if (ckpt_dir(op->dir, body->dir, dir, body->name, e) != SHARD_OK)
		return e->status;
	return ckpt_place_set(&op->place, s, op->dir, ckpt_anywhere(s, body->cred), 0, e);
}

/* Takes the room for the request before copying it. */
static enum shard_status keep_request(struct ckpt_op *op, uint16_t node, const Shard__Restore *body,
				      struct err *e)
{
	uint64_t bytes = sizeof(*op) + shard__restore__get_packed_size(body);
	enum shard_status st = held_take(op->server, &op->kept, node, body->cred, bytes, e);

	if (st == SHARD_OK && (op->request = spec_copy(&body->base)) == NULL)
		st = err_set(e, SHARD_SYSTEM, "no memory for a request");
	return st;
}

static enum shard_status restore_here(struct server *s, const struct caller *a,
				      const Shard__Restore *body, struct err *e)
{
	struct ckpt_op *op;
	enum shard_status st = ckpt_op_new(&op, s, NULL, CKPT_RESTORE, &ckpt_restores, e);

	CHECK(server_leads(s));
	if (st != SHARD_OK)
		return st;
	op->requester = *a;
	op->force = body->force;
	op->uid = body->cred != NULL && body->cred->known ? body->cred->uid : UINT32_MAX;
	op->phase = CKPT_LOOKING;
	st = keep_request(op, a->node, body, e);
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

/* Passes the request to the coordinator. In a cluster that has just started, the link to it may
 * come a moment later. */
static enum shard_status pass_on(struct session *t, const struct wire_head *h, Shard__Restore *body,
				 struct err *e)
{
	struct server *s = t->server;
	struct ckpt_op *op;
	enum shard_status st;

	CHECK(!server_leads(s));
	if (lead_known(s, NULL) == SHARD_OK && s->peer[server_coordinator(s)]->up)
		return call_pass(t, server_coordinator(s), h, &body->base, &restore_passed, e);
	if ((st = ckpt_op_new(&op, s, NULL, CKPT_RESTORE, &ckpt_restores, e)) != SHARD_OK)
		return st;
	if ((st = keep_request(op, s->self, body, e)) != SHARD_OK) {
		ckpt_op_free(op);
		return st;
	}
	op->phase = CKPT_PASSING;
	op->asked = true;
	op->requester = caller_session(t, h->attempt);
	snprintf(op->name, sizeof(op->name), "%s", body->name);
	snprintf(op->dir, sizeof(op->dir), "%.512s", body->dir);
	return SHARD_OK;
}

static void pass_now(struct ckpt_op *op)
{
	struct server *s = op->server;
	struct wire_head h = {.op = OP_RESTORE, .attempt = op->requester.tag};
	struct session *t = caller_here(s, &op->requester);
	struct err e;

	CHECK(op->phase == CKPT_PASSING && op->request != NULL);
	if ((lead_known(s, NULL) != SHARD_OK || !s->peer[server_coordinator(s)]->up) &&
	    clock_ns() - op->began_ns < s->conf->heartbeat_timeout_ns)
		return;
	if (t != NULL && lead_known(s, &e) != SHARD_OK) {
		ckpt_restore_end(op, &e);
		return;
	}
	if (t == NULL || call_pass(t, server_coordinator(s), &h, &op->request->base,
				   &restore_passed, &e) == SHARD_OK)
		ckpt_op_free(op);
	else
		ckpt_restore_end(op, &e);
}

enum shard_status ckpt_restore_request(struct session *t, const struct wire_head *h,
				       const ProtobufCMessage *msg, struct err *e)
{
	struct server *s = t->server;
	struct caller a = caller_session(t, h->attempt);
	Shard__Restore body = *(const Shard__Restore *)msg;
	Shard__Cred cred = SHARD__CRED__INIT;
	uint32_t groups[SESSION_GROUPS_MAX];

	if (t->trainer->seal_model != NULL)
		return err_set(e, SHARD_BUSY, "this connection is sealing \"%s\"",
			       t->trainer->seal_model->name);
	access_cred(t, &cred, groups);
	body.cred = &cred;
	body.pid = t->pid;
	body.session = t->id;
	t->uses = true;
	return server_leads(s) ? restore_here(s, &a, &body, e) : pass_on(t, h, &body, e);
}

static void restore_beat(struct ckpt_op *op)
{
	if (op->phase == CKPT_NOTING)
		noted(op);
	else if (op->phase == CKPT_PASSING)
		pass_now(op);
	else if (op->phase == CKPT_DEFINING && op->m == NULL)
		find(op);
	else if (op->phase == CKPT_GIVING_UP && op->m->sealed)
		give_up(op);                                  /* it may have been recovering */
	else if (op->phase == CKPT_LINKS && !op->m->dropping) /* else its end ends this, too */
		ckpt_restore_load(op);
	else if (op->phase == CKPT_SEALING)
		restore_written(op);
}

static void restore_failed(struct ckpt_op *op)
{
	struct err e = op->why; /* A copy, because op is freed. */

	CHECK(op->failed);
	if (op->phase == CKPT_NOTING)
		noted(op);
	else
		ckpt_restore_end(op, &e);
}

const struct ckpt_doing ckpt_restores = {.end = restore_failed, .beat = restore_beat};

enum shard_status ckpt_node_restore(struct peer *p, const struct wire_head *h,
				    const ProtobufCMessage *msg, struct err *e)
{
	const Shard__Restore *body = (const Shard__Restore *)msg;
	struct caller a = caller_node(p, h->attempt);

	a.session = body->session;
	a.pid = body->pid;
	if (!server_leads(p->server))
		return lead_refuse(p->server, e);
	return restore_here(p->server, &a, body, e);
}
