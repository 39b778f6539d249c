/* SPDX-License-Identifier: Apache-2.0 */
/* The sections of a configuration that are not options: [nodes] and [model ...]. config.c hands
 * them one key at a time, from a file or from the command line. A node becomes an entry of the node
 * list. A model's setting is checked and appended to the settings string of its section, which a
 * definition merges later (settings.c). What is wrong is SHARD_BAD_ARG with its place; no memory is
 * SHARD_SYSTEM. */
#include "config/cluster.h"
#include "config/loader.h"

#include "base/check.h"
#include "base/nearest.h"
#include "config/keys.h"
#include "config/settings.h"
#include "config/value.h"

#include <stdlib.h>
#include <string.h>

static const char *const sections[] = {"daemon", "net", "cluster", "nodes", "model", NULL};

static const char *section_name(const void *arg, uint32_t i)
{
	(void)arg;
	return sections[i];
}

const char *config_section_of(const char *key)
{
	const struct table *t = config_options();

	for (uint32_t k = 0; k < t->nr; k++)
		if (strcmp(t->rows[k].name, key) == 0)
			return t->rows[k].section;
	t = settings_table();
	return table_find(t, NULL, key) < t->nr ? "model" : NULL;
}

/* Takes the names out of `model "name" group "group"`; either quoted part may be absent. */
static bool parse_title(const char *section, char name[CONFIG_NAME_BYTES],
			char group[CONFIG_NAME_BYTES])
{
	int end = -1;

	name[0] = group[0] = 0;
	if (strcmp(section, "model") == 0)
		return true;
	if (sscanf(section, "model \"%64[a-z0-9._-]\"%n", name, &end) == 1 && end > 0 &&
	    section[end] == 0)
		return true;
	end = -1;
	return sscanf(section, "model \"%64[a-z0-9._-]\" group \"%64[a-z0-9._-]\"%n", name, group,
		      &end) == 2 &&
	       end > 0 && section[end] == 0;
}

void config_model_title(const struct config_model *m, char *out, size_t bytes)
{
	CHECK(m->name[0] || !m->group[0]);
	if (m->group[0])
		snprintf(out, bytes, "model \"%s\" group \"%s\"", m->name, m->group);
	else if (m->name[0])
		snprintf(out, bytes, "model \"%s\"", m->name);
	else
		snprintf(out, bytes, "model");
}

enum shard_status config_check_section(const char *where, const char *section, struct err *e)
{
	char name[CONFIG_NAME_BYTES], group[CONFIG_NAME_BYTES];
	const char *near;

	CHECK(where && section);
	for (int i = 0; sections[i]; i++)
		if (strcmp(sections[i], section) == 0)
			return SHARD_OK;
	if (parse_title(section, name, group))
		return SHARD_OK;
	if (strncmp(section, "model", 5) == 0)
		return err_set(e, SHARD_BAD_ARG,
			       "%s: [%s]: write [model], [model \"name\"] or [model \"name\" group "
			       "\"group\"]",
			       where, section);
	near = nearest_word(section, section_name, NULL);
	return err_set(e, SHARD_BAD_ARG, "%s: [%s]: unknown section: %s%s%s", where, section,
		       near ? "did you mean [" : "choose ",
		       near ? near : "[daemon], [net], [cluster], [nodes] or [model]",
		       near ? "]?" : "");
}

/* An address goes into files of other nodes (cluster.c), and so has nothing that would end a value
 * there. */
static bool is_word(const char *text)
{
	while (*text > ' ' && *text < 0x7f && *text != ';' && *text != '#')
		text++;
	return *text == 0;
}

enum shard_status config_node_parse(struct config_node *n, const char *name, const char *address,
				    struct err *e)
{
	struct err why;

	if (!value_name(name))
		return err_set(e, SHARD_BAD_ARG,
			       "%.64s = %.64s: a node's name is 1 to 64 of a-z 0-9 . _ -", name,
			       address);
	if (conn_address_parse(&n->address, address, &why) != SHARD_OK)
		return err_set(e, SHARD_BAD_ARG, "%s = %.64s: %.200s", name, address, why.text);
	if (n->address.unix_path || n->address.port == 0)
		return err_set(e, SHARD_BAD_ARG, "%s = %.64s: choose host:port with a port above 0",
			       name, address);
	if (!is_word(address))
		return err_set(e, SHARD_BAD_ARG,
			       "%s = %.64s: no host has such a name: choose host:port without "
			       "spaces, ; and #",
			       name, address);
	snprintf(n->name, sizeof(n->name), "%s", name);
	return SHARD_OK;
}

enum shard_status config_put_node(struct config *c, const struct config_line *l, struct err *e)
{
	struct config_node *n = NULL, is;
	struct err why;

	CHECK(c->nodes_nr <= CONFIG_NODES_MAX && strcmp(l->section, "nodes") == 0);
	if (config_node_parse(&is, l->key, l->value, &why) != SHARD_OK)
		return err_set(e, SHARD_BAD_ARG, "%s: [nodes] %.350s", l->where, why.text);
	for (uint32_t i = 0; i < c->nodes_nr; i++) {
		const struct config_node *other = &c->node_list[i];

		if (strcmp(other->name, l->key) == 0)
			n = &c->node_list[i];
		else if (strcmp(other->address.host, is.address.host) == 0 &&
			 other->address.port == is.address.port)
			return err_set(
				e, SHARD_BAD_ARG,
				"%s: [nodes] %s = %.64s: node %s has this address already (%s)",
				l->where, l->key, l->value, other->name, other->where);
	}
	if (n && l->line > 0 && config_one_file(n->where, l->where))
		return err_set(e, SHARD_BAD_ARG,
			       "%s: [nodes] %s = %.64s: this node is there already (%s)", l->where,
			       l->key, l->value, n->where);
	if (!n && c->nodes_nr == CONFIG_NODES_MAX)
		return err_set(e, SHARD_BAD_ARG, "%s: [nodes] %s: at most %d nodes are possible",
			       l->where, l->key, CONFIG_NODES_MAX);
	if (!n)
		n = &c->node_list[c->nodes_nr++];
	snprintf(n->name, sizeof(n->name), "%s", is.name);
	snprintf(n->where, sizeof(n->where), "%s", l->where);
	n->address = is.address;
	return SHARD_OK;
}

static struct config_model *find_model(const struct config *c, const char *name, const char *group)
{
	CHECK(c->models_nr <= CONFIG_MODELS_MAX);
	for (uint32_t i = 0; i < c->models_nr; i++)
		if (strcmp(c->model[i].name, name) == 0 && strcmp(c->model[i].group, group) == 0)
			return &c->model[i];
	return NULL;
}

const struct config_model *config_model(const struct config *c, const char *name, const char *group)
{
	CHECK(name && group);
	return find_model(c, name, group);
}

static enum shard_status make_model(struct config *c, const char *where, const char *name,
				    const char *group, struct config_model **made, struct err *e)
{
	struct config_model *m, *more;

	if (c->models_nr == CONFIG_MODELS_MAX)
		return err_set(e, SHARD_BAD_ARG, "%s: more than %d [model ...] sections", where,
			       CONFIG_MODELS_MAX);
	more = realloc(c->model, (c->models_nr + 1) * sizeof(*more));
	if (more)
		c->model = more;
	m = more ? &more[c->models_nr] : NULL;
	if (m)
		*m = (struct config_model){.settings = calloc(1, SETTINGS_TEXT_BYTES)};
	if (!m || !m->settings)
		return err_set(e, SHARD_SYSTEM, "%s: no memory for model \"%s\"", where, name);
	snprintf(m->name, sizeof(m->name), "%s", name);
	snprintf(m->group, sizeof(m->group), "%s", group);
	snprintf(m->where, sizeof(m->where), "%s", where);
	c->models_nr++;
	*made = m;
	return SHARD_OK;
}

/* Copies a value without the blanks behind its commas, which are for people. False: it is too long.
 */
static bool squeeze(char *out, size_t bytes, const char *value)
{
	size_t n = 0;

	CHECK(bytes > 0);
	for (const char *p = value; *p; p++) {
		if ((*p == ' ' || *p == '\t') && n > 0 && out[n - 1] == ',')
			continue;
		if (n + 1 == bytes)
			return false;
		out[n++] = *p;
	}
	out[n] = 0;
	return true;
}

bool config_next_setting(const char **at, char key[CONFIG_NAME_BYTES],
			 char value[CONFIG_PATH_BYTES])
{
	size_t n = strcspn(*at, " "), key_bytes = strcspn(*at, "=");

	if (n == 0)
		return false;
	CHECK(key_bytes < n && key_bytes < CONFIG_NAME_BYTES &&
	      n - key_bytes - 1 < CONFIG_PATH_BYTES);
	snprintf(key, CONFIG_NAME_BYTES, "%.*s", (int)key_bytes, *at);
	snprintf(value, CONFIG_PATH_BYTES, "%.*s", (int)(n - key_bytes - 1), *at + key_bytes + 1);
	*at += n + ((*at)[n] == ' ');
	return true;
}

/* Takes a key out of the section's settings, and keeps where it was set. False: it was not there.
 */
static bool take_out(struct config_model *m, const char *key, struct settings_origin *was)
{
	char name[CONFIG_NAME_BYTES], value[CONFIG_PATH_BYTES];
	const char *next = m->settings, *at = next;

	for (uint32_t i = 0; config_next_setting(&next, name, value); at = next, i++) {
		if (strcmp(name, key) != 0)
			continue;
		CHECK(i < m->words_nr);
		*was = m->origins[i];
		m->words_nr--;
		memmove(m->origins + i, m->origins + i + 1,
			(m->words_nr - i) * sizeof(*m->origins));
		memmove(m->settings + (at - m->settings), next, strlen(next) + 1);
		return true;
	}
	return false;
}

static enum shard_status append(struct config_model *m, const struct config_line *l,
				const char *value, struct err *e)
{
	struct settings_origin *more = realloc(m->origins, (m->words_nr + 1) * sizeof(*more));
	size_t used;

	if (!more)
		return err_set(e, SHARD_SYSTEM, "%s: no memory for [%s] %s", l->where, l->section,
			       l->key);
	m->origins = more;
	used = strlen(m->settings);
	while (used > 0 && m->settings[used - 1] == ' ')
		m->settings[--used] = 0;
	if (used + strlen(l->key) + strlen(value) + 3 > SETTINGS_TEXT_BYTES)
		return err_set(e, SHARD_BAD_ARG, "%s: [%s] %s: too many settings", l->where,
			       l->section, l->key);
	snprintf(m->settings + used, SETTINGS_TEXT_BYTES - used, "%s%s=%s", used ? " " : "", l->key,
		 value);
	snprintf(more[m->words_nr++].text, sizeof(more->text), "%s", l->where);
	return SHARD_OK;
}

enum shard_status config_put_setting(struct config *c, const struct config_line *l, struct err *e)
{
	char name[CONFIG_NAME_BYTES], group[CONFIG_NAME_BYTES], value[256];
	const char *section = config_section_of(l->key);
	struct settings_origin was;
	struct config_model *m;
	enum shard_status st;
	struct err why;

	CHECK(parse_title(l->section, name, group));
	if (section && table_find(settings_table(), NULL, l->key) == settings_table()->nr)
		return err_set(e, SHARD_BAD_ARG,
			       "%s: [%s] %s = %.64s: unknown key: it belongs to [%s]", l->where,
			       l->section, l->key, l->value, section);
	if (!squeeze(value, sizeof(value), l->value))
		return err_set(e, SHARD_BAD_ARG, "%s: [%s] %s = %.64s...: longer than %zu bytes",
			       l->where, l->section, l->key, l->value, sizeof(value) - 1);
	if (settings_check(l->key, value, group[0] != 0, &why) != SHARD_OK)
		return err_set(e, SHARD_BAD_ARG, "%s: [%s] %.250s", l->where, l->section, why.text);
	if (strcspn(value, " \t") != strlen(value))
		return err_set(e, SHARD_BAD_ARG, "%s: [%s] %s = %.64s: no blanks inside a value",
			       l->where, l->section, l->key, value);
	m = find_model(c, name, group);
	if (!m && (st = make_model(c, l->where, name, group, &m, e)) != SHARD_OK)
		return st;
	/* The command line and the environment win over files, and a file over those before it. */
	if (take_out(m, l->key, &was) && l->line > 0 && config_one_file(was.text, l->where))
		return err_set(e, SHARD_BAD_ARG, "%s: [%s] %s = %.64s: %s is there already",
			       l->where, l->section, l->key, value, l->key);
	return append(m, l, value, e);
}

void config_free(struct config *c)
{
	CHECK(c && c->models_nr <= CONFIG_MODELS_MAX);
	for (uint32_t i = 0; i < c->models_nr; i++) {
		free(c->model[i].settings);
		free(c->model[i].origins);
	}
	free(c->model);
	c->model = NULL;
	c->models_nr = 0;
}
