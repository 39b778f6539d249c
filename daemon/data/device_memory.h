/* SPDX-License-Identifier: Apache-2.0 */
/* device_memory.h: all that a model has on GPUs for trainers there, at its end. */
#ifndef SHARD_DATA_DEVICE_MEMORY_H
#define SHARD_DATA_DEVICE_MEMORY_H

#include "data/model.h"

bool device_memory_busy(const struct model *m); /* A thread makes or frees some of it. */
/* No job is begun any more. Those that are under way come back. */
void device_memory_stop(struct model *m);
/* When none is under way. Any thread. */
void device_memory_free(struct device_memory *d);

#endif
