/* SPDX-License-Identifier: Apache-2.0 */
/* Tests where a layout finds the segment of a tensor in a chunk: in lists in the order of segments,
 * in others, and for tensors that have no element there. */
#include "base/check.h"
#include "wire/layout.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

enum { TENSORS = 100, CHUNK = 1024 };

static struct layout *many_tensors(void)
{
	static char names[TENSORS][8];
	struct shard_tensor t[TENSORS];
	struct layout *l = NULL;
	struct err e;

	for (uint32_t i = 0; i < TENSORS; i++) {
		snprintf(names[i], sizeof(names[i]), "t%u", i);
		t[i] = (struct shard_tensor){.name = names[i], .ndim = 1, .shape = {1 + i * 7}};
	}
	assert_int_equal(layout_init(&l, t, TENSORS, 0, SHARD_BF16, CHUNK, &e), SHARD_OK);
	return l;
}

static void segments_are_found(void **state)
{
	struct layout *l = many_tensors();

	(void)state;
	for (uint32_t c = 0; c < l->chunks_nr; c++) {
		uint32_t first = l->chunk_segment[c], end = l->chunk_segment[c + 1], at = first;

		assert_true(end > first);
		for (uint32_t s = first; s < end; s++) { /* In order. */
			assert_true(layout_find_segment(l, c, l->segment_tensor[s], &at));
			assert_int_equal(at, s);
		}
		for (uint32_t s = end; s-- > first;) { /* In no order that the search expects. */
			assert_true(layout_find_segment(l, c, l->segment_tensor[s], &at));
			assert_int_equal(at, s);
		}
		for (uint32_t t = 0; t < TENSORS + 5; t++) {
			bool here =
				t >= l->segment_tensor[first] && t <= l->segment_tensor[end - 1];

			assert_int_equal(layout_find_segment(l, c, t, &at), here);
			at = at == end ? first : at;
		}
	}
	layout_free(&l);
}

/* A tensor that comes twice in a chunk is none of a layout. Here it tells where a search began. */
static void a_search_begins_where_the_last_one_ended(void **state)
{
	struct layout *l = many_tensors();
	uint32_t first = l->chunk_segment[0], at = first + 2;

	(void)state;
	assert_true(l->chunk_segment[1] - first > 5);
	l->segment_tensor[first] = l->segment_tensor[first + 5];
	assert_true(layout_find_segment(l, 0, l->segment_tensor[first + 5], &at));
	assert_int_equal(at, first + 5);
	layout_free(&l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(segments_are_found),
		cmocka_unit_test(a_search_begins_where_the_last_one_ended)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
