/* SPDX-License-Identifier: Apache-2.0 */
/* Tests with two cores how long the coordinator waits for a step. It gives trainers step_timeout.
 * While a node makes its image again after a restart, or still applies the step before, no trainer
 * can do anything about it. So the coordinator names that node and waits for it for lost_timeout,
 * and the time of the trainers begins afterwards. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/inner.h"
#include "lib/duo.h"

#include <string.h>

/* In tenths of a second. */
enum { A, B, TENTH = 100000000, STEP = 10, LOST = 30 };

/* Both trainers are in step 5, and nobody has pushed anything. */
static void attempt(struct duo *p)
{
	duo_init(p);
	duo_first_begin(p);
	p->core[A]->conf.step_timeout_ns = STEP * (uint64_t)TENTH;
	p->core[A]->conf.lost_timeout_ns = LOST * (uint64_t)TENTH;
	assert_true(p->core[A]->coord.undecided);
}

static void image(struct duo *p, bool late, uint32_t chunk)
{
	duo_event(
		p, B, "image",
		(struct core_event){.type = CORE_EV_IMAGE, .on = late, .chunk = chunk, .step = 4});
}

/* Until the attempt ends, but at most so many. */
static uint32_t tenths(struct duo *p, uint32_t max)
{
	uint32_t nr = 0;

	while (p->core[A]->coord.undecided && nr < max) {
		p->now += TENTH;
		nr++;
		for (unsigned n = A; n <= B; n++)
			duo_feed(p, n, &(struct core_event){.type = CORE_EV_TICK});
		duo_drain(p);
	}
	return nr;
}

static void says(struct duo *p, const char *text)
{
	struct core_state s;

	core_state(p->core[A], &s);
	if (strstr(s.waits, text) == NULL)
		fail_msg("it says \"%s\" and not \"%s\"", s.waits, text);
}

static void test_trainers_have_their_time(void **state)
{
	struct duo p;

	(void)state;
	attempt(&p);
	assert_in_range(tenths(&p, 100), STEP - 1, STEP + 1);
	duo_deinit(&p);
}

static void test_image_made_again(void **state)
{
	struct duo p;

	(void)state;
	attempt(&p);
	image(&p, true, B); /* This node holds a chunk of its own. */
	assert_int_equal(tenths(&p, 2 * STEP), 2 * STEP);
	says(&p, "node b), which waits there for chunk 1 of the image of step 4, which is being "
		 "made again after a restart");
	image(&p, false, 0); /* The coordinator says so within a second. */
	assert_in_range(tenths(&p, 100), STEP - 1, 2 * STEP + 1);
	duo_deinit(&p);
}

static void test_not_for_ever(void **state)
{
	struct duo p;

	(void)state;
	attempt(&p);
	image(&p, true, B);
	assert_in_range(tenths(&p, 100), LOST - 1, LOST + 1);
	duo_deinit(&p);
}

/* Any node may lack a chunk that another node holds. The trainer that needs it asks for it. */
static void test_chunk_of_another_node(void **state)
{
	struct duo p;

	(void)state;
	attempt(&p);
	image(&p, true, A);
	assert_in_range(tenths(&p, 100), STEP - 1, STEP + 1);
	duo_deinit(&p);
}

static void test_step_before(void **state)
{
	struct duo p;

	(void)state;
	attempt(&p);
	p.core[A]->coord.node[B].done = false; /* b was told of step 4, and does not answer. */
	says(&p, "node b), which still applies step 4");
	for (int i = 0; i < 2 * STEP; i++) {
		p.now += TENTH;
		duo_feed(&p, A, &(struct core_event){.type = CORE_EV_TICK});
	}
	assert_true(p.core[A]->coord.undecided);
	duo_drain(&p); /* b hears COMMIT again, and says DONE. */
	assert_true(p.core[A]->coord.node[B].done);
	assert_in_range(tenths(&p, 100), STEP - 1, STEP + 1);
	duo_deinit(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_trainers_have_their_time),
		cmocka_unit_test(test_image_made_again),
		cmocka_unit_test(test_not_for_ever),
		cmocka_unit_test(test_chunk_of_another_node),
		cmocka_unit_test(test_step_before),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
