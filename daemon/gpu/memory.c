// SPDX-License-Identifier: Apache-2.0
/* Memory of a device, and memory of the host that it copies from and to. Memory of the device is
 * what the driver calls virtual memory: a handle, mapped at an address of its own. A descriptor of
 * the handle keeps the memory beyond the life of the process. Everything may be called by any
 * thread, which makes the context current for it. A failure leaves nothing behind. */
#include "gpu/device_impl.h"

#include "base/check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* One call for 512 GiB or more fails. */
#define PIN_BYTES ((uint64_t)16 << 30)

typedef unsigned long long ull;

static enum shard_status enter(struct gpu *g, struct err *e)
{
	cu_result rc;

	if (g->lost)
		return err_set(e, SHARD_SYSTEM, "%s", g->why.text);
	rc = g->d.ctx_push(g->ctx);
	return rc == CU_SUCCESS ? SHARD_OK : gpu_fail(g, e, rc, "cuCtxPushCurrent", "");
}

static void leave(struct gpu *g)
{
	cu_context was;

	(void)g->d.ctx_pop(&was);
}

/* Of calls that give something back, whose failure nobody is told: one that ends the context ends
 * the device, so that nothing new is put there. */
static cu_result gave(struct gpu *g, cu_result rc, const char *call)
{
	if (driver_fatal(rc))
		gpu_lose(g, rc, call);
	return rc;
}

/* --- memory of the device --- */

enum use {
	USE_HERE,
	USE_EXPORTS, /* Its descriptor keeps it. */
	USE_DIRECT,  /* Network devices write it: its descriptor is a dma-buf. */
};

static struct cu_memory_prop prop_of(const struct gpu *g, enum use use)
{
	return (struct cu_memory_prop){.type = CU_MEMORY_PINNED,
				       .handle_types =
					       use == USE_EXPORTS ? CU_MEMORY_DESCRIPTOR : 0,
				       .location = {CU_LOCATION_DEVICE, g->device},
				       .flags = {.gpu_direct_rdma = use == USE_DIRECT}};
}

static enum shard_status too_much(struct gpu *g, uint64_t bytes, struct err *e)
{
	size_t left = 0, total = 0;

	(void)g->d.memory_info(&left, &total);
	return err_set(e, SHARD_BUDGET,
		       "%llu bytes more of %s: %llu are in use for models of %llu that may be "
		       "(gpu_memory), and the device has %llu free of %llu",
		       (ull)bytes, g->uuid_text, (ull)g->mapped_bytes, (ull)g->limit_bytes,
		       (ull)left, (ull)total);
}

/* Maps m->handle at an address, m->at. */
static enum shard_status map_handle(struct gpu *g, struct gpu_mem *m, struct err *e)
{
	const struct cu_access access = {.location = {CU_LOCATION_DEVICE, g->device},
					 .flags = CU_ACCESS_READ_WRITE};
	enum shard_status st;
	cu_result rc;

	if ((rc = g->d.reserve(&m->at, m->bytes, 0, 0, 0)) != CU_SUCCESS)
		return gpu_fail(g, e, rc, "cuMemAddressReserve", "");
	if ((rc = g->d.map(m->at, m->bytes, 0, m->handle, 0)) != CU_SUCCESS) {
		st = gpu_fail(g, e, rc, "cuMemMap", "");
		goto err_reserve;
	}
	if ((rc = g->d.set_access(m->at, m->bytes, &access, 1)) == CU_SUCCESS)
		return SHARD_OK;
	st = gpu_fail(g, e, rc, "cuMemSetAccess", "");
	(void)g->d.unmap(m->at, m->bytes);
err_reserve:
	(void)g->d.unreserve(m->at, m->bytes);
	return st;
}

static void unmap_handle(struct gpu *g, struct gpu_mem *m)
{
	if (gave(g, g->d.unmap(m->at, m->bytes), "cuMemUnmap") == CU_SUCCESS)
		(void)gave(g, g->d.unreserve(m->at, m->bytes), "cuMemAddressFree");
}

/* What hangs may still use its memory, and another call could hang as well: all stays as it is
 * until the process ends. */
bool gpu_hangs(struct gpu *g)
{
	bool given_up;

	pthread_mutex_lock(&g->lock);
	given_up = g->given_up;
	pthread_mutex_unlock(&g->lock);
	return given_up;
}

static enum shard_status clear(struct gpu *g, const struct gpu_mem *m, struct err *e)
{
	cu_result rc = g->d.memory_set(m->at, 0, m->bytes, g->memory_stream);

	if (rc != CU_SUCCESS)
		return gpu_fail(g, e, rc, "cuMemsetD8Async", "");
	rc = g->d.stream_sync(g->memory_stream);
	return rc == CU_SUCCESS ? SHARD_OK : gpu_fail(g, e, rc, "cuStreamSynchronize", "");
}

static uint64_t round_up(const struct gpu *g, uint64_t bytes)
{
	return (bytes + g->granularity - 1) / g->granularity * g->granularity;
}

static enum shard_status hand_over(struct gpu *g, enum use use, struct gpu_mem *m, struct err *e)
{
	cu_result rc;

	if (use == USE_HERE)
		return SHARD_OK;
	rc = use == USE_DIRECT ? g->d.range_handle(&m->fd, m->at, m->bytes, CU_RANGE_DMA_BUF, 0)
			       : g->d.export_handle(&m->fd, m->handle, CU_MEMORY_DESCRIPTOR, 0);
	if (rc == CU_SUCCESS) {
		(void)fcntl(m->fd, F_SETFD, FD_CLOEXEC);
		return SHARD_OK;
	}
	m->fd = -1;
	return gpu_fail(g, e, rc,
			use == USE_DIRECT ? "cuMemGetHandleForAddressRange"
					  : "cuMemExportToShareableHandle",
			"");
}

/* With the context current and the lock. */
static enum shard_status make(struct gpu *g, enum use use, struct gpu_mem *m, struct err *e)
{
	const struct cu_memory_prop prop = prop_of(g, use);
	enum shard_status st;
	cu_result rc;

	rc = g->d.create(&m->handle, m->bytes, &prop, 0);
	if (rc == CU_OUT_OF_MEMORY)
		return too_much(g, m->bytes, e);
	if (rc != CU_SUCCESS)
		return gpu_fail(g, e, rc, "cuMemCreate", "");
	if ((st = map_handle(g, m, e)) != SHARD_OK)
		goto err_handle;
	if ((st = clear(g, m, e)) == SHARD_OK && (st = hand_over(g, use, m, e)) == SHARD_OK)
		return SHARD_OK;
	(void)g->d.stream_sync(g->memory_stream); /* It may still be cleared. */
	unmap_handle(g, m);
err_handle:
	(void)g->d.release(m->handle);
	return st;
}

static enum shard_status map_for(struct gpu *g, uint64_t bytes, enum use use, struct gpu_mem *m,
				 struct err *e)
{
	enum shard_status st;

	CHECK(g != NULL && bytes > 0);
	*m = (struct gpu_mem){.fd = -1};
	pthread_mutex_lock(&g->memory_lock);
	if ((st = enter(g, e)) != SHARD_OK)
		goto out;
	if (g->mapped_bytes > g->limit_bytes || bytes > g->limit_bytes - g->mapped_bytes ||
	    round_up(g, bytes) > g->limit_bytes - g->mapped_bytes) {
		st = too_much(g, bytes, e);
	} else {
		m->bytes = round_up(g, bytes);
		st = make(g, use, m, e);
	}
	leave(g);
	if (st == SHARD_OK) {
		m->gpu = g;
		g->mapped_bytes += m->bytes;
		gpu_more(g);
	} else {
		*m = (struct gpu_mem){.fd = -1};
	}
out:
	pthread_mutex_unlock(&g->memory_lock);
	return st;
}

enum shard_status gpu_map(struct gpu *g, uint64_t bytes, bool exports, struct gpu_mem *m,
			  struct err *e)
{
	return map_for(g, bytes, exports ? USE_EXPORTS : USE_HERE, m, e);
}

static enum shard_status attribute(struct gpu *g, int which, int *value, struct err *e)
{
	cu_result rc = g->d.device_attribute(value, which, g->device);

	return rc == CU_SUCCESS ? SHARD_OK : gpu_fail(g, e, rc, "cuDeviceGetAttribute", "");
}

/* *flushes: what is written is not seen before a flush. */
static enum shard_status judge_direct(struct gpu *g, bool *flushes, struct err *e)
{
	int memory = 0, dma_buf = 0, ordering = 0, options = 0;
	enum shard_status st;
	const char *lacks = NULL;

	if ((st = attribute(g, CU_DIRECT_MEMORY, &memory, e)) != SHARD_OK ||
	    (st = attribute(g, CU_DMA_BUF, &dma_buf, e)) != SHARD_OK ||
	    (st = attribute(g, CU_DIRECT_ORDERING, &ordering, e)) != SHARD_OK ||
	    (st = attribute(g, CU_DIRECT_FLUSHES, &options, e)) != SHARD_OK)
		return st;
	*flushes = ordering < CU_ORDERING_OWNER;
	if (!memory)
		lacks = "has no memory that network devices may write";
	else if (!dma_buf)
		lacks = "gives no dma-buf of its memory: that takes the open kernel modules of its "
			"driver, and Linux 5.12 or newer";
	else if (g->d.range_handle == NULL)
		lacks = "has a driver without cuMemGetHandleForAddressRange: update it";
	else if (*flushes && (!(options & CU_FLUSHES_HOST) || g->d.flush_writes == NULL))
		lacks = "cannot say when it sees what network devices have written";
	if (lacks == NULL)
		return SHARD_OK;
	return err_set(e, SHARD_UNSUPPORTED, "%s (%s) %s", g->uuid_text, g->name, lacks);
}

enum shard_status gpu_direct(struct gpu *g, struct err *e)
{
	bool flushes;

	return judge_direct(g, &flushes, e);
}

enum shard_status gpu_map_direct(struct gpu *g, uint64_t bytes, struct gpu_mem *m, struct err *e)
{
	enum shard_status st;
	bool flushes;

	*m = (struct gpu_mem){.fd = -1};
	if ((st = judge_direct(g, &flushes, e)) != SHARD_OK)
		return st;
	g->flushes = flushes; /* Before any sum that needs it is given. */
	return map_for(g, bytes, USE_DIRECT, m, e);
}

static enum shard_status no_memory_of(const struct gpu *g, struct err *e, const char *what)
{
	return err_set(e, SHARD_MISMATCH, "a descriptor is no memory of %s of this size: %s",
		       g->uuid_text, what);
}

/* The driver does not say how large a handle's memory is, but maps no more than there is. */
static enum shard_status check_size(struct gpu *g, const struct gpu_mem *m, struct err *e)
{
	const uint64_t bytes = m->bytes + g->granularity;
	enum shard_status st = SHARD_OK;
	cu_ptr at = 0;
	cu_result rc;

	if ((rc = g->d.reserve(&at, bytes, 0, 0, 0)) != CU_SUCCESS)
		return gpu_fail(g, e, rc, "cuMemAddressReserve", "");
	rc = g->d.map(at, bytes, 0, m->handle, 0);
	if (rc == CU_SUCCESS) {
		(void)g->d.unmap(at, bytes);
		st = no_memory_of(g, e, "it is larger");
	} else if (driver_fatal(rc)) {
		st = gpu_fail(g, e, rc, "cuMemMap", "");
	}
	(void)g->d.unreserve(at, bytes);
	return st;
}

/* With the context current. m->fd and m->bytes are set. */
static enum shard_status take(struct gpu *g, struct gpu_mem *m, struct err *e)
{
	struct cu_memory_prop prop = {0};
	enum shard_status st;
	cu_result rc;

	rc = g->d.import_handle(&m->handle, (void *)(intptr_t)m->fd, CU_MEMORY_DESCRIPTOR);
	/* Other failures say nothing of the descriptor, and may be over at the next start. */
	if (rc != CU_SUCCESS && rc != CU_INVALID_VALUE && rc != CU_INVALID_HANDLE &&
	    rc != CU_INVALID_DEVICE)
		return gpu_fail(g, e, rc, "cuMemImportFromShareableHandle", "");
	if (rc != CU_SUCCESS) {
		char words[32], why[128];

		snprintf(why, sizeof(why), "cuMemImportFromShareableHandle: %s (%d)",
			 driver_name(&g->d, rc, words), rc);
		return no_memory_of(g, e, why);
	}
	if ((rc = g->d.prop_of(&prop, m->handle)) != CU_SUCCESS)
		st = gpu_fail(g, e, rc, "cuMemGetAllocationPropertiesFromHandle", "");
	else if (prop.location.type != CU_LOCATION_DEVICE || prop.location.id != g->device)
		st = no_memory_of(g, e, "it is of another device");
	else if ((st = check_size(g, m, e)) == SHARD_OK &&
		 (st = map_handle(g, m, e)) == SHARD_BAD_ARG)
		st = no_memory_of(g, e, "it is smaller");
	if (st != SHARD_OK)
		(void)g->d.release(m->handle);
	return st;
}

enum shard_status gpu_again(struct gpu *g, int fd, uint64_t bytes, struct gpu_mem *m, struct err *e)
{
	enum shard_status st;

	CHECK(g != NULL && bytes > 0);
	*m = (struct gpu_mem){.fd = -1};
	if (bytes > g->total_bytes)
		return no_memory_of(g, e, "the device has less");
	m->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	if (m->fd < 0)
		return errno == EBADF ? no_memory_of(g, e, "it is closed")
				      : err_sys(e, errno, "a descriptor cannot be copied: %s",
						strerror(errno));
	m->bytes = round_up(g, bytes);
	pthread_mutex_lock(&g->memory_lock);
	if ((st = enter(g, e)) == SHARD_OK) {
		st = take(g, m, e);
		leave(g);
	}
	if (st == SHARD_OK) {
		m->gpu = g;
		g->mapped_bytes += m->bytes;
		gpu_more(g);
	} else {
		close(m->fd);
		*m = (struct gpu_mem){.fd = -1};
	}
	pthread_mutex_unlock(&g->memory_lock);
	return st;
}

void gpu_unmap(struct gpu_mem *m)
{
	struct gpu *g = m->gpu;

	if (g == NULL)
		return;
	pthread_mutex_lock(&g->memory_lock);
	if (!gpu_hangs(g)) { /* No context is needed, and it may fail if that ended. */
		unmap_handle(g, m);
		(void)gave(g, g->d.release(m->handle), "cuMemRelease");
	}
	g->mapped_bytes -= m->bytes;
	pthread_mutex_unlock(&g->memory_lock);
	if (m->fd >= 0)
		close(m->fd);
	*m = (struct gpu_mem){.fd = -1};
	gpu_less(g);
}

/* --- memory of the host --- */

uint64_t gpu_pinned(struct gpu *g, const void *at, uint64_t bytes)
{
	const uint8_t *from = at;
	uint64_t part = 0;

	pthread_mutex_lock(&g->pins_lock);
	for (uint32_t i = 0; i < g->pins_nr && part == 0; i++)
		if (from >= g->pins[i].at && from < g->pins[i].at + g->pins[i].bytes)
			part = g->pins[i].bytes - (uint64_t)(from - g->pins[i].at);
	pthread_mutex_unlock(&g->pins_lock);
	return part < bytes ? part : bytes;
}

static bool pins_add(struct gpu *g, struct pin pin)
{
	pthread_mutex_lock(&g->pins_lock);
	if (g->pins_nr == g->pins_cap) {
		uint32_t cap = g->pins_cap ? 2 * g->pins_cap : 16;
		struct pin *more = realloc(g->pins, cap * sizeof(*more));

		if (more == NULL) {
			pthread_mutex_unlock(&g->pins_lock);
			return false;
		}
		g->pins = more;
		g->pins_cap = cap;
	}
	g->pins[g->pins_nr++] = pin;
	pthread_mutex_unlock(&g->pins_lock);
	return true;
}

/* Takes one piece of that range out of the table. of NULL: any. */
static bool pins_take(struct gpu *g, const uint8_t *of, struct pin *pin)
{
	bool found = false;

	pthread_mutex_lock(&g->pins_lock);
	for (uint32_t i = 0; i < g->pins_nr && !found; i++) {
		if (of != NULL && g->pins[i].of != of)
			continue;
		*pin = g->pins[i];
		g->pins[i] = g->pins[--g->pins_nr];
		found = true;
	}
	pthread_mutex_unlock(&g->pins_lock);
	return found;
}

/* False: the driver has not let go of all. */
static bool unpin(struct gpu *g, const uint8_t *of)
{
	bool all = true;
	struct pin pin;

	while (pins_take(g, of, &pin))
		if (!pin.borrowed &&
		    gave(g, g->d.host_unregister(pin.at), "cuMemHostUnregister") != CU_SUCCESS)
			all = false;
	return all;
}

enum shard_status gpu_pin(struct gpu *g, void *at, uint64_t bytes, struct err *e)
{
	enum shard_status st;
	uint64_t part;

	CHECK(g != NULL && at != NULL && bytes > 0);
	if ((st = enter(g, e)) != SHARD_OK)
		return st;
	for (uint64_t done = 0; done < bytes && st == SHARD_OK; done += part) {
		struct pin pin = {.at = (uint8_t *)at + done, .of = at};
		cu_result rc;

		part = bytes - done < PIN_BYTES ? bytes - done : PIN_BYTES;
		pin.bytes = part;
		rc = g->d.host_register(pin.at, part, CU_REGISTER_PORTABLE);
		pin.borrowed = rc == CU_ALREADY_REGISTERED;
		if (rc != CU_SUCCESS && !pin.borrowed) {
			st = gpu_fail(g, e, rc, "cuMemHostRegister", "of memory of a model");
		} else if (!pins_add(g, pin)) {
			if (!pin.borrowed)
				(void)g->d.host_unregister(pin.at);
			st = err_sys(e, ENOMEM, "no memory for a table of pinned memory");
		}
	}
	if (st != SHARD_OK)
		(void)unpin(g, at);
	leave(g);
	return st;
}

/* Has it pinned some of that range itself? */
static bool has_pinned(struct gpu *g, const uint8_t *of)
{
	bool found = false;

	pthread_mutex_lock(&g->pins_lock);
	for (uint32_t i = 0; i < g->pins_nr && !found; i++)
		found = g->pins[i].of == of && !g->pins[i].borrowed;
	pthread_mutex_unlock(&g->pins_lock);
	return found;
}

bool gpu_unpin(struct gpu *g, void *at)
{
	bool in, all;

	if (at == NULL)
		return true;
	if (gpu_hangs(g))
		return !has_pinned(g, at);
	in = gave(g, g->d.ctx_push(g->ctx), "cuCtxPushCurrent") == CU_SUCCESS;
	all = unpin(g, at);
	if (in)
		leave(g);
	return all;
}

void gpu_unpin_all(struct gpu *g)
{
	(void)unpin(g, NULL);
}
