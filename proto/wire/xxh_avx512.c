/* SPDX-License-Identifier: Apache-2.0 */
/* XXH3 for AVX-512. Called through xxh.c, only where the processor has it. Cannot fail. */
#define XXH_ROW    xxh_avx512
#define XXH_VECTOR 3 /* XXH_AVX512. */
#include "wire/xxh_impl.h"
