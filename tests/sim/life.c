/* SPDX-License-Identifier: Apache-2.0 */
/* How a simulated daemon starts and dies. Its memory may outlive it: masters, staged gradients, and what the core saved in two buffers
 * of which one counts. Then it starts as the member that it was (core/warm.h), else as a new one without copies. Everything else is of
 * the process: links, trainers, image, workers, what is on its way. */
#include "sim/sim.h"

#include <stdlib.h>
#include <string.h>

static const char *const names[NODES] = {"a", "b", "c", "d"};

static struct core_conf node_conf(const struct sim *s, uint16_t n)
{
	struct core_conf conf = {.self = n,
				 .nodes_nr = s->nodes_nr,
				 .coordinator = 0,
				 .incarnation = s->node[n].incarnation,
				 .term = s->node[n].starts,
				 .chunks_nr = s->chunks_nr,
				 .owner = s->owner,
				 .node_names = names,
				 .min_world = s->min_world,
				 .max_world = s->max_world,
				 .step_timeout_ns = 4 * SEC,
				 .heartbeat_timeout_ns = AWAY_NS,
				 .repeat_ns = 30 * MS};

	conf.record = (struct record_conf){.optim = optim_row(OPTIM_ADAMW),
					   .groups_nr = 1,
					   .clip = 1,
					   .dynamic_scale = s->fp16,
					   .initial_scale = s->fp16 ? 65536 : 1,
					   .min_scale = 0x1p-40,
					   .scale_window = 4,
					   .hysteresis = 2,
					   .max_skips = s->max_skips};
	conf.record.lr_factor[0] = 1;
	optim_defaults(conf.record.optim, conf.record.hyper[0]);
	return conf;
}

static void *room(size_t bytes)
{
	void *p = aligned_alloc(64, (bytes + 63) & ~(size_t)63);

	CHECK(p);
	memset(p, 0, bytes);
	return p;
}

void node_free(struct sim_node *nd)
{
	free(nd->memory);
	free(nd->parked[0]);
	free(nd->parked[1]);
}

/* Into the buffer that does not count, which then does. torn: the process dies in the middle of it. */
void node_save(struct sim_node *nd, bool torn)
{
	void *idle = nd->parked[1 - nd->parked_at];

	if (!core_warm_save(nd->core, idle))
		return;
	if (torn)
		memset((char *)idle + 64, 0xa5, 64);
	else
		nd->parked_at = 1 - nd->parked_at;
}

/* What the shell knows of its own parked memory, set right by what the core was about to have done. */
static void node_warm(struct sim *s, uint16_t n)
{
	struct sim_node *nd = &s->node[n];
	struct core_event warm = {.type = CORE_EV_WARM};
	struct core_state st;

	core_state(nd->core, &st);
	if (nd->generation != st.generation) { /* it was LOST, or there is no view yet */
		memset(nd->written, 0, sizeof(nd->written));
		memset(nd->version, 0, sizeof(nd->version));
		nd->generation = st.generation;
	}
	if (st.part != CORE_FREE) {
		nd->id = st.id;
		nd->world = *st.world;
		nd->running = st.part == CORE_PREPARED;
	}
	nd->warming = true;
	node_event(s, n, &warm);
	nd->warming = false;
}

void node_start(struct sim *s, uint16_t n)
{
	struct sim_node *nd = &s->node[n];
	bool warm = nd->whole;
	struct core_conf conf;

	nd->starts++;
	if (!warm)
		nd->member = nd->starts;
	if (!warm)
		nd->incarnation = nd->starts;
	conf = node_conf(s, n);
	free(nd->memory);
	nd->memory = room(core_bytes(&conf));
	for (uint32_t i = 0; i < 2 && !warm; i++) {
		free(nd->parked[i]);
		nd->parked[i] = room(core_warm_bytes(&conf));
	}
	nd->alive = true;
	nd->whole = false;
	nd->core = core_init(nd->memory, &conf, nd->has_disk ? &nd->disk : NULL, warm ? nd->parked[nd->parked_at] : NULL);
	sim_trace(s, "n%u STARTS%s incarnation %llu term %llu", n, warm ? " WARM" : "", (unsigned long long)nd->incarnation,
		  (unsigned long long)nd->starts);
	if (!nd->core)
		sim_fail(s, "warm_whole", "n%u: what it saved is refused", n);
	if (warm)
		truth_same(s, n);
	node_save(nd, false);
	truth_seen(s, n);
	for (uint16_t i = 0; i < s->nodes_nr; i++) {
		if (i != n)
			link_break(s, n, i);
		if (n == 0)
			s->node[i].away_since = s->now;
	}
	if (warm)
		node_warm(s, n);
	if (n == 0 && nd->alive)
		orders_started(s);
	if (nd->alive)
		shell_timer(s, n);
}

static void node_keep(struct sim_node *nd, const struct sim_node *was)
{
	nd->whole = true;
	nd->generation = was->generation;
	nd->id = was->id;
	nd->world = was->world;
	memcpy(nd->slot, was->slot, sizeof(nd->slot));
	memcpy(nd->sum, was->sum, sizeof(nd->sum));
	memcpy(nd->written, was->written, sizeof(nd->written));
	memcpy(nd->version, was->version, sizeof(nd->version));
	memcpy(nd->weights, was->weights, sizeof(nd->weights));
	memcpy(nd->image, was->version, sizeof(nd->image));
}

void node_crash(struct sim *s, uint16_t n, bool whole)
{
	struct sim_node *nd = &s->node[n], was = *nd;

	sim_trace(s, "n%u CRASHES%s", n, whole ? ", its memory does not" : "");
	s->restarts++;
	s->warms += whole;
	if (n == 0)
		orders_crashed(s);
	if (nd->persisting && sim_chance(s, 500)) { /* the write may have reached the disk without anybody having heard */
		was.disk = nd->pending;
		was.has_disk = true;
		truth_durable(s, &was.disk);
	}
	for (uint32_t t = 0; t < s->trainers_nr; t++) {
		if (s->trainer[t].state != TR_DEAD && s->trainer[t].node == n)
			trainer_closed(s, n, s->trainer[t].session, "daemon");
	}
	memset(nd, 0, sizeof(*nd));
	nd->incarnation = was.incarnation;
	nd->member = was.member;
	nd->starts = was.starts;
	nd->memory = was.memory;
	nd->parked[0] = was.parked[0];
	nd->parked[1] = was.parked[1];
	nd->parked_at = was.parked_at;
	nd->seen = was.seen;
	nd->has_disk = was.has_disk;
	nd->disk = was.disk;
	nd->prepared = was.prepared;
	nd->away_since = was.away_since;
	if (whole)
		node_keep(nd, &was);
	for (uint16_t i = 0; i < s->nodes_nr; i++) {
		if (i != n)
			link_break(s, n, i);
	}
}
