/* SPDX-License-Identifier: Apache-2.0 */
/* What every save, restore and comparison does on the coordinator. It runs one job at a time off
 * the loop, holds the core, answers the requester, and keeps the folder in the model's file. save.c
 * and restore.c build on it, and shares.c has its part that asks the nodes. The first failure is
 * kept while the other shares are waited for. Every wait ends with an answer, with a lost link, or
 * after CKPT_STALL_NS plus heartbeat_timeout without a byte, when the shares are given up. */
#include "ckpt/op.h"

#include "base/check.h"
#include "base/clock.h"
#include "core/core.h"
#include "link/peer.h"
#include "model/lead.h"
#include "model/lost.h"
#include "model/placing.h"
#include "model/view_file.h"
#include "link/call.h"
#include "link/session.h"
#include "wire/control.h"
#include "wire/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum shard_status ckpt_dir(char *out, const char *asked, const char *checkpoint_dir,
			   const char *name, struct err *e)
{
	int n;

	if (asked != NULL && asked[0] != 0)
		n = snprintf(out, CHECKPOINT_PATH_MAX, "%s", asked);
	else if (checkpoint_dir[0] != 0)
		n = snprintf(out, CHECKPOINT_PATH_MAX, "%s/%s", checkpoint_dir, name);
	else
		return err_set(
			e, SHARD_BAD_ARG,
			"no folder for \"%s\": name one, or set checkpoint_dir in its settings",
			name);
	while (n > 1 && n < CHECKPOINT_PATH_MAX && out[n - 1] == '/')
		out[--n] = 0;
	if (out[0] != '/')
		return err_set(e, SHARD_BAD_ARG,
			       "folder %s: an absolute path, please: every node opens it, whatever "
			       "its own folder is",
			       out);
	if (n + CHECKPOINT_TAG_MAX + 16 >= CHECKPOINT_PATH_MAX)
		return err_set(e, SHARD_BAD_ARG, "folder %.64s...: a path of at most %d bytes", out,
			       CHECKPOINT_PATH_MAX - CHECKPOINT_TAG_MAX - 17);
	return SHARD_OK;
}

time_t ckpt_time(const char *rfc3339)
{
	struct tm tm = {0};

	return strptime(rfc3339, "%Y-%m-%dT%H:%M:%S", &tm) != NULL ? timegm(&tm) : 0;
}

/* --- life --- */

void ckpt_op_attach(struct ckpt_op *op, struct model *m)
{
	CHECK(m->ckpt->op == NULL && op->m == NULL);
	op->m = m;
	m->ckpt->op = op;
	held_give(op->server, &op->kept);
	snprintf(op->name, sizeof(op->name), "%s", m->name);
}

enum shard_status ckpt_op_new(struct ckpt_op **out, struct server *s, struct model *m,
			      enum ckpt_kind kind, const struct ckpt_doing *doing, struct err *e)
{
	struct ckpt_op *op = NULL;

	*out = NULL;
	CHECK(doing && doing->end);
	/* ckpt_stop() has ended all operations, and no beat would drive a new one. */
	if (s->stop.on)
		return err_set(e, SHARD_CLOSED, "node %s stops", members_name(s, s->self));
	op = calloc(1, sizeof(*op));
	if (op == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a checkpoint");
	op->server = s;
	op->kind = kind;
	op->doing = doing;
	op->folder = -1;
	op->began_ns = op->moved_ns = clock_ns();
	list_push(&s->ckpts, &op->link);
	if (m != NULL)
		ckpt_op_attach(op, m);
	*out = op;
	return SHARD_OK;
}

static void free_made_of(struct manifest *c)
{
	for (uint32_t i = 0; i < c->files_nr; i++)
		part_file_free(&c->files[i]);
	for (uint32_t i = 0; i < c->client_nr; i++)
		part_file_free(&c->client[i]);
	free(c->client);
	free(c->files);
	free(c->blobs);
	free(c->tensors);
	free(c->groups);
	free(c->optimizer);
	free(c->settings);
}

void ckpt_op_free(struct ckpt_op *op)
{
	CHECK(!op->working && !op->held && op->folder < 0 && op->shares.out == 0);
	if (op->m != NULL)
		op->m->ckpt->op = NULL;
	list_remove(&op->link);
	held_give(op->server, &op->kept);
	if (op->doing->free != NULL)
		op->doing->free(op);
	manifest_free(&op->manifest);
	free_made_of(&op->made_of);
	if (op->spec != NULL)
		shard__spec__free_unpacked(op->spec, NULL);
	if (op->request != NULL)
		shard__restore__free_unpacked(op->request, NULL);
	for (uint32_t i = 0; i < op->blobs_nr; i++)
		free(op->blobs[i].data);
	free(op->blobs);
	free(op);
}

static void op_run(struct job *j)
{
	struct ckpt_op *op = list_of(j, struct ckpt_op, job);

	op->run(op);
}

static void op_done(struct job *j)
{
	struct ckpt_op *op = list_of(j, struct ckpt_op, job);

	op->working = false;
	op->moved_ns = clock_ns();
	op->done(op);
}

void ckpt_op_work(struct ckpt_op *op, void (*run)(struct ckpt_op *), void (*done)(struct ckpt_op *))
{
	CHECK(!op->working && op->shares.out == 0);
	op->working = true;
	op->run = run;
	op->done = done;
	op->st = SHARD_OK;
	op->moved_ns = clock_ns();
	job_begin(&op->job, op->server, JOB_FILES, op_run, op_done);
}

/* --- the requester --- */

void ckpt_op_refuse(struct ckpt_op *op, const struct err *e)
{
	CHECK(e->status != SHARD_OK);
	if (op->asked)
		caller_refuse(op->server, &op->requester, e);
	op->asked = false;
}

bool ckpt_op_noted(struct ckpt_op *op)
{
	CHECK(op->phase == CKPT_NOTING);
	if (op->m == NULL) {
		ckpt_op_refuse(op, &op->why);
		ckpt_op_free(op);
		return false;
	}
	return op->failed || ckpt_persist_dir(op->m, op->dir);
}

void ckpt_op_note_failure(struct ckpt_op *op)
{
	struct server *s = op->server;
	bool asked;

	CHECK(op->why.status != SHARD_OK);
	if (op->m != NULL) {
		op->m->ckpt->failures++;
		snprintf(op->m->ckpt->last_error, sizeof(op->m->ckpt->last_error), "%s",
			 op->why.text);
	}
	/* A wrong name in a request is for who asked, and no fault of the daemon. */
	asked = op->why.status == SHARD_EXISTS || op->why.status == SHARD_BAD_ARG ||
		(op->kind == CKPT_RESTORE &&
		 (op->why.status == SHARD_NOT_FOUND || op->why.status == SHARD_MISMATCH ||
		  op->why.status == SHARD_DENIED || op->why.status == SHARD_BAD_STATE));
	log_line(s->log, asked ? LOG_LEVEL_WARN : LOG_LEVEL_ERROR,
		 "event=%s_failed model=%s path=%s seconds=%.1f why=%s",
		 op->kind == CKPT_SAVE ? "save" : "restore", op->name,
		 op->path[0] != 0 ? op->path : op->dir,
		 (double)(clock_ns() - op->began_ns) / NS_PER_SEC, op->why.text);
}

const char *ckpt_op_text(const struct ckpt_op *op, char out[CHECKPOINT_PATH_MAX + 64])
{
	const char *path = op->path[0] != 0 ? op->path : op->dir;
	char whole[CHECKPOINT_PATH_MAX];

	/* While it is written its folder has another name, which says nothing to a user. */
	if (op->kind == CKPT_SAVE && op->tag[0] != 0 &&
	    checkpoint_path(whole, op->dir, op->tag, NULL) == SHARD_OK)
		path = whole;
	if (op->kind == CKPT_VERIFY)
		snprintf(out, CHECKPOINT_PATH_MAX + 64, "has its copies compared");
	else
		snprintf(out, CHECKPOINT_PATH_MAX + 64, "%s %s",
			 op->kind == CKPT_SAVE ? "is being saved to" : "is being restored from",
			 path[0] != 0 ? path : "its newest checkpoint");
	return out;
}

enum shard_status ckpt_op_may(const struct model *m, const char *verb, struct err *e)
{
	char text[CHECKPOINT_PATH_MAX + 64];

	if (m->ckpt->op != NULL)
		return err_set(e, SHARD_BUSY, "\"%s\" %s: one at a time", m->name,
			       ckpt_op_text(m->ckpt->op, text));
	if (lost_check(m, e) != SHARD_OK)
		return e->status;
	if (!m->sealed && m->lost[0] == 0 && m->memory.why != NULL)
		return err_set(e, SHARD_BAD_STATE,
			       "\"%s\" has no weights to %s yet: the copy of node %s was lost "
			       "(%.250s)",
			       m->name, verb, members_name(m->server, m->server->self),
			       m->memory.why);
	if (!m->sealed)
		return err_set(e, SHARD_BAD_STATE, "\"%s\" has no weights to %s: it was %s",
			       m->name, verb, m->lost[0] != 0 ? m->lost : "not sealed");
	return SHARD_OK;
}

/* --- holding --- */

void ckpt_op_hold(struct ckpt_op *op, bool on)
{
	if (op->held == on)
		return;
	op->held = on;
	if (on)
		op->held_ns = clock_ns();
	else
		op->hold_ns = clock_ns() - op->held_ns;
	if (op->m != NULL)
		model_event(op->m, &(struct core_event){.type = CORE_EV_HOLD, .on = on});
}

const struct peer *ckpt_away(const struct ckpt_op *op)
{
	const struct server *s = op->server;
	uint64_t members = op->m != NULL ? ~op->m->place.gone : placing_members(s);

	for (uint16_t n = 0; n < s->nodes_nr; n++)
		if (s->peer[n] != NULL && members >> n & 1 &&
		    (!s->peer[n]->up || (op->m != NULL && op->m->memory.there[n] == 0)))
			return s->peer[n];
	return NULL;
}

const char *ckpt_ordered(const struct model *m)
{
	return m->ckpt->op != NULL && m->ckpt->op->kind == CKPT_RESTORE ? m->ckpt->op->path : "";
}

/* --- what the coordinator keeps --- */

void ckpt_persisted(struct model *m, void *file, size_t bytes)
{
	Shard__ModelFile *says = shard__model_file__unpack(NULL, bytes, file);

	m->ckpt->note_durable = m->ckpt->note_packed;
	free(m->ckpt->file);
	m->ckpt->file = file;
	m->ckpt->file_bytes = bytes;
	m->ckpt->said = says != NULL && says->restore[0] != 0;
	if (says != NULL)
		shard__model_file__free_unpacked(says, NULL);
}

/* Packs the file as it is on disk, with the current folder and restore. */
static void *pack_again(const struct model *m, size_t *bytes)
{
	Shard__ModelFile *file =
		m->ckpt->file != NULL
			? shard__model_file__unpack(NULL, m->ckpt->file_bytes, m->ckpt->file)
			: NULL;
	char *dir = file != NULL ? file->checkpoint_dir : NULL;
	char *restore = file != NULL ? file->restore : NULL;
	uint8_t *packed;

	if (file == NULL)
		return NULL;
	file->checkpoint_dir = (char *)(uintptr_t)m->ckpt->dir;
	if (file->view != NULL && !file->view->restoring)
		file->restore = (char *)(uintptr_t)(file->view->sealed ? "" : ckpt_ordered(m));
	*bytes = shard__model_file__get_packed_size(file);
	if ((packed = malloc(*bytes)) != NULL)
		shard__model_file__pack(file, packed);
	file->checkpoint_dir = dir;
	file->restore = restore;
	shard__model_file__free_unpacked(file, NULL);
	return packed;
}

static void noted(struct model *m, const struct err *e)
{
	m->ckpt->note_failed = e != NULL;
	server_wake(m->server, 0); /* An operation may wait for it. */
	if (e != NULL)
		log_line(m->server->log, LOG_LEVEL_ERROR,
			 "event=model_not_durable model=%s dir=%s why=%s", m->name, m->ckpt->dir,
			 e->text);
}

/* Writes the file by the thread that writes views, because an older view must never overtake a
 * newer one. While a view is being written this does nothing: that view has the news, or the next
 * beat writes it. Before the first view there is no file. */
static void note(struct model *m)
{
	struct err e;
	size_t bytes = 0;
	void *packed;

	if (ckpt_noted(m) || m->dropping || persist_pending(m) || persist_busy(m) ||
	    m->ckpt->file == NULL || !server_leads(m->server))
		return;
	m->ckpt->note_packed = m->ckpt->note_due;
	if ((packed = pack_again(m, &bytes)) != NULL) {
		persist_file(m, packed, bytes, noted);
		return;
	}
	err_set(&e, SHARD_SYSTEM, "no memory");
	noted(m, &e);
}

void ckpt_persist(struct model *m)
{
	m->ckpt->note_due++;
	m->ckpt->note_failed = false;
	note(m);
}

bool ckpt_noted(const struct model *m)
{
	return m->ckpt->note_durable == m->ckpt->note_due;
}

void ckpt_note_beat(struct model *m)
{
	if (m->persist != NULL)
		note(m);
}

bool ckpt_persist_dir(struct model *m, const char *dir)
{
	if (strcmp(m->ckpt->dir, dir) != 0) {
		snprintf(m->ckpt->dir, sizeof(m->ckpt->dir), "%s", dir);
		ckpt_persist(m);
	}
	/* With etcd down the checkpoint is there all the same, and may be followed by others. */
	if (ckpt_noted(m) || m->ckpt->note_failed || lead_unanswered(m->server))
		return true;
	server_wake(m->server, clock_ns() + 5 * NS_PER_MS);
	return false;
}
