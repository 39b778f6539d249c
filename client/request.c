// SPDX-License-Identifier: Apache-2.0
/* Requests: a frame with a tag, and the reply that carries the same tag. The calls that ask the
 * daemon for something make one and wait for it, and incoming.c answers it. Happy path: new, send,
 * wait, use head, body or data, free. A caller may free a request that has not been answered, after
 * a deadline or an interrupt. It then stays on the list and owns the memory that the stream still
 * reads or writes, until the stream and the daemon are done with it. It fails without memory, when
 * the connection ends, and with the daemon's refusal. */
#include "request.h"

#include "shard.pb-c.h"
#include "wire/control.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PAUSE_LEAST_NS (20 * NS_PER_MS)
#define PAUSE_MOST_NS  (1000 * NS_PER_MS)

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
	r->sent = r->answered = true; /* Nothing is under way yet. */
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

	(void)st; /* A stream that could not send reports its own end. */
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
				  : text_fail(rc, "cannot send %s: %s", row ? row->name : "?",
					      status_name(rc));
}

enum shard_status request_send(struct request *r, struct wire_head h, const ProtobufCMessage *msg,
			       struct wait *w)
{
	struct shard_client *c = r->c;
	enum shard_status rc;
	struct err e;

	if (msg != NULL && control_texts(msg, &e) != SHARD_OK)
		return text_fail(e.status, "%s: %.400s", wire_op(r->op)->name, e.text);
	request_begin(r, &h);
	while ((rc = stream_send_control(c->stream, &h, msg)) == SHARD_AGAIN)
		if ((rc = pump_wait(c, w)) != SHARD_OK)
			return send_done(r, rc);
	if (rc != SHARD_OK)
		send_refused(rc, r);
	return send_done(r, rc);
}

enum shard_status request_send_bulk(struct request *r, struct wire_head h, uint32_t bytes,
				    struct wait *w)
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

enum shard_status request_pump(struct request *r, struct wait *w)
{
	const struct wire_head ping = {.op = OP_PING};
	struct shard_client *c = r->c;
	uint64_t now = clock_ns(), due_ns, heard_ns = stream_heard_ns(c->stream);
	struct wait part = *w;
	enum shard_status rc;

	if (heard_ns < w->began_ns)
		heard_ns = w->began_ns;
	due_ns = (r->pinged_ns > heard_ns ? r->pinged_ns : heard_ns) + c->silent_ms * NS_PER_MS;
	if (now >= due_ns && r->pinged_ns > heard_ns)
		return SHARD_TIMEOUT;
	if (now >= due_ns) {
		r->pinged_ns = now;
		due_ns = now + c->silent_ms * NS_PER_MS;
		/* If there is no room, the daemon has enough to answer. */
		(void)stream_send_control(c->stream, &ping, NULL);
		pump_kick(c);
	}
	part.deadline_ns = due_ns < w->deadline_ns ? due_ns : w->deadline_ns;
	rc = pump_wait(c, &part);
	w->polled = part.polled;
	return rc == SHARD_TIMEOUT && clock_ns() < w->deadline_ns ? SHARD_OK : rc;
}

enum shard_status request_wait_alive(struct request *r, struct wait *w, const char *of)
{
	enum shard_status rc = SHARD_OK;

	while (!r->answered && rc == SHARD_OK)
		rc = request_pump(r, w);
	if (r->answered)
		return request_wait(r, w);
	if (rc != SHARD_TIMEOUT)
		return rc;
	return text_fail(rc,
			 "%s %s waited %.1f s for shardd at %s%s: disconnect before you try again",
			 wire_op(r->op)->name, of, wait_seconds(w), r->c->address,
			 clock_ns() < w->deadline_ns
				 ? ", which does not answer a PING either (is it stopped, or does "
				   "it hang? see its log)"
				 : "");
}

enum shard_status request_again(struct request *r, const struct wait *w, uint64_t *pause_ns,
				enum shard_status rc)
{
	if (rc == SHARD_OK || !r->answered || r->err.status != rc || r->err.sys != EAGAIN ||
	    (rc != SHARD_BUSY && rc != SHARD_UNREACHABLE))
		return rc;
	*pause_ns = *pause_ns == 0 ? PAUSE_LEAST_NS : 2 * *pause_ns;
	if (*pause_ns > PAUSE_MOST_NS)
		*pause_ns = PAUSE_MOST_NS;
	rc = pump_pause(r->c, w, *pause_ns);
	if (rc == SHARD_OK)
		return SHARD_AGAIN;
	return rc == SHARD_TIMEOUT ? text_fail(r->err.status, "for %.1f s: %.400s", wait_seconds(w),
					       r->err.text)
				   : rc;
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

/* Keeps the status and sentence of the daemon's refusal. A status that this library does not know
 * is a failure as well. */
static void answer_error(struct request *r, const void *body, uint32_t bytes)
{
	Shard__Error *m = shard__error__unpack(NULL, bytes, body);
	enum shard_status st =
		m && m->status != SHARD_OK ? (enum shard_status)m->status : SHARD_PROTOCOL;

	err_set(&r->err, st, "%.*s", ERR_TEXT_BYTES - 1,
		m ? m->text : "shardd refused, and its reason cannot be read");
	r->err.sys = m ? (int)m->sys : 0;
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
			err_set(&r->err, SHARD_SYSTEM, "out of memory for a reply of %u bytes",
				h->body_bytes);
		else
			memcpy(r->body, body, h->body_bytes);
	}
	r->answered = true;
	if (r->dropped && r->sent)
		request_destroy(r);
}
