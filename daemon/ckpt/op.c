/* SPDX-License-Identifier: Apache-2.0 */
/* What every save and restore does, on the coordinator: one job at a time off the loop, a share asked of every node, their progress
 * summed up and passed to who asked, the first failure kept while the others are waited for. save.c and restore.c build on it. Every
 * wait ends: an answer, a lost link, or CKPT_STALL_NS (and heartbeat_timeout) without a byte, after which shares are given up. */
#include "ckpt/op.h"

#include "base/check.h"
#include "base/clock.h"
#include "core/core.h"
#include "peer.h"
#include "persist.h"
#include "relay.h"
#include "session.h"
#include "wire/control.h"
#include "wire/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum shard_status ckpt_dir(char *out, const char *asked, const char *checkpoint_dir, const char *name, struct err *e)
{
	int n;

	if (asked != NULL && asked[0] != 0)
		n = snprintf(out, CHECKPOINT_PATH_MAX, "%s", asked);
	else if (checkpoint_dir[0] != 0)
		n = snprintf(out, CHECKPOINT_PATH_MAX, "%s/%s", checkpoint_dir, name);
	else
		return err_set(e, SHARD_BAD_ARG, "no folder for \"%s\": name one, or set checkpoint_dir in its settings", name);
	while (n > 1 && n < CHECKPOINT_PATH_MAX && out[n - 1] == '/')
		out[--n] = 0;
	if (out[0] != '/')
		return err_set(e, SHARD_BAD_ARG,
			       "folder %s: an absolute path, please: every node opens it, whatever its own folder is", out);
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
	CHECK(m->ckpt.op == NULL && op->m == NULL);
	op->m = m;
	m->ckpt.op = op;
	snprintf(op->name, sizeof(op->name), "%s", m->name);
}

enum shard_status ckpt_op_new(struct ckpt_op **out, struct server *s, struct model *m, enum ckpt_kind kind, struct err *e)
{
	struct ckpt_op *op = calloc(1, sizeof(*op));

	*out = NULL;
	if (op == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a checkpoint");
	op->server = s;
	op->kind = kind;
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
	free(c->files);
	free(c->blobs);
	free(c->tensors);
	free(c->groups);
	free(c->optimizer);
	free(c->settings);
}

void ckpt_op_free(struct ckpt_op *op)
{
	CHECK(!op->working && !op->held);
	if (op->m != NULL)
		op->m->ckpt.op = NULL;
	list_remove(&op->link);
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

static void work_run(uv_work_t *w)
{
	struct ckpt_op *op = w->data;

	op->run(op);
}

static void work_done(uv_work_t *w, int status)
{
	struct ckpt_op *op = w->data;

	if (status != 0)
		op->st = err_set(&op->why, SHARD_INTERRUPTED, "cancelled");
	op->working = false;
	op->moved_ns = clock_ns();
	op->done(op);
}

void ckpt_op_work(struct ckpt_op *op, void (*run)(struct ckpt_op *), void (*done)(struct ckpt_op *))
{
	CHECK(!op->working && op->out_nr == 0);
	op->working = true;
	op->run = run;
	op->done = done;
	op->st = SHARD_OK;
	op->moved_ns = clock_ns();
	op->work.data = op;
	CHECK(uv_queue_work(op->server->loop, &op->work, work_run, work_done) == 0);
}

/* --- who asked --- */

struct session *ckpt_op_session(const struct ckpt_op *op)
{
	return op->asked && op->asker.node == op->server->self ? session_find(op->server, op->asker.session) : NULL;
}

void ckpt_op_refuse(struct ckpt_op *op, const struct err *e)
{
	struct server *s = op->server;
	struct session *t = ckpt_op_session(op);

	if (!op->asked)
		return;
	if (op->asker.node != s->self)
		peer_refuse(s->peer[op->asker.node], op->asker.tag, e);
	else if (t != NULL)
		session_refuse(t, op->asker.tag, e);
	op->asked = false;
}

void ckpt_op_note_failure(struct ckpt_op *op)
{
	struct server *s = op->server;

	if (op->m != NULL) {
		op->m->ckpt.failures++;
		snprintf(op->m->ckpt.last_error, sizeof(op->m->ckpt.last_error), "%s", op->why.text);
	}
	log_line(s->log, LOG_LEVEL_ERROR, "event=%s_failed model=%s path=%s seconds=%.1f why=%s",
		 op->kind == CKPT_SAVE ? "save" : "restore", op->name, op->path[0] != 0 ? op->path : op->dir,
		 (double)(clock_ns() - op->began_ns) / NS_PER_SEC, op->why.text);
}

const char *ckpt_op_text(const struct ckpt_op *op, char out[CHECKPOINT_PATH_MAX + 64])
{
	const char *path = op->path[0] != 0 ? op->path : op->dir;

	snprintf(out, CHECKPOINT_PATH_MAX + 64, "%s %s", op->kind == CKPT_SAVE ? "is being saved to" : "is being restored from",
		 path[0] != 0 ? path : "its newest checkpoint");
	return out;
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

/* --- time --- */

static void give_up_shares(struct ckpt_op *op)
{
	memset(op->share, 0, sizeof(op->share));
	op->out_nr = 0;
	op->shares_done(op);
}

static void stalled(struct ckpt_op *op, double seconds)
{
	struct server *s = op->server;
	struct err e;

	err_set(&e, SHARD_TIMEOUT, "\"%s\": %s made no progress for %.0f s%s", op->name,
		op->kind == CKPT_SAVE ? "the save" : "the restore", seconds,
		op->phase == CKPT_HOLDING ? ": the step in hand is not decided" : "");
	log_line(s->log, LOG_LEVEL_ERROR, "event=checkpoint_stalled model=%s phase=%d why=%s", op->name, op->phase, e.text);
	op->moved_ns = clock_ns();
	ckpt_op_hold(op, false); /* training goes on, whatever hangs */
	if (op->failed && op->out_nr > 0) {
		give_up_shares(op);
		return;
	}
	ckpt_op_fail(op, &e);
	if (op->phase == CKPT_HOLDING)
		ckpt_save_lost(op);
}

const struct peer *ckpt_away(const struct server *s)
{
	for (uint16_t n = 0; n < s->nodes_nr; n++)
		if (s->peer[n] != NULL && !s->peer[n]->up)
			return s->peer[n];
	return NULL;
}

/* What was given up comes back when it can, without a deadline; who asked for it has one. */
static void tell_waits(struct ckpt_op *op, uint64_t now_ns)
{
	const struct peer *p = ckpt_away(op->server);
	uint64_t limit = op->server->conf->heartbeat_timeout_ns + (p == NULL ? CKPT_STALL_NS : 0);
	bool waits =
		op->phase == CKPT_GIVING_UP || op->phase == CKPT_LINKS || op->phase == CKPT_SEALING || op->phase == CKPT_PUBLISHING;
	struct err e;

	if (!op->asked || !waits || now_ns < op->moved_ns + limit)
		return;
	if (p != NULL)
		err_set(&e, SHARD_UNREACHABLE,
			"\"%s\" waits for node %s, which is down: %.200s; it is restored when the node is back", op->name,
			server_node_name(op->server, p->node), p->why);
	else
		err_set(&e, SHARD_TIMEOUT, "\"%s\" is read, but not sealed after %.0f s; the restore goes on", op->name,
			(double)limit / NS_PER_SEC);
	log_line(op->server->log, LOG_LEVEL_WARN, "event=restore_waits model=%s path=%s why=%s", op->name, op->path, e.text);
	ckpt_op_refuse(op, &e);
}

static void end_restore(struct ckpt_op *op)
{
	struct err e = op->why;

	ckpt_restore_end(op, &e);
}

void ckpt_beat(struct server *s, uint64_t now_ns)
{
	uint64_t limit = CKPT_STALL_NS + s->conf->heartbeat_timeout_ns;

	list_each(it, &s->ckpts) {
		struct ckpt_op *op = list_of(it, struct ckpt_op, link);
		bool waits = op->out_nr > 0 || op->phase == CKPT_HOLDING || (op->working && op->held);

		if (op->failed && !op->working && op->out_nr == 0) {
			if (op->kind == CKPT_SAVE)
				ckpt_save_lost(op);
			else
				end_restore(op);
			continue;
		}
		tell_waits(op, now_ns);
		ckpt_op_tell(op); /* who asked sees that it lives, also where no byte moves */
		if (waits && now_ns > op->moved_ns + limit)
			stalled(op, (double)limit / NS_PER_SEC);
		else if (op->kind != CKPT_SAVE && !op->working && op->out_nr == 0)
			ckpt_restore_beat(op);
	}
}

bool ckpt_stopped(const struct server *s)
{
	return list_empty(&s->ckpts) && s->closing_parts == 0;
}

void ckpt_stop(struct server *s)
{
	struct err e;

	err_set(&e, SHARD_CLOSED, "node %s stops", server_node_name(s, s->self));
	list_each(it, &s->models)
		ckpt_cancel(list_of(it, struct model, link), &e);
	list_each(it, &s->ckpts) {
		struct ckpt_op *op = list_of(it, struct ckpt_op, link);

		ckpt_op_fail(op, &e);
		if (op->working || op->out_nr > 0)
			continue;
		if (op->kind == CKPT_SAVE)
			ckpt_save_lost(op);
		else
			ckpt_restore_end(op, &e);
	}
}

/* --- of a model --- */

void ckpt_init(struct model *m)
{
	list_init(&m->ckpt.parts);
}

void ckpt_free(struct model *m)
{
	struct ckpt_op *op = m->ckpt.op;
	struct err e;

	CHECK(ckpt_quiet(m));
	free(m->ckpt.file);
	if (op == NULL)
		return;
	err_set(&e, SHARD_NOT_FOUND, "\"%s\" was dropped", m->name);
	ckpt_op_fail(op, &e);
	op->m = NULL;
	op->held = false; /* its core is gone, too */
	op->out_nr = 0;
	m->ckpt.op = NULL;
	if (op->working)
		return; /* its job's end is its end */
	if (op->kind == CKPT_SAVE)
		ckpt_save_lost(op);
	else
		ckpt_restore_end(op, &e);
}

void ckpt_status(const struct model *m, struct ckpt_status *st)
{
	static const char *const names[] = {[CKPT_HOLDING] = "holding",
					    [CKPT_BEGINNING] = "holding",
					    [CKPT_WRITING] = "writing",
					    [CKPT_FINISHING] = "finishing",
					    [CKPT_ENDING] = "finishing"};
	const struct ckpt_op *op = m->ckpt.op;

	*st = (struct ckpt_status){.state = m->ckpt.rolled_back ? "restoring" : "idle"};
	if (op == NULL)
		return;
	st->state = op->kind == CKPT_SAVE ? names[op->phase] : "restoring";
	st->step = op->kind == CKPT_SAVE ? op->step : op->manifest != NULL ? op->manifest->step : 0;
	for (uint16_t n = 0; n < op->server->nodes_nr; n++) {
		st->done_bytes += op->share[n].done;
		st->total_bytes += op->share[n].total;
	}
}

bool ckpt_restoring(const struct model *m)
{
	return m->ckpt.rolled_back || (m->ckpt.op != NULL && m->ckpt.op->kind != CKPT_SAVE);
}

/* --- what the coordinator keeps --- */

void ckpt_persisted(struct model *m, void *file, size_t bytes)
{
	free(m->ckpt.file);
	m->ckpt.file = file;
	m->ckpt.file_bytes = bytes;
}

/* As act_persist() does, on the loop: an older view must never overtake a newer one. Once per folder, not per save. */
void ckpt_persist_dir(struct model *m, const char *dir)
{
	struct server *s = m->server;
	Shard__ModelFile *file;
	uint8_t *packed = NULL;
	size_t bytes = 0;
	struct err e;

	if (strcmp(m->ckpt.dir, dir) == 0)
		return;
	snprintf(m->ckpt.dir, sizeof(m->ckpt.dir), "%s", dir);
	if (persist_dir(m))
		return;
	file = m->ckpt.file != NULL ? shard__model_file__unpack(NULL, m->ckpt.file_bytes, m->ckpt.file) : NULL;
	if (file != NULL) {
		char *before = file->checkpoint_dir;

		file->checkpoint_dir = m->ckpt.dir;
		bytes = shard__model_file__get_packed_size(file);
		if ((packed = malloc(bytes)) != NULL)
			shard__model_file__pack(file, packed);
		file->checkpoint_dir = before;
		shard__model_file__free_unpacked(file, NULL);
	}
	if (packed == NULL || static_save(s->dir, m->id, packed, bytes, &e) != SHARD_OK)
		log_line(s->log, LOG_LEVEL_ERROR, "event=checkpoint_dir_not_durable model=%s dir=%s why=%s", m->name, dir,
			 packed == NULL ? "no memory, or no view yet" : e.text);
	if (packed != NULL)
		ckpt_persisted(m, packed, bytes);
}
