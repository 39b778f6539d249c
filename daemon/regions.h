/* SPDX-License-Identifier: Apache-2.0 */
/* regions.h: a model's memory and RDMA. Here: for each peer its landing slots and the image chunks that it holds, which it may write, and
 * what is sent to it, which only this node reads; masters and moments never. Registered once, by threads, and told when all of
 * it is. There: where this node may write, as the peer said, checked; no number of it is ever used on memory here. */
#ifndef SHARD_REGIONS_H
#define SHARD_REGIONS_H

#include "model.h"
#include "rail.h"

#define REGIONS_RUNS_MAX 64 /* of a peer's chunks in an image; more are registered as one */

enum { /* kinds of memory of a model, beside one of each arena from REGIONS_ARENA on */
       REGIONS_SLOTS,
       REGIONS_SUMS,
       REGIONS_OWN,                     /* image, to read */
       REGIONS_IMAGE = REGIONS_OWN + 2, /* to be written */
       REGIONS_ARENA = REGIONS_IMAGE + 2 * REGIONS_RUNS_MAX,
};

struct regions_run { /* chunks of an image that lie one after the other */
	uint32_t first, chunks;
};

struct regions_place {
	uint64_t address;
	uint32_t rkey, image;
	struct regions_run run;
};

struct regions_peer {
	struct regions_run run[REGIONS_RUNS_MAX]; /* of its chunks in an image */
	uint32_t runs_nr;
	struct rdma_region **here; /* [REGIONS_ARENA + local_world] in the peer's domain; NULL: not registered */
	struct regions_job *job;   /* registers more */
	bool told;                 /* since the rail is up */
	bool releasing;            /* it is to write nothing more, and has not answered */
	uint64_t release_by_ns, again_ns, backoff_ns;
	char why[ERR_TEXT_BYTES]; /* what could not be registered; empty: nothing */
	/* there */
	bool known, release_due;
	struct regions_place slots, image[2 * REGIONS_RUNS_MAX];
	uint32_t images_nr;
	uint32_t posted; /* frames to it that are not completed */
};

struct regions {
	struct list link; /* in server.regions, as long as there is memory */
	struct model *m;
	uint64_t *held_at;               /* [chunks_nr] first element among the chunks of the same holder */
	uint64_t held[CONFIG_NODES_MAX]; /* elements of all of them */
	uint64_t arenas;                 /* in use; bit: slot */
	uint32_t arena_epoch[GATHER_LOCAL_MAX];
	struct regions_peer peer[]; /* [nodes_nr] */
};

enum shard_status regions_init(struct model *m, struct err *e);
void regions_free(struct model *m); /* before its memory goes; a thread that registers some of it gives that back itself */
void regions_made(struct model *m); /* all of it is there */
void regions_arena_opened(struct model *m, uint32_t slot);
void regions_arena_closed(struct model *m, uint32_t slot);
void regions_rail_up(struct peer *p);
void regions_rail_down(struct peer *p);
void regions_beat(struct peer *p, uint64_t now_ns); /* tries again what could not be registered */
void regions_forget(struct server *s);              /* deregisters everything: the device goes */
void regions_drop(struct model *m);                 /* asks its peers to write nothing more */
bool regions_quiet(const struct model *m, uint64_t now_ns);
const char *regions_why(const struct peer *p); /* some model's memory could not be registered; NULL: none */
bool regions_heard(const struct peer *p);      /* the peer has told memory of a model since the rail is up */
/* May the peer have written here? */
bool regions_has(const struct model *m, uint16_t node, const void *at, uint32_t bytes);

/* there.c */
enum shard_status regions_told(struct peer *p, const struct wire_head *h, const Shard__Regions *body, struct err *e);
/* Can this chunk go by RDMA? slot: of two images. */
bool regions_contribution(const struct model *m, const struct peer *p, uint32_t chunk, struct outbox_route *out);
bool regions_image(const struct model *m, const struct peer *p, uint32_t slot, uint32_t chunk, struct outbox_route *out);
void regions_posted(struct model *m, uint16_t node);
void regions_sent(struct model *m, uint16_t node);
/* regions.c, for there.c: tells it all again. */
void regions_tell(struct regions *g, uint16_t node);

#endif
