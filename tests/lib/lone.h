/* SPDX-License-Identifier: Apache-2.0 */
/* lone.h: one core alone, linked to two other nodes that the test plays. Node a coordinates and
 * holds nothing; b and c hold a chunk each. */
#ifndef SHARD_TESTS_LONE_H
#define SHARD_TESTS_LONE_H

#include "core/inner.h"

enum { A, B, C, LONE_NODES, SESSION = 21 /* of the trainer at b */ };

struct lone {
	struct core *core;
	struct core_out out; /* of the last event */
	uint64_t now;
};

struct core_conf lone_conf(uint16_t self, uint64_t term); /* what lone_init() gives the core */
/* As node self in this term, with the view that its disk has; NULL: none. */
void lone_init(struct lone *l, uint16_t self, uint64_t term, const struct core_view *view);
void lone_deinit(struct lone *l);
void lone_event(struct lone *l, struct core_event e);
/* Of the process of that node that it is linked to, unless the message names another one. */
void lone_msg(struct lone *l, uint16_t from, struct core_msg m);
/* The first such action, or message, of the last event. NULL: there was none. */
const struct core_action *lone_acted(const struct lone *l, enum core_action_type type);
const struct core_msg *lone_sent(const struct lone *l, enum core_op op);

uint64_t lone_incarnation(uint16_t n);
struct core_id lone_id(uint64_t term, uint32_t seq, uint64_t step, uint32_t attempt);
/* A seal up to step 4, and then applied steps of the trainer at b. */
struct record lone_record(uint64_t term, uint32_t seq, uint64_t step);
struct core_view lone_view(uint64_t term, uint32_t seq, const struct record *r); /* of all three */

#endif
