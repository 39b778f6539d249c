// SPDX-License-Identifier: Apache-2.0
/* The image that a trainer reads, and shard_image() and shard_pull(). Call with the client's lock.
 * Over a unix socket the image is the daemon's memory, read-only here, and its first page has the
 * step of each chunk. Over tcp it is private memory, into which arriving parts are received
 * directly, and the versions are kept here. A model with max_staleness = 1 has two images. ATTEMPT
 * says which step wrote the weights that a step is computed on and those of the step before, and
 * RESULT adds its own. A pull copies a range when all of its chunks are new enough, and counts only
 * if no chunk changed meanwhile. It fails on an image that does not match what the daemon says, on
 * too many tickets, and on a range outside the tensor. */
#include "image.h"

#include "ticket.h"

#include "wire/dtype.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NONE UINT64_MAX /* A chunk that holds nothing yet, or is being received. */
typedef unsigned long long ull;

/* The versions are those of the image of the node again. */
static void image_on_device_ends(struct shard_model *m)
{
	struct image_head *h = m->image.base;

	m->version = h->version;
	shm_unmap(&m->device_versions);
}

/* The shared page is not trusted. Each value is read once and compared with what JOIN said. */
static enum shard_status image_shared(struct shard_model *m, struct err *e)
{
	struct image_head *h = m->image.base;
	uint64_t need = sizeof(*h) +
			(uint64_t)m->layout->chunks_nr * (m->staleness + 1) * sizeof(h->version[0]);
	uint64_t half = m->staleness ? m->image_half : 0, theirs = h->slot_bytes;
	struct image_head copy;

	if (m->image_data < need || (m->image_data & 63) != 0)
		return err_set(e, SHARD_PROTOCOL,
			       "the image's data begin at byte %llu, its head needs %llu",
			       (ull)m->image_data, (ull)need);
	memcpy(&copy, h, offsetof(struct image_head, open));
	if (copy.magic != IMAGE_MAGIC || copy.chunks_nr != m->layout->chunks_nr ||
	    copy.data_offset != m->image_data)
		return err_set(e, SHARD_PROTOCOL,
			       "the image has magic 0x%x, %llu chunks, data at %llu: 0x%x, %u and "
			       "%llu were expected",
			       copy.magic, (ull)copy.chunks_nr, (ull)copy.data_offset, IMAGE_MAGIC,
			       m->layout->chunks_nr, (ull)m->image_data);
	if (theirs != half)
		return err_set(
			e, SHARD_PROTOCOL,
			"the second image is %llu bytes behind the first, %llu were expected",
			(ull)theirs, (ull)half);
	image_on_device_ends(m);
	return SHARD_OK;
}

enum shard_status image_init(struct shard_model *m, struct err *e)
{
	uint32_t nr = m->layout->chunks_nr;

	if (!m->client->tcp)
		return image_shared(m, e);
	m->own_version = calloc((size_t)nr * (m->staleness + 1), sizeof(*m->own_version));
	m->own_part = calloc(nr, sizeof(*m->own_part));
	m->own_coming = calloc(nr, sizeof(*m->own_coming));
	m->own_same = calloc(nr, sizeof(*m->own_same));
	if (m->own_version == NULL || m->own_part == NULL || m->own_coming == NULL ||
	    m->own_same == NULL) {
		image_deinit(m);
		return err_set(e, SHARD_SYSTEM, "out of memory for the versions of %u chunks", nr);
	}
	for (size_t c = 0; c < (size_t)nr * (m->staleness + 1); c++)
		atomic_init(&m->own_version[c], NONE);
	m->landed[0] = m->landed[1] = NONE;
	m->version = m->own_version;
	return SHARD_OK;
}

void image_deinit(struct shard_model *m)
{
	m->version = NULL;
	shm_unmap(&m->device_versions);
	free(m->own_version);
	free(m->own_part);
	free(m->own_coming);
	free(m->own_same);
	m->own_version = NULL;
	m->own_part = NULL;
	m->own_coming = NULL;
	m->own_same = NULL;
}

/* --- which image has the weights of which step --- */

void image_attempt(struct shard_model *m, const struct attempt *a)
{
	m->known_step = a->id.step - 1;
	m->wrote[0] = a->weights;
	m->wrote[1] = a->newest;
}

/* tcp, one image: a skipped step leaves the weights as they are, so only the versions move. */
static void skipped(struct shard_model *m, uint64_t step)
{
	for (uint32_t c = 0;
	     m->own_version != NULL && m->staleness == 0 && c < m->layout->chunks_nr; c++)
		if (atomic_load(&m->own_version[c]) == step - 1)
			atomic_store_explicit(&m->own_version[c], step, memory_order_release);
}

void image_decided(struct shard_model *m, uint64_t step, bool applied)
{
	if (!applied)
		skipped(m, step);
	if (step != m->known_step + 1)
		return; /* The next ATTEMPT will say. */
	m->known_step = step;
	m->wrote[0] = m->wrote[1];
	if (applied)
		m->wrote[1] = step;
}

/* *wrote is the step that wrote the weights after this step. False if it is not decided yet. */
static bool image_wrote(const struct shard_model *m, uint64_t step, uint64_t *wrote)
{
	*wrote = m->wrote[step >= m->known_step];
	return step <= m->known_step;
}

/* The image that has the chunk as step `wrote` left it. MODEL_IMAGES if none has. */
static uint32_t image_slot(const struct shard_model *m, uint32_t chunk, uint64_t wrote)
{
	uint32_t slot = 0;

	while (slot <= m->staleness &&
	       atomic_load_explicit(&m->version[(size_t)slot * m->layout->chunks_nr + chunk],
				    memory_order_acquire) != wrote)
		slot++;
	return slot <= m->staleness ? slot : MODEL_IMAGES;
}

bool image_has(const struct shard_model *m, uint64_t first, uint64_t count, uint64_t wrote,
	       uint32_t *chunk)
{
	uint32_t last = (uint32_t)((first + count - 1) / m->layout->chunk_elems);

	for (uint32_t c = (uint32_t)(first / m->layout->chunk_elems); c <= last; c++) {
		if (image_slot(m, c, wrote) < MODEL_IMAGES)
			continue;
		if (chunk != NULL)
			*chunk = c;
		return false;
	}
	return true;
}

/* tcp: the image for the parts of this step. */
static uint32_t image_landing(struct shard_model *m, uint64_t wrote)
{
	uint32_t slot = 0;

	if (m->staleness == 0)
		return 0;
	if (m->landed[0] != wrote && m->landed[1] != wrote) {
		/* Both are in use. The one that is not wanted any more, or is needed later, is
		 * overwritten. */
		if (m->landed[0] != NONE && m->landed[1] != NONE)
			slot = m->landed[0] == m->wrote[1] ||
			       (m->landed[0] == m->wrote[0] && m->landed[1] != m->wrote[1]);
		else
			slot = m->landed[0] != NONE;
		m->landed[slot] = wrote;
		return slot;
	}
	return m->landed[1] == wrote;
}

/* max_staleness = 1: the step that wrote the weights that the trainer reads. */
static uint64_t image_read(const struct shard_model *m)
{
	return m->phase == PHASE_OPEN || m->phase == PHASE_COMMITTED ? m->begun.weights
								     : m->wrote[1];
}

/* Which image the trainer reads. */
static uint32_t image_shown(const struct shard_model *m)
{
	uint32_t slot = 0;

	if (m->staleness > 0) /* Chunks of the same weights lie in the same image. */
		slot = image_slot(m, 0, image_read(m));
	return slot < MODEL_IMAGES ? slot : 0;
}

/* Where the trainer reads. With one image it is always the same place. */
static const char *image_base(const struct shard_model *m)
{
	return (const char *)m->image.base + m->image_data + image_shown(m) * m->image_half;
}

/* --- what the image holds --- */

/* In the shared page the daemon changes the generation before the versions, and both before the
 * bytes. A reader that looks in the other order cannot mistake a version of one generation for that
 * of another. */
static bool same_generation(const struct shard_model *m)
{
	const struct image_head *h = m->image.base;

	return m->own_version != NULL ||
	       atomic_load_explicit(&h->generation, memory_order_acquire) == m->generation;
}

void image_anew(struct shard_model *m)
{
	for (size_t c = 0;
	     m->own_version != NULL && c < (size_t)m->layout->chunks_nr * (m->staleness + 1); c++) {
		atomic_store_explicit(&m->own_version[c], NONE, memory_order_release);
		m->own_part[c % m->layout->chunks_nr] = 0;
	}
	m->landed[0] = m->landed[1] = NONE;
}

bool image_holds(const struct shard_model *m, uint64_t first, uint64_t count, uint64_t step,
		 uint32_t *chunk)
{
	uint32_t last = (uint32_t)((first + count - 1) / m->layout->chunk_elems);
	uint64_t wrote;

	if (m->staleness > 0)
		return image_wrote(m, step, &wrote) && image_has(m, first, count, wrote, chunk) &&
		       same_generation(m);
	for (uint32_t c = (uint32_t)(first / m->layout->chunk_elems); c <= last; c++) {
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

/* After a change of the world the whole image comes again. A chunk that is here already is the
 * same, bit by bit. A trainer that has not heard of the change may be reading it, so it is not
 * written again. */
enum shard_status image_part(struct shard_model *m, const struct wire_head *h, void **to,
			     struct err *e)
{
	uint64_t bytes, at;
	uint32_t part = WIRE_PART(h->flags), c = h->chunk, slot;

	if (c >= m->layout->chunks_nr)
		return err_set(e, SHARD_PROTOCOL, "image chunk %u of \"%s\", which has %u", c,
			       m->spec.name, m->layout->chunks_nr);
	bytes = layout_image_bytes(m->layout, c, 1);
	at = (uint64_t)part * WIRE_PART_BYTES;
	if (at >= bytes ||
	    h->body_bytes != (bytes - at < WIRE_PART_BYTES ? bytes - at : WIRE_PART_BYTES))
		return err_set(e, SHARD_PROTOCOL,
			       "part %u of image chunk %u has %u bytes, the chunk has %llu", part,
			       c, h->body_bytes, (ull)bytes);
	if (part != 0 && (part != m->own_part[c] || h->step != m->own_coming[c]))
		return err_set(e, SHARD_PROTOCOL,
			       "part %u of step %llu of image chunk %u came where part %u of step "
			       "%llu was due",
			       part, (ull)h->step, c, m->own_part[c], (ull)m->own_coming[c]);
	if (part == 0)
		m->own_same[c] = image_slot(m, c, h->step) < MODEL_IMAGES;
	m->own_coming[c] = h->step;
	if (m->own_same[c]) {
		m->own_part[c] = at + h->body_bytes < bytes ? part + 1 : 0;
		*to = STREAM_DISCARD;
		return SHARD_OK;
	}
	m->own_part[c] = part;
	slot = image_landing(m, h->step);
	atomic_store_explicit(&m->own_version[(size_t)slot * m->layout->chunks_nr + c], NONE,
			      memory_order_relaxed);
	*to = (char *)m->image.base + slot * m->image_half +
	      layout_image_at(m->layout, layout_chunk_start(m->layout, c)) + at;
	return SHARD_OK;
}

void image_part_came(struct shard_model *m, const struct wire_head *h)
{
	uint64_t bytes = layout_image_bytes(m->layout, h->chunk, 1);

	m->pulled_bytes += h->body_bytes;
	if (++m->own_part[h->chunk] * (uint64_t)WIRE_PART_BYTES < bytes)
		return;
	m->own_part[h->chunk] = 0;
	atomic_store_explicit(
		&m->own_version[(size_t)image_landing(m, h->step) * m->layout->chunks_nr +
				h->chunk],
		h->step, memory_order_release);
	ticket_settle(m);
}

/* --- a copy that counts only if nothing was written meanwhile --- */

/* A chunk cannot be overwritten before this trainer commits the step after the one it holds. A pull
 * of an older step may run while the next one is applied. Its copy counts only if the image was
 * whole before and after. */
static bool stable(struct shard_model *m, uint64_t version, uint64_t *open)
{
	const struct image_head *h = m->image.base;

	*open = 0;
	if (m->staleness > 0 ? m->known_step + (version == m->wrote[1]) >= m->committed_step
			     : version >= m->committed_step)
		return true;
	if (m->own_version != NULL)
		return true; /* Parts are received under the lock that the copy holds. */
	*open = atomic_load_explicit(&h->open, memory_order_acquire);
	return (*open & 1) == 0;
}

static bool pull_copy(struct shard_model *m, const struct ticket *t)
{
	const struct layout_tensor *x = &m->layout->tensor[t->tensor];
	uint64_t at = x->offset + t->first, end = at + t->count, to = dtype_bytes(t->dtype);
	char *dst = t->dst;

	for (uint64_t n; at < end; at += n, dst += n * to) {
		uint32_t chunk = (uint32_t)(at / m->layout->chunk_elems), slot = 0;
		uint64_t before, open, again;
		_Atomic uint64_t *v;

		n = layout_piece(m->layout, at, end);
		if (m->staleness > 0 && (!image_wrote(m, t->step, &before) ||
					 (slot = image_slot(m, chunk, before)) == MODEL_IMAGES))
			return false;
		v = &m->version[(size_t)slot * m->layout->chunks_nr + chunk];
		before = atomic_load_explicit(v, memory_order_acquire);
		if (!stable(m, before, &open))
			return false;
		dtype_convert(dst, t->dtype,
			      (const char *)m->image.base + m->image_data + slot * m->image_half +
				      layout_image_at(m->layout, at),
			      x->image, n);
		/* The bytes are read before the version and the counter are read again. */
		atomic_thread_fence(memory_order_acquire);
		if (atomic_load_explicit(v, memory_order_relaxed) != before ||
		    !stable(m, before, &again) || again != open)
			return false;
	}
	return same_generation(m);
}

/* --- a copy of all of it --- */

void image_moved(struct shard_model *m)
{
	if (m->own_version == NULL)
		image_on_device_ends(m);
}

/* As stable(). But a daemon that has let this trainer go waits for none of its commits. */
static bool copy_stable(struct shard_model *m, uint64_t version, uint64_t *open)
{
	const struct image_head *h = m->image.base;

	if ((m->client->over.status == SHARD_OK && m->lost.status == SHARD_OK &&
	     m->presence.is != PRESENCE_AWAY) ||
	    m->own_version != NULL)
		return stable(m, version, open);
	*open = atomic_load_explicit(&h->open, memory_order_acquire);
	return (*open & 1) == 0;
}

bool image_copy(struct shard_model *m, char *to, struct image_look *l)
{
	const struct layout *layout = m->layout;
	uint64_t first = NONE, open, again;
	const char *from = (const char *)m->image.base + m->image_data;

	*l = (struct image_look){image_shown(m), NONE, !same_generation(m)};
	for (uint32_t c = 0; c < m->layout->chunks_nr; c++) {
		_Atomic uint64_t *v = &m->version[(size_t)l->slot * m->layout->chunks_nr + c];
		uint64_t before = atomic_load_explicit(v, memory_order_acquire);
		uint64_t at = l->slot * m->image_half +
			      layout_image_at(layout, layout_chunk_start(layout, c));
		bool calm = copy_stable(m, before, &open);

		memcpy(to + at, from + at, layout_image_bytes(layout, c, 1));
		/* The bytes are read before the version and the counter are read again. */
		atomic_thread_fence(memory_order_acquire);
		first = c == 0 ? before : first;
		if (!calm || before == NONE || before != first || !copy_stable(m, before, &again) ||
		    again != open || atomic_load_explicit(v, memory_order_relaxed) != before)
			l->mixed = true;
		l->step = before < l->step ? before : l->step;
	}
	l->mixed = l->mixed || !same_generation(m);
	return !l->mixed && l->step >= (m->staleness > 0 ? image_read(m) : m->known_step);
}

/* --- pulls --- */

static bool pull_ready(struct shard_model *m, const struct ticket *t, uint32_t *chunk)
{
	uint64_t first = m->layout->tensor[t->tensor].offset + t->first;

	return image_holds(m, first, t->count, t->step, chunk) &&
	       (t->dst == NULL || pull_copy(m, t));
}

/* --- the calls --- */

const void *shard_image(shard_model *m, uint32_t tensor)
{
	const void *p = NULL;

	if (handle_enter_joined(m, "shard_image()") != SHARD_OK)
		return NULL;
	if (tensor >= m->layout->tensors_nr)
		text_fail(SHARD_RANGE, "tensor %u of \"%s\", which has %u", tensor, m->spec.name,
			  m->layout->tensors_nr);
	else
		p = image_base(m) + layout_image_at(m->layout, m->layout->tensor[tensor].offset);
	client_leave(m->client);
	return p;
}

static enum shard_status pull_check(struct shard_model *m, uint32_t tensor, uint64_t first,
				    uint64_t count, const void *dst, enum shard_dtype dtype)
{
	enum shard_status rc;

	if (!m->joined)
		return text_fail(SHARD_BAD_STATE,
				 "shard_pull() of \"%s\", which is not joined: observers use "
				 "shard_read(SHARD_IMAGE)",
				 m->spec.name);
	if (m->rolled_back || m->presence.is == PRESENCE_AWAY)
		return handle_changed(m);
	if ((rc = handle_range(m, "pull", tensor, first, count)) != SHARD_OK)
		return rc;
	if (dst != NULL && !dtype_ok(dtype))
		return text_fail(
			SHARD_BAD_ARG,
			"pull of \"%.200s\": dtype %d: choose SHARD_F32, SHARD_BF16 or SHARD_F16",
			m->layout->tensor[tensor].name, (int)dtype);
	return SHARD_OK;
}

static bool pull_all_ready(struct shard_model *m, const struct ticket *t, uint32_t *chunk)
{
	return image_holds(m, 0, m->layout->elems, t->step, chunk);
}

/* A ticket for what `what` says of weights, step and place. Enters and leaves with the lock. */
static enum shard_status pull_ask(struct shard_model *m, ticket_ready_fn ready,
				  const struct ticket *what, shard_ticket *ticket)
{
	struct ticket *t = ticket_new(m, ready);

	if (t == NULL)
		return text_fail(SHARD_AGAIN,
				 "%u tickets of \"%s\" are waiting: shard_wait() for one first",
				 m->tickets_nr, m->spec.name);
	t->kind = TICKET_PULL;
	t->tensor = what->tensor;
	t->first = what->first;
	t->count = what->count;
	t->step = what->step;
	t->dst = what->dst;
	t->dtype = what->dtype;
	*ticket = t->no;
	ticket_settle(m);
	return SHARD_OK;
}

enum shard_status shard_pull_all(shard_model *m, uint64_t step, shard_ticket *ticket)
{
	enum shard_status rc;

	if (ticket == NULL)
		return text_fail(SHARD_BAD_ARG, "shard_pull_all: nobody can wait without a ticket: "
						"its place is NULL");
	if ((rc = handle_enter(m)) != SHARD_OK)
		return rc;
	rc = pull_check(m, 0, 0, m->layout->tensor[0].numel, NULL, SHARD_F32);
	if (rc == SHARD_OK)
		rc = pull_ask(m, pull_all_ready,
			      &(struct ticket){.count = m->layout->elems, .step = step}, ticket);
	client_leave(m->client);
	return rc;
}

enum shard_status shard_pull(shard_model *m, uint32_t tensor, uint64_t first, uint64_t count,
			     uint64_t step, void *dst, enum shard_dtype dtype, shard_ticket *ticket)
{
	const struct ticket what = {.tensor = tensor,
				    .first = first,
				    .count = count,
				    .step = step,
				    .dst = dst,
				    .dtype = dtype};
	enum shard_status rc;

	if (ticket == NULL)
		return text_fail(SHARD_BAD_ARG,
				 "shard_pull: nobody can wait without a ticket: its place is NULL");
	if ((rc = handle_enter(m)) != SHARD_OK)
		return rc;
	rc = pull_check(m, tensor, first, count, dst, dtype);
	if (rc == SHARD_OK && count == 0) /* Of a tensor without elements. */
		*ticket = ticket_done_now(m);
	else if (rc == SHARD_OK)
		rc = pull_ask(m, pull_ready, &what, ticket);
	client_leave(m->client);
	return rc;
}
