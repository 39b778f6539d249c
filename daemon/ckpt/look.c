/* SPDX-License-Identifier: Apache-2.0 */
/* What is read of a checkpoint before its elements are loaded into a model: the manifest with its
 * counters and blobs, the sums of all files, and whether another checkpoint can be offered.
 * restore.c, pick.c and part.c call. Everything here blocks, so it runs in jobs off the loop. The
 * results go into the operation: op->manifest, op->blobs, op->path. A failure is in op->st and
 * op->why, with what proto/ckpt says about the files. */
#include "ckpt/op.h"
#include "ckpt/spec_of.h"

#include "base/check.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Reads the manifest and the blobs into op. Runs in a job, while op->place is open. op->path gets
 * the name as the loop knows it. */
void ckpt_read_manifest(struct ckpt_op *op, const char *name)
{
	char path[CHECKPOINT_PATH_MAX];
	struct err why;

	CHECK(op->manifest == NULL || op->kind != CKPT_SAVE);
	op->st = checkpoint_open(op->place.at, op->tag, name, &op->manifest, &op->why);
	if (op->st == SHARD_OK &&
	    (op->st = checkpoint_path(path, op->place.at, op->tag, &op->why)) == SHARD_OK)
		op->st = checkpoint_path(op->path, op->dir, op->tag, &op->why);
	/* Other damage is found and named when the elements are read. */
	if (op->st == SHARD_OK && checkpoint_fits(path, op->manifest, &why) == SHARD_MISMATCH)
		op->st = err_wrap(&op->why, &why, "%s", why.text);
	if (op->st == SHARD_OK &&
	    (op->st = ckpt_counters_check(op->manifest, op->path, &op->why)) == SHARD_OK)
		op->st = ckpt_read_blobs(path, op->manifest, &op->blobs, &op->blobs_nr, &op->why);
}

/* Weights are given up only for a checkpoint that is sound to its last byte. */
void ckpt_check_files(struct ckpt_op *op)
{
	char path[CHECKPOINT_PATH_MAX];

	CHECK(op->manifest != NULL);
	if ((op->st = ckpt_place_open(&op->place, false, &op->why)) != SHARD_OK)
		return;
	if ((op->st = checkpoint_path(path, op->place.at, op->tag, &op->why)) == SHARD_OK)
		op->st = part_verify(path, op->manifest->files, op->manifest->files_nr,
				     &op->checking, &op->why);
	ckpt_place_close(&op->place, op->st != SHARD_OK ? &op->why : NULL);
	if (op->st == SHARD_PROTOCOL || op->st == SHARD_NOT_FOUND)
		ckpt_offer(op->path, op->name, &op->why);
}

void ckpt_offer(const char *path, const char *name, struct err *why)
{
	char dir[CHECKPOINT_PATH_MAX], *slash;
	struct checkpoint_found *found = NULL;
	size_t used = strlen(why->text);
	uint32_t nr = 0;

	CHECK(why->status != SHARD_OK);
	snprintf(dir, sizeof(dir), "%s", path);
	slash = strrchr(dir, '/');
	if (slash == NULL || slash == dir || strstr(why->text, "newest complete") != NULL)
		return;
	*slash = 0;
	if (checkpoint_list(dir, name, &found, &nr, NULL) != SHARD_OK)
		nr = 0;
	for (uint32_t i = 0; i < nr; i++) {
		if (!found[i].complete || strcmp(found[i].tag, slash + 1) == 0)
			continue;
		snprintf(why->text + used, sizeof(why->text) - used,
			 "; the newest complete checkpoint there is %s", found[i].tag);
		break;
	}
	free(found);
}
