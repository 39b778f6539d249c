/* SPDX-License-Identifier: Apache-2.0 */
/* The canonical string of a model's settings: every key with its effective value, the optimizer first, the others by name, then each
 * group's. Numbers are written so that they read back as the same bits. Called by the coordinator at definition and by whoever
 * compares two definitions. Cannot fail: SETTINGS_TEXT_BYTES covers sixteen groups with the longest names. */
#include "settings.h"

#include "base/check.h"
#include "settings_keys.h"
#include "value.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

struct out {
	char *text;
	size_t used;
};

__attribute__((format(printf, 2, 3))) static void put(struct out *o, const char *fmt, ...)
{
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(o->text + o->used, SETTINGS_TEXT_BYTES - o->used, fmt, ap);
	va_end(ap);
	CHECK(n >= 0 && (size_t)n < SETTINGS_TEXT_BYTES - o->used);
	o->used += (size_t)n;
}

static void put_double(struct out *o, const char *group, const char *name, double x)
{
	char text[VALUE_TEXT_BYTES];

	value_double_text(text, x);
	put(o, " %s%s%s=%s", group, group[0] ? "/" : "", name, text);
}

static void put_scale(struct out *o, const struct model_settings *s, enum settings_key key)
{
	int power;

	if (key == KEY_INITIAL_SCALE_POWER && s->dynamic_scale) {
		frexp(s->initial_scale, &power);
		put(o, " initial_scale_power=%d", power - 1);
	} else if (key == KEY_LOSS_SCALE && s->dynamic_scale) {
		put(o, " loss_scale=dynamic");
	} else if (key == KEY_LOSS_SCALE) {
		put_double(o, "", "loss_scale", s->initial_scale);
	}
}

static void put_count(struct out *o, enum settings_key key, uint32_t n)
{
	put(o, " %s=%u", settings_row(key)->name, n);
}

/* A parameter of the schedule, if this one has it. */
static void put_param(struct out *o, const struct model_settings *s, enum schedule_param param)
{
	const struct settings_row *row = settings_row(settings_param_key(param));
	double x = s->schedule.param[param];

	if (schedule_row(s->schedule.id)->param[param].from == SCHEDULE_ABSENT)
		return;
	if (row->type == TYPE_BOOL)
		put(o, " %s=%s", row->name, x != 0 ? "yes" : "no");
	else if (row->type == TYPE_WARMUP)
		put(o, " %s=%s", row->name, x == SCHEDULE_LINEAR ? "linear" : "log");
	else if (row->type == TYPE_COUNT)
		put(o, " %s=%.0f", row->name, x);
	else
		put_double(o, "", row->name, x);
}

/* Where and when it is saved. false: another key. */
static bool put_checkpoints(struct out *o, const struct model_settings *s, enum settings_key key)
{
	switch ((int)key) {
	case KEY_CHECKPOINT_DIR:
		put(o, " checkpoint_dir=%s", s->checkpoint_dir[0] ? s->checkpoint_dir : "none");
		return true;
	case KEY_CHECKPOINT_EVERY:
		put(o, " checkpoint_every=%llu", (unsigned long long)s->checkpoint_every);
		return true;
	case KEY_KEEP_LATEST:
		put_count(o, key, s->keep_latest);
		return true;
	case KEY_RESTORE_AT_START:
		put(o, " restore_at_start=%s", s->restore_at_start ? "yes" : "no");
		return true;
	default:
		return false;
	}
}

/* A key of the whole model that is no hyper-parameter. */
static void put_key(struct out *o, const struct model_settings *s, enum settings_key key)
{
	char text[VALUE_TEXT_BYTES];

	switch ((int)key) {
	case KEY_OPTIMIZER:
		put(o, "optimizer=%s", s->optim->name);
		break;
	case KEY_CHUNK_ELEMS:
		put_count(o, key, s->chunk_elems);
		break;
	case KEY_CLIP:
		put_double(o, "", "clip", s->clip);
		break;
	case KEY_CONSECUTIVE_HYSTERESIS:
		put(o, " consecutive_hysteresis=%s", s->consecutive_hysteresis ? "yes" : "no");
		break;
	case KEY_HYSTERESIS:
		put_count(o, key, s->hysteresis);
		break;
	case KEY_INITIAL_SCALE_POWER:
	case KEY_LOSS_SCALE:
		put_scale(o, s, key);
		break;
	case KEY_LOCAL_WORLD:
		put_count(o, key, s->local_world);
		break;
	case KEY_LOSS_SCALE_WINDOW:
		put_count(o, key, s->scale_window);
		break;
	case KEY_MAX_SKIPS:
		put_count(o, key, s->max_skips);
		break;
	case KEY_MAX_STALENESS:
		put_count(o, key, s->max_staleness);
		break;
	case KEY_MAX_WORLD:
		put_count(o, key, s->max_world);
		break;
	case KEY_MIN_LOSS_SCALE:
		put_double(o, "", "min_loss_scale", s->min_scale);
		break;
	case KEY_MIN_WORLD:
		put_count(o, key, s->min_world);
		break;
	case KEY_MODE:
		put(o, " mode=%04o", s->mode);
		break;
	case KEY_NONFINITE:
		put(o, " nonfinite=%s", s->pause_on_nonfinite ? "pause" : "skip");
		break;
	case KEY_PREDIVIDE:
		put_double(o, "", "predivide", s->predivide);
		break;
	case KEY_REPLICAS:
		put(o, " replicas=1");
		break;
	case KEY_SCHEDULE:
		put(o, " schedule=%s", schedule_row(s->schedule.id)->name);
		break;
	case KEY_TIMEOUT:
		value_duration_text(text, s->timeout_ns);
		put(o, " timeout=%s", text);
		break;
	default: /* others are written elsewhere, or are the file's business and not the model's */
		if (!put_checkpoints(o, s, key))
			CHECK(key == KEY_BETAS || key == KEY_LR_FACTOR || key == KEY_PINNED);
	}
}

/* The model's own line shows group 0's hyper-parameters where there are no groups; else each group shows its own. */
size_t settings_text(const struct model_settings *s, const char *const *groups, char *text)
{
	struct out o = {.text = text};

	CHECK(groups || !s->named_groups);
	for (int i = 0; i < KEY_NR; i++) {
		const struct settings_row *row = settings_row((enum settings_key)i);

		if (i == KEY_LR)
			put_double(&o, "", "lr", s->lr);
		else if (settings_key_param((enum settings_key)i) < SCHEDULE_PARAM_NR)
			put_param(&o, s, settings_key_param((enum settings_key)i));
		else if (row->type != TYPE_HYPER)
			put_key(&o, s, (enum settings_key)i);
		else if (!s->named_groups && s->optim->hyper[row->hyper].name)
			put_double(&o, "", row->name, s->hyper[0][row->hyper]);
	}
	for (uint32_t g = 0; s->named_groups && g < s->groups_nr; g++) {
		for (int i = 0; i < KEY_NR; i++) {
			const struct settings_row *row = settings_row((enum settings_key)i);

			if (i == KEY_LR_FACTOR)
				put_double(&o, groups[g], row->name, s->lr_factor[g]);
			else if (row->type == TYPE_HYPER && row->in_group && s->optim->hyper[row->hyper].name)
				put_double(&o, groups[g], row->name, s->hyper[g][row->hyper]);
		}
	}
	return o.used;
}
