// SPDX-License-Identifier: Apache-2.0
// check: all
/* Tests RDMA that fails in mid-run, in every way that verbs know, while a crew trains. The log says
 * so, the attempt is made again over TCP, RDMA is back after its time, and the bits are right. The
 * verbs are those of rdma/fake.h. */
#include "base/check.h"
#include "lib/crewed.h"
#include "lib/linked.h"
#include "rdma/fake.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static void work_fails(void)
{
	fake_fail_work(20, IBV_WC_RETRY_EXC_ERR);
}

static void access_refused(void)
{
	fake_fail_work(7, IBV_WC_REM_ACCESS_ERR);
}

static void queue_flushed(void)
{
	uint32_t qpn[16], nr = fake_qps(qpn, 16);

	assert_true(nr > 0);
	fake_break_qp(qpn[nr / 2]);
}

static void queue_fatal(void)
{
	uint32_t qpn[16], nr = fake_qps(qpn, 16);

	assert_true(nr > 0);
	fake_qp_event(qpn[nr - 1], IBV_EVENT_QP_FATAL);
}

static void half_open(void)
{
	fake_cut(0, true);
}

static void posting_fails(void)
{
	fake_fail(FAKE_POST_SEND, 5, ENOMEM);
}

static void polling_fails(void)
{
	fake_fail(FAKE_POLL_CQ, 3, EIO);
}

static const struct fault {
	const char *name;
	void (*happens)(void);
} faults[] = {
	{"a request that is not acknowledged", work_fails},
	{"access refused", access_refused},
	{"flushed", queue_flushed},
	{"queue pair fatal", queue_fatal},
	{"half-open", half_open},
	{"no more requests", posting_fails},
	{"no completions", polling_fails},
};

static void mid_run(void **state)
{
	const struct fault *f = *state;
	struct crewed *r;
	uint32_t downs = 0;

	fake_reset();
	r = crewed_begin(&(struct inproc_conf){.cluster = "heartbeat_timeout = 1s"});
	crew_start(&r->crew, UINT64_MAX);
	linked_by_rdma(&r->cluster);
	crewed_steps(r, 5);
	f->happens();
	inproc_wait_log(&r->cluster.node[0], "event=link_down", 1);
	for (uint32_t i = 0; i < 2; i++)
		downs += inproc_logged(&r->cluster.node[i], "event=rdma_down");
	assert_true(downs > 0);
	fake_cut(0, false);
	crewed_steps(r, 3);
	linked_by_rdma(&r->cluster); /* RDMA is up again on the same link. */
	crewed_steps(r, 5);
	assert_true(linked_figure(&r->cluster.node[0], "b", "rdma_in_bytes") > 0);
	crewed_end(r);
	assert_int_equal(fake_rnr(), 0);
}

static void device_removed(void **state)
{
	static const struct fake_device again = {.name = "fake0",
						 .gid = {{"127.0.0.1", IBV_GID_TYPE_ROCE_V2}}};
	struct crewed *r;

	(void)state;
	fake_reset();
	r = crewed_begin(NULL);
	crew_start(&r->crew, UINT64_MAX);
	linked_by_rdma(&r->cluster);
	crewed_steps(r, 5);
	fake_remove("fake0");
	for (int i = 0; i < 2; i++) {
		inproc_wait_log(&r->cluster.node[i], "event=rdma_gone", 1);
		/* The device is searched for again without success. */
		inproc_wait_log(&r->cluster.node[i], "event=rdma_off", 1);
	}
	crewed_steps(r, 5);
	linked_await(&r->cluster.node[0], "b", "transport", "tcp");
	fake_devices(&again, 1);
	linked_by_rdma(&r->cluster);
	crewed_steps(r, 5);
	crewed_end(r);
}

static void peer_gone(void **state)
{
	struct crewed *r;

	(void)state;
	fake_reset();
	r = crewed_begin(NULL);
	linked_by_rdma(&r->cluster);
	inproc_node_stop(&r->cluster.node[1]);
	inproc_wait_log(&r->cluster.node[0], "event=link_down", 1);
	assert_int_equal(inproc_node_start(&r->cluster.node[1]), SHARD_OK);
	linked_by_rdma(&r->cluster);
	crew_start(&r->crew, UINT64_MAX);
	crewed_steps(r, 5);
	assert_true(linked_figure(&r->cluster.node[0], "b", "rdma_in_bytes") > 0);
	crewed_end(r);
}

int main(void)
{
	struct CMUnitTest tests[NR(faults) + 2];
	size_t nr = 0;

	for (; nr < NR(faults); nr++)
		tests[nr] = (struct CMUnitTest){faults[nr].name, mid_run, NULL, NULL,
						(void *)(uintptr_t)&faults[nr]};
	tests[nr++] = (struct CMUnitTest)cmocka_unit_test(device_removed);
	tests[nr++] = (struct CMUnitTest)cmocka_unit_test(peer_gone);
	assert_int_equal(nr, NR(tests));
	return cmocka_run_group_tests_name("rdma_faults", tests, NULL, NULL);
}
