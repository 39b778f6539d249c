// SPDX-License-Identifier: Apache-2.0
/* Tests reduced gradients as no correct primary sends them. The test is the coordinator, node a,
 * and the daemon is node b, which holds a copy of every chunk. A frame that cannot be ends the link
 * with a sentence, a gradient that is damaged ends the attempt, and a repeated one is dropped.
 * Placements that cannot be are refused when the model is made. In between a right one is voted
 * for, with the norm of the bytes that came. */
#include "base/check.h"
#include "lib/rawnode.h"
#include "wire/frame.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { CHUNKS = 4, ELEMS = 1024, SESSION = 77 };
#define SETTINGS "optimizer=sgd lr=1 chunk_elems=1024 min_world=1 max_world=2 local_world=2"
#define COPIES   SETTINGS " replicas=2"

static const struct inproc_conf quiet = {.cluster = "heartbeat_timeout = 20s\nstep_timeout = 60s"};

struct play {
	struct rawnode x;
	struct core_id id;
	float grad[ELEMS];
};

static struct wire_head head(const struct play *p, uint16_t op, uint32_t chunk)
{
	return (struct wire_head){.op = op,
				  .model = p->x.model,
				  .generation = p->id.generation,
				  .term = p->id.term,
				  .seq = p->id.seq,
				  .step = p->id.step,
				  .attempt = p->id.attempt,
				  .chunk = chunk};
}

/* Begins an attempt of one rank, on node a, and waits until b lends its slots. */
static void begin(struct play *p)
{
	struct core_world w = {.size = 1, .rank[0] = {.session = SESSION, .pid = 1, .node = 0}};

	rawnode_begin(&p->x, &w, &p->id);
	do {
		if (!raw_expect(&p->x.r[0], OP_CORE + CORE_GRANT))
			fail_msg("the link ended: %s\n%s", raw_error(&p->x.r[0]),
				 p->x.daemon->lines);
	} while (p->x.r[0].head.attempt != p->id.attempt);
}

static void start(struct play *p, const char *settings)
{
	memset(p, 0, sizeof(*p));
	rawnode_start(&p->x, true, &quiet, 1);
	rawnode_define(&p->x, CHUNKS, settings);
	rawnode_seal(&p->x, 0);
	for (int i = 0; i < ELEMS; i++)
		p->grad[i] = (float)(i % 7) * 0.5f;
	begin(p);
}

static double sumsq(const struct play *p)
{
	double sum = 0; /* Of small whole numbers over four, so that the order does not matter. */

	for (int i = 0; i < ELEMS; i++)
		sum += (double)p->grad[i] * (double)p->grad[i];
	return sum;
}

static void part(struct play *p, uint16_t op, uint32_t chunk, uint32_t at, uint32_t bytes)
{
	struct wire_head h = head(p, op, chunk);

	h.flags = WIRE_PART_FLAG(at);
	raw_head(&p->x.r[0], &h, p->grad, bytes);
}

static Shard__Grad said(const struct play *p)
{
	Shard__Grad g = SHARD__GRAD__INIT;

	g.sumsq = sumsq(p);
	g.finite = true;
	return g;
}

static void closes(struct play *p, uint32_t chunk, const Shard__Grad *g)
{
	struct wire_head h = head(p, OP_GRAD, chunk);

	raw_send(&p->x.r[0], &h, &g->base);
}

static void whole(struct play *p, uint32_t chunk)
{
	Shard__Grad g = said(p);

	part(p, OP_GRAD_DATA, chunk, 0, sizeof(p->grad));
	closes(p, chunk, &g);
}

/* --- what ends the link --- */

static void not_its_chunk(struct play *p) /* The daemon itself is the primary of chunk 2. */
{
	part(p, OP_GRAD_DATA, 2, 0, sizeof(p->grad));
}

static void closes_not_its_chunk(struct play *p)
{
	Shard__Grad g = said(p);

	closes(p, 3, &g);
}

static void no_such_chunk(struct play *p)
{
	part(p, OP_GRAD_DATA, CHUNKS, 0, sizeof(p->grad));
}

static void no_such_attempt(struct play *p)
{
	p->id.attempt++;
	part(p, OP_GRAD_DATA, 0, 0, sizeof(p->grad));
}

static void short_part(struct play *p)
{
	part(p, OP_GRAD_DATA, 0, 0, sizeof(p->grad) - 4);
}

static void no_such_part(struct play *p)
{
	part(p, OP_GRAD_DATA, 0, 1, sizeof(p->grad));
}

static void part_twice(struct play *p)
{
	part(p, OP_GRAD_DATA, 0, 0, sizeof(p->grad));
	part(p, OP_GRAD_DATA, 0, 0, sizeof(p->grad));
}

static void no_part(struct play *p)
{
	Shard__Grad g = said(p);

	closes(p, 0, &g);
}

static void part_of_absent(struct play *p)
{
	Shard__Grad g = said(p);
	uint32_t tensors[] = {0};

	g.n_absent = 1;
	g.absent = tensors;
	part(p, OP_GRAD_DATA, 0, 0, sizeof(p->grad));
	closes(p, 0, &g);
}

static void foreign_absent(struct play *p)
{
	Shard__Grad g = said(p);
	uint32_t tensors[] = {7};

	g.n_absent = 1;
	g.absent = tensors;
	closes(p, 0, &g);
}

static void many_absent(struct play *p)
{
	Shard__Grad g = said(p);
	uint32_t tensors[] = {0, 0};

	g.n_absent = 2;
	g.absent = tensors;
	closes(p, 0, &g);
}

static void nan_norm(struct play *p)
{
	Shard__Grad g = said(p);

	g.sumsq = (double)NAN;
	closes(p, 0, &g);
}

static void negative_norm(struct play *p)
{
	Shard__Grad g = said(p);

	g.sumsq = -1;
	closes(p, 0, &g);
}

static void finite_and_bad(struct play *p)
{
	Shard__Grad g = said(p);

	g.bad_tensor = 1;
	closes(p, 0, &g);
}

static void bad_without_tensor(struct play *p)
{
	Shard__Grad g = said(p);

	g.finite = false;
	closes(p, 0, &g);
}

static void bad_tensor_of_nobody(struct play *p)
{
	Shard__Grad g = said(p);

	g.finite = false;
	g.bad_tensor = 2;
	closes(p, 0, &g);
}

static void bad_rank_of_nobody(struct play *p)
{
	Shard__Grad g = said(p);

	g.finite = false;
	g.bad_tensor = 1;
	g.bad_rank = 2;
	closes(p, 0, &g);
}

static void garbage(struct play *p)
{
	struct wire_head h = head(p, OP_GRAD, 0);

	raw_head(&p->x.r[0], &h, "\x0a\xff\xff\xff\xff\x7f....", 10);
}

static const struct {
	void (*send)(struct play *p);
	const char *settings, *text;
} forged[] = {
	{not_its_chunk, COPIES, "chunk 2 of \"m\", which this node does not get from node a"},
	{closes_not_its_chunk, COPIES,
	 "chunk 3 of \"m\", which this node does not get from node a"},
	{no_such_chunk, COPIES, "chunk 4 of \"m\", which has 4"},
	{no_such_attempt, COPIES, "which has not begun"},
	{short_part, COPIES, "part 0 (4092 bytes) of chunk 0: it has 1 parts"},
	{no_such_part, COPIES, "part 1 (4096 bytes) of chunk 0: it has 1 parts"},
	{part_twice, COPIES, "part 0 of chunk 0 came twice"},
	{no_part, COPIES, "chunk 0 closed without part 0 of 1"},
	{part_of_absent, COPIES, "part 0 came, but its tensors are absent"},
	{foreign_absent, COPIES, "tensor 7 is absent from chunk 0, where it has no element"},
	{many_absent, COPIES, "2 tensors are absent from chunk 0, which has 1"},
	{nan_norm, COPIES, "that cannot be"},
	{negative_norm, COPIES, "that cannot be"},
	{finite_and_bad, COPIES, "that cannot be"},
	{bad_without_tensor, COPIES, "that cannot be"},
	{bad_tensor_of_nobody, COPIES, "that cannot be"},
	{bad_rank_of_nobody, COPIES, "that cannot be"},
	{garbage, COPIES, "body is not a Grad message"},
	/* A model of one copy has no such frames. */
	{no_part, SETTINGS, "which this node does not get from node a"},
	{not_its_chunk, SETTINGS, "which this node does not get from node a"},
};

static void ends_the_link(void **state)
{
	(void)state;
	for (size_t i = 0; i < NR(forged); i++) {
		static struct play p;

		start(&p, forged[i].settings);
		forged[i].send(&p);
		rawnode_refused(&p.x, 0, forged[i].text);
		rawnode_stop(&p.x);
	}
}

/* A trainer of the daemon's node has not pushed, so nobody can have reduced the chunk. What would
 * be written is where the sum over the ranks of that node will lie. */
static void before_its_own_part(void **state)
{
	static struct play p;
	struct core_world w = {.size = 1};
	Shard__Core *body;
	struct raw t;

	(void)state;
	memset(&p, 0, sizeof(p));
	rawnode_start(&p.x, true, &quiet, 1);
	rawnode_define(&p.x, CHUNKS, COPIES);
	rawnode_seal(&p.x, 0);
	raw_connect(&t, p.x.daemon->unix_address);
	raw_hello(&t, ROLE_TRAINER);
	raw_send(&t, &(struct wire_head){.op = OP_JOIN, .attempt = 1, .model = p.x.model}, NULL);
	assert_true(raw_expect(&t, OP_JOIN));
	rawnode_expect(&p.x, OP_CORE + CORE_JOIN);
	body = shard__core__unpack(NULL, p.x.r[0].head.body_bytes, p.x.r[0].body);
	assert_non_null(body);
	w.rank[0] = (struct core_rank){
		.session = body->trainer->session, .pid = body->trainer->pid, .node = 1};
	shard__core__free_unpacked(body, NULL);
	rawnode_begin(&p.x, &w, &p.id);
	assert_true(raw_expect(&t, OP_ATTEMPT));
	part(&p, OP_GRAD_DATA, 0, 0, sizeof(p.grad));
	rawnode_refused(&p.x, 0, "without the part of this node, which has not left");
	raw_close(&t);
	rawnode_stop(&p.x);
}

/* --- contributions as codes --- */

#define CODED COPIES " grad_codec=int8 codec_block=64"
enum { CODES = ELEMS + ELEMS / 64 * 4 };

/* An attempt with a rank on each node, and codes between them. t is the trainer of node b. */
static void begin_coded(struct play *p, struct raw *t)
{
	struct core_world w = {.size = 2, .rank[0] = {.session = SESSION, .pid = 1, .node = 0}};
	Shard__Core *body;

	memset(p, 0, sizeof(*p));
	rawnode_start(&p->x, true, &quiet, 1);
	rawnode_define(&p->x, CHUNKS, CODED);
	rawnode_seal(&p->x, 0);
	raw_connect(t, p->x.daemon->unix_address);
	raw_hello(t, ROLE_TRAINER);
	raw_send(t, &(struct wire_head){.op = OP_JOIN, .attempt = 1, .model = p->x.model}, NULL);
	assert_true(raw_expect(t, OP_JOIN));
	rawnode_expect(&p->x, OP_CORE + CORE_JOIN);
	body = shard__core__unpack(NULL, p->x.r[0].head.body_bytes, p->x.r[0].body);
	assert_non_null(body);
	w.rank[1] = (struct core_rank){
		.session = body->trainer->session, .pid = body->trainer->pid, .node = 1};
	shard__core__free_unpacked(body, NULL);
	rawnode_begin(&p->x, &w, &p->id);
	rawnode_expect(&p->x, OP_CORE + CORE_GRANT);
}

static void gradient_in_place_of_codes(struct play *p)
{
	part(p, OP_CONTRIB_DATA, 2, 0, sizeof(p->grad));
}

static void codes_of_a_part_that_is_none(struct play *p)
{
	part(p, OP_CONTRIB_DATA, 2, 1, CODES);
}

/* Codes travel whole, also where the tensor has no gradient. */
static void no_codes(struct play *p)
{
	Shard__Push push = SHARD__PUSH__INIT;
	struct wire_head h = head(p, OP_CONTRIB, 2);
	uint32_t tensor = 0;

	push.absent = &tensor;
	push.n_absent = 1;
	raw_send(&p->x.r[0], &h, &push.base);
}

static void codes_end_the_link(void **state)
{
	static const struct {
		void (*lie)(struct play *p);
		const char *text;
	} rows[] = {{gradient_in_place_of_codes, "part 0 (4096 bytes) of chunk 2"},
		    {codes_of_a_part_that_is_none, "part 1 (1088 bytes) of chunk 2"},
		    {no_codes, "chunk 2 closed without part 0 of 1"}};
	static struct play p;
	struct raw t;

	(void)state;
	for (size_t i = 0; i < NR(rows); i++) {
		begin_coded(&p, &t);
		rows[i].lie(&p);
		rawnode_refused(&p.x, 0, rows[i].text);
		raw_close(&t);
		rawnode_stop(&p.x);
	}
}

/* Codes that no node makes stand for some gradient, or for one that is not finite. */
static void any_codes_are_taken(void **state)
{
	Shard__Push none = SHARD__PUSH__INIT;
	static struct play p;
	struct raw t;

	(void)state;
	begin_coded(&p, &t);
	memset(p.grad, 0x80, sizeof(p.grad));
	memset((char *)p.grad + ELEMS, 0xff, CODES - ELEMS); /* Scales that are no numbers. */
	for (uint32_t c = CHUNKS / 2; c < CHUNKS; c++) {
		struct wire_head h = head(&p, OP_CONTRIB, c);

		part(&p, OP_CONTRIB_DATA, c, 0, CODES);
		raw_send(&p.x.r[0], &h, &none.base);
	}
	/* What ends the link is the next frame, and not one of them. */
	part(&p, OP_CONTRIB_DATA, 0, 0, CODES);
	rawnode_refused(&p.x, 0, "a contribution to chunk 0, which node a reduces");
	raw_close(&t);
	rawnode_stop(&p.x);
}

/* --- what ends the attempt, and what does not --- */

static void contribute(struct play *p)
{
	Shard__Push none = SHARD__PUSH__INIT;

	for (uint32_t c = CHUNKS / 2; c < CHUNKS; c++) {
		struct wire_head h = head(p, OP_CONTRIB, c);

		part(p, OP_CONTRIB_DATA, c, 0, sizeof(p->grad));
		raw_send(&p->x.r[0], &h, &none.base);
	}
}

static void ready(struct play *p)
{
	static const double weights[] = {1};
	struct core_msg m = {
		.op = CORE_RANKS,
		.id = p->id,
		.vote = {.weights = weights, .ranks_nr = 1, .bad_tensor = -1, .bad_rank = -1}};

	rawnode_say(&p->x, &m);
}

static void abandons(struct play *p)
{
	Shard__Core *body;

	rawnode_expect(&p->x, OP_CORE + CORE_ABANDON);
	body = shard__core__unpack(NULL, p->x.r[0].head.body_bytes, p->x.r[0].body);
	assert_non_null(body);
	assert_non_null(strstr(body->trainer->why, "chunk 1 from node a arrived damaged: look at"));
	assert_int_equal(body->trainer->session, 0); /* No rank has to go for it. */
	shard__core__free_unpacked(body, NULL);
	rawnode_say(&p->x, &(struct core_msg){.op = CORE_ABORT, .id = p->id, .why = "damaged"});
	/* Nothing of it is on its way any more, so the daemon lends its slots again. */
	rawnode_say(&p->x, &(struct core_msg){.op = CORE_DRAINED, .id = p->id});
}

/* A vote for all chunks, with the norms of the bytes that came. differs: the test said something
 * else of them, so the vote does not count. */
static void votes_that(struct play *p, bool finite, bool differs)
{
	double want = sumsq(p);
	Shard__Core *body;

	rawnode_expect(&p->x, OP_CORE + CORE_VOTE);
	body = shard__core__unpack(NULL, p->x.r[0].head.body_bytes, p->x.r[0].body);
	assert_non_null(body);
	assert_int_equal(body->differs, differs);
	assert_int_equal(body->vote->n_sumsq, CHUNKS);
	for (uint32_t c = finite ? 0 : 1; c < CHUNKS; c++)
		assert_memory_equal(&body->vote->sumsq[c], &want, sizeof(want));
	assert_int_equal(body->vote->finite.data[0], finite ? 0xf : 0xe);
	assert_int_equal(body->vote->bad_tensor, finite ? -1 : 0);
	assert_int_equal(body->vote->bad_rank, finite ? -1 : 0);
	shard__core__free_unpacked(body, NULL);
}

static void votes(struct play *p, bool finite)
{
	votes_that(p, finite, false);
}

/* Without a verdict the daemon would wait for it when it stops. */
static void ends(struct play *p)
{
	rawnode_say(&p->x, &(struct core_msg){.op = CORE_ABORT, .id = p->id, .why = "over"});
	rawnode_stop(&p->x);
}

static void damage_ends_the_attempt(void **state)
{
	static struct play p;
	struct wire_head h;
	Shard__Grad g;

	(void)state;
	start(&p, COPIES);
	whole(&p, 0);
	/* The bytes are not what was summed. */
	h = head(&p, OP_GRAD_DATA, 1);
	h.body_bytes = sizeof(p.grad);
	wire_seal(&h, p.grad, p.x.r[0].sent++, true);
	p.grad[5]++;
	raw_bytes(&p.x.r[0], &h, sizeof(h));
	raw_bytes(&p.x.r[0], p.grad, sizeof(p.grad));
	p.grad[5]--;
	abandons(&p);
	/* The norm is of other bytes: by one bit, and as if they were not finite. The coordinator
	 * is told what the daemon found, again and again. */
	for (int i = 0; i < 2; i++) {
		begin(&p);
		whole(&p, 0);
		g = said(&p);
		g.finite = i == 0;
		g.bad_tensor = (uint32_t)i;
		g.sumsq = nextafter(g.sumsq, 0);
		part(&p, OP_GRAD_DATA, 1, 0, sizeof(p.grad));
		closes(&p, 1, &g);
		contribute(&p);
		ready(&p);
		votes_that(&p, true, true);
		votes_that(&p, true, true);
		rawnode_say(&p.x,
			    &(struct core_msg){.op = CORE_ABORT, .id = p.id, .why = "they differ"});
		rawnode_say(&p.x, &(struct core_msg){.op = CORE_DRAINED, .id = p.id});
	}
	/* What comes late is dropped. */
	part(&p, OP_GRAD_DATA, 1, 0, sizeof(p.grad));
	closes(&p, 1, &g);
	begin(&p);
	for (int again = 0; again < 2; again++) {
		whole(&p, 0);
		whole(&p, 1);
	}
	contribute(&p);
	ready(&p);
	votes(&p, true);
	whole(&p, 0);
	ends(&p);
}

/* A follower votes as its primary does for what is not finite. */
static void not_finite_is_voted_for(void **state)
{
	static struct play p;
	Shard__Grad g;

	(void)state;
	start(&p, COPIES);
	g = said(&p);
	g.finite = false;
	g.sumsq = (double)INFINITY;
	g.bad_tensor = g.bad_rank = 1;
	p.grad[9] = (float)INFINITY;
	part(&p, OP_GRAD_DATA, 0, 0, sizeof(p.grad));
	closes(&p, 0, &g);
	p.grad[9] = 9 % 7 * 0.5f;
	whole(&p, 1);
	contribute(&p);
	ready(&p);
	votes(&p, false);
	ends(&p);
}

/* --- placements --- */

static void placements_that_cannot_be(void **state)
{
	static const struct {
		const char *settings, *text;
		uint32_t runs[4];
		uint64_t holders[4];
		size_t holders_nr;
	} bad[] = {
		{COPIES, "not in the cluster", {0, 2, 1, 2}, {3, 3, 5, 1}, 4},
		{COPIES, "another number of copies", {0, 2, 1, 2}, {3, 3, 2, 1}, 4},
		{COPIES, "holders: chunks without a node", {0, 2, 1, 2}, {3, 3}, 2},
		{COPIES, "holders: chunks without a node", {0, 2, 1, 2}, {0}, 0},
		{COPIES, "holders: a run without a count", {0, 2, 1, 2}, {3, 4, 3}, 3},
		{COPIES, "holders: runs do not fit", {0, 2, 1, 2}, {3, 5}, 2},
		{SETTINGS, "where the settings want one", {0, 2, 1, 2}, {3, 4}, 2},
	};
	struct wire_head h = {.op = OP_MODEL, .attempt = 70};
	uint64_t shape[] = {CHUNKS * ELEMS};
	Shard__Tensor t = SHARD__TENSOR__INIT, *list[] = {&t};
	Shard__Model m = SHARD__MODEL__INIT;
	Shard__Spec s = SHARD__SPEC__INIT;
	struct rawnode x;

	(void)state;
	rawnode_start(&x, true, &quiet, 1);
	t.name = s.name = (char *)(uintptr_t) "w";
	t.n_shape = 1;
	t.shape = shape;
	s.n_tensors = 1;
	s.tensors = list;
	s.image = s.grad = SHARD_F32;
	m.model = 9;
	m.incarnation = 1;
	m.spec = &s;
	m.chunk_elems = ELEMS;
	m.generation = 1;
	for (size_t i = 0; i < NR(bad); i++) {
		uint32_t runs[4];
		uint64_t holders[4];
		char *why;

		memcpy(runs, bad[i].runs, sizeof(runs));
		memcpy(holders, bad[i].holders, sizeof(holders));
		s.settings = (char *)(uintptr_t)bad[i].settings;
		m.n_place_runs = 4;
		m.place_runs = runs;
		m.n_holder_runs = bad[i].holders_nr;
		m.holder_runs = holders;
		h.attempt++;
		raw_send(&x.r[0], &h, &m.base);
		why = raw_error(&x.r[0]);
		if (why == NULL || strstr(why, bad[i].text) == NULL)
			fail_msg("placement %zu: \"%s\"", i, why != NULL ? why : "nothing");
	}
	rawnode_stop(&x);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(ends_the_link),
		cmocka_unit_test(before_its_own_part),
		cmocka_unit_test(codes_end_the_link),
		cmocka_unit_test(any_codes_are_taken),
		cmocka_unit_test(damage_ends_the_attempt),
		cmocka_unit_test(not_finite_is_voted_for),
		cmocka_unit_test(placements_that_cannot_be),
	};

	return cmocka_run_group_tests_name("grad_forged", tests, NULL, NULL);
}
