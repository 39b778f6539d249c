/* SPDX-License-Identifier: Apache-2.0 */
/* Writes one node's file of a checkpoint. Happy path: runs become entries → header → the file
 * is a list of sources (header, runs, blobs), cut into pieces of PART_PIECE_BYTES → any free
 * thread sums and writes a piece → the file is cut to its length and synced. A piece that lies in
 * one run is written from there, and others are gathered first. A piece that an earlier file has at
 * the same place is shared with it where the file system can do that. It fails with what the file
 * system says (path, offset, tensor, reason), or when it is cancelled. The file is then removed. */
#include "ckpt/part_impl.h"

#include "base/check.h"
#include "wire/xxh.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct source {
	uint64_t offset, bytes; /* In the file. */
	const void *data;       /* NULL: the memory of the run brings it. */
	const struct part_run *run;
};

struct writer {
	struct part_fd fd;
	char path[PART_PATH_BYTES];
	struct safetensors_entry *entry;
	char *names;
	struct source *source;
	uint32_t entries_nr, sources_nr;
	void *header;
	uint64_t header_bytes, bytes;
	uint64_t *sums;
	struct turn *order;   /* [pieces] */
	struct part_fd older; /* The earlier file, which has older_is. -1: there is none. */
	const struct part_file *older_is;
	_Atomic bool refused; /* The file system does not share. */
	_Atomic uint64_t shared_bytes;
};

struct turn { /* When a piece is written. */
	uint32_t turn, piece;
};

static const char *const metadata[][2] = {{"format", "shardd part 1"}};

const char *part_kind_name(enum shard_kind kind)
{
	switch (kind) {
	case SHARD_MASTER:
		return "master";
	case SHARD_EXP_AVG:
		return "exp_avg";
	case SHARD_EXP_AVG_SQ:
		return "exp_avg_sq";
	case SHARD_MOMENTUM:
		return "momentum";
	case SHARD_IMAGE:
	case SHARD_GRAD:
		break;
	}
	return "?";
}

static bool follows(const struct part_run *a, const struct part_run *b)
{
	return a->kind == b->kind && a->first + a->count == b->first &&
	       strcmp(a->tensor, b->tensor) == 0;
}

/* Makes names and entries of runs, then of blobs. */
static enum shard_status make_entries(struct writer *w, const struct part_run *runs,
				      uint32_t runs_nr, const struct part_blob *blobs,
				      uint32_t blobs_nr, struct err *e)
{
	size_t room = (size_t)blobs_nr * 64 + 1;
	char *at;

	for (uint32_t i = 0; i < runs_nr; i++)
		room += strlen(runs[i].tensor) + 64;
	w->entry = calloc((size_t)runs_nr + blobs_nr + 1, sizeof(*w->entry));
	w->names = at = malloc(room);
	if (!w->entry || !at)
		return part_no_memory(e, "a checkpoint's list of tensors");
	for (uint32_t i = 0, n; i < runs_nr; i += n) {
		struct safetensors_entry *x = &w->entry[w->entries_nr++];
		uint64_t end = runs[i].first + runs[i].count;

		for (n = 1; i + n < runs_nr && follows(&runs[i + n - 1], &runs[i + n]); n++)
			end += runs[i + n].count;
		*x = (struct safetensors_entry){
			.name = at, .dtype = SHARD_F32, .dtype_name = "F32", .ndim = 1};
		x->shape[0] = end - runs[i].first;
		x->bytes = x->shape[0] * 4;
		at += sprintf(at, "%s/%s[%" PRIu64 ":%" PRIu64 "]", part_kind_name(runs[i].kind),
			      runs[i].tensor, runs[i].first, end) +
		      1;
	}
	for (uint32_t i = 0; i < blobs_nr; i++) {
		struct safetensors_entry *x = &w->entry[w->entries_nr++];

		*x = (struct safetensors_entry){
			.name = at, .dtype_name = "U8", .ndim = 1, .shape = {blobs[i].bytes}};
		x->bytes = blobs[i].bytes;
		at += sprintf(at, "blob/%u[%" PRIu64 "]", blobs[i].rank, blobs[i].step) + 1;
	}
	return SHARD_OK;
}

/* Data that follow the last source in memory as they do in the file extend that source. */
static void add_source(struct writer *w, const void *data, uint64_t bytes,
		       const struct part_run *run)
{
	struct source *last = w->sources_nr > 0 ? &w->source[w->sources_nr - 1] : NULL;

	if (data && last && last->data && (const char *)last->data + last->bytes == data)
		last->bytes += bytes;
	else if (bytes > 0)
		w->source[w->sources_nr++] = (struct source){w->bytes, bytes, data, run};
	w->bytes += bytes;
}

static enum shard_status lay_out(struct writer *w, const struct part_run *runs, uint32_t runs_nr,
				 struct part_blob *blobs, uint32_t blobs_nr, struct err *e)
{
	enum shard_status st = make_entries(w, runs, runs_nr, blobs, blobs_nr, e);
	size_t bytes = 0;

	if (st == SHARD_OK)
		st = safetensors_make(&w->header, &bytes, w->entry, w->entries_nr, metadata, 1, e);
	if (st != SHARD_OK)
		return st;
	w->header_bytes = bytes;
	w->source = calloc((size_t)runs_nr + blobs_nr + 1, sizeof(*w->source));
	if (!w->source)
		return part_no_memory(e, "a checkpoint's list of tensors");
	add_source(w, w->header, bytes, NULL);
	for (uint32_t i = 0; i < runs_nr; i++)
		add_source(w, runs[i].at, runs[i].count * 4, &runs[i]);
	for (uint32_t i = 0; i < blobs_nr; i++) {
		blobs[i].offset = w->bytes;
		add_source(w, blobs[i].data, blobs[i].bytes, NULL);
	}
	return SHARD_OK;
}

static void writer_free(struct writer *w)
{
	int error = errno;

	part_close(&w->fd);
	part_close(&w->older);
	free(w->entry);
	free(w->names);
	free(w->source);
	free(w->header);
	free(w->sums);
	free(w->order);
	errno = error;
}

uint64_t part_bytes(const struct part_run *runs, uint32_t runs_nr, const struct part_blob *blobs,
		    uint32_t blobs_nr)
{
	struct writer w = {.fd.fd = -1, .older.fd = -1};
	void *header = NULL;
	size_t header_bytes = 0;
	uint64_t bytes = 0;

	if (make_entries(&w, runs, runs_nr, blobs, blobs_nr, NULL) == SHARD_OK)
		(void)safetensors_make(&header, &header_bytes, w.entry, w.entries_nr, metadata, 1,
				       NULL);
	bytes = header_bytes;
	for (uint32_t i = 0; i < w.entries_nr; i++)
		bytes += w.entry[i].bytes;
	free(header);
	writer_free(&w);
	return bytes;
}

/* --- pieces --- */

static const char *name_at(const struct writer *w, uint64_t offset)
{
	uint32_t low = 0, high = w->entries_nr;

	if (offset < w->header_bytes || w->entries_nr == 0)
		return "the header";
	while (high - low > 1) {
		uint32_t middle = low + (high - low) / 2;

		if (w->entry[middle].offset <= offset)
			low = middle;
		else
			high = middle;
	}
	return w->entry[low].name;
}

/* The last source that begins at or before offset. */
static uint32_t source_at(const struct writer *w, uint64_t offset)
{
	uint32_t low = 0, high = w->sources_nr;

	while (high - low > 1) {
		uint32_t middle = low + (high - low) / 2;

		if (w->source[middle].offset <= offset)
			low = middle;
		else
			high = middle;
	}
	return low;
}

/* Returns where these bytes lie if they can be written from there. NULL: they must be gathered. */
static const void *in_place(const struct writer *w, uint64_t offset, size_t bytes)
{
	const struct source *s = &w->source[source_at(w, offset)];
	bool whole = offset - s->offset + bytes <= s->bytes && bytes % PART_ALIGN == 0;
	const char *at;

	if (!s->data)
		return NULL;
	at = (const char *)s->data + (offset - s->offset);
	return whole && (uintptr_t)at % PART_ALIGN == 0 ? at : NULL;
}

struct copy {
	char *to;
	uint64_t skip;
	size_t bytes;
};

static void copy_out(void *ctx, float *at)
{
	const struct copy *c = ctx;

	memcpy(c->to, (const char *)at + c->skip, c->bytes);
}

static void gather(const struct writer *w, char *to, uint64_t offset, size_t bytes)
{
	uint32_t low = source_at(w, offset);

	for (size_t done = 0; done < bytes; low++) {
		const struct source *s = &w->source[low];
		uint64_t skip = offset + done - s->offset;
		size_t n =
			s->bytes - skip < bytes - done ? (size_t)(s->bytes - skip) : bytes - done;

		CHECK(low < w->sources_nr && skip < s->bytes);
		if (s->data)
			memcpy(to + done, (const char *)s->data + skip, n);
		else
			s->run->memory->use(s->run->memory->arg, s->run, skip, n, false, copy_out,
					    &(struct copy){to + done, skip, n});
		done += n;
	}
}

/* The least turn of the runs that have a part of it. */
static uint32_t turn_of(const struct writer *w, uint64_t offset, uint64_t bytes)
{
	uint32_t turn = UINT32_MAX;

	for (uint32_t i = source_at(w, offset);
	     i < w->sources_nr && w->source[i].offset < offset + bytes; i++)
		if (w->source[i].run && w->source[i].run->turn < turn)
			turn = w->source[i].run->turn;
	return turn;
}

static int by_turn(const void *x, const void *y)
{
	const struct turn *a = x, *b = y;

	if (a->turn != b->turn)
		return a->turn < b->turn ? -1 : 1;
	return a->piece < b->piece ? -1 : a->piece > b->piece;
}

static void put_in_order(struct writer *w, uint32_t pieces)
{
	for (uint32_t i = 0; i < pieces; i++)
		w->order[i] = (struct turn){
			turn_of(w, (uint64_t)i * PART_PIECE_BYTES, PART_PIECE_BYTES), i};
	qsort(w->order, pieces, sizeof(*w->order), by_turn);
}

/* Would the earlier file have had this piece, of the same length? */
static bool older_has(const struct writer *w, uint64_t i, size_t bytes)
{
	const struct part_file *f = w->older_is;
	uint64_t offset = i * PART_PIECE_BYTES;

	if (w->older.fd < 0 || i >= f->sums_nr || f->sums[i] != w->sums[i])
		return false;
	return bytes == PART_PIECE_BYTES ? f->bytes - offset >= bytes : f->bytes - offset == bytes;
}

/* True: the new file has these bytes, and they did not have to be written. The sum of the manifest
 * only says where it is worth asking. What the new file has then is read back and compared with the
 * weights, since the earlier file may have been damaged or changed after it was written. */
static bool share_piece(struct writer *w, uint64_t i, const void *from, size_t bytes, void *again)
{
	uint64_t offset = i * PART_PIECE_BYTES;

	if (!older_has(w, i, bytes) || w->refused)
		return false;
	if (!part_share(&w->fd, &w->older, offset, bytes)) {
		w->refused = true;
		return false;
	}
	return part_pread(&w->fd, again, bytes, offset) == (ssize_t)bytes &&
	       memcmp(again, from, bytes) == 0;
}

static enum shard_status write_piece(struct part_job *j, uint64_t at, void *buffer, uint64_t *done,
				     struct err *e)
{
	struct writer *w = j->owner;
	uint64_t i = w->order[at].piece;
	uint64_t offset = i * PART_PIECE_BYTES;
	size_t bytes = w->bytes - offset < PART_PIECE_BYTES ? (size_t)(w->bytes - offset)
							    : PART_PIECE_BYTES;
	size_t pad = (PART_ALIGN - bytes % PART_ALIGN) % PART_ALIGN;
	const void *from = in_place(w, offset, bytes);

	if (!from) {
		gather(w, buffer, offset, bytes);
		memset((char *)buffer + bytes, 0, pad);
		from = buffer;
	}
	w->sums[i] = xxh_sum(from, bytes, 0);
	*done = bytes;
	if (share_piece(w, i, from, bytes, (char *)buffer + PART_PIECE_BYTES)) {
		w->shared_bytes += bytes;
		if (j->progress)
			j->progress->shared_bytes += bytes;
		return SHARD_OK;
	}
	if (part_pwrite(&w->fd, from, bytes, offset) < 0)
		return err_sys(
			e, errno, "%s: writing %zu bytes at offset %" PRIu64 " (%.128s): %s%s",
			w->path, bytes, offset, name_at(w, offset), strerror(errno),
			errno == ENOSPC || errno == EDQUOT ? ": make room, or choose another folder"
							   : "");
	return SHARD_OK;
}

/* Tries it with the first piece, which is written or shared later. */
static bool shares(struct writer *w)
{
	uint64_t bytes;

	if (w->older.fd < 0)
		return false;
	bytes = w->older_is->bytes < PART_PIECE_BYTES ? w->older_is->bytes : PART_PIECE_BYTES;
	w->refused = !part_share(&w->fd, &w->older, 0, bytes);
	return !w->refused;
}

static enum shard_status open_for(struct writer *w, struct err *e)
{
	enum shard_status st;

	if (unlink(w->path) != 0 && errno != ENOENT)
		return err_sys(e, errno, "%s: an older file cannot be removed: %s", w->path,
			       strerror(errno));
	if ((st = part_open(&w->fd, w->path, O_RDWR | O_CREAT | O_EXCL, e)) != SHARD_OK)
		return st;
	/* Where the file system can reserve space, a full disk shows at once. No bytes are written
	 * for that. Nothing is reserved where the file system shares: less may be needed, and Btrfs
	 * keeps all that was reserved as long as any of it is used. */
	if (!shares(w) && fallocate(w->fd.fd, 0, 0, (off_t)w->bytes) != 0 &&
	    (errno == ENOSPC || errno == EDQUOT || errno == EFBIG))
		return err_sys(e, errno,
			       "%s: %" PRIu64
			       " bytes are needed: %s: make room, or choose another folder",
			       w->path, w->bytes, strerror(errno));
	return SHARD_OK;
}

/* Without it all is written, so it need not be there. */
static void open_older(struct writer *w, const struct part_older *older)
{
	if (older == NULL || older->file->piece_bytes != PART_PIECE_BYTES ||
	    part_open_file(&w->older, older->dir, older->file, NULL) != SHARD_OK)
		return;
	w->older_is = older->file;
}

static enum shard_status write_all(struct writer *w, uint32_t pieces, struct part_progress *p,
				   struct err *e)
{
	struct part_job j = {.nr = pieces,
			     .twice = w->older.fd >= 0,
			     .progress = p,
			     .item = write_piece,
			     .owner = w};
	enum shard_status st = open_for(w, e);
	int fd = w->fd.fd;

	if (st == SHARD_OK)
		st = part_run(&j, e);
	if (st != SHARD_OK)
		return st;
	if (ftruncate(fd, (off_t)w->bytes) != 0 || fsync(fd) != 0)
		return err_sys(e, errno, "%s: its %" PRIu64 " bytes did not reach the disk: %s",
			       w->path, w->bytes, strerror(errno));
	w->fd.fd = -1;
	if (close(fd) != 0)
		return err_sys(e, errno, "%s: closing it: %s", w->path, strerror(errno));
	return SHARD_OK;
}

enum shard_status part_write(const char *dir, const char *name, const struct part_run *runs,
			     uint32_t runs_nr, struct part_blob *blobs, uint32_t blobs_nr,
			     const struct part_older *older, struct part_file *out,
			     struct part_progress *p, struct err *e)
{
	struct writer w = {.fd.fd = -1, .older.fd = -1};
	enum shard_status st = lay_out(&w, runs, runs_nr, blobs, blobs_nr, e);
	uint32_t pieces;

	CHECK(strlen(name) < sizeof(out->name));
	*out = (struct part_file){.piece_bytes = PART_PIECE_BYTES};
	if (st != SHARD_OK)
		goto end;
	part_path(w.path, dir, name);
	pieces = (uint32_t)((w.bytes + PART_PIECE_BYTES - 1) / PART_PIECE_BYTES);
	st = SHARD_SYSTEM;
	w.sums = calloc(pieces, sizeof(*w.sums));
	w.order = calloc(pieces, sizeof(*w.order));
	if (!w.sums || !w.order) {
		part_no_memory(e, "a checkpoint's sums");
		goto end;
	}
	put_in_order(&w, pieces);
	open_older(&w, older);
	st = write_all(&w, pieces, p, e);
	if (st != SHARD_OK) {
		int error = errno;

		(void)unlink(w.path);
		errno = error;
		goto end;
	}
	strcpy(out->name, name);
	out->bytes = w.bytes;
	out->header_bytes = w.header_bytes;
	out->sums = w.sums;
	out->sums_nr = pieces;
	out->shared_bytes = w.shared_bytes;
	w.sums = NULL;
end:
	writer_free(&w);
	return st;
}

void part_file_free(struct part_file *f)
{
	free(f->sums);
	*f = (struct part_file){.bytes = 0};
}
