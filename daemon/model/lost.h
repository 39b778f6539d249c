/* SPDX-License-Identifier: Apache-2.0 */
/* lost.h: the end of a model's generation, when its weights are lost. model.c calls as the core
 * decides. */
#ifndef SHARD_LOST_H
#define SHARD_LOST_H

#include "model/model.h"

/* True: the weights are lost, and no restore is bringing them back. Only `shardctl restore` and
 * `shardctl model drop` help, or, with when_lost = reinitialize, a new definition. It is true on
 * every node. */
bool lost_for_good(const struct model *m);
/* SHARD_LOST: the model is lost for good and may not be written anew. The error says what happened
 * and what can be done. */
enum shard_status lost_check(const struct model *m, struct err *e);
/* At a start: takes over why the weights of a model are lost, as the coordinator's file says. */
void lost_loaded(struct model *m, const struct core_view *view, const char *why);

/* Why its weights are gone. Empty: they are not, or nobody here knows. */
const char *lost_why(const struct model *m);
/* The coordinator says so with MODEL, to a node that has no view of the model yet. */
void lost_told(struct model *m, const char *why);
/* Why a model is given up for a restore that somebody asked for begins with it. Every node hears
 * this reason, and it is no loss. */
#define LOST_BY_ORDER "restored from "
/* Carries out CORE_ACT_LOST. */
void lost_act(struct model *m, const struct core_action *a);
/* After each view: a node that has just started may know a model by a generation that ends before
 * its first view comes. The core then has no CORE_ACT_LOST, because nothing of that generation is
 * here. This function makes the node follow to the new generation, because requests will name that.
 */
void lost_follow(struct model *m);
/* No checkpoint is left to restore. The view that says so has to become durable first. Requests are
 * refused with this reason already. */
void lost_no_way_back(struct model *m, const char *why);
void lost_sealed(
	struct model *m,
	const struct record *r); /* Before the image is published. It also ends a rollback. */

#endif
