/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes what the cores of two nodes say to each other. Byte 0 is the op, byte 1 chooses the limits
 * of the model and the ids of the frame, and the rest is the body. What is accepted keeps to the
 * limits, can be packed, and is accepted again as the same bytes. Tables of a view get the sum that
 * they need, which no input would find, unless bit 5 of byte 1 is set. */
// covers: daemon/model/corewire.c daemon/model/tablewire.c
// needs: daemon/core/*.c daemon/optim/*.c
#include "base/check.h"
#include "core/msg.h"
#include "model/corewire.h"
#include "model/tablewire.h"
#include "wire/control.h"
#include "wire/ops.h"

#include <stdlib.h>
#include <string.h>

enum { MEMORY = 1 << 18 };

static const uint8_t own_uuid[VIEW_UUID_BYTES] = {
	2}; /* The uuid of this node in the first of the limits. */

static const struct corewire_limits limits[] = {
	{.chunks_nr = 5, .groups_nr = 1, .nodes_nr = 3, .self = 1, .uuid = own_uuid},
	{.chunks_nr = 1, .groups_nr = 2, .max_world = 2, .local_world = 1, .nodes_nr = 1},
};

static void worlds(const struct core_world *w, const struct corewire_limits *l)
{
	CHECK(w->size <= CORE_RANKS_MAX && (l->max_world == 0 || w->size <= l->max_world));
	for (uint32_t i = 0; i < w->size; i++)
		CHECK(w->rank[i].node < l->nodes_nr);
}

static void names(const struct view_members *v, const struct corewire_limits *l)
{
	CHECK(view_members_ok(v, view_first(l->nodes_nr, 0).nodes) && view_names_ok(v));
	CHECK(l->uuid == NULL || !view_is_member(v, l->self) ||
	      memcmp(v->node[l->self].uuid, l->uuid, VIEW_UUID_BYTES) == 0);
}

static void *memory(struct arena *a)
{
	void *at = malloc(MEMORY);

	CHECK(at);
	arena_init(a, at, MEMORY);
	return at;
}

static void sign(const ProtobufCMessage *in, const struct corewire_limits *l)
{
	Shard__View *v = ((Shard__Core *)(uintptr_t)in)->view;
	struct placement p;
	struct arena a;
	struct err e;
	void *at;

	if (v == NULL || v->tables == NULL)
		return;
	at = memory(&a);
	if (tablewire_unpack(v->tables, l->chunks_nr, l->nodes_nr, &a, &p, &e) == SHARD_OK)
		v->place = p.sum;
	free(at);
}

/* False: refused. *packed and *packed_bytes are the message, packed again. */
static bool turn(const struct wire_head *h, const struct corewire_limits *l, const uint8_t *body,
		 size_t size, struct wire_head *out, uint8_t **packed, size_t *packed_bytes)
{
	const ProtobufCMessage *in;
	const uint32_t to_all = BIT(CORE_ASK) | BIT(CORE_VIEW) | BIT(CORE_BEGIN) |
				BIT(CORE_COMMIT) | BIT(CORE_ABORT) | BIT(CORE_WAITING) |
				BIT(CORE_HEAR);
	struct core_msg m, other;
	Shard__Core again;
	struct arena a;
	void *at = memory(&a);
	struct err e = {.text = ""};
	enum shard_status st;
	bool good = false;

	st = control_unpack(&in, &shard__core__descriptor, body, size, &a, &e);
	if (st == SHARD_OK && (h->step & 4) == 0)
		sign(in, l);
	if (st == SHARD_OK &&
	    corewire_unpack(h, (const Shard__Core *)in, l, &a, &m, &e) == SHARD_OK) {
		good = true;
		if (m.world)
			worlds(m.world, l);
		if (m.view)
			names(&m.view->members, l);
		other = m;
		other.to++;
		/* Only what goes to all nodes may be packed once for several. */
		CHECK(corewire_same(&m, &other) == (BIT(m.op) & to_all && !m.answer));
		other.id.attempt++;
		CHECK(!corewire_same(&m, &other));
		CHECK(corewire_pack(&m, l->place.sum, &a, out, &again) == SHARD_OK);
		*packed_bytes = protobuf_c_message_get_packed_size(&again.base);
		*packed = malloc(*packed_bytes + 1);
		CHECK(*packed && protobuf_c_message_pack(&again.base, *packed) == *packed_bytes);
	} else {
		CHECK(strlen(e.text) > 0);
	}
	free(at);
	return good;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct wire_head h = {.model = 1}, once, twice;
	uint8_t *first, *second;
	size_t first_bytes, second_bytes;
	const struct corewire_limits *l;

	if (size < 2)
		return 0;
	h.op = (uint16_t)(OP_CORE + data[0] % CORE_MSG_NR);
	l = &limits[data[1] & 1];
	h.generation = data[1] >> 1 & 3;
	h.term = h.seq = 1;
	h.step = data[1] >> 3 & 7;
	h.attempt = data[1] >> 6;
	if (!turn(&h, l, data + 2, size - 2, &once, &first, &first_bytes))
		return 0;
	CHECK(turn(&once, l, first, first_bytes, &twice, &second, &second_bytes));
	CHECK(second_bytes == first_bytes && memcmp(first, second, first_bytes) == 0);
	free(first);
	free(second);
	return 0;
}
