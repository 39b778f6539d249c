/* SPDX-License-Identifier: Apache-2.0 */
/* control.h: control bodies are protobuf messages. They are unpacked without malloc into an arena,
 * which the caller resets after the reply. The bytes come from outside. A body is refused if it
 * does not parse, does not fit the arena, or carries a text that is not UTF-8 or has control
 * characters. */
#ifndef SHARD_WIRE_CONTROL_H
#define SHARD_WIRE_CONTROL_H

#include "base/arena.h"
#include "base/status.h"

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>

/* An arena of this size holds any body of body_bytes. It is for owners that allocate at start. The
 * worst body repeats an empty message where one message is expected. Each 2 bytes then become a
 * struct, which is merged into the one before, and the arena gives nothing back. Memory of the
 * arena that is not written is not touched. */
#define CONTROL_ARENA_BYTES(body_bytes) ((size_t)(body_bytes)*144 + 8192)

/* The message that an op carries as a request or as a reply (WIRE_REPLY). NULL means that the body
 * is empty or tensor bytes. */
const ProtobufCMessageDescriptor *control_type(uint16_t op, bool reply);

/* *out lives in the arena. SHARD_PROTOCOL: the body is malformed. SHARD_RANGE: it needs more than
 * the arena. SHARD_BAD_ARG: it is a message of that type, but with a text that control_texts()
 * refuses. Missing fields have proto3 defaults. Missing messages are NULL. Strings are never
 * NULL. */
enum shard_status control_unpack(const ProtobufCMessage **out,
				 const ProtobufCMessageDescriptor *type, const void *body,
				 size_t bytes, struct arena *arena, struct err *e);

/* SHARD_BAD_ARG: a text at any depth of m is not UTF-8 or has a control character. e names the
 * field, the byte and its position, and quotes only the part of the text that is valid. */
enum shard_status control_texts(const ProtobufCMessage *m, struct err *e);

/* Copies a reason that somebody gave, which may be an exception's text of many lines. Each control
 * character becomes a space, and each byte that is not UTF-8 becomes '?'. out never ends in the
 * middle of a character. */
void control_clean(char *out, size_t bytes, const char *text);

/* Copies a text that somebody wrote into a file, for people and for JSON. Each control character,
 * and each byte that is not UTF-8, becomes "\xHH", so that it is seen which one it is. */
void control_escape(char *out, size_t bytes, const char *text);

/* True for UTF-8 without control characters, which every string of a control body has to be. */
bool control_text_ok(const char *text);

#endif
