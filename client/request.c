// SPDX-License-Identifier: Apache-2.0
/* Requests: a frame with a tag, and the reply that carries the same tag. Made and waited for by the calls that ask the daemon for
 * something, answered by incoming.c. Happy path: new, send, wait, use head, body or data, free. A caller may free a request that has
 * not been answered (deadline, interrupt): it then stays on the list, owning the memory that the stream still reads or writes, and
 * goes when the stream and the daemon are done with it. Ways to fail: no memory, the end of the connection, the daemon's refusal. */
#include "client.h"

#include "shard.pb-c.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct request *request_new(struct shard_client *c, uint16_t op, uint32_t data_bytes)
{
	struct request *r = calloc(1, sizeof(*r) + data_bytes);

	if (r == NULL) {
		text_no_memory("a request");
		return NULL;
	}
	r->c = c;
	r->op = op;
	r->data_bytes = data_bytes;
	r->sent = r->answered = true; /* nothing is under way yet */
	list_init(&r->node);
	return r;
}

static void request_destroy(struct request *r)
{
	list_remove(&r->node);
	for (int i = 0; i < r->fds_nr; i++)
		close(r->fds[i]);
	free(r->body);
	free(r);
}

void request_free(struct request *r)
{
	if (r == NULL)
		return;
	if (r->sent && r->answered)
		request_destroy(r);
	else
		r->dropped = true;
}

static void on_sent(void *arg, enum shard_status st)
{
	struct request *r = arg;

	(void)st; /* a stream that could not send is over, and says so itself */
	r->sent = true;
	if (r->dropped && r->answered)
		request_destroy(r);
}

static void request_begin(struct request *r, struct wire_head *h)
{
	struct shard_client *c = r->c;

	if (++c->tag == 0)
		c->tag = 1;
	r->tag = h->attempt = c->tag;
	h->op = r->op;
	r->answered = false;
	list_push(&c->requests, &r->node);
}

static enum shard_status send_done(struct request *r, enum shard_status rc)
{
	if (rc == SHARD_OK) {
		pump_kick(r->c);
		return SHARD_OK;
	}
	list_remove(&r->node);
	r->answered = r->sent = true;
	return rc;
}

static enum shard_status send_refused(enum shard_status rc, const struct request *r)
{
	const struct wire_op_row *row = wire_op(r->op);

	return rc == SHARD_SYSTEM ? text_no_memory("a frame")
				  : text_fail(rc, "cannot send %s: %s", row ? row->name : "?", status_name(rc));
}

enum shard_status request_send(struct request *r, struct wire_head h, const ProtobufCMessage *msg, struct wait *w)
{
	struct shard_client *c = r->c;
	enum shard_status rc;

	request_begin(r, &h);
	while ((rc = stream_send_control(c->stream, &h, msg)) == SHARD_AGAIN)
		if ((rc = pump_wait(c, w)) != SHARD_OK)
			return send_done(r, rc);
	if (rc != SHARD_OK)
		send_refused(rc, r);
	return send_done(r, rc);
}

enum shard_status request_send_bulk(struct request *r, struct wire_head h, uint32_t bytes, struct wait *w)
{
	struct shard_client *c = r->c;
	enum shard_status rc;

	CHECK(bytes <= r->data_bytes);
	request_begin(r, &h);
	r->sent = false;
	while ((rc = stream_send(c->stream, &h, r->data, bytes, on_sent, r)) == SHARD_AGAIN)
		if ((rc = pump_wait(c, w)) != SHARD_OK)
			return send_done(r, rc);
	if (rc != SHARD_OK)
		send_refused(rc, r);
	return send_done(r, rc);
}

enum shard_status request_wait(struct request *r, struct wait *w)
{
	while (!r->answered) {
		enum shard_status rc = pump_wait(r->c, w);

		if (rc != SHARD_OK && !r->answered)
			return rc;
	}
	return r->err.status == SHARD_OK ? SHARD_OK : text_fail_err(&r->err);
}

struct request *request_find(struct shard_client *c, const struct wire_head *h)
{
	list_each(it, &c->requests) {
		struct request *r = list_of(it, struct request, node);

		if (!r->answered && r->tag == h->attempt && (h->op == r->op || h->op == OP_ERROR))
			return r;
	}
	return NULL;
}

/* A refusal keeps the daemon's status and sentence; a status that this library does not know is still a failure. */
static void answer_error(struct request *r, const void *body, uint32_t bytes)
{
	Shard__Error *m = shard__error__unpack(NULL, bytes, body);
	enum shard_status st = m && m->status != SHARD_OK ? (enum shard_status)m->status : SHARD_PROTOCOL;

	err_set(&r->err, st, "%.*s", ERR_TEXT_BYTES - 1, m ? m->text : "shardd refused, and its reason cannot be read");
	r->err.sys = m && st == SHARD_SYSTEM ? (int)m->sys : 0;
	if (m)
		shard__error__free_unpacked(m, NULL);
}

void request_answer(struct request *r, const struct wire_head *h, const void *body)
{
	r->head = *h;
	r->body_bytes = h->body_bytes;
	if (h->op == OP_ERROR) {
		answer_error(r, body, h->body_bytes);
	} else if (body != r->data && h->body_bytes > 0) {
		r->body = malloc(h->body_bytes);
		if (r->body == NULL)
			err_set(&r->err, SHARD_SYSTEM, "out of memory for a reply of %u bytes", h->body_bytes);
		else
			memcpy(r->body, body, h->body_bytes);
	}
	r->answered = true;
	if (r->dropped && r->sent)
		request_destroy(r);
}
