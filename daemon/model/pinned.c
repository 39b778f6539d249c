// SPDX-License-Identifier: Apache-2.0
/* The list of memory that drivers hold, in server.anew.pinned. make.c adds to it when it frees a
 * model, and the end of the server empties it. Happy path: it is empty. Without memory for an entry
 * the memory is left where it is all the same, and only forgotten. */
#include "model/pinned.h"

#include "model/model.h"

#include <stdlib.h>

struct pinned { /* In server.anew.pinned. */
	struct list link;
	struct store *memory;
	bool hangs;
};

void pinned_keep(struct model *m, struct store **memory, bool hangs)
{
	struct server *s = m->server;
	struct pinned *p = malloc(sizeof(*p));

	log_line(s->log, LOG_LEVEL_ERROR, "event=gpu_holds_memory model=%s bytes=%lu why=%s",
		 m->name, (unsigned long)m->need.total,
		 "the driver of a GPU that failed does not let go of it: it counts until shardd "
		 "starts again");
	budget_stay(&s->budget, &m->need);
	if (p != NULL) {
		p->memory = *memory;
		p->hangs = hangs;
		list_push(&s->anew.pinned, &p->link);
	}
	*memory = NULL;
}

void pinned_free(struct server *s)
{
	while (!list_empty(&s->anew.pinned)) {
		struct pinned *p = list_of(s->anew.pinned.next, struct pinned, link);

		list_remove(&p->link);
		if (!p->hangs)
			store_free(&p->memory);
		free(p);
	}
}
