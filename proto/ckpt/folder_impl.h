/* SPDX-License-Identifier: Apache-2.0 */
/* folder_impl.h: folders of checkpoints in the file system. For the sources of checkpoint.h
 * only. */
#ifndef SHARD_CKPT_FOLDER_IMPL_H
#define SHARD_CKPT_FOLDER_IMPL_H

#include "ckpt/checkpoint.h"
#include "ckpt/plain.h"

#include <sys/types.h>

#define FOLDER_OWNER  ".model"  /* in an unfinished folder: whose it is */
#define FOLDER_COPIED ".copied" /* which manifest the operator's program has copied, by its sum */
#define FOLDER_LATEST                                                                              \
	".latest" /* in a folder that is about to be finished: the next DIR/latest                 \
		   */

enum shard_status folder_sync(const char *path, struct err *e); /* So that names in it last. */
enum shard_status folder_make(const char *path, struct err *e); /* And those above it. */
/* Checks that it is a checkpoint, finished or not, sound or damaged, and nothing else. SHARD_EXISTS
 * names what is not. SHARD_OK also if the folder is not there. */
enum shard_status folder_ours(const char *path, struct err *e);
enum shard_status folder_remove(const char *path,
				struct err *e); /* if it is ours: its files, and itself */
/* -1 and errno; EEXIST: there is something under that name. */
int folder_move(const char *from, const char *to);
/* from takes the place of to, which goes where from was: *exchanged says whether there was one. It
 * may be NULL. */
enum shard_status folder_swap(const char *from, const char *to, bool *exchanged, struct err *e);
/* One short text, written beside `path` and renamed; SHARD_NOT_FOUND when there is none to read. */
enum shard_status folder_put_text(const char *path, const char *temporary, const char *text,
				  struct err *e);
enum shard_status folder_put_draft(const char *temporary, const char *text,
				   struct err *e); /* Written and synced, but not renamed. */
enum shard_status folder_get_text(const char *path, char *text, size_t room, struct err *e);
/* Locks (flock) the file that says whose the folder is, so that checkpoint_sweep() of another
 * process spares it. The lock lasts until the descriptor is closed or this process ends in any way.
 * -1 and errno: EWOULDBLOCK: another process has it. ENOENT: no file says whose the folder is.
 * Otherwise it cannot be locked. */
int folder_hold(const char *path);
int folder_hold_manifest(const char *path);
/* The model that an unfinished folder belongs to. False: the folder does not say. */
bool folder_owner(const char *path, char name[65]);

/* Of checkpoint.c. Checks that the files of a manifest are there and have its lengths. */
enum shard_status checkpoint_lengths(const char *path, const struct manifest *m, struct err *e);

#endif
