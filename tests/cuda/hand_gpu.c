// SPDX-License-Identifier: Apache-2.0
/* See hand_gpu.h. */
#include "cuda/hand_gpu.h"

#include "base/check.h"
#include "optim/reduce.h"
#include "optim/undo.h"
#include "store/away.h"
#include "store/store_missing.h"

#include <stdlib.h>
#include <string.h>

/* The middle one is frozen. */
static const struct shard_tensor tensors[] = {
	{.name = "a", .ndim = 1, .shape = {10 * CE - 100}},
	{.name = "b", .ndim = 1, .shape = {2 * CE + 17}, .flags = SHARD_FROZEN},
	{.name = "c", .ndim = 1, .shape = {9 * CE - 200}}};

struct gpu gpus[DEVICES]; /* The tier has no other way to them. */

enum shard_status gpu_submit(struct gpu *g, const struct gpu_job *job)
{
	assert_in_range(g->nr, 0, JOBS - 1);
	g->job[g->nr++] = *job;
	return SHARD_OK;
}

bool gpu_lost(const struct gpu *g, const char **why)
{
	*why = "CUDA_ERROR_ILLEGAL_ADDRESS";
	return g->lost;
}

uint32_t gpu_lanes(const struct gpu *g)
{
	(void)g;
	return 2;
}

/* Nobody here calls the rest of device.h. */
enum shard_status gpu_open(struct gpu **out, const struct gpu_conf *conf, uv_loop_t *loop,
			   struct err *e)
{
	(void)out, (void)conf, (void)loop, (void)e;
	abort();
}

enum shard_status gpu_count(uint32_t *nr, struct err *e)
{
	(void)nr, (void)e;
	abort();
}

void gpu_close(struct gpu **g, void (*closed)(void *arg), void *arg)
{
	(void)g, (void)closed, (void)arg;
	abort();
}

bool gpu_hangs(struct gpu *g)
{
	(void)g;
	abort();
}

void gpu_tell(const struct gpu *g, struct gpu_about *about)
{
	(void)g, (void)about;
	abort();
}

enum shard_status gpu_map(struct gpu *g, uint64_t bytes, bool exports, struct gpu_mem *m,
			  struct err *e)
{
	(void)g, (void)bytes, (void)exports, (void)m, (void)e;
	abort();
}

enum shard_status gpu_again(struct gpu *g, int fd, uint64_t bytes, struct gpu_mem *m, struct err *e)
{
	(void)g, (void)fd, (void)bytes, (void)m, (void)e;
	abort();
}

enum shard_status gpu_map_direct(struct gpu *g, uint64_t bytes, struct gpu_mem *m, struct err *e)
{
	(void)g, (void)bytes, (void)m, (void)e;
	abort();
}

enum shard_status gpu_direct(struct gpu *g, struct err *e)
{
	(void)g, (void)e;
	abort();
}

void gpu_unmap(struct gpu_mem *m)
{
	(void)m;
	abort();
}

enum shard_status gpu_pin(struct gpu *g, void *at, uint64_t bytes, struct err *e)
{
	(void)g, (void)at, (void)bytes, (void)e;
	abort();
}

bool gpu_unpin(struct gpu *g, void *at)
{
	(void)g, (void)at;
	abort();
}

static float *inside(struct gpu *g, uint64_t at, uint64_t bytes)
{
	if (at == 0)
		return NULL;
	assert_true(at >= (uintptr_t)g->memory && bytes <= g->bytes &&
		    at - (uintptr_t)g->memory <= g->bytes - bytes);
	return (float *)(uintptr_t)at;
}

static uint64_t update_run(struct gpu *g, const struct gpu_update *u)
{
	optim_apply *kernel = optim_kernel(u->optim, ISA_SCALAR, u->grad_dtype, u->image_dtype);
	uint64_t bytes = layout_chunk_elems(u->layout, u->chunk) * sizeof(float), kept = 0;
	const uint8_t *grad = u->grad_at ? (uint8_t *)inside(g, u->grad_at, bytes) : u->grad;
	float *to[3];

	for (int i = 0; i < 3; i++) {
		const float *from = inside(g, u->from[i], bytes);

		assert_int_equal(from != NULL, i <= (int)u->optim->states_nr);
		to[i] = inside(g, u->to[i], bytes);
		if (from == NULL)
			continue;
		assert_ptr_not_equal(from, to[i]);
		memcpy(to[i], from, bytes);
		if (u->keep[0] != NULL)
			memcpy(u->keep[i], from, bytes);
	}
	for (uint32_t s = u->layout->chunk_segment[u->chunk];
	     s < u->layout->chunk_segment[u->chunk + 1]; s++) {
		const struct segment *q = &u->layout->segment[s];

		if (!layout_frozen(u->layout, s))
			kept += kernel(&u->args[q->group], q->n,
				       u->zero[s] ? NULL : grad + q->start * sizeof(float),
				       to[0] + q->start, to[1] + q->start, to[2] + q->start,
				       u->image + q->start * sizeof(float));
		if (!layout_frozen(u->layout, s) && u->image_at != 0)
			memcpy(inside(g, u->image_at, bytes) + q->start,
			       u->image + q->start * sizeof(float), q->n * sizeof(float));
	}
	return kept;
}

void hand_copies(struct gpu *g, const struct gpu_job *job)
{
	for (uint32_t k = 0; k < job->copies_nr; k++) {
		float *at = inside(g, job->copy[k].device, job->copy[k].bytes);

		/* Others write there. */
		if (job->what == GPU_TO_HOST && job->copy[k].device >= g->direct)
			assert_true(job->written);
		if (job->what == GPU_TO_HOST)
			memcpy(job->copy[k].host, at, job->copy[k].bytes);
		else
			memcpy(at, job->copy[k].host, job->copy[k].bytes);
	}
}

static void add_run(struct gpu *g, struct gpu_add *a)
{
	const struct layout *l = a->layout;
	uint64_t bytes = layout_chunk_elems(l, a->chunk) * sizeof(float);

	for (uint32_t i = 0; i < a->up_nr; i++)
		memcpy(inside(g, a->up[i].device, a->up[i].bytes), a->up[i].host, a->up[i].bytes);
	a->sumsq = 0;
	a->finite = true;
	for (uint32_t s = l->chunk_segment[a->chunk]; s < l->chunk_segment[a->chunk + 1]; s++) {
		const struct segment *q = &l->segment[s];
		const void *from[GPU_OPERANDS_MAX];
		struct reduce_sum r;
		uint32_t k = 0;

		for (uint32_t i = 0; i < a->operands_nr; i++)
			if (!a->operand[i].absent[s])
				from[k++] = inside(g, a->operand[i].at, bytes) + q->start;
		if (k == 0 || layout_frozen(l, s))
			continue;
		r = reduce_kernel(ISA_SCALAR, a->dtype)(
			q->n, k, from, inside(g, a->to, bytes) + q->start, a->pre, true);
		a->sumsq += r.sq;
		a->finite = a->finite && r.finite;
	}
	if (a->finite)
		memcpy(a->copy, inside(g, a->to, bytes), bytes);
}

/* The i-th job under way is done, or fails. */
void hand_runs(struct gpu *g, uint32_t i)
{
	struct gpu_job job = g->job[i];
	enum shard_status st = g->lost ? SHARD_SYSTEM : SHARD_OK;
	uint64_t kept = 0;

	assert_in_range(i, 0, g->nr - 1);
	g->nr--;
	memmove(&g->job[i], &g->job[i + 1], (g->nr - i) * sizeof(job));
	if (!g->lost && job.what == GPU_ADD)
		add_run(g, job.add);
	else if (!g->lost && job.what != GPU_UPDATE)
		hand_copies(g, &job);
	if (!g->lost && job.what == GPU_UPDATE)
		kept = update_run(g, &job.update);
	if (!g->lost && job.after != NULL)
		job.after(job.owner, job.tag);
	job.done(job.owner, job.tag, st, kept);
}

/* --- the bench --- */

uint32_t bench_draw(struct bench *b, uint32_t of)
{
	b->seed = b->seed * 1664525 + 1013904223;
	return (b->seed >> 10) % of;
}

static void make_store(struct bench *b, uint32_t share)
{
	struct store_conf conf = {.name = "m",
				  .optim = optim_find("adamw"),
				  .grad = SHARD_F32,
				  .nodes_nr = b->nodes,
				  .local_world = 1,
				  .away_share = share,
				  .away_cache = TIER_GPU_BUFFERS,
				  .huge = SHM_HUGE_NO};
	uint32_t tiles = 0;
	struct err e;

	assert_int_equal(layout_init(&b->layout, tensors, 3, 1, SHARD_F32, CE, &e), SHARD_OK);
	assert_int_equal(b->layout->chunks_nr, CHUNKS);
	conf.layout = b->layout;
	conf.place = place_of(b->owner, NULL, CHUNKS);
	assert_int_equal(store_init(&b->store, &conf, &e), SHARD_OK);
	b->zero = calloc(b->layout->segments_nr, 1);
	b->tiles.first = calloc(CHUNKS, sizeof(uint32_t));
	for (uint32_t c = 0; c < CHUNKS; c++) {
		b->tiles.first[c] = tiles;
		tiles += tile_count(b->layout, c);
	}
	b->tiles.version = calloc(tiles, sizeof(uint64_t));
	b->tiles.undo = b->undo;
	b->tiles.used = b->used;
	b->tiles.undo_nr = 4;
	b->args = (struct optim_args){.mult = 1,
				      .decay = 0.99f,
				      .beta1 = 0.9f,
				      .one_minus_beta1 = 0.1f,
				      .beta2 = 0.99f,
				      .one_minus_beta2 = 0.01f,
				      .eps = 1e-8f,
				      .step_size = 0.01f,
				      .bc2_sqrt = 0.5f};
}

static void free_store(struct bench *b)
{
	store_free(&b->store);
	layout_free(&b->layout);
	free(b->zero);
	free(b->tiles.first);
	free((void *)b->tiles.version);
	free(b);
}

static void hold(void *arg)
{
	((struct bench *)arg)->held++;
}

static void release(void *arg)
{
	assert_true(((struct bench *)arg)->held > 0);
	((struct bench *)arg)->held--;
}

static void lost(void *arg, const char *why)
{
	struct bench *b = arg;

	b->lost++;
	snprintf(b->why, sizeof(b->why), "%s", why);
}

enum shard_status bench_open(struct bench *b, struct err *e)
{
	struct tier_conf conf = {.store = b->store,
				 .isa = ISA_SCALAR,
				 .exec = {&hand_row, &b->hand},
				 .tiles = &b->tiles};
	struct tier_gpu_conf gpu = {.direct = b->nodes > 1 ? b->direct : NULL,
				    .mem = b->mem,
				    .devices_nr = b->devices,
				    .hold = hold,
				    .release = release,
				    .lost = lost,
				    .arg = b};

	return tier_gpu_open(&b->tier, &conf, &gpu, e);
}

static struct bench *new_bench(uint32_t share, uint32_t devices, uint16_t nodes)
{
	struct bench *b = calloc(1, sizeof(*b));
	struct err e;

	assert_non_null(b);
	b->seed = 1;
	b->devices = devices;
	b->nodes = nodes;
	make_store(b, share);
	memset(gpus, 0, sizeof(gpus));
	for (uint32_t i = 0; i < devices; i++) {
		uint64_t bytes = tier_gpu_bytes(b->store, devices);
		uint64_t direct = tier_gpu_direct_bytes(b->store, devices, i);

		gpus[i].bytes = bytes + direct;
		gpus[i].memory = malloc(gpus[i].bytes);
		memset(gpus[i].memory, 0x5a, gpus[i].bytes);
		gpus[i].direct = (uintptr_t)gpus[i].memory + bytes;
		b->mem[i] = (struct gpu_mem){
			.gpu = &gpus[i], .at = (uintptr_t)gpus[i].memory, .bytes = bytes, .fd = -1};
		b->direct[i] = (struct gpu_mem){.gpu = &gpus[i],
						.at = (uintptr_t)gpus[i].memory + bytes,
						.bytes = direct,
						.fd = 100 + (int)i};
	}
	assert_int_equal(bench_open(b, &e), SHARD_OK);
	return b;
}

struct bench *bench_new(uint32_t share, uint32_t devices)
{
	return new_bench(share, devices, 1);
}

struct bench *bench_new_direct(uint32_t devices, uint16_t nodes)
{
	return new_bench(100, devices, nodes);
}

void bench_free(struct bench *b)
{
	tier_close(&b->tier);
	for (uint32_t i = 0; i < b->devices; i++)
		free(gpus[i].memory);
	free_store(b);
}

uint32_t bench_flying(const struct bench *b)
{
	uint32_t nr = 0;

	for (uint32_t i = 0; i < b->devices; i++)
		nr += gpus[i].nr;
	return nr;
}

void bench_something(struct bench *b) /* Happens. */
{
	uint32_t all = bench_flying(b), k;

	if (b->hand.nr > 0 && (all == 0 || bench_draw(b, 2) == 0)) {
		hand_run(&b->hand, bench_draw(b, b->hand.nr));
	} else if (all > 0) {
		do
			k = bench_draw(b, b->devices);
		while (gpus[k].nr == 0);
		hand_runs(&gpus[k], bench_draw(b, gpus[k].nr));
	}
}

void bench_quiet(struct bench *b)
{
	while (b->hand.nr > 0 || bench_flying(b) > 0)
		bench_something(b);
	assert_int_equal(b->held, 0);
}

void bench_pinned(struct tier_pin *p)
{
	(void)p;
}

void bench_pin(struct bench *b, struct tier_pin *p, uint32_t chunk, bool writes)
{
	*p = (struct tier_pin){.chunk = chunk, .writes = writes, .done = bench_pinned};
	(void)tier_pin(b->tier, p);
	while (p->at != TIER_PINNED) {
		assert_true(b->hand.nr > 0 || bench_flying(b) > 0);
		bench_something(b);
	}
}

float bench_weight(uint32_t i)
{
	return (float)(i % 97) * 0.125f - 6;
}

/* All of it, what lies between segments, too. */
void bench_fill_chunk(struct store *st, const struct layout *l, uint32_t c)
{
	store_clear_chunk(st, c);
	for (uint32_t i = 0; i < layout_chunk_elems(l, c); i++)
		store_master(st, c)[i] = bench_weight(c * CE + i);
	for (uint32_t k = 0; k < store_states(st, c); k++)
		memset(store_state(st, c, k), 0, layout_chunk_elems(l, c) * sizeof(float));
}

void bench_fill(struct bench *b)
{
	for (uint32_t c = 0; c < CHUNKS; c++) {
		struct tier_pin p;

		bench_pin(b, &p, c, true);
		bench_fill_chunk(b->store, b->layout, c);
		tier_unpin(b->tier, &p);
	}
}

/* --- updates --- */

void bench_applied(void *owner, uint64_t tag, const struct tier_result *r)
{
	struct bench *b = owner;

	assert_int_equal(r->kept, 0);
	b->done[tag]++;
}

struct tier_apply bench_update(struct bench *b, uint32_t c)
{
	return (struct tier_apply){.chunk = c,
				   .args = &b->args,
				   .zero = b->zero,
				   .stamp = b->stamp,
				   .grad = (const uint8_t *)(b->grad + c * CE)};
}

void bench_gradients(struct bench *b, uint32_t step)
{
	for (uint32_t i = 0; i < CHUNKS * CE; i++)
		b->grad[i] = (float)((i * 7 + step * 13) % 101) / 50.0f - 1;
	b->stamp = step;
	b->zero[1] = step % 3 == 0;
}

enum shard_status bench_apply(struct bench *b, uint32_t c)
{
	struct tier_call call = {.done = bench_applied, .owner = b, .tag = c};
	struct tier_apply a = bench_update(b, c);

	return b->tier->row->apply(b->tier, &a, &call);
}

/* The same in main memory. */
void bench_step_reference(struct bench *ref, uint32_t step)
{
	bench_gradients(ref, step);
	for (uint32_t c = 0; c < CHUNKS; c++) {
		struct tier_call call = {
			.done = bench_applied, .owner = ref, .tag = c, .here = true};
		struct tier_apply a = bench_update(ref, c);

		assert_int_equal(ref->tier->row->apply(ref->tier, &a, &call), SHARD_OK);
	}
}

struct bench *bench_reference(void)
{
	struct bench *ref = calloc(1, sizeof(*ref));
	struct tier_conf conf = {.isa = ISA_SCALAR};
	struct err e;

	assert_non_null(ref);
	ref->nodes = 1;
	make_store(ref, 0);
	conf.store = ref->store;
	conf.exec = (struct exec){&hand_row, &ref->hand};
	assert_int_equal(tier_ram_open(&ref->tier, &conf, &e), SHARD_OK);
	for (uint32_t c = 0; c < CHUNKS; c++)
		bench_fill_chunk(ref->store, ref->layout, c);
	return ref;
}

void bench_reference_free(struct bench *ref)
{
	tier_close(&ref->tier);
	free_store(ref);
}

static void same_chunk(struct bench *b, struct bench *ref, uint32_t c)
{
	size_t bytes = layout_chunk_elems(b->layout, c) * sizeof(float);

	assert_memory_equal(store_master(b->store, c), store_master(ref->store, c), bytes);
	for (uint32_t i = 0; i < store_states(b->store, c); i++)
		assert_memory_equal(store_state(b->store, c, i), store_state(ref->store, c, i),
				    bytes);
	for (uint32_t s = b->layout->chunk_segment[c]; s < b->layout->chunk_segment[c + 1]; s++) {
		const struct segment *q = &b->layout->segment[s];

		if (!layout_frozen(b->layout, s)) /* Nobody has sealed the reference. */
			assert_memory_equal((float *)store_image(b->store, 0, c) + q->start,
					    (float *)store_image(ref->store, 0, c) + q->start,
					    q->n * sizeof(float));
	}
}

void bench_same(struct bench *b, struct bench *ref)
{
	for (uint32_t c = 0; c < CHUNKS; c++) {
		struct tier_pin p;

		bench_pin(b, &p, c, false);
		same_chunk(b, ref, c);
		tier_unpin(b->tier, &p);
	}
}

/* Chunks that are done, of those that were handed out. */
uint32_t bench_done(const struct bench *b)
{
	uint32_t nr = 0;

	for (uint32_t c = 0; c < CHUNKS; c++) {
		assert_in_range(b->done[c], 0, 1);
		nr += b->done[c];
	}
	return nr;
}

/* A step, until so many chunks are done. pins: somebody reads chunks meanwhile. */
void bench_step_until(struct bench *b, uint32_t nr, uint32_t until, bool pins)
{
	struct tier_pin p[PINS] = {{.at = TIER_UNPINNED}};
	uint32_t next = 0, since = 0;

	bench_gradients(b, nr);
	memset(b->done, 0, sizeof(b->done));
	while (bench_done(b) < until) {
		uint32_t i = bench_draw(b, PINS);

		b->hand.full = b->often_full && bench_draw(b, 2) == 0;
		if (pins && bench_draw(b, 3) == 0) {
			if (p[i].at == TIER_UNPINNED) {
				p[i] = (struct tier_pin){.chunk = bench_draw(b, CHUNKS),
							 .writes = bench_draw(b, 4) == 0,
							 .done = bench_pinned};
				(void)tier_pin(b->tier, &p[i]);
			} else {
				tier_unpin(b->tier, &p[i]);
			}
		}
		if (next < CHUNKS && bench_draw(b, 3) == 0)
			next += bench_apply(b, next) == SHARD_OK;
		else
			bench_something(b);
		assert_in_range(since++, 0, 100000);
	}
	for (uint32_t i = 0; i < PINS; i++)
		tier_unpin(b->tier, &p[i]);
	b->hand.full = false;
}

void bench_step(struct bench *b, uint32_t nr)
{
	bench_step_until(b, nr, CHUNKS, false);
}

/* It ends with jobs under way, of devices and of threads: some were done, and nobody heard of it.
 * The memory stays, and that of the devices. */
static float *array_of(struct bench *b, uint32_t c, uint32_t i)
{
	return i == 0 ? store_master(b->store, c) : store_state(b->store, c, i - 1);
}

static bool in_memory(struct bench *b, uint32_t c)
{
	return !store_is_away(b->store, c) || store_away_here(b->store, c);
}

/* A thread dies in the middle of its job. If that is an update, a tile has a part of it, and the
 * tiles behind have nothing. The elements that it was about to store have any bits. */
static void dies(struct bench *b, struct exec_job *job)
{
	static float old[CHUNKS][3][CE];
	uint64_t versions[CHUNKS];
	uint32_t c, tiles, elems, tile, at, lanes;
	struct tile_undo *note = b->undo;

	for (c = 0; c < CHUNKS; c++) {
		versions[c] = atomic_load(&b->tiles.version[b->tiles.first[c]]);
		for (uint32_t i = 0; in_memory(b, c) && i <= store_states(b->store, c); i++)
			memcpy(old[c][i], array_of(b, c, i),
			       layout_chunk_elems(b->layout, c) * sizeof(float));
	}
	job->run(job->args);
	for (c = 0; c < CHUNKS; c++)
		if (versions[c] != b->stamp && in_memory(b, c) &&
		    atomic_load(&b->tiles.version[b->tiles.first[c]]) == b->stamp)
			break;
	if (c == CHUNKS || (tiles = tile_count(b->layout, c)) < 2)
		return;
	while (note->stamp != b->stamp || note->chunk != c) /* Its own. */
		note++;
	elems = layout_chunk_elems(b->layout, c);
	tile = 1 + bench_draw(b, tiles - 1);
	at = tile * TILE_ELEMS + bench_draw(b, 64) * UNDO_LANES;
	at = at < elems ? at : elems - 1;
	lanes = elems - at < UNDO_LANES ? elems - at : UNDO_LANES;
	for (uint32_t i = 0; i <= store_states(b->store, c); i++) {
		memcpy(array_of(b, c, i) + at, old[c][i] + at, (elems - at) * sizeof(float));
		memcpy(note->undo.place[0][i], old[c][i] + at, lanes * sizeof(float));
		memset(array_of(b, c, i) + at, 0x7a, lanes * sizeof(float));
	}
	for (uint32_t t = at / TILE_ELEMS; t < tiles; t++)
		atomic_store(&b->tiles.version[b->tiles.first[c] + t], versions[c]);
	undo_keep(&note->undo, at, 0, lanes);
}

void bench_ends(struct bench *b)
{
	static struct tier *dead[1024]; /* Their calls never end, so they are not closed. */
	static uint32_t dead_nr;
	struct err e;

	for (uint32_t i = 0; i < b->devices; i++)
		for (uint32_t k = 0; k < gpus[i].nr; k++)
			if (bench_draw(b, 2) == 0 && gpus[i].job[k].what == GPU_UPDATE)
				(void)update_run(&gpus[i], &gpus[i].job[k].update);
	for (uint32_t i = 0; i < b->devices; i++)
		gpus[i].nr = 0;
	for (uint32_t i = 0; i < b->hand.nr; i++)
		if (i + 1 == b->hand.nr)
			dies(b, &b->hand.job[i]);
		else if (bench_draw(b, 2) == 0)
			b->hand.job[i].run(b->hand.job[i].args);
	b->hand.nr = 0;
	b->held = 0;
	memset(b->used, 0, sizeof(b->used));
	for (uint32_t c = 0; c < CHUNKS; c++)
		if (store_is_away(b->store, c))
			store_away_lend(b->store, c, NULL);
	dead[dead_nr++] = b->tier;
	assert_int_equal(bench_open(b, &e), SHARD_OK);
	assert_ptr_not_equal(b->tier, dead[dead_nr - 1]);
}
