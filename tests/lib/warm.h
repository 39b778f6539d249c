/* SPDX-License-Identifier: Apache-2.0 */
/* warm.h: daemons whose memory outlives them, and a trainer for each rank in the test's own
 * process, one call at a time. Gradients are small whole numbers whose mean is one too, the
 * optimizer is sgd with lr 1: the right weights of a step are a loop over the steps before it. */
#ifndef SHARD_TESTS_WARM_H
#define SHARD_TESTS_WARM_H

#include "lib/proc.h"
#include "lib/rawpeer.h"

#include "shard.h"

enum { WARM_RANKS = 4, WARM_STEPS = 256 };

struct warm_rank {
	int node;
	shard_client *client;
	shard_model *model;
	int created;
	struct shard_world world;
	struct shard_step step;
};

struct warm {
	enum cluster_warm how; /* CLUSTER_WARM_NR: nothing outlives a daemon */
	struct cluster *cluster;
	/* a model; a test may change all of it before warm_join() */
	const char *name, *settings; /* settings: beside lr, timeout and the world's size */
	uint32_t numel, ranks;
	bool tcp; /* Trainers connect over TCP. */
	enum shard_dtype image, grad;
	struct warm_rank r[WARM_RANKS];
	bool skipped[WARM_STEPS]; /* not in the weights: rank 0's gradient is not finite */
	uint64_t halved_from;     /* step from which on lr is 0.5; 0: never */
	float momentum;           /* as in the settings; a power of two, and few steps: exact */
};

/* A test for each place where memory can be: *state is the place, then struct warm. */
#define WARM_BOTH(fn)                                                                              \
	{#fn " systemd", fn, warm_setup, warm_teardown, (void *)(uintptr_t)CLUSTER_SYSTEMD},       \
	{                                                                                          \
#fn " tmpfs", fn, warm_setup, warm_teardown, (void *)(uintptr_t)CLUSTER_TMPFS      \
	}
int warm_setup(void **state);
int warm_teardown(void **state);
/* on[n] ranks on node n, in this order; a model of two chunks per node that workers compute, and
 * one that the loop does. */
void warm_start(struct warm *w, int nodes, const int *on, const char *extra);
void warm_finish(struct warm *w);

void warm_define(struct warm *w, uint32_t rank); /* connects; whoever creates writes and seals */
void warm_join(struct warm *w, unsigned ranks);  /* these, all others are in the world */
void warm_all(struct warm *w);                   /* defines and joins all */
void warm_begin(struct warm *w, uint32_t rank);  /* and pushes everything */
shard_ticket warm_commit(struct warm *w, uint32_t rank);
enum shard_status warm_result(struct warm *w, uint32_t rank); /* of the step in hand */
void warm_train(struct warm *w, uint64_t last); /* whole steps; nothing may come between */
void warm_end(struct warm *w, uint32_t rank);   /* its connection */

void warm_spawn(struct warm *w, unsigned nodes); /* and waits until they answer */
void warm_kill(struct warm *w, unsigned nodes);
/* After a restart of these nodes: their trainers connect, define and join again, whose daemon
 * stayed give up what they have in hand. The step to begin next. */
uint64_t warm_back(struct warm *w, unsigned nodes);
void warm_check(struct warm *w, uint64_t step); /* masters and image of step, at every node */
bool warm_says(struct warm *w, int node, const char *text, int ms); /* its status, within ms */
bool warm_in_phase(struct warm *w, int node, const char *phase,
		   int ms);                                   /* its status says so within ms */
void warm_phase(struct warm *w, int node, const char *phase); /* waits until its status says so */
uint32_t warm_logged(struct warm *w, int node, const char *part); /* how often */
void warm_wait_log(struct warm *w, int node, const char *part, uint32_t times);

#endif
