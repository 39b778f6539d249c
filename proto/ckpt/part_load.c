/* SPDX-License-Identifier: Apache-2.0 */
/* Fills memory from the files of a checkpoint, and compares files with their sums. Happy path: the
 * index of all files is made → each run becomes wants (file, offset, bytes, destination) → the
 * sorted wants become a list of pieces → any free thread reads, compares and copies a piece. It
 * fails where no file has certain elements (tensor and range) or where a piece differs (path,
 * offset, tensor). It also ends when it is cancelled. */
#include "ckpt/part_impl.h"

#include "base/check.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct want {
	uint32_t file;
	uint64_t offset, bytes;
	const struct part_run *run; /* Where it goes, from byte .at of it on. */
	uint64_t at;
};

struct copy {
	uint64_t at, bytes;
	const void *from; /* NULL: zeros. */
};

static void copy_in(void *ctx, float *to)
{
	const struct copy *c = ctx;

	if (c->from)
		memcpy((char *)to + c->at, c->from, c->bytes);
	else
		memset((char *)to + c->at, 0, c->bytes);
}

static void put(const struct part_run *r, uint64_t at, uint64_t bytes, const void *from)
{
	struct copy c = {at, bytes, from};

	if (r->at)
		copy_in(&c, r->at);
	else
		r->memory->use(r->memory->arg, r, at, bytes, true, copy_in, &c);
}

struct task {
	uint32_t file;
	uint64_t piece, want; /* want: the first one that may lie in this piece. */
};

struct loader {
	struct part_index index;
	struct part_fd *fd; /* Of each file that is read. */
	struct want *want;
	struct task *task;
	uint64_t wants_nr, wants_room, tasks_nr;
};

static enum shard_status add_want(struct loader *l, const struct part_span *s, uint64_t first,
				  uint64_t count, const struct part_run *r, struct err *e)
{
	if (l->wants_nr == l->wants_room) {
		uint64_t room = l->wants_room ? l->wants_room * 2 : 256;
		struct want *more = realloc(l->want, room * sizeof(*more));

		if (!more)
			return part_no_memory(e, "the list of what is read from a checkpoint");
		l->want = more;
		l->wants_room = room;
	}
	l->want[l->wants_nr++] = (struct want){s->file, s->offset + (first - s->first) * 4,
					       count * 4, r, (first - r->first) * 4};
	return SHARD_OK;
}

static enum shard_status want_run(struct loader *l, const struct part_run *r, bool may_lack,
				  struct err *e)
{
	uint64_t at = r->first, end = r->first + r->count;
	enum shard_status st = SHARD_OK;

	while (st == SHARD_OK && at < end) {
		const struct part_span *s = part_index_find(&l->index, r->kind, r->tensor, at);
		uint64_t have = s ? s->first : end; /* No file has the elements before it. */
		uint64_t n;

		have = have < end ? have : end;
		if (have > at) {
			if (!may_lack || r->kind == SHARD_MASTER)
				return err_set(e, SHARD_NOT_FOUND,
					       "%s: no file has %s/%.128s[%" PRIu64 ":%" PRIu64 "]",
					       l->index.dir, part_kind_name(r->kind), r->tensor, at,
					       have);
			put(r, (at - r->first) * 4, (have - at) * 4, NULL);
			at = have;
			continue;
		}
		n = (s->end < end ? s->end : end) - at;
		st = add_want(l, s, at, n, r, e);
		at += n;
	}
	return st;
}

static int by_offset(const void *a, const void *b)
{
	const struct want *x = a, *y = b;

	if (x->file != y->file)
		return x->file < y->file ? -1 : 1;
	return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Makes the list of pieces that hold something wanted, in order. */
static enum shard_status make_tasks(struct loader *l, struct err *e)
{
	uint64_t pieces = 0, low = 0;

	for (uint32_t f = 0; f < l->index.files_nr; f++)
		pieces += l->index.files[f].sums_nr;
	if (!(l->task = calloc(pieces + 1, sizeof(*l->task))))
		return part_no_memory(e, "the list of what is read from a checkpoint");
	if (l->wants_nr > 0)
		qsort(l->want, l->wants_nr, sizeof(*l->want), by_offset);
	for (uint64_t i = 0; i < l->wants_nr; i++) {
		const struct want *w = &l->want[i];
		uint64_t size = l->index.files[w->file].piece_bytes,
			 last = (w->offset + w->bytes - 1) / size;
		const struct task *before = l->tasks_nr ? &l->task[l->tasks_nr - 1] : NULL;
		uint64_t piece = w->offset / size;

		if (before && before->file == w->file && before->piece >= piece)
			piece = before->piece + 1;
		for (; piece <= last; piece++) {
			while (l->want[low].file < w->file ||
			       l->want[low].offset + l->want[low].bytes <= piece * size)
				low++;
			CHECK(l->tasks_nr < pieces && low <= i);
			l->task[l->tasks_nr++] = (struct task){w->file, piece, low};
		}
	}
	return SHARD_OK;
}

static enum shard_status all_tasks(struct loader *l, struct err *e)
{
	uint64_t pieces = 0;

	for (uint32_t f = 0; f < l->index.files_nr; f++)
		pieces += l->index.files[f].sums_nr;
	if (!(l->task = calloc(pieces + 1, sizeof(*l->task))))
		return part_no_memory(e, "the list of what is read from a checkpoint");
	for (uint32_t f = 0; f < l->index.files_nr; f++)
		for (uint64_t p = 0; p < l->index.files[f].sums_nr; p++)
			l->task[l->tasks_nr++] = (struct task){f, p, 0};
	return SHARD_OK;
}

static void loader_free(struct loader *l)
{
	int error = errno;

	for (uint32_t f = 0; l->fd && f < l->index.files_nr; f++)
		part_close(&l->fd[f]);
	free(l->fd);
	free(l->want);
	free(l->task);
	part_index_close(&l->index);
	errno = error;
}

static enum shard_status loader_init(struct loader *l, const char *dir,
				     const struct part_file *files, uint32_t files_nr,
				     const struct part_run *runs, uint32_t runs_nr, bool may_lack,
				     struct err *e)
{
	enum shard_status st;

	*l = (struct loader){.fd = NULL};
	if ((st = part_index_open(&l->index, dir, files, files_nr, e)) != SHARD_OK)
		return st;
	for (uint32_t i = 0; st == SHARD_OK && i < runs_nr; i++)
		st = want_run(l, &runs[i], may_lack, e);
	if (st == SHARD_OK)
		st = make_tasks(l, e);
	if (st != SHARD_OK)
		loader_free(l);
	return st;
}

static enum shard_status read_task(struct part_job *j, uint64_t i, void *buffer, uint64_t *done,
				   struct err *e)
{
	struct loader *l = j->owner;
	const struct task *t = &l->task[i];
	const struct part_file *file = &l->index.files[t->file];
	uint64_t begin = t->piece * file->piece_bytes, end;
	size_t bytes = 0;
	enum shard_status st;

	st = part_read_piece(&l->fd[t->file], l->index.dir, file, t->piece, buffer, &bytes,
			     l->index.header[t->file], e);
	if (st != SHARD_OK)
		return st;
	end = begin + bytes;
	for (uint64_t k = t->want;
	     k < l->wants_nr && l->want[k].file == t->file && l->want[k].offset < end; k++) {
		const struct want *w = &l->want[k];
		uint64_t from = w->offset > begin ? w->offset : begin;
		uint64_t to = w->offset + w->bytes < end ? w->offset + w->bytes : end;

		if (from < to)
			put(w->run, w->at + (from - w->offset), to - from,
			    (char *)buffer + (from - begin));
	}
	*done = bytes;
	return SHARD_OK;
}

static enum shard_status read_tasks(struct loader *l, struct part_progress *p, struct err *e)
{
	struct part_job j = {.nr = l->tasks_nr, .progress = p, .item = read_task, .owner = l};
	enum shard_status st = SHARD_OK;

	if (!(l->fd = malloc(((size_t)l->index.files_nr + 1) * sizeof(*l->fd))))
		return part_no_memory(e, "a checkpoint's files");
	for (uint32_t f = 0; f < l->index.files_nr; f++)
		l->fd[f].fd = -1;
	for (uint64_t i = 0; st == SHARD_OK && i < l->tasks_nr; i++)
		if (l->fd[l->task[i].file].fd < 0)
			st = part_open_file(&l->fd[l->task[i].file], l->index.dir,
					    &l->index.files[l->task[i].file], e);
	return st == SHARD_OK ? part_run(&j, e) : st;
}

enum shard_status part_load(const char *dir, const struct part_file *files, uint32_t files_nr,
			    const struct part_run *runs, uint32_t runs_nr, bool moments_may_lack,
			    struct part_progress *p, struct err *e)
{
	struct loader l;
	enum shard_status st =
		loader_init(&l, dir, files, files_nr, runs, runs_nr, moments_may_lack, e);

	if (st != SHARD_OK)
		return st;
	st = read_tasks(&l, p, e);
	loader_free(&l);
	return st;
}

enum shard_status part_load_bytes(const char *dir, const struct part_file *files, uint32_t files_nr,
				  const struct part_run *runs, uint32_t runs_nr, uint64_t *bytes,
				  struct err *e)
{
	struct loader l;
	enum shard_status st = loader_init(&l, dir, files, files_nr, NULL, 0, true, e);

	if (st != SHARD_OK)
		return st;
	free(l.task); /* The list is made again with the runs, whose memory is not written. */
	l.task = NULL;
	for (uint32_t i = 0; st == SHARD_OK && i < runs_nr; i++) {
		uint64_t at = runs[i].first, end = at + runs[i].count;

		while (st == SHARD_OK && at < end) {
			const struct part_span *s =
				part_index_find(&l.index, runs[i].kind, runs[i].tensor, at);
			uint64_t first = s ? s->first > at ? s->first : at : end,
				 next = s && s->end < end ? s->end : end;

			if (first < next)
				st = add_want(&l, s, first, next - first, &runs[i], e);
			at = next;
		}
	}
	if (st == SHARD_OK)
		st = make_tasks(&l, e);
	*bytes = 0;
	for (uint64_t i = 0; st == SHARD_OK && i < l.tasks_nr; i++) {
		const struct part_file *f = &files[l.task[i].file];
		uint64_t rest = f->bytes - l.task[i].piece * f->piece_bytes;

		*bytes += rest < f->piece_bytes ? rest : f->piece_bytes;
	}
	loader_free(&l);
	return st;
}

enum shard_status part_verify(const char *dir, const struct part_file *files, uint32_t files_nr,
			      struct part_progress *p, struct err *e)
{
	struct loader l = {.fd = NULL};
	enum shard_status st = part_index_open(&l.index, dir, files, files_nr, e);

	if (st != SHARD_OK)
		return st;
	st = all_tasks(&l, e);
	if (st == SHARD_OK)
		st = read_tasks(&l, p, e);
	loader_free(&l);
	return st;
}
