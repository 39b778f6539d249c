/* SPDX-License-Identifier: Apache-2.0 */
/* State on devices. feed.c hands out chunks, and others pin them, as with main memory (tier_ram.c).
 * Happy path of an update: the gradient goes to the device, a kernel makes the new state of the
 * chunk in a free slot and the image, the image comes back, and then one word says that the chunk
 * is in that slot now, with the stamp of the record, and the old slot is free. So each chunk is
 * whole somewhere at any instant, and nothing is ever half updated: a kill costs the work of
 * updates under way. Who pins a chunk, as a save or a seal, gets a copy of it in a buffer, which
 * goes back to the device if it was changed. While it is there, the chunk is as one in main memory,
 * and updates are made there. Words and buffers outlive the process where the store does, and so
 * does the memory of the devices. If a device fails, conf.lost() is told, and nothing more is done
 * until tier_gpu_forsake() ends what waits. */
#include "store/tier_gpu_impl.h"

#include "base/check.h"
#include "store/away.h"
#include "store/hold.h"
#include "store/sizes.h"
#include "store/store_impl.h"
#include "wire/dtype.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

static_assert(TIER_GPU_BUFFERS >= AWAY_BUFFERS_MIN, "a store has so many");

static struct gpus *gpus_of(const struct tier *t)
{
	return (struct gpus *)(uintptr_t)t; /* The first field. */
}

/* --- pins --- */

static bool grant(struct gpus *n, const struct tier_pin *p)
{
	uint32_t b = n->where[p->chunk];

	if (!away_may_have(&n->away, b != NONE ? &n->buffer[b].users : NULL, p, n->buffers_nr) ||
	    n->updating[p->chunk])
		return false;
	if (b == NONE) {
		if (!gpus_bring(n, p->chunk))
			return false;
		b = n->where[p->chunk];
	}
	if (n->buffer[b].state != WARM)
		return false;
	away_use(&n->away, &n->buffer[b].users, p);
	if (p->writes)
		gpus_set_dirty(n, b, true); /* Before anything of it changes. */
	return true;
}

/* Nobody cares what is there, so that several chunks may be in one buffer. */
static void lend_any(struct gpus *n, uint32_t chunk)
{
	CHECK(n->forsaken);
	if (!store_away_here(n->away.store, chunk))
		store_away_lend(n->away.store, chunk, store_away_buffer(n->away.store, 0));
}

static bool gpu_pin_chunk(struct tier *t, struct tier_pin *p)
{
	struct gpus *n = gpus_of(t);

	if (!store_is_away(n->away.store, p->chunk) || (!gpus_over(n) && grant(n, p)))
		return true;
	if (n->forsaken) {
		lend_any(n, p->chunk);
		return true;
	}
	list_push(&n->waiting, &p->link);
	gpus_clean(n);
	return false;
}

static void gpu_unpin_chunk(struct tier *t, struct tier_pin *p, bool waited)
{
	struct gpus *n = gpus_of(t);
	uint32_t b = n->where[p->chunk];

	if (!store_is_away(n->away.store, p->chunk))
		return;
	if (waited) {
		list_remove(&p->link);
		return;
	}
	if (n->forsaken)
		return;
	away_unuse(&n->away, &n->buffer[b].users, p);
	n->buffer[b].used = ++n->uses;
	if (away_is_call(p))
		gpus_store(n, b); /* The next step finds it on the device. */
	gpus_serve(n);
}

/* --- updates --- */

/* Which number the call has, and the struct update of it. */
static uint32_t number(const struct gpus *n, const struct away_call *c)
{
	return (uint32_t)(c - n->away.call);
}

/* On the thread of the device. */
static void update_after(void *owner, uint64_t tag)
{
	struct gpus *n = owner;
	const struct tier_apply *a = &n->away.call[tag].what.update;

	if (n->update[tag].keeps)
		hold_kept(n->away.store, a->chunk);
	store_image_keep(n->away.store, a->slot, a->half, a->chunk);
}

static void end_dead(struct gpus *n, uint32_t tag)
{
	const struct tier_result nothing = {.finite = true};

	CHECK(n->update[tag].dead);
	n->update[tag].dead = false;
	away_call_end(&n->away.call[tag], &nothing);
}

static void update_done(void *owner, uint64_t tag, enum shard_status st, uint64_t kept)
{
	struct gpus *n = owner;
	struct update u = n->update[tag];
	uint32_t chunk = n->away.call[tag].what.update.chunk;
	struct device *d = gpus_device(n, chunk);
	struct tier_result r = {.kept = kept,
				.finite = true,
				.image_there = n->away.call[tag].what.update.device_image != 0};

	CHECK(d->updates > 0 && n->updating[chunk]);
	d->updates--;
	n->updating[chunk] = 0;
	if (st != SHARD_OK) { /* Nobody hears of it: what it has made is worth nothing. */
		if (u.keeps)
			hold_lost(n->away.store, chunk);
		gpus_lose(n, d);
		n->update[tag].dead = true;
		if (n->forsaken)
			end_dead(n, (uint32_t)tag);
	} else {
		if (u.to.slot != SLOT_NONE && u.voids != store_away_voids(n->away.store, chunk))
			slots_give(&d->slots, u.to.slot);
		else if (u.to.slot != SLOT_NONE)
			slots_put(&d->slots, chunk, &u.to);
		n->count.updates++;
		away_call_end(&n->away.call[tag], &r);
	}
	gpus_serve(n);
	n->conf.release(n->conf.arg);
}

/* From the slot that the chunk is in to a free one. */
static struct gpu_update between_slots(struct gpus *n, const struct tier_apply *a, struct update *u)
{
	const struct store *store = n->away.store;
	struct device *d = gpus_device(n, a->chunk);
	uint32_t states = states_nr(store, a->chunk);
	uint64_t from = gpus_slot_at(n, d, slots_at(&d->slots, a->chunk).slot), to;
	uint64_t array = store_away_bytes(store, a->chunk) / (1 + states);
	struct gpu_update g = {.layout = store->conf.layout,
			       .chunk = a->chunk,
			       .optim = store->conf.optim,
			       .grad_dtype = store->conf.grad,
			       .image_dtype = layout_image(store->conf.layout, a->chunk),
			       .args = a->args,
			       .zero = a->zero,
			       .grad = a->grad,
			       .image = store_image(n->away.store, a->slot, a->chunk),
			       .image_at = a->device_image};

	if (a->inside)
		g.grad_at = gpus_sum_at(n, d, a->chunk);
	u->to = slots_take(&d->slots);
	u->to.seq = a->stamp;
	u->voids = store_away_voids(store, a->chunk);
	u->keeps = hold_keep(n->away.store, a->chunk, g.keep);
	to = gpus_slot_at(n, d, u->to.slot);
	for (uint32_t i = 0; i <= states; i++) {
		g.from[i] = from + i * array;
		g.to[i] = to + i * array;
	}
	return g;
}

/* A chunk of which all is frozen stays where it is, and so does its image. */
static void update_begin(struct gpus *n, const struct away_call *c)
{
	const struct tier_apply *a = &c->what.update;
	struct device *d = gpus_device(n, a->chunk);
	struct update *u = &n->update[number(n, c)];
	struct gpu_job job = {.done = update_done,
			      .after = update_after,
			      .owner = n,
			      .tag = number(n, c),
			      .what = GPU_TO_HOST};

	*u = (struct update){.to = {.slot = SLOT_NONE}};
	if (layout_trained(n->away.store->conf.layout, a->chunk)) {
		job.what = GPU_UPDATE;
		job.update = between_slots(n, a, u);
	}
	d->updates++;
	n->updating[a->chunk] = 1;
	gpus_submit(n, d, &job);
}

/* A chunk that is in a buffer is updated there, if it is used there or its newest state is there
 * alone. So is one whose image is made of codes, or that is not on the device yet. */
static bool to_be_in_buffer(struct gpus *n, const struct away_call *c)
{
	uint32_t chunk = c->what.update.chunk;

	return c->make || c->what.update.codes != NULL || !gpus_forget_chunk(n, chunk) ||
	       slots_at(&gpus_device(n, chunk)->slots, chunk).slot == SLOT_NONE;
}

static bool device_has_room(struct gpus *n, uint32_t chunk)
{
	return gpus_device(n, chunk)->updates < UPDATES_MAX;
}

static enum shard_status begin(struct gpus *n, const struct tier_make *what, bool make,
			       const struct tier_call *who)
{
	struct away_call *c = away_call_take(&n->away, what, make, who);

	if (c == NULL)
		return SHARD_AGAIN;
	if (to_be_in_buffer(n, c))
		return away_call_go(c);
	c->accepted = true;
	if (!gpus_over(n) && device_has_room(n, what->update.chunk))
		update_begin(n, c);
	else
		list_push(&n->updates, &n->update[number(n, c)].link);
	return SHARD_OK;
}

/* --- what waits --- */

static bool serve_pin(struct gpus *n)
{
	list_each(it, &n->waiting) {
		struct tier_pin *p = list_of(it, struct tier_pin, link);

		if (!grant(n, p))
			continue;
		list_remove(&p->link);
		tier_pinned(p); /* The list may be another one after this. */
		return true;
	}
	return false;
}

static bool serve_update(struct gpus *n)
{
	list_each(it, &n->updates) {
		struct update *u = list_of(it, struct update, link);
		struct away_call *c = &n->away.call[u - n->update];
		bool buffer = to_be_in_buffer(n, c);

		if (!buffer && !device_has_room(n, c->what.update.chunk))
			continue;
		list_remove(&u->link);
		if (buffer)
			(void)away_call_go(c); /* It was accepted, so it is carried out. */
		else
			update_begin(n, c);
		return true;
	}
	return false;
}

/* After every change. What done() of a pin or a call does comes here, too, and is seen to by the
 * outer call. */
void gpus_serve(struct gpus *n)
{
	if (n->serving) {
		n->again = true;
		return;
	}
	n->serving = true;
	do {
		n->again = false;
		while (!gpus_over(n) && (serve_pin(n) || serve_update(n)))
			;
		gpus_clean(n);
	} while (n->again);
	n->serving = false;
}

/* --- the row --- */

static enum shard_status gpu_row_apply(struct tier *t, const struct tier_apply *a,
				       const struct tier_call *c)
{
	struct gpus *n = gpus_of(t);
	struct tier_make what = {.update = *a};

	return store_is_away(n->away.store, a->chunk) ? begin(n, &what, false, c)
						      : n->away.ram->row->apply(n->away.ram, a, c);
}

static enum shard_status gpu_row_make(struct tier *t, const struct tier_make *a,
				      const struct tier_call *c)
{
	struct gpus *n = gpus_of(t);

	return store_is_away(n->away.store, a->update.chunk)
		       ? begin(n, a, true, c)
		       : n->away.ram->row->make(n->away.ram, a, c);
}

static void gpu_row_stop(struct tier *t)
{
	gpus_of(t)->stopped = true;
}

static uint32_t gpu_row_lanes(const struct tier *t)
{
	const struct gpus *n = gpus_of(t);
	uint32_t lanes = n->away.ram->row->lanes(n->away.ram);

	for (uint32_t i = 0; i < n->conf.devices_nr; i++)
		lanes += gpu_lanes(n->conf.mem[i].gpu);
	return lanes;
}

/* --- begin and end --- */

static void destroy(struct gpus *n)
{
	tier_close(&n->away.ram);
	for (uint32_t i = 0; i < n->conf.devices_nr; i++)
		slots_close(&n->device[i].slots);
	free(n->where);
	free(n->updating);
	free(n);
}

static void gpu_row_close(struct tier *t)
{
	struct gpus *n = gpus_of(t);

	CHECK(list_empty(&n->waiting));
	n->stopped = true;
	for (uint32_t b = 0; b < n->buffers_nr; b++)
		if (n->buffer[b].chunk != NONE)
			store_away_lend(n->away.store, n->buffer[b].chunk, NULL);
	destroy(n);
}

uint32_t gpus_first_of(uint32_t away_nr, uint32_t devices_nr, uint32_t i)
{
	return (uint32_t)((uint64_t)away_nr * i / devices_nr);
}

/* The same of each device, so that a later process need not know which run a device has before it
 * maps the memory. */
static uint32_t slots_nr(uint32_t away_nr, uint32_t devices_nr)
{
	return (away_nr + devices_nr - 1) / devices_nr + SLOTS_MORE;
}

uint64_t tier_gpu_bytes(const struct store *st, uint32_t devices_nr)
{
	return slots_nr(store_away_nr(st), devices_nr) * store_away_slot(st);
}

uint64_t tier_gpu_will(const struct store_conf *conf, uint32_t devices_nr)
{
	struct store_sizes s;

	CHECK(devices_nr > 0);
	store_sizes(&s, conf);
	return slots_nr(s.away_nr, devices_nr) * s.away_slot;
}

static enum shard_status open_devices(struct gpus *n, struct err *e)
{
	uint32_t nr = n->conf.devices_nr, away = store_away_nr(n->away.store);
	enum shard_status st = SHARD_OK;

	for (uint32_t i = 0; i < nr && st == SHARD_OK; i++) {
		n->device[i].mem = &n->conf.mem[i];
		CHECK(n->conf.mem[i].bytes >= tier_gpu_bytes(n->away.store, nr));
		st = slots_open(&n->device[i].slots, n->away.store, gpus_first_of(away, nr, i),
				gpus_first_of(away, nr, i + 1), slots_nr(away, nr), e);
	}
	return st;
}

enum shard_status tier_gpu_open(struct tier **out, const struct tier_conf *conf,
				const struct tier_gpu_conf *gpu, struct err *e)
{
	static const struct tier_row row = {.name = "gpu",
					    .sum = gpus_sum,
					    .apply = gpu_row_apply,
					    .make = gpu_row_make,
					    .patch = away_patch,
					    .repair = away_repair,
					    .pin = gpu_pin_chunk,
					    .unpin = gpu_unpin_chunk,
					    .stop = gpu_row_stop,
					    .lanes = gpu_row_lanes,
					    .close = gpu_row_close};
	uint32_t chunks_nr = conf->store->conf.layout->chunks_nr;
	struct gpus *n = calloc(1, sizeof(*n));
	enum shard_status st;

	if (n == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for the tier of \"%s\"",
			       conf->store->conf.name);
	n->away.tier.row = &row;
	n->away.store = conf->store;
	n->tiles = conf->tiles;
	n->conf = *gpu;
	n->chunks_nr = chunks_nr;
	n->buffers_nr = store_away_buffers(conf->store);
	CHECK(n->buffers_nr > 0 && n->buffers_nr <= TIER_GPU_BUFFERS && gpu->devices_nr > 0 &&
	      gpu->devices_nr <= GPU_DEVICES_MAX);
	list_init(&n->waiting);
	list_init(&n->updates);
	for (uint32_t b = 0; b < n->buffers_nr; b++)
		n->buffer[b].chunk = NONE;
	n->where = malloc(chunks_nr * sizeof(*n->where));
	n->updating = calloc(chunks_nr, 1);
	if (n->where == NULL || n->updating == NULL) {
		st = err_set(e, SHARD_SYSTEM, "no memory for the tier of \"%s\"",
			     conf->store->conf.name);
		goto err_tier;
	}
	for (uint32_t c = 0; c < chunks_nr; c++)
		n->where[c] = NONE;
	if ((st = tier_ram_open(&n->away.ram, conf, e)) != SHARD_OK ||
	    (st = open_devices(n, e)) != SHARD_OK || (st = gpus_take_buffers(n, e)) != SHARD_OK)
		goto err_tier;
	gpus_direct_init(n);
	*out = &n->away.tier;
	return SHARD_OK;
err_tier:
	destroy(n);
	return st;
}

bool tier_is_gpu(const struct tier *t)
{
	return t->row->close == gpu_row_close;
}

struct gpu *tier_gpu_of(const struct tier *t, uint32_t chunk)
{
	struct gpus *n = gpus_of(t);

	return tier_is_gpu(t) && store_is_away(n->away.store, chunk)
		       ? gpus_device(n, chunk)->mem->gpu
		       : NULL;
}

void tier_gpu_lose(struct tier *t, const struct gpu *g)
{
	struct gpus *n = gpus_of(t);

	for (uint32_t i = 0; tier_is_gpu(t) && i < n->conf.devices_nr; i++)
		if (n->device[i].mem->gpu == g)
			gpus_lose(n, &n->device[i]);
}

void tier_gpu_forsake(struct tier *t)
{
	struct gpus *n = gpus_of(t);

	if (!tier_is_gpu(t))
		return;
	n->lost = n->forsaken = true;
	while (!list_empty(&n->updates)) {
		struct update *u = list_of(n->updates.next, struct update, link);

		list_remove(&u->link);
		u->dead = true;
	}
	for (uint32_t i = 0; i < AWAY_CALLS; i++)
		if (n->update[i].dead)
			end_dead(n, i);
	gpus_sums_forsake(n);
	while (!list_empty(&n->waiting)) { /* Who is told may pin another one. */
		struct tier_pin *p = list_of(n->waiting.next, struct tier_pin, link);

		list_remove(&p->link);
		lend_any(n, p->chunk);
		tier_pinned(p);
	}
}

struct tier_gpu_count tier_gpu_count(const struct tier *t)
{
	struct tier_gpu_count count = {.updates = 0};

	if (!tier_is_gpu(t))
		return count;
	count = gpus_of(t)->count;
	count.host_updates = gpus_of(t)->away.updates;
	return count;
}
