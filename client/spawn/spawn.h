/* SPDX-License-Identifier: Apache-2.0 */
/* spawn.h: "spawn:NAME" is a private daemon that all processes of one user on one machine share
 * under a name. The first one that connects starts it, and it ends after the last one. Thread-safe,
 * because nothing here outlives a call. */
#ifndef SHARD_CLIENT_SPAWN_H
#define SHARD_CLIENT_SPAWN_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { SPAWN_NAME_BYTES = 65, SPAWN_DIR_BYTES = 112, SPAWN_ADDRESS_BYTES = 144 };

struct spawn {
	char name[SPAWN_NAME_BYTES];
	char base[SPAWN_DIR_BYTES];        /* $XDG_RUNTIME_DIR/shardd, or /tmp/shardd-UID. */
	char dir[SPAWN_DIR_BYTES];         /* base/NAME: lock, shardd.sock, state, log. */
	char address[SPAWN_ADDRESS_BYTES]; /* unix:dir/shardd.sock. */
};

bool spawn_is(const char *address);
/* Finds name and folder. SHARD_BAD_ARG: the name or path is invalid. SHARD_DENIED: base or dir
 * exists and is not this user's alone, or others may write XDG_RUNTIME_DIR. */
enum shard_status spawn_find(struct spawn *s, const char *address, struct err *e);

/* The process at a socket of spawn:NAME is trusted with everything. SHARD_DENIED unless it is this
 * user's. */
enum shard_status spawn_peer(const char *address, int fd, struct err *e);

/* Connects by attempt(arg), which answers SHARD_UNREACHABLE or SHARD_CLOSED when there is no
 * daemon. Then one is started, unless another process was faster. Failures leave the thread's
 * sentence (text.c). */
typedef enum shard_status (*spawn_attempt)(void *arg);
enum shard_status spawn_connect(const char *address, uint64_t deadline_ns, spawn_attempt attempt,
				void *arg);

/* Adds to the thread's sentence, which is about a budget, the variable that sets it. */
void spawn_advise(const char *address);

/* --- launch.c --- */
struct launch {
	const char *path;
	char *const *argv, *const *envp;
	int null_fd, log_fd; /* null_fd becomes stdin and stdout, log_fd stderr. */
	pid_t pid;
	int error; /* The errno of a step after clone(). */
};
/* Starts a process in a session of its own that is not this process's child. There is no SIGCHLD,
 * no zombie and no atfork handler, and it has no descriptors but the three. Returns 0 with ->pid,
 * or an errno, which is also in ->error if a step after the first clone() failed. */
int launch(struct launch *l);

#endif
