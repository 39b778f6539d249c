// SPDX-License-Identifier: Apache-2.0
/* Runs two or three daemons and five trainers as threads of one process, so that the thread and
 * address sanitizers see the whole path. */
#include "lib/crew.h"
#include "lib/inproc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static void test_train(void **state)
{
	struct inproc c;
	struct crew *crew = test_malloc(sizeof(*crew));

	(void)state;
	inproc_start(&c, NULL);
	crew_init(crew, "smoke");
	crew_add(crew, c.node[0].unix_address, 0);
	crew_add(crew, c.node[0].unix_address, 0);
	crew_add(crew, c.node[1].unix_address, 1);
	crew_add(crew, c.node[1].unix_address, 1);
	crew_add(crew, c.node[1].tcp_address, 1);
	crew_start(crew, 20);
	assert_int_equal(crew_finish(crew), 20);
	crew_check(crew, c.node[0].unix_address, 20);
	crew_check(crew, c.node[1].tcp_address, 20);
	for (uint32_t n = 0; n < c.nodes; n++) {
		assert_int_equal(inproc_count(&c.node[n], "refused_frames"), 0);
		/* event=world is logged when the world changed and not at each step. */
		assert_int_equal(inproc_logged(&c.node[n], "size=5 before="), 1);
	}
	inproc_stop(&c);
	test_free(crew);
}

/* The model stays for trainers that come later. Both daemons stop while no trainer is joined. */
static void test_again(void **state)
{
	struct inproc c;
	struct crew *crew = test_malloc(sizeof(*crew));

	(void)state;
	inproc_start(&c, NULL);
	crew_init(crew, "smoke");
	crew_add(crew, c.node[0].tcp_address, 0);
	crew_add(crew, c.node[1].unix_address, 1);
	for (uint64_t last = 3; last <= 9; last += 3) {
		crew_start(crew, last);
		assert_int_equal(crew_finish(crew), last);
		crew_check(crew, c.node[last % 2].unix_address, last);
	}
	inproc_stop(&c);
	test_free(crew);
}

/* Each of the two sums has three operands. With two operands a wrong order would not show, because
 * addition commutes. */
static void test_order(void **state)
{
	struct inproc_conf conf = {.nodes = 3};
	struct crew *crew = test_malloc(sizeof(*crew));
	struct inproc c;

	(void)state;
	inproc_start(&c, &conf);
	crew_init(crew, "order");
	crew_add(crew, c.node[2].unix_address, 2);
	crew_add(crew, c.node[0].unix_address, 0);
	crew_add(crew, c.node[1].unix_address, 1);
	crew_add(crew, c.node[0].unix_address, 0);
	crew_add(crew, c.node[0].tcp_address, 0);
	crew_start(crew, 5);
	assert_int_equal(crew_finish(crew), 5);
	crew_check(crew, c.node[1].unix_address, 5);
	inproc_stop(&c);
	test_free(crew);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {cmocka_unit_test(test_train),
						  cmocka_unit_test(test_again),
						  cmocka_unit_test(test_order)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
