// SPDX-License-Identifier: Apache-2.0
/* Takes the power from a tier whose file outlives that, again and again. A disk of the test's own
 * keeps what was written in a cache of its own. A sync moves to the platter what was done before it
 * was asked for, and a loss of power leaves any of the other sectors, and of writes under way,
 * there or not. All memory is gone then. (After a kill it is not.) The next life finds the
 * superblock of the last step that was told as committed, or of the next one, with every chunk as
 * plain sums of whole numbers say. Also tests what damaged superblocks come to, and that a disk
 * which ignores syncs is found. NVME_LOSSES says how often (make nvme-power: 1000 times). */
#include "base/check.h"
#include "lib/powerlife.h"
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

enum { LIVES = 12 /* With one file. */ };

struct losses {
	struct power_ref ref;
	uint64_t told; /* The last step that was told as committed. */
	uint64_t told_all, ahead, steps;
	bool any; /* One was. */
};

/* A start after a loss of power, with what it finds checked. False: it is wrong. */
static bool again(struct losses *k, struct powerlife **l, struct super_found *f)
{
	uint8_t want[PL_PAYLOAD];
	struct err e;

	if (super_find(f, pd.platter, PL_ID, UINT64_MAX, &e) != SHARD_OK) {
		*l = NULL;
		return !k->any;
	}
	pl_payload(want, f->of.step);
	if ((k->any && f->of.step != k->told && f->of.step != k->told + 1) ||
	    memcmp(super_payload(f->at, f->of.cells_nr), want, PL_PAYLOAD) != 0)
		return false;
	pl_ref_to(&k->ref, f->of.step);
	k->ahead += k->any && f->of.step == k->told + 1;
	k->told = f->of.step;
	k->any = true;
	*l = pl_begin(f);
	return pl_wrong(*l, &k->ref) == 0;
}

/* False: what a life found was wrong. */
static bool live(struct losses *k)
{
	uint32_t until = 1 + pd_draw(pd_draw(3) == 0 ? 900 : 250);
	struct super_found f;
	struct powerlife *l;
	uint64_t nr;
	bool right = again(k, &l, &f);

	if (right && l == NULL) {
		pl_ref_to(&k->ref, 0);
		pl_ref_reset(&k->ref);
		l = pl_begin(&f);
		pl_fill(l, &k->ref);
		l->events = 0;
		k->told = 0;
		k->any = pl_commit(l, 0, until);
	} else if (l != NULL) {
		l->events = 0;
	}
	if (right && k->any)
		for (nr = k->told + 1; pl_step(l, nr, until); nr++) {
			if (!pd.lies && pd_draw(6) == 0)
				pl_restart(l);
			if (!pl_commit(l, nr, until))
				break;
			k->told = nr;
			k->steps++;
		}
	super_free(&f);
	pd_lose_power();
	if (l != NULL) {
		right = right && (l->lost == 0 || pd.lies);
		pl_end(l);
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
			pl_new_file();
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
	pl_new_file();
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
	struct power_ref *r = calloc(1, sizeof(*r));
	struct powerlife *l;

	assert_non_null(r);
	pd.seed = 5;
	pl_new_file();
	pl_ref_reset(r);
	l = pl_begin(&none);
	pl_fill(l, r);
	for (uint64_t nr = 0; nr <= 3; nr++) {
		assert_true(nr == 0 || pl_step(l, nr, UINT32_MAX));
		assert_true(pl_commit(l, nr, UINT32_MAX));
	}
	pd_flush(pd.cached_nr);
	pl_end(l);
	free(r);
}

static uint64_t found_to(uint64_t most)
{
	struct super_found f;
	struct err e;
	enum shard_status st = super_find(&f, pd.platter, PL_ID, most, &e);
	uint64_t nr = st == SHARD_OK ? f.of.step : UINT64_MAX;

	assert_true(st == SHARD_OK || st == SHARD_NOT_FOUND);
	super_free(&f);
	return nr;
}

static uint64_t found(void)
{
	return found_to(UINT64_MAX);
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
	assert_int_equal(super_find(&f, pd.platter, PL_ID, UINT64_MAX, &e), SHARD_OK);
	assert_int_equal(f.of.step, 3);
	head = super_head_at(&f.of);
	body = super_body_at(&f.of);
	used = PL_CHUNKS * sizeof(struct super_cell) + PL_PAYLOAD;
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

/* A start may only take an earlier step. A later one is over then, for good, but not before there
 * is the earlier one. */
static void up_to_a_step(void **state)
{
	struct super_found f;
	struct err e;

	(void)state;
	two();
	assert_int_equal(found_to(3), 3);
	assert_int_equal(found_to(1), UINT64_MAX);
	assert_int_equal(found(), 3);
	assert_int_equal(found_to(2), 2);
	assert_int_equal(found(), 2);
	two();
	assert_int_equal(super_find(&f, pd.platter, PL_ID, UINT64_MAX, &e), SHARD_OK);
	f.of.seq--;
	flip(super_body_at(&f.of));
	assert_int_equal(found_to(2), UINT64_MAX);
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
	assert_int_equal(super_find(&f, pd.platter, PL_ID, UINT64_MAX, &e), SHARD_OK);
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
	assert_int_equal(super_find(&f, fd, PL_ID, UINT64_MAX, &e), SHARD_SYSTEM);
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
	struct powerlife *l;
	struct err e;

	(void)state;
	for (int how = 0; how < 4; how++) {
		struct super_cell *cell;

		two();
		assert_int_equal(super_find(&f, pd.platter, PL_ID, UINT64_MAX, &e), SHARD_OK);
		cell = super_cells(f.at);
		if (how == 0)
			cell[3].word = cell[4].word;
		else if (how == 1)
			cell[3].chunk = PL_CHUNKS;
		else if (how == 2)
			cell[3].chunk = 4;
		else
			cell[3].word = 1000ull << 40 | 7;
		l = pl_without_tier();
		if (tier_nvme_recall(l->store, &f, &e) == SHARD_OK)
			assert_int_equal(pl_open_tier(l, &f, &e), SHARD_MISMATCH);
		assert_null(l->tier);
		pl_end(l);
		super_free(&f);
	}
}

/* --- weights that are lost, and disks that fail --- */

static void given_up(void *arg, bool whole)
{
	assert_false(whole);
	((struct powerlife *)arg)->committed = true;
}

static void committed(void *arg, bool whole)
{
	assert_true(whole);
	((struct powerlife *)arg)->committed = true;
}

/* A life that has applied step 4 after those two. */
static struct powerlife *fourth(tier_nvme_committed *done)
{
	struct super_found f;
	struct powerlife *l;
	struct err e;

	two();
	assert_int_equal(super_find(&f, pd.platter, PL_ID, UINT64_MAX, &e), SHARD_OK);
	l = pl_begin(&f);
	super_free(&f);
	assert_true(pl_step(l, 4, UINT32_MAX));
	l->committed = false;
	pl_payload(tier_nvme_payload(l->tier), 4);
	tier_nvme_commit(l->tier, 4, done, l);
	return l;
}

/* All chunks become void while the fourth step is being written. The next start finds `step`. */
static void given_up_then(struct powerlife *l, uint64_t step)
{
	for (uint32_t c = 0; c < PL_CHUNKS; c++)
		store_void_set(l->store, c);
	while (!l->committed)
		assert_true(pl_something(l));
	assert_int_equal(l->lost, 0);
	pd_flush(pd.cached_nr);
	assert_int_equal(found(), step);
	pl_end(l);
}

static void void_meanwhile(void **state)
{
	(void)state;
	for (uint32_t events = 0; events < 40; events++) {
		struct powerlife *l = fourth(given_up);

		/* Before the superblock is being written. */
		for (uint32_t i = 0, syncs = pd.syncs; i < events && pd.syncs == syncs; i++)
			if (l->hand.nr + pd.nr > 0 && !(pd.nr > 0 && pd.io[0].what == RING_SYNC))
				(void)pl_something(l);
		given_up_then(l, 3);
	}
}

/* While the superblock is being written. It counts then, but nobody is told of that step. */
static void void_late(void **state)
{
	struct powerlife *l = fourth(given_up);

	(void)state;
	for (uint32_t syncs = pd.syncs; pd.syncs == syncs;)
		assert_true(pl_something(l));
	given_up_then(l, 4);
}

static void syncs_that_fail(void **state)
{
	struct powerlife *l = fourth(committed);

	(void)state;
	while (pd.nr == 0 || pd.io[0].what != RING_SYNC)
		assert_true(pl_something(l));
	pd.lies = true; /* Says nothing of the loss. */
	pd.nr--;
	ring_moved(l->ring, pd.io[0].nr, -EIO);
	pd.lies = false;
	assert_int_equal(l->lost, 1);
	assert_false(l->committed);
	pl_end(l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(losses_of_power), cmocka_unit_test(a_disk_that_lies),
		cmocka_unit_test(flipped_bits),    cmocka_unit_test(other_slots),
		cmocka_unit_test(other_cells),     cmocka_unit_test(void_meanwhile),
		cmocka_unit_test(syncs_that_fail), cmocka_unit_test(reads_that_fail),
		cmocka_unit_test(void_late),       cmocka_unit_test(up_to_a_step),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
