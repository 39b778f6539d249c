/* SPDX-License-Identifier: Apache-2.0 */
/* cluster.h: the status of the whole cluster for HTTP, as of what other nodes said last. */
#ifndef SHARD_OBS_CLUSTER_H
#define SHARD_OBS_CLUSTER_H

#include "shard.pb-c.h"

struct server;

/* Asks every node that is up for its status, but for those whose last answer is still missing. who:
 * in whose name, or NULL. Without memory nobody is asked. */
void cluster_ask(struct server *s, Shard__Cred *who);
/* This node's status as status_json() makes it, with what the others answered last, or why they did
 * not, as everywhere_request() puts it in. The text is from malloc(); NULL: no memory. */
char *cluster_json(const struct server *s, const Shard__Cred *who);
void cluster_free(struct server *s);

#endif
