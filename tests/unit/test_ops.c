/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that the table of ops is complete, consistent, and in step with the core's own list. */
#include "core/core.h"
#include "wire/ops.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static void test_rows(void **state)
{
	(void)state;
	for (uint16_t op = 0; op < OP_NR; op++) {
		const struct wire_op_row *row = wire_op(op);

		if (!row)
			continue;
		assert_true(row->body_min <= row->body_max);
		assert_true(row->body_max <= WIRE_CONTROL_MAX);
		assert_true((row->body == BODY_NONE) == (row->body_max == 0));
		if (row->body == BODY_BULK || row->body == BODY_REPLY_BULK)
			assert_int_equal(row->body_max, WIRE_PART_BYTES);
		for (uint16_t other = 0; other < op; other++)
			if (wire_op(other))
				assert_string_not_equal(wire_op(other)->name, row->name);
	}
	assert_null(wire_op(0));
	assert_null(wire_op(OP_NR));
	assert_null(wire_op(65535));
}

static void test_core_ops(void **state)
{
	(void)state;
	assert_null(wire_op(OP_CORE));
	for (uint16_t op = 1; op < CORE_MSG_NR; op++)
		assert_non_null(wire_op((uint16_t)(OP_CORE + op)));
	assert_null(wire_op(OP_CORE + CORE_MSG_NR));
	assert_string_equal(wire_op(OP_CORE + CORE_VOTE)->name, "vote");
	assert_string_equal(wire_op(OP_CORE + CORE_WAITING)->name, "waiting");
	assert_string_equal(wire_op(OP_CORE + CORE_COMMIT)->name, "commit");
	assert_string_equal(wire_op(OP_CORE + CORE_JOIN)->name, "core_join");
}

static void test_senders(void **state)
{
	static const uint16_t daemon_only[] = {OP_ATTEMPT, OP_RESULT, OP_ENDED, OP_PUBLISHED,
					       OP_LOST};

	(void)state;
	for (size_t i = 0; i < sizeof(daemon_only) / sizeof(daemon_only[0]); i++)
		assert_int_equal(wire_op(daemon_only[i])->from, 0);
	assert_int_equal(wire_op(OP_PUSH)->from, 1 << ROLE_TRAINER);
	assert_int_equal(wire_op(OP_CONTRIB)->from, 1 << ROLE_NODE);
	for (uint16_t op = OP_CORE + 1; op < OP_CORE + CORE_MSG_NR; op++)
		assert_int_equal(wire_op(op)->from, 1 << ROLE_NODE);
}

/* Rows of the README's tables begin with "| number | NAME |". */
static void test_readme(void **state)
{
	FILE *f = fopen("proto/wire/README.md", "re");
	uint32_t seen = 0, rows = 0;
	char line[1024], name[64];
	unsigned op;

	(void)state;
	assert_non_null(f);
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "| %u | %63[A-Z_] |", &op, name) != 2)
			continue;
		for (char *c = name; *c; c++)
			*c = (char)tolower(*c);
		assert_non_null(wire_op((uint16_t)op));
		assert_string_equal(wire_op((uint16_t)op)->name, name);
		seen++;
	}
	fclose(f);
	for (uint16_t i = 0; i < OP_NR; i++)
		rows += wire_op(i) != NULL;
	assert_int_equal(seen, rows);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rows),
		cmocka_unit_test(test_core_ops),
		cmocka_unit_test(test_senders),
		cmocka_unit_test(test_readme),
	};

	return cmocka_run_group_tests_name("ops", tests, NULL, NULL);
}
