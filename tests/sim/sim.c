/* SPDX-License-Identifier: Apache-2.0 */
/* The clock and the queue of the simulator. main.c calls sim_run(). Events happen in the order of
 * their virtual time. An event that is due at a stopped node waits until the node runs again,
 * except what its network card does by itself. A failed checker jumps out of the run, and main.c
 * then runs the seed again with a trace. */
#include "sim/sim.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EVENTS_MAX 1000000u
#define GRACE_NS   (10 * SEC)

uint64_t sim_mix(uint64_t a, uint64_t b)
{
	struct rng r = {.state = a ^ (b * 0x9e3779b97f4a7c15ull)};

	return rng_next(&r) + b;
}

uint64_t sim_between(struct sim *s, uint64_t low, uint64_t high)
{
	return low + rng_below(&s->rng, high - low + 1);
}

bool sim_chance(struct sim *s, uint32_t thousandth)
{
	return rng_below(&s->rng, 1000) < thousandth;
}

const char *sim_id(const struct core_id *id, char text[64])
{
	snprintf(text, 64, "g%u.t%llu.%u %llu/%u", id->generation, (unsigned long long)id->term,
		 id->seq, (unsigned long long)id->step, id->attempt);
	return text;
}

void sim_trace(struct sim *s, const char *fmt, ...)
{
	char *line = s->trace[s->trace_nr % NR(s->trace)];
	va_list ap;
	int nr;

	if (!s->verbose)
		return;
	s->trace_nr++;
	nr = snprintf(line, sizeof(s->trace[0]), "%11.6f ", (double)s->now / (double)SEC);
	if (s->models_nr > 1 && s->m)
		nr += snprintf(line + nr, sizeof(s->trace[0]) - (size_t)nr, "m%u ", s->m->index);
	va_start(ap, fmt);
	vsnprintf(line + nr, sizeof(s->trace[0]) - (size_t)nr, fmt, ap);
	va_end(ap);
	if (getenv("SIM_TRACE"))
		puts(line);
}

void sim_fail(struct sim *s, const char *checker, const char *fmt, ...)
{
	va_list ap;

	s->failed = checker;
	va_start(ap, fmt);
	vsnprintf(s->why, sizeof(s->why), fmt, ap);
	va_end(ap);
	longjmp(s->stop, 1);
}

static bool sooner(const struct sim_event *a, const struct sim_event *b)
{
	return a->at != b->at ? a->at < b->at : a->order < b->order;
}

static void heap_up(struct sim *s, uint32_t at)
{
	struct sim_event e = s->heap[at];

	for (; at > 0 && sooner(&e, &s->heap[(at - 1) / 2]); at = (at - 1) / 2)
		s->heap[at] = s->heap[(at - 1) / 2];
	s->heap[at] = e;
}

static struct sim_event heap_pop(struct sim *s)
{
	struct sim_event first = s->heap[0], e = s->heap[--s->heap_nr];
	uint32_t at = 0;

	for (;;) {
		uint32_t child = 2 * at + 1;

		if (child >= s->heap_nr)
			break;
		if (child + 1 < s->heap_nr && sooner(&s->heap[child + 1], &s->heap[child]))
			child++;
		if (!sooner(&s->heap[child], &e))
			break;
		s->heap[at] = s->heap[child];
		at = child;
	}
	if (s->heap_nr)
		s->heap[at] = e;
	return first;
}

/* The caller fills in the rest at once, which is safe because at and order alone decide the
 * place. */
static uint32_t sim_push(struct sim *s, const struct sim_event *e)
{
	if (s->heap_nr == s->heap_cap) {
		s->heap_cap = s->heap_cap ? 2 * s->heap_cap : 1024;
		s->heap = realloc(s->heap, s->heap_cap * sizeof(*s->heap));
		CHECK(s->heap);
	}
	s->heap[s->heap_nr] = *e;
	heap_up(s, s->heap_nr++);
	for (uint32_t i = s->heap_nr - 1;; i = (i - 1) / 2) {
		if (s->heap[i].order == e->order)
			return i;
	}
}

struct sim_event *sim_at(struct sim *s, uint64_t delay, enum sim_kind kind, uint16_t node)
{
	struct sim_event e = {.at = s->now + delay,
			      .order = ++s->order,
			      .kind = kind,
			      .node = node,
			      .model = s->m->index};
	uint32_t at;

	if (node < SLOTS)
		e.start = s->node[node].starts;
	at = sim_push(s, &e);
	return &s->heap[at];
}

static void on_tick(struct sim *s, const struct sim_event *e)
{
	struct core_event tick = {.type = CORE_EV_TICK};

	if (shell_of(s, e->node)->tick_at != e->at)
		return;
	shell_of(s, e->node)->tick_at = 0;
	node_event(s, e->node, &tick);
}

static void on_persisted(struct sim *s, const struct sim_event *e)
{
	struct shell *n = shell_of(s, e->node);
	struct core_event done = {.type = CORE_EV_PERSISTED};

	if (e->node == ZOMBIE && !n->landed)
		return; /* Its successor reads the register, and a later write does not count. */
	n->persisting = false;
	if (e->node == ZOMBIE) {
		node_event(s, e->node, &done);
		return;
	}
	n->has_disk = true;
	n->disk = n->pending;
	truth_durable(s, &n->disk);
	node_event(s, e->node, &done);
}

static void on_applied(struct sim *s, const struct sim_event *e)
{
	struct core_event done = {.type = CORE_EV_APPLIED};

	shell_of(s, e->node)->applied_due = sim_several(s) && shell_of(s, e->node)->transfers > 0;
	if (shell_of(s, e->node)->applied_due)
		return;
	if (shell_of(s, e->node)->transfers)
		sim_fail(s, "arena_one_writer",
			 "n%u says APPLIED while %u transfers read what it staged", e->node,
			 shell_of(s, e->node)->transfers);
	shell_of(s, e->node)->applying = false;
	done.on = learn_applied(s, e->node);
	sim_trace(s, "n%u APPLIED", e->node);
	node_event(s, e->node, &done);
}

static void on_start(struct sim *s, const struct sim_event *e)
{
	if (!s->node[e->node].alive && e->node != s->grave)
		node_start(s, e->node);
}

static void on_end(struct sim *s, const struct sim_event *e)
{
	fault_end(s, e->node);
}

static void on_resume(struct sim *s, const struct sim_event *e)
{
	s->node[e->node].paused = false;
	sim_trace(s, "n%u RUNS AGAIN", e->node);
}

static void on_spawn(struct sim *s, const struct sim_event *e)
{
	trainer_spawn(s, e->trainer);
}

static void on_write(struct sim *s, const struct sim_event *e)
{
	(void)e;
	load_tick(s);
}

static void on_watch(struct sim *s, const struct sim_event *e)
{
	(void)e;
	fault_watch(s);
}

/* AT_NODE dies with the node. AT_CPU waits while the node is stopped. */
enum { AT_NODE = 1, AT_CPU = 2 };
static const struct {
	void (*run)(struct sim *, const struct sim_event *);
	uint32_t where;
} kinds[SIM_KIND_NR] = {
	[SIM_DELIVER] = {link_deliver, AT_CPU},
	[SIM_LINK_UP] = {link_up, AT_NODE | AT_CPU},
	[SIM_LINK_DOWN] = {link_down, AT_NODE | AT_CPU},
	[SIM_CONNECT] = {link_connect, 0},
	[SIM_TICK] = {on_tick, AT_NODE | AT_CPU},
	[SIM_PERSISTED] = {on_persisted, AT_NODE | AT_CPU},
	[SIM_LANDED] = {shell_landed, 0},
	[SIM_STAGE] = {shell_stage, AT_NODE | AT_CPU},
	[SIM_APPLY] = {shell_apply, AT_NODE | AT_CPU},
	[SIM_APPLIED] = {on_applied, AT_NODE | AT_CPU},
	[SIM_IMAGE] = {shell_image, 0},
	[SIM_DRAINED] = {shell_drained, AT_NODE | AT_CPU},
	[SIM_LEARN] = {learn_ask, AT_NODE | AT_CPU},
	[SIM_LEARN_LANDED] = {learn_landed, AT_NODE | AT_CPU},
	[SIM_LEARNED] = {learn_done, AT_NODE | AT_CPU},
	[SIM_TRAINER_BEGIN] = {trainer_event, AT_NODE},
	[SIM_TRAINER_ENDED] = {trainer_event, AT_NODE},
	[SIM_TRAINER_RESULT] = {trainer_event, AT_NODE},
	[SIM_TRAINER_READ] = {trainer_event, AT_NODE},
	[SIM_PUSH] = {trainer_event, AT_NODE | AT_CPU},
	[SIM_READY] = {trainer_event, AT_NODE | AT_CPU},
	[SIM_GONE] = {trainer_event, AT_NODE | AT_CPU},
	[SIM_SPAWN] = {on_spawn, 0},
	[SIM_START] = {on_start, 0},
	[SIM_END] = {on_end, 0},
	[SIM_RESUME] = {on_resume, 0},
	[SIM_SILENCE] = {fault_silence, 0},
	[SIM_FAULT] = {fault_event, 0},
	[SIM_WRITE] = {on_write, 0},
	[SIM_LOAD] = {load_asked, AT_NODE | AT_CPU},
	[SIM_LOAD_CHUNK] = {load_chunk, AT_NODE | AT_CPU},
	[SIM_LOAD_CONFIRM] = {load_confirm, AT_NODE | AT_CPU},
	[SIM_LOAD_SAID] = {load_answer, AT_NODE | AT_CPU},
	[SIM_WATCH] = {on_watch, 0},
	[SIM_ORDER] = {orders_event, 0},
	[SIM_MOVE] = {moves_event, 0},
	[SIM_JOIN] = {joins_event, 0},
	[SIM_JOIN_FAULT] = {joins_fault, 0},
	[SIM_ODD] = {odd_event, 0},
	[SIM_CUT] = {cuts_event, 0},
	[SIM_ELECT] = {register_look, 0},
	[SIM_LAND] = {register_land, 0},
	[SIM_LAND_LATE] = {register_late, 0},
	[SIM_ANSWERED] = {register_answered, AT_CPU},
	[SIM_LEADING] = {register_leading, AT_CPU},
	[SIM_LOST] = {register_lost, AT_NODE | AT_CPU},
	[SIM_BEAT] = {elect_beat, AT_NODE | AT_CPU},
	[SIM_VOTE_RESIGN] = {voters_resigns, AT_NODE | AT_CPU},
	[SIM_VOTE_TICK] = {voters_tick, AT_NODE | AT_CPU},
	[SIM_VOTE_MSG] = {voters_message, AT_CPU},
	[SIM_VOTE_SYNCED] = {voters_synced, AT_NODE | AT_CPU},
	[SIM_VOTERS] = {voters_look, 0},
	[SIM_LIVELY] = {lively_look, 0},
	[SIM_CLOCK] = {clocks_event, 0},
	[SIM_ONE_WAY] = {one_way_event, 0},
};

static void sim_step(struct sim *s)
{
	struct sim_event e = heap_pop(s);
	struct sim_node *n = e.node < SLOTS ? &s->node[e.node] : NULL;

	s->now = e.at;
	s->m = &s->model[e.model];
	if (kinds[e.kind].where & AT_NODE && (!n->alive || n->starts != e.start))
		return;
	if (kinds[e.kind].where & AT_CPU && n->alive && n->paused) {
		if (e.kind == SIM_TICK)
			n->shell[e.model].tick_at = n->resume_at;
		e.at = n->resume_at;
		e.order = ++s->order;
		sim_push(s, &e);
		return;
	}
	s->hash = sim_mix(s->hash, sim_mix(e.at, (uint64_t)e.kind * 8 + e.node));
	kinds[e.kind].run(s, &e);
	if (++s->events_nr > EVENTS_MAX)
		sim_fail(s, "liveness", "%u events and no end: something repeats without a pause",
			 EVENTS_MAX);
}

void sim_free(struct sim *s)
{
	for (uint32_t i = 0; i < s->heap_nr; i++) {
		free(s->heap[i].flight);
		free(s->heap[i].value);
		free(s->heap[i].ballot);
	}
	free(s->heap);
	for (uint16_t i = 0; i < SLOTS; i++)
		node_free(&s->node[i]);
	voters_free(s);
	s->heap = NULL;
	s->heap_nr = s->heap_cap = 0;
}

static bool sim_over(struct sim *s) /* Every model got on after the faults ceased. */
{
	for (uint16_t i = 0; i < s->models_nr; i++) {
		s->m = &s->model[i];
		if ((s->m->healed_commits < HEALED_COMMITS || !truth_all_back(s) ||
		     !lively_over(s)) &&
		    !(s->now > s->healed_at + GRACE_NS && truth_excused(s)))
			return false;
	}
	return cuts_over(s);
}

bool sim_run(struct sim *s, uint64_t seed, bool verbose)
{
	memset(s, 0, offsetof(struct sim, out));
	s->failed = NULL;
	s->trace_nr = 0;
	s->verbose = verbose;
	s->seed = seed % ELECTED_SEEDS;
	s->elected = seed >= ELECTED_SEEDS;
	s->rng.state = sim_mix(seed, 0x5eed);
	s->more.state = sim_mix(seed, 0x3a11);
	if (setjmp(s->stop))
		return false;
	fault_start(s);
	while (s->heap_nr && !sim_over(s))
		sim_step(s);
	truth_end(s);
	return true;
}
