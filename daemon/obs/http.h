/* SPDX-License-Identifier: Apache-2.0 */
/* http.h: /metrics, /status, /healthz and the page at /, for whoever can reach the address. A
 * thread of its own answers requests from snapshots; the loop makes one when it is asked for, at
 * most once a second, so no client can slow a step down. */
#ifndef SHARD_OBS_HTTP_H
#define SHARD_OBS_HTTP_H

#include "base/status.h"
#include "net/address.h"

#include <uv.h>

struct http;

struct http_snapshot {                /* malloc'ed texts; NULL: there was no memory for it */
	char *metrics, *status, *ill; /* ill: why /healthz says 503; "" : well */
};

struct http_conf {
	const struct conn_address *at;
	uv_loop_t *loop;
	uint64_t stall_ns; /* a loop that has not answered for so long is ill */
	void (*render)(void *arg,
		       struct http_snapshot *s); /* on the loop; the texts are taken over */
	void *arg;
};

/* SHARD_SYSTEM: the address cannot be had: e names the option and what to do. */
enum shard_status http_open(struct http **out, const struct http_conf *conf, struct err *e);
uint16_t http_port(const struct http *h); /* as bound */
/* Ends the thread and every connection; closed(arg) on the loop when its memory is gone. NULLs *h.
 */
void http_close(struct http **h, void (*closed)(void *arg), void *arg);

#endif
