/* SPDX-License-Identifier: Apache-2.0 */
/* Links between nodes. server.c makes one struct peer for each other node and calls peer_beat(),
 * and all rooms above send frames with peer_send() and peer_tell(). The node with the higher index
 * dials each connection of a link and sends HELLO, which the other node answers. When HELLO, and
 * AUTH where there is a secret, is complete on all connections with the same incarnation, the link
 * is up and every model's core is told. When one connection closes, all are closed, the cores are
 * told, and the dialler tries again with back-off. A PING at each beat shows that an idle link is
 * alive. dispatch.c handles the frames. */
#include "link/peer.h"

#include "base/check.h"
#include "base/clock.h"
#include "link/hello.h"
#include "link/events.h"
#include "link/nodes.h"
#include "link/secret.h"
#include "wire/control.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PEER_BACKOFF_MIN_NS (50 * NS_PER_MS)
#define PEER_BACKOFF_MAX_NS NS_PER_SEC
#define PEER_ALIVE_MAX_NS                                                                          \
	(5 * NS_PER_SEC / 2) /* On a link that is alive something is received within this time, or \
				half of heartbeat_timeout if that is less. */

void peer_tensor_bytes(const struct peer *p, uint64_t *in, uint64_t *out)
{
	*in = p->past_tensor_in;
	*out = p->past_tensor_out;
	for (uint32_t i = 0; i < p->conns_nr; i++) {
		if (p->conns[i].conn == NULL)
			continue;
		*in += conn_stats(p->conns[i].conn)->tensor_bytes_in;
		*out += conn_stats(p->conns[i].conn)->tensor_bytes_out;
	}
}

struct conn *peer_control(struct peer *p)
{
	return p->up ? p->conns[0].conn : NULL;
}

static struct peer *peer_at(struct server *s, uint16_t node)
{
	CHECK(node < s->nodes_nr && node != s->self && s->peer[node] != NULL);
	return s->peer[node];
}

/* A link that fell may be up again at once, so that asking again helps. */
static enum shard_status is_down(const struct peer *p, struct err *e)
{
	enum shard_status st = err_set(e, SHARD_UNREACHABLE, "node %s is down: %s",
				       members_name(p->server, p->node), p->why);

	return peer_blinks(p, clock_ns()) ? err_passes(e, st) : st;
}

static enum shard_status queued(const struct peer *p, const struct wire_head *h,
				enum shard_status st, struct err *e)
{
	if (st == SHARD_OK)
		return SHARD_OK;
	return err_set(e, st, "node %s was not sent %s: %s, %u frames wait for it",
		       members_name(p->server, p->node), wire_op(h->op)->name,
		       st == SHARD_AGAIN ? "its queue is full" : status_name(st),
		       stream_queued(conn_stream(p->conns[0].conn)));
}

enum shard_status peer_queue(struct server *s, uint16_t node, const struct wire_head *h,
			     const ProtobufCMessage *msg, struct err *e)
{
	struct peer *p = peer_at(s, node);

	if (!p->up)
		return is_down(p, e);
	return queued(p, h, stream_send_control(conn_stream(p->conns[0].conn), h, msg), e);
}

enum shard_status peer_queue_bytes(struct server *s, uint16_t node, const struct wire_head *h,
				   const void *packed, size_t bytes, struct err *e)
{
	struct peer *p = peer_at(s, node);

	if (!p->up)
		return is_down(p, e);
	return queued(p, h, stream_send_bytes(conn_stream(p->conns[0].conn), h, packed, bytes), e);
}

enum shard_status peer_send(struct server *s, uint16_t node, const struct wire_head *h,
			    const ProtobufCMessage *msg, struct err *e)
{
	enum shard_status st = peer_queue(s, node, h, msg, e);

	if (st == SHARD_OK)
		conn_kick(s->peer[node]->conns[0].conn);
	return st;
}

void peer_write(struct server *s, uint16_t node, const struct wire_head *h, bool now)
{
	struct conn *c = peer_control(s->peer[node]);

	CHECK(wire_op(h->op) != NULL);
	if (c != NULL && now)
		conn_kick_now(c);
	else if (c != NULL)
		conn_kick(c);
}

void peer_refuse(struct peer *p, uint32_t tag, const struct err *e)
{
	struct wire_head h = {.op = OP_ERROR, .flags = WIRE_REPLY, .attempt = tag};
	Shard__Error body = SHARD__ERROR__INIT;

	CHECK(e->status != SHARD_OK);
	body.status = e->status;
	body.text = (char *)(uintptr_t)e->text;
	body.sys = (uint32_t)e->sys;
	peer_tell(p->server, p->node, &h, &body.base);
}

void peer_tell(struct server *s, uint16_t node, const struct wire_head *h,
	       const ProtobufCMessage *msg)
{
	struct wire_head no = {.op = OP_ERROR, .flags = WIRE_REPLY, .attempt = h->attempt};
	enum shard_status st;
	struct err e;

	st = peer_send(s, node, h, msg, &e);
	if ((st == SHARD_RANGE || st == SHARD_SYSTEM) && (h->flags & WIRE_REPLY) &&
	    h->op != OP_ERROR) {
		Shard__Error body = SHARD__ERROR__INIT;

		body.status = st;
		body.text = e.text;
		st = peer_send(s, node, &no, &body.base, NULL);
	}
	if (st != SHARD_OK && s->peer[node] != NULL && s->peer[node]->up)
		peer_close(s->peer[node], &e);
}

void peer_close(struct peer *p, const struct err *why)
{
	for (uint32_t i = 0; i < p->conns_nr; i++)
		if (p->conns[i].conn != NULL)
			conn_close(p->conns[i].conn, why, 0);
}

void peer_leave(struct peer *p, const struct err *why)
{
	struct wire_head h = {.op = OP_ERROR};
	Shard__Error body = SHARD__ERROR__INIT;

	body.status = why->status;
	body.text = (char *)(uintptr_t)why->text;
	for (uint32_t i = 0; i < p->conns_nr; i++) {
		struct peer_conn *pc = &p->conns[i];

		if (pc->conn == NULL)
			continue;
		if (p->up) /* On each connection, because the first one that ends will end the link.
			    */
			(void)stream_send_control(conn_stream(pc->conn), &h, &body.base);
		conn_close(pc->conn, why, p->up ? SERVER_LINGER_MS : 0);
	}
}

static void link_down(struct peer *p, const struct err *why)
{
	struct server *s = p->server;

	CHECK(p->up);
	p->up = false;
	p->downs++;
	p->since_ns = clock_ns();
	snprintf(p->why, sizeof(p->why), "%s", why->text);
	log_line(s->log, LOG_LEVEL_WARN, "event=link_down peer=%s why=%s", members_name(s, p->node),
		 why->text);
	s->events->node_going(s, p->node); /* RDMA completions send nothing more. */
	rdma_link_link_down(p);
	s->events->node_down(s, p->node, why);
}

static void link_up(struct peer *p)
{
	struct server *s = p->server;
	char said[TLS_SAID_BYTES];

	CHECK(!p->up);
	for (uint32_t i = 0; i < p->conns_nr; i++)
		if (!p->conns[i].greeted)
			return;
	for (uint32_t i = 0; i < p->conns_nr; i++) {
		lane_open(&p->conns[i].lane, p->conns[i].conn);
		conn_pause(p->conns[i].conn, false);
	}
	p->up = true;
	p->leaves = false;
	p->began_ns = p->doubt_ns = 0;
	p->since_ns = clock_ns();
	p->backoff_ns = PEER_BACKOFF_MIN_NS;
	p->why[0] = 0;
	log_line(s->log, LOG_LEVEL_INFO,
		 "event=link_up peer=%s incarnation=%lu connections=%u tls=%s",
		 members_name(s, p->node), (unsigned long)p->incarnation, p->conns_nr,
		 tls_said(stream_io(conn_stream(p->conns[0].conn)), said));
	s->events->node_up(s, p->node);
	rdma_link_link_up(p);
}

/* --- frames --- */

static enum shard_status take_hello(struct peer_conn *pc, const struct wire_head *h,
				    const void *body, struct err *e);

bool peer_op_of_chunk(uint16_t op)
{
	return op == OP_CONTRIB_DATA || op == OP_CONTRIB || op == OP_GRAD_DATA || op == OP_GRAD ||
	       op == OP_IMAGE_DATA || op == OP_IMAGE_CODES;
}

bool peer_knows(const struct peer *p, enum wire_since what)
{
	return p->wire_minor >= (uint32_t)what;
}

const struct peer *peer_older(const struct server *s, enum wire_since what)
{
	for (uint16_t n = 0; n < s->nodes_nr; n++)
		if (s->peer[n] != NULL && s->peer[n]->up && !peer_knows(s->peer[n], what))
			return s->peer[n];
	return NULL;
}

/* A node that is gone may not know it yet. */
uint32_t peer_capacity(const struct peer *p)
{
	return server_gone(p->server, p->node) ? 0 : p->capacity;
}

bool peer_blinks(const struct peer *p, uint64_t now_ns)
{
	return !p->up && !p->leaves && !server_gone(p->server, p->node) &&
	       now_ns - p->since_ns < PEER_RECONNECT_NS;
}

bool peer_given_up(const struct peer *p, uint64_t now_ns)
{
	const struct server *s = p->server;
	uint64_t since = p->since_ns > s->started_ns ? p->since_ns : s->started_ns;

	return !p->up && (server_gone(s, p->node) || now_ns >= since + s->conf->lost_timeout_ns);
}

/* Frames of one chunk in one direction must stay in order, and so must control frames. So the chunk
 * number decides on which connection a frame of a chunk belongs, and control frames belong on
 * connection 0. */
static enum shard_status check_connection(const struct peer_conn *pc, const struct wire_head *h,
					  struct err *e)
{
	uint32_t due = peer_op_of_chunk(h->op) ? h->chunk % pc->peer->conns_nr : 0;

	if (pc->index == due || h->op == OP_PING ||
	    (h->op == OP_ERROR && !(h->flags & WIRE_REPLY))) /* These may come on each. */
		return SHARD_OK;
	return err_set(e, SHARD_PROTOCOL,
		       "frame %s on connection %u of the link: it belongs on connection %u",
		       wire_op(h->op)->name, pc->index, due);
}

static enum shard_status peer_head(void *owner, struct stream *st, const struct wire_head *h,
				   void **to, struct err *e)
{
	struct peer_conn *pc = owner;
	const struct wire_op_row *row = wire_op(h->op);
	bool reply = h->flags & WIRE_REPLY;
	struct landing *l = NULL;
	enum shard_status rc;

	if (!pc->greeted)
		return h->op == OP_ERROR ||
				       (h->op == (pc->prove.asked ? OP_AUTH : OP_HELLO) && reply)
			       ? SHARD_OK
			       : err_set(e, SHARD_PROTOCOL, "frame %s before hello", row->name);
	if (!(row->from & BIT(ROLE_NODE)) || h->op == OP_HELLO || h->op == OP_AUTH)
		return err_set(e, SHARD_PROTOCOL, "frame %s from a node", row->name);
	CHECK(pc->peer->up); /* Until then the connection is paused. */
	if ((rc = check_connection(pc, h, e)) != SHARD_OK)
		return rc;
	if (!wire_bulk(h) || h->body_bytes == 0)
		return SHARD_OK;
	rc = pc->peer->server->events->node_body(pc->peer, h, to, &l, e);
	CHECK(rc != SHARD_OK || *to == NULL || *to == STREAM_DISCARD ||
	      l != NULL); /* The memory that a body goes to has an owner. */
	if (rc == SHARD_OK && l != NULL)
		stream_land(st, l);
	return rc;
}

static enum shard_status peer_frame(void *owner, struct stream *st, const struct wire_head *h,
				    const void *body, struct err *e)
{
	struct peer_conn *pc = owner;

	(void)st;
	if (!pc->greeted)
		return take_hello(pc, h, body, e);
	return pc->peer->server->events->node_frame(pc->peer, h, body, e);
}

static bool peer_damage(void *owner, struct stream *st, const struct wire_head *h)
{
	struct peer_conn *pc = owner;

	(void)st;
	return pc->greeted && pc->peer->server->events->node_damaged(pc->peer, h);
}

static void peer_opened(void *owner, struct conn *c)
{
	struct peer_conn *pc = owner;
	struct hello_text text;
	Shard__Hello hello;
	struct err e;

	hello_fill(pc->peer->server, &hello, &text, NULL, pc->index);
	if (secret_greet(pc->peer->server, c, &pc->prove, &hello, &e) != SHARD_OK)
		conn_close(c, &e, 0);
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
	p->past_tensor_in += conn_stats(c)->tensor_bytes_in;
	p->past_tensor_out += conn_stats(c)->tensor_bytes_out;
	lane_close(&pc->lane);
	pc->conn = NULL;
	pc->greeted = false;
	p->began_ns = p->doubt_ns = 0;
	prove_end(&pc->prove);
	p->redial_ns = clock_ns() + p->backoff_ns;
	p->backoff_ns =
		p->backoff_ns * 2 > PEER_BACKOFF_MAX_NS ? PEER_BACKOFF_MAX_NS : p->backoff_ns * 2;
	if (!was_up) {
		/* A node that stays away fails in the same way each second. That is said once. */
		bool said = strcmp(p->why, why->text) == 0;

		snprintf(p->why, sizeof(p->why), "%s", why->text);
		log_limited(p->server->log, &p->bucket, clock_ns(),
			    said ? LOG_LEVEL_DEBUG : LOG_LEVEL_INFO,
			    "event=dial_failed peer=%s why=%s", members_name(p->server, p->node),
			    why->text);
	}
	peer_close(p, why);
	if (was_up)
		link_down(p, why);
	server_wake(p->server, p->redial_ns);
}

static void peer_room(void *owner, struct conn *c)
{
	struct peer_conn *pc = owner;

	(void)c;
	lane_serve(&pc->lane);
}

static const struct conn_handler peer_handler = {
	.frames = {peer_head, peer_frame, peer_damage},
	.on_open = peer_opened,
	.on_close = peer_closed,
	.on_room = peer_room,
};

/* --- HELLO --- */

/* Checks, before the connection is taken over, that the sender of this HELLO may be part of the
 * link. */
static enum shard_status check_link(const struct peer *p, const Shard__Hello *hello, struct err *e)
{
	static const uint8_t none[STATIC_UUID_BYTES];
	bool first = true;

	if (hello->incarnation == 0 || hello->uuid.len != sizeof(p->uuid) ||
	    memcmp(hello->uuid.data, none, sizeof(none)) == 0)
		return err_set(e, SHARD_PROTOCOL,
			       "hello of node %s with incarnation %lu and a uuid of %zu bytes%s",
			       hello->node, (unsigned long)hello->incarnation, hello->uuid.len,
			       hello->uuid.len == sizeof(p->uuid) ? ", or of zeros" : "");
	for (uint32_t i = 0; i < p->conns_nr; i++)
		first = first && !p->conns[i].greeted;
	if (!first && p->incarnation != hello->incarnation)
		return err_set(e, SHARD_STALE,
			       "connections of two incarnations (%lu, %lu) of node %s",
			       (unsigned long)p->incarnation, (unsigned long)hello->incarnation,
			       hello->node);
	if (!first && memcmp(p->uuid, hello->uuid.data, sizeof(p->uuid)) != 0)
		return err_set(e, SHARD_STALE, "connections of two state folders of node %s",
			       hello->node);
	return rdma_local_check(p->server, hello, e);
}

static void greeted(struct peer_conn *pc, const Shard__Hello *hello)
{
	struct peer *p = pc->peer;

	p->incarnation = hello->incarnation;
	p->features = hello->features;
	p->member_seq = hello->member_seq;
	p->capacity = hello_capacity(hello);
	p->wire_minor = hello->wire_minor;
	p->nodes_nr = nodes_of(hello);
	p->nodes_why[0] = p->ill[0] = 0;
	snprintf(p->release, sizeof(p->release), "%s", hello->release);
	p->rdma_queue_pairs = hello->rdma_queue_pairs;
	if (hello->uuid.len == sizeof(p->uuid))
		memcpy(p->uuid, hello->uuid.data, sizeof(p->uuid));
	pc->greeted = true;
	if (p->began_ns == 0)
		p->began_ns = clock_ns();
	stream_set_body_max(conn_stream(pc->conn), WIRE_CONTROL_MAX);
	conn_set_silence(pc->conn, p->server->conf->heartbeat_timeout_ns);
	conn_pause(pc->conn, true); /* The other end may be up, and send frames, before the last
				       HELLO of the link is here. */
	link_up(p);
}

/* Nodes compare their lists at both ends. */
static enum shard_status check_nodes(struct server *s, const Shard__Hello *hello, struct err *e)
{
	return nodes_heard(s, hello->n_config, hello->config, hello->node, e);
}

static enum shard_status check_name(struct peer_conn *pc, const Shard__Hello *hello, struct err *e)
{
	const char *name = members_name(pc->peer->server, pc->peer->node);

	if (strcmp(hello->node, name) == 0)
		return SHARD_OK;
	return err_set(e, SHARD_MISMATCH, "%s is node \"%s\", not \"%s\": check [nodes]",
		       conn_name(pc->conn), hello->node, name);
}

/* The node that this node dialled asked for a proof in its brief HELLO. Sends the proof. */
static enum shard_status prove(struct peer_conn *pc, struct err *e)
{
	struct wire_head h = {.op = OP_AUTH};
	struct hello_text text;
	Shard__Hello mine;

	hello_fill(pc->peer->server, &mine, &text, NULL, pc->index);
	return secret_prove(pc->peer->server, pc->conn, &pc->prove, &h, &mine, e);
}

static enum shard_status take_hello(struct peer_conn *pc, const struct wire_head *h,
				    const void *body, struct err *e)
{
	struct server *s = pc->peer->server;
	const ProtobufCMessage *msg;
	const Shard__Hello *hello = NULL;
	enum shard_status st;
	void *memory;

	if (h->op == OP_ERROR) {
		st = control_unpack(&msg, &shard__error__descriptor, body, h->body_bytes,
				    &s->scratch.rx, e);
		if (st == SHARD_OK)
			st = err_set(e, SHARD_CLOSED, "node %s refused: %s",
				     members_name(s, pc->peer->node),
				     ((const Shard__Error *)msg)->text);
		arena_reset(&s->scratch.rx);
		return st;
	}
	if (h->op == OP_AUTH) { /* Not in the scratch memory, because link_up() uses that. */
		st = secret_auth(s, pc->conn, &pc->prove, h, body, &hello, &memory, e);
	} else {
		st = server_unpack(s, h, &shard__hello__descriptor, body, &msg, &memory, e);
		hello = (const Shard__Hello *)msg;
	}
	if (st == SHARD_OK)
		st = check_name(pc, hello, e);
	if (st == SHARD_OK && h->op == OP_HELLO)
		st = secret_answered(s, pc->conn, &pc->prove, h, body, hello, e);
	if (st == SHARD_OK && h->op == OP_HELLO && pc->prove.asked) {
		free(memory);
		return prove(pc, e);
	}
	if (st == SHARD_OK)
		st = hello_check(s, hello, pc->conn, e);
	if (st == SHARD_OK)
		st = check_link(pc->peer, hello, e);
	if (st == SHARD_OK)
		st = check_nodes(s, hello, e);
	if (st == SHARD_OK)
		greeted(pc, hello);
	free(memory);
	return st;
}

/* A connection that passed every check claims to be the node at the other end of a link that is up.
 * Either one of the two is wrong, or the link is dead and this node has not noticed. Both ends of a
 * link send PINGs at each beat. One more PING, sent now, gets a reset from a machine that was
 * started again. */
static void doubt(struct peer *p)
{
	struct wire_head ping = {.op = OP_PING};

	if (p->doubt_ns != 0)
		return;
	p->doubt_ns = clock_ns();
	p->doubt_late = false;
	for (uint32_t i = 0; i < p->conns_nr; i++)
		if (stream_send_control(conn_stream(p->conns[i].conn), &ping, NULL) == SHARD_OK)
			conn_kick(p->conns[i].conn);
	server_wake(p->server, p->doubt_ns + PEER_BACKOFF_MIN_NS);
}

void peer_turned_away(struct server *s, const char *name, const struct err *why)
{
	uint16_t node = nodes_find(s, name);
	struct peer *p = node < s->nodes_nr ? s->peer[node] : NULL;

	if (p != NULL && !p->up)
		snprintf(p->why, sizeof(p->why), "%s", why->text);
}

enum shard_status peer_greeted(struct server *s, struct conn *c, const struct hello_asked *asked,
			       const Shard__Hello *hello, struct err *e)
{
	uint16_t node = nodes_find(s, hello->node);
	struct peer *p = node < s->nodes_nr ? s->peer[node] : NULL; /* NULL: also this node. */
	struct peer_conn *pc;
	enum shard_status st;
	const char *why;
	const struct config_node *next = nodes_next(s, &why);

	if (p == NULL && next != NULL && strcmp(next->name, hello->node) == 0)
		return err_set(e, SHARD_BUSY, "node %s takes node %s in: %.300s",
			       members_name(s, s->self), next->name, why);
	if (p == NULL || p->node < s->self)
		return err_set(e, SHARD_DENIED,
			       "node \"%s\" is not one that dials node %s: check [nodes] and "
			       "`node` on both",
			       hello->node, members_name(s, s->self));
	if ((st = hello_check_node(s, hello, e)) != SHARD_OK ||
	    (st = check_nodes(s, hello, e)) != SHARD_OK) {
		peer_turned_away(s, hello->node, e);
		return st;
	}
	if (hello->connection >= p->conns_nr)
		return err_set(e, SHARD_MISMATCH,
			       "[net] connections is %u on node %s, at least %u on node %s",
			       p->conns_nr, members_name(s, s->self), hello->connection + 1,
			       hello->node);
	pc = &p->conns[hello->connection];
	if (p->up) {
		doubt(p);
		return err_set(
			e, SHARD_BUSY,
			"node %s has a link that stands, and is asked whether it lives: dial again",
			hello->node);
	}
	if (pc->conn != NULL || (st = check_link(p, hello, e)) ==
					SHARD_STALE) { /* Left of a link that never came up. */
		peer_close(p, &(struct err){.status = SHARD_CLOSED, .text = "node dialled again"});
		return err_set(e, SHARD_BUSY,
			       "the connections before this one are being closed: dial again");
	}
	if (st != SHARD_OK)
		return st;
	if ((st = hello_answer(s, c, asked, hello, e)) != SHARD_OK)
		return st;
	pc->conn = c;
	conn_set_owner(c, &peer_handler, pc);
	greeted(pc, hello);
	return SHARD_OK;
}

/* --- life --- */

static uint64_t alive_ns(const struct peer *p)
{
	uint64_t half = p->server->conf->heartbeat_timeout_ns / 2;

	return half < PEER_ALIVE_MAX_NS ? half : PEER_ALIVE_MAX_NS;
}

/* Decides about a link that doubt() asked for a sign of life. It stays if something was received on
 * each connection since then. It is closed if that did not happen in time. */
static void judge(struct peer *p, uint64_t now_ns)
{
	bool heard = true;
	struct err e;

	if (p->doubt_ns == 0)
		return;
	for (uint32_t i = 0; i < p->conns_nr; i++)
		heard = heard && stream_heard_ns(conn_stream(p->conns[i].conn)) > p->doubt_ns;
	if (heard) {
		p->doubt_ns = 0;
	} else if (now_ns < p->doubt_ns + alive_ns(p)) {
		server_wake(p->server, p->doubt_ns + alive_ns(p));
	} else if (!p->doubt_late) { /* Bytes that came meanwhile are read before the next beat. */
		p->doubt_late = true;
		server_wake(p->server, now_ns + PEER_BACKOFF_MIN_NS);
	} else {
		err_set(&e, SHARD_TIMEOUT,
			"node dialled again, and nothing was heard on its link for %.1f s",
			(double)(now_ns - p->doubt_ns) / NS_PER_SEC);
		peer_close(p, &e);
	}
}

static void lane_failed(void *owner, const struct err *why)
{
	peer_close(owner, why);
}

enum shard_status peer_init(struct server *s, uint16_t node, struct err *e)
{
	struct peer *p = calloc(1, sizeof(*p));

	CHECK(node < s->nodes_nr && node != s->self && s->peer[node] == NULL);
	if (p == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a link");
	p->server = s;
	p->node = node;
	p->since_ns = clock_ns();
	p->capacity = 1;
	p->backoff_ns = PEER_BACKOFF_MIN_NS;
	p->conns_nr = s->conf->connections < PEER_CONNECTIONS_MAX ? s->conf->connections
								  : PEER_CONNECTIONS_MAX;
	for (uint32_t i = 0; i < p->conns_nr; i++) {
		p->conns[i] = (struct peer_conn){.peer = p, .index = i};
		lane_init(&p->conns[i].lane, lane_failed, p);
	}
	for (uint32_t i = 0; i < RDMA_QPS_MAX; i++)
		lane_init(&p->rdma.lane[i], lane_failed, p);
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
				 .account = &s->conns.queued,
				 .tls = s->secret.tls,
				 .tls_peer = members_name(s, p->node),
				 .silence_ns = s->conf->heartbeat_timeout_ns,
				 .connect_ns = s->conf->heartbeat_timeout_ns};
	struct err e;

	CHECK((s->secret.tls != NULL) == (s->conf->tls != TLS_OFF));
	if (conn_connect(&pc->conn, s->loop, &s->node[p->node].address, &conf, &e) == SHARD_OK)
		return;
	pc->conn = NULL;
	snprintf(p->why, sizeof(p->why), "%s", e.text);
	p->redial_ns = clock_ns() + p->backoff_ns;
}

void peer_beat(struct peer *p, uint64_t now_ns)
{
	struct wire_head ping = {.op = OP_PING};
	bool idle = true;
	struct err e;

	rdma_link_beat(p, now_ns);
	judge(p, now_ns);
	if (!p->up && p->began_ns != 0 &&
	    now_ns - p->began_ns > SERVER_HELLO_NS) { /* Paused connections read nothing, so their
							 silence is not noticed. */
		err_set(&e, SHARD_TIMEOUT, "not all %u connections of the link came within %.0f s",
			p->conns_nr, (double)SERVER_HELLO_NS / NS_PER_SEC);
		peer_close(p, &e);
	}
	for (uint32_t i = 0; i < p->conns_nr; i++)
		idle = idle && p->conns[i].conn == NULL;
	for (uint32_t i = 0; i < p->conns_nr; i++) {
		struct peer_conn *pc = &p->conns[i];

		if (idle && p->node < p->server->self &&
		    !p->server->stop.conns_closed) { /* Also while stopping, because a stop may wait
						   for that node's frames. */
			if (now_ns >= p->redial_ns)
				dial(p, pc);
			else
				server_wake(p->server, p->redial_ns); /* This beat came early for
									 another reason. */
		}
		if (p->up && stream_send_control(conn_stream(pc->conn), &ping, NULL) == SHARD_OK)
			conn_kick(pc->conn);
	}
}
