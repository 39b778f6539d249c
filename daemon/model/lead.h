/* SPDX-License-Identifier: Apache-2.0 */
/* lead.h: which node coordinates, where that is elected. With `membership = static` the first node
 * of the list coordinates and nothing here exists. Otherwise a membership source (cluster/source.h)
 * keeps the views of all models as one value, and says who leads. This is the daemon's side of it:
 * it starts the source, gives it the messages of other nodes, tells the cores when this node leads
 * and when it does not any more, and keeps their views. Loop thread only. */
#ifndef SHARD_MODEL_LEAD_H
#define SHARD_MODEL_LEAD_H

#include "base/status.h"
#include "shard.pb-c.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct core_action;
struct model;
struct peer;
struct server;

bool lead_on(const struct server *s); /* The coordinator is elected. */
/* After the state folder is open, and before there is a link or a model. Nothing is made with
 * `static`. The caller has to call lead_free() even if this fails. */
enum shard_status lead_init(struct server *s, struct err *e);
/* The loop runs. The source starts, on the first node of a new cluster when all nodes are linked
 * and none of them has a value. */
void lead_start(struct server *s);
/* This node gives the lead away, and nothing more becomes durable. done: lead_ended() is true. */
void lead_stop(struct server *s);
bool lead_ended(const struct server *s);
void lead_free(struct server *s);
void lead_beat(struct server *s);

/* Does this node vote in elections? False until it is known here who does. */
bool lead_votes(const struct server *s, uint16_t node);
bool lead_voters_known(const struct server *s);
/* Has an election ever been opened here? */
bool lead_has_file(const struct server *s);
/* Is it known who coordinates? SHARD_BUSY: not now. */
enum shard_status lead_known(const struct server *s, struct err *e);
/* Refuses what only the coordinator does. The sender does not know better yet. */
enum shard_status lead_refuse(const struct server *s, struct err *e);

/* Links. */
void lead_node_up(struct server *s, uint16_t node);
void lead_node_down(struct server *s, uint16_t node);
enum shard_status lead_message(struct peer *p, const void *body, uint32_t bytes, struct err *e);
/* The process may have been stopped for long. Called before anything that came meanwhile is looked
 * at. */
void lead_wake(struct server *s);

/* The model is made. If this node leads, its core hears so. */
void lead_model(struct model *m);
/* Makes the list of nodes durable, with this one behind it. This node leads. done is called later,
 * unless this fails. */
struct config_node;
enum shard_status lead_save_node(struct server *s, const struct config_node *more,
				 void (*done)(void *arg, const struct err *e), void *arg,
				 struct err *e);
/* The model is dropped, and its view goes with it. done: it will not come back, or (e) that is not
 * known. It is called at once if there is nothing to wait for. NULL: nobody waits. */
void lead_forget(struct server *s, uint32_t model, void (*done)(void *arg, const struct err *e),
		 void *arg);
/* This node leads: the next model from *at on that has a view and is not known here. NULL: none. */
const Shard__Kept *lead_lacks(struct server *s, size_t *at);
/* This node leads, and has a value that does not have the model. */
bool lead_forgot(const struct server *s, uint32_t model);
/* etcd is down, so nothing can be made durable before it is back. */
bool lead_unanswered(const struct server *s);
/* Since when this node leads, if it does. */
uint64_t lead_since(const struct server *s);
/* This node leads and must not: it gives the lead away. */
void lead_resign(struct server *s, const char *why);
void lead_yield(struct model *m, const struct core_action *a); /* The core of a model wants it. */

#endif
