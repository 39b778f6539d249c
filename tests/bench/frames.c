/* SPDX-License-Identifier: Apache-2.0 */
/* Sends control frames over connections of this machine's loopback and takes the processor time of
 * the thread that does it. bench_control.c calls it. Happy path: each connection is a TCP pair, one
 * end on the loop of the caller, the other on the loop of a second thread, which answers each first
 * frame of a round with a frame of the same size. The caller's thread runs its loop until all
 * answers are there. Over loopback a sender also pays for what the kernel does at the receiver.
 * What fails ends the program. */
#include "bench/frames.h"

#include "base/check.h"
#include "base/clock.h"
#include "bench/daemons.h"
#include "bench/limit_tcp.h"
#include "core/msg.h"
#include "net/conn.h"
#include "wire/ops.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { CONNS_MAX = 64, BODY_MAX = 1 << 20, ROUNDS_MAX = 512 };

struct end {
	uv_loop_t loop;
	struct conn *conn[CONNS_MAX];
	uint32_t conns_nr, closed;
	uint32_t got; /* Answers of this round. */
	bool answers; /* The far end. */
};

struct frames {
	struct end near, far;
	pthread_t thread;
	uv_async_t stop;
};

static unsigned char body[BODY_MAX]; /* Never written. */

static uint64_t thread_ns(void)
{
	return clock_thread_ns();
}

static enum shard_status on_head(void *owner, struct stream *s, const struct wire_head *h,
				 void **to, struct err *e)
{
	(void)owner, (void)s, (void)h, (void)to, (void)e;
	return SHARD_OK;
}

static void send_one(struct conn *c, enum core_op op, uint32_t bytes)
{
	struct wire_head h = {.op = (uint16_t)(OP_CORE + op), .model = 1, .step = 1, .attempt = 1};

	CHECK(stream_send(conn_stream(c), &h, body, bytes, NULL, NULL) == SHARD_OK);
}

static enum shard_status on_frame(void *owner, struct stream *s, const struct wire_head *h,
				  const void *at, struct err *e)
{
	struct end *end = owner;

	(void)at, (void)e;
	if (!end->answers) {
		end->got++;
		return SHARD_OK;
	}
	if (h->op != OP_CORE + CORE_COMMIT) /* The second frame of a write. */
		return SHARD_OK;
	for (uint32_t i = 0; i < end->conns_nr; i++) {
		if (conn_stream(end->conn[i]) != s)
			continue;
		send_one(end->conn[i], CORE_VOTE, h->body_bytes);
		conn_kick(end->conn[i]);
	}
	return SHARD_OK;
}

static void on_close(void *owner, struct conn *c, const struct err *why)
{
	struct end *end = owner;

	(void)c, (void)why;
	end->closed++;
}

static const struct conn_handler handler = {.frames = {on_head, on_frame, NULL},
					    .on_close = on_close};

static void on_stop(uv_async_t *a)
{
	struct frames *f = a->data;

	for (uint32_t i = 0; i < f->far.conns_nr; i++)
		conn_close(f->far.conn[i], NULL, 0);
	uv_close((uv_handle_t *)a, NULL);
}

static void *far_main(void *arg)
{
	struct frames *f = arg;

	uv_run(&f->far.loop, UV_RUN_DEFAULT);
	return NULL;
}

static void accept_end(struct end *end, int fd)
{
	struct conn_conf conf = {
		.handler = &handler, .owner = end, .queue_max = 1024, .body_max = BODY_MAX};
	struct err e;

	if (conn_accept(&end->conn[end->conns_nr], &end->loop, fd, &conf, &e) != SHARD_OK)
		bench_fail("a connection of loopback: %s", e.text);
	end->conns_nr++;
}

struct frames *frames_begin(uint32_t conns_nr)
{
	struct frames *f = calloc(1, sizeof(*f));

	CHECK(f != NULL && conns_nr <= CONNS_MAX);
	CHECK(uv_loop_init(&f->near.loop) == 0 && uv_loop_init(&f->far.loop) == 0);
	f->far.answers = true;
	for (uint32_t i = 0; i < conns_nr; i++) {
		int fds[2];

		if (limit_tcp_pair(fds) != 0)
			bench_fail("no loopback");
		accept_end(&f->near, fds[0]);
		accept_end(&f->far, fds[1]);
	}
	CHECK(uv_async_init(&f->far.loop, &f->stop, on_stop) == 0);
	f->stop.data = f;
	CHECK(pthread_create(&f->thread, NULL, far_main, f) == 0);
	return f;
}

/* One round with so many frames in each write. Returns the processor time of the writes, and in
 * *receive that of the answers. */
static double round_ns(struct frames *f, uint32_t bytes, int per_write, double *receive)
{
	struct end *near = &f->near;
	uint64_t start = thread_ns(), sent;

	near->got = 0;
	for (uint32_t i = 0; i < near->conns_nr; i++) {
		for (int k = 0; k < per_write; k++)
			send_one(near->conn[i], k == 0 ? CORE_COMMIT : CORE_BEGIN, bytes);
		conn_kick_now(near->conn[i]);
	}
	sent = thread_ns();
	while (near->got < near->conns_nr)
		uv_run(&near->loop, UV_RUN_ONCE);
	*receive = (double)(thread_ns() - sent) / near->conns_nr;
	return (double)(sent - start) / near->conns_nr;
}

void frames_measure(struct frames *f, uint32_t bytes, uint32_t rounds, struct frames_cost *cost)
{
	double send[ROUNDS_MAX], two[ROUNDS_MAX], receive[ROUNDS_MAX], unused;

	CHECK(rounds <= ROUNDS_MAX && bytes <= BODY_MAX);
	(void)round_ns(f, bytes, 1, &unused);
	for (uint32_t i = 0; i < rounds; i++) {
		send[i] = round_ns(f, bytes, 1, &receive[i]);
		two[i] = round_ns(f, bytes, 2, &unused);
	}
	cost->send = bench_median(send, (int)rounds);
	cost->second = bench_median(two, (int)rounds) - cost->send;
	cost->receive = bench_median(receive, (int)rounds);
}

void frames_end(struct frames **fp)
{
	struct frames *f = *fp;

	*fp = NULL;
	uv_async_send(&f->stop);
	CHECK(pthread_join(f->thread, NULL) == 0);
	for (uint32_t i = 0; i < f->near.conns_nr; i++)
		conn_close(f->near.conn[i], NULL, 0);
	uv_run(&f->near.loop, UV_RUN_DEFAULT);
	CHECK(f->near.closed == f->near.conns_nr && f->far.closed == f->far.conns_nr);
	CHECK(uv_loop_close(&f->near.loop) == 0 && uv_loop_close(&f->far.loop) == 0);
	free(f);
}
