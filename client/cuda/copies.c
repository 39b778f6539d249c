// SPDX-License-Identifier: Apache-2.0
/* What a caller does with an open handle: begin a step, push, pull, wait. A push orders the stream
 * of copies after the caller's stream, queues the copy into the arena, and leaves a job with the
 * event behind it to the helper. A pull only leaves a job. Arguments that are wrong are found here,
 * before anything is queued. Once a copy is queued, a failure ends the handle. */
#include "cuda/cuda.h"

#include "base/check.h"
#include "base/clock.h"
#include "wire/dtype.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long ull;

/* --- with the lock held --- */

static enum shard_status alive(struct shard_cuda *c, const char *what)
{
	if (c->dead.status != SHARD_OK)
		return cuda_fail(&c->dead);
	if (c->closing)
		return cuda_say(SHARD_BAD_STATE, "%s: the handle is being closed", what);
	return SHARD_OK;
}

/* A driver's error before anything was queued. One that ends the context ends the handle. */
static enum shard_status refused(struct shard_cuda *c, struct err *e)
{
	if (e->status == SHARD_CLOSED)
		cuda_dead(c, e);
	return cuda_fail(e);
}

/* Lets the copies that come now be after the work that is on the caller's stream. */
static enum shard_status follow(struct shard_cuda *c, shard_stream stream, struct err *e)
{
	const struct driver *d = &c->driver;
	int capturing = CU_CAPTURE_NONE;
	cu_result cu;

	if ((cu = d->stream_capturing(stream, &capturing)) != CU_SUCCESS)
		return driver_fail(d, e, cu, "cuStreamIsCapturing", "of the caller's stream");
	if (capturing != CU_CAPTURE_NONE)
		return err_set(e, SHARD_BAD_STATE,
			       "the caller's stream is being captured into a graph: push and pull "
			       "outside of the capture");
	if ((cu = d->event_record(c->before, stream)) != CU_SUCCESS)
		return driver_fail(d, e, cu, "cuEventRecord", "on the caller's stream");
	if ((cu = d->stream_wait(c->stream, c->before, 0)) != CU_SUCCESS)
		return driver_fail(d, e, cu, "cuStreamWaitEvent", "for the caller's stream");
	return SHARD_OK;
}

static enum shard_status room(const struct shard_cuda *c)
{
	if (c->last - c->done < c->jobs_cap)
		return SHARD_OK;
	return cuda_say(SHARD_AGAIN, "%u copies are under way: shard_cuda_wait() for one first",
			c->jobs_cap);
}

static void queue(struct shard_cuda *c, const struct job *j, shard_ticket *ticket)
{
	c->last++;
	*helper_job(c, c->last) = *j;
	if (j->kind == JOB_PULL)
		c->last_pull = c->last;
	else
		c->last_push = c->last;
	if (ticket != NULL)
		*ticket = c->last;
	pthread_cond_broadcast(&c->changed);
}

/* The event behind what is on the caller's stream, where the gradient lies already. */
static enum shard_status no_copy(struct shard_cuda *c, struct job *j, struct err *e)
{
	enum shard_status rc = helper_event(c, &j->done, e);
	cu_result cu;

	if (rc != SHARD_OK)
		return rc;
	if ((cu = c->driver.event_record(j->done, c->stream)) == CU_SUCCESS)
		return SHARD_OK;
	c->spare[c->spare_nr++] = j->done;
	return driver_fail(&c->driver, e, cu, "cuEventRecord", "after a gradient");
}

/* A copy into the arena, with an event behind it. */
static enum shard_status copy_out(struct shard_cuda *c, struct job *j, struct err *e)
{
	size_t elem = dtype_bytes(c->grad), bytes = j->count * elem, part = 0;
	char *to = shard_grad(c->model, j->tensor);
	cu_ptr from = j->dev;
	enum shard_status rc;
	cu_result cu;

	if (to == NULL)
		return err_set(e, SHARD_BAD_STATE, "%s", shard_error());
	to += j->first * elem;
	if (!pin_has(&c->arena, to, bytes))
		return err_set(
			e, SHARD_BAD_STATE,
			"the arena is not the memory that it was when the handle was opened: "
			"close the handle and open it again after each join");
	if ((rc = helper_event(c, &j->done, e)) != SHARD_OK)
		return rc;
	c->pushed_bytes += bytes;
	for (; bytes > 0; bytes -= part, to += part, from += part) {
		part = pin_part(&c->arena, to, bytes);
		cu = c->driver.to_host(to, from, part, c->stream);
		if (cu == CU_SUCCESS)
			continue;
		rc = driver_fail(&c->driver, e, cu, "cuMemcpyDtoHAsync", "of a gradient");
		if (from != j->dev)
			e->status = SHARD_CLOSED; /* Some of it is queued. */
		break;
	}
	if (bytes == 0 && (cu = c->driver.event_record(j->done, c->stream)) != CU_SUCCESS) {
		(void)driver_fail(&c->driver, e, cu, "cuEventRecord", "after a copy");
		e->status = SHARD_CLOSED; /* Nobody would know the end of the copy. */
		bytes = part;
	}
	if (bytes == 0)
		return SHARD_OK;
	c->spare[c->spare_nr++] = j->done;
	return e->status;
}

/* --- what was asked for --- */

static enum shard_status range_ok(const struct shard_cuda *c, const char *what, uint32_t tensor,
				  uint64_t first, uint64_t count, const void *dev)
{
	if (tensor >= c->tensors_nr)
		return cuda_say(SHARD_RANGE, "%s of tensor %u: the model has %u", what, tensor,
				c->tensors_nr);
	if (count == 0 || first >= c->tensor[tensor].numel ||
	    count > c->tensor[tensor].numel - first)
		return cuda_say(SHARD_RANGE,
				"%s of %llu elements from %llu on of tensor %u, which has "
				"%llu",
				what, (ull)count, (ull)first, tensor, (ull)c->tensor[tensor].numel);
	if (dev == NULL)
		return cuda_say(SHARD_BAD_ARG,
				"%s of tensor %u: dev is NULL, and there is no memory of shardd "
				"for it on the device",
				what, tensor);
	return SHARD_OK;
}

static enum shard_status push_ok(const struct shard_cuda *c, const struct job *j)
{
	enum shard_status rc = range_ok(c, "shard_cuda_push()", j->tensor, j->first, j->count,
					(const void *)(uintptr_t)j->dev);

	if (rc != SHARD_OK)
		return rc;
	if (j->flags & ~(uint32_t)(SHARD_ADD | SHARD_CAST | SHARD_SHARE))
		return cuda_say(SHARD_BAD_ARG, "shard_cuda_push() with flags 0x%x", j->flags);
	if ((j->flags & SHARD_SHARE) && j->flags != SHARD_SHARE)
		return cuda_say(SHARD_BAD_ARG,
				"shard_cuda_push() of tensor %u with SHARD_SHARE and other flags: "
				"add up and convert on the device, before or after the reduce",
				j->tensor);
	if (c->tensor[j->tensor].frozen)
		return cuda_say(
			SHARD_BAD_ARG,
			"shard_cuda_push() of tensor %u, which is frozen and has no gradient",
			j->tensor);
	if (j->dtype != c->grad && (!(j->flags & SHARD_CAST) || !dtype_ok(j->dtype)))
		return cuda_say(SHARD_DTYPE,
				"shard_cuda_push() of tensor %u with dtype %d, and the model's "
				"gradients are %d: convert them, or say SHARD_CAST",
				j->tensor, (int)j->dtype, (int)c->grad);
	return SHARD_OK;
}

/* --- the calls --- */

static enum shard_status renewed(struct shard_cuda *c, uint64_t until_ns)
{
	enum shard_status rc;
	struct err e;

	if ((rc = cuda_enter(c, &e)) != SHARD_OK)
		return cuda_fail(&e);
	pthread_mutex_lock(&c->lock);
	rc = cuda_renew(c, until_ns);
	pthread_mutex_unlock(&c->lock);
	cuda_leave(c);
	return rc;
}

enum shard_status shard_cuda_begin(shard_cuda *c, const struct shard_begin_opts *opts,
				   struct shard_step *step)
{
	enum shard_status rc = cuda_usable(c);
	uint64_t until;

	if (rc != SHARD_OK)
		return rc;
	until = cuda_until(c, SHARD_DEFAULT);
	pthread_mutex_lock(&c->lock);
	if ((rc = alive(c, "shard_cuda_begin()")) == SHARD_OK) {
		c->attempt++; /* What is queued and not pushed belongs to no attempt any more. */
		c->begun = false;
		while (c->done < c->last_push && c->dead.status == SHARD_OK && rc == SHARD_OK)
			if (!cuda_await(c, until))
				rc = cuda_say(SHARD_TIMEOUT,
					      "copies of gradients of the attempt before are still "
					      "under way");
		if (c->dead.status != SHARD_OK)
			rc = cuda_fail(&c->dead);
	}
	pthread_mutex_unlock(&c->lock);
	if (rc != SHARD_OK)
		return rc;
	if ((rc = shard_begin(c->model, opts, step)) != SHARD_OK)
		return cuda_shard(rc);
	if (!cuda_fresh(c) && (rc = renewed(c, until)) != SHARD_OK)
		return rc;
	if (device_memory_old(c) && (rc = device_memory_renew(c)) != SHARD_OK)
		return rc;
	pthread_mutex_lock(&c->lock);
	c->begun = true;
	c->push_fail.status = SHARD_OK;
	spans_reset(&c->spans);
	pthread_mutex_unlock(&c->lock);
	return SHARD_OK;
}

/* With the lock held. */
static enum shard_status push_queue(struct shard_cuda *c, struct job *j, shard_stream stream,
				    shard_ticket *ticket)
{
	enum shard_status rc = alive(c, "shard_cuda_push()");
	/* A share leaves the rest of its tensor to others. */
	bool share = (j->flags & SHARD_SHARE) != 0;
	uint64_t first = share ? 0 : j->first;
	uint64_t end = share ? c->tensor[j->tensor].numel : j->first + j->count;
	struct err e;

	if (rc != SHARD_OK)
		return rc;
	if (!c->begun)
		return cuda_say(SHARD_BAD_STATE,
				"shard_cuda_push() before the step has begun: call "
				"shard_cuda_begin() in place of shard_begin()");
	if (c->push_fail.status != SHARD_OK)
		return cuda_fail(&c->push_fail);
	if ((rc = room(c)) != SHARD_OK)
		return rc;
	if (!(j->flags & SHARD_ADD) && spans_overlap(&c->spans, j->tensor, first, end))
		return cuda_say(
			SHARD_DUPLICATE,
			"shard_cuda_push() of tensor %u: some of the elements %llu to %llu were "
			"pushed already in this step",
			j->tensor, (ull)first, (ull)end - 1);
	if (!spans_room(&c->spans)) {
		(void)err_sys(&e, ENOMEM, "out of memory for a push");
		return cuda_fail(&e);
	}
	if ((rc = follow(c, stream, &e)) != SHARD_OK)
		return refused(c, &e);
	j->attempt = c->attempt;
	j->until_ns = clock_ns() + c->timeout_ns;
	if (j->flags & SHARD_DEVICE)
		rc = no_copy(c, j, &e);
	else if (j->kind == JOB_PUSH)
		rc = copy_out(c, j, &e);
	if (rc != SHARD_OK)
		return refused(c, &e);
	if (!(j->flags & SHARD_ADD))
		spans_add(&c->spans, j->tensor, first, end);
	queue(c, j, ticket);
	return SHARD_OK;
}

/* A push without dev is of what lies in the memory of shard_cuda_grad(). What is to be added up, or
 * is a share, is copied from there as from anywhere. */
static bool lies_there(struct shard_cuda *c, struct job *j)
{
	cu_ptr at;

	if (j->tensor >= c->tensors_nr || !device_grad_at(c, j->tensor, &at))
		return false;
	j->dev = at + j->first * dtype_bytes(c->grad);
	return true;
}

enum shard_status shard_cuda_push(shard_cuda *c, uint32_t tensor, uint64_t first, uint64_t count,
				  const void *dev, enum shard_dtype dtype, uint32_t flags,
				  shard_stream stream, shard_ticket *ticket)
{
	enum shard_status rc = cuda_usable(c);
	struct job j = {.kind = JOB_STAGED,
			.tensor = tensor,
			.first = first,
			.count = count,
			.dev = (cu_ptr)(uintptr_t)dev,
			.dtype = dtype,
			.flags = flags};
	bool there = false;
	struct err e;

	if (rc != SHARD_OK)
		return rc;
	if (dev == NULL)
		there = lies_there(c, &j);
	if ((rc = push_ok(c, &j)) != SHARD_OK)
		return rc;
	if (there && dtype != c->grad)
		return cuda_say(SHARD_DTYPE,
				"shard_cuda_push() of tensor %u with dev NULL and dtype %d: what "
				"lies in the memory of shardd has the model's grad dtype, %d",
				tensor, (int)dtype, (int)c->grad);
	if (there && flags == 0)
		j.flags = SHARD_DEVICE;
	if ((j.flags & SHARD_DEVICE) ||
	    (dtype == c->grad && !(flags & SHARD_ADD) && c->arena.pinned > 0))
		j.kind = JOB_PUSH;
	if ((rc = cuda_enter(c, &e)) != SHARD_OK)
		return cuda_fail(&e);
	pthread_mutex_lock(&c->lock);
	rc = push_queue(c, &j, stream, ticket);
	pthread_mutex_unlock(&c->lock);
	cuda_leave(c);
	return rc;
}

enum shard_status shard_cuda_pull(shard_cuda *c, uint64_t step,
				  const struct shard_cuda_pull *ranges, uint32_t count,
				  shard_stream stream, shard_ticket *ticket)
{
	enum shard_status rc = cuda_usable(c);
	struct job j = {.kind = JOB_PULL, .step = step, .range_nr = count};
	struct err e;

	if (rc != SHARD_OK)
		return rc;
	if (ranges == NULL || count == 0)
		return cuda_say(SHARD_BAD_ARG, "shard_cuda_pull() of nothing");
	for (uint32_t i = 0; i < count; i++)
		if ((rc = range_ok(c, "shard_cuda_pull()", ranges[i].tensor, ranges[i].first,
				   ranges[i].count, ranges[i].dev)) != SHARD_OK)
			return rc;
	j.range = malloc(count * sizeof(*j.range));
	if (j.range == NULL) {
		(void)err_sys(&e, ENOMEM, "out of memory for a pull of %u ranges", count);
		return cuda_fail(&e);
	}
	memcpy(j.range, ranges, count * sizeof(*j.range));
	if ((rc = cuda_enter(c, &e)) != SHARD_OK) {
		free(j.range);
		return cuda_fail(&e);
	}
	pthread_mutex_lock(&c->lock);
	if ((rc = alive(c, "shard_cuda_pull()")) == SHARD_OK &&
	    (rc = cuda_renew(c, cuda_until(c, SHARD_DEFAULT))) == SHARD_OK &&
	    (rc = room(c)) == SHARD_OK) {
		if ((rc = follow(c, stream, &e)) != SHARD_OK)
			rc = refused(c, &e);
	}
	if (rc == SHARD_OK) {
		if (c->done >= c->last_pull)
			c->pull_fail.status = SHARD_OK;
		j.until_ns = clock_ns() + c->timeout_ns;
		queue(c, &j, ticket);
		j.range = NULL;
	}
	pthread_mutex_unlock(&c->lock);
	cuda_leave(c);
	free(j.range);
	return rc;
}

/* How a ticket ended, with the lock held. ticket 0: the first failure that was not told yet. */
static enum shard_status outcome(struct shard_cuda *c, shard_ticket ticket)
{
	const struct job *j;
	const struct err *fail;

	if (ticket == 0) {
		if (c->push_fail.status != SHARD_OK)
			return cuda_fail(&c->push_fail);
		return c->pull_fail.status == SHARD_OK ? SHARD_OK : cuda_fail(&c->pull_fail);
	}
	if (c->last - ticket >= c->jobs_cap)
		return SHARD_OK; /* It is done for long, and how it ended was to be asked then. */
	j = helper_job(c, ticket);
	fail = j->kind == JOB_PULL ? &c->pull_fail : &c->push_fail;
	if (j->status == SHARD_OK)
		return SHARD_OK;
	if (c->dead.status != SHARD_OK)
		return cuda_fail(&c->dead);
	if (fail->status == j->status)
		return cuda_fail(fail);
	return cuda_say(j->status, "the %s was dropped, because its attempt at the step is over",
			j->kind == JOB_PULL ? "pull" : "push");
}

/* Waits until *at has reached the ticket, with the lock held. */
static enum shard_status reach(struct shard_cuda *c, const shard_ticket *at, shard_ticket ticket,
			       int64_t timeout_ms)
{
	uint64_t until = cuda_until(c, timeout_ms);

	if (ticket > c->last)
		return cuda_say(SHARD_BAD_ARG,
				"ticket %llu was not given yet: the last one is %llu", (ull)ticket,
				(ull)c->last);
	while (*at < ticket) {
		if (c->dead.status != SHARD_OK)
			return cuda_fail(&c->dead);
		if (c->closing)
			return alive(c, "a wait for copies");
		if (!cuda_await(c, until))
			return cuda_say(SHARD_TIMEOUT,
					"%llu copies are queued and not done yet, the oldest %s",
					(ull)(ticket - c->done),
					helper_job(c, c->done + 1)->kind == JOB_PULL
						? "of parameters"
						: "of a gradient");
	}
	return SHARD_OK;
}

enum shard_status shard_cuda_wait(shard_cuda *c, shard_ticket ticket, int64_t timeout_ms)
{
	enum shard_status rc = cuda_usable(c);

	if (rc != SHARD_OK)
		return rc;
	pthread_mutex_lock(&c->lock);
	rc = reach(c, &c->done, ticket ? ticket : c->last, timeout_ms);
	if (rc == SHARD_OK && ticket == 0 && c->dead.status != SHARD_OK)
		rc = cuda_fail(&c->dead);
	if (rc == SHARD_OK)
		rc = outcome(c, ticket);
	pthread_mutex_unlock(&c->lock);
	return rc;
}

enum shard_status shard_cuda_order(shard_cuda *c, shard_ticket ticket, shard_stream stream,
				   int64_t timeout_ms)
{
	enum shard_status rc = cuda_usable(c);
	struct err e;

	if (rc != SHARD_OK)
		return rc;
	if ((rc = cuda_enter(c, &e)) != SHARD_OK)
		return cuda_fail(&e);
	pthread_mutex_lock(&c->lock);
	if (ticket == 0)
		ticket = c->last;
	rc = reach(c, &c->issued, ticket, timeout_ms);
	if (rc == SHARD_OK && ticket > 0)
		rc = outcome(c, ticket);
	if (rc == SHARD_OK && ticket > c->done) {
		cu_event done = helper_job(c, ticket)->done;
		cu_result cu = done ? c->driver.stream_wait(stream, done, 0) : CU_SUCCESS;

		if (cu != CU_SUCCESS) {
			(void)driver_fail(&c->driver, &e, cu, "cuStreamWaitEvent",
					  "of the caller's stream");
			rc = refused(c, &e);
		}
	}
	pthread_mutex_unlock(&c->lock);
	cuda_leave(c);
	return rc;
}
