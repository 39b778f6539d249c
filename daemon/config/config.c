/* SPDX-License-Identifier: Apache-2.0 */
/* Loads a node's configuration. main.c calls config_load() once, before anything is opened, and
 * config_reload() at SIGHUP. Happy path: the defaults of the table, the secrets that the service
 * manager hands over, the file and those of conf.d, SHARD_* variables and the command line, in this
 * order, each through put(), and what the node keeps of its cluster; then config_finish() works out
 * what is left. Every error names place, section, key, value and what may be chosen, and nothing is
 * kept after one. */
#include "config/foreign.h"
#include "config/loader.h"

#include "base/check.h"

#include <errno.h>
#include <string.h>

#define CONFIG_FILE       "/etc/shardd/shardd.conf"
#define CONFIG_FOLDER     "/etc/shardd/conf.d"
#define CONFIG_CREDENTIAL "shardd."

static enum shard_status put_option(struct config_loader *l, const struct config_line *line,
				    struct err *e)
{
	const struct table *t = config_options();
	uint32_t k = table_find(t, line->section, line->key);
	enum shard_status st;
	struct err why;

	if (k == t->nr) {
		const char *near = table_nearest(t, line->section, line->key),
			   *section = config_section_of(line->key);

		if (section)
			return err_set(e, SHARD_BAD_ARG,
				       "%s: [%s] %s = %.64s: unknown key: it belongs to [%s]",
				       line->where, line->section, line->key, line->value, section);
		if (foreign_key(line->key))
			return err_set(e, SHARD_BAD_ARG,
				       "%s: [%s] %s = %.64s: unknown key: %s: the settings of "
				       "models stand in [model]",
				       line->where, line->section, line->key, line->value,
				       foreign_key(line->key));
		return err_set(e, SHARD_BAD_ARG, "%s: [%s] %.64s = %.64s: unknown key: %s%s",
			       line->where, line->section, line->key, line->value,
			       near ? "did you mean " : "`shardd --help` lists them",
			       near ? near : "");
	}
	if (line->line > 0 && l->file_line[k] > 0 && config_one_file(l->where[k], line->where))
		return err_set(e, SHARD_BAD_ARG,
			       "%s: [%s] %s = %.64s: %s is there already, in line %u", line->where,
			       line->section, line->key, line->value, line->key, l->file_line[k]);
	st = table_set(&t->rows[k], l->c, line->value, &why);
	if (st != SHARD_OK)
		return err_set(e, st, "%s: [%s] %s = %.100s: %.300s", line->where, line->section,
			       line->key, line->value, why.text);
	snprintf(l->where[k], sizeof(l->where[k]), "%s", line->where);
	if (line->line > 0)
		l->file_line[k] = line->line;
	return SHARD_OK;
}

/* Takes one key from any source. arg is the loader. */
static enum shard_status put(void *arg, const struct config_line *line, struct err *e)
{
	struct config_loader *l = arg;
	enum shard_status st;

	CHECK(line->where && line->section && line->key && line->value);
	if (!line->section[0])
		return err_set(e, SHARD_BAD_ARG, "%s: %.64s = %.64s: before the first [section]",
			       line->where, line->key, line->value);
	if ((st = config_check_section(line->where, line->section, e)) != SHARD_OK)
		return st;
	if (strcmp(line->section, "nodes") == 0)
		return config_put_node(l->c, line, e);
	if (strncmp(line->section, "model", 5) == 0)
		return config_put_setting(l->c, line, e);
	return put_option(l, line, e);
}

static void put_defaults(struct config_loader *l)
{
	const struct table *t = config_options();

	CHECK(t->nr <= CONFIG_OPTIONS_MAX);
	*l->c = (struct config){.nodes_nr = 0};
	for (uint32_t k = 0; k < t->nr; k++) {
		snprintf(l->where[k], sizeof(l->where[k]), "default");
		if (t->rows[k].fallback)
			CHECK(table_set(&t->rows[k], l->c, t->rows[k].fallback, NULL) == SHARD_OK);
	}
}

/* Remembers a SHARD_* variable that nobody reads. libshard and shardctl read some that we do not.
 */
static void note_unknown(struct config *c, const char *name, size_t n)
{
	static const char *const client[] = {"SHARD_ADDRESS", "SHARD_DAEMON", "SHARD_GUARD",
					     "SHARD_SECRET", "SHARD_TLS"};
	size_t used = strlen(c->unknown);

	for (size_t i = 0; i < NR(client); i++)
		if (strlen(client[i]) == n && memcmp(client[i], name, n) == 0)
			return;
	if (used + n + 3 < sizeof(c->unknown))
		snprintf(c->unknown + used, sizeof(c->unknown) - used, "%s%.*s",
			 used > 0 ? ", " : "", (int)n, name);
}

/* Finds the option that a variable stands for: SHARD_LOG_LEVEL is log_level in [daemon], and
 * SHARD_NET_TRANSPORT is transport in [net]. NULL: there is none. */
static const struct table_row *find_variable(const char *name, size_t n)
{
	const struct table *t = config_options();

	for (uint32_t k = 0; k < t->nr; k++) {
		bool daemon = strcmp(t->rows[k].section, "daemon") == 0;
		char want[80];

		snprintf(want, sizeof(want), "SHARD_%s%s%s", daemon ? "" : t->rows[k].section,
			 daemon ? "" : "_", t->rows[k].name);
		for (char *p = want; *p; p++)
			if (*p >= 'a' && *p <= 'z')
				*p = (char)(*p - 'a' + 'A');
		if (strlen(want) == n && memcmp(want, name, n) == 0)
			return &t->rows[k];
	}
	return NULL;
}

static enum shard_status put_environment(struct config_loader *l, const char *const *env,
					 struct err *e)
{
	enum shard_status st = SHARD_OK;

	for (; st == SHARD_OK && env && *env; env++) {
		const char *equals = strchr(*env, '=');
		const struct table_row *row;
		char where[64];

		if (strncmp(*env, "SHARD_", 6) != 0 || !equals)
			continue;
		row = find_variable(*env, (size_t)(equals - *env));
		if (!row) {
			note_unknown(l->c, *env, (size_t)(equals - *env));
			continue;
		}
		snprintf(where, sizeof(where), "%.*s in the environment", (int)(equals - *env),
			 *env);
		st = put(l,
			 &(struct config_line){.where = where,
					       .section = row->section,
					       .key = row->name,
					       .value = equals + 1},
			 e);
		st = config_go_on(l->wrong, st, e);
	}
	return st;
}

static enum shard_status put_command_line(struct config_loader *l, const char *text, struct err *e)
{
	const char *dot = strchr(text, '.'), *equals = dot ? strchr(dot, '=') : NULL;
	char section[64], key[CONFIG_NAME_BYTES + 1];

	if (!equals || dot == text || equals == dot + 1 ||
	    (size_t)(dot - text) >= sizeof(section) || (size_t)(equals - dot - 1) >= sizeof(key))
		return err_set(
			e, SHARD_BAD_ARG,
			"command line: %.100s: write section.key=value, as in net.transport=tcp",
			text);
	snprintf(section, sizeof(section), "%.*s", (int)(dot - text), text);
	snprintf(key, sizeof(key), "%.*s", (int)(equals - dot - 1), dot + 1);
	return put(l,
		   &(struct config_line){.where = "command line",
					 .section = section,
					 .key = key,
					 .value = equals + 1},
		   e);
}

/* A secret that the service manager hands over. It comes before all other sources, so that whoever
 * names another one wins. The unit's word for "there is none" counts as none, and so does a blank
 * file. What else is in the file is looked at when it is used. */
static enum shard_status put_credential(struct config_loader *l, const char *const *env,
					const char *key, struct err *e)
{
	static const char variable[] = "CREDENTIALS_DIRECTORY=";
	char path[CONFIG_PATH_BYTES], value[64], where[64], text[8] = "";
	FILE *f;

	while (env && *env && strncmp(*env, variable, sizeof(variable) - 1) != 0)
		env++;
	if (!env || !*env ||
	    snprintf(path, sizeof(path), "%s/" CONFIG_CREDENTIAL "%s", *env + sizeof(variable) - 1,
		     key) >= (int)sizeof(path))
		return SHARD_OK;
	f = fopen(path, "re");
	if (!f && errno == ENOENT)
		return SHARD_OK;
	if (f) {
		text[fread(text, 1, sizeof(text) - 1, f)] = 0;
		fclose(f);
		text[strcspn(text, "\r\n")] = 0;
		if (text[0] == 0 || strcmp(text, "none") == 0)
			return SHARD_OK;
		explicit_bzero(text, sizeof(text));
	}
	snprintf(value, sizeof(value), "${CREDENTIALS_DIRECTORY}/" CONFIG_CREDENTIAL "%s", key);
	snprintf(where, sizeof(where), "credential " CONFIG_CREDENTIAL "%s", key);
	return put(l,
		   &(struct config_line){
			   .where = where, .section = "cluster", .key = key, .value = value},
		   e);
}

/* The file, and what lies beside the one of the package. */
static enum shard_status put_files(struct config_loader *l, const struct config_args *args,
				   struct err *e)
{
	const char *file = args->file ? args->file : CONFIG_FILE;
	const char *folder = args->folder ? args->folder : CONFIG_FOLDER;
	enum shard_status st =
		config_read_file(file, args->file != NULL, args->pipe_ns, put, l, l->wrong, e);

	st = config_go_on(l->wrong, st, e);
	if (st == SHARD_OK && (args->folder || strcmp(file, CONFIG_FILE) == 0))
		st = config_read_folder(folder, args->folder != NULL, put, l, l->wrong, e);
	return config_go_on(l->wrong, st, e);
}

enum shard_status config_load_into(struct config_loader *l, const struct config_args *args,
				   struct err *e)
{
	struct config_wrong wrong = {.tell = args->wrong, .arg = args->wrong_arg};
	enum shard_status st;

	CHECK(l->c && args && (args->set || args->set_nr == 0));
	put_defaults(l);
	l->wrong = args->wrong ? &wrong : NULL;
	st = put_credential(l, args->environ_, "secret", e);
	if (st == SHARD_OK)
		st = put_credential(l, args->environ_, "node_secret", e);
	if (st == SHARD_OK)
		st = put_files(l, args, e);
	if (st == SHARD_OK)
		st = put_environment(l, args->environ_, e);
	for (uint32_t i = 0; st == SHARD_OK && i < args->set_nr; i++)
		st = config_go_on(l->wrong, put_command_line(l, args->set[i], e), e);
	/* What comes now would find errors that follow from those. */
	if (st == SHARD_OK && wrong.nr > 0) {
		*e = wrong.first;
		st = e->status;
	}
	if (st == SHARD_OK)
		st = config_put_cluster(l, args, e);
	for (uint32_t k = 0; k < config_options()->nr; k++)
		l->c->set |= (uint64_t)(strcmp(l->where[k], "default") != 0) << k;
	if (st == SHARD_OK)
		st = config_finish(l, e);
	if (st == SHARD_OK && wrong.nr > 0) {
		*e = wrong.first;
		st = e->status;
	}
	l->wrong = NULL;
	if (st != SHARD_OK)
		config_free(l->c);
	return st;
}

enum shard_status config_load(struct config *c, const struct config_args *args, struct err *e)
{
	struct config_loader l = {.c = c};

	return config_load_into(&l, args, e);
}

enum shard_status config_load_text(struct config *c, const char *name, const char *text,
				   size_t bytes, struct err *e)
{
	struct config_loader l = {.c = c};
	enum shard_status st;

	put_defaults(&l);
	st = config_read_text(name, text, bytes, put, &l, NULL, e);
	if (st == SHARD_OK)
		st = config_finish(&l, e);
	if (st != SHARD_OK)
		config_free(c);
	return st;
}

static void name_it(char *list, const char *section, const char *key)
{
	size_t used = strlen(list);

	CHECK(used < CONFIG_UNKNOWN_BYTES);
	snprintf(list + used, CONFIG_UNKNOWN_BYTES - used, "%s%s%s%s", used ? ", " : "", section,
		 key[0] ? "." : "", key);
}

static bool nodes_differ(const struct config *a, const struct config *b)
{
	if (a->nodes_nr != b->nodes_nr)
		return true;
	for (uint32_t i = 0; i < a->nodes_nr; i++)
		if (strcmp(a->node_list[i].name, b->node_list[i].name) != 0 ||
		    strcmp(a->node_list[i].address.text, b->node_list[i].address.text) != 0)
			return true;
	return false;
}

static bool models_differ(const struct config *a, const struct config *b)
{
	if (a->models_nr != b->models_nr)
		return true;
	for (uint32_t i = 0; i < a->models_nr; i++) {
		const struct config_model *m = &a->model[i], *n = &b->model[i];

		if (strcmp(m->name, n->name) != 0 || strcmp(m->group, n->group) != 0 ||
		    strcmp(m->settings, n->settings) != 0)
			return true;
	}
	return false;
}

enum shard_status config_reload(struct config *c, const struct config_args *args,
				struct config_changes *what, struct err *e)
{
	const struct table *t = config_options();
	char old[CONFIG_PATH_BYTES], new[CONFIG_PATH_BYTES];
	struct config fresh;
	enum shard_status st;

	CHECK(c->nodes_nr > 0 && what);
	*what = (struct config_changes){.taken = ""};
	st = config_load(&fresh, args, e);
	if (st != SHARD_OK)
		return st;
	for (uint32_t i = 0; i < t->nr; i++) {
		const struct table_row *row = &t->rows[i];

		table_get(row, c, old, sizeof(old));
		table_get(row, &fresh, new, sizeof(new));
		if (strcmp(old, new) == 0)
			continue;
		name_it(row->reloadable ? what->taken : what->left, row->section, row->name);
		if (row->reloadable)
			table_copy(row, c, &fresh);
	}
	if (nodes_differ(c, &fresh))
		name_it(what->left, "[nodes]", "");
	if (models_differ(c, &fresh)) {
		name_it(what->taken, "[model]", "");
		config_free(c);
		c->model = fresh.model;
		c->models_nr = fresh.models_nr;
		fresh.model = NULL;
		fresh.models_nr = 0;
	}
	config_free(&fresh);
	return SHARD_OK;
}
