/* SPDX-License-Identifier: Apache-2.0 */
/* have.h: what nodes tell each other of the memory of a model. */
#ifndef SHARD_CONTROL_HAVE_H
#define SHARD_CONTROL_HAVE_H

#include "base/status.h"
#include "shard.pb-c.h"
#include "wire/frame.h"

#include <stdbool.h>
#include <stdint.h>

struct model;
struct peer;

/* MODEL of the coordinator: makes the model here, and answers with its memory. */
enum shard_status have_model(struct peer *p, const struct wire_head *h, const Shard__Model *body,
			     struct err *e);
/* HELD: that node has the model, in this memory, or (incarnation 0) has lost its copy. */
enum shard_status have_held(struct peer *p, const struct wire_head *h, const Shard__Memory *body,
			    struct err *e);
/* Tells that node of the memory here. asks: it may have told before this node had the model, and
 * tells again. */
void have_say(struct model *m, uint16_t node, bool asks);
void have_gone(struct model *m, const char *why); /* Tells all nodes that the copy here is lost. */

#endif
