/* SPDX-License-Identifier: Apache-2.0 */
/* trap.h: stops a child where it calls a certain function, like a breakpoint of a debugger, so that
 * a test can kill a node in the middle of a phase. The program under test has nothing for it. The
 * thread that sets a trap must also wait for it and end it. */
#ifndef SHARD_TESTS_TRAP_H
#define SHARD_TESTS_TRAP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { TRAP_THREADS_MAX = 32, TRAP_ANY = -1 };

/* What the arguments of the function must be. */
enum trap_what {
	TRAP_CALL,  /* Anything. */
	TRAP_FRAME, /* The second one is the header of a frame with this op (stream_send()). */
	TRAP_SEND,  /* The same of peer_send() and peer_write(), to this node. */
	TRAP_HEAR,  /* The same of model_core_frame(), from this node. */
};

struct trap_point {
	const char *function; /* No other function of the program has this name. */
	enum trap_what what;
	uint16_t op;
	int node;     /* TRAP_ANY: any. */
	uint32_t nth; /* It is the nth such call since the trap was set, from 1. 0: as 1. */
	/* Also calls of the threads with this name ("shardd-w"). NULL: the first thread alone, and
	 * no other thread calls the function. */
	const char *workers;
};

/* Rows of tables of points. */
#define TRAP_SENDS(op_, nth_)                                                                      \
	{                                                                                          \
		.function = (op_) < OP_CORE ? "peer_send" : "peer_write", .what = TRAP_SEND,       \
		.op = (op_), .node = TRAP_ANY, .nth = (nth_)                                       \
	}
#define TRAP_HEARS(op_)                                                                            \
	{                                                                                          \
		.function = "model_core_frame", .what = TRAP_HEAR, .op = (op_), .node = TRAP_ANY   \
	}
/* Parts of tensors. */
#define TRAP_PARTS(op_, nth_)                                                                      \
	{                                                                                          \
		.function = "stream_send", .what = TRAP_FRAME, .op = (op_), .nth = (nth_)          \
	}
/* All parts of a chunk are sent, and this is what says so. */
#define TRAP_CLOSES(op_)                                                                           \
	{                                                                                          \
		.function = "stream_send_control", .what = TRAP_FRAME, .op = (op_)                 \
	}
#define TRAP_CALLS(name_, nth_)                                                                    \
	{                                                                                          \
		.function = (name_), .nth = (nth_)                                                 \
	}

struct trap {
	struct trap_point at;
	pid_t pid, tid[TRAP_THREADS_MAX], hit; /* hit: the thread that stands there. 0: none. */
	uint32_t nr, seen;
	uint64_t address;
	long word; /* What is there without the trap. */
};

/* False: this machine has no such traps, and the test should be skipped. */
bool trap_here(void);
void trap_set(struct trap *t, pid_t pid, const struct trap_point *at);
/* True: the thread stands at the first instruction of the function. False: it has not come there
 * within ms of a quiet machine, and the trap is still set. */
bool trap_wait(struct trap *t, int ms);
/* The thread that stands there goes on to another point, and no call on the way is missed. */
void trap_next(struct trap *t, const struct trap_point *at);
/* The process goes on as if nothing had happened. */
void trap_end(struct trap *t);
/* Sends SIGKILL to the process. The caller still has to wait for its end. */
void trap_kill(struct trap *t);

#endif
