/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses a checkpoint when nobody names one, and decides which checkpoints are a model's own. A
 * folder may hold checkpoints of several runs with one name, and of other clusters. After LOST only
 * those of the model's own run count, by the run that their manifests name. restore_at_start goes
 * on with the run that `latest` names. auto.c calls in a job, once per try. Happy path: the folders
 * are listed, and the manifest of the newest complete checkpoint of the run is read. A newer
 * checkpoint that is bad is kept for the log and the status. Fails with the first thing that was
 * wrong. ckpt_op.none says that there is no checkpoint at all, which is the only case in which a
 * model may begin anew. */
#include "ckpt/auto.h"
#include "ckpt/op.h"
#include "ckpt/spec_of.h"

#include "base/check.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

/* --- runs --- */

bool ckpt_own(const struct ckpt_run *run, const struct manifest_run *is, uint64_t step)
{
	if (is->line == 0)
		return false;
	return is->line == run->is.line || (is->line == run->from_line && step <= run->from_step);
}

static void fresh(void *to, size_t bytes)
{
	/* This does not fail, because it asks for a few bytes long after boot. If it failed, the
	 * zeros would name no run and no checkpoint would be the model's own. */
	if (getrandom(to, bytes, 0) != (ssize_t)bytes)
		memset(to, 0, bytes);
}

void ckpt_anew(struct model *m)
{
	m->ckpt->run = (struct ckpt_run){.from_line = 0};
	fresh(&m->ckpt->run.is, sizeof(m->ckpt->run.is));
}

/* After LOST a run goes on as it is, unless one of its checkpoints was passed over. Then what the
 * run saved after the older one is not its own any more, and a new line begins. */
void ckpt_run_from(struct ckpt_run *run, const struct ckpt_op *op)
{
	const struct manifest *c = op->manifest;
	const uint64_t *id = c->run.id;

	CHECK(op->kind != CKPT_SAVE);
	if (op->kind == CKPT_RETURN && op->newer[0] == 0)
		return;
	run->from_line = c->run.line;
	run->from_step = c->step;
	if (id[0] != 0 || id[1] != 0)
		memcpy(run->is.id, id, sizeof(run->is.id));
	else
		fresh(run->is.id, sizeof(run->is.id));
	fresh(&run->is.line, sizeof(run->is.line));
}

void ckpt_run_pack(const struct model *m, Shard__Run *out)
{
	const struct ckpt_run *run = &m->ckpt->run;

	shard__run__init(out);
	out->id_high = run->is.id[0];
	out->id_low = run->is.id[1];
	out->line = run->is.line;
	out->from_line = run->from_line;
	out->from_step = run->from_step;
}

/* --- looking --- */

struct pick {
	struct ckpt_op *op;
	struct err why;                     /* The first thing that was wrong; empty: nothing. */
	char other[CHECKPOINT_TAG_MAX + 1]; /* A complete checkpoint of another run; empty: none. */
	char tag[CHECKPOINT_TAG_MAX + 1];   /* The tag that was found. */
	uint32_t dir, tags; /* tags: how many folders look like checkpoints of any run. */
	uint64_t step;
};

static void wrong(struct pick *k, const struct err *e)
{
	if (k->why.text[0] == 0)
		k->why = *e;
}

/* Keeps the newest checkpoint that is bad. Only the first call counts. */
static void newer_is_bad(struct pick *k, const struct ckpt_place *p, const char *tag,
			 const char *why)
{
	struct ckpt_op *op = k->op;

	if (op->newer[0] != 0)
		return;
	snprintf(op->newer, sizeof(op->newer), "%.*s/%s",
		 CHECKPOINT_PATH_MAX - CHECKPOINT_TAG_MAX - 2, p->dir, tag);
	if (why[0] == '/')
		err_set(&op->newer_why, SHARD_PROTOCOL, "%s", why);
	else
		err_set(&op->newer_why, SHARD_PROTOCOL, "%s: %s", op->newer, why);
	ckpt_place_name(p, &op->newer_why);
}

/* A new model goes on with the run that `latest` names. If `latest` cannot be read, no other run is
 * taken in its place. */
static enum shard_status whose_run(struct pick *k, const struct ckpt_place *p, struct err *e)
{
	char tag[CHECKPOINT_TAG_MAX + 1], path[sizeof(p->at) + 8];
	struct ckpt_op *op = k->op;
	struct manifest *c = NULL;
	enum shard_status st = checkpoint_latest(p->at, tag, e);

	snprintf(path, sizeof(path), "%s/latest", p->at);
	if (st != SHARD_OK && faccessat(AT_FDCWD, path, F_OK, AT_SYMLINK_NOFOLLOW) != 0 &&
	    errno == ENOENT)
		return SHARD_OK; /* There is no `latest`: the newest complete checkpoint decides. */
	if (st == SHARD_OK)
		st = checkpoint_open(p->at, tag, op->name, &c, e);
	if (st != SHARD_OK)
		return st;
	op->whose = (struct ckpt_run){.is = c->run};
	op->below = c->step + 1;
	op->looked = true;
	manifest_free(&c);
	return SHARD_OK;
}

static bool chosen(struct pick *k, const struct ckpt_place *p, const struct checkpoint_found *f)
{
	struct ckpt_op *op = k->op;

	if (op->looked && f->step >= op->below)
		return false;
	if (!f->complete) {
		bool other = f->run.line != 0 && !ckpt_own(&op->whose, &f->run, f->step);

		if (op->whose.is.line == 0 || (op->kind == CKPT_RETURN && !other))
			newer_is_bad(k, p, f->tag, f->why);
		return false;
	}
	if (op->kind == CKPT_START && op->whose.is.line == 0)
		op->whose = (struct ckpt_run){.is = f->run};
	if (ckpt_own(&op->whose, &f->run, f->step))
		return true;
	if (k->other[0] == 0)
		strcpy(k->other, f->tag);
	return false;
}

/* After LOST: the checkpoint that was saved last may be gone with its folder. */
static void latest_is_gone(struct pick *k, const struct ckpt_place *p)
{
	char tag[CHECKPOINT_TAG_MAX + 1], path[CHECKPOINT_PATH_MAX];

	if (checkpoint_latest(p->at, tag, NULL) == SHARD_OK &&
	    checkpoint_path(path, p->at, tag, NULL) == SHARD_OK && access(path, F_OK) != 0 &&
	    errno == ENOENT)
		newer_is_bad(k, p, tag, "`latest` names it, and it is not there");
}

static void look_in(struct pick *k, uint32_t dir)
{
	struct ckpt_op *op = k->op;
	struct ckpt_place *p = &op->dirs[dir];
	struct checkpoint_found *found = NULL;
	uint32_t nr = 0;
	struct err e;
	enum shard_status st = ckpt_place_open(p, false, &e);

	CHECK(dir < k->op->dirs_nr);
	if (st == SHARD_NOT_FOUND)
		return;
	if (st != SHARD_OK) {
		wrong(k, &e);
		return;
	}
	if (op->kind == CKPT_START && op->whose.is.line == 0)
		st = whose_run(k, p, &e);
	else if (op->kind == CKPT_RETURN && !op->looked)
		latest_is_gone(k, p);
	if (st == SHARD_OK)
		st = checkpoint_list(p->at, op->name, &found, &nr, &e);
	k->tags += nr;
	for (uint32_t i = 0; st == SHARD_OK && i < nr; i++) {
		if ((k->tag[0] != 0 && found[i].step <= k->step) || !chosen(k, p, &found[i]))
			continue;
		strcpy(k->tag, found[i].tag);
		k->step = found[i].step;
		k->dir = dir;
		break;
	}
	free(found);
	ckpt_place_close(p, st != SHARD_OK ? &e : NULL);
	if (st != SHARD_OK)
		wrong(k, &e);
}

static enum shard_status nothing(struct pick *k)
{
	struct ckpt_op *op = k->op;
	const char *dir = op->dirs_nr > 0 ? op->dirs[0].dir : "any folder";

	op->none = k->why.text[0] == 0 && k->tags == 0 && op->newer[0] == 0;
	if (op->newer[0] != 0)
		return err_set(&op->why, SHARD_PROTOCOL, "%s", op->newer_why.text);
	if (k->why.text[0] != 0)
		return err_wrap(&op->why, &k->why, "%s", k->why.text);
	if (k->other[0] != 0)
		return err_set(&op->why, SHARD_NOT_FOUND,
			       "no checkpoint of this run of \"%s\" in %.200s: %s there is of "
			       "another one",
			       op->name, dir, k->other);
	return err_set(&op->why, SHARD_NOT_FOUND, "no complete checkpoint of \"%s\" in %.300s",
		       op->name, dir);
}

void ckpt_pick(struct ckpt_op *op)
{
	struct pick k = {.op = op};

	CHECK(op->dirs_nr <= CKPT_DIRS);
	op->tag[0] = 0;
	manifest_free(&op->manifest);
	for (uint32_t i = 0; i < op->dirs_nr; i++)
		look_in(&k, i);
	if (k.tag[0] == 0 || (op->kind == CKPT_START && k.why.text[0] != 0)) {
		op->st = nothing(&k);
		return;
	}
	op->place = op->dirs[k.dir];
	snprintf(op->dir, sizeof(op->dir), "%s", op->place.dir);
	snprintf(op->tag, sizeof(op->tag), "%s", k.tag);
	op->below = k.step;
	op->looked = true;
	if ((op->st = ckpt_place_open(&op->place, false, &op->why)) != SHARD_OK)
		return;
	ckpt_read_manifest(op, op->name);
	ckpt_place_close(&op->place, op->st != SHARD_OK ? &op->why : NULL);
}
