/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint.h: a folder of checkpoints. It has DIR/global_step{N}/{manifest.json,
 * node-*.safetensors} and DIR/latest, a text file with the tag of the newest. A checkpoint is
 * written under a temporary name, so that a folder with its final name is complete. The order is:
 * files, manifest, sync of the folder, rename, sync of DIR, then `latest` the same way. Calls
 * block. */
#ifndef SHARD_CKPT_CHECKPOINT_H
#define SHARD_CKPT_CHECKPOINT_H

#include "ckpt/manifest.h"

#define CHECKPOINT_TAG_MAX  64   /* [A-Za-z0-9._-], not starting with '.'. */
#define CHECKPOINT_PATH_MAX 1024 /* Bytes of a folder's path with its NUL. */

bool checkpoint_tag_ok(const char *tag);
/* For example global_step812. */
void checkpoint_tag(char tag[CHECKPOINT_TAG_MAX + 1], uint64_t step);
enum shard_status checkpoint_path(char path[CHECKPOINT_PATH_MAX], const char *dir, const char *tag,
				  struct err *e);

/* DIR/.TAG.tmp, where it is written. */
void checkpoint_temporary(char path[CHECKPOINT_PATH_MAX], const char *dir, const char *tag);
/* Makes the folder and those above it, durably. */
enum shard_status checkpoint_make_dir(const char *dir, struct err *e);
/* Makes DIR if it is missing, and DIR/.TAG.tmp anew. path gets its name. SHARD_EXISTS: DIR/TAG is
 * there and is not a checkpoint of `model`. SHARD_BUSY: another save of the model writes there.
 * held may be NULL. *held is a descriptor that keeps other saves from sweeping the folder. Close it
 * after finish or abandon. -1: the file system has no locks, and nobody sweeps there. */
enum shard_status checkpoint_begin(char path[CHECKPOINT_PATH_MAX], const char *dir, const char *tag,
				   const char *model, int *held, struct err *e);
/* Are the files there, as long as m says? (Each node wrote its own: is the folder shared?) Then
 * manifest, sync, rename to DIR/TAG in place of an older one of that name, `latest`. SHARD_BUSY:
 * another process saves or prunes DIR/TAG at this moment. */
enum shard_status checkpoint_finish(const char *dir, const char *tag, struct manifest *m,
				    struct err *e);
/* True if path is the unfinished folder that checkpoint_begin() made for `model`. */
bool checkpoint_begun(const char *path, const char *model);
void checkpoint_abandon(const char *dir, const char *tag); /* Removes DIR/.TAG.tmp. */

struct checkpoint_found {
	char tag[CHECKPOINT_TAG_MAX + 1], name[65], created[32];
	uint64_t step, bytes;
	uint64_t client_bytes; /* Of the files of trainers, which are not in bytes. */
	uint32_t client_nr;
	char client_why[256];    /* What is wrong with these; empty: their lengths are right. */
	struct manifest_run run; /* 0 where the manifest cannot be read. */
	uint64_t sum;            /* Of the manifest. */
	/* complete: the manifest is valid and all files have its lengths. copied: as
	 * checkpoint_mark() says. */
	bool complete, latest, copied;
	char why[256]; /* What is wrong if it is not complete. */
};
/* Lists all that DIR holds, newest step first. With model NULL it lists those of any model. *found
 * is malloc'ed. SHARD_NOT_FOUND: there is no such folder. */
enum shard_status checkpoint_list(const char *dir, const char *model,
				  struct checkpoint_found **found, uint32_t *nr, struct err *e);
/* Finds the newest complete checkpoint of `model` (NULL: any) before before_step (UINT64_MAX: any).
 * SHARD_NOT_FOUND: there is none. */
enum shard_status checkpoint_newest(const char *dir, const char *model, uint64_t before_step,
				    char tag[CHECKPOINT_TAG_MAX + 1], uint64_t *step,
				    struct err *e);
/* The tag that `latest` names. SHARD_NOT_FOUND: there is none. */
enum shard_status checkpoint_latest(const char *dir, char tag[CHECKPOINT_TAG_MAX + 1],
				    struct err *e);
/* Reads the manifest of DIR/TAG and checks the lengths of its files. The text of a failure ends
 * with the newest complete checkpoint, if there is another one. */
enum shard_status checkpoint_open(const char *dir, const char *tag, const char *model,
				  struct manifest **m, struct err *e);
/* Marks the checkpoint in the folder `path` as copied elsewhere, durably, as long as its manifest
 * has that sum. A release that does not
 * know of marks neither replaces nor prunes a folder with one. */
enum shard_status checkpoint_mark(const char *path, uint64_t sum, struct err *e);
/* Removes the unfinished folders of `model` in DIR that no save has locked. Their save was
 * killed. */
void checkpoint_sweep(const char *dir, const char *model);
/* After a save of `of`: removes the oldest complete checkpoints named global_step* of the same
 * model identity and of no later step, until `keep` are left (0: all). Another run's stay, and so
 * does what `latest` names or another process saves now. copied: only those that are marked are
 * removed. *removed may be NULL. */
enum shard_status checkpoint_prune(const char *dir, const struct manifest *of, uint32_t keep,
				   bool copied, uint32_t *removed, struct err *e);
/* Reads the headers of the files and checks that they hold no more of any tensor than its shape
 * has. SHARD_MISMATCH: the text has the tensor and both numbers. */
enum shard_status checkpoint_fits(const char *path, const struct manifest *m, struct err *e);

#endif
