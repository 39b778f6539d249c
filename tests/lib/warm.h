/* SPDX-License-Identifier: Apache-2.0 */
/* warm.h: daemons whose memory outlives them, and a trainer for each rank in the test's own
 * process, which makes one call at a time. The gradients are small whole numbers whose mean is a
 * whole number, too, and the optimizer is sgd with lr 1. So a loop over the steps before gives the
 * right weights of a step. */
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
	enum cluster_warm how; /* CLUSTER_WARM_NR: nothing outlives a daemon. */
	struct cluster *cluster;
	bool between; /* Set before warm_start(): links lead through a cutter. */
	/* The model. A test may change all of it before warm_join(). */
	const char *name, *settings; /* Settings beside lr, timeout and the world's size. */
	uint32_t numel, ranks;
	bool tcp; /* Trainers connect over TCP. */
	enum shard_dtype image, grad;
	struct warm_rank r[WARM_RANKS];
	/* Steps that are not in the weights, because rank 0's gradient is not finite. */
	bool skipped[WARM_STEPS];
	uint64_t halved_from; /* The step from which on lr is 0.5. 0: never. */
	/* As in the settings. It is a power of two, and the steps are few, so the weights are
	 * exact. */
	float momentum;
};

/* A test for each place where memory can be. *state is the place before the setup and a struct warm
 * after it. */
#define WARM_BOTH(fn)                                                                              \
	{#fn " systemd", fn, warm_setup, warm_teardown, (void *)(uintptr_t)CLUSTER_SYSTEMD},       \
	{                                                                                          \
#fn " tmpfs", fn, warm_setup, warm_teardown, (void *)(uintptr_t)CLUSTER_TMPFS      \
	}
int warm_setup(void **state);
int warm_teardown(void **state);
/* Starts the nodes with on[n] ranks on node n, in this order. The model has two chunks per node
 * that workers compute, and one that the loop computes. */
void warm_start(struct warm *w, int nodes, const int *on, const char *extra);
void warm_finish(struct warm *w);

/* Connects and defines. The rank that created the model writes and seals it. */
void warm_define(struct warm *w, uint32_t rank);
/* Joins these ranks. All others are in the world. */
void warm_join(struct warm *w, unsigned ranks);
void warm_all(struct warm *w);                  /* Defines and joins all ranks. */
void warm_begin(struct warm *w, uint32_t rank); /* Begins a step and pushes everything. */
shard_ticket warm_commit(struct warm *w, uint32_t rank);
enum shard_status warm_result(struct warm *w, uint32_t rank); /* Of the step in hand. */
void warm_train(struct warm *w, uint64_t last); /* Makes whole steps. Nothing may end an attempt. */
void warm_end(struct warm *w, uint32_t rank);   /* Ends its connection. */

void warm_spawn(struct warm *w, unsigned nodes); /* Also waits until they answer. */
void warm_kill(struct warm *w, unsigned nodes);
/* Called after a restart of these nodes. Their trainers connect, define and join again. The
 * trainers whose daemon stayed end the step that they have in hand. Returns the step to begin
 * next. */
uint64_t warm_back(struct warm *w, unsigned nodes);
/* Compares masters and image of step at every node. */
void warm_check(struct warm *w, uint64_t step);
/* True: its status says so within ms. */
bool warm_says(struct warm *w, int node, const char *text, int ms);
bool warm_in_phase(struct warm *w, int node, const char *phase,
		   int ms); /* Its status says so within ms. */
/* Waits until its status says so. */
void warm_phase(struct warm *w, int node, const char *phase);
uint32_t warm_logged(struct warm *w, int node, const char *part); /* How often it was logged. */
void warm_wait_log(struct warm *w, int node, const char *part, uint32_t times);

#endif
