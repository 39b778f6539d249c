/* SPDX-License-Identifier: Apache-2.0 */
/* events.h: the last lines of the log that an operator may ask for afterwards. `shardctl events`,
 * the page and /events show them. They are kept in memory only; the log has them all. */
#ifndef SHARD_OBS_EVENTS_H
#define SHARD_OBS_EVENTS_H

#include "base/log.h"
#include "base/status.h"
#include "shard.pb-c.h"

#include <jansson.h>
#include <stdint.h>

struct server;

#define EVENTS_KEPT 50

/* From here on lines of the server's log are kept, until events_free(). */
enum shard_status events_init(struct server *s, struct err *e);
void events_free(struct server *s);
/* The oldest first. Without the events of models that this user may not read; of models that are
 * gone only root sees them. NULL: there was no memory. */
json_t *events_json(const struct server *s, const Shard__Cred *who);
/* Lines that were logged since the start, of each level. */
void events_lines(const struct server *s, uint64_t lines[LOG_LEVEL_NR]);

#endif
