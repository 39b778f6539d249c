/* SPDX-License-Identifier: Apache-2.0 */
/* drop.h: the end of a model: on the coordinator its file, then on every node its trainers, its
 * memory and its place in the budget. */
#ifndef SHARD_DROP_H
#define SHARD_DROP_H

#include "model/model.h"
#include "link/call.h"
#include "link/caller.h"

/* Coordinator: the model's number and name mean nothing from here on; after a restart neither.
 * requester hears (manage_answer) when the memory is free on all nodes. force: nodes out of reach
 * are told when they are back. why: what its trainers hear. */
enum shard_status drop_everywhere(struct model *m, const struct caller *requester, bool force,
				  const char *why, struct err *e);
/* Another node: of a model that its coordinator does not have, or cannot be heard about. */
enum shard_status drop_here(struct model *m, const char *why, struct err *e);
/* MODEL_DROP of the coordinator; h->attempt: answered when the memory is free. */
void drop_told(struct peer *p, const struct wire_head *h, const Shard__Why *body);
bool drop_in_hand(const struct server *s, const char *name);
bool drop_in_hand_id(const struct server *s, uint32_t model);
/* After a link came up each node names its models to the coordinator, which says what it has
 * dropped meanwhile. */
void drop_compare(struct server *s);
void drop_unknown(struct peer *p,
		  uint32_t model); /* the coordinator hears of one that it does not have */
void drop_beat(struct server *s, uint64_t now_ns);
void drop_free(struct server *s); /* the server ends */

#endif
