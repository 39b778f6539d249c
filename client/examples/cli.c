// SPDX-License-Identifier: Apache-2.0
/* cli.c: parses and checks the options that gpt and the in-process reference share. Both call
 * cli_parse() once at the start. It fills struct cli with defaults and with what the command line
 * says. A wrong option ends the process with a sentence and status 2, which is the only way to
 * fail. */
#include "examples/cli.h"
#include "wire/dtype.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
	OPT_DATA = 256,
	OPT_LAYERS,
	OPT_DIM,
	OPT_HEADS,
	OPT_BATCH,
	OPT_SEQ,
	OPT_STEPS,
	OPT_DTYPE,
	OPT_NORM_DTYPE,
	OPT_GRAD_DTYPE,
	OPT_ADDRESS,
	OPT_RANK_HINT,
	OPT_WORLD,
	OPT_NAME,
	OPT_SEED,
	OPT_SETTINGS,
	OPT_LOG,
	OPT_DUMP,
	OPT_BREAK,
	OPT_DIE,
	OPT_GATE,
	OPT_SAVE_EVERY,
	OPT_DIR,
	OPT_LOOK,
};

static const struct argp_option options[] = {
	{"data", OPT_DATA, "FILE", 0, "Text to train on, read as bytes (required)", 1},
	{"layers", OPT_LAYERS, "N", 0, "Transformer blocks (2)", 1},
	{"dim", OPT_DIM, "N", 0, "Width of the residual stream (64)", 1},
	{"heads", OPT_HEADS, "N", 0, "Attention heads; must divide --dim (4)", 1},
	{"seq", OPT_SEQ, "N", 0, "Bytes per sequence (64)", 1},
	{"batch", OPT_BATCH, "N", 0, "Sequences per step, of all ranks together (16)", 1},
	{"steps", OPT_STEPS, "N", 0, "Last step (200)", 1},
	{"seed", OPT_SEED, "N", 0, "Of initial weights and samples (1)", 1},
	{"dtype", OPT_DTYPE, "TYPE", 0,
	 "Parameters as trainers read them: fp32, bf16 or fp16 (bf16)", 2},
	{"norm-dtype", OPT_NORM_DTYPE, "TYPE", 0,
	 "Layer norms as trainers read them: fp32, bf16 or fp16 (as --dtype)", 2},
	{"grad-dtype", OPT_GRAD_DTYPE, "TYPE", 0, "Gradients: fp32, bf16 or fp16 (as --dtype)", 2},
	{"settings", OPT_SETTINGS, "TEXT", 0,
	 "Settings of the model: \"optimizer=adamw lr=6e-3 clip=1.0\"", 2},
	{"name", OPT_NAME, "NAME", 0, "Of the model (gpt)", 2},
	{"address", OPT_ADDRESS, "ADDRESS", 0,
	 "Of the daemon: unix:/path, tcp://host:port or spawn:NAME ($SHARD_ADDRESS, "
	 "/run/shardd/shardd.sock)",
	 3},
	{"look", OPT_LOOK, "SECONDS", 0,
	 "How long to look for a daemon that is not there, also at the start (300, and not at the "
	 "start)",
	 3},
	{"rank-hint", OPT_RANK_HINT, "N", 0, "Which rank to ask for (any)", 3},
	{"world", OPT_WORLD, "MIN[,MAX]", 0, "How many trainers a step has (as configured)", 3},
	{"log", OPT_LOG, "FILE", 0, "One line of key=value per step (standard output)", 4},
	{"dump", OPT_DUMP, "DIR", 0,
	 "After the last step rank 0 writes master weights and moments there", 4},
	{"save-every", OPT_SAVE_EVERY, "N", 0,
	 "A checkpoint after every N-th step; training goes on meanwhile", 4},
	{"dir", OPT_DIR, "DIR", 0, "Where, for all nodes (the model's checkpoint_dir)", 4},
	{"break", OPT_BREAK, "STEP", 0,
	 "Flip one bit of one gradient in this step: a check of the checks", 4},
	{"die", OPT_DIE, "STEP", 0,
	 "End by SIGKILL in this step, with half of the gradients pushed: a check of the daemon",
	 4},
	{"gate", OPT_GATE, "FILE", 0,
	 "Take no step above the number in this file, and wait until it is raised: a check of the "
	 "daemon",
	 4},
	{0},
};

uint64_t cli_number(struct argp_state *state, const char *option, const char *text, uint64_t min,
		    uint64_t max)
{
	char *end;
	unsigned long long n;

	errno = 0;
	n = strtoull(text, &end, 10);
	if (errno || end == text || *end || text[0] == '-' || n < min || n > max)
		argp_error(state, "%s %s: choose a whole number from %llu to %llu", option, text,
			   (unsigned long long)min, (unsigned long long)max);
	return n;
}

static enum shard_dtype element_type(struct argp_state *state, const char *option, const char *text)
{
	enum shard_dtype dt = SHARD_F32;

	if (!dtype_parse(text, &dt))
		argp_error(state, "%s %s: choose fp32, bf16 or fp16", option, text);
	return dt;
}

static void world(struct argp_state *state, struct cli *c, const char *text)
{
	char first[16];
	const char *comma = strchr(text, ',');
	size_t n = comma ? (size_t)(comma - text) : strlen(text);

	if (n >= sizeof(first))
		argp_error(state, "--world %s: choose one or two numbers, as 4 or 2,4", text);
	memcpy(first, text, n < sizeof(first) ? n : 0);
	first[n < sizeof(first) ? n : 0] = 0;
	c->world_min = (uint32_t)cli_number(state, "--world", first, 1, 256);
	c->world_max = comma ? (uint32_t)cli_number(state, "--world", comma + 1, c->world_min, 256)
			     : c->world_min;
}

static void text(struct argp_state *state, const char *option, const char *arg, const char **to)
{
	if (!arg[0])
		argp_error(state, "%s: the value is empty", option);
	*to = arg;
}

static void finish(struct argp_state *state, const struct cli *c)
{
	if (!c->data)
		argp_error(state, "--data is missing: name a file with text to train on");
	if (c->shape.dim % c->shape.heads)
		argp_error(state, "--heads %u does not divide --dim %u", c->shape.heads,
			   c->shape.dim);
	if (c->world_max > c->batch)
		argp_error(state,
			   "--batch %llu is smaller than a world of %u trainers: each needs a "
			   "sequence",
			   (unsigned long long)c->batch, c->world_max);
	if (c->break_step > c->steps)
		argp_error(state, "--break %llu is behind the last step, %llu",
			   (unsigned long long)c->break_step, (unsigned long long)c->steps);
	if (c->die_step > c->steps)
		argp_error(state, "--die %llu is behind the last step, %llu",
			   (unsigned long long)c->die_step, (unsigned long long)c->steps);
}

struct inputs { /* The parser's input. */
	struct cli *cli;
	void *more_input;
	unsigned more_nr; /* The number of further parsers. */
};

static error_t model_option(int key, char *arg, struct argp_state *s, struct cli *c)
{
	switch (key) {
	case OPT_LAYERS:
		c->shape.layers = (uint32_t)cli_number(s, "--layers", arg, 1, 256);
		return 0;
	case OPT_DIM:
		c->shape.dim = (uint32_t)cli_number(s, "--dim", arg, 1, 16384);
		return 0;
	case OPT_HEADS:
		c->shape.heads = (uint32_t)cli_number(s, "--heads", arg, 1, 16384);
		return 0;
	case OPT_SEQ:
		c->shape.seq = (uint32_t)cli_number(s, "--seq", arg, 1, 65536);
		return 0;
	case OPT_BATCH:
		c->batch = cli_number(s, "--batch", arg, 1, 1u << 30);
		return 0;
	case OPT_STEPS:
		c->steps = cli_number(s, "--steps", arg, 1, 1ull << 40);
		return 0;
	case OPT_SEED:
		c->seed = cli_number(s, "--seed", arg, 0, UINT64_MAX);
		return 0;
	case OPT_DTYPE:
		c->image = element_type(s, "--dtype", arg);
		return 0;
	case OPT_NORM_DTYPE:
		c->norms = element_type(s, "--norm-dtype", arg);
		return 0;
	case OPT_GRAD_DTYPE:
		c->grad = element_type(s, "--grad-dtype", arg);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static error_t option(int key, char *arg, struct argp_state *s)
{
	const struct inputs *in = s->input;
	struct cli *c = in->cli;

	switch (key) {
	case ARGP_KEY_INIT:
		for (unsigned i = 0; i < in->more_nr; i++)
			s->child_inputs[i] = in->more_input;
		return 0;
	case OPT_DATA:
		text(s, "--data", arg, &c->data);
		return 0;
	case OPT_ADDRESS:
		text(s, "--address", arg, &c->address);
		return 0;
	case OPT_NAME:
		text(s, "--name", arg, &c->name);
		return 0;
	case OPT_SETTINGS:
		c->settings = arg;
		return 0;
	case OPT_LOG:
		text(s, "--log", arg, &c->log);
		return 0;
	case OPT_DUMP:
		text(s, "--dump", arg, &c->dump);
		return 0;
	case OPT_RANK_HINT:
		c->rank_hint = (int32_t)cli_number(s, "--rank-hint", arg, 0, 255);
		return 0;
	case OPT_WORLD:
		world(s, c, arg);
		return 0;
	case OPT_DIR:
		text(s, "--dir", arg, &c->dir);
		return 0;
	case OPT_LOOK:
		c->look_s = cli_number(s, "--look", arg, 0, 1000000);
		return 0;
	case OPT_SAVE_EVERY:
		c->save_every = cli_number(s, "--save-every", arg, 1, 1ull << 40);
		return 0;
	case OPT_BREAK:
		c->break_step = cli_number(s, "--break", arg, 1, 1ull << 40);
		return 0;
	case OPT_DIE:
		c->die_step = cli_number(s, "--die", arg, 1, 1ull << 40);
		return 0;
	case OPT_GATE:
		text(s, "--gate", arg, &c->gate);
		return 0;
	case ARGP_KEY_ARG:
		argp_error(s, "\"%s\": every value needs its option, as --data %s", arg, arg);
		return 0;
	case ARGP_KEY_END:
		finish(s, c);
		return 0;
	default:
		return model_option(key, arg, s, c);
	}
}

void cli_parse(struct cli *cli, int argc, char **argv, const char *doc,
	       const struct argp_child *more, void *more_input)
{
	const struct argp argp = {options, option, NULL, doc, more, NULL, NULL};
	struct inputs inputs = {cli, more_input, 0};

	memset(cli, 0, sizeof(*cli));
	cli->shape = (struct transformer_shape){.layers = 2, .dim = 64, .heads = 4, .seq = 64};
	cli->batch = 16;
	cli->steps = 200;
	cli->seed = 1;
	cli->image = SHARD_BF16;
	cli->name = "gpt";
	cli->settings = "";
	cli->rank_hint = -1;
	argp_err_exit_status = CLI_USAGE;
	while (more && more[inputs.more_nr].argp)
		inputs.more_nr++;
	argp_parse(&argp, argc, argv, 0, NULL, &inputs);
	if (!cli->grad)
		cli->grad = cli->image;
	if (!cli->norms)
		cli->norms = cli->image;
}

enum shard_dtype cli_image(const struct cli *cli, const char *tensor)
{
	return strstr(tensor, "ln_") != NULL ? cli->norms : cli->image;
}
