/* SPDX-License-Identifier: Apache-2.0 */
/* sim.h: a whole cluster in one process under virtual time. The real core decides; around it are models of what the shell does
 * (shell.c), of links that lose, delay, copy and reorder (link.c), of trainers (trainer.c), of what goes wrong (fault.c), and the
 * checkers of DESIGN section 4 (truth.c). Everything is drawn from one seed, so that a seed replays exactly. */
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
	double weight;
	bool nan, skip;
};

struct truth { /* of one generation */
	bool sealed;
	uint64_t seal_step, last;
	struct record record[2];     /* by step % 2: last and the one before */
	uint64_t weights[2][CHUNKS]; /* after them */
	bool restoring;              /* until sealed: from .checkpoint */
	struct sim_checkpoint checkpoint;
};

struct sim {
	uint64_t seed, now, order, hash, events_nr;
	struct rng rng;
	struct sim_event *heap;
	uint32_t heap_nr, heap_cap;
	/* shape */
	uint16_t nodes_nr;
	uint16_t slow; /* this node takes its time to apply */
	uint32_t chunks_nr, trainers_nr, min_world, max_world;
	uint16_t owner[CHUNKS];
	/* faults, in 1/1000 */
	bool faults, reorder, fp16, holders_crash;
	uint32_t loss, copy, late;
	uint32_t warm,
		dies; /* a process that dies leaves its memory whole; it dies in an event, with only some of its actions done */
	uint64_t faults_end, healed_at;
	struct sim_node node[NODES];
	struct sim_trainer trainer[TRAINERS];
	struct conn conn[NODES][NODES];
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
	uint32_t max_skips;
	struct sim_orders orders;
	uint64_t commits, forwards, aborts, losts, restarts, warms, progress_at, healed_commits;
	struct core_out out;
	bool verbose;
	const char *failed; /* checker */
	char why[512];
	jmp_buf stop;
	char trace[40][200];
	uint32_t trace_nr;
};

/* sim.c */
struct sim_event *sim_at(struct sim *s, uint64_t delay, enum sim_kind kind, uint16_t node);
uint64_t sim_between(struct sim *s, uint64_t low, uint64_t high);
bool sim_chance(struct sim *s, uint32_t thousandth);
uint64_t sim_mix(uint64_t a, uint64_t b);
__attribute__((format(printf, 3, 4), noreturn)) void sim_fail(struct sim *s, const char *checker, const char *fmt, ...);
__attribute__((format(printf, 2, 3))) void sim_trace(struct sim *s, const char *fmt, ...);
const char *sim_id(const struct core_id *id, char text[64]);
bool sim_run(struct sim *s, uint64_t seed, bool verbose); /* false: .failed, .why */
void sim_free(struct sim *s);

#endif
