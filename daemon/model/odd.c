// SPDX-License-Identifier: Apache-2.0
/* What the daemon does when votes for copies differ. model.c calls it with the core's actions.
 * Happy path, if one may call it so: the coordinator logs which node is wrong. That node marks the
 * model's memory, so that the next start makes it anew and fetches the copies from the others, logs
 * why, and asks for the end of the process, with exit status 1, as it happens in order. Its memory
 * or its processor is bad, so nothing that it computes can be trusted. But models are independent:
 * if another one has weights here that are nowhere else and that end with the process, the process
 * goes on, and an operator has to move them first. A model that has to go back to the step of its
 * disk, or has lost a disk, ends the process as well. It does nothing from then on, and END_NS
 * later one exit serves all models that have come to the same: a service manager counts the exits,
 * and gives the memory of all models up when there are too many. Nothing here fails. */
#include "model/odd.h"

#include "base/clock.h"
#include "model/model.h"
#include "server.h"

#include <stdio.h>
#include <unistd.h>

#define END_NS (300 * NS_PER_MS) /* What nodes say to each other of all models takes less. */

void odd_differ(struct model *m, const struct core_action *a)
{
	log_line(m->server->log, LOG_LEVEL_ERROR,
		 "event=votes_differ model=%s step=%lu attempt=%u odd=%s why=%s", m->name,
		 (unsigned long)a->id.step, a->id.attempt,
		 a->node < CORE_NODES_MAX ? members_name(m->server, a->node) : "?", a->why);
}

/* The first other model that has the only copy of a chunk here, in memory that ends with the
 * process. NULL: there is none. */
static const struct model *alone(const struct model *odd)
{
	struct server *s = odd->server;

	list_each(it, &s->models) {
		const struct model *m = list_of(it, struct model, link);

		if (m == odd || m->memory.ends || m->memory.tier_lost || !m->sealed ||
		    meta_persistent(&m->meta))
			continue;
		for (uint32_t c = 0; c < m->place.chunks_nr; c++)
			if (place_copies(&m->place, c) == 1ull << s->self)
				return m;
	}
	return NULL;
}

void odd_act(struct model *m, const struct core_action *a)
{
	struct server *s = m->server;
	const struct model *other = alone(m);

	if (meta_persistent(&m->meta))
		meta_void(&m->meta);
	log_line(s->log, LOG_LEVEL_ERROR, "event=odd model=%s step=%lu attempt=%u why=%s means=%s",
		 m->name, (unsigned long)a->id.step, a->id.attempt, a->why,
		 "the memory or a processor of this node is bad: it leaves the model, and its next "
		 "start begins without copies");
	if (other != NULL) {
		log_line(s->log, LOG_LEVEL_ERROR, "event=odd_stays model=%s other=%s why=%s",
			 m->name, other->name,
			 "this process has the only copy of chunks of the other model: save that "
			 "one, or drain this node, and then stop it");
		return;
	}
	snprintf(s->fault, sizeof(s->fault), "this node is odd in \"%s\": %.300s", m->name, a->why);
	server_wake(s, 0);
}

/* The process ends soon, unless another model would lose weights by that. */
static void end_soon(struct model *m)
{
	const struct model *other = alone(m);
	struct server *s = m->server;

	if (other != NULL) {
		log_line(s->log, LOG_LEVEL_ERROR, "event=odd_stays model=%s other=%s why=%s",
			 m->name, other->name,
			 "this process has the only copy of chunks of the other model: save that "
			 "one, or drain this node, and then stop it");
		return;
	}
	if (s->stop.on) /* It has no beats, and would wait for what is never done. */
		_exit(1);
	m->memory.ends = true;
	if (s->clock.end_ns == 0)
		s->clock.end_ns = clock_ns() + END_NS;
	server_wake(s, s->clock.end_ns);
}

void odd_beat(struct server *s, uint64_t now)
{
	if (s->clock.end_ns == 0)
		return;
	if (now >= s->clock.end_ns)
		_exit(1);
	server_wake(s, s->clock.end_ns);
}

void odd_back(struct model *m, const struct core_action *a)
{
	struct meta_mark mark = m->meta.mark;
	struct core_state core;

	core_state(m->core, &core);
	mark.load = core.committed == a->id.step ? META_LOAD_HERE : META_LOAD_BACK;
	if (meta_persistent(&m->meta))
		meta_mark(&m->meta, &mark);
	log_line(m->server->log, LOG_LEVEL_WARN,
		 "event=nvme_back model=%s step=%lu from=%lu why=%s means=%s", m->name,
		 (unsigned long)a->id.step, (unsigned long)m->record.id.step, a->why,
		 "this process ends, and the next one has that step");
	end_soon(m);
}

void odd_again(struct model *m, const struct core_action *a)
{
	log_line(m->server->log, LOG_LEVEL_WARN, "event=nvme_asks_again model=%s why=%s means=%s",
		 m->name, a->why,
		 "this process ends, and the next one asks all nodes which step they have");
	end_soon(m);
}

void odd_lost(struct model *m, const char *event, const char *what, const char *why)
{
	char means[160];

	m->memory.tier_lost = true;
	if (meta_persistent(&m->meta))
		meta_void(&m->meta);
	snprintf(means, sizeof(means),
		 "%s: it leaves the model, and its next start begins without copies", what);
	log_line(m->server->log, LOG_LEVEL_ERROR, "event=%s model=%s why=%s means=%s", event,
		 m->name, why, means);
	end_soon(m);
}
