/* SPDX-License-Identifier: Apache-2.0 */
/* The reduction with AVX-512: vector_reduce.h compiled for vector_avx512.h. Called through
 * reduce_kernel() where isa_has() says so. */
#include "optim/vector_avx512.h"

#include "optim/vector_reduce.h"

REDUCE_DEFINE(reduce_avx512)
