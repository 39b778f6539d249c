/* SPDX-License-Identifier: Apache-2.0 */
/* core.h: what one node decides about one model: the participant of the step transaction (step.c),
 * on the coordinator the coordinator too (coord.c), and membership in views and promises
 * (member.c). It takes an event and the time, changes itself and appends actions to a bounded list;
 * it does no I/O, allocates nothing, reads no clock. Daemon and simulator link it. DESIGN sections
 * 4-6 give the rules. Events and actions: event.h. */
#ifndef SHARD_CORE_CORE_H
#define SHARD_CORE_CORE_H

#include "core/event.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct core_conf {
	uint16_t self;
	struct view_members members; /* Of the first view. Other slots there cannot be. */
	uint64_t incarnation;   /* of this node's memory of this model: it names that memory and no
				   other one, also after this node was replaced or its state folder
				   put back. A warm start keeps it (warm.h) */
	const char *memory_why; /* what became of the memory before this one; NULL: nothing that is
				   known. Copied */
	uint64_t term;          /* of a coordinator: grows with each start, the warm ones too */
	uint32_t chunks_nr;
	struct placement place;        /* of the first view */
	const char *const *node_names; /* [of each slot that a member has], for texts */
	uint32_t min_world, max_world,
		local_world; /* local: of one node's; 0: no limit of its own */
	uint64_t step_timeout_ns, repeat_ns;
	uint64_t lost_timeout_ns; /* a node that holds chunks and is away for so long is given up,
				     and they are LOST */
	struct record_conf record;
};

struct core; /* opaque: caller gives core_bytes() of zeroed, 16-byte aligned memory */
size_t core_bytes(const struct core_conf *conf);
/* view: what was durable (coordinator after a restart), or NULL for a model defined just now. conf
 * is copied, its pointers kept. warm: what core_warm_save() left in memory that outlived the
 * process, or NULL. CORE_EV_WARM is then the first event. NULL comes back, and memory zeroed, only
 * if warm cannot be trusted: the shell starts cold. */
struct core *core_init(void *memory, const struct core_conf *conf, const struct core_view *view,
		       const void *warm);
void core_handle(struct core *c, const struct core_event *e, uint64_t now_ns, struct core_out *out);
/* What must outlive the process, into .to (core_warm_bytes(), 64-byte aligned): after each
 * core_handle(), before its actions. false: nothing of it changed since the last time, nothing is
 * written. When it counts and what follows a warm start: warm.h. */
size_t core_warm_bytes(const struct core_conf *conf);
bool core_warm_save(struct core *c, void *to);
/* Which view had the process adopted that saved .from? Term 0: none. false: it is not whole. */
struct core_warm_view {
	uint64_t term;
	uint32_t seq, generation;
};
bool core_warm_view(const void *from, size_t bytes, struct core_warm_view *v);
uint64_t core_deadline(
	const struct core *c); /* now_ns at which CORE_EV_TICK is due; UINT64_MAX: never */

/* what others may look at */
enum core_part { CORE_FREE, CORE_STAGING, CORE_PREPARED, CORE_APPLYING, CORE_PART_NR };
struct core_state {
	enum core_part part;
	bool coordinator, recovering, sealed;
	bool paused; /* an operator paused it, or the last record diverged: no further step */
	bool held;   /* coordinator: CORE_ACT_HELD is in effect */
	bool seals;  /* coordinator: its newest view is sealed, or will be without another
			CORE_EV_WRITTEN */
	bool restoring;
	bool lost;    /* weights that were sealed are gone, and no checkpoint brings them back */
	bool unheard; /* coordinator: a node that is linked has not said DONE of the last record */
	struct core_tune tune; /* of the view adopted here */
	uint64_t term;
	uint32_t seq, generation; /* of the view adopted here; 0: none yet */
	struct core_id id;        /* the attempt in hand, or the last */
	uint64_t committed;       /* step of the last record, 0 before the first */
	uint32_t joined;          /* trainers known (coordinator) */
	const struct core_world *world;
	const struct record *record; /* last decided here, NULL: none */
	char waits[512]; /* "rank 2 (pid 4411, node b): 14 of 96 chunks"; empty: nobody */
};
void core_state(const struct core *c, struct core_state *s);

#endif
