/* SPDX-License-Identifier: Apache-2.0 */
/* Masters and moments for the threads of part_write() and part_load(). part.c lists the runs, and
 * their elements are then reached through the functions here. Happy path of a save: a thread reads
 * a run through the hold of the store, which knows whether a step has changed the chunk since. A
 * chunk that is away is pinned first, unless it was copied. Weights that are not finite are counted
 * on the way, because a look at all of them first would take as long as a good part of a step.
 * Nothing fails here. If the hold is broken, nothing is read, and the end of the hold says so. */
#include "ckpt/arrays.h"

#include "base/check.h"
#include "data/model.h"
#include "store/away.h"
#include "store/hold.h"

#include <stdlib.h>

void arrays_init(struct arrays *a, struct model *m)
{
	a->m = m;
	borrow_init(&a->borrow, m);
	pthread_mutex_init(&a->lock, NULL);
	store_missing_init(&a->missing);
}

void arrays_deinit(struct arrays *a)
{
	pthread_mutex_destroy(&a->lock);
	free(a->held);
}

static float *array_of(const struct arrays *a, uint32_t chunk, uint32_t array)
{
	return array == 0 ? store_master(a->m->store, chunk)
			  : store_state(a->m->store, chunk, array - 1);
}

/* A run is named by the chunk, the array, and its first element there. */
static uint64_t tag_of(uint32_t chunk, uint32_t array, uint32_t start)
{
	return (uint64_t)chunk << 32 | (uint64_t)array << 28 | start;
}

static uint32_t tag_chunk(uint64_t tag)
{
	return (uint32_t)(tag >> 32);
}

static uint32_t tag_array(uint64_t tag)
{
	return (uint32_t)tag >> 28;
}

static uint32_t tag_start(uint64_t tag)
{
	return (uint32_t)tag & 0xfffffff;
}

struct using
{
	struct arrays *a;
	uint64_t tag, skip, bytes;
	void (*with)(void *ctx, float *at);
	void *ctx;
};

/* --- loads --- */

static void with_run(void *arg)
{
	const struct using *u = arg;

	u->with(u->ctx, array_of(u->a, tag_chunk(u->tag), tag_array(u->tag)) + tag_start(u->tag));
}

static void use_run(void *arg, const struct part_run *r, uint64_t skip, uint64_t bytes, bool writes,
		    void (*with)(void *ctx, float *at), void *ctx)
{
	struct arrays *a = arg;

	borrow_use(&a->borrow, tag_chunk(r->tag), writes, with_run,
		   &(struct using){a, r->tag, skip, bytes, with, ctx});
}

struct looking {
	struct arrays *a;
	uint32_t chunk;
};

static void look(void *arg)
{
	const struct looking *l = arg;

	store_missing(l->a->m->store, l->chunk, &l->a->missing);
}

void arrays_look(struct arrays *a, uint32_t chunk)
{
	struct looking l = {a, chunk};

	if (store_is_away(a->m->store, chunk))
		borrow_use(&a->borrow, chunk, false, look, &l);
	else
		look(&l);
}

/* --- saves --- */

static void note(struct arrays *a, const struct store_missing *found)
{
	if (found->unwritten + found->nonfinite == 0)
		return;
	pthread_mutex_lock(&a->lock);
	a->missing.unwritten += found->unwritten;
	a->missing.nonfinite += found->nonfinite;
	if (found->first < a->missing.first)
		a->missing.first = found->first;
	pthread_mutex_unlock(&a->lock);
}

static void with_held(void *arg, float *array)
{
	const struct using *u = arg;
	uint64_t start = tag_start(u->tag), in = start + u->skip / sizeof(float);
	struct store_missing found;

	u->with(u->ctx, array + start);
	if (tag_array(u->tag) > 0)
		return;
	store_missing_init(&found);
	store_missing_in(array + in, layout_chunk_start(u->a->m->layout, tag_chunk(u->tag)) + in,
			 u->bytes / sizeof(float), &found);
	note(u->a, &found);
}

static struct hold_read read_of(struct using *u)
{
	return (struct hold_read){.chunk = tag_chunk(u->tag),
				  .array = tag_array(u->tag),
				  .bytes = u->bytes,
				  .with = with_held,
				  .ctx = u};
}

static void read_here(void *arg)
{
	struct hold_read read = read_of(arg);
	const struct using *u = arg;

	hold_read(u->a->m->store, &read, array_of(u->a, read.chunk, read.array));
}

static void read_run(void *arg, const struct part_run *r, uint64_t skip, uint64_t bytes,
		     bool writes, void (*with)(void *ctx, float *at), void *ctx)
{
	struct arrays *a = arg;
	struct using u = {a, r->tag, skip, bytes, with, ctx};
	struct hold_read read = read_of(&u);
	struct store *st = a->m->store;

	CHECK(!writes && skip % sizeof(float) == 0 && bytes % sizeof(float) == 0);
	if (!store_is_away(st, read.chunk))
		read_here(&u);
	else if (hold_copied(st, read.chunk))
		hold_read(st, &read, NULL);
	else
		borrow_use(&a->borrow, read.chunk, false, read_here, &u);
}

/* --- runs --- */

enum shard_status arrays_begin(struct arrays *a, bool saves, struct err *e)
{
	CHECK(a->held == NULL);
	a->memory = (struct part_memory){saves ? read_run : use_run, a};
	if (saves && (a->held = calloc(a->m->layout->chunks_nr, sizeof(*a->held))) == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a list of chunks");
	return SHARD_OK;
}

void arrays_run(struct arrays *a, uint32_t chunk, uint32_t array, uint32_t start,
		struct part_run *r)
{
	r->turn = chunk; /* Steps go through the chunks in this order, too. */
	if (a->held != NULL)
		a->held[chunk] += r->count * sizeof(float);
	if (a->held != NULL || store_is_away(a->m->store, chunk)) {
		r->memory = &a->memory;
		r->tag = tag_of(chunk, array, start);
	} else {
		r->at = array_of(a, chunk, array) + start;
	}
}
