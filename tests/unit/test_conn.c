/* SPDX-License-Identifier: Apache-2.0 */
/* Connections on a loop: open and close in every order with exactly one on_close, deadlines, refusals that the peer is told,
 * listeners and their addresses. */
#include "base/check.h"
#include "base/clock.h"
#include "lib/frames.h"
#include "net/conn.h"
#include "net/conn_impl.h"
#include "wire/ops.h"

#include "shard.pb-c.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { ENDS_MAX = 64 };

static int fail_alloc_in; /* 0: never; n: the n-th allocation from now fails */

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
extern void *__libc_memalign(size_t align, size_t bytes);
extern void *__libc_calloc(size_t nr, size_t bytes);
static bool fails(void)
{
	return fail_alloc_in > 0 && --fail_alloc_in == 0;
}

void *aligned_alloc(size_t align, size_t bytes)
{
	return fails() ? NULL : __libc_memalign(align, bytes);
}

void *calloc(size_t nr, size_t bytes)
{
	return fails() ? NULL : __libc_calloc(nr, bytes);
}
#define CAN_FAIL_ALLOC 1
#endif

struct end {
	struct conn *c;
	struct frames got; /* not the owner: forwards */
	int opened, closed, drained, given_back;
	struct err why;
	struct stream_stats stats;
	bool close_on_open, close_on_frame, answer;
	struct net *net;
};

struct net {
	uv_loop_t loop;
	struct conn_listener *l;
	struct conn_conf conf;
	struct end dialled, accepted[ENDS_MAX];
	int accepted_nr;
	char dir[32], path[80];
};

static enum shard_status on_head(void *owner, struct stream *s, const struct wire_head *h, void **to, struct err *e)
{
	struct end *n = owner;

	assert_int_equal(n->closed, 0);
	return frames_handler.on_head(&n->got, s, h, to, e);
}

static enum shard_status on_frame(void *owner, struct stream *s, const struct wire_head *h, const void *body, struct err *e)
{
	struct end *n = owner;
	struct wire_head pong = {.op = OP_PONG};

	assert_int_equal(n->closed, 0);
	if (n->answer && h->op == OP_PING) {
		assert_int_equal(stream_send(s, &pong, NULL, 0, NULL, NULL), SHARD_OK);
		conn_kick(n->c);
	}
	if (n->close_on_frame)
		conn_close(n->c, NULL, 0);
	return frames_handler.on_frame(&n->got, s, h, body, e);
}

static void on_open(void *owner, struct conn *c)
{
	struct end *n = owner;

	n->opened++;
	if (n->close_on_open)
		conn_close(c, NULL, 0);
}

static void on_close(void *owner, struct conn *c, const struct err *why)
{
	struct end *n = owner;

	assert_int_equal(n->closed, 0);
	assert_ptr_equal(n->c, c);
	assert_int_not_equal(why->status, SHARD_OK);
	assert_true(strlen(conn_name(c)) > 0);
	n->stats = *conn_stats(c);
	n->closed++;
	n->why = *why;
}

static void on_drained(void *owner, struct conn *c)
{
	struct end *n = owner;

	(void)c;
	n->drained++;
}

static const struct conn_handler handler = {{on_head, on_frame}, on_open, on_close, on_drained};

static void accepted(void *owner, int fd)
{
	struct net *t = owner;
	struct end *n = &t->accepted[t->accepted_nr++];
	struct conn_conf conf = t->conf;

	int armed = fail_alloc_in; /* for the other end */

	CHECK(t->accepted_nr <= ENDS_MAX);
	conf.owner = n;
	fail_alloc_in = 0;
	assert_int_equal(conn_accept(&n->c, &t->loop, fd, &conf, NULL), SHARD_OK);
	fail_alloc_in = armed;
}

static int net_up(void **state)
{
	struct net *t = calloc(1, sizeof(*t));
	struct conn_address at;

	strcpy(t->dir, "/tmp/conn-XXXXXX");
	CHECK(mkdtemp(t->dir));
	snprintf(t->path, sizeof(t->path), "unix:%s/s", t->dir);
	CHECK(uv_loop_init(&t->loop) == 0);
	t->conf = (struct conn_conf){.handler = &handler, .queue_max = 32, .body_max = 65536, .silence_ns = 60 * NS_PER_SEC};
	assert_int_equal(conn_address_parse(&at, t->path, NULL), SHARD_OK);
	assert_int_equal(conn_listen(&t->l, &t->loop, &at, 0600, accepted, t, NULL), SHARD_OK);
	*state = t;
	return 0;
}

static int net_down(void **state)
{
	struct net *t = *state;

	conn_listener_close(&t->l);
	uv_run(&t->loop, UV_RUN_DEFAULT); /* ends only when nothing is left open */
	assert_int_equal(uv_loop_close(&t->loop), 0);
	assert_int_equal(access(t->path + 5, F_OK), -1);
	CHECK(rmdir(t->dir) == 0);
	free(t);
	return 0;
}

static void dial(struct net *t, const char *where)
{
	struct conn_conf conf = t->conf;
	struct conn_address to;

	conf.owner = &t->dialled;
	assert_int_equal(conn_address_parse(&to, where, NULL), SHARD_OK);
	assert_int_equal(conn_connect(&t->dialled.c, &t->loop, &to, &conf, NULL), SHARD_OK);
	assert_int_equal(t->dialled.opened + t->dialled.closed, 0); /* never from inside */
}

#define RUN_UNTIL(t, x)                                                                                                            \
	do {                                                                                                                       \
		uint64_t limit_ns = clock_ns() + 10 * NS_PER_SEC;                                                                  \
		while (!(x)) {                                                                                                     \
			assert_true(clock_ns() < limit_ns);                                                                        \
			if (uv_run(&(t)->loop, UV_RUN_NOWAIT) && !(x)) /* a timer alone may have done it */                        \
				uv_run(&(t)->loop, UV_RUN_ONCE);                                                                   \
		}                                                                                                                  \
	} while (0)

static void connected(struct net *t, const char *where)
{
	dial(t, where);
	RUN_UNTIL(t, t->dialled.opened && t->accepted_nr == 1);
}

static void send_ping(struct conn *c)
{
	struct wire_head h = {.op = OP_PING};

	assert_int_equal(stream_send(conn_stream(c), &h, NULL, 0, NULL, NULL), SHARD_OK);
	conn_kick(c);
}

static void test_talk(void **state)
{
	struct net *t = *state;
	uint32_t pid, uid, gid, groups[64], mine[64];

	connected(t, t->path);
	t->accepted[0].answer = true;
	for (uint32_t i = 1; i <= 5; i++) {
		send_ping(t->dialled.c);
		RUN_UNTIL(t, t->dialled.got.nr == i);
	}
	assert_true(conn_is_unix(t->dialled.c));
	assert_true(conn_peer(t->accepted[0].c, &pid, &uid, &gid));
	assert_int_equal(pid, getpid());
	assert_int_equal(uid, getuid());
	assert_int_equal(conn_peer_groups(t->accepted[0].c, groups, NR(groups)), getgroups(NR(mine), mine));
	conn_close(t->dialled.c, NULL, 0);
	assert_int_equal(t->dialled.closed, 0); /* not from inside conn_close() */
	conn_close(t->dialled.c, NULL, 0);      /* harmless twice */
	RUN_UNTIL(t, t->dialled.closed && t->accepted[0].closed);
	assert_int_equal(t->dialled.why.status, SHARD_CLOSED);
	assert_int_equal(t->accepted[0].why.status, SHARD_CLOSED);
	assert_int_equal(t->accepted[0].stats.frames_in, 5);
}

/* A machine without /etc/hosts would ask a name server, which may take minutes to say no. */
static bool has_localhost(void)
{
	FILE *f = fopen("/etc/hosts", "r");
	char line[256];
	bool found = false;

	while (f != NULL && !found && fgets(line, sizeof(line), f) != NULL)
		found = line[0] != '#' && strstr(line, "localhost") != NULL;
	if (f != NULL)
		fclose(f);
	return found;
}

static void test_tcp(void **state)
{
	struct net *t = *state;
	struct conn_listener *l;
	struct conn_address at;
	char where[64];
	uint32_t id;

	assert_int_equal(conn_address_parse(&at, "127.0.0.1:0", NULL), SHARD_OK);
	assert_int_equal(conn_listen(&l, &t->loop, &at, 0, accepted, t, NULL), SHARD_OK);
	/* a name: maybe ::1 first, which refuses */
	snprintf(where, sizeof(where), "tcp://%s:%u", has_localhost() ? "localhost" : "127.0.0.1", conn_listener_port(l));
	connected(t, where);
	assert_false(conn_is_unix(t->dialled.c));
	assert_false(conn_peer(t->dialled.c, &id, &id, &id));
	t->accepted[0].answer = true;
	send_ping(t->dialled.c);
	RUN_UNTIL(t, t->dialled.got.nr == 1);
	conn_close(t->accepted[0].c, NULL, 1000);
	RUN_UNTIL(t, t->dialled.closed && t->accepted[0].closed);
	conn_listener_close(&l);
}

static void test_close_while_dialling(void **state)
{
	struct net *t = *state;

	dial(t, t->path);
	conn_close(t->dialled.c, NULL, 100);
	RUN_UNTIL(t, t->dialled.closed);
	assert_int_equal(t->dialled.opened, 0);
	memset(&t->dialled, 0, sizeof(t->dialled));
	dial(t, "localhost:1"); /* resolving */
	conn_close(t->dialled.c, NULL, 0);
	RUN_UNTIL(t, t->dialled.closed);
	memset(&t->dialled, 0, sizeof(t->dialled));
	t->dialled.close_on_open = true;
	dial(t, t->path);
	RUN_UNTIL(t, t->dialled.closed);
	assert_int_equal(t->dialled.opened, 1);
	RUN_UNTIL(t, t->accepted_nr > 0 && t->accepted[t->accepted_nr - 1].closed);
	for (int i = 0; i < t->accepted_nr; i++)
		RUN_UNTIL(t, t->accepted[i].closed);
}

static void test_nobody_there(void **state)
{
	struct net *t = *state;
	struct conn_conf conf = t->conf;
	struct conn_address to;
	struct err e;

	dial(t, "127.0.0.1:1");
	RUN_UNTIL(t, t->dialled.closed);
	assert_int_equal(t->dialled.why.status, SHARD_UNREACHABLE);
	assert_string_equal(t->dialled.why.text, "cannot connect to 127.0.0.1:1: Connection refused: is shardd running there?");
	memset(&t->dialled, 0, sizeof(t->dialled));
	dial(t, "localhost:1");
	RUN_UNTIL(t, t->dialled.closed);
	assert_int_equal(t->dialled.why.status, SHARD_UNREACHABLE);
	conf.owner = &t->dialled;
	assert_int_equal(conn_address_parse(&to, "unix:/nowhere/at/all", NULL), SHARD_OK);
	assert_int_equal(conn_connect(&t->dialled.c, &t->loop, &to, &conf, &e), SHARD_UNREACHABLE);
	assert_null(t->dialled.c);
}

/* A name with two addresses, of which the first refuses. */
static void test_second_address(void **state)
{
	struct net *t = *state;
	struct conn_address to;

	dial(t, "127.0.0.1:1");
	assert_int_equal(conn_address_parse(&to, t->path, NULL), SHARD_OK);
	assert_true(address_numeric(&to, &t->dialled.c->dial.target[1]));
	t->dialled.c->dial.targets_nr = 2;
	RUN_UNTIL(t, t->dialled.opened && t->accepted_nr == 1);
	conn_close(t->dialled.c, NULL, 0);
	RUN_UNTIL(t, t->dialled.closed && t->accepted[0].closed);
	memset(&t->dialled, 0, sizeof(t->dialled));
	dial(t, "127.0.0.1:1");
	t->dialled.c->dial.target[1] = t->dialled.c->dial.target[0];
	t->dialled.c->dial.targets_nr = 2;
	RUN_UNTIL(t, t->dialled.closed);
	assert_int_equal(t->dialled.why.status, SHARD_UNREACHABLE);
}

static void test_close_in_frame(void **state)
{
	struct net *t = *state;

	connected(t, t->path);
	t->accepted[0].close_on_frame = true;
	send_ping(t->dialled.c);
	send_ping(t->dialled.c);
	RUN_UNTIL(t, t->dialled.closed && t->accepted[0].closed);
	assert_int_equal(t->accepted[0].got.nr, 1); /* the second is not delivered any more */
}

/* What was queued before conn_close() with a linger time arrives, also when the peer's own bytes are never read. */
static void test_linger(void **state)
{
	struct net *t = *state;
	struct wire_head h = {.op = OP_PUSH_DATA};
	char *body = calloc(1, WIRE_PART_BYTES);
	uint64_t start = clock_ns();

	connected(t, t->path);
	t->dialled.got.to = malloc(FRAMES_BODY_MAX);
	for (int i = 0; i < 16; i++)
		assert_int_equal(stream_send(conn_stream(t->accepted[0].c), &h, body, WIRE_PART_BYTES, NULL, NULL), SHARD_OK);
	send_ping(t->dialled.c);
	conn_close(t->accepted[0].c, NULL, 5000);
	RUN_UNTIL(t, t->dialled.closed && t->accepted[0].closed);
	assert_true(clock_ns() - start < 4 * NS_PER_SEC); /* ends when the peer has all, not when patience does */
	assert_int_equal(t->dialled.got.nr, 16);
	assert_int_equal(t->accepted[0].got.nr, 0);
	free(t->dialled.got.to);
	free(body);
}

static void test_linger_ends(void **state)
{
	struct net *t = *state;
	struct wire_head h = {.op = OP_PUSH_DATA};
	char *body = calloc(1, WIRE_PART_BYTES);

	connected(t, t->path);
	conn_pause(t->dialled.c, true); /* reads nothing */
	for (int i = 0; i < 16; i++)
		assert_int_equal(stream_send(conn_stream(t->accepted[0].c), &h, body, WIRE_PART_BYTES, NULL, NULL), SHARD_OK);
	conn_close(t->accepted[0].c, NULL, 30);
	RUN_UNTIL(t, t->accepted[0].closed);
	conn_pause(t->dialled.c, false);
	RUN_UNTIL(t, t->dialled.closed);
	free(body);
}

static int raw_dial(const struct net *t)
{
	struct address_sock sock;
	struct conn_address to;
	int fd;

	assert_int_equal(conn_address_parse(&to, t->path, NULL), SHARD_OK);
	assert_true(address_numeric(&to, &sock));
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&sock.sa, sock.bytes), 0);
	return fd;
}

static void test_stall_and_silence(void **state)
{
	struct net *t = *state;
	unsigned char bytes[128];
	size_t n = frames_make(bytes, OP_PUSH, 0, 0, "\x0a\x01\x05", 3, 0);
	int fd;

	t->conf.frame_ns = 40 * NS_PER_MS;
	for (int i = 0; i < 3; i++) {
		size_t cut = i == 0 ? 1 : i == 1 ? 63 : 65;
		uint64_t start = clock_ns();

		assert_true(cut < n);
		fd = raw_dial(t);
		assert_int_equal(send(fd, bytes, cut, 0), (ssize_t)cut);
		RUN_UNTIL(t, t->accepted_nr == i + 1 && t->accepted[i].closed);
		assert_int_equal(t->accepted[i].why.status, SHARD_TIMEOUT);
		assert_non_null(strstr(t->accepted[i].why.text, "stalled in mid-frame for 0.0 s"));
		assert_true(clock_ns() - start >= 40 * NS_PER_MS);
		close(fd);
	}
	t->conf.silence_ns = 30 * NS_PER_MS;
	fd = raw_dial(t);
	RUN_UNTIL(t, t->accepted_nr == 4 && t->accepted[3].closed);
	assert_int_equal(t->accepted[3].why.status, SHARD_TIMEOUT);
	assert_non_null(strstr(t->accepted[3].why.text, "silent for"));
	close(fd);
}

static void test_refusal_is_told(void **state)
{
	struct net *t = *state;
	unsigned char bytes[64], back[512];
	const struct wire_head *h = (const void *)back;
	int fd = raw_dial(t);
	Shard__Error *m;
	ssize_t n;

	frames_make(bytes, OP_PING, 0, 0, NULL, 0, 0);
	bytes[40] ^= 1;
	assert_int_equal(send(fd, bytes, 64, 0), 64);
	RUN_UNTIL(t, t->accepted_nr == 1 && t->accepted[0].closed);
	assert_int_equal(t->accepted[0].why.status, SHARD_PROTOCOL);
	assert_int_equal(t->accepted[0].stats.refused, 1);
	n = recv(fd, back, sizeof(back), 0);
	assert_true(n > 64);
	assert_int_equal(h->op, OP_ERROR);
	assert_null(wire_invalid(h, 0, true));
	m = shard__error__unpack(NULL, h->body_bytes, back + 64);
	assert_non_null(m);
	assert_int_equal(m->status, SHARD_PROTOCOL);
	assert_non_null(strstr(m->text, "frame 0"));
	assert_non_null(strstr(m->text, "header checksum"));
	shard__error__free_unpacked(m, NULL);
	close(fd);
}

static void test_pause(void **state)
{
	struct net *t = *state;
	struct wire_head push = {.op = OP_PUSH};

	connected(t, t->path);
	t->accepted[0].got.hold_after_each = true; /* what conn_pause() in on_frame does */
	assert_int_equal(stream_send(conn_stream(t->dialled.c), &push, "\x0a\x01\x05", 3, NULL, NULL), SHARD_OK);
	send_ping(t->dialled.c); /* its header comes with the body before it; nothing after it makes the socket readable */
	RUN_UNTIL(t, t->accepted[0].got.nr == 1);
	assert_true(stream_ready(conn_stream(t->accepted[0].c)));
	conn_pause(t->accepted[0].c, true);
	for (int i = 0; i < 3; i++)
		uv_run(&t->loop, UV_RUN_NOWAIT);
	assert_int_equal(t->accepted[0].got.nr, 1);
	conn_pause(t->accepted[0].c, false);
	RUN_UNTIL(t, t->accepted[0].got.nr == 2);
	conn_close(t->dialled.c, NULL, 0);
	conn_pause(t->accepted[0].c, true);
	conn_pause(t->accepted[0].c, false);
	RUN_UNTIL(t, t->dialled.closed && t->accepted[0].closed);
}

static void sent(void *arg, enum shard_status st)
{
	struct end *n = arg;

	(void)st;
	assert_int_equal(n->closed, 0); /* bodies come back before on_close() */
	n->given_back++;
	conn_kick(n->c); /* harmless at any time */
}

static void test_drained(void **state)
{
	struct net *t = *state;
	struct wire_head h = {.op = OP_PUSH_DATA};
	char *body = calloc(1, WIRE_PART_BYTES);
	int nr = 0;

	connected(t, t->path);
	t->accepted[0].got.discard = true;
	while (stream_send(conn_stream(t->dialled.c), &h, body, WIRE_PART_BYTES, sent, &t->dialled) == SHARD_OK)
		nr++;
	assert_int_equal(nr, 32);
	conn_kick(t->dialled.c);
	RUN_UNTIL(t, t->dialled.drained == 1);
	RUN_UNTIL(t, t->accepted[0].got.heads == 32);
	for (int i = 0; i < 8; i++)
		assert_int_equal(stream_send(conn_stream(t->dialled.c), &h, body, WIRE_PART_BYTES, sent, &t->dialled), SHARD_OK);
	conn_close(t->dialled.c, NULL, 0);
	RUN_UNTIL(t, t->dialled.closed && t->accepted[0].closed);
	assert_int_equal(t->dialled.given_back, 40);
	assert_int_equal(t->dialled.drained, 1);
	free(body);
}

static void test_many(void **state)
{
	struct net *t = *state;
	uint32_t before = frames_open_fds();
	int fds[ENDS_MAX];

	for (int i = 0; i < ENDS_MAX; i++) {
		fds[i] = raw_dial(t);
		if (i % 3 == 0)
			assert_int_equal(send(fds[i], "garbage that is long enough to be taken for a header, and is not", 64, 0),
					 64);
		if (i % 3 == 1)
			close(fds[i]);
	}
	RUN_UNTIL(t, t->accepted_nr == ENDS_MAX);
	for (int i = 0; i < ENDS_MAX; i++) {
		if (i % 3 != 1)
			close(fds[i]);
		RUN_UNTIL(t, t->accepted[i].closed);
	}
	assert_int_equal(frames_open_fds(), before);
}

static void test_out_of_descriptors(void **state)
{
	struct net *t = *state;
	struct rlimit old, low;
	int fd = raw_dial(t), fd2 = raw_dial(t);
	char c;

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
	low = old;
	low.rlim_cur = 3; /* below what is open: every new descriptor fails, also after the spare one is closed */
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
	for (int i = 0; i < 5; i++)
		uv_run(&t->loop, UV_RUN_NOWAIT); /* must neither spin for ever nor crash */
	assert_int_equal(t->accepted_nr, 0);
	assert_true(uv_backend_timeout(&t->loop) > 0); /* it sleeps, though the listener is still readable */
	assert_int_equal(poll(&(struct pollfd){uv_backend_fd(&t->loop), POLLIN, 0}, 1, 0), 0);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
	RUN_UNTIL(t, t->accepted_nr == 2);
	close(fd);
	close(fd2);
	RUN_UNTIL(t, t->accepted[0].closed && t->accepted[1].closed);
	(void)c;
}

static void test_addresses_in_use(void **state)
{
	struct net *t = *state;
	struct conn_listener *l, *other;
	struct conn_address at;
	struct err e;
	char text[200], want[400];
	struct stat st;
	int fd;

	/* a live unix socket */
	assert_int_equal(conn_address_parse(&at, t->path, NULL), SHARD_OK);
	assert_int_equal(conn_listen(&l, &t->loop, &at, 0600, accepted, t, &e), SHARD_EXISTS);
	snprintf(want, sizeof(want), "%s is in use by pid %d: stop that daemon or set [daemon] socket", t->path, getpid());
	assert_string_equal(e.text, want);
	assert_int_equal(stat(at.host, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	RUN_UNTIL(t, t->accepted_nr == 1 && t->accepted[0].closed); /* the probe */
	/* a file that is not a socket stays */
	snprintf(text, sizeof(text), "unix:%s/f", t->dir);
	assert_int_equal(conn_address_parse(&at, text, NULL), SHARD_OK);
	fd = open(at.host, O_CREAT | O_WRONLY, 0600);
	close(fd);
	assert_int_equal(conn_listen(&l, &t->loop, &at, 0600, accepted, t, &e), SHARD_EXISTS);
	assert_int_equal(unlink(at.host), 0);
	/* a stale socket is replaced, with the rights asked for */
	fd = socket(AF_UNIX, SOCK_STREAM, 0);
	struct address_sock sock;
	assert_true(address_numeric(&at, &sock));
	assert_int_equal(bind(fd, (struct sockaddr *)&sock.sa, sock.bytes), 0);
	close(fd);
	assert_int_equal(conn_listen(&l, &t->loop, &at, 0666, accepted, t, &e), SHARD_OK);
	assert_int_equal(stat(at.host, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0666);
	conn_listener_close(&l);
	/* a port in use */
	assert_int_equal(conn_address_parse(&at, "127.0.0.1:0", NULL), SHARD_OK);
	assert_int_equal(conn_listen(&l, &t->loop, &at, 0, accepted, t, NULL), SHARD_OK);
	snprintf(text, sizeof(text), "127.0.0.1:%u", conn_listener_port(l));
	assert_int_equal(conn_address_parse(&at, text, NULL), SHARD_OK);
	assert_int_equal(conn_listen(&other, &t->loop, &at, 0, accepted, t, &e), SHARD_EXISTS);
	snprintf(want, sizeof(want), "%s is in use (EADDRINUSE): stop the other daemon or set [daemon] listen", text);
	assert_string_equal(e.text, want);
	assert_null(other);
	conn_listener_close(&l);
}

/* Whatever allocation fails, an open that fails leaves no descriptor, no handle and no callback behind. */
static void test_alloc_fails(void **state)
{
#ifdef CAN_FAIL_ALLOC
	struct net *t = *state;
	struct conn_conf conf = t->conf;
	struct conn_listener *l = NULL;
	struct conn_address to;
	char where[100];
	int fds[2], n;

	conf.owner = &t->dialled;
	for (n = 1; n < 10; n++) {
		assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
		fail_alloc_in = n;
		enum shard_status rc = conn_accept(&t->dialled.c, &t->loop, fds[0], &conf, NULL);
		fail_alloc_in = 0;
		close(fds[1]);
		if (rc == SHARD_OK)
			break;
		assert_int_equal(rc, SHARD_SYSTEM);
		assert_null(t->dialled.c);
		assert_int_equal(fcntl(fds[0], F_GETFD), -1); /* taken over, so closed */
	}
	assert_int_equal(n, 3); /* the conn, its stream */
	RUN_UNTIL(t, t->dialled.closed == 1);
	memset(&t->dialled, 0, sizeof(t->dialled));
	assert_int_equal(conn_address_parse(&to, t->path, NULL), SHARD_OK);
	fail_alloc_in = 1;
	assert_int_equal(conn_connect(&t->dialled.c, &t->loop, &to, &conf, NULL), SHARD_SYSTEM);
	fail_alloc_in = 0;
	dial(t, t->path);
	fail_alloc_in = 1; /* the stream, once it is connected */
	RUN_UNTIL(t, t->dialled.closed == 1);
	assert_int_equal(fail_alloc_in, 0);
	assert_int_equal(t->dialled.opened, 0);
	RUN_UNTIL(t, t->accepted_nr == 1 && t->accepted[0].closed);
	snprintf(where, sizeof(where), "unix:%s/other", t->dir);
	assert_int_equal(conn_address_parse(&to, where, NULL), SHARD_OK);
	fail_alloc_in = 1;
	assert_int_equal(conn_listen(&l, &t->loop, &to, 0600, accepted, t, NULL), SHARD_SYSTEM);
	assert_null(l);
	assert_int_equal(access(to.host, F_OK), -1);
#else
	(void)state;
	(void)fail_alloc_in;
	skip();
#endif
}

static void test_parse(void **state)
{
	static const char *const good[] = {"unix:/run/shardd/shardd.sock", "tcp://a-node:29700", "10.0.0.1:1", "[::1]:29700",
					   "tcp://[fe80::1]:0"};
	static const char *const bad[] = {"",         "unix:",     "host",  "host:",      ":29700", "host:99999",
					  "host:12x", "::1:29700", "[::1]", "[::1:29700", "[]:5"};
	struct conn_address a;
	char longer[200];
	struct err e;

	(void)state;
	for (size_t i = 0; i < NR(good); i++)
		assert_int_equal(conn_address_parse(&a, good[i], &e), SHARD_OK);
	assert_string_equal(a.host, "fe80::1");
	for (size_t i = 0; i < NR(bad); i++) {
		assert_int_equal(conn_address_parse(&a, bad[i], &e), SHARD_BAD_ARG);
		assert_non_null(strstr(e.text, "write unix:/path"));
	}
	memset(longer, 'a', sizeof(longer));
	longer[199] = '\0';
	assert_int_equal(conn_address_parse(&a, longer, &e), SHARD_BAD_ARG);
	memcpy(longer, "unix:/", 6);
	longer[5 + 108] = '\0';
	assert_int_equal(conn_address_parse(&a, longer, &e), SHARD_BAD_ARG);
	longer[5 + 107] = '\0';
	assert_int_equal(conn_address_parse(&a, longer, &e), SHARD_OK);
	assert_int_equal(conn_address_parse(&a, "127.9.9.9:1", &e), SHARD_OK);
	assert_true(conn_address_loopback(&a));
	assert_int_equal(conn_address_parse(&a, "[::1]:1", &e), SHARD_OK);
	assert_true(conn_address_loopback(&a));
	assert_int_equal(conn_address_parse(&a, "0.0.0.0:1", &e), SHARD_OK);
	assert_false(conn_address_loopback(&a));
}

#define T(name) cmocka_unit_test_setup_teardown(name, net_up, net_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(test_talk),
		T(test_tcp),
		T(test_close_while_dialling),
		T(test_nobody_there),
		T(test_close_in_frame),
		T(test_second_address),
		T(test_linger),
		T(test_linger_ends),
		T(test_stall_and_silence),
		T(test_refusal_is_told),
		T(test_pause),
		T(test_drained),
		T(test_many),
		T(test_out_of_descriptors),
		T(test_addresses_in_use),
		T(test_alloc_fails),
		cmocka_unit_test(test_parse),
	};

	return cmocka_run_group_tests_name("conn", tests, NULL, NULL);
}
