/* SPDX-License-Identifier: Apache-2.0 */
/* control.h: control bodies: protobuf messages, unpacked into an arena that the caller resets after
 * the reply. No malloc. Bytes come from outside: what does not parse, does not fit the arena, or
 * carries a text that is not clean UTF-8 is refused. */
#ifndef SHARD_WIRE_CONTROL_H
#define SHARD_WIRE_CONTROL_H

#include "base/arena.h"
#include "base/status.h"

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>

/* An arena this large holds any body of that size: for owners that allocate at start. The worst
 * repeat an empty message where one is expected: each 2 bytes become a struct, merged into the one
 * before, and nothing is given back. Memory that is not written is not touched either. */
#define CONTROL_ARENA_BYTES(body_bytes) ((size_t)(body_bytes)*144 + 8192)

/* What an op carries as request or as reply (WIRE_REPLY); NULL: nothing, or tensor bytes. */
const ProtobufCMessageDescriptor *control_type(uint16_t op, bool reply);

/* *out lives in the arena. SHARD_PROTOCOL: malformed; SHARD_RANGE: larger than the arena;
 * SHARD_BAD_ARG: a message of that type, with a text that is not clean. Missing
 * fields have proto3 defaults; missing messages are NULL; strings are never NULL. */
enum shard_status control_unpack(const ProtobufCMessage **out,
				 const ProtobufCMessageDescriptor *type, const void *body,
				 size_t bytes, struct arena *arena, struct err *e);

/* SHARD_BAD_ARG: a text at any depth of it is not UTF-8 or has a control character; e names the
 * field, the byte and its place, and repeats nothing that is not clean. */
enum shard_status control_texts(const ProtobufCMessage *m, struct err *e);

/* For a reason that somebody gave, which may be an exception's text of many lines: a space for each
 * control character, '?' for what is not UTF-8, and no half character at the end of out. */
void control_clean(char *out, size_t bytes, const char *text);

/* UTF-8 without control characters: what every string of a control body has to be. */
bool control_text_ok(const char *text);

#endif
