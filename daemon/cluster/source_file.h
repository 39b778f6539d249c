/* SPDX-License-Identifier: Apache-2.0 */
/* source_file.h: the one file in which a membership source keeps what it must not forget,
 * `source` in the state folder. It names the source, the cluster and the node that wrote it, and
 * has a checksum. It is replaced as a whole (written beside the old one, synced, renamed, the
 * folder synced) by a thread of libuv's pool. All sources use one name, so that no source starts on
 * what another one has left. */
#ifndef SHARD_CLUSTER_SOURCE_FILE_H
#define SHARD_CLUSTER_SOURCE_FILE_H

#include "base/status.h"
#include "cluster/source.h"

#include <stddef.h>
#include <stdint.h>
#include <uv.h>

enum source_saved {
	SOURCE_SAVED,
	SOURCE_REFUSED, /* There is no room. The old file is as it was. */
	SOURCE_BROKEN,  /* What is on the disk is not known. */
};

struct source_file; /* Opaque. */
typedef void source_saved_fn(void *arg, enum source_saved how, const struct err *e);

/* Opens the folder c->dir and reads what the file holds, which is body_max bytes at most. *nr is 0
 * if there is no file. name is at most 15 bytes long. SHARD_PROTOCOL: the file is damaged.
 * SHARD_MISMATCH: another source, cluster or node wrote it. SHARD_SYSTEM: the file system, or no
 * memory. e names the file and says what to do. */
enum shard_status source_file_open(struct source_file **out, const struct member_config *c,
				   const char *name, size_t body_max, size_t *nr, struct err *e);
/* body_max bytes: what was read, and later what is to be written. The caller must not touch them
 * between source_file_save() and its answer. */
void *source_file_body(struct source_file *f);
/* Writes the first nr bytes of the body. fn is called on the loop when they are durable or when
 * that has failed. One at a time. */
void source_file_save(struct source_file *f, size_t nr, source_saved_fn *fn, void *arg);
/* Only while nothing is being saved. *f may be NULL, and is NULL afterwards. */
void source_file_close(struct source_file **f);

#endif
