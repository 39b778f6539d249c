/* SPDX-License-Identifier: Apache-2.0 */
/* From a manifest to a model: its layout and settings become a definition as a trainer's is, under the configuration's defaults, except
 * that a pinned key stays as it is pinned and is not refused; and its blobs become bytes. restore.c calls. Fails as a definition
 * does, or with the file and rank of a blob that is not what was written. */
#include "ckpt/spec_of.h"

#include "base/check.h"
#include "define.h"
#include "spec.h"
#include "wire/xxh.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Pointers into c and into the two arrays. */
static void fill(Shard__Spec *spec, const struct manifest *c, Shard__Tensor *t, Shard__Tensor **tp, Shard__Group *g,
		 Shard__Group **gp)
{
	for (uint32_t i = 0; i < c->tensors_nr; i++) {
		shard__tensor__init(&t[i]);
		t[i].name = (char *)(uintptr_t)c->tensors[i].name;
		t[i].shape = c->tensors[i].shape;
		t[i].n_shape = c->tensors[i].ndim;
		t[i].group = c->tensors[i].group;
		t[i].flags = c->tensors[i].flags;
		tp[i] = &t[i];
	}
	for (uint32_t i = 0; i < c->groups_nr; i++) {
		shard__group__init(&g[i]);
		g[i].name = (char *)(uintptr_t)c->groups[i].name;
		g[i].settings = (char *)(uintptr_t)(c->settings[0] == 0 ? c->groups[i].settings : ""); /* settings have them all */
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

enum shard_status ckpt_spec_define(struct ckpt_op *op, struct err *e)
{
	const struct manifest *c = op->manifest;
	Shard__Tensor *t = calloc(c->tensors_nr + 1, sizeof(*t)), **tp = calloc(c->tensors_nr + 1, sizeof(*tp));
	Shard__Group *g = calloc(c->groups_nr + 1, sizeof(*g)), **gp = calloc(c->groups_nr + 1, sizeof(*gp));
	Shard__Define d = SHARD__DEFINE__INIT;
	Shard__Spec spec = SHARD__SPEC__INIT;
	struct model_settings set;
	enum shard_status st;

	if (t == NULL || tp == NULL || g == NULL || gp == NULL) {
		st = err_set(e, SHARD_SYSTEM, "no memory for a definition");
	} else {
		fill(&spec, c, t, tp, g, gp);
		d.spec = &spec;
		d.cred = op->request->cred;
		st = spec_settings_kept(&set, op->server, &spec, "the checkpoint", e);
		if (st == SHARD_OK)
			st = define_restored(op->server, op, &d, &set, e);
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

enum shard_status ckpt_restore_compare(const struct model *m, const struct manifest *c, struct err *e)
{
	struct layout *there;
	struct shard_tensor *t = calloc(c->tensors_nr + 1, sizeof(*t));
	bool import = c->kinds_nr == 1; /* it knows names and shapes only */
	enum shard_status st;

	if (t == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory to compare a layout");
	memcpy(t, c->tensors, c->tensors_nr * sizeof(*t));
	for (uint32_t i = 0; import && i < c->tensors_nr && i < m->layout->tensors_nr; i++) {
		t[i].group = m->layout->tensor[i].group;
		t[i].flags = m->layout->tensor[i].flags;
	}
	st = layout_init(&there, t, c->tensors_nr, import ? m->set.groups_nr : c->groups_nr, m->layout->chunk_elems, e);
	free(t);
	if (st != SHARD_OK)
		return st;
	st = layout_compare(m->layout, there, "in the checkpoint", e);
	layout_free(&there);
	if (st == SHARD_OK && !import && strcmp(c->optimizer, m->set.optim->name) != 0)
		st = err_set(e, SHARD_MISMATCH, "optimizer = %s here, %s in the checkpoint", m->set.optim->name, c->optimizer);
	return st;
}

enum shard_status ckpt_counters_check(const struct manifest *c, const char *path, struct err *e)
{
	const char *what = NULL;

	if (c->kinds_nr > 1 && !(c->scaler.scale > 0)) /* else it was imported, and begins with its own */
		what = "a loss scale that is not above 0";
	else if ((c->tune.has_lr && !(c->tune.lr >= 0)) || (c->tune.has_clip && !(c->tune.clip >= 0)))
		what = "lr or clip below 0";
	else if (c->step > INT64_MAX / 2 || c->applied > c->step || c->skipped_in_row > c->step)
		what = "steps that cannot be";
	return what == NULL ? SHARD_OK : err_set(e, SHARD_PROTOCOL, "%s: has %s: no daemon wrote that", path, what);
}

static enum shard_status read_blob(const char *path, const struct manifest *c, const struct manifest_blob *b, struct ckpt_blob *out,
				   struct err *e)
{
	char name[CHECKPOINT_PATH_MAX + 96];
	ssize_t n;
	int fd;

	*out = (struct ckpt_blob){.rank = b->rank, .bytes = b->bytes, .step = b->step, .data = malloc((size_t)b->bytes + 1)};
	snprintf(name, sizeof(name), "%s/%s", path, c->files[b->file].name);
	if (out->data == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for %u bytes of a blob", b->bytes);
	fd = open(name, O_RDONLY | O_CLOEXEC);
	n = fd >= 0 ? pread(fd, out->data, b->bytes, (off_t)b->offset) : -1;
	if (n < 0)
		err_sys(e, errno, "%s: %s", name, strerror(errno));
	if (fd >= 0)
		close(fd);
	if (n < 0)
		return SHARD_SYSTEM;
	if (n != (ssize_t)b->bytes || xxh_sum(out->data, b->bytes, 0) != b->sum)
		return err_set(e, SHARD_PROTOCOL, "%s: the blob of rank %u, %u bytes at %lu, is damaged", name, b->rank, b->bytes,
			       (unsigned long)b->offset);
	return SHARD_OK;
}

enum shard_status ckpt_read_blobs(const char *path, const struct manifest *c, struct ckpt_blob **blobs, uint32_t *blobs_nr,
				  struct err *e)
{
	enum shard_status st = SHARD_OK;

	for (uint32_t i = 0; i < *blobs_nr; i++)
		free((*blobs)[i].data); /* of one that was tried before */
	free(*blobs);
	*blobs_nr = 0;
	*blobs = calloc(c->blobs_nr + 1, sizeof(**blobs));
	if (*blobs == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for blobs");
	for (uint32_t i = 0; i < c->blobs_nr && st == SHARD_OK; i++) {
		if (c->blobs[i].file >= c->files_nr || c->blobs[i].bytes > PART_BLOB_BYTES)
			return err_set(e, SHARD_PROTOCOL, "%s: a blob of rank %u that no file can have", path, c->blobs[i].rank);
		st = read_blob(path, c, &c->blobs[i], &(*blobs)[i], e);
		*blobs_nr = i + 1;
	}
	return st;
}
