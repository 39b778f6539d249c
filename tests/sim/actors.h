/* SPDX-License-Identifier: Apache-2.0 */
/* actors.h: the functions of nodes, links, trainers and faults in the simulator. sim.h includes
 * it. */
#ifndef SIM_ACTORS_H
#define SIM_ACTORS_H

#include "sim/node.h"

struct sim;

/* life.c: a node starts and dies. */
void node_start(struct sim *s, uint16_t n);
/* whole says that its memory outlives it. */
void node_crash(struct sim *s, uint16_t n, bool whole);
void node_save(struct shell *sh, bool torn);
void node_free(struct sim_node *nd);
struct view_node shell_who(struct sim *s, uint16_t slot); /* The process, as views name it. */

/* zombie.c */
bool zombie_rises(struct sim *s); /* False: not now. */

/* load.c: weights are written and saved. */
void load_tick(struct sim *s);
void load_asked(struct sim *s, const struct sim_event *e);
void load_chunk(struct sim *s, const struct sim_event *e);
void load_confirm(struct sim *s, const struct sim_event *e);
void load_answer(struct sim *s, const struct sim_event *e);
void load_link_lost(struct sim *s, uint16_t n, uint16_t peer);
void load_forget(struct sim *s, uint16_t n); /* Throws away what a restore has read here. */
bool load_save(struct sim *s, const struct core_id *id, uint64_t weights[CHUNKS]);

/* shell.c: one node. */
void node_event(struct sim *s, uint16_t n, const struct core_event *e);
void shell_timer(struct sim *s, uint16_t n);
void shell_settle_drain(struct sim *s, uint16_t n);
void shell_apply_at(struct sim *s, uint16_t n, uint32_t chunk); /* A worker begins with it. */

/* learn.c: a node that catches up fetches its copies. */
void learn_start(struct sim *s, uint16_t n, const struct record *r);
void learn_ask(struct sim *s, const struct sim_event *e);
void learn_landed(struct sim *s, const struct sim_event *e);
void learn_done(struct sim *s, const struct sim_event *e);
/* Can this step be applied to the copy? */
bool learn_keeps_up(const struct shell *sh, uint32_t chunk, uint64_t step);
bool learn_complete(struct sim *s, uint16_t n); /* Every copy is at the last record. */
bool learn_applied(struct sim *s, uint16_t n);

/* bulk.c: the bytes of a node. */
/* Sends the chunk's sum to its primary, if all ranks have pushed it. */
void shell_transfer(struct sim *s, uint16_t n, uint32_t chunk);
void shell_transfer_reduced(struct sim *s, uint16_t n, uint32_t chunk);
void shell_stage_try(struct sim *s, uint16_t n, uint32_t chunk);
struct sim_trainer *shell_trainer(struct sim *s, uint16_t n, uint64_t session);
void shell_landed(struct sim *s, const struct sim_event *e);
void shell_stage(struct sim *s, const struct sim_event *e);
void shell_apply(struct sim *s, const struct sim_event *e);
void shell_image(struct sim *s, const struct sim_event *e);
void shell_drained(struct sim *s, const struct sim_event *e);
/* Ends the connections with nodes that are no members any more. */
void shell_fence(struct sim *s, uint16_t n, uint64_t gone);
void shell_pushed(struct sim *s, uint16_t n, uint32_t chunk);
/* Called before the core hears of it. */
void shell_link_lost(struct sim *s, uint16_t n, uint16_t peer);

/* link.c */
struct sim_event *link_time(struct sim *s, uint16_t from, uint16_t to, enum sim_kind kind);
struct conn *link_conn(struct sim *s, uint16_t a, uint16_t b);
void link_send(struct sim *s, uint16_t from, const struct core_msg *m);
void link_deliver(struct sim *s, const struct sim_event *e);
void link_up(struct sim *s, const struct sim_event *e);
void link_down(struct sim *s, const struct sim_event *e);
void link_connect(struct sim *s, const struct sim_event *e);
void link_break(struct sim *s, uint16_t a, uint16_t b);
void link_heal(struct sim *s);
/* Tells every model of a process. */
void link_tell(struct sim *s, uint16_t slot, const struct core_event *e);

/* trainer.c */
void trainer_spawn(struct sim *s, uint32_t t);
void trainer_die(struct sim *s, uint32_t t, const char *why);
void trainer_event(struct sim *s, const struct sim_event *e);
void trainer_tell(struct sim *s, uint16_t n, const struct core_world *w, enum sim_kind kind,
		  const struct core_id *id);
/* The daemon has closed the session. */
void trainer_closed(struct sim *s, uint16_t n, uint64_t session, const char *why);

/* moves.c */
void moves_event(struct sim *s, const struct sim_event *e); /* An operator may move chunks. */
void moves_placed(struct sim *s, uint16_t n, const struct placement *p);

/* joins.c */
void joins_shape(struct sim *s); /* Which nodes come, and when. */
void joins_event(struct sim *s, const struct sim_event *e);
void joins_fault(struct sim *s, const struct sim_event *e);
/* The coordinator has a new link to that node. */
void joins_linked(struct sim *s, uint16_t peer);
/* Does the coordinator die in this event? */
bool joins_dies(struct sim *s, uint16_t n);
uint64_t joins_slots(const struct sim *s, uint16_t n);    /* What the core of the node is told. */
void joins_wander(struct sim *s, struct sim_trainer *tr); /* A trainer may start elsewhere. */

/* odd.c: a node that finds wrong sums. */
bool odd_seed(const struct sim *s); /* Is there one in this seed? */
void odd_event(struct sim *s, const struct sim_event *e);
/* The sum of squares that the node finds. */
double odd_sum(struct sim *s, uint16_t n, uint32_t chunk, double sum);
/* Does the node say to others what it finds? */
bool odd_says(const struct sim *s, uint16_t n, uint32_t chunk);
void odd_crashed(struct sim *s, uint16_t n);

/* cuts.c: two nodes lose their link at the end. */
void cuts_event(struct sim *s, const struct sim_event *e);
bool cuts_on(const struct sim *s); /* Is it lost now? */
bool cuts_over(struct sim *s);     /* It was, or it is not in this seed. */

/* clocks.c: the clocks of nodes, which jump in some seeds. */
void clocks_start(struct sim *s);
void clocks_event(struct sim *s, const struct sim_event *e);
uint64_t clock_of(const struct sim *s, uint16_t n);
/* The virtual time at which the node's clock shows this, or a moment from now if it does already.
 */
uint64_t clock_when(const struct sim *s, uint16_t n, uint64_t at);
bool clocks_stand(const struct sim *s, uint16_t n);

/* oneway.c: a node does not hear another one, which hears it. */
void one_way_start(struct sim *s);
void one_way_event(struct sim *s, const struct sim_event *e);
bool one_way_lost(struct sim *s, uint16_t from, uint16_t to); /* Is what it sends lost now? */
bool one_way_shut(const struct sim *s, const struct conn *c); /* Does no handshake get through? */

/* fault.c */
void fault_start(struct sim *s);
void fault_event(struct sim *s, const struct sim_event *e);
void fault_watch(struct sim *s);
void fault_silence(struct sim *s, const struct sim_event *e);
/* The node starts again soon, as the member that it was or as another one. */
void fault_crash(struct sim *s, uint16_t n);
void fault_end(struct sim *s, uint16_t n); /* Ends a process that heard SIGTERM. */

/* orders.c: the operator, and saving of checkpoints. */
void orders_event(struct sim *s, const struct sim_event *e);
void orders_started(struct sim *s); /* The coordinator has started. */
void orders_crashed(struct sim *s);
void orders_resume(struct sim *s, const struct core_state *st);
uint64_t orders_number(const struct core_tune *t);

#endif
