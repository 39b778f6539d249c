// SPDX-License-Identifier: Apache-2.0
/* The sum of gradients of one chunk on a lane, for lanes.c, which has flushed what network
 * devices have written. Happy path: operands of the host go up, the kernel sums all segments, the
 * squares of their blocks come back and are added in the order of wire/ARITHMETIC.md, and the sum
 * goes down if it is finite. Copies and kernel are queued at once, unless memory of the host is not
 * pinned, or there are more segments than the tables take: then it is done in pieces. The kernel
 * reads operands where they lie. It fails as everything on a lane does. */
#include "gpu/device_impl.h"

#include "base/check.h"
#include "gpu/kernels.h"

#include <assert.h>
#include <string.h>

enum {
	SEGMENTS_MAX = 2048,
	ROWS_MAX = 1024, /* Of the table of operands. */
	BLOCKS_MAX = 8192,
};

struct tables {
	double squares[BLOCKS_MAX]; /* Comes back, and so does what follows. */
	uint32_t bad[SEGMENTS_MAX];
	void *to; /* From .bad on it goes up. */
	const void *operand[ROWS_MAX];
	struct gpu_segment segment[SEGMENTS_MAX];
};
static_assert(sizeof(struct tables) <= GPU_LANE_TABLES, "they fit a lane");
static_assert(ROWS_MAX >= GPU_OPERANDS_MAX, "one segment fits");

static uint32_t blocks_of(const struct segment *s)
{
	return (s->n + REDUCE_BLOCK - 1) / REDUCE_BLOCK;
}

/* The operands that have a gradient there, a bit for each. */
static uint64_t present(const struct gpu_add *a, uint32_t segment)
{
	uint64_t bits = 0;

	for (uint32_t i = 0; i < a->operands_nr; i++)
		bits |= (uint64_t)(a->operand[i].absent[segment] == 0) << i;
	return bits;
}

/* Fills the tables with the next segments. They have .segments_nr and .blocks_nr then. */
static struct gpu_sum batch(struct gpu_lane *l, const struct gpu_add *a)
{
	struct tables *t = gpu_lane_tables(l);
	const struct layout *layout = a->layout;
	struct gpu_sum job = {.pre = a->pre};
	uint64_t bits = 0; /* Of the newest rows. */
	uint32_t rows = 0, first = 0;

	for (; l->segment < layout->chunk_segment[a->chunk + 1]; l->segment++) {
		const struct segment *s = &layout->segment[l->segment];
		uint64_t here = present(a, l->segment);
		uint32_t nr = (uint32_t)__builtin_popcountll(here);

		CHECK(blocks_of(s) <= BLOCKS_MAX);
		if (nr == 0 || layout_frozen(layout, l->segment))
			continue;
		if (job.segments_nr == SEGMENTS_MAX || job.blocks_nr + blocks_of(s) > BLOCKS_MAX ||
		    (here != bits && rows + nr > ROWS_MAX))
			break;
		if (here != bits) {
			first = rows;
			for (uint32_t i = 0; i < a->operands_nr; i++)
				if (here >> i & 1)
					t->operand[rows++] =
						(const void *)(uintptr_t)a->operand[i].at;
			bits = here;
		}
		t->bad[job.segments_nr] = 0;
		t->segment[job.segments_nr++] = (struct gpu_segment){.start = s->start,
								     .n = s->n,
								     .block = job.blocks_nr,
								     .source = first,
								     .sources_nr = nr};
		job.blocks_nr += blocks_of(s);
	}
	t->to = (void *)(uintptr_t)a->to;
	return job;
}

static bool sum_go(struct gpu *g, struct gpu_lane *l, const struct gpu_add *a)
{
	struct tables *t = gpu_lane_tables(l);
	const cu_ptr at = gpu_lane_tables_at(l);
	const size_t up = offsetof(struct tables, bad);
	struct gpu_sum job = batch(l, a);
	void *args[] = {&job};

	l->summed = job.segments_nr;
	if (job.segments_nr == 0)
		return true;
	job.segments =
		(const struct gpu_segment *)(uintptr_t)(at + offsetof(struct tables, segment));
	job.sources = (const void *const *)(uintptr_t)(at + offsetof(struct tables, operand));
	job.to = (void *const *)(uintptr_t)(at + offsetof(struct tables, to));
	job.squares = (double *)(uintptr_t)(at + offsetof(struct tables, squares));
	job.bad = (uint32_t *)(uintptr_t)(at + offsetof(struct tables, bad));
	return gpu_lane_to_device(g, l, at + up, (char *)t + up,
				  offsetof(struct tables, segment) - up +
					  job.segments_nr * sizeof(t->segment[0])) &&
	       gpu_lane_ok(
		       g,
		       DRIVE(g, g->d.launch(g->sum[a->dtype],
					    (job.blocks_nr + GPU_SUM_BLOCKS - 1) / GPU_SUM_BLOCKS,
					    1, 1, GPU_THREADS, 1, 1, 0, l->stream, args, NULL)),
		       "cuLaunchKernel") &&
	       gpu_lane_to_host(g, l, t->squares, at, job.blocks_nr * sizeof(t->squares[0])) &&
	       gpu_lane_to_host(g, l, t->bad, at + up, job.segments_nr * sizeof(t->bad[0]));
}

void gpu_add_begin(struct gpu_lane *l, struct gpu_add *a)
{
	l->phase = ADD_UP;
	l->segment = a->layout->chunk_segment[a->chunk];
	a->sumsq = 0;
	a->finite = true;
}

static void next_phase(struct gpu_lane *l, enum gpu_add_phase phase)
{
	l->phase = phase;
	l->copy = 0;
	l->at = 0;
}

bool gpu_add_go(struct gpu *g, struct gpu_lane *l, struct gpu_add *a)
{
	const uint64_t bytes =
		(uint64_t)layout_chunk_elems(a->layout, a->chunk) * dtype_bytes(a->dtype);
	const struct gpu_copy down = {a->copy, a->to, bytes};
	uint64_t used = 0;

	if (l->phase == ADD_UP) {
		if (!gpu_lane_copies(g, l, a->up, a->up_nr, true, &used))
			return false;
		if (l->copy < a->up_nr)
			return true;
		next_phase(l, ADD_SUM);
	}
	if (l->phase == ADD_SUM) {
		if (!sum_go(g, l, a))
			return false;
		if (l->segment == a->layout->chunk_segment[a->chunk + 1])
			next_phase(l, ADD_DOWN);
		return true;
	}
	return gpu_lane_copies(g, l, &down, 1, false, &used);
}

bool gpu_add_take(const struct gpu_lane *l, struct gpu_add *a)
{
	const struct tables *t = gpu_lane_tables(l);

	for (uint32_t i = 0; i < l->summed; i++) {
		const struct gpu_segment *s = &t->segment[i];
		uint32_t nr = (s->n + REDUCE_BLOCK - 1) / REDUCE_BLOCK;
		double sum = 0;

		for (uint32_t b = 0; b < nr; b++)
			sum += t->squares[s->block + b];
		a->sumsq += sum;
		a->finite = a->finite && t->bad[i] == 0;
	}
	return l->phase == ADD_DOWN && (l->copy == 1 || !a->finite);
}
