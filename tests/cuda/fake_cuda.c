// SPDX-License-Identifier: Apache-2.0
/* A libcuda.so.1 for tests: see fake_cuda.h. One lock protects everything. Each stream has a thread
 * that does its operations in their order: it sleeps for a while first, and copies without the
 * lock. An event counts how often it was recorded, and which of these records were reached. Device
 * memory is mapped twice: without any access at the address that callers get, and readable and
 * writable for the streams. Errors of a caller are the driver's codes, and what would be undefined
 * there ends the process. */
#include "tests/cuda/fake_cuda.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define API        __attribute__((visibility("default")))
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
	NOT_READY = 600,
	ALREADY_REGISTERED = 712,
	NOT_REGISTERED = 713,
	NOT_SUPPORTED = 801
};

enum op_kind { OP_TO_HOST, OP_TO_DEVICE, OP_RECORD, OP_WAIT };

struct op {
	enum op_kind kind;
	char *to;
	const char *from;
	size_t bytes;
	event_t event;
	uint64_t count;   /* Of the event. */
	const char *host; /* The host side of a copy. */
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
	ctx_t ctx;
	struct op *first, **end; /* Those that are not done. The first one may be under way. */
	pthread_t thread;
};

struct CUctx_st {
	int device;
	uint32_t users;
	int error;                  /* That ended it. */
	struct CUstream_st *legacy; /* The stream NULL. */
};

struct memory { /* Of the device, pinned by the driver, or registered. */
	struct memory *next;
	enum { DEVICE, PINNED, REGISTERED, REGISTERED_READ_ONLY } kind;
	char *base, *inside;
	size_t bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct CUctx_st contexts[DEVICE_MAX];
static struct CUstream_st *streams;
static struct CUevent_st *events;
static struct memory *memories;
static bool initialized, read_only = true;
static int devices = 1;
static uint32_t delay_us = 300, synchronous;
static uint64_t seed = 1;
static struct {
	char call[64];
	uint32_t nth;
	int error;
} plan[8];
static int failed;
static _Thread_local ctx_t stack[16];
static _Thread_local int depth;

static void undefined(const char *what)
{
	fprintf(stderr, "fake_cuda: undefined in CUDA: %s\n", what);
	abort();
}

/* --- failures, and the context --- */

static bool fatal(int error)
{
	return error == 214 || error == 700 || (error >= 714 && error <= 719);
}

__attribute__((constructor)) static void from_environment(void)
{
	const char *fail = getenv("FAKE_CUDA_FAIL"), *word;
	char one[64];
	int used;

	if ((word = getenv("FAKE_CUDA_SEED")))
		seed = strtoull(word, NULL, 10);
	if ((word = getenv("FAKE_CUDA_DELAY_US")))
		delay_us = (uint32_t)strtoul(word, NULL, 10);
	if ((word = getenv("FAKE_CUDA_DEVICES")))
		devices = atoi(word) < DEVICE_MAX ? atoi(word) : DEVICE_MAX;
	if ((word = getenv("FAKE_CUDA_READ_ONLY")))
		read_only = atoi(word) != 0;
	for (int i = 0; fail && i < 8 &&
			sscanf(fail, "%63s %u %d%n", one, &plan[i].nth, &plan[i].error, &used) == 3;
	     i++) {
		strcpy(plan[i].call, one);
		fail += used + (fail[used] == ',');
	}
}

/* Returns the error that is planned for this call, or the one that ended the context. */
static int planned(const char *call, ctx_t ctx)
{
	int error = 0;

	for (int i = 0; i < 8; i++) {
		if (plan[i].nth == 0 ||
		    (strcmp(plan[i].call, "*") != 0 && strcmp(plan[i].call, call) != 0) ||
		    --plan[i].nth > 0)
			continue;
		error = plan[i].error;
		failed++;
		if (ctx != NULL && fatal(error))
			ctx->error = error;
	}
	if (error == 0 && ctx != NULL)
		error = ctx->error;
	return error;
}

/* Takes the lock, and says whether the call can go on. */
static int enter(const char *call, ctx_t *ctx)
{
	int error;

	pthread_mutex_lock(&lock);
	*ctx = depth > 0 ? stack[depth - 1] : NULL;
	error = planned(call, *ctx);
	if (error == 0 && !initialized)
		error = NOT_INITIALIZED;
	else if (error == 0 && *ctx == NULL)
		error = INVALID_CONTEXT;
	return error;
}

static int leave(int error)
{
	pthread_mutex_unlock(&lock);
	return error;
}

#define ENTER(ctx)                                                                                 \
	ctx_t ctx;                                                                                 \
	int error = enter(__func__, &(ctx));                                                       \
	if (error != 0)                                                                            \
	return leave(error)
/* For calls that need no context. */
#define ENTER_ANY()                                                                                \
	ctx_t ctx_;                                                                                \
	int error = enter(__func__, &ctx_);                                                        \
	if (error == INVALID_CONTEXT && ctx_ == NULL)                                              \
		error = 0;                                                                         \
	if (error != 0)                                                                            \
	return leave(error)

/* --- streams --- */

static uint64_t rng(void)
{
	seed = seed * 6364136223846793005ull + 1442695040888963407ull;
	return seed >> 33;
}

static void sleep_us(uint64_t us)
{
	struct timespec t = {.tv_sec = (time_t)(us / 1000000),
			     .tv_nsec = (long)(us % 1000000 * 1000)};

	if (us > 0)
		(void)nanosleep(&t, NULL);
}

/* Does an operation. Called with the lock, which it gives up to sleep and to copy. */
static void do_op(const struct op *o)
{
	uint64_t us = delay_us ? rng() % delay_us : 0;

	if (o->kind == OP_RECORD) {
		if (o->event->reached < o->count)
			o->event->reached = o->count;
		return;
	}
	if (o->kind == OP_WAIT)
		return;
	pthread_mutex_unlock(&lock);
	/* One half, and later the other. */
	sleep_us(us);
	memcpy(o->to, o->from, o->bytes / 2);
	sleep_us(us / 2);
	memcpy(o->to + o->bytes / 2, o->from + o->bytes / 2, o->bytes - o->bytes / 2);
	pthread_mutex_lock(&lock);
}

static bool can_do(stream_t s, const struct op *o)
{
	return !s->held && (o->kind != OP_WAIT || o->event->reached >= o->count || s->ctx->error);
}

static void *stream_main(void *arg)
{
	stream_t s = arg;

	pthread_mutex_lock(&lock);
	for (;;) {
		while (s->first == NULL || !can_do(s, s->first)) {
			if (s->first == NULL && !s->live) {
				pthread_mutex_unlock(&lock);
				return NULL;
			}
			pthread_cond_wait(&changed, &lock);
		}
		struct op *o = s->first;

		if (s->ctx->error == 0 || o->kind == OP_RECORD) /* One that ended copies no more. */
			do_op(o);
		s->first = o->next;
		if (s->first == NULL)
			s->end = &s->first;
		free(o);
		pthread_cond_broadcast(&changed);
	}
}

static void push_op(stream_t s, struct op op)
{
	struct op *o = malloc(sizeof(*o));

	if (o == NULL)
		abort();
	*o = op;
	o->next = NULL;
	*s->end = o;
	s->end = &o->next;
	pthread_cond_broadcast(&changed);
}

static stream_t new_stream(ctx_t ctx)
{
	stream_t s = calloc(1, sizeof(*s));

	if (s == NULL)
		abort();
	s->live = true;
	s->ctx = ctx;
	s->end = &s->first;
	s->all = streams;
	streams = s;
	if (pthread_create(&s->thread, NULL, stream_main, s) != 0)
		abort();
	pthread_detach(s->thread);
	return s;
}

/* The stream behind a handle, or NULL. */
static stream_t stream_of(stream_t handle, ctx_t ctx)
{
	if (handle == NULL) {
		if (ctx->legacy == NULL) {
			ctx->legacy = new_stream(ctx);
			ctx->legacy->legacy = true;
		}
		return ctx->legacy;
	}
	for (stream_t s = streams; s != NULL; s = s->all)
		if (s == handle && s->live && !s->legacy)
			return s->ctx == ctx ? s : NULL;
	return NULL;
}

static event_t event_of(event_t handle)
{
	for (event_t e = events; e != NULL; e = e->all)
		if (e == handle && e->live)
			return e;
	return NULL;
}

/* --- memory --- */

static struct memory *memory_of(const void *at)
{
	for (struct memory *m = memories; m != NULL; m = m->next)
		if ((const char *)at >= m->base && (const char *)at < m->base + m->bytes)
			return m;
	return NULL;
}

static bool overlaps(const char *base, size_t bytes)
{
	for (struct memory *m = memories; m != NULL; m = m->next)
		if (base < m->base + m->bytes && m->base < base + bytes)
			return true;
	return false;
}

static void add_memory(int kind, char *base, char *inside, size_t bytes)
{
	struct memory *m = calloc(1, sizeof(*m));

	if (m == NULL)
		abort();
	m->kind = kind;
	m->base = base;
	m->inside = inside;
	m->bytes = bytes;
	m->next = memories;
	memories = m;
}

/* True if an operation that is not done uses it. */
static bool in_use(const struct memory *m)
{
	for (stream_t s = streams; s != NULL; s = s->all)
		for (struct op *o = s->first; o != NULL && s->ctx->error == 0; o = o->next)
			if ((o->kind == OP_TO_HOST || o->kind == OP_TO_DEVICE) &&
			    (memory_of(o->host) == m ||
			     (m->kind == DEVICE && (o->from == m->inside || o->to == m->inside))))
				return true;
	return false;
}

static void remove_memory(struct memory *m)
{
	struct memory **at = &memories;

	while (*at != m)
		at = &(*at)->next;
	*at = m->next;
	free(m);
}

/* How a range of this process is mapped: 0 not at all, 1 somewhere read-only, 2 writable. */
static int mapped(const char *base, size_t bytes)
{
	FILE *f = fopen("/proc/self/maps", "re");
	const char *at = base;
	unsigned long from, to;
	char mode[8], line[512];
	int least = 2;

	while (f && fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%lx-%lx %7s", &from, &to, mode) != 3 || (unsigned long)at >= to)
			continue;
		if ((unsigned long)at < from || mode[0] != 'r')
			break;
		least = mode[1] == 'w' ? least : 1;
		at = (const char *)to;
		if (at >= base + bytes)
			break;
	}
	if (f)
		fclose(f);
	return at >= base + bytes ? least : 0;
}

/* --- the driver's calls --- */

#define CALL(name, ...)                                                                            \
	API int name(__VA_ARGS__);                                                                 \
	API int name(__VA_ARGS__)

CALL(cuInit, unsigned flags)
{
	int error;

	pthread_mutex_lock(&lock);
	error = planned(__func__, NULL);
	if (error == 0 && devices == 0)
		error = 100;
	if (error == 0)
		initialized = true;
	return leave(flags ? INVALID_VALUE : error);
}

CALL(cuDriverGetVersion, int *version)
{
	ENTER_ANY();
	*version = 12040;
	return leave(0);
}

CALL(cuGetErrorName, int code, const char **name)
{
	static const struct {
		int code;
		const char *name;
	} names[] = {{1, "CUDA_ERROR_INVALID_VALUE"},
		     {2, "CUDA_ERROR_OUT_OF_MEMORY"},
		     {3, "CUDA_ERROR_NOT_INITIALIZED"},
		     {100, "CUDA_ERROR_NO_DEVICE"},
		     {101, "CUDA_ERROR_INVALID_DEVICE"},
		     {201, "CUDA_ERROR_INVALID_CONTEXT"},
		     {400, "CUDA_ERROR_INVALID_HANDLE"},
		     {600, "CUDA_ERROR_NOT_READY"},
		     {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
		     {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"},
		     {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"},
		     {719, "CUDA_ERROR_LAUNCH_FAILED"},
		     {801, "CUDA_ERROR_NOT_SUPPORTED"},
		     {999, "CUDA_ERROR_UNKNOWN"}};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (names[i].code == code) {
			*name = names[i].name;
			return 0;
		}
	*name = NULL;
	return INVALID_VALUE;
}

CALL(cuDeviceGet, int *device, int ordinal)
{
	ENTER_ANY();
	if (ordinal < 0 || ordinal >= devices)
		return leave(INVALID_DEVICE);
	*device = ordinal;
	return leave(0);
}

CALL(cuDeviceGetAttribute, int *value, int attribute, int device)
{
	ENTER_ANY();
	if (device < 0 || device >= devices)
		return leave(INVALID_DEVICE);
	*value = attribute == 113 ? read_only : 0;
	return leave(0);
}

CALL(cuDevicePrimaryCtxRetain, ctx_t *ctx, int device)
{
	ENTER_ANY();
	if (device < 0 || device >= devices)
		return leave(INVALID_DEVICE);
	contexts[device].device = device;
	contexts[device].users++;
	*ctx = &contexts[device];
	return leave(0);
}

CALL(cuDevicePrimaryCtxRelease_v2, int device)
{
	ENTER_ANY();
	if (device < 0 || device >= devices || contexts[device].users == 0)
		return leave(INVALID_DEVICE);
	contexts[device].users--;
	return leave(0);
}

CALL(cuCtxGetCurrent, ctx_t *ctx)
{
	ENTER_ANY();
	*ctx = depth > 0 ? stack[depth - 1] : NULL;
	return leave(0);
}

CALL(cuCtxGetDevice, int *device)
{
	ENTER(ctx);
	*device = ctx->device;
	return leave(0);
}

CALL(cuCtxPushCurrent_v2, ctx_t ctx)
{
	ENTER_ANY();
	if (ctx < contexts || ctx >= contexts + DEVICE_MAX || ctx->users == 0 || depth == 16)
		return leave(INVALID_CONTEXT);
	stack[depth++] = ctx;
	return leave(0);
}

CALL(cuCtxPopCurrent_v2, ctx_t *ctx)
{
	pthread_mutex_lock(&lock); /* It also works in a context that ended. */
	if (depth == 0)
		return leave(INVALID_CONTEXT);
	*ctx = stack[--depth];
	return leave(0);
}

CALL(cuCtxSetCurrent, ctx_t ctx)
{
	ENTER_ANY();
	depth = ctx != NULL;
	stack[0] = ctx;
	return leave(0);
}

CALL(cuMemHostRegister_v2, void *p, size_t bytes, unsigned flags)
{
	int how;

	ENTER(ctx);
	(void)ctx;
	if (p == NULL || bytes == 0 || (flags & ~0xfu))
		return leave(INVALID_VALUE);
	if (overlaps(p, bytes))
		return leave(ALREADY_REGISTERED);
	how = mapped(p, bytes);
	if ((flags & 8) && !read_only)
		return leave(NOT_SUPPORTED);
	if (how == 0 || (how == 1 && !(flags & 8)))
		return leave(INVALID_VALUE);
	add_memory(flags & 8 ? REGISTERED_READ_ONLY : REGISTERED, p, p, bytes);
	return leave(0);
}

CALL(cuMemHostUnregister, void *p)
{
	struct memory *m;

	ENTER(ctx);
	(void)ctx;
	m = memory_of(p);
	if (m == NULL || m->base != p || (m->kind != REGISTERED && m->kind != REGISTERED_READ_ONLY))
		return leave(NOT_REGISTERED);
	if (in_use(m))
		undefined("memory is unregistered while it is copied");
	remove_memory(m);
	return leave(0);
}

CALL(cuMemHostAlloc, void **p, size_t bytes, unsigned flags)
{
	ENTER(ctx);
	(void)ctx;
	(void)flags;
	*p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (*p == MAP_FAILED)
		return leave(OUT_OF_MEMORY);
	add_memory(PINNED, *p, *p, bytes);
	return leave(0);
}

CALL(cuMemFreeHost, void *p)
{
	struct memory *m;

	ENTER(ctx);
	(void)ctx;
	m = memory_of(p);
	if (m == NULL || m->base != p || m->kind != PINNED)
		return leave(INVALID_VALUE);
	if (in_use(m))
		undefined("pinned memory is freed while it is copied");
	munmap(m->base, m->bytes);
	remove_memory(m);
	return leave(0);
}

CALL(cuMemAlloc_v2, ptr_t *p, size_t bytes)
{
	int fd = memfd_create("device", MFD_CLOEXEC);
	char *outside, *inside;

	ENTER(ctx);
	(void)ctx;
	bytes = (bytes + 511) / 512 * 512;
	if (fd < 0 || ftruncate(fd, (off_t)((bytes + 4095) / 4096 * 4096)) != 0)
		return leave(OUT_OF_MEMORY);
	outside = mmap(NULL, bytes, PROT_NONE, MAP_SHARED, fd, 0);
	inside = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (outside == MAP_FAILED || inside == MAP_FAILED)
		return leave(OUT_OF_MEMORY);
	add_memory(DEVICE, outside, inside, bytes);
	*p = (ptr_t)(uintptr_t)outside;
	return leave(0);
}

CALL(cuMemFree_v2, ptr_t p)
{
	struct memory *m;

	ENTER(ctx);
	(void)ctx;
	m = memory_of((void *)(uintptr_t)p);
	if (m == NULL || m->kind != DEVICE || (ptr_t)(uintptr_t)m->base != p)
		return leave(INVALID_VALUE);
	while (in_use(m)) /* cuMemFree waits for the device. */
		pthread_cond_wait(&changed, &lock);
	munmap(m->base, m->bytes);
	munmap(m->inside, m->bytes);
	remove_memory(m);
	return leave(0);
}

/* With the lock held. */
static int copy(ctx_t ctx, enum op_kind kind, ptr_t dev, const char *host, size_t bytes,
		stream_t handle)
{
	struct memory *d = memory_of((void *)(uintptr_t)dev), *h = memory_of(host);
	stream_t s = stream_of(handle, ctx);
	char *inside;
	struct op o;

	if (s == NULL)
		return INVALID_HANDLE;
	if (d == NULL || d->kind != DEVICE || bytes == 0 ||
	    dev + bytes > (ptr_t)(uintptr_t)d->base + d->bytes)
		return INVALID_VALUE;
	if (h == NULL && overlaps(host, bytes))
		return INVALID_VALUE;
	if (h != NULL && (h->kind == DEVICE || host + bytes > h->base + h->bytes))
		return INVALID_VALUE;
	if (h != NULL && kind == OP_TO_HOST && h->kind == REGISTERED_READ_ONLY)
		return INVALID_VALUE;
	inside = d->inside + (dev - (ptr_t)(uintptr_t)d->base);
	o = (struct op){.kind = kind, .host = host, .bytes = bytes};
	o.to = kind == OP_TO_HOST ? (char *)(uintptr_t)host : inside;
	o.from = kind == OP_TO_HOST ? inside : host;
	push_op(s, o);
	if (h == NULL) { /* Pageable memory: the call waits. */
		synchronous++;
		while (s->first != NULL)
			pthread_cond_wait(&changed, &lock);
	}
	return 0;
}

CALL(cuMemcpyDtoHAsync_v2, void *to, ptr_t from, size_t bytes, stream_t stream)
{
	ENTER(ctx);
	return leave(copy(ctx, OP_TO_HOST, from, to, bytes, stream));
}

CALL(cuMemcpyHtoDAsync_v2, ptr_t to, const void *from, size_t bytes, stream_t stream)
{
	ENTER(ctx);
	return leave(copy(ctx, OP_TO_DEVICE, to, from, bytes, stream));
}

CALL(cuStreamCreate, stream_t *stream, unsigned flags)
{
	ENTER(ctx);
	if (flags & ~1u)
		return leave(INVALID_VALUE);
	*stream = new_stream(ctx);
	return leave(0);
}

CALL(cuStreamDestroy_v2, stream_t stream)
{
	stream_t s;

	ENTER(ctx);
	s = stream_of(stream, ctx);
	if (s == NULL || s->legacy)
		return leave(INVALID_HANDLE);
	s->live = false; /* Its thread does what is left. */
	pthread_cond_broadcast(&changed);
	return leave(0);
}

CALL(cuStreamQuery, stream_t stream)
{
	stream_t s;

	ENTER(ctx);
	s = stream_of(stream, ctx);
	return leave(s == NULL ? INVALID_HANDLE : s->first ? NOT_READY : 0);
}

CALL(cuStreamSynchronize, stream_t stream)
{
	stream_t s;

	ENTER(ctx);
	s = stream_of(stream, ctx);
	while (s != NULL && s->first != NULL)
		pthread_cond_wait(&changed, &lock);
	return leave(s == NULL ? INVALID_HANDLE : ctx->error);
}

CALL(cuStreamWaitEvent, stream_t stream, event_t event, unsigned flags)
{
	stream_t s;
	event_t e;

	ENTER(ctx);
	s = stream_of(stream, ctx);
	e = event_of(event);
	if (s == NULL || e == NULL || flags)
		return leave(INVALID_HANDLE);
	push_op(s, (struct op){.kind = OP_WAIT, .event = e, .count = e->recorded});
	return leave(0);
}

CALL(cuStreamIsCapturing, stream_t stream, int *status)
{
	stream_t s;

	ENTER(ctx);
	s = stream_of(stream, ctx);
	if (s == NULL)
		return leave(INVALID_HANDLE);
	*status = s->capturing;
	return leave(0);
}

CALL(cuEventCreate, event_t *event, unsigned flags)
{
	event_t e;

	ENTER(ctx);
	if (flags & ~7u)
		return leave(INVALID_VALUE);
	e = calloc(1, sizeof(*e));
	if (e == NULL)
		return leave(OUT_OF_MEMORY);
	e->live = true;
	e->ctx = ctx;
	e->all = events;
	events = e;
	*event = e;
	return leave(0);
}

CALL(cuEventRecord, event_t event, stream_t stream)
{
	stream_t s;
	event_t e;

	ENTER(ctx);
	s = stream_of(stream, ctx);
	e = event_of(event);
	if (s == NULL || e == NULL || e->ctx != s->ctx)
		return leave(INVALID_HANDLE);
	push_op(s, (struct op){.kind = OP_RECORD, .event = e, .count = ++e->recorded});
	return leave(0);
}

CALL(cuEventQuery, event_t event)
{
	event_t e;

	ENTER(ctx);
	(void)ctx;
	e = event_of(event);
	return leave(e == NULL ? INVALID_HANDLE : e->reached < e->recorded ? NOT_READY : 0);
}

CALL(cuEventDestroy_v2, event_t event)
{
	event_t e;

	ENTER(ctx);
	(void)ctx;
	e = event_of(event);
	if (e == NULL)
		return leave(INVALID_HANDLE);
	e->live = false; /* The streams may still reach it. */
	return leave(0);
}

/* --- for tests --- */

#define X(type, name, arguments) API type name arguments;
FAKE_CUDA_CALLS(X)
#undef X

void fake_cuda_fail(const char *call, uint32_t nth, int error)
{
	pthread_mutex_lock(&lock);
	memset(plan, 0, sizeof(plan));
	snprintf(plan[0].call, sizeof(plan[0].call), "%s", call ? call : "*");
	plan[0].nth = nth;
	plan[0].error = error;
	failed = 0;
	pthread_mutex_unlock(&lock);
}

int fake_cuda_failed(void)
{
	int n;

	pthread_mutex_lock(&lock);
	n = failed;
	pthread_mutex_unlock(&lock);
	return n;
}

void fake_cuda_hold(struct CUstream_st *stream, int held)
{
	pthread_mutex_lock(&lock);
	(stream ? stream : streams)->held = held;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

void fake_cuda_capture(struct CUstream_st *stream, int capturing)
{
	pthread_mutex_lock(&lock);
	stream->capturing = capturing;
	pthread_mutex_unlock(&lock);
}

void fake_cuda_read_only(int supported)
{
	pthread_mutex_lock(&lock);
	read_only = supported;
	pthread_mutex_unlock(&lock);
}

void fake_cuda_delay(uint32_t us, uint64_t its_seed)
{
	pthread_mutex_lock(&lock);
	delay_us = us;
	seed = its_seed;
	pthread_mutex_unlock(&lock);
}

void fake_cuda_left(struct fake_cuda_left *left)
{
	*left = (struct fake_cuda_left){0};
	pthread_mutex_lock(&lock);
	for (struct memory *m = memories; m != NULL; m = m->next) {
		left->registered += m->kind == REGISTERED || m->kind == REGISTERED_READ_ONLY;
		left->allocated += m->kind == PINNED;
	}
	for (stream_t s = streams; s != NULL; s = s->all)
		left->streams += s->live && !s->legacy;
	for (event_t e = events; e != NULL; e = e->all)
		left->events += e->live;
	for (int i = 0; i < DEVICE_MAX; i++)
		left->contexts += contexts[i].users;
	pthread_mutex_unlock(&lock);
}

uint32_t fake_cuda_synchronous(void)
{
	uint32_t n;

	pthread_mutex_lock(&lock);
	n = synchronous;
	pthread_mutex_unlock(&lock);
	return n;
}

void fake_cuda_heal(void)
{
	pthread_mutex_lock(&lock);
	for (int i = 0; i < DEVICE_MAX; i++) {
		contexts[i].error = 0;
		contexts[i].users = contexts[i].users > 0; /* The caller's. */
	}
	/* A new process has nothing of the old one. */
	for (struct memory *m = memories, *next; m != NULL; m = next) {
		next = m->next;
		if (m->kind == REGISTERED || m->kind == REGISTERED_READ_ONLY)
			remove_memory(m);
	}
	for (event_t e = events; e != NULL; e = e->all)
		e->live = false;
	for (stream_t s = streams; s != NULL; s = s->all)
		s->live = s->live && s->legacy;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}
