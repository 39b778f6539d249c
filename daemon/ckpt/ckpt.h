/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt.h: checkpoints of models, as the rest of the daemon sees them. The coordinator's side of a
 * save is in save.c and of a restore in restore.c, and op.c has what both share. auto.c begins
 * saves and restores that nobody asked for. part.c does the share of one node. No call here touches
 * a file, because jobs do that. */
#ifndef SHARD_CKPT_CKPT_H
#define SHARD_CKPT_CKPT_H

#include "base/list.h"
#include "base/status.h"
#include "ckpt/checkpoint.h"
#include "shard.pb-c.h"
#include "wire/frame.h"

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

struct copying;
struct core_view;
struct ckpt_op;
struct model;
struct peer;
struct record;
struct server;
struct session;
struct store_missing;

/* The newest checkpoint that this coordinator knows: it saved it, restored it, or found it at its
 * start. If there is none, step is 0 and path is empty. */
struct ckpt_last {
	char path[CHECKPOINT_PATH_MAX];
	uint64_t step, bytes, shared_bytes, write_ns, hold_ns;
	time_t at;
};

/* What a LOAD_PART has read into this node's memory and no seal has taken yet. See loaded.c. */
struct ckpt_load {
	uint32_t state; /* enum meta_load */
	/* The node that asked. UINT16_MAX: it did so before this start. */
	uint16_t requester;
	uint32_t tag; /* Tag of its request. */
};

/* The run that a model's weights belong to. A model's own checkpoints are those of its line, and
 * those of the line that it was restored from, up to the step of that restore. After LOST only such
 * a checkpoint is restored without a request. */
struct ckpt_run {
	/* .id: drawn when the run began. .line: drawn anew when a restore branches off. */
	struct manifest_run is;
	uint64_t from_line, from_step; /* Line and step of the last restore; 0: none. */
};

struct ckpt_model {         /* The checkpoint state of one model. */
	struct ckpt_op *op; /* On the coordinator: what is in progress (op.h). */
	struct list parts;  /* Shares of this node, in order. Only the first one may run. */
	struct ckpt_load load;
	/* The fields below are used on the coordinator only. */
	char dir[CHECKPOINT_PATH_MAX]; /* Folder of the last save, on disk too; empty: none. */
	bool late;                     /* checkpoint_every is to save when .op has ended. */
	bool resume;                   /* A restore was in progress when this coordinator ended. */
	bool begins;                   /* No weights were there when this coordinator ended. */
	bool led;                      /* It has a view of the coordinator before this one. */
	char *cut; /* Checkpoint of an operator's restore that a restart cut short; NULL: none. */
	bool said; /* The model's file on disk names an operator's restore. */
	struct ckpt_run run;
	/* It had weights before this start. The core has not said yet what became of them. */
	bool loaded;
	/* Versions of what the model's file has to say: wanted, packed last, and on disk. */
	uint32_t note_due, note_packed, note_durable;
	bool note_failed; /* The last write failed. */
	void *file;       /* The packed ModelFile that is on disk. */
	size_t file_bytes;
	struct ckpt_last last;
	struct copying *copying; /* Owner: copying.c. NULL: nothing was to be copied yet. */
	uint64_t failures;
	char last_error[ERR_TEXT_BYTES];
};

struct ckpt_status {
	const char *state; /* "idle", "holding", "writing", "finishing", "verifying", "restoring" */
	uint64_t step, done_bytes, total_bytes, shared_bytes;
};

/* The functions of this folder that models call, as a table of model/watch.h. */
extern const struct model_watch ckpt_watch;

enum shard_status ckpt_init(struct model *m, struct err *e);
void ckpt_free(struct model *m); /* CHECKs ckpt_quiet(). What is in progress ends without it. */
bool ckpt_quiet(const struct model *m); /* No share uses the model's memory. */
/* Ends the model's saves, restores and shares soon. Called before the model goes. */
void ckpt_cancel(struct model *m, const struct err *why);
void ckpt_reset(struct model *m);    /* model_reset(), now or when the memory is not used */
void ckpt_boundary(struct model *m); /* A step was applied or a job ended: may begin a share. */
void ckpt_beat(struct server *s, uint64_t now_ns);
void ckpt_start(struct server *s); /* Called when the models are loaded and timers work. */
void ckpt_known(struct model *m);  /* Finds the newest checkpoint of earlier starts. */
void ckpt_stop(struct server *s);
bool ckpt_stopped(const struct server *s); /* No save, restore or share is left. */
void ckpt_status(const struct model *m, struct ckpt_status *st);
double ckpt_age(const struct model *m); /* Age of the newest checkpoint in seconds. */

/* What the core decides. */
void ckpt_lost(struct model *m, bool rolled_back);
void ckpt_sealed(struct model *m);
/* True: what is in memory may not be sealed, because it is read only in part or is to be reset. */
bool ckpt_load_void(const struct model *m);
/* Called by resume.c. seals: the coordinator's view seals the model. */
void ckpt_load_found(struct model *m, bool seals);
/* SHARD_STALE: this node does not have what that LOAD_PART has read. */
enum shard_status ckpt_load_check(const struct model *m, uint16_t requester, uint32_t tag,
				  struct err *e);
/* Resets what a load has read. tag 0: any; UINT16_MAX: anybody's. */
void ckpt_load_forget(struct model *m, uint16_t requester, uint32_t tag);
void ckpt_whole(struct model *m); /* The model is sealed and its image is whole on this node. */
void ckpt_decided(struct model *m, const struct record *r); /* checkpoint_every */

/* Definitions, on the coordinator. */
bool ckpt_defined(struct model *m); /* True: a restore has begun and answers the definers later. */
/* The model's definition failed. The model is freed after this call. */
void ckpt_refused(struct model *m, const struct err *e);
bool ckpt_restoring(const struct model *m); /* True: nobody else may write the weights. */
const char *ckpt_ordered(
	const struct model *m); /* Its checkpoint while an operator restores it; else empty. */
/* For a model that is loaded from its file, before its core has the view. If an operator's restore
 * of a model without weights was cut short, the view becomes LOST. lost gets the reason, if any. */
void ckpt_cut(const Shard__ModelFile *file, struct core_view *view, char *lost, size_t bytes);
void ckpt_loaded(struct model *m, const Shard__ModelFile *file, const struct core_view *view,
		 const void *bytes, size_t bytes_nr);
void ckpt_run_pack(const struct model *m, Shard__Run *out); /* for the model's file */
void ckpt_anew(struct model *m); /* Somebody writes the weights from the beginning: a new run. */
void ckpt_persisted(struct model *m, void *file, size_t bytes); /* Takes ownership of file. */

/* Requests. */
enum shard_status ckpt_save_request(struct session *t, const struct wire_head *h,
				    const ProtobufCMessage *msg, struct err *e);
enum shard_status ckpt_restore_request(struct session *t, const struct wire_head *h,
				       const ProtobufCMessage *msg, struct err *e);
enum shard_status ckpt_node_save(struct peer *p, const struct wire_head *h,
				 const ProtobufCMessage *msg, struct err *e);
enum shard_status ckpt_node_restore(struct peer *p, const struct wire_head *h,
				    const ProtobufCMessage *msg, struct err *e);
/* Requests of the coordinator to this node. */
enum shard_status ckpt_save_part(struct peer *p, const struct wire_head *h,
				 const ProtobufCMessage *msg, struct err *e);
enum shard_status ckpt_load_part(struct peer *p, const struct wire_head *h,
				 const ProtobufCMessage *msg, struct err *e);
enum shard_status ckpt_verify_part(struct peer *p, const struct wire_head *h,
				   const ProtobufCMessage *msg, struct err *e);
void ckpt_part_cancel(struct peer *p, const struct wire_head *h);
void ckpt_progress(struct model *m, uint32_t tag, const Shard__Progress *said);
void ckpt_node_gone(struct server *s, uint16_t node);
void ckpt_node_up(struct model *m, uint16_t node); /* On the coordinator, after MODEL was sent. */
/* The result of this node's count for a restore. load: tag of the LOAD_PART whose weights were
 * counted. e: why there is no count, or NULL. */
void ckpt_counted(struct model *m, uint32_t load, const struct store_missing *w,
		  const struct err *e);

#endif
