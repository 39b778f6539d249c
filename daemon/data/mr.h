/* SPDX-License-Identifier: Apache-2.0 */
/* mr.h: the memory of a model, for RDMA. On this node, each peer gets memory that it may write: its
 * landing slots and the image chunks that it holds and this node does not. With an image_codec it
 * gets the places of the codes of these chunks instead. Memory that is sent to the peer is
 * registered, too, but only this node reads it. Masters and moments are never registered. Threads
 * register the memory once, and the peer is told of it when all of it is registered. Of the memory
 * on a peer, this node keeps the checked addresses that the peer told. No number of a peer is ever
 * used on memory here. */
#ifndef SHARD_MR_H
#define SHARD_MR_H

#include "data/model.h"
#include "link/rdma.h"
#include "store/tier_gpu.h"

/* Runs of a peer's chunks in an image, or in its codes. If there are more, all are registered as
 * one. */
#define MR_RUNS_MAX 64

/* The kinds of memory of a model. From MR_ARENA on there is one for each arena. */
enum {
	MR_SLOTS,
	MR_SUMS,
	MR_CODES,                              /* The codes of contributions, to be read. */
	MR_DELTAS,                             /* The codes of images, to be read. */
	MR_OWN,                                /* The images, to be read. */
	MR_IMAGE = MR_OWN + 2,                 /* Runs of the images, to be written. */
	MR_PATCH = MR_IMAGE + 2 * MR_RUNS_MAX, /* Runs of the codes of images, to be written. */
	MR_DIRECT = MR_PATCH + MR_RUNS_MAX,    /* Direct slots, to be written: one for each GPU. */
	MR_ARENA = MR_DIRECT + GPU_DEVICES_MAX,
};

struct mr_run { /* Chunks of an image that lie one after the other. */
	uint32_t first, chunks;
};

static inline bool mr_run_has(const struct mr_run *r, uint32_t chunk)
{
	return chunk >= r->first && chunk - r->first < r->chunks;
}

struct mr_place {
	uint64_t address;
	uint32_t rkey, image;
	struct mr_run run;
};

struct mr_peer {
	struct mr_run run[MR_RUNS_MAX]; /* The runs of its chunks in an image. */
	uint32_t runs_nr;
	struct rdma_region *
		*here; /* [MR_ARENA + local_world] In the peer's domain. NULL: not registered. */
	struct mr_job *job; /* The job that registers more. */
	bool told;          /* The peer was told since the queue pairs are up. */
	uint64_t untold;    /* The record's step when .told became false. UINT64_MAX: never. */
	bool direct;    /* It was told of direct slots, and writes nowhere else for their chunks. */
	bool no_direct; /* They could not be registered since the queue pairs are up. */
	bool direct_said; /* Why it is told of none is in the log. */
	bool releasing;   /* The peer is to write nothing more, and has not answered. */
	uint64_t release_by_ns, again_ns, backoff_ns;
	char why[ERR_TEXT_BYTES]; /* What could not be registered. Empty: everything could. */
	/* The fields below are about memory on the peer. */
	bool known, release_due;
	bool elsewhere; /* Its memory was made for other chunks than this node computes. */
	struct mr_place slots, image[2 * MR_RUNS_MAX], codes[MR_RUNS_MAX],
		direct_there[GPU_DEVICES_MAX];
	uint32_t images_nr, codes_nr, directs_nr;
	uint32_t posted; /* Frames to the peer that are not completed. */
};

struct mr {
	struct list link; /* In server.mr, as long as there is memory. */
	struct model *m;
	/* [chunks_nr] The nodes that have memory for each chunk, as the placement was when this was
	 * made. The memory of a peer was made for the same chunks, unless it says another sum. */
	uint64_t *keepers;
	/* [chunks_nr * keepers_max] The first element of each chunk among those that a node has
	 * memory for, for each of these nodes in the order of their slots. */
	uint64_t *held_at;
	uint32_t keepers_max;
	uint64_t sum[CONFIG_NODES_MAX];  /* [node] Over the chunks that it has memory for. */
	uint64_t held[CONFIG_NODES_MAX]; /* [node] The elements that it has memory for. */
	uint64_t arenas;                 /* The arenas in use. A bit for each slot. */
	uint32_t arena_epoch[CONTRIB_LOCAL_MAX];
	/* Frames to and from nodes that have joined since go by TCP. */
	uint16_t nodes_nr;
	struct mr_peer peer[]; /* [nodes_nr] By node. */
};

enum shard_status mr_init(struct model *m, struct err *e);
/* Called before the memory is unmapped. A thread that is registering some of it gives its regions
 * back itself. */
void mr_free(struct model *m);
void mr_made(struct model *m); /* All memory of the model is there. */
void mr_arena_opened(struct model *m, uint32_t slot);
void mr_arena_closed(struct model *m, uint32_t slot);
void mr_rail_up(struct peer *p);
void mr_rail_down(struct peer *p);
void mr_beat(struct peer *p, uint64_t now_ns); /* Tries again what could not be registered. */
void mr_forget(struct server *s); /* Deregisters everything, because the device is gone. */
void mr_drop(struct model *m);    /* Asks the peers to write nothing more. */
bool mr_quiet(const struct model *m, uint64_t now_ns);
const char *mr_why(
	const struct peer *p); /* Why some memory is not registered. NULL: all of it is. */
/* Has the peer told of memory of a model since the queue pairs are up? */
bool mr_heard(const struct peer *p);
/* The body of this frame came by RDMA. *to: where it would be over TCP. It becomes where it is.
 * False: that is no memory that the peer may write. */
bool mr_landed(struct model *m, uint16_t node, const struct wire_head *h, void **to);
/* May a peer have written codes of the next image where those of the chunk are? It may since this
 * node voted, if it was told of that place, also over queue pairs that are gone. */
bool mr_codes_overwritten(const struct model *m, uint32_t chunk);

/* route.c */
enum shard_status mr_told(struct peer *p, const struct wire_head *h, const Shard__Regions *body,
			  struct err *e);
/* Can this chunk go by RDMA? If so, fills in how. */
/* at: where the contribution, as it is or as codes, or the reduced gradient lies, so many bytes.
 * absent: how many tensors its last frame names. slot: which of two images. */
bool mr_contribution(const struct model *m, const struct peer *p, uint32_t chunk, const void *at,
		     uint64_t bytes, uint32_t absent, struct send_route *out);
bool mr_image(const struct model *m, const struct peer *p, uint32_t slot, uint32_t chunk,
	      struct send_route *out);
bool mr_codes(const struct model *m, const struct peer *p, uint32_t chunk, struct send_route *out);
void mr_posted(struct model *m, uint16_t node);
void mr_sent(struct model *m, uint16_t node);
/* In mr.c, for route.c. mr_tell(): tells the peer of everything again. mr_held_at(): the first
 * element of a chunk among all that the node has memory for, of which this is one. */
void mr_tell(struct mr *g, uint16_t node);
uint64_t mr_held_at(const struct model *m, uint16_t node, uint32_t chunk);
/* Is the chunk one of those that the node's memory was made with? */
bool mr_held(const struct model *m, uint16_t node, uint32_t chunk);

#endif
