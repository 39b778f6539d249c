// SPDX-License-Identifier: Apache-2.0
/* Tests the driver library of tests/cuda itself: what CUDA leaves undefined, a daemon could do
 * without any test noticing it. So each of these things ends the process with a sentence. Each is
 * done in a process of its own. Also, an old driver is refused by name, and only for what it lacks
 * of what is needed. */
#include "base/check.h"
#include "cuda/driver.h"
#include "gpu/kernels.h"
#include "lib/fakegpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { BYTES = 2 << 20 };

static struct fakegpu fake;

/* What each way is done on: memory of device 0, mapped, and a stream. */
static struct misuse {
	struct driver d;
	cu_context ctx;
	cu_stream stream;
	cu_handle handle;
	cu_ptr at;
	void *host;
} m;

static void access_for(int device)
{
	const struct cu_access access = {.location = {CU_LOCATION_DEVICE, device},
					 .flags = CU_ACCESS_READ_WRITE};

	CHECK(m.d.set_access(m.at, BYTES, &access, 1) == CU_SUCCESS);
}

/* A kernel of this device, that reads m.at. */
static void launch(void)
{
	struct gpu_apply job = {.segments = (const struct gpu_segment *)(uintptr_t)m.at,
				.segments_nr = 1,
				.blocks_nr = 1};
	void *args[] = {&job};
	cu_module module;
	cu_function f;

	CHECK(m.d.module_load(&module, "anything") == CU_SUCCESS);
	CHECK(m.d.module_function(&f, module, "apply_sgd_fp32_fp32") == CU_SUCCESS);
	CHECK(m.d.launch(f, 1, 1, 1, GPU_THREADS, 1, 1, 0, m.stream, args, NULL) == CU_SUCCESS);
	(void)m.d.stream_sync(m.stream);
}

static void no_access(void)
{
	(void)m.d.to_host(m.host, m.at, 64, m.stream);
}

static void kernel_without_access(void)
{
	launch();
}

static void kernel_of_another(void)
{
	access_for(1);
	launch();
}

static void kernel_after_unmap(void)
{
	access_for(0);
	CHECK(m.d.unmap(m.at, BYTES) == CU_SUCCESS);
	launch();
}

static void unmap_in_use(void)
{
	access_for(0);
	fake.fake_cuda_hold_device(0, 1);
	CHECK(m.d.memory_set(m.at, 0, BYTES, m.stream) == CU_SUCCESS);
	(void)m.d.unmap(m.at, BYTES);
}

static void free_while_mapped(void)
{
	(void)m.d.unreserve(m.at, BYTES);
}

static void written_after_unmap(void)
{
	const struct cu_memory_prop prop = {.type = CU_MEMORY_PINNED,
					    .location = {CU_LOCATION_DEVICE, 0},
					    .flags = {.gpu_direct_rdma = 1}};
	cu_handle handle;
	cu_ptr at;
	int fd;

	CHECK(m.d.create(&handle, BYTES, &prop, 0) == CU_SUCCESS);
	CHECK(m.d.reserve(&at, BYTES, 0, 0, 0) == CU_SUCCESS);
	CHECK(m.d.map(at, BYTES, 0, handle, 0) == CU_SUCCESS);
	/* Of memory that was not made for it there is none. */
	CHECK(m.d.range_handle(&fd, m.at, BYTES, CU_RANGE_DMA_BUF, 0) == CU_INVALID_VALUE);
	CHECK(m.d.range_handle(&fd, at, BYTES, CU_RANGE_DMA_BUF, 0) == CU_SUCCESS);
	CHECK(fake.fake_cuda_dma(1, 0, "x", 1) == 1 && fake.fake_cuda_dma(2, 0, "x", 1) == 0);
	CHECK(m.d.unmap(at, BYTES) == CU_SUCCESS);
	(void)fake.fake_cuda_dma(1, 0, "x", 1);
}

static void host_reads(void)
{
	access_for(0);
	if (*(volatile char *)(uintptr_t)m.at == 'x')
		puts("");
}

static const struct {
	const char *name;
	void (*run)(void);
	const char *says; /* NULL: a signal says it. */
} ways[] = {
	{"no_access", no_access, "a copy uses device memory without access to it"},
	{"kernel_without_access", kernel_without_access, "to which its device has no access"},
	{"kernel_of_another", kernel_of_another, "to which its device has no access"},
	{"kernel_after_unmap", kernel_after_unmap, "at which nothing is mapped"},
	{"unmap_in_use", unmap_in_use, "device memory is unmapped while it is used"},
	{"free_while_mapped", free_while_mapped, "in which memory is mapped"},
	{"written_after_unmap", written_after_unmap, "writes memory that was unmapped"},
	{"host_reads", host_reads, NULL},
};

static int misuse(const char *name)
{
	const struct cu_memory_prop prop = {.type = CU_MEMORY_PINNED,
					    .location = {CU_LOCATION_DEVICE, 0}};
	struct err e = {0};

	CHECK(driver_open(&m.d, DRIVER_DAEMON, &e) == SHARD_OK);
	CHECK(m.d.primary_retain(&m.ctx, 0) == CU_SUCCESS && m.d.ctx_push(m.ctx) == CU_SUCCESS);
	CHECK(m.d.stream_create(&m.stream, CU_STREAM_OWN) == CU_SUCCESS);
	CHECK(m.d.host_alloc(&m.host, BYTES, 0) == CU_SUCCESS);
	CHECK(m.d.create(&m.handle, BYTES, &prop, 0) == CU_SUCCESS);
	CHECK(m.d.reserve(&m.at, BYTES, 0, 0, 0) == CU_SUCCESS);
	CHECK(m.d.map(m.at, BYTES, 0, m.handle, 0) == CU_SUCCESS);
	for (size_t i = 0; i < NR(ways); i++)
		if (strcmp(ways[i].name, name) == 0)
			ways[i].run();
	return 0; /* Nobody noticed. */
}

static void each_is_noticed(void **state)
{
	(void)state;
	for (size_t i = 0; i < NR(ways); i++) {
		char said[4096] = "";
		size_t n = 0;
		ssize_t got;
		int out[2], status;
		pid_t pid;

		assert_int_equal(pipe(out), 0);
		pid = fork();
		if (pid == 0) {
			dup2(out[1], STDERR_FILENO);
			execl("/proc/self/exe", "misuse", "misuse", ways[i].name, (char *)NULL);
			_exit(0);
		}
		close(out[1]);
		while (n < sizeof(said) - 1 &&
		       (got = read(out[0], said + n, sizeof(said) - 1 - n)) > 0)
			n += (size_t)got;
		close(out[0]);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
			fail_msg("%s: nobody noticed", ways[i].name);
		if (ways[i].says != NULL && !strstr(said, ways[i].says))
			fail_msg("%s: \"%s\"", ways[i].name, said);
	}
}

/* An error that ends the context of one device is none of another one. */
static void one_context_ends(void **state)
{
	cu_context ctx[2], was;
	size_t left, total;
	struct err e = {0};

	(void)state;
	assert_int_equal(driver_open(&m.d, DRIVER_DAEMON, &e), SHARD_OK);
	for (int i = 0; i < 2; i++)
		assert_int_equal(m.d.primary_retain(&ctx[i], i), CU_SUCCESS);
	assert_int_equal(m.d.ctx_push(ctx[0]), CU_SUCCESS);
	fake.fake_cuda_fail("cuMemGetInfo_v2", 1, 719);
	assert_int_equal(m.d.memory_info(&left, &total), 719);
	assert_int_equal(m.d.memory_info(&left, &total), 719);
	assert_int_equal(m.d.stream_create(&m.stream, 0), 719);
	assert_int_equal(m.d.ctx_pop(&was), CU_SUCCESS);
	assert_int_equal(m.d.ctx_push(ctx[1]), CU_SUCCESS);
	assert_int_equal(m.d.memory_info(&left, &total), CU_SUCCESS);
	assert_int_equal(total, 1 << 30);
	assert_int_equal(m.d.ctx_pop(&was), CU_SUCCESS);
	fake.fake_cuda_fail(NULL, 0, 0);
}

/* In a process whose libcuda.so.1 is that of an old release (tests/cuda/old.map). */
static int old(void)
{
	struct driver d;
	struct err e = {0};

	CHECK(driver_open(&d, DRIVER_CLIENT, &e) == SHARD_OK);
	CHECK(driver_open(&d, DRIVER_DAEMON, &e) == SHARD_UNSUPPORTED);
	puts(e.text);
	CHECK(strstr(e.text, "libcuda.so.1 has no cuMem") && strstr(e.text, "update it"));
	return 0;
}

/* A driver that has what libshard-cuda needs and no more is enough for it, and too little for the
 * daemon. */
static void old_driver(void **state)
{
	char path[640];
	int status;
	pid_t pid;

	(void)state;
	snprintf(path, sizeof(path), "%.600s/old", getenv("LD_LIBRARY_PATH"));
	pid = fork();
	if (pid == 0) {
		setenv("LD_LIBRARY_PATH", path, 1);
		execl("/proc/self/exe", "old", "old", "driver", (char *)NULL);
		_exit(127);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_is_noticed),
		cmocka_unit_test(one_context_ends),
		cmocka_unit_test(old_driver),
	};

	setenv("FAKE_CUDA_DEVICES", "2", 0);
	fakegpu_path(argv);
	fakegpu_find(&fake);
	if (argc == 3 && strcmp(argv[1], "old") == 0)
		return old();
	if (argc == 3 && strcmp(argv[1], "misuse") == 0)
		return misuse(argv[2]);
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
