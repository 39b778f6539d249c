/* SPDX-License-Identifier: Apache-2.0 */
/* place.h: folders in which this daemon reads and writes checkpoints for others. They lie below
 * [daemon] checkpoint_roots or a checkpoint_dir of its configuration, are reached through no
 * symbolic link, and are never part of the daemon's own state. Root of this node and the daemon's
 * own user may name any other folder. */
#ifndef SHARD_CKPT_PLACE_H
#define SHARD_CKPT_PLACE_H

#include "ckpt/checkpoint.h"
#include "shard.pb-c.h"

struct server;

struct ckpt_place {
	char dir[CHECKPOINT_PATH_MAX]; /* The name in texts. */
	size_t root_bytes; /* Length of the root in dir. No link is followed in the rest. */
	bool anywhere;     /* The requester may name any folder. */
	char state[CHECKPOINT_PATH_MAX];
	char node[65]; /* This one, for texts. */
	int fd;        /* Open descriptor, or -1. */
	char at[32];   /* /proc/self/fd/N of the open folder, for calls that take a path. */
};

/* May this user name any folder? True for root of this node and for the daemon's own user on any
 * node, because a uid other than 0 is the same user on all nodes. With [cluster] trust_remote_root
 * also root of other nodes. False for anybody over TCP. */
bool ckpt_anywhere(const struct server *s, const Shard__Cred *who);

/* Decides on the loop by the path and the current configuration alone, without looking at files.
 * SHARD_DENIED names the roots. ends: so many last components of dir are never part of the root,
 * unless dir lies below a configured one. */
enum shard_status ckpt_place_set(struct ckpt_place *p, const struct server *s, const char *dir,
				 bool anywhere, uint32_t ends, struct err *e);

/* Opens the folder, in a job. make: creates it and its root if they are missing. SHARD_DENIED: the
 * path leads through a link or into the state. SHARD_EXISTS: with make, it is a checkpoint or lies
 * in one. SHARD_NOT_FOUND: there is no such folder. */
enum shard_status ckpt_place_open(struct ckpt_place *p, bool make, struct err *e);
/* Replaces the /proc name in e by the folder's name. */
void ckpt_place_name(const struct ckpt_place *p, struct err *e);
/* Closes the folder. e may be NULL; otherwise it gets the folder's name as above. */
void ckpt_place_close(struct ckpt_place *p, struct err *e);

#endif
