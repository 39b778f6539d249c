/* SPDX-License-Identifier: Apache-2.0 */
/* linger.h: ends a daemon by itself when nothing has been connected to it for a while ([daemon]
 * linger). */
#ifndef SHARD_LINGER_H
#define SHARD_LINGER_H

#include "server.h"

struct linger_watch {
	uv_timer_t timer;
	const struct server *server;
	uint64_t linger_ns, since_ns, ever;
	char lock[CONFIG_PATH_BYTES + 8];
	void (*over)(void *arg);
	void *arg;
	bool started;
};

/* Does nothing if conf->linger_ns is 0. over(arg) comes once, on the loop. From then on this
 * process holds the lock, if there is such a file, until it ends. */
void linger_start(struct linger_watch *l, const struct config *conf, const struct server *server,
		  uv_loop_t *loop, void (*over)(void *arg), void *arg);
/* The memory is the caller's again when the loop has run out of handles. */
void linger_close(struct linger_watch *l);

#endif
