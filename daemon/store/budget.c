/* SPDX-License-Identifier: Apache-2.0 */
/* Adds up the memory that a model needs on a node, and keeps the account of what is reserved.
 * make.c of model/ reserves for a model before it makes the memory, on the coordinator and on each
 * other node. store_init() then maps exactly these sizes. budget_reserve() fails with SHARD_BUDGET
 * and a text with all figures. Giving back more than was reserved is a CHECK. */
#include "store/budget.h"

#include "base/check.h"
#include "base/clock.h"
#include "store/away.h"
#include "store/codes.h"
#include "store/share.h"
#include "store/sizes.h"
#include "store/superblock.h"
#include "wire/ops.h"

#include <stdio.h>

#define PAGE_BYTES    4096ull
#define HUGE_BYTES    (2ull << 20)
#define CONTRIB_CHUNK 72ull /* struct contrib_chunk, and the place in the queue of sums. */

static const enum budget_item item_of[STORE_REGIONS] = {[STORE_STATE] = BUDGET_STATE,
							[STORE_SUMS] = BUDGET_SUMS,
							[STORE_SLOTS] = BUDGET_SLOTS,
							[STORE_IMAGES] = BUDGET_IMAGE};

static uint64_t pages(uint64_t bytes)
{
	return (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

/* If all of them fit, each has its place. Four are what a step needs to go on. */
static void away_sizes(struct store_sizes *s, const struct store_conf *conf)
{
	uint32_t cache = conf->away_cache > AWAY_BUFFERS_MIN ? conf->away_cache : AWAY_BUFFERS_MIN;

	if (s->away_nr == 0)
		return;
	s->away_buffers = s->away_nr < cache ? s->away_nr : cache;
	s->away_slot =
		(1 + conf->optim->states_nr) * pages(conf->layout->chunk_elems * sizeof(float)) +
		AWAY_TRAILER_BYTES;
	s->away = s->away_buffers * s->away_slot +
		  pages((s->away_nr + s->away_buffers) * sizeof(uint64_t));
}

/* The rest follows from the elements that this node holds. */
static void sizes_of(struct store_sizes *s, const struct store_conf *conf)
{
	const struct layout *l = conf->layout;
	size_t grad = dtype_bytes(conf->grad);

	*s = (struct store_sizes){.held_elems = s->held_elems,
				  .here_elems = s->here_elems,
				  .trained_elems = s->trained_elems,
				  .held_image = s->held_image,
				  .away_nr = s->away_nr,
				  .codes = s->codes,
				  .image_codes = s->image_codes};
	s->master = pages(s->here_elems * sizeof(float));
	away_sizes(s, conf);
	s->moment = pages(s->trained_elems * sizeof(float));
	s->slot = pages(s->held_elems * grad);
	s->reduced = pages(s->held_elems * grad);
	if (conf->local_world > 1)
		s->sums = pages((l->stored - s->held_elems) * grad);
	if (store_keeps_images(conf, conf->warm != NULL))
		s->images = 2 * pages(s->held_image);
	if (conf->grad_codec.kind != QUANT_NONE && conf->feedback)
		s->residual = pages(l->stored * sizeof(uint16_t));
	s->image_half = shm_half_bytes(l->image_bytes);
	s->arena_half = shm_half_bytes(l->elems * grad);
	s->image = image_data_offset((uint64_t)l->chunks_nr * (conf->staleness + 1)) +
		   s->image_half * (conf->staleness + 1);
	s->arena = s->arena_half * (conf->staleness + 1);
}

void store_sizes(struct store_sizes *s, const struct store_conf *conf)
{
	const struct layout *l = conf->layout;

	uint32_t firsts = store_conf_firsts(conf), first = 0;

	*s = (struct store_sizes){.held_elems = 0};
	for (uint32_t c = 0; c < l->chunks_nr; c++) {
		uint32_t n = layout_chunk_elems(l, c);

		if (!store_conf_first(conf, c))
			continue;
		s->held_elems += n;
		s->held_image += layout_image_bytes(l, c, 1);
		if (store_conf_away(conf, first++, firsts)) {
			s->away_nr++;
			continue;
		}
		s->here_elems += n;
		s->trained_elems += layout_trained(l, c) ? n : 0;
	}
	s->codes = pages(codes_bytes(l, &conf->grad_codec, conf->grad));
	s->image_codes = pages(codes_bytes(l, &conf->image_codec, SHARD_BF16));
	sizes_of(s, conf);
}

const char *budget_item_name(enum budget_item item)
{
	static const char *const names[BUDGET_ITEMS] = {
		"state", "image", "arenas", "landing slots", "node sums", "codes", "fixed"};

	CHECK((unsigned)item < BUDGET_ITEMS);
	return names[item];
}

/* A mapping of huge pages is a whole number of them. */
static uint64_t mapped(uint64_t bytes, enum shm_huge huge)
{
	uint64_t unit = huge == SHM_HUGE_NO || bytes < HUGE_BYTES ? PAGE_BYTES : HUGE_BYTES;

	return (bytes + unit - 1) / unit * unit;
}

uint64_t budget_contribs(const struct layout *l, uint32_t local_world, enum shard_dtype grad)
{
	uint64_t parts = (l->chunk_elems * dtype_bytes(grad) + WIRE_PART_BYTES - 1) /
			 WIRE_PART_BYTES,
		 bits = 2 * ((parts + 7) / 8); /* A part has begun, and is here. */
	/* What a chunk has itself, and the rank that a node blames. */
	uint64_t chunk =
		CONTRIB_CHUNK + CORE_NODES_MAX * (bits + sizeof(int32_t)) + local_world * bits;
	/* Whether a node has no gradient, whether any has one, and of each rank whether, and its
	 * share. */
	uint64_t segment = CORE_NODES_MAX + 1 + local_world * (1 + sizeof(struct share));

	return l->chunks_nr * chunk + l->segments_nr * segment;
}

/* Counts the tables beside the element buffers (layout, chunk table, votes and contributions of
 * this node), and the blobs. There is one place per trainer of this node for the step in hand, or
 * one per rank with several copies, and one per rank for what is committed. The tables are an upper
 * bound, not an exact count. */
static uint64_t fixed_bytes(const struct store_conf *conf, bool copied)
{
	const struct layout *l = conf->layout;

	uint64_t tables = (400ull << 10) + l->tensors_nr * 320ull + l->segments_nr * 24ull +
			  l->chunks_nr * 192ull + budget_contribs(l, conf->local_world, conf->grad);

	if (conf->durable_bytes > 0 && conf->away_share > 0)
		tables += SUPER_BLOCK + super_room(l->chunks_nr, conf->durable_bytes);
	if (conf->warm) /* The blobs are part of .meta. */
		return tables + mapped(conf->warm->meta, conf->huge);
	return tables +
	       ((uint64_t)budget_blobs_pending(conf->local_world, conf->max_world, copied) +
		conf->max_world) *
		       BUDGET_BLOB_BYTES;
}

static void need_of(struct budget_need *need, struct store_sizes s, const struct store_conf *conf,
		    bool copied)
{
	uint16_t first_nodes = conf->first_nodes ? conf->first_nodes : conf->nodes_nr;
	uint64_t sums;

	sizes_of(&s, conf);
	*need = (struct budget_need){.total = 0};
	need->bytes[BUDGET_STATE] =
		mapped(store_state_bytes(&s, conf->optim->states_nr), conf->huge);
	need->bytes[BUDGET_IMAGE] = mapped(s.image, conf->huge) + mapped(s.images, conf->huge);
	/* They never use reserved huge pages. */
	need->bytes[BUDGET_ARENAS] = conf->local_world * s.arena;
	if (conf->staleness > 0) {
		struct store_conf sync = *conf;
		struct budget_need less;

		sync.staleness = 0;
		need_of(&less, s, &sync, copied);
		need->stale = need->bytes[BUDGET_IMAGE] - less.bytes[BUDGET_IMAGE] +
			      need->bytes[BUDGET_ARENAS] - less.bytes[BUDGET_ARENAS];
	}
	need->bytes[BUDGET_SLOTS] = mapped(s.slot * (first_nodes - 1u), conf->huge);
	sums = mapped(store_sums_bytes(&s), conf->huge);
	need->bytes[BUDGET_SUMS] = s.codes + s.image_codes > 0 ? s.reduced + s.sums : sums;
	need->bytes[BUDGET_CODES] = sums - need->bytes[BUDGET_SUMS]; /* In one region with them. */
	need->bytes[BUDGET_FIXED] = fixed_bytes(conf, copied);
	for (int i = 0; i < BUDGET_ITEMS; i++)
		need->total += need->bytes[i];
	if (conf->warm)
		need->parked = need->bytes[BUDGET_STATE] + need->bytes[BUDGET_SLOTS] +
			       need->bytes[BUDGET_SUMS] + mapped(s.images, conf->huge) +
			       need->bytes[BUDGET_CODES] + mapped(conf->warm->meta, conf->huge);
}

/* Memory of an earlier start counts as it was made, also where chunks have given pages back, and
 * with it the chunks that came since. So it may be too much, and never too little. */
static void add_room(struct budget_need *need, const struct store_conf *conf)
{
	for (uint32_t c = 0; c < conf->layout->chunks_nr; c++) {
		if (!place_keeps(&conf->place, c, conf->self))
			continue;
		if (store_conf_first(conf, c)) {
			uint64_t bytes = store_room_later(conf, c);

			need->bytes[BUDGET_SLOTS] += bytes;
			need->total += bytes;
			need->parked += conf->warm ? bytes : 0;
			continue;
		}
		for (int w = 0; w < STORE_REGIONS; w++) {
			uint64_t bytes = store_room_counted(conf, (enum store_region)w, c);

			need->bytes[item_of[w]] += bytes;
			need->total += bytes;
			need->parked += conf->warm ? bytes : 0;
		}
	}
}

void budget_need(struct budget_need *need, const struct store_conf *conf)
{
	struct store_sizes s;

	store_sizes(&s, conf);
	need_of(need, s, conf, conf->place.holders != NULL);
	if (conf->first != NULL)
		add_room(need, conf);
}

/* How many chunks the node holds at least: its share by capacity, rounded down. A node that cannot
 * take its whole share leaves more of it to the others, never less. */
static uint64_t least_chunks(const struct store_conf *conf, uint32_t copies,
			     const uint64_t *capacity)
{
	uint64_t all = (uint64_t)conf->layout->chunks_nr * copies, sum = 0, share;

	for (uint16_t n = 0; n < conf->nodes_nr; n++)
		sum += capacity[n];
	CHECK(sum > 0);
	share = (uint64_t)((unsigned __int128)all * capacity[conf->self] / sum);
	return share < conf->layout->chunks_nr ? share : conf->layout->chunks_nr;
}

static bool all_alike(const struct store_conf *conf, const uint64_t *capacity)
{
	for (uint16_t n = 1; n < conf->nodes_nr; n++)
		if (capacity[n] != capacity[0])
			return false;
	return true;
}

/* The chunks that are short, of which each image dtype has at most one, may be among those of any
 * node. One copy of each chunk lies on equal nodes in turn, so that there it is known. */
static uint64_t least_elems(const struct store_conf *conf, uint32_t copies,
			    const uint64_t *capacity)
{
	const struct layout *l = conf->layout;
	bool in_turn = copies == 1 && all_alike(conf, capacity);
	uint64_t held = least_chunks(conf, copies, capacity), all, gap;

	if (in_turn)
		held = conf->self < l->chunks_nr
			       ? (l->chunks_nr - 1 - conf->self) / conf->nodes_nr + 1
			       : 0;
	all = held * l->chunk_elems;
	for (uint32_t r = 0, last; r < l->regions_nr; r++) {
		last = (r + 1 < l->regions_nr ? l->region[r + 1].chunk : l->chunks_nr) - 1;
		if (in_turn && last % conf->nodes_nr != conf->self)
			continue;
		gap = l->chunk_elems - layout_chunk_elems(l, last);
		all = all > gap ? all - gap : 0;
	}
	return all;
}

void budget_least(struct budget_need *need, const struct store_conf *conf, uint32_t copies,
		  const uint64_t *capacity, bool all_trained)
{
	struct store_sizes s = {.held_elems = 0};

	CHECK(conf->warm == NULL && conf->layout->chunks_nr > 0 && conf->nodes_nr > 0);
	CHECK(copies > 0 && copies <= conf->nodes_nr);
	s.held_elems = least_elems(conf, copies, capacity);
	/* Which chunks are away is not known yet, and those that are there may be short. */
	s.here_elems = s.held_elems * (100 - conf->away_share) / 100;
	if (conf->away_share > 0)
		s.here_elems -= s.here_elems < conf->layout->chunk_elems
					? s.here_elems
					: conf->layout->chunk_elems;
	s.trained_elems = all_trained ? s.here_elems : 0;
	need_of(need, s, conf, copies > 1);
	need->least = true;
}

static enum shard_status refuse(struct budget *b, const struct budget_need *need, const char *model,
				const char *node, struct err *e)
{
	static const struct {
		uint64_t bytes;
		const char *name;
	} units[] = {{1ull << 30, "GiB"}, {1ull << 20, "MiB"}, {1, "KiB"}};
	uint64_t left = b->used < b->total ? b->total - b->used : 0;
	char items[256] = "";
	size_t used = 0;
	uint32_t u = 0;
	struct err why;

	while (u < NR(units) - 1 && need->total < units[u].bytes)
		u++;
	double unit = u == NR(units) - 1 ? 1024.0 : (double)units[u].bytes;
	for (int i = 0; i < BUDGET_ITEMS; i++)
		used += (size_t)snprintf(items + used, sizeof(items) - used, "%s%s %.1f",
					 i ? ", " : "", budget_item_name((enum budget_item)i),
					 (double)need->bytes[i] / unit);
	if (need->stale > 0)
		snprintf(items + used, sizeof(items) - used, "; %.1f of it for max_staleness = 1",
			 (double)need->stale / unit);
	err_set(&why, SHARD_BUDGET,
		"\"%s\" needs %s%.1f %s on node %s (%s), %.1f of %.1f %s are free: raise [daemon] "
		"memory there; `shardctl plan` says what a model needs",
		model, need->least ? "at least " : "", (double)need->total / unit, units[u].name,
		node, items, (double)left / unit, (double)b->total / unit, units[u].name);
	b->refused_ns = clock_ns();
	snprintf(b->refused_why, sizeof(b->refused_why), "%s", why.text);
	return err_set(e, SHARD_BUDGET, "%s", why.text);
}

enum shard_status budget_reserve(struct budget *b, const struct budget_need *need,
				 const char *model, const char *node, struct err *e)
{
	if (b->used > b->total || need->total > b->total - b->used)
		return refuse(b, need, model, node, e);
	b->used += need->total;
	return SHARD_OK;
}

enum shard_status budget_room(const struct budget *b, uint64_t bytes, const char *model,
			      const char *node, struct err *e)
{
	uint64_t left = b->used < b->total ? b->total - b->used : 0;

	if (bytes <= left)
		return SHARD_OK;
	return err_set(e, SHARD_BUDGET,
		       "chunks that come to \"%s\" need %.1f MiB on node %s, %.1f of %.1f MiB are "
		       "free: raise [daemon] memory there",
		       model, (double)bytes / (1 << 20), node, (double)left / (1 << 20),
		       (double)b->total / (1 << 20));
}

void budget_more(struct budget *b, struct budget_need *need, const struct store_bytes *bytes)
{
	CHECK(bytes->parked <= bytes->all);
	for (int w = 0; w < STORE_REGIONS; w++)
		need->bytes[item_of[w]] += bytes->of[w];
	need->total += bytes->all;
	need->parked += bytes->parked;
	b->used += bytes->all;
	if (!need->leaving)
		return;
	b->leaving += bytes->all;
	b->leaving_parked += bytes->parked;
}

void budget_less(struct budget *b, struct budget_need *need, const struct store_bytes *bytes)
{
	CHECK(bytes->all <= need->total && bytes->parked <= need->parked && bytes->all <= b->used);
	for (int w = 0; w < STORE_REGIONS; w++) {
		CHECK(bytes->of[w] <= need->bytes[item_of[w]]);
		need->bytes[item_of[w]] -= bytes->of[w];
	}
	need->total -= bytes->all;
	need->parked -= bytes->parked;
	b->used -= bytes->all;
	if (!need->leaving)
		return;
	CHECK(bytes->all <= b->leaving && bytes->parked <= b->leaving_parked);
	b->leaving -= bytes->all;
	b->leaving_parked -= bytes->parked;
}

uint64_t budget_lend(struct budget *b, uint64_t bytes, uint64_t unit)
{
	uint64_t left = b->used < b->total ? b->total - b->used : 0,
		 lent = bytes < left / 2 ? bytes : left / 2;

	CHECK(unit > 0);
	lent -= lent % unit;
	b->used += lent;
	b->leaving += lent;
	return lent;
}

void budget_back(struct budget *b, uint64_t bytes)
{
	CHECK(b->used >= bytes && b->leaving >= bytes);
	b->used -= bytes;
	b->leaving -= bytes;
}

void budget_leave(struct budget *b, struct budget_need *need)
{
	CHECK(!need->leaving && b->used - b->leaving >= need->total);
	need->leaving = true;
	b->leaving += need->total;
	b->leaving_parked += need->parked;
}

bool budget_soon(const struct budget *b, const struct budget_need *need, uint64_t more)
{
	uint64_t stays = b->used - b->leaving - more;

	CHECK(b->leaving <= b->used && more <= b->used - b->leaving);
	return stays <= b->total && need->total <= b->total - stays;
}

void budget_release(struct budget *b, const struct budget_need *need)
{
	CHECK(b->used >= need->total);
	b->used -= need->total;
	if (!need->leaving)
		return;
	CHECK(b->leaving >= need->total && b->leaving_parked >= need->parked);
	b->leaving -= need->total;
	b->leaving_parked -= need->parked;
}

void budget_stay(struct budget *b, struct budget_need *need)
{
	if (!need->leaving)
		return;
	CHECK(b->leaving >= need->total && b->leaving_parked >= need->parked);
	b->leaving -= need->total;
	b->leaving_parked -= need->parked;
	need->leaving = false;
}

void budget_gpu(struct budget *b, uint64_t bytes)
{
	b->gpus += bytes;
	b->used += bytes;
}
