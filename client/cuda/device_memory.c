// SPDX-License-Identifier: Apache-2.0
/* Memory of shardd on the device: the image, from which pulls copy, and memory for gradients, which
 * are pushed where they lie. shard_cuda_open() and, after the model was joined again,
 * shard_cuda_begin() ask for what the flags say and map it. Where there is none, the sentence of
 * shardd says why, pulls copy from the host, and gradients lie in memory of the caller. */
#include "cuda/cuda.h"

#include "wire/dtype.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { UUID_BYTES = 16 };

static const struct kind {
	enum shard_kind kind;
	uint32_t flag;
	unsigned access;
	const char *of, *none, *call;
} kinds[DEVICE_MEMORIES] = {
	[DEVICE_IMAGE] = {.kind = SHARD_IMAGE,
			  .flag = SHARD_CUDA_IMAGE,
			  .access = CU_ACCESS_READ,
			  .of = "of the image",
			  .none = "there is no image on the device",
			  .call = "SHARD_CUDA_IMAGE"},
	[DEVICE_GRAD] = {.kind = SHARD_GRAD,
			 .flag = SHARD_CUDA_GRAD,
			 .access = CU_ACCESS_READ_WRITE,
			 .of = "of memory for gradients",
			 .none = "there is no memory for gradients on the device",
			 .call = "SHARD_CUDA_GRAD"},
};

static void note(struct shard_cuda *c, const struct kind *k, const char *why)
{
	char before[250];

	snprintf(before, sizeof(before), "%.240s", c->why.text);
	(void)err_set(&c->why, SHARD_OK, "%s%s%s: %.200s", before, before[0] ? "; " : "", k->none,
		      why);
}

static enum shard_status map(const struct driver *d, cu_device device, const struct kind *k,
			     struct device_memory *m, struct err *e)
{
	const struct cu_access access = {.location = {CU_LOCATION_DEVICE, device},
					 .flags = k->access};
	enum shard_status rc;
	cu_result cu;

	if ((cu = d->reserve(&m->at, m->bytes, 0, 0, 0)) != CU_SUCCESS)
		return driver_fail(d, e, cu, "cuMemAddressReserve", k->of);
	if ((cu = d->map(m->at, m->bytes, 0, m->handle, 0)) != CU_SUCCESS) {
		rc = driver_fail(d, e, cu, "cuMemMap", k->of);
		goto err_reserve;
	}
	if ((cu = d->set_access(m->at, m->bytes, &access, 1)) == CU_SUCCESS)
		return SHARD_OK;
	rc = driver_fail(d, e, cu, "cuMemSetAccess", k->of);
	if (d->unmap(m->at, m->bytes) != CU_SUCCESS)
		return rc; /* The range stays mapped. */
err_reserve:
	(void)d->unreserve(m->at, m->bytes);
	return rc;
}

static enum shard_status ask(const struct shard_cuda *c, const struct kind *k,
			     struct device_memory *m, struct err *e)
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
	rc = shard_device_region(c->model, k->kind, uuid.bytes, &fd, &m->bytes);
	if (rc != SHARD_OK)
		return err_set(e, rc, "%s", shard_error());
	cu = d->import_handle(&m->handle, (void *)(intptr_t)fd, CU_MEMORY_DESCRIPTOR);
	close(fd);
	if (cu != CU_SUCCESS)
		return driver_fail(d, e, cu, "cuMemImportFromShareableHandle", k->of);
	if ((rc = map(d, c->device, k, m, e)) != SHARD_OK)
		(void)d->release(m->handle);
	return rc;
}

static void take(struct shard_cuda *c, enum device_memories which)
{
	struct device_memory m = {.mapped = cuda_mapped(c)};
	struct err e = {.status = SHARD_OK};

	if (ask(c, &kinds[which], &m, &e) != SHARD_OK)
		m.at = 0;
	pthread_mutex_lock(&c->lock);
	c->there[which] = m;
	if (m.at == 0)
		note(c, &kinds[which], e.text);
	pthread_mutex_unlock(&c->lock);
}

void device_memory_take(struct shard_cuda *c)
{
	for (int i = 0; i < DEVICE_MEMORIES; i++)
		if (c->opts.flags & kinds[i].flag)
			take(c, (enum device_memories)i);
}

static enum shard_status give(const struct driver *d, const char *of, struct device_memory m,
			      struct err *e)
{
	enum shard_status rc = SHARD_OK;
	cu_result cu;

	if ((cu = d->unmap(m.at, m.bytes)) != CU_SUCCESS)
		rc = driver_fail(d, e, cu, "cuMemUnmap", of);
	else if ((cu = d->unreserve(m.at, m.bytes)) != CU_SUCCESS)
		rc = driver_fail(d, e, cu, "cuMemAddressFree", of);
	if ((cu = d->release(m.handle)) != CU_SUCCESS && rc == SHARD_OK)
		rc = driver_fail(d, e, cu, "cuMemRelease", of);
	return rc;
}

enum shard_status device_memory_give(struct shard_cuda *c, struct err *e)
{
	enum shard_status rc = SHARD_OK, one;
	struct err other;

	for (int i = 0; i < DEVICE_MEMORIES; i++) {
		struct device_memory m = c->there[i];

		c->there[i].at = 0;
		if (m.at == 0 || (one = give(&c->driver, kinds[i].of, m, &other)) == SHARD_OK ||
		    rc != SHARD_OK)
			continue;
		rc = one;
		*e = other;
	}
	return rc;
}

bool device_memory_old(const struct shard_cuda *c)
{
	uint64_t mapped = cuda_mapped(c);

	for (int i = 0; i < DEVICE_MEMORIES; i++)
		if ((c->opts.flags & kinds[i].flag) && c->there[i].mapped != mapped)
			return true;
	return false;
}

/* No copy uses the old ones: cuda_renew() has waited for those, and later ones do not use them. */
enum shard_status device_memory_renew(struct shard_cuda *c)
{
	enum shard_status rc;
	struct err e;

	if ((rc = cuda_enter(c, &e)) != SHARD_OK)
		return cuda_fail(&e);
	pthread_mutex_lock(&c->lock);
	if ((rc = device_memory_give(c, &e)) != SHARD_OK) {
		e.status = SHARD_CLOSED;
		cuda_dead(c, &e);
	}
	pthread_mutex_unlock(&c->lock);
	if (rc == SHARD_OK)
		device_memory_take(c);
	cuda_leave(c);
	return rc == SHARD_OK ? rc : cuda_fail(&e);
}

/* 0: there is none. fresh: one of the memory that is registered now, and of none before. */
static cu_ptr there(struct shard_cuda *c, enum device_memories which, bool fresh)
{
	const struct device_memory *m = &c->there[which];
	cu_ptr at;

	if (!(c->opts.flags & kinds[which].flag))
		return 0;
	pthread_mutex_lock(&c->lock);
	at = !fresh || m->mapped == c->mapped ? m->at : 0;
	pthread_mutex_unlock(&c->lock);
	return at;
}

bool device_image_at(struct shard_cuda *c, uint32_t tensor, cu_ptr *at)
{
	cu_ptr base = there(c, DEVICE_IMAGE, true);

	*at = base != 0 ? base + c->tensor[tensor].image_offset : 0;
	return base != 0;
}

bool device_grad_at(struct shard_cuda *c, uint32_t tensor, cu_ptr *at)
{
	cu_ptr base = there(c, DEVICE_GRAD, false);

	*at = base != 0 ? base + c->tensor[tensor].grad_offset : 0;
	return base != 0;
}

static bool known(struct shard_cuda *c, const char *call, uint32_t tensor)
{
	if (cuda_usable(c) != SHARD_OK)
		return false;
	if (tensor < c->tensors_nr)
		return true;
	(void)cuda_say(SHARD_RANGE, "%s of tensor %u: the model has %u", call, tensor,
		       c->tensors_nr);
	return false;
}

static void say_none(const struct shard_cuda *c, const struct kind *k)
{
	bool asked = (c->opts.flags & k->flag) != 0;

	(void)cuda_say(SHARD_UNSUPPORTED, "%s: %s%s", k->none,
		       asked ? "shard_cuda_about.why says why" : "open it with ",
		       asked ? "" : k->call);
}

const void *shard_cuda_image(shard_cuda *c, uint32_t tensor)
{
	cu_ptr at;

	if (!known(c, "shard_cuda_image()", tensor))
		return NULL;
	if (device_image_at(c, tensor, &at) && cuda_fresh(c))
		return (const void *)(uintptr_t)at;
	say_none(c, &kinds[DEVICE_IMAGE]);
	return NULL;
}

void *shard_cuda_grad(shard_cuda *c, uint32_t tensor)
{
	cu_ptr at;

	if (!known(c, "shard_cuda_grad()", tensor))
		return NULL;
	if (device_grad_at(c, tensor, &at) && c->there[DEVICE_GRAD].mapped == cuda_mapped(c))
		return (void *)(uintptr_t)at;
	say_none(c, &kinds[DEVICE_GRAD]);
	return NULL;
}
