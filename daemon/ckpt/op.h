/* SPDX-License-Identifier: Apache-2.0 */
/* op.h: a save, restore or comparison in progress on the coordinator, shared by the files of this
 * folder. A model has at most one. It asks every node for its share and waits for all answers. What
 * blocks is a job off the loop, one at a time, that works on the operation's own memory. */
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

#define CKPT_STALL_NS    (60 * NS_PER_SEC) /* Longest wait for a byte, plus heartbeat_timeout. */
#define CKPT_PROGRESS_NS (200 * NS_PER_MS)
#define CKPT_DIRS        2

/* START is restore_at_start, and RETURN comes after LOST. */
enum ckpt_kind { CKPT_SAVE = 1, CKPT_RESTORE, CKPT_START, CKPT_RETURN, CKPT_VERIFY };

enum ckpt_phase {
	CKPT_PASSING = 1, /* restore: waits for the link to the coordinator */
	CKPT_HOLDING,     /* save, verify: until the core says which step the weights are of */
	CKPT_BEGINNING,   /* save: makes the folder */
	CKPT_WRITING,     /* save: every node writes its share */
	CKPT_HASHING,     /* verify: every node hashes what it holds */
	CKPT_FINISHING,   /* save: manifest, sync, rename */
	CKPT_LOOKING,     /* restore: looks for a checkpoint, reads its manifest */
	CKPT_DEFINING,    /* restore: every node makes the model, or a link is awaited */
	CKPT_GIVING_UP,   /* restore: of a sealed model, until it is LOST */
	CKPT_LINKS,       /* restore: until every node is linked */
	CKPT_LOADING,     /* restore: every node reads its share */
	CKPT_COUNTING,    /* restore: every node counts whether it has all weights */
	CKPT_SEALING,     /* restore: until the core has sealed the model */
	CKPT_PUBLISHING,  /* restore: until the image is whole on this node */
	CKPT_NOTING,      /* done: until the model's file names the folder */
	CKPT_ENDING,      /* save: it failed, and its folder is being removed */
};

struct ckpt_blob {
	uint32_t rank, bytes;
	uint64_t step;
	uint8_t *data;
};

struct ckpt_op;

struct ckpt_doing { /* The functions that differ between the kinds. */
	/* The operation has failed (op->why). Ends it, or waits until nobody works for it. */
	void (*end)(struct ckpt_op *op);
	/* Called at each beat while no job and no share is in progress. May be NULL. */
	void (*beat)(struct ckpt_op *op);
	/* In CKPT_HOLDING. NULL: it brings weights instead of reading them. */
	void (*held)(struct ckpt_op *op, const struct record *r);
	/* False: nobody waits for the end any more, so it fails. NULL: it goes on. */
	bool (*wanted)(const struct ckpt_op *op);
	bool abrupt; /* end() need not wait for shares, because they leave nothing behind. */
	void (*free)(struct ckpt_op *op); /* May be NULL. */
	/* One digest per chunk that the node held in the view. NULL: nobody asks. */
	enum shard_status (*digests_are)(struct ckpt_op *op, uint16_t node, uint64_t term,
					 uint32_t seq, const uint64_t *digest, uint64_t nr,
					 struct err *e);
	/* See ckpt_share_file(). NULL: nodes write no files for it. */
	void (*part_is)(struct ckpt_op *op, uint16_t node, struct part_file *file,
			struct manifest_blob *blobs, uint32_t blobs_nr);
};

struct ckpt_op {
	struct list link; /* In server->ckpts. */
	struct server *server;
	struct model *m; /* NULL: there is none yet, or it is gone. */
	const struct ckpt_doing *doing;
	enum ckpt_kind kind;
	enum ckpt_phase phase;
	char name[65], dir[CHECKPOINT_PATH_MAX], tag[CHECKPOINT_TAG_MAX + 1],
		path[CHECKPOINT_PATH_MAX], client[CHECKPOINT_PATH_MAX]; /* Files of trainers. */
	struct ckpt_place place;                                        /* How dir may be opened. */
	/* asked: somebody waits. made: the restore made the model. fresh: replace no other step. */
	bool asked, force, made, fresh;
	struct caller requester;
	Shard__Restore *request; /* A copy. Its room is `kept`, of the requester's share. */
	struct held kept;
	uint32_t uid; /* Of the requester, where it is known. */
	struct job job;
	/* noting: its file is to name this restore. noted_up: the node waited for was linked. */
	bool working, noting, noted_up;
	void (*run)(struct ckpt_op *op), (*done)(struct ckpt_op *op);
	enum shard_status st; /* Status of the job. */
	struct err why;       /* Why the job failed, then why the operation did. */
	bool failed;          /* It ends when nobody works for it any more. */
	struct ckpt_share share[CORE_NODES_MAX];
	struct round shares;        /* Nodes that work on a share or count, with this one. */
	bool cancelled, shares_bad; /* shares_bad: a file was at fault, not a link. */
	void (*shares_done)(struct ckpt_op *op);
	uint64_t incarnation[CORE_NODES_MAX], downs[CORE_NODES_MAX]; /* Of the links. */
	uint64_t done_bytes, moved_ns, told_ns, began_ns, noted_ns;
	struct manifest *manifest;
	bool held; /* Of a save, as all up to .folder. */
	uint64_t held_ns, hold_ns, step, bytes, shared_bytes;
	struct ckpt_view view;   /* By which the nodes were asked. */
	struct manifest made_of; /* The manifest to write. Names in it point into spec. */
	Shard__Spec *spec;
	uint32_t keep; /* Checkpoints to keep; 0: all. */
	int folder;    /* Locked folder, so that no other save sweeps it; -1: none. */
	/* Of a restore. */
	struct part_progress checking;
	struct ckpt_blob *blobs;
	uint32_t blobs_nr, dirs_nr;
	struct ckpt_place dirs[CKPT_DIRS]; /* Folders to look in when nobody named one. */
	struct ckpt_verify *verify;        /* Owner: verify.c. */
	/* For auto.c and pick.c, which choose a checkpoint. */
	struct ckpt_run whose;           /* Run to look for. line 0: the first look decides. */
	uint64_t below;                  /* Only steps below this are left, once looked is set. */
	bool none, looked;               /* none: the folders have no checkpoint at all. */
	bool again;                      /* Goes on after a restart, and waits for nodes. */
	char newer[CHECKPOINT_PATH_MAX]; /* A newer checkpoint that is bad; empty: none. */
	struct err newer_why;
};

enum shard_status ckpt_op_new(struct ckpt_op **out, struct server *s, struct model *m,
			      enum ckpt_kind kind, const struct ckpt_doing *doing, struct err *e);
void ckpt_op_attach(struct ckpt_op *op, struct model *m);
void ckpt_op_free(struct ckpt_op *op);
void ckpt_op_work(struct ckpt_op *op, void (*run)(struct ckpt_op *),
		  void (*done)(struct ckpt_op *));
/* Asks every node for its share; body is a SavePart, a LoadPart or NULL. shares_done is called
 * on the loop when all have answered. */
void ckpt_op_ask(struct ckpt_op *op, uint16_t wire_op, const ProtobufCMessage *body,
		 void (*shares_done)(struct ckpt_op *));
/* Asks every node, including this one, whether it has all weights of its last LOAD_PART. */
void ckpt_op_count(struct ckpt_op *op, void (*shares_done)(struct ckpt_op *));
/* Only the first failure is kept. Shares in progress are cancelled. */
void ckpt_op_fail(struct ckpt_op *op, const struct err *e);
void ckpt_op_cancel(struct ckpt_op *op);
void ckpt_op_tell(struct ckpt_op *op); /* Sends PROGRESS to the requester. */
uint64_t ckpt_op_tell_whole(
	struct ckpt_op *op); /* Sends the last PROGRESS, of all bytes. Returns their number. */
void ckpt_op_hold(struct ckpt_op *op, bool on);
void ckpt_op_refuse(struct ckpt_op *op, const struct err *e); /* Answers the requester, once. */
bool ckpt_op_noted(struct ckpt_op *op); /* In CKPT_NOTING. False: not yet, or op is freed. */
void ckpt_op_note_failure(struct ckpt_op *op);
/* "is being saved to /ckpt/x" */
const char *ckpt_op_text(const struct ckpt_op *op, char out[CHECKPOINT_PATH_MAX + 64]);
/* May one begin that reads the weights? verb: "save". */
enum shard_status ckpt_op_may(const struct model *m, const char *verb, struct err *e);
const struct peer *ckpt_away(const struct ckpt_op *op); /* A node not linked or ready; or NULL. */
/* Writes the folder and the restore in progress into the model's file, again after a failure. */
void ckpt_persist(struct model *m);
bool ckpt_noted(const struct model *m); /* True: that is on disk. */
void ckpt_note_beat(struct model *m);
bool ckpt_persist_dir(struct model *m, const char *dir); /* False: call again. */
/* Into out[CHECKPOINT_PATH_MAX]: the folder asked for, or the model's own. */
enum shard_status ckpt_dir(char *out, const char *asked, const char *checkpoint_dir,
			   const char *name, struct err *e);
time_t ckpt_time(const char *rfc3339);

#endif
