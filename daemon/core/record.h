/* SPDX-License-Identifier: Apache-2.0 */
/* record.h: what the coordinator decided for a step. A record is the whole state of decisions. It
 * is a pure function of the votes, the configuration and the previous record (DESIGN section 5).
 * Values that need libm are in it as bits, so that participants compute none of them. */
#ifndef SHARD_CORE_RECORD_H
#define SHARD_CORE_RECORD_H

#include "core/schedule.h"
#include "optim/optim.h"

#include <stdbool.h>
#include <stdint.h>

#ifndef CORE_NODES_MAX /* A program that enumerates states builds a smaller core. */
#define CORE_NODES_MAX  64
#define CORE_RANKS_MAX  256
#define CORE_GROUPS_MAX 256
#define CORE_VALUES_NR  16 /* SHARD_VALUES */
#endif

/* Names an attempt. Ids are ordered by (generation, term, seq, step, attempt). */
struct core_id {
	uint64_t term, step;
	uint32_t seq, generation, attempt;
};

/* Less than 0, 0, or greater than 0. */
int core_id_cmp(const struct core_id *a, const struct core_id *b);

struct core_rank {
	uint64_t session;
	double weight; /* The votes set it. It is zero in a BEGIN. */
	uint32_t pid;
	uint16_t node;
};

struct core_world { /* The ranks, in rank order. */
	uint32_t size;
	struct core_rank rank[CORE_RANKS_MAX];
};

enum record_outcome {
	RECORD_SEAL = 0,
	RECORD_APPLIED = 1,
	RECORD_NONFINITE = 2,
	RECORD_SKIP = 3
}; /* 1 to 3 are those of enum shard_outcome. */

/* The state of the loss scale (scaler.c). The comments are the names of the fields in DeepSpeed's
 * DynamicLossScaler. */
struct scaler {
	double scale;
	int32_t hysteresis;    /* cur_hysteresis */
	int64_t last_overflow; /* last_overflow_iter, starts at -1 */
	int64_t iter;          /* cur_iter */
};

struct record {
	struct core_id id;
	enum record_outcome outcome;
	/* An overflow with the scale at its floor, or max_skips in a row: it is then paused. */
	bool diverged;
	/* The last step that changed weights (of a seal: its own step). It names the image. */
	uint64_t content;
	/* .content of the record before: the older image. Equal to .content: it is not known. */
	uint64_t content_old;
	uint64_t applied, skipped_in_row, attempts;
	double grad_norm, clip_factor, weight_sum, loss_scale, lr;
	int64_t bad_tensor;
	int32_t bad_rank;
	/* The state after this step. It has the loss scale of the next one. */
	struct scaler scaler;
	/* What each rank gave with the step, summed (record_values). */
	double values[CORE_VALUES_NR];
	uint32_t groups_nr;
	struct optim_args args[CORE_GROUPS_MAX];
	struct core_world world;
};

/* What operators changed since the definition. It is part of the view, so that every decision in
 * the view uses the same values. */
struct core_tune {
	bool paused, has_lr, has_clip;
	/* lr counts only without a schedule, and is multiplied by the factor of each group.
	 * Learning rates that the trainers give come before it. */
	double lr, clip;
	/* The last resume: a record up to resumed_step does not pause the model, and resumed_skips
	 * were skipped in a row until then. */
	uint64_t resumed_step, resumed_skips;
	/* [group] A bit of .set for each enum optim_hyper that .hyper has in place of the settings.
	 * A momentum or beta1 that a schedule moves comes before it. What is not set is 0. */
	uint32_t set[CORE_GROUPS_MAX];
	double hyper[CORE_GROUPS_MAX][HYPER_NR];
};

/* What can be set for a group. */
#define TUNE_HYPERS                                                                                \
	(1u << HYPER_BETA1 | 1u << HYPER_BETA2 | 1u << HYPER_EPS | 1u << HYPER_WEIGHT_DECAY |      \
	 1u << HYPER_MOMENTUM)

struct record_conf {
	const struct optim_row *optim;
	uint32_t groups_nr;
	double hyper[CORE_GROUPS_MAX]
		    [HYPER_NR]; /* [group] The learning rate, betas, eps, weight decay and so on. */
	struct schedule_conf schedule; /* SCHEDULE_NONE: the learning rate is that of hyper. */
	/* Multiplies the learning rate of the schedule. The one in hyper already has it. */
	double lr_factor[CORE_GROUPS_MAX];
	double clip; /* The largest norm. 0: gradients are not clipped. */
	/* Each gradient is divided by it before a sum over several ranks. 0: as 1. */
	double predivide;
	bool dynamic_scale, consecutive_hysteresis;
	double initial_scale, min_scale;
	int32_t scale_window, hysteresis;
	uint32_t max_skips; /* 0: no limit. */
};

struct record_votes {        /* The votes of all members, merged. */
	const double *sumsq; /* [chunks_nr] In chunk order. */
	const uint8_t *finite;
	uint32_t chunks_nr;
	const double *lr;     /* [groups_nr] As the trainers gave it. NULL: that of the settings. */
	const double *clip;   /* The same. NULL: that of an operator, or of the settings. */
	const double *values; /* [CORE_VALUES_NR] As in struct record. NULL: zeros. */
	const struct core_tune *tune; /* The tune of the view. NULL: nothing is changed. */
	bool skip;
	int64_t bad_tensor;
	int32_t bad_rank;
};

/* Puts what is set for the group into h. */
void tune_hyper(const struct core_tune *tune, uint32_t group, double h[HYPER_NR]);
/* Of a tune that came from elsewhere: can an operator have set this? */
bool tune_hyper_ok(const struct core_tune *tune, uint32_t groups_nr);
bool tune_same_hyper(const struct core_tune *a, const struct core_tune *b);
bool tune_has_hyper(const struct core_tune *tune);

/* Returns what is wrong with a world that came in a message, or NULL. It may have at most max_world
 * ranks, and local_world of them on one node. 0: no limit of its own. */
const char *core_world_wrong(const struct core_world *w, uint16_t nodes_nr, uint32_t max_world,
			     uint32_t local_world);
/* Can r be the decision about the step after prev, of an attempt with this world? The code that
 * applies a record relies on what is checked here. */
bool record_can_follow(const struct record *r, const struct record *prev,
		       const struct core_world *world);

void record_seal(struct record *r, const struct record_conf *conf, const struct core_id *id);
/* Of a record that came from elsewhere: are .content and .content_old possible? */
bool record_content_ok(const struct record *r);
/* Does no step follow it before a resume? */
bool record_pauses(const struct record *r, const struct core_tune *tune);
/* Adds what the ranks gave, in rank order. Every NaN is the same one, so that all nodes have the
 * same bits. */
void record_values(double sum[CORE_VALUES_NR], const double *ranks, uint32_t ranks_nr);
/* id.attempt counts from 1. The world has the weights of the ranks. */
void record_decide(struct record *r, const struct record *prev, const struct record_conf *conf,
		   const struct core_id *id, const struct core_world *world,
		   const struct record_votes *votes);

#endif
