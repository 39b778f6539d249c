/* SPDX-License-Identifier: Apache-2.0 */
/* The codes of quant.h with AVX-512: vector_quant.h compiled with vector_avx512.h. quant_kernels()
 * gives them to workers if isa_has() allows AVX-512. */
#include "optim/vector_avx512.h"

#include "optim/vector_quant.h"

const struct quant_kernels quant_avx512 = {encode, sum, delta, patch};
