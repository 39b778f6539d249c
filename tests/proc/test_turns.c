// SPDX-License-Identifier: Apache-2.0
/* Tests how much work one turn of the loop does for definitions, which any user may send, as large
 * as a frame may be. Links, heartbeats and all other requests wait for that turn. The work is
 * counted and not timed: how many waiting definitions are continued in one turn, and what is
 * computed before a model that has no room is refused. */
#include "base/check.h"
#include "base/clock.h"
#include "control/define_wait.h"
#include "lib/evil.h"
#include "lib/inproc.h"
#include "model/spec.h"
#include "node/state.h"
#include "wire/layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { LARGE = 5000, WAITING = 3, SMALL = 100, LINE = 256 };

/* --- definitions that waited --- */

static uint32_t taken_up;

static bool may_go(struct server *s, const char *name)
{
	(void)s, (void)name;
	return true;
}

static enum shard_status again(struct server *s, const struct caller *a, const Shard__Define *d,
			       struct err *e)
{
	(void)s, (void)d, (void)e;
	assert_int_equal(a->session, taken_up + 1); /* The oldest goes first. */
	taken_up++;
	return SHARD_OK;
}

/* Makes a server with only what waiting definitions need. */
static struct server *server_with_a_loop(void)
{
	static struct config conf = {.heartbeat_timeout_ns = 3600 * NS_PER_SEC};
	struct server *s = calloc(1, sizeof(*s));

	assert_non_null(s);
	s->conf = &conf;
	s->loop = malloc(sizeof(*s->loop));
	assert_non_null(s->loop);
	assert_int_equal(uv_loop_init(s->loop), 0);
	assert_int_equal(uv_timer_init(s->loop, &s->clock.beat), 0);
	s->budget.total = 1ull << 30;
	list_init(&s->defines);
	list_init(&s->held);
	return s;
}

static void server_end(struct server *s)
{
	assert_true(list_empty(&s->defines) && list_empty(&s->held));
	uv_close((uv_handle_t *)&s->clock.beat, NULL);
	uv_run(s->loop, UV_RUN_DEFAULT);
	assert_int_equal(uv_loop_close(s->loop), 0);
	free(s->loop);
	free(s);
}

/* All sessions wait with the same definition, as the ranks of a job do. */
static void wait_with(struct server *s, uint32_t tensors_nr, uint64_t sessions_nr)
{
	static char names[LARGE][24];
	static Shard__Tensor tensor[LARGE], *list[LARGE];
	Shard__Cred root = SHARD__CRED__INIT;
	Shard__Tensor one, *first[1];
	Shard__Define d;
	Shard__Spec spec;
	uint64_t shape;
	struct err e;

	assert_in_range(tensors_nr, 1, LARGE);
	evil_spec(&d, &spec, &one, first, &shape);
	for (uint32_t i = 0; i < tensors_nr; i++) {
		snprintf(names[i], sizeof(names[i]), "tensor-%015u", i);
		tensor[i] = one;
		tensor[i].name = names[i];
		list[i] = &tensor[i];
	}
	spec.tensors = list;
	spec.n_tensors = tensors_nr;
	root.known = root.root = true;
	d.cred = &root;
	for (uint64_t i = 1; i <= sessions_nr; i++) {
		struct caller a = {.session = i};

		assert_int_equal(define_wait(s, &a, &d, &e), SHARD_OK);
	}
	taken_up = 0;
	s->clock.beat_due = 0;
}

static void test_a_turn_takes_up_one_large_definition(void **state)
{
	struct server *s = server_with_a_loop();

	(void)state;
	wait_with(s, LARGE, WAITING);
	for (uint32_t turn = 1; turn <= WAITING; turn++) {
		define_wait_retry(s, clock_ns(), may_go, again);
		assert_int_equal(taken_up, turn);
		if (turn == WAITING)
			break;
		/* The next turn comes at once. */
		assert_in_range(s->clock.beat_due, 1, clock_ns());
		s->clock.beat_due = 0;
	}
	assert_int_equal(s->clock.beat_due, 0);
	server_end(s);
}

static void test_a_turn_takes_up_many_small_definitions(void **state)
{
	struct server *s = server_with_a_loop();

	(void)state;
	wait_with(s, 1, SMALL);
	define_wait_retry(s, clock_ns(), may_go, again);
	assert_int_equal(taken_up, SMALL);
	assert_int_equal(s->clock.beat_due, 0);
	server_end(s);
}

/* --- models that have no room --- */

/* Defines two tensors with the same name and this many elements each. r has the refusal
 * afterwards. */
static void define_twins(struct raw *r, uint64_t elems)
{
	struct wire_head h = {.op = OP_DEFINE, .attempt = 1};
	Shard__Tensor t, *list[2];
	Shard__Define d;
	Shard__Spec spec;
	uint64_t shape;

	evil_spec(&d, &spec, &t, list, &shape);
	shape = elems;
	list[1] = &t;
	spec.n_tensors = 2;
	spec.settings = (char *)(uintptr_t) "optimizer=sgd chunk_elems=16777216";
	raw_send(r, &h, &d.base);
}

static void refused(struct raw *r, const char *part)
{
	char *text = raw_error(r);

	if (text == NULL || strstr(text, part) == NULL)
		fail_msg("answered with \"%s\", not with \"%s\"", text != NULL ? text : "nothing",
			 part);
}

/* A layout compares names last. For a model that has no room they are not compared. */
static void test_no_layout_of_what_has_no_room(void **state)
{
	struct inproc c;
	struct raw r;

	(void)state;
	inproc_start(&c, &(struct inproc_conf){.nodes = 1});
	raw_connect(&r, c.node[0].unix_address);
	raw_hello(&r, ROLE_TRAINER);
	define_twins(&r, 1000);
	refused(&r, "tensor \"w\" is there twice");
	define_twins(&r, LAYOUT_ELEMS_MAX / 4);
	refused(&r, "\"evil\" needs at least ");
	define_twins(&r, LAYOUT_ELEMS_MAX);
	refused(&r, "the model has more than ");
	raw_close(&r);
	inproc_stop(&c);
}

/* The counts with which the budget is asked equal those of the layout. */
static void test_counts(void **state)
{
	static const uint64_t sizes[] = {1, 63, 64, 65, 4096, 5000, 100000, 128};
	uint64_t shape[NR(sizes)];
	Shard__Tensor tensor[NR(sizes)], *list[NR(sizes)], one, *first[1];
	char names[NR(sizes)][8];
	Shard__Define d;
	Shard__Spec spec;
	struct err e;

	(void)state;
	evil_spec(&d, &spec, &one, first, shape);
	for (uint32_t i = 0; i < NR(sizes); i++) {
		snprintf(names[i], sizeof(names[i]), "t%u", i);
		shape[i] = sizes[i];
		tensor[i] = one;
		tensor[i].name = names[i];
		tensor[i].shape = &shape[i];
		list[i] = &tensor[i];
	}
	spec.tensors = list;
	for (uint32_t k = 2; k < 2 * NR(sizes) + 2; k++)
		for (uint32_t chunk = 64; chunk <= 1u << 18; chunk *= 4) {
			uint32_t nr = k / 2, own = k % 2 ? nr % 4 << 8 : 0;
			struct layout counts, *l;
			bool all_trained;

			spec.n_tensors = nr;
			tensor[nr - 1].flags = (nr % 2 ? SHARD_FROZEN : 0) | own;
			assert_true(spec_counts(&counts, &all_trained, &spec, chunk));
			assert_int_equal(spec_layout(&l, &spec, chunk, &e), SHARD_OK);
			assert_int_equal(counts.tensors_nr, l->tensors_nr);
			assert_int_equal(counts.elems, l->elems);
			assert_int_equal(counts.stored, l->stored);
			assert_int_equal(counts.image_bytes, l->image_bytes);
			assert_memory_equal(counts.region, l->region, sizeof(l->region));
			assert_int_equal(counts.regions_nr, l->regions_nr);
			assert_int_equal(counts.chunks_nr, l->chunks_nr);
			assert_int_equal(counts.segments_nr, l->segments_nr);
			assert_int_equal(counts.chunk_elems, l->chunk_elems);
			assert_false(all_trained); /* The first tensor is frozen. */
			layout_free(&l);
		}
}

/* --- a loop that stood still --- */

static void keep_line(void *arg, enum log_level level, const char *line)
{
	(void)level;
	snprintf(arg, LINE, "%s", line);
}

/* Checks what the log says of ten seconds in which the loop's thread ran for ran_ns. */
static void stood(uint64_t ran_ns, const char *says)
{
	char line[LINE] = "";
	struct server *s = server_with_a_loop();
	struct log log;

	log_init(&log, -1, LOG_LEVEL_WARN, "a");
	log.sink = keep_line;
	log.sink_arg = line;
	s->log = &log;
	s->clock.beat_ns = NS_PER_SEC;
	while (clock_thread_ns() <= ran_ns)
		; /* The thread must have run for at least that long. */
	s->clock.ran_ns = clock_ns() - 10 * NS_PER_SEC;
	s->clock.beat_cpu_ns = clock_thread_ns() - ran_ns;
	(void)server_core_ns(s);
	if (strstr(line, says) == NULL)
		fail_msg("the log says \"%s\", not \"%s\"", line, says);
	server_end(s);
}

static void test_slept_or_busy(void **state)
{
	(void)state;
	stood(0, " busy=0.0");
	stood(200 * NS_PER_MS, " busy=0.2");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_turn_takes_up_one_large_definition),
		cmocka_unit_test(test_a_turn_takes_up_many_small_definitions),
		cmocka_unit_test(test_no_layout_of_what_has_no_room), cmocka_unit_test(test_counts),
		cmocka_unit_test(test_slept_or_busy)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
