/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizers with AVX2: vector_rules.h compiled for vector_avx2.h. Called through
 * optim_kernel() where isa_has() says so. */
#include "optim/vector_avx2.h"

#include "optim/vector_rules.h"

KERNELS_DEFINE(optim_avx2)
