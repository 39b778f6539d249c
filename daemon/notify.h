/* SPDX-License-Identifier: Apache-2.0 */
/* notify.h: tells systemd, for a unit of Type=notify, that the daemon is ready, its status, that it
 * reloads or stops, and that its loop runs. */
#ifndef SHARD_NOTIFY_H
#define SHARD_NOTIFY_H

#include "server.h"

#define NOTIFY_STATUS_BYTES 512

struct notify {
	uv_timer_t timer;
	const struct server *server;
	uint64_t watchdog_ns; /* Half of WATCHDOG_USEC; 0: there is no watchdog. */
	uint64_t alive_ns, said_ns;
	char said[NOTIFY_STATUS_BYTES];
	bool started, over;
};

/* Without $NOTIFY_SOCKET all of these do nothing. */
/* Also says READY. */
void notify_start(struct notify *n, const struct server *server, uv_loop_t *loop,
		  const struct log *log);
void notify_reloading(struct notify *n);
void notify_reloaded(struct notify *n);
/* limit_ns: how long stopping may take. */
void notify_stopping(struct notify *n, uint64_t limit_ns);
/* Says why a start failed, for whoever asks for the unit's status. */
void notify_failed(const char *why);
/* The memory is the caller's again when the loop has run out of handles. */
void notify_close(struct notify *n);

#endif
