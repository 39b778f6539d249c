// SPDX-License-Identifier: Apache-2.0
/* A libcuda.so.1 for tests: see fake_cuda.h. This file has devices, contexts, copies, streams and
 * events, fake_memory.c memory, and fake_launch.c kernels. One lock protects everything. Each
 * stream has a thread that does its operations in their order: it sleeps for a while first, and
 * copies without the lock. An event counts how often it was recorded, and which of these records
 * were reached. Device memory is mapped twice: without any access at the address that callers get,
 * and readable and writable for the streams. Errors of a caller are the driver's codes, and what
 * would be undefined there ends the process. */
#include "tests/cuda/fake_cuda.h"
#include "tests/cuda/fake_impl.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

static bool initialized;
static uint32_t synchronous;
enum { HANG = -1 };
static struct {
	char call[64];
	uint32_t nth;
	int error;
} plan[8];
static int failed;
static _Thread_local ctx_t stack[16];
static _Thread_local int depth;

/* --- failures, and the context --- */

static bool fatal(int error)
{
	return error == 214 || error == 700 || (error >= 714 && error <= 719);
}

static void set_attribute(int which, int value)
{
	int i = 0;

	while (fake.attribute[i][0] != 0 && fake.attribute[i][0] != which)
		i++;
	if (i == 16)
		abort();
	fake.attribute[i][0] = which;
	fake.attribute[i][1] = value;
}

int fake_attribute(int which)
{
	for (int i = 0; i < 16; i++)
		if (fake.attribute[i][0] == which)
			return fake.attribute[i][1];
	switch (which) {
	case 113:
		return fake.read_only;
	case 75:
		return 9; /* Its kernels are no worse. */
	case 102:
	case 103:
	case 110:
	case 117: /* Writes of network devices are flushed by a call, and not ordered: 118. */
	case 124:
		return 1;
	default:
		return 0;
	}
}

__attribute__((constructor)) static void from_environment(void)
{
	const char *fail = getenv("FAKE_CUDA_FAIL"), *word;
	char one[64];
	int used;

	if ((word = getenv("FAKE_CUDA_SEED")))
		fake.seed = strtoull(word, NULL, 10);
	if ((word = getenv("FAKE_CUDA_DELAY_US")))
		fake.delay_us = (uint32_t)strtoul(word, NULL, 10);
	if ((word = getenv("FAKE_CUDA_DEVICES")))
		fake.devices = atoi(word) < DEVICE_MAX ? atoi(word) : DEVICE_MAX;
	if ((word = getenv("FAKE_CUDA_MEMORY")))
		fake.memory_bytes = strtoull(word, NULL, 10) << 20;
	if ((word = getenv("FAKE_CUDA_READ_ONLY")))
		fake.read_only = atoi(word) != 0;
	for (word = getenv("FAKE_CUDA_ATTRIBUTES"); word && *word; word += strcspn(word, ",")) {
		int which, value;

		word += *word == ',';
		if (sscanf(word, "%d=%d", &which, &value) == 2)
			set_attribute(which, value);
	}
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
	int error = fake_controlled(call);

	if (error != 0 && ctx != NULL && fatal(error))
		ctx->error = error;
	for (int i = 0; i < 8; i++) {
		if (plan[i].nth == 0 ||
		    (strcmp(plan[i].call, "*") != 0 && strcmp(plan[i].call, call) != 0) ||
		    --plan[i].nth > 0)
			continue;
		error = plan[i].error;
		failed++;
		if (error == HANG) { /* For ever, or as long as the process. */
			pthread_mutex_unlock(&fake.lock);
			for (;;)
				pause();
		}
		if (ctx != NULL && fatal(error))
			ctx->error = error;
	}
	if (error == 0 && ctx != NULL)
		error = ctx->error;
	return error;
}

int fake_enter(const char *call, ctx_t *ctx)
{
	int error;

	pthread_mutex_lock(&fake.lock);
	*ctx = depth > 0 ? stack[depth - 1] : NULL;
	error = planned(call, *ctx);
	if (error == 0 && !initialized)
		error = NOT_INITIALIZED;
	else if (error == 0 && *ctx == NULL)
		error = INVALID_CONTEXT;
	return error;
}

int fake_leave(int error)
{
	pthread_mutex_unlock(&fake.lock);
	return error;
}

/* --- the driver's calls --- */

CALL(cuInit, unsigned flags)
{
	int error;

	pthread_mutex_lock(&fake.lock);
	error = planned(__func__, NULL);
	if (error == 0 && fake.devices == 0)
		error = 100;
	if (error == 0)
		initialized = true;
	return fake_leave(flags ? INVALID_VALUE : error);
}

CALL(cuDriverGetVersion, int *version)
{
	ENTER_ANY();
	*version = 12040;
	return fake_leave(0);
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
		     {209, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
		     {214, "CUDA_ERROR_ECC_UNCORRECTABLE"},
		     {400, "CUDA_ERROR_INVALID_HANDLE"},
		     {500, "CUDA_ERROR_NOT_FOUND"},
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
	if (ordinal < 0 || ordinal >= fake.devices)
		return fake_leave(INVALID_DEVICE);
	*device = ordinal;
	return fake_leave(0);
}

CALL(cuDeviceGetCount, int *nr)
{
	ENTER_ANY();
	*nr = fake.devices;
	return fake_leave(0);
}

CALL(cuDeviceGetName, char *name, int length, int device)
{
	ENTER_ANY();
	if (device < 0 || device >= fake.devices || length < 1)
		return fake_leave(INVALID_DEVICE);
	snprintf(name, (size_t)length, "no GPU: a processor");
	return fake_leave(0);
}

CALL(cuDeviceGetUuid_v2, unsigned char *uuid, int device)
{
	ENTER_ANY();
	if (device < 0 || device >= fake.devices)
		return fake_leave(INVALID_DEVICE);
	memcpy(uuid,
	       "\xfa\x4e"
	       "no GPU here.\0",
	       16);
	uuid[15] = (unsigned char)device;
	return fake_leave(0);
}

CALL(cuDeviceGetAttribute, int *value, int attribute, int device)
{
	ENTER_ANY();
	if (device < 0 || device >= fake.devices)
		return fake_leave(INVALID_DEVICE);
	*value = fake_attribute(attribute);
	return fake_leave(0);
}

CALL(cuDevicePrimaryCtxRetain, ctx_t *ctx, int device)
{
	ENTER_ANY();
	if (device < 0 || device >= fake.devices)
		return fake_leave(INVALID_DEVICE);
	fake.contexts[device].device = device;
	fake.contexts[device].users++;
	*ctx = &fake.contexts[device];
	return fake_leave(0);
}

CALL(cuDevicePrimaryCtxRelease_v2, int device)
{
	ENTER_ANY();
	if (device < 0 || device >= fake.devices || fake.contexts[device].users == 0)
		return fake_leave(INVALID_DEVICE);
	fake.contexts[device].users--;
	return fake_leave(0);
}

CALL(cuCtxGetCurrent, ctx_t *ctx)
{
	ENTER_ANY();
	*ctx = depth > 0 ? stack[depth - 1] : NULL;
	return fake_leave(0);
}

CALL(cuCtxGetDevice, int *device)
{
	ENTER(ctx);
	*device = ctx->device;
	return fake_leave(0);
}

CALL(cuCtxPushCurrent_v2, ctx_t ctx)
{
	ENTER_ANY();
	if (ctx < fake.contexts || ctx >= fake.contexts + DEVICE_MAX || ctx->users == 0 ||
	    depth == 16)
		return fake_leave(INVALID_CONTEXT);
	stack[depth++] = ctx;
	return fake_leave(0);
}

CALL(cuCtxPopCurrent_v2, ctx_t *ctx)
{
	pthread_mutex_lock(&fake.lock); /* It also works in a context that ended. */
	if (depth == 0)
		return fake_leave(INVALID_CONTEXT);
	*ctx = stack[--depth];
	return fake_leave(0);
}

CALL(cuCtxSetCurrent, ctx_t ctx)
{
	ENTER_ANY();
	depth = ctx != NULL;
	stack[0] = ctx;
	return fake_leave(0);
}

/* With the lock held. */
static int copy(ctx_t ctx, enum op_kind kind, ptr_t dev, const char *host, size_t bytes,
		stream_t handle)
{
	struct memory *h = fake_memory(host);
	stream_t s = fake_stream(handle, ctx);
	char *inside;
	struct op o;

	if (s == NULL)
		return INVALID_HANDLE;
	inside = fake_inside(ctx, dev, bytes, kind == OP_TO_HOST ? READS : WRITES);
	if (inside == NULL)
		return INVALID_VALUE;
	if (h == NULL && fake_overlaps(host, bytes))
		return INVALID_VALUE;
	if (h != NULL && (h->kind == DEVICE || host + bytes > h->base + h->bytes))
		return INVALID_VALUE;
	if (h != NULL && kind == OP_TO_HOST && h->kind == REGISTERED_READ_ONLY)
		return INVALID_VALUE;
	o = (struct op){.kind = kind, .host = host, .bytes = bytes};
	o.to = kind == OP_TO_HOST ? (char *)(uintptr_t)host : inside;
	o.from = kind == OP_TO_HOST ? inside : host;
	fake_push(s, o);
	if (h == NULL) { /* Pageable memory: the call waits. */
		synchronous++;
		while (s->first != NULL)
			fake_wait();
	}
	return 0;
}

CALL(cuMemcpyDtoHAsync_v2, void *to, ptr_t from, size_t bytes, stream_t stream)
{
	ENTER(ctx);
	return fake_leave(copy(ctx, OP_TO_HOST, from, to, bytes, stream));
}

CALL(cuMemcpyHtoDAsync_v2, ptr_t to, const void *from, size_t bytes, stream_t stream)
{
	ENTER(ctx);
	return fake_leave(copy(ctx, OP_TO_DEVICE, to, from, bytes, stream));
}

CALL(cuMemcpyDtoDAsync_v2, ptr_t to, ptr_t from, size_t bytes, stream_t stream)
{
	struct op o = {.kind = OP_WITHIN, .bytes = bytes};
	stream_t s;

	ENTER(ctx);
	s = fake_stream(stream, ctx);
	o.to = fake_inside(ctx, to, bytes, WRITES);
	o.from = fake_inside(ctx, from, bytes, READS);
	if (s == NULL || o.to == NULL || o.from == NULL)
		return fake_leave(s == NULL ? INVALID_HANDLE : INVALID_VALUE);
	fake_push(s, o);
	return fake_leave(0);
}

CALL(cuMemsetD8Async, ptr_t to, unsigned char byte, size_t bytes, stream_t stream)
{
	struct op o = {.kind = OP_SET, .bytes = bytes, .byte = byte};
	stream_t s;

	ENTER(ctx);
	s = fake_stream(stream, ctx);
	o.to = fake_inside(ctx, to, bytes, WRITES);
	if (s == NULL || o.to == NULL)
		return fake_leave(s == NULL ? INVALID_HANDLE : INVALID_VALUE);
	fake_push(s, o);
	return fake_leave(0);
}

CALL(cuStreamCreate, stream_t *stream, unsigned flags)
{
	ENTER(ctx);
	if (flags & ~1u)
		return fake_leave(INVALID_VALUE);
	*stream = fake_stream_new(ctx);
	return fake_leave(0);
}

CALL(cuStreamDestroy_v2, stream_t stream)
{
	stream_t s;

	ENTER(ctx);
	s = fake_stream(stream, ctx);
	if (s == NULL || s->legacy)
		return fake_leave(INVALID_HANDLE);
	fake_end_stream(s); /* Its thread does what is left. */
	return fake_leave(0);
}

CALL(cuStreamQuery, stream_t stream)
{
	stream_t s;

	ENTER(ctx);
	s = fake_stream(stream, ctx);
	return fake_leave(s == NULL ? INVALID_HANDLE : s->first ? NOT_READY : 0);
}

CALL(cuStreamSynchronize, stream_t stream)
{
	stream_t s;

	ENTER(ctx);
	s = fake_stream(stream, ctx);
	while (s != NULL && s->first != NULL)
		fake_wait();
	return fake_leave(s == NULL ? INVALID_HANDLE : ctx->error);
}

CALL(cuStreamWaitEvent, stream_t stream, event_t event, unsigned flags)
{
	stream_t s;
	event_t e;

	ENTER(ctx);
	s = fake_stream(stream, ctx);
	e = fake_event(event);
	if (s == NULL || e == NULL || flags)
		return fake_leave(INVALID_HANDLE);
	fake_push(s, (struct op){.kind = OP_WAIT, .event = e, .count = e->recorded});
	return fake_leave(0);
}

CALL(cuStreamIsCapturing, stream_t stream, int *status)
{
	stream_t s;

	ENTER(ctx);
	s = fake_stream(stream, ctx);
	if (s == NULL)
		return fake_leave(INVALID_HANDLE);
	*status = s->capturing;
	return fake_leave(0);
}

CALL(cuEventCreate, event_t *event, unsigned flags)
{
	event_t e;

	ENTER(ctx);
	if (flags & ~7u)
		return fake_leave(INVALID_VALUE);
	e = calloc(1, sizeof(*e));
	if (e == NULL)
		return fake_leave(OUT_OF_MEMORY);
	e->live = true;
	e->ctx = ctx;
	e->all = fake.events;
	fake.events = e;
	*event = e;
	return fake_leave(0);
}

CALL(cuEventRecord, event_t event, stream_t stream)
{
	stream_t s;
	event_t e;

	ENTER(ctx);
	s = fake_stream(stream, ctx);
	e = fake_event(event);
	if (s == NULL || e == NULL || e->ctx != s->ctx)
		return fake_leave(INVALID_HANDLE);
	fake_push(s, (struct op){.kind = OP_RECORD, .event = e, .count = ++e->recorded});
	return fake_leave(0);
}

CALL(cuEventQuery, event_t event)
{
	event_t e;

	ENTER(ctx);
	(void)ctx;
	e = fake_event(event);
	return fake_leave(e == NULL ? INVALID_HANDLE : e->reached < e->recorded ? NOT_READY : 0);
}

CALL(cuEventSynchronize, event_t event)
{
	event_t e;

	ENTER(ctx);
	e = fake_event(event);
	while (e != NULL && e->live && e->reached < e->recorded && ctx->error == 0)
		fake_wait();
	return fake_leave(e == NULL ? INVALID_HANDLE : ctx->error);
}

CALL(cuEventDestroy_v2, event_t event)
{
	event_t e;

	ENTER(ctx);
	(void)ctx;
	e = fake_event(event);
	if (e == NULL)
		return fake_leave(INVALID_HANDLE);
	e->live = false; /* The streams may still reach it. */
	return fake_leave(0);
}

/* --- for tests --- */

#define X(type, name, arguments) API type name arguments;
FAKE_CUDA_CALLS(X)
#undef X

void fake_cuda_fail(const char *call, uint32_t nth, int error)
{
	pthread_mutex_lock(&fake.lock);
	memset(plan, 0, sizeof(plan));
	snprintf(plan[0].call, sizeof(plan[0].call), "%s", call ? call : "*");
	plan[0].nth = nth;
	plan[0].error = error;
	failed = 0;
	pthread_mutex_unlock(&fake.lock);
}

int fake_cuda_failed(void)
{
	int n;

	pthread_mutex_lock(&fake.lock);
	n = failed;
	pthread_mutex_unlock(&fake.lock);
	return n;
}

void fake_cuda_hold(struct CUstream_st *stream, int held)
{
	pthread_mutex_lock(&fake.lock);
	(stream ? stream : fake.streams)->held = held;
	pthread_cond_broadcast(&fake.changed);
	pthread_mutex_unlock(&fake.lock);
}

void fake_cuda_hold_device(int device, int held)
{
	pthread_mutex_lock(&fake.lock);
	fake.contexts[device].held = held;
	pthread_cond_broadcast(&fake.changed);
	pthread_mutex_unlock(&fake.lock);
}

void fake_cuda_capture(struct CUstream_st *stream, int capturing)
{
	pthread_mutex_lock(&fake.lock);
	stream->capturing = capturing;
	pthread_mutex_unlock(&fake.lock);
}

void fake_cuda_read_only(int supported)
{
	pthread_mutex_lock(&fake.lock);
	fake.read_only = supported;
	pthread_mutex_unlock(&fake.lock);
}

void fake_cuda_attribute(int which, int value)
{
	pthread_mutex_lock(&fake.lock);
	set_attribute(which, value);
	pthread_mutex_unlock(&fake.lock);
}

void fake_cuda_delay(uint32_t us, uint64_t its_seed)
{
	pthread_mutex_lock(&fake.lock);
	fake.delay_us = us;
	fake.seed = its_seed;
	pthread_mutex_unlock(&fake.lock);
}

void fake_cuda_left(struct fake_cuda_left *left)
{
	struct fake_counts counts = {0};

	*left = (struct fake_cuda_left){0};
	pthread_mutex_lock(&fake.lock);
	fake_memory_counts(&counts);
	fake_launch_counts(&counts);
	left->handles = counts.handles;
	left->ranges = counts.ranges;
	left->mapped = counts.mapped;
	left->modules = counts.modules;
	left->device = counts.device;
	for (struct memory *m = fake.memories; m != NULL; m = m->next) {
		left->registered += m->kind == REGISTERED || m->kind == REGISTERED_READ_ONLY;
		left->allocated += m->kind == PINNED;
	}
	for (stream_t s = fake.streams; s != NULL; s = s->all)
		left->streams += s->live && !s->legacy;
	for (event_t e = fake.events; e != NULL; e = e->all)
		left->events += e->live;
	for (int i = 0; i < DEVICE_MAX; i++)
		left->contexts += fake.contexts[i].users;
	pthread_mutex_unlock(&fake.lock);
}

uint32_t fake_cuda_synchronous(void)
{
	uint32_t n;

	pthread_mutex_lock(&fake.lock);
	n = synchronous;
	pthread_mutex_unlock(&fake.lock);
	return n;
}

void *fake_cuda_inside(uint64_t dev)
{
	struct memory *m;
	char *inside = NULL;

	pthread_mutex_lock(&fake.lock);
	m = fake_memory((void *)(uintptr_t)dev);
	if (m != NULL && m->kind == DEVICE)
		inside = m->inside + (dev - (ptr_t)(uintptr_t)m->base);
	pthread_mutex_unlock(&fake.lock);
	return inside;
}

uint64_t fake_cuda_adopt(void *inside, size_t bytes)
{
	char *outside = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (outside == MAP_FAILED)
		abort();
	pthread_mutex_lock(&fake.lock);
	memset(fake_add(DEVICE, outside, inside, bytes)->access, READS | WRITES, DEVICE_MAX);
	pthread_mutex_unlock(&fake.lock);
	return (uint64_t)(uintptr_t)outside;
}

void fake_cuda_disown(uint64_t dev)
{
	struct memory *m;

	pthread_mutex_lock(&fake.lock);
	m = fake_memory((void *)(uintptr_t)dev);
	if (m == NULL || m->kind != DEVICE)
		fake_undefined("memory that is none of the device's is freed");
	if (fake_in_use(m))
		fake_undefined("device memory is freed while it is copied");
	munmap(m->base, m->bytes);
	fake_remove(m);
	pthread_mutex_unlock(&fake.lock);
}

void fake_cuda_settle(int device)
{
	stream_t s;

	pthread_mutex_lock(&fake.lock);
	for (s = fake.streams; s != NULL;) {
		if (s->ctx != &fake.contexts[device] || s->first == NULL) {
			s = s->all;
			continue;
		}
		fake_wait();
		s = fake.streams;
	}
	pthread_mutex_unlock(&fake.lock);
}

void fake_cuda_forget(int device)
{
	ctx_t ctx = &fake.contexts[device];

	fake_cuda_settle(device);
	pthread_mutex_lock(&fake.lock);
	ctx->error = 0;
	ctx->users = 0;
	for (event_t e = fake.events; e != NULL; e = e->all)
		e->live = e->live && e->ctx != ctx;
	for (stream_t s = fake.streams; s != NULL; s = s->all)
		if (s->ctx == ctx && !s->legacy) {
			s->dropped = true;
			fake_end_stream(s);
		}
	fake_memory_forget(device);
	fake_launch_forget(device);
	pthread_cond_broadcast(&fake.changed);
	pthread_mutex_unlock(&fake.lock);
}

void fake_cuda_heal(void)
{
	pthread_mutex_lock(&fake.lock);
	for (int i = 0; i < DEVICE_MAX; i++) {
		fake.contexts[i].error = 0;
		fake.contexts[i].users = fake.contexts[i].users > 0; /* The caller's. */
	}
	/* A new process has nothing of the old one. */
	for (struct memory *m = fake.memories, *next; m != NULL; m = next) {
		next = m->next;
		if (m->kind == REGISTERED || m->kind == REGISTERED_READ_ONLY)
			fake_remove(m);
	}
	for (event_t e = fake.events; e != NULL; e = e->all)
		e->live = false;
	for (stream_t s = fake.streams; s != NULL; s = s->all) {
		s->dropped = !s->legacy;
		if (!s->legacy)
			fake_end_stream(s);
	}
	pthread_cond_broadcast(&fake.changed);
	pthread_mutex_unlock(&fake.lock);
}
