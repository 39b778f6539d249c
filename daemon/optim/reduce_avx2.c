/* SPDX-License-Identifier: Apache-2.0 */
/* The reduction with AVX2: vector_reduce.h compiled with vector_avx2.h. reduce_kernel() gives it to
 * workers if isa_has() allows AVX2. */
#include "optim/vector_avx2.h"

#include "optim/vector_reduce.h"

REDUCE_DEFINE(reduce_avx2)
