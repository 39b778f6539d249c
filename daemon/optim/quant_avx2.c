/* SPDX-License-Identifier: Apache-2.0 */
/* The codes of quant.h with AVX2: vector_quant.h compiled with line_avx2.h. quant_kernels()
 * gives them to workers if isa_has() allows AVX2. */
#include "optim/line_avx2.h"

#include "optim/vector_quant.h"

const struct quant_kernels quant_avx2 = {encode, sum, delta, patch};
