/* SPDX-License-Identifier: Apache-2.0 */
/* sim.h: a whole cluster in one process under virtual time. The real core decides. Around it are
 * models of what the shell does (shell.c), of links that lose, delay, copy and reorder (link.c), of
 * trainers (trainer.c) and of what goes wrong (fault.c), and the checkers of DESIGN section 4
 * (truth.c). Everything is drawn from one seed, so that a seed replays exactly. */
#ifndef SIM_SIM_H
#define SIM_SIM_H

#include "base/check.h"
#include "base/rng.h"
#include "core/core.h"
#include "core/quorum.h"
#include "sim/actors.h"
#include "sim/cluster.h"
#include "sim/orders.h"
#include "sim/truth.h"

#include <setjmp.h>

struct sim_model { /* One of the models of the nodes, and what the checkers know of it. */
	uint16_t index;
	uint32_t chunks_nr, trainers_nr, min_world, max_world;
	uint16_t primary[CHUNKS];
	uint64_t holders[CHUNKS];
	struct placement place; /* As it was defined: every node counts. */
	bool fp16;
	struct record_conf conf;
	enum { LR_NONE, LR_OWN, LR_BY_ATTEMPT } lr; /* The learning rates that its trainers give. */
	uint32_t careless; /* How often a trainer gives another one, in 1/1000. */
	struct sim_trainer trainer[TRAINERS];
	struct transfer transfer[TRANSFERS];
	uint32_t sessions_nr;
	struct truth truth[GENERATIONS];
	uint32_t generation;         /* The newest durable one. */
	struct sim_view view[VIEWS]; /* Views that were durable, the newest last. */
	uint32_t views_nr;
	/* A copy of a view that was durable once, which an operator may put back. */
	struct core_view copy;
	bool put_back; /* It was put back since the last generation began. */
	/* A view becomes durable, and what is committed in it is of the view before. NULL: none. */
	const struct core_view *recovers;
	/* Attempts whose ranks gave different learning rates, the newest last. */
	struct core_id differs[DIFFERS];
	uint32_t differs_nr;
	struct sim_orders orders;
	struct sim_load load;
	struct sim_save save;
	/* In some seeds trainers are slow, and so put out. 0: they are waited for. */
	uint64_t straggler_ns, stragglers;
	struct sim_lively lively;
	uint64_t commits, forwards, aborts, losts, progress_at, healed_commits;
	/* Members that left a view, that fetched their copies, and whose copies count again. */
	uint64_t expelled, learned, promoted;
	uint64_t joined; /* Times that a node became a member that was not in the first view. */
	/* What an operator wanted of the chunks, and what came of it. */
	struct sim_tables tables[TABLES];
	uint32_t tables_nr;
	bool several; /* The newest durable view has a table of holders. */
	struct sim_liar liar;
	struct sim_liar lied[NODES]; /* The last time that each node did. */
	/* Attempts in a row that ended because votes differ and nobody knew who was wrong. */
	struct core_id fruitless_of;
	uint64_t fruitless, fruitless_tunes;
	/* Nodes that began to lie, attempts in which votes differed, nodes that were told, and
	 * times that an operator had to look. */
	uint64_t liars, differed, told_odd, disputed;
	/* A partial cut (cuts.c): as it began. cut_commits: when a member left last. */
	uint64_t cut_expelled, cut_commits;
	uint32_t cut_generation;
	bool cut_can;
	uint64_t orders_moves, backs, moved, moved_over, replaced, told_moved;
	/* At the end, because each is written whole when it begins, so that no run has to clear
	 * those of the run before. */
	struct sim_session session[SESSIONS];
};

struct sim {
	uint64_t seed, now, order, hash, events_nr;
	struct rng rng;
	struct rng more; /* What some seeds draw besides, so that all others are what they were. */
	struct sim_event *heap;
	uint32_t heap_nr, heap_cap;
	/* The shape of the cluster. */
	uint16_t nodes_nr, models_nr; /* The nodes that have been started. */
	uint16_t first_nr; /* The members of the first view are the first ones of them. */
	uint16_t lead;     /* This node coordinates, or was elected last. */
	uint16_t slow;     /* This node is slow to apply. */
	/* Faults, in 1/1000. */
	bool faults, reorder, holders_crash;
	uint32_t loss, copy, late;
	/* warm: a process that dies leaves its memory whole. dies: it dies in an event, with only
	 * some of the actions done. */
	uint32_t warm, dies;
	uint32_t put_back;  /* When the coordinator dies, an old copy of its views is put back. */
	uint32_t zombies;   /* A coordinator that is taken for dead goes on. */
	bool copies;        /* Chunks have copies on several nodes. */
	uint16_t grave;     /* This node never comes back. NOWHERE: all do. */
	uint64_t missed_at; /* When the coordinator last missed a node. */
	uint32_t damage;    /* A gradient arrives damaged. */
	bool buries;        /* A node may die for good. */
	bool moves;         /* An operator moves chunks. */
	bool elected;       /* Coordinators are elected. */
	bool quorum;        /* By the register of core/quorum.h. */
	struct sim_register reg;
	/* What the values of the voters stand for, by number, and the number of the current one. */
	struct sim_value **ballots;
	uint32_t ballots_nr, ballots_cap, chosen;
	struct quorum_value paper; /* The value of the message in hand. */
	bool joins;                /* Nodes come that were not in the first view. */
	uint32_t join_dies; /* The coordinator dies in so many events from now. 0: it does not. */
	uint16_t stranger;  /* This node is linked, but no view may have its slot. NOWHERE: none. */
	struct sim_cut cut;
	uint64_t faults_end, healed_at, gap; /* gap: at most between two faults. */
	uint32_t epochs;                     /* Of connections. */
	struct sim_node node[SLOTS];
	struct conn conn[SLOTS][SLOTS];
	struct sim_model *m; /* The model of the event in hand. */
	uint64_t clocks_nr;  /* Times that a clock jumped or stood still. */
	uint64_t one_ways;   /* Times that one node did not hear another one. */
	uint64_t restarts, warms, zombies_nr, held_off; /* held_off: orders of a zombie. */
	/* late_leads: nodes that led too late. landed_late: views that landed after UNKNOWN. */
	uint64_t elections, late_leads, landed_late;
	struct core_out out;
	bool verbose;
	const char *failed; /* The checker that failed. */
	char why[512];
	jmp_buf stop;
	char trace[40][200];
	uint32_t trace_nr;
	/* This is the last field, because a run empties only the first .models_nr of them. */
	struct sim_model model[MODELS];
};

static inline struct shell *shell_of(struct sim *s, uint16_t slot)
{
	return &s->node[slot].shell[s->m->index];
}

/* May the model go on without a member, as far as the chunks that the member has are elsewhere? One
 * with single copies may once its chunks have moved, and one that nodes may join. */
static inline bool sim_several(const struct sim *s)
{
	return s->m->place.holders || s->m->several || s->joins;
}

/* Has the node of this slot memory for the chunk? */
static inline bool shell_keeps(struct sim *s, uint16_t slot, uint32_t chunk)
{
	return place_keeps(&shell_of(s, slot)->place, chunk, s->node[slot].self);
}

/* Does its copy count, as far as it knows? */
static inline bool shell_holds(struct sim *s, uint16_t slot, uint32_t chunk)
{
	return place_holds(&shell_of(s, slot)->place, chunk, s->node[slot].self);
}

#endif
