// SPDX-License-Identifier: Apache-2.0
/* Tests who may be a node. A process that says "role = node" is one only over TCP, and only if it
 * proves what nodes prove. Otherwise it is refused with a sentence, the existing link does not fall
 * because of it, and honest trainers train on. */
#include "lib/crew.h"
#include "lib/evil.h"
#include "lib/inproc.h"
#include "lib/linked.h"
#include "base/clock.h"
#include "lib/pace.h"
#include "lib/rawpeer.h"
#include "lib/secrets.h"
#include "net/prove.h"

#include "shard.pb-c.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

/* Fills in all that this node says of itself. An impostor learns it from STATUS and from answers to
 * HELLO. */
static void hello_of(struct inproc_node *n, struct inproc_node *to, Shard__Hello *h)
{
	static uint8_t uuid[16] = "who says so";

	shard__hello__init(h);
	h->uuid.data = uuid;
	h->uuid.len = sizeof(uuid);
	h->wire_min = h->wire_max = WIRE_VERSION;
	h->features = FEATURE_BODY_SUM;
	h->role = ROLE_NODE;
	h->run_id = (char *)(uintptr_t) "test";
	h->node = n->name;
	h->release = (char *)(uintptr_t) "raw";
	h->incarnation = 1;
	h->config_hash = config_hash(&to->conf);
}

/* Connects as another end of a link, which says what the node would say. SHARD_OK: it was accepted,
 * and r is open. */
static enum shard_status knock(struct raw *r, const char *address, struct inproc_node *as,
			       struct inproc_node *to, char text[1024])
{
	struct wire_head h = {.op = OP_HELLO, .attempt = 1};
	enum shard_status st = SHARD_OK;
	Shard__Hello hello;

	hello_of(as, to, &hello);
	raw_connect(r, address);
	raw_send(r, &h, &hello.base);
	text[0] = 0;
	if (!raw_recv(r)) {
		st = SHARD_CLOSED;
	} else if (r->head.op == OP_ERROR) {
		Shard__Error *e = shard__error__unpack(NULL, r->head.body_bytes, r->body);

		assert_non_null(e);
		st = (enum shard_status)e->status;
		snprintf(text, 1024, "%s", e->text);
		shard__error__free_unpacked(e, NULL);
	}
	if (st != SHARD_OK)
		raw_close(r);
	return st;
}

static void test_unix(void **state)
{
	struct inproc c;
	struct crew crew;
	char why[1024];
	struct raw r;

	(void)state;
	inproc_start(&c, NULL);
	crew_init(&crew, "linked");
	crew_add(&crew, c.node[0].unix_address, 0);
	crew_add(&crew, c.node[1].unix_address, 1);
	crew_start(&crew, 2);
	crew_finish(&crew);
	for (int i = 0; i < 2; i++) {
		struct inproc_node *to = &c.node[i], *as = &c.node[1 - i];

		assert_int_equal(knock(&r, to->unix_address, as, to, why), SHARD_DENIED);
		assert_non_null(strstr(why, "nodes come over tcp"));
		assert_int_equal(inproc_logged(to, "event=auth_refused"), 1);
	}
	crew_start(&crew, 4);
	crew_finish(&crew);
	crew_check(&crew, c.node[0].unix_address, 4);
	for (int i = 0; i < 2; i++)
		assert_int_equal(inproc_logged(&c.node[i], "event=link_down"), 0);
	inproc_stop(&c);
}

/* --- without a secret: a process at an address of [nodes] says that it is the other node --- */

/* It keeps trying for longer than a link that is in doubt may be silent. */
static void test_standing_link(void **state)
{
	struct inproc_conf conf = {/* A link in doubt must be heard within 1.5 s. */
				   .nodes = 2,
				   .cluster = "heartbeat_timeout = 3s"};
	uint64_t until;
	struct inproc c;
	struct crew crew;
	char why[1024];
	struct raw r;
	int knocks = 0;

	(void)state;
	inproc_start(&c, &conf);
	crew_init(&crew, "linked");
	crew_add(&crew, c.node[0].unix_address, 0);
	crew_add(&crew, c.node[1].unix_address, 1);
	crew_start(&crew, 2);
	crew_finish(&crew);
	for (until = clock_ns() + 5 * NS_PER_SEC / 2; clock_ns() < until; knocks++) {
		assert_int_equal(knock(&r, c.node[0].tcp_address, &c.node[1], &c.node[0], why),
				 SHARD_BUSY);
		assert_non_null(strstr(why, "has a link that stands"));
		usleep(20000);
	}
	assert_true(knocks > 4);
	crew_start(&crew, 4);
	crew_finish(&crew);
	crew_check(&crew, c.node[0].unix_address, 4);
	for (int i = 0; i < 2; i++)
		assert_int_equal(inproc_logged(&c.node[i], "event=link_down"), 0);
	inproc_stop(&c);
}

/* The other end of a link is gone without a word. The link is given up for a new one long before
 * heartbeat_timeout ends. */
static void test_dead_link(void **state)
{
	struct inproc_conf conf = {.nodes = 2, .cluster = "heartbeat_timeout = 60s"};
	uint64_t began, until;
	enum shard_status st;
	struct inproc c;
	char why[1024];
	struct raw dead, next;

	(void)state;
	inproc_prepare(&c, &conf);
	assert_int_equal(inproc_node_start(&c.node[0]), SHARD_OK);
	assert_int_equal(knock(&dead, c.node[0].tcp_address, &c.node[1], &c.node[0], why),
			 SHARD_OK);
	inproc_wait_log(&c.node[0], "event=link_up", 1);
	began = clock_ns();
	until = began + pace_ns(30 * NS_PER_SEC);
	while ((st = knock(&next, c.node[0].tcp_address, &c.node[1], &c.node[0], why)) ==
		       SHARD_BUSY &&
	       clock_ns() < until)
		usleep(20000);
	assert_int_equal(st, SHARD_OK);
	assert_true(clock_ns() - began > 2 * NS_PER_SEC); /* The old link had time to answer. */
	inproc_wait_log(&c.node[0], "event=link_up", 2);
	assert_int_equal(inproc_logged(&c.node[0], "nothing was heard on its link"), 1);
	raw_close(&dead);
	raw_close(&next);
	inproc_stop(&c);
}

/* A link that never gets all its connections is given up, and does not keep the real node out. */
static void test_half_link(void **state)
{
	struct inproc_conf conf = {.nodes = 2, .net = "connections = 2"};
	struct inproc c;
	char why[1024];
	struct raw half;

	(void)state;
	inproc_prepare(&c, &conf);
	assert_int_equal(inproc_node_start(&c.node[0]), SHARD_OK);
	c.node[1].conf = c.node[0].conf;
	assert_int_equal(knock(&half, c.node[0].tcp_address, &c.node[1], &c.node[0], why),
			 SHARD_OK);
	inproc_wait_log(&c.node[0], "not all 2 connections of the link came within 5 s", 1);
	assert_int_equal(inproc_node_start(&c.node[1]), SHARD_OK);
	inproc_wait_log(&c.node[0], "event=link_up", 1);
	raw_close(&half);
	inproc_stop(&c);
}

/* 127.0.0.1 is not an address of these nodes. */
static void test_elsewhere(void **state)
{
	struct inproc_conf conf = {.nodes = 2, .host_in_nodes = {"192.0.2.1", "192.0.2.2"}};
	struct inproc c;
	char why[1024];
	struct raw r;

	(void)state;
	inproc_prepare(&c, &conf);
	assert_int_equal(inproc_node_start(&c.node[0]), SHARD_OK);
	assert_int_equal(knock(&r, c.node[0].tcp_address, &c.node[1], &c.node[0], why),
			 SHARD_DENIED);
	assert_non_null(strstr(why, "none of the addresses in [nodes]"));
	inproc_stop(&c);
}

/* --- what a node says of its users --- */

/* The test plays the other node. It accepts a model, and asks for what its root and this node's
 * root may not do there. */
static void test_forged_user(void **state)
{
	static const struct {
		uint32_t uid;
		const char *node;
		bool root, force;
	} forged[] = {{0, "a", true, false},
		      {0, "b", true, true},
		      {0, "", false, true},
		      {4001, "a", true, true}};
	struct wire_head h = {.op = OP_DEFINE, .attempt = 1},
			 reply = {.op = OP_MODEL, .flags = WIRE_REPLY};
	Shard__Define d;
	Shard__Spec spec;
	Shard__Tensor t, *list[1];
	uint64_t shape;
	struct inproc_conf conf = {.nodes = 2, .cluster = "heartbeat_timeout = 60s"};
	Shard__Memory held = SHARD__MEMORY__INIT;
	struct raw owner, node;
	struct inproc c;
	char why[1024];

	(void)state;
	inproc_prepare(&c, &conf);
	assert_int_equal(inproc_node_start(&c.node[0]), SHARD_OK);
	assert_int_equal(knock(&node, c.node[0].tcp_address, &c.node[1], &c.node[0], why),
			 SHARD_OK);
	inproc_wait_log(&c.node[0], "event=link_up", 1);
	raw_connect(&owner, c.node[0].unix_address);
	raw_hello(&owner, ROLE_TRAINER);
	evil_spec(&d, &spec, &t, list, &shape);
	spec.settings = (char *)(uintptr_t) "optimizer=sgd lr=1 chunk_elems=1024 mode=0600";
	raw_send(&owner, &h, &d.base);
	assert_true(raw_expect(&node, OP_MODEL));
	reply.attempt = node.head.attempt;
	reply.model = node.head.model;
	held.incarnation = 1;
	raw_send(&node, &reply, &held.base);
	assert_true(raw_expect(&owner, OP_DEFINE));
	for (size_t i = 0; i < sizeof(forged) / sizeof(forged[0]); i++) {
		Shard__Manage body = SHARD__MANAGE__INIT;
		Shard__Cred who = SHARD__CRED__INIT;

		who.known = true;
		who.uid = forged[i].uid;
		who.node = (char *)(uintptr_t)forged[i].node;
		who.root = forged[i].root;
		body.name = (char *)(uintptr_t) "evil";
		body.action = 1; /* Drop. */
		body.force = forged[i].force;
		body.cred = &who;
		h = (struct wire_head){.op = OP_MANAGE, .attempt = (uint32_t)i + 10};
		raw_send(&node, &h, &body.base);
		snprintf(why, sizeof(why), "%s", raw_error(&node));
		if (node.head.attempt != i + 10 || strstr(why, "asks to change it") == NULL)
			fail_msg("case %zu: \"%s\"", i, why);
	}
	raw_close(&owner);
	raw_close(&node);
	inproc_stop(&c);
}

/* --- with secrets --- */

static struct secrets f;

static int files(void **state)
{
	(void)state;
	return secrets_make(&f);
}

static int no_files(void **state)
{
	(void)state;
	return secrets_remove(&f);
}

/* Sends HELLO and AUTH with this key for that role, and then claims the role `whole`. */
static enum shard_status prove(const char *address, const char *file, enum auth_for what,
			       uint32_t role, uint32_t whole, struct inproc_node *as,
			       struct inproc_node *to, char text[1024])
{
	struct wire_head h = {.op = OP_HELLO, .attempt = 1};
	enum shard_status st = SHARD_OK;
	Shard__Hello hello, brief, *theirs;
	Shard__Auth mine;
	struct auth *a;
	struct prove p;
	struct raw r;
	struct err e;

	assert_int_equal(auth_open(&a, file, &e), SHARD_OK);
	raw_connect(&r, address);
	hello_of(as, to, &hello);
	hello.role = role;
	prove_begin(&p, AUTH_DIALLER, what);
	assert_int_equal(prove_brief(&p, a, &hello, &brief, &e), SHARD_OK);
	raw_send(&r, &h, &brief.base);
	text[0] = 0;
	if (!raw_recv(&r))
		st = SHARD_CLOSED;
	if (st == SHARD_OK && r.head.op == OP_HELLO) {
		theirs = shard__hello__unpack(NULL, r.head.body_bytes, r.body);
		assert_int_equal(prove_heard(&p, a, theirs, r.body, r.head.body_bytes, &e),
				 SHARD_OK);
		shard__hello__free_unpacked(theirs, NULL);
		hello.role = whole;
		assert_int_equal(prove_own(&p, a, &hello, &mine, &e), SHARD_OK);
		h.op = OP_AUTH;
		raw_send(&r, &h, &mine.base);
		st = raw_recv(&r) ? SHARD_OK : SHARD_CLOSED;
	}
	if (st == SHARD_OK && r.head.op == OP_ERROR) {
		Shard__Error *said = shard__error__unpack(NULL, r.head.body_bytes, r.body);

		st = (enum shard_status)said->status;
		snprintf(text, 1024, "%s", said->text);
		shard__error__free_unpacked(said, NULL);
	}
	prove_end(&p);
	raw_close(&r);
	auth_close(&a);
	return st;
}

/* With the trainers' secret no process gets the role of a node, whatever it says. With the nodes'
 * secret it gets every role. */
static void test_secrets(void **state)
{
	static const struct {
		bool nodes; /* Uses the nodes' secret. */
		enum auth_for what;
		uint32_t role, whole;
		enum shard_status want;
		const char *why;
	} cases[] = {
		{false, AUTH_FOR_CLIENT, ROLE_TRAINER, ROLE_TRAINER, SHARD_OK, ""},
		{false, AUTH_FOR_CLIENT, ROLE_CTL, ROLE_CTL, SHARD_OK, ""},
		{true, AUTH_FOR_CLIENT, ROLE_TRAINER, ROLE_TRAINER, SHARD_OK, ""},
		{true, AUTH_FOR_CLIENT, ROLE_CTL, ROLE_CTL, SHARD_OK, ""},
		{true, AUTH_FOR_NODE, ROLE_NODE, ROLE_NODE, SHARD_BUSY, "has a link that stands"},
		{false, AUTH_FOR_NODE, ROLE_NODE, ROLE_NODE, SHARD_DENIED, "did not prove"},
		{false, AUTH_FOR_CLIENT, ROLE_NODE, ROLE_NODE, SHARD_DENIED, "did not prove"},
		{false, AUTH_FOR_CLIENT, ROLE_TRAINER, ROLE_NODE, SHARD_DENIED,
		 "proved to have role 1, and then says that it has role 2"},
		{true, AUTH_FOR_CLIENT, ROLE_TRAINER, ROLE_NODE, SHARD_DENIED,
		 "proved to have role 1"},
		{true, AUTH_FOR_CLIENT, ROLE_NODE, ROLE_NODE, SHARD_DENIED, "did not prove"},
		{true, AUTH_FOR_NODE, ROLE_TRAINER, ROLE_TRAINER, SHARD_DENIED, "did not prove"},
	};
	struct inproc_conf conf = {.nodes = 2, .cluster = f.line};
	struct inproc c;
	char why[1024];
	struct raw r;

	(void)state;
	inproc_start(&c, &conf);
	inproc_wait_log(&c.node[0], "event=link_up", 1);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		enum shard_status st = prove(
			c.node[0].tcp_address, cases[i].nodes ? f.node : f.used, cases[i].what,
			cases[i].role, cases[i].whole, &c.node[1], &c.node[0], why);

		if (st != cases[i].want || strstr(why, cases[i].why) == NULL)
			fail_msg("case %zu: status %d, \"%s\"", i, (int)st, why);
	}
	/* Without any secret. */
	assert_int_equal(knock(&r, c.node[0].tcp_address, &c.node[1], &c.node[0], why),
			 SHARD_DENIED);
	assert_non_null(strstr(why, "asks over tcp for the nodes' secret"));
	for (int i = 0; i < 2; i++)
		assert_int_equal(inproc_logged(&c.node[i], "event=link_down"), 0);
	inproc_stop(&c);
}

/* Nodes with a node secret accept no trainer over TCP unless the configuration says so. */
static void test_nodes_only(void **state)
{
	char line[96];
	struct inproc_conf conf = {.nodes = 2, .cluster = line},
			   open_conf = {.nodes = 2,
					.cluster = line,
					.daemon = "allow_unauthenticated = yes"};
	struct inproc c;

	(void)state;
	snprintf(line, sizeof(line), "node_secret = %s", f.node);
	inproc_start(&c, &conf);
	inproc_wait_log(&c.node[0], "event=link_up", 1);
	secrets_meet(SHARD_DENIED, c.node[0].tcp_address, NULL,
		     "lets nobody in over tcp who proves nothing: set [cluster] secret");
	secrets_meet(SHARD_DENIED, c.node[0].tcp_address, f.right, "did not prove");
	secrets_meet(SHARD_OK, c.node[0].tcp_address, f.node, "");
	secrets_meet(SHARD_OK, c.node[0].unix_address, NULL, "");
	inproc_stop(&c);
	inproc_start(&c, &open_conf);
	inproc_wait_log(&c.node[0], "event=link_up", 1);
	secrets_meet(SHARD_OK, c.node[0].tcp_address, NULL, "");
	inproc_stop(&c);
}

/* With one key for both, every trainer would be a node. */
static void test_same_key(void **state)
{
	struct inproc_conf conf = {.nodes = 2, .cluster = f.line};
	struct inproc c;

	(void)state;
	secrets_put(f.used, SECRETS_RIGHT SECRETS_NODES);
	inproc_prepare(&c, &conf);
	assert_int_equal(inproc_node_start(&c.node[0]), SHARD_BAD_ARG);
	assert_non_null(strstr(c.node[0].why.text, "have a key in common"));
	inproc_stop(&c);
	secrets_put(f.used, SECRETS_RIGHT);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_unix),      cmocka_unit_test(test_standing_link),
		cmocka_unit_test(test_dead_link), cmocka_unit_test(test_half_link),
		cmocka_unit_test(test_elsewhere), cmocka_unit_test(test_forged_user),
		cmocka_unit_test(test_secrets),   cmocka_unit_test(test_nodes_only),
		cmocka_unit_test(test_same_key),
	};

	return cmocka_run_group_tests(tests, files, no_files);
}
