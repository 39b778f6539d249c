/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a core for each node in one thread and carries the messages between them as bytes.
 * bench_control.c calls it. Happy path: the cores are linked, the model is sealed, all trainers
 * join, and then each step is a BEGIN, timers until the ranks are ready, votes, COMMIT and DONE. A
 * message takes the same way as in a daemon: corewire_pack(), protobuf, control_unpack(),
 * corewire_unpack(), core_handle(). Headers, sums and system calls are not in it (frames.c). The
 * clock is read around each part, and what reading it costs is subtracted. Only the first node,
 * which coordinates, and the second one are measured. */
#include "bench/cores.h"

#include "base/arena.h"
#include "base/check.h"
#include "base/clock.h"
#include "bench/daemons.h"
#include "model/corewire.h"
#include "wire/control.h"
#include "wire/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ARENA = 4 << 20, QUEUE = 1 << 15, LOOKS = 100, TRIES = 50 };

struct body { /* One packed body, for all messages that carry it. */
	uint32_t users;
	size_t bytes;
	unsigned char data[];
};

struct letter {
	uint16_t from, to;
	bool first; /* Of a write. */
	struct wire_head head;
	struct body *body;
};

struct cores {
	struct cores_spec spec;
	struct core_conf conf;
	uint16_t *primary;
	uint64_t *holders;
	struct core *core[CORE_NODES_MAX];
	struct core_id begun[CORE_NODES_MAX]; /* The attempt that each node is in. */
	bool staging[CORE_NODES_MAX], apply[CORE_NODES_MAX], persist;
	struct core_out out;
	struct letter *queue; /* [QUEUE] */
	uint32_t head, tail;
	struct arena tx, rx;
	unsigned char *copy;
	uint64_t now, look_ns;
	struct cores_cost *cost; /* NULL: nothing is measured now. */
};

static const char *const names[CORE_NODES_MAX];

static const char *const op_names[CORE_MSG_NR] = {
	[CORE_ASK] = "ASK",         [CORE_ANSWER] = "ANSWER",   [CORE_VIEW] = "VIEW",
	[CORE_VIEW_OK] = "VIEW_OK", [CORE_BEGIN] = "BEGIN",     [CORE_GRANT] = "GRANT",
	[CORE_VOTE] = "VOTE",       [CORE_COMMIT] = "COMMIT",   [CORE_ABORT] = "ABORT",
	[CORE_DONE] = "DONE",       [CORE_DRAINED] = "DRAINED", [CORE_JOIN] = "JOIN",
	[CORE_GONE] = "GONE",       [CORE_ABANDON] = "ABANDON", [CORE_WAITING] = "WAITING",
	[CORE_RANKS] = "RANKS",     [CORE_HEAR] = "HEAR",       [CORE_HEARD] = "HEARD",
	[CORE_ODD] = "ODD"};

const char *cores_op_name(enum core_op op)
{
	CHECK(op > 0 && op < CORE_MSG_NR);
	return op_names[op];
}

static uint64_t since(const struct cores *c, uint64_t start)
{
	uint64_t ns = clock_ns() - start;

	return ns > c->look_ns ? ns - c->look_ns : 0;
}

static struct cores_op *measured(struct cores *c, uint16_t node, enum core_op op)
{
	static struct cores_op nobody;

	return c->cost != NULL && node < CORES_ROLES ? &c->cost->op[node][op] : &nobody;
}

/* --- messages --- */

static struct body *pack(struct cores *c, const struct core_msg *m, struct wire_head *h)
{
	Shard__Core msg;
	struct body *b;
	size_t bytes;

	CHECK(corewire_pack(m, c->conf.place.sum, &c->tx, h, &msg) == SHARD_OK);
	if (m->op == CORE_VOTE || m->op == CORE_COMMIT) { /* The shell says who was slowest. */
		msg.slow_rank = 1;
		msg.slow_ns = c->spec.step_ns;
	}
	bytes = protobuf_c_message_get_packed_size(&msg.base);
	b = malloc(sizeof(*b) + bytes);
	CHECK(b != NULL);
	*b = (struct body){.bytes = bytes};
	protobuf_c_message_pack(&msg.base, b->data);
	arena_reset(&c->tx);
	return b;
}

/* Packs and posts the messages of an event as model/outgoing.c does it. The copy is the one into
 * the queue of a link. */
static void post_all(struct cores *c, uint16_t from)
{
	const struct core_msg *packed = NULL;
	struct wire_head h = {0};
	struct body *b = NULL;
	uint64_t written = 0;

	for (uint32_t i = 0; i < c->out.nr; i++) {
		const struct core_msg *m = &c->out.act[i].msg;
		struct cores_op *op;
		bool first;
		uint64_t start;

		if (c->out.act[i].type != CORE_ACT_SEND)
			continue;
		op = measured(c, from, m->op);
		start = clock_ns();
		if (c->spec.each || packed == NULL || !corewire_same(packed, m))
			b = pack(c, m, &h);
		else
			memcpy(c->copy, b->data, b->bytes);
		op->pack_ns += since(c, start);
		op->out_nr++;
		op->out_bytes += b->bytes;
		packed = m;
		first = c->spec.each || !(written >> m->to & 1);
		written |= 1ull << m->to;
		if (c->cost != NULL && from < CORES_ROLES)
			c->cost->writes[from] += first;
		b->users++;
		CHECK(c->tail - c->head < QUEUE && b->bytes <= ARENA);
		c->queue[c->tail++ % QUEUE] = (struct letter){from, m->to, first, h, b};
	}
}

/* Notes what the shell of a node would carry out. */
static void note(struct cores *c, uint16_t n)
{
	for (uint32_t i = 0; i < c->out.nr; i++) {
		const struct core_action *a = &c->out.act[i];

		CHECK(a->type != CORE_ACT_ENDED && a->type != CORE_ACT_EXPEL);
		if (a->type == CORE_ACT_BEGIN)
			c->begun[n] = a->id, c->staging[n] = true;
		else if (a->type == CORE_ACT_APPLY)
			c->apply[n] = true;
		else if (a->type == CORE_ACT_PERSIST)
			c->persist = true;
	}
}

static void own(struct cores *c, uint16_t n, const struct core_event *e)
{
	uint64_t start = clock_ns();

	core_handle(c->core[n], e, c->now, &c->out);
	if (c->cost != NULL && n < CORES_ROLES) {
		c->cost->own_ns[n] += since(c, start);
		c->cost->own_nr[n]++;
	}
	note(c, n);
	post_all(c, n);
}

static void deliver(struct cores *c, const struct letter *l)
{
	struct corewire_limits limits = {.chunks_nr = c->conf.chunks_nr,
					 .groups_nr = c->conf.record.groups_nr,
					 .max_world = c->conf.max_world,
					 .local_world = c->conf.local_world,
					 .nodes_nr = c->spec.nodes,
					 .place = c->conf.place};
	struct core_event e = {.type = CORE_EV_MSG, .node = l->from};
	struct cores_op *op = measured(c, l->to, (enum core_op)(l->head.op - OP_CORE));
	const ProtobufCMessage *msg;
	struct core_msg m;
	uint64_t start = clock_ns();
	struct err why;

	if (control_unpack(&msg, &shard__core__descriptor, l->body->data, l->body->bytes, &c->rx,
			   &why) != SHARD_OK ||
	    corewire_unpack(&l->head, (const Shard__Core *)msg, &limits, &c->rx, &m, &why) !=
		    SHARD_OK)
		bench_fail("a message of the cores: %s", why.text);
	op->unpack_ns += since(c, start);
	m.from = l->from;
	m.to = l->to;
	m.from_incarnation = 100u + l->from;
	m.trainer.node = l->from;
	e.msg = &m;
	start = clock_ns();
	core_handle(c->core[l->to], &e, c->now, &c->out);
	op->handle_ns += since(c, start);
	op->in_nr++;
	if (c->cost != NULL && l->to < CORES_ROLES)
		c->cost->reads[l->to] += l->first;
	op->in_bytes += l->body->bytes;
	arena_reset(&c->rx);
	note(c, l->to);
	post_all(c, l->to);
}

static void drain(struct cores *c)
{
	while (c->head < c->tail) {
		struct letter l = c->queue[c->head++ % QUEUE];

		deliver(c, &l);
		if (--l.body->users == 0)
			free(l.body);
	}
}

static void event(struct cores *c, uint16_t n, const struct core_event *e)
{
	own(c, n, e);
	drain(c);
}

/* --- a cluster --- */

static void place(struct cores *c)
{
	const struct cores_spec *s = &c->spec;
	uint32_t nr = s->nodes * s->chunks;

	c->primary = calloc(nr, sizeof(*c->primary));
	c->holders = calloc(nr, sizeof(*c->holders));
	CHECK(c->primary != NULL && c->holders != NULL && s->copies <= s->nodes);
	for (uint32_t i = 0; i < nr; i++) {
		c->primary[i] = (uint16_t)(i / s->chunks);
		for (uint32_t k = 0; k < s->copies; k++)
			c->holders[i] |= 1ull << (c->primary[i] + k) % s->nodes;
	}
	c->conf.chunks_nr = nr;
	c->conf.place = place_of(c->primary, s->copies > 1 ? c->holders : NULL, nr);
}

static struct view_node who(uint16_t n)
{
	return (struct view_node){.uuid = {'n', (uint8_t)(1 + n)}, .incarnation = 100u + n};
}

static void configure(struct cores *c)
{
	uint32_t world = c->spec.nodes * c->spec.ranks;

	CHECK(c->spec.nodes >= 2 && c->spec.nodes <= CORE_NODES_MAX && world <= CORE_RANKS_MAX);
	c->conf = (struct core_conf){.members = view_first(c->spec.nodes, 0),
				     .term = 9,
				     .node_names = names,
				     .min_copies = 1,
				     .min_world = world,
				     .max_world = world,
				     .local_world = c->spec.ranks,
				     .step_timeout_ns = 300 * NS_PER_SEC,
				     .lost_timeout_ns = 300 * NS_PER_SEC,
				     .heartbeat_timeout_ns = 5 * NS_PER_SEC,
				     .repeat_ns = 200 * NS_PER_MS};
	c->conf.slots = c->conf.members.nodes;
	c->conf.record = (struct record_conf){.optim = optim_row(OPTIM_ADAMW),
					      .groups_nr = 1,
					      .clip = 1,
					      .initial_scale = 1,
					      .min_scale = 1,
					      .scale_window = 1,
					      .hysteresis = 1};
	c->conf.record.lr_factor[0] = 1;
	optim_defaults(c->conf.record.optim, c->conf.record.hyper[0]);
	place(c);
}

static void link_all(struct cores *c)
{
	for (uint16_t i = 0; i < c->spec.nodes; i++)
		for (uint16_t k = 0; k < c->spec.nodes; k++)
			if (i != k)
				own(c, i,
				    &(struct core_event){
					    .type = CORE_EV_LINK_UP, .node = k, .who = who(k)});
	drain(c);
}

static void persisted(struct cores *c)
{
	CHECK(c->persist);
	c->persist = false;
	event(c, 0, &(struct core_event){.type = CORE_EV_PERSISTED});
}

static uint64_t session(const struct cores *c, uint16_t node, uint32_t i)
{
	return (uint64_t)node * c->spec.ranks + i + 1;
}

static void join_all(struct cores *c)
{
	for (uint16_t n = 0; n < c->spec.nodes; n++)
		for (uint32_t i = 0; i < c->spec.ranks; i++)
			event(c, n,
			      &(struct core_event){
				      .type = CORE_EV_JOIN,
				      .trainer = {.session = session(c, n, i),
						  .pid = 100000 + i,
						  .hint = (int32_t)session(c, n, i) - 1,
						  .node = n}});
}

/* The least of several tries: this thread may lose its processor in one. */
static uint64_t look_cost(void)
{
	uint64_t least = UINT64_MAX;

	for (int t = 0; t < TRIES; t++) {
		uint64_t start = clock_ns(), ns;

		for (int i = 0; i < LOOKS; i++)
			(void)clock_ns();
		ns = (clock_ns() - start) / (LOOKS + 1);
		least = ns < least ? ns : least;
	}
	return least;
}

struct cores *cores_begin(const struct cores_spec *spec)
{
	struct cores *c = calloc(1, sizeof(*c));

	CHECK(c != NULL);
	c->spec = *spec;
	c->now = NS_PER_SEC;
	c->look_ns = look_cost();
	arena_init(&c->tx, malloc(ARENA), ARENA);
	arena_init(&c->rx, malloc(ARENA), ARENA);
	c->queue = calloc(QUEUE, sizeof(*c->queue));
	c->copy = malloc(ARENA);
	CHECK(c->tx.base != NULL && c->rx.base != NULL && c->queue != NULL && c->copy != NULL);
	configure(c);
	for (uint16_t n = 0; n < spec->nodes; n++) {
		size_t bytes = (core_bytes(&c->conf) + 63) & ~(size_t)63;
		void *memory = aligned_alloc(64, bytes);

		CHECK(memory != NULL);
		memset(memory, 0, bytes);
		c->conf.self = n;
		c->conf.who = who(n);
		c->core[n] = core_init(memory, &c->conf, NULL, NULL);
	}
	event(c, 0, &(struct core_event){.type = CORE_EV_TICK});
	link_all(c);
	persisted(c);
	event(c, 0, &(struct core_event){.type = CORE_EV_WRITTEN, .step = 4});
	persisted(c);
	join_all(c);
	return c;
}

void cores_end(struct cores **cp)
{
	struct cores *c = *cp;

	*cp = NULL;
	for (uint16_t n = 0; n < c->spec.nodes; n++)
		free(c->core[n]);
	free(c->tx.base);
	free(c->rx.base);
	free(c->copy);
	free(c->queue);
	free(c->primary);
	free(c->holders);
	free(c);
}

/* --- steps --- */

/* Runs every timer that is due before then, in order. */
static void ticks(struct cores *c, uint64_t until)
{
	for (;;) {
		uint64_t first = UINT64_MAX;
		uint16_t node = 0;

		for (uint16_t n = 0; n < c->spec.nodes; n++) {
			if (core_deadline(c->core[n]) < first) {
				first = core_deadline(c->core[n]);
				node = n;
			}
		}
		if (first > until)
			break;
		c->now = first > c->now ? first : c->now;
		event(c, node, &(struct core_event){.type = CORE_EV_TICK});
	}
	c->now = until;
}

static void stage(struct cores *c, uint16_t n)
{
	for (uint32_t i = 0; i < c->conf.chunks_nr; i++)
		if (place_keeps(&c->conf.place, i, n))
			event(c, n,
			      &(struct core_event){.type = CORE_EV_STAGED,
						   .id = c->begun[n],
						   .chunk = i,
						   .sumsq = 1 + i,
						   .finite = true,
						   .bad_tensor = -1,
						   .bad_rank = -1});
}

static void ready(struct cores *c, uint16_t n)
{
	for (uint32_t i = 0; i < c->spec.ranks; i++)
		event(c, n,
		      &(struct core_event){.type = CORE_EV_READY,
					   .id = c->begun[n],
					   .session = session(c, n, i),
					   .weight = 1});
}

static void step(struct cores *c)
{
	for (uint16_t n = 0; n < c->spec.nodes; n++) {
		CHECK(c->staging[n]);
		c->staging[n] = false;
	}
	ticks(c, c->now + c->spec.step_ns);
	for (uint16_t n = 0; n < c->spec.nodes; n++)
		ready(c, n);
	for (uint16_t n = 0; n < c->spec.nodes; n++)
		stage(c, n);
	for (uint16_t n = 0; n < c->spec.nodes; n++) {
		CHECK(c->apply[n]);
		c->apply[n] = false;
		event(c, n, &(struct core_event){.type = CORE_EV_APPLIED});
	}
	ticks(c, c->now + 1000);
}

void cores_steps(struct cores *c, uint32_t steps, struct cores_cost *cost)
{
	c->cost = cost;
	for (uint32_t i = 0; i < steps; i++)
		step(c);
	if (cost != NULL)
		cost->steps += steps;
	c->cost = NULL;
}
