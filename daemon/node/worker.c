/* SPDX-License-Identifier: Apache-2.0 */
/* The compute pool. The server owns one, and data/ and control/ submit jobs to it from the loop
 * thread. Happy path: submit() copies the job into a free slot and puts the slot's number
 * into the todo queue. A worker runs the job and puts the number into the done queue, which the
 * loop empties at once to call each done(). The loop is woken when no job is left to begin, and
 * otherwise at most every WAKE_NS. A wake-up costs as much as a good part of a small chunk, and
 * takes a processor from a worker. Both queues have room for every slot, so neither can be full.
 * One mutex covers both for a few instructions, and a worker decides under it to sleep, so that no
 * wake-up is lost. Only worker_init() fails, and submit() when all slots are taken or the
 * pool is closing. */
#include "node/worker.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/fifo.h"
#include "optim/ftz.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define WAKE_NS (200 * 1000)

struct worker {
	struct worker_pool *pool;
	uint32_t index;
	pthread_t thread;
};

struct worker_pool {
	uint32_t jobs_max, threads, started;
	bool pin;
	uv_poll_t wake; /* Polls wake_fd. Not a uv_async_t, whose receiver spins while the sender is
			   not running. */
	int wake_fd;
	void (*turn)(void *arg);
	void *turn_arg;
	void (*closed)(void *arg);
	void *closed_arg;
	bool in_turn; /* From here to batch: loop thread only. */
	bool closing;
	uint32_t pending; /* Submitted, and done() not called yet. */
	uint32_t *free_, free_nr;
	uint32_t *batch; /* Slots that one turn of the loop took from `done`. */

	pthread_mutex_t lock; /* Covers the fields from here to told_ns. */
	pthread_cond_t work;
	struct fifo todo, done;
	uint32_t asleep;
	bool stop, told; /* told: wake_fd is written, and the loop has not read it yet. */
	uint64_t told_ns;

	struct exec_job *job; /* [jobs_max]. A thread that took a slot's number out of a queue
				   owns that slot. */
	struct worker worker[];
};

static void pin_to(uint32_t index)
{
	cpu_set_t all, one;
	uint32_t seen = 0;

	if (sched_getaffinity(0, sizeof(all), &all) != 0)
		return; /* Pinning is best effort. */
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET(cpu, &all) || seen++ != index)
			continue;
		CPU_ZERO(&one);
		CPU_SET(cpu, &one);
		pthread_setaffinity_np(pthread_self(), sizeof(one), &one);
		return;
	}
}

/* True: the loop has to be woken now for the jobs that are done. If not, a job is still to begin,
 * and the worker that runs it will wake the loop. */
static bool must_tell(struct worker_pool *p)
{
	uint64_t now;

	if (p->told)
		return false;
	now = clock_ns();
	if (p->todo.nr > 0 && now - p->told_ns < WAKE_NS)
		return false;
	p->told = true;
	p->told_ns = now;
	return true;
}

static void *work(void *arg)
{
	const struct worker *w = arg;
	struct worker_pool *p = w->pool;
	char name[16];

	snprintf(name, sizeof(name), "shardd-w%u", w->index);
	pthread_setname_np(pthread_self(), name);
	if (p->pin)
		pin_to(w->index % worker_processors());
	ftz_on();
	pthread_mutex_lock(&p->lock);
	for (;;) {
		while (p->todo.nr == 0 && !p->stop) {
			p->asleep++;
			pthread_cond_wait(&p->work, &p->lock);
			p->asleep--;
		}
		if (p->todo.nr == 0)
			break;
		uint32_t slot = fifo_pop(&p->todo, p->jobs_max);
		pthread_mutex_unlock(&p->lock);
		p->job[slot].run(p->job[slot].args);
		pthread_mutex_lock(&p->lock);
		fifo_push(&p->done, slot, p->jobs_max);
		if (must_tell(p)) {
			pthread_mutex_unlock(&p->lock);
			CHECK(eventfd_write(p->wake_fd, 1) == 0);
			pthread_mutex_lock(&p->lock);
		}
	}
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

static void stop_threads(struct worker_pool *p)
{
	pthread_mutex_lock(&p->lock);
	p->stop = true;
	pthread_cond_broadcast(&p->work);
	pthread_mutex_unlock(&p->lock);
	for (uint32_t i = 0; i < p->started; i++)
		pthread_join(p->worker[i].thread, NULL);
	p->started = 0;
}

static void pool_free(struct worker_pool *p)
{
	pthread_cond_destroy(&p->work);
	pthread_mutex_destroy(&p->lock);
	free(p->todo.at);
	free(p->done.at);
	free(p->free_);
	free(p->batch);
	free(p->job);
	if (p->wake_fd >= 0)
		close(p->wake_fd);
	free(p);
}

static void on_wake_closed(uv_handle_t *h)
{
	struct worker_pool *p = h->data;
	void (*closed)(void *) = p->closed;
	void *arg = p->closed_arg;

	pool_free(p);
	if (closed)
		closed(arg);
}

static void close_if_idle(struct worker_pool *p)
{
	if (!p->closing || p->pending > 0 || uv_is_closing((uv_handle_t *)&p->wake))
		return;
	stop_threads(p);
	uv_close((uv_handle_t *)&p->wake, on_wake_closed);
}

static void on_wake(uv_poll_t *h, int status, int events)
{
	struct worker_pool *p = h->data;
	uint32_t nr = 0;
	eventfd_t count;

	CHECK(status == 0 && events == UV_READABLE);
	(void)eventfd_read(p->wake_fd, &count);
	pthread_mutex_lock(&p->lock);
	p->told = false; /* After the read, so that the next turn sees a later write. */
	while (p->done.nr > 0)
		p->batch[nr++] = fifo_pop(&p->done, p->jobs_max);
	pthread_mutex_unlock(&p->lock);
	p->in_turn = true;
	for (uint32_t i = 0; i < nr; i++) {
		struct exec_job job = p->job[p->batch[i]]; /* A copy, because done() may submit a
								job that takes the slot. */

		p->free_[p->free_nr++] = p->batch[i];
		p->pending--;
		job.done(job.owner, job.args);
	}
	p->in_turn = false;
	if (p->turn)
		p->turn(p->turn_arg);
	close_if_idle(p);
}

static enum shard_status start_threads(struct worker_pool *p, struct err *e)
{
	sigset_t all, before;
	int rc = 0;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before); /* Workers inherit the mask. */
	for (uint32_t i = 0; i < p->threads && rc == 0; i++) {
		p->worker[i].pool = p;
		p->worker[i].index = i;
		rc = pthread_create(&p->worker[i].thread, NULL, work, &p->worker[i]);
		p->started += rc == 0;
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (rc != 0)
		return err_set(e, SHARD_SYSTEM, "thread %u of %u workers cannot start: %s",
			       p->started, p->threads, strerror(rc));
	return SHARD_OK;
}

enum shard_status worker_init(struct worker_pool **out, const struct worker_conf *conf,
			      uv_loop_t *loop, struct err *e)
{
	struct worker_pool *p = calloc(1, sizeof(*p) + conf->threads * sizeof(p->worker[0]));
	enum shard_status st;
	int rc;

	CHECK(conf->threads >= 1 && conf->threads <= WORKER_MAX && conf->jobs_max >= 1);
	if (!p)
		return err_set(e, SHARD_SYSTEM, "no memory for %u workers", conf->threads);
	p->threads = conf->threads;
	p->jobs_max = p->free_nr = conf->jobs_max;
	p->pin = conf->pin;
	p->turn = conf->turn;
	p->turn_arg = conf->turn_arg;
	p->wake_fd = -1;
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->work, NULL);
	p->todo.at = calloc(p->jobs_max, sizeof(uint32_t));
	p->done.at = calloc(p->jobs_max, sizeof(uint32_t));
	p->free_ = calloc(p->jobs_max, sizeof(uint32_t));
	p->batch = calloc(p->jobs_max, sizeof(uint32_t));
	p->job = calloc(p->jobs_max, sizeof(*p->job));
	if (!p->todo.at || !p->done.at || !p->free_ || !p->batch || !p->job) {
		st = err_set(e, SHARD_SYSTEM, "no memory for %u jobs", p->jobs_max);
		goto err_pool;
	}
	for (uint32_t i = 0; i < p->jobs_max; i++)
		p->free_[i] = p->jobs_max - 1 - i;
	p->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (p->wake_fd < 0) {
		st = err_set(e, SHARD_SYSTEM, "no descriptor to wake the loop with: %s",
			     strerror(errno));
		goto err_pool;
	}
	if ((st = start_threads(p, e)) != SHARD_OK)
		goto err_threads;
	/* Last, because it can only be undone through the loop. Workers touch it after a submit at
	 * the earliest. */
	if ((rc = uv_poll_init(loop, &p->wake, p->wake_fd)) != 0) {
		st = err_set(e, SHARD_SYSTEM, "the loop cannot be woken: %s", uv_strerror(rc));
		goto err_threads;
	}
	p->wake.data = p;
	CHECK(uv_poll_start(&p->wake, UV_READABLE, on_wake) == 0);
	*out = p;
	return SHARD_OK;
err_threads:
	stop_threads(p);
err_pool:
	pool_free(p);
	return st;
}

static enum shard_status submit(void *self, const struct exec_job *job)
{
	struct worker_pool *p = self;

	CHECK(job->run && job->done);
	if (p->closing)
		return SHARD_CLOSED;
	if (p->free_nr == 0)
		return SHARD_AGAIN;
	uint32_t slot = p->free_[--p->free_nr];
	p->job[slot] = *job;
	p->pending++;
	pthread_mutex_lock(&p->lock);
	fifo_push(&p->todo, slot, p->jobs_max);
	if (p->asleep > 0)
		pthread_cond_signal(&p->work);
	pthread_mutex_unlock(&p->lock);
	return SHARD_OK;
}

static void here(void *self, const struct exec_job *job)
{
	struct exec_job mine = *job;
	unsigned before = ftz_on();

	CHECK(self && job->run && job->done);
	mine.run(mine.args);
	ftz_restore(before);
	mine.done(mine.owner, mine.args);
}

static uint32_t lanes(const void *self)
{
	return worker_threads(self);
}

struct exec worker_exec(struct worker_pool *p)
{
	static const struct exec_row row = {
		.name = "workers", .submit = submit, .here = here, .lanes = lanes};

	CHECK(p != NULL);
	return (struct exec){&row, p};
}

bool worker_in_turn(const struct worker_pool *p)
{
	return p && p->in_turn;
}

uint32_t worker_pending(const struct worker_pool *p)
{
	return p->pending;
}

uint32_t worker_threads(const struct worker_pool *p)
{
	return p->threads;
}

void worker_close(struct worker_pool **pp, void (*closed)(void *arg), void *arg)
{
	struct worker_pool *p = *pp;

	*pp = NULL;
	CHECK(p && !p->closing);
	p->closing = true;
	p->closed = closed;
	p->closed_arg = arg;
	close_if_idle(p);
}

uint32_t worker_processors(void)
{
	cpu_set_t set;

	if (sched_getaffinity(0, sizeof(set), &set) != 0)
		return 1;
	int nr = CPU_COUNT(&set);
	return nr < 1 ? 1 : nr > WORKER_MAX ? WORKER_MAX : (uint32_t)nr;
}
