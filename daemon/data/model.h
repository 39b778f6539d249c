/* SPDX-License-Identifier: Apache-2.0 */
/* model.h: what this node holds of one model. Each part has one owner, which alone writes it, and
 * the others read it. The rooms above data/ keep their own state behind a pointer. A part with an
 * invariant has a check, which the owner calls after each change. Everything belongs to the loop
 * thread, except for what a job is given. */
#ifndef SHARD_DATA_MODEL_H
#define SHARD_DATA_MODEL_H

#include "ckpt/checkpoint.h"
#include "config/settings.h"
#include "data/contrib.h"
#include "data/grad.h"
#include "data/model_parts.h"
#include "data/send.h"
#include "data/slowest.h"
#include "node/state.h"
#include "shard.pb-c.h"
#include "store/tier.h"
#include "warm/meta.h"

/* The attempt in hand. Owner: model/model.c. data/ counts `busy` and drops what `out` holds. */
struct model_attempt {
	bool on;    /* Between BEGIN and its result or end. */
	bool voted; /* PREPARED: the image is open, and its chunks may come. */
	struct core_id id;
	struct core_world world;
	/* Grows with each attempt, so that late jobs of an older one are recognized. */
	uint32_t epoch;
	uint32_t busy;    /* Jobs and frames that still read arenas, slots or sums of an attempt. */
	uint32_t leaving; /* Those of them that are on their way to other nodes. */
	struct core_id drain_id;
	bool drain_due;   /* The core waits for CORE_EV_DRAINED of drain_id. */
	uint64_t orphans; /* A bit for each slot whose arena is read and whose trainer is gone. */
	uint64_t began_ns, voted_ns;
	struct landing landing; /* Bodies on their way into arenas and slots. */
	struct send_queue *out; /* [memory.nodes_nr * connections] Contributions. */
};

/* The images, and the update in hand. Owner: data/apply.c. */
struct model_image {
	uint32_t slot; /* Which image has content_step. There are two with max_staleness = 1. */
	bool coded;    /* With image_codec: it comes from the one before, of version .before. */
	uint32_t half; /* Where it is kept: store_image_keep(). */
	uint64_t before;
	uint64_t slot_content[2]; /* Whose weights each image has or gets. UINT64_MAX: none. */
	uint32_t lacking;         /* Chunks of other nodes that the newest image lacks. */
	uint32_t old_lacking;     /* Chunks of other nodes that the older image lacks. */
	uint32_t others; /* Chunks whose images come from other nodes, as .lacking was counted. */
	uint32_t apply_left; /* Chunks held here that are still being updated. */
	bool seal_due; /* A seal with .seal_record waits for images that are being made again. */
	struct record seal_record;
	struct model_feed feed;
	bool applying;  /* A record is being carried out. */
	bool sealing;   /* Chunks held here are being sealed. */
	bool late;      /* The core was told that a chunk keeps trainers waiting. */
	bool tell_due;  /* Trainers here have not yet been told of all published chunks. */
	bool tell_held; /* They are not told now, because more chunks are about to be published. */
	uint32_t sends; /* Image parts on their way from here to nodes and trainers. */
	uint64_t kept;  /* Elements that an update left as they were. */
	uint64_t began_ns, apply_ns;
	struct landing landing; /* Bodies on their way into chunks that the images lack. */
	uint16_t *parts;        /* [chunks_nr] The parts received of the chunk that is coming in. */
	uint64_t *coming;       /* [chunks_nr] The step of the chunk that is coming in. */
	struct send_queue *out; /* [memory.nodes_nr * connections] */
	uint32_t *staged_later; /* [chunks_nr] Reduced chunks that wait until may_stage() holds. */
	uint32_t staged_later_nr;
};

struct model {
	struct list link; /* In server.models, or in server.makings until its memory is there. */
	struct server *server;

	/* Owner: model/make.c. Nothing of it changes once the model is made. */
	struct make *make; /* How its memory is made and given back. */
	uint32_t id;
	char *name, *settings_text;
	Shard__Model *spec; /* As the coordinator sent it. Its settings are the effective ones. */
	struct layout *layout;
	struct model_settings set;
	enum shard_dtype grad, image;
	uint32_t grad_bytes;        /* Per element. */
	struct placement place;     /* Who holds each chunk. model/model.c: with each view. */
	struct model_tables tables; /* Owner: model/tables.c. */
	const char **node_names;
	struct store *store;
	struct tier *tier; /* It does the arithmetic on the chunks held here. */
	struct budget_need need;
	struct mr *mr;       /* data/mr.c: its memory, for RDMA. */
	struct blobs *blobs; /* data/blobs.c */
	struct meta meta;    /* warm/meta.c: what outlives the process beside the store. */
	/* Owner: model/model.c. */
	void *core_memory;
	struct core *core;
	struct model_attempt attempt;
	struct slowest slowest;
	char waits[512]; /* Who is waited for, as the coordinator said last. */
	bool too_few;    /* It said that the next step waits for min_world trainers. */
	char why[512];   /* Why the last attempt ended, or who came and left after it. */
	uint64_t attempts_ended;
	uint64_t last_reduce_ns; /* That of the last step that was decided. */
	struct model_flow last_contrib_in, last_grad_in;

	/* Owner: data/contrib.c. */
	struct contrib contrib;
	struct codes codes; /* Of its own contributions. */
	struct meta_residual residual;
	struct model_flow contrib_in; /* Of the step in hand. */

	struct grad reduced;          /* Owner: data/grad.c. */
	struct catchup *catchup;      /* data/catchup.c. */
	struct images *images;        /* data/images.c */
	struct deltas *deltas;        /* data/deltas.c. NULL: images do not travel as codes. */
	struct device_memory on_gpus; /* data/device_memory.h */

	/* Owner: data/apply.c. What is committed here. */
	struct record record; /* The last one decided. */
	uint32_t generation;
	bool sealed;
	uint64_t step;         /* The step of .record. */
	uint64_t content_step; /* The last that changed weights: image frames are named by it. */
	uint64_t content_old;  /* The one before it, on whose weights trainers may still compute. */
	/* Weights that a seal, or a start after it, did not find here. If there are any, nobody
	 * reads or trains the model, and it is given up. */
	uint64_t sealed_without;
	struct model_image img;
	struct model_flow image_in;
	uint64_t steps_applied, steps_skipped;

	/* Owner: model/resume.c, then model/make.c. */
	bool again; /* Taken over by a warm start. Its core says what is done. */
	bool keep;  /* It is freed, and its memory outlives this process. */
	struct model_memory memory;
	struct persist *persist; /* Coordinator: a view on its way to the disk. */
	struct rooms *rooms;
	/* [slot] Since when that member catches up, as this node knows. Owner: model/rooms.c. */
	uint64_t learns_ns[CORE_NODES_MAX];

	/* Owner: model/lost.c. */
	char lost[512];      /* Why the last weights are gone. Empty: they are not. */
	char lost_told[256]; /* The same, of a loss before this node had a view: lost_told(). */
	bool gone;           /* The model is LOST for good, and `lost` says what happened first. */
	bool rolled_back;    /* The model is LOST, and a restore brings the weights. */
	bool reset_due;      /* Its memory is void, and is reset when no job uses it any more. */
	char restored_from[CHECKPOINT_PATH_MAX]; /* For texts. */
	struct writer writer;                    /* model/writer.c */

	/* Owner: control/define.c and control/drop.c. */
	bool defining; /* Its memory, or on the coordinator that of another node, is not there. */
	bool dropping; /* On server.drops: nothing finds it. Its memory is given back. */

	struct model_control *control; /* control/ */
	struct ckpt_model *ckpt;       /* ckpt/ */
	struct metrics_model *metrics; /* obs/ */
};

/* CHECK the invariants of the parts. */
void model_attempt_check(const struct model *m);
void model_image_check(const struct model *m);

#endif
