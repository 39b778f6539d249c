// SPDX-License-Identifier: Apache-2.0
/* Tests that the example's samples are a function of (seed, step, index), and that a changed world
 * keeps the global batch. Dumps and their comparison must notice a single flipped bit, a missing
 * file and a short file. */
#include "examples/data.h"
#include "examples/dump.h"
#include "lib/compare.h"
#include "lib/rmtree.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { TEXT_BYTES = 5000, SEQ = 32 };

struct fixture {
	char dir[64], path[128], a[128], b[128];
	struct data data;
};

static void write_file(const char *path, const void *bytes, size_t n)
{
	FILE *f = fopen(path, "wb");

	assert_non_null(f);
	assert_int_equal(fwrite(bytes, 1, n, f), n);
	assert_int_equal(fclose(f), 0);
}

static int setup(void **state)
{
	struct fixture *x = calloc(1, sizeof(*x));
	uint8_t text[TEXT_BYTES];
	struct err e;

	assert_non_null(x);
	strcpy(x->dir, "/tmp/test_gpt_data.XXXXXX");
	assert_non_null(mkdtemp(x->dir));
	snprintf(x->path, sizeof(x->path), "%s/text", x->dir);
	snprintf(x->a, sizeof(x->a), "%s/a", x->dir);
	snprintf(x->b, sizeof(x->b), "%s/b", x->dir);
	for (int i = 0; i < TEXT_BYTES; i++)
		text[i] = (uint8_t)(i % 251 % 4); /* 0 to 3, almost equally often. */
	write_file(x->path, text, sizeof(text));
	assert_int_equal(data_load(&x->data, x->path, &e), SHARD_OK);
	*state = x;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *x = *state;

	data_deinit(&x->data);
	rmtree(x->dir);
	free(x);
	return 0;
}

/* --- samples --- */

static void samples_are_a_function_of_seed_step_and_index(void **state)
{
	struct fixture *x = *state;
	int moved = 0;

	for (uint64_t step = 1; step < 30; step++) {
		for (uint64_t i = 0; i < 16; i++) {
			const uint8_t *at = data_sample(&x->data, SEQ, 1, step, i);

			assert_true(at >= x->data.text &&
				    at + SEQ + 1 <= x->data.text + x->data.bytes);
			assert_ptr_equal(at, data_sample(&x->data, SEQ, 1, step, i));
			moved += at != data_sample(&x->data, SEQ, 2, step, i);
			moved += at != data_sample(&x->data, SEQ, 1, step + 1, i);
			moved += at != data_sample(&x->data, SEQ, 1, step, i + 1);
		}
	}
	assert_true(moved > 29 * 16 * 3 * 98 / 100);
}

static void every_start_can_be_drawn(void **state)
{
	struct fixture *x = *state;
	static uint8_t seen[TEXT_BYTES];

	for (uint64_t i = 0; i < 100000; i++)
		seen[data_sample(&x->data, SEQ, 1, 1, i) - x->data.text] = 1;
	for (int i = 0; i < TEXT_BYTES; i++)
		assert_int_equal(seen[i], i < TEXT_BYTES - SEQ);
}

static void shares_cover_the_batch_once(void **state)
{
	(void)state;
	for (uint64_t batch = 1; batch < 40; batch++) {
		for (uint32_t world = 1; world < 12; world++) {
			uint64_t next = 0, first, count, least = batch, most = 0;

			for (uint32_t rank = 0; rank < world; rank++) {
				data_share(batch, rank, world, &first, &count);
				assert_int_equal(first, next);
				next = first + count;
				least = count < least ? count : least;
				most = count > most ? count : most;
			}
			assert_int_equal(next, batch);
			assert_true(most - least <= 1);
		}
	}
}

static void entropy_is_that_of_the_bytes(void **state)
{
	struct fixture *x = *state;
	struct data one = {.text = (uint8_t[]){7, 7, 7, 7}, .bytes = 4};

	assert_true(fabs(data_entropy(&x->data) - log(4)) < 1e-3);
	assert_true(data_entropy(&one) == 0);
}

static void unusable_texts_are_refused(void **state)
{
	struct fixture *x = *state;
	struct data d;
	struct err e;

	assert_int_equal(data_load(&d, "/nonexistent/text", &e), SHARD_SYSTEM);
	assert_non_null(strstr(e.text, "/nonexistent/text"));
	assert_int_equal(data_load(&d, x->dir, &e), SHARD_SYSTEM);
	assert_non_null(strstr(e.text, "regular"));
	assert_null(data_too_short(&x->data, TEXT_BYTES - 1));
	assert_non_null(data_too_short(&x->data, TEXT_BYTES));
}

/* --- dumps --- */

static const float values[3] = {1.5f, -2.0f, 0.25f};

static void dump_twice(struct fixture *x)
{
	const char *const dirs[] = {x->a, x->b};
	struct err e;

	for (int i = 0; i < 2; i++) {
		assert_int_equal(dump_open(dirs[i], &e), SHARD_OK);
		assert_int_equal(dump_tensor(dirs[i], "wte.weight", SHARD_MASTER, values, 3, &e),
				 SHARD_OK);
		assert_int_equal(dump_tensor(dirs[i], "wte.weight", SHARD_EXP_AVG, values, 2, &e),
				 SHARD_OK);
	}
}

static bool equal(struct fixture *x, struct compare *c, char said[512])
{
	FILE *f = fmemopen(said, 512, "w");
	bool same;

	assert_non_null(f);
	memset(said, 0, 512);
	same = compare_folders(x->a, x->b, c, f);
	fclose(f);
	return same;
}

static void equal_dumps_are_equal(void **state)
{
	struct compare c;
	char said[512];

	dump_twice(*state);
	assert_true(equal(*state, &c, said));
	assert_string_equal(said, "");
	assert_int_equal(c.files, 2);
	assert_int_equal(c.bytes, 20);
}

static void every_flipped_bit_is_found(void **state)
{
	struct fixture *x = *state;
	struct compare c;
	struct err e;
	char said[512];

	dump_twice(x);
	for (unsigned bit = 0; bit < 96; bit++) {
		float changed[3];

		memcpy(changed, values, sizeof(changed));
		((uint8_t *)changed)[bit / 8] ^= (uint8_t)(1 << bit % 8);
		assert_int_equal(dump_tensor(x->b, "wte.weight", SHARD_MASTER, changed, 3, &e),
				 SHARD_OK);
		assert_false(equal(x, &c, said));
		assert_int_equal(c.different, 1);
	}
	assert_int_equal(dump_tensor(x->b, "wte.weight", SHARD_MASTER,
				     (const float[]){1.5f, 2.0f, 0.5f}, 3, &e),
			 SHARD_OK);
	assert_false(equal(x, &c, said));
	assert_string_equal(
		said, "wte.weight.master: element 1 differs: 0xc0000000 (-2) and 0x40000000 (2)\n");
	assert_int_equal(c.different, 2);
}

static void missing_and_short_files_are_found(void **state)
{
	struct fixture *x = *state;
	struct compare c;
	struct err e;
	char said[512], path[256];

	dump_twice(x);
	assert_int_equal(dump_tensor(x->b, "wte.weight", SHARD_MASTER, values, 2, &e), SHARD_OK);
	assert_false(equal(x, &c, said));
	assert_non_null(strstr(said, "12 and 8 bytes"));
	snprintf(path, sizeof(path), "%s/wte.weight.master.bin", x->b);
	write_file(path, values, 11);
	assert_false(equal(x, &c, said));
	write_file(path, values, 0);
	assert_false(equal(x, &c, said));
	assert_int_equal(unlink(path), 0);
	assert_false(equal(x, &c, said));
	assert_non_null(strstr(said, "wte.weight.master.bin: missing in"));
	assert_non_null(strstr(said, "/b\n"));
	snprintf(path, sizeof(path), "%s/wte.weight.master.bin", x->a);
	write_file(path, values, 0); /* Two empty folders are not equal either. */
	snprintf(path, sizeof(path), "%s/wte.weight.master.bin", x->b);
	write_file(path, values, 0);
	assert_false(equal(x, &c, said));
}

static void no_tensors_is_not_equal(void **state)
{
	struct fixture *x = *state;
	struct compare c;
	struct err e;
	char said[512];

	assert_false(equal(x, &c, said));
	assert_non_null(strstr(said, "cannot be read"));
	assert_int_equal(dump_open(x->a, &e), SHARD_OK);
	assert_int_equal(dump_open(x->b, &e), SHARD_OK);
	assert_false(equal(x, &c, said));
	assert_non_null(strstr(said, "no tensors"));
	assert_int_equal(dump_open(x->path, &e), SHARD_SYSTEM); /* A file is no folder. */
	assert_int_equal(dump_open("/nonexistent/a/b", &e), SHARD_SYSTEM);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(samples_are_a_function_of_seed_step_and_index),
		TEST(every_start_can_be_drawn),
		TEST(shares_cover_the_batch_once),
		TEST(entropy_is_that_of_the_bytes),
		TEST(unusable_texts_are_refused),
		TEST(equal_dumps_are_equal),
		TEST(every_flipped_bit_is_found),
		TEST(missing_and_short_files_are_found),
		TEST(no_tensors_is_not_equal),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
