/* SPDX-License-Identifier: Apache-2.0 */
/* tool.h: runs shardctl and shardd as a script would: arguments in, exit code and text out.
 * Failures to run end the test. */
#ifndef SHARD_TESTS_TOOL_H
#define SHARD_TESTS_TOOL_H

/* words: arguments separated by single blanks; name: "shardctl", "shardd", or a whole path. Returns
 * the exit code, -1 for a signal; *out: stdout and stderr together, for free(); may be NULL. At
 * most 20 s. */
int tool_run(char **out, const char *name, const char *words);
int tool_run_as(unsigned uid, char **out, const char *name,
		const char *words); /* for root: as somebody else; 97: may not run it */
/* The same, and the exit code must be rc and text somewhere in what was printed ("": anything). */
void tool_expect(int rc, const char *text, const char *name, const char *words);

#endif
