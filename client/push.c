// SPDX-License-Identifier: Apache-2.0
/* Gradients: the arena, shard_push(), shard_push_none(), and the sending of complete chunks. A push
 * claims its range under the lock, copies or converts into the arena without it (unless the bytes
 * are there already), and fills it. The chunks that this completes go into a queue of chunk
 * numbers, which cannot overflow, and from there to the stream as far as that has room. A unix
 * socket carries one PUSH per chunk. Over tcp the parts of the arena that hold gradients go before
 * it. READY follows the last chunk. It fails on what the caller did wrong (RANGE, DUPLICATE, DTYPE,
 * BAD_STATE, STALE), and on an attempt that is over (WORLD_CHANGED). */
#include "push.h"

#include "blob.h"
#include "device.h"
#include "image.h"
#include "ticket.h"

#include "wire/control.h"
#include "wire/dtype.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef unsigned long long ull;

/* The arena of the step in hand. With max_staleness = 1 steps use the two halves in turn. */
static char *arena_half(const struct shard_model *m)
{
	return (char *)m->arena.base + m->begun.id.step % (m->staleness + 1) * m->arena_half;
}

static void free_tables(struct shard_model *m)
{
	free(m->queue);
	free(m->forced);
	free(m->absent);
	free(m->shares);
	free(m->holes);
	m->queue = m->absent = m->shares = NULL;
	m->forced = m->holes = NULL;
}

enum shard_status push_init(struct shard_model *m, struct err *e)
{
	uint32_t chunks = m->layout->chunks_nr;
	const char *guard = getenv("SHARD_GUARD");

	free(m->device);
	m->device = NULL;

	m->guard = guard != NULL && guard[0] == '1';
	if (m->queue == NULL) { /* Otherwise it joined before. */
		enum shard_status rc = cover_init(&m->cover, m->layout, e);

		if (rc != SHARD_OK)
			return rc;
		m->queue = malloc(chunks * sizeof(*m->queue));
		m->forced = calloc(chunks, 1);
		m->absent = malloc(m->layout->tensors_nr * sizeof(*m->absent));
		m->shares = malloc(3 * (size_t)m->layout->tensors_nr * sizeof(*m->shares));
		m->holes = calloc(m->layout->segments_nr + 1, 1);
	}
	if (m->queue != NULL && m->forced != NULL && m->absent != NULL && m->shares != NULL &&
	    m->holes != NULL)
		return SHARD_OK;
	cover_deinit(&m->cover);
	free_tables(m);
	return err_set(e, SHARD_SYSTEM, "out of memory for the pushes of %u chunks", chunks);
}

static void on_complete(void *arg, uint32_t chunk)
{
	struct shard_model *m = arg;

	CHECK(m->queue_nr < m->layout->chunks_nr);
	m->queue[(m->queue_first + m->queue_nr++) % m->layout->chunks_nr] = chunk;
}

void push_begin(struct shard_model *m)
{
	/* The step in flight uses the other half. */
	CHECK(m->copying == 0 && (m->sends_out == 0 || m->ahead));
	push_drop(m);
	memset(m->forced, 0, m->layout->chunks_nr);
	if (m->has_holes)
		memset(m->holes, 0, m->layout->segments_nr);
	m->has_holes = false;
	m->pushed_bytes = 0;
	adds_reset(&m->adds);
	if (m->guard)
		(void)mprotect(arena_half(m), m->staleness ? m->arena_half : m->arena.bytes,
			       PROT_READ | PROT_WRITE);
	cover_reset(&m->cover, on_complete, m);
	push_flush(m);
	pump_kick(m->client);
}

void push_drop(struct shard_model *m)
{
	m->queue_nr = m->queue_first = m->queue_part = 0;
	m->ready_due = false;
}

void push_rest_absent(struct shard_model *m)
{
	for (uint32_t c = 0; c < m->layout->chunks_nr; c++)
		if (m->cover.left[c] > 0)
			m->forced[c] = 1;
	cover_rest(&m->cover, on_complete, m);
}

void push_ready(struct shard_model *m, bool skip, const char *why)
{
	m->ready_due = true;
	m->ready_skip = skip;
	control_clean(m->ready_why, sizeof(m->ready_why), why ? why : "");
	push_flush(m);
	pump_kick(m->client);
}

/* --- sending --- */

/* Whether nothing is sent for a segment of a chunk. */
static bool segment_absent(const struct shard_model *m, uint32_t chunk, uint32_t segment)
{
	return m->forced[chunk] || m->holes[segment] ||
	       cover_absent(&m->cover, m->layout->segment_tensor[segment]);
}

/* How many elements of a segment are in this rank's share of its tensor. *start: the first of them,
 * from the segment's first on. */
static uint32_t share_in(const struct shard_model *m, uint32_t chunk, uint32_t segment,
			 uint32_t *start)
{
	const struct layout *l = m->layout;
	const struct segment *g = &l->segment[segment];
	uint32_t tensor = l->segment_tensor[segment];
	const struct span *s = &m->cover.tensors[tensor].share;
	uint64_t at = layout_chunk_start(l, chunk) + g->start - l->tensor[tensor].offset;
	uint64_t from = s->first > at ? s->first : at;
	uint64_t end = s->end < at + g->n ? s->end : at + g->n;

	*start = from < end ? (uint32_t)(from - at) : 0;
	return from < end ? (uint32_t)(end - from) : 0;
}

/* Whether no byte of a segment is sent. */
static bool segment_empty(const struct shard_model *m, uint32_t chunk, uint32_t segment)
{
	uint32_t start;

	return segment_absent(m, chunk, segment) ||
	       (m->cover.tensors[m->layout->segment_tensor[segment]].shared &&
		share_in(m, chunk, segment, &start) == 0);
}

/* True if [at, end) of the element space, inside chunk, holds a gradient. */
static bool holds_gradient(const struct shard_model *m, uint32_t chunk, uint64_t at, uint64_t end)
{
	const struct layout *l = m->layout;
	uint64_t start = layout_chunk_start(l, chunk);

	for (uint32_t s = l->chunk_segment[chunk]; s < l->chunk_segment[chunk + 1]; s++) {
		const struct segment *g = &l->segment[s];

		if (start + g->start < end && start + g->start + g->n > at &&
		    !segment_empty(m, chunk, s))
			return true;
	}
	return false;
}

static void on_part_sent(void *arg, enum shard_status st)
{
	struct shard_model *m = arg;

	(void)st;
	CHECK(m->sends_out > 0);
	if (--m->sends_out == 0)
		m->client->news = true; /* A begin may wait for this. The pump's turn wakes it. */
}

static enum shard_status send_parts(struct shard_model *m, uint32_t chunk)
{
	size_t elem = dtype_bytes(m->spec.grad);
	uint64_t part_elems = WIRE_PART_BYTES / elem,
		 start = (uint64_t)chunk * m->layout->chunk_elems;
	uint64_t end = start + layout_chunk_elems(m->layout, chunk);
	struct wire_head h = m->begun.id;

	h.op = OP_PUSH_DATA;
	h.chunk = chunk;
	for (uint64_t at = start + m->queue_part * part_elems; at < end;
	     at += part_elems, m->queue_part++) {
		uint64_t stop = at + part_elems < end ? at + part_elems : end;
		enum shard_status rc;

		if (!holds_gradient(m, chunk, at, stop))
			continue;
		h.flags = WIRE_PART_FLAG(m->queue_part);
		m->sends_out++;
		rc = stream_send(m->client->stream, &h, arena_half(m) + at * elem,
				 (uint32_t)((stop - at) * elem), on_part_sent, m);
		if (rc != SHARD_OK) {
			m->sends_out--;
			return rc;
		}
	}
	return SHARD_OK;
}

static enum shard_status send_chunk(struct shard_model *m, uint32_t chunk)
{
	const struct layout *l = m->layout;
	struct wire_head h = m->begun.id;
	Shard__Push p = SHARD__PUSH__INIT;
	enum shard_status rc;

	if (m->client->tcp && (rc = send_parts(m, chunk)) != SHARD_OK)
		return rc;
	for (uint32_t s = l->chunk_segment[chunk]; s < l->chunk_segment[chunk + 1]; s++) {
		uint32_t tensor = l->segment_tensor[s], *share = m->shares + p.n_shares;

		if (segment_absent(m, chunk, s)) {
			m->absent[p.n_absent++] = tensor;
		} else if (m->cover.tensors[tensor].shared) {
			share[0] = tensor;
			share[2] = share_in(m, chunk, s, &share[1]);
			p.n_shares += 3;
		} else if (m->cover.tensors[tensor].lies == LIES_ON_DEVICE) {
			m->device[p.n_device++] = tensor;
		}
	}
	p.absent = m->absent;
	p.shares = m->shares;
	p.device = m->device;
	p.skip = m->forced[chunk];
	h.op = OP_PUSH;
	h.chunk = chunk;
	return stream_send_control(m->client->stream, &h, &p.base);
}

static enum shard_status send_ready(struct shard_model *m)
{
	Shard__Ready r = SHARD__READY__INIT;
	struct wire_head h = m->begun.id;

	h.op = OP_READY;
	r.weight = m->weight;
	r.skip = m->ready_skip;
	r.why = m->ready_why;
	r.n_lr = m->lr_given ? m->spec.groups_nr : 0;
	r.lr = m->lr;
	r.has_clip = m->clip_given;
	r.clip = m->clip_given ? m->clip : 0;
	r.n_values = m->values_nr;
	r.values = m->values;
	blob_ready(m, &r);
	return stream_send_control(m->client->stream, &h, &r.base);
}

static enum shard_status send_abandon(struct shard_model *m)
{
	Shard__Why x = SHARD__WHY__INIT;
	struct wire_head h = m->begun.id;

	h.op = OP_ABANDON;
	x.why = m->ready_why;
	return stream_send_control(m->client->stream, &h, &x.base);
}

/* A decision about this step may overwrite the weights of two steps before. So READY waits until
 * the weights of the step before are all here. */
static bool ready_may(const struct shard_model *m)
{
	return m->ready_due &&
	       (m->staleness == 0 || image_has(m, 0, m->layout->elems, m->begun.newest, NULL));
}

/* What does not fit stays queued. Every turn of the pump calls this again. */
void push_flush(struct shard_model *m)
{
	if (m->client->over.status != SHARD_OK || m->lost.status != SHARD_OK || m->ahead)
		return;
	if (m->abandon_due && send_abandon(m) == SHARD_OK)
		m->abandon_due = false;
	while (m->queue_nr > 0) {
		if (send_chunk(m, m->queue[m->queue_first]) != SHARD_OK)
			return;
		m->queue_first = (m->queue_first + 1) % m->layout->chunks_nr;
		m->queue_nr--;
		m->queue_part = 0;
	}
	if (ready_may(m) && send_ready(m) == SHARD_OK) {
		m->ready_due = false;
		m->client->news = true; /* A begin of the next step may wait for this. */
	}
}

bool push_flush_all(struct shard_client *c)
{
	bool more = false;

	list_each(it, &c->models) {
		struct shard_model *m = list_of(it, struct shard_model, node);

		push_flush(m);
		more |= !m->ahead && (m->queue_nr > 0 || ready_may(m) || m->abandon_due);
	}
	return more;
}

/* --- one push --- */

static enum shard_status push_open(struct shard_model *m, const char *what, uint32_t tensor)
{
	const char *name = tensor < m->layout->tensors_nr ? m->layout->tensor[tensor].name : "?";
	ull step = m->begun.id.step;

	if (m->changed)
		return handle_changed(m);
	switch (m->phase) {
	case PHASE_OPEN:
		return SHARD_OK;
	case PHASE_COMMITTED:
		return text_fail(SHARD_BAD_STATE,
				 "%s of \"%.200s\": step %llu is committed already", what, name,
				 step);
	case PHASE_ABANDONED:
	case PHASE_ENDED:
		return text_fail(SHARD_BAD_STATE,
				 "%s of \"%.200s\": attempt %u at step %llu was abandoned", what,
				 name, m->begun.id.attempt, step);
	case PHASE_DECIDED:
		return text_fail(SHARD_STALE,
				 "%s of \"%.200s\": step %llu is decided, shard_begin() the next",
				 what, name, step);
	case PHASE_NONE:
		break;
	}
	return text_fail(SHARD_BAD_STATE,
			 "%s of \"%.200s\": no step is begun: shard_join() and shard_begin() first",
			 what, name);
}

/* Of a tensor that there is not, 1. */
static uint64_t numel_of(const struct shard_model *m, uint32_t tensor)
{
	return tensor < m->layout->tensors_nr ? m->layout->tensor[tensor].numel : 1;
}

/* The elements that other ranks of the node push need nothing more of this one. */
static void share_rest(struct shard_model *m, uint32_t tensor, uint64_t first, uint64_t count)
{
	uint64_t end = first + count;

	cover_fill(&m->cover, tensor, 0, first, on_complete, m);
	cover_fill(&m->cover, tensor, end, m->layout->tensor[tensor].numel - end, on_complete, m);
	push_flush(m);
	pump_kick(m->client);
}

static enum shard_status claim_share(struct shard_model *m, uint32_t tensor, uint64_t first,
				     uint64_t count)
{
	const struct cover_tensor *t = &m->cover.tensors[tensor];
	bool later = m->adds.micro_steps > 1;
	struct err e;

	if (later && t->shared && t->share.first == first && t->share.end == first + count)
		return SHARD_OK; /* Of a later micro-step. */
	/* The sum would be of this rank's gradient and of the node's. */
	if (later && !t->shared && adds_pushed(&m->adds, tensor))
		return text_fail(
			SHARD_DUPLICATE,
			"push of a share of \"%.200s\", of which elements were pushed "
			"without SHARD_SHARE in an earlier micro-step: all pass it, or none",
			m->layout->tensor[tensor].name);
	if (cover_claim_share(&m->cover, tensor, first, count, later, &e) != SHARD_OK)
		return text_fail_err(&e);
	share_rest(m, tensor, first, count);
	return SHARD_OK;
}

static enum shard_status claim(struct shard_model *m, uint32_t tensor, uint64_t first,
			       uint64_t count, uint32_t flags)
{
	enum shard_status rc = SHARD_OK;
	struct err e;

	if (flags & SHARD_SHARE)
		rc = claim_share(m, tensor, first, count);
	else if (m->cover.tensors[tensor].shared)
		return text_fail(SHARD_BAD_ARG,
				 "push of \"%.200s\" without SHARD_SHARE, of which a share was "
				 "pushed in this step: pass it",
				 m->layout->tensor[tensor].name);
	if (rc != SHARD_OK || count == 0)
		return rc;
	if (m->adds.micro_steps > 1)
		rc = adds_claim(&m->adds, tensor, first, count, &e);
	else if (!(flags & SHARD_SHARE))
		rc = cover_claim(&m->cover, tensor, first, count, &e);
	return rc == SHARD_OK ? SHARD_OK : text_fail_err(&e);
}

static enum shard_status push_claim(struct shard_model *m, uint32_t tensor, uint64_t first,
				    uint64_t count, uint32_t flags)
{
	enum lies lies = flags & SHARD_DEVICE ? LIES_ON_DEVICE : LIES_HERE;
	enum shard_status rc = device_one_place(m, tensor, lies);

	if (rc == SHARD_OK && (rc = claim(m, tensor, first, count, flags)) == SHARD_OK)
		m->cover.tensors[tensor].lies = lies;
	return rc;
}

static enum shard_status push_check(struct shard_model *m, uint32_t tensor, uint64_t first,
				    uint64_t count, const void *src, enum shard_dtype dtype,
				    uint32_t flags)
{
	enum shard_status rc = push_open(m, "push", tensor);
	bool empty = (flags & SHARD_SHARE) && count == 0;

	if (rc != SHARD_OK)
		return rc;
	rc = handle_range(m, "push", tensor, empty ? 0 : first,
			  empty ? numel_of(m, tensor) : count);
	if (rc != SHARD_OK)
		return rc;
	if (m->adds.micro_steps > 1 && !(flags & SHARD_ADD))
		return text_fail(
			SHARD_BAD_ARG,
			"push of \"%.200s\" without SHARD_ADD in a step of %u micro-steps: pass it",
			m->layout->tensor[tensor].name, m->adds.micro_steps);
	if ((flags & SHARD_DEVICE) && (rc = device_push_ok(m, tensor, src, flags)) != SHARD_OK)
		return rc;
	if (flags & ~(uint32_t)(SHARD_ADD | SHARD_CAST | SHARD_SHARE | SHARD_DEVICE))
		return text_fail(SHARD_BAD_ARG, "push of \"%.200s\": unknown flags 0x%x",
				 m->layout->tensor[tensor].name, flags);
	if (!dtype_ok(dtype) || (dtype != m->spec.grad && (src == NULL || !(flags & SHARD_CAST))))
		return text_fail(SHARD_DTYPE,
				 "push of \"%.200s\": %s is given, gradients of \"%s\" are %s: %s",
				 m->layout->tensor[tensor].name, dtype_name(dtype), m->spec.name,
				 dtype_name(m->spec.grad),
				 src ? "convert, or pass SHARD_CAST"
				     : "what lies in the arena has that dtype");
	if (m->layout->tensor[tensor].flags & SHARD_FROZEN)
		return text_fail(SHARD_BAD_ARG,
				 "push of \"%.200s\", which is frozen: it takes no gradient",
				 m->layout->tensor[tensor].name);
	if (m->layout->tensor[tensor].numel == 0) /* So it is always complete. */
		return SHARD_OK;
	if ((flags & SHARD_SHARE) && m->client->wire_minor < WIRE_SHARES)
		return text_fail(SHARD_UNSUPPORTED,
				 "push of \"%.200s\" with SHARD_SHARE, which the release of shardd "
				 "at %s does not know: upgrade it",
				 m->layout->tensor[tensor].name, m->client->address);
	return push_claim(m, tensor, empty ? 0 : first, count, flags);
}

static void guard_range(struct shard_model *m, uint64_t at, uint64_t bytes)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), base = (uintptr_t)arena_half(m);
	uintptr_t from = (base + at + page - 1) / page * page,
		  to = (base + at + bytes) / page * page;

	if (m->guard && to > from)
		/* mprotect() of huge pages may fail, which is no error. */
		(void)mprotect((void *)from, to - from, PROT_READ);
}

/* The bytes are in the arena. If the attempt ended meanwhile, they are not needed. */
static enum shard_status push_filled(struct shard_model *m, uint64_t no, uint32_t tensor,
				     uint64_t first, uint64_t count)
{
	size_t elem = dtype_bytes(m->spec.grad);

	if (m->lost.status != SHARD_OK)
		return text_fail_err(&m->lost);
	if (m->begun.no != no || m->phase != PHASE_OPEN)
		return push_open(m, "push", tensor);
	if (m->cover.tensors[tensor].lies != LIES_ON_DEVICE)
		guard_range(m, (m->layout->tensor[tensor].offset + first) * elem, count * elem);
	m->pushed_bytes += count * elem;
	cover_fill(&m->cover, tensor, first, count, on_complete, m);
	push_flush(m);
	if (m->ahead && !m->client->tcp)
		/* Its ATTEMPT may be here. What is reduced now overlaps with the backward pass. */
		(void)pump_look(m->client);
	else
		pump_kick(m->client);
	return SHARD_OK;
}

static char *arena_at(struct shard_model *m, uint32_t tensor, uint64_t first)
{
	return arena_half(m) +
	       (m->layout->tensor[tensor].offset + first) * dtype_bytes(m->spec.grad);
}

/* --- accumulation --- */

/* Pushes with SHARD_ADD are made one at a time, so that an element's operands are added in their
 * order. The lock is taken before the client's. */
static bool adding_lock(struct shard_model *m)
{
	if (m == NULL || client_forked(m->client))
		return false;
	pthread_mutex_lock(&m->adding);
	return true;
}

/* Elements that came micro_steps times are rounded into the arena. */
static void round_complete(struct shard_model *m, uint32_t tensor, uint64_t first, uint64_t end)
{
	for (uint64_t at = first, until; at < end; at = until) {
		bool complete = adds_complete(&m->adds, tensor, at, &until);

		until = until < end ? until : end;
		if (complete)
			adds_round(&m->adds, tensor, at, until - at, arena_at(m, tensor, at),
				   m->spec.grad);
	}
}

/* The rounded elements go on like any other push. */
static enum shard_status fill_complete(struct shard_model *m, uint64_t no, uint32_t tensor,
				       uint64_t first, uint64_t end)
{
	enum shard_status rc = SHARD_OK;
	struct err e;

	for (uint64_t at = first, until; at < end && rc == SHARD_OK; at = until) {
		bool complete = adds_complete(&m->adds, tensor, at, &until);

		until = until < end ? until : end;
		if (!complete)
			continue;
		rc = cover_claim(&m->cover, tensor, at, until - at, &e);
		rc = rc == SHARD_OK ? push_filled(m, no, tensor, at, until - at)
				    : text_fail_err(&e);
	}
	return rc;
}

static enum shard_status push_add(struct shard_model *m, uint32_t tensor, uint64_t first,
				  uint64_t count, const void *src, enum shard_dtype dtype)
{
	uint64_t no = m->begun.no;

	m->copying++;
	client_leave(m->client);
	adds_add(&m->adds, tensor, first, count, src ? src : arena_at(m, tensor, first), dtype);
	round_complete(m, tensor, first, first + count);
	pthread_mutex_lock(&m->client->lock);
	if (--m->copying == 0)
		pump_moved(m->client);
	if (m->lost.status != SHARD_OK)
		return text_fail_err(&m->lost);
	if (m->begun.no != no || m->phase != PHASE_OPEN)
		return push_open(m, "push", tensor);
	return fill_complete(m, no, tensor, first, first + count);
}

/* One micro-step without a gradient of this tensor. It may make the sum of the others complete. */
static enum shard_status add_none(struct shard_model *m, uint32_t tensor)
{
	uint64_t numel = m->layout->tensor[tensor].numel;
	struct err e;

	if (adds_claim_none(&m->adds, tensor, &e) != SHARD_OK)
		return text_fail_err(&e);
	if (!adds_absent(&m->adds, tensor)) {
		round_complete(m, tensor, 0, numel);
		return fill_complete(m, m->begun.no, tensor, 0, numel);
	}
	return cover_claim_absent(&m->cover, tensor, &e) == SHARD_OK ? SHARD_OK : text_fail_err(&e);
}

/* --- the calls --- */

enum shard_status shard_push(shard_model *m, uint32_t tensor, uint64_t first, uint64_t count,
			     const void *src, enum shard_dtype dtype, uint32_t flags,
			     shard_ticket *ticket)
{
	bool adding = (flags & SHARD_ADD) && adding_lock(m);
	enum shard_status rc = handle_enter(m);
	uint64_t no;
	char *dst;

	if (rc != SHARD_OK)
		goto out_adding;
	if ((rc = push_check(m, tensor, first, count, src, dtype, flags)) != SHARD_OK)
		goto out;
	if (count == 0) /* No bytes: a share may be empty. */
		goto given;
	if (m->adds.micro_steps > 1) {
		rc = push_add(m, tensor, first, count, src, dtype);
		goto given;
	}
	no = m->begun.no;
	dst = arena_at(m, tensor, first);
	if (src != NULL && src != dst) {
		m->copying++;
		client_leave(m->client);
		dtype_convert(dst, m->spec.grad, src, dtype, count);
		/* Not handle_enter(), because copying must be counted down in any case. */
		pthread_mutex_lock(&m->client->lock);
		if (--m->copying == 0)
			pump_moved(m->client);
	}
	rc = push_filled(m, no, tensor, first, count);
given:
	if (rc == SHARD_OK && ticket != NULL)
		*ticket = ticket_done_now(m);
out:
	client_leave(m->client);
out_adding:
	if (adding)
		pthread_mutex_unlock(&m->adding);
	return rc;
}

/* A trainer without samples has no gradient of any tensor. */
void push_absent(struct shard_model *m)
{
	struct err e;

	for (uint32_t i = 0; i < m->layout->tensors_nr; i++) {
		if (m->layout->tensor[i].flags & SHARD_FROZEN)
			continue;
		/* Nothing was pushed yet in this step. */
		CHECK(cover_claim_absent(&m->cover, i, &e) == SHARD_OK);
		cover_fill(&m->cover, i, 0, m->layout->tensor[i].numel, on_complete, m);
	}
	push_flush(m);
	pump_kick(m->client);
}

/* One that is frozen or empty has no gradient anyway. */
static bool takes_gradient(const struct layout_tensor *t)
{
	return !(t->flags & SHARD_FROZEN) && t->numel > 0;
}

enum shard_status shard_push_none(shard_model *m, uint32_t tensor)
{
	bool adding = adding_lock(m);
	enum shard_status rc = handle_enter(m);
	struct err e;

	if (rc != SHARD_OK)
		goto out_adding;
	rc = push_open(m, "shard_push_none()", tensor);
	if (rc == SHARD_OK)
		rc = handle_range(m, "shard_push_none()", tensor, 0, numel_of(m, tensor));
	if (rc == SHARD_OK && !takes_gradient(&m->layout->tensor[tensor]))
		goto out;
	if (rc == SHARD_OK && m->adds.micro_steps > 1)
		rc = add_none(m, tensor);
	else if (rc == SHARD_OK && cover_claim_absent(&m->cover, tensor, &e) != SHARD_OK)
		rc = text_fail_err(&e);
	if (rc == SHARD_OK && (m->adds.micro_steps <= 1 || adds_absent(&m->adds, tensor))) {
		cover_fill(&m->cover, tensor, 0, m->layout->tensor[tensor].numel, on_complete, m);
		push_flush(m);
		pump_kick(m->client);
	}
out:
	client_leave(m->client);
out_adding:
	if (adding)
		pthread_mutex_unlock(&m->adding);
	return rc;
}

/* The elements first to end of a tensor have no gradient. A segment of a chunk that lies in them is
 * not sent. Of one that they only touch they are sent as zeros. */
static void make_hole(struct shard_model *m, uint32_t tensor, uint64_t first, uint64_t end)
{
	const struct layout *l = m->layout;
	uint64_t from = l->tensor[tensor].offset + first, to = l->tensor[tensor].offset + end;

	for (uint64_t at = from, stop; at < to; at = stop) {
		uint32_t chunk = (uint32_t)(at / l->chunk_elems), s = l->chunk_segment[chunk];
		uint64_t start = layout_chunk_start(l, chunk);

		while (l->segment_tensor[s] != tensor)
			CHECK(++s < l->chunk_segment[chunk + 1]);
		start += l->segment[s].start;
		stop = start + l->segment[s].n < to ? start + l->segment[s].n : to;
		if (at == start && stop == start + l->segment[s].n)
			m->holes[s] = m->has_holes = true;
		else
			memset(arena_half(m) + at * dtype_bytes(m->spec.grad), 0,
			       (stop - at) * dtype_bytes(m->spec.grad));
	}
}

enum shard_status shard_push_none_range(shard_model *m, uint32_t tensor, uint64_t first,
					uint64_t count)
{
	enum shard_status rc = handle_enter(m);
	bool whole = false;
	struct err e;

	if (rc != SHARD_OK)
		return rc;
	rc = push_open(m, "shard_push_none_range()", tensor);
	if (rc == SHARD_OK)
		rc = handle_range(m, "shard_push_none_range()", tensor, first, count);
	if (rc != SHARD_OK || !takes_gradient(&m->layout->tensor[tensor]))
		goto out;
	whole = first == 0 && count == m->layout->tensor[tensor].numel;
	if (whole)
		goto out;
	if (m->adds.micro_steps > 1)
		rc = text_fail(
			SHARD_BAD_ARG,
			"shard_push_none_range() of \"%.200s\": elements %llu to %llu in a step "
			"of %u micro-steps: only a whole tensor can be left out of one",
			m->layout->tensor[tensor].name, (ull)first, (ull)(first + count - 1),
			m->adds.micro_steps);
	else if ((rc = device_one_place(m, tensor, LIES_HERE)) == SHARD_OK &&
		 cover_claim(&m->cover, tensor, first, count, &e) != SHARD_OK)
		rc = text_fail_err(&e);
	if (rc == SHARD_OK) {
		m->cover.tensors[tensor].lies = LIES_HERE;
		make_hole(m, tensor, first, first + count);
		cover_fill(&m->cover, tensor, first, count, on_complete, m);
		push_flush(m);
		pump_kick(m->client);
	}
out:
	client_leave(m->client);
	return whole && rc == SHARD_OK ? shard_push_none(m, tensor) : rc;
}

static enum shard_status push_whole(struct shard_model *m, uint32_t tensor)
{
	enum shard_status rc;
	uint64_t numel = numel_of(m, tensor);

	if (m->adds.micro_steps > 1)
		return text_fail(SHARD_BAD_ARG,
				 "shard_push_many() in a step of %u micro-steps: shard_push() with "
				 "SHARD_ADD",
				 m->adds.micro_steps);
	rc = push_check(m, tensor, 0, numel, NULL, m->spec.grad, 0);
	return rc == SHARD_OK ? push_filled(m, m->begun.no, tensor, 0, numel) : rc;
}

enum shard_status shard_push_many(shard_model *m, const uint32_t *tensors, uint32_t count)
{
	enum shard_status rc = handle_enter(m);

	if (rc != SHARD_OK)
		return rc;
	if (tensors == NULL)
		count = m->layout->tensors_nr;
	for (uint32_t i = 0; i < count && rc == SHARD_OK; i++) {
		uint32_t tensor = tensors != NULL ? tensors[i] : i;

		if (tensors != NULL || !(m->layout->tensor[i].flags & SHARD_FROZEN))
			rc = push_whole(m, tensor);
	}
	client_leave(m->client);
	return rc;
}

void *shard_grad(shard_model *m, uint32_t tensor)
{
	void *p = NULL;

	if (handle_enter_joined(m, "shard_grad()") != SHARD_OK)
		return NULL;
	if (tensor >= m->layout->tensors_nr)
		text_fail(SHARD_RANGE, "tensor %u of \"%s\", which has %u", tensor, m->spec.name,
			  m->layout->tensors_nr);
	else
		p = arena_half(m) + m->layout->tensor[tensor].offset * dtype_bytes(m->spec.grad);
	client_leave(m->client);
	return p;
}
