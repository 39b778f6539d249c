// SPDX-License-Identifier: Apache-2.0
/* Memory of a device, and memory of the host that it copies from and to. Memory of the device is
 * what the driver calls virtual memory: a handle, mapped at an address of its own. A descriptor of
 * the handle keeps the memory beyond the life of the process. Everything may be called by any
 * thread, and is done by the one that is asked (calls.c), whose context is current: the functions
 * run_...(), with what they work on by value. A failure leaves nothing behind, but for a call that
 * does not come back: then the device is given up, and what was under way stays the driver's. */
#include "gpu/device_impl.h"

#include "base/check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* One call for 512 GiB or more fails, and others that ask wait for it. */
#define PIN_BYTES ((uint64_t)4 << 30)

typedef unsigned long long ull;

static enum shard_status check(struct gpu *g, struct err *e)
{
	return g->lost ? err_set(e, SHARD_SYSTEM, "%s", g->why.text) : SHARD_OK;
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

	(void)ASK(g, g->d.memory_info(&left, &total));
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

	if ((rc = ASK(g, g->d.reserve(&m->at, m->bytes, 0, 0, 0))) != CU_SUCCESS)
		return gpu_fail(g, e, rc, "cuMemAddressReserve", "");
	if ((rc = ASK(g, g->d.map(m->at, m->bytes, 0, m->handle, 0))) != CU_SUCCESS) {
		st = gpu_fail(g, e, rc, "cuMemMap", "");
		goto err_reserve;
	}
	if ((rc = ASK(g, g->d.set_access(m->at, m->bytes, &access, 1))) == CU_SUCCESS)
		return SHARD_OK;
	st = gpu_fail(g, e, rc, "cuMemSetAccess", "");
	(void)ASK(g, g->d.unmap(m->at, m->bytes));
err_reserve:
	(void)ASK(g, g->d.unreserve(m->at, m->bytes));
	return st;
}

static void unmap_handle(struct gpu *g, struct gpu_mem *m)
{
	if (gave(g, ASK(g, g->d.unmap(m->at, m->bytes)), "cuMemUnmap") == CU_SUCCESS)
		(void)gave(g, ASK(g, g->d.unreserve(m->at, m->bytes)), "cuMemAddressFree");
}

static enum shard_status clear(struct gpu *g, const struct gpu_mem *m, struct err *e)
{
	cu_result rc = ASK(g, g->d.memory_set(m->at, 0, m->bytes, g->memory_stream));

	if (rc != CU_SUCCESS)
		return gpu_fail(g, e, rc, "cuMemsetD8Async", "");
	rc = ASK(g, g->d.stream_sync(g->memory_stream));
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
	rc = use == USE_DIRECT
		     ? ASK(g, g->d.range_handle(&m->fd, m->at, m->bytes, CU_RANGE_DMA_BUF, 0))
		     : ASK(g, g->d.export_handle(&m->fd, m->handle, CU_MEMORY_DESCRIPTOR, 0));
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

static enum shard_status make(struct gpu *g, enum use use, struct gpu_mem *m, struct err *e)
{
	const struct cu_memory_prop prop = prop_of(g, use);
	enum shard_status st;
	cu_result rc;

	rc = ASK(g, g->d.create(&m->handle, m->bytes, &prop, 0));
	if (rc == CU_OUT_OF_MEMORY)
		return too_much(g, m->bytes, e);
	if (rc != CU_SUCCESS)
		return gpu_fail(g, e, rc, "cuMemCreate", "");
	if ((st = map_handle(g, m, e)) != SHARD_OK)
		goto err_handle;
	if ((st = clear(g, m, e)) == SHARD_OK && (st = hand_over(g, use, m, e)) == SHARD_OK)
		return SHARD_OK;
	(void)ASK(g, g->d.stream_sync(g->memory_stream)); /* It may still be cleared. */
	unmap_handle(g, m);
err_handle:
	(void)ASK(g, g->d.release(m->handle));
	return st;
}

struct mapping {
	struct gpu_mem m;
	enum use use;
	enum shard_status st;
	struct err e;
};

static void run_map(struct gpu *g, void *arg)
{
	struct mapping *w = arg;
	const uint64_t bytes = w->m.bytes;

	if ((w->st = check(g, &w->e)) != SHARD_OK)
		return;
	if (g->mapped_bytes > g->limit_bytes || bytes > g->limit_bytes - g->mapped_bytes ||
	    round_up(g, bytes) > g->limit_bytes - g->mapped_bytes) {
		w->st = too_much(g, bytes, &w->e);
		return;
	}
	w->m.bytes = round_up(g, bytes);
	w->st = make(g, w->use, &w->m, &w->e);
	if (w->st == SHARD_OK)
		g->mapped_bytes += w->m.bytes;
}

/* Has it mapped. On failure nothing of it is there, and m->fd is closed if it had one. */
static enum shard_status ask_map(struct gpu *g, void (*run)(struct gpu *, void *),
				 struct mapping *w, struct gpu_mem *m, struct err *e)
{
	enum shard_status st = gpu_ask(g, run, w, sizeof(*w), e);

	*m = (struct gpu_mem){.fd = -1};
	if (st != SHARD_OK)
		return st;
	if (w->st != SHARD_OK) {
		*e = w->e;
		return w->st;
	}
	*m = w->m;
	m->gpu = g;
	gpu_more(g);
	return SHARD_OK;
}

static enum shard_status map_for(struct gpu *g, uint64_t bytes, enum use use, struct gpu_mem *m,
				 struct err *e)
{
	struct mapping w = {.m = {.bytes = bytes, .fd = -1}, .use = use};

	CHECK(g != NULL && bytes > 0);
	return ask_map(g, run_map, &w, m, e);
}

enum shard_status gpu_map(struct gpu *g, uint64_t bytes, bool exports, struct gpu_mem *m,
			  struct err *e)
{
	return map_for(g, bytes, exports ? USE_EXPORTS : USE_HERE, m, e);
}

static enum shard_status attribute(struct gpu *g, int which, int *value, struct err *e)
{
	cu_result rc = ASK(g, g->d.device_attribute(value, which, g->device));

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

enum shard_status gpu_judge_direct(struct gpu *g, struct err *e)
{
	bool flushes = false;
	enum shard_status st = judge_direct(g, &flushes, &g->direct);

	g->flushes = flushes;
	g->direct.status = st;
	if (st == SHARD_OK || st == SHARD_UNSUPPORTED)
		return SHARD_OK;
	*e = g->direct;
	return st;
}

enum shard_status gpu_direct(struct gpu *g, struct err *e)
{
	if (g->direct.status == SHARD_OK)
		return check(g, e);
	*e = g->direct;
	return e->status;
}

enum shard_status gpu_map_direct(struct gpu *g, uint64_t bytes, struct gpu_mem *m, struct err *e)
{
	enum shard_status st = gpu_direct(g, e);

	*m = (struct gpu_mem){.fd = -1};
	return st == SHARD_OK ? map_for(g, bytes, USE_DIRECT, m, e) : st;
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

	if ((rc = ASK(g, g->d.reserve(&at, bytes, 0, 0, 0))) != CU_SUCCESS)
		return gpu_fail(g, e, rc, "cuMemAddressReserve", "");
	rc = ASK(g, g->d.map(at, bytes, 0, m->handle, 0));
	if (rc == CU_SUCCESS) {
		(void)ASK(g, g->d.unmap(at, bytes));
		st = no_memory_of(g, e, "it is larger");
	} else if (driver_fatal(rc)) {
		st = gpu_fail(g, e, rc, "cuMemMap", "");
	}
	(void)ASK(g, g->d.unreserve(at, bytes));
	return st;
}

/* m->fd and m->bytes are set. */
static enum shard_status take(struct gpu *g, struct gpu_mem *m, struct err *e)
{
	struct cu_memory_prop prop = {0};
	enum shard_status st;
	cu_result rc;

	rc = ASK(g, g->d.import_handle(&m->handle, (void *)(intptr_t)m->fd, CU_MEMORY_DESCRIPTOR));
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
	if ((rc = ASK(g, g->d.prop_of(&prop, m->handle))) != CU_SUCCESS)
		st = gpu_fail(g, e, rc, "cuMemGetAllocationPropertiesFromHandle", "");
	else if (prop.location.type != CU_LOCATION_DEVICE || prop.location.id != g->device)
		st = no_memory_of(g, e, "it is of another device");
	else if ((st = check_size(g, m, e)) == SHARD_OK &&
		 (st = map_handle(g, m, e)) == SHARD_BAD_ARG)
		st = no_memory_of(g, e, "it is smaller");
	if (st != SHARD_OK)
		(void)ASK(g, g->d.release(m->handle));
	return st;
}

static void run_again(struct gpu *g, void *arg)
{
	struct mapping *w = arg;

	if ((w->st = check(g, &w->e)) == SHARD_OK && (w->st = take(g, &w->m, &w->e)) == SHARD_OK)
		g->mapped_bytes += w->m.bytes;
}

enum shard_status gpu_again(struct gpu *g, int fd, uint64_t bytes, struct gpu_mem *m, struct err *e)
{
	struct mapping w = {.use = USE_EXPORTS};
	enum shard_status st;
	int copy;

	CHECK(g != NULL && bytes > 0);
	*m = (struct gpu_mem){.fd = -1};
	if (bytes > g->total_bytes)
		return no_memory_of(g, e, "the device has less");
	copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	if (copy < 0)
		return errno == EBADF ? no_memory_of(g, e, "it is closed")
				      : err_sys(e, errno, "a descriptor cannot be copied: %s",
						strerror(errno));
	w.m = (struct gpu_mem){.fd = copy, .bytes = round_up(g, bytes)};
	st = ask_map(g, run_again, &w, m, e);
	if (st != SHARD_OK && !gpu_hangs(g)) /* Otherwise the driver may use it. */
		close(copy);
	return st;
}

static void run_unmap(struct gpu *g, void *arg)
{
	struct gpu_mem *m = arg;

	unmap_handle(g, m);
	(void)gave(g, ASK(g, g->d.release(m->handle)), "cuMemRelease");
}

void gpu_unmap(struct gpu_mem *m)
{
	struct gpu *g = m->gpu;
	struct err e;

	if (g == NULL)
		return;
	if (!gpu_hangs(g)) /* It may fail if the context ended. */
		(void)gpu_ask(g, run_unmap, m, sizeof(*m), &e);
	g->mapped_bytes -= m->bytes;
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

/* What became of the piece that begins there. */
static void pins_set(struct gpu *g, const struct pin *pin, bool pinned)
{
	pthread_mutex_lock(&g->pins_lock);
	for (uint32_t i = 0; i < g->pins_nr; i++) {
		if (g->pins[i].at != pin->at || g->pins[i].of != pin->of)
			continue;
		if (pinned)
			g->pins[i].borrowed = pin->borrowed;
		else
			g->pins[i] = g->pins[--g->pins_nr];
		break;
	}
	pthread_mutex_unlock(&g->pins_lock);
}

struct pinning {
	struct pin pin; /* Of unpinning only .of: NULL means all. */
	cu_result rc;
	bool all; /* The driver has let go of all. */
};

static void run_unpin(struct gpu *g, void *arg)
{
	struct pinning *w = arg;
	struct pin pin;

	w->all = true;
	while (pins_take(g, w->pin.of, &pin))
		if (!pin.borrowed && gave(g, ASK(g, g->d.host_unregister(pin.at)),
					  "cuMemHostUnregister") != CU_SUCCESS)
			w->all = false;
}

static void run_pin(struct gpu *g, void *arg)
{
	struct pinning *w = arg;

	w->rc = ASK(g, g->d.host_register(w->pin.at, w->pin.bytes, CU_REGISTER_PORTABLE));
}

/* It is in the table before the driver is asked: if that hangs, the memory stays as it is. */
static enum shard_status pin_piece(struct gpu *g, struct pin pin, struct err *e)
{
	struct pinning w = {.pin = pin};
	enum shard_status st;

	if (!pins_add(g, pin))
		return err_sys(e, ENOMEM, "no memory for a table of pinned memory");
	if ((st = gpu_ask(g, run_pin, &w, sizeof(w), e)) != SHARD_OK)
		return st;
	pin.borrowed = w.rc == CU_ALREADY_REGISTERED;
	pins_set(g, &pin, w.rc == CU_SUCCESS || pin.borrowed || gpu_hangs(g));
	if (w.rc == CU_SUCCESS || pin.borrowed)
		return SHARD_OK;
	return gpu_fail(g, e, w.rc, "cuMemHostRegister", "of memory of a model");
}

enum shard_status gpu_pin(struct gpu *g, void *at, uint64_t bytes, struct err *e)
{
	enum shard_status st;
	uint64_t part;

	CHECK(g != NULL && at != NULL && bytes > 0);
	st = check(g, e);
	for (uint64_t done = 0; done < bytes && st == SHARD_OK; done += part) {
		struct pin pin = {.at = (uint8_t *)at + done, .of = at};

		part = bytes - done < PIN_BYTES ? bytes - done : PIN_BYTES;
		pin.bytes = part;
		st = pin_piece(g, pin, e);
	}
	if (st != SHARD_OK && !gpu_hangs(g))
		(void)gpu_unpin(g, at);
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
	struct pinning w = {.pin = {.of = at}};
	bool has = at != NULL && has_pinned(g, at);
	struct err e;

	if (at == NULL)
		return true;
	if (gpu_hangs(g) || gpu_ask(g, run_unpin, &w, sizeof(w), &e) != SHARD_OK)
		return !has;
	return w.all;
}

void gpu_unpin_all(struct gpu *g)
{
	struct pinning w = {.all = true};
	struct err e;

	(void)gpu_ask(g, run_unpin, &w, sizeof(w), &e);
}
