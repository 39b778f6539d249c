// SPDX-License-Identifier: Apache-2.0
/* refsettings.c: parses "key=value key=value" for the reference. On purpose it is not the daemon's
 * parser. It is called once at the start. A key that it does not know is an error, because ignoring
 * it would compare two different runs. Keys that cannot change a weight are listed and skipped. */
#include "ref/refsettings.h"
#include "base/check.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
	const char *name;
	uint32_t states_nr;
	enum shard_kind states[2];
	double hyper[HYPER_NR];
} optimizers[OPTIM_NR] = {
	[OPTIM_ADAMW] = {"adamw",
			 2,
			 {SHARD_EXP_AVG, SHARD_EXP_AVG_SQ},
			 {[HYPER_LR] = 1e-3,
			  [HYPER_BETA1] = 0.9,
			  [HYPER_BETA2] = 0.999,
			  [HYPER_EPS] = 1e-8,
			  [HYPER_WEIGHT_DECAY] = 1e-2}},
	[OPTIM_ADAM] = {"adam",
			2,
			{SHARD_EXP_AVG, SHARD_EXP_AVG_SQ},
			{[HYPER_LR] = 1e-3,
			 [HYPER_BETA1] = 0.9,
			 [HYPER_BETA2] = 0.999,
			 [HYPER_EPS] = 1e-8}},
	[OPTIM_SGD] = {"sgd", 1, {SHARD_MOMENTUM}, {[HYPER_LR] = 1e-3}},
	[OPTIM_ADAGRAD] = {"adagrad",
			   1,
			   {SHARD_EXP_AVG_SQ},
			   {[HYPER_LR] = 1e-2, [HYPER_EPS] = 1e-10}},
	[OPTIM_LION] = {"lion",
			1,
			{SHARD_EXP_AVG},
			{[HYPER_LR] = 1e-4, [HYPER_BETA1] = 0.9, [HYPER_BETA2] = 0.99}},
};

static const char *const hyper_names[HYPER_NR] = {
	[HYPER_LR] = "lr",
	[HYPER_BETA1] = "beta1",
	[HYPER_BETA2] = "beta2",
	[HYPER_EPS] = "eps",
	[HYPER_WEIGHT_DECAY] = "weight_decay",
	[HYPER_MOMENTUM] = "momentum",
	[HYPER_NESTEROV] = "nesterov",
};

static const char *const no_effect[] = {"min_world",  "max_world",    "local_world", "replicas",
					"min_copies", "timeout",      "tier",        "nvme_share",
					"nvme_cache", "nvme_durable", "gpu_share"};

static bool number(const char *text, double *to)
{
	char *end;

	if (strcmp(text, "dynamic") == 0) {
		*to = 0;
		return true;
	}
	if (strcmp(text, "yes") == 0 || strcmp(text, "no") == 0) {
		*to = text[0] == 'y';
		return true;
	}
	*to = strtod(text, &end);
	return end != text && !*end;
}

static bool choose(struct refsettings *s, const char *name)
{
	for (int i = 0; i < OPTIM_NR; i++) {
		if (strcmp(name, optimizers[i].name) != 0)
			continue;
		s->optimizer = (enum optim_id)i;
		s->name = optimizers[i].name;
		s->states_nr = optimizers[i].states_nr;
		memcpy(s->states, optimizers[i].states, sizeof(s->states));
		memcpy(s->hyper, optimizers[i].hyper, sizeof(s->hyper));
		return true;
	}
	return false;
}

static bool largest_code(double *most, const char *codec)
{
	*most = strcmp(codec, "int8") == 0 ? 127 : strcmp(codec, "int4") == 0 ? 7 : 0;
	return *most > 0 || strcmp(codec, "none") == 0;
}

static bool set(struct refsettings *s, const char *key, const char *value)
{
	const struct {
		const char *key;
		double *to;
	} plain[] = {
		{"clip", &s->clip},
		{"predivide", &s->predivide},
		{"max_staleness", &s->max_staleness},
		{"staleness_after", &s->staleness_after},
		{"loss_scale", &s->loss_scale},
		{"initial_scale_power", &s->initial_scale_power},
		{"loss_scale_window", &s->loss_scale_window},
		{"hysteresis", &s->hysteresis},
		{"min_loss_scale", &s->min_loss_scale},
		{"max_skips", &s->max_skips},
		{"chunk_elems", &s->chunk_elems},
		{"codec_block", &s->codec_block},
	};
	double x;

	for (size_t i = 0; i < NR(no_effect); i++) {
		if (strcmp(key, no_effect[i]) == 0)
			return true;
	}
	/* It was chosen before, because the hyper-parameters depend on it. */
	if (strcmp(key, "optimizer") == 0)
		return strcmp(value, s->name) == 0;
	if (strcmp(key, "nonfinite") == 0) {
		s->pause = strcmp(value, "pause") == 0;
		return s->pause || strcmp(value, "skip") == 0;
	}
	if (strcmp(key, "grad_codec") == 0)
		return largest_code(&s->codec_most, value);
	if (strcmp(key, "image_codec") == 0)
		return largest_code(&s->image_most, value);
	if (strcmp(key, "error_feedback") == 0) {
		s->error_feedback = strcmp(value, "yes") == 0;
		return s->error_feedback || strcmp(value, "no") == 0;
	}
	if (strcmp(key, "betas") == 0)
		return sscanf(value, "%lf,%lf", &s->hyper[HYPER_BETA1], &s->hyper[HYPER_BETA2]) ==
		       2;
	if (refschedule_set(&s->schedule, key, value))
		return true;
	if (!number(value, &x))
		return false;
	for (size_t i = 0; i < NR(plain); i++) {
		if (strcmp(key, plain[i].key) == 0) {
			*plain[i].to = x;
			return true;
		}
	}
	for (int i = 0; i < HYPER_NR; i++) {
		if (strcmp(key, hyper_names[i]) == 0) {
			s->hyper[i] = x;
			return true;
		}
	}
	if (strcmp(key, "consecutive_hysteresis") == 0) {
		s->consecutive_hysteresis = x != 0;
		return true;
	}
	return false;
}

enum shard_status refsettings_parse(struct refsettings *s, const char *text, enum shard_dtype grad,
				    struct err *e)
{
	char name[32] = "adamw", key[64], value[64];
	const char *at = strstr(text, "optimizer=");
	int used;

	memset(s, 0, sizeof(*s));
	refschedule_start(&s->schedule);
	s->loss_scale = grad == SHARD_F16 ? 0 : 1;
	s->initial_scale_power = 16;
	s->loss_scale_window = 1000;
	s->hysteresis = 2;
	s->min_loss_scale = 1;
	s->max_skips = 20;
	s->predivide = 1;
	s->chunk_elems = 1 << 20;
	s->codec_block = 256;
	s->error_feedback = true;
	if (at)
		sscanf(at, "optimizer=%31[^ ]", name);
	if (!choose(s, name))
		return err_set(e, SHARD_BAD_ARG,
			       "settings: optimizer=%s: choose adamw, adam, sgd, adagrad or lion",
			       name);
	for (at = text + strspn(text, " "); *at; at += used) {
		if (sscanf(at, "%63[^= ]=%63[^ ] %n", key, value, &used) != 2)
			return err_set(e, SHARD_BAD_ARG, "settings: \"%.40s\" is not key=value",
				       at);
		if (!set(s, key, value))
			return err_set(e, SHARD_BAD_ARG,
				       "settings: %s=%s is unknown to the reference", key, value);
	}
	return SHARD_OK;
}
