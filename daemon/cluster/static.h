/* SPDX-License-Identifier: Apache-2.0 */
/* static.h: what static membership keeps in the state directory: a lock, the node's identity, its starts, its incarnation, and one file per
 * model with whatever its owner wants to find again after a restart. What was saved is on disk when the call returns. */
#ifndef SHARD_CLUSTER_STATIC_H
#define SHARD_CLUSTER_STATIC_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

#define STATIC_UUID_BYTES 16
#define STATIC_FILE_MAX   (64u << 20)

struct static_dir; /* opaque */

/* Makes the directory where it is missing (mode 0700), locks it, and raises the number of starts by one, durably. SHARD_BUSY: `state
 * directory X is in use by pid N`; SHARD_PROTOCOL: a file that is damaged, named; SHARD_SYSTEM. */
enum shard_status static_open(struct static_dir **out, const char *path, struct err *e);
void static_close(struct static_dir **d);
const uint8_t *static_uuid(const struct static_dir *d); /* [STATIC_UUID_BYTES], the same for ever */
uint64_t static_start(const struct static_dir *d);      /* which start this is; the first is 1 */
/* What incarnation this node was last: the number of the last start that began without memory. 0: none yet. Durable when set. */
uint64_t static_member(const struct static_dir *d);
enum shard_status static_set_member(struct static_dir *d, uint64_t incarnation, struct err *e);

enum shard_status static_save(struct static_dir *d, uint32_t model, const void *bytes, size_t bytes_nr, struct err *e);
enum shard_status static_drop(struct static_dir *d, uint32_t model, struct err *e); /* none there: SHARD_OK */
/* It is found no more, but stays, as what .name says from then on. */
enum shard_status static_leave(struct static_dir *d, uint32_t model, char *name, size_t name_bytes, struct err *e);
/* Each model's file, by number. fn's failure ends it. A truncated or corrupt file: SHARD_PROTOCOL, named, before fn sees it. */
typedef enum shard_status static_load_fn(void *arg, uint32_t model, const void *bytes, size_t bytes_nr, struct err *e);
enum shard_status static_load(struct static_dir *d, static_load_fn *fn, void *arg, struct err *e);

#endif
