// SPDX-License-Identifier: Apache-2.0
/* device.c: owns the context, the stream and the kernels of a GPU for the example trainer.
 * transformer_cuda.c launches kernels by it, and gpt_cuda.c opens it first. It finds the functions
 * of libcuda.so.1 at run time, as libshard-cuda does, so that building needs no CUDA. It fails
 * without a driver, a GPU or the file of the kernels, and when a call of the driver fails. */
#include "examples/device.h"
#include "base/check.h"
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Keeps the first failure. Returns whether there is none. */
static bool went(struct device *d, cu_result rc, const char *call, const char *what)
{
	if (d->err.status == SHARD_OK && rc != CU_SUCCESS)
		driver_fail(&d->driver, &d->err, rc, call, what);
	return d->err.status == SHARD_OK;
}

static enum shard_status read_file(struct device *d, const char *path, char **bytes)
{
	FILE *f = fopen(path, "rbe");
	long n = -1;

	if (f && fseek(f, 0, SEEK_END) == 0 && (n = ftell(f)) > 0 && fseek(f, 0, SEEK_SET) == 0 &&
	    (*bytes = calloc(1, (size_t)n + 1)) && fread(*bytes, 1, (size_t)n, f) == (size_t)n)
		n = 0;
	else
		err_sys(&d->err, errno,
			"kernels %s: %s: \"make fatbin\" makes them where nvcc is, and --kernels "
			"names them",
			path, strerror(errno));
	if (f)
		fclose(f);
	return d->err.status;
}

static enum shard_status load_kernels(struct device *d, const char *path)
{
	static const char *const names[] = {
#define X(name) #name,
		GPT_KERNELS(X)
#undef X
	};
	char *image = NULL;
	cu_module module = NULL;

	if (read_file(d, path, &image) == SHARD_OK &&
	    went(d, d->driver.module_load(&module, image), "cuModuleLoadData", path))
		for (unsigned i = 0; i < NR(names); i++)
			if (!went(d, d->driver.module_function(&d->kernels[i], module, names[i]),
				  "cuModuleGetFunction of", names[i]))
				break;
	free(image);
	return d->err.status;
}

enum shard_status device_open(struct device *d, int number, const char *kernels)
{
	memset(d, 0, sizeof(*d));
	if (driver_open(&d->driver, DRIVER_BOTH, &d->err) != SHARD_OK)
		return d->err.status;
	if (!went(d, d->driver.device_get(&d->number, number), "cuDeviceGet", "") ||
	    !went(d, d->driver.primary_retain(&d->ctx, d->number), "cuDevicePrimaryCtxRetain", ""))
		return d->err.status;
	if (went(d, d->driver.ctx_push(d->ctx), "cuCtxPushCurrent", "") &&
	    went(d, d->driver.stream_create(&d->stream, CU_STREAM_OWN), "cuStreamCreate", "") &&
	    load_kernels(d, kernels) == SHARD_OK)
		return SHARD_OK;
	device_close(d);
	return d->err.status;
}

void device_close(struct device *d)
{
	cu_context popped;

	if (!d->ctx)
		return;
	/* What fails here has failed before. */
	if (d->stream)
		(void)d->driver.stream_destroy(d->stream);
	(void)d->driver.ctx_pop(&popped);
	(void)d->driver.primary_release(d->number);
	d->ctx = NULL;
	d->stream = NULL;
}

void *device_alloc(struct device *d, size_t bytes)
{
	cu_ptr p = 0;

	if (d->err.status != SHARD_OK ||
	    !went(d, d->driver.memory_alloc(&p, bytes), "cuMemAlloc", ""))
		return NULL;
	return (void *)(uintptr_t)p;
}

void device_free(struct device *d, void *p)
{
	if (p)
		(void)d->driver.memory_free((cu_ptr)(uintptr_t)p);
}

void device_put(struct device *d, void *to, const void *from, size_t bytes)
{
	if (d->err.status == SHARD_OK && bytes &&
	    went(d, d->driver.to_device((cu_ptr)(uintptr_t)to, from, bytes, d->stream),
		 "cuMemcpyHtoDAsync", ""))
		went(d, d->driver.stream_sync(d->stream), "cuStreamSynchronize", "");
}

void device_get(struct device *d, void *to, const void *from, size_t bytes)
{
	if (d->err.status == SHARD_OK && bytes &&
	    went(d, d->driver.to_host(to, (cu_ptr)(uintptr_t)from, bytes, d->stream),
		 "cuMemcpyDtoHAsync", ""))
		went(d, d->driver.stream_sync(d->stream), "cuStreamSynchronize", "");
}

void device_launch(struct device *d, enum gpt_kernel kernel, void *job, uint64_t nr)
{
	const uint64_t blocks = (nr + GPT_THREADS - 1) / GPT_THREADS;
	void *jobs[] = {job};

	CHECK(nr && blocks <= INT32_MAX);
	if (d->err.status == SHARD_OK)
		went(d,
		     d->driver.launch(d->kernels[kernel], (unsigned)blocks, 1, 1, GPT_THREADS, 1, 1,
				      0, d->stream, jobs, NULL),
		     "cuLaunchKernel", "");
}
