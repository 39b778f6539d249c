/* SPDX-License-Identifier: Apache-2.0 */
/* The register of core/quorum.h at each node, with the simulated links and disks. What the source
 * `quorum` of the daemon does is done here: events are handled one at a time, a change is synced
 * before any of its actions is done, and what comes meanwhile waits. Messages are lost, late,
 * copied and reordered like those of the cores. A process may die while it writes, and finds the
 * old state or the new one. A value on a disk is only a number here, and s->ballots has what it
 * stands for. The leader makes more nodes voters, and sometimes exchanges one. */
#include "sim/sim.h"

#include <stdlib.h>
#include <string.h>

#define VOTERS_BEAT_NS  (40 * MS)
#define VOTERS_ELECT_NS (200 * MS)

enum ballot_kind { BALLOT_MSG, BALLOT_UP, BALLOT_DOWN, BALLOT_PROPOSE };

struct paper { /* A value without the bytes that nobody uses. */
	bool has;
	uint64_t seq;
	uint32_t number, voters_nr;
	uint8_t writer[QUORUM_UUID_BYTES], voter[QUORUM_VOTERS_MAX][QUORUM_UUID_BYTES];
};

struct ballot { /* What the register of a node has to handle. */
	enum ballot_kind kind;
	uint16_t peer;
	uint32_t epoch;
	uint64_t start; /* Of the process that proposes, or that the link belongs to. */
	struct quorum_msg msg;
	struct paper paper;
	uint32_t number; /* Of the value that is proposed. */
};

struct voter {
	void *memory;
	struct quorum_disk disk; /* What was synced last. */
	bool writing;
	uint64_t synced_at, tick_at;
	struct sim_value *proposed; /* It is not answered yet. */
	struct quorum_out out;      /* Its actions wait for the disk. */
};

static struct quorum *voter_of(const struct sim *s, uint16_t n)
{
	return s->node[n].voter->memory;
}

static void voter_uuid(uint8_t uuid[QUORUM_UUID_BYTES], uint16_t n)
{
	memset(uuid, 0x77, QUORUM_UUID_BYTES);
	uuid[0] = (uint8_t)(n + 1);
}

static uint32_t value_number(const struct quorum_value *v)
{
	uint32_t number;

	CHECK(v->bytes_nr == sizeof(number));
	memcpy(&number, v->bytes, sizeof(number));
	return number;
}

static bool votes(const struct quorum_value *v, uint16_t n)
{
	for (uint32_t i = 0; i < v->voters_nr; i++) {
		if (v->voter[i][0] == n + 1)
			return true;
	}
	return false;
}

static void paper_fold(struct paper *p, const struct quorum_value *v)
{
	*p = (struct paper){.has = v != NULL};
	if (!v)
		return;
	p->seq = v->seq;
	p->number = value_number(v);
	p->voters_nr = v->voters_nr;
	memcpy(p->writer, v->writer, sizeof(p->writer));
	memcpy(p->voter, v->voter, sizeof(p->voter));
}

static const struct quorum_value *paper_unfold(struct sim *s, const struct paper *p)
{
	struct quorum_value *v = &s->paper;

	if (!p->has)
		return NULL;
	v->seq = p->seq;
	v->voters_nr = p->voters_nr;
	v->bytes_nr = sizeof(p->number);
	memcpy(v->bytes, &p->number, sizeof(p->number));
	memcpy(v->writer, p->writer, sizeof(v->writer));
	memcpy(v->voter, p->voter, sizeof(v->voter));
	return v;
}

/* --- values --- */

/* Keeps what the value of this number stands for. */
static uint32_t ballots_add(struct sim *s, struct sim_value *v)
{
	if (s->ballots_nr == s->ballots_cap) {
		s->ballots_cap = s->ballots_cap ? 2 * s->ballots_cap : 64;
		s->ballots = realloc(s->ballots, s->ballots_cap * sizeof(s->ballots[0]));
		CHECK(s->ballots);
	}
	s->ballots[s->ballots_nr] = v;
	return s->ballots_nr++;
}

/* A majority keeps the value. One that is known already has to be the same one. */
static void voters_chosen(struct sim *s, const struct quorum_value *v)
{
	uint32_t number = value_number(v);

	if (v->seq < s->reg.seq)
		return;
	if (v->seq == s->reg.seq) {
		if (number != s->chosen)
			sim_fail(s, "one_register", "value %llu is number %u, and was number %u",
				 (unsigned long long)v->seq, number, s->chosen);
		return;
	}
	s->chosen = number;
	s->landed_late += s->ballots[number]->how == ANSWER_UNKNOWN;
	elect_lands(s, s->ballots[number]);
}

/* --- actions --- */

static void voter_send(struct sim *s, uint16_t n, const struct quorum_msg *m)
{
	uint16_t to = (uint16_t)(m->to[0] - 1);
	uint32_t copies = 1 + (s->faults && sim_chance(s, s->copy)), epoch = s->node[n].link[to];

	if (!epoch || (s->faults && sim_chance(s, s->loss)) ||
	    one_way_lost(s, n, s->node[n].end[to]))
		return;
	for (; copies; copies--) {
		struct ballot *b = calloc(1, sizeof(*b));

		CHECK(b);
		b->peer = n;
		b->epoch = epoch;
		b->msg = *m;
		paper_fold(&b->paper, m->value);
		link_time(s, n, to, SIM_VOTE_MSG)->ballot = b;
	}
}

static void voter_answers(struct sim *s, uint16_t n, const struct quorum_action *a)
{
	static const enum sim_answer rows[] = {[QUORUM_OK] = ANSWER_OK,
					       [QUORUM_CONFLICT] = ANSWER_CONFLICT,
					       [QUORUM_FENCED] = ANSWER_FENCED,
					       [QUORUM_UNKNOWN] = ANSWER_UNKNOWN};
	struct sim_value *v = s->node[n].voter->proposed;

	CHECK(v);
	s->node[n].voter->proposed = NULL;
	if (a->how == QUORUM_OK)
		voters_chosen(s, a->value);
	v->how = rows[a->how];
	elect_answer(s, v);
}

/* The views of all models in the value of this number. A proposal has only those that it changes,
 * and the rest is in those before it. */
static struct sim_value *ballots_read(struct sim *s, uint16_t n, uint32_t number)
{
	struct sim_value *v = elect_value(s, n);

	v->seq = s->ballots[number]->seq;
	for (;; number = s->ballots[number]->base) {
		const struct sim_value *from = s->ballots[number];

		for (uint16_t i = 0; i < s->models_nr; i++) {
			if (from->models & ~v->models & 1u << i)
				v->view[i] = from->view[i];
		}
		v->models |= from->models;
		if (!number)
			return v;
	}
}

/* It may hear so when another node leads a later term already. */
static void voter_leads(struct sim *s, uint16_t n, const struct quorum_action *a)
{
	struct sim_value *v;

	voters_chosen(s, a->value);
	if (a->term == s->reg.term)
		sim_fail(s, "one_leader", "n%u is elected in term %llu, as n%u is", n,
			 (unsigned long long)a->term, s->lead);
	if (a->term > s->reg.term && a->value->seq != s->reg.seq)
		sim_fail(s, "one_register", "n%u leads with value %llu, but there is %llu", n,
			 (unsigned long long)a->value->seq, (unsigned long long)s->reg.seq);
	if (a->term > s->reg.term)
		elect_is(s, n, a->term);
	v = ballots_read(s, n, value_number(a->value));
	v->term = a->term;
	elect_leading(s, v);
	free(v);
}

static void voter_acts(struct sim *s, uint16_t n, const struct quorum_action *a)
{
	switch (a->type) {
	case QUORUM_ACT_SEND:
		voter_send(s, n, &a->msg);
		break;
	case QUORUM_ACT_VIEW:
		voters_chosen(s, a->value);
		break;
	case QUORUM_ACT_LEADING:
		voter_leads(s, n, a);
		break;
	case QUORUM_ACT_LOST:
		elect_lost(s, n, a->term);
		break;
	case QUORUM_ACT_DONE:
		voter_answers(s, n, a);
		break;
	case QUORUM_ACT_FAILED:
		sim_fail(s, "one_register", "the register of n%u fails: %s", n, a->why);
	case QUORUM_ACT_LEADER:
	case QUORUM_ACT_READ:
		break;
	}
}

void voters_timer(struct sim *s, uint16_t n)
{
	struct voter *v = s->node[n].voter;
	uint64_t at = v ? quorum_deadline(voter_of(s, n)) : UINT64_MAX;

	if (at == UINT64_MAX || v->writing)
		return;
	at = clock_when(s, n, at);
	if (v->tick_at == at)
		return;
	v->tick_at = at;
	sim_at(s, at - s->now, SIM_VOTE_TICK, n);
}

static void voter_act(struct sim *s, uint16_t n)
{
	struct voter *v = s->node[n].voter;
	uint64_t start = s->node[n].starts;

	for (uint32_t i = 0; i < v->out.nr; i++) {
		if (!s->node[n].alive || s->node[n].starts != start)
			return;
		voter_acts(s, n, &v->out.act[i]);
	}
	if (s->node[n].alive && s->node[n].starts == start)
		voters_timer(s, n);
}

/* --- events --- */

static void voter_handle(struct sim *s, uint16_t n, const struct quorum_event *e)
{
	struct voter *v = s->node[n].voter;

	quorum_handle(voter_of(s, n), e, clock_of(s, n), &v->out);
	if (!v->out.sync) {
		voter_act(s, n);
		return;
	}
	v->writing = true;
	v->synced_at = s->now + sim_between(s, 300000, s->faults ? 20 * MS : 5 * MS);
	sim_at(s, v->synced_at - s->now, SIM_VOTE_SYNCED, n);
}

void voters_synced(struct sim *s, const struct sim_event *e)
{
	struct voter *v = s->node[e->node].voter;

	v->writing = false;
	v->disk = *quorum_disk(voter_of(s, e->node));
	if (s->faults && sim_chance(s, s->dies)) { /* Nobody hears of it. */
		fault_crash(s, e->node);
		return;
	}
	voter_act(s, e->node);
}

void voters_tick(struct sim *s, const struct sim_event *e)
{
	struct voter *v = s->node[e->node].voter;
	struct quorum_event tick = {.type = QUORUM_EV_TICK};

	if (v->tick_at != e->at && v->tick_at > s->now)
		return;
	v->tick_at = 0;
	if (!v->writing) /* The end of the write looks at the clock again. */
		voter_handle(s, e->node, &tick);
}

/* The value that a proposal makes of the one that is there. */
static void voter_proposes(struct sim *s, uint16_t n, uint32_t number)
{
	struct sim_value *to = s->ballots[number];
	const struct quorum_value *now = &quorum_disk(voter_of(s, n))->value;
	struct quorum_event e = {.type = QUORUM_EV_PROPOSE, .term = to->term, .seq = to->seq - 1};
	struct paper p;

	paper_fold(&p, now);
	p.number = number;
	to->base = value_number(now);
	for (size_t i = 0; i < sizeof(p.writer); i++)
		p.writer[i] = (uint8_t)sim_between(s, 0, 255);
	if (to->voter != NOWHERE && !votes(now, to->voter)) {
		voter_uuid(p.voter[p.voters_nr++], to->voter);
	} else if (to->voter != NOWHERE) {
		for (uint32_t i = 0; i < p.voters_nr; i++) {
			if (p.voter[i][0] != to->voter + 1)
				continue;
			memcpy(p.voter[i], p.voter[--p.voters_nr], sizeof(p.voter[i]));
			memset(p.voter[p.voters_nr], 0, sizeof(p.voter[i]));
		}
	}
	s->node[n].voter->proposed = to;
	e.value = paper_unfold(s, &p);
	voter_handle(s, n, &e);
}

/* The write may end later than it should, because the process stands still. */
static uint64_t voter_wait(const struct sim *s, const struct voter *v)
{
	return v->writing && v->synced_at > s->now ? v->synced_at - s->now : MS;
}

/* A message, a link or a proposal. What comes while the disk is written waits in order. */
void voters_message(struct sim *s, const struct sim_event *e)
{
	struct sim_node *nd = &s->node[e->node];
	struct ballot *b = e->ballot;
	struct quorum_event ev = {.type = QUORUM_EV_MSG, .msg = &b->msg};
	bool here = nd->alive && (b->kind == BALLOT_MSG ? nd->link[b->peer] == b->epoch
							: nd->starts == b->start);

	if (here && (nd->voter->writing ||
		     (b->kind == BALLOT_PROPOSE && !quorum_may_propose(voter_of(s, e->node))))) {
		sim_at(s, voter_wait(s, nd->voter), SIM_VOTE_MSG, e->node)->ballot = b;
		return;
	}
	if (here && b->kind == BALLOT_PROPOSE) {
		voter_proposes(s, e->node, b->number);
	} else if (here) {
		if (b->kind != BALLOT_MSG)
			ev.type = b->kind == BALLOT_UP ? QUORUM_EV_UP : QUORUM_EV_DOWN;
		voter_uuid(ev.uuid, b->peer);
		b->msg.value = paper_unfold(s, &b->paper);
		voter_handle(s, e->node, &ev);
	}
	free(b);
}

static struct ballot *voter_later(struct sim *s, uint16_t n, enum ballot_kind kind)
{
	struct ballot *b = calloc(1, sizeof(*b));

	CHECK(b);
	b->kind = kind;
	b->start = s->node[n].starts;
	sim_at(s, 1000, SIM_VOTE_MSG, n)->ballot = b;
	return b;
}

void voters_propose(struct sim *s, struct sim_value *v)
{
	voter_later(s, v->node, BALLOT_PROPOSE)->number = ballots_add(s, v);
}

void voters_link(struct sim *s, uint16_t n, uint16_t peer, bool up)
{
	if (s->quorum)
		voter_later(s, n, up ? BALLOT_UP : BALLOT_DOWN)->peer = peer;
}

/* The event in hand may be one of this register, whose actions are not all done. */
void voters_resign(struct sim *s, uint16_t n)
{
	sim_at(s, 1000, SIM_VOTE_RESIGN, n);
}

void voters_resigns(struct sim *s, const struct sim_event *e)
{
	struct quorum_event resign = {.type = QUORUM_EV_RESIGN};
	struct voter *v = s->node[e->node].voter;

	if (v->writing)
		sim_at(s, voter_wait(s, v), SIM_VOTE_RESIGN, e->node);
	else
		voter_handle(s, e->node, &resign);
}

/* --- life --- */

/* The first voters have the first value, which is as old as the cluster. */
static void voter_first(const struct sim *s, uint16_t n, struct quorum_disk *disk)
{
	uint16_t nr = s->first_nr >= 5 ? 5 : s->first_nr >= 3 ? 3 : 1;
	uint32_t none = 0;

	if (n >= nr)
		return;
	disk->promised = disk->term = 1ull << QUORUM_ORDINAL_BITS;
	disk->value.seq = 1;
	disk->value.voters_nr = nr;
	disk->value.bytes_nr = sizeof(none);
	disk->value.writer[0] = 1;
	for (uint16_t i = 0; i < nr; i++)
		voter_uuid(disk->value.voter[i], i);
}

void voters_started(struct sim *s, uint16_t n)
{
	struct sim_node *nd = &s->node[n];
	struct quorum_conf conf = {.ordinal = n,
				   .beat_ns = VOTERS_BEAT_NS,
				   .election_ns = VOTERS_ELECT_NS,
				   .deadline_ns = PROPOSE_NS,
				   .seed = sim_between(s, 0, UINT32_MAX)};

	voter_uuid(conf.self, n);
	if (!nd->voter) {
		nd->voter = calloc(1, sizeof(*nd->voter));
		CHECK(nd->voter);
		nd->voter->memory = calloc(1, (quorum_bytes() + 15) & ~(size_t)15);
		CHECK(nd->voter->memory);
		voter_first(s, n, &nd->voter->disk);
	}
	memset(nd->voter->memory, 0, quorum_bytes());
	if (!quorum_init(nd->voter->memory, &conf, &nd->voter->disk, clock_of(s, n)))
		sim_fail(s, "one_register", "n%u cannot begin with what is on its disk", n);
	voters_timer(s, n);
}

/* The write may have reached the disk without anybody having heard. */
void voters_crashed(struct sim *s, uint16_t n)
{
	struct voter *v = s->node[n].voter;

	if (!v)
		return;
	if (v->writing && sim_chance(s, 500))
		v->disk = *quorum_disk(voter_of(s, n));
	v->writing = false;
	v->tick_at = 0;
	if (v->proposed)
		v->proposed->how = ANSWER_UNKNOWN;
	v->proposed = NULL;
}

void voters_free(struct sim *s)
{
	for (uint16_t i = 0; i < SLOTS; i++) {
		if (s->node[i].voter)
			free(s->node[i].voter->memory);
		free(s->node[i].voter);
	}
	for (uint32_t i = 0; i < s->ballots_nr; i++)
		free(s->ballots[i]);
	free(s->ballots);
	s->ballots = NULL;
	s->ballots_nr = s->ballots_cap = 0;
}

void voters_begin(struct sim *s)
{
	struct sim_value *first = elect_value(s, 0);

	first->seq = s->reg.seq = 1;
	(void)ballots_add(s, first);
	sim_at(s, 100 * MS, SIM_VOTERS, NOWHERE);
}

/* The voter that the leader exchanges, or a node that becomes one. NOWHERE: none. */
static uint16_t voters_next(struct sim *s, const struct quorum_value *v)
{
	uint32_t want = s->nodes_nr >= 5 ? 5 : s->nodes_nr >= 3 ? 3 : 1;
	uint16_t n = (uint16_t)sim_between(s, 0, s->nodes_nr - 1u);
	bool all = true, there = n == s->lead || s->node[s->lead].link[n];

	for (uint16_t i = 0; i < s->nodes_nr; i++)
		all = all && (!votes(v, i) || i == s->lead || s->node[s->lead].link[i]);
	if (v->voters_nr < want || (all && v->voters_nr == want && s->faults && sim_chance(s, 50)))
		return there && !votes(v, n) && v->voters_nr < QUORUM_VOTERS_MAX ? n : NOWHERE;
	return all && v->voters_nr > want && votes(v, n) ? n : NOWHERE;
}

void voters_look(struct sim *s, const struct sim_event *e)
{
	const struct sim_node *nd = &s->node[s->lead];
	uint16_t n;

	(void)e;
	sim_at(s, sim_between(s, 50 * MS, 300 * MS), SIM_VOTERS, NOWHERE);
	if (!nd->alive || nd->paused || !nd->lead.term || nd->lead.term != s->reg.term ||
	    nd->voter->writing)
		return;
	n = voters_next(s, &quorum_disk(voter_of(s, s->lead))->value);
	if (n != NOWHERE && n != s->stranger)
		elect_change(s, s->lead, n);
}
