// SPDX-License-Identifier: Apache-2.0
/* Takes the power from a tier whose file outlives that, again and again. A disk of the test's own
 * keeps what was written in a cache of its own. A sync moves to the platter what was done before it
 * was asked for, and a loss of power leaves any of the other sectors, and of writes under way,
 * there or not. All memory is gone then. (After a kill it is not.) The next life finds the
 * superblock of the last step that was told as committed, or of the next one, with every chunk as
 * plain sums of whole numbers say. Also tests what damaged superblocks come to, and that a disk
 * which ignores syncs is found. NVME_LOSSES says how often (make nvme-power: 1000 times). */
#include "base/check.h"
#include "lib/handexec.h"
#include "lib/powerdisk.h"
#include "store/away.h"
#include "store/ring_impl.h"
#include "store/store_impl.h"
#include "store/store_missing.h"
#include "store/tier_nvme.h"
#include "store/trailer.h"
#include "wire/xxh.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

enum {
	CE = 1024,
	CHUNKS = 9,
	SHORT = 100, /* So much the last chunk is shorter. */
	ID = 77,
	PAYLOAD = 5000,
	LIVES = 12, /* With one file. */
};

static const struct shard_tensor tensors[] = {
	{.name = "a", .ndim = 1, .shape = {CHUNKS * CE - SHORT}}};

/* --- what every chunk has to be: whole numbers, added up --- */

struct reference {
	uint64_t step;
	float weight[CHUNKS * CE], momentum[CHUNKS * CE];
};

static float gradient(uint32_t i, uint64_t step)
{
	return (float)((i * 7 + step * 13) % 5) - 2;
}

static void ref_reset(struct reference *r)
{
	r->step = 0;
	for (uint32_t i = 0; i < CHUNKS * CE; i++) {
		r->weight[i] = (float)(i % 97);
		r->momentum[i] = 0;
	}
}

static void ref_to(struct reference *r, uint64_t step)
{
	if (step < r->step)
		ref_reset(r);
	for (; r->step < step; r->step++)
		for (uint32_t i = 0; i < CHUNKS * CE; i++) {
			r->momentum[i] += gradient(i, r->step + 1);
			r->weight[i] -= r->momentum[i];
		}
}

/* --- one life --- */

struct life {
	struct layout *layout;
	uint16_t owner[CHUNKS];
	struct store *store;
	struct hand hand;
	struct tier *tier;
	struct ring *ring;
	uv_loop_t loop;
	uint8_t *super;
	struct optim_args args;
	uint8_t zero[CHUNKS];
	float grad[CHUNKS * CE];
	uint32_t done, held, lost, events;
	bool committed;
};

static void make_store(struct life *l, uint32_t cache)
{
	struct store_conf conf = {.name = "m",
				  .optim = optim_find("sgd"),
				  .grad = SHARD_F32,
				  .nodes_nr = 1,
				  .local_world = 1,
				  .away_share = 100,
				  .away_cache = cache,
				  .durable_bytes = PAYLOAD,
				  .huge = SHM_HUGE_NO};
	struct err e;

	assert_int_equal(layout_init(&l->layout, tensors, 1, 1, SHARD_F32, CE, &e), SHARD_OK);
	conf.layout = l->layout;
	conf.place = place_of(l->owner, NULL, CHUNKS);
	assert_int_equal(store_init(&l->store, &conf, &e), SHARD_OK);
	l->args = (struct optim_args){.mult = 1, .lr = 1, .beta1 = 1};
}

static void open_ring(struct life *l)
{
	uint32_t nr = store_away_buffers(l->store);
	struct iovec iov[CHUNKS + 1];
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
	((struct life *)arg)->held++;
}

static void release(void *arg)
{
	((struct life *)arg)->held--;
}

static void lost(void *arg, const char *why)
{
	((struct life *)arg)->lost++;
	if (!pd.lies)
		print_error("lost: %s\n", why);
}

static enum shard_status open_tier(struct life *l, const struct super_found *f, struct err *e)
{
	struct tier_conf conf = {
		.store = l->store, .isa = ISA_SCALAR, .exec = {&hand_row, &l->hand}};
	struct tier_nvme_conf nvme = {.ring = l->ring,
				      .id = ID,
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

static struct life *without_tier(void)
{
	struct life *l = calloc(1, sizeof(*l));

	assert_non_null(l);
	make_store(l, 4 + pd_draw(3) * 2 + pd_draw(2));
	assert_int_equal(uv_loop_init(&l->loop), 0);
	open_ring(l);
	return l;
}

static struct life *begin(const struct super_found *f)
{
	struct life *l = without_tier();
	struct err e;

	if (f->at != NULL)
		assert_int_equal(tier_nvme_recall(l->store, f, &e), SHARD_OK);
	assert_int_equal(open_tier(l, f, &e), SHARD_OK);
	return l;
}

static bool something(struct life *l) /* Happens. False: there is nothing. */
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
static void drain(struct life *l)
{
	int platter = pd.platter;
	off_t bytes = lseek(platter, 0, SEEK_END);
	uint8_t *copy = malloc((size_t)bytes);

	assert_non_null(copy);
	assert_int_equal(pread(platter, copy, (size_t)bytes, 0), bytes);
	pd.platter = memfd_create("copy", MFD_CLOEXEC);
	pd_put(0, copy, (uint32_t)bytes);
	free(copy);
	while (something(l))
		;
	pd_flush(pd.cached_nr);
	assert_int_equal(close(pd.platter), 0);
	pd.platter = platter;
}

/* Calls of a tier that has lost a chunk wait for ever. */
static struct tier *ruins[8];

static void end(struct life *l)
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
	((struct life *)owner)->done++;
}

static void committed(void *arg, bool whole)
{
	assert_true(whole);
	((struct life *)arg)->committed = true;
}

static void payload(uint8_t to[PAYLOAD], uint64_t step)
{
	for (uint32_t i = 0; i < PAYLOAD; i++)
		to[i] = (uint8_t)(i * 31 + step * 7);
}

/* False: the power is gone. */
static bool commit(struct life *l, uint64_t step, uint32_t until)
{
	l->committed = false;
	payload(tier_nvme_payload(l->tier), step);
	tier_nvme_commit(l->tier, step, committed, l);
	while (!l->committed && l->events < until && l->lost == 0)
		assert_true(something(l));
	return l->committed;
}

static bool step(struct life *l, uint64_t nr, uint32_t until)
{
	uint32_t next = 0;

	for (uint32_t i = 0; i < CHUNKS * CE; i++)
		l->grad[i] = gradient(i, nr);
	l->done = 0;
	tier_ahead(l->tier);
	while (l->done < CHUNKS && l->events < until && l->lost == 0) {
		struct tier_call call = {.done = applied, .owner = l};
		struct tier_apply a = {.chunk = next,
				       .args = &l->args,
				       .zero = l->zero,
				       .grad = (const uint8_t *)(l->grad + next * CE)};

		if (next < CHUNKS && pd_draw(3) == 0)
			next += l->tier->row->apply(l->tier, &a, &call) == SHARD_OK;
		else if (!something(l))
			assert_true(next < CHUNKS);
	}
	return l->done == CHUNKS;
}

static void pinned(struct tier_pin *p)
{
	(void)p;
}

static bool pin(struct life *l, struct tier_pin *p, uint32_t chunk, bool writes)
{
	*p = (struct tier_pin){.chunk = chunk, .writes = writes, .done = pinned};
	(void)tier_pin(l->tier, p);
	while (p->at != TIER_PINNED && l->lost == 0)
		assert_true(something(l));
	if (l->lost > 0)
		tier_unpin(l->tier, p);
	return l->lost == 0;
}

/* The elements of a chunk without those that only fill it up. */
static uint32_t real(uint32_t chunk)
{
	return chunk < CHUNKS - 1 ? CE : CE - SHORT;
}

/* The process is killed, and the next one has its memory, with some chunks that were not written.
 * What the disk has in hand comes to its end, and nobody hears of it. */
static void restart(struct life *l)
{
	struct super_found f;
	struct err e;

	for (uint32_t more = pd_draw(30); more > 0 && something(l); more--)
		;
	tier_stop(l->tier);
	while (l->hand.nr > 0)
		hand_run(&l->hand, 0);
	for (uint32_t i = 0; i < pd.nr; i++)
		if (pd.io[i].what == RING_WRITE)
			pd_keep(&pd.io[i], pd.io[i].bytes);
	pd_flush(pd.cached_nr);
	tier_close(&l->tier);
	uv_run(&l->loop, UV_RUN_DEFAULT);
	ring_close(&l->ring);
	free(l->super);
	open_ring(l);
	assert_int_equal(super_find(&f, pd.platter, ID, &e), SHARD_OK);
	assert_int_equal(open_tier(l, &f, &e), SHARD_OK);
	super_free(&f);
}

static void fill(struct life *l, const struct reference *r)
{
	for (uint32_t c = 0; c < CHUNKS; c++) {
		struct tier_pin p;

		assert_true(pin(l, &p, c, true));
		store_clear_chunk(l->store, c);
		memcpy(store_master(l->store, c), r->weight + c * CE, real(c) * sizeof(float));
		tier_unpin(l->tier, &p);
	}
}

/* How many chunks are not what the reference says. */
static uint32_t wrong(struct life *l, const struct reference *r)
{
	uint32_t nr = 0;

	for (uint32_t c = 0; c < CHUNKS; c++) {
		size_t bytes = real(c) * sizeof(float);
		struct tier_pin p;

		if (!pin(l, &p, c, false))
			return CHUNKS;
		nr += memcmp(store_master(l->store, c), r->weight + c * CE, bytes) != 0 ||
		      memcmp(store_state(l->store, c, 0), r->momentum + c * CE, bytes) != 0;
		tier_unpin(l->tier, &p);
	}
	return nr;
}

static uint64_t file_bytes(void)
{
	struct life l = {.layout = NULL};
	uint64_t bytes;

	make_store(&l, 4);
	bytes = tier_nvme_bytes(l.store);
	store_free(&l.store);
	layout_free(&l.layout);
	return bytes;
}

static void new_file(void)
{
	if (pd.platter > 0)
		assert_int_equal(close(pd.platter), 0);
	pd.platter = memfd_create("platter", MFD_CLOEXEC);
	assert_true(pd.platter > 0);
	assert_int_equal(ftruncate(pd.platter, (off_t)file_bytes()), 0);
}

struct losses {
	struct reference ref;
	uint64_t told; /* The last step that was told as committed. */
	uint64_t told_all, ahead, steps;
	bool any; /* One was. */
};

/* A start after a loss of power, with what it finds checked. False: it is wrong. */
static bool again(struct losses *k, struct life **l, struct super_found *f)
{
	uint8_t want[PAYLOAD];
	struct err e;

	if (super_find(f, pd.platter, ID, &e) != SHARD_OK) {
		*l = NULL;
		return !k->any;
	}
	payload(want, f->of.step);
	if ((k->any && f->of.step != k->told && f->of.step != k->told + 1) ||
	    memcmp(super_payload(f->at, f->of.cells_nr), want, PAYLOAD) != 0)
		return false;
	ref_to(&k->ref, f->of.step);
	k->ahead += k->any && f->of.step == k->told + 1;
	k->told = f->of.step;
	k->any = true;
	*l = begin(f);
	return wrong(*l, &k->ref) == 0;
}

/* False: what a life found was wrong. */
static bool live(struct losses *k)
{
	uint32_t until = 1 + pd_draw(pd_draw(3) == 0 ? 900 : 250);
	struct super_found f;
	struct life *l;
	uint64_t nr;
	bool right = again(k, &l, &f);

	if (right && l == NULL) {
		ref_to(&k->ref, 0);
		ref_reset(&k->ref);
		l = begin(&f);
		fill(l, &k->ref);
		l->events = 0;
		k->told = 0;
		k->any = commit(l, 0, until);
	} else if (l != NULL) {
		l->events = 0;
	}
	if (right && k->any)
		for (nr = k->told + 1; step(l, nr, until); nr++) {
			if (!pd.lies && pd_draw(6) == 0)
				restart(l);
			if (!commit(l, nr, until))
				break;
			k->told = nr;
			k->steps++;
		}
	super_free(&f);
	pd_lose_power();
	if (l != NULL) {
		right = right && (l->lost == 0 || pd.lies);
		end(l);
	}
	return right;
}

static uint32_t rounds(void)
{
	const char *nr = getenv("NVME_LOSSES");

	return nr != NULL ? (uint32_t)atoi(nr) : 300;
}

static void losses_of_power(void **state)
{
	struct losses *k = calloc(1, sizeof(*k));
	uint32_t nr = rounds();

	(void)state;
	assert_non_null(k);
	pd.lies = false;
	for (uint32_t i = 0; i < nr; i++) {
		if (i % LIVES == 0) {
			new_file();
			k->any = false;
		}
		pd.seed = i + 1;
		if (!live(k))
			fail_msg("round %u: it is not what was committed", i);
	}
	print_message("%u losses of power, %lu steps committed, %lu found one step later than "
		      "told, %u syncs, 0 wrong chunks\n",
		      nr, (unsigned long)k->steps, (unsigned long)k->ahead, pd.syncs);
	assert_true(k->steps > nr / 2 && (nr < 1000 || k->ahead > 0));
	free(k);
}

/* Without syncs the same disk loses steps: what the test looks for can be seen. */
static void a_disk_that_lies(void **state)
{
	struct losses *k = calloc(1, sizeof(*k));
	uint32_t i = 0;

	(void)state;
	assert_non_null(k);
	pd.lies = true;
	new_file();
	for (bool right = true; right; i++) {
		assert_in_range(i, 0, 200);
		pd.seed = i + 1;
		right = live(k);
	}
	pd.lies = false;
	free(k);
}

/* --- forged superblocks --- */

/* A file with two superblocks, of steps 2 and 3. */
static void two(void)
{
	struct super_found none = {.at = NULL};
	struct reference *r = calloc(1, sizeof(*r));
	struct life *l;

	assert_non_null(r);
	pd.seed = 5;
	new_file();
	ref_reset(r);
	l = begin(&none);
	fill(l, r);
	for (uint64_t nr = 0; nr <= 3; nr++) {
		assert_true(nr == 0 || step(l, nr, UINT32_MAX));
		assert_true(commit(l, nr, UINT32_MAX));
	}
	pd_flush(pd.cached_nr);
	end(l);
	free(r);
}

static uint64_t found(void)
{
	struct super_found f;
	struct err e;
	enum shard_status st = super_find(&f, pd.platter, ID, &e);
	uint64_t nr = st == SHARD_OK ? f.of.step : UINT64_MAX;

	assert_true(st == SHARD_OK || st == SHARD_NOT_FOUND);
	super_free(&f);
	return nr;
}

static void flip(uint64_t at)
{
	uint8_t b;

	assert_int_equal(pread(pd.platter, &b, 1, (off_t)at), 1);
	b ^= 16;
	pd_put(at, &b, 1);
}

/* Any byte of head or body that is another one leaves the superblock before. */
static void flipped_bits(void **state)
{
	struct super_found f;
	struct err e;
	uint64_t head, body, used;

	(void)state;
	two();
	assert_int_equal(super_find(&f, pd.platter, ID, &e), SHARD_OK);
	assert_int_equal(f.of.step, 3);
	head = super_head_at(&f.of);
	body = super_body_at(&f.of);
	used = CHUNKS * sizeof(struct super_cell) + PAYLOAD;
	for (uint32_t i = 0; i < 80; i++) {
		flip(head + i);
		assert_int_equal(found(), 2);
		flip(head + i);
	}
	for (uint64_t i = 0; i < used; i += 37) {
		flip(body + i);
		assert_int_equal(found(), 2);
		flip(body + i);
	}
	assert_int_equal(found(), 3);
	super_free(&f);
}

/* A superblock with right sums whose slots have something else. */
static void other_slots(void **state)
{
	struct super_found f;
	struct err e;
	uint64_t slot, trailer;

	(void)state;
	two();
	assert_int_equal(super_find(&f, pd.platter, ID, &e), SHARD_OK);
	slot = (super_cells(f.at)[4].word >> 40) - 1;
	trailer = super_area(f.of.room) + slot * f.of.slot_bytes +
		  (uint64_t)super_cells(f.at)[4].blocks * SUPER_BLOCK;
	flip(trailer + 20);
	assert_int_equal(found(), 2);
	flip(trailer + 20);
	assert_int_equal(ftruncate(pd.platter, (off_t)trailer), 0);
	assert_true(found() == 2 || found() == UINT64_MAX);
	super_free(&f);
}

/* Nobody knows what is in a file that cannot be read, so that is no file without superblocks. */
static void reads_that_fail(void **state)
{
	struct super_found f;
	struct err e;
	char path[64];
	int fd;

	(void)state;
	two();
	snprintf(path, sizeof(path), "/proc/self/fd/%d", pd.platter);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(super_find(&f, fd, ID, &e), SHARD_SYSTEM);
	assert_non_null(strstr(e.text, strerror(EBADF)));
	assert_null(f.at);
	assert_int_equal(close(fd), 0);
	assert_int_equal(ftruncate(pd.platter, 4096), 0);
	assert_int_equal(found(), UINT64_MAX);
}

/* Cells that name slots twice, or chunks that are not there. */
static void other_cells(void **state)
{
	struct super_found f;
	struct life *l;
	struct err e;

	(void)state;
	for (int how = 0; how < 4; how++) {
		struct super_cell *cell;

		two();
		assert_int_equal(super_find(&f, pd.platter, ID, &e), SHARD_OK);
		cell = super_cells(f.at);
		if (how == 0)
			cell[3].word = cell[4].word;
		else if (how == 1)
			cell[3].chunk = CHUNKS;
		else if (how == 2)
			cell[3].chunk = 4;
		else
			cell[3].word = 1000ull << 40 | 7;
		l = without_tier();
		if (tier_nvme_recall(l->store, &f, &e) == SHARD_OK)
			assert_int_equal(open_tier(l, &f, &e), SHARD_MISMATCH);
		assert_null(l->tier);
		end(l);
		super_free(&f);
	}
}

/* --- weights that are lost, and disks that fail --- */

static void given_up(void *arg, bool whole)
{
	assert_false(whole);
	((struct life *)arg)->committed = true;
}

/* A life that has applied step 4 after those two. */
static struct life *fourth(tier_nvme_committed *done)
{
	struct super_found f;
	struct life *l;
	struct err e;

	two();
	assert_int_equal(super_find(&f, pd.platter, ID, &e), SHARD_OK);
	l = begin(&f);
	super_free(&f);
	assert_true(step(l, 4, UINT32_MAX));
	l->committed = false;
	payload(tier_nvme_payload(l->tier), 4);
	tier_nvme_commit(l->tier, 4, done, l);
	return l;
}

/* All chunks become void while the fourth step is being written. The next start finds `step`. */
static void given_up_then(struct life *l, uint64_t step)
{
	for (uint32_t c = 0; c < CHUNKS; c++)
		store_void_set(l->store, c);
	while (!l->committed)
		assert_true(something(l));
	assert_int_equal(l->lost, 0);
	pd_flush(pd.cached_nr);
	assert_int_equal(found(), step);
	end(l);
}

static void void_meanwhile(void **state)
{
	(void)state;
	for (uint32_t events = 0; events < 40; events++) {
		struct life *l = fourth(given_up);

		/* Before the superblock is being written. */
		for (uint32_t i = 0, syncs = pd.syncs; i < events && pd.syncs == syncs; i++)
			if (l->hand.nr + pd.nr > 0 && !(pd.nr > 0 && pd.io[0].what == RING_SYNC))
				(void)something(l);
		given_up_then(l, 3);
	}
}

/* While the superblock is being written. It counts then, but nobody is told of that step. */
static void void_late(void **state)
{
	struct life *l = fourth(given_up);

	(void)state;
	for (uint32_t syncs = pd.syncs; pd.syncs == syncs;)
		assert_true(something(l));
	given_up_then(l, 4);
}

static void syncs_that_fail(void **state)
{
	struct life *l = fourth(committed);

	(void)state;
	while (pd.nr == 0 || pd.io[0].what != RING_SYNC)
		assert_true(something(l));
	pd.lies = true; /* Says nothing of the loss. */
	pd.nr--;
	ring_moved(l->ring, pd.io[0].nr, -EIO);
	pd.lies = false;
	assert_int_equal(l->lost, 1);
	assert_false(l->committed);
	end(l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(losses_of_power), cmocka_unit_test(a_disk_that_lies),
		cmocka_unit_test(flipped_bits),    cmocka_unit_test(other_slots),
		cmocka_unit_test(other_cells),     cmocka_unit_test(void_meanwhile),
		cmocka_unit_test(syncs_that_fail), cmocka_unit_test(reads_that_fail),
		cmocka_unit_test(void_late),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
