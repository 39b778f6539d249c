/* SPDX-License-Identifier: Apache-2.0 */
/* What a daemon's shell does, as far as it matters to the transaction: it starts the core, carries out its actions, moves gradients
 * between arenas and landing slots as raw late writes (as a network card does: nothing but the end of the connection stops
 * them), stages and applies chunks, writes images, and says when a dropped attempt has drained. */
#include "sim/sim.h"

#include <stdlib.h>
#include <string.h>

static const char *const names[NODES] = {"a", "b", "c", "d"};

static bool same(const struct core_id *a, const struct core_id *b)
{
	return core_id_cmp(a, b) == 0;
}

static void shell_action(struct sim *s, uint16_t n, const struct core_action *a);

static void shell_timer(struct sim *s, uint16_t n)
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

void node_event(struct sim *s, uint16_t n, const struct core_event *e)
{
	struct sim_node *nd = &s->node[n];

	CHECK(nd->alive && !nd->paused);
	core_event(nd->core, e, s->now, &s->out);
	for (uint32_t i = 0; i < s->out.nr; i++) {
		s->hash = sim_mix(s->hash, (uint64_t)s->out.act[i].type * 64 + (uint64_t)s->out.act[i].msg.op);
		truth_action(s, n, &s->out.act[i]);
		shell_action(s, n, &s->out.act[i]);
	}
	shell_timer(s, n);
}

void node_start(struct sim *s, uint16_t n)
{
	struct sim_node *nd = &s->node[n];
	struct core_conf conf = {.self = n,
				 .nodes_nr = s->nodes_nr,
				 .coordinator = 0,
				 .chunks_nr = s->chunks_nr,
				 .owner = s->owner,
				 .node_names = names,
				 .min_world = s->min_world,
				 .max_world = s->max_world,
				 .step_timeout_ns = 4 * SEC,
				 .heartbeat_timeout_ns = 2 * SEC,
				 .repeat_ns = 30 * MS};

	conf.incarnation = nd->incarnation + 1;
	conf.record = (struct record_conf){.optim = optim_row(OPTIM_ADAMW),
					   .groups_nr = 1,
					   .clip = 1,
					   .dynamic_scale = s->fp16,
					   .initial_scale = s->fp16 ? 65536 : 1,
					   .min_scale = 0x1p-40,
					   .scale_window = 4,
					   .hysteresis = 2};
	optim_defaults(conf.record.optim, conf.record.hyper[0]);
	free(nd->memory);
	nd->memory = aligned_alloc(64, (core_bytes(&conf) + 63) & ~(size_t)63);
	CHECK(nd->memory);
	memset(nd->memory, 0, core_bytes(&conf));
	nd->incarnation = conf.incarnation;
	nd->alive = true;
	nd->core = core_init(nd->memory, &conf, nd->has_disk ? &nd->disk : NULL);
	sim_trace(s, "n%u STARTS incarnation %llu", n, (unsigned long long)nd->incarnation);
	for (uint16_t i = 0; i < s->nodes_nr; i++) {
		if (i != n)
			link_break(s, n, i);
	}
	shell_timer(s, n);
}

void node_crash(struct sim *s, uint16_t n)
{
	struct sim_node *nd = &s->node[n], was = *nd;

	sim_trace(s, "n%u CRASHES", n);
	s->restarts++;
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
	nd->memory = was.memory;
	nd->has_disk = was.has_disk;
	nd->disk = was.disk;
	nd->prepared = was.prepared;
	for (uint16_t i = 0; i < s->nodes_nr; i++) {
		if (i != n)
			link_break(s, n, i);
	}
}

static void shell_settle_drain(struct sim *s, uint16_t n)
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

static bool has_ranks(const struct core_world *w, uint16_t n)
{
	for (uint32_t i = 0; i < w->size; i++) {
		if (w->rank[i].node == n)
			return true;
	}
	return false;
}

static struct sim_trainer *trainer_of(struct sim *s, uint16_t n, uint64_t session)
{
	for (uint32_t t = 0; t < s->trainers_nr; t++) {
		if (s->trainer[t].state != TR_DEAD && s->trainer[t].node == n && s->trainer[t].session == session)
			return &s->trainer[t];
	}
	return NULL;
}

/* This node's contribution: over its ranks in rank order, from their arenas. false: a rank has not pushed. */
static bool local_sum(struct sim *s, uint16_t n, uint32_t chunk, struct cell *sum)
{
	struct sim_node *nd = &s->node[n];

	sum->id = nd->id;
	sum->hash = 0;
	sum->nan = false;
	for (uint32_t i = 0; i < nd->world.size; i++) {
		const struct core_rank *r = &nd->world.rank[i];
		const struct sim_trainer *t = r->node == n ? trainer_of(s, n, r->session) : NULL;

		if (r->node != n)
			continue;
		if (!t || !same(&t->arena[chunk].id, &nd->id))
			return false;
		sum->hash += sim_mix(t->arena[chunk].hash, i);
		sum->nan = sum->nan || t->arena[chunk].nan;
	}
	return true;
}

static bool summed(const struct sim_node *nd, uint32_t chunk)
{
	return same(&nd->sum[chunk].id, &nd->id);
}

static void shell_transfer(struct sim *s, uint16_t n, uint32_t chunk) /* to its owner, if everything is there */
{
	struct sim_node *nd = &s->node[n];
	uint16_t to = s->owner[chunk];
	struct sim_event *e;
	uint32_t i = 0;

	if (to == n || !nd->running || nd->sent[to][chunk] || !summed(nd, chunk) || !same(&nd->credit[to], &nd->id) ||
	    !nd->link[to])
		return;
	while (i < TRANSFERS && s->transfer[i].used)
		i++;
	CHECK(i < TRANSFERS);
	s->transfer[i] = (struct transfer){.used = true,
					   .src = n,
					   .dst = to,
					   .chunk = chunk,
					   .id = nd->id,
					   .nan = nd->sum[chunk].nan,
					   .epoch = nd->link[to],
					   .src_incarnation = nd->incarnation};
	nd->sent[to][chunk] = true;
	nd->transfers++;
	e = sim_at(s, s->faults && sim_chance(s, s->late) ? sim_between(s, MS, 800 * MS) : sim_between(s, 100000, 4 * MS),
		   SIM_LANDED, NODES);
	e->chunk = i;
	e->session = nd->sum[chunk].hash;
}

static void shell_stage_try(struct sim *s, uint16_t n, uint32_t chunk)
{
	struct sim_node *nd = &s->node[n];
	struct sim_event *e;

	if (s->owner[chunk] != n || !nd->running || nd->queued[chunk] || (has_ranks(&nd->world, n) && !summed(nd, chunk)))
		return;
	for (uint16_t p = 0; p < s->nodes_nr; p++) {
		if (p != n && has_ranks(&nd->world, p) && !same(&nd->slot[p][chunk].id, &nd->id))
			return;
	}
	nd->queued[chunk] = true;
	nd->jobs++;
	e = sim_at(s, sim_between(s, 10000, 2 * MS), SIM_STAGE, n);
	e->chunk = chunk;
	e->id = nd->id;
}

void shell_pushed(struct sim *s, uint16_t n, uint32_t chunk)
{
	struct sim_node *nd = &s->node[n];
	struct cell sum;

	if (!nd->running || summed(nd, chunk) || !local_sum(s, n, chunk, &sum))
		return;
	nd->sum[chunk] = sum;
	shell_transfer(s, n, chunk);
	shell_stage_try(s, n, chunk);
}

void shell_landed(struct sim *s, const struct sim_event *e)
{
	struct transfer *t = &s->transfer[e->chunk];
	struct sim_node *src = &s->node[t->src], *dst = &s->node[t->dst];
	char a[64], b[64];

	t->used = false;
	if (dst->alive && dst->link[t->src] == t->epoch) {
		if (!same(&dst->lent[t->src], &t->id))
			sim_fail(s, "slot_one_writer", "n%u writes chunk %u of %s into slots that n%u lent for %s", t->src,
				 t->chunk, sim_id(&t->id, a), t->dst, sim_id(&dst->lent[t->src], b));
		dst->slot[t->src][t->chunk] = (struct cell){.id = t->id, .hash = e->session, .nan = t->nan};
		if (same(&t->id, &dst->id))
			shell_stage_try(s, t->dst, t->chunk);
	}
	if (src->alive && src->incarnation == t->src_incarnation && !t->flushed) {
		src->transfers--;
		shell_settle_drain(s, t->src);
	}
}

void shell_link_lost(struct sim *s, uint16_t n, uint16_t peer)
{
	struct sim_node *nd = &s->node[n];

	for (uint32_t i = 0; i < TRANSFERS; i++) {
		struct transfer *t = &s->transfer[i];

		if (!t->used || t->src != n || t->dst != peer || t->flushed || t->src_incarnation != nd->incarnation ||
		    t->epoch != nd->link[peer])
			continue;
		t->flushed = true;
		nd->transfers--;
	}
	nd->credit[peer] = (struct core_id){0};
	nd->lent[peer] = (struct core_id){0};
	shell_settle_drain(s, n);
}

/* What the staged gradient of a chunk is, read from where it lies. */
static uint64_t shell_reduced(struct sim *s, uint16_t n, uint32_t chunk, const struct core_id *id, bool *nan)
{
	struct sim_node *nd = &s->node[n];
	uint64_t hash = 0;
	char a[64], b[64];

	*nan = false;
	for (uint16_t p = 0; p < s->nodes_nr; p++) {
		const struct cell *cell = p == n ? &nd->sum[chunk] : &nd->slot[p][chunk];
		struct cell now;

		if (!has_ranks(&nd->world, p))
			continue;
		if (!same(&cell->id, id))
			sim_fail(s, "no_tear", "n%u reads chunk %u of %s for %s from n%u", n, chunk, sim_id(&cell->id, a),
				 sim_id(id, b), p);
		if (p == n && nd->running && local_sum(s, n, chunk, &now) && now.hash != cell->hash)
			sim_fail(s, "arena_one_writer", "n%u: an arena changed under chunk %u of %s", n, chunk, sim_id(id, b));
		hash += cell->hash;
		*nan = *nan || cell->nan;
	}
	return hash;
}

void shell_stage(struct sim *s, const struct sim_event *e)
{
	struct sim_node *nd = &s->node[e->node];
	struct core_event staged = {.type = CORE_EV_STAGED, .chunk = e->chunk, .id = e->id, .bad_tensor = -1, .bad_rank = -1};
	bool nan;

	nd->jobs--;
	if (!same(&nd->id, &e->id) || !nd->running) {
		shell_settle_drain(s, e->node);
		return;
	}
	staged.sumsq = 1e-3 * (double)(shell_reduced(s, e->node, e->chunk, &e->id, &nan) >> 32);
	staged.finite = !nan;
	if (nan)
		staged.bad_tensor = (int64_t)e->chunk;
	node_event(s, e->node, &staged);
}

static void shell_image_to(struct sim *s, uint16_t to, uint32_t chunk, uint64_t step, uint64_t delay, uint16_t from)
{
	struct sim_event *e = sim_at(s, delay, SIM_IMAGE, to);

	e->peer = from;
	e->chunk = chunk;
	e->session = step;
	e->epoch = s->node[from].record.id.generation;
	e->id = s->node[from].record.id;
}

/* A node's network card writes an image chunk: whatever the node itself is doing. */
void shell_image(struct sim *s, const struct sim_event *e)
{
	struct sim_node *nd = &s->node[e->node];
	char a[64], b[64];

	if (!nd->alive || nd->generation != e->epoch || nd->image[e->chunk] >= e->session)
		return;
	if (nd->image[e->chunk] + 1 == e->session && core_id_cmp(&nd->open, &e->id) < 0)
		sim_fail(s, "image_open", "n%u: chunk %u of %s is written into an image that is open for %s", e->node, e->chunk,
			 sim_id(&e->id, a), sim_id(&nd->open, b));
	nd->image[e->chunk] = e->session;
}

static void shell_apply_done(struct sim *s, uint16_t n)
{
	sim_at(s, sim_between(s, 10000, 3 * MS), SIM_APPLIED, n);
}

void shell_apply(struct sim *s, const struct sim_event *e)
{
	struct sim_node *nd = &s->node[e->node];
	bool nan;
	uint64_t g;

	if (nd->record.outcome == RECORD_APPLIED) {
		g = shell_reduced(s, e->node, e->chunk, &nd->record.id, &nan);
		if (nan)
			sim_fail(s, "nonfinite_kept", "n%u applies a non-finite gradient of chunk %u", e->node, e->chunk);
		nd->weights[e->chunk] = sim_mix(nd->weights[e->chunk], sim_mix(g, dtype_bits(nd->record.args[0].step_size)));
	}
	nd->version[e->chunk]++;
	truth_applied(s, e->node, e->chunk);
	nd->image[e->chunk] = nd->record.id.step;
	for (uint16_t p = 0; p < s->nodes_nr; p++) {
		if (p != e->node && nd->link[p])
			shell_image_to(s, p, e->chunk, nd->record.id.step, sim_between(s, 10000, 2 * MS), e->node);
	}
	if (--nd->chunks_left == 0)
		sim_at(s, 3 * MS, SIM_APPLIED, e->node); /* after its image writes */
}

static void on_apply(struct sim *s, uint16_t n, const struct core_action *a)
{
	struct sim_node *nd = &s->node[n];

	nd->record = *a->record;
	nd->chunks_left = 0;
	for (uint32_t c = 0; c < s->chunks_nr; c++) {
		if (s->owner[c] != n)
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

	nd->generation = a->record->id.generation;
	for (uint32_t c = 0; c < s->chunks_nr; c++) {
		nd->version[c] = nd->image[c] = a->record->id.step;
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
	static const char *const act[] = {"?",      "SEND",  "PERSIST", "BEGIN", "CREDIT", "OPEN", "APPLY",
					  "RESULT", "ENDED", "SEAL",    "LOST",  "EXPEL",  "LEFT"};
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
		if (trainer_of(s, n, a->session))
			truth_expelled(s, (uint32_t)(trainer_of(s, n, a->session) - s->trainer), a->why);
		trainer_closed(s, n, a->session, a->why);
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
	struct core_event written = {.type = CORE_EV_WRITTEN, .step = 0};
	struct core_state st;
	bool all = true;

	sim_at(s, sim_between(s, 5 * MS, 60 * MS), SIM_WRITE, NODES);
	if (!nd->alive || nd->paused)
		return;
	core_state(nd->core, &st);
	if (!st.generation || st.sealed)
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
			s->node[i].weights[c] = sim_mix(st.generation, c);
		}
	}
	if (!all)
		return; /* next time: then it was all there for a while */
	written.step = 10 * st.generation;
	written.id.generation = st.generation;
	sim_trace(s, "n0 WRITTEN generation %u step %llu", st.generation, (unsigned long long)written.step);
	node_event(s, 0, &written);
}
