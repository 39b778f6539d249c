/* SPDX-License-Identifier: Apache-2.0 */
/* folder_impl.h: folders of checkpoints as the file system sees them: for the sources of checkpoint.h. */
#ifndef SHARD_CKPT_FOLDER_IMPL_H
#define SHARD_CKPT_FOLDER_IMPL_H

#include "ckpt/checkpoint.h"

#define FOLDER_OWNER ".model" /* in an unfinished folder: whose it is */

enum shard_status folder_sync(const char *path, struct err *e);   /* so that names in it last */
enum shard_status folder_make(const char *path, struct err *e);   /* and those above it */
enum shard_status folder_remove(const char *path, struct err *e); /* plain files and itself; OK: it is not there */
enum shard_status folder_swap(const char *from, const char *to,
			      struct err *e); /* from takes the place of to, which goes where from was */
/* One short text, written beside `path` and renamed; SHARD_NOT_FOUND when there is none to read. */
enum shard_status folder_put_text(const char *path, const char *temporary, const char *text, struct err *e);
enum shard_status folder_get_text(const char *path, char *text, size_t room, struct err *e);
void folder_temporary(char path[CHECKPOINT_PATH_MAX], const char *dir, const char *tag); /* DIR/.TAG.tmp */
/* The model that an unfinished folder belongs to; false: it does not say. */
bool folder_owner(const char *path, char name[65]);

/* checkpoint.c: a manifest whose files are there, as long as it says. */
enum shard_status checkpoint_lengths(const char *path, const struct manifest *m, struct err *e);

#endif
