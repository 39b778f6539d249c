/* SPDX-License-Identifier: Apache-2.0 */
/* metrics.h: counters and histograms as plain fields that the loop updates, and functions that
 * write them in Prometheus' text format. Counting allocates nothing and takes no lock, so it may
 * happen in every step. */
#ifndef SHARD_OBS_METRICS_H
#define SHARD_OBS_METRICS_H

#include "node/histogram.h"
#include "obs/progress.h"

#include <stdint.h>
#include <stdio.h>

enum metrics_skip { METRICS_SKIP_NONFINITE, METRICS_SKIP_VOTE, METRICS_SKIPS };
const char *metrics_skip_name(enum metrics_skip reason);

#define METRICS_RANKS 64 /* Per node, as CONTRIB_LOCAL_MAX. */

struct metrics_model { /* Of one model on this node, since the daemon started. */
	struct histogram step, wait, reduce, apply;
	uint64_t applied, skipped[METRICS_SKIPS];
	uint64_t contrib_in_bytes, grad_in_bytes;
	/* The fields below are of the last step that was decided. */
	uint64_t step_ns, wait_ns;
	uint32_t ranks_nr;
	struct metrics_rank {
		uint32_t rank;
		/* Time from the last chunk of the first rank on this node to its own. */
		uint64_t lag_ns;
	} rank[METRICS_RANKS];
	struct progress progress; /* Owner: progress.c. */
};

enum metrics_type { METRICS_COUNTER, METRICS_GAUGE, METRICS_HISTOGRAM };

struct metrics_label {
	const char *name, *value; /* name NULL: end of the list. */
};
#define METRICS_LABELS(...) ((const struct metrics_label[]){__VA_ARGS__, {NULL, NULL}})

/* Writes HELP and TYPE, once before the samples of a family. */
void metrics_family(FILE *f, const char *name, enum metrics_type type, const char *help);
void metrics_sample(FILE *f, const char *name, const struct metrics_label *labels, double value);
/* Writes every digit. */
void metrics_count(FILE *f, const char *name, const struct metrics_label *labels, uint64_t value);
void metrics_histogram(FILE *f, const char *name, const struct metrics_label *labels,
		       const struct histogram *h);

#endif
