/* SPDX-License-Identifier: Apache-2.0 */
/* inner.h: the memory of one core and what its files share. Nothing outside daemon/core includes it. The memory is flat: no pointer
 * into itself, so that a copy of the bytes is a copy of the state. */
#ifndef SHARD_CORE_INNER_H
#define SHARD_CORE_INNER_H

#include "core/core.h"

#include "base/check.h"
#include "core/coord.h"
#include "core/member.h"
#include "core/step.h"

#ifndef CORE_TEXTS_BYTES
#define CORE_TEXTS_BYTES 8192 /* sentences of one call; they live until the next */
#endif
#define CORE_INBOX_NR  (CORE_RANKS_MAX + 16) /* one message to ourselves per trainer, and the verdict's */
#define CORE_SECOND_NS 1000000000ull         /* repeats slow down to one a second */
#define WARM_WORDS     13                    /* that tell one state which must survive from the next: warm.c */

struct core {
	struct core_conf conf;
	uint32_t held_nr[CORE_NODES_MAX];                                                         /* chunks of each node */
	size_t at_index, at_staged, at_sumsq, at_finite, at_all_sumsq, at_all_finite, at_weights; /* arrays behind this struct */
	struct step step;
	struct member member;
	struct coord coord;
	bool stopping;                  /* CORE_EV_STOP came: for the rest of this process, not of its memory */
	bool warm_due;                  /* CORE_EV_WARM has to come first */
	uint64_t warm_word[WARM_WORDS]; /* of what was saved last */
	size_t texts_used;
	char texts[CORE_TEXTS_BYTES];
};

struct ctx { /* one call */
	struct core *c;
	struct core_out *out;
	uint64_t now;
	uint32_t head, tail; /* messages to ourselves */
	struct core_msg inbox[CORE_INBOX_NR], nobody;
};

struct core_action *core_act(struct ctx *x, enum core_action_type type);
/* Fills the common fields. To a node without a link the message goes nowhere: LINK_UP repeats what matters. Never NULL. */
struct core_msg *core_send(struct ctx *x, uint16_t to, enum core_op op, const struct core_id *id);
__attribute__((format(printf, 2, 3))) const char *core_text(struct core *c, const char *fmt, ...);
void core_copy_text(char *to, size_t bytes, const char *from); /* NULL: empty */
bool core_linked(const struct core *c, uint16_t node);         /* or self */
bool core_coordinates(const struct core *c);
bool core_world_ok(const struct core *c, const struct core_world *w);                  /* one that came in a message; NULL: false */
const char *core_rank_name(struct core *c, const struct core_world *w, uint32_t rank); /* "rank 3 (pid 712, node b)" */
uint32_t core_local_ranks(const struct core_world *w, uint16_t node);

void timer_stop(struct timer *t);
void timer_start(const struct core *c, struct timer *t, uint64_t now);
void timer_next(const struct core *c, struct timer *t, uint64_t now);

static inline void *core_at(struct core *c, size_t at)
{
	return (char *)c + at;
}

#endif
