/* SPDX-License-Identifier: Apache-2.0 */
/* scrape.h: what a daemon shows over HTTP, rendered on the loop. */
#ifndef SHARD_OBS_SCRAPE_H
#define SHARD_OBS_SCRAPE_H

#include "obs/http.h"

struct server;
struct model_watch;
struct peer;

void scrape_render(void *server, struct http_snapshot *out); /* http_conf.render */
/* A step is decided on this node: counts it, with the times of the attempt in hand if it is that
 * one. */
extern const struct model_watch scrape_watch;
void scrape_peer_bytes(const struct peer *p, uint64_t *in,
		       uint64_t *out); /* since the start, over all its connections */

#endif
