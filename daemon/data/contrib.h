/* SPDX-License-Identifier: Apache-2.0 */
/* contrib.h: the way of a gradient from the arenas of local ranks to the reduced gradient of a
 * chunk at its primary. It covers what was pushed, the sum of the node, the contributions to and
 * from other nodes, and the sum over nodes with its norm. ../proto/wire/ARITHMETIC.md has the order
 * of every operation. All memory is made with the model. */
#ifndef SHARD_CONTRIB_H
#define SHARD_CONTRIB_H

#include "core/record.h"
#include "data/parts.h"
#include "shard.pb-c.h"
#include "wire/frame.h"

struct meta_residual;
struct share;
struct model;
struct trainer;
struct peer;

#define CONTRIB_LOCAL_MAX 64 /* Trainers per node. Each has a bit in a word. */

struct contrib_chunk {
	uint64_t pushed; /* The local ranks that closed it. A bit for each local index. */
	/* The nodes whose contribution is here. A bit for each place in node order. */
	uint64_t arrived;
	/* Nodes whose bytes for this chunk came to their direct slot. A bit for each node. */
	uint64_t inside;
	double sumsq;
	int64_t bad_tensor;
	int32_t bad_rank;
	bool summed;  /* The contribution of this node is ready. */
	bool sent;    /* The contribution is on its way to the primary. */
	bool reduced; /* Held here: the reduced gradient is ready. */
	bool finite;
	bool skip;        /* A local rank votes to skip, and has left out what it did not push. */
	bool base_inside; /* .base is where the state of the chunk is, too: struct tier_apply. */
	uint8_t *base;    /* Where the reduced gradient is, once .reduced is set. */
};

struct contrib_rank {            /* A local rank of the attempt. They are in rank order. */
	struct trainer *trainer; /* NULL: it is gone. */
	uint32_t rank, slot, chunks_pushed;
	bool ready;
	bool skip; /* It has left out what it did not push, and will vote to skip. */
	uint64_t pushed_ns;
};

struct contrib_due {   /* Sums that wait until the tier takes them. Owner: data/reduce.c. */
	uint32_t *sum; /* [chunks_nr] A ring. The top bits have the stage, the others the chunk. */
	uint32_t first, nr;
};

struct contrib {
	uint32_t local_nr, nodes_nr;
	struct contrib_rank local[CONTRIB_LOCAL_MAX];
	/* [place] The contributing nodes in node order, which is the order of their lowest
	 * ranks. */
	uint16_t node[CORE_NODES_MAX];
	int8_t place[CORE_NODES_MAX]; /* [node] Its place in that order. -1: no ranks there. */
	/* [place] The rank, if the node has just one. Otherwise -1. */
	int32_t only_rank[CORE_NODES_MAX];
	/* In the sum of the node the gradient of every rank is multiplied by it. 1: it is not. */
	float pre;
	bool coded;                  /* Contributions are codes. */
	uint64_t credit;             /* The nodes that granted us slots for this attempt. */
	struct contrib_chunk *chunk; /* [chunks_nr] */
	uint8_t *absent_local;       /* [local_world][segments_nr] No gradient from that rank. */
	struct share *share;         /* [local_world][segments_nr] Owner: shares.c. */
	uint8_t *absent_node;        /* [CORE_NODES_MAX][segments_nr] None from that place. */
	uint8_t *zero;               /* [segments_nr] None from any node. */
	struct parts parts_in;   /* [CORE_NODES_MAX][chunks_nr] Parts of contributions, by place. */
	struct parts push_parts; /* [local_world][chunks_nr] Parts of pushes over TCP. */
	/* [CORE_NODES_MAX][chunks_nr] The rank with a non-finite gradient that a contributing node
	 * named, or -1. */
	int32_t *bad_rank_in;
	uint64_t reduce_began_ns, reduce_ns;
	uint32_t sums; /* Sums that the tier has in hand, also those of older attempts. */
	struct contrib_due due;
};

enum shard_status contrib_init(struct model *m, struct err *e);
void contrib_free(struct model *m);
void contrib_begin(struct model *m); /* m->attempt.world and m->attempt.id are set. */
/* contrib_keep() is called before the vote for attempt id. What is needed to apply the attempt then
 * outlives the process. contrib_again() finds the same again after a warm start, of attempt
 * m->attempt.id with m->attempt.world. */
void contrib_keep(struct model *m, const struct core_id *id);
enum shard_status contrib_again(struct model *m, struct err *e);

enum shard_status contrib_push_head(struct trainer *t, const struct wire_head *h, void **to,
				    struct err *e);
enum shard_status contrib_push_data(struct trainer *t, const struct wire_head *h, struct err *e);
enum shard_status contrib_push(struct trainer *t, const struct wire_head *h,
			       const Shard__Push *body, struct err *e);
/* The record decides an attempt that this node took part in. If it changes weights, what the codes
 * have lost counts from now on. */
void contrib_lost(const struct model *m, const struct record *r, struct meta_residual *out);
void contrib_trainer_gone(struct model *m, struct trainer *t);

void contrib_credit(struct model *m, uint16_t node);
enum shard_status contrib_node_head(struct model *m, struct peer *p, const struct wire_head *h,
				    void **to, struct err *e);
void contrib_node_damaged(struct model *m, struct peer *p, const struct wire_head *h);
enum shard_status contrib_node_data(struct model *m, struct peer *p, const struct wire_head *h,
				    struct err *e);
enum shard_status contrib_node(struct model *m, struct peer *p, const struct wire_head *h,
			       const Shard__Push *body, struct err *e);
/* The primary of a chunk has sent its reduced gradient. It is copied from the landing slot. */
enum shard_status contrib_node_grad(struct model *m, struct peer *p, const struct wire_head *h,
				    const Shard__Grad *body, struct err *e);

/* Of device_grads_up. All that the local ranks have of the chunk is in arenas of the host. */
void contrib_gathered(struct model *m, uint32_t chunk);

/* For reduce.c. contrib_added(): the sum over the ranks of this node is there, and is coded next,
 * where contributions are. contrib_summed(): the contribution of this node is ready. The other two
 * give the segments without a gradient, [segments_nr], by local index and by place. */
void contrib_added(struct model *m, uint32_t chunk);
void contrib_summed(struct model *m, uint32_t chunk);
uint8_t *contrib_absent_local(const struct model *m, uint32_t i);
uint8_t *contrib_absent_node(const struct model *m, uint32_t place);

/* How the contribution of this node leaves, and where it lies: the sum over the ranks of this node,
 * or its codes. */
extern const struct send_source contrib_chunks;
const uint8_t *contrib_here(const struct model *m, uint32_t chunk);
const uint8_t *contrib_sum(const struct model *m, uint32_t chunk);
uint8_t *contrib_codes(const struct model *m, uint32_t chunk);
/* What the codes of a chunk begin with, and where what they lose goes. */
struct quant_residual contrib_residual(const struct model *m, uint32_t chunk);

#endif
