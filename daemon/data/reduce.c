/* SPDX-License-Identifier: Apache-2.0 */
/* The sums of a chunk: over the ranks of this node and then, if this node is its primary, over the
 * nodes, with its norm. contrib.c asks for them. Where this node is a follower, grad.c asks for a
 * copy of what the primary summed, which is a sum of one operand. The operands are gathered here
 * and handed to the tier by value. If the tier is busy, or has enough of this model, the sum waits
 * in a queue, and reduce_feed() hands it out when others are done. The result of an attempt that is
 * over is dropped. Nothing fails. If gradients are not finite, the first such tensor and its rank
 * are reported. */
#include "data/reduce.h"

#include "base/check.h"
#include "base/clock.h"
#include "data/apply.h"
#include "data/data.h"
#include "data/grad.h"
#include "data/model.h"

/* A sum that waits, and a tag, have the stage above the chunk. */
#define STAGE_AT   30
#define CHUNK_MASK ((1u << STAGE_AT) - 1)
static_assert(LAYOUT_CHUNKS_MAX <= CHUNK_MASK, "a chunk fits below the stage");
static_assert(REDUCE_STAGES <= 4, "a stage has two bits");

static const uint8_t *operand(const struct model *m, enum reduce_stage stage, uint32_t i,
			      uint32_t chunk)
{
	const struct contrib *g = &m->contrib;

	if (stage == REDUCE_LOCAL)
		return store_arena(m->store, g->local[i].slot, m->attempt.id.step, chunk);
	if (stage == REDUCE_CODE)
		return contrib_sum(m, chunk);
	if (stage == REDUCE_COPY)
		return store_slot(m->store, chunk, place_primary(&m->place, chunk));
	if (g->node[i] != m->server->self)
		return store_slot(m->store, chunk, g->node[i]);
	return contrib_here(m, chunk);
}

/* Whose contribution it is. */
static uint16_t source_node(const struct model *m, enum reduce_stage stage, uint32_t i,
			    uint32_t chunk)
{
	if (stage == REDUCE_COPY)
		return place_primary(&m->place, chunk);
	return stage == REDUCE_NODES ? m->contrib.node[i] : m->server->self;
}

static uint32_t sources_nr(const struct model *m, enum reduce_stage stage)
{
	if (stage == REDUCE_COPY || stage == REDUCE_CODE)
		return 1;
	return stage == REDUCE_LOCAL ? m->contrib.local_nr : m->contrib.nodes_nr;
}

static const uint8_t *absent(const struct model *m, enum reduce_stage stage, uint32_t i)
{
	if (stage == REDUCE_COPY)
		return m->reduced.absent;
	if (stage == REDUCE_CODE)
		i = (uint32_t)m->contrib.place[m->server->self];
	return stage == REDUCE_LOCAL ? contrib_absent_local(m, i) : contrib_absent_node(m, i);
}

bool reduce_final(const struct model *m, enum reduce_stage stage, uint32_t chunk)
{
	return stage > REDUCE_CODE || (stage == REDUCE_LOCAL && m->contrib.nodes_nr == 1 &&
				       place_primary(&m->place, chunk) == m->server->self);
}

/* Where a result goes. What is judged, voted for and applied lies in memory that belongs to this
 * daemon only, for two reasons. A trainer can change its arena at any time, and so can a peer
 * change its slot by RDMA. Neither outlives the process, but what was voted for must. What only
 * goes on to the holder of the chunk may stay in the arena, because the holder judges what has
 * arrived there. */
static uint8_t *destination(const struct model *m, enum reduce_stage stage, uint32_t chunk)
{
	if (stage == REDUCE_CODE)
		return contrib_codes(m, chunk);
	if (m->contrib.local_nr > 1 || reduce_final(m, stage, chunk))
		return store_sum(m->store, chunk);
	/* It is multiplied in place. */
	return store_arena(m->store, m->contrib.local[0].slot, m->attempt.id.step, chunk);
}

/* --- what a sum has found --- */

/* The rank whose gradient made source i of a chunk non-finite. -1: it is not known. */
static int32_t rank_of(const struct model *m, enum reduce_stage stage, uint32_t chunk, uint32_t i)
{
	const struct contrib *g = &m->contrib;

	if (stage == REDUCE_LOCAL)
		return (int32_t)g->local[i].rank;
	if (g->only_rank[i] >= 0)
		return g->only_rank[i];
	/* One of several ranks. This node's sum knows it, or the other node said it. */
	return g->node[i] == m->server->self
		       ? g->chunk[chunk].bad_rank
		       : g->bad_rank_in[(size_t)i * m->layout->chunks_nr + chunk];
}

static void blame(struct model *m, enum reduce_stage stage, uint32_t chunk,
		  const struct tier_result *r)
{
	struct contrib_chunk *c = &m->contrib.chunk[chunk];
	int32_t rank = -1;

	for (uint32_t i = 0; i < sources_nr(m, stage) && rank < 0; i++)
		if (r->bad_sources >> i & 1)
			rank = rank_of(m, stage, chunk, i);
	c->bad_rank = rank;
	c->bad_tensor = m->layout->segment_tensor[r->bad_segment];
}

/* After the last sum: the segments for which nobody has a gradient. */
static void mark_zero(struct model *m, enum reduce_stage stage, uint32_t chunk)
{
	const struct layout *l = m->layout;

	for (uint32_t s = l->chunk_segment[chunk]; s < l->chunk_segment[chunk + 1]; s++) {
		bool zero = !layout_frozen(l, s);

		for (uint32_t i = 0; i < sources_nr(m, stage) && zero; i++)
			zero = absent(m, stage, i)[s] != 0;
		m->contrib.zero[s] = zero;
	}
}

/* A tag has the attempt's epoch, the stage and the chunk. */
static uint64_t tag_of(const struct model *m, enum reduce_stage stage, uint32_t chunk)
{
	return (uint64_t)m->attempt.epoch << 32 | (uint64_t)stage << STAGE_AT | chunk;
}

static void took(struct model *m, enum reduce_stage stage, uint32_t chunk,
		 const struct tier_result *r)
{
	struct contrib_chunk *c = &m->contrib.chunk[chunk];

	if (stage == REDUCE_CODE) {
		contrib_summed(m, chunk);
		return;
	}
	if (stage == REDUCE_COPY) {
		c->base_inside = r->inside;
		grad_copied(m, chunk, r);
		apply_stage(m, chunk);
		return;
	}
	c->finite = r->finite;
	c->sumsq = r->sumsq;
	c->bad_tensor = -1;
	if (!r->finite)
		blame(m, stage, chunk, r);
	else
		c->bad_rank = -1;
	if (!reduce_final(m, stage, chunk)) {
		contrib_added(m, chunk);
		return;
	}
	mark_zero(m, stage, chunk);
	c->base_inside = r->inside;
	c->base = destination(m, stage, chunk);
	c->reduced = true;
	grad_reduced(m, chunk); /* First, because the vote may end all that an attempt has. */
	apply_stage(m, chunk);
}

void reduce_begins(struct model *m)
{
	if (m->contrib.reduce_began_ns == 0)
		m->contrib.reduce_began_ns = clock_ns();
}

static void ended(struct model *m)
{
	m->contrib.reduce_ns = clock_ns() - m->contrib.reduce_began_ns;
}

void reduce_added(struct model *m, uint32_t chunk, const struct tier_result *r)
{
	CHECK(m->attempt.on);
	ended(m);
	took(m, REDUCE_LOCAL, chunk, r);
}

static void done(void *owner, uint64_t tag, const struct tier_result *r)
{
	struct model *m = owner;

	CHECK(m->contrib.sums > 0);
	m->contrib.sums--;
	ended(m);
	if (tag >> 32 == m->attempt.epoch && m->attempt.on && !m->memory.tier_lost)
		took(m, (uint32_t)tag >> STAGE_AT, tag & CHUNK_MASK, r);
	data_release(m);
}

/* --- the queue --- */

static enum tier_how how_of(const struct model *m, enum reduce_stage stage)
{
	if (stage == REDUCE_CODE)
		return TIER_ENCODE;
	return stage == REDUCE_NODES && m->contrib.coded ? TIER_DECODE : TIER_PLAIN;
}

static enum shard_status hand_out(struct model *m, enum reduce_stage stage, uint32_t chunk)
{
	struct tier_call call = {.done = done, .owner = m, .tag = tag_of(m, stage, chunk)};
	struct tier_sum sum = {.chunk = chunk,
			       .sources_nr = sources_nr(m, stage),
			       .to = destination(m, stage, chunk),
			       .how = how_of(m, stage),
			       .codes = &m->codes,
			       .pre = stage == REDUCE_LOCAL ? m->contrib.pre : 1,
			       .norm = reduce_final(m, stage, chunk)};
	enum shard_status st;

	CHECK(sum.sources_nr <= NR(sum.source));
	if (m->contrib.sums >= data_jobs_max(m))
		return SHARD_AGAIN;
	if (stage == REDUCE_CODE)
		sum.residual = contrib_residual(m, chunk);
	if (stage == REDUCE_LOCAL && m->contrib.local_nr > 1)
		sum.share = m->contrib.share;
	for (uint32_t i = 0; i < sum.sources_nr; i++) {
		sum.source[i] =
			(struct tier_source){operand(m, stage, i, chunk), absent(m, stage, i)};
		sum.node[i] = (uint8_t)source_node(m, stage, i, chunk);
		if (stage > REDUCE_CODE && sum.how == TIER_PLAIN)
			sum.inside |= (m->contrib.chunk[chunk].inside >> sum.node[i] & 1) << i;
	}
	call.here = layout_chunk_elems(m->layout, chunk) <= SERVER_SMALL_ELEMS;
	m->contrib.sums++;
	m->attempt.busy++;
	if ((st = m->tier->row->sum(m->tier, &sum, &call)) == SHARD_OK)
		return SHARD_OK;
	m->contrib.sums--;
	m->attempt.busy--;
	return st;
}

void reduce_submit(struct model *m, enum reduce_stage stage, uint32_t chunk)
{
	struct contrib_due *due = &m->contrib.due;
	uint32_t chunks = m->layout->chunks_nr;

	CHECK(chunk < chunks && m->attempt.on && due->nr < chunks);
	reduce_begins(m);
	if (due->nr == 0 && hand_out(m, stage, chunk) == SHARD_OK)
		return;
	due->sum[(due->first + due->nr++) % chunks] = (uint32_t)stage << STAGE_AT | chunk;
}

void reduce_feed(struct model *m)
{
	struct contrib_due *due = &m->contrib.due;

	while (due->nr > 0) {
		uint32_t first = due->first, sum = due->sum[first];

		if (!m->attempt.on) {
			due->nr = 0; /* contrib_begin() empties it, too. */
			return;
		}
		/* Taken out first: a small chunk is done at once, and what that brings about may
		 * end the attempt, begin another one, or add a sum here. */
		due->first = (first + 1) % m->layout->chunks_nr;
		due->nr--;
		if (hand_out(m, (enum reduce_stage)(sum >> STAGE_AT), sum & CHUNK_MASK) !=
		    SHARD_OK) {
			due->first = first;
			due->nr++;
			return;
		}
	}
}
