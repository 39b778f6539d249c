/* SPDX-License-Identifier: Apache-2.0 */
/* Writes manifest.json: JSON with its sum as the last member. Checkpoints call it last. Happy path:
 * the text is made, parsed as a reader would, written and synced. It fails with what the file
 * system says, without memory, or where something cannot be written as JSON (a text that is not
 * UTF-8). */
#include "ckpt/manifest.h"
#include "ckpt/folder_impl.h"
#include "ckpt/manifest_impl.h"

#include "base/check.h"
#include "wire/dtype.h"
#include "wire/layout.h"
#include "wire/xxh.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static json_t *hex(uint64_t sum)
{
	return json_sprintf("%016" PRIx64, sum);
}

static json_t *scaler_of(const struct manifest *m)
{
	return json_pack("{s:f, s:i, s:I, s:I}", "scale", m->scaler.scale, "hysteresis",
			 (int)m->scaler.hysteresis, "last_overflow",
			 (json_int_t)m->scaler.last_overflow, "iter", (json_int_t)m->scaler.iter);
}

static json_t *tune_of(const struct manifest *m)
{
	json_t *tune = json_pack("{s:b}", "paused", m->tune.paused);

	if (m->tune.has_lr)
		json_object_set_new(tune, "lr", json_real(m->tune.lr));
	if (m->tune.has_clip)
		json_object_set_new(tune, "clip", json_real(m->tune.clip));
	if (m->tune.hyper_nr > 0)
		json_object_set_new(tune, "hyper", json_array());
	for (uint32_t i = 0; i < m->tune.hyper_nr; i++)
		json_array_append_new(
			json_object_get(tune, "hyper"),
			json_pack("{s:I, s:s, s:f}", "group", (json_int_t)m->tune.hyper[i].group,
				  "key", m->tune.hyper[i].key, "value", m->tune.hyper[i].value));
	return tune;
}

static json_t *kinds_of(const struct manifest *m)
{
	json_t *kinds = json_array();

	for (uint32_t i = 0; i < m->kinds_nr; i++)
		json_array_append_new(kinds, json_string(part_kind_name(m->kinds[i])));
	return kinds;
}

static json_t *groups_of(const struct manifest *m)
{
	json_t *groups = json_array();

	for (uint32_t i = 0; i < m->groups_nr; i++)
		json_array_append_new(
			groups, json_pack("{s:s, s:s}", "name", m->groups[i].name, "settings",
					  m->groups[i].settings ? m->groups[i].settings : ""));
	return groups;
}

static json_t *tensors_of(const struct manifest *m)
{
	json_t *tensors = json_array();

	for (uint32_t i = 0; i < m->tensors_nr; i++) {
		const struct shard_tensor *t = &m->tensors[i];
		json_t *shape = json_array();

		for (uint32_t d = 0; d < t->ndim; d++)
			json_array_append_new(shape, json_integer((json_int_t)t->shape[d]));
		json_array_append_new(tensors,
				      json_pack("{s:s, s:o, s:I, s:I}", "name", t->name, "shape",
						shape, "group", (json_int_t)t->group, "flags",
						(json_int_t)layout_flags(t, m->image)));
	}
	return tensors;
}

static json_t *files_of(const struct part_file *list, uint32_t nr)
{
	json_t *files = json_array();

	for (uint32_t i = 0; i < nr; i++) {
		const struct part_file *p = &list[i];
		char *sums = calloc(p->sums_nr * 16ull + 1, 1);

		for (uint32_t s = 0; sums && s < p->sums_nr; s++)
			snprintf(sums + 16ull * s, 17, "%016" PRIx64, p->sums[s]);
		json_array_append_new(files,
				      json_pack("{s:s, s:I, s:I, s:I, s:s}", "name", p->name,
						"bytes", (json_int_t)p->bytes, "header_bytes",
						(json_int_t)p->header_bytes, "piece_bytes",
						(json_int_t)p->piece_bytes, "sums", sums));
		free(sums);
	}
	return files;
}

static json_t *blobs_of(const struct manifest *m)
{
	json_t *blobs = json_array();

	for (uint32_t i = 0; i < m->blobs_nr; i++) {
		const struct manifest_blob *b = &m->blobs[i];

		json_array_append_new(
			blobs, json_pack("{s:I, s:I, s:I, s:I, s:I, s:o}", "rank",
					 (json_int_t)b->rank, "bytes", (json_int_t)b->bytes, "file",
					 (json_int_t)b->file, "step", (json_int_t)b->step, "offset",
					 (json_int_t)b->offset, "sum", hex(b->sum)));
	}
	return blobs;
}

static json_t *json_of(const struct manifest *m)
{
	json_t *root = json_pack(
		"{s:s, s:i, s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:o, s:o}", "format",
		MANIFEST_FORMAT, "version", MANIFEST_VERSION, "release", m->release, "created",
		m->created, "name", m->name, "run_id", m->run_id, "step", (json_int_t)m->step,
		"applied", (json_int_t)m->applied, "skipped_in_row", (json_int_t)m->skipped_in_row,
		"scaler", scaler_of(m), "tune", tune_of(m));
	json_t *rest = json_pack("{s:s, s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:o}", "settings",
				 m->settings, "optimizer", m->optimizer, "image",
				 dtype_name(m->image), "grad", dtype_name(m->grad), "kinds",
				 kinds_of(m), "groups", groups_of(m), "tensors", tensors_of(m),
				 "files", files_of(m->files, m->files_nr), "blobs", blobs_of(m));

	if (m->owner_known)
		json_object_set_new(root, "owner",
				    json_pack("{s:I, s:I, s:s}", "uid", (json_int_t)m->owner_uid,
					      "gid", (json_int_t)m->owner_gid, "node",
					      m->owner_node));
	if (m->run.id[0] != 0 || m->run.id[1] != 0) {
		json_object_set_new(
			root, "id",
			json_sprintf("%016" PRIx64 "%016" PRIx64, m->run.id[0], m->run.id[1]));
		json_object_set_new(root, "line", hex(m->run.line));
	}
	if (m->client_nr > 0)
		json_object_set_new(root, "client", files_of(m->client, m->client_nr));
	if (m->has_mode)
		json_object_set_new(root, "mode", json_sprintf("%04o", m->mode));
	if (!root || !rest || json_object_update(root, rest) != 0) {
		json_decref(root);
		root = NULL;
	}
	json_decref(rest);
	return root;
}

/* 17 digits are enough for any double. A text that jansson did not take, because it is not UTF-8,
 * is missing here. The parse that follows finds that. */
static enum shard_status make_text(const struct manifest *m, char **text, size_t *bytes,
				   uint64_t *sum, struct err *e)
{
	json_t *root = json_of(m);
	char *body = root ? json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
	size_t n = body ? strlen(body) : 0;

	*text = NULL;
	json_decref(root);
	if (n > 0 && (*text = realloc(body, n + MANIFEST_TAIL_BYTES + 1)) != NULL) {
		/* The sum follows as the last member. It covers all bytes before it. */
		(*text)[n - 1] = ',';
		*sum = xxh_sum(*text, n, 0);
		*bytes = n +
			 (size_t)snprintf(*text + n, MANIFEST_TAIL_BYTES + 1, MANIFEST_TAIL, *sum);
		return SHARD_OK;
	}
	free(body);
	return part_no_memory(e, "a checkpoint's manifest");
}

static enum shard_status write_text(const char *path, const char *text, size_t bytes, struct err *e)
{
	enum shard_status st;
	bool ok = true;
	int fd, error = 0;

	st = plain_open(&fd, AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, 0600, e);
	if (st != SHARD_OK)
		return st;
	for (size_t put = 0; ok && put < bytes;) {
		ssize_t n = write(fd, text + put, bytes - put);

		ok = n > 0 || (n < 0 && errno == EINTR);
		put += n > 0 ? (size_t)n : 0;
	}
	ok = ok && fsync(fd) == 0;
	if (!ok)
		error = errno;
	if (close(fd) != 0 && ok) {
		ok = false;
		error = errno;
	}
	if (ok)
		return SHARD_OK;
	errno = error;
	return err_sys(e, error, "%s: cannot be written: %s", path, strerror(error));
}

enum shard_status manifest_write(const char *dir, struct manifest *m, struct err *e)
{
	char path[PART_PATH_BYTES], *text = NULL;
	struct manifest *again = NULL;
	size_t bytes = 0;
	uint64_t sum = 0;
	enum shard_status st = make_text(m, &text, &bytes, &sum, e);
	int error;

	part_path(path, dir, MANIFEST_NAME);
	if (st == SHARD_OK && bytes > MANIFEST_BYTES_MAX)
		st = err_set(e, SHARD_RANGE, "%s: would have %zu bytes: at most %u are read", path,
			     bytes, MANIFEST_BYTES_MAX);
	if (st == SHARD_OK) /* A manifest that could not be read is not written. */
		st = manifest_parse(&again, text, bytes, path, e);
	manifest_free(&again);
	if (st == SHARD_OK)
		st = write_text(path, text, bytes, e);
	error = errno;
	free(text);
	errno = error;
	m->sum = sum;
	return st;
}
