/* SPDX-License-Identifier: Apache-2.0 */
/* Where each value of a configuration comes from. main.c calls it for --explain, instead of starting. Happy path: load as the daemon
 * would, then one line (or JSON object) per option, node and setting: section, key, value, place. Fails as config_load() does. */
#include "config_parts.h"

#include "base/check.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

struct note { /* who set a key of a [model ...] section */
	char name[CONFIG_NAME_BYTES], group[CONFIG_NAME_BYTES], key[CONFIG_NAME_BYTES], where[CONFIG_WHERE_BYTES];
};

struct explain {
	struct note *note;
	size_t notes_nr;
	json_t *list; /* NULL: as text */
	const char *section;
	FILE *out;
};

static void on_note(void *arg, const char *where, const char *section, const char *key)
{
	struct explain *x = arg;
	struct note *more = realloc(x->note, (x->notes_nr + 1) * sizeof(*more)), *n;

	CHECK(more); /* a tool at its start: there is nothing to save */
	x->note = more;
	n = &more[x->notes_nr++];
	CHECK(config_model_section(section, n->name, n->group));
	snprintf(n->key, sizeof(n->key), "%s", key);
	snprintf(n->where, sizeof(n->where), "%s", where);
}

/* The last one wins, as in the configuration. */
static const char *noted(const struct explain *x, const struct config_model *m, const char *key, size_t bytes)
{
	for (size_t i = x->notes_nr; i-- > 0;) {
		const struct note *n = &x->note[i];

		if (strcmp(n->name, m->name) == 0 && strcmp(n->group, m->group) == 0 && strlen(n->key) == bytes &&
		    memcmp(n->key, key, bytes) == 0)
			return n->where;
	}
	return m->where;
}

static const char *origin_of(const char *where)
{
	static const char *const words[] = {"default", "host name", "command line"};

	for (size_t i = 0; i < NR(words); i++)
		if (strcmp(where, words[i]) == 0)
			return words[i];
	if (strncmp(where, "credential ", 11) == 0)
		return "credential";
	return strstr(where, " in the environment") ? "environment" : "file";
}

static void say(struct explain *x, const char *section, const char *key, const char *value, const char *where)
{
	char text[CONFIG_PATH_BYTES + 2 * CONFIG_NAME_BYTES];

	if (x->list) {
		json_array_append_new(x->list, json_pack("{s:s, s:s, s:s, s:s, s:s}", "section", section, "key", key, "value",
							 value, "origin", origin_of(where), "where", where));
		return;
	}
	if (!x->section || strcmp(x->section, section) != 0)
		fprintf(x->out, "[%s]\n", section);
	x->section = section;
	snprintf(text, sizeof(text), "%s = %s", key, value);
	fprintf(x->out, "%-44s ; %s\n", text, where);
}

static void say_model(struct explain *x, const struct config_model *m, char *section, size_t bytes)
{
	if (m->group[0])
		snprintf(section, bytes, "model \"%s\" group \"%s\"", m->name, m->group);
	else if (m->name[0])
		snprintf(section, bytes, "model \"%s\"", m->name);
	else
		snprintf(section, bytes, "model");
	x->section = NULL;
	for (const char *at = m->settings; *at;) {
		size_t n = strcspn(at, " "), key_bytes = strcspn(at, "=");
		char key[CONFIG_NAME_BYTES], value[CONFIG_PATH_BYTES];

		snprintf(key, sizeof(key), "%.*s", (int)key_bytes, at);
		snprintf(value, sizeof(value), "%.*s", (int)(n - key_bytes - 1), at + key_bytes + 1);
		say(x, section, key, value, noted(x, m, at, key_bytes));
		at += n + (at[n] == ' ');
	}
}

enum shard_status config_explain(const struct config_args *args, bool json, FILE *out, struct err *e)
{
	struct config c;
	struct explain x = {.out = out, .list = json ? json_array() : NULL};
	struct config_loader l = {.c = &c, .note = on_note, .note_arg = &x};
	enum shard_status st = config_load_into(&l, args, e);
	char text[CONFIG_PATH_BYTES];

	for (int k = 0; st == SHARD_OK && k < CONFIG_KEY_NR; k++) {
		const struct config_option *o = config_option((enum config_key)k);

		config_get(&c, (enum config_key)k, text, sizeof(text));
		say(&x, o->section, o->key, text, l.where[k]);
	}
	for (uint32_t i = 0; st == SHARD_OK && i < c.nodes_nr; i++)
		say(&x, "nodes", c.node_list[i].name, c.node_list[i].address.text, c.node_list[i].where);
	for (uint32_t i = 0; st == SHARD_OK && i < c.models_nr; i++)
		say_model(&x, &c.model[i], text, sizeof(text));
	if (st == SHARD_OK && json) {
		json_t *root = json_pack("{s:O, s:s}", "options", x.list, "unknown_variables", c.unknown);

		json_dumpf(root, out, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
		fputc('\n', out);
		json_decref(root);
	}
	json_decref(x.list);
	free(x.note);
	if (st == SHARD_OK)
		config_free(&c);
	return st;
}
