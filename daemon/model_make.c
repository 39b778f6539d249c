/* SPDX-License-Identifier: Apache-2.0 */
/* All memory of a model on this node, made at once and given back at once: budget first, then store, bookkeeping and core. Called when a
 * definition arrives (define.c) or the coordinator loads what it kept. Fails with the budget's figures or SHARD_SYSTEM; a failed
 * make leaves nothing behind. After it nothing of the model allocates. */
#include "base/check.h"
#include "blobs.h"
#include "model.h"
#include "persist.h"
#include "regions.h"
#include "session.h"
#include "spec.h"
#include "transfer.h"
#include "wire/place.h"

#include <stdlib.h>
#include <string.h>

static enum shard_status make_settings(struct model *m, struct err *e)
{
	const Shard__Spec *spec = m->spec->spec;
	struct settings_layer layer = {spec->settings, "the definition", NULL, false, NULL, false};
	const char *groups[SETTINGS_GROUPS_MAX];

	m->grad = (enum shard_dtype)spec->grad;
	m->image = (enum shard_dtype)spec->image;
	if (!dtype_ok(spec->grad) || !dtype_ok(spec->image) || spec->n_groups > SETTINGS_GROUPS_MAX)
		return err_set(e, SHARD_PROTOCOL, "a definition with dtypes %u and %u and %zu groups", spec->grad, spec->image,
			       spec->n_groups);
	m->grad_bytes = (uint32_t)dtype_bytes(m->grad);
	m->image_bytes = (uint32_t)dtype_bytes(m->image);
	for (size_t g = 0; g < spec->n_groups; g++)
		groups[g] = spec->groups[g]->name;
	m->name = strdup(spec->name);
	m->settings_text = strdup(spec->settings);
	if (m->name == NULL || m->settings_text == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a definition");
	return settings_make(&m->set, &layer, 1, groups, (uint32_t)spec->n_groups, m->grad, e);
}

static enum shard_status make_store(struct model *m, struct err *e)
{
	struct server *s = m->server;
	struct store_conf conf = {.name = m->name,
				  .layout = m->layout,
				  .optim = m->set.optim,
				  .image = m->image,
				  .grad = m->grad,
				  .owner = m->owner,
				  .self = s->self,
				  .nodes_nr = s->nodes_nr,
				  .local_world = m->set.local_world,
				  .staleness = m->set.max_staleness,
				  .max_world = m->set.max_world,
				  .huge = s->conf->huge_pages};
	enum shard_status st;

	budget_need(&m->need, &conf);
	if ((st = budget_reserve(&s->budget, &m->need, m->name, server_node_name(s, s->self), e)) != SHARD_OK) {
		memset(&m->need, 0, sizeof(m->need));
		return st;
	}
	return store_init(&m->store, &conf, e);
}

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

static enum shard_status make_core(struct model *m, const struct core_view *view, struct err *e)
{
	struct server *s = m->server;
	struct core_conf *conf = calloc(1, sizeof(*conf));
	const char **names = calloc(s->nodes_nr, sizeof(*names));
	enum shard_status st = SHARD_OK;

	m->node_names = names;
	if (conf == NULL || names == NULL) {
		free(conf);
		return err_set(e, SHARD_SYSTEM, "no memory for a definition");
	}
	for (uint16_t n = 0; n < s->nodes_nr; n++)
		names[n] = server_node_name(s, n);
	*conf = (struct core_conf){.self = s->self,
				   .nodes_nr = s->nodes_nr,
				   .coordinator = s->coordinator,
				   .incarnation = s->incarnation,
				   .term = s->incarnation,
				   .chunks_nr = m->layout->chunks_nr,
				   .owner = m->owner,
				   .node_names = names,
				   .min_world = m->set.min_world,
				   .max_world = m->set.max_world,
				   .step_timeout_ns = s->conf->step_timeout_ns,
				   .heartbeat_timeout_ns = s->conf->heartbeat_timeout_ns,
				   .repeat_ns = 200 * NS_PER_MS};
	conf_record(m, &conf->record);
	m->core_memory = aligned_alloc(64, (core_bytes(conf) + 63) & ~(size_t)63);
	if (m->core_memory == NULL) {
		st = err_set(e, SHARD_SYSTEM, "no memory for \"%s\"", m->name);
	} else {
		memset(m->core_memory, 0, core_bytes(conf));
		m->core = core_init(m->core_memory, conf, view, NULL);
	}
	free(conf);
	return st;
}

static enum shard_status make_lists(struct model *m, struct err *e)
{
	struct server *s = m->server;
	uint32_t chunks = m->layout->chunks_nr, outs = (uint32_t)s->nodes_nr * s->conf->connections;
	enum shard_status st;

	m->image_parts = calloc(chunks, sizeof(*m->image_parts));
	m->image_coming = calloc(chunks, sizeof(*m->image_coming));
	m->staged_later = calloc(chunks, sizeof(*m->staged_later));
	m->contrib_out = calloc(outs, sizeof(*m->contrib_out));
	m->image_out = calloc(outs, sizeof(*m->image_out));
	if (!m->image_parts || !m->image_coming || !m->staged_later || !m->contrib_out || !m->image_out)
		return err_set(e, SHARD_SYSTEM, "no memory to keep track of %u chunks", chunks);
	for (uint32_t i = 0; i < outs; i++)
		if ((st = outbox_init(&m->contrib_out[i], m, OUTBOX_CONTRIB, chunks, e)) != SHARD_OK ||
		    (st = outbox_init(&m->image_out[i], m, OUTBOX_IMAGE, chunks * (m->set.max_staleness + 1), e)) != SHARD_OK)
			return st;
	for (uint32_t i = 0; i < outs; i++)
		m->contrib_out[i].peer = m->image_out[i].peer = s->peer[i / s->conf->connections];
	if ((st = gather_init(m, e)) != SHARD_OK || (st = blobs_init(m, e)) != SHARD_OK || (st = regions_init(m, e)) != SHARD_OK ||
	    (st = server_later_room(s, chunks + 16, e)) != SHARD_OK)
		return st;
	return server_scratch(s, 96 * (size_t)chunks + 32 * (size_t)m->layout->segments_nr + (1u << 20), e);
}

static enum shard_status make(struct model *m, const struct core_view *view, struct err *e)
{
	enum shard_status st;
	const char *why;

	if ((st = make_settings(m, e)) != SHARD_OK ||
	    (st = spec_layout(&m->layout, m->spec->spec, m->spec->chunk_elems, e)) != SHARD_OK)
		return st;
	m->owner = calloc(m->layout->chunks_nr, sizeof(*m->owner));
	if (m->owner == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for %u chunks", m->layout->chunks_nr);
	why = place_decode(m->owner, m->layout->chunks_nr, m->server->nodes_nr, m->spec->owner_runs,
			   (uint32_t)m->spec->n_owner_runs);
	if (why != NULL)
		return err_set(e, SHARD_PROTOCOL, "the placement of \"%s\": %s", m->name, why);
	if ((st = make_store(m, e)) != SHARD_OK || (st = make_lists(m, e)) != SHARD_OK)
		return st;
	store_image_generation(m->store, m->generation);
	return make_core(m, view, e);
}

enum shard_status model_make(struct model **out, struct server *s, Shard__Model *spec, const struct core_view *view, struct err *e)
{
	struct model *m = calloc(1, sizeof(*m));
	enum shard_status st;

	*out = NULL;
	if (m == NULL) {
		shard__model__free_unpacked(spec, NULL);
		return err_set(e, SHARD_SYSTEM, "no memory for a model");
	}
	list_init(&m->link);
	list_init(&m->reads);
	list_init(&m->askers);
	list_init(&m->manage.waiting);
	ckpt_init(m);
	m->server = s;
	m->spec = spec;
	m->id = spec->model;
	m->generation = view != NULL ? view->generation : spec->generation;
	st = make(m, view, e);
	if (st != SHARD_OK) {
		model_free(&m);
		return st;
	}
	list_push(&s->models, &m->link);
	regions_made(m);
	*out = m;
	return SHARD_OK;
}

void model_free(struct model **mp)
{
	struct model *m = *mp;
	uint32_t outs;

	if (m == NULL)
		return;
	*mp = NULL;
	CHECK(m->busy == 0);
	persist_free(m);
	ckpt_free(m);
	outs = (uint32_t)m->server->nodes_nr * m->server->conf->connections;
	transfer_fail(m, &(struct err){.status = SHARD_NOT_FOUND, .text = "the model is gone"});
	blobs_free(m);
	list_remove(&m->link);
	for (uint32_t i = 0; i < outs; i++) {
		if (m->contrib_out != NULL)
			outbox_free(&m->contrib_out[i]);
		if (m->image_out != NULL)
			outbox_free(&m->image_out[i]);
	}
	gather_free(m);
	regions_free(m);
	store_free(&m->store);
	layout_free(&m->layout);
	budget_release(&m->server->budget, &m->need);
	free(m->contrib_out);
	free(m->image_out);
	free(m->image_parts);
	free(m->image_coming);
	free(m->staged_later);
	free(m->owner);
	free(m->core_memory);
	free(m->node_names);
	free(m->name);
	free(m->settings_text);
	shard__model__free_unpacked(m->spec, NULL);
	free(m);
}
