/* SPDX-License-Identifier: Apache-2.0 */
/* The keys of a model's settings as rows, and the meaning of one value. Called by settings.c, which merges layers, and through
 * settings_check() by config.c for each line of a file. Whatever is wrong with a value is SHARD_BAD_ARG with what may be chosen. */
#include "settings_keys.h"

#include "base/check.h"
#include "settings.h"
#include "value.h"

#include <stdio.h>
#include <string.h>

#define BIG 1e30

static const struct settings_row rows[KEY_NR] = {
	/*                              name, type, min, max, min excluded, in model, in group, hyper, default, help */
	[KEY_OPTIMIZER] = {"optimizer", TYPE_OPTIMIZER, 0, 0, false, true, false, HYPER_NR, "adamw",
			   "adamw, adam, sgd, adagrad or lion"},
	[KEY_BETA1] = {"beta1", TYPE_HYPER, 0, 0, false, true, true, HYPER_BETA1, "optimizer's", "decay of the first moment"},
	[KEY_BETA2] = {"beta2", TYPE_HYPER, 0, 0, false, true, true, HYPER_BETA2, "optimizer's", "decay of the second moment"},
	[KEY_CHECKPOINT_DIR] = {"checkpoint_dir", TYPE_PATH, 0, 0, false, true, false, HYPER_NR, "none",
				"folder that all nodes share; each model has its own in it"},
	[KEY_CHECKPOINT_EVERY] = {"checkpoint_every", TYPE_COUNT, 0, 1e12, false, true, false, HYPER_NR, "0",
				  "steps between checkpoints in checkpoint_dir; 0: only when asked"},
	[KEY_CHUNK_ELEMS] = {"chunk_elems", TYPE_COUNT, SETTINGS_CHUNK_ELEMS_MIN, SETTINGS_CHUNK_ELEMS_MAX, false, true, false,
			     HYPER_NR, "1Mi", "elements of a chunk, a power of two"},
	[KEY_CLIP] = {"clip", TYPE_NUMBER, 0, BIG, false, true, false, HYPER_NR, "0",
		      "largest global gradient norm; 0: no clipping"},
	[KEY_CONSECUTIVE_HYSTERESIS] = {"consecutive_hysteresis", TYPE_BOOL, 0, 0, false, true, false, HYPER_NR, "no",
					"each good step refills the hysteresis"},
	[KEY_COS_MIN_RATIO] = {"cos_min_ratio", TYPE_NUMBER, 0, 1, false, true, false, HYPER_NR, "0.0001",
			       "of WarmupCosineLR: where it ends, as a part of lr"},
	[KEY_CYCLE_FIRST_STAIR_COUNT] = {"cycle_first_stair_count", TYPE_COUNT, 0, 1e9, false, true, false, HYPER_NR, "0",
					 "of OneCycle: stairs of the first half; 0: a slope"},
	[KEY_CYCLE_FIRST_STEP_SIZE] = {"cycle_first_step_size", TYPE_COUNT, 1, 1e12, false, true, false, HYPER_NR, "2000",
				       "of OneCycle: steps of the first half"},
	[KEY_CYCLE_MAX_LR] = {"cycle_max_lr", TYPE_NUMBER, 0, BIG, false, true, false, HYPER_NR, "none: OneCycle needs it",
			      "of OneCycle: learning rate in the middle"},
	[KEY_CYCLE_MAX_MOM] = {"cycle_max_mom", TYPE_NUMBER, 0, 0.999999, false, true, false, HYPER_NR, "0.9",
			       "of OneCycle: momentum at both ends"},
	[KEY_CYCLE_MIN_LR] = {"cycle_min_lr", TYPE_NUMBER, 0, BIG, false, true, false, HYPER_NR, "none: OneCycle needs it",
			      "of OneCycle: learning rate at both ends"},
	[KEY_CYCLE_MIN_MOM] = {"cycle_min_mom", TYPE_NUMBER, 0, 0.999999, false, true, false, HYPER_NR, "0.8",
			       "of OneCycle: momentum in the middle, and of the first step"},
	[KEY_CYCLE_MOMENTUM] = {"cycle_momentum", TYPE_BOOL, 0, 0, false, true, false, HYPER_NR, "yes",
				"of OneCycle: beta1 (sgd: momentum) of all groups moves against lr"},
	[KEY_CYCLE_SECOND_STAIR_COUNT] = {"cycle_second_stair_count", TYPE_COUNT, 0, 1e9, false, true, false, HYPER_NR,
					  "cycle_first_stair_count", "of OneCycle: stairs of the second half"},
	[KEY_CYCLE_SECOND_STEP_SIZE] = {"cycle_second_step_size", TYPE_COUNT, 0, 1e12, false, true, false, HYPER_NR,
					"cycle_first_step_size", "of OneCycle: steps of the second half"},
	[KEY_DECAY_LR_RATE] = {"decay_lr_rate", TYPE_NUMBER, 0, BIG, false, true, false, HYPER_NR, "0",
			       "of OneCycle: lr falls by 1 / (1 + this) per interval after the cycle"},
	[KEY_DECAY_MOM_RATE] = {"decay_mom_rate", TYPE_NUMBER, 0, BIG, false, true, false, HYPER_NR, "0",
				"of OneCycle: momentum grows by 1 + this per interval after the cycle"},
	[KEY_DECAY_STEP_SIZE] = {"decay_step_size", TYPE_COUNT, 0, 1e12, false, true, false, HYPER_NR, "0",
				 "of OneCycle: steps of an interval after the cycle; 0: no decay"},
	[KEY_EPS] = {"eps", TYPE_HYPER, 0, 0, false, true, true, HYPER_EPS, "optimizer's", "added to the denominator"},
	[KEY_HYSTERESIS] = {"hysteresis", TYPE_COUNT, 1, 1e6, false, true, false, HYPER_NR, "2",
			    "overflows before the loss scale falls"},
	[KEY_INITIAL_SCALE_POWER] = {"initial_scale_power", TYPE_COUNT, 0, 100, false, true, false, HYPER_NR, "16",
				     "a dynamic loss scale starts at 2^this"},
	[KEY_KEEP_LATEST] = {"keep_latest", TYPE_COUNT, 0, 1e6, false, true, false, HYPER_NR, "0",
			     "checkpoints that checkpoint_every leaves, the oldest go; 0: all"},
	[KEY_LOCAL_WORLD] = {"local_world", TYPE_COUNT, 1, 256, false, true, false, HYPER_NR, "max_world",
			     "most trainers on one node"},
	[KEY_LOSS_SCALE] = {"loss_scale", TYPE_SCALE, 0, BIG, false, true, false, HYPER_NR, "dynamic for fp16, else 1",
			    "dynamic (or 0), or a number that stays"},
	[KEY_LOSS_SCALE_WINDOW] = {"loss_scale_window", TYPE_COUNT, 1, 1e9, false, true, false, HYPER_NR, "1000",
				   "good steps before a dynamic scale doubles"},
	[KEY_LR] = {"lr", TYPE_HYPER, 0, 0, false, true, false, HYPER_LR, "optimizer's", "learning rate"},
	[KEY_LR_FACTOR] = {"lr_factor", TYPE_NUMBER, 0, BIG, false, false, true, HYPER_NR, "1", "a group's part of lr"},
	[KEY_LR_RANGE_TEST_MIN_LR] = {"lr_range_test_min_lr", TYPE_NUMBER, 0, BIG, false, true, false, HYPER_NR, "0.001",
				      "of LRRangeTest: where it starts"},
	[KEY_LR_RANGE_TEST_STAIRCASE] = {"lr_range_test_staircase", TYPE_BOOL, 0, 0, false, true, false, HYPER_NR, "no",
					 "of LRRangeTest: a stair per interval"},
	[KEY_LR_RANGE_TEST_STEP_RATE] = {"lr_range_test_step_rate", TYPE_NUMBER, 0, BIG, false, true, false, HYPER_NR, "1",
					 "of LRRangeTest: growth per interval"},
	[KEY_LR_RANGE_TEST_STEP_SIZE] = {"lr_range_test_step_size", TYPE_COUNT, 1, 1e12, false, true, false, HYPER_NR, "2000",
					 "of LRRangeTest: steps of an interval"},
	[KEY_MAX_SKIPS] = {"max_skips", TYPE_COUNT, 0, 1e9, false, true, false, HYPER_NR, "20",
			   "skipped steps in a row before the model is paused; 0: no limit"},
	[KEY_MAX_STALENESS] = {"max_staleness", TYPE_COUNT, 0, 1, false, true, false, HYPER_NR, "0",
			       "1: a step is computed on the weights of two steps before it, while the one before is decided"},
	[KEY_MAX_WORLD] = {"max_world", TYPE_COUNT, 1, 256, false, true, false, HYPER_NR, "min_world", "most trainers"},
	[KEY_MIN_LOSS_SCALE] = {"min_loss_scale", TYPE_NUMBER, 0, BIG, true, true, false, HYPER_NR, "1",
				"floor of a dynamic loss scale"},
	[KEY_MIN_WORLD] = {"min_world", TYPE_COUNT, 1, 256, false, true, false, HYPER_NR, "1", "a step waits for so many trainers"},
	[KEY_MODE] = {"mode", TYPE_OCTAL, 0, 0777, false, true, false, HYPER_NR, "0666",
		      "who may read (4) and train or change (2) the model: owner, group, others"},
	[KEY_MOMENTUM] = {"momentum", TYPE_HYPER, 0, 0, false, true, true, HYPER_MOMENTUM, "optimizer's", "of sgd"},
	[KEY_NESTEROV] = {"nesterov", TYPE_HYPER, 0, 0, false, true, true, HYPER_NESTEROV, "no", "of sgd, with momentum"},
	[KEY_NONFINITE] = {"nonfinite", TYPE_NONFINITE, 0, 0, false, true, false, HYPER_NR, "skip",
			   "skip or pause: what a gradient with Inf or NaN does to its step"},
	[KEY_PINNED] = {"pinned", TYPE_KEYS, 0, 0, false, true, false, HYPER_NR, "", "keys that a trainer may not set"},
	[KEY_PREDIVIDE] = {"predivide", TYPE_NUMBER, 1e-6, 1e6, true, true, false, HYPER_NR, "1",
			   "gradients are divided by it before they are summed, and the sum multiplied again"},
	[KEY_REPLICAS] = {"replicas", TYPE_COUNT, 1, 1, false, true, false, HYPER_NR, "1", "copies of each chunk; 1 for now"},
	[KEY_RESTORE_AT_START] = {"restore_at_start", TYPE_BOOL, 0, 0, false, true, false, HYPER_NR, "no",
				  "a model that is defined comes from its newest checkpoint in checkpoint_dir, if there is one"},
	[KEY_SCHEDULE] = {"schedule", TYPE_SCHEDULE, 0, 0, false, true, false, HYPER_NR, "none",
			  "none, LRRangeTest, OneCycle, WarmupLR, WarmupDecayLR or WarmupCosineLR, as in DeepSpeed"},
	[KEY_TIMEOUT] = {"timeout", TYPE_DURATION, 0, 0, false, true, false, HYPER_NR, "300s", "of a trainer's waiting calls"},
	[KEY_TOTAL_NUM_STEPS] = {"total_num_steps", TYPE_COUNT, 1, 1e12, false, true, false, HYPER_NR, "none: they need it",
				 "of WarmupDecayLR and WarmupCosineLR: steps until the end"},
	[KEY_WARMUP_MAX_LR] = {"warmup_max_lr", TYPE_NUMBER, 0, BIG, false, true, false, HYPER_NR,
			       "WarmupLR: lr; WarmupDecayLR: 0.001", "learning rate after the warm-up"},
	[KEY_WARMUP_MIN_LR] = {"warmup_min_lr", TYPE_NUMBER, 0, BIG, false, true, false, HYPER_NR, "0",
			       "of WarmupLR and WarmupDecayLR: where they start"},
	[KEY_WARMUP_MIN_RATIO] = {"warmup_min_ratio", TYPE_NUMBER, 0, 1, false, true, false, HYPER_NR, "0",
				  "of WarmupCosineLR: where it starts, as a part of lr"},
	[KEY_WARMUP_NUM_STEPS] = {"warmup_num_steps", TYPE_COUNT, 1, 1e12, false, true, false, HYPER_NR, "1000",
				  "steps of the warm-up, at least 2"},
	[KEY_WARMUP_TYPE] = {"warmup_type", TYPE_WARMUP, 0, 0, false, true, false, HYPER_NR, "log", "log or linear"},
	[KEY_WEIGHT_DECAY] = {"weight_decay", TYPE_HYPER, 0, 0, false, true, true, HYPER_WEIGHT_DECAY, "optimizer's", "per step"},
	[KEY_BETAS] = {"betas", TYPE_BETAS, 0, 1, false, true, true, HYPER_NR, "", "beta1,beta2 in one"},
};

static const enum settings_key param_keys[SCHEDULE_PARAM_NR] = {
	[SCHEDULE_COS_MIN_RATIO] = KEY_COS_MIN_RATIO,
	[SCHEDULE_CYCLE_FIRST_STAIR_COUNT] = KEY_CYCLE_FIRST_STAIR_COUNT,
	[SCHEDULE_CYCLE_FIRST_STEP_SIZE] = KEY_CYCLE_FIRST_STEP_SIZE,
	[SCHEDULE_CYCLE_MAX_LR] = KEY_CYCLE_MAX_LR,
	[SCHEDULE_CYCLE_MAX_MOM] = KEY_CYCLE_MAX_MOM,
	[SCHEDULE_CYCLE_MIN_LR] = KEY_CYCLE_MIN_LR,
	[SCHEDULE_CYCLE_MIN_MOM] = KEY_CYCLE_MIN_MOM,
	[SCHEDULE_CYCLE_MOMENTUM] = KEY_CYCLE_MOMENTUM,
	[SCHEDULE_CYCLE_SECOND_STAIR_COUNT] = KEY_CYCLE_SECOND_STAIR_COUNT,
	[SCHEDULE_CYCLE_SECOND_STEP_SIZE] = KEY_CYCLE_SECOND_STEP_SIZE,
	[SCHEDULE_DECAY_LR_RATE] = KEY_DECAY_LR_RATE,
	[SCHEDULE_DECAY_MOM_RATE] = KEY_DECAY_MOM_RATE,
	[SCHEDULE_DECAY_STEP_SIZE] = KEY_DECAY_STEP_SIZE,
	[SCHEDULE_LR_RANGE_TEST_MIN_LR] = KEY_LR_RANGE_TEST_MIN_LR,
	[SCHEDULE_LR_RANGE_TEST_STAIRCASE] = KEY_LR_RANGE_TEST_STAIRCASE,
	[SCHEDULE_LR_RANGE_TEST_STEP_RATE] = KEY_LR_RANGE_TEST_STEP_RATE,
	[SCHEDULE_LR_RANGE_TEST_STEP_SIZE] = KEY_LR_RANGE_TEST_STEP_SIZE,
	[SCHEDULE_TOTAL_NUM_STEPS] = KEY_TOTAL_NUM_STEPS,
	[SCHEDULE_WARMUP_MAX_LR] = KEY_WARMUP_MAX_LR,
	[SCHEDULE_WARMUP_MIN_LR] = KEY_WARMUP_MIN_LR,
	[SCHEDULE_WARMUP_MIN_RATIO] = KEY_WARMUP_MIN_RATIO,
	[SCHEDULE_WARMUP_NUM_STEPS] = KEY_WARMUP_NUM_STEPS,
	[SCHEDULE_WARMUP_TYPE] = KEY_WARMUP_TYPE,
};

const struct settings_row *settings_row(enum settings_key key)
{
	CHECK((unsigned)key < KEY_NR);
	return &rows[key];
}

enum settings_key settings_param_key(enum schedule_param param)
{
	CHECK((unsigned)param < SCHEDULE_PARAM_NR);
	return param_keys[param];
}

enum schedule_param settings_key_param(enum settings_key key)
{
	int p = 0;

	while (p < SCHEDULE_PARAM_NR && param_keys[p] != key)
		p++;
	return (enum schedule_param)p;
}

static bool fits(const struct settings_row *row, bool group)
{
	return group ? row->in_group : row->in_model;
}

static const char *candidate(void *arg, uint32_t i)
{
	(void)arg;
	return i < KEY_NR ? rows[i].name : NULL;
}

enum settings_key settings_find(const char *name, bool group, struct err *e)
{
	const char *near;

	for (int i = 0; i < KEY_NR; i++) {
		if (strcmp(rows[i].name, name) != 0)
			continue;
		if (fits(&rows[i], group))
			return (enum settings_key)i;
		err_set(e, SHARD_BAD_ARG,
			group ? "%s: only for a whole model: a group has lr_factor, betas, eps, weight_decay, momentum"
			      : "%s: only for a group of a model",
			name);
		return KEY_NR;
	}
	near = value_nearest(name, candidate, NULL);
	if (near)
		err_set(e, SHARD_BAD_ARG, "%.64s: unknown key: did you mean %s?", name, near);
	else
		err_set(e, SHARD_BAD_ARG, "%.64s: unknown key: `shardd --help` lists them", name);
	return KEY_NR;
}

static enum shard_status wrong(const struct settings_row *row, const char *text, const char *choose, struct err *e)
{
	return err_set(e, SHARD_BAD_ARG, "%s = %.64s: %s", row->name, text, choose);
}

static enum shard_status number(const struct settings_row *row, const char *text, struct settings_value *v, struct err *e)
{
	char choose[96];

	if (value_double(text, &v->number) && v->number <= row->max && (row->above ? v->number > row->min : v->number >= row->min))
		return SHARD_OK;
	if (row->max < BIG)
		snprintf(choose, sizeof(choose), "choose a number from %g to %.6g", row->min, row->max);
	else
		snprintf(choose, sizeof(choose), "choose a number %s %g", row->above ? "above" : "of at least", row->min);
	return wrong(row, text, choose, e);
}

static enum shard_status count(const struct settings_row *row, enum settings_key key, const char *text, struct settings_value *v,
			       struct err *e)
{
	bool power = key == KEY_CHUNK_ELEMS;
	char choose[96];

	if (value_count(text, &v->whole) && (double)v->whole >= row->min && (double)v->whole <= row->max &&
	    !(power && (v->whole & (v->whole - 1))))
		return SHARD_OK;
	snprintf(choose, sizeof(choose), "choose %s from %.0f to %.0f", power ? "a power of two" : "a whole number", row->min,
		 row->max);
	return wrong(row, text, key == KEY_REPLICAS ? "only 1 in this release" : choose, e);
}

static enum shard_status betas(const struct settings_row *row, const char *text, struct settings_value *v, struct err *e)
{
	const char *comma = strchr(text, ',');
	char first[SETTINGS_VALUE_BYTES];

	if (comma && (size_t)(comma - text) < sizeof(first)) {
		memcpy(first, text, (size_t)(comma - text));
		first[comma - text] = 0;
		if (value_double(first, &v->number) && value_double(comma + 1, &v->second) && v->number >= 0 && v->number < 1 &&
		    v->second >= 0 && v->second < 1)
			return SHARD_OK;
	}
	return wrong(row, text, "choose two numbers of at least 0 and below 1, as in 0.9,0.95", e);
}

static enum shard_status keys(const struct settings_row *row, const char *text, struct err *e)
{
	while (*text) {
		size_t n = strcspn(text, ",");
		char name[SETTINGS_VALUE_BYTES], what[ERR_TEXT_BYTES];
		struct err why;

		if (n >= sizeof(name))
			return wrong(row, text, "a name is too long", e);
		memcpy(name, text, n);
		name[n] = 0;
		if (settings_find(name, false, &why) == KEY_NR && settings_find(name, true, NULL) == KEY_NR) {
			snprintf(what, sizeof(what), "%.400s", why.text);
			return wrong(row, name, what, e);
		}
		text += n + (text[n] == ',');
	}
	return SHARD_OK;
}

enum shard_status settings_value(enum settings_key key, const char *text, struct settings_value *v, struct err *e)
{
	const struct settings_row *row = settings_row(key);
	uint32_t permissions;
	bool b;

	*v = (struct settings_value){.number = 0};
	if (strlen(text) >= SETTINGS_VALUE_BYTES)
		return wrong(row, text, "too long", e);
	switch (row->type) {
	case TYPE_OPTIMIZER:
		v->optim = optim_find(text);
		return v->optim ? SHARD_OK : err_set(e, SHARD_BAD_ARG, "optimizer = %.64s: choose one of %s", text, optim_names());
	case TYPE_HYPER:
		if (row->hyper == HYPER_NESTEROV && value_bool(text, &b)) {
			v->number = b;
			return SHARD_OK;
		}
		return value_double(text, &v->number) ? SHARD_OK : wrong(row, text, "choose a number", e);
	case TYPE_BETAS:
		return betas(row, text, v, e);
	case TYPE_NUMBER:
		return number(row, text, v, e);
	case TYPE_COUNT:
		return count(row, key, text, v, e);
	case TYPE_BOOL:
		if (!value_bool(text, &b))
			return wrong(row, text, "choose yes or no", e);
		v->whole = b;
		return SHARD_OK;
	case TYPE_SCALE:
		if (strcmp(text, "dynamic") == 0 || (value_double(text, &v->number) && v->number >= 0 && v->number <= BIG))
			return SHARD_OK;
		return wrong(row, text, "choose dynamic, or a number above 0", e);
	case TYPE_NONFINITE:
		v->whole = strcmp(text, "pause") == 0;
		return v->whole || strcmp(text, "skip") == 0 ? SHARD_OK : wrong(row, text, "choose skip or pause", e);
	case TYPE_DURATION:
		if (value_duration(text, &v->whole) && v->whole >= 1000000 && v->whole <= 365ull * 24 * 3600 * 1000000000)
			return SHARD_OK;
		return wrong(row, text, "choose a time from 1ms to a year, with its unit, as in 300s", e);
	case TYPE_KEYS:
		return keys(row, text, e);
	case TYPE_SCHEDULE:
		v->schedule = schedule_find(text);
		return v->schedule ? SHARD_OK
				   : wrong(row, text,
					   "choose one of none, LRRangeTest, OneCycle, WarmupLR, WarmupDecayLR, WarmupCosineLR", e);
	case TYPE_WARMUP:
		v->whole = strcmp(text, "linear") == 0 ? SCHEDULE_LINEAR : SCHEDULE_LOG;
		return v->whole || strcmp(text, "log") == 0 ? SHARD_OK : wrong(row, text, "choose log or linear", e);
	case TYPE_PATH:
		return text[0] == '/' || strcmp(text, "none") == 0 ? SHARD_OK
								   : wrong(row, text, "choose an absolute path, or none", e);
	case TYPE_OCTAL:
		if (!value_octal(text, &permissions) || permissions > (uint32_t)row->max)
			return wrong(row, text, "choose octal permissions, as in 0660", e);
		v->whole = permissions;
		return SHARD_OK;
	}
	CHECK(!"a type without a case");
	return SHARD_BAD_ARG;
}

enum shard_status settings_hyper(const struct optim_row *optim, enum settings_key key, const char *text, double x, struct err *e)
{
	const struct settings_row *row = settings_row(key);
	const struct optim_range *r = &optim->hyper[row->hyper];
	char has[128] = "", choose[96];
	size_t used = 0;

	CHECK(row->type == TYPE_HYPER);
	if (!r->name) {
		for (int i = 0; i < HYPER_NR; i++)
			if (optim->hyper[i].name)
				used += (size_t)snprintf(has + used, sizeof(has) - used, "%s%s", used ? ", " : "",
							 optim->hyper[i].name);
		return err_set(e, SHARD_BAD_ARG, "%s = %.64s: optimizer %s has no such key: it has %s", row->name, text,
			       optim->name, has);
	}
	if (x >= r->min && (r->below_max ? x < r->max : x <= r->max) && (!r->whole || x == (double)(long)x))
		return SHARD_OK;
	if (r->max > BIG)
		snprintf(choose, sizeof(choose), "choose a number of at least %g", r->min);
	else
		snprintf(choose, sizeof(choose), "choose a number of at least %g and %s %g", r->min,
			 r->below_max ? "below" : "at most", r->max);
	return wrong(row, text, choose, e);
}
