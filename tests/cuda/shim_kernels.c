// SPDX-License-Identifier: Apache-2.0
/* The table of the kernels that were compiled with shim.h. Tests look kernels up in it as the
 * daemon looks them up in a module of the driver. */
#include "cuda/shim_kernels.h"

#include "base/check.h"
#include "examples/gpt_kernels.h"

#include <string.h>

#define DEFINE(name, type)                                                                         \
	void name(struct type job);                                                                \
	static void call_##name(const void *job)                                                   \
	{                                                                                          \
		name(*(const struct type *)job);                                                   \
	}
#define ROW(name, type, meets)               {#name, call_##name, sizeof(struct type), meets},
#define APPLY_DEFINE(rule, states, id, g, i) DEFINE(apply_##rule##_##g##_##i, gpu_apply)
#define APPLY_ROW(rule, states, id, g, i)    ROW(apply_##rule##_##g##_##i, gpu_apply, false)
#define DEFINE_PAIRS(rule, states, id)       OPTIM_PAIRS(APPLY_DEFINE, rule, states, id)
#define ROW_PAIRS(rule, states, id)          OPTIM_PAIRS(APPLY_ROW, rule, states, id)

#define SUMS(X)                X(sum_fp32) X(sum_bf16) X(sum_fp16)
#define DEFINE_SUM(name)       DEFINE(name, gpu_sum)
#define ROW_SUM(name)          ROW(name, gpu_sum, true)
#define RAW(X)                 X(raw_mul) X(raw_fma) X(raw_div)
#define CAREFUL(X)             X(careful_mul) X(careful_fma) X(careful_div)
#define DEFINE_OPERATION(name) DEFINE(name, border_job)
#define ROW_OPERATION(name)    ROW(name, border_job, false)

#define DEFINE_GPT(name) DEFINE(name, name##_job)
#define ROW_GPT(name)    ROW(name, name##_job, false)

OPTIM_KINDS(DEFINE_PAIRS)
GPT_KERNELS(DEFINE_GPT)
SUMS(DEFINE_SUM)
RAW(DEFINE_OPERATION)
CAREFUL(DEFINE_OPERATION)

static const struct shim_kernel kernels[] = {OPTIM_KINDS(ROW_PAIRS) SUMS(ROW_SUM) RAW(ROW_OPERATION)
						     CAREFUL(ROW_OPERATION) GPT_KERNELS(ROW_GPT)};

const struct shim_kernel *shim_kernel(const char *name)
{
	for (size_t i = 0; i < NR(kernels); i++)
		if (strcmp(kernels[i].name, name) == 0)
			return &kernels[i];
	return NULL;
}

void shim_call(const struct shim_kernel *k, const void *job, unsigned blocks, unsigned threads)
{
	CHECK(k != NULL);
	shim_launch(k->call, job, blocks, threads, k->meets);
}
