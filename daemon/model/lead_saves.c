/* SPDX-License-Identifier: Apache-2.0 */
/* What an elected coordinator makes durable: the views of its models, and the list of nodes once a
 * node has joined. view_file.c and control/admit.c bring it, and lead.c proposes it, all that has
 * come as one value. */
#include "model/lead_impl.h"

#include "base/check.h"
#include "link/nodes.h"
#include "model/register.h"

#include <stdlib.h>
#include <string.h>

bool lead_put_waiting(struct lead *l)
{
	list_each(it, &l->waiting) {
		const struct lead_save *v = list_of(it, struct lead_save, link);

		if (v->nodes ? !register_put_nodes(l->next, v->file, v->bytes)
			     : !register_put(l->next, v->model, v->file, v->bytes))
			return false;
	}
	return true;
}

struct lead_save *lead_save_new(uint32_t model, const void *file, size_t bytes)
{
	struct lead_save *v = calloc(1, sizeof(*v));

	if (v == NULL)
		return NULL;
	v->model = model;
	if (file == NULL || register_strip(model, file, bytes, &v->file, &v->bytes))
		return v;
	free(v);
	return NULL;
}

void lead_save_file(struct server *s, uint32_t model, const void *file, size_t bytes,
		    void (*done)(void *arg, const struct err *e), void *arg)
{
	struct lead_save *v = lead_save_new(model, file, bytes);

	CHECK(v != NULL && s->lead != NULL); /* A few KiB. */
	v->done = done;
	v->arg = arg;
	list_push(&s->lead->waiting, &v->link);
	server_wake(s, 0);
}

enum shard_status lead_save_node(struct server *s, const struct config_node *more,
				 void (*done)(void *arg, const struct err *e), void *arg,
				 struct err *e)
{
	struct nodes_text *t = malloc(sizeof(*t));
	struct lead_save *v = lead_save_new(0, NULL, 0);
	Shard__Register list = SHARD__REGISTER__INIT;

	if (t != NULL && v != NULL) {
		list.n_nodes = nodes_fill(s, more, t);
		list.nodes = t->list;
		v->nodes = true;
		v->done = done;
		v->arg = arg;
		v->bytes = shard__register__get_packed_size(&list);
		v->file = malloc(v->bytes);
	}
	if (t == NULL || v == NULL || v->file == NULL) {
		free(t);
		free(v);
		return err_set(e, SHARD_SYSTEM, "no memory for the list of nodes");
	}
	shard__register__pack(&list, v->file);
	free(t);
	list_push(&s->lead->waiting, &v->link);
	server_wake(s, 0);
	return SHARD_OK;
}

bool lead_forgets(const struct list *l, uint32_t model)
{
	list_each(it, l) {
		const struct lead_save *v = list_of(it, struct lead_save, link);

		if (v->model == model && v->file == NULL && !v->nodes)
			return true;
	}
	return false;
}

bool lead_forgot(const struct server *s, uint32_t model)
{
	const struct lead *l = s->lead;

	return l != NULL && l->term != 0 && l->value != NULL &&
	       register_of(l->value, model) == NULL;
}

bool lead_unanswered(const struct server *s)
{
	return s->lead != NULL && s->lead->again;
}
