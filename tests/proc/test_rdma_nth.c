// SPDX-License-Identifier: Apache-2.0
// check: all
/* For every N the N-th call of the verbs library fails while two daemons start and a crew trains.
 * With transport = auto they start, train and stop all the same, with the right bits, and nothing
 * stays behind. The calls of a running step repeat those of the step before, so not every one of
 * them is tried. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/crewed.h"
#include "lib/linked.h"
#include "lib/pace.h"
#include "rdma/fake.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { PARTS = 6 };

static bool failed(struct crewed *r)
{
	static const char *const lines[] = {"event=rdma_off", "event=rdma_fallback",
					    "event=rdma_down", "event=rdma_gone"};

	for (uint32_t i = 0; i < 2; i++)
		for (size_t k = 0; k < NR(lines); k++)
			if (inproc_logged(&r->cluster.node[i], lines[k]) > 0)
				return true;
	return false;
}

static bool used(struct crewed *r)
{
	return linked_figure(&r->cluster.node[0], "b", "rdma_in_bytes") > 0 &&
	       linked_figure(&r->cluster.node[1], "a", "rdma_in_bytes") > 0;
}

/* Fails the n-th call. False: there were fewer calls. */
static bool round_of(uint32_t n)
{
	uint64_t by = pace_by(10);
	struct crewed *r;
	uint32_t calls;

	fake_reset();
	fake_fail(FAKE_ANY, n, n % 2 ? ENOMEM : EIO);
	r = crewed_begin(&(struct inproc_conf){.net = "rdma_queue_pairs = 1",
					       .cluster = "heartbeat_timeout = 1s"});
	crew_start(&r->crew, UINT64_MAX);
	while (!failed(r) && !used(r)) {
		if (clock_ns() > by)
			fail_msg("call %u failed, and neither is RDMA used nor does the log say "
				 "why:\n%s\n%s",
				 n, r->cluster.node[0].lines, r->cluster.node[1].lines);
		usleep(2000);
	}
	crewed_steps(r, 3);
	calls = fake_calls(FAKE_ANY);
	crewed_end(r);
	return calls >= n;
}

static void rounds_of(uint32_t part)
{
	uint32_t rounds = 0, missed = 0; /* How many calls there are depends on timing. */

	for (uint32_t n = 1 + part, step = PARTS; missed < 3; n += step, rounds++) {
		missed = round_of(n) ? 0 : missed + 1;
		if (n > 200)
			step = step < 64 * PARTS ? step * 2 : step;
	}
	assert_true(rounds > 120 / PARTS);
}

/* Runs in processes, because most of the time is waiting. A process that fails exits with cmocka's
 * status. */
static void every_call(void **state)
{
	pid_t pid[PARTS];
	int status;

	(void)state;
	fflush(NULL);
	for (uint32_t i = 0; i < PARTS; i++) {
		pid[i] = fork();
		assert_true(pid[i] >= 0);
		if (pid[i] == 0) {
			rounds_of(i);
			_exit(0);
		}
	}
	for (uint32_t i = 0; i < PARTS; i++) {
		assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
		assert_int_equal(status, 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_call),
	};

	return cmocka_run_group_tests_name("rdma_nth", tests, NULL, NULL);
}
