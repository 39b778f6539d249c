// SPDX-License-Identifier: Apache-2.0
/* Tests a node that starts without its memory after the last step of a model was skipped. The node
 * holds no chunk, so the model lives on. The node takes the image of the step that changed weights
 * last, which is not the step of the record, and training goes on to the right weights. */
#include "lib/trainer.h"
#include "lib/warm.h"

#include <stdio.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

struct how {
	const char *name, *settings;
	enum shard_dtype image, grad;
	uint64_t skipped_from, skipped_to;
};

static struct warm *w;
static const struct how *how;

static int setup(void **state)
{
	void *cold = (void *)(uintptr_t)CLUSTER_WARM_NR;

	how = *state;
	if (warm_setup(&cold) != 0)
		return 1;
	w = cold;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	return warm_teardown((void **)&w);
}

static void test_cold(void **state)
{
	(void)state;
	warm_start(w, 2, (int[]){1, 1}, NULL);
	w->settings = how->settings;
	w->numel = 3000; /* One chunk, on node a. */
	w->image = how->image;
	w->grad = how->grad;
	for (uint64_t s = how->skipped_from; s <= how->skipped_to; s++)
		w->skipped[s] = true;
	warm_all(w);
	warm_train(w, how->skipped_to);
	warm_kill(w, 2);
	warm_spawn(w, 2);
	assert_int_equal(warm_back(w, 2), how->skipped_to + 1);
	warm_check(w, how->skipped_to);
	warm_train(w, how->skipped_to + 2);
	warm_check(w, how->skipped_to + 2);
	warm_kill(w, 2); /* The last step was applied, with skipped steps before it. */
	warm_spawn(w, 2);
	assert_int_equal(warm_back(w, 2), how->skipped_to + 3);
	warm_train(w, how->skipped_to + 4);
	warm_check(w, how->skipped_to + 4);
	warm_finish(w);
}

#define FP16 "optimizer=sgd loss_scale=0 hysteresis=1 initial_scale_power=8"

static const struct how hows[] = {
	{"one", "optimizer=sgd", SHARD_F32, SHARD_F32, 4, 4},
	{"one, stale", "optimizer=sgd max_staleness=1", SHARD_F32, SHARD_F32, 4, 4},
	{"three in a row", "optimizer=sgd", SHARD_F32, SHARD_BF16, 2, 4},
	{"three in a row, stale", "optimizer=sgd max_staleness=1", SHARD_F32, SHARD_BF16, 2, 4},
	{"the first", "optimizer=sgd", SHARD_BF16, SHARD_F32, 1, 1},
	{"fp16", FP16, SHARD_F32, SHARD_F16, 3, 3},
	{"fp16, stale", FP16 " max_staleness=1", SHARD_F32, SHARD_F16, 3, 3},
};

int main(void)
{
	struct CMUnitTest tests[sizeof(hows) / sizeof(hows[0])];

	for (size_t i = 0; i < sizeof(hows) / sizeof(hows[0]); i++)
		tests[i] = (struct CMUnitTest){hows[i].name, test_cold, setup, teardown,
					       (void *)(uintptr_t)&hows[i]};
	return cmocka_run_group_tests_name("cold_skip", tests, NULL, NULL);
}
