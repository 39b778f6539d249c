/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizers with AVX2: vector_rules.h compiled with vector_avx2.h. optim_kernel() gives them
 * to workers if isa_has() allows AVX2. */
#include "optim/vector_avx2.h"

#include "optim/vector_rules.h"

KERNELS_DEFINE(optim_avx2)
