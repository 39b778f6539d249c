/* SPDX-License-Identifier: Apache-2.0 */
/* tool.h: runs shardctl and shardd as a script would. A test gives the arguments and gets the exit
 * code and the text. Failures to run end the test. */
#ifndef SHARD_TESTS_TOOL_H
#define SHARD_TESTS_TOOL_H

/* words has the arguments, separated by single blanks. name is "shardctl", "shardd" or a whole
 * path. Returns the exit code, or -1 for a signal. *out gets stdout and stderr together, and the
 * caller frees it. out may be NULL. The run may take 20 s. */
int tool_run(char **out, const char *name, const char *words);
/* Runs it as another user, if the test is root. 97: that user may not run it. */
int tool_run_as(unsigned uid, char **out, const char *name, const char *words);
/* The same. The exit code must be rc, and text must be somewhere in the output ("": anything). */
void tool_expect(int rc, const char *text, const char *name, const char *words);

#endif
