// SPDX-License-Identifier: Apache-2.0
/* The life of a handle: opening, closing, and what it tells. Opening reads the layout of the model,
 * loads the driver, takes the device's primary context, registers arena and image, and starts the
 * helper. What is not registered for want of memory or support goes through the ring; any other
 * failure leaves nothing behind. Closing ends the helper and waits until the device copies nothing
 * any more, before memory is given back. */
#include "cuda/cuda.h"

#include "base/check.h"
#include "base/clock.h"
#include "wire/dtype.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { JOBS_MIN = 1024, PAGE = 4096 };
#define TIMEOUT_NS   (300 * NS_PER_SEC)
#define PIECE_BYTES  ((uint64_t)16 << 30)
#define BUFFER_BYTES ((uint64_t)32 << 20)

struct text {
	struct text *next;
	char text[];
};

/* --- texts --- */

static _Thread_local struct err last;

const char *shard_cuda_error(void)
{
	return last.text;
}

enum shard_status cuda_fail(const struct err *e)
{
	last = *e;
	if (e->status == SHARD_SYSTEM && e->sys > 0) /* As if the call had failed here. */
		errno = e->sys;
	return e->status;
}

enum shard_status cuda_say(enum shard_status st, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	(void)err_setv(&last, st, fmt, ap);
	va_end(ap);
	return st;
}

enum shard_status cuda_shard(enum shard_status st)
{
	return cuda_say(st, "%s", shard_error());
}

enum shard_status cuda_usable(const struct shard_cuda *c)
{
	if (c == NULL)
		return cuda_say(SHARD_BAD_ARG, "the handle is NULL");
	if (c->pid != getpid())
		return cuda_say(SHARD_FORKED,
				"this handle belongs to the parent process: CUDA does "
				"not work in a child of a process that used it");
	return SHARD_OK;
}

static enum shard_status struct_in(void *ours, size_t ours_bytes, const void *theirs,
				   const char *name)
{
	size_t size;

	memset(ours, 0, ours_bytes);
	if (theirs == NULL)
		return cuda_say(SHARD_BAD_ARG, "struct %s is NULL", name);
	memcpy(&size, theirs, sizeof(size));
	if (size < sizeof(size) || size > PAGE)
		return cuda_say(SHARD_BAD_ARG,
				"struct %s has size %zu: start it with SHARD_INIT(struct %s)", name,
				size, name);
	memcpy(ours, theirs, size < ours_bytes ? size : ours_bytes);
	return SHARD_OK;
}

/* --- for the other files --- */

enum shard_status cuda_enter(struct shard_cuda *c, struct err *e)
{
	cu_result cu = c->driver.ctx_push(c->ctx);

	return cu == CU_SUCCESS ? SHARD_OK : driver_fail(&c->driver, e, cu, "cuCtxPushCurrent", "");
}

void cuda_leave(struct shard_cuda *c)
{
	cu_context was;

	(void)c->driver.ctx_pop(&was);
}

void cuda_dead(struct shard_cuda *c, const struct err *e)
{
	if (c->dead.status == SHARD_OK)
		c->dead = *e;
	pthread_cond_broadcast(&c->changed);
}

uint64_t cuda_until(const struct shard_cuda *c, int64_t timeout_ms)
{
	/* A caller's number may be the largest that there is. */
	if (timeout_ms > INT64_MAX / (int64_t)NS_PER_SEC)
		timeout_ms = INT64_MAX / (int64_t)NS_PER_SEC;
	return clock_ns() + (timeout_ms < 0 ? c->timeout_ns : (uint64_t)timeout_ms * NS_PER_MS);
}

bool cuda_await(struct shard_cuda *c, uint64_t until_ns)
{
	struct timespec at = {.tv_sec = (time_t)(until_ns / NS_PER_SEC),
			      .tv_nsec = (long)(until_ns % NS_PER_SEC)};

	if (clock_ns() >= until_ns)
		return false;
	(void)pthread_cond_timedwait(&c->changed, &c->lock, &at);
	return true;
}

uint64_t cuda_mapped(const struct shard_cuda *c)
{
	struct shard_info info = SHARD_INIT(struct shard_info);

	return shard_tensor_info(c->model, 0, &info) == SHARD_OK ? info.mapped : 0;
}

bool cuda_fresh(const struct shard_cuda *c)
{
	return cuda_mapped(c) == c->mapped;
}

/* --- opening --- */

/* What is known of the model and does not change. */
static enum shard_status read_layout(struct shard_cuda *c, struct err *e)
{
	uint64_t end = 0, half;
	struct {
		void *base;
		size_t bytes;
	} region[2];

	for (int i = 0; i < 2; i++) {
		enum shard_status rc = shard_region(c->model, i == 0 ? SHARD_GRAD : SHARD_IMAGE,
						    &region[i].base, &region[i].bytes);
		if (rc != SHARD_OK)
			return err_set(e, rc, "%s", shard_error());
	}
	c->tensors_nr = shard_tensors(c->model);
	c->tensor = calloc(c->tensors_nr + 1, sizeof(*c->tensor));
	if (c->tensor == NULL || !spans_init(&c->spans, c->tensors_nr))
		return err_sys(e, ENOMEM, "out of memory for %u tensors", c->tensors_nr);
	c->mapped = cuda_mapped(c); /* Before it is registered: a newer one is noticed later. */
	for (uint32_t i = 0; i < c->tensors_nr; i++) {
		struct shard_info info = SHARD_INIT(struct shard_info);
		enum shard_status rc = shard_tensor_info(c->model, i, &info);
		const char *grad = shard_grad(c->model, i);
		uint64_t its;

		if (rc != SHARD_OK || grad == NULL)
			return err_set(e, rc ? rc : SHARD_BAD_STATE, "%s", shard_error());
		if (!dtype_ok(info.grad) || !dtype_ok(info.image))
			return err_set(e, SHARD_UNSUPPORTED,
				       "libshard is older than libshard-cuda: install both of one "
				       "release");
		c->grad = (enum shard_dtype)info.grad;
		c->tensor[i] =
			(struct tensor){.numel = info.numel,
					.image_offset = info.image_offset,
					.grad_offset = (uint64_t)(grad - (char *)region[0].base),
					.image = (enum shard_dtype)info.image,
					.frozen = (info.flags & SHARD_FROZEN) != 0};
		its = info.image_offset + info.numel * dtype_bytes(c->tensor[i].image);
		end = its > end ? its : end;
	}
	c->arena = (struct pin){.base = region[0].base, .bytes = region[0].bytes};
	c->image = (struct pin){.base = region[1].base, .bytes = region[1].bytes};
	half = (end + PAGE - 1) / PAGE * PAGE;
	if (region[1].bytes >= 2 * half) { /* shard_image() alone knows whose turn it is. */
		c->image.bytes = 0;
		(void)err_set(&c->why, SHARD_OK,
			      "the model has max_staleness = 1, and so two images: parameters go "
			      "through pinned buffers");
	}
	return SHARD_OK;
}

/* The device and its primary context. */
static enum shard_status take_device(struct shard_cuda *c, int32_t device, struct err *e)
{
	const struct driver *d = &c->driver;
	cu_context now = NULL;
	cu_result cu;

	if ((cu = d->ctx_get(&now)) != CU_SUCCESS)
		return driver_fail(d, e, cu, "cuCtxGetCurrent", "");
	if (device < 0 && now == NULL)
		return err_set(
			e, SHARD_BAD_STATE,
			"no CUDA context is current in this thread, and no device is named: call "
			"cudaSetDevice() or torch.cuda.set_device() first, or set "
			"shard_cuda_opts.device");
	if (device < 0 && (cu = d->ctx_device(&c->device)) != CU_SUCCESS)
		return driver_fail(d, e, cu, "cuCtxGetDevice", "");
	if (device >= 0 && (cu = d->device_get(&c->device, device)) != CU_SUCCESS)
		return driver_fail(d, e, cu, "cuDeviceGet", "");
	if ((cu = d->primary_retain(&c->ctx, c->device)) != CU_SUCCESS) {
		c->ctx = NULL;
		return driver_fail(d, e, cu, "cuDevicePrimaryCtxRetain", "");
	}
	if (device < 0 && now != c->ctx)
		return err_set(
			e, SHARD_BAD_STATE,
			"the context that is current in this thread is not the primary one of "
			"device %d, which the runtime and torch use: make that one current",
			(int)c->device);
	c->ordinal = (int32_t)c->device; /* The driver numbers handles as it numbers devices. */
	if ((cu = d->version(&c->version)) != CU_SUCCESS)
		return driver_fail(d, e, cu, "cuDriverGetVersion", "");
	return SHARD_OK;
}

/* What the driver has no room or no support for goes through the ring. */
static enum shard_status take_memory(struct shard_cuda *c, const struct shard_cuda_opts *o,
				     struct err *e)
{
	const struct driver *d = &c->driver;
	size_t piece = o->piece_bytes ? o->piece_bytes : PIECE_BYTES;
	enum shard_status rc;
	int read_only = 0;
	cu_result cu;

	if (o->flags & SHARD_CUDA_BOUNCE) {
		(void)err_set(&c->why, SHARD_OK, "SHARD_CUDA_BOUNCE was given");
		return SHARD_OK;
	}
	if ((cu = d->device_attribute(&read_only, CU_READ_ONLY_REGISTER, c->device)) != CU_SUCCESS)
		return driver_fail(d, e, cu, "cuDeviceGetAttribute", "");
	rc = pin_register(d, &c->arena, piece, CU_REGISTER_PORTABLE, "of the arena", e);
	if (rc == SHARD_OK && c->image.bytes > 0 && !read_only)
		(void)err_set(
			&c->why, SHARD_OK,
			"the device cannot register read-only memory "
			"(CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED): parameters go "
			"through pinned buffers");
	else if (rc == SHARD_OK)
		rc = pin_register(d, &c->image, piece, CU_REGISTER_PORTABLE | CU_REGISTER_READ_ONLY,
				  "of the image", e);
	if (rc == SHARD_UNSUPPORTED || (rc == SHARD_SYSTEM && e->sys == ENOMEM)) {
		(void)err_set(&c->why, SHARD_OK, "%.400s; copies go through pinned buffers",
			      e->text);
		return SHARD_OK;
	}
	return rc;
}

/* What was registered is the memory of before, and a copy would read or write that. */
enum shard_status cuda_renew(struct shard_cuda *c, uint64_t until_ns)
{
	enum shard_status rc = SHARD_OK;
	struct err e;

	if (cuda_fresh(c))
		return SHARD_OK;
	while (c->done < c->last && c->dead.status == SHARD_OK && rc == SHARD_OK)
		if (!cuda_await(c, until_ns))
			rc = cuda_say(SHARD_TIMEOUT,
				      "the connection was made again, and copies of before are "
				      "still under way");
	if (rc != SHARD_OK || c->dead.status != SHARD_OK)
		return rc != SHARD_OK ? rc : cuda_fail(&c->dead);
	c->mapped = cuda_mapped(c);
	if ((rc = pin_unregister(&c->driver, &c->image, &e)) == SHARD_OK &&
	    (rc = pin_unregister(&c->driver, &c->arena, &e)) == SHARD_OK)
		rc = take_memory(c, &c->opts, &e);
	if (rc == SHARD_OK)
		return SHARD_OK;
	e.status = SHARD_CLOSED;
	cuda_dead(c, &e);
	return cuda_fail(&e);
}

static enum shard_status take_stream(struct shard_cuda *c, struct err *e)
{
	const struct driver *d = &c->driver;
	cu_result cu;

	if ((cu = d->stream_create(&c->stream, CU_STREAM_OWN)) != CU_SUCCESS) {
		c->stream = NULL;
		return driver_fail(d, e, cu, "cuStreamCreate", "");
	}
	if ((cu = d->event_create(&c->before, CU_EVENT_NO_TIMING)) != CU_SUCCESS) {
		c->before = NULL;
		return driver_fail(d, e, cu, "cuEventCreate", "");
	}
	return SHARD_OK;
}

/* Gives back what there is of the device. The first failure is told. */
static enum shard_status give_back(struct shard_cuda *c, struct err *e)
{
	const struct driver *d = &c->driver;
	enum shard_status rc = SHARD_OK, one;
	struct err other;
	cu_result cu;

	if (c->ctx == NULL)
		return SHARD_OK;
	if ((one = cuda_enter(c, &other)) != SHARD_OK) {
		*e = other;
		rc = one;
		goto release;
	}
#define BACK(call, name)                                                                           \
	do {                                                                                       \
		if ((cu = (call)) != CU_SUCCESS && rc == SHARD_OK)                                 \
			rc = driver_fail(d, e, cu, name, "");                                      \
	} while (0)
#define BACK_ERR(call)                                                                             \
	do {                                                                                       \
		if ((one = (call)) != SHARD_OK && rc == SHARD_OK) {                                \
			*e = other;                                                                \
			rc = one;                                                                  \
		}                                                                                  \
	} while (0)
	for (shard_ticket t = c->done + 1; t <= c->last && c->job != NULL; t++)
		if (c->job[t % c->jobs_cap].done != NULL)
			BACK(d->event_destroy(c->job[t % c->jobs_cap].done), "cuEventDestroy");
	while (c->spare_nr > 0)
		BACK(d->event_destroy(c->spare[--c->spare_nr]), "cuEventDestroy");
	BACK_ERR(ring_free(d, &c->ring, &other));
	if (c->before != NULL)
		BACK(d->event_destroy(c->before), "cuEventDestroy");
	if (c->stream != NULL)
		BACK(d->stream_destroy(c->stream), "cuStreamDestroy");
	BACK_ERR(device_memory_give(c, &other));
	BACK_ERR(pin_unregister(d, &c->image, &other));
	BACK_ERR(pin_unregister(d, &c->arena, &other));
	cuda_leave(c);
release:
	BACK(d->primary_release(c->device), "cuDevicePrimaryCtxRelease");
#undef BACK
#undef BACK_ERR
	c->ctx = NULL;
	return rc;
}

static void free_memory(struct shard_cuda *c)
{
	for (shard_ticket t = c->done + 1; t <= c->last && c->job != NULL; t++)
		free(c->job[t % c->jobs_cap].range);
	for (struct text *t = c->told, *next; t != NULL; t = next) {
		next = t->next;
		free(t);
	}
	free(c->job);
	free(c->spare);
	spans_deinit(&c->spans);
	free(c->tensor);
	free(c);
}

static enum shard_status start_helper(struct shard_cuda *c, struct err *e)
{
	pthread_condattr_t attr;
	sigset_t all, was;
	int rc;

	c->jobs_cap = 2 * c->tensors_nr > JOBS_MIN ? 2 * c->tensors_nr : JOBS_MIN;
	c->job = calloc(c->jobs_cap, sizeof(*c->job));
	c->spare = calloc(c->jobs_cap, sizeof(*c->spare));
	if (c->job == NULL || c->spare == NULL)
		return err_sys(e, ENOMEM, "out of memory for %u copies", c->jobs_cap);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&c->changed, &attr);
	pthread_condattr_destroy(&attr);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &was);
	rc = pthread_create(&c->helper, NULL, helper_main, c);
	pthread_sigmask(SIG_SETMASK, &was, NULL);
	if (rc != 0) {
		pthread_cond_destroy(&c->changed);
		return err_sys(e, rc, "pthread_create: %s", strerror(rc));
	}
	(void)pthread_setname_np(c->helper, "shard-cuda");
	return SHARD_OK;
}

static enum shard_status options(const struct shard_cuda_opts *theirs, struct shard_cuda_opts *o)
{
	enum shard_status rc = SHARD_OK;

	*o = (struct shard_cuda_opts){.size = sizeof(*o), .device = -1};
	if (theirs != NULL)
		rc = struct_in(o, sizeof(*o), theirs, "shard_cuda_opts");
	if (rc != SHARD_OK)
		return rc;
	if (o->flags & ~(uint32_t)(SHARD_CUDA_BOUNCE | SHARD_CUDA_IMAGE | SHARD_CUDA_GRAD))
		return cuda_say(SHARD_BAD_ARG, "shard_cuda_open() with flags 0x%x", o->flags);
	if (o->piece_bytes % PAGE != 0)
		return cuda_say(SHARD_BAD_ARG, "piece_bytes is %llu, and no multiple of %d",
				(unsigned long long)o->piece_bytes, PAGE);
	return SHARD_OK;
}

enum shard_status shard_cuda_open(shard_cuda **cuda, shard_model *model,
				  const struct shard_cuda_opts *opts)
{
	struct err e = {.status = SHARD_OK}, other;
	struct shard_cuda_opts o;
	enum shard_status rc;
	struct shard_cuda *c;

	if (cuda == NULL)
		return cuda_say(SHARD_BAD_ARG, "shard_cuda_open(): the handle's place is NULL");
	*cuda = NULL;
	if (model == NULL)
		return cuda_say(SHARD_BAD_ARG, "shard_cuda_open(): the model is NULL");
	if ((rc = options(opts, &o)) != SHARD_OK)
		return rc;
	c = calloc(1, sizeof(*c));
	if (c == NULL) {
		(void)err_sys(&e, ENOMEM, "out of memory for a handle");
		return cuda_fail(&e);
	}
	pthread_mutex_init(&c->lock, NULL);
	c->model = model;
	c->opts = o;
	c->pid = getpid();
	c->timeout_ns = o.timeout_ms > 0 ? cuda_until(c, o.timeout_ms) - clock_ns() : TIMEOUT_NS;
	c->ring.bytes = (o.buffer_bytes ? o.buffer_bytes : BUFFER_BYTES) / PAGE * PAGE;
	c->ring.bytes = c->ring.bytes ? c->ring.bytes : PAGE;
	if ((rc = driver_open(&c->driver, DRIVER_CLIENT, &e)) != SHARD_OK ||
	    (rc = read_layout(c, &e)) != SHARD_OK ||
	    (rc = take_device(c, o.device, &e)) != SHARD_OK || (rc = cuda_enter(c, &e)) != SHARD_OK)
		goto give_back;
	if ((rc = take_memory(c, &o, &e)) == SHARD_OK)
		rc = take_stream(c, &e);
	if (rc == SHARD_OK)
		device_memory_take(c);
	cuda_leave(c);
	if (rc == SHARD_OK && (rc = start_helper(c, &e)) == SHARD_OK) {
		*cuda = c;
		return SHARD_OK;
	}
give_back:
	(void)give_back(c, &other);
	pthread_mutex_destroy(&c->lock);
	free_memory(c);
	return cuda_fail(&e);
}

/* --- closing --- */

/* Waits until the helper has ended and the device copies nothing. */
static enum shard_status come_to_rest(struct shard_cuda *c, uint64_t until)
{
	enum shard_status rc = SHARD_OK;
	struct err e;
	cu_result cu;

	pthread_mutex_lock(&c->lock);
	c->closing = true;
	pthread_cond_broadcast(&c->changed);
	while (!c->gone && rc == SHARD_OK)
		if (!cuda_await(c, until))
			rc = cuda_say(SHARD_TIMEOUT,
				      "the thread of the handle is still at work: close "
				      "it again before the model is left");
	pthread_mutex_unlock(&c->lock);
	if (rc != SHARD_OK)
		return rc;
	if (!c->joined)
		(void)pthread_join(c->helper, NULL);
	c->joined = true;
	if (cuda_enter(c, &e) != SHARD_OK)
		return SHARD_OK; /* Without a context nothing runs. */
	while ((cu = c->driver.stream_query(c->stream)) == CU_NOT_READY && clock_ns() < until)
		helper_nap();
	cuda_leave(c);
	if (cu == CU_NOT_READY)
		return cuda_say(SHARD_TIMEOUT, "copies are still under way: close the handle again "
					       "before the model is left");
	return SHARD_OK;
}

enum shard_status shard_cuda_close(shard_cuda **cuda, int64_t timeout_ms)
{
	enum shard_status rc;
	struct shard_cuda *c;
	struct err e, refused;

	if (cuda == NULL || *cuda == NULL)
		return SHARD_OK;
	c = *cuda;
	if (c->pid != getpid()) { /* There is no thread and no CUDA in this process. */
		*cuda = NULL;
		free_memory(c);
		return SHARD_OK;
	}
	if ((rc = come_to_rest(c, cuda_until(c, timeout_ms))) != SHARD_OK)
		return rc;
	*cuda = NULL;
	rc = give_back(c, &refused);
	if (c->dead.status != SHARD_OK)
		rc = SHARD_OK; /* In a context that is dead nothing can be given back. */
	else if (rc != SHARD_OK)
		rc = err_sys(&e, EIO, "at the end of the handle: %.400s", refused.text);
	pthread_cond_destroy(&c->changed);
	pthread_mutex_destroy(&c->lock);
	free_memory(c);
	return rc == SHARD_OK ? SHARD_OK : cuda_fail(&e);
}

/* --- what it tells --- */

/* A sentence that stays as it is, for callers. With the lock held. */
static const char *lasting(struct shard_cuda *c, const char *text)
{
	size_t bytes = strlen(text) + 1;
	struct text *t = c->told;

	while (t != NULL && strcmp(t->text, text) != 0)
		t = t->next;
	if (t != NULL)
		return t->text;
	if ((t = malloc(sizeof(*t) + bytes)) == NULL)
		return "no memory for the sentence";
	memcpy(t->text, text, bytes);
	t->next = c->told;
	c->told = t;
	return t->text;
}

enum shard_status shard_cuda_tell(shard_cuda *c, struct shard_cuda_about *about)
{
	struct shard_cuda_about a = {.size = sizeof(a)}, theirs;
	enum shard_status rc = cuda_usable(c);
	size_t size;

	if (rc != SHARD_OK ||
	    (rc = struct_in(&theirs, sizeof(theirs), about, "shard_cuda_about")) != SHARD_OK)
		return rc;
	a.device = c->ordinal;
	a.driver = c->version;
	pthread_mutex_lock(&c->lock);
	a.grad_pinned = c->arena.pinned > 0;
	a.image_pinned = c->image.pinned > 0;
	a.registered_bytes = c->arena.pinned + c->image.pinned;
	a.why = lasting(c, c->why.text);
	a.image_device = c->there[DEVICE_IMAGE].at != 0;
	a.grad_device = c->there[DEVICE_GRAD].at != 0;
	a.pushed_bytes = c->pushed_bytes;
	a.pulled_bytes = c->pulled_bytes;
	a.pulled_copies = c->pulled_copies;
	a.dead = c->dead.status != SHARD_OK;
	pthread_mutex_unlock(&c->lock);
	size = theirs.size < sizeof(a) ? theirs.size : sizeof(a);
	memcpy((char *)about + sizeof(size), (char *)&a + sizeof(size), size - sizeof(size));
	return SHARD_OK;
}

shard_stream shard_cuda_stream(shard_cuda *c)
{
	return c != NULL && c->pid == getpid() ? c->stream : NULL;
}
