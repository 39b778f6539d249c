/* SPDX-License-Identifier: Apache-2.0 */
/* fake_impl.h: streams, events and memory, for the calls of the other files. Everything but
 * fake_enter() is called with fake.lock held, and touched with it. */
#ifndef SHARD_TESTS_FAKE_IMPL_H
#define SHARD_TESTS_FAKE_IMPL_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DEVICE_MAX 8
typedef struct CUctx_st *ctx_t;
typedef struct CUstream_st *stream_t;
typedef struct CUevent_st *event_t;
typedef uint64_t ptr_t;

enum {
	INVALID_VALUE = 1,
	OUT_OF_MEMORY = 2,
	NOT_INITIALIZED = 3,
	INVALID_DEVICE = 101,
	INVALID_CONTEXT = 201,
	INVALID_HANDLE = 400,
	NOT_FOUND = 500,
	NOT_READY = 600,
	LAUNCH_OUT_OF_RESOURCES = 701,
	ALREADY_REGISTERED = 712,
	NOT_REGISTERED = 713,
	NOT_SUPPORTED = 801
};

enum { READS = 1, WRITES = 2 }; /* What a device may do with memory. */

enum op_kind { OP_TO_HOST, OP_TO_DEVICE, OP_WITHIN, OP_SET, OP_LAUNCH, OP_RECORD, OP_WAIT };

struct op {
	enum op_kind kind;
	char *to;
	const char *from;
	size_t bytes;
	event_t event;
	uint64_t count;     /* Of the event. */
	const char *host;   /* The host side of a copy. */
	unsigned char byte; /* OP_SET. */
	const void *kernel; /* OP_LAUNCH: the struct shim_kernel, and a copy of its arguments. */
	void *args;
	unsigned blocks, threads;
	struct op *next;
};

struct CUevent_st {
	struct CUevent_st *all;
	bool live;
	uint64_t recorded, reached;
	ctx_t ctx;
};

struct CUstream_st {
	struct CUstream_st *all;
	bool live, held, capturing, legacy;
	bool dropped; /* Of a context that is gone: it copies nothing any more. */
	ctx_t ctx;
	struct op *first, **end; /* Those that are not done. The first one may be under way. */
	pthread_t thread;
	pthread_cond_t wake; /* It has an operation again, or ends. */
};

struct CUctx_st {
	int device;
	uint32_t users;
	int error;                  /* That ended it. */
	bool held;                  /* Nothing is done on any of its streams. */
	struct CUstream_st *legacy; /* The stream NULL. */
};

struct memory { /* Of the device, pinned by the driver, or registered. */
	struct memory *next;
	enum { DEVICE, PINNED, REGISTERED, REGISTERED_READ_ONLY } kind;
	char *base, *inside;
	size_t bytes;
	int device;                       /* Whose it is, or whose context was current. */
	unsigned char access[DEVICE_MAX]; /* DEVICE: who may do what with it. */
	struct allocation *of;            /* DEVICE: cuMemMap() made it. */
};

/* What was made and is not given back, of fake_memory.c and fake_launch.c. */
struct fake_counts {
	uint32_t handles, ranges, mapped, modules, device;
};

/* There is one driver in a process. */
extern struct fake {
	pthread_mutex_t lock;
	pthread_cond_t changed; /* Something that fake_wait() may wait for. */
	uint32_t waiting;
	stream_t streams;
	event_t events;
	struct memory *memories;
	struct CUctx_st contexts[DEVICE_MAX];
	int devices;
	bool read_only;        /* Such memory can be registered. */
	uint64_t memory_bytes; /* Of each device. */
	uint32_t delay_us;
	uint64_t seed;
	int attribute[16][2]; /* That a test has set: which, and its value. */
} fake;

/* Takes the lock, and says whether the call can go on: a planned error, or the one that ended the
 * context. */
int fake_enter(const char *call, ctx_t *ctx);
int fake_leave(int error);             /* Gives the lock back. */
int fake_controlled(const char *call); /* 0 or an error, of FAKE_CUDA_CONTROL. It may hang. */
void fake_wait(void);                  /* Until something has changed. */
void fake_end_stream(stream_t s);
#define ENTER(ctx)                                                                                 \
	ctx_t ctx;                                                                                 \
	int error = fake_enter(__func__, &(ctx));                                                  \
	if (error != 0)                                                                            \
	return fake_leave(error)
/* For calls that need no context. */
#define ENTER_ANY()                                                                                \
	ctx_t ctx_;                                                                                \
	int error = fake_enter(__func__, &ctx_);                                                   \
	if (error == INVALID_CONTEXT && ctx_ == NULL)                                              \
		error = 0;                                                                         \
	if (error != 0)                                                                            \
	return fake_leave(error)
#define CALL(name, ...)                                                                            \
	__attribute__((visibility("default"))) int name(__VA_ARGS__);                              \
	__attribute__((visibility("default"))) int name(__VA_ARGS__)

void fake_undefined(const char *what); /* Ends the process: CUDA says nothing of that. */
void fake_push(stream_t s, struct op op);
stream_t fake_stream_new(ctx_t ctx);
/* The stream or event behind a handle, or NULL. The stream is of that context. */
stream_t fake_stream(stream_t handle, ctx_t ctx);
event_t fake_event(event_t handle);
struct memory *fake_memory(const void *at); /* That the address is in, or NULL. */
bool fake_overlaps(const char *base, size_t bytes);
struct memory *fake_add(int kind, char *base, char *inside, size_t bytes);
/* Where the streams find a range of device memory. NULL: it is no such range. Ends the process if
 * the device of the context may not do that with it. */
char *fake_inside(ctx_t ctx, ptr_t at, size_t bytes, int what);
void fake_run(ctx_t ctx, const struct op *o); /* A kernel, as an operation of a stream. */
uint64_t fake_used(int device);               /* Bytes. */
void fake_memory_counts(struct fake_counts *counts);
void fake_launch_counts(struct fake_counts *counts);
/* All of it that is of a device is gone, as with the process that made it. */
void fake_memory_forget(int device);
void fake_launch_forget(int device);
void fake_remove(struct memory *m);
int fake_attribute(int which);
bool fake_direct(const struct memory *m);             /* It was made for network devices. */
void fake_dma_over(const char *inside, size_t bytes); /* Nothing is there any more. */
bool fake_in_use(const struct memory *m);             /* By an operation that is not done. */
/* How a range of this process is mapped: 0 not at all, 1 somewhere read-only, 2 writable. */
int fake_mapped(const char *base, size_t bytes);

#endif
