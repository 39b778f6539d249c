/* SPDX-License-Identifier: Apache-2.0 */
/* borrow.h: how a thread gets at the state of a chunk that is not always in memory. The loop pins
 * the chunk for it. The state itself must stand still, or be the thread's alone. */
#ifndef SHARD_CKPT_BORROW_H
#define SHARD_CKPT_BORROW_H

#include "base/list.h"
#include "base/status.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct model;

struct borrow {
	struct model *m;
	pthread_mutex_t lock; /* Covers .asked and what is in it. */
	pthread_cond_t told;
	struct list asked;
	uv_async_t wake;
	void (*closed)(struct borrow *b);
};

/* Loop thread. */
void borrow_init(struct borrow *b, struct model *m);
void borrow_close(struct borrow *b, void (*closed)(struct borrow *b)); /* No thread uses it. */

/* Any other thread, several at a time: calls with() while the chunk is pinned, and waits for all of
 * that. with() may not borrow. */
void borrow_use(struct borrow *b, uint32_t chunk, bool writes, void (*with)(void *ctx), void *ctx);

#endif
