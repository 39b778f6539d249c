/* SPDX-License-Identifier: Apache-2.0 */
/* ring_impl.h: what moves the bytes below ring.c. Private to this folder and to tests, which bring
 * a row of their own. */
#ifndef SHARD_STORE_RING_IMPL_H
#define SHARD_STORE_RING_IMPL_H

#include "store/ring.h"

enum ring_what { RING_READ, RING_WRITE, RING_SYNC };

struct ring_io { /* What a row is asked for. It may move less than .bytes. */
	enum ring_what what;
	uint32_t buffer;
	uint8_t *at;
	uint32_t bytes;
	uint64_t offset;
	uint32_t nr; /* For ring_moved(). Below .entries. */
};

struct ring_row {
	const char *name;
	/* Registers the memory. The row writes to the eventfd when something has moved. `why` gets
	 * the reason if it cannot. */
	bool (*open)(void **self, const struct ring_conf *conf, int event, char why[128]);
	/* There is always room, because each of .entries numbers is in one request at most. */
	void (*submit)(void *self, const struct ring_io *io);
	/* Calls ring_moved() for all that came to an end. wait: at least for one. */
	void (*reap)(void *self, struct ring *r, bool wait);
	void (*close)(void *self); /* Nothing is under way. */
};

extern const struct ring_row ring_uring, ring_threads;

enum shard_status ring_open_row(struct ring **out, const struct ring_row *row,
				const struct ring_conf *conf, struct err *e);
/* bytes, or an errno below zero. */
void ring_moved(struct ring *r, uint32_t nr, int64_t result);

#endif
