// SPDX-License-Identifier: Apache-2.0
/* Tests a kernel that is killed at any instruction. What it kept repairs the memory, and the kernel
 * then goes on to the same bits as one that was not killed. The process that runs it gets kill -9
 * from another processor at an arbitrary moment. */
#include "base/check.h"
#include "base/rng.h"
#include "optim/ftz.h"
#include "optim/optim.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { ELEMS = (1 << 18) + 5, FIRST = 192, TRIALS = 5 };

struct shared {
	_Atomic uint32_t begun;
	struct optim_undo undo;
	float state[3][ELEMS];
	uint16_t grad[ELEMS], image[ELEMS];
};

static struct shared *map(void)
{
	struct shared *s =
		mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(s, MAP_FAILED);
	return s;
}

static void fill(struct shared *s, struct rng *r)
{
	for (uint32_t i = 0; i < ELEMS; i++) {
		s->state[0][i] = (float)rng_below(r, 2000) / 1000 - 1;
		s->state[1][i] = (float)rng_below(r, 2000) / 1000 - 1;
		s->state[2][i] = (float)rng_below(r, 1000) / 1000;
		s->grad[i] = dtype_to_bf16((float)rng_below(r, 2000) / 1000 - 1);
	}
	memset(&s->undo, 0, sizeof(s->undo));
	s->begun = 0;
}

static void run(struct shared *s, const struct optim_row *row, enum isa isa, uint32_t from)
{
	struct optim_args a;
	double h[HYPER_NR];

	optim_defaults(row, h);
	optim_args_set(&a, row, h, 3, 0.5f);
	s->undo.origin = FIRST + from;
	optim_kernel_undo(row, isa, SHARD_BF16, SHARD_BF16)(
		&a, ELEMS - from, s->grad + from, s->state[0] + from,
		row->states_nr > 0 ? s->state[1] + from : NULL,
		row->states_nr > 1 ? s->state[2] + from : NULL, s->image + from, &s->undo);
}

static void run_to_death(struct shared *s, const struct optim_row *row, enum isa isa,
			 uint64_t after_ns)
{
	struct timespec wait = {.tv_nsec = (long)after_ns};
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		ftz_on();
		s->begun = 1;
		run(s, row, isa, 0);
		for (;;)
			pause();
	}
	while (!s->begun)
		;
	nanosleep(&wait, NULL);
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}

/* Repairs the memory and goes on. Returns how far the kernel had come, in elements. */
static uint32_t go_on(struct shared *s, const struct optim_row *row, enum isa isa)
{
	uint64_t at = s->undo.at;
	uint32_t from = at ? (uint32_t)undo_position(at) - FIRST : 0;

	assert_true(from < ELEMS && undo_lanes(at) <= UNDO_LANES);
	for (uint32_t i = 0; at && i <= row->states_nr; i++)
		memcpy(s->state[i] + from, s->undo.place[undo_place(at)][i],
		       undo_lanes(at) * sizeof(float));
	run(s, row, isa, from);
	return from;
}

static void test_killed(void **state)
{
	struct shared *s = map(), *whole = map();
	uint32_t between = 0;
	struct rng r;

	(void)state;
	r.state = 20;
	ftz_on();
	for (int isa = 0; isa < ISA_NR; isa++) {
		for (int id = 0; isa_has((enum isa)isa) && id < OPTIM_NR; id++) {
			const struct optim_row *row = optim_row((enum optim_id)id);

			for (int trial = 0; trial < TRIALS; trial++) {
				uint32_t from;

				fill(s, &r);
				memcpy(whole, s, sizeof(*s));
				run(whole, row, (enum isa)isa, 0);
				run_to_death(s, row, (enum isa)isa, rng_below(&r, 100000));
				from = go_on(s, row, (enum isa)isa);
				between += from > 0 && from < ELEMS - UNDO_LANES;
				assert_memory_equal(s->state, whole->state, sizeof(s->state));
				/* The image of elements that are not done again may not have been
				 * written completely. */
				assert_memory_equal(s->image + from, whole->image + from,
						    (ELEMS - from) * sizeof(s->image[0]));
			}
		}
	}
	assert_true(between > 0);
	munmap(s, sizeof(*s));
	munmap(whole, sizeof(*whole));
}

/* With undo the kernel gives the same bits as without. */
static void test_same_bits(void **state)
{
	struct shared *s = map(), *plain = map();
	struct optim_args a;
	double h[HYPER_NR];
	struct rng r;

	(void)state;
	r.state = 21;
	ftz_on();
	for (int isa = 0; isa < ISA_NR; isa++) {
		for (int id = 0; isa_has((enum isa)isa) && id < OPTIM_NR; id++) {
			const struct optim_row *row = optim_row((enum optim_id)id);

			fill(s, &r);
			memcpy(plain, s, sizeof(*s));
			optim_defaults(row, h);
			optim_args_set(&a, row, h, 3, 0.5f);
			optim_kernel(row, (enum isa)isa, SHARD_BF16, SHARD_BF16)(
				&a, ELEMS, plain->grad, plain->state[0],
				row->states_nr > 0 ? plain->state[1] : NULL,
				row->states_nr > 1 ? plain->state[2] : NULL, plain->image);
			run(s, row, (enum isa)isa, 0);
			assert_memory_equal(s->state, plain->state, sizeof(s->state));
			assert_memory_equal(s->image, plain->image, sizeof(s->image));
			/* The elements behind the last full vector are done one by one. */
			assert_int_equal(undo_position(s->undo.at), FIRST + ELEMS - 1);
			assert_int_equal(undo_lanes(s->undo.at), 1);
		}
	}
	munmap(s, sizeof(*s));
	munmap(plain, sizeof(*plain));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_killed),
		cmocka_unit_test(test_same_bits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
