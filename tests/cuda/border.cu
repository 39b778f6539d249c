// SPDX-License-Identifier: Apache-2.0
/* Single operations on a device, for tests: raw_* as the device does them, and careful_* with the
 * repair of optim/ops.h. Where the two differ from x86 is the question (border.h). It is compiled
 * by nvcc for GPUs, and with shim.h for a processor. */
#define DTYPE_FN   static __device__ __forceinline__
#define OPS_DEVICE 1
#define OPS_REPAIR 3 /* Whatever the product does without. */
#include "cuda/border.h"
#include "optim/ops.h"

#define OPERATION(name, expression)                                                                \
	extern "C" __global__ void name(struct border_job job)                                     \
	{                                                                                          \
		uint32_t i = blockIdx.x * BORDER_THREADS + threadIdx.x;                            \
                                                                                                   \
		if (i < job.n)                                                                     \
			job.out[i] = expression;                                                   \
	}
OPERATION(raw_mul, __fmul_rn(job.x[i], job.y[i]))
OPERATION(raw_fma, __fmaf_rn(job.x[i], job.y[i], job.z[i]))
OPERATION(raw_div, __fdiv_rn(job.x[i], job.y[i]))

OP_FN struct ops *careful(struct ops *o)
{
	o->careful = true;
	o->doubt = false;
	return o;
}
#define CAREFUL(name, operation, ...)                                                              \
	OP_FN float name##_of(const struct border_job &job, uint32_t i)                            \
	{                                                                                          \
		struct ops o;                                                                      \
                                                                                                   \
		return operation(careful(&o), __VA_ARGS__);                                        \
	}                                                                                          \
	OPERATION(name, name##_of(job, i))
CAREFUL(careful_mul, op_mul, job.x[i], job.y[i])
CAREFUL(careful_fma, op_fma, job.x[i], job.y[i], job.z[i])
CAREFUL(careful_div, op_div, job.x[i], job.y[i])
