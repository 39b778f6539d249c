/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizers with AVX-512: vector_rules.h compiled with vector_avx512.h. optim_kernel() gives
 * them to workers if isa_has() allows AVX-512. */
#include "optim/vector_avx512.h"

#include "optim/vector_rules.h"

KERNELS_DEFINE(optim_avx512)
