// SPDX-License-Identifier: Apache-2.0
/* Takes the power from several nodes, each with a disk as in test_nvme_power: from all of them at
 * any I/O of any, from one while the others live on, and again while they find the step that all
 * disks have. A step is decided when the disk of each node has the one before, as votes have it,
 * and each node applies it at its own pace. Whatever is lost, the newest step of each disk is the
 * last that was decided or the one before, a node that is ahead finds the older one as well, and
 * all chunks of all nodes are as plain sums say. NVME_LOSSES says how often. */
#include "lib/powerlife.h"

#include "base/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { NODES = 3, LIVES = 8 /* Of the files. */ };
enum at { DECIDED, APPLYING, COMMITTING, VOTED };

struct node {
	struct powerdisk disk; /* While it is not the one in hand. */
	struct powerlife *life;
	enum at at;
	uint64_t disk_step; /* That it was told its disk has. */
};

static struct {
	struct node node[NODES], *now;
	struct power_ref ref;
	uint64_t decided;
	uint64_t steps, back, alone, twice;
} * k;

static void take(struct node *n) /* This one's disk is pd. */
{
	uint32_t seed = pd.seed;

	if (k->now != NULL)
		k->now->disk = pd;
	k->now = n;
	pd = n->disk;
	pd.seed = seed;
}

static uint32_t draw_node(void)
{
	return pd_draw(NODES);
}

/* What its disk has, up to that step. */
static uint64_t find(struct super_found *f, uint64_t most)
{
	uint8_t want[PL_PAYLOAD];
	struct err e;

	if (super_find(f, pd.platter, PL_ID, most, &e) != SHARD_OK)
		fail_msg("node %d: step %ld was decided: %s", (int)(k->now - k->node),
			 (long)k->decided, e.text);
	pl_payload(want, f->of.step);
	assert_memory_equal(super_payload(f->at, f->of.cells_nr), want, PL_PAYLOAD);
	return f->of.step;
}

static uint64_t newest(struct node *n)
{
	struct super_found f;
	uint64_t step;

	take(n);
	step = find(&f, UINT64_MAX);
	super_free(&f);
	if (step > k->decided || step + 1 < k->decided || step < n->disk_step)
		fail_msg("node %d has step %ld, was told %ld, and %ld was decided",
			 (int)(n - k->node), (long)step, (long)n->disk_step, (long)k->decided);
	return step;
}

/* It starts with what its disk has of that step, and no later one. */
static void begin(struct node *n, uint64_t step)
{
	struct super_found f;

	take(n);
	assert_int_equal(find(&f, step), step);
	n->life = pl_begin(&f);
	super_free(&f);
	n->at = VOTED;
	n->disk_step = step;
	pl_ref_to(&k->ref, step);
	assert_int_equal(pl_wrong(n->life, &k->ref), 0);
}

static void fresh(void)
{
	struct super_found none = {.at = NULL};

	k->decided = 0;
	pl_ref_reset(&k->ref);
	for (struct node *n = k->node; n < k->node + NODES; n++) {
		take(n);
		pl_new_file();
		n->life = pl_begin(&none);
		pl_fill(n->life, &k->ref);
		assert_true(pl_commit(n->life, 0, UINT32_MAX));
		n->at = VOTED;
		n->disk_step = 0;
	}
}

static void some(struct node *n) /* Something happens there. */
{
	struct powerlife *l = n->life;

	take(n);
	if (n->at == DECIDED) {
		pl_step_begin(l, k->decided);
		n->at = APPLYING;
	} else if (n->at == APPLYING) {
		pl_step_some(l);
		if (l->done < PL_CHUNKS)
			return;
		if (pd_draw(8) == 0)
			pl_restart(l);
		pl_commit_begin(l, k->decided);
		n->at = COMMITTING;
	} else if (n->at == COMMITTING) {
		assert_true(l->committed || pl_something(l));
	}
	if (n->at == COMMITTING && l->committed) {
		n->at = VOTED;
		n->disk_step = k->decided;
	}
	assert_int_equal(l->lost, 0);
}

/* Every node has voted for the next step. */
static void decide(void)
{
	for (uint32_t i = 0; i < NODES; i++)
		if (k->node[i].at != VOTED)
			return;
	k->decided++;
	k->steps++;
	for (uint32_t i = 0; i < NODES; i++)
		k->node[i].at = DECIDED;
}

static void lose(struct node *n)
{
	take(n);
	pd_lose_power();
	pl_end(n->life);
	n->life = NULL;
}

/* Those that come back have what their disks have, and those that live on what was decided. All
 * that are ahead of the oldest go back, and end for that. False: the power was lost again. */
static bool together(void)
{
	uint64_t least = k->decided;

	for (struct node *n = k->node; n < k->node + NODES; n++) {
		uint64_t has = n->life == NULL ? newest(n) : least;

		least = has < least ? has : least;
	}
	for (struct node *n = k->node; n < k->node + NODES; n++) {
		if (n->life != NULL && least == k->decided)
			continue;
		if (n->life != NULL) {
			take(n);
			pl_kill(n->life);
		}
		begin(n, least);
		if (pd_draw(12) > 0)
			continue;
		/* Some of them have gone back already. */
		for (struct node *m = k->node; m <= n; m++)
			lose(m);
		k->twice++;
		return false;
	}
	k->back += least < k->decided;
	k->decided = least;
	return true;
}

static void round_of(void)
{
	uint32_t alone = pd_draw(3), first = draw_node();

	for (uint32_t events = 1 + pd_draw(pd_draw(3) == 0 ? 2500 : 700); events > 0; events--) {
		some(&k->node[draw_node()]);
		decide();
	}
	for (uint32_t i = 0; i < NODES; i++)
		if (alone > 0 || i == first)
			lose(&k->node[i]);
	k->alone += alone == 0;
	while (!together())
		;
}

static void losses_of_power(void **state)
{
	const char *losses = getenv("NVME_LOSSES");
	uint32_t nr = losses != NULL ? (uint32_t)atoi(losses) : 100;

	(void)state;
	k = calloc(1, sizeof(*k));
	assert_non_null(k);
	for (uint32_t i = 0; i < nr; i++) {
		pd.seed = i + 1;
		for (uint32_t n = 0; i % LIVES == 0 && n < NODES; n++)
			if (k->node[n].life != NULL) {
				take(&k->node[n]);
				pl_end(k->node[n].life);
			}
		if (i % LIVES == 0)
			fresh();
		round_of();
	}
	for (uint32_t n = 0; n < NODES; n++) {
		take(&k->node[n]);
		pl_end(k->node[n].life);
	}
	print_message("%u losses of power of %d nodes, %lu of one alone, %lu while they came back, "
		      "%lu went back a step, %lu steps, 0 wrong chunks\n",
		      nr, NODES, (unsigned long)k->alone, (unsigned long)k->twice,
		      (unsigned long)k->back, (unsigned long)k->steps);
	assert_true(nr < 50 || (k->back > nr / 10 && k->alone > nr / 10 && k->steps > nr));
	free(k);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(losses_of_power),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
