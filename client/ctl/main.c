/* SPDX-License-Identifier: Apache-2.0 */
/* main() of shardctl: it finds the subcommand's row, parses the options and calls the subcommand.
 * The options that all subcommands share may stand before or behind the subcommand's name, and the
 * subcommand's own options stand behind it. Results go to stdout. What went wrong goes to stderr as
 * one sentence. Scripts read the exit code (ctl.h). */
#include "base/check.h"
#include "ctl/ctl.h"
#include "spawn/spawn.h"

#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct ctl_command commands[] = {
	{"status", "", "nodes, models, world, and who is waited for", 0, 0, ctl_status,
	 ctl_status_options},
	{"members", "", "each node: capacity, vote, release, and the chunks that it holds", 0, 0,
	 ctl_members, NULL},
	{"events", "", "the last events that a daemon logged: worlds, losses, saves, links", 0, 0,
	 ctl_events, NULL},
	{"top", "", "the same in place: ranks, waits, rates", 0, 0, ctl_top, ctl_top_options},
	{"plan", "", "bytes per device and node: ZeRO, and with shardd", 0, 0, ctl_plan,
	 ctl_plan_options},
	{"bench", "", "a made-up model's steps beside the machine's limits", 0, 0, ctl_bench,
	 ctl_bench_options},
	{"doctor", "", "is this machine fit for shardd? with the remedies", 0, 0, ctl_doctor,
	 ctl_doctor_options},
	{"model", "list", "models: owner, mode, step, state, bytes", 1, 4, ctl_model,
	 ctl_model_options},
	{"model", "show NAME", "all about one: settings, groups, placement, tensors", 1, 4,
	 ctl_model, ctl_model_options},
	{"model", "drop NAME", "frees its memory on every node, for ever", 1, 4, ctl_model,
	 ctl_model_options},
	{"model", "set NAME KEY VALUE", "lr or clip, from the next step on (or: default)", 1, 4,
	 ctl_model, ctl_model_options},
	{"model", "pause NAME", "no step after the one in hand", 1, 4, ctl_model,
	 ctl_model_options},
	{"model", "resume NAME", "goes on, also after it diverged", 1, 4, ctl_model,
	 ctl_model_options},
	{"model", "kick NAME RANK|NODE:PID", "puts a trainer out of the world", 1, 4, ctl_model,
	 ctl_model_options},
	{"kick", "NAME RANK|NODE:PID", "the same", 2, 2, ctl_kick, ctl_kick_options},
	{"checkpoints", "DIR", "what a folder of checkpoints holds; --verify", 1, 1,
	 ctl_checkpoints, ctl_checkpoints_options},
	{"export", "DIR OUT", "weights of a checkpoint as Hugging Face's files", 2, 2, ctl_export,
	 ctl_export_options},
	{"import", "SRC DIR", "a checkpoint from Hugging Face's files", 2, 2, ctl_import,
	 ctl_import_options},
	{"save", "NAME", "a checkpoint of a model, while it trains", 1, 1, ctl_save,
	 ctl_save_options},
	{"history", "NAME", "the steps that nodes decided, views, saves; --json: for a replay", 1,
	 1, ctl_history, ctl_history_options},
	{"replay", "CHECKPOINT...", "steps again from an older checkpoint, a history and gradients",
	 1, CTL_WORDS, ctl_replay, ctl_replay_options},
	{"verify", "NAME...", "are all copies of each chunk equal? while it trains", 1, CTL_WORDS,
	 ctl_verify, NULL},
	{"drain", "NODE", "moves all chunks away from a node, while models train", 1, 1, ctl_drain,
	 ctl_drain_options},
	{"rebalance", "[MODEL]", "moves chunks so that each node has its share", 0, 1,
	 ctl_rebalance, ctl_rebalance_options},
	{"restore", "DIR", "a model comes back from a checkpoint", 1, 1, ctl_restore,
	 ctl_restore_options},
	{"secret", "new [FILE]",
	 "a new key for [cluster] secret or node_secret, into FILE or printed", 1, 2, ctl_secret,
	 ctl_secret_options},
	{"config", "check FILE", "is FILE a configuration that shardd takes?", 1, 2, ctl_config,
	 ctl_config_options},
	{"config", "explain", "every option with its value and who set it", 1, 2, ctl_config,
	 ctl_config_options},
};

enum { OPT_TIMEOUT = 256, OPT_JSON, OPT_SECRET };

static const struct argp_option argp_rows[] = {
	{"address", 'a', "ADDRESS", 0,
	 "unix:/path, host:port or spawn:NAME (default: $SHARD_ADDRESS, then " CTL_ADDRESS ")", 0},
	{"secret", OPT_SECRET, "FILE", 0,
	 "the cluster's secret, for host:port (default: $SHARD_SECRET)", 0},
	{"timeout", OPT_TIMEOUT, "SECONDS", 0, "give up after this (default: 5)", 0},
	{"json", OPT_JSON, NULL, 0, "print JSON", 0},
	{"version", 'V', NULL, 0, "print the version and exit", 0},
	{0},
};

struct parsed {
	struct ctl_options options;
	const struct ctl_command *command;
	char *word[CTL_WORDS];
};

static error_t on_common(int key, char *arg, struct argp_state *state)
{
	struct parsed *p = state->input;
	char *end;
	double seconds;

	switch (key) {
	case 'a':
		p->options.address = arg;
		return 0;
	case OPT_SECRET:
		p->options.secret = arg;
		return 0;
	case OPT_TIMEOUT:
		seconds = strtod(arg, &end);
		if (end == arg || *end || !(seconds > 0 && seconds < 1e6))
			argp_error(state, "--timeout %s: choose a number of seconds above 0", arg);
		p->options.timeout_ns = (uint64_t)(seconds * 1e9);
		p->options.timeout_given = true;
		return 0;
	case OPT_JSON:
		p->options.json = true;
		return 0;
	case 'V':
		printf("shardctl %s\n", SHARD_RELEASE);
		exit(CTL_OK);
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp common = {argp_rows, on_common, NULL, NULL, NULL, NULL, NULL};

/* --- behind the command's name --- */

static error_t on_own(int key, char *arg, struct argp_state *state)
{
	struct parsed *p = state->input;

	if (key >= CTL_KEY && key < CTL_KEY + CTL_VALUES) {
		p->options.value[key - CTL_KEY] = arg ? arg : "";
		return 0;
	}
	switch (key) {
	case ARGP_KEY_INIT:
		state->child_inputs[0] = p;
		return 0;
	case ARGP_KEY_ARG:
		if (p->options.words_nr == (int)NR(p->word))
			argp_error(state, "too many words after %s", p->command->name);
		p->word[p->options.words_nr++] = arg;
		return 0;
	case ARGP_KEY_END:
		if (p->options.words_nr < p->command->words_min ||
		    p->options.words_nr > p->command->words_max)
			argp_error(state, "write %s%s%s", p->command->name,
				   p->command->words[0] ? " " : "", p->command->words);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static void parse_own(struct parsed *p, struct argp_state *state)
{
	const struct argp_child children[] = {{&common, 0, "Options of all commands:", 10}, {0}};
	const struct argp argp = {p->command->options,
				  on_own,
				  p->command->words,
				  p->command->help,
				  children,
				  NULL,
				  NULL};
	char name[64];

	snprintf(name, sizeof(name), "shardctl %s", p->command->name);
	state->argv[state->next - 1] = name;
	argp_parse(&argp, state->argc - state->next + 1, state->argv + state->next - 1, 0, NULL, p);
	state->next = state->argc;
}

/* --- before it --- */

static error_t on_first(int key, char *arg, struct argp_state *state)
{
	struct parsed *p = state->input;

	switch (key) {
	case ARGP_KEY_INIT:
		state->child_inputs[0] = p;
		return 0;
	case ARGP_KEY_ARG:
		for (size_t i = 0; i < NR(commands) && !p->command; i++)
			/* A second row with the same name is only for --help. */
			if (strcmp(commands[i].name, arg) == 0)
				p->command = &commands[i];
		if (!p->command)
			argp_error(state, "%s: no such command", arg);
		parse_own(p, state);
		return 0;
	case ARGP_KEY_END:
		if (!p->command)
			argp_error(state, "which command?");
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static char *help_filter(int key, const char *text, void *input)
{
	char *out = NULL, left[64];
	size_t bytes = 0;
	FILE *f;

	(void)input;
	if (key != ARGP_KEY_HELP_EXTRA || !(f = open_memstream(&out, &bytes)))
		return (char *)(uintptr_t)text;
	fprintf(f, "Commands (`shardctl COMMAND --help` lists the options of one):\n");
	for (size_t i = 0; i < NR(commands); i++) {
		snprintf(left, sizeof(left), "%s %s", commands[i].name, commands[i].words);
		fprintf(f, "  %-24s %s\n", left, commands[i].help);
	}
	fprintf(f, "\nExit status: 0 ok, 1 failed or differs, 2 usage, 3 unreachable,\n4 "
		   "configuration, 5 refused.");
	fclose(f);
	return out;
}

/* A command whose output cannot be written has failed. */
static enum ctl_exit said(enum ctl_exit rc)
{
	bool ok = fflush(stdout) == 0 && !ferror(stdout);

	return ok || rc != CTL_OK
		       ? rc
		       : ctl_fail(CTL_FAILED, "the standard output cannot be written: %s",
				  strerror(errno));
}

int main(int argc, char **argv)
{
	static const struct argp_child children[] = {{&common, 0, NULL, 0}, {0}};
	static const struct argp argp = {
		NULL,
		on_first,
		"COMMAND [WORD...]",
		"shardctl plans for shardd, looks at it, and checks what it runs on.",
		children,
		help_filter,
		NULL,
	};
	const char *from_env = getenv("SHARD_ADDRESS"), *secret = getenv("SHARD_SECRET");
	struct parsed p = {
		.options = {.address = from_env && *from_env ? from_env : CTL_ADDRESS,
			    .secret = secret && *secret ? secret : NULL,
			    .timeout_ns = 5000000000ull},
	};

	struct spawn spawn;
	struct err e;

	argp_err_exit_status = CTL_USAGE;
	if (argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &p) != 0)
		return CTL_USAGE;
	p.options.words = p.word;
	if (p.command->run != ctl_bench && spawn_is(p.options.address)) {
		if (spawn_find(&spawn, p.options.address, &e) != SHARD_OK)
			return (int)ctl_fail(ctl_exit_of(e.status), "%s", e.text);
		p.options.address = spawn.address; /* To look at a daemon must not start one. */
	}
	return (int)said(p.command->run(&p.options));
}
