/* SPDX-License-Identifier: Apache-2.0 */
/* schedule.h: learning rate and momentum as functions of the number of applied steps. The schedules
 * are those of DeepSpeed 0.19, with its names, parameters and defaults. The settings parser reads
 * the rows. record.c asks for the values of a step once, on the coordinator, because log and cos
 * give other bits on other machines. The only state is the number of applied steps, which is in the
 * record. */
#ifndef SHARD_CORE_SCHEDULE_H
#define SHARD_CORE_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

enum schedule_id {
	SCHEDULE_NONE,
	SCHEDULE_LR_RANGE_TEST,
	SCHEDULE_ONE_CYCLE,
	SCHEDULE_WARMUP,
	SCHEDULE_WARMUP_DECAY,
	SCHEDULE_WARMUP_COSINE,
	SCHEDULE_NR,
};

/* An index into an array of SCHEDULE_PARAM_NR doubles. */
enum schedule_param {
	SCHEDULE_COS_MIN_RATIO,
	SCHEDULE_CYCLE_FIRST_STAIR_COUNT,
	SCHEDULE_CYCLE_FIRST_STEP_SIZE,
	SCHEDULE_CYCLE_MAX_LR,
	SCHEDULE_CYCLE_MAX_MOM,
	SCHEDULE_CYCLE_MIN_LR,
	SCHEDULE_CYCLE_MIN_MOM,
	SCHEDULE_CYCLE_MOMENTUM, /* 0 or 1. */
	SCHEDULE_CYCLE_SECOND_STAIR_COUNT,
	SCHEDULE_CYCLE_SECOND_STEP_SIZE,
	SCHEDULE_DECAY_LR_RATE,
	SCHEDULE_DECAY_MOM_RATE,
	SCHEDULE_DECAY_STEP_SIZE,
	SCHEDULE_LR_RANGE_TEST_MIN_LR,
	SCHEDULE_LR_RANGE_TEST_STAIRCASE, /* 0 or 1. */
	SCHEDULE_LR_RANGE_TEST_STEP_RATE,
	SCHEDULE_LR_RANGE_TEST_STEP_SIZE,
	SCHEDULE_TOTAL_NUM_STEPS,
	SCHEDULE_WARMUP_MAX_LR,
	SCHEDULE_WARMUP_MIN_LR,
	SCHEDULE_WARMUP_MIN_RATIO,
	SCHEDULE_WARMUP_NUM_STEPS,
	SCHEDULE_WARMUP_TYPE, /* A value of enum schedule_warmup. */
	SCHEDULE_PARAM_NR,
};

enum schedule_warmup { SCHEDULE_LOG, SCHEDULE_LINEAR };

struct schedule_conf {
	enum schedule_id id;
	double lr; /* The learning rate of the optimizer. */
	/* The parameters that the row has. The settings parser checks their ranges. */
	double param[SCHEDULE_PARAM_NR];
};

struct schedule_default {
	enum {
		SCHEDULE_ABSENT,
		SCHEDULE_VALUE,
		SCHEDULE_REQUIRED,
		SCHEDULE_AS_PARAM,
		SCHEDULE_AS_LR
	} from;
	double value;
	enum schedule_param as;
};

struct schedule_row {
	const char *name;
	double (*lr)(const struct schedule_conf *s, double last);
	/* SCHEDULE_ABSENT: this schedule has no such parameter. */
	struct schedule_default param[SCHEDULE_PARAM_NR];
};

const struct schedule_row *schedule_row(enum schedule_id id); /* CHECKs id. */
enum schedule_id schedule_row_id(const struct schedule_row *row);

/* t counts the applied steps, this one included, so that it starts at 1. Not for SCHEDULE_NONE. */
double schedule_lr(const struct schedule_conf *s, uint64_t t);
/* Returns false if this schedule leaves the momentum (or beta1) alone. An optimizer can take every
 * value that it gives. */
bool schedule_momentum(const struct schedule_conf *s, uint64_t t, double *momentum);

#endif
