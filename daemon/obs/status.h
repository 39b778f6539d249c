/* SPDX-License-Identifier: Apache-2.0 */
/* status.h: what a daemon says of itself: a JSON document for `shardctl status`, a line for
 * systemd, and a sentence for a trainer that waits. */
#ifndef SHARD_OBS_STATUS_H
#define SHARD_OBS_STATUS_H

#include "shard.pb-c.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct server;
struct model;

/* "format" of the JSON of /status, /events and /samples. It grows when a key changes its meaning or
 * goes. */
enum { STATUS_FORMAT = 1 };

/* STATUS_OWN leaves out what every node says: what is wrong, and its events. */
enum status_what { STATUS_WHOLE, STATUS_OWN };

/* The status as this user may see it. A model that the user may not read has only its name, owner
 * and mode. who NULL: somebody over TCP. The text is from malloc(); NULL: no memory. */
char *status_json(const struct server *s, const Shard__Cred *who, enum status_what what);
/* "nodes 2 of 2, models gpt (step 812, world 4)" */
void status_line(const struct server *s, char *out, size_t bytes);
/* Since the start. */
void status_counts(const struct server *s, uint64_t *refused_frames, uint64_t *copied_bytes);

#endif
