/* SPDX-License-Identifier: Apache-2.0 */
/* main() of shardctl: it finds the subcommand's row, parses the options and calls the subcommand.
 * The options that all subcommands share may stand before or behind the subcommand's name, and the
 * subcommand's own options stand behind it. Results go to stdout. What went wrong goes to stderr as
 * one sentence. Scripts read the exit code (ctl.h). */
#include "base/check.h"
#include "base/nearest.h"
#include "base/output.h"
#include "ctl/ctl.h"
#include "ctl/help.h"
#include "ctl/json.h"
#include "spawn/spawn.h"

#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum ctl_exit ctl_help(const struct ctl_options *o);

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
	{"model", "list", "models: owner, mode, step, state, bytes", 1, 1, ctl_model, NULL},
	{"model", "show NAME", "all about one: settings, groups, placement, tensors", 2, 2,
	 ctl_model, ctl_show_options},
	{"model", "drop NAME", "frees its memory on every node, for ever", 2, 2, ctl_model,
	 ctl_drop_options},
	{"model", "set NAME KEY VALUE", "lr or clip, from the next step on (or: default)", 4, 4,
	 ctl_model, NULL},
	{"model", "pause NAME", "no step after the one in hand", 2, 2, ctl_model, NULL},
	{"model", "resume NAME", "goes on, also after it diverged", 2, 2, ctl_model, NULL},
	{"model", "kick NAME RANK|NODE:PID", "puts a trainer out of the world", 3, 3, ctl_model,
	 ctl_kick_options},
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
	 ctl_new_options},
	{"secret", "rotate FILE", "another key in three steps, without a pause", 2, 2, ctl_secret,
	 ctl_rotate_options},
	{"config", "check FILE", "is FILE a configuration that shardd takes?", 2, 2, ctl_config,
	 ctl_check_options},
	{"config", "explain [FILE]", "every option with its value and who set it", 1, 2, ctl_config,
	 ctl_explain_options},
	{"help", "[COMMAND...]", "what a command does, with an example", 0, 2, ctl_help, NULL},
};

/* A row whose words begin with small letters is a subcommand: `show NAME` is model show. */
static size_t sub_bytes(const struct ctl_command *c)
{
	return strspn(c->words, "abcdefghijklmnopqrstuvwxyz");
}

static bool is_sub(const struct ctl_command *c, const char *word)
{
	return strlen(word) == sub_bytes(c) && strncmp(c->words, word, sub_bytes(c)) == 0;
}

/* "model show" of a row. */
static const char *whole_name(const struct ctl_command *c, char out[64])
{
	snprintf(out, 64, "%s%s%.*s", c->name, sub_bytes(c) > 0 ? " " : "", (int)sub_bytes(c),
		 c->words);
	return out;
}

enum { OPT_TIMEOUT = 256, OPT_JSON, OPT_SECRET, OPT_TLS };

#define NEGATIVE(digit)                                                                            \
	{                                                                                          \
		NULL, digit, "NUMBER", OPTION_HIDDEN | OPTION_ARG_OPTIONAL, NULL, 0                \
	}

static const struct argp_option argp_rows[] = {
	{"address", 'a', "ADDRESS", 0,
	 "unix:/path, host:port or spawn:NAME (default: $SHARD_ADDRESS, then " CTL_ADDRESS ")", 0},
	{"secret", OPT_SECRET, "FILE", 0,
	 "the cluster's secret, for host:port (default: $SHARD_SECRET)", 0},
	{"tls", OPT_TLS, "HOW", 0,
	 "off, psk, or a folder with tls.crt, tls.key and ca.crt, as the daemon's [net] tls is, "
	 "for "
	 "host:port (default: $SHARD_TLS)",
	 0},
	{"timeout", OPT_TIMEOUT, "SECONDS", 0, "give up after this (default: 5)", 0},
	{"json", OPT_JSON, NULL, 0, "print JSON", 0},
	{"version", 'V', NULL, 0, "print the version and exit", 0},
	/* A word that is a negative number looks like an option to getopt. */
	NEGATIVE('0'),
	NEGATIVE('1'),
	NEGATIVE('2'),
	NEGATIVE('3'),
	NEGATIVE('4'),
	NEGATIVE('5'),
	NEGATIVE('6'),
	NEGATIVE('7'),
	NEGATIVE('8'),
	NEGATIVE('9'),
	NEGATIVE('.'),
	{0},
};

struct parsed {
	struct ctl_options options;
	const struct ctl_command *command;
	const char *group; /* Before the subcommand of model, secret or config is known. */
	char *word[CTL_WORDS];
};

static void add_word(struct parsed *p, struct argp_state *state, char *word)
{
	char name[64];

	if (!p->command)
		argp_error(state, "%s: no such command", word);
	else if (p->options.words_nr == (int)NR(p->word))
		argp_error(state, "too many words after %s", whole_name(p->command, name));
	else
		p->word[p->options.words_nr++] = word;
}

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
	case OPT_TLS:
		p->options.tls = arg;
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
		if (key != '.' && (key < '0' || key > '9'))
			return ARGP_ERR_UNKNOWN;
		add_word(p, state, state->argv[state->next - 1]);
		return 0;
	}
}

static const struct argp common = {argp_rows, on_common, NULL, NULL, NULL, NULL, NULL};

static const struct argp_child below[] = {{&common, 0, "Options of all commands:", 10}, {0}};

/* --- behind the command's name --- */

static error_t on_own(int key, char *arg, struct argp_state *state)
{
	struct parsed *p = state->input;
	const struct ctl_command *c = p->command;
	const char *blank = c->words[0] ? " " : "";
	int nr = p->options.words_nr;

	if (key >= CTL_KEY && key < CTL_KEY + CTL_VALUES) {
		p->options.value[key - CTL_KEY] = arg ? arg : "";
		return 0;
	}
	switch (key) {
	case ARGP_KEY_INIT:
		state->child_inputs[0] = p;
		return 0;
	case ARGP_KEY_ARG:
		add_word(p, state, arg);
		return 0;
	case ARGP_KEY_END:
		if (nr > c->words_max)
			argp_error(state, "\"%s\" is too much: write %s%s%s", p->word[c->words_max],
				   c->name, blank, c->words);
		else if (nr < c->words_min)
			argp_error(state, "write %s%s%s", c->name, blank, c->words);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

/* Gives the words behind state->next - 1, which is the command's, to a parser of its own. */
static void parse_rest(const struct argp *argp, char *name, struct argp_state *state)
{
	char whole[80];
	struct parsed *p = state->input;

	snprintf(whole, sizeof(whole), "shardctl %s", name);
	state->argv[state->next - 1] = whole;
	/* In order: a negative number is an option to getopt, which would move it to the front. */
	argp_parse(argp, state->argc - state->next + 1, state->argv + state->next - 1,
		   ARGP_IN_ORDER, NULL, p);
	state->next = state->argc;
}

static void parse_own(struct parsed *p, struct argp_state *state)
{
	const struct ctl_command *c = p->command;
	char name[64], doc[2048];
	const struct ctl_page *page = ctl_page(whole_name(c, name));

	/* argp puts what stands behind \v below the list of options. */
	snprintf(doc, sizeof(doc), "%s: %s%s\n\n%s\vExample:\n%s", name, c->help,
		 strchr(c->help, '?') != NULL ? "" : ".", page ? page->about : "",
		 page ? page->example : "");
	parse_rest(
		&(const struct argp){c->options, on_own,
				     c->words + sub_bytes(c) + strspn(c->words + sub_bytes(c), " "),
				     doc, below, NULL, NULL},
		name, state);
}

/* --- a command with subcommands --- */

static const char *command_at(const void *arg, uint32_t i)
{
	(void)arg;
	return i < NR(commands) ? commands[i].name : NULL;
}

/* The subcommands of a group, each in a buffer of the caller. */
struct subs {
	const char *group;
	char name[64];
	uint32_t row; /* The one after the row that was returned last. */
};

static const char *sub_next(struct subs *s)
{
	for (; s->row < NR(commands); s->row++) {
		const struct ctl_command *c = &commands[s->row];

		if (strcmp(c->name, s->group) != 0 || sub_bytes(c) == 0)
			continue;
		snprintf(s->name, sizeof(s->name), "%.*s", (int)sub_bytes(c), c->words);
		s->row++;
		return s->name;
	}
	return NULL;
}

static bool is_group(const char *name)
{
	struct subs s = {.group = name};

	return sub_next(&s) != NULL;
}

static void list_rows(FILE *f, const char *group)
{
	char left[64];

	for (size_t i = 0; i < NR(commands); i++) {
		if (group && strcmp(commands[i].name, group) != 0)
			continue;
		snprintf(left, sizeof(left), "%s %s", commands[i].name, commands[i].words);
		fprintf(f, "  %-24s %s\n", left, commands[i].help);
	}
}

static void no_subcommand(struct argp_state *state, const char *group, const char *word)
{
	struct subs s = {.group = group};
	char list[200] = "";
	const char *name, *last = NULL;
	size_t used = 0;

	while ((name = sub_next(&s)) != NULL)
		used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s", used ? ", " : "",
					 name);
	last = strrchr(list, ',');
	argp_error(state, "%s: no such subcommand: choose %.*s%s%s", word,
		   (int)(last ? last - list : (ptrdiff_t)used), list, last ? " or" : "",
		   last ? last + 1 : "");
}

static error_t on_group(int key, char *arg, struct argp_state *state)
{
	struct parsed *p = state->input;

	switch (key) {
	case ARGP_KEY_INIT:
		state->child_inputs[0] = p;
		return 0;
	case ARGP_KEY_ARG:
		for (size_t i = 0; i < NR(commands) && !p->command; i++)
			if (strcmp(commands[i].name, p->group) == 0 && is_sub(&commands[i], arg))
				p->command = &commands[i];
		if (!p->command)
			no_subcommand(state, p->group, arg);
		add_word(p, state, arg);
		parse_own(p, state);
		return 0;
	case ARGP_KEY_END:
		if (p->command)
			return 0;
		fprintf(stderr, "shardctl: %s does one of these:\n", p->group);
		list_rows(stderr, p->group);
		exit(CTL_USAGE);
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static char *group_filter(int key, const char *text, void *input)
{
	const struct parsed *p = input;
	char *out = NULL;
	size_t bytes = 0;
	FILE *f;

	if (key != ARGP_KEY_HELP_EXTRA || !(f = open_memstream(&out, &bytes)))
		return (char *)(uintptr_t)text;
	fprintf(f, "Subcommands (`shardctl %s SUBCOMMAND --help` says more of one):\n", p->group);
	list_rows(f, p->group);
	fclose(f);
	return out;
}

static void parse_group(struct parsed *p, char *name, struct argp_state *state)
{
	const struct ctl_page *page = ctl_page(name);
	const struct argp argp = {
		NULL, on_group, "SUBCOMMAND [WORD...]", page->about, below, group_filter, NULL};

	p->group = name;
	parse_rest(&argp, name, state);
}

/* --- before it --- */

static error_t on_first(int key, char *arg, struct argp_state *state)
{
	struct parsed *p = state->input;
	const char *near;

	switch (key) {
	case ARGP_KEY_INIT:
		state->child_inputs[0] = p;
		return 0;
	case ARGP_KEY_ARG:
		if (is_group(arg)) {
			parse_group(p, arg, state);
			return 0;
		}
		for (size_t i = 0; i < NR(commands) && !p->command; i++)
			if (strcmp(commands[i].name, arg) == 0)
				p->command = &commands[i];
		near = p->command ? NULL : nearest_word(arg, command_at, NULL);
		if (!p->command)
			argp_error(state, "%s: no such command%s%s", arg,
				   near ? ": did you mean " : "", near ? near : "");
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
	char *out = NULL;
	size_t bytes = 0;
	FILE *f;

	(void)input;
	if (key != ARGP_KEY_HELP_EXTRA || !(f = open_memstream(&out, &bytes)))
		return (char *)(uintptr_t)text;
	fprintf(f, "Commands (`shardctl COMMAND --help` lists the options of one):\n");
	list_rows(f, NULL);
	fprintf(f, "\nExit status: 0 ok, 1 failed or differs, 2 usage, 3 unreachable,\n4 "
		   "configuration, 5 refused.");
	fclose(f);
	return out;
}

static bool parse(struct parsed *p, int argc, char **argv)
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

	return argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, p) == 0;
}

/* `shardctl help model show` is `shardctl model show --help`. */
static enum ctl_exit ctl_help(const struct ctl_options *o)
{
	char program[] = "shardctl", flag[] = "--help";
	char *argv[CTL_WORDS + 3] = {program};
	struct parsed p = {.command = NULL};
	int argc = 1;

	for (int i = 0; i < o->words_nr; i++)
		argv[argc++] = o->words[i];
	argv[argc++] = flag;
	(void)parse(&p, argc, argv); /* It prints, and ends the process. */
	return CTL_USAGE;
}

/* --- what is wrong with the words, as JSON --- */

/* argp and getopt write what is wrong to stderr and end the process. With --json that text is kept
 * in memory meanwhile, so that it can be printed as an object, too. */
struct usage {
	FILE *real; /* stderr as it was. NULL: the words have been read. */
	FILE *kept;
	char *text;
	size_t bytes;
};

static void usage_end(struct usage *u)
{
	if (u == NULL || u->real == NULL)
		return;
	fclose(u->kept);
	stderr = u->real;
	u->real = NULL;
}

static void usage_exit(int rc, void *arg)
{
	struct usage *u = arg;
	const char *at;

	if (u->real != NULL) {
		usage_end(u);
		fputs(u->text, stderr);
		at = strncmp(u->text, "shardctl", 8) == 0 ? strstr(u->text, ": ") : NULL;
		u->text[strcspn(u->text, "\n")] = 0;
		if (rc != CTL_OK)
			ctl_print_error(at != NULL ? at + 2 : u->text, (enum ctl_exit)rc);
	}
	free(u->text);
	free(u);
}

static bool wants_json(int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		if (strcmp(argv[i], "--json") == 0)
			return true;
	return false;
}

/* NULL: nothing is kept. What it returns is freed when the process ends. */
static struct usage *usage_begin(int argc, char **argv)
{
	struct usage *u = wants_json(argc, argv) ? calloc(1, sizeof(*u)) : NULL;

	if (u == NULL || (u->kept = open_memstream(&u->text, &u->bytes)) == NULL ||
	    on_exit(usage_exit, u) != 0)
		return NULL;
	u->real = stderr;
	stderr = u->kept;
	return u;
}

int main(int argc, char **argv)
{
	const char *from_env = getenv("SHARD_ADDRESS"), *secret = getenv("SHARD_SECRET"),
		   *tls = getenv("SHARD_TLS");
	struct parsed p = {
		.options = {.address = from_env && *from_env ? from_env : CTL_ADDRESS,
			    .secret = secret && *secret ? secret : NULL,
			    .tls = tls && *tls ? tls : NULL,
			    .timeout_ns = 5000000000ull},
	};
	struct usage *usage;
	struct spawn spawn;
	struct err e;

	output_checked();
	argp_err_exit_status = CTL_USAGE;
	usage = usage_begin(argc, argv);
	if (!parse(&p, argc, argv))
		return CTL_USAGE;
	usage_end(usage);
	p.options.words = p.word;
	if (p.command->run != ctl_bench && spawn_is(p.options.address)) {
		if (spawn_find(&spawn, p.options.address, &e) != SHARD_OK)
			return (int)ctl_fail_as(&p.options, e.status, "", e.text);
		p.options.address = spawn.address; /* To look at a daemon must not start one. */
	}
	return (int)p.command->run(&p.options);
}
