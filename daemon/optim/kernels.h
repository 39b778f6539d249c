/* SPDX-License-Identifier: Apache-2.0 */
/* kernels.h: the tables that the file of each instruction set fills. optim.c and reduce.c read
 * them. Private to this folder. */
#ifndef SHARD_OPTIM_KERNELS_H
#define SHARD_OPTIM_KERNELS_H

#include "optim/optim.h"
#include "optim/quant.h"
#include "optim/reduce.h"

struct optim_kernels {
	optim_apply *apply[OPTIM_NR][DTYPE_NR][DTYPE_NR]; /* [optimizer][gradient - 1][image - 1] */
	optim_apply_undo *undo[OPTIM_NR][DTYPE_NR][DTYPE_NR];
};
extern const struct optim_kernels optim_scalar, optim_avx2, optim_avx512;

struct reduce_kernels {
	reduce_fn *fn[DTYPE_NR];
};
extern const struct reduce_kernels reduce_scalar, reduce_avx2, reduce_avx512;

extern const struct quant_kernels quant_scalar, quant_avx2, quant_avx512;

#define KERNEL_ARGS                                                                                \
	const struct optim_args *a, size_t n, const void *grad, float *p, float *s1, float *s2,    \
		void *image

/* KERNEL() makes the function of one optimizer and pair of types, and the one with undo. Each one
 * inlines `run` with constants for the rule and for both element types. */
#define KERNEL(opt, states, id, g, i)                                                              \
	static uint64_t opt##_##g##_##i(KERNEL_ARGS)                                               \
	{                                                                                          \
		return run(opt, states, id, KIND_##g, KIND_##i, a, n, grad, p, s1, s2, image,      \
			   NULL);                                                                  \
	}                                                                                          \
	static uint64_t opt##_undo_##g##_##i(KERNEL_ARGS, struct optim_undo *undo)                 \
	{                                                                                          \
		return run(opt, states, id, KIND_##g, KIND_##i, a, n, grad, p, s1, s2, image,      \
			   undo);                                                                  \
	}
#define KERNELS_OF(opt, states, id) OPTIM_PAIRS(KERNEL, opt, states, id)
#define KERNEL_TABLE(opt)                                                                          \
	{                                                                                          \
		{opt##_fp32_fp32, opt##_fp32_bf16, opt##_fp32_fp16},                               \
			{opt##_bf16_fp32, opt##_bf16_bf16, opt##_bf16_fp16},                       \
		{                                                                                  \
			opt##_fp16_fp32, opt##_fp16_bf16, opt##_fp16_fp16                          \
		}                                                                                  \
	}
#define KERNEL_TABLES(kind)                                                                        \
	{                                                                                          \
		[OPTIM_ADAMW] = KERNEL_TABLE(adamw##kind),                                         \
		[OPTIM_ADAM] = KERNEL_TABLE(adam##kind), [OPTIM_SGD] = KERNEL_TABLE(sgd##kind),    \
		[OPTIM_ADAGRAD] = KERNEL_TABLE(adagrad##kind),                                     \
		[OPTIM_LION] = KERNEL_TABLE(lion##kind),                                           \
	}

/* Every instruction set fills its tables with this macro, after it has defined run() and the five
 * rules. */
#define KERNELS_DEFINE(table)                                                                      \
	OPTIM_KINDS(KERNELS_OF)                                                                    \
	const struct optim_kernels table = {.apply = KERNEL_TABLES(), .undo = KERNEL_TABLES(_undo)};

#endif
