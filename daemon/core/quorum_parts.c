/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the register that elections and leading share: values and their majorities, what
 * is sent and said, and the time of the next election. */
#include "core/quorum_parts.h"

#include "base/check.h"

#include <string.h>

const uint8_t quorum_nobody[QUORUM_UUID_BYTES];

bool quorum_same(const uint8_t *a, const uint8_t *b)
{
	return memcmp(a, b, QUORUM_UUID_BYTES) == 0;
}

/* By term first, and by seq within a term (V3, V6). */
bool quorum_above(uint64_t term, uint64_t seq, uint64_t than_term, uint64_t than_seq)
{
	return term > than_term || (term == than_term && seq > than_seq);
}

bool quorum_value_ok(const struct quorum_value *v)
{
	if (v->seq == 0 || v->seq > QUORUM_SEQ_MAX || v->voters_nr == 0 ||
	    v->voters_nr > QUORUM_VOTERS_MAX || v->bytes_nr > QUORUM_BYTES_MAX)
		return false;
	for (uint32_t i = 0; i < v->voters_nr; i++)
		for (uint32_t k = 0; k <= i; k++)
			if (quorum_same(v->voter[i], k < i ? v->voter[k] : quorum_nobody))
				return false;
	return true;
}

bool quorum_names(const struct quorum_value *v, const uint8_t *uuid)
{
	for (uint32_t i = 0; i < v->voters_nr; i++)
		if (quorum_same(v->voter[i], uuid))
			return true;
	return false;
}

struct quorum_peer *quorum_find(struct quorum *q, const uint8_t *uuid)
{
	for (uint32_t i = 0; i < q->peers_nr; i++)
		if (quorum_same(q->peer[i].uuid, uuid))
			return &q->peer[i];
	return NULL;
}

uint64_t quorum_bit(const struct quorum *q, const struct quorum_peer *p)
{
	return 1ull << (p - q->peer);
}

/* Are there enough of these peers? Only those count that the value itself names (V4). */
bool quorum_majority(struct quorum *q, const struct quorum_value *v, uint64_t peers)
{
	uint32_t nr = 0;

	CHECK(quorum_value_ok(v));
	for (uint32_t i = 0; i < v->voters_nr; i++) {
		const struct quorum_peer *p = quorum_find(q, v->voter[i]);

		nr += p != NULL && peers & quorum_bit(q, p);
	}
	return nr >= v->voters_nr / 2 + 1;
}

struct quorum_action *quorum_act(struct quorum_out *out, enum quorum_action_type type)
{
	struct quorum_action *a = &out->act[out->nr++];

	CHECK(out->nr <= QUORUM_ACTIONS_MAX);
	memset(a, 0, sizeof(*a));
	a->type = type;
	return a;
}

/* Sends m with what every message says of its sender. */
void quorum_send(struct quorum *q, const struct quorum_peer *to, struct quorum_msg m,
		 struct quorum_out *out)
{
	if (!to->linked)
		return;
	memcpy(m.from, q->conf.self, sizeof(m.from));
	memcpy(m.to, to->uuid, sizeof(m.to));
	if (m.op != QUORUM_YOU) {
		m.promised = q->disk.promised;
		m.accepted = q->disk.term;
		m.seq = q->disk.value.seq;
	}
	quorum_act(out, QUORUM_ACT_SEND)->msg = m;
}

void quorum_send_all(struct quorum *q, struct quorum_msg m, struct quorum_out *out)
{
	for (uint32_t i = 1; i < q->peers_nr; i++)
		quorum_send(q, &q->peer[i], m, out);
}

void quorum_view(struct quorum *q, struct quorum_out *out)
{
	if (q->disk.value.seq <= q->told_seq)
		return;
	q->told_seq = q->disk.value.seq;
	quorum_act(out, QUORUM_ACT_VIEW)->value = &q->disk.value;
}

void quorum_leader_is(struct quorum *q, const uint8_t *uuid, uint64_t term, struct quorum_out *out)
{
	struct quorum_action *a;

	if (quorum_same(q->leader, uuid) && q->leader_term == term)
		return;
	memcpy(q->leader, uuid, sizeof(q->leader));
	q->leader_term = term;
	a = quorum_act(out, QUORUM_ACT_LEADER);
	memcpy(a->uuid, uuid, sizeof(a->uuid));
	a->term = term;
}

void quorum_fail(struct quorum *q, const char *why, struct quorum_out *out)
{
	q->failed = true;
	quorum_act(out, QUORUM_ACT_FAILED)->why = why;
}

bool quorum_may_elect(struct quorum *q)
{
	return q->disk.value.seq > 0 && quorum_names(&q->disk.value, q->conf.self);
}

/* A number below span, another one for each node and election. */
uint64_t quorum_jitter(struct quorum *q, uint64_t span)
{
	uint64_t x = q->conf.seed + 0x9e3779b97f4a7c15ull * ++q->spread;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return span > 0 ? (x ^ x >> 31) % span : 0;
}

void quorum_elect_after(struct quorum *q, uint64_t now, uint64_t wait)
{
	q->elect_at = quorum_may_elect(q) ? now + wait + quorum_jitter(q, q->conf.election_ns)
					  : QUORUM_NEVER;
}
