// SPDX-License-Identifier: Apache-2.0
/* Tests frames with correct sums and shape whose content is impossible, from a coordinator to its
 * node, from a node to its coordinator, and from a trainer. Each is refused with a sentence that
 * says what is wrong and who sent it. No daemon ends, and what was voted for before is still
 * decided as it should be. */
#include "base/check.h"
#include "lib/evil.h"
#include "lib/inproc.h"
#include "lib/rawnode.h"
#include "lib/rawpeer.h"
#include "shard.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pthread.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { CHUNKS = 4 };

static const struct inproc_conf quiet = {.cluster = "heartbeat_timeout = 20s\nstep_timeout = 60s"};

/* --- a trainer at the daemon, whose coordinator is the test --- */

struct member {
	struct raw r;
	struct core_rank rank;
	struct wire_head now; /* The head of the attempt. */
};

static void join(struct rawnode *x, struct member *t)
{
	Shard__Core *body;
	struct core_msg heard = {.op = CORE_JOIN, .id = {.term = x->view.term}};

	memset(t, 0, sizeof(*t));
	raw_connect(&t->r, x->daemon->unix_address);
	raw_hello(&t->r, ROLE_TRAINER);
	raw_send(&t->r, &(struct wire_head){.op = OP_JOIN, .attempt = 1, .model = x->model}, NULL);
	assert_true(raw_expect(&t->r, OP_JOIN));
	rawnode_expect(x, OP_CORE + CORE_JOIN);
	body = shard__core__unpack(NULL, x->r[0].head.body_bytes, x->r[0].body);
	assert_non_null(body);
	t->rank = (struct core_rank){
		.session = body->trainer->session, .pid = body->trainer->pid, .node = 1};
	heard.trainer = (struct core_trainer){
		.session = t->rank.session, .pid = t->rank.pid, .hint = -1, .node = 1};
	shard__core__free_unpacked(body, NULL);
	rawnode_say(x, &heard);
}

/* Pushes zeros and commits. Then the node votes. */
static void commit(struct rawnode *x, struct member *t)
{
	Shard__Ready ready = SHARD__READY__INIT;
	struct wire_head h;

	assert_true(raw_expect(&t->r, OP_ATTEMPT));
	t->now = t->r.head;
	t->now.flags = 0;
	for (uint32_t c = 0; c < CHUNKS; c++) {
		h = t->now;
		h.op = OP_PUSH;
		h.chunk = c;
		raw_send(&t->r, &h, NULL);
	}
	ready.weight = 1;
	h = t->now;
	h.op = OP_READY;
	raw_send(&t->r, &h, &ready.base);
	rawnode_expect(x, OP_CORE + CORE_VOTE);
}

static struct core_world world_of(const struct core_rank *r, uint32_t nr)
{
	struct core_world w = {.size = nr};

	for (uint32_t i = 0; i < nr; i++)
		w.rank[i] = *r;
	return w;
}

static void start(struct rawnode *x, const char *settings)
{
	rawnode_start(x, true, &quiet, 1);
	rawnode_define(x, CHUNKS, settings);
	rawnode_seal(x, 0);
}

/* --- messages of a coordinator --- */

/* A trainer that has voted wants to leave and waits for the decision. Meanwhile its model is
 * dropped. */
static void test_dropped_while_one_leaves(void **state)
{
	struct wire_head leave = {.op = OP_LEAVE, .attempt = 9}, drop = {.op = OP_MODEL_DROP};
	struct core_id id = {0};
	struct core_world w;
	struct rawnode x;
	struct member t;

	(void)state;
	start(&x, "optimizer=sgd lr=1 chunk_elems=1024");
	join(&x, &t);
	w = world_of(&t.rank, 1);
	rawnode_begin(&x, &w, &id);
	commit(&x, &t);
	leave.model = drop.model = x.model;
	raw_send(&t.r, &leave, NULL);
	rawnode_expect(&x, OP_CORE + CORE_GONE);
	raw_send(&x.r[0], &drop, NULL);
	assert_true(raw_expect(&t.r, OP_LEAVE));
	raw_close(&t.r);
	rawnode_stop(&x);
}

static void test_worlds(void **state)
{
	static const struct {
		uint32_t nr;
		uint16_t node;
		bool same;
		const char *part;
	} forged[] = {
		{0, 1, true, "it has no rank"},
		{2, 1, true, "a trainer is in it twice"},
		{3, 1, false, "more ranks than local_world"},
		{9, 0, false, "more ranks than max_world"},
		{1, 2, true, "on a node that there is not"},
		{1, UINT16_MAX, true, "on a node that there is not"},
	};
	struct core_id id = {0};
	struct rawnode x;
	struct member t;

	(void)state;
	start(&x, "optimizer=sgd lr=1 chunk_elems=1024 min_world=1 max_world=8 local_world=2");
	join(&x, &t);
	for (uint32_t i = 0; i < NR(forged); i++) {
		struct core_world w = world_of(&t.rank, forged[i].nr);

		for (uint32_t k = 0; k < w.size; k++) {
			w.rank[k].node = forged[i].node;
			w.rank[k].session += forged[i].same ? 0 : k;
		}
		rawnode_begin(&x, &w, &id);
		rawnode_refused(&x, 0, forged[i].part);
		inproc_wait_log(x.daemon, forged[i].part, 1);
		rawnode_link(&x);
	}
	/* The attempt has two ranks of this node, and the node does not know the second. So it
	 * gives the attempt back. */
	for (uint32_t i = 0; i < 2; i++) {
		struct core_world w = world_of(&t.rank, 2);

		w.rank[1].session += 1 + i;
		rawnode_begin(&x, &w, &id);
		rawnode_expect(&x, OP_CORE + CORE_ABANDON);
	}
	raw_close(&t.r);
	rawnode_stop(&x);
}

static struct record decision(const struct rawnode *x, const struct core_world *w,
			      const struct core_id *id)
{
	struct record r = x->view.record;

	r.id = *id;
	r.outcome = RECORD_APPLIED;
	r.content = id->step;
	r.applied++;
	r.attempts = id->attempt;
	r.weight_sum = 1;
	r.world = *w;
	r.world.rank[0].weight = 1;
	return r;
}

static void test_decisions(void **state)
{
	struct core_id id = {0};
	struct core_world w;
	struct rawnode x;
	struct member t;

	(void)state;
	start(&x, "optimizer=sgd lr=1 chunk_elems=1024 min_world=1 max_world=2 local_world=2 "
		  "max_staleness=1");
	join(&x, &t);
	w = world_of(&t.rank, 1);
	rawnode_begin(&x, &w, &id);
	commit(&x, &t);
	for (uint32_t i = 0; i < 8; i++) {
		struct record r = decision(&x, &w, &id);
		struct core_msg m = {.op = CORE_COMMIT, .id = id, .record = &r};
		struct core_view v = x.view;
		const char *part = "cannot follow";

		/* The record is of the other image, which trainers may be reading. */
		if (i == 0)
			r.applied--;
		else if (i == 1)
			r.applied = UINT64_MAX;
		else if (i == 2)
			r.outcome = RECORD_SKIP, r.content = r.content_old;
		else if (i == 3)
			r.outcome = RECORD_SEAL, r.content_old = r.content;
		else if (i == 4)
			r.world.rank[0].session++;
		else if (i == 5)
			r.world = world_of(&t.rank, 2), part = "twice";
		if (i == 6) { /* As a part of a view, and of a BEGIN of a later step. */
			r.applied++;
			v.record = r;
			v.seq++;
			m = (struct core_msg){.op = CORE_VIEW,
					      .id = {.term = v.term, .seq = v.seq, .generation = 1},
					      .view = &v};
		} else if (i == 7) {
			r.applied += 2;
			m = (struct core_msg){
				.op = CORE_BEGIN, .id = id, .record = &r, .world = &w};
			m.id.step++;
		}
		rawnode_say(&x, &m);
		rawnode_refused(&x, 0, part);
		rawnode_link(&x);
		rawnode_expect(&x, OP_CORE + CORE_VOTE); /* It is still PREPARED, and says so. */
	}
	{
		struct record r = decision(&x, &w, &id);

		rawnode_say(&x, &(struct core_msg){.op = CORE_COMMIT, .id = id, .record = &r});
		rawnode_expect(&x, OP_CORE + CORE_DONE);
		assert_true(raw_expect(&t.r, OP_RESULT));
		assert_int_equal(t.r.head.step, id.step);
	}
	raw_close(&t.r);
	rawnode_stop(&x);
}

static void *stops(void *arg)
{
	inproc_node_stop(arg);
	return NULL;
}

/* A node that stops and still waits for the verdict on a step does not begin to make a model. */
static void test_model_while_it_stops(void **state)
{
	struct core_id id = {0};
	struct core_world w;
	struct rawnode x;
	struct member t;
	struct record r;
	pthread_t thread;
	const char *why;

	(void)state;
	start(&x, "optimizer=sgd lr=1 chunk_elems=1024 min_world=1 max_world=2");
	join(&x, &t);
	w = world_of(&t.rank, 1);
	rawnode_begin(&x, &w, &id);
	commit(&x, &t);
	r = decision(&x, &w, &id);
	CHECK(pthread_create(&thread, NULL, stops, x.daemon) == 0);
	inproc_wait_log(x.daemon, "event=stopping model=m", 1);
	x.silent = true;
	rawnode_define_as(&x, 2, "second", CHUNKS, x.settings);
	why = raw_error(&x.r[0]);
	if (why == NULL || strstr(why, "node b stops") == NULL)
		fail_msg("answered with \"%s\"", why != NULL ? why : "nothing");
	x.model = 1;
	rawnode_say(&x, &(struct core_msg){.op = CORE_COMMIT, .id = id, .record = &r});
	rawnode_expect(&x, OP_CORE + CORE_DONE);
	pthread_join(thread, NULL);
	assert_int_equal(inproc_logged(x.daemon, "event=model model=second"), 0);
	raw_close(&t.r);
	rawnode_free(&x);
}

/* Sends numbers from which the daemon would count past the largest one. */
static void test_numbers(void **state)
{
	struct rawnode x;

	(void)state;
	start(&x, "optimizer=sgd lr=1 chunk_elems=1024 min_world=1 max_world=2");
	for (uint32_t i = 0; i < 3; i++) {
		struct core_view v = x.view;

		v.seq++;
		v.record.id.step = i == 0 ? UINT64_MAX : 0;
		v.record.id.generation = i == 1 ? UINT32_MAX : 1;
		v.record.id.attempt = i == 2 ? UINT32_MAX : 0;
		rawnode_say(&x, &(struct core_msg){
					.op = CORE_VIEW,
					.id = {.term = v.term, .seq = v.seq, .generation = 1},
					.view = &v});
		rawnode_refused(&x, 0, "no model gets that far");
		rawnode_link(&x);
	}
	rawnode_stop(&x);
}

/* Sends sealed views whose record is of another generation than the view. A model that lost the
 * weights of its record would not be sealed. */
static void test_generations(void **state)
{
	static const struct {
		uint32_t view, record;
	} wrong[] = {{0, 0}, {2, 0}, {2, 1}, {1, 2}};
	struct rawnode x;

	(void)state;
	rawnode_start(&x, true, &quiet, 1);
	rawnode_define(&x, 4, "optimizer=sgd lr=1 chunk_elems=1024 min_world=1 max_world=2");
	for (uint32_t i = 0; i < NR(wrong); i++) {
		struct core_view v = {.term = 6,
				      .seq = i + 1,
				      .generation = wrong[i].view,
				      .members = view_first(2, 0),
				      .place = rawnode_place(&x),
				      .sealed = true};

		v.record = (struct record){.outcome = RECORD_SEAL, .groups_nr = 1};
		v.record.id.generation = wrong[i].record;
		v.members.node[0] = rawnode_who(&x);
		v.members.node[1] = x.daemon_who;
		rawnode_say(&x, &(struct core_msg){.op = CORE_VIEW,
						   .id = {.term = v.term,
							  .seq = v.seq,
							  .generation = v.generation},
						   .view = &v});
		rawnode_refused(&x, 0, "with a record of generation");
		rawnode_link(&x);
		rawnode_define(&x, 4,
			       "optimizer=sgd lr=1 chunk_elems=1024 min_world=1 max_world=2");
	}
	rawnode_stop(&x);
}

/* Views with nodes that this cluster does not have end the link. A view without the daemon is
 * allowed and is not adopted. */
static void test_members(void **state)
{
	static const struct {
		uint64_t nodes, coordinator;
	} bad[] = {{0, 0}, {2, 0}, {3, 64}, {11, 0}, {UINT64_MAX, 0}};
	struct rawnode x;
	struct core_view v;
	struct core_msg m = {.op = CORE_VIEW, .view = &v};

	(void)state;
	start(&x, "optimizer=sgd lr=1 chunk_elems=1024 min_world=1 max_world=2");
	v = x.view;
	m.id = (struct core_id){.term = v.term, .seq = ++v.seq, .generation = 1};
	for (uint32_t i = 0; i < NR(bad); i++) {
		v.members.nodes = bad[i].nodes;
		v.members.coordinator = bad[i].coordinator;
		rawnode_say(&x, &m);
		rawnode_refused(&x, 0, "this cluster has 2 nodes");
		rawnode_link(&x);
	}
	v.members = view_first(1, 0);
	v.members.node[0] = x.view.members.node[0];
	rawnode_say(&x, &m);
	v.members = x.view.members;
	m.id.seq = ++v.seq;
	rawnode_say(&x, &m);
	rawnode_expect(&x, OP_CORE + CORE_VIEW_OK);
	assert_int_equal(x.r[0].head.seq, v.seq);
	rawnode_stop(&x);
}

/* A view that names the daemon by another node's uuid ends the link. So does a view with a member
 * without a uuid, or with the same uuid for two members, or with another placement. */
static void test_names(void **state)
{
	static const char *const part[] = {
		"node 1, which is this one, by a uuid that is not its own",
		"nodes 0 and 1 by the same uuid", "node 0 has no uuid",
		"are not those of the definition"};
	struct rawnode x;
	struct core_view v;
	struct core_msg m = {.op = CORE_VIEW, .view = &v};

	(void)state;
	start(&x, "optimizer=sgd lr=1 chunk_elems=1024 min_world=1 max_world=2");
	m.id = (struct core_id){.term = x.view.term, .seq = x.view.seq + 1, .generation = 1};
	for (uint32_t i = 0; i <= NR(part); i++) {
		v = x.view;
		v.seq++;
		if (i == 0)
			v.members.node[1].uuid[0] ^= 0xff;
		else if (i == 1)
			v.members.node[0] = v.members.node[1];
		else if (i == 2)
			memset(v.members.node[0].uuid, 0, VIEW_UUID_BYTES);
		else if (i == 3)
			v.place.sum++;
		rawnode_say(&x, &m);
		if (i < NR(part)) {
			rawnode_refused(&x, 0, part[i]);
			rawnode_link(&x);
		}
	}
	rawnode_expect(&x, OP_CORE + CORE_VIEW_OK);
	assert_int_equal(x.r[0].head.seq, v.seq);
	rawnode_stop(&x);
}

/* Definitions whose parts do not fit together are refused as a request, and the link stays. */
static void test_definitions(void **state)
{
	static const uint32_t elems[] = {0, 1, 1000, 2048, UINT32_MAX};
	/* Without the holder of a chunk, and with nodes that do not exist. */
	static const uint64_t members[] = {1, 2, 4, 7, 1ull << 63, UINT64_MAX};
	struct wire_head h = {.op = OP_MODEL, .model = 9};
	uint32_t runs[] = {0, 1, 1, 1};
	uint64_t shape[] = {2048};
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
	s.settings = (char *)(uintptr_t) "optimizer=sgd lr=1 chunk_elems=1024";
	m.model = 9;
	m.incarnation = 1;
	m.spec = &s;
	m.n_place_runs = 4;
	m.place_runs = runs;
	m.generation = 1;
	for (uint32_t i = 0; i < NR(elems); i++) {
		char *why;

		m.chunk_elems = elems[i];
		h.attempt++;
		raw_send(&x.r[0], &h, &m.base);
		why = raw_error(&x.r[0]);
		if (why == NULL || strstr(why, "whose settings say 1024") == NULL)
			fail_msg("chunks of %u elements: \"%s\"", elems[i],
				 why != NULL ? why : "nothing");
	}
	m.chunk_elems = 1024;
	for (uint32_t i = 0; i < NR(members); i++) {
		char *why;

		m.members = members[i];
		h.attempt++;
		raw_send(&x.r[0], &h, &m.base);
		why = raw_error(&x.r[0]);
		if (why == NULL || strstr(why, "and there are 2 nodes") == NULL)
			fail_msg("members %#lx: \"%s\"", (unsigned long)members[i],
				 why != NULL ? why : "nothing");
	}
	m.members = 0;
	s.settings = (char *)(uintptr_t) "optimizer=sgd lr=1 chunk_elems=1024 max_world=65";
	h.attempt++;
	raw_send(&x.r[0], &h, &m.base);
	assert_non_null(strstr(raw_error(&x.r[0]), "local_world 65: at most 256 and 64"));
	/* A model without the node that coordinates it: that is a member all the same. */
	s.settings = (char *)(uintptr_t) "optimizer=sgd lr=1 chunk_elems=1024";
	runs[0] = 1;
	runs[1] = 2;
	m.n_place_runs = 2;
	m.members = 2;
	h.attempt++;
	raw_send(&x.r[0], &h, &m.base);
	rawnode_expect(&x, OP_MODEL);
	rawnode_stop(&x);
}

static void test_hello(void **state)
{
	struct inproc_conf conf = {.net = "transport = tcp"};
	struct inproc c;
	struct config mine;
	struct err e;

	(void)state;
	inproc_prepare(&c, &conf);
	assert_int_equal(inproc_node_start(&c.node[0]), SHARD_OK);
	assert_int_equal(config_load_text(&mine, "b", c.node[1].text, strlen(c.node[1].text), &e),
			 SHARD_OK);
	for (int i = 0; i < 3; i++) {
		uint8_t uuid[16] = {i < 2};
		Shard__Hello m = SHARD__HELLO__INIT;
		struct raw r;
		char *why;

		m.wire_min = m.wire_max = WIRE_VERSION;
		m.features = FEATURE_BODY_SUM;
		m.role = ROLE_NODE;
		m.run_id = (char *)(uintptr_t) "test";
		m.node = (char *)(uintptr_t) "b";
		m.uuid = (ProtobufCBinaryData){i == 1 ? 15 : 16, uuid};
		m.incarnation = i == 0 ? 0 : 1;
		m.config_hash = config_hash(&mine);
		m.release = (char *)(uintptr_t) "raw";
		raw_connect(&r, c.node[0].tcp_address);
		raw_send(&r, &(struct wire_head){.op = OP_HELLO}, &m.base);
		why = raw_error(&r);
		if (why == NULL || strstr(why, "hello of node b with incarnation") == NULL)
			fail_msg("\"%s\"", why != NULL ? why : "nothing");
		raw_close(&r);
	}
	json_decref(inproc_status(&c.node[0]));
	config_free(&mine);
	inproc_stop(&c);
}

/* --- messages of a node to its coordinator --- */

static void *define_there(void *arg)
{
	struct wire_head h = {.op = OP_DEFINE, .attempt = 1};
	struct rawnode *x = arg;
	Shard__Tensor t, *list[1];
	Shard__Define d;
	Shard__Spec s;
	uint64_t shape;
	struct raw r;

	raw_connect(&r, x->daemon->unix_address);
	raw_hello(&r, ROLE_TRAINER);
	evil_spec(&d, &s, &t, list, &shape);
	raw_send(&r, &h, &d.base);
	CHECK(raw_expect(&r, OP_DEFINE));
	raw_close(&r);
	return NULL;
}

/* Answers to ASK after which the next generation would be 0, or older than the last one. */
static void test_answers(void **state)
{
	struct core_answer a = {.incarnation = 1};
	struct rawnode x;
	pthread_t definer;

	(void)state;
	rawnode_start(&x, false, &quiet, 1);
	CHECK(pthread_create(&definer, NULL, define_there, &x) == 0);
	rawnode_expect(&x, OP_MODEL);
	x.model = x.r[0].head.model;
	for (uint32_t i = 0; i < 3; i++) {
		struct core_msg m = {.op = CORE_ANSWER, .answer = &a};

		rawnode_held(&x);
		if (i == 0)
			pthread_join(definer, NULL);
		rawnode_expect(&x, OP_CORE + CORE_ASK);
		m.id.term = x.r[0].head.term;
		a.generation = i == 0 ? UINT32_MAX : i == 1 ? (uint32_t)INT32_MAX + 1 : 3;
		a.has_record = i == 2;
		a.record.id.generation = 4;
		a.record.groups_nr = 1;
		rawnode_say(&x, &m);
		rawnode_refused(&x, 0, "an answer of generation");
		rawnode_link(&x);
		rawnode_expect(&x, OP_MODEL);
	}
	rawnode_stop(&x);
}

/* --- messages of a trainer --- */

/* Defines and writes a model, and does not seal it. */
static uint32_t write_model(struct raw *r, const char *address)
{
	struct wire_head h = {.op = OP_DEFINE, .attempt = 1};
	static const float w[1024];
	Shard__Tensor t, *list[1];
	Shard__Define d;
	Shard__Spec s;
	uint64_t shape;
	uint32_t model;

	raw_connect(r, address);
	raw_hello(r, ROLE_TRAINER);
	evil_spec(&d, &s, &t, list, &shape);
	raw_send(r, &h, &d.base);
	assert_true(raw_expect(r, OP_DEFINE));
	model = r->head.model;
	h = (struct wire_head){.op = OP_WRITE,
			       .attempt = 2,
			       .model = model,
			       .generation = r->head.generation,
			       .chunk = SHARD_MASTER};
	for (h.step = 0; h.step < EVIL_ELEMS; h.step += 1024) {
		struct wire_head copy = h;
		uint64_t n = EVIL_ELEMS - h.step < 1024 ? EVIL_ELEMS - h.step : 1024;

		raw_head(r, &copy, w, (uint32_t)(n * sizeof(w[0])));
		assert_true(raw_expect(r, OP_WRITE));
	}
	return model;
}

static void test_seal_step(void **state)
{
	static const uint64_t steps[] = {UINT64_MAX, INT64_MAX, (1ull << 62) + 1, 1ull << 62};
	struct inproc_conf conf = {.nodes = 1};
	struct inproc c;
	uint32_t model;
	struct raw r;

	(void)state;
	inproc_start(&c, &conf);
	model = write_model(&r, c.node[0].unix_address);
	for (uint32_t i = 0; i < NR(steps); i++) {
		Shard__Seal body = SHARD__SEAL__INIT;
		struct wire_head h = {.op = OP_SEAL, .attempt = 100 + i, .model = model};

		body.step = steps[i];
		raw_send(&r, &h, &body.base);
		if (i + 1 < NR(steps))
			assert_non_null(strstr(raw_error(&r), "cannot be sealed at step"));
		else
			assert_true(raw_expect(&r, OP_SEAL));
	}
	raw_send(&r, &(struct wire_head){.op = OP_JOIN, .attempt = 200, .model = model}, NULL);
	assert_true(raw_expect(&r, OP_ATTEMPT)); /* It goes on from that step. */
	assert_true(r.head.step == (1ull << 62) + 1);
	raw_close(&r);
	json_decref(inproc_status(&c.node[0]));
	inproc_stop(&c);
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_worlds),
		cmocka_unit_test(test_decisions),
		cmocka_unit_test(test_model_while_it_stops),
		cmocka_unit_test(test_numbers),
		cmocka_unit_test(test_members),
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_definitions),
		cmocka_unit_test(test_hello),
		cmocka_unit_test(test_seal_step),
		cmocka_unit_test(test_answers),
		cmocka_unit_test(test_generations),
		cmocka_unit_test(test_dropped_while_one_leaves),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests_name("forged", tests, NULL, NULL);
}
