/* SPDX-License-Identifier: Apache-2.0 */
/* Builds this node's HELLO and checks those of others. accept.c, peer.c and secret.c call it during
 * the handshake. The wire version and the run_id must be equal, and between nodes also the shared
 * configuration. On success the connection uses body checksums if either end asks for them. A HELLO
 * that does not match is refused with an error that names the first difference and both values. */
#include "link/hello.h"

#include "base/check.h"
#include "link/nodes.h"
#include "link/peer.h"
#include "link/rdma.h"
#include "link/secret.h"

#include <string.h>
#include <unistd.h>

static void add_setting(void *arg, const char *key, const char *value)
{
	Shard__Hello *hello = ((void **)arg)[0];
	struct hello_text *t = ((void **)arg)[1];
	size_t i = hello->n_config, room = sizeof(t->text) - t->used, k = strlen(key) + 1,
	       v = strlen(value) + 1;

	if (i >= HELLO_CONFIG_MAX || k + v > room)
		return; /* config_hash still covers the key. */
	shard__setting__init(&t->setting[i]);
	t->setting[i].key = memcpy(t->text + t->used, key, k);
	t->setting[i].value = memcpy(t->text + t->used + k, value, v);
	t->used += k + v;
	t->list[i] = &t->setting[i];
	hello->n_config++;
}

void hello_fill(const struct server *s, Shard__Hello *hello, struct hello_text *t,
		const Shard__Hello *theirs, uint32_t connection)
{
	void *arg[2] = {hello, t};

	shard__hello__init(hello);
	hello->wire_min = hello->wire_max = WIRE_VERSION;
	hello->features = s->conf->body_checksum ? FEATURE_BODY_SUM : 0;
	hello->role = ROLE_NODE;
	hello->run_id = (char *)(uintptr_t)s->conf->run_id;
	hello->node = (char *)(uintptr_t)members_name(s, s->self);
	hello->uuid =
		(ProtobufCBinaryData){STATIC_UUID_BYTES, (uint8_t *)(uintptr_t)static_uuid(s->dir)};
	hello->incarnation = s->incarnation;
	hello->member_seq = s->member_seq;
	if (WIRE_MINOR >= 1) {
		hello->wire_minor = WIRE_MINOR;
		hello->capacity = server_capacity(s) + 1;
	}
	hello->pid = (uint32_t)getpid();
	hello->connection = connection;
	hello->config_hash = config_hash(s->conf);
	hello->release = (char *)(uintptr_t)SHARD_RELEASE;
	rdma_local_hello(s, hello);
	t->used = 0;
	hello->config = t->list;
	nodes_shared(s, theirs != NULL && theirs->joins[0] != 0, add_setting, arg);
}

uint32_t hello_capacity(const Shard__Hello *theirs)
{
	uint32_t capacity = theirs->capacity == 0 ? 1 : theirs->capacity - 1;

	return capacity < CONFIG_CAPACITY_MAX ? capacity : CONFIG_CAPACITY_MAX;
}

enum shard_status hello_check_version(const struct server *s, const Shard__Hello *theirs,
				      struct err *e)
{
	if (theirs->wire_min > WIRE_VERSION || theirs->wire_max < WIRE_VERSION)
		return err_set(e, SHARD_VERSION,
			       "node %s (release %s) speaks wire version %u, the peer (release %s) "
			       "%u to %u",
			       members_name(s, s->self), SHARD_RELEASE, WIRE_VERSION,
			       theirs->release, theirs->wire_min, theirs->wire_max);
	return SHARD_OK;
}

enum shard_status hello_check(const struct server *s, const Shard__Hello *theirs, struct conn *c,
			      struct err *e)
{
	enum shard_status st = hello_check_version(s, theirs, e);

	if (st != SHARD_OK)
		return st;
	if (theirs->run_id[0] != 0 && strcmp(theirs->run_id, s->conf->run_id) != 0)
		return err_set(e, SHARD_MISMATCH,
			       "run_id is \"%s\" on node %s, \"%s\" at the peer: another cluster",
			       s->conf->run_id, members_name(s, s->self), theirs->run_id);
	stream_features(conn_stream(c),
			theirs->features | (s->conf->body_checksum ? FEATURE_BODY_SUM : 0));
	return SHARD_OK;
}

struct compare {
	const Shard__Hello *theirs;
	const struct server *server;
	struct err *e;
	enum shard_status st;
	size_t alike; /* Options that both have. */
	size_t own;   /* Options that this node has. */
};

static bool is_node(const char *key)
{
	return strncmp(key, "nodes[", 6) == 0;
}

static void compare_setting(void *arg, const char *key, const char *value)
{
	struct compare *c = arg;

	c->own += !is_node(key);
	for (size_t i = 0; c->st == SHARD_OK && i < c->theirs->n_config; i++) {
		if (strcmp(c->theirs->config[i]->key, key) != 0)
			continue;
		c->alike += !is_node(key);
		if (strcmp(c->theirs->config[i]->value, value) != 0)
			c->st = err_set(
				c->e, SHARD_MISMATCH,
				"%s is %s on node %s, %s on node %s: it must be equal on all nodes",
				key, value, members_name(c->server, c->server->self),
				c->theirs->config[i]->value, c->theirs->node);
	}
}

enum shard_status hello_check_joins(const struct server *s, const Shard__Hello *theirs,
				    struct err *e)
{
	struct compare c = {.theirs = theirs, .server = s, .e = e, .st = SHARD_OK};

	nodes_shared(s, false, compare_setting, &c);
	return c.st;
}

/* One list of nodes may be longer than the other, because a node has joined. */
enum shard_status hello_check_node(const struct server *s, const Shard__Hello *theirs,
				   struct err *e)
{
	struct compare c = {.theirs = theirs, .server = s, .e = e, .st = SHARD_OK};
	size_t options = 0;

	if (theirs->config_hash == config_hash(s->conf))
		return SHARD_OK;
	nodes_shared(s, false, compare_setting, &c);
	if (c.st != SHARD_OK)
		return c.st;
	for (size_t i = 0; i < theirs->n_config; i++)
		options += !is_node(theirs->config[i]->key);
	if (WIRE_MINOR >= 3 && theirs->wire_minor >= 3 && c.alike == c.own && options == c.own)
		return SHARD_OK;
	return err_set(e, SHARD_MISMATCH,
		       "the shared configuration of nodes %s and %s differs, or their releases (%s "
		       "and %.64s) cannot be mixed",
		       members_name(s, s->self), theirs->node, SHARD_RELEASE, theirs->release);
}

enum shard_status hello_answer(struct server *s, struct conn *c, const struct hello_asked *asked,
			       const Shard__Hello *theirs, struct err *e)
{
	struct wire_head h = {.op = OP_HELLO, .flags = WIRE_REPLY, .attempt = asked->tag};
	struct hello_text text;
	Shard__Hello mine;

	CHECK(!s->stop.on);
	hello_fill(s, &mine, &text, theirs, theirs->connection);
	if (asked->prove != NULL) {
		h.op = OP_AUTH;
		return secret_prove(s, c, asked->prove, &h, &mine, e);
	}
	if (stream_send_control(conn_stream(c), &h, &mine.base) != SHARD_OK)
		return err_set(e, SHARD_SYSTEM, "no room to answer hello");
	conn_kick(c);
	return SHARD_OK;
}
