/* SPDX-License-Identifier: Apache-2.0 */
/* linger.h: a daemon that ends by itself when nothing has been connected to it for a while
 * ([daemon] linger). */
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

/* conf->linger_ns 0: does nothing. over(arg) comes once, on the loop; the lock is this process's
 * from then on until it ends. */
void linger_start(struct linger_watch *l, const struct config *conf, const struct server *server,
		  uv_loop_t *loop, void (*over)(void *arg), void *arg);
void linger_close(struct linger_watch *l); /* the memory is the caller's again when the loop has run
					      out of handles */

#endif
