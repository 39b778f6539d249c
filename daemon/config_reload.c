/* SPDX-License-Identifier: Apache-2.0 */
/* The configuration once more, while the daemon runs. main.c calls it on SIGHUP. Happy path: everything is loaded anew beside what is in
 * use, as at a start; each option that differs is taken over if its row says so, else named, for the next start would bring it. Fails as
 * config_load() does, and then nothing has changed. */
#include "config_parts.h"

#include "base/check.h"

#include <string.h>

static void name_it(char *list, const char *section, const char *key)
{
	size_t used = strlen(list);

	snprintf(list + used, CONFIG_UNKNOWN_BYTES - used, "%s%s%s%s", used ? ", " : "", section, key[0] ? "." : "", key);
}

static void take(struct config *c, const struct config *fresh, enum config_key key)
{
	const struct config_option *o = config_option(key);
	size_t at = o->offset;

	switch (o->type) { /* of the kinds that are reloadable; a row of another needs its case */
	case CONFIG_COUNT:
	case CONFIG_CHOICE:
		memcpy((char *)c + at, (const char *)fresh + at, sizeof(uint32_t));
		return;
	case CONFIG_NAME:
	case CONFIG_PATH:
	case CONFIG_ADDRESS:
	case CONFIG_ADDRESS_OR_OFF:
	case CONFIG_BYTES_OR_AUTO:
	case CONFIG_DURATION:
	case CONFIG_COUNT_OR_AUTO:
	case CONFIG_INDEX_OR_AUTO:
	case CONFIG_BOOL:
	case CONFIG_OCTAL:
		break;
	}
	CHECK(!"a reloadable option without a case");
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

		if (strcmp(m->name, n->name) != 0 || strcmp(m->group, n->group) != 0 || strcmp(m->settings, n->settings) != 0)
			return true;
	}
	return false;
}

enum shard_status config_reload(struct config *c, const struct config_args *args, struct config_changes *what, struct err *e)
{
	char old[CONFIG_PATH_BYTES], new[CONFIG_PATH_BYTES];
	struct config fresh;
	enum shard_status st;

	*what = (struct config_changes){.taken = ""};
	st = config_load(&fresh, args, e);
	if (st != SHARD_OK)
		return st;
	for (int i = 0; i < CONFIG_KEY_NR; i++) {
		const struct config_option *o = config_option((enum config_key)i);

		config_get(c, (enum config_key)i, old, sizeof(old));
		config_get(&fresh, (enum config_key)i, new, sizeof(new));
		if (strcmp(old, new) == 0)
			continue;
		name_it(o->reloadable ? what->taken : what->left, o->section, o->key);
		if (o->reloadable)
			take(c, &fresh, (enum config_key)i);
	}
	if (nodes_differ(c, &fresh))
		name_it(what->left, "[nodes]", "");
	if (models_differ(c, &fresh)) {
		struct config_model *model = c->model;
		uint32_t models_nr = c->models_nr;

		name_it(what->taken, "[model]", "");
		c->model = fresh.model;
		c->models_nr = fresh.models_nr;
		fresh.model = model;
		fresh.models_nr = models_nr;
	}
	config_free(&fresh);
	return SHARD_OK;
}
