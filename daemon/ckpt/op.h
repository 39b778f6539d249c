/* SPDX-License-Identifier: Apache-2.0 */
/* op.h: a save or a restore in hand, on the coordinator: what the files of this folder share. One
 * of a model at a time. It asks every node for its share and waits for all answers; what blocks
 * is a job of libuv's pool, one at a time, on the operation's own memory. */
#ifndef SHARD_CKPT_OP_H
#define SHARD_CKPT_OP_H

#include "ckpt/ckpt.h"
#include "node/job.h"
#include "ckpt/place.h"
#include "ckpt/share.h"
#include "control/held.h"
#include "link/call.h"
#include "link/caller.h"
#include "model/model.h"

#define CKPT_STALL_NS    (60 * NS_PER_SEC) /* and heartbeat_timeout: no byte for so long ends it */
#define CKPT_PROGRESS_NS (200 * NS_PER_MS)
#define CKPT_DIRS        2

enum ckpt_kind {
	CKPT_SAVE = 1,
	CKPT_RESTORE,
	CKPT_START /* of a definition */,
	CKPT_RETURN /* after LOST */
};

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
	CKPT_COUNTING,    /* restore: every node says whether all of it is there      */
	CKPT_SEALING,     /* restore: until the core has sealed it                   */
	CKPT_PUBLISHING,  /* restore: until the image is whole here                  */
	CKPT_NOTING,      /* done: until the model's file names the folder           */
	CKPT_ENDING,      /* it failed; what it left is being removed                */
};

struct ckpt_blob {
	uint32_t rank, bytes;
	uint64_t step;
	uint8_t *data;
};

struct ckpt_op;

/* What a save and a restore do differently with what every operation meets. */
struct ckpt_doing {
	/* It has failed (op->why). Ends it, or waits until nobody works for it any more. */
	void (*end)(struct ckpt_op *op);
	/* At each beat at which nothing is under way. NULL: nothing to do. */
	void (*beat)(struct ckpt_op *op);
	/* ckpt_share_file(). NULL: no node writes for it. */
	void (*part_is)(struct ckpt_op *op, uint16_t node, struct part_file *file,
			struct manifest_blob *blobs, uint32_t blobs_nr);
};

struct ckpt_op {
	struct list link; /* in server.ckpts */
	struct server *server;
	struct model *m; /* NULL: none yet, or gone */
	const struct ckpt_doing *doing;
	enum ckpt_kind kind;
	enum ckpt_phase phase;
	char name[65], dir[CHECKPOINT_PATH_MAX], tag[CHECKPOINT_TAG_MAX + 1],
		path[CHECKPOINT_PATH_MAX];
	struct ckpt_place place; /* dir, as it may be opened */
	bool asked, force, made,
		fresh; /* made: the model is this restore's; fresh: a save replaces no other step */
	struct caller requester;
	Shard__Restore *request; /* as it came */
	struct held kept;        /* until it works on a model, which has one at a time */
	uint32_t uid;
	struct job job;
	bool working, noting, noted_up; /* its file is to name this restore; away, but linked */
	void (*run)(struct ckpt_op *op), (*done)(struct ckpt_op *op);
	enum shard_status st; /* of the job */
	struct err why;       /* of the job, then of the operation */
	bool failed;          /* why says it; it ends when nobody works for it any more */
	struct ckpt_share share[CORE_NODES_MAX];
	struct round shares;        /* Who works on its share, or counts, this node too. */
	bool cancelled, shares_bad; /* bad: the files were, not a link */
	void (*shares_done)(struct ckpt_op *op);
	uint64_t incarnation[CORE_NODES_MAX], downs[CORE_NODES_MAX]; /* of links, when asked */
	uint64_t done_bytes, moved_ns, told_ns, began_ns, noted_ns;
	struct manifest *manifest;
	/* save */
	bool held;
	uint64_t held_ns, hold_ns, step, bytes;
	struct manifest made_of; /* what it writes; tensors and groups point into spec */
	Shard__Spec *spec;
	uint32_t keep; /* prune after it; 0: nothing */
	int folder; /* Keeps other saves from sweeping its unfinished folder; -1: nothing does. */
	/* restore */
	struct part_progress checking;
	struct ckpt_blob *blobs;
	uint32_t blobs_nr, dirs_nr;
	struct ckpt_place dirs[CKPT_DIRS]; /* to look in, when nobody named a checkpoint */
	/* auto.c: which one is taken */
	struct ckpt_run whose; /* whose to look for; line 0: the first look says */
	uint64_t below;        /* only older steps are left to try, once it has looked */
	bool none, looked;     /* none: nothing that looks like a checkpoint is there */
	bool again; /* it goes on after a start of the coordinator, and waits for nodes */
	char newer[CHECKPOINT_PATH_MAX]; /* a newer one that is no good; empty: there is none */
	struct err newer_why;
};

enum shard_status ckpt_op_new(struct ckpt_op **out, struct server *s, struct model *m,
			      enum ckpt_kind kind, const struct ckpt_doing *doing, struct err *e);
void ckpt_op_attach(struct ckpt_op *op, struct model *m);
void ckpt_op_free(struct ckpt_op *op);
void ckpt_op_work(struct ckpt_op *op, void (*run)(struct ckpt_op *),
		  void (*done)(struct ckpt_op *));
/* Asks every node for its share; body: SavePart or LoadPart. shares_done is called when all have
 * answered, from the loop. */
void ckpt_op_ask(struct ckpt_op *op, uint16_t wire_op, const ProtobufCMessage *body,
		 void (*shares_done)(struct ckpt_op *));
/* Asks every node, this one too, whether all weights are there, by the LOAD_PART that it was asked
 * for last. */
void ckpt_op_count(struct ckpt_op *op, void (*shares_done)(struct ckpt_op *));
/* The first failure counts; shares that are out are cancelled. */
void ckpt_op_fail(struct ckpt_op *op, const struct err *e);
void ckpt_op_cancel(struct ckpt_op *op);
void ckpt_op_tell(struct ckpt_op *op); /* PROGRESS to who asked */
uint64_t ckpt_op_tell_whole(
	struct ckpt_op *op); /* the last one, of all bytes of the checkpoint: how many */
void ckpt_op_hold(struct ckpt_op *op, bool on);
void ckpt_op_refuse(struct ckpt_op *op, const struct err *e); /* answers who asked; once */
/* CKPT_NOTING. false: the model's file does not name the folder yet; or the model and op are gone.
 */
bool ckpt_op_noted(struct ckpt_op *op);
void ckpt_op_note_failure(struct ckpt_op *op);
const char *ckpt_op_text(const struct ckpt_op *op,
			 char out[CHECKPOINT_PATH_MAX + 64]); /* "being saved to /ckpt/x" */
const struct peer *ckpt_away(const struct ckpt_op *op); /* no link, or no memory of it; or NULL */
/* The model's file is to name the folder and the restore in hand. Failures are tried again. */
void ckpt_persist(struct model *m);
bool ckpt_noted(const struct model *m); /* It does, synced. */
void ckpt_note_beat(struct model *m);
bool ckpt_persist_dir(struct model *m, const char *dir); /* false: not yet, a beat is due soon */
/* dir as asked, or the model's own, into out[CHECKPOINT_PATH_MAX] */
enum shard_status ckpt_dir(char *out, const char *asked, const char *checkpoint_dir,
			   const char *name, struct err *e);
time_t ckpt_time(const char *rfc3339);
/* save.c */
enum shard_status ckpt_save_begin(struct model *m, const struct caller *a, const char *dir,
				  const char *tag, uint32_t keep, bool fresh, bool anywhere,
				  struct err *e);
/* restore.c */
void ckpt_restore_load(struct ckpt_op *op); /* the manifest is right, the model unsealed: reads */
void ckpt_restore_end(struct ckpt_op *op, const struct err *e); /* e NULL: done */
extern const struct ckpt_doing ckpt_restores;
#endif
