/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that nothing on the step path allocates. After a few steps of two daemons the count of
 * lib/calm.h must stand still over a hundred steps. */
#include "lib/calm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static void no_allocation_in_a_step(void **state)
{
	(void)state;
	if (!calm_can())
		skip();
	assert_int_equal(0, calm_steps("transport = tcp", NULL, NULL, NULL));
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(no_allocation_in_a_step)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
