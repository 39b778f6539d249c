/* SPDX-License-Identifier: Apache-2.0 */
/* loss.h: three real daemons that elect their coordinator, with an elastic crew of one trainer on
 * each, for tests of what a node's death at a certain place costs. A test says where the node dies.
 * Then training must go on in time, and the node comes back without its memory, so that the next
 * one may die. At the end of each such story masters, moments and image of every node equal the
 * reference bit by bit, and all copies are equal. */
#ifndef SHARD_TESTS_LOSS_H
#define SHARD_TESTS_LOSS_H

#include "lib/crew.h"
#include "lib/proc.h"
#include "lib/trap.h"

enum { LOSS_NODES = 3, LOSS_ELECTION_MS = 300 };

#define LOSS_QUORUM "[cluster]\nmembership = quorum\nelection_timeout = 300ms\n"
/* The loss of a link is heard at once. So long a silence is no loss on a busy machine either. */
#define LOSS_BEAT "heartbeat_timeout = 10s\nlost_timeout = 60s\n"

/* Whose process is stopped at a place. */
enum loss_where { LOSS_VICTIM, LOSS_LEADER };

struct loss_moment {
	const char *name;
	enum loss_where where;
	/* TRAP_HEAR: frames of the node that coordinates where the victim is stopped, and frames of
	 * the victim where that node is. */
	struct trap_point at;
	/* NULL: none. Else the victim goes on from `at` to there. */
	const struct trap_point *then;
};

/* Rows of tables: the victim is stopped, or the node that coordinates is. */
#define LOSS_OWN(name_, ...)                                                                       \
	{                                                                                          \
		.name = (name_), .where = LOSS_VICTIM, .at = __VA_ARGS__                           \
	}
#define LOSS_BY(name_, ...)                                                                        \
	{                                                                                          \
		.name = (name_), .where = LOSS_LEADER, .at = __VA_ARGS__                           \
	}

struct loss_conf {
	const char *lines; /* Of every node. NULL: LOSS_QUORUM LOSS_BEAT. */
	const char *of_c;  /* More lines of node c. NULL: none. */
	const char *extra; /* Settings in place of replicas=2, or NULL. */
	bool warm, between;
};

struct loss {
	struct cluster *cluster;
	struct crew crew;
	struct trap trap;
	struct loss_conf conf;
	uint32_t orders;           /* Counts what an operator has ordered. */
	bool trains;               /* The crew has begun and not ended. */
	int dead;                  /* -1: none. */
	int learner;               /* Of a test that has one. */
	pid_t ctl;                 /* shardctl of an order. 0: none. */
	uint64_t killed_ns, known; /* When it was killed, and the last step told then. */
};

/* *state is a struct loss. The teardown kills what a failed test has left and shows the logs. */
int loss_setup(void **state);
int loss_teardown(void **state);

void loss_begin(struct loss *l, const struct loss_conf *conf); /* Trains when it returns. */
void loss_finish(struct loss *l);
/* Waits until all nodes that run are members by the word of each, no node catches up, no chunk
 * moves, each has two copies, and the world has a trainer of each node. */
void loss_whole(struct loss *l);

bool loss_says(struct loss *l, int node, const char *part); /* Is it in its status now? */

/* Who is to die, as the nodes have their roles now. */
typedef int loss_who(struct loss *l);
loss_who loss_leader, loss_holder; /* The latter holds chunks and does not coordinate. */
loss_who loss_learner;             /* l->learner */
/* Node c. If it coordinates, it dies and comes back first, so that another one does. */
loss_who loss_node_c;
/* Starts a node that is dead, without its memory, and waits until it trains. It gets no copies as
 * long as the cutter loses them (loss_conf.between). */
void loss_learns(struct loss *l, int node);
/* Makes that node go to where it dies. It may give loss_ctl_begin() to l->ctl. */
typedef void loss_order(struct loss *l, int victim);

/* Waits until a node is at the moment, and kills it with SIGKILL there. Returns which one. order
 * may be NULL. If another node is elected meanwhile, as on a busy machine, it begins again. */
int loss_kill(struct loss *l, const struct loss_moment *m, loss_who *who, loss_order *order);
/* The same, but the node is stopped (SIGSTOP). */
int loss_still(struct loss *l, const struct loss_moment *m, loss_who *who);
/* The same in parts: it is there. loss_died() kills it and ends the trap. */
int loss_at(struct loss *l, const struct loss_moment *m, loss_who *who, loss_order *order);
void loss_died(struct loss *l, int victim);
/* Steps are committed again without the dead node, within the time that its loss may cost. */
void loss_goes_on(struct loss *l);
/* The node starts again, without its memory unless it outlives it, and gets its copies. */
void loss_back(struct loss *l);
/* Ends the crew and looks at every node that runs. It trains again when this returns. */
void loss_check(struct loss *l);
int loss_ctl(struct loss *l, int node, const char *what); /* shardctl at that node. */
/* The same, and the test goes on. loss_ctl_end() returns its exit code, or 0 if none was begun. */
void loss_ctl_begin(struct loss *l, int node, const char *what);
int loss_ctl_end(struct loss *l);

#endif
