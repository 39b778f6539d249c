/* SPDX-License-Identifier: Apache-2.0 */
/* crew.h: trainer threads that train one small model through the public API. Their gradients depend
 * on step, rank and element only, so there is one right result whatever happens on the way. The
 * crew computes that result itself, without any daemon. */
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
	CREW_STEPS_MAX = 1 << 17, /* Of an elastic crew. */
	CREW_NUMEL_MAX = CREW_SCALE_MAX * (37 * 64 + 64 * 50) + 50 + 1
};

struct crew;

struct crew_member {
	struct crew *crew;
	pthread_t thread;
	const char *address;
	uint32_t node; /* The node of its daemon. Node sums go by it. */
	uint32_t rank;
	bool reconnects; /* It connects again after a lost connection, as often as it takes. */
	_Atomic uint64_t step; /* The step in hand. */
	_Atomic uint32_t retries, reconnected, rolled_back;
};

struct crew {
	const char *name; /* The model's name. */
	/* Settings added to those of crew_spec(), or replacing one. NULL: none. */
	const char *extra;
	uint32_t pause_us; /* How long a step takes beside the library. 0: no time. */
	uint32_t nr, numel[CREW_TENSORS], total;
	struct shard_tensor tensors[CREW_TENSORS];
	struct crew_member member[CREW_MAX];
	/* Its members come and go with their nodes, so the world has another size at each step.
	 * Gradients have exact sums, and depend on rank and size only. Each result must be true. */
	bool elastic;
	_Atomic uint64_t last; /* The step after which they leave. */
	_Atomic uint64_t told; /* The last step that a member was told is committed. */
	_Atomic uint64_t away; /* A bit for each node that will not be back before the end. */
	/* The size of the world of each step, as members were told, and of the last attempt at it,
	 * as they began it. */
	_Atomic uint8_t told_size[CREW_STEPS_MAX], begun_size[CREW_STEPS_MAX];
	/* With an image_codec: the weights of that step came from a checkpoint. */
	_Atomic uint8_t sealed[CREW_STEPS_MAX];
	/* The right result. The image counts only with an image_codec, of which one tensor after
	 * the other is coded: no image dtypes of their own. With a grad_codec the crew is not
	 * elastic, and its nodes keep their memory or have error_feedback=no. */
	uint64_t ref_step;
	float p[CREW_NUMEL_MAX], m[CREW_NUMEL_MAX], v[CREW_NUMEL_MAX], image[CREW_NUMEL_MAX];
	uint16_t lost[CREW_MAX][CREW_NUMEL_MAX]; /* [node] With a grad_codec: its residual, bf16. */
};

void crew_init(struct crew *c, const char *name);
/* Called after crew_init(): makes the matrices `scale` times as large. */
void crew_larger(struct crew *c, uint32_t scale);
/* Called after both: most tensors have an image dtype of their own. */
void crew_own_types(struct crew *c);
/* Adds a member with the next rank. The reference sums nodes in the order of their lowest rank. */
struct crew_member *crew_add(struct crew *c, const char *address, uint32_t node);
/* With last = UINT64_MAX they train until crew_finish(). */
void crew_start(struct crew *c, uint64_t last);
/* Connects, defines the model and disconnects. error: the sentence of a failure. */
enum shard_status crew_define(struct crew *c, const char *address, char error[512]);
/* Runs one member in this thread. The other members are in other processes. */
void crew_run(struct crew *c, uint32_t rank, uint64_t last);
uint64_t crew_step(struct crew *c); /* The furthest step that a member has begun. */
void crew_wait_step(struct crew *c, uint64_t step);
/* Of an elastic crew: waits until a member was told so, and that the world had so many members. */
void crew_wait_told(struct crew *c, uint64_t step, uint32_t size, uint64_t until_ns);
/* Ends the members after a step that none of them has begun yet, and returns that step. */
uint64_t crew_finish(struct crew *c);
/* Compares master, moments and image of every tensor bit by bit. */
void crew_check(struct crew *c, const char *address, uint64_t step);

/* What rank `rank` pushes of a tensor in a step: bf16, numel[tensor] elements. */
void crew_gradient(const struct crew *c, uint64_t step, uint32_t rank, uint32_t tensor,
		   uint16_t *to);
/* Describes the model of crew_init() with the settings that every crew has. */
void crew_spec(struct shard_spec *s, const char *name, char *settings, size_t bytes,
	       uint32_t world);
/* Connects, or ends the process with the library's sentence. */
shard_client *crew_connect(const char *address);

/* Any thread may call it. A status that is not the expected one ends the process with the library's
 * sentence. */
void crew_must(enum shard_status got, enum shard_status want, const char *what);
#define MUST(call) crew_must((call), SHARD_OK, #call)

#endif
