// SPDX-License-Identifier: Apache-2.0
/* Tests frames about copies and memory with correct sums whose content is impossible. The test is
 * the coordinator and the primary of all chunks, and the daemon catches up. What is wrong is
 * refused or dropped, and no daemon ends. */
#include "base/check.h"
#include "lib/inproc.h"
#include "lib/rawnode.h"
#include "lib/rawpeer.h"
#include "server.h"
#include "shard.h"

#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { CHUNKS = 2, MANY = 4000, ELEMS = 1024, ARRAYS = 3, STEP = 5 };

static const struct inproc_conf quiet = {.cluster = "heartbeat_timeout = 20s\nstep_timeout = 60s"};
static const uint16_t primary[MANY];
static uint64_t holders[MANY];

/* The daemon has memory for all chunks. */
static void define(struct rawnode *x, uint32_t chunks)
{
	struct wire_head h = {.op = OP_MODEL, .attempt = ++x->tag};
	uint32_t runs[] = {0, chunks};
	uint64_t both[] = {3, chunks}, shape[] = {chunks * ELEMS};
	Shard__Tensor t = SHARD__TENSOR__INIT, *list[] = {&t};
	Shard__Model m = SHARD__MODEL__INIT;
	Shard__Spec s = SHARD__SPEC__INIT;

	t.name = (char *)(uintptr_t) "w";
	t.n_shape = 1;
	t.shape = shape;
	s.name = (char *)(uintptr_t) "m";
	s.n_tensors = 1;
	s.tensors = list;
	s.image = s.grad = SHARD_F32;
	s.settings = (char *)(uintptr_t) "optimizer=adamw lr=1 chunk_elems=1024 min_world=1 "
					 "max_world=2 replicas=2";
	m.model = x->model = 1;
	m.spec = &s;
	m.chunk_elems = ELEMS;
	m.n_place_runs = 2;
	m.place_runs = runs;
	m.n_holder_runs = 2;
	m.holder_runs = both;
	m.incarnation = x->incarnation;
	m.generation = 1;
	x->chunks_nr = chunks;
	for (uint32_t c = 0; c < chunks; c++)
		holders[c] = 3;
	raw_send(&x->r[0], &h, &m.base);
	rawnode_expect(x, OP_MODEL);
}

/* The next view. step 0: it has no weights. */
static void say_view(struct rawnode *x, uint64_t step, uint64_t learns)
{
	struct core_msg m = {.op = CORE_VIEW, .view = &x->view};
	uint32_t seq = x->view.seq + 1;
	struct record *r = &x->view.record;

	x->view = (struct core_view){.term = 5,
				     .seq = seq,
				     .generation = 1,
				     .sealed = step > 0,
				     .members = view_first(2, 0),
				     .place = place_of(primary, holders, x->chunks_nr)};
	x->view.place.primary = NULL;
	x->view.place.holders = NULL;
	x->view.place.learns = learns;
	x->view.members.node[0] = rawnode_who(x);
	x->view.members.node[1] = x->daemon_who;
	m.id = (struct core_id){.term = 5, .seq = seq, .generation = 1};
	if (step > 0) {
		*r = (struct record){.outcome = RECORD_SEAL,
				     .content = step,
				     .content_old = step,
				     .applied = step,
				     .clip_factor = 1,
				     .bad_tensor = -1,
				     .bad_rank = -1};
		r->id = m.id;
		r->id.step = step;
		r->scaler.scale = r->loss_scale = 1;
		r->groups_nr = 1;
	}
	rawnode_say(x, &m);
}

static void ask(struct rawnode *x)
{
	rawnode_say(x, &(struct core_msg){.op = CORE_ASK, .id = {.term = 5}});
	rawnode_expect(x, OP_CORE + CORE_ANSWER);
}

/* The daemon adopts a view with weights in which it catches up, and asks for the first chunk. */
static void learns(struct rawnode *x)
{
	ask(x);
	say_view(x, STEP, 2);
	rawnode_expect(x, OP_COPY_ASK);
	assert_int_equal(x->r[0].head.chunk, 0);
}

static void start(struct rawnode *x)
{
	rawnode_start(x, true, &quiet, 1);
	define(x, CHUNKS);
	learns(x);
}

static void part(struct rawnode *x, uint32_t chunk, uint32_t nr, uint32_t bytes)
{
	static const unsigned char zeros[2 * ELEMS * sizeof(float)];
	struct wire_head h = {.op = OP_COPY_DATA,
			      .flags = WIRE_PART_FLAG(nr),
			      .model = 1,
			      .generation = 1,
			      .term = 5,
			      .seq = 1,
			      .step = STEP,
			      .chunk = chunk};

	raw_head(&x->r[0], &h, zeros, bytes);
}

/* The daemon still makes the first images when it is out of the view and back again, and the others
 * have made a step meanwhile. */
static void test_learns_while_it_seals(void **state)
{
	struct rawnode x;

	(void)state;
	rawnode_start(&x, true, &quiet, 1);
	define(&x, MANY);
	ask(&x);
	say_view(&x, 0, 0);
	rawnode_expect(&x, OP_CORE + CORE_VIEW_OK);
	say_view(&x, STEP, 0);
	say_view(&x, STEP + 2, 2);
	rawnode_expect(&x, OP_COPY_ASK);
	rawnode_stop(&x);
}

/* No copy is owed, and a part comes of a chunk that no model has. */
static void test_part_of_no_chunk(void **state)
{
	struct rawnode x;

	(void)state;
	start(&x);
	part(&x, 1, 0, ELEMS * sizeof(float)); /* It was not asked for. */
	for (uint32_t i = 0; i < ARRAYS; i++)
		part(&x, 0, i, ELEMS * sizeof(float));
	part(&x, 0, ARRAYS, sizeof(uint64_t)); /* Rank 0 has no blob. */
	rawnode_expect(&x, OP_COPY_ASK);
	assert_int_equal(x.r[0].head.chunk, 1);
	for (uint32_t i = 0; i < ARRAYS; i++)
		part(&x, 1, i, ELEMS * sizeof(float));
	part(&x, 1, ARRAYS, sizeof(uint64_t));
	part(&x, UINT32_MAX, 0, ELEMS * sizeof(float));
	part(&x, CHUNKS, 0, ELEMS * sizeof(float));
	part(&x, 0, 0, ELEMS * sizeof(float));
	raw_send(&x.r[0], &(struct wire_head){.op = OP_IMAGE_ASK, .model = 99}, NULL);
	rawnode_stop(&x);
}

static void test_parts_that_cannot_be(void **state)
{
	static const struct {
		uint32_t part, bytes;
	} parts[] = {{0, 4}, {0, 2 * ELEMS * sizeof(float)}};

	(void)state;
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		struct rawnode x;

		start(&x);
		part(&x, 0, parts[i].part, parts[i].bytes);
		rawnode_refused(&x, 0, "no such part");
		rawnode_stop(&x);
	}
}

/* The blob that goes with a copy. One step after the record is none that could be committed. */
static void test_blobs_that_cannot_be(void **state)
{
	static const struct {
		uint32_t part, bytes;
		uint64_t step;
	} blobs[] = {
		{ARRAYS, 4, STEP},     {ARRAYS, 8 + (64 << 10) + 1, STEP},
		{ARRAYS, 9, STEP + 1}, {ARRAYS, 9, UINT64_MAX},
		{ARRAYS, 9, 0},        {ARRAYS + 1, 8, STEP},
	};
	static unsigned char body[(64 << 10) + 16];

	(void)state;
	for (size_t i = 0; i < sizeof(blobs) / sizeof(blobs[0]); i++) {
		struct wire_head h = {.op = OP_COPY_DATA,
				      .flags = WIRE_PART_FLAG(blobs[i].part),
				      .model = 1,
				      .generation = 1,
				      .term = 5,
				      .seq = 1,
				      .step = STEP};
		bool extra = blobs[i].part > ARRAYS;
		struct rawnode x;

		start(&x);
		for (uint32_t k = 0; k < ARRAYS; k++)
			part(&x, 0, k, ELEMS * sizeof(float));
		if (extra) { /* The copy is whole, and this part would begin nothing. */
			part(&x, 0, ARRAYS, sizeof(uint64_t));
			rawnode_expect(&x, OP_COPY_ASK);
		}
		memcpy(body, &blobs[i].step, sizeof(blobs[i].step));
		raw_head(&x.r[0], &h, body, blobs[i].bytes);
		if (extra)
			raw_send(&x.r[0], &(struct wire_head){.op = OP_IMAGE_ASK, .model = 99},
				 NULL);
		else
			rawnode_refused(&x, 0, "a copy of the blob of rank 0");
		rawnode_stop(&x);
	}
}

static void blob_data(struct rawnode *x, const struct core_id *id, uint32_t rank, uint32_t bytes)
{
	static const unsigned char zeros[(64 << 10) + 1];
	struct wire_head h = {.op = OP_BLOB_DATA,
			      .model = 1,
			      .generation = id->generation,
			      .term = id->term,
			      .seq = id->seq,
			      .step = id->step,
			      .attempt = id->attempt,
			      .chunk = rank};

	raw_head(&x->r[0], &h, zeros, bytes);
}

/* The daemon is in an attempt whose only rank is one of the test. */
static void begins(struct rawnode *x, struct core_id *id)
{
	struct core_world w = {.size = 1};
	struct core_msg m = {.op = CORE_BEGIN, .world = &w, .record = &x->view.record};

	start(x);
	w.rank[0] = (struct core_rank){.session = 1, .pid = 1, .node = 0};
	*id = x->view.record.id;
	id->step++;
	id->attempt = 1;
	m.id = *id;
	rawnode_say(x, &m);
	rawnode_expect(x, OP_CORE + CORE_GRANT);
}

/* Blobs of an attempt: of another one they are dropped, of one that is in hand they must be of a
 * rank of the sender. */
static void test_blobs_of_an_attempt(void **state)
{
	static const struct {
		uint32_t rank, bytes;
	} blobs[] = {{1, 5}, {2, 5}, {UINT32_MAX, 5}, {0, (64 << 10) + 1}};
	struct core_id id, other;
	struct rawnode x;

	(void)state;
	begins(&x, &id);
	blob_data(&x, &id, 0, 64 << 10);
	blob_data(&x, &id, 0, 0); /* The first one counts. */
	other = id;
	other.attempt = 2;
	blob_data(&x, &other, UINT32_MAX, 5);
	other = id;
	other.generation = 2;
	blob_data(&x, &other, UINT32_MAX, 5);
	raw_send(&x.r[0], &(struct wire_head){.op = OP_IMAGE_ASK, .model = 99}, NULL);
	rawnode_stop(&x);
	for (size_t i = 0; i < sizeof(blobs) / sizeof(blobs[0]); i++) {
		begins(&x, &id);
		blob_data(&x, &id, blobs[i].rank, blobs[i].bytes);
		rawnode_refused(&x, 0, "not its rank or not kept");
		rawnode_stop(&x);
	}
}

static void test_asks_for_no_chunk(void **state)
{
	static const uint32_t chunks[] = {CHUNKS, UINT32_MAX};

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		struct wire_head h = {
			.op = OP_COPY_ASK, .model = 1, .generation = 1, .chunk = chunks[i]};
		struct rawnode x;

		start(&x);
		raw_send(&x.r[0], &h, NULL);
		rawnode_refused(&x, 0, "which has ");
		rawnode_stop(&x);
	}
}

/* Nobody is elected here. */
static void test_no_election(void **state)
{
	static const unsigned char noise[100];
	Shard__Memory body = SHARD__MEMORY__INIT;
	struct rawnode x;

	(void)state;
	start(&x);
	body.incarnation = 7;
	raw_send(&x.r[0], &(struct wire_head){.op = OP_HELD, .model = 1}, &body.base);
	rawnode_refused(&x, 0, "no coordinator is elected here");
	rawnode_stop(&x);
	start(&x);
	raw_head(&x.r[0], &(struct wire_head){.op = OP_MEMBER}, noise, sizeof(noise));
	rawnode_refused(&x, 0, "membership = static");
	rawnode_stop(&x);
}

/* Reduced gradients of an attempt that has not begun, and questions with large numbers. */
static void test_gradients_and_questions(void **state)
{
	static const unsigned char zeros[ELEMS * sizeof(float)];
	struct wire_head h = {.op = OP_GRAD_DATA,
			      .model = 1,
			      .generation = 1,
			      .term = 5,
			      .seq = 1,
			      .step = STEP + 1,
			      .attempt = 1,
			      .chunk = UINT32_MAX};
	struct core_id id = {.term = UINT64_MAX, .step = UINT64_MAX};
	Shard__Grad grad = SHARD__GRAD__INIT;
	struct rawnode x;

	(void)state;
	start(&x);
	rawnode_say(&x, &(struct core_msg){.op = CORE_HEAR, .id = id});
	rawnode_expect(&x, OP_CORE + CORE_HEARD);
	rawnode_say(&x, &(struct core_msg){.op = CORE_HEARD, .id = id});
	raw_head(&x.r[0], &h, zeros, sizeof(zeros));
	rawnode_refused(&x, 0, "has not begun");
	rawnode_stop(&x);
	start(&x);
	h.op = OP_GRAD;
	grad.sumsq = -1;
	raw_send(&x.r[0], &h, &grad.base);
	rawnode_refused(&x, 0, "has not begun");
	rawnode_stop(&x);
}

/* The coordinator says that the daemon is odd: of weights that there are not, and of those that
 * there are. The daemon gives up the model and asks for its end, and answers until then. */
static void test_odd(void **state)
{
	struct core_id never = {.term = UINT64_MAX,
				.seq = UINT32_MAX,
				.generation = INT32_MAX,
				.step = UINT64_MAX},
		       now = {.term = 5, .generation = 1, .step = STEP + 1, .attempt = 1};
	struct core_msg m = {.op = CORE_ODD, .id = never, .why = "it differs"};
	struct rawnode x;

	(void)state;
	start(&x);
	rawnode_say(&x, &m);
	rawnode_say(&x, &(struct core_msg){.op = CORE_VOTE, .id = now, .differs = true});
	rawnode_say(&x, &(struct core_msg){.op = CORE_HEAR, .id = now});
	rawnode_expect(&x, OP_CORE + CORE_HEARD);
	assert_null(server_failed(x.daemon->server));
	m.id = now;
	m.why = NULL;
	rawnode_say(&x, &m);
	rawnode_say(&x, &m);
	rawnode_say(&x, &(struct core_msg){.op = CORE_HEAR, .id = now});
	rawnode_expect(&x, OP_CORE + CORE_HEARD);
	assert_non_null(strstr(server_failed(x.daemon->server), "odd in \"m\""));
	rawnode_stop(&x);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_learns_while_it_seals),
		cmocka_unit_test(test_part_of_no_chunk),
		cmocka_unit_test(test_parts_that_cannot_be),
		cmocka_unit_test(test_blobs_that_cannot_be),
		cmocka_unit_test(test_blobs_of_an_attempt),
		cmocka_unit_test(test_asks_for_no_chunk),
		cmocka_unit_test(test_no_election),
		cmocka_unit_test(test_gradients_and_questions),
		cmocka_unit_test(test_odd),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
