// SPDX-License-Identifier: Apache-2.0
/* The update of a step and the sum of gradients, for GPUs. The rules are those of the processors'
 * kernels (optim/rules.h), and so are the bits. nvcc makes a fatbin of this file (cuda.mk), and
 * tests run it on a processor (tests/cuda/shim.h). A thread of the update takes four elements at a
 * time, with loads of 16 bytes. A sum has a thread for each of the 16 lanes of a block, because
 * the order of its squares is fixed, and goes through shared memory to have wide loads as well.
 * Nothing here can fail: an element that would not be finite is counted, or its segment marked. */
#define DTYPE_FN   static __device__ __forceinline__
#define OPS_DEVICE 1
#include "gpu/kernels.h"
#include "optim/rules.h"

#define DEVICE static __device__ __forceinline__

/* The last segment whose first block is not after this one. */
DEVICE const struct gpu_segment *segment_of(const struct gpu_segment *segments, uint32_t nr,
					    uint32_t block)
{
	uint32_t low = 0, high = nr;

	while (high - low > 1) {
		uint32_t middle = low + (high - low) / 2;

		if (segments[middle].block <= block)
			low = middle;
		else
			high = middle;
	}
	return segments + low;
}

/* --- the update --- */

enum { APPLY_WIDTH = 4 }; /* Elements that a thread takes at a time. */

DEVICE void load_floats(float *to, const float *from)
{
	float4 v = *(const float4 *)from;

	to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}

DEVICE void store_floats(float *to, const float *from)
{
	*(float4 *)to = make_float4(from[0], from[1], from[2], from[3]);
}

template <int dt> DEVICE void load_typed(float *to, const void *from, size_t i)
{
	if (dt == SHARD_F32) {
		load_floats(to, (const float *)from + i);
		return;
	}
	ushort4 v = *(const ushort4 *)((const uint16_t *)from + i);

	to[0] = rule_from16((enum shard_dtype)dt, v.x);
	to[1] = rule_from16((enum shard_dtype)dt, v.y);
	to[2] = rule_from16((enum shard_dtype)dt, v.z);
	to[3] = rule_from16((enum shard_dtype)dt, v.w);
}

template <int dt> DEVICE void store_typed(void *to, size_t i, const float *from)
{
	if (dt == SHARD_F32) {
		store_floats((float *)to + i, from);
		return;
	}
	*(ushort4 *)((uint16_t *)to + i) = make_ushort4(
		rule_to16((enum shard_dtype)dt, from[0]), rule_to16((enum shard_dtype)dt, from[1]),
		rule_to16((enum shard_dtype)dt, from[2]), rule_to16((enum shard_dtype)dt, from[3]));
}

template <int id>
DEVICE struct elem update(struct ops *o, const struct optim_args *a, float w, struct elem old,
			  uint64_t *kept)
{
	return rule_apply(id == OPTIM_ADAMW     ? adamw
			  : id == OPTIM_ADAM    ? adam
			  : id == OPTIM_SGD     ? sgd
			  : id == OPTIM_ADAGRAD ? adagrad
						: lion,
			  o, a, w, old, kept);
}

template <int id, int states, int gdt, int idt>
DEVICE void apply_one(const struct gpu_chunk *c, const struct optim_args *a, bool zero, size_t i,
		      uint64_t *kept)
{
	struct ops careful = {true, false};
	struct elem old = {c->p[i], states > 0 ? c->s1[i] : 0, states > 1 ? c->s2[i] : 0};
	float w = zero ? 0 : rule_load((enum shard_dtype)gdt, c->grad, i);
	struct elem e = update<id>(&careful, a, w, old, kept);

	c->new_p[i] = e.p;
	if (states > 0)
		c->new_s1[i] = e.s1;
	if (states > 1)
		c->new_s2[i] = e.s2;
	rule_store((enum shard_dtype)idt, c->image, i, e.p);
}

/* False: a result is doubtful, and nothing was stored. */
template <int id, int states, int gdt, int idt>
DEVICE bool apply_four(const struct gpu_chunk *c, const struct optim_args *a, bool zero, size_t i,
		       uint64_t *kept)
{
	float w[APPLY_WIDTH] = {0, 0, 0, 0}, p[APPLY_WIDTH], s1[APPLY_WIDTH], s2[APPLY_WIDTH];
	struct ops quick = {false, false};
	uint64_t more = 0;

	load_floats(p, c->p + i);
	if (states > 0)
		load_floats(s1, c->s1 + i);
	if (states > 1)
		load_floats(s2, c->s2 + i);
	if (!zero)
		load_typed<gdt>(w, c->grad, i);
#pragma unroll
	for (int j = 0; j < APPLY_WIDTH; j++) {
		struct elem old = {p[j], states > 0 ? s1[j] : 0, states > 1 ? s2[j] : 0};
		struct elem e = update<id>(&quick, a, w[j], old, &more);

		p[j] = e.p, s1[j] = e.s1, s2[j] = e.s2;
	}
	if (quick.doubt)
		return false;
	store_floats(c->new_p + i, p);
	if (states > 0)
		store_floats(c->new_s1 + i, s1);
	if (states > 1)
		store_floats(c->new_s2 + i, s2);
	store_typed<idt>(c->image, i, p);
	*kept += more;
	return true;
}

/* A block of threads takes one block of elements. */
template <int id, int states, int gdt, int idt> DEVICE void apply_block(const struct gpu_apply &job)
{
	const struct gpu_segment *s = segment_of(job.segments, job.segments_nr, blockIdx.x);
	const struct gpu_chunk *c = job.chunks + s->chunk;
	const struct optim_args *a = job.args + s->group;
	const uint32_t first = (blockIdx.x - s->block) * REDUCE_BLOCK;
	const uint32_t end = s->n - first < REDUCE_BLOCK ? s->n : first + REDUCE_BLOCK;
	uint64_t kept = 0;

	for (uint32_t i = first + threadIdx.x * APPLY_WIDTH; i < end;
	     i += GPU_THREADS * APPLY_WIDTH) {
		if (i + APPLY_WIDTH <= end &&
		    apply_four<id, states, gdt, idt>(c, a, s->zero, s->start + (size_t)i, &kept))
			continue;
#pragma unroll 1
		for (uint32_t j = i; j < end && j < i + APPLY_WIDTH; j++)
			apply_one<id, states, gdt, idt>(c, a, s->zero, s->start + (size_t)j, &kept);
	}
	if (kept > 0)
		atomicAdd(job.kept + s->chunk, (unsigned long long)kept);
}

#define APPLY(rule, states, id, g, i)                                                              \
	extern "C" __global__ void __launch_bounds__(GPU_THREADS, 4)                               \
		apply_##rule##_##g##_##i(struct gpu_apply job)                                     \
	{                                                                                          \
		apply_block<id, states, KIND_##g, KIND_##i>(job);                                  \
	}
#define APPLY_PAIRS(rule, states, id) OPTIM_PAIRS(APPLY, rule, states, id)
OPTIM_KINDS(APPLY_PAIRS)

/* --- the sum --- */

enum {
	SUM_TILE = 128,                      /* Elements of a block that are in shared memory. */
	SUM_TURNS = SUM_TILE / REDUCE_LANES, /* Elements of a thread in it. */
	SUM_ROW = SUM_TILE + REDUCE_LANES,   /* The two rows of a warp use different banks. */
	SUM_VECTOR_BYTES = 16,
};

struct vector {
	uint32_t word[SUM_VECTOR_BYTES / 4];
};

template <int dt> DEVICE float vector_get(const struct vector *v, int e)
{
	if (dt == SHARD_F32)
		return dtype_float(v->word[e]);
	return rule_from16((enum shard_dtype)dt, (uint16_t)(v->word[e / 2] >> e % 2 * 16));
}

template <int dt> DEVICE void vector_put(struct vector *v, int e, float x)
{
	if (dt == SHARD_F32)
		v->word[e] = dtype_bits(x);
	else if (e % 2 == 0)
		v->word[e / 2] = rule_to16((enum shard_dtype)dt, x);
	else
		v->word[e / 2] |= (uint32_t)rule_to16((enum shard_dtype)dt, x) << 16;
}

/* nr elements, which are a whole vector or what is left of the segment. */
template <int dt> DEVICE void vector_load(struct vector *v, const void *from, size_t i, uint32_t nr)
{
	const int size = dt == SHARD_F32 ? 4 : 2, per = SUM_VECTOR_BYTES / size;
	const char *at = (const char *)from + i * size;

	if (nr == per) {
		uint4 w = *(const uint4 *)at;

		v->word[0] = w.x, v->word[1] = w.y, v->word[2] = w.z, v->word[3] = w.w;
		return;
	}
#pragma unroll
	for (int e = 0; e < per; e++) {
		uint32_t bits = 0;

		if ((uint32_t)e < nr)
			bits = dt == SHARD_F32 ? ((const uint32_t *)at)[e]
					       : ((const uint16_t *)at)[e];
		if (dt == SHARD_F32)
			v->word[e] = bits;
		else
			v->word[e / 2] = e % 2 ? v->word[e / 2] | bits << 16 : bits;
	}
}

template <int dt> DEVICE void vector_store(void *to, size_t i, const struct vector *v, uint32_t nr)
{
	const int size = dt == SHARD_F32 ? 4 : 2, per = SUM_VECTOR_BYTES / size;
	char *at = (char *)to + i * size;

	if (nr == per) {
		*(uint4 *)at = make_uint4(v->word[0], v->word[1], v->word[2], v->word[3]);
		return;
	}
#pragma unroll
	for (int e = 0; e < per; e++) {
		if ((uint32_t)e >= nr)
			break;
		if (dt == SHARD_F32)
			((uint32_t *)at)[e] = v->word[e];
		else
			((uint16_t *)at)[e] = (uint16_t)(v->word[e / 2] >> e % 2 * 16);
	}
}

/* Sums the elements [at, end) of a segment, at most a tile of them, and leaves the result in memory
 * and in the row. Each thread has vectors of its own in it. */
template <int dt>
DEVICE void sum_tile(const struct gpu_sum &job, const struct gpu_segment *s, void *to, uint32_t at,
		     uint32_t end, float *row)
{
	const uint32_t per = SUM_VECTOR_BYTES / (dt == SHARD_F32 ? 4 : 2);
	const uint32_t lane = threadIdx.x % REDUCE_LANES;
	const void *const *sources = job.sources + s->source;
	const bool scaled = job.pre != 1, rounds = s->sources_nr > 1 || scaled;
	struct ops careful = {true, false};
	struct vector v[SUM_TURNS / per];
	float x[SUM_TURNS];

	for (uint32_t k = 0; k < s->sources_nr; k++) {
		const void *from = sources[k];

#pragma unroll
		for (uint32_t j = 0; j < SUM_TURNS / per; j++) {
			uint32_t i = at + (j * REDUCE_LANES + lane) * per;

			vector_load<dt>(&v[j], from, s->start + (size_t)i,
					i >= end        ? 0
					: end - i < per ? end - i
							: per);
		}
#pragma unroll
		for (uint32_t e = 0; e < SUM_TURNS; e++) {
			float y = rule_operand(&careful, vector_get<dt>(&v[e / per], e % per),
					       job.pre, scaled);

			x[e] = k == 0 ? y : op_add(x[e], y);
		}
	}
#pragma unroll
	for (uint32_t j = 0; j < SUM_TURNS / per; j++) {
		const uint32_t place = (j * REDUCE_LANES + lane) * per, i = at + place;

#pragma unroll
		for (uint32_t e = 0; e < per; e++) {
			if (rounds)
				vector_put<dt>(&v[j], e, rule_plain_nan(x[j * per + e]));
			row[place + e] = vector_get<dt>(&v[j], e);
		}
		if (i < end && to != NULL && (rounds || to != sources[0]))
			vector_store<dt>(to, s->start + (size_t)i, &v[j],
					 end - i < per ? end - i : per);
	}
}

/* Each 16 threads take one block of elements. Lane j of the block is thread j of them. */
template <int dt> DEVICE void sum_block(const struct gpu_sum &job)
{
	__shared__ float rows[GPU_SUM_BLOCKS][SUM_ROW];
	const uint32_t mine = threadIdx.x / REDUCE_LANES, lane = threadIdx.x % REDUCE_LANES;
	const uint32_t block = blockIdx.x * GPU_SUM_BLOCKS + mine;
	const unsigned threads = 0xffffu << (threadIdx.x & REDUCE_LANES); /* Of the warp. */

	if (block >= job.blocks_nr)
		return;
	const struct gpu_segment *s = segment_of(job.segments, job.segments_nr, block);
	const uint32_t first = (block - s->block) * REDUCE_BLOCK;
	const uint32_t end = s->n - first < REDUCE_BLOCK ? s->n : first + REDUCE_BLOCK;
	void *to = job.to[s->chunk];
	double squares = 0;
	bool finite = true;

	for (uint32_t at = first; at < end; at += SUM_TILE) {
		sum_tile<dt>(job, s, to, at, end, rows[mine]);
		__syncwarp(threads);
#pragma unroll
		for (uint32_t turn = 0; turn < SUM_TURNS; turn++) {
			float x = rows[mine][turn * REDUCE_LANES + lane];

			if (at + turn * REDUCE_LANES + lane >= end)
				break;
			finite = finite && dtype_finite(x);
			squares = op_square(squares, (double)x);
		}
		__syncwarp(threads);
	}
	if (!finite)
		job.bad[s - job.segments] = 1;
	if (job.squares == NULL)
		return;
#pragma unroll
	for (int width = REDUCE_LANES / 2; width > 0; width /= 2)
		squares =
			op_add_d(squares, __shfl_down_sync(threads, squares, width, REDUCE_LANES));
	if (lane == 0)
		job.squares[block] = squares;
}

#define SUM(g)                                                                                     \
	extern "C" __global__ void __launch_bounds__(GPU_THREADS, 4) sum_##g(struct gpu_sum job)   \
	{                                                                                          \
		sum_block<KIND_##g>(job);                                                          \
	}
SUM(fp32)
SUM(bf16)
SUM(fp16)
