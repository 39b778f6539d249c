/* SPDX-License-Identifier: Apache-2.0 */
/* The coordinator's side of a save. A request or auto.c begins it after checking that it may. Happy
 * path: the core holds, so that nothing after one step is decided. A job makes the folder under a
 * temporary name, and every node writes its share while trainers compute. Then the core goes on,
 * and a job writes the manifest, syncs, renames the folder and sets `latest`. The requester gets
 * Saved. A model has one save or restore at a time. When anything fails (a full disk, a lost link,
 * LOST, no progress), the other shares end, the core goes on at once, the temporary folder is
 * removed and the requester hears why. Older checkpoints stay. The save goes on even if the
 * requester is gone. */
#include "control/access.h"
#include "control/unmade.h"
#include "base/check.h"
#include "model/lead.h"
#include "base/clock.h"
#include "ckpt/auto.h"
#include "ckpt/client.h"
#include "ckpt/copying.h"
#include "ckpt/op.h"
#include "ckpt/save.h"
#include "ckpt/spec_of.h"
#include "model/lost.h"
#include "link/peer.h"
#include "link/call.h"
#include "link/session.h"
#include "model/spec.h"
#include "model/watch.h"
#include "wire/ops.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void finish(struct ckpt_op *op);

/* --- the end --- */

static void abandoned(struct ckpt_op *op)
{
	struct model *m = op->m;

	CHECK(op->failed);
	ckpt_op_note_failure(op);
	ckpt_op_refuse(op, &op->why);
	ckpt_op_free(op);
	if (m != NULL)
		ckpt_auto_late(m);
}

static void let_go(struct ckpt_op *op) /* In a job, because a file system may take its time. */
{
	if (op->folder >= 0)
		close(op->folder);
	op->folder = -1;
}

/* Also removes what killed saves have left, because that may be why the disk is full. */
static void run_abandon(struct ckpt_op *op)
{
	if (ckpt_place_open(&op->place, false, NULL) == SHARD_OK) {
		checkpoint_abandon(op->place.at, op->tag);
		checkpoint_sweep(op->place.at, op->name);
		ckpt_place_close(&op->place, NULL);
	}
	let_go(op);
}

static void end_failed(struct ckpt_op *op)
{
	enum ckpt_phase was = op->phase;

	CHECK(op->failed && !op->working && op->shares.out == 0);
	ckpt_op_hold(op, false);
	if (was == CKPT_HOLDING || was == CKPT_ENDING) {
		abandoned(op);
		return;
	}
	op->phase = CKPT_ENDING;
	ckpt_op_work(op, run_abandon, abandoned);
}

static void save_lost(struct ckpt_op *op)
{
	if (op->working || op->shares.out != 0)
		return; /* Their end ends the save. */
	end_failed(op);
}

static void answer_saved(struct ckpt_op *op)
{
	const struct ckpt_last *l = &op->m->ckpt->last;
	struct wire_head h = {.op = OP_SAVE,
			      .model = op->m->id,
			      .generation = op->m->generation,
			      .step = op->step};
	Shard__Saved body = SHARD__SAVED__INIT;

	CHECK(op->kind == CKPT_SAVE);
	body.path = (char *)(uintptr_t)l->path;
	body.step = l->step;
	body.bytes = l->bytes;
	body.shared_bytes = l->shared_bytes;
	body.write_ns = l->write_ns;
	body.hold_ns = l->hold_ns;
	if (op->asked)
		caller_answer(op->server, &op->requester, &h, &body.base);
}

/* Logs, answers and frees the save in one turn of the loop, so that whoever reads the log line or
 * the answer may save again at once. */
static void noted(struct ckpt_op *op)
{
	struct model *m = op->m;
	const struct ckpt_last *l;

	if (!ckpt_op_noted(op))
		return;
	l = &m->ckpt->last;
	log_line(
		m->server->log, LOG_LEVEL_INFO,
		"event=saved model=%s path=%s step=%lu bytes=%lu shared=%lu seconds=%.3f held=%.3f",
		m->name, l->path, (unsigned long)l->step, (unsigned long)l->bytes,
		(unsigned long)l->shared_bytes, (double)l->write_ns / NS_PER_SEC,
		(double)l->hold_ns / NS_PER_SEC);
	answer_saved(op);
	ckpt_op_free(op);
	WATCH_TELL(m->server, saved, m, l->path, l->step);
	model_event(m, &(struct core_event){.type = CORE_EV_CHECKPOINT, .on = true});
	copying_begin(m);
	ckpt_auto_late(m);
}

static void save_beat(struct ckpt_op *op)
{
	if (op->phase == CKPT_NOTING)
		noted(op);
}

static void finished(struct ckpt_op *op)
{
	struct model *m = op->m;
	struct ckpt_last *l = m != NULL ? &m->ckpt->last : NULL;

	CHECK(op->phase == CKPT_FINISHING);
	if (op->st != SHARD_OK) {
		op->failed = true;
		end_failed(op);
		return;
	}
	if (l == NULL) {
		/* The model was dropped meanwhile. The checkpoint is good. */
		ckpt_op_refuse(op, &op->why);
		ckpt_op_free(op);
		return;
	}
	snprintf(l->path, sizeof(l->path), "%s", op->path);
	l->step = op->step;
	l->bytes = op->bytes;
	l->shared_bytes = op->shared_bytes;
	l->write_ns = clock_ns() - op->held_ns;
	l->hold_ns = op->hold_ns;
	l->at = ckpt_time(op->made_of.created);
	m->ckpt->last_error[0] = 0;
	op->phase = CKPT_NOTING;
	noted(op);
}

/* --- the manifest --- */

static enum shard_status copy_layout(struct ckpt_op *op, struct err *e)
{
	struct manifest *c = &op->made_of;

	op->spec = spec_copy(
		&op->m->spec->spec
			 ->base); /* The model may be dropped before the manifest is written. */
	if (op->spec == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a manifest");
	c->tensors_nr = (uint32_t)op->spec->n_tensors;
	c->groups_nr = (uint32_t)op->spec->n_groups;
	c->tensors = calloc(c->tensors_nr + 1, sizeof(*c->tensors));
	c->groups = calloc(c->groups_nr + 1, sizeof(*c->groups));
	c->settings = strdup(op->m->settings_text);
	c->optimizer = strdup(op->m->set.optim->name);
	c->files = calloc(op->server->nodes_nr, sizeof(*c->files));
	if (c->tensors == NULL || c->groups == NULL || c->settings == NULL ||
	    c->optimizer == NULL || c->files == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a manifest");
	for (uint32_t i = 0; i < c->tensors_nr; i++) {
		const Shard__Tensor *t = op->spec->tensors[i];

		c->tensors[i] = (struct shard_tensor){
			.name = t->name, .ndim = (uint32_t)t->n_shape, .group = t->group};
		layout_flags_take(&c->tensors[i], t->flags);
		if (t->n_shape > 0)
			memcpy(c->tensors[i].shape, t->shape, t->n_shape * sizeof(t->shape[0]));
	}
	for (uint32_t i = 0; i < c->groups_nr; i++)
		c->groups[i] = (struct shard_group){op->spec->groups[i]->name,
						    op->spec->groups[i]->settings};
	return SHARD_OK;
}

static void save_hyper(const struct model *m, const struct core_tune *t, struct manifest *c)
{
	for (uint32_t g = 0; g < m->set.groups_nr; g++)
		for (uint32_t i = 0; i < HYPER_NR; i++) {
			struct manifest_hyper *h = &c->tune.hyper[c->tune.hyper_nr];

			if (!(t->set[g] >> i & 1))
				continue;
			CHECK(c->tune.hyper_nr < MANIFEST_HYPER_MAX);
			h->group = g;
			snprintf(h->key, sizeof(h->key), "%s", m->set.optim->hyper[i].name);
			h->value = t->hyper[g][i];
			c->tune.hyper_nr++;
		}
}

/* Fills everything in the manifest but the files, which come with the shares. */
static enum shard_status describe(struct ckpt_op *op, const struct record *r, struct err *e)
{
	struct manifest *c = &op->made_of;
	const struct model *m = op->m;
	const Shard__Cred *owner = m->spec->owner;
	time_t now = time(NULL);
	struct core_state core;
	struct tm tm;

	core_state(m->core, &core);
	snprintf(c->name, sizeof(c->name), "%s", m->name);
	snprintf(c->run_id, sizeof(c->run_id), "%s", op->server->conf->run_id);
	snprintf(c->release, sizeof(c->release), "%s", SHARD_RELEASE);
	strftime(c->created, sizeof(c->created), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &tm));
	c->run = m->ckpt->run.is;
	c->step = r->id.step;
	c->applied = r->applied;
	c->skipped_in_row = r->skipped_in_row;
	c->scaler.scale = r->scaler.scale;
	c->scaler.hysteresis = r->scaler.hysteresis;
	c->scaler.last_overflow = r->scaler.last_overflow;
	c->scaler.iter = r->scaler.iter;
	c->tune.paused = core.tune->paused;
	c->tune.has_lr = core.tune->has_lr;
	c->tune.has_clip = core.tune->has_clip;
	c->tune.lr = core.tune->lr;
	c->tune.clip = core.tune->clip;
	save_hyper(m, core.tune, c);
	c->owner_known = owner != NULL && owner->known;
	c->owner_uid = owner != NULL ? owner->uid : 0;
	c->owner_gid = owner != NULL ? owner->gid : 0;
	snprintf(c->owner_node, sizeof(c->owner_node), "%s", owner != NULL ? owner->node : "");
	c->has_mode = true;
	c->mode = m->set.mode;
	c->image = m->image;
	c->grad = m->grad;
	c->kinds[c->kinds_nr++] = SHARD_MASTER;
	for (uint32_t i = 0; i < m->set.optim->states_nr; i++)
		c->kinds[c->kinds_nr++] = m->set.optim->states[i];
	return copy_layout(op, e);
}

static void part_is(struct ckpt_op *op, uint16_t node, struct part_file *file,
		    struct manifest_blob *blobs, uint32_t blobs_nr)
{
	struct manifest *c = &op->made_of;
	struct manifest_blob *all = realloc(c->blobs, (c->blobs_nr + blobs_nr + 1) * sizeof(*all));
	bool other = op->kind != CKPT_SAVE || op->phase != CKPT_WRITING ||
		     c->files_nr >= op->server->nodes_nr;
	struct err e;

	(void)node;
	CHECK(op->phase == CKPT_WRITING || op->failed);
	if (all != NULL)
		c->blobs = all;
	if (all == NULL)
		ckpt_op_fail(op, (err_set(&e, SHARD_SYSTEM, "no memory for a manifest"), &e));
	if (all == NULL || other || file->name[0] == 0) {
		free(blobs);
		return;
	}
	for (uint32_t i = 0; i < blobs_nr; i++) {
		bool newer = true;

		for (uint32_t k = 0; k < c->blobs_nr && newer; k++) {
			/* A rank may have moved between nodes. Its blob with the greatest step
			 * counts. */
			if (c->blobs[k].rank != blobs[i].rank)
				continue;
			newer = false;
			blobs[i].file = c->files_nr;
			if (c->blobs[k].step < blobs[i].step)
				c->blobs[k] = blobs[i];
		}
		blobs[i].file = c->files_nr;
		if (newer)
			c->blobs[c->blobs_nr++] = blobs[i];
	}
	free(blobs);
	c->files[c->files_nr++] = *file;
	op->bytes += file->bytes;
	op->shared_bytes += file->shared_bytes;
	file->sums = NULL; /* Handed over. */
}

/* --- the steps of a save --- */

static struct client_from client_of(const struct ckpt_op *op)
{
	return (struct client_from){
		.path = op->client, .anyones = op->place.anywhere, .uid = op->uid};
}

/* Not while training is held, because it may be long. */
static enum shard_status take_client(struct ckpt_op *op, struct err *e)
{
	const struct client_from from = client_of(op);
	char final[CHECKPOINT_PATH_MAX], path[CHECKPOINT_PATH_MAX];
	enum shard_status st;

	if (op->client[0] == 0)
		return SHARD_OK;
	if ((st = checkpoint_path(final, op->place.at, op->tag, e)) != SHARD_OK)
		return st;
	checkpoint_temporary(path, op->place.at, op->tag);
	return client_copy(&from, path, &op->made_of, &op->checking, e);
}

static void run_finish(struct ckpt_op *op)
{
	struct err e;
	uint32_t removed;

	CHECK(op->kind == CKPT_SAVE);
	if ((op->st = ckpt_place_open(&op->place, false, &op->why)) != SHARD_OK)
		return;
	op->st = take_client(op, &e);
	if (op->st != SHARD_OK && !op->checking.cancel) /* Otherwise the loop has said why. */
		op->why = e;
	if (op->st == SHARD_OK)
		op->st = checkpoint_finish(op->place.at, op->tag, &op->made_of, &op->why);
	if (op->st == SHARD_OK)
		/* Not earlier, because training waited until now. */
		checkpoint_sweep(op->place.at, op->name);
	if (op->st == SHARD_OK && op->keep > 0 &&
	    checkpoint_prune(op->place.at, &op->made_of, op->keep,
			     op->server->conf->prune_copied_only, &removed, &e) != SHARD_OK)
		log_line(op->server->log, LOG_LEVEL_WARN, "event=prune_failed dir=%s why=%s",
			 op->dir, e.text);
	if (op->st == SHARD_OK)
		let_go(op);
	ckpt_place_close(&op->place, op->st != SHARD_OK ? &op->why : NULL);
}

static void finish(struct ckpt_op *op)
{
	ckpt_op_hold(op, false); /* At once: the weights may change again. */
	if (op->failed) {
		end_failed(op);
		return;
	}
	op->phase = CKPT_FINISHING;
	ckpt_op_work(op, run_finish, finished);
}

/* Fails if another step is saved under the tag. The same step again is the same checkpoint. */
static enum shard_status replaces_none(struct ckpt_op *op)
{
	char path[CHECKPOINT_PATH_MAX];
	struct manifest *there;
	struct err e;
	uint64_t step;

	if (checkpoint_path(path, op->place.at, op->tag, &op->why) != SHARD_OK)
		return op->why.status;
	if (access(path, F_OK) != 0 && errno == ENOENT)
		return SHARD_OK;
	if (manifest_read(path, &there, &e) != SHARD_OK)
		return err_set(&op->why, SHARD_EXISTS,
			       "%s: is there already, and is no checkpoint that can be read "
			       "(%.300s): choose "
			       "another tag, or remove it",
			       op->path, e.text);
	step = there->step;
	manifest_free(&there);
	if (step == op->step)
		return SHARD_OK;
	return err_set(&op->why, SHARD_EXISTS,
		       "%s: is there already, of step %lu, not %lu: choose another tag, or --force",
		       op->path, (unsigned long)step, (unsigned long)op->step);
}

/* Checks the checkpoint under the tag, which the new one replaces, and the one that `latest` names,
 * which the new one succeeds. The model's owner has to be allowed to replace both, unless the
 * requester may name any folder. A checkpoint that cannot be read belongs to nobody. */
static enum shard_status replaces_own(struct ckpt_op *op)
{
	char newest[CHECKPOINT_TAG_MAX + 1] = "";
	const char *tags[] = {op->tag, newest};
	enum shard_status st = SHARD_OK;

	if (op->place.anywhere)
		return SHARD_OK;
	(void)checkpoint_latest(op->place.at, newest, NULL);
	for (size_t i = 0; i < NR(tags) && st == SHARD_OK; i++) {
		char path[CHECKPOINT_PATH_MAX];
		struct manifest *there = NULL;

		if (tags[i][0] != 0 &&
		    checkpoint_path(path, op->place.at, tags[i], NULL) == SHARD_OK &&
		    manifest_read(path, &there, NULL) == SHARD_OK)
			st = ckpt_may_replace(there, &op->made_of, path, &op->why);
		manifest_free(&there);
	}
	return st;
}

static void run_begin(struct ckpt_op *op)
{
	const struct client_from from = client_of(op);
	char path[CHECKPOINT_PATH_MAX];

	CHECK(op->kind == CKPT_SAVE);
	if (op->client[0] != 0 && (op->st = client_look(&from, &op->why)) != SHARD_OK)
		return;
	if ((op->st = ckpt_place_open(&op->place, true, &op->why)) != SHARD_OK)
		return;
	op->st = replaces_own(op);
	if (op->st == SHARD_OK && op->fresh)
		op->st = replaces_none(op);
	if (op->st == SHARD_OK)
		op->st = checkpoint_begin(path, op->place.at, op->tag, op->name, &op->folder,
					  &op->why);
	if (op->st != SHARD_OK)
		/* The disk may be full of what is left. */
		checkpoint_sweep(op->place.at, op->name);
	if (op->st == SHARD_OK)
		/* The temporary name, until the shares are written. */
		snprintf(op->path, sizeof(op->path), "%.*s%s",
			 CHECKPOINT_PATH_MAX - CHECKPOINT_TAG_MAX - 17, op->place.dir,
			 path + strlen(op->place.at));
	ckpt_place_close(&op->place, op->st != SHARD_OK ? &op->why : NULL);
}

static void shares_done(struct ckpt_op *op)
{
	(void)checkpoint_path(op->path, op->dir, op->tag, NULL);
	finish(op);
}

static void begun(struct ckpt_op *op)
{
	Shard__SavePart body = SHARD__SAVE_PART__INIT;

	if (op->st != SHARD_OK && !op->failed) {
		op->failed = true;
		op->phase = CKPT_HOLDING; /* There is nothing to remove. */
	}
	if (op->failed || op->m == NULL) {
		end_failed(op);
		return;
	}
	op->phase = CKPT_WRITING;
	body.path = op->path;
	body.step = op->step;
	body.anywhere = op->place.anywhere;
	ckpt_op_ask(op, OP_SAVE_PART, &body.base, shares_done);
}

static void save_held(struct ckpt_op *op, const struct record *r)
{
	const struct model *m = op->m;
	struct err e;

	op->step = r->id.step;
	if (op->tag[0] == 0)
		checkpoint_tag(op->tag, op->step);
	if (describe(op, r, &e) != SHARD_OK ||
	    checkpoint_path(op->path, op->dir, op->tag, &e) != SHARD_OK) {
		ckpt_op_fail(op, &e);
		end_failed(op);
		return;
	}
	op->phase = CKPT_BEGINNING;
	log_line(op->server->log, LOG_LEVEL_INFO, "event=saving model=%s path=%s step=%lu", m->name,
		 op->path, (unsigned long)op->step);
	ckpt_op_work(op, run_begin, begun);
}

static void save_end(struct ckpt_op *op)
{
	if (op->phase == CKPT_NOTING)
		noted(op);
	else
		save_lost(op);
}

static const struct ckpt_doing saves = {
	.end = save_end, .beat = save_beat, .held = save_held, .part_is = part_is};

static enum shard_status client_ok(const char *client, struct err *e)
{
	if (client == NULL || (client[0] == '/' && strlen(client) < CHECKPOINT_PATH_MAX) ||
	    client[0] == 0)
		return SHARD_OK;
	return err_set(e, SHARD_BAD_ARG,
		       "client folder %.200s: choose an absolute path of at most %d bytes", client,
		       CHECKPOINT_PATH_MAX - 1);
}

enum shard_status ckpt_save_begin(struct model *m, const struct caller *a,
				  const struct ckpt_wish *wish, struct err *e)
{
	const char *tag = wish->tag;
	struct ckpt_place place;
	char own[CHECKPOINT_PATH_MAX];
	struct ckpt_op *op;
	enum shard_status st = ckpt_dir(own, wish->dir, m->set.checkpoint_dir, m->name, e);

	CHECK(server_leads(m->server));
	if (st != SHARD_OK || (st = client_ok(wish->client, e)) != SHARD_OK ||
	    (st = ckpt_place_set(&place, m->server, own, wish->anywhere, 0, e)) != SHARD_OK)
		return st;
	if (tag != NULL && tag[0] != 0 && !checkpoint_tag_ok(tag))
		return err_set(e, SHARD_BAD_ARG,
			       "tag \"%.80s\": 1 to %d of [A-Za-z0-9._-], not starting with a dot",
			       tag, CHECKPOINT_TAG_MAX);
	if ((st = ckpt_op_may(m, "save", e)) != SHARD_OK)
		return st;
	if ((st = ckpt_op_new(&op, m->server, m, CKPT_SAVE, &saves, e)) != SHARD_OK)
		return st;
	op->asked = a != NULL;
	if (a != NULL)
		op->requester = *a;
	op->keep = wish->keep;
	op->fresh = wish->fresh;
	snprintf(op->client, sizeof(op->client), "%s", wish->client != NULL ? wish->client : "");
	op->uid = wish->client_uid;
	op->place = place;
	snprintf(op->dir, sizeof(op->dir), "%s", own);
	snprintf(op->tag, sizeof(op->tag), "%s", tag != NULL ? tag : "");
	op->phase = CKPT_HOLDING;
	ckpt_op_hold(op, true);
	return SHARD_OK;
}

/* --- requests --- */

static enum shard_status save_here(struct server *s, const struct caller *a,
				   const Shard__Save *body, struct err *e)
{
	struct model *m = model_by_name(s, body->name);
	const struct ckpt_wish wish = {.dir = body->dir,
				       .tag = body->tag,
				       .client = body->client,
				       .client_uid = body->cred != NULL ? body->cred->uid : 0,
				       .fresh = body->fresh,
				       .anywhere = ckpt_anywhere(s, body->cred)};

	if (unmade_check(s, body->name, e) != SHARD_OK)
		return e->status;
	if (m == NULL || m->defining)
		return err_set(
			e, SHARD_NOT_FOUND,
			"no model \"%s\" here: `shardctl model list` shows those that there are",
			body->name);
	if (body->client[0] != 0 && !wish.anywhere &&
	    (body->cred == NULL || !body->cred->known || body->cred->uid == 0))
		return err_set(
			e, SHARD_DENIED,
			"client folder %.300s: the daemon has to know whose the files are: "
			"ask over a unix socket, and as root on the node that coordinates, or set "
			"[cluster] trust_remote_root",
			body->client);
	return ckpt_save_begin(m, a, &wish, e);
}

enum shard_status ckpt_save_request(struct session *t, const struct wire_head *h,
				    const ProtobufCMessage *msg, struct err *e)
{
	struct server *s = t->server;
	struct caller a = caller_session(t, h->attempt);
	Shard__Save body = *(const Shard__Save *)msg;
	Shard__Cred cred = SHARD__CRED__INIT;
	uint32_t groups[SESSION_GROUPS_MAX];

	access_cred(t, &cred, groups);
	body.cred = &cred;
	if (server_leads(s))
		return save_here(s, &a, &body, e);
	if (lead_known(s, e) != SHARD_OK)
		return e->status;
	if (body.client[0] != 0 && !peer_knows(s->peer[server_coordinator(s)], WIRE_CLIENT))
		return err_set(
			e, SHARD_UNSUPPORTED,
			"client folder %.300s: node %s coordinates, and its release does not "
			"know of such folders: upgrade it",
			body.client, members_name(s, server_coordinator(s)));
	return call_pass(t, server_coordinator(s), h, &body.base, NULL, e);
}

enum shard_status ckpt_node_save(struct peer *p, const struct wire_head *h,
				 const ProtobufCMessage *msg, struct err *e)
{
	struct caller a = caller_node(p, h->attempt);

	if (!server_leads(p->server))
		return lead_refuse(p->server, e);
	return save_here(p->server, &a, (const Shard__Save *)msg, e);
}
