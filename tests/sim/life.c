/* SPDX-License-Identifier: Apache-2.0 */
/* How a simulated daemon starts and dies. fault.c and shell.c call it. A daemon's memory may
 * outlive it: the masters, the staged gradients, and what the core saved in two buffers, of which
 * one is valid. The daemon then starts as the member that it was (core/warm.h). Otherwise it starts
 * as a new member without copies. Links, trainers, image, workers and what is on its way belong to
 * the process and go with it. */
#include "sim/sim.h"

#include "core/inner.h"

#include <stdlib.h>
#include <string.h>

/* Those of slots without a name are nodes that come later, if any do. */
static const char *const names[CORE_NODES_MAX] = {"a", "b", "c", "d", "e", "f"};

struct view_node shell_who(struct sim *s, uint16_t slot)
{
	const struct shell *sh = shell_of(s, slot);
	struct view_node who = {.uuid = {(uint8_t)(1 + s->node[slot].self)},
				.incarnation = sh->incarnation};

	memcpy(who.uuid + 1, &sh->folder, sizeof(sh->folder));
	return who;
}

static struct core_conf node_conf(struct sim *s, uint16_t n, const struct placement *place)
{
	struct core_conf conf = {.self = n,
				 .members = view_first(s->first_nr, s->elected ? 0 : s->lead),
				 .who = shell_who(s, n),
				 .term = s->node[n].starts,
				 .elected = s->elected,
				 .chunks_nr = s->m->chunks_nr,
				 .place = *place,
				 .node_names = names,
				 .min_copies = 1,
				 .min_world = s->m->min_world,
				 .max_world = s->m->max_world,
				 .step_timeout_ns = STEP_NS,
				 .straggler_timeout_ns = s->m->straggler_ns,
				 .lost_timeout_ns = AWAY_NS,
				 .heartbeat_timeout_ns = SILENT_NS,
				 .reconnect_ns = RECONNECT_NS,
				 .repeat_ns = 30 * MS};

	conf.slots = joins_slots(s, n);
	conf.record = s->m->conf;
	conf.place.learns = conf.place.moves = conf.place.gone = 0;
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
	for (uint32_t i = 0; i < MODELS; i++) {
		free(nd->shell[i].memory);
		free(nd->shell[i].parked[0]);
		free(nd->shell[i].parked[1]);
	}
}

/* Saves into the buffer that is not valid, which then becomes the valid one. torn: the process dies
 * in the middle of it. */
void node_save(struct shell *sh, bool torn)
{
	void *idle = sh->parked[1 - sh->parked_at];

	if (!core_warm_save(sh->core, idle))
		return;
	if (torn) {
		memset((char *)idle + 64, 0xa5, 64);
		return;
	}
	sh->parked_at = 1 - sh->parked_at;
	sh->parked_place[sh->parked_at] = sh->core->member.place;
}

/* What the shell knows of its own parked memory, set right by what the core was about to have done.
 */
static void shell_warm(struct sim *s, uint16_t n)
{
	struct shell *sh = shell_of(s, n);
	struct core_event warm = {.type = CORE_EV_WARM};
	struct core_state st;

	core_state(sh->core, &st);
	if (sh->generation != st.generation) { /* The model was LOST, or there is no view yet. */
		memset(sh->written, 0, sizeof(sh->written));
		memset(sh->version, 0, sizeof(sh->version));
		sh->generation = st.generation;
	}
	if (!st.sealed && sh->loading && !sh->confirmed) /* how far it came is not known */
		load_forget(s, n);
	if (st.part != CORE_FREE) {
		sh->id = st.id;
		sh->world = *st.world;
		sh->running = st.part == CORE_PREPARED;
	}
	sh->warming = true;
	node_event(s, n, &warm);
	shell_of(s, n)->warming = false;
}

static void shell_keep(struct shell *sh, const struct shell *was)
{
	sh->generation = was->generation;
	sh->id = was->id;
	sh->world = was->world;
	memcpy(sh->slot, was->slot, sizeof(sh->slot));
	memcpy(sh->sum, was->sum, sizeof(sh->sum));
	memcpy(sh->arrived, was->arrived, sizeof(sh->arrived));
	memcpy(sh->reduced, was->reduced, sizeof(sh->reduced));
	sh->loading = was->loading;
	sh->confirmed = was->confirmed;
	memcpy(sh->written, was->written, sizeof(sh->written));
	memcpy(sh->version, was->version, sizeof(sh->version));
	memcpy(sh->weights, was->weights, sizeof(sh->weights));
	memcpy(sh->image, was->version, sizeof(sh->image));
}

/* Resets it to what is on the disk, in the parked buffers, and known to the checkers. */
static void shell_reset(struct shell *sh)
{
	struct shell was = *sh;

	memset(sh, 0, sizeof(*sh));
	sh->incarnation = was.incarnation;
	sh->member = was.member;
	sh->folder = was.folder;
	sh->memory = was.memory;
	sh->parked[0] = was.parked[0];
	sh->parked[1] = was.parked[1];
	sh->parked_at = was.parked_at;
	memcpy(sh->parked_place, was.parked_place, sizeof(sh->parked_place));
	sh->seen = was.seen;
	sh->has_disk = was.has_disk;
	sh->disk = was.disk;
	sh->prepared = was.prepared;
	sh->lied = was.lied;
	sh->term_promised = was.term_promised;
}

static void shell_tear(struct sim *s,
		       struct shell *sh) /* Somebody wrote into the memory of one model. */
{
	sh->torn = true;
	for (uint32_t i = 0; i < 2; i++)
		memset((char *)sh->parked[i] + 64, 0x5a, 64);
	sim_trace(s, "the memory of model %u is torn", s->m->index);
}

static void shell_crash(struct sim *s, uint16_t n, bool whole)
{
	struct shell *sh = shell_of(s, n), was;

	if (n == s->lead)
		orders_crashed(s);
	if (sh->persisting && n != ZOMBIE && !s->elected &&
	    sim_chance(
		    s,
		    500)) { /* The write may have reached the disk without anybody having heard. */
		sh->disk = sh->pending;
		sh->has_disk = true;
		truth_durable(s, &sh->disk);
	}
	for (uint32_t t = 0; t < s->m->trainers_nr; t++) {
		if (s->m->trainer[t].state != TR_DEAD && s->m->trainer[t].node == n)
			trainer_closed(s, n, s->m->trainer[t].session, "daemon");
	}
	was = *sh;
	shell_reset(sh);
	/* A zombie would still commit in the view that the checkers take for undone. */
	if (n == s->lead && s->faults && s->m->copy.term && sim_chance(s, s->put_back) &&
	    !s->node[ZOMBIE].alive) {
		sim_trace(s, "n%u: an old view is put back: %llu.%u for %llu.%u", n,
			  (unsigned long long)s->m->copy.term, s->m->copy.seq,
			  (unsigned long long)sh->disk.term, sh->disk.seq);
		sh->disk = s->m->copy;
		truth_put_back(s, &sh->disk);
	}
	odd_crashed(s, n);
	if (whole)
		shell_keep(sh, &was);
	if (whole && was.odd)
		shell_tear(s, sh);
	if (whole && s->faults && s->models_nr > 1 && sim_chance(s, 60))
		shell_tear(s, sh);
}

/* Damaged memory of one model voids that model alone. */
static void shell_start(struct sim *s, uint16_t n, bool warm)
{
	struct shell *sh = shell_of(s, n);
	struct core_conf conf;
	/* Somebody tore it, or put an older view beside it. Or it was catching up, and nobody knows
	 * how far it came. */
	bool void_ = sh->torn || (s->m->put_back && n == s->lead) || sh->seen.learns >> n & 1;

	sh->torn = false;
	sh->cold = !warm;
	if (sh->cold) {
		sh->member = sh->incarnation = s->node[n].starts;
		sh->folder = s->node[n].folder;
		sh->term_promised = 0; /* it is another member */
	}
	conf = node_conf(s, n, warm ? &sh->parked_place[sh->parked_at] : &s->m->place);
	sh->place = conf.place;
	sh->place.gone = ~conf.members.nodes;
	for (uint32_t c = 0; c < s->m->chunks_nr; c++)
		sh->written[c] = sh->written[c] && shell_keeps(s, n, c);
	free(sh->memory);
	sh->memory = room(core_bytes(&conf));
	for (uint32_t i = 0; i < 2 && sh->cold; i++) {
		free(sh->parked[i]);
		sh->parked[i] = room(core_warm_bytes(&conf));
	}
	sh->core = core_init(sh->memory, &conf, sh->has_disk && !s->elected ? &sh->disk : NULL,
			     warm ? sh->parked[sh->parked_at] : NULL);
	if (!sh->core && warm && void_) {
		sim_trace(s, "n%u finds no memory of model %u that can be", n, s->m->index);
		shell_reset(sh);
		shell_start(s, n, false);
		return;
	}
	if (!sh->core)
		sim_fail(s, "warm_whole", "n%u: what it saved is refused", n);
	if (warm)
		truth_same(s, n);
	node_save(sh, false);
	truth_seen(s, n);
}

void node_start(struct sim *s, uint16_t n)
{
	struct sim_node *nd = &s->node[n];
	bool warm = nd->whole;

	nd->starts++;
	if (!warm && (n != s->lead || s->elected) && nd->starts % 3 == 0)
		nd->folder = nd->starts;
	nd->alive = true;
	nd->whole = false;
	sim_trace(s, "n%u STARTS%s term %llu", n, warm ? " WARM" : "",
		  (unsigned long long)nd->starts);
	for (uint16_t i = 0; i < s->models_nr; i++) {
		s->m = &s->model[i];
		shell_start(s, n, warm);
	}
	for (uint16_t i = 0; i < s->nodes_nr; i++) {
		if (i != n)
			link_break(s, n, i);
		if (n == s->lead && !s->elected) {
			s->missed_at = s->now;
			s->node[i].away_since = clock_of(s, n);
			s->node[i].known = false;
		}
	}
	for (uint16_t i = 0; i < s->models_nr && nd->alive; i++) {
		s->m = &s->model[i];
		if (!shell_of(s, n)->cold)
			shell_warm(s, n);
		if (n == s->lead && nd->alive && !s->elected)
			orders_started(s);
		if (nd->alive)
			shell_timer(s, n);
	}
	if (nd->alive)
		elect_started(s, n);
}

void node_crash(struct sim *s, uint16_t n, bool whole)
{
	struct sim_node *nd = &s->node[n];
	struct sim_model *m = s->m;

	sim_trace(s, "n%u CRASHES%s", n, whole ? ", its memory does not" : "");
	s->restarts++;
	s->warms += whole;
	nd->alive = nd->paused = nd->stopping = nd->ends = false;
	nd->whole = whole;
	nd->died_at = s->now;
	for (uint16_t i = 0; i < s->models_nr; i++) {
		s->m = &s->model[i];
		shell_crash(s, n, whole);
	}
	s->m = m;
	elect_crashed(s, n);
	memset(nd->link, 0, sizeof(nd->link));
	for (uint16_t i = 0; i < s->nodes_nr; i++) {
		if (i != nd->self)
			link_break(s, n, i);
	}
	if (n != s->lead && n != ZOMBIE && s->node[ZOMBIE].alive)
		link_break(s, n, ZOMBIE);
}
