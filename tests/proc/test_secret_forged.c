// SPDX-License-Identifier: Apache-2.0
/* Tests attempts to get into a cluster with a secret without knowing it: somebody on the way
 * changes what is sent, something else answers at a daemon's address, bytes are recorded, frames
 * come out of order, or nothing comes. The side that can see it refuses each of them, and a peer
 * that knows the secret is accepted. */
#include "base/clock.h"
#include "lib/inproc.h"
#include "lib/pace.h"
#include "lib/proxy.h"
#include "lib/rawpeer.h"
#include "lib/secrets.h"
#include "net/prove.h"
#include "node/state.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

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

static void must_start(struct inproc_node *n)
{
	if (inproc_node_start(n) != SHARD_OK)
		fail_msg("%s", n->why.text);
}

/* --- a proxy that changes bytes --- */

static const struct proxy_fault forgeries[] = {
	{PROXY_FORGE, false, 0, 0, "\x18\x03", "\x18\x01"}, /* "I have no secret". */
	{PROXY_FORGE, true, 0, 0, "\x18\x03", "\x18\x01"},
	{PROXY_FORGE, false, 0, 0, SHARD_RELEASE, "9.9.9"},
	{PROXY_FORGE, true, 0, 0, SHARD_RELEASE, "9.9.9"},
	/* It is changed in the complete Hello, beside the proof. */
	{PROXY_FORGE, false, 1, 0, SHARD_RELEASE, "9.9.9"},
	{PROXY_FORGE, true, 1, 0, SHARD_RELEASE, "9.9.9"},
	{PROXY_FORGE, false, 1, 0, "\x0a\x20", "\x0a\x1f"}, /* A proof that is cut short. */
};

static void test_forged_trainer(void **state)
{
	static const char *const part[] = {"asks over tcp for the cluster secret",
					   "asks for no secret",
					   "did not prove",
					   "did not prove",
					   "did not prove",
					   "did not prove",
					   "cannot be parsed"};
	struct inproc_conf conf = {.nodes = 1, .cluster = f.line, .net = "transport = tcp"};
	struct inproc c;
	struct proxy p = {0};
	char address[64];

	(void)state;
	secrets_put(f.used, SECRETS_RIGHT);
	inproc_start(&c, &conf);
	proxy_start(&p, "127.0.0.2", c.node[0].port, c.node[0].port, forgeries, 6);
	snprintf(address, sizeof(address), "tcp://127.0.0.2:%u", c.node[0].port);
	for (uint32_t i = 0; i < 6; i++)
		secrets_meet(SHARD_DENIED, address, f.right, part[i]);
	proxy_wait(&p, 20);
	secrets_meet(SHARD_OK, address, f.right, "");
	assert_int_equal(p.stuck, 0);
	/* The client refused the other attempts. */
	assert_int_equal(inproc_logged(&c.node[0], "event=auth_refused"), 4);
	proxy_stop(&p);
	inproc_stop(&c);
}

static void test_forged_link(void **state)
{
	/* Without RDMA a node has the same features as a trainer. The forgeries look for those. */
	struct inproc_conf conf = {.nodes = 2,
				   .cluster = f.line,
				   .host_in_nodes = {"127.0.0.2"},
				   .net = "transport = tcp"};
	struct proxy p = {0};
	struct inproc c;

	(void)state;
	secrets_put(f.used, SECRETS_RIGHT);
	inproc_prepare(&c, &conf);
	proxy_start(&p, "127.0.0.2", c.node[0].port, c.node[0].port, forgeries, 7);
	must_start(&c.node[0]);
	must_start(&c.node[1]);
	inproc_wait_log(&c.node[1], "event=link_up", 1);
	/* None of the seven connections became a link. */
	assert_int_equal(atomic_load(&p.next), 7);
	inproc_wait_log(&c.node[0], "did not prove that it knows the secret of node a", 2);
	inproc_wait_log(&c.node[1], "event=auth_refused", 2);
	assert_int_equal(p.stuck, 0);
	proxy_stop(&p);
	inproc_stop(&c);
}

/* Plays a daemon at this address. It says the right things, and sends back the proof that it got,
 * or another one. */
static void *mirror(void *arg)
{
	int listener = *(int *)arg;
	struct auth *wrong;
	struct raw r = {.fd = -1};
	struct err e;

	assert_int_equal(auth_open(&wrong, f.wrong, &e), SHARD_OK);
	for (int i = 0; i < 3; i++) {
		Shard__Hello whole = SHARD__HELLO__INIT, brief, *theirs;
		struct wire_head h = {.op = OP_HELLO, .flags = WIRE_REPLY};
		Shard__Auth mine;
		struct prove p;

		memset(&r, 0, sizeof(r));
		r.fd = accept(listener, NULL, NULL);
		if (!raw_recv(&r))
			break;
		prove_begin(&p, AUTH_LISTENER, AUTH_FOR_CLIENT);
		whole.wire_min = whole.wire_max = WIRE_VERSION;
		whole.features = FEATURE_BODY_SUM;
		whole.role = ROLE_NODE;
		theirs = shard__hello__unpack(NULL, r.head.body_bytes, r.body);
		(void)prove_heard(&p, wrong, theirs, r.body, r.head.body_bytes, &e);
		shard__hello__free_unpacked(theirs, NULL);
		(void)prove_brief(&p, wrong, &whole, &brief, &e);
		h.attempt = r.head.attempt;
		raw_send(&r, &h, &brief.base);
		if (raw_recv(&r)) {
			h.op = OP_AUTH;
			h.attempt = r.head.attempt;
			(void)prove_own(&p, wrong, &whole, &mine, &e);
			if (i == 0)
				raw_head(&r, &h, r.body, r.head.body_bytes);
			else if (i == 1)
				raw_send(&r, &h, &mine.base);
			else
				raw_head(&r, &h, NULL, 0);
			(void)raw_recv(&r);
		}
		prove_end(&p);
		raw_close(&r);
	}
	auth_close(&wrong);
	return NULL;
}

static void test_impostor(void **state)
{
	struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t bytes = sizeof(sa);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	pthread_t thread;
	char address[64];

	(void)state;
	assert_int_equal(bind(fd, (struct sockaddr *)&sa, bytes), 0);
	assert_int_equal(listen(fd, 4), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&sa, &bytes), 0);
	snprintf(address, sizeof(address), "tcp://127.0.0.1:%u", ntohs(sa.sin_port));
	assert_int_equal(pthread_create(&thread, NULL, mirror, &fd), 0);
	for (int i = 0; i < 3; i++)
		secrets_meet(
			SHARD_DENIED, address, f.right,
			"did not prove that it knows the secret: something else answers there");
	pthread_join(thread, NULL);
	close(fd);
}

/* --- peers that speak the protocol --- */

/* A raw peer that begins like one that knows the secret. */
struct knock {
	struct raw r;
	struct prove p;
	Shard__Hello whole;
	unsigned char hello[256];
	uint32_t hello_bytes;
};

static void knock(struct knock *k, const char *address, const struct auth *a)
{
	struct wire_head h = {.op = OP_HELLO};
	Shard__Hello brief, *theirs;
	struct err e;

	raw_connect(&k->r, address);
	prove_begin(&k->p, AUTH_DIALLER, AUTH_FOR_CLIENT);
	shard__hello__init(&k->whole);
	k->whole.wire_min = k->whole.wire_max = WIRE_VERSION;
	k->whole.features = FEATURE_BODY_SUM;
	k->whole.role = ROLE_CTL;
	assert_int_equal(prove_brief(&k->p, a, &k->whole, &brief, &e), SHARD_OK);
	k->hello_bytes = (uint32_t)shard__hello__pack(&brief, k->hello);
	raw_head(&k->r, &h, k->hello, k->hello_bytes);
	assert_true(raw_recv(&k->r));
	assert_int_equal(k->r.head.op, OP_HELLO);
	theirs = shard__hello__unpack(NULL, k->r.head.body_bytes, k->r.body);
	assert_non_null(theirs);
	/* It says nothing of the cluster before the proof. */
	assert_string_equal(theirs->run_id, "");
	assert_int_equal(theirs->n_config, 0);
	assert_int_equal(prove_heard(&k->p, a, theirs, k->r.body, k->r.head.body_bytes, &e),
			 SHARD_OK);
	shard__hello__free_unpacked(theirs, NULL);
}

static void put_out(struct knock *k, const char *part)
{
	char *why = raw_error(&k->r);

	if (why == NULL || strstr(why, part) == NULL)
		fail_msg("\"%s\" is not in \"%s\"", part, why != NULL ? why : "(nothing)");
	raw_expect_closed(&k->r);
	raw_close(&k->r);
	prove_end(&k->p);
}

static void test_hostile(void **state)
{
	struct inproc_conf conf = {.nodes = 1, .cluster = f.line};
	struct wire_head auth = {.op = OP_AUTH}, hello = {.op = OP_HELLO},
			 reply = {.op = OP_AUTH, .flags = WIRE_REPLY};
	unsigned char body[128] = {0}, recorded[256];
	uint32_t recorded_bytes;
	struct auth *right;
	struct inproc c;
	struct knock k;
	Shard__Auth mine;
	struct err e;
	const char *at;

	(void)state;
	secrets_put(f.used, SECRETS_RIGHT);
	assert_int_equal(auth_open(&right, f.right, &e), SHARD_OK);
	inproc_start(&c, &conf);
	at = c.node[0].tcp_address;
	for (uint16_t op = 0; op < OP_NR; op++) { /* Sends anything but a proof after HELLO. */
		struct wire_head h = {.op = op};

		if (wire_op(op) == NULL || op == OP_AUTH)
			continue;
		knock(&k, at, right);
		raw_head(&k.r, &h, body, wire_op(op)->body_min);
		put_out(&k, "before auth");
	}
	raw_connect(&k.r, at); /* Sends a proof before HELLO. */
	raw_head(&k.r, &auth, body, 34);
	put_out(&k, "frame auth before hello");
	knock(&k, at, right);
	raw_head(&k.r, &reply, body, 34);
	put_out(&k, "frame auth before auth");
	knock(&k, at, right); /* Sends a proof made with no key, and an empty one. */
	raw_head(&k.r, &auth,
		 "\x0a\x20"
		 "0123456789abcdef0123456789abcdef",
		 34);
	put_out(&k, "did not prove that it knows the secret of node a");
	knock(&k, at, right);
	raw_head(&k.r, &auth,
		 "\x12\x20"
		 "0123456789abcdef0123456789abcdef",
		 34);
	put_out(&k, "did not prove that it knows the secret of node a");

	knock(&k, at, right); /* Sends a good proof and records it. */
	assert_int_equal(prove_own(&k.p, right, &k.whole, &mine, &e), SHARD_OK);
	recorded_bytes = (uint32_t)shard__auth__pack(&mine, recorded);
	assert_true(recorded_bytes <= sizeof(recorded));
	raw_head(&k.r, &auth, recorded, recorded_bytes);
	assert_true(raw_recv(&k.r));
	assert_int_equal(k.r.head.op, OP_AUTH);
	free(raw_status(&k.r));
	/* A second proof on the same connection is refused. */
	raw_head(&k.r, &auth, recorded, recorded_bytes);
	put_out(&k, "auth");
	raw_connect(&k.r, at); /* Sends the recorded bytes on a new connection. */
	raw_head(&k.r, &hello, k.hello, k.hello_bytes);
	assert_true(raw_recv(&k.r));
	raw_head(&k.r, &auth, recorded, recorded_bytes);
	put_out(&k, "did not prove that it knows the secret of node a");
	assert_int_equal(inproc_logged(&c.node[0], "event=auth_refused"), 3);
	/* It is counted before it is logged. */
	assert_int_equal(c.node[0].server->secret.refused, 3);
	secrets_meet(SHARD_OK, at, f.right, "");
	auth_close(&right);
	inproc_stop(&c);
}

static void test_deadline(void **state)
{
	struct inproc_conf conf = {.nodes = 1, .cluster = f.line};
	struct auth *right;
	struct inproc c;
	struct knock k;
	struct err e;
	uint64_t began;

	(void)state;
	secrets_put(f.used, SECRETS_RIGHT);
	assert_int_equal(auth_open(&right, f.right, &e), SHARD_OK);
	inproc_start(&c, &conf);
	began = clock_ns();
	knock(&k, c.node[0].tcp_address, right);
	raw_expect_closed(&k.r);
	raw_close(&k.r);
	prove_end(&k.p);
	assert_true(clock_ns() - began >= SERVER_HELLO_NS &&
		    clock_ns() - began < SERVER_HELLO_NS + pace_ns(4 * NS_PER_SEC));
	inproc_wait_log(&c.node[0], "no proof of the secret within 5 s", 1);
	auth_close(&right);
	inproc_stop(&c);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_forged_trainer), cmocka_unit_test(test_forged_link),
		cmocka_unit_test(test_impostor),       cmocka_unit_test(test_hostile),
		cmocka_unit_test(test_deadline),
	};

	return cmocka_run_group_tests(tests, files, no_files);
}
