/* SPDX-License-Identifier: Apache-2.0 */
/* Limits of the process. main.c calls at the start. link/accept.c, link/places.c and store/store.c
 * call for each descriptor that connections and models take. Happy path: the soft limit of
 * descriptors is raised to the hard one, everything that is configured fits, and the pool's threads
 * start. The start fails if not even a few trainers would fit. The error says how much there is,
 * how much is needed and where to raise it. If less fits than is configured, a line of the log says
 * so. */
#include "node/limits.h"

#include "base/check.h"
#include "base/descriptors.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static uint64_t limit_of(int which)
{
	struct rlimit r = {.rlim_cur = RLIM_INFINITY};

	(void)getrlimit((__rlimit_resource_t)which, &r);
	return r.rlim_cur == RLIM_INFINITY ? UINT64_MAX : r.rlim_cur;
}

uint64_t limits_files(void)
{
	return limit_of(RLIMIT_NOFILE);
}

uint32_t limits_links(const struct config *conf)
{
	return (conf->nodes_nr > 0 ? conf->nodes_nr - 1 : 0) * conf->connections;
}

bool limits_spare(int fd, uint32_t more)
{
	return (uint64_t)fd + DESCRIPTORS_FILES + more < limits_files();
}

static enum shard_status look_files(const struct config *conf, struct log *log, struct err *e)
{
	uint64_t least = descriptors_least(limits_links(conf));
	uint64_t all = descriptors_all(limits_links(conf), conf->connections_max), has;
	struct rlimit r;

	if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur < r.rlim_max) {
		r.rlim_cur = r.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &r);
	}
	has = limits_files();
	if (has < least)
		return err_set(e, SHARD_SYSTEM,
			       "%" PRIu64 " descriptors may be open, and at least %" PRIu64
			       " are needed: raise `ulimit -n`, or LimitNOFILE= of the service",
			       has, least);
	if (has < all)
		log_line(log, LOG_LEVEL_WARN, "event=few_descriptors has=%lu needs=%lu why=%s",
			 (unsigned long)has, (unsigned long)all,
			 "connections_max and the memory of models may not fit: raise `ulimit -n`, "
			 "or LimitNOFILE= of the service");
	else
		log_line(log, LOG_LEVEL_INFO, "event=descriptors has=%lu needs=%lu",
			 (unsigned long)has, (unsigned long)all);
	return SHARD_OK;
}

static void look_space(const struct config *conf, struct log *log)
{
	uint64_t has = limit_of(RLIMIT_AS), machine = config_machine_memory();

	if (machine < conf->memory)
		log_line(log, LOG_LEVEL_WARN, "event=little_memory has=%lu memory=%lu why=%s",
			 (unsigned long)machine, (unsigned long)conf->memory,
			 "[daemon] memory is more than the machine or the cgroup has: models that "
			 "fit it may be killed for memory: lower it, or choose auto");
	if (has < conf->memory)
		log_line(log, LOG_LEVEL_WARN,
			 "event=little_address_space has=%lu memory=%lu why=%s", (unsigned long)has,
			 (unsigned long)conf->memory,
			 "models that fit [daemon] memory will be refused: raise `ulimit -v`, or "
			 "LimitAS= of the service");
}

struct trial {
	pthread_mutex_t held; /* Held until all threads run. */
};

static void *wait_for_all(void *arg)
{
	struct trial *t = arg;

	pthread_mutex_lock(&t->held);
	pthread_mutex_unlock(&t->held);
	return NULL;
}

/* libuv aborts the process if its pool cannot start, so the same number of threads is tried here
 * first. */
static enum shard_status try_threads(struct err *e)
{
	struct trial t = {.held = PTHREAD_MUTEX_INITIALIZER};
	pthread_t thread[LIMITS_THREADS + 1]; /* One more, to leave some room. */
	uint32_t nr = 0;
	int error = 0;

	pthread_mutex_lock(&t.held);
	while (nr < NR(thread) &&
	       (error = pthread_create(&thread[nr], NULL, wait_for_all, &t)) == 0)
		nr++;
	pthread_mutex_unlock(&t.held);
	for (uint32_t i = 0; i < nr; i++)
		pthread_join(thread[i], NULL);
	if (error == 0)
		return SHARD_OK;
	return err_set(e, SHARD_SYSTEM,
		       "thread %u of %u for the disk cannot start: %s: raise `ulimit -v` and "
		       "`ulimit -u`, or LimitAS= and TasksMax= of the service",
		       nr + 1, LIMITS_THREADS, strerror(error));
}

enum shard_status limits_open(const struct config *conf, struct log *log, struct err *e)
{
	enum shard_status st = look_files(conf, log, e);
	char text[16];

	if (st != SHARD_OK)
		return st;
	look_space(conf, log);
	snprintf(text, sizeof(text), "%d", LIMITS_THREADS);
	if (setenv("UV_THREADPOOL_SIZE", text, 1) != 0)
		return err_set(e, SHARD_SYSTEM, "no memory to say how many threads the disk has");
	return try_threads(e);
}

static void nothing(uv_work_t *w)
{
	(void)w;
}

void limits_start_pool(uv_loop_t *loop, uv_work_t *pool)
{
	CHECK(uv_queue_work(loop, pool, nothing, NULL) == 0);
}
