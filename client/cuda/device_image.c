// SPDX-License-Identifier: Apache-2.0
/* The image that shardd keeps in the memory of the device. shard_cuda_open() and, after the model
 * was joined again, shard_cuda_begin() ask for it and map it read-only, and pulls copy from it.
 * Where there is none, the sentence of shardd says why, and pulls copy from the host. */
#include "cuda/cuda.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { UUID_BYTES = 16 };

static void note(struct shard_cuda *c, const char *why)
{
	char before[200];

	snprintf(before, sizeof(before), "%.190s", c->why.text);
	(void)err_set(&c->why, SHARD_OK, "%s%sthere is no image on the device: %.250s", before,
		      before[0] ? "; " : "", why);
}

static enum shard_status map(const struct driver *d, cu_device device, struct device_image *i,
			     struct err *e)
{
	const struct cu_access access = {.location = {CU_LOCATION_DEVICE, device},
					 .flags = CU_ACCESS_READ};
	enum shard_status rc;
	cu_result cu;

	if ((cu = d->reserve(&i->at, i->bytes, 0, 0, 0)) != CU_SUCCESS)
		return driver_fail(d, e, cu, "cuMemAddressReserve", "for the image");
	if ((cu = d->map(i->at, i->bytes, 0, i->handle, 0)) != CU_SUCCESS) {
		rc = driver_fail(d, e, cu, "cuMemMap", "of the image");
		goto err_reserve;
	}
	if ((cu = d->set_access(i->at, i->bytes, &access, 1)) == CU_SUCCESS)
		return SHARD_OK;
	rc = driver_fail(d, e, cu, "cuMemSetAccess", "of the image");
	if (d->unmap(i->at, i->bytes) != CU_SUCCESS)
		return rc; /* The range stays mapped. */
err_reserve:
	(void)d->unreserve(i->at, i->bytes);
	return rc;
}

static enum shard_status ask(const struct shard_cuda *c, struct device_image *i, struct err *e)
{
	const struct driver *d = &c->driver;
	struct cu_uuid uuid;
	enum shard_status rc;
	cu_result cu;
	int fd;

	if (!d->device_uuid || !d->import_handle || !d->release || !d->reserve || !d->unreserve ||
	    !d->map || !d->unmap || !d->set_access || !d->within)
		return err_set(e, SHARD_UNSUPPORTED,
			       "libcuda.so.1 cannot map memory of another process: the driver is "
			       "too old, update it");
	if ((cu = d->device_uuid(&uuid, c->device)) != CU_SUCCESS)
		return driver_fail(d, e, cu, "cuDeviceGetUuid", "");
	rc = shard_device_region(c->model, SHARD_IMAGE, uuid.bytes, &fd, &i->bytes);
	if (rc != SHARD_OK)
		return err_set(e, rc, "%s", shard_error());
	cu = d->import_handle(&i->handle, (void *)(intptr_t)fd, CU_MEMORY_DESCRIPTOR);
	close(fd);
	if (cu != CU_SUCCESS)
		return driver_fail(d, e, cu, "cuMemImportFromShareableHandle", "of the image");
	if ((rc = map(d, c->device, i, e)) != SHARD_OK)
		(void)d->release(i->handle);
	return rc;
}

void device_image_take(struct shard_cuda *c)
{
	struct device_image i = {.mapped = cuda_mapped(c)};
	struct err e = {.status = SHARD_OK};

	if (ask(c, &i, &e) != SHARD_OK)
		i.at = 0;
	pthread_mutex_lock(&c->lock);
	c->image_there = i;
	if (i.at == 0)
		note(c, e.text);
	pthread_mutex_unlock(&c->lock);
}

enum shard_status device_image_give(struct shard_cuda *c, struct err *e)
{
	const struct driver *d = &c->driver;
	struct device_image i = c->image_there;
	enum shard_status rc = SHARD_OK;
	cu_result cu;

	c->image_there.at = 0;
	if (i.at == 0)
		return SHARD_OK;
	if ((cu = d->unmap(i.at, i.bytes)) != CU_SUCCESS)
		rc = driver_fail(d, e, cu, "cuMemUnmap", "of the image");
	else if ((cu = d->unreserve(i.at, i.bytes)) != CU_SUCCESS)
		rc = driver_fail(d, e, cu, "cuMemAddressFree", "of the image");
	if ((cu = d->release(i.handle)) != CU_SUCCESS && rc == SHARD_OK)
		rc = driver_fail(d, e, cu, "cuMemRelease", "of the image");
	return rc;
}

/* No copy reads the old one: cuda_renew() has waited for those, and later ones do not use it. */
enum shard_status device_image_renew(struct shard_cuda *c)
{
	enum shard_status rc;
	struct err e;

	if ((rc = cuda_enter(c, &e)) != SHARD_OK)
		return cuda_fail(&e);
	pthread_mutex_lock(&c->lock);
	if ((rc = device_image_give(c, &e)) != SHARD_OK) {
		e.status = SHARD_CLOSED;
		cuda_dead(c, &e);
	}
	pthread_mutex_unlock(&c->lock);
	if (rc == SHARD_OK)
		device_image_take(c);
	cuda_leave(c);
	return rc == SHARD_OK ? rc : cuda_fail(&e);
}

bool device_image_at(struct shard_cuda *c, uint32_t tensor, cu_ptr *at)
{
	*at = 0;
	if (!(c->opts.flags & SHARD_CUDA_IMAGE))
		return false;
	pthread_mutex_lock(&c->lock);
	*at = c->image_there.at;
	if (*at != 0 && c->image_there.mapped != c->mapped)
		*at = 0;
	pthread_mutex_unlock(&c->lock);
	if (*at == 0)
		return false;
	*at += c->tensor[tensor].image_offset;
	return true;
}

const void *shard_cuda_image(shard_cuda *c, uint32_t tensor)
{
	cu_ptr at;

	if (cuda_usable(c) != SHARD_OK)
		return NULL;
	if (tensor >= c->tensors_nr) {
		(void)cuda_say(SHARD_RANGE, "shard_cuda_image() of tensor %u: the model has %u",
			       tensor, c->tensors_nr);
		return NULL;
	}
	if (device_image_at(c, tensor, &at) && cuda_fresh(c))
		return (const void *)(uintptr_t)at;
	(void)cuda_say(SHARD_UNSUPPORTED, "%s",
		       c->opts.flags & SHARD_CUDA_IMAGE
			       ? "there is no image on the device: shard_cuda_about.why says why"
			       : "there is no image on the device: open it with SHARD_CUDA_IMAGE");
	return NULL;
}
