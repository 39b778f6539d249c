// SPDX-License-Identifier: Apache-2.0
// check: all
/* Training with daemons that are killed with kill -9 in mid-run and come back with what they held
 * equals the in-process reference, in every master weight and moment of every tensor, byte by byte.
 * This holds for each optimizer, with skipped steps and a moving loss scale, with a schedule, with
 * weights of two steps before, and for one or several ranks on a node. The trainers' places in the
 * data are blobs, which come back too. */
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

static void exact_every(int steps, const char *daemons, const char *arguments)
{
	char build[4096], command[8192];
	ssize_t n = readlink("/proc/self/exe", build, sizeof(build) - 1);
	int status;

	assert_true(n > 0);
	build[n] = 0;
	/* The build folder is two levels above this program. The sources are in the folder where
	 * tests start. */
	for (int up = 0; up < 3; up++)
		*strrchr(build, '/') = 0;
	snprintf(command, sizeof(command), "EVERY=%d DAEMONS='%s' tests/demo/exact.sh '%s' %s",
		 steps, daemons, build, arguments);
	status = system(command);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
		fail_msg("DAEMONS='%s' exact.sh BUILD %s: not exact, see above", daemons,
			 arguments);
}

static void exact(const char *daemons, const char *arguments)
{
	exact_every(15, daemons, arguments);
}

static void every_optimizer(void **state)
{
	static const char *const optimizers[] = {"adamw", "adam", "sgd momentum=0.9 nesterov=yes",
						 "adagrad", "lion"};
	char arguments[256];

	(void)state;
	for (size_t i = 0; i < sizeof(optimizers) / sizeof(optimizers[0]); i++) {
		snprintf(arguments, sizeof(arguments),
			 "1,1 --steps 200 --settings 'chunk_elems=8192 clip=0.5 "
			 "weight_decay=0.01 optimizer=%s'",
			 optimizers[i]);
		exact("a,b b", arguments);
	}
}

static void chunks_for_workers(void **state)
{
	(void)state;
	exact_every(4, "a b",
		    "2,1 --steps 14 --dim 96 --layers 3 --heads 3 --settings "
		    "'chunk_elems=32768 clip=1'");
}

/* On two nodes each holds all of it. The second case reads the copies of the other node. */
static void several_copies(void **state)
{
	(void)state;
	exact("a,b b a", "1,1 --steps 200 --settings 'chunk_elems=8192 clip=0.5 replicas=2'");
	exact("b a a,b", "0,2 --steps 200 --settings 'chunk_elems=4096 clip=0.5 replicas=2'");
	exact_every(4, "a b a,b",
		    "2,1 --steps 20 --dim 96 --layers 3 --heads 3 --settings "
		    "'chunk_elems=32768 max_staleness=1 replicas=2'");
}

static void skipped_steps(void **state)
{
	(void)state;
	/* The first steps with a scale of 2^20 overflow, so they are skipped and the scale is
	 * lowered. The same happens whenever the scale has grown too far. */
	exact("a b a,b", "1,2 --steps 200 --dtype fp16 --grad-dtype fp16 --settings "
			 "'chunk_elems=4096 loss_scale=0 loss_scale_window=2 "
			 "hysteresis=1 initial_scale_power=20 optimizer=sgd "
			 "momentum=0.5 lr=0.1 schedule=WarmupLR warmup_type=linear "
			 "warmup_num_steps=3'");
}

static void weights_of_two_steps_before(void **state)
{
	(void)state;
	exact("a,b b", "1,1 --steps 200 --settings 'chunk_elems=8192 clip=0.5 max_staleness=1'");
	exact_every(4, "b a",
		    "1,2 --steps 14 --dim 96 --layers 3 --heads 3 --settings "
		    "'chunk_elems=65536 max_staleness=1'");
}

static void the_only_one_that_trains(void **state)
{
	(void)state;
	exact("a a", "1,0 --steps 200 --settings chunk_elems=8192");
	exact("b a,b", "0,2 --steps 200 --settings chunk_elems=8192");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_optimizer),
		cmocka_unit_test(chunks_for_workers),
		cmocka_unit_test(several_copies),
		cmocka_unit_test(skipped_steps),
		cmocka_unit_test(weights_of_two_steps_before),
		cmocka_unit_test(the_only_one_that_trains),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
