// SPDX-License-Identifier: Apache-2.0
/* Tests a client that asks and does not take the answers. The daemons hold a bounded amount for it,
 * also where the answer comes from another node. They give the memory back and serve others
 * meanwhile. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/pace.h"
#include "lib/proc.h"
#include "lib/rawpeer.h"
#include "shard.h"
#include "shard.pb-c.h"
#include "node/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { CHUNK = 1 << 20, ELEMS = 2 * CHUNK, PART = WIRE_PART_BYTES / 4, GREEDY = 60, READS = 64 };
#define MIB (1ull << 20)

static uint64_t rss(struct cluster *c, int node)
{
	char path[64], line[128];
	uint64_t kib = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)c->node[node].pid);
	f = fopen(path, "re");
	CHECK(f != NULL);
	while (fgets(line, sizeof(line), f) != NULL && sscanf(line, "VmRSS: %lu", &kib) != 1)
		;
	fclose(f);
	return kib << 10;
}

/* Makes a sealed model. Its second half is on node b if there are two nodes. */
static void make_model(const char *address, const char *name, const char *settings)
{
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	struct shard_tensor t = {0};
	struct shard_spec s = SHARD_INIT(struct shard_spec);
	static float w[ELEMS];
	shard_client *c;
	shard_model *m;
	int created;

	o.address = address;
	assert_int_equal(shard_connect(&c, &o), SHARD_OK);
	t.name = "w";
	t.ndim = 1;
	t.shape[0] = ELEMS;
	s.name = name;
	s.tensors = &t;
	s.tensors_nr = 1;
	s.image = s.grad = SHARD_BF16;
	s.settings = settings;
	assert_int_equal(shard_define(c, &s, &m, &created), SHARD_OK);
	assert_int_equal(shard_write(m, SHARD_MASTER, 0, 0, ELEMS, SHARD_F32, w), SHARD_OK);
	assert_int_equal(shard_seal(m, 0), SHARD_OK);
	shard_disconnect(&c);
}

/* Reads both chunks as another trainer does. */
static void honest(const char *address)
{
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	static float w[4 * PART];
	shard_client *c;
	shard_model *m;
	uint64_t step = 0;

	o.address = address;
	assert_int_equal(shard_connect(&c, &o), SHARD_OK);
	assert_int_equal(shard_attach(c, "q", &m), SHARD_OK);
	for (uint64_t at = 0; at < ELEMS; at += CHUNK)
		if (shard_read(m, SHARD_MASTER, 0, at, 4 * PART, SHARD_F32, w, &step) != SHARD_OK)
			fail_msg("%s", shard_error());
	shard_disconnect(&c);
}

/* Makes a long read of small parts. With room for one answer at a time it is slow, and comes to its
 * end. */
static void many_parts(const char *address)
{
	struct shard_connect_opts o = SHARD_INIT(struct shard_connect_opts);
	static float w[CHUNK / 2];
	shard_client *c;
	shard_model *m;
	uint64_t step = 0;

	o.address = address;
	assert_int_equal(shard_connect(&c, &o), SHARD_OK);
	assert_int_equal(shard_attach(c, "parts", &m), SHARD_OK);
	if (shard_read(m, SHARD_MASTER, 0, CHUNK + 1024, CHUNK / 2, SHARD_F32, w, &step) !=
	    SHARD_OK)
		fail_msg("%s", shard_error());
	shard_disconnect(&c);
}

/* Asks for 16 MiB of one chunk and does not read the answers. */
static void ask(struct raw *r, const char *address, uint64_t chunk)
{
	struct wire_head h = {.op = OP_ATTACH, .attempt = 1};
	Shard__Attach a = SHARD__ATTACH__INIT;
	Shard__Defined *d;
	int small = 4096;

	raw_connect(r, address);
	(void)setsockopt(r->fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
	raw_hello(r, ROLE_TRAINER);
	a.name = (char *)(uintptr_t) "q";
	raw_send(r, &h, &a.base);
	assert_true(raw_expect(r, OP_ATTACH));
	d = shard__defined__unpack(NULL, r->head.body_bytes, r->body);
	assert_non_null(d);
	for (uint32_t i = 0; i < READS; i++) {
		Shard__Read q = SHARD__READ__INIT;

		h = (struct wire_head){.op = OP_READ, .attempt = i + 2, .model = d->model};
		q.kind = SHARD_MASTER;
		q.first = chunk * CHUNK + i % 16 * PART;
		q.count = PART;
		raw_send(r, &h, &q.base);
	}
	shard__defined__free_unpacked(d, NULL);
}

/* The connections of one user and of one address together make 60, and half of them are over
 * TCP. */
static void greedy(int nodes)
{
	static struct raw r[GREEDY];
	uint64_t before[2],
		most[2] = {0}, until,
		bound = SERVER_QUEUED_MAX + GREEDY * (uint64_t)WIRE_PART_BYTES + 40 * MIB;
	struct cluster *c = cluster_start(nodes, NULL, "[cluster]\nheartbeat_timeout = 60s\n");

	make_model(c->node[0].unix_address, "q", "optimizer=sgd lr=1 chunk_elems=1Mi timeout=30s");
	make_model(c->node[0].unix_address, "parts",
		   "optimizer=sgd lr=1 chunk_elems=1024 timeout=30s");
	honest(c->node[0].unix_address);
	for (int n = 0; n < nodes; n++)
		before[n] = rss(c, n);
	for (int i = 0; i < GREEDY; i++)
		ask(&r[i], i % 2 ? c->node[0].tcp_address : c->node[0].unix_address,
		    (uint64_t)(i / 2 % nodes));
	for (until = clock_ns() + NS_PER_SEC; clock_ns() < until; usleep(10000))
		for (int n = 0; n < nodes; n++)
			most[n] = rss(c, n) > most[n] ? rss(c, n) : most[n];
	honest(c->node[0].unix_address); /* Others are served meanwhile. */
	honest(c->node[0].tcp_address);
	many_parts(c->node[0].unix_address);
	for (int n = 0; n < nodes; n++) {
		print_message("node %c of %d: %lu MiB, %lu at most\n", 'a' + n, nodes,
			      before[n] >> 20, most[n] >> 20);
		if (most[n] > before[n] + bound)
			fail_msg("node %c grew from %lu to %lu MiB", 'a' + n, before[n] >> 20,
				 most[n] >> 20);
	}
	for (int i = 0; i < GREEDY; i++)
		raw_close(&r[i]);
	until = pace_by(20);
	for (int n = 0; n < nodes; n++)
		while (rss(c, n) > before[n] + 24 * MIB) {
			if (clock_ns() > until)
				fail_msg("node %c still has %lu MiB", 'a' + n, rss(c, n) >> 20);
			usleep(20000);
		}
	cluster_stop(c);
}

static void test_one_node(void **state)
{
	(void)state;
	greedy(1);
}

static void test_two_nodes(void **state)
{
	(void)state;
	greedy(2);
}

/* A client that reads its answers late gets each of them, complete and in order. The budget has
 * room for that. With a small one, a client that asks for so many by way of another node gets
 * BUSY. */
static void test_late(void **state)
{
	struct cluster *c = cluster_start(2, NULL, "[daemon]\nmemory = 4GiB\n");
	struct raw r[2];

	(void)state;
	make_model(c->node[0].unix_address, "q", "optimizer=sgd lr=1 chunk_elems=1Mi timeout=30s");
	for (int i = 0; i < 2; i++)
		ask(&r[i], c->node[0].unix_address, (uint64_t)i);
	/* By then everything that is answered at once is answered. There is no event that tells
	 * that nothing more comes. */
	usleep(200000);
	for (int i = 0; i < 2; i++) {
		uint32_t next = 2;

		while (next < READS + 2 && raw_recv(&r[i])) {
			assert_int_equal(r[i].head.op, OP_READ);
			assert_int_equal(r[i].head.attempt, next++);
			assert_int_equal(r[i].head.body_bytes, WIRE_PART_BYTES);
		}
		assert_int_equal(next, READS + 2);
		raw_close(&r[i]);
	}
	cluster_stop(c);
}

/* A trainer over TCP that does not read is closed. The log does not call it silent. */
static void test_takes_nothing(void **state)
{
	struct cluster *c = cluster_start(1, NULL, "[cluster]\nheartbeat_timeout = 500ms\n");
	uint64_t until = pace_by(20);
	struct raw r;
	bool said;

	(void)state;
	make_model(c->node[0].unix_address, "q", "optimizer=sgd lr=1 chunk_elems=1Mi timeout=30s");
	ask(&r, c->node[0].tcp_address, 0);
	do {
		char *log = cluster_log(c, 0);

		said = strstr(log, "has taken nothing of what it is sent for 0.5 s") != NULL;
		free(log);
		if (!said && clock_ns() > until)
			fail_msg("it is not closed");
		usleep(20000);
	} while (!said);
	raw_close(&r);
	cluster_stop(c);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_one_node),
		cmocka_unit_test(test_two_nodes),
		cmocka_unit_test(test_late),
		cmocka_unit_test(test_takes_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
