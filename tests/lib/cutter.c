// SPDX-License-Identifier: Apache-2.0
/* One thread of the cutter moves frames between daemons that believe to be linked directly. Tests
 * call the functions of cutter.h. Each daemon listens at 127.0.0.2, and [nodes] leads to
 * 127.0.0.1, where the cutter listens. The HELLO of a connection says which node dialled it. A cut
 * is a half close in both directions, so that the frame that triggered it arrives. What should be
 * impossible ends the process by CHECK. */
#include "lib/cutter.h"

#include "base/check.h"
#include "base/clock.h"
#include "core/msg.h"
#include "lib/drill.h"
#include "shard.pb-c.h"
#include "wire/frame.h"
#include "wire/ops.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PAIRS_MAX = 32, ROOM = 17 << 20 /* Of the largest frame. */, HELD_MS = 1000 };

struct pair {                 /* A connection. fd[0] leads to the dialler, fd[1] to the listener. */
	int fd[2], low, high; /* `high` is -1 until the HELLO has passed. */
	bool cut, held;
	unsigned char *buffer[2]; /* What came from fd[i] and is not yet a whole frame. */
	size_t used[2];
	uint64_t frames[2]; /* How many came from fd[i]. */
};

struct cutter {
	pthread_t thread;
	pthread_mutex_t lock;
	struct cutter_rule rule;
	uint16_t lost_op; /* 0: none. */
	cutter_seen *watch;
	void *watch_arg;
	uint32_t seen;
	bool armed, fired, holds, no_votes, deaf;
	uint64_t held_ns;
	enum cutter_part part[CLUSTER_NODES_MAX][CLUSTER_NODES_MAX];
	int listener[CLUSTER_NODES_MAX], nodes_nr, stop[2];
	uint16_t port[CLUSTER_NODES_MAX];
	struct pair pair[PAIRS_MAX];
};

/* Returns 127.0.0.host. */
static struct sockaddr_in loopback(uint16_t port, uint32_t host)
{
	return (struct sockaddr_in){.sin_family = AF_INET,
				    .sin_port = htons(port),
				    .sin_addr.s_addr = htonl(0x7f000000u + host)};
}

static void pair_close(struct pair *p)
{
	for (int i = 0; i < 2; i++) {
		/* A process that was forked meanwhile has these descriptors, too. shutdown() ends
		 * the connection for all of them. */
		(void)shutdown(p->fd[i], SHUT_RDWR);
		close(p->fd[i]);
		free(p->buffer[i]);
	}
	*p = (struct pair){.fd = {-1, -1}};
}

static void take(struct cutter *k, int node)
{
	int in = accept4(k->listener[node], NULL, NULL, SOCK_CLOEXEC),
	    out = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), i = 0, one = 1;
	struct sockaddr_in to = loopback(k->port[node], 2);

	while (i < PAIRS_MAX && k->pair[i].fd[0] >= 0)
		i++;
	CHECK(i < PAIRS_MAX && out >= 0);
	if (in < 0 || connect(out, (struct sockaddr *)&to, sizeof(to)) != 0) {
		close(in);
		close(out);
		return;
	}
	(void)setsockopt(in, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	(void)setsockopt(out, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	k->pair[i] = (struct pair){
		.fd = {in, out}, .low = node, .high = -1, .buffer = {malloc(ROOM), malloc(ROOM)}};
	CHECK(k->pair[i].buffer[0] != NULL && k->pair[i].buffer[1] != NULL);
}

static void know(struct pair *p, const struct wire_head *h, const unsigned char *body)
{
	Shard__Hello *hello =
		h->op == OP_HELLO ? shard__hello__unpack(NULL, h->body_bytes, body) : NULL;

	if (hello == NULL)
		return;
	if (hello->node != NULL && hello->node[0] != 0)
		p->high = hello->node[0] - 'a';
	shard__hello__free_unpacked(hello, NULL);
}

static void release(struct cutter *k)
{
	k->holds = false;
	for (int i = 0; i < PAIRS_MAX; i++)
		k->pair[i].held = false;
}

/* What was sent still arrives. */
static void pair_end(const struct pair *p)
{
	shutdown(p->fd[0], SHUT_WR);
	shutdown(p->fd[1], SHUT_WR);
}

static void cut(struct cutter *k)
{
	const struct cutter_rule *r = &k->rule;

	k->fired = true;
	k->holds = r->hold;
	k->held_ns = clock_ns();
	for (int i = 0; i < PAIRS_MAX; i++) {
		struct pair *p = &k->pair[i];

		if (p->fd[0] < 0 || p->cut)
			continue;
		if (p->low == r->cut_low && p->high == r->cut_high) {
			p->cut = true;
			pair_end(p);
		} else {
			p->held = r->hold;
		}
	}
}

static void send_all(int fd, const unsigned char *at, size_t bytes)
{
	for (ssize_t n; bytes > 0; at += n, bytes -= (size_t)n) {
		n = send(fd, at, bytes, MSG_NOSIGNAL);
		if (n <= 0)
			return;
	}
}

static bool of_cut(const struct cutter *k, const struct pair *p)
{
	return p->low == k->rule.cut_low && p->high == k->rule.cut_high;
}

static enum cutter_part part_of(const struct cutter *k, const struct pair *p)
{
	return p->high >= 0 && p->high < CLUSTER_NODES_MAX ? k->part[p->low][p->high]
							   : CUTTER_WHOLE;
}

/* Is what comes from fd[i] lost? */
static bool lost(const struct cutter *k, const struct pair *p, int i)
{
	enum cutter_part how = part_of(k, p);

	return how == CUTTER_SILENT || how == (i == 0 ? CUTTER_TO_LOW : CUTTER_TO_HIGH);
}

/* True: this is the frame that the rule waits for. */
static bool awaited(struct cutter *k, const struct pair *p, const struct wire_head *h)
{
	const struct cutter_rule *r = &k->rule;

	if (!k->armed || k->fired || p->low != r->low || p->high != r->high || h->op != r->op ||
	    !(h->flags & WIRE_REPLY) == r->reply)
		return false;
	return ++k->seen >= r->nth;
}

/* The frame behind it must not be missed, so another one takes its place. It says that no step at
 * all is applied, which means nothing. */
static void lose(const struct pair *p, int i, const struct wire_head *h)
{
	struct wire_head done = *h;

	done.op = OP_CORE + CORE_DONE;
	done.flags = 0;
	done.step = 0;
	done.chunk = 0;
	done.body_bytes = 0;
	wire_seal(&done, NULL, p->frames[i], true);
	send_all(p->fd[i ^ 1], (const unsigned char *)&done, sizeof(done));
}

static void frame(struct cutter *k, struct pair *p, int i, const unsigned char *at,
		  const struct wire_head *h)
{
	bool now;

	if (i == 0 && p->high < 0)
		know(p, h, at + sizeof(*h));
	if (part_of(k, p) == CUTTER_ENDS) {
		p->cut = true;
		pair_end(p);
		return;
	}
	if (lost(k, p, i)) {
		p->frames[i]++;
		return;
	}
	if (k->watch != NULL && p->high >= 0)
		k->watch(k->watch_arg, i == 0 ? p->high : p->low, i == 0 ? p->low : p->high, h,
			 at + sizeof(*h));
	now = awaited(k, p, h);
	if (k->armed && k->rule.instead && of_cut(k, p) && (now || k->fired))
		p->cut = true;
	else if ((k->no_votes && h->op == OP_CORE + CORE_VOTE) ||
		 (k->lost_op != 0 && h->op == k->lost_op))
		lose(p, i, h);
	else
		send_all(p->fd[i ^ 1], at, sizeof(*h) + h->body_bytes);
	p->frames[i]++;
	if (k->holds && of_cut(k, p) && h->op == OP_MODEL && (h->flags & WIRE_REPLY))
		release(k);
	if (now)
		cut(k);
	if (p->cut)
		pair_end(p);
}

static void readable(struct cutter *k, struct pair *p, int i)
{
	ssize_t n = recv(p->fd[i], p->buffer[i] + p->used[i], ROOM - p->used[i], 0);
	struct wire_head h;
	size_t at = 0;

	if (n <= 0) {
		pair_close(p);
		return;
	}
	p->used[i] += p->cut ? 0 : (size_t)n;
	while (!p->cut && p->used[i] - at >= sizeof(h)) {
		memcpy(&h, p->buffer[i] + at, sizeof(h));
		CHECK(h.body_bytes <= ROOM - sizeof(h));
		if (p->used[i] - at < sizeof(h) + h.body_bytes)
			break;
		frame(k, p, i, p->buffer[i] + at, &h);
		at += sizeof(h) + h.body_bytes;
	}
	memmove(p->buffer[i], p->buffer[i] + at, p->used[i] - at);
	p->used[i] -= at;
}

static void *run(void *arg)
{
	struct cutter *k = arg;

	for (;;) {
		struct pollfd fds[2 * PAIRS_MAX + CLUSTER_NODES_MAX + 1];

		pthread_mutex_lock(&k->lock);
		/* The answer to MODEL ends the hold, but there may be no model to be sent. */
		if (k->holds && clock_ns() - k->held_ns > HELD_MS * NS_PER_MS)
			release(k);
		for (int i = 0; i < 2 * PAIRS_MAX; i++)
			fds[i] = (struct pollfd){.fd = k->deaf || k->pair[i / 2].held
							       ? -1
							       : k->pair[i / 2].fd[i % 2],
						 .events = POLLIN};
		for (int n = 0; n < k->nodes_nr; n++)
			fds[2 * PAIRS_MAX + n] =
				(struct pollfd){.fd = k->listener[n], .events = POLLIN};
		fds[2 * PAIRS_MAX + k->nodes_nr] =
			(struct pollfd){.fd = k->stop[0], .events = POLLIN};
		pthread_mutex_unlock(&k->lock);
		if (poll(fds, (nfds_t)(2 * PAIRS_MAX + k->nodes_nr + 1), 50) < 0)
			CHECK(errno == EINTR);
		if (fds[2 * PAIRS_MAX + k->nodes_nr].revents)
			return NULL;
		pthread_mutex_lock(&k->lock);
		for (int i = 0; i < 2 * PAIRS_MAX; i++)
			if (fds[i].revents && k->pair[i / 2].fd[i % 2] == fds[i].fd && !k->deaf &&
			    !k->pair[i / 2].held)
				readable(k, &k->pair[i / 2], i % 2);
		for (int n = 0; n < k->nodes_nr; n++)
			if (fds[2 * PAIRS_MAX + n].revents)
				take(k, n);
		pthread_mutex_unlock(&k->lock);
	}
}

static int listen_at(uint16_t port)
{
	struct sockaddr_in at = loopback(port, 1);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	CHECK(fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) == 0);
	CHECK(bind(fd, (struct sockaddr *)&at, sizeof(at)) == 0 && listen(fd, 16) == 0);
	return fd;
}

struct cutter *cutter_start(struct cluster *c)
{
	struct cutter *k = calloc(1, sizeof(*k));

	CHECK(k != NULL && pthread_mutex_init(&k->lock, NULL) == 0 && pipe(k->stop) == 0);
	k->nodes_nr = c->nodes_nr;
	for (int i = 0; i < PAIRS_MAX; i++)
		k->pair[i] = (struct pair){.fd = {-1, -1}};
	for (int n = 0; n < c->nodes_nr; n++) {
		char lines[64];

		k->port[n] = c->node[n].port;
		k->listener[n] = listen_at(k->port[n]);
		snprintf(lines, sizeof(lines), "[daemon]\nlisten = 127.0.0.2:%u\n", k->port[n]);
		drill_conf(c, n, lines);
	}
	CHECK(pthread_create(&k->thread, NULL, run, k) == 0);
	return k;
}

void cutter_rule(struct cutter *k, const struct cutter_rule *r)
{
	pthread_mutex_lock(&k->lock);
	release(k);
	k->seen = 0;
	k->fired = false;
	k->armed = r != NULL;
	if (r != NULL)
		k->rule = *r;
	pthread_mutex_unlock(&k->lock);
}

void cutter_votes(struct cutter *k, bool pass)
{
	pthread_mutex_lock(&k->lock);
	k->no_votes = !pass;
	pthread_mutex_unlock(&k->lock);
}

void cutter_lose(struct cutter *k, uint16_t op)
{
	pthread_mutex_lock(&k->lock);
	k->lost_op = op;
	pthread_mutex_unlock(&k->lock);
}

void cutter_watch(struct cutter *k, cutter_seen *seen, void *arg)
{
	pthread_mutex_lock(&k->lock);
	k->watch = seen;
	k->watch_arg = arg;
	pthread_mutex_unlock(&k->lock);
}

/* Frames of a connection must not be missed, so those of which some were end. */
void cutter_part(struct cutter *k, int low, int high, enum cutter_part how)
{
	CHECK(low < high && high < k->nodes_nr);
	pthread_mutex_lock(&k->lock);
	k->part[low][high] = how;
	for (int i = 0; i < PAIRS_MAX; i++) {
		struct pair *p = &k->pair[i];

		if (p->fd[0] >= 0 && p->low == low && p->high == high &&
		    (how == CUTTER_WHOLE || how == CUTTER_ENDS))
			pair_close(p);
	}
	pthread_mutex_unlock(&k->lock);
}

void cutter_cut(struct cutter *k)
{
	pthread_mutex_lock(&k->lock);
	for (int i = 0; i < PAIRS_MAX; i++)
		if (k->pair[i].fd[0] >= 0 && k->pair[i].high >= 0)
			pair_close(&k->pair[i]);
	pthread_mutex_unlock(&k->lock);
}

void cutter_deaf(struct cutter *k, bool deaf)
{
	pthread_mutex_lock(&k->lock);
	k->deaf = deaf;
	pthread_mutex_unlock(&k->lock);
}

bool cutter_fired(struct cutter *k)
{
	bool fired;

	pthread_mutex_lock(&k->lock);
	fired = k->fired;
	pthread_mutex_unlock(&k->lock);
	return fired;
}

void cutter_stop(struct cutter **kp)
{
	struct cutter *k = *kp;

	*kp = NULL;
	if (k == NULL)
		return;
	CHECK(write(k->stop[1], "x", 1) == 1);
	pthread_join(k->thread, NULL);
	for (int i = 0; i < PAIRS_MAX; i++)
		if (k->pair[i].fd[0] >= 0)
			pair_close(&k->pair[i]);
	for (int n = 0; n < k->nodes_nr; n++)
		close(k->listener[n]);
	close(k->stop[0]);
	close(k->stop[1]);
	pthread_mutex_destroy(&k->lock);
	free(k);
}
