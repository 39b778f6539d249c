/* SPDX-License-Identifier: Apache-2.0 */
/* record.h: what the coordinator decided for a step: the whole decision state, a pure function of
 * the votes, the configuration and the previous record (DESIGN section 5). Everything that needs
 * libm is in it as bits; participants compute none of it. */
#ifndef SHARD_CORE_RECORD_H
#define SHARD_CORE_RECORD_H

#include "core/schedule.h"
#include "optim/optim.h"

#include <stdbool.h>
#include <stdint.h>

#ifndef CORE_NODES_MAX /* a program that enumerates states builds the core smaller */
#define CORE_NODES_MAX  64
#define CORE_RANKS_MAX  256
#define CORE_GROUPS_MAX 16
#endif

struct core_id { /* which attempt; ordered by (generation, term, seq, step, attempt) */
	uint64_t term, step;
	uint32_t seq, generation, attempt;
};

int core_id_cmp(const struct core_id *a, const struct core_id *b); /* <0, 0, >0 */

struct core_rank {
	uint64_t session;
	double weight; /* filled by the votes; zero in a BEGIN */
	uint32_t pid;
	uint16_t node;
};

struct core_world { /* ranks in rank order */
	uint32_t size;
	struct core_rank rank[CORE_RANKS_MAX];
};

enum record_outcome {
	RECORD_SEAL = 0,
	RECORD_APPLIED = 1,
	RECORD_NONFINITE = 2,
	RECORD_SKIP = 3
}; /* 1-3 as enum shard_outcome */

struct scaler { /* DeepSpeed's DynamicLossScaler: scaler.c */
	double scale;
	int32_t hysteresis;    /* cur_hysteresis */
	int64_t last_overflow; /* last_overflow_iter, starts at -1 */
	int64_t iter;          /* cur_iter */
};

struct record {
	struct core_id id;
	enum record_outcome outcome;
	bool diverged; /* overflow with the scale at its floor, or max_skips in a row: the model is
			  paused */
	uint64_t content; /* last step that changed weights (a seal: its own); names the image */
	uint64_t applied, skipped_in_row, attempts;
	double grad_norm, clip_factor, weight_sum, loss_scale, lr;
	int64_t bad_tensor;
	int32_t bad_rank;
	struct scaler scaler; /* the state after this step: loss scale of the next */
	uint32_t groups_nr;
	struct optim_args args[CORE_GROUPS_MAX];
	struct core_world world;
};

struct core_tune { /* what operators changed since the definition; part of the view, so that each
		      decision in it takes the same */
	bool paused, has_lr, has_clip;
	double lr, clip; /* lr: before the groups' factors; only without a schedule. The trainers'
			    own lr comes first */
	uint64_t resumed_step, resumed_skips; /* last resume: a record up to this step does not
						 pause; skips in a row until then */
};

struct record_conf {
	const struct optim_row *optim;
	uint32_t groups_nr;
	double hyper[CORE_GROUPS_MAX]
		    [HYPER_NR];            /* lr, betas, eps, weight decay ... of each group */
	struct schedule_conf schedule;     /* SCHEDULE_NONE: lr is hyper's */
	double lr_factor[CORE_GROUPS_MAX]; /* of the schedule's; hyper's has it already */
	double clip;                       /* max_norm; 0: off */
	double predivide; /* of each gradient before a sum of several ranks; 0: 1 */
	bool dynamic_scale, consecutive_hysteresis;
	double initial_scale, min_scale;
	int32_t scale_window, hysteresis;
	uint32_t max_skips; /* 0: no limit */
};

struct record_votes {        /* of every member, merged */
	const double *sumsq; /* [chunks_nr], chunk order */
	const uint8_t *finite;
	uint32_t chunks_nr;
	const double *lr;             /* [groups_nr] the trainers' own; NULL: the settings' */
	const struct core_tune *tune; /* of the view; NULL: nothing is changed */
	bool skip;
	int64_t bad_tensor;
	int32_t bad_rank;
};

/* What came in a message, judged by itself: NULL, or what is wrong with it. At most max_world
 * ranks, local_world of them on one node; 0: as many as there can be. */
const char *core_world_wrong(const struct core_world *w, uint16_t nodes_nr, uint32_t max_world,
			     uint32_t local_world);
/* Can r be the decision about the step after prev, of an attempt with this world? Whoever applies
 * it relies on these. */
bool record_can_follow(const struct record *r, const struct record *prev,
		       const struct core_world *world);

void record_seal(struct record *r, const struct record_conf *conf, const struct core_id *id);
bool record_content_ok(const struct record *r); /* of one that came from elsewhere */
bool record_pauses(const struct record *r,
		   const struct core_tune *tune); /* no step follows it before a resume */
/* id.attempt counts from 1; world carries the weights */
void record_decide(struct record *r, const struct record *prev, const struct record_conf *conf,
		   const struct core_id *id, const struct core_world *world,
		   const struct record_votes *votes);

#endif
