/* SPDX-License-Identifier: Apache-2.0 */
/* cli.h: the options that the trainer and the in-process reference have in common, so that one
 * command line means the same run to both. */
#ifndef EXAMPLES_CLI_H
#define EXAMPLES_CLI_H

#include "examples/transformer.h"
#include <argp.h>

#define CLI_FAILED 1 /* exit status: the run failed */
#define CLI_USAGE  2 /* exit status: the command line was wrong */

struct cli {
	const char *data, *address, *name, *settings, *log, *dump,
		*dir; /* of argv; NULL: not given */
	struct transformer_shape shape;
	uint64_t batch; /* sequences per step, of all ranks together */
	uint64_t steps, seed;
	uint64_t break_step, die_step; /* 0: none */
	uint64_t save_every;           /* steps; 0: never */
	enum shard_dtype image, grad;
	int32_t rank_hint;
	uint32_t world_min, world_max; /* 0: as the daemon is configured */
};

/* Fills cli or, on a wrong command line, prints why and exits with CLI_USAGE. more: further
 * options, for the reference; ended by an entry of zeros; or NULL. Its parsers find `cli` nowhere:
 * they get more_input. */
void cli_parse(struct cli *cli, int argc, char **argv, const char *doc,
	       const struct argp_child *more, void *more_input);

/* For further options: a whole number from min to max; exits through argp_error otherwise. */
uint64_t cli_number(struct argp_state *state, const char *option, const char *text, uint64_t min,
		    uint64_t max);

#endif
