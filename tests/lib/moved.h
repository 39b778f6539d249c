/* SPDX-License-Identifier: Apache-2.0 */
/* moved.h: steps of the tests in which chunks of a model, "moved", go from node to node while a
 * crew trains it. Each wait has a deadline. */
#ifndef SHARD_TESTS_MOVED_H
#define SHARD_TESTS_MOVED_H

#include "lib/crew.h"
#include "lib/proc.h"

/* What a test begins with. */
struct moved_plan {
	int nodes;
	const char *conf, *extra; /* Of the nodes, and the settings of the model. */
	uint32_t scale;           /* So much larger than a crew's model is. */
	bool warm;
	bool own;            /* Most tensors have an image dtype of their own. */
	bool between;        /* Every link leads through a cutter. */
	bool reconnects;     /* The trainers do, when their daemon comes back. */
	uint32_t pause_us;   /* Between the steps. 0: 5000. */
	uint16_t *http_port; /* [nodes] Gets the ports at which they answer. NULL: HTTP is off. */
};

/* Starts the nodes, and two trainers on node a, which train until moved_ends(). Returns after some
 * steps. */
void moved_begin(struct cluster **c, struct crew **crew, const struct moved_plan *p);
/* Waits until the node knows who leads. */
void moved_elected(struct cluster *c, int node);
/* Not the 5 s of a person who waits: a machine may stand still for that long. */
#define MOVED_STATUS "status --json --timeout 30"
/* Runs shardctl at that node. Returns its exit status, or its output, which the caller frees. */
int moved_ctl(struct cluster *c, int node, const char *what);
char *moved_said(struct cluster *c, int node, const char *what, int *rc);
/* How many chunks `node` has, as the node `at` says. */
long long moved_held(struct cluster *c, int at, int node);
void moved_wait(struct cluster *c, int at, int node, long long from, long long to);
/* Waits until each chunk has its copies, two or more, and nothing moves, as the node `at` says. */
void moved_copied(struct cluster *c, int at);
/* A node's whole answer to GET, which the next call overwrites. */
char *moved_http(uint16_t port, const char *path);
/* A figure of the model in a node's answer to /metrics. `more` has further labels. -1: it is not
 * there. */
double moved_metric(uint16_t port, const char *name, const char *more);
void moved_wait_metric(uint16_t port, const char *name, const char *more, double least,
		       double most);
/* Ends the crew, and compares what each running node has with the reference. copied: all copies are
 * compared by `shardctl verify` first. Frees both. */
void moved_ends(struct cluster **c, struct crew **crew, bool copied);

#endif
