/* SPDX-License-Identifier: Apache-2.0 */
/* ctl.h: shardctl: what its subcommands share. One row of the table in main.c per subcommand, one file each. */
#ifndef SHARD_CTL_H
#define SHARD_CTL_H

#include "base/status.h"

#include <stdbool.h>

enum ctl_exit { CTL_OK = 0, CTL_FAILED = 1, CTL_USAGE = 2, CTL_UNREACHABLE = 3, CTL_CONFIG = 4, CTL_REFUSED = 5 };

struct ctl_options {
	const char *address; /* unix:/path or host:port */
	uint64_t timeout_ns;
	bool json;
	const char *program; /* argv[0] */
	int words_nr;        /* after the subcommand */
	char *const *words;
};

struct ctl_command {
	const char *name, *words, *help;
	int words_min, words_max;
	enum ctl_exit (*run)(const struct ctl_options *o);
};

enum ctl_exit ctl_status(const struct ctl_options *o);
enum ctl_exit ctl_config(const struct ctl_options *o);

/* One request over one connection: connects, says HELLO, sends op, waits for its answer until the timeout. *text is the Text of the
 * answer, for free(). On failure e says why and which exit code is right comes from ctl_exit_of(). */
enum shard_status ctl_ask(const struct ctl_options *o, uint16_t op, char **text, struct err *e);
enum ctl_exit ctl_exit_of(enum shard_status st);

#endif
