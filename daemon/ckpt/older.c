/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the file of this node in the newest checkpoint of a model, for a save. part.c calls, in its
 * job. Happy path: `latest` beside the new folder names a tag, its manifest is whole and of this
 * model, and lists a file of this node's name. Everything goes by descriptors, and no link is
 * followed below the folder of checkpoints. What is found stays open, so that a pruning meanwhile
 * does not matter. Nothing here can fail a save. Where there is no such file, or no memory, the
 * save writes all. */
#include "ckpt/older.h"

#include "base/check.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define DIR_FLAGS (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)

static int open_latest(int beside)
{
	int dir = openat(beside, "..", DIR_FLAGS), fd = -1;
	char at[32], tag[CHECKPOINT_TAG_MAX + 1];

	if (dir < 0)
		return -1;
	snprintf(at, sizeof(at), "/proc/self/fd/%d", dir);
	if (checkpoint_latest(at, tag, NULL) == SHARD_OK)
		fd = openat(dir, tag, DIR_FLAGS);
	close(dir);
	return fd;
}

const struct part_older *older_open(struct older *o, int beside, const char *model,
				    const char *name)
{
	CHECK(beside >= 0);
	*o = (struct older){.fd = open_latest(beside)};
	if (o->fd < 0)
		return NULL;
	snprintf(o->at, sizeof(o->at), "/proc/self/fd/%d", o->fd);
	if (manifest_read(o->at, &o->manifest, NULL) != SHARD_OK ||
	    strcmp(o->manifest->name, model) != 0)
		return NULL;
	for (uint32_t i = 0; i < o->manifest->files_nr; i++)
		if (strcmp(o->manifest->files[i].name, name) == 0) {
			o->is = (struct part_older){o->at, &o->manifest->files[i]};
			return &o->is;
		}
	return NULL;
}

void older_close(struct older *o)
{
	manifest_free(&o->manifest);
	if (o->fd >= 0)
		close(o->fd);
	o->fd = -1;
}
