// SPDX-License-Identifier: Apache-2.0
/* The example model on a GPU. nvcc makes a fatbin of this file, which gpt-cuda loads, and tests run
 * it on a processor (tests/cuda/shim.h). The kernels are as simple as they can be: one thread for
 * each element, row or column, with the sums of layer.c and matmul.c in the same order and one
 * rounding for each operation. So losses and gradients have the bits of the trainer without a GPU.
 * A trainer that has to be fast would use cuBLAS, and have other bits. Nothing here can fail. */
#define DTYPE_FN static __device__ __forceinline__
#define ROW_FN   static __device__ __forceinline__
#include "examples/gpt_kernels.h"
#include "examples/layer_row.h"
#include "wire/dtype.h"

#define KERNEL(name) extern "C" __global__ void __launch_bounds__(GPT_THREADS) name(name##_job job)
/* Which element, row or column this thread has. */
#define MINE ((uint64_t)blockIdx.x * GPT_THREADS + threadIdx.x)

/* --- elements --- */

KERNEL(gpt_zero)
{
	uint64_t i = MINE;

	if (i < job.nr)
		job.to[i] = 0;
}

KERNEL(gpt_load)
{
	uint64_t i = MINE;

	if (i >= job.nr)
		return;
	job.to[i] = job.dtype == SHARD_F32    ? ((const float *)job.from)[i]
		    : job.dtype == SHARD_BF16 ? dtype_from_bf16(((const uint16_t *)job.from)[i])
					      : dtype_from_f16(((const uint16_t *)job.from)[i]);
}

KERNEL(gpt_store)
{
	uint64_t i = MINE;

	if (i >= job.nr)
		return;
	if (job.dtype == SHARD_F32)
		((float *)job.to)[i] = job.from[i];
	else
		((uint16_t *)job.to)[i] = job.dtype == SHARD_BF16 ? dtype_to_bf16(job.from[i])
								  : dtype_to_f16(job.from[i]);
}

KERNEL(gpt_add)
{
	uint64_t i = MINE;

	if (i < job.nr)
		job.to[i] += job.what[i];
}

KERNEL(gpt_embed)
{
	uint64_t i = MINE;

	if (i < job.nr)
		job.out[i] = job.wte[job.text[i / job.dim] * job.dim + i % job.dim] + job.wpe[i];
}

KERNEL(gpt_gelu)
{
	uint64_t i = MINE;

	if (i < job.nr)
		job.out[i] = job.in[i] * row_gelu_gate(job.in[i]);
}

KERNEL(gpt_gelu_backward)
{
	uint64_t i = MINE;

	if (i < job.nr)
		job.d[i] = job.d[i] * row_gelu_slope(job.in[i]);
}

KERNEL(gpt_matmul)
{
	uint64_t i = MINE;

	if (i >= job.nr)
		return;
	uint64_t col = i % job.n, row = i / job.n % job.m, which = i / job.n / job.m;
	const float *a = job.a + which * job.a_next + row * job.a_row;
	const float *b = job.b + which * job.b_next + col * job.b_col;
	float sum = job.start ? job.start[row * job.start_row + col] : 0;

	for (uint64_t k = 0; k < job.k; k++)
		sum += a[k * job.a_col] * b[k * job.b_row];
	job.c[which * job.c_next + row * job.c_row + col] = sum;
}

/* --- rows --- */

KERNEL(gpt_norm)
{
	uint64_t i = MINE;

	if (i < job.nr)
		row_norm(job.out + i * job.dim, job.in + i * job.dim, job.weight, job.bias,
			 job.mean + i, job.rstd + i, job.dim);
}

KERNEL(gpt_norm_backward)
{
	uint64_t i = MINE;

	if (i < job.nr)
		row_norm_backward(job.d_in + i * job.dim, job.d_out + i * job.dim,
				  job.in + i * job.dim, job.weight, job.mean[i], job.rstd[i],
				  job.dim);
}

KERNEL(gpt_softmax)
{
	uint64_t i = MINE;

	if (i < job.nr)
		row_softmax(job.odds + i * job.rows, i % job.rows, job.rows, job.scale);
}

KERNEL(gpt_softmax_backward)
{
	uint64_t i = MINE;

	if (i < job.nr)
		row_softmax_backward(job.d + i * job.rows, job.odds + i * job.rows, i % job.rows,
				     job.rows, job.scale);
}

KERNEL(gpt_loss)
{
	uint64_t i = MINE;

	if (i < job.nr)
		job.said[i] = row_loss(job.logits + i * job.classes, job.targets[i], job.classes,
				       job.each);
}

/* --- columns --- */

KERNEL(gpt_embed_backward)
{
	uint64_t i = MINE;

	for (uint64_t row = 0; i < job.nr && row < job.rows; row++)
		job.d_wte[job.text[row] * job.nr + i] += job.d[row * job.nr + i];
}

KERNEL(gpt_norm_sums)
{
	uint64_t i = MINE;

	for (uint64_t row = 0; i < job.nr && row < job.rows; row++) {
		float d = job.d_out[row * job.nr + i], x = job.in[row * job.nr + i];

		job.d_weight[i] += d * ((x - job.mean[row]) * job.rstd[row]);
		job.d_bias[i] += d;
	}
}

KERNEL(gpt_rows_sum)
{
	uint64_t i = MINE;

	for (uint64_t row = 0; i < job.nr && row < job.rows; row++)
		job.to[i] += job.from[row * job.nr + i];
}
