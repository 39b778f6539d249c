/* SPDX-License-Identifier: Apache-2.0 */
/* mr.h: a model's memory and RDMA. Here: for each peer its landing slots and the image chunks
 * that it holds, which it may write, and what is sent to it, which only this node reads; masters
 * and moments never. Registered once, by threads, and told when all of it is. There: where this
 * node may write, as the peer said, checked; no number of it is ever used on memory here. */
#ifndef SHARD_REGIONS_H
#define SHARD_REGIONS_H

#include "data/model.h"
#include "link/rdma.h"

#define MR_RUNS_MAX 64 /* of a peer's chunks in an image; more are registered as one */

/* kinds of memory of a model, beside one of each arena from MR_ARENA on */
enum {
	MR_SLOTS,
	MR_SUMS,
	MR_OWN,                /* image, to read */
	MR_IMAGE = MR_OWN + 2, /* to be written */
	MR_ARENA = MR_IMAGE + 2 * MR_RUNS_MAX,
};

struct mr_run { /* chunks of an image that lie one after the other */
	uint32_t first, chunks;
};

struct mr_place {
	uint64_t address;
	uint32_t rkey, image;
	struct mr_run run;
};

struct mr_peer {
	struct mr_run run[MR_RUNS_MAX]; /* of its chunks in an image */
	uint32_t runs_nr;
	struct rdma_region *
		*here; /* [MR_ARENA + local_world] in the peer's domain; NULL: not registered */
	struct mr_job *job; /* registers more */
	bool told;          /* since the rail is up */
	bool releasing;     /* it is to write nothing more, and has not answered */
	uint64_t release_by_ns, again_ns, backoff_ns;
	char why[ERR_TEXT_BYTES]; /* what could not be registered; empty: nothing */
	/* there */
	bool known, release_due;
	struct mr_place slots, image[2 * MR_RUNS_MAX];
	uint32_t images_nr;
	uint32_t posted; /* frames to it that are not completed */
};

struct mr {
	struct list link; /* in server.regions, as long as there is memory */
	struct model *m;
	uint64_t *held_at; /* [chunks_nr] first element among the chunks of the same holder */
	uint64_t held[CONFIG_NODES_MAX]; /* elements of all of them */
	uint64_t arenas;                 /* in use; bit: slot */
	uint32_t arena_epoch[CONTRIB_LOCAL_MAX];
	struct mr_peer peer[]; /* [nodes_nr] */
};

enum shard_status mr_init(struct model *m, struct err *e);
void mr_free(struct model *m); /* before its memory goes; a thread that registers some of it
				       gives that back itself */
void mr_made(struct model *m); /* all of it is there */
void mr_arena_opened(struct model *m, uint32_t slot);
void mr_arena_closed(struct model *m, uint32_t slot);
void mr_rail_up(struct peer *p);
void mr_rail_down(struct peer *p);
void mr_beat(struct peer *p, uint64_t now_ns); /* tries again what could not be registered */
void mr_forget(struct server *s);              /* deregisters everything: the device goes */
void mr_drop(struct model *m);                 /* asks its peers to write nothing more */
bool mr_quiet(const struct model *m, uint64_t now_ns);
const char *mr_why(
	const struct peer *p);       /* some model's memory could not be registered; NULL: none */
bool mr_heard(const struct peer *p); /* the peer has told memory of a model since the rail is up */
/* May the peer have written here? */
bool mr_has(const struct model *m, uint16_t node, const void *at, uint32_t bytes);

/* route.c */
enum shard_status mr_told(struct peer *p, const struct wire_head *h, const Shard__Regions *body,
			  struct err *e);
/* Can this chunk go by RDMA? slot: of two images. */
/* at: where the contribution lies; absent: tensors that its last frame names. */
bool mr_contribution(const struct model *m, const struct peer *p, uint32_t chunk, const void *at,
		     uint32_t absent, struct send_route *out);
bool mr_image(const struct model *m, const struct peer *p, uint32_t slot, uint32_t chunk,
	      struct send_route *out);
void mr_posted(struct model *m, uint16_t node);
void mr_sent(struct model *m, uint16_t node);
/* mr.c, for route.c: tells it all again. */
void mr_tell(struct mr *g, uint16_t node);

#endif
