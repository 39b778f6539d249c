// SPDX-License-Identifier: Apache-2.0
/* Tests that a model that was just defined on a single node has its first view at once, not only
 * with its next event. The model that was answered with created=1 is on the disk. */
#include "lib/inproc.h"
#include "lib/trainer.h"

#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static void test_alone(void **state)
{
	struct inproc_conf conf = {.nodes = 1};
	struct shard_spec s = SHARD_INIT(struct shard_spec);
	struct inproc c;
	struct trainer t;

	(void)state;
	inproc_start(&c, &conf);
	trainer_connect(&t, c.node[0].unix_address);
	trainer_spec(&s, SHARD_BF16, SHARD_BF16);
	EXPECT(SHARD_OK, shard_define(t.client, &s, &t.model, &t.created));
	assert_int_equal(t.created, 1);
	inproc_wait_log(&c.node[0], "event=view", 1);
	trainer_end(&t);
	inproc_stop(&c);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {cmocka_unit_test(test_alone)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
