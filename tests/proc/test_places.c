// SPDX-License-Identifier: Apache-2.0
/* Tests crowds at a daemon's sockets: of one user, of one address, silent, greeted and idle, or
 * closing at once. Whatever they do, trainers of other users, tools and nodes find a place, and
 * each connection that is refused hears why. */
#include "base/clock.h"
#include "lib/crew.h"
#include "lib/inproc.h"
#include "lib/proc.h"
#include "lib/rawpeer.h"
#include "lib/tool.h"
#include "shard.h"
#include "shard.pb-c.h"
#include "node/state.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum {
	MAX = 32,
	SHARE = 8,
	CROWD = 200,
	FEW = 100, /* Six of them fit into 1,024 descriptors, a usual limit. */
};

static const char *const conf_lines = "connections_max = 32";

/* Connects from an address on loopback of its own. */
static void connect_from(struct raw *r, const char *source, uint16_t port)
{
	struct sockaddr_in from = {.sin_family = AF_INET},
			   to = {.sin_family = AF_INET, .sin_port = htons(port)};

	memset(r, 0, sizeof(*r));
	r->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(inet_pton(AF_INET, source, &from.sin_addr), 1);
	assert_int_equal(inet_pton(AF_INET, "127.0.0.1", &to.sin_addr), 1);
	assert_int_equal(bind(r->fd, (struct sockaddr *)&from, sizeof(from)), 0);
	assert_int_equal(connect(r->fd, (struct sockaddr *)&to, sizeof(to)), 0);
}

/* Sends HELLO as a tool, or as a trainer that does nothing more. False: it was refused, and `why`
 * has the reason. */
static bool greet(struct raw *r, enum wire_role role, char why[256])
{
	struct wire_head h = {.op = OP_HELLO, .attempt = 1};
	Shard__Hello hello = SHARD__HELLO__INIT;
	Shard__Error *e;

	hello.wire_min = hello.wire_max = WIRE_VERSION;
	hello.features = FEATURE_BODY_SUM;
	hello.role = role;
	hello.release = (char *)(uintptr_t) "raw";
	raw_send(r, &h, &hello.base);
	why[0] = 0;
	if (!raw_recv(r))
		return false;
	if (r->head.op != OP_ERROR)
		return true;
	e = shard__error__unpack(NULL, r->head.body_bytes, r->body);
	snprintf(why, 256, "%s", e->status == SHARD_BUSY ? e->text : "not BUSY");
	shard__error__free_unpacked(e, NULL);
	return false;
}

/* Makes connections from one address that say HELLO and then idle. Returns how many were accepted,
 * which is the share of an address. */
static uint32_t idle_crowd(struct raw *crowd, uint32_t nr, const char *source, uint16_t port)
{
	uint32_t in = 0;
	char why[256];

	for (uint32_t i = 0; i < nr; i++) {
		connect_from(&crowd[i], source, port);
		if (greet(&crowd[i], i % 2 ? ROLE_TRAINER : ROLE_CTL, why))
			in++;
		else if (strstr(why, "connections of this address are open, which is its share") ==
				 NULL &&
			 strstr(why, "connections are open: close some") == NULL)
			fail_msg("refused with \"%s\"", why);
	}
	return in;
}

static void leave(struct raw *crowd, uint32_t nr)
{
	for (uint32_t i = 0; i < nr; i++)
		raw_close(&crowd[i]);
}

static void test_idle_address(void **state)
{
	struct inproc_conf conf = {
		.nodes = 2, .daemon = conf_lines, .cluster = "heartbeat_timeout = 60s"};
	static struct raw crowd[CROWD];
	struct inproc c;
	struct crew crew;

	(void)state;
	inproc_prepare(&c, &conf);
	assert_int_equal(inproc_node_start(&c.node[0]), SHARD_OK);
	assert_int_equal(idle_crowd(crowd, CROWD, "127.0.0.9", c.node[0].port), SHARE);
	assert_int_equal(inproc_node_start(&c.node[1]), SHARD_OK); /* A node. */
	inproc_wait_log(&c.node[0], "event=link_up", 1);
	crew_init(&crew, "honest");
	crew_add(&crew, c.node[0].unix_address, 0);
	crew_add(&crew, c.node[0].tcp_address, 0);
	crew_start(&crew, 3);
	crew_finish(&crew);
	crew_check(&crew, c.node[0].tcp_address, 3);
	json_decref(inproc_status(&c.node[0])); /* A tool. */
	leave(crowd, CROWD);
	inproc_stop(&c);
}

/* Many addresses together. The reserved places are for tools, root and nodes. */
static void test_idle_addresses(void **state)
{
	struct inproc_conf conf = {
		.nodes = 2, .daemon = conf_lines, .cluster = "heartbeat_timeout = 60s"};
	static struct raw crowd[6][FEW];
	uint32_t in = 0;
	struct inproc c;

	(void)state;
	inproc_prepare(&c, &conf);
	assert_int_equal(inproc_node_start(&c.node[0]), SHARD_OK);
	for (int i = 0; i < 6; i++) {
		char source[16];

		snprintf(source, sizeof(source), "127.0.0.%d", 20 + i);
		in += idle_crowd(crowd[i], FEW, source, c.node[0].port);
	}
	assert_true(in >= MAX && in <= MAX + 2 * 2 + 8);
	assert_int_equal(inproc_node_start(&c.node[1]), SHARD_OK);
	inproc_wait_log(&c.node[0], "event=link_up", 1);
	for (int i = 0; i < 6; i++)
		leave(crowd[i], FEW);
	inproc_stop(&c);
}

/* Connections that have used no model for a while give up their places. */
static void test_idle_long(void **state)
{
	struct inproc_conf conf = {
		.nodes = 1, .daemon = conf_lines, .cluster = "heartbeat_timeout = 60s"};
	static struct raw crowd[4][FEW];
	struct raw late;
	struct inproc c;
	char why[256];

	(void)state;
	inproc_start(&c, &conf);
	for (int i = 0; i < 4; i++) {
		char source[16];

		snprintf(source, sizeof(source), "127.0.0.%d", 30 + i);
		assert_int_equal(idle_crowd(crowd[i], FEW, source, c.node[0].port), SHARE);
	}
	connect_from(&late, "127.0.0.50", c.node[0].port);
	assert_false(greet(&late, ROLE_TRAINER, why));
	assert_non_null(strstr(
		why,
		"32 connections are open: close some, or raise [daemon] connections_max (32)"));
	raw_close(&late);
	/* It, and those of each crowd beyond its share. */
	assert_int_equal(c.node[0].server->conns.refused, 1 + 4 * (FEW - SHARE));
	assert_int_equal(inproc_count(&c.node[0], "refused_frames"), 0);
	/* They have been idle for long enough now. */
	__atomic_store_n(&c.node[0].server->conns.idle_ns, 0, __ATOMIC_RELAXED);
	for (int i = 0; i < 3; i++) {
		connect_from(&late, "127.0.0.50", c.node[0].port);
		assert_true(greet(&late, ROLE_TRAINER, why));
		raw_close(&late);
	}
	inproc_wait_log(&c.node[0], "others need its place, and it uses no model", 1);
	for (int i = 0; i < 4; i++)
		leave(crowd[i], FEW);
	inproc_stop(&c);
}

/* --- several users --- */

struct users {
	const char *address;
	uint32_t let_in; /* How many connections the crowd must get. */
};

static int crowd_of_user(void *arg)
{
	static struct raw crowd[CROWD];
	struct users *u = arg;
	uint32_t in = 0;
	char why[256];

	if (setgid(12345) != 0 || setuid(12345) != 0)
		return 97;
	for (int i = 0; i < CROWD; i++) {
		if (!raw_try_connect(&crowd[i], u->address))
			return 2;
		in += greet(&crowd[i], i % 2 ? ROLE_TRAINER : ROLE_CTL, why);
	}
	if (in != u->let_in ||
	    strstr(why, "connections of this user are open, which is its share") == NULL)
		return 1;
	pause(); /* It waits until it is killed. */
	return 0;
}

static int one_of_user(void *arg)
{
	struct users *u = arg;
	struct raw r;
	char why[256];

	if (setgid(12346) != 0 || setuid(12346) != 0)
		return 97;
	return !raw_try_connect(&r, u->address) || !greet(&r, ROLE_TRAINER, why);
}

static void test_idle_user(void **state)
{
	struct inproc_conf conf = {.nodes = 1,
				   .daemon = "connections_max = 32\nsocket_mode = 0666\n"
					     "log_level = debug" /* For tools. */};
	struct users u;
	struct inproc c;
	struct crew crew;
	pid_t pid;

	(void)state;
	if (geteuid() != 0)
		skip(); /* It takes root to become another user. */
	inproc_start(&c, &conf);
	assert_int_equal(chmod(c.dir, 0755), 0);
	u = (struct users){c.node[0].unix_address, SHARE};
	pid = proc_fork(crowd_of_user, &u);
	inproc_wait_log(&c.node[0], "event=session ", SHARE);
	proc_expect_exit(proc_fork(one_of_user, &u), 0, 20000);
	crew_init(&crew, "honest");
	crew_add(&crew, c.node[0].unix_address, 0);
	crew_add(&crew, c.node[0].tcp_address, 0);
	crew_start(&crew, 3);
	crew_finish(&crew);
	crew_check(&crew, c.node[0].unix_address, 3);
	if (proc_wait(pid, 0) != -1)
		fail_msg("the crowd has ended");
	kill(pid, SIGKILL);
	(void)proc_wait(pid, 10000);
	inproc_stop(&c);
}

/* --- clients that close at once or say nothing --- */

static struct {
	atomic_bool stop;
	atomic_uint hung_up;
	uint16_t port;
} flood;

static void *hang_up(void *arg)
{
	struct sockaddr_in to = {.sin_family = AF_INET,
				 .sin_port = htons(flood.port),
				 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct linger now = {.l_onoff = 1}; /* A reset leaves no port in TIME_WAIT. */

	(void)arg;
	while (!atomic_load(&flood.stop)) {
		int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

		if (fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0)
			atomic_fetch_add(&flood.hung_up, 1);
		(void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
		close(fd);
	}
	return NULL;
}

/* Two clients have connected, one from the address of the crowd and one from elsewhere. They send
 * HELLO only after the crowd has come. */
static void test_silent_crowd(void **state)
{
	struct inproc_conf conf = {.nodes = 1, .daemon = conf_lines};
	static struct raw crowd[CROWD];
	struct raw same, other, after;
	struct inproc c;
	char why[256];

	(void)state;
	inproc_start(&c, &conf);
	connect_from(&other, "127.0.0.9", c.node[0].port);
	connect_from(&same, "127.0.0.1", c.node[0].port);
	for (int i = 0; i < CROWD; i++)
		connect_from(&crowd[i], "127.0.0.1", c.node[0].port);
	connect_from(&after, "127.0.0.1", c.node[0].port);
	/* All earlier connections were accepted before this one. */
	assert_true(greet(&after, ROLE_TRAINER, why));
	assert_true(greet(&same, ROLE_TRAINER, why));
	assert_true(greet(&other, ROLE_TRAINER, why));
	inproc_wait_log(&c.node[0], "event=connection_refused", 1);
	raw_close(&same);
	raw_close(&other);
	raw_close(&after);
	leave(crowd, CROWD);
	inproc_stop(&c);
}

/* Clients come from the address of the flood, and beside them is a silent crowd. */
static void test_flood(void **state)
{
	struct inproc_conf conf = {.nodes = 1, .daemon = conf_lines};
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	static struct raw silent[CROWD];
	uint64_t until;
	pthread_t thread[2];
	uint32_t honest = 0;
	struct inproc c;

	(void)state;
	inproc_start(&c, &conf);
	flood.port = c.node[0].port;
	o.address = c.node[0].tcp_address;
	for (int i = 0; i < CROWD; i++)
		connect_from(&silent[i], "127.0.0.1", c.node[0].port);
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, hang_up, NULL), 0);
	for (until = clock_ns() + 3 * NS_PER_SEC / 2; clock_ns() < until; honest++) {
		shard_client *one = NULL;

		if (shard_connect(&one, &o) != SHARD_OK)
			fail_msg("after %u that came in, and %u that hung up: %s", honest,
				 atomic_load(&flood.hung_up), shard_error());
		shard_disconnect(&one);
	}
	atomic_store(&flood.stop, true);
	for (int i = 0; i < 2; i++)
		pthread_join(thread[i], NULL);
	print_message("%u came in while %u hung up\n", honest, atomic_load(&flood.hung_up));
	leave(silent, CROWD);
	inproc_stop(&c);
}

/* --- tools over TCP --- */

/* A tool whose machine vanished or that was stopped keeps its place no longer than a trainer. Over
 * a unix socket the kernel reports an end, so a tool need not answer there. */
static void test_silent_tool(void **state)
{
	struct inproc_conf conf = {
		.nodes = 1, .daemon = "log_level = debug", .cluster = "heartbeat_timeout = 1s"};
	struct wire_head pong = {.op = OP_PONG};
	struct raw silent, answers, local;
	struct inproc c;
	uint64_t from;
	char *why;

	(void)state;
	inproc_start(&c, &conf);
	raw_connect(&silent, c.node[0].tcp_address);
	raw_connect(&answers, c.node[0].tcp_address);
	raw_connect(&local, c.node[0].unix_address);
	raw_hello(&silent, ROLE_CTL);
	raw_hello(&answers, ROLE_CTL);
	raw_hello(&local, ROLE_CTL);
	from = clock_ns();
	while (clock_ns() - from < 2 * NS_PER_SEC) { /* Twice as long as a tool may be silent. */
		assert_true(raw_expect(&answers, OP_PING));
		raw_send(&answers, &pong, NULL);
	}
	inproc_wait_log(&c.node[0], "silent for 1.0 s", 1);
	why = raw_error(&silent);
	assert_non_null(why);
	assert_non_null(strstr(why, "silent for 1.0 s"));
	raw_expect_closed(&silent);
	free(raw_status(&answers));
	free(raw_status(&local));
	raw_close(&silent);
	raw_close(&answers);
	raw_close(&local);
	inproc_stop(&c);
}

/* Plays a daemon that lets shardctl wait, and answers only a peer that has answered its PING. */
static int slow_daemon(void *arg)
{
	struct wire_head ping = {.op = OP_PING}, h = {.flags = WIRE_REPLY};
	struct raw r = {.fd = accept4(*(int *)arg, NULL, NULL, SOCK_CLOEXEC)};
	Shard__Hello hello = SHARD__HELLO__INIT;
	Shard__Text text = SHARD__TEXT__INIT;

	if (r.fd < 0 || !raw_expect(&r, OP_HELLO))
		return 1;
	hello.wire_min = hello.wire_max = WIRE_VERSION;
	hello.features = FEATURE_BODY_SUM;
	hello.release = (char *)(uintptr_t) "raw";
	h.op = OP_HELLO;
	h.attempt = r.head.attempt;
	raw_send(&r, &h, &hello.base);
	if (!raw_expect(&r, OP_STATUS))
		return 2;
	h.op = OP_STATUS;
	h.attempt = r.head.attempt;
	raw_send(&r, &ping, NULL);
	if (!raw_expect(&r, OP_PONG))
		return 3;
	text.text = (char *)(uintptr_t) "{\"waited\": true}";
	raw_send(&r, &h, &text.base);
	raw_expect_closed(&r);
	return 0;
}

static void test_tool_answers_pings(void **state)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	socklen_t bytes = sizeof(at);
	char words[80];
	pid_t pid;

	(void)state;
	assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	assert_int_equal(listen(fd, 1), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &bytes), 0);
	pid = proc_fork(slow_daemon, &fd);
	snprintf(words, sizeof(words), "status --json --timeout 8 -a tcp://127.0.0.1:%u",
		 ntohs(at.sin_port));
	tool_expect(0, "waited", "shardctl", words);
	proc_expect_exit(pid, 0, 20000);
	close(fd);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_idle_address), cmocka_unit_test(test_idle_addresses),
		cmocka_unit_test(test_idle_long),    cmocka_unit_test(test_idle_user),
		cmocka_unit_test(test_silent_crowd), cmocka_unit_test(test_flood),
		cmocka_unit_test(test_silent_tool),  cmocka_unit_test(test_tool_answers_pings),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
