/* SPDX-License-Identifier: Apache-2.0 */
/* One checkpoint's way into a folder. Happy path: begin → DIR/.TAG.tmp → the nodes write their parts → finish: lengths,
 * manifest, sync of the folder, exchange with DIR/TAG, sync of DIR, `latest`, and what was there before is removed. A crash at
 * any moment leaves the older complete checkpoint or the newer one under DIR/TAG, and at most a DIR/.TAG.tmp that the next
 * begin, or pruning, removes. Fails with what the file system says; what was there stays. */
#include "ckpt/checkpoint.h"
#include "ckpt/folder_impl.h"
#include "ckpt/part_impl.h"

#include "base/check.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

bool checkpoint_tag_ok(const char *tag)
{
	size_t n = strlen(tag);

	return n >= 1 && n <= CHECKPOINT_TAG_MAX && tag[0] != '.' && strcmp(tag, "latest") != 0 &&
	       strspn(tag, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") == n;
}

void checkpoint_tag(char tag[CHECKPOINT_TAG_MAX + 1], uint64_t step)
{
	snprintf(tag, CHECKPOINT_TAG_MAX + 1, "global_step%" PRIu64, step);
}

enum shard_status checkpoint_path(char path[CHECKPOINT_PATH_MAX], const char *dir, const char *tag, struct err *e)
{
	if (!checkpoint_tag_ok(tag))
		return err_set(e, SHARD_BAD_ARG, "tag \"%.64s\": 1 to %d of [A-Za-z0-9._-], not starting with a dot, not `latest`",
			       tag, CHECKPOINT_TAG_MAX);
	if (dir[0] == 0 || strlen(dir) + CHECKPOINT_TAG_MAX + 16 >= CHECKPOINT_PATH_MAX)
		return err_set(e, SHARD_BAD_ARG, "a folder of checkpoints has 1 to %d characters",
			       CHECKPOINT_PATH_MAX - CHECKPOINT_TAG_MAX - 17);
	snprintf(path, CHECKPOINT_PATH_MAX, "%s/%s", dir, tag);
	return SHARD_OK;
}

/* May DIR/TAG be replaced by a checkpoint of `model`? One that cannot be read any more may. */
static enum shard_status may_replace(const char *path, const char *model, struct err *e)
{
	struct manifest *m;
	struct stat s;
	struct err why = {.text = ""};
	enum shard_status st;
	char name[65];

	if (lstat(path, &s) != 0)
		return errno == ENOENT ? SHARD_OK : err_sys(e, errno, "%s: %s", path, strerror(errno));
	st = S_ISDIR(s.st_mode) ? manifest_read(path, &m, &why) : SHARD_NOT_FOUND;
	if (st == SHARD_PROTOCOL)
		return SHARD_OK;
	if (st == SHARD_NOT_FOUND)
		return err_set(e, SHARD_EXISTS, "%s: is there and is no checkpoint: choose another tag or folder, or remove it",
			       path);
	if (st != SHARD_OK)
		return err_wrap(e, &why, "%s", why.text);
	memcpy(name, m->name, sizeof(name));
	manifest_free(&m);
	if (strcmp(name, model) != 0)
		return err_set(e, SHARD_EXISTS, "%s: is a checkpoint of model \"%s\", not of \"%s\": choose another tag or folder",
			       path, name, model);
	return SHARD_OK;
}

enum shard_status checkpoint_begin(char path[CHECKPOINT_PATH_MAX], const char *dir, const char *tag, const char *model,
				   struct err *e)
{
	char final[CHECKPOINT_PATH_MAX], owner[CHECKPOINT_PATH_MAX + 16], draft[CHECKPOINT_PATH_MAX + 16], whose[65];
	enum shard_status st = checkpoint_path(final, dir, tag, e);

	if (st == SHARD_OK)
		st = folder_make(dir, e);
	if (st == SHARD_OK)
		st = may_replace(final, model, e);
	if (st != SHARD_OK)
		return st;
	folder_temporary(path, dir, tag);
	if (folder_owner(path, whose) && strcmp(whose, model) != 0)
		return err_set(e, SHARD_EXISTS,
			       "%s: model \"%s\" writes there, or died writing: choose another folder, or remove it", path, whose);
	if ((st = folder_remove(path, e)) != SHARD_OK)
		return st;
	if (mkdir(path, 0755) != 0)
		return err_sys(e, errno, "%s: cannot be made: %s", path, strerror(errno));
	snprintf(owner, sizeof(owner), "%s/%s", path, FOLDER_OWNER);
	snprintf(draft, sizeof(draft), "%s/%s.tmp", path, FOLDER_OWNER);
	return folder_put_text(owner, draft, model, e);
}

void checkpoint_abandon(const char *dir, const char *tag)
{
	char path[CHECKPOINT_PATH_MAX];

	if (checkpoint_path(path, dir, tag, NULL) != SHARD_OK)
		return;
	folder_temporary(path, dir, tag);
	(void)folder_remove(path, NULL);
}

enum shard_status checkpoint_lengths(const char *path, const struct manifest *m, struct err *e)
{
	for (uint32_t i = 0; i < m->files_nr; i++) {
		char file[CHECKPOINT_PATH_MAX + 96];
		struct stat s;

		snprintf(file, sizeof(file), "%s/%s", path, m->files[i].name);
		if (lstat(file, &s) != 0) {
			if (errno == ENOENT)
				return err_set(e, SHARD_NOT_FOUND,
					       "%s: is not there: is the folder of checkpoints shared by all nodes?", file);
			return err_sys(e, errno, "%s: %s", file, strerror(errno));
		}
		if (!S_ISREG(s.st_mode) || (uint64_t)s.st_size != m->files[i].bytes)
			return err_set(e, SHARD_PROTOCOL, "%s: has %lld bytes, the manifest says %" PRIu64 ": it is damaged", file,
				       (long long)s.st_size, m->files[i].bytes);
	}
	return SHARD_OK;
}

enum shard_status checkpoint_fits(const char *path, const struct manifest *m, struct err *e)
{
	struct part_index x;
	enum shard_status st = part_index_open(&x, path, m->files, m->files_nr, e);

	if (st != SHARD_OK)
		return st;
	for (uint64_t i = 0; i < (uint64_t)m->tensors_nr * m->kinds_nr && st == SHARD_OK; i++) {
		const struct shard_tensor *t = &m->tensors[i / m->kinds_nr];
		enum shard_kind kind = m->kinds[i % m->kinds_nr];
		const struct part_span *s;
		uint64_t elems = 1;

		for (uint32_t d = 0; d < t->ndim; d++)
			elems *= t->shape[d]; /* at most 2^44: manifest_parse() */
		s = part_index_find(&x, kind, t->name, elems);
		if (s != NULL)
			st = err_set(e, SHARD_MISMATCH,
				     "%s/%.79s: holds %s/%.128s[%" PRIu64 ":%" PRIu64
				     "], and its shape in the manifest has %" PRIu64 " elements: they are not of one checkpoint",
				     path, m->files[s->file].name, part_kind_name(kind), t->name, s->first, s->end, elems);
	}
	part_index_close(&x);
	return st;
}

static enum shard_status put_latest(const char *dir, const char *tag, struct err *e)
{
	char path[CHECKPOINT_PATH_MAX], draft[CHECKPOINT_PATH_MAX], text[CHECKPOINT_TAG_MAX + 2];
	enum shard_status st;

	snprintf(path, sizeof(path), "%s/latest", dir);
	snprintf(draft, sizeof(draft), "%s/.latest.tmp", dir);
	snprintf(text, sizeof(text), "%s\n", tag);
	if ((st = folder_put_text(path, draft, text, e)) != SHARD_OK)
		return st;
	return folder_sync(dir, e);
}

enum shard_status checkpoint_finish(const char *dir, const char *tag, struct manifest *m, struct err *e)
{
	char path[CHECKPOINT_PATH_MAX], final[CHECKPOINT_PATH_MAX], owner[CHECKPOINT_PATH_MAX + 16];
	enum shard_status st = checkpoint_path(final, dir, tag, e);

	if (st != SHARD_OK)
		return st;
	folder_temporary(path, dir, tag);
	if (m->created[0] == 0) {
		time_t now = time(NULL);
		struct tm tm;

		strftime(m->created, sizeof(m->created), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &tm));
	}
	if ((st = checkpoint_lengths(path, m, e)) != SHARD_OK || (st = manifest_write(path, m, e)) != SHARD_OK)
		return st;
	snprintf(owner, sizeof(owner), "%s/%s", path, FOLDER_OWNER);
	if (unlink(owner) != 0 && errno != ENOENT)
		return err_sys(e, errno, "%s: cannot be removed: %s", owner, strerror(errno));
	if ((st = folder_sync(path, e)) != SHARD_OK || (st = may_replace(final, m->name, e)) != SHARD_OK ||
	    (st = folder_swap(path, final, e)) != SHARD_OK || (st = folder_sync(dir, e)) != SHARD_OK ||
	    (st = put_latest(dir, tag, e)) != SHARD_OK)
		return st;
	(void)folder_remove(path, NULL); /* what was there before, if anything; the next begin or prune would do it, too */
	return SHARD_OK;
}

enum shard_status checkpoint_latest(const char *dir, char tag[CHECKPOINT_TAG_MAX + 1], struct err *e)
{
	char path[CHECKPOINT_PATH_MAX + 16], text[CHECKPOINT_TAG_MAX + 16];
	enum shard_status st;

	snprintf(path, sizeof(path), "%s/latest", dir);
	if ((st = folder_get_text(path, text, sizeof(text), e)) != SHARD_OK)
		return st;
	if (!checkpoint_tag_ok(text))
		return err_set(e, SHARD_NOT_FOUND, "%s: holds no tag: name one", path);
	strcpy(tag, text);
	return SHARD_OK;
}

enum shard_status checkpoint_open(const char *dir, const char *tag, const char *model, struct manifest **m, struct err *e)
{
	char path[CHECKPOINT_PATH_MAX], newest[CHECKPOINT_TAG_MAX + 1];
	struct err why = {.text = ""};
	enum shard_status st = checkpoint_path(path, dir, tag, e);
	uint64_t step;
	int error;

	*m = NULL;
	if (st != SHARD_OK)
		return st;
	st = manifest_read(path, m, &why);
	if (st == SHARD_OK && model && strcmp((*m)->name, model) != 0)
		st = err_set(&why, SHARD_MISMATCH, "%s: is a checkpoint of model \"%s\", not of \"%s\"", path, (*m)->name, model);
	if (st == SHARD_OK)
		st = checkpoint_lengths(path, *m, &why);
	if (st == SHARD_OK)
		return st;
	error = errno;
	manifest_free(m);
	if (checkpoint_newest(dir, model, UINT64_MAX, newest, &step, NULL) == SHARD_OK && strcmp(newest, tag) != 0)
		err_wrap(e, &why, "%.400s; the newest complete checkpoint there is %s", why.text, newest);
	else
		err_wrap(e, &why, "%s", why.text);
	errno = error;
	return st;
}
