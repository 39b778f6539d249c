/* SPDX-License-Identifier: Apache-2.0 */
/* health.h: the one judgement of what is wrong. `shardctl status`, doctor, the page, /healthz,
 * /readyz and the metrics all show it. Each node judges itself and its links, the coordinator
 * judges the models, and each tells the others what they cannot see, so that any node can be asked.
 */
#ifndef SHARD_OBS_HEALTH_H
#define SHARD_OBS_HEALTH_H

#include "base/status.h"
#include "shard.pb-c.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct model;
struct peer;
struct server;

/* warn: somebody should know. ill: training stands or state is in danger; somebody must act. */
enum health_level { HEALTH_OK, HEALTH_WARN, HEALTH_ILL };
const char *health_level_name(enum health_level level);

/* What is wrong with one thing. The texts live as long as the call that hands the finding out. */
struct health_finding {
	enum health_level level;
	const char *kind;      /* obs/README.md has them all. */
	const char *about;     /* The name of a node or a model. */
	const struct model *m; /* The model. NULL: it is about a node. */
	const char *text;      /* A whole sentence, which also says what to do. */
};

/* The worst level, and every finding as this user may see it. NULL: there was no memory. */
json_t *health_json(const struct server *s, const Shard__Cred *who);
/* The same as lines of text: "ill: ..." and "warn: ...". f NULL: only the level is asked for. */
enum health_level health_lines(FILE *f, const struct server *s, const Shard__Cred *who);
/* Why trainers cannot connect and train here. Empty: they can. */
void health_ready(const struct server *s, char *why, size_t bytes);

/* What the coordinator said of a model. NULL: it has not, or this node coordinates. */
const Shard__Known *health_known(const struct model *m);
const char *health_known_state(const struct model *m);

enum shard_status health_init(struct server *s, struct err *e);
void health_free(struct server *s);
void health_beat(struct server *s); /* Tells other nodes what has changed. */
void health_node_up(struct server *s, uint16_t node);
/* HEALTH has come. SHARD_PROTOCOL: a level or a state that there is not. */
enum shard_status health_told(struct peer *p, const Shard__Health *body, struct err *e);

#endif
