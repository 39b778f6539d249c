/* SPDX-License-Identifier: Apache-2.0 */
/* What a configuration is, for people. main.c calls config_help() for --help, config_print() for
 * --check and config_explain() for --explain. One walk over options, nodes and settings gives each
 * value to a printer: as a line of a file, as a line with its origin, or as a JSON object. Only
 * config_explain() can fail, as config_load() does. */
#include "config/loader.h"

#include "base/check.h"
#include "config/settings.h"
#include "wire/control.h"

#include <jansson.h>
#include <string.h>

struct walk {
	const struct config *c;
	const struct config_loader *l; /* Who set the options; NULL: nobody asks. */
	FILE *out;
	json_t *list;        /* NULL: as text. */
	const char *section; /* Of the line before; NULL: there was none. */
};

static const char *origin_of(const char *where)
{
	static const char *const words[] = {"default", "host name", "command line"};

	for (size_t i = 0; i < NR(words); i++)
		if (strcmp(where, words[i]) == 0)
			return words[i];
	if (strncmp(where, "default for ", 12) == 0)
		return "default";
	if (strncmp(where, "credential ", 11) == 0)
		return "credential";
	return strstr(where, " in the environment") ? "environment" : "file";
}

static void heading(struct walk *w, const char *section)
{
	if (!w->list && (!w->section || strcmp(w->section, section) != 0))
		fprintf(w->out, "[%s]\n", section);
	w->section = section;
}

static void say(struct walk *w, const char *key, const char *value, const char *where)
{
	char text[4 * CONFIG_PATH_BYTES + 2 * CONFIG_NAME_BYTES], from[4 * CONFIG_WHERE_BYTES];
	char plain[4 * CONFIG_PATH_BYTES];

	CHECK(w->section && (where || !w->l));
	/* A path may have any bytes. Terminals and JSON cannot. */
	control_escape(plain, sizeof(plain), value);
	control_escape(from, sizeof(from), where ? where : "");
	value = plain;
	where = from;
	snprintf(text, sizeof(text), "%s = %s", key, value);
	if (w->list)
		json_array_append_new(w->list,
				      json_pack("{s:s, s:s, s:s, s:s, s:s}", "section", w->section,
						"key", key, "value", value, "origin",
						origin_of(where), "where", where));
	else if (w->l)
		fprintf(w->out, "%-44s ; %s\n", text, where);
	else if (value[0]) /* A path that nobody set cannot be written in a file. */
		fprintf(w->out, "%s\n", text);
}

static void walk(struct walk *w)
{
	const struct table *t = config_options();
	const struct config *c = w->c;
	char key[CONFIG_NAME_BYTES], value[CONFIG_PATH_BYTES], title[2 * CONFIG_NAME_BYTES + 32];

	for (uint32_t i = 0; i < t->nr; i++) {
		heading(w, t->rows[i].section);
		table_get(&t->rows[i], c, value, sizeof(value));
		say(w, t->rows[i].name, value, w->l ? w->l->where[i] : NULL);
	}
	CHECK(c->nodes_nr > 0);
	heading(w, "nodes");
	for (uint32_t i = 0; i < c->nodes_nr; i++)
		say(w, c->node_list[i].name, c->node_list[i].address.text, c->node_list[i].where);
	for (uint32_t i = 0; i < c->models_nr; i++) {
		const struct config_model *m = &c->model[i];
		const char *at = m->settings;
		uint32_t word = 0;

		w->section = NULL; /* The array below holds another title now. */
		config_model_title(m, title, sizeof(title));
		heading(w, title);
		for (; config_next_setting(&at, key, value); word++)
			say(w, key, value, m->origins[word].text);
		CHECK(word == m->words_nr);
	}
}

void config_print(const struct config *c, FILE *out)
{
	CHECK(c && out);
	walk(&(struct walk){.c = c, .out = out});
}

enum shard_status config_explain(const struct config_args *args, bool json, FILE *out,
				 struct err *e)
{
	struct config c;
	struct config_loader l = {.c = &c};
	struct walk w = {.c = &c, .l = &l, .out = out, .list = json ? json_array() : NULL};
	enum shard_status st = config_load_into(&l, args, e);

	if (st == SHARD_OK) {
		walk(&w);
		config_free(&c);
	}
	if (st == SHARD_OK && json) {
		json_t *root =
			json_pack("{s:O, s:s}", "options", w.list, "unknown_variables", c.unknown);

		json_dumpf(root, out, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
		fputc('\n', out);
		json_decref(root);
	}
	json_decref(w.list);
	return st;
}

void config_help(FILE *out)
{
	CHECK(out);
	fprintf(out,
		"Options of the configuration file. Each is also --set section.key=value, and\n"
		"in the environment SHARD_KEY (section daemon) or SHARD_SECTION_KEY. Order:\n"
		"command line > environment > conf.d/*.conf > file > default.\n\n");
	table_help(config_options(), out);
	fprintf(out, "[nodes]\n");
	table_help_line(
		out, "NAME = HOST:PORT",
		"One line for each node, the same on all nodes. The first one coordinates.");
	settings_help(out);
}
