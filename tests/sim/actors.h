/* SPDX-License-Identifier: Apache-2.0 */
/* actors.h: what nodes, links, trainers, faults and checkers do in the simulator; sim.h includes
 * it. */
#ifndef SIM_ACTORS_H
#define SIM_ACTORS_H

#include "sim/node.h"

struct sim;
struct truth;
struct sim_session;

/* life.c: a node starts and dies */
void node_start(struct sim *s, uint16_t n);
void node_crash(struct sim *s, uint16_t n, bool whole); /* whole: its memory outlives it */
void node_save(struct shell *sh, bool torn);
void node_free(struct sim_node *nd);

/* zombie.c */
bool zombie_rises(struct sim *s); /* false: not now */

/* load.c: weights are written and saved */
void load_tick(struct sim *s);
void load_asked(struct sim *s, const struct sim_event *e);
void load_chunk(struct sim *s, const struct sim_event *e);
void load_confirm(struct sim *s, const struct sim_event *e);
void load_answer(struct sim *s, const struct sim_event *e);
void load_link_lost(struct sim *s, uint16_t n, uint16_t peer);
void load_forget(struct sim *s, uint16_t n); /* what a restore has read here */
bool load_save(struct sim *s, const struct core_id *id, uint64_t weights[CHUNKS]);

/* shell.c: one node */
void node_event(struct sim *s, uint16_t n, const struct core_event *e);
void shell_timer(struct sim *s, uint16_t n);
void shell_settle_drain(struct sim *s, uint16_t n);

/* bulk.c: the bytes of a node */
void shell_transfer(struct sim *s, uint16_t n,
		    uint32_t chunk); /* to its owner, if everything is there */
void shell_stage_try(struct sim *s, uint16_t n, uint32_t chunk);
struct sim_trainer *shell_trainer(struct sim *s, uint16_t n, uint64_t session);
void shell_landed(struct sim *s, const struct sim_event *e);
void shell_stage(struct sim *s, const struct sim_event *e);
void shell_apply(struct sim *s, const struct sim_event *e);
void shell_image(struct sim *s, const struct sim_event *e);
void shell_drained(struct sim *s, const struct sim_event *e);
void shell_pushed(struct sim *s, uint16_t n, uint32_t chunk);
void shell_link_lost(struct sim *s, uint16_t n, uint16_t peer); /* before the core hears */

/* link.c */
struct conn *link_conn(struct sim *s, uint16_t a, uint16_t b);
void link_send(struct sim *s, uint16_t from, const struct core_msg *m);
void link_deliver(struct sim *s, const struct sim_event *e);
void link_up(struct sim *s, const struct sim_event *e);
void link_down(struct sim *s, const struct sim_event *e);
void link_connect(struct sim *s, const struct sim_event *e);
void link_break(struct sim *s, uint16_t a, uint16_t b);
void link_heal(struct sim *s);
void link_tell(struct sim *s, uint16_t slot,
	       const struct core_event *e); /* to every model of a process */

/* trainer.c */
void trainer_spawn(struct sim *s, uint32_t t);
void trainer_die(struct sim *s, uint32_t t, const char *why);
void trainer_event(struct sim *s, const struct sim_event *e);
void trainer_tell(struct sim *s, uint16_t n, const struct core_world *w, enum sim_kind kind,
		  const struct core_id *id);
void trainer_closed(struct sim *s, uint16_t n, uint64_t session,
		    const char *why); /* by the daemon */

/* fault.c */
void fault_start(struct sim *s);
void fault_event(struct sim *s, const struct sim_event *e);
void fault_watch(struct sim *s);
void fault_crash(struct sim *s,
		 uint16_t n); /* and it starts again soon, as who it was or as another */
void fault_end(struct sim *s, uint16_t n); /* of a process that heard SIGTERM */

/* orders.c: the operator, and who writes checkpoints */
void orders_event(struct sim *s, const struct sim_event *e);
void orders_started(struct sim *s); /* the coordinator */
void orders_crashed(struct sim *s);
uint64_t orders_number(const struct core_tune *t);

/* truth_orders.c: their checkers */
void truth_order(struct sim *s, uint16_t n, const struct core_action *a);
const struct core_tune *truth_tune_of(const struct sim *s,
				      const struct core_id *id); /* of its view; NULL: long ago */
void truth_ordered(struct sim *s, const struct record *prev, const struct record *r,
		   const struct core_tune *t);
void truth_view(struct sim *s, const struct core_view *v);
void truth_written(struct sim *s, uint32_t generation,
		   bool loaded); /* the core is about to hear so */
void truth_seal(struct sim *s, struct truth *t, const struct record *r);
void truth_orders_end(struct sim *s);

/* truth_pure.c */
void truth_pure(struct sim *s, const struct record *prev, const struct record *r);

/* truth_votes.c */
void truth_votes(struct sim *s, const struct record *r);
bool truth_bits(double a, double b); /* are they the same, bit for bit? */
void truth_ready(struct sim *s, const struct sim_session *ses); /* it committed an attempt */
bool truth_lr_differs(const struct sim *s,
		      const struct core_id *id); /* did two of its ranks give others? */
void truth_begins(struct sim *s, uint16_t n, const struct core_id *id, const struct core_world *w);

/* truth_warm.c: their checkers of what outlives a process */
void truth_seen(struct sim *s, uint16_t n); /* this is what it has to come back as */
void truth_same(struct sim *s, uint16_t n); /* has it? */
void truth_whole(struct sim *s, uint16_t n, const struct record *r);
void truth_lost(struct sim *s, const struct core_view *v); /* about to be: is there a reason? */

/* truth.c: the checkers */
void truth_event(struct sim *s, uint16_t n,
		 const struct core_event *e); /* after the core took it, before its actions */
void truth_action(struct sim *s, uint16_t n, const struct core_action *a);
void truth_put_back(struct sim *s, const struct core_view *v); /* instead of the newest one */
void truth_durable(struct sim *s, const struct core_view *v);
void truth_record(struct sim *s, const struct record *r);
void truth_sealed(struct sim *s, uint16_t n, uint32_t chunk,
		  const struct record *r); /* is it what was written? */
void truth_applied(struct sim *s, uint16_t n, uint32_t chunk);
uint64_t truth_updated(uint64_t weights, uint64_t gradient,
		       const struct optim_args *args); /* what the optimizer makes of it */
uint64_t truth_gradient(const struct core_id *id, uint64_t session, uint32_t chunk);
struct truth *truth_of(struct sim *s, uint32_t generation);
void truth_end(struct sim *s);
void truth_expelled(struct sim *s, uint32_t trainer, const char *why);

#endif
