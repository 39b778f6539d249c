// SPDX-License-Identifier: Apache-2.0
/* Network devices that write memory of devices, of the driver library for tests. A dma-buf is a
 * memfd without bytes, whose name has a number. tests/rdma/fake_verbs.c finds the memory by that.
 * Where devices do not order such writes (attribute 118), they lie beside the memory until a flush,
 * so that who reads before it gets the old bytes. Writes to memory that was unmapped end the
 * process. */
#include "tests/cuda/fake_cuda.h"
#include "tests/cuda/fake_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { DMA_BUF = 1, OWNER = 100, ALL_DEVICES = 200, FLUSHES_HOST = 1, PAGE = 4096 };

struct written { /* And not flushed. */
	struct written *next;
	char *to;
	size_t bytes;
	char data[];
};

static struct dma {
	struct dma *next;
	uint32_t name;
	int device;
	char *inside; /* NULL: it was unmapped. */
	size_t bytes;
	struct written *first, **end;
} * dmas;
static uint32_t names, flushes;

CALL(cuMemGetHandleForAddressRange, int *fd, ptr_t at, size_t bytes, int type,
     unsigned long long flags)
{
	struct memory *m;
	struct dma *d;
	char name[32];

	ENTER(ctx);
	m = fake_memory((const void *)(uintptr_t)at);
	if (type != DMA_BUF || flags != 0 || bytes == 0 || bytes % PAGE != 0 || at % PAGE != 0 ||
	    m == NULL || m->kind != DEVICE || m->device != ctx->device || !fake_direct(m) ||
	    bytes > m->bytes - (size_t)(at - (ptr_t)(uintptr_t)m->base))
		return fake_leave(INVALID_VALUE);
	if (!fake_attribute(124))
		return fake_leave(NOT_SUPPORTED);
	d = calloc(1, sizeof(*d));
	if (d == NULL)
		abort();
	*d = (struct dma){.next = dmas,
			  .name = ++names,
			  .device = m->device,
			  .inside = m->inside + (at - (ptr_t)(uintptr_t)m->base),
			  .bytes = bytes};
	d->end = &d->first;
	dmas = d;
	snprintf(name, sizeof(name), "fake-dmabuf-%u", d->name);
	*fd = memfd_create(name, 0);
	return fake_leave(*fd < 0 ? OUT_OF_MEMORY : 0);
}

/* What is written and not flushed gets there, or is forgotten. */
static void empty(struct dma *d, bool lands)
{
	struct written *w;

	while ((w = d->first) != NULL) {
		d->first = w->next;
		if (lands)
			memcpy(w->to, w->data, w->bytes);
		free(w);
	}
	d->end = &d->first;
}

CALL(cuFlushGPUDirectRDMAWrites, int target, int scope)
{
	ENTER(ctx);
	if (target != 0 || (scope != OWNER && scope != ALL_DEVICES))
		return fake_leave(INVALID_VALUE);
	if (!(fake_attribute(117) & FLUSHES_HOST))
		return fake_leave(NOT_SUPPORTED);
	flushes++;
	for (struct dma *d = dmas; d != NULL; d = d->next)
		if (d->device == ctx->device)
			empty(d, true);
	return fake_leave(0);
}

void fake_dma_over(const char *inside, size_t bytes)
{
	for (struct dma *d = dmas; d != NULL; d = d->next)
		if (d->inside >= inside && d->inside < inside + bytes) {
			empty(d, false);
			d->inside = NULL;
		}
}

#define X(type, name, arguments) __attribute__((visibility("default"))) type name arguments;
FAKE_CUDA_CALLS(X)
#undef X

int fake_cuda_dma(uint32_t name, uint64_t offset, const void *from, size_t bytes)
{
	struct written *w;
	struct dma *d;
	int found;

	pthread_mutex_lock(&fake.lock);
	for (d = dmas; d != NULL && d->name != name;)
		d = d->next;
	found = d != NULL && offset <= d->bytes && bytes <= d->bytes - offset;
	if (found && d->inside == NULL)
		fake_undefined("a network device writes memory that was unmapped");
	if (found && fake_attribute(118) >= OWNER) {
		memcpy(d->inside + offset, from, bytes);
	} else if (found) {
		w = malloc(sizeof(*w) + bytes);
		if (w == NULL)
			abort();
		*w = (struct written){.to = d->inside + offset, .bytes = bytes};
		memcpy(w->data, from, bytes);
		*d->end = w;
		d->end = &w->next;
	}
	pthread_mutex_unlock(&fake.lock);
	return found;
}

uint32_t fake_cuda_flushes(void)
{
	uint32_t n;

	pthread_mutex_lock(&fake.lock);
	n = flushes;
	pthread_mutex_unlock(&fake.lock);
	return n;
}
