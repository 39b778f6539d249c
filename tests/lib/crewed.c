// SPDX-License-Identifier: Apache-2.0
/* Starts a cluster in this process and its crew, and checks the crew's result at the end. Tests
 * call it. What is wrong fails the test. */
#include "lib/crewed.h"

#include "base/check.h"

#include <stdlib.h>

struct crewed *crewed_begin(const struct inproc_conf *conf)
{
	struct crewed *r = calloc(1, sizeof(*r));

	CHECK(r != NULL);
	inproc_start(&r->cluster, conf);
	crew_init(&r->crew, "m");
	for (uint32_t i = 0; i < r->cluster.nodes; i++)
		crew_add(&r->crew, r->cluster.node[i].unix_address, i);
	return r;
}

void crewed_steps(struct crewed *r, uint64_t steps)
{
	crew_wait_step(&r->crew, crew_step(&r->crew) + steps);
}

void crewed_end(struct crewed *r)
{
	uint64_t last = crew_finish(&r->crew);

	for (uint32_t i = 0; i < r->cluster.nodes; i++)
		crew_check(&r->crew, r->cluster.node[i].unix_address, last);
	inproc_stop(&r->cluster);
	free(r);
}
