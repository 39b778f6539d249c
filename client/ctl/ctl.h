/* SPDX-License-Identifier: Apache-2.0 */
/* ctl.h: shardctl: what its subcommands share. One row of the table in main.c per subcommand, one
 * file each. */
#ifndef SHARD_CTL_H
#define SHARD_CTL_H

#include "base/status.h"

#include <argp.h>
#include <stdbool.h>
#include <stddef.h>

#define CTL_ADDRESS "unix:/run/shardd/shardd.sock" /* unless something else is said */

enum ctl_exit {
	CTL_OK = 0,
	CTL_FAILED = 1,
	CTL_USAGE = 2,
	CTL_UNREACHABLE = 3,
	CTL_CONFIG = 4,
	CTL_REFUSED = 5
};

enum { CTL_VALUES = 16, CTL_WORDS = 8, CTL_KEY = 512 };

struct ctl_options {
	const char *address; /* unix:/path or host:port */
	const char *secret;  /* file with the cluster's secret, for tcp; NULL: none */
	uint64_t timeout_ns;
	bool json;
	int words_nr; /* after the subcommand */
	char *const *words;
	const char *value[CTL_VALUES]; /* the subcommand's own options: CTL_KEY + i; NULL: not
					  given; a flag's is "" */
};

struct ctl_command {
	const char *name, *words, *help;
	int words_min, words_max;
	enum ctl_exit (*run)(const struct ctl_options *o);
	const struct argp_option *options; /* its own; NULL: none */
};

enum ctl_exit ctl_status(const struct ctl_options *o);
enum ctl_exit ctl_config(const struct ctl_options *o);
enum ctl_exit ctl_plan(const struct ctl_options *o);
enum ctl_exit ctl_bench(const struct ctl_options *o);
enum ctl_exit ctl_top(const struct ctl_options *o);
enum ctl_exit ctl_doctor(const struct ctl_options *o);
enum ctl_exit ctl_model(const struct ctl_options *o);
enum ctl_exit ctl_save(const struct ctl_options *o);
enum ctl_exit ctl_restore(const struct ctl_options *o);
extern const struct argp_option ctl_save_options[], ctl_restore_options[];
enum ctl_exit ctl_checkpoints(const struct ctl_options *o);
enum ctl_exit ctl_export(const struct ctl_options *o);
enum ctl_exit ctl_import(const struct ctl_options *o);
extern const struct argp_option ctl_model_options[], ctl_checkpoints_options[],
	ctl_export_options[], ctl_import_options[];
extern const struct argp_option ctl_plan_options[], ctl_top_options[], ctl_config_options[],
	ctl_doctor_options[];
enum ctl_exit ctl_secret(const struct ctl_options *o);
extern const struct argp_option ctl_bench_options[], ctl_secret_options[];

enum ctl_exit ctl_shardd(const char *const *args); /* becomes shardd with these arguments; returns
						      only if it cannot */

/* One request over one connection: connects, says HELLO, sends op, waits for its answer until the
 * timeout. *text is the Text of the answer, for free(). On failure e says why and which exit code
 * is right comes from ctl_exit_of(). */
enum shard_status ctl_ask(const struct ctl_options *o, uint16_t op, char **text, struct err *e);
enum ctl_exit ctl_exit_of(enum shard_status st);

/* One sentence to stderr; returns exit. */
__attribute__((format(printf, 2, 3))) enum ctl_exit ctl_fail(enum ctl_exit exit, const char *fmt,
							     ...);

/* text.c: numbers as people write and read them. */
enum { CTL_NUMBER_BYTES = 32 };
bool ctl_count(const char *text, uint64_t max,
	       uint64_t *out); /* 7.5B, 350M, 1T, 64Ki, 1e9, 123: at least 1 */
const char *ctl_bytes(char out[CTL_NUMBER_BYTES], double bytes); /* "93.4 GiB"; returns out */

#endif
