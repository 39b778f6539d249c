/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a store that grows and shrinks chunk by chunk. make.c makes a store, and moves of its
 * chunks then plan, make, take and give. What a store is made with lies packed in the first part of
 * each region. Any other chunk has a stretch of its own in the region's room, at a place that
 * follows from its number: all that the region has of the chunk, each array from a page on. So a
 * chunk that comes or goes shares no page with another one, and what the budget counts for it is
 * exact. A chunk of the first part that goes gives back the pages that it has alone, and gets the
 * same ones back. Making fails if there is no memory, and leaves nothing; giving cannot fail. */
#include "store/room.h"

#include "base/check.h"
#include "store/store_impl.h"

#include <string.h>
#include <sys/stat.h>

#define PAGE_BYTES 4096ull
#define STEP_BYTES (2ull << 20) /* So that reserved huge pages fit each chunk. */
/* A region with more room than this has none: the addresses of a process end at 128 TiB. */
#define ROOM_BYTES_MAX (16ull << 40)

static uint64_t up(uint64_t bytes, uint64_t unit)
{
	return (bytes + unit - 1) / unit * unit;
}

static bool bit(const uint8_t *bits, uint32_t chunk)
{
	return bits[chunk / 8] >> chunk % 8 & 1;
}

static void bit_set(uint8_t *bits, uint32_t chunk, bool on)
{
	bits[chunk / 8] =
		(uint8_t)((bits[chunk / 8] & ~(1u << chunk % 8)) | (unsigned)on << chunk % 8);
}

static uint32_t elem_bytes(const struct store_conf *conf, enum store_region what, uint32_t chunk)
{
	return what == STORE_STATE    ? sizeof(float)
	       : what == STORE_IMAGES ? layout_image_elem(conf->layout, chunk)
				      : (uint32_t)dtype_bytes(conf->grad);
}

/* Of the chunk that has the largest elements. */
static uint32_t elem_bytes_max(const struct store_conf *conf, enum store_region what)
{
	const struct layout *l = conf->layout;
	uint32_t most = 0;

	for (uint32_t r = 0; r < l->regions_nr; r++)
		if (elem_bytes(conf, what, l->region[r].chunk) > most)
			most = elem_bytes(conf, what, l->region[r].chunk);
	return most;
}

/* How many arrays a region has at most of a chunk in its room. */
static uint32_t arrays_max(const struct store_conf *conf, enum store_region what, bool parked)
{
	switch (what) {
	case STORE_STATE:
		return 1 + conf->optim->states_nr;
	case STORE_SLOTS:
		return CORE_NODES_MAX - 1;
	case STORE_SUMS: /* With several local ranks there is a sum of every chunk from the start.
			  */
		return conf->local_world > 1 ? 0 : 1;
	case STORE_IMAGES:
		return store_keeps_images(conf, parked) ? 2 : 0;
	case STORE_REGIONS:
		break;
	}
	return 0;
}

static uint64_t step_bytes(const struct store_conf *conf, enum store_region what, bool parked)
{
	return up(arrays_max(conf, what, parked) *
			  up(conf->layout->chunk_elems * (uint64_t)elem_bytes_max(conf, what),
			     PAGE_BYTES),
		  STEP_BYTES);
}

uint64_t store_room_bytes(const struct store_conf *conf, enum store_region what)
{
	uint64_t step = step_bytes(conf, what, conf->warm != NULL);

	return step > ROOM_BYTES_MAX / conf->layout->chunks_nr ? 0 : step * conf->layout->chunks_nr;
}

uint64_t store_room_huge(const struct store_conf *conf, enum store_region what)
{
	const struct layout *l = conf->layout;
	/* Where there are several image dtypes, those of the first. */
	uint32_t whole = l->regions_nr > 1 ? l->region[1].chunk : l->chunks_nr;

	whole -= layout_chunk_elems(l, whole - 1) < l->chunk_elems;
	return l->chunk_elems * (uint64_t)elem_bytes(conf, what, 0) % STEP_BYTES == 0
		       ? whole * step_bytes(conf, what, conf->warm != NULL)
		       : 0;
}

/* How many arrays a region has now of a chunk in its room, from the first on. */
static uint32_t arrays(const struct store_conf *conf, enum store_region what, uint32_t chunk,
		       bool parked)
{
	if (what == STORE_SLOTS)
		return conf->nodes_nr - 1u;
	if (what == STORE_STATE && !layout_trained(conf->layout, chunk))
		return 1;
	return arrays_max(conf, what, parked);
}

static uint64_t array_bytes(const struct store_conf *conf, enum store_region what, uint32_t chunk)
{
	return up(layout_chunk_elems(conf->layout, chunk) * (uint64_t)elem_bytes(conf, what, chunk),
		  PAGE_BYTES);
}

/* Reserved huge pages, which a region of memory that outlives the process may have, are whole. */
static uint64_t counted(const struct store_conf *conf, uint64_t bytes, bool parked)
{
	return parked && conf->huge == SHM_HUGE_REQUIRE ? up(bytes, STEP_BYTES) : bytes;
}

uint64_t store_room_counted(const struct store_conf *conf, enum store_region what, uint32_t chunk)
{
	return counted(conf,
		       arrays(conf, what, chunk, conf->warm != NULL) *
			       array_bytes(conf, what, chunk),
		       conf->warm != NULL);
}

uint64_t store_room_later(const struct store_conf *conf, uint32_t chunk)
{
	uint16_t first = conf->first_nodes ? conf->first_nodes : conf->nodes_nr;

	return counted(conf, (conf->nodes_nr - first) * array_bytes(conf, STORE_SLOTS, chunk),
		       conf->warm != NULL);
}

void *store_room_at(const struct store *st, enum store_region what, uint32_t chunk, uint32_t array)
{
	CHECK(st->region[what].room != NULL && array < arrays_max(&st->conf, what, st->parked));
	return st->region[what].room + chunk * step_bytes(&st->conf, what, st->parked) +
	       array * array_bytes(&st->conf, what, chunk);
}

bool store_room_has(const struct store *st, enum store_region what, uint64_t offset, uint64_t bytes)
{
	uint64_t step = step_bytes(&st->conf, what, st->parked), in = step ? offset % step : 0;
	uint64_t chunk = step ? offset / step : st->conf.layout->chunks_nr;

	uint64_t each, least = 0;

	if (chunk >= st->conf.layout->chunks_nr || !bit(st->held, (uint32_t)chunk))
		return false;
	each = array_bytes(&st->conf, what, (uint32_t)chunk);
	step = arrays(&st->conf, what, (uint32_t)chunk, st->parked) * each;
	/* Of a chunk of the first part, only the slots of nodes that came later are here. */
	if (bit(st->first, (uint32_t)chunk))
		least = what == STORE_SLOTS ? (st->first_nodes - 1u) * each : step;
	return in >= least && in <= step && bytes <= step - in;
}

/* --- the pages of a chunk --- */

struct run {
	const struct shm *shm;
	char *at;
	uint64_t bytes, counted;
};

/* The whole pages of an array in the first part that the chunk has alone. */
static bool inner(const struct store *st, enum store_region what, void *at, uint32_t chunk,
		  struct run *run)
{
	uint64_t bytes = layout_chunk_elems(st->conf.layout, chunk) *
			 (uint64_t)elem_bytes(&st->conf, what, chunk),
		 first = (uint64_t)((char *)at - (char *)st->region[what].base),
		 from = up(first, PAGE_BYTES), end = (first + bytes) / PAGE_BYTES * PAGE_BYTES;

	if (at == NULL || st->region[what].got == SHM_PAGES_HUGETLB || end <= from)
		return false;
	*run = (struct run){&st->region[what], (char *)st->region[what].base + from, end - from,
			    end - from};
	return true;
}

/* The i-th run of pages of a chunk of the first part. False: that one has none. */
static bool first_run(struct store *st, uint32_t chunk, uint32_t i, struct run *run)
{
	uint32_t states = st->conf.optim->states_nr, slots = st->first_nodes - 1u;

	if (i <= states)
		return inner(st, STORE_STATE, store_first_state(st, chunk, i), chunk, run);
	i -= states + 1;
	if (i < slots)
		return inner(st, STORE_SLOTS, store_first_slot(st, chunk, i), chunk, run);
	i -= slots;
	if (i == 0)
		return st->sizes.sums == 0 && st->conf.local_world == 1 &&
		       inner(st, STORE_SUMS, store_first_sum(st, chunk), chunk, run);
	return st->sizes.images > 0 &&
	       inner(st, STORE_IMAGES, store_first_image(st, chunk, i - 1), chunk, run);
}

/* The slots, in the room, of the nodes from number `from` on. False: there are none. */
static bool later_run(const struct store *st, uint32_t chunk, uint16_t from, uint16_t nodes_nr,
		      struct run *run)
{
	if (nodes_nr == from)
		return false;
	*run = (struct run){&st->region[STORE_SLOTS],
			    store_room_at(st, STORE_SLOTS, chunk, from - 1u),
			    (nodes_nr - from) * array_bytes(&st->conf, STORE_SLOTS, chunk), 0};
	run->counted = counted(&st->conf, run->bytes, st->parked);
	return true;
}

enum { OTHER_RUNS = 3 }; /* The sum and the images of a chunk of the first part. */

/* Calls f with each run of pages that comes and goes with the chunk, until f fails. */
static bool each_run(struct store *st, uint32_t chunk, bool (*f)(void *arg, const struct run *),
		     void *arg)
{
	struct run run;

	if (!bit(st->first, chunk)) {
		for (int w = 0; w < STORE_REGIONS; w++) {
			enum store_region what = (enum store_region)w;
			uint64_t bytes = arrays(&st->conf, what, chunk, st->parked) *
					 array_bytes(&st->conf, what, chunk);

			if (bytes == 0)
				continue;
			run = (struct run){&st->region[w], store_room_at(st, what, chunk, 0), bytes,
					   counted(&st->conf, bytes, st->parked)};
			if (!f(arg, &run))
				return false;
		}
		return true;
	}
	for (uint32_t i = 0; i < st->conf.optim->states_nr + st->first_nodes + OTHER_RUNS; i++)
		if (first_run(st, chunk, i, &run) && !f(arg, &run))
			return false;
	return !later_run(st, chunk, st->first_nodes, st->conf.nodes_nr, &run) || f(arg, &run);
}

/* Does the chunk keep its pages when it is given? */
static bool keeps(const struct store *st, uint32_t chunk)
{
	return bit(st->first, chunk) && !bit(st->given, chunk);
}

struct counting {
	const struct store *st;
	struct store_bytes *to;
};

static bool count_run(void *arg, const struct run *run)
{
	const struct counting *k = arg;

	k->to->of[run->shm - k->st->region] += run->counted;
	k->to->all += run->counted;
	k->to->parked += k->st->parked ? run->counted : 0;
	return true;
}

static void count(struct store *st, uint32_t chunk, struct store_bytes *to)
{
	struct counting k = {st, to};

	(void)each_run(st, chunk, count_run, &k);
}

static struct store *mine(const struct store *st)
{
	return (struct store *)(uintptr_t)st; /* Only its memory changes, not the struct. */
}

void store_room_plan(struct store_room *r, const struct store *st, const uint32_t *chunk,
		     uint32_t nr)
{
	*r = (struct store_room){.store = st, .chunk = chunk, .chunks_nr = nr};
	for (uint32_t i = 0; i < nr; i++) {
		CHECK(!store_holds(st, chunk[i]));
		if (!keeps(st, chunk[i]) && (bit(st->first, chunk[i]) || store_has_room(st)))
			count(mine(st), chunk[i], &r->need);
	}
}

struct making {
	struct err *e;
	const char *stop; /* Where a failure was. */
	bool pinned;
};

static bool make_run(void *arg, const struct run *run)
{
	struct making *k = arg;

	if (shm_more(run->shm, run->at, run->bytes, k->e) == SHARD_OK)
		return true;
	k->stop = run->at;
	return false;
}

static bool less_run(void *arg, const struct run *run)
{
	const struct making *k = arg;

	if (run->at == k->stop)
		return false;
	if (k->pinned && run->at >= (char *)run->shm->base &&
	    run->at < (char *)run->shm->base + run->shm->bytes)
		return true; /* A device writes to these pages, not to those that would follow. */
	shm_less(run->shm, run->at, run->bytes);
	return true;
}

/* The chunks before number nr, and of that one the runs before k->stop. */
static void unmake(const struct store_room *r, uint32_t nr, struct making *k)
{
	for (uint32_t i = 0; i < r->chunks_nr && i <= nr; i++)
		if (!keeps(r->store, r->chunk[i]))
			(void)each_run(mine(r->store), r->chunk[i], less_run, k);
}

void store_room_make(struct store_room *r)
{
	struct making k = {.e = &r->e, .pinned = r->store->pinned};

	for (uint32_t i = 0; i < r->chunks_nr; i++) {
		uint32_t chunk = r->chunk[i];

		if (keeps(r->store, chunk))
			continue;
		if (!bit(r->store->first, chunk) && !store_has_room(r->store)) {
			err_set(&r->e, SHARD_BUDGET,
				"model \"%s\" is too large for chunks that come later: %u chunks "
				"of %u elements: raise chunk_elems",
				r->store->conf.name, r->store->conf.layout->chunks_nr,
				r->store->conf.layout->chunk_elems);
			if (i > 0)
				unmake(r, i - 1, &k);
			return;
		}
		if (each_run(mine(r->store), chunk, make_run, &k))
			continue;
		unmake(r, i, &k);
		return;
	}
	r->e.status = SHARD_OK;
}

void store_room_drop(struct store_room *r)
{
	struct making k = {.pinned = r->store->pinned};

	if (r->e.status == SHARD_OK)
		unmake(r, r->chunks_nr, &k);
}

void store_room_take(struct store *st, const struct store_room *r)
{
	CHECK(r->store == st && r->e.status == SHARD_OK);
	for (uint32_t i = 0; i < r->chunks_nr; i++) {
		uint32_t chunk = r->chunk[i];

		CHECK(!store_holds(st, chunk));
		bit_set(st->held, chunk, true);
		bit_set(st->given, chunk, false);
		st->owned++;
		store_void_set(st, chunk);
	}
}

void store_room_give(struct store *st, uint32_t chunk, struct store_bytes *back)
{
	struct making k = {.stop = NULL};

	CHECK(store_holds(st, chunk));
	bit_set(st->held, chunk, false);
	st->owned--;
	if (!bit(st->first, chunk) || !st->pinned) {
		bit_set(st->given, chunk, true);
		count(st, chunk, back);
		(void)each_run(st, chunk, less_run, &k);
	}
}

void store_room_pin(struct store *st)
{
	st->pinned = true;
}

bool store_room_first(const struct store *st, uint32_t chunk)
{
	CHECK(chunk < st->conf.layout->chunks_nr);
	return bit(st->first, chunk);
}

/* --- more nodes --- */

/* Calls f with the new slots of each chunk that has slots, until f fails. */
static bool each_later(const struct store_nodes *r, bool (*f)(void *arg, const struct run *),
		       void *arg)
{
	const struct store *st = r->store;
	struct run run;

	for (uint32_t c = 0; c < st->conf.layout->chunks_nr; c++)
		if ((store_holds(st, c) || keeps(st, c)) &&
		    later_run(st, c, st->conf.nodes_nr, r->nodes_nr, &run) && !f(arg, &run))
			return false;
	return true;
}

void store_nodes_plan(struct store_nodes *r, const struct store *st, uint16_t nodes_nr)
{
	CHECK(nodes_nr > st->conf.nodes_nr && nodes_nr <= CORE_NODES_MAX);
	*r = (struct store_nodes){.store = st, .nodes_nr = nodes_nr};
	if (store_has_room(st))
		(void)each_later(r, count_run, &(struct counting){st, &r->need});
}

void store_nodes_make(struct store_nodes *r)
{
	struct making k = {.e = &r->e};

	if (!store_has_room(r->store)) {
		err_set(&r->e, SHARD_BUDGET,
			"model \"%s\" is too large for nodes that come later: %u chunks of %u "
			"elements: raise chunk_elems",
			r->store->conf.name, r->store->conf.layout->chunks_nr,
			r->store->conf.layout->chunk_elems);
		return;
	}
	if (each_later(r, make_run, &k)) {
		r->e.status = SHARD_OK;
		return;
	}
	(void)each_later(r, less_run, &k);
}

void store_nodes_drop(struct store_nodes *r)
{
	struct making k = {.stop = NULL};

	if (r->e.status == SHARD_OK)
		(void)each_later(r, less_run, &k);
}

void store_nodes_take(struct store *st, const struct store_nodes *r)
{
	CHECK(r->store == st && r->e.status == SHARD_OK);
	st->conf.nodes_nr = r->nodes_nr;
}

uint16_t store_nodes(const struct store *st)
{
	return st->conf.nodes_nr;
}

/* --- a start --- */

static bool touch_run(void *arg, const struct run *run)
{
	return shm_touch(run->shm, run->at, run->bytes, arg) == SHARD_OK;
}

/* Touches what lies between the pages that are given back. */
static enum shard_status touch_first(struct store *st, enum store_region what, struct err *e)
{
	const struct shm *m = &st->region[what];
	char *at = m->base, *end = at + m->bytes;

	/* The arrays lie one after the other, and the chunks in order in each. So the runs come in
	 * the order of their addresses if arrays are walked first. */
	for (uint32_t i = 0; i < st->conf.optim->states_nr + st->first_nodes + OTHER_RUNS; i++)
		for (uint32_t c = 0; c < st->conf.layout->chunks_nr; c++) {
			struct run run;

			if (!bit(st->first, c) || bit(st->held, c) || !first_run(st, c, i, &run) ||
			    run.shm != m)
				continue;
			CHECK(run.at >= at);
			if (run.at > at && shm_touch(m, at, (size_t)(run.at - at), e) != SHARD_OK)
				return e->status;
			at = run.at + run.bytes;
		}
	return at < end ? shm_touch(m, at, (size_t)(end - at), e) : SHARD_OK;
}

/* Have the regions more pages than the chunks here account for? */
static bool has_more(struct store *st)
{
	struct store_bytes more = {.all = 0}, less = {.all = 0};
	uint64_t want = 0, has = 0;
	uint64_t slots;
	struct run later;

	for (int w = 0; w < STORE_REGIONS; w++) {
		const struct shm *m = &st->region[w];
		struct stat s;

		want += m->bytes;
		has += m->fd >= 0 && fstat(m->fd, &s) == 0 ? (uint64_t)s.st_blocks * 512 : 0;
	}
	for (uint32_t c = 0; c < st->conf.layout->chunks_nr; c++) {
		if (bit(st->held, c) && !bit(st->first, c))
			count(st, c, &more);
		else if (!bit(st->held, c) && bit(st->first, c))
			count(st, c, &less);
		slots = 0;
		if (bit(st->first, c) &&
		    later_run(st, c, st->first_nodes, st->conf.nodes_nr, &later))
			slots = later.counted;
		want += slots;
	}
	return has > want + more.all - less.all;
}

/* A process that was killed had made memory for chunks that no view gave to it, or not given back
 * what a view took away. */
static void drop_leftover(struct store *st)
{
	struct making k = {.stop = NULL};

	if (!has_more(st))
		return;
	for (uint32_t c = 0; c < st->conf.layout->chunks_nr; c++)
		if (!bit(st->held, c) && (bit(st->first, c) || store_has_room(st)))
			(void)each_run(st, c, less_run, &k);
}

static enum shard_status no_room(const struct store *st, uint32_t chunk, struct err *e)
{
	return err_set(e, SHARD_MISMATCH, "there is no room for chunk %u of \"%s\"", chunk,
		       st->conf.name);
}

enum shard_status store_room_again(struct store *st, struct err *e)
{
	for (int w = 0; w < STORE_REGIONS; w++)
		if (st->region[w].base != NULL && st->region[w].room != NULL &&
		    touch_first(st, (enum store_region)w, e) != SHARD_OK)
			return e->status;
	for (uint32_t c = 0; c < st->conf.layout->chunks_nr; c++) {
		struct run later;

		if (bit(st->first, c)) {
			bit_set(st->given, c, !bit(st->held, c));
			/* Nodes that came since have their slots in the room. */
			if (bit(st->held, c) &&
			    later_run(st, c, st->first_nodes, st->conf.nodes_nr, &later) &&
			    (!store_has_room(st) || !touch_run(e, &later)))
				return store_has_room(st) ? e->status : no_room(st, c, e);
		} else if (bit(st->held, c)) {
			if (!store_has_room(st))
				return no_room(st, c, e);
			if (!each_run(st, c, touch_run, e))
				return e->status;
		}
	}
	drop_leftover(st);
	return SHARD_OK;
}
