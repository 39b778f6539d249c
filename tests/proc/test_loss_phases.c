// SPDX-License-Identifier: Apache-2.0
/* A node dies (SIGKILL) at a certain place of a step, in each role. Three daemons hold two copies
 * of each chunk, and a trap stops one of them at the place, so that no test waits for luck. Each
 * time training goes on without the node, in time, each committed step is committed once, results
 * are true, and the node comes back without its memory and gets its copies. Masters, moments and
 * image then equal the reference bit by bit on every node. */
#include "base/check.h"
#include "base/clock.h"
#include "core/msg.h"
#include "lib/cutter.h"
#include "lib/loss.h"
#include "lib/pace.h"
#include "wire/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

/* What a trainer is told. */
#define TELLS(op_)                                                                                 \
	{                                                                                          \
		.function = "session_tell", .what = TRAP_FRAME, .op = (op_)                        \
	}
/* The worker begins the nth chunk of the step. */
#define UPDATES(nth_)                                                                              \
	{                                                                                          \
		.function = "apply_run", .nth = (nth_), .workers = "shardd-w"                      \
	}

static const struct loss_moment of_holder[] = {
	LOSS_OWN("BEGIN is heard", TRAP_HEARS(OP_CORE + CORE_BEGIN)),
	LOSS_OWN("a local trainer is ready", TRAP_CALLS("step_on_ready", 1)),
	LOSS_OWN("RANKS is sent to nobody", TRAP_SENDS(OP_CORE + CORE_RANKS, 1)),
	LOSS_OWN("RANKS is sent to one node", TRAP_SENDS(OP_CORE + CORE_RANKS, 2)),
	LOSS_OWN("a contribution is not begun", TRAP_PARTS(OP_CONTRIB_DATA, 1)),
	LOSS_OWN("a contribution is sent in part", TRAP_CLOSES(OP_CONTRIB)),
	LOSS_OWN("a reduced gradient is not begun", TRAP_PARTS(OP_GRAD_DATA, 1)),
	LOSS_OWN("a reduced gradient is sent in part", TRAP_CLOSES(OP_GRAD)),
	LOSS_OWN("a reduced gradient has come", TRAP_CALLS("grad_node", 1)),
	LOSS_OWN("VOTE is not sent", TRAP_SENDS(OP_CORE + CORE_VOTE, 1)),
	LOSS_BY("VOTE is heard", TRAP_HEARS(OP_CORE + CORE_VOTE)),
	LOSS_OWN("COMMIT is heard", TRAP_HEARS(OP_CORE + CORE_COMMIT)),
	LOSS_OWN("the first chunk is updated", UPDATES(1)),
	LOSS_OWN("some chunks are updated", UPDATES(3)),
	LOSS_OWN("trainers do not know the result", TELLS(OP_RESULT)),
	LOSS_OWN("no chunk of the image is sent", TRAP_PARTS(OP_IMAGE_DATA, 1)),
	LOSS_OWN("the image is sent in part", TRAP_PARTS(OP_IMAGE_DATA, 2)),
	LOSS_OWN("DONE is not sent", TRAP_SENDS(OP_CORE + CORE_DONE, 1)),
	LOSS_BY("DONE is heard", TRAP_HEARS(OP_CORE + CORE_DONE)),
};

static const struct loss_moment of_coordinator[] = {
	LOSS_OWN("BEGIN is sent to nobody", TRAP_SENDS(OP_CORE + CORE_BEGIN, 1)),
	LOSS_OWN("BEGIN is sent to one node", TRAP_SENDS(OP_CORE + CORE_BEGIN, 2)),
	LOSS_OWN("a local trainer is ready", TRAP_CALLS("step_on_ready", 1)),
	LOSS_OWN("RANKS is sent to one node", TRAP_SENDS(OP_CORE + CORE_RANKS, 2)),
	LOSS_OWN("a contribution is sent in part", TRAP_CLOSES(OP_CONTRIB)),
	LOSS_OWN("a reduced gradient is sent in part", TRAP_CLOSES(OP_GRAD)),
	LOSS_OWN("a reduced gradient has come", TRAP_CALLS("grad_node", 1)),
	LOSS_OWN("no vote is known", TRAP_CALLS("attempt_on_vote", 1)),
	LOSS_OWN("one vote is known", TRAP_CALLS("attempt_on_vote", 2)),
	LOSS_OWN("all votes but one are known", TRAP_CALLS("attempt_on_vote", 3)),
	LOSS_OWN("COMMIT is sent to nobody", TRAP_SENDS(OP_CORE + CORE_COMMIT, 1)),
	LOSS_OWN("COMMIT is sent to one node", TRAP_SENDS(OP_CORE + CORE_COMMIT, 2)),
	LOSS_OWN("COMMIT is sent to all", TRAP_CALLS("apply_start", 1)),
	LOSS_OWN("some chunks are updated", UPDATES(3)),
	LOSS_OWN("trainers do not know the result", TELLS(OP_RESULT)),
	LOSS_OWN("the image is sent in part", TRAP_PARTS(OP_IMAGE_DATA, 2)),
	LOSS_OWN("it has applied the step", TRAP_CALLS("step_applied", 1)),
	LOSS_OWN("one DONE is known", TRAP_CALLS("attempt_on_done", 2)),
};

static const struct loss_moment of_trainers[] = {
	LOSS_OWN("BEGIN is heard", TRAP_HEARS(OP_CORE + CORE_BEGIN)),
	LOSS_OWN("its trainer is ready", TRAP_CALLS("step_on_ready", 1)),
	LOSS_OWN("RANKS is sent to nobody", TRAP_SENDS(OP_CORE + CORE_RANKS, 1)),
	LOSS_OWN("RANKS is sent to one node", TRAP_SENDS(OP_CORE + CORE_RANKS, 2)),
	LOSS_OWN("a contribution is sent in part", TRAP_CLOSES(OP_CONTRIB)),
	LOSS_OWN("VOTE is not sent", TRAP_SENDS(OP_CORE + CORE_VOTE, 1)),
	LOSS_BY("VOTE is heard", TRAP_HEARS(OP_CORE + CORE_VOTE)),
	LOSS_OWN("COMMIT is heard", TRAP_HEARS(OP_CORE + CORE_COMMIT)),
	LOSS_OWN("its trainer does not know the result", TELLS(OP_RESULT)),
	LOSS_OWN("the image has come in part", TRAP_CALLS("apply_image_part", 2)),
	LOSS_OWN("DONE is not sent", TRAP_SENDS(OP_CORE + CORE_DONE, 1)),
	LOSS_BY("DONE is heard", TRAP_HEARS(OP_CORE + CORE_DONE)),
};

/* A node that fetches its copies is a member, and votes. It has none of them yet. */
static const struct loss_moment of_learner[] = {
	LOSS_OWN("BEGIN is heard", TRAP_HEARS(OP_CORE + CORE_BEGIN)),
	LOSS_OWN("a local trainer is ready", TRAP_CALLS("step_on_ready", 1)),
	LOSS_OWN("a contribution is sent in part", TRAP_CLOSES(OP_CONTRIB)),
	LOSS_OWN("a reduced gradient has come", TRAP_CALLS("grad_node", 1)),
	LOSS_OWN("VOTE is not sent", TRAP_SENDS(OP_CORE + CORE_VOTE, 1)),
	LOSS_BY("VOTE is heard", TRAP_HEARS(OP_CORE + CORE_VOTE)),
	LOSS_OWN("COMMIT is heard", TRAP_HEARS(OP_CORE + CORE_COMMIT)),
	LOSS_OWN("DONE is not sent", TRAP_SENDS(OP_CORE + CORE_DONE, 1)),
	LOSS_BY("DONE is heard", TRAP_HEARS(OP_CORE + CORE_DONE)),
};

/* A copy of a chunk has three parts: the master and two moments. */
static const struct loss_moment of_copies[] = {
	LOSS_OWN("no part of a copy has come", TRAP_CALLS("catchup_part", 1)),
	LOSS_OWN("a copy has come in part", TRAP_CALLS("catchup_part", 3)),
	LOSS_OWN("some copies have come", TRAP_CALLS("catchup_part", 8)),
	LOSS_OWN("its copies are there, and nobody knows", TRAP_CALLS("step_on_learned", 1)),
};

static void each(struct loss *l, const struct loss_moment *m, uint32_t nr, loss_who *who)
{
	for (uint32_t i = 0; i < nr; i++) {
		(void)loss_kill(l, &m[i], who, NULL);
		loss_goes_on(l);
		loss_back(l);
		loss_check(l);
	}
}

static void test_holder(void **state)
{
	loss_begin(*state, &(struct loss_conf){0});
	each(*state, of_holder, NR(of_holder), loss_holder);
	loss_finish(*state);
}

static void test_coordinator(void **state)
{
	loss_begin(*state, &(struct loss_conf){0});
	each(*state, of_coordinator, NR(of_coordinator), loss_leader);
	loss_finish(*state);
}

/* Node c has trainers and votes, and no chunk. */
static void test_trainers(void **state)
{
	loss_begin(*state, &(struct loss_conf){.of_c = "[daemon]\ncapacity = 0\n"});
	each(*state, of_trainers, NR(of_trainers), loss_node_c);
	loss_finish(*state);
}

static void copies(struct loss *l, int victim)
{
	(void)victim;
	cutter_lose(l->cluster->cutter, 0);
}

static void test_learner(void **state)
{
	struct loss *l = *state;
	uint32_t nr = NR(of_learner);
	int victim;

	/* Nobody else shall be elected meanwhile: the learner is no holder. */
	loss_begin(l, &(struct loss_conf){.lines = "[cluster]\nmembership = quorum\n"
						   "election_timeout = 2s\n" LOSS_BEAT,
					  .between = true});
	victim = l->learner = loss_holder(l);
	l->known = atomic_load(&l->crew.told);
	cluster_kill(l->cluster, victim);
	for (uint32_t i = 0; i < nr + NR(of_copies); i++) {
		loss_learns(l, victim);
		if (i < nr)
			victim = loss_kill(l, &of_learner[i], loss_learner, NULL);
		else
			victim = loss_kill(l, &of_copies[i - nr], loss_learner, copies);
		loss_goes_on(l);
	}
	loss_back(l);
	loss_check(l);
	loss_finish(l);
}

/* The node that coordinates has decided, and its own trainer knows. Nobody else has heard of it
 * when it dies. All others have voted, so they must come to the same decision. */
static void test_told_alone(void **state)
{
	static const struct loss_moment decided =
		LOSS_OWN("COMMIT is sent, and lost", TRAP_CALLS("record_decide", 1));
	struct loss *l = *state;

	loss_begin(l, &(struct loss_conf){.between = true});
	for (int i = 0; i < 3; i++) {
		int victim = loss_at(l, &decided, loss_leader, NULL);
		uint64_t known = atomic_load(&l->crew.told);

		cutter_deaf(l->cluster->cutter, true);
		trap_end(&l->trap);
		crew_wait_told(&l->crew, known + 1, LOSS_NODES, pace_by(10));
		loss_died(l, victim);
		cutter_cut(l->cluster->cutter); /* What it has sent is lost. */
		cutter_deaf(l->cluster->cutter, false);
		loss_goes_on(l);
		loss_back(l);
		loss_check(l);
	}
	loss_finish(l);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_holder, loss_setup, loss_teardown),
		cmocka_unit_test_setup_teardown(test_coordinator, loss_setup, loss_teardown),
		cmocka_unit_test_setup_teardown(test_trainers, loss_setup, loss_teardown),
		cmocka_unit_test_setup_teardown(test_learner, loss_setup, loss_teardown),
		cmocka_unit_test_setup_teardown(test_told_alone, loss_setup, loss_teardown),
	};

	if (!trap_here())
		return 0;
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
