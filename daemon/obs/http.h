/* SPDX-License-Identifier: Apache-2.0 */
/* http.h: serves /metrics, /status, health and the page at / to anyone who can reach the address,
 * or to those whom the operator allows.
 * A thread of its own answers requests from snapshots. The loop makes a snapshot when one is asked
 * for, at most once a second, so that no client can slow a step down. */
#ifndef SHARD_OBS_HTTP_H
#define SHARD_OBS_HTTP_H

#include "base/status.h"
#include "base/log.h"
#include "net/address.h"

#include <stdbool.h>
#include <uv.h>

struct http;

struct http_snapshot { /* Texts from malloc(); NULL: there was no memory. */
	char *metrics, *status, *events, *samples,
		*health;   /* health: a line for each finding; "": none. */
	char *cluster;     /* The status with that of other nodes. NULL: nobody asks for it. */
	bool due;          /* Asks for samples. Otherwise those of before stay. */
	bool whole;        /* Asks for cluster. */
	bool ill;          /* /healthz answers 503. */
	char unready[400]; /* Why /readyz answers 503; "": it does not. */
};

struct http_conf {
	/* Where it listens, the networks that are answered beside 127.0.0.1 and ::1 (none:
	 * everybody is), and TLS. */
	const struct config *config;
	struct log *log; /* It says whose connections are closed. */
	uv_loop_t *loop;
	uint64_t stall_ns; /* A loop that has not answered for so long is ill. */
	/* Called on the loop. The texts become http.c's. */
	void (*render)(void *arg, struct http_snapshot *s);
	void *arg;
};

/* SHARD_SYSTEM: the address cannot be used. e names the option and what to do. */
enum shard_status http_open(struct http **out, const struct http_conf *conf, struct err *e);
/* Reads the files of TLS again. A failure keeps those that are in use. Without TLS it does
 * nothing. */
enum shard_status http_reload(struct http *h, struct err *e);
uint16_t http_port(const struct http *h); /* The port that was bound. */
/* Ends the thread and every connection and sets *h to NULL. closed(arg) comes on the loop when the
 * memory is freed. */
void http_close(struct http **h, void (*closed)(void *arg), void *arg);

#endif
