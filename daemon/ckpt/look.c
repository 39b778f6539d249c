/* SPDX-License-Identifier: Apache-2.0 */
/* What is looked at in a checkpoint before its elements are read into a model, all of it in jobs,
 * off the loop: the manifest with its counters and blobs, the sums of all files, and whether there
 * is another checkpoint to offer. restore.c, auto.c and part.c call. Fails with what proto/ckpt
 * says about the files. */
#include "ckpt/op.h"
#include "ckpt/spec_of.h"

#include "base/check.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Takes op->manifest's place as the loop will see it. In a job; op->place is open. */
void ckpt_read_manifest(struct ckpt_op *op, const char *name)
{
	char path[CHECKPOINT_PATH_MAX];
	struct err why;

	CHECK(op->manifest == NULL || op->kind != CKPT_SAVE);
	op->st = checkpoint_open(op->place.at, op->tag, name, &op->manifest, &op->why);
	if (op->st == SHARD_OK &&
	    (op->st = checkpoint_path(path, op->place.at, op->tag, &op->why)) == SHARD_OK)
		op->st = checkpoint_path(op->path, op->dir, op->tag, &op->why);
	if (op->st == SHARD_OK && checkpoint_fits(path, op->manifest, &why) == SHARD_MISMATCH)
		op->st = err_wrap(&op->why, &why, "%s",
				  why.text); /* damage is found, and named, by who reads */
	if (op->st == SHARD_OK &&
	    (op->st = ckpt_counters_check(op->manifest, op->path, &op->why)) == SHARD_OK)
		op->st = ckpt_read_blobs(path, op->manifest, &op->blobs, &op->blobs_nr, &op->why);
}

/* Weights are given up for a checkpoint that is sound to its last byte. */
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
