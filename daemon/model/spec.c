/* SPDX-License-Identifier: Apache-2.0 */
/* Makes and compares definitions. control/define.c, make.c, resume.c and ckpt/ call. Happy path:
 * the settings of the configuration and the trainer are merged, the layout and the placement are
 * computed, and one message holds all of it. Every node builds the same model from that message. A
 * call fails if the definition is wrong (SHARD_BAD_ARG, SHARD_DTYPE, SHARD_MISMATCH, SHARD_EXISTS)
 * or if there is no memory (SHARD_SYSTEM). A failed call leaves nothing to free. */
#include "model/spec.h"

#include "base/check.h"
#include "link/peer.h"
#include "model/placing.h"
#include "wire/control.h"
#include "wire/layout.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { GROUPS_MAX_BEFORE = 16 }; /* Of a model, in releases before wire_minor 6. */

enum shard_status spec_layout(struct layout **out, const Shard__Spec *spec, uint32_t chunk_elems,
			      struct err *e)
{
	struct shard_tensor *tensors = calloc(spec->n_tensors + 1, sizeof(*tensors));
	enum shard_status st = SHARD_OK;

	if (tensors == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for %zu tensors", spec->n_tensors);
	for (size_t i = 0; i < spec->n_tensors && st == SHARD_OK; i++) {
		const Shard__Tensor *in = spec->tensors[i];

		tensors[i] = (struct shard_tensor){
			.name = in->name, .ndim = (uint32_t)in->n_shape, .group = in->group};
		layout_flags_take(&tensors[i], in->flags);
		if (in->n_shape > LAYOUT_DIMS_MAX)
			st = err_set(e, SHARD_BAD_ARG,
				     "tensor \"%s\" has %zu dimensions: at most %d", in->name,
				     in->n_shape, LAYOUT_DIMS_MAX);
		else if (in->n_shape > 0)
			memcpy(tensors[i].shape, in->shape, in->n_shape * sizeof(in->shape[0]));
	}
	if (st == SHARD_OK)
		st = layout_init(out, tensors, (uint32_t)spec->n_tensors, (uint32_t)spec->n_groups,
				 (enum shard_dtype)spec->image, chunk_elems, e);
	free(tensors);
	return st;
}

bool spec_counts(struct layout *counts, bool *all_trained, const Shard__Spec *spec,
		 uint32_t chunk_elems)
{
	uint64_t elems_of[DTYPE_NR + 1] = {0}, elems = 0, segments = 0, n;

	*all_trained = true;
	*counts = (struct layout){.tensors_nr = (uint32_t)spec->n_tensors};
	if (!dtype_ok(spec->image))
		return false;
	for (size_t i = 0; i < spec->n_tensors; i++) {
		struct shard_tensor t = {.image = 0};
		uint64_t *at;

		layout_flags_take(&t, spec->tensors[i]->flags);
		at = &elems_of[t.image ? t.image : spec->image];
		if (spec->tensors[i]->n_shape > LAYOUT_DIMS_MAX ||
		    !layout_numel(&n, spec->tensors[i]->shape, spec->tensors[i]->n_shape))
			return false;
		segments += layout_pieces(*at, n, chunk_elems);
		n = (n + LAYOUT_ALIGN - 1) / LAYOUT_ALIGN * LAYOUT_ALIGN;
		*at += n;
		elems += n;
		if (elems > LAYOUT_ELEMS_MAX)
			return false;
		*all_trained = *all_trained && !(t.flags & SHARD_FROZEN);
	}
	counts->segments_nr = (uint32_t)segments;
	return elems > 0 && spec->n_tensors <= LAYOUT_TENSORS_MAX &&
	       layout_regions(counts, (enum shard_dtype)spec->image, elems_of, chunk_elems);
}

enum shard_status spec_may_fit(struct server *s, const Shard__Spec *spec,
			       const struct model_settings *set, uint64_t members, struct err *e)
{
	struct store_conf conf = {.optim = set->optim,
				  .away_share = settings_away(set),
				  .grad = (enum shard_dtype)spec->grad,
				  .self = s->self,
				  .nodes_nr = s->nodes_nr,
				  .local_world = set->local_world,
				  .staleness = set->max_staleness,
				  .max_world = set->max_world,
				  .huge = s->conf->huge_pages};
	uint64_t capacity[CORE_NODES_MAX];
	struct layout counts;
	struct budget_need need;
	bool all_trained;
	enum shard_status st;
	struct err why;

	CHECK(server_leads(s));
	if (set->local_world > CONTRIB_LOCAL_MAX || set->max_world > CORE_RANKS_MAX ||
	    !spec_counts(&counts, &all_trained, spec, set->chunk_elems))
		return SHARD_OK;
	conf.layout = &counts;
	placing_capacity_of(s, members, capacity);
	budget_least(&need, &conf, set->replicas, capacity, all_trained);
	if (budget_soon(&s->budget, &need, 0))
		return SHARD_OK;
	st = budget_reserve(&s->budget, &need, spec->name, members_name(s, s->self), &why);
	CHECK(st != SHARD_OK);
	if (set->replicas_by == SETTINGS_BY_NOBODY && set->replicas > 1)
		return err_set(e, st,
			       "%.400s; or add nodes, or set replicas = 1: nobody has set it, so "
			       "each chunk is on two nodes",
			       why.text);
	return err_set(e, st, "%s", why.text);
}

/* What nobody has set depends on how many nodes there are. A checkpoint of a larger cluster may be
 * restored on a smaller one: nobody has asked for so many copies here. */
static void choose_replicas(struct model_settings *set, const struct server *s, const char *name)
{
	uint32_t nodes = placing_nodes(s, placing_members(s));

	if (set->replicas_by == SETTINGS_BY_NOBODY)
		set->replicas = placing_nodes(s, UINT64_MAX) > 1 ? 2 : 1;
	if (set->replicas_by == SETTINGS_BY_KEPT && set->replicas > nodes && nodes > 0) {
		log_line(
			s->log, LOG_LEVEL_WARN,
			"event=fewer_copies model=%s checkpoint=%u copies=%u why=\"a node holds at "
			"most one copy of a chunk\"",
			name, set->replicas, nodes);
		set->replicas = nodes;
		set->min_copies = set->min_copies < nodes ? set->min_copies : nodes;
	}
}

/* The layers are as in spec.h. yields: pinned keys keep their value. */
static enum shard_status settings_of(struct model_settings *set, struct server *s,
				     const Shard__Spec *spec, const char *origin, bool yields,
				     struct err *e)
{
	struct settings_layer layers[3 + 3 * SETTINGS_GROUPS_MAX];
	const char *groups[SETTINGS_GROUPS_MAX];
	const struct config_model *c;
	enum shard_status st;
	uint32_t nr = 0;

	if (!dtype_ok(spec->grad) || !dtype_ok(spec->image))
		return err_set(e, SHARD_DTYPE,
			       "gradients %u, image %u: choose SHARD_F32, SHARD_BF16 or SHARD_F16",
			       spec->grad, spec->image);
	if (spec->n_groups > SETTINGS_GROUPS_MAX)
		return err_set(e, SHARD_BAD_ARG, "%zu tensor groups: at most %d", spec->n_groups,
			       SETTINGS_GROUPS_MAX);
	if (!layout_model_name_ok(spec->name))
		return err_set(e, SHARD_BAD_ARG, "a model's name is 1 to 64 of [a-z0-9._-]");
	for (size_t g = 0; g < spec->n_groups; g++)
		groups[g] = spec->groups[g]->name;
	if ((c = config_model(s->conf, "", "")) != NULL)
		layers[nr++] = (struct settings_layer){c->settings, c->where,   NULL,
						       false,       c->origins, false};
	if ((c = config_model(s->conf, spec->name, "")) != NULL)
		layers[nr++] = (struct settings_layer){c->settings, c->where,   NULL,
						       false,       c->origins, false};
	for (size_t g = 0; g < spec->n_groups; g++)
		if ((c = config_model(s->conf, spec->name, groups[g])) != NULL)
			layers[nr++] = (struct settings_layer){c->settings, c->where,   groups[g],
							       false,       c->origins, false};
	layers[nr++] = (struct settings_layer){spec->settings, origin, NULL, true, NULL, yields};
	for (size_t g = 0; g < spec->n_groups; g++)
		layers[nr++] = (struct settings_layer){
			spec->groups[g]->settings, origin, groups[g], true, NULL, yields};
	st = settings_make(set, layers, nr, groups, (uint32_t)spec->n_groups,
			   (enum shard_dtype)spec->grad, e);
	if (st == SHARD_OK)
		choose_replicas(set, s, spec->name);
	return st;
}

enum shard_status spec_settings(struct model_settings *set, struct server *s,
				const Shard__Spec *spec, const char *origin, struct err *e)
{
	return settings_of(set, s, spec, origin, false, e);
}

enum shard_status spec_settings_kept(struct model_settings *set, struct server *s,
				     const Shard__Spec *spec, const char *origin, struct err *e)
{
	return settings_of(set, s, spec, origin, true, e);
}

/* What differs: tensors or their types, or the settings, of which key is one, or "". */
struct difference {
	bool settings;
	char key[SETTINGS_KEY_BYTES];
};

static enum shard_status compare(const struct model *m, const Shard__Spec *spec,
				 const char *settings, struct difference *d, struct err *e)
{
	char who[160];
	struct layout *there = NULL;
	enum shard_status st;

	*d = (struct difference){.settings = false};
	snprintf(who, sizeof(who), "in \"%s\" as it was defined", m->name);
	if (spec->grad != m->grad || spec->image != m->image)
		return err_set(e, SHARD_MISMATCH, "gradients %s and image %s here, %s and %s %s",
			       dtype_name((enum shard_dtype)spec->grad),
			       dtype_name((enum shard_dtype)spec->image), dtype_name(m->grad),
			       dtype_name(m->image), who);
	if ((st = spec_layout(&there, spec, m->layout->chunk_elems, e)) != SHARD_OK)
		return st;
	st = layout_compare(there, m->layout, who, e);
	layout_free(&there);
	if (st != SHARD_OK)
		return st;
	d->settings = true;
	return settings_compare(settings, "here", m->settings_text, who, spec->settings, d->key, e);
}

/* Is it a setting that an operator can change while the model exists (control/manage.c)? */
static bool may_tune(const struct model *m, const char *key)
{
	const char *slash = strchr(key, '/');
	uint32_t i = optim_hyper_named(m->set.optim, slash ? slash + 1 : key);

	if (strcmp(key, "lr") == 0)
		return m->set.schedule.id == SCHEDULE_NONE;
	return strcmp(key, "clip") == 0 || (i < HYPER_NR && TUNE_HYPERS >> i & 1);
}

/* How to go on after a difference, as far as there is room. */
static enum shard_status way_out(const struct model *m, const struct difference *d,
				 const struct err *why, struct err *e)
{
	char tune[256] = "";

	if (!d->settings)
		return err_set(e, why->status,
			       "%.380s: choose another name, or drop that model (`shardctl model "
			       "drop`)",
			       why->text);
	if (d->key[0] != 0 && may_tune(m, d->key))
		snprintf(tune, sizeof(tune), " and change it by `shardctl model set %s %s`",
			 m->name, d->key);
	return err_set(e, why->status,
		       "%.280s: define it as it was%.110s, or save it, drop it and define it "
		       "anew with restore_at_start, or choose another name",
		       why->text, tune);
}

enum shard_status spec_compare(const struct model *m, const Shard__Spec *spec,
			       const struct model_settings *set, struct err *e)
{
	const char *groups[SETTINGS_GROUPS_MAX];
	struct model_settings like = *set;
	enum shard_status st;
	struct difference d;
	struct err why;
	char *text;

	for (size_t g = 0; g < spec->n_groups; g++)
		groups[g] = spec->groups[g]->name;
	if (set->replicas_by == SETTINGS_BY_NOBODY)
		like.replicas = m->set.replicas; /* It keeps what it has. */
	if (!set->max_world_set)
		like.max_world = m->set.max_world;
	if (!set->local_world_set)
		like.local_world = m->set.local_world;
	if ((text = settings_text(&like, groups)) == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory to compare definitions of \"%s\"",
			       m->name);
	st = compare(m, spec, text, &d, &why);
	free(text);
	return st == SHARD_OK         ? SHARD_OK
	       : st == SHARD_MISMATCH ? way_out(m, &d, &why, e)
				      : err_set(e, st, "%s", why.text);
}

/* Compares what compare() cannot name: the owner, and how the settings of groups were written. */
static bool same_bytes(const struct model *m, const Shard__Model *is)
{
	Shard__Model a = *m->spec, b = *is;
	size_t bytes;
	uint8_t *packed;
	bool same;

	a.generation = b.generation = 0;
	a.incarnation = b.incarnation = 0;
	a.lost = b.lost = (char *)(uintptr_t)protobuf_c_empty_string;
	a.n_place_runs = b.n_place_runs = 0;
	a.n_holder_runs = b.n_holder_runs = 0;
	a.tables = b.tables = NULL;
	bytes = shard__model__get_packed_size(&a);
	if (shard__model__get_packed_size(&b) != bytes)
		return false;
	if ((packed = malloc(2 * bytes + 1)) == NULL)
		return true; /* Tensors, settings and chunks are equal already. */
	shard__model__pack(&a, packed);
	shard__model__pack(&b, packed + bytes);
	same = memcmp(packed, packed + bytes, bytes) == 0;
	free(packed);
	return same;
}

bool spec_same_place(const Shard__Model *a, const Shard__Model *b)
{
	return a->n_place_runs == b->n_place_runs && a->n_holder_runs == b->n_holder_runs &&
	       (a->n_place_runs == 0 || memcmp(a->place_runs, b->place_runs,
					       a->n_place_runs * sizeof(*a->place_runs)) == 0) &&
	       (a->n_holder_runs == 0 || memcmp(a->holder_runs, b->holder_runs,
						a->n_holder_runs * sizeof(*a->holder_runs)) == 0);
}

enum shard_status spec_same(const struct model *m, const Shard__Model *is, struct err *e)
{
	const char *node = members_name(m->server, m->server->self);
	struct difference d;
	struct err why = {.status = SHARD_OK};

	if (strcmp(m->name, is->spec->name) != 0)
		err_set(&why, SHARD_EXISTS, "its name is \"%s\"", is->spec->name);
	else if (!dtype_ok(is->spec->grad) || !dtype_ok(is->spec->image))
		err_set(&why, SHARD_EXISTS, "its dtypes are %u and %u", is->spec->grad,
			is->spec->image);
	else if (is->chunk_elems != m->spec->chunk_elems)
		err_set(&why, SHARD_EXISTS, "its chunks have %u elements, not %u", is->chunk_elems,
			m->spec->chunk_elems);
	else if (compare(m, is->spec, is->spec->settings, &d, &why) == SHARD_OK) {
		if (m->spec->born != is->born)
			err_set(&why, SHARD_EXISTS, "it was defined at another time");
		else if (!same_bytes(m, is))
			err_set(&why, SHARD_EXISTS,
				"another user defined it, or its groups are written differently");
		else if (!spec_same_place(m->spec, is))
			err_set(&why, SHARD_EXISTS,
				"it was defined with its chunks on other nodes");
	}
	if (why.status == SHARD_OK)
		return SHARD_OK;
	return err_set(e, SHARD_EXISTS,
		       "model %u is \"%s\" on node %s and another one on the coordinator (%.300s): "
		       "stop one of them and clear its state",
		       m->id, m->name, node, why.text);
}

static bool own_image(const Shard__Spec *spec, const Shard__Tensor *in)
{
	struct shard_tensor t;

	layout_flags_take(&t, in->flags);
	return t.image != 0 && t.image != spec->image;
}

static bool empty(const Shard__Spec *spec, const Shard__Tensor *in)
{
	uint64_t numel;

	(void)spec;
	return layout_numel(&numel, in->shape, in->n_shape) && numel == 0;
}

/* What nodes of older releases cannot have. */
static const struct later {
	bool (*has)(const Shard__Spec *spec, const Shard__Tensor *t);
	enum wire_since since;
	const char *what;
} later[] = {
	{own_image, WIRE_IMAGES, "has an image dtype of its own"},
	{empty, WIRE_EMPTY, "has a dimension of 0"},
};

static const char *tensor_with(const Shard__Spec *spec, const struct later *l)
{
	for (size_t i = 0; i < spec->n_tensors; i++)
		if (l->has(spec, spec->tensors[i]))
			return spec->tensors[i]->name;
	return NULL;
}

static enum shard_status groups_may_travel(const struct server *s, const Shard__Spec *spec,
					   struct err *e)
{
	const struct peer *older =
		spec->n_groups > GROUPS_MAX_BEFORE ? peer_older(s, WIRE_GROUPS) : NULL;

	if (older == NULL)
		return SHARD_OK;
	return err_set(e, SHARD_UNSUPPORTED,
		       "%zu tensor groups, and node %s (release %s) knows at most %d: install %s "
		       "there",
		       spec->n_groups, members_name(s, older->node), older->release,
		       GROUPS_MAX_BEFORE, SHARD_RELEASE);
}

enum shard_status spec_may_travel(const struct server *s, const Shard__Spec *spec, struct err *e)
{
	for (size_t i = 0; i < NR(later); i++) {
		const struct peer *older = peer_older(s, later[i].since);
		const char *tensor = older != NULL ? tensor_with(spec, &later[i]) : NULL;

		if (tensor != NULL)
			return err_set(e, SHARD_UNSUPPORTED,
				       "tensor \"%.200s\" %s, which node %s (release %s) does not "
				       "know: install %s there",
				       tensor, later[i].what, members_name(s, older->node),
				       older->release, SHARD_RELEASE);
	}
	return groups_may_travel(s, spec, e);
}

void *spec_copy(const ProtobufCMessage *msg)
{
	size_t bytes = protobuf_c_message_get_packed_size(msg);
	uint8_t *packed = malloc(bytes + 1);
	void *copy = NULL;

	if (packed != NULL) {
		protobuf_c_message_pack(msg, packed);
		copy = protobuf_c_message_unpack(msg->descriptor, NULL, bytes, packed);
	}
	free(packed);
	return copy;
}

enum shard_status spec_replicas(const struct server *s, const char *model,
				const struct model_settings *set, uint64_t members, struct err *e)
{
	uint32_t nodes = placing_nodes(s, members);
	uint32_t all = placing_nodes(s, UINT64_MAX);

	if (all == 0)
		return err_set(e, SHARD_BAD_ARG,
			       "\"%s\" has nowhere to lie: every node of this cluster has "
			       "[daemon] capacity = 0",
			       model);
	if (set->min_copies > set->replicas) /* Others were refused when they were read. */
		return err_set(e, SHARD_BAD_ARG,
			       "min_copies = %u is above replicas = %u, which is the default for "
			       "%u node%s with capacity: set replicas, or lower min_copies",
			       set->min_copies, set->replicas, all, all == 1 ? "" : "s");
	if (set->replicas <= nodes)
		return SHARD_OK;
	if (set->replicas <= all)
		return err_set(
			e, SHARD_UNREACHABLE,
			"\"%s\" has replicas = %u, and only %u of %u nodes with capacity are "
			"up: start another one, or set replicas = %u",
			model, set->replicas, nodes, all, nodes > 0 ? nodes : 1);
	return err_set(e, SHARD_BAD_ARG,
		       "\"%s\" has replicas = %u, and this cluster has %u node%s with capacity: a "
		       "node holds at most one copy of a chunk, so choose at most %u",
		       model, set->replicas, nodes, nodes == 1 ? "" : "s", nodes);
}

/* A model's number alone does not tell it from one that a coordinator had before it lost its
 * state folder. */
static enum shard_status draw_born(uint64_t *born, const char *name, struct err *e)
{
	while (*born == 0)
		if (getrandom(born, sizeof(*born), 0) != (ssize_t)sizeof(*born))
			return err_set(e, SHARD_SYSTEM, "no random bytes to define \"%s\": %s",
				       name, strerror(errno));
	return SHARD_OK;
}

enum shard_status spec_model(Shard__Model **out, struct layout **layout, struct server *s,
			     const Shard__Spec *spec, Shard__Cred *owner,
			     const struct model_settings *set, uint64_t members, struct err *e)
{
	Shard__Model temp = SHARD__MODEL__INIT, *m;
	uint64_t capacity[CORE_NODES_MAX];
	const char *groups[SETTINGS_GROUPS_MAX];
	struct layout *l = NULL;
	Shard__Spec named = *spec;
	enum shard_status st = spec_layout(&l, spec, set->chunk_elems, e);

	CHECK(set->replicas <= placing_nodes(s, members)); /* spec_replicas() */
	if (st != SHARD_OK)
		return st;
	for (size_t g = 0; g < spec->n_groups; g++)
		groups[g] = spec->groups[g]->name;
	named.settings = settings_text(set, groups);
	temp.model = s->next_model + 1;
	temp.spec = &named;
	temp.owner = owner;
	temp.chunk_elems = set->chunk_elems;
	temp.generation = 1;
	temp.members = members;
	placing_capacity_of(s, members, capacity);
	st = placing_new(&temp, l->chunks_nr, set->replicas, capacity, e);
	if (st == SHARD_OK)
		st = draw_born(&temp.born, spec->name, e);
	m = st == SHARD_OK && named.settings != NULL ? spec_copy(&temp.base) : NULL;
	free(named.settings);
	free(temp.place_runs);
	free(temp.holder_runs);
	if (st == SHARD_OK && m == NULL)
		st = err_set(e, SHARD_SYSTEM, "no memory for the definition of \"%s\"", spec->name);
	if (st != SHARD_OK) {
		layout_free(&l);
		return st;
	}
	*out = m;
	*layout = l;
	return SHARD_OK;
}

enum shard_status spec_read(struct model *m, struct err *e)
{
	const Shard__Spec *spec = m->spec->spec;
	struct settings_layer layer = {spec->settings, "the definition", NULL, false, NULL, false};
	const char *groups[SETTINGS_GROUPS_MAX];

	m->grad = (enum shard_dtype)spec->grad;
	m->image = (enum shard_dtype)spec->image;
	if (!dtype_ok(spec->grad) || !dtype_ok(spec->image) || spec->n_groups > SETTINGS_GROUPS_MAX)
		return err_set(e, SHARD_PROTOCOL,
			       "a definition with dtypes %u and %u and %zu groups", spec->grad,
			       spec->image, spec->n_groups);
	m->grad_bytes = (uint32_t)dtype_bytes(m->grad);
	for (size_t g = 0; g < spec->n_groups; g++)
		groups[g] = spec->groups[g]->name;
	m->name = strdup(spec->name);
	m->settings_text = strdup(spec->settings);
	if (m->name == NULL || m->settings_text == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for a definition");
	if (settings_make(&m->set, &layer, 1, groups, (uint32_t)spec->n_groups, m->grad, e) !=
	    SHARD_OK)
		return e->status;
	if (m->set.local_world > CONTRIB_LOCAL_MAX || m->set.max_world > CORE_RANKS_MAX)
		return err_set(e, SHARD_BAD_ARG, "max_world %u, local_world %u: at most %d and %d",
			       m->set.max_world, m->set.local_world, CORE_RANKS_MAX,
			       CONTRIB_LOCAL_MAX);
	if (m->spec->chunk_elems != m->set.chunk_elems)
		return err_set(e, SHARD_PROTOCOL,
			       "a definition with chunks of %u elements whose settings say %u",
			       m->spec->chunk_elems, m->set.chunk_elems);
	return SHARD_OK;
}

void spec_say(const struct model *m, Shard__Defined *body)
{
	body->model = m->id;
	body->born = m->spec->born;
	body->sealed = m->sealed;
	body->step = m->step;
	body->chunk_elems = m->layout->chunk_elems;
	body->optimizer = (char *)(uintptr_t)m->set.optim->name;
	body->settings = m->settings_text;
	body->timeout_ms = m->set.timeout_ns / NS_PER_MS;
	body->quorum_ms = (m->set.quorum_timeout_ns + NS_PER_MS - 1) / NS_PER_MS;
	body->max_staleness = m->set.max_staleness;
	body->staleness_after = m->set.staleness_after;
	body->scheduled = m->set.schedule.id != SCHEDULE_NONE;
}
