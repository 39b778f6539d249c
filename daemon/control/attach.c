/* SPDX-License-Identifier: Apache-2.0 */
/* ATTACH, the lookup of a model by its name. The session's own node answers with the model's
 * number, settings and whole spec, because every node has every model. dispatch.c calls
 * attach_request() and checks the permission; manage.c uses attach_find(). A name that is not known
 * fails with SHARD_NOT_FOUND, and the error lists the models that there are. If the link to the
 * coordinator is down, the error says so, because the newest models may then be missing here. Where
 * that passes by itself, the library asks again. */
#include "control/attach.h"
#include "model/spec.h"

#include "base/check.h"
#include "base/clock.h"
#include "control/unmade.h"
#include "control/define.h"
#include "model/lead.h"
#include "model/model.h"
#include "link/peer.h"
#include "link/session.h"
#include "wire/ops.h"

#include <stdio.h>

#define NAMES_MAX 5
#define TELLS_NS  (1 * NS_PER_SEC) /* Nobody takes longer to begin to tell of its models. */

static void names(const struct server *s, char *out, size_t bytes)
{
	size_t used = 0;
	uint32_t nr = 0;

	CHECK(bytes > 0);
	out[0] = 0;
	list_each(it, (struct list *)(uintptr_t)&s->models) {
		const struct model *m = list_of(it, struct model, link);

		if (m->defining || ++nr > NAMES_MAX || used >= bytes)
			continue;
		used += (size_t)snprintf(out + used, bytes - used, "%s\"%s\"", nr > 1 ? ", " : "",
					 m->name);
	}
	if (nr > NAMES_MAX && used < bytes)
		snprintf(out + used, bytes - used, " and %u more", nr - NAMES_MAX);
}

enum shard_status attach_find(struct model **out, struct server *s, const char *name, struct err *e)
{
	const struct peer *c = !server_leads(s) ? s->peer[server_coordinator(s)] : NULL;
	char all[400];

	*out = model_by_name(s, name);
	if (*out != NULL && !(*out)->defining)
		return SHARD_OK;
	if (*out != NULL || model_making_name(s, name) != NULL)
		return err_set(e, SHARD_NOT_FOUND,
			       "model \"%.64s\" is being made: it is not on every node yet", name);
	names(s, all, sizeof(all));
	if (c != NULL && !c->up)
		return err_set(e, SHARD_NOT_FOUND,
			       "no model \"%.64s\" on node %s, whose link to node %s (which "
			       "coordinates) is down: %.150s",
			       name, members_name(s, s->self),
			       members_name(s, server_coordinator(s)), c->why);
	return err_set(e, SHARD_NOT_FOUND, "no model \"%.64s\": %s%s", name,
		       all[0] != 0 ? "there is " : "none is defined", all);
}

/* May this node still hear of the model? It knows those that it has itself, and hears of others
 * when the link to the coordinator has come up. */
static enum shard_status may_come(struct server *s, const char *name, struct err *e)
{
	const struct peer *c = s->peer[server_coordinator(s)];
	enum shard_status st;

	if (unmade_check(s, name, e) != SHARD_OK)
		return e->status;
	if (model_by_name(s, name) != NULL || model_making_name(s, name) != NULL)
		return err_passes(e, err_set(e, SHARD_BUSY,
					     "model \"%.64s\" is being made: it is "
					     "not on every node yet",
					     name));
	if ((st = lead_known(s, e)) != SHARD_OK)
		return st;
	if (c == NULL || server_leads(s) || (!c->up && !lead_on(s)) ||
	    (c->up && clock_ns() - c->since_ns > TELLS_NS))
		return SHARD_OK;
	return err_passes(e, err_set(e, SHARD_BUSY,
				     "node %s has just begun to hear from node %s, which "
				     "coordinates, which models there are",
				     members_name(s, s->self), members_name(s, c->node)));
}

enum shard_status attach_request(struct session *t, const struct wire_head *h,
				 const ProtobufCMessage *msg, struct err *e)
{
	const Shard__Attach *body = (const Shard__Attach *)msg;
	Shard__Defined reply = SHARD__DEFINED__INIT;
	struct model *m;
	enum shard_status st = attach_find(&m, t->server, body->name, e), may;
	struct err why;

	if (st == SHARD_NOT_FOUND && (may = may_come(t->server, body->name, &why)) != SHARD_OK) {
		*e = why;
		return may;
	}
	if (st != SHARD_OK)
		return st;
	t->uses = true; /* The session is told when a model is lost or dropped. */
	spec_say(m, &reply);
	reply.spec = m->spec->spec;
	model_reply(t, OP_ATTACH, h->attempt, m, &reply.base);
	return SHARD_OK;
}
