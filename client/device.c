// SPDX-License-Identifier: Apache-2.0
/* The image in the memory of the trainer's GPU: shard_device_region(). libshard-cuda calls it after
 * each join. The daemon answers with two descriptors when all of the image is there. The memory of
 * the GPU is the caller's to map. The versions of its chunks are mapped here, and from then on
 * everything that waits for a chunk waits until it is there, which is never earlier than in the
 * image of the node. The next join goes back to that one. It fails where the daemon says that it
 * has no such image, and over TCP. */
#include "image.h"

#include <stdint.h>
#include <string.h>
#include <unistd.h>

enum { UUID_BYTES = 16 };

static enum shard_status device_check(struct shard_model *m, enum shard_kind kind,
				      const uint8_t *uuid, const int *fd, const size_t *bytes)
{
	if (uuid == NULL || fd == NULL || bytes == NULL || kind != SHARD_IMAGE)
		return text_fail(SHARD_BAD_ARG, kind != SHARD_IMAGE
							? "shard_device_region: choose SHARD_IMAGE"
							: "shard_device_region: a pointer is NULL");
	if (m->rolled_back || m->presence.is == PRESENCE_AWAY)
		return handle_changed(m);
	if (m->client->tcp)
		return text_fail(SHARD_UNSUPPORTED,
				 "no memory of a GPU comes over TCP: connect to the unix socket of "
				 "shardd on this node");
	if (m->client->wire_minor < WIRE_DEVICE)
		return text_fail(SHARD_UNSUPPORTED,
				 "the release of shardd at %s does not know of images on GPUs: "
				 "upgrade it",
				 m->client->address);
	return SHARD_OK;
}

static enum shard_status device_take(struct shard_model *m, struct request *r, int *fd,
				     size_t *bytes)
{
	Shard__DeviceMemory *d = shard__device_memory__unpack(NULL, r->body_bytes, r->body);
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
	if (d != NULL)
		shard__device_memory__free_unpacked(d, NULL);
	return rc == SHARD_OK ? rc : text_fail_err(&e);
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
		r = request_new(m->client, OP_DEVICE, 0);
		rc = r ? request_send(r, handle_head(m), &q.base, &w) : SHARD_SYSTEM;
	}
	if (r != NULL && rc == SHARD_OK && (rc = request_wait(r, &w)) == SHARD_TIMEOUT)
		text_fail(rc, "the image of \"%s\" on a GPU waited %.1f s for shardd at %s",
			  m->spec.name, wait_seconds(&w), m->client->address);
	else if (r != NULL && rc == SHARD_OK)
		rc = device_take(m, r, fd, bytes);
	request_free(r);
	client_leave(m->client);
	return rc;
}
