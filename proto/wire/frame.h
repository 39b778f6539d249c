/* SPDX-License-Identifier: Apache-2.0 */
/* frame.h: the 64-byte header and its checks, without I/O. README.md is the specification. */
#ifndef SHARD_WIRE_FRAME_H
#define SHARD_WIRE_FRAME_H

#include "base/status.h"

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WIRE_MAGIC 0x44524853u /* "SHRD" in memory order. */
#ifndef WIRE_VERSION
#define WIRE_VERSION 1u
#endif
/* Grows with each field that a node may leave out, so that nodes of two releases form one cluster
 * while it is upgraded. A build with a lower number is an older release for its peers. */
#ifndef WIRE_MINOR
#define WIRE_MINOR 12u
#endif
/* The WIRE_MINOR from which a node, or a daemon for its trainers, knows what. README.md has each.
 */
enum wire_since {
	WIRE_MOVES = 2,   /* Views whose chunks have moved. */
	WIRE_JOINS = 3,   /* Nodes that join, and HISTORY. */
	WIRE_MEMBERS = 4, /* Models that began without some nodes. */
	WIRE_CLIENT = 5,  /* Files of trainers in a checkpoint. */
	WIRE_IMAGES = 5,  /* Tensors with an image dtype of their own. */
	WIRE_EMPTY = 6,   /* Tensors without elements. */
	WIRE_GROUPS = 6,  /* More than 16 groups of a model. */
	WIRE_VALUES = 6,  /* Values and a clip that ranks give with a step. */
	WIRE_HYPER = 6,   /* Hyper-parameters that an operator sets. */
	WIRE_GONE = 7,    /* Nodes that are drained while they are away. */
	WIRE_HEALTH = 9,  /* What a node finds wrong, and what the coordinator knows of models. */
	WIRE_SHARES = 10, /* Gradients that the ranks of a node push in shares. */
	WIRE_DEVICE = 11, /* Images on the GPUs of trainers. */
	WIRE_HELD = 11,   /* HELD of one model whose copy was lost, where nobody is elected. */
	WIRE_GRADS = 12,  /* Gradients on the GPUs of trainers. */
};
enum wire_device { WIRE_DEVICE_IMAGE, WIRE_DEVICE_GRADS }; /* What DEVICE asks for. */
#define WIRE_NODES           "10" /* Version of the messages between nodes. A change raises it. */
#define WIRE_REPLY           1u   /* flags bit 0: answers the request of this op and tag. */
#define WIRE_FLAGS_KNOWN     0xffff0001u
#define WIRE_PART(flags)     ((flags) >> 16) /* flags bits 16-31: index of the part in its chunk. */
#define WIRE_PART_FLAG(part) ((uint32_t)(part) << 16)
#define FEATURE_BODY_SUM     1ull
#define FEATURE_AUTH                                                                               \
	2ull /* HELLO over TCP: the sender has a secret and wants the proofs of both ends. */
#define FEATURE_RDMA 4ull /* The node knows RAIL and REGION and wants RDMA. */
#define FEATURE_RDMA_SUM                                                                           \
	8ull /* The node wants bodies summed over RDMA. They are, unless both left it out. */
#define FEATURE_RDMA_DIRECT 16ull /* The node knows regions of direct slots. */

/* Little-endian. This code runs on little-endian machines only, which frame.c checks. */
struct wire_head {
	uint32_t magic;
	uint16_t version;
	uint16_t op;
	uint32_t flags;
	uint32_t model;
	uint32_t generation;
	uint32_t seq;
	uint64_t term;
	uint64_t step;
	uint32_t attempt; /* Of a step. In requests and replies it is the tag that pairs them. */
	uint32_t chunk;
	uint64_t body_sum; /* XXH3-64 of the body. 0 if it is empty or sums are off. */
	uint32_t body_bytes;
	/* Low half of XXH3-64 of the 60 bytes before it. The seed is the frame's ordinal on its
	 * connection. */
	uint32_t head_sum;
};
static_assert(sizeof(struct wire_head) == 64, "wire_head is frozen at 64 bytes");
static_assert(offsetof(struct wire_head, op) == 6, "frozen");
static_assert(offsetof(struct wire_head, flags) == 8, "frozen");
static_assert(offsetof(struct wire_head, model) == 12, "frozen");
static_assert(offsetof(struct wire_head, generation) == 16, "frozen");
static_assert(offsetof(struct wire_head, seq) == 20, "frozen");
static_assert(offsetof(struct wire_head, term) == 24, "frozen");
static_assert(offsetof(struct wire_head, step) == 32, "frozen");
static_assert(offsetof(struct wire_head, attempt) == 40, "frozen");
static_assert(offsetof(struct wire_head, chunk) == 44, "frozen");
static_assert(offsetof(struct wire_head, body_sum) == 48, "frozen");
static_assert(offsetof(struct wire_head, body_bytes) == 56, "frozen");
static_assert(offsetof(struct wire_head, head_sum) == 60, "head_sum is last");

/* Fills magic, version and sums. ordinal counts the frames that were sent before this one on the
 * connection in this direction. */
void wire_seal(struct wire_head *h, const void *body, uint64_t ordinal, bool body_sum);
/* Returns why a received header is refused, as a static text, or NULL. It checks everything that
 * needs no context. */
const char *wire_invalid(const struct wire_head *h, uint64_t ordinal, bool body_sum);
/* True if the body is tensor bytes. For some ops that holds only for the reply. */
bool wire_bulk(const struct wire_head *h);

#endif
