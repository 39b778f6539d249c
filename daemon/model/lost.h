/* SPDX-License-Identifier: Apache-2.0 */
/* lost.h: a model's generation is over. model.c calls with the core's word. */
#ifndef SHARD_LOST_H
#define SHARD_LOST_H

#include "model/model.h"

/* Its weights are gone, and nobody is bringing them back: only `shardctl restore` and `shardctl
 * model drop` lead on, or, with when_lost = reinitialize, a definition. On every node. */
bool lost_for_good(const struct model *m);
/* SHARD_LOST with what happened and the ways on, if it is lost for good and may not be written
 * anew. */
enum shard_status lost_check(const struct model *m, struct err *e);
/* What the coordinator's file said of a model that has no weights. */
void lost_loaded(struct model *m, const struct core_view *view, const char *why);

void lost_act(struct model *m, const struct core_action *a);
/* A node that has just started may be told of a model in a generation that ends before its first
 * view comes. Nothing of that generation is here, so the core has nothing to say, but what is asked
 * of the node from now on is of the new one. */
void lost_follow(struct model *m);
/* No checkpoint is left to restore. The view that says so has to be written first: who asks
 * meanwhile is told already. */
void lost_no_way_back(struct model *m, const char *why);
void lost_sealed(
	struct model *m,
	const struct record *r); /* before the image is published: the weights may be back */

#endif
