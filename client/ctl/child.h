/* SPDX-License-Identifier: Apache-2.0 */
/* child.h: another program, run for what it prints. */
#ifndef SHARD_CTL_CHILD_H
#define SHARD_CTL_CHILD_H

/* Runs become(args) in a process of its own and returns its exit code, or -1 if there was none.
 * become() replaces the process, and where it returns that is the exit code. *out is what it wrote
 * to stdout, and *err what it wrote to stderr. With err NULL both are in *out. The caller frees
 * them. */
int child_run(int (*become)(const char *const *), const char *const *args, char **out, char **err);

/* For child_run(): shardd, as ctl_shardd() finds it. */
int child_shardd(const char *const *args);

#endif
