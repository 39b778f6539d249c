// SPDX-License-Identifier: Apache-2.0
/* Chunks move, and nodes leave and come back, while tensors go by RDMA: a node is drained and gets
 * its share again, twice, and is then stopped in mid-run and drained while it is away. It comes
 * back, and gets its share once more. Chunks that have moved travel by TCP beside those that travel
 * by RDMA. At the end all bits of every node equal the reference. The verbs are those of
 * rdma/fake.h, because all daemons are threads of this process. */
#include "base/clock.h"
#include "lib/crewed.h"
#include "lib/linked.h"
#include "lib/pace.h"
#include "lib/tool.h"
#include "rdma/fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { NODES = 3 };

static void drain(struct crewed *r, const char *words, const char *part)
{
	char line[240];

	snprintf(line, sizeof(line), "drain %s --timeout 20 --address %s", words,
		 r->cluster.node[0].unix_address);
	tool_expect(0, part, "shardctl", line);
}

/* How many chunks of the model node c has, as node a says. */
static json_int_t held(struct crewed *r)
{
	json_t *s = inproc_status(&r->cluster.node[0]), *m, *per;
	json_int_t nr;

	m = json_array_get(json_object_get(s, "models"), 0);
	per = json_object_get(json_object_get(m, "chunks"), "per_node");
	nr = json_integer_value(json_object_get(per, "c"));
	json_decref(s);
	return nr;
}

static void has_its_share(struct crewed *r)
{
	for (uint64_t until = pace_by(20); held(r) == 0; usleep(10000))
		assert_true(clock_ns() < until);
}

static void test_moves(void **state)
{
	struct crewed *r = calloc(1, sizeof(*r));
	struct inproc_node *n = r->cluster.node;

	assert_non_null(r);
	fake_reset();
	inproc_prepare(&r->cluster, &(struct inproc_conf){.nodes = NODES,
							  .net = "rdma_queue_pairs = 1",
							  .cluster = "heartbeat_timeout = 5s\n"
								     "lost_timeout = 1000s\n"
								     "membership = static"});
	for (int i = 0; i < NODES; i++)
		assert_int_equal(inproc_node_start(&n[i]), SHARD_OK);
	crew_init(&r->crew, "moved");
	crew_larger(&r->crew, 4);
	r->crew.extra = *state;
	for (uint32_t i = 0; i < 2; i++)
		crew_add(&r->crew, n[i].unix_address, i)->reconnects = true;
	linked_by_rdma(&r->cluster);
	crew_start(&r->crew, UINT64_MAX);
	crewed_steps(r, 5);
	for (int i = 0; i < 2; i++) {
		drain(r, "c", "node c is drained: it holds no chunks, and may be stopped");
		crewed_steps(r, 5);
		assert_int_equal(held(r), 0);
		drain(r, "--undo c", "node c holds its share of chunks again");
		has_its_share(r);
		crewed_steps(r, 5);
	}
	inproc_node_stop(&n[2]);
	crewed_steps(r, 5);
	drain(r, "c", "node c is drained, gone");
	crewed_steps(r, 5);
	assert_int_equal(inproc_node_start(&n[2]), SHARD_OK);
	linked_await(&n[0], "c", "state", "up"); /* Before, it would only be waited for again. */
	drain(r, "--undo c", "node c holds its share of chunks again");
	has_its_share(r);
	crewed_steps(r, 5);
	crewed_end(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_prestate(test_moves, (void *)"replicas=2"),
		{"codes", test_moves, NULL, NULL,
		 (void *)"replicas=2 image_codec=int8 grad_codec=int4 error_feedback=no"},
	};

	return cmocka_run_group_tests_name("rdma_moves", tests, NULL, NULL);
}
