/* SPDX-License-Identifier: Apache-2.0 */
/* This node as a member: it promises, adopts views and answers the coordinator. core.c calls it. A
 * view is adopted only if it is newer than the current one and its term is not below the promise.
 * The coordinator made it durable before it sent it. Happy path: ASK makes the promise, drops what
 * was not voted for, and is answered with what this node holds. VIEW carries the last record, which
 * resolves PREPARED, drops the rest, and is answered with VIEW_OK. A step that is being applied
 * finishes first. A view of a new generation means that the model was LOST or rolled back.
 * Everything of the old generation is then dropped, and the trainers are told. A node also tells
 * the coordinator to which others it has no link (hear.h). */
#include "core/member.h"

#include "core/inner.h"
#include "core/slots.h"

#include <string.h>

/* --- whom it misses --- */

uint64_t member_misses(const struct core *c)
{
	uint64_t known = core_members(c)->nodes;

	for (uint16_t i = 0; i < CORE_NODES_MAX; i++) {
		if (c->link[i].known)
			known |= 1ull << i;
	}
	return known & ~c->linked;
}

/* Nothing is told before a view is adopted, or of a view of a term that is over. */
static bool member_tells(const struct core *c)
{
	return !core_coordinates(c) && c->member.term && c->member.term == c->member.promised;
}

static void member_say(struct ctx *x)
{
	const struct member *m = &x->c->member;
	struct core_id id = {.term = m->term, .seq = m->seq, .step = m->heard};

	core_send(x, core_coordinator(x->c), CORE_HEARD, &id)->misses = member_misses(x->c);
}

static void member_tell_again(struct ctx *x)
{
	struct core *c = x->c;

	if (member_misses(c) & core_members(c)->nodes && c->member.timer.at == UINT64_MAX)
		timer_start(c, &c->member.timer, x->now);
}

void member_tell(struct ctx *x)
{
	struct core *c = x->c;

	if (!member_tells(c))
		return;
	member_say(x);
	member_tell_again(x);
}

void member_on_tick(struct ctx *x)
{
	struct core *c = x->c;

	if (x->now < c->member.timer.at)
		return;
	if (back_tells(c)) {
		back_tell(x);
		timer_next(c, &c->member.timer, x->now);
		return;
	}
	if (!member_tells(c) || !core_linked(c, core_coordinator(c)) ||
	    !(member_misses(c) & core_members(c)->nodes)) {
		timer_stop(&c->member.timer);
		return;
	}
	member_say(x);
	timer_next(c, &c->member.timer, x->now);
}

static void member_answer(struct ctx *x, const struct core_msg *ask)
{
	struct core *c = x->c;
	struct step *s = &c->step;
	struct core_answer *a = &c->member.answer;
	struct core_msg *answer;

	memset(a, 0, sizeof(*a));
	a->incarnation = c->conf.who.incarnation;
	a->term = c->member.term;
	a->seq = c->member.seq;
	a->generation = c->member.generation;
	a->has_record = s->has_record;
	if (s->has_record)
		a->record = s->record;
	a->prepared = s->part == CORE_PREPARED;
	if (a->prepared) {
		a->id = s->id;
		a->world = s->world;
		step_vote_fill(c, &a->vote);
	}
	answer = core_send(x, ask->from, CORE_ANSWER, &ask->id);
	answer->answer = a;
	answer->misses = member_misses(c);
	answer->differs = c->member.recalled;
}

bool member_obeys(const struct core *c, const struct core_msg *m)
{
	uint16_t self = c->conf.self;
	bool opens = m->op == CORE_ASK || m->op == CORE_VIEW;

	if (c->member.recalled && !c->member.asked && m->op != CORE_ASK)
		return false;
	if (m->from == self)
		return core_coordinates(c);
	return m->from == c->member.leader ||
	       (c->conf.elected && opens && m->id.term > c->member.promised);
}

static void member_promise(struct member *m, uint64_t term, uint16_t leader)
{
	if (m->promised != term)
		m->heard = 0;
	m->promised = term;
	m->leader = leader;
}

void member_on_ask(struct ctx *x, const struct core_msg *m)
{
	struct core *c = x->c;

	/* A copy of ASK may arrive after the view of its own term. It would drop what that view
	 * began. */
	if (m->id.term < c->member.promised || m->id.term <= c->member.term)
		return;
	member_promise(&c->member, m->id.term, m->from);
	c->member.asked = true; /* The answer says what there is, and it counts from now on. */
	step_asked(x);
	member_answer(x, m);
}

static void member_ok(struct ctx *x)
{
	struct member *m = &x->c->member;
	struct core_id id = {.term = m->term, .seq = m->seq, .generation = m->generation};
	struct core_msg *ok;

	ok = core_send(x, core_coordinator(x->c), CORE_VIEW_OK, &id);
	ok->caught = x->c->step.caught;
	ok->misses = member_misses(x->c);
}

static void member_new_generation(struct ctx *x, const struct core_view *v)
{
	struct core *c = x->c;
	struct member *m = &c->member;
	struct core_action *a;
	const char *why = m->next_why[0] ? m->next_why
			  : v->sealed    ? "it was lost and sealed again while this node was away"
			  : v->restoring
				  ? "the model was LOST: it comes back from its newest checkpoint"
				  : "the model was LOST";
	bool tell = m->generation || m->next_why[0];

	step_drop(x, SHARD_WORLD_CHANGED, core_text(c, "%s", why));
	step_forget(x);
	c->backs = false;
	m->generation = v->generation;
	if (!tell)
		return;
	/* The hold ends here. The shell takes it for ended when it carries out the action below. */
	step_hold(x, false);
	a = core_act(x, CORE_ACT_LOST);
	a->id = (struct core_id){.term = v->term, .seq = v->seq, .generation = v->generation};
	a->why = core_text(c, "%s", why);
	/* If it is sealed, other weights are there already. */
	a->status = v->restoring || v->sealed ? SHARD_ROLLED_BACK : SHARD_LOST;
}

void member_place(struct core *c, const struct placement *p)
{
	uint32_t *index = core_at(c, c->at_index), late = 0;
	uint16_t self = c->conf.self;

	c->member.place = *p;
	c->votes_nr = 0;
	for (uint32_t i = 0; i < p->chunks_nr; i++)
		c->votes_nr += place_holds(p, i, self);
	memset(c->held_nr, 0, sizeof(c->held_nr));
	memset(c->primary_nr, 0, sizeof(c->primary_nr));
	c->grads_to = c->grads_from = 0;
	for (uint32_t i = 0; i < p->chunks_nr; i++) {
		uint64_t keepers = place_keepers(p, i);
		uint16_t primary = place_primary(p, i);

		/* Those that it votes for come first. It is read for chunks of this node only. */
		if (place_holds(p, i, self) || !(keepers >> self & 1))
			index[i] = c->held_nr[self] - late;
		else
			index[i] = c->votes_nr + late++;
		for (; keepers; keepers &= keepers - 1)
			c->held_nr[__builtin_ctzll(keepers)]++;
		if (primary >= CORE_NODES_MAX)
			continue;
		c->primary_nr[primary]++;
		if (primary == self)
			c->grads_to |= place_followers(p, i);
		else if (place_followers(p, i) >> self & 1)
			c->grads_from |= 1ull << primary;
	}
}

/* Has this node a copy of the chunk, as of its last record? */
static bool member_has(const struct core *c, uint32_t chunk)
{
	const struct placement *p = core_place(c);

	return place_holds(p, chunk, c->conf.self) ||
	       (c->step.caught && place_keeps(p, chunk, c->conf.self));
}

/* The weights of a chunk can only follow records one by one. A node whose copies count cannot adopt
 * a view that skips a record. A node that catches up can, because it fetches its copies, and it
 * counts only when it has them. A view may move chunks, but no copy counts that is not here. */
static bool member_follows(const struct core *c, const struct core_view *v)
{
	const struct step *s = &c->step;
	bool counts = false;

	if (v->generation != c->member.generation || !v->sealed)
		return true;
	for (uint32_t i = 0; i < c->conf.chunks_nr; i++) {
		if (!place_holds(&v->place, i, c->conf.self))
			continue;
		if (!member_has(c, i))
			return false;
		counts = true;
	}
	if (!counts)
		return true;
	if (s->has_record)
		return !core_id_cmp(&s->record.id, &v->record.id);
	return v->record.outcome == RECORD_SEAL;
}

/* Compares what this node has with what it shall have in the view: has it a copy of each chunk, and
 * are the chunks that it fetches the same? */
static struct step_copies member_compare(const struct core *c, const struct core_view *v)
{
	struct step_copies is = {.complete = true, .fetched = true};
	uint16_t self = c->conf.self;

	for (uint32_t i = 0; i < c->conf.chunks_nr; i++) {
		bool keeps = place_keeps(&v->place, i, self),
		     fetches = keeps && !place_holds(&v->place, i, self),
		     fetched = place_keeps(core_place(c), i, self) &&
			       !place_holds(core_place(c), i, self);

		is.complete = is.complete && (!keeps || member_has(c, i));
		is.fetched = is.fetched && fetches == fetched;
	}
	return is;
}

/* The members and the placement of the view that is adopted. */
static void member_take_place(struct ctx *x, const struct core_view *v)
{
	struct core *c = x->c;
	struct member *m = &c->member;

	m->members = v->members;
	slots_placed(c);
	if (place_same(&m->place, &v->place))
		return;
	member_place(c, &v->place);
	core_act(x, CORE_ACT_PLACED)->place = &m->place;
}

static void member_resume(struct ctx *x)
{
	struct core *c = x->c;
	struct member *m = &c->member;
	const struct core_view *v = &m->next;
	struct step_copies copies;
	bool again, counted;

	if (!m->has_next)
		return;
	/* If this node is PREPARED, the view is the verdict. */
	if (v->sealed && v->generation == m->generation)
		(void)step_took(x, &v->record);
	if (c->step.part == CORE_APPLYING)
		return;
	m->has_next = false;
	if (!member_follows(c, v))
		return;
	if (v->generation != m->generation)
		member_new_generation(x, v);
	step_drop(x, SHARD_WORLD_CHANGED, "the view changed");
	step_new_view(x);
	counted = core_counts(c, c->conf.self);
	copies = member_compare(c, v);
	member_take_place(x, v);
	if (v->sealed)
		step_take_record(x, &v->record, &copies);
	/* A node that was no member is one again, and so may have missed a view, or there is a new
	 * coordinator. Neither way does it know the trainers of this node. */
	again = v->term != m->term || v->seq != m->seq + 1 ||
		(counted && !core_counts(c, c->conf.self));
	m->recalled = m->asked = false;
	m->term = v->term;
	m->seq = v->seq;
	m->sealed = v->sealed;
	m->restoring = v->restoring;
	m->lost = v->lost;
	m->tune = v->tune;
	/* The coordinator knows the trainers of this node before it may begin an attempt. */
	if (again)
		local_tell_again(x);
	member_ok(x);
	member_tell_again(x);
}

bool member_is_in(const struct core *c, const struct view_members *v)
{
	uint16_t self = c->conf.self;

	return view_is_member(v, self) &&
	       !memcmp(v->node[self].uuid, c->conf.who.uuid, VIEW_UUID_BYTES);
}

void member_on_view(struct ctx *x, const struct core_msg *msg)
{
	struct member *m = &x->c->member;
	const struct core_view *v = msg->view;
	struct placement place;

	if (!v || v->term < m->promised || v->generation < m->generation)
		return;
	/* A view does not tell a node that it is out of the members, and it does not name another
	 * coordinator than its sender. In the slot of this node it names this node. */
	if (!view_members_ok(&v->members, x->c->conf.slots) || !view_names_ok(&v->members) ||
	    !member_is_in(x->c, &v->members) || view_coordinator(&v->members) != msg->from)
		return;
	/* It says of each chunk which member holds it. */
	place = v->place;
	place.gone = ~v->members.nodes;
	if (place.chunks_nr != x->c->conf.chunks_nr || !place_ok(&place, &v->members))
		return;
	member_promise(m, v->term, msg->from);
	if (v->term == m->term && v->seq == m->seq) {
		member_ok(x);
		return;
	}
	if (v->term < m->term || (v->term == m->term && v->seq < m->seq))
		return;
	if (m->has_next &&
	    (v->term < m->next.term || (v->term == m->next.term && v->seq <= m->next.seq)))
		return;
	m->next = *v;
	m->next.place = place;
	m->has_next = true;
	core_copy_text(m->next_why, sizeof(m->next_why), msg->why);
	member_resume(x);
}

void member_on_waiting(struct ctx *x, const struct core_msg *msg)
{
	struct member *m = &x->c->member;

	if (msg->id.term < m->promised)
		return;
	m->waits_id = msg->id;
	core_copy_text(m->waits, sizeof(m->waits), msg->why);
}

/* Which view is meant has to be clear, because another one may give this node chunks that it does
 * not have yet. */
void member_tell_caught(struct ctx *x)
{
	const struct member *m = &x->c->member;
	const struct record *r = &x->c->step.record;

	if (r->id.term == m->term && r->id.seq == m->seq)
		core_send(x, core_coordinator(x->c), CORE_DONE, &r->id)->caught = true;
	else
		member_ok(x);
}

/* Complete copies are told again, because the message may have been lost. */
void member_on_hear(struct ctx *x, const struct core_msg *m)
{
	struct core *c = x->c;
	struct core_id id = m->id;

	if (m->id.term < c->member.promised)
		return;
	c->member.heard = m->id.step;
	id.seq = c->member.term == m->id.term ? c->member.seq : 0;
	core_send(x, m->from, CORE_HEARD, &id)->misses = member_misses(c);
	if (c->step.caught)
		member_tell_caught(x);
}

/* What this node has of the model must not be trusted, and its process ends. */
void member_on_odd(struct ctx *x, const struct core_msg *m)
{
	struct core *c = x->c;
	struct core_action *a;

	if (m->id.term < c->member.promised || m->id.generation != c->member.generation || c->odd)
		return;
	c->odd = c->stopping = true;
	if (c->step.part == CORE_STAGING)
		step_abandon(x, SHARD_WORLD_CHANGED, "the votes of this node differ");
	a = core_act(x, CORE_ACT_ODD);
	a->id = m->id;
	a->why = core_text(c, "%s", m->why ? m->why : "no reason given");
}

void member_on_applied(struct ctx *x, const struct core_event *e)
{
	step_applied(x, e->on);
	member_resume(x);
	step_resume(x);
}
