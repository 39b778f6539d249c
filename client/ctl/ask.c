/* SPDX-License-Identifier: Apache-2.0 */
/* One question to a daemon. Happy path: dial, HELLO as a tool, the daemon's HELLO, the request (unless that was all), its answer; then the
 * connection is closed. Everything before the deadline; poll(2) is the only wait. Fails: SHARD_UNREACHABLE, SHARD_TIMEOUT,
 * SHARD_CLOSED, SHARD_PROTOCOL, or with what the daemon answered in an ERROR. */
#include "ctl/ctl.h"
#include "ctl/greet.h"

#include "base/arena.h"
#include "base/clock.h"
#include "client.h"
#include "net/stream.h"
#include "shard.pb-c.h"
#include "wire/control.h"
#include "wire/ops.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BODY_MAX    (1u << 20)
#define HELLO_TAG   1
#define REQUEST_TAG 2

struct question {
	const struct ctl_options *o;
	struct stream *stream;
	struct arena arena;
	uint16_t op;
	bool greeted, answered;
	char *text;
	uint64_t deadline_ns;
	ctl_heard_fn heard; /* NULL: HELLO is only the way to the question */
	void *heard_arg;
};

static enum shard_status on_head(void *owner, struct stream *s, const struct wire_head *h, void **to, struct err *e)
{
	const struct wire_op_row *row = wire_op(h->op);

	(void)owner, (void)s, (void)to;
	if (!row || row->body == BODY_BULK)
		return err_set(e, SHARD_PROTOCOL, "the daemon sent a frame that was not asked for (op %u)", h->op);
	return SHARD_OK;
}

static enum shard_status on_error(const Shard__Error *m, struct err *e)
{
	enum shard_status st = m->status > 0 && m->status < 100 ? (enum shard_status)m->status : SHARD_PROTOCOL;

	return err_set(e, st, "%.480s", m->text);
}

static enum shard_status on_frame(void *owner, struct stream *s, const struct wire_head *h, const void *body, struct err *e)
{
	struct question *q = owner;
	const ProtobufCMessageDescriptor *type = control_type(h->op, (h->flags & WIRE_REPLY) != 0);
	const ProtobufCMessage *m = NULL;
	enum shard_status st = SHARD_OK;

	arena_reset(&q->arena);
	if (type)
		st = control_unpack(&m, type, body, h->body_bytes, &q->arena, e);
	if (st != SHARD_OK)
		return st;
	if (h->op == OP_ERROR)
		return m ? on_error((const Shard__Error *)(const void *)m, e) : SHARD_PROTOCOL;
	if (h->op == OP_HELLO && (h->flags & WIRE_REPLY) && m) {
		stream_features(s, ((const Shard__Hello *)(const void *)m)->features);
		stream_set_body_max(s, BODY_MAX);
		q->greeted = true;
		if (q->heard)
			q->heard(q->heard_arg, (const Shard__Hello *)(const void *)m);
	} else if (h->op == q->op && (h->flags & WIRE_REPLY) && h->attempt == REQUEST_TAG && m &&
		   type == &shard__text__descriptor) {
		q->text = strdup(((const Shard__Text *)(const void *)m)->text);
		q->answered = true;
		if (!q->text)
			return err_set(e, SHARD_SYSTEM, "no memory for the answer");
	}
	return SHARD_OK; /* anything else is a later release's business */
}

/* Moves frames until *done, at most until the deadline. */
static enum shard_status move(struct question *q, const bool *done, const char *what, struct err *e)
{
	enum shard_status st, sent;

	while (!*done) {
		uint64_t now = clock_ns();
		struct pollfd p = {.fd = stream_fd(q->stream), .events = POLLIN};

		sent = stream_write(q->stream, e);
		if (sent != SHARD_OK && sent != SHARD_AGAIN) {
			struct err last = *e; /* the daemon may have said why before it closed */

			return stream_read(q->stream, SIZE_MAX, e) == SHARD_OK ? err_set(e, last.status, "%.480s", last.text)
									       : e->status;
		}
		if (now >= q->deadline_ns)
			return err_set(e, SHARD_TIMEOUT, "the daemon at %s did not answer %s in %.1f s", q->o->address, what,
				       (double)q->o->timeout_ns / 1e9);
		if (sent == SHARD_AGAIN)
			p.events |= POLLOUT;
		if (poll(&p, 1, (int)((q->deadline_ns - now) / NS_PER_MS) + 1) < 0 && errno != EINTR)
			return err_set(e, SHARD_SYSTEM, "poll: %s", strerror(errno));
		st = p.revents & (POLLIN | POLLHUP | POLLERR) ? stream_read(q->stream, SIZE_MAX, e) : SHARD_OK;
		if (st != SHARD_OK)
			return *done ? SHARD_OK : st;
	}
	return SHARD_OK;
}

static enum shard_status talk(struct question *q, struct err *e)
{
	Shard__Hello hello = SHARD__HELLO__INIT;
	struct wire_head h = {.op = OP_HELLO, .attempt = HELLO_TAG};
	enum shard_status st;

	hello.wire_min = hello.wire_max = WIRE_VERSION;
	hello.features = FEATURE_BODY_SUM;
	hello.role = ROLE_CTL;
	hello.pid = (uint32_t)getpid();
	hello.release = (char *)(uintptr_t)SHARD_RELEASE;
	if ((st = stream_send_control(q->stream, &h, &hello.base)) != SHARD_OK)
		return err_set(e, st, "HELLO cannot be sent");
	if ((st = move(q, &q->greeted, "HELLO", e)) != SHARD_OK || q->heard)
		return st;
	h = (struct wire_head){.op = q->op, .attempt = REQUEST_TAG};
	if ((st = stream_send_control(q->stream, &h, NULL)) != SHARD_OK)
		return err_set(e, st, "%s cannot be sent", wire_op(q->op)->name);
	return move(q, &q->answered, wire_op(q->op)->name, e);
}

static enum shard_status ask(struct question *q, struct err *e)
{
	static const struct stream_handler handler = {on_head, on_frame};
	size_t arena_bytes = CONTROL_ARENA_BYTES(BODY_MAX);
	void *memory = malloc(arena_bytes);
	struct stream_conf conf = {.queue_max = 8, .body_max = WIRE_HELLO_MAX, .handler = &handler, .owner = q};
	enum shard_status st;

	if (!memory)
		return err_set(e, SHARD_SYSTEM, "no memory for an answer");
	arena_init(&q->arena, memory, arena_bytes);
	st = dial(q->o->address, q->deadline_ns, &conf.fd);
	if (st != SHARD_OK) {
		err_set(e, st, "%s", shard_error());
	} else if ((st = stream_open(&q->stream, &conf, e)) != SHARD_OK) {
		close(conf.fd);
	} else {
		st = talk(q, e);
		stream_free(&q->stream);
	}
	free(memory);
	return st;
}

enum shard_status ctl_greet(const struct ctl_options *o, ctl_heard_fn heard, void *arg, struct err *e)
{
	struct question q = {.o = o, .op = OP_HELLO, .deadline_ns = clock_ns() + o->timeout_ns, .heard = heard, .heard_arg = arg};

	return ask(&q, e);
}

enum shard_status ctl_ask(const struct ctl_options *o, uint16_t op, char **text, struct err *e)
{
	struct question q = {.o = o, .op = op, .deadline_ns = clock_ns() + o->timeout_ns};
	enum shard_status st = ask(&q, e);

	*text = NULL;
	if (st == SHARD_OK)
		*text = q.text;
	else
		free(q.text);
	return st;
}

enum ctl_exit ctl_exit_of(enum shard_status st)
{
	switch ((int)st) {
	case SHARD_OK:
		return CTL_OK;
	case SHARD_UNREACHABLE:
	case SHARD_TIMEOUT:
	case SHARD_CLOSED:
		return CTL_UNREACHABLE;
	case SHARD_BAD_ARG:
		return CTL_USAGE;
	case SHARD_SYSTEM:
		return CTL_FAILED;
	default:
		return CTL_REFUSED;
	}
}
