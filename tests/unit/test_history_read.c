/* SPDX-License-Identifier: Apache-2.0 */
/* Tests what `shardctl history` makes of the pages of a node: of which steps an entry is, so that a
 * part of the history has all that is said of it, where damage lies, and names that are none. */
#include "base/check.h"
#include "ctl/history.h"
#include "wire/history.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct seen {
	json_t *all; /* [kind, first, last, entry] of each. */
	unsigned char bytes[4096];
	size_t used;
};

static void on_entry(void *arg, json_t *e, uint64_t first, uint64_t last)
{
	struct seen *s = arg;

	json_array_append_new(s->all, json_pack("[O, I, I, o]", json_object_get(e, "kind"),
						(json_int_t)first, (json_int_t)last, e));
}

static void put(struct seen *s, uint64_t number, const Shard__HistoryEntry *x)
{
	size_t bytes = shard__history_entry__get_packed_size(x);

	CHECK(s->used + HISTORY_HEAD_BYTES + bytes <= sizeof(s->bytes));
	shard__history_entry__pack(x, s->bytes + s->used + HISTORY_HEAD_BYTES);
	history_seal(s->bytes + s->used, number, (uint32_t)bytes);
	s->used += HISTORY_HEAD_BYTES + bytes;
}

static void put_step(struct seen *s, uint64_t number, uint64_t step)
{
	Shard__HistoryEntry x = SHARD__HISTORY_ENTRY__INIT;
	Shard__Record r = SHARD__RECORD__INIT;
	Shard__Id id = SHARD__ID__INIT;
	Shard__Rank rank = SHARD__RANK__INIT, *world[] = {&rank};

	id.step = step;
	id.generation = 1;
	r.id = &id;
	r.outcome = 1;
	r.world = world;
	r.n_world = 1;
	x.kind = HISTORY_STEP;
	x.record = &r;
	put(s, number, &x);
}

static void read_all(struct seen *s)
{
	struct history_reader *r = history_reader_new(on_entry, s);
	Shard__HistoryPage p = SHARD__HISTORY_PAGE__INIT;

	assert_non_null(r);
	s->all = json_array();
	p.node = (char *)(uintptr_t) "a\xff";
	p.file = 1;
	p.bytes.data = s->bytes;
	p.bytes.len = s->used;
	p.end = true;
	assert_true(history_reader_page(r, &p));
	history_reader_free(r);
}

static const json_t *expect(const struct seen *s, size_t i, const char *kind, json_int_t first,
			    json_int_t last)
{
	const json_t *x = json_array_get(s->all, i);

	assert_non_null(x);
	assert_string_equal(json_string_value(json_array_get(x, 0)), kind);
	assert_int_equal(json_integer_value(json_array_get(x, 1)), first);
	assert_int_equal(json_integer_value(json_array_get(x, 2)), last);
	return json_array_get(x, 3);
}

static void of_which_steps(void **state)
{
	Shard__HistoryEntry gap = SHARD__HISTORY_ENTRY__INIT;
	struct seen s = {.used = 0};

	(void)state;
	gap.kind = HISTORY_GAP;
	gap.first = 6;
	gap.last = 9;
	put_step(&s, 1, 1);
	put_step(&s, 2, 5);
	put(&s, 3, &gap);
	put_step(&s, 4, 10);
	read_all(&s);
	assert_int_equal(json_array_size(s.all), 5);
	expect(&s, 0, "step", 1, 1);
	expect(&s, 1, "missing", 2, 4);
	expect(&s, 2, "step", 5, 5);
	expect(&s, 3, "gap", 6, 9);
	expect(&s, 4, "step", 10, 10);
	json_decref(s.all);
}

/* Wherever it lies: it is said of its own bytes, and may hide what follows. */
static void where_damage_lies(void **state)
{
	struct seen s = {.used = 0};
	size_t second, third;
	const json_t *e;

	(void)state;
	put_step(&s, 1, 1);
	second = s.used;
	put_step(&s, 3, 2); /* Number 2 is missing. */
	third = s.used;
	put_step(&s, 4, 3);
	s.bytes[third] ^= 1;
	read_all(&s);
	assert_int_equal(json_array_size(s.all), 4);
	expect(&s, 0, "step", 1, 1);
	e = expect(&s, 1, "damaged", 1, -1);
	assert_int_equal(json_integer_value(json_object_get(e, "offset")), second);
	expect(&s, 2, "step", 2, 2);
	e = expect(&s, 3, "damaged", 2, -1);
	assert_int_equal(json_integer_value(json_object_get(e, "offset")), third);
	json_decref(s.all);
}

/* A name that is no text is "?", and what it stands in is there all the same. */
static void names(void **state)
{
	Shard__HistoryEntry model = SHARD__HISTORY_ENTRY__INIT;
	Shard__HistoryNode node = SHARD__HISTORY_NODE__INIT, *nodes[] = {&node};
	struct seen s = {.used = 0};
	const json_t *e;

	(void)state;
	node.name = (char *)(uintptr_t) "\xfe";
	model.kind = HISTORY_MODEL;
	model.nodes = nodes;
	model.n_nodes = 1;
	put(&s, 1, &model);
	put_step(&s, 2, 1);
	read_all(&s);
	e = expect(&s, 1, "step", 1, 1);
	assert_string_equal(json_string_value(json_object_get(e, "node")), "?");
	e = json_array_get(json_object_get(json_object_get(e, "record"), "world"), 0);
	assert_string_equal(json_string_value(json_object_get(e, "node")), "?");
	json_decref(s.all);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(of_which_steps),
		cmocka_unit_test(where_damage_lies),
		cmocka_unit_test(names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
