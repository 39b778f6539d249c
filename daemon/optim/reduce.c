/* SPDX-License-Identifier: Apache-2.0 */
/* The scalar reduction, and the choice of an instruction set. Workers call it through
 * reduce_kernel() for the sum of a node over its ranks, for the sum over nodes, and for the norm.
 * The scalar reduction is the reference, and the others give the same bits (wire/ARITHMETIC.md). It
 * cannot fail. */
#include "optim/reduce.h"

#include "base/check.h"
#include "optim/kernels.h"
#include "optim/rules.h"

/* Stores x rounded to dt and returns what a reader of dst will see. */
OP_FN float store(enum shard_dtype dt, void *dst, size_t i, float x)
{
	rule_store(dt, dst, i, rule_plain_nan(x));
	return rule_load(dt, dst, i);
}

OP_FN float sum(enum shard_dtype dt, uint32_t k, const void *const *src, void *dst, float pre,
		bool scaled, size_t i)
{
	float x = rule_operand(NULL, rule_load(dt, src[0], i), pre, scaled);

	for (uint32_t s = 1; s < k; s++)
		x = op_add(x, rule_operand(NULL, rule_load(dt, src[s], i), pre, scaled));
	return k > 1 || scaled ? store(dt, dst, i, x) : x;
}

static double fold(double lane[REDUCE_LANES])
{
	for (int width = REDUCE_LANES / 2; width > 0; width /= 2)
		for (int j = 0; j < width; j++)
			lane[j] = op_add_d(lane[j], lane[j + width]);
	return lane[0];
}

OP_FN struct reduce_sum reduce_as(enum shard_dtype dt, size_t n, uint32_t k, const void *const *src,
				  void *dst, float pre, bool scaled, bool norm)
{
	struct reduce_sum r = {0, true};
	const void *copy = dst;

	CHECK(k >= 1 && k <= REDUCE_MAX && (dst || (k == 1 && !scaled)));
	if (k == 1 && !scaled && dst && dst != src[0]) {
		memcpy(dst, src[0], n * dtype_bytes(dt));
		src = &copy; /* Judges the copy, because the original may have changed since. */
	}
	for (size_t at = 0; at < n; at += REDUCE_BLOCK) {
		size_t end = n - at < REDUCE_BLOCK ? n : at + REDUCE_BLOCK;
		double lane[REDUCE_LANES] = {0};

		for (size_t i = at; i < end; i++) {
			float x = sum(dt, k, src, dst, pre, scaled, i);
			double d = x;

			r.finite &= dtype_finite(x);
			if (norm)
				lane[(i - at) % REDUCE_LANES] =
					op_square(lane[(i - at) % REDUCE_LANES], d);
		}
		if (norm)
			r.sq += fold(lane);
	}
	return r;
}

/* `scaled` is a constant: see rule_operand(). */
OP_FN struct reduce_sum reduce_dt(enum shard_dtype dt, size_t n, uint32_t k, const void *const *src,
				  void *dst, float pre, bool norm)
{
	return pre != 1 ? reduce_as(dt, n, k, src, dst, pre, true, norm)
			: reduce_as(dt, n, k, src, dst, pre, false, norm);
}

static struct reduce_sum reduce_f32(size_t n, uint32_t k, const void *const *src, void *dst,
				    float pre, bool norm)
{
	return reduce_dt(SHARD_F32, n, k, src, dst, pre, norm);
}

static struct reduce_sum reduce_bf16(size_t n, uint32_t k, const void *const *src, void *dst,
				     float pre, bool norm)
{
	return reduce_dt(SHARD_BF16, n, k, src, dst, pre, norm);
}

static struct reduce_sum reduce_f16(size_t n, uint32_t k, const void *const *src, void *dst,
				    float pre, bool norm)
{
	return reduce_dt(SHARD_F16, n, k, src, dst, pre, norm);
}

const struct reduce_kernels reduce_scalar = {{reduce_f32, reduce_bf16, reduce_f16}};

reduce_fn *reduce_kernel(enum isa isa, enum shard_dtype dt)
{
	static const struct reduce_kernels *const sets[ISA_NR] = {
		[ISA_SCALAR] = &reduce_scalar,
#ifdef __x86_64__
		[ISA_AVX2] = &reduce_avx2,
		[ISA_AVX512] = &reduce_avx512,
#endif
	};

	CHECK(isa_has(isa));
	CHECK(dtype_ok(dt));
	return sets[isa]->fn[dt - 1];
}
