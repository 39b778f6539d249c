/* SPDX-License-Identifier: Apache-2.0 */
/* shardctl: looks at a running daemon and checks configurations. Subcommands are rows; options are the same for all of them. What it
 * finds goes to stdout, what went wrong to stderr as one sentence; scripts read the exit code (ctl.h). */
#include "base/check.h"
#include "ctl/ctl.h"

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_ADDRESS "unix:/run/shardd/shardd.sock"

static const struct ctl_command commands[] = {
	{"status", "", "nodes, models, chunks, step, world, and who is waited for", 0, 0, ctl_status},
	{"config", "check FILE", "is FILE a configuration that shardd takes?", 2, 2, ctl_config},
};

enum { OPT_TIMEOUT = 256, OPT_JSON };

static const struct argp_option argp_rows[] = {
	{"address", 'a', "ADDRESS", 0, "unix:/path or host:port (default: $SHARD_ADDRESS, then " DEFAULT_ADDRESS ")", 0},
	{"timeout", OPT_TIMEOUT, "SECONDS", 0, "give up after this (default: 5)", 0},
	{"json", OPT_JSON, NULL, 0, "print the daemon's answer as it is", 0},
	{"version", 'V', NULL, 0, "print the version and exit", 0},
	{0},
};

struct parsed {
	struct ctl_options options;
	const struct ctl_command *command;
	char *word[8];
};

static void take_word(struct parsed *p, char *word, struct argp_state *state)
{
	if (p->command) {
		if (p->options.words_nr == (int)NR(p->word))
			argp_error(state, "too many words after %s", p->command->name);
		p->word[p->options.words_nr++] = word;
		return;
	}
	for (size_t i = 0; i < NR(commands); i++)
		if (strcmp(commands[i].name, word) == 0)
			p->command = &commands[i];
	if (!p->command)
		argp_error(state, "%s: no such command", word);
}

static void check_words(const struct parsed *p, struct argp_state *state)
{
	if (!p->command)
		argp_error(state, "which command?");
	if (p->options.words_nr < p->command->words_min || p->options.words_nr > p->command->words_max)
		argp_error(state, "write %s %s", p->command->name, p->command->words);
}

static error_t on_option(int key, char *arg, struct argp_state *state)
{
	struct parsed *p = state->input;
	char *end;
	double seconds;

	switch (key) {
	case 'a':
		p->options.address = arg;
		return 0;
	case OPT_TIMEOUT:
		seconds = strtod(arg, &end);
		if (end == arg || *end || !(seconds > 0 && seconds < 1e6))
			argp_error(state, "--timeout %s: choose a number of seconds above 0", arg);
		p->options.timeout_ns = (uint64_t)(seconds * 1e9);
		return 0;
	case OPT_JSON:
		p->options.json = true;
		return 0;
	case 'V':
		printf("shardctl %s\n", SHARD_RELEASE);
		exit(CTL_OK);
	case ARGP_KEY_ARG:
		take_word(p, arg, state);
		return 0;
	case ARGP_KEY_END:
		check_words(p, state);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static char *help_filter(int key, const char *text, void *input)
{
	char *out = NULL;
	size_t bytes = 0;
	FILE *f;

	(void)input;
	if (key != ARGP_KEY_HELP_EXTRA || !(f = open_memstream(&out, &bytes)))
		return (char *)(uintptr_t)text;
	fprintf(f, "Commands:\n");
	for (size_t i = 0; i < NR(commands); i++)
		fprintf(f, "  %s %-11s %s\n", commands[i].name, commands[i].words, commands[i].help);
	fprintf(f, "\nExit status: 0 ok, 1 failed, 2 usage, 3 unreachable, 4 configuration,\n5 refused.");
	fclose(f);
	return out;
}

int main(int argc, char **argv)
{
	static const struct argp argp = {argp_rows,   on_option, "COMMAND [WORD...]", "shardctl asks a shardd what it does.", NULL,
					 help_filter, NULL};
	const char *from_env = getenv("SHARD_ADDRESS");
	struct parsed p = {
		.options = {.address = from_env && *from_env ? from_env : DEFAULT_ADDRESS,
			    .timeout_ns = 5000000000ull,
			    .program = argv[0]},
	};

	argp_err_exit_status = CTL_USAGE;
	if (argp_parse(&argp, argc, argv, 0, NULL, &p) != 0)
		return CTL_USAGE;
	p.options.words = p.word;
	return (int)p.command->run(&p.options);
}
