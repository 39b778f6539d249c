/* SPDX-License-Identifier: Apache-2.0 */
/* help.h: what --help says of a subcommand beside its options. */
#ifndef SHARD_CTL_HELP_H
#define SHARD_CTL_HELP_H

struct ctl_page {
	const char *name;    /* "status", or "model show". */
	const char *about;   /* What it does, and what that does to a job that runs. */
	const char *example; /* Lines of shell, each indented by two. */
};

/* The page of a subcommand. NULL: it has none. */
const struct ctl_page *ctl_page(const char *name);

#endif
