// SPDX-License-Identifier: Apache-2.0
/* A node is killed -9 in the middle of an applied step whose image is made of the one before
 * (image_codec). With its memory it makes that image again, so that no bit of a later one differs,
 * on either node. */
#include "lib/proc.h"
#include "lib/crew.h"
#include "lib/trap.h"

#include <signal.h>
#include <stdlib.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define AT(function_, nth_)                                                                        \
	{                                                                                          \
		.function = (function_), .nth = (nth_), .workers = "shardd-w"                      \
	}

/* A chunk's state is about to change; its image is made, and not kept yet; all chunks of the node
 * are; the step is told as applied. */
static const struct trap_point points[] = {AT("tile_apply", 1),       AT("tile_apply", 2),
					   AT("store_image_keep", 1), AT("store_image_keep", 2),
					   AT("apply_fed", 2),        AT("model_core_frame", 5)};

static struct cluster *cluster;
static struct crew crew;

static void more(uint64_t steps)
{
	crew_wait_step(&crew, crew_step(&crew) + steps);
}

static void killed_at(const struct trap_point *at, int node)
{
	struct trap t;

	trap_set(&t, cluster->node[node].pid, at);
	if (!trap_wait(&t, 10000))
		fail_msg("%s was not called %u times", at->function, at->nth);
	trap_kill(&t);
	cluster_wait(cluster, node, 5000);
	cluster_spawn(cluster, node);
	more(4);
}

static void kills(const char *extra)
{
	uint64_t last;

	if (!trap_here())
		skip();
	crew_init(&crew, "m");
	crew.extra = extra;
	cluster = cluster_make(2, NULL, "[cluster]\nheartbeat_timeout = 2s\n");
	cluster_warm(cluster, CLUSTER_TMPFS);
	cluster_up(cluster);
	for (int n = 0; n < 2; n++)
		crew_add(&crew, cluster->node[n].unix_address, (uint32_t)n)->reconnects = true;
	crew_start(&crew, UINT64_MAX);
	more(4);
	for (size_t i = 0; i < sizeof(points) / sizeof(points[0]); i++)
		for (int node = 0; node < 2; node++)
			killed_at(&points[i], node);
	last = crew_finish(&crew);
	for (int n = 0; n < 2; n++)
		crew_check(&crew, cluster->node[n].unix_address, last);
	cluster_done(&cluster);
}

static void one_image(void **state)
{
	(void)state;
	kills("image_codec=int8");
}

static void two_images(void **state)
{
	(void)state;
	kills("max_staleness=1 image_codec=int4");
}

static int teardown(void **state)
{
	(void)state;
	cluster_put_away(&cluster);
	return 0;
}

int main(void)
{
	static const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(one_image, teardown),
						  cmocka_unit_test_teardown(two_images, teardown)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
