/* SPDX-License-Identifier: Apache-2.0 */
/* sim.h: a whole cluster in one process under virtual time. The real core decides; around it are
 * models of what the shell does (shell.c), of links that lose, delay, copy and reorder (link.c), of
 * trainers (trainer.c), of what goes wrong (fault.c), and the checkers of DESIGN section 4
 * (truth.c). Everything is drawn from one seed, so that a seed replays exactly. */
#ifndef SIM_SIM_H
#define SIM_SIM_H

#include "base/check.h"
#include "base/rng.h"
#include "core/core.h"
#include "sim/actors.h"
#include "sim/cluster.h"
#include "sim/orders.h"

#include <setjmp.h>

struct sim_session { /* what a trainer did: kept for the checkers */
	uint16_t node;
	uint32_t trainer;
	bool dead;
	struct core_id ready;
	double weight, lr[GROUPS];
	uint32_t lr_nr;
	int32_t hint;
	bool nan, skip;
};

struct truth { /* of one generation */
	bool sealed;
	uint64_t seal_step, last;
	struct record record[2];     /* by step % 2: last and the one before */
	uint64_t weights[2][CHUNKS]; /* after them */
	bool restoring;              /* until sealed: from .checkpoint */
	bool loaded;                 /* an operator had it read from there */
	struct sim_checkpoint checkpoint;
};

struct sim_model { /* one of the models that the nodes have, and what the checkers know of it */
	uint16_t index;
	uint32_t chunks_nr, trainers_nr, min_world, max_world;
	uint16_t owner[CHUNKS];
	bool fp16;
	struct record_conf conf;
	enum { LR_NONE, LR_OWN, LR_BY_ATTEMPT } lr; /* what its trainers give */
	uint32_t careless;                          /* a trainer gives another, in 1/1000 */
	struct sim_trainer trainer[TRAINERS];
	struct transfer transfer[TRANSFERS];
	struct sim_session session[SESSIONS];
	uint32_t sessions_nr;
	struct truth truth[GENERATIONS];
	uint32_t generation; /* newest durable */
	struct {             /* views that were durable, the newest last */
		uint64_t term, incarnation[NODES];
		uint32_t seq;
		struct core_tune tune;
	} view[VIEWS];
	uint32_t views_nr;
	struct core_view copy; /* of a view that was durable once, as somebody may put it back */
	bool put_back;         /* and has, since the last generation began */
	bool recovers; /* a view becomes durable: what is committed in it is of the one before */
	struct core_id differs[DIFFERS]; /* attempts whose ranks gave other learning rates, the
					    newest last */
	uint32_t differs_nr;
	struct sim_orders orders;
	struct sim_load load;
	struct sim_save save;
	uint64_t commits, forwards, aborts, losts, progress_at, healed_commits;
};

struct sim {
	uint64_t seed, now, order, hash, events_nr;
	struct rng rng;
	struct sim_event *heap;
	uint32_t heap_nr, heap_cap;
	/* shape */
	uint16_t nodes_nr, models_nr;
	uint16_t lead; /* this node coordinates */
	uint16_t slow; /* this node takes its time to apply */
	/* faults, in 1/1000 */
	bool faults, reorder, holders_crash;
	uint32_t loss, copy, late;
	uint32_t warm, dies; /* a process that dies leaves its memory whole; it dies in an event,
				with only some of its actions done */
	uint32_t put_back;   /* when the coordinator dies, an old copy of its views is put back */
	uint32_t zombies;    /* a coordinator that is taken for dead goes on */
	uint64_t faults_end, healed_at;
	uint32_t epochs; /* of connections */
	struct sim_node node[SLOTS];
	struct conn conn[SLOTS][SLOTS];
	struct sim_model *m; /* the one that the event in hand is of */
	uint64_t restarts, warms, zombies_nr,
		held_off; /* held_off: orders of a zombie, by a promise */
	struct core_out out;
	bool verbose;
	const char *failed; /* checker */
	char why[512];
	jmp_buf stop;
	char trace[40][200];
	uint32_t trace_nr;
	struct sim_model
		model[MODELS]; /* the last: only those of .models_nr are emptied for a run */
};

static inline struct shell *shell_of(struct sim *s, uint16_t slot)
{
	return &s->node[slot].shell[s->m->index];
}

/* sim.c */
struct sim_event *sim_at(struct sim *s, uint64_t delay, enum sim_kind kind, uint16_t node);
uint64_t sim_between(struct sim *s, uint64_t low, uint64_t high);
bool sim_chance(struct sim *s, uint32_t thousandth);
uint64_t sim_mix(uint64_t a, uint64_t b);
__attribute__((format(printf, 3, 4), noreturn)) void sim_fail(struct sim *s, const char *checker,
							      const char *fmt, ...);
__attribute__((format(printf, 2, 3))) void sim_trace(struct sim *s, const char *fmt, ...);
const char *sim_id(const struct core_id *id, char text[64]);
bool sim_run(struct sim *s, uint64_t seed, bool verbose); /* false: .failed, .why */
void sim_free(struct sim *s);

#endif
