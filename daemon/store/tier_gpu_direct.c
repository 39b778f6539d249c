// SPDX-License-Identifier: Apache-2.0
/* Direct slots, and sums over nodes on devices, for tier_gpu.c. data/mr.c registers the slots, so
 * that other nodes write their contributions there by RDMA. Happy path of a sum: what came to the
 * host, as this node's own contribution, goes up to its slot, the device sums all of them in their
 * order, the result stays in the slot of this node, which nobody else can write, and a copy comes
 * down: what is voted for outlives the process there, and other nodes are sent it from there. The
 * update then takes the gradient from the slot. A sum that is not finite is made again in main
 * memory, from the same contributions, because who is to blame is found there. So is one with a
 * contribution of a node that has joined since the slots were made. If a device fails, conf.lost()
 * is told, and the sum is done when the tier is forsaken. */
#include "store/tier_gpu_impl.h"

#include "base/check.h"
#include "store/away.h"
#include "store/store_impl.h"
#include "wire/dtype.h"

#define PART_ALIGN ((uint64_t)64 << 10) /* Pages of a device. */

static struct gpus *gpus_of(const struct tier *t)
{
	return (struct gpus *)(uintptr_t)t; /* The first field. */
}

/* --- where they are --- */

/* Which chunks the device has. */
static struct direct run_of(const struct store *st, uint32_t from, uint32_t to)
{
	const struct layout *l = st->conf.layout;
	struct direct d = {.dma_buf = -1};
	uint64_t elems = 0;

	for (uint32_t c = 0; c < l->chunks_nr; c++) {
		if (!store_is_away(st, c) || store_away_index(st, c) < from ||
		    store_away_index(st, c) >= to)
			continue;
		if (d.chunks++ == 0)
			d.first = c;
		CHECK(st->held_at[c] == st->held_at[d.first] + elems);
		elems += layout_chunk_elems(l, c);
	}
	d.bytes = elems * dtype_bytes(st->conf.grad);
	d.part = (d.bytes + PART_ALIGN - 1) / PART_ALIGN * PART_ALIGN;
	return d;
}

uint64_t tier_gpu_direct_bytes(const struct store *st, uint32_t devices_nr, uint32_t device)
{
	uint32_t away = store_away_nr(st);

	return run_of(st, gpus_first_of(away, devices_nr, device),
		      gpus_first_of(away, devices_nr, device + 1))
		       .part *
	       st->conf.nodes_nr;
}

void gpus_direct_init(struct gpus *n)
{
	for (uint32_t i = 0; n->conf.direct != NULL && i < n->conf.devices_nr; i++) {
		const struct gpu_mem *m = &n->conf.direct[i];
		struct device *d = &n->device[i];

		d->direct = run_of(n->away.store, d->slots.from, d->slots.to);
		CHECK(m->bytes >= d->direct.part * n->away.store->conf.nodes_nr);
		d->direct.nodes_nr = n->away.store->conf.nodes_nr;
		d->direct.at = m->at;
		d->direct.dma_buf = m->fd;
	}
}

static bool has_slot(const struct device *d, uint16_t node)
{
	return d->direct.chunks > 0 && node < d->direct.nodes_nr;
}

bool tier_gpu_direct(const struct tier *t, uint32_t device, uint16_t node, struct tier_direct *out)
{
	const struct gpus *n = gpus_of(t);
	const struct direct *d;

	if (!tier_is_gpu(t) || device >= n->conf.devices_nr || !has_slot(&n->device[device], node))
		return false;
	d = &n->device[device].direct;
	CHECK(node != n->away.store->conf.self);
	*out = (struct tier_direct){.first = d->first,
				    .chunks = d->chunks,
				    .memory = {.fd = d->dma_buf,
					       .offset = node * d->part,
					       .at = d->at + node * d->part,
					       .bytes = d->bytes}};
	return true;
}

static uint64_t slot_at(const struct gpus *n, const struct device *d, uint32_t chunk, uint16_t node)
{
	const struct store *st = n->away.store;

	CHECK(has_slot(d, node));
	return d->direct.at + node * d->direct.part +
	       (st->held_at[chunk] - st->held_at[d->direct.first]) * dtype_bytes(st->conf.grad);
}

uint64_t tier_gpu_direct_at(const struct tier *t, uint32_t chunk, uint16_t node)
{
	struct gpus *n = gpus_of(t);
	const struct device *d;

	if (!tier_is_gpu(t) || !store_is_away(n->away.store, chunk))
		return 0;
	d = gpus_device(n, chunk);
	return has_slot(d, node) ? slot_at(n, d, chunk, node) : 0;
}

uint32_t tier_gpu_direct_short(const struct tier *t, uint16_t nodes_nr)
{
	const struct gpus *n = gpus_of(t);
	uint32_t chunks = 0;

	for (uint32_t i = 0; tier_is_gpu(t) && i < n->conf.devices_nr; i++)
		if (n->device[i].direct.chunks > 0 && n->device[i].direct.nodes_nr < nodes_nr)
			chunks += n->device[i].direct.chunks;
	return chunks;
}

uint64_t gpus_sum_at(const struct gpus *n, const struct device *d, uint32_t chunk)
{
	return slot_at(n, d, chunk, n->away.store->conf.self);
}

/* --- sums --- */

static void end(struct add *a, const struct tier_result *r)
{
	struct tier_call who = a->who;

	a->used = false;
	who.done(who.owner, who.tag, r);
}

/* Its device is lost, and with it the model's copy here: nothing more is begun for it. */
static void end_dead(struct add *a)
{
	const struct tier_result nothing = {.finite = true};

	CHECK(a->dead);
	a->dead = false;
	end(a, &nothing);
}

static void die(struct gpus *n, struct add *a)
{
	gpus_lose(n, gpus_device(n, a->sum.chunk));
	a->dead = true;
	if (n->forsaken)
		end_dead(a);
}

void gpus_sums_forsake(struct gpus *n)
{
	for (uint32_t i = 0; i < ADDS_MAX; i++)
		if (n->add[i].dead)
			end_dead(&n->add[i]);
}

/* In main memory, as if nothing had been on a device. */
static void sum_in_memory(struct gpus *n, struct add *a)
{
	struct tier *ram = n->away.ram;
	struct tier_sum sum = a->sum;
	struct tier_call who = a->who;

	a->used = false; /* When the call is done, it may be another sum. */
	while (ram->row->sum(ram, &sum, &who) != SHARD_OK)
		who.here = true; /* The threads are busy. */
}

static void brought(void *owner, uint64_t tag, enum shard_status st, uint64_t kept);

/* The next contributions come from the device to where they would have landed otherwise. */
static void bring(struct gpus *n, struct add *a)
{
	const struct device *d = gpus_device(n, a->sum.chunk);
	struct gpu_job job = {.done = brought,
			      .owner = n,
			      .tag = (uint64_t)(a - n->add),
			      .what = GPU_TO_HOST,
			      .written = true};
	uint64_t bytes = (uint64_t)layout_chunk_elems(n->away.store->conf.layout, a->sum.chunk) *
			 dtype_bytes(n->away.store->conf.grad);

	for (; a->brought < a->sum.sources_nr && job.copies_nr < GPU_COPIES_MAX; a->brought++) {
		uint32_t i = a->brought;

		if (a->sum.inside >> i & 1)
			job.copy[job.copies_nr++] = (struct gpu_copy){
				(uint8_t *)(uintptr_t)a->sum.source[i].at,
				slot_at(n, d, a->sum.chunk, a->sum.node[i]), bytes};
	}
	if (job.copies_nr > 0)
		gpus_submit(n, d, &job);
	else
		sum_in_memory(n, a);
}

static void brought(void *owner, uint64_t tag, enum shard_status st, uint64_t kept)
{
	struct gpus *n = owner;
	struct add *a = &n->add[tag];

	(void)kept;
	if (st == SHARD_OK)
		bring(n, a);
	else
		die(n, a);
	n->conf.release(n->conf.arg);
}

static void added(void *owner, uint64_t tag, enum shard_status st, uint64_t kept)
{
	struct gpus *n = owner;
	struct add *a = &n->add[tag];
	struct tier_result r = {.sumsq = a->add.sumsq, .finite = true, .inside = true};

	(void)kept;
	if (st != SHARD_OK) {
		die(n, a);
	} else if (a->add.finite) {
		n->count.sums++;
		end(a, &r);
	} else {
		bring(n, a);
	}
	n->conf.release(n->conf.arg);
}

static void add_begin(struct gpus *n, struct add *a)
{
	const struct store *st = n->away.store;
	const struct tier_sum *s = &a->sum;
	const struct device *d = gpus_device(n, s->chunk);
	uint64_t bytes = (uint64_t)layout_chunk_elems(st->conf.layout, s->chunk) *
			 dtype_bytes(st->conf.grad);
	struct gpu_job job = {.done = added,
			      .owner = n,
			      .tag = (uint64_t)(a - n->add),
			      .what = GPU_ADD,
			      .add = &a->add};

	a->add = (struct gpu_add){.layout = st->conf.layout,
				  .chunk = s->chunk,
				  .dtype = st->conf.grad,
				  .pre = s->pre,
				  .operands_nr = s->sources_nr,
				  .to = gpus_sum_at(n, d, s->chunk),
				  .copy = s->to};
	for (uint32_t i = 0; i < s->sources_nr; i++) {
		uint64_t at = slot_at(n, d, s->chunk, s->node[i]);

		a->add.operand[i] = (struct gpu_operand){at, s->source[i].absent};
		if (!(s->inside >> i & 1))
			a->add.up[a->add.up_nr++] =
				(struct gpu_copy){(uint8_t *)(uintptr_t)s->source[i].at, at, bytes};
	}
	gpus_submit(n, d, &job);
}

/* Are there slots for the contributions of all its nodes? There are none of a node that has joined
 * since the memory was mapped. */
static bool fits(struct gpus *n, const struct tier_sum *s)
{
	const struct device *d = gpus_device(n, s->chunk);

	for (uint32_t i = 0; i < s->sources_nr; i++)
		if (!has_slot(d, s->node[i]))
			return false;
	return true;
}

enum shard_status gpus_sum(struct tier *t, const struct tier_sum *s, const struct tier_call *c)
{
	struct gpus *n = gpus_of(t);
	uint32_t i = 0;

	if (s->inside == 0)
		return away_sum(t, s, c);
	CHECK(s->how == TIER_PLAIN && s->pre == 1 && s->norm && s->share == NULL);
	while (i < ADDS_MAX && n->add[i].used)
		i++;
	if (i == ADDS_MAX || gpus_over(n))
		return SHARD_AGAIN;
	n->add[i] = (struct add){.used = true, .sum = *s, .who = *c};
	if (fits(n, s))
		add_begin(n, &n->add[i]);
	else
		bring(n, &n->add[i]);
	return SHARD_OK;
}
