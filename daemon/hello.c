/* SPDX-License-Identifier: Apache-2.0 */
/* The first frame of every connection. The listeners hand over descriptors; until HELLO is through a connection may send nothing else,
 * at most WIRE_HELLO_MAX bytes, within SERVER_HELLO_NS. Then it becomes a session or part of a link. What cannot work is refused
 * here with a sentence: wire version, run_id, configuration. Connections beyond connections_max take the place
 * of the oldest that has not said hello; where all have, they are closed at once. */
#include "hello.h"

#include "base/check.h"
#include "base/clock.h"
#include "peer.h"
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
	t->used = 0;
	hello->config = t->list;
	config_shared(s->conf, add_setting, arg);
}

enum shard_status hello_check(const struct server *s, const Shard__Hello *theirs, struct conn *c, struct err *e)
{
	if (theirs->wire_min > WIRE_VERSION || theirs->wire_max < WIRE_VERSION)
		return err_set(e, SHARD_VERSION, "node %s (release %s) speaks wire version %u, the peer (release %s) %u to %u",
			       server_node_name(s, s->self), SHARD_RELEASE, WIRE_VERSION, theirs->release, theirs->wire_min,
			       theirs->wire_max);
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
	(void)owner, (void)st, (void)to;
	if (h->op != OP_HELLO || (h->flags & WIRE_REPLY))
		return err_set(e, SHARD_PROTOCOL, "frame %s before hello", wire_op(h->op)->name);
	return SHARD_OK;
}

static enum shard_status take_over(struct server *s, struct conn *c, uint32_t tag, const Shard__Hello *hello, struct err *e)
{
	struct wire_head h = {.op = OP_HELLO, .flags = WIRE_REPLY, .attempt = tag};
	struct hello_text text;
	Shard__Hello mine;
	enum shard_status st = hello_check(s, hello, c, e);

	if (st != SHARD_OK)
		return st;
	if (s->stopping) /* before it is answered: who was let in relies on it */
		return err_set(e, SHARD_CLOSED, "node %s stops: %s", server_node_name(s, s->self), s->stop_why);
	hello_fill(s, &mine, &text, ROLE_NODE, hello->connection);
	if (hello->role == ROLE_NODE)
		return peer_greeted(s, c, hello, e);
	if (hello->role != ROLE_TRAINER && hello->role != ROLE_CTL)
		return err_set(e, SHARD_PROTOCOL, "hello with role %u", hello->role);
	if (stream_send_control(conn_stream(c), &h, &mine.base) != SHARD_OK)
		return err_set(e, SHARD_SYSTEM, "no room to answer hello");
	conn_kick(c);
	return session_greeted(s, c, hello, e);
}

static enum shard_status greeting_frame(void *owner, struct stream *stream, const struct wire_head *h, const void *body,
					struct err *e)
{
	struct greeting *g = owner;
	struct server *s = g->server;
	const ProtobufCMessage *msg;
	void *memory; /* the scratch is the models', who may hear of a link that this hello completes */
	enum shard_status st = server_unpack(s, h, &shard__hello__descriptor, body, &msg, &memory, e);

	(void)stream;
	if (st == SHARD_OK)
		st = take_over(s, g->conn, h->attempt, (const Shard__Hello *)msg, e);
	free(memory);
	if (st != SHARD_OK)
		return st;
	CHECK(!g->evicted); /* a connection that is closing delivers nothing */
	list_remove(&g->link);
	s->greetings_nr--;
	free(g);
	return SHARD_OK;
}

static void greeting_closed(void *owner, struct conn *c, const struct err *why)
{
	struct greeting *g = owner;

	log_limited(g->server->log, &g->server->refused_bucket, clock_ns(), LOG_LEVEL_WARN, "event=hello_failed from=%s why=%s",
		    conn_name(c), why->text);
	list_remove(&g->link);
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
		err_set(&e, SHARD_TIMEOUT, "no hello within %.0f s", (double)SERVER_HELLO_NS / NS_PER_SEC);
		conn_close(g->conn, &e, 0);
	}
}

void hello_close_all(struct server *s)
{
	list_each(it, &s->greetings)
		conn_close(list_of(it, struct greeting, link)->conn, &(struct err){SHARD_CLOSED, "the daemon stops"}, 0);
}
