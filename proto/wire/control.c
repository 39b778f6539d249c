/* SPDX-License-Identifier: Apache-2.0 */
/* Unpacks control bodies from the bytes that a peer sent. The dispatchers on both sides call it.
 * Happy path: protobuf-c parses into the arena, and then every string is checked, because texts end
 * up in logs and JSON. It fails where the body is not a message of that type, or where the message
 * needs more than the arena holds. It also fails for a text that is not UTF-8 or has control
 * characters. That is SHARD_BAD_ARG, and the error names the field, the byte and its position. The
 * library checks texts before it sends them, and the daemon refuses such a request. The message
 * types nest to a fixed depth, so the stack is bounded. */
#include "wire/control.h"

#include "base/check.h"
#include "wire/ops.h"

#include "shard.pb-c.h"

#include <stdio.h>
#include <string.h>

#define M(name) &shard__##name##__descriptor

struct type_row {
	const ProtobufCMessageDescriptor *request, *reply;
};

static const struct type_row types[OP_CORE] = {
	[OP_HELLO] = {M(hello), M(hello)},
	[OP_ERROR] = {M(error), M(error)},
	[OP_AUTH] = {M(auth), M(auth)},
	[OP_DEFINE] = {M(define), M(defined)},
	[OP_SEAL] = {M(seal), NULL},
	[OP_READ] = {M(read), NULL},
	[OP_JOIN] = {M(join), M(joined)},
	[OP_STATUS] = {M(look), M(text)},
	[OP_WAITS] = {NULL, M(text)},
	[OP_ATTEMPT] = {M(attempt), NULL},
	[OP_PUSH] = {M(push), NULL},
	[OP_READY] = {M(ready), NULL},
	[OP_ABANDON] = {M(why), NULL},
	[OP_RESULT] = {M(result), NULL},
	[OP_ENDED] = {M(why), NULL},
	[OP_IMAGE_ASK] = {M(chunks), NULL},
	[OP_LOST] = {M(why), NULL},
	[OP_MODEL] = {M(model), M(memory)},
	[OP_WRITTEN] = {NULL, M(written)},
	[OP_DETACHED] = {M(trainer), NULL},
	[OP_CONTRIB] = {M(push), NULL},
	[OP_ATTACH] = {M(attach), M(defined)},
	[OP_MANAGE] = {M(manage), NULL},
	[OP_SAVE] = {M(save), M(saved)},
	[OP_RESTORE] = {M(restore), M(defined)},
	[OP_BLOB] = {M(blob), M(blob_is)},
	[OP_VERIFY] = {M(attach), M(text)},
	[OP_VERIFY_PART] = {NULL, M(part_file)},
	[OP_PROGRESS] = {M(progress), NULL},
	[OP_SAVE_PART] = {M(save_part), M(part_file)},
	[OP_LOAD_PART] = {M(load_part), NULL},
	[OP_MODEL_DROP] = {M(why), NULL},
	[OP_RAIL] = {M(rail), NULL},
	[OP_REGION] = {M(regions), NULL},
	[OP_GRAD] = {M(grad), NULL},
	[OP_HELD] = {M(memory), NULL},
	[OP_MOVE] = {M(move), M(text)},
	[OP_HISTORY] = {M(history), M(history_page)},
	[OP_DEVICE] = {M(device), M(device_memory)},
	[OP_ROOM] = {M(tables), NULL},
	[OP_CAPACITY] = {M(capacity), NULL},
	[OP_NODES] = {M(nodes), NULL},
	[OP_NODE_ADD] = {M(nodes), NULL},
	[OP_HEALTH] = {M(health), NULL},
};

const ProtobufCMessageDescriptor *control_type(uint16_t op, bool reply)
{
	if (!wire_op(op))
		return NULL;
	if (op > OP_CORE)
		return M(core);
	return reply ? types[op].reply : types[op].request;
}

struct taker {
	struct arena *arena;
	bool full;
};

static void *take(void *data, size_t bytes)
{
	struct taker *t = data;
	void *p = arena_take(t->arena, bytes);

	t->full |= !p;
	return p;
}

static void give(void *data, void *p)
{
	(void)data; /* The caller resets the whole arena at once. */
	(void)p;
}

/* The length of the UTF-8 sequence at s, or 0 if there is none. Overlong forms, surrogates and
 * anything above U+10FFFF are refused. */
static int utf8_length(const unsigned char *s)
{
	if (s[0] < 0x80)
		return 1;
	if (s[0] >= 0xc2 && s[0] <= 0xdf)
		return (s[1] & 0xc0) == 0x80 ? 2 : 0;
	if (s[0] >= 0xe0 && s[0] <= 0xef) {
		unsigned char low = s[0] == 0xe0 ? 0xa0 : 0x80, high = s[0] == 0xed ? 0x9f : 0xbf;

		return s[1] >= low && s[1] <= high && (s[2] & 0xc0) == 0x80 ? 3 : 0;
	}
	if (s[0] >= 0xf0 && s[0] <= 0xf4) {
		unsigned char low = s[0] == 0xf0 ? 0x90 : 0x80, high = s[0] == 0xf4 ? 0x8f : 0xbf;

		return s[1] >= low && s[1] <= high && (s[2] & 0xc0) == 0x80 && (s[3] & 0xc0) == 0x80
			       ? 4
			       : 0;
	}
	return 0;
}

static enum shard_status text_check(const char *field, const char *text, bool lines, struct err *e)
{
	const unsigned char *begin = (const unsigned char *)text, *s = begin;
	/* Ends at a whole character, because this sentence is sent as a text, too. */
	int shown = 0;

	while (*s) {
		int n = utf8_length(s);

		if (s - begin <= 64)
			shown = (int)(s - begin);

		if (n == 0 || *s == 0x7f || (*s < 0x20 && !(lines && (*s == '\n' || *s == '\t'))))
			return err_set(e, SHARD_BAD_ARG,
				       "%s \"%.*s...\" has %s (0x%02x) at byte %zu", field, shown,
				       text, n == 0 ? "what is not UTF-8" : "a control character",
				       *s, (size_t)(s - begin));
		s += n;
	}
	return SHARD_OK;
}

void control_clean(char *out, size_t bytes, const char *text)
{
	const unsigned char *s = (const unsigned char *)text;
	size_t at = 0;

	CHECK(bytes > 0);
	while (*s) {
		int n = utf8_length(s), take = n == 0 ? 1 : n;

		if (at + (size_t)take >= bytes)
			break;
		if (n == 0 || *s < 0x20 || *s == 0x7f)
			out[at] = n == 0 ? '?' : ' ';
		else
			memcpy(out + at, s, (size_t)n);
		at += (size_t)take;
		s += take;
	}
	out[at] = 0;
}

void control_escape(char *out, size_t bytes, const char *text)
{
	const unsigned char *s = (const unsigned char *)text;
	size_t at = 0;

	CHECK(bytes > 0);
	while (*s) {
		int n = utf8_length(s);
		bool plain = n > 0 && *s >= 0x20 && *s != 0x7f;
		size_t take = plain ? (size_t)n : 4;

		if (at + take >= bytes)
			break;
		if (plain)
			memcpy(out + at, s, take);
		else
			snprintf(out + at, bytes - at, "\\x%02x", *s);
		at += take;
		s += plain ? n : 1;
	}
	out[at] = 0;
}

static enum shard_status member_check(const ProtobufCFieldDescriptor *f, const void *member,
				      bool lines, struct err *e)
{
	const void *value;

	memcpy(&value, member, sizeof(value));
	if (!value)
		return SHARD_OK;
	if (f->type == PROTOBUF_C_TYPE_MESSAGE)
		return control_texts(value, e);
	return text_check(f->name, value, lines, e);
}

enum shard_status control_texts(const ProtobufCMessage *m, struct err *e)
{
	bool lines = m->descriptor == M(text); /* Its text is the status as JSON. */

	for (unsigned i = 0; i < m->descriptor->n_fields; i++) {
		const ProtobufCFieldDescriptor *f = &m->descriptor->fields[i];
		const char *at = (const char *)m + f->offset;
		size_t nr = 1;

		if (f->type != PROTOBUF_C_TYPE_STRING && f->type != PROTOBUF_C_TYPE_MESSAGE)
			continue;
		if (f->label == PROTOBUF_C_LABEL_REPEATED) {
			memcpy(&nr, (const char *)m + f->quantifier_offset, sizeof(nr));
			memcpy(&at, (const void *)at, sizeof(const char *));
		}
		for (size_t k = 0; k < nr; k++) {
			enum shard_status st = member_check(f, at + k * sizeof(void *), lines, e);

			if (st != SHARD_OK)
				return st;
		}
	}
	return SHARD_OK;
}

enum shard_status control_unpack(const ProtobufCMessage **out,
				 const ProtobufCMessageDescriptor *type, const void *body,
				 size_t bytes, struct arena *arena, struct err *e)
{
	struct taker t = {arena, false};
	ProtobufCAllocator allocator = {take, give, &t};
	ProtobufCMessage *m;
	struct err why;

	CHECK(type && (body || bytes == 0));
	*out = NULL;
	m = protobuf_c_message_unpack(type, &allocator, bytes, body ? body : (const void *)"");
	if (!m)
		return t.full ? err_set(e, SHARD_RANGE,
					"%s of %zu bytes needs more than the %zu bytes set aside",
					type->short_name, bytes, arena->size)
			      : err_set(e, SHARD_PROTOCOL, "body is not a %s message (%zu bytes)",
					type->short_name, bytes);
	if (control_texts(m, &why) != SHARD_OK)
		return err_set(e, why.status, "%s: %.400s", type->short_name, why.text);
	*out = m;
	return SHARD_OK;
}

bool control_text_ok(const char *text)
{
	struct err e;

	return text_check("", text, false, &e) == SHARD_OK;
}
