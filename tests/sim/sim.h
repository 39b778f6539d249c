/* SPDX-License-Identifier: Apache-2.0 */
/* sim.h: a whole cluster in one process under virtual time. The real core decides; around it are models of what the shell does
 * (shell.c), of links that lose, delay, copy and reorder (link.c), of trainers (trainer.c), of what goes wrong (fault.c), and the
 * checkers of DESIGN section 4 (truth.c). Everything is drawn from one seed, so that a seed replays exactly. */
#ifndef SIM_SIM_H
#define SIM_SIM_H

#include "base/check.h"
#include "base/rng.h"
#include "core/core.h"

#include <setjmp.h>

enum { NODES = 4, TRAINERS = 6, CHUNKS = 6, SESSIONS = 4096, TRANSFERS = 256, GENERATIONS = 64, VIEWS = 64, HEALED_COMMITS = 6 };
#define MS  1000000ull
#define SEC 1000000000ull

enum sim_kind {
	SIM_DELIVER = 1,
	SIM_LINK_UP,
	SIM_LINK_DOWN,
	SIM_CONNECT,
	SIM_TICK,
	SIM_PERSISTED,
	SIM_LANDED,
	SIM_STAGE,
	SIM_APPLY,
	SIM_APPLIED,
	SIM_IMAGE,
	SIM_DRAINED,
	SIM_TRAINER_BEGIN,
	SIM_TRAINER_ENDED,
	SIM_TRAINER_RESULT,
	SIM_TRAINER_READ,
	SIM_PUSH,
	SIM_READY,
	SIM_GONE,
	SIM_SPAWN,
	SIM_START,
	SIM_RESUME,
	SIM_FAULT,
	SIM_WRITE,
	SIM_WATCH,
	SIM_KIND_NR
};

struct sim_event {
	uint64_t at, order;
	enum sim_kind kind;
	uint16_t node, peer;
	uint32_t chunk, epoch, trainer;
	uint64_t incarnation, session;
	struct core_id id;
	struct flight *flight;
};

struct flight { /* a copy of a message, with what it points to behind it */
	struct core_msg msg;
	uint32_t epoch;
};

struct conn {           /* between two nodes, i < j */
	uint32_t epoch; /* of the newest connection */
	bool up, connecting;
	uint64_t last_at[2]; /* order within a direction */
	bool cut;            /* partition: no new connection */
};

struct transfer {
	bool used;
	uint16_t src, dst;
	uint64_t src_incarnation;
	uint32_t chunk, epoch;
	struct core_id id;
	bool nan, flushed; /* flushed: the source's end of the connection is gone */
};

struct cell { /* a gradient in an arena or a landing slot */
	struct core_id id;
	uint64_t hash;
	bool nan;
};

struct sim_node {
	bool alive, paused;
	uint64_t incarnation, resume_at, tick_at;
	void *memory;
	struct core *core;
	/* disk */
	bool has_disk;
	struct core_view disk, pending;
	bool persisting;
	/* links as this node sees them: epoch of the current connection, 0: none */
	uint32_t link[NODES];
	/* the attempt in hand */
	struct core_id id, open;
	struct core_world world;
	bool running, draining, drained_sent;
	uint32_t jobs, transfers;
	bool queued[CHUNKS];
	struct core_id credit[NODES], lent[NODES];
	bool sent[NODES][CHUNKS];
	struct cell slot[NODES][CHUNKS], sum[CHUNKS]; /* sum: this node's own, over its ranks */
	/* applying */
	struct record record;
	uint32_t chunks_left;
	/* state */
	uint32_t generation;
	bool written[CHUNKS];
	uint64_t version[CHUNKS], weights[CHUNKS], image[CHUNKS];
	struct core_id prepared; /* survives restarts: what the checkers know */
};

enum trainer_state { TR_DEAD, TR_IDLE, TR_READING, TR_COMPUTING, TR_READY };

struct sim_trainer {
	enum trainer_state state;
	bool stopped;
	uint16_t node;
	uint64_t session;
	struct core_id id;
	uint32_t pushed;
	struct cell arena[CHUNKS];
	bool nan, skip;
};

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
	} view[VIEWS];
	uint32_t views_nr;
	uint64_t commits, forwards, aborts, losts, restarts, progress_at, healed_commits;
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

/* shell.c: one node */
void node_start(struct sim *s, uint16_t n);
void node_crash(struct sim *s, uint16_t n);
void node_event(struct sim *s, uint16_t n, const struct core_event *e);
void shell_write(struct sim *s);
void shell_settle_drain(struct sim *s, uint16_t n);

/* bulk.c: the bytes of a node */
void shell_transfer(struct sim *s, uint16_t n, uint32_t chunk); /* to its owner, if everything is there */
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

/* trainer.c */
void trainer_spawn(struct sim *s, uint32_t t);
void trainer_die(struct sim *s, uint32_t t, const char *why);
void trainer_event(struct sim *s, const struct sim_event *e);
void trainer_tell(struct sim *s, uint16_t n, const struct core_world *w, enum sim_kind kind, const struct core_id *id);
void trainer_closed(struct sim *s, uint16_t n, uint64_t session, const char *why); /* by the daemon */

/* fault.c */
void fault_start(struct sim *s);
void fault_event(struct sim *s, const struct sim_event *e);
void fault_watch(struct sim *s);

/* truth.c: the checkers */
void truth_action(struct sim *s, uint16_t n, const struct core_action *a);
void truth_durable(struct sim *s, const struct core_view *v);
void truth_record(struct sim *s, const struct record *r);
void truth_applied(struct sim *s, uint16_t n, uint32_t chunk);
uint64_t truth_gradient(const struct core_id *id, uint64_t session, uint32_t chunk);
void truth_end(struct sim *s);
void truth_expelled(struct sim *s, uint32_t trainer, const char *why);

#endif
