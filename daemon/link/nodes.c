/* SPDX-License-Identifier: Apache-2.0 */
/* The list of nodes as this node knows it, and its comparison with what others say. Lists that
 * contradict each other are of two clusters, and are refused by name. intake.c makes a longer list
 * count here. */
#include "link/nodes_impl.h"

#include "base/check.h"
#include "config/cluster.h"
#include "link/peer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum shard_status nodes_init(struct server *s, struct err *e)
{
	struct nodes *l = s->nodes = calloc(1, sizeof(*l));

	if (l == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for the list of nodes");
	l->s = s;
	l->want_nr = l->written_nr = s->nodes_nr = (uint16_t)s->conf->nodes_nr;
	for (uint16_t n = 0; n < s->nodes_nr; n++)
		s->node[n] = l->want[n] = s->conf->node_list[n];
	return SHARD_OK;
}

void nodes_free(struct server *s)
{
	CHECK(s->nodes == NULL || !s->nodes->writing);
	free(s->nodes);
	s->nodes = NULL;
}

struct saying {
	void (*fn)(void *arg, const char *key, const char *value);
	void *arg;
};

static void say_option(void *arg, const char *key, const char *value)
{
	const struct saying *y = arg;

	if (strncmp(key, "nodes[", 6) != 0)
		y->fn(y->arg, key, value);
}

static void say_all(const struct server *s, const struct config_node *node, uint16_t nr,
		    bool offers, struct saying *y)
{
	char key[16], value[256];

	config_shared(s->conf, say_option, y);
	if (offers)
		config_offered(s->conf, y->fn, y->arg);
	for (uint16_t n = 0; n < nr; n++) {
		snprintf(key, sizeof(key), "nodes[%u]", n);
		snprintf(value, sizeof(value), "%s = %s", node[n].name, node[n].address.text);
		y->fn(y->arg, key, value);
	}
}

void nodes_shared(const struct server *s, bool offers,
		  void (*fn)(void *arg, const char *key, const char *value), void *arg)
{
	say_all(s, s->node, s->nodes_nr, offers, &(struct saying){fn, arg});
}

void nodes_say(const struct server *s, void (*fn)(void *arg, const char *key, const char *value),
	       void *arg)
{
	say_all(s, s->nodes->want, s->nodes->want_nr, true, &(struct saying){fn, arg});
}

uint16_t nodes_find(const struct server *s, const char *name)
{
	uint16_t n = 0;

	while (n < s->nodes_nr && strcmp(s->node[n].name, name) != 0)
		n++;
	return n;
}

enum shard_status nodes_named(const struct server *s, const char *name, uint16_t *node,
			      struct err *e)
{
	*node = nodes_find(s, name);
	if (*node < s->nodes_nr)
		return SHARD_OK;
	return err_set(e, SHARD_NOT_FOUND, "no node \"%.64s\": `shardctl members` shows them",
		       name);
}

enum shard_status nodes_parse(struct config_node *n, const char *name, const char *address,
			      struct err *e)
{
	memset(n, 0, sizeof(*n));
	snprintf(n->where, sizeof(n->where), "it has joined");
	return config_node_parse(n, name, address, e);
}

/* --- more of it --- */

uint16_t nodes_fill(const struct server *s, const struct config_node *more, struct nodes_text *t)
{
	const struct nodes *l = s->nodes;
	uint16_t nr = (uint16_t)(l->want_nr + (more != NULL));

	CHECK(nr <= CONFIG_NODES_MAX);
	for (uint16_t n = 0; n < nr; n++) {
		const struct config_node *node = n < l->want_nr ? &l->want[n] : more;

		snprintf(t->key[n], sizeof(t->key[n]), "nodes[%u]", n);
		snprintf(t->value[n], sizeof(t->value[n]), "%s = %s", node->name,
			 node->address.text);
		shard__setting__init(&t->setting[n]);
		t->setting[n].key = t->key[n];
		t->setting[n].value = t->value[n];
		t->list[n] = &t->setting[n];
	}
	return nr;
}

void nodes_append(struct server *s, const struct config_node *n)
{
	struct nodes *l = s->nodes;

	for (uint16_t i = 0; i < l->want_nr; i++)
		if (strcmp(l->want[i].name, n->name) == 0)
			return; /* Another node has told of it. */
	CHECK(l->want_nr < CONFIG_NODES_MAX && !l->must);
	l->want[l->want_nr++] = *n;
	l->told_ns = 0;
	server_wake(s, 0);
}

const char *nodes_ill(const struct server *s, uint16_t node)
{
	const struct peer *p = s->peer[node];

	return p == NULL ? s->nodes->ill : p->up ? p->ill : "";
}

uint16_t nodes_planned(const struct server *s)
{
	return s->nodes->want_nr;
}

const struct config_node *nodes_next(const struct server *s, const char **why)
{
	const struct nodes *l = s->nodes;

	*why = l->why;
	return l->want_nr > s->nodes_nr ? &l->want[s->nodes_nr] : NULL;
}

/* --- what others say --- */

static bool same_address(const struct config_node *a, const struct config_node *b)
{
	return strcmp(a->address.host, b->address.host) == 0 && a->address.port == b->address.port;
}

/* No node can be started whose list has a name or an address twice. */
static enum shard_status hear_new(const struct server *s, uint16_t n, const char *from,
				  const struct config_node *more, struct err *e)
{
	const struct nodes *l = s->nodes;

	for (uint16_t i = 0; i < n; i++) {
		const struct config_node *other = i < l->want_nr ? &l->want[i] : &more[i];

		if (strcmp(other->name, more[n].name) == 0)
			return err_set(e, SHARD_PROTOCOL,
				       "node %.64s: node %u is %s, and so is node %u", from, n,
				       more[n].name, i);
		if (same_address(other, &more[n]))
			return err_set(e, SHARD_MISMATCH,
				       "node %.64s: node %s is at %s, and for node %s node %s has "
				       "this address: check [nodes] of both",
				       from, more[n].name, more[n].address.text,
				       members_name(s, s->self), other->name);
	}
	return SHARD_OK;
}

/* Compares entry n of a list with the list here. Those behind are filled in: more[n]. */
static enum shard_status hear_one(const struct server *s, uint16_t n, const char *value,
				  const char *from, struct config_node *more, struct err *e)
{
	const struct nodes *l = s->nodes;
	char name[CONFIG_NAME_BYTES];
	const char *equals = strstr(value, " = ");

	if (equals == NULL || (size_t)(equals - value) >= sizeof(name))
		return err_set(e, SHARD_PROTOCOL, "node %.64s: node %u is \"%.100s\"", from, n,
			       value);
	snprintf(name, sizeof(name), "%.*s", (int)(equals - value), value);
	if (n < l->want_nr)
		return strcmp(l->want[n].name, name) == 0
			       ? SHARD_OK
			       : err_set(e, SHARD_MISMATCH,
					 "node %u is %s for node %s, and %s for node %.64s: these "
					 "are lists of two clusters: empty the state folder of the "
					 "node that has joined the wrong one",
					 n, l->want[n].name, members_name(s, s->self), name, from);
	return nodes_parse(&more[n], name, equals + 3, e) == SHARD_OK
		       ? hear_new(s, n, from, more, e)
		       : e->status;
}

enum shard_status nodes_heard(struct server *s, size_t nr, Shard__Setting *const *config,
			      const char *from, struct err *e)
{
	struct config_node more[CONFIG_NODES_MAX];
	struct nodes *l = s->nodes;
	uint16_t n = 0;
	char key[16];

	for (size_t i = 0; i < nr; i++) {
		if (strncmp(config[i]->key, "nodes[", 6) != 0)
			continue;
		snprintf(key, sizeof(key), "nodes[%u]", n);
		if (strcmp(config[i]->key, key) != 0 || n == CONFIG_NODES_MAX)
			return err_set(e, SHARD_PROTOCOL, "node %.64s: %.32s comes after %u nodes",
				       from, config[i]->key, n);
		if (hear_one(s, n, config[i]->value, from, more, e) != SHARD_OK)
			return e->status;
		n++;
	}
	/* While it is open what becomes of the last of the list, no other takes its place. */
	if (l->must || n <= l->want_nr)
		return SHARD_OK;
	while (l->want_nr < n) {
		l->want[l->want_nr] = more[l->want_nr];
		l->want_nr++;
	}
	l->told_ns = 0;
	server_wake(s, 0);
	return SHARD_OK;
}

uint16_t nodes_of(const Shard__Hello *hello)
{
	uint16_t nr = 0;

	for (size_t i = 0; i < hello->n_config && nr < CONFIG_NODES_MAX; i++)
		nr += strncmp(hello->config[i]->key, "nodes[", 6) == 0;
	return nr;
}

enum shard_status nodes_may_add(const struct server *s, const struct config_node *node,
				struct err *e)
{
	const struct nodes *l = s->nodes;

	for (uint16_t n = 0; n < l->want_nr; n++) {
		bool name = strcmp(l->want[n].name, node->name) == 0;

		if (name && same_address(&l->want[n], node))
			return l->must && n + 1u == l->want_nr
				       ? err_set(e, SHARD_BUSY, "node %s is being added",
						 node->name)
				       : SHARD_OK;
		if (name)
			return err_set(e, SHARD_MISMATCH,
				       "node %s is at %s already: give the node at %s another name "
				       "([daemon] node), or start it where %s was",
				       node->name, l->want[n].address.text, node->address.text,
				       node->name);
		if (same_address(&l->want[n], node))
			return err_set(e, SHARD_MISMATCH,
				       "node %s is at %s already: a node that takes its place has "
				       "its name, too",
				       l->want[n].name, node->address.text);
	}
	if (l->want_nr == CONFIG_NODES_MAX)
		return err_set(e, SHARD_RANGE, "there are %u nodes, and no more are possible",
			       l->want_nr);
	return SHARD_NOT_FOUND;
}
