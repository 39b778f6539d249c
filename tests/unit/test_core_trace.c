/* SPDX-License-Identifier: Apache-2.0 */
/* Golden traces: two nodes with one chunk and one trainer each go through a step that commits, and through one whose trainer dies.
 * Holds, tunes and a return to a checkpoint have theirs. Every event, message and action is one line; the lines are compared with
 * tests/trace. TRACE_UPDATE=1 writes the files anew: then read the difference, it is the review. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/core.h"

#include "base/check.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define QUEUE_NR 64
static const char *const names[] = {"a", "b"};
static const uint16_t owner[] = {0, 1};

struct queued {
	struct core_msg msg;
	struct core_world world;
	struct record record;
	struct core_view view;
	struct core_answer answer;
	double sumsq, weight;
	uint8_t finite;
	char why[256];
};

struct pair {
	struct core *core[2];
	void *memory[2];
	struct core_id id[2];
	struct core_out out;
	struct queued queue[QUEUE_NR];
	uint32_t head, tail;
	uint64_t now;
	char *trace;
	size_t used, bytes;
};

__attribute__((format(printf, 2, 3))) static void line(struct pair *p, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	p->used += (size_t)vsnprintf(p->trace + p->used, p->bytes - p->used, fmt, ap);
	va_end(ap);
	assert_true(p->used + 256 < p->bytes);
}

static const char *id_text(const struct core_id *id, char text[64])
{
	snprintf(text, 64, "g%u t%llu.%u step %llu/%u", id->generation, (unsigned long long)id->term, id->seq,
		 (unsigned long long)id->step, id->attempt);
	return text;
}

static void keep(struct queued *q, const struct core_msg *m)
{
	q->msg = *m;
	if (m->world) {
		q->world = *m->world;
		q->msg.world = &q->world;
	}
	if (m->record) {
		q->record = *m->record;
		q->msg.record = &q->record;
	}
	if (m->view) {
		q->view = *m->view;
		q->msg.view = &q->view;
	}
	if (m->answer) {
		q->answer = *m->answer;
		q->msg.answer = &q->answer;
	}
	if (m->vote.chunks_nr) {
		assert_int_equal(m->vote.chunks_nr, 1);
		q->sumsq = m->vote.sumsq[0];
		q->finite = m->vote.finite[0];
		q->weight = m->vote.ranks_nr ? m->vote.weights[0] : 0;
		q->msg.vote.sumsq = &q->sumsq;
		q->msg.vote.finite = &q->finite;
		q->msg.vote.weights = &q->weight;
	}
	snprintf(q->why, sizeof(q->why), "%s", m->why ? m->why : "");
	q->msg.why = m->why ? q->why : NULL;
}

static const char *const op_names[CORE_MSG_NR] = {"?",      "ASK",   "ANSWER", "VIEW",    "VIEW_OK", "BEGIN", "GRANT",   "VOTE",
						  "COMMIT", "ABORT", "DONE",   "DRAINED", "JOIN",    "GONE",  "ABANDON", "WAITING"};
static const char *const act_names[] = {"?",     "SEND", "PERSIST", "BEGIN", "CREDIT", "OPEN", "APPLY", "RESULT",
					"ENDED", "SEAL", "LOST",    "EXPEL", "LEFT",   "HELD", "TUNED"};

static void trace_action(struct pair *p, unsigned n, const struct core_action *a)
{
	char text[64];

	if (a->type == CORE_ACT_SEND)
		line(p, "  %s: send %s to %s", names[n], op_names[a->msg.op], names[a->msg.to]);
	else
		line(p, "  %s: %s", names[n], act_names[a->type]);
	if (a->type == CORE_ACT_CREDIT)
		line(p, " from %s", names[a->node]);
	if (a->type == CORE_ACT_PERSIST)
		line(p, " g%u t%llu.%u sealed %d", a->view->generation, (unsigned long long)a->view->term, a->view->seq,
		     a->view->sealed);
	else if (a->type == CORE_ACT_SEND)
		line(p, " %s", id_text(&a->msg.id, text));
	else if (a->record && a->type != CORE_ACT_BEGIN)
		line(p, " %s outcome %d applied %llu", id_text(&a->record->id, text), a->record->outcome,
		     (unsigned long long)a->record->applied);
	else if (a->type != CORE_ACT_LEFT && a->type != CORE_ACT_EXPEL && a->type != CORE_ACT_TUNED)
		line(p, " %s", id_text(&a->id, text));
	if (a->world)
		line(p, " world of %u", a->world->size);
	if (a->why || a->msg.why)
		line(p, ": %s", a->why ? a->why : a->msg.why);
	line(p, "\n");
}

static void feed(struct pair *p, unsigned n, const struct core_event *e)
{
	core_event(p->core[n], e, p->now, &p->out);
	for (uint32_t i = 0; i < p->out.nr; i++) {
		const struct core_action *a = &p->out.act[i];

		trace_action(p, n, a);
		if (a->type == CORE_ACT_BEGIN)
			p->id[n] = a->id;
		if (a->type == CORE_ACT_SEND)
			keep(&p->queue[p->tail++ % QUEUE_NR], &a->msg);
		assert_true(p->tail - p->head < QUEUE_NR);
	}
}

static void drain(struct pair *p)
{
	while (p->head < p->tail) {
		struct queued *q = &p->queue[p->head++ % QUEUE_NR];
		struct core_event e = {.type = CORE_EV_MSG, .msg = &q->msg};
		char text[64];

		line(p, "%s hears %s from %s %s\n", names[q->msg.to], op_names[q->msg.op], names[q->msg.from],
		     id_text(&q->msg.id, text));
		feed(p, q->msg.to, &e);
	}
}

static void event(struct pair *p, unsigned n, const char *what, struct core_event e)
{
	p->now += 1000000;
	line(p, "%s: %s\n", names[n], what);
	feed(p, n, &e);
	drain(p);
}

static void pair_init(struct pair *p)
{
	struct core_conf conf = {.nodes_nr = 2,
				 .chunks_nr = 2,
				 .owner = owner,
				 .node_names = names,
				 .min_world = 1,
				 .max_world = 2,
				 .step_timeout_ns = 300000000000ull,
				 .heartbeat_timeout_ns = 5000000000ull,
				 .repeat_ns = 200000000ull};

	memset(p, 0, sizeof(*p));
	p->bytes = 1 << 16;
	p->trace = calloc(1, p->bytes);
	conf.record = (struct record_conf){.optim = optim_row(OPTIM_ADAMW),
					   .groups_nr = 1,
					   .clip = 1,
					   .initial_scale = 1,
					   .min_scale = 1,
					   .scale_window = 1,
					   .hysteresis = 1};
	conf.record.lr_factor[0] = 1;
	optim_defaults(conf.record.optim, conf.record.hyper[0]);
	for (uint16_t n = 0; n < 2; n++) {
		conf.self = n;
		conf.incarnation = conf.term = 7 + n;
		p->memory[n] = aligned_alloc(64, (core_bytes(&conf) + 63) & ~(size_t)63);
		assert_non_null(p->memory[n]);
		memset(p->memory[n], 0, core_bytes(&conf));
		p->core[n] = core_init(p->memory[n], &conf, NULL, NULL);
	}
}

static void pair_deinit(struct pair *p)
{
	for (unsigned n = 0; n < 2; n++)
		free(p->memory[n]);
	free(p->trace);
}

static void up_to_first_begin(struct pair *p)
{
	event(p, 0, "tick", (struct core_event){.type = CORE_EV_TICK});
	line(p, "b: link up a\n");
	feed(p, 1, &(struct core_event){.type = CORE_EV_LINK_UP, .node = 0, .incarnation = 7});
	event(p, 0, "link up b", (struct core_event){.type = CORE_EV_LINK_UP, .node = 1, .incarnation = 8});
	event(p, 0, "persisted", (struct core_event){.type = CORE_EV_PERSISTED});
	event(p, 1, "join 21",
	      (struct core_event){.type = CORE_EV_JOIN, .trainer = {.session = 21, .pid = 221, .hint = 1, .node = 1}});
	event(p, 0, "join 11", (struct core_event){.type = CORE_EV_JOIN, .trainer = {.session = 11, .pid = 111, .hint = 0}});
	event(p, 0, "written", (struct core_event){.type = CORE_EV_WRITTEN, .step = 4});
	event(p, 0, "persisted", (struct core_event){.type = CORE_EV_PERSISTED});
}

static void compute(struct pair *p, unsigned n, bool staged, bool ready)
{
	if (staged)
		event(p, n, "staged",
		      (struct core_event){
			      .type = CORE_EV_STAGED, .chunk = n, .sumsq = 16, .finite = true, .bad_tensor = -1, .id = p->id[n]});
	if (ready)
		event(p, n, "ready",
		      (struct core_event){.type = CORE_EV_READY, .session = n ? 21 : 11, .weight = 2, .id = p->id[n]});
}

static void compare(struct pair *p, const char *path)
{
	static char golden[1 << 16];
	FILE *f;
	size_t nr;

	if (getenv("TRACE_UPDATE")) {
		f = fopen(path, "w");
		assert_non_null(f);
		assert_int_equal(fwrite(p->trace, 1, p->used, f), p->used);
		fclose(f);
	}
	f = fopen(path, "r");
	assert_non_null(f);
	nr = fread(golden, 1, sizeof(golden) - 1, f);
	golden[nr] = 0;
	fclose(f);
	assert_string_equal(p->trace, golden);
}

static void test_step(void **state)
{
	struct pair p;
	struct core_state s;

	(void)state;
	pair_init(&p);
	up_to_first_begin(&p);
	compute(&p, 1, true, true);
	compute(&p, 0, true, true);
	event(&p, 0, "applied", (struct core_event){.type = CORE_EV_APPLIED});
	event(&p, 1, "applied", (struct core_event){.type = CORE_EV_APPLIED});
	core_state(p.core[1], &s);
	assert_int_equal(s.part, CORE_STAGING);
	assert_int_equal(s.committed, 5);
	assert_int_equal(s.id.step, 6);
	assert_true(s.record->clip_factor > 0.7 && s.record->clip_factor < 0.71); /* norm sqrt(32) / 4 */
	compare(&p, "tests/trace/step.txt");
	pair_deinit(&p);
}

static void test_abort(void **state)
{
	struct pair p;
	struct core_state s;

	(void)state;
	pair_init(&p);
	up_to_first_begin(&p);
	compute(&p, 0, false, true);
	compute(&p, 1, false, false);
	event(&p, 1, "gone 21",
	      (struct core_event){
		      .type = CORE_EV_GONE, .trainer = {.session = 21, .pid = 221, .node = 1}, .why = "closed its socket"});
	event(&p, 0, "drained", (struct core_event){.type = CORE_EV_DRAINED, .id = p.id[0]});
	event(&p, 1, "drained", (struct core_event){.type = CORE_EV_DRAINED, .id = p.id[1]});
	core_state(p.core[0], &s);
	assert_int_equal(s.part, CORE_STAGING);
	assert_int_equal(s.id.step, 5);
	assert_int_equal(s.id.attempt, 2);
	assert_int_equal(s.world->size, 1);
	compute(&p, 1, true, false);
	compute(&p, 0, true, true);
	event(&p, 0, "applied", (struct core_event){.type = CORE_EV_APPLIED});
	compare(&p, "tests/trace/abort.txt");
	pair_deinit(&p);
}

static void hold(struct pair *p, bool on)
{
	event(p, 0, on ? "hold" : "hold off", (struct core_event){.type = CORE_EV_HOLD, .on = on});
}

static void tick_at(struct pair *p, unsigned n, uint64_t at)
{
	p->now = at;
	event(p, n, "tick", (struct core_event){.type = CORE_EV_TICK});
}

static void test_hold(void **state)
{
	struct pair p;
	struct core_state s;

	(void)state;
	pair_init(&p);
	up_to_first_begin(&p);
	hold(&p, true); /* STAGING: at once */
	compute(&p, 0, true, true);
	core_state(p.core[0], &s);
	assert_true(s.held && s.part == CORE_STAGING);
	assert_string_equal(s.waits, "rank 1 (pid 221, node b): 1 of 2 chunks");
	compute(&p, 1, true, true);
	core_state(p.core[0], &s);
	assert_true(s.held && s.part == CORE_STAGING);
	assert_string_equal(s.waits, "a checkpoint of step 4 is being written");
	hold(&p, false);
	core_state(p.core[0], &s);
	assert_true(!s.held && s.committed == 5);
	event(&p, 0, "applied", (struct core_event){.type = CORE_EV_APPLIED});
	event(&p, 1, "applied", (struct core_event){.type = CORE_EV_APPLIED});
	compute(&p, 0, true, true);
	hold(&p, true); /* PREPARED: the verdict comes first */
	core_state(p.core[0], &s);
	assert_true(!s.held && s.part == CORE_PREPARED);
	compute(&p, 1, true, true);
	core_state(p.core[0], &s);
	assert_true(s.held && s.committed == 6);
	compare(&p, "tests/trace/hold.txt");
	pair_deinit(&p);
}

static void test_hold_deadline(void **state) /* 300 s: it does not run while held, and goes on where it was */
{
	const uint64_t second = 1000000000ull;
	struct pair p;
	struct core_state s;
	uint64_t begun;

	(void)state;
	pair_init(&p);
	up_to_first_begin(&p);
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
	pair_deinit(&p);
}

static void test_written_early(void **state) /* while the first view is still on its way to disk */
{
	struct pair p;
	struct core_state s;

	(void)state;
	pair_init(&p);
	event(&p, 0, "tick", (struct core_event){.type = CORE_EV_TICK});
	feed(&p, 1, &(struct core_event){.type = CORE_EV_LINK_UP, .node = 0, .incarnation = 7});
	event(&p, 0, "link up b", (struct core_event){.type = CORE_EV_LINK_UP, .node = 1, .incarnation = 8});
	event(&p, 0, "written", (struct core_event){.type = CORE_EV_WRITTEN, .step = 4, .id.generation = 1});
	event(&p, 0, "persisted", (struct core_event){.type = CORE_EV_PERSISTED});
	event(&p, 0, "persisted", (struct core_event){.type = CORE_EV_PERSISTED});
	core_state(p.core[1], &s);
	assert_true(s.sealed && s.committed == 4);
	pair_deinit(&p);
}

static void tune(struct pair *p, const char *what, struct core_tune t)
{
	event(p, 0, what, (struct core_event){.type = CORE_EV_TUNE, .tune = &t});
}

static void step_by_both(struct pair *p)
{
	compute(p, 0, true, true);
	compute(p, 1, true, true);
	event(p, 0, "applied", (struct core_event){.type = CORE_EV_APPLIED});
	event(p, 1, "applied", (struct core_event){.type = CORE_EV_APPLIED});
}

static void test_tune(void **state)
{
	struct core_tune t = {.has_lr = true, .lr = 0.25, .has_clip = true};
	struct pair p;
	struct core_state s;

	(void)state;
	pair_init(&p);
	up_to_first_begin(&p);
	tune(&p, "tune lr 0.25, no clip", t);
	step_by_both(&p); /* begun before: as it was */
	core_state(p.core[1], &s);
	assert_true(s.record->lr == 1e-3 && s.record->clip_factor < 1 && !s.tune.has_lr);
	event(&p, 0, "persisted", (struct core_event){.type = CORE_EV_PERSISTED});
	core_state(p.core[1], &s);
	assert_true(s.tune.has_lr && s.id.step == 6);
	step_by_both(&p);
	core_state(p.core[1], &s);
	assert_true(s.record->lr == 0.25 && s.record->clip_factor == 1);
	t.paused = true;
	tune(&p, "tune paused", t);
	step_by_both(&p);
	event(&p, 0, "persisted", (struct core_event){.type = CORE_EV_PERSISTED});
	core_state(p.core[0], &s);
	assert_true(s.paused && s.part == CORE_FREE);
	assert_string_equal(s.waits, "an operator paused the model");
	tick_at(&p, 0, p.now + 1000000000ull);
	t.paused = false;
	tune(&p, "tune resumed", t);
	event(&p, 0, "persisted", (struct core_event){.type = CORE_EV_PERSISTED});
	core_state(p.core[0], &s);
	assert_true(!s.paused && s.part == CORE_STAGING);
	compare(&p, "tests/trace/tune.txt");
	pair_deinit(&p);
}

static void checkpoint(struct pair *p, bool on)
{
	event(p, 0, on ? "checkpoint" : "checkpoint off",
	      (struct core_event){.type = CORE_EV_CHECKPOINT, .on = on, .why = on ? NULL : "step 4 of it is torn"});
}

static void test_rollback(void **state)
{
	struct core_restored restored = {
		.applied = 3, .skipped_in_row = 1, .scaler = {.scale = 8, .hysteresis = 1}, .tune = {.has_clip = true}};
	struct pair p;
	struct core_state s;

	(void)state;
	pair_init(&p);
	up_to_first_begin(&p);
	event(&p, 0, "rollback", (struct core_event){.type = CORE_EV_ROLLBACK, .why = "to what?"}); /* no checkpoint: nothing */
	checkpoint(&p, true);
	step_by_both(&p);
	event(&p, 0, "rollback", (struct core_event){.type = CORE_EV_ROLLBACK, .why = "an operator asked"});
	event(&p, 0, "persisted", (struct core_event){.type = CORE_EV_PERSISTED});
	core_state(p.core[1], &s);
	assert_true(s.restoring && !s.sealed && s.generation == 2);
	event(&p, 0, "written", (struct core_event){.type = CORE_EV_WRITTEN, .step = 4, .restored = &restored});
	event(&p, 0, "persisted", (struct core_event){.type = CORE_EV_PERSISTED});
	event(&p, 0, "drained", (struct core_event){.type = CORE_EV_DRAINED, .id = p.id[0]});
	event(&p, 1, "drained", (struct core_event){.type = CORE_EV_DRAINED, .id = p.id[1]});
	core_state(p.core[1], &s);
	assert_true(!s.restoring && s.sealed && s.tune.has_clip && s.part == CORE_STAGING && s.id.step == 5 && s.world->size == 2);
	assert_true(s.record->applied == 3 && s.record->skipped_in_row == 1 && s.record->loss_scale == 8);
	event(&p, 0, "rollback", (struct core_event){.type = CORE_EV_ROLLBACK, .why = "an operator asked again"});
	event(&p, 0, "persisted", (struct core_event){.type = CORE_EV_PERSISTED});
	checkpoint(&p, false); /* it cannot be read: LOST for good */
	event(&p, 0, "persisted", (struct core_event){.type = CORE_EV_PERSISTED});
	core_state(p.core[1], &s);
	assert_true(!s.restoring && !s.sealed && s.generation == 4);
	compare(&p, "tests/trace/rollback.txt");
	pair_deinit(&p);
}

static void test_kick(void **state)
{
	struct pair p;
	struct core_state s;

	(void)state;
	pair_init(&p);
	up_to_first_begin(&p);
	event(&p, 0, "kick 7", (struct core_event){.type = CORE_EV_KICK, .rank = 7}); /* nobody */
	core_state(p.core[0], &s);
	assert_true(s.joined == 2 && s.part == CORE_STAGING);
	event(&p, 0, "kick 1", (struct core_event){.type = CORE_EV_KICK, .rank = 1, .why = "an operator put it out"});
	event(&p, 0, "drained", (struct core_event){.type = CORE_EV_DRAINED, .id = p.id[0]});
	core_state(p.core[0], &s);
	assert_true(s.joined == 1 && s.id.attempt == 2 && s.world->size == 1);
	compare(&p, "tests/trace/kick.txt");
	pair_deinit(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_step), cmocka_unit_test(test_abort),
					   cmocka_unit_test(test_hold), cmocka_unit_test(test_hold_deadline),
					   cmocka_unit_test(test_tune), cmocka_unit_test(test_rollback),
					   cmocka_unit_test(test_kick), cmocka_unit_test(test_written_early)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
