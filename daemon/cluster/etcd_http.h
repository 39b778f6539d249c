/* SPDX-License-Identifier: Apache-2.0 */
/* etcd_http.h: POST requests with JSON to one of several servers, on a libuv loop, by libcurl. All
 * calls and callbacks are on the thread of the loop. Answers are bounded, and each request but a
 * stream has a time limit. The server is the same for all requests until one of them fails. Then
 * the next one in the list gets the following requests. libcurl's own global state is counted by
 * curl_global_init(), once for each etcd_http. No signal handler is changed. */
#ifndef SHARD_CLUSTER_ETCD_HTTP_H
#define SHARD_CLUSTER_ETCD_HTTP_H

#include "base/status.h"
#include "cluster/source_etcd.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

struct etcd_http; /* Opaque. */
struct etcd_call; /* A request under way. Opaque. */

struct etcd_answer {
	int code;         /* The HTTP status. 0: there was no whole answer. */
	bool sent;        /* The server may have taken up the request. */
	const char *text; /* The body. It does not end with a zero byte. */
	size_t nr;
};

struct etcd_request {
	const char *path, *body; /* Copied. */
	uint32_t timeout_ms;     /* 0: it is a stream without an end. */
	size_t answer_max;       /* Bytes of an answer, or of a line. */
	void (*done)(void *arg, const struct etcd_answer *a); /* Once, unless it is cancelled. */
	/* For a stream: a line has come; NULL: it was too long. Must not call functions of this
	 * header. */
	void (*line)(void *arg, const char *line, size_t nr);
	void *arg;
};

/* SHARD_BAD_ARG: the endpoints or files make no sense, and e says which. SHARD_SYSTEM: no memory,
 * or libcurl cannot be used. */
enum shard_status etcd_http_open(struct etcd_http **out, uv_loop_t *loop,
				 const struct etcd_options *o, struct err *e);
/* NULL: no memory. */
struct etcd_call *etcd_http_post(struct etcd_http *h, const struct etcd_request *r);
void etcd_http_cancel(struct etcd_call **c); /* *c may be NULL, and is NULL afterwards. */
/* The number of the server that gets the next request. */
uint32_t etcd_http_server(const struct etcd_http *h);
/* How long to wait before the next request. 0, unless every server has failed in a row. */
uint32_t etcd_http_pause_ms(const struct etcd_http *h);
/* Why the last request that failed had no whole answer, with the server's address. "": none has. */
const char *etcd_http_trouble(const struct etcd_http *h);
/* What came from the server of the last answer makes no sense: take the next one. */
void etcd_http_blame(struct etcd_http *h);
/* Cancels what is under way, sets *h to NULL, and calls closed when nothing is left of it. */
void etcd_http_close(struct etcd_http **h, void (*closed)(void *arg), void *arg);

#endif
