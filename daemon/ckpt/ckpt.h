/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt.h: checkpoints of models, as the rest of the daemon sees them: requests come in, the core's
 * words are passed on, the loop beats. save.c and restore.c are the coordinator's, with what they
 * share in op.c; auto.c begins them without being asked; part.c is each node's own share of either.
 * No call here touches a file: jobs do. */
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

struct core_view;
struct ckpt_op;
struct model;
struct peer;
struct record;
struct server;
struct session;
struct store_missing;

struct ckpt_last { /* the newest checkpoint known: saved by, or restored on, this coordinator; step
		      0 and path empty: none */
	char path[CHECKPOINT_PATH_MAX];
	uint64_t step, bytes, write_ns, hold_ns;
	time_t at;
};

struct ckpt_load { /* what a LOAD_PART has brought here, which no seal has taken yet: loaded.c */
	uint32_t state; /* enum meta_load */
	uint16_t
		requester; /* the node that asked for it; UINT16_MAX: it did so before this start */
	uint32_t tag;      /* of its request */
};

/* Whose the weights of a model are. Own checkpoints are those of this line, and of the one that it
 * was restored from up to that step: after LOST no other one comes back without being asked for. */
struct ckpt_run {
	struct manifest_run is; /* .id: since it was defined anew; .line: since the last restore */
	uint64_t from_line, from_step; /* what it was restored from; 0: nothing */
};

struct ckpt_model {         /* of one model */
	struct ckpt_op *op; /* coordinator: the save or restore in hand */
	struct list parts;  /* this node's shares; the first one works */
	struct ckpt_load load;
	/* coordinator */
	char dir[CHECKPOINT_PATH_MAX]; /* where it was saved last, kept on disk; empty: nowhere */
	bool resume;                   /* it was being restored when this coordinator ended */
	bool begins; /* restore_at_start was looking for its weights, or had found none, at that end
		      */
	char *cut;   /* by an operator, from this: it does not become another checkpoint by itself;
			NULL: not so */
	bool said;   /* what is on disk names the restore of an operator that is in hand */
	struct ckpt_run run;
	bool loaded; /* weights were there before this start, and the core has not said yet what
			became of them */
	/* Counts what the model's file is to say, what was packed last, and what is on disk. */
	uint32_t note_due, note_packed, note_durable;
	bool note_failed; /* the last try */
	void *file;       /* ModelFile as it is on disk */
	size_t file_bytes;
	struct ckpt_last last;
	uint64_t failures;
	char last_error[ERR_TEXT_BYTES];
};

struct ckpt_status {
	const char *state; /* idle, holding, writing, finishing or restoring */
	uint64_t step, done_bytes, total_bytes;
};

/* What models tell this folder: the functions below, as far as model/watch.h has them. */
extern const struct model_watch ckpt_watch;

enum shard_status ckpt_init(struct model *m, struct err *e);
void ckpt_free(
	struct model *m); /* CHECK: ckpt_quiet(); an operation in hand ends without the model */
bool ckpt_quiet(const struct model *m); /* no worker reads or writes the model's memory */
void ckpt_cancel(struct model *m,
		 const struct err *why); /* everything of it ends soon: before the model goes */
void ckpt_reset(struct model *m);        /* store_reset(), now or when nobody uses the memory */
void ckpt_boundary(
	struct model *m); /* a step is applied, a job over: shares may begin, a reset may be due */
void ckpt_beat(struct server *s, uint64_t now_ns);
void ckpt_start(struct server *s); /* models are loaded, timers work */
void ckpt_known(
	struct model *m); /* it was saved before this start: what there is, from its folder */
void ckpt_stop(struct server *s);
bool ckpt_stopped(const struct server *s); /* nothing in hand */
void ckpt_status(const struct model *m, struct ckpt_status *st);
double ckpt_age(const struct model *m); /* of the newest checkpoint, in seconds */

/* the core's words */
void ckpt_held(struct model *m, const struct record *r);
void ckpt_lost(struct model *m, bool rolled_back);
void ckpt_sealed(struct model *m);
bool ckpt_load_void(const struct model *m); /* what is here may not be sealed: it is half read, or
					       about to go */
void ckpt_load_found(
	struct model *m,
	bool seals); /* resume.c: of an unsealed model; the coordinator's view seals it */
enum shard_status ckpt_load_check(const struct model *m, uint16_t requester, uint32_t tag,
				  struct err *e); /* SHARD_STALE: not this one */
void ckpt_load_forget(
	struct model *m, uint16_t requester,
	uint32_t tag);            /* resets; tag 0: any of the requester; UINT16_MAX: anybody's */
void ckpt_whole(struct model *m); /* sealed, and the image is whole here */
void ckpt_decided(struct model *m, const struct record *r); /* checkpoint_every */

/* coordinator: definitions */
bool ckpt_defined(struct model *m); /* true: a restore answers its definers later */
void ckpt_refused(struct model *m,
		  const struct err *e);     /* its definition failed; it is freed after this */
bool ckpt_restoring(const struct model *m); /* nobody else may write its weights */
const char *ckpt_ordered(
	const struct model *m); /* what an operator is restoring it from; empty: nobody is */
/* Of a model that is loaded from its file. First, before its core has the view: an operator's
 * restore of a model that was not sealed was cut, so its weights are gone; lost: what is to be said
 * of it, if anything. */
void ckpt_cut(const Shard__ModelFile *file, struct core_view *view, char *lost, size_t bytes);
void ckpt_loaded(struct model *m, const Shard__ModelFile *file, const struct core_view *view,
		 const void *bytes, size_t bytes_nr);
void ckpt_run_pack(const struct model *m, Shard__Run *out); /* for the model's file */
void ckpt_anew(struct model *m); /* somebody writes its weights from the beginning */
void ckpt_persisted(struct model *m, void *file, size_t bytes); /* takes file over */

/* requests */
enum shard_status ckpt_save_request(struct session *t, const struct wire_head *h,
				    const ProtobufCMessage *msg, struct err *e);
enum shard_status ckpt_restore_request(struct session *t, const struct wire_head *h,
				       const ProtobufCMessage *msg, struct err *e);
enum shard_status ckpt_node_save(struct peer *p, const struct wire_head *h,
				 const ProtobufCMessage *msg, struct err *e);
enum shard_status ckpt_node_restore(struct peer *p, const struct wire_head *h,
				    const ProtobufCMessage *msg, struct err *e);
/* of the coordinator, to a node; and what the node answered (h NULL: e says why not) */
enum shard_status ckpt_save_part(struct peer *p, const struct wire_head *h,
				 const ProtobufCMessage *msg, struct err *e);
enum shard_status ckpt_load_part(struct peer *p, const struct wire_head *h,
				 const ProtobufCMessage *msg, struct err *e);
void ckpt_part_cancel(struct peer *p, const struct wire_head *h);
void ckpt_progress(struct model *m, uint32_t tag, uint64_t done, uint64_t total);
void ckpt_node_gone(struct server *s, uint16_t node);
void ckpt_node_up(struct model *m, uint16_t node); /* the coordinator's, after MODEL */
/* This node's count for a restore is made, of what the LOAD_PART with this tag brought; e: why it
 * is not. */
void ckpt_counted(struct model *m, uint32_t load, const struct store_missing *w,
		  const struct err *e);

#endif
