/* SPDX-License-Identifier: Apache-2.0 */
/* view_file.h: a model's definition and view go to the coordinator's disk, on a thread of their
 * own: a disk that stalls delays views, and nothing else. */
#ifndef SHARD_PERSIST_H
#define SHARD_PERSIST_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

#define PERSIST_FORMAT 3u /* of the file: grows with each change of what a view says */

struct core_view;
struct model;

/* done: called each time that a view is durable. */
enum shard_status persist_make(struct model *m, void (*done)(struct model *m),
			       struct err *e); /* before any view of it */
/* Then CORE_EV_PERSISTED. One at a time: the core waits for it. What fails is tried again with the
 * beat. */
void persist_view(struct model *m, const struct core_view *v,
		  const char *lost); /* lost: why its weights are gone, or NULL */
bool persist_busy(const struct model
			  *m); /* a thread has its file in hand: nobody else writes or removes it */
/* Writes what a row says now with the view that is durable; takes file over. CHECK: no view is on
 * its way and no thread has the file. The rows hear `persisted`, then done; e: why not. */
typedef void persist_file_fn(struct model *m, const struct err *e);
void persist_file(struct model *m, void *file, size_t bytes, persist_file_fn *done);
bool persist_pending(const struct model *m); /* a view is on its way to the disk */
void persist_beat(struct model *m);
void persist_free(struct model *m); /* CHECK: not busy */

#endif
