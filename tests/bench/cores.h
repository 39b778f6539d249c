/* SPDX-License-Identifier: Apache-2.0 */
/* cores.h: for bench_control: a cluster of real cores in one thread, whose messages are packed and
 * unpacked as a daemon does it, and what each kind of message cost the coordinator and another
 * node. Time inside the cluster is virtual, so a step of one second takes as long as its messages
 * need. What fails ends the program, because a benchmark has nothing to recover. */
#ifndef SHARD_TESTS_BENCH_CORES_H
#define SHARD_TESTS_BENCH_CORES_H

#include "core/core.h"

struct cores_spec {
	uint16_t nodes;
	uint32_t chunks;  /* Of which each node is the primary. */
	uint32_t ranks;   /* On each node. */
	uint32_t copies;  /* Of each chunk. */
	uint64_t step_ns; /* From BEGIN until all ranks are ready. */
	/* As it once was: a message to several nodes is packed for each, and each is a write. */
	bool each;
};

/* One kind of message at one node, of all steps together. */
struct cores_op {
	uint64_t out_nr, out_bytes; /* Bodies, without headers. */
	uint64_t pack_ns;           /* From the core's message to the bytes of a body. */
	uint64_t in_nr, in_bytes;
	uint64_t unpack_ns; /* From the bytes to the core's message. */
	uint64_t handle_ns; /* What the core does with those that came. */
};

enum { CORES_COORDINATOR, CORES_OTHER, CORES_ROLES };

struct cores_cost {
	uint64_t steps;
	struct cores_op op[CORES_ROLES][CORE_MSG_NR];
	/* Events that are no messages: a chunk is reduced, a rank is ready, a timer, and so on. */
	uint64_t own_nr[CORES_ROLES], own_ns[CORES_ROLES];
	/* Messages of one event to one node go out in one write, and come in one read. */
	uint64_t writes[CORES_ROLES], reads[CORES_ROLES];
};

struct cores;
struct cores *cores_begin(const struct cores_spec *spec);
/* Goes through so many steps, and adds what they cost. */
void cores_steps(struct cores *c, uint32_t steps, struct cores_cost *cost);
void cores_end(struct cores **c);
const char *cores_op_name(enum core_op op);

#endif
