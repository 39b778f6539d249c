/* SPDX-License-Identifier: Apache-2.0 */
/* steplog.h: one line of key=value per step. The trainer and the in-process reference print the
 * same line, for people and for the progress bar of `make demo`. */
#ifndef EXAMPLES_STEPLOG_H
#define EXAMPLES_STEPLOG_H

#include "base/status.h"
#include <stdio.h>

struct steplog_line {
	uint64_t step;
	uint32_t rank, world;
	uint64_t samples; /* The loss is the mean of so many samples. */
	double loss;      /* In nats per byte. */
	struct shard_result result;
	uint64_t ns;
};

/* path NULL: standard output. */
enum shard_status steplog_open(FILE **f, const char *path, struct err *e);
enum shard_status steplog_write(FILE *f, const struct steplog_line *l, struct err *e);
void steplog_close(FILE **f);

#endif
