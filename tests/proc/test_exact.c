// SPDX-License-Identifier: Apache-2.0
/* Training with two real daemons equals the in-process reference byte by byte, in every master
 * weight and moment of every tensor. This holds for each optimizer and element type, with gradients
 * divided before their sum, with weights of two steps before, for chunks that the loop computes and
 * chunks that workers compute, for ranks spread over nodes in several ways, for several copies of
 * each chunk, and when a trainer or a daemon is killed in mid-run and comes again. One flipped bit
 * of a gradient is found. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static int run(const char *environment, const char *arguments, const char *output)
{
	char build[4096], command[8192];
	ssize_t n = readlink("/proc/self/exe", build, sizeof(build) - 1);

	assert_true(n > 0);
	build[n] = 0;
	for (int up = 0; up < 3; up++) /* the build folder is two above this program; the sources
					  are where tests start */
		*strrchr(build, '/') = 0;
	snprintf(command, sizeof(command), "%s tests/demo/exact.sh '%s' %s %s", environment, build,
		 arguments, output);
	return WEXITSTATUS(system(command));
}

static void exact(const char *arguments)
{
	if (run("", arguments, "") != 0)
		fail_msg("exact.sh BUILD %s: not exact, see above", arguments);
}

static void every_optimizer(void **state)
{
	static const char *const optimizers[] = {
		"adamw", "adam", "sgd", "sgd momentum=0.9 nesterov=yes", "adagrad", "lion"};
	char arguments[256];

	(void)state;
	for (size_t i = 0; i < sizeof(optimizers) / sizeof(optimizers[0]); i++) {
		snprintf(
			arguments, sizeof(arguments),
			"2,2 --settings 'chunk_elems=1024 clip=0.5 weight_decay=0.01 optimizer=%s'",
			optimizers[i]);
		exact(arguments);
	}
}

static void schedules(void **state)
{
	(void)state;
	exact("2,2 --settings 'chunk_elems=1024 schedule=WarmupCosineLR lr=0.01 warmup_num_steps=2 "
	      "total_num_steps=5'");
	exact("2,1 --settings 'chunk_elems=1024 schedule=OneCycle cycle_min_lr=1e-3 "
	      "cycle_max_lr=1e-2 cycle_first_step_size=2 "
	      "decay_step_size=1 decay_lr_rate=0.5'");
	/* With skipped steps, which do not move the schedule. */
	exact("1,1 --dtype fp16 --grad-dtype fp16 --settings 'chunk_elems=1024 loss_scale=0 "
	      "hysteresis=1 initial_scale_power=20 "
	      "optimizer=sgd momentum=0.5 lr=0.1 schedule=WarmupLR warmup_type=linear "
	      "warmup_num_steps=3'");
}

static void every_pair_of_element_types(void **state)
{
	static const char *const types[] = {"fp32", "bf16", "fp16"};
	char arguments[256];

	(void)state;
	for (int i = 0; i < 9; i++) { /* the first steps of 2^20 overflow fp16: skipped and the
					 scale lowered, in the reference too */
		snprintf(arguments, sizeof(arguments),
			 "2,2 --dtype %s --grad-dtype %s --settings 'chunk_elems=4096 loss_scale=0 "
			 "loss_scale_window=2 hysteresis=1 "
			 "initial_scale_power=20 clip=1'",
			 types[i / 3], types[i % 3]);
		exact(arguments);
	}
}

static void ranks_spread_over_nodes(void **state)
{
	(void)state;
	/* In fp32, because rounding to 16 bits hides nearly every sum taken in another order. */
	exact("3,1 --dtype fp32 --settings chunk_elems=1024");
	exact("1,3 --dtype fp32 --settings chunk_elems=1024");
	exact("1,1 --settings chunk_elems=1024");
	exact("2,0 --settings chunk_elems=1024");
	exact("0,2 --settings chunk_elems=1024");
	exact("1,0 --settings chunk_elems=1024");
	exact("5,4 --dtype fp32 --settings 'chunk_elems=1024 lr=0.1'");
}

/* Gradients are divided before the sum, and the sum is multiplied. 3 has no exact reciprocal. The
 * gradient of a lone rank is not divided. */
static void divided_before_the_sum(void **state)
{
	(void)state;
	exact("4,4 --dtype fp16 --grad-dtype fp16 --settings 'chunk_elems=1024 predivide=8 clip=1 "
	      "loss_scale=65536'"); /* With 1 all steps would overflow. */
	exact("3,1 --dtype fp32 --settings 'chunk_elems=1024 predivide=3'");
	exact("1,1 --settings 'chunk_elems=1024 predivide=3'");
	exact("1,0 --settings 'chunk_elems=1024 predivide=3'");
	exact("1,2 --dim 96 --layers 3 --heads 3 --settings 'chunk_elems=65536 predivide=7'");
}

/* gpt waits for every result. That does not change on which weights a step is computed. */
static void weights_of_two_steps_before(void **state)
{
	(void)state;
	exact("2,2 --settings 'chunk_elems=1024 clip=0.5 max_staleness=1'");
	exact("1,2 --dim 96 --layers 3 --heads 3 --settings 'chunk_elems=65536 max_staleness=1'");
	/* With skipped steps. */
	exact("2,1 --dtype fp16 --grad-dtype fp16 --settings 'chunk_elems=1024 loss_scale=0 "
	      "loss_scale_window=2 hysteresis=1 "
	      "initial_scale_power=20 max_staleness=1'");
	if (run("KILL=1", "2,2 --steps 40 --settings 'chunk_elems=1024 max_staleness=1'", "") != 0)
		fail_msg("not exact with a trainer that is killed");
	/* After a warm-up, of which steps may be skipped. */
	exact("2,2 --settings 'chunk_elems=1024 clip=0.5 max_staleness=1 staleness_after=3'");
	exact("2,1 --dtype fp16 --grad-dtype fp16 --settings 'chunk_elems=1024 loss_scale=0 "
	      "loss_scale_window=2 hysteresis=1 initial_scale_power=20 max_staleness=1 "
	      "staleness_after=3 image_codec=int8'");
}

/* Of each codec, with and without what it loses, over the kinds of worlds, dtypes and copies. In
 * fp16 steps are skipped and the loss scale changes, and with it what was lost. A daemon that is
 * killed has kept it. */
static void codes_between_nodes(void **state)
{
	(void)state;
	exact("2,2 --steps 12 --settings 'chunk_elems=1024 clip=0.5 grad_codec=int8'");
	exact("1,1 --steps 12 --settings 'chunk_elems=4096 grad_codec=int4 codec_block=64'");
	exact("1,3 --dtype fp32 --settings 'chunk_elems=1024 grad_codec=int4 codec_block=1024'");
	exact("2,1 --settings 'chunk_elems=2048 grad_codec=int8 error_feedback=no predivide=3'");
	exact("1,0 --settings 'chunk_elems=1024 grad_codec=int8'"); /* One node codes nothing. */
	exact("2,1 --dtype fp16 --grad-dtype fp16 --steps 20 --settings 'chunk_elems=1024 "
	      "loss_scale=0 loss_scale_window=2 hysteresis=1 initial_scale_power=20 "
	      "max_staleness=1 grad_codec=int4'");
	exact("2,2 --dim 96 --layers 3 --heads 3 --settings 'chunk_elems=65536 replicas=2 "
	      "grad_codec=int8'");
	exact("2,2 --steps 12 --settings 'chunk_elems=1024 clip=0.5 image_codec=int8 "
	      "grad_codec=int8'");
	exact("1,3 --dtype fp32 --settings 'chunk_elems=1024 image_codec=int4 codec_block=1024'");
	exact("2,1 --dtype fp16 --grad-dtype fp16 --steps 20 --settings 'chunk_elems=1024 "
	      "loss_scale=0 loss_scale_window=2 hysteresis=1 initial_scale_power=20 "
	      "max_staleness=1 image_codec=int4'");
	if (run("TCP=1", "2,1 --settings 'chunk_elems=1024 grad_codec=int8'", "") != 0)
		fail_msg("not exact with trainers over TCP");
	if (run("KILL=1", "2,2 --steps 12 --settings 'chunk_elems=1024 grad_codec=int8'", "") != 0)
		fail_msg("not exact with a trainer that is killed");
	if (run("DAEMONS='a,b a b' EVERY=10",
		"2,1 --steps 50 --settings 'chunk_elems=1024 grad_codec=int4 image_codec=int8'",
		"") != 0)
		fail_msg("not exact with daemons that are killed");
	if (run("BREAK=1", "2,2 --settings 'chunk_elems=1024 grad_codec=int8'", ">/dev/null") == 0)
		fail_msg("a flipped bit is not found");
}

/* All of it, or the last chunks of each node, with few chunks in memory at a time. The daemons that
 * are killed find the rest in their files. */
static void state_on_disks(void **state)
{
	static const char *const rows[] = {
		"2,2 --steps 12 --settings 'chunk_elems=1024 clip=0.5 tier=nvme nvme_cache=4'",
		"1,3 --dtype fp32 --settings 'chunk_elems=1024 tier=nvme nvme_cache=5 "
		"nvme_share=50 optimizer=lion'",
		"2,1 --settings 'chunk_elems=1024 tier=nvme nvme_cache=4 max_staleness=1 "
		"grad_codec=int8'",
		"2,2 --dim 96 --layers 3 --heads 3 --settings 'chunk_elems=16384 replicas=2 "
		"tier=nvme nvme_cache=6 nvme_share=70'",
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		if (run("TIER=nvme", rows[i], "") != 0)
			fail_msg("exact.sh BUILD %s: not exact, see above", rows[i]);
	if (run("TIER=nvme DAEMONS='a,b a b' EVERY=10",
		"2,1 --steps 50 --settings 'chunk_elems=1024 tier=nvme nvme_cache=4'", "") != 0)
		fail_msg("not exact with daemons that are killed");
}

static void chunks_for_workers(void **state)
{
	(void)state;
	exact("2,2 --settings clip=1"); /* With one chunk, one node holds nothing. */
	exact("2,1 --dim 96 --layers 3 --heads 3 --settings 'chunk_elems=32768 clip=1'"); /* several
											     on each
											     node */
	exact("1,2 --dim 96 --layers 3 --heads 3 --dtype fp32 --settings chunk_elems=65536");
}

/* A node that holds more chunks than a model may have at one worker: the others wait, and are
 * handed out when a chunk is done. The second case has chunks that the loop computes, and more of
 * them than it computes in one turn. */
static void more_chunks_than_the_queue_takes(void **state)
{
	static const char *const cases[][2] = {
		{"WORKERS=1", "2,1 --settings 'chunk_elems=32768 clip=1'"},
		{"WORKERS=1", "1,1 --settings 'chunk_elems=4096 clip=1'"},
		{"WORKERS=1", "1,2 --settings 'chunk_elems=32768 max_staleness=1'"},
		{"WORKERS=1 EVERY=2 DAEMONS='a,b b'",
		 "1,1 --steps 12 --settings 'chunk_elems=32768'"},
	};
	char arguments[256];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		snprintf(arguments, sizeof(arguments),
			 "%s --dim 192 --layers 6 --heads 3 --seq 4 --batch 3", cases[i][1]);
		if (run(cases[i][0], arguments, "") != 0)
			fail_msg("%s %s: not exact, see above", cases[i][0], cases[i][1]);
	}
}

/* On two nodes each holds every chunk, and what a trainer dumps is read from its own node. */
static void several_copies(void **state)
{
	static const char *const cases[][2] = {
		{"", "2,2 --settings 'chunk_elems=1024 clip=0.5 weight_decay=0.01 replicas=2'"},
		{"", "0,2 --settings 'chunk_elems=1024 clip=0.5 replicas=2'"},
		{"", "1,2 --dim 96 --layers 3 --heads 3 --dtype fp32 --settings "
		     "'chunk_elems=65536 predivide=7 max_staleness=1 replicas=2'"},
		{"", "2,1 --dtype fp16 --grad-dtype fp16 --settings 'chunk_elems=4096 "
		     "loss_scale=0 loss_scale_window=2 hysteresis=1 initial_scale_power=20 "
		     "replicas=2'"},
		{"WORKERS=1", "2,1 --dim 192 --layers 6 --heads 3 --seq 4 --batch 3 --settings "
			      "'chunk_elems=32768 clip=1 replicas=2'"},
		{"KILL=1", "2,2 --steps 40 --settings 'chunk_elems=1024 replicas=2'"},
		{"KILL=2", "2,2 --steps 40 --settings 'chunk_elems=1024 replicas=2'"},
		{"EVERY=4 DAEMONS='a,b b'",
		 "1,1 --steps 100 --settings 'chunk_elems=4096 clip=0.5 replicas=2'"},
		{"EVERY=4 DAEMONS='a b'",
		 "0,2 --steps 100 --settings 'chunk_elems=8192 max_staleness=1 replicas=2'"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		if (run(cases[i][0], cases[i][1], "") != 0)
			fail_msg("%s exact.sh BUILD %s: not exact, see above", cases[i][0],
				 cases[i][1]);
	assert_int_equal(run("BREAK=1", "2,2 --settings 'chunk_elems=1024 replicas=2'",
			     "| grep -q ': element [0-9]* differs: 0x'"),
			 0);
}

static void a_killed_trainer_changes_nothing(void **state)
{
	static const char *const cases[][2] = {
		{"KILL=0", "2,2 --steps 40"},
		{"KILL=1", "2,2 --steps 40 --settings chunk_elems=1024"},
		{"KILL=2", "2,2 --steps 40 --settings chunk_elems=1024"},
		{"KILL=3", "2,2 --steps 40"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		if (run(cases[i][0], cases[i][1], "") != 0)
			fail_msg("%s exact.sh BUILD %s: not exact, see above", cases[i][0],
				 cases[i][1]);
	}
}

static void one_flipped_bit_is_found(void **state)
{
	(void)state;
	assert_int_equal(run("BREAK=1", "2,2 --settings chunk_elems=1024",
			     "| grep -q ': element [0-9]* differs: 0x'"),
			 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_optimizer),
		cmocka_unit_test(schedules),
		cmocka_unit_test(every_pair_of_element_types),
		cmocka_unit_test(ranks_spread_over_nodes),
		cmocka_unit_test(divided_before_the_sum),
		cmocka_unit_test(weights_of_two_steps_before),
		cmocka_unit_test(codes_between_nodes),
		cmocka_unit_test(state_on_disks),
		cmocka_unit_test(chunks_for_workers),
		cmocka_unit_test(more_chunks_than_the_queue_takes),
		cmocka_unit_test(several_copies),
		cmocka_unit_test(a_killed_trainer_changes_nothing),
		cmocka_unit_test(one_flipped_bit_is_found),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
