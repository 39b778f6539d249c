/* SPDX-License-Identifier: Apache-2.0 */
/* The part that the trainer of README.md and client/README.md leaves to the user. The model has two
 * tensors, and its gradient is the distance to a target, so the loss must fall. readme.sh and
 * install.sh compile it together with the trainer, as C11 and as C++17. */
#include <shard.h>
#include <stdio.h>
#include <stdlib.h>

double forward_backward(shard_model *m, uint64_t first, uint64_t count, double loss_scale);
int train(const struct shard_spec *spec, const uint64_t *numel, float *const *weights,
	  uint64_t last, uint64_t batch);

enum { ROWS = 40, COLS = 50 };
static const double target = 0.5;

double forward_backward(shard_model *m, uint64_t first, uint64_t count, double loss_scale)
{
	double loss = 0;
	shard_ticket t;

	(void)first;
	for (uint32_t i = shard_tensors(m); i-- > 0;) {
		struct shard_info info = SHARD_INIT(struct shard_info);
		const float *w = (const float *)shard_image(m, i);
		float *g = (float *)shard_grad(m, i);

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

int main(int argc, char **argv)
{
	static float matrix[ROWS * COLS], bias[COLS];
	static struct shard_tensor tensors[2]; /* It is all zeros. */
	const uint64_t numel[] = {ROWS * COLS, COLS};
	float *const weights[] = {matrix, bias};
	struct shard_spec spec = SHARD_INIT(struct shard_spec);

	tensors[0].name = "matrix", tensors[0].ndim = 2, tensors[0].shape[0] = ROWS,
	tensors[0].shape[1] = COLS;
	tensors[1].name = "bias", tensors[1].ndim = 1, tensors[1].shape[0] = COLS;
	spec.name = "readme";
	spec.tensors = tensors;
	spec.tensors_nr = 2;
	spec.image = spec.grad = SHARD_F32;
	spec.settings = "optimizer=adamw lr=0.05 min_world=1 max_world=1";
	return train(&spec, numel, weights, argc > 1 ? strtoull(argv[1], NULL, 10) : 30, 8);
}
