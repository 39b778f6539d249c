/* SPDX-License-Identifier: Apache-2.0 */
/* op.h: a save or a restore in hand, on the coordinator: what the files of this folder share. One of a model at a time. It asks every
 * node for its share and waits for all answers; what blocks runs by uv_queue_work, one job at a time, on the operation's own memory. */
#ifndef SHARD_CKPT_OP_H
#define SHARD_CKPT_OP_H

#include "ckpt/ckpt.h"
#include "ckpt/share.h"
#include "model.h"

#define CKPT_STALL_NS    (60 * NS_PER_SEC) /* and heartbeat_timeout: no byte for so long ends it */
#define CKPT_PROGRESS_NS (200 * NS_PER_MS)
#define CKPT_DIRS        2

enum ckpt_kind { CKPT_SAVE = 1, CKPT_RESTORE, CKPT_START /* of a definition */, CKPT_RETURN /* after LOST */ };

enum ckpt_phase {
	CKPT_PASSING = 1, /* restore: not the coordinator, whose link is awaited     */
	CKPT_HOLDING,     /* save: until the core says of which step the weights are  */
	CKPT_BEGINNING,   /* save: the folder is being made                          */
	CKPT_WRITING,     /* save: every node writes its share                       */
	CKPT_FINISHING,   /* save: manifest, sync, rename                            */
	CKPT_LOOKING,     /* restore: the manifest is being read                     */
	CKPT_DEFINING,    /* restore: every node makes the model, or its link is awaited */
	CKPT_GIVING_UP,   /* restore: of a sealed model, until it is LOST            */
	CKPT_LINKS,       /* restore: until every node is there                      */
	CKPT_LOADING,     /* restore: every node reads its share                     */
	CKPT_SEALING,     /* restore: until the core has sealed it                   */
	CKPT_PUBLISHING,  /* restore: until the image is whole here                  */
	CKPT_ENDING,      /* it failed; what it left is being removed                */
};

struct ckpt_blob {
	uint32_t rank, bytes;
	uint64_t step;
	uint8_t *data;
};

struct ckpt_op {
	struct list link; /* in server.ckpts */
	struct server *server;
	struct model *m; /* NULL: none yet, or gone */
	enum ckpt_kind kind;
	enum ckpt_phase phase;
	char name[65], dir[CHECKPOINT_PATH_MAX], tag[CHECKPOINT_TAG_MAX + 1], path[CHECKPOINT_PATH_MAX];
	bool asked, force, made, fresh; /* made: the model is this restore's; fresh: a save replaces no other step */
	struct model_asker asker;
	Shard__Restore *request; /* as it came */
	uint32_t uid;
	uv_work_t work;
	bool working;
	void (*run)(struct ckpt_op *op), (*done)(struct ckpt_op *op);
	enum shard_status st; /* of the job */
	struct err why;       /* of the job, then of the operation */
	bool failed;          /* why says it; it ends when nobody works for it any more */
	struct ckpt_share share[CORE_NODES_MAX];
	uint32_t out_nr;
	bool cancelled, shares_bad; /* bad: the files were, not a link */
	void (*shares_done)(struct ckpt_op *op);
	uint64_t incarnation[CORE_NODES_MAX]; /* of each node when it was asked */
	uint64_t done_bytes, moved_ns, told_ns, began_ns, noted_ns;
	struct manifest *manifest;
	/* save */
	bool held;
	uint64_t held_ns, hold_ns, step, bytes;
	struct manifest made_of; /* what it writes; tensors and groups point into spec */
	Shard__Spec *spec;
	uint32_t keep; /* prune after it; 0: nothing */
	/* restore */
	struct part_progress checking;
	struct ckpt_blob *blobs;
	uint32_t blobs_nr, dirs_nr, from_dir;
	char dirs[CKPT_DIRS][CHECKPOINT_PATH_MAX]; /* to look in, when nobody named a checkpoint */
	uint64_t bound[CKPT_DIRS];                 /* only older ones are left to try; 0: not looked yet */
};

enum shard_status ckpt_op_new(struct ckpt_op **out, struct server *s, struct model *m, enum ckpt_kind kind, struct err *e);
void ckpt_op_attach(struct ckpt_op *op, struct model *m);
void ckpt_op_free(struct ckpt_op *op);
void ckpt_op_work(struct ckpt_op *op, void (*run)(struct ckpt_op *), void (*done)(struct ckpt_op *));
/* Asks every node for its share; body: SavePart or LoadPart. shares_done is called when all have answered, from the loop. */
void ckpt_op_ask(struct ckpt_op *op, uint16_t wire_op, const ProtobufCMessage *body, void (*shares_done)(struct ckpt_op *));
/* The first failure counts; shares that are out are cancelled. */
void ckpt_op_fail(struct ckpt_op *op, const struct err *e);
void ckpt_op_cancel(struct ckpt_op *op);
void ckpt_op_tell(struct ckpt_op *op);           /* PROGRESS to who asked */
uint64_t ckpt_op_tell_whole(struct ckpt_op *op); /* the last one, of all bytes of the checkpoint: how many */
void ckpt_op_hold(struct ckpt_op *op, bool on);
void ckpt_op_refuse(struct ckpt_op *op, const struct err *e); /* answers who asked; once */
void ckpt_op_note_failure(struct ckpt_op *op);
const char *ckpt_op_text(const struct ckpt_op *op, char out[CHECKPOINT_PATH_MAX + 64]); /* "being saved to /ckpt/x" */
struct session *ckpt_op_session(const struct ckpt_op *op);
const struct peer *ckpt_away(const struct server *s); /* a node without a link, or NULL */
void ckpt_persist_dir(struct model *m, const char *dir);
/* dir as asked, or the model's own, into out[CHECKPOINT_PATH_MAX] */
enum shard_status ckpt_dir(char *out, const char *asked, const char *checkpoint_dir, const char *name, struct err *e);
time_t ckpt_time(const char *rfc3339);

/* save.c */
enum shard_status ckpt_save_begin(struct model *m, const struct model_asker *a, const char *dir, const char *tag, uint32_t keep,
				  bool fresh, struct err *e);
void ckpt_save_lost(struct ckpt_op *op); /* its model is LOST, or gone */
void ckpt_save_part_is(struct ckpt_op *op, uint16_t node, struct part_file *file, struct manifest_blob *blobs, uint32_t blobs_nr);

/* restore.c */
void ckpt_restore_load(struct ckpt_op *op);                     /* the manifest is right, the model unsealed: reads */
void ckpt_restore_end(struct ckpt_op *op, const struct err *e); /* e NULL: done */
enum shard_status ckpt_restore_compare(const struct model *m, const struct manifest *c, struct err *e);
void ckpt_restore_written(struct ckpt_op *op);
void ckpt_restore_beat(struct ckpt_op *op);
/* look.c, in a job */
void ckpt_read_manifest(struct ckpt_op *op, const char *name); /* of op->dir, op->tag */
void ckpt_check_files(struct ckpt_op *op);                     /* every byte, before weights are given up for it */
/* auto.c */
void ckpt_auto_pick(struct ckpt_op *op); /* the newest that is left in op->dirs */
void ckpt_auto_next(struct ckpt_op *op); /* that one was bad */
void ckpt_auto_dirs(struct ckpt_op *op, const struct model *m);
void ckpt_auto_return(struct model *m);
bool ckpt_auto_start(struct model *m); /* true: it looks for one */
#endif
