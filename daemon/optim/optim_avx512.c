/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizers with AVX-512: vector_rules.h compiled for vector_avx512.h. Called through
 * optim_kernel() where isa_has() says so. */
#include "optim/vector_avx512.h"

#include "optim/vector_rules.h"

KERNELS_DEFINE(optim_avx512)
