/* SPDX-License-Identifier: Apache-2.0 */
/* coord.h: the coordinator: views and recovery (recover.c), attempts and their verdict (coord.c), trainers and worlds (world.c), who
 * is waited for (waits.c). Private to daemon/core. */
#ifndef SHARD_CORE_COORD_H
#define SHARD_CORE_COORD_H

#include "core/member.h"

enum coord_state { COORD_OFF, COORD_RECOVER, COORD_PERSIST, COORD_VIEW, COORD_OPEN, COORD_NR };

struct coord_node {
	uint64_t absent_since; /* 0: linked */
	uint64_t incarnation;  /* that answered */
	uint32_t generation;   /* that it answered */
	struct core_id prepared;
	bool answered, is_prepared, view_ok, voted, begun, done, reported;
	struct core_waits waits; /* its last report about the attempt */
};

struct coord {
	enum coord_state state;
	bool has_view, has_last, undecided, want_seal, skip;
	bool prepared_differs; /* RECOVER: its votes differ in lr */
	bool has_lr;           /* .lr: of the first node with ranks that voted */
	bool hold, held;       /* CORE_EV_HOLD is on; and CORE_ACT_HELD was given */
	bool tune_due;         /* .tune waits for a boundary */
	bool tune_tell;        /* CORE_ACT_TUNED when the view in hand is adopted by all */
	bool checkpoint;       /* there is one to come back to */
	bool rollback;         /* CORE_EV_ROLLBACK waits until views may change */
	bool has_restored;     /* .restored: of CORE_EV_WRITTEN */
	double lr[CORE_GROUPS_MAX];
	uint32_t lr_nr, lr_rank;
	struct core_view view;    /* durable, or in COORD_PERSIST on its way to disk */
	struct core_view durable; /* what VIEW carries: .view may become the next one in the same call */
	struct core_id id;        /* the attempt, or the last one */
	uint64_t begun_ns, seal_step, held_ns;
	uint32_t attempt; /* the highest used for the next step */
	int64_t bad_tensor;
	int32_t bad_rank;
	struct timer timer;
	struct core_world world;                     /* of the attempt; weights as they were voted */
	struct core_world prepared;                  /* RECOVER: of the newest prepared attempt */
	struct record last;                          /* the last decision, or the seal */
	struct core_trainer trainer[CORE_RANKS_MAX]; /* joined: first the last world in rank order, then the others */
	uint32_t trainers_nr;
	struct core_trainer expelled[CORE_RANKS_MAX]; /* whose nodes have not said that they heard */
	uint32_t expelled_nr;
	struct coord_node node[CORE_NODES_MAX];
	struct core_tune tune;
	struct core_restored restored;
	char lost[CORE_WHY_BYTES], aborted[CORE_WHY_BYTES], order_why[CORE_WHY_BYTES], expelled_why[CORE_WHY_BYTES];
	enum shard_status aborted_status;
};

/* recover.c */
void recover_init(struct core *c, const struct core_view *view);
void recover_on_answer(struct ctx *x, const struct core_msg *m);
void recover_on_view_ok(struct ctx *x, const struct core_msg *m);
void recover_on_persisted(struct ctx *x, const struct core_event *e);
void recover_on_written(struct ctx *x, const struct core_event *e);
void recover_settle(struct ctx *x);              /* views: whatever is due, as far as it goes */
bool recover_due(const struct core *c);          /* recover_settle would go on */
void recover_send(struct ctx *x, uint16_t node); /* ASK or VIEW, if that node owes an answer */
uint64_t recover_deadline(const struct core *c); /* an absent node's chunks are given up */

/* coord.c */
void coord_on_vote(struct ctx *x, const struct core_msg *m);
void coord_on_done(struct ctx *x, const struct core_msg *m);
void coord_on_abandon(struct ctx *x, const struct core_msg *m);
void coord_on_waiting(struct ctx *x, const struct core_msg *m);
void coord_on_link_up(struct ctx *x, uint16_t node);
void coord_on_link_down(struct ctx *x, uint16_t node, const char *why);
void coord_on_tick(struct ctx *x);
void coord_settle(struct ctx *x);                                           /* at the end of every event */
void coord_abort(struct ctx *x, enum shard_status status, const char *why); /* an undecided attempt */
/* false: malformed. *differs: a sentence where its trainers gave other learning rates than those before; else NULL. */
bool coord_scatter(struct core *c, uint16_t node, const struct core_vote *v, struct core_world *w, const char **differs);
void coord_decide(struct core *c, const struct core_id *id, const struct core_world *w);
bool coord_all_done(const struct core *c);
bool coord_paused(const struct core *c); /* by an operator, or the last record diverged */
bool coord_due(const struct core *c);    /* coord_settle would do more now */
uint64_t coord_deadline(const struct core *c);

/* world.c */
void world_on_join(struct ctx *x, const struct core_msg *m);
void world_on_gone(struct ctx *x, const struct core_msg *m);
void world_lost_node(struct ctx *x, uint16_t node, const char *why);
void world_repeat(struct ctx *x); /* to who may not know that its trainer is out */
bool world_enough(const struct core *c);
bool world_make(struct core *c, struct core_world *w); /* false: fewer than min_world */
void world_sweep(struct ctx *x);                       /* who asked to leave, between attempts */
bool world_expel(struct ctx *x, const struct core_world *w, uint32_t rank, const char *why); /* false: it is not there */

/* orders.c */
void orders_on_hold(struct ctx *x, const struct core_event *e);
void orders_on_tune(struct ctx *x, const struct core_event *e);
void orders_on_kick(struct ctx *x, const struct core_event *e);
void orders_on_checkpoint(struct ctx *x, const struct core_event *e);
void orders_on_rollback(struct ctx *x, const struct core_event *e);
void orders_on_stop(struct ctx *x, const struct core_event *e); /* any member */
bool orders_unheard(const struct core *c);                      /* a linked node has not said DONE of the last record */
void orders_settle(struct ctx *x);                              /* HELD, when it can be */
bool orders_due(const struct core *c);
void orders_forget(struct core *c); /* a generation ended */
void orders_lost(struct core *c);   /* and the shell is told: it takes the hold for off */

/* waits.c */
void waits_text(const struct core *c, char *text, size_t bytes); /* empty: nobody is waited for */
void waits_expel(struct ctx *x);                                 /* the deadline of an attempt */

#endif
