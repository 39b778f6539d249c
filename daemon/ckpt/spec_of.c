/* SPDX-License-Identifier: Apache-2.0 */
/* Turns a manifest into a model: its layout and settings become a definition like a trainer's, on
 * top of the configuration's defaults. A key that the configuration pins keeps its value and is not
 * refused. It also decides who may read, replace or restore a checkpoint, compares a manifest with
 * a model, and reads blobs. restore.c, auto.c, save.c and look.c call. Fails as a definition does,
 * or with the file and rank of a blob whose bytes are not what was written. */
#include "ckpt/spec_of.h"

#include "control/access.h"
#include "base/check.h"
#include "control/define.h"
#include "model/spec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Fills spec with pointers into c and into the four arrays. */
static void fill(Shard__Spec *spec, const struct manifest *c, Shard__Tensor *t, Shard__Tensor **tp,
		 Shard__Group *g, Shard__Group **gp)
{
	for (uint32_t i = 0; i < c->tensors_nr; i++) {
		shard__tensor__init(&t[i]);
		t[i].name = (char *)(uintptr_t)c->tensors[i].name;
		t[i].shape = c->tensors[i].shape;
		t[i].n_shape = c->tensors[i].ndim;
		t[i].group = c->tensors[i].group;
		t[i].flags = layout_flags(&c->tensors[i], c->image);
		tp[i] = &t[i];
	}
	for (uint32_t i = 0; i < c->groups_nr; i++) {
		shard__group__init(&g[i]);
		g[i].name = (char *)(uintptr_t)c->groups[i].name;
		/* If there are settings, they include those of all groups. */
		g[i].settings =
			(char *)(uintptr_t)(c->settings[0] == 0 ? c->groups[i].settings : "");
		gp[i] = &g[i];
	}
	spec->name = (char *)(uintptr_t)c->name;
	spec->tensors = tp;
	spec->n_tensors = c->tensors_nr;
	spec->groups = gp;
	spec->n_groups = c->groups_nr;
	spec->image = c->image;
	spec->grad = c->grad;
	spec->settings = c->settings;
}

static void manifest_owner(const struct manifest *c, Shard__Cred *owner)
{
	shard__cred__init(owner);
	owner->known = c->owner_known;
	owner->uid = c->owner_uid;
	owner->gid = c->owner_gid;
	owner->node = (char *)(uintptr_t)c->owner_node;
}

enum shard_status ckpt_may_read(const struct manifest *c, const Shard__Cred *who, const char *path,
				struct err *e)
{
	char asks[ACCESS_TEXT_BYTES], owns[ACCESS_TEXT_BYTES];
	Shard__Cred owner;

	manifest_owner(c, &owner);
	if (!c->has_mode || access_allowed(c->mode, &owner, who, false))
		return SHARD_OK;
	return err_set(e, SHARD_DENIED,
		       "%.400s: holds weights that belong to %s with mode %04o, and %s asks for "
		       "them: ask the owner, or root of the "
		       "node that coordinates",
		       path,
		       c->owner_known ? access_text(owns, &owner)
				      : "nobody (the model was defined over TCP)",
		       c->mode, access_text(asks, who));
}

static const char *whose(char out[ACCESS_TEXT_BYTES], const struct manifest *c,
			 const Shard__Cred *owner)
{
	return c->owner_known ? access_text(out, owner) : "nobody (the model was defined over TCP)";
}

enum shard_status ckpt_may_replace(const struct manifest *there, const struct manifest *by,
				   const char *path, struct err *e)
{
	char owns[ACCESS_TEXT_BYTES], asks[ACCESS_TEXT_BYTES];
	Shard__Cred owner, who;

	manifest_owner(there, &owner);
	manifest_owner(by, &who);
	if (!there->has_mode || access_allowed(there->mode, &owner, &who, true))
		return SHARD_OK;
	return err_set(e, SHARD_DENIED,
		       "%.400s: belongs to %s with mode %04o, and \"%s\" belongs to %s: choose "
		       "another folder",
		       path, whose(owns, there, &owner), there->mode, by->name,
		       whose(asks, by, &who));
}

enum shard_status ckpt_may_fill(const struct model *m, const struct manifest *c, const char *path,
				struct err *e)
{
	char owns[ACCESS_TEXT_BYTES];
	Shard__Cred owner;

	manifest_owner(c, &owner);
	if ((!c->has_mode && !c->foreign) ||
	    access_allowed(m->set.mode, m->spec->owner, &owner, true))
		return SHARD_OK;
	return err_set(e, SHARD_DENIED,
		       "%.300s: belongs to %s, who may not change \"%s\" (mode %04o): `shardctl "
		       "restore` takes it all the same",
		       path, whose(owns, c, &owner), m->name, m->set.mode);
}

enum shard_status ckpt_spec_define(struct ckpt_op *op, define_made_fn *made, struct err *e)
{
	const struct manifest *c = op->manifest;
	Shard__Tensor *t = calloc(c->tensors_nr + 1, sizeof(*t)),
		      **tp = calloc(c->tensors_nr + 1, sizeof(*tp));
	Shard__Group *g = calloc(c->groups_nr + 1, sizeof(*g)),
		     **gp = calloc(c->groups_nr + 1, sizeof(*gp));
	Shard__Define d = SHARD__DEFINE__INIT;
	Shard__Spec spec = SHARD__SPEC__INIT;
	Shard__Cred owner;
	struct model_settings set;
	enum shard_status st;

	CHECK(op->m == NULL && op->request != NULL);
	if (t == NULL || tp == NULL || g == NULL || gp == NULL) {
		st = err_set(e, SHARD_SYSTEM, "no memory for a definition");
	} else {
		fill(&spec, c, t, tp, g, gp);
		manifest_owner(c, &owner);
		d.spec = &spec;
		/* The model belongs to the owner in the manifest. An import has none, so it belongs
		 * to the requester. */
		d.cred =
			c->owner_known && (c->has_mode || !c->foreign) ? &owner : op->request->cred;
		st = spec_settings_kept(&set, op->server, &spec, "the checkpoint", e);
		if (st == SHARD_OK)
			st = define_restored(op->server, made, op, &d, &set, e);
	}
	free(t);
	free(tp);
	free(g);
	free(gp);
	return st;
}

void ckpt_spec_dir(struct server *s, const char *name, char *dir, size_t bytes)
{
	Shard__Spec spec = SHARD__SPEC__INIT;
	struct model_settings set;
	struct err e;

	spec.name = (char *)(uintptr_t)name;
	spec.image = spec.grad = SHARD_F32;
	dir[0] = 0;
	if (spec_settings(&set, s, &spec, "the configuration", &e) == SHARD_OK)
		snprintf(dir, bytes, "%s", set.checkpoint_dir);
}

enum shard_status ckpt_restore_compare(const struct model *m, const struct manifest *c,
				       struct err *e)
{
	struct layout *there;
	struct shard_tensor *t = calloc(c->tensors_nr + 1, sizeof(*t));
	bool import = c->kinds_nr == 1; /* An import knows only names and shapes. */
	enum shard_status st;

	if (t == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory to compare a layout");
	memcpy(t, c->tensors, c->tensors_nr * sizeof(*t));
	for (uint32_t i = 0; i < c->tensors_nr && i < m->layout->tensors_nr; i++) {
		t[i].image = m->layout->tensor[i].image; /* Every image is made of the masters. */
		if (!import)
			continue;
		t[i].group = m->layout->tensor[i].group;
		t[i].flags = m->layout->tensor[i].flags;
	}
	st = layout_init(&there, t, c->tensors_nr, import ? m->set.groups_nr : c->groups_nr,
			 m->image, m->layout->chunk_elems, e);
	free(t);
	if (st != SHARD_OK)
		return st;
	st = layout_compare(m->layout, there, "in the checkpoint", e);
	layout_free(&there);
	if (st == SHARD_OK && !import && strcmp(c->optimizer, m->set.optim->name) != 0)
		st = err_set(e, SHARD_MISMATCH, "optimizer = %s here, %s in the checkpoint",
			     m->set.optim->name, c->optimizer);
	return st;
}

static bool hyper_ok(const struct manifest *c)
{
	const struct optim_row *optim = optim_find(c->optimizer);
	uint32_t groups_nr = c->groups_nr > 0 ? c->groups_nr : 1;

	for (uint32_t k = 0; k < c->tune.hyper_nr; k++) {
		const struct manifest_hyper *h = &c->tune.hyper[k];
		uint32_t i = optim != NULL ? optim_hyper_named(optim, h->key) : HYPER_NR;

		if (i == HYPER_NR || !(TUNE_HYPERS >> i & 1) || h->group >= groups_nr ||
		    !optim_hyper_in_range(optim, i, h->value))
			return false;
	}
	return true;
}

enum shard_status ckpt_counters_check(const struct manifest *c, const char *path, struct err *e)
{
	const char *what = NULL;

	/* An import has no loss scale and begins with its own. */
	if (c->kinds_nr > 1 && !(c->scaler.scale > 0))
		what = "a loss scale that is not above 0";
	else if ((c->tune.has_lr && !(c->tune.lr >= 0)) ||
		 (c->tune.has_clip && !(c->tune.clip >= 0)))
		what = "lr or clip below 0";
	else if (!hyper_ok(c))
		what = "hyper-parameters that nobody could set";
	else if (c->step > INT64_MAX / 2 || c->applied > c->step || c->skipped_in_row > c->step)
		what = "steps that cannot be";
	return what == NULL
		       ? SHARD_OK
		       : err_set(e, SHARD_PROTOCOL, "%s: has %s: no daemon wrote that", path, what);
}

static enum shard_status read_blob(const char *path, const struct manifest *c, uint32_t i,
				   struct ckpt_blob *out, struct err *e)
{
	const struct manifest_blob *b = &c->blobs[i];

	CHECK(i < c->blobs_nr);
	*out = (struct ckpt_blob){.rank = b->rank,
				  .bytes = b->bytes,
				  .step = b->step,
				  .data = malloc((size_t)b->bytes + 1)};
	if (out->data == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for %u bytes of a blob", b->bytes);
	return manifest_blob(path, c, i, out->data, e);
}

enum shard_status ckpt_read_blobs(const char *path, const struct manifest *c,
				  struct ckpt_blob **blobs, uint32_t *blobs_nr, struct err *e)
{
	enum shard_status st = SHARD_OK;

	for (uint32_t i = 0; i < *blobs_nr; i++)
		free((*blobs)[i].data); /* Of a checkpoint that was tried before. */
	free(*blobs);
	*blobs_nr = 0;
	*blobs = calloc(c->blobs_nr + 1, sizeof(**blobs));
	if (*blobs == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for blobs");
	for (uint32_t i = 0; i < c->blobs_nr && st == SHARD_OK; i++) {
		if (c->blobs[i].file >= c->files_nr || c->blobs[i].bytes > PART_BLOB_BYTES)
			return err_set(e, SHARD_PROTOCOL,
				       "%s: a blob of rank %u that no file can have", path,
				       c->blobs[i].rank);
		st = read_blob(path, c, i, &(*blobs)[i], e);
		*blobs_nr = i + 1;
	}
	return st;
}
