// SPDX-License-Identifier: Apache-2.0
/* A node dies (SIGKILL) at a certain place of what comes between steps, in each role: while a view
 * is written and told, while a new coordinator asks the others, while chunks move, and while a
 * checkpoint is written. As in test_loss_phases, training goes on each time, the node comes back
 * without its memory, and every bit equals the reference. */
#include "base/check.h"
#include "base/clock.h"
#include "core/msg.h"
#include "lib/cutter.h"
#include "lib/loss.h"
#include "lib/pace.h"
#include "lib/tool.h"
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

/* Messages of the source, as those of an election. */
#define ELECTS(nth_)                                                                               \
	{                                                                                          \
		.function = "stream_send_owned", .what = TRAP_FRAME, .op = OP_MEMBER,              \
		.nth = (nth_)                                                                      \
	}

/* --- a view --- */

/* The images of a node that catches up, or that a view makes the primary, are made of those before.
 */
#define CODED "replicas=2 image_codec=int8"

static const struct trap_point own_disk = TRAP_CALLS("source_file_save", 1);
static const struct trap_point told_nobody = ELECTS(1), told_one = ELECTS(2);

static const struct loss_moment view_of_coordinator[] = {
	LOSS_OWN("nothing of the view is written", TRAP_CALLS("persist_view", 1)),
	{"the view is proposed", LOSS_VICTIM, TRAP_CALLS("persist_view", 1), &own_disk},
	{"no other node has the view", LOSS_VICTIM, TRAP_CALLS("persist_view", 1), &told_nobody},
	{"one more node has the view", LOSS_VICTIM, TRAP_CALLS("persist_view", 1), &told_one},
	LOSS_OWN("the view is durable", TRAP_CALLS("recover_on_persisted", 1)),
	LOSS_OWN("VIEW is sent to nobody", TRAP_SENDS(OP_CORE + CORE_VIEW, 1)),
	LOSS_OWN("VIEW is sent to one node", TRAP_SENDS(OP_CORE + CORE_VIEW, 2)),
	LOSS_OWN("one node has adopted the view", TRAP_CALLS("recover_on_view_ok", 2)),
};

static const struct loss_moment view_of_holder[] = {
	LOSS_BY("the view is proposed", TRAP_CALLS("persist_view", 1)),
	LOSS_OWN("as a voter it writes the view", TRAP_CALLS("source_file_save", 1)),
	LOSS_OWN("VIEW is heard", TRAP_HEARS(OP_CORE + CORE_VIEW)),
	LOSS_OWN("VIEW_OK is not sent", TRAP_SENDS(OP_CORE + CORE_VIEW_OK, 1)),
	LOSS_BY("VIEW_OK is heard", TRAP_HEARS(OP_CORE + CORE_VIEW_OK)),
};

/* An operator sets another clip, which takes a view. All are too large to clip anything. */
static void clips(struct loss *l, int victim)
{
	char what[64];

	snprintf(what, sizeof(what), "model set loss clip %u", ++l->orders + 100000);
	loss_ctl_begin(l, (victim + 1) % LOSS_NODES, what);
}

static void views(struct loss *l, const struct loss_moment *m, uint32_t nr, loss_who *who)
{
	for (uint32_t i = 0; i < nr; i++) {
		(void)loss_kill(l, &m[i], who, clips);
		loss_goes_on(l);
		(void)loss_ctl_end(l); /* Whether it was in time is not known. */
		loss_back(l);
		loss_check(l);
	}
}

static void test_view(void **state)
{
	struct loss *l = *state;

	loss_begin(l, &(struct loss_conf){.extra = CODED});
	views(l, view_of_coordinator, NR(view_of_coordinator), loss_leader);
	views(l, view_of_holder, NR(view_of_holder), loss_holder);
	loss_finish(l);
}

/* Node c has trainers and votes, and no chunk. */
static void test_view_without_chunks(void **state)
{
	struct loss *l = *state;

	loss_begin(l, &(struct loss_conf){.extra = CODED, .of_c = "[daemon]\ncapacity = 0\n"});
	views(l, view_of_holder, NR(view_of_holder), loss_node_c);
	loss_finish(l);
}

/* A node that fetches its copies, and has none of them yet. It has to be started. */
static int learner(struct loss *l)
{
	/* Nobody else shall be elected meanwhile: the learner is no holder. */
	loss_begin(l, &(struct loss_conf){.extra = CODED,
					  .lines = "[cluster]\nmembership = quorum\n"
						   "election_timeout = 2s\n" LOSS_BEAT,
					  .between = true});
	l->learner = loss_holder(l);
	l->known = atomic_load(&l->crew.told);
	cluster_kill(l->cluster, l->learner);
	return l->learner;
}

static void test_view_of_learner(void **state)
{
	struct loss *l = *state;
	int victim = learner(l);

	for (uint32_t i = 0; i < NR(view_of_holder); i++) {
		loss_learns(l, victim);
		victim = loss_kill(l, &view_of_holder[i], loss_learner, clips);
		loss_goes_on(l);
		(void)loss_ctl_end(l);
	}
	cutter_lose(l->cluster->cutter, 0);
	loss_back(l);
	loss_check(l);
	loss_finish(l);
}

/* --- a recovery --- */

enum who { NEW, OLD, THIRD };

struct recovery {
	const char *name;
	enum who who;
	struct trap_point at;
};

/* The node that is about to coordinate stands still before its first ASK. From there on: */
static const struct recovery recoveries[] = {
	{"ASK is sent to nobody", NEW, {.function = NULL}},
	{"ASK is sent to one node", NEW, TRAP_SENDS(OP_CORE + CORE_ASK, 1)},
	{"an ANSWER is heard", NEW, TRAP_HEARS(OP_CORE + CORE_ANSWER)},
	{"the first view is not written", NEW, TRAP_CALLS("persist_view", 1)},
	{"the first view is durable", NEW, TRAP_CALLS("recover_on_persisted", 1)},
	{"VIEW is sent to one node", NEW, TRAP_SENDS(OP_CORE + CORE_VIEW, 2)},
	{"ASK is heard", OLD, TRAP_HEARS(OP_CORE + CORE_ASK)},
	{"ANSWER is not sent", OLD, TRAP_SENDS(OP_CORE + CORE_ANSWER, 1)},
	{"ASK is heard", THIRD, TRAP_HEARS(OP_CORE + CORE_ASK)},
	{"ANSWER is not sent", THIRD, TRAP_SENDS(OP_CORE + CORE_ANSWER, 1)},
	{"VIEW is heard", THIRD, TRAP_HEARS(OP_CORE + CORE_VIEW)},
};

/* One of the two others is elected while the node that coordinates stands still for a moment.
 * Returns which one. It is stopped in l->trap. */
static int elected(struct loss *l, int old)
{
	static const struct trap_point asks = TRAP_SENDS(OP_CORE + CORE_ASK, 1);
	uint64_t until = pace_by(20);
	struct trap t[2];
	int i = 0;

	cluster_signal(l->cluster, old, SIGSTOP);
	for (i = 0; i < 2; i++)
		trap_set(&t[i], l->cluster->node[(old + 1 + i) % LOSS_NODES].pid, &asks);
	for (i = 0; !trap_wait(&t[i], 1); i = !i)
		if (clock_ns() > until)
			fail_msg("no other node is elected");
	trap_end(&t[!i]);
	l->trap = t[i];
	cluster_signal(l->cluster, old, SIGCONT);
	return (old + 1 + i) % LOSS_NODES;
}

/* False: another node was elected meanwhile, because this one stood still for too long. */
static bool recovers(struct loss *l, const struct recovery *r)
{
	int old = loss_leader(l), new = elected(l, old);
	int victim = r->who == NEW ? new : r->who == OLD ? old : LOSS_NODES - old - new;
	struct trap asking = l->trap;

	fprintf(stderr, "node %c (node %c coordinates after node %c): %s\n", 'a' + victim,
		'a' + new, 'a' + old, r->name);
	if (r->who == NEW && r->at.function != NULL)
		trap_next(&l->trap, &r->at);
	if (r->who != NEW) {
		trap_set(&l->trap, l->cluster->node[victim].pid, &r->at);
		trap_end(&asking);
	}
	if (!trap_wait(&l->trap, 2000)) {
		trap_end(&l->trap);
		loss_whole(l);
		return false;
	}
	loss_died(l, victim);
	loss_goes_on(l);
	loss_back(l);
	loss_check(l);
	return true;
}

static void recover(struct loss *l, const struct recovery *r)
{
	for (int i = 0; !recovers(l, r); i++)
		if (i == 9)
			fail_msg("no node coordinates for long enough");
}

static void test_recovery(void **state)
{
	struct loss *l = *state;

	loss_begin(l, &(struct loss_conf){.extra = CODED});
	for (uint32_t i = 0; i < NR(recoveries); i++)
		recover(l, &recoveries[i]);
	loss_finish(l);
}

/* Node c has trainers and votes, and no chunk. It is elected, asked, or asks, like the others. */
static void test_recovery_without_chunks(void **state)
{
	struct loss *l = *state;

	loss_begin(l, &(struct loss_conf){.extra = CODED, .of_c = "[daemon]\ncapacity = 0\n"});
	for (uint32_t i = 0; i < NR(recoveries); i++)
		recover(l, &recoveries[i]);
	loss_finish(l);
}

/* The learner is asked by a new coordinator. False: it was elected itself, or was not asked yet. */
static bool recovers_beside(struct loss *l, const struct recovery *r)
{
	int old = loss_leader(l), new = elected(l, old), victim = l->learner;
	struct trap asking = l->trap;

	if (new == victim || old == victim) {
		trap_end(&asking);
		return false;
	}
	fprintf(stderr, "node %c, which learns (node %c coordinates after node %c): %s\n",
		'a' + victim, 'a' + new, 'a' + old, r->name);
	trap_set(&l->trap, l->cluster->node[victim].pid, &r->at);
	trap_end(&asking);
	if (!trap_wait(&l->trap, 5000)) {
		trap_end(&l->trap);
		return false;
	}
	loss_died(l, victim);
	loss_goes_on(l);
	return true;
}

static void test_recovery_of_learner(void **state)
{
	struct loss *l = *state;
	int victim = learner(l);

	for (uint32_t i = 0; i < NR(recoveries); i++) {
		if (recoveries[i].who != THIRD)
			continue;
		loss_learns(l, victim);
		for (int k = 0; !recovers_beside(l, &recoveries[i]); k++) {
			if (k == 49) /* Half of the elections are the learner's. */
				fail_msg("the learner is elected again and again");
			crew_wait_told(&l->crew, atomic_load(&l->crew.told) + 1, LOSS_NODES,
				       pace_by(20));
		}
	}
	cutter_lose(l->cluster->cutter, 0);
	loss_back(l);
	loss_check(l);
	loss_finish(l);
}

/* --- chunks move --- */

static const struct loss_moment move_of_coordinator[] = {
	LOSS_OWN("the move is in no view", TRAP_CALLS("moves_on_place", 1)),
	LOSS_OWN("the view that begins it is not written", TRAP_CALLS("persist_view", 1)),
	LOSS_OWN("the view that begins it is durable", TRAP_CALLS("recover_on_persisted", 1)),
	LOSS_OWN("it sends a copy in part", TRAP_PARTS(OP_COPY_DATA, 2)),
	LOSS_OWN("the next view is not written", TRAP_CALLS("persist_view", 2)),
	LOSS_OWN("the view after that is not written", TRAP_CALLS("persist_view", 3)),
	LOSS_OWN("all nodes know the end", TRAP_CALLS("act_moved", 1)),
};

/* The node that is drained. */
static const struct loss_moment move_of_giver[] = {
	LOSS_OWN("it hears the view that begins the move", TRAP_HEARS(OP_CORE + CORE_VIEW)),
	LOSS_OWN("it sends a copy in part", TRAP_PARTS(OP_COPY_DATA, 2)),
};

static const struct loss_moment move_of_taker[] = {
	LOSS_OWN("it hears the view that begins the move", TRAP_HEARS(OP_CORE + CORE_VIEW)),
	LOSS_OWN("a copy has come in part", TRAP_CALLS("catchup_part", 3)),
	LOSS_OWN("its copies are there, and nobody knows", TRAP_CALLS("step_on_learned", 1)),
};

/* How many chunks that node has, as another one says. */
static bool has_chunks(struct loss *l, int at, int node)
{
	char none[16];

	snprintf(none, sizeof(none), "\"%c\":0", 'a' + node);
	return !loss_says(l, at, none);
}

static int giver(struct loss *l)
{
	return (loss_leader(l) + 1) % LOSS_NODES;
}

static int taker(struct loss *l)
{
	return (loss_leader(l) + 2) % LOSS_NODES;
}

/* A node that is up, beside the giver if there is another. */
static int other(struct loss *l, int victim)
{
	return victim == taker(l) ? giver(l) : taker(l);
}

static void undrain(struct loss *l)
{
	char what[64];

	for (int n = 0; n < LOSS_NODES; n++) {
		uint64_t until = pace_by(20);

		snprintf(what, sizeof(what), "drain --undo --no-wait %c", 'a' + n);
		assert_int_equal(loss_ctl(l, n, what), 0);
		while (!has_chunks(l, n, n)) {
			if (clock_ns() > until)
				fail_msg("node %c gets no chunks", 'a' + n);
			(void)poll(NULL, 0, 5);
		}
	}
	loss_whole(l);
}

/* Where chunks lie decides who sends copies. If the victim had nothing to do, the second try is the
 * way back. */
static void drains(struct loss *l, int victim)
{
	int gives = giver(l), at = other(l, victim);
	char what[64];

	snprintf(what, sizeof(what), "drain %s --no-wait %c",
		 has_chunks(l, at, gives) ? "" : "--undo", 'a' + gives);
	loss_ctl_begin(l, at, what);
}

/* The node after the coordinator is drained, and gets its share again. */
static void moves(struct loss *l, const struct loss_moment *m, uint32_t nr, loss_who *who)
{
	for (uint32_t i = 0; i < nr; i++) {
		(void)loss_kill(l, &m[i], who, drains);
		loss_goes_on(l);
		(void)loss_ctl_end(l);
		loss_back(l);
		loss_check(l);
		undrain(l);
	}
}

static void test_moves(void **state)
{
	struct loss *l = *state;

	loss_begin(l, &(struct loss_conf){.extra = CODED});
	moves(l, move_of_coordinator, NR(move_of_coordinator), loss_leader);
	moves(l, move_of_giver, NR(move_of_giver), giver);
	moves(l, move_of_taker, NR(move_of_taker), taker);
	loss_finish(l);
}

/* Stops the thread that makes memory for the model. False: it was missed. */
static bool stops_making(struct loss *l, int node)
{
	/* On any thread: what those of libuv are called depends on its release. */
	static const struct trap_point makes = {.function = "store_init", .workers = ""};

	trap_set(&l->trap, l->cluster->node[node].pid, &makes);
	if (trap_wait(&l->trap, 1000))
		return true;
	trap_end(&l->trap);
	return false;
}

/* A node comes back in the middle of a move, and a thread makes memory for the model. The loop
 * answers meanwhile, and says that chunks move. */
static void test_status_while_made(void **state)
{
	static const struct loss_moment sends =
		LOSS_OWN("it sends a copy in part", TRAP_PARTS(OP_COPY_DATA, 2));
	struct loss *l = *state;
	bool stopped = false;
	int victim;

	loss_begin(l, &(struct loss_conf){.extra = CODED});
	for (int i = 0; i < 10 && !stopped; i++) {
		victim = loss_kill(l, &sends, loss_leader, drains);
		loss_goes_on(l);
		(void)loss_ctl_end(l);
		cluster_spawn(l->cluster, victim);
		cluster_ready(l->cluster, victim);
		l->dead = -1;
		stopped = stops_making(l, victim);
		if (stopped) {
			assert_true(loss_says(l, victim, "\"state\":\"defining\""));
			assert_true(loss_says(l, victim, "\"moving\":"));
			trap_end(&l->trap);
		}
		loss_whole(l);
		undrain(l);
	}
	assert_true(stopped);
	loss_check(l);
	loss_finish(l);
}

/* --- a save --- */

static const struct trap_point answers = TRAP_CALLS("caller_answer", 1);

static const struct loss_moment save_of_coordinator[] = {
	LOSS_OWN("nothing is decided any more", TRAP_CALLS("save_held", 1)),
	LOSS_OWN("no other node is asked", TRAP_SENDS(OP_SAVE_PART, 1)),
	LOSS_OWN("one other node is asked", TRAP_SENDS(OP_SAVE_PART, 2)),
	LOSS_OWN("one more share is written", TRAP_CALLS("share_answered", 2)),
	LOSS_OWN("all shares are written", TRAP_CALLS("ckpt_op_hold", 2)),
	{"the checkpoint is there, and nobody knows", LOSS_VICTIM, TRAP_CALLS("ckpt_op_hold", 2),
	 &answers},
};

static const struct loss_moment save_of_holder[] = {
	LOSS_OWN("it is asked for its share", TRAP_CALLS("ckpt_save_part", 1)),
	LOSS_OWN("its share is to be written", TRAP_CALLS("ckpt_part_begin", 1)),
};

static void saves(struct loss *l, int victim)
{
	char what[200];

	snprintf(what, sizeof(what), "save loss --dir %s/saved --tag t%u", l->cluster->dir,
		 ++l->orders);
	loss_ctl_begin(l, (victim + 1) % LOSS_NODES, what);
}

/* A save that failed leaves no checkpoint that looks like one. */
static void saved(struct loss *l, const struct loss_moment *m, uint32_t nr, loss_who *who)
{
	char what[200], looks[200];

	snprintf(looks, sizeof(looks), "checkpoints --verify %s/saved", l->cluster->dir);
	for (uint32_t i = 0; i < nr; i++) {
		(void)loss_kill(l, &m[i], who, saves);
		loss_goes_on(l);
		if (loss_ctl_end(l) == 0)
			assert_int_equal(tool_run(NULL, "shardctl", looks), 0);
		loss_back(l);
		loss_check(l);
	}
	snprintf(what, sizeof(what), "save loss --dir %s/saved", l->cluster->dir);
	assert_int_equal(loss_ctl(l, 0, what), 0);
	assert_int_equal(tool_run(NULL, "shardctl", looks), 0);
}

static void test_save(void **state)
{
	struct loss *l = *state;

	loss_begin(l, &(struct loss_conf){.extra = CODED});
	saved(l, save_of_coordinator, NR(save_of_coordinator), loss_leader);
	saved(l, save_of_holder, NR(save_of_holder), loss_holder);
	loss_finish(l);
}

/* A member that counts for no chunk yet has a share, too: what its trainers keep. */
static void test_save_of_learner(void **state)
{
	struct loss *l = *state;
	int victim = learner(l);
	char looks[200];

	snprintf(looks, sizeof(looks), "checkpoints --verify %s/saved", l->cluster->dir);
	for (uint32_t i = 0; i < NR(save_of_holder); i++) {
		loss_learns(l, victim);
		victim = loss_kill(l, &save_of_holder[i], loss_learner, saves);
		loss_goes_on(l);
		if (loss_ctl_end(l) == 0)
			assert_int_equal(tool_run(NULL, "shardctl", looks), 0);
	}
	cutter_lose(l->cluster->cutter, 0);
	loss_back(l);
	loss_check(l);
	loss_finish(l);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_view, loss_setup, loss_teardown),
		cmocka_unit_test_setup_teardown(test_view_without_chunks, loss_setup,
						loss_teardown),
		cmocka_unit_test_setup_teardown(test_view_of_learner, loss_setup, loss_teardown),
		cmocka_unit_test_setup_teardown(test_recovery, loss_setup, loss_teardown),
		cmocka_unit_test_setup_teardown(test_recovery_without_chunks, loss_setup,
						loss_teardown),
		cmocka_unit_test_setup_teardown(test_recovery_of_learner, loss_setup,
						loss_teardown),
		cmocka_unit_test_setup_teardown(test_moves, loss_setup, loss_teardown),
		cmocka_unit_test_setup_teardown(test_status_while_made, loss_setup, loss_teardown),
		cmocka_unit_test_setup_teardown(test_save, loss_setup, loss_teardown),
		cmocka_unit_test_setup_teardown(test_save_of_learner, loss_setup, loss_teardown),
	};

	if (!trap_here())
		return 0;
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
