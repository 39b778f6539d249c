/* SPDX-License-Identifier: Apache-2.0 */
/* transformer.h: the example's model, a decoder-only transformer over bytes in plain C and fp32.
 * Tensors are numbered in layout order: wte, wpe, twelve per block, and the two of the last norm.
 * The head is wte again. Gradients come out in the reverse of that order. The trainer and the
 * in-process reference run this same object code. */
#ifndef EXAMPLES_TRANSFORMER_H
#define EXAMPLES_TRANSFORMER_H

#include "base/status.h"
#include <stdbool.h>

#define TRANSFORMER_CLASSES 256u

struct transformer_shape {
	uint32_t layers, dim, heads, seq;
};

/* The tensors of one block. */
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

/* What one block keeps from forward for backward. Every pointer points into transformer.memory. */
struct transformer_block {
	float *in, *ln1, *mean1, *rstd1, *qkv, *odds, *mixed, *mid, *ln2, *mean2, *rstd2, *up,
		*gelu;
};

struct transformer {
	struct transformer_shape shape;
	uint32_t tensors_nr;
	struct transformer_tensor *tensors;
	float **w, **g; /* The working copy and the gradient of each tensor. */
	struct transformer_block *blocks;
	float *stream, *last, *mean, *rstd, *logits;               /* Forward, after the blocks. */
	float *d_stream, *d_row, *d_wide, *d_qkv, *square, *panel; /* Backward, and scratch. */
	float *memory;
	size_t memory_floats;
	float *own; /* What transformer_init() allocated. */
};

/* SHARD_BAD_ARG: the shape makes no sense. SHARD_SYSTEM: there is no memory. transformer_deinit()
 * does nothing after a failed init. */
enum shard_status transformer_init(struct transformer *t, const struct transformer_shape *shape,
				   struct err *e);
void transformer_deinit(struct transformer *t);
/* The same in two parts, for memory of the caller, which may be a GPU's: the first part says in
 * memory_floats how much is needed. */
enum shard_status transformer_describe(struct transformer *t, const struct transformer_shape *shape,
				       struct err *e);
void transformer_place(struct transformer *t, float *memory);

/* Makes denormals zero in the calling thread. They cost ten times a normal number, and every
 * process must treat them alike. So each thread that computes calls this. */
void transformer_fp_mode(void);

/* Writes the initial values of one tensor. They are a function of shape, tensor and seed. */
void transformer_initial(const struct transformer *t, uint32_t tensor, uint64_t seed, float *out);

void transformer_load(struct transformer *t, uint32_t tensor, const void *image,
		      enum shard_dtype dtype);
void transformer_zero_grad(struct transformer *t);

/* Forward and backward of one sequence text[0 .. seq], whose last byte is only a target. It adds
 * the gradient of scale x (mean loss over the sequence) to t->g and returns that loss in nats. emit
 * is for the last sequence of a step. It gets each tensor as soon as nothing more will be added to
 * its gradient, and it stops further calls when it returns false. */
typedef bool transformer_emit(void *arg, uint32_t tensor, const float *grad);
double transformer_sequence(struct transformer *t, const uint8_t *text, float scale,
			    transformer_emit *emit, void *arg);

#endif
