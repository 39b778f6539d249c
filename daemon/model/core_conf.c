/* SPDX-License-Identifier: Apache-2.0 */
/* What the core of a model is told when it begins. make.c calls it before the memory of the model
 * is made. It is put together from the settings, the definition, the configuration of the daemon,
 * and the nodes that there are. Only memory can lack. */
#include "model/core_conf.h"

#include "link/nodes.h"
#include "link/peer.h"
#include "model/lead.h"
#include "model/model.h"

#include <stdlib.h>
#include <string.h>

static void conf_record(const struct model *m, struct record_conf *r)
{
	const struct model_settings *set = &m->set;

	r->optim = set->optim;
	r->groups_nr = set->groups_nr;
	memcpy(r->hyper, set->hyper, sizeof(set->hyper[0]) * set->groups_nr);
	memcpy(r->lr_factor, set->lr_factor, sizeof(set->lr_factor[0]) * set->groups_nr);
	r->schedule = set->schedule;
	r->clip = set->clip;
	r->predivide = set->predivide;
	r->dynamic_scale = set->dynamic_scale;
	r->consecutive_hysteresis = set->consecutive_hysteresis;
	r->initial_scale = set->initial_scale;
	r->min_scale = set->min_scale;
	r->scale_window = (int32_t)set->scale_window;
	r->hysteresis = (int32_t)set->hysteresis;
	r->max_skips = set->pause_on_nonfinite ? 1 : set->max_skips;
}

/* The members of the first view. The placement may be a later one, which has nodes that came since.
 */
static struct view_members first_members(const struct model *m)
{
	const struct server *s = m->server;
	struct view_members v = view_first(s->nodes_nr, server_coordinator(s));

	if (m->spec->members != 0)
		v.nodes = m->spec->members;
	for (uint32_t c = 0; c < m->place.chunks_nr; c++)
		v.nodes |= place_keepers(&m->place, c);
	if (lead_on(s))
		v.coordinator = (uint16_t)__builtin_ctzll(v.nodes);
	else
		v.nodes |= 1ull << v.coordinator; /* Whatever the definition says. */
	return v;
}

struct core_conf *model_core_conf(struct model *m)
{
	struct server *s = m->server;
	struct core_conf *conf = calloc(1, sizeof(*conf));
	const char **names = m->node_names = calloc(CORE_NODES_MAX, sizeof(*names));
	struct view_members members;

	if (conf == NULL || names == NULL) {
		free(conf);
		return NULL;
	}
	for (uint16_t n = 0; n < s->nodes_nr; n++)
		names[n] = members_name(s, n);
	members = first_members(m);
	*conf = (struct core_conf){.self = s->self,
				   .members = members,
				   .elected = lead_on(s),
				   .who = model_node(m, s->self, m->memory.incarnation),
				   .memory_why = m->memory.why,
				   .term = lead_on(s) ? s->start : s->term,
				   .durable = m->set.nvme_durable && !lead_on(s),
				   .chunks_nr = m->layout->chunks_nr,
				   .place = m->place,
				   .node_names = names,
				   .min_copies = m->set.min_copies,
				   .min_world = m->set.min_world,
				   .join_timeout_ns = m->set.join_timeout_ns,
				   .straggler_timeout_ns = settings_straggler_ns(&m->set),
				   .max_world = m->set.max_world,
				   .local_world = m->set.local_world,
				   .step_timeout_ns = s->conf->step_timeout_ns,
				   .lost_timeout_ns = s->conf->lost_timeout_ns,
				   .heartbeat_timeout_ns = s->conf->heartbeat_timeout_ns,
				   .reconnect_ns = PEER_RECONNECT_NS,
				   .repeat_ns = 200 * NS_PER_MS};
	conf->slots = UINT64_MAX; /* Nodes that join have the slots behind. */
	conf_record(m, &conf->record);
	return conf;
}
