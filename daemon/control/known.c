/* SPDX-License-Identifier: Apache-2.0 */
/* What is known of models that this node does not have, and that the value of the membership source
 * names. control/ asks, mostly on the node that coordinates. Happy path: there is none. Otherwise
 * this node has the definition of such a model in its state folder, and define.c makes the model of
 * it. A model of which this node has no definition, or one that does not agree with the value, is
 * led by a node that has it. If none has, its name is refused until it is restored or dropped. */
#include "control/known.h"

#include "base/clock.h"
#include "model/definitions.h"
#include "model/lead.h"
#include "model/model.h"

#include <string.h>

/* NULL: there is none of that name. */
static const Shard__Kept *by_name(struct server *s, const char *name)
{
	const Shard__Kept *k;
	size_t at = 0;

	do
		k = lead_lacks(s, &at);
	while (k != NULL && strcmp(k->name, name) != 0);
	return k;
}

enum shard_status known_may_define(struct server *s, const char *name, struct err *e)
{
	const Shard__Kept *k = by_name(s, name);
	const char *why;

	if (k == NULL)
		return SHARD_OK;
	/* A node that has it says so as soon as it is linked, and leads then. */
	if (clock_ns() < lead_since(s) + s->conf->heartbeat_timeout_ns)
		return err_set(e, SHARD_BUSY,
			       "node %s coordinates and does not know yet who has \"%s\"",
			       members_name(s, s->self), name);
	why = definitions_trouble(s, k->model);
	return err_set(e, SHARD_LOST,
		       "\"%s\" was LOST: no node that is up has its memory%s%.250s. Start a node "
		       "that has it, restore it from a checkpoint, or drop it with --force",
		       name, why[0] ? ", and " : "", why);
}

void known_forget(struct server *s, const char *name, void (*done)(void *arg, const struct err *e),
		  void *arg)
{
	const Shard__Kept *k = by_name(s, name);

	if (k != NULL)
		lead_forget(s, k->model, done, arg);
	else if (done != NULL)
		done(arg, NULL);
}

bool known_elsewhere(struct server *s, uint32_t model)
{
	const Shard__Kept *k;
	size_t at = 0;

	do
		k = lead_lacks(s, &at);
	while (k != NULL && k->model != model);
	if (k != NULL && !definitions_has(s, model))
		lead_resign(s, "another node has a model that this one does not know");
	return k != NULL;
}

uint32_t known_next(struct server *s, uint32_t before)
{
	uint32_t id = before;

	while ((id = definitions_next(s, id)) != 0)
		if (model_find(s, id) == NULL && model_making(s, id) == NULL)
			return id;
	return 0;
}
