// SPDX-License-Identifier: Apache-2.0
/* Tests that a save writes what has changed and shares the rest with the checkpoint before, on a
 * file system that can (lib/reflink.h). Most of the model is a frozen tensor and an expert that
 * gets no gradient. Each checkpoint is restored bit by bit when the ones before are removed, also
 * where only one element of the expert has changed, and a damaged one passes its damage on to
 * nobody. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/crew.h"
#include "lib/inproc.h"
#include "lib/keep.h"
#include "lib/pace.h"
#include "lib/reflink.h"
#include "lib/rmtree.h"
#include "ckpt/part.h"
#include "wire/xxh.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { BASE, EXPERT, HEAD, TENSORS };
enum { HEAD_ELEMS = 1000, EXPERT_ELEMS = 4 << 20, BASE_ELEMS = 16 << 20 };

static struct shard_tensor tensors[TENSORS] = {
	[BASE] = {.name = "base", .ndim = 1, .shape = {BASE_ELEMS}, .flags = SHARD_FROZEN},
	[EXPERT] = {.name = "expert", .ndim = 1, .shape = {EXPERT_ELEMS}},
	[HEAD] = {.name = "head", .ndim = 1, .shape = {HEAD_ELEMS}},
};

struct moe {
	struct inproc c;
	struct keep keep;
	shard_client *client;
	shard_model *m;
	float *memory; /* BASE_ELEMS */
};

static void must_define(struct moe *x)
{
	struct shard_spec s = SHARD_INIT(struct shard_spec);
	struct shard_world w = SHARD_INIT(struct shard_world);
	int created;

	s.name = "m";
	s.tensors = tensors;
	s.tensors_nr = TENSORS;
	s.image = SHARD_BF16;
	s.grad = SHARD_F32;
	s.settings = "optimizer=adamw lr=0.01 weight_decay=0";
	MUST(shard_define(x->client, &s, &x->m, &created));
	for (uint32_t t = 0; t < TENSORS; t++) {
		for (uint64_t i = 0; i < tensors[t].shape[0]; i++)
			x->memory[i] = (float)(i % 1021 + t) / 512;
		MUST(shard_write(x->m, SHARD_MASTER, t, 0, tensors[t].shape[0], SHARD_F32,
				 x->memory));
	}
	MUST(shard_seal(x->m, 0));
	MUST(shard_join(x->m, 0, pace_ms(20000), &w));
}

static int setup(void **state)
{
	const struct inproc_conf conf = {.daemon = "memory = 768MiB\n"};
	struct moe *x = calloc(1, sizeof(*x));

	CHECK(x != NULL && (x->memory = malloc(BASE_ELEMS * sizeof(float))) != NULL);
	reflink_is(REFLINK_COPIES);
	keep_init(&x->keep);
	inproc_start(&x->c, &conf);
	x->client = crew_connect(x->c.node[1].unix_address);
	must_define(x);
	*state = x;
	return 0;
}

static int teardown(void **state)
{
	struct moe *x = *state;

	shard_disconnect(&x->client);
	inproc_stop(&x->c);
	keep_free(&x->keep);
	reflink_is(REFLINK_REAL);
	free(x->memory);
	free(x);
	return 0;
}

/* The expert gets no gradient, or one for one of its elements. */
static void train(struct moe *x, bool expert)
{
	struct shard_step s = SHARD_INIT(struct shard_step);
	struct shard_result r = SHARD_INIT(struct shard_result);
	float g[HEAD_ELEMS], one = 1;

	MUST(shard_begin(x->m, NULL, &s));
	for (uint32_t i = 0; i < HEAD_ELEMS; i++)
		g[i] = (float)(i + s.step);
	MUST(shard_push(x->m, HEAD, 0, HEAD_ELEMS, g, SHARD_F32, 0, NULL));
	if (expert) {
		MUST(shard_push_none_range(x->m, EXPERT, 0, EXPERT_ELEMS - 1));
		MUST(shard_push(x->m, EXPERT, EXPERT_ELEMS - 1, 1, &one, SHARD_F32, 0, NULL));
	} else {
		MUST(shard_push_none(x->m, EXPERT));
	}
	MUST(shard_commit(x->m, NULL));
	MUST(shard_result(x->m, 0, SHARD_DEFAULT, &r));
	assert_int_equal(r.outcome, SHARD_APPLIED);
}

static uint64_t digest(struct moe *x)
{
	const enum shard_kind kinds[] = {SHARD_MASTER, SHARD_EXP_AVG, SHARD_EXP_AVG_SQ};
	uint64_t sum = 0;

	for (uint32_t t = 0; t < TENSORS; t++)
		for (size_t k = 0; k < (t == BASE ? 1 : NR(kinds)); k++) {
			uint64_t step = 0, n = tensors[t].shape[0];

			MUST(shard_read(x->m, kinds[k], t, 0, n, SHARD_F32, x->memory, &step));
			sum = xxh_sum(x->memory, n * sizeof(float), sum);
		}
	return sum;
}

struct saved {
	uint64_t bytes, shared, digest;
};

static struct saved save(struct moe *x, const char *tag)
{
	json_t *all, *last;
	struct saved s = {.digest = digest(x)};

	reflink_is(REFLINK_COPIES);
	keep_must_save(x->c.node[0].unix_address, "m", x->keep.dir, tag);
	all = inproc_status(&x->c.node[0]);
	last = json_object_get(
		json_object_get(json_array_get(json_object_get(all, "models"), 0), "checkpoint"),
		"last");
	s.bytes = (uint64_t)json_integer_value(json_object_get(last, "bytes"));
	s.shared = (uint64_t)json_integer_value(json_object_get(last, "shared_bytes"));
	json_decref(all);
	assert_true(s.bytes > (BASE_ELEMS + 3 * EXPERT_ELEMS) * sizeof(float));
	assert_true(s.shared <= reflink_bytes());
	return s;
}

static void remove_tag(struct moe *x, const char *tag)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/%s", x->keep.dir, tag);
	rmtree(path);
}

static void check_restored(struct moe *x, const char *tag, const struct saved *s)
{
	shard_detach(&x->m);
	MUST(shard_drop(x->client, "m", 1));
	keep_must_restore(x->c.node[0].unix_address, x->keep.dir, tag, NULL);
	MUST(shard_attach(x->client, "m", &x->m));
	assert_int_equal(digest(x), s->digest);
}

static void shares_what_stays(void **state)
{
	struct moe *x = *state;
	struct saved first, head, one, same;

	train(x, false);
	first = save(x, "first");
	assert_int_equal(first.shared, 0);
	train(x, false);
	head = save(x, "head");
	/* Pieces with weights of the head, and with its moments. */
	assert_in_range(head.bytes - head.shared, 1, 4 * PART_PIECE_BYTES);
	assert_true(head.digest != first.digest);
	train(x, true);
	one = save(x, "one");
	assert_in_range(one.bytes - one.shared, head.bytes - head.shared, 8 * PART_PIECE_BYTES);
	same = save(x, "same");
	assert_int_equal(same.shared, same.bytes);
	assert_int_equal(inproc_logged(&x->c.node[0], " shared=0 "), 1);
	remove_tag(x, "first");
	remove_tag(x, "head");
	remove_tag(x, "same");
	check_restored(x, "one", &one);
}

static void *saves(void *arg)
{
	struct moe *x = arg;

	keep_must_save(x->c.node[0].unix_address, "m", x->keep.dir, "second");
	return NULL;
}

/* While it is written, status says of what both nodes have done how much they share. */
static void says_so_meanwhile(void **state)
{
	uint64_t by = pace_by(20);
	struct moe *x = *state;
	json_int_t shared = 0;
	pthread_t thread;

	train(x, false);
	(void)save(x, "first");
	reflink_stops(6);
	assert_int_equal(pthread_create(&thread, NULL, saves, x), 0);
	while (shared == 0 && clock_ns() < by) {
		json_t *all = inproc_status(&x->c.node[0]), *c;

		c = json_object_get(json_array_get(json_object_get(all, "models"), 0),
				    "checkpoint");
		shared = json_integer_value(json_object_get(c, "shared_bytes"));
		json_decref(all);
		usleep(10000);
	}
	assert_true(shared > 0 && shared % PART_PIECE_BYTES == 0);
	reflink_is(REFLINK_COPIES);
	assert_int_equal(pthread_join(thread, NULL), 0);
}

/* Of the checkpoint before one bit flips, in what the next one would share. */
static void shares_no_damage(void **state)
{
	struct moe *x = *state;
	struct saved first, next;

	train(x, false);
	first = save(x, "first");
	keep_flip(x->keep.dir, "first", "node-a.safetensors", PART_PIECE_BYTES + 77);
	next = save(x, "next");
	assert_int_equal(next.bytes - next.shared, PART_PIECE_BYTES);
	assert_int_equal(next.digest, first.digest);
	remove_tag(x, "first");
	check_restored(x, "next", &next);
	/* The daemon that restored it knows nothing of the save, and finds out by the bytes. */
	next = save(x, "again");
	assert_int_equal(next.shared, next.bytes);
	remove_tag(x, "next");
	check_restored(x, "again", &next);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {TEST(shares_what_stays), TEST(shares_no_damage),
					   TEST(says_so_meanwhile)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
