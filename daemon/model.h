/* SPDX-License-Identifier: Apache-2.0 */
/* model.h: one model on this node: its memory, its core, and the attempt in hand. model.c feeds the core and carries out its
 * actions; gather.c collects gradients; apply.c runs the optimizer and publishes the image; define.c makes and seals models. */
#ifndef SHARD_MODEL_H
#define SHARD_MODEL_H

#include "ckpt/ckpt.h"
#include "gather.h"
#include "meta.h"
#include "model_parts.h"
#include "obs/metrics.h"
#include "outbox.h"
#include "settings.h"
#include "shard.pb-c.h"
#include "state.h"
#include "store/store.h"

struct model {
	struct list link; /* in server.models */
	struct server *server;
	uint32_t id;
	char *name, *settings_text;
	Shard__Model *spec; /* as the coordinator sent it; settings are the effective ones */
	struct layout *layout;
	struct model_settings set;
	enum shard_dtype grad, image;
	uint32_t grad_bytes, image_bytes; /* per element */
	uint16_t *owner;                  /* [chunks_nr] */
	struct store *store;
	struct meta meta;          /* what outlives the process beside the store's regions */
	bool again, keep, outside; /* taken up again: its core says what is done; freed, and outlives this process; does not */
	struct budget_need need;
	struct persist *persist; /* coordinator: a view on its way to disk */
	const char **node_names;
	void *core_memory;
	struct core *core;
	struct core_id id_now; /* the attempt in hand, and of it: */
	struct core_world world;
	struct gather gather;
	struct blobs *blobs;
	struct regions *regions; /* its memory, for RDMA */
	uint32_t epoch;          /* grows with each attempt: late jobs of an older one are told by it */
	uint32_t busy;           /* jobs and sends that still read arenas, slots or sums of an attempt */
	bool attempt_on;         /* between BEGIN and result or end */
	bool voted;              /* PREPARED: the image is open, early image chunks are legal */
	uint64_t orphans;        /* arenas (bit: slot) of trainers that are gone, still read */
	struct core_id drain_id;
	bool drain_due; /* the core waits for CORE_EV_DRAINED of it */
	uint64_t began_ns, voted_ns;
	/* what is committed here */
	struct record record; /* last decided */
	uint32_t generation;
	bool sealed;
	uint64_t step, content_step; /* of record; last step that changed weights: what image frames are named by */
	/* max_staleness = 1: what each image has or gets (UINT64_MAX: nothing), and of step - 1, on which step + 1 is computed */
	uint64_t slot_content[2], content_old;
	uint32_t slot, old_lacking; /* the image that has content_step; chunks of other nodes that lack in the other one */
	bool tell_due, tell_held;   /* trainers here are to hear of published chunks; but not yet */
	uint32_t apply_left;        /* chunks held here that are still being updated */
	bool applying, sealing;
	uint32_t image_sends;   /* image parts on their way from here to other nodes and trainers */
	uint32_t image_lacking; /* chunks of other nodes that have not arrived for `step` */
	uint64_t image_asked_ns, kept_total, apply_began_ns, apply_ns;
	uint16_t *image_parts;                  /* [chunks_nr] parts received of the chunk that is coming in */
	uint64_t *image_coming;                 /* [chunks_nr] step of it */
	struct outbox *contrib_out, *image_out; /* [nodes_nr * connections] */
	uint32_t *staged_later;                 /* [chunks_nr] staged, held back until image sends of the step before are through */
	uint32_t staged_later_nr;
	/* figures for status: of the step in hand, and of the last one decided */
	struct model_flow contrib_in, image_in, last_contrib_in;
	uint64_t last_reduce_ns;
	struct metrics_model metrics;
	struct list reads; /* READs that wait for a step boundary */
	uint64_t steps_applied, steps_skipped, attempts_ended;
	char waits[512], why[512]; /* last word of the coordinator on who is waited for; why the last attempt ended */
	char lost[512];            /* why the generation before this one was lost; empty: it was not */

	/* coordinator: definition and seal */
	bool defining;
	uint64_t nodes_asked; /* MODEL or WRITTEN sent, not yet answered */
	struct list askers;   /* of DEFINE while defining; of SEAL while sealing */
	struct model_manage manage;
	struct ckpt_model ckpt;
	bool dropping;                   /* on server.drops: nothing finds it, its memory is about to go */
	uint8_t from[STATIC_UUID_BYTES]; /* not the coordinator: whose MODEL it is */
	struct model_asker *sealer;
	struct store_missing missing;
	uint64_t seal_step, writer_session; /* writer: who got created=1 */
	uint16_t writer_node;
};

struct model *model_find(struct server *s, uint32_t id);
struct model *model_by_name(struct server *s, const char *name);
/* Everything a model needs on this node; takes spec over. view: what was durable, coordinator only. found: of a start before this one, its
 * .shm is taken over, or NULL; SHARD_MISMATCH: it cannot be. */
enum shard_status model_make(struct model **out, struct server *s, Shard__Model *spec, const struct core_view *view,
			     const struct meta_found *found, struct err *e);
bool model_parked(const struct model *m); /* it outlives the process */
void model_reset(struct model *m);        /* store_reset(), for good */
void model_free(struct model **m);

/* Gives the core an event and carries out what it asks for. Pointers in ev live for the call. */
void model_event(struct model *m, const struct core_event *ev);
void model_run(struct model *m, const struct core_event *ev); /* server.c: no other event is in hand */
void model_link_down(struct model *m, const struct peer *p, const char *why);
void model_tick(struct model *m, uint64_t now_ns);
enum shard_status model_core_frame(struct model *m, struct peer *p, const struct wire_head *h, const Shard__Core *body,
				   struct err *e);
void model_beat(struct model *m, uint64_t now_ns); /* about once a second */

/* A transfer or job that read an attempt's buffers is over. */
void model_release(struct model *m);
void model_close_attempt(struct model *m);         /* nothing of it is taken or sent any more */
void model_orphan(struct model *m, uint32_t slot); /* its trainer is gone; closed when nobody reads it */
void model_stage(struct model *m, uint32_t chunk); /* gather: the reduced gradient of a chunk held here is ready */
void model_seal_progress(struct model *m);         /* a SEAL may be answerable */

void model_head(const struct model *m, struct wire_head *h, uint16_t op, const struct core_id *id);

#endif
