// SPDX-License-Identifier: Apache-2.0
/* The image that a trainer reads, and tickets. Over a unix socket the image is the daemon's memory, read-only here, and its first
 * page says which step each chunk holds; over tcp it is private memory that arriving parts are received straight into, and the
 * versions are kept here. Tickets are numbers: all up to ticket_done are done, the others wait in a ring in order; settling looks at
 * the front, copies what was pulled, and moves ticket_done. Ways to fail: an image that cannot be what the daemon says it is, too many
 * tickets, deadlines. */
#include "image.h"

#include "ckpt.h"
#include "step.h"
#include "weights.h"
#include "world.h"

#include "wire/dtype.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NONE UINT64_MAX /* a chunk that holds nothing yet, or is being received */
typedef unsigned long long ull;

/* Nothing in the shared page is believed before it is copied and compared with what JOIN said. */
static enum shard_status image_shared(struct shard_model *m, struct err *e)
{
	struct image_head *h = m->image.base;
	uint64_t need = sizeof(*h) + (uint64_t)m->space.chunks_nr * (m->staleness + 1) * sizeof(h->version[0]);
	uint64_t half = m->staleness ? m->image_half : 0, theirs = h->slot_bytes;
	struct image_head copy;

	if (m->image_data < need || (m->image_data & 63) != 0)
		return err_set(e, SHARD_PROTOCOL, "the image's data begin at byte %llu, its head needs %llu", (ull)m->image_data,
			       (ull)need);
	memcpy(&copy, h, offsetof(struct image_head, open));
	if (copy.magic != IMAGE_MAGIC || copy.chunks_nr != m->space.chunks_nr || copy.data_offset != m->image_data)
		return err_set(e, SHARD_PROTOCOL,
			       "the image has magic 0x%x, %llu chunks, data at %llu: 0x%x, %u and %llu were expected", copy.magic,
			       (ull)copy.chunks_nr, (ull)copy.data_offset, IMAGE_MAGIC, m->space.chunks_nr, (ull)m->image_data);
	if (theirs != half)
		return err_set(e, SHARD_PROTOCOL, "the second image is %llu bytes behind the first, %llu were expected",
			       (ull)theirs, (ull)half);
	m->version = h->version;
	return SHARD_OK;
}

enum shard_status image_init(struct shard_model *m, struct err *e)
{
	uint32_t nr = m->space.chunks_nr;

	if (!m->client->tcp)
		return image_shared(m, e);
	m->own_version = calloc((size_t)nr * (m->staleness + 1), sizeof(*m->own_version));
	m->own_part = calloc(nr, sizeof(*m->own_part));
	m->own_coming = calloc(nr, sizeof(*m->own_coming));
	m->own_same = calloc(nr, sizeof(*m->own_same));
	if (m->own_version == NULL || m->own_part == NULL || m->own_coming == NULL || m->own_same == NULL) {
		image_deinit(m);
		return err_set(e, SHARD_SYSTEM, "out of memory for the versions of %u chunks", nr);
	}
	for (size_t c = 0; c < (size_t)nr * (m->staleness + 1); c++)
		atomic_init(&m->own_version[c], NONE);
	weights_anew(m);
	m->version = m->own_version;
	return SHARD_OK;
}

void image_deinit(struct shard_model *m)
{
	m->version = NULL;
	free(m->own_version);
	free(m->own_part);
	free(m->own_coming);
	free(m->own_same);
	m->own_version = NULL;
	m->own_part = NULL;
	m->own_coming = NULL;
	m->own_same = NULL;
	m->tickets_nr = 0; /* what was pulled stays as it is: who leaves waits for nothing more */
	atomic_store(&m->ticket_done, atomic_load(&m->ticket_last));
}

/* The daemon changes the generation in the shared page before the versions, and both before the bytes: who looks at them in the other
 * order cannot take a version of one generation for that of another. */
static bool same_generation(const struct shard_model *m)
{
	const struct image_head *h = m->image.base;

	return m->own_version != NULL || __atomic_load_n(&h->generation, __ATOMIC_ACQUIRE) == m->generation;
}

void image_anew(struct shard_model *m)
{
	for (size_t c = 0; m->own_version != NULL && c < (size_t)m->space.chunks_nr * (m->staleness + 1); c++) {
		atomic_store_explicit(&m->own_version[c], NONE, memory_order_release);
		m->own_part[c % m->space.chunks_nr] = 0;
	}
	weights_anew(m);
}

bool image_holds(const struct shard_model *m, uint64_t first, uint64_t count, uint64_t step, uint32_t *chunk)
{
	uint32_t last = (uint32_t)((first + count - 1) / m->space.chunk_elems);
	uint64_t wrote;

	if (m->staleness > 0)
		return weights_at(m, step, &wrote) && weights_here(m, first, count, wrote, chunk) && same_generation(m);
	for (uint32_t c = (uint32_t)(first / m->space.chunk_elems); c <= last; c++) {
		uint64_t v = atomic_load_explicit(&m->version[c], memory_order_acquire);

		if (v != NONE && v >= step)
			continue;
		if (chunk != NULL)
			*chunk = c;
		return false;
	}
	return same_generation(m);
}

/* --- tcp: parts as they come --- */

/* After a change of the world the whole image comes again. What is here already is the same, bit by bit, and may be read at this moment by
 * a trainer that has not heard of the change: it is not written again. */
enum shard_status image_part(struct shard_model *m, const struct wire_head *h, void **to, struct err *e)
{
	uint64_t elem = dtype_bytes(m->space.image), bytes, at;
	uint32_t part = WIRE_PART(h->flags), c = h->chunk, slot;

	if (c >= m->space.chunks_nr)
		return err_set(e, SHARD_PROTOCOL, "image chunk %u of \"%s\", which has %u", c, m->space.name, m->space.chunks_nr);
	bytes = space_chunk_elems(&m->space, c) * elem;
	at = (uint64_t)part * WIRE_PART_BYTES;
	if (at >= bytes || h->body_bytes != (bytes - at < WIRE_PART_BYTES ? bytes - at : WIRE_PART_BYTES))
		return err_set(e, SHARD_PROTOCOL, "part %u of image chunk %u has %u bytes, the chunk has %llu", part, c,
			       h->body_bytes, (ull)bytes);
	if (part != 0 && (part != m->own_part[c] || h->step != m->own_coming[c]))
		return err_set(e, SHARD_PROTOCOL, "part %u of step %llu of image chunk %u came where part %u of step %llu was due",
			       part, (ull)h->step, c, m->own_part[c], (ull)m->own_coming[c]);
	if (part == 0)
		m->own_same[c] = weights_slot(m, c, h->step) < MODEL_IMAGES;
	m->own_coming[c] = h->step;
	if (m->own_same[c]) {
		m->own_part[c] = at + h->body_bytes < bytes ? part + 1 : 0;
		*to = STREAM_DISCARD;
		return SHARD_OK;
	}
	m->own_part[c] = part;
	slot = weights_landing(m, h->step);
	atomic_store_explicit(&m->own_version[(size_t)slot * m->space.chunks_nr + c], NONE, memory_order_relaxed);
	*to = (char *)m->image.base + slot * m->image_half + (uint64_t)c * m->space.chunk_elems * elem + at;
	return SHARD_OK;
}

void image_part_came(struct shard_model *m, const struct wire_head *h)
{
	uint64_t bytes = space_chunk_elems(&m->space, h->chunk) * dtype_bytes(m->space.image);

	m->pulled_bytes += h->body_bytes;
	if (++m->own_part[h->chunk] * (uint64_t)WIRE_PART_BYTES < bytes)
		return;
	m->own_part[h->chunk] = 0;
	atomic_store_explicit(&m->own_version[(size_t)weights_landing(m, h->step) * m->space.chunks_nr + h->chunk], h->step,
			      memory_order_release);
	ticket_settle(m);
}

void image_skipped(struct shard_model *m, uint64_t step)
{
	for (uint32_t c = 0; m->own_version != NULL && m->staleness == 0 && c < m->space.chunks_nr; c++)
		if (atomic_load(&m->own_version[c]) == step - 1)
			atomic_store_explicit(&m->own_version[c], step, memory_order_release);
}

/* --- tickets --- */

shard_ticket ticket_done_now(struct shard_model *m)
{
	shard_ticket no = atomic_load(&m->ticket_last) + 1;

	atomic_store(&m->ticket_last, no);
	ticket_settle(m);
	return no;
}

struct ticket *ticket_new(struct shard_model *m)
{
	struct ticket *t;

	ticket_settle(m);
	if (m->tickets_nr == MODEL_TICKETS)
		return NULL;
	t = &m->tickets[(m->tickets_first + m->tickets_nr++) % MODEL_TICKETS];
	memset(t, 0, sizeof(*t));
	t->no = atomic_load(&m->ticket_last) + 1;
	atomic_store(&m->ticket_last, t->no);
	return t;
}

/* A chunk cannot be overwritten before this trainer commits the step after the one it holds. Where that is not so (a pull of
 * an older step while the next one is applied), the copy counts only if the image was whole before and after. */
static bool stable(struct shard_model *m, uint64_t version, uint64_t *open)
{
	const struct image_head *h = m->image.base;

	*open = 0;
	if (m->staleness > 0 ? m->known_step + (version == m->wrote[1]) >= m->committed_step : version >= m->committed_step)
		return true;
	if (m->own_version != NULL)
		return true; /* received under the lock that the copy holds; a chunk in the middle has no version */
	*open = atomic_load_explicit(&h->open, memory_order_acquire);
	return (*open & 1) == 0;
}

static bool pull_copy(struct shard_model *m, const struct ticket *t)
{
	const struct space_tensor *x = &m->space.tensors[t->tensor];
	uint64_t at = x->offset + t->first, end = at + t->count, from = dtype_bytes(m->space.image), to = dtype_bytes(t->dtype);
	char *dst = t->dst;

	for (uint64_t n; at < end; at += n, dst += n * to) {
		uint32_t chunk = (uint32_t)(at / m->space.chunk_elems), slot = 0;
		uint64_t before, open, again;
		_Atomic uint64_t *v;

		n = space_piece(&m->space, at, end);
		if (m->staleness > 0 &&
		    (!weights_at(m, t->step, &before) || (slot = weights_slot(m, chunk, before)) == MODEL_IMAGES))
			return false;
		v = &m->version[(size_t)slot * m->space.chunks_nr + chunk];
		before = atomic_load_explicit(v, memory_order_acquire);
		if (!stable(m, before, &open))
			return false;
		dtype_convert(dst, t->dtype, (const char *)m->image.base + m->image_data + slot * m->image_half + at * from,
			      m->space.image, n);
		atomic_signal_fence(memory_order_acquire); /* x86 keeps the order of loads; the compiler has to */
		if (atomic_load_explicit(v, memory_order_relaxed) != before || !stable(m, before, &again) || again != open)
			return false;
	}
	return same_generation(m);
}

static bool ticket_ready(struct shard_model *m, const struct ticket *t, uint32_t *chunk)
{
	struct verdict *v;

	*chunk = UINT32_MAX;
	if (t->done)
		return true;
	if (t->kind == TICKET_COMMIT) {
		v = step_verdict(m, t->attempt);
		return v == NULL || v->decided || v->ended;
	}
	if (!image_holds(m, m->space.tensors[t->tensor].offset + t->first, t->count, t->step, chunk))
		return false;
	return t->dst == NULL || pull_copy(m, t);
}

void ticket_settle(struct shard_model *m)
{
	uint64_t done;
	uint32_t chunk;

	while (m->tickets_nr > 0 && ticket_ready(m, &m->tickets[m->tickets_first], &chunk)) {
		m->tickets_first = (m->tickets_first + 1) % MODEL_TICKETS;
		m->tickets_nr--;
	}
	done = m->tickets_nr > 0 ? m->tickets[m->tickets_first].no - 1 : atomic_load(&m->ticket_last);
	if (done > atomic_load(&m->ticket_done))
		atomic_store(&m->ticket_done, done);
}

void ticket_void(struct shard_model *m)
{
	uint64_t last = atomic_load(&m->ticket_last);

	if (m->tickets_nr == 0)
		return;
	if (atomic_load(&m->void_last) == 0)
		atomic_store(&m->void_first, m->tickets[m->tickets_first].no);
	atomic_store(&m->void_last, last);
	m->tickets_nr = 0;
	atomic_store(&m->ticket_done, last);
}

/* Done, or over: the status says which. */
static enum shard_status ticket_end(const struct shard_model *m, shard_ticket no)
{
	if (no == 0 || no > atomic_load(&m->void_last) || no < atomic_load(&m->void_first))
		return SHARD_OK;
	return text_fail(SHARD_ROLLED_BACK,
			 "ticket %llu of \"%s\" is of before the model was rolled back: what it waited for is gone", (ull)no,
			 m->space.name);
}

/* One ticket, whatever stands before it. What is neither in the ring nor to come is done. */
static bool ticket_done_alone(struct shard_model *m, shard_ticket no)
{
	uint32_t chunk;

	ticket_settle(m);
	for (uint32_t i = 0; i < m->tickets_nr; i++) {
		struct ticket *t = &m->tickets[(m->tickets_first + i) % MODEL_TICKETS];

		if (t->no == no)
			return t->done = ticket_ready(m, t, &chunk);
	}
	return true;
}

/* --- the calls --- */

const void *shard_image(shard_model *m, uint32_t tensor)
{
	const void *p = NULL;

	if (handle_enter(m) != SHARD_OK)
		return NULL;
	if (!m->joined)
		text_fail(SHARD_BAD_STATE, "shard_image() of \"%s\", which is not joined", m->space.name);
	else if (tensor >= m->space.tensors_nr)
		text_fail(SHARD_RANGE, "tensor %u of \"%s\", which has %u", tensor, m->space.name, m->space.tensors_nr);
	else
		p = weights_image(m) + m->space.tensors[tensor].offset * dtype_bytes(m->space.image);
	client_leave(m->client);
	return p;
}

static enum shard_status pull_check(struct shard_model *m, uint32_t tensor, uint64_t first, uint64_t count, const void *dst,
				    enum shard_dtype dtype)
{
	struct err e;

	if (!m->joined)
		return text_fail(SHARD_BAD_STATE,
				 "shard_pull() of \"%s\", which is not joined: observers use shard_read(SHARD_IMAGE)",
				 m->space.name);
	if (m->rolled_back)
		return world_changed(m);
	if (space_range(&m->space, "pull", tensor, first, count, &e) != SHARD_OK)
		return text_fail_err(&e);
	if (dst != NULL && !dtype_ok(dtype))
		return text_fail(SHARD_BAD_ARG, "pull of \"%.200s\": dtype %d: choose SHARD_F32, SHARD_BF16 or SHARD_F16",
				 m->space.tensors[tensor].name, (int)dtype);
	return SHARD_OK;
}

enum shard_status shard_pull(shard_model *m, uint32_t tensor, uint64_t first, uint64_t count, uint64_t step, void *dst,
			     enum shard_dtype dtype, shard_ticket *ticket)
{
	enum shard_status rc;
	struct ticket *t;

	if (ticket == NULL)
		return text_fail(SHARD_BAD_ARG, "shard_pull: nobody can wait without a ticket: its place is NULL");
	if ((rc = handle_enter(m)) != SHARD_OK)
		return rc;
	rc = pull_check(m, tensor, first, count, dst, dtype);
	if (rc == SHARD_OK && (t = ticket_new(m)) == NULL)
		rc = text_fail(SHARD_AGAIN, "%u tickets of \"%s\" are waiting: shard_wait() for one first", m->tickets_nr,
			       m->space.name);
	if (rc == SHARD_OK) {
		t->kind = TICKET_PULL;
		t->tensor = tensor;
		t->first = first;
		t->count = count;
		t->step = step;
		t->dst = dst;
		t->dtype = dtype;
		*ticket = t->no;
		ticket_settle(m);
	}
	client_leave(m->client);
	return rc;
}

static enum shard_status no_ticket(struct shard_model *m, shard_ticket ticket)
{
	return text_fail(SHARD_BAD_ARG, "ticket %llu of \"%s\" was not given yet, the last was %llu", (ull)ticket, m->space.name,
			 (ull)atomic_load(&m->ticket_last));
}

static enum shard_status wait_timeout(struct shard_model *m, const struct wait *w, shard_ticket ticket)
{
	const struct ticket *t = &m->tickets[m->tickets_first];
	uint32_t chunk = UINT32_MAX;

	if (t->kind == TICKET_COMMIT || ticket_ready(m, t, &chunk) || chunk == UINT32_MAX)
		return text_fail(SHARD_TIMEOUT, "ticket %llu of \"%s\" waited %.1f s: ticket %llu, %s, is not done", (ull)ticket,
				 m->space.name, wait_seconds(w), (ull)t->no, t->kind == TICKET_COMMIT ? "a commit" : "a pull");
	return text_fail(SHARD_TIMEOUT,
			 "ticket %llu of \"%s\" waited %.1f s for \"%.120s\": chunk %u of the image is not of step %llu yet",
			 (ull)ticket, m->space.name, wait_seconds(w), m->space.tensors[t->tensor].name, chunk, (ull)t->step);
}

enum shard_status shard_wait(shard_model *m, shard_ticket ticket, int64_t timeout_ms)
{
	enum shard_status rc;
	struct wait w;

	if (m != NULL && !client_forked(m->client) && ckpt_wait(m, ticket, timeout_ms, &rc))
		return rc;
	if (m != NULL && !client_forked(m->client) && atomic_load(&m->ticket_done) >= ticket)
		return ticket_end(m, ticket); /* also when the connection is over by now */
	if ((rc = handle_enter(m)) != SHARD_OK)
		return rc;
	if (ticket > atomic_load(&m->ticket_last))
		rc = no_ticket(m, ticket);
	wait_begin(m->client, &w, handle_timeout(m, timeout_ms));
	while (rc == SHARD_OK) {
		ticket_settle(m);
		if (atomic_load(&m->ticket_done) >= ticket) {
			rc = ticket_end(m, ticket);
			break;
		}
		rc = m->changed ? world_changed(m) : handle_wait(m, &w);
	}
	if (rc == SHARD_TIMEOUT)
		wait_timeout(m, &w, ticket);
	client_leave(m->client);
	return rc;
}

enum shard_status shard_test(shard_model *m, shard_ticket ticket)
{
	enum shard_status rc;

	if (m == NULL)
		return text_fail(SHARD_BAD_ARG, "the model is NULL");
	if (client_forked(m->client))
		return text_fail(SHARD_FORKED, "this model belongs to the parent process: connect again here");
	if (ckpt_test(m, ticket, &rc))
		return rc;
	if (atomic_load(&m->ticket_done) >= ticket)
		return ticket_end(m, ticket);
	if (ticket > atomic_load(&m->ticket_last))
		return no_ticket(m, ticket);
	if (pthread_mutex_trylock(&m->client->lock) != 0)
		return SHARD_AGAIN; /* whoever has it settles */
	if (ticket_done_alone(m, ticket))
		rc = ticket_end(m, ticket);
	else if (m->client->over.status != SHARD_OK)
		rc = text_fail_err(&m->client->over);
	else if (m->lost.status != SHARD_OK)
		rc = text_fail_err(&m->lost);
	else
		rc = SHARD_AGAIN;
	pthread_mutex_unlock(&m->client->lock);
	return rc;
}
