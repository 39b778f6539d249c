/* SPDX-License-Identifier: Apache-2.0 */
/* The register behind the membership source `quorum`. Every node is an acceptor: it promises terms
 * and accepts values. One of the voters leads. It polls the others first, then asks for promises,
 * takes the value that is highest by (term, seq) once a majority of the voters named by that very
 * value has answered, and writes it again at its own term. When a majority has accepted that, it
 * leads and may replace the value, one proposal at a time. A proposal is repeated unchanged until
 * it is chosen or the term is lost. Speaking to all peers each beat_ns also brings the value to
 * those who missed it. A leader that no majority answers stops leading. The rules are named V1 to
 * V8 here, after the comments that state them; test_quorum.c tries every order of events. */
#include "core/quorum_parts.h"

#include "base/check.h"

#include <string.h>

static void quorum_check(const struct quorum *q)
{
	CHECK(q->disk.promised >= q->disk.term && q->peers_nr > 0);
	CHECK(q->disk.value.seq == 0 || quorum_value_ok(&q->disk.value));
	CHECK(q->phase < QUORUM_ASKING || q->disk.promised == q->term);
	CHECK(q->phase < QUORUM_WRITING || q->disk.term == q->term);
	CHECK(q->phase != QUORUM_LEADING ||
	      (q->chosen_seq > 0 && q->chosen_seq + 1 >= q->disk.value.seq));
}

/* Never backwards, also within a term (V6). */
static void accept(struct quorum *q, const struct quorum_msg *m, struct quorum_out *out)
{
	const struct quorum_value *v = m->value;

	if (v == NULL || !quorum_value_ok(v) ||
	    !quorum_above(m->term, v->seq, q->disk.term, q->disk.value.seq))
		return;
	q->disk.promised = m->term;
	q->disk.term = m->term;
	q->disk.value = *v;
	out->sync = true;
}

static void on_lead(struct quorum *q, struct quorum_peer *p, const struct quorum_msg *m,
		    uint64_t now, struct quorum_out *out)
{
	if (m->term == 0 || m->term > QUORUM_TERM_MAX ||
	    (q->phase >= QUORUM_ASKING && m->term == q->term))
		return;
	if (m->term >= q->disk.promised) {
		if (q->phase != QUORUM_IDLE)
			quorum_step_down(q, "another node leads a later term", now, out);
		accept(q, m, out);
		quorum_leader_is(q, p->uuid, m->term, out);
		q->leader_ns = now;
		quorum_elect_after(q, now, q->conf.election_ns);
		if (m->chosen_seq > 0 && q->disk.term == m->term &&
		    q->disk.value.seq == m->chosen_seq)
			quorum_view(q, out);
	}
	quorum_send(q, p,
		    (struct quorum_msg){.op = QUORUM_HEARD, .term = m->term, .round = m->round},
		    out);
}

static void on_you(struct quorum *q, struct quorum_peer *p, const struct quorum_msg *m,
		   uint64_t now, struct quorum_out *out)
{
	(void)p;
	(void)now;
	if (m->promised > q->disk.promised ||
	    quorum_above(m->accepted, m->seq, q->disk.term, q->disk.value.seq))
		quorum_fail(q,
			    "another node remembers a promise of this one that its state folder "
			    "does not have: the folder was put back from a copy, or its disk lost "
			    "a write. Start it with the newer folder, or with an empty one",
			    out);
}

static void on_is(struct quorum *q, struct quorum_peer *p, const struct quorum_msg *m, uint64_t now,
		  struct quorum_out *out)
{
	(void)p;
	(void)now;
	if (!q->reading || m->round != q->read_round || q->phase == QUORUM_ASKING ||
	    m->value == NULL || !quorum_value_ok(m->value))
		return;
	q->reading = false;
	q->read_at = QUORUM_NEVER;
	q->best = *m->value;
	quorum_act(out, QUORUM_ACT_READ)->value = &q->best;
}

/* Tells p what it has said of itself before (V9). */
static void remind(struct quorum *q, const struct quorum_peer *p, struct quorum_out *out)
{
	quorum_send(q, p,
		    (struct quorum_msg){.op = QUORUM_YOU,
					.promised = p->told_promised,
					.accepted = p->told_accepted,
					.seq = p->told_seq},
		    out);
}

static void on_msg(struct quorum *q, const struct quorum_msg *m, uint64_t now,
		   struct quorum_out *out)
{
	static void (*const rows[])(struct quorum *, struct quorum_peer *,
				    const struct quorum_msg *, uint64_t, struct quorum_out *) = {
		[QUORUM_POLL] = quorum_on_poll, [QUORUM_WOULD] = quorum_on_would,
		[QUORUM_ASK] = quorum_on_ask,   [QUORUM_ANSWER] = quorum_on_answer,
		[QUORUM_LEAD] = on_lead,        [QUORUM_HEARD] = quorum_on_heard,
		[QUORUM_GO] = quorum_on_go,     [QUORUM_YOU] = on_you,
		[QUORUM_READ] = quorum_on_read, [QUORUM_IS] = on_is,
	};
	struct quorum_peer *p = quorum_find(q, m->from);

	if ((uint32_t)m->op >= sizeof(rows) / sizeof(rows[0]) || rows[m->op] == NULL || p == NULL ||
	    !p->linked || !quorum_same(m->to, q->conf.self))
		return;
	if (m->op != QUORUM_YOU && m->promised <= QUORUM_TERM_MAX) {
		if (m->promised < p->told_promised ||
		    quorum_above(p->told_accepted, p->told_seq, m->accepted, m->seq))
			remind(q, p, out); /* The message is an old one, or the disk is. */
		if (m->promised > p->told_promised)
			p->told_promised = m->promised;
		if (quorum_above(m->accepted, m->seq, p->told_accepted, p->told_seq)) {
			p->told_accepted = m->accepted;
			p->told_seq = m->seq;
		}
		if (m->promised > q->highest)
			q->highest = m->promised;
		if (q->phase >= QUORUM_ASKING && m->promised > q->term)
			quorum_step_down(q, "another node has promised a later term", now, out);
	}
	rows[m->op](q, p, m, now, out);
}

/* A place for a peer. NULL: too many are linked or vote. */
static struct quorum_peer *take_place(struct quorum *q, const uint8_t *uuid)
{
	struct quorum_peer *p = quorum_find(q, uuid);

	for (uint32_t i = 1; p == NULL && i < q->peers_nr; i++)
		if (q->phase == QUORUM_IDLE && !q->peer[i].linked &&
		    !quorum_names(&q->disk.value, q->peer[i].uuid))
			p = &q->peer[i];
	if (p == NULL && q->peers_nr < QUORUM_PEERS_MAX)
		p = &q->peer[q->peers_nr++];
	if (p != NULL && !quorum_same(p->uuid, uuid)) {
		memset(p, 0, sizeof(*p));
		memcpy(p->uuid, uuid, sizeof(p->uuid));
	}
	return p;
}

static void up(struct quorum *q, const uint8_t *uuid, uint64_t now, struct quorum_out *out)
{
	struct quorum_peer *p = take_place(q, uuid);

	if (p == NULL || p == &q->peer[0])
		return;
	p->linked = true;
	if (p->told_promised > 0)
		remind(q, p, out);
	if (q->phase >= QUORUM_WRITING)
		quorum_lead_one(q, p, out);
	else if (q->phase == QUORUM_POLLING)
		quorum_send(q, p, (struct quorum_msg){.op = QUORUM_POLL, .term = q->term}, out);
	(void)now;
}

/* Without a link to the leader there is no reason to wait for it. */
static void down(struct quorum *q, const uint8_t *uuid, uint64_t now, struct quorum_out *out)
{
	struct quorum_peer *p = quorum_find(q, uuid);

	if (p == NULL)
		return;
	p->linked = p->reads = false;
	if (!quorum_same(q->leader, uuid))
		return;
	quorum_leader_is(q, quorum_nobody, 0, out);
	q->elect_at = quorum_may_elect(q) ? now + quorum_jitter(q, q->conf.election_ns / 4)
					  : QUORUM_NEVER;
}

static void tick(struct quorum *q, uint64_t now, struct quorum_out *out)
{
	if (q->done_at <= now) {
		struct quorum_action *a = quorum_act(out, QUORUM_ACT_DONE);

		q->done_at = QUORUM_NEVER; /* The value is still repeated: no other one may follow
					      (V7). */
		a->how = QUORUM_UNKNOWN;
		a->term = q->term;
	}
	if (q->reading && q->read_at <= now) {
		q->reading = false;
		quorum_act(out, QUORUM_ACT_READ)->how = QUORUM_UNKNOWN;
	}
	if (q->phase >= QUORUM_WRITING && q->beat_at <= now) {
		if (quorum_heard_by_majority(q, now))
			quorum_lead_all(q, now, out);
		else
			quorum_step_down(q, "no majority of the voters answers", now, out);
	}
	if (q->phase < QUORUM_WRITING && q->elect_at <= now) {
		if (quorum_may_elect(q))
			quorum_poll(q, now, out);
		else
			q->elect_at = QUORUM_NEVER;
	}
	if (q->reading && q->read_again_at <= now)
		quorum_read_again(q, now, out);
}

void quorum_handle(struct quorum *q, const struct quorum_event *e, uint64_t now_ns,
		   struct quorum_out *out)
{
	out->nr = 0;
	out->sync = false;
	if (q->failed)
		return;
	switch (e->type) {
	case QUORUM_EV_MSG:
		on_msg(q, e->msg, now_ns, out);
		break;
	case QUORUM_EV_TICK:
		tick(q, now_ns, out);
		break;
	case QUORUM_EV_UP:
		up(q, e->uuid, now_ns, out);
		break;
	case QUORUM_EV_DOWN:
		down(q, e->uuid, now_ns, out);
		break;
	case QUORUM_EV_PROPOSE:
		quorum_propose(q, e, now_ns, out);
		break;
	case QUORUM_EV_READ:
		quorum_start_read(q, now_ns, out);
		break;
	case QUORUM_EV_RESIGN:
		if (q->phase == QUORUM_LEADING)
			quorum_resign(q, "it resigned", now_ns, out);
		break;
	}
	quorum_check(q);
}

/* --- outside --- */

size_t quorum_bytes(void)
{
	return sizeof(struct quorum);
}

void quorum_first(struct quorum_disk *disk, const struct quorum_conf *conf,
		  const uint8_t writer[QUORUM_UUID_BYTES], const void *bytes, uint32_t bytes_nr)
{
	CHECK(bytes_nr <= QUORUM_BYTES_MAX);
	memset(disk, 0, sizeof(*disk));
	disk->promised = disk->term = 1ull << QUORUM_ORDINAL_BITS | conf->ordinal;
	disk->value.seq = 1;
	disk->value.voters_nr = 1;
	disk->value.bytes_nr = bytes_nr;
	memcpy(disk->value.writer, writer, QUORUM_UUID_BYTES);
	memcpy(disk->value.voter[0], conf->self, QUORUM_UUID_BYTES);
	if (bytes_nr > 0)
		memcpy(disk->value.bytes, bytes, bytes_nr);
}

struct quorum *quorum_init(void *memory, const struct quorum_conf *conf,
			   const struct quorum_disk *disk, uint64_t now_ns)
{
	struct quorum *q = memory;

	CHECK(conf->ordinal < 1u << QUORUM_ORDINAL_BITS && !quorum_same(conf->self, quorum_nobody));
	CHECK(conf->beat_ns > 0 && conf->election_ns > conf->beat_ns && conf->deadline_ns > 0);
	if (disk->promised > QUORUM_TERM_MAX || disk->term > disk->promised ||
	    (disk->value.seq > 0) != (disk->term > 0) ||
	    (disk->value.seq > 0 && !quorum_value_ok(&disk->value)))
		return NULL;
	q->conf = *conf;
	q->disk = *disk;
	q->peers_nr = 1;
	memcpy(q->peer[0].uuid, conf->self, sizeof(q->peer[0].uuid));
	q->beat_at = q->done_at = q->read_at = QUORUM_NEVER;
	/* An answer to a read of the process before this one must not be taken for one of this. */
	q->read_round = conf->seed;
	quorum_elect_after(q, now_ns, conf->election_ns);
	/* Where there are others, somebody may know that this disk was put back. */
	if (quorum_may_elect(q) && q->disk.value.voters_nr == 1 && conf->alone)
		q->elect_at = now_ns;
	quorum_check(q);
	return q;
}

const struct quorum_disk *quorum_disk(const struct quorum *q)
{
	return &q->disk;
}

uint64_t quorum_deadline(const struct quorum *q)
{
	uint64_t at = q->phase >= QUORUM_WRITING ? q->beat_at : q->elect_at;

	if (q->failed)
		return QUORUM_NEVER;
	if (q->reading) {
		at = q->read_at < at ? q->read_at : at;
		at = q->read_again_at < at ? q->read_again_at : at;
	}
	return q->done_at < at ? q->done_at : at;
}

bool quorum_may_propose(const struct quorum *q)
{
	return q->phase != QUORUM_LEADING || q->chosen_seq == q->disk.value.seq;
}

bool quorum_may_read(const struct quorum *q)
{
	return !q->reading;
}
