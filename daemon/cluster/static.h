/* SPDX-License-Identifier: Apache-2.0 */
/* static.h: what static membership keeps in the state directory: a lock, the node's identity, its
 * starts, its incarnation, and one file per model with whatever its owner wants to find again after
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
#define STATIC_BOOT_BYTES 40 /* boot_id of the kernel, padded with zeros */

struct static_dir; /* opaque */

/* Makes the directory where it is missing (mode 0700), locks it, and reads what is there.
 * SHARD_BUSY: `state directory X is in use by pid N`; SHARD_PROTOCOL: a file that is damaged,
 * named; SHARD_SYSTEM. */
enum shard_status static_open(struct static_dir **out, const char *path, struct err *e);
/* From now on this start counts, durably. Before anybody hears of its number. */
enum shard_status static_count(struct static_dir *d, struct err *e);
/* SHARD_BUSY as above, without making or counting anything. */
enum shard_status static_in_use(const char *path, struct err *e);
void static_close(struct static_dir **d);
const uint8_t *static_uuid(const struct static_dir *d); /* [STATIC_UUID_BYTES], the same for ever */
/* Is another folder at `path` which has this node's identity, too? Then one is a copy. */
bool static_twin(const struct static_dir *d, const char *path);
uint64_t static_start(const struct static_dir *d); /* which start this is; the first is 1 */
/* What incarnation this node was last: the number of the last start that began without memory. 0:
 * none yet. Durable when set. */
uint64_t static_member(const struct static_dir *d);
enum shard_status static_set_member(struct static_dir *d, uint64_t incarnation, struct err *e);

/* The folder of a tmpfs in which this node's memory outlives its process. Its name is drawn at
 * random, so that nobody can take it before this node has. */
struct static_warm {
	uint8_t name[STATIC_UUID_BYTES];
	char boot[STATIC_BOOT_BYTES]; /* in which it was made; zeros: it was removed */
	char root[STATIC_ROOT_BYTES]; /* warm_dir, which it is in; "": an older release made it. */
};
enum shard_status static_warm(struct static_dir *d, struct static_warm *w,
			      struct err *e); /* SHARD_NOT_FOUND: there is none */
enum shard_status static_set_warm(struct static_dir *d, const struct static_warm *w, struct err *e);

enum shard_status static_save(struct static_dir *d, uint32_t model, const void *bytes,
			      size_t bytes_nr, struct err *e);
enum shard_status static_drop(struct static_dir *d, uint32_t model,
			      struct err *e); /* none there: SHARD_OK */
/* It is found no more, but stays, as what .name says from then on. An operator who gives up one
 * model leaves such a file, too. */
enum shard_status static_leave(struct static_dir *d, uint32_t model, char *name, size_t name_bytes,
			       struct err *e);
bool static_left(const struct static_dir *d, uint32_t model);
/* Each model's file, by number. fn's failure ends it. A truncated or corrupt file: SHARD_PROTOCOL,
 * named, before fn sees it. */
typedef enum shard_status static_load_fn(void *arg, uint32_t model, const void *bytes,
					 size_t bytes_nr, struct err *e);
enum shard_status static_load(struct static_dir *d, static_load_fn *fn, void *arg, struct err *e);

#endif
