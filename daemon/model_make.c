/* SPDX-License-Identifier: Apache-2.0 */
/* All memory of a model on this node, made at once and given back at once: budget first, then store, bookkeeping and core. Called when a
 * definition arrives (define.c), when the coordinator loads what it kept, or a start finds what the one before left (resume.c). Fails
 * with the budget's figures or SHARD_SYSTEM; a failed make leaves nothing behind. After it nothing of the model allocates. */
#include "base/check.h"
#include "blobs.h"
#include "model.h"
#include "park.h"
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

/* Of the heap: it is large, and the core copies it. NULL: no memory. */
static struct core_conf *core_conf(struct model *m)
{
	struct server *s = m->server;
	struct core_conf *conf = calloc(1, sizeof(*conf));
	const char **names = m->node_names = calloc(s->nodes_nr, sizeof(*names));

	if (conf == NULL || names == NULL) {
		free(conf);
		return NULL;
	}
	for (uint16_t n = 0; n < s->nodes_nr; n++)
		names[n] = server_node_name(s, n);
	*conf = (struct core_conf){.self = s->self,
				   .nodes_nr = s->nodes_nr,
				   .coordinator = s->coordinator,
				   .incarnation = s->incarnation,
				   .term = s->start,
				   .chunks_nr = m->layout->chunks_nr,
				   .owner = m->owner,
				   .node_names = names,
				   .min_world = m->set.min_world,
				   .max_world = m->set.max_world,
				   .step_timeout_ns = s->conf->step_timeout_ns,
				   .heartbeat_timeout_ns = s->conf->heartbeat_timeout_ns,
				   .repeat_ns = 200 * NS_PER_MS};
	conf_record(m, &conf->record);
	return conf;
}

static enum shard_status make_core(struct model *m, const struct core_conf *conf, const struct core_view *view, bool there,
				   struct err *e)
{
	m->core_memory = aligned_alloc(64, (core_bytes(conf) + 63) & ~(size_t)63);
	if (m->core_memory == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for \"%s\"", m->name);
	memset(m->core_memory, 0, core_bytes(conf));
	m->core = core_init(m->core_memory, conf, view, there ? meta_core(&m->meta) : NULL);
	if (m->core == NULL)
		return err_set(e, SHARD_MISMATCH, "what its core knew cannot be");
	if (model_parked(m) && !there && core_warm_save(m->core, meta_core_next(&m->meta)))
		meta_core_switch(&m->meta);
	return SHARD_OK;
}

/* --- memory --- */

struct make { /* while it lasts */
	struct model *m;
	struct core_conf *core;
	struct meta_conf meta;
	struct store_conf store;
	struct store_park park;
	const struct meta_found *found; /* of a start before this one; NULL: it is made anew */
};

static uint32_t undo_places(const struct model *m)
{
	uint32_t held = 0, threads = m->server->conf->workers + 1;

	for (uint32_t c = 0; c < m->layout->chunks_nr; c++)
		held += m->owner[c] == m->server->self;
	return held == 0 ? 1 : held < threads ? held : threads;
}

static enum shard_status map_region(void *arg, enum store_region what, uint64_t bytes, struct shm *m, struct err *e)
{
	static const enum park_region regions[] = {
		[STORE_STATE] = PARK_STATE, [STORE_SUMS] = PARK_SUMS, [STORE_SLOTS] = PARK_SLOTS, [STORE_IMAGES] = PARK_IMAGES};
	struct server *s = ((struct make *)arg)->m->server;

	return park_map(s->park, ((struct make *)arg)->m->id, regions[what], bytes, s->conf->huge_pages, m, e);
}

/* Does it outlive the process, and how large is what that takes? Where it cannot although nothing forbids it, this node's next start
 * is cold; that is refused only where the place was asked for by name. */
static enum shard_status plan_park(struct make *k, struct err *e)
{
	struct model *m = k->m;
	struct server *s = m->server;
	struct budget_need need;
	enum shard_status st;

	if (s->park == NULL)
		return SHARD_OK;
	k->meta = (struct meta_conf){.layout = m->layout,
				     .owner = m->owner,
				     .self = s->self,
				     .undo_nr = k->found != NULL ? k->found->undo_nr : undo_places(m),
				     .core_bytes = core_warm_bytes(k->core),
				     .spec_bytes = k->found != NULL ? k->found->spec_bytes : shard__model__get_packed_size(m->spec),
				     .blobs_bytes = blobs_bytes(m->set.local_world, m->set.max_world)};
	k->park = (struct store_park){
		.map = map_region, .arg = k, .there = k->found != NULL, .copy = true, .meta = meta_bytes(&k->meta)};
	k->store.park = &k->park;
	budget_need(&need, &k->store);
	if (k->found != NULL || (st = park_room(s->park, need.parked, m->name, e)) == SHARD_OK)
		return SHARD_OK;
	if (s->conf->warm != CONFIG_WARM_AUTO)
		return st;
	park_void(s->park, e->text);
	m->outside = true;
	k->store.park = NULL;
	return SHARD_OK;
}

static void store_conf(struct make *k)
{
	struct model *m = k->m;
	struct server *s = m->server;

	k->store = (struct store_conf){.name = m->name,
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
}

static enum shard_status make_meta(struct make *k, struct err *e)
{
	struct model *m = k->m;
	struct server *s = m->server;
	enum shard_status st;
	uint8_t *spec;

	if (k->found != NULL)
		return meta_again(&m->meta, &k->meta, e);
	if ((st = park_map(s->park, m->id, PARK_META, k->park.meta, SHM_HUGE_NO, &m->meta.shm, e)) != SHARD_OK)
		return st;
	if ((spec = malloc(k->meta.spec_bytes + 1)) == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a definition");
	shard__model__pack(m->spec, spec);
	st = meta_make(&m->meta, &k->meta, m->id, spec, e);
	free(spec);
	return st;
}

static enum shard_status make_store(struct make *k, struct err *e)
{
	struct model *m = k->m;
	struct server *s = m->server;
	enum shard_status st;

	budget_need(&m->need, &k->store);
	if ((st = budget_reserve(&s->budget, &m->need, m->name, server_node_name(s, s->self), e)) != SHARD_OK) {
		memset(&m->need, 0, sizeof(m->need));
		return st;
	}
	if (k->store.park != NULL && (st = make_meta(k, e)) != SHARD_OK)
		return st;
	return store_init(&m->store, &k->store, e);
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

static enum shard_status make_layout(struct model *m, struct err *e)
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
	return SHARD_OK;
}

/* The model counts for the next start from here on. */
static enum shard_status keep(struct model *m, struct err *e)
{
	struct meta_mark mark = {.cleared = m->generation};
	const struct shm regions[PARK_REGIONS] = {[PARK_META] = m->meta.shm,
						  [PARK_STATE] = *store_region(m->store, STORE_STATE),
						  [PARK_SUMS] = *store_region(m->store, STORE_SUMS),
						  [PARK_SLOTS] = *store_region(m->store, STORE_SLOTS),
						  [PARK_IMAGES] = *store_region(m->store, STORE_IMAGES)};

	meta_mark(&m->meta, &mark);
	return park_keep(m->server->park, m->id, regions, e);
}

static enum shard_status make(struct model *m, const struct core_view *view, const struct meta_found *found, struct err *e)
{
	struct make k = {.m = m, .found = found};
	enum shard_status st = make_layout(m, e);

	if (st != SHARD_OK)
		return st;
	if ((k.core = core_conf(m)) == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a definition");
	store_conf(&k);
	if ((st = plan_park(&k, e)) == SHARD_OK && (st = make_store(&k, e)) == SHARD_OK && (st = make_lists(m, e)) == SHARD_OK) {
		store_image_generation(m->store, m->generation);
		st = make_core(m, k.core, view, found != NULL, e);
	}
	if (st == SHARD_OK && model_parked(m) && found == NULL)
		st = keep(m, e);
	free(k.core);
	return st;
}

enum shard_status model_make(struct model **out, struct server *s, Shard__Model *spec, const struct core_view *view,
			     const struct meta_found *found, struct err *e)
{
	struct model *m = calloc(1, sizeof(*m));
	enum shard_status st;

	*out = NULL;
	if (m == NULL) {
		shard__model__free_unpacked(spec, NULL);
		return err_set(e, SHARD_SYSTEM, "no memory for a model");
	}
	if (found != NULL)
		m->meta.shm = found->shm;
	m->keep = found != NULL; /* a failure may not take what is there */
	list_init(&m->link);
	list_init(&m->reads);
	list_init(&m->askers);
	list_init(&m->manage.waiting);
	ckpt_init(m);
	m->server = s;
	m->spec = spec;
	m->id = spec->model;
	m->generation = view != NULL ? view->generation : spec->generation;
	st = make(m, view, found, e);
	if (st != SHARD_OK) {
		model_free(&m);
		return st;
	}
	m->keep = false;
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
	meta_free(&m->meta);
	if (m->outside && !m->keep)
		park_unvoid(m->server->park);
	if (m->server->park != NULL && !m->keep)
		park_forget(m->server->park, m->id);
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
