/* SPDX-License-Identifier: Apache-2.0 */
/* model.h: what this node holds of one model. Each part has one owner, which alone writes it; the
 * others read. The rooms above data/ keep what is theirs behind a pointer of their own. Parts
 * with an invariant have a check, which their owner calls when they have changed. Loop thread, but
 * for what a job is given. */
#ifndef SHARD_DATA_MODEL_H
#define SHARD_DATA_MODEL_H

#include "ckpt/checkpoint.h"
#include "config/settings.h"
#include "data/contrib.h"
#include "data/model_parts.h"
#include "data/send.h"
#include "data/slowest.h"
#include "node/state.h"
#include "shard.pb-c.h"
#include "store/store.h"
#include "warm/meta.h"

/* The attempt in hand. Owner: model/model.c; data/ counts `busy`, and drops what `out` holds. */
struct model_attempt {
	bool on;    /* Between BEGIN and its result or end. */
	bool voted; /* PREPARED: the image is open, its chunks may come. */
	struct core_id id;
	struct core_world world;
	uint32_t epoch; /* Grows with each attempt: late jobs of an older one are told by it. */
	uint32_t busy;  /* Jobs and frames that still read arenas, slots or sums of an attempt. */
	struct core_id drain_id;
	bool drain_due;   /* The core waits for CORE_EV_DRAINED of drain_id. */
	uint64_t orphans; /* Arenas (bit: slot) of trainers that are gone, still read. */
	uint64_t began_ns, voted_ns;
	struct landing landing; /* Bodies on their way into arenas and slots. */
	struct send_queue *out; /* [nodes_nr * connections] contributions */
};

/* The images, and the update in hand. Owner: data/apply.c. */
struct model_image {
	uint32_t slot; /* Of two images with max_staleness = 1: the one that has content_step. */
	uint64_t slot_content[2]; /* The step whose weights each image has or gets; UINT64_MAX:
				     none. */
	uint32_t lacking;         /* Chunks of other nodes that the newest image lacks. */
	uint32_t old_lacking;     /* And that the other one lacks. */
	uint32_t apply_left;      /* Chunks held here that are still being updated. */
	bool applying;            /* A record is being carried out. */
	bool sealing;             /* Chunks held here are being sealed. */
	bool late;                /* The core was told that a chunk keeps trainers waiting. */
	bool tell_due;            /* Trainers here are to hear of published chunks, */
	bool tell_held;           /* but not yet. */
	uint32_t sends;           /* Image parts on their way from here to nodes and trainers. */
	uint32_t asks;            /* Times that lacking chunks were asked for since one came. */
	uint64_t asked_ns;
	uint64_t kept; /* Elements that an update left as they were. */
	uint64_t began_ns, apply_ns;
	struct landing landing; /* Bodies on their way into chunks that the images lack. */
	uint16_t *parts;        /* [chunks_nr] parts received of the chunk that is coming in */
	uint64_t *coming;       /* [chunks_nr] the step of it */
	struct send_queue *out; /* [nodes_nr * connections] */
	uint32_t *staged_later; /* [chunks_nr] reduced, held back until `sends` is 0 */
	uint32_t staged_later_nr;
};

struct model {
	struct list link; /* in server.models; in server.makings until its memory is there */
	struct server *server;

	/* Owner: model/make.c. Nothing of it changes once the model is made. */
	struct make *make; /* How its memory comes and goes. */
	uint32_t id;
	char *name, *settings_text;
	Shard__Model *spec; /* As the coordinator sent it; its settings are the effective ones. */
	struct layout *layout;
	struct model_settings set;
	enum shard_dtype grad, image;
	uint32_t grad_bytes, image_bytes; /* Per element. */
	struct placement place;           /* Which node holds each chunk. */
	const char **node_names;
	struct store *store;
	struct budget_need need;
	struct mr *mr;       /* Its memory, for RDMA: data/mr.c. */
	struct blobs *blobs; /* data/blobs.c */
	struct meta meta;    /* What outlives the process beside the store: warm/meta.c. */

	/* Owner: model/model.c. */
	void *core_memory;
	struct core *core;
	struct model_attempt attempt;
	struct slowest slowest;
	char waits[512]; /* The last word of the coordinator on who is waited for. */
	char why[512];   /* Why the last attempt ended. */
	uint64_t attempts_ended;
	uint64_t last_reduce_ns; /* Of the last step that was decided. */
	struct model_flow last_contrib_in;

	/* Owner: data/contrib.c. */
	struct contrib contrib;
	struct model_flow contrib_in; /* Of the step in hand. */

	/* Owner: data/apply.c. What is committed here. */
	struct record record; /* The last one decided. */
	uint32_t generation;
	bool sealed;
	uint64_t step; /* Of record. */
	uint64_t
		content_step; /* The last one that changed weights: image frames are named by it. */
	uint64_t content_old; /* The one before it, on which trainers may still compute. */
	/* Weights that the seal, or a start after it, did not find here: nobody reads or trains on
	 * them, and the coordinator is to give the model up. */
	uint64_t sealed_without;
	struct model_image img;
	struct model_flow image_in;
	uint64_t steps_applied, steps_skipped;

	/* Owner: model/resume.c, then model/make.c. */
	bool again; /* Taken over by a warm start: its core says what is done. */
	bool keep;  /* Freed, and its memory outlives this process. */
	struct model_memory memory;
	struct persist *persist; /* On the coordinator: a view on its way to the disk. */

	/* Owner: model/lost.c. */
	char lost[512];   /* Why the last weights are gone; empty: they are not. */
	bool gone;        /* LOST for good, and `lost` says what happened first. */
	bool rolled_back; /* LOST, and a restore brings the weights. */
	bool reset_due;   /* Its memory is void, and is reset when nobody uses it any more. */
	char restored_from[CHECKPOINT_PATH_MAX]; /* For texts. */
	struct writer writer;                    /* model/writer.c */

	/* Owner: control/define.c and control/drop.c. */
	bool defining; /* Its memory is not there yet; or, on the coordinator, that of a node. */
	bool dropping; /* On server.drops: nothing finds it, its memory is about to go. */

	struct model_control *control; /* control/ */
	struct ckpt_model *ckpt;       /* ckpt/ */
	struct metrics_model *metrics; /* obs/ */
};

/* The invariants of the parts, CHECKed. */
void model_attempt_check(const struct model *m);
void model_image_check(const struct model *m);

#endif
