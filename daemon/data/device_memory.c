// SPDX-License-Identifier: Apache-2.0
/* The end of what a model has on GPUs for trainers there: images (device_images.c) and gradients
 * (device_grads.c). The model's makers and the stops of the daemon call it. First no job is begun
 * any more, then those that are under way come back, and when no thread works either, the memory is
 * given back. Nothing fails. */
#include "data/device_memory.h"

#include "data/device_grads.h"
#include "data/device_images.h"

bool device_memory_busy(const struct model *m)
{
	return device_images_making(m) || device_grads_working(m);
}

void device_memory_stop(struct model *m)
{
	device_images_stop(m);
	device_grads_stop(m);
}

void device_memory_free(struct device_memory *d)
{
	device_images_free(&d->images);
	device_grads_free(&d->grads);
}
