/* SPDX-License-Identifier: Apache-2.0 */
/* A DEFINE on a node that does not coordinate. define.c hands it over, and again when it has waited
 * (define_wait.c). Happy path: the links are up, the DEFINE goes to the coordinator, and the answer
 * comes back to the trainer, with the grant to write the weights if it got that. It fails with what
 * the coordinator says, or if there is none. What passes because another node will coordinate is
 * marked, so that the library asks again. */
#include "control/define_pass.h"

#include "control/define_wait.h"
#include "link/call.h"
#include "link/peer.h"
#include "link/session.h"
#include "model/lead.h"
#include "model/model.h"
#include "model/placing.h"
#include "model/writer.h"
#include "wire/ops.h"

/* A trainer that defines a model that is not here yet will write its weights next, over the links
 * of this node. So all of them must be up. */
bool define_may_pass(struct server *s, const char *name)
{
	return lead_known(s, NULL) == SHARD_OK && s->peer[server_coordinator(s)]->up &&
	       (placing_lacks(s) == NULL || model_by_name(s, name) != NULL);
}

/* The header of the answer carries the grant to write the weights. Only nodes see it, so it is
 * taken out of the header. */
static void define_passed_on(struct server *s, const struct call *c, const struct wire_head *h,
			     const void *body, const struct err *e)
{
	struct session *t = session_find(s, c->session);
	struct model *m = h != NULL ? model_find(s, h->model) : NULL;
	struct wire_head out;
	struct err again;

	if (e == NULL) {
		out = *h;
		if (m != NULL && t != NULL && m->generation == h->generation)
			writer_granted(m, t, &out);
		h = &out;
	} else if (h == NULL && lead_on(s) && !s->peer[c->node]->up) {
		/* Another node will coordinate. A DEFINE may come twice. */
		again = *e;
		(void)err_passes(&again, again.status);
		e = &again;
	}
	call_pass_back(s, c, h, body, e);
}

static const struct call_ops define_passed = {.answered = define_passed_on};

enum shard_status define_pass(struct server *s, const struct caller *a, const Shard__Define *d,
			      bool may_wait, struct err *e)
{
	struct wire_head h = {.op = OP_DEFINE, .attempt = a->tag};
	struct session *t = session_find(s, a->session);
	enum shard_status st;

	if (t == NULL)
		return SHARD_OK;
	if (d->spec == NULL)
		return err_set(e, SHARD_PROTOCOL, "a definition without a spec");
	if (may_wait && !define_may_pass(s, d->spec->name))
		return define_wait(s, a, d, e);
	if ((st = lead_known(s, e)) != SHARD_OK)
		return st;
	if (!s->peer[server_coordinator(s)]->up) {
		st = placing_refuse(s->peer[server_coordinator(s)], d->spec->name, e);
		return lead_on(s) ? err_passes(e, st) : st;
	}
	return call_pass(t, server_coordinator(s), &h, &d->base, &define_passed, e);
}
