/* SPDX-License-Identifier: Apache-2.0 */
/* grad.h: the reduced gradient of a chunk on its way from the primary, which made it, to the other
 * nodes that have memory for the chunk. All memory is made with the model, and none is made for a
 * model of one copy. */
#ifndef SHARD_DATA_GRAD_H
#define SHARD_DATA_GRAD_H

#include "data/model_parts.h"
#include "data/parts.h"
#include "shard.pb-c.h"
#include "wire/frame.h"

struct model;
struct peer;
struct tier_result;

struct grad_said { /* What the primary said of a chunk that it reduced. */
	double sumsq;
	int64_t bad_tensor;
	int32_t bad_rank;
	bool whole; /* All of its gradient is here. Only then do the other fields count. */
	bool finite;
	bool differs; /* This node found something else, which then stands in contrib_chunk. */
};

struct grad {
	struct send_queue *out; /* [memory.nodes_nr * connections] */
	uint64_t *sent;        /* [chunks_nr] The nodes that it was sent to, with a bit for each. */
	struct parts parts_in; /* [chunks_nr] Parts that came of its primary. */
	struct grad_said *said; /* [chunks_nr] */
	/* [segments_nr] Nothing of the segment travels, because nobody has a gradient for it or it
	 * is frozen. */
	uint8_t *absent;
	struct model_flow in; /* Of the step in hand. */
	uint64_t differed;    /* Chunks that had another norm here than their primary said. */
};

extern const struct send_source grad_chunks; /* How reduced gradients leave. */
enum shard_status grad_init(struct model *m, struct err *e);
void grad_free(struct model *m);
void grad_begin(struct model *m);
void grad_drop(struct model *m); /* The attempt is over: drops what waits to be sent. */
void grad_node_drop(struct model *m, uint16_t node); /* Drops what waits for that node. */
void grad_node_gone(struct model *m, uint16_t node);
void grad_node_back(struct model *m, uint16_t node);

/* At the primary. The chunk is reduced: sends it to every follower that has granted its slots. */
void grad_reduced(struct model *m, uint32_t chunk);
/* The node granted its slots: sends it all that is reduced here. */
void grad_credit(struct model *m, uint16_t node);

/* At a follower, as for contributions. */
enum shard_status grad_node_head(struct model *m, struct peer *p, const struct wire_head *h,
				 void **to, struct err *e);
enum shard_status grad_node_data(struct model *m, struct peer *p, const struct wire_head *h,
				 struct err *e);
void grad_node_damaged(struct model *m, struct peer *p, const struct wire_head *h);
/* whole: the gradient is in its landing slot now, all of it, to be copied from there. */
enum shard_status grad_node(struct model *m, struct peer *p, const struct wire_head *h,
			    const Shard__Grad *body, bool *whole, struct err *e);
/* The gradient was copied to memory that only this daemon writes, with this norm. */
void grad_copied(struct model *m, uint32_t chunk, const struct tier_result *r);

#endif
