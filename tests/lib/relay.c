// SPDX-License-Identifier: Apache-2.0
/* The relay of relay.h. Tests call it. One thread reads whatever comes and writes it to the other
 * end, and keeps what is to stand still, however much it is. It follows the headers in what it
 * passes on to those who dialled, and reads the HELLO of each. What should be impossible ends the
 * process by CHECK. */
#include "lib/relay.h"

#include "base/check.h"
#include "base/clock.h"
#include "lib/pace.h"
#include "shard.pb-c.h"
#include "wire/ops.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { TO_NODE, TO_DIALLER, WAIT_S = 20, PIECE = 64 << 10 };

static void set_nodelay(int fd)
{
	int one = 1;

	CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) == 0);
}

static void drop_pair(struct relay *r, uint32_t i)
{
	struct relay_pair *p = &r->pair[i];

	for (int k = 0; k < 2; k++) {
		close(p->way[k].from);
		free(p->way[k].bytes);
	}
	*p = r->pair[--r->pairs_nr];
}

static void take_pair(struct relay *r)
{
	struct sockaddr_in sa = {.sin_family = AF_INET,
				 .sin_port = htons(r->port),
				 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = accept4(r->listen_fd, NULL, NULL, SOCK_CLOEXEC), to;
	struct relay_pair *p;

	if (fd < 0)
		return;
	to = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK(to >= 0 && r->pairs_nr < RELAY_MAX);
	if (connect(to, (struct sockaddr *)&sa, sizeof(sa)) != 0) { /* It does not run. */
		close(to);
		close(fd);
		return;
	}
	set_nodelay(fd);
	set_nodelay(to);
	p = &r->pair[r->pairs_nr++];
	*p = (struct relay_pair){0};
	p->way[TO_NODE] = (struct relay_way){.from = fd, .to = to};
	p->way[TO_DIALLER] = (struct relay_way){.from = to, .to = fd};
}

/* False: the other end is gone. */
static bool fetch(struct relay_way *w)
{
	ssize_t n;

	if (w->room - w->nr < PIECE) {
		w->room = 2 * w->room + PIECE;
		w->bytes = realloc(w->bytes, w->room);
		CHECK(w->bytes != NULL);
	}
	n = recv(w->from, w->bytes + w->nr, PIECE, 0);
	w->nr += n > 0 ? (size_t)n : 0;
	return n > 0;
}

/* The first frame is HELLO. */
static void learn_name(struct relay_pair *p)
{
	struct relay_way *w = &p->way[TO_NODE];
	struct wire_head h;
	Shard__Hello *hello;

	if (w->nr < sizeof(h))
		return;
	memcpy(&h, w->bytes, sizeof(h));
	if (w->nr < sizeof(h) + h.body_bytes)
		return;
	hello = shard__hello__unpack(NULL, h.body_bytes, w->bytes + sizeof(h));
	CHECK(h.op == OP_HELLO && hello != NULL);
	snprintf(p->name, sizeof(p->name), "%s", hello->node);
	shard__hello__free_unpacked(hello, NULL);
}

/* The frame whose header is there begins to pass. True: it stands still in place of that. */
static bool begins(struct relay *r, struct relay_pair *p, struct relay_way *w,
		   const struct wire_head *h)
{
	if (p->counts && p->frames == 0) {
		p->counts = false;
		p->stands = true;
		return true;
	}
	p->frames -= p->counts;
	w->left = sizeof(*h) + h->body_bytes;
	if (!r->stalls || h->op != r->stall.op || WIRE_PART(h->flags) != r->stall.part)
		return false;
	r->stalls = false;
	r->stood = p->stands = true;
	pthread_cond_broadcast(&r->changed);
	return true;
}

/* How many of the bytes may pass. */
static size_t passes(struct relay *r, struct relay_pair *p, struct relay_way *w)
{
	struct wire_head h;
	size_t at = 0, n;

	for (;;) {
		n = w->nr - at < w->left ? w->nr - at : w->left;
		w->left -= n;
		at += n;
		if (w->left > 0 || w->nr - at < sizeof(h))
			return at;
		memcpy(&h, w->bytes + at, sizeof(h));
		if (begins(r, p, w, &h))
			break;
	}
	n = w->nr - at < r->stall.pass ? w->nr - at : r->stall.pass;
	n = w->left < n ? w->left : n; /* Nothing, where it stands again. */
	w->left -= n;
	return at + n;
}

static bool pass_on(struct relay_way *w, size_t bytes)
{
	for (size_t at = 0; at < bytes;) {
		ssize_t n = send(w->to, w->bytes + at, bytes - at, MSG_NOSIGNAL);

		if (n <= 0)
			return false;
		at += (size_t)n;
	}
	memmove(w->bytes, w->bytes + bytes, w->nr - bytes);
	w->nr -= bytes;
	return true;
}

static bool serve(struct relay *r, struct relay_pair *p, const struct pollfd *fds)
{
	for (int k = 0; k < 2; k++) {
		struct relay_way *w = &p->way[k];

		if (fds[k].revents != 0 && !fetch(w))
			return false;
		if (p->name[0] == 0 && k == TO_NODE)
			learn_name(p);
		if (p->name[0] == 0 || (p->stands && k == TO_DIALLER))
			continue;
		if (strcmp(p->name, r->cut) == 0 ||
		    !pass_on(w, k == TO_NODE ? w->nr : passes(r, p, w)))
			return false;
	}
	return true;
}

static void *run(void *arg)
{
	struct relay *r = arg;

	pthread_mutex_lock(&r->lock);
	while (!r->stops) {
		struct pollfd fds[2 + 2 * RELAY_MAX] = {{r->listen_fd, POLLIN, 0},
							{r->wake[0], POLLIN, 0}};
		uint32_t nr = r->pairs_nr;
		char drained[64];

		for (uint32_t i = 0; i < nr; i++)
			for (int k = 0; k < 2; k++)
				fds[2 + 2 * i + (uint32_t)k] =
					(struct pollfd){r->pair[i].way[k].from, POLLIN, 0};
		pthread_mutex_unlock(&r->lock);
		CHECK(poll(fds, 2 + 2 * nr, -1) >= 0);
		pthread_mutex_lock(&r->lock);
		if (fds[1].revents != 0)
			CHECK(read(r->wake[0], drained, sizeof(drained)) > 0);
		for (uint32_t i = nr; i-- > 0;)
			if (!serve(r, &r->pair[i], &fds[2 + 2 * i]))
				drop_pair(r, i);
		if (fds[0].revents != 0)
			take_pair(r);
	}
	while (r->pairs_nr > 0)
		drop_pair(r, r->pairs_nr - 1);
	pthread_mutex_unlock(&r->lock);
	return NULL;
}

/* Called with the lock, which it gives back. */
static void wake(struct relay *r)
{
	pthread_mutex_unlock(&r->lock);
	CHECK(write(r->wake[1], "x", 1) == 1);
}

void relay_start(struct relay *r, const char *host, uint16_t port)
{
	struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons(port)};
	int one = 1;

	memset(r, 0, sizeof(*r));
	r->port = port;
	CHECK(inet_pton(AF_INET, host, &sa.sin_addr) == 1);
	r->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	setsockopt(r->listen_fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	CHECK(bind(r->listen_fd, (struct sockaddr *)&sa, sizeof(sa)) == 0 &&
	      listen(r->listen_fd, 16) == 0);
	CHECK(pipe(r->wake) == 0);
	CHECK(pthread_mutex_init(&r->lock, NULL) == 0 && pthread_cond_init(&r->changed, NULL) == 0);
	CHECK(pthread_create(&r->thread, NULL, run, r) == 0);
}

void relay_stall(struct relay *r, const struct relay_stall *s)
{
	pthread_mutex_lock(&r->lock);
	r->stall = *s;
	r->stalls = true;
	r->stood = false;
	pthread_mutex_unlock(&r->lock);
}

void relay_stood(struct relay *r)
{
	struct timespec by;

	CHECK(clock_gettime(CLOCK_REALTIME, &by) == 0);
	by.tv_sec += pace_ms(WAIT_S * 1000) / 1000;
	pthread_mutex_lock(&r->lock);
	while (!r->stood)
		if (pthread_cond_timedwait(&r->changed, &r->lock, &by) != 0)
			fail_msg("no frame that was to stand still has come");
	pthread_mutex_unlock(&r->lock);
}

void relay_release(struct relay *r)
{
	pthread_mutex_lock(&r->lock);
	r->stalls = false;
	for (uint32_t i = 0; i < r->pairs_nr; i++) {
		struct relay_pair *p = &r->pair[i];

		p->counts = p->stands;
		p->frames = r->stall.more;
		p->stands = false;
	}
	wake(r);
}

void relay_cut(struct relay *r, const char *name)
{
	pthread_mutex_lock(&r->lock);
	snprintf(r->cut, sizeof(r->cut), "%s", name != NULL ? name : "");
	wake(r);
}

void relay_stop(struct relay *r)
{
	pthread_mutex_lock(&r->lock);
	r->stops = true;
	wake(r);
	pthread_join(r->thread, NULL);
	pthread_mutex_destroy(&r->lock);
	pthread_cond_destroy(&r->changed);
	close(r->listen_fd);
	close(r->wake[0]);
	close(r->wake[1]);
}
