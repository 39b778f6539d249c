// SPDX-License-Identifier: Apache-2.0
/* What RDMA writes must meet nothing else. Image chunks come over a slow connection while those of
 * the next step come by RDMA, and a node has not voted for a step whose image others send. Of three
 * nodes c has no trainer. Relays (lib/relay.h) make what is sent to it stand still, or cut it off,
 * and all bits of its image must be right. The verbs are those of rdma/fake.h. The test looks into
 * the daemons, which are threads of it. */
#include "base/check.h"
#include "base/clock.h"
#include "data/deltas.h"
#include "data/mr.h"
#include "lib/crew.h"
#include "lib/linked.h"
#include "lib/pace.h"
#include "lib/ports.h"
#include "lib/relay.h"
#include "link/events.h"
#include "link/peer.h"
#include "rdma/fake.h"
#include "wire/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

/* A chunk has two parts, and each node holds two chunks. */
enum { CHUNK = 2 * WIRE_PART_BYTES / sizeof(float), CHUNKS = 6, ELEMS = CHUNKS * CHUNK };
enum { A, B, C, WAIT_S = 60 };

struct trainer { /* One at node a, and maybe another one at b. */
	shard_client *client;
	shard_model *m;
	int rank;
	uint64_t step; /* That it has made. */
	pthread_t thread;
};

struct trainers {
	struct trainer t[2];
	uint32_t nr;
};

static struct inproc cluster;
static struct relay before[2]; /* Before a and b. */

static struct model *model_of(uint32_t node)
{
	const struct list *models = &cluster.node[node].server->models;

	return list_empty(models) ? NULL : list_of(models->next, struct model, link);
}

static void until(const char *what, bool (*is)(void))
{
	uint64_t by = pace_by(WAIT_S);

	while (!is()) {
		if (clock_ns() > by)
			fail_msg("%s does not come", what);
		usleep(1000);
	}
}

/* --- the trainer --- */

static float weight(uint32_t i, uint64_t step)
{
	return (float)(i % 13) - (float)step * (float)(i % 7);
}

static void define(struct trainer *t, uint32_t world, const char *settings)
{
	static const struct shard_tensor tensor = {.name = "w", .ndim = 1, .shape = {ELEMS}};
	struct shard_spec s = SHARD_INIT(struct shard_spec);
	char all[256];
	int created;

	snprintf(all, sizeof(all),
		 "optimizer=sgd lr=1 min_world=%u max_world=%u chunk_elems=%u timeout=60s %s",
		 world, world, CHUNK, settings);
	t->client = crew_connect(cluster.node[t->rank].unix_address);
	s.name = "m";
	s.tensors = &tensor;
	s.tensors_nr = 1;
	s.image = s.grad = SHARD_F32;
	s.settings = all;
	MUST(shard_define(t->client, &s, &t->m, &created));
	assert_int_equal(created, t->rank == 0);
}

static void seal(struct trainers *all)
{
	float *w = calloc(ELEMS, sizeof(*w));

	assert_non_null(w);
	for (uint32_t i = 0; i < ELEMS; i++)
		w[i] = weight(i, 0);
	MUST(shard_write(all->t[0].m, SHARD_MASTER, 0, 0, ELEMS, SHARD_F32, w));
	MUST(shard_seal(all->t[0].m, 0));
	free(w);
}

static void *join_one(void *arg)
{
	struct shard_world world = SHARD_INIT(struct shard_world);
	struct trainer *t = arg;

	MUST(shard_join(t->m, t->rank, pace_ms(WAIT_S * 1000), &world));
	return NULL;
}

static void *step_one(void *arg)
{
	struct shard_step s = SHARD_INIT(struct shard_step);
	struct shard_result res = SHARD_INIT(struct shard_result);
	struct trainer *t = arg;
	enum shard_status st = SHARD_WORLD_CHANGED;
	shard_ticket ticket;

	while (st == SHARD_WORLD_CHANGED) {
		float *g;

		if ((st = shard_begin(t->m, NULL, &s)) != SHARD_OK)
			continue;
		g = shard_grad(t->m, 0);
		for (uint32_t i = 0; i < ELEMS; i++)
			g[i] = (float)(i % 7);
		st = shard_push(t->m, 0, 0, ELEMS, NULL, SHARD_F32, 0, NULL);
		if (st == SHARD_OK)
			st = shard_commit(t->m, &ticket);
		if (st == SHARD_OK)
			st = shard_result(t->m, ticket, pace_ms(WAIT_S * 1000), &res);
	}
	crew_must(st, SHARD_OK, "a step");
	t->step = s.step;
	return NULL;
}

static void all_do(struct trainers *all, void *(*what)(void *))
{
	for (uint32_t i = 0; i < all->nr; i++)
		CHECK(pthread_create(&all->t[i].thread, NULL, what, &all->t[i]) == 0);
	for (uint32_t i = 0; i < all->nr; i++)
		CHECK(pthread_join(all->t[i].thread, NULL) == 0);
}

/* Makes the next step. */
static uint64_t step(struct trainers *all)
{
	all_do(all, step_one);
	return all->t[0].step;
}

/* Compares the image that is at that node. */
static void compare(uint32_t node, uint64_t at)
{
	shard_client *client = crew_connect(cluster.node[node].unix_address);
	float *w = calloc(ELEMS, sizeof(*w));
	shard_model *m;

	assert_non_null(w);
	MUST(shard_attach(client, "m", &m));
	MUST(shard_read(m, SHARD_IMAGE, 0, 0, ELEMS, SHARD_F32, w, &at));
	for (uint32_t i = 0; i < ELEMS; i++)
		if (w[i] != weight(i, at))
			fail_msg("the image of step %lu at node %s: element %u of chunk %u is %g, "
				 "not %g",
				 (unsigned long)at, cluster.node[node].name, i % CHUNK, i / CHUNK,
				 (double)w[i], (double)weight(i, at));
	free(w);
	shard_disconnect(&client);
}

/* --- the cluster --- */

static bool c_has_told(void)
{
	const struct model *b = model_of(B), *c = model_of(C);

	return b != NULL && c != NULL && b->mr->peer[C].known && c->mr->peer[B].told;
}

/* of_c: a line of the configuration of node c. */
static void begin(struct trainers *all, uint32_t world, const char *settings, const char *of_c)
{
	struct inproc_conf conf = {.nodes = 3,
				   .cluster = "heartbeat_timeout = 60s\nlost_timeout = 1000s\n"
					      "membership = static",
				   .host_in_nodes = {[A] = "127.0.0.3", [B] = "127.0.0.2"}};
	struct inproc_node *c = &cluster.node[C];
	char *text;

	fake_reset();
	for (uint32_t i = 0; i < 2; i++) {
		conf.port[i] = ports_take();
		relay_start(&before[i], conf.host_in_nodes[i], conf.port[i]);
	}
	inproc_prepare(&cluster, &conf);
	CHECK(asprintf(&text, "[daemon]\n%s\n%s", of_c, c->text) > 0);
	free(c->text);
	c->text = text;
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(inproc_node_start(&cluster.node[i]), SHARD_OK);
	linked_by_rdma(&cluster);
	*all = (struct trainers){.nr = world};
	for (uint32_t i = 0; i < world; i++) {
		all->t[i].rank = (int)i;
		define(&all->t[i], world, settings);
	}
}

static void end(struct trainers *all)
{
	for (uint32_t i = 0; i < all->nr; i++)
		shard_disconnect(&all->t[i].client);
	inproc_stop(&cluster);
	for (uint32_t i = 0; i < 2; i++)
		relay_stop(&before[i]);
}

/* --- parts that come late --- */

/* Node c gets no COMMIT of step .at before it has all chunks of b as of that step, by RDMA, and
 * then the part that stood still on the way from b. */
static struct late {
	const struct link_events *real;
	struct link_events events;
	uint64_t at;
	uint32_t before; /* Frames of b to come before that part is whole. */
	bool released;
	_Atomic bool over;
} late;

static bool all_there(const struct model *m)
{
	uint32_t slot = m->set.max_staleness > 0 ? m->img.slot ^ 1 : 0;

	for (uint32_t i = 0; i < CHUNKS; i++)
		if (place_primary(&m->place, i) == B &&
		    store_image_chunk(m->store, slot, i) != late.at)
			return false;
	return true;
}

static void frame_of_b(const struct wire_head *h)
{
	if (!late.released || late.over || h->step == late.at)
		return;
	late.over = late.before == 0;
	late.before = 0;
}

static enum shard_status late_body(struct peer *p, const struct wire_head *h, void **to,
				   struct landing **l, struct err *e)
{
	if (p->node == B)
		frame_of_b(h);
	return late.real->node_body(p, h, to, l, e);
}

static enum shard_status late_frame(struct peer *p, const struct wire_head *h, const void *body,
				    struct err *e)
{
	const struct model *m = model_of(C);
	enum shard_status st;

	if (p->node == A && !late.over &&
	    ((h->op == OP_CORE + CORE_COMMIT && h->step == late.at) ||
	     (h->op == OP_CORE + CORE_BEGIN && h->step > late.at)))
		return SHARD_OK; /* It is repeated. */
	st = late.real->node_frame(p, h, body, e);
	if (p->node == B)
		frame_of_b(h);
	if (!late.released && p->node == B && h->op == OP_IMAGE_DATA && h->step == late.at &&
	    all_there(m)) {
		CHECK(m->attempt.voted && m->step < late.at);
		late.released = true;
		relay_release(&before[B]);
	}
	return st;
}

static const struct late_case {
	const char *name, *settings;
	uint64_t at; /* The first step that writes the image which the seal has made. */
	size_t pass; /* How much of the part comes before c votes. */
} late_cases[] = {
	{"a part after the vote", "", 1, 0},
	{"the rest of a part after the vote", "", 1, 1000},
	{"the rest of a part of the older of two images", "max_staleness=1", 2, 1000},
};

static void comes_late(void **state)
{
	const struct late_case *k = *state;
	struct trainers all;
	struct server *c;

	begin(&all, 1, k->settings, "");
	c = cluster.node[C].server;
	late = (struct late){
		.real = c->events, .events = *c->events, .at = k->at, .before = k->pass == 0};
	late.events.node_body = late_body;
	late.events.node_frame = late_frame;
	until("memory for RDMA", c_has_told);
	c->events = &late.events; /* Nothing of the model is on its way. */
	relay_stall(
		&before[B],
		&(struct relay_stall){.op = OP_IMAGE_DATA, .part = 1, .pass = k->pass, .more = 1});
	seal(&all);
	relay_stood(&before[B]);
	all_do(&all, join_one);
	while (step(&all) < k->at)
		;
	compare(C, k->at);
	assert_true(late.over);
	compare(A, k->at);
	end(&all);
}

/* --- a node that has not voted --- */

static bool c_is_in(void)
{
	struct core_now a, b;

	core_now(model_of(A)->core, &a);
	core_now(model_of(B)->core, &b);
	return view_is_member(a.members, C) && view_is_member(b.members, C);
}

static bool c_is_out(void)
{
	struct core_now a;

	core_now(model_of(A)->core, &a);
	return !view_is_member(a.members, C);
}

/* So is that of a. */
static bool c_is_whole(void)
{
	const struct model *c = model_of(C), *a = model_of(A);

	return c->step == a->step && c->img.lacking == 0 && !c->attempt.voted &&
	       a->img.lacking == 0 && !a->img.applying;
}

/* What RDMA may write there: the image and its codes. */
static size_t shown(const struct model *m, char *to)
{
	size_t bytes = m->layout->image_bytes;
	const struct codes *c = deltas_codes(m);

	if (to != NULL)
		memcpy(to, store_image(m->store, 0, 0), bytes);
	if (to != NULL && c != NULL)
		memcpy(to + bytes, deltas_at(m, 0), codes_span(c, 0, CHUNKS));
	return bytes + (c != NULL ? codes_span(c, 0, CHUNKS) : 0);
}

/* Node c has no chunk, and loses its link to the coordinator alone. Steps are made without it,
 * while b has a link to it. */
static void not_voted(void **state)
{
	const char *settings = *state;
	struct trainers all;
	char *was, *is;
	size_t bytes;
	uint64_t by;

	begin(&all, 2, settings, "capacity = 0");
	until("memory for RDMA", c_has_told);
	seal(&all);
	all_do(&all, join_one);
	while (step(&all) < 3)
		;
	until("the image at node c", c_is_whole);
	assert_true(linked_figure(&cluster.node[C], "b", "rdma_in_bytes") > 0);
	bytes = shown(model_of(C), NULL);
	was = malloc(bytes);
	is = malloc(bytes);
	CHECK(was != NULL && is != NULL);
	shown(model_of(C), was);
	relay_cut(&before[A], "c");
	until("the view without node c", c_is_out);
	/* Node b ends its link when it hears of that view. */
	inproc_wait_log(&cluster.node[B], "event=link_down peer=c why=\"node c is out", 1);
	linked_await(&cluster.node[B], "c", "transport", "rdma");
	until("memory for RDMA", c_has_told);
	while (step(&all) < 6)
		;
	shown(model_of(C), is);
	assert_int_equal(model_of(C)->step, 3);
	assert_memory_equal(was, is, bytes);
	relay_cut(&before[A], NULL);
	linked_by_rdma(&cluster);
	for (by = pace_by(WAIT_S); !c_is_in();) { /* At the end of a step. */
		assert_true(clock_ns() < by);
		step(&all);
	}
	step(&all);
	step(&all);
	until("the image at node c", c_is_whole);
	for (uint32_t i = 0; i < CHUNKS; i++)
		assert_memory_equal(store_image(model_of(C)->store, 0, i),
				    store_image(model_of(A)->store, 0, i), CHUNK * sizeof(float));
	free(was);
	free(is);
	end(&all);
}

int main(int argc, char **argv)
{
	struct CMUnitTest tests[NR(late_cases) + 2];
	size_t nr = 0;

	for (; nr < NR(late_cases); nr++)
		tests[nr] = (struct CMUnitTest){late_cases[nr].name, comes_late, NULL, NULL,
						(void *)(uintptr_t)&late_cases[nr]};
	tests[nr++] = (struct CMUnitTest){"a node that has not voted", not_voted, NULL, NULL,
					  (void *)(uintptr_t) ""};
	tests[nr++] = (struct CMUnitTest){"a node that has not voted, codes", not_voted, NULL, NULL,
					  (void *)(uintptr_t) "image_codec=int8"};
	CHECK(nr == NR(tests));
	if (argc > 1) /* Only the case of that name. */
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests_name("rdma_late", tests, NULL, NULL);
}
