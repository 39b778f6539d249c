/* SPDX-License-Identifier: Apache-2.0 */
/* action.h: what a core wants carried out. A pointer in an action lives until the next call of
 * core_handle(). */
#ifndef SHARD_CORE_ACTION_H
#define SHARD_CORE_ACTION_H

#include "core/msg.h"

#include <stdint.h>

/* A .why of CORE_ACT_ENDED that ends so says that a trainer left by itself, and nothing is wrong.
 * It is all of the reason that travels. */
#define CORE_LEFT "left"

enum core_action_type {
	/* Send .msg to .msg.to. The shell keeps the order on each link. It may lose messages,
	 * because the core repeats them. */
	CORE_ACT_SEND = 1,
	/* Write .view to disk and sync it, then give CORE_EV_PERSISTED. .why says why the weights
	 * are gone, or is NULL. */
	CORE_ACT_PERSIST,
	/* This node is STAGING attempt .id with .world. Tell the local ranks, which may now write
	 * to their arenas. */
	CORE_ACT_BEGIN,
	/* .node granted its landing slots for .id, so contributions of .id may go there. */
	CORE_ACT_CREDIT,
	/* This node is about to vote. Mark the image open before any later action. */
	CORE_ACT_OPEN,
	/* Run the optimizer with .record, or move only the versions if it skips the step. Then give
	 * CORE_EV_APPLIED. */
	CORE_ACT_APPLY,
	CORE_ACT_RESULT, /* Tell .record to the local ranks of its world. */
	/* Attempt .id is over here. Tell the local ranks .why and .status, and take no more pushes.
	 * It has no effect, unless a coordinator is lost and all others had voted. */
	CORE_ACT_ENDED,
	CORE_ACT_SEAL, /* Publish the written master weights as the image of .record.step. */
	/* Generation .id.generation begins, and nothing older counts, because of .why. Tell all
	 * trainers. With .status SHARD_LOST they join anew. With SHARD_ROLLED_BACK they stay, and
	 * hear the step with the CORE_ACT_SEAL or CORE_ACT_LEARN that follows. If the generation is
	 * sealed already, that comes at once. Otherwise the shell of the coordinator then restores
	 * the weights (CORE_EV_WRITTEN, or CORE_EV_CHECKPOINT off). It begins anew with each of
	 * these actions, because a coordinator that starts again while it restores makes one more
	 * generation. */
	CORE_ACT_LOST,
	CORE_ACT_EXPEL, /* The local .session is out of the world, because of .why. Close it. */
	CORE_ACT_LEFT,  /* The local .session asked to leave, and is in no world from now on. */
	/* On the coordinator: nothing after .record is decided until CORE_EV_HOLD is off, or until
	 * CORE_ACT_LOST. Nodes may still be applying .record. */
	CORE_ACT_HELD,
	CORE_ACT_TUNED, /* On the coordinator: the last CORE_EV_TUNE holds on every node. */
	/* This node does not coordinate any more. A hold is over, and what was ordered here and not
	 * answered is void. A view of CORE_ACT_PERSIST may still become durable, and the core does
	 * not want to know. */
	CORE_ACT_RESIGNED,
	/* The view that is adopted has other members, other tables, or other nodes whose copies
	 * count: .place. It comes before all other actions of that view but LOST. Memory for a
	 * chunk that it does not give to this node may be given back. From here on nothing may land
	 * any more that
	 * a node which is no member sends over the connection that it has now. The shell ends that
	 * connection, or judges each gradient by its attempt before it lands. */
	CORE_ACT_PLACED,
	/* Fetch each chunk for which this node has memory, and whose copy here does not count by
	 * the placement that it was told last. It comes from the primary, at a version of the
	 * primary. Then apply each record to it whose gradient was staged here. A chunk that misses
	 * one is fetched again. The record to begin with is .record. If it is another one than the
	 * last, its image comes from the primaries, too. Then give CORE_EV_LEARNED. It is not given
	 * any more for a LEARN before, which may have been about other chunks, nor once all copies
	 * here count. */
	CORE_ACT_LEARN,
	/* On the coordinator: chunks lie as the last CORE_EV_PLACE wanted, by .place, and every
	 * member knows. */
	CORE_ACT_MOVED,
	/* On the coordinator: votes for copies differ in attempt .id, as .why says. .node is the
	 * one that is wrong, and leaves unless it has the last copy of a chunk. CORE_NODES_MAX:
	 * nobody can say which one is wrong. */
	CORE_ACT_DIFFER,
	/* This node is the one that is wrong, as .why says. What it has of this model must never be
	 * taken over by a later process. End this one. */
	CORE_ACT_ODD,
	/* On the coordinator: the next view is without .node, which is linked to this node and not
	 * to others, as .why says. */
	CORE_ACT_CUT,
	/* On an elected coordinator: another node should lead, because of .why. If none does, this
	 * one goes on after a while. */
	CORE_ACT_YIELD,
	/* What this node has of the model in memory must not be taken over by a later process, and
	 * of its disk only what it has up to record .id, because of .why. End this process. */
	CORE_ACT_BACK,
	/* On a static coordinator: end this process, because only the next one has a term in which
	 * members are asked what they have. .why says whom this one does not know any more. */
	CORE_ACT_AGAIN,
};

struct core_action {
	enum core_action_type type;
	struct core_msg msg;
	uint16_t node;
	uint64_t session;
	struct core_id id;
	const struct core_world *world;
	const struct record *record;
	const struct core_view *view;
	const struct placement *place;
	const char *why;
	enum shard_status status; /* 0: SHARD_WORLD_CHANGED. */
};

#define CORE_ACTIONS_MAX (8 * CORE_NODES_MAX + 64)
struct core_out {
	uint32_t nr;
	struct core_action act[CORE_ACTIONS_MAX];
};

#endif
