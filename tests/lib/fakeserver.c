// SPDX-License-Identifier: Apache-2.0
/* The thread of the scripted daemon, and the functions that a test calls. The thread accepts one
 * connection after the other and answers its frames (fakeserver_ops.c) with the lock held. The
 * functions for tests take the lock, too, so that two threads never use a stream at the same time.
 * What goes wrong here ends the test by CHECK. */
#include "lib/fakeserver_impl.h"

#include "base/check.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static void accept_one(struct fake *f)
{
	struct stream_conf conf = {.queue_max = 4096,
				   .body_max = WIRE_HELLO_MAX,
				   .handler = &fake_handler,
				   .owner = f};

	conf.fd = accept4(f->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (conf.fd < 0)
		return;
	stream_free(&f->stream);
	f->accepted++;
	CHECK(stream_open(&f->stream, &conf, NULL) == SHARD_OK);
}

static void serve(struct fake *f)
{
	struct err e;
	enum shard_status rc;

	if (f->stream == NULL)
		return;
	rc = stream_read(f->stream, 1 << 20, &e);
	if (rc == SHARD_OK)
		rc = stream_write(f->stream, &e);
	if (rc != SHARD_OK && rc != SHARD_AGAIN)
		stream_free(&f->stream);
}

static void *run(void *arg)
{
	struct fake *f = arg;
	char drop[64];

	pthread_mutex_lock(&f->lock);
	while (!f->stop) {
		struct pollfd p[3] = {
			{.fd = f->listen_fd, .events = POLLIN},
			{.fd = f->command_fd[0], .events = POLLIN},
			{.fd = f->stream ? stream_fd(f->stream) : -1, .events = POLLIN}};

		if (f->stream != NULL && stream_queued(f->stream) > 0)
			p[2].events |= POLLOUT;
		pthread_mutex_unlock(&f->lock);
		CHECK(poll(p, 3, -1) >= 0);
		pthread_mutex_lock(&f->lock);
		if (p[1].revents)
			(void)!read(f->command_fd[0], drop, sizeof(drop));
		serve(f);
		if (p[0].revents)
			accept_one(f);
	}
	pthread_mutex_unlock(&f->lock);
	return NULL;
}

static void listen_at(struct fake *f)
{
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t bytes = sizeof(in);

	strcpy(f->dir, "/tmp/shard-fake-XXXXXX");
	CHECK(mkdtemp(f->dir) != NULL);
	f->listen_fd = socket(f->conf.tcp ? AF_INET : AF_UNIX,
			      SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (f->conf.tcp) {
		CHECK(bind(f->listen_fd, (struct sockaddr *)&in, sizeof(in)) == 0);
		CHECK(getsockname(f->listen_fd, (struct sockaddr *)&in, &bytes) == 0);
		snprintf(f->address, sizeof(f->address), "tcp://127.0.0.1:%u", ntohs(in.sin_port));
	} else {
		snprintf(un.sun_path, sizeof(un.sun_path), "%s/s", f->dir);
		CHECK(bind(f->listen_fd, (struct sockaddr *)&un, sizeof(un)) == 0);
		snprintf(f->address, sizeof(f->address), "unix:%s/s", f->dir);
	}
	CHECK(listen(f->listen_fd, 8) == 0);
}

struct fake *fake_start(const struct fake_conf *conf)
{
	struct fake *f = calloc(1, sizeof(*f));

	CHECK(f != NULL);
	f->conf = *conf;
	f->conf.chunk_elems = conf->chunk_elems ? conf->chunk_elems : 1024;
	f->conf.world_size = conf->world_size ? conf->world_size : 1;
	f->conf.timeout_ms = conf->timeout_ms ? conf->timeout_ms : 20000;
	f->arena.fd = f->shared.fd = -1;
	f->generation = FAKE_GENERATION;
	f->saved = calloc(FAKE_ELEMS_MAX, 4);
	f->master = calloc(FAKE_ELEMS_MAX, 4);
	f->moment = calloc(FAKE_ELEMS_MAX, 4);
	f->landing = calloc(WIRE_PART_BYTES, 1);
	f->tensor_absent = calloc(sizeof(f->tensors) / sizeof(f->tensors[0]), 1);
	pthread_mutex_init(&f->lock, NULL);
	pthread_cond_init(&f->moved, NULL);
	listen_at(f);
	CHECK(pipe2(f->command_fd, O_CLOEXEC | O_NONBLOCK) == 0);
	CHECK(pthread_create(&f->thread, NULL, run, f) == 0);
	return f;
}

void fake_lock(struct fake *f)
{
	pthread_mutex_lock(&f->lock);
}

void fake_unlock(struct fake *f)
{
	CHECK(write(f->command_fd[1], "x", 1) == 1); /* Wakes the thread, which looks again. */
	pthread_mutex_unlock(&f->lock);
}

void fake_stop(struct fake *f)
{
	char path[80];

	fake_lock(f);
	f->stop = true;
	fake_unlock(f);
	pthread_join(f->thread, NULL);
	stream_free(&f->stream);
	fake_unjoin(f);
	close(f->listen_fd);
	close(f->command_fd[0]);
	close(f->command_fd[1]);
	snprintf(path, sizeof(path), "%s/s", f->dir);
	unlink(path);
	rmdir(f->dir);
	free(f->master);
	free(f->saved);
	free(f->spec);
	free(f->moment);
	free(f->landing);
	free(f->tensor_absent);
	free(f->chunk_pushed);
	pthread_cond_destroy(&f->moved);
	pthread_mutex_destroy(&f->lock);
	free(f);
}

void fake_await(struct fake *f, uint16_t op, uint32_t n)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	ts.tv_sec += 10;
	pthread_mutex_lock(&f->lock);
	while (f->frames[op] < n)
		CHECK(pthread_cond_timedwait(&f->moved, &f->lock, &ts) == 0);
	pthread_mutex_unlock(&f->lock);
}

void fake_send(struct fake *f, const struct wire_head *h, const ProtobufCMessage *msg)
{
	fake_lock(f);
	fake_control(f, h, msg);
	fake_unlock(f);
}

static void send_why(struct fake *f, uint16_t op, const char *why)
{
	struct wire_head h = fake_head(f, op);
	Shard__Why w = SHARD__WHY__INIT;

	w.why = (char *)(uintptr_t)why;
	h.generation += op == OP_LOST; /* LOST carries the generation that begins. */
	fake_lock(f);
	fake_control(f, &h, &w.base);
	fake_unlock(f);
}

void fake_ended(struct fake *f, const char *why)
{
	send_why(f, OP_ENDED, why);
}

void fake_lost(struct fake *f, const char *why)
{
	send_why(f, OP_LOST, why);
}

void fake_rolled_back(struct fake *f, uint64_t step, const char *why)
{
	fake_lock(f);
	fake_roll_back(f, step, why);
	fake_unlock(f);
}

void fake_progress(struct fake *f, const struct wire_head *request, uint64_t done, uint64_t total)
{
	struct wire_head h = {.op = OP_PROGRESS, .attempt = request->attempt};
	Shard__Progress p = SHARD__PROGRESS__INIT;

	p.done_bytes = done;
	p.total_bytes = total;
	fake_send(f, &h, &p.base);
}

void fake_saved(struct fake *f, const struct wire_head *request, enum shard_status st,
		const char *text)
{
	fake_lock(f);
	fake_answer_save(f, request, st, text);
	fake_unlock(f);
}

void fake_attempt(struct fake *f, const char *why)
{
	fake_lock(f);
	fake_send_attempt(f, why);
	fake_unlock(f);
}

void fake_result(struct fake *f)
{
	fake_lock(f);
	fake_decide(f);
	fake_unlock(f);
}

void fake_close(struct fake *f)
{
	struct err e;

	fake_lock(f);
	if (f->stream != NULL)
		(void)stream_write(f->stream, &e);
	stream_free(&f->stream);
	fake_unlock(f);
}

void fake_error(struct fake *f, enum shard_status st, const char *text)
{
	struct wire_head h = {.op = OP_ERROR};
	Shard__Error x = SHARD__ERROR__INIT;

	x.status = st;
	x.text = (char *)(uintptr_t)text;
	fake_send(f, &h, &x.base);
	fake_close(f);
}

void fake_raw(struct fake *f, const void *bytes, size_t nr)
{
	fake_lock(f);
	CHECK(f->stream != NULL && write(stream_fd(f->stream), bytes, nr) == (ssize_t)nr);
	fake_unlock(f);
}
