/* SPDX-License-Identifier: Apache-2.0 */
/* known.h: models that the value of a membership source names and that this node does not have,
 * although it coordinates: it was away when they were defined, or all nodes started again without
 * their memory. Nothing is known where the coordinator is not elected. */
#ifndef SHARD_CONTROL_KNOWN_H
#define SHARD_CONTROL_KNOWN_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct server;

/* Such a name cannot be defined (SHARD_LOST) before its view is forgotten. SHARD_BUSY: it is not
 * known yet whether another node has the model. */
enum shard_status known_may_define(struct server *s, const char *name, struct err *e);
/* Forgets the view, if there is one. done: as lead_forget() has it. */
void known_forget(struct server *s, const char *name, void (*done)(void *arg, const struct err *e),
		  void *arg);
/* Another node has this model, or its definition. True: it has a view and is not here. This node
 * then gives the lead away, unless it makes the model itself. */
bool known_elsewhere(struct server *s, uint32_t model);
/* The models of which this node has the definition and nothing else, in the order of their numbers,
 * beginning after `before`. 0: there are no more. One that is being dropped may be among them. */
uint32_t known_next(struct server *s, uint32_t before);

#endif
