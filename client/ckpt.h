/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt.h: saving and restoring, as shard_save(), shard_restore() and shardctl ask for it. Call with
 * the client's lock where a client or a model is given. */
#ifndef SHARD_CLIENT_CKPT_H
#define SHARD_CLIENT_CKPT_H

#include "handle.h"

/* Called with the lock, so it must not call the library. */
typedef void (*ckpt_progress_fn)(void *arg, uint64_t done_bytes, uint64_t total_bytes);

struct ckpt_ask {
	const char *name, *dir, *tag; /* As in shard_save() and shard_restore(). May be NULL. */
	const char *client;           /* save: as in shard_save_as(). May be NULL. */
	bool force;                   /* restore: gives up the weights that the model has. */
	bool fresh;                   /* save: SHARD_EXISTS if the tag exists with another step. */
	int64_t timeout_ms;           /* Without a sign of life. */
	ckpt_progress_fn progress;    /* May be NULL. */
	void *arg;
};

struct ckpt_answer {
	char path[1024]; /* save: where it is. */
	char name[65];   /* restore: name of the model. */
	uint64_t step, bytes;
	uint64_t shared_bytes; /* save: of bytes, those that were not written again. */
	uint64_t write_ns;     /* save: how long the daemons wrote. */
	uint64_t hold_ns;      /* save: how long steps were held meanwhile. */
};

enum shard_status ckpt_save(struct shard_client *c, const struct ckpt_ask *ask,
			    struct ckpt_answer *out);
/* *reply describes the model, for handle_of_reply(). The caller frees it. reply may be NULL. */
enum shard_status ckpt_restore(struct shard_client *c, const struct ckpt_ask *ask,
			       struct ckpt_answer *out, struct request **reply);
/* Waits for the daemon's answer, however long that takes, while the daemon sends signs of life. Of
 * a it uses timeout_ms, progress and arg. w is what the request was sent with. */
enum shard_status ckpt_answer_wait(struct request *r, const struct ckpt_ask *a, struct wait *w);
/* PROGRESS came. False: no caller waits for that request any more. */
bool ckpt_heard(struct shard_client *c, const struct wire_head *h, const Shard__Progress *p);

/* Call without the lock. False: the ticket is not of a save. */
bool ckpt_wait(struct shard_model *m, shard_ticket ticket, int64_t timeout_ms,
	       enum shard_status *rc);
bool ckpt_test(struct shard_model *m, shard_ticket ticket, enum shard_status *rc);
/* The handle is freed. The daemons finish the saves that they have begun. */
void ckpt_forget(struct shard_model *m);

#endif
