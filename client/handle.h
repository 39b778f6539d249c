/* SPDX-License-Identifier: Apache-2.0 */
/* handle.h: one attachment to one model, for the files of the library. Layout and names never
 * change. Everything else is touched with the client's lock, except atomic fields and the arena,
 * which belongs to the thread that pushes. A comment with a file's name begins the fields that this
 * file owns. */
#ifndef SHARD_HANDLE_H
#define SHARD_HANDLE_H

#include "adds.h"
#include "attempt.h"
#include "client.h"
#include "cover.h"
#include "request.h"
#include "spec.h"

#include "net/shm.h"
#include "shard.pb-c.h"

struct shard_model {
	struct list node; /* In the client's models, or its zombies once it is detached. */
	struct shard_client *client;
	struct spec spec;
	struct layout *layout;
	/* define.c */
	uint32_t id, generation; /* As the daemon numbers them. */
	uint64_t born;           /* Drawn when it was defined. 0: an older release does not say. */
	bool defined;            /* The daemon has answered, so id and generation are valid. */
	bool created;            /* This session has to write the weights. */
	bool sealed;             /* The model has weights. */
	uint64_t sealed_step;    /* The step of the weights when it was defined or sealed. */
	uint32_t staleness;      /* The model's max_staleness, and from which step on. */
	uint64_t staleness_after;
	bool scheduled;     /* A schedule gives the learning rates, not shard_begin(). */
	int64_t timeout_ms; /* Of calls that name none. */
	int64_t quorum_ms;  /* Of those that wait for min_world trainers. 0: timeout_ms. */
	atomic_flag busy;   /* A call is in progress that only one thread may make. */
	struct err lost;    /* Once it has a status, every call answers with it. */
	/* world.c */
	struct request *join_request;  /* It outlives a shard_join() that timed out. */
	struct request *leave_request; /* It outlives a shard_leave() that timed out. */
	struct presence presence;      /* Of a trainer that has joined. */
	bool joined;                   /* The daemon has taken this trainer into the model. */
	bool introduced;               /* shard_join() has returned a world to the caller. */
	uint64_t attempts;             /* Attempts that were numbered so far. */
	struct attempt offered;        /* The newest ATTEMPT. */
	bool offered_over;             /* It ended before it was begun. */
	struct attempt begun;          /* The attempt in hand. */
	enum phase phase;              /* Of the attempt in hand. */
	/* max_staleness = 1: the undecided attempt that `begun` follows. no is 0: none. */
	struct attempt flight;
	bool ahead;                /* `begun` has no ATTEMPT yet, so nothing of it is sent. */
	bool abandon_due;          /* ABANDON is sent when the ATTEMPT of `begun` is here. */
	bool changed;              /* Calls answer handle_changed() until shard_world_get(). */
	bool rolled_back;          /* With changed: they answer SHARD_ROLLED_BACK. */
	char why[MODEL_WHY_BYTES]; /* Why the world changed. */
	char why_shown[MODEL_WHY_BYTES]; /* The text that struct shard_world points to. */
	struct attempt seen;             /* Rank and size of the world that the caller knows. */
	/* step.c, verdict.c */
	uint64_t committed_no;   /* The newest attempt that was committed or voted to skip. */
	uint64_t committed_step; /* Its step. The daemon may overwrite images before it. */
	struct verdict verdicts[MODEL_VERDICTS];
	double weight;   /* Of the step in hand. */
	bool lr_given;   /* shard_begin() gave learning rates. */
	double *lr;      /* [spec.groups_nr] the given rates. Made at the first use. */
	bool clip_given; /* shard_commit_opts() gave a clip. */
	double clip, values[SHARD_VALUES]; /* What READY brings with the step. */
	uint32_t values_nr;
	uint64_t wait_ns; /* How long calls have waited since shard_begin(). */
	/* push.c */
	struct shm arena;
	uint64_t arena_half; /* Bytes from the first half to the second. */
	struct cover cover;
	struct adds adds;       /* For steps with several micro-steps. Made at the first. */
	pthread_mutex_t adding; /* It is taken before the client's lock. */
	uint32_t *queue;        /* [chunks_nr] ring of complete chunks that are not sent yet. */
	uint32_t queue_first, queue_nr, queue_part; /* part: tcp: how many of the first are sent. */
	unsigned char *forced; /* [chunks_nr] vote_skip sends the chunk as wholly absent. */
	unsigned char *holes;  /* [segments_nr] shard_push_none_range() covered it: not sent. */
	bool has_holes;
	uint32_t *absent, *shares; /* [tensors_nr], [3 x tensors_nr] room for one PUSH. */
	uint32_t *device; /* [tensors_nr] The same. NULL: no memory of a GPU since the join. */
	bool guard;       /* SHARD_GUARD=1: pushed gradients are write-protected. */
	bool ready_due;   /* READY follows the last chunk. */
	bool ready_skip;  /* READY votes to skip the step. */
	char ready_why[MODEL_WHY_BYTES];     /* The reason that READY or ABANDON gives. */
	uint32_t copying;                    /* Pushes that are between claim and fill. */
	uint32_t sends_out;                  /* Parts of the arena that the stream still reads. */
	uint64_t pushed_bytes, pulled_bytes; /* For struct shard_result. */
	/* image.c */
	struct shm image, device_versions; /* The latter: versions of an image on a GPU. */
	uint64_t image_data;               /* Offset of element 0. */
	uint64_t image_half;               /* Bytes from the first image to the second. */
	/* [staleness + 1][chunks_nr] the daemon's, or own_version. */
	_Atomic uint64_t *version;
	_Atomic uint64_t *own_version; /* tcp: versions of the chunks here. */
	uint32_t *own_part;            /* tcp: [chunks_nr] parts received of a coming version. */
	uint64_t *own_coming;          /* tcp: [chunks_nr] that version. */
	bool *own_same;      /* tcp: [chunks_nr] it is here already, so its bytes are dropped. */
	uint64_t known_step; /* The last step whose outcome is known. */
	uint64_t wrote[2];   /* Steps that wrote the weights of the step before it, and its own. */
	uint64_t landed[MODEL_IMAGES]; /* tcp: the versions that the images have or are getting. */
	/* ticket.c */
	struct ticket tickets[MODEL_TICKETS]; /* Ring of the tickets that wait. */
	uint32_t tickets_first, tickets_nr;
	_Atomic uint64_t ticket_last;         /* The last number that was given. */
	_Atomic uint64_t ticket_done;         /* All tickets up to this one are done. */
	_Atomic uint64_t void_last;           /* The newest void ticket. 0: there is none. */
	struct void_range voids[MODEL_VOIDS]; /* In their order. */
	uint32_t voids_nr;
	/* blob.c */
	unsigned char *blob; /* Made at the first use. */
	uint32_t blob_bytes;
	uint64_t blob_step; /* The step in which it was set. */
	bool blob_due;      /* READY brings it until blob_step is decided. */
	/* ckpt.c */
	struct list saves; /* Saves under way, and how the last ones ended. */
	uint32_t saves_nr;
	_Atomic uint64_t save_last;            /* The newest ticket of a save. */
	_Atomic uint64_t save_no[MODEL_SAVES]; /* All tickets that are remembered. 0: free. */
};

/* As client_enter(). It also answers SHARD_LOST, and refuses NULL. */
enum shard_status handle_enter(struct shard_model *m);
/* It also answers SHARD_BUSY when another thread is in such a call. */
enum shard_status handle_enter_one(struct shard_model *m);
void handle_leave_one(struct shard_model *m);
/* True if an attempt was offered that is newer than the one in hand and has not ended. */
bool handle_offered(const struct shard_model *m);
/* SHARD_WORLD_CHANGED or SHARD_ROLLED_BACK with its sentence, until shard_world_get(). */
enum shard_status handle_changed(struct shard_model *m);
/* SHARD_RANGE with its sentence unless the tensor exists and [first, first + count) is inside it
 * and not empty. Only of a tensor without elements the range 0, 0 is right. what names the call in
 * the sentence. */
enum shard_status handle_range(const struct shard_model *m, const char *what, uint32_t tensor,
			       uint64_t first, uint64_t count);
/* For calls that only say where the arena or the image is. Mapped memory stays until the trainer
 * leaves or detaches, so the end of the connection and LOST are no reason to refuse. */
enum shard_status handle_enter_joined(struct shard_model *m, const char *what);
struct wire_head handle_head(const struct shard_model *m);
/* The caller's timeout, or the model's own for SHARD_DEFAULT and anything below 0. */
int64_t handle_timeout(const struct shard_model *m, int64_t timeout_ms);
/* As pump_wait(). It also answers SHARD_LOST, and counts the time. */
enum shard_status handle_wait(struct shard_model *m, struct wait *w);
/* A call that waits for an attempt. While fewer than min_world trainers have joined, its deadline
 * is the model's quorum_timeout, and else the one that wait_begin() gave it. A call with a timeout
 * of its own has only that. Begun where the wait for the attempt begins. */
struct quorum {
	uint64_t call_ns, quorum_ns; /* quorum_ns UINT64_MAX: there is none. */
};
void handle_quorum_begin(const struct shard_model *m, int64_t timeout_ms, struct wait *w,
			 struct quorum *q);
enum shard_status handle_wait_quorum(struct shard_model *m, struct wait *w, struct quorum *q);
/* Asks whom the model waits for. False: shardd did not say, and text says that. */
bool handle_waits_text(struct shard_model *m, char *text, size_t bytes);
/* The handle that a frame is for, or NULL. */
struct shard_model *handle_find(struct shard_client *c, const struct wire_head *h);
/* LOST came. status SHARD_NOT_FOUND: the model was dropped. */
void handle_lost(struct shard_model *m, uint32_t status, const char *why);

#endif
