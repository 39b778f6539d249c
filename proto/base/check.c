/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a process that found itself wrong: one line on stderr, then abort() so that a core
 * file keeps the evidence. */
#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>

void check_failed(const char *what, const char *file, int line)
{
	fprintf(stderr, "level=fatal event=check_failed what=\"%s\" at=%s:%d\n", what, file, line);
	abort();
}
