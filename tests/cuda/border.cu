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
		struct ops careful = {true, false};                                                \
                                                                                                   \
		if (i >= job.n)                                                                    \
			return;                                                                    \
		float x = job.x[i], y = job.y[i], z = job.z[i];                                    \
		(void)careful, (void)z;                                                            \
		job.out[i] = expression;                                                           \
	}
OPERATION(raw_mul, __fmul_rn(x, y))
OPERATION(raw_fma, __fmaf_rn(x, y, z))
OPERATION(raw_div, __fdiv_rn(x, y))
OPERATION(careful_mul, op_mul(&careful, x, y))
OPERATION(careful_fma, op_fma(&careful, x, y, z))
OPERATION(careful_div, op_div(&careful, x, y))
