/* SPDX-License-Identifier: Apache-2.0 */
/* Tests who leaves when links between members are lost, and all are linked to the coordinator. One
 * core plays the coordinator of six nodes, and the test plays the others: what they report, when,
 * and what comes of it. One of them may lie. Another core plays a member: what it tells, and for
 * how long. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/inner.h"

#include <stdlib.h>
#include <string.h>

enum { A, B, C, D, E, F, NODES, CHUNKS = 8, TERM = 9 };

#define RECONNECT_NS 1000000000ull
#define ALL          ((1u << NODES) - 1)
#define BIT_(n)      (1ull << (n))
#define PAIR(a, b)   (BIT_(a) | BIT_(b))

static const char *const names[CORE_NODES_MAX] = {"a", "b", "c", "d", "e", "f"};

struct table { /* Where the copies of each chunk are. */
	uint16_t primary[CHUNKS];
	uint64_t holders[CHUNKS];
};

/* Each node but a has a primary and follows another one, and b has one primary more. */
static const struct table ring = {{B, C, D, E, F, B, C, D},
				  {PAIR(B, C), PAIR(C, D), PAIR(D, E), PAIR(E, F), PAIR(F, B),
				   PAIR(B, D), PAIR(C, E), PAIR(D, F)}};
/* c has the only copy of chunk 1, and d that of chunk 2. */
static const struct table alone = {
	{B, C, D, E, F, B, E, F},
	{PAIR(B, C), BIT_(C), BIT_(D), PAIR(E, F), PAIR(F, B), PAIR(B, E), PAIR(E, F), PAIR(F, B)}};

struct bed {
	struct core *core;
	struct core_out out;
	uint64_t now;
	uint64_t says[NODES]; /* What each node would answer now. */
	uint64_t linked;
};

static struct view_node who(uint16_t n)
{
	return (struct view_node){.uuid = {'n', (uint8_t)(1 + n)}, .incarnation = 100u + n};
}

static void event(struct bed *b, struct core_event e)
{
	b->now += 1000;
	core_handle(b->core, &e, b->now, &b->out);
}

static void message(struct bed *b, uint16_t from, struct core_msg m)
{
	m.from = from;
	m.to = b->core->conf.self;
	m.from_incarnation = 100u + from;
	event(b, (struct core_event){.type = CORE_EV_MSG, .msg = &m});
}

static const struct core_action *acted(const struct bed *b, enum core_action_type type)
{
	for (uint32_t i = 0; i < b->out.nr; i++) {
		if (b->out.act[i].type == type)
			return &b->out.act[i];
	}
	return NULL;
}

static const struct core_msg *sent(const struct bed *b, enum core_op op, uint16_t to)
{
	for (uint32_t i = 0; i < b->out.nr; i++) {
		const struct core_msg *m = &b->out.act[i].msg;

		if (b->out.act[i].type == CORE_ACT_SEND && m->op == op && m->to == to)
			return m;
	}
	return NULL;
}

static void up(struct bed *b, uint16_t n)
{
	b->linked |= BIT_(n);
	event(b, (struct core_event){.type = CORE_EV_LINK_UP, .node = n, .who = who(n)});
}

static void down(struct bed *b, uint16_t n)
{
	b->linked &= ~BIT_(n);
	event(b, (struct core_event){.type = CORE_EV_LINK_DOWN, .node = n, .why = "it broke"});
}

static struct core_view view_of(const struct table *t)
{
	struct core_view v = {.term = TERM - 1,
			      .seq = 3,
			      .generation = 1,
			      .members = view_first(NODES, A),
			      .place = place_of(t->primary, t->holders, CHUNKS),
			      .sealed = true};

	v.record.id = (struct core_id){.term = TERM - 1, .seq = 3, .generation = 1, .step = 4};
	v.record.groups_nr = 1;
	v.record.scaler.scale = v.record.loss_scale = 1;
	v.record.outcome = RECORD_SEAL;
	v.record.bad_tensor = -1;
	v.record.bad_rank = -1;
	v.record.applied = v.record.content = v.record.content_old = 4;
	for (uint16_t i = 0; i < NODES; i++)
		v.members.node[i] = who(i);
	return v;
}

static struct core_conf conf_of(uint16_t self, const struct table *t)
{
	struct core_conf conf = {.self = self,
				 .members = view_first(NODES, A),
				 .slots = UINT64_MAX,
				 .who = who(self),
				 .term = TERM,
				 .chunks_nr = CHUNKS,
				 .place = place_of(t->primary, t->holders, CHUNKS),
				 .node_names = names,
				 .min_copies = 1,
				 .min_world = 1,
				 .max_world = 2,
				 .step_timeout_ns = 100 * RECONNECT_NS,
				 .lost_timeout_ns = 1000 * RECONNECT_NS,
				 .heartbeat_timeout_ns = RECONNECT_NS,
				 .reconnect_ns = RECONNECT_NS,
				 .repeat_ns = 1000000};

	conf.record = (struct record_conf){
		.optim = optim_row(OPTIM_ADAMW), .groups_nr = 1, .initial_scale = 1};
	conf.record.lr_factor[0] = 1;
	optim_defaults(conf.record.optim, conf.record.hyper[0]);
	return conf;
}

static void init(struct bed *b, uint16_t self, const struct table *t)
{
	struct core_conf conf = conf_of(self, t);
	struct core_view v = view_of(t);
	void *memory = aligned_alloc(64, (core_bytes(&conf) + 63) & ~(size_t)63);

	assert_non_null(memory);
	memset(memory, 0, core_bytes(&conf));
	memset(b, 0, sizeof(*b));
	b->now = RECONNECT_NS;
	b->core = core_init(memory, &conf, self == A ? &v : NULL, NULL);
	for (uint16_t i = 0; i < NODES; i++) {
		if (i != self)
			up(b, i);
	}
}

static uint64_t members(const struct bed *b)
{
	return b->core->coord.view.members.nodes;
}

static void tick(struct bed *b, uint64_t later)
{
	b->now += later;
	event(b, (struct core_event){.type = CORE_EV_TICK});
}

/* The node says so by itself. */
static void tells(struct bed *b, uint16_t n, uint64_t misses)
{
	const struct coord *co = &b->core->coord;

	b->says[n] = misses;
	message(b, n,
		(struct core_msg){.op = CORE_HEARD,
				  .id = {.term = TERM, .seq = co->view.seq, .step = co->hear},
				  .misses = misses});
}

/* All that are linked answer what they owe, and views become durable and are adopted. */
static void settle(struct bed *b)
{
	const struct coord *co = &b->core->coord;

	for (int i = 0; i < 4; i++) {
		if (co->state == COORD_PERSIST)
			event(b, (struct core_event){.type = CORE_EV_PERSISTED});
		for (uint16_t n = B; n < NODES && co->state == COORD_VIEW; n++) {
			struct core_id id = {.term = TERM, .seq = co->view.seq, .generation = 1};

			if (b->linked & members(b) & BIT_(n))
				message(b, n,
					(struct core_msg){.op = CORE_VIEW_OK,
							  .id = id,
							  .misses = b->says[n],
							  .caught = true});
		}
		for (uint16_t n = B; n < NODES && co->state == COORD_OPEN; n++) {
			if (b->linked & members(b) & BIT_(n) && co->node[n].heard != co->hear)
				tells(b, n, b->says[n]);
		}
		if (core_deadline(b->core) <= b->now)
			tick(b, 0);
	}
}

/* What it holds is as of the seal of the view. */
static void answers(struct bed *b, uint16_t n, const struct core_view *v)
{
	struct core_answer a = {.incarnation = 100u + n,
				.term = TERM - 1,
				.seq = 3,
				.generation = 1,
				.has_record = true,
				.record = v->record};

	message(b, n,
		(struct core_msg){.op = CORE_ANSWER,
				  .id = {.term = TERM},
				  .answer = &a,
				  .misses = b->says[n]});
}

static void opened(struct bed *b, const struct table *t)
{
	struct core_view v = view_of(t);

	init(b, A, t);
	tick(b, 0);
	for (uint16_t n = B; n < NODES; n++)
		answers(b, n, &v);
	settle(b);
	assert_int_equal(b->core->coord.state, COORD_OPEN);
	assert_int_equal(members(b), ALL);
}

static void later(struct bed *b, uint64_t ns)
{
	tick(b, ns);
	settle(b);
	assert_int_equal(b->core->coord.state, COORD_OPEN);
}

static void cut(struct bed *b, uint16_t x, uint16_t y)
{
	tells(b, x, b->says[x] | BIT_(y));
	tells(b, y, b->says[y] | BIT_(x));
}

static void mend(struct bed *b, uint16_t x, uint16_t y)
{
	bool in_x = members(b) >> x & 1, in_y = members(b) >> y & 1;

	b->says[x] &= ~BIT_(y);
	b->says[y] &= ~BIT_(x);
	if (in_x)
		tells(b, x, b->says[x]);
	if (in_y)
		tells(b, y, b->says[y]);
}

/* Of two that lack a link, one leaves: not before they could have made it anew, and not before
 * everybody was asked once more. One line says who, and why. */
static void test_one_leaves(void **state)
{
	struct core_state st;
	struct bed b;

	(void)state;
	opened(&b, &ring);
	cut(&b, C, E);
	assert_null(acted(&b, CORE_ACT_PERSIST));
	later(&b, RECONNECT_NS - 10000000);
	assert_int_equal(members(&b), ALL);
	tick(&b, 20000000);
	assert_null(acted(&b, CORE_ACT_PERSIST));
	assert_non_null(sent(&b, CORE_HEAR, D));
	for (uint16_t n = B; n < NODES && !acted(&b, CORE_ACT_CUT); n++)
		tells(&b, n, b.says[n]);
	assert_int_equal(acted(&b, CORE_ACT_CUT)->node, E); /* It has fewer primaries. */
	assert_string_equal(acted(&b, CORE_ACT_CUT)->why, "node c has no link to node e");
	settle(&b);
	assert_int_equal(members(&b), ALL & ~BIT_(E));
	core_state(b.core, &st);
	assert_int_equal(st.cut, 1);
	later(&b, RECONNECT_NS * 3);
	assert_int_equal(members(&b), ALL & ~BIT_(E));
	free(b.core);
}

/* One end is enough to say so, because a link may carry in one direction only. */
static void test_one_way(void **state)
{
	struct bed b;

	(void)state;
	opened(&b, &ring);
	tells(&b, E, BIT_(C));
	later(&b, RECONNECT_NS + 1000000);
	assert_int_equal(members(&b), ALL & ~BIT_(E));
	free(b.core);
}

/* A link that is made anew in time costs nobody. */
static void test_reconnects(void **state)
{
	struct bed b;

	(void)state;
	opened(&b, &ring);
	cut(&b, C, E);
	later(&b, RECONNECT_NS / 2);
	mend(&b, C, E);
	later(&b, RECONNECT_NS);
	cut(&b, C, E); /* Its time begins again. */
	later(&b, RECONNECT_NS / 2);
	assert_int_equal(members(&b), ALL);
	/* It was back when everybody was asked once more. */
	tick(&b, RECONNECT_NS);
	assert_int_equal(b.core->coord.reports.out, BIT_(E));
	mend(&b, C, E);
	settle(&b);
	assert_int_equal(b.core->coord.reports.out, 0);
	assert_int_equal(members(&b), ALL);
	free(b.core);
}

/* Whom most members miss leaves, whoever holds less. */
static void test_most_missed(void **state)
{
	struct bed b;

	(void)state;
	opened(&b, &ring);
	cut(&b, B, D);
	cut(&b, B, E);
	later(&b, RECONNECT_NS + 1000000);
	assert_int_equal(members(&b), ALL & ~BIT_(B));
	free(b.core);
}

/* The last copy of a chunk stays. The other one of the pair leaves, or nobody does. */
static void test_last_copy(void **state)
{
	char waits[512];
	struct bed b;

	(void)state;
	opened(&b, &alone);
	cut(&b, B, C);
	later(&b, RECONNECT_NS + 1000000);
	assert_int_equal(members(&b), ALL & ~BIT_(B));
	free(b.core);
	opened(&b, &alone);
	cut(&b, C, D);
	later(&b, 4 * RECONNECT_NS);
	assert_int_equal(members(&b), ALL);
	coord_waits(b.core, waits, sizeof(waits));
	assert_non_null(strstr(waits, "node c has no link to node d"));
	free(b.core);
	/* Nor do all leave that miss one which has it. */
	opened(&b, &alone);
	cut(&b, C, E);
	cut(&b, C, F);
	later(&b, 4 * RECONNECT_NS);
	assert_int_equal(members(&b), ALL);
	free(b.core);
}

/* Who is missed by the coordinator itself leaves at once, and takes nobody along. */
static void test_missed_by_all(void **state)
{
	struct bed b;

	(void)state;
	opened(&b, &ring);
	down(&b, E);
	tells(&b, C, BIT_(E));
	tells(&b, D, BIT_(E));
	settle(&b);
	assert_int_equal(members(&b), ALL & ~BIT_(E));
	later(&b, 2 * RECONNECT_NS);
	assert_int_equal(members(&b), ALL & ~BIT_(E));
	free(b.core);
}

/* A report of another view or term, of no member, or about the coordinator counts for nothing. */
static void test_old_news(void **state)
{
	struct core_msg m = {.op = CORE_HEARD, .misses = BIT_(C)};
	struct bed b;

	(void)state;
	opened(&b, &ring);
	m.id = (struct core_id){
		.term = TERM, .seq = b.core->coord.view.seq, .step = b.core->coord.hear};
	m.misses = BIT_(A) | BIT_(E) | BIT_(40);
	message(&b, E, m);
	m.misses = BIT_(C);
	m.id.seq--;
	message(&b, E, m);
	m.id.seq++;
	m.id.term--;
	message(&b, E, m);
	tick(&b, 2 * RECONNECT_NS);
	assert_int_equal(b.core->coord.reports.out, 0);
	assert_int_equal(members(&b), ALL);
	/* A view follows, and everybody says anew whom it misses. */
	tells(&b, E, BIT_(C));
	down(&b, F);
	b.says[E] = 0;
	settle(&b);
	assert_int_equal(members(&b), ALL & ~BIT_(F));
	later(&b, 2 * RECONNECT_NS);
	assert_int_equal(members(&b), ALL & ~BIT_(F));
	free(b.core);
}

/* A member that lies. If it names several it leaves itself. If it names one after the other, it
 * gets rid of the first one only. */
static void test_liar(void **state)
{
	struct bed b;

	(void)state;
	opened(&b, &ring);
	tells(&b, B, UINT64_MAX);
	later(&b, RECONNECT_NS + 1000000);
	assert_int_equal(members(&b), ALL & ~BIT_(B));
	later(&b, 4 * RECONNECT_NS);
	assert_int_equal(members(&b), ALL & ~BIT_(B));
	free(b.core);
	opened(&b, &ring);
	tells(&b, B, BIT_(F));
	later(&b, RECONNECT_NS + 1000000);
	assert_int_equal(members(&b), ALL & ~BIT_(F));
	tells(&b, B, BIT_(E)); /* It forgets the first one, which comes back. */
	later(&b, RECONNECT_NS + 1000000);
	later(&b, RECONNECT_NS + 1000000);
	assert_int_equal(members(&b), ALL & ~BIT_(B));
	free(b.core);
	/* It keeps out one node at most. */
	opened(&b, &ring);
	down(&b, C);
	down(&b, F);
	settle(&b);
	assert_int_equal(members(&b), ALL & ~PAIR(C, F));
	tells(&b, B, PAIR(C, F));
	up(&b, C);
	up(&b, F);
	settle(&b);
	assert_int_equal(members(&b), ALL);
	free(b.core);
}

/* Who left stays out as long as a member has no link to it, and for a time after that, which is
 * longer each time. */
static void test_comes_back(void **state)
{
	struct bed b;

	(void)state;
	opened(&b, &ring);
	for (int times = 0; times < 4; times++) {
		cut(&b, C, E);
		later(&b, RECONNECT_NS + 1000000);
		assert_int_equal(members(&b), ALL & ~BIT_(E));
		later(&b, 50 * RECONNECT_NS);
		assert_int_equal(members(&b), ALL & ~BIT_(E));
		mend(&b, C, E);
		later(&b, (RECONNECT_NS << times) - 100000000);
		assert_int_equal(members(&b), ALL & ~BIT_(E));
		assert_true(core_deadline(b.core) < b.now + 200000000);
		later(&b, 200000000);
		assert_int_equal(members(&b), ALL);
		/* It catches up, and its copies count. */
		assert_int_equal(b.core->coord.view.place.learns, 0);
	}
	free(b.core);
}

/* A new coordinator hears of it with the answers to ASK, and does not take the node in first. */
static void test_new_coordinator(void **state)
{
	struct core_view v = view_of(&ring);
	struct core_conf conf = conf_of(A, &ring);
	struct bed b = {.now = RECONNECT_NS};

	(void)state;
	v.members.nodes &= ~BIT_(E);
	v.members.node[E] = (struct view_node){0};
	b.core = calloc(1, (core_bytes(&conf) + 63) & ~(size_t)63);
	assert_non_null(core_init(b.core, &conf, &v, NULL));
	for (uint16_t n = B; n < NODES; n++)
		up(&b, n);
	tick(&b, 0);
	b.says[C] = BIT_(E);
	for (uint16_t n = B; n < NODES; n++) {
		if (n != E)
			answers(&b, n, &v);
	}
	settle(&b);
	assert_int_equal(b.core->coord.state, COORD_OPEN);
	assert_int_equal(members(&b), ALL & ~BIT_(E));
	mend(&b, C, E);
	later(&b, RECONNECT_NS + 1000000);
	assert_int_equal(members(&b), ALL);
	free(b.core);
}

/* When a node has a link to the coordinator again, its links to others get the same time. */
static void test_new_links(void **state)
{
	struct bed b;

	(void)state;
	opened(&b, &alone);
	cut(&b, C, E);
	later(&b, RECONNECT_NS / 10 * 9);
	down(&b, C);
	up(&b, C);
	tells(&b, C, BIT_(E));
	later(&b, RECONNECT_NS / 2);
	assert_int_equal(members(&b), ALL);
	later(&b, RECONNECT_NS / 10 * 6);
	assert_int_equal(members(&b), ALL & ~BIT_(E));
	free(b.core);
}

/* Its trainers are in no world any more, and it tells of them anew when it is back. */
static void test_trainers(void **state)
{
	struct core_msg m = {.op = CORE_JOIN,
			     .id = {.term = TERM},
			     .trainer = {.session = 5, .pid = 7, .hint = -1}};
	struct bed b;

	(void)state;
	opened(&b, &ring);
	message(&b, E, m);
	assert_int_equal(core_joined(b.core, E, 7), 1);
	cut(&b, C, E);
	later(&b, RECONNECT_NS + 1000000);
	assert_int_equal(members(&b), ALL & ~BIT_(E));
	assert_int_equal(core_joined(b.core, E, 7), 0);
	free(b.core);
}

/* Nothing begins while one is to leave, and a save is not disturbed. */
static void test_hold(void **state)
{
	struct bed b;

	(void)state;
	opened(&b, &ring);
	event(&b, (struct core_event){.type = CORE_EV_HOLD, .on = true});
	cut(&b, C, E);
	later(&b, 3 * RECONNECT_NS);
	assert_int_equal(members(&b), ALL);
	event(&b, (struct core_event){.type = CORE_EV_HOLD, .on = false});
	settle(&b);
	assert_int_equal(members(&b), ALL & ~BIT_(E));
	free(b.core);
}

/* Its own word keeps it out, too: the link may carry in one direction only. It is asked again. */
static void test_outside(void **state)
{
	struct bed b;

	(void)state;
	opened(&b, &ring);
	cut(&b, C, E);
	later(&b, RECONNECT_NS + 1000000);
	assert_int_equal(members(&b), ALL & ~BIT_(E));
	message(&b, E,
		(struct core_msg){.op = CORE_HEARD, .id = {.term = TERM - 1}, .misses = BIT_(C)});
	b.says[C] = 0;
	tells(&b, C, 0);
	later(&b, 5 * RECONNECT_NS);
	assert_int_equal(members(&b), ALL & ~BIT_(E));
	tick(&b, RECONNECT_NS);
	assert_non_null(sent(&b, CORE_HEAR, E));
	b.says[E] = 0;
	message(&b, E, (struct core_msg){.op = CORE_HEARD, .id = {.term = TERM}});
	later(&b, 2 * RECONNECT_NS);
	assert_int_equal(members(&b), ALL);
	free(b.core);
}

/* The coordinator asks again as long as somebody is named, so that no report is lost for long. */
static void test_asks_again(void **state)
{
	struct bed b;

	(void)state;
	opened(&b, &alone);
	cut(&b, C, D);
	later(&b, 3 * RECONNECT_NS);
	tick(&b, RECONNECT_NS);
	assert_non_null(sent(&b, CORE_HEAR, C));
	assert_null(sent(&b, CORE_HEAR, E));
	mend(&b, C, D);
	tick(&b, RECONNECT_NS);
	assert_null(sent(&b, CORE_HEAR, C));
	free(b.core);
}

/* An elected coordinator that misses most others lets one of them lead, for a while. If those that
 * are left miss them as well, it is right to go on. */
static void test_yields(void **state)
{
	struct bed b;

	(void)state;
	opened(&b, &ring);
	b.core->conf.elected = true;
	down(&b, B);
	assert_null(acted(&b, CORE_ACT_YIELD));
	down(&b, E);
	for (uint16_t n = B; n < NODES && !acted(&b, CORE_ACT_YIELD); n++) {
		if (b.linked >> n & 1)
			tells(&b, n, 0);
	}
	assert_non_null(acted(&b, CORE_ACT_YIELD));
	settle(&b);
	assert_int_equal(members(&b), ALL);
	tick(&b, RECONNECT_NS);
	assert_true(core_deadline(b.core) <= b.now + RECONNECT_NS);
	tick(&b, RECONNECT_NS); /* Nobody has taken the lead. */
	settle(&b);
	assert_int_equal(members(&b), ALL & ~PAIR(B, E));
	free(b.core);
	opened(&b, &ring);
	b.core->conf.elected = true;
	down(&b, B);
	down(&b, E);
	b.says[C] = b.says[D] = b.says[F] = PAIR(B, E);
	settle(&b);
	assert_int_equal(b.core->coord.reports.yields_ns, 0);
	assert_int_equal(members(&b), ALL & ~PAIR(B, E));
	free(b.core);
	/* Nobody else could lead. */
	opened(&b, &ring);
	down(&b, B);
	down(&b, E);
	settle(&b);
	assert_int_equal(members(&b), ALL & ~PAIR(B, E));
	free(b.core);
}

/* With one copy of each chunk, all at b. The step that b has voted for is decided without the
 * others, which are away, and so the view that says so is without them, too. It waits for that
 * until b has answered once more. */
static void test_recovers_alone(void **state)
{
	static const double sums[CHUNKS] = {1}, weight = 1;
	static const uint8_t finite[CHUNKS] = {1, 1, 1, 1, 1, 1, 1, 1};
	static const uint16_t at_b[CHUNKS] = {B, B, B, B, B, B, B, B};
	struct core_conf conf = conf_of(A, &ring);
	struct core_view v = view_of(&ring);
	struct core_answer a = {.incarnation = 100u + B,
				.term = TERM - 1,
				.seq = 3,
				.generation = 1,
				.has_record = true,
				.record = v.record,
				.prepared = true,
				.vote = {.sumsq = sums,
					 .finite = finite,
					 .chunks_nr = CHUNKS,
					 .weights = &weight,
					 .ranks_nr = 1,
					 .bad_tensor = -1,
					 .bad_rank = -1}};
	struct bed b = {.now = RECONNECT_NS};

	(void)state;
	conf.place = v.place = place_of(at_b, NULL, CHUNKS);
	v.members.node[A].incarnation = 7; /* It has started again without its memory. */
	a.id = (struct core_id){TERM - 1, 5, 3, 1, 1};
	a.world.size = 1;
	a.world.rank[0] = (struct core_rank){.session = 5, .node = B, .weight = 1};
	b.core = calloc(1, (core_bytes(&conf) + 63) & ~(size_t)63);
	assert_non_null(core_init(b.core, &conf, &v, NULL));
	for (uint16_t n = B; n < NODES; n++)
		up(&b, n);
	tick(&b, 0);
	message(&b, B, (struct core_msg){.op = CORE_ANSWER, .id = {.term = TERM}, .answer = &a});
	for (uint16_t n = C; n < NODES; n++)
		down(&b, n);
	assert_int_equal(b.core->coord.state, COORD_RECOVER);
	message(&b, B,
		(struct core_msg){.op = CORE_HEARD,
				  .id = {.term = TERM, .step = b.core->coord.hear}});
	assert_non_null(acted(&b, CORE_ACT_PERSIST));
	assert_int_equal(members(&b), PAIR(A, B));
	assert_int_equal(b.core->coord.last.id.step, 5);
	free(b.core);
}

/* --- a member --- */

static void member_opened(struct bed *b)
{
	struct core_view v = view_of(&ring);

	init(b, B, &ring);
	v.term = TERM;
	message(b, A,
		(struct core_msg){.op = CORE_VIEW, .id = {.term = TERM, .seq = 3}, .view = &v});
	assert_non_null(sent(b, CORE_VIEW_OK, A));
	assert_int_equal(sent(b, CORE_VIEW_OK, A)->misses, 0);
}

/* It tells at once, and again, until the link is back. */
static void test_member_tells(void **state)
{
	const struct core_msg *m;
	struct bed b;

	(void)state;
	member_opened(&b);
	message(&b, A, (struct core_msg){.op = CORE_HEAR, .id = {.term = TERM, .step = 7}});
	down(&b, D);
	m = sent(&b, CORE_HEARD, A);
	assert_non_null(m);
	assert_int_equal(m->misses, BIT_(D));
	assert_true(m->id.term == TERM && m->id.seq == 3 && m->id.step == 7);
	assert_true(core_deadline(b.core) < b.now + RECONNECT_NS);
	for (int i = 0; i < 3; i++) {
		tick(&b, 2 * RECONNECT_NS);
		m = sent(&b, CORE_HEARD, A);
		assert_true(m && m->misses == BIT_(D));
	}
	message(&b, A, (struct core_msg){.op = CORE_HEAR, .id = {.term = TERM, .step = 8}});
	assert_int_equal(sent(&b, CORE_HEARD, A)->misses, BIT_(D));
	assert_int_equal(sent(&b, CORE_HEARD, A)->id.step, 8);
	up(&b, D);
	m = sent(&b, CORE_HEARD, A);
	assert_true(m && m->misses == 0);
	tick(&b, 2 * RECONNECT_NS);
	assert_null(sent(&b, CORE_HEARD, A));
	assert_true(core_deadline(b.core) == UINT64_MAX);
	free(b.core);
}

/* A node that is no member is told of when that changes, but not again and again. */
static void test_member_knows_others(void **state)
{
	struct bed b;

	(void)state;
	member_opened(&b);
	event(&b, (struct core_event){.type = CORE_EV_LINK_UP, .node = 9, .who = who(9)});
	event(&b, (struct core_event){.type = CORE_EV_LINK_DOWN, .node = 9, .why = "it broke"});
	assert_int_equal(sent(&b, CORE_HEARD, A)->misses, BIT_(9));
	assert_true(core_deadline(b.core) == UINT64_MAX);
	/* The coordinator starts again, and is told by itself. */
	down(&b, D);
	down(&b, A);
	assert_null(sent(&b, CORE_HEARD, A));
	up(&b, A);
	assert_int_equal(sent(&b, CORE_HEARD, A)->misses, BIT_(9) | BIT_(D));
	free(b.core);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_one_leaves),
		cmocka_unit_test(test_one_way),
		cmocka_unit_test(test_reconnects),
		cmocka_unit_test(test_most_missed),
		cmocka_unit_test(test_last_copy),
		cmocka_unit_test(test_missed_by_all),
		cmocka_unit_test(test_old_news),
		cmocka_unit_test(test_liar),
		cmocka_unit_test(test_comes_back),
		cmocka_unit_test(test_new_coordinator),
		cmocka_unit_test(test_new_links),
		cmocka_unit_test(test_trainers),
		cmocka_unit_test(test_hold),
		cmocka_unit_test(test_outside),
		cmocka_unit_test(test_yields),
		cmocka_unit_test(test_recovers_alone),
		cmocka_unit_test(test_asks_again),
		cmocka_unit_test(test_member_tells),
		cmocka_unit_test(test_member_knows_others),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
