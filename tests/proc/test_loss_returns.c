// SPDX-License-Identifier: Apache-2.0
/* What comes after the death of a node at a certain place of a step, with each membership source.
 * The node comes back with the memory that it had, at once or after the others have voted it out.
 * Or it only stands still for longer than heartbeat_timeout, and wakes up in a cluster that has
 * gone on. Or it stays away, and its copies are made elsewhere. As in test_loss_phases, every bit
 * equals the reference in the end. */
#include "base/check.h"
#include "base/clock.h"
#include "core/msg.h"
#include "lib/etcds.h"
#include "lib/loss.h"
#include "lib/pace.h"
#include "wire/ops.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define STATIC "[cluster]\nmembership = static\n"
/* Short enough to wait for. */
#define SOON  "heartbeat_timeout = 1s\nlost_timeout = 1s\n"
#define STILL "heartbeat_timeout = 2s\nlost_timeout = 60s\n"
#define UPDATES(nth_)                                                                              \
	{                                                                                          \
		.function = "apply_run", .nth = (nth_), .workers = "shardd-w"                      \
	}

static struct etcds etcd;

static const struct loss_moment of_holder[] = {
	LOSS_OWN("a local trainer is ready", TRAP_CALLS("step_on_ready", 1)),
	LOSS_OWN("a reduced gradient is sent in part", TRAP_CLOSES(OP_GRAD)),
	LOSS_OWN("VOTE is not sent", TRAP_SENDS(OP_CORE + CORE_VOTE, 1)),
	LOSS_BY("VOTE is heard", TRAP_HEARS(OP_CORE + CORE_VOTE)),
	LOSS_OWN("COMMIT is heard", TRAP_HEARS(OP_CORE + CORE_COMMIT)),
	LOSS_OWN("some chunks are updated", UPDATES(3)),
	LOSS_OWN("the image is sent in part", TRAP_PARTS(OP_IMAGE_DATA, 2)),
	LOSS_OWN("DONE is not sent", TRAP_SENDS(OP_CORE + CORE_DONE, 1)),
};

static const struct loss_moment of_coordinator[] = {
	LOSS_OWN("a contribution is sent in part", TRAP_CLOSES(OP_CONTRIB)),
	LOSS_OWN("all votes but one are known", TRAP_CALLS("attempt_on_vote", 3)),
	LOSS_OWN("COMMIT is sent to nobody", TRAP_SENDS(OP_CORE + CORE_COMMIT, 1)),
	LOSS_OWN("COMMIT is sent to one node", TRAP_SENDS(OP_CORE + CORE_COMMIT, 2)),
	LOSS_OWN("COMMIT is sent to all", TRAP_CALLS("apply_start", 1)),
	LOSS_OWN("some chunks are updated", UPDATES(3)),
	LOSS_OWN("it has applied the step", TRAP_CALLS("step_applied", 1)),
};

/* `early`: it starts again at once. Otherwise the others go on first. */
static void returns(struct loss *l, const struct loss_moment *m, uint32_t nr, loss_who *who,
		    bool early)
{
	for (uint32_t i = 0; i < nr; i++) {
		(void)loss_kill(l, &m[i], who, NULL);
		if (!early)
			loss_goes_on(l);
		loss_back(l);
		loss_check(l);
	}
}

static void test_warm(void **state)
{
	struct loss *l = *state;

	loss_begin(l, &(struct loss_conf){.warm = true});
	returns(l, of_holder, NR(of_holder), loss_holder, true);
	returns(l, of_coordinator, NR(of_coordinator), loss_leader, true);
	loss_finish(l);
}

static void test_warm_late(void **state)
{
	struct loss *l = *state;

	loss_begin(l, &(struct loss_conf){.warm = true});
	returns(l, of_holder, NR(of_holder), loss_holder, false);
	returns(l, of_coordinator, NR(of_coordinator), loss_leader, false);
	loss_finish(l);
}

/* While the first node is away nothing is decided. */
static void test_static(void **state)
{
	struct loss *l = *state;

	loss_begin(l, &(struct loss_conf){.lines = STATIC LOSS_BEAT});
	returns(l, of_holder, NR(of_holder), loss_holder, false);
	returns(l, of_coordinator, NR(of_coordinator), loss_leader, true);
	loss_finish(l);
}

static void test_etcd(void **state)
{
	struct loss *l = *state;
	char lines[600];

	if (!etcds_here())
		skip();
	etcds_make(&etcd, 1, 0);
	snprintf(lines, sizeof(lines),
		 "[cluster]\nmembership = etcd\netcd_endpoints = %s\nelection_timeout = "
		 "2s\n" LOSS_BEAT,
		 etcd.endpoints);
	loss_begin(l, &(struct loss_conf){.lines = lines});
	returns(l, of_holder, NR(of_holder), loss_holder, false);
	returns(l, of_coordinator, NR(of_coordinator), loss_leader, false);
	loss_finish(l);
	etcds_end(&etcd);
}

/* The others vote it out while it stands still. It believes to be what it was when it wakes up. */
static void stands_still(struct loss *l, const struct loss_moment *m, loss_who *who)
{
	int victim = loss_still(l, m, who);

	crew_wait_told(&l->crew, l->known + 3, LOSS_NODES - 1, pace_by(10));
	cluster_signal(l->cluster, victim, SIGCONT);
	loss_whole(l);
	atomic_store(&l->crew.away, 0);
	loss_check(l);
}

static void test_stands_still(void **state)
{
	struct loss *l = *state;

	loss_begin(l, &(struct loss_conf){.lines = LOSS_QUORUM STILL});
	for (uint32_t i = 1; i < NR(of_holder); i += 4)
		stands_still(l, &of_holder[i], loss_holder);
	for (uint32_t i = 0; i < NR(of_coordinator); i += 3)
		stands_still(l, &of_coordinator[i], loss_leader);
	loss_finish(l);
}

/* After lost_timeout the two others have all copies. */
static void stays_away(struct loss *l, const struct loss_moment *m, loss_who *who)
{
	int victim = loss_kill(l, m, who, NULL);
	char none[16];

	loss_goes_on(l);
	loss_whole(l);
	loss_check(l);
	loss_back(l);
	snprintf(none, sizeof(none), "\"%c\":0", 'a' + victim);
	for (uint64_t until = pace_by(20); loss_says(l, victim, none); (void)poll(NULL, 0, 2))
		if (clock_ns() > until)
			fail_msg("node %c gets no chunks", 'a' + victim);
	loss_whole(l);
	loss_check(l);
}

static void test_stays_away(void **state)
{
	struct loss *l = *state;

	loss_begin(l, &(struct loss_conf){.lines = LOSS_QUORUM SOON});
	stays_away(l, &of_holder[1], loss_holder);
	stays_away(l, &of_holder[5], loss_holder);
	stays_away(l, &of_coordinator[3], loss_leader);
	loss_finish(l);
}

static int teardown(void **state)
{
	if (etcd.nr != 0)
		etcds_end(&etcd);
	return loss_teardown(state);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_warm, loss_setup, loss_teardown),
		cmocka_unit_test_setup_teardown(test_warm_late, loss_setup, loss_teardown),
		cmocka_unit_test_setup_teardown(test_static, loss_setup, loss_teardown),
		cmocka_unit_test_setup_teardown(test_etcd, loss_setup, teardown),
		cmocka_unit_test_setup_teardown(test_stands_still, loss_setup, loss_teardown),
		cmocka_unit_test_setup_teardown(test_stays_away, loss_setup, loss_teardown),
	};

	if (!trap_here())
		return 0;
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
