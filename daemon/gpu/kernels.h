/* SPDX-License-Identifier: Apache-2.0 */
/* kernels.h: what the kernels of kernels.cu are given. One launch works on many chunks: tables in
 * the memory of the device say where each chunk is, which segments it has, and what each of them
 * gets. Everything is cut into blocks of REDUCE_BLOCK elements, which begin anew at each segment,
 * and the blocks of a launch are numbered through. It is plain enough for C, C++ and CUDA.
 *
 * The kernels are apply_RULE_GRADIENT_IMAGE, as apply_adamw_bf16_bf16, for all of optim/kinds.h,
 * and sum_TYPE. Each has one parameter, the struct with the kernel's name below. All launches have
 * GPU_THREADS threads in a block of threads. apply_* needs one of these for each block of elements,
 * sum_* one for each GPU_SUM_BLOCKS. Chunks begin on borders of 16 bytes, and segments on borders
 * of 64 elements in them. Old and new state, and the operands and the result of a sum, may be the
 * same memory, and otherwise do not overlap. */
#ifndef SHARD_GPU_KERNELS_H
#define SHARD_GPU_KERNELS_H

#include "optim/kinds.h"
#include "optim/reduce.h"

enum {
	GPU_THREADS = 256,
	GPU_SUM_BLOCKS = GPU_THREADS / REDUCE_LANES, /* A thread has one lane of one block. */
};

struct gpu_segment {
	uint32_t chunk;    /* Its row in the tables of chunks. */
	uint32_t start, n; /* As in struct segment. */
	uint32_t block;    /* How many blocks the segments before it have. */
	uint32_t group;    /* apply: its row in the table of args. */
	uint32_t zero;     /* apply: not 0 if nobody has a gradient for it. */
	/* sum: its operands are these rows of the table of sources. At least one. */
	uint32_t source, sources_nr;
};

struct gpu_chunk { /* apply: addresses of the first element. NULL where there is no such state. */
	const float *p, *s1, *s2;
	float *new_p, *new_s1, *new_s2;
	const void *grad;
	void *image;
};

struct gpu_apply {
	const struct gpu_segment *segments;
	const struct gpu_chunk *chunks;
	const struct optim_args *args;
	unsigned long long *kept; /* [chunks] Gets how many elements were kept, added. */
	uint32_t segments_nr, blocks_nr;
};

struct gpu_sum {
	const struct gpu_segment *segments;
	const void *const *sources; /* Where the chunk's first element is in each. */
	void *const *to;            /* [chunks] NULL: the only source stays what it is. */
	/* [blocks] Gets the sum of squares of each block of the result. The host adds them up in
	 * order (wire/ARITHMETIC.md, section 3). NULL: nobody wants it. */
	double *squares;
	uint32_t *bad; /* [segments] Gets 1 if an element of the result is not finite. */
	uint32_t segments_nr, blocks_nr;
	float pre; /* As in reduce_fn. */
};

#endif
