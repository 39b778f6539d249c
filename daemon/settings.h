/* SPDX-License-Identifier: Apache-2.0 */
/* settings.h: one model's settings. They travel as "key=value key=value" strings: in the configuration file, from trainers and between
 * nodes. Layers are merged, later ones win, and the result has one canonical string: all keys with their effective values in a
 * fixed order, so that equal settings are equal strings. A group's keys are written "group/key=value" in it. */
#ifndef SHARD_SETTINGS_H
#define SHARD_SETTINGS_H

#include "core/schedule.h"
#include "optim/optim.h"

#include <stdbool.h>
#include <stdio.h>

#define SETTINGS_GROUPS_MAX      16
#define SETTINGS_TEXT_BYTES      16384 /* of one string, its end included */
#define SETTINGS_CHUNK_ELEMS_MIN 1024u
#define SETTINGS_CHUNK_ELEMS_MAX (1u << 24)

struct model_settings {
	const struct optim_row *optim;
	uint32_t groups_nr; /* at least 1: a model without groups has one nameless */
	bool named_groups;
	double hyper[SETTINGS_GROUPS_MAX][HYPER_NR]; /* effective, per group; lr is multiplied by lr_factor already */
	double lr_factor[SETTINGS_GROUPS_MAX];
	double lr;                     /* before the factors */
	struct schedule_conf schedule; /* of lr before the factors; effective parameters */
	double clip;                   /* max norm; 0: off */
	bool dynamic_scale, consecutive_hysteresis;
	double initial_scale; /* static: the scale itself */
	double min_scale;
	uint32_t scale_window, hysteresis, max_skips; /* max_skips 0: no limit */
	bool pause_on_nonfinite;
	uint32_t min_world, max_world, local_world; /* local_world: most trainers on one node */
	uint32_t chunk_elems;                       /* power of two */
	uint64_t timeout_ns;                        /* of waiting calls with SHARD_DEFAULT */
	double predivide;
	uint32_t max_staleness, mode; /* mode: permissions, as of a file */
	char checkpoint_dir[256];     /* empty: none */
	uint64_t checkpoint_every;    /* steps; 0: only when asked */
	uint32_t keep_latest;         /* 0: all */
	bool restore_at_start;
};

struct settings_origin {
	char text[160];
};

struct settings_layer {
	const char *text;                      /* NULL: empty */
	const char *origin;                    /* for texts: "shardd.conf:14", "shard_define" */
	const char *group;                     /* NULL or "": the model; else every key is this group's */
	bool trainer;                          /* may not set what an earlier layer's `pinned` names */
	const struct settings_origin *origins; /* NULL, or of each word of text */
	bool yields; /* a trainer's that is not refused for a pinned key: it stays as it is pinned, and where to save as the file says */
};

/* groups: names of the model's tensor groups, groups_nr 0..SETTINGS_GROUPS_MAX; grad decides the default of loss_scale.
 * SHARD_BAD_ARG: the text names origin, key, value and what is valid; SHARD_DENIED: a pinned key. */
enum shard_status settings_make(struct model_settings *s, const struct settings_layer *layers, uint32_t layers_nr,
				const char *const *groups, uint32_t groups_nr, enum shard_dtype grad, struct err *e);
/* Canonical string of s; returns its length. out holds SETTINGS_TEXT_BYTES. Parsing it as the only layer gives s again. groups: as
 * given to settings_make(), NULL if the model has none. */
size_t settings_text(const struct model_settings *s, const char *const *groups, char *out);
/* One key of the file: is there such a key, and is the value well formed? group: in a [model "m" group "g"] section. */
enum shard_status settings_check(const char *key, const char *value, bool group, struct err *e);
/* Two canonical strings: SHARD_OK if equal, else SHARD_MISMATCH with the first differing key and both values. */
enum shard_status settings_compare(const char *mine, const char *mine_name, const char *theirs, const char *theirs_name,
				   struct err *e);
void settings_help(FILE *out);

#endif
