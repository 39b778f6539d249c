/* SPDX-License-Identifier: Apache-2.0 */
/* A disk that loses power, for tests of tier_durable.c. The test owns the platter and says what
 * moves next. Writes go to a list, which is the cache of the disk, and reads see both. A sync moves
 * the beginning of the list to the platter. The order of all of it, and what a loss of power
 * leaves, come from one seed. Nothing fails but by CHECK. */
#include "lib/powerdisk.h"

#include "base/check.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SECTOR = 512 };

struct powerdisk pd;

uint32_t pd_draw(uint32_t of)
{
	pd.seed = pd.seed * 1664525 + 1013904223;
	return (pd.seed >> 10) % of;
}

void pd_put(uint64_t at, const uint8_t *from, uint32_t bytes)
{
	CHECK(pwrite(pd.platter, from, bytes, (off_t)at) == (ssize_t)bytes);
}

void pd_keep(const struct ring_io *io, uint32_t bytes)
{
	struct pd_cached *c = &pd.cached[pd.cached_nr++];

	CHECK(pd.cached_nr <= PD_CACHED);
	*c = (struct pd_cached){io->offset, bytes, malloc(bytes)};
	CHECK(c->copy != NULL);
	memcpy(c->copy, io->at, bytes);
}

void pd_flush(uint32_t nr)
{
	for (uint32_t i = 0; i < nr; i++) {
		pd_put(pd.cached[i].offset, pd.cached[i].copy, pd.cached[i].bytes);
		free(pd.cached[i].copy);
	}
	pd.cached_nr -= nr;
	memmove(pd.cached, pd.cached + nr, pd.cached_nr * sizeof(pd.cached[0]));
	for (uint32_t i = 0; i < pd.nr; i++)
		pd.before[i] -= pd.before[i] < nr ? pd.before[i] : nr;
}

static void get(const struct ring_io *io, uint32_t bytes)
{
	CHECK(pread(pd.platter, io->at, bytes, (off_t)io->offset) == (ssize_t)bytes);
	for (uint32_t i = 0; i < pd.cached_nr; i++) {
		const struct pd_cached *c = &pd.cached[i];
		uint64_t from = c->offset > io->offset ? c->offset : io->offset,
			 to = c->offset + c->bytes < io->offset + bytes ? c->offset + c->bytes
									: io->offset + bytes;

		if (from < to)
			memcpy(io->at + (from - io->offset), c->copy + (from - c->offset),
			       to - from);
	}
}

/* Each sector of what was not synced is there or not. */
void pd_lose_power(void)
{
	uint32_t of_100 = pd_draw(3) == 0 ? 0 : pd_draw(2) == 0 ? 100 : pd_draw(100);

	for (uint32_t i = 0; i < pd.nr; i++)
		if (pd.io[i].what == RING_WRITE)
			pd_keep(&pd.io[i], pd.io[i].bytes);
	for (uint32_t i = 0; i < pd.cached_nr; i++) {
		struct pd_cached *c = &pd.cached[i];

		if (pd_draw(4) == 0) /* All of this one, or nothing. */
			pd_put(c->offset, c->copy, pd_draw(2) == 0 ? c->bytes : 0);
		else
			for (uint32_t at = 0; at < c->bytes; at += SECTOR)
				if (pd_draw(100) < of_100)
					pd_put(c->offset + at, c->copy + at, SECTOR);
		free(c->copy);
	}
	pd.cached_nr = 0;
	memset(pd.before, 0, sizeof(pd.before));
}

static bool open_disk(void **self, const struct ring_conf *conf, int event, char why[128])
{
	(void)conf;
	(void)event;
	(void)why;
	pd.nr = pd.cached_nr = 0;
	*self = &pd;
	return true;
}

static void submit(void *self, const struct ring_io *io)
{
	(void)self;
	CHECK(pd.nr < PD_REQUESTS);
	pd.before[pd.nr] = pd.cached_nr;
	pd.io[pd.nr++] = *io;
}

static void reap(void *self, struct ring *r, bool wait)
{
	(void)self;
	while (wait && pd.nr > 0)
		ring_moved(r, pd.io[--pd.nr].nr, -EIO);
}

static void close_disk(void *self)
{
	(void)self;
}

const struct ring_row pd_row = {
	.name = "disk", .open = open_disk, .submit = submit, .reap = reap, .close = close_disk};

void pd_moves(struct ring *r, uint32_t i)
{
	struct ring_io io = pd.io[i];
	uint32_t before = pd.before[i],
		 bytes = pd_draw(3) == 0 && io.bytes > RING_ALIGN ? RING_ALIGN : io.bytes;

	pd.nr--;
	memmove(&pd.io[i], &pd.io[i + 1], (pd.nr - i) * sizeof(io));
	memmove(&pd.before[i], &pd.before[i + 1], (pd.nr - i) * sizeof(before));
	if (io.what == RING_READ)
		get(&io, bytes);
	else if (io.what == RING_WRITE)
		pd_keep(&io, bytes);
	else if (pd.syncs++, !pd.lies)
		pd_flush(before);
	ring_moved(r, io.nr, io.what == RING_SYNC ? 0 : bytes);
}
