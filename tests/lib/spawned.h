/* SPDX-License-Identifier: Apache-2.0 */
/* spawned.h: for tests of spawn:NAME. It has a runtime folder of its own (XDG_RUNTIME_DIR), a
 * shardd that notes who was started, and the wait for the ends of these daemons. Failures end the
 * test. */
#ifndef SHARD_TESTS_SPAWNED_H
#define SHARD_TESTS_SPAWNED_H

#include "shard.h"

#include <sys/types.h>

enum { SPAWNED_MAX = 256, SPAWNED_ENDS_MS = 15000, SPAWNED_PATH = 200 };

/* For cmocka. spawned_begin() makes the folder and sets XDG_RUNTIME_DIR, SHARD_DAEMON, SHARD_LINGER
 * = 100ms and SHARD_MEMORY = 64MiB. spawned_end() waits for all daemons. */
int spawned_begin(void **state);
int spawned_end(void **state);
void spawned_path(char path[SPAWNED_PATH], const char *name); /* In the folder. */
/* Writes a file in the folder. */
void spawned_put(const char *name, const char *text, mode_t mode);
int spawned_started(pid_t pids[SPAWNED_MAX]); /* So far. */
/* It is not a child of the test, so waitpid() cannot wait for it. */
void spawned_must_end(pid_t pid);
shard_client *spawned_connect(const char *address);         /* Must return SHARD_OK. */
enum shard_status spawned_try(const char *address, int ms); /* Connects and disconnects. */

#endif
