// SPDX-License-Identifier: Apache-2.0
/* Tests that over RDMA (rdma/fake.h) nothing on the step path allocates, registers memory or gives
 * any back, in a hundred steps whose tensor bytes all went that way. */
#include "lib/calm.h"
#include "lib/linked.h"
#include "rdma/fake.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum {
	/* The bytes of a step in both directions together. Half of a model of 5558 bf16 numbers
	 * goes to the other node, and as much comes back. */
	STEP_BYTES = 2 * 5000
};

struct before {
	uint32_t registered;
	struct fake_live live;
	json_int_t in[2];
};

static void warm(struct inproc *c, void *arg)
{
	struct before *b = arg;

	linked_by_rdma(c);
	b->registered = fake_calls(FAKE_REG_MR);
	b->live = fake_live();
	b->in[0] = linked_figure(&c->node[0], "b", "rdma_in_bytes");
	b->in[1] = linked_figure(&c->node[1], "a", "rdma_in_bytes");
}

static void stepped(struct inproc *c, void *arg)
{
	const struct before *b = arg;
	struct fake_live live = fake_live();

	assert_int_equal(fake_calls(FAKE_REG_MR), b->registered);
	assert_memory_equal(&live, &b->live, sizeof(live));
	assert_true(linked_figure(&c->node[0], "b", "rdma_in_bytes") - b->in[0] +
			    linked_figure(&c->node[1], "a", "rdma_in_bytes") - b->in[1] >
		    CALM_STEPS * STEP_BYTES);
}

static void no_allocation_in_a_step(void **state)
{
	struct before b;

	(void)state;
	if (!calm_can())
		skip();
	fake_reset();
	assert_int_equal(0, calm_steps(NULL, warm, stepped, &b));
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(no_allocation_in_a_step)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
