// SPDX-License-Identifier: Apache-2.0
/* A connection. shard_connect() makes it (dial, HELLO, on tcp the thread), shard_disconnect() ends
 * it, and shard_fd() and shard_progress() watch it. Connections share nothing, so a process may
 * have several. It fails with SHARD_BAD_ARG, SHARD_UNREACHABLE, SHARD_TIMEOUT, SHARD_SYSTEM, or
 * with the daemon's own refusal of HELLO. In a forked child the parent's connection is only
 * dropped. Nothing is sent, the socket is not shut down, and no map is removed, because the child
 * has none. */
#include "again.h"
#include "define.h"
#include "push.h"
#include "secure.h"
#include "spawn/spawn.h"
#include "ticket.h"
#include "world.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#define CONNECT_TRIES   5
#define DEFAULT_ADDRESS "unix:/run/shardd/shardd.sock"

static enum shard_status no_system(const char *what)
{
	return text_fail(SHARD_SYSTEM, "%s: %s", what, strerror(errno));
}

static void client_log(struct shard_client *c, int level, const char *event, const char *what)
{
	char line[512];

	if (c->log == NULL)
		return;
	snprintf(line, sizeof(line), "event=%s address=%s what=\"%.300s\"", event, c->address,
		 what);
	c->log(c->log_arg, level, line);
}

static const struct client_events events = {
	.flush = push_flush_all,
	.heals = again_heals,
	.over = world_over,
	.turned = handle_reap,
};

static void locks_init(struct shard_client *c)
{
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_mutex_init(&c->lock, NULL);
	pthread_cond_init(&c->moved, &attr);
	pthread_condattr_destroy(&attr);
	atomic_flag_clear(&c->progress_busy);
}

/* Makes the memory, the page that a fork wipes, and the descriptors. */
static enum shard_status client_new(struct shard_client **out, const char *address,
				    const struct shard_connect_opts *o)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	struct shard_client *c = calloc(1, sizeof(*c));

	if (c == NULL)
		return text_no_memory("a connection");
	c->wake_fd = c->event_fd = c->epoll_fd = -1;
	snprintf(c->address, sizeof(c->address), "%s", address);
	c->events = &events;
	c->interrupts = &c->own_interrupts;
	c->log = o->log;
	c->log_arg = o->log_arg;
	c->timeout_ms = CLIENT_REQUEST_MS;
	c->silent_ms = CLIENT_CONNECT_MS;
	list_init(&c->requests);
	list_init(&c->models);
	list_init(&c->zombies);
	locks_init(c);
	*out = c;
	c->alive = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (c->alive == MAP_FAILED) {
		c->alive = NULL;
		return no_system("cannot map a page");
	}
	if (madvise(c->alive, page, MADV_WIPEONFORK) != 0)
		return no_system("cannot have a page wiped at fork");
	*c->alive = 1;
	c->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	c->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	c->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (c->wake_fd < 0 || c->event_fd < 0 || c->epoll_fd < 0)
		return no_system("cannot make a descriptor");
	return SHARD_OK;
}

static void close_fd(int fd)
{
	if (fd >= 0)
		close(fd);
}

static void close_all(struct shard_client *c)
{
	close_fd(c->wake_fd);
	close_fd(c->event_fd);
	close_fd(c->epoll_fd);
	if (c->alive != NULL)
		munmap(c->alive, (size_t)sysconf(_SC_PAGESIZE));
}

/* In a forked child another thread of the parent may have been in the middle of anything. The
 * descriptors are closed, and the memory is left as it is until the child ends or execs. */
static void client_forget(struct shard_client *c)
{
	close_fd(stream_fd(c->stream));
	list_each(it, &c->models)
		handle_forget(list_of(it, struct shard_model, node));
	close_all(c);
}

static void client_free(struct shard_client *c)
{
	/* Gives queued bodies back, so it comes before requests and models. */
	stream_free(&c->stream);
	c->landing = NULL;
	list_each(it, &c->models)
		handle_free(list_of(it, struct shard_model, node));
	list_each(it, &c->zombies)
		handle_free(list_of(it, struct shard_model, node));
	/* These belong to no caller any more. The models freed above drop theirs. */
	list_each(it, &c->requests) {
		struct request *r = list_of(it, struct request, node);

		r->answered = r->sent = true;
		request_free(r);
	}
	pthread_cond_destroy(&c->moved);
	pthread_mutex_destroy(&c->lock);
	close_all(c);
	free(c->secret);
	free(c->tls);
	free(c);
}

static enum shard_status watch(struct shard_client *c, int fd)
{
	struct epoll_event ev = {.events = EPOLLIN};

	return epoll_ctl(c->epoll_fd, EPOLL_CTL_ADD, fd, &ev) == 0
		       ? SHARD_OK
		       : no_system("cannot watch a descriptor");
}

static enum shard_status open_stream(struct shard_client *c, struct tls *tls, int fd)
{
	struct stream_conf conf = {.fd = fd,
				   .queue_max = CLIENT_QUEUE_MAX,
				   .body_max = WIRE_HELLO_MAX,
				   .handler = &incoming_handler,
				   .owner = c};
	struct err e;

	if (secure_stream(&c->stream, tls, &conf, &e) != SHARD_OK)
		return text_fail_err(&e);
	return watch(c, c->event_fd) == SHARD_OK ? client_watch(c) : SHARD_SYSTEM;
}

/* Only the thread reads a tcp socket. */
enum shard_status client_watch(struct shard_client *c)
{
	return c->tcp ? SHARD_OK : watch(c, stream_fd(c->stream));
}

struct connecting {
	const struct shard_connect_opts *o;
	struct shard_client *parent; /* Of client_connect(). */
	struct auth *auth;           /* NULL: no secret. */
	struct tls *tls;             /* NULL: no TLS. */
	bool tcp;
	uint64_t deadline_ns;
	struct shard_client *c; /* NULL after a failure. */
};

/* Dials, says HELLO and starts the thread. */
static enum shard_status introduce(struct shard_client *c, const struct connecting *a,
				   struct wait *w)
{
	enum shard_status rc;
	int fd;

	if ((rc = dial(c->address, w->deadline_ns, &fd)) != SHARD_OK)
		return rc;
	if ((rc = open_stream(c, a->tls, fd)) != SHARD_OK)
		return rc;
	bool tcp = c->tcp;

	c->tcp = false; /* Until the thread runs, this call pumps. */
	pthread_mutex_lock(&c->lock);
	rc = hello_say(c, a->auth, a->tls, w);
	c->tcp = tcp;
	pthread_mutex_unlock(&c->lock);
	return rc == SHARD_OK ? pump_start(c) : rc;
}

/* What again.c needs. One that it makes itself is interrupted with its parent, and has no thread.
 */
static enum shard_status keep_way(const struct connecting *a)
{
	struct shard_client *c = a->c, *p = a->parent;

	c->tcp = a->tcp && p == NULL;
	if (p != NULL) {
		c->interrupts = p->interrupts;
		close(c->wake_fd);
		c->wake_fd = fcntl(p->wake_fd, F_DUPFD_CLOEXEC, 0);
		return c->wake_fd >= 0 ? SHARD_OK : no_system("cannot make a descriptor");
	}
	c->look_ns = again_look_ns(a->o->look_ms);
	if (a->o->secret != NULL && (c->secret = strdup(a->o->secret)) == NULL)
		return text_no_memory("a connection");
	if (a->o->tls != NULL && (c->tls = strdup(a->o->tls)) == NULL)
		return text_no_memory("a connection");
	return SHARD_OK;
}

static enum shard_status connect_once(void *arg)
{
	struct connecting *a = arg;
	uint64_t now = clock_ns();
	enum shard_status rc = client_new(&a->c, a->o->address, a->o);
	struct wait w;

	if (rc == SHARD_OK && (rc = keep_way(a)) == SHARD_OK) {
		wait_begin(a->c, &w,
			   a->deadline_ns > now ? (int64_t)((a->deadline_ns - now) / NS_PER_MS) + 1
						: 1);
		rc = introduce(a->c, a, &w);
	}
	if (rc != SHARD_OK && a->c != NULL) {
		client_free(a->c);
		a->c = NULL;
	}
	return rc;
}

/* A daemon with too many new connections closes those that have not said HELLO yet. Over TCP that
 * may hit this one, so an opening that ends without a reason is tried again a few times. */
static enum shard_status connect_tries(struct connecting *a)
{
	enum shard_status rc = connect_once(a);

	for (int tries = 1; tries < CONNECT_TRIES && rc == SHARD_CLOSED && a->tcp; tries++) {
		if (clock_ns() >= a->deadline_ns)
			break;
		(void)poll(NULL, 0, 5 << tries);
		rc = connect_once(a);
	}
	return rc;
}

enum shard_status client_connect(const struct shard_connect_opts *o, struct shard_client *parent,
				 uint64_t deadline_ns, struct shard_client **out)
{
	struct connecting a = {.o = o, .parent = parent, .deadline_ns = deadline_ns};
	enum shard_status rc = dial_check(o->address, &a.tcp);
	struct err e;
	int error;

	if (rc != SHARD_OK)
		return rc;
	if (a.tcp && o->secret != NULL && o->secret[0] != 0 &&
	    auth_open(&a.auth, o->secret, &e) != SHARD_OK)
		return text_fail_err(&e);
	if (a.tcp && secure_open(&a.tls, o->tls, a.auth, &e) != SHARD_OK) {
		auth_close(&a.auth);
		return text_fail_err(&e);
	}
	rc = spawn_is(o->address) ? spawn_connect(o->address, deadline_ns, connect_once, &a)
				  : connect_tries(&a);
	error = errno;
	auth_close(&a.auth);
	tls_close(&a.tls);
	errno = error;
	*out = a.c;
	return rc;
}

enum shard_status shard_connect(shard_client **out, const struct shard_connect_opts *opts)
{
	struct shard_connect_opts o = {.size = sizeof(o)};
	enum shard_status rc;

	text_begin();
	if (out == NULL)
		return text_fail(SHARD_BAD_ARG, "shard_connect: where should the connection go? "
						"the first argument is NULL");
	*out = NULL;
	if (opts != NULL &&
	    (rc = text_struct_in(&o, sizeof(o), opts, "shard_connect_opts")) != SHARD_OK)
		return rc;
	if (o.address == NULL)
		o.address = secure_getenv("SHARD_ADDRESS");
	if (o.address == NULL || o.address[0] == 0)
		o.address = DEFAULT_ADDRESS;
	if (o.secret == NULL)
		o.secret = secure_getenv("SHARD_SECRET");
	if (o.tls == NULL)
		o.tls = secure_getenv("SHARD_TLS");
	if ((rc = again_first(&o, out)) == SHARD_OK)
		client_log(*out, 6, "connected", shard_version());
	return rc;
}

void shard_disconnect(shard_client **cp)
{
	struct shard_client *c;

	if (cp == NULL || (c = *cp) == NULL)
		return;
	*cp = NULL;
	if (client_forked(c)) {
		client_forget(c);
		return;
	}
	pump_stop(c);
	client_log(c, 6, "disconnected", c->over.status ? c->over.text : "");
	client_free(c);
}

int shard_fd(const shard_client *c)
{
	if (c == NULL || client_forked(c)) {
		text_fail(c ? SHARD_FORKED : SHARD_BAD_ARG, "shard_fd: %s",
			  c ? "this connection belongs to the parent process" : "NULL");
		return -1;
	}
	return c->epoll_fd;
}

enum shard_status shard_progress(shard_client *c)
{
	enum shard_status rc;
	uint64_t drop;

	if (c == NULL)
		return text_fail(SHARD_BAD_ARG, "shard_progress: the connection is NULL");
	if ((rc = client_enter(c)) != SHARD_OK)
		return rc;
	if (atomic_flag_test_and_set(&c->progress_busy)) {
		client_leave(c);
		return text_fail(SHARD_BUSY, "shard_progress() runs in another thread");
	}
	if (c->event_set && read(c->event_fd, &drop, sizeof(drop)) == (ssize_t)sizeof(drop))
		c->event_set = false;
	if (!c->tcp)
		rc = pump_once(c);
	list_each(it, &c->models)
		ticket_settle(list_of(it, struct shard_model, node));
	c->news = false; /* The caller is here and looks itself. */
	pump_moved(c);
	atomic_flag_clear(&c->progress_busy);
	client_leave(c);
	return rc;
}
