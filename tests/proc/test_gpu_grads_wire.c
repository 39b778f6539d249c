// SPDX-License-Identifier: Apache-2.0
/* The call and the frames below gradients on a GPU (test_gpu_grads.c): shard_device_region() and
 * pushes with SHARD_DEVICE that cannot be are refused with a sentence, and so are frames that name
 * tensors which do not lie there. No memory of a GPU is mapped here. */
#include "base/check.h"
#include "lib/evil.h"
#include "lib/fakegpu.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/rawpeer.h"
#include "lib/trainer.h"
#include "shard.pb-c.h"
#include "wire/ops.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define SETTINGS "optimizer=sgd lr=1 chunk_elems=1024 min_world=1 tier=gpu"

static struct cluster *cluster;

static int teardown(void **state)
{
	(void)state;
	cluster_put_away(&cluster);
	return 0;
}

static void start(const char *more)
{
	char extra[100];

	snprintf(extra, sizeof(extra), "[daemon]\ngpu = auto\n%s", more);
	cluster = cluster_make(1, "", extra);
	cluster_up(cluster);
}

/* One asks twice, and for either device, and pushes what does and does not lie there. */
static void test_library(void **state)
{
	uint8_t uuid[17] = "\xfa\x4e"
			   "no GPU here.";
	int fd = -1, again = -1;
	struct trainer r, *t = &r;
	size_t bytes = 0;
	struct shard_spec s;

	(void)state;
	start("");
	trainer_spec(&s, SHARD_F32, SHARD_F32);
	s.settings = SETTINGS;
	trainer_define_as(t, cluster->node[0].unix_address, &s);
	EXPECT(SHARD_OK, shard_join(t->model, -1, pace_ms(10000), &t->world));
	EXPECT(SHARD_BAD_ARG, shard_device_region(t->model, SHARD_MASTER, uuid, &fd, &bytes));
	uuid[15] = 7;
	EXPECT(SHARD_UNSUPPORTED, shard_device_region(t->model, SHARD_GRAD, uuid, &fd, &bytes));
	EXPECT_TEXT("no memory for gradients");
	uuid[15] = 1;
	trainer_begin(t);
	EXPECT(SHARD_BAD_STATE, shard_push(t->model, 0, 0, 9, NULL, SHARD_F32, SHARD_DEVICE, NULL));
	EXPECT(SHARD_OK, shard_device_region(t->model, SHARD_GRAD, uuid, &fd, &bytes));
	EXPECT(SHARD_OK, shard_device_region(t->model, SHARD_GRAD, uuid, &again, &bytes));
	assert_true(fd >= 0 && again >= 0 && fd != again && bytes % (2 << 20) == 0 && bytes > 0);
	uuid[15] = 0;
	EXPECT(SHARD_BAD_STATE, shard_device_region(t->model, SHARD_GRAD, uuid, &again, &bytes));
	EXPECT(SHARD_BAD_ARG, shard_push(t->model, 0, 0, 9, &uuid, SHARD_F32, SHARD_DEVICE, NULL));
	EXPECT(SHARD_BAD_ARG,
	       shard_push(t->model, 0, 0, 9, NULL, SHARD_F32, SHARD_DEVICE | SHARD_SHARE, NULL));
	EXPECT(SHARD_OK, shard_push(t->model, 0, 0, 9, NULL, SHARD_F32, SHARD_DEVICE, NULL));
	EXPECT(SHARD_DUPLICATE, shard_push(t->model, 0, 8, 9, NULL, SHARD_F32, SHARD_DEVICE, NULL));
	EXPECT(SHARD_BAD_ARG, shard_push(t->model, 0, 9, 9, NULL, SHARD_F32, 0, NULL));
	EXPECT(SHARD_BAD_ARG, shard_push_none_range(t->model, 0, 9, 9));
	EXPECT_TEXT("with SHARD_DEVICE");
	EXPECT(SHARD_OK, shard_push(t->model, 2, 0, 9, NULL, SHARD_F32, 0, NULL));
	EXPECT(SHARD_BAD_ARG, shard_push(t->model, 2, 9, 9, NULL, SHARD_F32, SHARD_DEVICE, NULL));
	EXPECT_TEXT("without SHARD_DEVICE");
	EXPECT(SHARD_OK, shard_abandon(t->model, "it only asked"));
	close(fd);
	close(again);
	EXPECT(SHARD_OK, shard_leave(t->model, pace_ms(10000)));
	EXPECT(SHARD_BAD_STATE, shard_device_region(t->model, SHARD_GRAD, uuid, &fd, &bytes));
	trainer_end(t);
	cluster_done(&cluster);
}

static void asks(struct evil *v, uint32_t kind)
{
	struct wire_head h = {.op = OP_DEVICE, .attempt = 9, .model = v->model};
	uint8_t uuid[17] = "\xfa\x4e"
			   "no GPU here.";
	Shard__Device body = SHARD__DEVICE__INIT;

	h.generation = v->generation;
	body.uuid.data = uuid;
	body.uuid.len = 16;
	body.kind = kind;
	raw_send(&v->r, &h, &body.base);
}

/* Pushes that say what cannot be. */
static void test_frames(void **state)
{
	static uint32_t device[] = {0, 0}, share[] = {0, 0, 9}, none = 0;
	static const struct {
		bool asks;
		uint32_t n, tensor, shares, absent;
		const char *text;
	} wrong[] = {{false, 1, 0, 0, 0, "where this trainer has no memory"},
		     {true, 1, 3, 0, 0, "where it has no element"},
		     {true, 2, 0, 0, 0, "named twice"},
		     {true, 1, 0, 3, 0, "pushed in shares"},
		     {true, 1, 0, 0, 1, "absent"}};
	struct evil v;
	char *why;

	(void)state;
	start("");
	for (size_t i = 0; i <= NR(wrong); i++) {
		Shard__Push push = SHARD__PUSH__INIT;
		struct wire_head h;

		evil_open_as(&v, cluster->node[0].unix_address, SETTINGS);
		if (i == NR(wrong) || wrong[i].asks)
			asks(&v, i == NR(wrong) ? 2 : WIRE_DEVICE_GRADS);
		if (i < NR(wrong) && wrong[i].asks)
			assert_true(raw_expect(&v.r, OP_DEVICE));
		h = evil_head(&v, OP_PUSH, 0);
		device[0] = i < NR(wrong) ? wrong[i].tensor : 0;
		push.device = device;
		push.absent = &none;
		push.shares = share;
		if (i < NR(wrong)) {
			push.n_device = wrong[i].n;
			push.n_absent = wrong[i].absent;
			push.n_shares = wrong[i].shares;
			raw_send(&v.r, &h, &push.base);
		}
		why = raw_error(&v.r);
		assert_non_null(why);
		if (strstr(why, i < NR(wrong) ? wrong[i].text : "memory of kind 2") == NULL)
			fail_msg("%zu: %s", i, why);
		raw_close(&v.r);
	}
	cluster_done(&cluster);
}

static uint32_t descriptors(void)
{
	char path[64];
	uint32_t nr = 0;
	DIR *d;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)cluster->node[0].pid);
	d = opendir(path);
	CHECK(d != NULL);
	while (readdir(d) != NULL)
		nr++;
	closedir(d);
	return nr;
}

/* One asks over and over, and reads nothing: descriptors do not pile up in the daemon. */
static void test_flood(void **state)
{
	enum { ASKED = 2000, MORE_MAX = 300 };
	struct evil v, other;

	(void)state;
	start("");
	evil_open(&other, cluster->node[0].unix_address, EVIL_GREETED);
	for (uint32_t kind = WIRE_DEVICE_IMAGE; kind <= WIRE_DEVICE_GRADS; kind++) {
		uint32_t before, answers = 0;

		evil_open_as(&v, cluster->node[0].unix_address, SETTINGS);
		asks(&v, kind);
		assert_true(raw_expect(&v.r, OP_DEVICE));
		before = descriptors();
		for (uint32_t k = 0; k < ASKED; k++)
			asks(&v, kind);
		for (int turn = 0; turn < 50; turn++) { /* The daemon gets on meanwhile. */
			free(raw_status(&other.r));
			assert_true(descriptors() < before + MORE_MAX);
		}
		while (answers < ASKED) { /* Each has one. */
			assert_true(raw_recv(&v.r));
			answers += v.r.head.op == OP_DEVICE || v.r.head.op == OP_ERROR;
		}
		raw_close(&v.r);
	}
	raw_close(&other.r);
	cluster_done(&cluster);
}

/* While a thread makes the memory, its trainer goes and another one asks, the model is dropped, or
 * the daemon stops. */
static void test_meanwhile(void **state)
{
	(void)state;
	CHECK(setenv("FAKE_CUDA_DELAY_US", "60000", 1) == 0);
	for (int k = 0; k < 3; k++) {
		struct trainer other;
		struct evil v;

		start("gpu_memory = 9MiB\n"); /* For two trainers. */
		evil_open_as(&v, cluster->node[0].unix_address, SETTINGS);
		asks(&v, WIRE_DEVICE_GRADS);
		if (k == 0) {
			for (int gone = 0; gone < 5; gone++) { /* They leave nothing behind. */
				raw_close(&v.r);
				evil_open_as(&v, cluster->node[0].unix_address, SETTINGS);
				asks(&v, WIRE_DEVICE_GRADS);
			}
			while (raw_recv(&v.r) && v.r.head.op != OP_DEVICE)
				assert_int_not_equal(v.r.head.op, OP_ERROR);
			assert_int_equal(v.r.head.op, OP_DEVICE);
		} else if (k == 1) {
			trainer_connect(&other, cluster->node[0].unix_address);
			EXPECT(SHARD_OK, shard_drop(other.client, "evil", 1));
			trainer_end(&other);
		}
		cluster_done(&cluster);
		raw_close(&v.r);
	}
	CHECK(unsetenv("FAKE_CUDA_DELAY_US") == 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_library, teardown),
		cmocka_unit_test_teardown(test_frames, teardown),
		cmocka_unit_test_teardown(test_meanwhile, teardown),
		cmocka_unit_test_teardown(test_flood, teardown),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	CHECK(setenv("FAKE_CUDA_DEVICES", "2", 1) == 0);
	fakegpu_path(argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
