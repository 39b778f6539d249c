/* SPDX-License-Identifier: Apache-2.0 */
/* model_parts.h: small pieces of struct model. */
#ifndef SHARD_MODEL_PARTS_H
#define SHARD_MODEL_PARTS_H

#include "base/list.h"
#include "cluster/static.h"
#include "core/core.h"

struct model_settle { /* For a warm start: workers make the images again while the loop answers. */
	/* An image here is not made yet, so no vote may leave and no step may be applied. */
	bool on;
	/* The workers first finish the step that was being applied, which some tiles lack. */
	bool apply;
};

struct model;

struct model_durable { /* data/durable.c: nvme_durable = step. */
	bool busy;     /* The disk is being told of a step. No vote leaves. */
	void (*done)(struct model *m);
	bool again;        /* Another one was whole meanwhile. */
	struct core_id at; /* The record that the disk is being told of. */
	struct core_id
		has; /* The last one that outlives a loss of power. Step 0: none, or a seal. */
};

struct device_memory { /* Of GPUs of this node, for trainers there. NULL: there is none. */
	struct device_images *images; /* data/device_images.c */
	struct device_grads *grads;   /* data/device_grads.c */
};

struct model_memory {         /* The memory of one model on each node. */
	uint64_t incarnation; /* Drawn at random when the memory is made. No other memory has it. */
	char *why;            /* What became of the memory before this one. NULL: not known. */
	/* [node] The incarnation of the memory on another node. 0: there is no link, or it is not
	 * heard yet. */
	uint64_t there[CORE_NODES_MAX];
	uint16_t nodes_nr;               /* Of so many nodes there are queues and slots. */
	uint8_t from[STATIC_UUID_BYTES]; /* Other nodes: the coordinator that sent MODEL. */
	struct model_settle settle;
	/* A warm start: no coordinator has confirmed yet that this memory is a member's. */
	bool doubted;
	uint32_t tier_jobs; /* Threads that work on a buffer of its tier. No step waits for them. */
	struct model_durable durable;
	bool tier_lost; /* Its tier does nothing any more. */
	bool ends;      /* Owner: model/odd.c. The process ends for it, and it does nothing. */
	/* Owner: model/devices.c, then control/anew.c. This node has lost its copy, and makes the
	 * model anew: what is kept of it outside of memory stays. */
	bool anew;
	bool unled;          /* This node leads, and not yet this model: see rooms_led(). */
	char unled_why[512]; /* Why it cannot. Empty while it is only not ready yet. */
};

struct model_flow { /* Tensor bytes that came from other nodes for one step. */
	uint64_t began_ns, ended_ns, bytes;
	/* Of the images: bytes since the daemon started. Not kept for contributions. */
	uint64_t total;
};

struct writer_grant { /* The coordinator numbers grants. Term 0: none. */
	uint64_t term;
	uint32_t seq;
};

struct writer { /* model/writer.c */
	/* The newest grant, and the session that has it. The coordinator knows sessions of any node
	 * here, other nodes only their own. session 0: the session has ended. */
	struct writer_grant grant;
	uint64_t session;
	uint32_t pid;
	uint16_t node;
	/* The newest grant under which something was written or counted here. */
	struct writer_grant here;
	/* `now` is a number of this node for `here`, since the last reset. `of` [chunks_nr] has the
	 * number of what is in each chunk. If the two differ, the chunk counts as unwritten, and is
	 * cleared before the first write. */
	uint32_t now, *of;
};

/* The tables of all placements of the model. Owner: model/tables.c. */
struct model_tables {
	struct list kept;
	struct placement defined; /* Those of the definition. Every node has them. */
};

enum feed_what { FEED_NONE, FEED_UPDATE, FEED_SEAL, FEED_SETTLE };
struct model_feed { /* Chunks held here on their way to the tier, in the order of the layout. */
	enum feed_what what;
	uint32_t generation; /* Of the weights. If the model has another, the rest is void. */
	uint32_t next;       /* The first chunk that was not handed out. */
	uint32_t left;       /* Chunks that are to be handed out yet. */
	uint32_t in_hand;    /* Chunks at the tier, also those of a generation that was lost. */
};

#endif
