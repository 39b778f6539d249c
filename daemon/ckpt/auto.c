/* SPDX-License-Identifier: Apache-2.0 */
/* Saves and restores that nobody asks for: a save every checkpoint_every steps, the restore after
 * LOST, and restore_at_start. The core's events and definitions call, on the coordinator. For a
 * restore, pick.c chooses a checkpoint from the folder of the last save and from checkpoint_dir. A
 * damaged one is logged, and the next older one of the same run is tried. When none is left after
 * LOST, the core is told and the model stays LOST. When none is left for a definition, the
 * definition is refused, unless there is no checkpoint at all. Both restores begin again when the
 * coordinator starts again. */
#include "base/check.h"
#include "base/clock.h"
#include "ckpt/auto.h"
#include "ckpt/copying.h"
#include "ckpt/op.h"
#include "ckpt/save.h"
#include "ckpt/spec_of.h"
#include "core/msg.h"
#include "control/define.h"
#include "model/lost.h"
#include "link/peer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* --- looking --- */

static void add_dir(struct ckpt_op *op, const char *dir, bool anywhere)
{
	struct ckpt_place *p = &op->dirs[op->dirs_nr];
	struct err e;

	CHECK(op->dirs_nr <= CKPT_DIRS);
	if (ckpt_place_set(p, op->server, dir, anywhere, 0, &e) != SHARD_OK) {
		log_line(op->server->log, LOG_LEVEL_ERROR,
			 "event=checkpoint_dir_denied model=%s why=%s", op->name, e.text);
		snprintf(op->newer, sizeof(op->newer), "%s", dir);
		op->newer_why = e;
		return;
	}
	for (uint32_t i = 0; i < op->dirs_nr; i++)
		if (strcmp(op->dirs[i].dir, p->dir) == 0)
			return;
	op->dirs_nr++;
}

void ckpt_auto_dirs(struct ckpt_op *op, const struct model *m)
{
	char own[CHECKPOINT_PATH_MAX];

	op->dirs_nr = 0;
	if (op->kind == CKPT_RETURN && m->ckpt->dir[0] != 0)
		add_dir(op, m->ckpt->dir, true); /* It was allowed at that save. */
	if (ckpt_dir(own, NULL, m->set.checkpoint_dir, m->name, NULL) == SHARD_OK)
		add_dir(op, own, ckpt_anywhere(op->server, m->spec->owner));
}

/* There is no checkpoint at all, so the model begins without one. */
static void begins_anew(struct ckpt_op *op)
{
	struct model *m = op->m;

	CHECK(op->kind == CKPT_START);
	log_line(op->server->log, LOG_LEVEL_INFO, "event=begins_anew model=%s dir=%s why=%s",
		 m->name, op->dirs_nr > 0 ? op->dirs[0].dir : "", op->why.text);
	op->made = false;
	ckpt_op_free(op);
	define_answer(m);
}

/* There may be weights that cannot be restored. The user who defines the model has to decide, so
 * the definition is refused and the model does not begin anew. */
static void start_refused(struct ckpt_op *op)
{
	enum shard_status st = op->why.status;
	const char *dir = op->dirs_nr > 0 ? op->dirs[0].dir : "its checkpoint_dir";
	struct err e;

	CHECK(op->kind == CKPT_START);
	if (st != SHARD_DENIED && st != SHARD_SYSTEM)
		st = SHARD_PROTOCOL;
	err_set(&e, st,
		"restore_at_start: no checkpoint in %.150s is good: %.250s: mend it, `shardctl "
		"restore DIR --tag TAG` another one, or move the folder away to begin anew",
		dir, op->why.text);
	ckpt_restore_end(op, &e);
}

static void none_left(struct ckpt_op *op)
{
	struct model *m = op->m;
	struct err e = op->why;

	if (op->kind == CKPT_START && op->none) {
		begins_anew(op);
		return;
	}
	if (op->kind == CKPT_START) {
		start_refused(op);
		return;
	}
	log_line(op->server->log, LOG_LEVEL_ERROR, "event=no_way_back model=%s why=%s", m->name,
		 e.text);
	lost_no_way_back(m, e.text);
	ckpt_op_note_failure(op);
	ckpt_op_free(op);
	model_event(m,
		    &(struct core_event){.type = CORE_EV_CHECKPOINT, .on = false, .why = e.text});
}

void ckpt_auto_next(struct ckpt_op *op)
{
	CHECK(op->kind != CKPT_SAVE && op->m != NULL);
	log_line(op->server->log, LOG_LEVEL_ERROR, "event=checkpoint_bad model=%s path=%s why=%s",
		 op->name, op->path, op->why.text);
	if (op->m != NULL)
		snprintf(op->m->ckpt->last_error, sizeof(op->m->ckpt->last_error), "%s",
			 op->why.text);
	if (op->newer[0] == 0) {
		snprintf(op->newer, sizeof(op->newer), "%s", op->path);
		op->newer_why = op->why;
	}
	op->failed = false;
	ckpt_auto_pick(op);
}

static void picked(struct ckpt_op *op)
{
	struct err e = op->why;

	if (op->m == NULL || op->failed || op->server->stop.on) {
		ckpt_restore_end(op, &e);
		return;
	}
	if (op->st != SHARD_OK && op->tag[0] == 0) {
		none_left(op);
		return;
	}
	if (op->st == SHARD_OK)
		op->st = ckpt_may_read(op->manifest, op->m->spec->owner, op->path, &op->why);
	if (op->st == SHARD_OK)
		op->st = ckpt_may_fill(op->m, op->manifest, op->path, &op->why);
	if (op->st == SHARD_DENIED && op->kind == CKPT_START) {
		/* The checkpoint is somebody else's. Its weights are not taken, and the model does
		 * not begin anew beside it. */
		err_wrap(&e, &op->why, "restore_at_start, %.500s", op->why.text);
		ckpt_restore_end(op, &e);
		return;
	}
	if (op->st == SHARD_OK && ckpt_restore_compare(op->m, op->manifest, &op->why) == SHARD_OK) {
		if (op->newer[0] != 0)
			log_line(op->server->log, LOG_LEVEL_WARN,
				 "event=older_checkpoint model=%s path=%s newer=%s why=%s",
				 op->name, op->path, op->newer, op->newer_why.text);
		ckpt_restore_load(op);
		return;
	}
	if (op->st == SHARD_OK && op->kind == CKPT_START) {
		/* The checkpoint is of another model with that name. The answer is the
		 * difference. */
		err_wrap(&e, &op->why, "restore_at_start, %.200s: %.280s", op->path, op->why.text);
		ckpt_restore_end(op, &e);
		return;
	}
	ckpt_auto_next(op);
}

void ckpt_auto_pick(struct ckpt_op *op)
{
	CHECK(op->kind != CKPT_SAVE && op->m != NULL);
	op->phase = CKPT_LOOKING;
	if (op->kind == CKPT_RETURN)
		op->whose = op->m->ckpt->run;
	ckpt_op_work(op, ckpt_pick, picked);
}

/* --- after LOST --- */

void ckpt_auto_return(struct model *m)
{
	struct ckpt_op *op;
	struct err e;

	/* While the model is dropped, no restore may begin again after the drop has ended one. */
	if (m->dropping || m->ckpt->cut != NULL || m->ckpt->op != NULL ||
	    !server_leads(m->server) || m->server->stop.on)
		return;
	if (ckpt_op_new(&op, m->server, m, CKPT_RETURN, &ckpt_restores, &e) != SHARD_OK)
		return; /* The beat tries again. */
	ckpt_auto_dirs(op, m);
	ckpt_auto_pick(op);
}

static void cut_text(char *out, size_t bytes, const char *path)
{
	snprintf(out, bytes,
		 "its coordinator ended in the middle of its restore from %.300s: run that restore "
		 "again",
		 path);
}

/* The model had no weights before that restore, and no trainer may begin it anew just because the
 * restore was cut short. So it becomes LOST. */
void ckpt_cut(const Shard__ModelFile *file, struct core_view *view, char *lost, size_t bytes)
{
	snprintf(lost, bytes, "%s", file->lost);
	if (view->sealed || view->restoring || file->restore[0] == 0)
		return;
	view->lost = true;
	cut_text(lost, bytes, file->restore);
}

void ckpt_loaded(struct model *m, const Shard__ModelFile *file, const struct core_view *view,
		 const void *bytes, size_t bytes_nr)
{
	const Shard__Run *run = file->run;
	void *copy = malloc(bytes_nr);

	CHECK(m->ckpt->file == NULL && bytes_nr > 0);
	if (copy != NULL) {
		memcpy(copy, bytes, bytes_nr);
		ckpt_persisted(m, copy, bytes_nr);
	}
	if (run != NULL)
		m->ckpt->run = (struct ckpt_run){.is = {{run->id_high, run->id_low}, run->line},
						 .from_line = run->from_line,
						 .from_step = run->from_step};
	snprintf(m->ckpt->dir, sizeof(m->ckpt->dir), "%s", file->checkpoint_dir);
	m->ckpt->resume = view->restoring;
	m->ckpt->cut = view->restoring && file->restore[0] != 0 ? strdup(file->restore) : NULL;
	m->ckpt->begins = !view->sealed && !view->restoring && !view->lost;
	m->ckpt->loaded = view->sealed || view->restoring;
	if (view->lost && file->restore[0] != 0 && !view->restoring)
		log_line(m->server->log, LOG_LEVEL_ERROR,
			 "event=restore_cut model=%s path=%s why=%s", m->name, file->restore,
			 "this coordinator ended in the middle of that restore");
	if (view->restoring)
		snprintf(m->lost, sizeof(m->lost),
			 "the coordinator started again while the weights were being restored");
}

/* A node that has no weights, as after a start without its memory, learns here whether there were
 * any. Until the core has said what became of them, nobody may begin anew. */
void ckpt_led(struct model *m, const Shard__ModelFile *file, struct core_view *view)
{
	const Shard__Run *run = file->run;
	char lost[512];

	m->ckpt->led = true;
	m->ckpt->begins = !m->sealed && !view->sealed && !view->restoring && !view->lost;
	free(m->ckpt->cut);
	m->ckpt->cut = view->restoring && file->restore[0] != 0 ? strdup(file->restore) : NULL;
	if (!m->sealed) {
		ckpt_cut(file, view, lost, sizeof(lost));
		lost_loaded(m, view, lost);
		m->ckpt->loaded = view->sealed || view->restoring;
	}
	if (run != NULL)
		m->ckpt->run = (struct ckpt_run){.is = {{run->id_high, run->id_low}, run->line},
						 .from_line = run->from_line,
						 .from_step = run->from_step};
	snprintf(m->ckpt->dir, sizeof(m->ckpt->dir), "%s", file->checkpoint_dir);
}

/* An operator chose one checkpoint, and the weights before it are gone. So only an operator may
 * choose another one. */
static void stays_lost(struct model *m)
{
	char why[512];

	cut_text(why, sizeof(why), m->ckpt->cut);
	log_line(m->server->log, LOG_LEVEL_ERROR, "event=restore_cut model=%s path=%s why=%s",
		 m->name, m->ckpt->cut, why);
	m->rolled_back = true; /* Nobody may write it before its core has said LOST. */
	m->ckpt->resume = false;
	model_event(m, &(struct core_event){.type = CORE_EV_CHECKPOINT, .on = false, .why = why});
}

void ckpt_leads(struct model *m)
{
	if (m->ckpt->dir[0] != 0)
		ckpt_known(m);
	if (m->ckpt->cut != NULL)
		stays_lost(m);
	else if (m->ckpt->dir[0] != 0)
		model_event(m, &(struct core_event){.type = CORE_EV_CHECKPOINT, .on = true});
}

void ckpt_resigned(struct model *m)
{
	struct err e;

	err_set(&e, SHARD_UNREACHABLE, "node %s does not coordinate any more: ask again",
		members_name(m->server, m->server->self));
	if (m->ckpt->op != NULL)
		ckpt_op_fail(m->ckpt->op, &e);
	copying_resigned(m);
}

/* A model that was ever saved counts as restorable. Whether the files still exist is checked when
 * they are needed. */
void ckpt_started(struct model *m)
{
	if (m->ckpt->cut != NULL)
		stays_lost(m);
	else if (m->ckpt->dir[0] != 0 || m->ckpt->resume)
		model_event(m, &(struct core_event){.type = CORE_EV_CHECKPOINT, .on = true});
	if (m->ckpt->dir[0] != 0)
		ckpt_known(m);
	if (m->ckpt->begins)
		(void)ckpt_auto_start(m, true);
	if (m->ckpt->resume) {
		m->rolled_back = true;
		ckpt_auto_return(m);
	}
}

void ckpt_start(struct server *s)
{
	list_each(it, &s->models)
		ckpt_started(list_of(it, struct model, link));
}

double ckpt_age(const struct model *m)
{
	time_t now = time(NULL);

	return m->ckpt->last.at != 0 && now > m->ckpt->last.at ? (double)(now - m->ckpt->last.at)
							       : 0;
}

/* --- restore_at_start --- */

bool ckpt_auto_start(struct model *m, bool again)
{
	struct ckpt_op *op;
	struct err e;

	CHECK(m->ckpt->op == NULL);
	if (!m->set.restore_at_start || m->set.checkpoint_dir[0] == 0)
		return false;
	if (ckpt_op_new(&op, m->server, m, CKPT_START, &ckpt_restores, &e) != SHARD_OK) {
		log_line(m->server->log, LOG_LEVEL_ERROR, "event=restore_failed model=%s why=%s",
			 m->name, e.text);
		define_abandon(m, &e); /* Beginning anew beside a checkpoint would be worse. */
		return true;
	}
	op->made = true;
	op->again = again;
	ckpt_auto_dirs(op, m);
	ckpt_auto_pick(op);
	return true;
}

/* --- checkpoint_every --- */

/* A save that nobody asked for. */
static enum shard_status own_save(struct model *m, struct err *e)
{
	const struct ckpt_wish wish = {.keep = m->set.keep_latest,
				       .anywhere = ckpt_anywhere(m->server, m->spec->owner)};

	return ckpt_save_begin(m, NULL, &wish, e);
}

void ckpt_decided(struct model *m, const struct record *r)
{
	char text[CHECKPOINT_PATH_MAX + 64];
	uint64_t every = m->set.checkpoint_every;
	struct err e;

	CHECK(r->id.generation == m->generation);
	if (!server_leads(m->server) || every == 0 || r->id.step % every != 0 ||
	    m->server->stop.on || m->set.checkpoint_dir[0] == 0)
		return;
	if (m->ckpt->op != NULL && m->ckpt->op->kind == CKPT_VERIFY) {
		m->ckpt->late = true;
		return;
	}
	if (m->ckpt->op != NULL) {
		log_line(m->server->log, LOG_LEVEL_WARN,
			 "event=save_skipped model=%s step=%lu why=%s", m->name,
			 (unsigned long)r->id.step, ckpt_op_text(m->ckpt->op, text));
		return;
	}
	if (own_save(m, &e) != SHARD_OK)
		log_line(m->server->log, LOG_LEVEL_ERROR,
			 "event=save_failed model=%s step=%lu why=%s", m->name,
			 (unsigned long)r->id.step, e.text);
}

void ckpt_auto_late(struct model *m)
{
	struct core_state core;
	struct err e;

	core_state(m->core, &core);
	if (m->rolled_back && core.restoring) {
		ckpt_auto_return(m);
		return;
	}
	if (!m->ckpt->late)
		return;
	m->ckpt->late = false;
	if (m->sealed && server_leads(m->server) && !m->server->stop.on &&
	    own_save(m, &e) != SHARD_OK)
		log_line(m->server->log, LOG_LEVEL_ERROR,
			 "event=save_failed model=%s step=%lu why=%s", m->name,
			 (unsigned long)m->step, e.text);
}
