/* SPDX-License-Identifier: Apache-2.0 */
/* client.h: the folder `client` inside a checkpoint, with files that trainers gave. They gave them
 * as a folder of plain files, which is copied: so nobody changes afterwards what a sum was taken
 * of, and whoever removes the checkpoint may remove them. Calls block. */
#ifndef SHARD_CKPT_CLIENT_H
#define SHARD_CKPT_CLIENT_H

#include "ckpt/manifest.h"

#define CLIENT_FOLDER    "client"
#define CLIENT_FILES_MAX 1024
#define CLIENT_BYTES_MAX (16ull << 30) /* Of all files together. */

/* The folder that somebody names. */
struct client_from {
	const char *path; /* Absolute. */
	bool anyones;     /* Who asks may read whatever this process may read. */
	uint32_t uid;     /* Otherwise folder and files have to belong to this user. */
};

/* 1 to 79 of [A-Za-z0-9._-], not starting with a dot. */
bool client_name_ok(const char *name);
/* Looks at all of it, and copies nothing. SHARD_DENIED names what is no plain file, is another
 * user's or cannot be read, SHARD_RANGE what is too much, SHARD_BAD_ARG a name. */
enum shard_status client_look(const struct client_from *from, struct err *e);
/* Makes path/client with copies of the files, synced, and m->client. SHARD_STALE: a file changed
 * meanwhile. SHARD_INTERRUPTED: p says so. What is made is removed with the checkpoint. */
enum shard_status client_copy(const struct client_from *from, const char *path, struct manifest *m,
			      struct part_progress *p, struct err *e);
/* Are the files there, with the lengths of the manifest? */
enum shard_status client_lengths(const char *path, const struct manifest *m, struct err *e);
/* Reads all of them and compares their sums. */
enum shard_status client_verify(const char *path, const struct manifest *m, struct part_progress *p,
				struct err *e);
uint64_t client_bytes(const struct manifest *m);

#endif
