/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints as the rest of the daemon sees them: the events of models (model/watch.h), the beat,
 * the stop and the end of a model. The server and the models call. What a save and a restore do
 * differently is called through their table (struct ckpt_doing). The beat ends every wait: an
 * operation that moves no byte for CKPT_STALL_NS plus heartbeat_timeout is given up. Training then
 * goes on, whatever hangs. */
#include "base/check.h"
#include "base/clock.h"
#include "ckpt/auto.h"
#include "ckpt/copying.h"
#include "ckpt/op.h"
#include "model/watch.h"
#include "link/peer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- time --- */

static void give_up_shares(struct ckpt_op *op)
{
	CHECK(op->failed && op->shares_done != NULL);
	memset(op->share, 0, sizeof(op->share));
	round_end(&op->shares, op->server);
	op->shares_done(op);
}

static void stalled(struct ckpt_op *op, double seconds)
{
	struct server *s = op->server;
	struct err e;

	err_set(&e, SHARD_TIMEOUT, "\"%s\": %s made no progress for %.0f s%s", op->name,
		op->kind == CKPT_SAVE     ? "the save"
		: op->kind == CKPT_VERIFY ? "the comparison of its copies"
					  : "the restore",
		seconds, op->phase == CKPT_HOLDING ? ": the step in hand is not decided" : "");
	log_line(s->log, LOG_LEVEL_ERROR, "event=checkpoint_stalled model=%s phase=%d why=%s",
		 op->name, op->phase, e.text);
	op->moved_ns = clock_ns();
	ckpt_op_hold(op, false); /* Training goes on, whatever hangs. */
	if (op->failed && op->shares.out != 0) {
		give_up_shares(op);
		return;
	}
	ckpt_op_fail(op, &e);
	if (op->phase == CKPT_HOLDING)
		op->doing->end(op);
}

/* Weights that were given up are restored as soon as that is possible, without a deadline. The
 * requester has a deadline, so it gets an answer now. */
static void tell_waits(struct ckpt_op *op, uint64_t now_ns)
{
	const struct peer *p = ckpt_away(op);
	uint64_t limit = op->server->conf->heartbeat_timeout_ns + (p == NULL ? CKPT_STALL_NS : 0);
	bool waits = op->phase == CKPT_GIVING_UP || op->phase == CKPT_LINKS ||
		     op->phase == CKPT_SEALING || op->phase == CKPT_PUBLISHING;
	struct err e;

	if (!op->asked || !waits || now_ns < op->moved_ns + limit)
		return;
	if (p != NULL)
		err_set(&e, SHARD_UNREACHABLE,
			"\"%s\" waits for node %s, which %s%.200s; it is restored when the node "
			"is back",
			op->name, members_name(op->server, p->node),
			p->up ? "makes its memory anew" : "is down: ", p->why);
	else
		err_set(&e, SHARD_TIMEOUT,
			"\"%s\" is read, but not sealed after %.0f s; the restore goes on",
			op->name, (double)limit / NS_PER_SEC);
	log_line(op->server->log, LOG_LEVEL_WARN, "event=restore_waits model=%s path=%s why=%s",
		 op->name, op->path, e.text);
	ckpt_op_refuse(op, &e);
}

static void nobody_waits(struct ckpt_op *op)
{
	struct err e;

	err_set(&e, SHARD_INTERRUPTED, "who asked for it is gone");
	ckpt_op_fail(op, &e);
}

static bool may_end(const struct ckpt_op *op)
{
	return op->failed && !op->working && (op->shares.out == 0 || op->doing->abrupt);
}

void ckpt_beat(struct server *s, uint64_t now_ns)
{
	uint64_t limit = CKPT_STALL_NS + s->conf->heartbeat_timeout_ns;

	list_each(it, &s->ckpts) {
		struct ckpt_op *op = list_of(it, struct ckpt_op, link);
		bool waits = op->shares.out != 0 || op->phase == CKPT_HOLDING ||
			     (op->working && op->held);

		if (op->doing->wanted != NULL && !op->failed && !op->doing->wanted(op))
			nobody_waits(op);
		if (may_end(op)) {
			op->doing->end(op);
			continue;
		}
		tell_waits(op, now_ns);
		/* The requester sees that the operation lives, even if no byte moves. */
		ckpt_op_tell(op);
		if (waits && now_ns > op->moved_ns + limit)
			stalled(op, (double)limit / NS_PER_SEC);
		else if (op->doing->beat != NULL && !op->working && op->shares.out == 0)
			op->doing->beat(op);
	}
}

bool ckpt_stopped(const struct server *s)
{
	return list_empty(&s->ckpts) && s->closing_parts == 0;
}

void ckpt_stop(struct server *s)
{
	struct err e;

	CHECK(s->stop.on);
	err_set(&e, SHARD_CLOSED, "node %s stops", members_name(s, s->self));
	list_each(it, &s->models)
		ckpt_cancel(list_of(it, struct model, link), &e);
	copying_stop(s);
	list_each(it, &s->ckpts) {
		struct ckpt_op *op = list_of(it, struct ckpt_op, link);

		ckpt_op_fail(op, &e);
		if (!op->working && op->shares.out == 0)
			op->doing->end(op);
	}
}

/* --- of a model --- */

enum shard_status ckpt_init(struct model *m, struct err *e)
{
	CHECK(m->ckpt == NULL);
	m->ckpt = calloc(1, sizeof(*m->ckpt));
	if (m->ckpt == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for the checkpoints of a model");
	list_init(&m->ckpt->parts);
	return SHARD_OK;
}

void ckpt_free(struct model *m)
{
	struct ckpt_op *op = m->ckpt != NULL ? m->ckpt->op : NULL;
	struct err e;

	if (m->ckpt == NULL)
		return;
	CHECK(ckpt_quiet(m));
	copying_forget(m->ckpt->copying);
	free(m->ckpt->cut);
	free(m->ckpt->file);
	free(m->ckpt);
	m->ckpt = NULL;
	if (op == NULL)
		return;
	err_set(&e, SHARD_NOT_FOUND, "\"%s\" was dropped", m->name);
	op->m = NULL;
	op->held = false; /* Its core is gone, too. */
	round_end(&op->shares, m->server);
	ckpt_op_fail(op, &e);
	if (!op->working) /* Otherwise the end of its job ends it. */
		op->doing->end(op);
}

void ckpt_status(const struct model *m, struct ckpt_status *st)
{
	static const char *const names[] = {
		[CKPT_HOLDING] = "holding",     [CKPT_BEGINNING] = "holding",
		[CKPT_WRITING] = "writing",     [CKPT_HASHING] = "verifying",
		[CKPT_FINISHING] = "finishing", [CKPT_NOTING] = "finishing",
		[CKPT_ENDING] = "finishing"};
	const struct ckpt_op *op = m->ckpt->op;
	bool holds;

	*st = (struct ckpt_status){.state = m->rolled_back ? "restoring" : "idle"};
	if (op == NULL)
		return;
	holds = op->doing->held != NULL;
	st->state = holds ? names[op->phase] : "restoring";
	st->step = holds ? op->step : op->manifest != NULL ? op->manifest->step : 0;
	for (uint16_t n = 0; n < op->server->nodes_nr; n++) {
		st->done_bytes += op->share[n].done;
		st->total_bytes += op->share[n].total;
		st->shared_bytes += op->share[n].shared;
	}
}

bool ckpt_restoring(const struct model *m)
{
	const struct ckpt_op *op = m->ckpt->op;

	return m->rolled_back || (op != NULL && op->doing->held == NULL);
}

static bool saving(const struct model *m)
{
	const struct ckpt_op *op = m->ckpt->op;

	return op != NULL && op->kind == CKPT_SAVE;
}

/* --- what models tell --- */

static void on_lost(struct model *m, bool back, const struct err *e)
{
	(void)e;
	ckpt_lost(m, back);
}

static void held(struct model *m, const struct record *r)
{
	struct ckpt_op *op = m->ckpt->op;

	if (op != NULL && op->phase == CKPT_HOLDING && op->doing->held != NULL)
		op->doing->held(op, r);
}

static void on_forget(struct model *m)
{
	ckpt_load_forget(m, UINT16_MAX, 0);
}

/* A folder that may not be written is refused at the definition, not at the first save. */
static enum shard_status may_define(struct server *s, const Shard__Define *d,
				    const struct model_settings *set, struct err *e)
{
	struct ckpt_place place;

	if (set->checkpoint_dir[0] == 0)
		return SHARD_OK;
	return ckpt_place_set(&place, s, set->checkpoint_dir, ckpt_anywhere(s, d->cred), 0, e);
}

static void pack(const struct model *m, bool sealed, Shard__ModelFile *file, Shard__Run *run)
{
	m->ckpt->note_packed = m->ckpt->note_due;
	file->checkpoint_dir = (char *)(uintptr_t)m->ckpt->dir; /* Packing only reads it. */
	file->restore = (char *)(uintptr_t)(sealed ? "" : ckpt_ordered(m));
	ckpt_run_pack(m, run);
	file->run = run;
}

static void persisted(struct model *m, void **file, size_t bytes)
{
	CHECK(*file);
	ckpt_persisted(m, *file, bytes);
	*file = NULL;
}

static void beat(struct model *m, uint64_t now_ns)
{
	(void)now_ns;
	ckpt_note_beat(m);
}

static bool found_weights(const struct model *m)
{
	return m->ckpt->loaded;
}

static bool filled(const struct model *m)
{
	return m->ckpt->load.state != META_LOAD_NONE;
}

static void cleared(struct model *m)
{
	m->ckpt->load.state = META_LOAD_NONE;
}

static bool uses(const struct model *m)
{
	return !ckpt_quiet(m);
}

const struct model_watch ckpt_watch = {
	.applying = ckpt_decided,
	.boundary = ckpt_boundary,
	.beat = beat,
	.held = held,
	.sealed = ckpt_sealed,
	.whole = ckpt_whole,
	.voided = ckpt_reset,
	.lost = on_lost,
	.anew = ckpt_anew,
	.forget = on_forget,
	.may_define = may_define,
	.made = ckpt_init,
	.defined = ckpt_defined,
	.refused = ckpt_refused,
	.dropping = ckpt_cancel,
	.going = ckpt_free,
	.pack = pack,
	.persisted = persisted,
	.found = ckpt_cut,
	.loaded = ckpt_loaded,
	.started = ckpt_started,
	.led = ckpt_led,
	.leads = ckpt_leads,
	.resigned = ckpt_resigned,
	.resumed = ckpt_load_found,
	.uses = uses,
	.found_weights = found_weights,
	.filled = filled,
	.cleared = cleared,
	.restoring = ckpt_restoring,
	.saving = saving,
	.unsealable = ckpt_load_void,
	.may_count = ckpt_load_check,
};
