/* SPDX-License-Identifier: Apache-2.0 */
/* State on devices. feed.c hands out chunks, and others pin them, as with main memory (tier_ram.c).
 * Happy path of an update: the gradient goes to the device, a kernel makes the new state of the
 * chunk in a free slot and the image, the image comes back, and then one word says that the chunk
 * is in that slot now, with the stamp of the record, and the old slot is free. So each chunk is
 * whole somewhere at any instant, and nothing is ever half updated: a kill costs the work of
 * updates under way. Who pins a chunk, as a save or a seal, gets a copy of it in a buffer, which
 * goes back to the device if it was changed. While it is there, the chunk is as one in main memory,
 * and updates are made there. Words and buffers outlive the process where the store does, and so
 * does the memory of the devices. If a device fails, conf.lost() is told, and nothing more is
 * done. */
#include "store/tier_gpu_impl.h"

#include "base/check.h"
#include "store/away.h"
#include "store/hold.h"
#include "store/store_impl.h"
#include "wire/dtype.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

static_assert(TIER_GPU_BUFFERS >= AWAY_BUFFERS_MIN, "a store has so many");

static void call_pinned(struct tier_pin *p);

static struct gpus *gpus_of(const struct tier *t)
{
	return (struct gpus *)(uintptr_t)t; /* The first field. */
}

/* --- pins --- */

static void use(struct gpus *n, uint32_t b, const struct tier_pin *p)
{
	struct buffer *u = &n->buffer[b];

	u->users++;
	if (p->done != call_pinned) {
		n->outside += u->outside++ == 0;
		n->writers += p->writes && u->writers++ == 0;
	}
	if (p->writes)
		gpus_set_dirty(n, b, true); /* Before anything of it changes. */
}

/* A step that needs buffers has to find some, however many pins others hold. And who writes may
 * hold a pin until another node has sent the chunk, which that node has to read: so those who read
 * have to find some, too, or two nodes would wait for each other. */
static bool may_have(const struct gpus *n, const struct tier_pin *p, uint32_t b)
{
	uint32_t few = n->buffers_nr / 4 > 0 ? n->buffers_nr / 4 : 1;
	const struct buffer *u = b != NONE ? &n->buffer[b] : NULL;

	if (p->done == call_pinned)
		return true;
	if (p->writes && (u == NULL || u->writers == 0) && n->writers >= few)
		return false;
	return (u != NULL && u->outside > 0) || n->outside < (n->buffers_nr + 1) / 2;
}

static bool grant(struct gpus *n, const struct tier_pin *p)
{
	uint32_t b = n->where[p->chunk];

	if (!may_have(n, p, b) || n->updating[p->chunk])
		return false;
	if (b == NONE) {
		if (!gpus_bring(n, p->chunk))
			return false;
		b = n->where[p->chunk];
	}
	if (n->buffer[b].state != WARM)
		return false;
	use(n, b, p);
	return true;
}

static bool gpu_pin_chunk(struct tier *t, struct tier_pin *p)
{
	struct gpus *n = gpus_of(t);

	if (!store_is_away(n->store, p->chunk) || (!gpus_over(n) && grant(n, p)))
		return true;
	list_push(&n->waiting, &p->link);
	gpus_clean(n);
	return false;
}

static void gpu_unpin_chunk(struct tier *t, struct tier_pin *p, bool waited)
{
	struct gpus *n = gpus_of(t);
	struct buffer *u;
	uint32_t b;

	if (!store_is_away(n->store, p->chunk))
		return;
	if (waited) {
		list_remove(&p->link);
		return;
	}
	b = n->where[p->chunk];
	u = &n->buffer[b];
	CHECK(u->users > 0);
	u->users--;
	if (p->done != call_pinned) {
		CHECK(u->outside > 0 && n->outside > 0);
		n->outside -= --u->outside == 0;
		n->writers -= p->writes && --u->writers == 0;
	}
	u->used = ++n->uses;
	if (p->done == call_pinned)
		gpus_store(n, b); /* The next step finds it on the device. */
	gpus_serve(n);
}

/* --- updates --- */

static void call_end(struct call *c, const struct tier_result *r)
{
	struct tier_call who = c->who;

	c->of = NULL;
	who.done(who.owner, who.tag, r);
}

static void call_done(void *owner, uint64_t tag, const struct tier_result *r)
{
	struct call *c = owner;

	(void)tag;
	tier_unpin(&c->of->tier, &c->pin);
	call_end(c, r);
}

/* The chunk is in a buffer. */
static enum shard_status carry_out(struct call *c)
{
	struct gpus *n = c->of;
	struct tier_call who = {.done = call_done, .owner = c, .here = c->who.here};
	bool make = c->make, accepted = c->accepted;
	enum shard_status st = SHARD_AGAIN;

	for (; st != SHARD_OK; who.here = true) { /* When it is, *c may be another call. */
		st = make ? n->ram->row->make(n->ram, &c->what, &who)
			  : n->ram->row->apply(n->ram, &c->what.update, &who);
		if (!accepted)
			break;
	}
	n->count.host_updates += st == SHARD_OK && !make;
	return st;
}

static void call_pinned(struct tier_pin *p)
{
	struct call *c = list_of(p, struct call, pin);

	c->accepted = true;
	(void)carry_out(c);
}

/* On the thread of the device. */
static void update_after(void *owner, uint64_t tag)
{
	struct gpus *n = owner;
	const struct call *c = &n->call[tag];
	const struct tier_apply *a = &c->what.update;

	if (c->keeps)
		hold_kept(n->store, a->chunk);
	store_image_keep(n->store, a->slot, a->half, a->chunk);
}

static void update_done(void *owner, uint64_t tag, enum shard_status st, uint64_t kept)
{
	struct gpus *n = owner;
	struct call *c = &n->call[tag];
	uint32_t chunk = c->what.update.chunk;
	struct device *d = gpus_device(n, chunk);
	struct tier_result r = {.kept = kept, .finite = true};

	CHECK(d->updates > 0 && n->updating[chunk]);
	d->updates--;
	n->updating[chunk] = 0;
	if (st != SHARD_OK) { /* Nobody hears of it: what it has made is worth nothing. */
		if (c->keeps)
			hold_lost(n->store, chunk);
		gpus_lose(n, d);
	} else {
		if (c->to.slot != SLOT_NONE && c->voids != store_away_voids(n->store, chunk))
			slots_give(&d->slots, c->to.slot);
		else if (c->to.slot != SLOT_NONE)
			slots_put(&d->slots, chunk, &c->to);
		n->count.updates++;
		call_end(c, &r);
	}
	gpus_serve(n);
	n->conf.release(n->conf.arg);
}

/* All of the chunk is frozen: it stays where it is, and its image, too. */
static void update_nothing(struct gpus *n, struct call *c)
{
	struct device *d = gpus_device(n, c->what.update.chunk);
	struct gpu_job job = {.done = update_done,
			      .after = update_after,
			      .owner = n,
			      .tag = (uint64_t)(c - n->call),
			      .what = GPU_TO_HOST};

	c->to.slot = SLOT_NONE;
	d->updates++;
	n->updating[c->what.update.chunk] = 1;
	gpus_submit(n, d, &job);
}

static void update_begin(struct gpus *n, struct call *c)
{
	const struct tier_apply *a = &c->what.update;
	const struct store_conf *conf = &n->store->conf;
	struct device *d = gpus_device(n, a->chunk);
	uint64_t from = gpus_slot_at(n, d, slots_at(&d->slots, a->chunk).slot), to;
	uint64_t array = store_away_bytes(n->store, a->chunk) / (1 + states_nr(n->store, a->chunk));
	struct gpu_job job = {.done = update_done,
			      .after = update_after,
			      .owner = n,
			      .tag = (uint64_t)(c - n->call),
			      .what = GPU_UPDATE,
			      .update = {.layout = conf->layout,
					 .chunk = a->chunk,
					 .optim = conf->optim,
					 .grad_dtype = conf->grad,
					 .image_dtype = layout_image(conf->layout, a->chunk),
					 .args = a->args,
					 .zero = a->zero,
					 .grad = a->grad,
					 .image = store_image(n->store, a->slot, a->chunk)}};

	c->to = slots_take(&d->slots);
	c->to.seq = a->stamp;
	c->voids = store_away_voids(n->store, a->chunk);
	c->keeps = hold_keep(n->store, a->chunk, job.update.keep);
	to = gpus_slot_at(n, d, c->to.slot);
	for (uint32_t i = 0; i <= states_nr(n->store, a->chunk); i++) {
		job.update.from[i] = from + i * array;
		job.update.to[i] = to + i * array;
	}
	d->updates++;
	n->updating[a->chunk] = 1;
	gpus_submit(n, d, &job);
}

/* A chunk that is in a buffer is updated there, and so is one whose image is made of codes, or that
 * is not on the device yet. */
static bool in_buffer(struct gpus *n, const struct call *c)
{
	uint32_t chunk = c->what.update.chunk;

	return c->make || c->what.update.codes != NULL || !gpus_forget_chunk(n, chunk) ||
	       slots_at(&gpus_device(n, chunk)->slots, chunk).slot == SLOT_NONE;
}

static bool device_has_room(struct gpus *n, uint32_t chunk)
{
	return gpus_device(n, chunk)->updates < UPDATES_MAX;
}

/* SHARD_AGAIN: nothing was begun, because no thread is free. */
static enum shard_status begin_call(struct gpus *n, struct call *c)
{
	uint32_t chunk = c->what.update.chunk;

	if (!in_buffer(n, c)) {
		if (gpus_over(n) || !device_has_room(n, chunk))
			list_push(&n->updates, &c->link);
		else if (layout_trained(n->store->conf.layout, chunk))
			update_begin(n, c);
		else
			update_nothing(n, c);
		return SHARD_OK;
	}
	return tier_pin(&n->tier, &c->pin) ? carry_out(c) : SHARD_OK;
}

static enum shard_status begin(struct tier *t, const struct tier_make *what, bool make,
			       const struct tier_call *who)
{
	struct gpus *n = gpus_of(t);
	uint32_t i = 0;
	struct call *c;
	enum shard_status st;

	while (i < CALLS_MAX && n->call[i].of != NULL)
		i++;
	if (i == CALLS_MAX)
		return SHARD_AGAIN;
	c = &n->call[i];
	*c = (struct call){.pin = {.chunk = what->update.chunk,
				   .writes = !make || what->finish,
				   .done = call_pinned},
			   .of = n,
			   .make = make,
			   .what = *what,
			   .who = *who};
	list_init(&c->link);
	if ((st = begin_call(n, c)) == SHARD_OK)
		return SHARD_OK;
	tier_unpin(t, &c->pin);
	c->of = NULL;
	return st;
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
		struct call *c = list_of(it, struct call, link);
		bool buffer = in_buffer(n, c);

		if (!buffer && !device_has_room(n, c->what.update.chunk))
			continue;
		list_remove(&c->link);
		c->accepted = true;
		(void)begin_call(n, c);
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

	return store_is_away(n->store, a->chunk) ? begin(t, &what, false, c)
						 : n->ram->row->apply(n->ram, a, c);
}

static enum shard_status gpu_row_make(struct tier *t, const struct tier_make *a,
				      const struct tier_call *c)
{
	struct gpus *n = gpus_of(t);

	return store_is_away(n->store, a->update.chunk) ? begin(t, a, true, c)
							: n->ram->row->make(n->ram, a, c);
}

static enum shard_status gpu_row_sum(struct tier *t, const struct tier_sum *s,
				     const struct tier_call *c)
{
	return gpus_of(t)->ram->row->sum(gpus_of(t)->ram, s, c);
}

static enum shard_status gpu_row_patch(struct tier *t, const struct tier_patch *p,
				       const struct tier_call *c)
{
	return gpus_of(t)->ram->row->patch(gpus_of(t)->ram, p, c);
}

static enum shard_status gpu_row_repair(struct tier *t, uint64_t stamp, bool applying,
					void (*of)(void *arg, uint32_t chunk, struct tier_apply *a),
					void *arg, uint64_t *kept, struct err *e)
{
	struct tier *ram = gpus_of(t)->ram;

	return ram->row->repair(ram, stamp, applying, of, arg, kept, e);
}

static void gpu_row_stop(struct tier *t)
{
	gpus_of(t)->stopped = true;
}

static uint32_t gpu_row_lanes(const struct tier *t)
{
	const struct gpus *n = gpus_of(t);
	uint32_t lanes = n->ram->row->lanes(n->ram);

	for (uint32_t i = 0; i < n->conf.devices_nr; i++)
		lanes += gpu_lanes(n->conf.mem[i].gpu);
	return lanes;
}

/* --- begin and end --- */

static void destroy(struct gpus *n)
{
	tier_close(&n->ram);
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
			store_away_lend(n->store, n->buffer[b].chunk, NULL);
	destroy(n);
}

static uint32_t first_of(uint32_t away_nr, uint32_t devices_nr, uint32_t i)
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

static enum shard_status open_devices(struct gpus *n, struct err *e)
{
	uint32_t nr = n->conf.devices_nr, away = store_away_nr(n->store);
	enum shard_status st = SHARD_OK;

	for (uint32_t i = 0; i < nr && st == SHARD_OK; i++) {
		n->device[i].mem = &n->conf.mem[i];
		CHECK(n->conf.mem[i].bytes >= tier_gpu_bytes(n->store, nr));
		st = slots_open(&n->device[i].slots, n->store, first_of(away, nr, i),
				first_of(away, nr, i + 1), slots_nr(away, nr), e);
	}
	return st;
}

enum shard_status tier_gpu_open(struct tier **out, const struct tier_conf *conf,
				const struct tier_gpu_conf *gpu, struct err *e)
{
	static const struct tier_row row = {.name = "gpu",
					    .sum = gpu_row_sum,
					    .apply = gpu_row_apply,
					    .make = gpu_row_make,
					    .patch = gpu_row_patch,
					    .repair = gpu_row_repair,
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
	n->tier.row = &row;
	n->store = conf->store;
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
	if ((st = tier_ram_open(&n->ram, conf, e)) != SHARD_OK ||
	    (st = open_devices(n, e)) != SHARD_OK || (st = gpus_take_buffers(n, e)) != SHARD_OK)
		goto err_tier;
	*out = &n->tier;
	return SHARD_OK;
err_tier:
	destroy(n);
	return st;
}

struct tier_gpu_count tier_gpu_count(const struct tier *t)
{
	static const struct tier_gpu_count none;

	return t->row->close == gpu_row_close ? gpus_of(t)->count : none;
}
