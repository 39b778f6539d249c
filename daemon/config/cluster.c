/* SPDX-License-Identifier: Apache-2.0 */
/* What a node keeps of its cluster beside its own configuration, once a node has joined: the list
 * of all nodes, and the options that must be equal on all of them. It is a text in the syntax of a
 * configuration file, and a source below the file: an option that anybody has set stays as it is,
 * and the nodes of [nodes] come first. With them come options that are offered, as where etcd is.
 * The text is made of what another node says in HELLO, so nothing in it is trusted. A list that
 * contradicts [nodes] is SHARD_BAD_ARG and names both. */
#include "config/cluster.h"
#include "config/loader.h"

#include "base/check.h"
#include "wire/frame.h"

#include <stdarg.h>
#include <string.h>

__attribute__((format(printf, 3, 4))) static enum shard_status add(struct config_cluster *to,
								   struct err *e, const char *fmt,
								   ...)
{
	size_t room = sizeof(to->text) - to->used;
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(to->text + to->used, room, fmt, ap);
	va_end(ap);
	CHECK(n >= 0);
	if ((size_t)n >= room)
		return err_set(e, SHARD_RANGE, "the list of nodes is longer than %zu bytes",
			       sizeof(to->text));
	to->used += (size_t)n;
	return SHARD_OK;
}

/* "name = host:port" */
static enum shard_status add_node(struct config_cluster *to, const char *value, struct err *e)
{
	char name[CONFIG_NAME_BYTES], line[CONFIG_NAME_BYTES + 8];
	const char *equals = strstr(value, " = ");
	struct config_node n;

	if (equals == NULL || (size_t)(equals - value) >= sizeof(name) ||
	    snprintf(name, sizeof(name), "%.*s", (int)(equals - value), value) <= 0 ||
	    config_node_parse(&n, name, equals + 3, NULL) != SHARD_OK)
		return err_set(e, SHARD_PROTOCOL, "node %u is \"%.100s\", which is no node",
			       to->nodes_nr, value);
	snprintf(line, sizeof(line), "\n%s = ", n.name);
	if (to->nodes_at > 0 && strstr(to->text + to->nodes_at, line) != NULL)
		return err_set(e, SHARD_PROTOCOL, "node %s is there twice", n.name);
	to->nodes_nr++;
	if (to->nodes_at == 0) {
		if (add(to, e, "[nodes]\n") != SHARD_OK)
			return e->status;
		to->nodes_at = to->used - 1; /* A line feed comes before the first one, too. */
	}
	return add(to, e, "%s = %s\n", n.name, n.address.text);
}

static bool is_kept(const struct table_row *row)
{
	return row->shared || row->offered;
}

static enum shard_status add_option(struct config_cluster *to, const struct table_row *row,
				    const char *value, struct err *e)
{
	struct config scratch = {.nodes_nr = 0};
	struct err why;

	if (to->nodes_at > 0)
		return err_set(e, SHARD_PROTOCOL, "%s.%s comes after the nodes", row->section,
			       row->name);
	/* A value that a file cannot have is refused here, and not when the file is read. */
	if (strpbrk(value, " \t\r\n;#") != NULL ||
	    table_set(row, &scratch, value, &why) != SHARD_OK)
		return err_set(e, SHARD_PROTOCOL, "%s.%s is \"%.100s\", which it cannot be",
			       row->section, row->name, value);
	return add(to, e, "[%s]\n%s = %s\n", row->section, row->name, value);
}

enum shard_status config_cluster_put(struct config_cluster *to, const char *key, const char *value,
				     struct err *e)
{
	const struct table *t = config_options();
	char text[64];

	if (strcmp(key, CONFIG_WIRE) == 0)
		return strcmp(value, WIRE_NODES) == 0
			       ? SHARD_OK
			       : err_set(e, SHARD_MISMATCH,
					 "%s is %s there and %s here: install the same release",
					 key, value, WIRE_NODES);
	if (strncmp(key, "nodes[", 6) == 0) {
		snprintf(text, sizeof(text), "nodes[%u]", to->nodes_nr);
		if (strcmp(key, text) != 0 || to->nodes_nr == CONFIG_NODES_MAX)
			return err_set(e, SHARD_PROTOCOL, "%.64s comes after %u nodes", key,
				       to->nodes_nr);
		return add_node(to, value, e);
	}
	for (uint32_t i = 0; i < t->nr; i++) {
		snprintf(text, sizeof(text), "%s.%s", t->rows[i].section, t->rows[i].name);
		if (is_kept(&t->rows[i]) && strcmp(text, key) == 0)
			return add_option(to, &t->rows[i], value, e);
	}
	return SHARD_OK;
}

void config_shared_set(const struct config *c,
		       void (*fn)(void *arg, const char *key, const char *value), void *arg)
{
	const struct table *t = config_options();
	char key[64], value[CONFIG_PATH_BYTES];

	fn(arg, CONFIG_WIRE, WIRE_NODES);
	for (uint32_t k = 0; k < t->nr; k++) {
		if (!t->rows[k].shared || !(c->set >> k & 1))
			continue;
		table_get(&t->rows[k], c, value, sizeof(value));
		snprintf(key, sizeof(key), "%s.%s", t->rows[k].section, t->rows[k].name);
		fn(arg, key, value);
	}
}

void config_offered(const struct config *c,
		    void (*fn)(void *arg, const char *key, const char *value), void *arg)
{
	const struct table *t = config_options();
	char key[64], value[CONFIG_PATH_BYTES];

	for (uint32_t k = 0; k < t->nr; k++) {
		if (!t->rows[k].offered)
			continue;
		table_get(&t->rows[k], c, value, sizeof(value));
		snprintf(key, sizeof(key), "%s.%s", t->rows[k].section, t->rows[k].name);
		/* HELLO is not encrypted, so a URL with a password stays here. */
		if (value[0] != 0 && strchr(value, '@') == NULL)
			fn(arg, key, value);
	}
}

struct reading {
	struct config_loader *l;
	uint32_t configured, node;
};

static enum shard_status put_node(struct reading *r, const struct config_line *line, struct err *e)
{
	const struct config_node *own = &r->l->c->node_list[r->node];

	if (r->node >= r->configured) {
		r->node++;
		return config_put_node(r->l->c, line, e);
	}
	if (strcmp(own->name, line->key) != 0)
		return err_set(e, SHARD_BAD_ARG,
			       "%s: node %u of this cluster is %.64s, and [nodes] has %s there "
			       "(%s): bring back the order of [nodes], and put nodes that have "
			       "joined behind the others, or nowhere",
			       line->where, r->node + 1, line->key, own->name, own->where);
	r->node++;
	return SHARD_OK;
}

static enum shard_status put(void *arg, const struct config_line *line, struct err *e)
{
	struct reading *r = arg;
	const struct table *t = config_options();
	uint32_t k = table_find(t, line->section, line->key);
	enum shard_status st;
	struct err why;

	if (strcmp(line->section, "nodes") == 0)
		return put_node(r, line, e);
	if (k == t->nr || !is_kept(&t->rows[k]) || strcmp(r->l->where[k], "default") != 0)
		return SHARD_OK;
	st = table_set(&t->rows[k], r->l->c, line->value, &why);
	if (st != SHARD_OK)
		return err_set(e, st, "%s: [%s] %s = %.100s: %.300s", line->where, line->section,
			       line->key, line->value, why.text);
	snprintf(r->l->where[k], sizeof(r->l->where[k]), "%s", line->where);
	return SHARD_OK;
}

enum shard_status config_put_cluster(struct config_loader *l, const struct config_args *args,
				     struct err *e)
{
	struct reading r = {.l = l, .configured = l->c->nodes_nr};
	char where[CONFIG_PATH_BYTES + 16];
	enum shard_status st;

	if (args->cluster == NULL)
		return SHARD_OK;
	snprintf(where, sizeof(where), "%s/cluster", l->c->state);
	st = config_read_text(where, args->cluster, strlen(args->cluster), put, &r, NULL, e);
	l->c->kept_nr = r.node;
	return st;
}
