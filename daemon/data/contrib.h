/* SPDX-License-Identifier: Apache-2.0 */
/* contrib.h: the way of a gradient from the arenas of local ranks to the reduced gradient of a
 * chunk: what was pushed, the node's sum, the contributions to and from other nodes, the sum over
 * nodes with its norm. ../proto/wire/ARITHMETIC.md has the order of every operation. All memory is
 * made with the model. */
#ifndef SHARD_GATHER_H
#define SHARD_GATHER_H

#include "core/record.h"
#include "data/parts.h"
#include "shard.pb-c.h"
#include "wire/frame.h"

struct model;
struct trainer;
struct peer;

#define CONTRIB_LOCAL_MAX 64 /* trainers per node: one bit each */

struct contrib_chunk {
	uint64_t pushed;  /* local ranks (bit: index among them) that closed it */
	uint64_t arrived; /* nodes (bit: place in node order) whose contribution is here */
	double sumsq;
	int64_t bad_tensor;
	int32_t bad_rank;
	bool summed;  /* this node's contribution is ready */
	bool sent;    /* it is on its way to the holder */
	bool reduced; /* held here: staged */
	bool finite;
	uint8_t *base; /* where the reduced gradient is, once staged */
};

struct contrib_rank {            /* local ranks of the attempt, in rank order */
	struct trainer *trainer; /* NULL: gone */
	uint32_t rank, slot, chunks_pushed;
	bool ready;
	uint64_t pushed_ns;
};

struct contrib {
	uint32_t local_nr, nodes_nr;
	struct contrib_rank local[CONTRIB_LOCAL_MAX];
	uint16_t node[CORE_NODES_MAX];     /* contributing nodes in node order (by lowest rank) */
	int8_t place[CORE_NODES_MAX];      /* node -> its place in that order; -1: no ranks there */
	int32_t only_rank[CORE_NODES_MAX]; /* by place: the rank, if the node has just one; else -1
					    */
	float pre; /* every rank's gradient is multiplied by it in the node's sum; 1: it is not */
	uint64_t credit;             /* nodes that granted us slots for this attempt */
	struct contrib_chunk *chunk; /* [chunks_nr] */
	uint8_t *absent_local;       /* [local_world][segments_nr] no gradient from that rank */
	uint8_t *absent_node;        /* [nodes_nr][segments_nr] none from that place */
	uint8_t *zero;               /* [segments_nr] none from anybody */
	struct parts parts_in;       /* [nodes_nr][chunks_nr] of contributions, by place */
	struct parts push_parts;     /* [local_world][chunks_nr] of trainers over TCP */
	int32_t *bad_rank_in; /* [nodes_nr][chunks_nr] what the contributor said of its own ranks;
				 -1 */
	uint64_t reduce_began_ns, reduce_ns;
};

enum shard_status contrib_init(struct model *m, struct err *e);
void contrib_free(struct model *m);
void contrib_begin(struct model *m); /* m->attempt.world, m->attempt.id are set */
/* About to vote for attempt id: what is needed to apply it outlives the process. And the same found
 * again, of attempt m->attempt.id of m->attempt.world. */
void contrib_keep(struct model *m, const struct core_id *id);
enum shard_status contrib_again(struct model *m, struct err *e);

enum shard_status contrib_push_head(struct trainer *t, const struct wire_head *h, void **to,
				    struct err *e);
enum shard_status contrib_push_data(struct trainer *t, const struct wire_head *h, struct err *e);
enum shard_status contrib_push(struct trainer *t, const struct wire_head *h,
			       const Shard__Push *body, struct err *e);
void contrib_trainer_gone(struct model *m, struct trainer *t);

void contrib_credit(struct model *m, uint16_t node);
enum shard_status contrib_node_head(struct model *m, struct peer *p, const struct wire_head *h,
				    void **to, struct err *e);
void contrib_node_damaged(struct model *m, struct peer *p, const struct wire_head *h);
enum shard_status contrib_node_data(struct model *m, struct peer *p, const struct wire_head *h,
				    struct err *e);
enum shard_status contrib_node(struct model *m, struct peer *p, const struct wire_head *h,
			       const Shard__Push *body, struct err *e);

/* For reduce.c: this node's contribution is ready; which segments have no gradient, [segments_nr]
 * by local index and by place. */
void contrib_summed(struct model *m, uint32_t chunk);
uint8_t *contrib_absent_local(const struct model *m, uint32_t i);
uint8_t *contrib_absent_node(const struct model *m, uint32_t place);

/* This node's contribution: where it lies, and how it leaves. */
extern const struct send_source contrib_chunks;
const uint8_t *contrib_here(const struct model *m, uint32_t chunk);

#endif
