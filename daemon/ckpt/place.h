/* SPDX-License-Identifier: Apache-2.0 */
/* place.h: where this daemon reads and writes checkpoints for others: below [daemon]
 * checkpoint_roots and each checkpoint_dir of its configuration, through no link, and never among
 * its own state. Root of this node and the daemon's own user may name any other folder. */
#ifndef SHARD_CKPT_PLACE_H
#define SHARD_CKPT_PLACE_H

#include "ckpt/checkpoint.h"
#include "shard.pb-c.h"

struct server;

struct ckpt_place {
	char dir[CHECKPOINT_PATH_MAX]; /* As its texts call it. */
	size_t root_bytes;             /* What of it is a root: the rest is walked without links. */
	bool anywhere;                 /* Who asked may name any folder. */
	char state[CHECKPOINT_PATH_MAX];
	int fd;      /* While it is open. */
	char at[32]; /* The open folder's name, for calls that want a path. */
};

/* May who asks name any folder? Root of this node, and the daemon's own user, also of another node:
 * a uid is the same user on all nodes, but for 0. Nobody who comes over TCP. */
bool ckpt_anywhere(const struct server *s, const Shard__Cred *who);

/* On the loop, by the configuration as it is now; nothing is looked at. SHARD_DENIED names the
 * roots. ends: so many last parts of dir are no root's, wherever dir is. */
enum shard_status ckpt_place_set(struct ckpt_place *p, const struct server *s, const char *dir,
				 bool anywhere, uint32_t ends, struct err *e);

/* In a job. make: what lacks below the root, and the root itself. SHARD_DENIED: it leads through a
 * link, or into the state; SHARD_EXISTS: into a checkpoint, to be written to; SHARD_NOT_FOUND: it
 * is not there. */
enum shard_status ckpt_place_open(struct ckpt_place *p, bool make, struct err *e);
/* Puts the folder's name where e has the open one's. */
void ckpt_place_name(const struct ckpt_place *p, struct err *e);
/* Closes it; e, which may be NULL, gets the folder's name. */
void ckpt_place_close(struct ckpt_place *p, struct err *e);

#endif
