/* SPDX-License-Identifier: Apache-2.0 */
/* State on a disk. feed.c hands out chunks, and others pin them, as with main memory (tier_ram.c,
 * which does the arithmetic here, too). Happy path: a call waits until its chunk is in a buffer, is
 * carried out there, and is done. The buffer is then dirty. It is written to a free slot of the
 * file when buffers run short, with a trailer that has its sum, and then one word says that the
 * chunk is in that slot now, and the old slot is free. So each chunk is whole somewhere at any
 * instant: buffers and words outlive the process where the store does, and a kill loses nothing. A
 * step does not wait for writes. Steps walk through the chunks in order, round and round. So the
 * first chunks stay in memory, and the others take turns in a few buffers, of which the one goes
 * whose chunk comes last again. A read that fails, or brings what was not written, means that the
 * chunk is lost, and conf.lost() is told. A write that fails goes to another slot, a few times. */
#include "store/tier_nvme.h"

#include "base/check.h"
#include "store/away.h"
#include "store/store_impl.h"
#include "store/tier_nvme_impl.h"
#include "store/trailer.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct job {
	uint8_t *at;
	struct trailer_of of;
	uint32_t buffer;
	bool ok;
};

static_assert(AWAY_TRAILER_BYTES == TRAILER_BYTES && TRAILER_BYTES == RING_ALIGN &&
		      SUPER_BLOCK == RING_ALIGN,
	      "what is behind a chunk, and what is before all of them, is whole blocks");
static_assert(TURNS_MIN < AWAY_BUFFERS_MIN, "one buffer is left for a chunk that stays");
static_assert(sizeof(struct job) <= EXEC_ARGS_BYTES, "a job travels by value");

static struct nvme *nvme_of(const struct tier *t)
{
	return (struct nvme *)(uintptr_t)t; /* The first field. */
}

static uint64_t io_bytes(const struct nvme *n, uint32_t chunk)
{
	return store_away_bytes(n->away.store, chunk) + AWAY_TRAILER_BYTES;
}

static uint64_t slot_at(const struct nvme *n, uint32_t slot)
{
	return store_away_area(n->away.store) + slot * store_away_slot(n->away.store);
}

void nvme_lose(struct nvme *n, const char *what, uint32_t chunk, int64_t result)
{
	char why[256];

	if (n->lost)
		return;
	n->lost = true;
	snprintf(why, sizeof(why), "%s of chunk %u: %s", what, chunk,
		 result < 0 ? strerror((int)-result) : "it is not what was written there");
	n->conf.lost(n->conf.arg, why);
}

/* --- the words that outlive the process --- */

static void holds(const struct nvme *n, uint32_t b)
{
	const struct buffer *u = &n->buffer[b];
	uint64_t word = u->chunk == NONE ? 0 : u->chunk + 1ull;

	atomic_store(store_away_holds(n->away.store, b), word | (u->dirty ? DIRTY : 0));
}

static void set_dirty(struct nvme *n, uint32_t b, bool dirty)
{
	if (n->buffer[b].dirty == dirty)
		return;
	n->buffer[b].dirty = dirty;
	n->count.dirty += dirty ? 1 : UINT32_MAX;
	holds(n, b);
}

/* --- threads --- */

static void sum_run(void *args)
{
	struct job *j = args;

	trailer_write(&j->of, j->at);
}

static void check_run(void *args)
{
	struct job *j = args;

	j->ok = trailer_fits(&j->of, j->at);
}

static void submit(struct nvme *n, uint32_t b, uint64_t seq, void (*run)(void *),
		   void (*done)(void *owner, void *args))
{
	struct exec_job job = {.run = run, .done = done, .owner = n};
	uint32_t chunk = n->buffer[b].chunk;
	struct job j = {.at = store_away_buffer(n->away.store, b),
			.of = {.id = n->conf.id,
			       .seq = seq,
			       .bytes = store_away_bytes(n->away.store, chunk),
			       .chunk = chunk},
			.buffer = b};

	memcpy(job.args, &j, sizeof(j));
	n->conf.hold(n->conf.arg);
	if (exec_submit(&n->exec, &job) != SHARD_OK)
		exec_here(&n->exec, &job); /* It is a millisecond. */
}

/* --- buffers --- */

/* How many chunks come before this one. */
static uint32_t distance(const struct nvme *n, uint32_t chunk)
{
	return chunk >= n->next ? chunk - n->next : chunk + n->chunks_nr - n->next;
}

/* The chunk in the buffer may be one that stays. */
static void takes_turns(const struct nvme *n, struct buffer *u)
{
	if (store_away_index(n->away.store, u->chunk) < n->staying)
		list_remove(&u->link);
}

/* Of the buffers that are dirty, or of those that are not, the idle one whose chunk comes last and
 * after more than `least` others. NONE: there is none. */
static uint32_t last_again(struct nvme *n, bool dirty, uint32_t least)
{
	uint32_t best = NONE, most = least;

	n->search++;
	list_each(it, &n->waiting) {
		const struct tier_pin *p = list_of(it, struct tier_pin, link);

		if (away_is_call(p) && n->where[p->chunk] != NONE)
			n->buffer[n->where[p->chunk]].wanted = n->search;
	}
	list_each(it, &n->turns) {
		const struct buffer *u = list_of(it, struct buffer, link);

		if (u->state == FREE && !dirty)
			return (uint32_t)(u - n->buffer);
		if (!nvme_idle(u) || u->dirty != dirty || u->wanted == n->search ||
		    distance(n, u->chunk) < most)
			continue;
		best = (uint32_t)(u - n->buffer);
		most = distance(n, u->chunk);
	}
	return best;
}

static void forget(struct nvme *n, uint32_t b)
{
	struct buffer *u = &n->buffer[b];

	if (u->chunk == NONE)
		return;
	CHECK(u->users.all == 0 && !u->dirty);
	store_away_lend(n->away.store, u->chunk, NULL);
	n->where[u->chunk] = NONE;
	u->chunk = NONE;
	u->state = FREE;
	holds(n, b);
}

/* The chunk is in the buffer, and its word says so. is_void: what is there is another chunk's. */
static void warm(struct nvme *n, uint32_t b, bool is_void)
{
	struct buffer *u = &n->buffer[b];

	u->state = WARM;
	store_away_lend(n->away.store, u->chunk, store_away_buffer(n->away.store, b));
	if (is_void)
		store_void_set(n->away.store, u->chunk);
	holds(n, b);
}

static void check_done(void *owner, void *args)
{
	const struct job *j = args;
	struct nvme *n = owner;
	struct buffer *u = &n->buffer[j->buffer];
	bool is_void =
		u->voids != store_away_voids(n->away.store, u->chunk); /* Since the read began. */

	CHECK(u->state == CHECKING);
	if (is_void || j->ok)
		warm(n, j->buffer, is_void);
	else
		nvme_lose(n, "reading the state", u->chunk, 0);
	nvme_serve(n);
	n->conf.release(n->conf.arg);
}

static void read_done(void *owner, uint64_t tag, int64_t result)
{
	struct nvme *n = owner;
	struct buffer *u = &n->buffer[tag];

	CHECK(u->state == READING);
	if (result < 0) {
		nvme_lose(n, "reading the state", u->chunk, result);
		return;
	}
	n->count.read_bytes += (uint64_t)result;
	u->state = CHECKING;
	submit(n, (uint32_t)tag, slots_at(&n->slots, u->chunk).seq, check_run, check_done);
}

/* The buffer is free, or its chunk goes. True: the chunk is there at once, because nothing of it is
 * written. */
static bool bring(struct nvme *n, uint32_t chunk, uint32_t b)
{
	uint32_t slot = slots_at(&n->slots, chunk).slot;
	struct buffer *u = &n->buffer[b];
	enum shard_status st;

	forget(n, b);
	u->chunk = chunk;
	takes_turns(n, u);
	n->where[chunk] = b;
	u->voids = store_away_voids(n->away.store, chunk);
	if (slot == SLOT_NONE) {
		warm(n, b, true);
		return true;
	}
	u->state = READING;
	st = ring_read(n->conf.ring, b, 0, io_bytes(n, chunk), slot_at(n, slot), read_done, n, b);
	CHECK(st == SHARD_OK); /* Each buffer has one request at most. */
	return false;
}

/* --- writing back --- */

static void write_done(void *owner, uint64_t tag, int64_t result)
{
	struct nvme *n = owner;
	struct buffer *u = &n->buffer[tag];
	uint32_t chunk = u->chunk;

	CHECK(u->state == WRITING && u->dirty && n->writes > 0);
	n->writes--;
	u->state = WARM;
	if (result < 0) { /* This slot is not used again. */
		if (++n->bad >= BAD_MAX)
			nvme_lose(n, "writing the state", chunk, result);
		nvme_serve(n);
		return;
	}
	n->count.written_bytes += (uint64_t)result;
	if (u->voids != store_away_voids(n->away.store, chunk)) {
		slots_give(&n->slots, u->to.slot);
	} else {
		slots_put(&n->slots, chunk, &u->to);
		set_dirty(n, (uint32_t)tag, false);
	}
	nvme_serve(n);
}

static void sum_done(void *owner, void *args)
{
	const struct job *j = args;
	struct nvme *n = owner;
	struct buffer *u = &n->buffer[j->buffer];
	enum shard_status st;

	CHECK(u->state == SUMMING);
	if (n->stopped) { /* It stays dirty. */
		n->conf.release(n->conf.arg);
		return;
	}
	u->state = WRITING;
	st = ring_write(n->conf.ring, j->buffer, 0, io_bytes(n, u->chunk), slot_at(n, u->to.slot),
			write_done, n, j->buffer);
	CHECK(st == SHARD_OK);
	n->conf.release(n->conf.arg);
}

void nvme_write_begin(struct nvme *n, uint32_t b)
{
	struct buffer *u = &n->buffer[b];

	CHECK(u->state == WARM && u->dirty && u->users.all == 0);
	n->writes++;
	u->state = SUMMING;
	u->voids = store_away_voids(n->away.store, u->chunk);
	u->to = slots_take(&n->slots);
	submit(n, b, u->to.seq, sum_run, sum_done);
}

/* So many buffers can be given away at once, or soon. */
static uint32_t spare(const struct nvme *n)
{
	uint32_t nr = n->writes;

	list_each(it, &n->turns) {
		const struct buffer *u = list_of(it, struct buffer, link);

		nr += u->state == FREE || (nvme_idle(u) && !u->dirty);
	}
	return nr;
}

/* Keeps the buffers that chunks take turns in clean, so that one that is wanted need not wait for a
 * write. */
static void clean(struct nvme *n)
{
	uint32_t turns = n->buffers_nr - n->staying;

	while (turns > 0 && !nvme_over(n) && !durable_pauses(n) && n->writes < WRITES_MAX &&
	       spare(n) < turns) {
		uint32_t b = last_again(n, true, 0);

		if (b == NONE)
			return;
		nvme_write_begin(n, b);
	}
}

/* Before a step: reads the first chunks that are not in memory, in place of later ones. */
static void read_ahead(struct nvme *n)
{
	for (uint32_t c = 0; n->ahead && !nvme_over(n) && c < n->chunks_nr; c++) {
		uint32_t b;

		if (!store_is_away(n->away.store, c) || !store_holds(n->away.store, c) ||
		    n->where[c] != NONE)
			continue;
		if ((b = last_again(n, false, distance(n, c) + 1)) == NONE)
			return;
		(void)bring(n, c, b);
	}
}

/* --- pins --- */

static bool may_have(const struct nvme *n, const struct tier_pin *p, uint32_t b)
{
	uint32_t turns = n->buffers_nr - n->staying;

	return turns == 0 ||
	       away_may_have(&n->away, b != NONE ? &n->buffer[b].users : NULL, p, turns);
}

/* *full: there is no buffer that could go. */
static bool grant(struct nvme *n, const struct tier_pin *p, bool *full)
{
	uint32_t b = n->where[p->chunk];

	if (!may_have(n, p, b))
		return false;
	if (b == NONE) {
		if (away_is_call(p))
			n->next = p->chunk;
		if (*full || (b = last_again(n, false, 0)) == NONE) {
			*full = true;
			return false;
		}
		(void)bring(n, p->chunk, b);
	}
	if (n->buffer[b].state < WARM || (p->writes && n->buffer[b].state > WARM))
		return false;
	away_use(&n->away, &n->buffer[b].users, p);
	if (p->writes)
		set_dirty(n, b, true); /* Before anything of it changes. */
	return true;
}

static bool serve_one(struct nvme *n)
{
	bool full = false;

	list_each(it, &n->waiting) {
		struct tier_pin *p = list_of(it, struct tier_pin, link);

		if (!grant(n, p, &full))
			continue;
		list_remove(&p->link);
		tier_pinned(p); /* The list may be another one after this. */
		return true;
	}
	return false;
}

/* After every change. What done() of a pin does comes here, too, and is seen to by the outer
 * call. */
void nvme_serve(struct nvme *n)
{
	if (n->serving) {
		n->again = true;
		return;
	}
	n->serving = true;
	do {
		n->again = false;
		while (!nvme_over(n) && serve_one(n))
			;
		clean(n);
		durable_go(n);
		read_ahead(n);
	} while (n->again);
	n->serving = false;
}

static bool nvme_pin(struct tier *t, struct tier_pin *p)
{
	struct nvme *n = nvme_of(t);
	bool full = false;

	if (!store_is_away(n->away.store, p->chunk))
		return true;
	if (!nvme_over(n) && grant(n, p, &full)) { /* Those who wait could not have that buffer. */
		if (away_is_call(p))
			n->next = p->chunk + 1 < n->chunks_nr ? p->chunk + 1 : 0;
		return true;
	}
	list_push(&n->waiting, &p->link);
	clean(n); /* Something may have to be written first. */
	return false;
}

static void nvme_unpin(struct tier *t, struct tier_pin *p, bool waited)
{
	struct nvme *n = nvme_of(t);

	if (!store_is_away(n->away.store, p->chunk))
		return;
	if (waited) {
		list_remove(&p->link);
		return;
	}
	away_unuse(&n->away, &n->buffer[n->where[p->chunk]].users, p);
	nvme_serve(n);
}

/* --- calls --- */

static enum shard_status begin(struct nvme *n, const struct tier_make *what, bool make,
			       const struct tier_call *who)
{
	struct away_call *c = away_call_take(&n->away, what, make, who);

	if (c == NULL)
		return SHARD_AGAIN;
	n->ahead = false;
	n->commit.eager |= !make;
	return away_call_go(c);
}

static enum shard_status nvme_apply(struct tier *t, const struct tier_apply *a,
				    const struct tier_call *c)
{
	struct nvme *n = nvme_of(t);
	struct tier_make what = {.update = *a};

	return store_is_away(n->away.store, a->chunk) ? begin(n, &what, false, c)
						      : n->away.ram->row->apply(n->away.ram, a, c);
}

static enum shard_status nvme_make(struct tier *t, const struct tier_make *a,
				   const struct tier_call *c)
{
	struct nvme *n = nvme_of(t);

	return store_is_away(n->away.store, a->update.chunk)
		       ? begin(n, a, true, c)
		       : n->away.ram->row->make(n->away.ram, a, c);
}

static void nvme_ahead(struct tier *t)
{
	struct nvme *n = nvme_of(t);

	n->ahead = true;
	n->next = 0;
	nvme_serve(n);
}

/* The loop ends, and after it the threads. What is dirty stays so, for the next process. */
static void nvme_stop(struct tier *t)
{
	struct nvme *n = nvme_of(t);

	n->stopped = true;
	ring_stop(n->conf.ring);
}

static uint32_t nvme_lanes(const struct tier *t)
{
	return nvme_of(t)->away.ram->row->lanes(nvme_of(t)->away.ram);
}

/* --- begin and end --- */

static uint32_t slots_nr(const struct store *st)
{
	return store_away_nr(st) * (store_away_area(st) > 0 ? 2 : 1) + SLOTS_MORE;
}

static uint32_t staying(const struct store *st)
{
	uint32_t all = store_away_buffers(st), turns = all / 2;

	if (all == store_away_nr(st))
		return all;
	turns = turns < TURNS_MIN ? TURNS_MIN : turns < WRITES_MAX ? turns : WRITES_MAX;
	return all - turns;
}

static void destroy(struct nvme *n)
{
	tier_close(&n->away.ram);
	free(n->buffer);
	free(n->where);
	slots_close(&n->slots);
	free(n);
}

static void nvme_close(struct tier *t)
{
	struct nvme *n = nvme_of(t);

	CHECK(list_empty(&n->waiting));
	nvme_stop(t);
	for (uint32_t b = 0; b < n->buffers_nr; b++)
		if (n->buffer[b].chunk != NONE)
			store_away_lend(n->away.store, n->buffer[b].chunk, NULL);
	destroy(n);
}

/* The chunks that are in buffers. What was on its way into one is not. */
static enum shard_status take_buffers(struct nvme *n, struct err *e)
{
	for (uint32_t b = 0; b < n->buffers_nr; b++) {
		uint64_t word = atomic_load(store_away_holds(n->away.store, b)),
			 chunk = (word & ~DIRTY) - 1;

		if (word == 0)
			continue;
		if (chunk >= n->chunks_nr || !store_is_away(n->away.store, (uint32_t)chunk) ||
		    n->where[chunk] != NONE)
			return err_set(e, SHARD_MISMATCH,
				       "a buffer is said to hold chunk %llu, which cannot be",
				       (unsigned long long)chunk);
		n->buffer[b].chunk = (uint32_t)chunk;
		takes_turns(n, &n->buffer[b]);
		n->buffer[b].state = WARM;
		n->buffer[b].dirty = word & DIRTY;
		n->count.dirty += n->buffer[b].dirty;
		n->where[chunk] = b;
		store_away_lend(n->away.store, (uint32_t)chunk,
				store_away_buffer(n->away.store, b));
	}
	return SHARD_OK;
}

enum shard_status tier_nvme_open(struct tier **out, const struct tier_conf *conf,
				 const struct tier_nvme_conf *nvme, struct err *e)
{
	static const struct tier_row row = {.name = "nvme",
					    .sum = away_sum,
					    .apply = nvme_apply,
					    .make = nvme_make,
					    .patch = away_patch,
					    .repair = away_repair,
					    .pin = nvme_pin,
					    .unpin = nvme_unpin,
					    .ahead = nvme_ahead,
					    .stop = nvme_stop,
					    .lanes = nvme_lanes,
					    .close = nvme_close};
	const struct store_conf *s = &conf->store->conf;
	uint32_t chunks_nr = s->layout->chunks_nr, buffers = store_away_buffers(conf->store);
	struct nvme *n = calloc(1, sizeof(*n));
	enum shard_status st;

	CHECK(buffers > 0);
	if (n == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for the tier of \"%s\"", s->name);
	n->away.tier.row = &row;
	n->away.store = conf->store;
	n->exec = conf->exec;
	n->conf = *nvme;
	n->chunks_nr = chunks_nr;
	n->buffers_nr = buffers;
	n->staying = staying(conf->store);
	list_init(&n->waiting);
	n->buffer = calloc(buffers, sizeof(*n->buffer));
	n->where = malloc(chunks_nr * sizeof(*n->where));
	if (n->buffer == NULL || n->where == NULL) {
		st = err_set(e, SHARD_SYSTEM, "no memory for the tier of \"%s\"", s->name);
		goto err_tier;
	}
	list_init(&n->turns);
	for (uint32_t b = 0; b < buffers; b++) {
		n->buffer[b].chunk = NONE;
		list_push(&n->turns, &n->buffer[b].link);
	}
	for (uint32_t c = 0; c < chunks_nr; c++)
		n->where[c] = NONE;
	if ((st = tier_ram_open(&n->away.ram, conf, e)) != SHARD_OK ||
	    (st = slots_open(&n->slots, conf->store, 0, store_away_nr(conf->store),
			     slots_nr(conf->store), e)) != SHARD_OK ||
	    (st = take_buffers(n, e)) != SHARD_OK || (st = durable_open(n, e)) != SHARD_OK)
		goto err_tier;
	*out = &n->away.tier;
	return SHARD_OK;
err_tier:
	destroy(n);
	return st;
}

uint64_t tier_nvme_bytes(const struct store *st)
{
	return store_away_nr(st) > 0 ? store_away_area(st) + slots_nr(st) * store_away_slot(st) : 0;
}

uint64_t tier_nvme_step_bytes(const struct store *st)
{
	uint64_t area = store_away_area(st);

	return area > 0 ? store_away_nr(st) * store_away_slot(st) + area / 2
			: (store_away_nr(st) - staying(st)) * store_away_slot(st);
}

struct tier_nvme_count tier_nvme_count(const struct tier *t)
{
	static const struct tier_nvme_count none;

	return tier_is_nvme(t) ? nvme_of(t)->count : none;
}

bool tier_is_nvme(const struct tier *t)
{
	return t->row->close == nvme_close;
}
