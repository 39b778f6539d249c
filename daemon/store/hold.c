/* SPDX-License-Identifier: Apache-2.0 */
/* Copies before the first change. A save begins the hold on the loop thread and reads chunks from
 * threads of its own, tier_ram.c calls hold_keep() on workers before an update, and whoever changes
 * a chunk otherwise breaks the hold. Happy path: a worker finds a chunk that was not read, waits
 * until those who read it where it lies are done, which is a copy of a few megabytes, and then
 * copies each piece before it changes it. From then on the chunk is read from its place. A chunk of
 * which all is read is left alone. The save says that steps may go on when each chunk that was not
 * read has a place, so that no change has to wait for the disk. If one comes earlier, and there is
 * no place, the hold is broken. */
#include "store/hold.h"

#include "base/check.h"
#include "store/store_impl.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum state {
	HOLD_FREE,    /* It is not held, or all of it was read. */
	HOLD_LIES,    /* It is as it was, where it lies. */
	HOLD_COPYING, /* A thread copies it, and then changes it. */
	HOLD_COPIED,
};

struct held {
	uint64_t left; /* Bytes that are to be read. */
	uint32_t place;
	uint16_t readers; /* Where it lies. */
	uint8_t state;
	bool still; /* It is frozen, and no step changes it. */
};

struct hold {
	/* Covers all that follows. */
	pthread_mutex_t lock;
	pthread_cond_t moved; /* A state, or a count of readers. */
	bool on, broken;
	/* Chunks that are to be read, and of those that change the ones in such states. */
	uint32_t unread, lying, copying;
	uint32_t places_nr, idle_nr;
	uint8_t *places;
	uint32_t *idle; /* [chunks_nr] The numbers of places that have no chunk. */
	struct held chunk[];
};

static uint64_t array_bytes(const struct store *st)
{
	return (uint64_t)st->conf.layout->chunk_elems * sizeof(float);
}

uint64_t hold_place_bytes(const struct store *st)
{
	return (1 + st->conf.optim->states_nr) * array_bytes(st);
}

enum shard_status hold_init(struct store *st, struct err *e)
{
	uint32_t nr = st->conf.layout->chunks_nr;
	struct hold *h = calloc(1, sizeof(*h) + nr * sizeof(h->chunk[0]));

	if (h != NULL)
		h->idle = calloc(nr + 1, sizeof(*h->idle));
	if (h == NULL || h->idle == NULL) {
		free(h);
		return err_set(e, SHARD_SYSTEM, "no memory for the chunk table of model \"%s\"",
			       st->conf.name);
	}
	pthread_mutex_init(&h->lock, NULL);
	pthread_cond_init(&h->moved, NULL);
	st->hold = h;
	return SHARD_OK;
}

void hold_deinit(struct store *st)
{
	struct hold *h = st->hold;

	if (h == NULL)
		return;
	CHECK(!h->on);
	if (h->places != NULL)
		munmap(h->places, h->places_nr * hold_place_bytes(st));
	pthread_mutex_destroy(&h->lock);
	pthread_cond_destroy(&h->moved);
	free(h->idle);
	free(h);
	st->hold = NULL;
}

static float *place_of_array(const struct store *st, const struct held *c, uint32_t array)
{
	return (float *)(void *)(st->hold->places + c->place * hold_place_bytes(st) +
				 array * array_bytes(st));
}

uint32_t hold_places(const struct store *st)
{
	return st->hold->places_nr;
}

uint64_t hold_detach(struct store *st, void **at)
{
	struct hold *h = st->hold;
	uint64_t bytes = h->places_nr * hold_place_bytes(st);

	CHECK(!hold_on(st));
	*at = h->places;
	h->places = NULL;
	h->places_nr = 0;
	return bytes;
}

static bool still(const struct layout *l, uint32_t chunk)
{
	uint32_t s = l->chunk_segment[chunk], end = l->chunk_segment[chunk + 1];

	while (s < end && layout_frozen(l, s))
		s++;
	return s == end;
}

uint32_t hold_wants(const struct store *st, const uint64_t *bytes)
{
	uint32_t nr = 0;

	for (uint32_t c = 0; c < st->conf.layout->chunks_nr; c++)
		nr += bytes[c] > 0 && !still(st->conf.layout, c);
	return nr;
}

/* The new places get their pages when they are used. The others keep theirs. */
static void add_places(const struct store *st, uint32_t more)
{
	struct hold *h = st->hold;
	uint64_t each = hold_place_bytes(st), before = h->places_nr * each,
		 bytes = before + more * each;
	void *at;

	if (more == 0)
		return;
	at = h->places != NULL ? mremap(h->places, before, bytes, MREMAP_MAYMOVE)
			       : mmap(NULL, bytes, PROT_READ | PROT_WRITE,
				      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at == MAP_FAILED)
		return;
	h->places = at;
	h->places_nr += more;
}

void hold_begin(struct store *st, const uint64_t *bytes, uint32_t more)
{
	struct hold *h = st->hold;
	uint32_t nr = st->conf.layout->chunks_nr;

	pthread_mutex_lock(&h->lock);
	CHECK(!h->on && h->copying == 0 && h->places_nr + more <= nr);
	h->on = true;
	h->broken = false;
	h->unread = 0;
	h->lying = 0;
	for (uint32_t c = 0; c < nr; c++) {
		h->chunk[c] = (struct held){.left = bytes[c],
					    .state = bytes[c] > 0 ? HOLD_LIES : HOLD_FREE,
					    .still = still(st->conf.layout, c)};
		h->unread += bytes[c] > 0;
		h->lying += bytes[c] > 0 && !h->chunk[c].still;
	}
	add_places(st, more);
	for (h->idle_nr = 0; h->idle_nr < h->places_nr; h->idle_nr++)
		h->idle[h->idle_nr] = h->places_nr - 1 - h->idle_nr; /* The first one goes first. */
	pthread_mutex_unlock(&h->lock);
}

bool hold_on(const struct store *st)
{
	struct hold *h = st->hold;
	bool on;

	pthread_mutex_lock(&h->lock);
	on = h->on;
	pthread_mutex_unlock(&h->lock);
	return on;
}

bool hold_covered(const struct store *st)
{
	struct hold *h = st->hold;
	bool covered;

	pthread_mutex_lock(&h->lock);
	covered = h->broken || h->lying <= h->idle_nr;
	pthread_mutex_unlock(&h->lock);
	return covered;
}

bool hold_end(struct store *st)
{
	struct hold *h = st->hold;
	bool whole;

	pthread_mutex_lock(&h->lock);
	CHECK(h->on);
	whole = !h->broken && h->unread == 0;
	h->broken = true; /* Nobody begins to copy. */
	while (h->copying > 0)
		pthread_cond_wait(&h->moved, &h->lock);
	for (uint32_t c = 0; c < st->conf.layout->chunks_nr; c++) {
		CHECK(h->chunk[c].readers == 0);
		h->chunk[c].state = HOLD_FREE;
	}
	h->on = false;
	pthread_mutex_unlock(&h->lock);
	return whole;
}

/* --- changes --- */

/* Under the lock. All of it was read that is to be read. */
static void let_go(struct hold *h, struct held *c)
{
	if (c->state == HOLD_COPIED)
		h->idle[h->idle_nr++] = c->place;
	h->lying -= c->state == HOLD_LIES && !c->still;
	c->state = HOLD_FREE;
}

/* Under the lock. Whoever reads the chunk where it lies copies a few megabytes. */
static void wait_readers(struct hold *h, const struct held *c)
{
	while (c->readers > 0)
		pthread_cond_wait(&h->moved, &h->lock);
}

void hold_break(struct store *st, uint32_t chunk)
{
	struct hold *h = st->hold;

	pthread_mutex_lock(&h->lock);
	if (h->on && h->chunk[chunk].state == HOLD_LIES) {
		h->broken = true;
		wait_readers(h, &h->chunk[chunk]);
	}
	pthread_mutex_unlock(&h->lock);
}

bool hold_keep(struct store *st, uint32_t chunk, float *place[3])
{
	struct hold *h = st->hold;
	struct held *c = &h->chunk[chunk];
	bool copies;

	pthread_mutex_lock(&h->lock);
	CHECK(c->state != HOLD_COPYING);
	copies = h->on && c->state == HOLD_LIES && !c->still;
	if (copies && h->idle_nr == 0)
		h->broken = true;
	copies = copies && !h->broken;
	if (copies) {
		c->place = h->idle[--h->idle_nr];
		c->state = HOLD_COPYING;
		h->lying--;
		h->copying++;
	}
	if (!c->still)
		wait_readers(h, c);
	pthread_mutex_unlock(&h->lock);
	for (uint32_t i = 0; copies && i <= st->conf.optim->states_nr; i++)
		place[i] = place_of_array(st, c, i);
	return copies;
}

static void end_copy(struct store *st, uint32_t chunk, bool lost)
{
	struct hold *h = st->hold;
	struct held *c = &h->chunk[chunk];

	pthread_mutex_lock(&h->lock);
	CHECK(c->state == HOLD_COPYING);
	h->broken |= lost;
	c->state = HOLD_COPIED;
	h->copying--;
	if (c->left == 0)
		let_go(h, c);
	pthread_cond_broadcast(&h->moved);
	pthread_mutex_unlock(&h->lock);
}

void hold_kept(struct store *st, uint32_t chunk)
{
	end_copy(st, chunk, false);
}

void hold_lost(struct store *st, uint32_t chunk)
{
	end_copy(st, chunk, true);
}

/* --- reads --- */

bool hold_copied(const struct store *st, uint32_t chunk)
{
	struct hold *h = st->hold;
	bool copied;

	pthread_mutex_lock(&h->lock);
	copied = h->broken || h->chunk[chunk].state == HOLD_COPIED;
	pthread_mutex_unlock(&h->lock);
	return copied;
}

void hold_read(struct store *st, const struct hold_read *r, float *at)
{
	struct hold *h = st->hold;
	struct held *c = &h->chunk[r->chunk];
	bool lies;

	pthread_mutex_lock(&h->lock);
	CHECK(h->on && r->array <= st->conf.optim->states_nr);
	while (c->state == HOLD_COPYING)
		pthread_cond_wait(&h->moved, &h->lock);
	if (h->broken) {
		pthread_mutex_unlock(&h->lock);
		return;
	}
	CHECK(c->state != HOLD_FREE && c->left >= r->bytes);
	lies = c->state == HOLD_LIES;
	c->readers += lies;
	pthread_mutex_unlock(&h->lock);
	if (!lies)
		at = place_of_array(st, c, r->array);
	CHECK(at != NULL);
	r->with(r->ctx, at);
	pthread_mutex_lock(&h->lock);
	c->readers -= lies;
	c->left -= r->bytes;
	h->unread -= c->left == 0;
	if (c->left == 0 && c->state != HOLD_COPYING) /* Otherwise the end of the copy does it. */
		let_go(h, c);
	pthread_cond_broadcast(&h->moved);
	pthread_mutex_unlock(&h->lock);
}
