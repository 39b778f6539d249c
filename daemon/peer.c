/* SPDX-License-Identifier: Apache-2.0 */
/* Links between nodes. The node with the higher index dials each connection of a link and says HELLO; the other answers. When HELLO is
 * through on all of them with one incarnation the link is up and every model's core hears it; when any of them closes, all
 * close, the cores hear that, and the dialler tries again with back-off. PINGs keep silence from looking like death. Frames go
 * through one table; those of an unknown model are dropped (the coordinator sends MODEL first after each link-up). */
#include "peer.h"

#include "base/check.h"
#include "base/clock.h"
#include "define.h"
#include "hello.h"
#include "model.h"
#include "relay.h"
#include "session.h"
#include "transfer.h"
#include "wire/control.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PEER_BACKOFF_MIN_NS (50 * NS_PER_MS)
#define PEER_BACKOFF_MAX_NS NS_PER_SEC

struct conn *peer_control(struct peer *p)
{
	return p->up ? p->conns[0].conn : NULL;
}

enum shard_status peer_send(struct server *s, uint16_t node, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e)
{
	struct peer *p = s->peer[node];
	enum shard_status st;

	if (p == NULL || !p->up)
		return err_set(e, SHARD_UNREACHABLE, "node %s is down: %s", server_node_name(s, node), p != NULL ? p->why : "it is this one");
	st = stream_send_control(conn_stream(p->conns[0].conn), h, msg);
	if (st != SHARD_OK)
		return err_set(e, st, "the queue to node %s is full", server_node_name(s, node));
	conn_kick(p->conns[0].conn);
	return SHARD_OK;
}

void peer_refuse(struct peer *p, uint32_t tag, const struct err *e)
{
	struct wire_head h = {.op = OP_ERROR, .flags = WIRE_REPLY, .attempt = tag};
	Shard__Error body = SHARD__ERROR__INIT;

	body.status = e->status;
	body.text = (char *)(uintptr_t)e->text;
	(void)peer_send(p->server, p->node, &h, &body.base, NULL);
}

void peer_close(struct peer *p, const struct err *why)
{
	for (uint32_t i = 0; i < p->conns_nr; i++)
		if (p->conns[i].conn != NULL)
			conn_close(p->conns[i].conn, why, 0);
}

static void link_down(struct peer *p, const struct err *why)
{
	struct server *s = p->server;

	p->up = false;
	p->downs++;
	p->since_ns = clock_ns();
	snprintf(p->why, sizeof(p->why), "%s", why->text);
	log_line(s->log, LOG_LEVEL_WARN, "event=link_down peer=%s why=%s", server_node_name(s, p->node), why->text);
	define_node_down(s, p->node, why);
}

static void link_up(struct peer *p)
{
	struct server *s = p->server;

	for (uint32_t i = 0; i < p->conns_nr; i++)
		if (!p->conns[i].greeted)
			return;
	for (uint32_t i = 0; i < p->conns_nr; i++)
		conn_pause(p->conns[i].conn, false);
	p->up = true;
	p->since_ns = clock_ns();
	p->backoff_ns = PEER_BACKOFF_MIN_NS;
	p->why[0] = 0;
	log_line(s->log, LOG_LEVEL_INFO, "event=link_up peer=%s incarnation=%lu connections=%u", server_node_name(s, p->node),
		 (unsigned long)p->incarnation, p->conns_nr);
	define_node_up(s, p->node);
}

/* --- frames --- */

static enum shard_status on_define(struct peer *p, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e)
{
	return define_node_request(p, h, (const Shard__Define *)msg, e);
}

static enum shard_status on_seal(struct peer *p, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e)
{
	return define_node_seal(p, h, (const Shard__Seal *)msg, e);
}

static enum shard_status on_read(struct peer *p, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e)
{
	return transfer_node_read(p, h, (const Shard__Read *)msg, e);
}

static enum shard_status on_model(struct peer *p, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e)
{
	return define_model(p, h, (const Shard__Model *)msg, e);
}

static enum shard_status on_model_drop(struct peer *p, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e)
{
	(void)msg, (void)e;
	define_model_drop(p, h);
	return SHARD_OK;
}

static enum shard_status on_written(struct peer *p, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e)
{
	(void)msg;
	return define_written(p, h, e);
}

static enum shard_status on_detached(struct peer *p, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e)
{
	(void)h, (void)e;
	define_detached(p->server, p->node, ((const Shard__Trainer *)msg)->session);
	return SHARD_OK;
}

static enum shard_status on_image_ask(struct peer *p, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e)
{
	struct model *m = model_find(p->server, h->model);

	(void)e;
	if (m != NULL && h->generation == m->generation)
		apply_image_asked(m, p->node, (const Shard__Chunks *)msg);
	return SHARD_OK;
}

static enum shard_status on_contrib(struct peer *p, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e)
{
	struct model *m = model_find(p->server, h->model);

	return m != NULL ? gather_contrib(m, p, h, (const Shard__Push *)msg, e) : SHARD_OK;
}

static enum shard_status on_ping(struct peer *p, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e)
{
	(void)p, (void)h, (void)msg, (void)e;
	return SHARD_OK; /* both ends send them; being heard is all they are for */
}

static enum shard_status on_error(struct peer *p, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e)
{
	const Shard__Error *body = (const Shard__Error *)msg;

	(void)h;
	return err_set(e, SHARD_CLOSED, "node %s refused: %s", server_node_name(p->server, p->node), body->text);
}

static const struct peer_op {
	enum shard_status (*run)(struct peer *p, const struct wire_head *h, const ProtobufCMessage *msg, struct err *e);
	const ProtobufCMessageDescriptor *body;
	bool request; /* a failure is its answer; else it closes the link */
} ops[OP_NR] = {
	[OP_ERROR] = {on_error, &shard__error__descriptor, false},
	[OP_PING] = {on_ping, NULL, false},
	[OP_PONG] = {on_ping, NULL, false},
	[OP_DEFINE] = {on_define, &shard__define__descriptor, true},
	[OP_SEAL] = {on_seal, &shard__seal__descriptor, true},
	[OP_READ] = {on_read, &shard__read__descriptor, true},
	[OP_MODEL] = {on_model, &shard__model__descriptor, true},
	[OP_MODEL_DROP] = {on_model_drop, NULL, false},
	[OP_WRITTEN] = {on_written, NULL, true},
	[OP_DETACHED] = {on_detached, &shard__trainer__descriptor, false},
	[OP_IMAGE_ASK] = {on_image_ask, &shard__chunks__descriptor, false},
	[OP_CONTRIB] = {on_contrib, &shard__push__descriptor, false},
};

static enum shard_status bulk_head(struct peer *p, const struct wire_head *h, void **to, struct err *e)
{
	struct model *m = model_find(p->server, h->model);
	struct relay *r;

	if (h->op == OP_WRITE && !(h->flags & WIRE_REPLY))
		return transfer_node_write_head(p, h, to, e);
	*to = STREAM_DISCARD;
	if (h->op == OP_READ) { /* an answer */
		r = relay_find(p->server, p->node, h->attempt);
		if (r == NULL || r->buffer != NULL || (r->buffer = malloc(h->body_bytes)) == NULL)
			return SHARD_OK;
		*to = r->buffer;
		return SHARD_OK;
	}
	if (m == NULL)
		return SHARD_OK;
	return h->op == OP_CONTRIB_DATA ? gather_contrib_head(m, p, h, to, e) : apply_image_head(m, h, to, e);
}

static enum shard_status bulk_frame(struct peer *p, const struct wire_head *h, struct err *e)
{
	struct model *m = model_find(p->server, h->model);

	if (h->op == OP_WRITE)
		transfer_node_write_frame(p, h);
	if (h->op == OP_WRITE || m == NULL)
		return SHARD_OK;
	return h->op == OP_CONTRIB_DATA ? gather_contrib_data(m, p, h, e) : apply_image_part(m, h, e);
}

static enum shard_status answered(struct peer *p, const struct wire_head *h, const void *body, struct err *e)
{
	struct server *s = p->server;
	struct relay *r = relay_find(s, p->node, h->attempt);
	const ProtobufCMessage *msg;
	enum shard_status st;
	struct err why;

	if (r == NULL)
		return SHARD_OK;
	if (h->op != OP_ERROR) {
		if (h->op != r->op)
			return err_set(e, SHARD_PROTOCOL, "answer %s to request %s", wire_op(h->op)->name, wire_op(r->op)->name);
		relay_answer(s, r, h, body);
		return SHARD_OK;
	}
	st = control_unpack(&msg, &shard__error__descriptor, body, h->body_bytes, &s->rx, e);
	if (st == SHARD_OK) {
		err_set(&why, (enum shard_status)((const Shard__Error *)msg)->status, "%s", ((const Shard__Error *)msg)->text);
		arena_reset(&s->rx);
		relay_refuse(s, r, &why);
	}
	return st;
}

static enum shard_status core_frame(struct peer *p, const struct wire_head *h, const void *body, struct err *e)
{
	struct model *m = model_find(p->server, h->model);
	const ProtobufCMessage *msg;
	enum shard_status st = SHARD_OK;

	if (m == NULL || m->defining)
		return SHARD_OK;
	st = control_unpack(&msg, &shard__core__descriptor, body, h->body_bytes, &p->server->rx, e);
	if (st == SHARD_OK)
		st = model_core_frame(m, p, h, (const Shard__Core *)msg, e);
	arena_reset(&p->server->rx);
	return st;
}

static enum shard_status control_frame(struct peer *p, const struct wire_head *h, const void *body, struct err *e)
{
	const struct peer_op *op = &ops[h->op];
	const ProtobufCMessage *msg = NULL;
	struct arena big, *a = &p->server->rx;
	enum shard_status st;
	void *memory = NULL;

	if (h->op == OP_DEFINE || h->op == OP_MODEL) {
		if ((memory = malloc(CONTROL_ARENA_BYTES(h->body_bytes))) == NULL)
			return err_set(e, SHARD_SYSTEM, "no memory for a definition of %u bytes", h->body_bytes);
		arena_init(&big, memory, CONTROL_ARENA_BYTES(h->body_bytes));
		a = &big;
	}
	st = op->body != NULL ? control_unpack(&msg, op->body, body, h->body_bytes, a, e) : SHARD_OK;
	if (st == SHARD_OK) {
		st = op->run(p, h, msg, e);
		if (st != SHARD_OK && op->request) {
			peer_refuse(p, h->attempt, e);
			st = SHARD_OK;
		}
	}
	arena_reset(&p->server->rx);
	free(memory);
	return st;
}

static enum shard_status take_hello(struct peer_conn *pc, const struct wire_head *h, const void *body, struct err *e);

static enum shard_status peer_head(void *owner, struct stream *st, const struct wire_head *h, void **to, struct err *e)
{
	struct peer_conn *pc = owner;
	const struct wire_op_row *row = wire_op(h->op);
	bool reply = h->flags & WIRE_REPLY;

	(void)st;
	if (!pc->greeted)
		return h->op == OP_ERROR || (h->op == OP_HELLO && reply) ? SHARD_OK
									   : err_set(e, SHARD_PROTOCOL, "frame %s before hello", row->name);
	if (!(row->from & BIT(ROLE_NODE)) || h->op == OP_HELLO)
		return err_set(e, SHARD_PROTOCOL, "frame %s from a node", row->name);
	CHECK(pc->peer->up); /* else it is paused */
	if (row->body == BODY_BULK || (row->body == BODY_REPLY_BULK && reply))
		return h->body_bytes > 0 ? bulk_head(pc->peer, h, to, e) : SHARD_OK;
	return SHARD_OK;
}

static enum shard_status peer_frame(void *owner, struct stream *st, const struct wire_head *h, const void *body, struct err *e)
{
	struct peer_conn *pc = owner;
	struct peer *p = pc->peer;
	bool reply = h->flags & WIRE_REPLY;

	(void)st;
	if (!pc->greeted)
		return take_hello(pc, h, body, e);
	if (reply)
		return answered(p, h, body, e);
	if (wire_op(h->op)->body == BODY_BULK)
		return bulk_frame(p, h, e);
	if (h->op > OP_CORE)
		return core_frame(p, h, body, e);
	if (ops[h->op].run == NULL)
		return err_set(e, SHARD_PROTOCOL, "frame %s is not for a node", wire_op(h->op)->name);
	return control_frame(p, h, body, e);
}

static void peer_opened(void *owner, struct conn *c)
{
	struct peer_conn *pc = owner;
	struct wire_head h = {.op = OP_HELLO};
	struct hello_text text;
	Shard__Hello hello;

	hello_fill(pc->peer->server, &hello, &text, ROLE_NODE, pc->index);
	if (stream_send_control(conn_stream(c), &h, &hello.base) == SHARD_OK)
		conn_kick(c);
}

static void peer_closed(void *owner, struct conn *c, const struct err *why)
{
	struct peer_conn *pc = owner;
	struct peer *p = pc->peer;
	bool was_up = p->up;

	CHECK(pc->conn == c);
	server_forget_conn(p->server, c);
	p->past_in_bytes += conn_stats(c)->bytes_in;
	p->past_out_bytes += conn_stats(c)->bytes_out;
	pc->conn = NULL;
	pc->greeted = false;
	p->redial_ns = clock_ns() + p->backoff_ns;
	p->backoff_ns = p->backoff_ns * 2 > PEER_BACKOFF_MAX_NS ? PEER_BACKOFF_MAX_NS : p->backoff_ns * 2;
	if (!was_up) {
		snprintf(p->why, sizeof(p->why), "%s", why->text);
		log_limited(p->server->log, &p->bucket, clock_ns(), LOG_LEVEL_INFO, "event=dial_failed peer=%s why=%s",
			    server_node_name(p->server, p->node), why->text);
	}
	peer_close(p, why);
	if (was_up)
		link_down(p, why);
	server_wake(p->server, p->redial_ns);
}

static const struct conn_handler peer_handler = {
	.frames = {peer_head, peer_frame},
	.on_open = peer_opened,
	.on_close = peer_closed,
};

/* --- HELLO --- */

static enum shard_status greeted(struct peer_conn *pc, const Shard__Hello *hello, struct err *e)
{
	struct peer *p = pc->peer;
	bool first = true;

	for (uint32_t i = 0; i < p->conns_nr; i++)
		first = first && !p->conns[i].greeted;
	if (!first && p->incarnation != hello->incarnation)
		return err_set(e, SHARD_STALE, "connections of two incarnations (%lu, %lu) of node %s", (unsigned long)p->incarnation,
			       (unsigned long)hello->incarnation, hello->node);
	p->incarnation = hello->incarnation;
	pc->greeted = true;
	stream_set_body_max(conn_stream(pc->conn), WIRE_CONTROL_MAX);
	conn_set_silence(pc->conn, p->server->conf->heartbeat_timeout_ns);
	conn_pause(pc->conn, true); /* the other end may be up, and talk, before the last HELLO of the link is here */
	link_up(p);
	return SHARD_OK;
}

static enum shard_status take_hello(struct peer_conn *pc, const struct wire_head *h, const void *body, struct err *e)
{
	struct server *s = pc->peer->server;
	const ProtobufCMessage *msg;
	const Shard__Hello *hello;
	struct arena a;
	enum shard_status st;
	void *memory;

	if (h->op == OP_ERROR) {
		st = control_unpack(&msg, &shard__error__descriptor, body, h->body_bytes, &s->rx, e);
		if (st == SHARD_OK)
			st = on_error(pc->peer, h, msg, e);
		arena_reset(&s->rx);
		return st;
	}
	if ((memory = malloc(CONTROL_ARENA_BYTES(h->body_bytes))) == NULL) /* kept while link_up() uses the scratch */
		return err_set(e, SHARD_SYSTEM, "no memory for hello");
	arena_init(&a, memory, CONTROL_ARENA_BYTES(h->body_bytes));
	st = control_unpack(&msg, &shard__hello__descriptor, body, h->body_bytes, &a, e);
	hello = (const Shard__Hello *)msg;
	if (st == SHARD_OK && strcmp(hello->node, server_node_name(s, pc->peer->node)) != 0)
		st = err_set(e, SHARD_MISMATCH, "%s is node \"%s\", not \"%s\": check [nodes]", conn_name(pc->conn), hello->node,
			     server_node_name(s, pc->peer->node));
	if (st == SHARD_OK)
		st = hello_check(s, hello, pc->conn, e);
	if (st == SHARD_OK)
		st = greeted(pc, hello, e);
	free(memory);
	return st;
}

static struct peer *peer_named(struct server *s, const char *name)
{
	for (uint16_t n = 0; n < s->nodes_nr; n++)
		if (s->peer[n] != NULL && strcmp(server_node_name(s, n), name) == 0)
			return s->peer[n];
	return NULL;
}

enum shard_status peer_greeted(struct server *s, struct conn *c, const Shard__Hello *hello, struct err *e)
{
	struct wire_head h = {.op = OP_HELLO, .flags = WIRE_REPLY};
	struct peer *p = peer_named(s, hello->node);
	struct hello_text text;
	struct peer_conn *pc;
	Shard__Hello mine;
	enum shard_status st;

	if (p == NULL || p->node < s->self)
		return err_set(e, SHARD_DENIED, "node \"%s\" is not one that dials node %s: check [nodes] and `node` on both", hello->node,
			       server_node_name(s, s->self));
	if ((st = hello_check_node(s, hello, e)) != SHARD_OK)
		return st;
	if (hello->connection >= p->conns_nr)
		return err_set(e, SHARD_MISMATCH, "[net] connections is %u on node %s, at least %u on node %s", p->conns_nr,
			       server_node_name(s, s->self), hello->connection + 1, hello->node);
	pc = &p->conns[hello->connection];
	if (pc->conn != NULL) { /* its old connection is dead and this node has not noticed; it dials again in a moment */
		peer_close(p, &(struct err){SHARD_CLOSED, "node dialled again"});
		return err_set(e, SHARD_BUSY, "the connection before this one is being closed: dial again");
	}
	hello_fill(s, &mine, &text, ROLE_NODE, hello->connection);
	if (stream_send_control(conn_stream(c), &h, &mine.base) != SHARD_OK)
		return err_set(e, SHARD_SYSTEM, "no room to answer hello");
	pc->conn = c;
	conn_set_owner(c, &peer_handler, pc);
	conn_kick(c);
	return greeted(pc, hello, e);
}

/* --- life --- */

enum shard_status peer_init(struct server *s, uint16_t node, struct err *e)
{
	struct peer *p = calloc(1, sizeof(*p));

	if (p == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a link");
	p->server = s;
	p->node = node;
	p->since_ns = clock_ns();
	p->backoff_ns = PEER_BACKOFF_MIN_NS;
	p->conns_nr = s->conf->connections < PEER_CONNECTIONS_MAX ? s->conf->connections : PEER_CONNECTIONS_MAX;
	for (uint32_t i = 0; i < p->conns_nr; i++)
		p->conns[i] = (struct peer_conn){.peer = p, .index = i};
	snprintf(p->why, sizeof(p->why), "not connected yet");
	s->peer[node] = p;
	return SHARD_OK;
}

void peer_free(struct peer **p)
{
	free(*p);
	*p = NULL;
}

static void dial(struct peer *p, struct peer_conn *pc)
{
	struct server *s = p->server;
	struct conn_conf conf = {.handler = &peer_handler,
				 .owner = pc,
				 .queue_max = SERVER_QUEUE_MAX,
				 .body_max = WIRE_HELLO_MAX,
				 .silence_ns = s->conf->heartbeat_timeout_ns,
				 .connect_ns = s->conf->heartbeat_timeout_ns};
	struct err e;

	if (conn_connect(&pc->conn, s->loop, &s->conf->node_list[p->node].address, &conf, &e) == SHARD_OK)
		return;
	pc->conn = NULL;
	snprintf(p->why, sizeof(p->why), "%s", e.text);
	p->redial_ns = clock_ns() + p->backoff_ns;
}

void peer_beat(struct peer *p, uint64_t now_ns)
{
	struct wire_head ping = {.op = OP_PING};
	bool idle = true;

	for (uint32_t i = 0; i < p->conns_nr; i++)
		idle = idle && p->conns[i].conn == NULL;
	for (uint32_t i = 0; i < p->conns_nr; i++) {
		struct peer_conn *pc = &p->conns[i];

		if (idle && p->node < p->server->self && !p->server->stopping) {
			if (now_ns >= p->redial_ns)
				dial(p, pc);
			else
				server_wake(p->server, p->redial_ns); /* this beat came for something else */
		}
		if (p->up && stream_send_control(conn_stream(pc->conn), &ping, NULL) == SHARD_OK)
			conn_kick(pc->conn);
	}
}
