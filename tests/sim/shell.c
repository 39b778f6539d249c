/* SPDX-License-Identifier: Apache-2.0 */
/* What a daemon's shell does, as far as it matters to the transaction. The event table in sim.c
 * calls it. It gives events to the core, carries out the core's actions (the bytes move in bulk.c),
 * and says when a dropped attempt has drained. A process may die in the middle of an event. The
 * checkers of truth.c see every event and action. */
#include "sim/sim.h"

#include "core/inner.h"

#include <string.h>

#define LATE_MAX 1000u

static void shell_action(struct sim *s, uint16_t n, const struct core_action *a);

void shell_timer(struct sim *s, uint16_t n)
{
	struct shell *sh = shell_of(s, n);
	uint64_t at = core_deadline(sh->core);

	if (at == UINT64_MAX) {
		sh->late_nr = 0;
		return;
	}
	sh->late_nr = at <= clock_of(s, n) ? sh->late_nr + 1 : 0;
	if (sh->late_nr > LATE_MAX)
		sim_fail(s, "liveness", "n%u does nothing but to be called for what is late", n);
	at = clock_when(s, n, at);
	if (sh->tick_at == at)
		return;
	sh->tick_at = at;
	sim_at(s, at - s->now, SIM_TICK, n);
}

/* The process may die in the event: before its new state is saved, or with only the first actions
 * done. Returns how many actions are done. */
static uint32_t shell_dies(struct sim *s, uint16_t n)
{
	uint32_t chance = s->dies;
	bool now = joins_dies(s, n);

	for (uint32_t i = 0; i < s->out.nr; i++) { /* These moments matter most. */
		enum core_action_type type = s->out.act[i].type;

		if (type == CORE_ACT_OPEN || type == CORE_ACT_APPLY)
			chance = 6 * s->dies;
		else if (s->joins && type == CORE_ACT_PERSIST)
			chance = 50;
	}
	if (!now && (!s->faults || !sim_chance(s, chance)))
		return UINT32_MAX;
	return (uint32_t)sim_between(s, 0, s->out.nr + 1);
}

void node_event(struct sim *s, uint16_t n, const struct core_event *e)
{
	const struct sim_node *nd = &s->node[n];
	struct shell *sh = shell_of(s, n);
	uint32_t dies, done = 0;

	if (!nd->alive) /* It died in an event at this very moment. */
		return;
	CHECK(!nd->paused);
	sh->was_undecided = sh->core->coord.undecided;
	core_handle(sh->core, e, clock_of(s, n), &s->out);
	truth_event(s, n, e);
	dies = shell_dies(s, n);
	node_save(sh, dies == 0);
	if (dies > 0)
		truth_seen(s, n);
	for (; done < s->out.nr && done + 1 < dies; done++) {
		s->hash = sim_mix(s->hash, (uint64_t)s->out.act[done].type * 64 +
						   (uint64_t)s->out.act[done].msg.op);
		truth_action(s, n, &s->out.act[done]);
		shell_action(s, n, &s->out.act[done]);
	}
	if (dies == UINT32_MAX) {
		shell_timer(s, n);
		return;
	}
	sim_trace(s, "n%u dies %s, with %u of %u actions done", n,
		  dies ? "after it saved" : "while it saves", done, s->out.nr);
	fault_crash(s, n);
}

void shell_settle_drain(struct sim *s, uint16_t n)
{
	struct shell *sh = shell_of(s, n);

	if (sh->applied_due && !sh->transfers) {
		sh->applied_due = false;
		sim_at(s, sim_between(s, 1000, MS), SIM_APPLIED, n);
	}
	if (!sh->draining || sh->jobs || sh->transfers || sh->drained_sent)
		return;
	sh->drained_sent = true;
	sim_at(s, sim_between(s, 1000, MS), SIM_DRAINED, n)->id = sh->id;
}

void shell_drained(struct sim *s, const struct sim_event *e)
{
	struct core_event done = {.type = CORE_EV_DRAINED, .id = e->id};

	shell_of(s, e->node)->draining = false;
	sim_trace(s, "n%u drained", e->node);
	node_event(s, e->node, &done);
}

void shell_apply_at(struct sim *s, uint16_t n, uint32_t chunk)
{
	shell_of(s, n)->chunks_left++;
	sim_at(s, sim_between(s, 50000, n == s->slow ? 150 * MS : 20 * MS), SIM_APPLY, n)->chunk =
		chunk;
}

static void shell_apply_done(struct sim *s, uint16_t n)
{
	sim_at(s, sim_between(s, 10000, 3 * MS), SIM_APPLIED, n);
}

static void on_apply(struct sim *s, uint16_t n, const struct core_action *a)
{
	struct shell *sh = shell_of(s, n);

	sh->record = *a->record;
	sh->chunks_left = 0;
	sh->applying = true;
	for (uint32_t c = 0; c < s->m->chunks_nr; c++) {
		/* It was applied before the process died, or was fetched as of this step. Then only
		 * its image is made. */
		bool has = sh->version[c] == a->record->id.step &&
			   (sh->warming || !shell_holds(s, n, c));

		if (!shell_keeps(s, n, c))
			continue;
		if (has) {
			sh->image[c] = a->record->id.step;
			continue;
		}
		if (!shell_holds(s, n, c) && !learn_keeps_up(sh, c, a->record->id.step))
			continue;
		shell_apply_at(s, n, c);
	}
	if (!sh->chunks_left)
		shell_apply_done(s, n);
}

static void on_begin(struct sim *s, uint16_t n, const struct core_action *a)
{
	struct shell *sh = shell_of(s, n);
	char id[64];

	if (sh->jobs || sh->transfers || sh->chunks_left)
		sim_fail(s, "arena_one_writer",
			 "n%u: %s begins while %u workers and %u transfers read the arenas", n,
			 sim_id(&a->id, id), sh->jobs + sh->chunks_left, sh->transfers);
	sh->id = a->id;
	sh->world = *a->world;
	sh->running = true;
	sh->draining = sh->drained_sent = false;
	memset(sh->queued, 0, sizeof(sh->queued));
	memset(sh->sent, 0, sizeof(sh->sent));
	memset(sh->sent_reduced, 0, sizeof(sh->sent_reduced));
	trainer_tell(s, n, &sh->world, SIM_TRAINER_BEGIN, &sh->id);
	for (uint32_t c = 0; c < s->m->chunks_nr; c++)
		shell_stage_try(s, n, c);
}

static void on_ended(struct sim *s, uint16_t n, const struct core_action *a)
{
	struct shell *sh = shell_of(s, n);

	sh->running = false;
	sh->draining = true;
	sh->drained_sent = false;
	trainer_tell(s, n, &sh->world, SIM_TRAINER_ENDED, &a->id);
	shell_settle_drain(s, n);
}

static void on_seal(struct sim *s, uint16_t n, const struct core_action *a)
{
	struct shell *sh = shell_of(s, n);

	if (sh->warming)
		truth_whole(s, n, a->record);
	sh->generation = a->record->id.generation;
	sh->record = *a->record;
	sh->learning = false;
	for (uint32_t c = 0; c < s->m->chunks_nr; c++) {
		/* Those that it fetches have no copy yet. */
		bool has = shell_holds(s, n, c) || (shell_keeps(s, n, c) && sh->core->step.caught);

		/* Its own chunks are made again from the masters here, and those of other nodes are
		 * asked for. */
		sh->image[c] = sh->warming && !has ? 0 : a->record->id.step;
		if (!has)
			continue;
		if (!sh->written[c])
			sim_fail(s, "no_tear", "n%u seals chunk %u that nobody wrote", n, c);
		if (a->record->outcome == RECORD_SEAL) {
			truth_sealed(s, n, c, a->record);
			sh->version[c] = a->record->id.step;
		}
		truth_copy(s, n, c, a->record);
	}
	sh->loading = 0;
	sh->confirmed = false;
}

static void on_lost(struct sim *s, uint16_t n, const struct core_action *a)
{
	struct shell *sh = shell_of(s, n);

	sim_trace(s, "n%u LOST generation %u: %s", n, a->id.generation, a->why);
	sh->generation = a->id.generation;
	sh->running = false;
	memset(sh->written, 0, sizeof(sh->written));
	sh->loading = 0;
	sh->confirmed = false;
	sh->load = 0;
	sh->learning = false;
	memset(sh->version, 0, sizeof(sh->version));
	memset(sh->image, 0, sizeof(sh->image));
	for (uint32_t t = 0; t < s->m->trainers_nr && a->status == SHARD_LOST; t++) {
		if (s->m->trainer[t].node == n)
			trainer_die(s, t, "joins anew");
	}
}

static void on_credit(struct sim *s, uint16_t n, const struct core_action *a)
{
	shell_of(s, n)->credit[a->node] = a->id;
	for (uint32_t c = 0; c < s->m->chunks_nr; c++) {
		shell_transfer(s, n, c);
		shell_transfer_reduced(s, n, c);
	}
}

static void on_persist(struct sim *s, uint16_t n, const struct core_view *view)
{
	struct shell *sh = shell_of(s, n);

	if (s->elected)
		elect_persist(s, n, view);
	if (s->elected || n == ZOMBIE) /* A zombie is fenced. */
		return;
	CHECK(!sh->persisting);
	sh->pending = *view;
	sh->persisting = true;
	sim_at(s, sim_between(s, MS, 30 * MS), SIM_PERSISTED, n);
}

static void trace_action(struct sim *s, uint16_t n, const struct core_action *a)
{
	static const char *const act[] = {
		"?",      "SEND",  "PERSIST", "BEGIN",  "CREDIT", "OPEN", "APPLY", "RESULT",
		"ENDED",  "SEAL",  "LOST",    "EXPEL",  "LEFT",   "HELD", "TUNED", "RESIGNED",
		"PLACED", "LEARN", "MOVED",   "DIFFER", "ODD",    "CUT",  "YIELD"};
	char id[64];

	if (a->type != CORE_ACT_SEND)
		sim_trace(s, "n%u %s %s %s", n, act[a->type],
			  sim_id(a->record ? &a->record->id : &a->id, id), a->why ? a->why : "");
}

static void shell_action(struct sim *s, uint16_t n, const struct core_action *a)
{
	struct shell *sh = shell_of(s, n);

	trace_action(s, n, a);
	switch (a->type) {
	case CORE_ACT_SEND:
		if (a->msg.op == CORE_GRANT)
			sh->lent[a->msg.to] = a->msg.id;
		link_send(s, n, &a->msg);
		break;
	case CORE_ACT_PERSIST:
		on_persist(s, n, a->view);
		break;
	case CORE_ACT_BEGIN:
		on_begin(s, n, a);
		break;
	case CORE_ACT_CREDIT:
		on_credit(s, n, a);
		break;
	case CORE_ACT_OPEN:
		sh->open = a->id;
		break;
	case CORE_ACT_APPLY:
		on_apply(s, n, a);
		break;
	case CORE_ACT_RESULT:
		sh->running = false;
		trainer_tell(s, n, &a->record->world, SIM_TRAINER_RESULT, &a->record->id);
		break;
	case CORE_ACT_ENDED:
		on_ended(s, n, a);
		break;
	case CORE_ACT_SEAL:
		on_seal(s, n, a);
		break;
	case CORE_ACT_PLACED:
		shell_fence(s, n, a->place->gone & ~sh->place.gone);
		moves_placed(s, n, a->place);
		break;
	case CORE_ACT_LEARN:
		learn_start(s, n, a->record);
		break;
	case CORE_ACT_LOST:
		on_lost(s, n, a);
		break;
	case CORE_ACT_EXPEL:
		if (shell_trainer(s, n, a->session))
			truth_expelled(s,
				       (uint32_t)(shell_trainer(s, n, a->session) - s->m->trainer),
				       a->why);
		trainer_closed(s, n, a->session, a->why);
		break;
	case CORE_ACT_ODD: /* The process ends soon. */
		sh->odd = true;
		s->node[n].ends = true;
		sim_at(s, sim_between(s, 0, 20 * MS), SIM_END, NOWHERE)->node = n;
		break;
	case CORE_ACT_CUT:
	case CORE_ACT_YIELD:
	case CORE_ACT_BACK: /* No disk here has steps. */
	case CORE_ACT_AGAIN:
	case CORE_ACT_DIFFER:
	case CORE_ACT_HELD:
	case CORE_ACT_TUNED:
	case CORE_ACT_RESIGNED:
	case CORE_ACT_MOVED:
		break;
	case CORE_ACT_LEFT:
		trainer_closed(s, n, a->session, a->why);
		break;
	}
}
