// SPDX-License-Identifier: Apache-2.0
/* Tests devices of the daemon with a driver that fails. Whatever call of the driver fails, each job
 * comes back once, the call is named, nothing is left, and another device goes on. A driver that
 * hangs is given up. */
#include "gpu/device.h"

#include "base/check.h"
#include "base/clock.h"
#include "cuda/driver.h"
#include "lib/gpujobs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { CALLS_MAX = 400 };

/* Nobody is told that something could not be given back. cuMemMap is also asked how large memory
 * is, and cuGetErrorName for texts. */
static bool may_be_quiet(const char *symbol)
{
	return strstr("cuStreamDestroy_v2 cuEventDestroy_v2 cuMemFree_v2 cuMemFreeHost "
		      "cuModuleUnload cuMemRelease cuMemAddressFree cuMemUnmap cuMemHostUnregister "
		      "cuDevicePrimaryCtxRelease_v2 cuCtxPushCurrent_v2 cuMemMap cuGetErrorName",
		      symbol) != NULL;
}

/* A sum of one operand of the host and one of the device. */
static void add(struct gpu *g, const struct layout *l, uint64_t at)
{
	static struct gpu_add a;
	static uint8_t absent[512], host[2][65536];
	const uint64_t bytes = layout_chunk_elems(l, 0) * 2ull;
	struct gpu_job j = gpujobs_of(GPU_ADD);

	a = (struct gpu_add){.layout = l,
			     .dtype = SHARD_BF16,
			     .pre = 1,
			     .operands_nr = 2,
			     .up_nr = 1,
			     .up = {{host[0], at, bytes}},
			     .operand = {{at, absent}, {at + 65536, absent}},
			     .to = at,
			     .copy = host[1]};
	j.add = &a;
	gpujobs_run(g, &j);
}

static bool unpinned; /* What gpu_unpin() said in use(). */

/* Uses all that there is. text: what was said of a failure. */
static void use(struct layout *l, char text[ERR_TEXT_BYTES])
{
	struct gpu_conf conf = {.jobs_max = JOBS};
	struct rng r = {.state = 3};
	struct gpu_mem m = {.fd = -1}, again = {.fd = -1}, direct = {.fd = -1};
	static float host[4096];
	struct gpu *g = NULL;
	const char *why = "";
	struct err e = {0};

	memset(text, 0, ERR_TEXT_BYTES);
	if (gpu_open(&g, &conf, &jobs.loop, &e) != SHARD_OK)
		goto out;
	if (gpu_map(g, 3 * MIB, true, &m, &e) != SHARD_OK ||
	    gpu_again(g, m.fd, m.bytes, &again, &e) != SHARD_OK ||
	    gpu_map_direct(g, MIB, &direct, &e) != SHARD_OK ||
	    gpu_pin(g, host, sizeof(host), &e) != SHARD_OK)
		goto out;
	gpujobs_copy(g, GPU_TO_DEVICE, host, again.at, sizeof(host));
	for (uint32_t i = 0; i < 2; i++) {
		uint64_t at[STATES] = {m.at + i * MIB, m.at + i * MIB + 65536,
				       m.at + i * MIB + 131072};
		static struct optim_args args[2];
		static uint8_t zero[512], grad[65536], image[65536];
		struct gpu_job j = gpujobs_of(GPU_UPDATE);

		j.update = (struct gpu_update){.layout = l,
					       .optim = optim_row(OPTIM_ADAMW),
					       .grad_dtype = SHARD_BF16,
					       .image_dtype = SHARD_BF16,
					       .args = args,
					       .zero = zero,
					       .grad = grad,
					       .image = image};
		memcpy(j.update.from, at, sizeof(at));
		memcpy(j.update.to, at, sizeof(at));
		j.update.to[0] += 262144;
		(void)rng_next(&r);
		gpujobs_run(g, &j);
	}
	add(g, l, direct.at);
	gpujobs_copy(g, GPU_TO_HOST, host, m.at, sizeof(host));
out:
	if (g != NULL && gpu_lost(g, &why))
		snprintf(text, ERR_TEXT_BYTES, "%s", why);
	else
		snprintf(text, ERR_TEXT_BYTES, "%s", e.text);
	gpu_unmap(&m);
	gpu_unmap(&again);
	gpu_unmap(&direct);
	if (g != NULL) {
		unpinned = gpu_unpin(g, host);
		gpujobs_close(&g);
	}
}

/* Each call fails at each of its turns. */
static void failures(int error)
{
	static const char *const symbols[] = {
#define X(who, name, symbol, arguments)                                                            \
	DRIVER_##who == DRIVER_OPTIONAL || (DRIVER_##who & DRIVER_DAEMON) ? #symbol : NULL,
		DRIVER_CALLS(X)
#undef X
	};
	struct rng r = {.state = 9};
	struct layout *l = gpujobs_layout(&r, 12, 900, 8192);
	struct gpu *other = gpujobs_open(1);
	struct gpu_mem m = gpujobs_map(other, 4096, false);
	struct fake_cuda_left before;
	char text[ERR_TEXT_BYTES], stem[64], when[128];
	uint8_t host[64] = {0};

	for (size_t i = 0; i < NR(symbols); i++) {
		uint32_t nth = 1, failed = 0;
		bool quiet;

		for (bool more = symbols[i] != NULL; more; nth++) {
			CHECK(nth < CALLS_MAX);
			snprintf(when, sizeof(when), "%s %u, error %d", symbols[i], nth, error);
			snprintf(stem, sizeof(stem), "%.*s", (int)strcspn(symbols[i], "_"),
				 symbols[i]);
			jobs.fake.fake_cuda_left(&before);
			jobs.fake.fake_cuda_fail(symbols[i], nth, error);
			use(l, text);
			more = jobs.fake.fake_cuda_failed();
			jobs.fake.fake_cuda_fail(NULL, 0, 0);
			failed += more;
			if (more && text[0] && !strstr(text, stem) && !may_be_quiet(symbols[i]))
				fail_msg("%s: \"%s\"", when, text);
			if (!more && text[0])
				fail_msg("%s: nothing failed, and it says \"%s\"", when, text);
			quiet = more && !text[0];
			if (quiet && !may_be_quiet(symbols[i]))
				fail_msg("%s: it is not told", when);
			if (!quiet && error != 700)
				gpujobs_nothing_left(&before, when);
			if (more)
				jobs.fake.fake_cuda_forget(0);
			gpujobs_copy(other, GPU_TO_HOST, host, m.at, sizeof(host));
			assert_false(gpu_lost(other, NULL));
		}
		if (symbols[i] != NULL && failed == 0 &&
		    strcmp(symbols[i], "cuGetErrorName") != 0 &&
		    strcmp(symbols[i], "cuDriverGetVersion") != 0 &&
		    strcmp(symbols[i], "cuCtxPopCurrent_v2") != 0) /* It never fails. */
			fail_msg("%s is never called", symbols[i]);
	}
	gpu_unmap(&m);
	gpujobs_close(&other);
	layout_free(&l);
	jobs.lost_nr = 0;
}

static void each_call_fails(void **state)
{
	(void)state;
	jobs.fake.fake_cuda_delay(5, 3);
	failures(999);
}

static void each_call_is_fatal(void **state)
{
	(void)state;
	jobs.fake.fake_cuda_delay(5, 3);
	failures(700);
}

/* Jobs of a device that is lost come back, and so do those that come later. */
static void lost(void **state)
{
	struct gpu *g = gpujobs_open(0), *other = gpujobs_open(1);
	struct gpu_mem m = gpujobs_map(g, 4096, false), of_other = gpujobs_map(other, 4096, false),
		       more;
	struct gpu_job j = gpujobs_of(GPU_TO_HOST);
	uint32_t before = jobs.done_nr, answered = jobs.lost_nr;
	static uint8_t pinned[3][4096];
	uint8_t host[64];
	const char *why = NULL;
	struct err e = {0};

	(void)state;
	j.copy[0] = (struct gpu_copy){host, m.at, sizeof(host)};
	j.copies_nr = 1;
	assert_int_equal(gpu_pin(g, pinned[0], sizeof(pinned[0]), &e), SHARD_OK);
	assert_int_equal(gpu_pin(other, pinned[0], sizeof(pinned[0]), &e), SHARD_OK);
	assert_int_equal(gpu_pin(other, pinned[1], sizeof(pinned[1]), &e), SHARD_OK);
	jobs.fake.fake_cuda_hold_device(0, 1);
	for (int i = 0; i < JOBS; i++)
		assert_int_equal(gpu_submit(g, &j), SHARD_OK);
	jobs.fake.fake_cuda_fail("cuEventSynchronize", 1, 214);
	jobs.fake.fake_cuda_hold_device(0, 0);
	while (jobs.done_nr < before + JOBS)
		uv_run(&jobs.loop, UV_RUN_ONCE);
	jobs.fake.fake_cuda_fail(NULL, 0, 0);
	assert_true(gpu_lost(g, &why));
	assert_non_null(strstr(why, "cuEventSynchronize: CUDA_ERROR_ECC_UNCORRECTABLE (214)"));
	answered = jobs.lost_nr;
	j.copy[0].device = m.at;
	gpujobs_run(g, &j);
	assert_int_equal(jobs.lost_nr, answered + 1);
	assert_int_equal(gpu_map(g, 4096, false, &more, &e), SHARD_SYSTEM);
	assert_string_equal(e.text, why);
	assert_int_equal(gpu_pin(g, host, sizeof(host), &e), SHARD_SYSTEM);
	gpujobs_copy(other, GPU_TO_HOST, host, of_other.at, sizeof(host));
	assert_int_equal(jobs.lost_nr, answered + 1);
	assert_false(gpu_hangs(g));
	assert_true(gpu_unpin(other, pinned[0]) && gpu_unpin(other, pinned[1]));
	assert_false(gpu_unpin(g, pinned[0])); /* The driver keeps it. */
	assert_true(gpu_unpin(g, pinned[2]));  /* It never had it. */
	gpu_unmap(&m);
	gpu_unmap(&of_other);
	gpujobs_close(&g);
	gpujobs_close(&other);
	jobs.fake.fake_cuda_forget(0);
	jobs.lost_nr = 0;
}

/* Of the address sanitizer. NULL: it is not here. */
int __lsan_do_recoverable_leak_check(void) __attribute__((weak));

/* Later it could not be said: a look for leaks does not end while threads hang in the library. */
static void nothing_leaks(void **state)
{
	(void)state;
	if (__lsan_do_recoverable_leak_check != NULL)
		assert_int_equal(__lsan_do_recoverable_leak_check(), 0);
}

/* Whatever call of opening, mapping, pinning and giving back hangs, whoever waits for it comes back
 * and the device is lost by name. Another one goes on. fake_cuda_fail() never lets a call go on. */
static void each_call_hangs(void **state)
{
	static const char *const symbols[] = {"cuInit",
					      "cuDeviceGetUuid_v2",
					      "cuDeviceGetAttribute",
					      "cuDevicePrimaryCtxRetain",
					      "cuModuleLoadData",
					      "cuStreamCreate",
					      "cuEventCreate",
					      "cuMemAlloc_v2",
					      "cuMemHostAlloc",
					      "cuMemGetInfo_v2",
					      "cuMemCreate",
					      "cuMemAddressReserve",
					      "cuMemMap",
					      "cuMemSetAccess",
					      "cuMemsetD8Async",
					      "cuStreamSynchronize",
					      "cuMemExportToShareableHandle",
					      "cuMemImportFromShareableHandle",
					      "cuMemGetHandleForAddressRange",
					      "cuMemHostRegister_v2"};
	/* What one leaves pinned is not pinned again. */
	static const char *const back[] = {"cuMemHostUnregister", "cuMemUnmap",
					   "cuMemAddressFree",    "cuMemRelease",
					   "cuStreamDestroy_v2",  "cuDevicePrimaryCtxRelease_v2"};
	struct rng r = {.state = 9};
	struct layout *l = gpujobs_layout(&r, 12, 900, 8192);
	struct gpu *other = gpujobs_open(1);
	struct gpu_mem m = gpujobs_map(other, 4096, false);
	char text[ERR_TEXT_BYTES];
	uint8_t host[64];

	(void)state;
	CHECK(setenv("SHARDD_GPU_DEADLINE_MS", "100", 1) == 0);
	jobs.fake.fake_cuda_delay(5, 3);
	for (size_t i = 0; i < NR(symbols) + NR(back); i++) {
		const char *symbol = i < NR(symbols) ? symbols[i] : back[i - NR(symbols)];

		jobs.fake.fake_cuda_fail(symbol, 1, -1);
		use(l, text);
		if (!jobs.fake.fake_cuda_failed())
			fail_msg("%s is never called", symbol);
		if (i < NR(symbols) && !strstr(text, "a call of its driver has not ended"))
			fail_msg("%s: \"%s\"", symbol, text);
		if (strncmp(symbol, "cuMemHost", 9) == 0 && strstr(symbol, "egister") != NULL)
			assert_false(unpinned); /* The driver may have it. */
		gpujobs_copy(other, GPU_TO_HOST, host, m.at, sizeof(host));
		assert_false(gpu_lost(other, NULL));
		jobs.fake.fake_cuda_fail(NULL, 0, 0);
	}
	CHECK(unsetenv("SHARDD_GPU_DEADLINE_MS") == 0);
	gpu_unmap(&m);
	gpujobs_close(&other);
	layout_free(&l);
	jobs.lost_nr = 0;
}

/* A driver that does not come back holds nobody. */
static void hangs(void **state)
{
	struct gpu_conf conf = {.jobs_max = JOBS, .deadline_ns = 200 * NS_PER_MS};
	struct gpu_job j = gpujobs_of(GPU_TO_HOST);
	uint32_t before = jobs.done_nr;
	struct gpu *g = NULL;
	const char *why = NULL;
	struct err e = {0};
	struct gpu_mem m;
	static uint8_t pinned[4096];
	uint8_t *host = calloc(1, 4096); /* The driver may write there later. */

	(void)state;
	assert_int_equal(gpu_open(&g, &conf, &jobs.loop, &e), SHARD_OK);
	m = gpujobs_map(g, 4096, false);
	assert_int_equal(gpu_pin(g, pinned, sizeof(pinned), &e), SHARD_OK);
	assert_false(gpu_hangs(g));
	j.copy[0] = (struct gpu_copy){host, m.at, 4096};
	j.copies_nr = 1;
	jobs.fake.fake_cuda_hold_device(0, 1);
	for (int i = 0; i < JOBS; i++)
		assert_int_equal(gpu_submit(g, &j), SHARD_OK);
	while (jobs.done_nr < before + JOBS)
		uv_run(&jobs.loop, UV_RUN_ONCE);
	assert_int_equal(jobs.lost_nr, JOBS);
	assert_true(gpu_lost(g, &why));
	assert_non_null(strstr(why, "has not ended"));
	gpujobs_run(g, &j);
	assert_int_equal(jobs.lost_nr, JOBS + 1);
	jobs.after_nr = 0;
	assert_true(gpu_hangs(g));
	assert_false(gpu_unpin(g, pinned)); /* The driver is not asked. */
	assert_true(gpu_unpin(g, host));
	gpu_unmap(&m); /* It is in use, and stays. */
	gpujobs_close(&g);
	jobs.fake.fake_cuda_hold_device(0, 0); /* The thread comes back, and calls nobody. */
	jobs.fake.fake_cuda_settle(0);
	jobs.fake.fake_cuda_forget(0);
	assert_int_equal(jobs.after_nr, 0);
	free(host);
	jobs.lost_nr = 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_call_fails),
		cmocka_unit_test(each_call_is_fatal),
		cmocka_unit_test(lost),
		cmocka_unit_test(hangs),
		cmocka_unit_test(nothing_leaks),
		cmocka_unit_test(each_call_hangs), /* Last: its threads stay in the library. */
	};
	int rc;

	gpujobs_init(argv);
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	rc = cmocka_run_group_tests(tests, NULL, NULL);
	gpujobs_deinit();
	fflush(NULL);
	_exit(rc); /* No second look for leaks. */
}
