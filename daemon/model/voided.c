// SPDX-License-Identifier: Apache-2.0
/* The list of models whose copy here is lost, in server.anew.voided. resume.c and devices.c add to
 * it, make.c takes the text when it makes the model again, and other nodes hear it with the link of
 * the model. Happy path: the list is empty. An entry that there is no memory for is left out. */
#include "model/voided.h"

#include "node/state.h"

#include <stdlib.h>
#include <string.h>

struct voided {
	struct list link; /* In server.anew.voided. */
	uint32_t model;
	char *why;
	uint64_t most; /* The newest step of its file that counts. */
};

static struct voided *find(const struct server *s, uint32_t model)
{
	list_each(it, (struct list *)(uintptr_t)&s->anew.voided)
		if (list_of(it, struct voided, link)->model == model)
			return list_of(it, struct voided, link);
	return NULL;
}

char *voided_why(struct server *s, uint32_t model)
{
	struct voided *v = find(s, model);
	char *why = v != NULL ? v->why : NULL;

	if (v != NULL)
		list_remove(&v->link);
	free(v);
	return why;
}

void voided_add(struct server *s, uint32_t model, const char *why, uint64_t most)
{
	struct voided *v = malloc(sizeof(*v));

	free(voided_why(s, model));
	if (v == NULL)
		return;
	*v = (struct voided){.model = model, .why = strdup(why), .most = most};
	list_push(&s->anew.voided, &v->link);
}

const char *voided_look(const struct server *s, uint32_t model)
{
	const struct voided *v = find(s, model);

	return v != NULL && v->why != NULL ? v->why : "";
}

uint64_t voided_most(const struct server *s, uint32_t model)
{
	const struct voided *v = find(s, model);

	return v != NULL ? v->most : UINT64_MAX;
}

void voided_free(struct server *s)
{
	while (!list_empty(&s->anew.voided))
		free(voided_why(s, list_of(s->anew.voided.next, struct voided, link)->model));
}
