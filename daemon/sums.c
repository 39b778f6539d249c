/* SPDX-License-Identifier: Apache-2.0 */
/* The sums of a chunk: over the ranks of this node, then, where the chunk is held, over the nodes, with its norm. gather.c asks for them;
 * run() is on a worker, or on the loop for a small chunk, and reads what the loop does not touch until done(). The result of an attempt
 * that is over is dropped. Nothing fails: gradients that are not finite are told with the rank and the tensor that had them first. */
#include "sums.h"

#include "base/check.h"
#include "base/clock.h"
#include "model.h"
#include "optim/reduce.h"

#include <string.h>

struct sums_job {
	struct model *m;
	uint32_t chunk, epoch;
	enum sums_stage stage;
	double sumsq;
	int64_t bad_tensor;
	int32_t bad_rank;
	bool finite;
};
static_assert(sizeof(struct sums_job) <= WORKER_ARGS_BYTES, "a job travels by value");

static const uint8_t *operand(const struct model *m, enum sums_stage stage, uint32_t i, uint32_t chunk)
{
	const struct gather *g = &m->gather;

	if (stage == SUMS_LOCAL)
		return store_arena(m->store, g->local[i].slot, m->id_now.step, chunk);
	if (g->node[i] != m->server->self)
		return store_slot(m->store, chunk, g->node[i]);
	return gather_contribution(m, chunk);
}

const uint8_t *gather_contribution(const struct model *m, uint32_t chunk)
{
	if (m->gather.local_nr > 1)
		return store_sum(m->store, chunk);
	return store_arena(m->store, m->gather.local[0].slot, m->id_now.step, chunk);
}

static int32_t bad_rank_in(const struct sums_job *j, uint32_t place)
{
	return j->m->gather.bad_rank_in[(size_t)place * j->m->layout->chunks_nr + j->chunk];
}

static void blame(struct sums_job *j, uint32_t segment, uint32_t k, const uint32_t *who, const void *const *src, reduce_fn *reduce)
{
	const struct gather *g = &j->m->gather;
	const struct segment *s = &j->m->layout->segment[segment];

	j->bad_tensor = j->m->layout->segment_tensor[segment];
	j->bad_rank = -1;
	for (uint32_t i = 0; i < k && j->bad_rank < 0; i++) {
		if (reduce(s->n, 1, &src[i], NULL, 1, false).finite)
			continue;
		if (j->stage == SUMS_LOCAL)
			j->bad_rank = (int32_t)g->local[who[i]].rank;
		else if (g->only_rank[who[i]] >= 0)
			j->bad_rank = g->only_rank[who[i]];
		else /* one of several: this node's own sum knows, or the other node has said */
			j->bad_rank = g->node[who[i]] == j->m->server->self ? g->chunk[j->chunk].bad_rank : bad_rank_in(j, who[i]);
	}
}

static void sum_segment(struct sums_job *j, uint32_t segment, uint8_t *dst, reduce_fn *reduce, bool norm)
{
	const struct model *m = j->m;
	const struct segment *s = &m->layout->segment[segment];
	size_t at = (size_t)s->start * m->grad_bytes;
	uint32_t nr = j->stage == SUMS_LOCAL ? m->gather.local_nr : m->gather.nodes_nr, k = 0;
	const void *src[CORE_NODES_MAX > GATHER_LOCAL_MAX ? CORE_NODES_MAX : GATHER_LOCAL_MAX];
	uint32_t who[NR(src)];
	struct reduce_sum sum;

	for (uint32_t i = 0; i < nr; i++) {
		const uint8_t *absent = j->stage == SUMS_LOCAL ? gather_absent_local(m, i) : gather_absent_node(m, i);

		if (absent[segment])
			continue;
		who[k] = i;
		src[k++] = operand(m, j->stage, i, j->chunk) + at;
	}
	if (k == 0) {
		if (norm) /* nobody has any; else another node may */
			m->gather.zero[segment] = 1;
		return;
	}
	sum = reduce(s->n, k, src, dst != NULL ? dst + at : NULL, j->stage == SUMS_LOCAL ? m->gather.pre : 1, norm);
	j->sumsq += sum.sq;
	if (!sum.finite && j->finite) {
		j->finite = false;
		blame(j, segment, k, who, src, reduce);
	}
}

bool sums_final(const struct model *m, enum sums_stage stage, uint32_t chunk)
{
	return stage == SUMS_NODES || (m->gather.nodes_nr == 1 && m->owner[chunk] == m->server->self);
}

/* Where a result goes; NULL: nowhere, the only operand is it. An arena does not outlive the process, what is voted for must. */
static uint8_t *destination(const struct sums_job *j)
{
	struct model *m = j->m;
	uint32_t operands = j->stage == SUMS_LOCAL ? m->gather.local_nr : m->gather.nodes_nr;
	bool arena = m->gather.local_nr == 1 && (j->stage == SUMS_LOCAL || m->gather.node[0] == m->server->self);

	if (operands > 1 || (arena && model_parked(m) && sums_final(m, j->stage, j->chunk)))
		return store_sum(m->store, j->chunk);
	if (j->stage == SUMS_LOCAL && m->gather.pre != 1) /* in place: the arena is the daemon's until the verdict */
		return store_arena(m->store, m->gather.local[0].slot, m->id_now.step, j->chunk);
	return NULL;
}

static void run(void *args)
{
	struct sums_job *j = args;
	const struct model *m = j->m;
	const struct layout *l = m->layout;
	uint8_t *dst = destination(j);
	reduce_fn *reduce = reduce_kernel(m->server->isa, m->grad);
	bool norm = sums_final(m, j->stage, j->chunk);

	for (uint32_t s = l->chunk_segment[j->chunk]; s < l->chunk_segment[j->chunk + 1]; s++)
		if (!layout_frozen(l, s))
			sum_segment(j, s, dst, reduce, norm);
}

static void done(void *owner, void *args)
{
	struct model *m = owner;
	const struct sums_job *j = args;
	struct gather_chunk *c = &m->gather.chunk[j->chunk];
	bool mine = j->epoch == m->epoch && m->attempt_on;

	m->gather.reduce_ns = clock_ns() - m->gather.reduce_began_ns;
	if (mine) {
		c->finite = j->finite;
		c->sumsq = j->sumsq;
		c->bad_tensor = j->bad_tensor;
		c->bad_rank = j->bad_rank;
		if (sums_final(m, j->stage, j->chunk)) {
			uint8_t *dst = destination(j);

			c->base = dst != NULL ? dst : (uint8_t *)(uintptr_t)operand(m, j->stage, 0, j->chunk);
			c->reduced = true;
			model_stage(m, j->chunk);
		} else {
			gather_summed(m, j->chunk);
		}
	}
	model_release(m);
}

void sums_submit(struct model *m, enum sums_stage stage, uint32_t chunk)
{
	struct worker_job job = {.run = run, .done = done, .owner = m};
	struct sums_job j = {
		.m = m, .chunk = chunk, .epoch = m->epoch, .stage = stage, .bad_tensor = -1, .bad_rank = -1, .finite = true};

	if (m->gather.reduce_began_ns == 0)
		m->gather.reduce_began_ns = clock_ns();
	memcpy(job.args, &j, sizeof(j));
	m->busy++;
	if (layout_chunk_elems(m->layout, chunk) <= SERVER_SMALL_ELEMS || worker_submit(m->server->pool, &job) != SHARD_OK)
		worker_run_here(m->server->pool, &job);
}
