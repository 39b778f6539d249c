/* SPDX-License-Identifier: Apache-2.0 */
/* What a daemon's shell does, as far as it matters to the transaction: it starts the core, carries out its actions (the bytes move in
 * bulk.c), and says when a dropped attempt has drained. */
#include "sim/sim.h"

#include <string.h>

static void shell_action(struct sim *s, uint16_t n, const struct core_action *a);

void shell_timer(struct sim *s, uint16_t n)
{
	struct sim_node *nd = &s->node[n];
	uint64_t at = core_deadline(nd->core);

	if (at == UINT64_MAX)
		return;
	if (at <= s->now)
		at = s->now + 1000;
	if (nd->tick_at == at)
		return;
	nd->tick_at = at;
	sim_at(s, at - s->now, SIM_TICK, n);
}

/* The process may die in the event: before what it changed is saved as a whole, or with only the first actions done. */
static uint32_t shell_dies(struct sim *s)
{
	uint32_t chance = s->dies;

	for (uint32_t i = 0; i < s->out.nr; i++) { /* the instants that matter most */
		if (s->out.act[i].type == CORE_ACT_OPEN || s->out.act[i].type == CORE_ACT_APPLY)
			chance = 6 * s->dies;
	}
	if (!s->faults || !sim_chance(s, chance))
		return UINT32_MAX;
	return (uint32_t)sim_between(s, 0, s->out.nr + 1);
}

void node_event(struct sim *s, uint16_t n, const struct core_event *e)
{
	struct sim_node *nd = &s->node[n];
	uint32_t dies, done = 0;

	if (!nd->alive) /* it died in an event of this very instant */
		return;
	CHECK(!nd->paused);
	core_event(nd->core, e, s->now, &s->out);
	dies = shell_dies(s);
	node_save(nd, dies == 0);
	if (dies > 0)
		truth_seen(s, n);
	for (; done < s->out.nr && done + 1 < dies; done++) {
		s->hash = sim_mix(s->hash, (uint64_t)s->out.act[done].type * 64 + (uint64_t)s->out.act[done].msg.op);
		truth_action(s, n, &s->out.act[done]);
		shell_action(s, n, &s->out.act[done]);
	}
	if (dies == UINT32_MAX) {
		shell_timer(s, n);
		return;
	}
	sim_trace(s, "n%u dies %s, with %u of %u actions done", n, dies ? "after it saved" : "while it saves", done, s->out.nr);
	fault_crash(s, n);
}

void shell_settle_drain(struct sim *s, uint16_t n)
{
	struct sim_node *nd = &s->node[n];

	if (!nd->draining || nd->jobs || nd->transfers || nd->drained_sent)
		return;
	nd->drained_sent = true;
	sim_at(s, sim_between(s, 1000, MS), SIM_DRAINED, n)->id = nd->id;
}

void shell_drained(struct sim *s, const struct sim_event *e)
{
	struct core_event done = {.type = CORE_EV_DRAINED, .id = e->id};

	s->node[e->node].draining = false;
	sim_trace(s, "n%u drained", e->node);
	node_event(s, e->node, &done);
}

static void shell_apply_done(struct sim *s, uint16_t n)
{
	sim_at(s, sim_between(s, 10000, 3 * MS), SIM_APPLIED, n);
}

static void on_apply(struct sim *s, uint16_t n, const struct core_action *a)
{
	struct sim_node *nd = &s->node[n];

	nd->record = *a->record;
	nd->chunks_left = 0;
	for (uint32_t c = 0; c < s->chunks_nr; c++) {
		if (s->owner[c] != n || (nd->warming && nd->version[c] == a->record->id.step)) /* before it died */
			continue;
		nd->chunks_left++;
		sim_at(s, sim_between(s, 50000, n == s->slow ? 150 * MS : 20 * MS), SIM_APPLY, n)->chunk = c;
	}
	if (!nd->chunks_left)
		shell_apply_done(s, n);
}

static void on_begin(struct sim *s, uint16_t n, const struct core_action *a)
{
	struct sim_node *nd = &s->node[n];
	char id[64];

	if (nd->jobs || nd->transfers || nd->chunks_left)
		sim_fail(s, "arena_one_writer", "n%u: %s begins while %u workers and %u transfers read the arenas", n,
			 sim_id(&a->id, id), nd->jobs + nd->chunks_left, nd->transfers);
	nd->id = a->id;
	nd->world = *a->world;
	nd->running = true;
	nd->draining = nd->drained_sent = false;
	memset(nd->queued, 0, sizeof(nd->queued));
	memset(nd->sent, 0, sizeof(nd->sent));
	trainer_tell(s, n, &nd->world, SIM_TRAINER_BEGIN, &nd->id);
	for (uint32_t c = 0; c < s->chunks_nr; c++)
		shell_stage_try(s, n, c);
}

static void on_ended(struct sim *s, uint16_t n, const struct core_action *a)
{
	struct sim_node *nd = &s->node[n];

	nd->running = false;
	nd->draining = true;
	nd->drained_sent = false;
	trainer_tell(s, n, &nd->world, SIM_TRAINER_ENDED, &a->id);
	shell_settle_drain(s, n);
}

static void on_seal(struct sim *s, uint16_t n, const struct core_action *a)
{
	struct sim_node *nd = &s->node[n];

	if (nd->warming)
		truth_whole(s, n, a->record);
	nd->generation = a->record->id.generation;
	for (uint32_t c = 0; c < s->chunks_nr; c++) {
		nd->version[c] = nd->image[c] = a->record->id.step;
		if (nd->warming && s->owner[c] != n)
			nd->image[c] = 0; /* made anew from the masters here; what others hold is asked for */
		if (s->owner[c] == n && !nd->written[c])
			sim_fail(s, "no_tear", "n%u seals chunk %u that nobody wrote", n, c);
	}
}

static void on_lost(struct sim *s, uint16_t n, const struct core_action *a)
{
	struct sim_node *nd = &s->node[n];

	sim_trace(s, "n%u LOST generation %u: %s", n, a->id.generation, a->why);
	nd->generation = a->id.generation;
	nd->running = false;
	memset(nd->written, 0, sizeof(nd->written));
	memset(nd->version, 0, sizeof(nd->version));
	memset(nd->image, 0, sizeof(nd->image));
	for (uint32_t t = 0; t < s->trainers_nr && a->status == SHARD_LOST; t++) {
		if (s->trainer[t].node == n)
			trainer_die(s, t, "joins anew");
	}
}

static void on_credit(struct sim *s, uint16_t n, const struct core_action *a)
{
	s->node[n].credit[a->node] = a->id;
	for (uint32_t c = 0; c < s->chunks_nr; c++) {
		if (s->owner[c] == a->node)
			shell_transfer(s, n, c);
	}
}

static void shell_action(struct sim *s, uint16_t n, const struct core_action *a)
{
	struct sim_node *nd = &s->node[n];
	static const char *const act[] = {"?",     "SEND", "PERSIST", "BEGIN", "CREDIT", "OPEN", "APPLY", "RESULT",
					  "ENDED", "SEAL", "LOST",    "EXPEL", "LEFT",   "HELD", "TUNED"};
	char id[64];

	if (a->type != CORE_ACT_SEND)
		sim_trace(s, "n%u %s %s %s", n, act[a->type], sim_id(a->record ? &a->record->id : &a->id, id),
			  a->why ? a->why : "");
	switch (a->type) {
	case CORE_ACT_SEND:
		if (a->msg.op == CORE_GRANT)
			nd->lent[a->msg.to] = a->msg.id;
		link_send(s, n, &a->msg);
		break;
	case CORE_ACT_PERSIST:
		CHECK(!nd->persisting);
		nd->pending = *a->view;
		nd->persisting = true;
		sim_at(s, sim_between(s, MS, 30 * MS), SIM_PERSISTED, n);
		break;
	case CORE_ACT_BEGIN:
		on_begin(s, n, a);
		break;
	case CORE_ACT_CREDIT:
		on_credit(s, n, a);
		break;
	case CORE_ACT_OPEN:
		nd->open = a->id;
		break;
	case CORE_ACT_APPLY:
		on_apply(s, n, a);
		break;
	case CORE_ACT_RESULT:
		nd->running = false;
		trainer_tell(s, n, &a->record->world, SIM_TRAINER_RESULT, &a->record->id);
		break;
	case CORE_ACT_ENDED:
		on_ended(s, n, a);
		break;
	case CORE_ACT_SEAL:
		on_seal(s, n, a);
		break;
	case CORE_ACT_LOST:
		on_lost(s, n, a);
		break;
	case CORE_ACT_EXPEL:
		if (shell_trainer(s, n, a->session))
			truth_expelled(s, (uint32_t)(shell_trainer(s, n, a->session) - s->trainer), a->why);
		trainer_closed(s, n, a->session, a->why);
		break;
	case CORE_ACT_HELD:
	case CORE_ACT_TUNED:
		break;
	case CORE_ACT_LEFT:
		trainer_closed(s, n, a->session, a->why);
		break;
	}
}

/* The one who defined the model writes it: all weights on every node, then the seal. Again after LOST. */
void shell_write(struct sim *s)
{
	struct sim_node *nd = &s->node[0];
	const struct sim_checkpoint *from = &s->orders.newest;
	struct core_event written = {.type = CORE_EV_WRITTEN, .step = 0};
	struct core_state st;
	bool all = true;

	sim_at(s, sim_between(s, 5 * MS, 60 * MS), SIM_WRITE, NODES);
	if (!nd->alive || nd->paused)
		return;
	core_state(nd->core, &st);
	if (!st.generation || st.sealed || (st.restoring && !from->has))
		return;
	for (uint16_t i = 0; i < s->nodes_nr; i++) {
		struct core_state other;

		if (!s->node[i].alive)
			return;
		core_state(s->node[i].core, &other);
		if (other.generation != st.generation)
			return;
		s->node[i].generation = st.generation;
		for (uint32_t c = 0; c < s->chunks_nr; c++) {
			if (s->owner[c] != i || s->node[i].written[c])
				continue;
			all = false;
			s->node[i].written[c] = true;
			s->node[i].weights[c] = st.restoring ? from->weights[c] : sim_mix(st.generation, c);
		}
	}
	if (!all)
		return; /* next time: then it was all there for a while */
	written.step = st.restoring ? from->step : 10 * st.generation;
	written.restored = st.restoring ? &from->restored : NULL;
	written.id.generation = st.generation;
	sim_trace(s, "n0 WRITTEN generation %u step %llu", st.generation, (unsigned long long)written.step);
	node_event(s, 0, &written);
}
