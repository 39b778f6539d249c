/* SPDX-License-Identifier: Apache-2.0 */
/* cuda.h: one handle, for the files of the library. A comment with a file's name begins the fields
 * that this file owns. What changes is touched with the lock, except where a comment says whose it
 * is. With the lock held libshard may be called as long as the call does not wait, and a copy may
 * be queued; nothing waits. */
#ifndef SHARD_CUDA_INSIDE_H
#define SHARD_CUDA_INSIDE_H

#include "shard_cuda.h"

#include "cuda/pin.h"
#include "cuda/spans.h"

#include <pthread.h>
#include <sys/types.h>

struct tensor {
	uint64_t numel;
	uint64_t image_offset; /* Bytes from the base of the image. */
	uint64_t grad_offset;  /* The same of the arena, and of memory for gradients. */
	enum shard_dtype image;
	bool frozen;
};

enum device_memories { DEVICE_IMAGE, DEVICE_GRAD, DEVICE_MEMORIES };

struct device_memory { /* Of shardd. */
	cu_ptr at;     /* 0: there is none. */
	size_t bytes;
	cu_handle handle;
	uint64_t mapped; /* shard_info.mapped when it was asked for. */
};

enum job_kind {
	/* Its copy into the arena is queued, or, with SHARD_DEVICE in .flags, there is none. */
	JOB_PUSH,
	JOB_STAGED, /* A gradient that goes through the ring. The helper queues its copies. */
	JOB_PULL    /* The helper queues its copies when the image has them. */
};

struct job {
	enum job_kind kind;
	enum shard_status status; /* How it ended. */
	uint64_t attempt;         /* The attempt that it was queued in. */
	uint64_t until_ns;        /* It has to be done by then. */
	cu_event done;            /* After its last copy. NULL: none is under way. */
	/* A push. */
	uint32_t tensor, flags;
	enum shard_dtype dtype;
	uint64_t first, count;
	cu_ptr dev;
	/* A pull. */
	uint64_t step;
	struct shard_cuda_pull *range; /* Its own. */
	uint32_t range_nr;
};

struct shard_cuda {
	/* cuda.c; nothing of it changes while the handle is open. */
	shard_model *model;
	struct driver driver;
	struct tensor *tensor;
	uint32_t tensors_nr;
	enum shard_dtype grad;
	pid_t pid; /* Of the process that opened it. */
	cu_device device;
	int32_t ordinal;
	int version; /* Of the driver. */
	cu_context ctx;
	cu_stream stream; /* All copies are on it. */
	cu_event before;  /* Orders the stream after a caller's. */
	/* These two change in cuda_renew() alone, while no copy is under way. */
	struct pin arena, image;
	uint64_t mapped; /* shard_info.mapped of the memory that is registered. */
	struct shard_cuda_opts opts;
	struct err why;    /* Why something is not registered, or not there. With the lock. */
	struct text *told; /* What shard_cuda_tell() has handed out of it, until the end. */
	/* They change with the lock in shard_cuda_begin() alone, after another join. */
	struct device_memory there[DEVICE_MEMORIES];
	uint64_t timeout_ns;
	pthread_t helper;
	bool joined; /* The helper has ended and was joined. */
	pthread_mutex_t lock;
	pthread_cond_t changed; /* Anything below. */
	struct err dead;        /* Once it has a status, every call answers with it. */
	bool closing;           /* The helper ends, and nothing more is taken. */
	bool gone;              /* The helper has ended. */
	/* copies.c */
	uint64_t attempt; /* Counts shard_cuda_begin(). */
	bool begun;       /* Pushes are taken. */
	struct spans spans;
	/* Tickets and jobs. Ticket t is at job[t % jobs_cap]: done <= issued <= last, and the jobs
	 * after `done` are not over yet. */
	struct job *job;
	uint32_t jobs_cap;
	shard_ticket last;      /* The newest ticket. */
	shard_ticket last_push; /* The newest one of a push. */
	shard_ticket last_pull; /* The newest one of a pull. */
	/* helper.c */
	shard_ticket issued;  /* The copies of all tickets up to this one are queued. */
	shard_ticket done;    /* All tickets up to this one are done. */
	struct err push_fail; /* Why a push of this attempt failed. The rest is dropped. */
	struct err pull_fail; /* Why a pull failed. The next shard_cuda_pull() forgets it. */
	struct ring ring;     /* The helper's alone, and of close() after its end. */
	cu_event *spare;      /* [jobs_cap] events that nobody uses. */
	uint32_t spare_nr;
	uint64_t pushed_bytes, pulled_bytes, pulled_copies;
};

/* --- cuda.c --- */

/* Leave the sentence for shard_cuda_error(), and return the status. */
enum shard_status cuda_fail(const struct err *e);
__attribute__((format(printf, 2, 3))) enum shard_status cuda_say(enum shard_status st,
								 const char *fmt, ...);
/* Takes over the sentence of libshard for the status that a call of it returned. */
enum shard_status cuda_shard(enum shard_status st);
/* SHARD_BAD_ARG or SHARD_FORKED, with a sentence, unless the handle can be used. */
enum shard_status cuda_usable(const struct shard_cuda *c);
/* Makes the context current in this thread until cuda_leave(). */
enum shard_status cuda_enter(struct shard_cuda *c, struct err *e);
void cuda_leave(struct shard_cuda *c);
/* Nothing works any more: all calls say why. With the lock held. */
void cuda_dead(struct shard_cuda *c, const struct err *e);
/* False: libshard has mapped the memory anew, so what is registered is memory of before. */
bool cuda_fresh(const struct shard_cuda *c);
/* With the lock held and the context current. Registers the memory once more if libshard has mapped
 * it anew, when no copy is under way any more. */
enum shard_status cuda_renew(struct shard_cuda *c, uint64_t until_ns);
/* When a caller's wait ends. */
uint64_t cuda_until(const struct shard_cuda *c, int64_t timeout_ms);
/* Waits for c->changed with the lock held. False: it is later than until_ns. */
bool cuda_await(struct shard_cuda *c, uint64_t until_ns);
uint64_t cuda_mapped(const struct shard_cuda *c); /* shard_info.mapped now. */

/* --- device_memory.c --- */

/* With the context current, before shard_cuda_open() returns. c->why says what there is not. */
void device_memory_take(struct shard_cuda *c);
/* With the context current, when nothing uses it. */
enum shard_status device_memory_give(struct shard_cuda *c, struct err *e);
/* In shard_cuda_begin(): the model was joined again, so that it is other memory. A failure of
 * device_memory_renew() is that of the handle. */
bool device_memory_old(const struct shard_cuda *c);
enum shard_status device_memory_renew(struct shard_cuda *c);
/* Where a tensor is there. False: there is none that may be used. They take the lock. */
bool device_image_at(struct shard_cuda *c, uint32_t tensor, cu_ptr *at);
bool device_grad_at(struct shard_cuda *c, uint32_t tensor, cu_ptr *at);

/* --- helper.c --- */

/* The thread of a handle. */
void *helper_main(void *handle);
struct job *helper_job(struct shard_cuda *c, shard_ticket ticket);
/* With the lock held. */
enum shard_status helper_event(struct shard_cuda *c, cu_event *event, struct err *e);
/* Sleeps for a moment, between two looks at an event. */
void helper_nap(void);

#endif
