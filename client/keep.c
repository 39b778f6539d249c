// SPDX-License-Identifier: Apache-2.0
/* Memory that outlives the handle: shard_keep() and shard_unmap(). Pointers into the image are in
 * many places of a trainer, in PyTorch in every tensor. The daemon goes on writing there, so its
 * memory cannot be left to the caller. Happy path: private memory is made, the image is copied into
 * it when it is whole, and in one system call it takes the place of the daemon's memory, which the
 * handle maps again elsewhere. Over tcp the image is private already: the handle takes the copy,
 * and the caller keeps the original. The arena becomes memory of zeros. It fails without memory, on
 * an arena that a step is using, and on an image that the stream does not stop writing to. */
#include "image.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static enum shard_status keep_enter(struct shard_model *m)
{
	enum shard_status rc = handle_enter_joined(m, "shard_keep()");

	if (rc != SHARD_OK || !atomic_flag_test_and_set(&m->busy))
		return rc;
	client_leave(m->client);
	return text_fail(SHARD_BUSY,
			 "another thread is in a call on \"%s\" that only one may make at a time",
			 m->spec.name);
}

static bool is_over(const struct shard_model *m)
{
	return m->client->over.status != SHARD_OK || m->lost.status != SHARD_OK ||
	       m->presence.is == PRESENCE_AWAY;
}

/* True if the stream, or another thread, is at work in the memory. */
static bool in_use(const struct shard_model *m, enum shard_kind kind)
{
	if (m->client->over.status != SHARD_OK)
		return false;
	return kind == SHARD_GRAD ? m->copying > 0 || m->sends_out > 0 : m->client->landing == m;
}

static enum shard_status still_used(const struct shard_model *m, const struct wait *w,
				    const char *what)
{
	return text_fail(SHARD_TIMEOUT, "shard_keep() of \"%s\" waited %.1f s for %s", m->spec.name,
			 wait_seconds(w), what);
}

/* Waits until the image is whole and the newest that is known. If that does not come, it takes what
 * there is. */
static enum shard_status copy_image(struct shard_model *m, const struct shm *own, struct wait *w,
				    struct image_look *look)
{
	enum shard_status rc = SHARD_OK;
	bool whole;

	if (!m->client->tcp && !is_over(m))
		(void)pump_look(m->client); /* The trainer may be out of the world already. */
	do {
		*look = (struct image_look){.step = UINT64_MAX, .mixed = true};
		whole = !in_use(m, SHARD_IMAGE) &&
			image_copy(m, (char *)own->base + m->image_data, look);
	} while (!whole && !is_over(m) && (rc = handle_wait(m, w)) == SHARD_OK);
	if (rc == SHARD_INTERRUPTED)
		return rc;
	if (in_use(m, SHARD_IMAGE))
		return still_used(m, w, "a part of the image that is being received");
	if (!whole)
		(void)image_copy(m, (char *)own->base + m->image_data, look);
	return SHARD_OK;
}

static enum shard_status no_memory(const struct err *e)
{
	errno = ENOMEM;
	return text_fail(SHARD_SYSTEM, "shard_keep(): %s", e->text);
}

static enum shard_status keep_image(struct shard_model *m, struct wait *w, struct shard_kept *kept)
{
	char *data = (char *)m->image.base + m->image_data;
	size_t page = (size_t)sysconf(_SC_PAGESIZE), head = m->image_data / page * page;
	struct image_look look;
	enum shard_status rc;
	struct shm own;
	struct err e;

	/* Other threads need not wait while pages are made. The busy flag keeps the mapping. */
	client_leave(m->client);
	rc = shm_private(&own, m->image.bytes, SHM_HUGE_NO, &e);
	pthread_mutex_lock(&m->client->lock);
	if (rc != SHARD_OK)
		return no_memory(&e);
	rc = copy_image(m, &own, w, &look);
	if (rc == SHARD_OK && m->image.fd < 0)
		memcpy(own.base, m->image.base, m->image.bytes);
	if (rc == SHARD_OK && shm_give(&m->image, &own, &e) != SHARD_OK)
		rc = text_fail_err(&e);
	if (rc != SHARD_OK) {
		shm_unmap(&own);
		return rc;
	}
	image_moved(m);
	if (m->staleness > 0)
		memcpy(data + (look.slot == 0) * m->image_half, data + look.slot * m->image_half,
		       m->layout->image_bytes);
	if (head > 0)
		munmap(data - m->image_data, head);
	kept->base = data;
	kept->bytes = m->image.bytes - m->image_data;
	kept->step = look.step;
	kept->mixed = look.mixed;
	return SHARD_OK;
}

static enum shard_status keep_arena(struct shard_model *m, struct wait *w, struct shard_kept *kept)
{
	enum shard_status rc = SHARD_OK;
	void *base = m->arena.base;
	struct shm own;
	struct err e;

	if (!is_over(m) && (m->phase == PHASE_OPEN || m->phase == PHASE_COMMITTED))
		return text_fail(SHARD_BAD_STATE,
				 "shard_keep() of the gradients of \"%s\" in the middle of step "
				 "%llu: wait for its result, or shard_abandon() it first",
				 m->spec.name, (unsigned long long)m->begun.id.step);
	while (rc == SHARD_OK && in_use(m, SHARD_GRAD))
		rc = handle_wait(m, w);
	if (in_use(m, SHARD_GRAD))
		return rc == SHARD_INTERRUPTED
			       ? rc
			       : still_used(m, w, "gradients that are still being sent");
	if (shm_zeros(&own, m->arena.bytes, &e) != SHARD_OK)
		return no_memory(&e);
	if (shm_give(&m->arena, &own, &e) != SHARD_OK) {
		shm_unmap(&own);
		return text_fail_err(&e);
	}
	(void)mprotect(base, m->arena.bytes, PROT_READ | PROT_WRITE); /* SHARD_GUARD=1. */
	kept->base = base;
	kept->bytes = m->arena.bytes;
	return SHARD_OK;
}

enum shard_status shard_keep(shard_model *m, enum shard_kind kind, int64_t timeout_ms,
			     struct shard_kept *theirs)
{
	enum shard_status rc = text_struct_ok(theirs, "shard_kept");
	struct shard_kept kept = {.size = sizeof(kept)};
	struct wait w;

	if (rc != SHARD_OK)
		return rc;
	if (kind != SHARD_GRAD && kind != SHARD_IMAGE)
		return text_fail(SHARD_BAD_ARG, "shard_keep: choose SHARD_GRAD or SHARD_IMAGE");
	if ((rc = keep_enter(m)) != SHARD_OK)
		return rc;
	wait_begin(m->client, &w, handle_timeout(m, timeout_ms));
	rc = kind == SHARD_IMAGE ? keep_image(m, &w, &kept) : keep_arena(m, &w, &kept);
	if (rc == SHARD_OK)
		text_struct_out(theirs, &kept, sizeof(kept));
	handle_leave_one(m);
	return rc;
}

void shard_unmap(struct shard_kept *kept)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), in;

	if (kept == NULL || kept->base == NULL)
		return;
	/* The first tensor begins where the daemon's pages do, which may be smaller ones. */
	in = (uintptr_t)kept->base % page;
	munmap((char *)kept->base - in, kept->bytes + in);
	kept->base = NULL;
	kept->bytes = 0;
}
