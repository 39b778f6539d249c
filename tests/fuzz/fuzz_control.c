/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes control bodies. Byte 0 is the op, byte 1 chooses request or reply and the arena's size,
 * and the rest is the body. What is accepted must be packable again, and accepted placement runs
 * must name only nodes that exist. */
// covers: proto/wire/control.c
#include "base/check.h"
#include "wire/control.h"
#include "wire/ops.h"
#include "wire/place.h"

#include "shard.pb-c.h"

#include <stdlib.h>
#include <string.h>

enum { NODES = 5, CHUNKS = 37 };

static void holders(const Shard__Model *m, const uint16_t *owner)
{
	uint64_t mask[CHUNKS], back[2 * CHUNKS];

	if (place_decode_holders(mask, owner, CHUNKS, NODES, 2, m->holder_runs, m->n_holder_runs))
		return;
	for (int i = 0; i < CHUNKS; i++)
		CHECK(mask[i] >> NODES == 0 && __builtin_popcountll(mask[i]) == 2 &&
		      mask[i] >> owner[i] & 1);
	CHECK(place_encode_holders(back, CHUNKS, mask, CHUNKS) <= m->n_holder_runs / 2);
}

static void runs(const Shard__Model *m)
{
	uint16_t owner[CHUNKS];
	uint32_t back[2 * CHUNKS];

	if (place_decode(owner, CHUNKS, NODES, m->place_runs, (uint32_t)m->n_place_runs))
		return;
	for (int i = 0; i < CHUNKS; i++)
		CHECK(owner[i] < NODES);
	/* Neighbouring runs of one node may have been apart. */
	CHECK(place_encode(back, CHUNKS, owner, CHUNKS) <= m->n_place_runs / 2);
	holders(m, owner);
}

/* Checks what a log line or a terminal shows of a foreign text. It must be UTF-8 without control
 * characters, must fit, and must not change when it is cleaned again. */
static void clean(const uint8_t *bytes, size_t size)
{
	char *text = malloc(size + 1), once[80], twice[80];

	CHECK(text);
	memcpy(text, bytes, size);
	text[size] = 0;
	control_clean(once, sizeof(once), text);
	CHECK(strlen(once) < sizeof(once) && control_text_ok(once));
	control_clean(twice, sizeof(twice), once);
	CHECK(strcmp(once, twice) == 0);
	control_escape(once, sizeof(once), text);
	CHECK(strlen(once) < sizeof(once) && control_text_ok(once));
	free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const ProtobufCMessageDescriptor *type;
	const ProtobufCMessage *m, *again;
	size_t arena_bytes, packed;
	uint8_t *memory, *first;
	struct arena a;
	struct err e;

	if (size < 2)
		return 0;
	type = control_type(data[0], data[1] & 1);
	if (!type)
		return 0;
	if (data[1] & 2)
		clean(data + 2, size - 2);
	arena_bytes = data[1] & 4 ? CONTROL_ARENA_BYTES(size) : (size_t)data[1] * 8;
	memory = malloc(arena_bytes + 1);
	arena_init(&a, memory, arena_bytes);
	if (control_unpack(&m, type, data + 2, size - 2, &a, &e) == SHARD_OK) {
		packed = protobuf_c_message_get_packed_size(m);
		first = malloc(packed + 1);
		CHECK(protobuf_c_message_pack(m, first) == packed);
		if (m->descriptor == &shard__model__descriptor)
			runs((const Shard__Model *)m);
		free(memory);
		arena_bytes = CONTROL_ARENA_BYTES(packed) + 16 * size;
		memory = malloc(arena_bytes);
		arena_init(&a, memory, arena_bytes);
		/* protobuf-c keeps an unknown field whose tag was written the long way, and would
		 * not read it back. */
		if (control_unpack(&again, type, first, packed, &a, &e) == SHARD_OK)
			CHECK(protobuf_c_message_get_packed_size(again) == packed);
		free(first);
	} else {
		CHECK(!m && strlen(e.text) > 0 && !(e.status == SHARD_RANGE && data[1] & 4));
	}
	free(memory);
	return 0;
}
