/* SPDX-License-Identifier: Apache-2.0 */
/* trainer.h: what the example trainers have in common, and the table of functions in which they
 * differ. The functions of the table leave the sentence of a failure where why() finds it. */
#ifndef EXAMPLES_TRAINER_H
#define EXAMPLES_TRAINER_H

#include "examples/cli.h"
#include "examples/data.h"
#include "examples/saver.h"
#include "examples/steplog.h"
#include <stdio.h>

struct trainer;

struct compute {
	const char *name; /* Of the program. */
	/* After the model is joined, and before the first step. */
	enum shard_status (*open)(struct trainer *g);
	/* As shard_begin(), into g->step. */
	enum shard_status (*begin)(struct trainer *g, const struct shard_begin_opts *opts);
	/* Runs the samples [first, first + count) of the step and pushes the gradients. *loss
	 * becomes the mean loss of these samples. */
	enum shard_status (*forward_backward)(struct trainer *g, uint64_t first, uint64_t count,
					      double *loss);
	const char *(*why)(struct trainer *g);
	void (*close)(struct trainer *g); /* Also if open() failed or was not called. */
};

struct cursor {           /* The blob that each step commits. */
	uint64_t samples; /* Samples of all steps and ranks so far. */
};

struct trainer {
	const struct compute *compute;
	struct cli cli;
	struct cursor cursor;
	struct transformer net; /* On this processor. */
	struct data data;
	FILE *log;
	struct saver saver;
	shard_client *client;
	shard_model *model;
	struct shard_world world;
	struct shard_step step;
	uint64_t samples; /* Of this rank in this step. */
	struct err err;   /* Of this program. The library's sentence is in shard_error(). */
};

/* Trains to the last step, with cli and compute set, and says what fails. Returns the exit status.
 */
int trainer_run(struct trainer *g);

#endif
