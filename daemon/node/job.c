/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs in threads of libuv's pool, a few of each kind at a time. The files of ckpt/, model/make.c
 * and model/join.c call job_begin(). Happy path: the job waits for its turn, run() is called in a
 * thread, and then done() is called on the loop, where the next job of the kind starts. A job
 * records its own errors, because nothing here fails. A job that never ends keeps its thread. */
#include "node/job.h"

#include "base/check.h"
#include "node/state.h"

static const unsigned running_max[JOB_KINDS] = {[JOB_FILES] = JOB_FILES_MAX,
						[JOB_MEMORY] = JOB_MEMORY_MAX,
						[JOB_SMALL] = JOB_SMALL_MAX,
						[JOB_HISTORY] = JOB_HISTORY_MAX};

void job_init(struct server *s)
{
	for (enum job_kind k = 0; k < JOB_KINDS; k++)
		list_init(&s->jobs[k].waiting);
}

static void job_run(uv_work_t *w)
{
	struct job *j = w->data;

	j->run(j);
}

static void jobs_start(struct server *s, enum job_kind kind);

static void job_done(uv_work_t *w, int status)
{
	struct job *j = w->data;
	struct server *s = j->server;

	CHECK(status == 0 && s->jobs[j->kind].running > 0); /* Jobs are never cancelled. */
	s->jobs[j->kind].running--;
	jobs_start(s, j->kind);
	j->done(j);
}

static void jobs_start(struct server *s, enum job_kind kind)
{
	struct job_queue *q = &s->jobs[kind];

	while (q->running < running_max[kind] && !list_empty(&q->waiting)) {
		struct job *j = list_of(q->waiting.next, struct job, link);

		list_remove(&j->link);
		q->running++;
		CHECK(uv_queue_work(s->loop, &j->work, job_run, job_done) == 0);
	}
}

void job_begin(struct job *j, struct server *s, enum job_kind kind, void (*run)(struct job *),
	       void (*done)(struct job *))
{
	CHECK(run != NULL && done != NULL && kind < JOB_KINDS);
	j->server = s;
	j->kind = kind;
	j->run = run;
	j->done = done;
	j->work.data = j;
	list_push(&s->jobs[kind].waiting, &j->link);
	jobs_start(s, kind);
}

bool job_idle(const struct server *s, enum job_kind kind)
{
	return s->jobs[kind].running == 0 && list_empty(&s->jobs[kind].waiting);
}
