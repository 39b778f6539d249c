// SPDX-License-Identifier: Apache-2.0
/* Tests direct slots and sums of the tier on devices, with devices and threads that the test moves
 * by hand. What other nodes wrote into the memory of devices, and what came to the host, has the
 * sum, the norm and the blame that it has in main memory, and an update takes it from the device. A
 * process that ends between the two loses nothing. Nothing is written beyond the slots for a node
 * that has joined. Sums beyond what the tier takes wait. A device that fails loses the chunks, says
 * so once, and no sum comes of it. */
#include "base/check.h"
#include "cuda/hand_gpu.h"
#include "store/away.h"
#include "store/room.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NODES = 3 };

/* The contributions of all nodes to one chunk, in an order of their own, and its sum. */
struct sums {
	struct bench *b, *ref;
	float at[NODES][CHUNKS * CE], to[CHUNKS * CE], want[CHUNKS * CE];
	uint8_t *absent[NODES];
	uint32_t sources; /* The nodes that contribute: so many, in that order. */
	struct tier_result got[CHUNKS], expected[CHUNKS];
	uint32_t came[CHUNKS];
};

static const uint16_t order[NODES] = {1, 0, 2};

/* nodes: those that the direct slots are made for. */
static void sums_begin_for(struct sums *s, uint32_t devices, uint16_t nodes)
{
	memset(s, 0, sizeof(*s));
	s->sources = nodes;
	s->b = bench_new_direct(devices, nodes);
	s->ref = bench_reference();
	bench_fill(s->b);
	bench_quiet(s->b);
	for (uint32_t k = 0; k < NODES; k++)
		s->absent[k] = calloc(s->b->layout->segments_nr, 1);
}

static void sums_begin(struct sums *s, uint32_t devices)
{
	sums_begin_for(s, devices, NODES);
}

static void sums_end(struct sums *s)
{
	for (uint32_t k = 0; k < NODES; k++)
		free(s->absent[k]);
	bench_reference_free(s->ref);
	bench_free(s->b);
}

static void draw(struct sums *s, uint32_t step)
{
	for (uint32_t k = 0; k < NODES; k++)
		for (uint32_t i = 0; i < CHUNKS * CE; i++)
			s->at[k][i] = (float)((i * (7 + k) + step * 13) % 101) / 51.0f - 1;
	for (uint32_t k = 0; k < NODES; k++)
		for (uint32_t g = 0; g < s->b->layout->segments_nr; g++)
			s->absent[k][g] = k == 2 && (g + step) % 5 == 0;
	memset(s->came, 0, sizeof(s->came));
	memset(s->got, 0, sizeof(s->got));
}

static void came(void *owner, uint64_t tag, const struct tier_result *r)
{
	struct sums *s = owner;

	s->came[tag]++;
	s->got[tag] = *r;
}

static void came_there(void *owner, uint64_t tag, const struct tier_result *r)
{
	((struct sums *)owner)->expected[tag] = *r;
}

static struct tier_sum sum_of(struct sums *s, uint32_t c, float *to)
{
	struct tier_sum t = {
		.chunk = c, .sources_nr = s->sources, .pre = 1, .norm = true, .to = (uint8_t *)to};

	for (uint32_t i = 0; i < s->sources; i++) {
		t.source[i] = (struct tier_source){(const uint8_t *)&s->at[order[i]][c * CE],
						   s->absent[order[i]]};
		t.node[i] = (uint8_t)order[i];
	}
	return t;
}

static struct gpu_mem *device_of(struct sums *s, uint64_t at)
{
	for (uint32_t i = 0; i < s->b->devices; i++)
		if (at >= s->b->direct[i].at && at < s->b->direct[i].at + s->b->direct[i].bytes)
			return &s->b->direct[i];
	return NULL;
}

/* As the node's RDMA would: the bytes are in no memory of the host. */
static void lands(struct sums *s, struct tier_sum *t, uint32_t i)
{
	uint64_t at = tier_gpu_direct_at(s->b->tier, t->chunk, t->node[i]);
	uint32_t n = layout_chunk_elems(s->b->layout, t->chunk);
	float *slot = store_slot(s->b->store, t->chunk, t->node[i]);

	assert_non_null(device_of(s, at));
	memcpy((void *)(uintptr_t)at, t->source[i].at, n * sizeof(float));
	memset(slot, 0xee, n * sizeof(float));
	t->source[i].at = (const uint8_t *)slot;
	t->inside |= 1ull << i;
}

/* inside: which nodes write to devices. */
static enum shard_status submit(struct sums *s, uint32_t c, uint32_t inside)
{
	struct tier_call call = {.done = came, .owner = s, .tag = c};
	struct tier_sum t = sum_of(s, c, &s->to[c * CE]);

	for (uint32_t i = 0; i < s->sources; i++)
		if (inside >> t.node[i] & 1)
			lands(s, &t, i);
	return s->b->tier->row->sum(s->b->tier, &t, &call);
}

static void expect(struct sums *s, uint32_t c)
{
	struct tier_call call = {.done = came_there, .owner = s, .tag = c, .here = true};
	struct tier_sum t = sum_of(s, c, &s->want[c * CE]);

	assert_int_equal(s->ref->tier->row->sum(s->ref->tier, &t, &call), SHARD_OK);
}

static void same(struct sums *s, uint32_t c)
{
	const struct tier_result *r = &s->got[c], *want = &s->expected[c];
	const struct layout *l = s->b->layout;

	assert_int_equal(s->came[c], 1);
	assert_int_equal(r->finite, want->finite);
	assert_memory_equal(&r->sumsq, &want->sumsq, sizeof(r->sumsq));
	for (uint32_t i = l->chunk_segment[c]; i < l->chunk_segment[c + 1]; i++)
		if (!layout_frozen(l, i))
			assert_memory_equal(&s->to[c * CE + l->segment[i].start],
					    &s->want[c * CE + l->segment[i].start],
					    l->segment[i].n * sizeof(float));
}

/* Updates all chunks, from where their sums are. inside: those on devices need none of the host. */
static void update(struct sums *s, uint32_t step, bool inside)
{
	struct bench *b = s->b;

	b->stamp = s->ref->stamp = step;
	memset(b->done, 0, sizeof(b->done));
	for (uint32_t c = 0; c < CHUNKS; c++) {
		struct tier_call call = {.done = bench_applied, .owner = b, .tag = c};
		struct tier_call there = {
			.done = bench_applied, .owner = s->ref, .tag = c, .here = true};
		struct tier_apply a = bench_update(b, c), r = bench_update(s->ref, c);
		static const float wrong[CE] = {NAN};

		a.inside = inside && s->got[c].inside;
		a.grad = (const uint8_t *)(a.inside ? wrong : &s->to[c * CE]);
		r.grad = (const uint8_t *)&s->want[c * CE];
		while (b->tier->row->apply(b->tier, &a, &call) != SHARD_OK)
			bench_something(b);
		assert_int_equal(s->ref->tier->row->apply(s->ref->tier, &r, &there), SHARD_OK);
	}
	while (bench_done(b) < CHUNKS)
		bench_something(b);
}

static void sum_all(struct sums *s, uint32_t step, uint32_t (*inside)(uint32_t c))
{
	draw(s, step);
	for (uint32_t c = 0; c < CHUNKS; c++) {
		expect(s, c);
		while (submit(s, c, inside(c)) != SHARD_OK)
			bench_something(s->b);
	}
	bench_quiet(s->b);
	for (uint32_t c = 0; c < CHUNKS; c++)
		same(s, c);
}

static uint32_t others(uint32_t c)
{
	(void)c;
	return 6;
}

static uint32_t some(uint32_t c)
{
	return c % 4 == 3 ? 0 : 2u << c % 2; /* One of them, or none. */
}

static void same_bits(void **state)
{
	static struct sums s;

	(void)state;
	for (uint32_t devices = 1; devices <= DEVICES; devices++) {
		sums_begin(&s, devices);
		for (uint32_t step = 1; step <= 6; step++) {
			sum_all(&s, step, step % 2 ? others : some);
			for (uint32_t c = 0; c < CHUNKS; c++)
				assert_int_equal(s.got[c].inside, step % 2 || c % 4 != 3);
			update(&s, step, step > 2);
			bench_same(s.b, s.ref);
			bench_quiet(s.b);
		}
		assert_int_equal(tier_gpu_count(s.b->tier).sums, 3 * CHUNKS + 3 * (CHUNKS - 5));
		sums_end(&s);
	}
}

/* What is not finite, and of whom, is found as in main memory. */
static void blame(void **state)
{
	static struct sums s;

	(void)state;
	sums_begin(&s, 2);
	for (uint32_t turn = 0; turn < 3 * NODES; turn++) {
		uint32_t c = turn, node = turn % NODES;
		float before[CE];

		draw(&s, turn);
		memset(s.absent[2], 0, s.b->layout->segments_nr);
		s.at[node][c * CE + 3 + turn] = turn < NODES ? INFINITY : NAN;
		if (turn >= 2 * NODES) { /* Two of them. */
			s.at[0][c * CE + 5] = INFINITY;
			s.at[1][c * CE + 5] = -INFINITY;
		}
		expect(&s, c);
		memcpy(before, &s.to[c * CE], sizeof(before));
		assert_int_equal(submit(&s, c, 6), SHARD_OK);
		while (s.came[c] == 0)
			bench_something(s.b);
		bench_quiet(s.b);
		assert_false(s.got[c].finite || s.got[c].inside);
		assert_false(s.expected[c].finite);
		assert_int_equal(s.got[c].bad_segment, s.expected[c].bad_segment);
		assert_int_equal(s.got[c].bad_sources, s.expected[c].bad_sources);
		if (turn < 2 * NODES)
			assert_int_equal(s.got[c].bad_sources, node == 1 ? 1 : node == 0 ? 2 : 4);
	}
	assert_int_equal(tier_gpu_count(s.b->tier).sums, 0);
	sums_end(&s);
}

/* More than the tier takes. */
static void full(void **state)
{
	static struct sums s;
	uint32_t nr = 0;

	(void)state;
	sums_begin(&s, 1);
	draw(&s, 1);
	for (uint32_t c = 0; c < CHUNKS; c++)
		expect(&s, c);
	while (nr < CHUNKS && submit(&s, nr, 6) == SHARD_OK)
		nr++;
	assert_int_equal(nr, 16);
	assert_int_equal(submit(&s, nr, 6), SHARD_AGAIN);
	hand_runs(&gpus[0], 3);
	assert_int_equal(submit(&s, nr, 6), SHARD_OK);
	assert_int_equal(submit(&s, nr + 1, 6), SHARD_AGAIN);
	bench_quiet(s.b);
	for (uint32_t c = 0; c <= nr; c++)
		same(&s, c);
	sums_end(&s);
}

/* Where the slots are, as they are registered. */
static void places(void **state)
{
	static struct sums s;
	struct tier_direct d;
	uint32_t chunks = 0;

	(void)state;
	sums_begin(&s, 2);
	for (uint32_t i = 0; i < 2; i++) {
		for (uint16_t node = 1; node < NODES; node++) {
			assert_true(tier_gpu_direct(s.b->tier, i, node, &d));
			assert_int_equal(d.first, chunks);
			assert_int_equal(d.memory.fd, 100 + i);
			assert_int_equal(d.memory.at, s.b->direct[i].at + d.memory.offset);
			assert_int_equal(d.memory.at, tier_gpu_direct_at(s.b->tier, d.first, node));
			assert_int_equal(d.memory.offset % 65536, 0);
			/* The node of this process has the first part, and nobody else any of it.
			 */
			assert_true(d.memory.offset >= d.memory.bytes &&
				    d.memory.offset + d.memory.bytes <= s.b->direct[i].bytes);
			for (uint32_t c = d.first; c < d.first + d.chunks; c++) {
				uint64_t at = tier_gpu_direct_at(s.b->tier, c, node);

				assert_int_equal(at - d.memory.at,
						 (c - d.first) * CE * sizeof(float));
			}
		}
		chunks += d.chunks;
	}
	assert_int_equal(chunks, CHUNKS);
	assert_false(tier_gpu_direct(s.b->tier, 2, 1, &d));
	assert_false(tier_gpu_direct(s.b->tier, 0, NODES, &d));
	assert_false(tier_gpu_direct(s.ref->tier, 0, 1, &d));
	assert_int_equal(tier_gpu_direct_at(s.ref->tier, 0, 1), 0);
	sums_end(&s);
}

static uint32_t second(uint32_t c)
{
	(void)c;
	return 2;
}

/* The third node has joined since the memory of the devices was mapped: it has no slots there, and
 * what is behind the last ones is not the tier's. */
static void joined(void **state)
{
	static struct sums s;

	(void)state;
	for (uint32_t devices = 1; devices <= DEVICES; devices++) {
		struct store_nodes more;
		struct tier_direct d;

		sums_begin_for(&s, devices, NODES - 1);
		store_nodes_plan(&more, s.b->store, NODES);
		store_nodes_make(&more);
		store_nodes_take(s.b->store, &more);
		for (uint32_t step = 1; step <= 6; step++) {
			bool all = step % 2 == 0; /* It contributes. */

			s.sources = NODES - !all;
			sum_all(&s, step, second);
			for (uint32_t c = 0; c < CHUNKS; c++)
				assert_int_equal(s.got[c].inside, !all);
			update(&s, step, step > 2);
			bench_same(s.b, s.ref);
			bench_quiet(s.b);
		}
		assert_int_equal(tier_gpu_count(s.b->tier).sums, 3 * CHUNKS);
		assert_int_equal(tier_gpu_direct_short(s.b->tier, NODES), CHUNKS);
		assert_int_equal(tier_gpu_direct_short(s.b->tier, NODES - 1), 0);
		assert_int_equal(tier_gpu_direct_short(s.ref->tier, NODES), 0);
		for (uint32_t i = 0; i < devices; i++) {
			assert_true(tier_gpu_direct(s.b->tier, i, 1, &d));
			assert_false(tier_gpu_direct(s.b->tier, i, NODES - 1, &d));
		}
		for (uint32_t c = 0; c < CHUNKS; c++)
			assert_int_equal(tier_gpu_direct_at(s.b->tier, c, NODES - 1), 0);
		sums_end(&s);
	}
}

/* What is voted for is in memory that outlives the process, and direct slots are not. */
static void killed(void **state)
{
	static struct sums s;

	(void)state;
	sums_begin(&s, 2);
	sum_all(&s, 1, others);
	update(&s, 1, false);
	bench_quiet(s.b);
	sum_all(&s, 2, others);
	bench_ends(s.b);
	for (uint32_t i = 0; i < 2; i++)
		memset((void *)(uintptr_t)s.b->direct[i].at, 0xcc, s.b->direct[i].bytes);
	update(&s, 2, false);
	bench_same(s.b, s.ref);
	bench_quiet(s.b);
	sums_end(&s);
}

static void device_fails(void **state)
{
	static struct sums s;

	(void)state;
	sums_begin(&s, 2);
	draw(&s, 1);
	for (uint32_t c = 0; c < 4; c++)
		assert_int_equal(submit(&s, c, 6), SHARD_OK);
	assert_int_equal(submit(&s, CHUNKS - 1, 6), SHARD_OK);
	hand_runs(&gpus[0], 0);
	gpus[0].lost = true;
	while (bench_flying(s.b) > 0)
		bench_something(s.b);
	assert_int_equal(s.b->lost, 1);
	assert_int_equal(s.b->held, 0);
	assert_int_equal(s.came[0], 1);
	for (uint32_t c = 1; c < 4; c++)
		assert_int_equal(s.came[c], 0);
	assert_int_equal(submit(&s, 5, 6), SHARD_AGAIN);
	tier_gpu_forsake(s.b->tier); /* They are done, and nothing comes of it. */
	for (uint32_t c = 1; c < 4; c++)
		assert_true(s.came[c] == 1 && !s.got[c].inside && s.got[c].sumsq == 0);
	/* While contributions are brought to the host. */
	sums_end(&s);
	sums_begin(&s, 1);
	draw(&s, 1);
	s.at[1][7] = NAN;
	assert_int_equal(submit(&s, 0, 6), SHARD_OK);
	hand_runs(&gpus[0], 0);
	assert_int_equal(bench_flying(s.b), 1);
	gpus[0].lost = true;
	hand_runs(&gpus[0], 0);
	assert_int_equal(s.b->lost, 1);
	assert_int_equal(s.b->held + s.came[0], 0);
	tier_gpu_forsake(s.b->tier);
	assert_int_equal(s.came[0], 1);
	sums_end(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(same_bits),    cmocka_unit_test(blame),  cmocka_unit_test(full),
		cmocka_unit_test(places),       cmocka_unit_test(joined), cmocka_unit_test(killed),
		cmocka_unit_test(device_fails),
	};

	return cmocka_run_group_tests_name("tier_gpu_direct", tests, NULL, NULL);
}
