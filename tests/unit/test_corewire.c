/* SPDX-License-Identifier: Apache-2.0 */
/* A view over the wire and back is the same view: what operators changed and whether it is restored are in it. What no coordinator
 * says is refused; a file of before there was a tune reads as one without. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "corewire.h"

#include "base/check.h"
#include <math.h>
#include <string.h>

static const struct corewire_limits limits = {.chunks_nr = 2, .groups_nr = 1, .nodes_nr = 2};

struct fixture {
	struct arena arena;
	_Alignas(16) unsigned char memory[1 << 16];
	struct core_view view, back;
	Shard__View wire;
	struct err e;
};

static void pack(struct fixture *f)
{
	memset(f, 0, sizeof(*f));
	arena_init(&f->arena, f->memory, sizeof(f->memory));
	f->view = (struct core_view){.term = 7, .seq = 3, .generation = 2, .nodes_nr = 2, .incarnation = {7, 9}, .restoring = true};
	f->view.tune = (struct core_tune){
		.paused = true, .has_lr = true, .has_clip = true, .lr = 1e-3, .clip = 0.5, .resumed_step = 40, .resumed_skips = 4};
	assert_int_equal(corewire_pack_view(&f->view, &f->arena, &f->wire), SHARD_OK);
}

static void test_view(void **state)
{
	static struct fixture f;

	(void)state;
	pack(&f);
	assert_int_equal(corewire_unpack_view(&f.wire, &limits, &f.arena, &f.back, &f.e), SHARD_OK);
	assert_memory_equal(&f.view, &f.back, sizeof(f.view));
	f.wire.tune = NULL;
	assert_int_equal(corewire_unpack_view(&f.wire, &limits, &f.arena, &f.back, &f.e), SHARD_OK);
	assert_false(f.back.tune.paused || f.back.tune.has_lr || f.back.tune.has_clip);
}

static void test_small(void **state) /* memory that ends anywhere is told, never written past */
{
	static struct fixture f;
	size_t bytes = 0;

	(void)state;
	pack(&f);
	do {
		arena_init(&f.arena, f.memory, bytes);
		bytes += 16;
	} while (corewire_pack_view(&f.view, &f.arena, &f.wire) == SHARD_AGAIN && bytes < sizeof(f.memory));
	assert_true(bytes > 16 && bytes < sizeof(f.memory));
}

static void test_refused(void **state)
{
	static const double bad[] = {-1, (double)NAN, (double)INFINITY};
	static struct fixture f;

	(void)state;
	for (size_t i = 0; i < 2 * NR(bad); i++) {
		pack(&f);
		*(i % 2 ? &f.wire.tune->lr : &f.wire.tune->clip) = bad[i / 2];
		assert_int_equal(corewire_unpack_view(&f.wire, &limits, &f.arena, &f.back, &f.e), SHARD_PROTOCOL);
	}
	pack(&f);
	f.view.sealed = true;
	f.view.record.groups_nr = 1;
	assert_int_equal(corewire_pack_view(&f.view, &f.arena, &f.wire), SHARD_OK);
	assert_int_equal(corewire_unpack_view(&f.wire, &limits, &f.arena, &f.back, &f.e), SHARD_PROTOCOL);
	assert_non_null(strstr(f.e.text, "restoring"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_view), cmocka_unit_test(test_small),
					   cmocka_unit_test(test_refused)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
