/* SPDX-License-Identifier: Apache-2.0 */
/* The node that leads: it writes one value at a time until a majority has accepted it, speaks to
 * all peers each beat, and answers reads. */
#include "core/quorum_parts.h"

#include "base/check.h"

#include <string.h>

void quorum_lead_one(struct quorum *q, const struct quorum_peer *to, struct quorum_out *out)
{
	CHECK(q->phase >= QUORUM_WRITING);
	quorum_send(q, to,
		    (struct quorum_msg){
			    .op = QUORUM_LEAD,
			    .term = q->term,
			    .chosen_seq = q->chosen_seq,
			    .round = q->round,
			    .value = to->acked_seq >= q->disk.value.seq ? NULL : &q->disk.value},
		    out);
}

void quorum_lead_all(struct quorum *q, uint64_t now, struct quorum_out *out)
{
	for (uint32_t i = 1; i < q->peers_nr; i++)
		quorum_lead_one(q, &q->peer[i], out);
	q->beat_at = now + q->conf.beat_ns;
}

void quorum_step_down(struct quorum *q, const char *why, uint64_t now, struct quorum_out *out)
{
	if (q->done_at != QUORUM_NEVER) {
		struct quorum_action *a = quorum_act(out, QUORUM_ACT_DONE);

		/* Others may have accepted it, and may bring it back (V7). */
		a->how = QUORUM_UNKNOWN;
		a->term = q->term;
	}
	q->done_at = QUORUM_NEVER;
	if (q->phase == QUORUM_LEADING) {
		struct quorum_action *a = quorum_act(out, QUORUM_ACT_LOST);

		a->term = q->term;
		a->why = why;
		quorum_leader_is(q, quorum_nobody, 0, out);
	}
	q->phase = QUORUM_IDLE;
	q->beat_at = QUORUM_NEVER;
	for (uint32_t i = 0; i < q->peers_nr; i++)
		q->peer[i].reads = false;
	quorum_elect_after(q, now, q->conf.election_ns);
}

/* A read is answered when a majority has confirmed, after it began, that it has promised nothing
 * higher. While a proposal is under way it waits. */
static bool confirmed(struct quorum *q, uint64_t round)
{
	uint64_t peers = 1;

	for (uint32_t i = 1; i < q->peers_nr; i++)
		if (q->peer[i].round >= round)
			peers |= quorum_bit(q, &q->peer[i]);
	return quorum_majority(q, &q->disk.value, peers);
}

static void answer_reads(struct quorum *q, struct quorum_out *out)
{
	if (q->phase != QUORUM_LEADING || q->chosen_seq != q->disk.value.seq)
		return;
	for (uint32_t i = 0; i < q->peers_nr; i++) {
		struct quorum_peer *p = &q->peer[i];

		if (!p->reads || !confirmed(q, p->after))
			continue;
		p->reads = false;
		if (i > 0) {
			quorum_send(q, p,
				    (struct quorum_msg){.op = QUORUM_IS,
							.term = q->term,
							.round = p->asked,
							.value = &q->disk.value},
				    out);
		} else if (q->reading) {
			q->reading = false;
			q->read_at = QUORUM_NEVER;
			quorum_act(out, QUORUM_ACT_READ)->value = &q->disk.value;
		}
	}
}

/* Has a majority accepted the value in hand at this node's term? */
static bool try_chosen(struct quorum *q, struct quorum_out *out)
{
	uint64_t peers = 0;

	if (q->phase < QUORUM_WRITING || q->chosen_seq == q->disk.value.seq)
		return false;
	for (uint32_t i = 0; i < q->peers_nr; i++)
		if (q->peer[i].acked_seq == q->disk.value.seq)
			peers |= quorum_bit(q, &q->peer[i]);
	if (!quorum_majority(q, &q->disk.value, peers))
		return false;
	q->chosen_seq = q->disk.value.seq;
	quorum_view(q, out);
	if (q->phase == QUORUM_WRITING) {
		struct quorum_action *a;

		q->phase = QUORUM_LEADING;
		quorum_leader_is(q, q->conf.self, q->term, out);
		a = quorum_act(out, QUORUM_ACT_LEADING);
		a->term = q->term;
		a->value = &q->disk.value;
	} else if (q->done_at != QUORUM_NEVER) {
		struct quorum_action *a = quorum_act(out, QUORUM_ACT_DONE);

		a->how = QUORUM_OK;
		a->term = q->term;
		a->value = &q->disk.value;
	}
	q->done_at = QUORUM_NEVER;
	return true;
}

/* May it lead, and does it have as much of the value as any other voter? */
static bool lead_for(const struct quorum *q, const struct quorum_peer *p, uint64_t seq)
{
	return p->linked && quorum_names(&q->disk.value, p->uuid) && p->acked_seq >= seq;
}

/* Gives the lead to a voter that can use it soonest. Of several it is another one in other terms,
 * because who gets it may have reason to resign, too. */
void quorum_resign(struct quorum *q, const char *why, uint64_t now, struct quorum_out *out)
{
	const struct quorum_peer *to = NULL;
	uint64_t term = q->term, seq = 0,
		 draw = (term >> QUORUM_ORDINAL_BITS) * 0x9e3779b97f4a7c15ull >> 33;
	uint32_t nr = 0;

	for (uint32_t i = 1; i < q->peers_nr; i++)
		if (lead_for(q, &q->peer[i], seq))
			seq = q->peer[i].acked_seq;
	for (uint32_t i = 1; i < q->peers_nr; i++)
		nr += lead_for(q, &q->peer[i], seq);
	for (uint32_t i = 1, k = 0; i < q->peers_nr; i++)
		if (lead_for(q, &q->peer[i], seq) && k++ == draw % nr)
			to = &q->peer[i];
	quorum_step_down(q, why, now, out);
	if (to != NULL)
		quorum_send(q, to, (struct quorum_msg){.op = QUORUM_GO, .term = term}, out);
}

/* Tells everybody what is chosen. A leader that is not a voter any more has done its work. */
static void chosen(struct quorum *q, uint64_t now, struct quorum_out *out)
{
	quorum_lead_all(q, now, out);
	answer_reads(q, out);
	if (!quorum_names(&q->disk.value, q->conf.self))
		quorum_resign(q, "this node is not a voter any more", now, out);
}

/* Accepts v at this node's own term. The node that leads is an acceptor like the others. */
void quorum_write_value(struct quorum *q, const struct quorum_value *v, uint64_t now,
			struct quorum_out *out)
{
	CHECK(q->disk.promised == q->term &&
	      quorum_above(q->term, v->seq, q->disk.term, q->disk.value.seq));
	q->disk.term = q->term;
	q->disk.value = *v;
	out->sync = true;
	q->peer[0].acked_seq = v->seq;
	if (try_chosen(q, out))
		chosen(q, now, out);
	else
		quorum_lead_all(q, now, out);
}

void quorum_on_heard(struct quorum *q, struct quorum_peer *p, const struct quorum_msg *m,
		     uint64_t now, struct quorum_out *out)
{
	if (q->phase < QUORUM_WRITING || m->term != q->term)
		return;
	p->heard_ns = now;
	if (m->round > p->round && m->round <= q->round)
		p->round = m->round;
	if (m->accepted == q->term && m->seq > p->acked_seq && m->seq <= q->disk.value.seq)
		p->acked_seq = m->seq;
	if (try_chosen(q, out))
		chosen(q, now, out);
	else
		answer_reads(q, out);
}

void quorum_on_read(struct quorum *q, struct quorum_peer *p, const struct quorum_msg *m,
		    uint64_t now, struct quorum_out *out)
{
	if (q->phase != QUORUM_LEADING)
		return;
	p->reads = true;
	p->asked = m->round;
	p->after = ++q->round;
	quorum_lead_all(q, now, out);
	answer_reads(q, out);
}

static bool one_changes(const struct quorum_value *a, const struct quorum_value *b)
{
	uint32_t differ = 0;

	for (uint32_t i = 0; i < a->voters_nr; i++)
		differ += !quorum_names(b, a->voter[i]);
	for (uint32_t i = 0; i < b->voters_nr; i++)
		differ += !quorum_names(a, b->voter[i]);
	return differ <= 1;
}

void quorum_propose(struct quorum *q, const struct quorum_event *e, uint64_t now,
		    struct quorum_out *out)
{
	bool leads = q->phase == QUORUM_LEADING && e->term == q->term;

	CHECK(quorum_may_propose(q));
	if (!leads || e->seq != q->disk.value.seq) {
		struct quorum_action *a = quorum_act(out, QUORUM_ACT_DONE);

		a->how = leads ? QUORUM_CONFLICT : QUORUM_FENCED;
		a->term = e->term;
		return;
	}
	q->best = *e->value;
	q->best.seq = q->disk.value.seq + 1;
	/* Two majorities have a node in common only if at most one voter differs (V8). */
	CHECK(quorum_value_ok(&q->best) && one_changes(&q->disk.value, &q->best));
	q->done_at = now + q->conf.deadline_ns;
	quorum_write_value(q, &q->best, now, out);
}

void quorum_read_again(struct quorum *q, uint64_t now, struct quorum_out *out)
{
	const struct quorum_peer *p =
		quorum_same(q->leader, quorum_nobody) ? NULL : quorum_find(q, q->leader);

	if (q->phase == QUORUM_LEADING && !q->peer[0].reads) {
		q->peer[0].reads = true;
		q->peer[0].after = ++q->round;
		quorum_lead_all(q, now, out);
		answer_reads(q, out);
	} else if (q->phase != QUORUM_LEADING && p != NULL) {
		quorum_send(q, p, (struct quorum_msg){.op = QUORUM_READ, .round = q->read_round},
			    out);
	}
	q->read_again_at = now + q->conf.beat_ns;
}

void quorum_start_read(struct quorum *q, uint64_t now, struct quorum_out *out)
{
	CHECK(quorum_may_read(q));
	q->reading = true;
	q->read_round++;
	q->read_at = now + q->conf.deadline_ns;
	q->peer[0].reads = false;
	quorum_read_again(q, now, out);
}

bool quorum_heard_by_majority(struct quorum *q, uint64_t now)
{
	uint64_t peers = 1;

	for (uint32_t i = 1; i < q->peers_nr; i++)
		if (now - q->peer[i].heard_ns < q->conf.election_ns)
			peers |= quorum_bit(q, &q->peer[i]);
	return quorum_majority(q, &q->disk.value, peers);
}
