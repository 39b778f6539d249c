/* SPDX-License-Identifier: Apache-2.0 */
/* A service manager's half of sd_notify(3) and sd_listen_fds(3). proc.c calls it for the nodes of a
 * cluster, and so do tests that look into the store or change it. Happy path: each datagram is a
 * list of lines. FDSTORE=1 keeps the descriptors that come with it under FDNAME, unless the same
 * file is there already. FDSTOREREMOVE=1 closes those of a name. BARRIER=1 closes the descriptor
 * that comes with it, which is its answer. A call that fails ends the test by CHECK. */
#include "lib/fdstore.h"

#include "base/check.h"
#include "base/clock.h"
#include "lib/pace.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { MESSAGE = 4096, MESSAGE_FDS = 253, FIRST_FD = 3 };

struct kept {
	int fd;
	char name[FDSTORE_NAME];
};

struct fdstore {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t moved;
	int fd, stop_fd;
	char path[108];
	uint32_t max, nr, refused;
	uint64_t ready_ns;
	struct kept kept[FDSTORE_MAX]; /* Oldest first. */
};

static bool same(int a, int b)
{
	struct stat x, y;

	return fstat(a, &x) == 0 && fstat(b, &y) == 0 && x.st_dev == y.st_dev &&
	       x.st_ino == y.st_ino;
}

static void keep(struct fdstore *s, const char *name, int fd)
{
	for (uint32_t i = 0; i < s->nr; i++)
		if (same(s->kept[i].fd, fd)) {
			close(fd);
			return;
		}
	if (s->nr == s->max) {
		s->refused++;
		close(fd);
		return;
	}
	s->kept[s->nr].fd = fd;
	snprintf(s->kept[s->nr].name, FDSTORE_NAME, "%s", name);
	s->nr++;
}

static uint32_t forget(struct fdstore *s, const char *name)
{
	uint32_t left = 0, gone;

	for (uint32_t i = 0; i < s->nr; i++) {
		if (name == NULL || strcmp(s->kept[i].name, name) == 0)
			close(s->kept[i].fd);
		else
			s->kept[left++] = s->kept[i];
	}
	gone = s->nr - left;
	s->nr = left;
	return gone;
}

static bool name_is_valid(const char *name)
{
	size_t bytes = strlen(name);

	for (size_t i = 0; i < bytes; i++)
		if (name[i] < ' ' || name[i] == 127 || name[i] == ':')
			return false;
	return bytes > 0 && bytes < FDSTORE_NAME;
}

/* Takes over the descriptors. */
static void heard(struct fdstore *s, char *text, int *fds, size_t fds_nr)
{
	const char *name = NULL;
	bool store = false, removes = false;
	char *rest = NULL;

	for (char *line = strtok_r(text, "\n", &rest); line != NULL;
	     line = strtok_r(NULL, "\n", &rest)) {
		store |= strcmp(line, "FDSTORE=1") == 0;
		removes |= strcmp(line, "FDSTOREREMOVE=1") == 0;
		if (strcmp(line, "READY=1") == 0 && s->ready_ns == 0)
			s->ready_ns = clock_ns();
		if (strncmp(line, "FDNAME=", 7) == 0 && name_is_valid(line + 7))
			name = line + 7;
	}
	if (removes && name != NULL)
		forget(s, name);
	for (size_t i = 0; i < fds_nr; i++) {
		if (store && !removes)
			keep(s, name ? name : "stored", fds[i]);
		else
			close(fds[i]); /* For a barrier this is the answer. */
	}
}

/* Takes one datagram, if there is one. */
static bool take(struct fdstore *s)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(MESSAGE_FDS * sizeof(int))];
	} control;
	char text[MESSAGE + 1];
	struct iovec iov = {text, MESSAGE};
	struct msghdr m = {.msg_iov = &iov,
			   .msg_iovlen = 1,
			   .msg_control = control.bytes,
			   .msg_controllen = sizeof(control)};
	ssize_t n = recvmsg(s->fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	int fds[MESSAGE_FDS];
	size_t nr = 0;

	if (n < 0) {
		CHECK(errno == EAGAIN || errno == EINTR);
		return false;
	}
	CHECK(!(m.msg_flags & (MSG_TRUNC | MSG_CTRUNC)));
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c != NULL; c = CMSG_NXTHDR(&m, c))
		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
			nr = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
			memcpy(fds, CMSG_DATA(c), nr * sizeof(int));
		}
	text[n] = 0;
	heard(s, text, fds, nr);
	pthread_cond_broadcast(&s->moved);
	return true;
}

static void *listen_thread(void *arg)
{
	struct fdstore *s = arg;
	struct pollfd p[2] = {{.fd = s->fd, .events = POLLIN},
			      {.fd = s->stop_fd, .events = POLLIN}};

	for (;;) {
		if (poll(p, 2, -1) < 0)
			continue;
		if (p[1].revents)
			return NULL;
		pthread_mutex_lock(&s->lock);
		while (take(s))
			;
		pthread_mutex_unlock(&s->lock);
	}
}

struct fdstore *fdstore_start(const char *path, uint32_t max)
{
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	struct fdstore *s = calloc(1, sizeof(*s));
	pthread_condattr_t attr;

	CHECK(s != NULL && max <= FDSTORE_MAX && strlen(path) < sizeof(un.sun_path));
	s->max = max;
	strcpy(s->path, path);
	strcpy(un.sun_path, path);
	s->stop_fd = eventfd(0, EFD_CLOEXEC);
	s->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	CHECK(s->stop_fd >= 0 && s->fd >= 0 &&
	      bind(s->fd, (struct sockaddr *)&un, sizeof(un)) == 0);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->moved, &attr);
	pthread_condattr_destroy(&attr);
	CHECK(pthread_create(&s->thread, NULL, listen_thread, s) == 0);
	return s;
}

void fdstore_stop(struct fdstore **sp)
{
	struct fdstore *s = *sp;
	uint64_t one = 1;

	if (s == NULL)
		return;
	CHECK(write(s->stop_fd, &one, sizeof(one)) == (ssize_t)sizeof(one));
	pthread_join(s->thread, NULL);
	while (take(s)) /* Nobody else closes descriptors in flight. */
		;
	forget(s, NULL);
	close(s->fd);
	close(s->stop_fd);
	unlink(s->path);
	pthread_cond_destroy(&s->moved);
	pthread_mutex_destroy(&s->lock);
	free(s);
	*sp = NULL;
}

void fdstore_begin(struct fdstore *s)
{
	pthread_mutex_lock(&s->lock);
	while (take(s))
		;
	s->ready_ns = 0;
	pthread_mutex_unlock(&s->lock);
}

/* It runs alone in a forked copy of the test and takes no lock, which another thread may have
 * held. */
void fdstore_child(struct fdstore *s)
{
	size_t room = 1 + FDSTORE_NAME * (size_t)s->nr, at = 0;
	char *names = calloc(1, room), number[32];
	int above[FDSTORE_MAX];

	CHECK(names != NULL);
	for (uint32_t i = 0; i < s->nr; i++) {
		const struct kept *k = &s->kept[s->nr - 1 - i];

		above[i] = fcntl(k->fd, F_DUPFD_CLOEXEC, FIRST_FD + (int)s->nr);
		CHECK(above[i] >= 0);
		at += (size_t)snprintf(names + at, room - at, "%s%s", i ? ":" : "", k->name);
	}
	for (uint32_t i = 0; i < s->nr; i++)
		CHECK(dup2(above[i], FIRST_FD + (int)i) == FIRST_FD + (int)i);
	setenv("NOTIFY_SOCKET", s->path, 1);
	if (s->nr > 0) {
		snprintf(number, sizeof(number), "%d", (int)getpid());
		setenv("LISTEN_PID", number, 1);
		snprintf(number, sizeof(number), "%u", s->nr);
		setenv("LISTEN_FDS", number, 1);
		setenv("LISTEN_FDNAMES", names, 1);
	}
	free(names);
}

uint32_t fdstore_count(struct fdstore *s)
{
	uint32_t nr;

	pthread_mutex_lock(&s->lock);
	while (take(s))
		;
	nr = s->nr;
	pthread_mutex_unlock(&s->lock);
	return nr;
}

uint32_t fdstore_refused(struct fdstore *s)
{
	uint32_t nr;

	pthread_mutex_lock(&s->lock);
	nr = s->refused;
	pthread_mutex_unlock(&s->lock);
	return nr;
}

void fdstore_name(struct fdstore *s, uint32_t i, char name[FDSTORE_NAME])
{
	pthread_mutex_lock(&s->lock);
	CHECK(i < s->nr);
	memcpy(name, s->kept[i].name, FDSTORE_NAME);
	pthread_mutex_unlock(&s->lock);
}

int fdstore_fd(struct fdstore *s, const char *name)
{
	int fd = -1;

	pthread_mutex_lock(&s->lock);
	for (uint32_t i = s->nr; i-- > 0 && fd < 0;)
		if (strcmp(s->kept[i].name, name) == 0)
			fd = fcntl(s->kept[i].fd, F_DUPFD_CLOEXEC, 0);
	pthread_mutex_unlock(&s->lock);
	return fd;
}

uint32_t fdstore_forget(struct fdstore *s, const char *name)
{
	uint32_t gone;

	pthread_mutex_lock(&s->lock);
	while (take(s))
		;
	gone = forget(s, name);
	pthread_mutex_unlock(&s->lock);
	return gone;
}

void fdstore_put(struct fdstore *s, const char *name, int fd)
{
	CHECK(fcntl(fd, F_SETFD, FD_CLOEXEC) == 0);
	pthread_mutex_lock(&s->lock);
	keep(s, name, fd);
	pthread_mutex_unlock(&s->lock);
}

uint64_t fdstore_ready_ns(struct fdstore *s, int ms)
{
	uint64_t until = clock_ns() + pace_ns((uint64_t)ms * NS_PER_MS), at;
	struct timespec ts = {.tv_sec = (time_t)(until / NS_PER_SEC),
			      .tv_nsec = (long)(until % NS_PER_SEC)};

	pthread_mutex_lock(&s->lock);
	while (s->ready_ns == 0 && clock_ns() < until)
		(void)pthread_cond_timedwait(&s->moved, &s->lock, &ts);
	at = s->ready_ns;
	pthread_mutex_unlock(&s->lock);
	return at;
}
