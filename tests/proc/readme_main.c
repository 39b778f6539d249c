/* SPDX-License-Identifier: Apache-2.0 */
/* What README's training loop leaves to the user: a model of two tensors whose gradient is the distance to a target, so that the loss
 * must fall. readme.sh compiles it together with the loop. */
#include <shard.h>
#include <stdio.h>
#include <stdlib.h>

double forward_backward(shard_model *m, uint64_t first, uint64_t count, double loss_scale);
int train(const struct shard_spec *spec, const uint64_t *numel, float *const *weights, uint64_t last, uint64_t batch);

enum { ROWS = 40, COLS = 50 };
static const double target = 0.5;

double forward_backward(shard_model *m, uint64_t first, uint64_t count, double loss_scale)
{
	double loss = 0;
	shard_ticket t;

	(void)first;
	for (uint32_t i = shard_tensors(m); i-- > 0;) {
		struct shard_info info = SHARD_INIT(struct shard_info);
		const float *w = shard_image(m, i);
		float *g = shard_grad(m, i);

		if (shard_tensor_info(m, i, &info) != SHARD_OK || w == NULL || g == NULL)
			exit(3);
		for (uint64_t k = 0; k < info.numel; k++) {
			double d = (double)w[k] - target;

			loss += d * d;
			g[k] = (float)(2 * d * (double)count * loss_scale);
		}
		if (shard_push(m, i, 0, info.numel, NULL, SHARD_F32, 0, &t) != SHARD_OK)
			exit(3);
	}
	return loss;
}

int main(void)
{
	static float matrix[ROWS * COLS], bias[COLS];
	const struct shard_tensor tensors[] = {
		{.name = "matrix", .ndim = 2, .shape = {ROWS, COLS}},
		{.name = "bias", .ndim = 1, .shape = {COLS}},
	};
	const uint64_t numel[] = {ROWS * COLS, COLS};
	float *const weights[] = {matrix, bias};
	struct shard_spec spec = SHARD_INIT(struct shard_spec);

	spec.name = "readme";
	spec.tensors = tensors;
	spec.tensors_nr = 2;
	spec.image = spec.grad = SHARD_F32;
	spec.settings = "optimizer=adamw lr=0.05 min_world=1 max_world=1";
	return train(&spec, numel, weights, 30, 8);
}
