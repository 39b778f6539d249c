/* SPDX-License-Identifier: Apache-2.0 */
/* drop.h: the end of a model. Its trainers are told, its file on the coordinator is removed, and
 * then its memory is freed on every node. */
#ifndef SHARD_DROP_H
#define SHARD_DROP_H

#include "model/model.h"
#include "link/call.h"
#include "link/caller.h"

/* On the coordinator. From here on the model is not found by its number or name, and once its file
 * is gone a restart does not bring it back. requester gets manage_answer() when the memory is free
 * on all nodes. force: nodes out of reach are told when they are back. why: the text for its
 * trainers. */
enum shard_status drop_everywhere(struct model *m, const struct caller *requester, bool force,
				  const char *why, struct err *e);
/* On another node: drops a model whose definition failed there. */
enum shard_status drop_here(struct model *m, const char *why, struct err *e);
/* The same on any node: other nodes may have the model, and are not told. With m->memory.anew it is
 * made again here (anew.h): who has joined it may come back, and files stay. */
enum shard_status drop_alone(struct model *m, const char *why, struct err *e);
/* The same of one of unmade.h. SHARD_BUSY: its memory is just being made or given back. */
enum shard_status drop_unmade(struct server *s, const char *name, const struct caller *requester,
			      const char *why, struct err *e);
/* MODEL_DROP of the coordinator. If h->attempt is not 0, it is answered when the memory is free. */
void drop_told(struct peer *p, const struct wire_head *h, const Shard__Why *body);
/* True: a drop of that model is not finished. */
bool drop_in_hand(const struct server *s, const char *name);
bool drop_in_hand_id(const struct server *s, uint32_t model);
/* After a link to the coordinator came up: names each model of this node to it, so that it can say
 * which ones it dropped meanwhile. */
void drop_compare(struct server *s);
/* On the coordinator, for such a name: tells the node to drop a model that is not here. has: the
 * node could have it made; otherwise it only wants to know whether the model is still there. */
void drop_unknown(struct peer *p, uint32_t model, bool has);
void drop_beat(struct server *s, uint64_t now_ns);
/* Before the threads end: what these models have on a disk is left alone from now on. */
void drop_stop(struct server *s);
void drop_free(struct server *s); /* At the end of the server. */

#endif
