// SPDX-License-Identifier: Apache-2.0
/* The list of models that are to be made again, in server.anew.unmade. anew.c fills it, and
 * attach.c, define.c, drop.c, manage.c and restores ask. Happy path: it is empty. Nothing here
 * fails but for want of memory. */
#include "control/unmade.h"

#include "base/check.h"
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct unmade *unmade_find(const struct server *s, uint32_t model)
{
	list_each(it, (struct list *)(uintptr_t)&s->anew.unmade)
		if (list_of(it, struct unmade, link)->id == model)
			return list_of(it, struct unmade, link);
	return NULL;
}

struct unmade *unmade_named(const struct server *s, const char *name)
{
	list_each(it, (struct list *)(uintptr_t)&s->anew.unmade)
		if (strcmp(list_of(it, struct unmade, link)->name, name) == 0)
			return list_of(it, struct unmade, link);
	return NULL;
}

struct unmade *unmade_add(struct server *s, uint32_t model, const char *name, const char *why)
{
	struct unmade *u = unmade_find(s, model);

	if (u == NULL && (u = calloc(1, sizeof(*u))) == NULL)
		return NULL;
	if (u->id == 0)
		list_push(&s->anew.unmade, &u->link);
	CHECK(!u->busy && model != 0);
	u->id = model;
	u->trouble[0] = 0;
	u->next_ns = 0;
	snprintf(u->name, sizeof(u->name), "%s", name);
	snprintf(u->why, sizeof(u->why), "%s", why);
	return u;
}

void unmade_end(struct unmade *u)
{
	u->over = true;
	if (u->busy)
		return;
	list_remove(&u->link);
	free(u);
}

static enum shard_status check(const struct server *s, const struct unmade *u, struct err *e)
{
	const struct model *m;

	if (u == NULL || u->over)
		return SHARD_OK;
	m = model_find((struct server *)(uintptr_t)s, u->id);
	if (m != NULL && !m->defining && !m->memory.anew)
		return SHARD_OK;
	return err_passes(e, err_set(e, SHARD_BUSY,
				     "\"%s\" is being made anew on node %s, whose copy is lost "
				     "(%.250s)%s%.250s",
				     u->name, members_name(s, s->self), u->why,
				     u->trouble[0] != 0 ? ", and that fails: " : "", u->trouble));
}

enum shard_status unmade_check(const struct server *s, const char *name, struct err *e)
{
	return check(s, unmade_named(s, name), e);
}

enum shard_status unmade_check_number(const struct server *s, uint32_t model, struct err *e)
{
	return check(s, unmade_find(s, model), e);
}

const char *unmade_trouble(const struct server *s)
{
	list_each(it, (struct list *)(uintptr_t)&s->anew.unmade)
		if (list_of(it, struct unmade, link)->trouble[0] != 0)
			return list_of(it, struct unmade, link)->trouble;
	return "";
}

void unmade_free(struct server *s)
{
	list_each(it, &s->anew.unmade) {
		struct unmade *u = list_of(it, struct unmade, link);

		CHECK(!u->busy);
		unmade_end(u);
	}
}
