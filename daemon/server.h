/* SPDX-License-Identifier: Apache-2.0 */
/* server.h: one daemon, that is, everything that lives on its loop. main.c owns exactly one, and a
 * test may own several. */
#ifndef SHARD_SERVER_H
#define SHARD_SERVER_H

#include "base/log.h"
#include "base/status.h"
#include "config/config.h"

#include <uv.h>

struct server;

/* Opens the listeners, locks the state folder and loads what the coordinator keeps. conf and log
 * have to outlive the server. */
enum shard_status server_init(struct server **out, const struct config *conf, struct log *log,
			      uv_loop_t *loop, struct err *e);
/* Stops the server: decided steps are finished, undecided ones are aborted with a reason, and votes
 * wait for their verdict. Then everything is closed, and stopped(arg) comes once, on the loop. The
 * waits end after [daemon] stop_timeout. */
void server_stop(struct server *s, const char *why, void (*stopped)(void *arg), void *arg);
/* It ends because of a fault, which was logged, and not because it was asked to. NULL: it does
 * not. */
const char *server_failed(const struct server *s);
/* cb(arg) is called once, on the loop, if a fault demands that the server stops. */
void server_on_fault(struct server *s, void (*cb)(void *arg, const char *why), void *arg);
const char *server_stopping(
	const struct server *s); /* What it still has to do while it stops. NULL: no stop yet. */
/* Connections now. ever: how many sessions there have been. */
uint32_t server_connected(const struct server *s, uint64_t *ever);
/* Reads the secrets and the files of TLS again, for new connections. A failure keeps all of them as
 * they were. Does nothing if there are none. */
enum shard_status server_reload_secret(struct server *s, struct err *e);
/* Notes for the metrics whether the configuration could be read again. */
void server_reloaded(struct server *s, bool ok);
/* Only after stopped() and after the loop ran out of handles. */
void server_free(struct server **s);

#endif
