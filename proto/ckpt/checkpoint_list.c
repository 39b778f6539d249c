/* SPDX-License-Identifier: Apache-2.0 */
/* Lists what a folder of checkpoints holds, searches it for the newest complete one, and prunes it.
 * The daemon's saves and restores call it, and shardctl does. Each manifest is read and the lengths
 * of the files are checked. Their bytes are not (part_verify() does that). It fails where the
 * folder cannot be read. A damaged checkpoint is listed as not complete. */
#include "ckpt/checkpoint.h"
#include "ckpt/client.h"
#include "ckpt/folder_impl.h"

#include "base/check.h"

#include <dirent.h>
#include <limits.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool by_step_name(const char *tag)
{
	const char *digits = tag + strlen("global_step");

	return strncmp(tag, "global_step", strlen("global_step")) == 0 && *digits &&
	       strspn(digits, "0123456789") == strlen(digits);
}

static int newest_first(const void *a, const void *b)
{
	const struct checkpoint_found *x = a, *y = b;

	if (x->step != y->step)
		return x->step > y->step ? -1 : 1;
	return strcmp(x->tag, y->tag);
}

/* --- the mark of what is copied --- */

enum shard_status checkpoint_mark(const char *path, uint64_t sum, struct err *e)
{
	char name[CHECKPOINT_PATH_MAX + 16], draft[CHECKPOINT_PATH_MAX + 24], text[24];
	enum shard_status st;

	snprintf(name, sizeof(name), "%s/" FOLDER_COPIED, path);
	snprintf(draft, sizeof(draft), "%s.tmp", name);
	snprintf(text, sizeof(text), "%016" PRIx64 "\n", sum);
	st = folder_put_text(name, draft, text, e);
	return st == SHARD_OK ? folder_sync(path, e) : st;
}

/* A mark of another manifest means nothing. A save may have taken the tag since it was copied. */
static bool is_marked(const char *path, uint64_t sum)
{
	char name[CHECKPOINT_PATH_MAX + 16], text[24], want[24];

	snprintf(name, sizeof(name), "%s/" FOLDER_COPIED, path);
	snprintf(want, sizeof(want), "%016" PRIx64, sum);
	return folder_get_text(name, text, sizeof(text), NULL) == SHARD_OK &&
	       strcmp(text, want) == 0;
}

/* --- the list --- */

/* Looks at DIR/tag. Returns false if it is no checkpoint, or one of another model. */
static bool look(struct checkpoint_found *f, const char *dir, const char *tag, const char *model)
{
	char path[CHECKPOINT_PATH_MAX];
	struct manifest *m;
	struct err e = {.text = ""}, client;
	struct stat s;
	enum shard_status st;
	bool ours = true;

	*f = (struct checkpoint_found){.complete = false};
	if (checkpoint_path(path, dir, tag, NULL) != SHARD_OK || lstat(path, &s) != 0 ||
	    !S_ISDIR(s.st_mode))
		return false;
	strcpy(f->tag, tag);
	st = manifest_read(path, &m, &e);
	if (st == SHARD_OK) {
		memcpy(f->name, m->name, sizeof(f->name));
		memcpy(f->created, m->created, sizeof(f->created));
		f->step = m->step;
		f->run = m->run;
		f->sum = m->sum;
		f->copied = is_marked(path, m->sum);
		for (uint32_t i = 0; i < m->files_nr; i++)
			f->bytes += m->files[i].bytes;
		ours = !model || strcmp(model, m->name) == 0;
		f->client_nr = m->client_nr;
		f->client_bytes = client_bytes(m);
		if (client_lengths(path, m, &client) != SHARD_OK)
			snprintf(f->client_why, sizeof(f->client_why), "%.*s",
				 (int)sizeof(f->client_why) - 1, client.text);
		f->complete = checkpoint_lengths(path, m, &e) == SHARD_OK;
		manifest_free(&m);
	} else {
		ours = st != SHARD_NOT_FOUND || by_step_name(tag);
		if (by_step_name(tag))
			f->step = strtoull(tag + strlen("global_step"), NULL, 10);
	}
	if (!f->complete)
		snprintf(f->why, sizeof(f->why), "%.*s", (int)sizeof(f->why) - 1, e.text);
	return ours;
}

enum shard_status checkpoint_list(const char *dir, const char *model,
				  struct checkpoint_found **found, uint32_t *nr, struct err *e)
{
	char latest[CHECKPOINT_TAG_MAX + 1] = "";
	uint32_t room = 0;
	struct dirent *entry;
	DIR *d = opendir(dir);

	*found = NULL;
	*nr = 0;
	if (!d && errno == ENOENT)
		return err_set(
			e, SHARD_NOT_FOUND,
			"%s: there is no such folder: name the one that checkpoints were saved to",
			dir);
	if (!d)
		return err_sys(e, errno, "%s: cannot be read: %s", dir, strerror(errno));
	(void)checkpoint_latest(dir, latest, NULL);
	while ((entry = readdir(d))) {
		if (*nr == room) {
			struct checkpoint_found *more =
				realloc(*found, (room + 64) * sizeof(*more));

			if (!more) {
				closedir(d);
				free(*found);
				*found = NULL;
				return err_set(e, SHARD_SYSTEM,
					       "no memory for the checkpoints in %s", dir);
			}
			*found = more;
			room += 64;
		}
		if (!look(&(*found)[*nr], dir, entry->d_name, model))
			continue;
		(*found)[*nr].latest = strcmp(latest, entry->d_name) == 0;
		(*nr)++;
	}
	closedir(d);
	if (*nr > 0)
		qsort(*found, *nr, sizeof(**found), newest_first);
	return SHARD_OK;
}

enum shard_status checkpoint_newest(const char *dir, const char *model, uint64_t before_step,
				    char tag[CHECKPOINT_TAG_MAX + 1], uint64_t *step, struct err *e)
{
	struct checkpoint_found *found;
	uint32_t nr, i;
	enum shard_status st = checkpoint_list(dir, model, &found, &nr, e);

	if (st != SHARD_OK)
		return st;
	for (i = 0; i < nr; i++)
		if (found[i].complete && (before_step == UINT64_MAX || found[i].step < before_step))
			break;
	if (i < nr) {
		strcpy(tag, found[i].tag);
		*step = found[i].step;
	}
	free(found);
	if (i < nr)
		return SHARD_OK;
	return err_set(e, SHARD_NOT_FOUND, "%s: holds no complete checkpoint%s%s%s%s", dir,
		       model ? " of model \"" : "", model ? model : "", model ? "\"" : "",
		       before_step == UINT64_MAX ? "" : " that is older");
}

/* --- pruning --- */

void checkpoint_sweep(const char *dir, const char *model)
{
	DIR *d = opendir(dir);
	struct dirent *entry;

	while (d && (entry = readdir(d))) {
		char path[CHECKPOINT_PATH_MAX + NAME_MAX], whose[65];
		size_t n = strlen(entry->d_name);
		int held;

		if (entry->d_name[0] != '.' || n < 6 ||
		    (strcmp(entry->d_name + n - 4, ".tmp") != 0 &&
		     (n < 10 || strcmp(entry->d_name + n - 8, ".tmp.old") != 0)))
			continue;
		snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name);
		if (strlen(path) >= CHECKPOINT_PATH_MAX || !folder_owner(path, whose) ||
		    strcmp(whose, model) != 0 || (held = folder_hold(path)) < 0)
			continue;
		(void)folder_remove(path, NULL);
		close(held);
	}
	if (d)
		closedir(d);
}

/* A later step of the same model is one from which an operator set the model back. He may still
 * want it, so it is not pruned. */
static bool counts(const struct checkpoint_found *f, const struct manifest *of)
{
	const uint64_t *id = of->run.id;

	return f->complete && by_step_name(f->tag) && (id[0] != 0 || id[1] != 0) &&
	       memcmp(f->run.id, id, sizeof(f->run.id)) == 0 && f->step <= of->step;
}

/* Does it still count, now that nobody else changes it? Another daemon may have saved that tag
 * since the folder was listed. */
static bool may_go(const char *dir, const char *tag, const struct manifest *of, bool copied)
{
	char latest[CHECKPOINT_TAG_MAX + 1] = "";
	struct checkpoint_found f;

	(void)checkpoint_latest(dir, latest, NULL);
	return strcmp(latest, tag) != 0 && look(&f, dir, tag, of->name) && counts(&f, of) &&
	       (f.copied || !copied);
}

/* Takes the name away at once, the bytes then: a crash leaves nothing that looks like a checkpoint.
 * *gone stays false where another save has that tag or its temporary name. */
static enum shard_status drop_held(const char *dir, const char *tag, const char *path,
				   const struct manifest *of, bool copied, bool *gone,
				   struct err *e)
{
	char aside[CHECKPOINT_PATH_MAX];
	enum shard_status st;
	int held;

	checkpoint_temporary(aside, dir, tag);
	held = folder_hold(aside);
	if (held < 0 && errno == EWOULDBLOCK)
		return SHARD_OK;
	st = folder_remove(aside, e);
	if (held >= 0)
		close(held);
	if (st != SHARD_OK || !may_go(dir, tag, of, copied))
		return st;
	if (folder_move(path, aside) == 0) {
		*gone = true;
		return folder_remove(aside, e);
	}
	return errno == EEXIST || errno == ENOENT
		       ? SHARD_OK
		       : err_sys(e, errno, "%s: cannot be renamed: %s", path, strerror(errno));
}

static enum shard_status drop(const char *dir, const char *tag, const struct manifest *of,
			      bool copied, bool *gone, struct err *e)
{
	char path[CHECKPOINT_PATH_MAX];
	enum shard_status st = checkpoint_path(path, dir, tag, e);
	int held;

	*gone = false;
	if (st != SHARD_OK)
		return st;
	held = folder_hold_manifest(path);
	if (held < 0 && errno == EWOULDBLOCK)
		return SHARD_OK;
	st = drop_held(dir, tag, path, of, copied, gone, e);
	if (held >= 0)
		close(held);
	return st;
}

enum shard_status checkpoint_prune(const char *dir, const struct manifest *of, uint32_t keep,
				   bool copied, uint32_t *removed, struct err *e)
{
	struct checkpoint_found *found;
	uint32_t nr, kept = 0, gone = 0;
	enum shard_status st = checkpoint_list(dir, of->name, &found, &nr, e);

	if (removed)
		*removed = 0;
	if (st != SHARD_OK)
		return st;
	for (uint32_t i = 0; st == SHARD_OK && i < nr; i++) {
		bool dropped;

		if (!counts(&found[i], of))
			continue;
		if (keep == 0 || kept < keep || found[i].latest) {
			kept++;
			continue;
		}
		if (copied && !found[i].copied)
			continue;
		st = drop(dir, found[i].tag, of, copied, &dropped, e);
		gone += dropped;
	}
	if (st == SHARD_OK && gone > 0)
		st = folder_sync(dir, e);
	if (removed)
		*removed = gone;
	free(found);
	return st;
}
