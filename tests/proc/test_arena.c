// SPDX-License-Identifier: Apache-2.0
/* Tests a trainer that goes on writing into its arena after it has pushed, by mistake or on
 * purpose. The daemon applies what it has judged, so norm, clipping and the skip of what is not
 * finite hold. A sum that does not arrive at another node as it was made ends the attempt. The
 * second time it also puts the trainer out. No link falls because of it. */
#include "base/check.h"
#include "lib/crew.h"
#include "lib/evil.h"
#include "lib/inproc.h"
#include "lib/rawnode.h"
#include "lib/rawpeer.h"
#include "shard.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum {
	ELEMS = 1 << 14
}; /* The elements of a chunk. They are so few that PUSH itself reduces them on the loop. */

#define SETTINGS "optimizer=sgd lr=1 chunk_elems=16384 timeout=20s "

struct trainer {
	struct raw r;
	uint32_t model, generation, chunks;
	struct wire_head now; /* The head of the current attempt. */
	float *arena;         /* Over a unix socket. */
	uint64_t elems;
	bool sealed;
};

static void define(struct trainer *t, const char *address, const char *name, const char *settings,
		   uint64_t elems)
{
	struct wire_head h = {.op = OP_DEFINE, .attempt = 1};
	Shard__Tensor tensor, *list[1];
	Shard__Defined *got;
	Shard__Define d;
	Shard__Spec s;
	uint64_t shape;

	memset(t, 0, sizeof(*t));
	raw_connect(&t->r, address);
	raw_hello(&t->r, ROLE_TRAINER);
	evil_spec(&d, &s, &tensor, list, &shape);
	shape = t->elems = elems;
	s.name = (char *)(uintptr_t)name;
	s.settings = (char *)(uintptr_t)settings;
	raw_send(&t->r, &h, &d.base);
	if (!raw_expect(&t->r, OP_DEFINE))
		fail_msg("DEFINE was not answered");
	got = shard__defined__unpack(NULL, t->r.head.body_bytes, t->r.body);
	assert_non_null(got);
	t->sealed = got->sealed;
	shard__defined__free_unpacked(got, NULL);
	t->model = t->r.head.model;
	t->generation = t->r.head.generation;
	t->chunks = (uint32_t)((elems + ELEMS - 1) / ELEMS);
}

static void write_and_seal(struct trainer *t, float with)
{
	struct wire_head h = {.op = OP_WRITE,
			      .attempt = 2,
			      .model = t->model,
			      .generation = t->generation,
			      .chunk = SHARD_MASTER};
	float *v = malloc(ELEMS * sizeof(*v));

	CHECK(v != NULL);
	for (int i = 0; i < ELEMS; i++)
		v[i] = with;
	for (uint32_t c = 0; c < t->chunks; c++) {
		struct wire_head one = h;

		one.step = (uint64_t)c * ELEMS;
		raw_head(&t->r, &one, v, ELEMS * sizeof(*v));
		assert_true(raw_expect(&t->r, OP_WRITE));
	}
	free(v);
	raw_send(&t->r, &(struct wire_head){.op = OP_SEAL, .attempt = 3, .model = t->model}, NULL);
	assert_true(raw_expect(&t->r, OP_SEAL));
}

static void join(struct trainer *t)
{
	raw_send(&t->r, &(struct wire_head){.op = OP_JOIN, .attempt = 4, .model = t->model}, NULL);
	assert_true(raw_expect(&t->r, OP_JOIN));
	assert_int_equal(t->r.fds_nr, 2);
	t->arena = mmap(NULL, t->elems * sizeof(float), PROT_READ | PROT_WRITE, MAP_SHARED,
			t->r.fds[0], 0);
	assert_true(t->arena != MAP_FAILED);
}

static void attempt(struct trainer *t)
{
	assert_true(raw_expect(&t->r, OP_ATTEMPT));
	t->now = t->r.head;
	t->now.flags = 0;
}

static void fill(struct trainer *t, float with)
{
	for (uint64_t i = 0; i < t->elems; i++)
		t->arena[i] = with;
}

static void say(struct trainer *t, uint16_t op, uint32_t chunk, const ProtobufCMessage *msg)
{
	struct wire_head h = t->now;

	h.op = op;
	h.chunk = chunk;
	raw_send(&t->r, &h, msg);
}

static void push_all(struct trainer *t)
{
	for (uint32_t c = 0; c < t->chunks; c++)
		say(t, OP_PUSH, c, NULL);
}

static void ready(struct trainer *t)
{
	Shard__Ready body = SHARD__READY__INIT;

	body.weight = 1;
	say(t, OP_READY, 0, &body.base);
}

static void leave(struct trainer *t)
{
	if (t->arena != NULL)
		munmap(t->arena, t->elems * sizeof(float));
	raw_close(&t->r);
}

/* --- the weights that are applied --- */

/* It uses a connection of its own, because the trainer's may already have the next ATTEMPT. */
static float master(const char *address, uint32_t model)
{
	Shard__Read q = SHARD__READ__INIT;
	struct raw r;
	float got;

	raw_connect(&r, address);
	raw_hello(&r, ROLE_TRAINER);
	q.kind = SHARD_MASTER;
	q.first = 12345;
	q.count = 1;
	raw_send(&r, &(struct wire_head){.op = OP_READ, .attempt = 9, .model = model}, &q.base);
	assert_true(raw_expect(&r, OP_READ));
	memcpy(&got, r.body, sizeof(got));
	raw_close(&r);
	return got;
}

static Shard__Result *step(struct trainer *t, float pushed, float later)
{
	Shard__Result *got;

	attempt(t);
	fill(t, pushed);
	push_all(t);
	free(raw_status(&t->r)); /* When this is answered, everything before it has been done. */
	fill(t, later);
	ready(t);
	assert_true(raw_expect(&t->r, OP_RESULT));
	got = shard__result__unpack(NULL, t->r.head.body_bytes, t->r.body);
	assert_non_null(got);
	return got;
}

static void test_judged(void **state)
{
	struct inproc_conf conf = {.nodes = 1, .daemon = "warm_restart = off"};
	Shard__Result *got;
	struct trainer t;
	struct inproc c;

	(void)state;
	inproc_start(&c, &conf);
	define(&t, c.node[0].unix_address, "m", SETTINGS "min_world=1 max_world=1 clip=1000",
	       ELEMS);
	write_and_seal(&t, 0.5f);
	join(&t);
	got = step(&t, 0.25f, 1e6f);
	assert_int_equal(got->outcome, RECORD_APPLIED);
	assert_true(got->grad_norm == 0.25 * 128); /* sqrt(16384) is 128. */
	assert_true(got->clip_factor == 1);
	assert_true(master(c.node[0].unix_address, t.model) == 0.25f);
	shard__result__free_unpacked(got, NULL);
	got = step(&t, 0.125f, __builtin_nanf(""));
	assert_int_equal(got->outcome, RECORD_APPLIED);
	assert_true(master(c.node[0].unix_address, t.model) == 0.125f);
	shard__result__free_unpacked(got, NULL);
	got = step(&t, __builtin_nanf(""), 0.125f); /* A skipped step stays skipped. */
	assert_int_equal(got->outcome, RECORD_NONFINITE);
	assert_int_equal(got->bad_rank, 0);
	assert_true(master(c.node[0].unix_address, t.model) == 0.125f);
	shard__result__free_unpacked(got, NULL);
	leave(&t);
	inproc_stop(&c);
}

/* --- damage on the way to another node --- */

/* The correct trainer at node a runs in a thread of its own. The test is node b. */
struct local {
	struct rawnode *x;
	const char *settings;
	uint32_t ends; /* Attempts that end without effect. */
	struct trainer t;
	pthread_t thread;
	char ended[512];
};

static void *train_there(void *arg)
{
	struct local *l = arg;
	Shard__Why *why;

	define(&l->t, l->x->daemon->unix_address, "m", l->settings, ELEMS);
	write_and_seal(&l->t, 0.5f);
	join(&l->t);
	for (uint32_t i = 0; i < l->ends; i++) {
		attempt(&l->t);
		CHECK(raw_expect(&l->t.r, OP_ENDED));
		why = shard__why__unpack(NULL, l->t.r.head.body_bytes, l->t.r.body);
		snprintf(l->ended, sizeof(l->ended), "%s", why->why);
		shard__why__free_unpacked(why, NULL);
	}
	attempt(&l->t);
	fill(&l->t, 0.125f);
	push_all(&l->t);
	ready(&l->t);
	CHECK(raw_expect(&l->t.r, OP_RESULT));
	return NULL;
}

/* Sends this node's contribution to chunk 0 as soon as it may. */
static void contribute(struct rawnode *x, const struct wire_head *now, float with, bool damaged)
{
	struct wire_head h = *now;
	float *v = malloc(ELEMS * sizeof(*v));

	CHECK(v != NULL);
	for (int i = 0; i < ELEMS; i++)
		v[i] = with;
	h.op = OP_CONTRIB_DATA;
	h.flags = 0;
	h.chunk = 0;
	h.body_bytes = ELEMS * sizeof(*v);
	wire_seal(&h, v, x->r[0].sent++, true);
	v[ELEMS / 2] += damaged ? 1 : 0;
	raw_bytes(&x->r[0], &h, sizeof(h));
	raw_bytes(&x->r[0], v, h.body_bytes);
	free(v);
	h = *now;
	h.op = OP_CONTRIB;
	h.flags = h.chunk = 0;
	raw_send(&x->r[0], &h, NULL);
}

/* Waits until the daemon lends its slots for an attempt after that one (NULL: for any). BEGIN and
 * GRANT of the attempt before are repeated on a slow machine, so they may come once more. */
static struct wire_head granted(struct rawnode *x, const struct wire_head *before)
{
	do {
		rawnode_obey(x, OP_CORE + CORE_GRANT, 0);
	} while (before && x->r[0].head.attempt == before->attempt);
	return x->r[0].head;
}

static void put_out(struct rawnode *x, uint64_t session)
{
	Shard__Core *body;

	rawnode_obey(x, OP_CORE + CORE_GONE, 0);
	body = shard__core__unpack(NULL, x->r[0].head.body_bytes, x->r[0].body);
	assert_non_null(body);
	assert_int_equal(body->trainer->session, session);
	assert_non_null(strstr(body->trainer->why,
			       "arrived damaged: its trainer wrote to it after the push"));
	shard__core__free_unpacked(body, NULL);
	rawnode_say(x, &(struct core_msg){.op = CORE_GONE,
					  .id.term = x->view.term,
					  .trainer = {.session = session, .pid = 1, .hint = -1}});
}

/* The ranks of this node are ready, and it votes. The daemon has one more rank. */
static void vote(struct rawnode *x, const struct wire_head *now, uint32_t ranks)
{
	static const double weights[] = {1, 1, 1};
	struct core_msg m = {
		.op = CORE_RANKS,
		.vote = {.weights = weights, .ranks_nr = ranks, .bad_tensor = -1, .bad_rank = -1}};

	m.id = (struct core_id){now->term, now->step, now->seq, now->generation, now->attempt};
	rawnode_say(x, &m);
	m.op = CORE_VOTE;
	m.vote.ranks_nr = ranks + 1;
	rawnode_say(x, &m);
}

static void damage(uint32_t ranks)
{
	struct inproc_conf conf = {.cluster = "heartbeat_timeout = 20s\nstep_timeout = 60s"};
	struct local l = {.x = NULL};
	struct wire_head first, now;
	struct rawnode x;

	rawnode_start(&x, false, &conf, 1);
	l.x = &x;
	l.settings = ranks == 1 ? SETTINGS "min_world=2 max_world=4 local_world=2"
				: SETTINGS "min_world=3 max_world=4 local_world=2";
	l.ends = ranks == 1 ? 2 : 1;
	CHECK(pthread_create(&l.thread, NULL, train_there, &l) == 0);
	/* The coordinator knows trainers from its first view on. */
	rawnode_obey(&x, OP_CORE + CORE_VIEW, 77);
	if (ranks == 2)
		rawnode_join(&x, 76);
	now = first = granted(&x, NULL);
	contribute(&x, &first, 0.25f, true);
	if (ranks == 1) { /* Now the trainer is to blame. */
		now = granted(&x, &first);
		contribute(&x, &now, 0.25f, true);
		put_out(&x, 77);
		rawnode_join(&x, 78);
	}
	now = granted(&x, &now);
	/* It is for the previous attempt, so nobody waits for it and it ends nothing. */
	contribute(&x, &first, 0.25f, true);
	contribute(&x, &now, 0.125f, false);
	vote(&x, &now, ranks);
	rawnode_obey(&x, OP_CORE + CORE_COMMIT, 0);
	pthread_join(l.thread, NULL);
	assert_non_null(strstr(l.ended, ranks == 1 ? "gradient of chunk 0 from rank "
						   : "gradient of chunk 0 from node b arrived"));
	assert_int_equal(inproc_logged(x.daemon, "event=link_down"), 0);
	assert_int_equal(inproc_logged(x.daemon, "event=contribution_damaged"), l.ends);
	leave(&l.t);
	rawnode_stop(&x);
}

static void test_damaged_by_a_rank(void **state)
{
	(void)state;
	damage(1);
}

static void test_damaged_sum(void **state)
{
	(void)state;
	damage(2);
}

/* --- beside correct trainers --- */

enum { WILD_CHUNKS = 8, WILD_STEPS = 200 };

/* Writes all over its arena all the time. */
struct wild {
	struct trainer t;
	pthread_t thread;
	_Atomic bool over;
};

static void *scribble(void *arg)
{
	struct wild *w = arg;

	for (uint32_t i = 0; !atomic_load(&w->over); i++)
		for (uint64_t at = i % 16; at < w->t.elems; at += 16)
			((volatile float *)w->t.arena)[at] = (float)i;
	return NULL;
}

/* Makes steps until it is expelled or `steps` are done. Returns how many were done. */
static uint32_t wild_steps(struct trainer *t, uint32_t steps)
{
	uint32_t done = 0;

	while (done < steps && raw_recv(&t->r)) {
		if (t->r.head.op == OP_ATTEMPT) {
			t->now = t->r.head;
			t->now.flags = 0;
			push_all(t);
			ready(t);
		}
		done += t->r.head.op == OP_RESULT;
	}
	return done;
}

static uint32_t wild_run(const char *address, uint32_t steps)
{
	struct wild w = {.over = false};
	uint32_t done;

	define(&w.t, address, "wild", SETTINGS "min_world=1 max_world=1",
	       (uint64_t)WILD_CHUNKS * ELEMS);
	if (!w.t.sealed)
		write_and_seal(&w.t, 0.5f);
	join(&w.t);
	CHECK(pthread_create(&w.thread, NULL, scribble, &w) == 0);
	done = wild_steps(&w.t, steps);
	atomic_store(&w.over, true);
	pthread_join(w.thread, NULL);
	leave(&w.t);
	return done;
}

static void test_beside_honest_trainers(void **state)
{
	static struct crew crew;
	struct inproc_conf conf = {.nodes = 2, .net = "transport = tcp"};
	uint32_t rounds = 0;
	struct inproc c;
	uint64_t last;

	(void)state;
	inproc_start(&c, &conf);
	crew_init(&crew, "honest");
	crew_add(&crew, c.node[0].unix_address, 0);
	crew_add(&crew, c.node[1].unix_address, 1);
	crew_start(&crew, UINT64_MAX);
	for (uint32_t done = 0; done < WILD_STEPS && rounds < WILD_STEPS; rounds++)
		done += wild_run(c.node[1].unix_address, WILD_STEPS - done);
	last = crew_finish(&crew);
	crew_check(&crew, c.node[0].unix_address, last);
	print_message("put out %u times, %u gradients damaged; %lu honest steps\n", rounds - 1,
		      inproc_logged(&c.node[0], "event=contribution_damaged"), (unsigned long)last);
	for (int n = 0; n < 2; n++)
		assert_int_equal(inproc_logged(&c.node[n], "event=link_down"), 0);
	/* No attempt of the crew ended because of it either. */
	assert_int_equal(crew.member[0].retries, 0);
	inproc_stop(&c);
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_judged),
		cmocka_unit_test(test_damaged_by_a_rank),
		cmocka_unit_test(test_damaged_sum),
		cmocka_unit_test(test_beside_honest_trainers),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests_name("arena", tests, NULL, NULL);
}
