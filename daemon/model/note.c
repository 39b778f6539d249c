// SPDX-License-Identifier: Apache-2.0
/* note.c: writes the worlds of a model to the log, and who leaves it because links between nodes
 * are lost. model.c calls note_world() when an attempt begins, while the model still holds the
 * world before. Happy path: one line of key=value for each change. Nothing can fail. A world with
 * more runs of nodes than a line has room for is cut off. */
#include "model/note.h"

#include "model/model.h"
#include "server.h"

#include <stdio.h>

void note_world(const struct model *m, const struct core_world *w)
{
	bool same = m->attempt.world.size == w->size;
	char nodes[512] = "";
	size_t used = 0;

	for (uint32_t r = 0; r < w->size && same; r++)
		same = m->attempt.world.rank[r].node == w->rank[r].node &&
		       m->attempt.world.rank[r].session == w->rank[r].session;
	if (same)
		return;
	for (uint32_t r = 0, run; r < w->size && used < sizeof(nodes); r += run) {
		for (run = 1; r + run < w->size && w->rank[r + run].node == w->rank[r].node;)
			run++;
		used += (size_t)snprintf(nodes + used, sizeof(nodes) - used, "%s%s:%u",
					 r ? "," : "", members_name(m->server, w->rank[r].node),
					 run);
	}
	log_line(m->server->log, LOG_LEVEL_INFO,
		 "event=world model=%s step=%lu attempt=%u size=%u before=%u nodes=%s", m->name,
		 (unsigned long)m->attempt.id.step, m->attempt.id.attempt, w->size,
		 m->attempt.world.size, nodes);
}

void note_cut(struct model *m, const struct core_action *a)
{
	log_line(m->server->log, LOG_LEVEL_WARN, "event=member_cut_off model=%s node=%s why=%s",
		 m->name, members_name(m->server, a->node), a->why);
}
