/* SPDX-License-Identifier: Apache-2.0 */
/* `shardctl config check FILE`: the daemon's own parser decides, so the daemon is what runs: `shardd --check --config FILE`, the one that
 * lies beside shardctl if there is one, else from PATH. Its messages and its exit code (4: the configuration is wrong) become ours. */
#include "ctl/ctl.h"

#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

enum ctl_exit ctl_config(const struct ctl_options *o)
{
	char path[PATH_MAX];
	char name[] = "shardd", check[] = "--check", config[] = "--config"; /* execv() wants them writable */
	char *const args[] = {name, check, config, o->words[1], NULL};

	if (strcmp(o->words[0], "check") != 0) {
		fprintf(stderr, "shardctl: config %s: unknown: choose config check FILE\n", o->words[0]);
		return CTL_USAGE;
	}
	if (beside(path, sizeof(path)))
		execv(path, args);
	else
		execvp("shardd", args);
	fprintf(stderr, "shardctl: shardd cannot be run to check the file: %s: is it installed beside shardctl, or in PATH?\n",
		strerror(errno));
	return CTL_FAILED;
}
