// SPDX-License-Identifier: Apache-2.0
/* note.c: writes the worlds of a model to the log, and who leaves it because links between nodes
 * are lost, and says to trainers who came and left. model.c calls note_world() and note_change()
 * when an attempt begins, while the model still holds the world before. Happy path: one line of
 * key=value for each change. Nothing can fail. A world with more runs of nodes than a line has room
 * for is cut off. */
#include "model/note.h"

#include "model/model.h"
#include "server.h"

#include <stdio.h>
#include <string.h>

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

static bool has(const struct core_world *w, const struct core_rank *r)
{
	for (uint32_t i = 0; i < w->size; i++)
		if (w->rank[i].node == r->node && w->rank[i].session == r->session)
			return true;
	return false;
}

/* Names the ranks of a world that are not in the other one. */
static void note_ranks(struct model *m, const struct core_world *w, const struct core_world *other,
		       const char *what)
{
	enum { NAMES_MAX = 3 };
	char *text = m->why;
	uint32_t nr = 0;

	for (uint32_t r = 0; r < w->size; r++) {
		size_t used = strlen(text);

		if (has(other, &w->rank[r]) || nr++ >= NAMES_MAX)
			continue;
		snprintf(text + used, sizeof(m->why) - used, "%srank %u (pid %u, node %s)",
			 used > 0 ? ", " : "", r, w->rank[r].pid,
			 members_name(m->server, w->rank[r].node));
	}
	if (nr > NAMES_MAX)
		snprintf(text + strlen(text), sizeof(m->why) - strlen(text), " and %u more",
			 nr - NAMES_MAX);
	if (nr > 0)
		snprintf(text + strlen(text), sizeof(m->why) - strlen(text), " %s", what);
}

void note_change(struct model *m, const struct core_world *w)
{
	if (m->why[0] != 0 || m->attempt.world.size == 0)
		return;
	note_ranks(m, &m->attempt.world, w, "left");
	note_ranks(m, w, &m->attempt.world, "joined");
}

bool note_left(const char *why)
{
	static const char end[] = " " CORE_LEFT;
	size_t n = strlen(why);

	return n >= sizeof(end) - 1 && strcmp(why + n - (sizeof(end) - 1), end) == 0;
}

void note_cut(struct model *m, const struct core_action *a)
{
	log_line(m->server->log, LOG_LEVEL_WARN, "event=member_cut_off model=%s node=%s why=%s",
		 m->name, members_name(m->server, a->node), a->why);
}
