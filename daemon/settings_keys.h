/* SPDX-License-Identifier: Apache-2.0 */
/* settings_keys.h: the table of keys behind settings.h, and what one value means. Private to settings*.c. */
#ifndef SHARD_SETTINGS_KEYS_H
#define SHARD_SETTINGS_KEYS_H

#include "core/schedule.h"
#include "optim/optim.h"

#define SETTINGS_VALUE_BYTES 256

/* in the order of the canonical string: the optimizer says which others there are */
enum settings_key {
	KEY_OPTIMIZER,
	KEY_BETA1,
	KEY_BETA2,
	KEY_CHECKPOINT_DIR,
	KEY_CHECKPOINT_EVERY,
	KEY_CHUNK_ELEMS,
	KEY_CLIP,
	KEY_CONSECUTIVE_HYSTERESIS,
	KEY_COS_MIN_RATIO,
	KEY_CYCLE_FIRST_STAIR_COUNT,
	KEY_CYCLE_FIRST_STEP_SIZE,
	KEY_CYCLE_MAX_LR,
	KEY_CYCLE_MAX_MOM,
	KEY_CYCLE_MIN_LR,
	KEY_CYCLE_MIN_MOM,
	KEY_CYCLE_MOMENTUM,
	KEY_CYCLE_SECOND_STAIR_COUNT,
	KEY_CYCLE_SECOND_STEP_SIZE,
	KEY_DECAY_LR_RATE,
	KEY_DECAY_MOM_RATE,
	KEY_DECAY_STEP_SIZE,
	KEY_EPS,
	KEY_HYSTERESIS,
	KEY_INITIAL_SCALE_POWER,
	KEY_KEEP_LATEST,
	KEY_LOCAL_WORLD,
	KEY_LOSS_SCALE,
	KEY_LOSS_SCALE_WINDOW,
	KEY_LR,
	KEY_LR_FACTOR, /* of a group */
	KEY_LR_RANGE_TEST_MIN_LR,
	KEY_LR_RANGE_TEST_STAIRCASE,
	KEY_LR_RANGE_TEST_STEP_RATE,
	KEY_LR_RANGE_TEST_STEP_SIZE,
	KEY_MAX_SKIPS,
	KEY_MAX_STALENESS,
	KEY_MAX_WORLD,
	KEY_MIN_LOSS_SCALE,
	KEY_MIN_WORLD,
	KEY_MODE,
	KEY_MOMENTUM,
	KEY_NESTEROV,
	KEY_NONFINITE,
	KEY_PINNED,
	KEY_PREDIVIDE,
	KEY_REPLICAS,
	KEY_RESTORE_AT_START,
	KEY_SCHEDULE,
	KEY_TIMEOUT,
	KEY_TOTAL_NUM_STEPS,
	KEY_WARMUP_MAX_LR,
	KEY_WARMUP_MIN_LR,
	KEY_WARMUP_MIN_RATIO,
	KEY_WARMUP_NUM_STEPS,
	KEY_WARMUP_TYPE,
	KEY_WEIGHT_DECAY,
	KEY_BETAS, /* "0.9,0.95" stands for beta1 and beta2 */
	KEY_NR,
};

enum settings_type {
	TYPE_OPTIMIZER,
	TYPE_HYPER, /* its range is in the optimizer's row */
	TYPE_BETAS,
	TYPE_NUMBER,
	TYPE_COUNT, /* whole, may end in Ki or Mi */
	TYPE_BOOL,
	TYPE_SCALE,     /* "dynamic" or 0, or a number */
	TYPE_NONFINITE, /* skip or pause */
	TYPE_DURATION,
	TYPE_KEYS, /* names of keys */
	TYPE_SCHEDULE,
	TYPE_WARMUP, /* log or linear */
	TYPE_PATH,   /* of a folder: absolute, without blanks */
	TYPE_OCTAL,  /* permissions */
};

struct settings_row {
	const char *name;
	enum settings_type type;
	double min, max; /* TYPE_NUMBER and TYPE_COUNT; min is excluded where above is set */
	bool above, in_model, in_group;
	enum optim_hyper hyper; /* TYPE_HYPER */
	const char *fallback;   /* for --help */
	const char *help;
};

struct settings_value {
	double number; /* also betas' first; TYPE_SCALE: 0 = dynamic */
	double second;
	uint64_t whole; /* count, bool, pause, linear, nanoseconds, permissions */
	const struct optim_row *optim;
	const struct schedule_row *schedule;
};

const struct settings_row *settings_row(enum settings_key key);
enum settings_key settings_param_key(enum schedule_param param); /* a schedule's parameters are keys like others */
enum schedule_param settings_key_param(enum settings_key key);   /* SCHEDULE_PARAM_NR: it is none */
/* KEY_NR and an error with the nearest name: unknown, or not possible in a group (or outside of one). */
enum settings_key settings_find(const char *name, bool group, struct err *e);
/* e says "key = value: what is wrong: what to choose". */
enum shard_status settings_value(enum settings_key key, const char *text, struct settings_value *v, struct err *e);
/* The range of a hyper-parameter of one optimizer. */
enum shard_status settings_hyper(const struct optim_row *optim, enum settings_key key, const char *text, double number,
				 struct err *e);

#endif
