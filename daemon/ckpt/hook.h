/* SPDX-License-Identifier: Apache-2.0 */
/* hook.h: a program of the operator that runs beside the daemon, as its user. It is begun in a job
 * and watched on the loop, so that it stops nothing however long it takes. It leads a process group
 * of its own, and the whole group ends with it. Its last words to stderr are kept. */
#ifndef SHARD_CKPT_HOOK_H
#define SHARD_CKPT_HOOK_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#define HOOK_GRACE_MS 5000 /* From SIGTERM to SIGKILL. */

struct hook {
	pid_t pid;
	int ends_fd, says_fd; /* Readable when it has ended, and its stderr. */
	uv_poll_t ends, says;
	uv_timer_t timer;
	unsigned handles; /* That are not closed yet. */
	bool watched, told;
	double seconds; /* Its time. */
	char said[300]; /* The end of what it wrote to stderr. */
	size_t said_nr;
	struct err why; /* SHARD_OK: it has exited with 0. */
	void (*done)(struct hook *h);
};

/* In a job. Runs argv[0], a path, with the daemon's environment and the variables in more, each
 * "NAME=VALUE"; NULL ends both lists. What a service manager gave the daemon alone is left out. */
enum shard_status hook_spawn(struct hook *h, char *const argv[], const char *const more[],
			     struct err *e);
/* On the loop, after hook_spawn(). Calls done when it has ended, whose reason is then in why. After
 * timeout_ns it gets SIGTERM. */
void hook_watch(struct hook *h, uv_loop_t *loop, uint64_t timeout_ns, void (*done)(struct hook *h));
/* It gets SIGTERM now, and SIGKILL later. SHARD_OK is no reason. Only the first call counts. */
void hook_end(struct hook *h, const struct err *why);

#endif
