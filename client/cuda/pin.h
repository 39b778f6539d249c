/* SPDX-License-Identifier: Apache-2.0 */
/* pin.h: host memory that the device copies from and to. A pin is memory of the model that is
 * registered with the driver, in pieces. The ring is two pinned buffers for what cannot be copied
 * straight. The context is current when any of this is called. */
#ifndef SHARD_CUDA_PIN_H
#define SHARD_CUDA_PIN_H

#include "cuda/driver.h"

#include <stdbool.h>

enum { RING_SLOTS = 2 };

struct pin {
	char *base;
	size_t bytes;
	size_t piece;  /* Bytes of each piece but the last. */
	size_t pinned; /* Bytes that are registered, from base on. All of them, or 0. */
};

struct ring {
	size_t bytes; /* Of each slot. */
	void *slot[RING_SLOTS];
	cu_event event[RING_SLOTS]; /* After the newest copy from or to the slot. */
	bool busy[RING_SLOTS];      /* The event may not be over yet. */
	bool lent; /* libshard may still write into a slot. Then the slots are never freed. */
};

/* Registers a range. After a failure nothing is registered. what names it, as "of the arena". */
enum shard_status pin_register(const struct driver *d, struct pin *p, size_t piece, unsigned flags,
			       const char *what, struct err *e);
/* Returns the first failure, and goes on after it. */
enum shard_status pin_unregister(const struct driver *d, struct pin *p, struct err *e);
/* True if the range is registered. */
bool pin_has(const struct pin *p, const void *at, size_t bytes);
/* How many of the bytes from there on are in one piece. The driver copies no more at once. */
size_t pin_part(const struct pin *p, const void *at, size_t bytes);

/* Makes the slots, unless they are there. After a failure there are none. */
enum shard_status ring_make(const struct driver *d, struct ring *r, struct err *e);
/* No copy from or to a slot is under way. */
enum shard_status ring_free(const struct driver *d, struct ring *r, struct err *e);

#endif
