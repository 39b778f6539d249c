/* SPDX-License-Identifier: Apache-2.0 */
/* gather.h: the way of a gradient from the arenas of local ranks to the reduced gradient of a chunk: what was pushed, the node's
 * sum, the contributions to and from other nodes, the sum over nodes with its norm. ../proto/wire/ARITHMETIC.md has the order of
 * every operation. All memory is made with the model. */
#ifndef SHARD_GATHER_H
#define SHARD_GATHER_H

#include "core/record.h"
#include "shard.pb-c.h"
#include "wire/frame.h"

struct model;
struct session;
struct peer;

#define GATHER_LOCAL_MAX 64 /* trainers per node: one bit each */

struct gather_chunk {
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

struct gather_rank {             /* local ranks of the attempt, in rank order */
	struct session *session; /* NULL: gone */
	uint32_t rank, slot, chunks_pushed;
	bool ready;
	uint64_t pushed_ns;
};

struct gather {
	uint32_t local_nr, nodes_nr;
	struct gather_rank local[GATHER_LOCAL_MAX];
	uint16_t node[CORE_NODES_MAX];     /* contributing nodes in node order (by lowest rank) */
	int8_t place[CORE_NODES_MAX];      /* node -> its place in that order; -1: no ranks there */
	int32_t only_rank[CORE_NODES_MAX]; /* by place: the rank, if the node has just one; else -1 */
	float pre;                         /* every rank's gradient is multiplied by it in the node's sum; 1: it is not */
	uint64_t credit;                   /* nodes that granted us slots for this attempt */
	struct gather_chunk *chunk;        /* [chunks_nr] */
	uint8_t *absent_local;             /* [local_world][segments_nr] no gradient from that rank */
	uint8_t *absent_node;              /* [nodes_nr][segments_nr] none from that place */
	uint8_t *zero;                     /* [segments_nr] none from anybody */
	uint16_t *parts_in;                /* [nodes_nr][chunks_nr] parts of a contribution received; GATHER_CLOSED: all */
	uint16_t *push_parts;              /* [local_world][chunks_nr] the same for trainers over TCP */
	int32_t *bad_rank_in;              /* [nodes_nr][chunks_nr] what the contributor said of its own ranks; -1 */
	uint64_t reduce_began_ns, reduce_ns;
};
#define GATHER_CLOSED UINT16_MAX

enum shard_status gather_init(struct model *m, struct err *e);
void gather_free(struct model *m);
void gather_begin(struct model *m); /* m->world, m->id_now are set */
/* About to vote: what is needed to apply it outlives the process. And the same found again, of attempt m->id_now of m->world. */
void gather_keep(struct model *m);
enum shard_status gather_again(struct model *m, struct err *e);

enum shard_status gather_push_head(struct session *t, const struct wire_head *h, void **to, struct err *e);
enum shard_status gather_push_data(struct session *t, const struct wire_head *h, struct err *e);
enum shard_status gather_push(struct session *t, const struct wire_head *h, const Shard__Push *body, struct err *e);
void gather_session_gone(struct model *m, struct session *t);

void gather_credit(struct model *m, uint16_t node);
enum shard_status gather_contrib_head(struct model *m, struct peer *p, const struct wire_head *h, void **to, struct err *e);
enum shard_status gather_contrib_data(struct model *m, struct peer *p, const struct wire_head *h, struct err *e);
enum shard_status gather_contrib(struct model *m, struct peer *p, const struct wire_head *h, const Shard__Push *body,
				 struct err *e);

/* For sums.c: this node's contribution is ready; which segments have no gradient, [segments_nr] by local index and by place. */
void gather_summed(struct model *m, uint32_t chunk);
uint8_t *gather_absent_local(const struct model *m, uint32_t i);
uint8_t *gather_absent_node(const struct model *m, uint32_t place);

/* For outbox.c: this node's contribution. */
const uint8_t *gather_contribution(const struct model *m, uint32_t chunk);
bool gather_part_absent(const struct model *m, uint32_t chunk, uint32_t part);
/* Fills at most max tensors without a gradient from this node; returns how many there are. */
uint32_t gather_absent(const struct model *m, uint32_t chunk, uint32_t *tensors, uint32_t max);

#endif
