/* SPDX-License-Identifier: Apache-2.0 */
/* Merges layers of settings into one model's effective settings, and writes them in their canonical
 * form. The coordinator merges (file, then trainer) when a model is defined; other nodes parse the
 * canonical string that it sends. Each value is checked where it stands, so that an error names its
 * origin. What values must fulfil together is checked at the end. A hyper-parameter that an earlier
 * layer set for another optimizer is forgotten with that optimizer, and so is a schedule's
 * parameter. What can be wrong is SHARD_BAD_ARG, or SHARD_DENIED for a pinned key, and there may be
 * no memory. SETTINGS_TEXT_BYTES covers as many groups as there may be, with the longest names. */
#include "config/settings.h"

#include "base/check.h"
#include "config/keys.h"
#include "config/value.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define BLANKS " \t\r\n"

struct entry {
	const char *origin; /* NULL: nobody set the key. */
	uint32_t layer;     /* The last one that set it. */
	char text[SETTINGS_VALUE_BYTES];
	struct table_value value;
};

struct merge {
	/* [1 + groups_nr] The model's, then its groups', in the order of the table's rows. */
	struct entry (*entry)[SETTINGS_KEYS_MAX];
	const char *const *groups;
	uint32_t groups_nr, found;          /* found: the group that was named last. */
	const struct settings_layer *layer; /* The layer being merged. */
	uint32_t layer_nr;                  /* Its index. */
	const char *origin;                 /* Origin of the word being merged. */
};

static uint32_t index_of(const struct table_row *row)
{
	const struct table *t = settings_table();

	CHECK(row >= t->rows && row < t->rows + t->nr);
	return (uint32_t)(row - t->rows);
}

/* What was set for the whole model; NULL: nobody set the key. */
static const struct entry *set_row(const struct merge *m, const struct table_row *row)
{
	const struct entry *entry = &m->entry[0][index_of(row)];

	return entry->origin ? entry : NULL;
}

static const struct entry *set(const struct merge *m, const char *name)
{
	return set_row(m, settings_row(name));
}

static enum shard_status say(enum shard_status st, const char *origin, const struct err *why,
			     struct err *e)
{
	return err_set(e, st, "%.150s: %.350s", origin, why->text);
}

/* Words of one group follow each other, and groups come in their order. */
static enum shard_status find_group(struct merge *m, const char *name, uint32_t *place,
				    struct err *e)
{
	for (uint32_t i = 0; i < m->groups_nr; i++) {
		uint32_t g = (m->found + i) % m->groups_nr;

		if (strcmp(m->groups[g], name) == 0) {
			*place = 1 + (m->found = g);
			return SHARD_OK;
		}
	}
	return err_set(e, SHARD_BAD_ARG, "group \"%.64s\": the model has no such group", name);
}

static bool is_pinned(const struct merge *m, const char *key)
{
	const struct entry *pinned = set(m, "pinned");
	const char *at = pinned ? pinned->text : "";
	size_t n = strlen(key);

	while (*at) {
		size_t word = strcspn(at, ",");

		if (word == n && strncmp(at, key, n) == 0)
			return true;
		at += word + (at[word] == ',');
	}
	return false;
}

static enum shard_status put_one(struct merge *m, uint32_t place, const struct table_row *row,
				 const char *text, const struct table_value *value, struct err *e)
{
	struct entry *entry = &m->entry[place][index_of(row)];
	bool beta = row->role == SETTINGS_HYPER &&
		    (row->index == HYPER_BETA1 || row->index == HYPER_BETA2);
	bool pinned = is_pinned(m, row->name) || (beta && is_pinned(m, "betas"));

	CHECK(place <= m->groups_nr && row->role != SETTINGS_BETAS);
	if (entry->origin && entry->layer == m->layer_nr)
		return err_set(e, SHARD_BAD_ARG, "%s = %.64s: %s is there twice", row->name, text,
			       row->name);
	/* A restored model's settings change no pinned key. They also do not say where and how
	 * often the model is saved, and by how many nodes it is held, if an earlier layer says so,
	 * because that is for the daemons to decide. */
	if (m->layer->yields && (pinned || (entry->origin && (row->saving || row->hosting))))
		return SHARD_OK;
	if (m->layer->trainer && pinned)
		return err_set(e, SHARD_DENIED, "%s = %.64s: %s pins this key%s%s", row->name, text,
			       set(m, "pinned")->origin, entry->origin ? " to " : "",
			       entry->origin ? entry->text : "");
	if (m->layer->trainer && row->role == SETTINGS_PINNED)
		return err_set(e, SHARD_DENIED, "pinned: only a configuration file may set it");
	entry->origin = m->origin;
	entry->layer = m->layer_nr;
	entry->value = *value;
	snprintf(entry->text, sizeof(entry->text), "%s", text);
	return SHARD_OK;
}

static enum shard_status put(struct merge *m, uint32_t place, const char *name, const char *text,
			     struct err *e)
{
	const struct table_row *row = settings_find(name, place > 0, e);
	struct table_value value;
	char half[VALUE_TEXT_BYTES];
	enum shard_status st;

	if (!row)
		return SHARD_BAD_ARG;
	if ((st = settings_value(row, text, &value, e)) != SHARD_OK)
		return st;
	if (row->role != SETTINGS_BETAS)
		return put_one(m, place, row, text, &value, e);
	value_double_text(half, value.number);
	if ((st = put_one(m, place, settings_row("beta1"), half, &value, e)) != SHARD_OK)
		return st;
	value.number = value.second;
	value_double_text(half, value.number);
	return put_one(m, place, settings_row("beta2"), half, &value, e);
}

/* Merges one "key=value" or "group/key=value". */
static enum shard_status put_word(struct merge *m, uint32_t place, const char *word, size_t n,
				  struct err *e)
{
	char copy[2 * SETTINGS_VALUE_BYTES], *equals, *slash, *name = copy;
	enum shard_status st;

	if (n >= sizeof(copy))
		return err_set(e, SHARD_BAD_ARG, "%.32s...: too long", word);
	memcpy(copy, word, n);
	copy[n] = 0;
	equals = strchr(copy, '=');
	if (!equals || equals == copy)
		return err_set(e, SHARD_BAD_ARG, "%.64s: write key=value, separated by blanks",
			       copy);
	*equals = 0;
	slash = strchr(copy, '/');
	if (slash) {
		*slash = 0;
		name = slash + 1;
		if ((st = find_group(m, copy, &place, e)) != SHARD_OK)
			return st;
	}
	return put(m, place, name, equals + 1, e);
}

static enum shard_status merge_layer(struct merge *m, const struct settings_layer *layer,
				     struct err *e)
{
	const char *at = layer->text ? layer->text : "";
	enum shard_status st = SHARD_OK;
	uint32_t place = 0, words = 0;
	struct err why = {.text = ""};

	m->layer = layer;
	m->origin = layer->origin ? layer->origin : "settings";
	if (layer->group && layer->group[0])
		st = find_group(m, layer->group, &place, &why);
	while (st == SHARD_OK) {
		at += strspn(at, BLANKS);
		size_t n = strcspn(at, BLANKS);
		if (n == 0)
			return SHARD_OK;
		if (layer->origins)
			m->origin = layer->origins[words++].text;
		st = put_word(m, place, at, n, &why);
		at += n;
	}
	return say(st, m->origin, &why, e);
}

/* What counts for a key that has no field of its own. */
static struct table_value value_or_default(const struct merge *m, const char *name)
{
	const struct table_row *row = settings_row(name);
	struct table_value v;

	if (set_row(m, row))
		return set_row(m, row)->value;
	CHECK(settings_value(row, row->fallback, &v, NULL) == SHARD_OK);
	return v;
}

/* Fills the field of every key that names one, except for a schedule's parameters, whose defaults
 * depend on the schedule. A key without a fixed default is completed by the function that knows
 * what it depends on. */
static void make_fields(struct model_settings *s, const struct merge *m)
{
	const struct table *t = settings_table();

	for (uint32_t i = 0; i < t->nr; i++) {
		const struct table_row *row = &t->rows[i];
		const struct entry *entry = set_row(m, row);

		if (row->bytes == 0 || row->role == SETTINGS_PARAM)
			continue;
		if (entry)
			table_store(row, s, entry->text, &entry->value);
		else if (row->fallback)
			CHECK(table_set(row, s, row->fallback, NULL) == SHARD_OK);
	}
}

/* Puts what was set for the model (place 0) or for group place - 1 into h. */
static enum shard_status take_hyper(const struct merge *m, uint32_t place, uint32_t optim_layer,
				    const struct optim_row *optim, double *h, struct err *e)
{
	const struct table *t = settings_table();
	enum shard_status st;
	struct err why;

	CHECK(place <= m->groups_nr);
	for (uint32_t i = 0; i < t->nr; i++) {
		const struct table_row *row = &t->rows[i];
		const struct entry *entry = &m->entry[place][i];

		if (row->role != SETTINGS_HYPER || !entry->origin)
			continue;
		if (!optim->hyper[row->index].name && entry->layer < optim_layer)
			continue; /* It was meant for the optimizer that a later layer replaced. */
		st = settings_hyper(optim, row, entry->text, entry->value.number, &why);
		if (st != SHARD_OK)
			return say(st, entry->origin, &why, e);
		h[row->index] = entry->value.number;
	}
	return SHARD_OK;
}

static enum shard_status make_groups(struct model_settings *s, const struct merge *m, struct err *e)
{
	const struct entry *optim = set(m, "optimizer");
	uint32_t layer = optim ? optim->layer : 0;
	double model[HYPER_NR];
	enum shard_status st;
	struct err why;

	s->optim = optim_row((enum optim_id)value_or_default(m, "optimizer").whole);
	s->groups_nr = m->groups_nr ? m->groups_nr : 1;
	s->named_groups = m->groups_nr > 0;
	optim_defaults(s->optim, model);
	if ((st = take_hyper(m, 0, layer, s->optim, model, e)) != SHARD_OK)
		return st;
	for (uint32_t g = 0; g < s->groups_nr; g++) {
		const struct entry *factor;

		memcpy(s->hyper[g], model, sizeof(model));
		s->lr_factor[g] = 1;
		if (m->groups_nr > 0) {
			factor = &m->entry[1 + g][index_of(settings_row("lr_factor"))];
			s->lr_factor[g] = factor->origin ? factor->value.number : 1;
			st = take_hyper(m, 1 + g, layer, s->optim, s->hyper[g], e);
			if (st != SHARD_OK)
				return st;
		}
		s->hyper[g][HYPER_LR] *= s->lr_factor[g];
		if ((st = optim_hyper_check(s->optim, s->hyper[g], &why)) != SHARD_OK)
			return say(st, m->groups_nr ? m->groups[g] : "settings", &why, e);
	}
	s->lr = model[HYPER_LR];
	return SHARD_OK;
}

/* A parameter that somebody set has to be one of this schedule. */
static enum shard_status check_param(const struct merge *m, const struct schedule_row *row,
				     enum schedule_param param, struct err *e)
{
	const struct table_row *key = settings_param(param);
	const struct entry *entry = set_row(m, key), *schedule = set(m, "schedule");
	char has[256] = "";
	size_t used = 0;

	if (!entry || row->param[param].from != SCHEDULE_ABSENT ||
	    (schedule && entry->layer < schedule->layer))
		return SHARD_OK; /* Or it was meant for the schedule that a later layer replaced. */
	if (schedule_row_id(row) == SCHEDULE_NONE)
		return err_set(e, SHARD_BAD_ARG,
			       "%s: %s = %.64s: there is no schedule: set schedule too",
			       entry->origin, key->name, entry->text);
	for (int p = 0; p < SCHEDULE_PARAM_NR && used < sizeof(has); p++)
		if (row->param[p].from != SCHEDULE_ABSENT)
			used += (size_t)snprintf(has + used, sizeof(has) - used, "%s%s",
						 used ? ", " : "",
						 settings_param((enum schedule_param)p)->name);
	return err_set(e, SHARD_BAD_ARG,
		       "%s: %s = %.64s: schedule %s has no such key: it has %.160s", entry->origin,
		       key->name, entry->text, row->name, has);
}

static enum shard_status make_params(struct model_settings *s, const struct merge *m,
				     const struct schedule_row *row, struct err *e)
{
	struct schedule_conf *c = &s->schedule;
	enum shard_status st;

	for (int i = 0; i < SCHEDULE_PARAM_NR; i++) {
		const struct schedule_default *d = &row->param[i];
		enum schedule_param p = (enum schedule_param)i;
		const struct entry *entry = set_row(m, settings_param(p));

		if ((st = check_param(m, row, p, e)) != SHARD_OK)
			return st;
		if (d->from == SCHEDULE_ABSENT)
			continue;
		CHECK(d->from != SCHEDULE_AS_PARAM || d->as < p);
		if (entry)
			c->param[p] = entry->value.number;
		else if (d->from == SCHEDULE_REQUIRED)
			return err_set(e, SHARD_BAD_ARG,
				       "%s: schedule = %s needs %s, which has no default: set it",
				       set(m, "schedule")->origin, row->name,
				       settings_param(p)->name);
		else if (d->from == SCHEDULE_AS_LR)
			c->param[p] = s->lr;
		else
			c->param[p] = d->from == SCHEDULE_AS_PARAM ? c->param[d->as] : d->value;
	}
	return SHARD_OK;
}

/* What the parameters must fulfil together. */
static enum shard_status make_schedule(struct model_settings *s, const struct merge *m,
				       struct err *e)
{
	const struct entry *entry = set(m, "schedule"), *cycles = set(m, "cycle_momentum");
	const struct schedule_row *row = schedule_row(s->schedule.id);
	bool moves = s->optim->hyper[HYPER_BETA1].name || s->optim->hyper[HYPER_MOMENTUM].name;
	double *p = s->schedule.param;
	enum shard_status st;

	s->schedule.lr = s->lr;
	if ((st = make_params(s, m, row, e)) != SHARD_OK)
		return st;
	if (row->param[SCHEDULE_TOTAL_NUM_STEPS].from != SCHEDULE_ABSENT &&
	    p[SCHEDULE_TOTAL_NUM_STEPS] < p[SCHEDULE_WARMUP_NUM_STEPS])
		return err_set(e, SHARD_BAD_ARG,
			       "%s: total_num_steps = %.0f is below warmup_num_steps = %.0f (%s): "
			       "lower it",
			       entry->origin, p[SCHEDULE_TOTAL_NUM_STEPS],
			       p[SCHEDULE_WARMUP_NUM_STEPS],
			       set(m, "warmup_num_steps") ? set(m, "warmup_num_steps")->origin
							  : "default");
	if ((p[SCHEDULE_DECAY_LR_RATE] > 0 || p[SCHEDULE_DECAY_MOM_RATE] > 0) &&
	    p[SCHEDULE_DECAY_STEP_SIZE] == 0)
		return err_set(
			e, SHARD_BAD_ARG,
			"%s: %s has no effect while decay_step_size is 0: set decay_step_size",
			entry->origin,
			p[SCHEDULE_DECAY_LR_RATE] > 0 ? "decay_lr_rate" : "decay_mom_rate");
	if (p[SCHEDULE_CYCLE_MOMENTUM] != 0 && !moves && cycles)
		return err_set(e, SHARD_BAD_ARG,
			       "%s: cycle_momentum = %s: optimizer %s has neither beta1 nor "
			       "momentum: choose no",
			       cycles->origin, cycles->text, s->optim->name);
	if (!moves)
		p[SCHEDULE_CYCLE_MOMENTUM] = 0;
	return SHARD_OK;
}

static enum shard_status make_scale(struct model_settings *s, const struct merge *m,
				    enum shard_dtype grad, struct err *e)
{
	const struct entry *scale = set(m, "loss_scale"), *least = set(m, "min_loss_scale");
	int power = (int)value_or_default(m, "initial_scale_power").whole;

	s->dynamic_scale = scale ? scale->value.number == 0 : grad == SHARD_F16;
	s->initial_scale = s->dynamic_scale ? ldexp(1, power) : scale ? scale->value.number : 1;
	if (s->dynamic_scale && s->initial_scale < s->min_scale)
		return err_set(
			e, SHARD_BAD_ARG,
			"%s: min_loss_scale = %g is above 2^initial_scale_power = %g: lower it",
			least ? least->origin : "settings", s->min_scale, s->initial_scale);
	return SHARD_OK;
}

static enum shard_status make_world(struct model_settings *s, const struct merge *m, struct err *e)
{
	const struct entry *min = set(m, "min_world"), *max = set(m, "max_world"),
			   *local = set(m, "local_world");

	s->max_world_set = max != NULL;
	s->local_world_set = local != NULL;
	if (!max)
		s->max_world = SETTINGS_WORLD_MAX;
	if (!local) /* Not more: each trainer of a node costs memory for its gradients. */
		s->local_world = max ? s->max_world : s->min_world;
	if (s->min_world > s->max_world)
		return err_set(e, SHARD_BAD_ARG,
			       "min_world = %u (%s) is above max_world = %u (%s): raise max_world",
			       s->min_world, min ? min->origin : "default", s->max_world,
			       max ? max->origin : "default");
	if (s->local_world > s->max_world)
		return err_set(e, SHARD_BAD_ARG,
			       "local_world = %u (%s) is above max_world = %u (%s): lower it",
			       s->local_world, local ? local->origin : "default", s->max_world,
			       max ? max->origin : "default");
	return SHARD_OK;
}

static enum shard_status check_copies(const struct model_settings *s, const struct merge *m,
				      struct err *e)
{
	const struct entry *min = set(m, "min_copies"), *all = set(m, "replicas");

	if (s->min_copies <= s->replicas || !all) /* Who chooses replicas looks at that. */
		return SHARD_OK;
	return err_set(e, SHARD_BAD_ARG,
		       "min_copies = %u (%s) is above replicas = %u (%s): no step would ever begin",
		       s->min_copies, min ? min->origin : "default", s->replicas, all->origin);
}

static enum shard_status check_checkpoints(const struct model_settings *s, const struct merge *m,
					   struct err *e)
{
	const struct entry *every = set(m, "checkpoint_every");

	if (s->checkpoint_dir[0] || (!s->checkpoint_every && !s->restore_at_start))
		return SHARD_OK;
	if (!s->checkpoint_every)
		every = set(m, "restore_at_start");
	return err_set(e, SHARD_BAD_ARG,
		       "%s: %s = %s needs checkpoint_dir: set it to a folder that all nodes share",
		       every->origin, s->checkpoint_every ? "checkpoint_every" : "restore_at_start",
		       every->text);
}

/* The settings do not know how many nodes there are. Who knows chooses where nobody has set it. */
static void make_replicas(struct model_settings *s, const struct merge *m,
			  const struct settings_layer *layers)
{
	const struct entry *entry = set(m, "replicas");

	if (!entry)
		s->replicas = 1;
	else
		s->replicas_by = layers[entry->layer].yields ? SETTINGS_BY_KEPT : SETTINGS_BY_LAYER;
}

static enum shard_status make(struct model_settings *s, const struct merge *m,
			      const struct settings_layer *layers, enum shard_dtype grad,
			      struct err *e)
{
	enum shard_status st;

	make_fields(s, m);
	make_replicas(s, m, layers);
	if ((st = make_groups(s, m, e)) != SHARD_OK || (st = make_schedule(s, m, e)) != SHARD_OK ||
	    (st = make_scale(s, m, grad, e)) != SHARD_OK ||
	    (st = check_copies(s, m, e)) != SHARD_OK ||
	    (st = check_checkpoints(s, m, e)) != SHARD_OK)
		return st;
	return make_world(s, m, e);
}

enum shard_status settings_make(struct model_settings *s, const struct settings_layer *layers,
				uint32_t layers_nr, const char *const *groups, uint32_t groups_nr,
				enum shard_dtype grad, struct err *e)
{
	struct merge m = {.groups = groups, .groups_nr = groups_nr};
	enum shard_status st = SHARD_OK;

	CHECK(dtype_ok(grad));
	*s = (struct model_settings){.groups_nr = 1};
	if (groups_nr > SETTINGS_GROUPS_MAX)
		return err_set(e, SHARD_BAD_ARG, "%u groups: at most %d are possible", groups_nr,
			       SETTINGS_GROUPS_MAX);
	for (uint32_t g = 0; g < groups_nr; g++)
		if (!groups[g] || !value_name(groups[g]))
			return err_set(e, SHARD_BAD_ARG,
				       "group %u: a name has 1 to 64 of a-z 0-9 . _ -", g);
	for (uint32_t g = 1; g < groups_nr; g++)
		for (uint32_t i = 0; i < g; i++)
			if (strcmp(groups[g], groups[i]) == 0)
				return err_set(e, SHARD_BAD_ARG,
					       "group \"%s\" is there twice, as %u and as %u",
					       groups[g], i, g);
	if ((m.entry = calloc(1 + (size_t)groups_nr, sizeof(*m.entry))) == NULL)
		return err_set(e, SHARD_SYSTEM, "no memory for the settings of %u groups",
			       groups_nr);
	for (; m.layer_nr < layers_nr && st == SHARD_OK; m.layer_nr++)
		st = merge_layer(&m, &layers[m.layer_nr], e);
	if (st == SHARD_OK)
		st = make(s, &m, layers, grad, e);
	free(m.entry);
	return st;
}

struct out {
	char *text;
	size_t used;
};

__attribute__((format(printf, 2, 3))) static void print(struct out *o, const char *fmt, ...)
{
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(o->text + o->used, SETTINGS_TEXT_BYTES - o->used, fmt, ap);
	va_end(ap);
	CHECK(n >= 0 && (size_t)n < SETTINGS_TEXT_BYTES - o->used);
	o->used += (size_t)n;
}

static void print_double(struct out *o, const char *group, const char *name, double x)
{
	char text[VALUE_TEXT_BYTES];

	value_double_text(text, x);
	print(o, " %s%s%s=%s", group, group[0] ? "/" : "", name, text);
}

/* Prints a key of the whole model if it has a place in the canonical string. */
static void print_key(struct out *o, const struct model_settings *s, const struct table_row *row)
{
	char text[SETTINGS_VALUE_BYTES];
	int power;

	switch ((enum settings_role)row->role) {
	case SETTINGS_OPTIMIZER:
		print(o, "optimizer=%s", s->optim->name);
		return;
	case SETTINGS_HYPER:
		if (row->index == HYPER_LR)
			print_double(o, "", row->name, s->lr);
		else if (!s->named_groups && s->optim->hyper[row->index].name)
			print_double(o, "", row->name, s->hyper[0][row->index]);
		return;
	case SETTINGS_SCALE:
		if (s->dynamic_scale)
			print(o, " %s=%s", row->name, row->word);
		else
			print_double(o, "", row->name, s->initial_scale);
		return;
	case SETTINGS_SCALE_POWER:
		frexp(s->initial_scale, &power);
		if (s->dynamic_scale)
			print(o, " %s=%d", row->name, power - 1);
		return;
	case SETTINGS_PARAM:
		if (schedule_row(s->schedule.id)->param[row->index].from == SCHEDULE_ABSENT)
			return;
		break;
	case SETTINGS_LR_FACTOR:
	case SETTINGS_BETAS:
	case SETTINGS_PINNED:
		return;
	case SETTINGS_CODEC:
		/* Releases before do not know the keys. */
		if (s->grad_codec.kind == QUANT_NONE && s->image_codec == QUANT_NONE)
			return;
		break;
	case SETTINGS_TIER:
		if (s->tier == TIER_RAM)
			return;
		break;
	case SETTINGS_NVME:
		if (s->tier != TIER_NVME)
			return;
		break;
	case SETTINGS_GPU:
		if (s->tier != TIER_GPU)
			return;
		break;
	case SETTINGS_STALENESS:
		if (s->max_staleness == 0)
			return;
		break;
	case SETTINGS_DURABLE:
		if (s->tier != TIER_NVME || !s->nvme_durable)
			return;
		break;
	case SETTINGS_PLAIN:
		break;
	}
	table_get(row, s, text, sizeof(text));
	print(o, " %s=%s", row->name, text);
}

/* Prints the keys of the whole model, then those of each group. A model without groups shows the
 * hyper-parameters of its only group among the former. */
char *settings_text(const struct model_settings *s, const char *const *groups)
{
	const struct table *t = settings_table();
	struct out o = {.text = malloc(SETTINGS_TEXT_BYTES)};

	CHECK(s->groups_nr > 0 && (groups || !s->named_groups));
	if (o.text == NULL)
		return NULL;
	for (uint32_t i = 0; i < t->nr; i++)
		print_key(&o, s, &t->rows[i]);
	for (uint32_t g = 0; s->named_groups && g < s->groups_nr; g++) {
		for (uint32_t i = 0; i < t->nr; i++) {
			const struct table_row *row = &t->rows[i];

			if (row->role == SETTINGS_LR_FACTOR)
				print_double(&o, groups[g], row->name, s->lr_factor[g]);
			else if (row->role == SETTINGS_HYPER && row->scope == TABLE_BOTH &&
				 s->optim->hyper[row->index].name)
				print_double(&o, groups[g], row->name, s->hyper[g][row->index]);
		}
	}
	return o.text;
}

enum shard_status settings_check(const char *key, const char *text, bool group, struct err *e)
{
	const struct table_row *row = settings_find(key, group, e);
	struct table_value value;

	CHECK(text);
	return row ? settings_value(row, text, &value, e) : SHARD_BAD_ARG;
}

static bool is_saving(const char *word)
{
	const struct table *t = settings_table();
	size_t n = strcspn(word, "= ");

	for (uint32_t i = 0; i < t->nr; i++)
		if (t->rows[i].saving && strlen(t->rows[i].name) == n &&
		    memcmp(t->rows[i].name, word, n) == 0)
			return true;
	return false;
}

static const char *skip_saving(const char *text)
{
	while (is_saving(text)) {
		text += strcspn(text, " ");
		text += *text == ' ';
	}
	return text;
}

uint64_t settings_straggler_ns(const struct model_settings *s)
{
	return s->drop_stragglers ? s->straggler_timeout_ns : 0;
}

/* Of the words of text the one with this key, or NULL. */
static const char *word_of(const char *text, const char *key, size_t key_bytes)
{
	for (text += strspn(text, BLANKS); *text; text += strspn(text, BLANKS)) {
		if (strncmp(text, key, key_bytes) == 0 && text[key_bytes] == '=')
			return text;
		text += strcspn(text, BLANKS);
	}
	return NULL;
}

static enum shard_status differs(const char *mine, const char *mine_name, const char *theirs,
				 const char *theirs_name, char name[SETTINGS_KEY_BYTES],
				 struct err *e)
{
	size_t key = strcspn(mine, "= ") + 1;

	if (name != NULL)
		snprintf(name, SETTINGS_KEY_BYTES, "%.*s", (int)key - 1, mine);

	return err_set(e, SHARD_MISMATCH, "setting %.*s: %.*s %s, %.*s %s", (int)key - 1, mine,
		       (int)strcspn(mine + key, " "), mine + key, mine_name,
		       (int)strcspn(theirs + key, " "), theirs + key, theirs_name);
}

/* beta1 and beta2 may be written as one. */
static bool is_written(const char *written, const char *key, size_t key_bytes)
{
	bool beta = key_bytes == strlen("beta1") && memcmp(key, "beta", 4) == 0;

	return word_of(written, key, key_bytes) || (beta && word_of(written, "betas", 5));
}

enum shard_status settings_compare(const char *mine, const char *mine_name, const char *theirs,
				   const char *theirs_name, const char *written,
				   char name[SETTINGS_KEY_BYTES], struct err *e)
{
	CHECK(mine && theirs && written);
	if (name != NULL)
		name[0] = 0;
	for (const char *at = mine; *at; at += strcspn(at, " "), at += *at == ' ') {
		size_t key = strcspn(at, "= "), n = strcspn(at, " ");
		const char *is = word_of(theirs, at, key);

		if (is && !is_saving(at) && is_written(written, at, key) &&
		    (strcspn(is, " ") != n || memcmp(at, is, n) != 0))
			return differs(at, mine_name, is, theirs_name, name, e);
	}
	while (mine = skip_saving(mine), theirs = skip_saving(theirs), *mine || *theirs) {
		size_t a = strcspn(mine, " "), b = strcspn(theirs, " ");
		size_t key_a = strcspn(mine, "= "), key_b = strcspn(theirs, "= ");

		if (a == b && memcmp(mine, theirs, a) == 0) {
			mine += a + (mine[a] == ' ');
			theirs += b + (theirs[b] == ' ');
			continue;
		}
		if (key_a == key_b && memcmp(mine, theirs, key_a) == 0)
			return differs(mine, mine_name, theirs, theirs_name, name, e);
		return err_set(e, SHARD_MISMATCH, "settings: %.*s %s, %.*s %s", (int)a,
			       a ? mine : "", mine_name, (int)b, b ? theirs : "", theirs_name);
	}
	return SHARD_OK;
}

void settings_help(FILE *out)
{
	fprintf(out, "[model], [model \"name\"], [model \"name\" group \"group\"], a trainer's "
		     "settings\n");
	table_help(settings_table(), out);
}
