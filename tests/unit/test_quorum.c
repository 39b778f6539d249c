/* SPDX-License-Identifier: Apache-2.0 */
/* Tries every order of events of the register `quorum`, over the real code, which is compiled into
 * this program with room for four nodes so that a state is small. Messages go into a set and may be
 * delivered at any time, any number of times, or never. Any voter may ask for the lead at any time,
 * up to the number of elections of the run. What leads may replace the value, and in some runs add
 * or remove a voter. One node may lose its process at any moment, and comes back with what was
 * synced. In every state is checked:
 *   one: at most one value is chosen for each seq
 *   chain: the predecessor of a chosen value is chosen
 *   read: what a leader took is not older than anything that a lower term chose, then or later
 *   dead: once a node leads, nothing that a lower term wrote above its value is ever chosen
 *   leads: what a leader shows is chosen */
#define QUORUM_PEERS_MAX 4
#define QUORUM_BYTES_MAX 8
#include "core/quorum.c"
#include "core/quorum_elect.c"
#include "core/quorum_lead.c"
#include "core/quorum_parts.c"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum {
	NODES_MAX = 4,
	VALUES_MAX = 12,
	TERMS_MAX = 6,
	MESSAGES_MAX = 1024,
	DEPTH_MAX = 160,
	NOW = 1
};

struct shape {
	const char *text;
	int nodes, voters, elections, writes, restarts;
	bool changes; /* A write may add or remove a voter. */
	size_t limit; /* Of states. 0: all of them. */
};

struct value { /* A value that was written, and who has accepted it in which term. */
	uint64_t seq;
	uint8_t voters, before; /* A bit for each node. before: the value that it replaced. */
	uint8_t writer_term;
	uint8_t by[TERMS_MAX];
};

struct state {
	_Alignas(16) unsigned char memory[NODES_MAX][(sizeof(struct quorum) + 15) / 16 * 16];
	struct quorum_disk disk[NODES_MAX];
	uint64_t sent[MESSAGES_MAX / 64];
	struct value value[VALUES_MAX];
	uint64_t term[TERMS_MAX]; /* In the order of their elections. */
	uint8_t took[TERMS_MAX];  /* The value that the leader of this term took, plus 1. */
	bool led[TERMS_MAX];
	int values_nr, terms_nr, elections, writes, restarts;
};

struct message {
	struct quorum_msg msg;
	struct quorum_value value;
};

static struct search {
	struct shape shape;
	struct state at[DEPTH_MAX];
	struct message message[MESSAGES_MAX];
	uint64_t message_hash[MESSAGES_MAX];
	uint32_t messages_nr, depth, deepest;
	uint64_t *seen;
	size_t seen_bits, states_nr, chosen_nr, led_nr;
	struct quorum_out out;
	const char *failed;
	char path[DEPTH_MAX][64];
} q_search;

static struct quorum *node(struct state *s, int n)
{
	return (struct quorum *)(void *)s->memory[n];
}

static uint64_t hash(uint64_t h, const void *p, size_t bytes)
{
	const unsigned char *b = p;

	for (; bytes >= 8; b += 8, bytes -= 8) {
		uint64_t w;

		memcpy(&w, b, 8);
		h = (h ^ w) * 0x9e3779b97f4a7c15ull;
		h ^= h >> 29;
	}
	for (size_t i = 0; i < bytes; i++)
		h = (h ^ b[i]) * 0xd6e8feb86659fd93ull;
	return h ^ h >> 32;
}

/* --- who is who --- */

static void uuid_of(int n, uint8_t *uuid)
{
	memset(uuid, 0, QUORUM_UUID_BYTES);
	uuid[0] = (uint8_t)(1 + n);
}

static int term_at(struct state *s, uint64_t term)
{
	for (int i = 0; i < s->terms_nr; i++)
		if (s->term[i] == term)
			return i;
	CHECK(s->terms_nr < TERMS_MAX);
	s->term[s->terms_nr] = term;
	return s->terms_nr++;
}

static void fill(struct quorum_value *v, uint8_t id, uint8_t voters)
{
	memset(v, 0, sizeof(*v));
	v->writer[0] = (uint8_t)(1 + id);
	for (int n = 0; n < NODES_MAX; n++)
		if (voters >> n & 1)
			uuid_of(n, v->voter[v->voters_nr++]);
}

/* --- what must hold --- */

static void violated(struct search *q, const char *what)
{
	if (q->failed == NULL)
		q->failed = what;
}

static bool is_majority(uint8_t of, uint8_t set)
{
	return __builtin_popcount(of & set) > __builtin_popcount(of) / 2;
}

static bool is_chosen(const struct value *v)
{
	for (int t = 0; t < TERMS_MAX; t++)
		if (is_majority(v->voters, v->by[t]))
			return true;
	return false;
}

static void check(struct search *q, const struct state *s)
{
	for (int i = 0; i < s->values_nr; i++) {
		const struct value *v = &s->value[i];

		if (!is_chosen(v))
			continue;
		for (int k = 0; k < i; k++)
			if (s->value[k].seq == v->seq && is_chosen(&s->value[k]))
				violated(q, "one: two values are chosen for one seq");
		if (v->seq > 1 && !is_chosen(&s->value[v->before]))
			violated(q, "chain: a value is chosen, and the one before it is not");
		for (int t = 1; t < s->terms_nr; t++) {
			const struct value *r = &s->value[s->took[t] - 1];

			if (s->took[t] == 0 || v->seq <= r->seq)
				continue;
			for (int c = 0; c < s->terms_nr; c++)
				if (s->term[c] < s->term[t] && is_majority(v->voters, v->by[c]))
					violated(q, "read: a lower term has chosen a newer value");
			if (s->led[t] && s->term[v->writer_term] < s->term[t])
				violated(q, "dead: what the leader did not see is chosen later");
		}
	}
	for (int t = 1; t < s->terms_nr; t++)
		if (s->led[t] && !is_chosen(&s->value[s->took[t] - 1]))
			violated(q, "leads: what the leader shows is not chosen");
}

/* --- events --- */

/* Leaves out of a message what has no effect on what is accepted, taken or chosen. A leader that
 * hears of a higher promise stops, but it may also stop at any moment by asking again. Returns
 * false if nothing is left of the message. */
static bool essence(struct quorum_msg *m)
{
	if ((m->op == QUORUM_ANSWER && !m->yes) ||
	    (m->op == QUORUM_HEARD && m->accepted != m->term) ||
	    (m->op == QUORUM_LEAD && m->value == NULL && m->chosen_seq == 0) ||
	    m->op == QUORUM_POLL || m->op == QUORUM_WOULD || m->op == QUORUM_GO)
		return false;
	m->promised = m->term;
	if (m->op != QUORUM_ANSWER && m->op != QUORUM_HEARD)
		m->accepted = m->seq = 0;
	return true;
}

/* May the message ever have an effect again? Terms and promises only grow. */
static bool matters(const struct search *q, struct state *s, uint32_t i)
{
	const struct quorum_msg *m = &q->message[i].msg;
	const struct quorum *r = node(s, m->to[0] - 1);
	const struct quorum_peer *p = quorum_find(node(s, m->to[0] - 1), m->from);

	switch (m->op) {
	case QUORUM_ASK:
		return m->term > r->disk.promised;
	case QUORUM_ANSWER:
		return r->phase == QUORUM_ASKING && m->term == r->term &&
		       !(r->answered & quorum_bit(r, p));
	case QUORUM_LEAD:
		return m->term >= r->disk.promised &&
		       ((m->value != NULL &&
			 quorum_above(m->term, m->value->seq, r->disk.term, r->disk.value.seq)) ||
			m->chosen_seq > r->told_seq);
	case QUORUM_HEARD:
		return r->phase >= QUORUM_WRITING && m->term == r->term && m->seq > p->acked_seq;
	case QUORUM_POLL:
	case QUORUM_WOULD:
	case QUORUM_GO:
	case QUORUM_YOU:
	case QUORUM_READ:
	case QUORUM_IS:
	default:
		return true;
	}
}

static void put(struct search *q, struct state *s, const struct quorum_msg *m)
{
	static struct message k; /* Zeroed each time, so that equal messages have equal bytes. */
	uint64_t h;
	uint32_t i = 0;

	memset(&k, 0, sizeof(k));
	k.msg = *m;
	if (!essence(&k.msg))
		return;
	k.msg.value = NULL;
	if (m->value != NULL)
		k.value = *m->value;
	h = hash(1, &k, sizeof(k));
	while (i < q->messages_nr && q->message_hash[i] != h)
		i++;
	CHECK(i < MESSAGES_MAX);
	s->sent[i / 64] |= 1ull << i % 64;
	if (i < q->messages_nr)
		return;
	q->message[i] = k;
	if (m->value != NULL)
		q->message[i].msg.value = &q->message[i].value;
	q->message_hash[q->messages_nr++] = h;
}

static void canonical(struct quorum *q)
{
	uint64_t *times[] = {&q->elect_at, &q->beat_at, &q->done_at, &q->leader_ns};

	for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++)
		*times[i] = *times[i] == QUORUM_NEVER ? QUORUM_NEVER : NOW;
	q->spread = 0;
	if (q->phase != QUORUM_ASKING) {
		memset(&q->best, 0, sizeof(q->best));
		q->best_term = q->answered = 0;
	}
	if (q->phase < QUORUM_WRITING)
		q->chosen_seq = 0;
	if (q->phase < QUORUM_ASKING)
		q->term = 0;
	for (uint32_t i = 0; i < q->peers_nr; i++) {
		struct quorum_peer *p = &q->peer[i];

		p->told_promised = p->told_accepted = p->told_seq = p->heard_ns = 0;
		if (q->phase < QUORUM_WRITING)
			p->acked_seq = 0;
	}
	q->highest = q->disk.promised;
	memset(q->leader, 0, sizeof(q->leader));
	q->leader_term = 0;
}

static void feed(struct search *q, struct state *s, int n, const struct quorum_event *e)
{
	struct quorum *r = node(s, n);
	enum quorum_phase before = r->phase;
	uint64_t term = r->term;

	quorum_handle(r, e, NOW, &q->out);
	if (q->out.sync) {
		const struct quorum_disk *d = quorum_disk(r);

		s->disk[n] = *d;
		if (d->term > 0) {
			struct value *v = &s->value[d->value.writer[0] - 1];

			v->by[term_at(s, d->term)] |= (uint8_t)(1 << n);
		}
	}
	if (r->phase >= QUORUM_WRITING && (before < QUORUM_WRITING || r->term != term))
		s->took[term_at(s, r->term)] = r->disk.value.writer[0];
	for (uint32_t i = 0; i < q->out.nr; i++) {
		const struct quorum_action *a = &q->out.act[i];

		if (a->type == QUORUM_ACT_SEND) {
			put(q, s, &a->msg);
		} else if (a->type == QUORUM_ACT_LEADING) {
			s->led[term_at(s, a->term)] = true;
			q->led_nr++;
			if (a->value->writer[0] != s->took[term_at(s, a->term)])
				violated(q, "leads: another value than the one that was taken");
		} else if (a->type == QUORUM_ACT_VIEW) {
			q->chosen_nr++;
			if (!is_chosen(&s->value[a->value->writer[0] - 1]))
				violated(q, "view: a value is shown that is not chosen");
		}
	}
	canonical(r);
	check(q, s);
}

static void start(struct search *q, struct state *s, int n)
{
	struct quorum_conf conf = {
		.ordinal = (uint32_t)n, .beat_ns = 10, .election_ns = 100, .deadline_ns = 100};
	struct quorum_event up = {.type = QUORUM_EV_UP};

	uuid_of(n, conf.self);
	memset(s->memory[n], 0, sizeof(s->memory[n]));
	CHECK(quorum_init(s->memory[n], &conf, &s->disk[n], NOW));
	for (int i = 0; i < q->shape.nodes; i++) {
		uuid_of(i, up.uuid);
		if (i != n)
			feed(q, s, n, &up);
	}
	canonical(node(s, n));
}

/* --- what may happen next. Each function returns false where it cannot happen. --- */

static bool may_deliver(struct search *q, struct state *s, uint32_t i)
{
	const struct quorum_msg *m = &q->message[i].msg;

	if (!(s->sent[i / 64] >> i % 64 & 1))
		return false;
	if (!matters(q, s, i)) {
		s->sent[i / 64] &= ~(1ull << i % 64);
		return false;
	}
	snprintf(q->path[q->depth], sizeof(q->path[0]), "%d hears %d from %d, term %lu seq %lu",
		 m->to[0] - 1, (int)m->op, m->from[0] - 1, (unsigned long)m->term,
		 (unsigned long)m->seq);
	feed(q, s, m->to[0] - 1, &(struct quorum_event){.type = QUORUM_EV_MSG, .msg = m});
	return true;
}

static bool may_elect_now(struct search *q, struct state *s, int n)
{
	struct quorum_msg go = {.op = QUORUM_GO};
	struct quorum *r = node(s, n);

	if (s->elections == 0 || !quorum_may_elect(r))
		return false;
	snprintf(q->path[q->depth], sizeof(q->path[0]), "%d asks to lead", n);
	s->elections--;
	uuid_of(n, go.to);
	uuid_of(n == 0, go.from);
	if (r->phase >= QUORUM_ASKING)
		quorum_step_down(r, "it asks again", NOW, &q->out);
	feed(q, s, n, &(struct quorum_event){.type = QUORUM_EV_MSG, .msg = &go});
	return true;
}

/* who: the node that becomes a voter or ceases to be one. -1: nobody. */
static bool may_write(struct search *q, struct state *s, int n, int who)
{
	struct quorum *r = node(s, n);
	struct quorum_value v;
	struct value *w;
	uint8_t voters;

	if (s->writes == 0 || r->phase != QUORUM_LEADING || !quorum_may_propose(r) ||
	    (who >= 0 && !q->shape.changes))
		return false;
	CHECK(s->values_nr < VALUES_MAX);
	voters = s->value[r->disk.value.writer[0] - 1].voters;
	if (who >= 0)
		voters = (uint8_t)(voters ^ 1 << who);
	if (voters == 0)
		return false;
	snprintf(q->path[q->depth], sizeof(q->path[0]), "%d writes, voters %x", n, voters);
	s->writes--;
	w = &s->value[s->values_nr];
	*w = (struct value){.seq = r->disk.value.seq + 1,
			    .voters = voters,
			    .before = (uint8_t)(r->disk.value.writer[0] - 1),
			    .writer_term = (uint8_t)term_at(s, r->term)};
	fill(&v, (uint8_t)s->values_nr++, voters);
	feed(q, s, n,
	     &(struct quorum_event){.type = QUORUM_EV_PROPOSE,
				    .term = r->term,
				    .seq = r->disk.value.seq,
				    .value = &v});
	return true;
}

static bool may_restart(struct search *q, struct state *s, int n)
{
	if (s->restarts == 0)
		return false;
	snprintf(q->path[q->depth], sizeof(q->path[0]), "%d starts again", n);
	s->restarts--;
	start(q, s, n);
	return true;
}

static bool may(struct search *q, struct state *s, uint32_t what)
{
	uint32_t nodes = (uint32_t)q->shape.nodes;

	if (what < nodes)
		return may_elect_now(q, s, (int)what);
	what -= nodes;
	if (what < nodes)
		return may_restart(q, s, (int)what);
	what -= nodes;
	if (what < nodes * (nodes + 1))
		return may_write(q, s, (int)(what / (nodes + 1)), (int)(what % (nodes + 1)) - 1);
	return may_deliver(q, s, what - nodes * (nodes + 1));
}

static bool seen_before(struct search *q, struct state *s)
{
	size_t mask = ((size_t)1 << q->seen_bits) - 1, at;
	uint64_t h;

	for (uint32_t i = 0; i < q->messages_nr; i++)
		if (s->sent[i / 64] >> i % 64 & 1 && !matters(q, s, i))
			s->sent[i / 64] &= ~(1ull << i % 64);
	h = hash(7, s, sizeof(*s));
	at = h & mask;

	h += h == 0;
	for (; q->seen[at] != 0; at = (at + 1) & mask)
		if (q->seen[at] == h)
			return true;
	q->seen[at] = h;
	return false;
}

static void explore(struct search *q)
{
	const struct state *s = &q->at[q->depth];
	struct state *next = &q->at[q->depth + 1];
	uint32_t nodes = (uint32_t)q->shape.nodes, choices = nodes * (nodes + 3);

	CHECK(q->depth + 2 < DEPTH_MAX);
	q->deepest = q->depth > q->deepest ? q->depth : q->deepest;
	for (uint32_t what = 0; what < choices + q->messages_nr; what++) {
		if (q->failed != NULL || (q->shape.limit > 0 && q->states_nr >= q->shape.limit))
			return;
		*next = *s;
		if (!may(q, next, what))
			continue;
		if (q->failed != NULL)
			return;
		if (seen_before(q, next))
			continue;
		q->states_nr++;
		CHECK(q->states_nr < (size_t)3 << (q->seen_bits - 2));
		q->depth++;
		explore(q);
		if (q->failed != NULL)
			return;
		q->depth--;
	}
}

static void enumerate(const struct shape *shape)
{
	struct search *q = &q_search;
	struct state *s = &q->at[0];
	uint8_t voters = (uint8_t)((1 << shape->voters) - 1);

	memset(q, 0, sizeof(*q));
	q->shape = *shape;
	q->seen_bits = getenv("QUORUM_FULL") ? 26 : 20;
	q->seen = calloc((size_t)1 << q->seen_bits, sizeof(*q->seen));
	assert_non_null(q->seen);
	s->value[0] = (struct value){.seq = 1, .voters = voters};
	s->values_nr = 1;
	s->elections = shape->elections;
	s->writes = shape->writes;
	s->restarts = shape->restarts;
	for (int n = 0; n < shape->voters; n++) {
		s->disk[n].promised = s->disk[n].term = 1 << QUORUM_ORDINAL_BITS;
		fill(&s->disk[n].value, 0, voters);
		s->disk[n].value.seq = 1;
	}
	s->value[0].by[term_at(s, 1 << QUORUM_ORDINAL_BITS)] = voters;
	for (int n = 0; n < shape->nodes; n++)
		start(q, s, n);
	explore(q);
	printf("quorum: %s: %zu states, depth %u, %u messages: %s\n", shape->text, q->states_nr,
	       q->deepest, q->messages_nr,
	       q->failed != NULL                                  ? q->failed
	       : shape->limit > 0 && q->states_nr >= shape->limit ? "cut off"
								  : "safe");
	for (uint32_t i = 0; q->failed != NULL && i <= q->depth; i++)
		printf("  %2u. %s\n", i + 1, q->path[i]);
	free(q->seen);
	assert_null(q->failed);
	assert_true(q->chosen_nr > 0 && q->led_nr > 0);
}

static void run(const struct shape *shapes, size_t nr)
{
	for (size_t i = 0; i < nr; i++)
		enumerate(&shapes[i]);
}

static void test_every_order(void **state)
{
	static const struct shape shapes[] = {
		{"a write", .nodes = 3, .voters = 3, .elections = 2, .writes = 1},
		{"a write, a restart", 3, 3, .elections = 2, .writes = 1, .restarts = 1},
		{"a change of voters", 3, 2, .elections = 2, .writes = 1, .changes = true},
	};

	(void)state;
	run(shapes, sizeof(shapes) / sizeof(shapes[0]));
}

static void test_longer(void **state) /* With CHECK_ALL. */
{
	static const struct shape shapes[] = {
		{"2 writes", .nodes = 3, .voters = 3, .elections = 2, .writes = 2},
		{"2 changes", 4, 3, .elections = 2, .writes = 2, .changes = true, .limit = 400000},
	};

	(void)state;
	run(shapes, sizeof(shapes) / sizeof(shapes[0]));
}

static void test_full(void **state) /* An hour, with QUORUM_FULL=1. */
{
	static const struct shape shapes[] = {
		{"2 writes, a restart", 3, 3, .elections = 2, .writes = 2, .restarts = 1},
		{"3 elections", .nodes = 3, .voters = 3, .elections = 3, .writes = 1},
		{"2 changes", 4, 3, .elections = 2, .writes = 2, .changes = true},
	};

	(void)state;
	run(shapes, sizeof(shapes) / sizeof(shapes[0]));
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_order)};
	const struct CMUnitTest longer[] = {cmocka_unit_test(test_every_order),
					    cmocka_unit_test(test_longer)};
	const struct CMUnitTest full[] = {cmocka_unit_test(test_full)};

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (getenv("QUORUM_FULL"))
		return cmocka_run_group_tests(full, NULL, NULL);
	if (getenv("CHECK_ALL") && *getenv("CHECK_ALL"))
		return cmocka_run_group_tests(longer, NULL, NULL);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
