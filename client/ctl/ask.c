/* SPDX-License-Identifier: Apache-2.0 */
/* Asks a daemon one question over a connection of its own. ctl_ask() and ctl_greet() are called by
 * the other files of shardctl. Happy path: it connects and sends HELLO as a tool, and the daemon
 * answers with its own HELLO. Where a secret is given, the two ends then prove over tcp that they
 * know it. ctl_ask() sends its request next and reads the answer, ctl_greet() stops after HELLO,
 * and both close the connection. All of it happens before one deadline, and poll(2) is the only
 * place that waits. It fails with SHARD_UNREACHABLE, SHARD_TIMEOUT, SHARD_CLOSED, SHARD_PROTOCOL or
 * SHARD_DENIED, or with the status that the daemon sent in an ERROR. */
#include "ctl/ctl.h"
#include "ctl/greet.h"
#include "ctl/json.h"

#include "base/arena.h"
#include "base/clock.h"
#include "client.h"
#include "net/prove.h"
#include "net/stream.h"
#include "secure.h"
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
	struct auth *auth; /* NULL where no secret is needed. */
	struct tls *tls;   /* NULL where there is no TLS. */
	struct prove prove;
	Shard__Hello hello; /* The HELLO that this end sends. */
	ctl_heard_fn heard; /* Gets the daemon's HELLO. NULL where a request follows it. */
	void *heard_arg;
};

static enum shard_status on_head(void *owner, struct stream *s, const struct wire_head *h,
				 void **to, struct err *e)
{
	const struct wire_op_row *row = wire_op(h->op);

	(void)owner, (void)s, (void)to;
	if (!row || row->body == BODY_BULK)
		return err_set(e, SHARD_PROTOCOL,
			       "the daemon sent a frame that was not asked for (op %u)", h->op);
	return SHARD_OK;
}

static enum shard_status on_error(const Shard__Error *m, struct err *e)
{
	enum shard_status st =
		m->status > 0 && m->status < 100 ? (enum shard_status)m->status : SHARD_PROTOCOL;

	return err_set(e, st, "%.480s", m->text);
}

static enum shard_status on_greeted(struct question *q, const Shard__Hello *theirs)
{
	stream_features(q->stream, theirs->features | q->hello.features);
	stream_set_body_max(q->stream, BODY_MAX);
	q->greeted = true;
	if (q->heard)
		q->heard(q->heard_arg, theirs);
	return SHARD_OK;
}

static enum shard_status on_hello(struct question *q, const struct wire_head *h, const void *body,
				  const Shard__Hello *theirs, struct err *e)
{
	struct wire_head reply = {.op = OP_AUTH, .attempt = HELLO_TAG};
	enum shard_status st;
	Shard__Auth mine;

	if (secure_check(q->stream, q->tls, theirs->node, q->o->address, e) != SHARD_OK)
		return e->status;
	if (!q->auth && (theirs->features & FEATURE_AUTH))
		return err_set(e, SHARD_DENIED,
			       "the daemon at %s asks for the cluster secret: --secret FILE",
			       q->o->address);
	if (!q->auth)
		return on_greeted(q, theirs);
	if (!(theirs->features & FEATURE_AUTH))
		return err_set(e, SHARD_DENIED,
			       "the daemon at %s asks for no secret: set [cluster] secret there, "
			       "or give none here",
			       q->o->address);
	if ((st = prove_bind(&q->prove, q->stream, e)) != SHARD_OK ||
	    (st = prove_heard(&q->prove, q->auth, theirs, body, h->body_bytes, e)) != SHARD_OK ||
	    (st = prove_own(&q->prove, q->auth, &q->hello, &mine, e)) != SHARD_OK)
		return st;
	st = stream_send_control(q->stream, &reply, &mine.base);
	return st == SHARD_OK ? st : err_set(e, st, "AUTH cannot be sent");
}

static enum shard_status on_auth(struct question *q, const Shard__Auth *theirs, struct err *e)
{
	const ProtobufCMessage *m;
	enum shard_status st;

	if (!prove_theirs(&q->prove, q->auth, theirs))
		return err_set(e, SHARD_DENIED,
			       "the daemon at %s did not prove that it knows the secret: something "
			       "else answers there, or HELLO was "
			       "changed on the way",
			       q->o->address);
	st = control_unpack(&m, &shard__hello__descriptor, theirs->hello.data, theirs->hello.len,
			    &q->arena, e);
	return st == SHARD_OK ? on_greeted(q, (const Shard__Hello *)(const void *)m) : st;
}

/* Over tcp the daemon closes a silent connection, also while shardctl waits for a slow answer. */
static enum shard_status on_ping(struct question *q, const struct wire_head *h)
{
	struct wire_head pong = {.op = OP_PONG, .attempt = h->attempt};
	enum shard_status st = stream_send_control(q->stream, &pong, NULL);

	/* A full queue means that frames are on their way, and they are a sign of life, too. */
	return st == SHARD_AGAIN ? SHARD_OK : st;
}

static enum shard_status on_frame(void *owner, struct stream *s, const struct wire_head *h,
				  const void *body, struct err *e)
{
	struct question *q = owner;
	const ProtobufCMessageDescriptor *type = control_type(h->op, (h->flags & WIRE_REPLY) != 0);
	const ProtobufCMessage *m = NULL;
	enum shard_status st = SHARD_OK;

	(void)s;
	arena_reset(&q->arena);
	if (type)
		st = control_unpack(&m, type, body, h->body_bytes, &q->arena, e);
	if (st != SHARD_OK)
		return st;
	if (h->op == OP_ERROR)
		return m ? on_error((const Shard__Error *)(const void *)m, e) : SHARD_PROTOCOL;
	if (h->op == OP_PING)
		return on_ping(q, h);
	if (h->op == OP_HELLO && (h->flags & WIRE_REPLY) && m && !q->greeted && !q->prove.asked) {
		return on_hello(q, h, body, (const Shard__Hello *)(const void *)m, e);
	} else if (h->op == OP_AUTH && (h->flags & WIRE_REPLY) && m && !q->greeted &&
		   q->prove.asked) {
		return on_auth(q, (const Shard__Auth *)(const void *)m, e);
	} else if (h->op == q->op && (h->flags & WIRE_REPLY) && h->attempt == REQUEST_TAG && m &&
		   type == &shard__text__descriptor) {
		q->text = strdup(((const Shard__Text *)(const void *)m)->text);
		q->answered = true;
		if (!q->text)
			return err_set(e, SHARD_SYSTEM, "no memory for the answer");
	}
	return SHARD_OK; /* Other frames belong to a later release. */
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
			/* The daemon may have sent an ERROR before it closed. */
			struct err last = *e;

			return stream_read(q->stream, SIZE_MAX, e) == SHARD_OK
				       ? err_set(e, last.status, "%.480s", last.text)
				       : e->status;
		}
		if (now >= q->deadline_ns)
			return err_set(e, SHARD_TIMEOUT,
				       "the daemon at %s did not answer %s in %.1f s: is it "
				       "stopped, or does it hang%s? see its log, or give it more "
				       "time by --timeout",
				       q->o->address, what, (double)q->o->timeout_ns / 1e9,
				       strncmp(q->o->address, "unix:", 5) == 0
					       ? ""
					       : ", or is that the port of its page");
		if (sent == SHARD_AGAIN && stream_wants_out(q->stream))
			p.events |= POLLOUT;
		if (poll(&p, 1, (int)((q->deadline_ns - now) / NS_PER_MS) + 1) < 0 &&
		    errno != EINTR)
			return err_set(e, SHARD_SYSTEM, "poll: %s", strerror(errno));
		st = p.revents & (POLLIN | POLLHUP | POLLERR) ? stream_read(q->stream, SIZE_MAX, e)
							      : SHARD_OK;
		if (st != SHARD_OK)
			return *done ? SHARD_OK : st;
	}
	return SHARD_OK;
}

static enum shard_status talk(struct question *q, struct err *e)
{
	struct wire_head h = {.op = OP_HELLO, .attempt = HELLO_TAG};
	Shard__Hello *hello = &q->hello, brief;
	Shard__Look look = SHARD__LOOK__INIT;
	enum shard_status st;

	shard__hello__init(hello);
	hello->wire_min = hello->wire_max = WIRE_VERSION;
	hello->features = FEATURE_BODY_SUM;
	hello->role = ROLE_CTL;
	hello->pid = (uint32_t)getpid();
	hello->release = (char *)(uintptr_t)SHARD_RELEASE;
	prove_begin(&q->prove, AUTH_DIALLER, AUTH_FOR_CLIENT);
	if (q->auth && (st = prove_brief(&q->prove, q->auth, hello, &brief, e)) != SHARD_OK)
		return st;
	if ((st = stream_send_control(q->stream, &h, q->auth ? &brief.base : &hello->base)) !=
	    SHARD_OK)
		return err_set(e, st, "HELLO cannot be sent");
	if ((st = move(q, &q->greeted, "HELLO", e)) != SHARD_OK || q->heard)
		return st;
	h = (struct wire_head){.op = q->op, .attempt = REQUEST_TAG};
	look.all = true;
	if ((st = stream_send_control(q->stream, &h, q->o->all ? &look.base : NULL)) != SHARD_OK)
		return err_set(e, st, "%s cannot be sent", wire_op(q->op)->name);
	return move(q, &q->answered, wire_op(q->op)->name, e);
}

/* A daemon never asks for the secret over a unix socket, nor for TLS. So files are read only for
 * tcp. */
static enum shard_status open_secret(struct question *q, struct err *e)
{
	enum shard_status st;
	bool tcp;

	if ((st = dial_check(q->o->address, &tcp)) != SHARD_OK)
		return err_set(e, st, "%s", shard_error());
	if (tcp && q->o->secret)
		st = auth_open(&q->auth, q->o->secret, e);
	return tcp && st == SHARD_OK ? secure_open(&q->tls, q->o->tls, q->auth, e) : st;
}

static enum shard_status ask(struct question *q, struct err *e)
{
	static const struct stream_handler handler = {.on_head = on_head, .on_frame = on_frame};
	size_t arena_bytes = CONTROL_ARENA_BYTES(BODY_MAX);
	void *memory = malloc(arena_bytes);
	struct stream_conf conf = {
		.queue_max = 8, .body_max = WIRE_HELLO_MAX, .handler = &handler, .owner = q};
	enum shard_status st;

	if (!memory)
		return err_set(e, SHARD_SYSTEM, "no memory for an answer");
	arena_init(&q->arena, memory, arena_bytes);
	st = open_secret(q, e);
	if (st == SHARD_OK && (st = dial(q->o->address, q->deadline_ns, &conf.fd)) != SHARD_OK) {
		err_set(e, st, "%s", shard_error());
	} else if (st == SHARD_OK &&
		   (st = secure_stream(&q->stream, q->tls, &conf, e)) == SHARD_OK) {
		st = talk(q, e);
		stream_free(&q->stream);
	}
	prove_end(&q->prove);
	auth_close(&q->auth);
	tls_close(&q->tls);
	free(memory);
	return st;
}

enum shard_status ctl_greet(const struct ctl_options *o, ctl_heard_fn heard, void *arg,
			    struct err *e)
{
	struct question q = {.o = o,
			     .op = OP_HELLO,
			     .deadline_ns = clock_ns() + o->timeout_ns,
			     .heard = heard,
			     .heard_arg = arg};

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

enum shard_status ctl_ask_status(const struct ctl_options *o, json_t **out, struct err *e)
{
	json_error_t wrong;
	char *answer;
	enum shard_status st = ctl_ask(o, OP_STATUS, &answer, e);

	*out = st == SHARD_OK ? json_loads(answer, 0, &wrong) : NULL;
	free(answer);
	if (st == SHARD_OK && *out == NULL)
		st = err_set(e, SHARD_PROTOCOL, "the daemon's answer is no JSON: %s", wrong.text);
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
	case SHARD_INTERRUPTED:
		return CTL_INTERRUPTED;
	case SHARD_SYSTEM:
		return CTL_FAILED;
	default:
		return CTL_REFUSED;
	}
}
