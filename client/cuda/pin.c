// SPDX-License-Identifier: Apache-2.0
/* Registration of host memory, and the ring of pinned buffers. cuda.c registers when a handle is
 * opened, and helper.c makes the ring when it is needed first. Memory is registered in pieces,
 * because one call for 512 GiB or more fails. A copy never crosses the border of two pieces. */
#include "cuda/pin.h"

#include "base/check.h"

#include <stdio.h>
#include <string.h>

enum shard_status pin_register(const struct driver *d, struct pin *p, size_t piece, unsigned flags,
			       const char *what, struct err *e)
{
	enum shard_status rc;
	char words[96];
	size_t n;

	CHECK(p->pinned == 0 && piece > 0);
	p->piece = piece;
	for (; p->pinned < p->bytes; p->pinned += n) {
		cu_result cu;

		n = p->bytes - p->pinned < piece ? p->bytes - p->pinned : piece;
		cu = d->host_register(p->base + p->pinned, n, flags);
		if (cu == CU_SUCCESS)
			continue;
		snprintf(words, sizeof(words), "%s (%zu bytes at %zu)", what, n, p->pinned);
		rc = driver_fail(d, e, cu, "cuMemHostRegister", words);
		(void)pin_unregister(d, p, NULL);
		return rc;
	}
	return SHARD_OK;
}

enum shard_status pin_unregister(const struct driver *d, struct pin *p, struct err *e)
{
	enum shard_status rc = SHARD_OK;

	for (size_t at = 0; at < p->pinned; at += p->piece) {
		cu_result cu = d->host_unregister(p->base + at);

		if (cu != CU_SUCCESS && rc == SHARD_OK)
			rc = driver_fail(d, e, cu, "cuMemHostUnregister", "");
	}
	p->pinned = 0;
	return rc;
}

bool pin_has(const struct pin *p, const void *at, size_t bytes)
{
	size_t from = (size_t)((const char *)at - p->base);

	return (const char *)at >= p->base && from <= p->pinned && bytes <= p->pinned - from;
}

size_t pin_part(const struct pin *p, const void *at, size_t bytes)
{
	size_t left = p->piece - (size_t)((const char *)at - p->base) % p->piece;

	CHECK(pin_has(p, at, bytes));
	return bytes < left ? bytes : left;
}

enum shard_status ring_make(const struct driver *d, struct ring *r, struct err *e)
{
	enum shard_status rc = SHARD_OK;
	cu_result cu;

	for (int i = 0; i < RING_SLOTS && rc == SHARD_OK; i++) {
		if (r->slot[i] == NULL &&
		    (cu = d->host_alloc(&r->slot[i], r->bytes, CU_REGISTER_PORTABLE)) !=
			    CU_SUCCESS) {
			r->slot[i] = NULL;
			rc = driver_fail(d, e, cu, "cuMemHostAlloc", "of a buffer for copies");
		} else if (r->event[i] == NULL &&
			   (cu = d->event_create(&r->event[i], CU_EVENT_NO_TIMING)) != CU_SUCCESS) {
			r->event[i] = NULL;
			rc = driver_fail(d, e, cu, "cuEventCreate", "");
		}
	}
	if (rc != SHARD_OK)
		(void)ring_free(d, r, NULL);
	return rc;
}

enum shard_status ring_free(const struct driver *d, struct ring *r, struct err *e)
{
	enum shard_status rc = SHARD_OK;
	cu_result cu;

	for (int i = 0; i < RING_SLOTS; i++) {
		if (r->event[i] != NULL && (cu = d->event_destroy(r->event[i])) != CU_SUCCESS &&
		    rc == SHARD_OK)
			rc = driver_fail(d, e, cu, "cuEventDestroy", "");
		if (r->slot[i] != NULL && !r->lent &&
		    (cu = d->host_free(r->slot[i])) != CU_SUCCESS && rc == SHARD_OK)
			rc = driver_fail(d, e, cu, "cuMemFreeHost", "");
		r->event[i] = NULL;
		r->slot[i] = NULL;
		r->busy[i] = false;
	}
	return rc;
}
