// SPDX-License-Identifier: Apache-2.0
/* A trainer's side of the driver library of tests/cuda. tests/proc/test_cuda* call it. Each
 * function makes one or a few calls of the driver and expects them to succeed. */
#include "lib/fakegpu.h"

#include "base/check.h"
#include "lib/proc.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

void fakegpu_path(char **argv)
{
	char path[640];

	if (getenv("SHARD_TEST_GPU") != NULL)
		return;
	proc_beside(path, 600, "tests/cuda");
	CHECK(setenv("LD_LIBRARY_PATH", path, 1) == 0 && setenv("SHARD_TEST_GPU", "1", 1) == 0);
	/* The library takes anything for kernels, and a build without nvcc has none. */
	strcat(path, "/libcuda.so.1");
	CHECK(setenv("SHARDD_GPU_KERNELS", path, 0) == 0);
	execv("/proc/self/exe", argv);
	CHECK(!"the program cannot be started again");
}

struct fake_control *fakegpu_control(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	struct fake_control *c;

	CHECK(fd >= 0 && ftruncate(fd, sizeof(*c)) == 0);
	c = mmap(NULL, sizeof(*c), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(c != MAP_FAILED);
	close(fd);
	return c;
}

void fakegpu_control_end(struct fake_control **c)
{
	if (*c != NULL)
		CHECK(munmap(*c, sizeof(**c)) == 0);
	*c = NULL;
}

void fakegpu_arm(struct fake_control *c, const char *call, uint32_t nth, int error)
{
	static uint32_t number;

	fakegpu_disarm(c);
	snprintf(c->call, sizeof(c->call), "%s", call ? call : "*");
	c->nth = nth;
	c->error = error;
	c->calls = c->failed = c->let_go = 0;
	c->armed = ++number;
}

void fakegpu_disarm(struct fake_control *c)
{
	c->armed = 0;
}

void fakegpu_let_go(struct fake_control *c)
{
	c->let_go = 1;
	(void)syscall(SYS_futex, &c->let_go, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void find(void *library, void *to, const char *name)
{
	void *found = dlsym(library, name);

	if (found == NULL)
		fprintf(stderr, "%s is not in libcuda.so.1\n", name);
	CHECK(found != NULL);
	memcpy(to, &found, sizeof(found));
}

void fakegpu_find(struct fakegpu *g)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);

	if (library == NULL)
		fprintf(stderr, "%s\n", dlerror());
	CHECK(library != NULL);
	memset(g, 0, sizeof(*g));
#define X(type, name, arguments) find(library, &g->name, #name);
	FAKE_CUDA_CALLS(X)
#undef X
	find(library, &g->init, "cuInit");
	find(library, &g->retain, "cuDevicePrimaryCtxRetain");
	find(library, &g->alloc, "cuMemAlloc_v2");
	find(library, &g->free, "cuMemFree_v2");
	find(library, &g->host_alloc, "cuMemHostAlloc");
	find(library, &g->host_free, "cuMemFreeHost");
	find(library, &g->host_register, "cuMemHostRegister_v2");
	find(library, &g->host_unregister, "cuMemHostUnregister");
	find(library, &g->to_host, "cuMemcpyDtoHAsync_v2");
	find(library, &g->to_device, "cuMemcpyHtoDAsync_v2");
	find(library, &g->sync, "cuStreamSynchronize");
	find(library, &g->stream_create, "cuStreamCreate");
	find(library, &g->stream_destroy, "cuStreamDestroy_v2");
	find(library, &g->set_current, "cuCtxSetCurrent");
	find(library, &g->release, "cuDevicePrimaryCtxRelease_v2");
}

void fakegpu_open(struct fakegpu *g)
{
	fakegpu_find(g);
	CHECK(g->init(0) == 0 && g->retain(&g->ctx, 0) == 0 && g->set_current(g->ctx) == 0);
	CHECK(g->stream_create(&g->stream, 0) == 0);
}

void fakegpu_close(struct fakegpu *g)
{
	CHECK(g->sync(g->stream) == 0 && g->stream_destroy(g->stream) == 0);
	CHECK(g->release(0) == 0);
}

void *fakegpu_alloc(struct fakegpu *g, size_t bytes)
{
	uint64_t p;

	CHECK(g->alloc(&p, bytes) == 0);
	return (void *)(uintptr_t)p;
}

void fakegpu_free(struct fakegpu *g, void *dev)
{
	CHECK(g->free((uint64_t)(uintptr_t)dev) == 0);
}

void *fakegpu_pinned(struct fakegpu *g, size_t bytes)
{
	void *p;

	CHECK(g->host_alloc(&p, bytes, 0) == 0);
	return p;
}

void fakegpu_read(struct fakegpu *g, void *to, const void *dev, size_t bytes)
{
	void *pinned = fakegpu_pinned(g, bytes);

	CHECK(g->to_host(pinned, (uint64_t)(uintptr_t)dev, bytes, g->stream) == 0);
	CHECK(g->sync(g->stream) == 0);
	memcpy(to, pinned, bytes);
	CHECK(g->host_free(pinned) == 0);
}

void fakegpu_write(struct fakegpu *g, void *dev, const void *pinned, size_t bytes)
{
	CHECK(g->to_device((uint64_t)(uintptr_t)dev, pinned, bytes, g->stream) == 0);
}
