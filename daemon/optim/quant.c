/* SPDX-License-Identifier: Apache-2.0 */
/* The size of coded segments, the codes in plain C, which are the reference for those of other
 * instruction sets, and the choice among these. */
#include "optim/vector_scalar.h"

#include "optim/vector_quant.h"

const struct quant_kernels quant_scalar = {encode, sum, delta, patch};

size_t quant_bytes(const struct quant *q, size_t n)
{
	const struct qhow how = {.kind = q->kind, .block = q->block};

	CHECK(q->kind == QUANT_INT8 || q->kind == QUANT_INT4);
	return scales_at(&how, n) + (n + q->block - 1) / q->block * sizeof(float);
}

bool quant_finite(const struct quant *q, size_t n, const void *coded)
{
	const struct qhow how = {.kind = q->kind, .block = q->block};

	for (size_t at = 0; at < n; at += q->block) {
		float scale;

		memcpy(&scale, scale_of(&how, n, coded, at), sizeof(scale));
		if (!dtype_finite(scale))
			return false;
	}
	return true;
}

const struct quant_kernels *quant_kernels(enum isa isa)
{
	static const struct quant_kernels *const sets[ISA_NR] = {
		[ISA_SCALAR] = &quant_scalar,
#ifdef __x86_64__
		[ISA_AVX2] = &quant_avx2,
		[ISA_AVX512] = &quant_avx512,
#endif
	};

	CHECK(isa_has(isa));
	return sets[isa];
}
