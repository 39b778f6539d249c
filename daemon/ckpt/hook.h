/* SPDX-License-Identifier: Apache-2.0 */
/* hook.h: a program of the operator that runs beside the daemon, as its user. It is begun in a job
 * and watched on the loop, so that it stops nothing however long it takes. It leads a process group
 * of its own, and the whole group ends with it. What it puts into another group or session is not
 * ended. Its last words to stderr are kept. */
#ifndef SHARD_CKPT_HOOK_H
#define SHARD_CKPT_HOOK_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#define HOOK_GRACE_MS 5000 /* From SIGTERM to SIGKILL. */
#define HOOK_LEFT_MS  1000 /* From SIGKILL until it is left behind. */
#define HOOK_HELD_FD  3    /* The descriptor that it gets. */

struct hook {
	pid_t pid;
	int ends_fd, says_fd; /* Readable when it has ended, and its stderr. */
	uv_poll_t ends, says;
	uv_timer_t timer;
	unsigned polls;   /* That were made, ends first. */
	unsigned handles; /* That are not closed yet. */
	bool watched;
	bool told;      /* hook_end() was called, or it has ended. */
	bool leaves;    /* hook_leave() was called, or it has ended. */
	unsigned looks; /* For its end, where it cannot be watched. */
	double seconds; /* Its time. */
	char said[300]; /* The end of what it wrote to stderr. */
	size_t said_nr;
	struct err why; /* SHARD_OK: it has exited with 0. */
	void (*done)(struct hook *h);
};

/* In a job. Runs argv[0], a path, with the daemon's environment and the variables in more, each
 * "NAME=VALUE"; NULL ends both lists. What a service manager gave the daemon alone is left out.
 * held_fd is open in the program as HOOK_HELD_FD, and in what it begins. */
enum shard_status hook_spawn(struct hook *h, char *const argv[], const char *const more[],
			     int held_fd, struct err *e);
/* On the loop, after hook_spawn(). Calls done when it has ended, whose reason is then in why. After
 * timeout_ns it gets SIGTERM. If it cannot be watched, it gets SIGKILL at once. */
void hook_watch(struct hook *h, uv_loop_t *loop, uint64_t timeout_ns, void (*done)(struct hook *h));
/* It gets SIGTERM now, and SIGKILL later. SHARD_OK is no reason. Only the first call counts. */
void hook_end(struct hook *h, const struct err *why);
/* The same for a stop of the daemon, which a program that hangs in the kernel must not hold up:
 * done is called at most HOOK_GRACE_MS + HOOK_LEFT_MS later, also if it still runs. */
void hook_leave(struct hook *h, const struct err *why);

#endif
