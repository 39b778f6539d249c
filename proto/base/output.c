/* SPDX-License-Identifier: Apache-2.0 */
/* Looks at stdout when a program ends. main() of shardd and of shardctl call it, so that no
 * subcommand, and nothing that argp prints for --help, has to. It fails where the output goes to a
 * full disk, or nowhere. */
#include "base/output.h"

#include "base/check.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void look(int rc, void *arg)
{
	bool failed = ferror(stdout) != 0;

	(void)arg;
	errno = 0;
	if (fflush(stdout) == 0 && !failed)
		return;
	/* What failed earlier has left no errno. */
	fprintf(stderr, "%s: the standard output cannot be written: %s\n",
		program_invocation_short_name,
		errno != 0 ? strerror(errno) : "is the disk full, or its reader gone?");
	_exit(rc != 0 ? rc : 1);
}

void output_checked(void)
{
	CHECK(on_exit(look, NULL) == 0);
}
