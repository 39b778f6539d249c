/* SPDX-License-Identifier: Apache-2.0 */
/* Tests connections on a loop: open and close in every order with exactly one on_close, listeners
 * and their addresses, and resources that run out. What goes over an open connection is in
 * test_conn_flow.c. */
#include "base/check.h"
#include "lib/loopnet.h"
#include "net/conn_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static int fail_alloc_in; /* The n-th allocation from now fails. 0: none does. */

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

/* Makes epoll_ctl(2) fail, also in libuv, as if the user watched as many descriptors as the kernel
 * allows. */
static bool no_more_watches;

__attribute__((visibility("default"))) int epoll_ctl(int epfd, int op, int fd,
						     struct epoll_event *event)
{
	if (no_more_watches && op == EPOLL_CTL_ADD) {
		errno = ENOSPC;
		return -1;
	}
	return (int)syscall(SYS_epoll_ctl, epfd, op, fd, event);
}

/* Two ends exchange frames over a unix socket, each knows the user of the other, and each closes
 * once. */
static void test_talk(void **state)
{
	struct loopnet *t = *state;
	uint32_t pid, uid, gid, groups[64], mine[64];

	loopnet_connected(t, t->path);
	t->accepted[0].answer = true;
	for (uint32_t i = 1; i <= 5; i++) {
		loopnet_ping(t->dialled.c);
		RUN_UNTIL(t, t->dialled.got.nr == i);
	}
	assert_true(conn_is_unix(t->dialled.c));
	assert_true(conn_peer(t->accepted[0].c, &pid, &uid, &gid));
	assert_int_equal(pid, getpid());
	assert_int_equal(uid, getuid());
	assert_int_equal(conn_peer_groups(t->accepted[0].c, groups, NR(groups)),
			 getgroups(NR(mine), mine));
	conn_close(t->dialled.c, NULL, 0);
	assert_int_equal(t->dialled.closed, 0); /* on_close() does not run inside conn_close(). */
	conn_close(t->dialled.c, NULL, 0);      /* A second close does no harm. */
	RUN_UNTIL(t, t->dialled.closed && t->accepted[0].closed);
	assert_int_equal(t->dialled.why.status, SHARD_CLOSED);
	assert_int_equal(t->accepted[0].why.status, SHARD_CLOSED);
	assert_int_equal(t->accepted[0].stats.frames_in, 5);
}

/* A machine without "localhost" in /etc/hosts would ask a name server, which may take minutes to
 * refuse. */
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

/* A connection over tcp to a name works, and tells no user of the other end. */
static void test_tcp(void **state)
{
	struct loopnet *t = *state;
	struct conn_listener *l;
	struct conn_address at;
	char where[64];
	uint32_t id;

	assert_int_equal(conn_address_parse(&at, "127.0.0.1:0", NULL), SHARD_OK);
	assert_int_equal(conn_listen(&l, &t->loop, &at, 0, loopnet_accepted, t, NULL), SHARD_OK);
	/* The name may resolve to ::1 first, where nobody listens. */
	snprintf(where, sizeof(where), "tcp://%s:%u", has_localhost() ? "localhost" : "127.0.0.1",
		 conn_listener_port(l));
	loopnet_connected(t, where);
	assert_false(conn_is_unix(t->dialled.c));
	assert_false(conn_peer(t->dialled.c, &id, &id, &id));
	t->accepted[0].answer = true;
	loopnet_ping(t->dialled.c);
	RUN_UNTIL(t, t->dialled.got.nr == 1);
	conn_close(t->accepted[0].c, NULL, 1000);
	RUN_UNTIL(t, t->dialled.closed && t->accepted[0].closed);
	conn_listener_close(&l);
}

/* A connection that is closed while it dials calls on_close() and never on_open(). It may also be
 * closed in on_open(). */
static void test_close_while_dialling(void **state)
{
	struct loopnet *t = *state;

	loopnet_dial(t, t->path);
	conn_close(t->dialled.c, NULL, 100);
	RUN_UNTIL(t, t->dialled.closed);
	assert_int_equal(t->dialled.opened, 0);
	memset(&t->dialled, 0, sizeof(t->dialled));
	loopnet_dial(t, "localhost:1"); /* Closed while the name is resolved. */
	conn_close(t->dialled.c, NULL, 0);
	RUN_UNTIL(t, t->dialled.closed);
	memset(&t->dialled, 0, sizeof(t->dialled));
	t->dialled.close_on_open = true;
	loopnet_dial(t, t->path);
	RUN_UNTIL(t, t->dialled.closed);
	assert_int_equal(t->dialled.opened, 1);
	RUN_UNTIL(t, t->accepted_nr > 0 && t->accepted[t->accepted_nr - 1].closed);
	for (int i = 0; i < t->accepted_nr; i++)
		RUN_UNTIL(t, t->accepted[i].closed);
}

/* Where nobody listens, the error names the address and the reason. */
static void test_nobody_there(void **state)
{
	struct loopnet *t = *state;
	struct conn_conf conf = t->conf;
	struct conn_address to;
	struct err e;

	loopnet_dial(t, "127.0.0.1:1");
	RUN_UNTIL(t, t->dialled.closed);
	assert_int_equal(t->dialled.why.status, SHARD_UNREACHABLE);
	assert_string_equal(
		t->dialled.why.text,
		"cannot connect to 127.0.0.1:1: Connection refused: is shardd running there?");
	memset(&t->dialled, 0, sizeof(t->dialled));
	loopnet_dial(t, "localhost:1");
	RUN_UNTIL(t, t->dialled.closed);
	assert_int_equal(t->dialled.why.status, SHARD_UNREACHABLE);
	conf.owner = &t->dialled;
	assert_int_equal(conn_address_parse(&to, "unix:/nowhere/at/all", NULL), SHARD_OK);
	assert_int_equal(conn_connect(&t->dialled.c, &t->loop, &to, &conf, &e), SHARD_UNREACHABLE);
	assert_null(t->dialled.c);
}

/* A name has two addresses, of which the first refuses. The second one is tried. */
static void test_second_address(void **state)
{
	struct loopnet *t = *state;
	struct conn_address to;

	loopnet_dial(t, "127.0.0.1:1");
	assert_int_equal(conn_address_parse(&to, t->path, NULL), SHARD_OK);
	assert_true(address_numeric(&to, &t->dialled.c->dial.target[1]));
	t->dialled.c->dial.targets_nr = 2;
	RUN_UNTIL(t, t->dialled.opened && t->accepted_nr == 1);
	conn_close(t->dialled.c, NULL, 0);
	RUN_UNTIL(t, t->dialled.closed && t->accepted[0].closed);
	memset(&t->dialled, 0, sizeof(t->dialled));
	loopnet_dial(t, "127.0.0.1:1");
	t->dialled.c->dial.target[1] = t->dialled.c->dial.target[0];
	t->dialled.c->dial.targets_nr = 2;
	RUN_UNTIL(t, t->dialled.closed);
	assert_int_equal(t->dialled.why.status, SHARD_UNREACHABLE);
}

/* on_frame() may close its connection. */
static void test_close_in_frame(void **state)
{
	struct loopnet *t = *state;

	loopnet_connected(t, t->path);
	t->accepted[0].close_on_frame = true;
	loopnet_ping(t->dialled.c);
	loopnet_ping(t->dialled.c);
	RUN_UNTIL(t, t->dialled.closed && t->accepted[0].closed);
	assert_int_equal(t->accepted[0].got.nr, 1); /* The second one is not delivered. */
}

/* Connections that send garbage or close at once leave no descriptor behind. */
static void test_many(void **state)
{
	struct loopnet *t = *state;
	uint32_t before = frames_open_fds();
	int fds[LOOPNET_MAX];

	for (int i = 0; i < LOOPNET_MAX; i++) {
		fds[i] = loopnet_raw(t);
		if (i % 3 == 0)
			assert_int_equal(send(fds[i],
					      "garbage that is long enough to be taken for a "
					      "header, and is not",
					      64, 0),
					 64);
		if (i % 3 == 1)
			close(fds[i]);
	}
	RUN_UNTIL(t, t->accepted_nr == LOOPNET_MAX);
	for (int i = 0; i < LOOPNET_MAX; i++) {
		if (i % 3 != 1)
			close(fds[i]);
		RUN_UNTIL(t, t->accepted[i].closed);
	}
	assert_int_equal(frames_open_fds(), before);
}

/* A listener without descriptors waits, and accepts again when there are some. */
static void test_out_of_descriptors(void **state)
{
	struct loopnet *t = *state;
	struct rlimit old, low;
	int fd = loopnet_raw(t), fd2 = loopnet_raw(t);
	char c;

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
	low = old;
	/* More are open than that, so no new descriptor is possible, even after the listener closes
	 * its spare one. */
	low.rlim_cur = 3;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
	for (int i = 0; i < 5; i++)
		uv_run(&t->loop, UV_RUN_NOWAIT); /* This must neither loop for ever nor crash. */
	assert_int_equal(t->accepted_nr, 0);
	/* The loop sleeps, although connections still wait at the listener. */
	assert_true(uv_backend_timeout(&t->loop) > 0);
	assert_int_equal(poll(&(struct pollfd){uv_backend_fd(&t->loop), POLLIN, 0}, 1, 0), 0);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
	RUN_UNTIL(t, t->accepted_nr == 2);
	close(fd);
	close(fd2);
	RUN_UNTIL(t, t->accepted[0].closed && t->accepted[1].closed);
	(void)c;
}

/* A listener replaces a stale socket file, and nothing else that is at its address. */
static void test_addresses_in_use(void **state)
{
	struct loopnet *t = *state;
	struct conn_listener *l, *other;
	struct conn_address at;
	struct err e;
	char text[200], want[400], name[20];
	FILE *comm;
	struct stat st;
	int fd;

	/* A unix socket at which a daemon listens is not replaced. */
	assert_int_equal(conn_address_parse(&at, t->path, NULL), SHARD_OK);
	assert_int_equal(conn_listen(&l, &t->loop, &at, 0600, loopnet_accepted, t, &e),
			 SHARD_EXISTS);
	snprintf(want, sizeof(want),
		 "%s is in use by pid %d: stop that daemon or set [daemon] socket", t->path,
		 getpid());
	assert_string_equal(e.text, want);
	assert_int_equal(stat(at.host, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	/* The attempt to listen has connected to find out whether anybody is there. */
	RUN_UNTIL(t, t->accepted_nr == 1 && t->accepted[0].closed);
	/* A file that is not a socket stays. */
	snprintf(text, sizeof(text), "unix:%s/f", t->dir);
	assert_int_equal(conn_address_parse(&at, text, NULL), SHARD_OK);
	fd = open(at.host, O_CREAT | O_WRONLY, 0600);
	close(fd);
	assert_int_equal(conn_listen(&l, &t->loop, &at, 0600, loopnet_accepted, t, &e),
			 SHARD_EXISTS);
	assert_int_equal(unlink(at.host), 0);
	/* A stale socket is replaced, and the new one has the given mode. */
	fd = socket(AF_UNIX, SOCK_STREAM, 0);
	struct address_sock sock;
	assert_true(address_numeric(&at, &sock));
	assert_int_equal(bind(fd, (struct sockaddr *)&sock.sa, sock.bytes), 0);
	close(fd);
	assert_int_equal(conn_listen(&l, &t->loop, &at, 0666, loopnet_accepted, t, &e), SHARD_OK);
	assert_int_equal(stat(at.host, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0666);
	conn_listener_close(&l);
	/* A port may be in use. */
	assert_int_equal(conn_address_parse(&at, "127.0.0.1:0", NULL), SHARD_OK);
	assert_int_equal(conn_listen(&l, &t->loop, &at, 0, loopnet_accepted, t, NULL), SHARD_OK);
	snprintf(text, sizeof(text), "127.0.0.1:%u", conn_listener_port(l));
	assert_int_equal(conn_address_parse(&at, text, NULL), SHARD_OK);
	assert_int_equal(conn_listen(&other, &t->loop, &at, 0, loopnet_accepted, t, &e),
			 SHARD_EXISTS);
	/* The name that the kernel has is that of an emulator, where there is one. */
	comm = fopen("/proc/self/comm", "re");
	assert_non_null(comm);
	assert_int_equal(fscanf(comm, "%19s", name), 1);
	fclose(comm);
	snprintf(want, sizeof(want),
		 "%s is in use (EADDRINUSE) by pid %d (%s): stop that, or set [daemon] listen to "
		 "another address",
		 text, (int)getpid(), name);
	assert_string_equal(e.text, want);
	assert_null(other);
	conn_listener_close(&l);
}

/* If the loop cannot watch a listener, the listen fails and leaves neither a descriptor nor a
 * socket file. */
static void test_out_of_watches(void **state)
{
	struct loopnet *t = *state;
	struct conn_listener *l;
	struct conn_address at;
	int before = frames_open_fds();
	char text[200], want[400];
	struct err e;

	snprintf(text, sizeof(text), "unix:%s/other", t->dir);
	assert_int_equal(conn_address_parse(&at, text, NULL), SHARD_OK);
	no_more_watches = true;
	assert_int_equal(conn_listen(&l, &t->loop, &at, 0600, loopnet_accepted, t, &e),
			 SHARD_SYSTEM);
	no_more_watches = false;
	assert_null(l);
	snprintf(want, sizeof(want),
		 "the loop cannot watch %s: %s: raise the sysctl fs.epoll.max_user_watches", text,
		 uv_strerror(UV_ENOSPC));
	assert_string_equal(e.text, want);
	assert_int_equal(access(at.host, F_OK), -1);
	assert_int_equal(frames_open_fds(), before);
	assert_int_equal(conn_listen(&l, &t->loop, &at, 0600, loopnet_accepted, t, &e), SHARD_OK);
	conn_listener_close(&l);
}

/* Whatever allocation fails, an open that fails leaves no descriptor, no handle and no callback
 * behind. */
static void test_alloc_fails(void **state)
{
#ifdef CAN_FAIL_ALLOC
	struct loopnet *t = *state;
	struct conn_conf conf = t->conf;
	struct conn_listener *l = NULL;
	struct conn_address to;
	char where[100];
	int fds[2], n;

	t->fail_alloc_in = &fail_alloc_in;
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
		/* conn_accept() owns the descriptor, so it has closed it. */
		assert_int_equal(fcntl(fds[0], F_GETFD), -1);
	}
	assert_int_equal(n, 3); /* There are two allocations: the connection and its stream. */
	RUN_UNTIL(t, t->dialled.closed == 1);
	memset(&t->dialled, 0, sizeof(t->dialled));
	assert_int_equal(conn_address_parse(&to, t->path, NULL), SHARD_OK);
	fail_alloc_in = 1;
	assert_int_equal(conn_connect(&t->dialled.c, &t->loop, &to, &conf, NULL), SHARD_SYSTEM);
	fail_alloc_in = 0;
	loopnet_dial(t, t->path);
	fail_alloc_in = 1; /* The stream is allocated once the connection is open. */
	RUN_UNTIL(t, t->dialled.closed == 1);
	assert_int_equal(fail_alloc_in, 0);
	assert_int_equal(t->dialled.opened, 0);
	RUN_UNTIL(t, t->accepted_nr == 1 && t->accepted[0].closed);
	snprintf(where, sizeof(where), "unix:%s/other", t->dir);
	assert_int_equal(conn_address_parse(&to, where, NULL), SHARD_OK);
	fail_alloc_in = 1;
	assert_int_equal(conn_listen(&l, &t->loop, &to, 0600, loopnet_accepted, t, NULL),
			 SHARD_SYSTEM);
	assert_null(l);
	assert_int_equal(access(to.host, F_OK), -1);
#else
	(void)state;
	(void)fail_alloc_in;
	skip();
#endif
}

/* Addresses are parsed or refused with the forms that are possible. */
static void test_parse(void **state)
{
	static const char *const good[] = {"unix:/run/shardd/shardd.sock", "tcp://a-node:29700",
					   "10.0.0.1:1", "[::1]:29700", "tcp://[fe80::1]:0"};
	static const char *const bad[] = {
		"",         "unix:",     "host",  "host:",      ":29700", "host:99999",
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

#define T(name) cmocka_unit_test_setup_teardown(name, loopnet_up, loopnet_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(test_talk),
		T(test_tcp),
		T(test_close_while_dialling),
		T(test_nobody_there),
		T(test_close_in_frame),
		T(test_second_address),
		T(test_many),
		T(test_out_of_descriptors),
		T(test_out_of_watches),
		T(test_addresses_in_use),
		T(test_alloc_fails),
		cmocka_unit_test(test_parse),
	};

	return cmocka_run_group_tests_name("conn", tests, NULL, NULL);
}
