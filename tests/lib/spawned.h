/* SPDX-License-Identifier: Apache-2.0 */
/* spawned.h: tests of spawn:NAME: a runtime folder of their own, a shardd that writes down who was
 * started, and the wait for their ends. The folder is XDG_RUNTIME_DIR. Failures end the test. */
#ifndef SHARD_TESTS_SPAWNED_H
#define SHARD_TESTS_SPAWNED_H

#include "shard.h"

#include <sys/types.h>

enum { SPAWNED_MAX = 256, SPAWNED_ENDS_MS = 15000, SPAWNED_PATH = 200 };

/* For cmocka: makes the folder and sets XDG_RUNTIME_DIR, SHARD_DAEMON, SHARD_LINGER = 100ms,
 * SHARD_MEMORY = 64MiB; waits for all daemons. */
int spawned_begin(void **state);
int spawned_end(void **state);
void spawned_path(char path[SPAWNED_PATH], const char *name);      /* in the folder */
void spawned_put(const char *name, const char *text, mode_t mode); /* a file in it */
int spawned_started(pid_t pids[SPAWNED_MAX]);                      /* so far */
void spawned_must_end(pid_t pid);                   /* it is nobody's child, so not by waitpid() */
shard_client *spawned_connect(const char *address); /* SHARD_OK */
enum shard_status spawned_try(const char *address, int ms); /* connects and disconnects */

#endif
