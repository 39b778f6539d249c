// SPDX-License-Identifier: Apache-2.0
/* Calls of the driver that fail or do not come back, and the thread for those that are no jobs:
 * that open the device, map and pin memory, and give it back. Happy path: gpu_ask() copies what is
 * to be done into a queue, the thread does it with the context current, and who asked waits and
 * gets the result. If one call takes longer than the deadline, the device is given up: everybody
 * who waits is told so at once, and the thread makes no further call if it comes back. The thread
 * lives as long as the struct. It is not that of the jobs (device.c), so that a step does not wait
 * while memory is pinned. */
#include "gpu/device_impl.h"

#include "base/check.h"
#include "base/clock.h"

#include <errno.h>
#include <signal.h>
#include <stdalign.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef unsigned long long ull;

struct asked { /* Who asked owns it until .left, and the thread from then on. */
	struct list link;
	void (*run)(struct gpu *g, void *arg);
	bool done, left;
	alignas(max_align_t) unsigned char arg[];
};

/* --- a device that is lost --- */

void gpu_calls(struct gpu *g)
{
	pthread_mutex_lock(&g->lock);
	g->call_ns = clock_ns();
	pthread_mutex_unlock(&g->lock);
}

static cu_result came_back(struct gpu *g, uint64_t *since_ns, cu_result rc)
{
	pthread_mutex_lock(&g->lock);
	*since_ns = 0;
	if (g->given_up)
		rc = GPU_GIVEN_UP;
	pthread_mutex_unlock(&g->lock);
	return rc;
}

cu_result gpu_called(struct gpu *g, cu_result rc)
{
	return came_back(g, &g->call_ns, rc);
}

bool gpu_asks(struct gpu *g)
{
	bool may;

	pthread_mutex_lock(&g->lock);
	may = !g->given_up;
	g->ask_ns = may ? clock_ns() : 0;
	pthread_mutex_unlock(&g->lock);
	return may;
}

cu_result gpu_asked(struct gpu *g, cu_result rc)
{
	return came_back(g, &g->ask_ns, rc);
}

void gpu_lose(struct gpu *g, cu_result rc, const char *call)
{
	char words[32];

	pthread_mutex_lock(&g->lock);
	if (!g->lost) {
		(void)err_set(&g->why, SHARD_SYSTEM,
			      "%s is lost: %s: %s (%d): dmesg may say more (Xid). What was in its "
			      "memory is gone. The others go on; restart shardd to use it again",
			      g->uuid_text, call, driver_name(&g->d, rc, words), rc);
		g->lost = true;
	}
	pthread_mutex_unlock(&g->lock);
}

enum shard_status gpu_fail(struct gpu *g, struct err *e, cu_result rc, const char *call,
			   const char *what)
{
	if (rc != GPU_GIVEN_UP && !driver_fatal(rc))
		return driver_fail(&g->d, e, rc, call, what);
	gpu_lose(g, rc, call);
	return err_set(e, SHARD_SYSTEM, "%s", g->why.text);
}

bool gpu_lost(const struct gpu *g, const char **why)
{
	if (g->lost && why != NULL)
		*why = g->why.text;
	return g->lost;
}

/* What hangs may still use its memory, and another call could hang as well: all stays as it is
 * until the process ends. */
bool gpu_hangs(struct gpu *g)
{
	bool given_up;

	pthread_mutex_lock(&g->lock);
	given_up = g->given_up;
	pthread_mutex_unlock(&g->lock);
	return given_up;
}

/* --- deadlines --- */

/* Is that call late, which began then? If the process stood still for that time, the call may have
 * ended since: whoever looks does so twice. */
static bool is_late(const struct gpu *g, uint64_t since_ns, uint64_t now_ns, uint64_t *seen_ns)
{
	bool again = *seen_ns == since_ns;

	if (since_ns == 0 || now_ns <= since_ns + g->deadline_ns)
		return false;
	*seen_ns = since_ns;
	return again;
}

bool gpu_watch(struct gpu *g, struct gpu_watch *w)
{
	uint64_t now = clock_ns(), since = 0;

	if (g->given_up)
		return false;
	if (is_late(g, g->call_ns, now, &w->call_ns))
		since = g->call_ns;
	else if (is_late(g, g->ask_ns, now, &w->ask_ns))
		since = g->ask_ns;
	if (since == 0)
		return false;
	g->given_up = true;
	if (!g->lost)
		(void)err_set(
			&g->why, SHARD_SYSTEM,
			"%s is lost: a call of its driver has not ended for %llu s: dmesg may "
			"say more (Xid). The others go on; restart shardd to use it again, if "
			"it works then",
			g->uuid_text, (ull)((now - since) / NS_PER_SEC));
	g->lost = true;
	g->on_given_up(g);
	pthread_cond_broadcast(&g->answered);
	return true;
}

/* --- the thread --- */

static void *asked_main(void *arg)
{
	struct gpu *g = arg;
	bool orphan;

	pthread_setname_np(pthread_self(), "shardd-gpumem");
	pthread_mutex_lock(&g->lock);
	for (;;) {
		struct asked *a;

		if (list_empty(&g->asked) || g->given_up) {
			if (g->asks_end)
				break;
			pthread_cond_wait(&g->ask, &g->lock);
			continue;
		}
		a = list_of(g->asked.next, struct asked, link);
		list_remove(&a->link);
		pthread_mutex_unlock(&g->lock);
		a->run(g, a->arg);
		pthread_mutex_lock(&g->lock);
		a->done = true;
		if (a->left)
			free(a);
		pthread_cond_broadcast(&g->answered);
	}
	orphan = g->orphan;
	pthread_mutex_unlock(&g->lock);
	if (orphan)
		g->on_unused(g);
	return NULL;
}

enum shard_status gpu_start_thread(pthread_t *thread, void *(*run)(void *), struct gpu *g,
				   struct err *e)
{
	sigset_t all, before;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before); /* The thread inherits the mask. */
	rc = pthread_create(thread, NULL, run, g);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (rc != 0)
		return err_sys(e, rc, "the thread of a GPU cannot start: %s", strerror(rc));
	return SHARD_OK;
}

enum shard_status gpu_calls_init(struct gpu *g, struct err *e)
{
	enum shard_status st = gpu_start_thread(&g->asker, asked_main, g, e);

	g->asker_runs = st == SHARD_OK;
	return st;
}

/* With the lock. A time at which to look again. */
static void wait_answer(struct gpu *g)
{
	uint64_t at = clock_ns() + g->deadline_ns / 4 + NS_PER_MS;
	const struct timespec until = {.tv_sec = (time_t)(at / NS_PER_SEC),
				       .tv_nsec = (long)(at % NS_PER_SEC)};

	(void)pthread_cond_timedwait(&g->answered, &g->lock, &until);
}

enum shard_status gpu_ask(struct gpu *g, void (*run)(struct gpu *g, void *arg), void *arg,
			  size_t bytes, struct err *e)
{
	struct asked *a = malloc(sizeof(*a) + bytes);
	struct gpu_watch w = {0};
	bool ran, mine;

	CHECK(g->asker_runs);
	if (a == NULL)
		return err_sys(e, ENOMEM, "no memory for a call of the driver");
	*a = (struct asked){.run = run};
	memcpy(a->arg, arg, bytes);
	pthread_mutex_lock(&g->lock);
	list_push(&g->asked, &a->link);
	pthread_cond_signal(&g->ask);
	while (!a->done && !g->given_up) {
		wait_answer(g);
		if (!a->done)
			(void)gpu_watch(g, &w);
	}
	ran = a->done;
	mine = ran || !list_empty(&a->link); /* Not begun. */
	if (ran)
		memcpy(arg, a->arg, bytes);
	list_remove(&a->link);
	a->left = !mine;
	pthread_mutex_unlock(&g->lock);
	if (mine)
		free(a);
	return ran ? SHARD_OK : err_set(e, SHARD_SYSTEM, "%s", g->why.text);
}

static void run_release(struct gpu *g, void *arg)
{
	(void)arg;
	if (g->ctx != NULL)
		(void)ASK(g, g->d.primary_release(g->device));
}

void gpu_calls_end(struct gpu *g)
{
	const pthread_t thread = g->asker;
	bool orphan;
	char none = 0;
	struct err e;

	if (!g->asker_runs) {
		g->on_unused(g);
		return;
	}
	(void)gpu_ask(g, run_release, &none, sizeof(none), &e);
	pthread_mutex_lock(&g->lock);
	orphan = g->orphan = g->given_up;
	g->asks_end = true;
	pthread_cond_signal(&g->ask);
	pthread_mutex_unlock(&g->lock);
	if (orphan) { /* It may never come back. */
		pthread_detach(thread);
		return;
	}
	pthread_join(thread, NULL);
	g->on_unused(g);
}
