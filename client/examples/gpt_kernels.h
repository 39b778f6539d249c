/* SPDX-License-Identifier: Apache-2.0 */
/* gpt_kernels.h: what the kernels of gpt_kernels.cu are given. Each kernel has one parameter, the
 * struct KERNEL_job, whose nr says how many threads have work. All launches have GPT_THREADS
 * threads in a block. Addresses are of the device. It is plain enough for C, C++ and CUDA. */
#ifndef EXAMPLES_GPT_KERNELS_H
#define EXAMPLES_GPT_KERNELS_H

#include <stdint.h>

enum { GPT_THREADS = 128 };

#define GPT_KERNELS(X)                                                                             \
	X(gpt_zero)                                                                                \
	X(gpt_load)                                                                                \
	X(gpt_store)                                                                               \
	X(gpt_add)                                                                                 \
	X(gpt_embed)                                                                               \
	X(gpt_embed_backward)                                                                      \
	X(gpt_norm)                                                                                \
	X(gpt_norm_backward)                                                                       \
	X(gpt_norm_sums)                                                                           \
	X(gpt_matmul)                                                                              \
	X(gpt_rows_sum)                                                                            \
	X(gpt_gelu)                                                                                \
	X(gpt_gelu_backward)                                                                       \
	X(gpt_softmax)                                                                             \
	X(gpt_softmax_backward)                                                                    \
	X(gpt_loss)

/* A thread has one element. */
struct gpt_zero_job {
	float *to;
	uint64_t nr;
};
struct gpt_load_job { /* From the type of the image. */
	float *to;
	const void *from;
	uint32_t dtype; /* enum shard_dtype */
	uint64_t nr;
};
struct gpt_store_job { /* To the type of gradients. */
	void *to;
	const float *from;
	uint32_t dtype;
	uint64_t nr;
};
struct gpt_add_job { /* to += what */
	float *to;
	const float *what;
	uint64_t nr;
};
struct gpt_embed_job { /* out[rows][dim] = wte[text[row]] + wpe[row] */
	float *out;
	const float *wte, *wpe;
	const uint8_t *text;
	uint64_t dim, nr;
};
struct gpt_gelu_job {
	float *out;
	const float *in;
	uint64_t nr;
};
struct gpt_gelu_backward_job { /* d becomes the gradient of the input. */
	float *d;
	const float *in;
	uint64_t nr;
};
/* Matrices c[m][n] = start + a[m][k] b[k][n], as many as nr has threads for, `next` elements apart.
 * start is NULL for 0, a bias with start_row 0, or c itself. The sum runs over k in order. */
struct gpt_matmul_job {
	float *c;
	const float *start, *a, *b;
	uint64_t c_row, c_next, start_row, a_row, a_col, a_next, b_row, b_col, b_next; /* Strides */
	uint64_t m, n, k, nr;
};

/* A thread has one row: see layer_row.h. */
struct gpt_norm_job {
	float *out;
	const float *in, *weight, *bias;
	float *mean, *rstd;
	uint64_t dim, nr;
};
struct gpt_norm_backward_job { /* Adds to d_in. */
	float *d_in;
	const float *d_out, *in, *weight, *mean, *rstd;
	uint64_t dim, nr;
};
struct gpt_softmax_job { /* Of all heads: odds[heads][rows][rows]. */
	float *odds;
	uint64_t rows, nr;
	float scale;
};
struct gpt_softmax_backward_job {
	float *d;
	const float *odds;
	uint64_t rows, nr;
	float scale;
};
struct gpt_loss_job {
	float *logits;
	const uint8_t *targets;
	struct row_loss *said; /* [nr] */
	uint64_t classes, nr;
	float each;
};

/* A thread has one column, and adds up the rows in order. */
struct gpt_embed_backward_job { /* d_wte[text[row]] += d[row] */
	float *d_wte;
	const float *d;
	const uint8_t *text;
	uint64_t rows, nr;
};
struct gpt_norm_sums_job { /* Adds to both. */
	float *d_weight, *d_bias;
	const float *d_out, *in, *mean, *rstd;
	uint64_t rows, nr;
};
struct gpt_rows_sum_job { /* to += the sum of the rows. */
	float *to;
	const float *from;
	uint64_t rows, nr;
};

#endif
