// SPDX-License-Identifier: Apache-2.0
/* Each rule for one element, without the repair of flushed results, so that its operations can be
 * counted in what nvcc makes of it (proc/cuda_ptx.sh). */
#define DTYPE_FN   static __device__ __forceinline__
#define OPS_DEVICE 1
#define OPS_REPAIR 0
#include "optim/rules.h"

#define PROBE(rule, states, id)                                                                    \
	extern "C" __global__ void probe_##rule(const struct optim_args *a, const float *w,        \
						struct elem *e, uint64_t *kept)                    \
	{                                                                                          \
		struct ops quick = {false, false};                                                 \
                                                                                                   \
		*e = rule_apply(rule, &quick, a, *w, *e, kept);                                    \
	}
OPTIM_KINDS(PROBE)
