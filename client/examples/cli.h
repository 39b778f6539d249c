/* SPDX-License-Identifier: Apache-2.0 */
/* cli.h: the options that the trainer and the in-process reference share, so that one command line
 * means the same run to both. */
#ifndef EXAMPLES_CLI_H
#define EXAMPLES_CLI_H

#include "examples/transformer.h"
#include <argp.h>

#define CLI_FAILED 1 /* Exit status: the run failed. */
#define CLI_USAGE  2 /* Exit status: the command line was wrong. */

struct cli {
	/* These point into argv. NULL: not given. */
	const char *data, *address, *name, *settings, *log, *dump, *dir, *gate;
	struct transformer_shape shape;
	uint64_t batch; /* Sequences per step, of all ranks together. */
	uint64_t steps, seed;
	uint64_t break_step, die_step; /* 0: none. */
	uint64_t save_every;           /* In steps. 0: never. */
	uint64_t look_s; /* How long to look for a daemon. 0: the default of the library. */
	enum shard_dtype image, norms, grad; /* norms: of layer norms, in place of image. */
	int32_t rank_hint;
	uint32_t world_min, world_max; /* 0: as the daemon is configured. */
};

/* Fills cli. On a wrong command line it prints the reason and exits with CLI_USAGE. more has
 * further options, for the reference. It is NULL or an array that ends with an entry of zeros. The
 * parsers of these options get more_input and not cli. */
void cli_parse(struct cli *cli, int argc, char **argv, const char *doc,
	       const struct argp_child *more, void *more_input);

/* What trainers read of the tensor of this name. */
enum shard_dtype cli_image(const struct cli *cli, const char *tensor);

/* For further options: reads a whole number from min to max, and exits through argp_error() if text
 * is none. */
uint64_t cli_number(struct argp_state *state, const char *option, const char *text, uint64_t min,
		    uint64_t max);

#endif
