// SPDX-License-Identifier: Apache-2.0
/* The thread of a handle. It takes jobs in the order of their tickets, queues the copies that
 * cannot be queued before (pulls, and pushes that go through the ring), looks at the events of
 * copies, and pushes gradients that are in the arena. It never waits for the device without a
 * limit: an event is asked for, and not waited for, so that a stream that hangs becomes a sentence.
 * What libshard says to a push ends the pushes of the attempt. An error of CUDA in here ends the
 * handle, because nobody knows then what was copied. */
#include "cuda/cuda.h"

#include "base/check.h"
#include "base/clock.h"
#include "wire/dtype.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { NAP_NS = 50000, SLICE_MS = 2, IDLE_SLICE_MS = 50 };

struct job *helper_job(struct shard_cuda *c, shard_ticket ticket)
{
	CHECK(ticket > 0 && ticket <= c->last && c->last - ticket < c->jobs_cap);
	return &c->job[ticket % c->jobs_cap];
}

void helper_nap(void)
{
	struct timespec moment = {.tv_nsec = NAP_NS};

	(void)nanosleep(&moment, NULL);
}

enum shard_status helper_event(struct shard_cuda *c, cu_event *event, struct err *e)
{
	cu_result cu;

	if (c->spare_nr > 0) {
		*event = c->spare[--c->spare_nr];
		return SHARD_OK;
	}
	*event = NULL;
	cu = c->driver.event_create(event, CU_EVENT_NO_TIMING);
	return cu == CU_SUCCESS ? SHARD_OK : driver_fail(&c->driver, e, cu, "cuEventCreate", "");
}

/* An error in the middle of copies: the handle is dead, whatever the error means. */
static enum shard_status broken(struct shard_cuda *c, cu_result cu, const char *call,
				const char *what)
{
	struct err e;

	(void)driver_fail(&c->driver, &e, cu, call, what);
	e.status = SHARD_CLOSED;
	pthread_mutex_lock(&c->lock);
	cuda_dead(c, &e);
	pthread_mutex_unlock(&c->lock);
	return SHARD_CLOSED;
}

static void late(struct shard_cuda *c, const struct job *j)
{
	struct err e;

	(void)err_set(&e, SHARD_CLOSED,
		      "the copy of %s was not done in %.1f s: work that is before it on the stream "
		      "hangs, or takes longer than shard_cuda_opts.timeout_ms: close the handle",
		      j->kind == JOB_PULL ? "parameters to the device"
					  : "a gradient from the device",
		      (double)c->timeout_ns / 1e9);
	cuda_dead(c, &e);
}

static bool stopped(struct shard_cuda *c)
{
	return c->closing || c->dead.status != SHARD_OK;
}

/* --- the end of jobs, with the lock held --- */

/* A push whose attempt is over, or has failed, is not made. */
static bool dropped(struct shard_cuda *c, struct job *j)
{
	if (j->kind == JOB_PULL)
		return false;
	if (j->attempt != c->attempt)
		j->status = SHARD_BAD_STATE;
	else if (c->push_fail.status != SHARD_OK)
		j->status = c->push_fail.status;
	return j->status != SHARD_OK;
}

/* How libshard answered a push or a pull of a job. */
static void ended(struct shard_cuda *c, struct job *j, enum shard_status st)
{
	struct err *fail = j->kind == JOB_PULL ? &c->pull_fail : &c->push_fail;

	j->status = st;
	if (st != SHARD_OK && (fail->status == SHARD_OK || j->kind == JOB_PULL))
		(void)err_set(fail, st, "%s", shard_error());
}

static void push_done(struct shard_cuda *c, struct job *j)
{
	enum shard_status rc;

	if (dropped(c, j))
		return;
	pthread_mutex_unlock(&c->lock);
	rc = shard_push(c->model, j->tensor, j->first, j->count, NULL, j->dtype,
			j->flags & (SHARD_SHARE | SHARD_DEVICE), NULL);
	pthread_mutex_lock(&c->lock);
	ended(c, j, rc);
}

/* Ends the jobs whose copies are done, the oldest first. True: the oldest one left has to wait. */
static bool retire(struct shard_cuda *c)
{
	while (c->done < c->issued && !stopped(c)) {
		struct job *j = helper_job(c, c->done + 1);

		if (j->done != NULL) {
			cu_result cu = c->driver.event_query(j->done);

			if (cu == CU_NOT_READY && clock_ns() <= j->until_ns)
				return true;
			if (cu == CU_NOT_READY) {
				late(c, j);
				return true;
			}
			if (cu != CU_SUCCESS) {
				pthread_mutex_unlock(&c->lock);
				(void)broken(c, cu, "cuEventQuery", "after a copy");
				pthread_mutex_lock(&c->lock);
				return true;
			}
			CHECK(c->spare_nr < c->jobs_cap);
			c->spare[c->spare_nr++] = j->done;
			j->done = NULL;
		}
		if (j->kind == JOB_PUSH)
			push_done(c, j);
		free(j->range);
		j->range = NULL;
		c->done++;
		pthread_cond_broadcast(&c->changed);
	}
	return c->done < c->issued;
}

/* --- waiting, without the lock --- */

/* Lets others get on, and says whether the wait has to end. */
static enum shard_status meanwhile(struct shard_cuda *c, const struct job *j, bool *waits)
{
	enum shard_status rc = SHARD_OK;

	pthread_mutex_lock(&c->lock);
	*waits = retire(c);
	if (stopped(c))
		rc = SHARD_CLOSED;
	else if (clock_ns() > j->until_ns)
		rc = SHARD_TIMEOUT;
	pthread_mutex_unlock(&c->lock);
	return rc;
}

/* Waits for a copy from or to a slot of the ring. */
static enum shard_status slot_settle(struct shard_cuda *c, const struct job *j, int slot)
{
	enum shard_status rc;
	bool waits;
	cu_result cu;

	while (c->ring.busy[slot]) {
		cu = c->driver.event_query(c->ring.event[slot]);
		if (cu == CU_SUCCESS) {
			c->ring.busy[slot] = false;
		} else if (cu != CU_NOT_READY) {
			return broken(c, cu, "cuEventQuery", "after a copy through a buffer");
		} else if ((rc = meanwhile(c, j, &waits)) != SHARD_OK) {
			pthread_mutex_lock(&c->lock);
			if (rc == SHARD_TIMEOUT)
				late(c, j);
			pthread_mutex_unlock(&c->lock);
			return SHARD_CLOSED;
		} else {
			helper_nap();
		}
	}
	return SHARD_OK;
}

static enum shard_status slot_busy(struct shard_cuda *c, int slot)
{
	cu_result cu = c->driver.event_record(c->ring.event[slot], c->stream);

	if (cu != CU_SUCCESS)
		return broken(c, cu, "cuEventRecord", "after a copy through a buffer");
	c->ring.busy[slot] = true;
	return SHARD_OK;
}

/* Waits until the image has what a ticket of libshard stands for. shard_wait() also waits for all
 * tickets before it, and one of a step that never comes may be among them. */
static enum shard_status published(struct shard_cuda *c, const struct job *j, shard_ticket ticket)
{
	enum shard_status rc, over;
	bool waits = true;

	while ((rc = shard_test(c->model, ticket)) == SHARD_AGAIN) {
		rc = shard_wait(c->model, ticket, waits ? SLICE_MS : IDLE_SLICE_MS);
		if (rc != SHARD_TIMEOUT && rc != SHARD_INTERRUPTED)
			return rc;
		if ((over = meanwhile(c, j, &waits)) != SHARD_OK)
			return over;
	}
	return rc;
}

/* shard_pull(), also where too many of them wait. */
static enum shard_status pull(struct shard_cuda *c, const struct job *j, uint32_t range,
			      uint64_t at, uint64_t n, void *dst, shard_ticket *ticket)
{
	const struct shard_cuda_pull *r = &j->range[range];
	enum shard_status rc = SHARD_OK, over = SHARD_OK;
	bool waits;

	while (over == SHARD_OK) {
		rc = shard_pull(c->model, r->tensor, r->first + at, n, j->step, dst,
				c->tensor[r->tensor].image, ticket);
		if (rc != SHARD_AGAIN)
			return rc;
		over = meanwhile(c, j, &waits);
		helper_nap();
	}
	return over;
}

/* --- jobs that the helper copies --- */

/* One piece of a gradient, from a slot of the ring. A share is pushed at once, when all of it is in
 * the arena. */
static enum shard_status staged_piece(const struct shard_cuda *c, const struct job *j, uint64_t at,
				      uint64_t n, const void *slot)
{
	uint64_t elem = dtype_bytes(j->dtype);
	char *arena;

	if (!(j->flags & SHARD_SHARE))
		return shard_push(c->model, j->tensor, j->first + at, n, slot, j->dtype, j->flags,
				  NULL);
	if ((arena = shard_grad(c->model, j->tensor)) == NULL)
		return SHARD_BAD_STATE;
	memcpy(arena + (j->first + at) * elem, slot, n * elem);
	return at + n < j->count ? SHARD_OK
				 : shard_push(c->model, j->tensor, j->first, j->count, NULL,
					      j->dtype, SHARD_SHARE, NULL);
}

/* A gradient, through the ring: the copy of a piece runs while the one before is pushed. */
static enum shard_status staged(struct shard_cuda *c, struct job *j)
{
	uint64_t elem = dtype_bytes(j->dtype), most = c->ring.bytes / elem, sent = 0, at = 0;
	uint64_t piece[RING_SLOTS];
	enum shard_status rc;
	cu_result cu;
	int in = 0, out = 0;

	while (at < j->count) {
		while (sent < j->count && in - out < RING_SLOTS) {
			int slot = in % RING_SLOTS;
			uint64_t n = j->count - sent < most ? j->count - sent : most;

			if ((rc = slot_settle(c, j, slot)) != SHARD_OK)
				return rc;
			cu = c->driver.to_host(c->ring.slot[slot], j->dev + sent * elem, n * elem,
					       c->stream);
			if (cu != CU_SUCCESS)
				return broken(c, cu, "cuMemcpyDtoHAsync", "of a gradient");
			if ((rc = slot_busy(c, slot)) != SHARD_OK)
				return rc;
			piece[slot] = n;
			sent += n;
			in++;
		}
		if ((rc = slot_settle(c, j, out % RING_SLOTS)) != SHARD_OK)
			return rc;
		rc = staged_piece(c, j, at, piece[out % RING_SLOTS],
				  c->ring.slot[out % RING_SLOTS]);
		if (rc != SHARD_OK)
			return rc;
		at += piece[out++ % RING_SLOTS];
	}
	return SHARD_OK;
}

static void count_pulled(struct shard_cuda *c, uint64_t bytes)
{
	pthread_mutex_lock(&c->lock);
	c->pulled_bytes += bytes;
	c->pulled_copies++;
	pthread_mutex_unlock(&c->lock);
}

static uint64_t range_bytes(const struct shard_cuda *c, const struct shard_cuda_pull *r)
{
	return r->count * dtype_bytes(c->tensor[r->tensor].image);
}

/* Whether b begins where a ends, in the image and on the device. */
static bool adjoin(const struct shard_cuda *c, const struct shard_cuda_pull *a,
		   const struct shard_cuda_pull *b)
{
	uint64_t bytes = range_bytes(c, a);

	return (char *)a->dev + bytes == (char *)b->dev &&
	       c->tensor[a->tensor].image_offset +
			       a->first * dtype_bytes(c->tensor[a->tensor].image) + bytes ==
		       c->tensor[b->tensor].image_offset +
			       b->first * dtype_bytes(c->tensor[b->tensor].image);
}

/* Straight from the image on the device or of the host. Returns how many ranges it took. */
static enum shard_status pull_run(struct shard_cuda *c, struct job *j, uint32_t from, uint32_t *to)
{
	const struct shard_cuda_pull *r = &j->range[from];
	uint64_t bytes = 0, part;
	cu_ptr dev = (cu_ptr)(uintptr_t)r->dev, there;
	shard_ticket ticket = 0;
	const char *image;
	enum shard_status rc;

	for (*to = from; *to == from ||
			 (*to < j->range_nr && adjoin(c, r + (*to - from - 1), r + (*to - from)));
	     ++*to) {
		if ((rc = pull(c, j, *to, 0, j->range[*to].count, NULL, &ticket)) != SHARD_OK)
			return rc;
		bytes += range_bytes(c, &j->range[*to]);
	}
	if ((rc = published(c, j, ticket)) != SHARD_OK)
		return rc;
	if (!cuda_fresh(c)) /* The next pull registers it. */
		return SHARD_WORLD_CHANGED;
	if (device_image_at(c, r->tensor, &there)) {
		cu_result cu;

		there += r->first * dtype_bytes(c->tensor[r->tensor].image);
		count_pulled(c, bytes);
		cu = c->driver.within(dev, there, bytes, c->stream);
		return cu == CU_SUCCESS ? SHARD_OK
					: broken(c, cu, "cuMemcpyDtoDAsync", "of parameters");
	}
	image = shard_image(c->model, r->tensor);
	if (image == NULL)
		return SHARD_BAD_STATE;
	image += r->first * dtype_bytes(c->tensor[r->tensor].image);
	if (!pin_has(&c->image, image, bytes))
		return broken(c, CU_INVALID_VALUE, "cuMemcpyHtoDAsync",
			      "of an image that is not the one that was registered");
	count_pulled(c, bytes);
	for (; bytes > 0; bytes -= part, image += part, dev += part) {
		cu_result cu;

		part = pin_part(&c->image, image, bytes);
		cu = c->driver.to_device(dev, image, part, c->stream);
		if (cu != CU_SUCCESS)
			return broken(c, cu, "cuMemcpyHtoDAsync", "of parameters");
	}
	return SHARD_OK;
}

/* Through the ring. libshard must not have a slot for longer than the helper waits for it, so the
 * wait for the image is without one. */
static enum shard_status pull_piece(struct shard_cuda *c, struct job *j, uint32_t range,
				    uint64_t at, uint64_t n, int slot)
{
	const struct shard_cuda_pull *r = &j->range[range];
	uint64_t elem = dtype_bytes(c->tensor[r->tensor].image);
	shard_ticket ticket;
	enum shard_status rc;
	cu_result cu;

	if ((rc = pull(c, j, range, at, n, NULL, &ticket)) != SHARD_OK ||
	    (rc = published(c, j, ticket)) != SHARD_OK ||
	    (rc = slot_settle(c, j, slot)) != SHARD_OK ||
	    (rc = pull(c, j, range, at, n, c->ring.slot[slot], &ticket)) != SHARD_OK)
		return rc;
	if ((rc = published(c, j, ticket)) != SHARD_OK) {
		c->ring.lent = true;
		return rc;
	}
	cu = c->driver.to_device((cu_ptr)(uintptr_t)r->dev + at * elem, c->ring.slot[slot],
				 n * elem, c->stream);
	if (cu != CU_SUCCESS)
		return broken(c, cu, "cuMemcpyHtoDAsync", "of parameters");
	count_pulled(c, n * elem);
	return slot_busy(c, slot);
}

/* Whether pulls go without the ring. With the lock held. An image on the device does not count if
 * it is of the connection before. What counts does not change while a pull is under way. */
static bool pulls_straight(const struct shard_cuda *c)
{
	const struct device_memory *there = &c->there[DEVICE_IMAGE];

	return c->image.pinned > 0 || (there->at != 0 && there->mapped == c->mapped);
}

static enum shard_status pulled(struct shard_cuda *c, struct job *j, bool straight)
{
	enum shard_status rc = SHARD_OK;
	uint32_t i = 0;
	int slot = 0;

	while (i < j->range_nr && rc == SHARD_OK) {
		const struct shard_cuda_pull *r = &j->range[i];
		uint64_t most = c->ring.bytes / dtype_bytes(c->tensor[r->tensor].image), n;

		if (straight) {
			rc = pull_run(c, j, i, &i);
			continue;
		}
		for (uint64_t at = 0; at < r->count && rc == SHARD_OK; at += n) {
			n = r->count - at < most ? r->count - at : most;
			rc = pull_piece(c, j, i, at, n, slot++ % RING_SLOTS);
		}
		i++;
	}
	return rc;
}

/* Says why a pull that ran out of time or is not made any more ended, where libshard did not. */
static void pull_ended(struct shard_cuda *c, struct job *j, enum shard_status rc)
{
	ended(c, j, rc);
	if (rc == SHARD_TIMEOUT)
		(void)err_set(&c->pull_fail, rc,
			      "the image did not have the parameters of step %llu in %.1f s",
			      (unsigned long long)j->step, (double)c->timeout_ns / 1e9);
	else if (rc == SHARD_WORLD_CHANGED && !cuda_fresh(c))
		(void)err_set(&c->pull_fail, rc,
			      "the connection was made again while a pull waited: call "
			      "shard_world_get(), and pull again");
	else if (rc == SHARD_CLOSED && c->dead.status == SHARD_OK)
		(void)err_set(&c->pull_fail, rc, "the handle is being closed");
}

/* Queues the copies of the next job. With the lock held, which it gives up meanwhile. */
static void issue(struct shard_cuda *c)
{
	struct job *j = helper_job(c, c->issued + 1);
	bool straight = j->kind == JOB_PULL && pulls_straight(c);
	enum shard_status rc = SHARD_OK;
	struct err e = {.status = SHARD_OK};

	if (j->kind != JOB_PUSH && !dropped(c, j)) {
		pthread_mutex_unlock(&c->lock);
		if (!straight && (rc = ring_make(&c->driver, &c->ring, &e)) != SHARD_OK) {
			e.status = SHARD_CLOSED;
			pthread_mutex_lock(&c->lock);
			cuda_dead(c, &e);
			return;
		}
		rc = j->kind == JOB_STAGED ? staged(c, j) : pulled(c, j, straight);
		pthread_mutex_lock(&c->lock);
		if (j->kind == JOB_STAGED)
			ended(c, j, rc);
		else
			pull_ended(c, j, rc);
		if (j->kind == JOB_PULL &&
		    !stopped(c)) { /* Also after a failure: some are queued. */
			cu_result cu = CU_SUCCESS;

			j->until_ns = clock_ns() + c->timeout_ns;
			if (helper_event(c, &j->done, &e) != SHARD_OK) {
				e.status = SHARD_CLOSED;
				cuda_dead(c, &e);
			} else if ((cu = c->driver.event_record(j->done, c->stream)) !=
				   CU_SUCCESS) {
				(void)driver_fail(&c->driver, &e, cu, "cuEventRecord",
						  "after a copy");
				e.status = SHARD_CLOSED;
				cuda_dead(c, &e);
			}
		}
	}
	c->issued++;
	pthread_cond_broadcast(&c->changed);
}

void *helper_main(void *handle)
{
	struct shard_cuda *c = handle;
	struct err e;

	if (cuda_enter(c, &e) != SHARD_OK) {
		e.status = SHARD_CLOSED;
		pthread_mutex_lock(&c->lock);
		cuda_dead(c, &e);
	} else {
		pthread_mutex_lock(&c->lock);
	}
	while (!stopped(c)) {
		if (c->issued < c->last) {
			issue(c);
		} else if (c->done == c->last) {
			pthread_cond_wait(&c->changed, &c->lock);
		} else if (retire(c) && !stopped(c)) {
			pthread_mutex_unlock(&c->lock);
			helper_nap();
			pthread_mutex_lock(&c->lock);
		}
	}
	c->gone = true;
	pthread_cond_broadcast(&c->changed);
	pthread_mutex_unlock(&c->lock);
	cuda_leave(c);
	return NULL;
}
