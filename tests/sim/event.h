/* SPDX-License-Identifier: Apache-2.0 */
/* event.h: what happens in the simulator, one after the other, and how it is put in line.
 * cluster.h includes it. */
#ifndef SIM_EVENT_H
#define SIM_EVENT_H

#include "core/core.h"

struct sim;

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
	SIM_LEARN,
	SIM_LEARN_LANDED,
	SIM_LEARNED,
	SIM_TRAINER_BEGIN,
	SIM_TRAINER_ENDED,
	SIM_TRAINER_RESULT,
	SIM_TRAINER_READ,
	SIM_PUSH,
	SIM_READY,
	SIM_GONE,
	SIM_SPAWN,
	SIM_START,
	SIM_END,
	SIM_RESUME,
	SIM_SILENCE,
	SIM_FAULT,
	SIM_WRITE,
	SIM_LOAD,
	SIM_LOAD_CHUNK,
	SIM_LOAD_CONFIRM,
	SIM_LOAD_SAID,
	SIM_WATCH,
	SIM_ORDER,
	SIM_MOVE,
	SIM_JOIN,
	SIM_JOIN_FAULT,
	SIM_ODD,
	SIM_CUT,
	SIM_ELECT,
	SIM_LAND,
	SIM_LAND_LATE,
	SIM_ANSWERED,
	SIM_LEADING,
	SIM_LOST,
	SIM_BEAT,
	SIM_VOTE_RESIGN,
	SIM_VOTE_TICK,
	SIM_VOTE_MSG,
	SIM_VOTE_SYNCED,
	SIM_VOTERS,
	SIM_LIVELY,
	SIM_CLOCK,
	SIM_ONE_WAY,
	SIM_KIND_NR
};

struct sim_event {
	uint64_t at, order;
	enum sim_kind kind;
	uint16_t node, peer; /* Slots. */
	uint16_t model;
	uint32_t chunk, epoch, trainer;
	uint64_t start, session;
	struct core_id id;
	struct flight *flight;
	struct sim_value *value;
	struct ballot *ballot;
};

struct flight { /* A copy of a message, followed by what it points to. */
	struct core_msg msg;
	uint32_t epoch;
};

/* sim.c */
struct sim_event *sim_at(struct sim *s, uint64_t delay, enum sim_kind kind, uint16_t node);
uint64_t sim_between(struct sim *s, uint64_t low, uint64_t high);
bool sim_chance(struct sim *s, uint32_t thousandth);
uint64_t sim_mix(uint64_t a, uint64_t b);
__attribute__((format(printf, 3, 4), noreturn)) void sim_fail(struct sim *s, const char *checker,
							      const char *fmt, ...);
__attribute__((format(printf, 2, 3))) void sim_trace(struct sim *s, const char *fmt, ...);
const char *sim_id(const struct core_id *id, char text[64]);
/* False: .failed and .why say what failed. */
bool sim_run(struct sim *s, uint64_t seed, bool verbose);
void sim_free(struct sim *s);

#endif
