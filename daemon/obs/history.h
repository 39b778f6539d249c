/* SPDX-License-Identifier: Apache-2.0 */
/* history.h: each node writes down what it decides about each model, and everything that a replay
 * of the steps needs beside the gradients: records, views, seals, restores, saves. A thread writes
 * and syncs it, so that no step waits for the disk. What cannot be written waits in a buffer, and
 * what does not fit there is missing. The history says so itself. */
#ifndef SHARD_OBS_HISTORY_H
#define SHARD_OBS_HISTORY_H

#include "base/status.h"

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stdint.h>

#define HISTORY_BUFFER_BYTES (128u << 10) /* Of entries that wait, and of those on their way. */
#define HISTORY_PAGE_BYTES   (64u << 10)
/* After a write that took t the next one begins HISTORY_REST times t later, and at most
 * HISTORY_REST_MAX_NS. So it costs little of a machine that makes a hundred steps a second. A step
 * that comes later is written at once. */
#define HISTORY_REST        20
#define HISTORY_REST_MAX_NS (100 * NS_PER_MS)

struct model;
struct model_watch;
struct peer;
struct server;
struct session;
struct wire_head;

extern const struct model_watch history_watch;

struct history_state {
	bool on;
	uint64_t bytes;      /* On the disk. */
	uint64_t entries;    /* Written since the start. */
	uint64_t dropped;    /* Missing since the start, because they could not be written. */
	uint64_t waiting;    /* Bytes that wait to be written. */
	const char *trouble; /* Why they do, or why entries were dropped. Empty: they were not. */
};
void history_state(const struct model *m, struct history_state *out);

/* For a stop: what waits is written at once. True: all of it is, or cannot be. */
bool history_stopped(struct server *s);

/* The request HISTORY of a session, and of another node for one of its sessions. What was decided
 * before it is written first, and the file is read in a thread. SHARD_NOT_FOUND: there is no such
 * model or node. SHARD_UNSUPPORTED: the node keeps no history, or is of an older release.
 * SHARD_BUSY: too many are being read. */
enum shard_status history_request(struct session *t, const struct wire_head *h,
				  const ProtobufCMessage *msg, struct err *e);
enum shard_status history_node_request(struct peer *p, const struct wire_head *h,
				       const ProtobufCMessage *msg, struct err *e);

/* The coordinator says that this model was dropped, and it is not here: what is left of its history
 * goes. */
void history_forget(struct server *s, uint32_t model);

#endif
