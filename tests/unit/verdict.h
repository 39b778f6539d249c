/* SPDX-License-Identifier: Apache-2.0 */
/* verdict.h: the states that test_verdict.c enumerates, and how they are compared. */
#ifndef TEST_VERDICT_H
#define TEST_VERDICT_H

#include "core/inner.h"

#define FIRST_STEP   1
#define MESSAGES_MAX 256
#define DEPTH_MAX    200
#define STATES_MAX   6000000
#define CORE_ROOM    12288
#define WARM_ROOM    1728

struct shape {
	uint16_t nodes_nr;
	uint32_t chunks_nr;
	uint16_t owner[2];
	int restarts, abandons, flaps, holds, warms, takeovers;
	bool lr_differs; /* in every first attempt: it must never be committed */
};

struct state { /* of the cluster; compared by its bytes */
	_Alignas(16) unsigned char memory[CORE_NODES_MAX][CORE_ROOM];
	unsigned char warm[CORE_NODES_MAX][WARM_ROOM]; /* saved last */
	uint64_t hash[CORE_NODES_MAX];                 /* of memory */
	uint64_t warm_hash[CORE_NODES_MAX];
	uint64_t incarnation[CORE_NODES_MAX], starts[CORE_NODES_MAX];
	uint64_t sent[MESSAGES_MAX / 64];
	struct core_view disk;
	bool has_pending, persisted_heard;
	struct core_view pending;
	int restarts, abandons, flaps, holds, warms, takeovers; /* left */
	uint16_t leader; /* elected last; another one may believe that it still leads */
	uint64_t term;   /* of that election */
	bool has_committed, held, down; /* down: the flapping link */
	struct core_id committed;
	struct core_id draining[CORE_NODES_MAX], prepared[CORE_NODES_MAX];
};

struct message {
	struct core_msg msg;
	struct core_world world;
	struct record record;
	struct core_view view;
	struct core_answer answer;
	double sumsq[2], weights[2], lr, answer_sumsq[2], answer_weights[2], answer_lr;
	double values[2], answer_values[2];
	uint8_t finite[2], answer_finite[2];
	char why[CORE_WHY_BYTES];
	uint64_t hash;
};

/* A transition changes one node or two of them, so states are copied by node. */
#define STATE_REST offsetof(struct state, hash)

struct search {
	struct shape shape;
	struct state *at; /* [DEPTH_MAX] */
	struct message message[MESSAGES_MAX];
	uint32_t messages_nr;
	uint64_t *seen;
	size_t seen_bits, states_nr, transitions_nr, limit;
	size_t room;      /* What the core of a node takes of CORE_ROOM. */
	uint32_t touched; /* The nodes whose memory the last transition has changed. */
	struct core_out out;
	_Alignas(64) unsigned char idle[WARM_ROOM];
	const char *failed;
	char path[DEPTH_MAX][48];
	uint32_t depth, deepest, commits, losts;
	uint64_t last_progress;
};

static uint64_t mix(uint64_t h, uint64_t v)
{
	h = h * 0x9e3779b97f4a7c15ull + v;
	h = (h ^ h >> 32) * 0xd6e8feb86659fd93ull;
	return h ^ h >> 29;
}

static uint64_t mix_id(uint64_t h, const struct core_id *id)
{
	return mix(mix(mix(mix(mix(h, id->term), id->seq), id->generation), id->step), id->attempt);
}

static uint64_t hash_bytes(const void *p, size_t bytes) /* a multiple of 32 */
{
	const uint64_t *w = p;
	uint64_t h[4] = {1, 2, 3, 4};

	for (size_t i = 0; i < bytes / 8; i += 4) {
		for (size_t j = 0; j < 4; j++) {
			h[j] = (h[j] ^ w[i + j]) * 0x9e3779b97f4a7c15ull;
			h[j] ^= h[j] >> 31;
		}
	}
	return mix(mix(h[0], h[1]), mix(h[2], h[3]));
}

static bool seen_before(struct search *q, uint64_t h) /* open addressing; 0 is free */
{
	size_t at = h & (((size_t)1 << q->seen_bits) - 1);

	for (; q->seen[at]; at = (at + 1) & (((size_t)1 << q->seen_bits) - 1)) {
		if (q->seen[at] == h)
			return true;
	}
	q->seen[at] = h ? h : 1;
	return false;
}

#endif
