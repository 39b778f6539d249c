/* SPDX-License-Identifier: Apache-2.0 */
/* One core without any other. Tests of the core call it. A test gives the core an event, and the
 * core's actions stay in its list until the next event. Time moves a little with each event, and
 * the test may add more. */
#include "lib/lone.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[CORE_NODES_MAX] = {"a", "b", "c"};
static const uint16_t owner[2] = {B, C}; /* The coordinator holds no chunk. */

uint64_t lone_incarnation(uint16_t n)
{
	return 100u + n;
}

struct view_node lone_who(uint16_t n)
{
	return (struct view_node){.uuid = {'n', (uint8_t)(1 + n)},
				  .incarnation = lone_incarnation(n)};
}

struct core_id lone_id(uint64_t term, uint32_t seq, uint64_t step, uint32_t attempt)
{
	return (struct core_id){
		.term = term, .seq = seq, .generation = 1, .step = step, .attempt = attempt};
}

void lone_event(struct lone *l, struct core_event e)
{
	l->now += 1000;
	core_handle(l->core, &e, l->now, &l->out);
}

struct core_conf lone_conf(uint16_t self, uint64_t term)
{
	struct core_conf conf = {.self = self,
				 .members = view_first(LONE_NODES, A),
				 .who = lone_who(self),
				 .term = term,
				 .chunks_nr = 2,
				 .place = place_of(owner, NULL, 2),
				 .node_names = names,
				 .min_copies = 1,
				 .min_world = 1,
				 .max_world = 2,
				 .step_timeout_ns = 1000000000,
				 .lost_timeout_ns = 1000000000,
				 .repeat_ns = 1000000};

	conf.slots = conf.members.nodes;
	conf.record = (struct record_conf){
		.optim = optim_row(OPTIM_ADAMW), .groups_nr = 1, .initial_scale = 1};
	conf.record.lr_factor[0] = 1;
	optim_defaults(conf.record.optim, conf.record.hyper[0]);
	return conf;
}

static void start(struct lone *l, const struct core_conf *conf, const struct core_view *view)
{
	void *memory = aligned_alloc(64, (core_bytes(conf) + 63) & ~(size_t)63);

	assert_non_null(memory);
	memset(memory, 0, core_bytes(conf));
	memset(l, 0, sizeof(*l));
	l->core = core_init(memory, conf, view, NULL);
	for (uint16_t i = 0; i < LONE_NODES; i++) {
		if (i != conf->self)
			lone_event(l, (struct core_event){.type = CORE_EV_LINK_UP,
							  .node = i,
							  .who = lone_who(i)});
	}
}

void lone_init(struct lone *l, uint16_t self, uint64_t term, const struct core_view *view)
{
	struct core_conf conf = lone_conf(self, term);

	if (view != NULL)
		conf.place =
			place_of(view->place.primary, view->place.holders, view->place.chunks_nr);
	start(l, &conf, view);
}

void lone_first(struct lone *l, uint16_t self, uint64_t term, struct placement place)
{
	struct core_conf conf = lone_conf(self, term);

	conf.place = place;
	start(l, &conf, NULL);
}

void lone_deinit(struct lone *l)
{
	free(l->core);
}

void lone_msg(struct lone *l, uint16_t from, struct core_msg m)
{
	m.from = from;
	m.to = l->core->conf.self;
	m.from_incarnation = m.from_incarnation ? m.from_incarnation : lone_incarnation(from);
	lone_event(l, (struct core_event){.type = CORE_EV_MSG, .msg = &m});
}

const struct core_action *lone_acted(const struct lone *l, enum core_action_type type)
{
	for (uint32_t i = 0; i < l->out.nr; i++) {
		if (l->out.act[i].type == type)
			return &l->out.act[i];
	}
	return NULL;
}

const struct core_msg *lone_sent(const struct lone *l, enum core_op op)
{
	for (uint32_t i = 0; i < l->out.nr; i++) {
		if (l->out.act[i].type == CORE_ACT_SEND && l->out.act[i].msg.op == op)
			return &l->out.act[i].msg;
	}
	return NULL;
}

struct core_view lone_view(uint64_t term, uint32_t seq, const struct record *r)
{
	struct core_view v = {.term = term,
			      .seq = seq,
			      .generation = 1,
			      .members = view_first(LONE_NODES, A),
			      .place = place_of(owner, NULL, 2),
			      .sealed = true,
			      .record = *r};

	for (uint16_t i = 0; i < LONE_NODES; i++)
		v.members.node[i] = lone_who(i);
	return v;
}

struct record lone_record(uint64_t term, uint32_t seq, uint64_t step)
{
	struct record r = {.id = lone_id(term, seq, step, step > 4),
			   .groups_nr = 1,
			   .scaler.scale = 1,
			   .loss_scale = 1};

	r.outcome = step > 4 ? RECORD_APPLIED : RECORD_SEAL;
	r.bad_tensor = -1;
	r.bad_rank = -1;
	r.applied = r.content = step;
	r.content_old = step > 4 ? step - 1 : step;
	r.world.size = step > 4;
	r.world.rank[0] = (struct core_rank){.session = SESSION, .node = B, .weight = 1};
	return r;
}
