/* SPDX-License-Identifier: Apache-2.0 */
/* status.h: what a daemon says of itself: one JSON document for `shardctl status`, one sentence for a trainer that waits. */
#ifndef SHARD_OBS_STATUS_H
#define SHARD_OBS_STATUS_H

#include <stddef.h>
#include <stdint.h>

struct server;
struct model;

char *status_json(const struct server *s);                         /* malloc'ed; NULL: no memory */
void status_line(const struct server *s, char *out, size_t bytes); /* "nodes 2 of 2, models gpt (step 812, world 4)" */
void status_waits(const struct model *m, char *out, size_t bytes);
const char *status_model_state(const struct model *m);                                        /* "open", "paused", "lost" ... */
void status_counts(const struct server *s, uint64_t *refused_frames, uint64_t *copied_bytes); /* since the start */

#endif
