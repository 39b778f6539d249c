// SPDX-License-Identifier: Apache-2.0
/* A trainer's blob that is kept with a step. shard_set_blob() copies it, READY carries it, and the
 * step's verdict makes it the rank's blob. shard_blob() asks the daemon, which asks the other
 * nodes. A blob goes with the step for which it was set, and again with the next attempt at that
 * step. In steps without a new one the rank keeps the older blob with its older step. It fails for
 * a blob that is too large, without a begun step, where none was ever committed, and where the
 * caller has no room for it. */
#include "blob.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOB_BYTES_MAX = 64 << 10 };

#define STALE_NS (2 * NS_PER_SEC)

void blob_ready(struct shard_model *m, Shard__Ready *r)
{
	/* A blob that was set for the step ahead is not sent with an earlier one. */
	r->has_blob = m->blob_due && m->blob_step <= m->begun.id.step;
	r->blob.len = r->has_blob ? m->blob_bytes : 0;
	r->blob.data = m->blob;
}

void blob_decided(struct shard_model *m, uint64_t step)
{
	if (m->blob_step <= step)
		m->blob_due = false;
}

void blob_drop(struct shard_model *m)
{
	m->blob_due = false;
}

static enum shard_status set_check(struct shard_model *m, const void *data, size_t bytes)
{
	if (data == NULL && bytes > 0)
		return text_fail(SHARD_BAD_ARG, "shard_set_blob(): %zu bytes at NULL", bytes);
	if (bytes > BLOB_BYTES_MAX)
		return text_fail(SHARD_RANGE,
				 "shard_set_blob(): %zu bytes, at most %d are kept with a step",
				 bytes, (int)BLOB_BYTES_MAX);
	if (m->changed)
		return handle_changed(m);
	if (m->phase != PHASE_OPEN)
		return text_fail(SHARD_BAD_STATE,
				 "shard_set_blob() of \"%s\": between shard_begin() and "
				 "shard_commit() of its step",
				 m->spec.name);
	if (m->blob == NULL && (m->blob = malloc(BLOB_BYTES_MAX)) == NULL)
		return text_no_memory("a blob");
	return SHARD_OK;
}

enum shard_status shard_set_blob(shard_model *m, const void *data, size_t bytes)
{
	enum shard_status rc = handle_enter_one(m);

	if (rc != SHARD_OK)
		return rc;
	if ((rc = set_check(m, data, bytes)) == SHARD_OK) {
		if (bytes > 0)
			memcpy(m->blob, data, bytes);
		m->blob_bytes = (uint32_t)bytes;
		m->blob_step = m->begun.id.step;
		m->blob_due = true;
	}
	handle_leave_one(m);
	return rc;
}

static enum shard_status blob_take(struct shard_model *m, const struct request *r, uint32_t rank,
				   void *data, size_t *bytes, uint64_t *step)
{
	Shard__BlobIs *is = shard__blob_is__unpack(NULL, r->body_bytes, r->body);
	size_t room = *bytes;
	enum shard_status rc = SHARD_OK;

	if (is == NULL || is->rank != rank || is->step == 0 || is->data.len > BLOB_BYTES_MAX) {
		rc = text_fail(SHARD_PROTOCOL,
			       "shardd at %s answered BLOB with what cannot be read",
			       m->client->address);
	} else {
		*bytes = is->data.len;
		if (step != NULL)
			*step = is->step;
		if (is->data.len > room)
			rc = text_fail(SHARD_RANGE,
				       "the blob of rank %u of \"%s\" has %zu bytes, there is room "
				       "for %zu",
				       rank, m->spec.name, is->data.len, room);
		else if (is->data.len > 0)
			memcpy(data, is->data.data, is->data.len);
	}
	if (is != NULL)
		shard__blob_is__free_unpacked(is, NULL);
	return rc;
}

/* Another node knew of a rollback before this trainer was told. LOST tells it in a moment, and an
 * observer by the next answer. */
static enum shard_status stale(struct shard_model *m, struct wait *w)
{
	struct err e = {.status = SHARD_STALE};
	enum shard_status rc = SHARD_OK;

	snprintf(e.text, sizeof(e.text), "%s", shard_error());
	w->deadline_ns = clock_ns() + STALE_NS;
	while (m->introduced && !m->changed && rc == SHARD_OK)
		rc = handle_wait(m, w);
	return m->changed                              ? handle_changed(m)
	       : rc == SHARD_OK || rc == SHARD_TIMEOUT ? text_fail_err(&e)
						       : rc;
}

enum shard_status shard_blob(shard_model *m, uint32_t rank, void *data, size_t *bytes,
			     uint64_t *step)
{
	Shard__Blob q = SHARD__BLOB__INIT;
	enum shard_status rc;
	struct request *r;
	struct wait w;

	if (bytes == NULL)
		return text_fail(SHARD_BAD_ARG, "shard_blob(): bytes is NULL");
	if (data == NULL && *bytes > 0)
		return text_fail(SHARD_BAD_ARG, "shard_blob(): room for %zu bytes at NULL", *bytes);
	if ((rc = handle_enter(m)) != SHARD_OK)
		return rc;
	if (m->rolled_back) {
		rc = handle_changed(m);
		client_leave(m->client);
		return rc;
	}
	r = request_new(m->client, OP_BLOB, 0);
	rc = r ? SHARD_OK : SHARD_SYSTEM;
	wait_begin(m->client, &w, m->timeout_ms);
	q.rank = rank;
	if (rc == SHARD_OK && (rc = request_send(r, handle_head(m), &q.base, &w)) == SHARD_OK)
		rc = request_wait(r, &w);
	if (rc == SHARD_OK)
		rc = blob_take(m, r, rank, data, bytes, step);
	else if (rc == SHARD_STALE)
		rc = stale(m, &w);
	else if (rc == SHARD_TIMEOUT)
		text_fail(rc, "the blob of rank %u of \"%s\" waited %.1f s for shardd at %s", rank,
			  m->spec.name, wait_seconds(&w), m->client->address);
	request_free(r);
	client_leave(m->client);
	return rc;
}
