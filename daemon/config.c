/* SPDX-License-Identifier: Apache-2.0 */
/* Puts a node's configuration together. main.c calls config_load() once, before anything is opened. Happy path: defaults from the table, the
 * service manager's secret, the file (config_file.c), SHARD_* variables, the command line, each through config_put(); then config_finish()
 * works out what is left open (names, addresses, memory, workers) and looks for contradictions. Every error names place, section, key, value
 * and what may be chosen; nothing is kept after one. */
#include "config_parts.h"

#include "base/check.h"
#include "settings.h"
#include "value.h"
#include "wire/xxh.h"
#include "worker.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CONFIG_FILE       "/etc/shardd/shardd.conf"
#define CONFIG_FILE_MAX   (1u << 20)
#define CONFIG_CREDENTIAL "shardd.secret"

static const char *const sections[] = {"daemon", "net", "cluster", "nodes", "model", NULL};

static const char *section_name(void *arg, uint32_t i)
{
	(void)arg;
	return sections[i];
}

static const char *option_name(void *arg, uint32_t i)
{
	const char *section = arg;

	for (int k = 0; k < CONFIG_KEY_NR; k++)
		if (strcmp(config_option((enum config_key)k)->section, section) == 0 && i-- == 0)
			return config_option((enum config_key)k)->key;
	return NULL;
}

bool config_model_section(const char *section, char name[CONFIG_NAME_BYTES], char group[CONFIG_NAME_BYTES])
{
	int end = -1;

	name[0] = group[0] = 0;
	if (strcmp(section, "model") == 0)
		return true;
	if (sscanf(section, "model \"%64[a-z0-9._-]\"%n", name, &end) == 1 && end > 0 && section[end] == 0)
		return true;
	end = -1;
	return sscanf(section, "model \"%64[a-z0-9._-]\" group \"%64[a-z0-9._-]\"%n", name, group, &end) == 2 && end > 0 &&
	       section[end] == 0;
}

enum shard_status config_check_section(const char *where, const char *section, struct err *e)
{
	char name[CONFIG_NAME_BYTES], group[CONFIG_NAME_BYTES];
	const char *near;

	for (int i = 0; sections[i]; i++)
		if (strcmp(sections[i], section) == 0)
			return SHARD_OK;
	if (config_model_section(section, name, group))
		return SHARD_OK;
	if (strncmp(section, "model", 5) == 0)
		return err_set(e, SHARD_BAD_ARG, "%s: [%s]: write [model], [model \"name\"] or [model \"name\" group \"group\"]",
			       where, section);
	near = value_nearest(section, section_name, NULL);
	return err_set(e, SHARD_BAD_ARG, "%s: [%s]: unknown section: %s%s%s", where, section, near ? "did you mean [" : "choose ",
		       near ? near : "[daemon], [net], [cluster], [nodes] or [model]", near ? "]?" : "");
}

static enum shard_status put_node(struct config *c, const char *where, bool file, const char *key, const char *value, struct err *e)
{
	struct config_node *n = NULL;
	struct conn_address address;
	struct err why;

	if (!value_name(key))
		return err_set(e, SHARD_BAD_ARG, "%s: [nodes] %.64s = %.64s: a node's name is 1 to 64 of a-z 0-9 . _ -", where, key,
			       value);
	if (conn_address_parse(&address, value, &why) != SHARD_OK)
		return err_set(e, SHARD_BAD_ARG, "%s: [nodes] %s = %.64s: %.200s", where, key, value, why.text);
	if (address.unix_path || address.port == 0)
		return err_set(e, SHARD_BAD_ARG, "%s: [nodes] %s = %.64s: choose host:port with a port above 0", where, key, value);
	for (uint32_t i = 0; i < c->nodes_nr; i++) {
		if (strcmp(c->node_list[i].name, key) == 0)
			n = &c->node_list[i];
		else if (strcmp(c->node_list[i].address.host, address.host) == 0 && c->node_list[i].address.port == address.port)
			return err_set(e, SHARD_BAD_ARG, "%s: [nodes] %s = %.64s: node %s has this address already (%s)", where,
				       key, value, c->node_list[i].name, c->node_list[i].where);
	}
	if (n && file)
		return err_set(e, SHARD_BAD_ARG, "%s: [nodes] %s = %.64s: this node is there already (%s)", where, key, value,
			       n->where);
	if (!n) {
		if (c->nodes_nr == CONFIG_NODES_MAX)
			return err_set(e, SHARD_BAD_ARG, "%s: [nodes] %s: at most %d nodes are possible", where, key,
				       CONFIG_NODES_MAX);
		n = &c->node_list[c->nodes_nr++];
	}
	snprintf(n->name, sizeof(n->name), "%s", key);
	snprintf(n->where, sizeof(n->where), "%s", where);
	n->address = address;
	return SHARD_OK;
}

static struct config_model *find_model(const struct config *c, const char *name, const char *group)
{
	for (uint32_t i = 0; i < c->models_nr; i++)
		if (strcmp(c->model[i].name, name) == 0 && strcmp(c->model[i].group, group) == 0)
			return &c->model[i];
	return NULL;
}

static struct config_model *make_model(struct config *c, const char *where, const char *name, const char *group, struct err *e)
{
	struct config_model *m, *more;

	if (c->models_nr == CONFIG_MODELS_MAX) {
		err_set(e, SHARD_BAD_ARG, "%s: more than %d [model ...] sections", where, CONFIG_MODELS_MAX);
		return NULL;
	}
	more = realloc(c->model, (c->models_nr + 1) * sizeof(*more));
	if (more)
		c->model = more;
	m = more ? &more[c->models_nr] : NULL;
	if (m)
		*m = (struct config_model){.settings = calloc(1, SETTINGS_TEXT_BYTES)};
	if (!m || !m->settings) {
		err_set(e, SHARD_SYSTEM, "%s: no memory for model \"%s\"", where, name);
		return NULL;
	}
	snprintf(m->name, sizeof(m->name), "%s", name);
	snprintf(m->group, sizeof(m->group), "%s", group);
	snprintf(m->where, sizeof(m->where), "%s", where);
	c->models_nr++;
	return m;
}

/* Blanks behind commas are for people. */
static void squeeze(char *out, size_t bytes, const char *value)
{
	size_t n = 0;

	for (const char *p = value; *p && n + 1 < bytes; p++)
		if (!((*p == ' ' || *p == '\t') && p > value && n > 0 && out[n - 1] == ','))
			out[n++] = *p;
	out[n] = 0;
}

/* Where "key=" stands in a settings string, or NULL. */
static char *find_setting(char *settings, const char *key)
{
	size_t n = strlen(key);

	for (char *at = settings; *at;) {
		if (strncmp(at, key, n) == 0 && at[n] == '=')
			return at;
		at += strcspn(at, " ");
		at += *at == ' ';
	}
	return NULL;
}

static void take_out(struct config_model *m, char *word)
{
	char *next = word + strcspn(word, " ");
	uint32_t i = 0;

	for (const char *at = m->settings; at < word; at++)
		i += *at == ' ';
	m->words_nr--;
	memmove(m->origins + i, m->origins + i + 1, (m->words_nr - i) * sizeof(*m->origins));
	next += *next == ' ';
	memmove(word, next, strlen(next) + 1);
}

static enum shard_status put_setting(struct config *c, const char *where, bool file, const char *section, const char *key,
				     const char *value, struct err *e)
{
	char name[CONFIG_NAME_BYTES], group[CONFIG_NAME_BYTES], text[256];
	struct settings_origin *more;
	struct config_model *m;
	struct err why;
	char *old;
	size_t used;

	CHECK(config_model_section(section, name, group));
	squeeze(text, sizeof(text), value);
	if (settings_check(key, text, group[0] != 0, &why) != SHARD_OK)
		return err_set(e, SHARD_BAD_ARG, "%s: [%s] %.250s", where, section, why.text);
	if (strcspn(text, " \t") != strlen(text))
		return err_set(e, SHARD_BAD_ARG, "%s: [%s] %s = %.64s: no blanks inside a value", where, section, key, text);
	m = find_model(c, name, group);
	if (!m && !(m = make_model(c, where, name, group, e)))
		return e && e->status == SHARD_BAD_ARG ? SHARD_BAD_ARG : SHARD_SYSTEM;
	old = find_setting(m->settings, key);
	if (old && file)
		return err_set(e, SHARD_BAD_ARG, "%s: [%s] %s = %.64s: %s is there already", where, section, key, text, key);
	more = realloc(m->origins, (m->words_nr + 1) * sizeof(*more));
	if (!more)
		return err_set(e, SHARD_SYSTEM, "%s: no memory for [%s] %s", where, section, key);
	m->origins = more;
	if (old) /* the command line wins */
		take_out(m, old);
	used = strlen(m->settings);
	while (used > 0 && m->settings[used - 1] == ' ')
		m->settings[--used] = 0;
	if (used + strlen(key) + strlen(text) + 3 > SETTINGS_TEXT_BYTES)
		return err_set(e, SHARD_BAD_ARG, "%s: [%s] %s: too many settings", where, section, key);
	snprintf(m->settings + used, SETTINGS_TEXT_BYTES - used, "%s%s=%s", used ? " " : "", key, text);
	snprintf(more[m->words_nr++].text, sizeof(more->text), "%s", where);
	return SHARD_OK;
}

enum shard_status config_put(struct config_loader *l, const char *where, uint32_t line, const char *section, const char *key,
			     const char *value, struct err *e)
{
	enum shard_status st =
		section[0] ? config_check_section(where, section, e)
			   : err_set(e, SHARD_BAD_ARG, "%s: %.64s = %.64s: before the first [section]", where, key, value);
	enum config_key k;
	struct err why;

	if (st != SHARD_OK)
		return st;
	if (strcmp(section, "nodes") == 0)
		return put_node(l->c, where, line > 0, key, value, e);
	if (strncmp(section, "model", 5) == 0) {
		st = put_setting(l->c, where, line > 0, section, key, value, e);
		if (st == SHARD_OK && l->note)
			l->note(l->note_arg, where, section, key);
		return st;
	}
	k = config_find(section, key);
	if (k == CONFIG_KEY_NR) {
		const char *near = value_nearest(key, option_name, (void *)(uintptr_t)section);

		return err_set(e, SHARD_BAD_ARG, "%s: [%s] %.64s = %.64s: unknown key: %s%s", where, section, key, value,
			       near ? "did you mean " : "`shardd --help` lists them", near ? near : "");
	}
	if (line > 0 && l->file_line[k] > 0)
		return err_set(e, SHARD_BAD_ARG, "%s: [%s] %s = %.64s: %s is there already, in line %u", where, section, key, value,
			       key, l->file_line[k]);
	st = config_set(l->c, k, value, &why);
	if (st != SHARD_OK)
		return err_set(e, st, "%s: [%s] %s = %.100s: %.300s", where, section, key, value, why.text);
	snprintf(l->where[k], sizeof(l->where[k]), "%s", where);
	if (line > 0)
		l->file_line[k] = line;
	return SHARD_OK;
}

static void config_defaults(struct config_loader *l)
{
	*l->c = (struct config){.nodes_nr = 0};
	for (int k = 0; k < CONFIG_KEY_NR; k++) {
		const struct config_option *o = config_option((enum config_key)k);

		snprintf(l->where[k], sizeof(l->where[k]), "default");
		CHECK(!o->fallback[0] || config_set(l->c, (enum config_key)k, o->fallback, NULL) == SHARD_OK);
	}
}

/* Those that libshard and shardctl read. */
static const char *const client_variables[] = {"SHARD_ADDRESS", "SHARD_DAEMON", "SHARD_GUARD", "SHARD_SECRET"};

static void note_unknown(struct config *c, const char *name, size_t n)
{
	size_t used = strlen(c->unknown);

	for (size_t i = 0; i < NR(client_variables); i++)
		if (strlen(client_variables[i]) == n && memcmp(client_variables[i], name, n) == 0)
			return;
	if (used + n + 3 < sizeof(c->unknown))
		snprintf(c->unknown + used, sizeof(c->unknown) - used, "%s%.*s", used > 0 ? ", " : "", (int)n, name);
}

/* "SHARD_LOG_LEVEL" → "daemon", "log_level"; "SHARD_NET_TRANSPORT" → "net", "transport". Others are the client's or nobody's. */
static enum config_key find_variable(const char *name, size_t n)
{
	for (int k = 0; k < CONFIG_KEY_NR; k++) {
		const struct config_option *o = config_option((enum config_key)k);
		char want[80];

		snprintf(want, sizeof(want), "SHARD_%s%s%s", strcmp(o->section, "daemon") == 0 ? "" : o->section,
			 strcmp(o->section, "daemon") == 0 ? "" : "_", o->key);
		for (char *p = want; *p; p++)
			if (*p >= 'a' && *p <= 'z')
				*p = (char)(*p - 'a' + 'A');
		if (strlen(want) == n && memcmp(want, name, n) == 0)
			return (enum config_key)k;
	}
	return CONFIG_KEY_NR;
}

static enum shard_status put_environment(struct config_loader *l, const char *const *env, struct err *e)
{
	for (; env && *env; env++) {
		const char *equals = strchr(*env, '=');
		enum shard_status st;
		enum config_key k;
		char where[64];

		if (strncmp(*env, "SHARD_", 6) != 0 || !equals)
			continue;
		k = find_variable(*env, (size_t)(equals - *env));
		if (k == CONFIG_KEY_NR) {
			note_unknown(l->c, *env, (size_t)(equals - *env));
			continue;
		}
		snprintf(where, sizeof(where), "%.*s in the environment", (int)(equals - *env), *env);
		st = config_put(l, where, 0, config_option(k)->section, config_option(k)->key, equals + 1, e);
		if (st != SHARD_OK)
			return st;
	}
	return SHARD_OK;
}

static enum shard_status put_command_line(struct config_loader *l, const char *text, struct err *e)
{
	const char *dot = strchr(text, '.'), *equals = dot ? strchr(dot, '=') : NULL;
	char section[64], key[CONFIG_NAME_BYTES + 1], where[CONFIG_WHERE_BYTES];

	if (!equals || dot == text || equals == dot + 1 || (size_t)(dot - text) >= sizeof(section) ||
	    (size_t)(equals - dot - 1) >= sizeof(key))
		return err_set(e, SHARD_BAD_ARG, "command line: %.100s: write section.key=value, as in net.transport=tcp", text);
	snprintf(section, sizeof(section), "%.*s", (int)(dot - text), text);
	snprintf(key, sizeof(key), "%.*s", (int)(equals - dot - 1), dot + 1);
	snprintf(where, sizeof(where), "command line");
	return config_put(l, where, 0, section, key, equals + 1, e);
}

static enum shard_status read_file(struct config_loader *l, const char *path, bool must, struct err *e)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	enum shard_status st = SHARD_OK;
	struct stat info;
	char *text;
	ssize_t n = 0, got = 0;

	if (fd < 0)
		return errno == ENOENT && !must ? SHARD_OK
						: err_set(e, SHARD_SYSTEM, "%s: cannot be opened: %s", path, strerror(errno));
	if (fstat(fd, &info) != 0 || S_ISDIR(info.st_mode)) {
		close(fd);
		return err_set(e, SHARD_SYSTEM, "%s: not a file", path);
	}
	text = malloc(CONFIG_FILE_MAX + 1);
	if (!text)
		st = err_set(e, SHARD_SYSTEM, "%s: no memory to read it", path);
	while (text && got <= CONFIG_FILE_MAX && (n = read(fd, text + got, CONFIG_FILE_MAX + 1 - (size_t)got)) > 0)
		got += n;
	if (st == SHARD_OK && n < 0)
		st = err_set(e, SHARD_SYSTEM, "%s: cannot be read: %s", path, strerror(errno));
	else if (st == SHARD_OK && got > CONFIG_FILE_MAX)
		st = err_set(e, SHARD_BAD_ARG, "%s: larger than 1 MiB: this is no configuration", path);
	else if (st == SHARD_OK)
		st = config_read(l, path, text, (size_t)got, e);
	free(text);
	close(fd);
	return st;
}

/* The secret that the service manager hands over, before all else: who names another wins. The unit's word for "there is none" counts as
 * that, and so does a blank file. What else is in it is looked at when it is used. */
static enum shard_status put_credential(struct config_loader *l, const char *const *env, struct err *e)
{
	static const char variable[] = "CREDENTIALS_DIRECTORY=";
	char path[CONFIG_PATH_BYTES], text[8] = "";
	FILE *f;

	while (env && *env && strncmp(*env, variable, sizeof(variable) - 1) != 0)
		env++;
	if (!env || !*env ||
	    snprintf(path, sizeof(path), "%s/" CONFIG_CREDENTIAL, *env + sizeof(variable) - 1) >= (int)sizeof(path))
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
	return config_put(l, "credential " CONFIG_CREDENTIAL, 0, "cluster", "secret", "${CREDENTIALS_DIRECTORY}/" CONFIG_CREDENTIAL,
			  e);
}

enum shard_status config_load_into(struct config_loader *l, const struct config_args *args, struct err *e)
{
	enum shard_status st;

	config_defaults(l);
	st = put_credential(l, args->environ_, e);
	if (st == SHARD_OK)
		st = read_file(l, args->file ? args->file : CONFIG_FILE, args->file != NULL, e);
	if (st == SHARD_OK)
		st = put_environment(l, args->environ_, e);
	for (uint32_t i = 0; st == SHARD_OK && i < args->set_nr; i++)
		st = put_command_line(l, args->set[i], e);
	if (st == SHARD_OK)
		st = config_finish(l, e);
	if (st != SHARD_OK)
		config_free(l->c);
	return st;
}

enum shard_status config_load(struct config *c, const struct config_args *args, struct err *e)
{
	struct config_loader l = {.c = c};

	return config_load_into(&l, args, e);
}

enum shard_status config_load_text(struct config *c, const char *name, const char *text, size_t bytes, struct err *e)
{
	struct config_loader l = {.c = c};
	enum shard_status st;

	config_defaults(&l);
	st = config_read(&l, name, text, bytes, e);
	if (st == SHARD_OK)
		st = config_finish(&l, e);
	if (st != SHARD_OK)
		config_free(c);
	return st;
}

void config_free(struct config *c)
{
	for (uint32_t i = 0; i < c->models_nr; i++)
		free(c->model[i].settings), free(c->model[i].origins);
	free(c->model);
	c->model = NULL;
	c->models_nr = 0;
}

const struct config_model *config_model(const struct config *c, const char *name, const char *group)
{
	return find_model(c, name, group);
}
