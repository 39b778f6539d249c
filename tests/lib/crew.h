/* SPDX-License-Identifier: Apache-2.0 */
/* crew.h: trainer threads that train one small model through the public API, with gradients that
 * depend on step, rank and element only, so that whatever happens on the way there is one right
 * result; and that result, computed beside it without any daemon. */
#ifndef SHARD_TESTS_CREW_H
#define SHARD_TESTS_CREW_H

#include "shard.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

enum {
	CREW_MAX = 8,
	CREW_TENSORS = 4,
	CREW_SCALE_MAX = 16,
	CREW_NUMEL_MAX = CREW_SCALE_MAX * (37 * 64 + 64 * 50) + 50 + 1
};

struct crew;

struct crew_member {
	struct crew *crew;
	pthread_t thread;
	const char *address;
	uint32_t node; /* that its daemon is: node sums go by it */
	uint32_t rank;
	bool reconnects;       /* a lost connection is begun again, as often as it takes */
	_Atomic uint64_t step; /* in hand */
	_Atomic uint32_t retries, reconnected, rolled_back;
};

struct crew {
	const char *name;  /* of the model */
	const char *extra; /* settings beside crew_spec()'s, and instead of them; NULL: none */
	uint32_t pause_us; /* what a step takes beside the library; 0: nothing */
	uint32_t nr, numel[CREW_TENSORS], total;
	struct shard_tensor tensors[CREW_TENSORS];
	struct crew_member member[CREW_MAX];
	_Atomic uint64_t last; /* step after which they leave */
	/* the right result */
	uint64_t ref_step;
	float p[CREW_NUMEL_MAX], m[CREW_NUMEL_MAX], v[CREW_NUMEL_MAX];
};

void crew_init(struct crew *c, const char *name);
void crew_larger(struct crew *c,
		 uint32_t scale); /* after crew_init(): matrices of so many times the elements */
struct crew_member *crew_add(struct crew *c, const char *address,
			     uint32_t node);    /* ranks in order; nodes in order of lowest rank */
void crew_start(struct crew *c, uint64_t last); /* UINT64_MAX: until crew_finish() */
void crew_run(struct crew *c, uint32_t rank,
	      uint64_t last); /* one of them, in this thread: the others are other processes' */
uint64_t crew_step(struct crew *c); /* furthest step begun */
void crew_wait_step(struct crew *c, uint64_t step);
uint64_t crew_finish(struct crew *c); /* they end after a step that nobody has begun yet: which */
void crew_check(struct crew *c, const char *address,
		uint64_t step); /* master, moments and image of every tensor, bit by bit */

/* What crew_init() makes it, under the settings that every crew has. */
void crew_spec(struct shard_spec *s, const char *name, char *settings, size_t bytes,
	       uint32_t world);
shard_client *crew_connect(const char *address); /* or the process ends with the sentence */

/* In any thread: a status that is not expected ends the process, with its sentence. */
void crew_must(enum shard_status got, enum shard_status want, const char *what);
#define MUST(call) crew_must((call), SHARD_OK, #call)

#endif
