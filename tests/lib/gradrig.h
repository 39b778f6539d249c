/* SPDX-License-Identifier: Apache-2.0 */
/* gradrig.h: trainers whose gradients lie where a real daemon has memory for them on GPUs of the
 * driver library for tests, and twins that give the same gradients by arenas of the host. */
#ifndef SHARD_TESTS_GRADRIG_H
#define SHARD_TESTS_GRADRIG_H

#include "shard_cuda.h"

#include "lib/fakegpu.h"
#include "lib/proc.h"
#include "lib/trainer.h"

enum { NUMEL_MAX = 3000, RANKS_MAX = 3, BYTES_MAX = NUMEL_MAX * 4, SETTINGS_MAX = 300 };
#define ADAMW "optimizer=adamw lr=0.05 clip=1.5 chunk_elems=1024 local_world=3"
#define TIER  " tier=gpu"

extern struct cluster *rigs_cluster;
extern struct fakegpu rigs_gpu; /* With the context of rig_device(). */

#define CUDA(st, call)                                                                             \
	do {                                                                                       \
		enum shard_status cuda_ = (call);                                                  \
		if (cuda_ != (st))                                                                 \
			fail_msg("%s: %s: %s", #call, shard_name(cuda_), shard_cuda_error());      \
	} while (0)

/* How a rank gives its gradients. */
enum way {
	HOST,  /* By the arena of the host. */
	OWN,   /* By a copy from memory of its own on the device. */
	THERE, /* From memory of the daemon on the device. */
	PARTS, /* The same, each tensor in three pushes. */
	SOME,  /* Tensor 2 by the arena, and the others from the device. */
	FEW,   /* None of tensors 0 and 1. */
	ADDED, /* In two micro-steps. */
	SHARED /* Tensors 0 and 2 in shares, rank 0 the first half. */
};

struct rig {
	struct trainer t;
	shard_cuda *cu;
	enum way way;
	enum shard_dtype grad;
	int hint, device; /* device -1: it has none. */
	bool joined;
	void *own, *pinned;
};

struct rigs {
	struct rig rank[RANKS_MAX];
	uint32_t nr;
};

struct rig_run {
	const char *more; /* Settings of both models. */
	enum shard_dtype grad;
	struct {
		enum way way;
		int device, node;
	} rank[RANKS_MAX];
	uint32_t ranks;
	bool summed; /* On the device. */
};

/* Its context is current from now on. */
void rig_device(int n);
/* Of each test, for cmocka. */
int rigs_setup(void **state);
int rigs_teardown(void **state);
/* Nodes with GPUs. daemon: that program, or NULL. */
void rigs_start(int nodes_nr, const char *more, const char *daemon);
/* Has it memory for gradients? Otherwise shard_cuda_tell() says so with `why`. */
bool rig_has_memory(struct rig *r, const char *why);
/* It asks to join, and rig_open() waits until the others have done so, too. */
void rig_define(struct rig *r, int hint, const char *address, const char *name,
		enum shard_dtype grad, const char *settings, int device, enum way way);
void rig_open(struct rig *r);
/* The GPU alone. */
void rig_close_cuda(struct rig *r);
/* Nothing of a driver that a trainer took. */
void rigs_nothing_left(void);
/* The gradient of a tensor in a step, with the grad dtype. */
void rig_gradient(struct rig *r, void *to, uint32_t rank, uint32_t tensor, uint64_t step);
/* Pushes what is in r->pinned. */
void rig_push_range(struct rig *r, uint32_t tensor, uint64_t first, uint64_t n, uint32_t flags);
/* All begin, push and commit. The ways of `like` say what there is, and those of the rigs where it
 * lies. The last rank adds an element `spoil` to tensor 2, if that is not 0. */
void rigs_begin(struct rigs *c, const struct rigs *like);
void rigs_push(struct rigs *c, const struct rigs *like, uint32_t k, float spoil);
struct shard_result rigs_step(struct rigs *c, const struct rigs *like, float spoil,
			      enum shard_outcome outcome);
/* A step of both, with the same weights after it. */
void rigs_both(struct rigs *c, struct rigs *twin, float spoil);
/* Sums that devices of a node have made. */
uint64_t rigs_sums(int node);
void rigs_settings(char settings[SETTINGS_MAX], const struct rig_run *w, bool twin);
void rigs_open(struct rigs *c, const struct rig_run *w, const char *name, bool twin);
void rigs_close(struct rigs *c);

#endif
