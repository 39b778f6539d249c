/* SPDX-License-Identifier: Apache-2.0 */
/* view_file.h: writes a model's definition and view to the coordinator's disk, in a thread. So a
 * disk that stalls delays views and nothing else. */
#ifndef SHARD_PERSIST_H
#define SHARD_PERSIST_H

#include "base/status.h"
#include "shard.pb-c.h"

#include <stdbool.h>
#include <stddef.h>

#define PERSIST_FORMAT 6u /* Of the file. Raise it with each change of a view. */

struct core_view;
struct model;
struct core_id;
struct server;

/* Call it before any view of the model. done() is called each time that a view is durable. */
enum shard_status persist_make(struct model *m, void (*done)(struct model *m), struct err *e);
/* Writes a view, then calls done(), which gives the core CORE_EV_PERSISTED. There is one view at a
 * time, because the core waits for it. A write that fails is tried again at the next beat. lost:
 * why the weights are lost, or NULL. */
void persist_view(struct model *m, const struct core_view *v, const char *lost);
bool persist_busy(const struct model *m); /* A thread is writing the file. Nothing else may write or
					     remove it. */
/* Writes a file that the caller has packed with the view that is durable. Takes file over.
 * CHECK: no view is on its way and no thread is writing the file. The watchers get `persisted` and
 * then done() is called. e not NULL: why the write failed. */
typedef void persist_file_fn(struct model *m, const struct err *e);
void persist_file(struct model *m, void *file, size_t bytes, persist_file_fn *done);
/* The number of the view that is or was on its way. */
struct core_id persist_id(const struct model *m);
/* The core does not want the view any more, because this node does not lead. It may become durable
 * all the same. */
void persist_cancel(struct model *m);
/* Does that view name this table? */
bool persist_names(const struct model *m, const void *table);
bool persist_pending(const struct model *m); /* A view is on its way to the disk. */
void persist_beat(struct model *m);
/* Writes why this node's disk does not take a view of some model, for which its training waits.
 * Empty: nothing waits for that. */
void persist_ill(const struct server *s, char *text, size_t bytes);
void persist_free(struct model *m); /* CHECK: not busy */
/* The view in such a file, which the caller frees. NULL: e says why it is none of this model. */
struct core_view *persist_read(struct model *m, const Shard__ModelFile *file, struct err *e);

#endif
