/* SPDX-License-Identifier: Apache-2.0 */
/* kinds.h: which kernels there are, and what each of them is told of a step. The kernels of
 * processors (kernels.h) and of devices (gpu/kernels.cu) are both made of these lists. It is plain
 * enough for C, C++ and CUDA. */
#ifndef SHARD_OPTIM_KINDS_H
#define SHARD_OPTIM_KINDS_H

#include <stdint.h>

enum optim_id { OPTIM_ADAMW, OPTIM_ADAM, OPTIM_SGD, OPTIM_ADAGRAD, OPTIM_LION, OPTIM_NR };

enum { OPTIM_STATES_MAX = 2 };

/* What a kernel needs to know about a step. Every division, power and root is already computed, in
 * double, and rounded to float once. The words travel as 4 bytes each, in this order. Words that an
 * optimizer does not use are zero. */
struct optim_args {
	float mult;  /* g = gradient * mult. It is clip factor / (loss scale * sum of weights). */
	float lr;    /* For sgd, adagrad and lion. */
	float decay; /* 1 - lr * weight_decay, for adamw and lion. */
	float l2;    /* weight_decay that is added to the gradient, for adam, sgd and adagrad. */
	float beta1; /* For sgd it is the momentum. */
	float one_minus_beta1;
	float beta2;
	float one_minus_beta2;
	float eps;
	float step_size;   /* lr / (1 - beta1^t), for adamw and adam. */
	float bc2_sqrt;    /* sqrt(1 - beta2^t), for adamw and adam. */
	uint32_t nesterov; /* For sgd. */
};
enum { OPTIM_ARGS_WORDS = sizeof(struct optim_args) / 4 };

/* X(rule, number of states, id) for each optimizer. */
#define OPTIM_KINDS(X)                                                                             \
	X(adamw, 2, OPTIM_ADAMW)                                                                   \
	X(adam, 2, OPTIM_ADAM)                                                                     \
	X(sgd, 1, OPTIM_SGD)                                                                       \
	X(adagrad, 1, OPTIM_ADAGRAD)                                                               \
	X(lion, 1, OPTIM_LION)

/* X(rule, number of states, id, type of the gradient, type of the image) for each pair of types. */
#define OPTIM_PAIRS(X, rule, states, id)                                                           \
	X(rule, states, id, fp32, fp32)                                                            \
	X(rule, states, id, fp32, bf16)                                                            \
	X(rule, states, id, fp32, fp16)                                                            \
	X(rule, states, id, bf16, fp32)                                                            \
	X(rule, states, id, bf16, bf16)                                                            \
	X(rule, states, id, bf16, fp16)                                                            \
	X(rule, states, id, fp16, fp32)                                                            \
	X(rule, states, id, fp16, bf16)                                                            \
	X(rule, states, id, fp16, fp16)

/* The enum shard_dtype of a type in these lists. */
#define KIND_fp32 SHARD_F32
#define KIND_bf16 SHARD_BF16
#define KIND_fp16 SHARD_F16

#endif
