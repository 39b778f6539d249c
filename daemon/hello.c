/* SPDX-License-Identifier: Apache-2.0 */
/* The first frames of every connection. The listeners hand over descriptors; until HELLO, and over TCP the proof that it knows the cluster's
 * secret (secret.c), is through a connection may send nothing else, at most WIRE_HELLO_MAX bytes each, within SERVER_HELLO_NS
 * together. Then it becomes a session or part of a link. What cannot work is refused
 * here with a sentence: wire version, run_id, configuration. Connections beyond connections_max take the place
 * of the oldest that has not said hello; where all have, they are closed at once. */
#include "hello.h"

#include "base/check.h"
#include "base/clock.h"
#include "peer.h"
#include "secret.h"
#include "session.h"
#include "wire/control.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct greeting {
	struct list link;
	struct server *server;
	struct conn *conn;
	uint64_t since_ns;
	bool evicted; /* not counted any more */
	struct prove prove;
};

static void add_setting(void *arg, const char *key, const char *value)
{
	Shard__Hello *hello = ((void **)arg)[0];
	struct hello_text *t = ((void **)arg)[1];
	size_t i = hello->n_config, room = sizeof(t->text) - t->used, k = strlen(key) + 1, v = strlen(value) + 1;

	if (i >= HELLO_CONFIG_MAX || k + v > room)
		return; /* config_hash still covers it */
	shard__setting__init(&t->setting[i]);
	t->setting[i].key = memcpy(t->text + t->used, key, k);
	t->setting[i].value = memcpy(t->text + t->used + k, value, v);
	t->used += k + v;
	t->list[i] = &t->setting[i];
	hello->n_config++;
}

void hello_fill(const struct server *s, Shard__Hello *hello, struct hello_text *t, enum wire_role role, uint32_t connection)
{
	void *arg[2] = {hello, t};

	shard__hello__init(hello);
	hello->wire_min = hello->wire_max = WIRE_VERSION;
	hello->features = s->conf->body_checksum ? FEATURE_BODY_SUM : 0;
	hello->role = role;
	hello->run_id = (char *)(uintptr_t)s->conf->run_id;
	hello->node = (char *)(uintptr_t)server_node_name(s, s->self);
	hello->uuid = (ProtobufCBinaryData){STATIC_UUID_BYTES, (uint8_t *)(uintptr_t)static_uuid(s->dir)};
	hello->incarnation = s->incarnation;
	hello->pid = (uint32_t)getpid();
	hello->connection = connection;
	hello->config_hash = config_hash(s->conf);
	hello->release = (char *)(uintptr_t)SHARD_RELEASE;
	if (role == ROLE_NODE)
		rails_hello(s, hello);
	t->used = 0;
	hello->config = t->list;
	config_shared(s->conf, add_setting, arg);
}

static enum shard_status check_version(const struct server *s, const Shard__Hello *theirs, struct err *e)
{
	if (theirs->wire_min > WIRE_VERSION || theirs->wire_max < WIRE_VERSION)
		return err_set(e, SHARD_VERSION, "node %s (release %s) speaks wire version %u, the peer (release %s) %u to %u",
			       server_node_name(s, s->self), SHARD_RELEASE, WIRE_VERSION, theirs->release, theirs->wire_min,
			       theirs->wire_max);
	return SHARD_OK;
}

enum shard_status hello_check(const struct server *s, const Shard__Hello *theirs, struct conn *c, struct err *e)
{
	enum shard_status st = check_version(s, theirs, e);

	if (st != SHARD_OK)
		return st;
	if (theirs->run_id[0] != 0 && strcmp(theirs->run_id, s->conf->run_id) != 0)
		return err_set(e, SHARD_MISMATCH, "run_id is \"%s\" on node %s, \"%s\" at the peer: another cluster",
			       s->conf->run_id, server_node_name(s, s->self), theirs->run_id);
	stream_features(conn_stream(c), theirs->features | (s->conf->body_checksum ? FEATURE_BODY_SUM : 0));
	return SHARD_OK;
}

struct compare {
	const Shard__Hello *theirs;
	const struct server *server;
	struct err *e;
	enum shard_status st;
};

static void compare_setting(void *arg, const char *key, const char *value)
{
	struct compare *c = arg;

	for (size_t i = 0; c->st == SHARD_OK && i < c->theirs->n_config; i++)
		if (strcmp(c->theirs->config[i]->key, key) == 0 && strcmp(c->theirs->config[i]->value, value) != 0)
			c->st = err_set(c->e, SHARD_MISMATCH, "%s is %s on node %s, %s on node %s: it must be equal on all nodes",
					key, value, server_node_name(c->server, c->server->self), c->theirs->config[i]->value,
					c->theirs->node);
}

enum shard_status hello_check_node(const struct server *s, const Shard__Hello *theirs, struct err *e)
{
	struct compare c = {theirs, s, e, SHARD_OK};

	if (theirs->config_hash == config_hash(s->conf))
		return SHARD_OK;
	config_shared(s->conf, compare_setting, &c);
	if (c.st != SHARD_OK)
		return c.st;
	return err_set(e, SHARD_MISMATCH, "the shared configuration of nodes %s and %s differs", server_node_name(s, s->self),
		       theirs->node);
}

static enum shard_status greeting_head(void *owner, struct stream *st, const struct wire_head *h, void **to, struct err *e)
{
	struct greeting *g = owner;

	(void)st, (void)to;
	if (h->op != (g->prove.asked ? OP_AUTH : OP_HELLO) || (h->flags & WIRE_REPLY))
		return err_set(e, SHARD_PROTOCOL, "frame %s before %s", wire_op(h->op)->name, g->prove.asked ? "auth" : "hello");
	return SHARD_OK;
}

enum shard_status hello_answer(struct server *s, struct conn *c, const struct hello_asked *asked, const Shard__Hello *theirs,
			       struct err *e)
{
	struct wire_head h = {.op = OP_HELLO, .flags = WIRE_REPLY, .attempt = asked->tag};
	struct hello_text text;
	Shard__Hello mine;

	hello_fill(s, &mine, &text, ROLE_NODE, theirs->connection);
	if (asked->prove != NULL) {
		h.op = OP_AUTH;
		return secret_prove(s, c, asked->prove, &h, &mine, e);
	}
	if (stream_send_control(conn_stream(c), &h, &mine.base) != SHARD_OK)
		return err_set(e, SHARD_SYSTEM, "no room to answer hello");
	conn_kick(c);
	return SHARD_OK;
}

static enum shard_status take_over(struct server *s, struct conn *c, const struct hello_asked *asked, const Shard__Hello *hello,
				   struct err *e)
{
	enum shard_status st = hello_check(s, hello, c, e);

	if (st != SHARD_OK)
		return st;
	if (s->stopping) /* before it is answered: who was let in relies on it */
		return err_set(e, SHARD_CLOSED, "node %s stops: %s", server_node_name(s, s->self), s->stop_why);
	if (hello->role == ROLE_NODE)
		return peer_greeted(s, c, asked, hello, e);
	if (hello->role != ROLE_TRAINER && hello->role != ROLE_CTL)
		return err_set(e, SHARD_PROTOCOL, "hello with role %u", hello->role);
	if ((st = hello_answer(s, c, asked, hello, e)) != SHARD_OK)
		return st;
	return session_greeted(s, c, hello, e);
}

/* HELLO: where a proof is asked for, that is all for now. Before it only versions are compared: the rest is for who belongs here. */
static enum shard_status said_hello(struct greeting *g, const struct wire_head *h, const void *body, const Shard__Hello *hello,
				    struct err *e)
{
	struct server *s = g->server;
	enum shard_status st = check_version(s, hello, e);

	if (st == SHARD_OK)
		st = secret_hello(s, g->conn, &g->prove, h, body, hello, e);
	if (st == SHARD_OK && !g->prove.asked)
		st = take_over(s, g->conn, &(struct hello_asked){h->attempt, NULL}, hello, e);
	return st;
}

static enum shard_status greeting_frame(void *owner, struct stream *stream, const struct wire_head *h, const void *body,
					struct err *e)
{
	struct greeting *g = owner;
	struct server *s = g->server;
	const Shard__Hello *hello;
	const ProtobufCMessage *msg;
	void *memory; /* the scratch is the models', who may hear of a link that this hello completes */
	enum shard_status st;

	(void)stream;
	if (h->op == OP_AUTH) {
		st = secret_auth(s, g->conn, &g->prove, h, body, &hello, &memory, e);
		if (st == SHARD_OK)
			st = take_over(s, g->conn, &(struct hello_asked){h->attempt, &g->prove}, hello, e);
	} else {
		st = server_unpack(s, h, &shard__hello__descriptor, body, &msg, &memory, e);
		if (st == SHARD_OK)
			st = said_hello(g, h, body, (const Shard__Hello *)msg, e);
	}
	free(memory);
	if (st != SHARD_OK || (h->op == OP_HELLO && g->prove.asked))
		return st;
	CHECK(!g->evicted); /* a connection that is closing delivers nothing */
	prove_end(&g->prove);
	list_remove(&g->link);
	s->greetings_nr--;
	free(g);
	return SHARD_OK;
}

static void greeting_closed(void *owner, struct conn *c, const struct err *why)
{
	struct greeting *g = owner;

	if (!g->prove.denied)
		log_limited(g->server->log, &g->server->refused_bucket, clock_ns(), LOG_LEVEL_WARN,
			    "event=hello_failed from=%s why=%s", conn_name(c), why->text);
	list_remove(&g->link);
	prove_end(&g->prove);
	g->server->greetings_nr -= !g->evicted;
	server_forget_conn(g->server, c);
	free(g);
}

static const struct conn_handler greeting_handler = {
	.frames = {greeting_head, greeting_frame},
	.on_close = greeting_closed,
};

/* Room for one more: who has not said hello for longest goes, so that a crowd of silent connections keeps no trainer out. */
static bool make_room(struct server *s)
{
	struct greeting *g;
	struct err e;

	if (s->greetings_nr + s->sessions_nr < s->conf->connections_max)
		return true;
	log_limited(s->log, &s->accept_bucket, clock_ns(), LOG_LEVEL_WARN,
		    "event=connection_refused connections=%u greeted=%u max=%u", s->greetings_nr + s->sessions_nr, s->sessions_nr,
		    s->conf->connections_max);
	if (list_empty(&s->greetings))
		return false;
	g = list_of(s->greetings.next, struct greeting, link);
	list_remove(&g->link);
	s->greetings_nr--;
	g->evicted = true;
	err_set(&e, SHARD_BUSY, "%u connections are open, and this one has not said hello", s->conf->connections_max);
	conn_close(g->conn, &e, 0);
	return true;
}

void hello_accept(void *server, int fd)
{
	struct server *s = server;
	struct conn_conf conf = {.handler = &greeting_handler,
				 .queue_max = SERVER_QUEUE_MAX,
				 .body_max = WIRE_HELLO_MAX,
				 .silence_ns = 0,
				 .frame_ns = SERVER_HELLO_NS};
	struct greeting *g;
	struct err e;

	if (s->stopping || !make_room(s)) {
		close(fd);
		return;
	}
	g = calloc(1, sizeof(*g));
	if (g == NULL) {
		close(fd);
		return;
	}
	g->server = s;
	g->since_ns = clock_ns();
	conf.owner = g;
	if (conn_accept(&g->conn, s->loop, fd, &conf, &e) != SHARD_OK) {
		log_limited(s->log, &s->accept_bucket, clock_ns(), LOG_LEVEL_WARN, "event=accept_failed why=%s", e.text);
		free(g);
		return;
	}
	list_push(&s->greetings, &g->link);
	s->greetings_nr++;
}

void hello_beat(struct server *s, uint64_t now_ns)
{
	list_each(it, &s->greetings) {
		struct greeting *g = list_of(it, struct greeting, link);
		struct err e;

		if (now_ns - g->since_ns < SERVER_HELLO_NS)
			continue;
		err_set(&e, SHARD_TIMEOUT, "no %s within %.0f s", g->prove.asked ? "proof of the secret" : "hello",
			(double)SERVER_HELLO_NS / NS_PER_SEC);
		conn_close(g->conn, &e, 0);
	}
}

void hello_close_all(struct server *s)
{
	list_each(it, &s->greetings)
		conn_close(list_of(it, struct greeting, link)->conn,
			   &(struct err){.status = SHARD_CLOSED, .text = "the daemon stops"}, 0);
}
