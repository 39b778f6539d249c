// SPDX-License-Identifier: Apache-2.0
/* Tests real daemons over a real RDMA device, which may be soft-RoCE. A crew trains the same bits
 * over TCP and over RDMA. RDMA works again after a node was killed with kill -9. transport = rdma
 * refuses a device that does not exist. Fails if there is no device; `make vm` has one. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/crew.h"
#include "lib/linked.h"
#include "lib/proc.h"

#include <infiniband/verbs.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define SLOW  "[cluster]\nheartbeat_timeout = 60s\n"
#define STEPS 12

static struct inproc_node at(const struct cluster *c, int node)
{
	struct inproc_node n = {.server = NULL};

	snprintf(n.unix_address, sizeof(n.unix_address), "%s", c->node[node].unix_address);
	return n;
}

static void trained_right(struct cluster *cluster, const char *name, bool rdma)
{
	struct inproc_node a = at(cluster, 0), b = at(cluster, 1);
	struct crew *c = calloc(1, sizeof(*c));
	uint64_t last;

	CHECK(c != NULL);
	linked_await(&a, "b", "transport", rdma ? "rdma" : "tcp");
	linked_await(&b, "a", "transport", rdma ? "rdma" : "tcp");
	crew_init(c, name);
	for (int i = 0; i < 2; i++)
		crew_add(c, cluster->node[i].unix_address, (uint32_t)i);
	crew_start(c, UINT64_MAX);
	crew_wait_step(c, STEPS);
	last = crew_finish(c);
	for (int i = 0; i < 2; i++)
		crew_check(c, cluster->node[i].unix_address, last);
	assert_int_equal(linked_figure(&a, "b", "rdma_in_bytes") > 0, rdma);
	assert_int_equal(linked_figure(&b, "a", "rdma_in_bytes") > 0, rdma);
	assert_int_equal(linked_figure(&a, "b", "rdma_failures"), 0);
	free(c);
}

static void bits_over_tcp(void **state)
{
	struct cluster **c = (struct cluster **)state;

	*c = cluster_start(2, NULL, "[net]\ntransport = tcp\n" SLOW);
	trained_right(*c, "m", false);
	cluster_done(c);
}

static void bits_over_rdma(void **state)
{
	struct cluster **c = (struct cluster **)state;

	*c = cluster_start(2, NULL, "[net]\ntransport = rdma\n" SLOW);
	trained_right(*c, "m", true);
	cluster_done(c);
}

static void bits_without_sums(void **state)
{
	struct cluster **c = (struct cluster **)state;

	*c = cluster_start(
		2, NULL,
		"[net]\nrdma_checksum = no\nrdma_queue_pairs = 2\nrdma_busy_poll_us = 50\n" SLOW);
	trained_right(*c, "m", true);
	cluster_done(c);
}

static void killed(void **state)
{
	struct cluster **c = (struct cluster **)state;
	struct inproc_node a;

	*c = cluster_start(2, NULL, SLOW);
	trained_right(*c, "before", true);
	cluster_kill(*c, 1);
	a = at(*c, 0);
	linked_await(&a, "b", "state", "down");
	cluster_spawn(*c, 1);
	cluster_ready(*c, 1);
	trained_right(*c, "after", true);
	cluster_done(c);
}

/* The memory of the node is there when it is back, so the crew goes on where it was. The trainer of
 * the node connects again. */
static void killed_and_warm(void **state)
{
	struct cluster **cluster = (struct cluster **)state;
	struct crew *c = calloc(1, sizeof(*c));
	struct inproc_node a;
	uint64_t last;

	CHECK(c != NULL);
	*cluster = cluster_make(2, NULL, SLOW);
	cluster_warm(*cluster, CLUSTER_TMPFS);
	for (int i = 0; i < 2; i++)
		cluster_spawn(*cluster, i);
	for (int i = 0; i < 2; i++)
		cluster_ready(*cluster, i);
	a = at(*cluster, 0);
	linked_await(&a, "b", "transport", "rdma");
	crew_init(c, "m");
	for (int i = 0; i < 2; i++)
		crew_add(c, (*cluster)->node[i].unix_address, (uint32_t)i)->reconnects = true;
	crew_start(c, UINT64_MAX);
	crew_wait_step(c, STEPS);
	cluster_kill(*cluster, 1);
	linked_await(&a, "b", "state", "down");
	cluster_spawn(*cluster, 1);
	cluster_ready(*cluster, 1);
	linked_await(&a, "b", "transport", "rdma");
	crew_wait_step(c, crew_step(c) + STEPS);
	last = crew_finish(c);
	for (int i = 0; i < 2; i++)
		crew_check(c, (*cluster)->node[i].unix_address, last);
	a = at(*cluster, 1);
	assert_true(linked_figure(&a, "a", "rdma_in_bytes") > 0);
	cluster_done(cluster);
	free(c);
}

static void refuses(void **state)
{
	struct cluster **c = (struct cluster **)state;
	char *log;
	int status;

	*c = cluster_make(2, NULL, "[net]\ntransport = rdma\nrdma_device = nonesuch\n" SLOW);
	cluster_spawn(*c, 0);
	status = cluster_wait(*c, 0, 20000);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 4);
	log = cluster_log(*c, 0);
	if (strstr(log, "[net] transport = rdma: ") == NULL || strstr(log, "nonesuch") == NULL)
		fail_msg("the log does not say why:\n%s", log);
	free(log);
	cluster_done(c);
}

static int put_away(void **state)
{
	cluster_put_away((struct cluster **)state);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(bits_over_tcp, put_away),
		cmocka_unit_test_teardown(bits_over_rdma, put_away),
		cmocka_unit_test_teardown(bits_without_sums, put_away),
		cmocka_unit_test_teardown(killed, put_away),
		cmocka_unit_test_teardown(killed_and_warm, put_away),
		cmocka_unit_test_teardown(refuses, put_away),
	};
	struct ibv_device **devices;
	int nr = 0;

	devices = ibv_get_device_list(&nr);
	if (devices == NULL || nr == 0) {
		fprintf(stderr,
			"no RDMA device here: run this in a guest that has one, `make vm`\n");
		return 1;
	}
	ibv_free_device_list(devices);
	return cmocka_run_group_tests_name("rdma_daemons", tests, NULL, NULL);
}
