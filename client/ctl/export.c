/* SPDX-License-Identifier: Apache-2.0 */
/* `shardctl export DIR OUT` writes the master weights of a checkpoint as safetensors files that the
 * libraries of Hugging Face read. Happy path: it opens the manifest and deals the tensors to shards
 * in their order. For each shard it writes the header, then reads the elements in batches, compares
 * them with their sums, rounds them and writes them. Each file has a temporary name and is synced.
 * At the end all files are renamed, the index last. It fails where the checkpoint is damaged (exit
 * 1, the text names the damage), where OUT has such files already (exit 5), or when the file system
 * reports an error. The temporary files are then removed. */
#include "ctl/bar.h"
#include "ctl/ctl.h"
#include "ctl/json.h"

#include "base/check.h"
#include "ckpt/checkpoint.h"
#include "ckpt/safetensors.h"
#include "wire/dtype.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TAG, DTYPE, SIZE, FORCE };

#define BATCH_ELEMS (32u << 20) /* 128 MiB of fp32 are in memory at a time. */
#define PIECE_ELEMS (1u << 20)
#define INDEX_NAME  "model.safetensors.index.json"

const struct argp_option ctl_export_options[] = {
	{"tag", CTL_KEY + TAG, "TAG", 0, "the checkpoint (default: the newest complete one)", 0},
	{"dtype", CTL_KEY + DTYPE, "TYPE", 0,
	 "fp32, bf16 or fp16 (default: as the image of each tensor)", 0},
	{"max-shard-size", CTL_KEY + SIZE, "SIZE", 0,
	 "of one file, as in 5GB or 500MiB (default: 5GB)", 0},
	{"force", CTL_KEY + FORCE, NULL, 0, "replace an older export", 0},
	{0},
};

struct job {
	const struct ctl_options *o;
	const char *out;
	bool force;
	char path[CHECKPOINT_PATH_MAX]; /* The folder of the checkpoint. */
	struct manifest *m;
	enum shard_dtype dtype; /* 0: each tensor has that of its image. */
	uint64_t shard_bytes, total;
	uint32_t shards_nr, *shard; /* `shard` is the shard of each tensor. */
	uint32_t *order;            /* The tensors as they lie in the files. */
	float *batch;
	char *piece;
	struct bar bar;
	uint64_t done;
	struct err e;
};

static uint64_t elems_of(const struct shard_tensor *t)
{
	uint64_t n = 1;

	for (uint32_t d = 0; d < t->ndim; d++)
		n *= t->shape[d];
	return n;
}

static enum shard_dtype dtype_of(const struct job *j, uint32_t tensor)
{
	const struct shard_tensor *t = &j->m->tensors[tensor];

	if (j->dtype)
		return j->dtype;
	return t->image ? (enum shard_dtype)t->image : j->m->image;
}

static bool take_size(const char *text, uint64_t *bytes)
{
	char number[64];
	size_t n = strlen(text);

	if (n == 0 || n >= sizeof(number))
		return false;
	strcpy(number, text);
	if (number[n - 1] == 'B')
		number[n - 1] = 0;
	return ctl_count(number, 1ull << 62, bytes);
}

static void name_of(const struct job *j, uint32_t shard, char name[64])
{
	if (j->shards_nr == 1)
		strcpy(name, "model.safetensors");
	else
		snprintf(name, 64, "model-%05u-of-%05u.safetensors", shard + 1, j->shards_nr);
}

static void path_of(const struct job *j, const char *name, bool draft,
		    char path[CHECKPOINT_PATH_MAX])
{
	snprintf(path, CHECKPOINT_PATH_MAX, "%.900s/%s%s%s", j->out, draft ? "." : "", name,
		 draft ? ".tmp" : "");
}

/* Readers map the files, so each element lies at a multiple of its size: the tensors of fp32 come
 * first in each shard. */
static void order(struct job *j)
{
	uint32_t nr = 0;

	for (uint32_t first = 0, end; first < j->m->tensors_nr; first = end) {
		for (end = first; end < j->m->tensors_nr && j->shard[end] == j->shard[first];)
			end++;
		for (int narrow = 0; narrow < 2; narrow++)
			for (uint32_t i = first; i < end; i++)
				if ((dtype_of(j, i) != SHARD_F32) == narrow)
					j->order[nr++] = i;
	}
	CHECK(nr == j->m->tensors_nr);
}

/* Deals the tensors to shards in their order. A new shard begins where the next tensor does not
 * fit. */
static bool deal(struct job *j)
{
	uint64_t used = 0;

	if (!(j->shard = calloc(j->m->tensors_nr, sizeof(*j->shard))) ||
	    !(j->order = calloc(j->m->tensors_nr, sizeof(*j->order))))
		return false;
	j->shards_nr = 1;
	for (uint32_t i = 0; i < j->m->tensors_nr; i++) {
		uint64_t bytes = elems_of(&j->m->tensors[i]) * dtype_bytes(dtype_of(j, i));

		if (used > 0 && used + bytes > j->shard_bytes) {
			j->shards_nr++;
			used = 0;
		}
		used += bytes;
		j->total += bytes;
		j->shard[i] = j->shards_nr - 1;
	}
	order(j);
	return true;
}

/* --- one shard --- */

static bool put(struct job *j, int fd, const char *path, const void *from, size_t bytes)
{
	for (size_t done = 0; done < bytes;) {
		ssize_t n = write(fd, (const char *)from + done, bytes - done);

		if (n < 0 && errno != EINTR) {
			err_set(&j->e, SHARD_SYSTEM, "%s: cannot be written: %s", path,
				strerror(errno));
			return false;
		}
		done += n > 0 ? (size_t)n : 0;
	}
	return true;
}

/* dtype: of all tensors of the batch. */
static bool put_batch(struct job *j, int fd, const char *path, const struct part_run *runs,
		      uint32_t runs_nr, uint64_t elems, enum shard_dtype dtype)
{
	if (runs_nr == 0)
		return true;
	if (part_load(j->path, j->m->files, j->m->files_nr, runs, runs_nr, false, NULL, &j->e) !=
	    SHARD_OK)
		return false;
	for (uint64_t at = 0; at < elems; at += PIECE_ELEMS) {
		size_t n = elems - at < PIECE_ELEMS ? (size_t)(elems - at) : PIECE_ELEMS,
		       bytes = n * dtype_bytes(dtype);

		dtype_convert(j->piece, dtype, j->batch + at, SHARD_F32, n);
		if (!put(j, fd, path, j->piece, bytes))
			return false;
		bar_set(&j->bar, j->done += bytes);
	}
	return true;
}

/* Writes the tensors from first to end - 1. Their runs are gathered into batches of one dtype. */
static bool put_tensors(struct job *j, int fd, const char *path, uint32_t first, uint32_t end)
{
	enum shard_dtype dtype = dtype_of(j, j->order[first]);
	struct part_run runs[256];
	uint32_t nr = 0;
	uint64_t elems = 0;

	for (uint32_t k = first; k < end; k++) {
		uint32_t i = j->order[k];
		const struct shard_tensor *t = &j->m->tensors[i];
		uint64_t all = elems_of(t);

		if (dtype_of(j, i) != dtype) {
			if (!put_batch(j, fd, path, runs, nr, elems, dtype))
				return false;
			nr = 0;
			elems = 0;
			dtype = dtype_of(j, i);
		}
		for (uint64_t at = 0, n; at < all; at += n) {
			n = all - at < BATCH_ELEMS - elems ? all - at : BATCH_ELEMS - elems;
			runs[nr++] = (struct part_run){.kind = SHARD_MASTER,
						       .tensor = t->name,
						       .first = at,
						       .count = n,
						       .at = j->batch + elems};
			elems += n;
			if (nr < NR(runs) && elems < BATCH_ELEMS)
				continue;
			if (!put_batch(j, fd, path, runs, nr, elems, dtype))
				return false;
			nr = 0;
			elems = 0;
		}
	}
	return put_batch(j, fd, path, runs, nr, elems, dtype);
}

static bool make_header(struct job *j, uint32_t first, uint32_t end, void **header, size_t *bytes)
{
	static const char *const metadata[][2] = {{"format", "pt"}}, *const names[] = {"", "F32",
										       "BF16",
										       "F16"};
	struct safetensors_entry *entry = calloc(end - first, sizeof(*entry));
	enum shard_status st;

	if (!entry) {
		err_set(&j->e, SHARD_SYSTEM, "no memory");
		return false;
	}
	for (uint32_t k = first; k < end; k++) {
		uint32_t i = j->order[k];
		struct safetensors_entry *x = &entry[k - first];
		const struct shard_tensor *t = &j->m->tensors[i];

		x->name = t->name;
		strcpy(x->dtype_name, names[dtype_of(j, i)]);
		x->ndim = t->ndim;
		memcpy(x->shape, t->shape, sizeof(x->shape));
		x->bytes = elems_of(t) * dtype_bytes(dtype_of(j, i));
	}
	st = safetensors_make(header, bytes, entry, end - first, metadata, 1, &j->e);
	free(entry);
	return st == SHARD_OK;
}

static bool put_shard(struct job *j, uint32_t shard)
{
	char name[64], path[CHECKPOINT_PATH_MAX];
	uint32_t first = 0, end;
	void *header = NULL;
	size_t bytes = 0;
	bool ok;
	int fd;

	while (j->shard[first] != shard)
		first++;
	for (end = first; end < j->m->tensors_nr && j->shard[end] == shard;)
		end++;
	name_of(j, shard, name);
	path_of(j, name, true, path);
	if (!make_header(j, first, end, &header, &bytes))
		return false;
	/* This may be the draft of an export that was killed. To open it would block if it were a
	 * pipe. */
	(void)unlink(path);
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
	ok = fd >= 0 && put(j, fd, path, header, bytes) && put_tensors(j, fd, path, first, end);
	free(header);
	if (fd < 0 || (ok && fsync(fd) != 0)) {
		err_set(&j->e, SHARD_SYSTEM, "%s: cannot be written: %s", path, strerror(errno));
		ok = false;
	}
	if (fd >= 0)
		close(fd);
	return ok;
}

static bool put_index(struct job *j)
{
	json_t *root = json_object(), *map = json_object();
	char path[CHECKPOINT_PATH_MAX], name[64];
	bool ok;

	path_of(j, INDEX_NAME, true, path);
	json_object_set_new(root, "metadata",
			    json_pack("{sI}", "total_size", (json_int_t)j->total));
	for (uint32_t i = 0; i < j->m->tensors_nr; i++) {
		name_of(j, j->shard[i], name);
		json_object_set_new(map, j->m->tensors[i].name, json_string(name));
	}
	json_object_set_new(root, "weight_map", map);
	(void)unlink(path);
	ok = json_dump_file(root, path, JSON_INDENT(2)) == 0;
	json_decref(root);
	if (!ok)
		err_set(&j->e, SHARD_SYSTEM, "%s: cannot be written: %s", path, strerror(errno));
	return ok;
}

/* --- all --- */

static bool rename_one(struct job *j, const char *name)
{
	char from[CHECKPOINT_PATH_MAX], to[CHECKPOINT_PATH_MAX];

	path_of(j, name, true, from);
	path_of(j, name, false, to);
	if (rename(from, to) == 0)
		return true;
	err_set(&j->e, SHARD_SYSTEM, "%s: cannot be renamed to: %s", to, strerror(errno));
	return false;
}

/* Removes the shards of an older export with another number of shards. The new index does not name
 * them, and readers would take them for a part of this export. */
static void remove_older(const struct job *j)
{
	DIR *dir = opendir(j->out);
	struct dirent *entry;

	while (dir != NULL && (entry = readdir(dir)) != NULL) {
		char name[64], path[CHECKPOINT_PATH_MAX];
		unsigned shard, of;

		if (sscanf(entry->d_name, "model-%5u-of-%5u.safetensors", &shard, &of) != 2 ||
		    (of == j->shards_nr && of > 1))
			continue;
		snprintf(name, sizeof(name), "model-%05u-of-%05u.safetensors", shard, of);
		if (strcmp(name, entry->d_name) != 0)
			continue;
		path_of(j, name, false, path);
		(void)unlink(path);
	}
	if (dir != NULL)
		closedir(dir);
}

static bool rename_all(struct job *j)
{
	char name[64], other[CHECKPOINT_PATH_MAX];
	int fd;

	/* An older index must not name a mixture of its shards and ours, if not all are renamed. */
	path_of(j, INDEX_NAME, false, other);
	if (j->shards_nr > 1 && unlink(other) != 0 && errno != ENOENT) {
		err_set(&j->e, SHARD_SYSTEM, "%s: cannot be removed: %s", other, strerror(errno));
		return false;
	}
	for (uint32_t i = 0; i < j->shards_nr; i++) {
		name_of(j, i, name);
		if (!rename_one(j, name))
			return false;
	}
	if (j->shards_nr > 1 && !rename_one(j, INDEX_NAME))
		return false;
	path_of(j, j->shards_nr > 1 ? "model.safetensors" : INDEX_NAME, false, other);
	/* With --force an older export may have left this file, and readers would take it
	 * instead. */
	(void)unlink(other);
	if (j->force)
		remove_older(j);
	fd = open(j->out, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd >= 0) {
		(void)fsync(fd);
		close(fd);
	}
	return true;
}

static void remove_drafts(const struct job *j)
{
	char name[64], path[CHECKPOINT_PATH_MAX];

	for (uint32_t i = 0; i < j->shards_nr; i++) {
		name_of(j, i, name);
		path_of(j, name, true, path);
		(void)unlink(path);
	}
	path_of(j, INDEX_NAME, true, path);
	(void)unlink(path);
}

static enum ctl_exit check_out(struct job *j)
{
	const char *const names[] = {"model.safetensors", INDEX_NAME};
	char path[CHECKPOINT_PATH_MAX];

	if (mkdir(j->out, 0755) != 0 && errno != EEXIST)
		return ctl_fail(j->o, CTL_FAILED, "export: %s: cannot be made: %s", j->out,
				strerror(errno));
	for (size_t i = 0; i < NR(names) && !j->force; i++) {
		path_of(j, names[i], false, path);
		if (access(path, F_OK) == 0)
			return ctl_fail(
				j->o, CTL_REFUSED,
				"export: %s: is there already: choose another folder, or --force",
				path);
	}
	return CTL_OK;
}

/* What all tensors have, or "mixed". */
static const char *dtypes(const struct job *j)
{
	for (uint32_t i = 1; i < j->m->tensors_nr; i++)
		if (dtype_of(j, i) != dtype_of(j, 0))
			return "mixed";
	return dtype_name(dtype_of(j, 0));
}

static enum ctl_exit run(struct job *j)
{
	bool ok = deal(j);

	j->batch = malloc(BATCH_ELEMS * sizeof(float));
	j->piece = malloc(PIECE_ELEMS * sizeof(float));
	if (!ok || !j->batch || !j->piece)
		return ctl_fail(j->o, CTL_FAILED, "export: no memory");
	bar_init(&j->bar, "export", j->total, isatty(2));
	for (uint32_t i = 0; ok && i < j->shards_nr; i++)
		ok = put_shard(j, i);
	ok = ok && (j->shards_nr == 1 || put_index(j)) && rename_all(j);
	bar_done(&j->bar);
	if (!ok) {
		remove_drafts(j);
		return ctl_fail(j->o, CTL_FAILED, "export: %s", j->e.text);
	}
	if (j->o->json)
		ctl_print(json_pack("{s:s, s:I, s:I, s:I, s:s, s:I}", "model", j->m->name, "step",
				    (json_int_t)j->m->step, "tensors", (json_int_t)j->m->tensors_nr,
				    "files", (json_int_t)j->shards_nr, "dtype", dtypes(j), "bytes",
				    (json_int_t)j->total));
	else
		printf("%s, step %llu: %u tensors as %s in %u file%s in %s\n", j->m->name,
		       (unsigned long long)j->m->step, j->m->tensors_nr, dtypes(j), j->shards_nr,
		       j->shards_nr == 1 ? "" : "s", j->out);
	return CTL_OK;
}

enum ctl_exit ctl_export(const struct ctl_options *o)
{
	const char *dir = o->words[0];
	struct job j = {.o = o,
			.out = o->words[1],
			.force = o->value[FORCE] != NULL,
			.shard_bytes = 5000000000ull};
	char tag[CHECKPOINT_TAG_MAX + 1];
	enum ctl_exit rc;
	uint64_t step;

	if (o->value[DTYPE] && !dtype_parse(o->value[DTYPE], &j.dtype))
		return ctl_fail(o, CTL_USAGE, "export: --dtype %s: choose fp32, bf16 or fp16",
				o->value[DTYPE]);
	if (o->value[SIZE] && !take_size(o->value[SIZE], &j.shard_bytes))
		return ctl_fail(o, CTL_USAGE,
				"export: --max-shard-size %s: choose a size, as in 5GB or 500MiB",
				o->value[SIZE]);
	if (o->value[TAG] && !checkpoint_tag_ok(o->value[TAG]))
		return ctl_fail(o, CTL_USAGE, "export: --tag %s: is no tag of a checkpoint",
				o->value[TAG]);
	if (strlen(j.out) > 900)
		return ctl_fail(o, CTL_USAGE, "export: the path of the folder is too long");
	if (o->value[TAG])
		strcpy(tag, o->value[TAG]);
	else if (checkpoint_newest(dir, NULL, UINT64_MAX, tag, &step, &j.e) != SHARD_OK)
		return ctl_fail(o, CTL_FAILED, "export: %s", j.e.text);
	if (checkpoint_open(dir, tag, NULL, &j.m, &j.e) != SHARD_OK ||
	    checkpoint_path(j.path, dir, tag, &j.e) != SHARD_OK ||
	    checkpoint_fits(j.path, j.m, &j.e) != SHARD_OK)
		return ctl_fail(o, CTL_FAILED, "export: %s", j.e.text);
	rc = check_out(&j);
	if (rc == CTL_OK)
		rc = run(&j);
	free(j.shard);
	free(j.order);
	free(j.batch);
	free(j.piece);
	manifest_free(&j.m);
	return rc;
}
