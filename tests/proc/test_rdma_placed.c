// SPDX-License-Identifier: Apache-2.0
/* A node that others put out of the view while one of them is still linked to it: what it writes by
 * RDMA over that link is judged by nobody, so the link has to end. The connection of nodes c and a
 * is cut, a coordinates, and puts c out before it is back. Then b ends its link to c, and c is
 * taken in over new queue pairs and fetches its copies. The verbs are those of rdma/fake.h. */
#include "base/clock.h"
#include "lib/crewed.h"
#include "lib/linked.h"
#include "lib/pace.h"
#include "rdma/fake.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/socket.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { FDS = 1024 };

/* The connections that nodes have dialled to this one: their descriptors, because all daemons are
 * threads of this process. Returns how many there are, at most two. */
static int dialled(const struct inproc_node *to, int fds[2])
{
	int nr = 0;

	for (int fd = 0; fd < FDS && nr < 2; fd++) {
		struct sockaddr_in peer;
		socklen_t bytes = sizeof(peer);

		if (getpeername(fd, (struct sockaddr *)&peer, &bytes) == 0 &&
		    peer.sin_family == AF_INET && ntohs(peer.sin_port) == to->port)
			fds[nr++] = fd;
	}
	return nr;
}

/* Cuts each connection of node c to node a, also one that has just been made, until node b says
 * that c is out of the view. */
static void keep_apart(struct inproc_node *n, int of_b)
{
	uint64_t by = pace_by(20);
	int fds[2];

	while (inproc_logged(&n[1], "is out of the view of") == 0) {
		int nr = dialled(&n[0], fds);

		assert_true(clock_ns() < by);
		for (int i = 0; i < nr; i++)
			if (fds[i] != of_b)
				(void)shutdown(fds[i], SHUT_RDWR);
		sched_yield();
	}
}

static void test_out_of_the_view(void **state)
{
	struct crewed *r = calloc(1, sizeof(*r));
	struct inproc_node *n = r->cluster.node;
	int of_b[2];

	(void)state;
	assert_non_null(r);
	fake_reset();
	inproc_prepare(&r->cluster, &(struct inproc_conf){.nodes = 3,
							  .net = "rdma_queue_pairs = 1",
							  .cluster = "heartbeat_timeout = 5s\n"
								     "lost_timeout = 60s\n"
								     "membership = static"});
	for (int i = 0; i < 2; i++)
		assert_int_equal(inproc_node_start(&n[i]), SHARD_OK);
	inproc_wait_log(&n[0], "event=link_up peer=b", 1);
	assert_int_equal(dialled(&n[0], of_b), 1);
	assert_int_equal(inproc_node_start(&n[2]), SHARD_OK);
	crew_init(&r->crew, "placed");
	crew_larger(&r->crew, 4);
	r->crew.extra = "replicas=2";
	for (uint32_t i = 0; i < 2; i++)
		crew_add(&r->crew, n[i].unix_address, i)->reconnects = true;
	linked_by_rdma(&r->cluster);
	crew_start(&r->crew, UINT64_MAX);
	crewed_steps(r, 5);
	keep_apart(n, of_b[0]);
	inproc_wait_log(&n[2], "event=learned model=placed", 1);
	linked_by_rdma(&r->cluster);
	crewed_steps(r, 5);
	crewed_end(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_out_of_the_view)};

	return cmocka_run_group_tests_name("rdma_placed", tests, NULL, NULL);
}
