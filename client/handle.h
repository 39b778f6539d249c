/* SPDX-License-Identifier: Apache-2.0 */
/* handle.h: one attachment to one model, as the files of the library see it. Layout and names never change; everything else
 * is touched with the client's lock, except what is atomic and the arena, which belongs to whoever pushes. */
#ifndef SHARD_HANDLE_H
#define SHARD_HANDLE_H

#include "adds.h"
#include "attempt.h"
#include "client.h"
#include "cover.h"
#include "net/shm.h"

#include "shard.pb-c.h"

struct shard_model {
	struct list node;
	struct shard_client *client;
	struct space space;
	uint32_t id, generation, pid;
	bool defined, created, sealed; /* defined: id and generation are known */
	int64_t timeout_ms;
	uint64_t sealed_step; /* as of define or seal */
	atomic_flag busy;     /* a [one] call is in progress */
	struct err lost;      /* status: every call says so */
	/* world.c */
	struct request *join_request, *leave_request; /* outlive a call that timed out */
	bool joined, introduced;                      /* introduced: shard_join() has returned a world */
	uint64_t attempts;                            /* ATTEMPT frames seen */
	struct attempt offered, begun;                /* the newest ATTEMPT; the one in hand */
	bool offered_over;                            /* it ended before it was begun */
	enum phase phase;
	uint64_t committed_no; /* newest attempt that was committed or voted to skip */
	/* ahead.c */
	uint32_t staleness;    /* the model's max_staleness */
	struct attempt flight; /* committed and undecided, while `begun` is the step after it; no 0: none */
	bool ahead;            /* `begun` had no ATTEMPT yet: nothing of it is sent */
	bool abandon_due;      /* ABANDON goes out when it has */
	bool changed;          /* SHARD_WORLD_CHANGED until shard_world_get() */
	bool rolled_back;      /* or rather SHARD_ROLLED_BACK */
	char why[MODEL_WHY_BYTES], why_shown[MODEL_WHY_BYTES];
	struct attempt seen; /* rank and size that the caller knows */
	struct verdict verdicts[MODEL_VERDICTS];
	double weight, *lr;       /* lr: [space.groups_nr] of the step in hand; made at the first use */
	bool lr_given, scheduled; /* scheduled: the model's settings name a schedule */
	/* push.c */
	struct shm arena, image;
	struct cover cover;
	struct adds adds;                       /* of steps with more than one; sums made at the first */
	pthread_mutex_t adding;                 /* order: adding, then the client's lock */
	uint32_t *queue, queue_first, queue_nr; /* complete chunks that are not sent yet, at most chunks_nr */
	uint32_t queue_part;                    /* of the first one, over tcp */
	unsigned char *forced;                  /* [chunks_nr] vote_skip sends it as wholly absent */
	uint32_t *absent;                       /* room for one PUSH */
	bool guard, ready_due, ready_skip;      /* ready_due: READY follows the last chunk */
	char ready_why[MODEL_WHY_BYTES];
	uint32_t copying;   /* pushes that are between claim and fill */
	uint32_t sends_out; /* parts of the arena that the stream still reads */
	uint64_t pushed_bytes, pulled_bytes, wait_ns;
	/* image.c */
	uint64_t image_data;             /* offset of element 0 */
	uint64_t image_half, arena_half; /* to the second one of each */
	_Atomic uint64_t *version;       /* [staleness + 1][chunks_nr] in the shared image, or own_version */
	_Atomic uint64_t *own_version;
	uint32_t *own_part;      /* [chunks_nr] parts of the version being received */
	uint64_t *own_coming;    /* [chunks_nr] that version */
	bool *own_same;          /* [chunks_nr] it is here already: its bytes go nowhere */
	uint64_t committed_step; /* newest step that this trainer has committed: images before it may be overwritten */
	uint64_t known_step,
		wrote[2]; /* weights.c: the last decided step; who wrote the weights of the one before it, and its own */
	uint64_t landed[MODEL_IMAGES]; /* tcp: what the images have, or are getting */
	struct ticket tickets[MODEL_TICKETS];
	uint32_t tickets_first, tickets_nr;
	/* blob.c */
	unsigned char *blob; /* made at the first use */
	uint32_t blob_bytes;
	bool blob_due; /* READY brings it, until blob_step is decided */
	uint64_t blob_step;
	/* ckpt.c */
	struct list saves; /* under way, and how the last ones ended */
	uint32_t saves_nr;
	_Atomic uint64_t save_last, save_no[MODEL_SAVES]; /* newest ticket of a save; all that are remembered, 0: free */
	_Atomic uint64_t ticket_last, ticket_done;        /* given; all up to it are done */
	_Atomic uint64_t void_first, void_last;           /* those in between ended with their generation */
};

/* --- handle.c --- */
enum shard_status handle_enter(struct shard_model *m);     /* as client_enter(); also SHARD_LOST, and NULL is refused */
enum shard_status handle_enter_one(struct shard_model *m); /* also SHARD_BUSY */
void handle_leave_one(struct shard_model *m);
struct wire_head handle_head(const struct shard_model *m);
int64_t handle_timeout(const struct shard_model *m, int64_t timeout_ms); /* SHARD_DEFAULT, and below: the model's */
enum shard_status handle_wait(struct shard_model *m, struct wait *w);    /* pump_wait(), and SHARD_LOST; counts the time */
void handle_waits_text(struct shard_model *m, char *text, size_t bytes); /* asks whom the model waits for */
struct shard_model *handle_find(struct shard_client *c, const struct wire_head *h);
void handle_reap(struct shard_client *c); /* frees what was detached, when the stream is done with it */
void handle_free(struct shard_model *m);
/* A handle on the model that a reply of ATTACH or RESTORE describes. SHARD_EXISTS: this connection has one. */
enum shard_status handle_of_reply(struct shard_client *c, const struct request *r, struct shard_model **out);
void handle_forget(struct shard_model *m); /* in a forked child: closes descriptors, touches nothing else */
void handle_lost(struct shard_model *m, uint32_t status, const char *why); /* SHARD_NOT_FOUND: it was dropped */

#endif
