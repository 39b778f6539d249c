/* SPDX-License-Identifier: Apache-2.0 */
/* scrape.h: what a daemon shows over HTTP. Everything is rendered on the loop. */
#ifndef SHARD_OBS_SCRAPE_H
#define SHARD_OBS_SCRAPE_H

#include "obs/http.h"

struct server;
struct model_watch;
struct peer;

void scrape_render(void *server, struct http_snapshot *out); /* For http_conf.render. */
/* Counts each step that is decided on this node. The times of the attempt in progress are counted
 * with it if the step is of that attempt. */
extern const struct model_watch scrape_watch;
/* Since the start, over all connections of the peer. */
void scrape_peer_bytes(const struct peer *p, uint64_t *in, uint64_t *out);

#endif
