/* SPDX-License-Identifier: Apache-2.0 */
/* static.h: what static membership keeps in the state folder: a lock, the node's identity, the
 * number of its starts, its incarnation, and files per model with whatever their owners need after
 * a restart. What was saved is on disk when the call returns. */
#ifndef SHARD_CLUSTER_STATIC_H
#define SHARD_CLUSTER_STATIC_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STATIC_UUID_BYTES 16
#define STATIC_FILE_MAX   (64u << 20)
#define STATIC_ROOT_BYTES 512
#define STATIC_BOOT_BYTES 40 /* The kernel's boot_id, padded with zeros. */

struct static_dir; /* Opaque. */

/* Makes the folder (mode 0700) if it is missing, locks it, and reads what is there. SHARD_BUSY:
 * `state directory X is in use by pid N`. SHARD_PROTOCOL: a file is damaged, and e names it.
 * SHARD_SYSTEM: the file system failed. */
enum shard_status static_open(struct static_dir **out, const char *path, struct err *e);
/* Makes this start count, durably. To be called before anybody hears of its number. */
enum shard_status static_count(struct static_dir *d, struct err *e);
/* SHARD_BUSY as above. Makes and counts nothing. */
enum shard_status static_in_use(const char *path, struct err *e);
void static_close(struct static_dir **d);
const uint8_t *static_uuid(const struct static_dir *d); /* [STATIC_UUID_BYTES] Never changes. */
/* Is there another folder at `path` with this node's identity? Then one is a copy of the other. */
bool static_twin(const struct static_dir *d, const char *path);
/* Would a start with the state folder at `path` look for its memory in the folder of this name?
 * SHARD_NOT_FOUND: there is no such folder. SHARD_MISMATCH: it is of another node, or has other
 * memory. SHARD_SYSTEM: it cannot be read. e says which. */
enum shard_status static_keeps(const char *path, const uint8_t uuid[], const uint8_t name[],
			       struct err *e);
uint64_t static_start(const struct static_dir *d); /* Number of this start; the first is 1. */
/* A number beyond that of this start, for a term, is durable: the next start has a larger one. A
 * thread may call it, one at a time. */
enum shard_status static_count_more(const struct static_dir *d, uint64_t number, struct err *e);
/* The last incarnation of this node, that is, the number of the last start that began without
 * memory. 0: there was none yet. Durable once it is set. */
uint64_t static_member(const struct static_dir *d);
enum shard_status static_set_member(struct static_dir *d, uint64_t incarnation, struct err *e);

/* Is this node drained: shall it hold no chunks? Durable once it is set. */
bool static_drained(const struct static_dir *d);
enum shard_status static_set_drained(struct static_dir *d, bool drained, struct err *e);

/* What link/gone.c knows of each node, by its number. Zeros: nothing is kept. */
#define STATIC_GONE_NR 64
enum shard_status static_gone(struct static_dir *d, uint32_t gone[STATIC_GONE_NR], struct err *e);
enum shard_status static_set_gone(struct static_dir *d, const uint32_t gone[STATIC_GONE_NR],
				  struct err *e);

/* The membership source of the models that this node has, or had last. "": none is known. */
#define STATIC_SOURCE_BYTES 16
enum shard_status static_source(struct static_dir *d, char name[STATIC_SOURCE_BYTES],
				struct err *e);
enum shard_status static_set_source(struct static_dir *d, const char *name, struct err *e);

/* What is kept of the cluster since a node has joined it: config_args.cluster. The first one reads
 * the folder `path` without a lock, and allocates the text. NULL: nothing is kept, or there is no
 * such folder yet. */
enum shard_status static_cluster(const char *path, char **text, struct err *e);
enum shard_status static_set_cluster(struct static_dir *d, const char *text, struct err *e);

/* The folder on a tmpfs in which this node's memory outlives its process. Its name is drawn at
 * random, so that nobody can take it before this node does. */
struct static_warm {
	uint8_t name[STATIC_UUID_BYTES];
	/* The boot in which the folder was made; zeros: it was removed. */
	char boot[STATIC_BOOT_BYTES];
	/* The warm_dir that it is in; "": an older release made it. */
	char root[STATIC_ROOT_BYTES];
};
/* SHARD_NOT_FOUND: there is none. */
enum shard_status static_warm(struct static_dir *d, struct static_warm *w, struct err *e);
enum shard_status static_set_warm(struct static_dir *d, const struct static_warm *w, struct err *e);

enum shard_status static_save(struct static_dir *d, uint32_t model, const void *bytes,
			      size_t bytes_nr, struct err *e);
/* SHARD_OK also if there is none. */
enum shard_status static_drop(struct static_dir *d, uint32_t model, struct err *e);
/* Renames the model's file to what `name` then says, so that it is kept but not loaded any more. An
 * operator who gives up one model leaves such a file, too. */
enum shard_status static_leave(struct static_dir *d, uint32_t model, char *name, size_t name_bytes,
			       struct err *e);
bool static_left(const struct static_dir *d, uint32_t model);
/* Calls fn for each model's file, in the order of their numbers. A failure of fn ends it.
 * SHARD_PROTOCOL: a file is damaged; e names it, and fn does not see it. */
typedef enum shard_status static_load_fn(void *arg, uint32_t model, const void *bytes,
					 size_t bytes_nr, struct err *e);
enum shard_status static_load(struct static_dir *d, static_load_fn *fn, void *arg, struct err *e);

/* The same for the definitions of models, which have files of their own (model/definitions.h). One
 * that cannot be read does not end the load, because other nodes have it: fn gets no bytes, and e
 * says what is wrong. */
enum shard_status static_define(struct static_dir *d, uint32_t model, const void *bytes,
				size_t bytes_nr, struct err *e);
enum shard_status static_undefine(struct static_dir *d, uint32_t model, struct err *e);
enum shard_status static_load_definitions(struct static_dir *d, static_load_fn *fn, void *arg,
					  struct err *e);

#endif
