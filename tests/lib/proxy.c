// SPDX-License-Identifier: Apache-2.0
/* The proxy of proxy.h. Tests call it. One thread serves one connection at a time. It keeps frames
 * until they are whole, so that a fault hits exactly one frame. What should be impossible ends the
 * process by CHECK. A damaged connection that nobody closes is counted in `stuck`. */
#include "lib/proxy.h"

#include "base/check.h"
#include "base/clock.h"
#include "lib/pace.h"
#include "wire/frame.h"
#include "wire/ops.h"
#include "wire/xxh.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

enum { ROOM = 1 << 20, STUCK_S = 8, SPARED = 4 };

struct way { /* One direction. */
	int from, to;
	/* `frames` were passed on or damaged. `lost` were dropped as if never sent. */
	uint32_t frames, lost;
	unsigned char *buffer;
	size_t used;
	unsigned char *held; /* For a swap: the frame that goes behind the next one. */
	size_t held_bytes;
};

struct pair {
	struct proxy *p;
	struct way way[2];
	const struct proxy_fault *fault; /* NULL: none is left. */
	uint64_t applied_ns;             /* 0: not yet. */
	/* After a damaged contribution: how many frames must have passed. 0: something else was
	 * damaged. */
	uint32_t spare_until;
	bool over;
};

static void write_all(struct pair *q, int fd, const unsigned char *at, size_t bytes)
{
	while (bytes > 0) {
		ssize_t n = send(fd, at, bytes, MSG_NOSIGNAL);

		if (n <= 0) {
			q->over = true;
			return;
		}
		at += n;
		bytes -= (size_t)n;
	}
}

static void reseal(unsigned char *frame, uint32_t ordinal)
{
	uint32_t sum = (uint32_t)xxh_sum(frame, offsetof(struct wire_head, head_sum), ordinal);

	memcpy(frame + offsetof(struct wire_head, head_sum), &sum, sizeof(sum));
}

static void forge(const struct proxy_fault *f, unsigned char *frame, size_t bytes, uint32_t ordinal)
{
	unsigned char *body = frame + sizeof(struct wire_head), *at;
	size_t body_bytes = bytes - sizeof(struct wire_head);
	uint64_t sum;

	at = memmem(body, body_bytes, f->find, strlen(f->find));
	CHECK(at != NULL && strlen(f->put) == strlen(f->find));
	memcpy(at, f->put, strlen(f->put));
	sum = xxh_sum(body, body_bytes, 0);
	memcpy(frame + offsetof(struct wire_head, body_sum), &sum, sizeof(sum));
	reseal(frame, ordinal);
}

/* Sends the other end what it gets instead of the frame. */
static void damage(struct pair *q, struct way *w, unsigned char *frame, size_t bytes)
{
	const struct proxy_fault *f = q->fault;
	uint32_t body = (uint32_t)(bytes - sizeof(struct wire_head)), huge = 1u << 31;
	uint16_t version = WIRE_VERSION + 1, op;

	memcpy(&op, frame + offsetof(struct wire_head, op), sizeof(op));
	atomic_fetch_add(&q->p->ops[op % 128], 1);
	q->applied_ns = clock_ns();
	switch (f->kind) {
	case PROXY_HEAD_BIT:
		frame[f->bit / 8] ^= (unsigned char)(1u << f->bit % 8);
		break;
	case PROXY_BODY_BIT:
		frame[sizeof(struct wire_head) + f->bit / 8 % body] ^=
			(unsigned char)(1u << f->bit % 8);
		if (op == OP_CONTRIB_DATA)
			q->spare_until = w->frames + SPARED;
		break;
	case PROXY_VERSION:
		memcpy(frame + offsetof(struct wire_head, version), &version, sizeof(version));
		reseal(frame, w->frames);
		break;
	case PROXY_OVERSIZED:
		memcpy(frame + offsetof(struct wire_head, body_bytes), &huge, sizeof(huge));
		reseal(frame, w->frames);
		break;
	case PROXY_DROP:
		return;
	case PROXY_TWICE:
		write_all(q, w->to, frame, bytes);
		break;
	case PROXY_SWAP:
		w->held = malloc(bytes);
		CHECK(w->held != NULL);
		memcpy(w->held, frame, bytes);
		w->held_bytes = bytes;
		return;
	case PROXY_CUT:
		write_all(q, w->to, frame, bytes / 2);
		q->over = true;
		return;
	case PROXY_FORGE:
		forge(f, frame, bytes, w->frames);
		break;
	case PROXY_LOSE:
	case PROXY_KINDS:
		CHECK(!"a kind");
	}
	write_all(q, w->to, frame, bytes);
}

/* True: the frame is lost. Later frames get a smaller number then, and are sealed again. */
static bool lost(struct pair *q, struct way *w, unsigned char *frame)
{
	const struct proxy_fault *f = q->fault;
	uint16_t op;

	if (f == NULL || f->kind != PROXY_LOSE || w != &q->way[f->back])
		return false;
	memcpy(&op, frame + offsetof(struct wire_head, op), sizeof(op));
	if (op != f->bit || w->frames + w->lost < f->frame) {
		reseal(frame, w->frames);
		return false;
	}
	w->lost++;
	atomic_fetch_add(&q->p->ops[op % 128], 1);
	return true;
}

static void take_frame(struct pair *q, struct way *w, unsigned char *frame, size_t bytes)
{
	const struct proxy_fault *f = q->fault;
	bool body = bytes > sizeof(struct wire_head);

	if (lost(q, w, frame))
		return;
	if (f != NULL && f->kind != PROXY_LOSE && q->applied_ns == 0 && w == &q->way[f->back] &&
	    w->frames >= f->frame && (body || f->kind != PROXY_BODY_BIT)) {
		damage(q, w, frame, bytes);
	} else {
		write_all(q, w->to, frame, bytes);
		if (w->held != NULL)
			write_all(q, w->to, w->held, w->held_bytes);
		free(w->held);
		w->held = NULL;
	}
	w->frames++;
	if (q->spare_until == 0 || w != &q->way[f->back] || w->frames < q->spare_until)
		return;
	atomic_fetch_add(&q->p->spared, 1);
	q->over = true;
}

static void readable(struct pair *q, struct way *w)
{
	ssize_t n = recv(w->from, w->buffer + w->used, ROOM - w->used, 0);
	size_t at = 0;

	if (n <= 0) {
		q->over = true;
		return;
	}
	w->used += (size_t)n;
	while (!q->over && w->used - at >= sizeof(struct wire_head)) {
		uint32_t body;

		memcpy(&body, w->buffer + at + offsetof(struct wire_head, body_bytes),
		       sizeof(body));
		CHECK(body <= ROOM - sizeof(struct wire_head));
		if (w->used - at < sizeof(struct wire_head) + body)
			break;
		take_frame(q, w, w->buffer + at, sizeof(struct wire_head) + body);
		at += sizeof(struct wire_head) + body;
	}
	memmove(w->buffer, w->buffer + at, w->used - at);
	w->used -= at;
}

static int dial(uint16_t port)
{
	struct sockaddr_in sa = {.sin_family = AF_INET,
				 .sin_port = htons(port),
				 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	CHECK(fd >= 0);
	if (connect(fd, (struct sockaddr *)&sa, sizeof(sa)) != 0) {
		close(fd);
		return -1;
	}
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return fd;
}

static void finish(struct pair *q)
{
	struct proxy *p = q->p;

	for (int i = 0; i < 2; i++) {
		close(q->way[i].from);
		free(q->way[i].buffer);
		free(q->way[i].held);
	}
	if (q->applied_ns == 0)
		return;
	atomic_fetch_add(q->fault->back ? &p->done_back[q->fault->kind] : &p->done[q->fault->kind],
			 1);
	atomic_fetch_add(&p->next, 1);
}

/* Returns true if the proxy stops. */
static bool serve(struct proxy *p, int fd)
{
	uint32_t next = atomic_load(&p->next);
	struct pair q = {.p = p, .fault = next < p->faults_nr ? &p->fault[next] : NULL};
	int to = dial(p->target_port), one = 1;
	bool stop = false;

	if (to < 0) {
		close(fd);
		return false;
	}
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	q.way[0] = (struct way){.from = fd, .to = to, .buffer = malloc(ROOM)};
	q.way[1] = (struct way){.from = to, .to = fd, .buffer = malloc(ROOM)};
	CHECK(q.way[0].buffer != NULL && q.way[1].buffer != NULL);
	while (!q.over && !stop) {
		struct pollfd fds[3] = {{fd, POLLIN, 0}, {to, POLLIN, 0}, {p->stop[0], POLLIN, 0}};

		CHECK(poll(fds, 3, 200) >= 0);
		stop = fds[2].revents != 0;
		for (int i = 0; i < 2 && !q.over; i++)
			if (fds[i].revents)
				readable(&q, &q.way[i]);
		if (q.applied_ns != 0 &&
		    clock_ns() - q.applied_ns > pace_ns(STUCK_S * NS_PER_SEC)) {
			atomic_fetch_add(&p->stuck, 1);
			q.over = true;
		}
	}
	finish(&q);
	return stop;
}

static void *run(void *arg)
{
	struct proxy *p = arg;

	for (;;) {
		struct pollfd fds[2] = {{p->listen_fd, POLLIN, 0}, {p->stop[0], POLLIN, 0}};
		int fd;

		CHECK(poll(fds, 2, -1) >= 0);
		if (fds[1].revents)
			return NULL;
		fd = accept4(p->listen_fd, NULL, NULL, SOCK_CLOEXEC);
		if (fd >= 0 && serve(p, fd))
			return NULL;
	}
}

void proxy_start(struct proxy *p, const char *host, uint16_t port, uint16_t target_port,
		 const struct proxy_fault *fault, uint32_t nr)
{
	struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons(port)};
	int one = 1;

	memset(p, 0, sizeof(*p));
	p->host = host;
	p->port = port;
	p->target_port = target_port;
	p->fault = fault;
	p->faults_nr = nr;
	CHECK(inet_pton(AF_INET, host, &sa.sin_addr) == 1);
	p->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	setsockopt(p->listen_fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	CHECK(bind(p->listen_fd, (struct sockaddr *)&sa, sizeof(sa)) == 0 &&
	      listen(p->listen_fd, 16) == 0);
	CHECK(pipe(p->stop) == 0);
	CHECK(pthread_create(&p->thread, NULL, run, p) == 0);
}

void proxy_wait(struct proxy *p, uint32_t seconds)
{
	uint64_t until = pace_by(seconds);

	while (atomic_load(&p->next) < p->faults_nr) {
		if (clock_ns() > until)
			fail_msg("%u of %u faults are through after %u s", atomic_load(&p->next),
				 p->faults_nr, seconds);
		usleep(1000);
	}
	assert_int_equal(atomic_load(&p->stuck), 0);
}

void proxy_stop(struct proxy *p)
{
	CHECK(write(p->stop[1], "x", 1) == 1);
	pthread_join(p->thread, NULL);
	close(p->listen_fd);
	close(p->stop[0]);
	close(p->stop[1]);
}

uint32_t proxy_ops(const struct proxy *p)
{
	uint32_t nr = 0;

	for (int i = 0; i < 128; i++)
		nr += atomic_load(&p->ops[i]) > 0;
	return nr;
}
