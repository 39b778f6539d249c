/* SPDX-License-Identifier: Apache-2.0 */
/* The index of what the files of a checkpoint hold. Loading, verifying and checkpoint_fits() use
 * it. Happy path: each file has the length that the manifest has → the pieces with its header
 * equal their sums → the names of its entries become spans of elements → these are sorted for
 * binary search. It fails where a file is missing, has another length, is damaged, or holds
 * elements that another file holds too. The text has path, offset and tensor. */
#include "ckpt/part_impl.h"

#include "base/check.h"
#include "wire/xxh.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

void part_path(char path[PART_PATH_BYTES], const char *dir, const char *name)
{
	snprintf(path, PART_PATH_BYTES, "%s/%s", dir, name);
}

const char *part_name_at(const struct safetensors *h, uint64_t offset)
{
	if (!h)
		return "the header or what follows it";
	if (offset < h->data_offset)
		return "the header";
	for (uint32_t i = h->entries_nr; i > 0; i--)
		if (h->entry[i - 1].offset <= offset)
			return h->entry[i - 1].name;
	return "its end";
}

/* Checks the description itself, which may come from another node. */
static enum shard_status check_file(const struct part_file *f, struct err *e)
{
	if (f->piece_bytes == 0 || f->piece_bytes > PART_PIECE_BYTES ||
	    f->piece_bytes % PART_ALIGN != 0 || f->header_bytes < 10 ||
	    f->header_bytes > f->bytes || f->header_bytes > SAFETENSORS_READ_HEADER_MAX + 8ull ||
	    f->bytes > INT64_MAX - PART_PIECE_BYTES ||
	    f->sums_nr != (f->bytes + f->piece_bytes - 1) / f->piece_bytes)
		return err_set(
			e, SHARD_PROTOCOL,
			"%.79s: %" PRIu64 " bytes, %" PRIu64
			" of them header, in %u pieces of %u: the manifest contradicts itself",
			f->name, f->bytes, f->header_bytes, f->sums_nr, f->piece_bytes);
	return SHARD_OK;
}

enum shard_status part_open_file(struct part_fd *f, const char *dir, const struct part_file *file,
				 struct err *e)
{
	char path[PART_PATH_BYTES];
	enum shard_status st = check_file(file, e);
	struct stat s;

	f->fd = -1;
	part_path(path, dir, file->name);
	if (st == SHARD_OK)
		st = part_open(f, path, O_RDONLY, e);
	if (st != SHARD_OK)
		return st;
	if (fstat(f->fd, &s) != 0) {
		st = err_sys(e, errno, "%s: %s", path, strerror(errno));
		part_close(f);
	} else if ((uint64_t)s.st_size != file->bytes) {
		st = err_set(e, SHARD_PROTOCOL,
			     "%s: has %lld bytes, the manifest says %" PRIu64 ": it is damaged",
			     path, (long long)s.st_size, file->bytes);
		part_close(f);
	}
	return st;
}

enum shard_status part_read_piece(struct part_fd *f, const char *dir, const struct part_file *file,
				  uint64_t i, void *buffer, size_t *bytes,
				  const struct safetensors *h, struct err *e)
{
	uint64_t offset = i * file->piece_bytes, sum, rest = file->bytes - offset;
	char path[PART_PATH_BYTES];
	ssize_t got;

	CHECK(i < file->sums_nr && offset < file->bytes);
	*bytes = rest < file->piece_bytes ? (size_t)rest : file->piece_bytes;
	got = part_pread(f, buffer, *bytes, offset);
	part_path(path, dir, file->name);
	if (got < 0)
		return err_sys(e, errno, "%s: reading %zu bytes at offset %" PRIu64 " (%.128s): %s",
			       path, *bytes, offset, part_name_at(h, offset), strerror(errno));
	if ((size_t)got < *bytes)
		return err_set(e, SHARD_PROTOCOL,
			       "%s: ends at offset %" PRIu64 ", the manifest says %" PRIu64
			       ": it is damaged",
			       path, offset + (uint64_t)got, file->bytes);
	sum = xxh_sum(buffer, *bytes, 0);
	if (sum != file->sums[i])
		return err_set(e, SHARD_PROTOCOL,
			       "%s: damaged: the %zu bytes at offset %" PRIu64
			       " (%.128s) have the sum %016" PRIx64
			       ", the manifest says %016" PRIx64,
			       path, *bytes, offset, part_name_at(h, offset), sum, file->sums[i]);
	return SHARD_OK;
}

/* Reads the header, whose pieces must equal their sums, and parses its entries. */
static enum shard_status read_header(struct safetensors **h, const char *dir,
				     const struct part_file *file, void *piece, struct err *e)
{
	struct part_fd f = {.fd = -1};
	enum shard_status st = part_open_file(&f, dir, file, e);
	char path[PART_PATH_BYTES], *text = NULL;
	uint64_t n = 0;
	size_t bytes = 0;

	part_path(path, dir, file->name);
	if (st == SHARD_OK && !(text = malloc(file->header_bytes)))
		st = part_no_memory(e, "a checkpoint's header");
	for (uint64_t at = 0; st == SHARD_OK && at < file->header_bytes; at += bytes) {
		st = part_read_piece(&f, dir, file, at / file->piece_bytes, piece, &bytes, NULL, e);
		if (st == SHARD_OK)
			memcpy(text + at, piece,
			       bytes < file->header_bytes - at ? bytes : file->header_bytes - at);
	}
	part_close(&f);
	if (st == SHARD_OK)
		st = safetensors_header_bytes((const uint8_t *)text, file->bytes, path, &n, e);
	if (st == SHARD_OK && n + 8 != file->header_bytes)
		st = err_set(e, SHARD_PROTOCOL,
			     "%s: its header has %" PRIu64 " bytes, the manifest says %" PRIu64,
			     path, n + 8, file->header_bytes);
	if (st == SHARD_OK)
		st = safetensors_parse(h, text + 8, (size_t)n, file->bytes, path, e);
	free(text);
	return st;
}

/* --- names --- */

static bool take_number(const char **p, char end, uint64_t *n)
{
	const char *begin = *p;

	for (*n = 0; **p >= '0' && **p <= '9'; (*p)++)
		if (__builtin_mul_overflow(*n, 10u, n) ||
		    __builtin_add_overflow(*n, (uint64_t)(**p - '0'), n))
			return false;
	return *p > begin && *(*p)++ == end;
}

/* Parses "master/h.0.attn.weight[0:1048576]". The name of a blob is not valid here. */
static bool take_name(struct part_span *s, const struct safetensors_entry *x)
{
	const char *slash = strchr(x->name, '/'), *at = strrchr(x->name, '[');

	if (!slash || !at || at <= slash + 1 || x->dtype != SHARD_F32)
		return false;
	for (int k = SHARD_MASTER; k <= SHARD_MOMENTUM; k++) {
		const char *name = part_kind_name((enum shard_kind)k);

		if (strlen(name) == (size_t)(slash - x->name) &&
		    memcmp(name, x->name, (size_t)(slash - x->name)) == 0)
			s->kind = (enum shard_kind)k;
	}
	s->tensor = slash + 1;
	s->tensor_len = (uint32_t)(at - s->tensor);
	s->offset = x->offset;
	at++;
	return s->kind != 0 && take_number(&at, ':', &s->first) && take_number(&at, ']', &s->end) &&
	       *at == 0 && s->end > s->first && (s->end - s->first) == x->bytes / 4;
}

static int compare_tensor(enum shard_kind kind, const char *tensor, size_t len,
			  const struct part_span *s)
{
	size_t shorter = len < s->tensor_len ? len : s->tensor_len;
	int c;

	if (kind != s->kind)
		return kind < s->kind ? -1 : 1;
	c = memcmp(tensor, s->tensor, shorter);
	return c ? c : len < s->tensor_len ? -1 : len > s->tensor_len;
}

static int by_place(const void *a, const void *b)
{
	const struct part_span *x = a, *y = b;
	int c = compare_tensor(x->kind, x->tensor, x->tensor_len, y);

	return c ? c : x->first < y->first ? -1 : x->first > y->first;
}

static enum shard_status take_spans(struct part_index *x, struct err *e)
{
	uint64_t nr = 0;

	for (uint32_t f = 0; f < x->files_nr; f++)
		nr += x->header[f]->entries_nr;
	if (!(x->span = calloc(nr + 1, sizeof(*x->span))))
		return part_no_memory(e, "a checkpoint's index");
	for (uint32_t f = 0; f < x->files_nr; f++) {
		for (uint32_t i = 0; i < x->header[f]->entries_nr; i++) {
			const struct safetensors_entry *n = &x->header[f]->entry[i];
			struct part_span *s = &x->span[x->spans_nr];

			if (strncmp(n->name, "blob/", 5) == 0)
				continue;
			*s = (struct part_span){.file = f};
			if (!take_name(s, n))
				return err_set(
					e, SHARD_PROTOCOL,
					"%s/%.79s: holds %.128s, which is no part of a checkpoint",
					x->dir, x->files[f].name, n->name);
			x->spans_nr++;
		}
	}
	qsort(x->span, x->spans_nr, sizeof(*x->span), by_place);
	for (uint64_t i = 1; i < x->spans_nr; i++) {
		const struct part_span *a = &x->span[i - 1], *b = &x->span[i];

		if (compare_tensor(a->kind, a->tensor, a->tensor_len, b) == 0 && b->first < a->end)
			return err_set(e, SHARD_PROTOCOL,
				       "%s: %.79s and %.79s both hold %s/%.*s[%" PRIu64 "]", x->dir,
				       x->files[a->file].name, x->files[b->file].name,
				       part_kind_name(b->kind),
				       (int)(b->tensor_len < 128 ? b->tensor_len : 128), b->tensor,
				       b->first);
	}
	return SHARD_OK;
}

enum shard_status part_index_open(struct part_index *x, const char *dir,
				  const struct part_file *files, uint32_t files_nr, struct err *e)
{
	void *piece = aligned_alloc(PART_ALIGN, PART_PIECE_BYTES);
	enum shard_status st = SHARD_OK;

	*x = (struct part_index){.dir = dir, .files = files, .files_nr = files_nr};
	x->header = calloc((size_t)files_nr + 1, sizeof(*x->header));
	if (!piece || !x->header)
		st = part_no_memory(e, "a checkpoint's index");
	for (uint32_t i = 0; st == SHARD_OK && i < files_nr; i++)
		st = read_header(&x->header[i], dir, &files[i], piece, e);
	free(piece);
	if (st == SHARD_OK)
		st = take_spans(x, e);
	if (st != SHARD_OK) {
		int error = errno;

		part_index_close(x);
		errno = error;
	}
	return st;
}

void part_index_close(struct part_index *x)
{
	for (uint32_t i = 0; x->header && i < x->files_nr; i++)
		safetensors_free(&x->header[i]);
	free(x->header);
	free(x->span);
	*x = (struct part_index){.files_nr = 0};
}

const struct part_span *part_index_find(const struct part_index *x, enum shard_kind kind,
					const char *tensor, uint64_t at)
{
	/* low becomes the index of the first span that ends after (tensor, at). */
	uint64_t low = 0, high = x->spans_nr;
	size_t len = strlen(tensor);

	while (low < high) {
		uint64_t middle = low + (high - low) / 2;
		int c = compare_tensor(kind, tensor, len, &x->span[middle]);

		if (c > 0 || (c == 0 && x->span[middle].end <= at))
			low = middle + 1;
		else
			high = middle;
	}
	return low < x->spans_nr && compare_tensor(kind, tensor, len, &x->span[low]) == 0
		       ? &x->span[low]
		       : NULL;
}
