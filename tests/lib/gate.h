/* SPDX-License-Identifier: Apache-2.0 */
/* gate.h: threads of daemons that stand still while they make memory of a model or give it back, as
 * they do when that is gigabytes; and threads of the test that define and drop models meanwhile.
 * GATE_CALLS makes madvise() and munmap() the program's own, with which the gate works. */
#ifndef SHARD_TESTS_GATE_H
#define SHARD_TESTS_GATE_H

#include "lib/inproc.h"

#include <jansson.h>
#include <pthread.h>
#include <shard.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>

enum { GATE_ELEMS = 1 << 20 }; /* of a model that a definer defines */

struct gate {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool makes, gives; /* what stands still */
	uint32_t making, giving;
	bool refuses;    /* to make */
	uint32_t passes; /* so many go on, and the next one that makes stands still */
};

extern struct gate gate;
extern _Thread_local bool gate_mine; /* a thread of the test: nothing stands in its way */

void gate_set(bool *what, bool on);
/* Until so many threads stand still. */
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

/* The loop answers; the state of the model of that name, "" where there is none. */
void gate_expect_state(struct inproc_node *n, const char *name, const char *state);
json_int_t gate_used(struct inproc_node *n); /* bytes of the budget, by models */
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
/* Its connection stays open for what follows. */
void definer_end(struct definer *d, enum shard_status st, const char *part);
void definer_over(struct definer *d);

#endif
