/* SPDX-License-Identifier: Apache-2.0 */
/* Golden traces of two nodes with one chunk and one trainer each. They go through a step that
 * commits, and through one whose trainer dies. Holds, tunes and a return to a checkpoint have
 * traces, too. Every event, message and action is one line, and the lines are compared with
 * tests/trace. TRACE_UPDATE=1 writes the files anew, and the difference must then be reviewed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "lib/duo.h"

#include "base/check.h"

static void test_step(void **state)
{
	struct duo p;
	struct core_state s;

	(void)state;
	duo_init(&p);
	duo_first_begin(&p);
	duo_compute(&p, 1, true, true);
	duo_compute(&p, 0, true, true);
	duo_event(&p, 0, "applied", (struct core_event){.type = CORE_EV_APPLIED});
	duo_event(&p, 1, "applied", (struct core_event){.type = CORE_EV_APPLIED});
	core_state(p.core[1], &s);
	assert_int_equal(s.part, CORE_STAGING);
	assert_int_equal(s.committed, 5);
	assert_int_equal(s.id.step, 6);
	assert_true(s.record->clip_factor > 0.7 &&
		    s.record->clip_factor < 0.71); /* The norm is sqrt(32) / 4. */
	duo_compare(&p, "tests/trace/step.txt");
	duo_deinit(&p);
}

static void test_abort(void **state)
{
	struct duo p;
	struct core_state s;

	(void)state;
	duo_init(&p);
	duo_first_begin(&p);
	duo_compute(&p, 0, false, true);
	duo_compute(&p, 1, false, false);
	duo_event(&p, 1, "gone 21",
		  (struct core_event){.type = CORE_EV_GONE,
				      .trainer = {.session = 21, .pid = 221, .node = 1},
				      .why = "closed its socket"});
	duo_event(&p, 0, "drained", (struct core_event){.type = CORE_EV_DRAINED, .id = p.id[0]});
	duo_event(&p, 1, "drained", (struct core_event){.type = CORE_EV_DRAINED, .id = p.id[1]});
	core_state(p.core[0], &s);
	assert_int_equal(s.part, CORE_STAGING);
	assert_int_equal(s.id.step, 5);
	assert_int_equal(s.id.attempt, 2);
	assert_int_equal(s.world->size, 1);
	duo_compute(&p, 1, true, false);
	duo_compute(&p, 0, true, true);
	duo_event(&p, 0, "applied", (struct core_event){.type = CORE_EV_APPLIED});
	duo_compare(&p, "tests/trace/abort.txt");
	duo_deinit(&p);
}

static void hold(struct duo *p, bool on)
{
	duo_event(p, 0, on ? "hold" : "hold off",
		  (struct core_event){.type = CORE_EV_HOLD, .on = on});
}

static void tick_at(struct duo *p, unsigned n, uint64_t at)
{
	p->now = at;
	duo_event(p, n, "tick", (struct core_event){.type = CORE_EV_TICK});
}

static void test_hold(void **state)
{
	struct duo p;
	struct core_state s;

	(void)state;
	duo_init(&p);
	duo_first_begin(&p);
	hold(&p, true); /* STAGING ends at once. */
	duo_compute(&p, 0, true, true);
	core_state(p.core[0], &s);
	assert_true(s.held && s.part == CORE_STAGING);
	tick_at(&p, 0, p.now + 200000000); /* It reports that its own rank is ready. */
	core_state(p.core[0], &s);
	assert_string_equal(s.waits, "rank 1 (pid 221, node b): 1 of 2 chunks");
	duo_compute(&p, 1, true, true);
	core_state(p.core[0], &s);
	assert_true(s.held && s.part == CORE_STAGING);
	assert_string_equal(
		s.waits, "step 4 to be written to a checkpoint, or for its copies to be compared");
	hold(&p, false);
	core_state(p.core[0], &s);
	assert_true(!s.held && s.committed == 5);
	duo_event(&p, 0, "applied", (struct core_event){.type = CORE_EV_APPLIED});
	duo_event(&p, 1, "applied", (struct core_event){.type = CORE_EV_APPLIED});
	duo_compute(&p, 1, false, true);
	duo_compute(&p, 0, true, true);
	hold(&p, true); /* PREPARED waits for the verdict first. */
	core_state(p.core[0], &s);
	assert_true(!s.held && s.part == CORE_PREPARED);
	duo_compute(&p, 1, true, false);
	core_state(p.core[0], &s);
	assert_true(s.held && s.committed == 6);
	duo_compare(&p, "tests/trace/hold.txt");
	duo_deinit(&p);
}

static void test_hold_deadline(
	void **state) /* 300 s. The time does not run during a hold, and goes on afterwards. */
{
	const uint64_t second = 1000000000ull;
	struct duo p;
	struct core_state s;
	uint64_t begun;

	(void)state;
	duo_init(&p);
	duo_first_begin(&p);
	begun = p.now;
	p.now = begun + 100 * second;
	hold(&p, true);
	tick_at(&p, 0, begun + 900 * second);
	p.now = begun + 1000 * second;
	hold(&p, false);
	tick_at(&p, 0, begun + 1199 * second);
	core_state(p.core[0], &s);
	assert_true(s.joined == 2 && s.id.attempt == 1);
	tick_at(&p, 0, begun + 1201 * second);
	core_state(p.core[0], &s);
	assert_int_equal(s.joined, 0);
	duo_deinit(&p);
}

static void test_written_early(void **state) /* While the first view is still on its way to disk. */
{
	struct duo p;
	struct core_state s;

	(void)state;
	duo_init(&p);
	duo_event(&p, 0, "tick", (struct core_event){.type = CORE_EV_TICK});
	duo_feed(&p, 1,
		 &(struct core_event){.type = CORE_EV_LINK_UP, .node = 0, .who = duo_who(0)});
	duo_event(&p, 0, "link up b",
		  (struct core_event){.type = CORE_EV_LINK_UP, .node = 1, .who = duo_who(1)});
	duo_event(&p, 0, "written",
		  (struct core_event){.type = CORE_EV_WRITTEN, .step = 4, .id.generation = 1});
	duo_event(&p, 0, "persisted", (struct core_event){.type = CORE_EV_PERSISTED});
	duo_event(&p, 0, "persisted", (struct core_event){.type = CORE_EV_PERSISTED});
	core_state(p.core[1], &s);
	assert_true(s.sealed && s.committed == 4);
	duo_deinit(&p);
}

static void tune(struct duo *p, const char *what, struct core_tune t)
{
	duo_event(p, 0, what, (struct core_event){.type = CORE_EV_TUNE, .tune = &t});
}

static void step_by_both(struct duo *p)
{
	duo_compute(p, 0, true, true);
	duo_compute(p, 1, true, true);
	duo_event(p, 0, "applied", (struct core_event){.type = CORE_EV_APPLIED});
	duo_event(p, 1, "applied", (struct core_event){.type = CORE_EV_APPLIED});
}

static void test_tune(void **state)
{
	struct core_tune t = {.has_lr = true, .lr = 0.25, .has_clip = true};
	struct duo p;
	struct core_state s;

	(void)state;
	duo_init(&p);
	duo_first_begin(&p);
	tune(&p, "tune lr 0.25, no clip", t);
	step_by_both(&p); /* It was begun before, and stays as it was. */
	core_state(p.core[1], &s);
	assert_true(s.record->lr == 1e-3 && s.record->clip_factor < 1 && !s.tune->has_lr);
	duo_event(&p, 0, "persisted", (struct core_event){.type = CORE_EV_PERSISTED});
	core_state(p.core[1], &s);
	assert_true(s.tune->has_lr && s.id.step == 6);
	step_by_both(&p);
	core_state(p.core[1], &s);
	assert_true(s.record->lr == 0.25 && s.record->clip_factor == 1);
	t.paused = true;
	tune(&p, "tune paused", t);
	step_by_both(&p);
	duo_event(&p, 0, "persisted", (struct core_event){.type = CORE_EV_PERSISTED});
	core_state(p.core[0], &s);
	assert_true(s.paused && s.part == CORE_FREE);
	assert_string_equal(s.waits, "an operator paused the model: `shardctl model resume` "
				     "lets it go on");
	tick_at(&p, 0, p.now + 1000000000ull);
	t.paused = false;
	tune(&p, "tune resumed", t);
	duo_event(&p, 0, "persisted", (struct core_event){.type = CORE_EV_PERSISTED});
	core_state(p.core[0], &s);
	assert_true(!s.paused && s.part == CORE_STAGING);
	duo_compare(&p, "tests/trace/tune.txt");
	duo_deinit(&p);
}

static void checkpoint(struct duo *p, bool on)
{
	duo_event(p, 0, on ? "checkpoint" : "checkpoint off",
		  (struct core_event){.type = CORE_EV_CHECKPOINT,
				      .on = on,
				      .why = on ? NULL : "step 4 of it is torn"});
}

static void test_rollback(void **state)
{
	struct core_restored restored = {.applied = 3,
					 .skipped_in_row = 1,
					 .scaler = {.scale = 8, .hysteresis = 1},
					 .tune = {.has_clip = true}};
	struct duo p;
	struct core_state s;

	(void)state;
	duo_init(&p);
	duo_first_begin(&p);
	duo_event(&p, 0, "rollback",
		  (struct core_event){.type = CORE_EV_ROLLBACK,
				      /* Without a checkpoint nothing happens. */
				      .why = "to what?"});
	checkpoint(&p, true);
	step_by_both(&p);
	duo_event(&p, 0, "rollback",
		  (struct core_event){.type = CORE_EV_ROLLBACK, .why = "an operator asked"});
	duo_event(&p, 0, "persisted", (struct core_event){.type = CORE_EV_PERSISTED});
	core_state(p.core[1], &s);
	assert_true(s.restoring && !s.sealed && s.generation == 2);
	duo_event(&p, 0, "written",
		  (struct core_event){.type = CORE_EV_WRITTEN, .step = 4, .restored = &restored});
	duo_event(&p, 0, "persisted", (struct core_event){.type = CORE_EV_PERSISTED});
	duo_event(&p, 0, "drained", (struct core_event){.type = CORE_EV_DRAINED, .id = p.id[0]});
	duo_event(&p, 1, "drained", (struct core_event){.type = CORE_EV_DRAINED, .id = p.id[1]});
	core_state(p.core[1], &s);
	assert_true(!s.restoring && s.sealed && s.tune->has_clip && s.part == CORE_STAGING &&
		    s.id.step == 5 && s.world->size == 2);
	assert_true(s.record->applied == 3 && s.record->skipped_in_row == 1 &&
		    s.record->loss_scale == 8);
	duo_event(&p, 0, "rollback",
		  (struct core_event){.type = CORE_EV_ROLLBACK, .why = "an operator asked again"});
	duo_event(&p, 0, "persisted", (struct core_event){.type = CORE_EV_PERSISTED});
	checkpoint(&p, false); /* The checkpoint cannot be read, so the model is LOST for good. */
	duo_event(&p, 0, "persisted", (struct core_event){.type = CORE_EV_PERSISTED});
	core_state(p.core[1], &s);
	assert_true(!s.restoring && !s.sealed && s.generation == 4);
	duo_compare(&p, "tests/trace/rollback.txt");
	duo_deinit(&p);
}

/* A change is durable, but not answered, when the model goes back to a checkpoint. It is
 * answered when it holds there. */
static void test_tune_and_rollback(void **state)
{
	struct core_restored restored = {.scaler = {.scale = 1, .hysteresis = 1},
					 .tune = {.has_clip = true, .clip = 3}};
	struct core_tune wish = {.has_lr = true, .lr = 0.25};
	const char *told, *sealed;
	struct core_state s;
	struct duo p;

	(void)state;
	duo_init(&p);
	duo_first_begin(&p);
	checkpoint(&p, true);
	tune(&p, "tune", wish);
	step_by_both(&p); /* The view of the change is on its way to the disk. */
	duo_event(&p, 0, "rollback",
		  (struct core_event){.type = CORE_EV_ROLLBACK, .why = "an operator asked"});
	for (int i = 0; i < 2; i++)
		duo_event(&p, 0, "persisted", (struct core_event){.type = CORE_EV_PERSISTED});
	core_state(p.core[1], &s);
	assert_true(s.restoring && s.generation == 2);
	duo_event(&p, 0, "written",
		  (struct core_event){.type = CORE_EV_WRITTEN, .step = 4, .restored = &restored});
	duo_event(&p, 0, "persisted", (struct core_event){.type = CORE_EV_PERSISTED});
	core_state(p.core[1], &s);
	assert_true(s.sealed && s.tune->has_lr && s.tune->lr == 0.25);
	sealed = strstr(p.trace, "SEAL g2");
	told = strstr(p.trace, "TUNED");
	assert_true(sealed != NULL && told != NULL && told > sealed);
	assert_null(strstr(told + 1, "TUNED"));
	duo_deinit(&p);
}

/* Trainers come and go while the coordinator does not answer. It is told of the next one all the
 * same. */
static void test_many_come_and_go(void **state)
{
	struct core_event e = {.type = CORE_EV_JOIN, .trainer = {.hint = -1, .node = 1}};
	struct core_state s;
	struct duo p;

	(void)state;
	duo_init(&p);
	duo_first_begin(&p);
	for (uint64_t i = 0; i < 2 * CORE_RANKS_MAX; i++) {
		e.trainer.session = 100 + i;
		e.type = CORE_EV_JOIN;
		duo_feed(&p, 1, &e);
		e.type = CORE_EV_GONE;
		e.why = "closed its socket";
		duo_feed(&p, 1, &e);
		p.head = p.tail; /* Node a does not read. */
		p.used = 0;
	}
	e.type = CORE_EV_JOIN;
	e.trainer.session = 9000;
	duo_event(&p, 1, "join 9000", e);
	core_state(p.core[0], &s);
	assert_int_equal(s.joined, 3);
	duo_deinit(&p);
}

static void test_kick(void **state)
{
	struct duo p;
	struct core_state s;

	(void)state;
	duo_init(&p);
	duo_first_begin(&p);
	duo_event(&p, 0, "kick 7",
		  (struct core_event){.type = CORE_EV_KICK, .rank = 7}); /* Nobody has joined. */
	core_state(p.core[0], &s);
	assert_true(s.joined == 2 && s.part == CORE_STAGING);
	duo_event(&p, 0, "kick 1",
		  (struct core_event){
			  .type = CORE_EV_KICK, .rank = 1, .why = "an operator put it out"});
	duo_event(&p, 0, "drained", (struct core_event){.type = CORE_EV_DRAINED, .id = p.id[0]});
	core_state(p.core[0], &s);
	assert_true(s.joined == 1 && s.id.attempt == 2 && s.world->size == 1);
	duo_compare(&p, "tests/trace/kick.txt");
	duo_deinit(&p);
}

/* The contribution of b to the chunk of a does not arrive as it was sent, and the attempt is
 * begun anew. When this happens again, the only rank of b is put out. */
static void test_damaged(void **state)
{
	struct core_event old = {.type = CORE_EV_DAMAGED, .node = 1, .chunk = 0};
	struct core_state s;
	struct duo p;

	(void)state;
	duo_init(&p);
	duo_first_begin(&p);
	old.id = p.id[0];
	old.id.attempt += 7;
	duo_event(&p, 0, "damaged, of no attempt in hand", old);
	core_state(p.core[0], &s);
	assert_true(s.joined == 2 && s.part == CORE_STAGING);
	for (uint32_t i = 1; i <= 2; i++) {
		duo_event(&p, 0, "b's contribution to chunk 0 is damaged",
			  (struct core_event){
				  .type = CORE_EV_DAMAGED, .node = 1, .chunk = 0, .id = p.id[0]});
		for (unsigned n = 0; n < 2; n++)
			duo_event(&p, n, "drained",
				  (struct core_event){.type = CORE_EV_DRAINED, .id = p.id[n]});
		core_state(p.core[0], &s);
		assert_true(s.joined == 3 - i && s.id.attempt == 1 + i && s.world->size == 3 - i);
	}
	duo_compare(&p, "tests/trace/damaged.txt");
	duo_deinit(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_step),
		cmocka_unit_test(test_abort),
		cmocka_unit_test(test_hold),
		cmocka_unit_test(test_hold_deadline),
		cmocka_unit_test(test_tune),
		cmocka_unit_test(test_rollback),
		cmocka_unit_test(test_kick),
		cmocka_unit_test(test_damaged),
		cmocka_unit_test(test_written_early),
		cmocka_unit_test(test_tune_and_rollback),
		cmocka_unit_test(test_many_come_and_go),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
