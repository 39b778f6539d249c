/* SPDX-License-Identifier: Apache-2.0 */
/* The reduction with AVX-512: vector_reduce.h compiled with vector_avx512.h. reduce_kernel() gives
 * it to workers if isa_has() allows AVX-512. */
#include "optim/vector_avx512.h"

#include "optim/vector_reduce.h"

REDUCE_DEFINE(reduce_avx512)
