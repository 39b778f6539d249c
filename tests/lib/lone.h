/* SPDX-License-Identifier: Apache-2.0 */
/* lone.h: one core that is linked to two other nodes, which the test plays. Node a coordinates and
 * holds no chunk. Nodes b and c hold one chunk each. */
#ifndef SHARD_TESTS_LONE_H
#define SHARD_TESTS_LONE_H

#include "core/inner.h"

enum { A, B, C, LONE_NODES, SESSION = 21 /* Of the trainer at b. */ };

struct lone {
	struct core *core;
	struct core_out out; /* Of the last event. */
	uint64_t now;
};

/* The configuration that lone_init() gives the core. */
struct core_conf lone_conf(uint16_t self, uint64_t term);
/* Starts the core as node self in this term with the view that its disk has. NULL: it has none. */
void lone_init(struct lone *l, uint16_t self, uint64_t term, const struct core_view *view);
/* The same for a model that has had no view yet and is placed so. */
void lone_first(struct lone *l, uint16_t self, uint64_t term, struct placement place);
void lone_deinit(struct lone *l);
void lone_event(struct lone *l, struct core_event e);
/* The message comes from the process of that node to which the core is linked, unless it names
 * another one. */
void lone_msg(struct lone *l, uint16_t from, struct core_msg m);
/* The first such action or message of the last event. NULL: there was none. */
const struct core_action *lone_acted(const struct lone *l, enum core_action_type type);
const struct core_msg *lone_sent(const struct lone *l, enum core_op op);

uint64_t lone_incarnation(uint16_t n);
struct view_node lone_who(uint16_t n);
struct core_id lone_id(uint64_t term, uint32_t seq, uint64_t step, uint32_t attempt);
/* The record is a seal up to step 4, and after that an applied step of the trainer at b. */
struct record lone_record(uint64_t term, uint32_t seq, uint64_t step);
/* Of all three nodes. */
struct core_view lone_view(uint64_t term, uint32_t seq, const struct record *r);

#endif
