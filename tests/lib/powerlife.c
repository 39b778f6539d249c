/* SPDX-License-Identifier: Apache-2.0 */
/* One life of a tier over the disk of powerdisk.h, from a start to a loss of power or a kill. Tests
 * begin it with what super_find() has found, apply and commit steps, and say after each event what
 * happens next. Jobs of workers are carried out by hand, so that nothing depends on time. */
#include "lib/powerlife.h"

#include "store/away.h"
#include "store/store_impl.h"
#include "store/store_missing.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

static const struct shard_tensor tensors[] = {
	{.name = "a", .ndim = 1, .shape = {PL_CHUNKS * PL_CE - PL_SHORT}}};

/* --- what every chunk has to be: whole numbers, added up --- */

static float gradient(uint32_t i, uint64_t step)
{
	return (float)((i * 7 + step * 13) % 5) - 2;
}

void pl_ref_reset(struct power_ref *r)
{
	r->step = 0;
	for (uint32_t i = 0; i < PL_CHUNKS * PL_CE; i++) {
		r->weight[i] = (float)(i % 97);
		r->momentum[i] = 0;
	}
}

void pl_ref_to(struct power_ref *r, uint64_t step)
{
	if (step < r->step)
		pl_ref_reset(r);
	for (; r->step < step; r->step++)
		for (uint32_t i = 0; i < PL_CHUNKS * PL_CE; i++) {
			r->momentum[i] += gradient(i, r->step + 1);
			r->weight[i] -= r->momentum[i];
		}
}

/* --- one life --- */

static void make_store(struct powerlife *l, uint32_t cache)
{
	struct store_conf conf = {.name = "m",
				  .optim = optim_find("sgd"),
				  .grad = SHARD_F32,
				  .nodes_nr = 1,
				  .local_world = 1,
				  .away_share = 100,
				  .away_cache = cache,
				  .durable_bytes = PL_PAYLOAD,
				  .huge = SHM_HUGE_NO};
	struct err e;

	assert_int_equal(layout_init(&l->layout, tensors, 1, 1, SHARD_F32, PL_CE, &e), SHARD_OK);
	conf.layout = l->layout;
	conf.place = place_of(l->owner, NULL, PL_CHUNKS);
	assert_int_equal(store_init(&l->store, &conf, &e), SHARD_OK);
	l->args = (struct optim_args){.mult = 1, .lr = 1, .beta1 = 1};
}

static void open_ring(struct powerlife *l)
{
	uint32_t nr = store_away_buffers(l->store);
	struct iovec iov[PL_CHUNKS + 1];
	struct ring_conf conf = {.fd = open("/dev/null", O_RDWR),
				 .buffer = iov,
				 .buffers_nr = nr + 1,
				 .entries = nr + TIER_NVME_REQUESTS};
	struct err e;

	for (uint32_t i = 0; i < nr; i++)
		iov[i] = (struct iovec){store_away_buffer(l->store, i), store_away_slot(l->store)};
	l->super = aligned_alloc(4096, tier_nvme_super_bytes(l->store));
	assert_non_null(l->super);
	iov[nr] = (struct iovec){l->super, tier_nvme_super_bytes(l->store)};
	assert_int_equal(ring_open_row(&l->ring, &pd_row, &conf, &e), SHARD_OK);
	assert_int_equal(ring_start(l->ring, &l->loop, &e), SHARD_OK);
}

static void hold(void *arg)
{
	((struct powerlife *)arg)->held++;
}

static void release(void *arg)
{
	((struct powerlife *)arg)->held--;
}

static void lost(void *arg, const char *why)
{
	((struct powerlife *)arg)->lost++;
	if (!pd.lies)
		print_error("lost: %s\n", why);
}

enum shard_status pl_open_tier(struct powerlife *l, const struct super_found *f, struct err *e)
{
	struct tier_conf conf = {
		.store = l->store, .isa = ISA_SCALAR, .exec = {&hand_row, &l->hand}};
	struct tier_nvme_conf nvme = {.ring = l->ring,
				      .id = PL_ID,
				      .hold = hold,
				      .release = release,
				      .lost = lost,
				      .arg = l,
				      .super = {.at = l->super}};

	if (f->at != NULL) {
		nvme.super.seq = f->of.seq;
		nvme.super.cell = super_cells(f->at);
		nvme.super.cells_nr = f->of.cells_nr;
	}
	return tier_nvme_open(&l->tier, &conf, &nvme, e);
}

struct powerlife *pl_without_tier(void)
{
	struct powerlife *l = calloc(1, sizeof(*l));

	assert_non_null(l);
	make_store(l, 4 + pd_draw(3) * 2 + pd_draw(2));
	assert_int_equal(uv_loop_init(&l->loop), 0);
	open_ring(l);
	return l;
}

struct powerlife *pl_begin(const struct super_found *f)
{
	struct powerlife *l = pl_without_tier();
	struct err e;

	if (f->at != NULL)
		assert_int_equal(tier_nvme_recall(l->store, f, &e), SHARD_OK);
	assert_int_equal(pl_open_tier(l, f, &e), SHARD_OK);
	return l;
}

bool pl_something(struct powerlife *l) /* Happens. False: there is nothing. */
{
	l->events++;
	if (l->hand.nr > 0 && (pd.nr == 0 || pd_draw(2) == 0))
		hand_run(&l->hand, pd_draw(l->hand.nr));
	else if (pd.nr > 0)
		pd_moves(l->ring, pd_draw(pd.nr));
	else
		return false;
	return true;
}

/* What is in hand comes to its end, on a copy of the platter that nobody looks at. */
static void drain(struct powerlife *l)
{
	int platter = pd.platter;
	off_t bytes = lseek(platter, 0, SEEK_END);
	uint8_t *copy = malloc((size_t)bytes);

	assert_non_null(copy);
	assert_int_equal(pread(platter, copy, (size_t)bytes, 0), bytes);
	pd.platter = memfd_create("copy", MFD_CLOEXEC);
	pd_put(0, copy, (uint32_t)bytes);
	free(copy);
	while (pl_something(l))
		;
	pd_flush(pd.cached_nr);
	assert_int_equal(close(pd.platter), 0);
	pd.platter = platter;
}

/* Calls of a tier that has lost a chunk wait for ever. */
static struct tier *ruins[8];

void pl_end(struct powerlife *l)
{
	uint32_t i = 0;

	drain(l);
	assert_int_equal(l->held, 0);
	if (l->lost == 0) {
		tier_close(&l->tier);
	} else {
		tier_stop(l->tier);
		while (ruins[i] != NULL)
			i++;
		ruins[i] = l->tier;
	}
	ring_stop(l->ring);
	uv_run(&l->loop, UV_RUN_DEFAULT);
	assert_int_equal(uv_loop_close(&l->loop), 0);
	ring_close(&l->ring);
	free(l->super);
	store_free(&l->store);
	layout_free(&l->layout);
	free(l);
}

static void applied(void *owner, uint64_t tag, const struct tier_result *r)
{
	(void)tag;
	(void)r;
	((struct powerlife *)owner)->done++;
}

static void committed(void *arg, bool whole)
{
	assert_true(whole);
	((struct powerlife *)arg)->committed = true;
}

void pl_payload(uint8_t to[PL_PAYLOAD], uint64_t step)
{
	for (uint32_t i = 0; i < PL_PAYLOAD; i++)
		to[i] = (uint8_t)(i * 31 + step * 7);
}

void pl_commit_begin(struct powerlife *l, uint64_t step)
{
	l->committed = false;
	pl_payload(tier_nvme_payload(l->tier), step);
	tier_nvme_commit(l->tier, step, committed, l);
}

bool pl_commit(struct powerlife *l, uint64_t step, uint32_t until)
{
	pl_commit_begin(l, step);
	while (!l->committed && l->events < until && l->lost == 0)
		assert_true(pl_something(l));
	return l->committed;
}

void pl_step_begin(struct powerlife *l, uint64_t nr)
{
	for (uint32_t i = 0; i < PL_CHUNKS * PL_CE; i++)
		l->grad[i] = gradient(i, nr);
	l->next = l->done = 0;
	tier_ahead(l->tier);
}

void pl_step_some(struct powerlife *l)
{
	struct tier_call call = {.done = applied, .owner = l};
	struct tier_apply a = {.chunk = l->next, .args = &l->args, .zero = l->zero};

	if (l->next < PL_CHUNKS && pd_draw(3) == 0) {
		a.grad = (const uint8_t *)(l->grad + l->next * PL_CE);
		l->next += l->tier->row->apply(l->tier, &a, &call) == SHARD_OK;
	} else if (!pl_something(l)) {
		assert_true(l->next < PL_CHUNKS);
	}
}

bool pl_step(struct powerlife *l, uint64_t nr, uint32_t until)
{
	pl_step_begin(l, nr);
	while (l->done < PL_CHUNKS && l->events < until && l->lost == 0)
		pl_step_some(l);
	return l->done == PL_CHUNKS;
}

static void pinned(struct tier_pin *p)
{
	(void)p;
}

static bool pin(struct powerlife *l, struct tier_pin *p, uint32_t chunk, bool writes)
{
	*p = (struct tier_pin){.chunk = chunk, .writes = writes, .done = pinned};
	(void)tier_pin(l->tier, p);
	while (p->at != TIER_PINNED && l->lost == 0)
		assert_true(pl_something(l));
	if (l->lost > 0)
		tier_unpin(l->tier, p);
	return l->lost == 0;
}

/* The elements of a chunk without those that only fill it up. */
static uint32_t real(uint32_t chunk)
{
	return chunk < PL_CHUNKS - 1 ? PL_CE : PL_CE - PL_SHORT;
}

/* What the disk has in hand comes to its end. */
static void all_there(void)
{
	for (uint32_t i = 0; i < pd.nr; i++)
		if (pd.io[i].what == RING_WRITE)
			pd_keep(&pd.io[i], pd.io[i].bytes);
	pd_flush(pd.cached_nr);
}

void pl_kill(struct powerlife *l)
{
	all_there();
	pl_end(l);
}

void pl_restart(struct powerlife *l)
{
	struct super_found f;
	struct err e;

	for (uint32_t more = pd_draw(30); more > 0 && pl_something(l); more--)
		;
	tier_stop(l->tier);
	while (l->hand.nr > 0)
		hand_run(&l->hand, 0);
	all_there();
	tier_close(&l->tier);
	uv_run(&l->loop, UV_RUN_DEFAULT);
	ring_close(&l->ring);
	free(l->super);
	open_ring(l);
	assert_int_equal(super_find(&f, pd.platter, PL_ID, UINT64_MAX, &e), SHARD_OK);
	assert_int_equal(pl_open_tier(l, &f, &e), SHARD_OK);
	super_free(&f);
}

void pl_fill(struct powerlife *l, const struct power_ref *r)
{
	for (uint32_t c = 0; c < PL_CHUNKS; c++) {
		struct tier_pin p;

		assert_true(pin(l, &p, c, true));
		store_clear_chunk(l->store, c);
		memcpy(store_master(l->store, c), r->weight + c * PL_CE, real(c) * sizeof(float));
		tier_unpin(l->tier, &p);
	}
}

uint32_t pl_wrong(struct powerlife *l, const struct power_ref *r)
{
	uint32_t nr = 0;

	for (uint32_t c = 0; c < PL_CHUNKS; c++) {
		size_t bytes = real(c) * sizeof(float);
		struct tier_pin p;

		if (!pin(l, &p, c, false))
			return PL_CHUNKS;
		nr += memcmp(store_master(l->store, c), r->weight + c * PL_CE, bytes) != 0 ||
		      memcmp(store_state(l->store, c, 0), r->momentum + c * PL_CE, bytes) != 0;
		tier_unpin(l->tier, &p);
	}
	return nr;
}

static uint64_t file_bytes(void)
{
	struct powerlife l = {.layout = NULL};
	uint64_t bytes;

	make_store(&l, 4);
	bytes = tier_nvme_bytes(l.store);
	store_free(&l.store);
	layout_free(&l.layout);
	return bytes;
}

void pl_new_file(void)
{
	if (pd.platter > 0)
		assert_int_equal(close(pd.platter), 0);
	pd.platter = memfd_create("platter", MFD_CLOEXEC);
	assert_true(pd.platter > 0);
	assert_int_equal(ftruncate(pd.platter, (off_t)file_bytes()), 0);
}
