/* SPDX-License-Identifier: Apache-2.0 */
/* transformer.h: the example's model: a decoder-only transformer over bytes, in plain C and fp32.
 * Tensors are numbered in layout order: wte, wpe, twelve per block, the last norm's two; the head
 * is wte again. Gradients come out in the reverse of that order. The trainer and the in-process
 * reference run this same object code. */
#ifndef EXAMPLES_TRANSFORMER_H
#define EXAMPLES_TRANSFORMER_H

#include "base/status.h"
#include <stdbool.h>

#define TRANSFORMER_CLASSES 256u

struct transformer_shape {
	uint32_t layers, dim, heads, seq;
};

/* of one block */
enum {
	BLOCK_LN1_W,
	BLOCK_LN1_B,
	BLOCK_QKV_W,
	BLOCK_QKV_B,
	BLOCK_MIX_W,
	BLOCK_MIX_B,
	BLOCK_LN2_W,
	BLOCK_LN2_B,
	BLOCK_UP_W,
	BLOCK_UP_B,
	BLOCK_DOWN_W,
	BLOCK_DOWN_B,
	BLOCK_TENSORS
};

struct transformer_tensor {
	char name[40];
	uint32_t ndim;
	uint64_t shape[2], numel;
};

struct transformer_block { /* what one block keeps from forward for backward; every pointer into
			      transformer.memory */
	float *in, *ln1, *mean1, *rstd1, *qkv, *odds, *mixed, *mid, *ln2, *mean2, *rstd2, *up,
		*gelu;
};

struct transformer {
	struct transformer_shape shape;
	uint32_t tensors_nr;
	struct transformer_tensor *tensors;
	float **w, **g; /* working copy and gradient of each tensor */
	struct transformer_block *blocks;
	float *stream, *last, *mean, *rstd, *logits;               /* forward, after the blocks */
	float *d_stream, *d_row, *d_wide, *d_qkv, *square, *panel; /* backward, and scratch */
	float *memory;
	size_t memory_floats;
};

/* BAD_ARG: a shape that makes no sense; SYSTEM: no memory. deinit is harmless after a failed init.
 */
enum shard_status transformer_init(struct transformer *t, const struct transformer_shape *shape,
				   struct err *e);
void transformer_deinit(struct transformer *t);

/* Denormals cost ten times a normal number, and every process must treat them alike: each thread
 * that computes calls this. */
void transformer_fp_mode(void);

/* The initial values of one tensor: a function of shape, tensor and seed. */
void transformer_initial(const struct transformer *t, uint32_t tensor, uint64_t seed, float *out);

void transformer_load(struct transformer *t, uint32_t tensor, const void *image,
		      enum shard_dtype dtype);
void transformer_zero_grad(struct transformer *t);

/* Forward and backward of one sequence text[0 .. seq], whose last byte is only a target. Adds the
 * gradient of scale x (mean loss over the sequence) to t->g and returns that loss in nats. With
 * emit, a tensor is handed over as soon as nothing will be added to it: for the last sequence of a
 * step. emit answers false to stop there. */
typedef bool transformer_emit(void *arg, uint32_t tensor, const float *grad);
double transformer_sequence(struct transformer *t, const uint8_t *text, float scale,
			    transformer_emit *emit, void *arg);

#endif
