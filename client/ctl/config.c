/* SPDX-License-Identifier: Apache-2.0 */
/* `shardctl config check FILE` and `config explain` run the daemon's own parser, which means that
 * they run shardd with --check or --explain. They take the shardd that lies beside shardctl if
 * there is one, and otherwise the one from PATH. Its messages and its exit code (4: the
 * configuration is wrong) become those of shardctl. doctor.c and others run shardd through
 * ctl_shardd(), too. It fails where shardd cannot be run. */
#include "ctl/ctl.h"

#include "base/check.h"

#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CONFIG, SET };

const struct argp_option ctl_config_options[] = {
	{"config", CTL_KEY + CONFIG, "FILE", 0,
	 "explain: this file (default: /etc/shardd/shardd.conf if it is there)", 0},
	{"set", CTL_KEY + SET, "SECTION.KEY=VALUE", 0, "explain: as with shardd --set", 0},
	{0},
};

static bool beside(char *path, size_t bytes)
{
	char self[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	if (n <= 0)
		return false;
	self[n] = 0;
	snprintf(path, bytes, "%s/shardd", dirname(self));
	return access(path, X_OK) == 0;
}

enum ctl_exit ctl_shardd(const char *const *args)
{
	/* execv() wants the arguments writable. */
	char path[PATH_MAX], *copy[32], name[] = "shardd";
	int n = 0;

	copy[n++] = name;
	for (; *args; args++) {
		CHECK(n < (int)NR(copy) - 1);
		copy[n] = strdup(*args);
		CHECK(copy[n]); /* Nothing has begun that could be undone. */
		n++;
	}
	copy[n] = NULL;
	if (beside(path, sizeof(path)))
		execv(path, copy);
	else
		execvp("shardd", copy);
	return ctl_fail(CTL_FAILED,
			"shardd cannot be run, which does this: %s: is it installed "
			"beside shardctl, or in PATH?",
			strerror(errno));
}

static enum ctl_exit check(const struct ctl_options *o)
{
	if (o->words_nr != 2)
		return ctl_fail(CTL_USAGE, "write config check FILE");
	if (o->json)
		return ctl_shardd(
			(const char *[]){"--explain", "--json", "--config", o->words[1], NULL});
	return ctl_shardd((const char *[]){"--check", "--config", o->words[1], NULL});
}

static enum ctl_exit explain(const struct ctl_options *o)
{
	const char *args[8] = {"--explain"};
	const char *file = o->words_nr == 2 ? o->words[1] : o->value[CONFIG];
	int n = 1;

	if (o->json)
		args[n++] = "--json";
	if (file) {
		args[n++] = "--config";
		args[n++] = file;
	}
	if (o->value[SET]) {
		args[n++] = "--set";
		args[n++] = o->value[SET];
	}
	return ctl_shardd(args);
}

enum ctl_exit ctl_config(const struct ctl_options *o)
{
	if (strcmp(o->words[0], "check") == 0)
		return check(o);
	if (strcmp(o->words[0], "explain") == 0)
		return explain(o);
	return ctl_fail(CTL_USAGE,
			"config %s: unknown: choose config check FILE or config explain [FILE]",
			o->words[0]);
}
