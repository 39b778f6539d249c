/* SPDX-License-Identifier: Apache-2.0 */
/* ctl.h: what the subcommands of shardctl share. Each subcommand has a row in the table of main.c
 * and a file of its own. */
#ifndef SHARD_CTL_H
#define SHARD_CTL_H

#include "base/status.h"

#include <argp.h>
#include <stdbool.h>
#include <stddef.h>

/* Where neither --address nor $SHARD_ADDRESS names another one. */
#define CTL_ADDRESS "unix:/run/shardd/shardd.sock"

enum ctl_exit {
	CTL_OK = 0,
	CTL_FAILED = 1,
	CTL_USAGE = 2,
	CTL_UNREACHABLE = 3,
	CTL_CONFIG = 4,
	CTL_REFUSED = 5,
	CTL_INTERRUPTED = 130 /* By ^C, as a shell says it. */
};

enum { CTL_VALUES = 24, CTL_WORDS = 8, CTL_KEY = 512 };

struct ctl_options {
	const char *address; /* unix:/path or host:port */
	const char *secret;  /* File with the cluster's secret, for tcp. NULL: none. */
	const char *tls;     /* "off", "psk" or a folder, for tcp. NULL: off. */
	uint64_t timeout_ns;
	bool timeout_given; /* False: timeout_ns is the default, which is for short questions. */
	bool json;
	bool all;     /* STATUS: of the whole cluster. */
	int words_nr; /* The number of words after the subcommand's name. */
	char *const *words;
	/* The subcommand's own option CTL_KEY + i. NULL if it was not given, and "" for a flag that
	 * was. */
	const char *value[CTL_VALUES];
};

struct ctl_command {
	const char *name, *words, *help;
	int words_min, words_max;
	enum ctl_exit (*run)(const struct ctl_options *o);
	const struct argp_option *options; /* Its own options. NULL: none. */
};

enum ctl_exit ctl_status(const struct ctl_options *o);
enum ctl_exit ctl_events(const struct ctl_options *o);
enum ctl_exit ctl_members(const struct ctl_options *o);
enum ctl_exit ctl_config(const struct ctl_options *o);
enum ctl_exit ctl_plan(const struct ctl_options *o);
enum ctl_exit ctl_bench(const struct ctl_options *o);
enum ctl_exit ctl_top(const struct ctl_options *o);
enum ctl_exit ctl_doctor(const struct ctl_options *o);
enum ctl_exit ctl_model(const struct ctl_options *o);
enum ctl_exit ctl_kick(const struct ctl_options *o);
enum ctl_exit ctl_verify(const struct ctl_options *o);
enum ctl_exit ctl_rebalance(const struct ctl_options *o);
enum ctl_exit ctl_drain(const struct ctl_options *o);
extern const struct argp_option ctl_rebalance_options[], ctl_drain_options[];
enum ctl_exit ctl_history(const struct ctl_options *o);
enum ctl_exit ctl_replay(const struct ctl_options *o);
extern const struct argp_option ctl_history_options[], ctl_replay_options[];
enum ctl_exit ctl_save(const struct ctl_options *o);
enum ctl_exit ctl_restore(const struct ctl_options *o);
extern const struct argp_option ctl_save_options[], ctl_restore_options[];
enum ctl_exit ctl_checkpoints(const struct ctl_options *o);
enum ctl_exit ctl_export(const struct ctl_options *o);
enum ctl_exit ctl_import(const struct ctl_options *o);
extern const struct argp_option ctl_show_options[], ctl_drop_options[], ctl_kick_options[],
	ctl_checkpoints_options[], ctl_export_options[], ctl_import_options[];
extern const struct argp_option ctl_status_options[], ctl_plan_options[], ctl_top_options[],
	ctl_check_options[], ctl_explain_options[], ctl_doctor_options[];
enum ctl_exit ctl_secret(const struct ctl_options *o);
extern const struct argp_option ctl_bench_options[], ctl_new_options[], ctl_rotate_options[];

/* The most arguments of ctl_shardd(), with the NULL behind them. */
enum { CTL_SHARDD_WORDS = 256 };
/* Replaces this process by shardd with these arguments. It returns only where that fails. */
enum ctl_exit ctl_shardd(const struct ctl_options *o, const char *const *args);
/* Runs shardd, and prints the JSON object that it writes, or the object of an error. */
enum ctl_exit ctl_shardd_json(const struct ctl_options *o, const char *const *args);

/* Makes one request over one connection: it connects, says HELLO, sends op, and waits for the
 * answer until the timeout. *text is the Text of the answer, which the caller frees with free(). On
 * failure e says why, and ctl_exit_of() gives the exit code. */
enum shard_status ctl_ask(const struct ctl_options *o, uint16_t op, char **text, struct err *e);
enum ctl_exit ctl_exit_of(enum shard_status st);

/* Prints one sentence to stderr and returns exit. With --json it prints the object of an error to
 * stdout, too (json.h), whose status is the name of the exit code. */
__attribute__((format(printf, 3, 4))) enum ctl_exit ctl_fail(const struct ctl_options *o,
							     enum ctl_exit exit, const char *fmt,
							     ...);
/* The same for what a daemon or the library said: "where: STATUS: text", or without where if it is
 * "". The object has the name of that status. Returns ctl_exit_of(st). */
enum ctl_exit ctl_fail_as(const struct ctl_options *o, enum shard_status st, const char *where,
			  const char *text);

/* text.c: numbers in the form that people write and read. */
enum { CTL_NUMBER_BYTES = 32 };
/* Takes 7.5B, 350M, 1T, 64Ki, 1e9 or 123. False: it is no number from 1 to max. */
bool ctl_count(const char *text, uint64_t max, uint64_t *out);
/* Writes "93.4 GiB", and returns out. */
const char *ctl_bytes(char out[CTL_NUMBER_BYTES], double bytes);
/* Writes "14 s", "25 min", "31 h" or "12 d", and returns out. */
const char *ctl_age(char out[CTL_NUMBER_BYTES], double seconds);

#endif
