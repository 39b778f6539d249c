/* SPDX-License-Identifier: Apache-2.0 */
/* notify.h: what systemd hears from a daemon of Type=notify: ready, its status, reloading,
 * stopping, and that its loop runs. */
#ifndef SHARD_NOTIFY_H
#define SHARD_NOTIFY_H

#include "server.h"

#define NOTIFY_STATUS_BYTES 512

struct notify {
	uv_timer_t timer;
	const struct server *server;
	uint64_t watchdog_ns; /* half of WATCHDOG_USEC; 0: nobody watches */
	uint64_t alive_ns, said_ns;
	char said[NOTIFY_STATUS_BYTES];
	bool started, over;
};

/* Without $NOTIFY_SOCKET, all of these do nothing. */
void notify_start(struct notify *n, const struct server *server, uv_loop_t *loop,
		  const struct log *log); /* ready */
void notify_reloading(struct notify *n);
void notify_reloaded(struct notify *n);
/* It may take so long. */
void notify_stopping(struct notify *n, uint64_t limit_ns);
/* A start that failed, told to who asks for the unit's status. */
void notify_failed(const char *why);
void notify_close(struct notify *n); /* the memory is the caller's again when the loop has run out
					of handles */

#endif
