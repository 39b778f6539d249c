/* SPDX-License-Identifier: Apache-2.0 */
/* Merges layers of settings into one model's effective settings and writes them in their canonical form. The coordinator merges
 * (file, then trainer) when a model is defined; other nodes parse the canonical string that it sends. Each value is checked where it
 * stands, so that an error names its origin; what values must fulfil together is checked at the end. A hyper-parameter that an earlier
 * layer set for another optimizer is forgotten with that optimizer. Fails: SHARD_BAD_ARG, SHARD_DENIED (pinned). */
#include "settings.h"

#include "base/check.h"
#include "settings_keys.h"
#include "value.h"

#include <math.h>
#include <string.h>

#define BLANKS " \t\r\n"

struct entry {
	const char *origin; /* NULL: not set */
	uint32_t layer;
	char text[SETTINGS_VALUE_BYTES];
	struct settings_value value;
};

struct merge {
	struct entry entry[1 + SETTINGS_GROUPS_MAX][KEY_NR]; /* [0]: the model, [1 + g]: its groups */
	const char *const *groups;
	uint32_t groups_nr;
	const struct settings_layer *layer;
	const char *origin; /* of the word in hand */
	uint32_t layer_nr;  /* of the layer in hand */
};

static enum shard_status say(enum shard_status st, const char *origin, const struct err *why, struct err *e)
{
	return err_set(e, st, "%.150s: %.350s", origin, why->text);
}

static enum shard_status find_group(const struct merge *m, const char *name, uint32_t *place, struct err *e)
{
	for (uint32_t g = 0; g < m->groups_nr; g++) {
		if (strcmp(m->groups[g], name) == 0) {
			*place = 1 + g;
			return SHARD_OK;
		}
	}
	return err_set(e, SHARD_BAD_ARG, "group \"%.64s\": the model has no such group", name);
}

static bool is_pinned(const struct merge *m, const char *key)
{
	const char *at = m->entry[0][KEY_PINNED].text;
	size_t n = strlen(key);

	if (!m->entry[0][KEY_PINNED].origin)
		return false;
	while (*at) {
		size_t word = strcspn(at, ",");

		if (word == n && strncmp(at, key, n) == 0)
			return true;
		at += word + (at[word] == ',');
	}
	return false;
}

/* Where and how often a model is saved is its daemons' business: no trainer is refused for it, and a restored model does not bring it. */
static bool is_keeping(const char *key, size_t n)
{
	static const char *const keys[] = {"checkpoint_dir", "checkpoint_every", "keep_latest", "restore_at_start"};

	for (size_t i = 0; i < NR(keys); i++)
		if (strlen(keys[i]) == n && memcmp(keys[i], key, n) == 0)
			return true;
	return false;
}

static enum shard_status put_one(struct merge *m, uint32_t place, enum settings_key key, const char *text,
				 const struct settings_value *value, struct err *e)
{
	struct entry *entry = &m->entry[place][key];
	const struct settings_row *row = settings_row(key);
	bool beta = key == KEY_BETA1 || key == KEY_BETA2;

	if (entry->origin && entry->layer == m->layer_nr)
		return err_set(e, SHARD_BAD_ARG, "%s = %.64s: %s is there twice", row->name, text, row->name);
	if (m->layer->yields && (is_pinned(m, row->name) || (beta && is_pinned(m, "betas")) ||
				 (entry->origin && is_keeping(row->name, strlen(row->name)))))
		return SHARD_OK;
	if (m->layer->trainer && (is_pinned(m, row->name) || (beta && is_pinned(m, "betas"))))
		return err_set(e, SHARD_DENIED, "%s = %.64s: %s pins this key%s%s", row->name, text, m->entry[0][KEY_PINNED].origin,
			       entry->origin ? " to " : "", entry->origin ? entry->text : "");
	if (m->layer->trainer && key == KEY_PINNED)
		return err_set(e, SHARD_DENIED, "pinned: only a configuration file may set it");
	entry->origin = m->origin;
	entry->layer = m->layer_nr;
	entry->value = *value;
	snprintf(entry->text, sizeof(entry->text), "%s", text);
	return SHARD_OK;
}

static enum shard_status put(struct merge *m, uint32_t place, const char *name, const char *text, struct err *e)
{
	enum settings_key key = settings_find(name, place > 0, e);
	struct settings_value value;
	char half[VALUE_TEXT_BYTES];
	enum shard_status st;

	if (key == KEY_NR)
		return SHARD_BAD_ARG;
	if ((st = settings_value(key, text, &value, e)) != SHARD_OK)
		return st;
	if (key != KEY_BETAS)
		return put_one(m, place, key, text, &value, e);
	value_double_text(half, value.number);
	if ((st = put_one(m, place, KEY_BETA1, half, &value, e)) != SHARD_OK)
		return st;
	value.number = value.second;
	value_double_text(half, value.number);
	return put_one(m, place, KEY_BETA2, half, &value, e);
}

/* One "key=value" or "group/key=value". */
static enum shard_status put_word(struct merge *m, uint32_t place, const char *word, size_t n, struct err *e)
{
	char copy[2 * SETTINGS_VALUE_BYTES], *equals, *slash, *name = copy;
	enum shard_status st;

	if (n >= sizeof(copy))
		return err_set(e, SHARD_BAD_ARG, "%.32s...: too long", word);
	memcpy(copy, word, n);
	copy[n] = 0;
	equals = strchr(copy, '=');
	if (!equals || equals == copy)
		return err_set(e, SHARD_BAD_ARG, "%.64s: write key=value, separated by blanks", copy);
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

static enum shard_status merge_layer(struct merge *m, const struct settings_layer *layer, struct err *e)
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

static const struct entry *set(const struct merge *m, enum settings_key key)
{
	return m->entry[0][key].origin ? &m->entry[0][key] : NULL;
}

static uint64_t whole(const struct merge *m, enum settings_key key, uint64_t fallback)
{
	return set(m, key) ? set(m, key)->value.whole : fallback;
}

/* Group 0's array holds the model's own values until take_hyper() is called for it. */
static enum shard_status take_hyper(const struct merge *m, uint32_t place, uint32_t optim_layer, const struct optim_row *optim,
				    double *h, struct err *e)
{
	enum shard_status st;
	struct err why;

	for (int i = 0; i < KEY_NR; i++) {
		const struct settings_row *row = settings_row((enum settings_key)i);
		const struct entry *entry = &m->entry[place][i];

		if (row->type != TYPE_HYPER || !entry->origin)
			continue;
		if (!optim->hyper[row->hyper].name && entry->layer < optim_layer)
			continue; /* meant for the optimizer that this layer's replaced */
		st = settings_hyper(optim, (enum settings_key)i, entry->text, entry->value.number, &why);
		if (st != SHARD_OK)
			return say(st, entry->origin, &why, e);
		h[row->hyper] = entry->value.number;
	}
	return SHARD_OK;
}

static enum shard_status make_groups(struct model_settings *s, const struct merge *m, struct err *e)
{
	const struct entry *optim = set(m, KEY_OPTIMIZER);
	uint32_t layer = optim ? optim->layer : 0;
	double model[HYPER_NR];
	enum shard_status st;
	struct err why;

	s->optim = optim ? optim->value.optim : optim_row(OPTIM_ADAMW);
	s->groups_nr = m->groups_nr ? m->groups_nr : 1;
	s->named_groups = m->groups_nr > 0;
	optim_defaults(s->optim, model);
	if ((st = take_hyper(m, 0, layer, s->optim, model, e)) != SHARD_OK)
		return st;
	for (uint32_t g = 0; g < s->groups_nr; g++) {
		const struct entry *factor = &m->entry[1 + g][KEY_LR_FACTOR];

		memcpy(s->hyper[g], model, sizeof(model));
		if (m->groups_nr && (st = take_hyper(m, 1 + g, layer, s->optim, s->hyper[g], e)) != SHARD_OK)
			return st;
		s->lr_factor[g] = factor->origin ? factor->value.number : 1;
		s->hyper[g][HYPER_LR] *= s->lr_factor[g];
		if ((st = optim_hyper_check(s->optim, s->hyper[g], &why)) != SHARD_OK)
			return say(st, m->groups_nr ? m->groups[g] : "settings", &why, e);
	}
	s->lr = model[HYPER_LR];
	return SHARD_OK;
}

/* A parameter that somebody set: is it one of this schedule? */
static enum shard_status check_param(const struct merge *m, const struct schedule_row *row, enum schedule_param param,
				     struct err *e)
{
	enum settings_key key = settings_param_key(param);
	const struct entry *entry = set(m, key), *schedule = set(m, KEY_SCHEDULE);
	char has[256] = "";
	size_t used = 0;

	if (!entry || row->param[param].from != SCHEDULE_ABSENT || (schedule && entry->layer < schedule->layer))
		return SHARD_OK; /* or meant for the schedule that a later layer replaced */
	if (schedule_row_id(row) == SCHEDULE_NONE)
		return err_set(e, SHARD_BAD_ARG, "%s: %s = %.64s: there is no schedule: set schedule too", entry->origin,
			       settings_row(key)->name, entry->text);
	for (int p = 0; p < SCHEDULE_PARAM_NR && used < sizeof(has); p++)
		if (row->param[p].from != SCHEDULE_ABSENT)
			used += (size_t)snprintf(has + used, sizeof(has) - used, "%s%s", used ? ", " : "",
						 settings_row(settings_param_key((enum schedule_param)p))->name);
	return err_set(e, SHARD_BAD_ARG, "%s: %s = %.64s: schedule %s has no such key: it has %.160s", entry->origin,
		       settings_row(key)->name, entry->text, row->name, has);
}

static double param_value(const struct merge *m, enum schedule_param param)
{
	const struct settings_value *v = &set(m, settings_param_key(param))->value;

	return settings_row(settings_param_key(param))->type == TYPE_NUMBER ? v->number : (double)v->whole;
}

static enum shard_status make_params(struct model_settings *s, const struct merge *m, const struct schedule_row *row, struct err *e)
{
	struct schedule_conf *c = &s->schedule;
	enum shard_status st;

	for (int i = 0; i < SCHEDULE_PARAM_NR; i++) {
		const struct schedule_default *d = &row->param[i];
		enum schedule_param p = (enum schedule_param)i;

		if ((st = check_param(m, row, p, e)) != SHARD_OK)
			return st;
		if (d->from == SCHEDULE_ABSENT)
			continue;
		if (set(m, settings_param_key(p)))
			c->param[p] = param_value(m, p);
		else if (d->from == SCHEDULE_REQUIRED)
			return err_set(e, SHARD_BAD_ARG, "%s: schedule = %s needs %s, which has no default: set it",
				       set(m, KEY_SCHEDULE)->origin, row->name, settings_row(settings_param_key(p))->name);
		else if (d->from == SCHEDULE_AS_LR)
			c->param[p] = s->lr;
		else
			c->param[p] =
				d->from == SCHEDULE_AS_PARAM ? c->param[d->as] : d->value; /* whose number is lower: it is there */
	}
	return SHARD_OK;
}

/* What the parameters must fulfil together. */
static enum shard_status make_schedule(struct model_settings *s, const struct merge *m, struct err *e)
{
	const struct entry *entry = set(m, KEY_SCHEDULE), *cycles = set(m, KEY_CYCLE_MOMENTUM);
	const struct schedule_row *row = entry ? entry->value.schedule : schedule_row(SCHEDULE_NONE);
	bool moves = s->optim->hyper[HYPER_BETA1].name || s->optim->hyper[HYPER_MOMENTUM].name;
	double *p = s->schedule.param;
	enum shard_status st;

	s->schedule.id = schedule_row_id(row);
	s->schedule.lr = s->lr;
	if ((st = make_params(s, m, row, e)) != SHARD_OK)
		return st;
	if (row->param[SCHEDULE_TOTAL_NUM_STEPS].from != SCHEDULE_ABSENT &&
	    p[SCHEDULE_TOTAL_NUM_STEPS] < p[SCHEDULE_WARMUP_NUM_STEPS])
		return err_set(e, SHARD_BAD_ARG, "%s: total_num_steps = %.0f is below warmup_num_steps = %.0f (%s): lower it",
			       entry->origin, p[SCHEDULE_TOTAL_NUM_STEPS], p[SCHEDULE_WARMUP_NUM_STEPS],
			       set(m, KEY_WARMUP_NUM_STEPS) ? set(m, KEY_WARMUP_NUM_STEPS)->origin : "default");
	if ((p[SCHEDULE_DECAY_LR_RATE] > 0 || p[SCHEDULE_DECAY_MOM_RATE] > 0) && p[SCHEDULE_DECAY_STEP_SIZE] == 0)
		return err_set(e, SHARD_BAD_ARG, "%s: %s has no effect while decay_step_size is 0: set decay_step_size",
			       entry->origin, p[SCHEDULE_DECAY_LR_RATE] > 0 ? "decay_lr_rate" : "decay_mom_rate");
	if (p[SCHEDULE_CYCLE_MOMENTUM] != 0 && !moves && cycles)
		return err_set(e, SHARD_BAD_ARG, "%s: cycle_momentum = %s: optimizer %s has neither beta1 nor momentum: choose no",
			       cycles->origin, cycles->text, s->optim->name);
	if (!moves)
		p[SCHEDULE_CYCLE_MOMENTUM] = 0;
	return SHARD_OK;
}

static enum shard_status make_scale(struct model_settings *s, const struct merge *m, enum shard_dtype grad, struct err *e)
{
	const struct entry *scale = set(m, KEY_LOSS_SCALE), *floor_ = set(m, KEY_MIN_LOSS_SCALE);

	s->dynamic_scale = scale ? scale->value.number == 0 : grad == SHARD_F16;
	s->initial_scale = s->dynamic_scale ? ldexp(1, (int)whole(m, KEY_INITIAL_SCALE_POWER, 16))
			   : scale          ? scale->value.number
					    : 1;
	s->min_scale = floor_ ? floor_->value.number : 1;
	s->scale_window = (uint32_t)whole(m, KEY_LOSS_SCALE_WINDOW, 1000);
	s->hysteresis = (uint32_t)whole(m, KEY_HYSTERESIS, 2);
	s->consecutive_hysteresis = whole(m, KEY_CONSECUTIVE_HYSTERESIS, 0) != 0;
	if (s->dynamic_scale && s->initial_scale < s->min_scale)
		return err_set(e, SHARD_BAD_ARG, "%s: min_loss_scale = %g is above 2^initial_scale_power = %g: lower it",
			       floor_ ? floor_->origin : "settings", s->min_scale, s->initial_scale);
	return SHARD_OK;
}

static enum shard_status make_world(struct model_settings *s, const struct merge *m, struct err *e)
{
	const struct entry *min = set(m, KEY_MIN_WORLD), *max = set(m, KEY_MAX_WORLD), *local = set(m, KEY_LOCAL_WORLD);

	s->min_world = min ? (uint32_t)min->value.whole : 1;
	s->max_world = max ? (uint32_t)max->value.whole : s->min_world;
	s->local_world = local ? (uint32_t)local->value.whole : s->max_world;
	if (s->min_world > s->max_world)
		return err_set(e, SHARD_BAD_ARG, "min_world = %u (%s) is above max_world = %u (%s): raise max_world", s->min_world,
			       min ? min->origin : "default", s->max_world, max ? max->origin : "default");
	if (s->local_world > s->max_world)
		return err_set(e, SHARD_BAD_ARG, "local_world = %u (%s) is above max_world = %u (%s): lower it", s->local_world,
			       local ? local->origin : "default", s->max_world, max ? max->origin : "default");
	return SHARD_OK;
}

static enum shard_status make_checkpoints(struct model_settings *s, const struct merge *m, struct err *e)
{
	const struct entry *dir = set(m, KEY_CHECKPOINT_DIR), *every = set(m, KEY_CHECKPOINT_EVERY);

	s->checkpoint_every = whole(m, KEY_CHECKPOINT_EVERY, 0);
	s->keep_latest = (uint32_t)whole(m, KEY_KEEP_LATEST, 0);
	s->restore_at_start = whole(m, KEY_RESTORE_AT_START, 0) != 0;
	if (dir && strcmp(dir->text, "none") != 0)
		snprintf(s->checkpoint_dir, sizeof(s->checkpoint_dir), "%s", dir->text);
	if (s->checkpoint_dir[0] || (!s->checkpoint_every && !s->restore_at_start))
		return SHARD_OK;
	if (!s->checkpoint_every)
		every = set(m, KEY_RESTORE_AT_START);
	return err_set(e, SHARD_BAD_ARG, "%s: %s = %s needs checkpoint_dir: set it to a folder that all nodes share", every->origin,
		       s->checkpoint_every ? "checkpoint_every" : "restore_at_start", every->text);
}

static enum shard_status make(struct model_settings *s, const struct merge *m, enum shard_dtype grad, struct err *e)
{
	enum shard_status st;

	s->clip = set(m, KEY_CLIP) ? set(m, KEY_CLIP)->value.number : 0;
	s->max_skips = (uint32_t)whole(m, KEY_MAX_SKIPS, 20);
	s->pause_on_nonfinite = whole(m, KEY_NONFINITE, 0) != 0;
	s->chunk_elems = (uint32_t)whole(m, KEY_CHUNK_ELEMS, 1u << 20);
	s->timeout_ns = whole(m, KEY_TIMEOUT, 300000000000ull);
	s->predivide = set(m, KEY_PREDIVIDE) ? set(m, KEY_PREDIVIDE)->value.number : 1;
	s->max_staleness = (uint32_t)whole(m, KEY_MAX_STALENESS, 0);
	s->mode = (uint32_t)whole(m, KEY_MODE, 0666);
	if ((st = make_groups(s, m, e)) != SHARD_OK || (st = make_schedule(s, m, e)) != SHARD_OK ||
	    (st = make_scale(s, m, grad, e)) != SHARD_OK || (st = make_checkpoints(s, m, e)) != SHARD_OK)
		return st;
	return make_world(s, m, e);
}

enum shard_status settings_make(struct model_settings *s, const struct settings_layer *layers, uint32_t layers_nr,
				const char *const *groups, uint32_t groups_nr, enum shard_dtype grad, struct err *e)
{
	struct merge m = {.groups = groups, .groups_nr = groups_nr};
	enum shard_status st;

	CHECK(dtype_ok(grad));
	*s = (struct model_settings){.groups_nr = 1};
	if (groups_nr > SETTINGS_GROUPS_MAX)
		return err_set(e, SHARD_BAD_ARG, "%u groups: at most %d are possible", groups_nr, SETTINGS_GROUPS_MAX);
	for (uint32_t g = 0; g < groups_nr; g++)
		if (!groups[g] || !value_name(groups[g]))
			return err_set(e, SHARD_BAD_ARG, "group %u: a name has 1 to 64 of a-z 0-9 . _ -", g);
	for (uint32_t g = 1; g < groups_nr; g++)
		for (uint32_t i = 0; i < g; i++)
			if (strcmp(groups[g], groups[i]) == 0)
				return err_set(e, SHARD_BAD_ARG, "group \"%s\" is there twice, as %u and as %u", groups[g], i, g);
	for (m.layer_nr = 0; m.layer_nr < layers_nr; m.layer_nr++)
		if ((st = merge_layer(&m, &layers[m.layer_nr], e)) != SHARD_OK)
			return st;
	return make(s, &m, grad, e);
}

enum shard_status settings_check(const char *key, const char *text, bool group, struct err *e)
{
	enum settings_key k = settings_find(key, group, e);
	struct settings_value value;

	if (k == KEY_NR)
		return SHARD_BAD_ARG;
	return settings_value(k, text, &value, e);
}

static const char *skip_keeping(const char *text)
{
	while (*text && is_keeping(text, strcspn(text, "= "))) {
		text += strcspn(text, " ");
		text += *text == ' ';
	}
	return text;
}

enum shard_status settings_compare(const char *mine, const char *mine_name, const char *theirs, const char *theirs_name,
				   struct err *e)
{
	while (mine = skip_keeping(mine), theirs = skip_keeping(theirs), *mine || *theirs) {
		size_t a = strcspn(mine, " "), b = strcspn(theirs, " ");
		size_t key_a = strcspn(mine, "= "), key_b = strcspn(theirs, "= ");

		if (a == b && memcmp(mine, theirs, a) == 0) {
			mine += a + (mine[a] == ' ');
			theirs += b + (theirs[b] == ' ');
			continue;
		}
		if (key_a == key_b && memcmp(mine, theirs, key_a) == 0)
			return err_set(e, SHARD_MISMATCH, "setting %.*s: %.*s %s, %.*s %s", (int)key_a, mine, (int)(a - key_a - 1),
				       mine + key_a + 1, mine_name, (int)(b - key_b - 1), theirs + key_b + 1, theirs_name);
		return err_set(e, SHARD_MISMATCH, "settings: %.*s %s, %.*s %s", (int)a, a ? mine : "", mine_name, (int)b,
			       b ? theirs : "", theirs_name);
	}
	return SHARD_OK;
}

void settings_help(FILE *out)
{
	fprintf(out, "[model], [model \"name\"], [model \"name\" group \"group\"], a trainer's settings\n");
	for (int i = 0; i < KEY_NR; i++) {
		const struct settings_row *row = settings_row((enum settings_key)i);
		const char *group = !row->in_group ? "" : row->in_model ? "; of a group too" : "; of a group only";
		char text[256];

		snprintf(text, sizeof(text), "%s%s%s%s%s", row->help, group, row->fallback[0] ? " (default: " : "", row->fallback,
			 row->fallback[0] ? ")" : "");
		value_help(out, row->name, text);
	}
}
