/* SPDX-License-Identifier: Apache-2.0 */
/* A ring of four threads with pread() and pwrite(), for ring.c, where there is no io_uring. Happy
 * path: a request waits in a queue, a thread takes it, moves its bytes, puts the result into a
 * second queue and writes to the eventfd. Both queues have room for every request. Only opening
 * fails. */
#include "base/check.h"
#include "store/ring_impl.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { THREADS = 4 };

struct moved {
	uint32_t nr;
	int64_t result;
};

struct self {
	int fd, event;
	uint32_t entries;
	pthread_t thread[THREADS];
	uint32_t threads;
	pthread_mutex_t lock; /* Covers the rest. */
	pthread_cond_t work, done;
	bool stop;
	uint32_t first, todo_nr, done_nr;
	struct ring_io *todo;   /* [entries] From first on, round. */
	struct moved *finished; /* [entries] */
};

static int64_t carry_out(const struct self *t, const struct ring_io *io)
{
	ssize_t n = 0;

	if (io->what == RING_READ)
		n = pread(t->fd, io->at, io->bytes, (off_t)io->offset);
	else if (io->what == RING_WRITE)
		n = pwrite(t->fd, io->at, io->bytes, (off_t)io->offset);
	else
		n = fdatasync(t->fd);
	return n < 0 ? -errno : n;
}

static void *work(void *arg)
{
	struct self *t = arg;

	pthread_mutex_lock(&t->lock);
	for (;;) {
		struct ring_io io;
		struct moved m;
		uint64_t one = 1;

		while (t->todo_nr == 0 && !t->stop)
			pthread_cond_wait(&t->work, &t->lock);
		if (t->todo_nr == 0)
			break;
		io = t->todo[t->first];
		t->first = (t->first + 1) % t->entries;
		t->todo_nr--;
		pthread_mutex_unlock(&t->lock);
		m = (struct moved){io.nr, carry_out(t, &io)};
		pthread_mutex_lock(&t->lock);
		CHECK(t->done_nr < t->entries);
		t->finished[t->done_nr++] = m;
		pthread_cond_signal(&t->done);
		CHECK(write(t->event, &one, sizeof(one)) == sizeof(one));
	}
	pthread_mutex_unlock(&t->lock);
	return NULL;
}

static void threads_close(void *self)
{
	struct self *t = self;

	pthread_mutex_lock(&t->lock);
	t->stop = true;
	pthread_cond_broadcast(&t->work);
	pthread_mutex_unlock(&t->lock);
	for (uint32_t i = 0; i < t->threads; i++)
		pthread_join(t->thread[i], NULL);
	pthread_mutex_destroy(&t->lock);
	pthread_cond_destroy(&t->work);
	pthread_cond_destroy(&t->done);
	free(t->todo);
	free(t->finished);
	free(t);
}

/* No signal of the process ends up in these threads. */
static int begin_all(struct self *t)
{
	sigset_t all, old;
	int rc = 0;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	while (t->threads < THREADS && rc == 0) {
		rc = pthread_create(&t->thread[t->threads], NULL, work, t);
		t->threads += rc == 0;
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return rc;
}

static bool threads_open(void **out, const struct ring_conf *conf, int event, char why[128])
{
	struct self *t = calloc(1, sizeof(*t));
	int rc;

	if (t != NULL) {
		t->todo = calloc(conf->entries, sizeof(*t->todo));
		t->finished = calloc(conf->entries, sizeof(*t->finished));
	}
	if (t == NULL || t->todo == NULL || t->finished == NULL) {
		if (t != NULL) {
			free(t->todo);
			free(t->finished);
		}
		free(t);
		snprintf(why, 128, "no memory for the queues of its threads");
		return false;
	}
	t->fd = conf->fd;
	t->event = event;
	t->entries = conf->entries;
	pthread_mutex_init(&t->lock, NULL);
	pthread_cond_init(&t->work, NULL);
	pthread_cond_init(&t->done, NULL);
	if ((rc = begin_all(t)) != 0) {
		threads_close(t);
		snprintf(why, 128, "starting a thread: %s", strerror(rc));
		return false;
	}
	*out = t;
	return true;
}

static void threads_submit(void *self, const struct ring_io *io)
{
	struct self *t = self;

	pthread_mutex_lock(&t->lock);
	CHECK(t->todo_nr < t->entries);
	t->todo[(t->first + t->todo_nr++) % t->entries] = *io;
	pthread_cond_signal(&t->work);
	pthread_mutex_unlock(&t->lock);
}

static void threads_reap(void *self, struct ring *r, bool wait)
{
	struct self *t = self;
	struct moved m;

	pthread_mutex_lock(&t->lock);
	while (wait && t->done_nr == 0)
		pthread_cond_wait(&t->done, &t->lock);
	while (t->done_nr > 0) {
		m = t->finished[--t->done_nr];
		/* It may ask for the rest, or for more. */
		pthread_mutex_unlock(&t->lock);
		ring_moved(r, m.nr, m.result);
		pthread_mutex_lock(&t->lock);
	}
	pthread_mutex_unlock(&t->lock);
}

const struct ring_row ring_threads = {.name = "threads",
				      .open = threads_open,
				      .submit = threads_submit,
				      .reap = threads_reap,
				      .close = threads_close};
