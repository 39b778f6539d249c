/* SPDX-License-Identifier: Apache-2.0 */
/* status.h: what a daemon says of itself: one JSON document for `shardctl status`, one sentence for
 * a trainer that waits. */
#ifndef SHARD_OBS_STATUS_H
#define SHARD_OBS_STATUS_H

#include "shard.pb-c.h"

#include <stddef.h>
#include <stdint.h>

struct server;
struct model;

/* As who asks may see it: of a model that is not his to read only the name, the owner and the mode.
 * who NULL: as others may. malloc'ed; NULL: no memory. */
char *status_json(const struct server *s, const Shard__Cred *who);
void status_line(const struct server *s, char *out,
		 size_t bytes); /* "nodes 2 of 2, models gpt (step 812, world 4)" */
void status_waits(const struct model *m, char *out, size_t bytes);
const char *status_model_state(const struct model *m); /* "open", "paused", "lost" ... */
void status_counts(const struct server *s, uint64_t *refused_frames,
		   uint64_t *copied_bytes); /* since the start */

#endif
