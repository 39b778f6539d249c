/* SPDX-License-Identifier: Apache-2.0 */
/* The sums of a chunk: over the ranks of this node and then, if the chunk is held here, over the
 * nodes, with its norm. contrib.c asks for them. run() is called on a worker, or on the loop for a
 * small chunk, and reads what the loop does not touch until done(). The result of an attempt that
 * is over is dropped. Nothing fails. If gradients are not finite, the first such tensor and its
 * rank are reported. */
#include "data/reduce.h"

#include "data/apply.h"
#include "base/check.h"
#include "base/clock.h"
#include "data/data.h"
#include "data/model.h"
#include "optim/reduce.h"

#include <string.h>

struct reduce_job {
	struct model *m;
	uint32_t chunk, epoch;
	enum reduce_stage stage;
	double sumsq;
	int64_t bad_tensor;
	int32_t bad_rank;
	bool finite;
};
static_assert(sizeof(struct reduce_job) <= WORKER_ARGS_BYTES, "a job travels by value");

static const uint8_t *operand(const struct model *m, enum reduce_stage stage, uint32_t i,
			      uint32_t chunk)
{
	const struct contrib *g = &m->contrib;

	CHECK(i < CORE_NODES_MAX || i < CONTRIB_LOCAL_MAX);
	if (stage == REDUCE_LOCAL)
		return store_arena(m->store, g->local[i].slot, m->attempt.id.step, chunk);
	if (g->node[i] != m->server->self)
		return store_slot(m->store, chunk, g->node[i]);
	return contrib_here(m, chunk);
}

static int32_t bad_rank_in(const struct reduce_job *j, uint32_t place)
{
	return j->m->contrib.bad_rank_in[(size_t)place * j->m->layout->chunks_nr + j->chunk];
}

static void blame(struct reduce_job *j, uint32_t segment, uint32_t k, const uint32_t *who,
		  const void *const *src, reduce_fn *reduce)
{
	const struct contrib *g = &j->m->contrib;
	const struct segment *s = &j->m->layout->segment[segment];

	j->bad_tensor = j->m->layout->segment_tensor[segment];
	j->bad_rank = -1;
	for (uint32_t i = 0; i < k && j->bad_rank < 0; i++) {
		if (k > 1 && reduce(s->n, 1, &src[i], NULL, 1, false).finite)
			continue;
		if (j->stage == REDUCE_LOCAL)
			j->bad_rank = (int32_t)g->local[who[i]].rank;
		else if (g->only_rank[who[i]] >= 0)
			j->bad_rank = g->only_rank[who[i]];
		else /* One of several ranks. This node's sum knows it, or the other node said it.
		      */
			j->bad_rank = g->node[who[i]] == j->m->server->self
					      ? g->chunk[j->chunk].bad_rank
					      : bad_rank_in(j, who[i]);
	}
}

static void sum_segment(struct reduce_job *j, uint32_t segment, uint8_t *dst, reduce_fn *reduce,
			bool norm)
{
	const struct model *m = j->m;
	const struct segment *s = &m->layout->segment[segment];
	size_t at = (size_t)s->start * m->grad_bytes;
	uint32_t nr = j->stage == REDUCE_LOCAL ? m->contrib.local_nr : m->contrib.nodes_nr, k = 0;
	const void *src[CORE_NODES_MAX > CONTRIB_LOCAL_MAX ? CORE_NODES_MAX : CONTRIB_LOCAL_MAX];
	uint32_t who[NR(src)];
	struct reduce_sum sum;

	for (uint32_t i = 0; i < nr; i++) {
		const uint8_t *absent = j->stage == REDUCE_LOCAL ? contrib_absent_local(m, i)
								 : contrib_absent_node(m, i);

		if (absent[segment])
			continue;
		who[k] = i;
		src[k++] = operand(m, j->stage, i, j->chunk) + at;
	}
	if (k == 0) {
		/* With the norm, no node has a gradient. Without it another node may have one. */
		if (norm)
			m->contrib.zero[segment] = 1;
		return;
	}
	sum = reduce(s->n, k, src, dst + at, j->stage == REDUCE_LOCAL ? m->contrib.pre : 1, norm);
	j->sumsq += sum.sq;
	if (!sum.finite && j->finite) {
		j->finite = false;
		blame(j, segment, k, who, src, reduce);
	}
}

bool reduce_final(const struct model *m, enum reduce_stage stage, uint32_t chunk)
{
	return stage == REDUCE_NODES ||
	       (m->contrib.nodes_nr == 1 && place_primary(&m->place, chunk) == m->server->self);
}

/* Where a result goes. What is judged, voted for and applied lies in memory that belongs to this
 * daemon only, for two reasons. A trainer can change its arena at any time, and so can a peer
 * change its slot by RDMA. Neither outlives the process, but what was voted for must. What only
 * goes on to the holder of the chunk may stay in the arena, because the holder judges what has
 * arrived there. */
static uint8_t *destination(const struct reduce_job *j)
{
	struct model *m = j->m;

	if (m->contrib.local_nr > 1 || reduce_final(m, j->stage, j->chunk))
		return store_sum(m->store, j->chunk);
	/* It is multiplied in place. */
	return store_arena(m->store, m->contrib.local[0].slot, m->attempt.id.step, j->chunk);
}

static void run(void *args)
{
	struct reduce_job *j = args;
	const struct model *m = j->m;
	const struct layout *l = m->layout;
	uint8_t *dst = destination(j);
	reduce_fn *reduce = reduce_kernel(m->server->isa, m->grad);
	bool norm = reduce_final(m, j->stage, j->chunk);

	for (uint32_t s = l->chunk_segment[j->chunk]; s < l->chunk_segment[j->chunk + 1]; s++)
		if (!layout_frozen(l, s))
			sum_segment(j, s, dst, reduce, norm);
}

static void done(void *owner, void *args)
{
	struct model *m = owner;
	const struct reduce_job *j = args;
	struct contrib_chunk *c = &m->contrib.chunk[j->chunk];
	bool mine = j->epoch == m->attempt.epoch && m->attempt.on;

	m->contrib.reduce_ns = clock_ns() - m->contrib.reduce_began_ns;
	if (mine) {
		c->finite = j->finite;
		c->sumsq = j->sumsq;
		c->bad_tensor = j->bad_tensor;
		c->bad_rank = j->bad_rank;
		if (reduce_final(m, j->stage, j->chunk)) {
			c->base = destination(j);
			c->reduced = true;
			apply_stage(m, j->chunk);
		} else {
			contrib_summed(m, j->chunk);
		}
	}
	data_release(m);
}

void reduce_submit(struct model *m, enum reduce_stage stage, uint32_t chunk)
{
	struct worker_job job = {.run = run, .done = done, .owner = m};
	struct reduce_job j = {.m = m,
			       .chunk = chunk,
			       .epoch = m->attempt.epoch,
			       .stage = stage,
			       .bad_tensor = -1,
			       .bad_rank = -1,
			       .finite = true};

	CHECK(chunk < m->layout->chunks_nr && m->attempt.on);
	if (m->contrib.reduce_began_ns == 0)
		m->contrib.reduce_began_ns = clock_ns();
	memcpy(job.args, &j, sizeof(j));
	m->attempt.busy++;
	if (layout_chunk_elems(m->layout, chunk) <= SERVER_SMALL_ELEMS ||
	    worker_submit(m->server->pool, &job) != SHARD_OK)
		worker_run_here(m->server->pool, &job);
}
