/* SPDX-License-Identifier: Apache-2.0 */
/* server.h: one daemon: everything that lives on its loop. main.c owns exactly one; a test may own
 * several. */
#ifndef SHARD_SERVER_H
#define SHARD_SERVER_H

#include "base/log.h"
#include "base/status.h"
#include "config/config.h"

#include <uv.h>

struct server;

/* Takes the lock on the state directory, opens the listeners, loads what the coordinator keeps.
 * conf and log outlive the server. */
enum shard_status server_init(struct server **out, const struct config *conf, struct log *log,
			      uv_loop_t *loop, struct err *e);
/* Finish what is decided, abort what is not and say so, wait for the verdict on what was voted for,
 * close everything; then stopped(arg), once, on the loop. The waits end after [daemon]
 * stop_timeout. */
void server_stop(struct server *s, const char *why, void (*stopped)(void *arg), void *arg);
const char *server_stopping(
	const struct server *s); /* what it does yet, in words; NULL: it does not stop */
uint32_t server_connected(const struct server *s,
			  uint64_t *ever); /* connections now; how many sessions there have been */
/* The file of [cluster] secret again, for connections from now on; failure keeps what it had.
 * Without a secret: nothing. */
enum shard_status server_reload_secret(struct server *s, struct err *e);
void server_free(struct server **s); /* after stopped, and after the loop ran out of handles */

#endif
