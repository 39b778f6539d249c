// SPDX-License-Identifier: Apache-2.0
/* Tests what happens where RDMA is not available, from the start or for one model's memory. A crew
 * trains over TCP, and the status says why. When the reason is gone, RDMA is used. A daemon with
 * transport = rdma refuses to start. The verbs are those of rdma/fake.h. */
#include "base/check.h"
#include "lib/crewed.h"
#include "lib/linked.h"
#include "lib/secrets.h"
#include "rdma/fake.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static void cannot(const struct inproc_conf *conf, const char *why, void (*mend)(void))
{
	struct crewed *r = crewed_begin(conf);

	crew_start(&r->crew, UINT64_MAX);
	crewed_steps(r, 3);
	linked_await(&r->cluster.node[0], "b", "tcp_why", why);
	linked_await(&r->cluster.node[1], "a", "transport", "tcp");
	if (mend != NULL) {
		mend();
		linked_by_rdma(&r->cluster);
		crewed_steps(r, 3);
	}
	crewed_end(r);
}

static void unlock(void)
{
	fake_memlock(0);
}

static void memlock(void **state)
{
	(void)state;
	fake_reset();
	fake_memlock(4096);
	cannot(NULL, "memlock", unlock);
}

static void allow(void)
{
	fake_fail_always(FAKE_REG_MR, 0);
}

static void registration_refused(void **state)
{
	(void)state;
	fake_reset();
	fake_fail_always(FAKE_REG_MR, EPERM);
	cannot(NULL, "", allow);
}

static void no_device(void **state)
{
	(void)state;
	fake_reset();
	fake_devices(NULL, 0);
	cannot(NULL, "no RDMA device", NULL);
}

static void not_wanted(void **state)
{
	(void)state;
	fake_reset();
	cannot(&(struct inproc_conf){.net = "transport = tcp"}, "transport = tcp", NULL);
}

/* RDMA is not encrypted, so beside TLS tensors go by TCP, unless somebody says that the fabric is
 * trusted. The crew is on unix sockets. */
static void beside_tls(void **state)
{
	struct secrets f;
	char net[64];

	(void)state;
	fake_reset();
	assert_int_equal(secrets_make(&f), 0);
	cannot(&(struct inproc_conf){.net = "tls = psk", .cluster = f.line},
	       "[net] tls = psk on node a, and RDMA is not encrypted", NULL);
	for (int yes = 0; yes < 2; yes++) {
		struct inproc_conf conf = {.net = net, .cluster = f.line};
		struct inproc c;

		snprintf(net, sizeof(net), "transport = rdma\ntls = psk\nrdma_with_tls = %s",
			 yes ? "yes" : "no");
		inproc_prepare(&c, &conf);
		assert_int_equal(inproc_node_start(&c.node[0]), yes ? SHARD_OK : SHARD_BAD_ARG);
		if (yes) {
			assert_int_equal(inproc_node_start(&c.node[1]), SHARD_OK);
			linked_by_rdma(&c);
		} else {
			assert_non_null(
				strstr(c.node[0].why.text,
				       "transport = rdma beside tls: RDMA is not encrypted"));
		}
		inproc_stop(&c);
	}
	secrets_remove(&f);
}

/* The queue pairs can be made, and the model's memory cannot be registered. */
static void memory_of_the_model(void **state)
{
	struct crewed *r;

	(void)state;
	fake_reset();
	r = crewed_begin(NULL);
	linked_by_rdma(&r->cluster);
	fake_memlock(1);
	crew_start(&r->crew, UINT64_MAX);
	crewed_steps(r, 3);
	linked_await(&r->cluster.node[0], "b", "tcp_why", "memlock");
	fake_memlock(0);
	linked_by_rdma(&r->cluster);
	crewed_steps(r, 3);
	assert_true(linked_figure(&r->cluster.node[0], "b", "rdma_in_bytes") > 0);
	crewed_end(r);
}

static void insists(void **state)
{
	struct inproc c;

	(void)state;
	fake_reset();
	fake_devices(NULL, 0);
	inproc_prepare(&c, &(struct inproc_conf){.net = "transport = rdma"});
	assert_int_equal(inproc_node_start(&c.node[0]), SHARD_BAD_ARG);
	assert_non_null(strstr(c.node[0].why.text, "[net] transport = rdma: no RDMA device"));
	fake_reset();
	assert_int_equal(inproc_node_start(&c.node[0]), SHARD_OK);
	inproc_stop(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(memlock),    cmocka_unit_test(registration_refused),
		cmocka_unit_test(no_device),  cmocka_unit_test(not_wanted),
		cmocka_unit_test(beside_tls), cmocka_unit_test(memory_of_the_model),
		cmocka_unit_test(insists),
	};

	return cmocka_run_group_tests_name("rdma_fallback", tests, NULL, NULL);
}
