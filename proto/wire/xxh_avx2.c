/* SPDX-License-Identifier: Apache-2.0 */
/* XXH3 for AVX2. Called through xxh.c, only where the processor has it. Cannot fail. */
#define XXH_ROW    xxh_avx2
#define XXH_VECTOR 2 /* XXH_AVX2. */
#include "wire/xxh_impl.h"
