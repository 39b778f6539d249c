/* SPDX-License-Identifier: Apache-2.0 */
/* control.h: control bodies: protobuf messages, unpacked into an arena that the caller resets after the reply. No malloc. Bytes
 * come from outside: what does not parse, does not fit the arena, or carries a text that is not clean UTF-8 is refused. */
#ifndef SHARD_WIRE_CONTROL_H
#define SHARD_WIRE_CONTROL_H

#include "base/arena.h"
#include "base/status.h"

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>

/* An arena this large holds any body of that size: for owners that allocate at start. The worst repeat an empty message where one
 * is expected: each 2 bytes become a struct, merged into the one before, and nothing is given back. Memory that is not written is
 * not touched either. */
#define CONTROL_ARENA_BYTES(body_bytes) ((size_t)(body_bytes)*144 + 8192)

/* What an op carries as request or as reply (WIRE_REPLY); NULL: nothing, or tensor bytes. */
const ProtobufCMessageDescriptor *control_type(uint16_t op, bool reply);

/* *out lives in the arena. SHARD_PROTOCOL: malformed; SHARD_RANGE: larger than the arena. Missing fields have proto3 defaults;
 * missing messages are NULL; strings are never NULL. */
enum shard_status control_unpack(const ProtobufCMessage **out, const ProtobufCMessageDescriptor *type, const void *body,
				 size_t bytes, struct arena *arena, struct err *e);

/* For names that become part of logs, paths and metrics: 1 to max bytes of [a-z A-Z 0-9 . _ - / : +]. */
bool control_name_ok(const char *name, size_t max);

#endif
