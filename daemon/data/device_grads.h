/* SPDX-License-Identifier: Apache-2.0 */
/* device_grads.h: memory for gradients on the GPUs of trainers, beside their arenas of the host,
 * and what becomes of gradients there: the sum over the ranks of this node where it can be made on
 * the GPU, and copies to the arenas otherwise. Loop thread only, but for device_grads_free(). */
#ifndef SHARD_DATA_DEVICE_GRADS_H
#define SHARD_DATA_DEVICE_GRADS_H

#include "base/status.h"
#include "shard.pb-c.h"

#include <stdbool.h>
#include <stdint.h>

struct device_grads; /* Of one model. */
struct model;
struct session;
struct tier_result;
struct trainer;

struct device_grads_up { /* What it tells contrib.c, reduce.c and feed.c. They outlive the model. */
	/* Every local rank has closed the chunk, and all of it is in arenas of the host now. */
	void (*gathered)(struct model *m, uint32_t chunk);
	void (*begins)(struct model *m); /* A sum begins. */
	void (*added)(struct model *m, uint32_t chunk, const struct tier_result *r);
	/* A device works for the model: it must stay. */
	void (*hold)(void *model);
	void (*release)(void *model);
};

/* A trainer asks for memory on the GPU with that UUID, [GPU_UUID_BYTES]. SHARD_OK: it is answered,
 * now or when the memory is there. SHARD_UNSUPPORTED: there can be none. SHARD_BAD_STATE: it has
 * memory on another one. SHARD_BUSY: it has asked, and was not answered yet. */
enum shard_status device_grads_ask(struct model *m, const struct device_grads_up *up,
				   const uint8_t *uuid, struct session *who, uint32_t tag,
				   struct err *e);
/* No trainer has that slot any more, and nothing uses its memory. */
void device_grads_close(struct model *m, uint32_t slot);
bool device_grads_working(const struct model *m); /* A thread makes or frees such memory. */
/* No job is begun any more. Those that are under way come back. */
void device_grads_stop(struct model *m);
/* When none is under way. Any thread. Harmless of NULL. */
void device_grads_free(struct device_grads **d);

/* --- for contrib.c --- */

/* An attempt begins: nothing lies there yet. */
void device_grads_begin(struct model *m);
/* What PUSH says of a chunk, whose absent tensors and shares are taken. SHARD_PROTOCOL: it cannot
 * be. */
enum shard_status device_grads_take(struct model *m, uint32_t chunk, const struct trainer *t,
				    const Shard__Push *body, struct err *e);
/* False: all gradients of the chunk are in arenas of the host. */
bool device_grads_has(const struct model *m, uint32_t chunk);
/* Every local rank has closed the chunk. added() follows if it was summed on a GPU, which it may if
 * `sums`, and otherwise gathered(), unless the attempt ends. */
void device_grads_submit(struct model *m, uint32_t chunk, bool sums);

#endif
