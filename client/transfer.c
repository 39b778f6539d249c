// SPDX-License-Identifier: Apache-2.0
/* Weights and moments in and out: shard_write(), shard_seal(), shard_read(). A range of a tensor
 * travels as fp32 in parts of at most 256 KiB that do not cross a chunk, with several under way.
 * Each part has a buffer of its own, so that a call can give up (deadline, interrupt) while the
 * stream still uses the buffer. None of this is on the step path. A part is asked for again if the
 * daemon says that the reason passes: it is full, or its link to the node that holds the part has
 * just fallen. A read of several parts succeeds
 * only if all were answered with the same step. With *step = 0 it begins again a few times before
 * it answers SHARD_STALE. */
#include "handle.h"

#include "wire/dtype.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum {
	WINDOW = 8, /* Parts under way. */
	PART_ELEMS = WIRE_PART_BYTES / 4,
	STALE_TRIES = 5,
	BUSY_TRIES = 100,    /* Refusals in a row, over some 6 s. */
	BUSY_PAUSE_MS = 1,   /* The first pause. Each next one is twice as long. */
	BUSY_PAUSE_MAX = 64, /* The longest pause. */
};

typedef unsigned long long ull;

struct transfer {
	struct shard_model *m;
	const struct layout_tensor *t;
	enum shard_kind kind;
	enum shard_dtype dtype;
	uint64_t at, end; /* In the element space: the next part, and the end of the range. */
	uint64_t start;   /* Of the range: the caller's element 0. */
	const char *src;
	char *dst;
	uint64_t step;   /* read: step of the data, when it is known. */
	bool step_known; /* Asked for, or fixed by the first reply. */
	uint32_t busy;   /* Times in a row that the daemon could not do it now. */
	struct err full; /* Its words then. */
	struct wait wait;
	struct part {
		struct request *r;
		uint64_t first;
		uint32_t count;
	} window[WINDOW];
	uint32_t first, nr;
};

static const char *kind_name(enum shard_kind k)
{
	static const char *const names[] = {"?",          "image",    "master", "exp_avg",
					    "exp_avg_sq", "momentum", "grad"};

	return names[k >= SHARD_IMAGE && k <= SHARD_GRAD ? k : 0];
}

static enum shard_status send_write(struct transfer *x, struct part *p)
{
	struct wire_head h = handle_head(x->m);
	const char *src = x->src + (p->first - x->start) * dtype_bytes(x->dtype);

	p->r = request_new(x->m->client, OP_WRITE, p->count * 4);
	if (p->r == NULL)
		return SHARD_SYSTEM;
	dtype_convert(p->r->data, SHARD_F32, src, x->dtype, p->count);
	h.chunk = (uint32_t)x->kind;
	h.step = p->first;
	return request_send_bulk(p->r, h, p->count * 4, &x->wait);
}

static enum shard_status send_read(struct transfer *x, struct part *p)
{
	Shard__Read q = SHARD__READ__INIT;

	p->r = request_new(x->m->client, OP_READ, p->count * 4);
	if (p->r == NULL)
		return SHARD_SYSTEM;
	q.kind = (uint32_t)x->kind;
	q.first = p->first;
	q.count = p->count;
	q.step = x->step;
	return request_send(p->r, handle_head(x->m), &q.base, &x->wait);
}

static enum shard_status take_read(struct transfer *x, const struct part *p)
{
	if (p->r->body_bytes != p->count * 4)
		return text_fail(SHARD_PROTOCOL,
				 "read of \"%.200s\": %u bytes came where %u were asked for",
				 x->t->name, p->r->body_bytes, p->count * 4);
	if (!x->step_known)
		x->step = p->r->head.step;
	x->step_known = true;
	if (p->r->head.step != x->step)
		return text_fail(
			SHARD_STALE,
			"read of %s of \"%.200s\": part is of step %llu, step %llu was asked for",
			kind_name(x->kind), x->t->name, (ull)p->r->head.step, (ull)x->step);
	dtype_convert(x->dst + (p->first - x->start) * dtype_bytes(x->dtype), x->dtype, p->r->data,
		      SHARD_F32, p->count);
	return SHARD_OK;
}

static enum shard_status send_part(struct transfer *x, struct part *p)
{
	return x->src ? send_write(x, p) : send_read(x, p);
}

static enum shard_status send_next(struct transfer *x)
{
	uint64_t n = layout_piece(x->m->layout, x->at, x->end);
	struct part *p = &x->window[(x->first + x->nr) % WINDOW];
	enum shard_status rc;

	p->first = x->at;
	p->count = n < PART_ELEMS ? (uint32_t)n : PART_ELEMS;
	rc = send_part(x, p);
	if (rc != SHARD_OK) {
		request_free(p->r);
		return rc;
	}
	x->at += p->count;
	x->nr++;
	return SHARD_OK;
}

/* Would the same part be taken a little later? */
static bool passes(const struct transfer *x, const struct part *p, enum shard_status rc)
{
	if (rc == SHARD_BUSY && x->dst)
		return true;
	return (rc == SHARD_BUSY || rc == SHARD_UNREACHABLE) && p->r->err.sys == EAGAIN;
}

/* Asks for a part again after a pause. The daemon would refuse again at once. A write puts the same
 * bytes at the same place. */
static enum shard_status part_again(struct transfer *x, struct part *p)
{
	uint64_t ms = BUSY_PAUSE_MS;
	enum shard_status rc;

	x->full = p->r->err;
	request_free(p->r);
	p->r = NULL;
	for (uint32_t i = 1; i < x->busy && ms < BUSY_PAUSE_MAX; i++)
		ms *= 2;
	rc = pump_pause(x->m->client, &x->wait, ms * NS_PER_MS);
	return rc == SHARD_OK ? send_part(x, p) : rc;
}

/* Parts are answered in order, and the window moves on with each. A read asks for the first part
 * alone if its reply fixes the step. */
static enum shard_status transfer_run(struct transfer *x)
{
	enum shard_status rc = SHARD_OK;

	while (rc == SHARD_OK && (x->at < x->end || x->nr > 0)) {
		struct part *p = &x->window[x->first];
		bool alone = x->dst && !x->step_known && x->nr > 0;

		if (x->at < x->end && x->nr < WINDOW && !alone) {
			rc = send_next(x);
			continue;
		}
		rc = request_wait(p->r, &x->wait);
		if (passes(x, p, rc) && x->busy++ < BUSY_TRIES) {
			rc = part_again(x, p);
			continue;
		}
		if (rc == SHARD_OK && x->dst)
			rc = take_read(x, p);
		if (rc == SHARD_OK)
			x->busy = 0; /* It makes progress, even if only one part at a time. */
		request_free(p->r);
		x->first = (x->first + 1) % WINDOW;
		x->nr--;
	}
	/* After a failure the rest belongs to the stream until it is answered. */
	while (x->nr > 0) {
		request_free(x->window[x->first].r);
		x->first = (x->first + 1) % WINDOW;
		x->nr--;
	}
	return rc;
}

static enum shard_status transfer_check(struct transfer *x, const char *what, uint32_t tensor,
					uint64_t first, uint64_t count, const void *memory)
{
	struct shard_model *m = x->m;
	char label[64];
	enum shard_status rc;

	snprintf(label, sizeof(label), "%s of %s", what, kind_name(x->kind));
	if (!dtype_ok(x->dtype))
		return text_fail(SHARD_BAD_ARG,
				 "%s: dtype %d: choose SHARD_F32, SHARD_BF16 or SHARD_F16", label,
				 (int)x->dtype);
	if ((rc = handle_range(m, label, tensor, first, count)) != SHARD_OK)
		return rc;
	if (memory == NULL && count > 0)
		return text_fail(SHARD_BAD_ARG, "%s: the memory is NULL", label);
	x->t = &m->layout->tensor[tensor];
	x->start = x->at = x->t->offset + first;
	x->end = x->at + count;
	return SHARD_OK;
}

enum shard_status shard_write(shard_model *m, enum shard_kind kind, uint32_t tensor, uint64_t first,
			      uint64_t count, enum shard_dtype dtype, const void *src)
{
	struct transfer x = {.m = m, .kind = kind, .dtype = dtype, .src = src};
	enum shard_status rc = handle_enter(m);

	if (rc != SHARD_OK)
		return rc;
	if (kind < SHARD_MASTER || kind > SHARD_MOMENTUM)
		rc = text_fail(SHARD_BAD_ARG,
			       "write of kind %d: choose SHARD_MASTER, SHARD_EXP_AVG, "
			       "SHARD_EXP_AVG_SQ or SHARD_MOMENTUM",
			       (int)kind);
	else if (m->sealed)
		rc = text_fail(SHARD_BAD_STATE,
			       "write of \"%s\", which is sealed (step %llu): from then on only "
			       "training changes it",
			       m->spec.name, (ull)m->sealed_step);
	else
		rc = transfer_check(&x, "write", tensor, first, count, src);
	if (rc == SHARD_OK) {
		wait_begin(m->client, &x.wait, m->timeout_ms);
		rc = transfer_run(&x);
		if (rc == SHARD_TIMEOUT)
			text_fail(rc,
				  "write of %s of \"%.200s\" waited %.1f s at element %llu of "
				  "%llu%s%.200s",
				  kind_name(kind), x.t->name, wait_seconds(&x.wait),
				  (ull)(x.at - x.start), (ull)count,
				  x.busy > 0 ? ", and shardd was busy: " : "",
				  x.busy > 0 ? x.full.text : "");
	}
	client_leave(m->client);
	return rc;
}

enum shard_status shard_seal(shard_model *m, uint64_t step)
{
	enum shard_status rc = handle_enter(m);
	Shard__Seal seal = SHARD__SEAL__INIT;
	struct request *r;
	struct wait w;

	if (rc != SHARD_OK)
		return rc;
	r = request_new(m->client, OP_SEAL, 0);
	rc = r ? SHARD_OK : SHARD_SYSTEM;
	wait_begin(m->client, &w, m->timeout_ms);
	seal.step = step;
	if (rc == SHARD_OK)
		rc = request_send(r, handle_head(m), &seal.base, &w);
	if (rc == SHARD_OK)
		rc = request_wait(r, &w);
	if (rc == SHARD_OK) {
		m->sealed = true;
		m->sealed_step = step;
	} else if (rc == SHARD_TIMEOUT) {
		text_fail(rc, "seal of \"%s\" at step %llu waited %.1f s for shardd at %s",
			  m->spec.name, (ull)step, wait_seconds(&w), m->client->address);
	}
	request_free(r);
	client_leave(m->client);
	return rc;
}

enum shard_status shard_read(shard_model *m, enum shard_kind kind, uint32_t tensor, uint64_t first,
			     uint64_t count, enum shard_dtype dtype, void *dst, uint64_t *step)
{
	struct transfer x = {.m = m, .kind = kind, .dtype = dtype, .dst = dst};
	enum shard_status rc = handle_enter(m);
	uint64_t asked;

	if (rc != SHARD_OK)
		return rc;
	if (step == NULL || kind < SHARD_IMAGE || kind > SHARD_MOMENTUM)
		rc = text_fail(SHARD_BAD_ARG,
			       step ? "read of kind %d: choose SHARD_IMAGE to SHARD_MOMENTUM"
				    : "read of kind %d: step is NULL",
			       (int)kind);
	else
		rc = transfer_check(&x, "read", tensor, first, count, dst);
	if (rc == SHARD_OK) {
		wait_begin(m->client, &x.wait, m->timeout_ms);
		asked = *step;
		for (int tries = 0; tries < STALE_TRIES; tries++) {
			x.at = x.start;
			x.step = asked;
			x.step_known = asked != 0;
			rc = transfer_run(&x);
			if (rc != SHARD_STALE || asked != 0)
				break;
		}
		if (rc == SHARD_OK)
			*step = x.step;
		else if (rc == SHARD_TIMEOUT)
			text_fail(rc,
				  "read of %s of \"%.200s\" waited %.1f s at element %llu of "
				  "%llu%s%.200s",
				  kind_name(kind), x.t->name, wait_seconds(&x.wait),
				  (ull)(x.at - x.start), (ull)count,
				  x.busy > 0 ? ", and shardd was busy: " : "",
				  x.busy > 0 ? x.full.text : "");
	}
	client_leave(m->client);
	return rc;
}
