/* SPDX-License-Identifier: Apache-2.0 */
/* gate.h: makes threads of daemons stand still while they make the memory of a model or give it
 * back, as they would with gigabytes. Threads of the test define and drop models meanwhile.
 * GATE_CALLS replaces madvise() and munmap() of the program, with which the gate works. */
#ifndef SHARD_TESTS_GATE_H
#define SHARD_TESTS_GATE_H

#include "lib/inproc.h"

#include <jansson.h>
#include <pthread.h>
#include <shard.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>

enum { GATE_ELEMS = 1 << 20 }; /* Elements of a definer's model. */

struct gate {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool makes, gives; /* Which threads stand still. */
	uint32_t making, giving;
	bool refuses; /* Making memory fails. */
	/* So many buffers are made, and the thread that makes the next one stands still. */
	uint32_t passes;
};

extern struct gate gate;
extern _Thread_local bool gate_mine; /* This thread is of the test, and the gate lets it through. */

void gate_set(bool *what, bool on);
/* Waits until so many threads stand still. */
void gate_wait(struct inproc *c, const uint32_t *what, uint32_t nr);
int gate_madvise(void *at, size_t bytes, int how);
int gate_munmap(void *at, size_t bytes);

#define GATE_CALLS                                                                                 \
	int madvise(void *at, size_t bytes, int how)                                               \
	{                                                                                          \
		return gate_madvise(at, bytes, how);                                               \
	}                                                                                          \
	int munmap(void *at, size_t bytes)                                                         \
	{                                                                                          \
		return gate_munmap(at, bytes);                                                     \
	}

/* The daemon's loop must answer, and the model of that name must have this state ("" for no
 * model). */
void gate_expect_state(struct inproc_node *n, const char *name, const char *state);
/* The same, once this node has heard it from the one that coordinates. */
void gate_wait_state(struct inproc_node *n, const char *name, const char *state);
json_int_t gate_used(struct inproc_node *n); /* Bytes of the budget that models use. */
void gate_wait_used(struct inproc_node *n, json_int_t bytes);

struct definer {
	const char *address, *name;
	pthread_t thread;
	bool drops;
	shard_client *client;
	shard_model *model;
	enum shard_status st;
	char text[512];
};

void definer_begin(struct definer *d, const char *address, const char *name);
void definer_drop(struct definer *d, const char *address, const char *name);
/* Waits for the definer and expects this status, and `part` in its text. The connection stays
 * open. */
void definer_end(struct definer *d, enum shard_status st, const char *part);
void definer_over(struct definer *d);

#endif
