/* SPDX-License-Identifier: Apache-2.0 */
/* Tries every interleaving of one step's verdict over the real core. The core's sources are
 * compiled into this program with room for three nodes, so that a state is small. The core's memory
 * is flat, so a copy of the bytes is a copy of the state. Messages go into a set and may be
 * delivered at any time, any number of times, or never, which covers loss, copies and any order.
 * The coordinator holds no chunk and starts again once at any moment, with or without the view that
 * it was writing. An attempt is abandoned once, a link breaks once, and a checkpoint holds the
 * model once. Safety means that two attempts of the step are never both committed, and that what is
 * committed is never dropped. */
#define CORE_NODES_MAX   3
#define CORE_RANKS_MAX   3
#define CORE_GROUPS_MAX  1
#define CORE_VALUES_NR   1
#define CORE_TEXTS_BYTES 1024
#include "core/attempt.c"
#include "core/back.c"
#include "core/copies.c"
#include "core/coord.c"
#include "core/core.c"
#include "core/ctx.c"
#include "core/hear.c"
#include "core/judge.c"
#include "core/local.c"
#include "core/member.c"
#include "core/moves.c"
#include "core/odd.c"
#include "core/record.c"
#include "core/recover.c"
#include "core/scaler.c"
#include "core/schedule.c"
#include "core/slots.c"
#include "core/step.c"
#include "core/warm.c"
#include "core/world.c"

#include "lib/sanitized.h"
#include "unit/verdict.h"
#include "unit/verdict_set.h"

#include <setjmp.h>
#include <cmocka.h>
#include <stdlib.h>

static const char *const names[CORE_NODES_MAX] = {"a", "b", "c"};

static struct core *core_of(struct state *s, uint16_t n)
{
	return (struct core *)(void *)s->memory[n];
}

static uint64_t state_hash(const struct search *q, struct state *s)
{
	uint64_t h = 0;

	for (size_t i = 0; i < NR(s->sent); i++)
		h = mix(h, s->sent[i]);
	for (uint16_t n = 0; n < q->shape.nodes_nr; n++)
		h = mix_id(mix(mix(mix(h, s->hash[n]), s->warm_hash[n]), s->starts[n]),
			   &s->draining[n]);
	for (uint16_t n = 0; n < q->shape.nodes_nr; n++)
		h = mix(mix_id(h, &s->prepared[n]), s->incarnation[n]);
	h = mix_id(mix(mix(h, s->disk.term), s->disk.seq), &s->disk.record.id);
	h = mix(mix(mix(h, s->has_pending), s->leader), s->term);
	h = mix(h, (uint64_t)s->takeovers);
	if (s->has_pending)
		h = mix_id(mix(mix(h, s->pending.term), s->pending.seq), &s->pending.record.id);
	h = mix(mix(mix(h, (uint64_t)s->restarts * 16u + (uint64_t)s->warms),
		    (uint64_t)s->abandons),
		(uint64_t)s->flaps);
	return mix_id(
		mix(mix(h, (uint64_t)s->holds * 2u + s->held), s->has_committed * 2u + s->down),
		&s->committed);
}

/* Time stands still. A timer is on or off, and it is forgotten how long ago things happened. */
static void canonical(struct core *c)
{
	struct timer *timers[] = {&c->step.timer, &c->local.timer, &c->coord.timer};

	for (size_t i = 0; i < NR(timers); i++) {
		timers[i]->at = timers[i]->at == UINT64_MAX ? UINT64_MAX : 2;
		timers[i]->count = 0;
	}
	for (uint16_t i = 0; i < CORE_NODES_MAX; i++)
		c->coord.node[i].absent_since = c->coord.node[i].absent_since ? 1 : 0;
	c->coord.begun_ns = c->coord.behind_ns = 1;
	c->coord.held_ns = c->coord.held;
	c->texts_used = 0;
	memset(c->texts, 0, sizeof(c->texts));
	memset(&c->member.answer, 0, sizeof(c->member.answer));
	memset(c->step.why, 0, sizeof(c->step.why));
	memset(c->coord.aborted, 0, sizeof(c->coord.aborted));
	memset(c->member.waits, 0, sizeof(c->member.waits));
	c->member.waits_id = (struct core_id){0};
}

static void violated(struct search *q, const char *what)
{
	if (!q->failed)
		q->failed = what;
}

static double value_of(uint16_t node) /* What the trainer there gives with each attempt. */
{
	return 1.5 * (node + 1);
}

static void committed(struct search *q, struct state *s, const struct record *r)
{
	double sum = 0;

	if (r->id.step != FIRST_STEP || r->outcome == RECORD_SEAL)
		return;
	if (s->has_committed && core_id_cmp(&s->committed, &r->id))
		violated(q, "two attempts of one step are committed");
	for (uint32_t i = 0; i < r->world.size; i++)
		sum += value_of(r->world.rank[i].node);
	if (r->values[0] != sum)
		violated(q, "an attempt is committed with other values than its ranks gave");
	if (q->shape.lr_differs && r->id.attempt == 1)
		violated(q, "an attempt is committed whose trainers differ in lr");
	for (uint16_t n = 1; n < q->shape.nodes_nr && !s->has_committed; n++) {
		if (core_id_cmp(&s->prepared[n], &r->id))
			violated(q, "an attempt is committed for which a node never voted");
	}
	if (s->held && !s->has_committed)
		violated(q, "a step is committed while the one before is held");
	s->has_committed = true;
	s->committed = r->id;
}

static void action(struct search *q, struct state *s, uint16_t n, const struct core_action *a)
{
	if (a->type == CORE_ACT_SEND) {
		if (a->msg.record)
			committed(q, s, a->msg.record);
		if (a->msg.op == CORE_VIEW &&
		    (a->msg.view->term != s->disk.term || a->msg.view->seq != s->disk.seq))
			violated(q, "a view is sent before it is durable");
		if (a->msg.op == CORE_VIEW && s->has_committed &&
		    a->msg.view->record.id.step < FIRST_STEP)
			violated(q, "a view forgets a committed step");
		put_message(q, s, &a->msg);
	} else if (a->type == CORE_ACT_APPLY || a->type == CORE_ACT_RESULT) {
		committed(q, s, a->record);
	} else if (a->type == CORE_ACT_BEGIN) {
		for (uint16_t i = 0; i < q->shape.nodes_nr; i++)
			core_of(s, n)->step.slots[i].credit = a->id;
	} else if (a->type == CORE_ACT_OPEN) {
		s->prepared[n] = a->id;
	} else if (a->type == CORE_ACT_PERSIST) {
		if (n != s->leader)
			return; /* It is fenced. */
		s->pending = *a->view;
		s->has_pending = true;
	} else if (a->type == CORE_ACT_ENDED) {
		if (s->has_committed && !core_id_cmp(&s->committed, &a->id))
			violated(q, "a committed attempt is dropped");
		s->draining[n] = a->id;
	} else if (a->type == CORE_ACT_HELD) {
		if (s->has_committed != (a->record->id.step == FIRST_STEP))
			violated(q, "what is held is not what was decided last");
		s->held = true;
	} else if (a->type == CORE_ACT_LOST) {
		violated(q, "LOST, though no chunk was lost");
	}
}

static void save(struct search *q, struct state *s, uint16_t n)
{
	if (!q->shape.warms || !core_warm_save(core_of(s, n), q->idle))
		return;
	memcpy(s->warm[n], q->idle, WARM_ROOM);
	s->warm_hash[n] = hash_bytes(q->idle, WARM_ROOM);
}

static void feed(struct search *q, struct state *s, uint16_t n, const struct core_event *e)
{
	struct core *c = core_of(s, n);

	core_handle(c, e, 1 + (e->type == CORE_EV_TICK), &q->out);
	save(q, s, n);
	for (uint32_t i = 0; i < q->out.nr; i++)
		action(q, s, n, &q->out.act[i]);
	canonical(c);
	s->hash[n] = hash_bytes(s->memory[n], q->room);
	q->touched |= 1u << n;
}

static struct view_node who(uint16_t n, uint64_t incarnation)
{
	return (struct view_node){.uuid = {(uint8_t)(1 + n)}, .incarnation = incarnation};
}

static void start(struct search *q, struct state *s, uint16_t n, bool warm)
{
	struct core_conf conf = {.self = n,
				 .members = view_first(q->shape.nodes_nr, 0),
				 .who = who(n, warm ? s->incarnation[n] : s->starts[n] + 1),
				 .term = ++s->starts[n],
				 .elected = q->shape.takeovers > 0,
				 .chunks_nr = q->shape.chunks_nr,
				 .place = place_of(q->shape.owner, NULL, q->shape.chunks_nr),
				 .node_names = names,
				 .min_copies = 1,
				 .min_world = q->shape.nodes_nr - 1u,
				 .max_world = q->shape.nodes_nr - 1u,
				 .step_timeout_ns = 1000000,
				 .lost_timeout_ns = 1000000,
				 .repeat_ns = 1};

	conf.slots = conf.members.nodes;
	conf.record = (struct record_conf){
		.optim = optim_row(OPTIM_SGD), .groups_nr = 1, .initial_scale = 1};
	optim_defaults(conf.record.optim, conf.record.hyper[0]);
	CHECK(core_bytes(&conf) <= CORE_ROOM && core_warm_bytes(&conf) <= WARM_ROOM);
	q->room = (core_bytes(&conf) + 31) / 32 * 32;
	q->touched |= 1u << n;
	s->incarnation[n] = conf.who.incarnation;
	memset(s->memory[n], 0, q->room);
	if (!core_init(s->memory[n], &conf, s->disk.term ? &s->disk : NULL,
		       warm ? s->warm[n] : NULL))
		violated(q, "what was saved is refused");
	save(q, s, n);
	canonical(core_of(s, n));
	s->hash[n] = hash_bytes(s->memory[n], q->room);
}

static uint64_t session(const struct state *s, uint16_t n) /* Of the trainer of this process. */
{
	return 10u * s->starts[n] + n;
}

static void join(struct search *q, struct state *s, uint16_t n)
{
	feed(q, s, n,
	     &(struct core_event){
		     .type = CORE_EV_JOIN,
		     .trainer = {.session = session(s, n), .pid = n, .hint = -1, .node = n}});
}

static void link_up(struct search *q, struct state *s, uint16_t a, uint16_t b)
{
	feed(q, s, a,
	     &(struct core_event){
		     .type = CORE_EV_LINK_UP, .node = b, .who = who(b, s->incarnation[b])});
	feed(q, s, b,
	     &(struct core_event){
		     .type = CORE_EV_LINK_UP, .node = a, .who = who(a, s->incarnation[a])});
}

/* --- what may happen next. Each function returns false where it cannot happen. Messages outlive
 * their connection, except for those about trainers. Otherwise each old JOIN would bring a further
 * attempt. --- */
static bool may_deliver(struct search *q, struct state *s, uint32_t i)
{
	const struct core_msg *m = &q->message[i].msg;

	uint64_t t = m->trainer.session;

	if (!(s->sent[i / 64] >> (i % 64) & 1) || !core_linked(core_of(s, m->to), m->from) ||
	    (t && t != session(s, t % 10)))
		return false;
	feed(q, s, m->to, &(struct core_event){.type = CORE_EV_MSG, .msg = m});
	snprintf(q->path[q->depth], sizeof(q->path[0]), "%u hears %u from %u, attempt %u", m->to,
		 m->op, m->from, m->id.attempt);
	return true;
}

static bool may_work(struct search *q, struct state *s, uint16_t n, uint32_t what)
{
	struct core *c = core_of(s, n);
	struct core_event e = {
		.id = c->step.id, .sumsq = 4, .finite = true, .bad_tensor = -1, .weight = 1};
	const uint8_t *staged = core_at(c, c->at_staged);
	int32_t rank = core_rank_of(&c->step.world, n, session(s, n));
	double lr = c->step.id.attempt == 1 ? n : 1, value = value_of(n);

	if (what < q->shape.chunks_nr) {
		if (c->step.part != CORE_STAGING || q->shape.owner[what] != n ||
		    staged[0] >> what & 1)
			return false;
		e.type = CORE_EV_STAGED;
		e.chunk = what;
	} else if (what == 2) {
		if (c->step.part != CORE_STAGING || rank < 0 || c->step.ready[0] >> rank & 1)
			return false;
		e.type = CORE_EV_READY;
		e.session = session(s, n);
		e.lr = &lr;
		e.lr_nr = q->shape.lr_differs;
		e.values = &value;
	} else if (what == 3) {
		if (c->step.part != CORE_APPLYING)
			return false;
		e.type = CORE_EV_APPLIED;
	} else if (what == 4) {
		if (!s->draining[n].attempt)
			return false;
		e.type = CORE_EV_DRAINED;
		e.id = s->draining[n];
		s->draining[n] = (struct core_id){0};
	} else {
		if (what != 5 || c->step.part != CORE_STAGING || rank < 0 || !s->abandons)
			return false;
		s->abandons--;
		e.type = CORE_EV_ABANDON;
		e.session = session(s, n);
	}
	feed(q, s, n, &e);
	snprintf(q->path[q->depth], sizeof(q->path[0]), "%u event %d", n, e.type);
	return true;
}

static bool may_persist(struct search *q, struct state *s)
{
	if (!s->has_pending)
		return false;
	s->disk = s->pending;
	s->has_pending = false;
	feed(q, s, s->leader,
	     &(struct core_event){.type = CORE_EV_PERSISTED,
				  .id = {.term = s->disk.term, .seq = s->disk.seq}});
	snprintf(q->path[q->depth], sizeof(q->path[0]), "%u persisted", s->leader);
	return true;
}

/* The node is elected and begins with what is durable. The leader before it does not hear of that,
 * and what it has not written by now is never written. */
static void lead(struct search *q, struct state *s, uint16_t n)
{
	struct core_view view = s->disk; /* The event must not change with the disk. */

	s->has_pending = s->held = false;
	s->leader = n;
	feed(q, s, n,
	     &(struct core_event){
		     .type = CORE_EV_LEAD, .id.term = ++s->term, .view = view.term ? &view : NULL});
	feed(q, s, n, &(struct core_event){.type = CORE_EV_TICK});
}

static bool may_lead(struct search *q, struct state *s, uint16_t n)
{
	if (!s->takeovers)
		return false;
	s->takeovers--;
	lead(q, s, n);
	snprintf(q->path[q->depth], sizeof(q->path[0]), "%u leads", n);
	return true;
}

static bool may_restart(struct search *q, struct state *s, bool written)
{
	if (!s->restarts || (written && !s->has_pending))
		return false;
	s->restarts--;
	if (written)
		s->disk = s->pending;
	s->has_pending = false;
	s->down = s->held = false;
	s->draining[0] = (struct core_id){0};
	start(q, s, 0, false);
	feed(q, s, 0, &(struct core_event){.type = CORE_EV_TICK});
	for (uint16_t n = 1; n < q->shape.nodes_nr; n++)
		link_up(q, s, 0, n);
	snprintf(q->path[q->depth], sizeof(q->path[0]), "0 starts again");
	return true;
}

/* The node dies and comes back with what its core saved. Dying before its last messages left is
 * the same as losing them. */
static bool may_warm(struct search *q, struct state *s, uint16_t n)
{
	if (!s->warms)
		return false;
	s->warms--;
	s->draining[n] = (struct core_id){0};
	if (n == 0)
		s->has_pending = s->held = false;
	start(q, s, n, true);
	feed(q, s, n, &(struct core_event){.type = CORE_EV_WARM});
	if (n == 0)
		feed(q, s, n, &(struct core_event){.type = CORE_EV_TICK});
	for (uint16_t i = 0; i < q->shape.nodes_nr; i++) {
		if (i != n && !(s->down && i + n == 1))
			link_up(q, s, n, i);
	}
	if (n)
		join(q, s, n);
	snprintf(q->path[q->depth], sizeof(q->path[0]), "%u comes back warm", n);
	return true;
}

static bool may_flap(struct search *q, struct state *s) /* The link between 0 and 1. */
{
	if (!s->flaps && !s->down)
		return false;
	if (s->down) {
		link_up(q, s, 0, 1);
	} else {
		s->flaps--;
		feed(q, s, 0, &(struct core_event){.type = CORE_EV_LINK_DOWN, .node = 1});
		feed(q, s, 1, &(struct core_event){.type = CORE_EV_LINK_DOWN, .node = 0});
	}
	s->down = !s->down;
	snprintf(q->path[q->depth], sizeof(q->path[0]), "link 0-1 %s", s->down ? "down" : "up");
	return true;
}

static bool may_hold(struct search *q, struct state *s)
{
	struct core_event e = {.type = CORE_EV_HOLD, .on = !core_of(s, 0)->step.hold};

	if (e.on && !s->holds)
		return false;
	s->holds -= e.on;
	s->held = false;
	feed(q, s, 0, &e);
	snprintf(q->path[q->depth], sizeof(q->path[0]), "hold %s", e.on ? "on" : "off");
	return true;
}

static bool may(struct search *q, struct state *s, uint32_t what)
{
	uint32_t work = 6u * q->shape.nodes_nr;

	if (what < work)
		return may_work(q, s, (uint16_t)(what / 6), what % 6);
	what -= work;
	if (what == 0)
		return may_persist(q, s);
	if (what <= 2)
		return may_restart(q, s, what == 2);
	if (what == 3)
		return may_flap(q, s);
	if (what == 4)
		return may_hold(q, s);
	what -= 5;
	if (what < q->shape.nodes_nr)
		return may_warm(q, s, (uint16_t)what);
	what -= q->shape.nodes_nr;
	if (what < q->shape.nodes_nr)
		return may_lead(q, s, (uint16_t)what);
	return may_deliver(q, s, what - q->shape.nodes_nr);
}

/* Makes `to` the state `from`, from which it differs in these nodes. */
static void copy_state(const struct search *q, struct state *to, const struct state *from,
		       uint32_t nodes)
{
	for (uint16_t n = 0; n < q->shape.nodes_nr; n++) {
		if (!(nodes >> n & 1))
			continue;
		memcpy(to->memory[n], from->memory[n], q->room);
		memcpy(to->warm[n], from->warm[n], WARM_ROOM);
	}
	memcpy((char *)to + STATE_REST, (const char *)from + STATE_REST, sizeof(*to) - STATE_REST);
}

static void explore(struct search *q)
{
	struct state *s = &q->at[q->depth], *next = s + 1;
	uint32_t differ = ~0u;

	CHECK(q->depth + 2 < DEPTH_MAX);
	if (q->depth > q->deepest)
		q->deepest = q->depth;
	for (uint32_t what = 0; what < 8u * q->shape.nodes_nr + 5 + q->messages_nr && !q->failed &&
				q->states_nr < q->limit;
	     what++) {
		copy_state(q, next, s, differ);
		q->touched = 0;
		bool happened = may(q, next, what);

		differ = q->touched;
		if (!happened)
			continue;
		q->transitions_nr++;
		if (q->failed)
			return;
		if (seen_before(q, state_hash(q, next)))
			continue;
		q->states_nr++;
		q->depth++;
		explore(q);
		if (q->failed)
			return;
		q->depth--;
	}
}

static void first_state(struct search *q,
			/* The model is sealed, trainers have joined, and BEGIN is sent. */
			struct state *s)
{
	memset(s, 0, sizeof(*s));
	for (uint16_t n = 0; n < q->shape.nodes_nr; n++)
		start(q, s, n, false);
	if (q->shape.takeovers)
		lead(q, s, 0);
	else
		feed(q, s, 0, &(struct core_event){.type = CORE_EV_TICK});
	for (uint16_t n = 0; n < q->shape.nodes_nr; n++) {
		for (uint16_t m = n + 1u; m < q->shape.nodes_nr; m++)
			link_up(q, s, n, m);
	}
	for (uint16_t n = 1; n < q->shape.nodes_nr; n++)
		join(q, s, n);
	for (uint32_t round = 0; round < 20; round++) { /* Everything arrives in order. */
		uint32_t sent = q->messages_nr;

		may_persist(q, s);
		for (uint32_t i = 0; i < sent; i++) {
			if (q->message[i].msg.op != CORE_BEGIN)
				may_deliver(q, s, i);
		}
		if (round == 9)
			feed(q, s, 0,
			     &(struct core_event){.type = CORE_EV_WRITTEN, .step = FIRST_STEP - 1});
	}
	s->restarts = q->shape.restarts;
	s->warms = q->shape.warms;
	s->abandons = q->shape.abandons;
	s->flaps = q->shape.flaps;
	s->holds = q->shape.holds;
	s->takeovers = q->shape.takeovers;
	memset(s->sent, 0, sizeof(s->sent));
	for (uint32_t i = 0; i < q->messages_nr; i++) {
		if (q->message[i].msg.op == CORE_BEGIN)
			s->sent[i / 64] |= 1ull << (i % 64);
	}
}

static void enumerate(const struct shape *shape, size_t limit)
{
	const size_t sanitized_max = 8000; /* More states run no other code. */
	struct search *q =
		/* Its size is a multiple of 64, which is its alignment. */
		aligned_alloc(64, sizeof(*q));

	assert_non_null(q);
	memset(q, 0, sizeof(*q));
	q->shape = *shape;
	if (SANITIZED && limit > sanitized_max)
		limit = sanitized_max;
	q->limit = limit;
	q->seen_bits = 23;
	q->seen = calloc((size_t)1 << q->seen_bits, sizeof(*q->seen));
	q->at = calloc(DEPTH_MAX, sizeof(*q->at));
	assert_non_null(q->seen);
	assert_non_null(q->at);
	first_state(q, &q->at[0]);
	assert_null(q->failed);
	assert_true(core_of(&q->at[0], 0)->coord.undecided);
	explore(q);
	printf("verdict: %u nodes, %d restarts, %d abandoned, %d link losses, %d holds, %d warm, "
	       "%d takeovers: "
	       "%zu states, %zu transitions, "
	       "depth %u: "
	       "%s\n",
	       shape->nodes_nr, shape->restarts, shape->abandons, shape->flaps, shape->holds,
	       shape->warms, shape->takeovers, q->states_nr, q->transitions_nr, q->deepest,
	       q->failed              ? q->failed
	       : q->states_nr < limit ? "safe"
				      : "cut off");
	for (uint32_t i = 0; q->failed && i <= q->depth; i++)
		printf("  %2u. %s\n", i + 1, q->path[i]);
	assert_null(q->failed);
	assert_true(q->states_nr < limit || limit < STATES_MAX);
	free(q->seen);
	free(q->at);
	free(q);
}

static void test_two_nodes(void **state)
{
	(void)state;
	enumerate(&(struct shape){.nodes_nr = 2,
				  .chunks_nr = 1,
				  .owner = {1},
				  .restarts = 1,
				  .abandons = 1,
				  .flaps = 1},
		  STATES_MAX);
	enumerate(&(struct shape){.nodes_nr = 2,
				  .chunks_nr = 1,
				  .owner = {1},
				  .restarts = 1,
				  .abandons = 1,
				  .holds = 1},
		  STATES_MAX);
}

static void test_three_nodes(void **state)
{
	(void)state;
	enumerate(&(struct shape){.nodes_nr = 3, .chunks_nr = 2, .owner = {1, 2}, .abandons = 1},
		  STATES_MAX);
	enumerate(&(struct shape){.nodes_nr = 3,
				  .chunks_nr = 1,
				  .owner = {1},
				  .restarts = 1,
				  .lr_differs = true},
		  8000);
}

static void test_warm(void **state) /* Any of them may happen at any moment. */
{
	(void)state;
	enumerate(
		&(struct shape){
			.nodes_nr = 2, .chunks_nr = 1, .owner = {1}, .abandons = 1, .warms = 1},
		STATES_MAX);
	enumerate(
		&(struct shape){
			.nodes_nr = 2, .chunks_nr = 1, .owner = {0}, .abandons = 1, .warms = 1},
		STATES_MAX);
	enumerate(&(struct shape){.nodes_nr = 3, .chunks_nr = 1, .owner = {1}, .warms = 1}, 4000);
}

/* Another node is elected, or the same one again, at any moment. */
static void test_takeover(void **state)
{
	(void)state;
	for (uint16_t owner = 0; owner < 2; owner++)
		enumerate(&(struct shape){.nodes_nr = 2,
					  .chunks_nr = 1,
					  .owner = {owner},
					  .abandons = 1,
					  .takeovers = 1},
			  STATES_MAX);
	enumerate(&(struct shape){.nodes_nr = 3, .chunks_nr = 2, .owner = {1, 2}, .takeovers = 1},
		  10000);
}

static void test_longer(void **state) /* A minute, with CHECK_ALL. */
{
	(void)state;
	enumerate(
		&(struct shape){
			.nodes_nr = 2, .chunks_nr = 1, .owner = {1}, .restarts = 2, .abandons = 1},
		STATES_MAX);
	enumerate(&(struct shape){.nodes_nr = 3, .chunks_nr = 2, .owner = {1, 2}, .restarts = 1},
		  STATES_MAX);
	enumerate(&(struct shape){.nodes_nr = 3,
				  .chunks_nr = 1,
				  .owner = {1},
				  .restarts = 1,
				  .lr_differs = true},
		  60000);
	enumerate(&(struct shape){.nodes_nr = 3, .chunks_nr = 1, .owner = {1}, .warms = 1}, 8000);
}

static void test_more(void **state) /* Minutes, with VERDICT_FULL=1. */
{
	(void)state;
	enumerate(&(struct shape){.nodes_nr = 2,
				  .chunks_nr = 1,
				  .owner = {1},
				  .restarts = 2,
				  .abandons = 1,
				  .flaps = 1},
		  STATES_MAX);
	enumerate(&(struct shape){.nodes_nr = 3, .chunks_nr = 2, .owner = {1, 2}, .abandons = 2},
		  STATES_MAX);
	enumerate(&(struct shape){.nodes_nr = 3,
				  .chunks_nr = 1,
				  .owner = {1},
				  .restarts = 1,
				  .lr_differs = true},
		  STATES_MAX);
	enumerate(
		&(struct shape){
			.nodes_nr = 2, .chunks_nr = 1, .owner = {1}, .restarts = 1, .warms = 1},
		STATES_MAX);
	enumerate(&(struct shape){.nodes_nr = 2, .chunks_nr = 1, .owner = {0}, .warms = 2},
		  STATES_MAX);
	enumerate(&(struct shape){.nodes_nr = 3, .chunks_nr = 1, .owner = {1}, .warms = 1},
		  STATES_MAX);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_two_nodes), cmocka_unit_test(test_three_nodes),
		cmocka_unit_test(test_takeover), cmocka_unit_test(test_warm)};
	const struct CMUnitTest longer[] = {
		cmocka_unit_test(test_two_nodes), cmocka_unit_test(test_three_nodes),
		cmocka_unit_test(test_takeover), cmocka_unit_test(test_warm),
		cmocka_unit_test(test_longer)};
	const struct CMUnitTest more[] = {cmocka_unit_test(test_more)};

	setvbuf(stdout, NULL, _IOLBF,
		0); /* Each line shows whoever guards this run that it makes progress. */
	if (getenv("VERDICT_FULL"))
		return cmocka_run_group_tests(more, NULL, NULL);
	if (getenv("CHECK_ALL") && *getenv("CHECK_ALL"))
		return cmocka_run_group_tests(longer, NULL, NULL);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
