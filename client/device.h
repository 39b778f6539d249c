/* SPDX-License-Identifier: Apache-2.0 */
/* device.h: gradients that lie in memory of the daemon on the trainer's GPU. The client's lock is
 * held in all of it. */
#ifndef SHARD_CLIENT_DEVICE_H
#define SHARD_CLIENT_DEVICE_H

#include "handle.h"

/* A push with SHARD_DEVICE. It fails with a text where that cannot be. */
enum shard_status device_push_ok(const struct shard_model *m, uint32_t tensor, const void *src,
				 uint32_t flags);
/* PUSH says of each tensor of a chunk where it lies, so all of it lies there. SHARD_BAD_ARG: other
 * elements lie elsewhere. */
enum shard_status device_one_place(const struct shard_model *m, uint32_t tensor, enum lies lies);

#endif
