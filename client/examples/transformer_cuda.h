/* SPDX-License-Identifier: Apache-2.0 */
/* transformer_cuda.h: the example's model on a GPU. It is laid out as on a processor
 * (transformer.h), and has the same order of tensors, of gradients and of all sums. */
#ifndef EXAMPLES_TRANSFORMER_CUDA_H
#define EXAMPLES_TRANSFORMER_CUDA_H

#include "examples/device.h"
#include "examples/transformer.h"

struct row_loss;

struct transformer_cuda {
	struct device *device;
	struct transformer net; /* Its pointers to floats are addresses of the device. */
	float *square;          /* [heads][rows][rows] */
	uint8_t *text;
	struct row_loss *said; /* [sequences][rows] */
	uint64_t sequences;    /* The most of one step. */
};

/* text is copied to the device. Returns the status of device->err. transformer_cuda_deinit() does
 * nothing after a failed init. */
enum shard_status transformer_cuda_init(struct transformer_cuda *t, struct device *d,
					const struct transformer_shape *shape, const uint8_t *text,
					uint64_t text_bytes, uint64_t sequences);
void transformer_cuda_deinit(struct transformer_cuda *t);

/* image is memory of the device. */
void transformer_cuda_load(struct transformer_cuda *t, uint32_t tensor, const void *image,
			   enum shard_dtype dtype);
void transformer_cuda_zero_grad(struct transformer_cuda *t);

/* Queues forward and backward of the sequence that begins at text[at], which is number i of the
 * step. emit is as for transformer_sequence(), but the gradient is on the device, where the work
 * that makes it is on the stream. */
void transformer_cuda_sequence(struct transformer_cuda *t, uint64_t at, uint64_t i, float scale,
			       transformer_emit *emit, void *arg);
/* Waits, and puts the losses of the first nr sequences of the step into loss[nr]. */
enum shard_status transformer_cuda_losses(struct transformer_cuda *t, uint64_t nr, double *loss);

#endif
