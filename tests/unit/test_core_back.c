// SPDX-License-Identifier: Apache-2.0
/* Two cores whose disks have each step (core/back.h), and that come back from these disks: both, or
 * one while the other lives on, at the same step or one step apart, or after a vote that one of
 * them has forgotten. Whatever the order, they end at one step, which both disks have, and no vote
 * counts that its node does not know of. A copy of a core's saved state stands for what a disk has.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/inner.h"

#include "base/check.h"
#include "lib/duo.h"

#include <stdlib.h>
#include <string.h>

enum { A, B, NODES, STEPS = 4, FIRST = 5 };

static struct duo p;
static void *disk[NODES][STEPS]; /* [step - FIRST] */
static size_t disk_bytes;

static uint64_t step_of(unsigned n)
{
	struct core_state s;

	core_state(p.core[n], &s);
	return s.sealed && s.part != CORE_APPLYING ? s.committed : 0;
}

static void step(void)
{
	for (unsigned n = 0; n < NODES; n++)
		duo_compute(&p, n, true, true);
	for (unsigned n = 0; n < NODES; n++) {
		duo_event(&p, n, "applied", (struct core_event){.type = CORE_EV_APPLIED});
		memcpy(disk[n][step_of(n) - FIRST], p.saved[n][p.counts[n]], disk_bytes);
	}
}

static void begin(uint64_t last) /* Steps up to this one. */
{
	duo_init_durable(&p);
	disk_bytes = (core_warm_bytes(&p.core[A]->conf) + 63) & ~(size_t)63;
	for (unsigned n = 0; n < NODES; n++)
		for (unsigned i = 0; i < STEPS; i++) {
			disk[n][i] = aligned_alloc(64, disk_bytes);
			CHECK(disk[n][i] != NULL);
		}
	duo_first_begin(&p);
	while (step_of(A) < last)
		step();
	assert_int_equal(step_of(B), last);
}

static void end(void)
{
	for (unsigned n = 0; n < NODES; n++)
		for (unsigned i = 0; i < STEPS; i++)
			free(disk[n][i]);
	duo_deinit(&p);
}

static bool traced(const char *what)
{
	return strstr(p.trace, what) != NULL;
}

/* The process is there again, with what its disk has of that step. 0: with its memory. */
static void begins(unsigned n, uint64_t from)
{
	p.head = p.tail;
	p.now += 1000000;
	p.recalled = from > 0;
	assert_non_null(
		duo_warm(&p, n, from > 0 ? disk[n][from - FIRST] : p.saved[n][p.counts[n]]));
	p.recalled = false;
	if (core_warm_save(p.core[n], p.saved[n][1 - p.counts[n]]))
		p.counts[n] = 1 - p.counts[n];
	duo_feed(&p, n, &(struct core_event){.type = CORE_EV_WARM});
}

static void comes(unsigned n, uint64_t from)
{
	begins(n, from);
	if (n == A)
		duo_feed(&p, n, &(struct core_event){.type = CORE_EV_TICK});
}

/* The connection is made anew, and the view that follows becomes durable. */
static void meet(void)
{
	p.trace[p.used = 0] = 0;
	duo_link(&p);
	if (p.core[A]->coord.state == COORD_PERSIST)
		duo_event(&p, A, "persisted", (struct core_event){.type = CORE_EV_PERSISTED});
}

static void open_at(uint64_t step)
{
	struct core_state s;

	for (unsigned n = 0; n < NODES; n++) {
		core_state(p.core[n], &s);
		assert_false(s.recovering);
		assert_int_equal(s.generation, 1);
		assert_int_equal(step_of(n), step);
	}
}

/* They go on as if nothing had been. */
static void goes_on(void)
{
	uint64_t was = step_of(A);

	duo_event(&p, B, "join 22",
		  (struct core_event){.type = CORE_EV_JOIN,
				      .trainer = {.session = 22, .pid = 222, .node = 1}});
	assert_int_equal(p.core[B]->step.part, CORE_STAGING);
	duo_event(&p, B, "staged",
		  (struct core_event){.type = CORE_EV_STAGED,
				      .chunk = B,
				      .sumsq = 16,
				      .finite = true,
				      .bad_tensor = -1,
				      .id = p.id[B]});
	duo_event(&p, A, "staged",
		  (struct core_event){.type = CORE_EV_STAGED,
				      .chunk = A,
				      .sumsq = 16,
				      .finite = true,
				      .bad_tensor = -1,
				      .id = p.id[A]});
	duo_event(&p, B, "ready",
		  (struct core_event){
			  .type = CORE_EV_READY, .session = 22, .weight = 2, .id = p.id[B]});
	for (unsigned n = 0; n < NODES; n++)
		duo_event(&p, n, "applied", (struct core_event){.type = CORE_EV_APPLIED});
	open_at(was + 1);
}

static void test_all_at_one_step(void **state)
{
	(void)state;
	begin(6);
	comes(B, 6);
	comes(A, 6);
	meet();
	assert_false(traced("  a: BACK") || traced("  b: BACK"));
	open_at(6);
	goes_on();
	end();
}

/* The disk of a has one step more, so a goes back. */
static void test_the_coordinator_is_ahead(void **state)
{
	(void)state;
	begin(6);
	comes(B, 5);
	comes(A, 6);
	meet();
	assert_true(traced("  a: BACK"));
	assert_true(p.core[A]->coord.state == COORD_RECOVER);
	comes(A, 5);
	meet();
	open_at(5);
	goes_on();
	end();
}

/* b goes back. Power is lost again before it has, and b is ahead once more. */
static void test_another_node_is_ahead(void **state)
{
	(void)state;
	begin(6);
	comes(A, 5);
	comes(B, 6);
	meet();
	assert_true(traced("  b: BACK"));
	comes(B, 6);
	comes(A, 5);
	meet();
	assert_true(traced("  b: BACK"));
	comes(B, 5);
	meet();
	open_at(5);
	goes_on();
	end();
}

/* One lost its power, and the other one lives on at the same step. */
static void test_one_comes_back(void **state)
{
	(void)state;
	begin(6);
	comes(B, 6);
	meet();
	assert_true(traced("  a: AGAIN"));
	comes(A, 0);
	meet();
	assert_false(traced("  a: AGAIN") || traced("  b: BACK"));
	open_at(6);
	goes_on();
	end();
}

static void test_one_comes_back_behind(void **state)
{
	(void)state;
	begin(6);
	comes(B, 5);
	meet();
	comes(A, 0);
	meet();
	assert_true(traced("  a: BACK"));
	comes(A, 5);
	meet();
	open_at(5);
	goes_on();
	end();
}

/* b has voted for step 6, lost its power, and does not know. With that vote a would decide. */
static void test_forgotten_vote(void **state)
{
	(void)state;
	begin(5);
	duo_compute(&p, A, false, true);
	duo_compute(&p, B, true, true);
	assert_int_equal(p.core[B]->step.part, CORE_PREPARED);
	assert_true(p.core[A]->coord.node[B].voted);
	comes(B, 5);
	meet();
	assert_true(traced("  a: AGAIN"));
	comes(A, 0);
	meet();
	open_at(5);
	goes_on();
	end();
}

/* a has voted for step 6, and cannot know whether b had, too, and had sent it a part of the image
 * of that step. So it gives up its image. If b has its memory, a knows. */
static void test_vote_given_up(void **state)
{
	(void)state;
	for (unsigned power = 0; power < 2; power++) {
		begin(5);
		duo_compute(&p, A, true, true);
		duo_compute(&p, B, false, true);
		assert_int_equal(p.core[A]->step.part, CORE_PREPARED);
		comes(B, power ? 5 : 0);
		comes(A, 0);
		meet();
		assert_int_equal(traced("  a: BACK"), power);
		if (power) {
			comes(A, 5);
			meet();
		}
		open_at(5);
		end();
	}
}

/* The same vote is known to a coordinator that recovers, and only waits for another answer. */
static void test_forgotten_answer(void **state)
{
	(void)state;
	begin(5);
	for (unsigned n = 0; n < NODES; n++)
		duo_compute(&p, n, true, n == B);
	begins(A, 0); /* It has not asked itself yet. */
	p.core[A]->coord.node[B].answered = p.core[A]->coord.node[B].is_prepared = true;
	p.core[A]->coord.node[B].who = duo_who(B);
	duo_feed(&p, A,
		 &(struct core_event){.type = CORE_EV_LINK_UP, .node = B, .who = duo_who(B)});
	assert_true(p.core[A]->coord.node[B].answered);
	duo_feed(&p, A, &(struct core_event){.type = CORE_EV_LINK_DOWN, .node = B, .why = "gone"});
	assert_false(p.core[A]->coord.node[B].answered);
	comes(B, 5);
	duo_feed(&p, A, &(struct core_event){.type = CORE_EV_TICK});
	meet();
	open_at(5);
	end();
}

/* Both have their memory: what all are PREPARED for is decided, and nobody goes back. */
static void test_with_memory(void **state)
{
	(void)state;
	begin(5);
	for (unsigned n = 0; n < NODES; n++)
		duo_compute(&p, n, true, true);
	p.head = p.tail;
	comes(B, 0);
	comes(A, 0);
	meet();
	assert_false(traced("BACK") || traced("AGAIN"));
	for (unsigned n = 0; n < NODES; n++)
		duo_event(&p, n, "applied", (struct core_event){.type = CORE_EV_APPLIED});
	open_at(6);
	end();
}

/* It obeys nothing until it is asked, also not what a coordinator says that has not heard yet. */
static void test_obeys_nobody(void **state)
{
	(void)state;
	begin(6);
	comes(B, 6);
	p.trace[p.used = 0] = 0;
	duo_feed(&p, A, &(struct core_event){.type = CORE_EV_LINK_DOWN, .node = B, .why = "gone"});
	duo_feed(&p, A,
		 &(struct core_event){.type = CORE_EV_LINK_UP, .node = B, .who = duo_who(B)});
	assert_int_equal(p.core[A]->coord.state, COORD_OPEN);
	duo_feed(&p, B,
		 &(struct core_event){.type = CORE_EV_LINK_UP, .node = A, .who = duo_who(A)});
	duo_drain(&p);
	assert_int_equal(p.core[B]->step.part, CORE_FREE);
	assert_true(traced("  a: AGAIN"));
	end();
}

/* Killed before anybody asked: the next process still says that its memory is of its disk. */
static void test_killed_meanwhile(void **state)
{
	(void)state;
	begin(6);
	comes(B, 6);
	comes(B, 0);
	meet();
	assert_true(traced("  a: AGAIN"));
	comes(A, 0);
	meet();
	comes(B, 0); /* It was asked, so it is a member with its memory. */
	meet();
	assert_false(traced("  a: AGAIN"));
	end();
}

/* An older copy of a disk: no step is on both disks. */
static void test_too_far(void **state)
{
	(void)state;
	begin(7);
	comes(A, 7);
	comes(B, 5);
	meet();
	assert_true(traced("  a: PERSIST g2"));
	assert_true(traced("  b: LOST") || traced("  a: LOST"));
	assert_false(traced("  a: BACK"));
	end();
}

static void tells(uint32_t generation, uint64_t step)
{
	struct core_msg m = {.op = CORE_BACK,
			     .from = B,
			     .to = A,
			     .from_incarnation = duo_who(B).incarnation,
			     .id = {.generation = generation, .step = step}};

	p.trace[p.used = 0] = 0;
	duo_feed(&p, A, &(struct core_event){.type = CORE_EV_MSG, .node = B, .msg = &m});
}

/* What the disk of b cannot have is no reason to start again. What it may have is one, as an older
 * generation, because b obeys nobody before it is asked. */
static void test_told_what_cannot_be(void **state)
{
	static const uint64_t can[][2] = {{0, 0}, {1, 5}, {1, 6}, {1, 7}};

	(void)state;
	duo_init_durable(&p);
	duo_event(&p, A, "tick", (struct core_event){.type = CORE_EV_TICK});
	meet();
	assert_int_equal(p.core[A]->coord.state, COORD_OPEN);
	tells(p.core[A]->coord.view.generation, 1); /* It is not sealed. */
	assert_false(traced("AGAIN"));
	duo_deinit(&p);
	for (unsigned i = 0; i < sizeof(can) / sizeof(can[0]); i++) {
		begin(6);
		tells(2, 1);
		assert_false(traced("AGAIN"));
		tells(1, 8);
		assert_false(traced("AGAIN"));
		tells((uint32_t)can[i][0], can[i][1]);
		assert_true(traced("  a: AGAIN"));
		end();
	}
}

static bool waits_for_end(unsigned n)
{
	struct core_state s;

	core_state(p.core[n], &s);
	return strstr(s.waits, "odd_stays") != NULL;
}

/* a is to go back, and its process stays because it would take another model along. That is said,
 * until the model has other weights. */
static void test_stays(void **state)
{
	(void)state;
	begin(7);
	comes(B, 6);
	comes(A, 7);
	meet();
	assert_true(traced("  a: BACK"));
	assert_true(waits_for_end(A));
	assert_false(waits_for_end(B));
	comes(B, 5);
	meet();
	assert_true(traced("  a: LOST"));
	assert_false(waits_for_end(A));
	assert_false(p.core[A]->backs);
	end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all_at_one_step),
		cmocka_unit_test(test_the_coordinator_is_ahead),
		cmocka_unit_test(test_another_node_is_ahead),
		cmocka_unit_test(test_one_comes_back),
		cmocka_unit_test(test_one_comes_back_behind),
		cmocka_unit_test(test_forgotten_vote),
		cmocka_unit_test(test_vote_given_up),
		cmocka_unit_test(test_forgotten_answer),
		cmocka_unit_test(test_with_memory),
		cmocka_unit_test(test_obeys_nobody),
		cmocka_unit_test(test_killed_meanwhile),
		cmocka_unit_test(test_too_far),
		cmocka_unit_test(test_told_what_cannot_be),
		cmocka_unit_test(test_stays),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
