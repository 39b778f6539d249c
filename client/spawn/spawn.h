/* SPDX-License-Identifier: Apache-2.0 */
/* spawn.h: "spawn:NAME": a private daemon that all processes of one user on one machine share under
 * a name: the first one that connects starts it, and it ends after the last one. Thread-safe:
 * nothing here outlives a call. */
#ifndef SHARD_CLIENT_SPAWN_H
#define SHARD_CLIENT_SPAWN_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { SPAWN_NAME_BYTES = 65, SPAWN_DIR_BYTES = 112, SPAWN_ADDRESS_BYTES = 144 };

struct spawn {
	char name[SPAWN_NAME_BYTES];
	char base[SPAWN_DIR_BYTES];        /* $XDG_RUNTIME_DIR/shardd, or /tmp/shardd-UID */
	char dir[SPAWN_DIR_BYTES];         /* base/NAME: lock, shardd.sock, state, log */
	char address[SPAWN_ADDRESS_BYTES]; /* unix:dir/shardd.sock */
};

bool spawn_is(const char *address);
/* Name and folder. SHARD_BAD_ARG; SHARD_DENIED: base or dir is there, and is not this user's alone,
 * or others may write XDG_RUNTIME_DIR. */
enum shard_status spawn_find(struct spawn *s, const char *address, struct err *e);

/* Who answers at a socket of spawn:NAME is trusted with everything: SHARD_DENIED unless it is this
 * user. */
enum shard_status spawn_peer(const char *address, int fd, struct err *e);

/* Connects by attempt(arg), which says SHARD_UNREACHABLE or SHARD_CLOSED when there is no daemon:
 * then one is started, unless another process was faster. Failures leave the thread's sentence
 * (text.c). */
typedef enum shard_status (*spawn_attempt)(void *arg);
enum shard_status spawn_connect(const char *address, uint64_t deadline_ns, spawn_attempt attempt,
				void *arg);

void spawn_advise(const char *address); /* the thread's sentence, about a budget, also says which
					   variable has it */

/* --- launch.c --- */
struct launch {
	const char *path;
	char *const *argv, *const *envp;
	int null_fd, log_fd; /* stdin and stdout; stderr */
	pid_t pid;
	int error; /* of execve() */
};
/* A process in a session of its own that is not this process's child: no SIGCHLD, no zombie, no
 * atfork handlers, no descriptors but the three. 0 and ->pid, or errno; ->error also if only the
 * last step, becoming the program, failed. */
int launch(struct launch *l);

#endif
