/* SPDX-License-Identifier: Apache-2.0 */
/* Headers of safetensors files, for parts of checkpoints and for export and import. Happy path of
 * reading: JSON → one entry per member → sorted by offset → the entries must follow each
 * other without a gap and end with the file. Happy path of writing: offsets in the given order,
 * JSON, blanks up to the alignment. It fails without memory, and on a header that is not valid,
 * with path, tensor and both values. */
#include "ckpt/safetensors.h"

#include "base/check.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
	char name[8];
	uint8_t bytes;
	enum shard_dtype dtype; /* 0: not an enum shard_dtype. */
} dtypes[] = {
	{"F32", 4, SHARD_F32}, {"BF16", 2, SHARD_BF16}, {"F16", 2, SHARD_F16}, {"F64", 8, 0},
	{"I64", 8, 0},         {"U64", 8, 0},           {"I32", 4, 0},         {"U32", 4, 0},
	{"I16", 2, 0},         {"U16", 2, 0},           {"I8", 1, 0},          {"U8", 1, 0},
	{"BOOL", 1, 0},        {"F8_E4M3", 1, 0},       {"F8_E5M2", 1, 0},     {"F8_E8M0", 1, 0},
};

static enum shard_status no_memory(struct err *e, const char *path)
{
	errno = ENOMEM;
	return err_set(e, SHARD_SYSTEM, "%s: no memory for its header", path);
}

enum shard_status safetensors_header_bytes(const uint8_t first[8], uint64_t file_bytes,
					   const char *path, uint64_t *bytes, struct err *e)
{
	uint64_t n = 0;

	for (int i = 7; i >= 0; i--)
		n = n << 8 | first[i];
	if (file_bytes < 10 || n < 2 || n > SAFETENSORS_READ_HEADER_MAX || n > file_bytes - 8)
		return err_set(
			e, SHARD_PROTOCOL,
			"%s: no safetensors file: its first 8 bytes announce a header of %" PRIu64
			" bytes, the file has %" PRIu64 ", and at most %u are read",
			path, n, file_bytes, SAFETENSORS_READ_HEADER_MAX);
	*bytes = n;
	return SHARD_OK;
}

/* A name may be shown if it has no control characters. The parser has checked that it is UTF-8,
 * where the control characters U+0080 to U+009F begin with 0xc2. */
static bool name_ok(const char *name)
{
	const unsigned char *p = (const unsigned char *)name;

	for (; *p; p++)
		if (*p < 0x20 || *p == 0x7f || (*p == 0xc2 && p[1] < 0xa0))
			return false;
	return p != (const unsigned char *)name;
}

static bool take_u64(const json_t *j, uint64_t *out)
{
	if (!json_is_integer(j) || json_integer_value(j) < 0)
		return false;
	*out = (uint64_t)json_integer_value(j);
	return true;
}

static enum shard_status take_dtype(struct safetensors_entry *n, const json_t *j, uint64_t elems,
				    const char *path, struct err *e)
{
	const char *text = json_string_value(j);
	uint64_t want;

	if (!text || !name_ok(text) || strlen(text) >= sizeof(n->dtype_name))
		return err_set(e, SHARD_PROTOCOL,
			       "%s: tensor %.128s: its dtype is none that this format has", path,
			       n->name);
	strcpy(n->dtype_name, text);
	for (size_t i = 0; i < NR(dtypes); i++) {
		if (strcmp(dtypes[i].name, text) != 0)
			continue;
		n->dtype = dtypes[i].dtype;
		if (__builtin_mul_overflow(elems, dtypes[i].bytes, &want) || want != n->bytes)
			return err_set(e, SHARD_PROTOCOL,
				       "%s: tensor %.128s: %" PRIu64
				       " elements of %s do not fill its %" PRIu64 " bytes",
				       path, n->name, elems, text, n->bytes);
	}
	return SHARD_OK;
}

static enum shard_status take_entry(struct safetensors_entry *n, const json_t *j,
				    const struct safetensors *s, const char *path, struct err *e)
{
	const json_t *shape = json_object_get(j, "shape"), *at = json_object_get(j, "data_offsets");
	uint64_t elems = 1, from, to, data_bytes = s->file_bytes - s->data_offset;

	if (!name_ok(n->name))
		return err_set(e, SHARD_PROTOCOL,
			       "%s: a tensor's name is empty or has control characters", path);
	if (!json_is_array(shape) || json_array_size(shape) > SAFETENSORS_DIMS_MAX)
		return err_set(e, SHARD_PROTOCOL,
			       "%s: tensor %.128s: no shape, or one of more than %d dimensions",
			       path, n->name, SAFETENSORS_DIMS_MAX);
	n->ndim = (uint32_t)json_array_size(shape);
	for (uint32_t i = 0; i < n->ndim; i++)
		if (!take_u64(json_array_get(shape, i), &n->shape[i]) ||
		    __builtin_mul_overflow(elems, n->shape[i], &elems))
			return err_set(e, SHARD_PROTOCOL,
				       "%s: tensor %.128s: dimension %u of its shape is no number "
				       "that fits",
				       path, n->name, i);
	if (!json_is_array(at) || json_array_size(at) != 2 ||
	    !take_u64(json_array_get(at, 0), &from) || !take_u64(json_array_get(at, 1), &to) ||
	    from > to || to > data_bytes)
		return err_set(
			e, SHARD_PROTOCOL,
			"%s: tensor %.128s: its data_offsets do not lie in the file's %" PRIu64
			" bytes of data",
			path, n->name, data_bytes);
	n->offset = s->data_offset + from;
	n->bytes = to - from;
	return take_dtype(n, json_object_get(j, "dtype"), elems, path, e);
}

static int by_offset(const void *a, const void *b)
{
	const struct safetensors_entry *x = a, *y = b;

	if (x->offset != y->offset)
		return x->offset < y->offset ? -1 : 1;
	return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

/* The format has no gaps, no overlaps, and nothing after the last tensor. */
static enum shard_status check_cover(const struct safetensors *s, const char *path, struct err *e)
{
	uint64_t at = s->data_offset;

	for (uint32_t i = 0; i < s->entries_nr; i++) {
		if (s->entry[i].offset != at)
			return err_set(e, SHARD_PROTOCOL,
				       "%s: tensor %.128s begins at offset %" PRIu64
				       ", the one before it ends at %" PRIu64,
				       path, s->entry[i].name, s->entry[i].offset, at);
		at += s->entry[i].bytes;
	}
	if (at != s->file_bytes)
		return err_set(e, SHARD_PROTOCOL,
			       "%s: its tensors end at offset %" PRIu64 ", the file at %" PRIu64,
			       path, at, s->file_bytes);
	return SHARD_OK;
}

static enum shard_status take_all(struct safetensors *s, json_t *root, size_t json_bytes,
				  const char *path, struct err *e)
{
	const char *key;
	json_t *value;
	char *names;
	enum shard_status st;

	s->entry = calloc(json_object_size(root) + 1, sizeof(*s->entry));
	/* All names with their NULs are shorter than the JSON, which has them in quotes. */
	s->memory = names = malloc(json_bytes + 1);
	if (!s->entry || !names)
		return no_memory(e, path);
	json_object_foreach(root, key, value) {
		struct safetensors_entry *n = &s->entry[s->entries_nr];
		size_t room = strlen(key) + 1;

		if (strcmp(key, "__metadata__") == 0)
			continue;
		n->name = memcpy(names, key, room);
		names += room;
		if ((st = take_entry(n, value, s, path, e)) != SHARD_OK)
			return st;
		s->entries_nr++;
	}
	qsort(s->entry, s->entries_nr, sizeof(*s->entry), by_offset);
	return check_cover(s, path, e);
}

enum shard_status safetensors_parse(struct safetensors **out, const char *json, size_t bytes,
				    uint64_t file_bytes, const char *path, struct err *e)
{
	struct safetensors *s;
	enum shard_status st;
	json_error_t why;
	json_t *root;

	if (bytes > SAFETENSORS_READ_HEADER_MAX || file_bytes < 8 || bytes > file_bytes - 8 ||
	    bytes == 0 || json[0] != '{')
		return err_set(e, SHARD_PROTOCOL,
			       "%s: no safetensors file: its header does not begin with {", path);
	if (!(root = json_loadb(json, bytes, JSON_REJECT_DUPLICATES, &why))) {
		if (json_error_code(&why) == json_error_out_of_memory)
			return no_memory(e, path);
		return err_set(e, SHARD_PROTOCOL, "%s: its header is no JSON: %s at byte %d", path,
			       why.text, 8 + why.position);
	}
	s = calloc(1, sizeof(*s));
	if (!s) {
		json_decref(root);
		return no_memory(e, path);
	}
	s->data_offset = 8 + bytes;
	s->file_bytes = file_bytes;
	st = take_all(s, root, bytes, path, e);
	json_decref(root);
	if (st != SHARD_OK)
		safetensors_free(&s);
	*out = s;
	return st;
}

void safetensors_free(struct safetensors **s)
{
	if (*s) {
		free((*s)->entry);
		free((*s)->memory);
		free(*s);
	}
	*s = NULL;
}

/* --- writing --- */

static bool put_entry(json_t *root, const struct safetensors_entry *entry, uint64_t at)
{
	json_t *shape = json_array();

	for (uint32_t d = 0; d < entry->ndim; d++)
		json_array_append_new(shape, json_integer((json_int_t)entry->shape[d]));
	return json_object_set_new(root, entry->name,
				   json_pack("{s:s, s:o, s:[I, I]}", "dtype", entry->dtype_name,
					     "shape", shape, "data_offsets", (json_int_t)at,
					     (json_int_t)(at + entry->bytes))) == 0;
}

/* NULL: no memory, or a name that is not UTF-8. */
static char *dumped(const struct safetensors_entry *entry, uint32_t entries_nr,
		    const char *const (*metadata)[2], uint32_t metadata_nr)
{
	json_t *root = json_object(), *about = json_object();
	uint64_t at = 0;
	bool ok = root && about;
	char *text = NULL;

	for (uint32_t i = 0; ok && i < metadata_nr; i++)
		ok = json_object_set_new(about, metadata[i][0], json_string(metadata[i][1])) == 0;
	if (ok && metadata_nr > 0)
		ok = json_object_set(root, "__metadata__", about) == 0;
	for (uint32_t i = 0; ok && i < entries_nr; i++) {
		ok = put_entry(root, &entry[i], at);
		at += entry[i].bytes;
	}
	if (ok)
		text = json_dumps(root, JSON_COMPACT);
	json_decref(about);
	json_decref(root);
	return text;
}

enum shard_status safetensors_make(void **out, size_t *bytes, struct safetensors_entry *entry,
				   uint32_t entries_nr, const char *const (*metadata)[2],
				   uint32_t metadata_nr, struct err *e)
{
	char *json = dumped(entry, entries_nr, metadata, metadata_nr), *text;
	size_t n = json ? strlen(json) : 0,
	       padded = (8 + n + SAFETENSORS_ALIGN - 1) & ~(size_t)(SAFETENSORS_ALIGN - 1);
	uint64_t at = padded;

	*out = NULL;
	text = json ? malloc(padded) : NULL;
	if (text)
		memset((char *)memcpy(text + 8, json, n) + n, ' ', padded - 8 - n);
	free(json);
	if (!text)
		return no_memory(e, "safetensors");
	if (padded - 8 > SAFETENSORS_HEADER_MAX) {
		free(text);
		return err_set(
			e, SHARD_RANGE,
			"a safetensors header of %zu bytes for %u tensors: the format allows %u",
			padded - 8, entries_nr, SAFETENSORS_HEADER_MAX);
	}
	for (int i = 0; i < 8; i++)
		text[i] = (char)((padded - 8) >> (8 * i));
	for (uint32_t i = 0; i < entries_nr; i++) {
		entry[i].offset = at;
		at += entry[i].bytes;
	}
	*out = text;
	*bytes = padded;
	return SHARD_OK;
}
