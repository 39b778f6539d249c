/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the register `quorum` on a random network, by seeds. Nodes join, cease to vote, lose their
 * process (also between the disk's sync and what should have been sent), and stand still. Their
 * clocks run at different rates. Messages are lost, late, doubled and cut off, in one direction or
 * in both, with and without the link's end being seen. Clients write and read all the time.
 * Checked: one: at most one value is shown for each seq, and a node shows them in order fence: one
 * node leads a term, and what a lower term wrote and it did not see never appears linear: reads and
 * writes are linearizable: what ended before another began has a lower seq, or for a read not a
 * higher one refused: what was answered with CONFLICT or FENCED never appears live: after the last
 * fault all nodes show a value that is written then, and can read it calm: a leader keeps its term
 * while nodes come back, start again and join */
#define QUORUM_PEERS_MAX 8
#define QUORUM_BYTES_MAX 8
#include "core/quorum.c"
#include "core/quorum_elect.c"
#include "core/quorum_lead.c"
#include "core/quorum_parts.c"

#include "lib/sanitized.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { NODES = 7, EVENTS_MAX = 1 << 16, VALUES_MAX = 4096, MS = 1000000 };

enum kind { DELIVER, TICK, FAULT, CLIENT, RESUME, LINK_ENDS, LINK_IS };

struct event {
	uint64_t at, serial;
	enum kind kind;
	int node, from;
	uint64_t life; /* Of the process that it is for. 0: of any. */
	struct quorum_msg msg;
	struct quorum_value value;
};

struct written { /* A value that somebody proposed, by its number. */
	uint64_t seq, term;
	bool shown, refused;
};

struct call { /* A client's operation under way on a node. */
	bool on;
	uint64_t floor; /* The highest seq of any operation that had ended when this one began. */
	uint32_t value;
};

struct node {
	_Alignas(16) unsigned char memory[(sizeof(struct quorum) + 15) / 16 * 16];
	struct quorum_disk disk;
	uint64_t life, shown, still_until, leads; /* leads: a term, or 0. */
	bool lives, links[NODES];
	double rate;
	struct call write, read;
};

static struct run {
	uint64_t seed, random, now, serial, lives, ended, events_nr, calm_term;
	struct event *heap;
	struct node node[NODES];
	bool cut[NODES][NODES]; /* Nothing passes from the first to the second. */
	double loss, doubled, late;
	uint64_t pace; /* A fault each pace / 2, in the mean. */
	bool faults, calm, voters_change, has_failed, ordered;
	int may_fail;
	struct written value[VALUES_MAX];
	uint32_t values_nr, by_seq[VALUES_MAX], shown_nr, leads_nr, oks_nr, reads_nr, unknown_nr;
	uint64_t lead_term[VALUES_MAX], lead_seq[VALUES_MAX];
	int lead_node[VALUES_MAX];
	struct quorum_out out;
	const char *failed;
} run;

static void failed(const char *what)
{
	if (run.failed == NULL)
		printf("quorum: seed %lu at %lu ms: %s\n", (unsigned long)run.seed,
		       (unsigned long)(run.now / MS), what);
	run.failed = what;
}

/* --- chance, time --- */

static uint64_t chance(uint64_t below)
{
	run.random += 0x9e3779b97f4a7c15ull;
	uint64_t x = run.random;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return (x ^ x >> 31) % below;
}

static bool happens(double p)
{
	return (double)chance(1000000) < p * 1e6;
}

static bool before(const struct event *a, const struct event *b)
{
	return a->at < b->at || (a->at == b->at && a->serial < b->serial);
}

static void later(struct event e)
{
	uint64_t i = run.events_nr++;

	CHECK(run.events_nr < EVENTS_MAX);
	e.serial = ++run.serial;
	for (; i > 0 && before(&e, &run.heap[(i - 1) / 2]); i = (i - 1) / 2)
		run.heap[i] = run.heap[(i - 1) / 2];
	run.heap[i] = e;
}

static struct event first_of_all(void)
{
	struct event top = run.heap[0], last = run.heap[--run.events_nr];
	uint64_t i = 0, k;

	for (; (k = 2 * i + 1) < run.events_nr; i = k) {
		if (k + 1 < run.events_nr && before(&run.heap[k + 1], &run.heap[k]))
			k++;
		if (!before(&run.heap[k], &last))
			break;
		run.heap[i] = run.heap[k];
	}
	run.heap[i] = last;
	return top;
}

/* --- nodes --- */

static struct quorum *quorum_of(int n)
{
	return (struct quorum *)(void *)run.node[n].memory;
}

static void uuid_of(int n, uint8_t *uuid)
{
	memset(uuid, 0, QUORUM_UUID_BYTES);
	uuid[0] = (uint8_t)(1 + n);
}

static uint64_t clock_of(int n)
{
	return (uint64_t)((double)run.now * run.node[n].rate);
}

static uint32_t number(const struct quorum_value *v)
{
	uint32_t nr;

	memcpy(&nr, v->writer, sizeof(nr));
	CHECK(nr > 0 && nr <= run.values_nr);
	return nr - 1;
}

static uint32_t new_value(struct quorum_value *v)
{
	uint32_t nr;

	CHECK(run.values_nr < VALUES_MAX);
	nr = ++run.values_nr;
	memset(v->writer, 0, sizeof(v->writer));
	memcpy(v->writer, &nr, sizeof(nr));
	return nr - 1;
}

/* --- what must hold --- */

static void show(const struct quorum_value *v)
{
	uint32_t nr = number(v), *by = &run.by_seq[v->seq];
	struct written *w = &run.value[nr];

	if (*by != 0 && *by != nr + 1)
		failed("one: two values are shown for one seq");
	*by = nr + 1;
	run.shown_nr += !w->shown;
	w->shown = true;
	w->seq = v->seq;
	if (w->refused)
		failed("refused: what was refused appears");
}

static void check_leads(int n, uint64_t term, uint64_t seq)
{
	for (uint32_t i = 0; i < run.leads_nr; i++)
		if (run.lead_term[i] == term)
			failed("fence: a term is led twice");
	CHECK(run.leads_nr < VALUES_MAX);
	run.lead_term[run.leads_nr] = term;
	run.lead_seq[run.leads_nr] = seq;
	run.lead_node[run.leads_nr++] = n;
}

static void check_fences(void)
{
	for (uint32_t v = 0; v < run.values_nr; v++)
		for (uint32_t i = 0; i < run.leads_nr && run.value[v].shown; i++)
			if (run.value[v].term < run.lead_term[i] &&
			    run.value[v].seq > run.lead_seq[i])
				failed("fence: a value of a lower term appears after a leader "
				       "that did not see it");
}

static void ends(const struct call *call, const struct quorum_value *v)
{
	if (v->seq < call->floor)
		failed("linear: an older value than one that was known before");
	if (v->seq > run.ended)
		run.ended = v->seq;
	show(v);
}

static void on_done(struct node *n, const struct quorum_action *a)
{
	CHECK(n->write.on);
	n->write.on = false;
	if (a->how == QUORUM_OK) {
		run.oks_nr++;
		if (number(a->value) != n->write.value || a->value->seq <= n->write.floor)
			failed("linear: a write has an older seq than what ended before it");
		ends(&n->write, a->value);
	} else if (a->how == QUORUM_UNKNOWN) {
		run.unknown_nr++;
	} else {
		run.value[n->write.value].refused = true;
		if (run.value[n->write.value].shown)
			failed("refused: what was refused has appeared");
	}
}

static void act_on(int i, const struct quorum_action *a)
{
	struct node *n = &run.node[i];

	switch (a->type) {
	case QUORUM_ACT_VIEW:
		if (a->value->seq <= n->shown)
			failed("one: a node shows values out of order");
		n->shown = a->value->seq;
		show(a->value);
		break;
	case QUORUM_ACT_LEADING:
		n->leads = a->term;
		check_leads(i, a->term, a->value->seq);
		break;
	case QUORUM_ACT_LOST:
		n->leads = 0;
		if (run.calm && a->term == run.calm_term)
			failed("calm: a leader lost its term without need");
		break;
	case QUORUM_ACT_DONE:
		on_done(n, a);
		break;
	case QUORUM_ACT_READ:
		CHECK(n->read.on);
		n->read.on = false;
		if (a->how == QUORUM_OK) {
			run.reads_nr++;
			ends(&n->read, a->value);
		}
		break;
	case QUORUM_ACT_FAILED:
		if (i != run.may_fail)
			failed("a node says that its disk forgot something");
		run.has_failed = true;
		break;
	case QUORUM_ACT_SEND:
	case QUORUM_ACT_LEADER:
	default:
		break;
	}
}

static void send_on(int from, const struct quorum_msg *m)
{
	int to = m->to[0] - 1, copies = 1 + happens(run.doubled);
	struct event e = {.kind = DELIVER, .node = to, .from = from, .msg = *m};

	if (m->value != NULL)
		e.value = *m->value;
	for (int i = 0; i < copies; i++) {
		if (run.cut[from][to] || happens(run.loss))
			continue;
		if (run.ordered)
			e.at = run.now + 300000;
		else
			e.at = run.now + 50000 + chance(happens(run.late) ? 400 * MS : MS);
		later(e);
	}
}

static void kill(int i)
{
	struct node *n = &run.node[i];

	n->lives = false;
	n->write.on = n->read.on = false; /* Unknown for ever. */
	n->leads = 0;
	for (int k = 0; k < NODES; k++)
		if (k != i)
			later((struct event){.at = run.now + 1 + chance(3 * MS),
					     .kind = LINK_ENDS,
					     .node = k,
					     .from = i});
}

static void tick_later(int i)
{
	uint64_t at = quorum_deadline(quorum_of(i));

	if (at == QUORUM_NEVER)
		return;
	at = (uint64_t)((double)at / run.node[i].rate) + 1;
	later((struct event){.at = at > run.now ? at : run.now + 1,
			     .kind = TICK,
			     .node = i,
			     .life = run.node[i].life});
}

static void feed(int i, const struct quorum_event *e)
{
	struct node *n = &run.node[i];
	uint64_t life = n->life, due = quorum_deadline(quorum_of(i));

	quorum_handle(quorum_of(i), e, clock_of(i), &run.out);
	if (run.faults && run.out.sync && happens(0.01)) { /* The disk did not get it. */
		kill(i);
		return;
	}
	if (run.out.sync)
		n->disk = *quorum_disk(quorum_of(i));
	for (uint32_t k = 0; k < run.out.nr && n->life == life && n->lives; k++) {
		if (run.faults && run.out.sync && happens(0.003))
			kill(i);
		else if (run.out.act[k].type == QUORUM_ACT_SEND)
			send_on(i, &run.out.act[k].msg);
		else
			act_on(i, &run.out.act[k]);
	}
	if (n->lives && (quorum_deadline(quorum_of(i)) != due || e->type == QUORUM_EV_TICK))
		tick_later(i);
}

static void set_link(int n, int to, bool up)
{
	struct quorum_event e = {.type = up ? QUORUM_EV_UP : QUORUM_EV_DOWN};

	if (!run.node[n].lives || run.node[n].links[to] == up)
		return;
	run.node[n].links[to] = up;
	uuid_of(to, e.uuid);
	feed(n, &e);
}

static void start(int i)
{
	struct node *n = &run.node[i];
	struct quorum_conf conf = {.ordinal = (uint32_t)i,
				   .beat_ns = 10 * MS,
				   .election_ns = 100 * MS,
				   .deadline_ns = 200 * MS,
				   .seed = chance(UINT64_MAX)};

	uuid_of(i, conf.self);
	memset(n->memory, 0, sizeof(n->memory));
	CHECK(quorum_init(n->memory, &conf, &n->disk, clock_of(i)));
	n->lives = true;
	n->life = ++run.lives;
	n->shown = 0;
	n->still_until = 0;
	memset(n->links, 0, sizeof(n->links));
	tick_later(i);
	for (int k = 0; k < NODES; k++) {
		struct event e = {.at = run.now + chance(5 * MS), .kind = LINK_IS, .node = i};

		if (k == i)
			continue;
		e.from = k;
		later(e);
		if (!run.ordered)
			e.at = run.now + chance(5 * MS);
		e.node = k;
		e.from = i;
		later(e);
	}
}

/* --- clients --- */

static bool is_voter(const struct quorum_value *v, int n)
{
	uint8_t uuid[QUORUM_UUID_BYTES];

	uuid_of(n, uuid);
	return quorum_names(v, uuid);
}

static void change_voters(struct quorum_value *v)
{
	int n = (int)chance(NODES);
	uint32_t k = 0;

	if (!is_voter(v, n)) {
		if (v->voters_nr < QUORUM_VOTERS_MAX && run.node[n].lives)
			uuid_of(n, v->voter[v->voters_nr++]);
		return;
	}
	if (v->voters_nr == 1)
		return;
	for (uint32_t i = 0; i < v->voters_nr; i++)
		if (v->voter[i][0] != n + 1)
			memcpy(v->voter[k++], v->voter[i], QUORUM_UUID_BYTES);
	v->voters_nr = k;
}

/* Writes on node i what follows seq, at the node's term or at one that it had. */
static void write_on(int i)
{
	struct node *n = &run.node[i];
	struct quorum *q = quorum_of(i);
	struct quorum_value v = q->disk.value;
	struct quorum_event e = {.type = QUORUM_EV_PROPOSE, .term = n->leads, .value = &v};

	if (n->write.on || !quorum_may_propose(q) || (n->leads == 0 && !happens(0.05)))
		return;
	e.seq = happens(0.03) ? n->shown - 1 : happens(0.5) ? n->shown : q->disk.value.seq;
	if (run.voters_change && !run.calm && happens(0.2))
		change_voters(&v);
	n->write = (struct call){.on = true, .floor = run.ended, .value = new_value(&v)};
	run.value[n->write.value].term = n->leads;
	feed(i, &e);
}

static void read_on(int i)
{
	if (run.node[i].read.on || !quorum_may_read(quorum_of(i)))
		return;
	run.node[i].read = (struct call){.on = true, .floor = run.ended};
	feed(i, &(struct quorum_event){.type = QUORUM_EV_READ});
}

static void client(void)
{
	int i = (int)chance(NODES);

	for (int k = 0; k < NODES; k++)
		if (run.node[k].lives && run.now >= run.node[k].still_until && happens(0.7))
			write_on(k);
	if (run.node[i].lives && run.now >= run.node[i].still_until)
		read_on(i);
	later((struct event){.at = run.now + MS + chance(8 * MS), .kind = CLIENT});
}

/* --- faults --- */

static int leader(void)
{
	int who = -1;
	uint64_t term = 0;

	for (int i = 0; i < NODES; i++)
		if (run.node[i].lives && run.node[i].leads > term) {
			term = run.node[i].leads;
			who = i;
		}
	return who;
}

static void cut(int n, bool both, bool is)
{
	for (int k = 0; k < NODES; k++) {
		if (k == n)
			continue;
		run.cut[n][k] = is;
		if (both || !is)
			run.cut[k][n] = is;
	}
}

static void fault(void)
{
	int n = happens(0.4) ? leader() : -1, k = (int)chance(NODES);
	struct node *at;

	if (!run.faults)
		return;
	n = n < 0 ? (int)chance(NODES) : n;
	at = &run.node[n];
	switch (chance(9)) {
	case 0:
		if (at->lives)
			kill(n);
		break;
	case 1:
	case 2:
		for (int i = 0; i < NODES; i++)
			if (!run.node[i].lives && happens(0.6))
				start(i);
		break;
	case 3:
		at->still_until = run.now + chance(500 * MS);
		later((struct event){.at = at->still_until, .kind = RESUME, .node = n});
		break;
	case 4:
		cut(n, happens(0.5), true);
		break;
	case 5:
		run.cut[n][k] = n != k;
		break;
	case 6:
		memset(run.cut, 0, sizeof(run.cut));
		break;
	case 7:
		run.loss = happens(0.5) ? 0 : 0.3;
		run.late = happens(0.5) ? 0 : 0.2;
		break;
	default:
		if (n != k) { /* The links end, and come again if both live. */
			set_link(n, k, false);
			set_link(k, n, false);
		}
		break;
	}
	for (int i = 0; i < NODES; i++) /* Links whose end somebody has seen. */
		if (i != n && at->lives && run.node[i].lives && happens(0.3))
			set_link(i, n, !run.cut[i][n] && !run.cut[n][i]);
	later((struct event){.at = run.now + chance(run.pace), .kind = FAULT});
}

static void deliver(struct event *e)
{
	struct node *n = &run.node[e->node];

	if (!n->lives || (e->life != 0 && e->life != n->life))
		return;
	if (n->still_until > run.now) {
		e->at = n->still_until;
		later(*e);
		return;
	}
	switch (e->kind) {
	case DELIVER:
		e->msg.value = e->msg.value != NULL ? &e->value : NULL;
		feed(e->node, &(struct quorum_event){.type = QUORUM_EV_MSG, .msg = &e->msg});
		break;
	case TICK:
		if (quorum_deadline(quorum_of(e->node)) <= clock_of(e->node))
			feed(e->node, &(struct quorum_event){.type = QUORUM_EV_TICK});
		else if (n->life == e->life &&
			 (uint64_t)((double)quorum_deadline(quorum_of(e->node)) / n->rate) <=
				 run.now + 1)
			tick_later(e->node);
		break;
	case RESUME: /* A client is there before the node has looked at its clock. */
		write_on(e->node);
		if (n->lives)
			read_on(e->node);
		break;
	case LINK_ENDS:
	case LINK_IS:
		set_link(e->node, e->from, e->kind == LINK_IS && run.node[e->from].lives);
		break;
	case FAULT:
	case CLIENT:
	default:
		break;
	}
}

static void go_on(uint64_t ns)
{
	uint64_t until = run.now + ns;

	while (run.failed == NULL && run.events_nr > 0 && run.heap[0].at <= until) {
		struct event e = first_of_all();

		run.now = e.at;
		if (e.kind == FAULT)
			fault();
		else if (e.kind == CLIENT)
			client();
		else
			deliver(&e);
	}
	run.now = until;
}

/* --- runs --- */

static void begin(uint64_t seed)
{
	struct event *heap = run.heap;
	struct quorum_conf conf = {.ordinal = 0};
	struct quorum_value v;

	memset(&run, 0, sizeof(run));
	run.heap = heap != NULL ? heap : calloc(EVENTS_MAX, sizeof(*heap));
	assert_non_null(run.heap);
	run.seed = run.random = seed;
	run.may_fail = -1;
	new_value(&v);
	uuid_of(0, conf.self);
	quorum_first(&run.node[0].disk, &conf, v.writer, NULL, 0);
	run.value[0].term = run.node[0].disk.term;
	for (int i = 0; i < NODES; i++)
		run.node[i].rate = 0.7 + (double)chance(600) / 1000;
	for (int i = 0; i < NODES; i++)
		start(i);
	run.voters_change = true;
	later((struct event){.at = 5 * MS, .kind = CLIENT});
}

/* All faults end. */
static void heal(void)
{
	run.faults = false;
	run.loss = run.doubled = run.late = 0;
	memset(run.cut, 0, sizeof(run.cut));
	for (int i = 0; i < NODES; i++) {
		run.node[i].still_until = 0;
		if (!run.node[i].lives)
			start(i);
		for (int k = 0; k < NODES; k++)
			if (k != i && run.node[i].lives)
				later((struct event){.at = run.now + 10 * MS,
						     .kind = LINK_IS,
						     .node = i,
						     .from = k});
	}
}

static void check_live(void)
{
	uint32_t oks = run.oks_nr, reads = run.reads_nr;
	uint64_t ended;

	run.voters_change = false;
	heal();
	go_on(600ull * MS); /* The last events of who stood still have come, ends of links too. */
	heal();
	go_on(2000ull * MS); /* Fourteen elections of the slowest clock. */
	if (run.failed == NULL && leader() < 0)
		failed("live: nobody leads");
	ended = run.ended;
	go_on(500ull * MS);
	if (run.failed == NULL && (run.oks_nr == oks || run.ended == ended))
		failed("live: nothing is written");
	if (run.failed == NULL && run.reads_nr == reads)
		failed("live: nothing is read");
	for (int i = 0; i < NODES && run.failed == NULL; i++)
		if (run.node[i].shown < ended)
			failed("live: a node does not see what was written");
}

/* Non-leaders are killed, started again, cut off and brought back. */
static void check_calm(void)
{
	int who = leader();

	if (run.failed != NULL)
		return;
	run.calm_term = run.node[who].leads;
	run.calm = true;
	for (int i = 0; i < NODES && run.failed == NULL; i++) {
		const struct quorum_value *v = &quorum_of(who)->disk.value;

		if (i == who || (v->voters_nr <= 2 && is_voter(v, i)))
			continue;
		if (happens(0.5)) {
			kill(i);
			go_on(300ull * MS);
			start(i);
		} else {
			cut(i, true, true);
			if (happens(0.5))
				for (int k = 0; k < NODES; k++)
					if (k != i)
						set_link(i, k, false);
			go_on(700ull * MS);
			cut(i, true, false);
			heal();
		}
		go_on(300ull * MS);
	}
	if (run.failed == NULL && run.node[who].leads != run.calm_term)
		failed("calm: a leader lost its term without need");
}

static void random_run(uint64_t seed)
{
	begin(seed);
	go_on(300ull * MS);
	run.faults = true;
	run.pace = (20 + chance(60)) * MS;
	run.doubled = happens(0.5) ? 0.1 : 0;
	later((struct event){.at = run.now, .kind = FAULT});
	go_on(3000ull * MS + chance(3000) * MS);
	check_live();
	check_calm();
	check_fences();
}

static uint64_t seeds(void)
{
	const char *all = getenv("CHECK_ALL"), *nr = getenv("SEEDS");

	if (nr != NULL)
		return strtoull(nr, NULL, 10);
	return SANITIZED ? 60 : all != NULL && *all != '\0' ? 1000 : 300;
}

static void test_random(void **state)
{
	uint64_t first = getenv("SEED") ? strtoull(getenv("SEED"), NULL, 10) : 1;
	uint64_t nr = getenv("SEED") ? 1 : seeds();
	uint64_t oks = 0, reads = 0, leads = 0, unknown = 0;

	(void)state;
	for (uint64_t seed = first; seed < first + nr; seed++) {
		random_run(seed);
		assert_null(run.failed);
		oks += run.oks_nr;
		reads += run.reads_nr;
		leads += run.leads_nr;
		unknown += run.unknown_nr;
	}
	printf("quorum: %lu seeds: %lu writes, %lu unknown, %lu reads, %lu elections\n",
	       (unsigned long)nr, (unsigned long)oks, (unsigned long)unknown, (unsigned long)reads,
	       (unsigned long)leads);
	assert_true(oks > 100 * nr && reads > 100 * nr && leads > 3 * nr);
}

/* A state folder that was put back from a copy: who was promised something remembers it (V9). */
static void test_rolled_back(void **state)
{
	static struct quorum_disk copy;
	uint32_t stopped = 0;

	(void)state;
	for (uint64_t seed = 1; seed <= 20; seed++) {
		int i;

		begin(seed);
		go_on(1000ull * MS);
		i = (int)chance(NODES);
		copy = run.node[i].disk;
		go_on(500ull * MS);
		kill(i);
		go_on(50ull * MS);
		assert_true(run.node[i].disk.value.seq > copy.value.seq);
		run.node[i].disk = copy;
		run.may_fail = i;
		run.ordered = true; /* A link is. What it says first is what it knew. */
		start(i);
		go_on(200ull * MS);
		check_fences();
		assert_null(run.failed);
		stopped += run.has_failed;
	}
	/* Otherwise a later leader was the first to speak to it, and then it knows more than it
	 * has ever told. */
	assert_true(stopped >= 15);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_random),
					   cmocka_unit_test(test_rolled_back)};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
