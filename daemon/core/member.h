/* SPDX-License-Identifier: Apache-2.0 */
/* member.h: this node as a member: promises, the view it adopted, its links, its trainers. Private to daemon/core. */
#ifndef SHARD_CORE_MEMBER_H
#define SHARD_CORE_MEMBER_H

#include "core/step.h"

struct peer {                   /* what this node knows of another */
	bool linked, owes;      /* owes: transfers of a dropped attempt may still be on their way from it to us */
	uint64_t incarnation;   /* of the link */
	struct core_id granted; /* newest attempt for which it has our slots */
	struct core_id credit;  /* newest attempt for which we have its slots */
};

struct local { /* a trainer of this node, until the coordinator has heard of its end */
	struct core_trainer t;
	bool used, live, told; /* told: the coordinator has heard what is written here */
	char why[48];
};

struct member {
	uint64_t promised; /* no lower term is heeded */
	uint64_t term;     /* of the view adopted here, 0: none */
	uint32_t seq, generation;
	bool sealed, restoring, has_next; /* has_next: a VIEW that waits for APPLYING to end */
	struct core_tune tune;
	struct core_view next;
	struct timer timer; /* of the trainers' JOIN and GONE */
	struct peer peer[CORE_NODES_MAX];
	struct local local[CORE_RANKS_MAX];
	struct core_answer answer;     /* the last one, for as long as its action lives */
	char next_why[CORE_WHY_BYTES]; /* of .next */
	char waits[512];               /* the coordinator's words about .waits_id */
	struct core_id waits_id;
};

void member_on_ask(struct ctx *x, const struct core_msg *m);
void member_on_view(struct ctx *x, const struct core_msg *m);
void member_on_waiting(struct ctx *x, const struct core_msg *m);
void member_resume(struct ctx *x); /* a VIEW that waited for APPLYING */
bool member_adopted(const struct core *c,
		    const struct core_id *id); /* .id is of the view adopted here, and no promise forbids it */

/* local.c */
void local_join(struct ctx *x, const struct core_event *e);
void local_gone(struct ctx *x, const struct core_event *e);
void local_abandon(struct ctx *x, const struct core_event *e);
void local_on_join(struct ctx *x, const struct core_msg *m); /* the coordinator heard */
void local_on_gone(struct ctx *x, const struct core_msg *m); /* it is out, or expelled */
void local_tell_again(struct ctx *x);                        /* a new coordinator, or a new link to it */
void local_on_tick(struct ctx *x);
/* NULL: every local rank of the world is here and stays. Else a sentence, and the coordinator is told about who is not. */
const char *local_missing(struct ctx *x, const struct core_world *w);

#endif
