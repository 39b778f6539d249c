/* SPDX-License-Identifier: Apache-2.0 */
/* output.h: a program whose output was not written has failed. */
#ifndef SHARD_BASE_OUTPUT_H
#define SHARD_BASE_OUTPUT_H

/* At the exit of this process, whichever way it takes, what is left of stdout is written. Where
 * that fails, or failed before, one sentence on stderr says why, and the exit status is 1 if it was
 * 0. Call it first in main(): handlers of exit that print run before it then. _exit() skips it. */
void output_checked(void);

#endif
