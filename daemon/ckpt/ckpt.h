/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt.h: checkpoints of models, as the rest of the daemon sees them: requests come in, the core's words are passed on, the loop beats.
 * save.c and restore.c are the coordinator's, with what they share in op.c; auto.c begins them without being asked; part.c is each
 * node's own share of either. No call here touches a file: that is uv_queue_work's. */
#ifndef SHARD_CKPT_CKPT_H
#define SHARD_CKPT_CKPT_H

#include "base/list.h"
#include "base/status.h"
#include "ckpt/checkpoint.h"
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
struct relay;
struct server;
struct session;

struct ckpt_last { /* the newest checkpoint known: saved by, or restored on, this coordinator; step 0 and path empty: none */
	char path[CHECKPOINT_PATH_MAX];
	uint64_t step, bytes, write_ns, hold_ns;
	time_t at;
};

struct ckpt_model {         /* of one model */
	struct ckpt_op *op; /* coordinator: the save or restore in hand */
	struct list parts;  /* this node's shares; the first one works */
	bool reset_due;     /* LOST, and somebody still uses the memory: it is reset when nobody does */
	bool rolled_back;   /* LOST, and a restore brings the weights */
	bool read;          /* a LOAD_PART left something in the memory, which no seal has taken yet */
	uint16_t read_for;  /* who asked for it */
	uint32_t read_tag;
	char from[CHECKPOINT_PATH_MAX]; /* what LOAD_PART read last, for texts */
	/* coordinator */
	char dir[CHECKPOINT_PATH_MAX]; /* where it was saved last, kept on disk; empty: nowhere */
	bool resume;                   /* it was being restored when this coordinator ended */
	bool loaded;                   /* weights were there before this start, and the core has not said yet what became of them */
	void *file;                    /* ModelFile as it is on disk */
	size_t file_bytes;
	struct ckpt_last last;
	uint64_t failures;
	char last_error[ERR_TEXT_BYTES];
};

struct ckpt_status {
	const char *state; /* idle, holding, writing, finishing or restoring */
	uint64_t step, done_bytes, total_bytes;
};

/* model_make.c, model.c, server.c */
void ckpt_init(struct model *m);
void ckpt_free(struct model *m);                          /* CHECK: ckpt_quiet(); an operation in hand ends without the model */
bool ckpt_quiet(const struct model *m);                   /* no worker reads or writes the model's memory */
void ckpt_cancel(struct model *m, const struct err *why); /* everything of it ends soon: before the model goes */
void ckpt_reset(struct model *m);                         /* store_reset(), now or when nobody uses the memory */
void ckpt_boundary(struct model *m);                      /* a step is applied, a job over: shares may begin, a reset may be due */
void ckpt_beat(struct server *s, uint64_t now_ns);
void ckpt_start(struct server *s); /* models are loaded, timers work */
void ckpt_known(struct model *m);  /* it was saved before this start: what there is, from its folder */
void ckpt_stop(struct server *s);
bool ckpt_stopped(const struct server *s); /* nothing in hand */
void ckpt_status(const struct model *m, struct ckpt_status *st);
double ckpt_age(const struct model *m); /* of the newest checkpoint, in seconds */

/* the core's words */
void ckpt_held(struct model *m, const struct record *r);
void ckpt_lost(struct model *m, bool rolled_back);
void ckpt_sealed(struct model *m);
void ckpt_whole(struct model *m);                           /* sealed, and the image is whole here */
void ckpt_decided(struct model *m, const struct record *r); /* checkpoint_every */

/* coordinator: definitions */
void ckpt_made(struct ckpt_op *op, struct model *m);     /* define_restored() has it */
bool ckpt_defined(struct model *m);                      /* true: a restore answers its definers later */
void ckpt_refused(struct model *m, const struct err *e); /* its definition failed; it is freed after this */
bool ckpt_restoring(const struct model *m);              /* nobody else may write its weights */
void ckpt_loaded(struct model *m, const char *dir, const struct core_view *view, const void *file, size_t bytes);
void ckpt_persisted(struct model *m, void *file, size_t bytes); /* takes file over */

/* requests */
enum shard_status ckpt_save_request(struct session *t, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e);
enum shard_status ckpt_restore_request(struct session *t, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e);
enum shard_status ckpt_node_save(struct peer *p, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e);
enum shard_status ckpt_node_restore(struct peer *p, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e);
/* of the coordinator, to a node; and what the node answered (h NULL: e says why not) */
enum shard_status ckpt_save_part(struct peer *p, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e);
enum shard_status ckpt_load_part(struct peer *p, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e);
void ckpt_part_cancel(struct peer *p, const struct wire_head *h);
void ckpt_answered(struct model *m, const struct relay *r, const struct wire_head *h, const void *body, const struct err *e);
void ckpt_progress(struct model *m, uint16_t node, uint32_t tag, uint64_t done, uint64_t total);
void ckpt_node_gone(struct server *s, uint16_t node);

#endif
