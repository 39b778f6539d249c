/* SPDX-License-Identifier: Apache-2.0 */
/* tables.h: the tables of who holds each chunk, to which the placements of one model point. Views
 * come and go, and many name the same tables. Each table is here once, for as long as the core, the
 * placement that is in force here or the file on its way to the disk names it. The tables of the
 * definition stay. Everything belongs to the loop thread. */
#ifndef SHARD_MODEL_TABLES_H
#define SHARD_MODEL_TABLES_H

#include "core/msg.h"
#include "shard.pb-c.h"
#include "warm/meta.h"

#include <stdbool.h>

struct model;

/* Reads the definition's tables, and chooses those that the memory here is made for, which become
 * m->place: with memory of an earlier start (found) those that the core had adopted there, else
 * those of the coordinator's view, else those that came with MODEL, else the definition's.
 * SHARD_MISMATCH: the memory has other tables than its core. SHARD_PROTOCOL: tables are none of
 * this model. */
enum shard_status tables_begin(struct model *m, const struct core_view *view,
			       const struct meta_found *found, struct err *e);
/* p's tables may be scratch memory. Afterwards they are the model's, and equal ones are the same.
 * If p has none, its sum has to be that of the definition, whose tables it gets. After a failure p
 * is as it was. */
enum shard_status tables_take(struct model *m, struct placement *p, struct err *e);
/* The same for tables that another node sent: MODEL names those that memory is to be made for, and
 * ROOM those that it is to be made for next. After a failure p is as it was. */
enum shard_status tables_read(struct model *m, const Shard__Tables *sent, struct placement *p,
			      struct err *e);
/* A copy of the view with tables of the model, which the caller frees. NULL: see tables_take(). */
struct core_view *tables_view(struct model *m, const struct core_view *view, struct err *e);
/* A word for each chunk, for CORE_EV_PLACE. No other placement shares it. NULL: no memory. */
uint64_t *tables_room(struct model *m);
/* Frees those that nobody names any more. What tables_take() gave has to be named by then. */
void tables_tidy(struct model *m);
void tables_free(struct model *m);

/* For MODEL: fills out with the tables of the newest view that this node knows, so that the memory
 * which the receiver makes is for them. Returns NULL if they are those of the definition, or if the
 * arena is too small. */
Shard__Tables *tables_for_model(const struct model *m, struct arena *a, Shard__Tables *out);
/* Before a message leaves for that node: does its release take this view? If not, that is logged
 * with the node's name, and the message has to stay here. */
bool tables_may_send(struct model *m, uint16_t node, const struct core_view *view);

#endif
