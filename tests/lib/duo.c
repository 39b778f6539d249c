/* SPDX-License-Identifier: Apache-2.0 */
/* Runs two cores and carries the messages between them. Tests of the core call it. Each message
 * that an event makes one core send is brought to the other, in order, until no core sends any
 * more. Golden traces are written and compared here. After each event the state that a core has to
 * save is saved, as a daemon does, so that either core can die and come back. Failures are
 * cmocka's. */
#include "lib/duo.h"

#include "base/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[CORE_NODES_MAX] = {"a", "b"};
static const uint16_t owner[] = {0, 1};

void duo_line(struct duo *p, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	p->used += (size_t)vsnprintf(p->trace + p->used, p->bytes - p->used, fmt, ap);
	va_end(ap);
	assert_true(p->used + 256 < p->bytes);
}

static const char *id_text(const struct core_id *id, char text[64])
{
	snprintf(text, 64, "g%u t%llu.%u step %llu/%u", id->generation,
		 (unsigned long long)id->term, id->seq, (unsigned long long)id->step, id->attempt);
	return text;
}

static void keep(struct duo_queued *q, const struct core_msg *m)
{
	q->msg = *m;
	if (m->world) {
		q->world = *m->world;
		q->msg.world = &q->world;
	}
	if (m->record) {
		q->record = *m->record;
		q->msg.record = &q->record;
	}
	if (m->view) {
		q->view = *m->view;
		q->msg.view = &q->view;
	}
	if (m->answer) {
		q->answer = *m->answer;
		q->msg.answer = &q->answer;
	}
	if (m->vote.chunks_nr) {
		assert_int_equal(m->vote.chunks_nr, 1);
		q->sumsq = m->vote.sumsq[0];
		q->finite = m->vote.finite[0];
		q->msg.vote.sumsq = &q->sumsq;
		q->msg.vote.finite = &q->finite;
	}
	if (m->vote.ranks_nr) {
		assert_true(m->vote.ranks_nr <= NR(q->weights));
		memcpy(q->weights, m->vote.weights, m->vote.ranks_nr * sizeof(q->weights[0]));
		q->msg.vote.weights = q->weights;
	}
	snprintf(q->why, sizeof(q->why), "%s", m->why ? m->why : "");
	q->msg.why = m->why ? q->why : NULL;
}

static const char *const op_names[CORE_MSG_NR] = {
	"?",       "ASK",     "ANSWER", "VIEW", "VIEW_OK", "BEGIN", "GRANT",
	"VOTE",    "COMMIT",  "ABORT",  "DONE", "DRAINED", "JOIN",  "GONE",
	"ABANDON", "WAITING", "RANKS",  "HEAR", "HEARD",   "ODD",   "BACK"};
static const char *const act_names[] = {
	"?",     "SEND",   "PERSIST", "BEGIN", "CREDIT", "OPEN",  "APPLY",    "RESULT", "ENDED",
	"SEAL",  "LOST",   "EXPEL",   "LEFT",  "HELD",   "TUNED", "RESIGNED", "PLACED", "LEARN",
	"MOVED", "DIFFER", "ODD",     "CUT",   "YIELD",  "BACK",  "AGAIN"};

static void trace_action(struct duo *p, unsigned n, const struct core_action *a)
{
	char text[64];

	if (a->type == CORE_ACT_SEND)
		duo_line(p, "  %s: send %s to %s", names[n], op_names[a->msg.op], names[a->msg.to]);
	else
		duo_line(p, "  %s: %s", names[n], act_names[a->type]);
	if (a->type == CORE_ACT_CREDIT)
		duo_line(p, " from %s", names[a->node]);
	if (a->type == CORE_ACT_PERSIST)
		duo_line(p, " g%u t%llu.%u sealed %d", a->view->generation,
			 (unsigned long long)a->view->term, a->view->seq, a->view->sealed);
	else if (a->type == CORE_ACT_SEND)
		duo_line(p, " %s", id_text(&a->msg.id, text));
	else if (a->record && a->type != CORE_ACT_BEGIN)
		duo_line(p, " %s outcome %d applied %llu", id_text(&a->record->id, text),
			 a->record->outcome, (unsigned long long)a->record->applied);
	else if (a->type != CORE_ACT_LEFT && a->type != CORE_ACT_EXPEL &&
		 a->type != CORE_ACT_TUNED && a->type != CORE_ACT_RESIGNED)
		duo_line(p, " %s", id_text(&a->id, text));
	if (a->world)
		duo_line(p, " world of %u", a->world->size);
	if (a->why || a->msg.why)
		duo_line(p, ": %s", a->why ? a->why : a->msg.why);
	duo_line(p, "\n");
}

void duo_feed(struct duo *p, unsigned n, const struct core_event *e)
{
	core_handle(p->core[n], e, p->now, &p->out);
	if (p->unsaved)
		return;
	if (core_warm_save(p->core[n], p->saved[n][1 - p->counts[n]]))
		p->counts[n] = 1 - p->counts[n];
	if (p->unsent)
		return;
	for (uint32_t i = 0; i < p->out.nr; i++) {
		const struct core_action *a = &p->out.act[i];

		trace_action(p, n, a);
		if (a->type == CORE_ACT_BEGIN)
			p->id[n] = a->id;
		if (a->type == CORE_ACT_PERSIST)
			p->view = *a->view;
		if (a->type == CORE_ACT_SEND)
			keep(&p->queue[p->tail++ % DUO_QUEUE_NR], &a->msg);
		assert_true(p->tail - p->head < DUO_QUEUE_NR);
	}
}

void duo_drain(struct duo *p)
{
	while (p->head < p->tail) {
		struct duo_queued *q = &p->queue[p->head++ % DUO_QUEUE_NR];
		struct core_event e = {.type = CORE_EV_MSG, .msg = &q->msg};
		char text[64];

		duo_line(p, "%s hears %s from %s %s\n", names[q->msg.to], op_names[q->msg.op],
			 names[q->msg.from], id_text(&q->msg.id, text));
		duo_feed(p, q->msg.to, &e);
	}
}

void duo_event(struct duo *p, unsigned n, const char *what, struct core_event e)
{
	p->now += 1000000;
	duo_line(p, "%s: %s\n", names[n], what);
	duo_feed(p, n, &e);
	duo_drain(p);
}

struct view_node duo_who(unsigned n)
{
	return (struct view_node){.uuid = {'n', (uint8_t)(1 + n)}, .incarnation = 7 + n};
}

static struct core_conf duo_conf(const struct duo *p, uint16_t n)
{
	struct core_conf conf = {.self = n,
				 .members = view_first(2, 0),
				 .who = duo_who(n),
				 .term = p->elected ? 0 : p->term[n],
				 .elected = p->elected,
				 .durable = p->durable,
				 .recalled = p->recalled,
				 .chunks_nr = 2,
				 .place = place_of(owner, NULL, 2),
				 .node_names = names,
				 .min_copies = 1,
				 .min_world = 1,
				 .max_world = 2,
				 .step_timeout_ns = 300000000000ull,
				 .lost_timeout_ns = 5000000000ull,
				 .repeat_ns = 200000000ull};

	conf.slots = conf.members.nodes;
	conf.record = (struct record_conf){.optim = optim_row(OPTIM_ADAMW),
					   .groups_nr = 1,
					   .clip = 1,
					   .initial_scale = 1,
					   .min_scale = 1,
					   .scale_window = 1,
					   .hysteresis = 1};
	conf.record.lr_factor[0] = 1;
	optim_defaults(conf.record.optim, conf.record.hyper[0]);
	return conf;
}

static void *room(size_t bytes)
{
	void *p = aligned_alloc(64, (bytes + 63) & ~(size_t)63);

	assert_non_null(p);
	memset(p, 0, bytes);
	return p;
}

static void init(struct duo *p, bool elected, bool durable)
{
	memset(p, 0, sizeof(*p));
	p->elected = elected;
	p->durable = durable;
	p->bytes = 1 << 16;
	p->trace = calloc(1, p->bytes);
	assert_non_null(p->trace);
	for (uint16_t n = 0; n < 2; n++) {
		struct core_conf conf;

		p->term[n] = 7 + n;
		conf = duo_conf(p, n);
		p->memory[n] = room(core_bytes(&conf));
		for (unsigned i = 0; i < 2; i++)
			p->saved[n][i] = room(core_warm_bytes(&conf));
		p->core[n] = core_init(p->memory[n], &conf, NULL, NULL);
		(void)core_warm_save(p->core[n], p->saved[n][0]);
	}
}

void duo_init(struct duo *p)
{
	init(p, false, false);
}

void duo_init_durable(struct duo *p)
{
	init(p, false, true);
}

void duo_lead(struct duo *p, unsigned n, uint64_t term)
{
	struct core_view durable = p->view;

	duo_line(p, "%s: leads in term %llu\n", names[n], (unsigned long long)term);
	duo_feed(p, n,
		 &(struct core_event){.type = CORE_EV_LEAD,
				      .id.term = term,
				      .view = durable.term ? &durable : NULL});
	duo_event(p, n, "tick", (struct core_event){.type = CORE_EV_TICK});
}

void duo_init_elected(struct duo *p)
{
	init(p, true, false);
	duo_lead(p, 0, 7);
}

struct core *duo_warm(struct duo *p, unsigned n, const void *saved)
{
	struct core_conf conf;

	p->term[n] += 10;
	conf = duo_conf(p, (uint16_t)n);
	memset(p->memory[n], 0, core_bytes(&conf));
	return p->core[n] =
		       core_init(p->memory[n], &conf,
				 p->view.term && n == 0 && !p->elected ? &p->view : NULL, saved);
}

void duo_dies(struct duo *p, unsigned n)
{
	p->head = p->tail; /* The messages on their way went with the connection. */
	p->now += 1000000;
	duo_line(p, "%s: dies and comes back with its memory\n", names[n]);
	assert_non_null(duo_warm(p, n, p->saved[n][p->counts[n]]));
	duo_feed(p, n, &(struct core_event){.type = CORE_EV_WARM});
	if (n == 0)
		duo_feed(p, n, &(struct core_event){.type = CORE_EV_TICK});
	duo_drain(p);
}

void duo_link(struct duo *p)
{
	duo_line(p, "b: link up a\n");
	duo_feed(p, 1, &(struct core_event){.type = CORE_EV_LINK_UP, .node = 0, .who = duo_who(0)});
	duo_event(p, 0, "link up b",
		  (struct core_event){.type = CORE_EV_LINK_UP, .node = 1, .who = duo_who(1)});
}

void duo_deinit(struct duo *p)
{
	for (unsigned n = 0; n < 2; n++) {
		free(p->memory[n]);
		free(p->saved[n][0]);
		free(p->saved[n][1]);
	}
	free(p->trace);
}

static void persisted(struct duo *p)
{
	duo_event(p, 0, "persisted",
		  (struct core_event){.type = CORE_EV_PERSISTED,
				      .id = {.term = p->view.term, .seq = p->view.seq}});
}

void duo_first_begin(struct duo *p)
{
	duo_event(p, 0, "tick", (struct core_event){.type = CORE_EV_TICK});
	duo_link(p);
	persisted(p);
	duo_event(
		p, 1, "join 21",
		(struct core_event){.type = CORE_EV_JOIN,
				    .trainer = {.session = 21, .pid = 221, .hint = 1, .node = 1}});
	duo_event(p, 0, "join 11",
		  (struct core_event){.type = CORE_EV_JOIN,
				      .trainer = {.session = 11, .pid = 111, .hint = 0}});
	duo_event(p, 0, "written", (struct core_event){.type = CORE_EV_WRITTEN, .step = 4});
	persisted(p);
}

void duo_compute(struct duo *p, unsigned n, bool staged, bool ready)
{
	if (staged)
		duo_event(p, n, "staged",
			  (struct core_event){.type = CORE_EV_STAGED,
					      .chunk = n,
					      .sumsq = 16,
					      .finite = true,
					      .bad_tensor = -1,
					      .id = p->id[n]});
	if (ready)
		duo_event(p, n, "ready",
			  (struct core_event){.type = CORE_EV_READY,
					      .session = n ? 21 : 11,
					      .weight = 2,
					      .id = p->id[n]});
}

void duo_compare(struct duo *p, const char *path)
{
	static char golden[1 << 16];
	FILE *f;
	size_t nr;

	if (getenv("TRACE_UPDATE")) {
		f = fopen(path, "w");
		assert_non_null(f);
		assert_int_equal(fwrite(p->trace, 1, p->used, f), p->used);
		fclose(f);
	}
	f = fopen(path, "r");
	assert_non_null(f);
	nr = fread(golden, 1, sizeof(golden) - 1, f);
	golden[nr] = 0;
	fclose(f);
	assert_string_equal(p->trace, golden);
}
