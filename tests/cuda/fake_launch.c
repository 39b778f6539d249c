// SPDX-License-Identifier: Apache-2.0
/* Modules and kernels of the driver library for tests. Whatever is loaded as a module has the
 * kernels that were compiled for this processor (shim_kernels.h). A launch waits for the stream,
 * and is done when the call returns. While it runs, device memory can be used where the kernel
 * looks for it. */
#include "tests/cuda/fake_impl.h"
#include "cuda/shim_kernels.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { NOT_FOUND = 500, LAUNCH_OUT_OF_RESOURCES = 701, THREADS_MAX = 1024 };

__attribute__((constructor)) static void from_environment(void)
{
	const char *word = getenv("FAKE_CUDA_FTZ");

	if (word)
		shim.ftz = (enum shim_ftz)(atoi(word) % SHIM_FTZ_NR);
}

/* All calls of this file are those of the driver. */
#define CALL(name, ...)                                                                            \
	__attribute__((visibility("default"))) int name(__VA_ARGS__);                              \
	int name(__VA_ARGS__)

CALL(cuModuleLoadData, void **module, const void *image)
{
	static int loaded;

	*module = &loaded;
	return image == NULL ? INVALID_VALUE : 0;
}

CALL(cuModuleGetFunction, const void **function, void *module, const char *name)
{
	*function = shim_kernel(name);
	return module == NULL ? INVALID_HANDLE : *function == NULL ? NOT_FOUND : 0;
}

static void device_open(int mode)
{
	for (struct memory *m = fake.memories; m != NULL; m = m->next)
		if (m->kind == DEVICE && mprotect(m->base, m->bytes, mode) != 0)
			fake_undefined("mprotect() failed");
}

CALL(cuLaunchKernel, const void *function, unsigned x, unsigned y, unsigned z, unsigned threads,
     unsigned threads_y, unsigned threads_z, unsigned shared, stream_t stream, void **job,
     void **extra)
{
	(void)stream;
	if (function == NULL || x == 0 || y != 1 || z != 1 || threads_y != 1 || threads_z != 1 ||
	    shared != 0 || extra != NULL)
		return INVALID_VALUE;
	if (threads > THREADS_MAX)
		return LAUNCH_OUT_OF_RESOURCES;
	pthread_mutex_lock(&fake.lock);
	for (stream_t s = fake.streams; s != NULL;) { /* Whatever is under way. */
		if (s->first == NULL) {
			s = s->all;
			continue;
		}
		pthread_cond_wait(&fake.changed, &fake.lock);
		s = fake.streams;
	}
	device_open(PROT_READ | PROT_WRITE);
	shim_call(function, job[0], x, threads);
	device_open(PROT_NONE);
	pthread_mutex_unlock(&fake.lock);
	return 0;
}

CALL(cuMemcpyDtoDAsync_v2, ptr_t to, ptr_t from, size_t bytes, stream_t stream)
{
	struct memory *a, *b;

	(void)stream;
	pthread_mutex_lock(&fake.lock);
	a = fake_memory((void *)(uintptr_t)to);
	b = fake_memory((void *)(uintptr_t)from);
	if (a == NULL || b == NULL || a->kind != DEVICE || b->kind != DEVICE) {
		pthread_mutex_unlock(&fake.lock);
		return INVALID_VALUE;
	}
	memmove(a->inside + ((char *)(uintptr_t)to - a->base),
		b->inside + ((char *)(uintptr_t)from - b->base), bytes);
	pthread_mutex_unlock(&fake.lock);
	return 0;
}

CALL(cuDeviceGetName, char *name, int length, int device)
{
	(void)device;
	strncpy(name, "no GPU: a processor", (size_t)length);
	return 0;
}
