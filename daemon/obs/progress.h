/* SPDX-License-Identifier: Apache-2.0 */
/* progress.h: how the training of a model goes, as this node sees it: the word for its state, how
 * long a step takes, how long there has been none, and what set the model back. */
#ifndef SHARD_OBS_PROGRESS_H
#define SHARD_OBS_PROGRESS_H

#include "base/clock.h"
#include "ckpt/checkpoint.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

struct model;
struct model_watch;

#define PROGRESS_STEPS 31 /* The median is of so many steps. */

/* The model went on from an older step than it had reached. */
struct setback {
	time_t at; /* 0: never since this daemon started. */
	uint64_t from_step, to_step;
	char path[CHECKPOINT_PATH_MAX]; /* What was restored. Empty: weights that were written. */
	char why[512];
};

/* One hour of what a chart shows. Times are seconds since the start of the daemon. */
#define PROGRESS_SAMPLES   720
#define PROGRESS_SAMPLE_NS (5 * NS_PER_SEC)

struct progress_sample {
	float t_s, steps_per_s;
	float step_s, wait_s; /* Of the last step. Below 0: there was none since the last sample. */
};

struct progress { /* Of one model. Owner: progress.c. */
	/* When the last step was decided on this node. 0: none was since the start. */
	uint64_t decided_ns;
	time_t decided_at;
	uint64_t took_ns[PROGRESS_STEPS]; /* Times between two decisions; the newest overwrites. */
	uint32_t took_nr, took_next;
	uint64_t trains_ns; /* Since when it trains. 0: it does not. */
	/* How long it trained since the last decided step, without the time since trains_ns: the
	 * trainers of a model may come and die again and again before its next step. */
	uint64_t stood_ns;
	const char *word;  /* On the coordinator: its state, as the other nodes were told last. */
	bool sealed, lost; /* It has had weights; they are lost, and none are back yet. */
	uint64_t lost_step;
	char lost_why[512];
	struct setback back;
	uint64_t losses, setbacks, steps_lost; /* Since the start. */
	struct progress_sample sample[PROGRESS_SAMPLES];
	uint32_t samples_nr, samples_next;
	uint64_t sampled_ns, sampled_step;
};

/* Comes after scrape_watch, which makes the struct. */
extern const struct model_watch progress_watch;

/* One word for what the model does: defining, unsealed, recovering, resuming, restoring, lost,
 * paused, diverged, waiting or training. A node that does not coordinate repeats what the
 * coordinator says where only that one knows it. */
const char *progress_state(const struct model *m);
/* The same as this node knows it by itself. */
const char *progress_own_state(const struct model *m);
extern const char *const progress_states[]; /* All of them; ends with NULL. */

/* The median time of a step. 0: too few steps are known. */
uint64_t progress_median_ns(const struct model *m);
/* How long it has trained since its last step, or since its weights came. 0: it does not train. */
uint64_t progress_stands_ns(const struct model *m);
/* Is that long enough to say whom it waits for? */
bool progress_late(const struct model *m);
/* The samples, the oldest first, as arrays "t", "rate", "step_s" and "wait_s". NULL: no memory. */
json_t *progress_samples_json(const struct model *m);

#endif
