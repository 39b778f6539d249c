/* SPDX-License-Identifier: Apache-2.0 */
/* Writes one checkpoint into a folder, and opens one. Happy path: begin → DIR/.TAG.tmp → the
 * nodes write their parts → finish checks lengths, writes the manifest, syncs the folder,
 * exchanges it with DIR/TAG, syncs DIR, writes `latest` and removes what was there before. A crash
 * at any moment leaves the older complete checkpoint or the newer one under DIR/TAG, and at most a
 * DIR/.TAG.tmp, which the next begin or checkpoint_sweep() removes. It fails with what the file
 * system says, and what was there stays under its name. Nothing but a checkpoint is ever replaced
 * or removed. */
#include "ckpt/checkpoint.h"
#include "ckpt/client.h"
#include "ckpt/folder_impl.h"
#include "ckpt/part_impl.h"

#include "base/check.h"
#include "wire/layout.h"

#include <errno.h>
#include <fcntl.h>
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
	       strspn(tag, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") ==
		       n;
}

void checkpoint_tag(char tag[CHECKPOINT_TAG_MAX + 1], uint64_t step)
{
	snprintf(tag, CHECKPOINT_TAG_MAX + 1, "global_step%" PRIu64, step);
}

enum shard_status checkpoint_path(char path[CHECKPOINT_PATH_MAX], const char *dir, const char *tag,
				  struct err *e)
{
	if (!checkpoint_tag_ok(tag))
		return err_set(e, SHARD_BAD_ARG,
			       "tag \"%.64s\": 1 to %d of [A-Za-z0-9._-], not starting with a dot, "
			       "not `latest`",
			       tag, CHECKPOINT_TAG_MAX);
	if (dir[0] == 0 || strlen(dir) + CHECKPOINT_TAG_MAX + 16 >= CHECKPOINT_PATH_MAX)
		return err_set(e, SHARD_BAD_ARG, "a folder of checkpoints has 1 to %d characters",
			       CHECKPOINT_PATH_MAX - CHECKPOINT_TAG_MAX - 17);
	snprintf(path, CHECKPOINT_PATH_MAX, "%s/%s", dir, tag);
	return SHARD_OK;
}

/* Checks that a checkpoint of `model` may replace DIR/TAG. A checkpoint that cannot be read any
 * more may be replaced, but nothing that is not a checkpoint. */
static enum shard_status may_replace(const char *path, const char *model, struct err *e)
{
	struct manifest *m;
	struct stat s;
	struct err why = {.text = ""};
	enum shard_status st;
	char name[65];

	if (lstat(path, &s) != 0)
		return errno == ENOENT ? SHARD_OK
				       : err_sys(e, errno, "%s: %s", path, strerror(errno));
	if (S_ISDIR(s.st_mode) && (st = folder_ours(path, e)) != SHARD_OK)
		return st;
	st = S_ISDIR(s.st_mode) ? manifest_read(path, &m, &why) : SHARD_NOT_FOUND;
	if (st == SHARD_PROTOCOL)
		return SHARD_OK;
	if (st == SHARD_NOT_FOUND)
		return err_set(e, SHARD_EXISTS,
			       "%s: is there and is no checkpoint: choose another tag or folder, "
			       "or remove it",
			       path);
	if (st != SHARD_OK)
		return err_wrap(e, &why, "%s", why.text);
	memcpy(name, m->name, sizeof(name));
	manifest_free(&m);
	if (strcmp(name, model) != 0)
		return err_set(e, SHARD_EXISTS,
			       "%s: is a checkpoint of model \"%s\", not of \"%s\": choose another "
			       "tag or folder",
			       path, name, model);
	return SHARD_OK;
}

enum shard_status checkpoint_make_dir(const char *dir, struct err *e)
{
	return folder_make(dir, e);
}

/* Removes what an earlier save left under the temporary name. */
static enum shard_status make_room(const char *path, const char *model, struct err *e)
{
	enum shard_status st;
	char whose[65];
	int held;

	if (folder_owner(path, whose) && strcmp(whose, model) != 0)
		return err_set(e, SHARD_EXISTS,
			       "%s: model \"%s\" writes there, or died writing: choose another "
			       "folder, or remove it",
			       path, whose);
	held = folder_hold(path);
	if (held < 0 && errno == EWOULDBLOCK)
		return err_set(
			e, SHARD_BUSY,
			"%s: another save of a model \"%s\" writes there now: wait for it, or "
			"choose another tag or folder",
			path, model);
	st = folder_remove(path, e);
	if (held >= 0)
		close(held);
	return st;
}

/* A begin has failed: what it made goes, unless another save has taken the name meanwhile. */
static void unmake(const char *path)
{
	int held = folder_hold(path), error = errno;

	if (held >= 0 || error != EWOULDBLOCK)
		(void)folder_remove(path, NULL);
	if (held >= 0)
		close(held);
}

enum shard_status checkpoint_begin(char path[CHECKPOINT_PATH_MAX], const char *dir, const char *tag,
				   const char *model, int *held, struct err *e)
{
	char final[CHECKPOINT_PATH_MAX], owner[CHECKPOINT_PATH_MAX + 16],
		draft[CHECKPOINT_PATH_MAX + 16];
	enum shard_status st = checkpoint_path(final, dir, tag, e);

	if (held != NULL)
		*held = -1;

	if (st == SHARD_OK)
		st = folder_make(dir, e);
	if (st == SHARD_OK)
		st = may_replace(final, model, e);
	if (st != SHARD_OK)
		return st;
	checkpoint_temporary(path, dir, tag);
	if ((st = make_room(path, model, e)) != SHARD_OK)
		return st;
	if (mkdir(path, 0700) != 0)
		return err_sys(e, errno, "%s: cannot be made: %s", path, strerror(errno));
	snprintf(owner, sizeof(owner), "%s/%s", path, FOLDER_OWNER);
	snprintf(draft, sizeof(draft), "%s/%s.tmp", path, FOLDER_OWNER);
	if ((st = folder_put_draft(draft, model, e)) != SHARD_OK) {
		int error = errno;

		unmake(path);
		errno = error;
		return st;
	}
	if (held != NULL)
		*held = folder_hold(
			path); /* Locked before it names its model, so that nobody sweeps it. */
	if (rename(draft, owner) == 0)
		return SHARD_OK;
	st = err_sys(e, errno, "%s: cannot be written: %s", owner, strerror(errno));
	if (held != NULL && *held >= 0)
		close(*held);
	if (held != NULL)
		*held = -1;
	unmake(path);
	return st;
}

bool checkpoint_begun(const char *path, const char *model)
{
	char whose[65];

	return folder_owner(path, whose) && strcmp(whose, model) == 0;
}

void checkpoint_abandon(const char *dir, const char *tag)
{
	char path[CHECKPOINT_PATH_MAX];

	if (checkpoint_path(path, dir, tag, NULL) != SHARD_OK)
		return;
	checkpoint_temporary(path, dir, tag);
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
					       "%s: is not there: is the folder of checkpoints "
					       "shared by all nodes?",
					       file);
			return err_sys(e, errno, "%s: %s", file, strerror(errno));
		}
		if (!S_ISREG(s.st_mode))
			return plain_refuse(file, e);
		if ((uint64_t)s.st_size != m->files[i].bytes)
			return err_set(e, SHARD_PROTOCOL,
				       "%s: has %lld bytes, the manifest says %" PRIu64
				       ": it is damaged",
				       file, (long long)s.st_size, m->files[i].bytes);
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
		uint64_t elems = 0;

		CHECK(layout_numel(&elems, t->shape, t->ndim)); /* manifest_parse() has asked. */
		s = part_index_find(&x, kind, t->name, elems);
		if (s != NULL)
			st = err_set(e, SHARD_MISMATCH,
				     "%s/%.79s: holds %s/%.128s[%" PRIu64 ":%" PRIu64
				     "], and its shape in the manifest has %" PRIu64
				     " elements: they are not of one checkpoint",
				     path, m->files[s->file].name, part_kind_name(kind), t->name,
				     s->first, s->end, elems);
	}
	part_index_close(&x);
	return st;
}

/* --- who may read it --- */

static void widen(const char *dir, const char *name, mode_t mode)
{
	char path[CHECKPOINT_PATH_MAX + 96];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		return;
	/* May fail for the file of a node with another user. It stays as it is. */
	(void)fchmod(fd, mode);
	close(fd);
}

static bool give_group(const char *path, const char *name, const struct manifest *m)
{
	char file[CHECKPOINT_PATH_MAX + 96];

	snprintf(file, sizeof(file), "%s/%s", path, name);
	return lchown(file, (uid_t)-1, m->owner_gid) == 0;
}

/* Returns whether the daemon's group may read the files that the model's group may read. Where that
 * is possible, the folder is given to the model's group. */
static bool group_is_owners(const char *path, const struct manifest *m)
{
	if ((m->mode & 04) || m->owner_gid == getegid())
		return true;
	if (!m->owner_known || chown(path, (uid_t)-1, m->owner_gid) != 0)
		return false;
	for (uint32_t i = 0; i < m->files_nr; i++)
		if (!give_group(path, m->files[i].name, m))
			return false;
	for (uint32_t i = 0; i < m->client_nr; i++) {
		char name[sizeof(CLIENT_FOLDER) + sizeof(m->client[i].name)];

		snprintf(name, sizeof(name), CLIENT_FOLDER "/%s", m->client[i].name);
		if (!give_group(path, name, m))
			return false;
	}
	return m->client_nr == 0 || give_group(path, CLIENT_FOLDER, m);
}

/* Files are made for the daemon alone. The group may read them where the model's mode lets it. A
 * checkpoint without a mode (an import) is as public as any file. */
static void let_read(const char *path, const struct manifest *m)
{
	mode_t file = 0644, folder = 0755;

	if (m->has_mode) {
		if (!(m->mode & 040) || !group_is_owners(path, m))
			return;
		file = 0640;
		folder = 0750;
	}
	for (uint32_t i = 0; i < m->files_nr; i++)
		widen(path, m->files[i].name, file);
	for (uint32_t i = 0; i < m->client_nr; i++) {
		char name[sizeof(CLIENT_FOLDER) + sizeof(m->client[i].name)];

		snprintf(name, sizeof(name), CLIENT_FOLDER "/%s", m->client[i].name);
		widen(path, name, file);
	}
	if (m->client_nr > 0)
		widen(path, CLIENT_FOLDER, folder);
	widen(path, MANIFEST_NAME, file);
	widen(path, ".", folder);
}

/* --- the end --- */

/* The new one has the tag's name, and does not count: what was there before has it again. */
static void take_back(const char *path, const char *final, bool exchanged)
{
	char aside[CHECKPOINT_PATH_MAX + 8];

	if (exchanged ? folder_swap(path, final, NULL, NULL) == SHARD_OK
		      : folder_move(final, path) == 0)
		return;
	snprintf(aside, sizeof(aside), "%s.old",
		 path); /* out of the way of who removes `path` now */
	(void)rename(final, aside);
}

/* `folder` is the new checkpoint under whichever name it has now. A rename that fails may have been
 * done, as over NFS, or `latest` may have said so before: a checkpoint that it names stays. */
static enum shard_status set_latest(const char *dir, const char *tag, int folder, struct err *e)
{
	char latest[CHECKPOINT_PATH_MAX], is[CHECKPOINT_TAG_MAX + 1];
	int error;

	snprintf(latest, sizeof(latest), "%s/latest", dir);
	if (renameat(folder, FOLDER_LATEST, AT_FDCWD, latest) == 0)
		return SHARD_OK;
	error = errno;
	if (checkpoint_latest(dir, is, NULL) == SHARD_OK && strcmp(is, tag) == 0)
		return SHARD_OK;
	errno = error;
	return err_sys(e, errno, "%s: cannot be written: %s", latest, strerror(errno));
}

/* All that can lack room is written before the exchange. The draft of `latest` lies in the
 * checkpoint's own folder, since other models may be saved into DIR at this moment. */
static enum shard_status take_name(const char *dir, const char *tag, const char *path,
				   const char *final, bool *exchanged, struct err *e)
{
	char draft[CHECKPOINT_PATH_MAX + 16], text[CHECKPOINT_TAG_MAX + 2];
	enum shard_status st;
	int folder, error;

	snprintf(draft, sizeof(draft), "%s/%s", path, FOLDER_LATEST);
	snprintf(text, sizeof(text), "%s\n", tag);
	if ((st = folder_put_draft(draft, text, e)) != SHARD_OK)
		return st;
	folder = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (folder < 0)
		return err_sys(e, errno, "%s: cannot be opened: %s", path, strerror(errno));
	if ((st = folder_swap(path, final, exchanged, e)) == SHARD_OK) {
		if ((st = folder_sync(dir, e)) == SHARD_OK)
			st = set_latest(dir, tag, folder, e);
		error = errno;
		if (st != SHARD_OK)
			take_back(path, final, *exchanged);
		else
			(void)folder_sync(dir, NULL); /* the checkpoint is durable: after a loss of
							 power `latest` may name the one before */
		errno = error;
	}
	error = errno;
	close(folder);
	errno = error;
	return st;
}

/* What is under the tag now is locked meanwhile, so that neither a pruning nor a save of another
 * process takes it away. */
static enum shard_status replace(const char *dir, const char *tag, const char *path,
				 const char *final, struct err *e)
{
	int held = folder_hold_manifest(final), error;
	bool exchanged = false;
	enum shard_status st;

	if (held < 0 && errno == EWOULDBLOCK)
		return err_set(
			e, SHARD_BUSY,
			"%s: another daemon saves or prunes it now: wait for that, or choose "
			"another tag or folder",
			final);
	st = take_name(dir, tag, path, final, &exchanged, e);
	error = errno;
	if (st == SHARD_OK && exchanged)
		(void)folder_remove(path, NULL); /* what was there before; the next begin or sweep
						    would do it, too */
	if (held >= 0)
		close(held);
	errno = error;
	return st;
}

static enum shard_status publish(const char *dir, const char *tag, const char *path,
				 const char *final, const struct manifest *m, struct err *e)
{
	char owner[CHECKPOINT_PATH_MAX + 16];
	enum shard_status st;

	snprintf(owner, sizeof(owner), "%s/%s", path, FOLDER_OWNER);
	if (unlink(owner) != 0 && errno != ENOENT)
		return err_sys(e, errno, "%s: cannot be removed: %s", owner, strerror(errno));
	let_read(path, m);
	if ((st = folder_sync(path, e)) != SHARD_OK ||
	    (st = may_replace(final, m->name, e)) != SHARD_OK)
		return st;
	return replace(dir, tag, path, final, e);
}

enum shard_status checkpoint_finish(const char *dir, const char *tag, struct manifest *m,
				    struct err *e)
{
	char path[CHECKPOINT_PATH_MAX], final[CHECKPOINT_PATH_MAX];
	enum shard_status st = checkpoint_path(final, dir, tag, e);
	int held;

	if (st != SHARD_OK)
		return st;
	checkpoint_temporary(path, dir, tag);
	if (m->created[0] == 0) {
		time_t now = time(NULL);
		struct tm tm;

		strftime(m->created, sizeof(m->created), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &tm));
	}
	if ((st = checkpoint_lengths(path, m, e)) != SHARD_OK ||
	    (st = manifest_write(path, m, e)) != SHARD_OK)
		return st;
	held = folder_hold_manifest(path); /* From now on the manifest says whose the folder is. */
	st = publish(dir, tag, path, final, m, e);
	if (held >= 0)
		close(held);
	return st;
}

enum shard_status checkpoint_latest(const char *dir, char tag[CHECKPOINT_TAG_MAX + 1],
				    struct err *e)
{
	char path[CHECKPOINT_PATH_MAX + 16], text[CHECKPOINT_TAG_MAX + 16];
	enum shard_status st;

	snprintf(path, sizeof(path), "%s/latest", dir);
	st = folder_get_text(path, text, sizeof(text), e);
	if (st == SHARD_NOT_FOUND)
		return err_set(
			e, st,
			"%s: there is no file `latest`, so it is no folder of checkpoints, or "
			"has none yet: name another folder, or a tag",
			dir);
	if (st != SHARD_OK)
		return st;
	if (!checkpoint_tag_ok(text))
		return err_set(e, SHARD_NOT_FOUND, "%s: holds no tag: name one", path);
	strcpy(tag, text);
	return SHARD_OK;
}

enum shard_status checkpoint_open(const char *dir, const char *tag, const char *model,
				  struct manifest **m, struct err *e)
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
		st = err_set(&why, SHARD_MISMATCH,
			     "%s: is a checkpoint of model \"%s\", not of \"%s\"", path, (*m)->name,
			     model);
	if (st == SHARD_OK)
		st = checkpoint_lengths(path, *m, &why);
	if (st == SHARD_OK)
		return st;
	error = errno;
	manifest_free(m);
	if (checkpoint_newest(dir, model, UINT64_MAX, newest, &step, NULL) == SHARD_OK &&
	    strcmp(newest, tag) != 0)
		err_wrap(e, &why, "%.400s; the newest complete checkpoint there is %s", why.text,
			 newest);
	else
		err_wrap(e, &why, "%s", why.text);
	errno = error;
	return st;
}
