/* SPDX-License-Identifier: Apache-2.0 */
/* status.h: what a daemon says of itself: one JSON document for `shardctl status`, one sentence for a trainer that waits. */
#ifndef SHARD_OBS_STATUS_H
#define SHARD_OBS_STATUS_H

#include <stddef.h>

struct server;
struct model;

char *status_json(const struct server *s); /* malloc'ed; NULL: no memory */
void status_waits(const struct model *m, char *out, size_t bytes);

#endif
