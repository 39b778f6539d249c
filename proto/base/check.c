/* SPDX-License-Identifier: Apache-2.0 */
/* Ends a process whose own invariant does not hold. CHECK() calls check_failed(), which writes one
 * line to stderr. It then calls abort(), so that a core file keeps the evidence. It never
 * returns. */
#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>

void check_failed(const char *what, const char *file, int line)
{
	fprintf(stderr, "level=fatal event=check_failed what=\"%s\" at=%s:%d\n", what, file, line);
	abort();
}
