/* SPDX-License-Identifier: Apache-2.0 */
/* slots.h: what a node needs of other nodes in an attempt: landing slots that it lends for their
 * contributions and reduced gradients, and what their ranks gave. Private to daemon/core. */
#ifndef SHARD_CORE_SLOTS_H
#define SHARD_CORE_SLOTS_H

#include "core/step.h"

/* Messages. The dispatcher in core.c has checked the sender. */
void slots_on_grant(struct ctx *x, const struct core_msg *m);
void slots_on_drained(struct ctx *x, const struct core_msg *m);

/* For step.c. */
void slots_begin(struct ctx *x);   /* The attempt in hand is STAGING. */
void slots_dropped(struct ctx *x); /* It is about to be dropped. */
void slots_drained(struct ctx *x); /* Nothing of an attempt up to .drained leaves any more. */
void slots_repeat(struct ctx *x);
void slots_link_down(struct ctx *x, uint16_t node);
void slots_link_up(struct ctx *x, uint16_t node);
/* There are other members. The shell keeps off what a node that is none may still write. */
void slots_placed(struct core *c);
/* Does STAGING wait for something of that node? */
bool slots_needs(const struct core *c, uint16_t node);
/* Does this node know what the ranks of that node gave, and that all of them are ready? */
bool slots_told(const struct step *s, uint16_t node);
/* Tells that node what the ranks of this node gave, once all are ready and that node has asked. */
void slots_tell_ranks(struct ctx *x, uint16_t node);

#endif
