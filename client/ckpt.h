/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt.h: saving and restoring: what shard_save(), shard_restore() and shardctl ask for. Call with the client's lock where a client or a
 * model is given. */
#ifndef SHARD_CLIENT_CKPT_H
#define SHARD_CLIENT_CKPT_H

#include "handle.h"

typedef void (*ckpt_progress_fn)(void *arg, uint64_t done_bytes, uint64_t total_bytes); /* with the lock: no calls from it */

struct ckpt_ask {
	const char *name, *dir, *tag; /* NULL: as in shard_save() and shard_restore() */
	bool force;                   /* restore: gives up the weights that the model has */
	bool fresh;                   /* save: a tag that is there with another step is SHARD_EXISTS */
	int64_t timeout_ms;           /* without a sign of life */
	ckpt_progress_fn progress;    /* NULL: nobody looks */
	void *arg;
};

struct ckpt_answer {
	char path[1024], name[65]; /* save: where it is; restore: of the model */
	uint64_t step, bytes, write_ns, hold_ns;
};

enum shard_status ckpt_save(struct shard_client *c, const struct ckpt_ask *ask, struct ckpt_answer *out);
enum shard_status ckpt_restore(struct shard_client *c, const struct ckpt_ask *ask, struct ckpt_answer *out,
			       struct shard_model **m);                                       /* m NULL: without a handle */
bool ckpt_heard(struct shard_client *c, const struct wire_head *h, const Shard__Progress *p); /* PROGRESS came */

/* Without the lock. False: the ticket is not of a save. */
bool ckpt_wait(struct shard_model *m, shard_ticket ticket, int64_t timeout_ms, enum shard_status *rc);
bool ckpt_test(struct shard_model *m, shard_ticket ticket, enum shard_status *rc);
void ckpt_forget(struct shard_model *m); /* the handle goes; what the daemons write, they write */

#endif
