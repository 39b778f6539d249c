// SPDX-License-Identifier: Apache-2.0
/* Memory of the driver library for tests: that of the host, which is registered or pinned, and that
 * of devices. What cuMemCreate() makes is a memfd with the number of the device in its name, and
 * its descriptor is a copy, so that it has the lifetime that the driver documents. Where a range is
 * mapped, nobody can read it; streams have a second mapping. Errors of a caller are the driver's
 * codes, and what would be undefined there ends the process. */
#include "tests/cuda/fake_impl.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define GRANULARITY ((size_t)2 << 20)
#define DIRT_BYTES  ((size_t)1 << 20)

struct prop { /* CUmemAllocationProp */
	int type, handle_types, location_type, device;
	void *windows;
	unsigned char flags[8];
};

struct access { /* CUmemAccessDesc */
	int location_type, device, flags;
};

/* What a handle of cuMemCreate() stands for. It is there as long as a handle or a mapping is. */
static struct allocation {
	struct allocation *next;
	int fd, device;
	size_t bytes;
	bool exports, direct;
	uint32_t handles, maps;
} * allocations;

static struct range { /* Of cuMemAddressReserve(). */
	struct range *next;
	char *base, *whole;
	size_t bytes, whole_bytes;
} * ranges;

/* --- host memory --- */

CALL(cuMemHostRegister_v2, void *p, size_t bytes, unsigned flags)
{
	int how;

	ENTER(ctx);
	if (p == NULL || bytes == 0 || (flags & ~0xfu))
		return fake_leave(INVALID_VALUE);
	if (fake_overlaps(p, bytes))
		return fake_leave(ALREADY_REGISTERED);
	how = fake_mapped(p, bytes);
	if ((flags & 8) && !fake.read_only)
		return fake_leave(NOT_SUPPORTED);
	if (how == 0 || (how == 1 && !(flags & 8)))
		return fake_leave(INVALID_VALUE);
	fake_add(flags & 8 ? REGISTERED_READ_ONLY : REGISTERED, p, p, bytes)->device = ctx->device;
	return fake_leave(0);
}

CALL(cuMemHostUnregister, void *p)
{
	struct memory *m;

	ENTER(ctx);
	(void)ctx;
	m = fake_memory(p);
	if (m == NULL || m->base != p || (m->kind != REGISTERED && m->kind != REGISTERED_READ_ONLY))
		return fake_leave(NOT_REGISTERED);
	if (fake_in_use(m))
		fake_undefined("memory is unregistered while it is copied");
	fake_remove(m);
	return fake_leave(0);
}

CALL(cuMemHostAlloc, void **p, size_t bytes, unsigned flags)
{
	ENTER(ctx);
	(void)flags;
	*p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (*p == MAP_FAILED)
		return fake_leave(OUT_OF_MEMORY);
	fake_add(PINNED, *p, *p, bytes)->device = ctx->device;
	return fake_leave(0);
}

CALL(cuMemFreeHost, void *p)
{
	struct memory *m;

	ENTER(ctx);
	(void)ctx;
	m = fake_memory(p);
	if (m == NULL || m->base != p || m->kind != PINNED)
		return fake_leave(INVALID_VALUE);
	if (fake_in_use(m))
		fake_undefined("pinned memory is freed while it is copied");
	munmap(m->base, m->bytes);
	fake_remove(m);
	return fake_leave(0);
}

/* --- device memory --- */

uint64_t fake_used(int device)
{
	uint64_t bytes = 0;

	for (struct memory *m = fake.memories; m != NULL; m = m->next)
		bytes += m->kind == DEVICE && m->device == device && m->of == NULL ? m->bytes : 0;
	for (struct allocation *a = allocations; a != NULL; a = a->next)
		bytes += a->device == device ? a->bytes : 0;
	return bytes;
}

void fake_memory_counts(struct fake_counts *counts)
{
	for (struct allocation *a = allocations; a != NULL; a = a->next)
		counts->handles += a->handles;
	for (struct range *r = ranges; r != NULL; r = r->next)
		counts->ranges++;
	for (struct memory *m = fake.memories; m != NULL; m = m->next) {
		counts->mapped += m->of != NULL;
		counts->device += m->kind == DEVICE && m->of == NULL;
	}
}

static void allocation_end(struct allocation *a);
static void forget_range(struct range *r);
static void forget_mapping(struct memory *m);

void fake_memory_forget(int device)
{
	for (struct memory *m = fake.memories, *next; m != NULL; m = next) {
		next = m->next;
		if (m->device != device)
			continue;
		if (m->of != NULL) {
			forget_mapping(m);
			continue;
		}
		if (m->kind == PINNED || m->kind == DEVICE)
			munmap(m->base, m->bytes);
		if (m->kind == DEVICE)
			munmap(m->inside, m->bytes);
		fake_remove(m);
	}
	for (struct range *r = ranges, *next; r != NULL; r = next) {
		next = r->next;
		if (!fake_overlaps(r->base, r->bytes))
			forget_range(r);
	}
	for (struct allocation *a = allocations, *next; a != NULL; a = next) {
		next = a->next;
		if (a->device != device)
			continue;
		a->handles = 0;
		allocation_end(a);
	}
}

CALL(cuMemGetInfo_v2, size_t *free_bytes, size_t *total)
{
	uint64_t used;

	ENTER(ctx);
	used = fake_used(ctx->device);
	*total = fake.memory_bytes;
	*free_bytes = used < fake.memory_bytes ? fake.memory_bytes - used : 0;
	return fake_leave(0);
}

/* The mapping for the streams. */
static char *inside_of(int fd, size_t bytes)
{
	char *inside = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	return inside == MAP_FAILED ? NULL : inside;
}

CALL(cuMemAlloc_v2, ptr_t *p, size_t bytes)
{
	char *outside, *inside;
	struct memory *m;
	int fd;

	ENTER(ctx);
	bytes = (bytes + 511) / 512 * 512;
	if (bytes == 0)
		return fake_leave(INVALID_VALUE);
	if (fake_used(ctx->device) + bytes > fake.memory_bytes)
		return fake_leave(OUT_OF_MEMORY);
	fd = memfd_create("device", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, (off_t)((bytes + 4095) / 4096 * 4096)) != 0)
		return fake_leave(OUT_OF_MEMORY);
	outside = mmap(NULL, bytes, PROT_NONE, MAP_SHARED, fd, 0);
	inside = inside_of(fd, bytes);
	close(fd);
	if (outside == MAP_FAILED || inside == NULL)
		return fake_leave(OUT_OF_MEMORY);
	m = fake_add(DEVICE, outside, inside, bytes);
	m->device = ctx->device;
	m->access[ctx->device] = READS | WRITES;
	*p = (ptr_t)(uintptr_t)outside;
	return fake_leave(0);
}

CALL(cuMemFree_v2, ptr_t p)
{
	struct memory *m;

	ENTER(ctx);
	(void)ctx;
	m = fake_memory((void *)(uintptr_t)p);
	if (m == NULL || m->kind != DEVICE || m->of != NULL || (ptr_t)(uintptr_t)m->base != p)
		return fake_leave(INVALID_VALUE);
	while (fake_in_use(m)) /* cuMemFree waits for the device. */
		fake_wait();
	munmap(m->base, m->bytes);
	munmap(m->inside, m->bytes);
	fake_remove(m);
	return fake_leave(0);
}

/* --- handles --- */

static bool prop_ok(const struct prop *p)
{
	return p->type == 1 && (p->handle_types == 0 || p->handle_types == 1) &&
	       p->location_type == 1 && p->windows == NULL;
}

static struct allocation *allocation_of(uint64_t handle)
{
	for (struct allocation *a = allocations; a != NULL; a = a->next)
		if ((uint64_t)(uintptr_t)a == handle && a->handles > 0)
			return a;
	return NULL;
}

static void allocation_end(struct allocation *a)
{
	struct allocation **at = &allocations;

	if (a->handles > 0 || a->maps > 0)
		return;
	while (*at != a)
		at = &(*at)->next;
	*at = a->next;
	close(a->fd);
	free(a);
}

static struct allocation *allocation_new(int fd, int device, size_t bytes, bool exports)
{
	struct allocation *a = calloc(1, sizeof(*a));

	if (a == NULL)
		abort();
	*a = (struct allocation){.next = allocations,
				 .fd = fd,
				 .device = device,
				 .bytes = bytes,
				 .exports = exports,
				 .handles = 1};
	allocations = a;
	return a;
}

/* What was there before: nobody may rely on zeros. */
static void dirty(int fd, size_t bytes)
{
	size_t part = bytes < DIRT_BYTES ? bytes : DIRT_BYTES;
	char *dirt = malloc(part);

	if (dirt == NULL)
		abort();
	memset(dirt, 0xa5, part);
	if (pwrite(fd, dirt, part, 0) < 0 || pwrite(fd, dirt, part, (off_t)(bytes - part)) < 0)
		abort();
	free(dirt);
}

CALL(cuMemGetAllocationGranularity, size_t *bytes, const struct prop *prop, int option)
{
	ENTER_ANY();
	if (!prop_ok(prop) || option < 0 || option > 1)
		return fake_leave(INVALID_VALUE);
	if (prop->device < 0 || prop->device >= fake.devices)
		return fake_leave(INVALID_DEVICE);
	*bytes = GRANULARITY;
	return fake_leave(0);
}

CALL(cuMemCreate, uint64_t *handle, size_t bytes, const struct prop *prop, unsigned long long flags)
{
	struct allocation *a;
	char name[32];
	int fd;

	ENTER_ANY();
	if (!prop_ok(prop) || flags != 0 || bytes == 0 || bytes % GRANULARITY != 0)
		return fake_leave(INVALID_VALUE);
	if (prop->device < 0 || prop->device >= fake.devices)
		return fake_leave(INVALID_DEVICE);
	if (fake_used(prop->device) + bytes > fake.memory_bytes)
		return fake_leave(OUT_OF_MEMORY);
	snprintf(name, sizeof(name), "fake-cuda-%d", prop->device);
	fd = memfd_create(name, MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0)
		return fake_leave(OUT_OF_MEMORY);
	dirty(fd, bytes);
	a = allocation_new(fd, prop->device, bytes, prop->handle_types == 1);
	a->direct = prop->flags[1] != 0;
	*handle = (uint64_t)(uintptr_t)a;
	return fake_leave(0);
}

CALL(cuMemRelease, uint64_t handle)
{
	struct allocation *a;

	ENTER_ANY();
	a = allocation_of(handle);
	if (a == NULL)
		return fake_leave(INVALID_VALUE);
	a->handles--;
	allocation_end(a);
	return fake_leave(0);
}

CALL(cuMemGetAllocationPropertiesFromHandle, struct prop *prop, uint64_t handle)
{
	struct allocation *a;

	ENTER_ANY();
	a = allocation_of(handle);
	if (a == NULL)
		return fake_leave(INVALID_VALUE);
	*prop = (struct prop){1, a->exports, 1, a->device, NULL, {0, a->direct}};
	return fake_leave(0);
}

CALL(cuMemExportToShareableHandle, int *fd, uint64_t handle, int type, unsigned long long flags)
{
	struct allocation *a;

	ENTER_ANY();
	a = allocation_of(handle);
	if (a == NULL || !a->exports || type != 1 || flags != 0)
		return fake_leave(INVALID_VALUE);
	*fd = fcntl(a->fd, F_DUPFD, 0); /* The driver does not say that exec closes it. */
	return fake_leave(*fd < 0 ? OUT_OF_MEMORY : 0);
}

CALL(cuMemImportFromShareableHandle, uint64_t *handle, void *os_handle, int type)
{
	int from = (int)(intptr_t)os_handle, device = -1, fd;
	char path[64], name[64] = "";
	struct stat st;

	ENTER_ANY();
	snprintf(path, sizeof(path), "/proc/self/fd/%d", from);
	if (type != 1 || readlink(path, name, sizeof(name) - 1) < 0 ||
	    sscanf(name, "/memfd:fake-cuda-%d", &device) != 1 || fstat(from, &st) != 0)
		return fake_leave(INVALID_VALUE);
	if (device < 0 || device >= fake.devices)
		return fake_leave(INVALID_DEVICE);
	fd = fcntl(from, F_DUPFD_CLOEXEC, 0);
	if (fd < 0)
		return fake_leave(OUT_OF_MEMORY);
	*handle = (uint64_t)(uintptr_t)allocation_new(fd, device, (size_t)st.st_size, true);
	return fake_leave(0);
}

/* --- addresses --- */

static struct range *range_of(ptr_t at, size_t bytes)
{
	const char *p = (const char *)(uintptr_t)at;

	for (struct range *r = ranges; r != NULL; r = r->next)
		if (p >= r->base && p < r->base + r->bytes &&
		    bytes <= (size_t)(r->base + r->bytes - p))
			return r;
	return NULL;
}

CALL(cuMemAddressReserve, ptr_t *at, size_t bytes, size_t alignment, ptr_t where,
     unsigned long long flags)
{
	struct range *r;

	(void)where;
	ENTER_ANY();
	if (bytes == 0 || bytes % GRANULARITY != 0 || flags != 0 ||
	    (alignment & (alignment - 1)) != 0 || alignment > GRANULARITY)
		return fake_leave(INVALID_VALUE);
	r = calloc(1, sizeof(*r));
	if (r == NULL)
		abort();
	r->bytes = bytes;
	r->whole_bytes = bytes + GRANULARITY;
	r->whole = mmap(NULL, r->whole_bytes, PROT_NONE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (r->whole == MAP_FAILED) {
		free(r);
		return fake_leave(OUT_OF_MEMORY);
	}
	r->base = r->whole + (GRANULARITY - (uintptr_t)r->whole % GRANULARITY) % GRANULARITY;
	r->next = ranges;
	ranges = r;
	*at = (ptr_t)(uintptr_t)r->base;
	return fake_leave(0);
}

static void forget_range(struct range *r)
{
	struct range **link = &ranges;

	while (*link != r)
		link = &(*link)->next;
	*link = r->next;
	munmap(r->whole, r->whole_bytes);
	free(r);
}

CALL(cuMemAddressFree, ptr_t at, size_t bytes)
{
	struct range *r;

	ENTER_ANY();
	r = range_of(at, bytes);
	if (r == NULL || (ptr_t)(uintptr_t)r->base != at || r->bytes != bytes)
		return fake_leave(INVALID_VALUE);
	if (fake_overlaps(r->base, r->bytes))
		fake_undefined("a range of addresses is freed in which memory is mapped");
	forget_range(r);
	return fake_leave(0);
}

CALL(cuMemMap, ptr_t at, size_t bytes, size_t offset, uint64_t handle, unsigned long long flags)
{
	char *base = (char *)(uintptr_t)at, *inside;
	struct allocation *a;
	struct memory *m;

	ENTER_ANY();
	a = allocation_of(handle);
	if (a == NULL || range_of(at, bytes) == NULL || flags != 0 || offset != 0 || bytes == 0 ||
	    bytes % GRANULARITY != 0 || bytes > a->bytes || fake_overlaps(base, bytes))
		return fake_leave(INVALID_VALUE);
	inside = inside_of(a->fd, bytes);
	if (inside == NULL ||
	    mmap(base, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, a->fd, 0) == MAP_FAILED)
		return fake_leave(OUT_OF_MEMORY);
	m = fake_add(DEVICE, base, inside, bytes);
	m->device = a->device;
	m->of = a;
	a->maps++;
	return fake_leave(0);
}

static struct memory *mapping_of(ptr_t at, size_t bytes)
{
	struct memory *m = fake_memory((const void *)(uintptr_t)at);

	return m != NULL && m->of != NULL && (ptr_t)(uintptr_t)m->base == at && m->bytes == bytes
		       ? m
		       : NULL;
}

static void forget_mapping(struct memory *m)
{
	struct allocation *a = m->of;

	fake_dma_over(m->inside, m->bytes);
	if (mmap(m->base, m->bytes, PROT_NONE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
		abort();
	munmap(m->inside, m->bytes);
	fake_remove(m);
	a->maps--;
	allocation_end(a);
}

bool fake_direct(const struct memory *m)
{
	return m->of != NULL && m->of->direct;
}

CALL(cuMemUnmap, ptr_t at, size_t bytes)
{
	struct memory *m;

	ENTER_ANY();
	m = mapping_of(at, bytes);
	if (m == NULL)
		return fake_leave(INVALID_VALUE);
	if (fake_in_use(m))
		fake_undefined("device memory is unmapped while it is used");
	forget_mapping(m);
	return fake_leave(0);
}

CALL(cuMemSetAccess, ptr_t at, size_t bytes, const struct access *access, size_t nr)
{
	struct memory *m;

	ENTER_ANY();
	m = mapping_of(at, bytes);
	if (m == NULL || nr == 0)
		return fake_leave(INVALID_VALUE);
	for (size_t i = 0; i < nr; i++) {
		if (access[i].location_type != 1 || access[i].device < 0 ||
		    access[i].device >= fake.devices)
			return fake_leave(INVALID_DEVICE);
		if (access[i].flags != 0 && access[i].flags != 1 && access[i].flags != 3)
			return fake_leave(INVALID_VALUE);
		m->access[access[i].device] = (unsigned char)access[i].flags;
	}
	return fake_leave(0);
}
