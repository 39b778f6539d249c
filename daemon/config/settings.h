/* SPDX-License-Identifier: Apache-2.0 */
/* settings.h: one model's settings. They travel as "key=value key=value" strings: in the
 * configuration file, from trainers and between nodes. Layers are merged, and later ones win. The
 * result has one canonical string with all keys and their effective values in a fixed order, so
 * that equal settings are equal strings. In it a group's keys are written "group/key=value". The
 * keys are rows of a table (keys.c), and README.md in this folder lists them. */
#ifndef SHARD_CONFIG_SETTINGS_H
#define SHARD_CONFIG_SETTINGS_H

#include "core/schedule.h"
#include "optim/optim.h"
#include "optim/quant.h"

#include <stdbool.h>
#include <stdio.h>

#define SETTINGS_GROUPS_MAX      256
#define SETTINGS_TEXT_BYTES      (256u << 10) /* Of one string, with its end. */
#define SETTINGS_WORLD_MAX       256u         /* Ranks that a step can have. */
#define SETTINGS_CHUNK_ELEMS_MIN 1024u
#define SETTINGS_CHUNK_ELEMS_MAX (1u << 24)

#define SETTINGS_CACHE_MAX 16384u /* What an io_uring can register. */

enum settings_tier { TIER_RAM, TIER_NVME, TIER_GPU };

/* Who set a key whose default depends on the cluster. */
enum settings_by {
	SETTINGS_BY_NOBODY, /* The field is what one node alone would have. */
	SETTINGS_BY_LAYER,
	SETTINGS_BY_KEPT, /* Only a layer that yields, which is that of a checkpoint. */
};

/* The keys' meanings stand in keys.c; here is what a row cannot say. */
struct model_settings {
	const struct optim_row *optim;
	uint32_t groups_nr; /* At least 1: a model without groups has one that has no name. */
	bool named_groups;
	/* Effective values for each group. lr is already multiplied by the group's lr_factor. */
	double hyper[SETTINGS_GROUPS_MAX][HYPER_NR];
	double lr_factor[SETTINGS_GROUPS_MAX];
	double lr;                     /* Before the factors. */
	struct schedule_conf schedule; /* Of lr before the factors, with effective parameters. */
	double clip;                   /* 0: off. */
	bool dynamic_scale;
	bool consecutive_hysteresis;
	double initial_scale; /* If the scale is not dynamic, it is always this. */
	double min_scale;
	uint32_t scale_window;
	uint32_t hysteresis;
	uint32_t max_skips; /* 0: there is no limit. */
	bool pause_on_nonfinite;
	uint32_t min_world;
	uint32_t max_world;
	uint32_t local_world;                /* The most trainers on one node. */
	bool max_world_set, local_world_set; /* Somebody has set it. */
	uint32_t chunk_elems;                /* A power of two. */
	uint32_t replicas;
	enum settings_by replicas_by;
	uint32_t min_copies;        /* A step waits until each chunk has so many. */
	uint64_t timeout_ns;        /* Of waiting calls with SHARD_DEFAULT. */
	uint64_t join_timeout_ns;   /* Of the first step, for trainers beyond min_world. */
	uint64_t quorum_timeout_ns; /* For min_world trainers. 0: timeout_ns. */
	bool drop_stragglers;
	uint64_t straggler_timeout_ns; /* Counts only with drop_stragglers. */
	double predivide;
	/* In a world of several nodes: of contributions, and of images, which have the same
	 * block. */
	struct quant grad_codec;
	enum quant_kind image_codec;
	bool error_feedback;
	enum settings_tier tier;
	uint32_t nvme_share, nvme_cache; /* In percent, and in chunks. Only with TIER_NVME. */
	uint32_t gpu_share;              /* In percent. Only with TIER_GPU. */
	bool nvme_durable;               /* Each step outlives a loss of power. */
	uint32_t max_staleness;
	uint64_t staleness_after;  /* The last step that is not computed so. */
	uint32_t mode;             /* Permissions, as of a file. */
	char checkpoint_dir[256];  /* Empty: none. */
	uint64_t checkpoint_every; /* In steps; 0: only when somebody asks. */
	uint32_t keep_latest;      /* 0: all. */
	bool restore_at_start;
	bool reinitialize; /* A LOST model may be defined and written as if it were new. */
};

/* How many percent of a node's chunks have their state elsewhere than in memory. */
static inline uint32_t settings_away(const struct model_settings *s)
{
	return s->tier == TIER_NVME ? s->nvme_share : s->tier == TIER_GPU ? s->gpu_share : 0;
}

struct settings_origin {
	char text[160];
};

struct settings_layer {
	const char *text;   /* NULL: empty. */
	const char *origin; /* For error texts, as in "shardd.conf:14" or "shard_define". */
	const char *group;  /* NULL or "": the model; else every key is this group's. */
	bool trainer;       /* It may not set what an earlier layer's `pinned` names. */
	const struct settings_origin *origins; /* Of each word of text, or NULL. */
	/* A trainer's layer that is not refused for a pinned key: the key stays as it is pinned,
	 * and where to save stays as the file says. */
	bool yields;
};

/* groups has the names of the model's groups_nr tensor groups. grad decides the default of
 * loss_scale. SHARD_BAD_ARG: the text names origin, key, value and what is valid. SHARD_DENIED: a
 * trainer set a pinned key. SHARD_SYSTEM: no memory. */
enum shard_status settings_make(struct model_settings *s, const struct settings_layer *layers,
				uint32_t layers_nr, const char *const *groups, uint32_t groups_nr,
				enum shard_dtype grad, struct err *e);
/* The canonical string of s, which the caller frees, of at most SETTINGS_TEXT_BYTES. NULL: no
 * memory. settings_make() with it as the only layer gives s again. groups is what settings_make()
 * got. */
char *settings_text(const struct model_settings *s, const char *const *groups);
/* Is there such a key (in a group's section if group is set), and is the value well formed? */
enum shard_status settings_check(const char *key, const char *value, bool group, struct err *e);
/* How long a core waits for slow trainers. 0: until step_timeout. */
uint64_t settings_straggler_ns(const struct model_settings *s);
/* Compares two canonical strings. SHARD_MISMATCH: the text has the first key that differs and both
 * values. Keys that stand in written, which are the words that a trainer gave, come before those
 * that follow from them. Where and when a model is saved is not compared. key gets that key, or ""
 * where the two have not the same keys; NULL: nobody asks. */
enum { SETTINGS_KEY_BYTES = 128 };
enum shard_status settings_compare(const char *mine, const char *mine_name, const char *theirs,
				   const char *theirs_name, const char *written,
				   char key[SETTINGS_KEY_BYTES], struct err *e);
void settings_help(FILE *out);

#endif
