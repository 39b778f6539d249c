/* SPDX-License-Identifier: Apache-2.0 */
/* Encodes and decodes messages and files of the register. source_quorum.c calls this. A decoder
 * copies the fixed part first, checks the sum, then each field against what the op allows, and the
 * value against what is left of the bytes. Nothing is used before that. Any doubt is
 * SHARD_PROTOCOL. */
#include "cluster/source_wire.h"

#include "base/check.h"
#include "wire/xxh.h"

#include <stdbool.h>
#include <string.h>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the wire is little-endian");

/* Which fields a message of an op uses. The others are zero. */
struct op_rule {
	const char *name; /* NULL: there is no such op. */
	bool term, yes, value, chosen, round;
	bool needs_value;
};

static const struct op_rule rules[] = {
	[QUORUM_POLL] = {.name = "POLL", .term = true},
	[QUORUM_WOULD] = {.name = "WOULD", .term = true, .yes = true},
	[QUORUM_ASK] = {.name = "ASK", .term = true},
	[QUORUM_ANSWER] = {.name = "ANSWER", .term = true, .yes = true, .value = true},
	[QUORUM_LEAD] =
		{.name = "LEAD", .term = true, .value = true, .chosen = true, .round = true},
	[QUORUM_HEARD] = {.name = "HEARD", .term = true, .round = true},
	[QUORUM_GO] = {.name = "GO", .term = true},
	[QUORUM_YOU] = {.name = "YOU"},
	[QUORUM_READ] = {.name = "READ", .round = true},
	[QUORUM_IS] =
		{.name = "IS", .term = true, .value = true, .round = true, .needs_value = true},
};

static enum shard_status wrong(struct err *e, const char *what)
{
	return err_set(e, SHARD_PROTOCOL, "a message of the register is wrong: %s", what);
}

/* --- values --- */

static size_t value_encode(const struct quorum_value *v, unsigned char *to)
{
	struct source_value_wire w = {
		.seq = v->seq, .voters_nr = v->voters_nr, .bytes_nr = v->bytes_nr};

	CHECK(v->voters_nr <= QUORUM_VOTERS_MAX && v->bytes_nr <= QUORUM_BYTES_MAX);
	memcpy(w.writer, v->writer, sizeof(w.writer));
	memcpy(w.voter, v->voter, v->voters_nr * sizeof(w.voter[0]));
	memcpy(to, &w, sizeof(w));
	memcpy(to + sizeof(w), v->bytes, v->bytes_nr);
	return sizeof(w) + v->bytes_nr;
}

/* NULL: v is filled. Otherwise what is wrong. */
static const char *value_decode(const unsigned char *bytes, size_t nr, struct quorum_value *v)
{
	static const uint8_t zeros[QUORUM_VOTERS_MAX * QUORUM_UUID_BYTES];
	struct source_value_wire w;

	if (nr < sizeof(w))
		return "its value is too short";
	memcpy(&w, bytes, sizeof(w));
	if (w.voters_nr > QUORUM_VOTERS_MAX)
		return "it has too many voters";
	if (w.bytes_nr > QUORUM_BYTES_MAX || w.bytes_nr != nr - sizeof(w))
		return "the length of its value is wrong";
	if (memcmp(w.voter[w.voters_nr % QUORUM_VOTERS_MAX], zeros,
		   (QUORUM_VOTERS_MAX - w.voters_nr) * QUORUM_UUID_BYTES) != 0)
		return "it has bytes after the last voter";
	v->seq = w.seq;
	v->voters_nr = w.voters_nr;
	v->bytes_nr = w.bytes_nr;
	memcpy(v->writer, w.writer, sizeof(v->writer));
	memcpy(v->voter, w.voter, sizeof(v->voter));
	memcpy(v->bytes, bytes + sizeof(w), w.bytes_nr);
	return quorum_value_ok(v) ? NULL : "its seq or its voters cannot be";
}

/* --- messages --- */

size_t source_msg_encode(const struct quorum_msg *m, const uint8_t cluster[QUORUM_UUID_BYTES],
			 unsigned char *to)
{
	struct source_msg_wire w = {.magic = SOURCE_MSG_MAGIC,
				    .op = (uint8_t)m->op,
				    .yes = m->yes,
				    .has_value = m->value != NULL,
				    .term = m->term,
				    .promised = m->promised,
				    .accepted = m->accepted,
				    .seq = m->seq,
				    .chosen_seq = m->chosen_seq,
				    .round = m->round};
	size_t nr = sizeof(w);

	CHECK((size_t)m->op < NR(rules) && rules[m->op].name != NULL);
	memcpy(w.cluster, cluster, sizeof(w.cluster));
	memcpy(w.from, m->from, sizeof(w.from));
	memcpy(w.to, m->to, sizeof(w.to));
	memcpy(to, &w, sizeof(w));
	if (m->value != NULL)
		nr += value_encode(m->value, to + sizeof(w));
	w.sum = xxh_sum(to, nr, 0);
	memcpy(to, &w, sizeof(w));
	return nr;
}

/* Is the sum right? The bytes are not changed, so the head is summed from a copy. */
static bool sum_holds(const unsigned char *bytes, size_t nr, const struct source_msg_wire *w)
{
	const struct xxh_row *x = xxh_best();
	struct source_msg_wire h = *w;
	struct xxh_state st;

	if (nr > SOURCE_MSG_MAX)
		return false;
	h.sum = 0;
	x->begin(&st);
	x->add(&st, &h, sizeof(h));
	x->add(&st, bytes + sizeof(h), nr - sizeof(h));
	return x->end(&st) == w->sum;
}

/* NULL: the fixed part is what a register could have sent. Otherwise what is wrong. */
static const char *head_wrong(const struct source_msg_wire *w)
{
	const struct op_rule *r = w->op < NR(rules) ? &rules[w->op] : NULL;

	if (r == NULL || r->name == NULL)
		return "its op is not known";
	if (w->zero != 0 || w->yes > 1 || w->has_value > 1)
		return "a field has a value that does not exist";
	if ((!r->yes && w->yes != 0) || (!r->chosen && w->chosen_seq != 0) ||
	    (!r->round && w->round != 0) || (!r->value && w->has_value != 0))
		return "a field is used that its op does not have";
	if (r->term != (w->term != 0) || w->term > QUORUM_TERM_MAX)
		return "its term cannot be";
	if (r->needs_value && w->has_value == 0)
		return "its value is missing";
	if (w->op == QUORUM_ANSWER && w->has_value != 0 && w->yes == 0)
		return "it has a value without a promise";
	if (w->promised > QUORUM_TERM_MAX || w->accepted > w->promised || w->seq > QUORUM_SEQ_MAX ||
	    (w->seq > 0) != (w->accepted > 0) || w->chosen_seq > QUORUM_SEQ_MAX)
		return "what it says of its sender cannot be";
	return NULL;
}

enum shard_status source_msg_decode(const void *bytes, size_t nr,
				    const uint8_t cluster[QUORUM_UUID_BYTES], struct quorum_msg *m,
				    struct quorum_value *room, struct err *e)
{
	const unsigned char *at = bytes;
	struct source_msg_wire w;
	const char *what;

	if (nr < sizeof(w))
		return wrong(e, "it is too short");
	memcpy(&w, at, sizeof(w));
	if (w.magic != SOURCE_MSG_MAGIC)
		return wrong(e, "it begins with other bytes");
	if (!sum_holds(at, nr, &w))
		return wrong(e, "its sum does not hold");
	if (memcmp(w.cluster, cluster, sizeof(w.cluster)) != 0)
		return wrong(e, "it belongs to another cluster");
	what = head_wrong(&w);
	if (what == NULL && w.has_value != 0)
		what = value_decode(at + sizeof(w), nr - sizeof(w), room);
	else if (what == NULL && nr != sizeof(w))
		what = "it is too long";
	if (what != NULL)
		return wrong(e, what);
	*m = (struct quorum_msg){.op = (enum quorum_op)w.op,
				 .term = w.term,
				 .promised = w.promised,
				 .accepted = w.accepted,
				 .seq = w.seq,
				 .chosen_seq = w.chosen_seq,
				 .round = w.round,
				 .yes = w.yes,
				 .value = w.has_value != 0 ? room : NULL};
	memcpy(m->from, w.from, sizeof(m->from));
	memcpy(m->to, w.to, sizeof(m->to));
	return SHARD_OK;
}

/* --- the file --- */

size_t source_disk_encode(const struct quorum_disk *d, unsigned char *to)
{
	struct source_disk_wire w = {.promised = d->promised, .term = d->term};

	memcpy(to, &w, sizeof(w));
	return sizeof(w) + (d->term > 0 ? value_encode(&d->value, to + sizeof(w)) : 0);
}

enum shard_status source_disk_decode(const void *bytes, size_t nr, struct quorum_disk *d,
				     struct err *e)
{
	const unsigned char *at = bytes;
	const char *what = NULL;
	struct source_disk_wire w;

	memset(d, 0, sizeof(*d));
	if (nr < sizeof(w))
		return err_set(e, SHARD_PROTOCOL, "it is too short for a promise");
	memcpy(&w, at, sizeof(w));
	d->promised = w.promised;
	d->term = w.term;
	if (w.promised == 0 || w.promised > QUORUM_TERM_MAX || w.term > w.promised)
		what = "its promise cannot be";
	else if (w.term > 0)
		what = value_decode(at + sizeof(w), nr - sizeof(w), &d->value);
	else if (nr != sizeof(w))
		what = "it is too long";
	return what == NULL ? SHARD_OK : err_set(e, SHARD_PROTOCOL, "%s", what);
}
