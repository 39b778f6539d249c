// SPDX-License-Identifier: Apache-2.0
/* Each call of CUDA that libshard-cuda makes fails once, with an error that passes, one that does
 * not, and one that ends the context. Every call of the library returns in time, with a sentence
 * that names the call and the error. Then the handle can be closed, nothing is left with the
 * driver, and the model trains on from host memory as if nothing had happened. */
#include "shard_cuda.h"

#include "base/check.h"
#include "cuda/driver.h"
#include "lib/fakegpu.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/trainer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { CALLS_MAX = 400 };

static struct cluster *cluster;
static struct fakegpu gpu;
static struct trainer trainer, other; /* other: of a model on GPUs. */
static float other_applied;
static void *device;  /* Memory for the weights and gradients of each tensor. */
static float applied; /* What the steps took off each weight so far. */
static const char *call_of_failure;

static enum shard_status noted(enum shard_status rc, const char *call, char text[512])
{
	if (rc != SHARD_OK && !text[0]) {
		snprintf(text, 512, "%s", shard_cuda_error());
		call_of_failure = call;
	}
	return rc;
}
#define NOTED(call) noted(call, #call, text)

static const char *why_of(shard_cuda *cu)
{
	struct shard_cuda_about about = SHARD_INIT(struct shard_cuda_about);

	return shard_cuda_tell(cu, &about) == SHARD_OK ? about.why : "";
}

static void swap(void)
{
	struct trainer t = trainer;
	float a = applied;

	trainer = other;
	applied = other_applied;
	other = t;
	other_applied = a;
}

/* Opens, pulls, begins, pushes and waits, until something fails. *begun: abandon the step. */
static enum shard_status use(shard_cuda **cu, const struct shard_cuda_opts *o, int *begun,
			     char text[512])
{
	struct shard_cuda_pull pull[TRAINER_TENSORS] = {{0}};
	enum shard_status rc = NOTED(shard_cuda_open(cu, trainer.model, o));
	shard_ticket ticket;

	/* Without an image on the device it goes on. */
	if (rc == SHARD_OK && o->flags & SHARD_CUDA_IMAGE && !shard_cuda_image(*cu, 0))
		snprintf(text, 512, "%s", why_of(*cu));
	for (uint32_t i = 0; i < TRAINER_TENSORS; i++)
		pull[i] = (struct shard_cuda_pull){
			.tensor = i, .count = trainer_numel[i], .dev = (char *)device + i * 12000};
	if (rc == SHARD_OK)
		rc = NOTED(shard_cuda_pull(*cu, 0, pull, TRAINER_TENSORS, NULL, &ticket));
	if (rc == SHARD_OK)
		rc = NOTED(shard_cuda_order(*cu, ticket, NULL, pace_ms(20000)));
	if (rc == SHARD_OK)
		rc = NOTED(shard_cuda_begin(*cu, NULL, &trainer.step));
	*begun = rc == SHARD_OK;
	for (uint32_t i = 0; i < TRAINER_TENSORS && rc == SHARD_OK; i++)
		rc = NOTED(shard_cuda_push(*cu, i, 0, trainer_numel[i], (char *)device + i * 12000,
					   SHARD_F32, 0, NULL, NULL));
	return rc == SHARD_OK ? NOTED(shard_cuda_wait(*cu, 0, pace_ms(20000))) : rc;
}

static void host_step(void)
{
	struct shard_result r = SHARD_INIT(struct shard_result);

	trainer_begin(&trainer);
	trainer_check_image(&trainer, SHARD_F32, applied);
	trainer_push_all(&trainer, 0.5f);
	EXPECT(SHARD_OK, shard_commit(trainer.model, NULL));
	EXPECT(SHARD_OK, shard_result(trainer.model, 0, pace_ms(20000), &r));
	applied += 0.5f;
}

/* One run in which a call fails. Returns whether one did. */
static int run(const char *call, uint32_t nth, int error, const struct shard_cuda_opts *o,
	       char text[512])
{
	struct fake_cuda_left before, after;
	enum shard_status rc, closed;
	shard_cuda *cu = NULL;
	int begun, failed;

	text[0] = 0;
	gpu.fake_cuda_left(&before);
	gpu.fake_cuda_fail(call, nth, error);
	rc = use(&cu, o, &begun, text);
	if (rc != SHARD_OK && !text[0])
		fail_msg("%s %u, error %d: %s: %s", call ? call : "call", nth, error,
			 call_of_failure, shard_name(rc));
	assert_true(rc != SHARD_TIMEOUT && rc != SHARD_AGAIN);
	closed = NOTED(shard_cuda_close(&cu, pace_ms(20000)));
	assert_null(cu);
	failed = gpu.fake_cuda_failed();
	gpu.fake_cuda_fail(NULL, 0, 0);
	if (closed != SHARD_OK && closed != SHARD_SYSTEM)
		fail_msg("close: %s: %s", shard_name(closed), text);
	if (begun)
		EXPECT(SHARD_OK, shard_abandon(trainer.model, "a test"));
	if (error == 700) {
		gpu.fake_cuda_heal();
		CHECK(gpu.set_current(gpu.ctx) == 0);
	} else if (closed == SHARD_OK) {
		gpu.fake_cuda_left(&after);
		if (after.registered != before.registered || after.allocated != before.allocated ||
		    after.events != before.events || after.streams != before.streams ||
		    after.contexts != before.contexts || after.handles != before.handles ||
		    after.ranges != before.ranges || after.mapped != before.mapped)
			fail_msg("%s %u, error %d, flags %u: left: %u registered, %u allocated, %u "
				 "events, %u "
				 "streams, %u contexts, %u handles, %u ranges, %u mapped: %s",
				 call ? call : "call", nth, error, o->flags,
				 after.registered - before.registered,
				 after.allocated - before.allocated, after.events - before.events,
				 after.streams - before.streams, after.contexts - before.contexts,
				 after.handles - before.handles, after.ranges - before.ranges,
				 after.mapped - before.mapped, text);
	} else { /* The call that failed was to give it back. */
		gpu.fake_cuda_heal();
	}
	return failed;
}

static const struct shard_cuda_opts straight = {.size = sizeof(straight), .device = -1};
static const struct shard_cuda_opts through = {
	.size = sizeof(through), .device = -1, .flags = SHARD_CUDA_BOUNCE, .buffer_bytes = 4096};

static void every_call(int error, const struct shard_cuda_opts *o)
{
	char text[512];
	uint32_t nth = 1;

	while (run(NULL, nth, error, o, text)) {
		if (text[0] && !strstr(text, "CUDA") && !strstr(text, "being closed"))
			fail_msg("call %u, error %d: %s: %s", nth, error, call_of_failure, text);
		if (nth++ % 8 == 0)
			host_step();
		assert_true(nth < CALLS_MAX);
	}
	assert_true(nth > 40); /* It was about something. */
	assert_true(!text[0]);
	host_step();
}

static const struct shard_cuda_opts there = {
	.size = sizeof(there), .device = -1, .flags = SHARD_CUDA_IMAGE};

static void memory_is_full(void **state)
{
	(void)state;
	every_call(2, &straight);
	every_call(2, &through);
	swap();
	every_call(2, &there);
	swap();
}

static void unknown_error(void **state)
{
	(void)state;
	every_call(999, &straight);
	every_call(999, &through);
	swap();
	every_call(999, &there);
	swap();
}

static void context_ends(void **state)
{
	(void)state;
	every_call(700, &straight);
	every_call(700, &through);
	swap();
	every_call(700, &there);
	swap();
}

/* The sentence has the name of the function and of the error. */
static void each_is_named(void **state)
{
	static const char of_the_image[] =
		"cuDeviceGetUuid_v2 cuMemImportFromShareableHandle cuMemAddressReserve cuMemMap "
		"cuMemSetAccess cuMemcpyDtoDAsync_v2 cuMemUnmap cuMemAddressFree cuMemRelease";
	const char *const symbols[] = {
#define X(who, name, symbol, arguments)                                                            \
	(DRIVER_##who & DRIVER_CLIENT) || strstr(of_the_image, #symbol) ? #symbol : NULL,
		DRIVER_CALLS(X)
#undef X
	};
	char text[512], stem[64];

	(void)state;
	for (size_t i = 0; i < NR(symbols); i++) {
		if (symbols[i] == NULL)
			continue; /* The daemon's. */
		const struct shard_cuda_opts *o = strstr("cuMemHostAlloc cuMemFreeHost", symbols[i])
							  ? &through
						  : strstr(of_the_image, symbols[i]) ? &there
										     : &straight;
		int quiet = strcmp(symbols[i], "cuCtxPopCurrent_v2") == 0 ||
			    strcmp(symbols[i], "cuStreamQuery") == 0 ||
			    strcmp(symbols[i], "cuGetErrorName") == 0 ||
			    strcmp(symbols[i], "cuDeviceGet") == 0; /* A device by its number. */

		snprintf(stem, sizeof(stem), "%.*s", (int)strcspn(symbols[i], "_"), symbols[i]);
		if (o == &there)
			swap();
		assert_true(run(symbols[i], 1, 999, o, text) || quiet);
		if (o == &there)
			swap();
		if (!quiet && (!strstr(text, stem) || !strstr(text, "CUDA_ERROR_UNKNOWN (999)")))
			fail_msg("%s: %s: \"%s\"", symbols[i], call_of_failure, text);
	}
	host_step();
}

/* No memory to pin is no reason to fail: copies go through the buffers. */
static void nothing_can_be_pinned(void **state)
{
	struct shard_cuda_about about = SHARD_INIT(struct shard_cuda_about);
	char text[512] = "";
	shard_cuda *cu;
	int begun;

	(void)state;
	for (uint32_t nth = 1; nth <= 2; nth++) {
		gpu.fake_cuda_fail("cuMemHostRegister_v2", nth, 2);
		if (use(&cu, &straight, &begun, text) != SHARD_OK)
			fail_msg("%s", text);
		assert_int_equal(shard_cuda_tell(cu, &about), SHARD_OK);
		assert_int_equal(about.grad_pinned, nth == 2);
		assert_int_equal(about.image_pinned, 0);
		assert_non_null(strstr(about.why, nth == 1 ? "of the arena" : "of the image"));
		assert_non_null(strstr(about.why, "CUDA_ERROR_OUT_OF_MEMORY"));
		assert_int_equal(shard_cuda_close(&cu, pace_ms(20000)), SHARD_OK);
		EXPECT(SHARD_OK, shard_abandon(trainer.model, "a test"));
		host_step();
	}
}

/* --- without CUDA --- */

static int none_main(void)
{
	struct shard_connect_opts co = SHARD_INIT(struct shard_connect_opts);
	shard_model *m = NULL;
	shard_client *c;
	shard_cuda *cu;

	co.address = getenv("SHARD_TEST_ADDRESS");
	if (shard_connect(&c, &co) != SHARD_OK || shard_attach(c, "gpt", &m) != SHARD_OK)
		return 2;
	if (shard_cuda_open(&cu, m, NULL) != SHARD_UNSUPPORTED ||
	    strstr(shard_cuda_error(), "no CUDA on this machine: libcuda.so.1") == NULL)
		return 3;
	shard_disconnect(&c);
	return 0;
}

static void no_cuda(void **state)
{
	pid_t child;

	(void)state;
	if ((child = fork()) == 0) {
		CHECK(setenv("SHARD_TEST_ADDRESS", cluster->node[0].unix_address, 1) == 0);
		CHECK(unsetenv("LD_LIBRARY_PATH") == 0);
		execl("/proc/self/exe", "test_cuda_faults", "none", NULL);
		_exit(9);
	}
	proc_expect_exit(child, 0, 10000);
}

static int set_up(void **state)
{
	struct shard_spec s;

	(void)state;
	cluster = cluster_start(1, NULL, "[daemon]\ngpu = auto\n");
	fakegpu_open(&gpu);
	CHECK(gpu.stream_destroy(gpu.stream) == 0);
	gpu.fake_cuda_delay(100, 1);
	device = fakegpu_alloc(&gpu, (size_t)TRAINER_TENSORS * 12000);
	trainer_join(&trainer, cluster->node[0].unix_address, SHARD_F32, SHARD_F32);
	trainer_spec(&s, SHARD_F32, SHARD_F32);
	s.name = "other";
	s.settings = "optimizer=sgd lr=1 tier=gpu";
	trainer_define_as(&other, cluster->node[0].unix_address, &s);
	EXPECT(SHARD_OK, shard_join(other.model, -1, pace_ms(10000), &other.world));
	return 0;
}

static int put_away(void **state)
{
	(void)state;
	trainer_end(&trainer);
	trainer_end(&other);
	cluster_put_away(&cluster);
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(memory_is_full),        cmocka_unit_test(unknown_error),
		cmocka_unit_test(context_ends),          cmocka_unit_test(each_is_named),
		cmocka_unit_test(nothing_can_be_pinned), cmocka_unit_test(no_cuda),
	};

	if (argc > 1 && strcmp(argv[1], "none") == 0)
		return none_main();
	fakegpu_path(argv);
	return cmocka_run_group_tests(tests, set_up, put_away);
}
