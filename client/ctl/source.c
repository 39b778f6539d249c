/* SPDX-License-Identifier: Apache-2.0 */
/* Reads safetensors files of any origin. import.c calls source_open(), source_read() and
 * source_close(). Happy path: path is a folder, an index or a file, which gives the sorted names of
 * the shards. Their headers become one list of tensors. Each name appears once, and each tensor has
 * elements of a dtype that weights have. Where there is an index it must agree with that list. Each
 * of these checks can fail, and the text names the file and the tensor. */
#include "ctl/source.h"

#include "base/check.h"
#include "wire/dtype.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILES_MAX = 4096, PATH_BYTES = 4096, PIECE_ELEMS = 1 << 20 };
#define INDEX_NAME "model.safetensors.index.json"

static enum shard_status no_memory(struct err *e)
{
	return err_set(e, SHARD_SYSTEM, "no memory for the list of tensors");
}

static enum shard_status open_file(struct source *s, struct source_file *f, struct err *e)
{
	char path[PATH_BYTES], *json = NULL;
	uint8_t first[8];
	uint64_t bytes = 0;
	struct stat st;
	enum shard_status rc;

	snprintf(path, sizeof(path), "%s/%s", s->dir, f->name);
	f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (f->fd < 0)
		return err_set(e, errno == ENOENT ? SHARD_NOT_FOUND : SHARD_SYSTEM,
			       "%s: cannot be opened: %s", path, strerror(errno));
	if (fstat(f->fd, &st) != 0 || !S_ISREG(st.st_mode) || pread(f->fd, first, 8, 0) != 8)
		return err_set(e, SHARD_PROTOCOL, "%s: is no safetensors file", path);
	rc = safetensors_header_bytes(first, (uint64_t)st.st_size, path, &bytes, e);
	if (rc != SHARD_OK)
		return rc;
	if (!(json = malloc(bytes)))
		return no_memory(e);
	for (uint64_t got = 0; rc == SHARD_OK && got < bytes;) {
		ssize_t n = pread(f->fd, json + got, bytes - got, (off_t)(8 + got));

		if (n <= 0)
			rc = err_set(e, SHARD_SYSTEM, "%s: cannot be read: %s", path,
				     n ? strerror(errno) : "it ends early");
		got += n > 0 ? (uint64_t)n : 0;
	}
	if (rc == SHARD_OK)
		rc = safetensors_parse(&f->header, json, bytes, (uint64_t)st.st_size, path, e);
	free(json);
	return rc;
}

static enum shard_status add_file(struct source *s, const char *name, struct err *e)
{
	for (uint32_t i = 0; i < s->files_nr; i++)
		if (strcmp(s->file[i].name, name) == 0)
			return SHARD_OK;
	if (s->files_nr == FILES_MAX)
		return err_set(e, SHARD_RANGE, "%s: more than %d shards", s->dir, FILES_MAX);
	if (!(s->file[s->files_nr].name = strdup(name)))
		return no_memory(e);
	s->file[s->files_nr++].fd = -1;
	return SHARD_OK;
}

static int by_name(const void *a, const void *b)
{
	const struct source_file *x = a, *y = b;

	return strcmp(x->name, y->name);
}

/* --- the index --- */

static enum shard_status read_index(struct source *s, const char *path, json_t **map, struct err *e)
{
	json_error_t why;
	json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &why), *found;
	enum shard_status st = SHARD_OK;
	const char *tensor;
	json_t *value;

	if (!root)
		return err_set(e, SHARD_PROTOCOL, "%s: is no index: %s", path, why.text);
	found = json_object_get(root, "weight_map");
	if (!json_is_object(found) || json_object_size(found) == 0)
		st = err_set(e, SHARD_PROTOCOL, "%s: has no weight_map", path);
	if (st == SHARD_OK)
		json_object_foreach(found, tensor, value) {
			const char *name = json_string_value(value);

			if (!name || !name[0] || strchr(name, '/') || name[0] == '.')
				st = err_set(e, SHARD_PROTOCOL,
					     "%s: tensor %.128s: its file is no name of a file "
					     "beside the index",
					     path, tensor);
			if (st == SHARD_OK)
				st = add_file(s, name, e);
			if (st != SHARD_OK)
				break;
		}
	if (st == SHARD_OK) {
		qsort(s->file, s->files_nr, sizeof(*s->file), by_name);
		*map = json_incref(found);
	}
	json_decref(root);
	return st;
}

/* Every tensor of a file must be in the index with that file, and the two must have equally many
 * tensors. Then every tensor of the index is in its file. */
static enum shard_status check_index(const struct source *s, const char *path, const json_t *map,
				     struct err *e)
{
	const char *tensor;
	json_t *value;

	for (uint32_t i = 0; i < s->tensors_nr; i++) {
		const char *name = s->tensor[i].entry->name,
			   *file = json_string_value(json_object_get(map, name));

		if (!file || strcmp(file, s->file[s->tensor[i].file].name) != 0)
			return err_set(e, SHARD_PROTOCOL,
				       "%s: tensor %.128s is in %s, the index says %s", path, name,
				       s->file[s->tensor[i].file].name,
				       file ? file : "nothing about it");
	}
	if (json_object_size(map) == s->tensors_nr)
		return SHARD_OK;
	json_object_foreach((json_t *)(uintptr_t)map, tensor, value) {
		bool there = false;

		for (uint32_t i = 0; i < s->tensors_nr && !there; i++)
			there = strcmp(s->tensor[i].entry->name, tensor) == 0;
		if (!there)
			return err_set(e, SHARD_PROTOCOL, "%s: tensor %.128s is not in %s", path,
				       tensor, json_string_value(value));
	}
	return SHARD_OK;
}

/* --- tensors --- */

static int by_text(const void *a, const void *b)
{
	const char *const *x = a, *const *y = b;

	return strcmp(*x, *y);
}

static enum shard_status check_twice(const struct source *s, struct err *e)
{
	const char **names = calloc((size_t)s->tensors_nr + 1, sizeof(*names));
	enum shard_status st = SHARD_OK;

	if (!names)
		return no_memory(e);
	for (uint32_t i = 0; i < s->tensors_nr; i++)
		names[i] = s->tensor[i].entry->name;
	qsort(names, s->tensors_nr, sizeof(*names), by_text);
	for (uint32_t i = 1; i < s->tensors_nr && st == SHARD_OK; i++)
		if (strcmp(names[i - 1], names[i]) == 0)
			st = err_set(e, SHARD_DUPLICATE,
				     "%s: tensor %.128s is in more than one file", s->dir,
				     names[i]);
	free(names);
	return st;
}

static enum shard_status take_tensors(struct source *s, struct err *e)
{
	uint64_t nr = 0;

	for (uint32_t f = 0; f < s->files_nr; f++)
		nr += s->file[f].header->entries_nr;
	if (nr == 0 || nr > 1u << 24)
		return err_set(e, SHARD_PROTOCOL, "%s: has %llu tensors", s->dir,
			       (unsigned long long)nr);
	if (!(s->tensor = calloc(nr, sizeof(*s->tensor))))
		return no_memory(e);
	for (uint32_t f = 0; f < s->files_nr; f++) {
		for (uint32_t i = 0; i < s->file[f].header->entries_nr; i++) {
			const struct safetensors_entry *x = &s->file[f].header->entry[i];

			if (x->dtype == 0)
				return err_set(
					e, SHARD_DTYPE,
					"%s/%s: tensor %.128s is %s: weights are F32, BF16 or F16",
					s->dir, s->file[f].name, x->name, x->dtype_name);
			if (strlen(x->name) > 255)
				return err_set(e, SHARD_PROTOCOL,
					       "%s/%s: tensor %.128s has a name of more than 255 "
					       "bytes",
					       s->dir, s->file[f].name, x->name);
			s->tensor[s->tensors_nr].entry = x;
			s->tensor[s->tensors_nr++].file = f;
			s->bytes += x->bytes;
		}
	}
	if (s->bytes == 0)
		return err_set(e, SHARD_PROTOCOL, "%s: none of its tensors has an element", s->dir);
	return check_twice(s, e);
}

/* Splits path into folder and name. In a folder it takes the index if there is one. */
static enum shard_status find(struct source *s, const char *path, char name[256], struct err *e)
{
	char try[PATH_BYTES];
	struct stat st;
	const char *slash = strrchr(path, '/');

	if (strlen(path) > PATH_BYTES - 300 || stat(path, &st) != 0)
		return err_set(e, SHARD_NOT_FOUND,
			       "%.300s: %s: name a file .safetensors, or the folder of several "
			       "with their index",
			       path, strerror(errno));
	if (S_ISDIR(st.st_mode)) {
		s->dir = strdup(path);
		snprintf(try, sizeof(try), "%s/" INDEX_NAME, path);
		strcpy(name, access(try, F_OK) == 0 ? INDEX_NAME : "model.safetensors");
	} else {
		s->dir = slash == path ? strdup("/")
			 : slash       ? strndup(path, (size_t)(slash - path))
				       : strdup(".");
		snprintf(name, 256, "%s", slash ? slash + 1 : path);
	}
	return s->dir ? SHARD_OK : no_memory(e);
}

enum shard_status source_open(struct source **out, const char *path, struct err *e)
{
	struct source *s = calloc(1, sizeof(*s));
	char name[256] = "", index[PATH_BYTES] = "";
	enum shard_status st;
	json_t *map = NULL;
	size_t n;

	*out = s;
	if (!s || !(s->file = calloc(FILES_MAX, sizeof(*s->file))) ||
	    !(s->buffer = malloc(PIECE_ELEMS * 4)))
		return no_memory(e);
	if ((st = find(s, path, name, e)) != SHARD_OK)
		return st;
	n = strlen(name);
	if (n > 5 && strcmp(name + n - 5, ".json") == 0) {
		snprintf(index, sizeof(index), "%s/%s", s->dir, name);
		st = read_index(s, index, &map, e);
	} else {
		st = add_file(s, name, e);
	}
	for (uint32_t i = 0; st == SHARD_OK && i < s->files_nr; i++)
		st = open_file(s, &s->file[i], e);
	if (st == SHARD_OK)
		st = take_tensors(s, e);
	if (st == SHARD_OK && map)
		st = check_index(s, index, map, e);
	json_decref(map);
	return st;
}

enum shard_status source_read(struct source *s, uint32_t tensor, uint64_t first, uint64_t count,
			      float *to, struct err *e)
{
	const struct safetensors_entry *x = s->tensor[tensor].entry;
	const struct source_file *f = &s->file[s->tensor[tensor].file];
	size_t size = dtype_bytes(x->dtype);

	CHECK(first + count <= x->bytes / size);
	while (count > 0) {
		size_t n = count < PIECE_ELEMS ? (size_t)count : PIECE_ELEMS;

		for (size_t got = 0; got < n * size;) {
			ssize_t r = pread(f->fd, (char *)s->buffer + got, n * size - got,
					  (off_t)(x->offset + first * size + got));

			if (r == 0 || (r < 0 && errno != EINTR))
				return err_set(e, SHARD_SYSTEM,
					       "%s/%s: cannot be read (%.128s): %s", s->dir,
					       f->name, x->name,
					       r ? strerror(errno) : "it ends early");
			got += r > 0 ? (size_t)r : 0;
		}
		dtype_convert(to, SHARD_F32, s->buffer, x->dtype, n);
		first += n;
		count -= n;
		to += n;
	}
	return SHARD_OK;
}

void source_close(struct source **out)
{
	struct source *s = *out;

	*out = NULL;
	if (!s)
		return;
	for (uint32_t i = 0; i < s->files_nr; i++) {
		if (s->file[i].fd >= 0)
			close(s->file[i].fd);
		safetensors_free(&s->file[i].header);
		free(s->file[i].name);
	}
	free(s->file);
	free(s->tensor);
	free(s->dir);
	free(s->buffer);
	free(s);
}
