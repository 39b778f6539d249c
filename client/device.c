// SPDX-License-Identifier: Apache-2.0
/* Memory of the daemon on the trainer's GPU: shard_device_region(). libshard-cuda calls it after
 * each join. The daemon answers with descriptors: that of the image when all of it is there, and
 * that of memory for gradients, into which SHARD_DEVICE pushes. The memory of the GPU is the
 * caller's to map. The versions of the image's chunks are mapped here, and from then on everything
 * that waits for a chunk waits until it is there, which is never earlier than in the image of the
 * node. The next join goes back to that one, and to the arena. It fails where the daemon says that
 * it has no such memory, and over TCP. */
#include "device.h"

#include "image.h"

#include "wire/dtype.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { UUID_BYTES = 16 };

static enum shard_status device_check(struct shard_model *m, enum shard_kind kind,
				      const uint8_t *uuid, const int *fd, const size_t *bytes)
{
	bool known = kind == SHARD_IMAGE || kind == SHARD_GRAD;

	if (uuid == NULL || fd == NULL || bytes == NULL || !known)
		return text_fail(SHARD_BAD_ARG,
				 known ? "shard_device_region: a pointer is NULL"
				       : "shard_device_region: choose SHARD_IMAGE or SHARD_GRAD");
	if (m->rolled_back || m->presence.is == PRESENCE_AWAY)
		return handle_changed(m);
	if (m->client->tcp)
		return text_fail(SHARD_UNSUPPORTED,
				 "no memory of a GPU comes over TCP: connect to the unix socket of "
				 "shardd on this node");
	if (m->client->wire_minor < (kind == SHARD_IMAGE ? WIRE_DEVICE : WIRE_GRADS))
		return text_fail(SHARD_UNSUPPORTED,
				 "the release of shardd at %s does not know of %s on GPUs: upgrade "
				 "it",
				 m->client->address, kind == SHARD_IMAGE ? "images" : "gradients");
	return SHARD_OK;
}

static enum shard_status grads_take(struct shard_model *m, struct request *r,
				    const Shard__DeviceMemory *d, int *fd, size_t *bytes)
{
	if (d == NULL || r->fds_nr != 1 ||
	    d->grad_bytes < m->layout->elems * dtype_bytes(m->spec.grad))
		return text_fail(SHARD_PROTOCOL,
				 "shardd at %s answered DEVICE with %d descriptors, and with what "
				 "cannot be memory for gradients",
				 m->client->address, r->fds_nr);
	if (m->device == NULL)
		m->device = malloc(m->layout->tensors_nr * sizeof(*m->device));
	if (m->device == NULL)
		return text_fail(SHARD_SYSTEM, "out of memory for pushes from a GPU");
	*fd = r->fds[0]; /* It is handed over. */
	*bytes = d->grad_bytes;
	r->fds_nr = 0;
	return SHARD_OK;
}

static enum shard_status image_take(struct shard_model *m, struct request *r,
				    const Shard__DeviceMemory *d, int *fd, size_t *bytes)
{
	size_t need = m->layout->chunks_nr * sizeof(*m->version);
	enum shard_status rc = SHARD_OK;
	struct shm versions;
	struct err e;

	if (d == NULL || r->fds_nr != 2 || d->image_bytes < m->layout->image_bytes ||
	    d->versions_bytes < need)
		rc = err_set(&e, SHARD_PROTOCOL,
			     "shardd at %s answered DEVICE with %d descriptors, and with what "
			     "cannot be an image",
			     m->client->address, r->fds_nr);
	if (rc == SHARD_OK) {
		int of = r->fds[1]; /* It is taken over. */

		r->fds_nr = 1;
		rc = shm_map(&versions, of, d->versions_bytes, 0, &e);
	}
	if (rc == SHARD_OK) {
		*fd = r->fds[0];
		*bytes = d->image_bytes;
		r->fds_nr = 0;
		shm_unmap(&m->device_versions);
		m->device_versions = versions;
		m->version = versions.base;
	}
	return rc == SHARD_OK ? rc : text_fail_err(&e);
}

static enum shard_status device_take(struct shard_model *m, enum shard_kind kind, struct request *r,
				     int *fd, size_t *bytes)
{
	Shard__DeviceMemory *d = shard__device_memory__unpack(NULL, r->body_bytes, r->body);
	enum shard_status rc = kind == SHARD_IMAGE ? image_take(m, r, d, fd, bytes)
						   : grads_take(m, r, d, fd, bytes);

	if (d != NULL)
		shard__device_memory__free_unpacked(d, NULL);
	return rc;
}

enum shard_status shard_device_region(shard_model *m, enum shard_kind kind, const uint8_t *uuid,
				      int *fd, size_t *bytes)
{
	enum shard_status rc = handle_enter_joined(m, "shard_device_region()");
	Shard__Device q = SHARD__DEVICE__INIT;
	struct request *r = NULL;
	struct wait w;

	if (rc != SHARD_OK)
		return rc;
	wait_begin(m->client, &w, m->timeout_ms);
	if ((rc = device_check(m, kind, uuid, fd, bytes)) == SHARD_OK) {
		q.uuid.data = (uint8_t *)(uintptr_t)uuid;
		q.uuid.len = UUID_BYTES;
		q.kind = kind == SHARD_IMAGE ? WIRE_DEVICE_IMAGE : WIRE_DEVICE_GRADS;
		r = request_new(m->client, OP_DEVICE, 0);
		rc = r ? request_send(r, handle_head(m), &q.base, &w) : SHARD_SYSTEM;
	}
	if (r != NULL && rc == SHARD_OK && (rc = request_wait(r, &w)) == SHARD_TIMEOUT)
		text_fail(rc, "memory of \"%s\" on a GPU waited %.1f s for shardd at %s",
			  m->spec.name, wait_seconds(&w), m->client->address);
	else if (r != NULL && rc == SHARD_OK)
		rc = device_take(m, kind, r, fd, bytes);
	request_free(r);
	client_leave(m->client);
	return rc;
}

/* --- pushes --- */

enum shard_status device_one_place(const struct shard_model *m, uint32_t tensor, enum lies lies)
{
	if (m->cover.tensors[tensor].lies == LIES_NOWHERE || m->cover.tensors[tensor].lies == lies)
		return SHARD_OK;
	return text_fail(SHARD_BAD_ARG,
			 "push of \"%.200s\", of which other elements were pushed %s in this step: "
			 "push all of a tensor with it, or none",
			 m->layout->tensor[tensor].name,
			 lies == LIES_HERE ? "with SHARD_DEVICE" : "without SHARD_DEVICE");
}

enum shard_status device_push_ok(const struct shard_model *m, uint32_t tensor, const void *src,
				 uint32_t flags)
{
	const char *name = m->layout->tensor[tensor].name;

	if (flags != SHARD_DEVICE || src != NULL)
		return text_fail(
			SHARD_BAD_ARG,
			"push of \"%.200s\" with SHARD_DEVICE and %s: the gradient lies in "
			"memory of the GPU, as it is",
			name, src != NULL ? "a src" : "other flags");
	if (m->adds.micro_steps > 1)
		return text_fail(
			SHARD_BAD_ARG,
			"push of \"%.200s\" with SHARD_DEVICE in a step of %u micro-steps: "
			"add up on the GPU",
			name, m->adds.micro_steps);
	if (m->device == NULL)
		return text_fail(SHARD_BAD_STATE,
				 "push of \"%.200s\" with SHARD_DEVICE: call shard_device_region() "
				 "first, after each join",
				 name);
	return SHARD_OK;
}
