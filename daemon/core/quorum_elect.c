/* SPDX-License-Identifier: Apache-2.0 */
/* Elections: who asks to lead, who promises, and which value the one that is elected takes. */
#include "core/quorum_parts.h"

#include "base/check.h"

#include <string.h>

/* Takes the highest value that was heard, when those whom it names have answered. It is written
 * again before anything else is (V5). */
static void try_take(struct quorum *q, uint64_t now, struct quorum_out *out)
{
	if (q->best.seq == 0 || !quorum_majority(q, &q->best, q->answered))
		return;
	if (!quorum_names(&q->best, q->conf.self)) {
		quorum_step_down(q, "this node is not a voter any more", now, out);
		q->elect_at = QUORUM_NEVER; /* It hears from who leads, and is a voter again by a
					       value. */
		return;
	}
	q->phase = QUORUM_WRITING;
	q->chosen_seq = 0;
	for (uint32_t i = 0; i < q->peers_nr; i++) {
		q->peer[i].acked_seq = q->peer[i].round = 0;
		q->peer[i].heard_ns = now;
		q->peer[i].reads = false;
	}
	quorum_write_value(q, &q->best, now, out);
}

/* A term that is above everything this node knows of, and that no other node can have (V1). */
static uint64_t next_term(const struct quorum *q)
{
	uint64_t high = q->highest > q->disk.promised ? q->highest : q->disk.promised;

	return ((high >> QUORUM_ORDINAL_BITS) + 1) << QUORUM_ORDINAL_BITS | q->conf.ordinal;
}

void quorum_ask(struct quorum *q, uint64_t now, struct quorum_out *out)
{
	CHECK(q->phase < QUORUM_ASKING && quorum_may_elect(q));
	q->term = next_term(q);
	if (q->term > QUORUM_TERM_MAX) {
		quorum_fail(q, "the terms are used up", out);
		return;
	}
	quorum_leader_is(q, quorum_nobody, 0, out);
	/* The own promise makes the term number this node's for ever (V1). */
	q->disk.promised = q->term;
	out->sync = true;
	q->phase = QUORUM_ASKING;
	q->best = q->disk.value;
	q->best_term = q->disk.term;
	q->answered = 1;
	quorum_elect_after(q, now, q->conf.election_ns);
	try_take(q, now, out);
	if (q->phase == QUORUM_ASKING)
		quorum_send_all(q, (struct quorum_msg){.op = QUORUM_ASK, .term = q->term}, out);
}

void quorum_poll(struct quorum *q, uint64_t now, struct quorum_out *out)
{
	CHECK(q->phase < QUORUM_WRITING && quorum_may_elect(q));
	if (next_term(q) > QUORUM_TERM_MAX) {
		quorum_fail(q, "the terms are used up", out);
		return;
	}
	quorum_leader_is(q, quorum_nobody, 0, out);
	q->phase = QUORUM_POLLING;
	q->term = next_term(q);
	q->answered = 1;
	quorum_elect_after(q, now, q->conf.election_ns / 2);
	if (quorum_majority(q, &q->disk.value, q->answered))
		quorum_ask(q, now, out);
	else
		quorum_send_all(q, (struct quorum_msg){.op = QUORUM_POLL, .term = q->term}, out);
}

void quorum_on_poll(struct quorum *q, struct quorum_peer *p, const struct quorum_msg *m,
		    uint64_t now, struct quorum_out *out)
{
	bool led = q->phase >= QUORUM_WRITING || (!quorum_same(q->leader, quorum_nobody) &&
						  now - q->leader_ns < q->conf.election_ns);

	quorum_send(q, p,
		    (struct quorum_msg){.op = QUORUM_WOULD,
					.term = m->term,
					.yes = !led && m->term > q->disk.promised},
		    out);
}

void quorum_on_would(struct quorum *q, struct quorum_peer *p, const struct quorum_msg *m,
		     uint64_t now, struct quorum_out *out)
{
	if (q->phase != QUORUM_POLLING || m->term != q->term || !m->yes)
		return;
	q->answered |= quorum_bit(q, p);
	if (quorum_majority(q, &q->disk.value, q->answered))
		quorum_ask(q, now, out);
}

void quorum_on_ask(struct quorum *q, struct quorum_peer *p, const struct quorum_msg *m,
		   uint64_t now, struct quorum_out *out)
{
	bool promises = m->term > q->disk.promised && m->term <= QUORUM_TERM_MAX;

	if (m->term == q->disk.promised)
		return; /* It was promised to whoever asked first. */
	if (promises) {
		if (q->phase >= QUORUM_POLLING)
			quorum_step_down(q, "another node asked for a later term", now, out);
		/* Nothing lower is accepted from now on (V2). */
		q->disk.promised = m->term;
		out->sync = true;
		quorum_elect_after(q, now, q->conf.election_ns);
	}
	quorum_send(q, p,
		    (struct quorum_msg){.op = QUORUM_ANSWER,
					.term = m->term,
					.yes = promises,
					.value = promises && q->disk.value.seq > 0 ? &q->disk.value
										   : NULL},
		    out);
}

void quorum_on_answer(struct quorum *q, struct quorum_peer *p, const struct quorum_msg *m,
		      uint64_t now, struct quorum_out *out)
{
	if (q->phase != QUORUM_ASKING || m->term != q->term || !m->yes || m->promised != m->term ||
	    m->accepted >= m->term || (m->value == NULL) != (m->seq == 0))
		return;
	if (m->value != NULL) {
		if (!quorum_value_ok(m->value) || m->value->seq != m->seq)
			return;
		if (quorum_above(m->accepted, m->seq, q->best_term, q->best.seq)) {
			q->best = *m->value;
			q->best_term = m->accepted;
		}
	}
	q->answered |= quorum_bit(q, p);
	try_take(q, now, out);
}

void quorum_on_go(struct quorum *q, struct quorum_peer *p, const struct quorum_msg *m, uint64_t now,
		  struct quorum_out *out)
{
	(void)p;
	(void)m;
	if (q->phase < QUORUM_ASKING && quorum_may_elect(q))
		quorum_ask(q, now, out);
}
