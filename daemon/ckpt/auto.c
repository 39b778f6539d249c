/* SPDX-License-Identifier: Apache-2.0 */
/* What nobody asks for: a save every checkpoint_every steps; the way back after LOST; restore_at_start. For the last two the newest
 * complete checkpoint is looked for in the folder of the last save, then in checkpoint_dir; one that turns out damaged is logged
 * and the next older one is tried. None left: after LOST the core hears it and the model is LOST for good; a definition goes on
 * without, or is refused if there was one and it was no good. */
#include "base/check.h"
#include "base/clock.h"
#include "ckpt/op.h"
#include "core/msg.h"
#include "define.h"
#include "peer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- looking --- */

static void add_dir(struct ckpt_op *op, const char *dir)
{
	for (uint32_t i = 0; i < op->dirs_nr; i++)
		if (strcmp(op->dirs[i], dir) == 0)
			return;
	snprintf(op->dirs[op->dirs_nr++], CHECKPOINT_PATH_MAX, "%s", dir);
}

void ckpt_auto_dirs(struct ckpt_op *op, const struct model *m)
{
	char own[CHECKPOINT_PATH_MAX];

	op->dirs_nr = 0;
	if (op->kind == CKPT_RETURN && m->ckpt.dir[0] != 0)
		add_dir(op, m->ckpt.dir);
	if (ckpt_dir(own, NULL, m->set.checkpoint_dir, m->name, NULL) == SHARD_OK)
		add_dir(op, own);
}

/* A run before this one may have left later steps in the folder: what `latest` names is where to begin. */
static uint64_t first_bound(const char *dir, const char *name)
{
	char tag[CHECKPOINT_TAG_MAX + 1];
	struct manifest *c = NULL;
	uint64_t bound = UINT64_MAX;

	if (checkpoint_latest(dir, tag, NULL) == SHARD_OK && checkpoint_open(dir, tag, name, &c, NULL) == SHARD_OK)
		bound = c->step + 1;
	manifest_free(&c);
	return bound;
}

static void run_pick(struct ckpt_op *op)
{
	char tag[CHECKPOINT_TAG_MAX + 1];
	uint64_t step, best = 0;
	bool found = false;

	for (uint32_t i = 0; i < op->dirs_nr; i++) {
		if (op->bound[i] == 0)
			op->bound[i] = first_bound(op->dirs[i], op->name);
		if (checkpoint_newest(op->dirs[i], op->name, op->bound[i], tag, &step, NULL) != SHARD_OK || (found && step <= best))
			continue;
		found = true;
		best = step;
		op->from_dir = i;
		snprintf(op->tag, sizeof(op->tag), "%s", tag);
	}
	manifest_free(&op->manifest);
	if (!found) {
		op->st = err_set(&op->why, SHARD_NOT_FOUND, "no complete checkpoint of \"%s\" in %s", op->name,
				 op->dirs_nr > 0 ? op->dirs[0] : "any folder");
		op->tag[0] = 0;
		return;
	}
	snprintf(op->dir, sizeof(op->dir), "%s", op->dirs[op->from_dir]);
	op->bound[op->from_dir] = best;
	ckpt_read_manifest(op, op->name);
}

static void none_left(struct ckpt_op *op)
{
	struct model *m = op->m;
	struct err e = op->why;
	bool bad = op->shares_bad || m->ckpt.last_error[0] != 0;

	if (op->kind == CKPT_START && !bad) { /* a model that begins */
		op->made = false;
		ckpt_op_free(op);
		define_answer(m);
		return;
	}
	if (op->kind == CKPT_START) {
		err_set(&e, SHARD_PROTOCOL, "restore_at_start: no checkpoint in %.200s is good: %.250s", op->dirs[0],
			m->ckpt.last_error);
		ckpt_restore_end(op, &e);
		return;
	}
	log_line(op->server->log, LOG_LEVEL_ERROR, "event=no_way_back model=%s why=%s", m->name, e.text);
	m->ckpt.rolled_back = false;
	ckpt_op_note_failure(op);
	ckpt_op_free(op);
	model_event(m, &(struct core_event){.type = CORE_EV_CHECKPOINT, .on = false});
}

void ckpt_auto_next(struct ckpt_op *op)
{
	log_line(op->server->log, LOG_LEVEL_ERROR, "event=checkpoint_bad model=%s path=%s why=%s", op->name, op->path,
		 op->why.text);
	if (op->m != NULL)
		snprintf(op->m->ckpt.last_error, sizeof(op->m->ckpt.last_error), "%s", op->why.text);
	op->failed = false;
	ckpt_auto_pick(op);
}

static void picked(struct ckpt_op *op)
{
	struct err e = op->why;

	if (op->m == NULL || op->failed || op->server->stopping) {
		ckpt_restore_end(op, &e);
		return;
	}
	if (op->st != SHARD_OK && op->tag[0] == 0) {
		none_left(op);
		return;
	}
	if (op->st == SHARD_OK && ckpt_restore_compare(op->m, op->manifest, &op->why) == SHARD_OK) {
		ckpt_restore_load(op);
		return;
	}
	if (op->st == SHARD_OK && op->kind == CKPT_START) { /* another model of that name: the difference is the answer */
		err_wrap(&e, &op->why, "restore_at_start, %.200s: %.280s", op->path, op->why.text);
		ckpt_restore_end(op, &e);
		return;
	}
	ckpt_auto_next(op);
}

void ckpt_auto_pick(struct ckpt_op *op)
{
	op->phase = CKPT_LOOKING;
	ckpt_op_work(op, run_pick, picked);
}

/* --- after LOST --- */

void ckpt_auto_return(struct model *m)
{
	struct ckpt_op *op;
	struct err e;

	if (m->ckpt.op != NULL || m->server->self != m->server->coordinator || m->server->stopping)
		return;
	if (ckpt_op_new(&op, m->server, m, CKPT_RETURN, &e) != SHARD_OK)
		return; /* the beat tries again */
	ckpt_auto_dirs(op, m);
	ckpt_auto_pick(op);
}

void ckpt_loaded(struct model *m, const char *dir, const struct core_view *view, const void *file, size_t bytes)
{
	void *copy = malloc(bytes);

	if (copy != NULL) {
		memcpy(copy, file, bytes);
		ckpt_persisted(m, copy, bytes);
	}
	snprintf(m->ckpt.dir, sizeof(m->ckpt.dir), "%s", dir);
	m->ckpt.resume = view->restoring;
	m->ckpt.loaded = view->sealed || view->restoring;
	if (view->restoring)
		snprintf(m->lost, sizeof(m->lost), "the coordinator started again while the weights were being restored");
}

/* A model that was saved, ever, has a way back; whether the files are still there is looked at when it is needed. */
void ckpt_start(struct server *s)
{
	list_each(it, &s->models) {
		struct model *m = list_of(it, struct model, link);

		if (m->ckpt.dir[0] != 0 || m->ckpt.resume)
			model_event(m, &(struct core_event){.type = CORE_EV_CHECKPOINT, .on = true});
		if (m->ckpt.dir[0] != 0)
			ckpt_known(m);
		if (m->ckpt.resume) {
			m->ckpt.rolled_back = true;
			ckpt_auto_return(m);
		}
	}
}

double ckpt_age(const struct model *m)
{
	time_t now = time(NULL);

	return m->ckpt.last.at != 0 && now > m->ckpt.last.at ? (double)(now - m->ckpt.last.at) : 0;
}

/* --- restore_at_start --- */

bool ckpt_auto_start(struct model *m)
{
	struct ckpt_op *op;
	struct err e;

	if (!m->set.restore_at_start || m->set.checkpoint_dir[0] == 0)
		return false;
	if (ckpt_op_new(&op, m->server, m, CKPT_START, &e) != SHARD_OK) {
		log_line(m->server->log, LOG_LEVEL_ERROR, "event=restore_failed model=%s why=%s", m->name, e.text);
		return false;
	}
	op->made = true;
	ckpt_auto_dirs(op, m);
	ckpt_auto_pick(op);
	return true;
}

/* --- checkpoint_every --- */

void ckpt_decided(struct model *m, const struct record *r)
{
	char text[CHECKPOINT_PATH_MAX + 64];
	uint64_t every = m->set.checkpoint_every;
	struct err e;

	if (m->server->self != m->server->coordinator || every == 0 || r->id.step % every != 0 || m->server->stopping ||
	    m->set.checkpoint_dir[0] == 0)
		return;
	if (m->ckpt.op != NULL) {
		log_line(m->server->log, LOG_LEVEL_WARN, "event=save_skipped model=%s step=%lu why=%s", m->name,
			 (unsigned long)r->id.step, ckpt_op_text(m->ckpt.op, text));
		return;
	}
	if (ckpt_save_begin(m, NULL, NULL, NULL, m->set.keep_latest, false, &e) != SHARD_OK)
		log_line(m->server->log, LOG_LEVEL_ERROR, "event=save_failed model=%s step=%lu why=%s", m->name,
			 (unsigned long)r->id.step, e.text);
}
