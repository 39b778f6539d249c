/* SPDX-License-Identifier: Apache-2.0 */
/* truth.h: what the checkers of the simulator know, and their functions. sim.h includes it. */
#ifndef SIM_TRUTH_H
#define SIM_TRUTH_H

#include "sim/orders.h"

struct sim;

struct sim_gave { /* What a trainer gave when it was ready. */
	struct core_id id;
	uint64_t at;
	double weight, lr[GROUPS], clip, values[CORE_VALUES_NR]; /* clip below 0: none. */
	uint32_t lr_nr;
	bool nan, skip;
};

struct sim_session { /* What a trainer did, for the checkers. */
	uint16_t node;
	uint32_t trainer;
	bool dead;
	int32_t hint;
	/* For its last attempts. A recovery may commit an attempt that was aborted, if only nodes
	 * that missed the ABORT are left. */
	struct sim_gave gave[GAVE];
	uint32_t gave_nr;
};

struct sim_lively { /* lively.c */
	bool looks;
	bool full; /* The world of the last step had no place for any more trainers. */
	uint64_t losts, hung_nr; /* hung_nr: trainers that hang. */
	/* The time that has counted since the last step while a trainer hangs, and
	 * since a node does not count. */
	uint64_t hung_ns, away_ns;
};

struct truth { /* The truth about one generation. */
	bool sealed;
	uint64_t seal_step, last;
	struct record record[2];     /* By step % 2: the last record and the one before. */
	uint64_t weights[2][CHUNKS]; /* The weights after these records. */
	/* The nodes whose votes decided each, and that were members in every view since. */
	uint64_t of[2];
	bool restoring; /* Until it is sealed it comes from .checkpoint. */
	bool loaded;    /* An operator had it read from there. */
	struct sim_checkpoint checkpoint;
};

struct sim_view { /* A view that was durable. */
	uint64_t term, incarnation[NODES];
	uint32_t seq, generation;
	bool sealed;
	struct core_tune tune;
	uint64_t nodes, counts;  /* The members, and those whose copies count. */
	uint64_t copies[CHUNKS]; /* The members whose copy of that chunk counts. */
	const uint64_t *to;      /* Where chunks move. NULL: none does. */
	uint64_t moves_since;    /* The term of the view that began it. */
	bool voted;              /* A step was committed in it, by the votes of all members. */
};

/* truth_orders.c: the checkers of orders. */
void truth_order(struct sim *s, uint16_t n, const struct core_action *a);
/* The tune of the view of id. NULL: that view is too old. */
const struct core_tune *truth_tune_of(const struct sim *s, const struct core_id *id);
void truth_ordered(struct sim *s, const struct record *prev, const struct record *r,
		   const struct core_tune *t);
void truth_view(struct sim *s, const struct core_view *v);
/* The core is about to hear that the weights are written. */
void truth_written(struct sim *s, uint32_t generation, bool loaded);
void truth_seal(struct sim *s, struct truth *t, const struct record *r);
void truth_orders_end(struct sim *s);
void truth_stragglers(struct sim *s, uint16_t n);

void truth_pure(struct sim *s, const struct record *prev, const struct record *r);

/* truth_votes.c */
void truth_votes(struct sim *s, const struct record *r, uint64_t *of);
/* The view of a record that is about to be committed. */
struct sim_view *truth_view_of(struct sim *s, const struct core_id *id);
bool truth_bits(double a, double b); /* True: the two are equal bit by bit. */
/* The trainer committed an attempt. */
void truth_ready(struct sim *s, const struct sim_session *ses);
/* What the trainer gave for that attempt. NULL: nothing. */
const struct sim_gave *truth_gave(const struct sim_session *ses, const struct core_id *id);
/* True: two of its ranks gave different learning rates. */
bool truth_lr_differs(const struct sim *s, const struct core_id *id);
void truth_begins(struct sim *s, uint16_t n, const struct core_id *id, const struct core_world *w);

/* truth_warm.c: the checkers of what outlives a process. */
void truth_seen(struct sim *s, uint16_t n); /* Notes the state as which it has to come back. */
void truth_same(struct sim *s, uint16_t n); /* Checks that it has come back as that. */
void truth_whole(struct sim *s, uint16_t n, const struct record *r);
/* The model is about to be LOST. Checks that there is a reason. */
void truth_lost(struct sim *s, const struct core_view *v);

/* odd.c: the checkers of votes that differ. */
void truth_differ(struct sim *s, uint16_t n, const struct core_action *a);
void truth_odd(struct sim *s, uint16_t n, const struct core_action *a);
/* The sum of squares of the chunk in the record. It is a wrong one if the node that lies was the
 * only one with a copy whose vote a recovery had. Nobody can notice that. */
double odd_alone(struct sim *s, const struct record *r, uint32_t chunk, double sum);
void truth_begun(struct sim *s, uint16_t n, const struct core_msg *m);

/* truth_moves.c: the checkers of chunks that move. */
uint64_t truth_keepers(const struct placement *p, uint32_t chunk);
uint64_t truth_counted(const struct placement *p, uint64_t members, uint32_t chunk);
void truth_moves(struct sim *s, const struct sim_view *was, const struct core_view *v);
void truth_moving(struct sim *s, uint16_t n, const struct core_view *v);
void truth_serves(struct sim *s, uint16_t n, uint32_t chunk, const char *what);
void truth_ballot(struct sim *s, uint16_t n, const struct core_vote *v);
void truth_moved(struct sim *s, const struct placement *p);

/* truth_joins.c: the checkers of nodes that become members. */
void truth_joining(struct sim *s, uint16_t n, const struct core_view *v);
void truth_joined(struct sim *s, const struct core_view *v);

/* truth_copies.c: the checkers of copies and of who is in a view. */
void truth_copy(struct sim *s, uint16_t n, uint32_t chunk, const struct record *r);
void truth_fetched(struct sim *s, uint16_t n, uint32_t chunk);
void truth_place(struct sim *s, const struct core_view *v); /* It becomes durable now. */
bool truth_lists(struct sim *s, uint16_t n); /* Is this process in the newest durable view? */
bool truth_all_back(struct sim *s);          /* Is every node a member that counts? */
/* Can the model not go on, because a node that it waits for never comes back? */
bool truth_excused(struct sim *s);
/* A coordinator is about to make a view. Checks that it may leave out whom it leaves out. */
void truth_expels(struct sim *s, uint16_t n, const struct core_view *v);
void truth_blamed(struct sim *s, uint16_t n, const struct core_id *id, bool reduced);

/* lively.c: how soon steps are committed when nothing is wrong. */
void lively_begin(struct sim *s); /* From now on. */
void lively_committed(struct sim *s, const struct record *r);
void lively_look(struct sim *s, const struct sim_event *e);
/* Has every trainer of the model had a part in a committed step since lively_begin()? */
bool lively_over(const struct sim *s);

/* elect.c: whoever gives orders leads. */
void truth_leads(struct sim *s, uint16_t n, const struct core_msg *m);

/* truth.c: the other checkers. */
/* After the core took the event and before its actions. */
void truth_event(struct sim *s, uint16_t n, const struct core_event *e);
void truth_action(struct sim *s, uint16_t n, const struct core_action *a);
/* The view replaces the newest one. */
void truth_put_back(struct sim *s, const struct core_view *v);
void truth_durable(struct sim *s, const struct core_view *v);
void truth_record(struct sim *s, const struct record *r);
/* Checks that the sealed chunk is what was written. */
void truth_sealed(struct sim *s, uint16_t n, uint32_t chunk, const struct record *r);
void truth_applied(struct sim *s, uint16_t n, uint32_t chunk);
/* The weights that the optimizer makes, and what trainers give in an attempt. */
uint64_t truth_updated(uint64_t weights, uint64_t gradient, const struct optim_args *args);
double truth_value(const struct core_id *id, uint64_t session, uint32_t i);
double truth_clip(const struct core_id *id);
uint64_t truth_gradient(const struct core_id *id, uint64_t session, uint32_t chunk);
struct truth *truth_of(struct sim *s, uint32_t generation);
void truth_end(struct sim *s);
void truth_expelled(struct sim *s, uint32_t trainer, const char *why);

#endif
