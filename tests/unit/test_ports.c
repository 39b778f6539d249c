// SPDX-License-Identifier: Apache-2.0
/* Tests that several processes that take ports for the daemons of tests at the same time get
 * different ones. */
#include "lib/ports.h"

#include "base/check.h"

#include <stdbool.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

enum { PROCESSES = 8, EACH = 200 };

static void take_many(int out, int until)
{
	uint16_t port[EACH];
	char byte;

	for (int i = 0; i < EACH; i++)
		port[i] = ports_take();
	CHECK(write(out, port, sizeof(port)) == sizeof(port));
	CHECK(read(until, &byte, 1) == 0); /* All processes have theirs. */
	_exit(0);
}

static void test_all_differ(void **state)
{
	bool *seen = calloc(UINT16_MAX + 1, sizeof(*seen));
	uint16_t port[EACH];
	int out[2], until[2], status;

	(void)state;
	(void)ports_take(); /* A child that has its parent's file takes ports of its own. */
	assert_non_null(seen);
	CHECK(pipe(out) == 0 && pipe(until) == 0);
	for (int i = 0; i < PROCESSES; i++)
		if (fork() == 0) {
			close(until[1]);
			take_many(out[1], until[0]);
		}
	close(until[0]);
	for (int i = 0; i < PROCESSES; i++) {
		assert_int_equal(read(out[0], port, sizeof(port)), sizeof(port)); /* atomic */
		for (int k = 0; k < EACH; k++) {
			if (seen[port[k]])
				fail_msg("port %u is taken twice", port[k]);
			seen[port[k]] = true;
		}
	}
	close(until[1]);
	for (int i = 0; i < PROCESSES; i++)
		assert_true(wait(&status) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	free(seen);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_differ)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
