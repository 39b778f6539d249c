// SPDX-License-Identifier: Apache-2.0
/* Handles what the daemon sends, with one row per op. The stream calls it with the client's lock,
 * from the thread that pumps. A reply finds its request by tag. Every other frame finds its model
 * by id and generation. A frame without a model is dropped, because frames of a detached or lost
 * model may still be under way. A malformed frame ends the connection. */
#include "ckpt.h"
#include "handle.h"
#include "image.h"
#include "push.h"
#include "step.h"
#include "world.h"

#include <stdio.h>
#include <unistd.h>

typedef enum shard_status (*frame_fn)(struct shard_client *c, struct shard_model *m,
				      const struct wire_head *h, const void *body, struct err *e);

static enum shard_status malformed(const struct wire_head *h, struct err *e)
{
	const struct wire_op_row *row = wire_op(h->op);

	return err_set(e, SHARD_PROTOCOL, "the body of %s cannot be read", row ? row->name : "?");
}

static enum shard_status on_ping(struct shard_client *c, struct shard_model *m,
				 const struct wire_head *h, const void *body, struct err *e)
{
	struct wire_head pong = {.op = OP_PONG, .attempt = h->attempt};

	/* If the queue is full, the frames in it are a sign of life, too. If nothing can be sent
	 * any more, the next write says so. What the daemon said after this PING is still to be
	 * read. */
	(void)m, (void)body, (void)e;
	(void)stream_send_control(c->stream, &pong, NULL);
	return SHARD_OK;
}

static enum shard_status on_pong(struct shard_client *c, struct shard_model *m,
				 const struct wire_head *h, const void *body, struct err *e)
{
	/* The stream notes when it heard something. */
	(void)c, (void)m, (void)h, (void)body, (void)e;
	return SHARD_OK;
}

static enum shard_status on_error(struct shard_client *c, struct shard_model *m,
				  const struct wire_head *h, const void *body, struct err *e)
{
	Shard__Error *x = shard__error__unpack(NULL, h->body_bytes, body);

	(void)m, (void)e;
	if (x == NULL)
		return malformed(h, e);
	err_set(&c->last_words, x->status ? (enum shard_status)x->status : SHARD_CLOSED, "%.400s",
		x->text);
	shard__error__free_unpacked(x, NULL);
	return SHARD_OK;
}

static enum shard_status on_attempt(struct shard_client *c, struct shard_model *m,
				    const struct wire_head *h, const void *body, struct err *e)
{
	Shard__Attempt *x = shard__attempt__unpack(NULL, h->body_bytes, body);

	(void)c;
	if (x == NULL)
		return malformed(h, e);
	if (x->rank >= x->world_size)
		err_set(e, SHARD_PROTOCOL, "rank %u in a world of %u", x->rank, x->world_size);
	else
		world_attempt(m, h, x);
	enum shard_status rc = x->rank >= x->world_size ? SHARD_PROTOCOL : SHARD_OK;

	shard__attempt__free_unpacked(x, NULL);
	return rc;
}

static enum shard_status on_result(struct shard_client *c, struct shard_model *m,
				   const struct wire_head *h, const void *body, struct err *e)
{
	Shard__Result *x = shard__result__unpack(NULL, h->body_bytes, body);

	(void)c;
	if (x == NULL)
		return malformed(h, e);
	step_result(m, h, x);
	shard__result__free_unpacked(x, NULL);
	return SHARD_OK;
}

/* LOST names the generation that begins. Every handle of an older one is lost, unless the weights
 * have been restored. */
static enum shard_status on_lost(struct shard_client *c, struct shard_model *m,
				 const struct wire_head *h, const void *body, struct err *e)
{
	Shard__Why *x = shard__why__unpack(NULL, h->body_bytes, body);

	if (x == NULL)
		return malformed(h, e);
	list_each(it, &c->models) {
		m = list_of(it, struct shard_model, node);
		if (!m->defined || m->id != h->model || m->generation >= h->generation)
			continue;
		if (x->status == SHARD_ROLLED_BACK && m->lost.status == SHARD_OK)
			world_rolled_back(m, h, x->why);
		else
			handle_lost(m, x->status, x->why);
	}
	shard__why__free_unpacked(x, NULL);
	return SHARD_OK;
}

static enum shard_status on_ended(struct shard_client *c, struct shard_model *m,
				  const struct wire_head *h, const void *body, struct err *e)
{
	Shard__Why *x = shard__why__unpack(NULL, h->body_bytes, body);

	(void)c;
	if (x == NULL)
		return malformed(h, e);
	world_ended(m, h, x->status == SHARD_MISMATCH ? SHARD_MISMATCH : SHARD_WORLD_CHANGED,
		    x->why);
	shard__why__free_unpacked(x, NULL);
	return SHARD_OK;
}

static enum shard_status on_published(struct shard_client *c, struct shard_model *m,
				      const struct wire_head *h, const void *body, struct err *e)
{
	/* The shared page says what moved, and waiting calls look at it. */
	(void)c, (void)h, (void)body, (void)e;
	push_flush(m); /* A READY may wait for the weights. */
	return SHARD_OK;
}

static enum shard_status on_image(struct shard_client *c, struct shard_model *m,
				  const struct wire_head *h, const void *body, struct err *e)
{
	(void)body, (void)e;
	if (c->landing == m) /* Otherwise it belonged to a handle that was detached meanwhile. */
		image_part_came(m, h);
	c->landing = NULL;
	push_flush(m);
	return SHARD_OK;
}

static enum shard_status on_progress(struct shard_client *c, struct shard_model *m,
				     const struct wire_head *h, const void *body, struct err *e)
{
	Shard__Progress *x = shard__progress__unpack(NULL, h->body_bytes, body);

	(void)m;
	if (x == NULL)
		return malformed(h, e);
	(void)ckpt_heard(c, h, x);
	shard__progress__free_unpacked(x, NULL);
	return SHARD_OK;
}

static const struct frame_row {
	frame_fn fn;
	bool of_model;
} rows[OP_NR] = {
	[OP_PING] = {on_ping, false},          [OP_ERROR] = {on_error, false},
	[OP_ATTEMPT] = {on_attempt, true},     [OP_RESULT] = {on_result, true},
	[OP_ENDED] = {on_ended, true},         [OP_LOST] = {on_lost, false},
	[OP_PUBLISHED] = {on_published, true}, [OP_IMAGE_DATA] = {on_image, true},
	[OP_PROGRESS] = {on_progress, false},  [OP_PONG] = {on_pong, false},
};

static enum shard_status on_head(void *owner, struct stream *s, const struct wire_head *h,
				 void **to, struct err *e)
{
	struct shard_client *c = owner;
	struct request *r;
	struct shard_model *m;
	enum shard_status st;

	(void)s;
	if (h->flags & WIRE_REPLY) {
		r = request_find(c, h);
		if (r == NULL)
			return err_set(e, SHARD_PROTOCOL, "a reply that nobody asked for (tag %u)",
				       h->attempt);
		if (h->op == OP_READ) {
			if (h->body_bytes > r->data_bytes)
				return err_set(e, SHARD_PROTOCOL,
					       "a reply of %u bytes where %u were asked for",
					       h->body_bytes, r->data_bytes);
			*to = r->data;
		}
		return SHARD_OK;
	}
	if (h->op >= OP_NR || rows[h->op].fn == NULL)
		return err_set(e, SHARD_PROTOCOL, "no trainer is sent op %u", h->op);
	if (h->op != OP_IMAGE_DATA)
		return SHARD_OK;
	m = handle_find(c, h);
	if (m == NULL || m->own_version == NULL) {
		*to = STREAM_DISCARD;
		return SHARD_OK;
	}
	st = image_part(m, h, to, e);
	/* For on_image(), which is not called for discarded bodies, such as of chunks that are here
	 * already. Whoever waited for one of these to land would wait for ever. */
	c->landing = st == SHARD_OK && *to != STREAM_DISCARD ? m : NULL;
	return st;
}

static enum shard_status on_frame(void *owner, struct stream *s, const struct wire_head *h,
				  const void *body, struct err *e)
{
	struct shard_client *c = owner;
	struct shard_model *m = NULL;
	struct request *r;

	c->news = true;
	if (h->flags & WIRE_REPLY) {
		r = request_find(c, h);
		CHECK(r != NULL); /* on_head() found it, and only its answer removes it. */
		r->fds_nr = stream_take_fds(s, r->fds, (int)NR(r->fds));
		request_answer(r, h, body);
		return SHARD_OK;
	}
	if (rows[h->op].of_model && (m = handle_find(c, h)) == NULL) {
		if (h->op == OP_IMAGE_DATA)
			c->landing = NULL; /* The model was detached while the part came in. */
		return SHARD_OK;
	}
	return rows[h->op].fn(c, m, h, body, e);
}

const struct stream_handler incoming_handler = {.on_head = on_head, .on_frame = on_frame};
