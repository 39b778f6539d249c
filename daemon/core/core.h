/* SPDX-License-Identifier: Apache-2.0 */
/* core.h: what one node decides about one model. A core is the participant of the step transaction
 * (step.c), on the coordinator also the coordinator (coord.c), and a member that adopts views and
 * keeps promises (member.c). It takes an event and the time, changes itself and appends actions to
 * a bounded list. It does no I/O, allocates nothing and reads no clock. The daemon and the
 * simulator link it. Sections 4 to 6 of DESIGN give the rules, and event.h has the events and
 * action.h the actions. */
#ifndef SHARD_CORE_CORE_H
#define SHARD_CORE_CORE_H

#include "core/action.h"
#include "core/event.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct core_conf {
	uint16_t self;
	/* The members of the first view, without their names. This node need not be one of them. */
	struct view_members members;
	/* A bit for each slot that the members of a later view may have, those of .members among
	 * them. A node that is linked under one of these slots becomes a member. If there are more
	 * than .members has, a member that is missed leaves if the others have its chunks. In a
	 * model with one copy of each chunk that is one without chunks. */
	uint64_t slots;
	/* The name of this node in views. No other memory of this model ever has the incarnation,
	 * even if this node is replaced or its state folder restored. A warm start keeps both
	 * (warm.h). */
	struct view_node who;
	/* What became of the memory before this one, or NULL if that is not known. core_init()
	 * copies it. */
	const char *memory_why;
	/* The term in which this node coordinates from the start on, if .members says that it does.
	 * It grows with each start, also with a warm one. An elected coordinator gets its term with
	 * CORE_EV_LEAD. */
	uint64_t term;
	/* Coordinators are elected: any node may send a higher term than those that are known here,
	 * and gives the orders from then on. Otherwise only the coordinator of .members does. */
	bool elected;
	/* Disks have each step before the next vote (back.h). recalled: what is saved is of one. */
	bool durable, recalled;
	uint32_t chunks_nr;
	/* The tables of the first view. With saved state: those of the view that was saved, which
	 * core_warm_view() names. */
	struct placement place;
	/* No step begins while a chunk has fewer copies that count. */
	uint32_t min_copies;
	/* [CORE_NODES_MAX] The names of the nodes, for texts. NULL: it has none yet. An entry may
	 * change between two calls. */
	const char *const *node_names;
	/* Trainers in a world. local_world: at most so many on one node, 0: no limit of its own. */
	uint32_t min_world, max_world, local_world;
	uint64_t step_timeout_ns, repeat_ns;
	/* The first step after a seal waits so long for trainers up to max_world, once min_world
	 * have joined. 0: it does not. */
	uint64_t join_timeout_ns;
	/* Trainers that are not ready are put out when some are ready and no further one has become
	 * so for so long, if min_world are left. 0: they are waited for until step_timeout. */
	uint64_t straggler_timeout_ns;
	/* A node with the last copy of a chunk that is away for so long is given up, and the model
	 * is LOST. */
	uint64_t lost_timeout_ns;
	/* A new coordinator waits so long for a member that it has never had a link to, if others
	 * have copies of all chunks. */
	uint64_t heartbeat_timeout_ns;
	/* Two members without a link to each other for so long cannot both stay (hear.h). */
	uint64_t reconnect_ns;
	struct record_conf record;
};

struct core; /* Opaque. The caller gives core_bytes() of zeroed, 16-byte aligned memory. */
size_t core_bytes(const struct core_conf *conf);
/* conf is copied, but its pointers are kept. view is what was durable, on a coordinator that starts
 * again, or NULL for a model that was just defined. If its tables are those of conf, it need not
 * have them. warm is what core_warm_save() left in memory that outlived the process, or NULL.
 * With warm, CORE_EV_WARM is the first event. If warm cannot be trusted, core_init() zeroes the
 * memory and returns NULL, and the shell makes a cold start. It returns NULL in no other case. */
struct core *core_init(void *memory, const struct core_conf *conf, const struct core_view *view,
		       const void *warm);
void core_handle(struct core *c, const struct core_event *e, uint64_t now_ns, struct core_out *out);
/* Writes what must outlive the process to .to (core_warm_bytes(), 64-byte aligned). The shell calls
 * it after each core_handle(), before it carries out the actions. Returns false if nothing of it
 * changed since the last call, and then writes nothing. warm.h says when the saved state counts and
 * what follows a warm start. */
size_t core_warm_bytes(const struct core_conf *conf);
bool core_warm_save(struct core *c, void *to);
/* Reads which view the process had adopted that saved .from. Term 0: none. Returns false if the
 * saved state is not whole. */
struct core_warm_view {
	uint64_t term;
	uint32_t seq, generation;
	uint64_t place; /* placement.sum: the tables that core_conf.place must have. */
};
bool core_warm_view(const void *from, size_t bytes, struct core_warm_view *v);
bool core_warm_record(const void *from, size_t bytes, struct record *r); /* False: none. */
uint64_t core_deadline(
	const struct core *c); /* The time at which CORE_EV_TICK is due. UINT64_MAX: never. */

/* What others may look at. */
enum core_part { CORE_FREE, CORE_STAGING, CORE_PREPARED, CORE_APPLYING, CORE_PART_NR };
struct core_state {
	enum core_part part;
	bool coordinator, recovering, sealed;
	/* An operator paused the model, or the last record diverged. No further step begins. */
	bool paused;
	/* Coordinator: the votes for copies differ again and again, so the model is paused, too. A
	 * CORE_EV_TUNE that resumes has it tried again. */
	bool disputed;
	bool held; /* Coordinator: CORE_ACT_HELD is in effect. */
	/* Coordinator: its newest view is sealed, or will be without another CORE_EV_WRITTEN. */
	bool seals;
	bool restoring;
	bool lost; /* Weights that were sealed are gone, and no checkpoint restores them. */
	/* This node has memory for chunks whose copies do not count yet. */
	bool learning;
	bool caught;  /* All of these copies are here, at the last record. */
	bool unheard; /* Coordinator: a node that is linked has not said DONE of the last record. */
	const struct core_tune *tune; /* The tune of the view that is adopted here. */
	uint64_t term;
	uint32_t seq, generation; /* Of the view that is adopted here. 0: none is yet. */
	struct core_id id;        /* The attempt in hand, or the last one. */
	uint64_t committed;       /* The step of the last record. 0: there is none yet. */
	uint32_t joined;          /* Coordinator: the trainers that have joined. */
	bool too_few;             /* Coordinator: the next step waits for min_world of them. */
	uint64_t differed;   /* Coordinator: attempts in which the votes for copies differed. */
	uint64_t cut;        /* Coordinator: members that left without links to others (hear.h). */
	uint64_t stragglers; /* Coordinator: those that it put out because they were slow. */
	const struct core_world *world;
	const struct record *record; /* The last record that was decided here. NULL: none. */
	/* Who is waited for: "rank 2 (pid 4411, node b): 14 of 96 chunks". Empty: nobody. */
	char waits[512];
	/* Coordinator: what the chunks that move wait for. Empty: none moves. */
	char moves[128];
};
void core_state(const struct core *c, struct core_state *s);
/* On the coordinator: since when that member has no link, from which lost_timeout counts. 0: it has
 * one, or is no member, or this node does not coordinate. */
uint64_t core_absent_since(const struct core *c, uint16_t node);
/* What this node has adopted and decided. Cheap enough to be looked at after each event. */
struct core_now {
	uint64_t term; /* Of the view that is adopted. 0: none is. */
	uint32_t seq, generation;
	bool learns;                        /* As core_state.learning. */
	const struct view_members *members; /* In effect until the next event. */
	const struct record *record;        /* The last one. NULL: none. */
};
void core_now(const struct core *c, struct core_now *a);
/* Has that node certainly voted for the attempt with this id, which was committed? */
bool core_voted(const struct core *c, const struct core_id *id, uint16_t node);
/* Does any placement that the core keeps name this table, or may the core write to it? Otherwise
 * the shell may free it. */
bool core_names(const struct core *c, const void *table);
/* The placement of the coordinator's newest view, durable or not. On other nodes: that of the view
 * which is adopted here. */
const struct placement *core_newest_place(const struct core *c);
/* On the coordinator: how many trainers have joined from this process of that node. */
uint32_t core_joined(const struct core *c, uint16_t node, uint32_t pid);

#endif
